//! `longfat transfer`: a server and a client of memory-to-memory transfers.

use crate::{
    address,
    fitted::fitted,
    kept,
    outcome::{Failure, Outcome},
    spans, stop,
};
use anyhow::{Context, ensure};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use longfat_cc::Algorithm;
use longfat_host::{
    Key, capability,
    confine::{Account, Confinement},
    monotonic_us,
    socket::{bbr_bytes_per_s, tcp_info},
};
use longfat_kernel::avail::Meters;
use longfat_schema::{
    arrivals::Arrivals,
    lines::Lines,
    record::{AvailSample, Note},
    text::one_line,
    units::{Nanos, Rate, Size},
};
use longfat_transfer::{
    Amount, IntervalReport, IntervalRow, Limits, Outcome as Transferred, Protocol, Receive, SendObserver,
    SendOptions, ServeObserver, ServeOptions, Server, Start, Step, Told, TransferPlan, ends, send,
};
use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Memory-to-memory transfers over TCP and UDP, with echo latency.
///
/// One end serves, the other sends (or, with --reverse, receives). Both agree on the parameters first; goodput is
/// counted at the receiver, and both ends' sockets are read back and reported.
#[derive(ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<ServeArgs>),
    Send(Box<SendArgs>),
    Key(KeyArgs),
}

/// Make a key file, readable by its owner alone, for 'serve --key' and 'send --key'.
#[derive(ClapArgs)]
struct KeyArgs {
    /// Where; a file that is there stays as it is.
    file: PathBuf,
}

/// Wait for transfers, many at a time, until stopped.
///
/// The first line on standard output is 'ready ADDRESS:PORT' (with --json: {"type":"ready","address":"…"}), printed
/// once connections are accepted.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  longfat transfer serve
      every address, port 5201
  longfat transfer serve --listen [::1]:0 --once
      a free port, one transfer
  longfat transfer serve --listen 10.0.0.2 --samples receiver.jsonl
  longfat transfer serve --max-udp-rate 100Mbit --max-duration 1min \\
      --peer-share 10
  longfat transfer serve --data-ports 5300-5399
      where datagrams come to, for a firewall
  longfat transfer serve --key transfer.key
      only for who has the key ('longfat transfer key')
  longfat transfer serve --trusted
      hosts of one's own: no limits")]
struct ServeArgs {
    /// Address, port, or both; without a port 5201, port 0 takes a free one.
    #[arg(long, default_value = "[::]:5201", value_name = "[ADDR:]PORT", value_parser = address::listen)]
    listen: SocketAddr,
    /// Ports for what cannot come to that one: datagrams, and the streams of plans that need a listener of their own
    /// (any free ones).
    #[arg(long, value_name = "FIRST-LAST", value_parser = address::ports)]
    data_ports: Option<RangeInclusive<u16>>,
    /// End after the first transfer; exit code 2 when one of its streams died.
    #[arg(long)]
    once: bool,
    /// Write this end's records there (the client gets them too).
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// One JSON object per line on standard output: ready, then each transfer's outcome.
    #[arg(long)]
    json: bool,
    /// How long a connection may take to bring its plan, or to show to which transfer it belongs.
    #[arg(long, default_value = "5s", value_name = "TIME")]
    timeout: Nanos,
    /// Serve only who has this key, and prove to have it ('longfat transfer key' makes one).
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Started as root: go on as this user ('longfat' if there is one, else 'nobody'; 'root' stays root).
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What clients may ask for.
#[derive(ClapArgs)]
struct LimitArgs {
    /// Every host that reaches the server is one's own: no limits but those of the protocol and of this host, and with
    /// root's rights any congestion control and buffers beyond this host's limits.
    #[arg(long, conflicts_with_all = [
        "max_transfers", "max_streams", "max_udp_rate", "max_memory", "max_duration", "max_bytes", "peer_share",
    ])]
    trusted: bool,
    /// Transfers at the same time (256).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_transfers: Option<u64>,
    /// Streams of all transfers together (1024).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_streams: Option<u64>,
    /// Rate of all datagrams that this end sends, together and with their headers (2Gbit).
    #[arg(long, value_name = "RATE")]
    max_udp_rate: Option<Rate>,
    /// Memory of all transfers together, for blocks and for the socket buffers that plans ask for (1GiB).
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<Size>,
    /// How long one transfer may take (1h).
    #[arg(long, value_name = "TIME")]
    max_duration: Option<Nanos>,
    /// Payload of one transfer (10TB).
    #[arg(long, value_name = "SIZE")]
    max_bytes: Option<Size>,
    /// What one peer (an IPv4 address, a /64 of IPv6) may have of all that, in percent (50).
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    peer_share: Option<u64>,
}

