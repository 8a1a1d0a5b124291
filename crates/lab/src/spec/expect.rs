//! Expectations, from what a person writes to the figures that are compared.
//!
//! A figure is of a case and, in a sweep, of a cell. What a figure leaves open (`case`, axes not named by `at`) it must
//! not leave open, or the expectation says `for_each`: then it is judged for each combination of what is open. The
//! short form (`"fairness > 0.9"`) is always for each.

use super::{
    Against, Case, ExpectSpec, FigureSpec, ForEach, Problem, PublishedSpec,
    decode::unknown,
    scope::why_none,
    sweep::{Filter, OneOrMany, check_labels},
};
use longfat_schema::{
    metric::{self, NAMES},
    units::{Nanos, Rate, Size},
};
use std::collections::BTreeSet;

/// An expectation with every figure known.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// In a person's words.
    pub text: String,
    /// See [`ExpectSpec::confidence`].
    pub confidence: Option<f64>,
    /// What is compared, each by itself; at least one.
    pub pairs: Vec<Pair>,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Which of the expectation's combinations it is; empty when there is one only.
    pub at: String,
    /// The figure judged.
    pub left: FigureOf,
    /// What it is measured by.
    pub measure: Measure,
    /// What that may be.
    pub bounds: Bounds,
}

/// A median over the valid repeats of one case (one cell).
#[derive(Debug, Clone, PartialEq)]
pub struct FigureOf {
    /// Case's full name.
    pub case: String,
    /// Metric name.
    pub metric: String,
    /// Flow, link direction or relay direction; empty for the whole run.
    pub of: String,
}

/// What is held against the bounds.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// The figure itself.
    Value,
    /// The figure over a number.
    OverNumber(f64),
    /// The figure over another.
    Over(FigureOf),
}

/// An end of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Where it is.
    pub value: f64,
    /// The bound itself is not accepted.
    pub strict: bool,
}

/// Accepted values; at least one end is there.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounds {
    /// Lower end.
    pub least: Option<Bound>,
    /// Upper end.
    pub most: Option<Bound>,
}

/// What an expectation says before it is known of which cells.
struct Draft {
    text: String,
    confidence: Option<f64>,
    left: FigureSpec,
    right: Right,
    bounds: Bounds,
    for_each: ForEach,
}

enum Right {
    None,
    Number(f64),
    Figure(FigureSpec),
}

/// What is known when expectations are resolved.
pub struct Known<'a> {
    /// Every case, or cell.
    pub cases: &'a [Case],
    /// Every coordinate with its labels.
    pub coordinates: &'a [(String, Vec<String>)],
    /// The flow the experiment is about.
    pub focus: Option<&'a str>,
}

/// Resolves the expectations of a file.
pub fn resolve(specs: &[ExpectSpec], known: &Known<'_>, problems: &mut Vec<Problem>) -> Vec<Expected> {
    let mut found = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let path = format!("expect.{}", index + 1);
        if spec.confidence.is_some_and(|confidence| confidence <= 0.0 || confidence >= 1.0) {
            problems.push(Problem::new(
                format!("{path}.confidence"),
                "must lie between 0 and 1; write it like 0.9",
            ));
        }
        match draft(spec, known) {
            Ok(draft) => found.extend(known.expected(&path, draft, problems)),
            Err(why) => problems.push(Problem::new(path, why)),
        }
    }
    found
}

fn draft(spec: &ExpectSpec, known: &Known<'_>) -> Result<Draft, String> {
    match (&spec.that, &spec.left) {
        (Some(_), Some(_)) => Err("has both 'that' and 'left'; keep one".into()),
        (Some(that), None) if spec.right.is_some() || spec.at_least.is_some() || spec.at_most.is_some() => {
            Err(format!("'that' says all of '{that}'; leave right, at_least and at_most out"))
        }
        (Some(that), None) => {
            let (left, right, bounds) = short_form(that, known)?;
            let text = spec.text.clone().unwrap_or_else(|| that.clone());
            let for_each = spec.for_each.clone().unwrap_or(ForEach::All(true));
            Ok(Draft { text, confidence: spec.confidence, left, right, bounds, for_each })
        }
        (None, Some(left)) => long_form(spec, left),
        (None, None) => Err("says neither 'that' (\"fairness > 0.9\") nor 'left', the figure judged".into()),
    }
}

