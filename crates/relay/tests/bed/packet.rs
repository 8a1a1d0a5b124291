//! Packets that no kernel would send.

use super::Bed;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, setsockopt, socket,
    sockopt,
};
use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
};

pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// A TCP segment and what goes around it.
#[derive(Debug, Clone)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    pub window: u16,
    /// Padded to whole words.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Segment {
    pub fn syn(from: SocketAddr, to: SocketAddr) -> Segment {
        let (options, payload) = (Vec::new(), Vec::new());
        Segment { from, to, sequence: 0, acknowledged: 0, flags: SYN, window: 0xffff, options, payload }
    }

    /// The whole IP packet.
    pub fn packet(&self) -> Vec<u8> {
        let tcp = self.tcp();
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut packet = vec![0x45, 0];
                packet.extend((20 + tcp.len() as u16).to_be_bytes());
                packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                packet.extend(from.octets());
                packet.extend(to.octets());
                packet.extend(tcp);
                packet
            }
            (from, to) => {
                let mut packet = vec![0x60, 0, 0, 0];
                packet.extend((tcp.len() as u16).to_be_bytes());
                packet.extend([6, 64]);
                packet.extend(wide(from).octets());
                packet.extend(wide(to).octets());
                packet.extend(tcp);
                packet
            }
        }
    }

    fn tcp(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 1);
        let mut tcp = Vec::with_capacity(60);
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledged.to_be_bytes());
        tcp.extend([(5 + options.len() as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(&self.payload);
        let sum = self.checksum(&tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }

    fn checksum(&self, tcp: &[u8]) -> u16 {
        let mut summed = Vec::new();
        for end in [self.from.ip(), self.to.ip()] {
            match end {
                IpAddr::V4(address) => summed.extend(address.octets()),
                IpAddr::V6(address) => summed.extend(address.octets()),
            }
        }
        summed.extend([0, 6]);
        summed.extend((tcp.len() as u16).to_be_bytes());
        summed.extend(tcp);
        let pair = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        let sum: u32 = summed.chunks(2).map(pair).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        !((sum + (sum >> 16)) as u16)
    }
}

fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// An IPv4 packet in two fragments.
pub fn halves(packet: &[u8]) -> [Vec<u8>; 2] {
    let (ip, payload) = packet.split_at(20);
    // At a multiple of eight octets.
    let (first, second) = payload.split_at(payload.len() / 16 * 8);
    let fragment = |part: &[u8], more_and_at: u16| {
        let mut packet = [ip, part].concat();
        packet[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        packet[4..6].copy_from_slice(&77u16.to_be_bytes());
        packet[6..8].copy_from_slice(&more_and_at.to_be_bytes());
        packet
    };
    [fragment(first, 0x2000), fragment(second, first.len() as u16 / 8)]
}

/// Sends packets of the client's host as they are, whatever their addresses say.
pub struct Sender {
    ipv4: OwnedFd,
    ipv6: OwnedFd,
}

impl Sender {
    pub fn new(bed: &Bed) -> Sender {
        let open = |family| {
            bed.client
                .run(|| socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw).unwrap())
                .unwrap()
        };
        Sender { ipv4: open(AddressFamily::Inet), ipv6: open(AddressFamily::Inet6) }
    }

    /// To the host that leads to the server; a full queue of the interface loses one of many.
    pub fn send(&self, segment: &Segment) {
        self.send_packet(&segment.packet());
    }

    pub fn send_packet(&self, packet: &[u8]) {
        let (socket, way) = match packet[0] >> 4 {
            4 => (&self.ipv4, super::SERVER_V4),
            _ => (&self.ipv6, super::SERVER_V6),
        };
        let to = SockaddrStorage::from(SocketAddr::new(way.parse().unwrap(), 0));
        let _ = sendto(socket.as_raw_fd(), packet, &to, MsgFlags::empty());
    }
}

/// A client that is no kernel: it says what it wants.
pub struct Peer {
    sender: Sender,
    receiver: OwnedFd,
    /// What it says next, but for flags and options.
    pub segment: Segment,
}

impl Peer {
    /// Shakes hands from an address of the client's host, whose kernel is kept from ending what it does not know.
    pub fn connect(bed: &Bed, own: SocketAddr, to: SocketAddr, options: &[u8]) -> Peer {
        let deaf = format!(
            "table inet t{} {{ chain out {{ type filter hook output priority 0; \
                            tcp sport {} tcp flags & rst == rst drop; }}; }}",
            own.port(),
            own.port()
        );
        super::nft(&bed.client, &deaf);
        let open = || socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp);
        let receiver = bed.client.run(|| open().unwrap()).unwrap();
        let patience = nix::sys::time::TimeVal::new(super::PATIENCE.as_secs() as i64, 0);
        setsockopt(&receiver, sockopt::ReceiveTimeout, &patience).unwrap();
        let segment = Segment { options: options.to_vec(), sequence: 1000, ..Segment::syn(own, to) };
        let mut peer = Peer { sender: Sender::new(bed), receiver, segment };
        peer.sender.send(&peer.segment);
        let (sequence, flags) = peer.hear();
        assert_eq!(flags & (SYN | ACK), SYN | ACK);
        (peer.segment.sequence, peer.segment.acknowledged) = (1001, sequence.wrapping_add(1));
        peer.segment.options = Vec::new();
        peer.segment.flags = ACK;
        peer.say();
        peer
    }

    /// Sends packets of its own making through the relay's host.
    pub fn send_packets(&self, packets: &[Vec<u8>]) {
        packets.iter().for_each(|packet| self.sender.send_packet(packet));
    }

    /// Sends the segment as it is.
    pub fn say(&self) {
        // Not through the relay's host, but to it.
        let to = SockaddrStorage::from(SocketAddr::new(self.segment.to.ip(), 0));
        let _ = sendto(self.sender.ipv4.as_raw_fd(), &self.segment.packet(), &to, MsgFlags::empty());
    }

    /// The sequence number and flags of the next segment of the connection.
    pub fn hear(&self) -> (u32, u8) {
        let mut packet = [0; 65_536];
        loop {
            let bytes = nix::sys::socket::recv(self.receiver.as_raw_fd(), &mut packet, MsgFlags::empty());
            let bytes = bytes.expect("an answer in time");
            let tcp = &packet[usize::from(packet[0] & 15) * 4..bytes];
            let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
            if (port(0), port(2)) == (self.segment.to.port(), self.segment.from.port()) {
                return (u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]), tcp[13]);
            }
        }
    }
}
