//! Points of a plot in bounded memory: when there are too many, a point stays or goes by a hash of its number, so
//! that no pattern of the data (pairs, every second ACK) is favoured, and two runs keep the same points.

/// Points kept of one kind.
const MOST: usize = 6000;

/// Points over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Thinned {
    points: Vec<(u64, i64, f64)>,
    seen: u64,
    level: u32,
}

/// The finaliser of SplitMix64.
fn scatter(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Thinned {
    /// Adds a point.
    #[inline]
    pub fn push(&mut self, time_ns: i64, value: f64) {
        let number = self.seen;
        self.seen += 1;
        if scatter(number).trailing_zeros() >= self.level {
            self.keep(number, time_ns, value);
        }
    }

    fn keep(&mut self, number: u64, time_ns: i64, value: f64) {
        self.points.push((number, time_ns, value));
        if self.points.len() > MOST {
            self.level += 1;
            let level = self.level;
            self.points.retain(|(number, ..)| scatter(*number).trailing_zeros() >= level);
        }
    }

    /// Nanoseconds and value of the points kept, in the order they came.
    pub fn points(&self) -> impl ExactSizeIterator<Item = (i64, f64)> + '_ {
        self.points.iter().map(|(_, time_ns, value)| (*time_ns, *value))
    }

    /// How many points there were.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_a_bounded_even_share_of_an_alternating_series() {
        let mut thinned = Thinned::default();
        (0..1_000_000).for_each(|n| thinned.push(n, (n % 2) as f64));
        let ones = thinned.points().filter(|point| point.1 > 0.5).count() as f64;
        let all = thinned.points().len();
        assert!((2000..=MOST).contains(&all), "{all}");
        assert!((ones / all as f64 - 0.5).abs() < 0.05, "{ones} of {all}");
        assert_eq!(thinned.seen(), 1_000_000);
    }
}
