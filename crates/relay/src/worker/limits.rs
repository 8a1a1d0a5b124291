//! What a worker looks at from time to time: connections that have been idle for too long, and bytes held in all.

use super::{Token, Worker};
use crate::{
    RelayPlan,
    connection::{Direction, Event, Side},
    doors::Clients,
    leg,
    observer::Ended,
    relayed::Relayed,
};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_millis(100);

/// When the limits were last looked at, and whether there are any.
pub(super) struct Look {
    last: Instant,
    memory: bool,
    idle: bool,
}

impl Look {
    pub fn new(plan: &RelayPlan, now: Instant) -> Look {
        let idle = plan.ways().any(|way| way.idle.is_some());
        Look { last: now, memory: plan.limits.memory_bytes.is_some(), idle }
    }

    /// Looks for idle connections from now on, if these clients' may be.
    pub fn learn(&mut self, clients: &Clients) {
        self.idle |= clients.likely().idle.is_some()
            || matches!(clients, Clients::Own { plan, .. } if plan.ways().any(|way| way.idle.is_some()));
    }
}

impl Worker<'_> {
    pub(super) fn look_at_limits(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.limits.last) < EVERY || !(self.limits.idle || self.limits.memory) {
            return;
        }
        self.limits.last = now;
        if self.limits.memory {
            let held =
                self.slots.tokens().into_iter().filter_map(|token| self.slots.get(token)).map(held_bytes);
            self.shared.seats[self.index].backlog_bytes.store(held.sum(), Ordering::Relaxed);
        }
        if self.limits.idle {
            self.end_idle(now);
        }
    }

    /// Resets connections that have moved nothing for as long as their rule allows.
    fn end_idle(&mut self, now: Instant) {
        let is_idle = |token: &Token| {
            let connection = self.slots.get(*token)?;
            Some(now.duration_since(connection.moved) >= connection.legs.plan.idle?)
        };
        let idle = self.slots.tokens().into_iter().filter(|token| is_idle(token) == Some(true));
        for token in idle.collect::<Vec<_>>() {
            if let Some(connection) = self.slots.get_mut(token) {
                connection.ended = Ended::Idle;
                connection.on(Event::Expired);
            }
            self.end(token);
        }
    }
}

/// Bytes of one connection in its sockets and in the relay.
fn held_bytes(connection: &Relayed) -> u64 {
    let legs = &connection.legs;
    let sockets = [Side::Client, Side::Server].map(|side| legs.leg(side));
    let sockets = sockets.map(|socket| leg::unread_bytes(socket) + leg::unacked_bytes(socket));
    let own = Direction::BOTH.map(|direction| connection.logic.held_bytes(direction) as u64);
    sockets.iter().chain(&own).sum()
}
