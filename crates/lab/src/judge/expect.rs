//! Whether an experiment's expectations were met, by the runs that may be trusted.

use crate::{
    plan::seed_of,
    show,
    spec::{Against, ExpectSpec, FigureSpec},
};
use longfat_schema::run::{Expectation, RunManifest, RunStatus, Spread};

/// Resamples of a bootstrap: the ends of a 90 % interval then move by a percent or so with the seed.
const RESAMPLES: usize = 4000;

/// The two sides of an expectation: a figure of each valid repeat, or the one number given.
struct Sides {
    left: Vec<f64>,
    right: Vec<f64>,
}

/// What a ratio of medians may be, as far as the repeats tell.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratio {
    value: f64,
    least: f64,
    greatest: f64,
}

/// Judges one expectation.
pub fn expectation(spec: &ExpectSpec, runs: &[RunManifest]) -> Expectation {
    let sides = Sides {
        left: of_figure(&spec.left, runs),
        right: match &spec.right {
            Against::Number(number) => vec![*number],
            Against::Figure(figure) => of_figure(figure, runs),
        },
    };
    let Some((left, right)) = median(&sides.left).zip(median(&sides.right)) else {
        let missing = if sides.left.is_empty() { &spec.left.case } else { right_case(spec) };
        let detail = format!("no valid run of case '{missing}' has the figure");
        return Expectation { text: spec.text.clone(), met: None, detail };
    };
    let ratio = ratio(&sides, left / right, spec.confidence);
    let metric = &spec.left.metric;
    let detail = format!(
        "median {} against {}: ratio {:.2}{}, wanted {}",
        show::value(metric, left),
        show::value(metric, right),
        ratio.value,
        interval(ratio, spec.confidence),
        wanted(spec)
    );
    Expectation { text: spec.text.clone(), met: Some(is_met(spec, ratio)), detail }
}

/// Without a confidence the interval is the ratio itself; with one, an expectation is missed when the whole
/// interval lies beyond its bound.
fn is_met(spec: &ExpectSpec, ratio: Ratio) -> bool {
    spec.at_least.is_none_or(|least| ratio.greatest >= least)
        && spec.at_most.is_none_or(|most| ratio.least <= most)
}

fn ratio(sides: &Sides, value: f64, confidence: Option<f64>) -> Ratio {
    let Some(confidence) = confidence else { return Ratio { value, least: value, greatest: value } };
    let mut random = 0;
    let mut resampled: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| Some(resample(&sides.left, &mut random)? / resample(&sides.right, &mut random)?))
        .collect();
    resampled.sort_by(f64::total_cmp);
    let at = |share: f64| resampled[((resampled.len() - 1) as f64 * share).round() as usize];
    let tail = (1.0 - confidence) / 2.0;
    Ratio { value, least: at(tail), greatest: at(1.0 - tail) }
}

/// Median of as many values drawn with replacement (Efron 1979). The same draws every time: judging the same
/// runs again must not change the verdict.
fn resample(values: &[f64], random: &mut u64) -> Option<f64> {
    let mut draw = || {
        *random += 1;
        let index = seed_of(*random, &["bootstrap"]) % values.len().max(1) as u64;
        values.get(index as usize).copied()
    };
    let drawn: Option<Vec<f64>> = values.iter().map(|_| draw()).collect();
    median(&drawn?)
}

fn interval(ratio: Ratio, confidence: Option<f64>) -> String {
    let shown = |share: f64| {
        format!(" ({:.0} % interval {:.2} to {:.2})", share * 100.0, ratio.least, ratio.greatest)
    };
    confidence.map_or_else(String::new, shown)
}

fn wanted(spec: &ExpectSpec) -> String {
    let within = if spec.confidence.is_some() { " within the interval" } else { "" };
    let least = spec.at_least.map(|ratio| format!("at least {ratio:.2}{within}"));
    let most = spec.at_most.map(|ratio| format!("at most {ratio:.2}{within}"));
    [least, most].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

fn right_case(spec: &ExpectSpec) -> &str {
    match &spec.right {
        Against::Figure(figure) => &figure.case,
        Against::Number(_) => &spec.left.case,
    }
}

fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values.iter().copied()).map(|spread| spread.median)
}

fn of_figure(figure: &FigureSpec, runs: &[RunManifest]) -> Vec<f64> {
    figures(&figure.case, &figure.metric, &figure.of, runs)
}

/// A figure of every valid run of a case.
pub fn figures(case: &str, metric: &str, of: &str, runs: &[RunManifest]) -> Vec<f64> {
    let valid = runs.iter().filter(|run| run.case == case && run.status == RunStatus::Done);
    valid.filter_map(|run| run.metric(metric, of)).collect()
}
