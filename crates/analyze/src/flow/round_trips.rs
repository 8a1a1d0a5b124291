//! Round trips from the place of the capture: to the receiver and back by sequence numbers and by timestamps, and to
//! the sender and back by the timestamps it echoes.

use super::{histogram::Histogram, queue::Queue, recovery::Smoothed};
use crate::segment::{Segment, option};

/// TSvals whose echo is awaited: more are forgotten.
const MOST_ECHOES: usize = 1024;
/// Ticks of an end's timestamps from which their rate is known.
const LEAST_TICKS: i64 = 10;

/// Round trips of one direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundTrips {
    /// By sequence numbers: here to the receiver and back.
    pub by_sequence: Option<Box<Histogram>>,
    /// By timestamps.
    pub by_timestamp: Option<Box<Histogram>>,
    /// Least of the former, nanoseconds.
    pub least_ns: Option<i64>,
    /// Greatest of them.
    pub most_ns: i64,
    /// Sum of them.
    pub sum_ns: i64,
    /// The last of them.
    pub last_ns: i64,
    /// Samples Karn's rule refused.
    pub karn_refused: u64,
    /// Least time from a packet that passed towards this end to the packet that echoes its timestamp.
    pub least_answer_ns: Option<i64>,
    /// As the sender smooths them.
    pub smoothed: Smoothed,
    /// Time of the last acknowledgement that gave a sample, and of its data.
    pub last_acked: Option<(i64, i64)>,
    echoes: Queue<(u32, i64)>,
    newest_echo: u32,
    /// The first TSval, and when; and when the newest was, or 0 while there is none.
    first_tick: (u32, i64),
    newest_ns: i64,
}

impl RoundTrips {
    /// A sample by sequence numbers.
    #[inline]
    pub fn sample(&mut self, rtt_ns: i64) {
        self.smoothed.sample(rtt_ns);
        self.last_ns = rtt_ns;
        self.most_ns = self.most_ns.max(rtt_ns);
        self.sum_ns = self.sum_ns.saturating_add(rtt_ns);
        self.by_sequence.get_or_insert_default().record(rtt_ns as u64);
        self.least_ns = Some(self.least_ns.map_or(rtt_ns, |least| least.min(rtt_ns)));
    }

    /// This end answered a packet after so long.
    #[inline]
    pub fn on_answer(&mut self, after_ns: i64) {
        self.least_answer_ns = Some(self.least_answer_ns.map_or(after_ns, |least| least.min(after_ns)));
    }

    /// The first packet with a new TSval is the one whose echo is timed.
    #[inline]
    pub fn note_timestamp(&mut self, segment: &Segment) {
        if !segment.carries(option::TIMESTAMPS) || segment.ts_value == self.newest_echo && self.newest_ns != 0
        {
            return;
        }
        let is_newer = segment.ts_value.wrapping_sub(self.newest_echo) as i32 > 0;
        if is_newer || self.echoes.is_empty() {
            self.await_echo(segment);
        }
    }

    #[inline]
    fn await_echo(&mut self, segment: &Segment) {
        if self.echoes.len() >= MOST_ECHOES {
            self.echoes.take(1);
        }
        self.newest_echo = segment.ts_value;
        if self.newest_ns == 0 {
            self.first_tick = (segment.ts_value, segment.time_ns);
        }
        self.newest_ns = segment.time_ns;
        self.echoes.push((segment.ts_value, segment.time_ns));
    }

    /// Whether this end has sent a newer TSval than that of this segment before.
    pub fn is_past(&self, segment: &Segment) -> bool {
        let is_older = (segment.ts_value.wrapping_sub(self.newest_echo) as i32) < 0;
        segment.carries(option::TIMESTAMPS) && self.newest_ns != 0 && is_older
    }

    /// How much less time has passed, by this end's own timestamps, than the capture's clock says; nanoseconds. Their
    /// rate is its own (RFC 7323, 5.4: a tick takes from 1 ms to 1 s), and is taken from those before.
    pub fn less_by_ticks_ns(&self, segment: &Segment) -> Option<i64> {
        let (first, first_ns) = self.first_tick;
        let ticks = i64::from(self.newest_echo.wrapping_sub(first) as i32);
        let more = i64::from(segment.ts_value.wrapping_sub(self.newest_echo) as i32);
        let span_ns = self.newest_ns.saturating_sub(first_ns);
        if !segment.carries(option::TIMESTAMPS) || ticks < LEAST_TICKS || span_ns <= 0 || more < 0 {
            return None;
        }
        let passed_ns = i128::from(span_ns) * i128::from(more) / i128::from(ticks);
        let told_ns = segment.time_ns.saturating_sub(self.newest_ns);
        Some(told_ns.saturating_sub(i64::try_from(passed_ns).unwrap_or(i64::MAX)))
    }

    /// No time between what was so far and what comes can be told.
    pub fn forget_times(&mut self) {
        self.echoes.clear();
        (self.newest_ns, self.last_acked) = (0, None);
    }

    /// Time since the packet whose TSval comes back now for the first time.
    #[inline]
    pub fn echoed(&mut self, echo: u32, now_ns: i64) -> Option<i64> {
        while let Some((value, time_ns)) = self.echoes.front() {
            let older = value.wrapping_sub(echo) as i32;
            if older > 0 {
                return None;
            }
            self.echoes.take(1);
            if older == 0 {
                return (now_ns >= time_ns).then_some(now_ns - time_ns);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_packets_with_one_timestamp_only_the_first_is_timed() {
        let mut trips = RoundTrips::default();
        let packet = |time_ns, ts_value| Segment {
            time_ns,
            ts_value,
            options: option::TIMESTAMPS,
            ..Segment::default()
        };
        [packet(1_000, 7), packet(2_000, 7)].iter().for_each(|one| trips.note_timestamp(one));
        assert_eq!(trips.echoed(7, 101_000), Some(100_000));
        // Sent behind that answer; the next answer is to the second packet.
        trips.note_timestamp(&packet(101_500, 7));
        assert_eq!(trips.echoed(7, 102_000), None, "it is not the answer to the third");
        trips.note_timestamp(&packet(1_100_000, 8));
        assert_eq!(trips.echoed(8, 1_250_000), Some(150_000));
        trips.forget_times();
        trips.note_timestamp(&packet(2_000_000, 8));
        assert_eq!(trips.echoed(8, 2_090_000), Some(90_000), "what came before is forgotten");
    }
}