/// Least that the longest transfer may take: the shortest that a plan may ask for.
const LONGEST_LEAST: Nanos = Nanos(1_000_000);

impl LimitArgs {
    fn limits(&self) -> anyhow::Result<Limits> {
        if self.trusted {
            return Ok(Limits::trusting());
        }
        let nothing = Size(0);
        for (option, given) in [("--max-memory", self.max_memory), ("--max-bytes", self.max_bytes)] {
            ensure!(
                given != Some(nothing),
                "{option} {nothing} would serve nobody; give more, or leave it out"
            );
        }
        self.max_duration
            .map_or(Ok(()), |longest| spans::at_least("--max-duration", longest, LONGEST_LEAST))?;
        let usual = Limits::default();
        Ok(Limits {
            transfers: self.max_transfers.unwrap_or(usual.transfers),
            streams: self.max_streams.unwrap_or(usual.streams),
            udp_rate_bps: self.max_udp_rate.map_or(usual.udp_rate_bps, |rate| rate.0),
            memory_bytes: self.max_memory.map_or(usual.memory_bytes, |size| size.0),
            duration_us: self.max_duration.map_or(usual.duration_us, Nanos::as_us),
            bytes: self.max_bytes.map_or(usual.bytes, |size| size.0),
            peer_percent: self.peer_share.unwrap_or(usual.peer_percent),
            ..usual
        })
    }
}

/// Carry out one transfer with a server.
///
/// Bytes and rates are those of the whole flow, shared evenly by its streams. Exit code 2 when a stream died.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  longfat transfer send 10.0.0.2 --cc cubic --duration 20s
  longfat transfer send host --streams 4 --bytes 5GB --sndbuf 8MiB --rcvbuf 8MiB
  longfat transfer send host --cc lf_highspeed --echo-every 1MB \\
      --samples run.jsonl
  longfat transfer send host:5202 --reverse --json
  longfat transfer send host --udp --rate 300Mbit --arrivals poisson --seed 7
  longfat transfer send host --json | jq .plan > plan.json
  longfat transfer send host --plan plan.json

Echo latency: every --echo-every bytes of the stream stands a timestamp which the receiving \
program sends back on the same connection; the latency is from handing it to the socket to reading \
its echo, so it holds the send buffer, the path, every relay in between, the receiver's buffer and \
the way back.")]
struct SendArgs {
    /// The server; its port is 5201 where none is given.
    #[arg(value_name = "HOST[:PORT]", value_parser = address::server)]
    to: String,
    /// Take the whole plan from this JSON file instead of from options: the key 'plan' of what --json prints.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "AmountArgs", "SocketArgs", "UdpArgs", "reverse", "stagger", "drain", "timeout", "echo_every", "sample_every",
        "receiver_interval",
    ])]
    plan: Option<PathBuf>,
    #[command(flatten)]
    amount: AmountArgs,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    udp: UdpArgs,
    #[command(flatten)]
    measure: MeasureArgs,
    /// The server sends, this end receives.
    #[arg(long)]
    reverse: bool,
    /// The server's key: it must prove to have it, as this end does.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Source address of every connection.
    #[arg(long, value_name = "ADDR", value_parser = address::own)]
    bind: Option<IpAddr>,
    /// Begin at this CLOCK_MONOTONIC time of this host, to start several flows together.
    #[arg(long, value_name = "NANOSECONDS")]
    start_at: Option<u64>,
    /// Begin when told: 'ready' is said on standard output once the ends agree, and the time to begin is read from
    /// standard input, a line of CLOCK_MONOTONIC nanoseconds of this host. To start flows together, however long their
    /// agreeing takes.
    #[arg(long, conflicts_with_all = ["start_at", "json", "json_lines"])]
    start_when_told: bool,
    /// Start each stream so much after the one before.
    #[arg(long, default_value = "0", value_name = "TIME")]
    stagger: Nanos,
    /// How long after its planned end a stream may take to empty its buffers; then it is cut, without error.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    drain: Nanos,
    /// How long the other end may be silent, or data unacknowledged, before it counts as dead.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    timeout: Nanos,
    /// The outcome as one JSON object on standard output.
    #[arg(long, conflicts_with = "json_lines")]
    json: bool,
    /// Interval reports and the outcome as JSON objects, one per line, as they come.
    #[arg(long)]
    json_lines: bool,
}

