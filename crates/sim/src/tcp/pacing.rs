//! Pacing: bursts at a rate (tcp_update_pacing_rate, tcp_tso_autosize), and algorithms that shape it to measure with
//! it.

use super::sender::Sender;
use longfat_cc::Sending;

/// Linux sends about a millisecond's worth at once (sk_pacing_shift 10), at most 64 KiB.
const BURST_SHIFT: u32 = 10;
const BURST_MOST_BYTES: u64 = 65_536;

impl Sender {
    /// The rate of a sender that is paced.
    pub fn pacing_rate_bps(&self) -> Option<u64> {
        self.window_rate_bps().filter(|_| self.is_paced)
    }

    /// Twice the window per round trip in slow start, 1.2 times after (tcp_update_pacing_rate); nothing before the
    /// first sample.
    pub(super) fn window_rate_bps(&self) -> Option<u64> {
        let srtt_us = u64::from(self.rtt.srtt_us());
        if srtt_us == 0 {
            return None;
        }
        let cwnd = self.control.cwnd();
        let percent = if cwnd < self.control.ssthresh() / 2 { 200 } else { 120 };
        let window_bits = u64::from(cwnd.max(self.board.packets_out())) * u64::from(self.mss_bytes) * 8;
        Some(window_bits * 10_000 * percent / srtt_us)
    }

    /// A segment left: the next one waits, but for those that leave with it.
    pub(super) fn pace(&mut self, length_bytes: u32, now_ns: u64) {
        let rate_bps =
            self.stream_rate.map(|bytes| bytes.saturating_mul(8)).or_else(|| self.pacing_rate_bps());
        let Some(rate_bps) = rate_bps.filter(|rate_bps| *rate_bps > 0) else { return };
        let from_ns =
            if self.pace_at_ns == crate::timers::NEVER { now_ns } else { self.pace_at_ns.max(now_ns) };
        self.pace_at_ns = from_ns + u64::from(length_bytes) * 8_000_000_000 / rate_bps;
        self.burst_segments = self.burst_segments.saturating_sub(1);
    }

    pub(super) fn is_pacing(&self, now_ns: u64) -> bool {
        self.is_paced
            && self.burst_segments == 0
            && self.pace_at_ns != crate::timers::NEVER
            && self.pace_at_ns > now_ns
    }

    /// What a measuring algorithm sees.
    fn sending(&self) -> Sending {
        let bytes_per_s = self.pacing_rate_bps().unwrap_or(0) / 8;
        let burst_bytes = (bytes_per_s >> BURST_SHIFT).min(BURST_MOST_BYTES);
        Sending {
            pacing_bytes_per_s: bytes_per_s,
            // Sequence numbers are the stream's positions, modulo 2^32.
            next_seq: self.next_bytes as u32,
            una_seq: self.acked_bytes as u32,
            unsent_bytes: u32::try_from(self.unsent_bytes()).unwrap_or(u32::MAX),
            packet_bytes: self.mss_bytes + self.family.tcp_header_bytes(),
            burst_segments: ((burst_bytes / u64::from(self.mss_bytes.max(1))) as u32).max(2),
            repair_segments: self.board.sacked_out + self.board.lost_out + self.board.retrans_out,
        }
    }

    /// Before new segments leave (tcp_tso_segs): a measuring algorithm says how many at once, and at what rate.
    pub(super) fn tell_sending(&mut self, now_ns: u64) {
        if !self.control.measures() || self.unsent_bytes() == 0 {
            return;
        }
        self.observe(now_ns);
        let mut sending = self.sending();
        let own_rate = sending.pacing_bytes_per_s;
        let wanted = self.control.on_send(&mut sending).unwrap_or(1);
        self.stream_rate = Some(sending.pacing_bytes_per_s).filter(|rate| *rate != own_rate && *rate > 0);
        // A stream's unit is as long as it says; otherwise a burst is what the rate makes it.
        let burst = if self.stream_rate.is_some() { wanted } else { wanted.max(sending.burst_segments) };
        let is_waiting = self.pace_at_ns != crate::timers::NEVER && self.pace_at_ns > now_ns;
        self.burst_segments = if is_waiting { 0 } else { burst };
    }

    /// An acknowledgement has moved what is unacknowledged (tcp_in_ack_event).
    pub(super) fn tell_ack(&mut self, now_ns: u64) {
        if self.control.measures() {
            self.observe(now_ns);
            let sending = self.sending();
            self.control.on_ack_seen(&sending);
        }
    }
}
