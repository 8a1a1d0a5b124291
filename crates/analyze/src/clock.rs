//! The clock of a capture: where it leaps, and times as if it had not.
//!
//! A clock that is set back, or forward, in the middle of a capture says nothing of how long the traffic took. Times
//! behind such a step are moved so that they go on: nothing is priced by it. A time that is back tells by itself. One
//! that is forward may be silence, and is a step only where the flows show that less time has passed for them
//! ([`Passed`]). Captures of several interfaces may have several clocks: what fits one that was known before is of that
//! one.

use crate::{capture::LATEST_NS, segment::FlowKey, words::duration};
use serde::Serialize;
use std::fmt;

/// A step of the clock: packets less far back are out of order, packets less far forward end a silence.
pub const STEP_NS: i64 = 1_000_000_000;
/// Clocks that are told apart.
const MOST_CLOCKS: usize = 8;
/// Steps that times are moved for, and that are kept: with more, the times are no clock's.
const MOST_STEPS: usize = 64;
/// Packets behind a silence that may show that it was a step. All of them are still held back to be sorted.
const WITNESSES: u32 = 64;

/// Nanoseconds as seconds.
pub(crate) fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// A step of the capture's clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ClockStep {
    /// Number of the first packet with the other time, from 0.
    pub packet: u64,
    /// How far the clock leapt: forward, or back (negative).
    pub by_s: f64,
}

impl fmt::Display for ClockStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.by_s < 0.0 { "back" } else { "forward" };
        write!(out, "{way} by {} at packet {}", duration(self.by_s.abs()), self.packet + 1)
    }
}

/// How much time has passed for a flow behind a silence of the capture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Passed {
    /// The end's own timestamps (RFC 7323) say this much less, nanoseconds, than the capture's clock.
    LessForEnd(FlowKey, u8, i64),
    /// A part of what was outstanding was acknowledged, whose rest would have been sent again long before, had so much
    /// more, nanoseconds, passed.
    Less(i64),
    /// All that was outstanding in this flow was, by a packet that had nothing else to say: one flow alone may be
    /// silent behind an acknowledgement that the capture lacks.
    LessForFlow(FlowKey, i64),
    /// As much as the clock says.
    All,
}

/// Action before a packet is taken, whose time is that of [`Clock::time`] then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leap {
    /// Nothing is to be done.
    None,
    /// What came before it is handed on, and not sorted with what follows.
    Behind,
    /// What came before it is handed on, unsorted, and the time between cannot be told.
    Stepped,
    /// Packets held back become earlier by this; the time between them and those handed on cannot be told.
    Earlier(i64),
}

/// A silence that may be a step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Silence {
    before_ns: i64,
    after_ns: i64,
    packet: u64,
    seen: u32,
    /// The first end, and the first flow, by which less time has passed.
    end: Option<(FlowKey, u8, i64)>,
    flow: Option<(FlowKey, i64)>,
}

impl Silence {
    /// By how much less time has passed, once there are enough witnesses. A host that slept has timestamps that did not
    /// go on: both ends do not sleep.
    fn less_ns(&mut self, passed: Passed) -> Option<i64> {
        match passed {
            Passed::All => None,
            Passed::Less(by_ns) => Some(by_ns),
            Passed::LessForEnd(key, end, by_ns) => {
                let (first, first_end, first_ns) = *self.end.get_or_insert((key, end, by_ns));
                (key == first && end != first_end).then_some(by_ns.min(first_ns))
            }
            Passed::LessForFlow(key, by_ns) => {
                let (first, first_ns) = *self.flow.get_or_insert((key, by_ns));
                (key != first).then_some(by_ns.min(first_ns))
            }
        }
    }
}

/// The clock of a capture.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// What is added to the file's times now.
    offset_ns: i64,
    /// What was before, the latest last.
    others: Vec<i64>,
    /// Greatest time so far, and that before the last step.
    newest_ns: Option<i64>,
    silence: Option<Silence>,
    /// The first steps.
    pub steps: Vec<ClockStep>,
    /// How many there were.
    pub step_count: u64,
    /// Times that an earlier clock was gone back to: there are several.
    pub returns: u64,
}

impl Clock {
    /// The time of a packet.
    #[inline]
    pub fn time(&self, file_ns: i64) -> i64 {
        // Most clocks are never set.
        if self.offset_ns == 0 { file_ns } else { file_ns.saturating_add(self.offset_ns).clamp(0, LATEST_NS) }
    }

    /// What is added to the file's times now; tells clocks apart.
    pub fn offset_ns(&self) -> i64 {
        self.offset_ns
    }

    /// Goes on with a capture by whose clock this is added to the times.
    pub fn resume(&mut self, offset_ns: i64) {
        self.others.retain(|other| *other != self.offset_ns && *other != offset_ns);
        self.set(offset_ns);
    }

    /// A time that is later than the one before by less is no leap.
    pub fn patience_ns(&self) -> u64 {
        if self.silence.is_some() { 0 } else { STEP_NS as u64 }
    }

