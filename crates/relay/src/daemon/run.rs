//! From plan to running relay and back to nothing.

use super::{
    answers::{Answers, Description, Relay},
    control::Control,
    leave::Exit,
    missing::missing,
    receiver::Receiver,
    reload::Running,
};
use crate::{
    Commands, Error, InterceptPlan, LegPlan, Observer, Ready, RelayPlan, RelayStats, Result, Stop,
    handover::{
        estate::{Arrival, Estate},
        keeper,
    },
    hold::Hold,
    intercept::{Interception, ListenPorts},
    keeping::{Keeping, wire::Wire},
    legs::{descriptors::raise_limit, diag::Unfinished},
    listeners::Listeners,
    logic::Pair,
    observe::{journal::Journal, metrics, sampling},
    plan::ConnectionPlan,
    shared::{OwnPackets, Shared},
    worker::{Worker, Workers},
};
use longfat_host::{
    monotonic_us,
    socket::{self, Buffer},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// How often the stop flag is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the relay until it is told to stop and its connections have ended or the drain time is over. Everything it
/// made outside its process is gone when it returns, also with an error; only a relay that fails closed leaves its
/// refusals.
///
/// It runs in the calling thread's network namespace.
///
/// With [`RelayPlan::keep`] it goes on with what a keeper has of a relay of that name which was killed.
pub fn run(plan: &RelayPlan, commands: &dyn Commands, observer: &dyn Observer) -> Result<RelayStats> {
    plan.check()?;
    // What is kept waits, and was carried on this host a moment ago.
    let mut may_carry_first = plan.keep && keeper::is_there(&plan.name);
    if !may_carry_first {
        check_host(plan)?;
    }
    raise_limit();
    loop {
        let (keeper, estate) = if plan.keep { keeper::attach(plan).map(split)? } else { Default::default() };
        let carried = if may_carry_first { estate.waiting_mark(plan) } else { None };
        if may_carry_first && carried.is_none() {
            check_host(plan)?;
        }
        if let Some(stats) = run_with(plan, (keeper, estate), carried, commands, observer)? {
            return Ok(stats);
        }
        // This host was looked at meanwhile.
        may_carry_first = false;
    }
}

/// Takes over from the relay of that name that runs in this network namespace: its listeners, its interfaces, its
/// connections with the bytes that it holds. Nothing is interrupted but for a moment. If anything fails, that relay
/// goes on.
///
/// # Errors
/// There is none, or it cannot be taken over from.
pub fn upgrade(plan: &RelayPlan, commands: &dyn Commands, observer: &dyn Observer) -> Result<RelayStats> {
    plan.check()?;
    check_host(plan)?;
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
    let ended = run_with(plan, (keeper, estate), None, commands, observer)?;
    Ok(ended.unwrap_or_default())
}

fn split((keeper, estate): (Wire, Estate)) -> (Option<Wire>, Estate) {
    (Some(keeper), estate)
}

fn check_host(plan: &RelayPlan) -> Result<()> {
    let missing = missing(plan);
    if missing.is_empty() { Ok(()) } else { Err(Error::Unsupported(missing)) }
}

/// Connections whose sockets have the mark `carried` are carried before anything else is made ready. None if what leads
/// packets to them is gone: nothing has changed, and they are to be carried by another mark.
fn run_with(
    plan: &RelayPlan,
    (keeper, mut estate): (Option<Wire>, Estate),
    carried: Option<Option<u32>>,
    commands: &dyn Commands,
    observer: &dyn Observer,
) -> Result<Option<RelayStats>> {
    let plan = Arc::new(plan.clone().within_memory());
    let mut interception = match (carried, &plan.intercept) {
        (None, Some(intercept)) => Some(intercept_with(&plan, intercept, &mut estate, observer)?),
        _ => None,
    };
    let stats = prepare_and_work(&plan, &mut interception, (keeper, estate), carried, commands, observer);
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
    if let Some(there) = there {
        return Ok(there);
    }
    let made = Interception::prepare(relay, intercept, observer)?;
    // Connections of a relay whose table somebody has deleted.
    if estate.is_there {
        made.expect_sockets()?;
    }
    Ok(made)
}

/// Opens everything that can fail, then works. Connections that nobody carries are carried meanwhile.
fn prepare_and_work(
    plan: &Arc<RelayPlan>,
    interception: &mut Option<Interception>,
    (keeper, mut estate): (Option<Wire>, Estate),
    carried: Option<Option<u32>>,
    commands: &dyn Commands,
    observer: &dyn Observer,
) -> Result<Option<RelayStats>> {
    let started_us = monotonic_us();
    let own_mark = carried.unwrap_or_else(|| interception.as_ref().map(Interception::own_mark));
    let inherited = std::mem::take(&mut estate.others);
    let journal = Journal::new(observer);
    let shared = Shared::new(plan, OwnPackets::new(own_mark)?, &journal);
    let workers = Workers::new(shared, Keeping::new(keeper, &inherited))?;
    inherit(&workers, plan, &mut estate)?;
    let ready: Result<Vec<_>> = (0..plan.workers).map(|index| Worker::new(index, &workers)).collect();
    let (mut ready, mut adopted) = (ready?, Vec::new());
    let open = |interception: Option<&Interception>, estate: &mut Estate| -> Result<_> {
        workers.shared.packets.resemble(std::mem::take(&mut estate.alike), &journal);
        let answers = Answers::open(plan, estate)?;
        let (listeners, ports) = open_for_new(&workers, plan, interception, estate)?;
        Ok((answers, listeners, ports))
    };
    let (mut answers, mut listeners, ports) = match carried {
        None => open(interception.as_ref(), &mut estate)?,
        Some(own_mark) => {
            adopted = take_over(&workers, &mut estate)?;
            let opened = carry_while(&workers, &mut ready, || {
                check_host(plan)?;
                if let Some(intercept) = &plan.intercept {
                    let there = Interception::take_over(plan, intercept, estate.life.take())?;
                    *interception = there.filter(|there| Some(there.own_mark()) == own_mark);
                    if interception.is_none() {
                        return Ok(None);
                    }
                }
                open(interception.as_ref(), &mut estate).map(Some)
            });
            let Some(opened) = opened? else { return Ok(None) };
            opened
        }
    };
    let interception = interception.as_ref();
    let holds = |index| interception.is_some() && index < plan.holders();
    for (index, (worker, made)) in ready.iter_mut().zip(&mut listeners.made).enumerate() {
        let hold = || Hold::new(index, &workers.shared, &workers.held, &workers.keeping);
        worker.open(std::mem::take(made), holds(index).then(hold))?;
    }
    if let Some(interception) = interception {
        interception.start(plan, &ports)?;
        if estate.is_there {
            workers.held.adopting.forget_handshakes();
        }
    }
    listeners.close_inherited();
    let mut running = Running::new(Arc::clone(plan), listeners, ports, interception);
    let mut description = Description::default();
    running.describe(&mut description);
    let relay = Relay::new(&workers, description, Receiver::open(plan)?, started_us);
    observer.prepared()?;
    let exit = Exit::open(plan, estate.exit.take(), observer)?;
    if carried.is_none() {
        adopted = take_over(&workers, &mut estate)?;
    }
    workers.held.adopting.watcher.begin(&adopted);
    // Not before it is known what was taken over.
    if let Some(interception) = interception {
        workers.shared.packets.mark_carried(plan, interception.taken_mark());
    }
    running.keep(&workers);
    // Under their new numbers they are there.
    inherited.iter().for_each(|id| workers.keeping.gone(*id));
    interception.iter().for_each(|interception| interception.own());
    answers.control.iter_mut().for_each(Control::own);
    work(&relay, running, ready, (answers, exit), commands).map(Some)
}

/// What connections of another relay need of it.
fn inherit(workers: &Workers, plan: &RelayPlan, estate: &mut Estate) -> Result<()> {
    let interfaces = std::mem::take(&mut estate.interfaces);
    workers.held.gates.inherit(interfaces, plan.holders(), &plan.defaults);
    let watcher = &workers.held.adopting.watcher;
    estate.known.take().into_iter().for_each(|known| watcher.inherit(known));
    estate
        .acknowledging
        .drain(..)
        .try_for_each(|(layout, descriptors)| watcher.acks.inherit(layout, descriptors))
}

/// What new connections come by.
fn open_for_new(
    workers: &Workers,
    plan: &Arc<RelayPlan>,
    interception: Option<&Interception>,
    estate: &mut Estate,
) -> Result<(Listeners, Vec<ListenPorts>)> {
    let own_mark = interception.map(Interception::own_mark);
    let mut listeners = Listeners::new(plan.workers, own_mark, std::mem::take(&mut estate.listeners));
    listeners.open_explicit(plan)?;
    let mut ports = Vec::new();
    if let Some(interception) = interception {
        ports = listeners.open_intercepted(plan)?.0;
        let gates = workers.held.prepare(plan, interception, workers.shared.packets.alike())?;
        workers.held.open(gates);
    }
    workers.count_descriptors(listeners.ids().len());
    warn_of_small_buffers(&workers.shared);
    Ok((listeners, ports))
}

/// Has the workers carry what was brought to them while something else is done, by their threads for that time: those
/// that stay begin when this process has given up its rights.
fn carry_while<T>(workers: &Workers, ready: &mut [Worker], work: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Ends it in any case.
    struct Enough<'w>(&'w AtomicBool, &'w Workers<'w>);
    impl Drop for Enough<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
            self.1.wake_all();
        }
    }
    let is_enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let enough = Enough(&is_enough, workers);
        let (has_all, all_have) = mpsc::channel();
        let carrying = ready.iter_mut().map(|worker| {
            let (has_all, is_enough) = (has_all.clone(), &is_enough);
            scope.spawn(move || worker.carry(is_enough, has_all))
        });
        let carrying: Vec<_> = carrying.collect();
        drop(has_all);
        // Nobody says anything: it ends when all have dropped theirs. Before that they need the processors.
        let _: std::result::Result<(), _> = all_have.recv();
        let outcome = work();
        drop(enough);
        let carried: Result<()> = carrying.into_iter().try_for_each(joined);
        outcome.and_then(|outcome| carried.map(|()| outcome))
    })
}

