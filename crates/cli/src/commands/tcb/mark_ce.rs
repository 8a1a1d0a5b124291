//! `longfat tcb mark-ce`.

use super::Choice;
use crate::{
    outcome::{Failure, Outcome, require},
    stop,
};
use anyhow::{anyhow, bail};
use longfat_kernel::{
    mark::{self, Congested, Congesting, Ends},
    tcb::{Connection, State},
};
use longfat_schema::units::{Nanos, Size};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// How often the stop flag is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Make this host echo congestion on one connection it receives on, once per so many bytes.
///
/// Arriving packets of the connection are marked "congestion experienced"; this host's own TCP echoes that (ECE), and
/// the sender slows down by its own congestion control. The sender must have negotiated ECN (net.ipv4.tcp_ecn = 1
/// there). A bundle of segments that the host receives as one (GRO) is marked once.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat tcb mark-ce sport 5201 --every 64KiB               until Ctrl-C
  longfat tcb mark-ce 'src 10.0.0.1 and dport 40222' --every 32KiB \\
      --duration 10s --json
  ip netns exec relay longfat tcb mark-ce sport 80 --every 1MiB

Exits with 0 when packets were marked, 1 when none could be: no ECN, or nothing was sent.")]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// Bytes received per mark.
    #[arg(long, value_name = "SIZE")]
    every: Size,
    /// For so long; until Ctrl-C when left out.
    #[arg(long, value_name = "TIME")]
    duration: Option<Nanos>,
    /// Print one JSON object at the end.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome {
    require(mark::missing())?;
    let connection = chosen(args)?;
    let stop = stop::flag()?;
    let ends = Ends { local: connection.local, remote: connection.remote };
    let marking = Congesting::attach(&longfat_host::interface::passed_once()?, ends, args.every.0)?;
    eprintln!("marking {} <- {}, one packet per {}", ends.local, ends.remote, args.every);
    let deadline = args.duration.map(|time| Instant::now() + Duration::from(time));
    while !stop.load(Ordering::Relaxed) && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        std::thread::sleep(LOOK);
    }
    report(args, marking.read())
}

/// The one connection meant.
fn chosen(args: &Args) -> anyhow::Result<Connection> {
    if args.choice.netns.is_some() {
        bail!(
            "--netns: marks are made where this program runs; use 'ip netns exec NAME longfat tcb mark-ce …'"
        );
    }
    if args.every.0 == 0 {
        bail!("--every {}: give at least one byte", args.every);
    }
    let mut found = args.choice.look_without_cause(false)?.take()?;
    found.retain(|connection| connection.state == State::ESTABLISHED);
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        (Some(_), more) => Err(anyhow!("{} connections match; say more, as in 'longfat tcb list'", more + 1)),
        (None, _) => {
            Err(anyhow!("no established connection matches; 'longfat tcb list' shows what there is"))
        }
    }
}

fn report(args: &Args, seen: Congested) -> Outcome {
    let Congested { bytes, marks, incapable_packets } = seen;
    if args.json {
        let object = serde_json::json!({
            "received_bytes": bytes, "marked_packets": marks, "incapable_packets": incapable_packets
        });
        println!("{object}");
    } else {
        println!("{} received, {marks} packets marked", Size(bytes));
    }
    if incapable_packets > 0 {
        eprintln!(
            "{incapable_packets} packets could not be marked: the sender has no ECN (net.ipv4.tcp_ecn = 1 there)"
        );
    }
    if marks > 0 { Ok(()) } else { Err(Failure::Missed("no packet was marked".to_owned())) }
}
