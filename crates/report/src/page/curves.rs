//! Metrics over an axis of the sweep: what a reader of a sweep looks for first.

use crate::{
    figures::{Curves, Measure},
    plot::{Figure, svg::escape},
};

/// Figures of goodput that are shown at once; further ones are folded away.
const SHOWN: usize = 6;

/// The section; empty where there is nothing to draw.
pub fn section(curves: Option<&Curves>) -> String {
    let Some(curves) = curves else { return String::new() };
    let is_whole = |measure: &Measure| measure.figures.len() == 1;
    let body = if curves.measures.iter().all(is_whole) {
        beside(&curves.measures)
    } else {
        curves.measures.iter().enumerate().map(|(index, measure)| in_parts(measure, index == 0)).collect()
    };
    format!(
        "<section><h2>Over {}</h2><p class=\"note\">{}</p>{body}</section>",
        escape(&curves.axis),
        escape(&curves.caption),
    )
}

/// One figure of each metric, the first two large.
fn beside(measures: &[Measure]) -> String {
    let drawn =
        |measures: &[Measure]| measures.iter().map(|measure| drawn(&measure.figures)).collect::<String>();
    let (large, small) = measures.split_at(measures.len().min(2));
    let small = match small {
        [] => String::new(),
        _ => format!("<div class=\"panels\">{}</div>", drawn(small)),
    };
    format!("<div class=\"pair\">{}</div>{small}", drawn(large))
}

/// All figures of one metric: goodput at once, of others what unfolds.
fn in_parts(measure: &Measure, is_first: bool) -> String {
    if !is_first {
        return details(measure.heading, &drawn(&measure.figures));
    }
    let (shown, folded) = measure.figures.split_at(measure.figures.len().min(SHOWN));
    let further = format!("{} further figures", folded.len());
    format!("<div class=\"pair\">{}</div>{}", drawn(shown), details(&further, &drawn(folded)))
}

fn details(heading: &str, figures: &str) -> String {
    if figures.is_empty() {
        return String::new();
    }
    format!("<details><summary>{}</summary><div class=\"pair\">{figures}</div></details>", escape(heading))
}

fn drawn(figures: &[Figure]) -> String {
    figures.iter().map(|figure| format!("<figure>{}</figure>", figure.inline())).collect()
}
