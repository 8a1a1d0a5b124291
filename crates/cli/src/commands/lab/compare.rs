//! `longfat lab compare`: two results beside each other.

use super::table;
use crate::{
    fitted::fitted,
    outcome::{Failure, Outcome},
};
use anyhow::Context;
use longfat_lab::show;
use longfat_report::{
    compare::{CONFIDENCE, CaseComparison, Comparison, Figure, Side, compare, html},
    load::Experiment,
};
use longfat_schema::text::printable;
use std::path::{Path, PathBuf};

/// Put two results (or two runs) beside each other: figures case by case, and which parameters differ.
///
/// Figures are medians over the valid repeats, [least – greatest]. A ratio is B over A; its 95 % bootstrap interval
/// stands beside it where both sides have three valid repeats or more. '≠' marks figures that differ by more than the
/// repeats' spread explains. Of figures that are alike, one in ten seems to with three repeats, one in twenty at most
/// with five. Cases are matched by name; where each side has a single one, those two are.
///
/// Exit codes: 0 compared; 1 with --within, a figure differs by more, or not everything was compared; 2 failed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab compare runs/conversion-emulated runs/conversion-sim
  longfat lab compare runs/a/reno-relayed/r1 runs/b/reno-relayed/r1 --all
  longfat lab compare runs/emulated runs/sim --within 10% --metric goodput_bps
  longfat lab compare runs/before runs/after --differing -o compare.html")]
pub struct CompareArgs {
    /// A result or run directory.
    #[arg(value_name = "A")]
    left: PathBuf,
    /// Another result, or a run of one.
    #[arg(value_name = "B")]
    right: PathBuf,
    /// Every figure, not only those that tell most.
    #[arg(long)]
    all: bool,
    /// Only this figure; may be repeated.
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// Only figures that differ by more than their spread.
    #[arg(long)]
    differing: bool,
    /// Also a page with every figure, every parameter that differs, and the runs' charts side by side.
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// End with exit code 1 when a figure that is shown differs by more. Also when a case is on one side only, a case
    /// has no valid run on a side, or no figure is on both.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    within: Option<f64>,
    /// The comparison as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Longest value of a parameter that is shown whole.
const VALUE_CHARS: usize = 48;

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    match number {
        Ok(percent) if percent >= 0.0 => Ok(percent / 100.0),
        _ => Err(format!("'{text}' is no percentage; write it like '10%'")),
    }
}

pub fn run(args: &CompareArgs) -> Outcome {
    args.metric.iter().try_for_each(|metric| known(metric))?;
    if let Some(output) = &args.output {
        crate::kept::refuse_replacing_all_but_a_page("-o", output)?;
    }
    let sides = [Side::open(&args.left)?, Side::open(&args.right)?];
    let damaged = sides.iter().flat_map(|side| &side.damaged);
    damaged.for_each(|manifest| eprintln!("longfat: a run is left out: {}", printable(manifest)));
    let comparison = compare(&sides[0], &sides[1]);
    if comparison.cases.is_empty() {
        return Err(anyhow::anyhow!(
            "the two have no case in common: {} on one side, {} on the other",
            comparison.unmatched[0].join(", "),
            comparison.unmatched[1].join(", ")
        )
        .into());
    }
    if args.json {
        crate::output::print_json(&comparison)?;
    } else {
        let is_shown = |figure: &&Figure| is_shown(figure, args);
        print(&comparison, is_shown, args.within);
    }
    if let Some(output) = &args.output {
        write_page(&comparison, [&args.left, &args.right], output)?;
    }
    judge(&comparison, args)
}

fn write_page(comparison: &Comparison, sides: [&Path; 2], output: &Path) -> anyhow::Result<()> {
    let experiments = [Experiment::open(sides[0])?, Experiment::open(sides[1])?];
    let page = html(comparison, &experiments);
    std::fs::write(output, page).with_context(|| format!("{} could not be written", output.display()))?;
    eprintln!("page: {}", output.display());
    Ok(())
}

fn known(metric: &str) -> anyhow::Result<()> {
    let names = longfat_schema::metric::NAMES;
    if names.contains(&metric) {
        return Ok(());
    }
    Err(anyhow::anyhow!("--metric: {}", longfat_lab::spec::decode::unknown("metric", metric, names)))
}

fn is_shown(figure: &Figure, args: &CompareArgs) -> bool {
    is_asked(figure, args) && (!args.differing || figure.beyond_spread == Some(true))
}

fn is_asked(figure: &Figure, args: &CompareArgs) -> bool {
    match args.metric.as_slice() {
        [] => args.all || args.differing || figure.is_foremost(),
        named => named.contains(&figure.metric),
    }
}

