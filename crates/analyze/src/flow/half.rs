//! The data that one end sends, and the acknowledgements it gets, as seen where the capture was made.
//!
//! Sequence numbers are made 64 bits wide on arrival, so that wrapping round needs no thought elsewhere. What the sender
//! knew when it sent is reconstructed from the *lag*, the time a packet takes from here to the sender and its
//! answer back: an acknowledgement that passed less than that ago had not been answered yet. At the sender the lag is 0.

use super::{
    histogram::Histogram,
    ranges::Ranges,
    recovery::{Cause, Episode, LEAST_RTO_NS, Recovery, Resent, Smoothed},
    series::{Limit, Series},
    spacing::{Spacing, WORTH_PACKETS},
    thinned::Points,
};
use crate::segment::{Segment, flag, option};
use std::collections::VecDeque;

/// Outstanding segments remembered; with more, or without acknowledgements, the oldest are forgotten.
const MAX_SENT: usize = 1 << 18;
const MAX_SENT_UNANSWERED: usize = 1 << 12;
const MAX_HOLES: usize = 4096;
/// A jump of the sequence numbers beyond this belongs to no window.
const MAX_JUMP: u64 = 1 << 30;
/// No timer of a sender is shorter.
const LEAST_QUIET_NS: i64 = 1_500_000;
/// A hole filled sooner than this is reordering, when nothing else tells (as tshark has it).
const REORDERED_WITHIN_NS: i64 = 3_000_000;

/// Sequence numbers are made 64 bits wide around this, until one is known: there is room below.
const UNKNOWN: u64 = 1 << 32;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    start: u64,
    time_ns: i64,
    length: u32,
    again: bool,
}

impl Sent {
    fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }
}

/// Sequence space that was jumped over.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Hole {
    start: u64,
    end: u64,
    since_ns: i64,
    ts_value: Option<u32>,
    ip_id: u16,
}

/// An acknowledgement on its way to the sender.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Passed {
    time_ns: i64,
    ack: u64,
    edge: u64,
}

/// What a SYN offers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Offer {
    /// MSS option.
    pub mss_bytes: Option<u16>,
    /// Window scale.
    pub window_scale: Option<u8>,
    /// SACK.
    pub sack: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// ECE, CWR and AE as they stood.
    pub ecn_flags: u16,
    /// TCP Fast Open option.
    pub fast_open: bool,
    /// Payload of the SYN itself.
    pub data_bytes: u32,
}

/// Points for figures, when asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail {
    /// End of new data, relative octets.
    pub sent: Points,
    /// Start of what was sent again.
    pub resent: Points,
    /// Start of what came out of order.
    pub disordered: Points,
    /// Acknowledged octets.
    pub acked: Points,
    /// Right edge of the window.
    pub edge: Points,
    /// Milliseconds.
    pub rtt: Points,
    /// Octets.
    pub flight: Points,
    /// Microseconds between data packets.
    pub data_gap: Points,
    /// Microseconds between this end's pure ACKs.
    pub ack_gap: Points,
}

/// Plain counters.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// All packets.
    pub packets: u64,
    /// Packets with payload.
    pub data_packets: u64,
    /// Segments with payload (a packet above the MSS was to be cut into several).
    pub data_segments: u64,
    /// Packets larger than the MSS.
    pub oversize_packets: u64,
    /// All payload, however often.
    pub payload_bytes: u64,
    /// Payload seen for the first time.
    pub unique_bytes: u64,
    /// Payload sent again.
    pub resent_bytes: u64,
    /// Segments sent again, FIN and SYN among them.
    pub resent_segments: u64,
    /// Of them SYNs.
    pub resent_syns: u64,
    /// Late segments whose first copy was lost before the capture.
    pub lost_before_segments: u64,
    /// Late segments that others overtook.
    pub reordered_segments: u64,
    /// Copies made by the network or the capture.
    pub duplicate_packets: u64,
    /// Acknowledged octets that were never seen: the capture lost them.
    pub unseen_bytes: u64,
    /// Pure ACKs this end got that repeat the one before.
    pub duplicate_acks: u64,
    /// ACKs this end got with SACK blocks.
    pub sack_acks: u64,
    /// ACKs this end got that report a duplicate.
    pub dsacks: u64,
    /// ACKs this end got that acknowledge something new.
    pub acks: u64,
    /// Segments they acknowledged.
    pub acked_segments: u64,
    /// ACKs of one, two, three or four, and more segments.
    pub ack_sizes: [u64; 4],
    /// Octets acknowledged.
    pub acked_bytes: u64,
    /// Times the window this end was offered fell to zero.
    pub zero_windows: u64,
    /// Keep-alives and window probes.
    pub probes: u64,
    /// Packets marked CE.
    pub ce_packets: u64,
    /// Packets with ECE.
    pub ece_packets: u64,
    /// Resets.
    pub resets: u64,
}

