//! How much slower a run has to be for the hold-ups of a small machine not to matter. Pure: of the plan alone, so that
//! the same experiment has the same plan everywhere. Whether the machine kept to it is judged of each run.

use super::{
    CablePlan, FlowPlan, Plan,
    network::{Hop, Topology},
    refusals::refusals,
};
use crate::spec::DilateSpec;
use longfat_link::plan::DirectionPlan;
use longfat_schema::own_time::Dilation;
use std::{collections::BTreeMap, fmt};

/// How long programs of a machine of two cores are held up now and then. Assumed, not measured: two turns of the
/// scheduler.
const HOLD_UP_NS: u64 = 8_000_000;
/// A queue of more than so many round trips feels no clump of one.
const DEEP: u64 = 4;
/// Packets per second, data and acknowledgements, of all emulated links of a run that such a machine carries. Assumed,
/// too.
const PACKETS_PER_S: f64 = 40_000.0;

/// What a plan needs, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    /// How many times slower.
    pub dilation: Dilation,
    /// What would be held up, in words; empty where nothing would.
    pub why: String,
}

/// The least dilation that a machine of two cores carries honestly, and 1 where something has a clock that cannot be
/// slowed.
pub fn least(plan: &Plan) -> Need {
    let needs = [of_hold_ups(plan), of_packets(plan)];
    let greatest = needs.into_iter().flatten().max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((times, why)) = greatest.filter(|(times, _)| *times > 1.0) else { return Need::none("") };
    let dilation = Dilation::new((times.ceil() as u32).clamp(1, DilateSpec::MOST)).unwrap_or_default();
    match refusals(plan, dilation).first() {
        Some(refusal) => Need::none(&format!(
            "{why}; dilate = {dilation} is refused: {}: {}",
            refusal.path, refusal.message
        )),
        None => Need { dilation, why },
    }
}

/// Whether what a run sends is bounded by its links, so that its programs leave processors to others: every flow
/// passes an emulated link with a rate, and the machine carries the packets of all links. Of a plan as it is carried
/// out: slowed, where it is to be.
pub(crate) fn is_bounded(plan: &Plan) -> bool {
    let topology = Topology::of_plan(plan);
    let has_rate = |link: &str| {
        let cable = plan.links.iter().find(|cable| cable.name == link);
        let path = cable.and_then(|cable| cable.path.as_ref());
        path.is_some_and(|path| path.forward.most_bps().is_some() && path.backward.most_bps().is_some())
    };
    let is_limited = |flow: &FlowPlan| {
        topology.path(&flow.from, &flow.to).is_some_and(|path| path.iter().any(|hop| has_rate(hop.link)))
    };
    plan.flows.iter().all(is_limited) && of_packets(plan).is_none_or(|(times, _)| times <= 1.0)
}

impl Need {
    /// Whether a run of that dilation is likely to be held up, with or without a mend.
    pub fn exceeds(&self, dilation: Dilation) -> bool {
        !self.why.is_empty() && (self.dilation.is_none() || self.dilation > dilation)
    }

    fn none(why: &str) -> Need {
        Need { dilation: Dilation::NONE, why: why.to_owned() }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dilation.is_none() {
            f.write_str(&self.why)
        } else {
            write!(f, "dilate = {}: {}", self.dilation, self.why)
        }
    }
}

