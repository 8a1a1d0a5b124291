//! Whether an experiment's expectations were met, by the runs that may be trusted.

use crate::spec::expect::{Bound, Expected, FigureOf, Measure, Pair};
use longfat_schema::quantity;
use longfat_schema::run::{CellVerdict, Expectation, RunManifest, RunStatus, Spread, bootstrap};

/// Cells that missed and are named in an expectation's own detail; all stand in its list.
const CELLS_NAMED: usize = 3;

/// The two sides of a comparison: a figure of each valid repeat, or the one number given.
struct Sides {
    left: Vec<f64>,
    right: Vec<f64>,
}

/// What a figure (a ratio of medians) may be, as far as the repeats tell.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    value: f64,
    least: f64,
    greatest: f64,
}

/// The part of an expectation that is about these cases; nothing when none of it is.
pub fn within(expected: &Expected, cases: &[&str]) -> Option<Expected> {
    let is_there = |figure: &FigureOf| cases.contains(&figure.case.as_str());
    let whole = |pair: &&Pair| is_there(&pair.left) && other(pair).is_none_or(is_there);
    let pairs: Vec<Pair> = expected.pairs.iter().filter(whole).cloned().collect();
    (!pairs.is_empty()).then(|| Expected { pairs, ..expected.clone() })
}

fn other(pair: &Pair) -> Option<&FigureOf> {
    match &pair.measure {
        Measure::Over(right) => Some(right),
        Measure::Value | Measure::OverNumber(_) => None,
    }
}

/// Judges one expectation, in every cell it is of.
pub fn expectation(expected: &Expected, runs: &[RunManifest]) -> Expectation {
    let judge = |pair: &Pair| {
        let (met, detail) = judge(pair, expected.confidence, runs);
        CellVerdict { case: pair.at.clone(), met, detail }
    };
    let cells: Vec<CellVerdict> = expected.pairs.iter().map(judge).collect();
    if let [only] = cells.as_slice() {
        let detail = only.detail.clone();
        return Expectation { text: expected.text.clone(), met: only.met, detail, cells: Vec::new() };
    }
    let is = |met: Option<bool>| cells.iter().filter(|cell| cell.met == met).count();
    let met = if is(Some(false)) > 0 { Some(false) } else { (is(None) == 0).then_some(true) };
    Expectation { text: expected.text.clone(), met, detail: summary(&cells, is(Some(true))), cells }
}

fn summary(cells: &[CellVerdict], met: usize) -> String {
    let mut said = format!("met in {met} of {} cells", cells.len());
    let missed: Vec<&CellVerdict> = cells.iter().filter(|cell| cell.met == Some(false)).collect();
    let unjudged: Vec<&CellVerdict> = cells.iter().filter(|cell| cell.met.is_none()).collect();
    for (how, cells) in [("missed in", missed), ("not judged in", unjudged)] {
        let named = cells.iter().take(CELLS_NAMED).map(|cell| format!("{}: {}", cell.case, cell.detail));
        let named: Vec<String> = named.collect();
        if !named.is_empty() {
            said.push_str(&format!("; {how} {}", named.join("; ")));
        }
        if cells.len() > CELLS_NAMED {
            said.push_str(&format!("; and {how} {} more", cells.len() - CELLS_NAMED));
        }
    }
    said
}

/// Judges one comparison.
fn judge(pair: &Pair, confidence: Option<f64>, runs: &[RunManifest]) -> (Option<bool>, String) {
    let sides = Sides {
        left: of_figure(&pair.left, runs),
        right: match &pair.measure {
            Measure::Value => vec![1.0],
            Measure::OverNumber(number) => vec![*number],
            Measure::Over(figure) => of_figure(figure, runs),
        },
    };
    let Some((left, right)) = median(&sides.left).zip(median(&sides.right)) else {
        let missing = other(pair).filter(|_| !sides.left.is_empty()).unwrap_or(&pair.left);
        return (None, format!("no valid run of case '{}' has the figure", missing.case));
    };
    let estimate = estimate(&sides, left / right, confidence);
    let metric = &pair.left.metric;
    let shown = |value: f64| match pair.measure {
        Measure::Value => quantity::of_metric(metric, value),
        Measure::OverNumber(_) | Measure::Over(_) => format!("{value:.3}"),
    };
    let ratio = match pair.measure {
        Measure::Value => String::new(),
        _ => format!(" against {}: ratio {}", quantity::of_metric(metric, right), shown(estimate.value)),
    };
    let detail = format!(
        "median {}{ratio}{}, wanted {}",
        quantity::of_metric(metric, left),
        interval(estimate, confidence, &shown),
        wanted(pair, confidence, &shown)
    );
    (Some(is_met(pair, estimate)), detail)
}

/// Without a confidence the interval is the figure itself; with one, an expectation is missed when the whole
/// interval lies beyond its bound.
fn is_met(pair: &Pair, estimate: Estimate) -> bool {
    let above =
        |bound: Bound| estimate.greatest > bound.value || !bound.strict && estimate.greatest >= bound.value;
    let below = |bound: Bound| estimate.least < bound.value || !bound.strict && estimate.least <= bound.value;
    pair.bounds.least.is_none_or(above) && pair.bounds.most.is_none_or(below)
}

fn estimate(sides: &Sides, value: f64, confidence: Option<f64>) -> Estimate {
    let Some(confidence) = confidence else { return Estimate { value, least: value, greatest: value } };
    // A figure that is no number in some resample (a median of nothing beneath) may be anything.
    let [least, greatest] = bootstrap([&sides.left, &sides.right], confidence, |left, right| left / right)
        .unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
    Estimate { value, least, greatest }
}

fn interval(estimate: Estimate, confidence: Option<f64>, shown: &dyn Fn(f64) -> String) -> String {
    let between = |share: f64| {
        let (least, greatest) = (shown(estimate.least), shown(estimate.greatest));
        format!(" ({:.0} % interval {least} to {greatest})", share * 100.0)
    };
    confidence.map_or_else(String::new, between)
}

fn wanted(pair: &Pair, confidence: Option<f64>, shown: &dyn Fn(f64) -> String) -> String {
    let within = if confidence.is_some() { " within the interval" } else { "" };
    let end = |bound: Option<Bound>, strictly: &str, loosely: &str| {
        bound.map(|bound| {
            let how = if bound.strict { strictly } else { loosely };
            format!("{how} {}{within}", shown(bound.value))
        })
    };
    let least = end(pair.bounds.least, "more than", "at least");
    let most = end(pair.bounds.most, "less than", "at most");
    [least, most].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values.iter().copied()).map(|spread| spread.median)
}

fn of_figure(figure: &FigureOf, runs: &[RunManifest]) -> Vec<f64> {
    figures(&figure.case, &figure.metric, &figure.of, runs)
}

/// A figure of every valid run of a case.
pub fn figures(case: &str, metric: &str, of: &str, runs: &[RunManifest]) -> Vec<f64> {
    let valid = runs.iter().filter(|run| run.case == case && run.status == RunStatus::Done);
    valid.filter_map(|run| run.metric(metric, of)).collect()
}