/// One direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Half {
    /// What its SYN offered.
    pub offer: Option<Offer>,
    /// Counters.
    pub counts: Counts,
    /// Retransmissions.
    pub recovery: Recovery,
    /// Whether a FIN was sent, and its sequence number.
    pub fin: Option<u64>,
    /// Time of the first and last packet with payload.
    pub data_ns: Option<(i64, i64)>,
    /// Time of the last acknowledgement of something new.
    pub last_advance_ns: Option<i64>,
    /// Over time.
    pub series: Option<Box<Series>>,
    /// Between packets.
    pub spacing: Option<Box<Spacing>>,
    /// RTT by sequence numbers: here to the receiver and back.
    pub rtt: Option<Box<Histogram>>,
    /// RTT by timestamps.
    pub rtt_by_timestamp: Option<Box<Histogram>>,
    /// Least RTT, nanoseconds.
    pub least_rtt_ns: Option<i64>,
    /// Samples Karn's rule refused.
    pub karn_refused: u64,
    /// Least time from a packet that passed towards this end to the packet that echoes its timestamp.
    pub least_answer_ns: Option<i64>,
    /// Time under each [`Limit`], nanoseconds.
    pub limit_ns: [i64; 4],
    /// Most outstanding.
    pub most_flight_bytes: u64,
    /// Sum over data packets, for the mean.
    pub flight_sum: u128,
    /// Window offered to this end: least (after the first data) and greatest.
    pub window_bytes: Option<(u64, u64)>,
    /// Largest payload of a packet.
    pub largest_payload: u32,
    /// Largest length that an ACK covered.
    pub largest_acked_bytes: u32,
    /// Times to live seen: first, last, changes, time of the last change.
    pub ttl: Option<(u8, u8, u32, i64)>,
    /// Smallest MTU a router named for this end's packets, and how often one did.
    pub too_big: Option<(u32, u32)>,
    /// Size and sequence of a segment sent again most often without being acknowledged, and how often.
    pub stubborn: Option<Stubborn>,
    /// Points for figures.
    pub detail: Option<Box<Detail>>,
    /// Time from here to this end and back.
    pub lag_ns: i64,
    /// Segment size in use, once the handshake told.
    pub mss_bytes: u32,
    /// Both ends allow SACK.
    pub sack: bool,
    started: bool,
    /// Unwrapped number of the first octet of payload.
    first: u64,
    next: u64,
    una: u64,
    una_known: bool,
    edge: u64,
    una_seen: u64,
    edge_seen: u64,
    passed: VecDeque<Passed>,
    sent: VecDeque<Sent>,
    holes: Vec<Hole>,
    sacked: Ranges,
    smoothed: Smoothed,
    last_ack_ns: i64,
    last_send_ns: i64,
    rearmed_ns: i64,
    last_payload: u32,
    last_window: u64,
    last_rtt_ns: i64,
    /// Until when it is known what limited the sender: from the first payload on.
    accounted_ns: i64,
    /// What does since when, unless it has finished; not put down yet.
    limited: Option<(Limit, i64)>,
    last_acked: Option<(i64, i64)>,
    last_ip_id: u16,
    last_sequence: (u32, u32, u32),
    /// TSvals whose echo is awaited, and the last of them.
    echoes: VecDeque<(u32, i64)>,
    newest_echo: u32,
    current_stubborn: Stubborn,
}

/// The head of the queue sent again and again.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stubborn {
    /// Its sequence number.
    pub start: u64,
    /// Payload.
    pub bytes: u32,
    /// Times it was sent again.
    pub times: u32,
    /// When first.
    pub since_ns: i64,
    /// Whether an acknowledgement ever covered it, whole.
    pub passed: bool,
}

/// A 32-bit number near a 64-bit one.
#[inline]
fn unwrap_near(reference: u64, number: u32) -> u64 {
    let distance = number.wrapping_sub(reference as u32) as i32;
    reference.wrapping_add_signed(i64::from(distance))
}

impl Half {
    /// Nothing is known yet.
    pub fn new(detailed: bool) -> Half {
        Half {
            offer: None,
            counts: Counts::default(),
            recovery: Recovery::default(),
            fin: None,
            data_ns: None,
            last_advance_ns: None,
            series: None,
            spacing: None,
            rtt: None,
            rtt_by_timestamp: None,
            least_rtt_ns: None,
            karn_refused: 0,
            least_answer_ns: None,
            limit_ns: [0; 4],
            most_flight_bytes: 0,
            flight_sum: 0,
            window_bytes: None,
            largest_payload: 0,
            largest_acked_bytes: 0,
            ttl: None,
            too_big: None,
            stubborn: None,
            detail: detailed.then(Box::default),
            lag_ns: 0,
            mss_bytes: 0,
            sack: true,
            started: false,
            first: 0,
            next: 0,
            una: UNKNOWN,
            una_known: false,
            edge: 0,
            una_seen: 0,
            edge_seen: 0,
            passed: VecDeque::new(),
            sent: VecDeque::new(),
            holes: Vec::new(),
            sacked: Ranges::default(),
            smoothed: Smoothed::default(),
            last_ack_ns: i64::MIN / 8,
            last_send_ns: i64::MIN / 8,
            rearmed_ns: i64::MIN / 8,
            last_payload: 0,
            last_window: u64::MAX,
            last_rtt_ns: 0,
            accounted_ns: 0,
            limited: None,
            last_acked: None,
            last_ip_id: 0,
            last_sequence: (0, 0, 0),
            echoes: VecDeque::new(),
            newest_echo: 0,
            current_stubborn: Stubborn::default(),
        }
    }

    /// Segments that so many octets are sent as.
    pub fn segments_of(&self, bytes: u64) -> u64 {
        let mss = u64::from(self.mss_bytes);
        // Division is slow, and nearly every packet is one segment, nearly every ACK of two.
        match bytes {
            _ if mss == 0 || bytes <= mss => 1,
            _ if bytes <= 2 * mss => 2,
            _ => bytes.div_ceil(mss),
        }
    }

    /// Octets of a relative plot.
    fn relative(&self, number: u64) -> f64 {
        number.wrapping_sub(self.first) as i64 as f64
    }

    /// Outstanding, as the sender saw it.
    #[inline]
    pub fn flight_bytes(&self) -> u64 {
        self.next.saturating_sub(self.una_seen)
    }

