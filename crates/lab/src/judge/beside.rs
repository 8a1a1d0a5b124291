//! Whether a run's own figures are what the simulator makes of its plan, and what explains those that are not. Pure,
//! but for the twins, which are made as they are asked for.
//!
//! A run that was held up in a way that breaks no rule looks well in itself. Its twin tells, but not what is wrong. So
//! more twins are made: under other seeds, and with hosts that are held up as the run's were. A run that those alone
//! come near is the machine's doing. One that no twin comes near is neither valid nor invalid: the emulation may be
//! wrong, the simulator, or a model that one of them has and the other has not.

use super::HeldUp;
use crate::{plan::Plan, samples::Samples, spec::Protocol};
use longfat_schema::{
    quantity,
    record::TcpSample,
    run::{Metric, Ranges, RunStatus, Twin, slack_of},
};
use std::collections::BTreeMap;

/// Share by which a figure may differ of a connection that is alone, where the experiment says nothing.
const SHARE_MOST: f64 = 0.2;

/// Share within which two figures agree: where they do, no more twins are made, and what made them differ is not asked.
const SHARE_NEAR: f64 = 0.1;

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

/// One figure of a flow, emulated.
struct Figure {
    metric: &'static str,
    slack: f64,
    of: String,
    emulated: f64,
    /// Whether a run that is too far from its twins by this figure is not valid.
    is_judged: bool,
}

impl Figure {
    /// Whether it is further from what twins came to than a share of that.
    fn is_far(&self, twins: &Ranges, share: f64) -> bool {
        twins.range(self.metric, &self.of).is_none_or(|[least, greatest]| {
            self.emulated < least * (1.0 - share) - self.slack
                || self.emulated > greatest * (1.0 + share) + self.slack
        })
    }

    fn in_words(&self) -> String {
        let name = self.metric.split('_').next().unwrap_or_default();
        format!("{name} of '{}' is {}", self.of, quantity::of_metric(self.metric, self.emulated))
    }

    fn range_in_words(&self, twins: &Ranges) -> String {
        let shown = |value| quantity::of_metric(self.metric, value);
        let [least, greatest] = twins.range(self.metric, &self.of).unwrap_or_default();
        let simulations = if twins.twins == 1 { "simulation" } else { "simulations" };
        let (least, greatest) = (shown(least), shown(greatest));
        let range = if least == greatest { least } else { format!("{least} to {greatest}") };
        format!("{range} in {} {simulations}", twins.twins)
    }
}

/// Whether one TCP connection has the paths for itself. What several get of one path is chance to a degree that a few
/// simulations do not tell: runs that were left out for it would bend every median towards the simulator's.
fn is_alone(plan: &Plan) -> bool {
    let tcp = plan.flows.iter().filter(|flow| flow.protocol == Protocol::Tcp);
    tcp.map(|flow| flow.streams).sum::<u32>() == 1
}

/// Holds a run that has nothing against it against its twins: what it is instead of valid, and why. What more twins
/// came to is kept with its own, since it may explain a figure that is not judged, too. `by_chance` and `held_up` are
/// these, made as they are asked for: under other seeds, and with `hold_ups`. As soon as they come near no more are
/// made.
pub(crate) fn beside_twins(
    plan: &Plan,
    metrics: &[Metric],
    samples: &Samples,
    twin: &mut Twin,
    (by_chance, hold_ups, held_up): (impl Iterator<Item = Twin>, &[HeldUp], impl Iterator<Item = Twin>),
) -> Option<(RunStatus, String)> {
    // A twin of less than the plan differs for that; the table names it.
    if !twin.left_out.is_empty() {
        return None;
    }
    let limit = plan.twin_limit.or_else(|| is_alone(plan).then_some(SHARE_MOST));
    let near = limit.map_or(SHARE_NEAR, |share| share.min(SHARE_NEAR));
    let mut figures = figures(plan, metrics, samples, twin);
    let mut chance = Ranges::default();
    chance.add(twin);
    figures.retain(|figure| figure.is_far(&chance, near));
    if figures.is_empty() {
        return None;
    }
    for other in by_chance {
        chance.add(&other);
        if !figures.iter().any(|figure| figure.is_far(&chance, near)) {
            break;
        }
    }
    figures.retain(|figure| figure.is_far(&chance, near));
    if !figures.is_empty() && !hold_ups.is_empty() {
        let longest_us = hold_ups.iter().map(|held| (held.to_us - held.from_us).unsigned_abs()).max();
        let count = hold_ups.len() as u64;
        let mut ranges = Ranges { hold_ups: count, longest_us: longest_us.unwrap_or(0), ..Ranges::default() };
        for other in held_up {
            ranges.add(&other);
            if !figures.iter().any(|figure| figure.is_far(&ranges, near)) {
                break;
            }
        }
        twin.held_up = Some(ranges);
    }
    let found = limit.and_then(|share| {
        figures.retain(|figure| figure.is_judged && figure.is_far(&chance, share));
        verdict(&figures, &chance, twin.held_up.as_ref(), share)
    });
    twin.chance = Some(chance);
    found
}

