//! What the hosts beyond an interface owe: a receiver of TCP acknowledges every second full segment at once, or as soon
//! as its program has read it. One that was handed eight and says nothing had no processor. Pure: times are passed in.
//!
//! A sender that was handed eight acknowledgements and says nothing may have nothing that it may send. One that then
//! answers them all at once had, or was told late that it may: whoever knows its state tells which.

use std::collections::VecDeque;

/// A hold-up that can matter on some path.
const LEAST_NS: u64 = 1_000_000;
/// Full segments that no receiver leaves unacknowledged.
const SEGMENTS: usize = 8;
/// One alone may wait for a second as long as an acknowledgement is delayed: what is owed is owed since then.
const SECOND: usize = 1;
/// Segments remembered: more than this are not owed at any rate at which a driver keeps up.
const OWED_MAX: usize = 1 << 14;

/// Which part of TCP did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// One that owes acknowledgements.
    Receiver,
    /// One that was acknowledged.
    Sender,
}

/// A time for which hosts were silent that had to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldUp {
    /// The end that owed answers.
    pub end: End,
    /// Since when they owed.
    pub from_ns: u64,
    /// When they answered.
    pub to_ns: u64,
}

/// When packets were handed to one side that are not answered.
#[derive(Debug, Default)]
struct Owed {
    since_ns: VecDeque<u64>,
}

impl Owed {
    fn handed(&mut self, at_ns: u64) {
        if self.since_ns.len() < OWED_MAX {
            self.since_ns.push_back(at_ns);
        }
    }

    /// Something came from that side: how many packets it answers, and since when it owed that, if it was long.
    fn answered(&mut self, at_ns: u64) -> (usize, Option<u64>) {
        let count = self.since_ns.partition_point(|owed_ns| *owed_ns <= at_ns);
        let since_ns = self.since_ns.get(SECOND).copied();
        self.since_ns.drain(..count);
        let is_long = |since_ns: &u64| count >= SEGMENTS && at_ns - since_ns >= LEAST_NS;
        (count, since_ns.filter(is_long))
    }
}

/// What a sender sends after a silence: at once as many packets as it was handed, or it had another reason to be
/// silent.
#[derive(Debug)]
struct Clump {
    hold_up: HoldUp,
    missing: usize,
    until_ns: u64,
}

/// What one side was handed and has not answered.
#[derive(Debug, Default)]
pub struct Answers {
    segments: Owed,
    acknowledgements: Owed,
    clump: Option<Clump>,
}

impl Answers {
    /// A TCP packet was handed to that side, in the order of their times.
    pub fn delivered(&mut self, at_ns: u64, is_full: bool) {
        let owed = if is_full { &mut self.segments } else { &mut self.acknowledgements };
        owed.handed(at_ns);
    }

    /// A TCP packet came from that side; the hold-ups that it tells of.
    pub fn arrived(&mut self, at_ns: u64) -> impl Iterator<Item = HoldUp> + use<> {
        let (_, since_ns) = self.segments.answered(at_ns);
        let receiver = since_ns.map(|from_ns| HoldUp { end: End::Receiver, from_ns, to_ns: at_ns });
        receiver.into_iter().chain(self.sent(at_ns))
    }

    fn sent(&mut self, at_ns: u64) -> Option<HoldUp> {
        let (count, since_ns) = self.acknowledgements.answered(at_ns);
        if let Some(from_ns) = since_ns {
            let hold_up = HoldUp { end: End::Sender, from_ns, to_ns: at_ns };
            self.clump = Some(Clump { hold_up, missing: count - 1, until_ns: at_ns + (at_ns - from_ns) / 4 });
            return None;
        }
        let mut clump = self.clump.take().filter(|clump| at_ns <= clump.until_ns)?;
        clump.missing -= 1;
        if clump.missing == 0 {
            return Some(clump.hold_up);
        }
        self.clump = Some(clump);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn handed(answers: &mut Answers, times_us: impl Iterator<Item = u64>) {
        times_us.for_each(|us| answers.delivered(us * 1000, true));
    }

    fn held(answers: &mut Answers, at_ns: u64) -> Vec<HoldUp> {
        answers.arrived(at_ns).collect()
    }

    fn receiver(from_ns: u64, to_ns: u64) -> Vec<HoldUp> {
        vec![HoldUp { end: End::Receiver, from_ns, to_ns }]
    }

    /// A sender is handed ten acknowledgements, one every 100 us, and then sends so many packets, one every so often:
    /// its hold-ups.
    fn sends(packets: u64, after_ns: u64, every_ns: u64) -> Vec<HoldUp> {
        let mut answers = Answers::default();
        (0..10).for_each(|n| answers.delivered(n * 100_000, false));
        (0..packets).flat_map(|n| held(&mut answers, after_ns + n * every_ns)).collect()
    }

    #[test]
    fn a_sender_that_answers_all_acknowledgements_at_once_was_held_up() {
        let hold_up = HoldUp { end: End::Sender, from_ns: 100_000, to_ns: 5 * MS };
        assert_eq!(sends(10, 5 * MS, 1_000), [hold_up]);
        assert_eq!(sends(30, 5 * MS, 1_000), [hold_up], "it is said once");
    }

    #[test]
    fn a_sender_that_may_not_send_or_sends_at_its_own_pace_was_not() {
        assert_eq!(sends(9, 5 * MS, 1_000), [], "less than it was acknowledged");
        assert_eq!(sends(10, 5 * MS, 200_000), [], "not at once");
        assert_eq!(sends(10, MS, 1_000), [], "soon");
    }

    #[test]
    fn a_receiver_that_leaves_eight_segments_unacknowledged_was_held_up() {
        let mut answers = Answers::default();
        handed(&mut answers, (0..100).map(|n| n * 60));
        assert_eq!(held(&mut answers, 6 * MS), receiver(60_000, 6 * MS));
        assert_eq!(held(&mut answers, 6 * MS + 1), [], "it is said once");
    }

    #[test]
    fn a_receiver_that_acknowledges_or_waits_for_a_second_segment_was_not() {
        let mut answers = Answers::default();
        for n in 0..1000 {
            handed(&mut answers, [n * 120, n * 120 + 60].into_iter());
            assert_eq!(held(&mut answers, (n * 120 + 70) * 1000), []);
        }
        handed(&mut answers, [1_000_000].into_iter());
        assert_eq!(held(&mut answers, 1_040 * MS), [], "an acknowledgement that is delayed");
        // The odd one of a burst waits for the next burst, whose first segments come before the program has read.
        handed(&mut answers, [2_000_000].into_iter().chain((0..9).map(|n| 2_030_000 + n * 60)));
        assert_eq!(held(&mut answers, 2_030_600_000), []);
    }

    #[test]
    fn what_was_handed_over_after_an_answer_left_is_owed_still() {
        let mut answers = Answers::default();
        handed(&mut answers, [0, 100, 200].into_iter());
        assert_eq!(held(&mut answers, 150_000), []);
        handed(&mut answers, (1..8).map(|n| n * 1000));
        assert_eq!(held(&mut answers, 9 * MS), receiver(1_000_000, 9 * MS));
    }

    #[test]
    fn hosts_that_never_answer_cost_no_memory_without_bound() {
        let mut answers = Answers::default();
        (0..10 * OWED_MAX as u64).for_each(|at_ns| answers.delivered(at_ns, at_ns % 2 == 0));
        assert_eq!(answers.segments.since_ns.len() + answers.acknowledgements.since_ns.len(), 2 * OWED_MAX);
    }
}
