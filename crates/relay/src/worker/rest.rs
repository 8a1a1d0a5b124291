//! When a worker rests, so that bulk data gathers and moves in fewer, larger pieces. Time is passed in.

use std::time::{Duration, Instant};

/// Less than this since the last rest is no bulk transfer: nobody rests.
const BULK_BYTES: u64 = 64 * 1024;
/// The rate is that of at most this long: a change of load is noticed within it, and 50 Mbit/s is bulk.
const MEMORY: Duration = Duration::from_millis(10);

/// Decides after each round of turns.
#[derive(Debug)]
pub(super) struct Rest {
    length: Duration,
    /// What may arrive during a rest without bringing a receive window near its end.
    limit_bytes: u64,
    since: Instant,
    moved_bytes: u64,
}

impl Rest {
    /// Rests of `length`, with receive buffers of at least `buffer_bytes`, of which half is window.
    pub fn new(length: Duration, buffer_bytes: u64, now: Instant) -> Rest {
        Rest { length, limit_bytes: buffer_bytes / 8, since: now, moved_bytes: 0 }
    }

    /// How long to rest after a round that moved so many bytes. `idle`: nothing is left to do, and no outbound
    /// socket waits to be filled.
    pub fn after(&mut self, moved_bytes: u64, idle: bool, now: Instant) -> Option<Duration> {
        self.moved_bytes += moved_bytes;
        let elapsed = now.duration_since(self.since);
        let rests = idle && self.moved_bytes >= BULK_BYTES && !self.length.is_zero() && self.is_slow(elapsed);
        if rests || elapsed > MEMORY {
            self.since = now;
            self.moved_bytes = 0;
        }
        rests.then_some(self.length)
    }

    /// Whether what arrives during a rest, at the present rate, stays within the limit.
    fn is_slow(&self, elapsed: Duration) -> bool {
        let expected = u128::from(self.moved_bytes) * self.length.as_nanos() / elapsed.as_nanos().max(1);
        expected <= u128::from(self.limit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_micros(500);

    /// Rests taken in 100 ms at a rate, with a round every 100 us.
    fn rests(rate_bps: u64) -> usize {
        let start = Instant::now();
        let mut rest = Rest::new(LENGTH, 2 << 20, start);
        let (mut now, mut taken, mut due) = (start, 0, 0);
        while now < start + Duration::from_millis(100) {
            let before = now;
            now += Duration::from_micros(100);
            due += rate_bps / 8 * (now - before).as_micros() as u64 / 1_000_000;
            if let Some(length) = rest.after(due, true, now) {
                taken += 1;
                now += length;
                due = rate_bps / 8 * length.as_micros() as u64 / 1_000_000;
            } else {
                due = 0;
            }
        }
        taken
    }

    #[test]
    fn bulk_data_at_moderate_rates_rests_and_fast_or_thin_traffic_does_not() {
        assert!(rests(2_000_000_000) > 100);
        assert_eq!(rests(20_000_000), 0);
        // At 40 Gbit/s the window of 1 MiB lasts 200 us.
        assert!(rests(40_000_000_000) <= 1, "{}", rests(40_000_000_000));
    }

    #[test]
    fn nobody_rests_while_there_is_work_or_when_told_not_to() {
        let start = Instant::now();
        let later = start + LENGTH;
        assert_eq!(Rest::new(LENGTH, 2 << 20, start).after(100_000, false, later), None);
        assert_eq!(Rest::new(Duration::ZERO, 2 << 20, start).after(100_000, true, later), None);
        assert_eq!(Rest::new(LENGTH, 2 << 20, start).after(100_000, true, later), Some(LENGTH));
    }
}
