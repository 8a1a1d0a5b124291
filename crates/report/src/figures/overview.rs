//! The charts over all cases: goodput, and where they have them shares, flows, latencies, and errors of the available
//! bandwidth.

use super::samples::StreamGoodput;
use crate::{
    load::{Case, Experiment},
    plot::{
        Figure,
        dots::{Dot, DotChart, Kind, Row},
        svg::Mark,
    },
    quantity::{Quantity, Unit, number},
    summary::{self, COLUMNS, CaseSummary, column_of, column_value},
};
use longfat_schema::run::{RunDirectory, RunManifest, RunStatus};

const REPEAT: usize = 0;
const NOT_VALID: usize = 1;
const MEDIAN: usize = 2;
const PUBLISHED: usize = 3;

const KINDS: [Kind; 4] = [
    Kind { mark: Mark::Ring, class: "c0", label: "one repeat" },
    Kind { mark: Mark::Cross, class: "muted", label: "not valid" },
    Kind { mark: Mark::Bar, class: "c0", label: "median" },
    Kind { mark: Mark::Diamond, class: "c1", label: "published" },
];

/// The focus flow's goodput in each case: every repeat, the median, the published figure.
pub fn goodput(experiment: &Experiment, id: &str) -> Figure {
    let unit = goodput_unit(experiment);
    let focus = experiment.focus();
    let cases = experiment.cases.iter().zip(&experiment.summary.cases);
    let name = focus.unwrap_or("each flow");
    let chart = DotChart {
        id: id.to_owned(),
        title: format!("Goodput of {name} by case, {}", unit.name),
        description: goodput_in_words(&experiment.summary.cases, unit),
        kinds: KINDS.to_vec(),
        rows: cases.map(|(case, summary)| goodput_row(case, summary, focus, unit)).collect(),
    };
    chart.draw()
}

/// One unit for all that is drawn: of the greatest median, published figure or repeat.
fn goodput_unit(experiment: &Experiment) -> Unit {
    let repeats =
        experiment.runs().filter_map(|run| summary::focus_goodput(&run.manifest, experiment.focus()));
    let published = experiment.summary.cases.iter().filter_map(|case| case.published[0]);
    Quantity::Rate.unit(repeats.chain(published).fold(0.0, f64::max))
}

fn goodput_row(case: &Case, summary: &CaseSummary, focus: Option<&str>, unit: Unit) -> Row {
    let median = summary.columns[0].as_ref().map(|spread| spread.median);
    let mut dots: Vec<Dot> = median.map(|value| dot(unit, MEDIAN, value)).into_iter().collect();
    dots.extend(summary.published[0].map(|value| dot(unit, PUBLISHED, value)));
    dots.extend(repeats(case, unit, |run| summary::focus_goodput(run, focus)));
    let note = median.map_or_else(|| nothing(summary), |value| unit.number(value));
    Row { label: summary.title.clone(), note, dots }
}

/// Why a case has no figure of the focus flow.
fn nothing(case: &CaseSummary) -> String {
    if case.done == 0 { "no valid run" } else { "not in this case" }.to_owned()
}

fn goodput_in_words(cases: &[CaseSummary], unit: Unit) -> String {
    let sentence = |case: &CaseSummary| {
        let median = case.columns[0].as_ref().map_or_else(|| nothing(case), |s| unit.text(s.median));
        let published = case.published[0].map_or(String::new(), |v| format!(", published {}", unit.text(v)));
        format!("{}: {median}{published}. ", case.title)
    };
    cases.iter().map(sentence).collect()
}

/// How far the available bandwidth that was measured lay from what was free, in each case: every repeat, the median,
/// and how far the connection itself trusted it.
pub fn avail_error(experiment: &Experiment, id: &str) -> Option<Figure> {
    let error = column_of("avail_error_ratio")?;
    let unit = experiment.summary.column_unit(error)?;
    let rows = column_rows(experiment, error, unit, |case| {
        let trust = case.median("avail_confidence_ratio");
        trust.map_or_else(String::new, |trust| format!(" (confidence {})", number(trust)))
    });
    Some(by_case(id, "Error of available bandwidth, % of capacity".to_owned(), rows))
}

/// The 99th percentile of the latency of echoes in each case; nothing where fewer than two have one.
pub fn echo(experiment: &Experiment, id: &str) -> Option<Figure> {
    let index = column_of("echo_p99_us")?;
    let unit = experiment.summary.column_unit(index)?;
    let rows = column_rows(experiment, index, unit, |_| String::new());
    (rows.len() > 1)
        .then(|| by_case(id, format!("99th percentile of echo latency by case, {}", unit.name), rows))
}

/// A row for every case with a figure in that column; `more` is said behind its median.
fn column_rows(
    experiment: &Experiment,
    index: usize,
    unit: Unit,
    more: impl Fn(&CaseSummary) -> String,
) -> Vec<Row> {
    let row = |(case, summary): (&Case, &CaseSummary)| {
        let median = summary.columns[index].as_ref()?.median;
        let mut dots = vec![dot(unit, MEDIAN, median)];
        let value = |run: &RunManifest| column_value(&COLUMNS[index], &run.metrics, experiment.focus());
        dots.extend(repeats(case, unit, value));
        let note = format!("{}{}", unit.text(median), more(summary));
        Some(Row { label: summary.title.clone(), note, dots })
    };
    experiment.cases.iter().zip(&experiment.summary.cases).filter_map(row).collect()
}

