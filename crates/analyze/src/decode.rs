//! From a frame to a TCP segment: whatever stands around IP (`links`), IPv4, IPv6 with its extension headers, and
//! tunnels (`tunnels`) are seen through. Pure; never panics; whatever is cut off is said to be, and what was not looked
//! into is named ([`Protocol`]).

mod checksum;
mod links;
mod protocol;
mod tunnels;

pub use links::name as link_name;
pub use protocol::Protocol;

use crate::{
    capture::{LinkType, Packet},
    segment::{Checksum, FlowKey, Segment, mapped, option},
};

/// Headers of one packet that are looked into: more is an attack, or a loop.
const MAX_LAYERS: usize = 16;
const ETHERNET: u16 = 0x6558;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// IP protocol of an authentication header.
const AUTHENTICATION: u8 = 51;

/// What a packet is. What there is more to say stands in a [`Segment`]: this is small, as there are millions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decoded {
    /// A TCP segment.
    Tcp,
    /// A router's word that a TCP packet is too big; of the segment, key and end are of the packet it quotes.
    TooBig {
        /// The MTU it names, octets; 0 if the router does not say.
        mtu_bytes: u32,
    },
    /// No segment that could be followed.
    Not(Unfollowed),
}

/// Why a packet says nothing of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfollowed {
    /// Not TCP, but this.
    Other(Protocol),
    /// Less was kept than TCP's fixed header needs.
    Truncated,
    /// A later fragment: TCP's header is in the first one.
    Fragment,
    /// A header contradicts itself.
    Malformed,
    /// The file's link type is not known here.
    UnknownLink(LinkType),
}

impl Unfollowed {
    /// What it was, in words.
    pub fn name(&self) -> String {
        match self {
            Unfollowed::Other(protocol) => protocol.to_string(),
            Unfollowed::UnknownLink(link) => format!("{} (a link that is not read)", link_name(*link)),
            Unfollowed::Truncated => "cut off".to_owned(),
            Unfollowed::Fragment => "a later fragment".to_owned(),
            Unfollowed::Malformed => "contradictory".to_owned(),
        }
    }
}

struct Ip<'a> {
    protocol: u8,
    payload: &'a [u8],
    /// Octets the IP header says follow it.
    payload_bytes: usize,
    /// The addresses are those that the checksum covers, and the payload is no fragment.
    is_checkable: bool,
    /// The first fragment of a larger packet.
    is_fragment: bool,
    source: u128,
    destination: u128,
    ttl: u8,
    ecn: u8,
    id: u16,
}

impl<'a> Ip<'a> {
    /// Length of the authentication header that the payload begins with (RFC 4302, 2.2).
    fn authentication_bytes(&self) -> Result<usize, Unfollowed> {
        Ok(8 + 4 * usize::from(*self.payload.get(1).ok_or(Unfollowed::Truncated)?))
    }

    /// What stands behind a header of this length, whose first octet names it.
    fn behind(self, length: usize) -> Result<Ip<'a>, Unfollowed> {
        Ok(Ip {
            protocol: *self.payload.first().ok_or(Unfollowed::Truncated)?,
            payload: self.payload.get(length..).ok_or(Unfollowed::Truncated)?,
            payload_bytes: self.payload_bytes.checked_sub(length).ok_or(Unfollowed::Malformed)?,
            ..self
        })
    }
}

/// Reads the headers of a packet. A TCP segment is written to `into`, all of it but the SACK blocks that it does not
/// have.
pub fn decode(packet: &Packet, index: u64, into: &mut Segment) -> Decoded {
    let on_wire = (packet.original_bytes as usize).max(packet.data.len());
    let decoded = match usual(packet.link, packet.data, into) {
        Some(()) => Decoded::Tcp,
        None => match plain(packet.link, packet.data, on_wire) {
            Some(ip) => tcp(&ip, into),
            None => layered(packet.link, packet.data, on_wire, into),
        },
    };
    if decoded == Decoded::Tcp {
        (into.time_ns, into.index) = (packet.time_ns, index);
    }
    decoded
}

