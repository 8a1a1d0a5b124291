//! Link types other than Ethernet, Linux's cooked ones, loopback and raw IP.

use super::protocol::Frame;
use super::{IPV4, IPV6, Inner, LinkType, Protocol, Unfollowed, be16, be32, raw, tunnels};

const CUT: Unfollowed = Unfollowed::Truncated;

/// A number of the host that captured, which was a small-endian one.
fn le16(data: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(data.get(at..at + 2)?.try_into().ok()?)))
}

fn le32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// What a frame of such a link carries.
pub fn other(link: LinkType, data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let behind = |header: usize| data.get(header..).ok_or(CUT);
    match link.0 {
        6 => tunnels::llc(behind(14)?),
        8 => raw(behind(16)?),
        15 => raw(behind(24)?),
        9 | 50 => tunnels::ppp(data),
        // Which way it went, and then the link's own header.
        166 | 204 => tunnels::ppp(behind(1)?),
        205 => tunnels::ether_type(be16(data, 3).ok_or(CUT)?, behind(5)?),
        206 => frame_relay(behind(1)?),
        51 => tunnels::ppp(behind(6)?),
        10 => tunnels::llc(behind(13)?),
        11 | 100 | 106 => tunnels::llc(data),
        122 => tunnels::llc(behind(16)?),
        138 => tunnels::ether_type(be16(data, 16).ok_or(CUT)?, behind(18)?),
        240 => super::ethernet(behind(4)?),
        274 => super::ethernet(behind(8)?),
        104 => tunnels::ether_type(be16(data, 2).ok_or(CUT)?, behind(4)?),
        105 => wireless(data),
        107 => frame_relay(data),
        109 => raw(behind(12)?),
        117 => raw(behind(usize::from(*data.first().ok_or(CUT)?).next_multiple_of(4))?),
        119 | 163 => wireless(behind(prism(data)?)?),
        123 => tunnels::llc(behind(4)?),
        127 => wireless(behind(le16(data, 2).ok_or(CUT)?)?),
        192 => ppi(data),
        239 => nflog(data),
        242 => tunnels::ether_type(be16(data, 40).ok_or(CUT)?, behind(44)?),
        258 => pktap(data),
        _ => Err(Unfollowed::UnknownLink(link)),
    }
}

/// A link within another: not more than that.
fn within(link: u32, data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    match link {
        192 | 258 => Err(Unfollowed::UnknownLink(LinkType(link))),
        _ => super::link(LinkType(link), data),
    }
}

/// Per-packet information: a header that names the link behind it.
fn ppi(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let (length, link) = le16(data, 2).zip(le32(data, 4)).ok_or(CUT)?;
    within(link, data.get(length..).ok_or(CUT)?)
}

/// Darwin's header, which names the link behind it.
fn pktap(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let (length, link) = le32(data, 0).zip(le32(data, 8)).ok_or(CUT)?;
    within(link, data.get(length as usize..).ok_or(CUT)?)
}

/// Netfilter's log: values of types, of which the ninth is the packet.
fn nflog(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let mut rest = data.get(4..).ok_or(CUT)?;
    loop {
        let (length, kind) = le16(rest, 0).zip(le16(rest, 2)).ok_or(CUT)?;
        if length < 4 {
            return Err(Unfollowed::Malformed);
        }
        if kind == 9 {
            return raw(rest.get(4..).ok_or(CUT)?);
        }
        rest = rest.get(length.next_multiple_of(4)..).ok_or(CUT)?;
    }
}

/// Length of the header of Prism cards, or of the one that came after it.
fn prism(data: &[u8]) -> Result<usize, Unfollowed> {
    match be32(data, 0).ok_or(CUT)? {
        0x8021_1001 | 0x8021_1002 => Ok(be32(data, 4).ok_or(CUT)? as usize),
        _ => Ok(144),
    }
}

