//! The sending half of a connection: its state, and what an acknowledgement does to it.
//!
//! The order of things is Linux's `tcp_ack`: SACK blocks, cumulative acknowledgement, loss state
//! (`super::recovery`), timer (`super::timer`), window (RFC 6937 in reductions, the algorithm otherwise). Sending is
//! in `super::output`.

use super::{
    control::Control,
    rtt::Rtt,
    scoreboard::{Scoreboard, Sent, mark},
    timer::Timer,
};
use crate::{
    packet::{Family, Segment, flag},
    scenario::{EndpointPlan, SendBuffer},
};
use longfat_cc::Tunables;
use longfat_schema::send_buffer::{SKB_BYTES, reserved_bytes};

/// Duplicate acknowledgements that mean a loss (RFC 5681), and the reordering assumed at first (tcp_reordering).
pub const DUP_THRESHOLD: u32 = 3;
/// Most reordering that is learnt (tcp_max_reordering).
const REORDERING_MAX: u64 = 300;

/// Recovery state (tcp_ca_state); the numbers are the contract's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaState {
    /// No loss, and no sign of one.
    Open = 0,
    /// Duplicate acknowledgements or SACK, no loss yet.
    Disorder = 1,
    /// The window is being reduced without a loss (ECN, a probe).
    Cwr = 2,
    /// Losses are being repaired.
    Recovery = 3,
    /// After a retransmission timeout.
    Loss = 4,
}

impl CaState {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            CaState::Open => "open",
            CaState::Disorder => "disorder",
            CaState::Cwr => "cwr",
            CaState::Recovery => "recovery",
            CaState::Loss => "loss",
        }
    }
}

/// What an acknowledgement turned out to be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// Whether the ACK acknowledged new segments cumulatively.
    pub advanced: bool,
    /// Whether the ACK acknowledged segments selectively for the first time.
    pub sacked: bool,
    /// Whether the ACK was overtaken by a later one.
    pub is_old: bool,
    /// Whether the ACK carried data or moved the window.
    pub not_dup: bool,
    /// Whether the ACK echoed congestion.
    pub ece: bool,
    /// Whether the ACK told of a duplicate.
    pub dsack: bool,
    /// Whether the ACK acknowledged something that had been retransmitted.
    pub retrans_acked: bool,
    /// Whether the ACK acknowledged something never retransmitted, sent before the reduction began.
    pub original_acked: bool,
    /// A retransmission was found lost.
    pub lost_retrans: bool,
    /// The timer is to start anew.
    pub set_timer: bool,
    /// 1 for a duplicate acknowledgement.
    pub dup_acks: u32,
    /// One past the highest segment known to have arrived, before the acknowledgement.
    pub prior_high: u64,
    /// Time the earliest segment newly acknowledged in order took.
    pub rtt_ns: Option<u64>,
    /// Time the earliest segment newly acknowledged selectively took.
    pub sack_rtt_ns: Option<u64>,
    /// Time the latest segment newly acknowledged took.
    pub last_rtt_ns: Option<u64>,
    /// Lowest segment that arrived late without being retransmitted.
    pub late: Option<u64>,
    /// The time the acknowledgement echoes.
    pub echo_ns: u64,
    /// Deliveries, and when the newest happened, as the newest delivered segment left.
    pub rate_from: Option<(u64, u64)>,
}

/// RACK's state (RFC 8985, section 6).
#[derive(Debug, Clone, Copy, Default)]
pub struct Rack {
    /// When the most recently sent of the delivered segments was sent.
    pub sent_ns: u64,
    /// Number of that segment.
    pub number: u64,
    /// How long its delivery took.
    pub rtt_ns: u64,
    /// Something newer was delivered since the last look.
    pub advanced: bool,
    /// Quarters of the least round trip for which a segment may come late.
    pub steps: u32,
    /// Recoveries for which these are kept.
    pub persist: u32,
    /// A duplicate told that the window was too short.
    pub is_too_short: bool,
    /// How many segments were delivered when it was last made longer.
    pub widened_at: u64,
}

/// The newest rate sample.
#[derive(Debug, Clone, Copy, Default)]
struct Delivery {
    segments: u64,
    at_ns: u64,
    rate_bps: u64,
}

/// Why nothing more is being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Congestion window, or nothing to send.
    None,
    /// The peer's window.
    ReceiveWindow,
    /// The send buffer: the application waits for room.
    SendBuffer,
}