#[derive(ClapArgs)]
struct AmountArgs {
    /// Name of the flow in every record.
    #[arg(long, default_value = "flow")]
    flow: String,
    /// Connections side by side.
    #[arg(long, default_value_t = 1, value_name = "N")]
    streams: u32,
    /// Each stream sends for this long (10s when neither this nor --bytes is given).
    #[arg(long, value_name = "TIME", conflicts_with = "bytes")]
    duration: Option<Nanos>,
    /// The flow sends so many payload bytes; with --udp whole datagrams, enough of them.
    #[arg(long, value_name = "SIZE")]
    bytes: Option<Size>,
    /// At most this payload rate, on average, of the whole flow.
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
}

#[derive(ClapArgs)]
struct SocketArgs {
    /// Bytes handed to a socket at once (128KiB; with --rate what takes 2 ms, if that is less).
    #[arg(long, value_name = "SIZE")]
    block: Option<Size>,
    /// Send buffer as the kernel counts it, bookkeeping included; absent: autotuned.
    #[arg(long, value_name = "SIZE")]
    sndbuf: Option<Size>,
    /// Receive buffer as the kernel counts it; absent: autotuned.
    #[arg(long, value_name = "SIZE")]
    rcvbuf: Option<Size>,
    /// Most payload of a connection in flight, whatever its congestion control would do.
    #[arg(long, value_name = "SIZE", conflicts_with = "rcvbuf")]
    window: Option<Size>,
    /// Congestion control of the sending end, set before the connection is made; absent: that host's default.
    #[arg(long, value_name = "NAME")]
    cc: Option<String>,
    /// Congestion control of the receiving end.
    #[arg(long, value_name = "NAME")]
    cc_receiver: Option<String>,
    /// Send from page cache (sendfile), without a copy.
    #[arg(long)]
    zero_copy: bool,
    /// How payload is taken: 'copy' as an application would, 'discard' inside the kernel.
    #[arg(long, value_enum, default_value = "copy")]
    receive: ReceiveArg,
    /// Compare every byte received with what was sent.
    #[arg(long)]
    verify: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReceiveArg {
    Copy,
    Discard,
}

#[derive(Clone, Copy, ValueEnum)]
enum ArrivalsArg {
    Constant,
    Poisson,
    Onoff,
    Pareto,
}

#[derive(ClapArgs)]
struct UdpArgs {
    /// Datagrams at --rate instead of a TCP stream.
    #[arg(long, requires = "rate")]
    udp: bool,
    /// When datagrams leave: evenly, with exponential gaps (poisson), in bursts at twice the rate of 50 ms on average
    /// and silences (onoff), or with heavy-tailed gaps (pareto, shape 1.5).
    #[arg(long, requires = "udp", value_enum, default_value = "constant", value_name = "LAW")]
    arrivals: ArrivalsArg,
    /// Seed of random arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// UDP payload.
    #[arg(long, default_value = "1472B", value_name = "SIZE")]
    datagram: Size,
    /// Spin instead of sleeping so long before each departure when gaps are below 1 ms; 0 never spins.
    #[arg(long, default_value = "50us", value_name = "TIME")]
    spin: Nanos,
}

#[derive(ClapArgs)]
struct MeasureArgs {
    /// A timestamp to be echoed every so many bytes.
    #[arg(long, value_name = "SIZE")]
    echo_every: Option<Size>,
    /// Period of the interval reports.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    interval: Nanos,
    /// Period of the sender's TCP_INFO samples (10ms with --samples, else that of the reports).
    #[arg(long, value_name = "TIME")]
    sample_every: Option<Nanos>,
    /// Period of the receiver's byte counts (100ms, or half of --interval where that is less).
    #[arg(long, value_name = "TIME")]
    receiver_interval: Option<Nanos>,
    /// Write every record of both ends there, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Serve(args) => run_serve(&args),
        Command::Send(args) => run_send(&args),
        Command::Key(args) => {
            Key::create(&args.file)?;
            println!("{}", args.file.display());
            Ok(())
        }
    }
}

