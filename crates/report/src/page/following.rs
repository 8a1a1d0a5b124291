//! What following a link brought, cell by cell, and where it brought nothing: for experiments that run the same thing
//! with and without a host that follows (docs/design/mobility.md).

use super::tables::{column_heading, scrolling, text_heading};
use crate::{
    load::{Case, Experiment},
    plot::svg::escape,
    quantity::Quantity,
    summary::CaseSummary,
};
use longfat_schema::{
    metric,
    run::{AxisPoint, Spread},
};

/// What is compared, of the focus flow.
const COMPARED: [&str; 5] =
    ["goodput_bps", "rise_us", "retransmitted_segments", "timeouts", "spurious_timeouts"];
/// Differences up to this share of the unaided figure are none.
const MARGIN: f64 = 0.02;
/// What a pair can come to, the best first.
const BEST_FIRST: [&str; 4] = ["helps", "makes no difference", "helps and harms", "harms"];

/// One metric of a cell, with following against without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Better,
    Worse,
    /// Within the margin, or some repeat of the one side lies among those of the other.
    None,
}

/// A cell that is followed, and the one that is the same but for that.
struct Pair<'a> {
    place: String,
    how: &'a str,
    alone: &'a CaseSummary,
    followed: &'a CaseSummary,
}

/// The section; empty where nothing is followed, or nothing stands against it.
pub fn section(experiment: &Experiment) -> String {
    let (Some(focus), pairs) = (experiment.focus(), pairs(experiment)) else { return String::new() };
    if pairs.is_empty() {
        return String::new();
    }
    let rows: String = pairs.iter().map(|pair| row(pair, focus)).collect();
    let heads = COMPARED.iter().map(|name| column_heading(metric::heading(name)));
    let head =
        ["Cell", "How"].map(text_heading).concat() + &heads.collect::<String>() + &text_heading("Following");
    let table = scrolling("Medians over the valid repeats, without → with following", &head, &rows);
    format!(
        "<section><h2>With and without following</h2><p>{}</p><p class=\"note\">A figure is better or worse when the \
         medians differ by more than {:.0}\u{a0}% and no repeat of one side lies among those of the other.</p>{table}</section>",
        escape(&helped(&pairs, focus)),
        MARGIN * 100.0,
    )
}

