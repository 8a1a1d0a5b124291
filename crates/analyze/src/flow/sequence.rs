//! One direction's sequence space: what was sent, what is acknowledged, what is missing between.
//!
//! Numbers are 64 bits wide. `una`, `next` and `edge` are TCP's SND.UNA, SND.NXT and the window's right edge as packets
//! pass the place of the capture; `una_seen` and `edge_seen` are what the sender had heard by then.

use super::{queue::Queue, ranges::Ranges};
use crate::segment::{Segment, flag, option};

/// Outstanding segments remembered; with more, or without acknowledgements, the oldest are forgotten.
pub const MAX_SENT: usize = 1 << 18;
const MAX_SENT_UNANSWERED: usize = 1 << 12;
const MAX_HOLES: usize = 4096;
/// A late packet is put among at most so many that are moved for it.
const MAX_MOVED: usize = 4096;
/// Time within which data acknowledged before it is seen was only recorded late: several queues, merged
/// files.
const RECORDED_LATE_NS: i64 = 10_000_000;
/// While no acknowledgement tells of a window, what is further above is not believed at once; neither is what is
/// further below.
const BELIEVED_BYTES: u64 = 1 << 20;

/// Sequence numbers are made 64 bits wide around this, until one is known: there is room below.
const UNKNOWN: u64 = 1 << 60;

/// A packet that is outstanding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sent {
    /// First sequence number of the packet.
    pub start: u64,
    /// When it was sent, or sent again last.
    pub time_ns: i64,
    /// Numbers it takes.
    pub length: u32,
    /// Whether it was sent again.
    pub again: bool,
}

impl Sent {
    /// Behind its last number.
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }
}

/// Sequence space that was jumped over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hole {
    /// First sequence number of the segment.
    pub start: u64,
    /// Behind its last one.
    pub end: u64,
    /// When it was jumped over.
    pub since_ns: i64,
    /// TSval of the segment that did.
    pub ts_value: Option<u32>,
    /// IP identification of the packet.
    pub ip_id: u16,
    /// Whether the segment is acknowledged, since `since_ns`.
    pub is_acknowledged: bool,
    /// Whether it was sent before the capture began, as far as can be told.
    pub is_before: bool,
}

/// A packet whose number lies outside any window, until another one behind it shows that the connection goes on there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aside {
    /// First sequence number of the packet.
    pub start: u64,
    /// Behind its last one.
    pub end: u64,
}

/// An acknowledgement on its way to the sender.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Passed {
    /// When it passed.
    pub time_ns: i64,
    /// What it acknowledges.
    pub ack: u64,
    /// Right edge of its window.
    pub edge: u64,
}

/// A 32-bit number near a 64-bit one.
#[inline]
pub fn unwrap_near(reference: u64, number: u32) -> u64 {
    let distance = number.wrapping_sub(reference as u32) as i32;
    reference.wrapping_add_signed(i64::from(distance))
}

/// What an acknowledgement took off the queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acknowledged {
    /// When the newest of it was sent, and whether any of it was sent again.
    pub newest: Option<(i64, bool)>,
    /// Largest length of a packet among it, or what was given.
    pub largest_bytes: u32,
    /// Octets of it that were jumped over and never seen.
    pub unseen_bytes: u64,
}

/// The sequence space of one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceSpace {
    /// A packet of this direction was seen.
    pub started: bool,
    /// Number of the first octet of payload.
    pub first: u64,
    /// Behind the highest octet sent.
    pub next: u64,
    /// Lowest octet that is not acknowledged.
    pub una: u64,
    /// Whether an acknowledgement told.
    pub una_known: bool,
    /// Right edge of the window.
    pub edge: u64,
    /// `una` as the sender knows it.
    pub una_seen: u64,
    /// `edge` as the sender knows it; 0 while it knows of none.
    pub edge_seen: u64,
    /// The right edge never was, nor could be where the window's scale is not known, beyond this.
    pub edge_most: u64,
    /// Behind the last octet that probed a closed window, or that the later fragments of a packet may hold: what is
    /// acknowledged, or jumped over, below it was sent.
    pub probed_to: u64,
    /// Data, and an acknowledgement, outside any window.
    pub aside: (Option<Aside>, Option<u64>),
    /// Acknowledgements on their way to the sender.
    pub passed: Queue<Passed>,
    /// What is outstanding.
    pub sent: Queue<Sent>,
    /// What was jumped over.
    pub holes: Vec<Hole>,
    /// What is selectively acknowledged.
    pub sacked: Ranges,
    /// Number of the FIN.
    pub fin: Option<u64>,
}

