//! Packets that a capture has more than once: recorded going out and coming in, at two interfaces, on a mirror port, or
//! copied by the path. The copy follows at once, or behind others that were recorded with it. One side's copy may be
//! cut into segments or joined from them by offloads.
//!
//! Where the sender numbers its packets (IPv4's identification), the number tells, but not for long: what is sent again
//! a round trip later may keep its number (RFC 1122, 3.2.1.5). Elsewhere what repeats a packet at once is a copy if no
//! end would send it again so soon: what takes sequence numbers, unless an acknowledgement asked for it, and
//! acknowledgements where the next one would carry other SACK blocks. What an end may well send twice at once
//! (duplicate ACKs without SACK, resets) is a copy if this capture has nearly everything else of the connection, or of
//! this end, twice, too. What is sent again has a new timestamp (RFC 7323, 3.2): one that its end has left behind is
//! that of a copy, however late.

use super::half::LEAST_SEGMENT;
use crate::segment::{Segment, flag};

/// Packets remembered with all that a part or a whole of them is known by.
const MOST: usize = 32;
/// Packets remembered that take no sequence numbers.
const MOST_BARE: usize = 16;
/// Packets remembered by number and identification: a path that copies may hold a copy back while so many pass.
const MOST_MARKS: usize = 256;
/// Without an IP identification, what repeats a packet sooner than this was not sent again.
const AT_ONCE_NS: i64 = 1_000_000;
/// No timer sends a SYN again so soon.
const SYN_AT_ONCE_NS: i64 = 100_000_000;
/// With the IP identification of another, what comes sooner than this was not sent again: the least value on a path of
/// a short round trip, and the value while the round trip is not known.
const NUMBERED_LEAST_NS: i64 = 10_000_000;
const NUMBERED_UNKNOWN_NS: i64 = 200_000_000;
/// [`AT_ONCE_NS`] while the round trip is not known, and its least value: recording a packet twice takes microseconds.
const AT_ONCE_UNKNOWN_NS: i64 = 100_000;
const AT_ONCE_LEAST_NS: i64 = 10_000;
/// Packets of one end by which it is known that all of them come twice, while those of the other end do not.
const SURE_PACKETS: u64 = 8;
/// Packets alike from which on they are a run of duplicate ACKs, and tell nothing of copies.
const MOST_ALIKE: u8 = 8;
/// An acknowledgement that far below the highest one begins anew.
const FAR_BYTES: u32 = 1 << 20;

/// What an end does not do so soon, as far as the place of the capture tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sender {
    /// Least round trip that this place shows, with the sender's lag.
    pub round_trip_ns: Option<i64>,
    /// Whether that is the whole round trip: it may be the least part of it elsewhere.
    pub is_whole: bool,
    /// When it last heard an acknowledgement that asks for what is judged. What left before may be sent again sooner
    /// than half a round trip later: by NewReno, when earlier packets were only late (RFC 6582, 3.2).
    pub asked_ns: Option<i64>,
    /// The sender has sent a newer timestamp than this packet's.
    pub is_past: bool,
    /// Largest payload of a segment; 0 while it is not known.
    pub mss_bytes: u32,
}

impl Sender {
    /// How soon nothing is sent again without being asked for: half a round trip, or less.
    fn at_once_ns(&self, is_syn: bool) -> i64 {
        let least_ns = if self.is_whole { AT_ONCE_LEAST_NS } else { AT_ONCE_UNKNOWN_NS };
        match self.round_trip_ns {
            _ if self.is_past => i64::MAX,
            _ if is_syn => SYN_AT_ONCE_NS,
            None => AT_ONCE_UNKNOWN_NS,
            Some(rtt) => (rtt / 2).clamp(least_ns, AT_ONCE_NS),
        }
    }

    /// How soon the first like packet is a copy where copies are known to be so late.
    fn late_ns(&self, late_ns: i64) -> i64 {
        let whole_ns = self.round_trip_ns.filter(|_| self.is_whole);
        late_ns.min(whole_ns.map_or(i64::MAX, |rtt| rtt / 2))
    }

