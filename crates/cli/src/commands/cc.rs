//! `longfat cc`.

use crate::{
    fitted::fitted,
    outcome::{Failure, Outcome, require},
    output::print_json,
    stop,
};
use comfy_table::{ContentArrangement, Table, presets};
use longfat_cc::{Algorithm, Tunables};
use longfat_kernel::{
    cc::{self, Entry, Inbound, Loading, Origin, Presence, Treatment},
    support::{Capability, missing},
};
use serde_json::json;
use std::{collections::BTreeMap, ffi::OsString, process::Command};

/// Congestion controls: list, load, unload, and run a program under one.
///
/// Ours bear names that begin with 'lf_' in the kernel, so that they never collide with the kernel's own. 'load' and
/// 'unload' take both forms: 'highspeed' and 'lf_highspeed'.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat cc list
      what this kernel has, what can be loaded, who uses it
  longfat cc load highspeed
      programs of root may now choose 'lf_highspeed'
  longfat cc load highspeed --set max_ssthresh_segments=100
  longfat cc exec highspeed -- iperf3 -c HOST
      one program and its children, unmodified
  longfat cc unload highspeed")]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    List(List),
    Load(Load),
    Unload(Unload),
    Exec(Exec),
}

/// Every congestion control of this kernel and of longfat, with settings and users.
///
/// Sockets are counted over all network namespaces; processes are named for ours.
#[derive(clap::Args)]
struct List {
    /// One JSON array instead of a table.
    #[arg(long)]
    json: bool,
}

/// Load one of ours into the kernel; it stays after this command, until unloaded or the next boot.
///
/// Loading it again with other settings replaces it: new connections get the new one, open ones keep theirs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat cc load highspeed
  longfat cc load highspeed --set max_ssthresh_segments=100
      limited slow start (RFC 3742)
  sysctl -w net.ipv4.tcp_congestion_control=lf_highspeed
      make it the default of this host")]
struct Load {
    /// 'highspeed' or 'lf_highspeed'.
    name: String,
    /// Set a tunable ('longfat cc list' shows them).
    #[arg(long = "set", value_name = "TUNABLE=VALUE")]
    settings: Vec<String>,
    /// What was done as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Take one of ours out of the kernel. Connections that use it keep it until they close.
#[derive(clap::Args)]
#[command(after_help = "Example:
  longfat cc unload highspeed")]
struct Unload {
    /// 'highspeed' or 'lf_highspeed'.
    name: String,
    /// What was done as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// Run any program, unmodified, and all its children under a congestion control.
///
/// Every TCP socket they open gets it before its SYN, and what they ask for themselves is overruled. The exit code is
/// the program's. Returns when the last child has ended; Ctrl-C ends them. NAME is one of ours ('highspeed' or
/// 'lf_highspeed'), which is registered for as long as the program runs, or else the kernel's. 'reno' and 'cubic' are
/// the kernel's, since every kernel has them; 'kernel:highspeed' is the kernel's where both have one.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat cc exec highspeed -- curl -O https://HOST/FILE
  longfat cc exec lf_reno -- iperf3 -s
      connections it accepts are under it too
  longfat cc exec cubic -- bash
      everything started from this shell")]
struct Exec {
    /// A congestion control of the kernel or of longfat.
    name: String,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Outcome {
    match args.command {
        Subcommand::List(args) => list(&args),
        Subcommand::Load(args) => load(&args),
        Subcommand::Unload(args) => unload(&args),
        Subcommand::Exec(args) => exec(&args),
    }
}

fn list(args: &List) -> Outcome {
    require(missing(&[Capability::CongestionControl]))?;
    let entries = cc::list()?;
    if args.json {
        crate::output::print_json(&entries)?;
    } else {
        println!("{}", fitted(table(&entries), &[5, 4, 1]));
    }
    Ok(())
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["name", "origin", "in the kernel", "tunables", "sockets", "processes"]);
    for entry in entries {
        let mark = if entry.default { " (default)" } else { "" };
        table.add_row([
            format!("{}{mark}", entry.name),
            origin(entry.origin).to_owned(),
            presence(entry),
            entry
                .tunables
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join("\n"),
            entry.sockets.to_string(),
            processes(entry),
        ]);
    }
    table
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Kernel => "kernel",
        Origin::Longfat => "longfat",
        Origin::Other => "another program",
    }
}

fn presence(entry: &Entry) -> String {
    let how = match entry.presence {
        Presence::Builtin => "built in",
        Presence::Pinned => "loaded",
        Presence::Held => "held by a process",
        Presence::Unseen => "yes; pins are not seen from here",
        Presence::Absent => "no",
    };
    let build = if entry.same_build == Some(false) { " (another build)" } else { "" };
    format!("{how}{build}")
}

fn processes(entry: &Entry) -> String {
    let texts: Vec<_> =
        entry.processes.iter().map(|process| format!("{}[{}]", process.name, process.pid)).collect();
    texts.join(" ")
}

fn load(args: &Load) -> Outcome {
    let tunables = Tunables::from_settings(Algorithm::find(&args.name)?, &args.settings)?;
    require(missing(&[Capability::CongestionControl, Capability::Pinning]))?;
    let name = tunables.algorithm().kernel_name();
    let loading = cc::load(&tunables)?;
    if args.json {
        return Ok(print_json(
            &json!({ "name": name, "outcome": outcome(&loading), "tunables": named(&tunables) }),
        )?);
    }
    match loading {
        Loading::Loaded => println!("'{name}' is loaded ({tunables})"),
        Loading::Replaced => {
            println!("'{name}' is replaced ({tunables}); open connections keep what they had")
        }
        Loading::Unchanged => println!("'{name}' was loaded already ({tunables})"),
    }
    Ok(())
}

fn outcome(loading: &Loading) -> &'static str {
    match loading {
        Loading::Loaded => "loaded",
        Loading::Replaced => "replaced",
        Loading::Unchanged => "unchanged",
    }
}

