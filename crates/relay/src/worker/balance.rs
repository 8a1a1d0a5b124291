//! Even loads: a connection that moves bulk data goes to another worker when that one has at least two fewer of
//! them. The kernel's choice among listeners is a hash; eight flows on two workers often fall six to two, and each
//! of the two then gets three times what each of the six gets.

use super::{Token, Worker};
use crate::connection::Event;
use crate::connection::Side;
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_millis(50);
/// A connection is busy when it moved this much in that time (13 Mbit/s).
const BUSY_BYTES: u64 = 80 * 1024;

impl Worker<'_> {
    pub(super) fn balance(&mut self) {
        let now = Instant::now();
        if self.shared.seats.len() < 2 || now.duration_since(self.balanced) < EVERY {
            return;
        }
        self.balanced = now;
        let busy = self.busy();
        let seats = &self.shared.seats;
        seats[self.index].busy.store(busy.len(), Ordering::Relaxed);
        let load = |index: &usize| seats[*index].busy.load(Ordering::Relaxed);
        let Some(idlest) = (0..seats.len()).filter(|index| *index != self.index).min_by_key(load) else {
            return;
        };
        let draining = self.shared.draining.load(Ordering::Acquire);
        if let Some(token) = busy.first()
            && busy.len() >= load(&idlest) + 2
            && !draining
        {
            self.donate(*token, idlest);
        }
    }

    /// Connections that were busy since the last look and can move: no reset is being passed on.
    fn busy(&mut self) -> Vec<Token> {
        let mut busy = Vec::new();
        for token in self.slots.tokens() {
            if let Some(connection) = self.slots.get_mut(token) {
                let bytes = std::mem::take(&mut connection.recent_bytes);
                if bytes >= BUSY_BYTES && connection.logic.resetting().is_none() {
                    busy.push(token);
                }
            }
        }
        busy
    }

    fn donate(&mut self, token: Token, to: usize) {
        let Some(mut connection) = self.slots.remove(token) else { return };
        for side in [Side::Client, Side::Server] {
            // Cannot fail for a descriptor that was added; if it did, its events would find no slot.
            let _ = self.epoll.delete(connection.legs.leg(side));
        }
        connection.queued = false;
        self.shared.seats[self.index].busy.fetch_sub(1, Ordering::Relaxed);
        self.shared.seats[to].busy.fetch_add(1, Ordering::Relaxed);
        self.shared.seats[to].hand_over(connection);
    }

    /// Takes in what other workers handed over.
    pub(super) fn collect_inbox(&mut self) {
        for connection in self.shared.seats[self.index].collect() {
            let gathers = connection.gather.due().is_some();
            let token = self.slots.insert(connection);
            if gathers {
                self.gathering.push(token);
            }
            if self.watch(token).is_err() {
                self.abandon(token);
            }
            self.enqueue(token);
        }
    }

    /// Resets a connection that cannot be watched (out of memory).
    pub(super) fn abandon(&mut self, token: Token) {
        if let Some(connection) = self.slots.get_mut(token) {
            connection.on(Event::Failed(Side::Server));
            connection.on(Event::Expired);
        }
        self.end(token);
    }
}
