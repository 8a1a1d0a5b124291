//! Both ends of a connection: its handshake, where the capture was made, how it closed.

use super::{checksums::Checksums, counts::Offer, half::Half, round_trips::RoundTrips, spacing::Compression};
use crate::{
    clock::{Passed, STEP_NS},
    segment::{Checksum, FlowKey, Segment, flag, option},
};
use serde::Serialize;

/// Without a window scale known, a window that is not zero says nothing.
const WINDOW_UNKNOWN: u64 = 1 << 40;
/// Greatest window scale (RFC 7323, 2.3).
const MOST_SCALE: u32 = 14;
/// A lag below this share of the round trip is none: the capture was made at that end.
const AT_THE_END: f64 = 0.1;
/// Packets, without copies, after which a connection whose handshake was not seen is judged by timestamps.
const JUDGED_AFTER: u64 = 64;
/// A number further from the next one is of another connection.
const NEAR_BYTES: u32 = 1 << 20;
/// Data that is the client's first packet behind the answer to its SYN, and so late, waited for the application: the
/// acknowledgement before it is not in the capture.
const SAID_LATE_NS: i64 = 1_000_000_000;
/// An answer to a SYN that has another number than the one before, and comes so much later, is of another connection.
const ANSWERED_ANEW_NS: i64 = 1_000_000_000;
/// What an end sent before its reset may be recorded behind it.
const RECORDED_LATE_NS: i64 = 10_000_000;
/// A flow whose packets change so often, and one in so many, between clocks has two.
const CLOCK_SWITCHES: u64 = 4;
const PACKETS_PER_SWITCH: u64 = 8;
/// Segment sizes that hold when a SYN has no MSS option (RFC 9293, 3.7.1).
const DEFAULT_MSS: [u16; 2] = [536, 1220];

/// Where the capture was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Vantage {
    /// At the client.
    Client,
    /// At the server.
    Server,
    /// Between them.
    Middle,
    /// Neither handshake nor timestamps tell.
    Unknown,
}

/// Times of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Handshake {
    /// First SYN.
    pub syn_ns: Option<i64>,
    /// Last SYN.
    pub last_syn_ns: Option<i64>,
    /// First SYN-ACK.
    pub syn_ack_ns: Option<i64>,
    /// Last SYN-ACK.
    pub last_syn_ack_ns: Option<i64>,
    /// The client's first packet after that.
    pub ack_ns: Option<i64>,
    /// Flags of the SYN-ACK.
    pub syn_ack_flags: u16,
    /// Times are ambiguous: more than one SYN or SYN-ACK was seen, or the acknowledgement of the answer was not.
    pub repeated: bool,
    /// Both ends sent a SYN without an acknowledgement.
    pub simultaneous: bool,
}

/// A connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Connection {
    /// Ends of the connection.
    pub key: FlowKey,
    /// Number of its first packet.
    pub first_index: u64,
    /// Time of its first packet.
    pub first_ns: i64,
    /// Time of its last packet.
    pub last_ns: i64,
    /// Packets of both ends.
    pub packets: u64,
    /// Which end opened it: as its SYN says, else the one with the higher port.
    pub client: u8,
    /// Times of the handshake's packets.
    pub handshake: Handshake,
    /// What each end sends.
    pub halves: [Half; 2],
    /// Which end reset it first, and when; none where that end goes on.
    pub reset: Option<(u8, i64)>,
    /// When both ends had finished.
    pub closed_ns: Option<i64>,
    /// One end had finished, and the other sent payload after that.
    pub half_closed: bool,
    /// An earlier connection of the capture had the same ends.
    pub reused: bool,
    /// What the checksums of each end say.
    pub checksums: [Checksums; 2],
    syn_sequence: [Option<u32>; 2],
    finished_ns: [Option<i64>; 2],
    /// The place of the capture is not judged yet.
    is_early: bool,
    /// A FIN or reset was seen.
    ending: bool,
    told: Option<Told>,
    /// Window scale of each end; none while it is not known.
    scales: Option<[u8; 2]>,
    /// Offset of the capture's clock that the last packet's time is of, and how often it was another one; from where
    /// on the capture is known to have several.
    clock_ns: Option<i64>,
    clock_switches: u64,
}

