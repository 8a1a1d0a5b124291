//! Writes a made-up capture of any length to standard output, for `bench/analyze/bounded.py`: headers of TCP
//! connections, so many in all, so many at a time, so many data packets each, so many nanoseconds between two packets.
//!
//!     stream 1000000 1000 4 100000 | longfat analyze -

use std::io::{self, Write};

/// Ethernet, IPv4, TCP with timestamps.
const HEADERS: usize = 66;
const PAYLOAD: u32 = 1448;
/// One data packet in so many is sent twice.
const AGAIN: u64 = 500;

const SYN: u8 = 2;
const FIN: u8 = 1;
const ACK: u8 = 16;

struct Stream<W> {
    out: W,
    time_ns: i64,
    gap_ns: i64,
    packet: [u8; 16 + HEADERS],
}

impl<W: Write> Stream<W> {
    fn begin(mut out: W, gap_ns: i64) -> io::Result<Stream<W>> {
        let mut header = [0; 24];
        let fields = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 96, 1];
        header
            .chunks_exact_mut(4)
            .zip(fields)
            .for_each(|(to, field)| to.copy_from_slice(&field.to_le_bytes()));
        out.write_all(&header)?;
        let mut packet = [0; 16 + HEADERS];
        packet[8..12].copy_from_slice(&(HEADERS as u32).to_le_bytes());
        let ethernet = &mut packet[16..];
        ethernet[12..14].copy_from_slice(&[8, 0]);
        (ethernet[14], ethernet[22], ethernet[23]) = (0x45, 64, 6);
        (ethernet[46], ethernet[48]) = (8 << 4, 0xff);
        ethernet[54..58].copy_from_slice(&[1, 1, 8, 10]);
        Ok(Stream { out, time_ns: 1_700_000_000_000_000_000, gap_ns, packet })
    }

    /// One packet of a connection, towards the server or back.
    fn packet(
        &mut self,
        flow: u64,
        forth: bool,
        numbers: [u32; 2],
        flags: u8,
        payload: u32,
    ) -> io::Result<()> {
        self.time_ns += self.gap_ns;
        let (seconds, fraction) = (self.time_ns / 1_000_000_000, self.time_ns % 1_000_000_000);
        let client = ([10, 1, (flow >> 24) as u8, (flow >> 16) as u8], (flow as u16).to_be_bytes());
        let server = ([10, 2, 0, 1], 443u16.to_be_bytes());
        let (from, to) = if forth { (client, server) } else { (server, client) };
        let ticks = (self.time_ns / 1_000_000) as u32;
        let bytes = &mut self.packet;
        bytes[..4].copy_from_slice(&(seconds as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(fraction as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&(HEADERS as u32 + payload).to_le_bytes());
        let frame = &mut bytes[16..];
        frame[16..18].copy_from_slice(&((HEADERS as u32 - 14 + payload) as u16).to_be_bytes());
        frame[26..30].copy_from_slice(&from.0);
        frame[30..34].copy_from_slice(&to.0);
        frame[34..36].copy_from_slice(&from.1);
        frame[36..38].copy_from_slice(&to.1);
        frame[38..42].copy_from_slice(&numbers[0].to_be_bytes());
        frame[42..46].copy_from_slice(&numbers[1].to_be_bytes());
        frame[47] = flags;
        frame[58..62].copy_from_slice(&ticks.to_be_bytes());
        frame[62..66].copy_from_slice(&ticks.wrapping_sub(1).to_be_bytes());
        self.out.write_all(bytes)
    }

    fn open(&mut self, flow: u64) -> io::Result<()> {
        self.packet(flow, true, [0, 0], SYN, 0)?;
        self.packet(flow, false, [0, 1], SYN | ACK, 0)?;
        self.packet(flow, true, [1, 1], ACK, 0)
    }

    /// The `number`th data packet; every second one is acknowledged.
    fn data(&mut self, flow: u64, number: u64) -> io::Result<()> {
        let start = 1u32.wrapping_add((number as u32).wrapping_mul(PAYLOAD));
        self.packet(flow, true, [start, 1], ACK, PAYLOAD)?;
        if (flow + number).is_multiple_of(AGAIN) {
            self.packet(flow, true, [start, 1], ACK, PAYLOAD)?;
        }
        if number % 2 == 1 {
            self.packet(flow, false, [1, start.wrapping_add(PAYLOAD)], ACK, 0)?;
        }
        Ok(())
    }

    fn close(&mut self, flow: u64, packets: u64) -> io::Result<()> {
        let end = 1u32.wrapping_add((packets as u32).wrapping_mul(PAYLOAD));
        self.packet(flow, true, [end, 1], FIN | ACK, 0)?;
        self.packet(flow, false, [1, end.wrapping_add(1)], FIN | ACK, 0)?;
        self.packet(flow, true, [end.wrapping_add(1), 2], ACK, 0)
    }

    /// Connections side by side, a packet of each in turn.
    fn batch(&mut self, flows: std::ops::Range<u64>, packets: u64) -> io::Result<()> {
        flows.clone().try_for_each(|flow| self.open(flow))?;
        (0..packets).try_for_each(|number| flows.clone().try_for_each(|flow| self.data(flow, number)))?;
        flows.clone().try_for_each(|flow| self.close(flow, packets))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [flows, live, packets, gap_ns] = numbers[..] else {
        return Err("usage: stream FLOWS LIVE PACKETS GAP_NS".into());
    };
    let out = io::BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let mut stream = Stream::begin(out, i64::try_from(gap_ns)?)?;
    for first in (0..flows).step_by(usize::try_from(live.max(1))?) {
        stream.batch(first..flows.min(first + live.max(1)), packets)?;
    }
    Ok(stream.out.flush()?)
}
