//! The classic format: a file header of 24 octets, then records of a 16-octet header and the packet.

use super::{LinkType, Located, MAX_RECORD_BYTES, Packet, Step, u16_at, u32_at};

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// Alexey Kuznetsov's variant has the interface, the protocol and the packet's type behind that.
const LONG_RECORD_HEADER: usize = 24;
/// Some writers keep more of a packet than the file header says, at most about this.
const BIG_PACKET: u32 = 256 * 1024;
/// A record further than this from the one before is damage when it is not read in place: 10 days.
const BELIEVABLE_JUMP_S: i64 = 10 * 86_400;

/// What the file header says.
#[derive(Debug, Clone, PartialEq)]
pub struct Pcap {
    big_endian: bool,
    /// Nanoseconds of a time's fraction.
    unit_ns: i64,
    snap_bytes: u32,
    /// No record has more.
    most_bytes: u32,
    link: LinkType,
    last_s: Option<i64>,
    record_header: usize,
    swapped: Swapped,
    /// Little-endian records with a header of 16 octets that says what it means: what nearly every file has.
    is_usual: bool,
}

/// Whether a record has its two lengths the wrong way round, as old writers did.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Swapped {
    Never,
    /// When the first is the greater.
    Perhaps,
    Always,
}

impl Swapped {
    /// By the version of the file: 2.3 may, what is older and DEC's 543.0 do.
    fn of(major: u16, minor: u16) -> Swapped {
        match (major, minor) {
            (543, _) | (2, 0..=2) => Swapped::Always,
            (2, 3) => Swapped::Perhaps,
            _ => Swapped::Never,
        }
    }
}

/// Whether a file begins as this format does: byte order, and whether times are nanoseconds.
fn magic(data: &[u8]) -> Option<(bool, bool)> {
    match data.get(..4)? {
        [0xa1, 0xb2, 0xc3, 0xd4] => Some((true, false)),
        [0xd4, 0xc3, 0xb2, 0xa1] => Some((false, false)),
        [0xa1, 0xb2, 0x3c, 0x4d] => Some((true, true)),
        [0x4d, 0x3c, 0xb2, 0xa1] => Some((false, true)),
        [0xa1, 0xb2, 0xcd, 0x34] => Some((true, false)),
        [0x34, 0xcd, 0xb2, 0xa1] => Some((false, false)),
        _ => None,
    }
}

impl Pcap {
    /// Whether these are the first octets of such a file.
    pub fn recognises(data: &[u8]) -> bool {
        magic(data).is_some()
    }

    /// Reads the file header; gives back its length too.
    pub(crate) fn open(data: &[u8]) -> Option<(Pcap, usize)> {
        let (big, nanoseconds) = magic(data)?;
        let swapped = Swapped::of(u16_at(data, 4, big)?, u16_at(data, 6, big)?);
        let is_long = data[..4].contains(&0xcd);
        let record_header = if is_long { LONG_RECORD_HEADER } else { RECORD_HEADER };
        let snap_bytes = u32_at(data, 16, big)?;
        // The upper six bits tell of a frame check sequence at the end, which nothing here needs.
        let link = LinkType(u32_at(data, 20, big)? & 0x03ff_ffff);
        let unit_ns = if nanoseconds { 1 } else { 1000 };
        let most_bytes = snap_bytes.clamp(BIG_PACKET, MAX_RECORD_BYTES as u32);
        let last_s = None;
        let is_usual = !big && !is_long && swapped == Swapped::Never;
        let pcap = Pcap {
            big_endian: big,
            unit_ns,
            snap_bytes,
            most_bytes,
            link,
            last_s,
            record_header,
            swapped,
            is_usual,
        };
        Some((pcap, FILE_HEADER))
    }