/// What a packet told the other end, and when it was last told the same. While that end sends nothing, telling it again
/// is only noted: what time did to it meanwhile is made up for by [`Connection::settle`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct Told {
    acknowledgement: u32,
    ts_echo: u32,
    window: u16,
    end: u8,
    options: u8,
    last_ns: i64,
    /// The times of a capture may go back.
    latest_ns: i64,
    /// Payload came behind what was told.
    is_behind: bool,
}

impl Told {
    fn by(segment: &Segment) -> Told {
        Told {
            acknowledgement: segment.acknowledgement,
            ts_echo: segment.ts_echo,
            window: segment.window,
            end: segment.end,
            options: segment.options,
            last_ns: segment.time_ns,
            latest_ns: segment.time_ns,
            is_behind: false,
        }
    }

    /// Whether this segment could tell nothing else, and is no acknowledgement of its own.
    #[inline]
    fn is_repeated_by(&self, segment: &Segment) -> bool {
        const SPECIAL: u16 = flag::SYN | flag::RST | flag::ACK;
        self.acknowledgement == segment.acknowledgement
            && self.ts_echo == segment.ts_echo
            && (self.window, self.end, self.options) == (segment.window, segment.end, segment.options)
            && segment.flags & SPECIAL == flag::ACK
            && segment.payload_bytes > 0
            && segment.sack_count == 0
    }
}

impl Connection {
    /// Will begin with this segment; `reused`: an earlier connection of the capture had the same ends.
    pub fn new(segment: &Segment, reused: bool, detailed: bool) -> Connection {
        let ports = segment.key.ports;
        let opener = match (segment.has(flag::SYN), segment.has(flag::ACK)) {
            (true, false) => segment.end,
            (true, true) => 1 - segment.end,
            _ => u8::from(ports[1] > ports[0]),
        };
        Connection {
            key: segment.key,
            first_index: segment.index,
            first_ns: segment.time_ns,
            last_ns: segment.time_ns,
            packets: 0,
            client: opener,
            handshake: Handshake::default(),
            halves: [Half::new(detailed), Half::new(detailed)],
            reset: None,
            closed_ns: None,
            half_closed: false,
            reused: reused && segment.has(flag::SYN),
            checksums: Default::default(),
            syn_sequence: [None; 2],
            finished_ns: [None; 2],
            is_early: true,
            ending: false,
            told: None,
            scales: None,
            clock_ns: None,
            clock_switches: 0,
        }
    }

    /// The next packet's time is of this clock of several.
    #[cold]
    pub fn on_clock(&mut self, offset_ns: i64) {
        self.clock_switches += u64::from(self.clock_ns.is_some_and(|clock_ns| clock_ns != offset_ns));
        self.clock_ns = Some(offset_ns);
    }

    /// Whether its packets were recorded by two clocks, so that the time between two of them is not known.
    fn has_two_clocks(&self) -> bool {
        self.clock_switches >= CLOCK_SWITCHES && self.clock_switches * PACKETS_PER_SWITCH >= self.packets
    }

    /// No round trip is told, nor what hangs on one.
    fn withhold_round_trips(&mut self) {
        self.handshake.repeated = true;
        for half in &mut self.halves {
            (half.trips, half.is_placed, half.lag_ns) = (RoundTrips::default(), false, 0);
            if let Some(spacing) = &mut half.observed.spacing {
                spacing.compression = Compression::default();
            }
        }
    }

    /// Whether this segment is of another connection between the same ends.
    #[inline]
    pub fn is_reopened_by(&self, segment: &Segment) -> bool {
        segment.has(flag::SYN) && self.is_opened_anew_by(segment)
            || self.is_closed() && self.goes_elsewhere(segment)
    }

