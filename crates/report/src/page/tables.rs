//! The summary table, the comparison of several results, and what the columns mean.

use crate::{
    figures::ExperimentFigures,
    load::Experiment,
    plot::svg::escape,
    quantity::Quantity,
    summary::{COLUMNS, CaseSummary, Column, ShownCell, ShownColumn, Summary},
};
use longfat_schema::{own_time::Dilation, run::Spread};

/// A table that scrolls within itself and can be scrolled from the keyboard. `caption`, `head` and `body` are HTML.
pub fn scrolling(caption: &str, head: &str, body: &str) -> String {
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table><caption><span>{caption}</span>\
         </caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
}

/// A per-cent sign does not stand alone in a line.
pub fn unbroken(text: &str) -> String {
    text.replace(" %", "\u{a0}%")
}

/// Long words of headings, with the place where they may be cut: columns are as narrow as the figures below them.
const CUT: [(&str, &str); 3] = [
    ("Retransmitted", "Retrans\u{ad}mitted"),
    ("Utilisation", "Utili\u{ad}sation"),
    ("Confidence", "Confi\u{ad}dence"),
];

/// A heading as HTML whose long words may be cut.
fn cuttable(heading: &str) -> String {
    CUT.iter().fold(unbroken(&escape(heading)), |text, (word, cut)| text.replace(word, cut))
}

/// A heading of a column.
pub fn column_heading(text: &str) -> String {
    format!("<th scope=\"col\">{}</th>", escape(text))
}

/// A heading of a column of text.
pub fn text_heading(text: &str) -> String {
    format!("<th scope=\"col\" class=\"text\">{}</th>", escape(text))
}

/// Cases by metrics.
pub fn summary(experiment: &Experiment) -> String {
    let summary = &experiment.summary;
    let columns = summary.shown();
    let with_published = |c: &ShownColumn| c.cells.iter().any(|cell| !cell.published.is_empty());
    let heads = columns.iter().map(|column| {
        let title = escape(column.meaning);
        let published = if with_published(column) { column_heading("published") } else { String::new() };
        format!("<th scope=\"col\" title=\"{title}\">{}</th>{published}", cuttable(&column.heading))
    });
    let head = column_heading("Case") + &column_heading("Valid runs") + &heads.collect::<String>();
    let row = |(index, case): (usize, &CaseSummary)| {
        let cells = columns.iter().map(|column| summary_cells(&column.cells[index], with_published(column)));
        format!(
            "<tr><th scope=\"row\">{}</th><td>{} of {}{}</td>{}</tr>",
            escape(&case.title),
            case.done,
            case.runs(),
            slower(case.dilation),
            cells.collect::<String>(),
        )
    };
    let body: String = summary.cases.iter().enumerate().map(row).collect();
    let table = scrolling("Median over the valid repeats; least – greatest beneath", &head, &body);
    format!("<section><h2>Summary{}</h2>{table}{}</section>", of_focus(summary), every_metric(summary))
}

/// Tells that runs were carried out slower than meant; their figures are in the experiment's time all the same.
fn slower(dilation: Dilation) -> String {
    if dilation.is_none() { String::new() } else { format!("<small>{dilation}× slower</small>") }
}

fn of_focus(summary: &Summary) -> String {
    let focus = summary.focus.as_deref();
    focus.map_or(String::new(), |flow| format!(": flow <code>{}</code>", escape(flow)))
}

fn summary_cells(cell: &ShownCell, with_published: bool) -> String {
    // Where the range takes two lines, the dash ends the first.
    let spread = cell.spread.replace(" – ", "\u{a0}– ");
    let spread = if spread.is_empty() { spread } else { format!("<small>{spread}</small>") };
    let median = if cell.median.is_empty() { "–" } else { &cell.median };
    let published = match (with_published, cell.published.as_str()) {
        (false, _) => String::new(),
        (true, "") => "<td class=\"published\">–</td>".to_owned(),
        (true, published) => format!("<td class=\"published\">{published}</td>"),
    };
    format!("<td>{median}{spread}</td>{published}")
}

/// Everything the manifests hold, for what the summary leaves out.
fn every_metric(summary: &Summary) -> String {
    let row = |case: &CaseSummary, figure: &crate::summary::Figure| {
        let stream = figure.stream.map_or(String::new(), |stream| format!(", stream {stream}"));
        let of = if figure.of.is_empty() { "the run" } else { &figure.of };
        format!(
            "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td class=\"text\">{}{stream}</td>{}</tr>",
            escape(&case.title),
            escape(&figure.metric),
            escape(of),
            spread_cells(&figure.metric, &figure.spread),
        )
    };
    let rows = summary.cases.iter().flat_map(|case| case.figures.iter().map(move |figure| row(case, figure)));
    let rows: String = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let text = ["Case", "Metric", "Of"].map(text_heading).concat();
    let head = text + &["Median", "Least", "Greatest", "Repeats"].map(column_heading).concat();
    let table =
        scrolling("Every metric of every flow, stream, link and relay, over the valid repeats", &head, &rows);
    format!("<details><summary>Every metric</summary>{table}</details>")
}

