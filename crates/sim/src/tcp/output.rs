//! Sending: new data as the windows allow (tcp_write_xmit), what is lost (tcp_xmit_retransmit_queue), pacing.

use super::{
    bundle::Bundle,
    receiver::Receiver,
    scoreboard::{Sent, mark},
    send_buffer::Push,
    sender::{Limit, Rexmit, Sender},
    timer::Kind,
};
use crate::{
    net::Net,
    packet::{Family, Segment, flag},
};
use longfat_link::model::Ecn;

/// Where a sender's segments go: every one carries the newest acknowledgement.
pub struct Outlet<'a> {
    /// The network.
    pub net: &'a mut Net,
    /// The other half of the connection.
    pub receiver: &'a mut Receiver,
    /// Start of the route to the peer.
    pub route: u32,
    /// The peer.
    pub to: u32,
    /// Version of IP.
    pub family: Family,
}

impl Outlet<'_> {
    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.net.now_ns
    }

    /// Sends a segment; `fill` gives what is particular to it.
    pub fn emit(&mut self, flags: u8, number: u64, payload_bytes: u32, ecn: Ecn) {
        let mut segment = Segment {
            to: self.to,
            family: self.family,
            flags,
            number,
            payload_bytes,
            sent_ns: self.net.now_ns,
            ..Segment::default()
        };
        self.receiver.acknowledge(&mut segment);
        self.net.send(segment, self.route, ecn);
    }

    /// Sends an acknowledgement of its own.
    pub fn acknowledge(&mut self) {
        self.emit(flag::ACK, 0, 0, Ecn::NotEct);
    }

    /// Asks for an acknowledgement.
    pub fn probe(&mut self) {
        self.emit(flag::PROBE, 0, 0, Ecn::NotEct);
    }
}

impl Sender {
    /// Bytes written and never sent.
    pub fn unsent_bytes(&self) -> u64 {
        self.written_bytes - self.next_bytes
    }

    fn next_length(&self) -> u64 {
        self.unsent_bytes().min(u64::from(self.mss_bytes))
    }

    /// Whether there is a new segment that the peer's window takes.
    pub(super) fn can_send_new(&self) -> bool {
        let length = self.next_length();
        length > 0 && self.next_bytes + length <= self.edge_bytes
    }

    /// Sends what the acknowledgement just processed allows.
    pub fn send_after_ack(&mut self, out: &mut Outlet) {
        match std::mem::replace(&mut self.rexmit, Rexmit::None) {
            Rexmit::None => {}
            Rexmit::Lost => self.send_lost(out),
            Rexmit::New => {
                self.send_new(Push::Whole, out);
                if self.board.next() <= self.high_seq {
                    self.frto = false;
                    self.send_lost(out);
                }
            }
        }
        self.send_new(Push::Whole, out);
    }

    /// Retransmits lost segments as far as the window allows, the lowest first.
    pub(super) fn send_lost(&mut self, out: &mut Outlet) {
        let mut rearm = false;
        while self.board.in_flight() < self.control.cwnd() && !self.is_pacing(out.now_ns()) {
            let Some(number) = self.board.next_lost() else { break };
            self.retransmit(number, out);
            self.prr.1 += u32::from(self.in_reduction());
            rearm |= number == self.board.una && self.timer.kind != Kind::Reordering;
        }
        if rearm {
            self.restart_rto(out.now_ns());
        }
    }

    /// Retransmits a segment: until it is acknowledged or found lost again, the retransmission is in flight.
    pub(super) fn retransmit(&mut self, number: u64, out: &mut Outlet) {
        self.board.count_retrans(number);
        if self.retrans_stamp_ns == 0 {
            self.retrans_stamp_ns = out.now_ns();
        }
        self.undo_retrans = self.undo_retrans.max(0) + 1;
        self.send_again(number, out);
    }

    /// Sends a segment again. Not ECN-capable (RFC 3168, section 6.1.5).
    pub(super) fn send_again(&mut self, number: u64, out: &mut Outlet) {
        let now_ns = out.now_ns();
        let (delivered, delivered_ns) = self.delivered();
        let sent = self.board.sent_again(number, now_ns, delivered, delivered_ns);
        self.retransmitted_segments += 1;
        self.retransmitted_bytes += u64::from(sent.length_bytes);
        self.count_sent(sent.length_bytes, now_ns);
        let push = if sent.has(mark::PUSH) { flag::PSH } else { 0 };
        out.emit(push, number, sent.length_bytes, Ecn::NotEct);
    }