fn long_form(spec: &ExpectSpec, left: &FigureSpec) -> Result<Draft, String> {
    if spec.at_least.is_none() && spec.at_most.is_none() {
        return Err("says neither at_least nor at_most".into());
    }
    let bound = |value| Bound { value, strict: false };
    let right = match &spec.right {
        None => Right::None,
        Some(Against::Number(0.0)) => {
            return Err("right is 0: a ratio to it says nothing; leave it out".into());
        }
        Some(Against::Number(number)) => Right::Number(*number),
        Some(Against::Figure(figure)) => Right::Figure(figure.clone()),
    };
    Ok(Draft {
        text: spec.text.clone().unwrap_or_else(|| format!("{} {}", left.metric, left.of).trim().to_owned()),
        confidence: spec.confidence,
        left: left.clone(),
        right,
        bounds: Bounds { least: spec.at_least.map(bound), most: spec.at_most.map(bound) },
        for_each: spec.for_each.clone().unwrap_or(ForEach::All(false)),
    })
}

/// What a short form may say, for messages.
const GRAMMAR: &str = "write it like 'fairness > 0.9', 'goodput of bulk >= 20Mbit' or \
                       'goodput of bulk in relayed >= 2 * goodput of bulk in plain'";

fn short_form(text: &str, known: &Known<'_>) -> Result<(FigureSpec, Right, Bounds), String> {
    let mut spaced = text.replace(" %", "%");
    for operator in ["<", ">", "*"] {
        spaced = spaced.replace(operator, &format!(" {operator} "));
    }
    let words: Vec<&str> = spaced.split_whitespace().filter(|word| *word != "*").collect();
    let wrong = || format!("'{text}' is no expectation; {GRAMMAR}");
    let at = words.iter().position(|word| matches!(*word, "<" | ">")).ok_or_else(wrong)?;
    let or_equal = words.get(at + 1).is_some_and(|word| word.starts_with('='));
    // `>= 3` has become `> = 3`, `>=3` has become `> =3`.
    let rest = words[at + 1..].join(" ");
    let rest = if or_equal { rest.replacen('=', "", 1) } else { rest };
    let right: Vec<&str> = rest.split_whitespace().collect();
    let left = figure(&words[..at], known).ok_or_else(wrong)??;
    let bounds = |value| {
        let bound = Some(Bound { value, strict: !or_equal });
        if words[at] == ">" {
            Bounds { least: bound, most: None }
        } else {
            Bounds { least: None, most: bound }
        }
    };
    let factor = right.first().and_then(|word| word.parse::<f64>().ok());
    match (factor, right.as_slice()) {
        (_, []) => Err(wrong()),
        (_, [number]) if number.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.') => {
            Ok((left.clone(), Right::None, bounds(quantity(&left.metric, number)?)))
        }
        (Some(factor), [_, rest @ ..]) => {
            Ok((left, Right::Figure(figure(rest, known).ok_or_else(wrong)??), bounds(factor)))
        }
        (None, words) => Ok((left, Right::Figure(figure(words, known).ok_or_else(wrong)??), bounds(1.0))),
    }
}

/// `METRIC [of NAME] [in CASE] [at AXIS=LABEL[,AXIS=LABEL…]]`; nothing when it is none of that.
fn figure(words: &[&str], known: &Known<'_>) -> Option<Result<FigureSpec, String>> {
    let (name, rest) = words.split_first()?;
    if rest.len() % 2 != 0 {
        return None;
    }
    let (mut of, mut case, mut at) = (None, None, Filter::new());
    for pair in rest.chunks_exact(2) {
        match pair {
            ["of", name] => of = Some((*name).to_owned()),
            ["in", name] => case = Some((*name).to_owned()),
            // Several as cells are named; a comma may be part of a label.
            ["at", places] => {
                let mut found: Vec<(&str, String)> = Vec::new();
                for part in places.split(',') {
                    match (part.split_once('='), found.last_mut()) {
                        (Some((axis, label)), _) => found.push((axis, label.to_owned())),
                        (None, Some((_, label))) => label.push_str(&format!(",{part}")),
                        (None, None) => return None,
                    }
                }
                at.extend(found.into_iter().map(|(axis, label)| (axis.to_owned(), OneOrMany::One(label))));
            }
            _ => return None,
        }
    }
    let metric = match whole_name(name) {
        Ok(metric) => metric,
        Err(why) => return Some(Err(why)),
    };
    let of = of.map_or_else(|| usual_scope(metric, known), Ok);
    Some(of.map(|of| FigureSpec { case, metric: metric.to_owned(), of, at }))
}