/// What a run is of which these figures are too far from what chance makes of its plan.
fn verdict(
    figures: &[Figure],
    chance: &Ranges,
    held_up: Option<&Ranges>,
    share: f64,
) -> Option<(RunStatus, String)> {
    let more = if figures.len() > 1 { format!(" (and {} more)", figures.len() - 1) } else { String::new() };
    let is_open = |figure: &&Figure| held_up.is_none_or(|held| figure.is_far(held, share.min(SHARE_NEAR)));
    let with_hold_ups = |figure: &Figure| {
        held_up.map(|held| {
            let longest_ms = held.longest_us as f64 / 1000.0;
            let range = figure.range_in_words(held);
            format!("{range} with the machine's {} hold-ups of up to {longest_ms:.1} ms", held.hold_ups)
        })
    };
    let told = |figure: &Figure| {
        format!("{}{more}, and {} of the same plan", figure.in_words(), figure.range_in_words(chance))
    };
    let mend = format!("twin_limit = {share} says how far it may be");
    if let Some(open) = figures.iter().find(is_open) {
        let but = with_hold_ups(open).map_or_else(String::new, |held| format!(" ({held})"));
        let reason = format!(
            "{}{but}, which nothing measured explains: repeat it with a greater dilate, or on a machine with more \
             processors, and see which of the two it comes closer to; {mend}",
            told(open)
        );
        return Some((RunStatus::Unexplained, reason));
    }
    let first = figures.first()?;
    let reason = format!(
        "{}, but {}: together they decide it: give it a greater dilate, or a machine with more processors; {mend}",
        told(first),
        with_hold_ups(first)?
    );
    Some((RunStatus::Invalid, reason))
}

