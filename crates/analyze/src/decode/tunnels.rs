//! What may stand between a frame and IP, and between IP and TCP, one header at a time; the caller bounds how many.

use super::{ETHERNET, IPV4, IPV6, Inner, Protocol, Unfollowed, be16};

/// Port of its servers and relays; clients have any.
const TEREDO: u16 = 3544;
const PPP_IN_GRE: u16 = 0x880b;
const MPLS: [u16; 2] = [0x8847, 0x8848];
const PPPOE: u16 = 0x8864;
const TRANSPARENT_BRIDGING: u16 = 0x6558;
const ERSPAN: [u16; 2] = [0x88be, 0x22eb];
/// Types below this are lengths (IEEE 802.3), behind which IEEE 802.2 says what comes.
const LEAST_TYPE: u16 = 0x0600;

const CUT: Unfollowed = Unfollowed::Truncated;

/// What a type of Ethernet leads to.
pub fn ether_type(kind: u16, data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    match kind {
        IPV4 | IPV6 | ETHERNET => Ok((kind, data)),
        kind if MPLS.contains(&kind) => mpls(data),
        PPPOE => ppp(data.get(6..).ok_or(CUT)?),
        kind if kind < LEAST_TYPE => llc(data),
        kind => Err(Unfollowed::Other(Protocol::Ether(kind))),
    }
}

/// What a header below IP leads to that is not Ethernet's own.
pub fn below_ip(kind: u16, data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    match kind {
        PPP_IN_GRE => ppp(data),
        kind if ERSPAN.contains(&kind) => erspan(kind, data),
        kind => ether_type(kind, data),
    }
}

/// What a header above IP leads to.
pub fn above_ip(protocol: u8, data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    match protocol {
        47 => gre(data),
        137 => mpls(data),
        17 => udp(data),
        other => Err(Unfollowed::Other(Protocol::Ip(other))),
    }
}

/// IEEE 802.2, with SNAP (RFC 1042).
pub fn llc(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    match data.first_chunk::<8>() {
        Some([0xaa, 0xaa, 3, _, _, _, high, low]) => {
            let kind = u16::from_be_bytes([*high, *low]);
            // Not back to a length, lest frames of lengths only go round.
            if kind < LEAST_TYPE {
                Err(Unfollowed::Other(Protocol::Llc(0xaa)))
            } else {
                ether_type(kind, &data[8..])
            }
        }
        Some([6, ..]) => Ok((IPV4, &data[3..])),
        Some([service, ..]) => Err(Unfollowed::Other(Protocol::Llc(*service))),
        None => Err(CUT),
    }
}

/// RFC 1661 and 1662, with or without address and control, and with a protocol of one octet.
pub fn ppp(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let data = data.strip_prefix(&[0xff, 3]).unwrap_or(data);
    let first = u16::from(*data.first().ok_or(CUT)?);
    let (kind, inner) =
        if first & 1 == 1 { (first, &data[1..]) } else { (be16(data, 0).ok_or(CUT)?, &data[2..]) };
    match kind {
        0x21 => Ok((IPV4, inner)),
        0x57 => Ok((IPV6, inner)),
        0x281 | 0x283 => mpls(inner),
        kind => Err(Unfollowed::Other(Protocol::Ppp(kind))),
    }
}

/// Labels up to the last; what comes then shows by itself (RFC 3032, 4385).
fn mpls(mut data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    loop {
        let (label, rest) = data.split_first_chunk::<4>().ok_or(CUT)?;
        data = rest;
        if label[2] & 1 == 1 {
            break;
        }
    }
    match data.first().ok_or(CUT)? >> 4 {
        4 => Ok((IPV4, data)),
        6 => Ok((IPV6, data)),
        // A control word, and Ethernet.
        0 => Ok((ETHERNET, data.get(4..).ok_or(CUT)?)),
        _ => Ok((ETHERNET, data)),
    }
}

/// GRE (RFC 2784, 2890), and PPTP's (RFC 2637).
fn gre(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let (flags, kind) = be16(data, 0).zip(be16(data, 2)).ok_or(CUT)?;
    // Routing (deprecated) has no length that can be passed over.
    if flags & 0x4000 != 0 || flags & 7 > 1 {
        return Err(Unfollowed::Other(Protocol::Ip(47)));
    }
    let optional = [0x8000, 0x2000, 0x1000, if flags & 7 == 1 { 0x80 } else { 0 }];
    let count = optional.iter().filter(|bit| flags & **bit != 0).count();
    let inner = data.get(4 + 4 * count..).ok_or(CUT)?;
    match kind {
        // Type I has no header of its own, and no sequence numbers.
        0x88be if flags & 0x1000 == 0 => Ok((ETHERNET, inner)),
        TRANSPARENT_BRIDGING => Ok((ETHERNET, inner)),
        kind => Ok((kind, inner)),
    }
}

