//! Ranges of sequence space that are known of, in order, merged. There are few at any time: a sorted vector.

/// Ranges kept: a capture made to exhaust memory has more; the oldest are forgotten.
const MAX_RANGES: usize = 4096;

/// Disjoint half-open ranges.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Octets in all ranges.
    pub fn octets(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The highest end.
    pub fn end(&self) -> Option<u64> {
        self.0.last().map(|range| range.1)
    }

    /// Adds a range; gives back how many octets of it are new.
    pub fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        let old: u64 = self.0[first..last].iter().map(|(s, e)| e - s).sum();
        let merged =
            self.0[first..last].iter().fold((start, end), |(s, e), range| (s.min(range.0), e.max(range.1)));
        self.0.splice(first..last, [merged]);
        if self.0.len() > MAX_RANGES {
            self.0.remove(0);
        }
        (merged.1 - merged.0) - old
    }

    /// Takes a range away; gives back how many octets of it were there.
    pub fn remove(&mut self, start: u64, end: u64) -> u64 {
        let first = self.0.partition_point(|range| range.1 <= start);
        let last = self.0.partition_point(|range| range.0 < end);
        if start >= end || first >= last {
            return 0;
        }
        let touched = &self.0[first..last];
        let old: u64 = touched.iter().map(|(s, e)| e - s).sum();
        let left = (touched[0].0, start);
        let right = (end, touched[touched.len() - 1].1);
        let rest: Vec<_> = [left, right].into_iter().filter(|(s, e)| s < e).collect();
        let kept: u64 = rest.iter().map(|(s, e)| e - s).sum();
        self.0.splice(first..last, rest);
        old - kept
    }

    /// Forgets what is below.
    pub fn forget_below(&mut self, edge: u64) {
        self.remove(0, edge);
    }

    /// How many octets of a range are known.
    pub fn covered(&self, start: u64, end: u64) -> u64 {
        let first = self.0.partition_point(|range| range.1 <= start);
        let inside = self.0[first..].iter().take_while(|range| range.0 < end);
        inside.map(|range| range.1.min(end) - range.0.max(start)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_hold_what_a_bitmap_holds(
            steps in proptest::collection::vec((any::<bool>(), 0u64..200, 0u64..30), 0..60),
        ) {
            let (mut ranges, mut map) = (Ranges::default(), [false; 240]);
            for (add, start, length) in steps {
                let slots = start as usize..(start + length) as usize;
                let before = map[slots.clone()].iter().filter(|set| **set == add).count() as u64;
                prop_assert_eq!(ranges.covered(start, start + length), if add { before } else { length - before });
                let changed = if add { ranges.insert(start, start + length) } else { ranges.remove(start, start + length) };
                let expected = length - before;
                map[slots].fill(add);
                prop_assert_eq!(changed, expected);
                prop_assert_eq!(ranges.octets(), map.iter().filter(|set| **set).count() as u64);
                prop_assert!(ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", ranges);
            }
        }
    }
}
