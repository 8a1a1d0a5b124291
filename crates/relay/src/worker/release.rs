//! The relay leaves connections that it stepped into, so that they outlive it.

use super::{Token, Worker, relayed::Relayed};
use crate::{
    adopt::{Both, Kept},
    observe::observer::Ended,
};
use std::time::{Duration, Instant};

/// Connections that are looked at, a tenth of a millisecond each at most, before clocks are read again.
pub(super) const UNHEARD: usize = 8;
/// The least between two looks at the connections that are still here; looks take an eighth of the time at most.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS_SHARE: u32 = 8;
/// A connection that has not come to rest by itself after so long is made to.
const PATIENCE: Duration = Duration::from_millis(500);

/// Between two probes of ends that say nothing; they answer no more of them in half a second.
const PROBES: Duration = Duration::from_secs(1);
/// Longer, or half of the drain time, nobody waits for a window to be used up: one that is too large costs the end who
/// uses it a loss.
const FOR_WINDOWS: Duration = Duration::from_secs(2);
/// Wait of a worker that still has such connections, in milliseconds: what the ends' clocks say is read in time.
const WAIT_MS: u16 = 2;

/// When connections are looked at, while the relay drains.
#[derive(Debug)]
pub(super) struct Leaving {
    since: Option<Instant>,
    due: Instant,
    /// Connections to be left, at the last look.
    count: usize,
}

impl Leaving {
    pub fn new(now: Instant) -> Leaving {
        Leaving { since: None, due: now, count: 0 }
    }
}

impl Worker<'_> {
    /// While the relay drains, leaves what is at rest.
    pub(super) fn release_inserted(&mut self) {
        if !self.shared.stage.is_draining() {
            return;
        }
        self.look_at_clocks();
        let now = Instant::now();
        if now < self.leaving.due {
            return;
        }
        let since = *self.leaving.since.get_or_insert(now);
        let at_last = now.duration_since(since) >= FOR_WINDOWS.min(self.shared.plan.drain / 2);
        let is_late = now.duration_since(since) >= PATIENCE;
        let mut inserted = self.slots.tokens();
        inserted.retain(|token| self.slots.get(*token).is_some_and(|one| one.legs.is_inserted));
        self.leaving.count = inserted.len();
        for some in inserted.chunks(UNHEARD) {
            some.iter().for_each(|token| self.release(*token, at_last, is_late));
            self.look_at_clocks();
        }
        self.leaving.due = now + LOOK.max(now.elapsed() * LOOKS_SHARE);
    }

    fn look_at_clocks(&mut self) {
        if let Some(hold) = &mut self.hold {
            hold.adopter.look_at_clocks();
        }
    }

    /// For how long it waits for events.
    pub(super) fn leaving_wait_ms(&self) -> u16 {
        if self.leaving.count > 0 { WAIT_MS } else { u16::MAX }
    }

    /// The drain time is over: what is at rest now is left, too.
    pub(super) fn release_last(&mut self, token: Token) {
        self.release(token, true, false);
    }

    fn release(&mut self, token: Token, at_last: bool, is_late: bool) {
        let Some(connection) = self.slots.get_mut(token).filter(|one| one.legs.is_inserted) else { return };
        let both = both(connection);
        let kept = match connection.logic.is_at_rest() {
            // At last windows do not matter.
            true => both.release(&self.workers.held.adopting.clocks(), if at_last { 0 } else { u32::MAX }),
            false => Err(Kept::Busy),
        };
        match kept {
            Ok(released) => {
                connection.ended = Ended::Released;
                connection.released = Some(released);
                self.end(token);
            }
            // At every look: the kernel lifts it where it makes a buffer larger.
            Err(Kept::Busy | Kept::Window) if is_late => both.clamp(),
            Err(Kept::Unheard) if connection.probed.is_none_or(|at| at.elapsed() >= PROBES) => {
                both.probe();
                connection.probed = Some(Instant::now());
            }
            Err(_) => {}
        }
    }

    /// Both sockets vanish, and the ends are told where everything stands.
    pub(super) fn leave(&self, connection: &Relayed) {
        let Some(released) = &connection.released else { return };
        both(connection).vanish();
        for (packet, to) in released.updates() {
            self.shared.packets.send(packet, to);
        }
        let legs = &connection.legs;
        self.workers.held.adopting.clocks().forget((legs.client_address, legs.server_address));
    }
}

pub(super) fn both(connection: &Relayed) -> Both<'_> {
    let legs = &connection.legs;
    Both { client: &legs.client, server: &legs.server, pair: (legs.client_address, legs.server_address) }
}
