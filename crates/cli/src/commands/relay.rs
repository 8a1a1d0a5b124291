//! `longfat relay`.

mod check;
mod confine;
mod daemon;
mod keep;
mod log;
mod moves;
mod notify;
mod quick;
mod rule;
mod status;

pub use status::living_sockets;

use crate::{
    outcome::{Failure, Outcome},
    output,
};
use anyhow::Context;
use clap::ArgGroup;
use confine::{Kept, UserArgs};
use longfat_host::monotonic_us;
use longfat_relay::{
    Acknowledge, AfterSpec, ConnectionSummary, Error, LegPlan, Network, Observer, Ports, QueueSpec, Ready,
    RelayPlan, RelayStats, TargetSpec,
};
use longfat_schema::{
    lines::Lines,
    record::{Note, Record},
    units::{Nanos, Rate, Size},
};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

const EXAMPLES: &str = "\
Examples:
  # As a service, with rules in a file: 'longfat relay run --help' shows one.
  longfat relay run /etc/longfat/relay.toml

  # On the router between a LAN and a long path: every TCP connection that comes
  # in on 'lan' runs HighSpeed TCP on the long leg. Servers see the clients' own
  # addresses and ports. Ctrl-C removes every rule again.
  longfat relay --intercept lan --cc-server lf_highspeed

  # Only web traffic to one network:
  longfat relay --intercept lan --match-port 80 --match-port 443 \\
      --match-dst 203.0.113.0/24

  # Without privileges, as an ordinary proxy for one server:
  longfat relay --listen 0.0.0.0:8080 --to server.example:80 --cc-server cubic

  # No connection's bytes wait longer than about 5 ms in the relay, rather than
  # 20 ms; 'off' leaves its queue alone:
  longfat relay --intercept lan --cc-server lf_highspeed --queue-target 5ms

  # What it holds and how both legs do, every 10 ms, one JSON object per line:
  longfat relay --intercept lan --samples relay.jsonl

Buffers: the send buffer of the leg on the long path must hold twice its bandwidth-delay product (1 Gbit/s x 28.4 ms: \
7.1 MB of payload, which is the default). What a stalled server makes the relay take from a client is bounded by the \
client leg's buffer and the server leg's.";

/// Split TCP connections and carry them on with another congestion control.
///
/// A transparent relay (--intercept) takes connections that pass through this host; an explicit one (--listen, --to)
/// is connected to. Prints a line beginning with 'ready' when it works. Ends on SIGINT, SIGTERM or SIGHUP: no new
/// connections, living ones may finish for the --drain time (a second signal: at once), every nft table and routing
/// rule is removed. With a file ('run') it is a service.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true,
          group(ArgGroup::new("from").required(true).args(["intercept", "listen", "config"])))]
pub struct Args {
    #[command(subcommand)]
    command: Option<Subcommand>,

