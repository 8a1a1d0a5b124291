//! A flow's first packets, kept as they came. Most flows are over after a few, and following one takes tens of times
//! the room; those that go on are followed from their first packet when it is known that they do. Nothing is told of a
//! flow that a [`Connection`] would not tell.

use super::connection::Connection;
use crate::segment::{Checksum, FlowKey, Segment, flag};

/// Packets of a flow that are kept before it is followed.
const MOST: usize = 32;

/// A segment without what its flow says, and without SACK blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Brief {
    time_ns: i64,
    sequence: u32,
    acknowledgement: u32,
    payload_bytes: u32,
    ts_value: u32,
    ts_echo: u32,
    flags: u16,
    window: u16,
    ip_id: u16,
    mss_bytes: u16,
    end: u8,
    options: u8,
    window_scale: u8,
    ttl: u8,
    ecn: u8,
    checksum: Checksum,
}

impl Brief {
    fn of(segment: &Segment) -> Brief {
        Brief {
            time_ns: segment.time_ns,
            sequence: segment.sequence,
            acknowledgement: segment.acknowledgement,
            payload_bytes: segment.payload_bytes,
            ts_value: segment.ts_value,
            ts_echo: segment.ts_echo,
            flags: segment.flags,
            window: segment.window,
            ip_id: segment.ip_id,
            mss_bytes: segment.mss_bytes,
            end: segment.end,
            options: segment.options,
            window_scale: segment.window_scale,
            ttl: segment.ttl,
            ecn: segment.ecn,
            checksum: segment.checksum,
        }
    }

    fn segment(&self, key: FlowKey, index: u64) -> Segment {
        Segment {
            time_ns: self.time_ns,
            index,
            key,
            end: self.end,
            options: self.options,
            flags: self.flags,
            sequence: self.sequence,
            acknowledgement: self.acknowledgement,
            window: self.window,
            ip_id: self.ip_id,
            payload_bytes: self.payload_bytes,
            ts_value: self.ts_value,
            ts_echo: self.ts_echo,
            mss_bytes: self.mss_bytes,
            window_scale: self.window_scale,
            sack_count: 0,
            sack: [(0, 0); 4],
            ttl: self.ttl,
            ecn: self.ecn,
            checksum: self.checksum,
        }
    }
}

/// A flow of few packets.
#[derive(Debug, Clone, PartialEq)]
pub struct Young {
    /// Number of its first packet.
    pub first_index: u64,
    /// Time of its last packet.
    pub last_ns: i64,
    /// An earlier connection of the capture had the same ends.
    reused: bool,
    reset: bool,
    finished: [bool; 2],
    /// By bits: before which packets no time can be told.
    steps: u64,
    packets: Vec<Brief>,
}

impl Young {
    /// Without packets; `first` will be the first one.
    pub fn new(first: &Segment, reused: bool) -> Young {
        Young {
            first_index: first.index,
            last_ns: first.time_ns,
            reused,
            reset: false,
            finished: [false; 2],
            steps: 0,
            packets: Vec::new(),
        }
    }

    /// Keeps a packet, unless it takes a [`Connection`] to know what to do with it: says whether it did. Such are one
    /// behind a silence that may end the flow, one that may open another, one with SACK blocks, and one too many.
    #[inline]
    pub fn take(&mut self, segment: &Segment, linger_ns: i64) -> bool {
        let opens = segment.has(flag::SYN) && self.may_be_opened_anew_by(segment);
        let late = segment.time_ns.saturating_sub(self.last_ns) > linger_ns;
        if opens || late || segment.sack_count > 0 || self.packets.len() == MOST {
            return false;
        }
        self.last_ns = self.last_ns.max(segment.time_ns);
        self.reset |= segment.has(flag::RST);
        self.finished[usize::from(segment.end)] |= segment.has(flag::FIN);
        self.packets.push(Brief::of(segment));
        true
    }

    /// Whether a SYN, or the answer to one, may open another connection: an answer is sent again with its number.
    fn may_be_opened_anew_by(&self, segment: &Segment) -> bool {
        let mut own = self.packets.iter().filter(|packet| packet.end == segment.end).peekable();
        let is_again = |packet: &Brief| packet.flags & flag::SYN != 0 && packet.sequence == segment.sequence;
        match segment.has(flag::ACK) {
            true => own.peek().is_some() && !own.any(is_again),
            false => !self.packets.is_empty(),
        }
    }

    /// Whether it may be closed; if not, it is not.
    pub fn may_be_closed(&self) -> bool {
        self.reset || self.finished == [true; 2]
    }

    /// Whether payload may have gone over it, with a word of both ends; if not, none did.
    pub fn may_be_used(&self) -> bool {
        let has = |is_such: &dyn Fn(&Brief) -> bool| self.packets.iter().any(is_such);
        has(&|packet| packet.end == 0)
            && has(&|packet| packet.end == 1)
            && has(&|packet| packet.payload_bytes > 0)
    }

    /// No time between what was so far and what comes can be told.
    pub fn forget_times(&mut self) {
        self.steps |= 1 << self.packets.len();
    }

    /// The connection of these packets.
    pub fn followed(&self, key: FlowKey, detailed: bool) -> Box<Connection> {
        let mut segments = self.packets.iter().map(|packet| packet.segment(key, self.first_index)).peekable();
        let first = segments.peek().copied().unwrap_or_default();
        let mut connection = Box::new(Connection::new(&first, self.reused, detailed));
        // Of all of them first: what one says is judged by the others.
        self.packets.iter().for_each(|one| connection.checksums[usize::from(one.end) & 1].add(one.checksum));
        for (number, segment) in segments.enumerate() {
            if self.steps >> number & 1 == 1 {
                connection.forget_times();
            }
            connection.on_judged(&segment);
        }
        if self.steps >> self.packets.len() & 1 == 1 {
            connection.forget_times();
        }
        connection
    }
}