    /// Whether everything sent, FIN included, is acknowledged.
    pub fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.una_known && self.una > fin)
    }

    /// Time passes: acknowledgements reach the sender, and time is put to what limited it.
    #[inline(always)]
    pub fn advance(&mut self, now_ns: i64) {
        if self.data_ns.is_none() {
            return;
        }
        while let Some(front) = self.passed.front().copied() {
            if front.time_ns > now_ns - self.lag_ns {
                break;
            }
            self.account(front.time_ns + self.lag_ns);
            (self.una_seen, self.edge_seen) = (self.una_seen.max(front.ack), front.edge);
            self.passed.pop_front();
        }
        self.account(now_ns);
    }

    /// Nearly always it is what it was before: time is put down when that changes.
    #[inline]
    fn account(&mut self, now_ns: i64) {
        if now_ns <= self.accounted_ns {
            return;
        }
        let since = std::mem::replace(&mut self.accounted_ns, now_ns);
        let is_done = self.fin.is_some() && self.flight_bytes() == 0;
        let limit = if is_done { None } else { Some(self.limit()) };
        if limit != self.limited.map(|(limit, _)| limit) {
            self.put_down(since);
            self.limited = limit.map(|limit| (limit, since));
        }
    }

    /// What limited the sender until then.
    fn put_down(&mut self, until_ns: i64) {
        let Some((limit, since_ns)) = self.limited.take() else { return };
        self.limit_ns[limit as usize] += until_ns - since_ns;
        if let Some(series) = &mut self.series {
            series.spend(since_ns, until_ns, limit);
        }
    }

    /// What keeps the sender from sending, right now.
    #[inline]
    fn limit(&self) -> Limit {
        if self.next <= self.una_seen {
            return Limit::Application;
        }
        if self.recovery.is_active() {
            return Limit::Recovery;
        }
        let room = self.edge_seen.saturating_sub(self.next);
        if room < u64::from(self.full_bytes().max(self.last_payload)) {
            Limit::Window
        } else if self.last_payload < self.full_bytes() {
            Limit::Application
        } else {
            Limit::Congestion
        }
    }

    /// A full segment.
    #[inline]
    fn full_bytes(&self) -> u32 {
        if self.mss_bytes > 0 { self.mss_bytes.min(self.largest_payload) } else { self.largest_payload }
    }

    /// This end sent a packet.
    #[inline]
    pub fn on_sent(&mut self, segment: &Segment) {
        self.counts.packets += 1;
        if segment.ecn == 3 || segment.has(flag::ECE) {
            self.on_congestion_told(segment);
        }
        self.on_ttl(segment);
        if segment.has(flag::RST) {
            self.counts.resets += 1;
            return;
        }
        let ends = u32::from(segment.has(flag::SYN)) + u32::from(segment.has(flag::FIN));
        let length = segment.payload_bytes + ends;
        if !self.started {
            self.start(segment);
        }
        let start = unwrap_near(self.next, segment.sequence);
        if length == 0 {
            self.on_pure_ack(segment, start);
            return;
        }
        if self.is_duplicate(segment, length) {
            self.counts.duplicate_packets += 1;
            return;
        }
        self.on_data(segment, start, length);
    }

    #[cold]
    fn on_congestion_told(&mut self, segment: &Segment) {
        self.counts.ce_packets += u64::from(segment.ecn == 3);
        self.counts.ece_packets += u64::from(segment.flags & (flag::ECE | flag::SYN) == flag::ECE);
    }

    fn start(&mut self, segment: &Segment) {
        self.started = true;
        self.next = unwrap_near(self.una, segment.sequence);
        self.first = self.next + u64::from(segment.has(flag::SYN));
        if !self.una_known {
            (self.una, self.una_seen) = (self.next, self.next);
        }
    }

    fn on_ttl(&mut self, segment: &Segment) {
        match &mut self.ttl {
            None => self.ttl = Some((segment.ttl, segment.ttl, 0, segment.time_ns)),
            Some((_, last, changes, at)) if *last != segment.ttl => {
                (*last, *changes, *at) = (segment.ttl, *changes + 1, segment.time_ns);
            }
            _ => {}
        }
    }

    fn on_pure_ack(&mut self, segment: &Segment, start: u64) {
        if self.started && start.wrapping_add(1) == self.next && !segment.has(flag::SYN) {
            self.counts.probes += 1;
        }
        self.note_timestamp(segment);
        if self.counts.packets >= WORTH_PACKETS {
            let gap = self.spacing.get_or_insert_default().acks.on_packet(segment.time_ns);
            if let (Some(detail), Some(gap)) = (&mut self.detail, gap) {
                detail.ack_gap.push(segment.time_ns, gap as f64 / 1e3);
            }
        }
    }

    /// The same packet again, with the same IP identification: not sent again, but captured or forwarded twice.
    #[inline]
    fn is_duplicate(&mut self, segment: &Segment, length: u32) -> bool {
        let this = (segment.sequence, length, segment.acknowledgement);
        let same = segment.ip_id != 0 && segment.ip_id == self.last_ip_id && this == self.last_sequence;
        (self.last_ip_id, self.last_sequence) = (segment.ip_id, this);
        same
    }

    #[inline]
    fn on_data(&mut self, segment: &Segment, start: u64, length: u32) {
        let end = start + u64::from(length);
        let (now, payload) = (segment.time_ns, segment.payload_bytes);
        if start > self.next + MAX_JUMP {
            // Whatever came between was not captured: begin anew here.
            self.counts.unseen_bytes += start - self.next;
            self.jump_to(start);
        }
        if payload > 0 {
            self.count_payload(segment);
        }
        if start >= self.next {
            if start > self.next {
                self.open_hole(segment, start);
            }
            self.on_new(segment, start, end, payload);
        } else {
            self.on_old(segment, start, end, payload);
        }
        if segment.has(flag::FIN) {
            self.fin = Some(end - 1);
        }
        self.last_send_ns = now;
        self.note_timestamp(segment);
    }

    fn jump_to(&mut self, start: u64) {
        self.sent.clear();
        self.holes.clear();
        self.sacked = Ranges::default();
        (self.next, self.una, self.una_seen) = (start, start, start);
        self.recovery.close(self.last_send_ns);
    }

    #[inline]
    fn count_payload(&mut self, segment: &Segment) {
        let payload = segment.payload_bytes;
        self.counts.data_packets += 1;
        self.counts.payload_bytes += u64::from(payload);
        self.counts.data_segments += 1;
        if payload > self.mss_bytes && self.mss_bytes > 0 {
            self.counts.data_segments += self.segments_of(u64::from(payload)) - 1;
            self.counts.oversize_packets += 1;
        }
        self.largest_payload = self.largest_payload.max(payload);
        match &mut self.data_ns {
            None => {
                self.data_ns = Some((segment.time_ns, segment.time_ns));
                self.accounted_ns = segment.time_ns;
            }
            Some((_, last)) => *last = segment.time_ns,
        }
    }

    #[inline]
    fn on_new(&mut self, segment: &Segment, start: u64, end: u64, payload: u32) {
        let now = segment.time_ns;
        // A probe may carry new data; the silence before it tells.
        if self.flight_bytes() > 0 && self.is_quiet(now, 2.0) {
            self.recovery.probed = true;
        }
        if self.recovery.is_active() {
            self.on_silence(now);
        }
        if self.next <= self.una_seen {
            self.rearmed_ns = now;
        }
        self.next = end;
        self.last_payload = payload;
        self.remember(Sent { start, time_ns: now, length: (end - start) as u32, again: false });
        if payload > 0 {
            self.counts.unique_bytes += u64::from(payload);
            self.observe_new(now, end, payload);
        }
    }

    #[inline]
    fn observe_new(&mut self, now: i64, end: u64, payload: u32) {
        let flight = self.flight_bytes();
        self.most_flight_bytes = self.most_flight_bytes.max(flight);
        self.flight_sum += u128::from(flight);
        let bin = self.series.get_or_insert_with(|| Box::new(Series::new(now))).at(now);
        bin.new_bytes += u64::from(payload);
        bin.flight_bytes = bin.flight_bytes.max(flight);
        let gap = (self.counts.packets >= WORTH_PACKETS)
            .then(|| self.spacing.get_or_insert_default().data.on_packet(now))
            .flatten();
        let relative = self.relative(end);
        if let Some(detail) = &mut self.detail {
            detail.sent.push(now, relative);
            detail.flight.push(now, flight as f64);
            if let Some(gap) = gap {
                detail.data_gap.push(now, gap as f64 / 1e3);
            }
        }
    }

    #[inline]
    fn remember(&mut self, sent: Sent) {
        let count = self.sent.len();
        if count >= MAX_SENT_UNANSWERED && (self.counts.acks == 0 || count >= MAX_SENT) {
            self.sent.pop_front();
        }
        self.sent.push_back(sent);
    }

    fn open_hole(&mut self, segment: &Segment, start: u64) {
        let ts_value = segment.carries(option::TIMESTAMPS).then_some(segment.ts_value);
        let hole =
            Hole { start: self.next, end: start, since_ns: segment.time_ns, ts_value, ip_id: segment.ip_id };
        if self.holes.len() == MAX_HOLES {
            self.holes.remove(0);
        }
        self.holes.push(hole);
    }

    /// Begins below what was seen already: late, sent again, or both.
    #[cold]
    fn on_old(&mut self, segment: &Segment, start: u64, end: u64, payload: u32) {
        let now = segment.time_ns;
        let late = self.fill_holes(segment, start, end);
        let fresh = end.saturating_sub(self.next);
        let again = (end - start).saturating_sub(late + fresh);
        if again == 0 {
            self.counts.unique_bytes += u64::from(payload);
            self.insert_late(Sent { start, time_ns: now, length: (end - start) as u32, again: true });
        } else if end <= self.una
            && payload <= 1
            && end + 1 >= self.next
            && !segment.has(flag::SYN | flag::FIN)
        {
            self.counts.probes += 1;
            return;
        } else {
            let new_bytes = late + fresh;
            self.counts.unique_bytes += new_bytes.min(u64::from(payload));
            self.on_again(segment, start, end, u64::from(payload).min(again));
        }
        if fresh > 0 {
            self.remember(Sent { start: self.next, time_ns: now, length: fresh as u32, again: again > 0 });
            self.next = end;
        }
        if let Some(series) = &mut self.series {
            let bin = series.at(now);
            bin.resent_bytes += u64::from(payload).min(again);
            bin.new_bytes += u64::from(payload).min(late + fresh);
        }
    }

    /// Octets that had been jumped over, and what that was.
    fn fill_holes(&mut self, segment: &Segment, start: u64, end: u64) -> u64 {
        let Some(at) = self.holes.iter().position(|hole| hole.start < end && hole.end > start) else {
            return 0;
        };
        let hole = self.holes[at];
        let (from, to) = (hole.start.max(start), hole.end.min(end));
        let mut rest = vec![Hole { end: from, ..hole }, Hole { start: to, ..hole }];
        rest.retain(|part| part.start < part.end);
        self.holes.splice(at..=at, rest);
        let segments = self.segments_of(to - from);
        if self.was_overtaken(segment, &hole) {
            self.counts.reordered_segments += segments;
            let relative = self.relative(start);
            if let Some(detail) = &mut self.detail {
                detail.disordered.push(segment.time_ns, relative);
            }
        } else {
            self.counts.lost_before_segments += segments;
            self.begin_episode(segment.time_ns);
            self.on_lost_before(segment, start, to - from, segments);
        }
        to - from
    }

    /// Sent again, but for the first time that this capture sees it.
    fn on_lost_before(&mut self, segment: &Segment, start: u64, bytes: u64, segments: u64) {
        self.on_silence(segment.time_ns);
        let episode = self.recovery.begin(blank());
        episode.resent_bytes += bytes;
        episode.resent_segments += segments;
        let relative = self.relative(start);
        if let Some(detail) = &mut self.detail {
            detail.resent.push(segment.time_ns, relative);
        }
    }

    /// Sent before the segment that jumped over it? Timestamps tell, or the IP identification, or the time.
    fn was_overtaken(&self, segment: &Segment, hole: &Hole) -> bool {
        if let (Some(jumper), true) = (hole.ts_value, segment.carries(option::TIMESTAMPS)) {
            let newer = segment.ts_value.wrapping_sub(jumper) as i32;
            if newer != 0 {
                return newer < 0;
            }
        }
        if segment.ip_id != 0 && hole.ip_id != 0 && segment.ip_id != hole.ip_id {
            return (segment.ip_id.wrapping_sub(hole.ip_id) as i16) < 0;
        }
        let round_trip = self.smoothed.rtt_ns().map_or(REORDERED_WITHIN_NS, |rtt| rtt / 2);
        segment.time_ns - hole.since_ns < REORDERED_WITHIN_NS.min(round_trip.max(1))
    }

    fn insert_late(&mut self, sent: Sent) {
        if sent.start < self.una {
            return;
        }
        let at = self.sent.partition_point(|other| other.start < sent.start);
        self.sent.insert(at, sent);
    }

    /// No acknowledgement and no data for `factor` round trips.
    #[inline(always)]
    fn is_quiet(&self, now: i64, factor: f64) -> bool {
        let since_send = now - self.last_send_ns;
        if since_send < LEAST_QUIET_NS {
            return false;
        }
        let since_ack = now - self.lag_ns - self.last_ack_ns;
        let round_trip = self.smoothed.rtt_ns().map_or(LEAST_RTO_NS / 2, |rtt| rtt + self.lag_ns);
        since_ack.min(since_send) as f64 > (factor * round_trip as f64).max(LEAST_QUIET_NS as f64)
    }

    fn cause(&self, now: i64, start: u64, end: u64) -> Cause {
        let (head, tail) = (start <= self.una_seen, end >= self.next);
        let since_ack = now - self.lag_ns - self.last_ack_ns;
        let overdue = head && since_ack > 1_000_000 && now - self.head_sent_ns() >= self.overdue_ns();
        // With something selectively acknowledged, silence may be RACK's reordering timer.
        if overdue || self.sacked.is_empty() && self.is_quiet(now, 1.25) {
            let probe = tail && self.sack && !self.recovery.probed && self.sacked.is_empty();
            if probe && !self.recovery.is_active() {
                return Cause::TailProbe;
            }
            if head {
                return Cause::Timeout;
            }
        }
        if start < self.recovery.timeout_point { Cause::GoBack } else { Cause::Fast }
    }

    /// What the retransmission timer alone takes this long for, with room for the sender's RTT being less than ours. With
    /// something selectively acknowledged RACK's timer may run, at most for two round trips (its reordering window is a
    /// quarter of the least one and grows to a whole one: RFC 8985, 6.2) and a little, as timers are late: where these are
    /// long, the room is less.
    fn overdue_ns(&self) -> i64 {
        let rto = self.smoothed.rto_ns();
        let with_room = rto / 10 * 9;
        let rack = self.smoothed.rtt_ns().filter(|_| !self.sacked.is_empty()).map_or(0, |rtt| rtt / 10 * 21);
        with_room.max(rack.min(rto / 100 * 98))
    }

    /// When the head of the queue was sent last. Linux's timer runs from the last progress, or from here when another timer
    /// took its place meanwhile (RACK's, or a probe's): never from before.
    fn head_sent_ns(&self) -> i64 {
        let head = self.sent.front().filter(|sent| sent.start <= self.una_seen);
        head.map_or(self.rearmed_ns, |sent| sent.time_ns)
    }

    fn on_again(&mut self, segment: &Segment, start: u64, end: u64, bytes: u64) {
        let now = segment.time_ns;
        let syn = segment.has(flag::SYN);
        let cause = if syn { Cause::Timeout } else { self.cause(now, start, end) };
        let segments = self.segments_of(bytes);
        self.counts.resent_bytes += bytes;
        self.counts.resent_segments += segments;
        self.counts.resent_syns += u64::from(syn);
        if cause == Cause::Timeout {
            self.recovery.timeout_point = self.next;
        }
        if start <= self.una_seen {
            self.rearmed_ns = now;
            self.on_stubborn(now, start, segment.payload_bytes);
        }
        self.begin_episode(now);
        self.on_silence(now);
        let episode = self.recovery.begin(blank());
        episode.resent_bytes += bytes;
        episode.resent_segments += segments;
        episode.timeouts += u32::from(cause == Cause::Timeout);
        let ts_value = segment.carries(option::TIMESTAMPS).then_some(segment.ts_value);
        self.recovery
            .on_resent(Resent { start, end, ts_value, cause, spurious: false, duplicated: false }, segments);
        self.mark_again(now, start, end);
        let relative = self.relative(start);
        if let Some(detail) = &mut self.detail {
            detail.resent.push(now, relative);
        }
    }

    fn on_stubborn(&mut self, now: i64, start: u64, bytes: u32) {
        let current = &mut self.current_stubborn;
        if current.start != start || current.times == 0 {
            *current = Stubborn { start, bytes, times: 0, since_ns: now, passed: false };
        }
        current.times += 1;
        current.bytes = current.bytes.max(bytes);
        if self.stubborn.is_none_or(|worst| worst.times <= current.times) {
            self.stubborn = Some(*current);
        }
    }

    fn begin_episode(&mut self, now: i64) {
        let fresh = Episode {
            start_ns: now,
            end_ns: now,
            from_byte: self.una.saturating_sub(self.first),
            flight_bytes: self.flight_bytes(),
            window_bytes: self.edge_seen.saturating_sub(self.una_seen),
            rtt_us: (self.last_rtt_ns / 1000) as u64,
            point: self.next,
            ..blank()
        };
        self.recovery.begin(fresh);
    }

    /// Keeps the longest time in which the sender sent nothing.
    fn on_silence(&mut self, now: i64) {
        let from = self.last_send_ns;
        let episode = self.recovery.begin(blank());
        if from > 0 && now - from > episode.silence_ns {
            (episode.silence_ns, episode.silence_from_ns) = (now - from, from);
        }
        episode.end_ns = now;
    }

    fn mark_again(&mut self, now: i64, start: u64, end: u64) {
        let first = self.sent.partition_point(|sent| sent.end() <= start);
        for sent in self.sent.iter_mut().skip(first) {
            if sent.start >= end {
                break;
            }
            (sent.again, sent.time_ns) = (true, now);
        }
    }

    /// This end was sent what it had been told before, for the last time and at the latest then.
    #[inline]
    pub fn on_told_again(&mut self, last_ns: i64, latest_ns: i64) {
        self.advance(latest_ns);
        self.last_ack_ns = last_ns;
    }

    /// Whether all below this number, and nothing above it, is acknowledged, and the sender knows.
    #[inline]
    pub fn knows_acknowledged(&self, number: u32) -> bool {
        self.una_known && self.una as u32 == number && self.passed.is_empty()
    }

    /// This end got an acknowledgement (its packet passed here); `answered_ns` is the time since the packet whose
    /// timestamp it echoes for the first time.
    #[inline]
    pub fn on_ack(&mut self, segment: &Segment, window_bytes: u64, answered_ns: Option<i64>) {
        let now = segment.time_ns;
        let ack = unwrap_near(self.una, segment.acknowledgement);
        if self.is_told_again(segment, ack, window_bytes) {
            self.last_ack_ns = now;
            return;
        }
        if !self.una_known {
            self.first_ack(ack);
        }
        if ack > self.next {
            if self.started && ack - self.next > MAX_JUMP {
                return;
            }
            self.unseen(ack);
        }
        if ack < self.una {
            return;
        }
        self.last_ack_ns = now;
        self.on_window(segment, ack, window_bytes);
        if ack > self.una {
            self.on_advance(segment, ack, answered_ns);
        } else {
            self.on_repeated(segment, window_bytes);
        }
        if segment.sack_count > 0 {
            self.on_sack(segment, ack);
        }
        self.pass(now, ack);
        self.last_window = window_bytes;
    }

    /// What nearly all data of an end that sends without being sent anything carries along: the acknowledgement and the
    /// window that are known, of an end that has no payload of its own to be limited with.
    #[inline]
    fn is_told_again(&self, segment: &Segment, ack: u64, window_bytes: u64) -> bool {
        let known = self.una_known && ack == self.una && ack <= self.next && self.data_ns.is_none();
        let same_window = window_bytes == self.last_window && ack + window_bytes == self.edge;
        known && same_window && segment.payload_bytes > 0 && segment.sack_count == 0
    }

    fn first_ack(&mut self, ack: u64) {
        self.una_known = true;
        if !self.started {
            (self.una, self.una_seen, self.next, self.first) = (ack, ack, ack, ack);
        }
    }

    /// Acknowledged, but never seen.
    fn unseen(&mut self, ack: u64) {
        if self.started {
            self.counts.unseen_bytes += ack - self.next;
        }
        self.next = ack;
    }

    #[inline]
    fn on_window(&mut self, segment: &Segment, ack: u64, window_bytes: u64) {
        self.edge = ack + window_bytes;
        if segment.has(flag::SYN) {
            return;
        }
        if window_bytes == 0 && self.last_window != 0 && !segment.has(flag::RST) {
            self.counts.zero_windows += 1;
        }
        if self.data_ns.is_some() {
            let (least, most) = self.window_bytes.get_or_insert((window_bytes, window_bytes));
            (*least, *most) = ((*least).min(window_bytes), (*most).max(window_bytes));
        }
    }

    /// Lets the sender know, now or when it gets there.
    #[inline]
    fn pass(&mut self, now: i64, ack: u64) {
        // An end that has not sent anything is limited by nothing yet, and nobody asks when it heard.
        let is_silent = self.data_ns.is_none();
        if is_silent || self.lag_ns == 0 || self.passed.len() >= MAX_SENT {
            if !is_silent {
                self.account(now);
            }
            (self.una_seen, self.edge_seen) = (self.una_seen.max(ack), self.edge);
        } else {
            self.passed.push_back(Passed { time_ns: now, ack, edge: self.edge });
        }
    }

    #[inline]
    fn on_advance(&mut self, segment: &Segment, ack: u64, answered_ns: Option<i64>) {
        let (now, before) = (segment.time_ns, self.una);
        let clean = self.sacked.is_empty();
        let newest = self.acknowledge(ack);
        let bytes = ack - before;
        self.una = ack;
        self.counts.acks += 1;
        self.counts.acked_bytes += bytes;
        self.rearmed_ns = now;
        self.last_advance_ns = Some(now);
        if !clean {
            self.sacked.forget_below(ack);
        }
        if self.current_stubborn.times > 0 {
            self.settle_stubborn(ack);
        }
        let segments = self.segments_of(bytes);
        self.counts.acked_segments += segments;
        self.counts.ack_sizes[match segments {
            0 | 1 => 0,
            2 => 1,
            3 | 4 => 2,
            _ => 3,
        }] += 1;
        if let Some(rtt) = answered_ns {
            self.rtt_by_timestamp.get_or_insert_default().record(rtt as u64);
        }
        self.measure(now, newest, clean, bytes);
        if self.recovery.is_active() || self.counts.resent_segments > 0 {
            let echo = segment.carries(option::TIMESTAMPS).then_some(segment.ts_echo);
            let mss = u64::from(self.mss_bytes.max(1));
            let whole = self.mss_bytes == 0;
            self.recovery.on_advance(
                before,
                ack,
                echo,
                now,
                |b| if whole { 1 } else { b.div_ceil(mss).max(1) },
            );
        }
        self.observe_ack(now, ack, bytes);
    }

    fn settle_stubborn(&mut self, ack: u64) {
        let current = self.current_stubborn;
        if let Some(worst) = &mut self.stubborn
            && worst.start == current.start
        {
            worst.passed = ack >= current.start + u64::from(current.bytes);
        }
        self.current_stubborn = Stubborn::default();
    }

    #[inline]
    fn observe_ack(&mut self, now: i64, ack: u64, bytes: u64) {
        let window = self.edge.saturating_sub(ack);
        if let Some(series) = &mut self.series {
            let bin = series.at(now);
            bin.acked_bytes += bytes;
            bin.window_bytes = bin.window_bytes.min(window);
        }
        let (acked, edge) = (self.relative(ack), self.relative(self.edge));
        if let Some(detail) = &mut self.detail {
            detail.acked.push(now, acked);
            detail.edge.push(now, edge);
        }
    }

    /// Takes what is acknowledged off the queue; the newest of it, and whether any was sent again.
    #[inline]
    fn acknowledge(&mut self, ack: u64) -> Option<(i64, bool)> {
        let (mut newest, mut count) = (None, 0);
        let (mut again, mut largest) = (false, self.largest_acked_bytes);
        self.sent.iter().take_while(|sent| sent.end() <= ack).for_each(|sent| {
            again |= sent.again;
            largest = largest.max(sent.length);
            newest = Some((sent.time_ns, again));
            count += 1;
        });
        self.largest_acked_bytes = largest;
        self.sent.drain(..count);
        if !self.holes.is_empty() {
            // Acknowledged, so it was sent, but never seen here.
            let passed = self.holes.iter().filter(|hole| hole.end <= ack);
            self.counts.unseen_bytes += passed.map(|hole| hole.end - hole.start).sum::<u64>();
            self.holes.retain(|hole| hole.end > ack);
        }
        newest
    }

    #[inline]
    fn measure(&mut self, now: i64, newest: Option<(i64, bool)>, clean: bool, bytes: u64) {
        let Some((sent_ns, again)) = newest else { return };
        if again || !clean {
            self.karn_refused += 1;
            self.last_acked = None;
            return;
        }
        self.on_rtt(now, now - sent_ns);
        if let (Some((ack_ns, data_ns)), Some(spacing)) = (self.last_acked, &mut self.spacing) {
            spacing.compression.on_pair(now, now - ack_ns, sent_ns - data_ns, bytes);
        }
        self.last_acked = Some((now, sent_ns));
    }

    #[inline]
    fn on_rtt(&mut self, now: i64, rtt_ns: i64) {
        if rtt_ns < 0 {
            return;
        }
        self.smoothed.sample(rtt_ns);
        self.last_rtt_ns = rtt_ns;
        self.rtt.get_or_insert_default().record(rtt_ns as u64);
        self.least_rtt_ns = Some(self.least_rtt_ns.map_or(rtt_ns, |least| least.min(rtt_ns)));
        if let Some(series) = &mut self.series {
            let bin = series.at(now);
            let us = u32::try_from(rtt_ns / 1000).unwrap_or(u32::MAX - 1);
            bin.rtt_least_us = bin.rtt_least_us.min(us);
            bin.rtt_most_us = bin.rtt_most_us.max(us);
        }
        if let Some(detail) = &mut self.detail {
            detail.rtt.push(now, rtt_ns as f64 / 1e6);
        }
    }

    /// The first packet with a new TSval is the one whose echo is timed.
    #[inline]
    fn note_timestamp(&mut self, segment: &Segment) {
        let is_newer = segment.ts_value.wrapping_sub(self.newest_echo) as i32 > 0;
        if segment.carries(option::TIMESTAMPS) && (is_newer || self.echoes.is_empty()) {
            self.await_echo(segment);
        }
    }

    #[inline(never)]
    fn await_echo(&mut self, segment: &Segment) {
        if self.echoes.len() >= 1024 {
            self.echoes.pop_front();
        }
        self.newest_echo = segment.ts_value;
        self.echoes.push_back((segment.ts_value, segment.time_ns));
    }

    /// Time since the packet whose TSval comes back now for the first time.
    #[inline]
    pub fn echoed(&mut self, echo: u32, now_ns: i64) -> Option<i64> {
        while let Some((value, time_ns)) = self.echoes.front().copied() {
            let older = value.wrapping_sub(echo) as i32;
            if older > 0 {
                return None;
            }
            self.echoes.pop_front();
            if older == 0 {
                return (now_ns >= time_ns).then_some(now_ns - time_ns);
            }
        }
        None
    }

    fn on_repeated(&mut self, segment: &Segment, window_bytes: u64) {
        let bare = segment.payload_bytes == 0 && segment.flags & (flag::SYN | flag::FIN | flag::RST) == 0;
        let same_window = window_bytes == self.last_window;
        if bare && self.next > self.una && (same_window || segment.sack_count > 0) {
            self.counts.duplicate_acks += 1;
        }
    }

    fn on_sack(&mut self, segment: &Segment, ack: u64) {
        let count = usize::from(segment.sack_count).min(segment.sack.len());
        let blocks = segment.sack.map(|(left, right)| (unwrap_near(ack, left), unwrap_near(ack, right)));
        let (left, right) = blocks[0];
        let inside = count > 1 && left >= blocks[1].0 && right <= blocks[1].1;
        let duplicate = right <= ack || inside;
        self.counts.sack_acks += 1;
        if duplicate && left < right {
            self.counts.dsacks += 1;
            let mss = u64::from(self.mss_bytes.max(1));
            let whole = self.mss_bytes == 0;
            self.recovery.on_dsack(left, right, |b| if whole { 1 } else { b.div_ceil(mss).max(1) });
        }
        for (left, right) in &blocks[usize::from(duplicate)..count] {
            if *left >= ack && *right <= self.next && left < right {
                self.sacked.insert(*left, *right);
            }
        }
    }

    /// A router said that a packet of this end is too big.
    pub fn on_too_big(&mut self, mtu_bytes: u32) {
        let (least, times) = self.too_big.get_or_insert((u32::MAX, 0));
        (*least, *times) = ((*least).min(mtu_bytes), *times + 1);
    }

    /// Ends what is not over.
    pub fn finish(&mut self, now_ns: i64) {
        self.put_down(self.accounted_ns);
        self.recovery.close(now_ns);
    }
}

