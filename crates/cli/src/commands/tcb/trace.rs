//! `longfat tcb trace`.

use super::Choice;
use crate::{
    outcome::{Failure, Outcome, require},
    provenance, stop,
};
use anyhow::{Context as _, bail};
use longfat_kernel::{
    support::{Capability, missing},
    tcb::{
        State,
        trace::{Event, EventKind, Identity, POLL_EVERY, Tracer, decode, record_length},
    },
};
use longfat_schema::{
    SCHEMA_VERSION,
    record::{Record, TraceSample},
    run::{Metric, RunManifest, RunStatus, RunWriter, seal_run},
    units::{Nanos, Size},
};
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Record cwnd, ssthresh, srtt, flight and state at every ACK, and losses, timeouts and changes, into a run directory.
///
/// Connections that stand are traced from now on, those that begin later and match from their beginning. A record shows
/// the values before its ACK was processed. Records that found no room in the buffer are counted, shown and written into
/// the manifest; the run is then marked invalid. 'longfat report' shows the figures.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat tcb trace dst 10.0.0.0/8 -o runs/trace         until Ctrl-C
  longfat tcb trace 'process curl' -o runs/trace --duration 30s
  longfat report runs/trace")]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// The run directory to write.
    #[arg(short, long, value_name = "DIRECTORY")]
    output: PathBuf,
    /// End by itself after this long.
    #[arg(long, value_name = "TIME")]
    duration: Option<Nanos>,
    /// Room for what happens between two looks, 20 ms apart; a power of two.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    buffer: Size,
}

const SPOOL: &str = "trace.spool";

pub fn run(args: &Args) -> Outcome {
    let look = args.choice.look(false)?;
    require(missing(&[Capability::Tracing]))?;
    let buffer_bytes = u32::try_from(args.buffer.0).ok().filter(|b| b.is_power_of_two() && *b >= 4096);
    let buffer_bytes = buffer_bytes.context("--buffer is to be a power of two, from 4KiB to 2GiB")?;
    prepare(&args.output)?;
    let spool = args.output.join(SPOOL);
    let stop = stop::flag()?;
    let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    let start_us = longfat_host::monotonic_us();
    let mut tracer = Tracer::start(look, buffer_bytes)?;
    collect(&mut tracer, &spool, args.duration.map(Duration::from), &stop)?;
    let duration_us = longfat_host::monotonic_us() - start_us;
    let lost = tracer.lost();
    let mut table = Rows::new(start_us);
    let mut writer = RunWriter::create(&args.output)?;
    convert(&spool, |event, identity| match tracer.is_meant(event.cookie) {
        true => table.row(&event, identity).map_or(Ok(()), |row| writer.push(Record::Trace(row))),
        false => Ok(()),
    })?;
    let run = Ended { started_unix_ms, duration_us, lost };
    writer.finish()?;
    fs::remove_file(&spool).with_context(|| format!("remove {}", spool.display()))?;
    seal_run(&args.output, &mut manifest(&table, &run))?;
    report(&table, lost, &args.output)
}

fn prepare(output: &Path) -> anyhow::Result<()> {
    let shown = output.display();
    if fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{shown} exists and is not empty; name another directory");
    }
    fs::create_dir_all(output).with_context(|| format!("create {shown}"))
}

/// Writes records as they are: turning them into rows would take the processor from the flows.
fn collect(
    tracer: &mut Tracer,
    spool: &Path,
    duration: Option<Duration>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let file = File::create(spool).with_context(|| format!("create {}", spool.display()))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let (start, mut shown, mut records) = (Instant::now(), Instant::now(), 0u64);
    loop {
        let last = stop.load(Ordering::Relaxed) || duration.is_some_and(|span| start.elapsed() >= span);
        let mut failed = None;
        tracer.poll(|bytes| {
            records += 1;
            failed = failed.take().or(file.write_all(bytes).err());
        })?;
        if let Some(error) = failed {
            return Err(error).with_context(|| format!("write {}", spool.display()));
        }
        if last {
            return file.flush().with_context(|| format!("write {}", spool.display()));
        }
        if shown.elapsed() >= Duration::from_secs(1) {
            shown = Instant::now();
            eprint!("\r{} connections, {records} records, {} lost ", tracer.connections(), tracer.lost());
        }
        std::thread::sleep(POLL_EVERY);
    }
}

