//! Packets of a held handshake: the SYN that is read, the refusals that are written. Bytes in, bytes out.

use super::Pair;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) const TCP: u8 = 6;
const ICMPV6: u8 = 58;
const TTL: u8 = 64;
/// Flags of a TCP header (RFC 9293 section 3.1, RFC 3168 section 6.1).
pub(crate) mod flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
    /// Flags that tell what a segment is for.
    pub const KIND: u8 = FIN | SYN | RST | ACK;
}
/// What an ICMPv6 error may quote within the smallest MTU (RFC 4443 section 2.4); a SYN is far shorter.
const QUOTED_BYTES: usize = 1232;
/// Extension headers walked before a packet counts as not understood.
const EXTENSIONS: usize = 8;

/// A client's SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Syn {
    pub client: SocketAddr,
    pub server: SocketAddr,
    sequence: u32,
    /// Data that came with it (TCP Fast Open).
    payload_bytes: u32,
}

/// Why a server cannot be reached, as ICMP says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Network,
    Host,
    Prohibited,
}

impl Unreachable {
    /// Codes of "destination unreachable", for ICMP (type 3, RFC 1812 section 5.2.7.1) and ICMPv6 (type 1, RFC 4443
    /// section 3.1).
    fn codes(self) -> (u8, u8) {
        match self {
            Unreachable::Network => (0, 0),
            Unreachable::Host => (1, 3),
            Unreachable::Prohibited => (13, 1),
        }
    }
}

impl Syn {
    /// Reads an IP packet; none when it is not a whole SYN without ACK.
    pub fn parse(packet: &[u8]) -> Option<Syn> {
        let (source, destination, tcp) = parse_ip(packet)?;
        let header_bytes = usize::from(tcp.get(12)? >> 4) * 4;
        if header_bytes < 20 || tcp.get(13)? & flag::KIND != flag::SYN {
            return None;
        }
        Some(Syn {
            client: SocketAddr::new(source, be16(tcp, 0)?),
            server: SocketAddr::new(destination, be16(tcp, 2)?),
            sequence: u32::from(be16(tcp, 4)?) << 16 | u32::from(be16(tcp, 6)?),
            payload_bytes: tcp.len().checked_sub(header_bytes)? as u32,
        })
    }

    /// The server's "connection refused" (RFC 9293 section 3.10.7.1).
    pub fn reset(&self) -> Vec<u8> {
        let acknowledged = self.sequence.wrapping_add(1).wrapping_add(self.payload_bytes);
        reset(self.server, self.client, 0, Some(acknowledged))
    }

    /// A router's "destination unreachable" about the SYN `quoted`, from one of this host's addresses.
    pub fn unreachable(&self, why: Unreachable, quoted: &[u8], from: IpAddr) -> Vec<u8> {
        let to = self.client.ip();
        let (code_v4, code_v6) = why.codes();
        let mut icmp = if to.is_ipv4() { vec![3, code_v4] } else { vec![1, code_v6] };
        icmp.extend([0; 6]);
        icmp.extend(&quoted[..quoted.len().min(QUOTED_BYTES)]);
        let pseudo = if to.is_ipv4() { Vec::new() } else { pseudo_header(from, to, ICMPV6, icmp.len()) };
        let sum = checksum(&[&pseudo, &icmp]);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        ip_packet(from, to, if to.is_ipv4() { 1 } else { ICMPV6 }, &icmp)
    }
}

/// What a client would send that has given up its SYN after an answer: a reset behind the SYN, whose next sequence
/// number this is. The server forgets the handshake (RFC 9293 section 3.10.7.4).
pub(crate) fn reset_behind_syn((client, server): Pair, sequence: u32) -> Vec<u8> {
    reset(client, server, sequence, None)
}

fn reset(from: SocketAddr, to: SocketAddr, sequence: u32, acknowledged: Option<u32>) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[0..2].copy_from_slice(&from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&acknowledged.unwrap_or(0).to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = if acknowledged.is_some() { flag::RST | flag::ACK } else { flag::RST };
    let (from, to) = (from.ip(), to.ip());
    let sum = checksum(&[&pseudo_header(from, to, TCP, tcp.len()), &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    ip_packet(from, to, TCP, &tcp)
}

type Parsed<'a> = (IpAddr, IpAddr, &'a [u8]);

/// How much of an IP packet is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A packet that is no fragment.
    Whole,
    /// The first of its fragments.
    Beginning,
}

