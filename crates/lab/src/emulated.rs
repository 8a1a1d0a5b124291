//! A plan carried out on this machine: hosts are network namespaces, TCP is the kernel's own, and links with a rate
//! or a delay are drivers between two veth pairs.
//!
//! Everything outside this process belongs to a lease; programs die with the thread that calls [`run`].

use crate::{
    backend::{Observed, Tick},
    conductor::{self, Parts, Status},
    dilation::{first_timeout, slowed},
    network::Network,
    part::{Files, Ground, Part, PartError},
    plan::{CablePlan, FlowPlan, Plan},
    process::Role,
    samples::Samples,
};
use longfat_host::{Lease, facts, monotonic_ns, monotonic_us};
use longfat_kernel::first_timeout::FirstTimeout;
use longfat_schema::{
    own_time::OwnTime,
    run::{START_FILE, Start, write_json},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

/// From "every sender has agreed with its receiver" to the first byte: all are told when that is meanwhile.
const LEAD_NS: u64 = 300_000_000;

/// Where a run happens.
#[derive(Debug, Clone, Copy)]
pub struct Environment<'a> {
    /// The `longfat` binary whose subcommands measure.
    pub program: &'a Path,
    /// The run's directory.
    pub directory: &'a Path,
    /// Name of the lease.
    pub lease: &'a str,
}

/// Carries a plan out. `tick` is called while the flows run; `stop` ends it early. Nothing is left behind.
pub fn run(
    plan: &Plan,
    environment: Environment<'_>,
    tick: &mut dyn FnMut(Tick),
    stop: &AtomicBool,
) -> Result<Observed, PartError> {
    let files = files(environment)?;
    let lease = Lease::take(environment.lease)?;
    // From here to the samples everything is in the machine's time.
    let dilation = plan.dilation;
    let plan = slowed(plan);
    let tick = &mut |slow: Tick| tick(slow.at_own_rate(dilation));
    // Dropped after the part: programs end before their namespaces are deleted.
    let network = Network::build(lease, &plan)?;
    let first_timeout = first_timeout(&plan).map(FirstTimeout::set).transpose()?;
    let ground = Ground::Network { network: &network, first_timeout: first_timeout.as_ref() };
    let part = Part::new(plan, ground, environment.program, files);
    let mut stage = Stage { part, arrivals: Arrivals::default() };
    stage.part.serve(stop)?;
    let mut hosts = network.states()?;
    stage.part.send()?;
    let agree_within = conductor::agree_within(&stage.part.plan);
    conductor::agree(&mut stage, agree_within, stop)?;
    let start_ns = monotonic_ns() + LEAD_NS;
    stage.part.tell_start(start_ns);
    let start_us = (start_ns / 1000) as i64;
    // For who looks on; goes with the raw records.
    let start = Start { start_us, dilation };
    write_json(&stage.part.files.raw.join(START_FILE), &start)?;
    let plan = stage.part.plan.clone();
    let cpu_busy = conductor::watch(&mut stage, &plan, start_us, tick, stop)?;
    let duration_us = monotonic_us() - start_us;
    for (host, after) in network.counters()? {
        let state = hosts.entry(host).or_default();
        state.counters = facts::growth(&state.counters, &after);
    }
    stage.part.finish()?;
    let samples = gathered(&stage.part.files.raw, start.own_time())?;
    Ok(Observed { samples, hosts, cpu_busy, duration_us: duration_us / i64::from(dilation.times()) })
}

/// Directories of a run besides its tables.
fn files(environment: Environment<'_>) -> Result<Files, PartError> {
    let [raw, logs] = ["raw", "log"].map(|name| environment.directory.join(name));
    for path in [&raw, &logs] {
        fs::create_dir_all(path).map_err(|source| PartError::io(path, source))?;
    }
    Ok(Files { raw, logs, prefix: environment.lease.to_owned() })
}

/// What all programs have written.
fn gathered(raw: &Path, time: OwnTime) -> Result<Samples, PartError> {
    let mut samples = Samples::default();
    let mut paths: Vec<PathBuf> =
        fs::read_dir(raw).into_iter().flatten().flatten().map(|f| f.path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|kind| kind == "jsonl")) {
        samples.gather(path, time)?;
    }
    samples.sort();
    Ok(samples)
}

/// A run in progress: one part, which has all hosts.
struct Stage<'a> {
    part: Part<'a>,
    arrivals: Arrivals,
}

impl Parts for Stage<'_> {
    type Error = PartError;
    const POLL_US: i64 = 50_000;

    fn status(&mut self, stop: &AtomicBool) -> Result<Status, PartError> {
        self.part.status(stop)
    }

    fn arriving_bps(&mut self, _: i64, _: i64) -> Result<Option<f64>, PartError> {
        let bytes = self.arrived_bytes();
        Ok(self.arrivals.rate_bps(bytes))
    }
}

impl Stage<'_> {
    /// Bytes that have reached the host to which the focus flow (or else the first) goes.
    fn arrived_bytes(&self) -> Option<u64> {
        let plan = &self.part.plan;
        let focus = |flow: &&FlowPlan| Some(&flow.name) == plan.focus.as_ref();
        let flow = plan.flows.iter().find(focus).or(plan.flows.first())?;
        let receiver = self.part.server(&Role::Receiver(flow.to.clone()))?;
        let is_its = |cable: &&CablePlan| {
            cable.ends.iter().any(|end| flow.address == end.ipv4 || flow.address == end.ipv6)
        };
        let cable = plan.links.iter().find(is_its)?;
        facts::received_bytes(receiver.pid(), &cable.name)
    }
}

/// Turns a byte counter into a rate over the last second or so.
#[derive(Default)]
struct Arrivals {
    since: Option<(i64, u64)>,
    rate_bps: Option<f64>,
}

impl Arrivals {
    fn rate_bps(&mut self, bytes: Option<u64>) -> Option<f64> {
        let now_us = monotonic_us();
        let bytes = bytes?;
        let (since_us, earlier) = *self.since.get_or_insert((now_us, bytes));
        if now_us - since_us >= 500_000 {
            self.rate_bps = Some(bytes.saturating_sub(earlier) as f64 * 8e6 / (now_us - since_us) as f64);
            self.since = Some((now_us, bytes));
        }
        self.rate_bps
    }
}
