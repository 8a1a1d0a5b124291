//! The congestion window: proportional rate reduction (RFC 6937), growth by the algorithm, and validation of a
//! window that is not used (RFC 7661 as Linux does it).

use super::sender::{CaState, Found, Sender};
use crate::scenario::INITIAL_WINDOW;
use longfat_cc::WINDOW_MAX;

impl Sender {
    /// Whether the window follows PRR.
    pub(super) fn in_reduction(&self) -> bool {
        matches!(self.ca_state, CaState::Cwr | CaState::Recovery)
    }

    /// What the algorithm sees of this moment.
    pub(super) fn observe(&mut self, now_ns: u64) {
        let conn = &mut self.control.conn;
        conn.now_us = now_ns / 1000;
        conn.flight_segments = self.board.in_flight();
        conn.max_flight_segments = self.max_packets_out;
        conn.ca_state = self.ca_state as u32;
        conn.srtt_us = self.rtt.srtt_us();
        conn.min_rtt_us = self.rtt.min_us();
    }

    /// Sets the window after an acknowledgement, as the kernel's `tcp_cong_control`.
    pub(super) fn adjust_window(&mut self, now_ns: u64, delivered: u32, newly_lost: bool, found: &Found) {
        if self.in_reduction() {
            self.reduce_proportionally(delivered, newly_lost, found.advanced);
        } else if delivered > 0 && self.may_grow(found) {
            self.observe(now_ns);
            self.control.on_ack(delivered);
        }
    }

    /// Where the path reorders, selective acknowledgements count as progress.
    fn may_grow(&self, found: &Found) -> bool {
        found.advanced || (found.sacked && self.reordering > super::sender::DUP_THRESHOLD)
    }

    /// Begins a reduction of the window, as the kernel's `tcp_init_cwnd_reduction`.
    pub(super) fn begin_reduction(&mut self, now_ns: u64) {
        self.high_seq = self.board.next();
        self.probe_high = None;
        self.prr = (0, 0);
        self.observe(now_ns);
        self.control.reduce();
        self.queue_cwr = self.with_ecn;
    }

    /// Ends a reduction of the window, as the kernel's `tcp_end_cwnd_reduction`.
    pub(super) fn end_reduction(&mut self) {
        let ssthresh = self.control.ssthresh();
        if ssthresh < WINDOW_MAX && (self.ca_state == CaState::Cwr || self.undo_marker.is_some()) {
            self.control.set_cwnd(ssthresh);
        }
    }

    /// RFC 6937, section 3.1: below the threshold by its slow-start bound where the repair makes progress, by the
    /// conservative one otherwise.
    pub(super) fn reduce_proportionally(&mut self, delivered: u32, newly_lost: bool, advanced: bool) {
        let prior = u64::from(self.control.conn.prior_cwnd_segments);
        if delivered == 0 || prior == 0 {
            return;
        }
        self.prr.0 += delivered;
        let (ssthresh, in_flight) = (self.control.ssthresh(), self.board.in_flight());
        let (prr_delivered, prr_out) = self.prr;
        let room = if in_flight > ssthresh {
            let share = (u64::from(ssthresh) * u64::from(prr_delivered)).div_ceil(prior);
            (share as u32).saturating_sub(prr_out)
        } else {
            let bound = prr_delivered.saturating_sub(prr_out).max(delivered);
            (ssthresh - in_flight).min(bound + u32::from(advanced && !newly_lost))
        };
        // The first retransmission always leaves.
        let room = room.max(u32::from(prr_out == 0));
        self.control.set_cwnd(in_flight + room);
    }

    /// The threshold an undo goes back to.
    pub(super) fn current_ssthresh(&self) -> u32 {
        if self.in_reduction() {
            return self.control.ssthresh();
        }
        let cwnd = self.control.cwnd();
        self.control.ssthresh().max((cwnd >> 1) + (cwnd >> 2))
    }

    /// tcp_cwnd_validate: remembers whether the window was used up in the last window of sending.
    pub(super) fn validate(&mut self, now_ns: u64, is_limited: bool) {
        let packets_out = self.board.packets_out();
        let known = self.control.conn.is_cwnd_limited > 0;
        let fuller = !known && packets_out > self.max_packets_out;
        if self.board.una >= self.usage_seq || is_limited || fuller {
            self.control.conn.is_cwnd_limited = u32::from(is_limited);
            self.max_packets_out = packets_out;
            self.usage_seq = self.board.next();
        }
        if self.is_window_used() {
            (self.used_cwnd, self.used_at_ns) = (0, now_ns);
            return;
        }
        self.used_cwnd = self.used_cwnd.max(packets_out);
        if now_ns.saturating_sub(self.used_at_ns) >= self.rtt.rto_us() * 1000 {
            self.shrink_unused(now_ns);
        }
    }

    /// Whether the window limits the sender, as the kernel's `tcp_is_cwnd_limited`.
    fn is_window_used(&self) -> bool {
        let cwnd = self.control.cwnd();
        self.control.conn.is_cwnd_limited > 0
            || (cwnd < self.control.ssthresh() && u64::from(cwnd) < 2 * u64::from(self.max_packets_out))
    }

    /// tcp_cwnd_application_limited: half way to what was used, each timeout.
    fn shrink_unused(&mut self, now_ns: u64) {
        let used = self.used_cwnd.max(INITIAL_WINDOW);
        if self.ca_state == CaState::Open && !self.waits_for_buffer() && used < self.control.cwnd() {
            self.control.conn.ssthresh_segments = self.current_ssthresh();
            self.control.set_cwnd((self.control.cwnd() + used) >> 1);
        }
        (self.used_cwnd, self.used_at_ns) = (0, now_ns);
    }

    /// A connection that was idle halves its window for every timeout of idleness (RFC 2861, tcp_cwnd_restart).
    pub(super) fn restart_after_idle(&mut self, now_ns: u64) {
        let rto_ns = self.rtt.rto_us() * 1000;
        let idle_ns = now_ns.saturating_sub(self.last_sent_ns);
        if self.board.packets_out() > 0 || self.last_sent_ns == 0 || idle_ns <= rto_ns {
            return;
        }
        self.control.conn.ssthresh_segments = self.current_ssthresh();
        let halvings = (idle_ns / rto_ns).min(31) as u32;
        let least = INITIAL_WINDOW.min(self.control.cwnd());
        self.control.set_cwnd((self.control.cwnd() >> halvings).max(least));
        self.used_at_ns = now_ns;
        self.used_cwnd = 0;
    }
}