fn samples_file(path: Option<&PathBuf>) -> anyhow::Result<Lines> {
    let Some(path) = path else { return Ok(Lines::default()) };
    kept::refuse_replacing("--samples", path)?;
    Lines::create(path).with_context(|| format!("samples file '{}'", path.display()))
}

/// Least that a connection may be given to bring its plan: in less, hardly anybody but this host itself could.
const HELLO_LEAST: Nanos = Nanos(100_000_000);

fn run_serve(args: &ServeArgs) -> Outcome {
    spans::at_least("--timeout", args.timeout, HELLO_LEAST)?;
    let options = ServeOptions {
        listen: args.listen,
        once: args.once,
        timeout: args.timeout.into(),
        data_ports: args.data_ports.clone(),
        limits: args.limits.limits()?,
        key: read_key(args.key.as_ref())?,
        samples: samples_file(args.samples.as_ref())?,
        stop: stop::flag()?,
    };
    let server = Server::bind(options).map_err(said)?;
    let address = server.address();
    confine(args)?;
    if address.ip().is_unspecified() && args.key.is_none() {
        eprintln!("listening on every address of this host, for whoever reaches it (see --listen and --key)");
    }
    if args.json {
        say(&serde_json::json!({ "type": "ready", "address": address.to_string() }).to_string())?;
    } else {
        say(&format!("ready {address}"))?;
    }
    let served = server.run(&ServeView { json: args.json, said: Mutex::default() }).map_err(said)?;
    if args.once && served.failed > 0 {
        return Err(anyhow::anyhow!("the transfer failed").into());
    }
    Ok(())
}

fn read_key(path: Option<&PathBuf>) -> anyhow::Result<Option<Key>> {
    Ok(path.map(|path| Key::read(path)).transpose()?)
}

/// Gives up what serving does not need. All files are open and the listener is made by now; other threads are not there
/// yet. What is read later is what the kernel says of the network and of its processors.
fn confine(args: &ServeArgs) -> anyhow::Result<()> {
    // Other congestion controls than the host allows to all, and buffers beyond its limits, are for those one trusts.
    let wanted = args.limits.trusted && capability::has(capability::NET_ADMIN);
    let kept: &[u32] = if wanted { &[capability::NET_ADMIN] } else { &[] };
    let account = Account::choose(args.user.as_deref())?;
    Confinement::of(account).keeping(kept).reading(["/proc/sys/net", "/sys/devices/system/cpu"]).enter()?;
    Ok(())
}

/// The error as its message alone: it holds what its causes say.
fn said(error: longfat_transfer::Error) -> anyhow::Error {
    anyhow::Error::msg(error)
}

/// A line on standard output, at once; whoever reads it may have gone.
fn say(line: &str) -> anyhow::Result<()> {
    crate::output::write_out(&format!("{line}\n"))
}

struct ServeView {
    json: bool,
    said: Mutex<Said>,
}

/// Lines about peers that are said within [`SAID_WITHIN`]; further ones are counted: a log is not theirs to fill.
const SAID_MAX: u32 = 20;
const SAID_WITHIN: Duration = Duration::from_secs(10);

/// What was said about peers.
#[derive(Default)]
struct Said {
    since: Option<Instant>,
    lines: u32,
    unsaid: u64,
}

