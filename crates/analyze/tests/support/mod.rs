//! Packets made by hand, and a capture of them in memory.
#![allow(missing_docs)]

pub mod cases;
pub mod kinds;
pub mod script;
pub mod traffic;

use longfat_analyze::{
    Settings,
    analysis::{Analysis, analyze},
    capture::{LinkType, reader::CaptureReader, write::PcapWriter},
    report::{DirectionReport, FlowReport},
    segment::flag,
};

pub const MS: i64 = 1_000_000;
pub const US: i64 = 1_000;

/// What is written where the checksum stands. Those that are written have their payload (zeros) in the capture, too.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Sum {
    /// Zero, and no payload in the capture.
    #[default]
    Left,
    /// The right one.
    Right,
    /// Checksum of the pseudo-header, which an interface completes.
    Partial,
    /// Some other one.
    Other,
}

/// A TCP segment before it is octets.
#[derive(Debug, Clone)]
pub struct Tcp {
    pub from_client: bool,
    pub flags: u16,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub payload: usize,
    pub options: Vec<u8>,
    pub ip_id: u16,
    pub ttl: u8,
    pub ports: (u16, u16),
    /// The client's address.
    pub client: [u8; 4],
    pub ecn: u8,
    pub sum: Sum,
}

impl Tcp {
    pub fn client(flags: u16, seq: u32, ack: u32) -> Tcp {
        Tcp { from_client: true, ..Tcp::server(flags, seq, ack) }
    }

    pub fn server(flags: u16, seq: u32, ack: u32) -> Tcp {
        Tcp {
            from_client: false,
            flags,
            seq,
            ack,
            window: 0xffff,
            payload: 0,
            options: Vec::new(),
            ip_id: 0,
            ttl: 64,
            ports: (40_000, 5001),
            client: [10, 0, 0, 1],
            ecn: 0,
            sum: Sum::Left,
        }
    }

    pub fn payload(self, payload: usize) -> Tcp {
        Tcp { payload, ..self }
    }

    pub fn window(self, window: u16) -> Tcp {
        Tcp { window, ..self }
    }

    pub fn ttl(self, ttl: u8) -> Tcp {
        Tcp { ttl, ..self }
    }

    pub fn ip_id(self, ip_id: u16) -> Tcp {
        Tcp { ip_id, ..self }
    }

    /// MSS 1460, window scale 7, SACK permitted.
    pub fn syn_options(mut self, sack: bool, scale: Option<u8>) -> Tcp {
        self.options = vec![2, 4, 0x05, 0xb4];
        if let Some(scale) = scale {
            self.options.extend([1, 3, 3, scale]);
        }
        if sack {
            self.options.extend([1, 1, 4, 2]);
        }
        self
    }

    pub fn option(mut self, kind: &[u8], value: &[u8]) -> Tcp {
        self.options.extend(kind);
        self.options.extend(value);
        self
    }

    pub fn timestamps(mut self, value: u32, echo: u32) -> Tcp {
        self.options.extend([1, 1, 8, 10]);
        self.options.extend(value.to_be_bytes());
        self.options.extend(echo.to_be_bytes());
        self
    }

    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Tcp {
        self.options.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
        for (left, right) in blocks {
            self.options.extend(left.to_be_bytes());
            self.options.extend(right.to_be_bytes());
        }
        self
    }

