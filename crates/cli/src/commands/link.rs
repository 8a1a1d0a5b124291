//! `longfat link`.

mod import;

use crate::{
    fitted,
    outcome::{Failure, Outcome, require},
    stop,
};
use anyhow::{Context, bail};
use clap::Subcommand;
use comfy_table::Table;
use longfat_host::support;
use longfat_link::{
    LinkPlan, LinkSpec,
    driver::{self, DriverError, Options, Start},
    netem,
    shell::{DriverName, Report, Shell, ShellError},
    spec::{DirectionSpec, DisciplineName, LossSpec, QueueSpec, RateSpec, Traces},
    trace::TraceSpec,
};
use longfat_schema::{
    lines::Lines,
    record::LinkSummary,
    units::{Nanos, Size, part},
};
use std::{
    ffi::OsString,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{Arc, atomic::AtomicBool},
};

const RUN_EXAMPLES: &str = "\
Examples:
  # On this host: a server. Then, through 1 Gbit/s x 28.4 ms of round trip with
  # a queue of one bandwidth-delay product, a client; $LONGFAT_HOST is this host
  # as seen through the path:
  iperf3 -s -D
  longfat link run --rate 1Gbit --delay 14.2ms --queue 3550KB --coalesce 50us \\
      -- sh -c 'iperf3 -c $LONGFAT_HOST -C cubic'

  # A shell behind a slow, lossy, asymmetric line with CoDel and ECN:
  longfat link run --rate 20Mbit --backward-rate 2Mbit --delay 30ms \\
      --loss 0.001 --aqm codel --ecn

  # The path of a file (TOML: the keys of an experiment's [links.NAME], without
  # 'between'; or JSON), with the queue sampled every millisecond:
  longfat link run --plan path.toml --samples path.jsonl -- \\
      sh -c 'curl -o /dev/null http://$LONGFAT_HOST/'

  # A recorded link (docs/design/link.md):
  longfat link run --trace train.down --delay 30ms -- \\
      sh -c 'iperf3 -R -c $LONGFAT_HOST'

'forward' is from the command to this host. The rate counts IP packets; --overhead 38B counts Ethernet's framing, too. \
The exit code is the command's; 3 when this host lacks what is needed.";

const DRIVE_EXAMPLES: &str = "\
Example, between two interfaces that lead to two hosts (namespaces) and carry \
no addresses themselves:
  ip netns exec wire longfat link drive --plan plan.json --a left --b right \\
      --samples link.jsonl

It prints 'ready' when packets pass, and ends on SIGTERM or SIGINT with a summary. The sending hosts must have TSO and \
GSO off ('ethtool -K IFACE tso off gso off gro off'); larger frames are not delivered and make the run invalid.";

/// An emulated path: rate, delay, jitter, loss, a bounded queue with its discipline, changes over time.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: LinkCommand,
}

#[derive(Subcommand)]
enum LinkCommand {
    Run(Box<RunArgs>),
    Drive(DriveArgs),
    Import(import::ImportArgs),
}

/// Run a shell or a command inside an emulated path to this host.
#[derive(clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
struct RunArgs {
    #[command(flatten)]
    path: PathArgs,
    #[command(flatten)]
    driver: DriverArgs,
    /// Exit with 1 when the driver was not punctual, even though the command succeeded.
    #[arg(long)]
    strict: bool,
    /// Say nothing on standard error unless something is wrong.
    #[arg(long, short)]
    quiet: bool,
    /// The command [default: $SHELL].
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// Run the link between two interfaces of the current network namespace, until SIGTERM.
#[derive(clap::Args)]
#[command(after_help = DRIVE_EXAMPLES)]
struct DriveArgs {
    /// The link: a plan (JSON), or what a person writes (.toml).
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Interface of the first end.
    #[arg(long, value_name = "IFACE")]
    a: String,
    /// Interface of the second end.
    #[arg(long, value_name = "IFACE")]
    b: String,
    #[command(flatten)]
    driver: DriverArgs,
    /// Begin the schedule of changes at this CLOCK_MONOTONIC time [default: at once].
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "schedule_on_usr1")]
    schedule_at_us: Option<u64>,
    /// Begin the schedule of changes on SIGUSR1.
    #[arg(long)]
    schedule_on_usr1: bool,
}