/// A metric by its name or its first words, when only one begins so.
fn whole_name(name: &str) -> Result<&'static str, String> {
    let is_begun =
        |metric: &&'static str| metric.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    let begins: Vec<&'static str> = NAMES.into_iter().filter(is_begun).collect();
    match (NAMES.into_iter().find(|metric| *metric == name), begins.as_slice()) {
        (Some(exact), _) => Ok(exact),
        (None, [only]) => Ok(only),
        (None, []) => Err(unknown("metric", name, NAMES)),
        (None, several) => Err(format!("'{name}' may be {}; write the whole name", several.join(" or "))),
    }
}

/// Scope of a metric when nobody says: the run, or else the flow the experiment is about.
fn usual_scope(metric: &str, known: &Known<'_>) -> Result<String, String> {
    let kind = metric::find(metric);
    if kind.is_some_and(metric::Kind::is_of_run) {
        return Ok(String::new());
    }
    let flows: BTreeSet<&str> = known
        .cases
        .iter()
        .flat_map(|case| {
            case.setting.flows.iter().filter(|(_, flow)| flow.enabled).map(|(name, _)| name.as_str())
        })
        .collect();
    let only = flows.first().filter(|_| flows.len() == 1).copied();
    let flow = known.focus.or(only).filter(|_| kind.is_some_and(metric::Kind::is_of_flow));
    flow.map(str::to_owned).ok_or_else(|| format!("'{metric}' of what? Write it like '{metric} of NAME'"))
}

/// A number with the unit that the metric's name ends in, in its base unit.
fn quantity(metric: &str, text: &str) -> Result<f64, String> {
    let said = |error: longfat_schema::units::UnitError| format!("{metric}: {error}");
    let number = || text.parse::<f64>().map_err(|_| format!("{metric}: '{text}' is no number"));
    match metric.rsplit('_').next() {
        Some("bps") => text.parse().map(|Rate(bps)| bps as f64).map_err(said),
        Some("us") => text.parse().map(|Nanos(ns)| ns as f64 / 1000.0).map_err(said),
        Some("bytes") => text.parse().map(|Size(bytes)| bytes as f64).map_err(said),
        Some("ratio") if text.ends_with('%') => text
            .trim_end_matches('%')
            .parse()
            .map(|percent: f64| percent / 100.0)
            .map_err(|_| format!("'{text}' is no percentage")),
        _ => number(),
    }
}

