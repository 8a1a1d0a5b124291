//! Bundles: Linux hands segments down several at once (GSO), and waits with a small bundle for one that is worth more
//! (tcp_tso_should_defer). A sender whose application never has much waiting so keeps less in flight than its window
//! allows, and its window does not grow.

use super::{
    send_buffer::Push,
    sender::{CaState, Sender},
};

/// Most bytes of a bundle (sk_gso_max_size, less the headers).
pub const BUNDLE_MOST_BYTES: u64 = 65_536 - 320;
/// A bundle is a millisecond's worth (sk_pacing_shift 10), and more where the path is short (tcp_tso_rtt_log 9).
const RATE_SHIFT: u32 = 10;
const RTT_SHIFT: u32 = 9;
/// A bundle has room for so many segments at least (tcp_min_tso_segs).
const LEAST_SEGMENTS: u64 = 2;
/// Where no share of the window is set, so many segments are worth sending (tcp_max_tso_deferred_mss).
const WORTH_SEGMENTS: u64 = 3;
/// A write so long ago belongs to another burst: nothing waits for more. Nor for an acknowledgement that is further
/// away.
const RECENT_NS: u64 = 1_000_000;

/// What becomes of the next bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bundle {
    /// The bundle leaves, with so many segments.
    Leaves(u64),
    /// The bundle waits, and whether for the congestion window.
    Waits { by_cwnd: bool },
}

impl Sender {
    /// Segments of a bundle at most (tcp_tso_autosize).
    pub(super) fn bundle_segments(&self) -> u64 {
        let rate_bytes = self.window_rate_bps().unwrap_or(0) / 8 / u64::from(self.times_slower);
        let shift = self.rtt.min_us().saturating_mul(self.times_slower) >> RTT_SHIFT;
        let more_bytes = BUNDLE_MOST_BYTES.checked_shr(shift).unwrap_or(0);
        let bytes = ((rate_bytes >> RATE_SHIFT) + more_bytes).min(BUNDLE_MOST_BYTES);
        (bytes / u64::from(self.mss_bytes)).max(LEAST_SEGMENTS)
    }

    /// Whether so much time has passed since something was sent that nothing waits for more.
    fn is_new_burst(&self, now_ns: u64) -> bool {
        now_ns > self.last_sent_ns + RECENT_NS / u64::from(self.times_slower)
    }

    /// Whether the next bundle leaves, where there is room for a segment in both windows. Senders that are paced, or
    /// whose host does not wait, send segment by segment. Within a write nothing waits.
    pub(super) fn next_bundle(&self, push: Push, now_ns: u64) -> Bundle {
        let Some(divisor) = self.tso_win_divisor.filter(|_| !self.is_paced) else { return Bundle::Leaves(1) };
        let mss_bytes = u64::from(self.mss_bytes);
        let ahead_bytes = self.unsent_bytes().min(BUNDLE_MOST_BYTES / mss_bytes * mss_bytes);
        if ahead_bytes <= mss_bytes {
            return Bundle::Leaves(1);
        }
        let most_segments = self.bundle_segments();
        let cwnd_segments = u64::from(self.control.cwnd());
        let by_cwnd_segments = cwnd_segments.saturating_sub(u64::from(self.board.in_flight()));
        let by_cwnd_bytes = by_cwnd_segments * mss_bytes;
        let by_peer_bytes = self.edge_bytes - self.next_bytes;
        let room_bytes = by_cwnd_bytes.min(by_peer_bytes);
        let leaves =
            Bundle::Leaves(most_segments.min(by_cwnd_segments).min(ahead_bytes.div_ceil(mss_bytes)).max(1));
        let worth_bytes = match u64::from(divisor) {
            0 => WORTH_SEGMENTS * mss_bytes + 1,
            divisor => (self.edge_bytes - self.acked_bytes).min(cwnd_segments * mss_bytes) / divisor,
        };
        let may_grow = ahead_bytes == self.unsent_bytes();
        let is_worth = room_bytes >= most_segments * mss_bytes
            || (!may_grow && room_bytes >= ahead_bytes)
            || room_bytes >= worth_bytes;
        if push == Push::Bundle || is_worth || self.ca_state >= CaState::Recovery || self.is_new_burst(now_ns)
        {
            return leaves;
        }
        // Without anything in flight no acknowledgement will come, and what is far is not waited for.
        let rtt_ns = u64::from(self.rtt.srtt_us()) * 1000;
        let near_ns = (rtt_ns / 2).min(RECENT_NS / u64::from(self.times_slower));
        match self.board.head() {
            Some(oldest) if oldest.sent_ns + rtt_ns <= now_ns + near_ns => {
                let by_cwnd = by_cwnd_bytes < by_peer_bytes && by_cwnd_bytes <= ahead_bytes;
                Bundle::Waits { by_cwnd }
            }
            _ => leaves,
        }
    }
}