/// Hold-ups that a link feels: longer than its queue takes to drain, they empty it, or fill it, with nobody's doing;
/// longer than a quarter of a round trip, they make a clump of what should be spread over it.
fn of_hold_ups(plan: &Plan) -> Option<(f64, String)> {
    let round_trips = plan.flows.iter().map(|flow| (round_trip_ns(plan, flow), flow));
    let shortest = round_trips.filter(|(ns, _)| *ns > 0).min_by_key(|(ns, _)| *ns);
    let of_cable = |cable: &CablePlan| {
        let path = cable.path.as_ref()?;
        let drain_ns = [&path.forward, &path.backward].into_iter().filter_map(DirectionPlan::drain_ns).min();
        let ns = harmless_ns(drain_ns, shortest.map(|(rtt_ns, _)| rtt_ns));
        let why = match shortest {
            Some((rtt_ns, flow)) if drain_ns != Some(ns) => {
                format!("a quarter of the round trip of flow '{}' is {}", flow.name, ms(rtt_ns / 4))
            }
            _ => format!("the queue of link '{}' drains in {}", cable.name, ms(ns)),
        };
        (ns < u64::MAX).then_some((HOLD_UP_NS as f64 / ns.max(1) as f64, why))
    };
    plan.links.iter().filter_map(of_cable).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// How long a hold-up may be without consequence. What it holds back is a round trip's worth of packets at most: a
/// queue of many round trips does not feel that, unless it runs empty meanwhile.
pub(crate) fn harmless_ns(drain_ns: Option<u64>, rtt_ns: Option<u64>) -> u64 {
    match (drain_ns, rtt_ns) {
        (Some(drain_ns), Some(rtt_ns)) if rtt_ns < drain_ns / DEEP => drain_ns,
        (drain_ns, rtt_ns) => drain_ns.unwrap_or(u64::MAX).min(rtt_ns.map_or(u64::MAX, |rtt_ns| rtt_ns / 4)),
    }
}

fn of_packets(plan: &Plan) -> Option<(f64, String)> {
    let per_s = packets_per_s(plan);
    (per_s > 0.0).then(|| (per_s / PACKETS_PER_S, format!("{per_s:.0} packets per second")))
}

/// Packets per second of all emulated links together. Of its way a flow fills only the narrowest link.
pub(crate) fn packets_per_s(plan: &Plan) -> f64 {
    // Of both directions one is full.
    let bps = |cable: &CablePlan| {
        let path = cable.path.as_ref()?;
        let rates = [&path.forward, &path.backward].map(DirectionPlan::most_bps);
        let both = rates.into_iter().flatten().sum::<u64>();
        (both > 0).then_some(both as f64 / 2.0)
    };
    let rates: BTreeMap<_, _> =
        plan.links.iter().filter_map(|cable| Some((cable.name.as_str(), bps(cable)?))).collect();
    let topology = Topology::of_plan(plan);
    // Each flow's way, and the narrowest link of it.
    let ways = plan.flows.iter().filter_map(|flow| {
        let way = topology.path(&flow.from, &flow.to)?;
        let narrowest = way.iter().filter_map(|hop| Some((hop.link, *rates.get(hop.link)?)));
        let narrowest = narrowest.min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((way, narrowest))
    });
    let ways: Vec<_> = ways.collect();
    let of_cable = |cable: &CablePlan| {
        let passes = |way: &[Hop<'_>]| way.iter().any(|hop| hop.link == cable.name);
        let filled: BTreeMap<_, _> =
            ways.iter().filter(|(way, _)| passes(way)).map(|(_, narrowest)| *narrowest).collect();
        let full = rates.get(cable.name.as_str())?.min(filled.values().sum());
        Some(full / (8.0 * f64::from(cable.mtu_bytes)))
    };
    // Half as many acknowledgements go the other way.
    plan.links.iter().filter_map(of_cable).sum::<f64>() * 1.5
}

/// Propagation there and back, of the way a flow goes.
pub fn round_trip_ns(plan: &Plan, flow: &FlowPlan) -> u64 {
    let paths = way(plan, &Topology::of_plan(plan), flow).into_iter().filter_map(|cable| cable.path.as_ref());
    paths.map(|path| path.forward.line.delay_ns + path.backward.line.delay_ns).sum()
}

/// Cables of the way that a flow goes.
pub(crate) fn way<'p>(plan: &'p Plan, topology: &Topology<'_>, flow: &FlowPlan) -> Vec<&'p CablePlan> {
    let hops = topology.path(&flow.from, &flow.to).unwrap_or_default();
    hops.iter().filter_map(|hop| plan.links.iter().find(|cable| cable.name == hop.link)).collect()
}

fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}