/// What an acknowledgement allows beyond new data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rexmit {
    /// The acknowledgement allows new data, and nothing more.
    None,
    /// Retransmit what is lost.
    Lost,
    /// Send new data first: whether the timeout was spurious shows by it (RFC 5682, step 2b).
    New,
}

/// The sending half.
#[derive(Debug)]
pub struct Sender {
    /// Congestion control.
    pub control: Control,
    /// Segments outstanding.
    pub board: Scoreboard,
    /// Round-trip time.
    pub rtt: Rtt,
    /// Recovery state.
    pub ca_state: CaState,
    /// Bytes the application has written.
    pub written_bytes: u64,
    /// Stream position of the next new segment.
    pub next_bytes: u64,
    /// Bytes acknowledged cumulatively.
    pub acked_bytes: u64,
    /// Right edge of the peer's window.
    pub edge_bytes: u64,
    /// Segments retransmitted.
    pub retransmitted_segments: u64,
    /// Bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Bytes sent, retransmissions included.
    pub sent_bytes: u64,
    /// Segments delivered by acknowledgements that echoed congestion.
    pub marked_segments: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Segments that the peer reported to have come twice (DSACK).
    pub duplicate_segments: u64,
    /// Version of IP by which segments go.
    pub family: Family,
    /// Probes that sent a segment again.
    pub repeated_probes: u64,
    pub(super) mss_bytes: u32,
    pub(super) with_sack: bool,
    pub(super) with_ecn: bool,
    pub(super) is_paced: bool,
    pub(super) tso_win_divisor: Option<u8>,
    pub(super) times_slower: u32,
    pub(super) buffer: (u64, u64),
    /// What each buffer of the kernel's takes of it besides payload; a fixed one counts payload alone.
    pub(super) skb_bytes: u64,
    pub(super) unsent_limit_bytes: u64,
    /// Nagle's algorithm.
    pub(super) holds_small: bool,
    /// Where the newest segment that was not full ended (snd_sml).
    pub(super) small_end_bytes: u64,
    /// Where the newest of the kernel's buffers began.
    pub(super) tail_begin_bytes: u64,
    /// How far all of what was written has been pushed (pushed_seq).
    pub(super) pushed_bytes: u64,
    /// Widest window that the peer has shown (max_window).
    pub(super) widest_window_bytes: u64,
    pub(super) timer: Timer,
    /// Probes of the window since it closed.
    pub(super) window_probes: u32,
    pub(super) high_seq: u64,
    pub(super) undo_marker: Option<u64>,
    pub(super) undo_retrans: i64,
    pub(super) retrans_stamp_ns: u64,
    pub(super) prior_ssthresh: u32,
    pub(super) prr: (u32, u32),
    pub(super) frto: bool,
    pub(super) rack: Rack,
    pub(super) reordering: u32,
    pub(super) is_reordered: bool,
    pub(super) probe_high: Option<u64>,
    pub(super) probe_repeated: bool,
    pub(super) timeouts_in_row: u32,
    pub(super) queue_cwr: bool,
    pub(super) max_packets_out: u32,
    pub(super) usage_seq: u64,
    pub(super) used_cwnd: u32,
    pub(super) used_at_ns: u64,
    pub(super) last_sent_ns: u64,
    pub(super) pace_at_ns: u64,
    /// Segments that may still leave at once.
    pub(super) burst_segments: u32,
    /// Pacing rate a measuring algorithm has set, in bytes of payload per second.
    pub(super) stream_rate: Option<u64>,
    pub(super) limit: (Limit, u64),
    pub(super) limited_ns: [u64; 2],
    pub(super) rexmit: Rexmit,
    delivery: Delivery,
}