impl Known<'_> {
    fn expected(&self, path: &str, draft: Draft, problems: &mut Vec<Problem>) -> Option<Expected> {
        let before = problems.len();
        self.check_figure(&format!("{path}.left"), &draft.left, problems);
        if let Right::Figure(right) = &draft.right {
            self.check_figure(&format!("{path}.right"), right, problems);
        }
        if let ForEach::Only(filter) = &draft.for_each {
            let path = format!("{path}.for_each");
            filter
                .iter()
                .for_each(|(axis, labels)| check_labels(&path, axis, labels, self.coordinates, problems));
        }
        if problems.len() > before {
            return None;
        }
        let each = !matches!(draft.for_each, ForEach::All(false));
        let mine: Vec<&Case> = self.cases.iter().filter(|case| is_of(case, &draft)).collect();
        if mine.len() > 1 && !each {
            let message = format!(
                "left is of {} cases and cells ({}, {}, …); name one with case and at, or write for_each = true",
                mine.len(),
                mine[0].name,
                mine[1].name
            );
            problems.push(Problem::new(path, message));
            return None;
        }
        let several = mine.len() > 1;
        let pairs: Vec<Pair> = mine.iter().filter_map(|left| self.pair(left, &draft, several)).collect();
        if pairs.is_empty() {
            problems.push(Problem::new(path, "is of no case or cell that there is (exclusions count)"));
            return None;
        }
        for pair in &pairs {
            self.check_scope(&format!("{path}.left"), &pair.left, problems);
            if let Measure::Over(right) = &pair.measure {
                self.check_scope(&format!("{path}.right"), right, problems);
            }
        }
        Some(Expected { text: draft.text, confidence: draft.confidence, pairs })
    }

    /// Nothing when the other side has no such cell: it was excluded.
    fn pair(&self, left: &Case, draft: &Draft, several: bool) -> Option<Pair> {
        let figure = |case: &Case, of: &FigureSpec| FigureOf {
            case: case.name.clone(),
            metric: of.metric.clone(),
            of: of.of.clone(),
        };
        let measure = match &draft.right {
            Right::None => Measure::Value,
            Right::Number(number) => Measure::OverNumber(*number),
            Right::Figure(right) => Measure::Over(figure(
                self.cases.iter().find(|case| stands_against(case, right, left))?,
                right,
            )),
        };
        Some(Pair {
            at: if several { left.name.clone() } else { String::new() },
            left: figure(left, &draft.left),
            measure,
            bounds: draft.bounds,
        })
    }

    fn check_figure(&self, path: &str, figure: &FigureSpec, problems: &mut Vec<Problem>) {
        if let Some(name) = &figure.case
            && !self.cases.iter().any(|case| case.is_called(name))
        {
            let mut known: Vec<&str> = Vec::new();
            for base in self.cases.iter().map(|case| case.base.as_str()) {
                if !known.contains(&base) {
                    known.push(base);
                }
            }
            problems.push(Problem::new(format!("{path}.case"), unknown("case", name, known)));
        }
        if !NAMES.contains(&figure.metric.as_str()) {
            problems.push(Problem::new(format!("{path}.metric"), unknown("metric", &figure.metric, NAMES)));
        }
        for (axis, labels) in &figure.at {
            check_labels(&format!("{path}.at"), axis, labels, self.coordinates, problems);
        }
    }

    fn check_scope(&self, path: &str, figure: &FigureOf, problems: &mut Vec<Problem>) {
        let Some(case) = self.cases.iter().find(|case| case.name == figure.case) else { return };
        let Some(kind) = metric::find(&figure.metric) else { return };
        let Some(why) = why_none(kind, &figure.of, &case.setting) else { return };
        let problem = Problem::new(format!("{path}.of"), format!("{why} (case {})", figure.case));
        // Said of the first case that lacks it.
        if problems.iter().all(|known| known.path != problem.path) {
            problems.push(problem);
        }
    }
}

/// Checks what a published figure is of, in the cases and cells that it stands beside: one at least has such a figure.
pub(super) fn check_published<'a>(
    path: &str,
    figure: &PublishedSpec,
    cases: impl Iterator<Item = &'a Case>,
    problems: &mut Vec<Problem>,
) {
    let Some(kind) = metric::find(&figure.metric) else {
        problems.push(Problem::new(format!("{path}.metric"), unknown("metric", &figure.metric, NAMES)));
        return;
    };
    let whys = cases.map(|case| why_none(kind, &figure.of, &case.setting));
    if let Some(why) = whys.collect::<Option<Vec<_>>>().and_then(|whys| whys.into_iter().next()) {
        problems.push(Problem::new(format!("{path}.of"), why));
    }
}

/// Whether the left figure may be of this case.
fn is_of(case: &Case, draft: &Draft) -> bool {
    let named = draft.left.case.as_ref().is_none_or(|name| case.is_called(name));
    let wanted = match &draft.for_each {
        ForEach::Only(filter) => case.is_at(filter),
        ForEach::All(_) => true,
    };
    named && wanted && case.is_at(&draft.left.at)
}

/// Whether a case is what the right figure means when the left is of `left`: what it does not name it has in common.
fn stands_against(case: &Case, right: &FigureSpec, left: &Case) -> bool {
    if right.case.as_ref().is_some_and(|name| *name == case.name) {
        return true;
    }
    let base = right.case.as_ref().unwrap_or(&left.base);
    let in_common = |axis: &str| case.label(axis) == left.label(axis);
    case.base == *base
        && case.is_at(&right.at)
        && case
            .axes
            .iter()
            .all(|at| at.axis == "case" || right.at.contains_key(&at.axis) || in_common(&at.axis))
}