impl Said {
    /// Lines to be printed now, of one more thing that happened `count` times.
    fn lines(&mut self, now: Instant, count: u64, line: impl FnOnce() -> String) -> Vec<String> {
        let is_over = self.since.is_none_or(|since| now.duration_since(since) >= SAID_WITHIN);
        let mut lines = Vec::new();
        if is_over {
            if self.unsaid > 0 {
                lines.push(format!("{} more like these went unsaid", self.unsaid));
            }
            *self = Said { since: Some(now), ..Said::default() };
        }
        if self.lines < SAID_MAX {
            self.lines += 1;
            // What a peer wrote makes no line of its own.
            lines.push(one_line(&line()).into_owned());
        } else {
            self.unsaid += count;
        }
        lines
    }
}

impl ServeView {
    /// Says a line about what a peer did, or that happened `count` times, unless too many were said.
    fn tell(&self, count: u64, line: impl FnOnce() -> String) {
        let lines =
            self.said.lock().unwrap_or_else(PoisonError::into_inner).lines(Instant::now(), count, line);
        lines.iter().for_each(|line| eprintln!("{line}"));
    }
}

impl ServeObserver for ServeView {
    fn began(&self, peer: SocketAddr, plan: &TransferPlan) {
        self.tell(1, || format!("{peer}: {}", described(plan)));
    }

    fn ended(&self, peer: SocketAddr, outcome: &Transferred) {
        if self.json {
            // A closed standard output ends no transfer.
            let _ = say(&tagged("outcome", outcome));
        }
        self.tell(1, || format!("{peer}: '{}' {}", outcome.plan.flow, goodput(outcome.goodput_bps())));
        outcome.errors().iter().for_each(|error| self.tell(1, || format!("{peer}: {error}")));
    }

    fn failed(&self, peer: SocketAddr, error: &longfat_transfer::Error) {
        self.tell(1, || format!("{peer}: {error}"));
    }

    fn silent(&self, count: u64) {
        self.tell(count, || {
            format!("{count} connections ended, or were ended, without having said anything")
        });
    }
}

fn run_send(args: &SendArgs) -> Outcome {
    let start = match args.start_at {
        Some(start_ns) => Start::At(start_ns),
        None if args.start_when_told => Start::WhenTold(Told::default()),
        None => Start::AtOnce,
    };
    let plan = match &args.plan {
        Some(file) => read_plan(file)?,
        None => plan(args)?,
    };
    let meters = meters(plan.cc_sender.as_deref());
    let options = SendOptions {
        to: args.to.clone(),
        plan,
        key: read_key(args.key.as_ref())?,
        bind: args.bind,
        start: start.clone(),
        interval: Duration::from(args.measure.interval).max(Duration::from_millis(10)),
        samples: samples_file(args.measure.samples.as_ref())?,
        stop: stop::flag()?,
    };
    let told = match start {
        Start::WhenTold(told) => Some((told, Arc::clone(&options.stop))),
        Start::AtOnce | Start::At(_) => None,
    };
    let view = SendView { json_lines: args.json_lines, reports: AtomicU64::new(0), meters, told };
    let outcome = send(&options, &view).map_err(said)?;
    if args.json {
        say(&serde_json::to_string_pretty(&outcome)?)?;
    } else if args.json_lines {
        say(&tagged("outcome", &outcome))?;
    } else {
        say(&final_table(&outcome))?;
    }
    failure(&outcome).map_or(Ok(()), Err)
}

fn failure(outcome: &Transferred) -> Option<Failure> {
    let errors = outcome.errors();
    (!outcome.is_complete()).then(|| Failure::Failed(anyhow::anyhow!("{}", errors.join("; "))))
}

/// The plan in a file.
fn read_plan(file: &Path) -> anyhow::Result<TransferPlan> {
    let name = || format!("plan file '{}'", file.display());
    let text = std::fs::read_to_string(file).with_context(name)?;
    TransferPlan::parse(&text).with_context(name)
}