/// TCP with timestamps and nothing else (RFC 7323, appendix A) in IPv4 without options in Ethernet: what nearly every
/// packet is, with every field at its place.
#[inline(always)]
pub(crate) fn usual(link: LinkType, frame: &[u8], into: &mut Segment) -> Option<()> {
    let header = frame.first_chunk::<66>()?;
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let is_tcp = half(12) == IPV4 && header[14] == 0x45 && header[23] == 6 && half(20) & 0x3fff == 0;
    if link.0 != 1 || !is_tcp || header[46] >> 4 != 8 || word(54) != 0x0101_080a {
        return None;
    }
    // Where the length is left 0, there is less.
    let total = usize::from(half(16));
    into.payload_bytes = total.checked_sub(20 + 32)? as u32;
    (into.key, into.end) = FlowKey::of_ipv4((word(26), half(34)), (word(30), half(36)));
    (into.sequence, into.acknowledgement) = (word(38), word(42));
    (into.flags, into.window) = (half(46) & 0x1ff, half(48));
    (into.ip_id, into.ttl, into.ecn) = (half(18), header[22], header[15] & 3);
    (into.ts_value, into.ts_echo) = (word(58), word(62));
    (into.options, into.sack_count) = (option::TIMESTAMPS, 0);
    (into.mss_bytes, into.window_scale) = (0, 0);
    into.checksum = match frame.get(34..14 + total) {
        Some(whole) => checksum::judge(u64::from(word(26).to_be()) + u64::from(word(30).to_be()), whole),
        None => Checksum::Unchecked,
    };
    Some(())
}

/// TCP in IPv4 without options in Ethernet.
#[inline(always)]
fn plain(link: LinkType, frame: &[u8], on_wire: usize) -> Option<Ip<'_>> {
    let header = frame.first_chunk::<34>()?;
    let is_plain = link.0 == 1 && header[12..15] == [8, 0, 0x45] && header[23] == 6;
    if is_plain { ipv4(&frame[14..], on_wire - 14).ok() } else { None }
}

/// Whatever stands around IP, and around TCP.
#[cold]
fn layered(kind: LinkType, frame: &[u8], frame_on_wire: usize, into: &mut Segment) -> Decoded {
    let (mut kind, mut data) = match link(kind, frame) {
        Ok(found) => found,
        Err(why) => return Decoded::Not(why),
    };
    for _ in 0..MAX_LAYERS {
        let on_wire = frame_on_wire - (frame.len() - data.len());
        let ip = match kind {
            IPV4 => ipv4(data, on_wire).and_then(authenticated),
            IPV6 => ipv6(data, on_wire),
            ETHERNET => match ethernet(data) {
                Ok(inner) => {
                    (kind, data) = inner;
                    continue;
                }
                Err(why) => return Decoded::Not(why),
            },
            other => match tunnels::below_ip(other, data) {
                Ok(inner) => {
                    (kind, data) = inner;
                    continue;
                }
                Err(why) => return Decoded::Not(why),
            },
        };
        let ip = match ip {
            Ok(ip) => ip,
            Err(why) => return Decoded::Not(why),
        };
        (kind, data) = match ip.protocol {
            6 => return tcp(&ip, into),
            4 => (IPV4, ip.payload),
            41 => (IPV6, ip.payload),
            1 | 58 => return too_big(&ip, into),
            other => match tunnels::above_ip(other, ip.payload) {
                Ok(inner) => inner,
                Err(why) => return Decoded::Not(why),
            },
        };
    }
    Decoded::Not(Unfollowed::Malformed)
}

type Inner<'a> = (u16, &'a [u8]);

#[inline]
fn link(link: LinkType, data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let cooked = |kind: usize, header: usize| {
        let kind = be16(data, kind).ok_or(Unfollowed::Truncated)?;
        vlan(kind, data.get(header..).ok_or(Unfollowed::Truncated)?)
    };
    match link.0 {
        1 => ethernet(data),
        113 => cooked(14, 16),
        276 => cooked(0, 20),
        12 | 14 | 101 => raw(data),
        228 => Ok((IPV4, data)),
        229 => Ok((IPV6, data)),
        // The family number before the packet differs between systems and byte orders; the IP version does not.
        0 | 108 => raw(data.get(4..).ok_or(Unfollowed::Truncated)?),
        _ => links::other(link, data),
    }
}

