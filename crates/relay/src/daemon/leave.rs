//! The relay that hands over.
//!
//! Its workers stand still between two turns, and each sends what it has. Nothing is closed: both processes have the
//! sockets now, and nobody touches them. The successor says that it holds everything, is told to go on, and this relay
//! ends. If the successor fails at any point before, or takes too long, the workers go on where they stood.

use crate::{
    Error, Observer, RelayPlan, Result,
    daemon::{reload::Standing, run::Answers},
    handover::estate::{PREDECESSOR, hello, understand},
    keeping::{
        record::{Holding, Message, Say},
        wire::{self, Wire},
    },
    shared::Shared,
    worker::arrival,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a successor may take for what it prepares while this relay works.
const PREPARING: Duration = Duration::from_secs(10);
/// How long everything may stand still.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Where a successor asks.
#[derive(Debug)]
pub(crate) struct Exit {
    listener: Option<OwnedFd>,
}

impl Exit {
    /// Listens, unless another relay of that name does, or goes on where a predecessor listened.
    pub fn open(plan: &RelayPlan, inherited: Option<OwnedFd>, observer: &dyn Observer) -> Result<Exit> {
        if inherited.is_some() {
            return Ok(Exit { listener: inherited });
        }
        let opened = wire::address(&plan.name, PREDECESSOR).and_then(|address| wire::listening(&address));
        let listener = opened.map_err(|source| Error::io("listen for a successor", source))?;
        if listener.is_none() {
            observer.warning(&format!(
                "another relay named '{}' runs in this network namespace: this one cannot be upgraded (see --name)",
                plan.name
            ));
        }
        Ok(Exit { listener })
    }

    /// Whether a successor came, and has everything now.
    pub fn look(&self, shared: &Shared, standing: &Standing, answers: &Answers) -> bool {
        let Some(listener) = &self.listener else { return false };
        let outcome = match Wire::accept(listener) {
            Ok(None) => return false,
            Ok(Some(wire)) => hand_over(shared, standing, (answers, listener), wire),
            Err(source) => Err(Error::io("listen to a successor", source)),
        };
        let Err(error) = outcome else { return true };
        shared.observer.warning(&format!("nothing was handed over, this relay goes on: {error}"));
        false
    }
}

fn hand_over(
    shared: &Shared,
    standing: &Standing,
    listening: (&Answers, &OwnedFd),
    wire: Wire,
) -> Result<()> {
    let failed = |source| Error::io("hand over to a successor", source);
    let who = "the successor";
    wire.wait_at_most(PREPARING).map_err(failed)?;
    let hello_of_it = wire.expect(Say::Hello, who)?;
    if let Err(why) = understand(&hello_of_it) {
        let refusal = Message { say: Say::Refused, id: 0, body: why.clone().into_bytes() };
        wire.send(&refusal, &[]).map_err(failed)?;
        return Err(Error::Plan(why));
    }
    wire.send(&hello(&standing.plan), &[]).map_err(failed)?;
    give_the_rest(shared, standing, listening, &wire).map_err(failed)?;
    let wire = Arc::new(wire);
    let given = wire.expect(Say::Give, who).and_then(|_| give_connections(shared, &wire));
    match given {
        Ok(()) => {
            shared.standstill.end(Phase::Left);
            standing.leave();
            Ok(())
        }
        Err(error) => {
            shared.standstill.end(Phase::Going);
            // The successor may have begun to say in the rules whose they are.
            standing.stay(shared);
            Err(error)
        }
    }
}

/// Listeners, interfaces and what else is not a connection: a successor prepares itself with them.
fn give_the_rest(
    shared: &Shared,
    standing: &Standing,
    (answers, exit): (&Answers, &OwnedFd),
    wire: &Wire,
) -> io::Result<()> {
    // What a keeper has goes by the same number, by which the successor takes it back from there.
    let put_as = |id: Option<u64>, holding: &Holding, descriptor: BorrowedFd<'_>| {
        let id = id.unwrap_or_else(|| shared.keeping.other_id());
        wire.send(&Message::with(Say::Put, id, holding), &[descriptor])
    };
    let put = |holding: &Holding, descriptor: BorrowedFd<'_>| put_as(None, holding, descriptor);
    for (id, holding, listener) in standing.doors.holdings() {
        put_as(id, &holding, listener.as_fd())?;
    }
    for (rule, gate) in shared.held.interfaces() {
        for (holder, tun) in gate.iter().enumerate() {
            let id = shared.held.kept_id(rule, holder);
            put_as(id, &Holding::Interface { rule, holder }, tun.file().as_fd())?;
        }
    }
    let life = standing.interception.and_then(|interception| interception.life());
    life.map_or(Ok(()), |life| put(&Holding::Life {}, life.as_fd()))?;
    put(&Holding::Exit {}, exit.as_fd())?;
    let control = answers.control.as_ref();
    control.map_or(Ok(()), |control| put(&Holding::Control {}, control.as_fd()))?;
    let metrics = answers.metrics.as_ref();
    metrics.map_or(Ok(()), |metrics| put(&Holding::Metrics {}, metrics.as_fd()))?;
    let keeper = shared.keeping.with_wire(|keeper| put(&Holding::Keeper {}, keeper.as_fd()));
    keeper.unwrap_or(Ok(()))?;
    wire.send(&Message::bare(Say::End, 0), &[])
}

