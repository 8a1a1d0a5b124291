//! The loss state machine: Linux's `tcp_fastretrans_alert` with RACK (RFC 8985) where SACK is on and NewReno
//! (RFC 6582) where it is off, timeouts (RFC 5681, 6298), F-RTO (RFC 5682) and undo (RFC 3522, 4015, 3708).
//!
//! States: open → disorder → recovery → open; cwr for reductions without loss; loss after a timeout. `high_seq` is
//! what had been sent when the episode began: it ends when that is acknowledged.

use super::{
    scoreboard::{Verdict, mark},
    sender::{CaState, DUP_THRESHOLD, Found, Rexmit, Sender},
    timer::{Kind, TIMER_MIN_NS},
};
use longfat_cc::WINDOW_MAX;

impl Sender {
    /// Decides about loss, and leaves in `rexmit` what may be sent for it.
    pub(super) fn judge(&mut self, now_ns: u64, found: &mut Found) {
        self.rexmit = Rexmit::None;
        let alert = found.sacked || found.ece || found.dsack;
        if found.not_dup && !alert && self.ca_state == CaState::Open {
            return;
        }
        found.dup_acks = u32::from(!found.not_dup && !found.advanced && !found.dsack);
        if found.ece {
            self.prior_ssthresh = 0;
        }
        if self.end_episode(found) {
            return;
        }
        let go_on = match self.ca_state {
            CaState::Recovery => self.in_recovery(now_ns, found),
            CaState::Loss => self.in_loss(now_ns, found),
            _ => self.in_open(now_ns, found),
        };
        if go_on {
            self.rexmit = Rexmit::Lost;
        }
    }

    /// Ends an episode whose `high_seq` is acknowledged. Returns whether nothing more is to be decided.
    fn end_episode(&mut self, found: &Found) -> bool {
        if self.ca_state == CaState::Open {
            self.retrans_stamp_ns = 0;
            return false;
        }
        if self.board.una < self.high_seq {
            return false;
        }
        match self.ca_state {
            // The CWR flag must reach the receiver: something above high_seq has to be acknowledged.
            CaState::Cwr if self.board.una > self.high_seq => {
                self.end_reduction();
                self.ca_state = CaState::Open;
            }
            CaState::Recovery => {
                if !self.with_sack {
                    self.board.sacked_out = 0;
                }
                if self.try_undo_recovery(found) {
                    return true;
                }
                self.end_reduction();
            }
            _ => {}
        }
        false
    }

    fn in_recovery(&mut self, now_ns: u64, found: &mut Found) -> bool {
        if !found.advanced {
            if !self.with_sack {
                self.add_reno_sack(found);
            }
        } else if self.try_undo_partial(found) {
            return false;
        }
        if self.try_undo_dsack() {
            self.try_open(found, now_ns);
        }
        self.find_losses(now_ns, found);
        if self.ca_state != CaState::Recovery {
            if self.board.lost_out == 0 {
                return false;
            }
            self.enter_recovery(now_ns, found.ece);
        }
        true
    }

    fn in_loss(&mut self, now_ns: u64, found: &mut Found) -> bool {
        let repair = self.process_loss(found);
        self.find_losses(now_ns, found);
        if self.ca_state != CaState::Open && !found.lost_retrans {
            if repair == Rexmit::New {
                self.rexmit = Rexmit::New;
                return false;
            }
            return repair == Rexmit::Lost;
        }
        self.in_open(now_ns, found)
    }

    fn in_open(&mut self, now_ns: u64, found: &mut Found) -> bool {
        if !self.with_sack {
            if found.advanced {
                self.board.sacked_out = 0;
            }
            self.add_reno_sack(found);
        }
        if self.ca_state <= CaState::Disorder {
            self.try_undo_dsack();
        }
        self.find_losses(now_ns, found);
        if self.board.lost_out == 0 {
            self.try_open(found, now_ns);
            return false;
        }
        self.enter_recovery(now_ns, found.ece);
        true
    }

    /// Finds losses, as the kernel's `tcp_identify_packet_loss`.
    fn find_losses(&mut self, now_ns: u64, found: &mut Found) {
        if self.board.packets_out() == 0 {
            return;
        }
        if !self.with_sack {
            self.newreno_mark_lost(found.advanced);
            return;
        }
        let before = self.board.retrans_out;
        if self.rack_mark_lost(now_ns) {
            found.set_timer = false;
        }
        found.lost_retrans |= self.board.retrans_out < before;
    }

