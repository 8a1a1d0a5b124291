//! An emulated run beside its twin: what the simulator makes of the same plan. An emulation that was held up may look
//! well in itself; beside its twin it does not.

use super::{Metric, RunManifest, Spread, bootstrap};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the simulator made of a run's plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Twin {
    /// Figures of the simulated twin; none where the plan cannot be simulated.
    pub metrics: Vec<Metric>,
    /// What of the plan is not simulated, or why it is not at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// One figure of a case: the median of its emulated runs and of their twins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// Name of the case.
    pub case: String,
    /// Which figure.
    pub metric: String,
    /// Flow, link or relay it is of.
    pub of: String,
    /// Median of the emulated runs.
    pub emulated: f64,
    /// Median of their twins.
    pub simulated: f64,
    /// Emulated over simulated; absent where that is no number.
    pub ratio: Option<f64>,
    /// Where the ratio lies with 90 % confidence, of two runs and more.
    pub interval: Option<[f64; 2]>,
    /// How many runs.
    pub runs: usize,
    /// Further from the twin than the figure's allowance and the repeats' spread.
    pub is_far: bool,
}

/// How far a figure may be from its twin's: a share of it, or so much.
struct Allowance {
    metric: &'static str,
    share: f64,
    slack: f64,
}

const fn allow(metric: &'static str, share: f64, slack: f64) -> Allowance {
    Allowance { metric, share, slack }
}

/// Figures that are held against the twin's. Counts of few are chance; a queue is counted in whole packets.
const ALLOWANCES: [Allowance; 7] = [
    allow("goodput_bps", 0.1, 0.0),
    allow("completion_us", 0.1, 10_000.0),
    allow("echo_p50_us", 0.1, 1_000.0),
    allow("retransmitted_segments", 0.2, 3.0),
    allow("timeouts", 0.2, 3.0),
    allow("dropped_packets", 0.2, 3.0),
    allow("queue_mean_bytes", 0.1, 3_000.0),
];

const CONFIDENCE: f64 = 0.9;

/// A run and its twin.
type Pair<'a> = (&'a RunManifest, &'a Twin);

/// Every case's figures beside those of its twins, in the order of the runs.
pub fn beside<'a>(runs: impl IntoIterator<Item = &'a RunManifest>) -> Vec<Beside> {
    let mut cases: Vec<&str> = Vec::new();
    let mut pairs: BTreeMap<&str, Vec<Pair<'a>>> = BTreeMap::new();
    for run in runs {
        let Some(twin) = run.twin.as_ref().filter(|_| run.status.is_as_planned()) else { continue };
        let of_case = pairs.entry(&run.case).or_default();
        if of_case.is_empty() {
            cases.push(&run.case);
        }
        of_case.push((run, twin));
    }
    cases.into_iter().flat_map(|case| of_case(case, &pairs[case])).collect()
}

