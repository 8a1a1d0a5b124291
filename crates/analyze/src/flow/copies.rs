//! Packets that a capture has more than once: recorded going out and coming in, at two interfaces, on a mirror port, or
//! copied by the path. The copy follows at once, or behind others that were recorded with it. One side's copy may be
//! cut into segments or joined from them by offloads.
//!
//! Where the sender numbers its packets (IPv4's identification), the number tells. Elsewhere what repeats a packet at
//! once is a copy if no end would send it again so soon: what takes sequence numbers, unless an acknowledgement asked
//! for it, and acknowledgements where the next one would carry other SACK blocks. What an end may well send twice at
//! once (duplicate ACKs without SACK, resets) is a copy if this capture has nearly everything else of the connection,
//! or of this end, twice, too.

use crate::segment::{Segment, flag};

/// Packets remembered with all that a part or a whole of them is known by.
const MOST: usize = 32;
/// Packets remembered that take no sequence numbers.
const MOST_BARE: usize = 16;
/// Packets remembered by number and identification: a path that copies may hold a copy back while so many pass.
const MOST_MARKS: usize = 256;
/// Without an IP identification, what repeats a packet sooner than this was not sent again. No timer sends a SYN again
/// so soon.
const AT_ONCE_NS: i64 = 1_000_000;
/// [`AT_ONCE_NS`] while the round trip is not known, and its least value: recording a packet twice takes microseconds.
const AT_ONCE_UNKNOWN_NS: i64 = 100_000;
const AT_ONCE_LEAST_NS: i64 = 10_000;
/// Packets of one end by which it is known that all of them come twice, while those of the other end do not.
const SURE_PACKETS: u64 = 8;
/// Packets alike from which on they are a run of duplicate ACKs, and tell nothing of copies.
const MOST_ALIKE: u8 = 8;
/// An acknowledgement that far below the highest one begins anew.
const FAR_BYTES: u32 = 1 << 20;

/// How soon a segment is not sent again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtOnce {
    within_ns: i64,
    /// When its sender last heard an acknowledgement that asks for it. What left before may be sent again sooner than
    /// half a round trip later: by NewReno, when earlier packets were only late (RFC 6582, 3.2).
    asked_ns: Option<i64>,
}

impl AtOnce {
    /// Judges data on a path with this round trip: nothing is sent again within half of it without being asked for.
    /// Where it is not known at which place of the path the capture was made, it may be the least part of the whole.
    pub fn of(
        segment: &Segment,
        round_trip_ns: Option<i64>,
        is_whole: bool,
        asked_ns: Option<i64>,
    ) -> AtOnce {
        let least_ns = if is_whole { AT_ONCE_LEAST_NS } else { AT_ONCE_UNKNOWN_NS };
        let within_ns = match round_trip_ns {
            _ if segment.has(flag::SYN) => AT_ONCE_NS,
            None => AT_ONCE_UNKNOWN_NS,
            Some(rtt) => (rtt / 2).clamp(least_ns, AT_ONCE_NS),
        };
        AtOnce { within_ns, asked_ns }
    }

    /// Whether what was sent at one time is not sent again at the other; `lacks_copy`: a copy of it is still to come.
    fn spans(&self, before_ns: i64, after_ns: i64, lacks_copy: bool) -> bool {
        let is_asked = !lacks_copy && self.asked_ns.is_some_and(|asked_ns| asked_ns > before_ns);
        let most_ns = if is_asked { AT_ONCE_UNKNOWN_NS } else { i64::MAX };
        (after_ns - before_ns).abs() < self.within_ns.min(most_ns)
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
        }
    }

    /// Whether `other`, which came later, is a copy of this, or of a part of it, or begins with it; `each`: how many
    /// copies most packets have.
    fn is_copied_by(&self, other: &Kept, at_once: AtOnce, each: u64) -> bool {
        let (offset, number) =
            (other.sequence.wrapping_sub(self.sequence), other.ip_id.wrapping_sub(self.ip_id));
        let said = |kept: &Kept| (kept.acknowledgement, kept.ts_value, kept.flags);
        let is_alike = self.length > 0 && said(self) == said(other);
        let is_part = offset < self.length && other.length <= self.length - offset;
        let pieces = self.length.div_ceil(other.length.max(1));
        let is_joined = offset == 0 && other.length > self.length;
        let is_same_id = match (self.ip_id, other.ip_id) {
            (0, 0) => at_once.spans(self.time_ns, other.time_ns, u64::from(self.copies) < each),
            (0, _) | (_, 0) => false,
            _ => u32::from(number) < if is_part { pieces } else { 1 },
        };
        is_alike && (is_part || is_joined) && is_same_id
    }
}

/// A packet's number, identification, and the lower half of its timestamp.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Mark {
    sequence: u32,
    ip_id: u16,
    ts_value: u16,
}

impl Mark {
    fn of(segment: &Segment) -> Mark {
        Mark { sequence: segment.sequence, ip_id: segment.ip_id, ts_value: segment.ts_value as u16 }
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
        this.ip_id != 0 && others.all(|mark| mark.sequence == this.sequence)
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
            sacks: if segment.sack_count > 0 { sum_of_sacks(segment) } else { 0 },
            flags: segment.flags,
            window: segment.window,
        }
    }
}

/// One number for all blocks.
#[cold]
fn sum_of_sacks(segment: &Segment) -> u32 {
    let count = usize::from(segment.sack_count).min(segment.sack.len());
    let numbers = segment.sack[..count].iter().flat_map(|(left, right)| [left, right]);
    numbers.fold(1, |sum: u32, number| sum.rotate_left(5).wrapping_add(*number).wrapping_mul(0x9e37_79b1))
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
        ip_id != 0 && !self.last.iter().any(|bare| bare.ip_id == ip_id && bare.said != *said)
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
    runs: u64,
}

impl Repeats {
    /// Adds the repeats of the other end.
    pub fn and(self, other: Repeats) -> Repeats {
        Repeats {
            packets: self.packets + other.packets,
            again: self.again + other.again,
            odd: self.odd + other.odd,
            runs: self.runs + other.runs,
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
        let (packets, again) = (self.packets - self.runs, self.again - self.runs - self.odd);
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

    /// Whether a packet that takes numbers is a copy of one of the last; `other`: of the other end.
    #[cold]
    pub fn holds(&mut self, segment: &Segment, length: u32, at_once: AtOnce, other: Repeats) -> bool {
        let each = self.repeats().and(other).each();
        let Some(recent) = &mut self.recent else { return false };
        let mark = Mark::of(segment);
        let is_told_apart = recent.tells(&mark);
        let known = |kept: &Kept| Kept { ip_id: if is_told_apart { kept.ip_id } else { 0 }, ..*kept };
        let this = known(&Kept::of(segment, length));
        let is_marked = is_told_apart && recent.marks.contains(&mark);
        let mut of = recent.whole.iter_mut().find(|kept| known(kept).is_copied_by(&this, at_once, each));
        if let Some(kept) = of.as_mut().filter(|kept| kept.length == length) {
            kept.copies = kept.copies.saturating_add(1);
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
    pub fn holds_bare(&mut self, segment: &Segment, tells_sacks: bool, other: Repeats) -> bool {
        let Some(bares) = &mut self.bares else { return false };
        let said = Said::by(segment);
        let is_numbered = bares.tells(segment.ip_id, &said);
        let after = |bare: &Bare| (segment.time_ns - bare.time_ns).abs();
        let is_alike = |bare: &&mut Bare| {
            bare.said == said
                && if is_numbered { bare.ip_id == segment.ip_id } else { after(bare) < AT_ONCE_NS }
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
