//! Packets waiting for transmission, in order, with their time of arrival.

use super::packet::Packet;
use std::collections::VecDeque;

/// A byte-counting first-in first-out store.
#[derive(Debug)]
pub struct Fifo<P> {
    waiting: VecDeque<(u64, Packet<P>)>,
    bytes: u64,
}

impl<P> Default for Fifo<P> {
    fn default() -> Self {
        Fifo { waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<P> Fifo<P> {
    /// Appends a packet that arrived at `now_ns`.
    pub fn push(&mut self, now_ns: u64, packet: Packet<P>) {
        self.bytes += u64::from(packet.length_bytes);
        self.waiting.push_back((now_ns, packet));
    }

    /// The oldest packet and when it arrived.
    pub fn pop(&mut self) -> Option<(u64, Packet<P>)> {
        let entry = self.waiting.pop_front()?;
        self.bytes -= u64::from(entry.1.length_bytes);
        Some(entry)
    }

    /// The youngest packet.
    pub fn pop_youngest(&mut self) -> Option<Packet<P>> {
        let (_, packet) = self.waiting.pop_back()?;
        self.bytes -= u64::from(packet.length_bytes);
        Some(packet)
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets waiting.
    pub fn packets(&self) -> u64 {
        self.waiting.len() as u64
    }
}
