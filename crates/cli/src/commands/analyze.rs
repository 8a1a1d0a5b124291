//! `longfat analyze`.

use crate::outcome::Outcome;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use longfat_analyze::{
    Settings,
    analysis::{Analysis, analyze},
    capture::source,
};
use std::{io::Write as _, path::PathBuf};

/// What a packet capture says: flows, retransmissions, RTT, limits, and findings in words.
///
/// Reads pcap and pcapng, plain, gzip or zstd, from anyone's capture: at the sender, at the receiver or between, of
/// whole packets or of headers only. Several files are read as one, in the order of their first packets; '-' is
/// standard input. Memory goes with the flows that are live, not with the size of the files. Damage is reported with
/// its offset, and the rest is read.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat analyze slow.pcap
      the greatest flows and what is remarkable about them, the costliest first
  tcpdump -i eth0 -s 96 -w - tcp | longfat analyze -
  longfat analyze ring.pcapng.* --json | jq '.flows[] | select(.findings != [])'")]
pub struct Args {
    /// Captures; '-' is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
    /// Threads that follow flows; results are the same for any number [default: one fewer than there are cores].
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// Flows that are told of one by one, the greatest by payload; all count in the sums.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    most_flows: usize,
}

pub fn run(args: Args) -> Outcome {
    let analysis = read(&args)?;
    print(&analysis, args.json)?;
    Ok(())
}

fn read(args: &Args) -> anyhow::Result<Analysis> {
    let captures = args.files.iter().map(|path| source::open(path)).collect::<Result<Vec<_>, _>>()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = Settings {
        jobs: args.jobs.unwrap_or(cores.saturating_sub(1)).max(1),
        most_flows: args.most_flows,
        ..Settings::default()
    };
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {bytes} read, {bytes_per_sec}")?);
    let analysis = analyze(captures, settings, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    Ok(analysis)
}

fn print(analysis: &Analysis, json: bool) -> anyhow::Result<()> {
    let text = if json {
        format!("{}\n", serde_json::to_string(analysis)?)
    } else {
        longfat_analyze::summary::text(analysis)
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has seen enough, as 'head' does.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}
