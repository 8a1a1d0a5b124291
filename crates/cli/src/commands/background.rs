//! `longfat background`.

use super::cc::under;
use crate::outcome::Outcome;
use longfat_kernel::cc::Treatment;
use std::ffi::OsString;

/// Run any program, unmodified, as a background transfer: it uses only what its path has left.
///
/// Every TCP connection that it and its children open sends under 'lf_imtcp_bg', which measures the available bandwidth
/// and gives way as soon as the round-trip time rises. What it receives gives way, too, whatever the other end is: the
/// window that it advertises keeps the delay that the download adds at 5 ms. The exit code is the program's.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat background -- rsync -a /data/ host:/backup/
  longfat background -- curl -O https://HOST/big
      what it receives gives way
  longfat background --cc ledbat -- curl -T big https://HOST/
      sends by delay alone (RFC 6817)
  longfat background --direction receive -- apt upgrade
      its uploads are left alone
  longfat avail --watch
      what it measures meanwhile")]
pub struct Args {
    /// Another congestion control for what it sends: 'ledbat', 'tcp_lp'.
    #[arg(long, value_name = "NAME", default_value = "lf_imtcp_bg", value_parser = ["imtcp-bg", "imtcp_bg", "lf_imtcp_bg", "ledbat", "lf_ledbat", "tcp-lp", "tcp_lp", "lf_tcp_lp"])]
    cc: String,
    /// Which direction gives way: what it sends, what it receives (needs TCP timestamps, which nearly all hosts have),
    /// or both.
    #[arg(long, value_name = "WHICH", default_value = "both")]
    direction: Direction,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    Both,
    Send,
    Receive,
}

pub fn run(args: &Args) -> Outcome {
    // Ours, also where the kernel has a module of that name.
    let name = longfat_cc::Algorithm::find(&args.cc)?.kernel_name();
    let treatment = Treatment {
        cc: (args.direction != Direction::Receive).then_some(name.as_str()),
        receives_in_background: args.direction != Direction::Send,
    };
    under(treatment, &args.command)
}
