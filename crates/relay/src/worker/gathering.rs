//! Bulk data that gather in their sockets: when they are due, they are moved.

use super::{Token, Worker, relayed::Turn};
use crate::logic::connection::Event;
use std::time::Instant;

impl Worker<'_> {
    /// A connection has had its turn.
    pub(super) fn gather(&mut self, token: Token, turn: &Turn) {
        let length = self.shared.plan.coalesce;
        let Some(connection) = self.slots.get_mut(token).filter(|_| !length.is_zero()) else { return };
        let before = connection.gather.due().is_some();
        connection.gather(turn.read_bytes, length);
        match (before, connection.gather.due().is_some()) {
            (false, true) => self.gathering.push(token),
            (true, false) => self.forget_gathering(token),
            _ => {}
        }
    }

    /// Forgets that a connection gathers here.
    pub(super) fn forget_gathering(&mut self, token: Token) {
        self.gathering.retain(|other| *other != token);
    }

    /// Moves what is due, and what will be soon: one wake-up serves them all.
    pub(super) fn flush_gathered(&mut self) {
        if self.gathering.is_empty() {
            return;
        }
        let now = Instant::now();
        if !self.dues().any(|due| due <= now) {
            return;
        }
        let soon = now + self.shared.plan.coalesce / 2;
        for token in std::mem::take(&mut self.gathering) {
            let Some(connection) = self.slots.get_mut(token) else { continue };
            let Some((direction, due)) = connection.gather.due() else { continue };
            self.gathering.push(token);
            if due <= soon {
                connection.on(Event::Readable(direction.from()));
                self.enqueue(token);
            }
        }
    }

    /// Until the first is due, rounded.
    pub(super) fn gathering_wait_ms(&self) -> u16 {
        let Some(due) = self.dues().min() else { return u16::MAX };
        let left = due.saturating_duration_since(Instant::now());
        left.as_micros().div_ceil(1000).min(u16::MAX.into()) as u16
    }

    fn dues(&self) -> impl Iterator<Item = Instant> {
        let connections = self.gathering.iter().filter_map(|token| self.slots.get(*token));
        connections.filter_map(|connection| Some(connection.gather.due()?.1))
    }
}
