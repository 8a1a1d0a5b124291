//! Connections that leave for another router: taken from their worker, read, and held until it is known whose they are.

use super::{Token, Worker, Workers, arrival, relayed::Relayed, release::both};
use crate::{
    adopt::Dump,
    keeping::connection_id,
    legs::{Legs, leg},
    logic::{
        Pair,
        connection::{Direction, Event, Side},
    },
    moving::{
        message::{ConnectionRecord, MOST_QUEUED_BYTES, Queues, Refused, Stay},
        watched::WatchedRecord,
    },
    observe::observer::Ended,
};
use longfat_host::{monotonic_us, socket::tcp_info};
use std::sync::{Arc, atomic::Ordering, mpsc};

/// A connection, or why it stays.
pub(crate) type Given = Result<Departing, Refused>;

/// Connections that somebody asks for, by their numbers.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub numbers: Vec<u32>,
    pub given: mpsc::Sender<Vec<Given>>,
}

/// A connection that nobody works on.
#[derive(Debug)]
pub(crate) struct Departing {
    connection: Box<Relayed>,
    /// Worker that had the connection.
    worker: usize,
    /// Per side: packets that had come when it was read.
    heard: [u32; 2],
    /// Per side: the window that the peer told, once it was read.
    windows: [Option<u32>; 2],
    /// Whether whoever keeps what the relay has keeps it no more.
    is_unkept: bool,
    /// Whether what comes of it is dropped.
    is_dropped: bool,
}

impl Worker<'_> {
    /// Gives away what is asked for.
    pub(super) fn give_wanted(&mut self) {
        for Wanted { numbers, given } in self.workers.handles[self.index].take_wanted() {
            let is_wanted = |token: &Token| {
                self.slots.get(*token).is_some_and(|connection| numbers.contains(&connection.legs.number))
            };
            let tokens: Vec<_> = self.slots.tokens().into_iter().filter(is_wanted).collect();
            let found = tokens.into_iter().filter_map(|token| self.give_one(token)).collect();
            // Nobody waits any more: they stay.
            if let Err(mpsc::SendError(found)) = given.send(found) {
                found.into_iter().flatten().for_each(|departing| departing.go_on(self.workers));
            }
        }
    }

    fn give_one(&mut self, token: Token) -> Option<Given> {
        let connection = self.slots.get_mut(token)?;
        let number = connection.legs.number;
        if let Err(stay) = may_leave(connection) {
            return Some(Err((number, stay)));
        }
        if !connection.hold_in_memory(&mut self.pool) {
            return Some(Err((number, Stay::Socket)));
        }
        let connection = self.take_out(token)?;
        Some(Ok(Departing {
            connection,
            worker: self.index,
            heard: [0; 2],
            windows: [None; 2],
            is_dropped: false,
            is_unkept: false,
        }))
    }
}

fn may_leave(connection: &Relayed) -> Result<(), Stay> {
    let (logic, legs) = (&connection.logic, &connection.legs);
    if !legs.is_inserted {
        return Err(Stay::Numbers);
    }
    if logic.is_connecting() || logic.failure().is_some() || logic.ending().is_some() {
        return Err(Stay::Closing);
    }
    let is_urgent = |direction: Direction| {
        let waits = || leg::unacked_bytes(legs.leg(direction.to())) > 0;
        logic.holds_mark(direction) || (connection.has_marked(direction) && waits())
    };
    if Direction::BOTH.into_iter().any(is_urgent) { Err(Stay::Urgent) } else { Ok(()) }
}

impl Departing {
    /// Number of the connection.
    pub fn number(&self) -> u32 {
        self.connection.legs.number
    }

    /// What is known of it.
    pub fn legs(&self) -> Arc<Legs> {
        Arc::clone(&self.connection.legs)
    }

    fn pair(&self) -> Pair {
        (self.connection.legs.client_address, self.connection.legs.server_address)
    }