    /// Whether this segment, behind the end, carries data under numbers of which the connection had none near.
    #[cold]
    fn goes_elsewhere(&self, segment: &Segment) -> bool {
        let is_data = segment.payload_bytes > 0 && segment.has(flag::ACK) && !segment.has(flag::RST);
        is_data && !self.is_damaged(segment) && !self.goes_on_with(segment)
    }

    #[cold]
    fn is_opened_anew_by(&self, segment: &Segment) -> bool {
        if self.is_damaged(segment) {
            return false;
        }
        if segment.has(flag::ACK) {
            return self.is_answered_anew_by(segment);
        }
        match self.syn_sequence[usize::from(segment.end) & 1] {
            Some(sequence) => sequence != segment.sequence,
            // The other end's SYN: simultaneous open, unless the handshake is over.
            None => {
                self.handshake.syn_ack_ns.is_some()
                    || self.halves[usize::from(segment.end)].counts.packets > 0
            }
        }
    }

    /// Whether this answer to a SYN is of another connection, whose SYN the capture lacks: its number is another one,
    /// and this one is over; or nothing of the other end is there, and this end has gone on since its first answer.
    fn is_answered_anew_by(&self, segment: &Segment) -> bool {
        let me = usize::from(segment.end) & 1;
        let half = &self.halves[me];
        let is_other = match self.syn_sequence[me] {
            Some(sequence) => sequence != segment.sequence,
            None => half.is_begun_elsewhere(segment.sequence),
        };
        let is_one_sided = self.halves[1 - me].counts.packets == 0;
        let is_late = || segment.time_ns.saturating_sub(self.last_ns) >= ANSWERED_ANEW_NS;
        let is_over = || half.space.fin.is_some() || self.is_closed();
        is_other && (is_over() || is_one_sided && (half.has_gone_on() || is_late()))
    }

    /// Whether payload went over it, with a word of both ends.
    pub fn is_used(&self) -> bool {
        self.halves.iter().all(|half| half.counts.packets > 0)
            && self.halves.iter().any(|half| half.data_ns.is_some())
    }

    /// Whether this segment, behind a long silence, goes on with the numbers that were, as a keep-alive does.
    #[cold]
    pub fn goes_on_with(&self, segment: &Segment) -> bool {
        let is_near = |half: &Half, number: u32| {
            let apart = (number.wrapping_sub(half.space.next as u32) as i32).unsigned_abs();
            half.space.started && apart < NEAR_BYTES
        };
        let me = usize::from(segment.end) & 1;
        let acknowledges = !segment.has(flag::ACK) || is_near(&self.halves[1 - me], segment.acknowledgement);
        acknowledges && !segment.has(flag::SYN) && is_near(&self.halves[me], segment.sequence)
    }

    /// How much time has passed for it behind a silence of the capture, as this segment shows.
    #[cold]
    pub fn time_passed(&mut self, segment: &Segment) -> Option<Passed> {
        self.settle();
        let me = usize::from(segment.end) & 1;
        let by_ticks = self.halves[me].trips.less_by_ticks_ns(segment);
        let told_ns = segment.time_ns.saturating_sub(self.last_ns);
        match by_ticks {
            _ if segment.flags & (flag::SYN | flag::RST) != 0 => None,
            Some(less_ns) if less_ns < STEP_NS => Some(Passed::All),
            Some(less_ns) if less_ns > told_ns / 2 => {
                Some(Passed::LessForEnd(self.key, segment.end, less_ns))
            }
            Some(_) => None,
            None if self.halves[me].is_timer_of(segment) => Some(Passed::All),
            None => self.passed_by_silence(segment),
        }
    }

    /// What a late acknowledgement says of the time that has passed. A flow of which the capture lacks octets says
    /// nothing: what was sent, or acknowledged, meanwhile may be lacking, too.
    fn passed_by_silence(&self, segment: &Segment) -> Option<Passed> {
        let me = usize::from(segment.end) & 1;
        let (half, peer) = (&self.halves[me], &self.halves[1 - me]);
        if half.counts.unseen_bytes + peer.counts.unseen_bytes > 0 {
            return None;
        }
        let is_bare = segment.length() == 0 && half.space.next as u32 == segment.sequence;
        match peer.less_by_silence_ns(segment)? {
            (less_ns, true) => Some(Passed::Less(less_ns)),
            (less_ns, false) => is_bare.then_some(Passed::LessForFlow(self.key, less_ns)),
        }
    }

