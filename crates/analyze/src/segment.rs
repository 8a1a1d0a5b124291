//! A TCP segment as the analysis sees it: what the headers of one packet say, in one fixed-size value.

use std::{
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv6Addr},
};

/// TCP's flags as they stand in octets 12 and 13 of its header.
pub mod flag {
    /// Sender has finished.
    pub const FIN: u16 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u16 = 0x02;
    /// Reset.
    pub const RST: u16 = 0x04;
    /// Push.
    pub const PSH: u16 = 0x08;
    /// The acknowledgement field counts.
    pub const ACK: u16 = 0x10;
    /// ECN echo (RFC 3168), or part of the AccECN counter.
    pub const ECE: u16 = 0x40;
    /// Congestion window reduced.
    pub const CWR: u16 = 0x80;
    /// Accurate ECN (RFC 9768), formerly the nonce sum.
    pub const AE: u16 = 0x100;
}

/// Which options a segment carries.
pub mod option {
    /// Maximum segment size.
    pub const MSS: u8 = 1;
    /// Window scale.
    pub const WINDOW_SCALE: u8 = 2;
    /// SACK permitted.
    pub const SACK_PERMITTED: u8 = 4;
    /// Timestamps.
    pub const TIMESTAMPS: u8 = 8;
    /// TCP Fast Open, with or without a cookie.
    pub const FAST_OPEN: u8 = 16;
    /// AccECN counters.
    pub const ACCURATE_ECN: u8 = 32;
    /// The capture cut the header: there are more options than are known.
    pub const CUT: u8 = 64;
    /// The packet is the first fragment of a larger one: more payload follows in later ones.
    pub const FRAGMENT: u8 = 128;
}

/// The two ends of a connection, the lesser first, so that both directions have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FlowKey {
    /// Addresses as IPv6; IPv4 is mapped (`::ffff:a.b.c.d`).
    pub addresses: [u128; 2],
    /// Ports, in the same order.
    pub ports: [u16; 2],
}

/// An IPv4 address as IPv6.
#[inline]
pub fn mapped(address: u32) -> u128 {
    0xffff_0000_0000 | u128::from(address)
}

impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.spread());
    }
}

impl FlowKey {
    /// The key of a packet, and which of its ends sent it.
    #[inline]
    pub fn of(source: (u128, u16), destination: (u128, u16)) -> (FlowKey, u8) {
        let end = u8::from(source > destination);
        // Without a branch: which way the next packet goes cannot be foreseen.
        let address = (source.0 ^ destination.0) & u128::from(end).wrapping_neg();
        let port = (source.1 ^ destination.1) & u16::from(end).wrapping_neg();
        let addresses = [source.0 ^ address, destination.0 ^ address];
        (FlowKey { addresses, ports: [source.1 ^ port, destination.1 ^ port] }, end)
    }

    /// Key of a flow between IPv4 addresses: an end is one number then.
    #[inline]
    pub fn of_ipv4(source: (u32, u16), destination: (u32, u16)) -> (FlowKey, u8) {
        let number = |(address, port): (u32, u16)| u64::from(address) << 16 | u64::from(port);
        let (source, destination) = (number(source), number(destination));
        let ends = [source.min(destination), source.max(destination)];
        let addresses = ends.map(|end| mapped((end >> 16) as u32));
        (FlowKey { addresses, ports: ends.map(|end| end as u16) }, u8::from(source > destination))
    }

    /// Hash of a flow that is alike for both directions, well spread.
    #[inline]
    pub fn spread(&self) -> u64 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |a: u128| (a as u64) ^ ((a >> 64) as u64).rotate_left(23);
        let ports = u64::from(self.ports[0]) << 16 | u64::from(self.ports[1]);
        let first = (fold(self.addresses[0]) ^ ports).wrapping_mul(FACTOR);
        let second = (fold(self.addresses[1]) ^ first.rotate_left(31)).wrapping_mul(FACTOR);
        second ^ (second >> 29)
    }

    /// The address of an end.
    pub fn address(&self, end: usize) -> IpAddr {
        let address = Ipv6Addr::from_bits(self.addresses[end]);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// An end as `address:port`.
    pub fn end(&self, end: usize) -> String {
        std::net::SocketAddr::new(self.address(end), self.ports[end]).to_string()
    }
}