/// RFC 2427: two octets of address, then what comes.
fn frame_relay(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let behind = |at: usize| data.get(at..).ok_or(CUT);
    let at = if data.get(2) == Some(&3) {
        3
    } else {
        return tunnels::ether_type(be16(data, 2).ok_or(CUT)?, behind(4)?);
    };
    let at = at + usize::from(data.get(at) == Some(&0));
    match data.get(at).ok_or(CUT)? {
        0xcc => Ok((IPV4, behind(at + 1)?)),
        0x8e => Ok((IPV6, behind(at + 1)?)),
        0x80 => tunnels::ether_type(be16(data, at + 4).ok_or(CUT)?, behind(at + 6)?),
        service => Err(Unfollowed::Other(Protocol::Llc(*service))),
    }
}

/// IEEE 802.11: data frames that are not encrypted.
fn wireless(data: &[u8]) -> Result<Inner<'_>, Unfollowed> {
    let (control, flags) = (*data.first().ok_or(CUT)?, *data.get(1).ok_or(CUT)?);
    let (kind, subtype) = (control >> 2 & 3, control >> 4);
    match kind {
        2 if flags & 0x40 != 0 => {
            return Err(Unfollowed::Other(Protocol::Wireless(Frame::Encrypted)));
        }
        2 if subtype & 4 == 0 => {}
        2 => return Err(Unfollowed::Other(Protocol::Wireless(Frame::Empty))),
        1 => return Err(Unfollowed::Other(Protocol::Wireless(Frame::Control))),
        _ => return Err(Unfollowed::Other(Protocol::Wireless(Frame::Management))),
    }
    let is_qos = subtype & 8 != 0;
    let more = [(flags & 3 == 3, 6), (is_qos, 2), (is_qos && flags & 0x80 != 0, 4)];
    let header = 24 + more.iter().filter(|(there, _)| *there).map(|(_, octets)| octets).sum::<usize>();
    tunnels::llc(data.get(header..).ok_or(CUT)?)
}

/// Name of a link type that is not read.
pub fn name(link: LinkType) -> String {
    const NAMES: [(u32, &str); 49] = [
        (3, "AX.25"),
        (7, "ARCNET"),
        (16, "PPP of BSD/OS"),
        (99, "Symantec's firewall"),
        (114, "LocalTalk"),
        (129, "ARCNET"),
        (130, "Juniper's"),
        (137, "Juniper's"),
        (139, "SS7 MTP2"),
        (140, "SS7 MTP2"),
        (141, "SS7 MTP3"),
        (142, "SS7 SCCP"),
        (143, "DOCSIS"),
        (144, "IrDA"),
        (147, "a private one (147)"),
        (165, "BACnet MS/TP"),
        (177, "LAPD"),
        (178, "Juniper's PPP"),
        (186, "USB"),
        (187, "Bluetooth"),
        (189, "USB"),
        (190, "CAN"),
        (195, "IEEE 802.15.4"),
        (196, "LIN"),
        (197, "ERF"),
        (201, "Bluetooth"),
        (202, "AX.25"),
        (203, "LAPD"),
        (209, "I2C"),
        (210, "FlexRay"),
        (212, "LIN"),
        (215, "IEEE 802.15.4"),
        (220, "USB"),
        (224, "Fibre Channel"),
        (225, "Fibre Channel"),
        (226, "Solaris' IPNET"),
        (227, "CAN"),
        (230, "IEEE 802.15.4"),
        (235, "DVB"),
        (243, "an MPEG-2 transport stream"),
        (245, "NFC"),
        (247, "InfiniBand"),
        (249, "USB"),
        (251, "Bluetooth Low Energy"),
        (252, "Wireshark's upper layers"),
        (253, "netlink"),
        (270, "Z-Wave"),
        (271, "VPP's dispatch"),
        (283, "IEEE 802.15.4"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == link.0);
    known.map_or_else(|| format!("link type {}", link.0), |(_, name)| (*name).to_owned())
}