fn give_connections(shared: &Shared, wire: &Arc<Wire>) -> Result<()> {
    let failed = |source| Error::io("hand over connections", source);
    wire.wait_at_most(STANDSTILL).map_err(failed)?;
    shared.standstill.begin(shared, wire).map_err(failed)?;
    wire.send(&Message::bare(Say::End, 0), &[]).map_err(failed)?;
    wire.expect(Say::Held, "the successor")?;
    wire.send(&Message::bare(Say::Go, 0), &[]).map_err(failed)
}

/// What the workers do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// They work.
    #[default]
    Going,
    /// Each stands still when it has seen this.
    Halting,
    /// All stand still, and send what they have.
    Giving,
    /// Nothing is theirs any more.
    Left,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    halted: usize,
    given: usize,
    wire: Option<Arc<Wire>>,
    problem: Option<io::Error>,
}

/// Where the workers stand still together.
#[derive(Debug, Default)]
pub(crate) struct Standstill {
    is_wanted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Standstill {
    /// Whether a worker shall stand still: asked in every round.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    /// Has the workers stop and send everything; all have when this returns without an error.
    fn begin(&self, shared: &Shared, wire: &Arc<Wire>) -> io::Result<()> {
        let workers = shared.seats.len();
        *self.lock() = State { phase: Phase::Halting, wire: Some(Arc::clone(wire)), ..State::default() };
        self.is_wanted.store(true, Ordering::Release);
        shared.wake_all();
        self.wait_for(|state| state.halted == workers)?.phase = Phase::Giving;
        self.changed.notify_all();
        let problem = self.wait_for(|state| state.given == workers)?.problem.take();
        problem.map_or(Ok(()), Err)
    }

    fn wait_for(&self, is_so: impl Fn(&State) -> bool) -> io::Result<MutexGuard<'_, State>> {
        let deadline = Instant::now() + STANDSTILL;
        let mut state = self.lock();
        while !is_so(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }

    /// The workers go on, or end.
    pub fn end(&self, phase: Phase) {
        self.is_wanted.store(phase == Phase::Left, Ordering::Release);
        let mut state = self.lock();
        state.phase = phase;
        state.wire = None;
        drop(state);
        self.changed.notify_all();
    }

    /// A worker stands still until the others do; the wire to send on, or none when they all go on.
    pub fn halt(&self) -> Option<Arc<Wire>> {
        let mut state = self.lock();
        state.halted += usize::from(state.phase == Phase::Halting);
        self.changed.notify_all();
        while state.phase == Phase::Halting {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.wire.clone()
    }

    /// A worker has sent what it has, and waits for the outcome: whether nothing is its own any more.
    pub fn wait_for_outcome(&self, sent: io::Result<()>) -> bool {
        let mut state = self.lock();
        state.given += 1;
        if let Err(error) = sent {
            state.problem.get_or_insert(error);
        }
        self.changed.notify_all();
        while state.phase == Phase::Giving {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.phase == Phase::Left
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a connection.
pub(crate) fn give(
    wire: &Wire,
    connection: &crate::worker::relayed::Relayed,
    worker: usize,
) -> io::Result<()> {
    let memory = arrival::memory_of(connection)?;
    let (record, descriptors) = arrival::record_of(connection, worker, &memory);
    let id = crate::keeping::connection_id(record.number);
    wire.send(&Message::with(Say::Put, id, &Holding::Connection(Box::new(record))), &descriptors)
}
