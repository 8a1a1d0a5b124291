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
    /// What twins under other seeds came to, where the run was far from this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance: Option<Ranges>,
    /// What twins came to whose hosts were held up as the run's were, where the run was far from all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_up: Option<Ranges>,
    /// When it was simulated again, by a simulator that had changed since the run; Unix time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_unix_ms: Option<u64>,
}

/// What several twins of a run came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// How many twins.
    pub twins: u32,
    /// Hold-ups of each of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hold_ups: u64,
    /// The longest of these, in the experiment's time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub longest_us: u64,
    /// The figures that are compared.
    pub figures: Vec<Range>,
}

/// One figure of several twins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Which figure.
    pub metric: String,
    /// Flow, link or relay it is of.
    pub of: String,
    /// The least of all twins.
    pub least: f64,
    /// The greatest of all twins.
    pub greatest: f64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Ranges {
    /// One twin more.
    pub fn add(&mut self, twin: &Twin) {
        self.twins += 1;
        for metric in twin.metrics.iter().filter(|metric| metric.stream.is_none()) {
            if !ALLOWANCES.iter().any(|allowance| allowance.metric == metric.metric) {
                continue;
            }
            let is_it = |range: &&mut Range| range.metric == metric.metric && range.of == metric.of;
            match self.figures.iter_mut().find(is_it) {
                Some(range) => {
                    range.least = range.least.min(metric.value);
                    range.greatest = range.greatest.max(metric.value);
                }
                None => self.figures.push(Range {
                    metric: metric.metric.clone(),
                    of: metric.of.clone(),
                    least: metric.value,
                    greatest: metric.value,
                }),
            }
        }
    }

    /// The least and the greatest of a figure.
    pub fn range(&self, metric: &str, of: &str) -> Option<[f64; 2]> {
        let found = self.figures.iter().find(|range| range.metric == metric && range.of == of)?;
        Some([found.least, found.greatest])
    }
}

/// Why a figure is far from its twin's: twins that differ in nothing but this come as far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Other seeds.
    Chance,
    /// Hosts that are held up as the run's were.
    HoldUps,
}

impl Cause {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Cause::Chance => "by chance",
            Cause::HoldUps => "with the machine's hold-ups",
        }
    }
}

/// What explains a figure that is far from its twin's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// What it is.
    pub by: Cause,
    /// The least that twins with it came to.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
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
    /// Why, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained: Option<Explanation>,
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

impl Allowance {
    fn is_far(&self, emulated: f64, simulated: f64) -> bool {
        let apart = (emulated - simulated).abs();
        apart > self.slack && apart > self.share * simulated.abs()
    }
}

/// Figures that are held against the twin's. Counts of few are chance; a queue is counted in whole packets.
const ALLOWANCES: [Allowance; 10] = [
    allow("goodput_bps", 0.1, 0.0),
    allow("completion_us", 0.1, 10_000.0),
    allow("echo_p50_us", 0.1, 1_000.0),
    allow("retransmitted_segments", 0.2, 3.0),
    allow("timeouts", 0.2, 3.0),
    allow("dropped_packets", 0.2, 3.0),
    allow("queue_mean_bytes", 0.1, 3_000.0),
    allow("avail_mean_bps", 0.1, 0.0),
    allow("avail_error_ratio", 0.1, 0.01),
    allow("rise_us", 0.1, 20_000.0),
];

/// By how much a figure may differ from its twin's, in its own unit, however small it is; 0 of what is not compared.
pub fn slack_of(metric: &str) -> f64 {
    ALLOWANCES.iter().find(|allowance| allowance.metric == metric).map_or(0.0, |allowance| allowance.slack)
}

const CONFIDENCE: f64 = 0.9;

/// A run and its twin.
type Pair<'a> = (&'a RunManifest, &'a Twin);

