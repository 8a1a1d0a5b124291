//! Seeded randomness: streams of one seed that do not depend on one another.

use longfat_schema::random::SplitMix64;

/// A stream of random numbers that a seed determines.
#[derive(Debug, Clone)]
pub struct Random {
    numbers: SplitMix64,
}

impl Random {
    /// A stream for `seed`; `stream` tells apart the streams of one seed.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random =
            Random { numbers: SplitMix64::new(seed ^ stream.wrapping_mul(0xd605_1b6f_9d3c_2e91)) };
        random.next_u64();
        random
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.numbers.next_u64()
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.numbers.unit()
    }

    /// True with the given probability. Certainties draw nothing, so that an unused feature changes no stream.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.unit() < probability)
    }

    /// Uniform in 0..=`limit`.
    pub fn up_to(&mut self, limit: u64) -> u64 {
        if limit == 0 {
            return 0;
        }
        let span = u128::from(limit) + 1;
        ((u128::from(self.next_u64()) * span) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_determines_the_stream_and_streams_differ() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next_u64(), random.next_u64()]
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }

    #[test]
    fn draws_stay_in_their_range_and_fill_it() {
        let mut random = Random::new(7, 0);
        let draws: Vec<u64> = (0..1000).map(|_| random.up_to(3)).collect();
        assert_eq!((draws.iter().min(), draws.iter().max()), (Some(&0), Some(&3)));
        let mean = (0..10_000).map(|_| random.unit()).sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }
}
