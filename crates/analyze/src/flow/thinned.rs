//! An even share of many values in bounded memory: when there are too many, one stays or goes by a hash of its number,
//! so that no pattern of the data (pairs, every second ACK) is favoured, and two runs keep the same.

/// Points kept of one kind, for a plot.
const MOST_POINTS: usize = 6000;

/// Nanoseconds and a value.
pub type Points = Thinned<(i64, f64), MOST_POINTS>;

/// At most so many values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Thinned<T, const MOST: usize> {
    kept: Vec<(u64, T)>,
    seen: u64,
    level: u32,
}

/// The finaliser of SplitMix64.
fn scatter(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl<T: Copy, const MOST: usize> Thinned<T, MOST> {
    /// Adds a value.
    #[inline]
    pub fn add(&mut self, value: T) {
        let number = self.seen;
        self.seen += 1;
        if scatter(number).trailing_zeros() >= self.level {
            self.keep(number, value);
        }
    }

    fn keep(&mut self, number: u64, value: T) {
        self.kept.push((number, value));
        if self.kept.len() > MOST {
            self.level += 1;
            let level = self.level;
            self.kept.retain(|(number, _)| scatter(*number).trailing_zeros() >= level);
        }
    }

    /// Values that are kept, in the order they came.
    pub fn kept(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.kept.iter().map(|(_, value)| *value)
    }

    /// How many there were.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

impl Points {
    /// Adds a point.
    #[inline]
    pub fn push(&mut self, time_ns: i64, value: f64) {
        self.add((time_ns, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_a_bounded_even_share_of_an_alternating_series() {
        let mut thinned = Points::default();
        (0..1_000_000).for_each(|n| thinned.push(n, (n % 2) as f64));
        let ones = thinned.kept().filter(|point| point.1 > 0.5).count() as f64;
        let all = thinned.kept().len();
        assert!((2000..=MOST_POINTS).contains(&all), "{all}");
        assert!((ones / all as f64 - 0.5).abs() < 0.05, "{ones} of {all}");
        assert_eq!(thinned.seen(), 1_000_000);
    }
}
