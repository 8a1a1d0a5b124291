//! From plan to running relay and back to nothing.

use crate::{
    Error, LegPlan, Observer, Ready, RelayPlan, RelayStats, Result,
    doors::Doors,
    hold::Hold,
    intercept::{self, Interception},
    plan::ConnectionPlan,
    sampling,
    shared::Shared,
    worker::Worker,
};
use longfat_host::{
    socket::{self, Buffer},
    support::Missing,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How often the stop flag is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What this host lacks for the plan; nothing is touched.
pub fn missing(plan: &RelayPlan) -> Vec<Missing> {
    let mut missing = intercept::missing(plan);
    missing.extend(plan.ccs().into_iter().filter_map(missing_cc));
    missing
}

fn missing_cc(name: &str) -> Option<Missing> {
    let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let error = socket::set_cc(&probe, name).err()?;
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

/// Runs the relay until `stop` is raised and its connections have ended or the drain time is over. Everything it
/// made outside its process is gone when it returns, also with an error.
///
/// It runs in the calling thread's network namespace.
pub fn run(plan: &RelayPlan, stop: &AtomicBool, observer: &dyn Observer) -> Result<RelayStats> {
    plan.check()?;
    let missing = missing(plan);
    if !missing.is_empty() {
        return Err(Error::Unsupported(missing));
    }
    let relay = Arc::new(plan.clone().within_memory());
    let interception = match &plan.intercept {
        Some(intercept) => Some(Interception::prepare(&plan.name, intercept)?),
        None => None,
    };
    let own_mark = interception.as_ref().map(Interception::own_mark);
    let stats = open_and_work(&relay, own_mark, interception.as_ref(), stop, observer);
    // An error of the work comes first: it is the cause.
    let removed = interception.map_or(Ok(()), Interception::remove);
    stats.and_then(|stats| removed.map(|()| stats))
}

fn open_and_work(
    plan: &Arc<RelayPlan>,
    own_mark: Option<u32>,
    interception: Option<&Interception>,
    stop: &AtomicBool,
    observer: &dyn Observer,
) -> Result<RelayStats> {
    let shared = Shared::new(plan, own_mark, observer)?;
    let mut doors = Doors::new(plan.workers, own_mark);
    doors.open_explicit(plan)?;
    let ports = if interception.is_some() { doors.open_intercepted(plan)? } else { Vec::new() };
    let hold = match interception {
        Some(interception) => {
            shared.held.set_gates(plan.intercepted_ways(), |rule| interception.hold(rule, plan.fail))?;
            Some(Hold::new(&shared, interception.own_mark())?)
        }
        None => None,
    };
    work(&shared, doors, hold, stop, || {
        interception.map_or(Ok(()), |interception| interception.start(plan, &ports))
    })
}

fn ready(plan: &RelayPlan, listening: Vec<SocketAddr>) -> Ready {
    let interfaces = plan.intercept.as_ref().map(|intercept| intercept.interfaces.clone());
    Ready { name: plan.name.clone(), listening, interfaces: interfaces.unwrap_or_default() }
}

/// Starts the workers and the sampler, announces the relay, waits for the stop flag, drains.
fn work(
    shared: &Shared,
    doors: Doors,
    hold: Option<Hold>,
    stop: &AtomicBool,
    start: impl FnOnce() -> Result<()>,
) -> Result<RelayStats> {
    warn_of_small_buffers(shared);
    let ready = ready(shared.plan, doors.listening);
    let workers = doors.made.into_iter().enumerate();
    let workers: Result<Vec<_>> = workers.map(|(index, own)| Worker::new(index, shared, own)).collect();
    let workers = workers?;
    start()?;
    let sampled = AtomicBool::new(false);
    thread::scope(|scope| {
        if let (Some(registry), Some(every)) = (&shared.registry, shared.plan.sample_every) {
            let (name, observer, done) = (&shared.plan.name, shared.observer, &sampled);
            scope.spawn(move || sampling::run(registry, name, every, done, observer));
        }
        let mut workers: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
        workers.extend(hold.map(|hold| scope.spawn(move || hold.run())));
        shared.observer.ready(&ready);
        wait_for_stop(stop, &workers);
        drain(shared);
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        sampled.store(true, Ordering::Release);
        results.into_iter().try_for_each(|result| match result {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(shared.stats())
}

/// Until the flag is raised, or a worker has ended by itself, which is an error.
fn wait_for_stop<T>(stop: &AtomicBool, workers: &[thread::ScopedJoinHandle<'_, T>]) {
    while !stop.load(Ordering::Acquire) && !workers.iter().any(thread::ScopedJoinHandle::is_finished) {
        thread::sleep(LOOK);
    }
}

fn drain(shared: &Shared) {
    shared.draining.store(true, Ordering::Release);
    shared.wake_all();
    let deadline = Instant::now() + shared.plan.drain;
    while shared.live.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        thread::sleep(LOOK.min(deadline.saturating_duration_since(Instant::now())));
    }
    shared.expired.store(true, Ordering::Release);
    shared.wake_all();
}

/// Without privileges the kernel cuts buffers to its limit and says nothing.
fn warn_of_small_buffers(shared: &Shared) {
    let largest = |of: fn(&ConnectionPlan) -> &LegPlan| {
        shared.plan.ways().map(|way| of(way)).max_by_key(|leg| leg.buffer_bytes)
    };
    for (leg, name) in [(largest(|way| &way.client), "client"), (largest(|way| &way.server), "server")] {
        let Some(leg) = leg else { continue };
        let Ok(probe) = shared.leg(leg, false).outgoing(false) else { continue };
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