    /// How soon nothing is sent again under its old identification: less than a round trip, within which whatever asks
    /// for it must come.
    fn numbered_ns(&self) -> i64 {
        match self.round_trip_ns {
            _ if self.is_past => i64::MAX,
            Some(rtt) if self.is_whole => (rtt / 8 * 7).max(NUMBERED_LEAST_NS),
            _ => NUMBERED_UNKNOWN_NS,
        }
    }
}

/// How a packet that takes numbers is judged.
#[derive(Debug, Clone, Copy)]
struct Judged {
    sender: Sender,
    at_once_ns: i64,
    late_ns: i64,
    numbered_ns: i64,
    /// How many copies most packets have.
    each: u64,
}

impl Judged {
    /// Whether what was sent then is not sent again at this time; so many copies of it came.
    fn spans(&self, before_ns: i64, after_ns: i64, copies: u64) -> bool {
        let lacks_copy = copies < self.each;
        let is_asked = !lacks_copy && self.sender.asked_ns.is_some_and(|asked_ns| asked_ns > before_ns);
        let within_ns = match is_asked && !self.sender.is_past {
            true => self.at_once_ns.min(AT_ONCE_UNKNOWN_NS),
            false if copies < self.each.max(1) => self.at_once_ns.max(self.late_ns),
            false => self.at_once_ns,
        };
        (after_ns - before_ns).abs() < within_ns
    }
}

/// A packet that takes sequence numbers, as far as its copy is like it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Kept {
    time_ns: i64,
    sequence: u32,
    length: u32,
    acknowledgement: u32,
    ts_value: u32,
    ip_id: u16,
    /// SYN and ACK; others are on one part of what is cut.
    flags: u16,
    /// How many as long were taken for copies of it.
    copies: u8,
    /// A part of it was.
    is_cut: bool,
}

impl Kept {
    fn of(segment: &Segment, length: u32) -> Kept {
        Kept {
            time_ns: segment.time_ns,
            sequence: segment.sequence,
            length,
            acknowledgement: segment.acknowledgement,
            ts_value: segment.ts_value,
            ip_id: segment.ip_id,
            flags: segment.flags & (flag::SYN | flag::ACK),
            copies: 0,
            is_cut: false,
        }
    }

    /// Whether `other`, which came later, is a copy of this, or of a part of it, or begins with it.
    fn is_copied_by(&self, other: &Kept, judged: &Judged) -> bool {
        let offset = other.sequence.wrapping_sub(self.sequence);
        let said = |kept: &Kept| (kept.acknowledgement, kept.ts_value, kept.flags);
        let is_alike = self.length > 0 && said(self) == said(other);
        let is_part = offset < self.length && other.length <= self.length - offset;
        let is_joined = offset == 0 && other.length > self.length;
        is_alike && (is_part || is_joined) && self.is_numbered_by(other, offset, judged)
    }

    /// Whether the identification of `other`, which begins `offset` octets behind, is that of this at that place; if
    /// there are none, whether the time is.
    fn is_numbered_by(&self, other: &Kept, offset: u32, judged: &Judged) -> bool {
        let is_soon = (other.time_ns - self.time_ns).abs() < judged.numbered_ns;
        match (self.ip_id, other.ip_id) {
            (0, 0) => judged.spans(self.time_ns, other.time_ns, self.copies.into()),
            (0, _) | (_, 0) => false,
            (own, id) if own == id => is_soon && offset == 0,
            (own, id) => {
                let number = u32::from(id.wrapping_sub(own));
                is_soon && self.is_cut_into(other, offset, number, judged.sender.mss_bytes)
            }
        }
    }

    /// Whether `part` is what offloads make of this, a bundle, from its segment of that number on: each of them takes
    /// an identification, and all but the last are of one size. The last, and several that were joined again, are
    /// believed behind others.
    fn is_cut_into(&self, part: &Kept, offset: u32, number: u32, mss_bytes: u32) -> bool {
        let (least, most) = match mss_bytes {
            0 => (LEAST_SEGMENT, u32::MAX),
            mss => (mss.min(LEAST_SEGMENT), mss),
        };
        let segment = offset / number;
        let is_last = offset + part.length == self.length;
        let is_joined = part.length.is_multiple_of(segment);
        self.length > mss_bytes
            && offset.is_multiple_of(number)
            && (least..=most).contains(&segment)
            && (part.length == segment || self.is_cut && (is_last || is_joined))
    }
}