/// What a packet's checksum says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Checksum {
    /// Not all that it covers was kept.
    #[default]
    Unchecked,
    /// The checksum is right.
    Right,
    /// The checksum is left to the interface: zero, or the sum of the pseudo-header alone, with or without the length.
    Unset,
    /// The checksum is wrong.
    Wrong,
}

impl Checksum {
    /// As tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Checksum::Unchecked => "unchecked",
            Checksum::Right => "right",
            Checksum::Unset => "unset",
            Checksum::Wrong => "wrong",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Checksum {
        let all = [Checksum::Right, Checksum::Unset, Checksum::Wrong];
        all.into_iter().find(|one| one.name() == name).unwrap_or_default()
    }
}

/// What one packet says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Segment {
    /// Nanoseconds since 1970.
    pub time_ns: i64,
    /// Number of the packet in the order of arrival, from 0.
    pub index: u64,
    /// Flow that the segment belongs to.
    pub key: FlowKey,
    /// Which end of the key sent it, 0 or 1.
    pub end: u8,
    /// [`option`] bits.
    pub options: u8,
    /// [`flag`] bits.
    pub flags: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Window field, unscaled.
    pub window: u16,
    /// Identification field of IPv4; 0 for IPv6.
    pub ip_id: u16,
    /// Octets of payload (on the wire, whatever was kept).
    pub payload_bytes: u32,
    /// TSval; 0 without the option.
    pub ts_value: u32,
    /// TSecr; 0 without the option.
    pub ts_echo: u32,
    /// MSS option.
    pub mss_bytes: u16,
    /// Window scale option.
    pub window_scale: u8,
    /// SACK blocks that were kept.
    pub sack_count: u8,
    /// SACK blocks: left edge, right edge; what is behind the last one says nothing.
    pub sack: [(u32, u32); 4],
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// ECN field of the IP header.
    pub ecn: u8,
    /// What its checksum says.
    pub checksum: Checksum,
}

impl Segment {
    /// Whether all of these flags are set.
    #[inline]
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Sequence numbers it takes: payload, and one each for SYN and FIN.
    #[inline]
    pub fn length(&self) -> u32 {
        const { assert!(flag::FIN == 1 && flag::SYN == 2) };
        self.payload_bytes + u32::from((self.flags & 1) + (self.flags >> 1 & 1))
    }

    /// Whether nothing is remarkable about it: neither begins nor ends anything, has an acknowledgement, is neither
    /// marked nor damaged, and tells of no mark.
    #[inline]
    pub fn is_plain(&self) -> bool {
        const MARKS: u16 = flag::ECE | flag::CWR | flag::AE;
        const TOLD: u16 = flag::SYN | flag::FIN | flag::RST | flag::ACK | MARKS;
        self.flags & TOLD == flag::ACK && self.ecn != 3 && self.checksum != Checksum::Wrong
    }

    /// Whether this option is there.
    #[inline]
    pub fn carries(&self, option: u8) -> bool {
        self.options & option != 0
    }

    /// One number for all its SACK blocks; 0 without any.
    #[inline]
    pub fn sacks_as_one(&self) -> u32 {
        if self.sack_count > 0 { self.sum_of_sacks() } else { 0 }
    }

    #[cold]
    fn sum_of_sacks(&self) -> u32 {
        let count = usize::from(self.sack_count).min(self.sack.len());
        let numbers = self.sack[..count].iter().flat_map(|(left, right)| [left, right]);
        numbers.fold(1, |sum: u32, number| sum.rotate_left(5).wrapping_add(*number).wrapping_mul(0x9e37_79b1))
    }
}
