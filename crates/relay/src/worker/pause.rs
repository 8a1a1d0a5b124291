//! The relay leaves connections that pause (`release_after`), and watches them on from end to end.
//!
//! What the ends send meanwhile is led to this worker's interface, whose packets it gives to the sockets itself. So it
//! hears both ends' clocks, and between two packets nothing is on its way to a socket that vanishes: what comes next
//! goes on to its end.

use super::{
    Token, Worker,
    release::{UNHEARD, both},
};
use crate::{adopt::Kept, logic::Pair, observe::observer::Ended};
use std::time::{Duration, Instant};

/// Packets that were past the program at tc when it began to lead them are with their sockets by then.
const SETTLE: Duration = Duration::from_millis(2);
/// Longest time for which packets are led here: ends of a long path answer within a round trip.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two probes of ends that say nothing.
const PROBES: Duration = Duration::from_millis(500);
/// A sender that has paused begins with a few segments (RFC 5681 section 4.1): an end with so much room loses none of
/// them, whatever window was told in its name. Less than a window without scale: an end that has received little has
/// just that, or what its scale leaves of it.
const ENOUGH_BYTES: u32 = 32 << 10;
/// Bounds of the time between looks for connections that pause.
const OFTEN: Duration = Duration::from_millis(20);
const SELDOM: Duration = Duration::from_secs(1);
/// Looks while a pause becomes long enough.
const LOOKS: u32 = 8;
const WAIT_MS: u16 = 1;

/// Connections that pause.
#[derive(Debug)]
pub(super) struct Pausing {
    due: Instant,
    leaving: Vec<Leave>,
}

/// A connection whose packets are led here.
#[derive(Debug, Clone, Copy)]
struct Leave {
    token: Token,
    pair: Pair,
    since: Instant,
}

impl Pausing {
    pub fn new(now: Instant) -> Pausing {
        Pausing { due: now, leaving: Vec::new() }
    }
}

impl Worker<'_> {
    pub(super) fn pausing_wait_ms(&self) -> u16 {
        if self.pausing.leaving.is_empty() { u16::MAX } else { WAIT_MS }
    }

    /// Leaves connections that have paused for long enough.
    pub(super) fn release_paused(&mut self) {
        let watcher = &self.workers.held.adopting.watcher;
        if self.shared.stage.is_draining() {
            return self.pausing.leaving.drain(..).for_each(|leave| watcher.stays(leave.pair));
        }
        for some in std::mem::take(&mut self.pausing.leaving).chunks(UNHEARD) {
            if let Some(hold) = &mut self.hold {
                hold.hear_ends();
            }
            for leave in some {
                if self.is_leaving_still(*leave) {
                    self.pausing.leaving.push(*leave);
                }
            }
        }
        if watcher.may_leave() && self.now >= self.pausing.due {
            self.look_for_pauses();
        }
    }

    fn look_for_pauses(&mut self) {
        let (now, mut every) = (self.now, SELDOM);
        for token in self.slots.tokens() {
            let Some(connection) = self.slots.get_mut(token).filter(|one| one.legs.adopted.is_some()) else {
                continue;
            };
            let Some(after) = connection.legs.plan.release_after else { continue };
            every = every.min(after / LOOKS);
            let is_kept = connection.kept_until.is_some_and(|until| now < until);
            let has_paused = now.saturating_duration_since(connection.moved) >= after;
            if is_kept || !has_paused || !connection.logic.is_at_rest() {
                continue;
            }
            if self.index >= self.shared.plan.holders() {
                self.give_to_holder(token);
                continue;
            }
            let pair = (connection.legs.client_address, connection.legs.server_address);
            if self.workers.held.adopting.watcher.begin_leaving(pair, self.index) {
                self.pausing.leaving.push(Leave { token, pair, since: now });
            } else {
                connection.kept_until = Some(now + after);
            }
        }
        self.pausing.due = now + every.max(OFTEN);
    }

    /// Workers beyond the first few have no interface to which packets could be led: one that has, and carries the
    /// fewest connections, leaves this one at its next look.
    fn give_to_holder(&mut self, token: Token) {
        self.donate(token, self.workers.emptiest_of(self.shared.plan.holders()));
    }

    /// Leaves a connection if nothing keeps it; whether it is to be looked at again.
    fn is_leaving_still(&mut self, leave: Leave) -> bool {
        let Leave { token, pair, since } = leave;
        let adopting = &self.workers.held.adopting;
        // It may have ended, or gone to another worker.
        let Some(connection) = self.slots.get_mut(token) else {
            adopting.watcher.stays(pair);
            return false;
        };
        let waited = self.now.saturating_duration_since(since);
        let is_read = self.hold.as_ref().is_some_and(|hold| hold.adopter.is_empty());
        let speaks = connection.moved > since || !connection.logic.is_at_rest();
        if !speaks && waited < PATIENCE && (waited < SETTLE || !is_read) {
            return true;
        }
        let kept = match speaks {
            true => Err(Kept::Busy),
            false => both(connection).release(&adopting.clocks(), ENOUGH_BYTES),
        };
        match kept {
            Ok(released) => {
                connection.ended = Ended::Released;
                connection.released = Some(released);
                self.end(token);
                self.workers.held.adopting.watcher.left(pair);
                return false;
            }
            Err(Kept::Unheard) if waited < PATIENCE => {
                if connection.probed.is_none_or(|at| at.elapsed() >= PROBES) {
                    both(connection).probe();
                    connection.probed = Some(Instant::now());
                }
                return true;
            }
            // Of a clock that was read late less is known than the end will say.
            Err(Kept::Clock) if waited < PATIENCE => {
                adopting.clocks().forget(pair);
                return true;
            }
            Err(Kept::Busy) if !speaks && waited < PATIENCE => return true,
            Err(_) => {}
        }
        connection.kept_until = connection.legs.plan.release_after.map(|after| self.now + after);
        adopting.clocks().forget(pair);
        adopting.watcher.stays(pair);
        false
    }
}
