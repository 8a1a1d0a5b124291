//! From plan to running relay and back to nothing.

use crate::{
    Commands, Error, InterceptPlan, LegPlan, Observer, Ready, RelayPlan, RelayStats, Result, Stop,
    daemon::{control::Control, leave::Exit, reload::Standing},
    handover::{estate::Estate, keeper},
    hold::Hold,
    intercept::{self, Interception},
    keeping::{Keeping, wire::Wire},
    listeners::Doors,
    observe::{metrics, sampling},
    plan::ConnectionPlan,
    queue,
    shared::Shared,
    worker::Worker,
};
use longfat_host::{
    socket::{self, Buffer},
    support::{self, Missing},
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{
    net::Ipv4Addr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How often the stop flag is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What this host lacks for the plan; nothing is touched.
pub fn missing(plan: &RelayPlan) -> Vec<Missing> {
    let mut missing = missing_on_reload(plan);
    missing.extend(
        plan.intercept.as_ref().and_then(|_| support::missing_network_raw("refusals of held handshakes")),
    );
    missing.extend(queue::missing(&plan.queues()));
    missing
}

/// What this host lacks for taking connections that pass through it, whatever the interface.
pub fn missing_for_interception() -> Vec<Missing> {
    let interfaces = vec!["lo".to_owned()];
    let intercept = InterceptPlan { interfaces, set_forwarding: true, ..InterceptPlan::default() };
    missing(&RelayPlan::transparent("probe", intercept))
}

/// What it lacks for a relay that runs. Whole packets are sent by sockets that were opened at its start, and packets are
/// marked by a program that was loaded then, with rights that have been given up since.
pub(crate) fn missing_on_reload(plan: &RelayPlan) -> Vec<Missing> {
    let mut missing = intercept::missing(plan);
    missing.extend(plan.ccs().into_iter().filter_map(missing_cc));
    missing
}

/// Why none of ours can be loaded into this kernel, as far as this user's rights let it be known.
fn missing_for_ours() -> Option<Missing> {
    use longfat_kernel::support::{Capability, missing, missing_rights};
    let known = missing_rights().is_none();
    known.then(|| missing(&[Capability::CongestionControl])).and_then(|missing| missing.into_iter().next())
}

fn missing_cc(name: &str) -> Option<Missing> {
    let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let error = socket::set_cc(&probe, name).err()?;
    if name.starts_with("lf_")
        && let Some(never) = missing_for_ours()
    {
        return Some(never);
    }
    let mend = match &error {
        longfat_host::Error::Io { source, .. } if source.raw_os_error() == Some(libc::EPERM) => {
            format!("run it as root, or add '{name}' to net.ipv4.tcp_allowed_congestion_control")
        }
        _ => match name.strip_prefix("lf_") {
            Some(ours) => format!("load it with 'longfat cc load {ours}'"),
            None => format!("load it with 'modprobe tcp_{name}', or name one that 'longfat cc list' shows"),
        },
    };
    Some(Missing::new(format!("the congestion control '{name}'"), error.to_string(), mend))
}

/// Runs the relay until it is told to stop and its connections have ended or the drain time is over. Everything it
/// made outside its process is gone when it returns, also with an error; only a relay that fails closed leaves its
/// refusals.
///
/// It runs in the calling thread's network namespace.
///
/// With [`RelayPlan::keep`] it goes on with what a keeper has of a relay of that name which was killed.
pub fn run(plan: &RelayPlan, commands: &dyn Commands, observer: &dyn Observer) -> Result<RelayStats> {
    check(plan)?;
    raise_limit();
    let (keeper, estate) = if plan.keep { keeper::attach(plan).map(split)? } else { Default::default() };
    run_with(plan, keeper, estate, commands, observer)
}

/// Takes over from the relay of that name that runs in this network namespace: its listeners, its interfaces, its
/// connections with the bytes that it holds. Nothing is interrupted but for a moment. If anything fails, that relay
/// goes on.
///
/// # Errors
/// There is none, or it cannot be taken over from.
pub fn upgrade(plan: &RelayPlan, commands: &dyn Commands, observer: &dyn Observer) -> Result<RelayStats> {
    check(plan)?;
    raise_limit();
    let mut estate = Estate::from_predecessor(plan)?;
    let keeper = estate.keeper.take();
    if keeper.is_some() != plan.keep {
        let (has, wants) = if plan.keep { ("no keeper", "with one") } else { ("a keeper", "without one") };
        return Err(Error::Plan(format!(
            "the relay '{}' has {has} and cannot go on {wants}: give 'keep' as it has it, or restart it",
            plan.name
        )));
    }
    run_with(plan, keeper, estate, commands, observer)
}

fn split((keeper, estate): (Wire, Estate)) -> (Option<Wire>, Estate) {
    (Some(keeper), estate)
}

fn check(plan: &RelayPlan) -> Result<()> {
    plan.check()?;
    let missing = missing(plan);
    if missing.is_empty() { Ok(()) } else { Err(Error::Unsupported(missing)) }
}

/// As many descriptors may come as another process had.
pub(crate) fn raise_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn run_with(
    plan: &RelayPlan,
    keeper: Option<Wire>,
    mut estate: Estate,
    commands: &dyn Commands,
    observer: &dyn Observer,
) -> Result<RelayStats> {
    let relay = Arc::new(plan.clone().within_memory());
    let interception = match &plan.intercept {
        Some(intercept) => Some(intercept_with(&relay, intercept, &mut estate, observer)?),
        None => None,
    };
    let stats = open_and_work(&relay, interception.as_ref(), (keeper, estate), commands, observer);
    // An error of the work comes first: it is the cause.
    let removed = interception.map_or(Ok(()), Interception::remove);
    stats.and_then(|stats| removed.map(|()| stats))
}

fn intercept_with(
    relay: &RelayPlan,
    intercept: &InterceptPlan,
    estate: &mut Estate,
    observer: &dyn Observer,
) -> Result<Interception> {
    let there = match estate.is_there {
        true => Interception::take_over(relay, intercept, estate.life.take())?,
        false => None,
    };
    there.map_or_else(|| Interception::prepare(relay, intercept, observer), Ok)
}

/// Opens everything that can fail, then works.
fn open_and_work(
    plan: &Arc<RelayPlan>,
    interception: Option<&Interception>,
    (keeper, mut estate): (Option<Wire>, Estate),
    commands: &dyn Commands,
    observer: &dyn Observer,
) -> Result<RelayStats> {
    let own_mark = interception.map(Interception::own_mark);
    let inherited = std::mem::take(&mut estate.others);
    let shared = Shared::new(plan, own_mark, Keeping::new(keeper, &inherited), observer)?;
    let mut answers = Answers::open(plan, &mut estate)?;
    let interfaces = std::mem::take(&mut estate.interfaces);
    shared.held.inherit(interfaces, plan.holders(), &plan.defaults);
    let listeners = std::mem::take(&mut estate.listeners);
    let mut doors = Doors::new(plan.workers, own_mark, listeners);
    doors.open_explicit(plan)?;
    let ports = if interception.is_some() { doors.open_intercepted(plan)?.0 } else { Vec::new() };
    if let Some(interception) = interception {
        let gates = shared.held.prepare(plan.intercepted_ways(), plan.holders(), interception)?;
        shared.held.open(gates);
    }
    let holds = |index| shared.raw.is_some() && index < plan.holders();
    let hold = |index| holds(index).then(|| Hold::new(index, &shared));
    shared.count_descriptors(doors.ids().len());
    warn_of_small_buffers(&shared);
    let made: Vec<_> = doors.made.iter_mut().map(std::mem::take).enumerate().collect();
    let workers: Result<Vec<_>> =
        made.into_iter().map(|(index, own)| Worker::new(index, &shared, own, hold(index))).collect();
    let workers = workers?;
    if let Some(interception) = interception {
        interception.start(plan, &ports)?;
    }
    doors.close_inherited();
    let mut standing = Standing::new(Arc::clone(plan), doors, ports, interception);
    standing.describe(&mut shared.standing.lock().unwrap_or_else(PoisonError::into_inner));
    observer.prepared()?;
    let exit = Exit::open(plan, estate.exit.take(), observer)?;
    take_over(&shared, estate)?;
    standing.keep(&shared);
    // Under their new numbers they are there.
    inherited.iter().for_each(|id| shared.keeping.gone(*id));
    interception.iter().for_each(|interception| interception.own());
    answers.control.iter_mut().for_each(Control::own);
    work(&shared, standing, workers, (answers, exit), commands)
}

/// Takes connections over, and gives them to the workers: from now on nobody else carries them.
fn take_over(shared: &Shared, mut estate: Estate) -> Result<()> {
    estate.take_connections()?;
    let next = estate.connections.values().map(|arrival| arrival.record.number.wrapping_add(1)).max();
    next.into_iter().for_each(|next| shared.number_from(next));
    estate.hold()?;
    let count = shared.seats.len();
    let mut shares: Vec<(Vec<_>, Vec<_>)> = (0..count).map(|_| Default::default()).collect();
    for arrival in estate.connections.into_values() {
        shares[arrival.record.worker % count].0.push(arrival);
    }
    for (holder, handshake) in estate.handshakes {
        shares[holder % count].1.push(handshake);
    }
    for (seat, (connections, handshakes)) in shared.seats.iter().zip(shares) {
        seat.bring(connections, handshakes);
    }
    Ok(())
}

/// Who answers questions.
pub(crate) struct Answers {
    pub control: Option<Control>,
    pub metrics: Option<metrics::http::Server>,
}

impl Answers {
    fn open(plan: &RelayPlan, estate: &mut Estate) -> Result<Answers> {
        let control =
            plan.control.as_ref().map(|plan| Control::open(plan, estate.control.take())).transpose()?;
        let open_metrics = |address| metrics::http::Server::open_or(address, estate.metrics.take());
        let metrics = plan.metrics.map(open_metrics).transpose()?;
        Ok(Answers { control, metrics })
    }

    /// They are another relay's now.
    fn leave(self) {
        self.control.into_iter().for_each(Control::leave);
    }
}

/// Runs the threads, announces the relay, does what is asked of it until it shall end, drains.
fn work(
    shared: &Shared,
    mut standing: Standing,
    workers: Vec<Worker>,
    (answers, exit): (Answers, Exit),
    commands: &dyn Commands,
) -> Result<RelayStats> {
    let ready = ready(&standing, &answers);
    let done = AtomicBool::new(false);
    let mut has_left = false;
    thread::scope(|scope| {
        let done = &done;
        if let Some(every) = shared.plan.sample_every {
            let name = &shared.plan.name;
            scope.spawn(move || sampling::run(&shared.registry, name, every, done, shared.observer));
        }
        if let Some(control) = &answers.control {
            scope.spawn(move || control.serve(shared, done));
        }
        if let Some(metrics) = &answers.metrics {
            scope.spawn(move || metrics.serve(&|format| metrics::render(shared, format), done));
        }
        scope.spawn(move || shared.queues.run(done));
        let workers: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
        shared.observer.ready(&ready);
        has_left = attend(shared, &mut standing, commands, &workers, &|standing| {
            exit.look(shared, standing, &answers)
        });
        match has_left {
            true => shared.observer.left(),
            false => drain(shared, &mut standing, commands),
        }
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Release);
        shared.queues.wake();
        results.into_iter().try_for_each(|result| match result {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    match has_left {
        true => answers.leave(),
        false => shared.keeping.end(),
    }
    Ok(shared.stats())
}

fn ready(standing: &Standing, answers: &Answers) -> Ready {
    let plan = &standing.plan;
    let interfaces = plan.intercept.as_ref().map(|intercept| intercept.interfaces.clone());
    Ready {
        name: plan.name.clone(),
        listening: standing.doors.listening(),
        interfaces: interfaces.unwrap_or_default(),
        control: plan.control.as_ref().map(|control| control.socket.clone()),
        metrics: answers.metrics.as_ref().and_then(metrics::http::Server::address),
    }
}

/// Does what is asked, until the relay shall end or a worker has ended by itself, which is an error. Whether a
/// successor has everything.
fn attend<T>(
    shared: &Shared,
    standing: &mut Standing,
    commands: &dyn Commands,
    workers: &[thread::ScopedJoinHandle<'_, T>],
    has_left: &dyn Fn(&Standing) -> bool,
) -> bool {
    let mut pulse = Pulse::default();
    while commands.stop() == Stop::No && !workers.iter().any(thread::ScopedJoinHandle::is_finished) {
        standing.look_for_reload(shared, commands);
        standing.retire(shared);
        standing.exclude(shared);
        standing.look_for_unheard(shared);
        standing.pass_one_way(shared);
        warn_of_lost_keeper(shared);
        pulse.feel(shared);
        if has_left(standing) {
            return true;
        }
        thread::sleep(LOOK);
    }
    false
}

fn warn_of_lost_keeper(shared: &Shared) {
    if let Some(error) = shared.keeping.take_lost() {
        shared.observer.warning(&format!(
            "nobody keeps what this relay has any more: when it is killed, its connections are reset ({error})"
        ));
    }
}

/// Whether every worker goes round its loop.
#[derive(Default)]
struct Pulse {
    rounds: Vec<u64>,
}

impl Pulse {
    fn feel(&mut self, shared: &Shared) {
        let rounds: Vec<u64> = shared.seats.iter().map(|seat| seat.rounds.load(Ordering::Relaxed)).collect();
        let moved = |(before, now): (&u64, &u64)| before != now;
        if self.rounds.is_empty() || self.rounds.iter().zip(&rounds).all(moved) {
            shared.observer.alive();
            self.rounds = rounds;
        }
    }
}

fn drain(shared: &Shared, standing: &mut Standing, commands: &dyn Commands) {
    let time = standing.plan.drain;
    let deadline = Instant::now() + time;
    let handshakes = standing.stop_taking(shared);
    shared.observer.draining(shared.live.load(Ordering::Acquire), time);
    wait(Instant::now() + handshakes, || commands.stop() == Stop::Now);
    shared.draining.store(true, Ordering::Release);
    standing.doors.close();
    shared.wake_all();
    wait(deadline, || commands.stop() == Stop::Now || shared.live.load(Ordering::Acquire) == 0);
    shared.expired.store(true, Ordering::Release);
    shared.wake_all();
}

fn wait(deadline: Instant, enough: impl Fn() -> bool) {
    while !enough() && Instant::now() < deadline {
        thread::sleep(LOOK.min(deadline.saturating_duration_since(Instant::now())));
    }
}

/// Without privileges the kernel cuts buffers to its limit and says nothing.
fn warn_of_small_buffers(shared: &Shared) {
    let largest = |of: fn(&ConnectionPlan) -> &LegPlan| {
        shared.plan.ways().map(|way| of(way)).max_by_key(|leg| leg.buffer_bytes)
    };
    for (leg, name) in [(largest(|way| &way.client), "client"), (largest(|way| &way.server), "server")] {
        let Some(leg) = leg else { continue };
        let Ok(probe) = shared.leg(leg, false).outgoing(false) else { continue };
        if leg.equip(&probe).is_err() {
            continue;
        }
        let wanted = leg.buffer_bytes;
        for (buffer, limit) in [(Buffer::Send, "wmem_max"), (Buffer::Receive, "rmem_max")] {
            let got = socket::buffer(&probe, buffer);
            if got < wanted / 2 {
                shared.observer.warning(&format!(
                    "the {buffer:?} buffer towards the {name} is {got} bytes instead of {wanted}: \
                     run the relay as root, or raise net.core.{limit}"
                ));
            }
        }
    }
}