fn of_case(case: &str, pairs: &[Pair<'_>]) -> Vec<Beside> {
    let figures = pairs.first().map_or(&[][..], |(first, _)| &first.metrics);
    let whole = figures.iter().filter(|metric| metric.stream.is_none());
    whole.filter_map(|metric| figure(case, metric, pairs)).collect()
}

fn figure(case: &str, metric: &Metric, pairs: &[Pair<'_>]) -> Option<Beside> {
    let allowance = ALLOWANCES.iter().find(|allowance| allowance.metric == metric.metric)?;
    let (name, of) = (metric.metric.as_str(), metric.of.as_str());
    let values = pairs.iter().filter_map(|(run, twin)| Some((run.metric(name, of)?, twin.metric(name, of)?)));
    let (ours, theirs): (Vec<f64>, Vec<f64>) = values.unzip();
    let (emulated, simulated) =
        (Spread::of(ours.iter().copied())?.median, Spread::of(theirs.iter().copied())?.median);
    let interval =
        (ours.len() > 1).then(|| bootstrap([&ours, &theirs], CONFIDENCE, |own, other| own - other)).flatten();
    let is_told = interval.is_none_or(|[least, greatest]| least > 0.0 || greatest < 0.0);
    let apart = (emulated - simulated).abs();
    let is_far = is_told && apart > allowance.slack && apart > allowance.share * simulated.abs();
    let over = |difference: f64| 1.0 + difference / simulated;
    Some(Beside {
        case: case.to_owned(),
        metric: name.to_owned(),
        of: of.to_owned(),
        emulated,
        simulated,
        ratio: Some(emulated / simulated).filter(|ratio| ratio.is_finite()),
        interval: interval.map(|ends| ends.map(over)).filter(|ends| ends.iter().all(|end| end.is_finite())),
        runs: ours.len(),
        is_far,
    })
}

impl Twin {
    /// The figure of that name and scope.
    pub fn metric(&self, metric: &str, of: &str) -> Option<f64> {
        let matches = |m: &&Metric| m.metric == metric && m.of == of && m.stream.is_none();
        self.metrics.iter().find(matches).map(|m| m.value)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::RunStatus, *};

    fn metric(metric: &str, value: f64) -> Metric {
        Metric { metric: metric.into(), of: "flow".into(), stream: None, value }
    }

    /// Runs of one case: a figure, emulated and simulated.
    fn runs(name: &str, values: &[(f64, f64)]) -> Vec<RunManifest> {
        let run = |(own, other): &(f64, f64)| RunManifest {
            case: "case".into(),
            status: RunStatus::Done,
            metrics: vec![metric(name, *own), metric("srtt_mean_us", 1.0)],
            twin: Some(Twin { metrics: vec![metric(name, *other)], left_out: Vec::new() }),
            ..RunManifest::default()
        };
        values.iter().map(run).collect()
    }

    fn is_far(name: &str, values: &[(f64, f64)]) -> bool {
        let found = beside(&runs(name, values));
        assert_eq!(found.len(), 1, "one figure is held against the twin's: {found:?}");
        found[0].is_far
    }

    #[test]
    fn a_figure_beyond_its_allowance_is_far_and_one_within_it_is_not() {
        assert!(is_far("goodput_bps", &[(25.7e6, 128e6)]));
        assert!(is_far("goodput_bps", &[(112e6, 100e6)]));
        assert!(!is_far("goodput_bps", &[(67.6e6, 67.5e6)]));
        assert!(!is_far("retransmitted_segments", &[(3.0, 0.0)]), "few are chance");
        assert!(is_far("retransmitted_segments", &[(160.0, 283.0)]));
        assert!(is_far("queue_mean_bytes", &[(100_000.0, 60_000.0)]));
        assert!(is_far("dropped_packets", &[(20.0, 0.0)]), "no ratio, and far all the same");
    }

    #[test]
    fn repeats_that_scatter_more_than_they_differ_are_not_far() {
        assert!(!is_far("goodput_bps", &[(50e6, 100e6), (150e6, 90e6), (120e6, 110e6)]));
        assert!(is_far("goodput_bps", &[(50e6, 100e6), (51e6, 99e6), (52e6, 101e6)]));
    }

    #[test]
    fn the_figures_are_medians_and_their_ratio() {
        let found = beside(&runs("goodput_bps", &[(90.0, 100.0), (80.0, 100.0), (70.0, 100.0)]));
        assert_eq!((found[0].emulated, found[0].simulated, found[0].ratio), (80.0, 100.0, Some(0.8)));
        assert_eq!((found[0].interval, found[0].runs), (Some([0.7, 0.9]), 3));
    }

    #[test]
    fn runs_that_do_not_count_and_runs_without_a_twin_are_left_out() {
        let mut all = runs("goodput_bps", &[(90.0, 100.0), (80.0, 100.0)]);
        all[0].status = RunStatus::Invalid;
        assert_eq!(beside(&all)[0].runs, 1);
        all[1].twin = None;
        assert!(beside(&all).is_empty());
    }
}
