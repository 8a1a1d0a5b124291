//! Writes both formats: what tests, benchmarks and a capture program need of them.

use super::{Direction, LinkType};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// The classic format, nanoseconds, little-endian.
pub struct PcapWriter<W> {
    out: W,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    pub fn new(mut out: W, link: LinkType, snap_bytes: u32) -> io::Result<PcapWriter<W>> {
        out.write_all(&0xa1b2_3c4d_u32.to_le_bytes())?;
        out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        out.write_all(&snap_bytes.to_le_bytes())?;
        out.write_all(&link.0.to_le_bytes())?;
        Ok(PcapWriter { out })
    }

    /// Appends a packet of which `data` was kept.
    pub fn packet(&mut self, time_ns: i64, original_bytes: u32, data: &[u8]) -> io::Result<()> {
        let seconds = time_ns.div_euclid(1_000_000_000) as u32;
        let fraction = time_ns.rem_euclid(1_000_000_000) as u32;
        for field in [seconds, fraction, data.len() as u32, original_bytes] {
            self.out.write_all(&field.to_le_bytes())?;
        }
        self.out.write_all(data)
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// What an interface statistics block says of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// When it began, nanoseconds since 1970 (`isb_starttime`).
    pub start_ns: i64,
    /// When it ended, or until when this counts (`isb_endtime`).
    pub end_ns: i64,
    /// Packets that came by (`isb_ifrecv`).
    pub received: u64,
    /// Packets that the filter meant (`isb_filteraccept`).
    pub accepted: u64,
    /// Packets among those that the capture lost (`isb_ifdrop`, which is what other programs show).
    pub dropped: u64,
    /// Packets that were written (`isb_usrdeliv`).
    pub delivered: u64,
}

/// The block format, nanoseconds, little-endian, one section.
pub struct PcapngWriter<W> {
    out: W,
    interfaces: u32,
    written_bytes: u64,
    /// The block that is being made.
    block: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the section header.
    pub fn new(out: W) -> io::Result<PcapngWriter<W>> {
        PcapngWriter::by(out, "")
    }

    /// Writes the section header with the name of the writing program.
    pub fn by(out: W, application: &str) -> io::Result<PcapngWriter<W>> {
        let mut writer = PcapngWriter::bare(out);
        writer.begin(0x0a0d_0d0a);
        writer.block.extend(0x1a2b_3c4d_u32.to_le_bytes());
        writer.block.extend([1, 0, 0, 0]);
        writer.block.extend(u64::MAX.to_le_bytes());
        if !application.is_empty() {
            option(&mut writer.block, 4, application.as_bytes());
            writer.block.extend([0; 4]);
        }
        writer.end()?;
        Ok(writer)
    }

    /// Writes blocks that belong behind others.
    pub(crate) fn bare(out: W) -> PcapngWriter<W> {
        PcapngWriter { out, interfaces: 0, written_bytes: 0, block: Vec::new() }
    }

    /// Declares an interface; gives back its number.
    pub fn interface(&mut self, name: &str, link: LinkType, snap_bytes: u32) -> io::Result<u32> {
        self.filtered_interface(name, link, snap_bytes, "")
    }

    /// Adds an interface with the filter that chose its packets.
    pub fn filtered_interface(
        &mut self,
        name: &str,
        link: LinkType,
        snap_bytes: u32,
        filter: &str,
    ) -> io::Result<u32> {
        self.begin(1);
        self.block.extend((link.0 as u16).to_le_bytes());
        self.block.extend([0, 0]);
        self.block.extend(snap_bytes.to_le_bytes());
        option(&mut self.block, 2, name.as_bytes());
        option(&mut self.block, 9, &[9]);
        if !filter.is_empty() {
            // The first octet says that it is text.
            option(&mut self.block, 11, &[&[0], filter.as_bytes()].concat());
        }
        self.block.extend([0; 4]);
        self.end()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Appends a packet of which `data` was kept.
    #[inline]
    pub fn packet(
        &mut self,
        interface: u32,
        time_ns: i64,
        original_bytes: u32,
        data: &[u8],
        direction: Option<Direction>,
    ) -> io::Result<()> {
        // Padding, epb_flags and the end of the options, the block's length again. This is done a million times in a
        // second: no block is put together before it goes out.
        let mut tail = [0; 3 + 12 + 4];
        let options = match direction {
            None => 15,
            Some(direction) => {
                tail[3] = 2;
                tail[5] = 4;
                tail[7] = if direction == Direction::Inbound { 1 } else { 2 };
                3
            }
        };
        let tail_from = options - (data.len().wrapping_neg() & 3);
        let (count, kept) = (time_ns as u64, data.len() as u32);
        let length = 28 + kept + (tail.len() - tail_from) as u32;
        tail[15..].copy_from_slice(&length.to_le_bytes());
        let mut head = [0; 28];
        let fields = [6, length, interface, (count >> 32) as u32, count as u32, kept, original_bytes];
        for (to, field) in head.chunks_exact_mut(4).zip(fields) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        self.written_bytes += u64::from(length);
        self.out.write_all(&head)?;
        self.out.write_all(data)?;
        self.out.write_all(&tail[tail_from..])
    }

    /// Says what an interface received and what the capture lost; the last one of an interface counts.
    pub fn statistics(&mut self, interface: u32, totals: &Totals) -> io::Result<()> {
        let halves = |time_ns: i64| [(time_ns as u64 >> 32) as u32, time_ns as u32];
        self.begin(5);
        let [high, low] = halves(totals.end_ns);
        for field in [interface, high, low] {
            self.block.extend(field.to_le_bytes());
        }
        for (code, time_ns) in [(2, totals.start_ns), (3, totals.end_ns)] {
            option(&mut self.block, code, &halves(time_ns).map(u32::to_le_bytes).concat());
        }
        for (code, count) in
            [(4, totals.received), (5, totals.dropped), (6, totals.accepted), (8, totals.delivered)]
        {
            option(&mut self.block, code, &count.to_le_bytes());
        }
        self.block.extend([0; 4]);
        self.end()
    }

    /// Octets written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Hands on what the output holds back.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.block.extend_from_slice(&kind.to_le_bytes());
        self.block.extend_from_slice(&[0; 4]);
    }

    fn end(&mut self) -> io::Result<()> {
        let length = (self.block.len() as u32 + 4).to_le_bytes();
        self.block[4..8].copy_from_slice(&length);
        self.block.extend_from_slice(&length);
        self.written_bytes += self.block.len() as u64;
        self.out.write_all(&self.block)
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    padded(body, value);
}

fn padded(body: &mut Vec<u8>, data: &[u8]) {
    body.extend_from_slice(data);
    body.resize(body.len().next_multiple_of(4), 0);
}
