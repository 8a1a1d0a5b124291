//! Two results beside each other: figures case by case, which of them differ by more than their spread, and which
//! parameters differ. Pure, but for [`Side::open`].

mod page;
mod parameters;

use longfat_schema::run::{
    RunDirectory, RunError, RunManifest, RunStatus, Spread, bootstrap, find_readable_runs,
};
pub use page::html;
pub(crate) use page::sections;
use parameters::differences;
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeSet, path::Path};

/// Confidence of the intervals that say whether two figures differ. Medians of few repeats have fewer values than the
/// interval would need: of a hundred figures that are alike, ten are outside with three repeats, eight with four, and
/// at most five with five or more.
pub const CONFIDENCE: f64 = 0.95;
/// Repeats on each side from which their spread says anything.
const REPEATS_LEAST: usize = 3;

/// Figures that tell most; the others are in [`CaseComparison::figures`] after them.
pub const FOREMOST: [&str; 11] = [
    "goodput_bps",
    "fairness_jain",
    "utilisation_ratio",
    "retransmitted_segments",
    "dropped_packets",
    "queue_mean_bytes",
    "cwnd_mean_segments",
    "cwnd_period_us",
    "srtt_mean_us",
    "echo_p50_us",
    "backlog_mean_bytes",
];

/// One run as far as it is compared: what it came to, and what it was made from.
#[derive(Debug, Clone)]
pub struct Run {
    /// Manifest of the run.
    pub manifest: RunManifest,
    /// Plan of the run.
    pub plan: Value,
}

/// A result to be compared with another one.
#[derive(Debug, Clone)]
pub struct Side {
    /// What a reader calls it: its directory.
    pub name: String,
    /// Runs of the result, in order.
    pub runs: Vec<Run>,
    /// Manifests of other runs that cannot be read, and why.
    pub damaged: Vec<String>,
}

/// Two results beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The two, in the order given; every ratio is the second over the first.
    pub sides: [String; 2],
    /// Cases that both have.
    pub cases: Vec<CaseComparison>,
    /// Cases that only the first, only the second has.
    pub unmatched: [Vec<String>; 2],
    /// Parameters that differ.
    pub parameters: Vec<Difference>,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseComparison {
    /// Names of the case on both sides.
    pub names: [String; 2],
    /// Valid runs on both sides.
    pub valid: [usize; 2],
    /// Figures of the case, the foremost first.
    pub figures: Vec<Figure>,
}

/// One figure on both sides, over the valid repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the metric.
    pub metric: String,
    /// What it is of.
    pub of: String,
    /// Median and spread on both sides; absent where no valid run has it.
    pub sides: [Option<Spread>; 2],
    /// The second median over the first.
    pub ratio: Option<f64>,
    /// Where the ratio lies as far as the repeats tell ([`CONFIDENCE`]); absent with too few of them.
    pub ratio_interval: Option<[f64; 2]>,
    /// Whether the medians differ by more than the spread of the repeats explains; absent with too few of them.
    pub beyond_spread: Option<bool>,
}

/// A parameter that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Dotted name of the parameter.
    pub key: String,
    /// What it is on both sides; empty where it is not set.
    pub values: [String; 2],
    /// In which cases.
    pub cases: Vec<String>,
}

impl CaseComparison {
    /// How far the figure is apart that differs most, of those that differ beyond their spread: those that tell most
    /// come before all others.
    pub fn distance(&self) -> (bool, f64) {
        let beyond = self.figures.iter().filter(|figure| figure.beyond_spread == Some(true));
        let distances = beyond.map(|figure| (figure.is_foremost(), figure.distance()));
        distances.max_by(|a, b| further(*a, *b)).unwrap_or((false, 0.0))
    }

    /// What a reader calls it: its name, or both where they differ.
    pub fn label(&self) -> String {
        let [left, right] = &self.names;
        if left == right { left.clone() } else { format!("{left} | {right}") }
    }
}

/// Orders distances: of figures that tell most behind all others.
fn further(one: (bool, f64), other: (bool, f64)) -> std::cmp::Ordering {
    one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
}

impl Figure {
    /// Whether it is one of those that tell most.
    pub fn is_foremost(&self) -> bool {
        FOREMOST.contains(&self.metric.as_str())
    }

    /// How far the medians are apart: the logarithm of their ratio, whichever is the greater. From nothing to something
    /// is infinitely far; a figure that one side lacks is no difference.
    pub fn distance(&self) -> f64 {
        match (self.ratio, &self.sides) {
            (Some(ratio), _) if ratio > 0.0 => ratio.ln().abs(),
            (_, [Some(left), Some(right)]) if left.median != right.median => f64::INFINITY,
            _ => 0.0,
        }
    }

    /// Whether the medians differ by no more than this share; a figure that one side lacks is no difference.
    pub fn is_within(&self, share: f64) -> bool {
        match self.ratio {
            Some(ratio) => (1.0 - share..=1.0 + share).contains(&ratio),
            // From nothing to something has no ratio, and is no agreement.
            None => self.sides.iter().any(Option::is_none),
        }
    }
}