fn blank() -> Episode {
    Episode {
        start_ns: 0,
        end_ns: 0,
        from_byte: 0,
        flight_bytes: 0,
        window_bytes: 0,
        rtt_us: 0,
        resent_bytes: 0,
        resent_segments: 0,
        spurious_segments: 0,
        timeouts: 0,
        silence_ns: 0,
        silence_from_ns: 0,
        point: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_never_sends_remembers_none_of_the_acknowledgements_it_gets_and_is_limited_by_nothing() {
        let mut half = Half::new(false);
        half.lag_ns = 10_000_000;
        for number in 0..10_000 {
            let time_ns = i64::from(number) * 100_000;
            half.advance(time_ns);
            let ack = Segment { time_ns, flags: flag::ACK, acknowledgement: 1, ..Segment::default() };
            half.on_ack(&ack, 65_535, None);
        }
        assert!(half.passed.is_empty());
        half.finish(1_000_000_000);
        assert_eq!(half.limit_ns, [0; 4]);
    }

    /// Why the head is sent again so long after it was sent, when what follows it was selectively acknowledged. Milliseconds.
    fn cause_behind_a_gap(rtt_ms: i64, after_ms: i64) -> Cause {
        let (mut half, base) = (Half::new(false), 1_000_000_000);
        let data = |ms: i64, number: u32| Segment {
            time_ns: base + ms * 1_000_000,
            flags: flag::ACK,
            sequence: 1 + number * 1000,
            payload_bytes: 1000,
            ..Segment::default()
        };
        let ack = |ms: i64, number: u32| Segment {
            acknowledgement: 1 + number * 1000,
            payload_bytes: 0,
            ..data(ms, 0)
        };
        for number in 0..20 {
            let ms = i64::from(number) * rtt_ms;
            half.on_sent(&data(ms, number));
            half.on_ack(&ack(ms + rtt_ms, number + 1), 65_535, None);
        }
        let ms = 20 * rtt_ms;
        for number in 20..23 {
            half.on_sent(&data(ms, number));
        }
        let mut gap = Segment { sack_count: 1, ..ack(ms + rtt_ms, 20) };
        gap.sack[0] = (21_001, 23_001);
        half.on_ack(&gap, 65_535, None);
        half.on_sent(&data(ms + after_ms, 20));
        let causes = [Cause::Fast, Cause::Timeout, Cause::GoBack, Cause::TailProbe];
        causes.into_iter().find(|cause| half.recovery.segments[*cause as usize] > 0).unwrap()
    }

    #[test]
    fn racks_reordering_timer_on_a_long_path_is_no_timeout() {
        assert_eq!(cause_behind_a_gap(600, 750), Cause::Fast, "1.25 RTT: RACK's timer");
        assert_eq!(cause_behind_a_gap(600, 800), Cause::Timeout, "RTT and 200 ms");
        assert_eq!(
            cause_behind_a_gap(170, 340),
            Cause::Fast,
            "2 RTT: RACK's timer when its window has grown"
        );
        assert_eq!(cause_behind_a_gap(170, 370), Cause::Timeout);
        assert_eq!(cause_behind_a_gap(20, 25), Cause::Fast);
        assert_eq!(cause_behind_a_gap(20, 205), Cause::Timeout, "the sender's RTT may be less than ours");
    }

    #[test]
    fn time_counts_from_the_first_payload_on() {
        let mut half = Half::new(false);
        let ack = |time_ns| Segment { time_ns, flags: flag::ACK, acknowledgement: 1, ..Segment::default() };
        half.on_ack(&ack(0), 65_535, None);
        half.on_ack(&ack(5_000), 65_535, None);
        let data =
            Segment { time_ns: 1_000_000, flags: flag::ACK, sequence: 1, payload_bytes: 100, ..ack(0) };
        half.advance(data.time_ns);
        half.on_sent(&data);
        half.advance(4_000_000);
        half.finish(4_000_000);
        assert_eq!(
            half.limit_ns.iter().sum::<i64>(),
            3_000_000,
            "what went before the first payload is nobody's"
        );
    }
}