    /// The head is lost after three duplicates, and at every partial acknowledgement (RFC 6582).
    fn newreno_mark_lost(&mut self, advanced: bool) {
        let third = self.ca_state < CaState::Recovery && self.board.sacked_out >= self.reordering;
        if third || (self.ca_state == CaState::Recovery && advanced) {
            self.board.mark_lost(self.board.una);
        }
    }

    /// Looks for losses by time. Returns whether the reordering timer was set.
    fn rack_mark_lost(&mut self, now_ns: u64) -> bool {
        if !self.rack.advanced {
            return false;
        }
        self.rack.advanced = false;
        match self.rack_detect(now_ns) {
            0 => false,
            wait_ns => {
                self.timer.set(Kind::Reordering, now_ns + wait_ns + TIMER_MIN_NS);
                true
            }
        }
    }

    /// Marks what was overtaken longer ago than the reordering window; returns how long the rest has to wait.
    pub(super) fn rack_detect(&mut self, now_ns: u64) -> u64 {
        let (rack, window_ns) = (self.rack, self.reorder_window_ns());
        let mut wait_ns = 0;
        self.board.scan(|sent_ns, number| {
            if (rack.sent_ns, rack.number) <= (sent_ns, number) {
                return Verdict::Later;
            }
            let (limit_ns, age_ns) = (rack.rtt_ns + window_ns, now_ns - sent_ns);
            if age_ns >= limit_ns {
                return Verdict::Lost;
            }
            wait_ns = wait_ns.max(limit_ns - age_ns);
            Verdict::Wait
        });
        wait_ns
    }

    /// RFC 8985, section 6.2, step 4: none once three segments are sacked or in recovery, unless the path is known
    /// to reorder.
    fn reorder_window_ns(&self) -> u64 {
        if !self.is_reordered
            && (self.ca_state >= CaState::Recovery || self.board.sacked_out >= DUP_THRESHOLD)
        {
            return 0;
        }
        let quarter_us = u64::from(self.rtt.min_us()) / 4;
        quarter_us.min(u64::from(self.rtt.srtt_us())) * 1000
    }

    /// Goes back to the open state, as the kernel's `tcp_try_to_open`.
    fn try_open(&mut self, found: &Found, now_ns: u64) {
        if !self.any_retrans() {
            self.retrans_stamp_ns = 0;
        }
        if found.ece {
            self.enter_cwr(now_ns);
        }
        if self.ca_state != CaState::Cwr {
            self.keep_open();
        }
    }

    /// Stays open if nothing is lost, as the kernel's `tcp_try_keep_open`.
    pub(super) fn keep_open(&mut self) {
        let left = self.board.sacked_out + self.board.lost_out > 0 || self.any_retrans();
        let state = if left { CaState::Disorder } else { CaState::Open };
        if self.ca_state != state {
            self.ca_state = state;
            self.high_seq = self.board.next();
        }
    }

    fn any_retrans(&self) -> bool {
        self.board.retrans_out > 0 || self.board.head().is_some_and(|head| head.has(mark::EVER_RETRANS))
    }

    /// ECN: a reduction without a loss (RFC 3168, section 6.1.2), at most once per window.
    fn enter_cwr(&mut self, now_ns: u64) {
        self.prior_ssthresh = 0;
        if self.ca_state < CaState::Cwr {
            self.undo_marker = None;
            self.begin_reduction(now_ns);
            self.ca_state = CaState::Cwr;
        }
    }

    fn enter_recovery(&mut self, now_ns: u64, ece: bool) {
        self.prior_ssthresh = 0;
        self.init_undo();
        if !self.in_reduction() {
            if !ece {
                self.prior_ssthresh = self.current_ssthresh();
            }
            self.begin_reduction(now_ns);
        }
        self.ca_state = CaState::Recovery;
    }

    /// The reordering timer found losses: recovery begins without an acknowledgement.
    pub(super) fn recover_by_timer(&mut self, now_ns: u64) {
        if self.ca_state != CaState::Recovery {
            self.enter_recovery(now_ns, false);
            self.reduce_proportionally(1, true, false);
        }
    }

    fn init_undo(&mut self) {
        self.undo_marker = Some(self.board.una);
        // Retransmissions in flight may be for nothing, too.
        self.undo_retrans = match self.board.retrans_out {
            0 => -1,
            out => i64::from(out),
        };
    }