    /// No time between what was so far and what comes can be told.
    pub fn forget_times(&mut self) {
        self.settle();
        self.halves.iter_mut().for_each(Half::forget_times);
        self.handshake.repeated |= self.handshake.ack_ns.is_none() && self.handshake.syn_ns.is_some();
    }

    /// Whether everything is over.
    pub fn is_closed(&self) -> bool {
        self.closed_ns.is_some() || self.reset.is_some()
    }

    /// The next segment.
    #[inline]
    pub fn on_segment(&mut self, segment: &Segment) {
        if segment.checksum != Checksum::Unchecked {
            self.checksums[usize::from(segment.end) & 1].add(segment.checksum);
        }
        self.on_judged(segment);
    }

    /// Whether the path damaged it, and its receiver threw it away.
    #[inline]
    fn is_damaged(&self, segment: &Segment) -> bool {
        segment.checksum == Checksum::Wrong && self.checksums[usize::from(segment.end) & 1].are_of_the_wire()
    }

    /// A segment whose checksum is among those that its end's are judged by.
    #[inline]
    pub fn on_judged(&mut self, segment: &Segment) {
        if segment.is_plain() { self.take::<true>(segment) } else { self.take_remarkable(segment) }
    }

    #[inline(never)]
    fn take_remarkable(&mut self, segment: &Segment) {
        self.take::<false>(segment);
    }

    /// `PLAIN`: [`Segment::is_plain`], so that nearly all are asked once.
    #[inline(always)]
    fn take<const PLAIN: bool>(&mut self, segment: &Segment) {
        let now = segment.time_ns;
        self.packets += 1;
        self.last_ns = self.last_ns.max(now);
        let me = usize::from(segment.end);
        let length = if PLAIN { segment.payload_bytes } else { segment.length() };
        let is_suspect = !PLAIN && (segment.has(flag::SYN) || segment.checksum == Checksum::Wrong);
        if is_suspect && self.is_not_believed(segment) || self.is_copy(segment, length) {
            return;
        }
        let is_known = self.is_told_again(segment);
        self.halves[me & 1].advance(now);
        if !PLAIN && segment.has(flag::SYN) {
            self.on_syn(segment);
        } else if self.is_early {
            self.on_early(segment);
        }
        if !is_known && (PLAIN || segment.flags & (flag::ACK | flag::RST) == flag::ACK) {
            self.tell(segment);
        }
        self.halves[me & 1].on_sent::<PLAIN>(segment, length);
        self.ending |= !PLAIN && segment.flags & (flag::FIN | flag::RST) != 0;
        if self.ending {
            self.on_ending(segment);
        }
    }

    /// Whether this was recorded, or forwarded, before.
    #[inline]
    fn is_copy(&mut self, segment: &Segment, length: u32) -> bool {
        let me = usize::from(segment.end) & 1;
        self.halves[me].may_be_copy(segment, length) && {
            let other = self.halves[1 - me].repeats();
            self.halves[me].is_copy(segment, other)
        }
    }

    /// Whether the other end is told nothing new; if it is, time has passed for it afterwards.
    #[inline(always)]
    fn is_told_again(&mut self, segment: &Segment) -> bool {
        let now = segment.time_ns;
        if let Some(told) = &mut self.told
            && told.is_repeated_by(segment)
        {
            (told.last_ns, told.latest_ns) = (now, told.latest_ns.max(now));
            told.is_behind = true;
            return true;
        }
        self.settle();
        self.halves[usize::from(1 - segment.end) & 1].advance(now);
        false
    }

    /// Does what was put off.
    #[inline(always)]
    fn settle(&mut self) {
        if let Some(told) = self.told.take() {
            let half = &mut self.halves[usize::from(1 - told.end) & 1];
            half.on_told_again(told.last_ns, told.latest_ns, told.is_behind);
        }
    }