    /// Take everything from a file as 'longfat relay run' does, instead of from options.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "cc_client", "cc_server", "buffer_client", "buffer_server", "pacing_server", "notsent_lowat", "queue_target",
        "queue", "adopt_after", "adopt_rate", "adopt_rtt", "adopt_losses", "release_after", "acknowledge", "socket", "metrics", "name", "workers", "keep", "drain", "reset_wait", "coalesce",
    ])]
    config: Option<PathBuf>,

    /// Take connections whose packets come in on this interface (the LAN side); may be repeated.
    #[arg(long, value_name = "IFACE", help_heading = "Transparent")]
    intercept: Vec<String>,
    /// Only connections to this port or range, like 443 or 8000-8080; may be repeated.
    #[arg(long, value_name = "PORT", requires = "intercept", help_heading = "Transparent")]
    match_port: Vec<Ports>,
    /// Only connections to this network, like 192.0.2.0/24 or 2001:db8::/32; may be repeated.
    #[arg(long, value_name = "NETWORK", requires = "intercept", help_heading = "Transparent")]
    match_dst: Vec<Network>,
    /// Turn IP forwarding on while the relay runs, instead of refusing when it is off.
    #[arg(long, requires = "intercept", help_heading = "Transparent")]
    forwarding: bool,
    /// Packet mark to use [default: a free one]. It and the 481 above it must be free: the next one marks the relay's
    /// own packets, the rest are of SYNs that workers hold.
    #[arg(long, value_name = "N", value_parser = number, requires = "intercept", help_heading = "Transparent")]
    mark: Option<u32>,
    /// Routing table to use, 256 or above [default: a free one]. It and the 480 above it must be free.
    #[arg(long, value_name = "N", value_parser = number, requires = "intercept", help_heading = "Transparent")]
    table: Option<u32>,

    /// Listen here.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        conflicts_with = "intercept",
        requires = "to",
        help_heading = "Explicit"
    )]
    listen: Option<SocketAddr>,
    /// Connect to this server for each client; the name is looked up once, its addresses are tried in order.
    #[arg(long, value_name = "HOST:PORT", requires = "listen", help_heading = "Explicit")]
    to: Option<String>,

    /// Congestion control towards the client [default: the system's].
    #[arg(long, value_name = "CC", help_heading = "Legs")]
    cc_client: Option<String>,
    /// Congestion control towards the server [default: the system's].
    #[arg(long, value_name = "CC", help_heading = "Legs")]
    cc_server: Option<String>,
    /// Send and receive buffer towards the client, as the kernel counts it: half of it is payload [default: 2MiB].
    #[arg(long, value_name = "SIZE", help_heading = "Legs")]
    buffer_client: Option<Size>,
    /// Send and receive buffer towards the server, as the kernel counts it: half of it is payload [default: 16MiB].
    #[arg(long, value_name = "SIZE", help_heading = "Legs")]
    buffer_server: Option<Size>,
    /// Most that is sent towards the server. Whatever the limit, the kernel then paces: segments leave evenly spaced at
    /// 1.2 times the window per round trip and not in bursts, which a short queue on the way drops.
    #[arg(long, value_name = "RATE", help_heading = "Legs")]
    pacing_server: Option<Rate>,
    /// Most that may wait unsent in a send buffer. Less is less queueing; too little starves a fast path (it is
    /// refilled when half is left: 1 ms at 1 Gbit/s by default).
    #[arg(long, value_name = "SIZE", default_value_t = Size(LegPlan::NOTSENT_LOWAT_BYTES.into()),
          help_heading = "Legs")]
    notsent_lowat: Size,

    /// How long bytes may wait in the relay, per connection: the advertised window follows the rate of the other leg.
    /// 'off' leaves the queue alone [default: 20ms].
    #[arg(long, value_name = "TIME|off", help_heading = "Queue")]
    queue_target: Option<TargetSpec>,
    /// More about the queue, as in the relay's file, like packets that are marked beside the window (Linux 6.6):
    /// 'controller = "pi"', or 'controller = "red", allowed = "4MB", red = "1MB", window = false'.
    #[arg(long, value_name = "KEYS", value_parser = QueueSpec::from_words, help_heading = "Queue")]
    queue: Option<QueueSpec>,

    /// Experimental: let clients and servers shake hands with each other, and step in when so many bytes have passed
    /// (1MB), or after such a time (500ms); with other --adopt options, when all of them hold.
    #[arg(long, value_name = "SIZE|TIME", requires = "intercept", help_heading = "Stepping in")]
    adopt_after: Option<AfterSpec>,
    /// Step in when both ends together send so fast, or faster, for as many bytes as that gives in a second.
    /// Conditions as with --adopt-after.
    #[arg(long, value_name = "RATE", requires = "intercept", help_heading = "Stepping in")]
    adopt_rate: Option<Rate>,
    /// Step in when the least round trip to the farther end is so long, or longer. Conditions as with --adopt-after.
    #[arg(long, value_name = "TIME", requires = "intercept", help_heading = "Stepping in")]
    adopt_rtt: Option<Nanos>,
    /// Step in when such a share of the bytes, like 0.01, came out of order or again; of 100 KB at least. Conditions as
    /// with --adopt-after.
    #[arg(long, value_name = "SHARE", requires = "intercept", help_heading = "Stepping in")]
    adopt_losses: Option<f64>,
    /// Leave a connection that was stepped into when nothing was sent either way for so long; it goes on from
    /// end to end, and is stepped into again when the --adopt options hold anew.
    #[arg(long, value_name = "TIME", requires = "intercept", help_heading = "Stepping in")]
    release_after: Option<Nanos>,
    /// When an end is told that what it sent has arrived: when the relay has it ('early', the default), or when the
    /// other end has acknowledged it ('end-to-end'), so that nothing acknowledged is lost with the relay's host. Let
    /// clients and servers shake hands with each other then.
    #[arg(long, value_name = "WHEN", value_parser = acknowledge, requires = "intercept", help_heading = "Stepping in")]
    acknowledge: Option<Acknowledge>,

    /// Answer 'longfat relay status' on this unix socket [default: /run/longfat-relay/NAME-PID.sock; none where this
    /// user may not make it].
    #[arg(long, value_name = "PATH", alias = "control")]
    socket: Option<PathBuf>,
    /// Answer Prometheus on this address, like 127.0.0.1:9469.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// The relay's name: in records, in the nft table longfat_NAME.
    #[arg(long, default_value = RelayPlan::DEFAULT_NAME)]
    name: String,
    /// Worker threads [default: one per core].
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Have a process keep duplicates of sockets and pipes, so that the next relay of this name goes on where this one
    /// was killed (see 'longfat relay keep').
    #[arg(long)]
    keep: bool,
    /// How long living connections may go on after the relay is told to stop; then they are reset.
    #[arg(long, value_name = "TIME", default_value_t = nanos(RelayPlan::DEFAULT_DRAIN))]
    drain: Nanos,
    /// How long a reset may wait until the bytes acknowledged before it are delivered.
    #[arg(long, value_name = "TIME", default_value_t = nanos(RelayPlan::DEFAULT_RESET_WAIT))]
    reset_wait: Nanos,
    /// How long data of a bulk transfer at a moderate rate may gather once it has lasted 100 ms, so that they move in
    /// larger pieces: fewer wake-ups for as much more latency of that transfer alone; 0 for not at all.
    #[arg(long, value_name = "TIME", default_value_t = nanos(RelayPlan::DEFAULT_COALESCE))]
    coalesce: Nanos,
    /// Write records of every connection (both legs' TCP state, the relay's backlog) to this file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Interval of these records.
    #[arg(long, value_name = "TIME", default_value_t = Nanos(10_000_000), requires = "samples")]
    sample_every: Nanos,
    /// Say on standard error what became of each connection.
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    user: UserArgs,
    /// Print JSON objects: one when ready, one at the end.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    Run(daemon::Args),
    Upgrade(daemon::UpgradeArgs),
    Keep(keep::Args),
    Check(check::Check),
    Status(status::Args),
    Rule(rule::Args),
    Move(moves::Args),
    Clean(check::Clean),
}

