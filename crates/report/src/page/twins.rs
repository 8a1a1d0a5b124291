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
         scatter. Then either this machine held the emulation up, or the simulator lacks what made the difference. Where more \
         simulations come as far, the last column says so (~): under other seeds, or with hosts held up as the run's were. Runs \
         that nothing but their twin speaks against are in these medians, too.</p>{left_out}\
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
    let numbers = ["Emulated", "Simulated", "Emulated over simulated"].map(column_heading).concat();
    let why = if is_any_explained(figures) { text_heading("What explains it") } else { String::new() };
    let head = text + &numbers + &why;
    let rows: String = figures.iter().map(|beside| row(beside, !why.is_empty())).collect();
    scrolling("Medians over the repeats with twins", &head, &rows)
}

fn is_any_explained(figures: &[&Beside]) -> bool {
    figures.iter().any(|beside| beside.explained.is_some())
}

fn row(beside: &Beside, with_why: bool) -> String {
    let unit = Quantity::of_metric(&beside.metric).unit(beside.emulated.abs().max(beside.simulated.abs()));
    let interval = beside
        .interval
        .map_or_else(String::new, |[least, greatest]| format!("<small>{least:.2} – {greatest:.2}</small>"));
    let ratio = beside.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
    let why = beside.explained.as_ref().map_or_else(
        || "! not known".to_owned(),
        |found| {
            let (least, greatest) = (unit.text(found.least), unit.text(found.greatest));
            format!("~ simulations come to {least} to {greatest} {}", found.by.text())
        },
    );
    let why = if with_why { format!("<td class=\"text\">{why}</td>") } else { String::new() };
    format!(
        "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{ratio}{interval}</td>{why}</tr>",
        escape(&beside.case),
        escape(&beside.metric),
        escape(&beside.of),
        unit.text(beside.emulated),
        unit.text(beside.simulated),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_schema::run::{Cause, Explanation};

    #[test]
    fn what_explains_a_figure_stands_beside_it_and_the_column_is_there_for_that_alone() {
        let open = Beside {
            case: "short".into(),
            metric: "goodput_bps".into(),
            of: "f".into(),
            emulated: 27.7e6,
            simulated: 67e6,
            ratio: Some(0.41),
            interval: None,
            runs: 1,
            is_far: true,
            explained: None,
        };
        let explained = Some(Explanation { by: Cause::HoldUps, least: 24e6, greatest: 48e6 });
        let known = Beside { explained, ..open.clone() };
        assert!(!table(&[&open]).contains("What explains it"));
        let both = table(&[&open, &known]);
        assert!(both.contains("What explains it"), "{both}");
        assert!(
            both.contains(
                "~ simulations come to 24.0 Mbit/s to 48.0 Mbit/s with the machine's hold-ups</td>"
            ),
            "{both}"
        );
        assert!(both.contains("<td class=\"text\">! not known</td>"), "{both}");
    }
}
