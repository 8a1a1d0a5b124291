//! The data that one end sends, and the acknowledgements it gets, as seen where the capture was made.
//!
//! Sequence numbers are made 64 bits wide on arrival, so that wrapping round needs no thought elsewhere. What the
//! sender knew when it sent is reconstructed from the *lag*, the time a packet takes from here to the sender and its
//! answer back: an acknowledgement that passed less than that ago had not been answered yet. At the sender the lag is
//! 0.

use super::{
    connection::possible_window,
    copies::{Copies, Repeats, Sender},
    counts::{Counts, Offer},
    limits::Limits,
    marks::Marks,
    observers::Observers,
    recovery::{Cause, Episode, LEAST_RTO_NS, Recovery, Resent},
    round_trips::RoundTrips,
    sequence::{Hole, MAX_SENT, Passed, Sent, SequenceSpace, unwrap_near},
    series::Limit,
};
use crate::segment::{Segment, flag, option};

/// What an acknowledgement is delayed by (Linux 40 ms, others 100 and 200 ms), with room.
const LEAST_DELAYED_NS: i64 = 30_000_000;
const MOST_DELAYED_NS: i64 = 250_000_000;
/// What is sent that soon behind an acknowledgement waited for it.
const AT_ONCE_NS: i64 = 2_000_000;
/// No window is larger (RFC 7323, 2.3).
const MOST_WINDOW_BYTES: u64 = 1 << 30;
/// Without a known MSS, larger packets may be offloads', and this much is a full segment.
const USUAL_SEGMENT: u32 = 1_448;
/// Every path passes packets with so much (RFC 9293, 3.7.1): smaller ones are full where the MSS is smaller.
pub(super) const LEAST_SEGMENT: u32 = 536;
/// All fragments of a packet hold no more (RFC 791).
const LARGEST_PACKET: u64 = 65_535;
/// Round trips of silence that a timer ended, with room for ours being more than the sender's; and that a probe did at
/// the least.
const QUIET: f64 = 1.25;
const PROBED: f64 = 2.0;
/// No timer of a sender is shorter.
const LEAST_QUIET_NS: i64 = 1_500_000;
/// No sender waits so long, and for so many of its timers, for an acknowledgement without sending again.
const PATIENT_NS: i64 = 10_000_000_000;
const TIMERS: i64 = 10;
/// A hole filled sooner than this is reordering, when nothing else tells (as tshark has it).
const REORDERED_WITHIN_NS: i64 = 3_000_000;

/// One direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Half {
    /// What its SYN offered, the last if it was sent again; and what the first did.
    pub offer: Option<Offer>,
    /// What its first SYN offered.
    pub first_offer: Option<Offer>,
    /// Counters.
    pub counts: Counts,
    /// Retransmissions.
    pub recovery: Recovery,
    /// What was sent and acknowledged.
    pub space: SequenceSpace,
    /// What limited it.
    pub limits: Limits,
    /// Round trips.
    pub trips: RoundTrips,
    /// What is only looked at.
    pub observed: Observers,
    /// Time of the first and last packet with payload.
    pub data_ns: Option<(i64, i64)>,
    /// Time of the last acknowledgement of something new.
    pub last_advance_ns: Option<i64>,
    /// Most outstanding.
    pub most_flight_bytes: u64,
    /// Sum over data packets, for the mean.
    pub flight_sum: u128,
    /// Least window offered to this end after its first data.
    pub least_window_bytes: Option<u64>,
    /// Greatest window offered to this end.
    pub most_window_bytes: Option<u64>,
    /// The window of the SYN it got, which has no scale.
    pub syn_window_bytes: Option<u64>,
    /// Time the window was closed, and since when it is.
    pub closed_ns: i64,
    closed_since_ns: Option<i64>,
    /// Largest payload of a packet.
    pub largest_payload: u32,
    /// A full segment.
    pub full_bytes: u32,
    /// Largest length that an ACK covered.
    pub largest_acked_bytes: u32,
    /// Smallest MTU a router named for this end's packets, and how often one did.
    pub too_big: Option<(u32, u32)>,
    /// First reset of the direction.
    pub reset: Option<Reset>,
    /// Size and sequence of a segment sent again most often without being acknowledged, and how often.
    pub stubborn: Option<Stubborn>,
    /// Time from here to this end and back.
    pub lag_ns: i64,
    /// Whether it is known where the capture was made, so that the lag is.
    pub is_placed: bool,
    /// Segment size in use, once the handshake told.
    pub mss_bytes: u32,
    /// What the other end offers to take, where that is more.
    peers_mss_bytes: u16,
    /// Both ends allow SACK.
    pub sack: bool,
    /// How this end tells of marks.
    pub marks: Marks,
    /// Whether this end sent a SYN, and no answer to one.
    opens: bool,
    /// SYNs and FINs without payload.
    bare_segments: u64,
    /// Payload of its SYN, less what the other end took, or it sent again.
    syn_data: (u64, u64),
    last_ack_ns: i64,
    last_send_ns: i64,
    rearmed_ns: i64,
    last_payload: u32,
    /// The other end sent payload since this one did.
    is_asked: bool,
    last_window: u64,
    copies: Copies,
    current_stubborn: Stubborn,
}

/// A reset, beside what else its end sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reset {
    /// Time of the reset, in nanoseconds.
    pub time_ns: i64,
    /// Time to live of the reset, and that of the packet before.
    pub ttl: (u8, Option<u8>),
    /// Sequence number of the reset, less the one that was next.
    pub offset: i64,
    /// Window of the reset.
    pub window: u16,
}

/// The head of the queue sent again and again.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stubborn {
    /// Sequence number at which the segment begins.
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