/// Calls `each` for every record of the spool.
fn convert(
    spool: &Path,
    mut each: impl FnMut(Event, Option<Identity>) -> Result<(), longfat_schema::run::RunError>,
) -> anyhow::Result<()> {
    let bytes = fs::read(spool).with_context(|| format!("read {}", spool.display()))?;
    let mut rest = &bytes[..];
    while let Some(length) = record_length(rest) {
        let (record, after) = rest.split_at(length);
        if let Some((event, identity)) = decode(record) {
            each(event, identity)?;
        }
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { bail!("{} is damaged", spool.display()) }
}

/// Events as rows: numbers the connections, and counts what each came to.
struct Rows {
    start_us: i64,
    connections: HashMap<u64, Traced>,
    records: u64,
}

struct Traced {
    number: u32,
    flow: String,
    cc: String,
    snd_una: u32,
    snd_nxt: u32,
    acked_bytes: u64,
    sent_bytes: u64,
    acks: u64,
    /// As the kernel counted when the trace began: one event can repeat several segments.
    retransmitted_before_segments: u32,
    retransmitted_segments: u32,
    timeouts: u64,
}

const CA_LOSS: u8 = 4;
const UNLIMITED: u32 = longfat_kernel::tcb::UNLIMITED_SSTHRESH;

impl Rows {
    fn new(start_us: i64) -> Rows {
        Rows { start_us, connections: HashMap::new(), records: 0 }
    }

    /// `None` for a connection whose beginning was lost: nobody knows who it is.
    fn row(&mut self, event: &Event, identity: Option<Identity>) -> Option<TraceSample> {
        let kind = event.kind()?;
        if let Some(identity) = identity {
            self.identify(event, &identity);
        }
        let traced = self.connections.get_mut(&event.cookie)?;
        self.records += 1;
        traced.advance(event, kind);
        Some(TraceSample {
            time_us: (event.time_ns / 1000) as i64 - self.start_us,
            flow: traced.flow.clone(),
            connection: traced.number,
            event: name(kind, event).to_owned(),
            cc: traced.cc.clone(),
            state: State(event.tcp_state).name().to_owned(),
            ca_state: longfat_host::socket::ca_state_name(event.ca_state).to_owned(),
            cwnd_segments: event.cwnd_segments,
            ssthresh_segments: Some(event.ssthresh_segments).filter(|ssthresh| *ssthresh < UNLIMITED),
            srtt_us: event.srtt_us,
            rttvar_us: event.rttvar_us,
            flight_segments: event.flight_segments,
            unacked_segments: event.unacked_segments,
            lost_segments: event.lost_segments,
            retransmitted_segments: event.total_retrans_segments.into(),
            peer_window_bytes: event.snd_wnd_bytes,
            mss_bytes: event.mss_bytes,
            acked_bytes: traced.acked_bytes,
            sent_bytes: traced.sent_bytes,
        })
    }

    fn identify(&mut self, event: &Event, identity: &Identity) {
        let number = self.connections.len() as u32;
        let traced = self.connections.entry(event.cookie).or_insert_with(|| Traced {
            number,
            flow: format!("{} > {}", identity.local, identity.remote),
            cc: String::new(),
            snd_una: event.snd_una,
            snd_nxt: event.snd_una,
            acked_bytes: 0,
            sent_bytes: 0,
            acks: 0,
            retransmitted_before_segments: event.total_retrans_segments,
            retransmitted_segments: 0,
            timeouts: 0,
        });
        traced.cc = identity.cc.as_str().to_owned();
    }
}

impl Traced {
    fn advance(&mut self, event: &Event, kind: EventKind) {
        // Sequence numbers wrap; a step back (an older record of another processor) is no progress.
        let progress = |from: u32, to: u32| u64::try_from(to.wrapping_sub(from) as i32).unwrap_or(0);
        let (acked, sent) = (progress(self.snd_una, event.snd_una), progress(self.snd_nxt, event.snd_nxt));
        self.acked_bytes += acked;
        self.sent_bytes += sent;
        self.snd_una = self.snd_una.wrapping_add(acked as u32);
        self.snd_nxt = self.snd_nxt.wrapping_add(sent as u32);
        self.acks += u64::from(kind == EventKind::Ack);
        let retransmitted = event.total_retrans_segments.wrapping_sub(self.retransmitted_before_segments);
        self.retransmitted_segments = retransmitted.max(self.retransmitted_segments);
        self.timeouts += u64::from(kind == EventKind::CaState && event.ca_state == CA_LOSS);
    }
}

fn name(kind: EventKind, event: &Event) -> &'static str {
    match kind {
        EventKind::Begin => "begin",
        EventKind::Ack => "ack",
        EventKind::Retransmit => "retransmit",
        EventKind::CaState if event.ca_state == CA_LOSS => "rto",
        EventKind::CaState => "ca_state",
        EventKind::Cc => "cc",
        EventKind::State => "state",
    }
}

