//! When datagrams of cross traffic leave: laws of the gaps between them, and their draws, the same for every sender,
//! simulated or real. Pure.

use crate::random::SplitMix64;
use serde::{Deserialize, Serialize};

/// Law by which datagrams leave. All have the same mean rate; they differ in how bursty they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Evenly spaced.
    #[default]
    Constant,
    /// Exponential gaps: a Poisson process.
    Poisson,
    /// Bursts at twice the rate and silences, each exponentially long with a mean of 50 ms (of 16 datagrams at least).
    Onoff,
    /// Gaps by Pareto's law with shape 1.5: they have a mean and no variance.
    Pareto,
}

/// Mean length of a burst, and of a silence.
const BURST_MEAN_NS: f64 = 50e6;
/// Least length of a burst in datagrams: fewer would be no burst.
const BURST_MIN_DATAGRAMS: f64 = 16.0;
/// Rate within a burst over the mean rate. With 2, bursts and silences are equally long.
const BURST_RATE_RATIO: f64 = 2.0;
/// Below 2 the variance is infinite, above 1 there is a mean.
const PARETO_SHAPE: f64 = 1.5;

impl Arrivals {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Arrivals::Constant => "constant",
            Arrivals::Poisson => "poisson",
            Arrivals::Onoff => "onoff",
            Arrivals::Pareto => "pareto",
        }
    }

    /// Whether it needs a seed.
    pub fn is_random(self) -> bool {
        self != Arrivals::Constant
    }
}

/// The gaps of one source, as its seed draws them.
#[derive(Debug, Clone)]
pub struct Drawn {
    gaps: Gaps,
    random: SplitMix64,
}

impl Drawn {
    /// Gaps of `mean_ns` on average, of one stream of a source with a seed.
    pub fn new(law: Arrivals, mean_ns: f64, seed: u64, stream: u32) -> Drawn {
        let random = SplitMix64::new(seed.wrapping_add(u64::from(stream)));
        Drawn { gaps: Gaps::new(law, mean_ns), random }
    }

    /// The next gap in nanoseconds.
    pub fn next_ns(&mut self) -> f64 {
        self.gaps.next_ns(|| self.random.unit())
    }
}

/// A law at work: what is random is passed in.
#[derive(Debug, Clone)]
struct Gaps {
    law: Arrivals,
    mean_ns: f64,
    /// What is left of a burst (on-off).
    burst_ns: f64,
}

impl Gaps {
    fn new(law: Arrivals, mean_ns: f64) -> Gaps {
        Gaps { law, mean_ns, burst_ns: 0.0 }
    }

    /// The next gap in nanoseconds. `unit` draws uniformly from [0, 1).
    fn next_ns(&mut self, mut unit: impl FnMut() -> f64) -> f64 {
        match self.law {
            Arrivals::Constant => self.mean_ns,
            Arrivals::Poisson => exponential(&mut unit) * self.mean_ns,
            Arrivals::Onoff => self.within_bursts_ns(unit),
            Arrivals::Pareto => {
                let least_ns = self.mean_ns * (PARETO_SHAPE - 1.0) / PARETO_SHAPE;
                least_ns * (1.0 - unit()).powf(-1.0 / PARETO_SHAPE)
            }
        }
    }

    /// Datagrams are evenly spaced in the time within bursts; silences come between. A datagram that a burst has no
    /// time left for takes the rest from the next, so the mean rate is kept however short bursts are.
    fn within_bursts_ns(&mut self, mut unit: impl FnMut() -> f64) -> f64 {
        let spacing_ns = self.mean_ns / BURST_RATE_RATIO;
        let burst_mean_ns = BURST_MEAN_NS.max(BURST_MIN_DATAGRAMS * spacing_ns);
        let mut silence_ns = 0.0;
        while self.burst_ns < spacing_ns {
            silence_ns += exponential(&mut unit) * burst_mean_ns * (BURST_RATE_RATIO - 1.0);
            self.burst_ns += exponential(&mut unit) * burst_mean_ns;
        }
        self.burst_ns -= spacing_ns;
        spacing_ns + silence_ns
    }
}