fn raw(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    match data.first().ok_or(Unfollowed::Truncated)? >> 4 {
        4 => Ok((IPV4, data)),
        6 => Ok((IPV6, data)),
        _ => Err(Unfollowed::Other(Protocol::NotIp)),
    }
}

#[inline]
fn ethernet(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let kind = be16(data, 12).ok_or(Unfollowed::Truncated)?;
    let inner = &data[14..];
    if kind == IPV4 || kind == IPV6 { Ok((kind, inner)) } else { vlan(kind, inner) }
}

/// Passes over 802.1Q and 802.1ad tags.
fn vlan(mut kind: u16, mut data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    for _ in 0..MAX_LAYERS {
        if !matches!(kind, 0x8100 | 0x88a8 | 0x9100) {
            return tunnels::ether_type(kind, data);
        }
        kind = be16(data, 2).ok_or(Unfollowed::Truncated)?;
        data = &data[4..];
    }
    Err(Unfollowed::Malformed)
}

#[inline(always)]
fn ipv4(data: &[u8], on_wire: usize) -> Result<Ip<'_>, Unfollowed> {
    let Some(header) = data.first_chunk::<20>() else { return Err(Unfollowed::Truncated) };
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return Err(Unfollowed::Malformed);
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    // The first one has the header of TCP.
    if fragment & 0x1fff != 0 {
        return Err(Unfollowed::Fragment);
    }
    // Frames above 64 KiB (BIG TCP) and some offloads leave the length 0.
    let total = match usize::from(u16::from_be_bytes([header[2], header[3]])) {
        0 => on_wire,
        total => total,
    };
    let address =
        |at: usize| mapped(u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    Ok(Ip {
        protocol: header[9],
        payload: data.get(length..).ok_or(Unfollowed::Truncated)?,
        payload_bytes: total.checked_sub(length).ok_or(Unfollowed::Malformed)?,
        // An option may name another destination; of a first fragment, the rest is elsewhere.
        is_checkable: length == 20 && fragment & 0x2000 == 0,
        is_fragment: fragment & 0x2000 != 0,
        source: address(12),
        destination: address(16),
        ttl: header[8],
        ecn: header[1] & 3,
        id: u16::from_be_bytes([header[4], header[5]]),
    })
}

fn ipv6(data: &[u8], on_wire: usize) -> Result<Ip<'_>, Unfollowed> {
    let Some(header) = data.first_chunk::<40>() else { return Err(Unfollowed::Truncated) };
    if header[0] >> 4 != 6 {
        return Err(Unfollowed::Malformed);
    }
    let payload_bytes = match usize::from(u16::from_be_bytes([header[4], header[5]])) {
        // A jumbogram (RFC 2675), or a frame above 64 KiB that has no such option.
        0 => on_wire.saturating_sub(40),
        length => length,
    };
    let address =
        |at: usize| header[at..at + 16].iter().fold(0u128, |all, octet| all << 8 | u128::from(*octet));
    let ip = Ip {
        protocol: header[6],
        payload: &data[40..],
        payload_bytes,
        is_checkable: true,
        is_fragment: false,
        source: address(8),
        destination: address(24),
        ttl: header[7],
        ecn: header[1] >> 4 & 3,
        id: 0,
    };
    extensions(ip)
}

