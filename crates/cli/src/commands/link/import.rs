//! `longfat link import`: a trace from what iperf3 or ping recorded.

use crate::{kept, outcome::Outcome, spans};
use anyhow::Context;
use comfy_table::Table;
use longfat_link::trace::{Row, import, read_bounded, table::write_csv};
use longfat_schema::{quantity, run::Spread, text::one_line, units::Nanos};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Make a trace that a link can follow, of what 'iperf3 --json' or 'ping' wrote.
///
/// The trace is CSV: a line per sample, with columns that name their units. What such a record cannot know is said, and
/// stands in the file: an achieved rate is no capacity, and half a round trip is no delay of one direction.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  iperf3 -c server --json -i 0.1 -t 60 > uplink.json
  longfat link import uplink.json -o uplink.csv
  ping -D -i 0.2 -c 300 server > ping.txt
  longfat link import ping.txt -o ping.csv
  longfat link run --trace ping.csv --rate 20Mbit -- \\
      sh -c 'curl -o /dev/null http://$LONGFAT_HOST/'

A link of an experiment follows it by 'trace = \"uplink.csv\"' (docs/design/link.md).")]
pub struct ImportArgs {
    /// What iperf3 or ping wrote.
    file: PathBuf,
    /// Where the trace goes [default: standard output].
    #[arg(long, short, value_name = "FILE.csv")]
    output: Option<PathBuf>,
    /// Time between two probes of a ping whose lines bear no times ('ping -D' writes them).
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Nanos,
    /// Rows and remarks as JSON on standard output.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Shortest time between two probes: ping's own, for root.
const INTERVAL_LEAST: Nanos = Nanos(1_000_000);

pub fn run(args: &ImportArgs) -> Outcome {
    let shown = args.file.display();
    spans::at_least("--interval", args.interval, INTERVAL_LEAST)?;
    if let Some(path) = &args.output {
        kept::refuse_replacing("-o", path)?;
    }
    let bytes = read_bounded(&args.file).with_context(|| format!("'{shown}'"))?;
    let imported = import::read(&bytes, args.interval).with_context(|| format!("'{shown}'"))?;
    if args.json {
        println!("{}", as_json(&imported)?);
        return Ok(());
    }
    let made_of = format!("made by 'longfat link import' of {}", name_of(&args.file));
    let comments: Vec<String> = std::iter::once(made_of).chain(imported.remarks.iter().cloned()).collect();
    let text = write_csv(&imported.rows, &comments);
    match &args.output {
        Some(path) => fs::write(path, text).with_context(|| format!("'{}'", path.display()))?,
        None => print!("{text}"),
    }
    eprintln!("{}", table(&imported.rows));
    imported.remarks.iter().for_each(|remark| eprintln!("longfat: {remark}"));
    Ok(())
}

fn name_of(file: &Path) -> String {
    file.file_name().map_or_else(String::new, |name| one_line(&name.to_string_lossy()).into_owned())
}

fn as_json(imported: &import::Imported) -> serde_json::Result<String> {
    let row = |row: &Row| {
        serde_json::json!({
            "at_ns": row.at_ns, "rate_bps": row.rate_bps, "delay_ns": row.delay_ns, "loss_ratio": row.loss,
        })
    };
    let rows: Vec<_> = imported.rows.iter().map(row).collect();
    serde_json::to_string_pretty(&serde_json::json!({ "rows": rows, "remarks": imported.remarks }))
}

/// What a row says, if it does.
type Value = fn(&Row) -> Option<f64>;

/// Least, middle and greatest of each column.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let length_s = rows.last().map_or(0.0, |row| row.at_ns as f64 / 1e9);
    table.set_header([
        format!("{} rows, {length_s:.1} s", rows.len()),
        "least".into(),
        "median".into(),
        "most".into(),
    ]);
    let columns: [(&str, Value); 3] = [
        ("rate_bps", |row| row.rate_bps.map(|bps| bps as f64)),
        ("delay_us", |row| row.delay_ns.map(|ns| ns as f64 / 1e3)),
        ("loss_ratio", |row| row.loss),
    ];
    for (name, value) in columns {
        if let Some(spread) = Spread::of(rows.iter().filter_map(value)) {
            let values = [spread.min, spread.median, spread.max];
            let shown = values.map(|value| quantity::of_metric(name, value));
            let word = name.split('_').next().unwrap_or(name);
            table.add_row(std::iter::once(word.to_owned()).chain(shown));
        }
    }
    table
}
