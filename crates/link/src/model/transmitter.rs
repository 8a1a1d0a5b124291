//! The transmitter: one packet at a time, at the line's rate, exact to the bit over any stretch of work.
//!
//! Work is counted in bit·ns (bits × 10⁹), so that a finish time rounded up to a whole nanosecond leaves a credit for
//! the packet that follows at once: the long-term rate has no rounding error.

use super::{opportunities::Line, packet::Packet};
use crate::plan::OpportunitiesPlan;

const BIT_NS: u64 = 1_000_000_000;

/// The packet being sent, and what is left of it.
#[derive(Debug)]
struct Sending<P> {
    packet: Packet<P>,
    /// When it will be sent, where opportunities say; else the rate does.
    recorded_ns: Option<u64>,
    left_bit_ns: u64,
    since_ns: u64,
}

/// Sends one packet after another.
#[derive(Debug)]
pub struct Transmitter<P> {
    rate_bps: Option<u64>,
    sending: Option<Sending<P>>,
    /// Work done beyond the last packet, usable by one that starts at `credit_at_ns`.
    credit_bit_ns: u64,
    credit_at_ns: u64,
    /// What the line follows instead of the rate, once that has begun.
    line: Option<Line>,
}

impl<P> Transmitter<P> {
    /// An idle transmitter; no rate sends in no time.
    pub fn new(rate_bps: Option<u64>, recorded: Option<&OpportunitiesPlan>) -> Transmitter<P> {
        let line = recorded.map(Line::new);
        Transmitter { rate_bps, sending: None, credit_bit_ns: 0, credit_at_ns: 0, line }
    }

    /// Opportunities, if there are any, begin at this time.
    pub fn follow_from(&mut self, at_ns: u64) {
        self.line.iter_mut().for_each(|line| line.start(at_ns));
    }

    /// Nothing waits to be sent.
    pub fn rest(&mut self) {
        if let Some(line) = &mut self.line {
            line.rest();
        }
    }

    /// Whether a packet is being sent.
    pub fn is_busy(&self) -> bool {
        self.sending.is_some()
    }

    /// Begins to send; the transmitter must be idle.
    pub fn start(&mut self, now_ns: u64, packet: Packet<P>, overhead_bytes: u32) {
        let bytes = packet.length_bytes.saturating_add(overhead_bytes);
        let line = self.line.as_mut().filter(|line| line.has_begun(now_ns));
        let recorded_ns = line.map(|line| line.send(now_ns, bytes));
        let bytes = u64::from(bytes);
        let credit = if self.credit_at_ns == now_ns { self.credit_bit_ns } else { 0 };
        let left_bit_ns = (bytes * 8 * BIT_NS).saturating_sub(credit);
        self.credit_bit_ns = 0;
        self.sending = Some(Sending { packet, recorded_ns, left_bit_ns, since_ns: now_ns });
    }

    /// When the packet will be sent; `u64::MAX` at a rate of zero.
    pub fn finish_ns(&self) -> Option<u64> {
        let sending = self.sending.as_ref()?;
        if sending.recorded_ns.is_some() {
            return sending.recorded_ns;
        }
        Some(match self.rate_bps {
            None => sending.since_ns,
            Some(0) => u64::MAX,
            Some(rate_bps) => sending.since_ns + sending.left_bit_ns.div_ceil(rate_bps),
        })
    }

    /// Takes the packet whose sending ends at `now_ns` (its finish time).
    pub fn finish(&mut self, now_ns: u64) -> Option<Packet<P>> {
        let sending = self.sending.take()?;
        let done = self.work(sending.since_ns, now_ns);
        self.credit_bit_ns = done.saturating_sub(sending.left_bit_ns);
        self.credit_at_ns = now_ns;
        Some(sending.packet)
    }

    /// Changes the rate, also of the packet being sent.
    pub fn change_rate(&mut self, now_ns: u64, rate_bps: Option<u64>) {
        if let Some(mut sending) = self.sending.take() {
            let done = self.work(sending.since_ns, now_ns);
            sending.left_bit_ns = sending.left_bit_ns.saturating_sub(done);
            sending.since_ns = now_ns;
            self.sending = Some(sending);
        }
        self.rate_bps = rate_bps;
        self.credit_bit_ns = 0;
    }

    fn work(&self, from_ns: u64, to_ns: u64) -> u64 {
        let rate_bps = self.rate_bps.unwrap_or(0);
        u64::try_from(u128::from(rate_bps) * u128::from(to_ns - from_ns)).unwrap_or(u64::MAX)
    }

    /// Time a packet of `bytes` takes; nothing without a rate.
    pub fn time_of_ns(&self, bytes: u64) -> u64 {
        match self.rate_bps {
            None => 0,
            Some(rate_bps) => (bytes * 8 * BIT_NS).checked_div(rate_bps).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(length_bytes: u32) -> Packet<()> {
        Packet { length_bytes, ecn: super::super::Ecn::NotEct, payload: () }
    }

    #[test]
    fn back_to_back_packets_take_exactly_their_bits_over_the_rate() {
        // 7 bit/s: no packet ends on a whole nanosecond, yet 7 bytes take exactly 8 s.
        let mut transmitter = Transmitter::new(Some(7), None);
        let mut now_ns = 0;
        for _ in 0..7 {
            transmitter.start(now_ns, packet(1), 0);
            now_ns = transmitter.finish_ns().unwrap();
            transmitter.finish(now_ns);
        }
        assert_eq!(now_ns, 8_000_000_000);
    }

    #[test]
    fn an_idle_moment_forfeits_the_credit() {
        let mut transmitter = Transmitter::new(Some(7), None);
        transmitter.start(0, packet(1), 0);
        let end_ns = transmitter.finish_ns().unwrap();
        transmitter.finish(end_ns);
        transmitter.start(end_ns + 1, packet(1), 0);
        assert_eq!(transmitter.finish_ns(), Some(end_ns + 1 + 8_000_000_000u64.div_ceil(7)));
    }

    #[test]
    fn overhead_counts_as_bytes_on_the_line() {
        let mut transmitter = Transmitter::new(Some(1_000_000_000), None);
        transmitter.start(0, packet(1500), 38);
        assert_eq!(transmitter.finish_ns(), Some(12_304));
    }

    #[test]
    fn a_change_of_rate_applies_to_the_rest_of_the_packet_being_sent() {
        let mut transmitter = Transmitter::new(Some(1000), None);
        transmitter.start(0, packet(1000), 0);
        assert_eq!(transmitter.finish_ns(), Some(8_000_000_000));
        transmitter.change_rate(4_000_000_000, Some(4000));
        assert_eq!(transmitter.finish_ns(), Some(5_000_000_000));
        transmitter.change_rate(4_500_000_000, Some(0));
        assert_eq!(transmitter.finish_ns(), Some(u64::MAX));
        transmitter.change_rate(9_000_000_000, None);
        assert_eq!(transmitter.finish_ns(), Some(9_000_000_000));
    }
}