/// Every case's figures beside those of its twins, in the order of the runs.
pub fn beside<'a>(runs: impl IntoIterator<Item = &'a RunManifest>) -> Vec<Beside> {
    let mut cases: Vec<&str> = Vec::new();
    let mut pairs: BTreeMap<&str, Vec<Pair<'a>>> = BTreeMap::new();
    for run in runs {
        let Some(twin) = run.twin.as_ref().filter(|_| run.went_as_planned()) else { continue };
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
    let is_far = is_told && allowance.is_far(emulated, simulated);
    let explained = is_far.then(|| explanation(allowance, (name, of), emulated, pairs)).flatten();
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
        explained,
    })
}

/// What twins with a cause came to that includes the figure.
fn explanation(
    allowance: &Allowance,
    (metric, of): (&str, &str),
    emulated: f64,
    pairs: &[Pair<'_>],
) -> Option<Explanation> {
    let ranges = |by| {
        pairs.iter().filter_map(move |(_, twin)| match by {
            Cause::Chance => twin.chance.as_ref(),
            Cause::HoldUps => twin.held_up.as_ref(),
        })
    };
    [Cause::Chance, Cause::HoldUps].into_iter().find_map(|by| {
        let ends = ranges(by).filter_map(|ranges| ranges.range(metric, of));
        let [least, greatest] = ends.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])])?;
        let is_within = !allowance.is_far(emulated, emulated.clamp(least, greatest));
        is_within.then_some(Explanation { by, least, greatest })
    })
}

impl Twin {
    /// The figure of that name and scope.
    pub fn metric(&self, metric: &str, of: &str) -> Option<f64> {
        Metric::find(&self.metrics, metric, of)
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
            twin: Some(Twin { metrics: vec![metric(name, *other)], ..Twin::default() }),
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
        all[0].status = RunStatus::Failed;
        assert_eq!(beside(&all)[0].runs, 1);
        all[1].twin = None;
        assert!(beside(&all).is_empty());
    }

    /// Twins that came to these.
    fn ranges(values: &[f64]) -> Option<Ranges> {
        let mut found = Ranges::default();
        for value in values {
            let metrics = vec![metric("goodput_bps", *value), metric("srtt_mean_us", 1.0)];
            found.add(&Twin { metrics, ..Twin::default() });
        }
        Some(found)
    }

    #[test]
    fn the_range_of_several_twins_is_their_least_and_greatest_of_what_is_compared() {
        let found = ranges(&[67.0, 24.0, 48.0]).unwrap();
        assert_eq!((found.twins, found.figures.len()), (3, 1));
        assert_eq!(found.range("goodput_bps", "flow"), Some([24.0, 67.0]));
        assert_eq!(found.range("srtt_mean_us", "flow"), None);
    }

    #[test]
    fn a_figure_that_is_far_is_explained_by_twins_with_a_cause_that_come_as_far() {
        let explained = |emulated: f64, chance: Option<Ranges>, held_up: Option<Ranges>| {
            let mut runs = runs("goodput_bps", &[(emulated, 67.0)]);
            let twin = runs[0].twin.as_mut().unwrap();
            (twin.chance, twin.held_up) = (chance, held_up);
            beside(&runs)[0].explained.as_ref().map(|found| (found.by, found.least, found.greatest))
        };
        let held = || ranges(&[24.0, 48.0]);
        assert_eq!(explained(27.0, ranges(&[67.0]), held()), Some((Cause::HoldUps, 24.0, 48.0)));
        assert_eq!(explained(22.0, ranges(&[67.0]), held()), Some((Cause::HoldUps, 24.0, 48.0)), "a tenth");
        assert_eq!(explained(20.0, ranges(&[67.0]), held()), None);
        assert_eq!(explained(56.0, ranges(&[67.0]), held()), None);
        assert_eq!(explained(27.0, ranges(&[67.0, 25.0]), held()), Some((Cause::Chance, 25.0, 67.0)));
        assert_eq!(explained(66.0, ranges(&[67.0]), held()), None, "it is not far");
        assert_eq!(explained(27.0, None, None), None);
    }

    #[test]
    fn a_run_that_hold_ups_decided_stands_beside_its_twin_all_the_same() {
        let mut all = runs("goodput_bps", &[(27.0, 67.0)]);
        all[0].status = RunStatus::Invalid;
        assert!(beside(&all)[0].is_far);
    }
}