    fn count_sent(&mut self, length_bytes: u32, now_ns: u64) {
        self.sent_bytes += u64::from(length_bytes);
        self.last_sent_ns = now_ns;
        if self.is_paced {
            self.pace(length_bytes, now_ns);
        }
    }

    /// Sends new segments as far as both windows allow, and what is asked for.
    pub fn send_new(&mut self, push: Push, out: &mut Outlet) {
        let now_ns = out.now_ns();
        let mut sent = false;
        let mut limit = Limit::None;
        let (mut bundle_segments, mut waits_for_cwnd) = (0, false);
        let (mut in_skb, most_in_skb) = (0, self.bundle_segments());
        self.tell_sending(now_ns);
        while self.next_bytes < self.written_bytes && !self.is_pacing(now_ns) {
            if self.board.in_flight() >= self.control.cwnd() {
                break;
            }
            if !self.can_send_new() {
                limit = Limit::ReceiveWindow;
                break;
            }
            if self.holds_next(push, self.next_length())
                || (push == Push::Bundle && sent && bundle_segments == 0)
            {
                break;
            }
            if bundle_segments == 0 {
                match self.next_bundle(push, now_ns) {
                    Bundle::Leaves(segments) => bundle_segments = segments,
                    Bundle::Waits { by_cwnd } => {
                        waits_for_cwnd = by_cwnd;
                        break;
                    }
                }
            }
            bundle_segments -= 1;
            self.restart_after_idle(now_ns);
            self.transmit_next(in_skb == 0, out);
            in_skb = (in_skb + 1) % most_in_skb;
            self.prr.1 += u32::from(self.in_reduction());
            sent = true;
        }
        let is_limited = waits_for_cwnd || self.board.in_flight() >= self.control.cwnd();
        if sent || is_limited {
            self.validate(now_ns, is_limited);
        }
        if sent {
            self.schedule_probe(now_ns, false);
        }
        if limit == Limit::ReceiveWindow {
            self.schedule_window_probe(now_ns);
        } else if self.unsent_bytes() < u64::from(self.mss_bytes) && self.waits_for_buffer() {
            limit = Limit::SendBuffer;
        }
        self.note_limit(limit, now_ns);
    }

    /// Sends one new segment. The CWR flag answers an echo once (RFC 3168, section 6.1.2).
    pub(super) fn transmit_next(&mut self, begins_skb: bool, out: &mut Outlet) {
        let now_ns = out.now_ns();
        if self.board.packets_out() == 0 {
            self.restart_rate(now_ns);
        }
        if self.board.in_flight() == 0 {
            self.observe(now_ns);
            self.control.on_restart();
        }
        let length_bytes = self.next_length() as u32;
        let push = self.next_bytes + u64::from(length_bytes) == self.written_bytes;
        let number = self.board.next();
        let (delivered, delivered_ns) = self.delivered();
        self.board.push(Sent {
            sent_ns: now_ns,
            delivered_ns,
            delivered,
            length_bytes,
            flags: if push { mark::PUSH } else { 0 } | if begins_skb { mark::SKB } else { 0 },
        });
        self.next_bytes += u64::from(length_bytes);
        if length_bytes < self.mss_bytes {
            self.small_end_bytes = self.next_bytes;
        }
        self.count_sent(length_bytes, now_ns);
        let cwr = std::mem::take(&mut self.queue_cwr);
        let flags = if push { flag::PSH } else { 0 } | if cwr { flag::CWR } else { 0 };
        let ecn = if self.with_ecn { Ecn::Ect0 } else { Ecn::NotEct };
        out.emit(flags, number, length_bytes, ecn);
        if self.board.packets_out() == 1 || self.timer.kind == Kind::LossProbe {
            self.rearm_rto(now_ns);
        }
    }

    /// Whether the application has more to write than the buffer takes.
    pub(super) fn waits_for_buffer(&self) -> bool {
        self.free_bytes() < u64::from(self.mss_bytes)
    }

    fn note_limit(&mut self, limit: Limit, now_ns: u64) {
        if self.limit.0 != limit {
            self.limited_ns = self.limited_ns(now_ns);
            self.limit = (limit, now_ns);
        }
    }

    /// Time spent limited by the peer's window, and by the send buffer.
    pub fn limited_ns(&self, now_ns: u64) -> [u64; 2] {
        let ([by_window, by_buffer], (limit, since_ns)) = (self.limited_ns, self.limit);
        match limit {
            Limit::None => [by_window, by_buffer],
            Limit::ReceiveWindow => [by_window + now_ns - since_ns, by_buffer],
            Limit::SendBuffer => [by_window, by_buffer + now_ns - since_ns],
        }
    }
}
