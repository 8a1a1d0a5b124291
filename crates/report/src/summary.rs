//! What the runs of a result come to: per case and metric, the median over its valid repeats and their spread.
//! Pure: manifests in, numbers out. The report, the terminal table and the lab all read this one computation.

use crate::quantity::{Quantity, Unit};
use longfat_schema::{
    own_time::Dilation,
    run::{CaseInfo, Metric, ResultManifest, RunManifest, RunStatus, Spread},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Which of a metric's scopes a column shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The focus flow's figure.
    Focus,
    /// The focus flow's figure; where it has none, that of the one flow that has.
    FocusOrOnly,
    /// The sum over all flows but the focus flow.
    Others,
    /// The whole run's figure (`of` is empty); the focus flow's where there is none.
    Run,
    /// The greatest over all links, or relays: the bottleneck's.
    Greatest,
    /// The sum over all relays' legs towards the server (`NAME/relay_out`).
    LongLeg,
}

/// One column of the summary.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Heading without the unit.
    pub heading: &'static str,
    /// Name of the metric in the manifest.
    pub metric: &'static str,
    /// What the figure belongs to.
    pub scope: Scope,
    /// What a reader should know about it.
    pub meaning: &'static str,
}

/// The summary's columns, in order. A column that no run has a figure for is not shown, nor one of [`RARE`] events that
/// never came.
pub const COLUMNS: [Column; 14] = [
    Column {
        heading: "Goodput",
        metric: "goodput_bps",
        scope: Scope::Focus,
        meaning: "Payload the focus flow's receiver got within the window, over the window's length.",
    },
    Column {
        heading: "Goodput of others",
        metric: "goodput_bps",
        scope: Scope::Others,
        meaning: "The same of all other flows together.",
    },
    Column {
        heading: "Jain fairness",
        metric: "fairness_jain",
        scope: Scope::Run,
        meaning: "Jain's index over the goodput of all streams: 1 when all are equal, 1/n when one has everything.",
    },
    Column {
        heading: "Retransmitted",
        metric: "retransmitted_segments",
        scope: Scope::Focus,
        meaning: "Segments the focus flow's sending socket retransmitted.",
    },
    Column {
        heading: "Timeouts",
        metric: "timeouts",
        scope: Scope::Focus,
        meaning: "Times the retransmission timer of the focus flow's sending socket ran out.",
    },
    Column {
        heading: "Spurious",
        metric: "spurious_timeouts",
        scope: Scope::Focus,
        meaning: "Those of them that sent again only what had arrived, as the receiver reported (DSACK).",
    },
    Column {
        heading: "Retransmitted by relay",
        metric: "retransmitted_segments",
        scope: Scope::LongLeg,
        meaning: "Segments the relay retransmitted on its leg towards the server.",
    },
    Column {
        heading: "Echo p50",
        metric: "echo_p50_us",
        scope: Scope::FocusOrOnly,
        meaning: "Median time from handing a timestamp to the sending socket to reading its echo; of the focus flow, \
                  or of the only flow that has echoes.",
    },
    Column {
        heading: "Echo p99",
        metric: "echo_p99_us",
        scope: Scope::FocusOrOnly,
        meaning: "99th percentile of the same.",
    },
    Column {
        heading: "Error of available bandwidth",
        metric: "avail_error_ratio",
        scope: Scope::FocusOrOnly,
        meaning: "Mean of |measured − free| over the capacity of the bottleneck, in bins of half a second.",
    },
    Column {
        heading: "Confidence",
        metric: "avail_confidence_ratio",
        scope: Scope::FocusOrOnly,
        meaning: "How far the connection itself trusted what it measured, on average.",
    },
    Column {
        heading: "Utilisation",
        metric: "utilisation_ratio",
        scope: Scope::Greatest,
        meaning: "Bytes the busiest link direction delivered within the window, over what its rate allows.",
    },
    Column {
        heading: "Mean queue",
        metric: "queue_mean_bytes",
        scope: Scope::Greatest,
        meaning: "Mean over time of the fullest queue among the link directions.",
    },
    Column {
        heading: "Mean relay backlog",
        metric: "backlog_mean_bytes",
        scope: Scope::Greatest,
        meaning: "Mean over time of the bytes the relay holds: received, not yet acknowledged on its other side.",
    },
];