impl Side {
    /// Reads a result or a run. Runs of the result whose manifests are damaged are left out and named.
    ///
    /// # Errors
    /// It is neither, a plan cannot be read, or a newer longfat wrote it.
    pub fn open(path: &Path) -> Result<Side, RunError> {
        let found = find_readable_runs(path)?;
        let damaged = found.damaged.iter().map(|run| run.error.to_string()).collect();
        Ok(Side { damaged, ..Side::of(path, found.runs)? })
    }

    /// Side that consists of these runs.
    ///
    /// # Errors
    /// A plan cannot be read.
    pub fn of(path: &Path, runs: Vec<RunDirectory>) -> Result<Side, RunError> {
        let runs = runs.into_iter().map(|run| Ok(Run { plan: run.plan()?, manifest: run.manifest }));
        let runs = runs.collect::<Result<_, RunError>>()?;
        Ok(Side { name: path.display().to_string(), runs, damaged: Vec::new() })
    }

    /// Names of its cases, in order.
    fn cases(&self) -> Vec<&str> {
        let mut seen = Vec::new();
        for run in &self.runs {
            if !seen.contains(&run.manifest.case.as_str()) {
                seen.push(run.manifest.case.as_str());
            }
        }
        seen
    }

    fn of_case(&self, case: &str) -> Vec<&Run> {
        self.runs.iter().filter(|run| run.manifest.case == case).collect()
    }
}

/// Puts two results beside each other. Cases are matched by name; where each has a single one, those two are.
pub fn compare(left: &Side, right: &Side) -> Comparison {
    let names = [left.cases(), right.cases()];
    let pairs = pairs(&names);
    let unmatched = [0, 1].map(|side| {
        let is_matched = |case: &str| pairs.iter().any(|pair| pair[side] == case);
        names[side].iter().filter(|case| !is_matched(case)).map(|case| (*case).to_owned()).collect()
    });
    let mut cases = Vec::new();
    let mut parameters: Vec<Difference> = Vec::new();
    for pair in &pairs {
        let runs = [left.of_case(pair[0]), right.of_case(pair[1])];
        cases.push(case(pair, &runs));
        for (key, values) in differences(&runs) {
            let known = parameters.iter_mut().find(|found| found.key == key && found.values == values);
            match known {
                Some(known) => known.cases.push(pair[0].to_owned()),
                None => parameters.push(Difference { key, values, cases: vec![pair[0].to_owned()] }),
            }
        }
    }
    Comparison { sides: [left.name.clone(), right.name.clone()], cases, unmatched, parameters }
}

fn pairs<'a>(cases: &[Vec<&'a str>; 2]) -> Vec<[&'a str; 2]> {
    if let ([left], [right]) = (cases[0].as_slice(), cases[1].as_slice()) {
        return vec![[left, right]];
    }
    cases[0].iter().filter(|case| cases[1].contains(case)).map(|case| [*case, *case]).collect()
}

fn case(names: &[&str; 2], runs: &[Vec<&Run>; 2]) -> CaseComparison {
    let valid: [Vec<&RunManifest>; 2] = [0, 1].map(|side| {
        let done = runs[side].iter().filter(|run| run.manifest.status == RunStatus::Done);
        done.map(|run| &run.manifest).collect()
    });
    let whole_flow = valid.iter().flatten().flat_map(|run| &run.metrics).filter(|m| m.stream.is_none());
    let known: BTreeSet<(usize, &str, &str)> =
        whole_flow.map(|m| (rank(&m.metric), m.metric.as_str(), m.of.as_str())).collect();
    CaseComparison {
        names: names.map(str::to_owned),
        valid: [valid[0].len(), valid[1].len()],
        figures: known.into_iter().map(|(_, metric, of)| figure(metric, of, &valid)).collect(),
    }
}

fn rank(metric: &str) -> usize {
    FOREMOST.iter().position(|name| *name == metric).unwrap_or(FOREMOST.len())
}

fn figure(metric: &str, of: &str, valid: &[Vec<&RunManifest>; 2]) -> Figure {
    let values = |side: usize| {
        let all = valid[side].iter().filter_map(|run: &&RunManifest| run.metric(metric, of));
        all.filter(|value| value.is_finite()).collect::<Vec<f64>>()
    };
    let values = [values(0), values(1)];
    let sides = [0, 1].map(|side| Spread::of(values[side].iter().copied()));
    let ratio = match &sides {
        [Some(left), Some(right)] if left.median == right.median => Some(1.0),
        [Some(left), Some(right)] if left.median != 0.0 => Some(right.median / left.median),
        _ => None,
    };
    let [left, right] = [&values[0][..], &values[1][..]];
    let told = left.len().min(right.len()) >= REPEATS_LEAST;
    let interval = |of: fn(f64, f64) -> f64| told.then(|| bootstrap([left, right], CONFIDENCE, of)).flatten();
    let finite = |interval: &[f64; 2]| interval.iter().all(|end| end.is_finite());
    Figure {
        metric: metric.to_owned(),
        of: of.to_owned(),
        sides,
        ratio,
        ratio_interval: interval(|left, right| right / left).filter(finite),
        // By the difference, not the ratio: from nothing to something has no ratio.
        beyond_spread: interval(|left, right| right - left)
            .map(|[least, greatest]| least > 0.0 || greatest < 0.0),
    }
}

#[cfg(test)]
mod tests;
