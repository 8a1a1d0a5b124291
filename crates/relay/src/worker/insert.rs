//! Connections between whose ends sockets were put: both legs stand from the beginning.

use super::{Token, Worker, relayed::Relayed};
use crate::{
    adopt,
    legs::Legs,
    logic::connection::{Event, Side},
};
use std::sync::{Arc, atomic::Ordering};

impl Worker<'_> {
    /// Takes in what was made while packets were looked at. A place among all, and one of the client's, is taken
    /// already.
    pub(super) fn begin_inserted(&mut self) {
        let inserted = self.hold.as_mut().map(|hold| hold.adopter.take_inserted());
        for legs in inserted.unwrap_or_default() {
            let token = self.carry_inserted(legs);
            // One of a busy worker's goes to another.
            if !self.share(token) {
                self.enqueue(token);
            }
        }
    }

    fn carry_inserted(&mut self, legs: Legs) -> Token {
        let mut connection = Box::new(Relayed::new(legs, None, None, self.now));
        connection.on(Event::Connected);
        let legs = Arc::clone(&connection.legs);
        let token = self.slots.insert(connection);
        self.workers.handles[self.index].carried.fetch_add(1, Ordering::Relaxed);
        self.workers.stand(&legs);
        self.check_cc(&legs.client, &legs.plan.client, Side::Client);
        self.check_cc(&legs.server, &legs.plan.server, Side::Server);
        self.keep_if(token, self.watch(token));
        token
    }

    /// A connection that has ended in order leaves nothing behind that would stand between its ends when they use the
    /// same addresses and ports again.
    pub(super) fn forget_inserted(connection: &Relayed) {
        let legs = &connection.legs;
        if legs.is_inserted {
            adopt::forget_both(&legs.client, &legs.server, (legs.client_address, legs.server_address));
        }
    }
}