fn figures(plan: &Plan, metrics: &[Metric], samples: &Samples, twin: &Twin) -> Vec<Figure> {
    let is_tcp = |of: &str| plan.flows.iter().any(|flow| flow.name == of && flow.protocol == Protocol::Tcp);
    let whole = metrics.iter().filter(|metric| metric.stream.is_none() && is_tcp(&metric.of));
    let figure = |metric: &Metric| {
        let of = metric.of.clone();
        let (name, edge, is_judged) = match metric.metric.as_str() {
            "goodput_bps" => ("goodput_bps", edge_bps(plan, samples, &of), true),
            "completion_us" => ("completion_us", 0.0, true),
            "echo_p50_us" => ("echo_p50_us", 0.0, false),
            "avail_mean_bps" => ("avail_mean_bps", 0.0, false),
            "avail_error_ratio" => ("avail_error_ratio", 0.0, false),
            "rise_us" => ("rise_us", 0.0, false),
            _ => return None,
        };
        twin.metric(name, &of)?;
        let slack = edge.max(slack_of(name));
        Some(Figure { metric: name, slack, of, emulated: metric.value, is_judged })
    };
    whole.filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests_support::plan;

    /// A plan whose flow is alone.
    fn alone() -> Plan {
        let mut plan = plan();
        plan.flows[0].streams = 1;
        plan
    }

    fn metrics(metric: &str, value: f64) -> Vec<Metric> {
        vec![Metric { metric: metric.into(), of: "measured".into(), stream: None, value }]
    }

    fn twin(metric: &str, value: f64) -> Twin {
        Twin { metrics: metrics(metric, value), ..Twin::default() }
    }

    /// Why a run is unexplained.
    fn unexplained(
        plan: &Plan,
        metrics: &[Metric],
        samples: &Samples,
        twin: &Twin,
        others: impl Iterator<Item = Twin>,
    ) -> Option<String> {
        let others = (others, &[][..], std::iter::empty());
        let (status, reason) = beside_twins(plan, metrics, samples, &mut twin.clone(), others)?;
        assert_eq!(status, RunStatus::Unexplained);
        Some(reason)
    }

    /// What becomes of a run whose twins came to 67 Mbit/s, and to these when they were held up.
    fn with_hold_ups(emulated: f64, held_up: &[f64]) -> (Option<(RunStatus, String)>, Twin) {
        let hold_ups: Vec<_> = [1_200, 2_400]
            .map(|to_us| HeldUp { host: "a".into(), from_us: 0, to_us, earlier_us: 0 })
            .into_iter()
            .take(2 * held_up.len())
            .collect();
        let mut own = twin("goodput_bps", 67e6);
        let by_chance = [66e6, 68e6].map(|value| twin("goodput_bps", value)).into_iter();
        let others = (by_chance, &hold_ups[..], held_up.iter().map(|value| twin("goodput_bps", *value)));
        let metrics = metrics("goodput_bps", emulated);
        let found = beside_twins(&alone(), &metrics, &Samples::default(), &mut own, others);
        (found, own)
    }

    #[test]
    fn a_run_that_only_twins_with_the_machines_hold_ups_come_near_is_invalid_with_both_ranges() {
        let (found, twin) = with_hold_ups(27.7e6, &[48e6, 24e6, 31e6]);
        let (status, reason) = found.unwrap();
        assert_eq!(status, RunStatus::Invalid);
        assert!(
            reason.starts_with(
                "goodput of 'measured' is 27.7 Mbit/s, and 66.0 Mbit/s to 68.0 Mbit/s in 3 simulations of the same \
                 plan, but 24.0 Mbit/s to 48.0 Mbit/s in 2 simulations with the machine's 2 hold-ups of up to 2.4 ms"
            ),
            "{reason}"
        );
        assert!(reason.contains("greater dilate"), "{reason}");
        let held = twin.held_up.unwrap();
        assert_eq!((held.twins, held.hold_ups, held.longest_us), (2, 2, 2400), "the third is not needed");
        assert_eq!(twin.chance.unwrap().twins, 3);
    }

    #[test]
    fn what_came_to_the_same_each_time_is_no_range() {
        let (_, reason) = with_hold_ups(27.7e6, &[27e6]).0.unwrap();
        assert!(reason.contains("but 27.0 Mbit/s in 1 simulation with the machine's 2 hold-ups"), "{reason}");
    }

    #[test]
    fn a_run_that_twins_with_the_machines_hold_ups_do_not_come_near_either_is_unexplained() {
        for emulated in [15e6, 120e6] {
            let (status, reason) = with_hold_ups(emulated, &[24e6, 48e6]).0.unwrap();
            assert_eq!(status, RunStatus::Unexplained);
            assert!(reason.contains("(24.0 Mbit/s to 48.0 Mbit/s in 2 simulations with"), "{reason}");
        }
        let (found, twin) = with_hold_ups(27.7e6, &[]);
        assert_eq!((found.unwrap().0, twin.held_up), (RunStatus::Unexplained, None), "nobody was held up");
    }

    #[test]
    fn a_run_within_the_limit_is_valid_and_beyond_a_tenth_what_made_it_differ_is_kept() {
        let (found, twin) = with_hold_ups(57e6, &[24e6, 48e6]);
        assert_eq!((found, twin.held_up.unwrap().twins), (None, 2));
        let (found, twin) = with_hold_ups(62e6, &[24e6, 48e6]);
        assert_eq!((found, twin.chance, twin.held_up), (None, None, None), "it agrees");
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
        let (metrics, samples) = (metrics("goodput_bps", 55e6), Samples::default());
        assert_eq!(unexplained(&alone(), &metrics, &samples, &twin("goodput_bps", 100e6), counted), None);
        assert_eq!(made, 2, "55 is within a tenth of 60");
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

    #[test]
    fn what_is_not_judged_is_explained_all_the_same() {
        let of_several = |emulated| {
            let mut own = twin("goodput_bps", 240e6);
            let others = [520e6, 250e6].map(|value| twin("goodput_bps", value));
            let others = (others.into_iter(), &[][..], std::iter::empty());
            let metrics = metrics("goodput_bps", emulated);
            let found = beside_twins(&plan(), &metrics, &Samples::default(), &mut own, others);
            (found, own.chance.and_then(|chance| chance.range("goodput_bps", "measured")))
        };
        assert_eq!(of_several(496e6), (None, Some([240e6, 520e6])));
        assert_eq!(of_several(250e6), (None, None), "it agrees");

        let mut own = twin("echo_p50_us", 30_800.0);
        let others = [twin("echo_p50_us", 30_900.0)].into_iter();
        let metrics = metrics("echo_p50_us", 11_000.0);
        let others = (others, &[][..], std::iter::empty());
        assert_eq!(beside_twins(&alone(), &metrics, &Samples::default(), &mut own, others), None);
        assert_eq!(own.chance.unwrap().range("echo_p50_us", "measured"), Some([30_800.0, 30_900.0]));
    }

    /// A sample with so many segments of 1448 bytes in flight.
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
