//! What a worker looks at from time to time: connections that have been idle for too long, and bytes held in all.

use super::{Token, Worker, relayed::Relayed};
use crate::{
    RelayPlan,
    legs::leg,
    listeners::Clients,
    logic::{
        connection::{Direction, Event, Side},
        memory::Bytes,
        tcp_state::SYN_SENT,
    },
    observe::observer::Ended,
    plan::ConnectionPlan,
};
use longfat_host::socket;
use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often bytes are counted, and the least between looks for what has lasted too long.
const EVERY: Duration = Duration::from_millis(100);
/// The most between those looks.
const SELDOM: Duration = Duration::from_secs(1);
/// Looks while a connection becomes idle.
const LOOKS: u32 = 16;
/// Longer is no handshake: a dial that nobody answers has its place no longer.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// When the limits were last looked at, and how often they are.
pub(super) struct Look {
    bytes: Instant,
    memory: bool,
    times: Instant,
    /// Between looks for what has lasted too long.
    every: Duration,
}

impl Look {
    pub fn new(plan: &RelayPlan, now: Instant) -> Look {
        let memory = plan.limits.has_memory();
        let mut look = Look { bytes: now, memory, times: now, every: SELDOM };
        look.learn_ways(plan.ways());
        look
    }

    /// Looks as often as these clients need it, from now on.
    pub fn learn(&mut self, clients: &Clients) {
        self.learn_ways([clients.likely()]);
        if let Clients::Own { plan, .. } = clients {
            self.learn_ways(plan.ways());
        }
    }

    fn learn_ways<'w>(&mut self, ways: impl IntoIterator<Item = &'w Arc<ConnectionPlan>>) {
        let least = ways.into_iter().filter_map(|way| way.idle).min();
        self.every = least.map_or(self.every, |idle| self.every.min(idle / LOOKS)).max(EVERY);
    }
}

impl Worker<'_> {
    pub(super) fn look_at_limits(&mut self) {
        let now = self.now;
        if self.limits.memory && now.duration_since(self.limits.bytes) >= EVERY {
            self.limits.bytes = now;
            self.count_bytes();
        }
        if now.duration_since(self.limits.times) >= self.limits.every {
            self.limits.times = now;
            self.end_idle(now);
            self.end_dials(now);
            self.equip();
        }
    }

    /// Counts what connections hold, and bounds what each may come to hold.
    fn count_bytes(&mut self) {
        let (mut bytes, mut held) = (Bytes::new(), Vec::new());
        for token in self.slots.tokens() {
            let Some(connection) = self.slots.get(token) else { continue };
            let (client, held_bytes) = (canonical_client(connection), held_bytes(connection));
            *bytes.entry(client).or_default() += held_bytes;
            held.push((token, client, held_bytes));
        }
        let growth = self.shared.admission.note_bytes(self.index, &bytes);
        for (token, client, held_bytes) in held {
            let growth_bytes = growth.get(&client).copied().unwrap_or(u64::MAX);
            self.bound(token, held_bytes.saturating_add(growth_bytes));
        }
    }

    /// Both legs of a connection stand: it may come to hold no more than its part of what is free.
    pub(super) fn bound_new(&mut self, token: Token) {
        let Some(connection) = self.slots.get(token).filter(|_| self.limits.memory) else { return };
        let growth_bytes = self.shared.admission.growth_bytes(canonical_client(connection));
        self.bound(token, growth_bytes);
    }

    fn bound(&mut self, token: Token, most_bytes: u64) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        // Until both legs stand nothing is read, and the client has what it began with.
        if connection.logic.is_connecting() {
            return;
        }
        let is_bound = most_bytes < connection.legs.plan.most_bytes();
        if connection.legs.queues.set_memory(is_bound.then_some(most_bytes)) {
            connection.equip();
            self.workers.queues.watch(&connection.legs);
        }
    }

    /// Whoever is still there lasts.
    fn equip(&mut self) {
        for token in self.slots.tokens() {
            self.slots.get_mut(token).into_iter().for_each(|connection| connection.equip());
        }
    }

    /// Gives up dials that nobody has answered.
    fn end_dials(&mut self, now: Instant) {
        let is_silent = |token: &Token| {
            let Some(connection) = self.slots.get(*token) else { return false };
            connection.logic.is_connecting()
                && now.duration_since(connection.moved) >= HANDSHAKE
                // Not one that waits for the end of its client's last connection.
                && socket::tcp_info(&connection.legs.server).is_ok_and(|info| info.state == SYN_SENT)
        };
        let silent: Vec<_> = self.slots.tokens().into_iter().filter(is_silent).collect();
        silent.into_iter().for_each(|token| self.on_unreachable(token));
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

fn canonical_client(connection: &Relayed) -> IpAddr {
    connection.legs.client_address.ip().to_canonical()
}

/// What one connection takes up in its sockets and in the relay.
fn held_bytes(connection: &Relayed) -> u64 {
    let legs = &connection.legs;
    let sockets = [Side::Client, Side::Server].map(|side| legs.leg(side));
    let sockets = sockets.map(leg::memory_bytes);
    let own = Direction::BOTH.map(|direction| connection.logic.held_bytes(direction) as u64);
    sockets.iter().chain(&own).sum()
}
