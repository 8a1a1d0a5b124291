//! The loss state machine: Linux's `tcp_fastretrans_alert` with RACK (RFC 8985) where SACK is on and NewReno
//! (RFC 6582) where it is off, timeouts (RFC 5681, 6298), F-RTO (RFC 5682) and undo (RFC 3522, 4015, 3708).
//!
//! States: open → disorder → recovery → open; cwr for reductions without loss; loss after a timeout. `high_seq` is
//! what had been sent when the episode began: it ends when that is acknowledged.

use super::{
    scoreboard::{Verdict, mark},
    sender::{CaState, DUP_THRESHOLD, Found, Rexmit, Sender},
    timer::Kind,
};
use longfat_cc::WINDOW_MAX;

/// Recoveries for which a longer reordering window is kept (TCP_RACK_RECOVERY_THRESH).
const RECOVERIES: u32 = 16;

impl Sender {
    /// Decides about loss, and leaves in `rexmit` what may be sent for it.
    pub(super) fn judge(&mut self, now_ns: u64, found: &mut Found) {
        self.rexmit = Rexmit::None;
        let alert = found.sacked || found.ece || found.dsack;
        if found.not_dup && !alert && self.ca_state == CaState::Open {
            return;
        }
        found.dup_acks = u32::from(!found.not_dup && !found.advanced && !found.dsack && !found.is_old);
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
        let is_known = self.board.head().is_some_and(|head| head.has(mark::LOST));
        if !is_known && (third || (self.ca_state == CaState::Recovery && advanced)) {
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
                self.timer.set(Kind::Reordering, now_ns + wait_ns + self.timer_min_ns());
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

    /// RFC 8985, section 6.2, step 4: a window that was too short, as duplicates tell, is a quarter of the round trip
    /// longer for sixteen recoveries (tcp_rack_update_reo_wnd). At most once in a round trip.
    pub(super) fn widen_reorder_window(&mut self, found: &Found) {
        let Some((prior_delivered, _)) = found.rate_from else { return };
        let delivered = self.delivered().0;
        let rack = &mut self.rack;
        rack.is_too_short &= prior_delivered >= rack.widened_at;
        if rack.is_too_short {
            rack.steps = (rack.steps + 1).min(255);
            (rack.is_too_short, rack.widened_at, rack.persist) = (false, delivered, RECOVERIES);
        } else if rack.persist == 0 {
            rack.steps = 1;
        }
    }

    /// RFC 8985, section 6.2, step 4: none once three segments are sacked or in recovery, unless the path is known
    /// to reorder.
    fn reorder_window_ns(&self) -> u64 {
        if !self.is_reordered
            && (self.ca_state >= CaState::Recovery || self.board.sacked_out >= DUP_THRESHOLD)
        {
            return 0;
        }
        let quarters_us = u64::from(self.rtt.min_us()) / 4 * u64::from(self.rack.steps);
        quarters_us.min(u64::from(self.rtt.srtt_us())) * 1000
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
        // Retransmissions in flight may be for nothing, too, a probe's among them.
        let probes = u32::from(self.probe_high.is_some() && self.probe_repeated);
        self.undo_retrans = match self.board.retrans_out + probes {
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
        if self.ca_state <= CaState::Disorder && self.board.sacked_out >= DUP_THRESHOLD {
            self.reordering = self.reordering.min(DUP_THRESHOLD);
        }
        self.ca_state = CaState::Loss;
        self.high_seq = self.board.next();
        self.probe_high = None;
        self.queue_cwr = self.with_ecn;
        self.frto = was_below_recovery || self.timeouts_in_row > 0;
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
        // Timestamps tick in milliseconds of the kernel's (RFC 7323, section 5.4).
        let tick = |ns: u64| ns * u64::from(self.times_slower) / 1_000_000;
        self.retrans_stamp_ns > 0 && found.echo_ns > 0 && tick(found.echo_ns) < tick(self.retrans_stamp_ns)
    }

    fn may_undo(&self, found: &Found) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == 0 || self.is_delayed(found))
    }

    /// Returns whether the state is to be kept until more is acknowledged (RFC 6582, section 4: no SACK).
    fn try_undo_recovery(&mut self, found: &Found) -> bool {
        if self.may_undo(found) {
            self.undo_reduction(false);
        } else {
            self.rack.persist = self.rack.persist.saturating_sub(1);
        }
        if self.has_to_stay() {
            return true;
        }
        self.ca_state = CaState::Open;
        false
    }

    /// Without SACK, duplicates of what was just acknowledged are still under way: an episode lasts until more is
    /// (tcp_is_non_sack_preventing_reopen).
    fn has_to_stay(&mut self) -> bool {
        let has_to = self.board.una == self.high_seq && !self.with_sack;
        if has_to && !self.any_retrans() {
            self.retrans_stamp_ns = 0;
        }
        has_to
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
        if !self.any_retrans() {
            self.retrans_stamp_ns = 0;
        }
        self.undo_reduction(true);
        self.keep_open();
        false
    }

    pub(super) fn try_undo_dsack(&mut self) -> bool {
        let undo = self.undo_marker.is_some() && self.undo_retrans == 0;
        if undo {
            self.rack.persist = (self.rack.persist + 1).min(RECOVERIES);
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
        if !self.has_to_stay() && (by_frto || self.with_sack) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{packet::Segment, scenario::EndpointPlan, tcp::scoreboard::Sent};
    use longfat_cc::{Algorithm, Tunables};

    const MSS_BYTES: u32 = 1000;
    const MS: u64 = 1_000_000;

    /// A sender without SACK that has sent `segments` and has as many more to send.
    fn newreno(segments: u64) -> Sender {
        let plan = EndpointPlan { sack: false, ..EndpointPlan::default() };
        let reno = Tunables::defaults(Algorithm::find("reno").unwrap());
        let mut sender = Sender::new(&plan, reno, MSS_BYTES);
        sender.edge_bytes = 1 << 30;
        sender.write(2 * segments * u64::from(MSS_BYTES));
        (0..segments).for_each(|n| send(&mut sender, n * MS / 10));
        sender
    }

    fn send(sender: &mut Sender, sent_ns: u64) {
        let sent = Sent { sent_ns, delivered_ns: 0, delivered: 0, length_bytes: MSS_BYTES, flags: 0 };
        sender.board.push(sent);
        sender.next_bytes += u64::from(MSS_BYTES);
    }

    fn acknowledge(sender: &mut Sender, ack: u64, at_ns: u64) {
        let window_bytes = (1 << 30) - ack as u32 * MSS_BYTES;
        sender.on_ack(&Segment { ack, window_bytes, ..Segment::default() }, at_ns);
    }

    #[test]
    fn without_sack_too_new_segments_tell_whether_a_timeout_was_for_nothing() {
        let mut sender = newreno(10);
        sender.enter_loss(300 * MS);
        sender.board.count_retrans(0);
        sender.board.sent_again(0, 300 * MS, 0, 0);
        // More than what was sent again, but some of it was: that alone proves nothing.
        acknowledge(&mut sender, 4, 400 * MS);
        assert_eq!((sender.ca_state, sender.rexmit), (CaState::Loss, Rexmit::New));
        send(&mut sender, 400 * MS);
        send(&mut sender, 400 * MS);
        // A duplicate: what is missing was lost.
        acknowledge(&mut sender, 4, 500 * MS);
        assert_eq!((sender.ca_state, sender.rexmit), (CaState::Loss, Rexmit::Lost));
    }

    #[test]
    fn more_duplicates_than_can_be_missing_are_waited_for_from_then_on() {
        let mut sender = newreno(6);
        let duplicates = |sender: &mut Sender, times: usize, at_ms: u64| {
            (0..times).for_each(|_| acknowledge(sender, sender.board.una, at_ms * MS));
        };
        acknowledge(&mut sender, 1, 90 * MS);
        duplicates(&mut sender, 4, 100);
        assert_eq!((sender.ca_state, sender.board.sacked_out, sender.reordering), (CaState::Recovery, 4, 3));
        // Of five segments one is missing.
        duplicates(&mut sender, 1, 110);
        assert_eq!((sender.board.sacked_out, sender.reordering), (4, 5));
        acknowledge(&mut sender, 6, 200 * MS);
        (0..10).for_each(|_| send(&mut sender, 200 * MS));
        acknowledge(&mut sender, 7, 300 * MS);
        duplicates(&mut sender, 4, 310);
        assert_eq!(sender.ca_state, CaState::Disorder);
        duplicates(&mut sender, 1, 320);
        assert_eq!(sender.ca_state, CaState::Recovery);
    }

    #[test]
    fn a_retransmission_that_is_out_is_not_sent_again_by_a_partial_acknowledgement() {
        let mut sender = newreno(10);
        acknowledge(&mut sender, 1, 90 * MS);
        (0..3).for_each(|_| acknowledge(&mut sender, 1, 100 * MS));
        assert_eq!((sender.ca_state, sender.board.lost_out), (CaState::Recovery, 1));
        sender.board.mark_lost(3);
        sender.board.count_retrans(3);
        acknowledge(&mut sender, 3, 200 * MS);
        assert_eq!((sender.board.lost_out, sender.board.retrans_out), (1, 1));
    }
}
