//! The page of a comparison: what differs first, then figures side by side.

use super::{CONFIDENCE, CaseComparison, Comparison, Difference, Figure, further};
use crate::{
    figures::{Panel, draw_beside},
    load::Experiment,
    page::{
        document, panel,
        tables::{column_heading, scrolling, text_heading},
    },
    plot::svg::escape,
    quantity::{Quantity, of_metric, utc},
};
use longfat_schema::run::Spread;

/// Cases whose figures are drawn: a page of more would be too large to open.
const CASES_DRAWN: usize = 24;
/// Differences up to this share are real where repeats scatter less, and seldom what a reader looks for.
const SLIGHT: f64 = 0.01;

/// The whole page. The tables of the runs that stand for their cases are read, and drawn.
pub fn html(comparison: &Comparison, experiments: &[Experiment; 2]) -> String {
    document("Two results compared", &sections(comparison, experiments))
}

/// What stands on it.
pub(crate) fn sections(comparison: &Comparison, experiments: &[Experiment; 2]) -> String {
    let header = header(experiments, comparison);
    if comparison.cases.is_empty() {
        return header + "<p>The two have no case in common: there is nothing to compare.</p>";
    }
    let sections = [
        header,
        beyond(comparison),
        parameters(comparison),
        furthest_first(comparison).into_iter().map(case_table).collect(),
        side_by_side(comparison, experiments),
    ];
    sections.concat()
}

fn header(experiments: &[Experiment; 2], comparison: &Comparison) -> String {
    let line = |side: usize| {
        let experiment = &experiments[side];
        let when = experiment.started_unix_ms().map(utc).unwrap_or_default();
        let backend = experiment.runs().next().map_or("", |run| run.manifest.backend.as_str());
        format!(
            "<p class=\"meta\"><b>{}</b> <code>{}</code> · {} · {} · {when}</p>",
            ["A", "B"][side],
            escape(&comparison.sides[side]),
            escape(&experiment.title),
            escape(backend),
        )
    };
    let only = ["A", "B"].iter().zip(&comparison.unmatched).filter(|(_, cases)| !cases.is_empty());
    let only: String = only
        .map(|(side, cases)| format!("<p class=\"note\">Only in {side}: {}</p>", escape(&cases.join(", "))))
        .collect();
    format!("<header><h1>Two results compared</h1>{}{}{only}</header>", line(0), line(1))
}

/// Every figure of every case that differs by more than its spread.
fn beyond(comparison: &Comparison) -> String {
    let all = || {
        furthest_first(comparison).into_iter().flat_map(|case| case.figures.iter().map(move |f| (case, f)))
    };
    let told = all().filter(|(_, figure)| figure.beyond_spread.is_some()).count();
    let beyond = || all().filter(|(_, figure)| figure.beyond_spread == Some(true));
    let (slight, mut clear): (Vec<_>, Vec<_>) = beyond().partition(|(_, figure)| is_slight(figure));
    // Cases stay together: the sort within each of them is by distance.
    clear.chunk_by_mut(|one, other| std::ptr::eq(one.0, other.0)).for_each(|of_case| {
        of_case.sort_by(|(_, a), (_, b)| further(rank(b), rank(a)));
    });
    let untold = all().count() - told;
    let note = format!(
        "<p class=\"note\">{} of {told} figures differ by more than the spread of their repeats explains ({:.0}\u{a0}% bootstrap \
         intervals; of figures that are alike, one in ten seems to with three repeats, one in twenty at most with five).{}</p>",
        clear.len() + slight.len(),
        CONFIDENCE * 100.0,
        if untold > 0 {
            format!(
                " Of {untold} more nothing can be told: one side has fewer than three valid runs with them."
            )
        } else {
            String::new()
        },
    );
    let lead = clear.first().map_or_else(String::new, |(case, figure)| lead(case, figure));
    let clear = by_case("Figures that differ beyond their spread", &clear);
    let folded = match slight.len() {
        0 => String::new(),
        count => format!(
            "<details><summary>{count} of them by {:.0}\u{a0}% or less</summary>{}</details>",
            SLIGHT * 100.0,
            by_case("Figures that differ slightly", &slight)
        ),
    };
    format!("<section><h2>What differs</h2>{lead}{note}{clear}{folded}</section>")
}