    /// Time behind a silence that may be a step, so that flows are to be asked.
    pub fn in_doubt_from_ns(&self) -> Option<i64> {
        self.silence.map(|silence| silence.after_ns)
    }

    /// The first packet of a file, of whose traffic others may have been read. Their times may overlap.
    pub fn begin_file(&mut self, file_ns: i64, newest_ns: i64) -> Leap {
        (self.silence, self.newest_ns) = (None, None);
        if self.time(file_ns) < newest_ns.saturating_sub(STEP_NS) {
            self.offset_ns = 0;
            self.others.clear();
        }
        Leap::Behind
    }

    /// The time of a packet that is earlier than `last_ns`, that of the one before, or much later.
    pub fn on_leap(&mut self, packet: u64, file_ns: i64, last_ns: i64) -> Leap {
        let newest_ns = self.newest_ns.map_or(last_ns, |newest| newest.max(last_ns));
        self.newest_ns = Some(newest_ns);
        let time_ns = self.time(file_ns);
        if time_ns < newest_ns.saturating_sub(STEP_NS) {
            return self.on_back(packet, file_ns, newest_ns);
        }
        if self.silence.is_none() && time_ns >= last_ns.saturating_add(STEP_NS) {
            if self.returns_to_another(file_ns, newest_ns) {
                return Leap::Behind;
            }
            let (before_ns, after_ns) = (newest_ns, time_ns);
            self.silence = Some(Silence { before_ns, after_ns, packet, seen: 0, end: None, flow: None });
            self.newest_ns = Some(time_ns);
            return Leap::Behind;
        }
        Leap::None
    }

    fn on_back(&mut self, packet: u64, file_ns: i64, newest_ns: i64) -> Leap {
        // The clock comes back before anything shows that it had gone: the silence was its.
        if let Some(silence) = self.silence
            && self.time(file_ns).abs_diff(silence.before_ns) <= STEP_NS as u64
        {
            let by_ns = silence.after_ns.saturating_sub(silence.before_ns);
            let leap = self.step_forward(&silence, by_ns, newest_ns);
            self.returns_to_another(file_ns, silence.before_ns);
            return leap;
        }
        self.silence = None;
        if self.returns_to_another(file_ns, newest_ns) {
            return Leap::Behind;
        }
        let by_ns = newest_ns.saturating_sub(self.time(file_ns));
        if !self.tell(packet, -by_ns) {
            self.newest_ns = Some(self.time(file_ns));
            return Leap::Behind;
        }
        self.set(self.offset_ns.saturating_add(by_ns));
        Leap::Stepped
    }

    /// What a flow shows of the time that has passed, at a packet behind a silence, whose time was `time_ns`.
    pub fn on_witness(&mut self, passed: Option<Passed>, time_ns: i64) -> Leap {
        let Some(silence) = &mut self.silence else { return Leap::None };
        silence.seen += 1;
        let is_enough = silence.seen >= WITNESSES || time_ns > silence.after_ns.saturating_add(STEP_NS);
        let less_ns = passed.and_then(|passed| silence.less_ns(passed));
        let silence = *silence;
        if less_ns.is_some() || is_enough || passed == Some(Passed::All) {
            self.silence = None;
        }
        let Some(less_ns) = less_ns else { return Leap::None };
        let by_ns = less_ns.min(silence.after_ns.saturating_sub(silence.before_ns));
        let newest_ns = self.newest_ns.map_or(time_ns, |newest| newest.max(time_ns));
        self.step_forward(&silence, by_ns, newest_ns)
    }

    /// A silence was a step of the clock by so much.
    fn step_forward(&mut self, silence: &Silence, by_ns: i64, newest_ns: i64) -> Leap {
        self.silence = None;
        if by_ns < STEP_NS || !self.tell(silence.packet, by_ns) {
            return Leap::Behind;
        }
        self.set(self.offset_ns.saturating_sub(by_ns));
        self.newest_ns = Some(newest_ns.saturating_sub(by_ns).max(silence.before_ns));
        Leap::Earlier(by_ns)
    }

    /// Notes a step, and says whether times are still moved for one.
    fn tell(&mut self, packet: u64, by_ns: i64) -> bool {
        self.step_count += 1;
        let is_kept = self.steps.len() < MOST_STEPS;
        if is_kept {
            self.steps.push(ClockStep { packet, by_s: by_ns as f64 / 1e9 });
        }
        is_kept
    }

    fn set(&mut self, offset_ns: i64) {
        if self.others.len() == MOST_CLOCKS {
            self.others.remove(0);
        }
        self.others.push(self.offset_ns);
        self.offset_ns = offset_ns;
    }

