//! `longfat lab compare`: two results beside each other.

use super::table;
use crate::outcome::{Failure, Outcome};
use anyhow::Context;
use longfat_lab::{
    compare::{CaseComparison, Comparison, Figure, Run, Side, compare},
    show,
};
use longfat_schema::run::find_runs;
use std::path::{Path, PathBuf};

/// Put two results (or two runs) beside each other: figures case by case, and which parameters differ.
///
/// Figures are medians over the valid repeats, [least – greatest]; a ratio is B over A. Cases are matched by name; where
/// each side has a single one, those two are.
///
/// Exit codes: 0 compared; 1 a figure differs by more than --within; 2 failed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab compare runs/conversion-emulated runs/conversion-sim
  longfat lab compare runs/a/reno-relayed/r1 runs/b/reno-relayed/r1 --all
  longfat lab compare runs/emulated runs/sim --within 10% --metric goodput_bps")]
pub struct CompareArgs {
    /// A result or run directory.
    #[arg(value_name = "A")]
    left: PathBuf,
    /// Another.
    #[arg(value_name = "B")]
    right: PathBuf,
    /// Every figure, not only those that tell most.
    #[arg(long)]
    all: bool,
    /// Only this figure; may be repeated.
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// A figure shown may differ by so much; more is exit code 1.
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

fn read(path: &Path) -> anyhow::Result<Side> {
    let (_, runs) = find_runs(path)?;
    let runs = runs.into_iter().map(|run| {
        let plan = run.plan().with_context(|| format!("plan of {}", run.path.display()))?;
        Ok(Run { manifest: run.manifest, plan })
    });
    Ok(Side { name: path.display().to_string(), runs: runs.collect::<anyhow::Result<_>>()? })
}

pub fn run(args: &CompareArgs) -> Outcome {
    args.metric.iter().try_for_each(|metric| known(metric))?;
    let comparison = compare(&read(&args.left)?, &read(&args.right)?);
    if comparison.cases.is_empty() {
        return Err(anyhow::anyhow!(
            "the two have no case in common: {} on one side, {} on the other",
            comparison.unmatched[0].join(", "),
            comparison.unmatched[1].join(", ")
        )
        .into());
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        print(&comparison, args);
    }
    judge(&comparison, args)
}

fn known(metric: &str) -> anyhow::Result<()> {
    let names = longfat_lab::metrics::NAMES;
    if names.contains(&metric) {
        return Ok(());
    }
    Err(anyhow::anyhow!("--metric: {}", longfat_lab::spec::decode::unknown("metric", metric, names)))
}

fn is_shown(figure: &Figure, args: &CompareArgs) -> bool {
    match args.metric.as_slice() {
        [] => args.all || figure.is_foremost(),
        named => named.contains(&figure.metric),
    }
}

fn judge(comparison: &Comparison, args: &CompareArgs) -> Outcome {
    let Some(share) = args.within else { return Ok(()) };
    let shown = |case: &CaseComparison| case.figures.iter().filter(|f| is_shown(f, args)).cloned().collect();
    let figures: Vec<(String, Vec<Figure>)> =
        comparison.cases.iter().map(|case| (name(case), shown(case))).collect();
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

fn name(case: &CaseComparison) -> String {
    let [left, right] = &case.names;
    if left == right { left.clone() } else { format!("{left} | {right}") }
}

fn print(comparison: &Comparison, args: &CompareArgs) {
    println!("A: {}\nB: {}\n", comparison.sides[0], comparison.sides[1]);
    for case in &comparison.cases {
        println!("{} ({} and {} valid runs)", name(case), case.valid[0], case.valid[1]);
        let mut table = table::table(&["figure", "of", "A", "B", "B / A"]);
        table::align_right(&mut table, 2..5);
        for figure in case.figures.iter().filter(|figure| is_shown(figure, args)) {
            let side = |side: usize| {
                figure.sides[side].as_ref().map_or("–".to_owned(), |s| show::spread_of(&figure.metric, s))
            };
            let beyond = args.within.is_some_and(|share| !figure.is_within(share));
            let mark = if beyond { " !" } else { "" };
            let ratio = figure.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}{mark}"));
            table.add_row([figure.metric.clone(), figure.of.clone(), side(0), side(1), ratio]);
        }
        println!("{table}\n");
    }
    for (side, cases) in ["A", "B"].iter().zip(&comparison.unmatched).filter(|(_, cases)| !cases.is_empty()) {
        println!("Only in {side}: {}", cases.join(", "));
    }
    print_parameters(comparison);
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
    println!("{table}");
}

fn in_short(value: &str) -> String {
    match value.chars().count() {
        0 => "–".to_owned(),
        1..=VALUE_CHARS => value.to_owned(),
        _ => value.chars().take(VALUE_CHARS).chain(['…']).collect(),
    }
}