impl Sender {
    /// Sender that has sent nothing.
    pub fn new(plan: &EndpointPlan, tunables: Tunables, mss_bytes: u32) -> Sender {
        let control = Control::new(tunables, mss_bytes);
        Sender {
            is_paced: plan.pacing || control.measures(),
            tso_win_divisor: plan.tso_win_divisor,
            times_slower: plan.times_slower.max(1),
            control,
            board: Scoreboard::default(),
            rtt: Rtt::default(),
            ca_state: CaState::Open,
            written_bytes: 0,
            next_bytes: 0,
            acked_bytes: 0,
            edge_bytes: 0,
            retransmitted_segments: 0,
            retransmitted_bytes: 0,
            sent_bytes: 0,
            marked_segments: 0,
            timeouts: 0,
            duplicate_segments: 0,
            repeated_probes: 0,
            mss_bytes,
            family: Family::default(),
            with_sack: plan.sack,
            with_ecn: plan.ecn,
            buffer: plan.send_buffer.bounds(mss_bytes),
            skb_bytes: if matches!(plan.send_buffer, SendBuffer::Fixed(_)) { 0 } else { SKB_BYTES },
            unsent_limit_bytes: plan.unsent_limit_bytes.unwrap_or(u64::MAX),
            holds_small: !plan.no_delay,
            small_end_bytes: 0,
            tail_begin_bytes: 0,
            pushed_bytes: 0,
            widest_window_bytes: 0,
            timer: Timer::default(),
            window_probes: 0,
            high_seq: 0,
            undo_marker: None,
            undo_retrans: 0,
            retrans_stamp_ns: 0,
            prior_ssthresh: 0,
            prr: (0, 0),
            frto: false,
            rack: Rack { steps: 1, ..Rack::default() },
            reordering: DUP_THRESHOLD,
            is_reordered: false,
            probe_high: None,
            probe_repeated: false,
            timeouts_in_row: 0,
            queue_cwr: false,
            max_packets_out: 0,
            usage_seq: 0,
            used_cwnd: 0,
            used_at_ns: 0,
            last_sent_ns: 0,
            pace_at_ns: crate::timers::NEVER,
            burst_segments: 0,
            stream_rate: None,
            limit: (Limit::None, 0),
            limited_ns: [0; 2],
            rexmit: Rexmit::None,
            delivery: Delivery::default(),
        }
    }

    /// Segments delivered so far.
    pub fn delivered(&self) -> (u64, u64) {
        (self.delivery.segments, self.delivery.at_ns)
    }

    /// The newest delivery rate.
    pub fn delivery_rate_bps(&self) -> u64 {
        self.delivery.rate_bps
    }

    /// Changes how many bytes may wait unsent (TCP_NOTSENT_LOWAT).
    pub fn limit_unsent(&mut self, bytes: u64) {
        self.unsent_limit_bytes = bytes;
    }

    /// Whether its packets say that they can be marked.
    pub fn has_ecn(&self) -> bool {
        self.with_ecn
    }