fn by_case(id: &str, title: String, rows: Vec<Row>) -> Figure {
    let words = rows.iter().map(|row| format!("{}: {}. ", row.label, row.note)).collect();
    DotChart { id: id.to_owned(), title, description: words, kinds: KINDS.to_vec(), rows }.draw()
}

const FOCUS_FLOW: usize = 0;
const OTHER_FLOW: usize = 1;

const FLOW_KINDS: [Kind; 2] = [
    Kind { mark: Mark::Disc, class: "c0", label: "focus flow" },
    Kind { mark: Mark::Ring, class: "c1", label: "another flow" },
];

/// A flow with something, but with this share of the greatest in no case, is a trickle, which would stretch the axis.
const TRICKLE: f64 = 1.0 / 20.0;

/// What each flow got in each case; nothing where no case has two that count.
pub fn flows(experiment: &Experiment, id: &str) -> Option<Figure> {
    let cases = experiment.cases.iter().zip(&experiment.summary.cases);
    let goodputs: Vec<_> = cases.map(|(case, summary)| goodput_of_flows(case, summary)).collect();
    let greatest_of = |flow: &str| {
        goodputs.iter().flatten().filter(|(of, _)| of == flow).fold(0.0, |most, (_, bps)| bps.max(most))
    };
    let greatest = goodputs.iter().flatten().fold(0.0, |most: f64, (_, bps)| bps.max(most));
    let counts = |flow: &str| greatest_of(flow) == 0.0 || greatest_of(flow) >= greatest * TRICKLE;
    let unit = Quantity::Rate.unit(greatest);
    let mut several = false;
    let mut row = |(summary, flows): (&CaseSummary, &Vec<(String, f64)>)| {
        let mut kept: Vec<(String, f64)> = flows.iter().filter(|(of, _)| counts(of)).cloned().collect();
        kept.sort_by_key(|(of, _)| experiment.focus() != Some(of));
        several |= kept.len() > 1;
        flow_row(&summary.title, &kept, experiment.focus(), unit)
    };
    let rows: Vec<Row> = experiment.summary.cases.iter().zip(&goodputs).map(&mut row).collect();
    let words = rows.iter().map(|row| format!("{}: {}. ", row.label, row.note)).collect();
    let title = format!("Goodput of each flow by case, {}", unit.name);
    let kinds = FLOW_KINDS.to_vec();
    several.then(|| DotChart { id: id.to_owned(), title, description: words, kinds, rows }.draw())
}

/// The median of each flow of a case, 0 where it got nothing; a flow that is disabled there has none.
fn goodput_of_flows(case: &Case, summary: &CaseSummary) -> Vec<(String, f64)> {
    let whole = summary.figures.iter().filter(|f| f.metric == "goodput_bps" && f.stream.is_none());
    let flows = whole.map(|figure| (figure.of.clone(), figure.spread.median));
    flows.filter(|(flow, bps)| *bps > 0.0 || is_to_send(case, flow)).collect()
}

/// Whether the plan lets a flow send within the window; of a flow that no plan tells of we believe it.
fn is_to_send(case: &Case, flow: &str) -> bool {
    let Some(run) = case.runs.first() else { return true };
    let plan: serde_json::Value = run.plan().unwrap_or_default();
    let planned = plan["flows"].as_array().and_then(|flows| flows.iter().find(|it| it["name"] == flow));
    let at_us = |key: &str| planned.and_then(|flow| flow[key].as_i64());
    let (Some(start_us), Some(duration_us)) = (at_us("start_us"), at_us("duration_us")) else { return true };
    let window_us = run.manifest.window_start_us..run.manifest.window_end_us;
    start_us < window_us.end && start_us.saturating_add(duration_us) > window_us.start
}

fn flow_row(title: &str, flows: &[(String, f64)], focus: Option<&str>, unit: Unit) -> Row {
    let dot = |(flow, bps): &(String, f64)| Dot {
        kind: if focus == Some(flow) { FOCUS_FLOW } else { OTHER_FLOW },
        value: bps / unit.factor,
        hint: format!("{flow}: {}", unit.text(*bps)),
    };
    let said = |(flow, bps): &(String, f64)| format!("{flow} {}", unit.number(*bps));
    // There is room for two names beside the label.
    let note = match flows {
        [first, others @ ..] if others.len() > 1 => {
            let sum: f64 = others.iter().map(|(_, bps)| bps).sum();
            format!("{} · {} others {}", said(first), others.len(), unit.number(sum))
        }
        few => few.iter().map(said).collect::<Vec<_>>().join(" · "),
    };
    Row { label: title.to_owned(), note, dots: flows.iter().map(dot).collect() }
}