/// Exponential variate of mean 1, by inversion: −ln(1 − u), where 1 − u is never 0.
fn exponential(unit: &mut impl FnMut() -> f64) -> f64 {
    -(1.0 - unit()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uniform(seed: u64) -> impl FnMut() -> f64 {
        let mut random = SplitMix64::new(seed);
        move || random.unit()
    }

    /// Times of departure of so many datagrams, one per millisecond on average.
    fn departures_ms(law: Arrivals, seed: u64, count: usize) -> Vec<f64> {
        let mut gaps = Gaps::new(law, 1e6);
        let mut unit = uniform(seed);
        let mut now_ms = 0.0;
        (0..count)
            .map(|_| {
                now_ms += gaps.next_ns(&mut unit) / 1e6;
                now_ms
            })
            .collect()
    }

    /// Index of dispersion: variance over mean of the counts in spans of 100 ms. A Poisson process has 1.
    fn dispersion(law: Arrivals) -> f64 {
        let times_ms = departures_ms(law, 7, 200_000);
        let spans = (times_ms[times_ms.len() - 1] / 100.0) as usize;
        let mut counts = vec![0.0; spans + 1];
        times_ms.iter().for_each(|time_ms| counts[(time_ms / 100.0) as usize] += 1.0);
        counts.truncate(spans);
        let mean = counts.iter().sum::<f64>() / spans as f64;
        counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / spans as f64 / mean
    }

    #[test]
    fn every_law_keeps_the_mean_rate() {
        for (law, within) in [
            (Arrivals::Constant, 1e-9),
            (Arrivals::Poisson, 0.01),
            (Arrivals::Onoff, 0.02),
            (Arrivals::Pareto, 0.05),
        ] {
            let times_ms = departures_ms(law, 11, 500_000);
            let mean_ms = times_ms[times_ms.len() - 1] / 500_000.0;
            assert!((mean_ms - 1.0).abs() < within, "{law:?}: {mean_ms} ms of 1");
        }
    }

    #[test]
    fn bursty_laws_are_burstier_than_poisson_and_that_than_even_spacing() {
        let poisson = dispersion(Arrivals::Poisson);
        assert!((0.9..1.1).contains(&poisson), "{poisson}");
        assert!(dispersion(Arrivals::Constant) < 0.01);
        for law in [Arrivals::Onoff, Arrivals::Pareto] {
            assert!(dispersion(law) > 5.0, "{law:?}: {}", dispersion(law));
        }
    }

    #[test]
    fn a_burst_is_at_twice_the_rate_and_a_silence_is_none() {
        let times_ms = departures_ms(Arrivals::Onoff, 3, 10_000);
        let gaps: Vec<f64> = times_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap_ms| *gap_ms >= 0.5 - 1e-9));
        let within = gaps.iter().filter(|gap_ms| **gap_ms < 0.5 + 1e-9).count();
        assert!(within > 9_800, "{within} of {} gaps lie within a burst", gaps.len());
    }

    #[test]
    fn words_are_what_files_hold() {
        for law in [Arrivals::Constant, Arrivals::Poisson, Arrivals::Onoff, Arrivals::Pareto] {
            assert_eq!(serde_json::to_value(law).unwrap(), law.word());
        }
    }

    proptest! {
        #[test]
        fn no_gap_goes_back_and_each_ends(
            seed in any::<u64>(), mean_ns in 1f64..1e13,
            law in prop::sample::select(vec![Arrivals::Poisson, Arrivals::Onoff, Arrivals::Pareto]),
        ) {
            let mut gaps = Gaps::new(law, mean_ns);
            let mut unit = uniform(seed);
            for _ in 0..100 {
                let gap_ns = gaps.next_ns(&mut unit);
                prop_assert!(gap_ns >= 0.0 && gap_ns.is_finite(), "{gap_ns}");
            }
        }
    }
}