    /// The other end gets what the segment, an acknowledgement, says of it.
    #[inline]
    fn tell(&mut self, segment: &Segment) {
        let (low, high) = self.halves.split_at_mut(1);
        let (me, peer) =
            if segment.end == 0 { (&mut low[0], &mut high[0]) } else { (&mut high[0], &mut low[0]) };
        let mut answered = None;
        if segment.carries(option::TIMESTAMPS) {
            answered = peer.trips.echoed(segment.ts_echo, segment.time_ns);
        }
        if let Some(answer) = answered {
            me.trips.on_answer(answer);
        }
        let window = window(segment, self.scales);
        peer.on_ack(segment, window, answered);
        if peer.space.knows_acknowledged(segment.acknowledgement) && !segment.has(flag::SYN) {
            self.told = Some(Told::by(segment));
        }
    }

    /// Damaged, or of another connection.
    #[cold]
    fn is_not_believed(&mut self, segment: &Segment) -> bool {
        if self.is_damaged(segment) {
            self.halves[usize::from(segment.end) & 1].on_damaged();
            return true;
        }
        segment.has(flag::SYN) && self.is_foreign_syn(segment)
    }

    /// An answer to the SYN with another number than the answer before: something between the ends sent one of them.
    #[cold]
    fn is_foreign_syn(&mut self, segment: &Segment) -> bool {
        let half = &mut self.halves[usize::from(segment.end)];
        let first = self.syn_sequence[usize::from(segment.end)];
        let is_foreign = first.is_some_and(|first| first != segment.sequence);
        if is_foreign {
            half.counts.packets += 1;
            half.counts.foreign_packets += 1;
        } else if first.is_none() {
            half.begin_with(segment.sequence);
        }
        is_foreign
    }

    #[cold]
    fn on_syn(&mut self, segment: &Segment) {
        let end = usize::from(segment.end);
        let repeated = self.syn_sequence[end].is_some();
        self.syn_sequence[end] = Some(segment.sequence);
        self.handshake.repeated |= repeated;
        let offer = Offer {
            mss_bytes: segment.carries(option::MSS).then_some(segment.mss_bytes),
            window_scale: segment.carries(option::WINDOW_SCALE).then_some(segment.window_scale),
            sack: segment.carries(option::SACK_PERMITTED),
            timestamps: segment.carries(option::TIMESTAMPS),
            ecn_flags: segment.flags & (flag::ECE | flag::CWR | flag::AE),
            fast_open: segment.carries(option::FAST_OPEN),
            is_cut: segment.carries(option::CUT),
            data_bytes: segment.payload_bytes,
        };
        self.halves[end].offer = Some(offer);
        self.halves[end].first_offer.get_or_insert(offer);
        if segment.has(flag::ACK) {
            if let (true, Some(own_ns)) = (self.handshake.simultaneous, self.handshake.syn_ack_ns) {
                // Neither answers the other, but a sender takes it so, and times its probes by that.
                self.halves[1 - end].trips.smoothed.sample((segment.time_ns - own_ns).max(1));
            }
            self.handshake.syn_ack_ns.get_or_insert(segment.time_ns);
            self.handshake.last_syn_ack_ns = Some(segment.time_ns);
            self.handshake.syn_ack_flags = segment.flags;
        } else {
            self.handshake.syn_ns.get_or_insert(segment.time_ns);
            self.handshake.last_syn_ns = Some(segment.time_ns);
            self.handshake.simultaneous |=
                self.syn_sequence[1 - end].is_some() && self.handshake.syn_ack_ns.is_none();
        }
        if segment.has(flag::ACK) {
            self.offer_that_is_answered(1 - end, offer);
        }
        if let [Some(low), Some(high)] = [self.halves[0].offer, self.halves[1].offer]
            && !low.is_cut
            && !high.is_cut
        {
            self.agree(low, high);
        }
    }

