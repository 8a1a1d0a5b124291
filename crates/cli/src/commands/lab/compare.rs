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
use std::path::{Path, PathBuf};

/// Put two results (or two runs) beside each other: figures case by case, and which parameters differ.
///
/// Figures are medians over the valid repeats, [least – greatest]; a ratio is B over A, with its 95 % bootstrap
/// interval where both sides have three valid repeats or more. '≠' marks figures that differ by more than the repeats'
/// spread explains (of figures that are alike, one in twenty seems to). Cases are matched by name; where each side has
/// a single one, those two are.
///
/// Exit codes: 0 compared; 1 a figure differs by more than --within; 2 failed.
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
    /// End with exit code 1 when a figure that is shown differs by more.
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
    let comparison = compare(&Side::open(&args.left)?, &Side::open(&args.right)?);
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
    if args.differing && figure.beyond_spread != Some(true) {
        return false;
    }
    match args.metric.as_slice() {
        [] => args.all || args.differing || figure.is_foremost(),
        named => named.contains(&figure.metric),
    }
}

fn judge(comparison: &Comparison, args: &CompareArgs) -> Outcome {
    let Some(share) = args.within else { return Ok(()) };
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
    match beyond.first() {
        None => Ok(()),
        Some(first) => Err(Failure::Missed(format!(
            "{} of {count} figures differ by more than {:.0} %, first {first}",
            beyond.len(),
            share * 100.0
        ))),
    }
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