/// Source, destination and TCP segment of a whole IP packet.
pub(crate) fn parse_ip(packet: &[u8]) -> Option<Parsed<'_>> {
    parse_part(packet, Part::Whole)
}

/// Source, destination and TCP segment of an IP packet, or of the first fragment of one.
pub(crate) fn parse_part(packet: &[u8], part: Part) -> Option<Parsed<'_>> {
    match packet.first()? >> 4 {
        4 => parse_v4(packet, part),
        6 => parse_v6(packet, part),
        _ => None,
    }
}

/// Whether a packet is a fragment of a TCP segment's other than its first.
pub(crate) fn is_rest(packet: &[u8]) -> bool {
    let is_v4 = || Some(*packet.get(9)? == TCP && be16(packet, 6)? & 0x1fff != 0);
    let is_v6 =
        || Some(*packet.get(6)? == FRAGMENT && *packet.get(40)? == TCP && be16(packet, 42)? & 0xfff8 != 0);
    match packet.first().map(|first| first >> 4) {
        Some(4) => is_v4().unwrap_or(false),
        Some(6) => is_v6().unwrap_or(false),
        _ => false,
    }
}

fn parse_v4(packet: &[u8], part: Part) -> Option<Parsed<'_>> {
    let header_bytes = usize::from(packet.first()? & 0xf) * 4;
    let packet = packet.get(..usize::from(be16(packet, 2)?))?;
    // More fragments, and the offset.
    let (flags, known) = (be16(packet, 6)? & 0x3fff, if part == Part::Whole { 0 } else { 0x2000 });
    if header_bytes < 20 || *packet.get(9)? != TCP || flags != known {
        return None;
    }
    let address = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok().map(Ipv4Addr::from);
    Some((address(12)?.into(), address(16)?.into(), packet.get(header_bytes..)?))
}

/// The extension header of fragments (RFC 8200, section 4.5).
const FRAGMENT: u8 = 44;

fn parse_v6(packet: &[u8], part: Part) -> Option<Parsed<'_>> {
    let packet = packet.get(..40 + usize::from(be16(packet, 4)?))?;
    let address = |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok().map(Ipv6Addr::from);
    let (source, destination) = (address(8)?.into(), address(24)?.into());
    let (mut next, mut rest) = (*packet.get(6)?, packet.get(40..)?);
    for _ in 0..EXTENSIONS {
        match next {
            TCP => return Some((source, destination, rest)),
            // A whole packet in one fragment (RFC 6946).
            FRAGMENT if be16(rest, 2)? & 0xfff9 == u16::from(part == Part::Beginning) => {
                (next, rest) = (*rest.first()?, rest.get(8..)?)
            }
            // Hop-by-hop and destination options. (With a routing header the destination is not the last one.)
            0 | 60 => {
                let bytes = (usize::from(*rest.get(1)?) + 1) * 8;
                (next, rest) = (*rest.first()?, rest.get(bytes..)?);
            }
            _ => return None,
        }
    }
    None
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

pub(crate) fn ip_packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => packet_v4(from, to, protocol, payload),
        (from, to) => packet_v6(as_v6(from), as_v6(to), protocol, payload),
    }
}

fn packet_v4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    header[6] = 0x40; // don't fragment
    header[8] = TTL;
    header[9] = protocol;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header.extend(payload);
    header
}

fn packet_v6(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((payload.len() as u16).to_be_bytes());
    header.extend([protocol, TTL]);
    header.extend(from.octets());
    header.extend(to.octets());
    header.extend(payload);
    header
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

pub(crate) fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, bytes: usize) -> Vec<u8> {
    let mut header = Vec::with_capacity(40);
    for address in [from, to] {
        match address {
            IpAddr::V4(address) => header.extend(address.octets()),
            IpAddr::V6(address) => header.extend(address.octets()),
        }
    }
    header.extend((bytes as u32).to_be_bytes());
    header.extend([0, 0, 0, protocol]);
    header
}