/// The first column of a metric.
pub fn column_of(metric: &str) -> Option<usize> {
    COLUMNS.iter().position(|column| column.metric == metric)
}

/// Metrics that count what a good run does not have: of no interest where they are 0 throughout.
const RARE: [&str; 2] = ["timeouts", "spurious_timeouts"];

/// One figure of a case, by metric and scope.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// As [`Metric::metric`].
    pub metric: String,
    /// As [`Metric::of`].
    pub of: String,
    /// As [`Metric::stream`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// Over the case's valid repeats.
    pub spread: Spread,
}

/// What one case came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseSummary {
    /// Case name.
    pub name: String,
    /// What a reader sees.
    pub title: String,
    /// Runs that count.
    pub done: usize,
    /// Runs whose numbers must not be trusted; in no median.
    pub invalid: usize,
    /// Runs far from their twins with no cause known.
    pub unexplained: usize,
    /// Runs that did not end; in no median.
    pub failed: usize,
    /// By how much its runs were carried out slower than meant.
    pub dilation: Dilation,
    /// One per entry of [`COLUMNS`].
    pub columns: Vec<Option<Spread>>,
    /// The published figure of the same column, where there is one.
    pub published: Vec<Option<f64>>,
    /// Every metric of every scope.
    pub figures: Vec<Figure>,
}

impl CaseSummary {
    /// Runs, however they ended.
    pub fn runs(&self) -> usize {
        self.done + self.unexplained + self.invalid + self.failed
    }

    /// The median in the first column of a metric.
    pub fn median(&self, metric: &str) -> Option<f64> {
        self.columns[column_of(metric)?].as_ref().map(|spread| spread.median)
    }
}

/// What a result came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The flow the columns are of.
    pub focus: Option<String>,
    /// Cases in the order of the experiment.
    pub cases: Vec<CaseSummary>,
}

/// Computes the summary. `result` gives the order and titles of cases, published figures, the focus flow and
/// runs that left no manifest; without it they are taken from the runs. `named` is the focus flow where no result says
/// which.
pub fn summarise(result: Option<&ResultManifest>, named: Option<String>, runs: &[&RunManifest]) -> Summary {
    let focus = result.and_then(|r| r.focus.clone()).or(named).or_else(|| guess_focus(runs));
    let cases = case_infos(result, runs);
    let summary = |case: &CaseInfo| summarise_case(case, result, runs, focus.as_deref());
    Summary { cases: cases.iter().map(summary).collect(), focus }
}

/// The cases in the experiment's order, then any that only runs know.
pub fn case_infos(result: Option<&ResultManifest>, runs: &[&RunManifest]) -> Vec<CaseInfo> {
    let mut cases = result.map_or_else(Vec::new, |r| r.cases.clone());
    let entries = result.iter().flat_map(|r| r.runs.iter().map(|entry| &entry.case));
    for name in entries.chain(runs.iter().map(|run| &run.case)) {
        if cases.iter().all(|case| case.name != *name) {
            cases.push(CaseInfo { name: name.clone(), title: name.clone(), ..CaseInfo::default() });
        }
    }
    tell_apart(&mut cases);
    cases
}

/// Cells of cases without a title of their own are called by their axes alone, and so like one another.
fn tell_apart(cases: &mut [CaseInfo]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    cases.iter().for_each(|case| *counts.entry(case.title.clone()).or_default() += 1);
    for case in cases.iter_mut().filter(|case| counts[&case.title] > 1) {
        let of_case = case.axes.iter().find(|at| at.axis == "case");
        case.title = of_case.map_or_else(|| case.name.clone(), |at| format!("{}: {}", at.label, case.title));
    }
}

/// The flow the figures are of where none is stated: the one with the fewest streams, since background flows come in
/// numbers; of several such, the first by name. `None` where no flow has a goodput.
pub fn guess_focus(runs: &[&RunManifest]) -> Option<String> {
    let metrics = || runs.iter().flat_map(|run| &run.metrics).filter(|m| m.metric == "goodput_bps");
    let flows: BTreeSet<&str> = metrics().map(|m| m.of.as_str()).filter(|of| !of.is_empty()).collect();
    let streams = |flow: &str| metrics().filter(|m| m.of == *flow && m.stream.is_some()).count();
    of_fewest_streams(flows.into_iter().map(|flow| (flow, streams(flow))))
}

