//! `longfat capture`.

mod collect;
mod confine;
mod program;
mod report;

use crate::{
    outcome::{Failure, Outcome, require},
    stop,
};
use anyhow::{Context as _, bail};
use collect::{Collected, Limits};
use longfat_analyze::{
    capture::LinkType,
    files::roll::{Form, Origin, Roll, RollSpec, Stopped},
};
use longfat_host::confine::Account;
use longfat_kernel::{
    capture::{self, BUFFER_BYTES, Capture, CaptureSpec, Direction, LinkHeader, PAYLOAD_MAX_BYTES, Snap},
    tcb::{NetNamespace, Scope},
};
use longfat_schema::units::{Nanos, Size};
use program::Program;
use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Write the headers of an interface's packets, both directions, into pcapng or Parquet files.
///
/// Headers only: payload is kept only if asked for. Times are nanoseconds, taken
/// where packets enter and leave the interface's tc hooks. Packets that found no
/// room are counted; summary and file say how many. A filter chooses packets:
/// conditions joined by 'and', 'or', 'not' and parentheses, like
///
///   host 10.0.0.0/8 and tcp and not port 22
///
///   src, dst, host `ADDRESS[/LENGTH][:PORTS]`; sport, dport, port 80, 8000-8999
///   or < 1024; tcp, udp, sctp, icmp, proto 89; ipv4, ipv6, arp; syn, fin, rst
///   vlan, vlan 5; gre, ipip; in, out
///
/// VLAN tags, GRE and IP in IP are seen through: addresses are looked for in the
/// outermost and in the innermost IP header, ports in the innermost. Ends at
/// Ctrl-C, SIGTERM, a limit, or when nobody reads standard output any more; however
/// it ends, nothing stays attached. With '-- PROGRAM' it ends when the program has,
/// which is started once packets are captured, as who calls, in the interface's
/// network namespace; a program that outlives the capture goes on.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "Examples:
  longfat capture -i eth0 -o slow.pcapng tcp and host 192.0.2.7
  longfat capture -i eth0 -o ring.pcapng --file-size 100MB --files 10
      ring.pcapng.00001 and so on, the newest ten
  longfat capture -i eth0 -o - --duration 10s tcp | longfat analyze -
  longfat capture -i eth0 -o slow.parquet tcp
      what the headers say, in columns
  longfat capture -i eth0 -o cost.pcapng --observer-cost
      what capturing cost the traffic
  longfat capture -i eth0 -o get.pcapng tcp -- curl -O https://HOST/big
      what passes while curl runs; its exit code is told

