//! What the hosts beyond an interface owe: TCP answers what it is handed at once, unless its host is held up. Pure: times are
//! passed in.
//!
//! A receiver acknowledges every second full segment; one that was handed eight and says nothing has no processor. A sender
//! may have nothing to say, but does not then say it all at once: silent for a time in which it was acknowledged, and then
//! a clump, is a sender that was held up.

use std::collections::VecDeque;

/// A hold-up that can matter on some path.
const LEAST_NS: u64 = 1_000_000;
/// Full segments that no receiver leaves unacknowledged.
const FULL_SEGMENTS: usize = 8;
/// Packets after which a sender's silence is one.
const PACKETS: usize = 4;
/// A clump leaves within this part of the time it was owed for.
const CLUMP_PART: u64 = 8;
/// Packets remembered: more than this are not owed at any rate at which a driver keeps up.
const OWED_MAX: usize = 1 << 14;

/// A time for which hosts were silent that had to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldUp {
    /// Since when they owed.
    pub from_ns: u64,
    /// When they answered.
    pub to_ns: u64,
}

#[derive(Debug)]
struct Owed {
    at_ns: u64,
    is_full: bool,
}

/// A silence that was one if a clump follows.
#[derive(Debug)]
struct Suspect {
    hold_up: HoldUp,
    until_ns: u64,
    wanted: usize,
    seen: usize,
}

/// What was handed to one side and is not answered.
#[derive(Debug, Default)]
pub struct Answers {
    owed: VecDeque<Owed>,
    suspect: Option<Suspect>,
}

impl Answers {
    /// A TCP packet was handed to that side; `is_full`: more than half of the MTU.
    pub fn delivered(&mut self, at_ns: u64, is_full: bool) {
        if self.owed.len() < OWED_MAX {
            self.owed.push_back(Owed { at_ns, is_full });
        }
    }

    /// A TCP packet came from that side, in the order of their times; the hold-up that it tells of.
    pub fn arrived(&mut self, at_ns: u64) -> Option<HoldUp> {
        let clump = self.clump(at_ns);
        let count = self.owed.partition_point(|owed| owed.at_ns <= at_ns);
        let first = self.owed.front().filter(|_| count > 0);
        let Some(from_ns) = first.map(|owed| owed.at_ns) else { return clump };
        let full = self.owed.drain(..count).filter(|owed| owed.is_full).count();
        let hold_up = HoldUp { from_ns, to_ns: at_ns };
        if at_ns - from_ns < LEAST_NS {
            return clump;
        }
        if full >= FULL_SEGMENTS {
            return Some(hold_up);
        }
        if count >= PACKETS {
            let until_ns = at_ns + (at_ns - from_ns) / CLUMP_PART;
            self.suspect = Some(Suspect { hold_up, until_ns, wanted: count / 2, seen: 1 });
        }
        clump
    }

    fn clump(&mut self, at_ns: u64) -> Option<HoldUp> {
        let suspect = self.suspect.as_mut()?;
        suspect.seen += 1;
        let (over, whole) = (at_ns > suspect.until_ns, suspect.seen >= suspect.wanted);
        let told = (whole && !over).then_some(suspect.hold_up);
        if over || whole {
            self.suspect = None;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn handed(answers: &mut Answers, times_us: impl Iterator<Item = u64>, is_full: bool) {
        times_us.for_each(|us| answers.delivered(us * 1000, is_full));
    }

    #[test]
    fn a_receiver_that_leaves_eight_segments_unacknowledged_was_held_up() {
        let mut answers = Answers::default();
        handed(&mut answers, (0..100).map(|n| n * 60), true);
        assert_eq!(answers.arrived(6 * MS), Some(HoldUp { from_ns: 0, to_ns: 6 * MS }));
        assert_eq!(answers.arrived(6 * MS + 1), None, "it is said once");
    }

    #[test]
    fn a_receiver_that_acknowledges_or_waits_for_a_second_segment_was_not() {
        let mut answers = Answers::default();
        for n in 0..1000 {
            handed(&mut answers, [n * 120, n * 120 + 60].into_iter(), true);
            assert_eq!(answers.arrived((n * 120 + 70) * 1000), None);
        }
        handed(&mut answers, [1_000_000].into_iter(), true);
        assert_eq!(answers.arrived(1_040 * MS), None, "an acknowledgement that is delayed");
    }

    #[test]
    fn a_sender_that_is_silent_and_then_says_it_all_at_once_was_held_up() {
        let mut answers = Answers::default();
        handed(&mut answers, (0..50).map(|n| n * 120), false);
        let clump: Vec<_> = (0..100).filter_map(|n| answers.arrived(6 * MS + n * 5_000)).collect();
        assert_eq!(clump, [HoldUp { from_ns: 0, to_ns: 6 * MS }]);
    }

    #[test]
    fn a_sender_that_has_nothing_to_say_and_then_goes_on_as_it_is_acknowledged_was_not() {
        let mut answers = Answers::default();
        handed(&mut answers, (0..50).map(|n| n * 120), false);
        for n in 0..100 {
            let at_us = 6000 + n * 120;
            handed(&mut answers, [at_us].into_iter(), false);
            assert_eq!(answers.arrived(at_us * 1000 + 5_000), None, "{n}");
        }
    }

    #[test]
    fn what_was_handed_over_after_an_answer_left_is_owed_still() {
        let mut answers = Answers::default();
        handed(&mut answers, [0, 100, 200].into_iter(), true);
        assert_eq!(answers.arrived(150_000), None);
        handed(&mut answers, (1..8).map(|n| n * 1000), true);
        assert_eq!(answers.arrived(9 * MS), Some(HoldUp { from_ns: 200_000, to_ns: 9 * MS }));
    }

    #[test]
    fn hosts_that_never_answer_cost_no_memory_without_bound() {
        let mut answers = Answers::default();
        (0..10 * OWED_MAX as u64).for_each(|at_ns| answers.delivered(at_ns, true));
        assert_eq!(answers.owed.len(), OWED_MAX);
    }
}
