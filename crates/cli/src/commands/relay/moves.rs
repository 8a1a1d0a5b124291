//! `longfat relay move`: connections go to the relay of another router.

use super::status::Which;
use crate::{
    outcome::{Failure, Outcome},
    output, stop,
};
use anyhow::{Context as _, anyhow};
use longfat_host::key::Key;
use longfat_relay::{MoveStatus, Staying, control, moving::message::Stay};
use longfat_schema::units::{Nanos, Size};
use std::{
    io::IsTerminal as _,
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// How often it is asked how far the move is, and how often that is said.
const LOOK: Duration = Duration::from_millis(20);
const SAY: Duration = Duration::from_secs(1);

/// Move living connections to the relay of another router, before this one is maintained.
///
/// The other relay's file has 'listen' and 'key' in its table 'move'; its rules accept 'end-to-end' and have the same
/// names. Connections go there with all that is in their queues, and nobody is reset. Afterwards this router drops what
/// still comes of them, for ten minutes: let the routes follow at once. Connections that cannot be moved go on here,
/// and are named with the reason. Root and the relay's own user may do this.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat relay move --to 192.0.2.2:5202 --key /etc/longfat/move.key
  longfat relay move --to 192.0.2.2:5202 --key /etc/longfat/move.key \\
      --within 2m --json

Exit code 0: all that lived went there; 1: some stayed, or were reset; 2: nothing could be moved, or not to the end.")]
pub struct Args {
    /// Where the other relay takes moves.
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// File of the key that both relays have ('longfat transfer key' makes one).
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// How long connections that cannot be moved at the moment are tried again.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(10_000_000_000))]
    within: Nanos,
    /// Print one JSON object at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

pub fn run(args: &Args) -> Outcome {
    let to = address(&args.to)?;
    let key = Key::read(&args.key)?;
    let socket = args.which.socket()?;
    let stop = stop::flag()?;
    control::begin_move(&socket, to, &key, args.within.into())?;
    let is_watched = std::io::stderr().is_terminal() && !args.json;
    let mut said = Instant::now();
    let status = loop {
        let status = control::move_status(&socket)?;
        if !status.is_running {
            break status;
        }
        if stop.load(Ordering::Acquire) {
            return Err(anyhow!("not waited for; the relay goes on moving").into());
        }
        if is_watched && said.elapsed() >= SAY {
            said = Instant::now();
            let MoveStatus { moved, connections, moved_bytes, .. } = &status;
            eprintln!(
                "longfat: moved {moved} of {connections} connections, {} of their bytes",
                Size(*moved_bytes)
            );
        }
        std::thread::sleep(LOOK);
    };
    if args.json {
        output::print_json(&status)?;
    } else if !status.name.is_empty() {
        output::write_out(&described(&status, to))?;
    }
    ended(&status)
}

fn address(to: &str) -> anyhow::Result<SocketAddr> {
    let found =
        to.to_socket_addrs().with_context(|| format!("--to '{to}': give HOST:PORT, like 192.0.2.2:5202"))?;
    found.into_iter().next().with_context(|| format!("--to '{to}' has no address"))
}

fn ended(status: &MoveStatus) -> Outcome {
    if let Some(error) = &status.error {
        return Err(anyhow!("{error}").into());
    }
    let stayed: u64 = status.stayed.values().sum();
    match (stayed, status.reset) {
        (0, 0) => Ok(()),
        (stayed, 0) => Err(Failure::Missed(format!("{stayed} connections stayed"))),
        (stayed, reset) => {
            Err(Failure::Missed(format!("{stayed} connections stayed and {reset} were reset")))
        }
    }
}

fn described(status: &MoveStatus, to: SocketAddr) -> String {
    let MoveStatus { moved, connections, moved_bytes, ended, reset, watched, .. } = status;
    let time = |us: u64| Nanos(us * 1000);
    let mut text = format!(
        "moved {moved} of {connections} connections to the relay '{}' on {to} in {}, with {} in their queues\n",
        status.name,
        time(status.time_us),
        Size(*moved_bytes)
    );
    if *moved > 0 {
        text.push_str(&format!("none was held back for longer than {}\n", time(status.longest_held_us)));
    }
    if *watched > 0 {
        text.push_str(&format!("told of {watched} connections that pass from end to end and are watched\n"));
    }
    if *ended > 0 {
        text.push_str(&format!("ended meanwhile by themselves: {ended}\n"));
    }
    if *reset > 0 {
        text.push_str(&format!("reset, as nobody could say whose they were: {reset}\n"));
    }
    for (reason, count) in &status.stayed {
        text.push_str(&format!("stayed: {count} {reason}\n"));
    }
    for Staying { connection, client, server, reason } in &status.staying {
        text.push_str(&format!("  connection {connection}, {client} to {server}: {}\n", why(*reason)));
    }
    text
}

/// In words.
fn why(reason: Stay) -> &'static str {
    match reason {
        Stay::Numbers => {
            "its rule does not accept 'end-to-end', so its two ends have different sequence numbers"
        }
        Stay::Closing => "it was ending",
        Stay::Urgent => "urgent data were under way all the time",
        Stay::Busy => "the relay was stepping into it or leaving it, or it never rested",
        Stay::Unwatched => "this kernel cannot keep its packets away meanwhile (TCX, Linux 6.6)",
        Stay::Size => "more bytes are queued than are moved",
        Stay::Rule => "the other relay has no rule of that name that accepts 'end-to-end'",
        Stay::Full => "the other relay is full, or its client has its share there",
        Stay::Draining => "the other relay is ending",
        Stay::PairBusy => "the other router has a connection of the same addresses and ports",
        Stay::Socket => "a socket could not be read here or made there; see both logs",
        Stay::Late => "the time was over",
        Stay::Unheard => "the other relay was not heard any more",
    }
}