#[derive(clap::Args)]
struct DriverArgs {
    /// What runs the link: this program (af_packet) or the kernel's emulator, where it has one (netem).
    #[arg(long, value_name = "NAME", default_value = "af_packet", value_parser = driver_name)]
    driver: DriverName,
    /// Write records (queue samples, summary, warnings) to this file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Print the summary as JSON on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct PathArgs {
    /// Take the whole path from this file (.toml as people write it, else a JSON plan).
    #[arg(long, value_name = "FILE", exclusive = false, conflicts_with_all = [
        "rate", "delay", "jitter", "reorder", "loss", "queue", "aqm", "ecn", "mtu", "overhead", "seed", "coalesce",
        "late_limit", "pause_limit", "backward_rate", "backward_delay", "trace", "backward_trace"])]
    plan: Option<PathBuf>,
    /// Follow a recorded link: mahimahi's packet-delivery file, or a .csv or .parquet of time, rate, delay, loss.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Recorded link from this host back to the command [default: as --trace].
    #[arg(long, value_name = "FILE")]
    backward_trace: Option<PathBuf>,
    /// Rate of the line in bits of IP packets per second [default: unlimited].
    #[arg(long)]
    rate: Option<RateSpec>,
    /// One-way delay [default: none].
    #[arg(long, value_name = "TIME")]
    delay: Option<Nanos>,
    /// Rate from this host back to the command [default: as --rate].
    #[arg(long, value_name = "RATE")]
    backward_rate: Option<RateSpec>,
    /// One-way delay from this host back to the command [default: as --delay].
    #[arg(long, value_name = "TIME")]
    backward_delay: Option<Nanos>,
    /// Extra delay, uniform from 0 to this.
    #[arg(long, value_name = "TIME")]
    jitter: Option<Nanos>,
    /// Let jitter change the order of packets.
    #[arg(long, requires = "jitter")]
    reorder: bool,
    /// Part of the packets that is lost on the line, like 0.001 or 0.1%.
    #[arg(long, value_name = "SHARE", value_parser = part)]
    loss: Option<f64>,
    /// Most bytes waiting before the line [default: one bandwidth-delay product, at least 64 packets].
    #[arg(long, value_name = "SIZE")]
    queue: Option<Size>,
    /// The queue's discipline: droptail, red or codel [default: droptail].
    #[arg(long, value_name = "NAME")]
    aqm: Option<DisciplineName>,
    /// Mark instead of drop where packets allow it (red, codel).
    #[arg(long)]
    ecn: bool,
    /// Largest IP packet in bytes [default: 1500].
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Bytes the rate counts per packet beyond the IP packet, like 38B for Ethernet [default: 0].
    #[arg(long, value_name = "SIZE")]
    overhead: Option<Size>,
    /// Seed of everything random [default: 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Let packets leave up to this much late, so that neighbours of one flow leave as one: needs less processor,
    /// changes the spacing of packets [default: 0].
    #[arg(long, value_name = "TIME")]
    coalesce: Option<Nanos>,
    /// Limit of the 99th percentile of lateness [default: 300us].
    #[arg(long, value_name = "TIME")]
    late_limit: Option<Nanos>,
    /// Part of the time, like 0.02 or 2%, for which the path may stand still with its machine [default: 0.02].
    #[arg(long, value_name = "SHARE", value_parser = part)]
    pause_limit: Option<f64>,
}

pub fn run(args: Args) -> Outcome {
    match args.command {
        LinkCommand::Run(args) => run_inside(&args),
        LinkCommand::Drive(args) => drive(&args),
        LinkCommand::Import(args) => import::run(&args),
    }
}

