//! Sets of segment numbers as sorted ranges: what a receiver holds out of order, what a sender knows to be there.

use std::collections::VecDeque;

/// Numbers from `start` up to, not including, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First number.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
    /// Payload of the range, when the caller counts it.
    pub bytes: u64,
}

/// Disjoint ranges that do not touch, in order. Work happens mostly at its two ends, where it is cheap.
#[derive(Debug, Clone, Default)]
pub struct Ranges {
    ranges: VecDeque<Range>,
}

impl Ranges {
    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// One past the greatest number inside.
    pub fn end(&self) -> Option<u64> {
        self.ranges.back().map(|range| range.end)
    }

    /// The range that starts lowest.
    pub fn first(&self) -> Option<Range> {
        self.ranges.front().copied()
    }

    /// Takes the range that starts lowest.
    pub fn pop_first(&mut self) -> Option<Range> {
        self.ranges.pop_front()
    }

    /// Whether a number is inside.
    pub fn contains(&self, number: u64) -> bool {
        let at = self.position(number);
        self.ranges.get(at).is_some_and(|range| range.start <= number && number < range.end)
    }

    /// Forgets numbers below `number`. Payload counts of a range cut in two are not kept.
    pub fn remove_below(&mut self, number: u64) {
        while let Some(range) = self.ranges.front_mut() {
            if range.end > number {
                range.start = range.start.max(number);
                return;
            }
            self.ranges.pop_front();
        }
    }

    /// Index of the first range that ends at or after `number`.
    fn position(&self, number: u64) -> usize {
        match self.ranges.back() {
            Some(last) if last.start <= number => self.ranges.len() - usize::from(last.end >= number),
            _ => self.ranges.partition_point(|range| range.end < number),
        }
    }

    /// Adds a range; what was not inside before is appended to `fresh`. Returns the range it became part of.
    pub fn insert(&mut self, range: Range, fresh: &mut Vec<(u64, u64)>) -> Range {
        let first = self.position(range.start);
        let (mut merged, mut cursor, mut last) = (range, range.start, first);
        while let Some(next) = self.ranges.get(last).filter(|next| next.start <= range.end) {
            if cursor < next.start {
                fresh.push((cursor, next.start));
            }
            cursor = cursor.max(next.end);
            merged.start = merged.start.min(next.start);
            merged.end = merged.end.max(next.end);
            merged.bytes += next.bytes;
            last += 1;
        }
        if cursor < range.end {
            fresh.push((cursor, range.end));
        }
        self.replace(first, last, merged);
        merged
    }

    fn replace(&mut self, first: usize, last: usize, merged: Range) {
        if first == last {
            self.ranges.insert(first, merged);
            return;
        }
        self.ranges[first] = merged;
        if last - first > 1 {
            self.ranges.drain(first + 1..last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_hold_what_a_set_holds(inserts in prop::collection::vec((0u64..60, 1u64..12), 1..40), cut in 0u64..70) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (start, length) in inserts {
                let mut fresh = Vec::new();
                let merged = ranges.insert(Range { start, end: start + length, bytes: 0 }, &mut fresh);
                let new: BTreeSet<u64> = (start..start + length).filter(|n| set.insert(*n)).collect();
                let told: BTreeSet<u64> = fresh.iter().flat_map(|(a, b)| *a..*b).collect();
                prop_assert_eq!(told, new);
                prop_assert!(merged.start <= start && merged.end >= start + length);
            }
            ranges.remove_below(cut);
            set.retain(|n| *n >= cut);
            for n in 0..80 {
                prop_assert_eq!(ranges.contains(n), set.contains(&n));
            }
            prop_assert_eq!(ranges.end(), set.last().map(|n| n + 1));
            prop_assert_eq!(ranges.first().map(|r| r.start), set.first().copied());
            let touching = ranges.ranges.iter().zip(ranges.ranges.iter().skip(1)).any(|(a, b)| a.end >= b.start);
            prop_assert!(!touching);
        }
    }
}