fn spread_cells(metric: &str, spread: &Spread) -> String {
    let unit = Quantity::of_metric(metric).unit(spread.max.abs());
    let cell = |value: f64| format!("<td>{}</td>", unit.text(value));
    format!("{}{}{}<td>{}</td>", cell(spread.median), cell(spread.min), cell(spread.max), spread.count)
}

/// The cases that several results have side by side, one row per result. Empty where there is none.
pub fn comparison(experiments: &[(Experiment, ExperimentFigures)]) -> String {
    let having = |name: &str| {
        let cases = |e: &Experiment| e.summary.cases.iter().any(|case| case.name == name);
        experiments.iter().filter(|(experiment, _)| cases(experiment)).count()
    };
    let mut names: Vec<(&str, &str)> = Vec::new();
    for case in experiments.iter().flat_map(|(experiment, _)| &experiment.summary.cases) {
        if names.iter().all(|(name, _)| *name != case.name) && having(&case.name) > 1 {
            names.push((&case.name, &case.title));
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let shown = |(index, _): &(usize, &Column)| {
        experiments.iter().any(|(e, _)| e.summary.column_unit(*index).is_some())
    };
    let columns: Vec<(usize, &Column)> = COLUMNS.iter().enumerate().filter(shown).collect();
    let heads =
        columns.iter().map(|(_, column)| format!("<th scope=\"col\">{}</th>", cuttable(column.heading)));
    let head = column_heading("Case") + &text_heading("Result") + &heads.collect::<String>();
    let body: String =
        names.iter().map(|(name, title)| compared_case(experiments, name, title, &columns)).collect();
    let table = scrolling("Median over the valid repeats; least – greatest beneath", &head, &body);
    format!("<h3>Cases that several have</h3>{table}")
}

/// Results of one experiment bear the same name: the directory tells them apart.
pub fn result_name(experiment: &Experiment) -> String {
    let directory = experiment.path.file_name().map(|name| name.to_string_lossy().into_owned());
    directory.unwrap_or_else(|| experiment.name.clone())
}

fn compared_case(
    experiments: &[(Experiment, ExperimentFigures)],
    name: &str,
    title: &str,
    columns: &[(usize, &Column)],
) -> String {
    let with_case = |(experiment, _): &'_ (Experiment, ExperimentFigures)| {
        experiment.summary.cases.iter().any(|case| case.name == name)
    };
    let having: Vec<_> = experiments.iter().filter(|e| with_case(e)).collect();
    let rows = having.iter().enumerate().filter_map(|(position, (experiment, _))| {
        let case = experiment.summary.cases.iter().find(|case| case.name == name)?;
        let head = format!("<th scope=\"rowgroup\" rowspan=\"{}\">{}</th>", having.len(), escape(title));
        let head = if position == 0 { head } else { String::new() };
        let cells: String =
            columns.iter().map(|(index, column)| compared_cell(case, *index, column)).collect();
        Some(format!("<tr>{head}<td class=\"text\">{}</td>{cells}</tr>", escape(&result_name(experiment))))
    });
    rows.collect()
}

fn compared_cell(case: &CaseSummary, index: usize, column: &Column) -> String {
    let Some(spread) = &case.columns[index] else { return "<td>–</td>".to_owned() };
    let unit = Quantity::of_metric(column.metric).unit(spread.median);
    let range = format!("<small>{}\u{a0}– {}</small>", unit.number(spread.min), unit.number(spread.max));
    format!("<td>{}{}</td>", unit.text(spread.median), if spread.count > 1 { range } else { String::new() })
}

/// What the columns mean that these summaries show.
pub fn foot<'a>(experiments: impl IntoIterator<Item = &'a Experiment>) -> String {
    let shown: Vec<ShownColumn> = experiments.into_iter().flat_map(|own| own.summary.shown()).collect();
    let is_shown = |column: &&Column| shown.iter().any(|shown| shown.meaning == column.meaning);
    let term = |c: &Column| format!("<dt>{}</dt><dd>{}</dd>", escape(c.heading), escape(c.meaning));
    let terms: String = COLUMNS.iter().filter(is_shown).map(term).collect();
    format!("<section><h2>What the columns mean</h2><dl class=\"terms\">{terms}</dl></section>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_that_were_carried_out_slower_say_so_and_others_say_nothing() {
        assert_eq!(slower(Dilation::new(4).unwrap_or_default()), "<small>4× slower</small>");
        assert_eq!(slower(Dilation::NONE), "");
    }
}
