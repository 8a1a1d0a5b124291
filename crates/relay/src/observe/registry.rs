//! Connections whose legs stand, for whoever wants to look at them; and, per rule, what became of those that ended.
//!
//! Workers enter and strike out; everybody else takes a copy of the list and then reads the sockets at leisure. A
//! connection is struck out and added to its rule's totals at once, so that totals plus living never shrink.

use super::observer::Ended;
use crate::{legs::Legs, logic::connection::Direction};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What became of a rule's connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuleTotals {
    /// By [`Ended`], in its order.
    pub ended: [u64; Ended::ALL.len()],
    /// Bytes given to the receiving sockets, per direction.
    pub relayed_bytes: [u64; 2],
    /// Packets marked, per direction.
    pub marked_packets: [u64; 2],
    /// Time in which outbound legs had nothing to send and nothing under way, per direction.
    pub outbound_idle_us: [u64; 2],
}

impl RuleTotals {
    /// Adds what one connection has come to, as of the last look at its sockets.
    pub fn add(&mut self, legs: &Legs) {
        for direction in Direction::BOTH {
            let index = direction.index();
            self.relayed_bytes[index] += legs.relayed(direction);
            self.marked_packets[index] += legs.queue(direction).map_or(0, |queue| queue.marked_packets);
            self.outbound_idle_us[index] += legs.outbound_idle_us(direction);
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    living: BTreeMap<u32, Arc<Legs>>,
    rules: BTreeMap<String, RuleTotals>,
}

impl Inner {
    fn count(&mut self, rule: &str, ended: Ended, legs: Option<&Legs>) {
        let add = |totals: &mut RuleTotals| {
            totals.ended[ended as usize] += 1;
            legs.into_iter().for_each(|legs| totals.add(legs));
        };
        match self.rules.get_mut(rule) {
            Some(totals) => add(totals),
            None => add(self.rules.entry(rule.to_owned()).or_default()),
        }
    }
}

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

impl Registry {
    pub fn insert(&self, legs: &Arc<Legs>) {
        self.lock().living.insert(legs.number, Arc::clone(legs));
    }

    /// Strikes out a connection that has ended and counts it for its rule, as of the last look at it
    /// ([`Legs::settle`]): every worker waits for this lock, so no socket is asked under it.
    pub fn finish(&self, legs: &Legs, ended: Ended) {
        let mut inner = self.lock();
        inner.living.remove(&legs.number);
        inner.count(&legs.plan.rule, ended, Some(legs));
    }

    /// Counts for a rule a client that never became a connection.
    pub fn count(&self, rule: &str, ended: Ended) {
        self.lock().count(rule, ended, None);
    }

    pub fn living(&self) -> Vec<Arc<Legs>> {
        self.lock().living.values().cloned().collect()
    }

    /// The living, and the totals of the same moment.
    pub fn look(&self) -> (Vec<Arc<Legs>>, BTreeMap<String, RuleTotals>) {
        let inner = self.lock();
        (inner.living.values().cloned().collect(), inner.rules.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
