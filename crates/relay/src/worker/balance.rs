//! Even loads. All connections of a client to a server come to one worker; when it has a few more than another, the
//! next begins its work there. And a connection that moves bulk data goes to another worker when that one has at least
//! two fewer of them: of eight flows that lie six to two, each of the two gets three times what each of the six gets.

use super::{Token, Worker, relayed::Relayed, workers::WorkerHandle};
use crate::logic::{
    connection::{Event, Side},
    dial_order::DialOrder,
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

const EVERY: Duration = Duration::from_millis(50);
/// A connection is busy when it moved this much in that time (13 Mbit/s).
const BUSY_BYTES: u64 = 80 * 1024;
/// Handing over wakes another thread: for as few connections as one client opens and closes in turn, it costs more than
/// it brings.
const FEW: usize = 4;

impl Worker<'_> {
    pub(super) fn balance(&mut self) {
        let now = self.now;
        if self.workers.handles.len() < 2 || now.duration_since(self.balanced) < EVERY {
            return;
        }
        self.balanced = now;
        let busy = self.busy();
        let handles = &self.workers.handles;
        handles[self.index].busy.store(busy.len(), Ordering::Relaxed);
        if let Some(token) = busy.first()
            && let Some(idlest) = self.idlest(busy.len(), 2, |handle| &handle.busy)
        {
            handles[self.index].busy.fetch_sub(1, Ordering::Relaxed);
            handles[idlest].busy.fetch_add(1, Ordering::Relaxed);
            self.donate(*token, idlest);
        }
    }

    /// Gives a connection whose legs have just come to stand to a worker that has fewer; whether it did. One whose
    /// client is gone stays.
    pub(super) fn share(&mut self, token: Token) -> bool {
        if self.slots.get(token).is_none_or(|connection| connection.logic.resetting().is_some()) {
            return false;
        }
        let own = self.workers.handles[self.index].carried.load(Ordering::Relaxed);
        let Some(idlest) = self.idlest(own, FEW, |handle| &handle.carried) else { return false };
        self.donate(token, idlest);
        true
    }

    /// The worker with the least load, if it is by so much less than this one's. While the relay drains, a worker may
    /// have ended.
    fn idlest(&self, own: usize, less: usize, load: impl Fn(&WorkerHandle) -> &AtomicUsize) -> Option<usize> {
        let load = |index: &usize| load(&self.workers.handles[*index]).load(Ordering::Relaxed);
        let others = (0..self.workers.handles.len()).filter(|index| *index != self.index);
        let idlest = others.min_by_key(load)?;
        let is_less = own >= load(&idlest) + less && !self.shared.stage.is_draining();
        is_less.then_some(idlest)
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

    pub(super) fn donate(&mut self, token: Token, to: usize) {
        // Its next turn is another worker's: later connections of that client would overtake it at the server.
        if self.slots.get_mut(token).is_some_and(Relayed::pay_acknowledgement) {
            self.dial(token, DialOrder::on_outcome);
        }
        let Some(connection) = self.take_out(token) else { return };
        self.workers.handles[to].carried.fetch_add(1, Ordering::Relaxed);
        self.workers.handles[to].hand_over(connection);
    }

    /// A connection that another worker, or nobody, works on from now on.
    pub(super) fn take_out(&mut self, token: Token) -> Option<Box<Relayed>> {
        let mut connection = self.slots.remove(token)?;
        self.forget_gathering(token);
        for side in [Side::Client, Side::Server] {
            // Cannot fail for a descriptor that was added; if it did, its events would find no slot.
            let _ = self.epoll.delete(connection.legs.leg(side));
        }
        connection.queued = false;
        self.workers.handles[self.index].carried.fetch_sub(1, Ordering::Relaxed);
        Some(connection)
    }

    /// Takes in what other workers handed over.
    pub(super) fn collect_inbox(&mut self) {
        for connection in self.workers.handles[self.index].collect() {
            let gathers = connection.gather.due().is_some();
            let token = self.slots.insert(connection);
            if gathers {
                self.gathering.push(token);
            }
            self.note_unheard(token);
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