/// The name of the flow with the fewest streams, and of several such the first by name.
pub fn of_fewest_streams<'a>(flows: impl IntoIterator<Item = (&'a str, usize)>) -> Option<String> {
    flows.into_iter().min_by_key(|(name, streams)| (*streams, *name)).map(|(name, _)| name.to_owned())
}

fn summarise_case(
    case: &CaseInfo,
    result: Option<&ResultManifest>,
    runs: &[&RunManifest],
    focus: Option<&str>,
) -> CaseSummary {
    let own: Vec<&RunManifest> = runs.iter().copied().filter(|run| run.case == case.name).collect();
    let valid: Vec<&RunManifest> = own.iter().copied().filter(|run| run.status == RunStatus::Done).collect();
    let with = |status| own.iter().filter(|run| run.status == status).count();
    let column = |c: &Column| spread_of(c, &own, focus);
    let published = |c: &Column| column_value(c, &case.published, focus);
    CaseSummary {
        name: case.name.clone(),
        title: if case.title.is_empty() { case.name.clone() } else { case.title.clone() },
        done: valid.len(),
        invalid: with(RunStatus::Invalid),
        unexplained: with(RunStatus::Unexplained),
        failed: with(RunStatus::Failed) + without_manifest(case, result, &own),
        dilation: own.iter().map(|run| run.dilation).max().unwrap_or_default(),
        columns: COLUMNS.iter().map(column).collect(),
        published: COLUMNS.iter().map(published).collect(),
        figures: all_figures(&valid),
    }
}

/// Runs the result lists that left no manifest: they died.
fn without_manifest(case: &CaseInfo, result: Option<&ResultManifest>, own: &[&RunManifest]) -> usize {
    let entries = result.iter().flat_map(|r| &r.runs).filter(|entry| entry.case == case.name);
    entries.filter(|entry| own.iter().all(|run| run.repeat != entry.repeat)).count()
}

/// Median and spread of a column over those of a case's runs that count.
pub fn spread_of(column: &Column, runs: &[&RunManifest], focus: Option<&str>) -> Option<Spread> {
    let valid = runs.iter().filter(|run| run.status == RunStatus::Done);
    Spread::of(valid.filter_map(|run| column_value(column, &run.metrics, focus)))
}

/// A column's figure among the metrics of one run, or among published ones.
pub fn column_value(column: &Column, metrics: &[Metric], focus: Option<&str>) -> Option<f64> {
    let whole = || metrics.iter().filter(|m| m.metric == column.metric && m.stream.is_none());
    let of = |scope: &str| whole().find(|m| m.of == scope).map(|m| m.value);
    match column.scope {
        Scope::Focus => focus.and_then(of),
        Scope::FocusOrOnly => focus.and_then(of).or_else(|| only(whole().map(|m| m.value))),
        Scope::Others => {
            let others = whole().filter(|m| focus.is_some_and(|focus| m.of != focus));
            others.map(|m| m.value).reduce(|sum, value| sum + value)
        }
        Scope::Run => of("").or_else(|| focus.and_then(of)),
        Scope::Greatest => whole().map(|m| m.value).max_by(f64::total_cmp),
        Scope::LongLeg => {
            whole().filter(|m| m.of.ends_with("/relay_out")).map(|m| m.value).reduce(|sum, value| sum + value)
        }
    }
}

fn only(mut values: impl Iterator<Item = f64>) -> Option<f64> {
    values.next().filter(|_| values.next().is_none())
}

/// The focus flow's goodput in one run: what orders repeats and places dots.
pub fn focus_goodput(run: &RunManifest, focus: Option<&str>) -> Option<f64> {
    column_value(&COLUMNS[0], &run.metrics, focus)
}