fn nanos(time: std::time::Duration) -> Nanos {
    Nanos(time.as_nanos() as u64)
}

fn acknowledge(text: &str) -> Result<Acknowledge, String> {
    match text {
        "early" => Ok(Acknowledge::Early),
        "end-to-end" => Ok(Acknowledge::EndToEnd),
        _ => Err("give early or end-to-end".into()),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let read = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16));
    match read {
        Ok(number @ 1..) => Ok(number),
        _ => Err("write a number above zero, like 113 or 0x71".into()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments so")]
pub fn run(args: Args) -> Outcome {
    match &args.command {
        Some(Subcommand::Run(args)) => daemon::run(args),
        Some(Subcommand::Upgrade(args)) => daemon::upgrade(args),
        Some(Subcommand::Keep(args)) => keep::run(args),
        Some(Subcommand::Check(args)) => check::check(args),
        Some(Subcommand::Status(args)) => status::run(args),
        Some(Subcommand::Rule(args)) => rule::run(args),
        Some(Subcommand::Move(args)) => moves::run(args),
        Some(Subcommand::Clean(args)) => check::clean(args),
        None => run_quick(&args),
    }
}

/// The relay that the options describe.
fn run_quick(args: &Args) -> Outcome {
    let signals = daemon::Signals::catch(false)?;
    let plan = quick::with_control(quick::plan(args)?);
    let kept = args.user.kept(&plan, None)?;
    keep::ensure(&plan)?;
    let _held = daemon::hold(&plan)?;
    let lines = match &args.samples {
        Some(path) => {
            Lines::create(path).with_context(|| format!("create samples file '{}'", path.display()))?
        }
        None => Lines::default(),
    };
    let voice = Voice { args, name: plan.name.clone(), kept, lines: lines.clone(), broken: Mutex::new(None) };
    let stats = longfat_relay::run(&plan, &signals, &voice).map_err(|error| match error {
        Error::Unsupported(missing) => Failure::Unsupported(missing),
        error => error.into(),
    })?;
    let flushed = lines.flush();
    let broken = voice.broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    broken.map_or(flushed, Err).context("write the samples file")?;
    show_end(&stats, args.json)?;
    Ok(())
}

/// Says on standard output, standard error and in the samples file what the relay has to say.
struct Voice<'a> {
    args: &'a Args,
    /// The relay's.
    name: String,
    kept: Kept,
    lines: Lines,
    /// The first error of the samples file.
    broken: Mutex<Option<std::io::Error>>,
}

impl Voice<'_> {
    fn ready_line(&self, ready: &Ready) -> String {
        if self.args.json {
            return serde_json::json!({ "ready": ready }).to_string();
        }
        let listening: Vec<_> = ready.listening.iter().map(ToString::to_string).collect();
        let what = match (&self.args.to, &ready.interfaces[..]) {
            (Some(server), _) => format!(" for {server}"),
            (None, []) => String::new(),
            (None, interfaces) => format!(" for what comes in on {}", interfaces.join(", ")),
        };
        format!("ready: relay '{}' listens on {}{what}", ready.name, listening.join(", "))
    }
}