struct Ended {
    started_unix_ms: u64,
    duration_us: i64,
    lost: u64,
}

fn manifest(table: &Rows, run: &Ended) -> RunManifest {
    let lost = format!("{} records were lost: the buffer was full; give a greater --buffer", run.lost);
    RunManifest {
        schema_version: SCHEMA_VERSION,
        experiment: "trace".into(),
        case: "trace".into(),
        axes: Default::default(),
        repeat: 1,
        backend: "hosts".into(),
        seed: 0,
        status: if run.lost == 0 { RunStatus::Done } else { RunStatus::Invalid },
        reasons: if run.lost == 0 { Vec::new() } else { vec![lost] },
        started_unix_ms: run.started_unix_ms,
        duration_us: run.duration_us,
        window_start_us: 0,
        window_end_us: run.duration_us,
        metrics: metrics(table, run),
        provenance: provenance::of(BTreeMap::new()),
        hosts: BTreeMap::new(),
        files: None,
        seal: None,
    }
}

fn metrics(table: &Rows, run: &Ended) -> Vec<Metric> {
    let metric = |metric: &str, of: &str, value: f64| Metric {
        metric: metric.to_owned(),
        of: of.to_owned(),
        stream: None,
        value,
    };
    let mut found = vec![
        metric("trace_records", "", table.records as f64),
        metric("trace_lost_records", "", run.lost as f64),
    ];
    let mut connections: Vec<_> = table.connections.values().collect();
    connections.sort_by_key(|traced| traced.number);
    for traced in connections {
        let goodput = traced.acked_bytes as f64 * 8e6 / run.duration_us.max(1) as f64;
        found.push(metric("goodput_bps", &traced.flow, goodput));
        found.push(metric("acks", &traced.flow, traced.acks as f64));
        found.push(metric("retransmitted_segments", &traced.flow, traced.retransmitted_segments.into()));
        found.push(metric("timeouts", &traced.flow, traced.timeouts as f64));
    }
    found
}

fn report(table: &Rows, lost: u64, output: &Path) -> Outcome {
    eprintln!();
    println!(
        "{} connections, {} records, {lost} lost; 'longfat report {}' shows them",
        table.connections.len(),
        table.records,
        output.display()
    );
    if lost > 0 {
        return Err(Failure::Missed(format!("{lost} records were lost; the run is marked invalid")));
    }
    Ok(())
}
