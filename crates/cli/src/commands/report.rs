//! `longfat report`.

use crate::{fitted::fitted, outcome::Outcome, output};
use anyhow::Context as _;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use longfat_report::{
    Report,
    figures::{self, Choice, Repeats},
    load::Experiment,
    summary::Summary,
};
use longfat_schema::text::one_line;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Runs in, one self-contained HTML page and figures out.
///
/// Reads what 'longfat lab run' wrote: results (result.json) or single runs (manifest.json). The page needs no
/// network; several results are shown one after the other, and the cases that several have are set side by side. Runs
/// that are invalid, unexplained or failed are shown and marked, and are in no median.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat report runs/conversion-20250131T120000Z
      writes runs/conversion-20250131T120000Z/report.html and prints the summary
  longfat report runs/before runs/after -o comparison.html
      two results in one page, side by side
  longfat report runs/conversion-20250131T120000Z --svg figures
      also every figure as an SVG file, for a paper or a slide
  longfat report runs/sweep --over rtt --svg figures
      a sweep's metrics over its axis 'rtt', a line per value of the others
  longfat report runs/conversion-20250131T120000Z --json | jq \\
      '.[0].cases[].columns[0].median'
      the medians alone, in base units")]
pub struct Args {
    /// Result or run directories.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Where the page goes [default: report.html in the first RUN].
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// Also write every figure as an SVG file into this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Axis of the sweep that metrics are drawn over [default: of those with three numbers or more, the one with the
    /// most].
    #[arg(long, value_name = "AXIS")]
    over: Option<String>,
    /// Draw over time only the run that stands for each case: a page a third as long of three repeats.
    #[arg(long)]
    brief: bool,
    /// Print the summary as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Width of a table that goes to a file or another program, in characters.
const WIDTH_ELSEWHERE: u16 = 240;

pub fn run(args: Args) -> Outcome {
    let output = args.output.unwrap_or_else(|| args.runs[0].join("report.html"));
    crate::kept::refuse_replacing_all_but_a_page("-o", &output)?;
    crate::confined::reader([Some(&*output), args.svg.as_deref()].into_iter().flatten())?;
    let experiments = args.runs.iter().map(|path| Experiment::open(path)).collect::<Result<Vec<_>, _>>()?;
    let repeats = if args.brief { Repeats::Representative } else { Repeats::All };
    args.over.as_deref().map_or(Ok(()), |axis| refuse_no_axis(axis, &experiments))?;
    let report = Report::with(experiments, &Choice { repeats, over: args.over });
    std::fs::write(&output, report.html()).with_context(|| {
        format!("{} could not be written; choose another place with -o", output.display())
    })?;
    let figures = args.svg.as_deref().map(|directory| report.write_svg(directory)).transpose()?;
    print_summaries(&report, args.json)?;
    eprintln!("report: {}", output.display());
    if let (Some(figures), Some(directory)) = (figures, args.svg.as_deref()) {
        eprintln!("{} figures: {}", figures.len(), directory.display());
    }
    refuse_holes(&report.warnings(), &output)
}

/// An axis that none of the results can be drawn over is a slip.
fn refuse_no_axis(axis: &str, experiments: &[Experiment]) -> anyhow::Result<()> {
    let known: BTreeSet<String> = experiments.iter().flat_map(figures::axes_of_numbers).collect();
    let names = || known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    anyhow::ensure!(
        known.contains(axis),
        "--over '{axis}' is no axis with three numbers or more; {}",
        if known.is_empty() { "there is none here".to_owned() } else { format!("take one of {}", names()) }
    );
    Ok(())
}

/// A page with holes is written, since the rest of it is good, but it is no success.
fn refuse_holes(warnings: &[String], output: &Path) -> Outcome {
    if warnings.is_empty() {
        return Ok(());
    }
    warnings.iter().for_each(|warning| eprintln!("longfat: {warning}"));
    Err(anyhow::anyhow!(
        "{} files could not be read; {} has holes where they belong",
        warnings.len(),
        output.display()
    )
    .into())
}

fn print_summaries(report: &Report, json: bool) -> anyhow::Result<()> {
    let text = if json {
        let summaries: Vec<&Summary> = report.experiments.iter().map(|(e, _)| &e.summary).collect();
        format!("{}\n", serde_json::to_string_pretty(&summaries)?)
    } else {
        let table = |(e, _): &(Experiment, _)| {
            format!("{}\n{}\n", heading(e), fitted(summary_table(&e.summary), &[]))
        };
        report.experiments.iter().map(table).collect()
    };
    output::write_out(&text)
}

/// The title, and the flow whose figures stand beneath.
fn heading(experiment: &Experiment) -> String {
    let title = one_line(&experiment.title);
    match experiment.focus() {
        Some(flow) => format!("{title}: flow {}", one_line(flow)),
        None => title.into_owned(),
    }
}

/// Cases by metrics: medians with their spread beneath.
pub fn summary_table(summary: &Summary) -> Table {
    let columns = summary.shown();
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    if !table.is_tty() {
        table.set_width(WIDTH_ELSEWHERE);
    }
    let heads = columns.iter().flat_map(|column| {
        let published = column.cells.iter().any(|cell| !cell.published.is_empty());
        std::iter::once(column.heading.clone()).chain(published.then(|| "published".to_owned()))
    });
    table.set_header(["Case", "Valid"].map(String::from).into_iter().chain(heads));
    for (index, case) in summary.cases.iter().enumerate() {
        let cells = columns.iter().flat_map(|column| {
            let cell = &column.cells[index];
            let published = column.cells.iter().any(|cell| !cell.published.is_empty());
            let figure = format!("{}\n{}", or_dash(&cell.median), cell.spread);
            std::iter::once(figure.trim_end().to_owned()).chain(published.then(|| or_dash(&cell.published)))
        });
        let valid = format!("{}/{}", case.done, case.runs());
        table.add_row([one_line(&case.title).into_owned(), valid].into_iter().chain(cells));
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { text.to_owned() }
}