    /// The retransmission timer expired (tcp_enter_loss).
    pub(super) fn enter_loss(&mut self, now_ns: u64) {
        self.mark_lost_by_timeout(now_ns);
        let new_episode = self.ca_state <= CaState::Disorder
            || self.board.una >= self.high_seq
            || (self.ca_state == CaState::Loss && self.timeouts_in_row == 0);
        if new_episode {
            self.prior_ssthresh = self.current_ssthresh();
            self.observe(now_ns);
            self.control.reduce();
            self.init_undo();
        }
        let was_below_recovery = self.ca_state < CaState::Recovery;
        self.control.set_cwnd(self.board.in_flight() + 1);
        self.control.conn.cwnd_credit_segments = 0;
        self.reordering = self.reordering.min(if new_episode { DUP_THRESHOLD } else { u32::MAX });
        self.ca_state = CaState::Loss;
        self.high_seq = self.board.next();
        self.probe_high = None;
        self.queue_cwr = self.with_ecn;
        self.frto = self.with_sack && (was_below_recovery || self.timeouts_in_row > 0);
    }

    fn mark_lost_by_timeout(&mut self, now_ns: u64) {
        if !self.with_sack {
            self.board.sacked_out = 0;
        }
        let rtt_ns = self.rack.rtt_ns;
        for number in self.board.una..self.board.next() {
            // What was sent less than a round trip ago may still arrive.
            let recent = self.with_sack && now_ns - self.board.get(number).sent_ns < rtt_ns;
            if number == self.board.una || !recent {
                self.board.mark_lost(number);
            }
        }
    }

    /// tcp_process_loss: what to do on an acknowledgement after a timeout.
    fn process_loss(&mut self, found: &mut Found) -> Rexmit {
        let recovered = self.board.una >= self.high_seq;
        if found.advanced && self.try_undo_loss(false, found) {
            return Rexmit::None;
        }
        if self.frto {
            // Step 3b: data sent once, before the timeout, has arrived.
            if found.original_acked && self.try_undo_loss(true, found) {
                return Rexmit::None;
            }
            if self.board.next() > self.high_seq {
                self.frto &= !(found.sacked || found.dup_acks > 0);
            } else if found.advanced && !recovered {
                self.high_seq = self.board.next();
                if self.can_send_new() {
                    return Rexmit::New;
                }
                self.frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery(found);
            return Rexmit::None;
        }
        if !self.with_sack {
            if self.board.next() > self.high_seq && found.dup_acks > 0 {
                self.add_reno_sack(found);
            } else if found.advanced {
                self.board.sacked_out = 0;
            }
        }
        Rexmit::Lost
    }

    /// The acknowledgement echoes a time before the first retransmission: the original arrived (RFC 3522).
    fn is_delayed(&self, found: &Found) -> bool {
        // Timestamps tick in milliseconds (RFC 7323, section 5.4).
        let tick = |ns: u64| ns / 1_000_000;
        self.retrans_stamp_ns > 0 && found.echo_ns > 0 && tick(found.echo_ns) < tick(self.retrans_stamp_ns)
    }

    fn may_undo(&self, found: &Found) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == 0 || self.is_delayed(found))
    }

    /// Returns whether the state is to be kept until more is acknowledged (RFC 6582, section 4: no SACK).
    fn try_undo_recovery(&mut self, found: &Found) -> bool {
        if self.may_undo(found) {
            self.undo_reduction(false);
        }
        if self.board.una == self.high_seq && !self.with_sack {
            if !self.any_retrans() {
                self.retrans_stamp_ns = 0;
            }
            return true;
        }
        self.ca_state = CaState::Open;
        false
    }

    /// Returns whether nothing more should be taken for lost now.
    fn try_undo_partial(&mut self, found: &Found) -> bool {
        if self.undo_marker.is_none() || !self.is_delayed(found) {
            return false;
        }
        self.is_reordered |= self.with_sack;
        if self.board.retrans_out > 0 {
            return true;
        }
        self.undo_reduction(true);
        self.keep_open();
        false
    }

    fn try_undo_dsack(&mut self) -> bool {
        let undo = self.undo_marker.is_some() && self.undo_retrans == 0;
        if undo {
            self.undo_reduction(false);
        }
        undo
    }

    fn try_undo_loss(&mut self, by_frto: bool, found: &Found) -> bool {
        if !by_frto && !self.may_undo(found) {
            return false;
        }
        self.undo_reduction(true);
        self.timeouts_in_row = 0;
        if by_frto || self.with_sack {
            self.ca_state = CaState::Open;
        }
        true
    }

    fn undo_reduction(&mut self, unmark: bool) {
        if unmark {
            self.board.unmark_lost();
        }
        if self.prior_ssthresh > 0 {
            self.control.undo();
            if self.prior_ssthresh > self.control.ssthresh() {
                self.control.conn.ssthresh_segments = self.prior_ssthresh.min(WINDOW_MAX);
                self.queue_cwr = false;
            }
        }
        self.undo_marker = None;
        self.rack.advanced = true;
    }
}