fn joined(worker: thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Takes connections over, and gives them to the workers: from now on nobody else carries them. Those into which
/// sockets were put in mid-stream.
fn take_over(workers: &Workers, estate: &mut Estate) -> Result<Vec<Pair>> {
    estate.take_connections()?;
    let connections = std::mem::take(&mut estate.connections);
    let next = connections.values().map(|arrival| arrival.record.number.wrapping_add(1)).max();
    next.into_iter().for_each(|next| workers.shared.journal.number_from(next));
    estate.hold()?;
    if connections.values().any(|arrival| arrival.record.inserted || arrival.record.listener.is_some()) {
        workers.shared.packets.leave_unmarked();
    }
    let pair = |arrival: &Arrival| (arrival.record.client, arrival.record.server);
    let adopted = connections.values().filter(|arrival| arrival.record.adopted.is_some()).map(pair).collect();
    workers.held.adopting.watcher.acks.end_all_but(connections.values().map(pair));
    let inserted = connections.values().filter(|arrival| arrival.record.inserted);
    workers.held.adopting.taken_over(inserted.map(pair));
    let count = workers.handles.len();
    let mut shares: Vec<(Vec<_>, Vec<_>)> = (0..count).map(|_| Default::default()).collect();
    for arrival in connections.into_values() {
        shares[arrival.record.worker % count].0.push(arrival);
    }
    for (holder, handshake) in std::mem::take(&mut estate.handshakes) {
        shares[holder % count].1.push(handshake);
    }
    for (handle, (connections, handshakes)) in workers.handles.iter().zip(shares) {
        handle.bring(connections, handshakes);
    }
    Ok(adopted)
}

/// Runs the threads, announces the relay, does what is asked of it until it shall end, drains.
fn work(
    relay: &Relay,
    mut running: Running,
    workers: Vec<Worker>,
    (answers, exit): (Answers, Exit),
    commands: &dyn Commands,
) -> Result<RelayStats> {
    let ready = ready(&running, &answers);
    let (common, shared) = (relay.workers, &relay.workers.shared);
    let done = AtomicBool::new(false);
    let mut has_left = false;
    thread::scope(|scope| {
        let done = &done;
        if let Some(interval) = shared.plan.sample_every {
            let (name, journal) = (&shared.plan.name, shared.journal);
            scope.spawn(move || sampling::run(&journal.registry, name, interval, done, journal.observer));
        }
        if let Some(control) = &answers.control {
            scope.spawn(move || control.serve(relay, done));
        }
        if let Some(metrics) = &answers.metrics {
            scope.spawn(move || metrics.serve(&|format| relay.metrics(format), done));
        }
        scope.spawn(move || common.queues.run(done));
        scope.spawn(move || relay.mover.run(relay, done));
        scope.spawn(move || relay.receiver.serve(relay, done));
        let workers: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
        shared.journal.observer.ready(&ready);
        has_left = attend(relay, &mut running, commands, &workers, &|running| {
            // A successor waits: whose a connection is must be clear.
            !relay.is_moving() && exit.look(common, running, &answers)
        });
        let until = match has_left {
            true => {
                shared.journal.observer.left();
                None
            }
            false => Some(drain(common, &mut running, commands)),
        };
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        if let Some(until) = until {
            finish(shared, until, commands);
        }
        done.store(true, Ordering::Release);
        common.queues.wake();
        relay.mover.wake();
        relay.receiver.wake();
        results.into_iter().try_for_each(|result| match result {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    match has_left {
        true => answers.leave(),
        false => common.keeping.end(),
    }
    Ok(shared.journal.stats(relay.workers.held.adopting.watcher.released()))
}

fn ready(running: &Running, answers: &Answers) -> Ready {
    let plan = &running.plan;
    let interfaces = plan.intercept.as_ref().map(|intercept| intercept.interfaces.clone());
    Ready {
        name: plan.name.clone(),
        listening: running.listeners.listening(),
        interfaces: interfaces.unwrap_or_default(),
        control: plan.control.as_ref().map(|control| control.socket.clone()),
        metrics: answers.metrics.as_ref().and_then(metrics::http::Server::address),
    }
}

/// Does what is asked, until the relay shall end or a worker has ended by itself, which is an error. Whether a
/// successor has everything.
fn attend<T>(
    relay: &Relay,
    running: &mut Running,
    commands: &dyn Commands,
    workers: &[thread::ScopedJoinHandle<'_, T>],
    has_left: &dyn Fn(&mut Running) -> bool,
) -> bool {
    let common = relay.workers;
    let mut watchdog = Watchdog::default();
    while commands.stop() == Stop::No && !workers.iter().any(thread::ScopedJoinHandle::is_finished) {
        running.look_for_reload(relay, commands);
        running.look_for_changes(relay, commands);
        running.retire(common);
        running.exclude(common);
        running.look_for_unheard(common);
        running.pass_one_way(common);
        running.wake(common);
        running.mend(common);
        warn_of_lost_keeper(common);
        watchdog.check(common);
        if has_left(running) {
            return true;
        }
        thread::sleep(LOOK);
    }
    false
}

fn warn_of_lost_keeper(workers: &Workers) {
    if let Some(error) = workers.keeping.take_lost() {
        workers.shared.journal.warn(&format!(
            "nobody keeps what this relay has any more: when it is killed, its connections are reset ({error})"
        ));
    }
}

/// Whether every worker goes round its loop.
#[derive(Default)]
struct Watchdog {
    rounds: Vec<u64>,
}

impl Watchdog {
    fn check(&mut self, workers: &Workers) {
        let rounds = workers.handles.iter().map(|handle| handle.rounds.load(Ordering::Relaxed));
        let rounds: Vec<u64> = rounds.collect();
        let moved = |(before, now): (&u64, &u64)| before != now;
        if self.rounds.is_empty() || self.rounds.iter().zip(&rounds).all(moved) {
            workers.shared.journal.observer.alive();
            self.rounds = rounds;
        }
    }
}

/// Lets connections end; until when they may.
fn drain(workers: &Workers, running: &mut Running, commands: &dyn Commands) -> Instant {
    let (time, shared) = (running.plan.drain, &workers.shared);
    let deadline = Instant::now() + time;
    let handshakes = running.stop_taking(workers);
    shared.journal.observer.draining(shared.admission.live(), time);
    wait(Instant::now() + handshakes, || commands.stop() == Stop::Now);
    shared.stage.drain();
    running.listeners.close();
    workers.wake_all();
    wait(deadline, || commands.stop() == Stop::Now || shared.admission.live() == 0);
    shared.stage.expire();
    workers.wake_all();
    deadline
}

/// The kernel still sends what streams that have ended left it. It hears their ends only as long as packets are led
/// here, so that is waited for. What takes too long is given up: without a socket here, what such an end says goes to
/// its peer.
fn finish(shared: &Shared, deadline: Instant, commands: &dyn Commands) {
    let Some(mark) = shared.packets.mark() else { return };
    let unfinished = || Unfinished::all(mark).unwrap_or_default();
    wait(deadline, || commands.stop() == Stop::Now || unfinished().is_empty());
    let aborted = unfinished().iter().filter(|stream| stream.abort().unwrap_or(false)).count();
    if aborted > 0 {
        shared.journal.warn(&format!(
            "{aborted} streams that had ended were given up: their ends had not taken all of them in time"
        ));
    }
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
        let Some(leg) = leg.map(|leg| LegPlan { begins_small: false, ..leg.clone() }) else { continue };
        let Ok(probe) = shared.packets.leg(&leg, false).outgoing(false) else { continue };
        if leg.equip(&probe).is_err() {
            continue;
        }
        let wanted = leg.buffer_bytes;
        for (buffer, limit) in [(Buffer::Send, "wmem_max"), (Buffer::Receive, "rmem_max")] {
            let got = socket::buffer(&probe, buffer);
            if got < wanted / 2 {
                shared.journal.warn(&format!(
                    "the {buffer:?} buffer towards the {name} is {got} bytes instead of {wanted}: \
                     run the relay as root, or raise net.core.{limit}"
                ));
            }
        }
    }
}
