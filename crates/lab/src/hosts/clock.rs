//! How far another machine's monotonic clock is ahead of one's own: asked over and over, and the quickest answer
//! counts, as in NTP (RFC 5905, section 10): what delays an answer is queues, and the quickest met the fewest. Pure.

use longfat_schema::run::ClockEstimate;

/// One question and its answer.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// When it was asked, by our clock.
    pub asked_us: i64,
    /// When it was answered, by the other.
    pub answered_us: i64,
    /// When the answer was here, by ours.
    pub heard_us: i64,
}

impl Exchange {
    /// How long the answer took.
    pub fn round_trip_us(&self) -> i64 {
        self.heard_us - self.asked_us
    }

    /// How far the other clock is ahead, as if it was answered in the middle: wrong by half the round trip at most,
    /// whatever the two ways are like.
    pub fn offset_us(&self) -> i64 {
        self.answered_us - self.asked_us - self.round_trip_us() / 2
    }
}

/// Exchange with the least round trip.
pub fn quickest(exchanges: impl IntoIterator<Item = Exchange>) -> Option<Exchange> {
    exchanges.into_iter().min_by_key(Exchange::round_trip_us)
}

/// From one exchange before the run and one after it. Clocks drift: half of what they moved is in the error.
pub fn estimate(before: Exchange, after: Exchange) -> ClockEstimate {
    let drift_us = after.offset_us() - before.offset_us();
    let round_trip_us = before.round_trip_us().max(after.round_trip_us());
    ClockEstimate {
        offset_us: before.offset_us() + drift_us / 2,
        error_us: (drift_us.unsigned_abs() + round_trip_us.unsigned_abs()).div_ceil(2) + 1,
        drift_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_quickest_answer_counts() {
        let slow = Exchange { asked_us: 0, answered_us: 900, heard_us: 1000 };
        let quick = Exchange { asked_us: 2000, answered_us: 2050, heard_us: 2100 };
        assert_eq!(quickest([slow, quick]).unwrap().offset_us(), 0);
        assert!(quickest([]).is_none());
    }

    proptest! {
        /// Each way takes as long as it likes, and the clock drifts evenly by up to 500 us while the run lasts.
        #[test]
        fn the_truth_is_within_the_stated_error(
            offset_us in -1_000_000_000_000i64..1_000_000_000_000,
            ways in proptest::array::uniform4(0i64..1_000_000), drift_us in -500i64..500,
        ) {
            let exchange = |at: i64, there: i64, back: i64, offset: i64| Exchange {
                asked_us: at, answered_us: at + there + offset, heard_us: at + there + back,
            };
            let before = exchange(1_000, ways[0], ways[1], offset_us);
            let after = exchange(60_000_000, ways[2], ways[3], offset_us + drift_us);
            let found = estimate(before, after);
            for truth in [offset_us, offset_us + drift_us] {
                prop_assert!((found.offset_us - truth).unsigned_abs() <= found.error_us, "{found:?} of {truth}");
            }
        }
    }
}
