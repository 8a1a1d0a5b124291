//! Available bandwidth as a connection measured it, beside what was free.
//!
//! Free for a connection is, on each link of its way that has a rate, that rate less what the other flows carried over
//! it in the same direction, headers included; the least of these. Both sides are means over bins of half a second.

use super::{Figures, Window, bytes_within};
use crate::{
    plan::{FlowPlan, Plan, network::Topology},
    samples::Samples,
    spec::Protocol,
};
use longfat_link::plan::DirectionPlan;
use longfat_schema::record::{AvailSample, IntervalSample};
use std::collections::BTreeMap;

/// Long enough for the mean of bursty traffic to mean something, short enough to show a step.
const BIN_US: i64 = 500_000;

/// One direction of a link: its name, and from which host.
type Way = (String, String);

pub(super) fn avail(plan: &Plan, samples: &Samples, window: Window, found: &mut Figures) {
    if samples.avail.is_empty() {
        return;
    }
    let traffic = Traffic::of(plan, samples);
    for flow in measurable(plan) {
        let of_flow = |row: &&AvailSample| row.flow == flow.name;
        let rows: Vec<&AvailSample> = samples.avail.iter().filter(of_flow).collect();
        if rows.is_empty() {
            continue;
        }
        let Some(free) = Free::of(plan, flow, &traffic) else { continue };
        let mut errors = Vec::new();
        let (mut means, mut truths, mut trusts) = (Vec::new(), Vec::new(), Vec::new());
        for bin in bins(window) {
            let Some((mean_bps, trust)) = held(&rows, bin) else { continue };
            let truth_bps = free.bps(&traffic, flow, bin);
            errors.push((mean_bps - truth_bps).abs() / free.capacity_bps);
            means.push(mean_bps);
            truths.push(truth_bps);
            trusts.push(trust);
        }
        let mean = |values: &[f64]| super::mean(values.iter().copied());
        found.extend("avail_error_ratio", &flow.name, mean(&errors));
        found.extend("avail_mean_bps", &flow.name, mean(&means));
        found.extend("avail_free_bps", &flow.name, mean(&truths));
        found.extend("avail_confidence_ratio", &flow.name, mean(&trusts));
    }
}

/// Writes what was free beside every result, bin by bin of the run's own time, so that readers of the tables need no
/// plan.
pub fn record_free(plan: &Plan, samples: &mut Samples) {
    let mut rows = std::mem::take(&mut samples.avail);
    if !rows.is_empty() {
        let traffic = Traffic::of(plan, samples);
        for flow in measurable(plan) {
            let Some(free) = Free::of(plan, flow, &traffic) else { continue };
            let mut known: BTreeMap<i64, u64> = BTreeMap::new();
            for row in rows.iter_mut().filter(|row| row.flow == flow.name) {
                let start_us = row.time_us.div_euclid(BIN_US) * BIN_US;
                let bin = Window { start_us, end_us: start_us + BIN_US };
                let free_bps = known.entry(start_us).or_insert_with(|| free.bps(&traffic, flow, bin) as u64);
                row.free_bps = Some(*free_bps);
            }
        }
    }
    samples.avail = rows;
}

/// Flows of one stream: what streams of one flow take from each other is not told apart here.
fn measurable(plan: &Plan) -> impl Iterator<Item = &FlowPlan> {
    plan.flows.iter().filter(|flow| flow.streams == 1)
}

fn bins(window: Window) -> impl Iterator<Item = Window> {
    let starts = (window.start_us..window.end_us).step_by(BIN_US as usize);
    starts.map(move |start_us| Window { start_us, end_us: (start_us + BIN_US).min(window.end_us) })
}

/// Mean of what was held in a bin (a result holds until the next), and of the confidence in it.
fn held(rows: &[&AvailSample], bin: Window) -> Option<(f64, f64)> {
    let ends = rows.iter().skip(1).map(|row| row.time_us).chain([i64::MAX]);
    let (mut total_us, mut avail, mut trust) = (0.0, 0.0, 0.0);
    for (row, end_us) in rows.iter().zip(ends) {
        let length_us = bin.overlap_us(row.time_us, end_us) as f64;
        total_us += length_us;
        avail += length_us * row.avail_bps as f64;
        trust += length_us * row.confidence_ratio;
    }
    (total_us > 0.0).then(|| (avail / total_us, trust / total_us))
}

