//! Changes of a direction over time.

use crate::plan::ChangePlan;

/// The changes still to come. They happen only once the schedule has been started.
#[derive(Debug)]
pub struct Schedule {
    changes: Vec<ChangePlan>,
    repeats_ns: Option<u64>,
    next: usize,
    zero_ns: Option<u64>,
}

impl Schedule {
    /// Changes in the order of their times. After `repeats_ns`, which is later than all of them, they happen again.
    pub fn new(changes: Vec<ChangePlan>, repeats_ns: Option<u64>) -> Schedule {
        let last_ns = changes.last().map_or(0, |change| change.at_ns);
        let repeats_ns = repeats_ns.filter(|ns| *ns > last_ns && !changes.is_empty());
        Schedule { changes, repeats_ns, next: 0, zero_ns: None }
    }

    /// Sets the schedule's time zero.
    pub fn start(&mut self, at_ns: u64) {
        self.zero_ns.get_or_insert(at_ns);
    }

    /// When the next change happens.
    pub fn next_ns(&self) -> Option<u64> {
        let change = self.changes.get(self.next)?;
        Some(self.zero_ns?.saturating_add(change.at_ns))
    }

    /// Takes the next change.
    pub fn next_change(&mut self) -> Option<ChangePlan> {
        let change = self.changes.get(self.next).cloned();
        self.next += 1;
        if let Some(repeats_ns) = self.repeats_ns.filter(|_| self.next >= self.changes.len()) {
            self.next = 0;
            self.zero_ns = self.zero_ns.map(|zero_ns| zero_ns.saturating_add(repeats_ns));
        }
        change
    }
}
