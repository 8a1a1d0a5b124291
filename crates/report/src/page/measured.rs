//! How well connections measured their paths' available bandwidth: cell by cell, and whether their confidence tells.

use super::tables::{column_heading, scrolling, text_heading, unbroken};
use crate::{
    figures::Trust,
    load::Experiment,
    plot::svg::escape,
    quantity::{Quantity, number},
    summary::CaseSummary,
};
use longfat_schema::run::AxisPoint;

/// Errors of a sweep as a table: the last axis across, all others down. Empty without two axes, or without errors.
pub fn cells(experiment: &Experiment) -> String {
    let varying = varying(experiment);
    let Some((across, down)) = varying.split_last().filter(|(_, down)| !down.is_empty()) else {
        return String::new();
    };
    let place =
        |axes: &[AxisPoint], axis: &str| axes.iter().find(|at| at.axis == axis).map(|at| at.label.clone());
    let row_of = |axes: &[AxisPoint]| down.iter().map(|axis| place(axes, axis)).collect::<Option<Vec<_>>>();
    let cases = || experiment.cases.iter().zip(&experiment.summary.cases);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut columns: Vec<String> = Vec::new();
    for (case, _) in cases().filter(|(_, summary)| summary.median("avail_error_ratio").is_some()) {
        push_new(&mut columns, place(&case.info.axes, across));
        push_new(&mut rows, row_of(&case.info.axes));
    }
    if rows.is_empty() {
        return String::new();
    }
    let cell = |row: &Vec<String>, column: &String| {
        let is_it = |axes: &[AxisPoint]| {
            row_of(axes).as_ref() == Some(row) && place(axes, across).as_ref() == Some(column)
        };
        cases()
            .find(|(case, _)| is_it(&case.info.axes))
            .map_or_else(|| "<td>–</td>".to_owned(), |(_, case)| error_cell(case))
    };
    let line = |row: &Vec<String>| {
        let (first, others) = row.split_first().map_or(("", &[][..]), |(first, others)| (first, others));
        let others: String =
            others.iter().map(|at| format!("<td class=\"text\">{}</td>", escape(at))).collect();
        let found: String = columns.iter().map(|column| cell(row, column)).collect();
        format!("<tr><th scope=\"row\">{}</th>{others}{found}</tr>", escape(first))
    };
    let heads = down.iter().map(|axis| text_heading(axis)).collect::<String>();
    let head =
        heads + &columns.iter().map(|label| column_heading(&format!("{across} {label}"))).collect::<String>();
    let table = scrolling(
        "Mean error in per cent of the capacity, median over the valid repeats; beneath it the connection's own confidence",
        &head,
        &rows.iter().map(line).collect::<String>(),
    );
    format!("<section><h2>Error of available bandwidth, cell by cell</h2>{table}</section>")
}

fn push_new<T: PartialEq>(known: &mut Vec<T>, found: Option<T>) {
    known.extend(found.filter(|found| !known.contains(found)).into_iter().collect::<Vec<T>>());
}

/// Axes with more than one value, in the sweep's order.
fn varying(experiment: &Experiment) -> Vec<String> {
    let points = || experiment.cases.iter().flat_map(|case| &case.info.axes);
    let mut axes: Vec<String> = Vec::new();
    points().for_each(|at| push_new(&mut axes, Some(at.axis.clone())));
    let varies = |axis: &String| {
        let mut labels = points().filter(|at| at.axis == *axis).map(|at| &at.label);
        let first = labels.next();
        labels.any(|label| Some(label) != first)
    };
    axes.into_iter().filter(varies).collect()
}

fn error_cell(case: &CaseSummary) -> String {
    let Some(error) = case.median("avail_error_ratio") else { return "<td>–</td>".to_owned() };
    let trust = case.median("avail_confidence_ratio");
    let trust = trust.map_or_else(String::new, |trust| format!("<small>{trust:.2}</small>"));
    format!("<td>{}{trust}</td>", unbroken(&Quantity::Share.unit(0.0).text(error)))
}

/// Error against confidence: the figure, and the same by classes.
pub fn trust(trust: &Trust) -> String {
    let unit = Quantity::Share.unit(0.0);
    let row = |class: &crate::figures::TrustClass| {
        let which = class.below.map_or_else(
            || format!("{:.2} and more", class.from),
            |below| format!("{:.2} to {below:.2}", class.from),
        );
        let mean = class.errors.iter().sum::<f64>() / class.errors.len() as f64;
        let ends = [class.errors.first(), class.errors.last()]
            .map(|end| end.map_or_else(String::new, |end| unit.text(*end)));
        let figures = [class.errors.len().to_string(), unit.text(mean), ends[0].clone(), ends[1].clone()];
        let figures = figures.map(|figure| format!("<td>{}</td>", unbroken(&figure))).concat();
        format!("<tr><th scope=\"row\">{which}</th>{figures}</tr>")
    };
    let head = ["Confidence", "Cases", "Mean error", "Least", "Greatest"].map(column_heading).concat();
    let rows: String = trust.classes.iter().map(row).collect();
    let cases: usize = trust.classes.iter().map(|class| class.errors.len()).sum();
    format!(
        "<section><h2>Whether the confidence tells</h2><div class=\"pair\"><figure>{}<figcaption>A ring is a case: medians over its \
         valid repeats. The rank correlation of error and confidence is {} over {cases} cases; −1 would be a confidence that puts \
         them in order.</figcaption></figure>{}</div></section>",
        trust.figure.inline(),
        number(trust.rank_correlation).replace('-', "−"),
        scrolling("Errors of cases that were trusted alike, in per cent of the capacity", &head, &rows),
    )
}
