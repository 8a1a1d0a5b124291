//! A plan carried out on this machine: hosts are network namespaces, TCP is the kernel's own, and links with a rate
//! or a delay are drivers between two veth pairs.
//!
//! Everything outside this process belongs to a lease; programs die with the thread that calls [`run`].

mod network;

use crate::{
    backend::{DRAIN_US, Observed, Tick},
    child::{self, Child, ChildError},
    dilation::slowed,
    plan::{FlowPlan, FollowPlan, Plan},
    programs::{self, FollowFiles},
    role::Role,
    samples::Samples,
};
use longfat_host::{Lease, facts, facts::CpuTimes, monotonic_ns, monotonic_us};
use longfat_mobility::Key;
use longfat_schema::{
    lines::LinesError,
    own_time::OwnTime,
    run::{START_FILE, Start, write_json},
};
use network::Network;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// From "every sender has agreed with its receiver" to the first byte: all are told when that is meanwhile.
const LEAD_NS: u64 = 300_000_000;
/// How often the run is looked after.
const POLL: Duration = Duration::from_millis(50);

/// Where a run happens.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The `longfat` binary whose subcommands measure.
    pub program: &'a Path,
    /// The run's directory.
    pub directory: &'a Path,
    /// Name of the lease.
    pub lease: &'a str,
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum EmulationError {
    /// The stop flag was raised.
    #[error("interrupted")]
    Interrupted,
    /// A program of the run failed; the next run may well succeed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The senders do not end.
    #[error("{0} did not end within {1} s after the end of the run")]
    Endless(String, i64),
    /// The host would not do what was asked.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
    /// What follows a link could not be prepared.
    #[error(transparent)]
    Follow(#[from] longfat_mobility::Error),
    /// A samples file is damaged.
    #[error(transparent)]
    Samples(#[from] LinesError),
    /// The run directory could not be written.
    #[error(transparent)]
    Write(#[from] longfat_schema::run::RunError),
    /// A directory could not be made.
    #[error("{path}: {source}")]
    Directory {
        /// Which.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Carries a plan out. `tick` is called while the flows run; `stop` ends it early. Nothing is left behind.
pub fn run(
    plan: &Plan,
    place: Place<'_>,
    tick: &mut dyn FnMut(Tick),
    stop: &AtomicBool,
) -> Result<Observed, EmulationError> {
    let files = Files::create(place.directory)?;
    let lease = Lease::take(place.lease)?;
    // From here to the samples everything is in the machine's time.
    let (own, dilation) = (plan, plan.dilation);
    let plan = &slowed(own);
    let tick = &mut |slow: Tick| tick(slow.at_own_rate(dilation));
    let network = Network::build(lease, plan)?;
    let Place { program, lease, .. } = place;
    let mut stage = Stage { plan, program, lease, files, servers: Vec::new(), network };
    stage.start_servers(stop)?;
    let mut hosts = stage.network.states()?;
    let mut senders = stage.start_senders(stop)?;
    let start_ns = monotonic_ns() + LEAD_NS;
    child::tell_start(&plan.flows, &mut senders, start_ns);
    // For who looks on; goes with the raw records.
    let start = Start { start_us: (start_ns / 1000) as i64, dilation };
    write_json(&stage.files.raw.join(START_FILE), &start)?;
    let cpu_busy = stage.watch(&mut senders, start_ns, tick, stop)?;
    let duration_us = monotonic_us() - (start_ns / 1000) as i64;
    for (host, after) in stage.network.counters()? {
        let state = hosts.entry(host).or_default();
        state.counters = facts::growth(&state.counters, &after);
    }
    let samples = stage.finish(start.own_time())?;
    Ok(Observed { samples, hosts, cpu_busy, duration_us: duration_us / i64::from(dilation.times()) })
}

/// Directories of a run besides its tables.
struct Files {
    logs: PathBuf,
    raw: PathBuf,
}

impl Files {
    fn create(directory: &Path) -> Result<Files, EmulationError> {
        let files = Files { logs: directory.join("log"), raw: directory.join("raw") };
        for path in [&files.logs, &files.raw] {
            fs::create_dir_all(path)
                .map_err(|source| EmulationError::Directory { path: path.display().to_string(), source })?;
        }
        Ok(files)
    }
}

/// A run in progress. Fields drop in order: programs end before their namespaces are deleted.
struct Stage<'a> {
    plan: &'a Plan,
    program: &'a Path,
    lease: &'a str,
    files: Files,
    servers: Vec<Child>,
    network: Network,
}

impl Stage<'_> {
    /// Links first, then relays, then receivers: each is ready before the next could need it.
    fn start_servers(&mut self, stop: &AtomicBool) -> Result<(), EmulationError> {
        for cable in programs::emulated(self.plan) {
            let role = Role::Link(cable.name.clone());
            let link_plan = self.plan_file(&role);
            write_json(&link_plan, &cable.path)?;
            let arguments = programs::link(cable, &link_plan, &self.samples_file(&role));
            let namespace = self.network.link(&cable.name)?.clone();
            self.serve(&namespace, &arguments, role, stop)?;
        }
        for relay in &self.plan.relays {
            let role = Role::Relay(relay.name.clone());
            let config = self.files.raw.join(format!("{}.toml", role.file()));
            let text = programs::relay_spec(relay, false).text().map_err(io::Error::other);
            text.and_then(|text| fs::write(&config, text))
                .map_err(|source| EmulationError::Directory { path: config.display().to_string(), source })?;
            let arguments = programs::relay(self.plan, &config, &self.samples_file(&role));
            let namespace = self.network.host(&relay.host)?.clone();
            self.serve(&namespace, &arguments, role, stop)?;
        }
        for follow in &self.plan.follows {
            Key::create(&self.key_file(follow))?;
            // Before the router: they hear the first announcement.
            if follow.start_us == 0 {
                self.start_followers(follow, stop)?;
            }
            self.start_announcer(follow, stop)?;
        }
        let receivers: BTreeSet<(&str, u16)> =
            self.plan.flows.iter().map(|flow| (flow.to.as_str(), flow.port)).collect();
        for (host, port) in receivers {
            let arguments = programs::serve(port, self.plan);
            let namespace = self.network.host(host)?.clone();
            self.serve(&namespace, &arguments, Role::Receiver(host.to_owned()), stop)?;
        }
        Ok(())
    }

    fn key_file(&self, follow: &FollowPlan) -> PathBuf {
        self.files.raw.join(format!("follow-{}.key", follow.name))
    }

    fn start_followers(&mut self, follow: &FollowPlan, stop: &AtomicBool) -> Result<(), EmulationError> {
        let key = self.key_file(follow);
        let far = follow.far.iter().map(|far| (&far.host, true));
        for (host, far) in follow.nodes.iter().map(|node| (node, false)).chain(far) {
            let role = Role::Follower { follow: follow.name.clone(), host: host.clone() };
            let file = role.file();
            let files = FollowFiles { key: &key, name: &format!("{}-{file}", self.lease) };
            let state = self.files.raw.join(format!("{file}.state.json"));
            let audit = self.files.logs.join(format!("{file}.audit.jsonl"));
            let arguments = programs::follow(follow, &files, &state, &audit, far);
            let namespace = self.network.host(host)?.clone();
            self.serve(&namespace, &arguments, role, stop)?;
        }
        Ok(())
    }

    fn start_announcer(&mut self, follow: &FollowPlan, stop: &AtomicBool) -> Result<(), EmulationError> {
        let key = self.key_file(follow);
        let role = Role::Announcer(follow.name.clone());
        let files = FollowFiles { key: &key, name: &format!("{}-{}", self.lease, role.file()) };
        let model = self.plan_file(&Role::Link(follow.link.clone()));
        let changes = self.changes(&follow.link);
        let arguments = programs::announce(follow, &files, &model, changes);
        let namespace = self.network.host(&follow.router)?.clone();
        self.serve(&namespace, &arguments, role, stop)
    }

    fn serve(
        &mut self,
        namespace: &longfat_host::Namespace,
        arguments: &[String],
        role: Role,
        stop: &AtomicBool,
    ) -> Result<(), EmulationError> {
        if stop.load(Ordering::Relaxed) {
            return Err(EmulationError::Interrupted);
        }
        let log = self.log_file(&role);
        let mut child = Child::start(namespace, self.program, arguments, role, &log)?;
        child.wait_ready()?;
        self.servers.push(child);
        Ok(())
    }

    /// Starts the senders, in the order of the plan's flows, and waits until each has agreed with its receiver.
    fn start_senders(&self, stop: &AtomicBool) -> Result<Vec<Child>, EmulationError> {
        let start = |flow: &FlowPlan| {
            let role = Role::Sender(flow.name.clone());
            let transfer = self.plan_file(&role);
            write_json(&transfer, &programs::transfer(flow, self.plan))?;
            let arguments = programs::send(flow, &transfer, &self.samples_file(&role));
            let (namespace, log) = (self.network.host(&flow.from)?, self.log_file(&role));
            Ok(Child::start(namespace, self.program, &arguments, role, &log)?)
        };
        let mut senders = self.plan.flows.iter().map(start).collect::<Result<Vec<_>, EmulationError>>()?;
        let within = child::AGREE_WITHIN * self.plan.dilation.times();
        while child::disagreed(&mut senders, child::LOOK, within)?.is_some() {
            if stop.load(Ordering::Relaxed) {
                return Err(EmulationError::Interrupted);
            }
        }
        Ok(senders)
    }

    /// Looks after the run until every sender has ended; the share of busy CPU over the window.
    fn watch(
        &mut self,
        senders: &mut [Child],
        start_ns: u64,
        tick: &mut dyn FnMut(Tick),
        stop: &AtomicBool,
    ) -> Result<Option<f64>, EmulationError> {
        let (window_start, window_end) = (self.plan.window_start_us, self.plan.window_end_us);
        let (mut cpu_start, mut cpu_end) = (None, None);
        let mut arrivals = Arrivals::default();
        let mut begun = false;
        let plan = self.plan;
        let drain_us = DRAIN_US * i64::from(plan.dilation.times());
        let mut late: Vec<&FollowPlan> = plan.follows.iter().filter(|follow| follow.start_us > 0).collect();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(EmulationError::Interrupted);
            }
            self.servers.iter_mut().try_for_each(Child::check_alive)?;
            senders.iter_mut().try_for_each(Child::check)?;
            let elapsed_us = monotonic_us() - (start_ns / 1000) as i64;
            if elapsed_us >= 0 && !std::mem::replace(&mut begun, true) {
                self.begin_schedules();
            }
            for follow in late.extract_if(.., |follow| elapsed_us >= follow.start_us as i64) {
                self.start_followers(follow, stop)?;
            }
            if elapsed_us >= window_start && cpu_start.is_none() {
                cpu_start = CpuTimes::now();
            }
            if elapsed_us >= window_end && cpu_end.is_none() {
                cpu_end = CpuTimes::now();
            }
            tick(Tick { elapsed_us, arriving_bps: arrivals.rate_bps(self.arrived_bytes()) });
            let running = senders.iter_mut().find(|sender| sender.ended.is_none());
            let Some(running) = running else { break };
            if elapsed_us > window_end + drain_us {
                return Err(EmulationError::Endless(running.role.to_string(), drain_us / 1_000_000));
            }
            let until_start = u64::try_from(-elapsed_us).ok().filter(|us| *us > 0);
            std::thread::sleep(until_start.map_or(POLL, |us| Duration::from_micros(us).min(POLL)));
        }
        let cpu_end = cpu_end.or_else(CpuTimes::now);
        Ok(cpu_start.zip(cpu_end).and_then(|(start, end)| end.busy_since(start)))
    }

    /// Tells the links that change over time, and who announces them, that the flows begin now.
    fn begin_schedules(&mut self) {
        let links = self.plan.links.iter().map(|cable| (&cable.name, Role::Link(cable.name.clone())));
        let announced =
            self.plan.follows.iter().map(|follow| (&follow.link, Role::Announcer(follow.name.clone())));
        let changing = links.chain(announced).filter(|(link, _)| self.changes(link));
        let roles: Vec<Role> = changing.map(|(_, role)| role).collect();
        self.servers.iter_mut().filter(|server| roles.contains(&server.role)).for_each(Child::notify);
    }

    /// Whether the emulated link of that name changes over time.
    fn changes(&self, link: &str) -> bool {
        programs::emulated(self.plan).any(|cable| cable.name == link && programs::changes(cable))
    }

    /// Bytes that have reached the host to which the focus flow (or else the first) goes.
    fn arrived_bytes(&self) -> Option<u64> {
        let focus = |flow: &&FlowPlan| Some(&flow.name) == self.plan.focus.as_ref();
        let flow = self.plan.flows.iter().find(focus).or(self.plan.flows.first())?;
        let role = Role::Receiver(flow.to.clone());
        let receiver = self.servers.iter().find(|server| server.role == role)?;
        let is_its = |cable: &&crate::plan::CablePlan| {
            cable.ends.iter().any(|end| flow.address == end.ipv4 || flow.address == end.ipv6)
        };
        let cable = self.plan.links.iter().find(is_its)?;
        facts::received_bytes(receiver.pid(), &cable.name)
    }

    /// Ends the serving programs, in the reverse order of their start, and reads what all have written.
    fn finish(mut self, time: OwnTime) -> Result<Samples, EmulationError> {
        while let Some(mut server) = self.servers.pop() {
            server.stop()?;
        }
        let mut samples = Samples::default();
        let mut paths: Vec<PathBuf> =
            fs::read_dir(&self.files.raw).into_iter().flatten().flatten().map(|f| f.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|kind| kind == "jsonl")) {
            samples.gather(path, time)?;
        }
        samples.sort();
        Ok(samples)
    }

    fn plan_file(&self, role: &Role) -> PathBuf {
        self.files.raw.join(format!("{}.json", role.file()))
    }

    fn samples_file(&self, role: &Role) -> PathBuf {
        self.files.raw.join(format!("{}.jsonl", role.file()))
    }

    fn log_file(&self, role: &Role) -> PathBuf {
        self.files.logs.join(format!("{}.log", role.file()))
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
