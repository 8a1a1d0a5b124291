//! A distribution in bounded memory: 16 buckets per octave, so that a quantile is within 6.25 % of the value.

const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;

/// Counts of values by size.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        let index = index(value);
        match self.counts.get_mut(index) {
            Some(count) => *count = count.saturating_add(1),
            None => self.make_room_for(index),
        }
        self.total += 1;
    }

    #[cold]
    fn make_room_for(&mut self, index: usize) {
        self.counts.resize(index + 1, 0);
        self.counts[index] = 1;
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The value that the share `quantile` of all values do not exceed; none when there are none.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let rank = ((self.total as f64 * quantile).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        });
        found.map(|index| middle(index as u64))
    }

    /// Lower edge, upper edge and count of every bucket that is not empty.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        let all = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(index, count)| (lower(index as u64), lower(index as u64 + 1), *count))
    }
}

#[inline]
fn index(value: u64) -> usize {
    // Without a branch: whether a value is that small cannot be foreseen.
    let octave = 63 - (value | SUB).leading_zeros() - SUB_BITS;
    (u64::from(octave) * SUB + (value >> octave)) as usize
}

fn lower(index: u64) -> u64 {
    if index < SUB {
        return index;
    }
    (SUB + index % SUB).checked_shl((index / SUB - 1) as u32).unwrap_or(u64::MAX)
}

fn middle(index: u64) -> u64 {
    let (low, high) = (lower(index), lower(index + 1));
    low + (high - low) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_quantile_is_near_the_value_of_that_rank(
            mut values in proptest::collection::vec(0u64..10_000_000_000, 1..300), quantile in 0.0f64..1.0,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.record(*value));
            values.sort_unstable();
            let rank = ((values.len() as f64 * quantile).ceil() as usize).clamp(1, values.len());
            let (exact, found) = (values[rank - 1] as f64, histogram.quantile(quantile).unwrap() as f64);
            prop_assert!((exact - found).abs() <= exact * 0.0625 + 1.0, "{exact} {found}");
        }

        #[test]
        fn every_value_lies_in_its_bucket(value in 0u64..u64::MAX / 2) {
            let mut histogram = Histogram::default();
            histogram.record(value);
            let (low, high, count) = histogram.buckets().next().unwrap();
            prop_assert!(low <= value && value < high && count == 1);
        }
    }
}