fn rank(figure: &Figure) -> (bool, f64) {
    (figure.is_foremost(), figure.distance())
}

/// Cases whose figures are furthest apart first.
fn furthest_first(comparison: &Comparison) -> Vec<&CaseComparison> {
    let mut cases: Vec<&CaseComparison> = comparison.cases.iter().collect();
    cases.sort_by(|a, b| further(b.distance(), a.distance()));
    cases
}

/// The largest difference in words.
fn lead(case: &CaseComparison, figure: &Figure) -> String {
    let side = |side: usize| match &figure.sides[side] {
        Some(spread) => of_metric(&figure.metric, spread.median),
        None => "–".to_owned(),
    };
    let ratio = figure.ratio.map_or_else(String::new, |ratio| format!(", B is {ratio:.3} of A"));
    let of = if figure.of.is_empty() { String::new() } else { format!(" of {}", escape(&figure.of)) };
    format!(
        "<p class=\"lead\">The largest difference: <b>{}</b>{of} in {}: {} in A, {} in B{ratio}.</p>",
        escape(&figure.metric),
        escape(&case.label()),
        side(0),
        side(1),
    )
}

fn is_slight(figure: &Figure) -> bool {
    figure.ratio.is_some_and(|ratio| (ratio - 1.0).abs() <= SLIGHT)
}

/// A table with a heading above the figures of each case.
fn by_case(caption: &str, figures: &[(&CaseComparison, &Figure)]) -> String {
    let of_case = |group: &[(&CaseComparison, &Figure)]| {
        let rows = group.iter().map(|(_, figure)| format!("<tr>{}</tr>", cells(figure)));
        format!(
            "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"5\">{}</th></tr>{}",
            escape(&group[0].0.label()),
            rows.collect::<String>()
        )
    };
    let rows: String = figures.chunk_by(|one, other| std::ptr::eq(one.0, other.0)).map(of_case).collect();
    if rows.is_empty() { rows } else { scrolling(caption, &figure_heads(), &rows) }
}

fn figure_heads() -> String {
    let interval = format!("{:.0}\u{a0}% interval", CONFIDENCE * 100.0);
    let figures = ["A", "B", "B / A", &interval].map(column_heading);
    text_heading("Figure") + &figures.concat()
}

fn cells(figure: &Figure) -> String {
    let side = |spread: &Option<Spread>| match spread {
        None => "<td>–</td>".to_owned(),
        Some(spread) if spread.count == 1 => format!("<td>{}</td>", of_metric(&figure.metric, spread.median)),
        Some(spread) => {
            let unit = Quantity::of_metric(&figure.metric).unit(spread.median.abs());
            let [median, min, max] = [spread.median, spread.min, spread.max].map(|value| unit.number(value));
            format!("<td>{median} {}<small>{min} – {max}</small></td>", unit.name)
        }
    };
    let ratio = figure.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}"));
    let interval = figure.ratio_interval.map_or("–".to_owned(), |[a, b]| format!("{a:.3} – {b:.3}"));
    format!(
        "<th scope=\"row\">{}<small>{}</small></th>{}{}<td>{ratio}</td><td>{interval}</td>",
        escape(&figure.metric),
        escape(if figure.of.is_empty() { "the run" } else { &figure.of }),
        side(&figure.sides[0]),
        side(&figure.sides[1]),
    )
}

