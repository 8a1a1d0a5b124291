//! A run in progress, for a person who looks on: what the machines tell of it meanwhile, by the clock here.

use super::{HostsError, Rebase, machine::Machine, talk};
use crate::{
    part::PartError,
    plan::{FlowPlan, Plan},
};
use longfat_schema::{
    lines::Lines,
    own_time::Dilation,
    record::Record,
    run::{START_FILE, Start, write_json},
};
use std::{collections::BTreeMap, fs::File, path::Path};

/// How often the machines are asked: their programs write down no more often.
const EVERY_US: i64 = 1_000_000;

/// Most that a machine tells at a time: thinned, some hundred records.
const TOLD_BYTES_MAX: u64 = 16 << 20;

/// Records of a run in progress. They are nobody's figures: what the machines wrote is fetched whole in the end.
pub struct Onlook<'a> {
    rebase: Rebase<'a>,
    start_us: i64,
    lines: Lines,
    asked_us: i64,
    /// Payload per second that reached the focus flow's receiver lately.
    pub arriving_bps: Option<f64>,
}

impl<'a> Onlook<'a> {
    /// Begins to look at a run whose flows begin at `start_us`; the records go to `directory`.
    pub fn begin(directory: &Path, rebase: Rebase<'a>, start_us: i64) -> Result<Onlook<'a>, HostsError> {
        write_json(&directory.join(START_FILE), &Start { start_us, dilation: Dilation::NONE })?;
        let file = directory.join("so-far.jsonl");
        let lines = Lines::create(&file).map_err(|source| PartError::io(&file, source))?;
        Ok(Onlook { rebase, start_us, lines, asked_us: 0, arriving_bps: None })
    }

    /// Whether it is time to ask again, so long after the start of the flows.
    pub fn is_due(&self, elapsed_us: i64) -> bool {
        elapsed_us - self.asked_us >= EVERY_US
    }

    /// Takes what every machine told.
    pub fn hear(&mut self, elapsed_us: i64, told: Vec<(&Machine, File)>) -> Result<(), HostsError> {
        self.asked_us = elapsed_us;
        let mut records = Vec::new();
        for (machine, packed) in told {
            let strange =
                |error: &dyn ToString| machine.failed(format!("what it recorded: {}", error.to_string()));
            let mut text = Vec::new();
            talk::unpack(packed, TOLD_BYTES_MAX, &mut text).map_err(|error| strange(&error))?;
            for record in serde_json::Deserializer::from_slice(&text).into_iter() {
                records.push(self.rebase.by_our_clock(
                    record.map_err(|error| strange(&error))?,
                    &machine.host,
                    self.start_us,
                ));
            }
        }
        self.arriving_bps = arriving_bps(&records, self.rebase.plan).or(self.arriving_bps);
        let written = records.iter().try_for_each(|record| self.lines.write(record));
        let flushed = written.and_then(|()| self.lines.flush());
        Ok(flushed.map_err(|source| PartError::io(Path::new("so-far.jsonl"), source))?)
    }
}

/// Payload per second of the focus flow (or else the first) in these intervals.
fn arriving_bps(records: &[Record], plan: &Plan) -> Option<f64> {
    let is_focus = |flow: &&FlowPlan| Some(&flow.name) == plan.focus.as_ref();
    let focus = plan.flows.iter().find(is_focus).or(plan.flows.first())?;
    let mut streams: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for record in records {
        if let Record::Interval(row) = record
            && row.flow == focus.name
        {
            let sum = streams.entry(row.stream).or_default();
            *sum = (sum.0.saturating_add(row.bytes), sum.1.saturating_add(row.duration_us));
        }
    }
    let rates = streams.into_values().map(|(bytes, us)| bytes as f64 * 8e6 / us.max(1) as f64);
    rates.reduce(|one, other| one + other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests_support;
    use longfat_schema::record::IntervalSample;

    #[test]
    fn the_rates_of_the_focus_flows_streams_are_added_each_over_its_own_time() {
        let plan = tests_support::plan();
        let row = |flow: &str, stream, bytes, duration_us| {
            Record::Interval(IntervalSample {
                flow: flow.into(),
                stream,
                bytes,
                duration_us,
                ..Default::default()
            })
        };
        let rows = [
            row("measured", 0, 1000, 1_000_000),
            row("measured", 0, 3000, 1_000_000),
            row("measured", 1, 500, 500_000),
            row("other", 0, 999_999, 1_000),
        ];
        assert_eq!(arriving_bps(&rows, &plan), Some(16_000.0 + 8_000.0));
        assert_eq!(arriving_bps(&rows[3..], &plan), None);
    }
}