    /// An answer has no option but those of the SYN that it answers: one that was sent again without them is not the
    /// one (RFC 7323, 1.3 and 3.2; RFC 2018, 2).
    fn offer_that_is_answered(&mut self, asker: usize, answer: Offer) {
        let half = &mut self.halves[asker];
        let [Some(last), Some(first)] = [half.offer, half.first_offer] else { return };
        let is_answered = |asked: &Offer| {
            (asked.window_scale.is_some() || answer.window_scale.is_none())
                && (asked.sack || !answer.sack)
                && (asked.timestamps || !answer.timestamps)
        };
        if !is_answered(&last) && is_answered(&first) {
            half.offer = Some(first);
        }
    }

    /// RFC 3168, 6.1.1 and RFC 9768, 3.1: what the flags of SYN and SYN-ACK agree on.
    pub fn ecn(&self) -> Option<&'static str> {
        let client = self.halves[usize::from(self.client)].offer?;
        self.halves[usize::from(1 - self.client)].offer?;
        let accurate = flag::ECE | flag::CWR | flag::AE;
        let answer = self.handshake.syn_ack_flags & accurate;
        Some(match client.ecn_flags {
            asked if asked == accurate && answer == flag::ECE => "ecn",
            asked if asked == accurate && answer != 0 && answer != accurate => "accecn",
            asked if asked == flag::ECE | flag::CWR && answer == flag::ECE => "ecn",
            _ => "off",
        })
    }

    /// Both offers are known.
    fn agree(&mut self, low: Offer, high: Offer) {
        let default = DEFAULT_MSS[usize::from(self.key.address(0).is_ipv6())];
        let mss = |offer: Offer| u32::from(offer.mss_bytes.unwrap_or(default));
        self.scales = Some(match (low.window_scale, high.window_scale) {
            (Some(low), Some(high)) => [low, high],
            _ => [0, 0],
        });
        // RFC 6691: options shorten what an MSS allows.
        let options = if low.timestamps && high.timestamps { 12 } else { 0 };
        let least = mss(low).min(mss(high)).saturating_sub(options).max(1);
        for (half, peers) in self.halves.iter_mut().zip([high, low]) {
            half.agree(least, (mss(peers).saturating_sub(options).max(1)) as u16);
            half.sack = low.sack && high.sack;
            half.most_window_bytes = half.most_window_bytes.filter(|most| is_window_known(*most));
        }
        if self.ecn() == Some("accecn") {
            self.halves[usize::from(self.client)].marks.agree(true);
            self.halves[usize::from(1 - self.client)].marks.agree(false);
        }
    }

    /// Before it is known where the capture was made.
    #[cold]
    fn on_early(&mut self, segment: &Segment) {
        let from_client = segment.end == self.client;
        if let (None, true, Some(answered_ns)) =
            (self.handshake.ack_ns, from_client, self.handshake.syn_ack_ns)
        {
            self.handshake.ack_ns = Some(segment.time_ns);
            let is_late = segment.time_ns.saturating_sub(answered_ns) >= SAID_LATE_NS;
            self.handshake.repeated |= segment.payload_bytes > 0 && is_late;
            self.place();
        } else if self.halves.iter().map(|half| half.repeats().packets()).sum::<u64>() >= JUDGED_AFTER {
            self.is_early = false;
            if self.handshake_lags().is_none() {
                self.place();
            }
        }
    }

    /// Client's and server's lag as the handshake shows them.
    fn handshake_lags(&self) -> Option<(i64, i64)> {
        let Handshake { syn_ns, syn_ack_ns, ack_ns, repeated, .. } = self.handshake;
        let (syn, syn_ack, ack) = (syn_ns?, syn_ack_ns?, ack_ns?);
        (!repeated && syn <= syn_ack && syn_ack <= ack).then_some((ack - syn_ack, syn_ack - syn))
    }

    /// Client's and server's lag by what is known best; where no time passed at all, the capture has none.
    pub fn lags(&self) -> Option<(i64, i64)> {
        let client = usize::from(self.client);
        let answers = || {
            Some((self.halves[client].trips.least_answer_ns?, self.halves[1 - client].trips.least_answer_ns?))
        };
        self.handshake_lags().or_else(answers).filter(|(client, server)| client + server > 0)
    }

    fn place(&mut self) {
        let Some((client_ns, server_ns)) = self.lags() else { return };
        let lag =
            |mine: i64, other: i64| if (mine as f64) < AT_THE_END * (mine + other) as f64 { 0 } else { mine };
        let client = usize::from(self.client);
        self.halves[client].lag_ns = lag(client_ns, server_ns);
        self.halves[1 - client].lag_ns = lag(server_ns, client_ns);
        self.halves.iter_mut().for_each(|half| half.is_placed = true);
    }

    /// From the first SYN to the last one, if it was sent again.
    pub fn syn_wait_ns(&self) -> Option<i64> {
        let Handshake { syn_ns, last_syn_ns, syn_ack_ns, last_syn_ack_ns, .. } = self.handshake;
        let sent_again = self.halves.iter().any(|half| half.counts.resent_syns > 0);
        let between = |first: Option<i64>, last: Option<i64>| Some(last? - first?);
        between(syn_ns, last_syn_ns)
            .max(between(syn_ack_ns, last_syn_ack_ns))
            .filter(|wait| sent_again && *wait >= 0)
    }

    /// Where the capture was made.
    pub fn vantage(&self) -> Vantage {
        let Some((client, server)) = self.lags() else { return Vantage::Unknown };
        let total = (client + server) as f64;
        match () {
            () if (client as f64) < AT_THE_END * total => Vantage::Client,
            () if (server as f64) < AT_THE_END * total => Vantage::Server,
            () => Vantage::Middle,
        }
    }

    #[cold]
    fn on_ending(&mut self, segment: &Segment) {
        let (me, now) = (usize::from(segment.end), segment.time_ns);
        if segment.has(flag::RST) {
            if self.halves[me].believes_reset(segment) {
                self.reset.get_or_insert((segment.end, now));
            }
        } else if self.reset.is_some_and(|(end, at)| end == segment.end && now - at > RECORDED_LATE_NS) {
            // No end sends anything else behind its reset: this one was not its.
            self.reset = None;
        }
        self.half_closed |= self.finished_ns[1 - me].is_some() && segment.payload_bytes > 0;
        for end in 0..2 {
            if self.halves[end].space.is_finished() {
                self.finished_ns[end].get_or_insert(now);
            }
        }
        if let [Some(_), Some(_)] = self.finished_ns {
            self.closed_ns.get_or_insert(now);
        }
    }

    /// The capture, or the connection, is over.
    pub fn finish(&mut self) {
        let last = self.last_ns;
        self.settle();
        self.halves.iter_mut().for_each(|half| half.finish(last));
        if self.has_two_clocks() {
            self.withhold_round_trips();
        }
    }
}

