//! `longfat background`.

use super::cc::under;
use crate::outcome::Outcome;
use std::ffi::OsString;

/// Run any program, unmodified, as a background transfer: it uses only what its path has left.
///
/// Every TCP connection that it and its children open sends under 'lf_imtcp_bg', which measures the available bandwidth
/// and gives way as soon as the round-trip time rises. The exit code is the program's. What it receives is paced by
/// the other end and is not slowed down: run this at the sending end.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat background -- rsync -a /data/ host:/backup/
  longfat background -- restic backup /home
  longfat background --cc ledbat -- curl -T big https://HOST/    by delay alone (RFC 6817)
  longfat avail --watch                                          what it measures meanwhile")]
pub struct Args {
    /// Another congestion control for it: 'ledbat', 'tcp_lp'.
    #[arg(long, value_name = "NAME", default_value = "lf_imtcp_bg", value_parser = ["imtcp-bg", "imtcp_bg", "lf_imtcp_bg", "ledbat", "lf_ledbat", "tcp-lp", "tcp_lp", "lf_tcp_lp"])]
    cc: String,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(args: &Args) -> Outcome {
    // Ours, also where the kernel has a module of that name.
    let name = longfat_cc::Algorithm::find(&args.cc)?.kernel_name();
    under(&name, &args.command)
}
