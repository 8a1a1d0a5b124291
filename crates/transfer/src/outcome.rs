//! What a transfer came to.

use crate::{
    channel::ClockOffset,
    ends::{SinkEnd, SourceEnd, goodput_bps, summarise},
    plan::TransferPlan,
    session::Finished,
};
use longfat_schema::record::FlowSummary;
use serde::{Serialize, Serializer};

/// Everything both ends know at the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// What was agreed.
    pub plan: TransferPlan,
    /// One summary per stream; written with a `goodput_bps` of null where there is none ([`goodput_bps`]).
    #[serde(serialize_with = "without_rates_over_no_time")]
    pub flows: Vec<FlowSummary>,
    /// The sending end's figures.
    pub sources: Vec<SourceEnd>,
    /// The receiving end's figures.
    pub sinks: Vec<SinkEnd>,
    /// The other end's CLOCK_MONOTONIC minus this end's.
    pub clock_offset_us: i64,
    /// How far off that estimate may be.
    pub clock_error_us: i64,
    /// Why the other end's figures are missing, when it went away.
    pub lost: Option<String>,
}

impl Outcome {
    pub(crate) fn new(plan: &TransferPlan, finished: Finished, clock: ClockOffset) -> Outcome {
        let (mut sources, mut sinks) = (finished.own.sources, finished.own.sinks);
        sources.extend(finished.peer.sources);
        sinks.extend(finished.peer.sinks);
        Outcome {
            flows: summarise(plan, &sources, &sinks, finished.lost.as_deref()),
            plan: plan.clone(),
            sources,
            sinks,
            clock_offset_us: clock.offset_us,
            clock_error_us: clock.error_us,
            lost: finished.lost,
        }
    }

    /// Whether every stream ended as planned.
    pub fn is_complete(&self) -> bool {
        self.lost.is_none() && self.flows.iter().all(|flow| flow.error.is_none())
    }

    /// Goodput of all streams together, each over its own window; absent where no stream has any figure.
    pub fn goodput_bps(&self) -> Option<u64> {
        self.flows.iter().filter_map(goodput_bps).reduce(u64::saturating_add)
    }

    /// What went wrong, one line per stream; lines that say the same are joined.
    pub fn errors(&self) -> Vec<String> {
        let mut errors: Vec<(String, Vec<u32>)> = Vec::new();
        for flow in &self.flows {
            let Some(error) = &flow.error else { continue };
            match errors.iter_mut().find(|(text, _)| text == error) {
                Some((_, streams)) => streams.push(flow.stream),
                None => errors.push((error.clone(), vec![flow.stream])),
            }
        }
        errors.into_iter().map(|(text, streams)| format!("{}: {text}", named(&streams))).collect()
    }
}

/// A rate over no time is no figure.
fn without_rates_over_no_time<S: Serializer>(flows: &[FlowSummary], to: S) -> Result<S::Ok, S::Error> {
    let shown = |flow: &FlowSummary| {
        let mut shown = serde_json::to_value(flow).map_err(serde::ser::Error::custom)?;
        shown["goodput_bps"] = goodput_bps(flow).into();
        Ok(shown)
    };
    to.collect_seq(flows.iter().map(shown).collect::<Result<Vec<_>, S::Error>>()?)
}

fn named(streams: &[u32]) -> String {
    match streams {
        [one] => format!("stream {one}"),
        [first, .., last] => format!("{} streams ({first} to {last})", streams.len()),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::Amount, session::Ends};

    #[test]
    fn figures_that_a_peer_made_up_overflow_no_sum() {
        let plan = TransferPlan { streams: 2, ..TransferPlan::default() };
        let sink = |stream| SinkEnd { stream, window_bytes: u64::MAX, window_us: 1, ..SinkEnd::default() };
        let source = |stream| SourceEnd { stream, ..SourceEnd::default() };
        let own = Ends { sources: vec![source(0), source(1)], ..Ends::default() };
        let peer = Ends { sinks: vec![sink(0), sink(1)], ..Ends::default() };
        let outcome = Outcome::new(&plan, Finished { own, peer, lost: None }, ClockOffset::default());
        assert_eq!(outcome.goodput_bps(), Some(u64::MAX));
    }

    #[test]
    fn a_goodput_over_no_time_is_null_and_counts_for_nothing() {
        let plan = TransferPlan { streams: 2, amount: Amount::Bytes(2000), ..TransferPlan::default() };
        let goodputs = |spans_us: [u64; 2]| {
            let sink =
                |(stream, window_us)| SinkEnd { stream, window_bytes: 1000, window_us, ..SinkEnd::default() };
            let source = |stream| SourceEnd { stream, ..SourceEnd::default() };
            let own = Ends { sources: (0..2).map(source).collect(), ..Ends::default() };
            let peer = Ends { sinks: (0..).zip(spans_us).map(sink).collect(), ..Ends::default() };
            let outcome = Outcome::new(&plan, Finished { own, peer, lost: None }, ClockOffset::default());
            let written = serde_json::to_value(&outcome).unwrap();
            let of = |stream: usize| written["flows"][stream]["goodput_bps"].as_u64();
            ([of(0), of(1)], outcome.goodput_bps())
        };
        assert_eq!(goodputs([0, 1000]), ([None, Some(8_000_000)], Some(8_000_000)));
        assert_eq!(goodputs([0, 0]), ([None, None], None));
    }
}