/// The plan that the options describe.
fn plan(args: &SendArgs) -> anyhow::Result<TransferPlan> {
    let amount = match args.amount.bytes {
        Some(bytes) => Amount::Bytes(bytes.0),
        None => Amount::DurationUs(args.amount.duration.map_or(10_000_000, Nanos::as_us)),
    };
    let measure = &args.measure;
    // Nobody looks at samples closer than the reports unless they are kept.
    let sample_every = if measure.samples.is_some() { Nanos(10_000_000) } else { measure.interval };
    let rate_bps = args.amount.rate.map(|rate| rate.0);
    let usual_block = || TransferPlan::usual_block_bytes(rate_bps, args.amount.streams);
    // What is too much for the type is too much for a plan.
    let bytes = |size: Size| u32::try_from(size.0).unwrap_or(u32::MAX);
    let plan = TransferPlan {
        flow: args.amount.flow.clone(),
        protocol: if args.udp.udp { Protocol::Udp } else { Protocol::Tcp },
        streams: args.amount.streams,
        amount,
        reverse: args.reverse,
        block_bytes: args.socket.block.map_or_else(usual_block, bytes),
        sndbuf_bytes: args.socket.sndbuf.map(|size| size.0),
        rcvbuf_bytes: args.socket.rcvbuf.map(|size| size.0),
        window_bytes: args.socket.window.map(|size| size.0),
        cc_sender: args.socket.cc.clone(),
        cc_receiver: args.socket.cc_receiver.clone(),
        rate_bps,
        echo_every_bytes: measure.echo_every.map(|size| size.0),
        verify: args.socket.verify,
        zero_copy: args.socket.zero_copy,
        receive: match args.socket.receive {
            ReceiveArg::Copy => Receive::Copy,
            ReceiveArg::Discard => Receive::Discard,
        },
        datagram_bytes: bytes(args.udp.datagram),
        arrivals: match args.udp.arrivals {
            ArrivalsArg::Constant => Arrivals::Constant,
            ArrivalsArg::Poisson => Arrivals::Poisson,
            ArrivalsArg::Onoff => Arrivals::Onoff,
            ArrivalsArg::Pareto => Arrivals::Pareto,
        },
        arrivals_seed: args.udp.seed,
        spin_us: args.udp.spin.as_us(),
        stagger_us: args.stagger.as_us(),
        sample_every_us: measure.sample_every.unwrap_or(sample_every).as_us(),
        // Each report has figures of its own.
        receiver_interval_us: measure
            .receiver_interval
            .map_or_else(|| (measure.interval.as_us() / 2).clamp(1000, 100_000), Nanos::as_us),
        drain_us: args.drain.as_us(),
        timeout_us: args.timeout.as_us(),
    };
    plan.check()?;
    Ok(plan)
}

struct SendView {
    json_lines: bool,
    reports: AtomicU64,
    meters: Option<Meters>,
    /// What is told when to begin, and the flag that ends the transfer when nobody is there to tell.
    told: Option<(Told, Arc<AtomicBool>)>,
}

/// Reads when to begin. Whoever closes standard input before has no use for the transfer any more.
fn hear_start(told: &Told, stop: &AtomicBool) {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    match line.trim().parse() {
        Ok(start_ns) if start_ns > 0 => told.tell(start_ns),
        _ => {
            let said = if read.is_ok() && line.is_empty() { "nothing" } else { line.trim() };
            let said = said.escape_debug();
            eprintln!(
                "longfat: --start-when-told: standard input says '{said}'; a line of CLOCK_MONOTONIC nanoseconds is expected"
            );
            stop.store(true, Relaxed);
        }
    }
}

/// How many reports pass before the heading is shown again.
const HEADING_EVERY: u64 = 20;

/// What reads the states of measuring connections, for a congestion control that measures; nothing where it cannot be
/// had: the transfer does not depend on it.
fn meters(cc: Option<&str>) -> Option<Meters> {
    let algorithm = cc.filter(|cc| Algorithm::is_our_name(cc)).and_then(|cc| Algorithm::find(cc).ok())?;
    algorithm.measures().then(Meters::open)?.ok()
}

/// BBR's own idea of its path, to stand beside what is measured: with the headers of TCP with timestamps over IPv4, as
/// the others count. It claims no precision.
fn bbr(socket: BorrowedFd<'_>) -> Option<AvailSample> {
    const HEADER_BYTES: u64 = 52;
    let payload_bytes_per_s = bbr_bytes_per_s(&socket)?;
    let mss_bytes = u64::from(tcp_info(&socket).ok()?.snd_mss_bytes).max(1);
    Some(AvailSample {
        time_us: monotonic_us(),
        avail_bps: (payload_bytes_per_s * 8).saturating_mul(mss_bytes + HEADER_BYTES) / mss_bytes,
        confidence_ratio: 1.0,
        ..AvailSample::default()
    })
}

