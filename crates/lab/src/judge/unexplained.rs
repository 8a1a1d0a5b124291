//! Whether a run's own figures are what the simulator makes of its plan. Pure, but for the twins, which are made as
//! they are asked for.
//!
//! A run that was held up in a way nobody measures looks well in itself. Its twin tells, but not what is wrong: the
//! emulation, the simulator, or a model that one of them has and the other has not. So such a run is neither valid nor
//! invalid.

use crate::{plan::Plan, samples::Samples, spec::Protocol};
use longfat_schema::{
    quantity,
    record::TcpSample,
    run::{Metric, Twin},
};
use std::collections::BTreeMap;

/// Share by which a figure may differ of a connection that is alone, where the experiment says nothing.
const SHARE_MOST: f64 = 0.2;

/// A difference of completion times that is nothing.
const COMPLETION_SLACK_US: f64 = 10_000.0;

/// Goodput that is chance, in bit/s: what a flow has in flight at the edges of the window counts or does not, as one
/// packet falls. A hole in it keeps a whole window from the reader until a retransmission closes it, a round trip
/// later. Over many round trips that is nothing.
fn edge_bps(plan: &Plan, samples: &Samples, flow: &str) -> f64 {
    let length_us = plan.window_end_us - plan.window_start_us;
    let edges = [plan.window_start_us, plan.window_end_us];
    let bytes: u64 = edges.into_iter().map(|at_us| flight_bytes(&samples.tcp, flow, at_us)).sum();
    if length_us > 0 { bytes as f64 * 8e6 / length_us as f64 } else { 0.0 }
}

/// What the connections of a flow had in flight at a time, by the last sample of each until then.
fn flight_bytes(samples: &[TcpSample], flow: &str, at_us: i64) -> u64 {
    let mine = samples.iter().filter(|s| s.flow == flow && s.role == "sender" && s.time_us <= at_us);
    let last = mine.fold(BTreeMap::<u32, &TcpSample>::new(), |mut last, sample| {
        let newest = last.entry(sample.stream).or_insert(sample);
        if newest.time_us <= sample.time_us {
            *newest = sample;
        }
        last
    });
    last.values().map(|s| u64::from(s.flight_segments) * u64::from(s.mss_bytes)).sum()
}

/// One figure of a flow, emulated, and the least and greatest that its twins came to.
struct Figure {
    metric: &'static str,
    slack: f64,
    of: String,
    emulated: f64,
    simulated: [f64; 2],
}

impl Figure {
    fn is_far(&self, share: f64) -> bool {
        let [least, greatest] = self.simulated;
        self.emulated < least * (1.0 - share) - self.slack
            || self.emulated > greatest * (1.0 + share) + self.slack
    }

    fn meets(&mut self, twin: &Twin) {
        if let Some(value) = twin.metric(self.metric, &self.of) {
            let [least, greatest] = self.simulated;
            self.simulated = [least.min(value), greatest.max(value)];
        }
    }

    fn in_words(&self, twins: usize) -> String {
        let shown = |value| quantity::of_metric(self.metric, value);
        let [least, greatest] = self.simulated;
        let name = self.metric.split('_').next().unwrap_or_default();
        format!(
            "{name} of '{}' is {}, and {} to {} in {twins} simulations of the same plan",
            self.of,
            shown(self.emulated),
            shown(least),
            shown(greatest)
        )
    }
}

/// Whether one TCP connection has the paths for itself. What several get of one path is chance to a degree that a few
/// simulations do not tell: runs that were left out for it would bend every median towards the simulator's.
fn is_alone(plan: &Plan) -> bool {
    let tcp = plan.flows.iter().filter(|flow| flow.protocol == Protocol::Tcp);
    tcp.map(|flow| flow.streams).sum::<u32>() == 1
}

/// Why a run that has nothing against it is not valid all the same. `others` are more twins of the same plan, by
/// chance.
pub(crate) fn unexplained(
    plan: &Plan,
    metrics: &[Metric],
    samples: &Samples,
    twin: &Twin,
    others: impl Iterator<Item = Twin>,
) -> Option<String> {
    // A twin of less than the plan differs for that; the table names it.
    if !twin.left_out.is_empty() {
        return None;
    }
    let share = plan.twin_limit.or_else(|| is_alone(plan).then_some(SHARE_MOST))?;
    let mut far = figures(plan, metrics, samples, twin);
    far.retain(|figure| figure.is_far(share));
    let mut twins = 1;
    for other in others {
        far.iter_mut().for_each(|figure| figure.meets(&other));
        far.retain(|figure| figure.is_far(share));
        twins += 1;
        if far.is_empty() {
            break;
        }
    }
    let first = far.first()?;
    let more = if far.len() > 1 { format!(" (and {} more)", far.len() - 1) } else { String::new() };
    Some(format!(
        "{}{more}, which nothing measured explains: repeat it with a greater dilate, or on a machine with more processors, \
         and see which of the two it comes closer to; twin_limit = {share} says how far it may be",
        first.in_words(twins)
    ))
}