/// A packet's number, identification and time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Mark {
    sequence: u32,
    ip_id: u16,
    /// In units of 2^22 ns, about 4 ms.
    time: u16,
}

impl Mark {
    fn of(segment: &Segment) -> Mark {
        Mark { sequence: segment.sequence, ip_id: segment.ip_id, time: (segment.time_ns >> 22) as u16 }
    }

    /// Whether this is that of the same packet, so soon.
    fn repeats(&self, other: &Mark, within_ns: i64) -> bool {
        let apart = (self.time.wrapping_sub(other.time) as i16).unsigned_abs();
        let is_same = (self.sequence, self.ip_id) == (other.sequence, other.ip_id);
        is_same && i64::from(apart) << 22 < within_ns
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Recent {
    whole: [Kept; MOST],
    marks: [Mark; MOST_MARKS],
}

impl Recent {
    fn new() -> Box<Recent> {
        Box::new(Recent { whole: [Kept::default(); MOST], marks: [Mark::default(); MOST_MARKS] })
    }

    /// Whether identifications tell packets apart: some senders give all the same.
    fn tells(&self, this: &Mark) -> bool {
        let mut others = self.marks.iter().filter(|mark| mark.ip_id == this.ip_id);
        others.all(|mark| mark.sequence == this.sequence)
    }
}

/// All that a packet without sequence numbers says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Said {
    sequence: u32,
    acknowledgement: u32,
    ts_value: u32,
    ts_echo: u32,
    sacks: u32,
    flags: u16,
    window: u16,
}

impl Said {
    #[inline]
    fn by(segment: &Segment) -> Said {
        Said {
            sequence: segment.sequence,
            acknowledgement: segment.acknowledgement,
            ts_value: segment.ts_value,
            ts_echo: segment.ts_echo,
            sacks: segment.sacks_as_one(),
            flags: segment.flags,
            window: segment.window,
        }
    }
}

/// A packet without sequence numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bare {
    time_ns: i64,
    said: Said,
    ip_id: u16,
    /// Acknowledges more than all before, and was recorded again.
    is_higher: bool,
    /// How many came behind it that said the same.
    alike: u8,
    /// How many were taken for copies of it.
    copies: u8,
}

/// The last packets without sequence numbers.
#[derive(Debug, Clone, PartialEq)]
struct Bares {
    last: [Bare; MOST_BARE],
    next: usize,
    highest: u32,
}

impl Bares {
    #[inline]
    fn keep(&mut self, segment: &Segment, said: Said, is_higher: bool) {
        let (time_ns, ip_id) = (segment.time_ns, segment.ip_id);
        self.last[self.next % MOST_BARE] = Bare { time_ns, said, ip_id, is_higher, alike: 0, copies: 0 };
        self.next = self.next.wrapping_add(1);
    }

    /// Whether identifications tell packets apart.
    fn tells(&self, ip_id: u16, said: &Said) -> bool {
        !self.last.iter().any(|bare| bare.ip_id == ip_id && bare.said != *said)
    }
}

/// Packets that no end sends twice at once: how many there are, and how many of them were recorded again.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Repeats {
    packets: u64,
    again: u64,
    /// Packets recorded again an odd number of times, as duplicate ACKs are and what is recorded twice is not.
    odd: u64,
    /// Packets recorded again with more of their like behind them than are counted.
    runs: u32,
    /// How much later than a SYN its copy came, at most, in microseconds.
    late_us: u32,
}

impl Repeats {
    /// Adds the repeats of the other end.
    pub fn and(self, other: Repeats) -> Repeats {
        Repeats {
            packets: self.packets + other.packets,
            again: self.again + other.again,
            odd: self.odd + other.odd,
            runs: self.runs.saturating_add(other.runs),
            late_us: self.late_us.max(other.late_us),
        }
    }