fn judge(comparison: &Comparison, args: &CompareArgs) -> Outcome {
    let Some(share) = args.within else { return Ok(()) };
    let missed = [
        beyond(comparison, args, share),
        unmatched(comparison),
        without_valid_run(comparison),
        nothing_judged(comparison, args),
    ];
    let missed: Vec<String> = missed.into_iter().flatten().collect();
    if missed.is_empty() { Ok(()) } else { Err(Failure::Missed(missed.join("; "))) }
}

/// Which figures differ by more than this share.
fn beyond(comparison: &Comparison, args: &CompareArgs, share: f64) -> Option<String> {
    let shown = |case: &CaseComparison| case.figures.iter().filter(|f| is_shown(f, args)).cloned().collect();
    let figures: Vec<(String, Vec<Figure>)> =
        comparison.cases.iter().map(|case| (case.label(), shown(case))).collect();
    let count: usize = figures.iter().map(|(_, figures)| figures.len()).sum();
    let beyond: Vec<String> = figures
        .iter()
        .flat_map(|(case, figures)| figures.iter().map(move |figure| (case, figure)))
        .filter(|(_, figure)| !figure.is_within(share))
        .map(|(case, figure)| format!("{} of {} in {case}", figure.metric, figure.of))
        .collect();
    let first = beyond.first()?;
    let (differ, percent) = (beyond.len(), (share * 1e6).round() / 1e4);
    Some(format!("{differ} of {count} figures differ by more than {percent} %, first {first}"))
}

/// Which cases have nothing beside them.
fn unmatched(comparison: &Comparison) -> Option<String> {
    let sides = ["A", "B"].iter().zip(&comparison.unmatched).filter(|(_, cases)| !cases.is_empty());
    let only: Vec<String> = sides
        .map(|(side, cases)| format!("{} cases are in {side} only, first {}", cases.len(), cases[0]))
        .collect();
    (!only.is_empty()).then(|| only.join("; "))
}