/// The ways of a flow that have a rate, and the least rate.
struct Free {
    ways: Vec<(Way, f64)>,
    capacity_bps: f64,
}

impl Free {
    /// `None`: no link has a rate, or one changes it.
    fn of(plan: &Plan, flow: &FlowPlan, traffic: &Traffic<'_>) -> Option<Free> {
        let own = traffic.flows.iter().find(|carried| carried.flow.name == flow.name)?;
        let rated = own.ways.iter().filter_map(|way| Some((direction(plan, way)?, way)));
        let rated: Vec<(&DirectionPlan, &Way)> = rated.collect();
        if rated.iter().any(|(direction, _)| direction.changes()) {
            return None;
        }
        let rate =
            |(direction, way): (&DirectionPlan, &Way)| Some((way.clone(), direction.line.rate_bps? as f64));
        let ways: Vec<(Way, f64)> = rated.into_iter().filter_map(rate).collect();
        let capacity_bps = ways.iter().map(|(_, rate_bps)| *rate_bps).reduce(f64::min)?;
        Some(Free { ways, capacity_bps })
    }

    fn bps(&self, traffic: &Traffic<'_>, own: &FlowPlan, bin: Window) -> f64 {
        let on_way = |(way, rate_bps): &(Way, f64)| {
            let is_other = |other: &&Carried<'_>| other.flow.name != own.name && other.ways.contains(way);
            let carried: f64 = traffic.flows.iter().filter(is_other).map(|other| other.bps(bin)).sum();
            (rate_bps - carried).max(0.0)
        };
        self.ways.iter().map(on_way).reduce(f64::min).unwrap_or(0.0)
    }
}

/// What every flow carried, and over which ways: found once, asked for every bin.
struct Traffic<'a> {
    flows: Vec<Carried<'a>>,
}

struct Carried<'a> {
    flow: &'a FlowPlan,
    ways: Vec<Way>,
    /// Bytes on the wire per byte of payload.
    with_headers: f64,
    rows: Vec<&'a IntervalSample>,
}

impl<'a> Traffic<'a> {
    fn of(plan: &'a Plan, samples: &'a Samples) -> Traffic<'a> {
        let topology = Topology::of_plan(plan);
        let carried = |flow: &'a FlowPlan| {
            let path = topology.path(&flow.from, &flow.to).unwrap_or_default();
            let ways =
                path.into_iter().map(|hop| (hop.link.to_owned(), hop.from.to_owned())).collect::<Vec<_>>();
            let rows = samples.interval.iter().filter(|row| row.flow == flow.name).collect();
            Carried { with_headers: with_headers(plan, flow, &ways), flow, ways, rows }
        };
        Traffic { flows: plan.flows.iter().map(carried).collect() }
    }
}

impl Carried<'_> {
    /// What it carried to its receiver, headers included.
    fn bps(&self, bin: Window) -> f64 {
        let payload: f64 = self.rows.iter().map(|row| bytes_within(row, bin)).sum();
        payload * 8.0 / bin.length_s() * self.with_headers
    }
}

fn direction<'a>(plan: &'a Plan, (link, from): &Way) -> Option<&'a DirectionPlan> {
    let cable = plan.links.iter().find(|cable| cable.name == *link)?;
    let path = cable.path.as_ref()?;
    Some(if cable.ends[0].host == *from { &path.forward } else { &path.backward })
}