    /// The record at the beginning of `data`, and its length, where it is a usual one, and all of it is here.
    #[inline(always)]
    pub(crate) fn usual<'a>(&mut self, data: &'a [u8]) -> Option<(Packet<'a>, usize)> {
        let (octets, rest) = data.split_first_chunk::<RECORD_HEADER>()?;
        let header = Header::of(octets, u32::from_le_bytes);
        let fraction_ns = self.fraction_ns(&header);
        if !self.is_usual || header.captured > self.most_bytes || fraction_ns >= 1_000_000_000 {
            return None;
        }
        let packet = Packet {
            time_ns: header.seconds * 1_000_000_000 + fraction_ns,
            original_bytes: header.original,
            data: rest.get(..header.captured as usize)?,
            link: self.link,
            direction: None,
        };
        self.last_s = Some(header.seconds);
        Some((packet, RECORD_HEADER + packet.data.len()))
    }

    /// The record at the beginning of `data`.
    #[inline(always)]
    pub(crate) fn step(&mut self, data: &[u8]) -> Step {
        let Some(header) = self.header(data) else { return Step::Need(RECORD_HEADER) };
        if !self.possible(&header) {
            return Step::Damaged(self.wrong(header.captured, header.fraction));
        }
        let length = self.record_header + header.captured as usize;
        if data.len() < length {
            return Step::Need(length);
        }
        self.last_s = Some(header.seconds);
        Step::Packet { at: self.located(&header), consumed: length }
    }

    #[inline]
    fn located(&self, header: &Header) -> Located {
        Located {
            time_ns: header.seconds * 1_000_000_000 + self.fraction_ns(header),
            original_bytes: header.original,
            start: self.record_header,
            length: header.captured as usize,
            link: self.link,
            direction: None,
        }
    }

    #[inline]
    fn header(&self, data: &[u8]) -> Option<Header> {
        let octets = data.first_chunk::<RECORD_HEADER>()?;
        let header =
            if self.big_endian { big_endian(octets) } else { Header::of(octets, u32::from_le_bytes) };
        Some(if self.swapped == Swapped::Never { header } else { self.put_right(header) })
    }

    #[cold]
    fn put_right(&self, header: Header) -> Header {
        if self.swapped == Swapped::Perhaps && header.captured <= header.original {
            return header;
        }
        Header { captured: header.original, original: header.captured, ..header }
    }

    /// A fraction of a second and more only adds to the time, if the rest of the record makes sense. A header of zeros
    /// was never written.
    #[inline]
    fn possible(&self, header: &Header) -> bool {
        header.captured <= self.most_bytes
            && (header.captured | header.original | header.fraction != 0 || header.seconds != 0)
            && (self.fraction_ns(header) < 1_000_000_000
                || header.captured <= header.original
                    && header.captured <= self.snap_bytes
                    && header.original as usize <= MAX_RECORD_BYTES)
    }

    #[cold]
    fn wrong(&self, captured: u32, fraction: u32) -> String {
        match captured {
            _ if captured > self.most_bytes => format!("a record claims {captured} octets"),
            0 if fraction == 0 => "a record's header is all zeros: it was never written".to_owned(),
            _ => format!("a record's time has a fraction of {fraction}"),
        }
    }

    #[inline]
    fn fraction_ns(&self, header: &Header) -> i64 {
        i64::from(header.fraction) * self.unit_ns
    }

    /// Whether a record could begin here, judged more strictly than in place: for finding the next one after damage.
    pub(crate) fn plausible(&self, data: &[u8], at_end: bool) -> bool {
        let Some(first) = data.get(..).and_then(|d| self.header(d)) else { return false };
        if !self.believable(&first) {
            return false;
        }
        let next = self.record_header + first.captured as usize;
        if at_end && data.len() == next {
            return true;
        }
        data.get(next..).and_then(|rest| self.header(rest)).is_some_and(|second| {
            self.believable(&second) && (second.seconds - first.seconds).abs() <= BELIEVABLE_JUMP_S
        })
    }

    fn believable(&self, header: &Header) -> bool {
        let snap = if self.snap_bytes == 0 { MAX_RECORD_BYTES as u32 } else { self.snap_bytes };
        let near = self.last_s.is_none_or(|last| (header.seconds - last).abs() <= BELIEVABLE_JUMP_S);
        let sizes = header.captured >= 14 && header.captured <= header.original && header.captured <= snap;
        let whole = self.fraction_ns(header) < 1_000_000_000;
        self.possible(header) && whole && near && sizes && header.original as usize <= MAX_RECORD_BYTES
    }
}

struct Header {
    seconds: i64,
    fraction: u32,
    captured: u32,
    original: u32,
}

impl Header {
    #[inline(always)]
    fn of(octets: &[u8; RECORD_HEADER], number: impl Fn([u8; 4]) -> u32) -> Header {
        let word = |at: usize| number([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        Header { seconds: i64::from(word(0)), fraction: word(4), captured: word(8), original: word(12) }
    }
}

/// Apart, lest every file's numbers be read both ways and the right ones chosen.
#[cold]
fn big_endian(octets: &[u8; RECORD_HEADER]) -> Header {
    Header::of(octets, u32::from_be_bytes)
}
