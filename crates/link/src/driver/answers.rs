//! What the hosts beyond an interface owe: a receiver of TCP acknowledges every second full segment at once, or as soon
//! as its program has read it. One that was handed four and says nothing had no processor. Pure: times are passed in.
//!
//! A sender that was handed eight acknowledgements and says nothing may have nothing that it may send. One that then
//! answers them all at once had, or was told late that it may: whoever knows its state tells which.

use std::collections::VecDeque;

/// Full segments that no receiver leaves unacknowledged.
const SEGMENTS: usize = 4;
/// Acknowledgements that no sender leaves unanswered that may send.
const ACKNOWLEDGEMENTS: usize = 8;
/// A sender gathers by itself what it sends in a millisecond (tcp_tso_autosize).
const LEAST_SILENCE_NS: u64 = 1_000_000;
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
    /// How many packets they owed an answer to.
    pub owed: u32,
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

    /// Something came from that side: a hold-up, if it answers so many packets and owed that for so long.
    fn answered(&mut self, at_ns: u64, end: End, least: usize, least_ns: u64) -> Option<HoldUp> {
        let count = self.since_ns.partition_point(|owed_ns| *owed_ns <= at_ns);
        let since_ns = self.since_ns.get(SECOND).copied();
        self.since_ns.drain(..count);
        let from_ns = since_ns.filter(|since_ns| count >= least && at_ns - since_ns >= least_ns)?;
        Some(HoldUp { end, from_ns, to_ns: at_ns, owed: count as u32 })
    }
}

/// What a sender sends after a silence: at once as many packets as it was handed, or it had another reason to be
/// silent.
#[derive(Debug)]
struct Clump {
    hold_up: HoldUp,
    missing: u32,
    until_ns: u64,
}

/// What one side was handed and has not answered.
#[derive(Debug)]
pub struct Answers {
    /// Receivers' hold-ups shorter than this are of no consequence.
    least_ns: u64,
    segments: Owed,
    acknowledgements: Owed,
    clump: Option<Clump>,
}

impl Answers {
    /// Answers of one side, whose hold-ups are told from this length on.
    pub fn new(least_ns: u64) -> Answers {
        Answers { least_ns, segments: Owed::default(), acknowledgements: Owed::default(), clump: None }
    }

    /// A TCP packet was handed to that side, in the order of their times.
    pub fn delivered(&mut self, at_ns: u64, is_full: bool) {
        let owed = if is_full { &mut self.segments } else { &mut self.acknowledgements };
        owed.handed(at_ns);
    }

    /// A TCP packet came from that side; the hold-ups that it tells of.
    pub fn arrived(&mut self, at_ns: u64) -> impl Iterator<Item = HoldUp> + use<> {
        let receiver = self.segments.answered(at_ns, End::Receiver, SEGMENTS, self.least_ns);
        receiver.into_iter().chain(self.sent(at_ns))
    }

    fn sent(&mut self, at_ns: u64) -> Option<HoldUp> {
        let least_ns = self.least_ns.max(LEAST_SILENCE_NS);
        let silence = self.acknowledgements.answered(at_ns, End::Sender, ACKNOWLEDGEMENTS, least_ns);
        if let Some(hold_up) = silence {
            let until_ns = at_ns + (at_ns - hold_up.from_ns) / 4;
            self.clump = Some(Clump { hold_up, missing: hold_up.owed - 1, until_ns });
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

    fn receiver(from_ns: u64, to_ns: u64, owed: u32) -> Vec<HoldUp> {
        vec![HoldUp { end: End::Receiver, from_ns, to_ns, owed }]
    }

    /// A sender is handed ten acknowledgements, one every 100 us, and then sends so many packets, one every so often:
    /// its hold-ups.
    fn sends(packets: u64, after_ns: u64, every_ns: u64) -> Vec<HoldUp> {
        let mut answers = Answers::new(MS);
        (0..10).for_each(|n| answers.delivered(n * 100_000, false));
        (0..packets).flat_map(|n| held(&mut answers, after_ns + n * every_ns)).collect()
    }

    #[test]
    fn a_sender_that_answers_all_acknowledgements_at_once_was_held_up() {
        let hold_up = HoldUp { end: End::Sender, from_ns: 100_000, to_ns: 5 * MS, owed: 10 };
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
    fn a_receiver_that_leaves_four_segments_unacknowledged_was_held_up() {
        let mut answers = Answers::new(MS);
        handed(&mut answers, (0..100).map(|n| n * 60));
        assert_eq!(held(&mut answers, 6 * MS), receiver(60_000, 6 * MS, 100));
        assert_eq!(held(&mut answers, 6 * MS + 1), [], "it is said once");
        handed(&mut answers, (0..3).map(|n| 10_000 + n * 60));
        assert_eq!(held(&mut answers, 20 * MS), [], "three may wait for a program");
    }

    #[test]
    fn a_short_hold_up_is_told_where_the_path_feels_it() {
        let told = |least_ns: u64, segments: u64, at_ns: u64| {
            let mut answers = Answers::new(least_ns);
            handed(&mut answers, (0..segments).map(|n| n * 60));
            held(&mut answers, at_ns)
        };
        assert_eq!(told(MS, 6, 400_000), []);
        assert_eq!(told(MS / 4, 6, 400_000), receiver(60_000, 400_000, 6));
        assert_eq!(told(MS / 4, 6, 309_000), [], "too short for that, too");
    }

    #[test]
    fn a_receiver_that_acknowledges_or_waits_for_a_second_segment_was_not() {
        let mut answers = Answers::new(MS);
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
        let mut answers = Answers::new(MS);
        handed(&mut answers, [0, 100, 200].into_iter());
        assert_eq!(held(&mut answers, 150_000), []);
        handed(&mut answers, (1..8).map(|n| n * 1000));
        assert_eq!(held(&mut answers, 9 * MS), receiver(1_000_000, 9 * MS, 8));
    }

    #[test]
    fn hosts_that_never_answer_cost_no_memory_without_bound() {
        let mut answers = Answers::new(MS);
        (0..10 * OWED_MAX as u64).for_each(|at_ns| answers.delivered(at_ns, at_ns % 2 == 0));
        assert_eq!(answers.segments.since_ns.len() + answers.acknowledgements.since_ns.len(), 2 * OWED_MAX);
    }
}