/// Which cases have figures on one side at most.
fn without_valid_run(comparison: &Comparison) -> Option<String> {
    let of_side = |side: usize| {
        let mut lacking = comparison.cases.iter().filter(|case| case.valid[side] == 0);
        let first = lacking.next()?.label();
        Some(format!(
            "{} cases have no valid run in {}, first {first}",
            1 + lacking.count(),
            ["A", "B"][side]
        ))
    };
    let found: Vec<String> = (0..2).filter_map(of_side).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// Whether there was nothing that could have differed. Of what differs beyond its spread alone (--differing), a figure
/// was judged when its repeats tell whether it does.
fn nothing_judged(comparison: &Comparison, args: &CompareArgs) -> Option<String> {
    let is_judged = |figure: &Figure| {
        is_asked(figure, args)
            && figure.sides.iter().all(Option::is_some)
            && (!args.differing || figure.beyond_spread.is_some())
    };
    let judged = comparison.cases.iter().flat_map(|case| &case.figures).any(is_judged);
    (!judged).then(|| {
        "no figure could be judged: none of those asked for has valid runs enough on both sides".to_owned()
    })
}

/// Figures that are to be shown, case by case, what only one side has, and every parameter that differs.
pub fn print(comparison: &Comparison, is_shown: impl Fn(&&Figure) -> bool, within: Option<f64>) {
    println!("A: {}\nB: {}\n", comparison.sides[0], comparison.sides[1]);
    for case in &comparison.cases {
        let shown: Vec<&Figure> = case.figures.iter().filter(&is_shown).collect();
        println!("{} ({} and {} valid runs)", case.label(), case.valid[0], case.valid[1]);
        println!("{}\n", fitted(figures(&shown, within), &[5]));
    }
    for (side, cases) in ["A", "B"].iter().zip(&comparison.unmatched).filter(|(_, cases)| !cases.is_empty()) {
        println!("Only in {side}: {}", cases.join(", "));
    }
    print_parameters(comparison);
}

/// Figures beside each other, those that differ marked.
fn figures(shown: &[&Figure], within: Option<f64>) -> comfy_table::Table {
    let interval = format!("{:.0} % interval", CONFIDENCE * 100.0);
    let mut table = table::table(&["figure", "of", "A", "B", "B / A", &interval, ""]);
    table::align_right(&mut table, 2..6);
    for figure in shown {
        let none = || "–".to_owned();
        let side = |side: usize| {
            figure.sides[side].as_ref().map_or_else(none, |s| show::spread_of(&figure.metric, s))
        };
        let ratio = figure.ratio.map_or_else(none, |ratio| format!("{ratio:.3}"));
        let interval = figure.ratio_interval.map_or_else(none, |[a, b]| format!("{a:.3} – {b:.3}"));
        let beyond = within.is_some_and(|share| !figure.is_within(share));
        let mark = [("≠", figure.beyond_spread == Some(true)), ("!", beyond)];
        let mark: String = mark.iter().filter(|(_, is)| *is).map(|(mark, _)| *mark).collect();
        table.add_row([figure.metric.clone(), figure.of.clone(), side(0), side(1), ratio, interval, mark]);
    }
    table
}

fn print_parameters(comparison: &Comparison) {
    if comparison.parameters.is_empty() {
        println!("No parameter differs.");
        return;
    }
    println!("Parameters that differ");
    let mut table = table::table(&["parameter", "A", "B", "cases"]);
    for difference in &comparison.parameters {
        let [left, right] = &difference.values;
        let all = difference.cases.len() == comparison.cases.len();
        let cases = if all { "all".to_owned() } else { difference.cases.join(", ") };
        table.add_row([difference.key.clone(), in_short(left), in_short(right), cases]);
    }
    println!("{}", fitted(table, &[]));
}

fn in_short(value: &str) -> String {
    match value.chars().count() {
        0 => "–".to_owned(),
        1..=VALUE_CHARS => value.to_owned(),
        _ => value.chars().take(VALUE_CHARS).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_schema::run::Spread;

    fn figure(metric: &str, medians: [Option<f64>; 2], beyond_spread: Option<bool>) -> Figure {
        let spread = |median: f64| Spread { median, min: median, max: median, count: 1 };
        Figure {
            metric: metric.to_owned(),
            of: "measured".to_owned(),
            sides: medians.map(|median| median.map(spread)),
            ratio: medians[0].zip(medians[1]).map(|(left, right)| right / left),
            ratio_interval: None,
            beyond_spread,
        }
    }

    fn compared(valid: [usize; 2], unmatched: [&[&str]; 2], figures: Vec<Figure>) -> Comparison {
        let names = ["fast".to_owned(), "fast".to_owned()];
        Comparison {
            sides: ["a".to_owned(), "b".to_owned()],
            cases: vec![CaseComparison { names, valid, figures }],
            unmatched: unmatched.map(|cases| cases.iter().map(|case| (*case).to_owned()).collect()),
            parameters: Vec::new(),
        }
    }

    fn verdict(comparison: &Comparison, options: &[&str]) -> Option<String> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: CompareArgs,
        }
        let line = ["compare", "a", "b", "--within", "5%"].iter().chain(options);
        match judge(comparison, &<Line as clap::Parser>::parse_from(line).args) {
            Ok(()) => None,
            Err(Failure::Missed(what)) => Some(what),
            Err(_) => panic!("no verdict"),
        }
    }

    #[test]
    fn two_results_are_within_a_limit_only_when_all_of_both_was_compared() {
        let goodput = |right: f64| figure("goodput_bps", [Some(100.0), Some(right)], Some(false));
        let lacking = |metric: &str| figure(metric, [Some(1.0), None], None);
        let both = |figures: Vec<Figure>| compared([3, 3], [&[], &[]], figures);
        for (comparison, options, expected) in [
            (both(vec![goodput(104.0), lacking("echo_p50_us")]), &[][..], None),
            (
                both(vec![goodput(106.0)]),
                &[],
                Some("1 of 1 figures differ by more than 5 %, first goodput_bps"),
            ),
            (
                compared([3, 0], [&[], &[]], vec![lacking("goodput_bps")]),
                &[],
                Some("1 cases have no valid run in B, first fast"),
            ),
            (
                compared([0, 0], [&[], &[]], vec![]),
                &[],
                Some("in A, first fast; 1 cases have no valid run in B"),
            ),
            (
                compared([3, 3], [&["slow"], &[]], vec![goodput(100.0)]),
                &[],
                Some("1 cases are in A only, first slow"),
            ),
            (
                compared([3, 3], [&[], &["slow", "far"]], vec![goodput(100.0)]),
                &[],
                Some("2 cases are in B only, first slow"),
            ),
            (both(vec![lacking("goodput_bps")]), &[], Some("no figure could be judged")),
            (both(vec![goodput(100.0)]), &["--metric", "echo_p50_us"], Some("no figure could be judged")),
            (both(vec![goodput(106.0)]), &["--differing"], None),
            (
                both(vec![figure("goodput_bps", [Some(1.0), Some(2.0)], None)]),
                &["--differing"],
                Some("no figure could be judged"),
            ),
        ] {
            let found = verdict(&comparison, options);
            match expected {
                None => assert_eq!(found, None),
                Some(text) => assert!(found.as_deref().unwrap_or("").contains(text), "{found:?}, not {text}"),
            }
        }
    }
}