    /// Another packet came that says what this one, which no end sends twice at once, said.
    fn count_alike(&mut self, bare: &mut Bare) {
        bare.alike = bare.alike.saturating_add(1);
        match bare.alike {
            1 => self.again += 1,
            MOST_ALIKE => self.runs += 1,
            more if more > MOST_ALIKE => {}
            more if more % 2 == 0 => self.odd += 1,
            _ => self.odd -= 1,
        }
    }

    /// How many packets there are, copies left out.
    #[inline]
    pub fn packets(self) -> u64 {
        self.packets
    }

    /// Whether nearly all packets of one end were recorded again, whatever is true of the other one.
    fn are_all_again(self) -> bool {
        let runs = u64::from(self.runs);
        let (packets, again) = (self.packets - runs, self.again - runs - self.odd);
        packets >= SURE_PACKETS && 8 * again >= 7 * packets
    }

    /// How often most packets of the capture were recorded again.
    fn each(self) -> u64 {
        (self.again + self.packets / 2) / self.packets.max(1)
    }
}

/// The last packets of one end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Copies {
    recent: Option<Box<Recent>>,
    next: usize,
    bares: Option<Box<Bares>>,
    /// Without the packets that take numbers, which `next` counts.
    repeats: Repeats,
}

impl Copies {
    /// Remembers a packet that takes numbers.
    #[inline]
    pub fn keep(&mut self, segment: &Segment, length: u32) {
        let recent = self.recent.get_or_insert_with(Recent::new);
        recent.whole[self.next % MOST] = Kept::of(segment, length);
        recent.marks[self.next % MOST_MARKS] = Mark::of(segment);
        self.next = self.next.wrapping_add(1);
    }

    /// Whether the identifications of the last packets rise, so that they tell an order: some senders draw lots.
    #[cold]
    pub fn are_numbers_rising(&self) -> bool {
        let Some(recent) = &self.recent else { return false };
        let first = self.next.saturating_sub(MOST);
        let ids = (first..self.next).map(|number| recent.whole[number % MOST].ip_id);
        let steps = || ids.clone().zip(ids.clone().skip(1));
        let rising = steps().filter(|(before, after)| after.wrapping_sub(*before) as i16 > 0).count();
        4 * rising >= 3 * steps().count()
    }

    /// Repeats among the packets of this end.
    pub fn repeats(&self) -> Repeats {
        Repeats { packets: self.next as u64 + self.repeats.packets, ..self.repeats }
    }

    /// Whether this end was seen to give another identification than this: until then all may have the same.
    fn has_other_id(&self, ip_id: u16) -> bool {
        let marks = self.recent.iter().flat_map(|recent| &recent.marks);
        let bares = self.bares.iter().flat_map(|bares| &bares.last);
        let mut ids = marks.map(|mark| mark.ip_id).chain(bares.map(|bare| bare.ip_id));
        ip_id != 0 && ids.any(|id| id != 0 && id != ip_id)
    }

    /// How late copies come in this capture, with room: as that of the SYN did, or at once where nearly all packets of
    /// one end have one. 0 while nothing shows that there are any.
    fn late_ns(&self, other: Repeats) -> i64 {
        let is_twice = self.repeats().are_all_again() || other.are_all_again();
        let late_ns = 2 * 1_000 * i64::from(self.repeats.late_us.max(other.late_us));
        late_ns.max(if is_twice { AT_ONCE_NS } else { 0 })
    }

