//! `longfat tcb trace`.

mod rows;
mod spool;

use super::Choice;
use crate::{
    outcome::{Failure, Outcome, require},
    provenance, spans, stop,
};
use anyhow::{Context as _, bail};
use longfat_kernel::{
    support::{Capability, missing},
    tcb::trace::{POLL_EVERY, Tracer},
};
use longfat_schema::{
    SCHEMA_VERSION,
    record::Record,
    run::{Metric, RunManifest, RunStatus, RunWriter, seal_run},
    units::{Nanos, Size},
};
use rows::Rows;
use spool::{Spool, Story, Written};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Record cwnd, ssthresh, srtt, flight and state at every ACK, and losses, timeouts and changes, into a run directory.
///
/// Connections that stand are traced from now on, those that begin later and match from their beginning. A record shows
/// the values before its ACK was processed. Records that found no room in the buffer are counted, shown and written
/// into the manifest; the run is then marked invalid. 'longfat report' shows the figures.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat tcb trace dst 10.0.0.0/8 -o runs/trace
      until Ctrl-C
  longfat tcb trace 'process curl' -o runs/trace --duration 30s
  longfat tcb trace --recover runs/trace
      the tables of a trace that was killed
  longfat report runs/trace")]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// The run directory to write.
    #[arg(short, long, value_name = "DIR", required_unless_present = "recover")]
    output: Option<PathBuf>,
    /// End by itself after this long.
    #[arg(long, value_name = "TIME")]
    duration: Option<Nanos>,
    /// Room for what happens between two looks, 50 ms apart; a power of two.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    buffer: Size,
    /// Trace nothing: make the tables of a trace that was killed, out of what it left in its directory.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output", "duration", "filter", "netns"])]
    recover: Option<PathBuf>,
}

/// Shortest trace: two looks at the buffer.
const DURATION_LEAST: Nanos = Nanos(100_000_000);

pub fn run(args: &Args) -> Outcome {
    match (&args.recover, &args.output) {
        (Some(directory), _) => make_tables(Written::left_in(directory)?, directory),
        (None, Some(output)) => trace(args, output),
        (None, None) => Err(anyhow::anyhow!("--output names the run directory to write").into()),
    }
}

fn trace(args: &Args, output: &Path) -> Outcome {
    args.duration.map_or(Ok(()), |duration| spans::at_least("--duration", duration, DURATION_LEAST))?;
    let look = args.choice.look_without_cause(false)?;
    require(missing(&[Capability::Tracing]))?;
    let buffer_bytes = u32::try_from(args.buffer.0).ok().filter(|b| b.is_power_of_two() && *b >= 4096);
    let buffer_bytes = buffer_bytes.with_context(|| {
        format!("--buffer {} is no power of two from 4KiB to 2GiB; give one", args.buffer)
    })?;
    prepare(output)?;
    let stop = stop::flag()?;
    let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    let mut spool = Spool::create(output, started_unix_ms, longfat_host::monotonic_us())?;
    let mut tracer = Tracer::start(look, buffer_bytes).or_else(|error| {
        // Nothing was recorded: what is left behind would only refuse the next try.
        Written::of(&spool)?.remove()?;
        Err(anyhow::Error::from(error))
    })?;
    collect(&mut tracer, &mut spool, args.duration.map(Duration::from), &stop)?;
    drop(tracer);
    eprintln!();
    make_tables(Written::of(&spool)?, output)
}

fn prepare(output: &Path) -> anyhow::Result<()> {
    let shown = output.display();
    if spool::is_in(output) {
        bail!(
            "{shown} holds the records of a trace that was killed or still runs; 'longfat tcb trace --recover {shown}' makes \
             their tables"
        );
    }
    if fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{shown} exists and is not empty; name another directory");
    }
    fs::create_dir_all(output)
        .with_context(|| format!("the directory {shown} cannot be made; name another with -o"))
}

