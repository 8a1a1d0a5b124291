//! Names of what is not looked into.

use std::fmt;

/// Frames of IEEE 802.11 that are not looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frame {
    /// Encrypted data.
    Encrypted,
    /// The frame is of the kind for data, and holds none.
    Empty,
    /// Control.
    Control,
    /// Management.
    Management,
}

impl Frame {
    fn name(self) -> &'static str {
        match self {
            Frame::Encrypted => "802.11 data (encrypted)",
            Frame::Empty => "802.11 without data",
            Frame::Control => "802.11 control",
            Frame::Management => "802.11 management",
        }
    }
}

/// What a packet carries instead of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// The frame says nothing of its protocol, and is no IP.
    NotIp,
    /// Row of a table, which keeps no name of what is not looked into.
    Untold,
    /// By the type of Ethernet.
    Ether(u16),
    /// By the number in the header of IP.
    Ip(u8),
    /// UDP to or from this port, the lesser of the two.
    Udp(u16),
    /// By the number of PPP.
    Ppp(u16),
    /// By the service access point of IEEE 802.2.
    Llc(u8),
    /// A frame of IEEE 802.11 that carries none of these, or is encrypted.
    Wireless(Frame),
}

const ETHER: [(u16, &str); 18] = [
    (0x0806, "ARP"),
    (0x8035, "RARP"),
    (0x8809, "LACP and other slow protocols"),
    (0x88cc, "LLDP"),
    (0x4305, "B.A.T.M.A.N."),
    (0x8926, "VN-Tag"),
    (0x88e1, "HomePlug"),
    (0x88e7, "provider backbone bridging (802.1ah)"),
    (0x894f, "NSH"),
    (0x8892, "PROFINET"),
    (0x8915, "RoCE"),
    (0x888e, "EAPOL"),
    (0x8863, "PPPoE discovery"),
    (0x88e5, "MACsec"),
    (0x8906, "FCoE"),
    (0x88f7, "PTP"),
    (0x8902, "CFM"),
    (0x9000, "loopback test"),
];
const IP: [(u8, &str); 16] = [
    (1, "ICMP"),
    (2, "IGMP"),
    (46, "RSVP"),
    (47, "GRE of something else than IP"),
    (50, "ESP (encrypted)"),
    (58, "ICMPv6"),
    (88, "EIGRP"),
    (89, "OSPF"),
    (94, "IP in IP by KA9Q"),
    (103, "PIM"),
    (108, "IPComp (compressed)"),
    (33, "DCCP"),
    (112, "VRRP"),
    (115, "L2TPv3"),
    (132, "SCTP"),
    (136, "UDP-Lite"),
];
const UDP: [(u16, &str); 18] = [
    (53, "DNS"),
    (67, "DHCP"),
    (68, "DHCP"),
    (123, "NTP"),
    (137, "NetBIOS"),
    (138, "NetBIOS"),
    (161, "SNMP"),
    (443, "QUIC"),
    (500, "IKE"),
    (514, "syslog"),
    (1194, "OpenVPN (encrypted)"),
    (1701, "L2TP control"),
    (1900, "SSDP"),
    (4791, "RoCE"),
    (4789, "VXLAN of something else than Ethernet"),
    (4500, "IPsec in UDP (encrypted)"),
    (5353, "mDNS"),
    (51820, "WireGuard (encrypted)"),
];
const PPP: [(u16, &str); 4] = [(0xc021, "LCP"), (0x8021, "IPCP"), (0x8057, "IPv6CP"), (0xc023, "PAP")];
const LLC: [(u8, &str); 3] = [(0x42, "spanning tree"), (0xfe, "IS-IS"), (0xe0, "IPX")];

fn named<T: PartialEq>(names: &[(T, &'static str)], number: &T) -> Option<&'static str> {
    names.iter().find(|(known, _)| known == number).map(|(_, name)| *name)
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = match self {
            Protocol::NotIp => Some("no IP"),
            Protocol::Untold => Some("not TCP (the table does not say which)"),
            Protocol::Ether(number) => named(&ETHER, number),
            Protocol::Ip(number) => named(&IP, number),
            Protocol::Udp(number) => named(&UDP, number),
            Protocol::Ppp(number) => named(&PPP, number),
            Protocol::Llc(number) => named(&LLC, number),
            Protocol::Wireless(frame) => Some(frame.name()),
        };
        match (known, self) {
            (Some(known), _) => out.write_str(known),
            (None, Protocol::Ether(number)) => write!(out, "Ethernet type {number:#06x}"),
            (None, Protocol::Ip(number)) => write!(out, "IP protocol {number}"),
            (None, Protocol::Udp(number)) => write!(out, "UDP port {number}"),
            (None, Protocol::Ppp(number)) => write!(out, "PPP protocol {number:#06x}"),
            (None, Protocol::Llc(number)) => write!(out, "802.2 service {number:#04x}"),
            (None, _) => out.write_str("something else"),
        }
    }
}
