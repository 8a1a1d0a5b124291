//! Timestamps inside the stream, found by position, so that the payload needs no framing.
//!
//! At every multiple of N bytes (0, N, 2N …) stand 16 bytes: the position with a mark in its top 16 bits, and
//! CLOCK_MONOTONIC of the sending host in nanoseconds. The receiving end writes them back unread on the same
//! connection; only the sender's clock counts.

/// Length of a timestamp in the stream.
pub const HEADER_BYTES: u64 = 16;
/// Top 16 bits of the position word ("LF").
const MARK: u64 = 0x4c46 << 48;
const POSITION_MASK: u64 = (1 << 48) - 1;

/// A timestamp in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Stream position of its first byte.
    pub position_bytes: u64,
    /// When its first byte was offered to the socket that took it, by the sender's CLOCK_MONOTONIC.
    pub time_ns: u64,
}

/// A stream that is not what was agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream is damaged: no timestamp of position {position_bytes} where it should be")]
pub struct EchoError {
    /// Where a timestamp should be.
    pub position_bytes: u64,
}

impl Header {
    /// As it stands in the stream.
    pub fn encode(self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(&(MARK | (self.position_bytes & POSITION_MASK)).to_le_bytes());
        bytes[8..].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes
    }

    /// Reads the timestamp that should be the one of `position_bytes`.
    pub fn decode(bytes: [u8; HEADER_BYTES as usize], position_bytes: u64) -> Result<Header, EchoError> {
        let word = |from: usize| (0..8).rev().fold(0u64, |word, i| word << 8 | u64::from(bytes[from + i]));
        if word(0) != MARK | (position_bytes & POSITION_MASK) {
            return Err(EchoError { position_bytes });
        }
        Ok(Header { position_bytes, time_ns: word(8) })
    }
}

/// A run of stream bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// Payload only.
    Payload {
        /// How many bytes.
        bytes: u64,
    },
    /// Part of a timestamp.
    Header {
        /// Position of the timestamp's first byte.
        position_bytes: u64,
        /// How far into the timestamp this piece begins.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
}

impl Piece {
    /// Length of the piece in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Piece::Payload { bytes } | Piece::Header { bytes, .. } => bytes,
        }
    }
}

/// Where timestamps stand in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoLayout {
    every_bytes: Option<u64>,
}

impl EchoLayout {
    /// A timestamp every so many bytes (more than 16), or none at all.
    pub fn new(every_bytes: Option<u64>) -> EchoLayout {
        EchoLayout { every_bytes: every_bytes.map(|every| every.max(HEADER_BYTES + 1)) }
    }

    /// The piece at `position`, cut to at most `limit` bytes.
    pub fn piece_at(self, position: u64, limit: u64) -> Piece {
        let Some(every) = self.every_bytes else { return Piece::Payload { bytes: limit } };
        let into = position % every;
        if into < HEADER_BYTES {
            let bytes = limit.min(HEADER_BYTES - into);
            return Piece::Header { position_bytes: position - into, offset: into, bytes };
        }
        Piece::Payload { bytes: limit.min(every - into) }
    }

    /// How many whole timestamps a stream of `bytes` holds.
    pub fn count(self, bytes: u64) -> u64 {
        let Some(every) = self.every_bytes else { return 0 };
        if bytes < HEADER_BYTES { 0 } else { (bytes - HEADER_BYTES) / every + 1 }
    }

    /// The next timestamp's position after `position_bytes`.
    fn after(self, position_bytes: u64) -> u64 {
        position_bytes + self.every_bytes.unwrap_or(0)
    }
}

/// The receiving end's view of a stream that arrives in chunks of any size.
#[derive(Debug)]
pub struct EchoTracker {
    layout: EchoLayout,
    position: u64,
    header: [u8; HEADER_BYTES as usize],
}

impl EchoTracker {
    /// At the beginning of a stream.
    pub fn new(layout: EchoLayout) -> EchoTracker {
        EchoTracker { layout, position: 0, header: [0; HEADER_BYTES as usize] }
    }

    /// Stream position reached.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The piece that comes next, at most `limit` bytes of it.
    pub fn next_piece(&self, limit: u64) -> Piece {
        self.layout.piece_at(self.position, limit)
    }

    /// Passes over payload bytes that nobody looks at.
    pub fn skip(&mut self, bytes: u64) {
        self.position += bytes;
    }