    /// Whether a packet that takes numbers is a copy of one of the last; `other`: of the other end.
    #[cold]
    pub fn holds(&mut self, segment: &Segment, length: u32, sender: Sender, other: Repeats) -> bool {
        let is_syn = segment.has(flag::SYN);
        let judged = Judged {
            sender,
            at_once_ns: sender.at_once_ns(is_syn),
            late_ns: sender.late_ns(self.late_ns(other)),
            numbered_ns: sender.numbered_ns(),
            each: self.repeats().and(other).each(),
        };
        let is_numbered = self.has_other_id(segment.ip_id);
        let Some(recent) = &mut self.recent else { return false };
        let mark = Mark::of(segment);
        let is_told_apart = is_numbered && recent.tells(&mark);
        let known = |kept: &Kept| Kept { ip_id: if is_told_apart { kept.ip_id } else { 0 }, ..*kept };
        let this = known(&Kept::of(segment, length));
        let is_marked =
            is_told_apart && recent.marks.iter().any(|kept| kept.repeats(&mark, judged.numbered_ns));
        let mut of = recent.whole.iter_mut().find(|kept| known(kept).is_copied_by(&this, &judged));
        if let Some(kept) = &mut of {
            kept.copies = kept.copies.saturating_add(u8::from(kept.length == length));
            kept.is_cut |= length < kept.length;
            let late_us = if is_syn { (segment.time_ns - kept.time_ns).abs() / 1_000 } else { 0 };
            self.repeats.late_us = self.repeats.late_us.max(late_us.try_into().unwrap_or(0));
        }
        let is_copy = is_marked || of.is_some();
        self.repeats.again += u64::from(is_copy);
        is_copy
    }

    /// Whether a packet without sequence numbers acknowledges more than all before, so that it is no copy; if so, it is
    /// remembered.
    #[inline]
    pub fn is_higher(&mut self, segment: &Segment) -> bool {
        let bares = self.bares.get_or_insert_with(|| new_bares(segment));
        if segment.acknowledgement.wrapping_sub(bares.highest) as i32 <= 0 {
            return false;
        }
        bares.highest = segment.acknowledgement;
        self.repeats.packets += 1;
        bares.keep(segment, Said::by(segment), true);
        true
    }

    /// Whether a packet without sequence numbers, which acknowledges nothing new, is a copy of one of the last; if not,
    /// it is remembered. `tells_sacks`: of two acknowledgements that are sent, the SACK blocks differ; `other`: of the
    /// other end.
    #[cold]
    pub fn holds_bare(
        &mut self,
        segment: &Segment,
        sender: Sender,
        tells_sacks: bool,
        other: Repeats,
    ) -> bool {
        let has_other_id = self.has_other_id(segment.ip_id);
        let (at_once_ns, numbered_ns) = (self.late_ns(other).max(AT_ONCE_NS), sender.numbered_ns());
        let Some(bares) = &mut self.bares else { return false };
        let said = Said::by(segment);
        let is_numbered = has_other_id && bares.tells(segment.ip_id, &said);
        let after = |bare: &Bare| (segment.time_ns - bare.time_ns).abs();
        let is_alike = |bare: &&mut Bare| {
            let is_same_id = bare.ip_id == segment.ip_id && after(bare) < numbered_ns;
            bare.said == said && if is_numbered { is_same_id } else { after(bare) < at_once_ns }
        };
        let mut alike: Vec<_> = bares.last.iter_mut().filter(is_alike).collect();
        if let Some(bare) = alike.iter_mut().find(|bare| bare.is_higher) {
            self.repeats.count_alike(bare);
        }
        let own = Repeats { packets: self.next as u64 + self.repeats.packets, ..self.repeats };
        let each = own.and(other).each().max(u64::from(own.are_all_again()));
        let is_sure = |bare: &Bare| is_numbered || tells_sacks && after(bare) < AT_ONCE_LEAST_NS;
        if let Some(bare) = alike.into_iter().find(|bare| is_sure(bare) || u64::from(bare.copies) < each) {
            bare.copies = bare.copies.saturating_add(1);
            return true;
        }
        bares.keep(segment, said, false);
        if bares.highest.wrapping_sub(segment.acknowledgement) > FAR_BYTES {
            bares.highest = segment.acknowledgement;
        }
        false
    }
}

fn new_bares(segment: &Segment) -> Box<Bares> {
    let highest = segment.acknowledgement.wrapping_sub(1);
    Box::new(Bares { last: [Bare::default(); MOST_BARE], next: 0, highest })
}