Exit code 1 when packets were lost: give a greater --buffer, or a filter. A
program's exit code is told, and does not change that of the capture.")]
pub struct Args {
    /// Which packets; all when left out.
    #[arg(value_name = "FILTER", allow_hyphen_values = false)]
    filter: Vec<String>,
    /// The interface.
    #[arg(short, long, value_name = "IFACE")]
    interface: String,
    /// The network namespace it is in: a name or a pid.
    #[arg(long, value_name = "NAME|PID")]
    netns: Option<String>,
    /// The file to write: pcapng, or a compact table when its name ends in '.parquet'; '-' is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Only packets that arrive ('in') or leave ('out').
    #[arg(long, value_enum, default_value = "both")]
    direction: Way,
    /// Keep headers up to this layer.
    #[arg(long, value_enum, default_value = "transport")]
    snap: Layer,
    /// Keep so much behind the headers, too; at most 1500B.
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    payload: Size,
    /// End by itself after this long.
    #[arg(long, value_name = "TIME")]
    duration: Option<Nanos>,
    /// End by itself after so many packets.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Begin another file when this one has so much.
    #[arg(long, value_name = "SIZE")]
    file_size: Option<Size>,
    /// Begin another file after this long.
    #[arg(long, value_name = "TIME")]
    file_time: Option<Nanos>,
    /// Keep so many files, the newest.
    #[arg(long, value_name = "N")]
    files: Option<usize>,
    /// Room for what happens between two looks, all processors together.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    buffer: Size,
    /// Let the kernel measure what capturing takes of the traffic's time.
    #[arg(long)]
    observer_cost: bool,
    /// Started by root: the user it becomes when it captures; 'root' to stay [default: longfat, or else nobody]. Files
    /// are root's all the same.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
    /// A program to run meanwhile, and its arguments: the capture ends when it does.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Way {
    In,
    Out,
    Both,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Layer {
    Link,
    Network,
    Transport,
}

/// Where there is no such interface, those that there are, are named.
fn link_header(interface: &str) -> anyhow::Result<capture::LinkHeader> {
    let there = longfat_kernel::mark::interfaces().unwrap_or_default();
    let is_there = there.is_empty() || there.iter().any(|name| name == interface);
    capture::link_header(interface).map_err(|error| match is_there {
        true => error.into(),
        false => anyhow::anyhow!("{error}; there are {}", there.join(", ")),
    })
}

pub fn run(args: &Args) -> Outcome {
    let spec = spec(args)?;
    let roll = roll_spec(args)?;
    refuse_replacing(&roll)?;
    let account = Account::choose(args.user.as_deref())?;
    refuse_nothing("--duration", args.duration, "100ms")?;
    require(capture::missing())?;
    let place = place(args.netns.as_deref())?;
    let stop = stop::flag()?;
    let to_unix_ns = longfat_host::realtime_offset_ns();
    let now_ns = || longfat_host::monotonic_ns() as i64 + to_unix_ns;
    // The file first: what is then seen has a place to go to.
    let link = place.run(|| link_header(&spec.interface)).context("enter the network namespace")??;
    let files = Roll::create(roll.clone(), origin(link, &spec), now_ns())?;
    let begun = place.run(|| Capture::attach(&spec)).context("enter the network namespace")?;
    let begun = begun.map_err(anyhow::Error::from).and_then(|capture| {
        // While this may start programs.
        let program =
            place.run(|| Program::start(&args.program)).context("enter the network namespace")??;
        let files = confine::alone(account, &roll, files)?;
        Ok((capture, program, files))
    });
    // What is left behind would only refuse the next try.
    let (mut capture, program, mut files) = begun.inspect_err(|_| remove_begun(&roll.path_of(1)))?;
    let until = program
        .as_ref()
        .map_or_else(|| "; Ctrl-C ends".to_owned(), |program| format!(" until '{}' ends", program.name()));
    eprintln!("capturing on '{}'{until}", spec.interface);
    let mut limits = Limits { duration: args.duration.map(Duration::from), packets: args.packets, program };
    let (mut collected, written) = collect::collect(&mut capture, &mut files, &mut limits, to_unix_ns, &stop);
    let program = limits.program.as_ref();
    let files = files.end(written).or_else(|stopped| {
        collected.cut(&stopped.cut);
        collected.is_unreadable = is_table(args);
        report::print(args, &collected, &stopped.files, program)?;
        Err(stopped_writing(args, &collected, &stopped))
    })?;
    report::print(args, &collected, &files, program)?;
    if collected.is_interface_gone {
        return Err(anyhow::anyhow!("'{}' is gone; what it had carried is written", args.interface).into());
    }
    match collected.counts.dropped.iter().sum::<u64>() {
        0 => Ok(()),
        lost => Err(Failure::Missed(format!(
            "{lost} packets found no room and are missing; give a greater --buffer (now {}) or a filter",
            args.buffer
        ))),
    }
}

/// Why the capture ended, and what is left of it.
fn stopped_writing(args: &Args, collected: &Collected, stopped: &Stopped) -> anyhow::Error {
    let lost: u64 = collected.counts.dropped.iter().sum();
    let error = &stopped.error;
    let full = if stopped.error.is_full() { "the disk is full; " } else { "" };
    let mend = if full.is_empty() { "" } else { ", make room, or keep less by --file-size and --files" };
    let end = match is_table(args) {
        true => "the last table lacks its end, and cannot be read".to_owned(),
        false => format!("{} packets are written, {lost} that matched are not", collect::total(collected)),
    };
    anyhow::anyhow!("{full}the capture ended here: {end}: {error}{mend}")
}

/// Removes the file of a capture that has not begun, if it is one.
fn remove_begun(path: &Path) {
    if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        let _ = std::fs::remove_file(path);
    }
}

