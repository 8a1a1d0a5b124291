//! TCP segments of a handshake: read from whole IP packets, and made from them. Bytes in, bytes out.

use crate::logic::packet::{Part, TCP, be16, checksum, flag, ip_packet, parse_part, pseudo_header};
use std::net::SocketAddr;

/// Where the TCP header has its flags and its checksum (RFC 9293 section 3.1).
const FLAGS_AT: usize = 13;
const CHECKSUM_AT: usize = 16;
const URGENT_AT: usize = 18;
const HEADER_BYTES: usize = 20;
/// Where the IPv4 header has its length and its checksum, the IPv6 header its payload's length.
const IPV4_LENGTH_AT: usize = 2;
const IPV4_CHECKSUM_AT: usize = 10;
const IPV4_HOPS_AT: usize = 8;
const IPV6_HOPS_AT: usize = 7;
const IPV6_LENGTH_AT: usize = 4;
const IPV6_HEADER_BYTES: usize = 40;

/// Flags of a TCP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    fn is_all(self, flags: u8) -> bool {
        self.0 & flags == flags
    }

    /// A SYN that answers none.
    pub fn is_syn(self) -> bool {
        self.0 & flag::KIND == flag::SYN
    }

    /// A SYN that answers one.
    pub fn is_syn_ack(self) -> bool {
        self.0 & flag::KIND == flag::SYN | flag::ACK
    }

    /// Whether the segment acknowledges, and neither begins nor resets.
    pub fn is_ack(self) -> bool {
        self.0 & (flag::SYN | flag::ACK | flag::RST) == flag::ACK
    }

    /// Whether the segment resets.
    pub fn is_reset(self) -> bool {
        self.is_all(flag::RST)
    }

    /// Whether the segment belongs to a handshake.
    pub fn begins(self) -> bool {
        self.is_all(flag::SYN)
    }

    /// Whether the segment's sender has finished.
    pub fn is_finish(self) -> bool {
        self.is_all(flag::FIN)
    }

    /// Whether the segment carries urgent data, or points to some.
    pub fn is_urgent(self) -> bool {
        self.is_all(flag::URG)
    }

    /// Whether the segment speaks of ECN in a handshake (RFC 3168 section 6.1.1).
    pub fn has_ecn(self) -> bool {
        self.0 & (flag::ECE | flag::CWR) != 0
    }
}

/// TCP options of a SYN or SYN-ACK that a relay must know of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest segment that the sender takes.
    pub mss_bytes: Option<u16>,
    /// Shift of its windows.
    pub scale: Option<u8>,
    /// Whether the end takes selective acknowledgements.
    pub sack: bool,
    /// Timestamp of the segment (TSval).
    pub timestamp: Option<u32>,
    /// Multipath TCP (RFC 8684).
    pub mptcp: bool,
    /// An option that is not known here, or that cannot be read.
    pub unknown: bool,
}

/// Largest shift of windows (RFC 7323 section 2.3): more counts as this.
const MOST_SCALE: u8 = 14;

impl Options {
    fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while let [kind, rest @ ..] = bytes {
            match kind {
                0 => break,
                1 => bytes = rest,
                kind => match option_at(bytes) {
                    Some((value, rest)) => {
                        options.take(*kind, value);
                        bytes = rest;
                    }
                    None => {
                        options.unknown = true;
                        break;
                    }
                },
            }
        }
        options
    }

    fn take(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (2, [high, low]) => self.mss_bytes = Some(u16::from_be_bytes([*high, *low])),
            (3, [scale]) => self.scale = Some((*scale).min(MOST_SCALE)),
            (4, []) => self.sack = true,
            // Selective acknowledgements, which no handshake has but its last packet may.
            (5, _) => {}
            (8, [a, b, c, d, ..]) if value.len() == 8 => {
                self.timestamp = Some(u32::from_be_bytes([*a, *b, *c, *d]));
            }
            (30, _) => self.mptcp = true,
            // User timeout (RFC 5482) changes nothing that a packet carries; a cookie of Fast Open (RFC 7413) is for
            // later.
            (28 | 34, _) => {}
            _ => self.unknown = true,
        }
    }
}

/// The value of the option at the beginning, and what follows it.
fn option_at(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(*bytes.get(1)?);
    Some((bytes.get(2..length)?, bytes.get(length..)?))
}