    /// Takes the next bytes of the stream; calls `echo` with every timestamp completed and `payload` with the
    /// position of every run of payload.
    pub fn take(
        &mut self,
        mut chunk: &[u8],
        mut echo: impl FnMut([u8; HEADER_BYTES as usize]),
        mut payload: impl FnMut(u64, &[u8]),
    ) -> Result<(), EchoError> {
        while !chunk.is_empty() {
            let piece = self.next_piece(chunk.len() as u64);
            let (now, rest) = chunk.split_at(piece.bytes() as usize);
            match piece {
                Piece::Payload { .. } => payload(self.position, now),
                Piece::Header { position_bytes, offset, bytes } => {
                    let end = offset + bytes;
                    self.header[offset as usize..end as usize].copy_from_slice(now);
                    if end == HEADER_BYTES {
                        Header::decode(self.header, position_bytes)?;
                        echo(self.header);
                    }
                }
            }
            self.position += piece.bytes();
            chunk = rest;
        }
        Ok(())
    }
}

/// The sending end's view of the echoes that come back in chunks of any size.
#[derive(Debug)]
pub struct EchoReturns {
    layout: EchoLayout,
    expected: u64,
    held: Vec<u8>,
}

impl EchoReturns {
    /// Before the first echo.
    pub fn new(layout: EchoLayout) -> EchoReturns {
        EchoReturns { layout, expected: 0, held: Vec::with_capacity(HEADER_BYTES as usize) }
    }

    /// Takes bytes read; calls `each` with every echo completed. Echoes come in order, each exactly once.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(Header)) -> Result<(), EchoError> {
        for byte in bytes {
            self.held.push(*byte);
            let Ok(header) = <[u8; HEADER_BYTES as usize]>::try_from(self.held.as_slice()) else { continue };
            self.held.clear();
            let header = Header::decode(header, self.expected)?;
            self.expected = self.layout.after(self.expected);
            each(header);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A stream as a sender would write it: timestamp k has time k.
    fn stream(layout: EchoLayout, length: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < length {
            let position = bytes.len() as u64;
            match layout.piece_at(position, length - position) {
                Piece::Payload { bytes: count } => bytes.extend(std::iter::repeat_n(0xaa, count as usize)),
                Piece::Header { position_bytes, offset, bytes: count } => {
                    let header = Header { position_bytes, time_ns: position_bytes + 1 }.encode();
                    bytes.extend(&header[offset as usize..(offset + count) as usize]);
                }
            }
        }
        bytes
    }

    /// Cuts `bytes` at pseudo-random places.
    fn chunks<'a>(bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = bytes;
        let mut sizes = sizes.iter().cycle();
        std::iter::from_fn(move || {
            let size = (*sizes.next()?).min(rest.len());
            let (now, later) = rest.split_at(size);
            rest = later;
            (!now.is_empty()).then_some(now)
        })
    }

    #[test]
    fn a_stream_of_k_spacings_holds_k_timestamps() {
        let layout = EchoLayout::new(Some(1_000_000));
        assert_eq!(layout.count(5_000_000), 5);
        assert_eq!(layout.count(5_000_015), 5);
        assert_eq!(layout.count(5_000_016), 6);
        assert_eq!((layout.count(15), EchoLayout::new(None).count(1 << 40)), (0, 0));
    }

    #[test]
    fn a_stream_shifted_by_one_byte_is_found_damaged() {
        let layout = EchoLayout::new(Some(100));
        let mut tracker = EchoTracker::new(layout);
        let error = tracker.take(&stream(layout, 300)[1..], |_| {}, |_, _| {}).unwrap_err();
        assert_eq!(error.position_bytes, 0);
    }

    proptest! {
        #[test]
        fn every_timestamp_is_echoed_once_however_the_stream_is_cut(
            every in 17u64..400, length in 0u64..4000, sizes in prop::collection::vec(1usize..97, 1..20),
        ) {
            let layout = EchoLayout::new(Some(every));
            let bytes = stream(layout, length);
            let (mut tracker, mut echoes, mut payload) = (EchoTracker::new(layout), Vec::new(), 0);
            for chunk in chunks(&bytes, &sizes) {
                tracker.take(chunk, |header| echoes.extend(header), |_, run| payload += run.len()).unwrap();
            }
            prop_assert_eq!(tracker.position(), length);
            prop_assert_eq!(echoes.len() as u64, 16 * layout.count(length));
            prop_assert_eq!(payload, bytes.iter().enumerate().filter(|(i, _)| *i as u64 % every >= 16).count());
            let (mut returns, mut seen) = (EchoReturns::new(layout), 0);
            for chunk in chunks(&echoes, &sizes) {
                returns.take(chunk, |header| {
                    assert_eq!((header.position_bytes, header.time_ns), (seen * every, seen * every + 1));
                    seen += 1;
                }).unwrap();
            }
            prop_assert_eq!(seen, layout.count(length));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), every in 0u64..64) {
            let layout = EchoLayout::new(Some(every));
            let _ = EchoTracker::new(layout).take(&bytes, |_| {}, |_, _| {});
            let _ = EchoReturns::new(layout).take(&bytes, |_| {});
        }
    }
}