/// The Internet checksum (RFC 1071); all parts but the last have an even length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let pairs = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 =
        pairs.map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from)).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A SYN as a kernel would send it.
    pub fn syn(client: SocketAddr, server: SocketAddr, sequence: u32) -> Vec<u8> {
        let mut tcp = vec![0; 24];
        tcp[0..2].copy_from_slice(&client.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&server.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[12] = 6 << 4;
        tcp[13] = flag::SYN;
        tcp[20..24].copy_from_slice(&[2, 4, 5, 180]);
        ip_packet(client.ip(), server.ip(), TCP, &tcp)
    }

    fn pairs() -> [(SocketAddr, SocketAddr); 2] {
        [("192.0.2.1:40000", "198.51.100.7:80"), ("[2001:db8::1]:40000", "[2001:db8:1::7]:80")]
            .map(|(client, server)| (client.parse().unwrap(), server.parse().unwrap()))
    }

    #[test]
    fn a_syn_names_its_client_and_its_server() {
        for (client, server) in pairs() {
            let found = Syn::parse(&syn(client, server, 7)).unwrap();
            assert_eq!(
                (found.client, found.server, found.sequence, found.payload_bytes),
                (client, server, 7, 0)
            );
        }
    }

    #[test]
    fn a_fragment_is_no_packet_and_its_first_tells_the_pair() {
        let [(client, server), (client6, server6)] = pairs();
        let mut first = syn(client, server, 7);
        first[6] = 0x20;
        let mut rest = first.clone();
        rest[7] = 1;
        let atomic = |offset_and_more: u16| {
            let mut header = vec![TCP, 0, 0, 0, 0, 0, 0, 1];
            header[2..4].copy_from_slice(&offset_and_more.to_be_bytes());
            header.extend(&syn(client6, server6, 7)[40..]);
            ip_packet(client6.ip(), server6.ip(), FRAGMENT, &header)
        };
        let read = |packet: &[u8], part| parse_part(packet, part).map(|(from, to, _)| (from, to));
        let (v4, v6) = ((client.ip(), server.ip()), (client6.ip(), server6.ip()));
        assert_eq!([Part::Whole, Part::Beginning].map(|part| read(&first, part)), [None, Some(v4)]);
        assert_eq!([Part::Whole, Part::Beginning].map(|part| read(&rest, part)), [None, None]);
        assert_eq!([Part::Whole, Part::Beginning].map(|part| read(&atomic(0), part)), [Some(v6), None]);
        assert_eq!([Part::Whole, Part::Beginning].map(|part| read(&atomic(1), part)), [None, Some(v6)]);
        assert_eq!([Part::Whole, Part::Beginning].map(|part| read(&atomic(8), part)), [None, None]);
        assert_eq!(
            [&first, &rest, &atomic(1), &atomic(8)].map(|packet| is_rest(packet)),
            [false, true, false, true]
        );
    }

    #[test]
    fn a_refusal_acknowledges_the_syn_and_its_checksums_hold() {
        for (client, server) in pairs() {
            let reset = Syn::parse(&syn(client, server, u32::MAX)).unwrap().reset();
            let header_bytes = if client.is_ipv4() { 20 } else { 40 };
            let tcp = &reset[header_bytes..];
            assert_eq!((tcp[13], &tcp[8..12]), (flag::RST | flag::ACK, &[0; 4][..]), "{client}");
            let pseudo = pseudo_header(server.ip(), client.ip(), TCP, tcp.len());
            assert_eq!(checksum(&[&pseudo, tcp]), 0);
            assert!(!client.is_ipv4() || checksum(&[&reset[..20]]) == 0);
        }
    }

    #[test]
    fn an_icmp_error_quotes_the_whole_syn() {
        for (client, server) in pairs() {
            let quoted = syn(client, server, 7);
            let from = server.ip();
            let error = Syn::parse(&quoted).unwrap().unreachable(Unreachable::Host, &quoted, from);
            assert!(error.ends_with(&quoted));
            let header_bytes = if client.is_ipv4() { 20 } else { 40 };
            assert_eq!(error[header_bytes..header_bytes + 2], if client.is_ipv4() { [3, 1] } else { [1, 3] });
        }
    }

    #[test]
    fn what_is_not_a_whole_syn_is_no_syn() {
        for (client, server) in pairs() {
            let good = syn(client, server, 7);
            for length in 0..good.len() {
                assert_eq!(Syn::parse(&good[..length]), None, "{length} bytes");
            }
            let flags = good.len() - 24 + 13;
            for other in [flag::SYN | flag::ACK, flag::SYN | flag::RST, flag::ACK] {
                let mut changed = good.clone();
                changed[flags] = other;
                assert_eq!(Syn::parse(&changed), None);
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
            if let Some(syn) = Syn::parse(&bytes) {
                let _ = (syn.reset(), syn.unreachable(Unreachable::Network, &bytes, syn.client.ip()));
            }
        }
    }
}