impl Half {
    /// Direction of which nothing is known yet.
    pub fn new(detailed: bool) -> Half {
        Half {
            offer: None,
            first_offer: None,
            counts: Counts::default(),
            recovery: Recovery::default(),
            space: SequenceSpace::default(),
            limits: Limits::default(),
            trips: RoundTrips::default(),
            observed: Observers { detail: detailed.then(Box::default), ..Observers::default() },
            data_ns: None,
            last_advance_ns: None,
            most_flight_bytes: 0,
            flight_sum: 0,
            least_window_bytes: None,
            most_window_bytes: None,
            syn_window_bytes: None,
            closed_ns: 0,
            closed_since_ns: None,
            largest_payload: 0,
            full_bytes: 0,
            largest_acked_bytes: 0,
            too_big: None,
            reset: None,
            stubborn: None,
            lag_ns: 0,
            is_placed: false,
            mss_bytes: 0,
            peers_mss_bytes: 0,
            sack: true,
            marks: Marks::default(),
            opens: false,
            bare_segments: 0,
            syn_data: (0, 0),
            last_ack_ns: i64::MIN / 8,
            last_send_ns: i64::MIN / 8,
            rearmed_ns: i64::MIN / 8,
            last_payload: 0,
            is_asked: false,
            last_window: u64::MAX,
            copies: Copies::default(),
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

    /// Time passes: acknowledgements reach the sender, and time is put to what limited it.
    #[inline(always)]
    pub fn advance(&mut self, now_ns: i64) {
        if self.data_ns.is_none() {
            return;
        }
        while let Some(front) = self.space.passed.front() {
            if front.time_ns > now_ns - self.lag_ns {
                break;
            }
            self.account(front.time_ns + self.lag_ns);
            let heard_ns = front.time_ns + self.lag_ns;
            (self.space.una_seen, self.space.edge_seen) = (self.space.una_seen.max(front.ack), front.edge);
            self.space.passed.take(1);
            self.recovery.on_heard(self.space.una_seen, heard_ns);
        }
        self.account(now_ns);
    }

    #[inline]
    fn account(&mut self, now_ns: i64) {
        let (space, recovery) = (&self.space, &self.recovery);
        let (full, last_payload) = (self.full_bytes, self.last_payload);
        // Its scale, that is; a closed one has none.
        let is_window_known = self.mss_bytes > 0 || self.last_window == 0;
        self.limits.account(
            now_ns,
            || limit(space, is_window_known, recovery.is_active(), full, last_payload),
            &mut self.observed.series,
        );
    }

    /// Segments are to be of this size; the other end would take such.
    pub fn agree(&mut self, mss_bytes: u32, peers_mss_bytes: u16) {
        (self.mss_bytes, self.peers_mss_bytes) = (mss_bytes, peers_mss_bytes);
        self.judge_full();
    }

    #[cold]
    fn judge_full(&mut self) {
        let (most, least) = match self.mss_bytes {
            0 => (USUAL_SEGMENT, LEAST_SEGMENT),
            mss => (mss, mss.min(LEAST_SEGMENT)),
        };
        self.full_bytes = self.largest_payload.min(most).max(least);
    }

    /// This end sent a packet that takes so many sequence numbers; `PLAIN`: [`Segment::is_plain`].
    #[inline]
    pub fn on_sent<const PLAIN: bool>(&mut self, segment: &Segment, length: u32) {
        self.counts.packets += 1;
        // A count of marks that has gone round to 0 looks plain.
        if !PLAIN || self.marks != Marks::Echo {
            self.on_congestion_told(segment);
            if segment.has(flag::RST) {
                return self.on_reset(segment);
            }
        }
        self.observed.on_ttl(segment, self.counts.packets);
        if self.reset.is_some() {
            self.counts.after_reset += 1;
        }
        if !self.space.started {
            self.space.start(segment);
        }
        let start = unwrap_near(self.space.next, segment.sequence);
        if length == 0 {
            self.on_pure_ack(segment, start);
            return;
        }
        self.on_data::<PLAIN>(segment, start, length);
    }

    #[cold]
    fn on_reset(&mut self, segment: &Segment) {
        self.counts.resets += 1;
        let start = unwrap_near(self.space.next, segment.sequence);
        let offset = if self.space.started { start.wrapping_sub(self.space.next) as i64 } else { 0 };
        let ttl = (segment.ttl, self.observed.ttl.map(|ttl| ttl.last));
        let (time_ns, window) = (segment.time_ns, segment.window);
        self.reset.get_or_insert(Reset { time_ns, ttl, offset, window });
        self.counts.foreign_packets += u64::from(!self.believes_reset(segment));
    }

    /// Whether a reset of this end has a number that its peer may take (RFC 9293, 3.5.3): one outside any window, of a
    /// stranger or of an earlier connection, ends nothing.
    pub fn believes_reset(&self, segment: &Segment) -> bool {
        let start = unwrap_near(self.space.next, segment.sequence);
        !self.space.started || self.space.believes(start, start)
    }

    /// This end sent a packet whose checksum is wrong: nothing of it can be believed.
    #[cold]
    pub fn on_damaged(&mut self) {
        self.counts.packets += 1;
        self.counts.damaged_packets += 1;
    }

    /// When this end was sent something that counts, last.
    pub fn last_heard_ns(&self) -> i64 {
        self.last_ack_ns
    }

    /// A SYN comes: what came before it is of another connection, unless it was only recorded early.
    pub fn begin_with(&mut self, sequence: u32) {
        if self.is_begun_elsewhere(sequence) {
            self.space.begin_anew();
        }
    }

    /// Whether what this end sent first is not what comes behind a SYN of this number.
    pub fn is_begun_elsewhere(&self, sequence: u32) -> bool {
        let start = unwrap_near(self.space.next, sequence);
        self.space.started && start.abs_diff(self.space.first) > u64::from(u16::MAX)
    }

    /// Whether this end sent anything but a SYN.
    pub fn has_gone_on(&self) -> bool {
        let Counts { packets, resent_syns, foreign_packets, .. } = self.counts;
        packets > 1 + resent_syns + foreign_packets
    }

    #[cold]
    fn on_congestion_told(&mut self, segment: &Segment) {
        self.counts.ce_packets += u64::from(segment.ecn == 3);
        self.counts.ece_packets += u64::from(self.marks.are_told_by(segment));
    }

    #[inline]
    fn on_pure_ack(&mut self, segment: &Segment, start: u64) {
        if self.space.started && start.wrapping_add(1) == self.space.next && !segment.has(flag::SYN) {
            self.on_probe();
        }
        self.trips.note_timestamp(segment);
        self.observed.on_pure_ack(segment.time_ns, self.copies.repeats().packets());
    }

    /// Takes note of a probe: no data, but a question whether the peer is there, or what its window is.
    #[cold]
    fn on_probe(&mut self) {
        if self.last_window == 0 {
            self.counts.window_probes += 1;
        } else {
            self.counts.keep_alives += 1;
        }
    }

    /// Whether the window is closed, and this begins at its edge or behind: it is sent to hear when that opens.
    #[inline(always)]
    fn probes_window(&self, segment: &Segment, start: u64) -> bool {
        if self.last_window == 0 { self.is_at_closed_edge(segment, start) } else { false }
    }

    #[cold]
    #[inline(never)]
    fn is_at_closed_edge(&self, segment: &Segment, start: u64) -> bool {
        start >= self.space.edge && segment.flags & (flag::SYN | flag::FIN) == 0
    }

    /// Whether this may be a packet that was recorded or forwarded before: what goes on where the last one ended is
    /// not.
    #[inline]
    pub fn may_be_copy(&mut self, segment: &Segment, length: u32) -> bool {
        if length == 0 {
            return !self.copies.is_higher(segment);
        }
        segment.sequence != self.space.next as u32 || self.last_window == 0
    }

    /// Whether it is, and nothing else; `other`: what the capture has twice of the other end.
    #[cold]
    pub fn is_copy(&mut self, segment: &Segment, other: Repeats) -> bool {
        let (length, sender) = (segment.length(), self.sender(segment));
        let is_copy = if length == 0 {
            let tells_sacks = self.sack && self.mss_bytes > 0 && !segment.has(flag::RST);
            self.copies.holds_bare(segment, sender, tells_sacks, other)
        } else {
            self.copies.holds(segment, length, sender, other)
        };
        self.counts.duplicate_packets += u64::from(is_copy);
        is_copy
    }

    /// What this end does not do so soon.
    fn sender(&self, segment: &Segment) -> Sender {
        let is_asked = self.space.una_known && self.space.una as u32 == segment.sequence;
        let heard_ns = if self.is_placed { self.last_ack_ns + self.lag_ns } else { i64::MAX };
        Sender {
            round_trip_ns: self.trips.least_ns.map(|least| least + self.lag_ns),
            is_whole: self.is_placed,
            asked_ns: is_asked.then_some(heard_ns),
            is_past: self.trips.is_past(segment),
            mss_bytes: self.mss_bytes,
        }
    }

    /// What the capture has twice of this end.
    pub fn repeats(&self) -> Repeats {
        self.copies.repeats()
    }

    /// Outside any window. It is of another connection, or something between the ends made it up; unless what follows
    /// shows that the capture only lacks what was between. Says whether this packet counts.
    #[cold]
    fn on_outside(&mut self, start: u64, end: u64) -> bool {
        let Some(before) = self.space.put_aside(start, end) else {
            self.counts.foreign_packets += 1;
            return false;
        };
        self.counts.foreign_packets -= 1;
        let bytes = before.end - before.start;
        if before.start + MOST_WINDOW_BYTES < self.space.next {
            self.counts.renumbered += 1;
        } else {
            self.counts.unseen_bytes += before.start.saturating_sub(self.space.next) + bytes;
        }
        self.jump_to(before.start);
        self.space.next = before.end;
        true
    }

    #[inline]
    fn on_data<const PLAIN: bool>(&mut self, segment: &Segment, start: u64, length: u32) {
        let end = start + u64::from(length);
        let (now, payload) = (segment.time_ns, segment.payload_bytes);
        self.copies.keep(segment, length);
        if start != self.space.next && !self.space.believes(start, end) && !self.on_outside(start, end) {
            return;
        }
        if !PLAIN && segment.has(flag::SYN) && self.answers_while_opening(segment) {
            return self.trips.note_timestamp(segment);
        }
        if self.probes_window(segment, start) && start == self.space.next {
            self.space.probed_to = end;
            self.last_send_ns = now;
            return self.on_probe();
        }
        if payload > 0 {
            self.count_payload(segment);
            if !PLAIN && segment.has(flag::SYN) {
                self.syn_data = (end - u64::from(payload), end);
            }
        } else {
            self.bare_segments += 1;
        }
        if start >= self.space.next {
            if start > self.space.next {
                self.take_probed(start);
            }
            if start > self.space.next {
                self.space.open_hole(segment, start, self.is_at_the_beginning());
            }
            self.on_new(segment, start, end, payload);
        } else {
            self.on_old(segment, start, end, payload);
        }
        if segment.carries(option::FRAGMENT) && payload > 0 {
            self.space.probed_to = self.space.probed_to.max(end + LARGEST_PACKET);
        }
        if !PLAIN && segment.has(flag::FIN) {
            self.space.fin = Some(end - 1);
        }
        self.last_send_ns = now;
        self.trips.note_timestamp(segment);
    }

    /// The SYNs of both ends crossed (RFC 9293, 3.5): the answer has the SYN's number, and sends nothing again.
    #[cold]
    fn answers_while_opening(&mut self, segment: &Segment) -> bool {
        let is_answer = segment.has(flag::ACK);
        let is_first = is_answer && self.opens;
        self.opens = !is_answer;
        is_first
    }

    fn jump_to(&mut self, start: u64) {
        self.space.jump_to(start);
        self.recovery.close(self.last_send_ns);
    }

    #[inline]
    fn count_payload(&mut self, segment: &Segment) {
        let payload = segment.payload_bytes;
        self.counts.data_packets += 1;
        self.counts.payload_bytes += u64::from(payload);
        if segment.ecn != 0 {
            self.counts.ect_packets += 1;
        }
        if payload > self.mss_bytes && self.mss_bytes > 0 && !self.is_one_segment(payload) {
            let more = self.segments_of(u64::from(payload)) - 1;
            self.counts.data_segments += more;
            self.counts.oversize_packets += 1;
        }
        if payload > self.largest_payload {
            self.largest_payload = payload;
            self.judge_full();
        }
        match &mut self.data_ns {
            None => {
                self.data_ns = Some((segment.time_ns, segment.time_ns));
                self.limits.begin(segment.time_ns);
            }
            Some((_, last)) if segment.time_ns >= *last => *last = segment.time_ns,
            Some((first, _)) => *first = (*first).min(segment.time_ns),
        }
    }

    /// Both ends' offers are thought to bound a segment, as no interface sends more than its own end takes. Where a
    /// router has lowered one of the two, packets come one behind the other that are exactly of the other's size:
    /// segments, no bundles.
    #[cold]
    fn is_one_segment(&mut self, payload: u32) -> bool {
        if payload != u32::from(self.peers_mss_bytes) || payload != self.last_payload {
            return false;
        }
        // The one before was taken for a bundle.
        let more = self.segments_of(u64::from(payload)) - 1;
        self.counts.data_segments = self.counts.data_segments.saturating_sub(more);
        self.counts.oversize_packets = self.counts.oversize_packets.saturating_sub(1);
        self.agree(payload, self.peers_mss_bytes);
        true
    }

    #[inline]
    fn on_new(&mut self, segment: &Segment, start: u64, end: u64, payload: u32) {
        let now = segment.time_ns;
        if self.space.flight_bytes() > 0 && now - self.last_send_ns >= LEAST_QUIET_NS {
            self.on_new_behind_silence(now);
        }
        if self.recovery.is_active() {
            self.on_silence(now);
        }
        if self.space.next <= self.space.una_seen {
            self.rearmed_ns = now;
            self.on_waited(now, payload);
        }
        // Half a segment (RFC 1122, 4.2.3.4): options and scales take a little from full ones.
        if 2 * u64::from(payload) < u64::from(self.mss_bytes) && end == self.space.edge_seen {
            self.counts.silly_packets += u32::from(payload > 0);
        }
        self.space.next = end;
        self.last_payload = payload;
        let sent = Sent { start, time_ns: now, length: (end - start) as u32, again: false };
        self.space.remember(sent, self.counts.acks > 0);
        if payload > 0 {
            self.counts.unique_bytes += u64::from(payload);
            let flight = self.flight_at(end);
            self.most_flight_bytes = self.most_flight_bytes.max(flight);
            self.flight_sum += u128::from(flight);
            let number = self.copies.repeats().packets();
            self.observed.on_new(now, self.space.relative(end), payload, flight, number);
        }
    }

    /// A probe may carry new data; the silence before it tells. Where the sender had more to send, and sent nothing,
    /// its congestion window held it back, and only the probe's timer lets one more go. What says nothing new, such as
    /// data of the other end, does not stop that timer (RFC 8985, 7.2); where one segment is outstanding, it leaves the
    /// receiver the time of a delayed acknowledgement.
    #[cold]
    fn on_new_behind_silence(&mut self, now: i64) {
        let told_ns = self.last_advance_ns.unwrap_or(self.last_ack_ns);
        let is_lone = self.space.flight_bytes() <= u64::from(self.full_bytes);
        let is_early = is_lone && now - self.last_send_ns < LEAST_RTO_NS / 10 * 9;
        if is_early || !self.is_quiet_since(told_ns, now, QUIET) {
            return;
        }
        let is_held_back = self.last_payload >= self.full_bytes.max(1);
        let may_probe = self.sack && !self.recovery.probed && !self.recovery.is_active();
        let is_probe = is_held_back && may_probe && self.space.sacked.is_empty();
        self.counts.new_data_probes += u64::from(is_probe);
        self.recovery.probed |= is_probe || self.is_quiet_since(told_ns, now, PROBED);
    }

    /// Something is sent, with nothing outstanding. When it is no answer, right behind the acknowledgement of a small
    /// packet, and that came late for this path, Nagle's rule held it back and the receiver's delayed acknowledgement
    /// kept it so.
    fn on_waited(&mut self, now: i64, payload: u32) {
        let is_asked = std::mem::take(&mut self.is_asked);
        match is_asked {
            _ if payload == 0 => {}
            true => self.counts.answering_sends += 1,
            false => self.counts.unasked_sends += 1,
        }
        let is_small = !is_asked
            && self.last_payload > 0
            && self.last_payload < self.mss_bytes
            && payload < self.mss_bytes;
        if !is_small {
            return;
        }
        let waited_ns = self.trips.last_ns - self.trips.least_ns.unwrap_or(i64::MAX).min(self.trips.last_ns);
        let is_at_once = now - self.lag_ns - self.last_ack_ns < AT_ONCE_NS;
        if is_at_once && (LEAST_DELAYED_NS..MOST_DELAYED_NS).contains(&waited_ns) {
            self.counts.nagle_waits += 1;
            self.counts.nagle_ns += waited_ns;
        }
    }

    /// Outstanding now that `end` is sent; 0 when it cannot be known, since the window that allowed that was not seen.
    #[inline]
    fn flight_at(&mut self, end: u64) -> u64 {
        // A window is rounded to its scale: nobody minds a part of a segment.
        let within = end.saturating_sub(u64::from(self.largest_payload));
        let edge = self.space.edge_seen;
        let is_known = within <= edge || edge == 0 || self.space.must_have_heard(within);
        if is_known {
            return self.space.flight_bytes();
        }
        // What goes before the first answer to data may rest on a window that only the path saw.
        self.counts.beyond_window += u64::from(self.counts.acks > 1);
        0
    }

    /// Begins below what was seen already: late, sent again, or both.
    #[cold]
    fn on_old(&mut self, segment: &Segment, start: u64, end: u64, payload: u32) {
        let now = segment.time_ns;
        let late = self.fill_holes(segment, start, end);
        let fresh = end.saturating_sub(self.space.next);
        let again = (end - start).saturating_sub(late + fresh);
        if again == 0 {
            self.counts.unique_bytes += u64::from(payload);
            self.space.insert_late(Sent { start, time_ns: now, length: (end - start) as u32, again: true });
        } else if end <= self.space.una
            && payload <= 1
            && end + 1 >= self.space.next
            && segment.flags & (flag::SYN | flag::FIN) == 0
            || self.probes_window(segment, start)
        {
            return self.on_probe();
        } else {
            // A SYN or FIN takes a number, and is no payload.
            let again = u64::from(payload).min(again);
            self.counts.unique_bytes += (late + fresh).min(u64::from(payload) - again);
            self.on_again(segment, start, end, again);
        }
        if fresh > 0 {
            let sent = Sent { start: self.space.next, time_ns: now, length: fresh as u32, again: again > 0 };
            self.space.remember(sent, self.counts.acks > 0);
            self.space.next = end;
        }
        let payload = u64::from(payload);
        self.observed.on_old(now, payload.min(again), payload.min(late + fresh));
    }

    /// Octets that had been jumped over, and what that was.
    fn fill_holes(&mut self, segment: &Segment, start: u64, end: u64) -> u64 {
        let Some((hole, bytes)) = self.space.fill_hole(start, end, segment.time_ns) else { return 0 };
        if hole.is_acknowledged && !hole.is_before {
            // Only recorded behind its acknowledgement.
            self.counts.unseen_bytes = self.counts.unseen_bytes.saturating_sub(bytes);
            return bytes + self.fill_holes(segment, start, end);
        }
        let segments = self.segments_of(bytes);
        if self.was_overtaken(segment, &hole) {
            self.counts.reordered_segments += segments;
            self.observed.on_disordered(segment.time_ns, self.space.relative(start));
        } else {
            self.counts.lost_before_segments += segments;
            self.begin_episode(segment.time_ns);
            self.on_lost_before(segment, start, bytes, segments);
        }
        bytes + self.fill_holes(segment, start, end)
    }

    /// Sent again, but for the first time that this capture sees it.
    fn on_lost_before(&mut self, segment: &Segment, start: u64, bytes: u64, segments: u64) {
        // What was in flight came before; silence of both for so long is that of no other timer.
        let now = segment.time_ns;
        let silent_ns = (now - self.lag_ns - self.last_ack_ns).min(now - self.last_send_ns);
        let is_timeout = self.is_placed && start <= self.space.una_seen && silent_ns >= LEAST_RTO_NS / 10 * 9;
        if is_timeout {
            self.recovery.timeouts += 1;
            self.recovery.timeout_point = self.space.next;
        }
        self.on_silence(now);
        let episode = self.recovery.begin(blank());
        episode.resent_bytes += bytes;
        episode.resent_segments += segments;
        episode.timeouts += u32::from(is_timeout);
        self.observed.on_resent(now, self.space.relative(start));
    }

    /// Sent before the segment that jumped over it? Timestamps tell, or the IP identification, or the time.
    fn was_overtaken(&self, segment: &Segment, hole: &Hole) -> bool {
        if let (Some(jumper), true) = (hole.ts_value, segment.carries(option::TIMESTAMPS)) {
            let newer = segment.ts_value.wrapping_sub(jumper) as i32;
            if newer != 0 {
                return newer < 0;
            }
        }
        let is_numbered = segment.ip_id != 0 && hole.ip_id != 0 && segment.ip_id != hole.ip_id;
        if is_numbered && self.copies.are_numbers_rising() {
            return (segment.ip_id.wrapping_sub(hole.ip_id) as i16) < 0;
        }
        let round_trip = self.trips.smoothed.rtt_ns().map_or(REORDERED_WITHIN_NS, |rtt| rtt / 2);
        segment.time_ns - hole.since_ns < REORDERED_WITHIN_NS.min(round_trip.max(1))
    }

    /// No acknowledgement and no data for `factor` round trips.
    #[inline(always)]
    fn is_quiet(&self, now: i64, factor: f64) -> bool {
        self.is_quiet_since(self.last_ack_ns, now, factor)
    }

    /// Nothing of the other end since `told_ns`, and no data, for `factor` round trips.
    #[inline(always)]
    fn is_quiet_since(&self, told_ns: i64, now: i64, factor: f64) -> bool {
        let since_send = now - self.last_send_ns;
        if since_send < LEAST_QUIET_NS {
            return false;
        }
        let since_ack = now - self.lag_ns - told_ns;
        let round_trip = self.trips.smoothed.rtt_ns().map_or(LEAST_RTO_NS / 2, |rtt| rtt + self.lag_ns);
        since_ack.min(since_send) as f64 > (factor * round_trip as f64).max(LEAST_QUIET_NS as f64)
    }

    fn cause(&self, now: i64, start: u64, end: u64) -> Cause {
        let (head, tail) = (start <= self.space.una_seen, end >= self.space.next);
        let since_ack = now - self.lag_ns - self.last_ack_ns;
        let overdue = head && since_ack > 1_000_000 && now - self.timer_armed_ns() >= self.overdue_ns();
        // With something selectively acknowledged, silence may be RACK's reordering timer.
        if overdue || self.space.sacked.is_empty() && self.is_quiet(now, QUIET) {
            let probe = tail && self.sack && !self.recovery.probed && self.space.sacked.is_empty();
            if probe && !self.recovery.is_active() {
                return Cause::TailProbe;
            }
            if head {
                return Cause::Timeout;
            }
        }
        if start < self.recovery.timeout_point { Cause::GoBack } else { Cause::Fast }
    }

    /// Since when the retransmission timer runs. An acknowledgement arms it anew (RFC 6298, 5.3). Linux lets it end as
    /// if it had run since the first octet was sent where one of its other timers ran in between, but never behind a
    /// timeout.
    fn timer_armed_ns(&self) -> i64 {
        let head = self.space.head().filter(|head| head.again || head.start >= self.recovery.timeout_point);
        head.map_or(self.rearmed_ns, |head| head.time_ns)
    }

    /// What the retransmission timer alone takes this long for, with room for the sender's RTT being less than ours.
    /// With something selectively acknowledged RACK's timer may run, at most for two round trips (its reordering window
    /// is a quarter of the least one and grows to a whole one: RFC 8985, 6.2) and a little, as timers are late: where
    /// these are long, the room is less.
    fn overdue_ns(&self) -> i64 {
        let rto = self.trips.smoothed.rto_ns();
        let with_room = rto / 10 * 9;
        let rack = self
            .trips
            .smoothed
            .rtt_ns()
            .filter(|_| !self.space.sacked.is_empty())
            .map_or(0, |rtt| rtt / 10 * 21);
        with_room.max(rack.min(rto / 100 * 98))
    }

    fn on_again(&mut self, segment: &Segment, start: u64, end: u64, bytes: u64) {
        let now = segment.time_ns;
        if self.counts.fast_open_refused_bytes > 0 && start >= self.syn_data.0 && start < self.syn_data.1 {
            return self.on_refused(now, (start, end), bytes);
        }
        let syn = segment.has(flag::SYN);
        let cause = if syn { Cause::Timeout } else { self.cause(now, start, end) };
        let segments = self.segments_of(bytes);
        self.counts.resent_bytes += bytes;
        self.counts.resent_segments += segments;
        self.counts.resent_syns += u64::from(syn);
        if cause == Cause::Timeout {
            self.recovery.timeout_point = self.space.next;
        }
        if start <= self.space.una_seen {
            self.rearmed_ns = now;
            self.on_stubborn(now, start, segment.payload_bytes);
        }
        self.begin_episode(now);
        self.on_silence(now);
        let episode = self.recovery.begin(blank());
        episode.resent_bytes += bytes;
        episode.resent_segments += segments;
        episode.timeouts += u32::from(cause == Cause::Timeout);
        episode.syn_timeouts += u32::from(syn);
        let ts_value = segment.carries(option::TIMESTAMPS).then_some(segment.ts_value);
        let resent = Resent { start, end, segments, ts_value, cause, spurious: false, duplicated: false };
        self.recovery.on_resent(resent);
        self.space.mark_again(now, start, end);
        self.observed.on_resent(now, self.space.relative(start));
    }

    /// What went with the SYN, and was not taken, is sent again (RFC 7413, 4.2.1): nothing was lost.
    #[cold]
    fn on_refused(&mut self, now: i64, (start, end): (u64, u64), bytes: u64) {
        let segments = self.segments_of(bytes);
        self.syn_data.0 = end;
        self.counts.resent_bytes += bytes;
        self.counts.resent_segments += segments;
        self.counts.fast_open_segments += segments;
        self.recovery.segments[Cause::Fast as usize] += segments;
        self.space.mark_again(now, start, end);
        self.observed.on_resent(now, self.space.relative(start));
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
            from_byte: self.space.una.saturating_sub(self.space.first),
            flight_bytes: self.space.flight_bytes(),
            window_bytes: self.space.edge_seen.saturating_sub(self.space.una_seen),
            rtt_us: (self.trips.last_ns / 1000) as u64,
            point: self.space.next,
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
        episode.end_ns = episode.start_ns.max(now);
    }

    /// This end was sent what it had been told before, for the last time and at the latest then; `with_payload`: along
    /// with payload.
    #[inline]
    pub fn on_told_again(&mut self, last_ns: i64, latest_ns: i64, with_payload: bool) {
        self.advance(latest_ns);
        self.last_ack_ns = last_ns;
        self.is_asked |= with_payload;
    }

    /// This end got an acknowledgement (its packet passed here); `answered_ns` is the time since the packet whose
    /// timestamp it echoes for the first time.
    #[inline]
    pub fn on_ack(&mut self, segment: &Segment, window_bytes: u64, answered_ns: Option<i64>) {
        let now = segment.time_ns;
        let ack = unwrap_near(self.space.una, segment.acknowledgement);
        self.is_asked |= segment.payload_bytes > 0;
        if self.is_told_again(segment, ack, window_bytes) {
            self.last_ack_ns = now;
            return;
        }
        let is_first = !self.space.una_known;
        if is_first {
            self.space.first_ack(ack);
        }
        if ack > self.space.next {
            if !self.space.believes_ack(ack, is_first) {
                self.counts.foreign_packets += 1;
                return;
            }
            self.unseen(ack, now, is_first);
        }
        if ack < self.space.una {
            return;
        }
        self.last_ack_ns = now;
        self.on_window(segment, ack, window_bytes);
        if ack > self.space.una {
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
        segment.payload_bytes > 0
            && self.data_ns.is_none()
            && (self.space.una_known && ack == self.space.una && ack <= self.space.next)
            && (window_bytes == self.last_window && ack + window_bytes == self.space.edge)
            && segment.sack_count == 0
    }

    /// What probed the window below this number was taken by the receiver; or it went in later fragments.
    fn take_probed(&mut self, below: u64) {
        let probed = self.space.probed_to.min(below).saturating_sub(self.space.next);
        self.counts.unique_bytes += probed;
        self.counts.payload_bytes += probed;
        self.space.next += probed;
    }

    /// Whether the capture began in mid-stream and nothing new was acknowledged since: what was jumped over was
    /// outstanding then. A packet without payload would have told up to where this end had sent.
    fn is_at_the_beginning(&self) -> bool {
        let counts = &self.counts;
        self.offer.is_none() && counts.acks == 0 && counts.packets == counts.data_packets
    }

    /// Acknowledged, but never seen.
    #[cold]
    fn unseen(&mut self, ack: u64, now: i64, is_first: bool) {
        if !self.space.started {
            self.space.next = ack;
            return;
        }
        self.take_probed(ack);
        if ack == self.space.next + 1 && is_first && self.data_ns.is_none() && self.bare_segments == 0 {
            // The first answer tells that what asked for it had the number before the next one: a keep-alive.
            self.on_probe();
            self.space.acknowledged_unseen(ack, now, false);
        } else if ack > self.space.next {
            self.counts.unseen_bytes += self.space.acknowledged_unseen(ack, now, self.is_at_the_beginning());
        }
    }

    #[inline]
    fn on_window(&mut self, segment: &Segment, ack: u64, window_bytes: u64) {
        self.space.edge = ack + window_bytes;
        self.space.edge_most = self.space.edge_most.max(ack + possible_window(window_bytes));
        if segment.has(flag::SYN) {
            self.syn_window_bytes = Some(window_bytes);
            self.syn_data.0 = self.syn_data.0.max(ack);
            self.counts.fast_open_refused_bytes = self.syn_data.1.saturating_sub(self.syn_data.0);
            return;
        }
        self.most_window_bytes = self.most_window_bytes.max(Some(window_bytes));
        if (window_bytes == 0) != (self.last_window == 0) {
            self.on_closed_or_opened(segment.time_ns, window_bytes);
        }
        if self.data_ns.is_some() {
            self.least_window_bytes =
                Some(self.least_window_bytes.map_or(window_bytes, |w| w.min(window_bytes)));
        }
    }

    /// The window was closed, or opened again.
    #[cold]
    fn on_closed_or_opened(&mut self, now: i64, window_bytes: u64) {
        if window_bytes == 0 {
            self.counts.zero_windows += 1;
            self.closed_since_ns = self.data_ns.map(|_| now);
        } else if let Some(since) = self.closed_since_ns.take() {
            self.closed_ns += (now - since).max(0);
        }
    }

    /// Lets the sender know, now or when it gets there.
    #[inline]
    fn pass(&mut self, now: i64, ack: u64) {
        // An end that has not sent anything is limited by nothing yet, and nobody asks when it heard.
        let is_silent = self.data_ns.is_none();
        if is_silent || self.lag_ns == 0 || self.space.passed.len() >= MAX_SENT {
            if !is_silent {
                self.account(now);
            }
            (self.space.una_seen, self.space.edge_seen) = (self.space.una_seen.max(ack), self.space.edge);
            self.recovery.on_heard(self.space.una_seen, now);
        } else {
            self.space.passed.push(Passed { time_ns: now, ack, edge: self.space.edge });
        }
    }

    #[inline]
    fn on_advance(&mut self, segment: &Segment, ack: u64, answered_ns: Option<i64>) {
        let (now, before) = (segment.time_ns, self.space.una);
        let clean = self.space.sacked.is_empty();
        let taken = self.space.acknowledge(ack, now, self.largest_acked_bytes);
        let (newest, bytes) = (taken.newest, ack - before);
        self.largest_acked_bytes = taken.largest_bytes;
        self.counts.unseen_bytes += taken.unseen_bytes;
        self.counts.acks += 1;
        self.counts.acked_bytes += bytes;
        self.rearmed_ns = now;
        self.last_advance_ns = Some(now);
        if !clean {
            self.space.sacked.forget_below(ack);
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
            self.trips.by_timestamp.get_or_insert_default().record(rtt as u64);
        }
        let rtt_ns = self.measure(now, newest, clean, bytes);
        if self.recovery.is_active() || self.counts.resent_segments > 0 || self.recovery.probed {
            let echo = segment.carries(option::TIMESTAMPS).then_some(segment.ts_echo);
            self.recovery.on_advance(before, ack, echo);
        }
        let window = self.space.edge.saturating_sub(ack);
        self.observed.on_ack(now, bytes, window, rtt_ns);
        if let Some(detail) = &mut self.observed.detail {
            detail.on_ack(now, self.space.relative(ack), self.space.relative(self.space.edge), rtt_ns);
        }
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

    /// Gives back the round trip, if it is one.
    #[inline]
    fn measure(&mut self, now: i64, newest: Option<(i64, bool)>, clean: bool, bytes: u64) -> Option<i64> {
        let (sent_ns, again) = newest?;
        if again || !clean {
            self.trips.karn_refused += 1;
            self.trips.last_acked = None;
            return None;
        }
        let rtt_ns = Some(now - sent_ns).filter(|rtt_ns| *rtt_ns >= 0);
        if let Some(rtt_ns) = rtt_ns {
            self.trips.sample(rtt_ns);
        }
        if let (Some((ack_ns, data_ns)), Some(spacing)) = (self.trips.last_acked, &mut self.observed.spacing)
        {
            spacing.compression.on_pair(now, now - ack_ns, sent_ns - data_ns, bytes);
        }
        self.trips.last_acked = Some((now, sent_ns));
        rtt_ns
    }

    fn on_repeated(&mut self, segment: &Segment, window_bytes: u64) {
        let bare = segment.payload_bytes == 0 && segment.flags & (flag::SYN | flag::FIN | flag::RST) == 0;
        let same_window = window_bytes == self.last_window;
        if bare && self.space.next > self.space.una && (same_window || segment.sack_count > 0) {
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
            if *left >= ack && *right <= self.space.next && left < right {
                self.space.sacked.insert(*left, *right);
            }
        }
    }

    /// Whether this acknowledges, for the first time, what was last sent much longer ago than its timer would have
    /// waited for; if so, by how much longer than a round trip, and whether it leaves a part of that outstanding.
    pub fn less_by_silence_ns(&self, segment: &Segment) -> Option<(i64, bool)> {
        let ack = unwrap_near(self.space.una, segment.acknowledgement);
        let told_ns = segment.time_ns.saturating_sub(self.last_send_ns.max(self.last_ack_ns));
        let is_new =
            segment.has(flag::ACK) && self.counts.acks > 0 && ack > self.space.una && ack <= self.space.next;
        let patient_ns = self.trips.smoothed.rto_ns().saturating_mul(TIMERS).max(PATIENT_NS);
        let is_late = told_ns > patient_ns && !self.recovery.is_active();
        let less_ns = told_ns.saturating_sub(self.trips.smoothed.rtt_ns().unwrap_or(0));
        (is_new && is_late).then_some((less_ns, ack < self.space.next))
    }

    /// Whether this end sends again what is outstanding, without a word of the other end: a timer went off.
    pub fn is_timer_of(&self, segment: &Segment) -> bool {
        if !self.space.started {
            return false;
        }
        let start = unwrap_near(self.space.next, segment.sequence);
        let is_old = segment.length() > 0 && start + u64::from(segment.length()) <= self.space.next;
        is_old && !self.recovery.is_active() && self.space.sacked.is_empty()
    }

    /// No time between what was so far and what comes can be told: no round trip is measured over it.
    pub fn forget_times(&mut self) {
        self.space.sent.iter_mut().for_each(|sent| sent.again = true);
        self.trips.forget_times();
    }

    /// A router said that a packet of this end is too big.
    pub fn on_too_big(&mut self, mtu_bytes: u32) {
        let (least, times) = self.too_big.get_or_insert((u32::MAX, 0));
        (*least, *times) = ((*least).min(mtu_bytes), *times + 1);
    }

    /// Ends what is not over.
    pub fn finish(&mut self, now_ns: i64) {
        if self.counts.renumbered > 0 {
            // What its numbers leapt over was another connection's way to its own.
            self.counts.unseen_bytes = 0;
        }
        // What nearly every packet would add to is summed up here.
        self.counts.packets += self.counts.duplicate_packets;
        self.counts.data_segments += self.counts.data_packets;
        self.counts.sent_segments = self.counts.data_segments + self.bare_segments;
        self.closed_ns += self.closed_since_ns.take().map_or(0, |since| (now_ns - since).max(0));
        self.limits.finish(&mut self.observed.series);
        self.recovery.close(now_ns);
    }
}

/// What keeps the sender from sending, right now; nothing does when it has finished.
#[inline]
fn limit(
    space: &SequenceSpace,
    is_window_known: bool,
    is_repairing: bool,
    full_bytes: u32,
    last_payload: u32,
) -> Option<Limit> {
    let is_edge_known = is_window_known && space.edge_seen != 0;
    if space.next <= space.una_seen {
        let is_closed = is_edge_known && space.edge_seen <= space.next;
        let limit = if is_closed { Limit::Window } else { Limit::Application };
        return space.fin.is_none().then_some(limit);
    }
    if is_repairing {
        return Some(Limit::Recovery);
    }
    let room = if is_edge_known { space.edge_seen.saturating_sub(space.next) } else { u64::MAX };
    Some(if room < u64::from(full_bytes.max(last_payload)) {
        Limit::Window
    } else if last_payload < full_bytes {
        Limit::Application
    } else {
        Limit::Congestion
    })
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
        syn_timeouts: 0,
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
        assert!(half.space.passed.is_empty());
        half.finish(1_000_000_000);
        assert_eq!(half.limits.spent_ns, [0; 4]);
    }

    /// Why the head is sent again so long after it was sent, when what follows it was selectively acknowledged.
    /// Milliseconds.
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
            half.on_sent::<false>(&data(ms, number), 1000);
            half.on_ack(&ack(ms + rtt_ms, number + 1), 65_535, None);
        }
        let ms = 20 * rtt_ms;
        for number in 20..23 {
            half.on_sent::<false>(&data(ms, number), 1000);
        }
        let mut gap = Segment { sack_count: 1, ..ack(ms + rtt_ms, 20) };
        gap.sack[0] = (21_001, 23_001);
        half.on_ack(&gap, 65_535, None);
        half.on_sent::<false>(&data(ms + after_ms, 20), 1000);
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
    fn an_end_that_sent_nothing_has_no_timer_that_goes_off() {
        for sequence in [0, 1, 1 << 31, u32::MAX] {
            let data = Segment { flags: flag::ACK, sequence, payload_bytes: 100, ..Segment::default() };
            assert!(!Half::new(false).is_timer_of(&data), "{sequence}");
        }
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
        half.on_sent::<false>(&data, 100);
        half.advance(4_000_000);
        half.finish(4_000_000);
        assert_eq!(
            half.limits.spent_ns.iter().sum::<i64>(),
            3_000_000,
            "what went before the first payload is nobody's"
        );
    }
}