fn figures(plan: &Plan, metrics: &[Metric], samples: &Samples, twin: &Twin) -> Vec<Figure> {
    let is_tcp = |of: &str| plan.flows.iter().any(|flow| flow.name == of && flow.protocol == Protocol::Tcp);
    let whole = metrics.iter().filter(|metric| metric.stream.is_none() && is_tcp(&metric.of));
    let figure = |metric: &Metric| {
        let of = metric.of.clone();
        let (name, slack) = match metric.metric.as_str() {
            "goodput_bps" => ("goodput_bps", edge_bps(plan, samples, &of)),
            "completion_us" => ("completion_us", COMPLETION_SLACK_US),
            _ => return None,
        };
        let simulated = twin.metric(name, &of)?;
        Some(Figure { metric: name, slack, of, emulated: metric.value, simulated: [simulated; 2] })
    };
    whole.filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests_support::plan;

    /// Its flow is alone.
    fn alone() -> Plan {
        let mut plan = plan();
        plan.flows[0].streams = 1;
        plan
    }

    fn metrics(metric: &str, value: f64) -> Vec<Metric> {
        vec![Metric { metric: metric.into(), of: "measured".into(), stream: None, value }]
    }

    fn twin(metric: &str, value: f64) -> Twin {
        Twin { metrics: metrics(metric, value), left_out: Vec::new() }
    }

    /// Emulated, and what its twins come to, its own first.
    fn goodput(plan: &Plan, emulated: f64, simulated: &[f64]) -> Option<String> {
        let others = simulated[1..].iter().map(|value| twin("goodput_bps", *value));
        let (metrics, samples) = (metrics("goodput_bps", emulated), Samples::default());
        unexplained(plan, &metrics, &samples, &twin("goodput_bps", simulated[0]), others)
    }

    #[test]
    fn a_run_far_from_all_its_twins_is_unexplained_and_says_so() {
        let said = goodput(&alone(), 12.1e6, &[100e6, 98e6, 103e6]).unwrap();
        assert!(
            said.starts_with(
                "goodput of 'measured' is 12.1 Mbit/s, and 98.0 Mbit/s to 103 Mbit/s in 3 simulations"
            ),
            "{said}"
        );
        assert!(
            said.contains("greater dilate") && said.ends_with("twin_limit = 0.2 says how far it may be"),
            "{said}"
        );
        assert!(goodput(&alone(), 130e6, &[100e6, 105e6]).is_some(), "too much is as far as too little");
    }

    #[test]
    fn what_chance_makes_of_the_same_plan_explains_it_and_no_more_twins_are_made_than_that_takes() {
        assert_eq!(goodput(&alone(), 81e6, &[100e6]), None);
        let mut made = 0;
        let others = [100e6, 60e6, 20e6].map(|value| twin("goodput_bps", value));
        let counted = others.into_iter().inspect(|_| made += 1);
        let (metrics, samples) = (metrics("goodput_bps", 50e6), Samples::default());
        assert_eq!(unexplained(&alone(), &metrics, &samples, &twin("goodput_bps", 100e6), counted), None);
        assert_eq!(made, 2, "50 is within a fifth of 60");
    }

    #[test]
    fn a_short_transfer_that_differs_by_milliseconds_and_a_twin_of_less_than_the_plan_say_nothing() {
        let of = |emulated, simulated| {
            let twin = twin("completion_us", simulated);
            let metrics = metrics("completion_us", emulated);
            unexplained(&alone(), &metrics, &Samples::default(), &twin, std::iter::empty())
        };
        assert_eq!(of(15_000.0, 6_000.0), None);
        assert!(of(1_500_000.0, 1_000_000.0).is_some());
        let less = Twin { left_out: vec!["sysctl".into()], ..twin("goodput_bps", 100e6) };
        let (metrics, samples) = (metrics("goodput_bps", 1e6), Samples::default());
        assert_eq!(unexplained(&alone(), &metrics, &samples, &less, std::iter::empty()), None);
    }

    #[test]
    fn an_experiment_says_how_far_it_may_be() {
        let wide = Plan { twin_limit: Some(0.6), ..alone() };
        assert_eq!(goodput(&wide, 50e6, &[100e6]), None);
        assert!(goodput(&wide, 39e6, &[100e6]).is_some());
    }

    #[test]
    fn what_several_get_of_one_path_is_judged_only_where_the_experiment_says_how_far_it_may_be() {
        assert_eq!(goodput(&plan(), 12.1e6, &[100e6, 98e6]), None);
        let wanted = Plan { twin_limit: Some(0.2), ..plan() };
        assert!(goodput(&wanted, 12.1e6, &[100e6, 98e6]).is_some());
    }

    /// So many segments of 1448 bytes in flight at a time.
    fn flight(time_us: i64, flight_segments: u32) -> TcpSample {
        TcpSample {
            time_us,
            flow: "measured".into(),
            role: "sender".into(),
            mss_bytes: 1448,
            flight_segments,
            ..TcpSample::default()
        }
    }

    #[test]
    fn what_is_in_flight_at_the_edges_of_a_short_window_counts_or_does_not_and_of_a_long_one_is_nothing() {
        let samples = Samples {
            tcp: vec![
                flight(290_000, 10),
                flight(1_000_000, 999),
                flight(3_290_000, 139),
                flight(3_400_000, 1),
            ],
            ..Samples::default()
        };
        let far = |plan: &Plan, emulated| {
            let metrics = metrics("goodput_bps", emulated);
            let twin = twin("goodput_bps", 541e3);
            unexplained(plan, &metrics, &samples, &twin, std::iter::empty()).is_some()
        };
        let short = Plan { window_start_us: 300_000, window_end_us: 3_300_000, ..alone() };
        // (10 + 139) segments in 3 s are 575 kbit/s.
        assert_eq!(edge_bps(&short, &samples, "measured").round(), 575_339.0);
        assert!(!far(&short, 851e3), "one window more or less in order");
        assert!(far(&short, 1.3e6), "twice the window is no chance");
        let long = Plan { window_start_us: 300_000, window_end_us: 90_300_000, ..alone() };
        assert!(far(&long, 851e3), "over 150 round trips it is no excuse");
    }
}
