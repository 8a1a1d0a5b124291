//! When bytes and datagrams are due. Time is passed in: nanoseconds since the stream's start.

use crate::plan::TransferPlan;
use longfat_schema::arrivals::{Arrivals, Drawn};

/// Nanoseconds that `bytes` take at `rate_bps`, rounded down.
fn span_ns(bytes: u64, rate_bps: u64) -> u64 {
    let bits_ns = u128::from(bytes) * 8 * 1_000_000_000;
    u64::try_from(bits_ns / u128::from(rate_bps.max(1))).unwrap_or(u64::MAX)
}

/// Holds a byte stream to a mean rate: byte p is due when p bytes take so long at that rate. A stream that fell
/// behind (a full window) catches up as fast as it can.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    rate_bps: Option<u64>,
}

impl RateLimit {
    /// At most `rate_bps` on average, or unlimited.
    pub fn new(rate_bps: Option<u64>) -> RateLimit {
        RateLimit { rate_bps }
    }

    /// How long to wait at `elapsed_ns` before byte `position` may be sent; 0 means now.
    pub fn wait_ns(self, position: u64, elapsed_ns: u64) -> u64 {
        self.rate_bps.map_or(0, |rate_bps| span_ns(position, rate_bps).saturating_sub(elapsed_ns))
    }
}

/// Departure times of datagrams.
#[derive(Debug, Clone)]
pub struct Departures {
    datagram_bytes: u64,
    rate_bps: u64,
    law: Arrivals,
    gaps: Drawn,
    next_ns: u64,
    count: u64,
}

impl Departures {
    /// The plan's datagrams of one stream at a mean rate of `rate_bps`; the first leaves at 0 when evenly spaced.
    pub fn new(plan: &TransferPlan, rate_bps: u64, stream: u32) -> Departures {
        let datagram_bytes = u64::from(plan.datagram_bytes);
        let mean_ns = (datagram_bytes * 8) as f64 * 1e9 / rate_bps.max(1) as f64;
        let mut departures = Departures {
            datagram_bytes,
            rate_bps,
            law: plan.arrivals,
            gaps: Drawn::new(plan.arrivals, mean_ns, plan.arrivals_seed, stream),
            next_ns: 0,
            count: 0,
        };
        if plan.arrivals.is_random() {
            departures.next_ns = departures.gap_ns();
        }
        departures
    }

    /// When the next datagram is due.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Mean time between datagrams.
    pub fn mean_gap_ns(&self) -> u64 {
        span_ns(self.datagram_bytes, self.rate_bps)
    }

    /// Goes on to the following datagram.
    pub fn advance(&mut self) {
        self.count += 1;
        self.next_ns = match self.law {
            // From the count, not by adding gaps: rounding must not change the rate.
            Arrivals::Constant => span_ns(self.count.saturating_mul(self.datagram_bytes), self.rate_bps),
            _ => self.next_ns.saturating_add(self.gap_ns()),
        };
    }

    fn gap_ns(&mut self) -> u64 {
        self.gaps.next_ns() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn times(arrivals: Arrivals, arrivals_seed: u64, stream: u32, count: usize) -> Vec<u64> {
        let plan = TransferPlan { datagram_bytes: 1250, arrivals, arrivals_seed, ..TransferPlan::default() };
        let mut departures = Departures::new(&plan, 10_000_000, stream);
        (0..count)
            .map(|_| {
                let time = departures.next_ns();
                departures.advance();
                time
            })
            .collect()
    }

    #[test]
    fn even_departures_do_not_drift() {
        let mut departures = Departures::new(&TransferPlan::default(), 7_000_003, 0);
        (0..1_000_000).for_each(|_| departures.advance());
        let exact = 1e6 * 1472.0 * 8.0 / 7_000_003.0 * 1e9;
        assert!((departures.next_ns() as f64 - exact).abs() < 1.0);
    }

    #[test]
    fn poisson_departures_have_the_mean_and_spread_of_their_law() {
        let times = times(Arrivals::Poisson, 7, 0, 100_000);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "mean gap {mean} ns of 1 ms");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "an exponential law's deviation is its mean");
    }

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        for law in [Arrivals::Poisson, Arrivals::Onoff, Arrivals::Pareto] {
            let seeded = |seed, stream| times(law, seed, stream, 50);
            assert_eq!(seeded(1, 0), seeded(1, 0));
            assert_ne!(seeded(1, 0), seeded(1, 1));
            assert_ne!(seeded(1, 0), seeded(9, 0));
        }
    }

    proptest! {
        #[test]
        fn a_limited_stream_never_runs_ahead_of_its_rate(
            rate_bps in 1000u64..1_000_000_000_000, position in 0u64..1 << 45, elapsed_ns in 0u64..1 << 45,
        ) {
            let wait = RateLimit::new(Some(rate_bps)).wait_ns(position, elapsed_ns);
            let due = u128::from(position) * 8_000_000_000 / u128::from(rate_bps);
            prop_assert!(u128::from(elapsed_ns) + u128::from(wait) >= due.min(u128::from(u64::MAX)));
            prop_assert!(wait == 0 || u128::from(elapsed_ns) + u128::from(wait) == due.min(u128::from(u64::MAX)));
            prop_assert_eq!(RateLimit::new(None).wait_ns(position, elapsed_ns), 0);
        }
    }
}