/// What following comes to in each cell, by the best of its ways, in words.
fn helped(pairs: &[Pair<'_>], focus: &str) -> String {
    let mut places: Vec<&str> = Vec::new();
    for pair in pairs {
        if !places.contains(&pair.place.as_str()) {
            places.push(&pair.place);
        }
    }
    let any =
        |place: &str, is: &dyn Fn(&Pair<'_>) -> bool| pairs.iter().filter(|pair| pair.place == place).any(is);
    let is_judged = |place: &&str| any(place, &|pair| changes(pair, focus).is_some());
    let (judged, open): (Vec<&str>, Vec<&str>) = places.into_iter().partition(is_judged);
    let best = |place: &str| {
        BEST_FIRST
            .into_iter()
            .find(|word| any(place, &|pair| verdict(pair, focus) == *word))
            .unwrap_or_default()
    };
    let of = |word: &str| judged.iter().copied().filter(|place| best(place) == word).collect::<Vec<&str>>();
    let mut said =
        format!("Of {} that can be judged, following helps in {}", cells(judged.len()), listed(&of("helps")));
    for word in &BEST_FIRST[1..] {
        let places = of(word);
        if !places.is_empty() {
            said.push_str(&format!("; {word} in {}", listed(&places)));
        }
    }
    said.push('.');
    if !open.is_empty() {
        said.push_str(&format!(" Without valid runs on both sides: {}.", open.join("; ")));
    }
    said
}

fn cells(count: usize) -> String {
    if count == 1 { "1 cell".to_owned() } else { format!("{count} cells") }
}

/// How many, and which.
fn listed(places: &[&str]) -> String {
    if places.is_empty() { "none".to_owned() } else { format!("{} ({})", places.len(), places.join("; ")) }
}

/// What a pair came to; `helps` when something is better and nothing worse.
fn verdict(pair: &Pair<'_>, focus: &str) -> &'static str {
    let Some(changes) = changes(pair, focus) else { return "not judged" };
    match (changes.contains(&Change::Better), changes.contains(&Change::Worse)) {
        (true, false) => "helps",
        (true, true) => "helps and harms",
        (false, true) => "harms",
        (false, false) => "makes no difference",
    }
}

/// Changes between the two sides; `None` without a figure that both have.
fn changes(pair: &Pair<'_>, focus: &str) -> Option<Vec<Change>> {
    let of = |name: &&str| {
        let both = spread(pair.alone, name, focus).zip(spread(pair.followed, name, focus));
        both.map(|(alone, followed)| change(alone, followed, metric::more_is_better(name)))
    };
    let found: Vec<Change> = COMPARED.iter().filter_map(of).collect();
    (!found.is_empty()).then_some(found)
}

fn change(alone: &Spread, followed: &Spread, more_is_better: bool) -> Change {
    let apart = followed.min > alone.max || followed.max < alone.min;
    let differs = (followed.median - alone.median).abs() > MARGIN * alone.median.abs();
    match (apart && differs, (followed.median > alone.median) == more_is_better) {
        (false, _) => Change::None,
        (true, true) => Change::Better,
        (true, false) => Change::Worse,
    }
}

fn spread<'a>(case: &'a CaseSummary, metric: &str, focus: &str) -> Option<&'a Spread> {
    let is_it = |figure: &&crate::summary::Figure| {
        figure.metric == metric && figure.of == focus && figure.stream.is_none()
    };
    case.figures.iter().find(is_it).map(|figure| &figure.spread)
}

fn row(pair: &Pair<'_>, focus: &str) -> String {
    let cell = |name: &&str| {
        let both = spread(pair.alone, name, focus).zip(spread(pair.followed, name, focus));
        let Some((alone, followed)) = both else { return "<td>–</td>".to_owned() };
        let class = match change(alone, followed, metric::more_is_better(name)) {
            Change::Better => " class=\"better\"",
            Change::Worse => " class=\"worse\"",
            Change::None => "",
        };
        let unit = Quantity::of_metric(name).unit(alone.median.max(followed.median));
        let (alone, followed) = (unit.number(alone.median), unit.text(followed.median));
        format!("<td{class}>{alone} → {followed}</td>")
    };
    format!(
        "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td>{}<td class=\"text\">{}</td></tr>",
        escape(&pair.place),
        escape(pair.how),
        COMPARED.iter().map(cell).collect::<String>(),
        verdict(pair, focus),
    )
}

/// Every cell with a host that follows and its partner: without one, and at the same place on all axes but one. Cells
/// without a run are neither.
fn pairs(experiment: &Experiment) -> Vec<Pair<'_>> {
    let cases = experiment.cases.iter().zip(&experiment.summary.cases);
    let known: Vec<_> =
        cases.filter_map(|(case, summary)| Some((is_followed(case)?, case, summary))).collect();
    let of = |followed: bool| known.iter().filter(move |known| known.0 == followed);
    let mut found = Vec::new();
    for (_, alone, summary) in of(false) {
        for (_, case, followed) in of(true) {
            let Some(axis) = only_difference(&alone.info.axes, &case.info.axes) else { continue };
            let others = alone.info.axes.iter().filter(|at| at.axis != axis.axis);
            let place: Vec<&str> = others.map(|at| at.label.as_str()).collect();
            // Of an experiment that sweeps nothing else there is one cell, known by its side without following.
            let place = if place.is_empty() { alone.info.name.clone() } else { place.join(", ") };
            found.push(Pair { place, how: &axis.label, alone: summary, followed });
        }
    }
    found
}

/// Whether hosts of the case follow a link; `None` as long as no run of the case was made.
fn is_followed(case: &Case) -> Option<bool> {
    let plan = case.runs.first()?.plan::<serde_json::Value>().ok()?;
    Some(
        plan.get("follows").and_then(|follows| follows.as_array()).is_some_and(|follows| !follows.is_empty()),
    )
}