fn run_inside(args: &RunArgs) -> Outcome {
    let plan = args.path.resolve()?;
    require(missing(args.driver.driver))?;
    let lines = args.driver.lines()?;
    // Ctrl-C is the command's to answer; this program only sees to it that it survives to tidy up.
    let (_interrupted, end) = (flag_on(&[signal_hook::consts::SIGINT])?, flag_on(&ENDING)?);
    let shell = Shell::make(&plan)?;
    if !args.quiet {
        let (host, inside) = (shell.host_addresses().join(" and "), &shell.inside_addresses()[0]);
        eprintln!("longfat: inside the path as {inside}; this host answers at {host}");
    }
    let ran = shell.run(&plan, args.driver.driver, &lines, &args.command, &end);
    drop(shell);
    let (status, report) = match ran {
        Err(ShellError::Driver(error)) => return Err(args.driver.failed(error, args.quiet)),
        ran => ran?,
    };
    args.driver.show(&report, args.quiet)?;
    let punctual = tell_punctuality(&report);
    match exit_code(status) {
        0 if args.strict && !punctual => Err(Failure::Missed("the link was not punctual".to_owned())),
        0 => Ok(()),
        code => Err(Failure::Child(code)),
    }
}

fn drive(args: &DriveArgs) -> Outcome {
    let plan = read_plan(&args.plan)?;
    require(missing(args.driver.driver))?;
    let (lines, stop) = (args.driver.lines()?, stop::flag()?);
    let start = match args.schedule_at_us {
        Some(at_us) => Start::At(at_us.saturating_mul(1000)),
        None if args.schedule_on_usr1 => Start::OnFlag(flag_on(&[signal_hook::consts::SIGUSR1])?),
        None => Start::Now,
    };
    let ready = || {
        println!("ready");
        // Nobody may be listening any more; the link runs all the same.
        let _ = std::io::stdout().flush();
    };
    let report = match args.driver.driver {
        DriverName::AfPacket => {
            let options = Options { plan: &plan, a: &args.a, b: &args.b, lines: &lines, stop: &stop, start };
            let ran = driver::run(&options, ready);
            Report::AfPacket(Box::new(ran.map_err(|error| args.driver.failed(error, false))?))
        }
        DriverName::Netem => {
            Report::Netem(Box::new(netem::run(&plan, [&args.a, &args.b], &lines, &stop, ready)?))
        }
    };
    args.driver.show(&report, false)?;
    tell_punctuality(&report);
    Ok(())
}

const ENDING: [i32; 2] = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP];

fn flag_on(signals: &[i32]) -> std::io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in signals {
        signal_hook::flag::register(*signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

fn missing(driver: DriverName) -> Vec<support::Missing> {
    let mut missing = support::missing_for_namespaces();
    if missing.is_empty() && driver == DriverName::Netem {
        missing = netem::missing();
    }
    missing
}

fn driver_name(text: &str) -> Result<DriverName, String> {
    match text {
        "af_packet" => Ok(DriverName::AfPacket),
        "netem" => Ok(DriverName::Netem),
        _ => Err(format!("unknown driver '{text}'; choose af_packet or netem")),
    }
}

impl PathArgs {
    fn resolve(&self) -> anyhow::Result<LinkPlan> {
        if let Some(file) = &self.plan {
            return read_plan(file);
        }
        let backward = DirectionSpec {
            rate: self.backward_rate,
            delay: self.backward_delay,
            trace: self.backward_trace.as_ref().map(TraceSpec::of),
            ..DirectionSpec::default()
        };
        let backward = Some(backward).filter(|backward| *backward != DirectionSpec::default());
        let queue = QueueSpec {
            discipline: self.aqm,
            limit: self.queue,
            ecn: self.ecn.then_some(true),
            ..QueueSpec::default()
        };
        let mut spec = LinkSpec {
            trace: self.trace.as_ref().map(TraceSpec::of),
            rate: self.rate,
            delay: self.delay,
            jitter: self.jitter,
            reorder: Some(self.reorder),
            loss: self.loss.map(LossSpec::Probability),
            queue: Some(queue),
            overhead: self.overhead,
            mtu: self.mtu,
            seed: self.seed,
            coalesce: self.coalesce,
            late_limit_p99: self.late_limit,
            pause_limit: self.pause_limit,
            backward,
            ..LinkSpec::default()
        };
        spec.load_traces("path", Path::new("."), &mut Traces::default())?;
        Ok(spec.resolve("path", 1)?)
    }
}

/// A link as a person wrote it (.toml), or as a plan of the lab.
pub fn read_plan(file: &Path) -> anyhow::Result<LinkPlan> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("link plan '{shown}'"))?;
    if file.extension().is_some_and(|extension| extension == "toml") {
        let mut spec = LinkSpec::from_toml(&text).with_context(|| format!("link '{shown}'"))?;
        let name = file.file_stem().map_or_else(|| "path".into(), |stem| stem.to_string_lossy().into_owned());
        spec.load_traces(&name, file.parent().unwrap_or(Path::new(".")), &mut Traces::default())?;
        return Ok(spec.resolve(&name, 1)?);
    }
    match LinkPlan::from_json(&text) {
        Ok(plan) => Ok(plan),
        Err(error) => bail!("link plan '{shown}': {error}; a file that people write must end in .toml"),
    }
}