/// Passes over IPv4's authentication headers (RFC 4302).
fn authenticated(mut ip: Ip<'_>) -> Result<Ip<'_>, Unfollowed> {
    for _ in 0..MAX_LAYERS {
        if ip.protocol != AUTHENTICATION {
            return Ok(ip);
        }
        let length = ip.authentication_bytes()?;
        ip = ip.behind(length)?;
    }
    Err(Unfollowed::Malformed)
}

/// Passes over IPv6's extension headers.
fn extensions(mut ip: Ip<'_>) -> Result<Ip<'_>, Unfollowed> {
    for _ in 0..MAX_LAYERS {
        let length = match ip.protocol {
            0 | 43 | 60 | 135 | 139 | 140 => {
                8 + 8 * usize::from(*ip.payload.get(1).ok_or(Unfollowed::Truncated)?)
            }
            AUTHENTICATION => ip.authentication_bytes()?,
            44 => {
                let fragment = be16(ip.payload, 2).ok_or(Unfollowed::Truncated)?;
                if fragment & 0xfff8 != 0 {
                    return Err(Unfollowed::Fragment);
                }
                ip.is_checkable &= fragment & 1 == 0;
                ip.is_fragment = fragment & 1 == 1;
                8
            }
            _ => return Ok(ip),
        };
        // The destination may be another one at the end.
        ip.is_checkable &= ip.protocol != 43;
        ip = ip.behind(length)?;
    }
    Err(Unfollowed::Malformed)
}

/// ICMP "fragmentation needed" (RFC 1191) and ICMPv6 "packet too big" (RFC 8201).
#[cold]
fn too_big(ip: &Ip<'_>, into: &mut Segment) -> Decoded {
    let other = Decoded::Not(Unfollowed::Other(Protocol::Ip(ip.protocol)));
    let (kind, code) = match (ip.payload.first(), ip.payload.get(1)) {
        (Some(kind), Some(code)) => (*kind, *code),
        _ => return other,
    };
    let quoted = ip.payload.get(8..).unwrap_or_default();
    let (mtu_bytes, quoted) = match (ip.protocol, kind, code) {
        (1, 3, 4) => {
            let quoted = ipv4(quoted, quoted.len()).and_then(authenticated);
            (be16(ip.payload, 6).map_or(0, u32::from), quoted)
        }
        (58, 2, _) => (be32(ip.payload, 4).unwrap_or(0), ipv6(quoted, quoted.len())),
        _ => return other,
    };
    let Ok(quoted) = quoted else { return other };
    match (quoted.protocol, be16(quoted.payload, 0), be16(quoted.payload, 2)) {
        (6, Some(from), Some(to)) => {
            (into.key, into.end) = FlowKey::of((quoted.source, from), (quoted.destination, to));
            Decoded::TooBig { mtu_bytes }
        }
        _ => other,
    }
}

#[inline(always)]
fn tcp(ip: &Ip<'_>, into: &mut Segment) -> Decoded {
    // Up to the window; the urgent pointer says nothing here.
    let Some(header) = ip.payload.first_chunk::<16>() else { return Decoded::Not(Unfollowed::Truncated) };
    let length = usize::from(header[12] >> 4) * 4;
    if length < 20 || ip.payload_bytes < length {
        return Decoded::Not(Unfollowed::Malformed);
    }
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    (into.key, into.end) = FlowKey::of((ip.source, half(0)), (ip.destination, half(2)));
    into.flags = half(12) & 0x1ff;
    (into.sequence, into.acknowledgement) = (word(4), word(8));
    into.window = half(14);
    (into.ip_id, into.ttl, into.ecn) = (ip.id, ip.ttl, ip.ecn);
    into.payload_bytes = (ip.payload_bytes - length) as u32;
    (into.options, into.sack_count) = (0, 0);
    (into.ts_value, into.ts_echo) = (0, 0);
    (into.mss_bytes, into.window_scale) = (0, 0);
    into.checksum = checksum_of(ip);
    if ip.payload.len() < length {
        into.options |= option::CUT;
    }
    if ip.is_fragment {
        into.options |= option::FRAGMENT;
    }
    if length > 20 {
        options(into, &ip.payload[20.min(ip.payload.len())..length.min(ip.payload.len())]);
    }
    Decoded::Tcp
}

#[inline]
fn checksum_of(ip: &Ip<'_>) -> Checksum {
    match ip.payload.get(..ip.payload_bytes) {
        Some(whole) if ip.is_checkable && whole.len() <= usize::from(u16::MAX) => {
            checksum::judge(checksum::address(ip.source) + checksum::address(ip.destination), whole)
        }
        _ => Checksum::Unchecked,
    }
}

/// Reads TCP's options as far as they were kept and make sense.
#[inline(always)]
fn options(segment: &mut Segment, mut data: &[u8]) {
    // What nearly every segment of a connection with timestamps carries (RFC 7323, appendix A).
    if let Some((first, rest)) = data.split_first_chunk::<12>()
        && first[..4] == [1, 1, 8, 10]
    {
        timestamps(segment, &first[4..]);
        data = rest;
    }
    while let Some(kind) = data.first() {
        let length = match kind {
            0 => return,
            1 => 1,
            _ => match data.get(1) {
                Some(length) if *length >= 2 => usize::from(*length),
                _ => return,
            },
        };
        let Some(whole) = data.get(..length) else { return };
        if length > 1 {
            one_option(segment, *kind, &whole[2..]);
        }
        data = &data[length..];
    }
}

#[inline(always)]
fn timestamps(segment: &mut Segment, value: &[u8]) {
    segment.options |= option::TIMESTAMPS;
    (segment.ts_value, segment.ts_echo) = (be32(value, 0).unwrap_or(0), be32(value, 4).unwrap_or(0));
}

#[inline(never)]
fn one_option(segment: &mut Segment, kind: u8, value: &[u8]) {
    match (kind, value.len()) {
        (2, 2) => {
            segment.options |= option::MSS;
            segment.mss_bytes = u16::from_be_bytes([value[0], value[1]]);
        }
        (3, 1) => {
            segment.options |= option::WINDOW_SCALE;
            // RFC 7323, 2.3: more than 14 is to be taken as 14.
            segment.window_scale = value[0].min(14);
        }
        (4, 0) => segment.options |= option::SACK_PERMITTED,
        (5, 8 | 16 | 24 | 32) => {
            segment.sack_count = (value.len() / 8) as u8;
            for (block, octets) in segment.sack.iter_mut().zip(value.chunks_exact(8)) {
                *block = (be32(octets, 0).unwrap_or(0), be32(octets, 4).unwrap_or(0));
            }
        }
        (8, 8) => timestamps(segment, value),
        (34, _) => segment.options |= option::FAST_OPEN,
        (172 | 174, _) => segment.options |= option::ACCURATE_ECN,
        _ => {}
    }
}

#[inline]
fn be16(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

#[inline]
fn be32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ethernet, IPv4 and TCP, and nothing remarkable about them.
    fn frame(ends: [u8; 12], fields: [u8; 12], options: &[u8]) -> Vec<u8> {
        let header = 20 + options.len();
        let mut frame = vec![0; 14];
        frame[12..].copy_from_slice(&[8, 0]);
        frame.extend([0x45, 0, 5, 220, fields[0], fields[1], 0x40, 0, 64, 6, 0, 0]);
        frame.extend(ends);
        frame.extend(&fields[2..10]);
        frame.extend([(header / 4 * 16) as u8, 0x10, fields[10], fields[11], 0, 0, 0, 0]);
        frame.extend(options);
        frame
    }

    fn options() -> impl Strategy<Value = Vec<u8>> {
        let timestamps = vec![1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        let sack = [&[1, 1, 5, 10][..], &[9; 8]].concat();
        let both = [&timestamps[..], &sack].concat();
        prop_oneof![Just(vec![]), Just(timestamps), Just(sack), Just(both), Just(vec![2, 4, 5, 180])]
    }

    proptest! {
        #![proptest_config(crate::cases::cases(4096))]

        #[test]
        fn the_short_way_through_plain_headers_finds_what_the_long_way_finds(
            ends in any::<[u8; 12]>(),
            fields in any::<[u8; 12]>(),
            options in options(),
            changes in prop_oneof![
                Just(vec![]),
                proptest::collection::vec((12usize..48, any::<u8>()), 1..3),
            ],
            cut in prop_oneof![Just(usize::MAX), 0usize..80],
            link in prop_oneof![9 => Just(1), 1 => Just(101)],
        ) {
            let mut data = frame(ends, fields, &options);
            for (at, octet) in &changes {
                data[*at] = *octet;
            }
            data.truncate(cut);
            let packet = Packet { time_ns: 7, original_bytes: 1514, data: &data, link: LinkType(link), direction: None };
            let is_whole = changes.is_empty() && cut > 80 && link == 1;
            let on_wire = 1514.max(data.len());
            prop_assert!(!is_whole || plain(packet.link, &data, on_wire).is_some());
            let (mut short, mut long) = (Segment::default(), Segment::default());
            let decoded = decode(&packet, 3, &mut short);
            prop_assert_eq!(decoded, layered(packet.link, &data, on_wire, &mut long));
            let (time_ns, index) = if decoded == Decoded::Tcp { (7, 3) } else { (0, 0) };
            prop_assert_eq!(short, Segment { time_ns, index, ..long });
        }
    }
}
