//! Packet captures, read as a stream: pcap (microseconds and nanoseconds, both byte orders) and pcapng.
//!
//! - [`reader`]: bytes of any source in, one packet at a time out; damage is reported with its offset and the rest is
//!   read.
//! - [`pcap`], [`pcapng`]: the two formats as pure functions on a slice.
//! - [`mod@write`]: both formats, for tests, tools and the capture program.
//!
//! The memory needed is that of one buffer, whatever the length of the file.

pub mod pcap;
pub mod pcapng;
pub mod reader;
pub mod write;

use serde::{Deserialize, Serialize};

/// Most octets a single record may claim: what is larger is damage, not a packet (a BIG TCP frame has 512 KiB at most).
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// The latest time of a packet, in the year 2116: past what the classic format can say, and far enough from overflow
/// for sums of times.
pub(crate) const LATEST_NS: i64 = i64::MAX / 2;

/// What a frame begins with: the LINKTYPE number of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkType(pub u32);

/// Which way a frame went at the interface that was listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Into the host.
    Inbound,
    /// Out of the host.
    Outbound,
}

/// One captured packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub time_ns: i64,
    /// Length on the wire, octets.
    pub original_bytes: u32,
    /// What was kept of it.
    pub data: &'a [u8],
    /// What it begins with.
    pub link: LinkType,
    /// Where the file says so (`epb_flags`).
    pub direction: Option<Direction>,
}

/// A packet's place in a buffer, before it is borrowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Located {
    pub time_ns: i64,
    pub original_bytes: u32,
    pub start: usize,
    pub length: usize,
    pub link: LinkType,
    pub direction: Option<Direction>,
}

/// What a format found at the beginning of a slice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// A packet; `consumed` octets are done with.
    Packet { at: Located, consumed: usize },
    /// Something that is no packet.
    Skip { consumed: usize },
    /// At least this many octets are needed to go on.
    Need(usize),
    /// What is here cannot be; the reader looks for the next record behind it.
    Damaged(String),
}

/// A place where a file is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Which file.
    pub file: String,
    /// Octets from its start (after decompression).
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// Octets passed over until the next record that could be read.
    pub skipped_bytes: u64,
}

/// What an interface statistics block says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InterfaceStatistics {
    /// Name given by the file, or its number.
    pub interface: String,
    /// Packets that reached the interface while capturing.
    pub received: Option<u64>,
    /// Packets the capture lost: `isb_ifdrop` and `isb_osdrop`, or else `epb_dropcount` of its packets.
    pub dropped: Option<u64>,
}

/// A 16-bit number of a file.
#[inline]
pub(crate) fn u16_at(data: &[u8], at: usize, big: bool) -> Option<u16> {
    let bytes = data.get(at..at + 2)?.try_into().ok()?;
    Some(if big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
}

/// A 32-bit number of a file.
#[inline]
pub(crate) fn u32_at(data: &[u8], at: usize, big: bool) -> Option<u32> {
    let bytes = data.get(at..at + 4)?.try_into().ok()?;
    Some(if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

/// A 64-bit number of a file.
#[inline]
pub(crate) fn u64_at(data: &[u8], at: usize, big: bool) -> Option<u64> {
    let bytes = data.get(at..at + 8)?.try_into().ok()?;
    Some(if big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
}