fn named(tunables: &Tunables) -> BTreeMap<&'static str, u32> {
    tunables
        .algorithm()
        .tunables()
        .map(|tunable| tunable.name())
        .zip(tunables.values().iter().copied())
        .collect()
}

fn unload(args: &Unload) -> Outcome {
    let algorithm = Algorithm::find(&args.name)?;
    require(missing(&[Capability::CongestionControl, Capability::Pinning]))?;
    let left = cc::unload(algorithm)?;
    if args.json {
        let (name, sockets, held) = (algorithm.kernel_name(), left.sockets, left.held);
        return Ok(print_json(
            &json!({ "name": name, "outcome": "unloaded", "sockets": sockets, "held": held }),
        )?);
    }
    println!("'{}' is unloaded", algorithm.kernel_name());
    if left.sockets > 0 {
        println!("{} sockets use it until they close", left.sockets);
    }
    if left.held {
        println!("a running longfat still holds it; it goes when that ends");
    }
    Ok(())
}

fn exec(args: &Exec) -> Outcome {
    under(Treatment::sending(&args.name), &args.command)
}

/// Runs a program with its sockets treated as said.
pub fn under(treatment: Treatment<'_>, words: &[OsString]) -> Outcome {
    let mut needs = vec![Capability::CgroupChoice];
    let is_ours = treatment.cc.is_some_and(cc::means_ours);
    needs.extend(is_ours.then_some(Capability::CongestionControl));
    needs.extend(treatment.receives_in_background.then_some(Capability::WindowSteering));
    require(missing(&needs))?;
    let stop = stop::flag()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let ended = cc::exec(treatment, command, &stop, |kernel_name| {
        if let Some(name) = kernel_name {
            let whose = if is_ours { "longfat's own" } else { "the kernel's own" };
            eprintln!("longfat: running under '{name}', {whose}");
        }
    })?;
    if let Some(name) = treatment.cc.filter(|_| ended.refused_sockets > 0) {
        eprintln!("longfat: {} sockets did not take '{name}'", ended.refused_sockets);
    }
    say_inbound(&ended.inbound);
    match ended.exit_code {
        0 => Ok(()),
        code => Err(Failure::Child(code)),
    }
}

fn say_inbound(inbound: &Inbound) {
    let (all, count) = (inbound.steered + inbound.untimed, inbound.untimed);
    if count > 0 {
        eprintln!(
            "longfat: {count} of {all} connections received without giving way: no TCP timestamps were found in what they \
             received (sysctl net.ipv4.tcp_timestamps, at both ends)"
        );
    }
    if inbound.refused > 0 {
        eprintln!("longfat: the kernel refused {} windows", inbound.refused);
    }
}
