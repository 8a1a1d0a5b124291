//! Packets that a capture has more than once: recorded going out and coming in, at two interfaces, on a mirror port, or
//! copied by the path. One side's copy may be cut into segments or joined from them by offloads.

use crate::segment::Segment;

/// Packets remembered with all that a part or a whole of them is known by.
const MOST: usize = 16;
/// Packets remembered by number and identification: a path that copies may hold a copy back while so many pass.
const MOST_MARKS: usize = 256;
/// Without an IP identification, what repeats a packet sooner than this was not sent again.
const AT_ONCE_NS: i64 = 1_000_000;

/// A packet, as far as its copy is like it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Kept {
    time_ns: i64,
    sequence: u32,
    length: u32,
    acknowledgement: u32,
    ts_value: u32,
    ip_id: u16,
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
        }
    }

    /// Whether `other`, which came later, is a copy of this, or of a part of it, or begins with it.
    fn is_copied_by(&self, other: &Kept, at_once_ns: i64) -> bool {
        let (offset, number) =
            (other.sequence.wrapping_sub(self.sequence), other.ip_id.wrapping_sub(self.ip_id));
        let is_alike = self.length > 0
            && (self.acknowledgement, self.ts_value) == (other.acknowledgement, other.ts_value);
        let is_part = offset < self.length && other.length <= self.length - offset;
        let pieces = self.length.div_ceil(other.length.max(1));
        let is_joined = offset == 0 && other.length > self.length;
        let is_same_id = match (self.ip_id, other.ip_id) {
            (0, 0) => (other.time_ns - self.time_ns).abs() < at_once_ns,
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

/// The last packets of one end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Copies {
    recent: Option<Box<Recent>>,
    next: usize,
    last_ack: Kept,
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

    /// Whether a packet is a copy of one of the last; nothing is sent again within half a round trip.
    #[cold]
    pub fn holds(&self, segment: &Segment, length: u32, least_rtt_ns: Option<i64>) -> bool {
        let Some(recent) = &self.recent else { return false };
        let mark = Mark::of(segment);
        let is_told_apart = recent.tells(&mark);
        if is_told_apart && recent.marks.contains(&mark) {
            return true;
        }
        let known = |kept: &Kept| Kept { ip_id: if is_told_apart { kept.ip_id } else { 0 }, ..*kept };
        let this = known(&Kept::of(segment, length));
        let at_once_ns = least_rtt_ns.map_or(AT_ONCE_NS / 20, |rtt| (rtt / 2).min(AT_ONCE_NS));
        recent.whole.iter().any(|kept| known(kept).is_copied_by(&this, at_once_ns))
    }

    /// Whether a packet without payload is a copy of the last such one.
    #[inline]
    pub fn is_ack(&mut self, segment: &Segment) -> bool {
        if segment.ip_id == 0 {
            return false;
        }
        let this = Kept::of(segment, u32::from(segment.flags));
        let last = std::mem::replace(&mut self.last_ack, this);
        Kept { time_ns: this.time_ns, ..last } == this
    }
}