fn all_figures(valid: &[&RunManifest]) -> Vec<Figure> {
    let mut keys: Vec<(&str, &str, Option<u32>)> = Vec::new();
    for metric in valid.iter().flat_map(|run| &run.metrics) {
        let key = (metric.metric.as_str(), metric.of.as_str(), metric.stream);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.into_iter().filter_map(|key| figure(valid, key)).collect()
}

fn figure(valid: &[&RunManifest], (name, of, stream): (&str, &str, Option<u32>)) -> Option<Figure> {
    let same = |m: &&Metric| m.metric == name && m.of == of && m.stream == stream;
    let values = valid.iter().filter_map(|run| run.metrics.iter().find(same)).map(|m| m.value);
    let spread = Spread::of(values)?;
    Some(Figure { metric: name.to_owned(), of: of.to_owned(), stream, spread })
}

/// One column ready to be shown: a heading with its unit, and a cell per case.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownColumn {
    /// `Goodput, Mbit/s`.
    pub heading: String,
    /// What a reader should know about it.
    pub meaning: &'static str,
    /// One per case.
    pub cells: Vec<ShownCell>,
}

/// One cell. Empty texts where there is nothing to show.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShownCell {
    /// The median.
    pub median: String,
    /// `91.2 – 94.8`; empty for a single repeat.
    pub spread: String,
    /// The published figure.
    pub published: String,
}

impl Summary {
    /// The columns any case has a figure for, each in one unit for all cases; of rare events only what came.
    pub fn shown(&self) -> Vec<ShownColumn> {
        (0..COLUMNS.len()).filter_map(|index| self.shown_column(index)).collect()
    }

    fn shown_column(&self, index: usize) -> Option<ShownColumn> {
        let unit = self.column_unit(index)?;
        let column = &COLUMNS[index];
        let comma = if unit.name.is_empty() { "" } else { ", " };
        Some(ShownColumn {
            heading: format!("{}{comma}{}", column.heading, unit.name),
            meaning: column.meaning,
            cells: self.cases.iter().map(|case| shown_cell(case, index, unit)).collect(),
        })
    }

    /// The unit column `index` is shown in; `None` when it is not shown.
    pub fn column_unit(&self, index: usize) -> Option<Unit> {
        let spreads = || self.cases.iter().filter_map(|case| case.columns[index].as_ref());
        if RARE.contains(&COLUMNS[index].metric) && spreads().all(|spread| spread.max == 0.0) {
            return None;
        }
        let greatest = spreads().map(|spread| spread.median).max_by(f64::total_cmp)?;
        Some(Quantity::of_metric(COLUMNS[index].metric).unit(greatest))
    }
}

