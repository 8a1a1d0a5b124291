//! Writes both formats: what tests, benchmarks and a capture program need of them.

use super::{Direction, LinkType};
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

/// The block format, nanoseconds, little-endian, one section.
pub struct PcapngWriter<W> {
    out: W,
    interfaces: u32,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the section header.
    pub fn new(mut out: W) -> io::Result<PcapngWriter<W>> {
        let mut body = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
        body.extend([1, 0, 0, 0]);
        body.extend(u64::MAX.to_le_bytes());
        block(&mut out, 0x0a0d_0d0a, &body)?;
        Ok(PcapngWriter { out, interfaces: 0 })
    }

    /// Declares an interface; gives back its number.
    pub fn interface(&mut self, name: &str, link: LinkType, snap_bytes: u32) -> io::Result<u32> {
        let mut body = (link.0 as u16).to_le_bytes().to_vec();
        body.extend([0, 0]);
        body.extend(snap_bytes.to_le_bytes());
        option(&mut body, 2, name.as_bytes());
        option(&mut body, 9, &[9]);
        body.extend([0; 4]);
        block(&mut self.out, 1, &body)?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Appends a packet of which `data` was kept.
    pub fn packet(
        &mut self,
        interface: u32,
        time_ns: i64,
        original_bytes: u32,
        data: &[u8],
        direction: Option<Direction>,
    ) -> io::Result<()> {
        let count = time_ns as u64;
        let mut body = Vec::with_capacity(data.len() + 40);
        for field in [interface, (count >> 32) as u32, count as u32, data.len() as u32, original_bytes] {
            body.extend(field.to_le_bytes());
        }
        padded(&mut body, data);
        if let Some(direction) = direction {
            let flags: u32 = if direction == Direction::Inbound { 1 } else { 2 };
            option(&mut body, 2, &flags.to_le_bytes());
            body.extend([0; 4]);
        }
        block(&mut self.out, 6, &body)
    }

    /// Says what an interface received and what the capture lost.
    pub fn statistics(
        &mut self,
        interface: u32,
        time_ns: i64,
        received: u64,
        dropped: u64,
    ) -> io::Result<()> {
        let count = time_ns as u64;
        let mut body = Vec::new();
        for field in [interface, (count >> 32) as u32, count as u32] {
            body.extend(field.to_le_bytes());
        }
        option(&mut body, 4, &received.to_le_bytes());
        option(&mut body, 5, &dropped.to_le_bytes());
        body.extend([0; 4]);
        block(&mut self.out, 5, &body)
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.out
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    padded(body, value);
}

fn padded(body: &mut Vec<u8>, data: &[u8]) {
    body.extend(data);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length)?;
    out.write_all(body)?;
    out.write_all(&length)
}