/// The one axis on which the second stands elsewhere than the first.
fn only_difference<'a>(one: &[AxisPoint], other: &'a [AxisPoint]) -> Option<&'a AxisPoint> {
    let same_axes = one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.axis == b.axis);
    let mut differing = one.iter().zip(other).filter(|(a, b)| a.label != b.label).map(|(_, b)| b);
    let only = differing.next().filter(|_| same_axes)?;
    differing.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Figure;

    fn case(figures: &[(&str, &[f64])]) -> CaseSummary {
        let figure = |(metric, values): &(&str, &[f64])| Figure {
            metric: (*metric).to_owned(),
            of: "focus".to_owned(),
            stream: None,
            spread: Spread::of(values.iter().copied()).unwrap(),
        };
        CaseSummary {
            dilation: Default::default(),
            name: String::new(),
            title: String::new(),
            done: 1,
            invalid: 0,
            unexplained: 0,
            failed: 0,
            columns: Vec::new(),
            published: Vec::new(),
            figures: figures.iter().map(figure).collect(),
        }
    }

    fn said(place: &str, alone: &[(&str, &[f64])], followed: &[(&str, &[f64])]) -> (&'static str, String) {
        let (alone, followed) = (case(alone), case(followed));
        let pair = Pair { place: place.to_owned(), how: "restore", alone: &alone, followed: &followed };
        (verdict(&pair, "focus"), helped(&[pair], "focus"))
    }

    #[test]
    fn following_helps_where_something_is_better_and_nothing_worse() {
        let (verdict, text) = said(
            "narrow, reno",
            &[("goodput_bps", &[10e6]), ("timeouts", &[5.0])],
            &[("goodput_bps", &[18e6]), ("timeouts", &[5.0])],
        );
        assert_eq!(verdict, "helps");
        assert_eq!(text, "Of 1 cell that can be judged, following helps in 1 (narrow, reno).");
    }

    #[test]
    fn where_no_policy_helps_the_page_says_so_and_names_the_cell() {
        let within_the_margin = said("back", &[("goodput_bps", &[10e6])], &[("goodput_bps", &[10.1e6])]);
        assert_eq!(within_the_margin.0, "makes no difference");
        assert!(
            within_the_margin.1.ends_with("following helps in none; makes no difference in 1 (back)."),
            "{}",
            within_the_margin.1
        );
        let among = said("back", &[("rise_us", &[1e6, 2e6, 9e6])], &[("rise_us", &[1.5e6])]);
        assert_eq!(among.0, "makes no difference", "a repeat of one side lies among those of the other");
        let mixed = said(
            "back",
            &[("rise_us", &[1e6]), ("retransmitted_segments", &[9.0])],
            &[("rise_us", &[2e6]), ("retransmitted_segments", &[3.0])],
        );
        assert_eq!(mixed.0, "helps and harms");
        assert!(mixed.1.ends_with("helps in none; helps and harms in 1 (back)."), "{}", mixed.1);
        let (open, text) = said("back", &[], &[("rise_us", &[1e6])]);
        assert_eq!(open, "not judged");
        assert!(text.ends_with("Without valid runs on both sides: back."), "{text}");
    }

    #[test]
    fn a_policy_that_helps_is_enough() {
        let alone = case(&[("rise_us", &[9.0])]);
        let (slow, fast) = (case(&[("rise_us", &[9.0])]), case(&[("rise_us", &[1.0])]));
        let pair = |how, followed| Pair { place: "back".to_owned(), how, alone: &alone, followed };
        let text = helped(&[pair("restore", &slow), pair("scale", &fast)], "focus");
        assert_eq!(text, "Of 1 cell that can be judged, following helps in 1 (back).");
    }

    #[test]
    fn partners_differ_on_one_axis() {
        let at =
            |cc: &str, follow: &str| vec![AxisPoint::named("cc", cc), AxisPoint::named("follow", follow)];
        let place = at("reno", "restore");
        assert_eq!(only_difference(&at("reno", "alone"), &place), Some(&place[1]));
        assert_eq!(only_difference(&at("cubic", "alone"), &place), None);
        assert_eq!(only_difference(&at("reno", "restore"), &place), None);
    }
}