fn shown_cell(case: &CaseSummary, index: usize, unit: Unit) -> ShownCell {
    let published = case.published[index].map_or_else(String::new, |value| unit.number(value));
    let Some(spread) = &case.columns[index] else {
        return ShownCell { published, ..ShownCell::default() };
    };
    let range = || format!("{} – {}", unit.number(spread.min), unit.number(spread.max));
    ShownCell {
        median: unit.number(spread.median),
        spread: if spread.count > 1 { range() } else { String::new() },
        published,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(case: &str, repeat: u32, status: RunStatus, goodput: f64) -> RunManifest {
        let metric = |metric: &str, of: &str, value| Metric {
            metric: metric.into(),
            of: of.into(),
            stream: None,
            value,
        };
        RunManifest {
            case: case.into(),
            repeat,
            status,
            metrics: vec![
                metric("goodput_bps", "focus", goodput),
                metric("utilisation_ratio", "lan/forward", 0.1),
                metric("utilisation_ratio", "path/forward", 0.9),
            ],
            ..RunManifest::default()
        }
    }

    #[test]
    fn invalid_and_failed_runs_are_counted_and_kept_out_of_the_median() {
        let runs = [
            run("a", 1, RunStatus::Done, 10.0),
            run("a", 2, RunStatus::Invalid, 1000.0),
            run("a", 3, RunStatus::Failed, 0.0),
            run("a", 4, RunStatus::Done, 20.0),
        ];
        let summary = summarise(None, None, &runs.iter().collect::<Vec<_>>());
        let case = &summary.cases[0];
        assert_eq!((case.done, case.invalid, case.failed), (2, 1, 1));
        assert_eq!(case.columns[0].as_ref().unwrap().median, 15.0);
    }

    #[test]
    fn where_no_focus_is_named_it_is_the_flow_of_fewest_streams_and_then_the_first_by_name() {
        let goodput =
            |of: &str, stream| Metric { metric: "goodput_bps".into(), of: of.into(), stream, value: 1e6 };
        let guess = |metrics: Vec<Metric>| {
            let run = RunManifest { metrics, ..RunManifest::default() };
            summarise(None, None, &[&run]).focus
        };
        let crowd = || [goodput("crowd", None), goodput("crowd", Some(0)), goodput("crowd", Some(1))];
        let of_one = |name: &str| [goodput(name, None), goodput(name, Some(0))];
        assert_eq!(guess([crowd().to_vec(), of_one("zeta").to_vec()].concat()).as_deref(), Some("zeta"));
        assert_eq!(guess([of_one("zeta"), of_one("eta")].concat()).as_deref(), Some("eta"));
        assert_eq!(guess(Vec::new()), None);
    }

    #[test]
    fn a_case_says_by_how_much_its_runs_were_carried_out_slower() {
        let mut runs = [run("a", 1, RunStatus::Done, 10.0), run("a", 2, RunStatus::Invalid, 10.0)];
        let dilation =
            |runs: &[RunManifest]| summarise(None, None, &runs.iter().collect::<Vec<_>>()).cases[0].dilation;
        assert!(dilation(&runs).is_none());
        runs[1].dilation = Dilation::new(4).unwrap();
        assert_eq!(dilation(&runs).times(), 4);
    }

    #[test]
    fn what_only_another_flow_has_is_shown_and_what_others_got_is_added_up() {
        let of = |metric: &str, of: &str, value| Metric {
            metric: metric.into(),
            of: of.into(),
            stream: None,
            value,
        };
        let mut metrics =
            vec![of("goodput_bps", "a", 60.0), of("goodput_bps", "b", 30.0), of("goodput_bps", "c", 1.0)];
        metrics.push(of("echo_p99_us", "c", 500.0));
        let column = |heading: &str, metrics: &[Metric]| {
            let column = COLUMNS.iter().find(|column| column.heading == heading).unwrap();
            column_value(column, metrics, Some("a"))
        };
        assert_eq!(column("Goodput of others", &metrics), Some(31.0));
        assert_eq!(column("Echo p99", &metrics), Some(500.0));
        metrics.push(of("echo_p99_us", "b", 700.0));
        assert_eq!(column("Echo p99", &metrics), None);
        metrics.push(of("echo_p99_us", "a", 600.0));
        assert_eq!(column("Echo p99", &metrics), Some(600.0));
    }

    #[test]
    fn the_bottleneck_is_the_busiest_link_and_absent_metrics_have_no_column() {
        let runs = [run("a", 1, RunStatus::Done, 93e6)];
        let summary = summarise(None, None, &[&runs[0]]);
        let headings: Vec<_> = summary.shown().into_iter().map(|c| c.heading).collect();
        assert_eq!(headings, ["Goodput, Mbit/s", "Utilisation, %"]);
        assert_eq!(summary.shown()[1].cells[0].median, "90.0");
    }

    #[test]
    fn rare_events_have_a_column_when_one_repeat_of_one_case_had_them() {
        let with_timeouts = |case: &str, repeat, value| {
            let mut run = run(case, repeat, RunStatus::Done, 1e6);
            run.metrics.push(Metric { metric: "timeouts".into(), of: "focus".into(), stream: None, value });
            run
        };
        let headings = |runs: &[RunManifest]| -> Vec<String> {
            let summary = summarise(None, None, &runs.iter().collect::<Vec<_>>());
            summary.shown().into_iter().map(|column| column.heading).collect()
        };
        let mut runs =
            vec![with_timeouts("a", 1, 0.0), with_timeouts("b", 1, 0.0), with_timeouts("b", 2, 0.0)];
        assert!(!headings(&runs).contains(&"Timeouts".to_owned()));
        runs.push(with_timeouts("b", 3, 2.0));
        assert!(headings(&runs).contains(&"Timeouts".to_owned()));
    }
}
