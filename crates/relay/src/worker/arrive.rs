//! Connections from another relay, to another relay, and in the hands of whoever keeps them.

use super::{
    Token, Worker,
    arrival::{self, Settled},
    relayed::Relayed,
};
use crate::{
    Result, adopt,
    handover::{
        derive::{Dial, Unfit},
        estate::Arrival,
    },
    hold::Hold,
    keeping::{connection_id, wire::Wire},
    legs::leg,
    logic::{Pair, connection::Side},
    observe::journal::Once,
};
use nix::sys::epoll::EpollEvent;
use std::{io, net::TcpStream, sync::atomic::Ordering};

/// Connections that are taken in before those that are there are carried on.
const AT_A_TURN: usize = 32;

impl Worker<'_> {
    /// Takes in what another relay handed over, before anything else is done.
    pub(super) fn take_arrivals(&mut self) {
        let (connections, handshakes) = self.workers.handles[self.index].take_arrivals();
        connections.into_iter().for_each(|arrival| self.take_in(arrival));
        for handshake in handshakes {
            self.with_hold(|hold, round| hold.take_in(handshake, round));
        }
    }

    /// Takes in what another relay left, while nothing new can come: first those for which something has come. None
    /// waits until all are there.
    pub(super) fn take_arrivals_by_turns(&mut self, events: &mut [EpollEvent]) -> Result<()> {
        let (connections, handshakes) = self.workers.handles[self.index].take_arrivals();
        debug_assert!(handshakes.is_empty(), "no keeper has any");
        let mut connections = arrival::waiting_first(connections).into_iter();
        while !connections.as_slice().is_empty() {
            connections.by_ref().take(AT_A_TURN).for_each(|arrival| self.take_in(arrival));
            // It would wait for events of those that are there.
            if !self.ready.is_empty() {
                self.go_round(events)?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, arrival: Arrival) {
        let (number, pair) = (arrival.record.number, (arrival.record.client, arrival.record.server));
        let is_inserted = arrival.record.inserted;
        // A descriptor of both, should it not go on.
        let sockets = [&arrival.client, &arrival.server].map(|leg| leg.try_clone().ok());
        let Settled { connection, dial } = match arrival::settle(arrival, self.shared) {
            Ok(settled) => settled,
            Err(why) => {
                self.end_there(why, pair, is_inserted, &sockets);
                return self.workers.keeping.gone(connection_id(number));
            }
        };
        drop(sockets);
        connection.count_buffers(&self.pool);
        self.shared.admission.admit_anyway(pair.0.ip());
        self.shared.journal.taken_over.fetch_add(1, Ordering::Relaxed);
        self.workers.handles[self.index].carried.fetch_add(1, Ordering::Relaxed);
        let token = self.slots.insert(connection);
        self.go_on(token, dial);
    }

    /// From where it was.
    fn go_on(&mut self, token: Token, dial: Dial) {
        match dial {
            Dial::Begin => self.connect(token),
            Dial::Failed => self.on_unreachable(token),
            Dial::Await => self.watch_new(token),
            Dial::Stands => {
                let Some(connection) = self.slots.get(token) else { return };
                self.workers.stand(&connection.legs);
                self.keep_if(token, self.watch(token));
            }
        }
        self.enqueue(token);
    }

    /// Ends a connection that does not go on.
    fn end_there(&self, why: Unfit, pair: Pair, is_inserted: bool, sockets: &[Option<TcpStream>; 2]) {
        if is_inserted {
            self.workers.held.adopting.watcher.acks.end(pair);
        }
        if why == Unfit::Unclear {
            sockets.iter().flatten().for_each(leg::reset);
            let warning = || format!("a connection of another relay was reset: {why}");
            self.shared.journal.warn_once(Once::Unclear, warning);
        } else if is_inserted && let [Some(client), Some(server)] = sockets {
            adopt::forget_both(client, server, pair);
        }
    }

    /// Stands still until a successor has everything; whether it has.
    pub(super) fn stand_still(&mut self) -> bool {
        let standstill = &self.workers.standstill;
        let Some(wire) = standstill.halt() else { return false };
        // Nobody hands over any more.
        self.collect_inbox();
        self.workers.held.adopting.watcher.leave();
        let sent = self.give(&wire);
        let has_left = standstill.wait_for_outcome(sent);
        if has_left {
            // What is closed now is open there.
            self.hold = None;
        }
        has_left
    }

    fn give(&self, wire: &Wire) -> io::Result<()> {
        for token in self.slots.tokens() {
            let connection = self.slots.get(token);
            connection.map_or(Ok(()), |connection| arrival::give(wire, connection, self.index))?;
        }
        self.hold.as_ref().map_or(Ok(()), |hold: &Hold<'_>| hold.give(wire))
    }

    /// Puts a connection where it survives this process.
    pub(super) fn keep(&self, token: Token) {
        let connection = self.slots.get(token);
        connection
            .into_iter()
            .for_each(|connection| arrival::keep(&self.workers.keeping, connection, self.index));
    }

    /// A connection has ended. Somebody has duplicates of its sockets, so closing them does nothing yet.
    pub(super) fn keep_no_more(&self, connection: &Relayed, is_orderly: bool) {
        if !self.workers.keeping.is_on() {
            return;
        }
        if !is_orderly {
            [Side::Client, Side::Server].into_iter().for_each(|side| leg::reset(connection.legs.leg(side)));
        }
        self.workers.keeping.gone(connection_id(connection.legs.number));
    }
}