/// The window a segment offers, in octets.
#[inline]
fn window(segment: &Segment, scales: Option<[u8; 2]>) -> u64 {
    let raw = u64::from(segment.window);
    match scales {
        _ if segment.has(flag::SYN) || raw == 0 => raw,
        Some(scales) => raw << scales[usize::from(segment.end) & 1],
        // Told apart by what was offered, so that a change is seen.
        None => WINDOW_UNKNOWN + (raw << MOST_SCALE),
    }
}

/// The window, or where its scale is not known what it is at most.
#[inline]
pub fn possible_window(bytes: u64) -> u64 {
    bytes & (WINDOW_UNKNOWN - 1)
}

/// Whether a window's size could be known.
pub fn is_window_known(bytes: u64) -> bool {
    bytes < WINDOW_UNKNOWN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FlowReport;
    use proptest::prelude::*;

    /// One packet of a made-up conversation: who, how much later, how much payload, and what is odd about it.
    #[derive(Debug, Clone, Copy)]
    struct Turn {
        end: u8,
        after_us: i64,
        payload_bytes: u32,
        odd: u8,
    }

    fn turn() -> impl Strategy<Value = Turn> {
        let after_us = prop_oneof![8 => 0i64..3_000, 1 => -5_000i64..0, 1 => 100_000i64..900_000];
        let payload = prop_oneof![1 => Just(0u32), 3 => Just(1000), 1 => Just(300)];
        let odd = prop_oneof![6 => Just(0u8), 4 => 1u8..9];
        (prop_oneof![3 => Just(0u8), 1 => Just(1)], after_us, payload, odd)
            .prop_map(|(end, after_us, payload_bytes, odd)| Turn { end, after_us, payload_bytes, odd })
    }

    fn segments(turns: &[Turn], one_way_us: [i64; 2]) -> Vec<Segment> {
        let (mut now, mut next) = (1_000_000_000, [1u32; 2]);
        let ends = ((1, 1), (2, 2));
        let (key, _) = crate::segment::FlowKey::of(ends.0, ends.1);
        let segment = |time_ns, end: u8, flags, sequence, acknowledgement| Segment {
            time_ns,
            key,
            end,
            flags,
            sequence,
            acknowledgement,
            window: 500,
            options: option::TIMESTAMPS | option::MSS | option::SACK_PERMITTED,
            mss_bytes: 1012,
            ..Segment::default()
        };
        let mut all = vec![segment(now, 0, flag::SYN, 0, 0)];
        now += one_way_us[1] * 1000;
        all.push(segment(now, 1, flag::SYN | flag::ACK, 0, 1));
        now += one_way_us[0] * 1000;
        all.push(segment(now, 0, flag::ACK, 1, 1));
        for turn in turns {
            now += turn.after_us * 1000;
            let (me, other) = (usize::from(turn.end), usize::from(1 - turn.end));
            let milliseconds = (now / 1_000_000) as u32;
            let mut this = segment(now, turn.end, flag::ACK, next[me], next[other]);
            this.payload_bytes = turn.payload_bytes;
            this.options = option::TIMESTAMPS;
            (this.ts_value, this.ts_echo) = (milliseconds, milliseconds / 8 * 8);
            match turn.odd {
                1 => this.sequence = this.sequence.saturating_sub(1000).max(1),
                2 => this.sequence += 1000,
                3 => this.acknowledgement = this.acknowledgement.saturating_sub(1000).max(1),
                4 => this.window = 0,
                5 => (this.sack_count, this.sack[0]) = (1, (next[other], next[other] + 1000)),
                6 => this.flags |= if turn.after_us % 7 == 0 { flag::FIN } else { flag::ECE },
                7 => this.options = 0,
                8 if turn.after_us % 29 == 0 => this.flags |= flag::RST,
                _ => {}
            }
            next[me] = next[me].max(this.sequence + this.payload_bytes + u32::from(this.has(flag::FIN)));
            all.push(this);
        }
        all
    }

    #[test]
    fn data_behind_data_tells_the_other_end_nothing_new() {
        let data = Turn { end: 0, after_us: 10, payload_bytes: 1000, odd: 0 };
        let all = segments(&[data; 3], [0, 0]);
        let mut connection = Connection::new(&all[0], false, false);
        let told_again = |segment: &Segment| {
            let is_repeated = connection.told.is_some_and(|told| told.is_repeated_by(segment));
            connection.on_segment(segment);
            is_repeated
        };
        let told_again: Vec<bool> = all.iter().map(told_again).collect();
        assert_eq!(told_again[4..], [true, true]);
    }

    proptest! {
        #![proptest_config(crate::cases::cases(384))]

        #[test]
        fn what_is_told_again_is_noted_as_if_each_time_were_the_first(
            turns in proptest::collection::vec(turn(), 1..120),
            one_way_us in (0i64..30_000, 0i64..30_000),
        ) {
            let all = segments(&turns, [one_way_us.0, one_way_us.1]);
            let (mut short, mut long) = (Connection::new(&all[0], false, true), Connection::new(&all[0], false, true));
            for segment in &all {
                short.on_segment(segment);
                long.settle();
                long.on_segment(segment);
            }
            short.finish();
            long.finish();
            let (short, long) = (FlowReport::of(&mut short, 0), FlowReport::of(&mut long, 0));
            prop_assert_eq!(short, long);
        }
    }
}
