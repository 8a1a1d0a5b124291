//! `longfat path`.

use crate::{
    fitted::{fitted, prose, room},
    outcome::Outcome,
};
use anyhow::Context as _;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use longfat_path_plan::{Forecast, PathPlan, PathSpec, STREAMS_MAX, SysctlPlan, experiment, experiment_name};
use longfat_schema::units::{Nanos, Rate, Size, part};
use std::path::{Path, PathBuf};

/// What a path asks for: windows, sysctls, queue, and the throughput each congestion control can expect.
///
/// Everything follows from the path's figures by the response functions of the algorithms' references
/// (docs/design/path.md); nothing is measured and nothing is set. '--write' makes an experiment of it, which says
/// whether the simulator, or the TCP of this kernel, agrees.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat path --rate 1Gbit --rtt 28ms
  longfat path --rate 10Gbit --rtt 100ms --loss 1e-7
      which congestion control still fills it?
  longfat path --rate 100Mbit --rtt 40ms --queue 64KB
      what does a small queue cost?
  longfat path --rate 1Gbit --rtt 28ms --json | jq -r \\
      '.sysctls[] | \"\\(.key)=\\(.value)\"'
  longfat path --rate 100Mbit --rtt 40ms --write path.toml
  longfat lab run path.toml --backend sim")]
pub struct Args {
    /// Rate of the slowest link, IP packets counted.
    #[arg(long, value_name = "RATE")]
    rate: Rate,
    /// Round-trip time of an idle path.
    #[arg(long, value_name = "TIME")]
    rtt: Nanos,
    /// Largest IP packet, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Part of the packets that is lost whatever the queue does, like 1e-7 or 0.1%.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = part)]
    loss: f64,
    /// Flows that share the path.
    #[arg(long, value_name = "N", default_value_t = 1)]
    flows: u32,
    /// What the queue before the slowest link holds [default: what any loss-based congestion control needs].
    #[arg(long, value_name = "SIZE")]
    queue: Option<Size>,
    /// Everything as JSON on standard output, in base units.
    #[arg(long)]
    json: bool,
    /// Write the experiment that checks the plan (TOML, for 'longfat lab run').
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

pub fn run(args: Args) -> Outcome {
    let path = PathSpec {
        rate: args.rate,
        rtt: args.rtt,
        mtu_bytes: args.mtu,
        loss: args.loss,
        flows: args.flows,
        queue: args.queue,
    };
    let plan = path.plan()?;
    // What cannot be written is said before anything is printed.
    let written = match args.write {
        Some(file) => Some((experiment(&plan).context("--write")?, file)),
        None => None,
    };
    if args.json {
        crate::output::print_json(&plan)?;
    } else {
        print(&plan);
    }
    match written {
        Some((text, file)) => write(&text, &file),
        None => Ok(()),
    }
}

/// A file that somebody wrote is not replaced.
fn write(text: &str, file: &Path) -> Outcome {
    use std::io::Write as _;
    let name = file.display();
    let mut opened = std::fs::File::create_new(file).with_context(|| {
        format!("{name} could not be made; --write needs a new name in a directory that is there")
    })?;
    opened.write_all(text.as_bytes()).with_context(|| format!("{name} could not be written"))?;
    eprintln!("experiment: {name}; longfat lab run {name} --backend sim");
    Ok(())
}

fn print(plan: &PathPlan) {
    let PathPlan { window, queue, .. } = plan;
    let wrap = format!("the sequence space wraps in {}", window.sequence_wrap);
    let said = |line: String| println!("{}", prose(&line, "         "));
    said(format!(
        "Window   {} in flight fill the path: {} packets",
        Size(window.pipe_bytes),
        window.pipe_segments
    ));
    said(format!(
        "         {} must be allowed (twice path and queue: losses are repaired): window scale {}; {wrap}",
        Size(window.bytes),
        window.scale
    ));
    let given = if queue.given { "as given" } else { "enough for every one of the loss-based below" };
    said(format!("Queue    {} ({given}): {} when full", Size(queue.bytes), queue.delay));
    if plan.path.flows > 1 {
        let size = Size(queue.desynchronised_bytes);
        said(format!("         {size} are enough where the flows' losses fall at different times"));
    }
    println!("\nBoth hosts:");
    plan.sysctls.iter().for_each(|sysctl| println!("{}", setting(sysctl)));
    let flows = if plan.path.flows == 1 {
        "One flow".to_owned()
    } else {
        format!("{} flows of one kind", plan.path.flows)
    };
    println!(
        "\n{}\n{}",
        prose(&format!("{flows}, of {}/s that the path can carry:", Rate(plan.goodput_max_bps)), "  "),
        fitted(table(&plan.forecasts), &[10, 9, 7, 5, 2])
    );
    plan.notes.iter().for_each(|note| println!("{}", prose(&format!("Note: {note}."), "      ")));
    if plan.path.flows <= STREAMS_MAX {
        println!("{}", check(&experiment_name(plan)));
    }
}

/// A setting as a command with its reason behind it, or above it where the terminal is narrow: a command is pasted, it
/// is not broken.
fn setting(sysctl: &SysctlPlan) -> String {
    let command = format!("sysctl -w {}", format_args!("{}='{}'", sysctl.key, sysctl.value));
    let line = format!("  {command:<58} # {}", sysctl.why);
    match room() {
        Some(room) if line.chars().count() > room => {
            format!("{}\n  {command}", prose(&format!("  # {}", sysctl.why), "  # "))
        }
        _ => line,
    }
}

/// How the plan is tried.
fn check(name: &str) -> String {
    let commands = [
        format!("longfat path ... --write {name}.toml"),
        format!("longfat lab run {name}.toml --backend sim"),
    ];
    let line = format!("Check:   {}", commands.join(" && "));
    match room() {
        Some(room) if line.chars().count() > room => format!("Check:\n  {}", commands.join(" &&\n  ")),
        _ => line,
    }
}

fn table(forecasts: &[Forecast]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "cc",
        "expected",
        "share",
        "limit",
        "loss to fill it",
        "one each",
        "queue needed",
        "start",
        "after a loss",
        "saw-tooth",
        "reference",
    ]);
    for column in 1..10 {
        if column != 3
            && let Some(column) = table.column_mut(column)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for forecast in forecasts {
        table.add_row([
            forecast.cc.to_owned(),
            forecast.goodput.to_string(),
            format!("{:.1} %", 100.0 * forecast.share),
            forecast.limit.name().to_owned(),
            format!("{:.1e}", forecast.loss_to_fill),
            span(forecast.loss_spacing),
            Size(forecast.queue_bytes).to_string(),
            span(forecast.slow_start),
            span(forecast.recovery),
            forecast.period.map_or_else(|| "none".to_owned(), span),
            forecast.reference.to_owned(),
        ]);
    }
    table
}

/// Three figures are enough for what is expected.
fn span(span: Nanos) -> String {
    let seconds = span.0 as f64 / 1e9;
    match seconds {
        long if long >= 3600.0 => format!("{:.1} h", long / 3600.0),
        long if long >= 120.0 => format!("{:.0} min", long / 60.0),
        long if long >= 1.0 => format!("{long:.1} s"),
        short => format!("{:.0} ms", short * 1e3),
    }
}