/// ERSPAN types II and III (draft-foschiano-erspan).
fn erspan(kind: u16, data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let more = if kind == ERSPAN[1] && data.get(11).ok_or(CUT)? & 1 == 1 { 8 } else { 0 };
    let header = if kind == ERSPAN[1] { 12 + more } else { 8 };
    Ok((ETHERNET, data.get(header..).ok_or(CUT)?))
}

fn udp(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let (from, to) = be16(data, 0).zip(be16(data, 2)).ok_or(CUT)?;
    let other = Err(Unfollowed::Other(Protocol::Udp(from.min(to))));
    let Some(inner) = data.get(8..) else { return other };
    let found = match to {
        _ if [from, to].contains(&TEREDO) => teredo(inner),
        // The port that IANA gave, and Linux's.
        4789 | 8472 => vxlan(inner),
        4790 => vxlan_gpe(inner),
        6081 => geneve(inner),
        6635 => return mpls(inner),
        2152 => gtp(inner),
        4341 => lisp(inner),
        1701 => return l2tp(inner).unwrap_or(other),
        _ => None,
    };
    found.map_or(other, Ok)
}

/// RFC 4380, 5.1.1: IPv6, behind an authentication and an origin where they are there.
fn teredo(mut data: &[u8]) -> Option<Inner<'_>> {
    if let [0, 1, name, value, ..] = data {
        // Nonce and confirmation are nine octets.
        data = data.get(4 + usize::from(*name) + usize::from(*value) + 9..)?;
    }
    if data.starts_with(&[0, 0]) {
        data = data.get(8..)?;
    }
    (data.first()? >> 4 == 6).then_some((IPV6, data))
}

/// RFC 7348.
fn vxlan(data: &[u8]) -> Option<Inner<'_>> {
    (data.first()? & 8 != 0).then_some((ETHERNET, data.get(8..)?))
}

/// With the protocol named (draft-ietf-nvo3-vxlan-gpe).
fn vxlan_gpe(data: &[u8]) -> Option<Inner<'_>> {
    let kind = [None, Some(IPV4), Some(IPV6), Some(ETHERNET)].get(usize::from(*data.get(3)?)).copied()??;
    Some((kind, data.get(8..)?))
}

/// RFC 9300, 5.1: a header of eight octets, and IP of either version.
fn lisp(data: &[u8]) -> Option<Inner<'_>> {
    of_version(data.get(8..)?)
}

/// IP, whose first four bits are its version.
fn of_version(data: &[u8]) -> Option<Inner<'_>> {
    match data.first()? >> 4 {
        4 => Some((IPV4, data)),
        6 => Some((IPV6, data)),
        _ => None,
    }
}

/// RFC 8926.
fn geneve(data: &[u8]) -> Option<Inner<'_>> {
    let options = 4 * usize::from(data.first()? & 0x3f);
    let kind = be16(data, 2)?;
    (data[0] >> 6 == 0).then_some((kind, data.get(8 + options..)?))
}

/// RFC 2661, 3.1: data, whose length, numbers and padding may be there; none if it is control.
fn l2tp(data: &[u8]) -> Option<Result<Inner<'_>, Unfollowed>> {
    let flags = be16(data, 0)?;
    if flags & 0x800f != 2 {
        return None;
    }
    let optional = [(0x4000, 2), (0x0800, 4)];
    let mut at: usize =
        6 + optional.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, octets)| octets).sum::<usize>();
    if flags & 0x0200 != 0 {
        at += 2 + usize::from(be16(data, at)?);
    }
    data.get(at..).map(ppp)
}

/// 3GPP TS 29.281, 5.1: a packet of a user.
fn gtp(data: &[u8]) -> Option<Inner<'_>> {
    let flags = *data.first()?;
    if flags >> 5 != 1 || *data.get(1)? != 0xff {
        return None;
    }
    let mut at = if flags & 7 == 0 { 8 } else { 12 };
    let mut next = if flags & 4 == 0 { 0 } else { *data.get(11)? };
    // Each is at least four octets long.
    while next != 0 {
        let length = 4 * usize::from(*data.get(at)?).max(1);
        next = *data.get(at + length - 1)?;
        at += length;
    }
    of_version(data.get(at..)?)
}