fn spec(args: &Args) -> anyhow::Result<CaptureSpec> {
    if !BUFFER_BYTES.contains(&args.buffer.0) {
        bail!("--buffer {} is out of range; give 64KiB to 2GiB", args.buffer);
    }
    if args.payload.0 > PAYLOAD_MAX_BYTES.into() {
        bail!("--payload {} is too much; at most {PAYLOAD_MAX_BYTES}B can be kept", args.payload);
    }
    Ok(CaptureSpec {
        interface: args.interface.clone(),
        filter: args.filter.join(" ").parse()?,
        direction: match args.direction {
            Way::In => Some(Direction::Inbound),
            Way::Out => Some(Direction::Outbound),
            Way::Both => None,
        },
        snap: match args.snap {
            Layer::Link => Snap::Link,
            Layer::Network => Snap::Network,
            Layer::Transport => Snap::Transport,
        },
        payload_bytes: args.payload.0 as u32,
        buffer_bytes: args.buffer.0,
        measures_cost: args.observer_cost,
    })
}

/// A limit of nothing would end the capture, or a file, before its first packet.
fn refuse_nothing<T: Default + PartialEq + fmt::Display>(
    flag: &str,
    value: Option<T>,
    least: &str,
) -> anyhow::Result<()> {
    match value {
        Some(value) if value == T::default() => {
            bail!("{flag} {value} leaves room for nothing; give {least} or more")
        }
        _ => Ok(()),
    }
}

/// What an earlier capture left is neither written over, nor removed with the oldest, nor mixed with this one's files.
fn refuse_replacing(roll: &RollSpec) -> anyhow::Result<()> {
    if !roll.has_several() {
        return crate::kept::refuse_replacing("-o", &roll.path);
    }
    match &roll.numbered()[..] {
        [] => Ok(()),
        [only] => bail!(
            "-o '{}': '{}' is there already, and is not replaced; name another file, or remove it first",
            roll.path.display(),
            only.display()
        ),
        [first, .., last] => bail!(
            "-o '{}': files from '{}' to '{}' are there already, and are not replaced; name another file, or remove \
             them first",
            roll.path.display(),
            first.display(),
            last.display()
        ),
    }
}

fn roll_spec(args: &Args) -> anyhow::Result<RollSpec> {
    refuse_nothing("--file-size", args.file_size, "64KiB")?;
    refuse_nothing("--file-time", args.file_time, "100ms")?;
    refuse_nothing("--files", args.files, "1")?;
    let several = args.file_size.is_some() || args.file_time.is_some();
    if args.files.is_some() && !several {
        bail!("--files needs --file-size or --file-time, which end a file");
    }
    if several && args.output.as_os_str() == "-" {
        bail!("standard output is one file; leave out --file-size and --file-time, or name a file with -o");
    }
    if !args.program.is_empty() && args.output.as_os_str() == "-" {
        bail!("the capture and a program both write to standard output; name a file with -o");
    }
    if args.json && args.output.as_os_str() == "-" {
        bail!("the capture and --json both go to standard output; name a file with -o");
    }
    let is_table = is_table(args);
    if is_table && (args.payload.0 > 0 || !matches!(args.snap, Layer::Transport)) {
        bail!(
            "a table has what whole headers say and no payload; leave out --payload and --snap, or write pcapng"
        );
    }
    Ok(RollSpec {
        path: args.output.clone(),
        most_bytes: args.file_size.map(|size| size.0),
        most_ns: args.file_time.map(|time| time.0 as i64),
        keep: args.files,
        form: if is_table { Form::Columns } else { Form::Pcapng },
    })
}

fn is_table(args: &Args) -> bool {
    args.output.extension().is_some_and(|extension| extension == "parquet")
}

fn place(netns: Option<&str>) -> anyhow::Result<NetNamespace> {
    let scope = netns.map_or(Ok(Scope::Own), str::parse)?;
    if scope == Scope::All {
        bail!("--netns all: an interface is in one network namespace; name that one");
    }
    let mut places = scope.namespaces()?;
    places.pop().context("no network namespace")
}

fn origin(link: LinkHeader, spec: &CaptureSpec) -> Origin {
    Origin {
        application: format!("longfat {}", env!("CARGO_PKG_VERSION")),
        interface: spec.interface.clone(),
        link: LinkType(match link {
            LinkHeader::Ethernet => 1,
            LinkHeader::RawIp => 101,
        }),
        snap_bytes: capture::most_kept_bytes(spec.payload_bytes),
        filter: spec.filter.text().to_owned(),
    }
}