    /// TCP header and options, no payload.
    pub fn header(&self) -> Vec<u8> {
        let (client, server) = self.ports;
        let (source, destination) = if self.from_client { (client, server) } else { (server, client) };
        let mut header = Vec::new();
        header.extend(source.to_be_bytes());
        header.extend(destination.to_be_bytes());
        header.extend(self.seq.to_be_bytes());
        header.extend(self.ack.to_be_bytes());
        let offset = (20 + self.options.len() as u16) / 4;
        header.extend((offset << 12 | self.flags).to_be_bytes());
        header.extend(self.window.to_be_bytes());
        header.extend([0; 4]);
        header.extend(&self.options);
        let checksum = self.checksum(&header);
        header[16..18].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn addresses(&self) -> [[u8; 4]; 2] {
        let server = [10, 0, 0, 2];
        if self.from_client { [self.client, server] } else { [server, self.client] }
    }

    /// By RFC 1071, as its text has it: octet by octet, of a payload of zeros.
    fn checksum(&self, header: &[u8]) -> u16 {
        let sum = |octets: &[u8]| -> u32 {
            octets
                .iter()
                .enumerate()
                .map(|(at, octet)| u32::from(*octet) << if at % 2 == 0 { 8 } else { 0 })
                .sum()
        };
        let carried = |sum: u32| ((sum >> 16) + (sum & 0xffff)) as u16;
        let pseudo = sum(&self.addresses().concat()) + 6 + (header.len() + self.payload) as u32;
        match self.sum {
            Sum::Left => 0,
            Sum::Partial => carried(pseudo),
            Sum::Right => !carried(pseudo + sum(header)),
            Sum::Other => !carried(pseudo + sum(header)) ^ 0x0101,
        }
    }

    /// IPv4 packet; gives back its headers and its length on the wire.
    pub fn ipv4(&self) -> (Vec<u8>, usize) {
        let tcp = self.header();
        let total = 20 + tcp.len() + self.payload;
        let mut packet = vec![0x45, self.ecn];
        packet.extend((total as u16).to_be_bytes());
        packet.extend(self.ip_id.to_be_bytes());
        packet.extend([0x40, 0, self.ttl, 6, 0, 0]);
        packet.extend(self.addresses().concat());
        packet.extend(tcp);
        if self.sum != Sum::Left {
            packet.resize(total, 0);
        }
        (packet, total)
    }

    /// Ethernet frame; gives back its headers and its length on the wire.
    pub fn frame(&self) -> (Vec<u8>, usize) {
        let (ip, total) = self.ipv4();
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend(ip);
        (frame, 14 + total)
    }
}

/// A capture of headers, in memory.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    pub packets: Vec<(i64, Tcp)>,
}

impl Trace {
    pub fn push(&mut self, time_ns: i64, tcp: Tcp) {
        self.packets.push((time_ns, tcp));
    }

    /// SYN, SYN-ACK, ACK as seen at the client of a path of this RTT; both start at sequence 0.
    pub fn handshake(&mut self, rtt_ns: i64, sack: bool, scale: Option<u8>) {
        self.push(0, Tcp::client(flag::SYN, u32::MAX, 0).syn_options(sack, scale));
        self.push(rtt_ns, Tcp::server(flag::SYN | flag::ACK, u32::MAX, 0).syn_options(sack, scale));
        self.push(rtt_ns + 10 * US, Tcp::client(flag::ACK, 0, 0));
    }

    pub fn pcap(&self) -> Vec<u8> {
        let mut writer = PcapWriter::new(Vec::new(), LinkType(1), 65_535).unwrap();
        for (time_ns, tcp) in &self.packets {
            let (frame, length) = tcp.frame();
            writer.packet(1_700_000_000_000_000_000 + time_ns, length as u32, &frame).unwrap();
        }
        writer.into_inner()
    }

    pub fn analyze(&self) -> Analysis {
        analyze_bytes(&self.pcap(), Settings::default())
    }

    pub fn flow(&self) -> FlowReport {
        let mut analysis = self.analyze();
        assert_eq!(analysis.flows.len(), 1);
        analysis.flows.remove(0)
    }

    /// What the client sent.
    pub fn client(&self) -> DirectionReport {
        let [client, _] = self.flow().directions;
        client
    }
}

pub fn analyze_bytes(bytes: &[u8], settings: Settings) -> Analysis {
    let reader = CaptureReader::new(bytes, "memory").unwrap();
    analyze(vec![reader], settings, |_| {}).unwrap()
}

/// A transfer over a path with a bottleneck and a queue without end, seen at the sender (the client).
#[derive(Debug, Clone)]
pub struct Bulk {
    pub handshake: bool,
    pub start_ns: i64,
    pub first: u32,
    pub segments: usize,
    pub payload: usize,
    /// Time of one segment at the bottleneck.
    pub service_ns: i64,
    pub rtt_ns: i64,
    /// From this time on, the RTT is this.
    pub rtt_later_ns: Option<(i64, i64)>,
    /// The sender's window, in segments.
    pub window_segments: usize,
    /// Whether the window grows from 10 by one with every ACK until the first loss.
    pub growing: bool,
    /// What the receiver offers, octets.
    pub advertised: u32,
    pub scale: Option<u8>,
    pub sack: bool,
    /// Sends no faster than the bottleneck.
    pub paced: bool,
    pub pause_every: usize,
    pub pause_ns: i64,
    /// ACKs are held until the next multiple of this.
    pub merge_acks_ns: i64,
    /// Segments of which one is lost once; a SACK tells, and it is sent again a round trip later.
    pub lose_every: usize,
    /// From this segment on, each takes so long at the bottleneck (0: as before), without a queue; losses begin here
    /// too.
    pub slow_after: Option<(usize, i64)>,
}

