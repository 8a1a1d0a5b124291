//! What workers, and what works for them, tell of themselves and of connections.

use super::{
    observer::{ConnectionSummary, Ended, Observer, RelayStats},
    registry::Registry,
};
use crate::logic::Pair;
use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

/// What a relay has to tell: to its observer at once, to whoever asks later.
pub(crate) struct Journal<'a> {
    pub observer: &'a dyn Observer,
    /// Connections whose legs stand, and what became of the others.
    pub registry: Registry,
    /// Connections taken over from another relay.
    pub taken_over: AtomicU64,
    /// Connections that came from another router; they are among all.
    pub moved_in: AtomicU64,
    connections: AtomicU64,
    next_number: AtomicU32,
    /// By [`Ended`].
    ended: [AtomicU64; Ended::ALL.len()],
    /// Per direction.
    bytes: [AtomicU64; 2],
    /// A bit for each [`Once`].
    warned: AtomicU32,
}

/// Warnings given once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Once {
    CcOverridden,
    PairBusy,
    OneWay,
    NotPassed,
    Full,
    Passed,
    Memory,
    NotMarked,
    NoSocket,
    NotFitted,
    Lost,
    Loop,
    Sated,
    NotExcluded,
    Unclear,
    NotInserted,
    NotRouted,
}

impl<'a> Journal<'a> {
    pub fn new(observer: &'a dyn Observer) -> Journal<'a> {
        Journal {
            observer,
            registry: Registry::default(),
            taken_over: AtomicU64::new(0),
            moved_in: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            next_number: AtomicU32::new(0),
            ended: Default::default(),
            bytes: Default::default(),
            warned: AtomicU32::new(0),
        }
    }

    /// Something a person should know.
    pub fn warn(&self, message: &str) {
        self.observer.warning(message);
    }

    /// Warns, once of each kind.
    pub fn warn_once(&self, which: Once, message: impl FnOnce() -> String) {
        let bit = 1 << which as u32;
        if self.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.warn(&message());
        }
    }

    /// Says once that a client waited in vain for its own port.
    pub fn warn_pair_busy(&self, (client, server): Pair) {
        self.warn_once(Once::PairBusy, || {
            format!(
                "the connection of {client} to {server} was given up: this host has another one of these addresses and \
                 ports, which has not ended (see 'ss -tanp')"
            )
        });
    }

    /// Counts a connection; its number.
    pub fn number(&self) -> u32 {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers of connections that are taken over stay theirs.
    pub fn number_from(&self, next: u32) {
        self.next_number.fetch_max(next, Ordering::Relaxed);
    }

    /// A connection has ended.
    pub fn count_ended(&self, ended: Ended, bytes: [u64; 2]) {
        self.ended[ended as usize].fetch_add(1, Ordering::Relaxed);
        for (total, bytes) in self.bytes.iter().zip(bytes) {
            total.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a client whose SYN was held and whose server could not be reached.
    pub fn count_unserved(&self, pair: Pair, rule: &str, begun: Instant) {
        let ended = Ended::Unreachable;
        self.count_ended(ended, [0, 0]);
        self.tell_unserved(self.number(), pair, (rule, ended), begun);
    }

    /// Tells of a client for which there was no leg to the server, and counts it for its rule.
    pub fn tell_unserved(&self, number: u32, pair: Pair, (rule, ended): (&str, Ended), begun: Instant) {
        self.registry.count(rule, ended);
        if self.observer.wants_summaries() {
            self.observer.closed(&ConnectionSummary::without_legs(number, pair, rule, ended, begun));
        }
    }

    /// What became of all connections, `paused` of which were released in a pause.
    pub fn stats(&self, paused: u64) -> RelayStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |ending: Ended| get(&self.ended[ending as usize]);
        RelayStats {
            connections: get(&self.connections),
            finished: of(Ended::Finished),
            unreachable: of(Ended::Unreachable),
            reset: of(Ended::ResetByClient) + of(Ended::ResetByServer),
            stopped: of(Ended::Stopped) + of(Ended::Idle),
            released: of(Ended::Released),
            paused,
            moved: of(Ended::Moved),
            refused: of(Ended::Refused),
            client_to_server_bytes: get(&self.bytes[0]),
            server_to_client_bytes: get(&self.bytes[1]),
        }
    }
}
