//! What the hosts beyond an interface owe: a receiver of TCP acknowledges every second full segment at once, or as soon as its
//! program has read it. One that was handed eight and says nothing had no processor. Pure: times are passed in.
//!
//! Senders are not told of: one that is silent may have nothing that it may send.

use std::collections::VecDeque;

/// A hold-up that can matter on some path.
const LEAST_NS: u64 = 1_000_000;
/// Full segments that no receiver leaves unacknowledged.
const SEGMENTS: usize = 8;
/// One alone may wait for a second as long as an acknowledgement is delayed: what is owed is owed since then.
const SECOND: usize = 1;
/// Segments remembered: more than this are not owed at any rate at which a driver keeps up.
const OWED_MAX: usize = 1 << 14;

/// A time for which hosts were silent that had to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldUp {
    /// Since when they owed.
    pub from_ns: u64,
    /// When they answered.
    pub to_ns: u64,
}

/// When full segments were handed to one side that are not answered.
#[derive(Debug, Default)]
pub struct Answers {
    owed_ns: VecDeque<u64>,
}

impl Answers {
    /// A full TCP segment was handed to that side, in the order of their times.
    pub fn delivered(&mut self, at_ns: u64) {
        if self.owed_ns.len() < OWED_MAX {
            self.owed_ns.push_back(at_ns);
        }
    }

    /// A TCP packet came from that side; the hold-up that it tells of.
    pub fn arrived(&mut self, at_ns: u64) -> Option<HoldUp> {
        let count = self.owed_ns.partition_point(|owed_ns| *owed_ns <= at_ns);
        let since_ns = self.owed_ns.get(SECOND).copied();
        self.owed_ns.drain(..count);
        let from_ns = since_ns.filter(|since_ns| count >= SEGMENTS && at_ns - since_ns >= LEAST_NS)?;
        Some(HoldUp { from_ns, to_ns: at_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn handed(answers: &mut Answers, times_us: impl Iterator<Item = u64>) {
        times_us.for_each(|us| answers.delivered(us * 1000));
    }

    #[test]
    fn a_receiver_that_leaves_eight_segments_unacknowledged_was_held_up() {
        let mut answers = Answers::default();
        handed(&mut answers, (0..100).map(|n| n * 60));
        assert_eq!(answers.arrived(6 * MS), Some(HoldUp { from_ns: 60_000, to_ns: 6 * MS }));
        assert_eq!(answers.arrived(6 * MS + 1), None, "it is said once");
    }

    #[test]
    fn a_receiver_that_acknowledges_or_waits_for_a_second_segment_was_not() {
        let mut answers = Answers::default();
        for n in 0..1000 {
            handed(&mut answers, [n * 120, n * 120 + 60].into_iter());
            assert_eq!(answers.arrived((n * 120 + 70) * 1000), None);
        }
        handed(&mut answers, [1_000_000].into_iter());
        assert_eq!(answers.arrived(1_040 * MS), None, "an acknowledgement that is delayed");
        // The odd one of a burst waits for the next burst, whose first segments come before the program has read.
        handed(&mut answers, [2_000_000].into_iter().chain((0..9).map(|n| 2_030_000 + n * 60)));
        assert_eq!(answers.arrived(2_030_600_000), None);
    }

    #[test]
    fn what_was_handed_over_after_an_answer_left_is_owed_still() {
        let mut answers = Answers::default();
        handed(&mut answers, [0, 100, 200].into_iter());
        assert_eq!(answers.arrived(150_000), None);
        handed(&mut answers, (1..8).map(|n| n * 1000));
        assert_eq!(answers.arrived(9 * MS), Some(HoldUp { from_ns: 1_000_000, to_ns: 9 * MS }));
    }

    #[test]
    fn hosts_that_never_answer_cost_no_memory_without_bound() {
        let mut answers = Answers::default();
        (0..10 * OWED_MAX as u64).for_each(|at_ns| answers.delivered(at_ns));
        assert_eq!(answers.owed_ns.len(), OWED_MAX);
    }
}
