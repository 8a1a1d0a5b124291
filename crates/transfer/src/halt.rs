//! Why the threads of a transfer stop before their work is done.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Shared by all threads of one transfer at one end.
#[derive(Debug, Default)]
pub(crate) struct Halt {
    person: Arc<AtomicBool>,
    asked: OnceLock<String>,
    dead: OnceLock<String>,
    /// When the other end was done with its streams; 0: not yet.
    peer_done_ns: AtomicU64,
}

impl Halt {
    pub(crate) fn new(person: Arc<AtomicBool>) -> Halt {
        Halt { person, ..Halt::default() }
    }

    /// A signal came at this end.
    pub(crate) fn by_person(&self) -> bool {
        self.person.load(Relaxed)
    }

    /// The other end asks for an early end; what was measured is kept. The first reason stands.
    pub(crate) fn ask(&self, reason: String) {
        let _ = self.asked.set(reason);
    }

    /// The other end is gone; the first reason stands.
    pub(crate) fn abort(&self, reason: String) {
        let _ = self.dead.set(reason);
    }

    pub(crate) fn aborted(&self) -> Option<&str> {
        self.dead.get().map(String::as_str)
    }

    /// Cheap enough to ask before every write.
    pub(crate) fn is_raised(&self) -> bool {
        self.by_person() || self.asked.get().is_some() || self.dead.get().is_some()
    }

    /// Why a stream ends early.
    pub(crate) fn reason(&self) -> Option<String> {
        if let Some(dead) = self.dead.get() {
            return Some(dead.clone());
        }
        let by_person = || self.by_person().then(|| "stopped by a signal before its planned end".to_owned());
        by_person().or_else(|| self.asked.get().cloned())
    }

    pub(crate) fn peer_done(&self, now_ns: u64) {
        self.peer_done_ns.store(now_ns.max(1), Relaxed);
    }

    /// For how long the other end has been done, in nanoseconds.
    pub(crate) fn peer_done_for_ns(&self, now_ns: u64) -> Option<u64> {
        match self.peer_done_ns.load(Relaxed) {
            0 => None,
            done => Some(now_ns.saturating_sub(done)),
        }
    }
}