impl Default for SequenceSpace {
    fn default() -> SequenceSpace {
        SequenceSpace {
            started: false,
            first: 0,
            next: 0,
            una: UNKNOWN,
            una_known: false,
            edge: 0,
            una_seen: 0,
            edge_seen: 0,
            edge_most: 0,
            probed_to: 0,
            aside: (None, None),
            passed: Queue::default(),
            sent: Queue::default(),
            holes: Vec::new(),
            sacked: Ranges::default(),
            fin: None,
        }
    }
}

impl SequenceSpace {
    /// Octets of a relative plot.
    pub fn relative(&self, number: u64) -> f64 {
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

    /// Whether all below this number, and nothing above it, is acknowledged, and the sender knows.
    #[inline]
    pub fn knows_acknowledged(&self, number: u32) -> bool {
        self.una_known && self.una as u32 == number && self.passed.is_empty()
    }

    /// The first packet.
    pub fn start(&mut self, segment: &Segment) {
        self.started = true;
        self.next = unwrap_near(self.una, segment.sequence);
        self.first = self.next + u64::from(segment.has(flag::SYN));
        if !self.una_known {
            (self.una, self.una_seen) = (self.next, self.next);
        }
    }

    /// The first acknowledgement.
    pub fn first_ack(&mut self, ack: u64) {
        self.una_known = true;
        if !self.started {
            (self.una, self.una_seen, self.next, self.first) = (ack, ack, ack, ack);
        }
    }

    /// Goes on at another place; nothing of what was is outstanding any more.
    pub fn jump_to(&mut self, start: u64) {
        self.sent.clear();
        self.holes.clear();
        self.sacked = Ranges::default();
        self.passed.clear();
        self.fin = None;
        (self.next, self.una, self.una_seen) = (start, start, start);
        // What is known of the window was told of other numbers.
        (self.edge, self.edge_most, self.edge_seen, self.probed_to) = (start, start, 0, 0);
    }

    /// Puts a packet behind those that are outstanding; `is_answered`: this direction gets acknowledgements.
    #[inline]
    pub fn remember(&mut self, sent: Sent, is_answered: bool) {
        let count = self.sent.len();
        if count >= MAX_SENT_UNANSWERED && (!is_answered || count >= MAX_SENT) {
            self.sent.take(1);
        }
        self.sent.push(sent);
    }

    /// Puts a late packet among those that are outstanding; one far from both their ends is forgotten, which costs a
    /// sample at most.
    pub fn insert_late(&mut self, sent: Sent) {
        if sent.start < self.una {
            return;
        }
        let at = self.sent.partition_point(|other| other.start < sent.start);
        if self.sent.len() < MAX_SENT {
            self.sent.insert(at, sent, MAX_MOVED);
        }
    }

    /// What is outstanding of this range was sent again now.
    pub fn mark_again(&mut self, now: i64, start: u64, end: u64) {
        let first = self.sent.partition_point(|sent| sent.end() <= start);
        for sent in self.sent.iter_mut().skip(first) {
            if sent.start >= end {
                break;
            }
            (sent.again, sent.time_ns) = (true, now);
        }
    }

    /// A segment begins above what is known; `is_before`: [`Hole::is_before`].
    pub fn open_hole(&mut self, segment: &Segment, start: u64, is_before: bool) {
        let ts_value = segment.carries(option::TIMESTAMPS).then_some(segment.ts_value);
        let (since_ns, ip_id) = (segment.time_ns, segment.ip_id);
        self.keep_hole(Hole {
            start: self.next,
            end: start,
            since_ns,
            ts_value,
            ip_id,
            is_acknowledged: false,
            is_before,
        });
    }

    /// What lies below `ack` is acknowledged and was not seen; it may only be recorded late. Gives back its octets that
    /// the capture lacks; `is_before`: [`Hole::is_before`].
    pub fn acknowledged_unseen(&mut self, ack: u64, now_ns: i64, is_before: bool) -> u64 {
        let start = self.next;
        self.next = ack;
        self.holes.retain(|hole| !hole.is_acknowledged || now_ns - hole.since_ns <= RECORDED_LATE_NS);
        self.keep_hole(Hole {
            start,
            end: ack,
            since_ns: now_ns,
            ts_value: None,
            ip_id: 0,
            is_acknowledged: true,
            is_before,
        });
        if is_before { 0 } else { ack - start }
    }

    fn keep_hole(&mut self, hole: Hole) {
        if self.holes.len() == MAX_HOLES {
            self.holes.remove(0);
        }
        self.holes.push(hole);
    }

    /// Whether an acknowledgement can be meant for what this direction sent: its sender cannot have sent beyond any
    /// window. One that cannot moves nothing, unless another one follows it: then the capture lacks what was between.
    /// `is_first`: nothing was acknowledged before, so no window is known.
    pub fn believes_ack(&mut self, ack: u64, is_first: bool) -> bool {
        let known = self.next.max(self.edge_most).max(self.probed_to);
        let most = if is_first { self.next + BELIEVED_BYTES } else { known };
        if ack <= most {
            return true;
        }
        let before = self.aside.1.replace(ack);
        let follows = before.is_some_and(|before| ack > before && ack - before < BELIEVED_BYTES << 4);
        if follows {
            self.aside.1 = None;
        }
        follows
    }

    /// Whether a number is that of data this direction could send now.
    #[inline]
    pub fn believes(&self, start: u64, end: u64) -> bool {
        let most = if self.una_known { self.edge_most } else { self.next + BELIEVED_BYTES };
        let window = most.saturating_sub(self.una).max(BELIEVED_BYTES);
        start <= self.next.max(most) && end + window >= self.una
    }

    /// Puts aside what lies outside any window. Gives back what was put aside before, if this follows it: then the
    /// connection goes on there.
    pub fn put_aside(&mut self, start: u64, end: u64) -> Option<Aside> {
        let before = self.aside.0.replace(Aside { start, end });
        let follows = |before: &Aside| start >= before.end && start - before.end < BELIEVED_BYTES;
        let before = before.filter(follows)?;
        self.aside.0 = None;
        Some(before)
    }

    /// Begins anew with a SYN of another number than what came before it.
    pub fn begin_anew(&mut self) {
        *self = SequenceSpace { sent: std::mem::take(&mut self.sent), ..SequenceSpace::default() };
        self.sent.clear();
    }

    /// The sender has sent up to `end`, so it has heard of a window that allows it. Says whether it can have.
    #[cold]
    pub fn must_have_heard(&mut self, end: u64) -> bool {
        while self.edge_seen < end
            && let Some(Passed { ack, edge, .. }) = self.passed.front()
        {
            self.passed.take(1);
            (self.una_seen, self.edge_seen) = (self.una_seen.max(ack), edge);
        }
        end <= self.edge_seen
    }

    /// Takes the part of this range that lies in the first hole it touches out of that; gives back both.
    pub fn fill_hole(&mut self, start: u64, end: u64, now_ns: i64) -> Option<(Hole, u64)> {
        let is_open = |hole: &Hole| !hole.is_acknowledged || now_ns - hole.since_ns <= RECORDED_LATE_NS;
        let at = self.holes.iter().position(|hole| hole.start < end && hole.end > start && is_open(hole))?;
        let hole = self.holes[at];
        let (from, to) = (hole.start.max(start), hole.end.min(end));
        let mut rest = vec![Hole { end: from, ..hole }, Hole { start: to, ..hole }];
        rest.retain(|part| part.start < part.end);
        self.holes.splice(at..=at, rest);
        if self.holes.len() > MAX_HOLES {
            self.holes.remove(0);
        }
        Some((hole, to - from))
    }

    /// Takes what is acknowledged off the queue.
    #[inline]
    pub fn acknowledge(&mut self, ack: u64, now_ns: i64, largest_bytes: u32) -> Acknowledged {
        let mut newest_ns = None;
        let (mut again, mut largest_bytes) = (false, largest_bytes);
        while let Some(sent) = self.sent.take_if(|sent| sent.end() <= ack) {
            again |= sent.again;
            largest_bytes = largest_bytes.max(sent.length);
            newest_ns = Some(sent.time_ns);
        }
        let newest = newest_ns.map(|time_ns| (time_ns, again));
        let unseen_bytes = if self.holes.is_empty() { 0 } else { self.pass_holes(ack, now_ns) };
        self.una = ack;
        Acknowledged { newest, largest_bytes, unseen_bytes }
    }

    /// Acknowledged, so it was sent, but not seen here yet.
    #[cold]
    fn pass_holes(&mut self, ack: u64, now_ns: i64) -> u64 {
        let mut unseen_bytes = 0;
        self.holes.retain_mut(|hole| {
            if hole.is_acknowledged {
                return now_ns - hole.since_ns <= RECORDED_LATE_NS;
            }
            if hole.end <= ack {
                unseen_bytes += if hole.is_before { 0 } else { hole.end - hole.start };
                (hole.is_acknowledged, hole.since_ns) = (true, now_ns);
            }
            true
        });
        unseen_bytes
    }

    /// The head of the queue, as it was sent last, if that is known.
    pub fn head(&self) -> Option<Sent> {
        self.sent.front().filter(|sent| sent.start <= self.una_seen)
    }
}