    /// Size of the send buffer now.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer.0
    }

    /// An acknowledgement arrived. What it allows to be sent is left to `Sender::send_after_ack`.
    pub fn on_ack(&mut self, segment: &Segment, now_ns: u64) {
        let is_old = segment.ack < self.board.una;
        if segment.ack > self.board.next() || (is_old && segment.sack_count == 0) {
            return;
        }
        let mut found = Found {
            prior_high: self.board.highest_sacked(),
            ece: self.with_ecn && segment.has(flag::ECE),
            echo_ns: segment.echo_ns,
            not_dup: segment.payload_bytes > 0,
            is_old,
            ..Found::default()
        };
        let had_out = self.board.packets_out();
        let (delivered, losses) = (self.delivery.segments, self.board.losses);
        self.take_sack(segment, now_ns, &mut found);
        if had_out > 0 {
            self.take_cumulative(segment.ack, now_ns, &mut found);
            self.widen_reorder_window(&found);
        }
        self.tell_ack(now_ns);
        self.update_window(segment, &mut found);
        if had_out == 0 {
            // A duplicate of what had all been acknowledged.
            if found.dsack && self.try_undo_dsack() {
                self.keep_open();
            }
            self.end_probe(segment.ack, now_ns, &found);
            return;
        }
        self.update_rtt(now_ns, &mut found);
        self.check_reordering(&found);
        self.end_probe(segment.ack, now_ns, &found);
        self.judge(now_ns, &mut found);
        if found.set_timer {
            self.set_timer(now_ns);
        }
        let newly_delivered = (self.delivery.segments - delivered) as u32;
        self.marked_segments += if found.ece { u64::from(newly_delivered) } else { 0 };
        self.rate(newly_delivered, now_ns, &found);
        let newly_lost = self.board.losses > losses;
        self.adjust_window(now_ns, newly_delivered, newly_lost, &found);
        debug_assert!(
            self.board.packets_out() > 500 || self.board.counts_hold(self.with_sack),
            "{:?}",
            found
        );
    }

    /// RFC 2018; a first block below the acknowledgement, or inside the second, tells of a duplicate (RFC 2883).
    fn take_sack(&mut self, segment: &Segment, now_ns: u64, found: &mut Found) {
        let mut blocks = segment.sack_blocks();
        if segment.has(flag::DSACK) {
            self.take_duplicate(blocks.next(), found);
        }
        let before = self.board.sacked_out;
        let min_us = self.rtt.min_us();
        for (start, end) in blocks {
            let Sender { board, rack, high_seq, .. } = self;
            board.sack(start, end, |number, sent| {
                let rtt_ns = now_ns - sent.sent_ns;
                if !sent.has(mark::EVER_RETRANS) {
                    found.sack_rtt_ns = found.sack_rtt_ns.max(Some(rtt_ns));
                    found.last_rtt_ns = Some(rtt_ns);
                    found.original_acked |= number < *high_seq;
                    if number < found.prior_high {
                        found.late = Some(found.late.map_or(number, |late| late.min(number)));
                    }
                }
                rack.advance(number, sent, now_ns, min_us);
                found.note_rate(sent);
            });
        }
        let newly = self.board.sacked_out - before;
        found.sacked = newly > 0;
        self.delivery.segments += u64::from(newly);
    }

    fn take_duplicate(&mut self, block: Option<(u64, u64)>, found: &mut Found) {
        let Some((number, _)) = block else { return };
        found.dsack = true;
        self.duplicate_segments += 1;
        self.delivery.segments += 1;
        let is_of_probe = self.probe_high == Some(number + 1);
        self.rack.is_too_short |= self.is_reordered && !is_of_probe;
        self.board.clear_retrans(number);
        if self.undo_retrans > 0 && self.undo_marker.is_some_and(|marker| number >= marker) {
            self.undo_retrans -= 1;
        }
    }

    /// Takes out what is acknowledged in order (tcp_clean_rtx_queue).
    fn take_cumulative(&mut self, ack: u64, now_ns: u64, found: &mut Found) {
        let min_us = self.rtt.min_us();
        let mut acked = 0u32;
        while self.board.una < ack {
            let number = self.board.una;
            let Some(sent) = self.board.pop(self.with_sack) else { break };
            acked += 1;
            self.acked_bytes += u64::from(sent.length_bytes);
            let known = sent.has(mark::SACKED);
            if sent.has(mark::EVER_RETRANS) {
                found.retrans_acked = true;
            } else if !known {
                let rtt_ns = now_ns - sent.sent_ns;
                found.rtt_ns = found.rtt_ns.max(Some(rtt_ns));
                found.last_rtt_ns = Some(rtt_ns);
                found.original_acked |= number < self.high_seq;
                if number < found.prior_high {
                    found.late = Some(found.late.map_or(number, |late| late.min(number)));
                }
            }
            if !known {
                found.note_rate(&sent);
                self.rack.advance(number, &sent, now_ns, min_us);
                self.delivery.segments += u64::from(self.with_sack);
            }
        }
        if acked == 0 {
            return;
        }
        self.board.settle();
        (found.advanced, found.not_dup, found.set_timer) = (true, true, true);
        self.timeouts_in_row = 0;
        if !self.with_sack {
            self.remove_reno_sacks(acked, found);
        }
    }

    /// Without SACK every duplicate acknowledgement stands for one segment that has left the network.
    fn remove_reno_sacks(&mut self, acked: u32, found: &mut Found) {
        self.delivery.segments += u64::from(acked.saturating_sub(self.board.sacked_out).max(1));
        self.board.sacked_out = self.board.sacked_out.saturating_sub(acked - 1);
        self.limit_reno_sacks(acked);
        found.original_acked &= !found.retrans_acked;
    }

    /// One more duplicate acknowledgement.
    pub(super) fn add_reno_sack(&mut self, found: &Found) {
        let before = self.board.sacked_out;
        self.board.sacked_out += found.dup_acks;
        self.limit_reno_sacks(0);
        self.delivery.segments += u64::from(self.board.sacked_out.saturating_sub(before));
    }

    /// At least one segment is missing, or nobody would send duplicates. More duplicates than that are taken for
    /// reordering (tcp_check_reno_reordering), and this many are waited for from then on.
    fn limit_reno_sacks(&mut self, acked: u32) {
        let out = self.board.packets_out();
        let holes = self.board.lost_out.max(1).min(out);
        if self.board.sacked_out > out - holes {
            self.board.sacked_out = out - holes;
            self.reordering = (out + acked).min(REORDERING_MAX as u32);
        }
    }

    fn update_window(&mut self, segment: &Segment, found: &mut Found) {
        let edge_bytes = self.acked_bytes + u64::from(segment.window_bytes);
        self.widest_window_bytes = self.widest_window_bytes.max(segment.window_bytes.into());
        if segment.ack == self.board.una && edge_bytes > self.edge_bytes {
            self.edge_bytes = edge_bytes;
            found.not_dup = true;
        }
    }

    /// Karn's rule: what was retransmitted gives no sample, except by its timestamp.
    fn update_rtt(&mut self, now_ns: u64, found: &mut Found) {
        let in_order = found.rtt_ns.filter(|_| !found.retrans_acked);
        let by_time = (found.advanced && found.echo_ns > 0).then(|| now_ns - found.echo_ns.min(now_ns));
        let sample = in_order.or(found.sack_rtt_ns).or(by_time);
        if let Some(rtt_ns) = sample {
            self.rtt.sample(rtt_ns / 1000, self.board.una, self.board.next());
        }
        if let Some(rtt_ns) = found.last_rtt_ns.filter(|_| !found.retrans_acked || found.sacked) {
            self.rtt.sample_min(rtt_ns, now_ns);
            self.observe(now_ns);
            self.control.on_rtt_sample(u32::try_from(rtt_ns / 1000).unwrap_or(u32::MAX).max(1));
        }
        // The head was sent after what this sample measured: its own timeout starts anew, not extended.
        let head_age_ns = self.board.head().map(|head| now_ns - head.sent_ns);
        if !found.advanced && found.sack_rtt_ns.is_some() && found.sack_rtt_ns > head_age_ns {
            found.set_timer = true;
        }
    }

    /// A segment that was never retransmitted arrived late: the path reorders (tcp_check_sack_reordering).
    fn check_reordering(&mut self, found: &Found) {
        let high = self.board.highest_sacked();
        if let Some(late) = found.late.filter(|late| *late < high && self.with_sack) {
            let distance = (high - late).min(REORDERING_MAX) as u32;
            self.reordering = self.reordering.max(distance);
            self.is_reordered = true;
        }
    }

    /// An autotuned send buffer grows with the window, but only when it is what keeps the window from being used
    /// (tcp_should_expand_sndbuf).
    pub fn grow_buffer(&mut self) {
        let is_short = self.free_bytes() * 3 < self.buffer.0;
        if !is_short || self.board.in_flight() >= self.control.cwnd() {
            return;
        }
        let wanted = 2 * u64::from(self.control.cwnd()) * reserved_bytes(self.mss_bytes);
        self.buffer.0 = self.buffer.0.max(wanted.min(self.buffer.1));
    }

    /// The newest delivery rate: what was delivered since the newest delivered segment left, over that time.
    fn rate(&mut self, newly_delivered: u32, now_ns: u64, found: &Found) {
        if newly_delivered == 0 {
            return;
        }
        self.delivery.at_ns = now_ns;
        let Some((segments, at_ns)) = found.rate_from else { return };
        let span_ns = now_ns.saturating_sub(at_ns);
        if span_ns / 1000 >= u64::from(self.rtt.min_us()) {
            let bits = (self.delivery.segments - segments) * u64::from(self.mss_bytes) * 8;
            self.delivery.rate_bps = (u128::from(bits) * 1_000_000_000 / u128::from(span_ns.max(1))) as u64;
        }
    }

    /// Counts rates from now on: nothing is outstanding.
    pub(super) fn restart_rate(&mut self, now_ns: u64) {
        self.delivery.at_ns = now_ns;
    }
}

impl Found {
    fn note_rate(&mut self, sent: &Sent) {
        let newest = self.rate_from.is_none_or(|(segments, _)| sent.delivered >= segments);
        if newest {
            self.rate_from = Some((sent.delivered, sent.delivered_ns));
        }
    }
}

impl Rack {
    /// RFC 8985, section 6.2, steps 1 and 2.
    fn advance(&mut self, number: u64, sent: &Sent, now_ns: u64, min_rtt_us: u32) {
        let rtt_ns = now_ns - sent.sent_ns;
        // The acknowledgement of an earlier copy, not of the retransmission.
        if sent.has(mark::EVER_RETRANS) && rtt_ns / 1000 < u64::from(min_rtt_us) {
            return;
        }
        self.advanced = true;
        self.rtt_ns = rtt_ns;
        if (sent.sent_ns, number) > (self.sent_ns, self.number) {
            (self.sent_ns, self.number) = (sent.sent_ns, number);
        }
    }
}