/// A TCP segment within its IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Address that the segment comes from.
    pub from: SocketAddr,
    /// Address that the segment is for.
    pub to: SocketAddr,
    /// First sequence number of the segment.
    pub sequence: u32,
    /// What it acknowledges.
    pub acknowledged: u32,
    /// Flags of the segment.
    pub flags: Flags,
    /// Accurate ECN's third flag in a handshake, in the octet before.
    has_accurate_ecn: bool,
    /// Window of the segment, not scaled.
    pub window: u16,
    /// TCP options of the segment.
    pub options: Options,
    /// Bytes that it carries.
    pub payload_bytes: usize,
    packet: &'a [u8],
    tcp_at: usize,
    header_bytes: usize,
}

impl<'a> Segment<'a> {
    /// Reads a whole IP packet; none when it carries no whole TCP header, or a fragment.
    pub fn parse(packet: &'a [u8]) -> Option<Segment<'a>> {
        Segment::parse_part(packet, Part::Whole)
    }

    /// Reads the first fragment of an IP packet, whose bytes are not all of its segment's.
    pub fn parse_beginning(packet: &'a [u8]) -> Option<Segment<'a>> {
        Segment::parse_part(packet, Part::Beginning)
    }

    fn parse_part(packet: &'a [u8], part: Part) -> Option<Segment<'a>> {
        let (from, to, tcp) = parse_part(packet, part)?;
        let header_bytes = usize::from(tcp.get(12)? >> 4) * 4;
        let options = tcp.get(HEADER_BYTES..header_bytes)?;
        let tcp_at = (tcp.as_ptr() as usize).checked_sub(packet.as_ptr() as usize)?;
        Some(Segment {
            from: SocketAddr::new(from, be16(tcp, 0)?),
            to: SocketAddr::new(to, be16(tcp, 2)?),
            sequence: be32(tcp, 4)?,
            acknowledged: be32(tcp, 8)?,
            flags: Flags(*tcp.get(FLAGS_AT)?),
            has_accurate_ecn: tcp.get(12)? & 1 != 0,
            window: be16(tcp, 14)?,
            options: Options::parse(options),
            payload_bytes: tcp.len() - header_bytes,
            packet: packet.get(..tcp_at + tcp.len())?,
            tcp_at,
            header_bytes,
        })
    }

    /// Whether a SYN or SYN-ACK offers ECN, by whichever of its ways.
    pub fn has_ecn(&self) -> bool {
        self.flags.has_ecn() || self.has_accurate_ecn
    }

    /// The whole packet.
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// The bytes that it carries.
    pub fn payload(&self) -> &'a [u8] {
        &self.packet[self.tcp_at + self.header_bytes..]
    }

    /// Whether its checksum holds: its end would take it.
    pub fn is_intact(&self) -> bool {
        let tcp = &self.packet[self.tcp_at..];
        checksum(&[&pseudo_header(self.from.ip(), self.to.ip(), TCP, tcp.len()), tcp]) == 0
    }

    /// The packet without its bytes: nothing but what it acknowledges. A packet that carries nothing stays as it was.
    pub fn bare_ack(&self) -> Vec<u8> {
        let mut bare = self.packet[..self.tcp_at + self.header_bytes].to_vec();
        let is_bare = self.payload_bytes == 0 && self.flags.0 & (flag::FIN | flag::URG) == 0;
        if is_bare {
            return bare;
        }
        let (ip, tcp) = bare.split_at_mut(self.tcp_at);
        tcp[FLAGS_AT] &= !(flag::FIN | flag::PSH | flag::URG);
        tcp[URGENT_AT..HEADER_BYTES].fill(0);
        tcp[CHECKSUM_AT..URGENT_AT].fill(0);
        let pseudo = pseudo_header(self.from.ip(), self.to.ip(), TCP, tcp.len());
        let sum = checksum(&[&pseudo, tcp]);
        tcp[CHECKSUM_AT..URGENT_AT].copy_from_slice(&sum.to_be_bytes());
        shorten(ip, self.tcp_at + self.header_bytes);
        bare
    }
}

/// A packet has come one hop further (RFC 1812 section 5.3.1). Its last one is the end's.
pub fn count_hop(packet: &mut [u8]) {
    count_hops(packet, |hops| hops - 1);
}

/// A packet for a socket of this host goes nowhere else. By that it is told from those that came in.
pub fn at_last_hop(mut packet: Vec<u8>) -> Vec<u8> {
    count_hops(&mut packet, |_| 1);
    packet
}

fn count_hops(packet: &mut [u8], left: fn(u8) -> u8) {
    let Some(at) = packet.first().map(|first| if first >> 4 == 6 { IPV6_HOPS_AT } else { IPV4_HOPS_AT })
    else {
        return;
    };
    let Some(hops) = packet.get_mut(at).filter(|hops| **hops > 1) else { return };
    let gone = *hops - left(*hops);
    *hops -= gone;
    if at == IPV4_HOPS_AT
        && let Some(bytes) = packet.get_mut(IPV4_CHECKSUM_AT..IPV4_CHECKSUM_AT + 2)
    {
        // So many less in the first octet of a word (RFC 1624).
        let sum = u32::from(u16::from_be_bytes([bytes[0], bytes[1]])) + (u32::from(gone) << 8);
        bytes.copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
    }
}

/// Tells an IP header how long its packet is.
fn shorten(ip: &mut [u8], bytes: usize) {
    if ip[0] >> 4 == 6 {
        let payload = (bytes - IPV6_HEADER_BYTES) as u16;
        ip[IPV6_LENGTH_AT..IPV6_LENGTH_AT + 2].copy_from_slice(&payload.to_be_bytes());
        return;
    }
    ip[IPV4_LENGTH_AT..IPV4_LENGTH_AT + 2].copy_from_slice(&(bytes as u16).to_be_bytes());
    ip[IPV4_CHECKSUM_AT..IPV4_CHECKSUM_AT + 2].fill(0);
    let sum = checksum(&[ip]);
    ip[IPV4_CHECKSUM_AT..IPV4_CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Acknowledges `acknowledged`, with a window and, where they were agreed on, timestamps (TSval, TSecr).
pub fn ack(
    (from, to): (SocketAddr, SocketAddr),
    sequence: u32,
    acknowledged: u32,
    window: u16,
    timestamps: Option<(u32, u32)>,
) -> Vec<u8> {
    bare((from, to), (sequence, acknowledged), (flag::ACK, window), timestamps)
}

/// A packet that finishes and acknowledges. It has no timestamp: a socket that has heard none yet takes it all the same
/// (RFC 7323 section 3.2 drops such packets, Linux does not).
pub fn fin(ends: (SocketAddr, SocketAddr), sequence: u32, acknowledged: u32, window: u16) -> Vec<u8> {
    bare(ends, (sequence, acknowledged), (flag::FIN | flag::ACK, window), None)
}

fn bare(
    (from, to): (SocketAddr, SocketAddr),
    (sequence, acknowledged): (u32, u32),
    (flags, window): (u8, u16),
    timestamps: Option<(u32, u32)>,
) -> Vec<u8> {
    let mut tcp = vec![0; HEADER_BYTES];
    tcp[0..2].copy_from_slice(&from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    tcp[FLAGS_AT] = flags;
    tcp[14..16].copy_from_slice(&window.to_be_bytes());
    if let Some((value, echo)) = timestamps {
        tcp.extend([1, 1, 8, 10]);
        tcp.extend(value.to_be_bytes());
        tcp.extend(echo.to_be_bytes());
    }
    tcp[12] = ((tcp.len() / 4) as u8) << 4;
    let (from, to) = (from.ip(), to.ip());
    let sum = checksum(&[&pseudo_header(from, to, TCP, tcp.len()), &tcp]);
    tcp[CHECKSUM_AT..URGENT_AT].copy_from_slice(&sum.to_be_bytes());
    ip_packet(from, to, TCP, &tcp)
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(be16(bytes, at)?) << 16 | u32::from(be16(bytes, at + 2)?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub use flag::{ACK, ECE, FIN, RST, SYN, URG};

    /// A segment as an end would send it.
    pub fn segment(
        (from, to): (SocketAddr, SocketAddr),
        flags: u8,
        (sequence, acknowledged): (u32, u32),
        window: u16,
        options: &[u8],
        payload: &[u8],
    ) -> Vec<u8> {
        let mut tcp = vec![0; HEADER_BYTES];
        tcp[0..2].copy_from_slice(&from.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        tcp[FLAGS_AT] = flags;
        tcp[14..16].copy_from_slice(&window.to_be_bytes());
        tcp.extend(options);
        tcp.resize(tcp.len().next_multiple_of(4), 0);
        tcp[12] = ((tcp.len() / 4) as u8) << 4;
        tcp.extend(payload);
        let sum = checksum(&[&pseudo_header(from.ip(), to.ip(), TCP, tcp.len()), &tcp]);
        tcp[CHECKSUM_AT..URGENT_AT].copy_from_slice(&sum.to_be_bytes());
        ip_packet(from.ip(), to.ip(), TCP, &tcp)
    }

    pub fn pairs() -> [(SocketAddr, SocketAddr); 2] {
        [("192.0.2.1:40000", "198.51.100.7:80"), ("[2001:db8::1]:40000", "[2001:db8:1::7]:80")]
            .map(|(client, server)| (client.parse().unwrap(), server.parse().unwrap()))
    }

    fn checksums_hold(packet: &[u8]) -> bool {
        let found = Segment::parse(packet).unwrap();
        let pseudo = pseudo_header(found.from.ip(), found.to.ip(), TCP, packet.len() - found.tcp_at);
        let is_v6 = packet[0] >> 4 == 6;
        checksum(&[&pseudo, &packet[found.tcp_at..]]) == 0 && (is_v6 || checksum(&[&packet[..20]]) == 0)
    }

    const LINUX: [u8; 20] = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7];

    #[test]
    fn a_syn_says_what_its_sender_offers() {
        for pair in pairs() {
            let packet = segment(pair, SYN, (7, 0), 64240, &LINUX, b"");
            let found = Segment::parse(&packet).unwrap();
            assert_eq!((found.from, found.to), pair);
            assert!(found.flags.is_syn() && !found.has_ecn());
            let options = Options {
                mss_bytes: Some(1460),
                scale: Some(7),
                sack: true,
                timestamp: Some(9),
                ..Options::default()
            };
            assert_eq!((found.sequence, found.window, found.options), (7, 64240, options));
        }
    }

    #[test]
    fn options_that_nobody_knows_or_that_are_cut_off_are_told() {
        let of = |bytes: &[u8]| Options::parse(bytes);
        assert_eq!(of(&[]), Options::default());
        assert_eq!(of(&[1, 1, 0, 99]), Options::default(), "what follows the end is no option");
        for bytes in
            [&[99, 2][..], &[2], &[2, 4, 5], &[2, 0], &[2, 1], &[3, 4, 1, 1], &[8, 4, 0, 0], &[254, 4, 1, 2]]
        {
            assert!(of(bytes).unknown, "{bytes:?}");
        }
        assert!(of(&[30, 4, 0, 0]).mptcp);
        assert_eq!(of(&[3, 3, 200]).scale, Some(MOST_SCALE));
    }

    #[test]
    fn what_is_left_of_a_packet_without_its_bytes_is_a_packet() {
        for pair in pairs() {
            let whole = segment(
                pair,
                ACK | flag::PSH | flag::FIN,
                (8, 9),
                500,
                &[1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6],
                b"GET /",
            );
            let found = Segment::parse(&whole).unwrap();
            assert_eq!(found.payload_bytes, 5);
            let bare = found.bare_ack();
            assert!(checksums_hold(&bare));
            let left = Segment::parse(&bare).unwrap();
            assert!(left.flags.is_ack() && left.flags.0 == ACK);
            assert_eq!((left.payload_bytes, left.sequence, left.acknowledged), (0, 8, 9));
            assert_eq!(left.options.timestamp, Some(5));
            assert_eq!(left.bare_ack(), bare, "it is as it was");
        }
    }

    #[test]
    fn every_hop_is_counted_and_checksums_hold() {
        for pair in pairs() {
            let mut packet = segment(pair, ACK, (1, 2), 3, &[], b"x");
            let at = if pair.0.is_ipv6() { IPV6_HOPS_AT } else { IPV4_HOPS_AT };
            let first = packet[at];
            for gone in 1..first {
                count_hop(&mut packet);
                assert_eq!(packet[at], first - gone);
                assert!(checksums_hold(&packet), "{gone} hops");
            }
            count_hop(&mut packet);
            assert_eq!(packet[at], 1, "who is next has no say in whether it ends there");
            let last = at_last_hop(ack(pair, 1, 2, 3, None));
            assert!(last[at] == 1 && checksums_hold(&last));
        }
        count_hop(&mut []);
        count_hop(&mut [0x45; 8]);
    }

    #[test]
    fn an_acknowledgement_is_read_back() {
        for pair in pairs() {
            for timestamps in [None, Some((11, 12))] {
                let packet = ack(pair, 1, u32::MAX, 77, timestamps);
                assert!(checksums_hold(&packet));
                let found = Segment::parse(&packet).unwrap();
                assert!(found.flags.is_ack());
                assert_eq!((found.sequence, found.acknowledged, found.window), (1, u32::MAX, 77));
                assert_eq!(found.options.timestamp, timestamps.map(|(value, _)| value));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), version in prop::sample::select(vec![0x45u8, 0x46, 0x60]),
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() { *first = version; }
            if let Some(found) = Segment::parse(&bytes) {
                let bare = found.bare_ack();
                prop_assert_eq!(Segment::parse(&bare).map(|left| left.payload_bytes), Some(0));
            }
        }

        #[test]
        fn any_options_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Options::parse(&bytes);
        }
    }
}