fn with_headers(plan: &Plan, flow: &FlowPlan, ways: &[Way]) -> f64 {
    match flow.protocol {
        Protocol::Udp => {
            let payload = flow.payload_bytes() as f64;
            (payload + f64::from(flow.family().udp_header_bytes())) / payload
        }
        Protocol::Tcp => {
            let mine = |cable: &&crate::plan::CablePlan| ways.iter().any(|(link, _)| *link == cable.name);
            let mtu = plan.links.iter().filter(mine).map(|cable| cable.mtu_bytes).min().unwrap_or(1500);
            f64::from(mtu) / (f64::from(mtu) - f64::from(flow.family().tcp_header_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics;
    use super::*;
    use crate::plan::tests_support;

    /// The small plan, its flow of one stream.
    fn plan() -> Plan {
        let mut plan = tests_support::plan();
        plan.flows[0].streams = 1;
        plan
    }

    fn row(time_s: f64, avail_mbps: u64, confidence_ratio: f64) -> AvailSample {
        AvailSample {
            time_us: (time_s * 1e6) as i64,
            flow: "measured".into(),
            avail_bps: avail_mbps * 1_000_000,
            confidence_ratio,
            ..AvailSample::default()
        }
    }

    fn figure(plan: &Plan, samples: &Samples, metric: &str) -> Option<f64> {
        let found = metrics(plan, samples, None);
        found.iter().find(|m| m.metric == metric && m.of == "measured").map(|m| m.value)
    }

    /// The small plan with a second flow on the same way.
    fn with_cross() -> Plan {
        let mut plan = plan();
        let cross = FlowPlan { name: "cross".into(), ..plan.flows[0].clone() };
        plan.flows.push(cross);
        plan
    }

    #[test]
    fn the_error_is_what_was_held_against_what_others_left() {
        let plan = with_cross();
        // 30 Mbit/s of packets of 1500 bytes from 1 to 3 s, the window.
        let bytes = (30e6 / 8.0 * 2.0 * 1448.0 / 1500.0) as u64;
        let interval = vec![IntervalSample {
            time_us: 3_000_000,
            duration_us: 2_000_000,
            flow: "cross".into(),
            stream: 0,
            bytes,
        }];
        // 70, exact, for the first half; 80 for the second.
        let avail = vec![row(0.5, 70, 1.0), row(2.0, 80, 0.5)];
        let samples = Samples { interval, avail, ..Samples::default() };
        let close = |metric: &str, expected: f64| {
            let value = figure(&plan, &samples, metric).unwrap();
            assert!((value / expected - 1.0).abs() < 1e-3, "{metric}: {value}");
        };
        close("avail_error_ratio", 0.05);
        close("avail_mean_bps", 75e6);
        close("avail_free_bps", 70e6);
        close("avail_confidence_ratio", 0.75);
    }

    #[test]
    fn what_was_free_stands_beside_each_result_in_its_half_second() {
        let plan = with_cross();
        let bytes = |mbps: f64| (mbps * 1e6 / 8.0 * 1448.0 / 1500.0) as u64;
        let second = |at: i64, mbps: f64| IntervalSample {
            time_us: at * 1_000_000,
            duration_us: 1_000_000,
            flow: "cross".into(),
            stream: 0,
            bytes: bytes(mbps),
        };
        let interval = vec![second(1, 20.0), second(2, 60.0)];
        let avail = vec![row(0.2, 70, 1.0), row(0.9, 70, 1.0), row(1.6, 70, 1.0)];
        let mut samples = Samples { interval, avail, ..Samples::default() };
        record_free(&plan, &mut samples);
        let free: Vec<f64> = samples.avail.iter().map(|row| row.free_bps.unwrap() as f64 / 1e6).collect();
        for (found, expected) in free.iter().zip([80.0, 80.0, 40.0]) {
            assert!((found - expected).abs() < 0.01, "{free:?}");
        }
        let mut several = plan;
        several.flows[0].streams = 2;
        record_free(&several, &mut samples);
        assert_eq!(samples.avail.len(), 3);
    }

    #[test]
    fn without_results_or_without_a_rate_that_holds_nothing_is_said() {
        assert_eq!(figure(&plan(), &Samples::default(), "avail_error_ratio"), None);
        let samples = Samples { avail: vec![row(0.5, 70, 1.0)], ..Samples::default() };
        assert_eq!(figure(&plan(), &samples, "avail_free_bps"), Some(100e6));
        let mut unrated = plan();
        unrated.links.iter_mut().for_each(|cable| cable.path = None);
        assert_eq!(figure(&unrated, &samples, "avail_error_ratio"), None);
    }
}