    /// Keeps from it what its ends send, and reads what is in it. It stays deaf until it goes on.
    pub fn dump(&mut self, workers: &Workers) -> Result<(ConnectionRecord, Queues), Stay> {
        let watcher = &workers.held.adopting.watcher;
        watcher.drop_packets(self.pair())?;
        self.is_dropped = true;
        let [client, server] = both(&self.connection).dump()?;
        self.heard = [client.heard, server.heard];
        self.windows = [client.peer_window_bytes, server.peer_window_bytes].map(Some);
        let legs = &self.connection.legs;
        let watched = legs.adopted.as_ref().and_then(|_| watcher.known_of(self.pair()));
        let now_us = monotonic_us();
        // What was given to a leg and not sent comes first, then what the relay holds, then what it has not read.
        let held = |direction: Direction, to: &Dump, from: &Dump| {
            let own = self.connection.memory(direction).unwrap_or_default();
            [to.unsent.as_slice(), own, from.unread.as_slice()].concat()
        };
        let held = [
            held(Direction::ClientToServer, &server, &client),
            held(Direction::ServerToClient, &client, &server),
        ];
        let queues = Queues { held, unacknowledged: [client.unacknowledged, server.unacknowledged] };
        if queues.bytes() > MOST_QUEUED_BYTES {
            return Err(Stay::Size);
        }
        let record = ConnectionRecord {
            number: legs.number,
            client: legs.client_address,
            server: legs.server_address,
            rule: legs.plan.rule.clone(),
            age_us: (now_us - legs.accepted_us).max(0) as u64,
            legs: [client.record, server.record],
            held_bytes: queues.held.each_ref().map(|held| held.len() as u32),
            adopted: legs.adopted.clone(),
            watched: watched.map(|watched| WatchedRecord::of(&watched, now_us as u64)),
        };
        Ok((record, queues))
    }

    /// Whether nothing has come since it was read: a packet may have been on its way to a socket on another processor.
    pub fn is_as_read(&self) -> bool {
        let sides = [Side::Client, Side::Server].into_iter().zip(self.heard);
        let heard = |side| tcp_info(self.connection.legs.leg(side)).map(|info| info.segs_in);
        sides.into_iter().all(|(side, before)| heard(side).is_ok_and(|now| now == before))
    }

    /// From now on it is not kept for whoever goes on when this process is killed: it may be another router's.
    pub fn keep_no_more(&mut self, workers: &Workers) {
        workers.keeping.gone(connection_id(self.number()));
        self.is_unkept = true;
    }

    /// Makes both sockets vanish without a word when this process is killed. The connection may be another
    /// router's now, who would not have its ends hear of this process's death.
    pub fn die_silently(&self) {
        both(&self.connection).die_silently();
    }

    /// As if nothing had been.
    pub fn go_on(self, workers: &Workers) {
        both(&self.connection).go_on(self.windows);
        // Otherwise its packets may be led elsewhere: it is being stepped into or left.
        if self.is_dropped {
            workers.held.adopting.watcher.drop_no_more(self.pair());
        }
        if self.is_unkept {
            arrival::keep(&workers.keeping, &self.connection, self.worker);
        }
        self.hand_back(workers);
    }

    /// Another router has it: both sockets vanish.
    pub fn has_moved(mut self, workers: &Workers) {
        both(&self.connection).vanish_quietly();
        workers.held.adopting.watcher.has_moved(self.pair());
        self.connection.ended = Ended::Moved;
        self.connection.on(Event::Expired);
        self.hand_back(workers);
    }

    /// Nobody knows whose it is: both ends are told that it has ended.
    pub fn reset(mut self, workers: &Workers) {
        // In repair mode nobody would hear of it.
        both(&self.connection).hear();
        [Side::Client, Side::Server].into_iter().for_each(|side| leg::reset(self.connection.legs.leg(side)));
        workers.held.adopting.watcher.drop_no_more(self.pair());
        self.connection.ended = Ended::Stopped;
        self.connection.on(Event::Expired);
        self.hand_back(workers);
    }

    fn hand_back(self, workers: &Workers) {
        let handle = &workers.handles[self.worker];
        handle.carried.fetch_add(1, Ordering::Relaxed);
        handle.hand_over(self.connection);
    }
}