    /// Goes on by another clock that was known before, if the time goes on from here by that.
    fn returns_to_another(&mut self, file_ns: i64, newest_ns: i64) -> bool {
        let is_near = |offset: &i64| file_ns.saturating_add(*offset).abs_diff(newest_ns) <= STEP_NS as u64;
        let Some(at) = self.others.iter().rposition(is_near) else { return false };
        let offset_ns = self.others.remove(at);
        self.set(offset_ns);
        self.returns += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR_NS: i64 = 3_600 * STEP_NS;

    /// Times as the clock has them, of packets without any flow.
    fn told(clock: &mut Clock, files: &[i64]) -> Vec<i64> {
        let mut last_ns = None;
        let time = |(packet, file_ns): (usize, &i64)| {
            if let Some(last_ns) = last_ns {
                clock.on_leap(packet as u64, *file_ns, last_ns);
            }
            *last_ns.insert(clock.time(*file_ns))
        };
        files.iter().enumerate().map(time).collect()
    }

    #[test]
    fn behind_a_clock_that_is_set_back_times_go_on() {
        let mut clock = Clock::default();
        let times = told(&mut clock, &[HOUR_NS, HOUR_NS + 5, 7, 12]);
        assert_eq!(times, [HOUR_NS, HOUR_NS + 5, HOUR_NS + 5, HOUR_NS + 10]);
        assert_eq!(clock.steps, [ClockStep { packet: 2, by_s: -3600.0 + 0.000_000_002 }]);
    }

    #[test]
    fn two_clocks_side_by_side_are_one_step_and_returns() {
        let mut clock = Clock::default();
        let files: Vec<i64> = (0..100).map(|n| n * 1000 + if n % 2 == 0 { HOUR_NS } else { 0 }).collect();
        let times = told(&mut clock, &files);
        assert!(times.iter().all(|time| (HOUR_NS..HOUR_NS + STEP_NS).contains(time)), "{times:?}");
        assert_eq!((clock.step_count, clock.returns), (1, 98));
    }

    #[test]
    fn a_stray_time_is_a_step_and_a_return_and_moves_nothing_else() {
        for stray in [0, 9 * HOUR_NS] {
            let mut clock = Clock::default();
            let times = told(&mut clock, &[HOUR_NS, HOUR_NS + 1000, stray, HOUR_NS + 2000, HOUR_NS + 3000]);
            assert_eq!(times[3..], [HOUR_NS + 2000, HOUR_NS + 3000], "{stray}");
            assert_eq!((clock.step_count, clock.returns), (1, 1), "{stray}");
        }
    }

    #[test]
    fn silence_is_none_and_is_a_step_where_both_ends_say_so() {
        let key = FlowKey::of((1, 1), (2, 2)).0;
        let less = |end| Some(Passed::LessForEnd(key, end, HOUR_NS - 10));
        let behind_silence = |witnesses: &[Option<Passed>]| {
            let mut clock = Clock::default();
            clock.on_leap(1, HOUR_NS, 0);
            let told = witnesses
                .iter()
                .map(|passed| clock.on_witness(*passed, HOUR_NS))
                .find(|leap| *leap != Leap::None);
            (told, clock.step_count)
        };
        assert_eq!(behind_silence(&[less(0), None, less(0)]), (None, 0), "a host that slept");
        assert_eq!(behind_silence(&[less(0), Some(Passed::All), less(1)]), (None, 0));
        let step = Some(Leap::Earlier(HOUR_NS - 10));
        assert_eq!(behind_silence(&[less(0), None, less(1)]), (step, 1));
        assert_eq!(behind_silence(&[Some(Passed::Less(HOUR_NS - 10))]), (step, 1));
        let flow = |port| Some(Passed::LessForFlow(FlowKey::of((1, port), (2, 2)).0, HOUR_NS - 10));
        assert_eq!(behind_silence(&[flow(1), None, flow(1)]), (None, 0), "one acknowledgement is missing");
        assert_eq!(behind_silence(&[flow(1), less(0), flow(3)]), (step, 1));
        let far = [&[None; WITNESSES as usize][..], &[Some(Passed::Less(HOUR_NS))]].concat();
        assert_eq!(behind_silence(&far), (None, 0), "too late");
    }

    proptest! {
        #![proptest_config(crate::cases::cases(256))]

        #[test]
        fn no_times_of_a_file_overflow_or_go_back_by_a_step_while_they_are_moved(
            files in proptest::collection::vec(prop_oneof![any::<i64>(), 0..10 * HOUR_NS, 0..STEP_NS], 1..80),
        ) {
            let mut clock = Clock::default();
            let times = told(&mut clock, &files);
            prop_assert!(clock.steps.len() <= MOST_STEPS && clock.others.len() <= MOST_CLOCKS);
            if clock.step_count < MOST_STEPS as u64 && files.iter().all(|file| (0..10 * HOUR_NS).contains(file)) {
                let mut newest = i64::MIN;
                for time in times {
                    // What is in doubt may come back.
                    prop_assert!(time >= newest.saturating_sub(10 * HOUR_NS + STEP_NS), "{} behind {}", time, newest);
                    newest = newest.max(time);
                }
            }
        }
    }
}
