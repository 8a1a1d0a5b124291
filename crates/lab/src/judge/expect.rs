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

/// The least and the greatest that a figure (a ratio of medians) may be, as far as the repeats tell.
type Interval = [f64; 2];

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
    let value = ratio(left, right);
    let interval = confidence.map(|confidence| interval(&sides, confidence));
    let metric = &pair.left.metric;
    let shown = |value: f64| match pair.measure {
        Measure::Value => quantity::of_metric(metric, value),
        Measure::OverNumber(_) | Measure::Over(_) => format!("{value:.3}"),
    };
    let against = match pair.measure {
        Measure::Value => String::new(),
        _ => format!(" against {}: ratio {}", quantity::of_metric(metric, right), shown(value)),
    };
    let between = confidence.zip(interval).map(|(confidence, [least, greatest])| {
        format!(" ({:.0} % interval {} to {})", confidence * 100.0, shown(least), shown(greatest))
    });
    let detail = format!(
        "median {}{against}{}, wanted {}",
        quantity::of_metric(metric, left),
        between.unwrap_or_default(),
        wanted(pair, confidence, &shown)
    );
    (Some(is_met(pair, [left, right], interval)), detail)
}

/// How many times `right` the figure is. Nothing is as much as nothing.
fn ratio(left: f64, right: f64) -> f64 {
    if left == 0.0 && right == 0.0 { 1.0 } else { left / right }
}

/// Whether the medians are within the bounds. With an interval, an expectation is missed only when the whole of it lies
/// beyond its bound, too.
fn is_met(pair: &Pair, [left, right]: [f64; 2], interval: Option<Interval>) -> bool {
    let [least, greatest] = interval.map_or([None, None], |ends| ends.map(Some));
    // A figure is held against so many times the other, not their ratio against the bound: that may be of nothing.
    let sides = |bound: Bound| match pair.measure {
        Measure::Over(_) => (left, bound.value * right),
        Measure::Value | Measure::OverNumber(_) => (ratio(left, right), bound.value),
    };
    let above = |value: f64, bound: f64, strict: bool| value > bound || !strict && value >= bound;
    let is_enough = |bound: Bound| {
        let (value, wanted) = sides(bound);
        above(value, wanted, bound.strict)
            || greatest.is_some_and(|most| above(most, bound.value, bound.strict))
    };
    let is_little = |bound: Bound| {
        let (value, wanted) = sides(bound);
        above(wanted, value, bound.strict)
            || least.is_some_and(|least| above(bound.value, least, bound.strict))
    };
    pair.bounds.least.is_none_or(is_enough) && pair.bounds.most.is_none_or(is_little)
}

fn interval(sides: &Sides, confidence: f64) -> Interval {
    // A figure that is no number in some resample (a median of nothing beneath) may be anything.
    bootstrap([&sides.left, &sides.right], confidence, ratio).unwrap_or([f64::NEG_INFINITY, f64::INFINITY])
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
