//! From plan to running relay and back to nothing.

use crate::{
    Error, InterceptPlan, LegPlan, Mode, Observer, Ready, RelayPlan, RelayStats, Result,
    intercept::{self, Interception, ListenPorts},
    leg::Share,
    sampling,
    shared::Shared,
    worker::Worker,
};
use longfat_host::{
    socket::{self, Buffer},
    support::Missing,
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How often the stop flag is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What this host lacks for the plan; nothing is touched.
pub fn missing(plan: &RelayPlan) -> Vec<Missing> {
    let mut missing = match &plan.mode {
        Mode::Transparent(intercept) => intercept::missing(intercept),
        Mode::Explicit { .. } => Vec::new(),
    };
    missing.extend([&plan.client, &plan.server].into_iter().filter_map(missing_cc));
    missing
}

fn missing_cc(leg: &LegPlan) -> Option<Missing> {
    let name = leg.cc.as_deref()?;
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
    match &plan.mode {
        Mode::Explicit { listen, .. } => {
            let shared = Shared::new(plan, None, observer)?;
            let listeners = explicit_listeners(&shared, *listen)?;
            work(&shared, listeners, stop, |listening| Ok(ready(plan, listening, &[])))
        }
        Mode::Transparent(intercept) => run_transparent(plan, intercept, stop, observer),
    }
}

fn run_transparent(
    plan: &RelayPlan,
    intercept: &InterceptPlan,
    stop: &AtomicBool,
    observer: &dyn Observer,
) -> Result<RelayStats> {
    let interception = Interception::prepare(&plan.name, intercept)?;
    let shared = Shared::new(plan, Some(interception.own_mark()), observer)?;
    let (listeners, ports) = transparent_listeners(&shared)?;
    let stats = work(&shared, listeners, stop, |listening| {
        interception.start(intercept, ports)?;
        Ok(ready(plan, listening, &intercept.interfaces))
    });
    // An error of the work comes first: it is the cause.
    let removed = interception.remove();
    stats.and_then(|stats| removed.map(|()| stats))
}

fn ready(plan: &RelayPlan, listening: Vec<SocketAddr>, interfaces: &[String]) -> Ready {
    Ready { name: plan.name.clone(), listening, interfaces: interfaces.to_vec() }
}

/// One listener per worker on the same address.
fn explicit_listeners(shared: &Shared, listen: SocketAddr) -> Result<Vec<Vec<TcpListener>>> {
    let listeners = same_address(shared, listen)?;
    Ok(listeners.into_iter().map(|listener| vec![listener]).collect())
}

/// Listeners on the loopback addresses, for packets the interception brings; not reachable from elsewhere.
fn transparent_listeners(shared: &Shared) -> Result<(Vec<Vec<TcpListener>>, ListenPorts)> {
    let mut per_worker: Vec<Vec<TcpListener>> = Vec::new();
    per_worker.resize_with(shared.plan.workers, Vec::new);
    let mut ports = ListenPorts::default();
    let mut add = |address: SocketAddr| -> Result<Option<u16>> {
        let listeners = same_address(shared, address)?;
        let port = listeners.first().and_then(|listener| listener.local_addr().ok()).map(|own| own.port());
        for (own, listener) in per_worker.iter_mut().zip(listeners) {
            own.push(listener);
        }
        Ok(port)
    };
    ports.ipv4 = add((Ipv4Addr::LOCALHOST, 0).into())?;
    if intercept::has_ipv6() {
        ports.ipv6 = add((Ipv6Addr::LOCALHOST, 0).into())?;
    }
    Ok((per_worker, ports))
}

/// One listener per worker on one address; the first one's port when none is given.
fn same_address(shared: &Shared, address: SocketAddr) -> Result<Vec<TcpListener>> {
    let first = shared.client_leg.listen(address, Share::Found)?;
    let address = first.local_addr().map_err(|source| Error::Listen { address, source })?;
    let mut listeners = vec![first];
    for _ in 1..shared.plan.workers {
        listeners.push(shared.client_leg.listen(address, Share::Join)?);
    }
    Ok(listeners)
}

/// Starts the workers and the sampler, announces the relay, waits for the stop flag, drains.
fn work(
    shared: &Shared,
    listeners: Vec<Vec<TcpListener>>,
    stop: &AtomicBool,
    start: impl FnOnce(Vec<SocketAddr>) -> Result<Ready>,
) -> Result<RelayStats> {
    warn_of_small_buffers(shared);
    let first = listeners.first().map(Vec::as_slice).unwrap_or_default();
    let listening = first.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let workers = listeners.into_iter().enumerate();
    let workers: Result<Vec<_>> = workers.map(|(index, own)| Worker::new(index, shared, own)).collect();
    let workers = workers?;
    let ready = start(listening)?;
    let sampled = AtomicBool::new(false);
    thread::scope(|scope| {
        if let (Some(registry), Some(every)) = (&shared.registry, shared.plan.sample_every) {
            let (name, observer, done) = (&shared.plan.name, shared.observer, &sampled);
            scope.spawn(move || sampling::run(registry, name, every, done, observer));
        }
        let workers: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
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
    for (leg, name) in [(&shared.client_leg, "client"), (&shared.server_leg, "server")] {
        let Ok(probe) = leg.outgoing(false) else { continue };
        let wanted = leg.plan.buffer_bytes;
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