impl Observer for Voice<'_> {
    fn prepared(&self) -> longfat_relay::Result<()> {
        Ok(self.kept.alone()?)
    }

    fn ready(&self, ready: &Ready) {
        println!("{}", self.ready_line(ready));
    }

    fn left(&self) {
        self.kept.leave();
    }

    fn record(&self, record: Record) {
        if let Err(error) = self.lines.write(&record) {
            self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn closed(&self, end: &ConnectionSummary) {
        eprintln!("{}", describe(end));
    }

    fn warning(&self, message: &str) {
        eprintln!("longfat: warning: {message}");
        self.record(Record::Note(Note {
            time_us: monotonic_us(),
            level: "warning".into(),
            source: self.name.clone(),
            message: message.to_owned(),
        }));
    }

    fn wants_summaries(&self) -> bool {
        self.args.verbose
    }
}

fn describe(end: &ConnectionSummary) -> String {
    let ended = end.ended.name().replace('_', " ");
    let (connection, time) = (end.connection, Nanos(end.duration_us * 1000));
    let text = format!("connection {connection}: {} to {}: {ended} after {time}", end.client, end.server);
    if end.cc_client.is_empty() {
        // It never stood.
        return text;
    }
    format!(
        "{text}; {} to the server ({}, {} segments retransmitted), {} to the client ({}, {} segments retransmitted)",
        Size(end.client_to_server_bytes),
        end.cc_server,
        end.retransmitted_segments_server,
        Size(end.server_to_client_bytes),
        end.cc_client,
        end.retransmitted_segments_client,
    )
}

fn show_end(stats: &RelayStats, json: bool) -> anyhow::Result<()> {
    if json {
        return output::write_out(&format!("{}\n", serde_json::json!({ "stats": stats })));
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.add_row(["connections", &stats.connections.to_string()]);
    table.add_row(["  finished by both sides", &stats.finished.to_string()]);
    table.add_row(["  reset", &stats.reset.to_string()]);
    table.add_row(["  server not reached", &stats.unreachable.to_string()]);
    table.add_row(["  left to their ends", &stats.released.to_string()]);
    table.add_row(["  moved to another router", &stats.moved.to_string()]);
    table.add_row(["  reset by the stop", &stats.stopped.to_string()]);
    table.add_row(["to servers", &Size(stats.client_to_server_bytes).to_string()]);
    table.add_row(["to clients", &Size(stats.server_to_client_bytes).to_string()]);
    output::write_out(&format!("{table}\n"))
}
