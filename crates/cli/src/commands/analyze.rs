//! `longfat analyze`.

use crate::{
    outcome::{Failure, Outcome},
    output,
};
use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use longfat_analyze::{
    Settings,
    analysis::{Analysis, analyze},
    expect::{Expect, Judged},
    files::source,
    matching,
};
use std::path::{Path, PathBuf};

/// What a packet capture says: flows, retransmissions, RTT, limits, and findings in words.
///
/// Reads pcap and pcapng, plain, gzip or zstd, and the tables of 'longfat capture', from anyone's capture: at the
/// sender, at the receiver or between, of whole packets or of headers only. Several files are read as one, in the
/// order of their packets' times; '-' is standard input. Memory goes with the flows that are live, not with the size
/// of the files. Damage is reported with its offset, and the rest is read.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat analyze slow.pcap
      the greatest flows and what is remarkable about them, the costliest first
  longfat analyze slow.pcap --html slow.html
      one page with zoomable figures, offline: sequence and acknowledgement,
      flight, RTT, spacing
  longfat analyze slow.pcap --parquet tables/
      flows.parquet, series.parquet, episodes.parquet and findings.parquet, for
      notebooks and SQL
  longfat analyze run.pcap --expect 'retransmissions < 1%' \\
      --expect 'lfp_syndrome == 0'
      exit code 1 when one of them is missed
  tcpdump -i eth0 -s 96 -w - tcp | longfat analyze -
  longfat analyze sender.pcap --match receiver.pcap
      what was lost between the two, delay above the least, spacing; clocks need
      not agree
  longfat analyze ring.pcapng.* --json | jq '.flows[] | select(.findings != [])'")]
pub struct Args {
    /// Captures; '-' is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
    /// Also write a page with figures of the greatest flows.
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Also write Parquet tables into this directory: flows, series (over time), episodes (repairs of losses),
    /// findings.
    #[arg(long, value_name = "DIR")]
    parquet: Option<PathBuf>,
    /// Exit with 1 unless this holds: a figure, <, <=, ==, >= or >, and a value; may be repeated.
    #[arg(long, value_name = "EXPECTATION")]
    expect: Vec<Expect>,
    /// A second capture, of the same traffic elsewhere: match both packet by packet and tell what the path between them
    /// did.
    #[arg(long = "match", value_name = "FILE", conflicts_with_all = ["html", "parquet", "expect"])]
    matched: Option<PathBuf>,
    /// Flows to report one by one, the greatest by payload; the sums hold all flows. Each takes up to 20 KB.
    #[arg(long, value_name = "N", default_value_t = Settings::default().most_flows)]
    most_flows: usize,
    /// Flows that may be live at once. Beyond them, those longest without a packet count as ended, and the summary says
    /// so. A flow of few packets takes up to 2 KB.
    #[arg(long, value_name = "N", default_value_t = Settings::default().live_flows)]
    live_flows: usize,
}

pub fn run(args: &Args) -> Outcome {
    if let Some(path) = &args.html {
        crate::kept::refuse_replacing_all_but_a_page("--html", path)?;
    }
    crate::confined::reader([&args.html, &args.parquet].into_iter().flatten().map(PathBuf::as_path))?;
    if let Some(second) = &args.matched {
        return Ok(run_match(args, second)?);
    }
    let analysis = read(args)?;
    let judged: Vec<Judged> = args.expect.iter().map(|expect| expect.judge(&analysis)).collect();
    print(&analysis, &judged, args.json)?;
    if let Some(path) = &args.html {
        write_page(&analysis, &args.files, path)?;
    }
    if let Some(directory) = &args.parquet {
        longfat_analyze::tables::write(&analysis, directory).map_err(anyhow::Error::from)?;
        eprintln!("tables: {}", directory.display());
    }
    let missed = judged.iter().filter(|judged| !judged.met);
    let missed: Vec<String> =
        missed.map(|judged| format!("{}: found {}", judged.text, judged.found)).collect();
    if missed.is_empty() { Ok(()) } else { Err(Failure::Missed(missed.join("; "))) }
}

fn run_match(args: &Args, second: &Path) -> anyhow::Result<()> {
    let [first] = args.files.as_slice() else {
        bail!("--match compares two captures: give one FILE before it, not {}", args.files.len());
    };
    let found = matching::matching(&mut [source::open(first)?, source::open(second)?])?;
    let text =
        if args.json { format!("{}\n", serde_json::to_string(&found)?) } else { matching::text(&found) };
    output::write_out(&text)
}

fn read(args: &Args) -> anyhow::Result<Analysis> {
    let captures = args.files.iter().map(|path| source::open(path)).collect::<Result<Vec<_>, _>>()?;
    let settings = Settings {
        most_flows: args.most_flows,
        live_flows: args.live_flows,
        detailed: args.html.is_some(),
        ..Settings::default()
    };
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {bytes} read, {bytes_per_sec}")?);
    let analysis = analyze(captures, settings, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    Ok(analysis)
}

fn write_page(analysis: &Analysis, files: &[PathBuf], path: &Path) -> anyhow::Result<()> {
    let name: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let page = longfat_report::capture::html(analysis, &name.join(", "));
    std::fs::write(path, page).with_context(|| {
        format!("{} could not be written; choose another place with --html", path.display())
    })?;
    eprintln!("report: {}", path.display());
    Ok(())
}

/// An analysis and what was expected of it.
#[derive(serde::Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    analysis: &'a Analysis,
    expectations: &'a [Judged],
}

fn print(analysis: &Analysis, expectations: &[Judged], json: bool) -> anyhow::Result<()> {
    let text = if json {
        format!("{}\n", serde_json::to_string(&Output { analysis, expectations })?)
    } else {
        crate::fitted::prose_lines(&longfat_analyze::summary::text(analysis))
    };
    output::write_out(&text)
}