/// A dot for every run of a case that has the figure.
fn repeats(case: &Case, unit: Unit, figure: impl Fn(&RunManifest) -> Option<f64>) -> Vec<Dot> {
    let repeat = |run: &RunDirectory| {
        let value = figure(&run.manifest).filter(|value| value.is_finite())?;
        let valid = run.manifest.status == RunStatus::Done;
        let kind = if valid { REPEAT } else { NOT_VALID };
        let state = if valid { "" } else { ", not valid" };
        let hint = format!("repeat {}{state}: {}", run.manifest.repeat, unit.text(value));
        Some(Dot { kind, value: value / unit.factor, hint })
    };
    case.runs.iter().filter_map(repeat).collect()
}

fn dot(unit: Unit, kind: usize, value: f64) -> Dot {
    Dot { kind, value: value / unit.factor, hint: format!("{}: {}", KINDS[kind].label, unit.text(value)) }
}

const OTHER_STREAM: usize = 0;
const FOCUS_STREAM: usize = 1;
const EQUAL_SHARE: usize = 2;

const SHARE_KINDS: [Kind; 3] = [
    Kind { mark: Mark::Ring, class: "muted", label: "another stream" },
    Kind { mark: Mark::Disc, class: "c0", label: "focus flow" },
    Kind { mark: Mark::Bar, class: "c2", label: "equal share" },
];

/// What each stream got within each case's representative run; nothing where no stream shares with another.
pub fn shares(experiment: &Experiment, cases: &[Vec<StreamGoodput>], id: &str) -> Option<Figure> {
    let greatest = cases.iter().flatten().map(|stream| stream.goodput_bps).fold(0.0, f64::max);
    let unit = Quantity::Rate.unit(greatest);
    let rows = experiment.summary.cases.iter().zip(cases);
    // Marks of a run that does not count would look like those of one that does.
    let row = |(case, streams): (&CaseSummary, &Vec<StreamGoodput>)| match case.done {
        0 => Row { label: case.title.clone(), note: nothing(case), dots: Vec::new() },
        _ => share_row(&case.title, streams, experiment.focus(), unit),
    };
    let rows: Vec<Row> = rows.map(row).collect();
    let words = rows.iter().map(|row| format!("{}: {}. ", row.label, row.note)).collect();
    let chart = DotChart {
        id: id.to_owned(),
        title: format!("Goodput of each stream by case, {}", unit.name),
        description: words,
        kinds: SHARE_KINDS.to_vec(),
        rows,
    };
    cases.iter().any(|streams| streams.len() > 1).then(|| chart.draw())
}

fn share_row(title: &str, streams: &[StreamGoodput], focus: Option<&str>, unit: Unit) -> Row {
    let dot = |stream: &StreamGoodput| {
        let kind = if focus.is_none_or(|f| f == stream.flow) { FOCUS_STREAM } else { OTHER_STREAM };
        let hint = format!("{} stream {}: {}", stream.flow, stream.stream, unit.text(stream.goodput_bps));
        Dot { kind, value: stream.goodput_bps / unit.factor, hint }
    };
    let mut dots: Vec<Dot> = streams.iter().map(dot).collect();
    if let Some(jain) = jain(streams).filter(|_| streams.len() > 1) {
        let mean = streams.iter().map(|s| s.goodput_bps).sum::<f64>() / streams.len() as f64;
        dots.push(Dot {
            kind: EQUAL_SHARE,
            value: mean / unit.factor,
            hint: format!("equal share: {}", unit.text(mean)),
        });
        dots.sort_by_key(|dot| if dot.kind == EQUAL_SHARE { 0 } else { dot.kind + 1 });
        return Row { label: title.to_owned(), note: format!("Jain {}", number(jain)), dots };
    }
    let note = if streams.is_empty() { "no samples" } else { "alone" };
    Row { label: title.to_owned(), note: note.to_owned(), dots }
}

/// Jain, Chiu and Hawe 1984: square of the sum over n times the sum of squares.
fn jain(streams: &[StreamGoodput]) -> Option<f64> {
    let sum: f64 = streams.iter().map(|s| s.goodput_bps).sum();
    let squares: f64 = streams.iter().map(|s| s.goodput_bps * s.goodput_bps).sum();
    (squares > 0.0).then(|| sum * sum / (streams.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_flows_the_first_is_named_and_the_others_are_counted() {
        let unit = Quantity::Rate.unit(1e7);
        let flows = [("f", 5e6), ("a", 2e6), ("b", 1e6)].map(|(flow, bps)| (flow.to_owned(), bps));
        assert_eq!(flow_row("t", &flows, Some("f"), unit).note, "f 5.00 · 2 others 3.00");
        assert_eq!(flow_row("t", &flows[..2], Some("f"), unit).note, "f 5.00 · a 2.00");
    }

    #[test]
    fn jains_index_is_one_for_equals_and_one_over_n_for_one_that_has_all() {
        let stream = |goodput_bps| StreamGoodput { flow: "f".into(), stream: 0, goodput_bps };
        assert_eq!(jain(&[stream(5.0), stream(5.0)]), Some(1.0));
        assert_eq!(jain(&[stream(5.0), stream(0.0), stream(0.0), stream(0.0)]), Some(0.25));
        assert_eq!(jain(&[stream(0.0)]), None);
    }
}
