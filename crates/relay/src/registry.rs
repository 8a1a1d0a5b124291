//! Connections whose legs stand, for whoever wants to look at them; and, per rule, what became of those that ended.
//!
//! Workers enter and strike out; everybody else takes a copy of the list and then reads the sockets at leisure. A
//! connection is struck out and added to its rule's totals at once, so that totals plus living never shrink.

use crate::{connection::Direction, observer::Ended, relayed::Legs};
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
}

#[derive(Debug, Default)]
struct Inner {
    living: BTreeMap<u32, Arc<Legs>>,
    rules: BTreeMap<String, RuleTotals>,
}

impl Inner {
    fn add(&mut self, rule: &str, ended: Ended, relayed_bytes: [u64; 2]) {
        if !self.rules.contains_key(rule) {
            // The name is copied for a rule's first connection only.
            self.rules.insert(rule.to_owned(), RuleTotals::default());
        }
        let Some(totals) = self.rules.get_mut(rule) else { return };
        totals.ended[ended as usize] += 1;
        for (total, bytes) in totals.relayed_bytes.iter_mut().zip(relayed_bytes) {
            *total += bytes;
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

    /// Strikes out a connection that has ended and counts it for its rule.
    pub fn finish(&self, legs: &Legs, ended: Ended) {
        let mut inner = self.lock();
        inner.living.remove(&legs.number);
        let relayed_bytes = Direction::BOTH.map(|direction| legs.relayed(direction));
        inner.add(&legs.plan.rule, ended, relayed_bytes);
    }

    /// Counts for a rule a client that never became a connection.
    pub fn count(&self, rule: &str, ended: Ended) {
        self.lock().add(rule, ended, [0; 2]);
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
