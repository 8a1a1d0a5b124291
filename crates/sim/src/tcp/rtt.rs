//! Round-trip time and retransmission timeout: RFC 6298 as Linux refines it (`tcp_rtt_estimator`): the variation is
//! the greatest mean deviation of a round trip, decays once per round trip, and is never less than the least RTO.
//!
//! Units: microseconds; `srtt` scaled by 8, `mdev` by 4.

/// Least RTO (TCP_RTO_MIN).
pub const RTO_MIN_US: u64 = 200_000;
/// Greatest RTO (TCP_RTO_MAX).
pub const RTO_MAX_US: u64 = 120_000_000;
/// RTO before the first sample (RFC 6298, 2.1).
pub const RTO_INIT_US: u64 = 1_000_000;
/// How long the least round-trip time is remembered (tcp_min_rtt_wlen).
const MIN_RTT_WINDOW_NS: u64 = 300_000_000_000;

/// The estimator of one connection.
#[derive(Debug, Clone)]
pub struct Rtt {
    srtt_8us: i64,
    mdev_4us: i64,
    mdev_max_4us: i64,
    rttvar_4us: i64,
    /// The variation may fall when this segment number is acknowledged.
    round_end: u64,
    min_us: u32,
    min_at_ns: u64,
    backoff: u32,
    rto_min_us: i64,
}

impl Default for Rtt {
    fn default() -> Rtt {
        Rtt {
            srtt_8us: 0,
            mdev_4us: 0,
            mdev_max_4us: 0,
            rttvar_4us: 0,
            round_end: 0,
            min_us: u32::MAX,
            min_at_ns: 0,
            backoff: 0,
            rto_min_us: RTO_MIN_US as i64,
        }
    }
}

impl Rtt {
    /// Smoothed round-trip time; 0 before the first sample.
    pub fn srtt_us(&self) -> u32 {
        (self.srtt_8us >> 3) as u32
    }

    /// Variation of the round-trip time.
    pub fn rttvar_us(&self) -> u32 {
        (self.rttvar_4us >> 2) as u32
    }

    /// Least round-trip time of late; `u32::MAX` before the first sample.
    pub fn min_us(&self) -> u32 {
        self.min_us
    }

    /// Retransmission timeout, backed off.
    pub fn rto_us(&self) -> u64 {
        let base_us = match self.srtt_8us {
            0 => RTO_INIT_US,
            srtt => ((srtt >> 3) + self.rttvar_4us) as u64,
        };
        (base_us << self.backoff.min(16)).min(RTO_MAX_US)
    }

    /// The timer expired: twice as long next time (RFC 6298, 5.5).
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }

    /// A sample for the smoothed time. `una` and `next` are segment numbers: acknowledged up to, next to be sent.
    pub fn sample(&mut self, rtt_us: u64, una: u64, next: u64) {
        self.backoff = 0;
        let rtt_us = (rtt_us as i64).max(1);
        if self.srtt_8us == 0 {
            self.first(rtt_us, next);
            return;
        }
        self.smooth(rtt_us);
        if self.mdev_4us > self.mdev_max_4us {
            self.mdev_max_4us = self.mdev_4us;
            self.rttvar_4us = self.rttvar_4us.max(self.mdev_max_4us);
        }
        if una > self.round_end {
            if self.mdev_max_4us < self.rttvar_4us {
                self.rttvar_4us -= (self.rttvar_4us - self.mdev_max_4us) >> 2;
            }
            self.round_end = next;
            self.mdev_max_4us = self.rto_min_us;
        }
    }

    fn first(&mut self, rtt_us: i64, next: u64) {
        self.srtt_8us = rtt_us << 3;
        self.mdev_4us = rtt_us << 1;
        self.rttvar_4us = self.mdev_4us.max(self.rto_min_us);
        self.mdev_max_4us = self.rttvar_4us;
        self.round_end = next;
    }

    fn smooth(&mut self, rtt_us: i64) {
        let error = rtt_us - (self.srtt_8us >> 3);
        self.srtt_8us += error;
        if error >= 0 {
            self.mdev_4us += error - (self.mdev_4us >> 2);
            return;
        }
        // A sudden fall must not raise the timeout: it counts an eighth.
        let beyond = -error - (self.mdev_4us >> 2);
        self.mdev_4us += if beyond > 0 { beyond >> 3 } else { beyond };
    }

    /// A sample for the least time.
    pub fn sample_min(&mut self, rtt_ns: u64, now_ns: u64) {
        let rtt_us = u32::try_from(rtt_ns / 1000).unwrap_or(u32::MAX).max(1);
        if rtt_us <= self.min_us || now_ns.saturating_sub(self.min_at_ns) > MIN_RTT_WINDOW_NS {
            self.min_us = rtt_us;
            self.min_at_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_path_ends_at_srtt_plus_200_ms() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.rto_us(), 1_000_000);
        (0..2000).for_each(|n| rtt.sample(50_000, n, n + 1));
        assert_eq!(rtt.srtt_us(), 50_000);
        assert_eq!(rtt.rto_us(), 250_000);
    }

    #[test]
    fn the_timeout_doubles_until_a_sample_comes() {
        let mut rtt = Rtt::default();
        rtt.sample(100_000, 0, 1);
        let before_us = rtt.rto_us();
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.rto_us(), 4 * before_us);
        rtt.sample(100_000, 1, 2);
        assert!(rtt.rto_us() <= before_us);
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.rto_us(), RTO_MAX_US);
    }

    #[test]
    fn a_jump_up_raises_the_timeout_and_a_fall_does_not() {
        let mut rtt = Rtt::default();
        (0..100).for_each(|n| rtt.sample(20_000, n, n + 1));
        let calm_us = rtt.rto_us();
        let mut jumped = rtt.clone();
        jumped.sample(2_000_000, 100, 101);
        assert!(jumped.rto_us() > calm_us + 1_000_000);
        rtt.sample(100, 100, 101);
        assert!(rtt.rto_us() <= calm_us);
    }
}
