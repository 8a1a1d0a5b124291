//! Several captures as one: whose turn it is.
//!
//! The one whose next packet is the earliest is read, as long as no other has an earlier one: captures that follow one
//! another cost no more than one of them. Each keeps its own clock. What was found of the others' clocks holds for a
//! capture that was not begun, too, as if it went on where they are.

use std::{cmp::Reverse, collections::BinaryHeap};

/// What is to be read next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Number of the capture.
    pub capture: usize,
    /// Nothing of it was read before.
    pub is_first: bool,
    /// What is added to its times.
    pub offset_ns: i64,
    /// Time of the file up to which the capture is read.
    pub until_ns: i64,
}

/// A capture.
#[derive(Debug, Clone, Copy)]
struct Capture {
    /// Time of the next packet, as the file has it.
    next_ns: i64,
    /// What is added to its times; none before it is begun.
    offset_ns: Option<i64>,
}

/// Captures that are read as one.
#[derive(Debug)]
pub struct Merge {
    captures: Vec<Capture>,
    /// Captures that wait for their turn, by the time of their next packet.
    waiting: BinaryHeap<Reverse<(i64, usize)>>,
    /// What is added to the times of those that are not begun.
    offset_ns: i64,
}

impl Merge {
    /// Captures by the times of their first packets; those without packets have none.
    pub fn new(firsts_ns: &[Option<i64>]) -> Merge {
        let capture =
            |first_ns: &Option<i64>| Capture { next_ns: first_ns.unwrap_or(i64::MAX), offset_ns: None };
        let firsts = firsts_ns.iter().zip(0..);
        Merge {
            captures: firsts_ns.iter().map(capture).collect(),
            waiting: firsts.filter_map(|(first_ns, number)| Some(Reverse(((*first_ns)?, number)))).collect(),
            offset_ns: 0,
        }
    }

    /// The capture to be read, until [`Merge::put_back`]; none when all are read.
    pub fn take(&mut self) -> Option<Turn> {
        let Reverse((_, number)) = self.waiting.pop()?;
        let own_ns = self.captures[number].offset_ns;
        let offset_ns = own_ns.unwrap_or(self.offset_ns);
        let until_ns = match self.waiting.peek() {
            Some(Reverse((next_ns, _))) => next_ns.saturating_sub(offset_ns),
            None => i64::MAX,
        };
        Some(Turn { capture: number, is_first: own_ns.is_none(), offset_ns, until_ns })
    }

    /// A turn is over: the capture's next packet has this time, and that is added to its times now. The clock of all
    /// captures was found to have been set forward by `earlier_ns` meanwhile.
    pub fn put_back(&mut self, turn: Turn, next_ns: Option<i64>, offset_ns: i64, earlier_ns: i64) {
        if offset_ns != turn.offset_ns {
            self.on_set(offset_ns, earlier_ns);
        }
        self.captures[turn.capture].offset_ns = Some(offset_ns);
        if let Some(next_ns) = next_ns {
            self.captures[turn.capture].next_ns = next_ns;
            self.waiting.push(Reverse((next_ns.saturating_add(offset_ns), turn.capture)));
        }
    }

    /// Captures that wait are put in order anew.
    fn on_set(&mut self, offset_ns: i64, earlier_ns: i64) {
        self.offset_ns = offset_ns;
        for number in std::mem::take(&mut self.waiting).into_iter().map(|Reverse((_, number))| number) {
            let capture = &mut self.captures[number];
            capture.offset_ns = capture.offset_ns.map(|offset_ns| offset_ns.saturating_sub(earlier_ns));
            let next_ns = capture.next_ns.saturating_add(capture.offset_ns.unwrap_or(offset_ns));
            self.waiting.push(Reverse((next_ns, number)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Times in the order in which they are read.
    fn read(captures: &[Vec<i64>]) -> (Vec<i64>, usize) {
        let firsts: Vec<_> = captures.iter().map(|times| times.first().copied()).collect();
        let (mut merge, mut at, mut turns) = (Merge::new(&firsts), vec![0; captures.len()], 0);
        let mut read = Vec::new();
        while let Some(turn) = merge.take() {
            let rest = &captures[turn.capture][at[turn.capture]..];
            let count = rest.iter().take_while(|time| **time <= turn.until_ns).count();
            read.extend(&rest[..count]);
            at[turn.capture] += count;
            turns += 1;
            merge.put_back(turn, rest.get(count).copied(), turn.offset_ns, 0);
        }
        (read, turns)
    }

    #[test]
    fn captures_one_behind_the_other_have_a_turn_each() {
        let captures: Vec<Vec<i64>> = (0..9).map(|n| (n * 100..n * 100 + 90).collect()).collect();
        assert_eq!(read(&captures), (captures.concat(), 9));
    }

    #[test]
    fn a_capture_whose_clock_was_set_back_is_read_with_the_others_as_if_it_had_not() {
        let mut merge = Merge::new(&[Some(100), Some(101)]);
        let first = merge.take().unwrap();
        assert_eq!((first.capture, first.until_ns), (0, 101));
        merge.put_back(first, Some(2), 100, 0);
        let second = merge.take().unwrap();
        assert_eq!((second.capture, second.is_first, second.offset_ns), (0, false, 100), "102 is before 201");
        merge.put_back(second, Some(900), 100, 0);
        assert_eq!(merge.take().unwrap().offset_ns, 100, "what was not begun goes on by the same clock");
    }

    proptest! {
        #![proptest_config(crate::cases::cases(256))]

        #[test]
        fn captures_in_order_are_read_in_order(
            captures in proptest::collection::vec(proptest::collection::vec(0i64..1000, 0..20), 0..6),
        ) {
            let mut captures = captures;
            captures.iter_mut().for_each(|times| times.sort_unstable());
            let mut all = captures.concat();
            all.sort_unstable();
            prop_assert_eq!(read(&captures).0, all);
        }
    }
}