/// Reads what the kernel has recorded until the end.
fn collect(
    tracer: &mut Tracer,
    spool: &mut Spool,
    duration: Option<Duration>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let (start, mut shown) = (Instant::now(), Instant::now());
    let (mut records, mut noted_lost) = (0u64, 0);
    loop {
        let last = stop.load(Ordering::Relaxed) || duration.is_some_and(|span| start.elapsed() >= span);
        let mut failed = None;
        tracer.poll(|bytes| {
            records += 1;
            failed = failed.take().or(spool.push(bytes).err());
        })?;
        if let Some(error) = failed {
            return Err(error).context("write the records");
        }
        spool.flush()?;
        spool.note_meant(tracer.take_meant())?;
        let (lost, due) = (tracer.lost(), last || shown.elapsed() >= Duration::from_secs(1));
        // At once: a trace that is killed in the next moment has lost them all the same.
        if due || lost != noted_lost {
            spool.note_lost(longfat_host::monotonic_us(), lost)?;
            noted_lost = lost;
        }
        if due {
            shown = Instant::now();
            let connections = tracer.connections();
            crate::output::show_progress(&format!(
                "{connections} connections, {records} records, {lost} lost"
            ));
        }
        if last {
            return spool.end(longfat_host::monotonic_us());
        }
        std::thread::sleep(POLL_EVERY);
    }
}

fn make_tables(written: Written, output: &Path) -> Outcome {
    let mut table = Rows::new(written.story.start_us);
    let mut writer = RunWriter::create(output)?;
    let mut last_us = 0;
    written.each(|event, identity| {
        last_us = last_us.max((event.time_ns / 1000) as i64);
        table.row(&event, identity).map_or(Ok(()), |row| writer.push(Record::Trace(row)))
    })?;
    writer.finish()?;
    let run = Ended::of(&written.story, last_us);
    // Sealing takes account of every file that is there.
    written.remove()?;
    seal_run(output, &mut manifest(&table, &run))?;
    report(&table, &run, output)
}

/// How a trace went.
struct Ended {
    started_unix_ms: u64,
    duration_us: i64,
    lost: u64,
    is_whole: bool,
}

impl Ended {
    /// `last_us`: its last record, which can be later than the last note of a trace that was killed.
    fn of(story: &Story, last_us: i64) -> Ended {
        Ended {
            started_unix_ms: story.started_unix_ms,
            duration_us: story.end_us.max(last_us) - story.start_us,
            lost: story.lost,
            is_whole: story.is_whole,
        }
    }

    /// Why its figures are not to be trusted.
    fn reasons(&self) -> Vec<String> {
        let lost = format!("{} records were lost: the buffer was full; give a greater --buffer", self.lost);
        let killed = "the trace was killed; what it recorded last is missing".to_owned();
        let found = [(self.lost > 0, lost), (!self.is_whole, killed)];
        found.into_iter().filter(|(holds, _)| *holds).map(|(_, reason)| reason).collect()
    }
}

fn manifest(table: &Rows, run: &Ended) -> RunManifest {
    let reasons = run.reasons();
    RunManifest {
        schema_version: SCHEMA_VERSION,
        experiment: "trace".into(),
        case: "trace".into(),
        axes: Default::default(),
        repeat: 1,
        backend: "hosts".into(),
        seed: 0,
        dilation: Default::default(),
        status: if reasons.is_empty() { RunStatus::Done } else { RunStatus::Invalid },
        reasons,
        started_unix_ms: run.started_unix_ms,
        duration_us: run.duration_us,
        window_start_us: 0,
        window_end_us: run.duration_us,
        metrics: metrics(table, run),
        twin: None,
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

fn report(table: &Rows, run: &Ended, output: &Path) -> Outcome {
    println!(
        "{} connections, {} records, {} lost; 'longfat report {}' shows them",
        table.connections.len(),
        table.records,
        run.lost,
        output.display()
    );
    match run.reasons().first() {
        Some(reason) => Err(Failure::Missed(format!("{reason}; the run is marked invalid"))),
        None if table.records == 0 => Err(Failure::Missed(
            "nothing was recorded: no connection that matches got an acknowledgement; 'longfat tcb list' shows which there are"
                .into(),
        )),
        None => Ok(()),
    }
}