impl Default for Bulk {
    fn default() -> Bulk {
        Bulk {
            handshake: true,
            start_ns: 0,
            first: 0,
            segments: 1000,
            payload: 1448,
            service_ns: 116 * US,
            rtt_ns: 20 * MS,
            rtt_later_ns: None,
            window_segments: 100,
            growing: false,
            advertised: 1 << 21,
            scale: Some(7),
            sack: true,
            paced: false,
            pause_every: 0,
            pause_ns: 0,
            merge_acks_ns: 0,
            lose_every: 0,
            slow_after: None,
        }
    }
}

/// Where a transfer ended.
pub struct End {
    pub time_ns: i64,
    pub next: u32,
}

impl Bulk {
    pub fn data(&self, seq: u32) -> Tcp {
        Tcp::client(flag::ACK, seq, 0).payload(self.payload).window(1000)
    }

    pub fn ack(&self, ack: u32) -> Tcp {
        Tcp::server(flag::ACK, 0, ack).window((self.advertised >> self.scale.unwrap_or(0)) as u16)
    }
}

/// Adds the packets of a transfer.
pub fn bulk(trace: &mut Trace, options: &Bulk) -> End {
    let mut start = options.start_ns;
    if options.handshake {
        trace.handshake(options.rtt_ns, options.sack, options.scale);
        start = options.rtt_ns + 20 * US;
    }
    let mut packets = Vec::new();
    let mut acked: Vec<i64> = Vec::new();
    let (mut free, mut last_send, mut paused) = (0, start, 0);
    for n in 0..options.segments {
        let slow = options.slow_after.filter(|(from, _)| n >= *from);
        let window =
            if options.growing { options.window_segments.min(10 + n / 2) } else { options.window_segments };
        let mut send = if n >= window { acked[n - window] + 3 * US } else { last_send + US };
        if options.pause_every > 0 && n > 0 && n % options.pause_every == 0 {
            paused += 1;
            send = send.max(acked[n - 1]) + options.pause_ns;
        }
        let service = slow.map_or(options.service_ns, |(_, ns)| if ns > 0 { ns } else { options.service_ns });
        if slow.is_some() || options.paced {
            send = send.max(last_send + service);
        }
        send = send.max(last_send + US);
        last_send = send;
        let seq = options.first + (n * options.payload) as u32;
        packets.push((send, options.data(seq)));
        let rtt = options.rtt_later_ns.filter(|(at, _)| send >= *at).map_or(options.rtt_ns, |(_, rtt)| rtt);
        free = send.max(free) + if slow.is_some() { 10 * US } else { service };
        let mut back = (free + rtt).max(acked.last().copied().unwrap_or(0) + US);
        let lost = options.lose_every > 0 && slow.is_some() && n % options.lose_every == 7;
        let next = seq + options.payload as u32;
        if lost {
            let told = back + 2 * service;
            packets.push((told, options.ack(seq).sack(&[(next, next + options.payload as u32)])));
            packets.push((told + 20 * US, options.data(seq)));
            back = told + rtt + 20 * US;
        }
        if options.merge_acks_ns > 0 {
            let held =
                (free + rtt + options.merge_acks_ns - 1) / options.merge_acks_ns * options.merge_acks_ns;
            back = held.max(acked.last().copied().unwrap_or(0) + 2 * US);
        }
        acked.push(back);
        packets.push((back, options.ack(next)));
    }
    let _ = paused;
    packets.sort_by_key(|(time, _)| *time);
    trace.packets.extend(packets);
    End {
        time_ns: trace.packets.last().unwrap().0,
        next: options.first + (options.segments * options.payload) as u32,
    }
}
