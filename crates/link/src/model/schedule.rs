//! Changes of a direction over time.

use crate::plan::ChangePlan;

/// The changes still to come. They happen only once the schedule has been started.
#[derive(Debug)]
pub struct Schedule {
    changes: std::vec::IntoIter<ChangePlan>,
    zero_ns: Option<u64>,
}

impl Schedule {
    /// Changes in the order of their times.
    pub fn new(changes: Vec<ChangePlan>) -> Schedule {
        Schedule { changes: changes.into_iter(), zero_ns: None }
    }

    /// Sets the schedule's time zero.
    pub fn start(&mut self, at_ns: u64) {
        self.zero_ns.get_or_insert(at_ns);
    }

    /// When the next change happens.
    pub fn next_ns(&self) -> Option<u64> {
        let change = self.changes.as_slice().first()?;
        Some(self.zero_ns?.saturating_add(change.at_ns))
    }

    /// Takes the next change.
    pub fn next_change(&mut self) -> Option<ChangePlan> {
        self.changes.next()
    }
}
