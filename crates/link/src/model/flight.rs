//! Packets on the line: transmitted, not yet at the far end.

use super::packet::Packet;
use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
};

/// Packets in flight, given out in the order of their arrival at the far end.
#[derive(Debug)]
pub enum Flight<P> {
    /// No packet overtakes another: O(1).
    Ordered(VecDeque<(u64, Packet<P>)>),
    /// Jitter may reorder: O(log n).
    Reordering {
        /// By time of arrival, then by order of transmission.
        heap: BinaryHeap<Reverse<Entry<P>>>,
        /// Packets put in so far.
        count: u64,
    },
}

/// One packet of a reordering flight.
#[derive(Debug)]
pub struct Entry<P> {
    due_ns: u64,
    number: u64,
    packet: Packet<P>,
}

impl<P> Flight<P> {
    /// An empty line.
    pub fn new(reorder: bool) -> Flight<P> {
        if reorder {
            Flight::Reordering { heap: BinaryHeap::new(), count: 0 }
        } else {
            Flight::Ordered(VecDeque::new())
        }
    }

    /// A packet that would arrive at `due_ns`; without reordering, not before the one ahead of it.
    pub fn push(&mut self, due_ns: u64, packet: Packet<P>) {
        match self {
            Flight::Ordered(line) => {
                let ahead_ns = line.back().map_or(0, |(due_ns, _)| *due_ns);
                line.push_back((due_ns.max(ahead_ns), packet));
            }
            Flight::Reordering { heap, count } => {
                heap.push(Reverse(Entry { due_ns, number: *count, packet }));
                *count += 1;
            }
        }
    }

    /// When the next packet arrives.
    pub fn next_due_ns(&self) -> Option<u64> {
        match self {
            Flight::Ordered(line) => line.front().map(|(due_ns, _)| *due_ns),
            Flight::Reordering { heap, .. } => heap.peek().map(|Reverse(entry)| entry.due_ns),
        }
    }

    /// The next packet that has arrived by `now_ns`, and when it did.
    pub fn pop(&mut self, now_ns: u64) -> Option<(u64, Packet<P>)> {
        if self.next_due_ns()? > now_ns {
            return None;
        }
        match self {
            Flight::Ordered(line) => line.pop_front(),
            Flight::Reordering { heap, .. } => heap.pop().map(|Reverse(entry)| (entry.due_ns, entry.packet)),
        }
    }

    /// Packets in flight.
    pub fn packets(&self) -> u64 {
        match self {
            Flight::Ordered(line) => line.len() as u64,
            Flight::Reordering { heap, .. } => heap.len() as u64,
        }
    }

    /// Whether a packet transmitted later may arrive earlier.
    pub fn reorders(&self) -> bool {
        matches!(self, Flight::Reordering { .. })
    }
}

impl<P> Ord for Entry<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due_ns, self.number).cmp(&(other.due_ns, other.number))
    }
}

impl<P> PartialOrd for Entry<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Entry<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Entry<P> {}