impl SendObserver for SendView {
    fn avail(&self, socket: BorrowedFd<'_>) -> Option<AvailSample> {
        let measured = self.meters.as_ref().and_then(|meters| meters.read(socket));
        measured.map_or_else(|| bbr(socket), |found| Some(super::avail::sample(&found)))
    }

    fn step(&self, step: Step, took: Duration) {
        if self.told.is_some() {
            eprintln!("{step} took {:.1} ms", took.as_secs_f64() * 1e3);
        }
    }

    fn agreed(&self) {
        if let Some((told, stop)) = self.told.clone() {
            // Whoever does not hear it is gone, and standard input then ends.
            let _ = say("ready");
            std::thread::spawn(move || hear_start(&told, &stop));
        }
    }

    fn started(&self, peer: SocketAddr, plan: &TransferPlan) {
        eprintln!("{peer}: {}", described(plan));
    }

    fn interval(&self, report: &IntervalReport) {
        if self.json_lines {
            // A closed standard output shows at the end, when the outcome cannot be written.
            let _ = say(&tagged("interval", report));
            return;
        }
        if self.reports.fetch_add(1, Relaxed).is_multiple_of(HEADING_EVERY) {
            eprintln!(
                "{:>15} {:>6} {:>14} {:>8} {:>8} {:>10} {:>10}",
                "s", "stream", "goodput", "retrans", "cwnd", "srtt", "echo p50"
            );
        }
        let digits = if report.to_us.saturating_sub(report.from_us) < 300_000 { 3 } else { 1 };
        let s = |us: u64| format!("{:.digits$}", us as f64 / 1e6);
        let when = format!("{}-{}", s(report.from_us), s(report.to_us));
        if report.streams.len() > 1 {
            report.streams.iter().for_each(|row| eprintln!("{when:>15} {}", row_text(row)));
        }
        eprintln!("{when:>15} {}", row_text(&report.sum));
    }

    fn note(&self, note: &Note) {
        eprintln!("{}: {}", one_line(&note.level), one_line(&note.message));
    }
}

fn row_text(row: &IntervalRow) -> String {
    format!(
        "{:>6} {:>14} {:>8} {:>8} {:>10} {:>10}",
        row.stream.map_or_else(|| "sum".to_owned(), |stream| stream.to_string()),
        goodput(row.goodput_bps),
        row.retransmitted_segments,
        row.cwnd_segments,
        span(Some(u64::from(row.srtt_us))),
        span(row.echo_p50_us),
    )
}

fn described(plan: &TransferPlan) -> String {
    let amount = match plan.amount {
        Amount::DurationUs(span) => format!("for {}", Nanos(span * 1000)),
        Amount::Bytes(bytes) => format!("of {}", Size(bytes)),
    };
    let protocol = if plan.protocol == Protocol::Udp { "UDP" } else { "TCP" };
    let direction = if plan.reverse { "from the server" } else { "to the server" };
    let limit = plan.rate_bps.map_or(String::new(), |rate| format!(" at {}", Rate(rate)));
    format!("'{}': {} {protocol} stream(s) {direction} {amount}{limit}", plan.flow, plan.streams)
}

fn tagged(kind: &str, value: &impl serde::Serialize) -> String {
    let mut value = serde_json::to_value(value).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.shift_insert(0, "type".to_owned(), kind.into());
    }
    value.to_string()
}

fn rate(bps: u64) -> String {
    let (value, unit) = match bps {
        0..1_000_000 => (bps as f64 / 1e3, "kbit/s"),
        1_000_000..10_000_000_000 => (bps as f64 / 1e6, "Mbit/s"),
        _ => (bps as f64 / 1e9, "Gbit/s"),
    };
    format!("{value:.2} {unit}")
}

/// `-` where all arrived at one moment.
fn goodput(bps: Option<u64>) -> String {
    bps.map_or_else(|| "-".to_owned(), rate)
}