impl DriverArgs {
    fn lines(&self) -> anyhow::Result<Lines> {
        let Some(path) = &self.samples else { return Ok(Lines::default()) };
        crate::kept::refuse_replacing("--samples", path)?;
        Lines::create(path).with_context(|| format!("samples file '{}'", path.display()))
    }

    /// The failure of a driver, after what it carried until then has been shown.
    fn failed(&self, error: DriverError, quiet: bool) -> Failure {
        let DriverError::Cut(report) = error else { return error.into() };
        let failure = DriverError::Cut(report.clone());
        match self.show(&Report::AfPacket(report), quiet) {
            Ok(()) => failure.into(),
            Err(error) => error.into(),
        }
    }

    fn show(&self, report: &Report, quiet: bool) -> anyhow::Result<()> {
        if self.json {
            let text = match report {
                Report::AfPacket(report) => serde_json::to_string(report)?,
                Report::Netem(ways) => {
                    serde_json::json!({ "forward": ways[0], "backward": ways[1] }).to_string()
                }
            };
            println!("{text}");
        } else if !quiet {
            eprintln!("{}", fitted::fitted(table(ways(report)), &[8, 6, 5, 10]));
            if let Report::AfPacket(report) = report {
                let (cpu, seconds) = (report.cpu_share * 100.0, report.duration_us as f64 / 1e6);
                eprintln!("the driver used {cpu:.0} % of a processor core over {seconds:.1} s");
            }
        }
        Ok(())
    }
}

fn ways(report: &Report) -> [&LinkSummary; 2] {
    match report {
        Report::AfPacket(report) => [&report.forward, &report.backward],
        Report::Netem(ways) => [&ways[0], &ways[1]],
    }
}

fn table(ways: [&LinkSummary; 2]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).use_stderr();
    table.set_header([
        "",
        "offered",
        "delivered",
        "dropped",
        "lost",
        "marked",
        "queue mean",
        "queue max",
        "late p50",
        "late p99",
        "late max",
    ]);
    for way in ways {
        let us = |value: u64| format!("{value} us");
        let row = [
            way.offered_packets,
            way.delivered_packets,
            way.dropped_packets,
            way.lost_packets,
            way.marked_packets,
        ]
        .map(|count| count.to_string());
        let queue = [way.queue_mean_bytes, way.queue_max_bytes].map(|bytes| Size(bytes).to_string());
        let late = [way.late_p50_us, way.late_p99_us, way.late_max_us].map(us);
        table.add_row(std::iter::once(way.direction.clone()).chain(row).chain(queue).chain(late));
    }
    table
}

/// Says loudly what was wrong with the run; whether the driver kept its promise.
fn tell_punctuality(report: &Report) -> bool {
    let Report::AfPacket(report) = report else { return true };
    for warning in report.warnings() {
        eprintln!("longfat: WARNING: {warning}");
    }
    if report.stalls > 0 {
        let longest_ms = report.longest_stall_us as f64 / 1e3;
        eprintln!("longfat: the driver was held up {} times, {longest_ms:.1} ms at most", report.stalls);
    }
    if !report.punctual() {
        eprintln!("longfat: WARNING: this run is INVALID as a measurement: the link was not punctual");
    }
    report.punctual()
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}
