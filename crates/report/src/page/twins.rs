//! Emulated figures beside what the simulator makes of the same plans: those that are apart at once, the others folded
//! away.

use super::tables::{column_heading, scrolling, text_heading};
use crate::{load::Experiment, plot::svg::escape, quantity::Quantity};
use longfat_schema::run::{Beside, beside};
use std::collections::BTreeSet;

/// The section; empty where no run has a twin.
pub fn section(experiment: &Experiment) -> String {
    let twins = beside(experiment.runs().map(|run| &run.manifest));
    let left_out = left_out(experiment);
    if twins.is_empty() && left_out.is_empty() {
        return String::new();
    }
    let (far, near): (Vec<&Beside>, Vec<&Beside>) = twins.iter().partition(|beside| beside.is_far);
    let agreeing = if near.is_empty() {
        String::new()
    } else {
        format!("<details><summary>Figures that agree ({})</summary>{}</details>", near.len(), table(&near))
    };
    let apart = if far.is_empty() { String::new() } else { table(&far) };
    format!(
        "<section><h2>Beside the simulator: {} of {} figures agree</h2><p class=\"note\">The same plans, simulated. A figure is \
         apart when the medians differ by more than a tenth (counts: a fifth, and more than 3) and by more than the repeats \
         scatter. Then either this machine held the emulation up, or the simulator lacks what made the difference.</p>{left_out}\
         {apart}{agreeing}</section>",
        near.len(),
        twins.len(),
    )
}

/// What the simulator says it leaves out.
fn left_out(experiment: &Experiment) -> String {
    let twins = experiment.runs().filter_map(|run| run.manifest.twin.as_ref());
    let said: BTreeSet<&str> = twins.flat_map(|twin| twin.left_out.iter().map(String::as_str)).collect();
    let line = |what: &&str| format!("<li>{}</li>", escape(what));
    let lines: String = said.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("<p>Not simulated:</p><ul>{lines}</ul>") }
}

fn table(figures: &[&Beside]) -> String {
    let text = ["Case", "Figure", "Of"].map(text_heading).concat();
    let head = text + &["Emulated", "Simulated", "Emulated over simulated"].map(column_heading).concat();
    let rows: String = figures.iter().map(|beside| row(beside)).collect();
    scrolling("Medians over the valid repeats", &head, &rows)
}

fn row(beside: &Beside) -> String {
    let unit = Quantity::of_metric(&beside.metric).unit(beside.emulated.abs().max(beside.simulated.abs()));
    let interval = beside
        .interval
        .map_or_else(String::new, |[least, greatest]| format!("<small>{least:.2} – {greatest:.2}</small>"));
    let ratio = beside.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{ratio}{interval}</td></tr>",
        escape(&beside.case),
        escape(&beside.metric),
        escape(&beside.of),
        unit.text(beside.emulated),
        unit.text(beside.simulated),
    )
}