fn parameters(comparison: &Comparison) -> String {
    let row = |difference: &Difference| {
        let all = difference.cases.len() == comparison.cases.len();
        let cases = if all { "all".to_owned() } else { difference.cases.join(", ") };
        let value = |side: usize| {
            let value = &difference.values[side];
            format!(
                "<td class=\"text\">{}</td>",
                if value.is_empty() { "–".to_owned() } else { escape(value) }
            )
        };
        format!(
            "<tr><th scope=\"row\">{}</th>{}{}<td class=\"text\">{}</td></tr>",
            escape(&difference.key),
            value(0),
            value(1),
            escape(&cases),
        )
    };
    let rows: String = comparison.parameters.iter().map(row).collect();
    let body = if rows.is_empty() {
        "<p class=\"note\">No parameter differs: of the plans, the programs, the kernels and the hosts.</p>"
            .to_owned()
    } else {
        let heads = ["Parameter", "A", "B", "Cases"].map(text_heading).concat();
        scrolling("Parameters that differ, of all that were resolved", &heads, &rows)
    };
    format!("<section><h2>Parameters</h2>{body}</section>")
}

/// Every figure of a case, folded.
fn case_table(case: &CaseComparison) -> String {
    let row = |figure: &Figure| {
        let mark = match figure.beyond_spread {
            Some(true) => "<span class=\"chip missed\">≠ differs</span>",
            Some(false) => "<span class=\"chip met\">≈ within</span>",
            None => "<span class=\"chip open\">? too few runs</span>",
        };
        format!("<tr>{}<td class=\"text\">{mark}</td></tr>", cells(figure))
    };
    let rows: String = case.figures.iter().map(row).collect();
    let heads = [figure_heads(), text_heading("Beyond spread")].concat();
    let label = escape(&case.label());
    format!(
        "<details><summary>Every figure of {label} ({} and {} valid runs)</summary>{}</details>",
        case.valid[0],
        case.valid[1],
        scrolling(&format!("Figures of {label}"), &heads, &rows),
    )
}

fn side_by_side(comparison: &Comparison, experiments: &[Experiment; 2]) -> String {
    let left_out = comparison.cases.len().saturating_sub(CASES_DRAWN);
    let note = if left_out > 0 {
        format!(
            "<p class=\"note\">The figures of {left_out} more cases are not drawn here; 'longfat report' draws all.</p>"
        )
    } else {
        String::new()
    };
    let drawn = furthest_first(comparison).into_iter().take(CASES_DRAWN).enumerate();
    let cases: String = drawn.map(|(index, case)| pair(index, case, experiments)).collect();
    format!(
        "<section><h2>Side by side</h2><p class=\"note\">The valid repeat with the median goodput on each side: A left (or \
         above), B right (or below). Both sides of a figure have the same axes.</p>{note}</section>{cases}"
    )
}

fn pair(index: usize, case: &CaseComparison, experiments: &[Experiment; 2]) -> String {
    let sides = draw_beside(&[0, 1].map(|side| {
        let experiment = &experiments[side];
        let own = experiment.cases.iter().find(|own| own.info.name == case.names[side])?;
        Some((own, experiment.focus(), format!("c{}s{side}", index + 1)))
    }));
    let panels = [0, 1].map(|side| sides[side].as_ref().map_or(&[][..], |figures| &figures.panels));
    let count = panels[0].len().max(panels[1].len());
    let rows: String = (0..count).map(|row| both(panels.map(|own| own.get(row)))).collect();
    format!(
        "<section class=\"case\"><h3>{}</h3><div class=\"linked\">{rows}</div></section>",
        escape(&case.label())
    )
}

/// One chart of both sides, each with its letter: where the window is narrow they stand beneath each other.
fn both(panels: [Option<&Panel>; 2]) -> String {
    let is_absent = |drawn: &Option<&Panel>| matches!(drawn, Some(Panel::Absent { .. }) | None);
    // What neither side has needs no place.
    if panels.iter().all(is_absent) {
        return String::new();
    }
    let drawn = |side: usize| {
        let none = "<div class=\"absent\">nothing to draw</div>".to_owned();
        format!(
            "<div class=\"side\"><span class=\"letter\">{}</span>{}</div>",
            ["A", "B"][side],
            panels[side].map_or(none, panel)
        )
    };
    format!("<div class=\"pair\">{}{}</div>", drawn(0), drawn(1))
}
