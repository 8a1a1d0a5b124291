//! Where workers stand still together, and send what they have to a successor.

use super::Workers;
use crate::keeping::wire::Wire;
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What the workers do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The workers work.
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
    pub fn begin(&self, workers: &Workers, wire: &Arc<Wire>, patience: Duration) -> io::Result<()> {
        let count = workers.handles.len();
        *self.lock() = State { phase: Phase::Halting, wire: Some(Arc::clone(wire)), ..State::default() };
        self.is_wanted.store(true, Ordering::Release);
        workers.wake_all();
        self.wait_for(|state| state.halted == count, patience)?.phase = Phase::Giving;
        self.changed.notify_all();
        let problem = self.wait_for(|state| state.given == count, patience)?.problem.take();
        problem.map_or(Ok(()), Err)
    }

    fn wait_for(
        &self,
        is_so: impl Fn(&State) -> bool,
        patience: Duration,
    ) -> io::Result<MutexGuard<'_, State>> {
        let deadline = Instant::now() + patience;
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