fn span(us: Option<u64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us @ 0..1000) => format!("{us} us"),
        Some(us) => format!("{:.2} ms", us as f64 / 1000.0),
    }
}

fn final_table(outcome: &Transferred) -> String {
    let udp = outcome.plan.protocol == Protocol::Udp;
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(if udp {
        vec!["stream", "goodput", "offered", "sent", "received", "lost", "reordered", "duplicates"]
    } else {
        vec![
            "stream",
            "goodput",
            "received",
            "retrans",
            "min rtt",
            "echoes",
            "echo p50",
            "p99",
            "max",
            "cc sender",
            "cc receiver",
            "mss",
            "sndbuf",
            "rcvbuf",
        ]
    });
    (0..outcome.flows.len()).for_each(|at| {
        table.add_row(if udp { udp_row(outcome, at) } else { tcp_row(outcome, at) });
    });
    (1..table.column_count()).for_each(|at| {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    });
    let least: &[usize] = if udp { &[7, 6, 2] } else { &[13, 12, 11, 10, 9, 8, 5, 2] };
    let mut text = fitted(table, least);
    if outcome.flows.len() > 1 {
        text.push_str(&format!(
            "\nsum of {} streams: {}",
            outcome.flows.len(),
            goodput(outcome.goodput_bps())
        ));
    }
    text
}

fn tcp_row(outcome: &Transferred, at: usize) -> Vec<String> {
    let flow = &outcome.flows[at];
    let (source, sink) = (outcome.source(flow.stream), outcome.sink(flow.stream));
    let received = || format!("{} in {:.3} s", Size(flow.received_bytes), flow.duration_us as f64 / 1e6);
    vec![
        flow.stream.to_string(),
        goodput(ends::goodput_bps(flow)),
        sink.map_or_else(unknown, |_| received()),
        source.map_or_else(unknown, |_| flow.retransmitted_segments.to_string()),
        span(flow.min_rtt_us.map(u64::from)),
        source.map_or_else(unknown, |_| flow.echo_count.to_string()),
        span(flow.echo_p50_us),
        span(flow.echo_p99_us),
        span(flow.echo_max_us),
        flow.cc_sender.clone(),
        flow.cc_receiver.clone(),
        source.map_or_else(unknown, |_| format!("{} B", flow.mss_bytes)),
        source.map_or_else(unknown, |_| Size(flow.sndbuf_bytes).to_string()),
        sink.map_or_else(unknown, |_| Size(flow.rcvbuf_bytes).to_string()),
    ]
}

/// A figure of an end that went away.
fn unknown() -> String {
    "-".to_owned()
}

fn udp_row(outcome: &Transferred, at: usize) -> Vec<String> {
    let flow = &outcome.flows[at];
    let (source, sink) = (outcome.source(flow.stream), outcome.sink(flow.stream));
    let of_sink =
        |figure: fn(&ends::SinkEnd) -> u64| sink.map_or_else(unknown, |end| figure(end).to_string());
    vec![
        flow.stream.to_string(),
        goodput(ends::goodput_bps(flow)),
        source.map_or_else(unknown, |end| rate(end.offered_bps)),
        source.map_or_else(unknown, |end| end.sent_datagrams.to_string()),
        of_sink(|end| end.received_datagrams),
        source.and(sink).map_or_else(unknown, |_| flow.lost_datagrams.to_string()),
        of_sink(|end| end.reordered_datagrams),
        of_sink(|end| end.duplicate_datagrams),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_strangers_fills_no_log() {
        let (mut said, start) = (Said::default(), Instant::now());
        let printed: usize = (0..100_000).map(|_| said.lines(start, 1, || "refused".into()).len()).sum();
        assert_eq!(printed, SAID_MAX as usize);
        let lines = said.lines(start + SAID_WITHIN, 1, || "refused".into());
        assert_eq!(lines, ["99980 more like these went unsaid", "refused"]);
    }

    #[test]
    fn what_a_peer_wrote_is_part_of_one_line() {
        let lines = Said::default().lines(Instant::now(), 1, || "stream 0: a\nlongfat: all is well".into());
        assert_eq!(lines, ["stream 0: a\\u000alongfat: all is well"]);
    }
}
