//! To which of this host's addresses datagrams came, and answers from there. By itself a host answers from the address
//! that its routes prefer, and the other end, which does not know that one, takes no notice.

use crate::{
    error::{Error, Result},
    plan::TransferPlan,
    sockets::{bind_udp, local_port, new_udp_socket},
};
use longfat_host::socket::set_option;
use nix::{
    cmsg_space,
    sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg},
};
use std::{
    io::{IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    os::fd::AsRawFd,
};

/// An address of this host, as its socket writes it: IPv4 at an IPv6 socket is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Destination {
    ip: IpAddr,
    /// Interface that the datagram came in by.
    interface: u32,
}

/// A datagram that was taken.
#[derive(Debug)]
pub(crate) struct Taken {
    /// How long it is, at most what there was room for.
    pub(crate) bytes: usize,
    pub(crate) from: SocketAddr,
    /// Absent where the socket was not made to tell ([`tell`]).
    pub(crate) to: Option<Destination>,
}

/// Makes a bound socket say to which address each datagram came, and share its port with [`narrowed`] ones. Nobody else
/// can have the port: who has not asked to share it is refused, and so is another user who has.
pub(crate) fn tell(socket: &UdpSocket) -> Result<()> {
    let is_v4 = socket.local_addr().is_ok_and(|address| address.is_ipv4());
    let (level, option) = match is_v4 {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    let told = set_option(socket, level, option, 1);
    told.and_then(|()| share_port(socket))
        .map_err(|source| Error::io("ask to which address datagrams come", source))
}

fn share_port(socket: &impl std::os::fd::AsFd) -> std::io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
}

/// The next datagram, if there is one.
pub(crate) fn take(socket: &UdpSocket, bytes: &mut [u8]) -> Option<Taken> {
    let mut control = cmsg_space!(libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let received =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    let to =
        received.cmsgs().ok().and_then(|mut messages| messages.find_map(|message| destination(&message)));
    let from = received.address.as_ref().and_then(socket_address)?;
    Some(Taken { bytes: received.bytes, from, to })
}

fn destination(message: &ControlMessageOwned) -> Option<Destination> {
    match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            let ip = Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr));
            Some(Destination { ip: ip.into(), interface: info.ipi_ifindex as u32 })
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
            Some(Destination { ip: ip.into(), interface: info.ipi6_ifindex })
        }
        _ => None,
    }
}

fn socket_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

impl Destination {
    /// The interface, where the address means nothing without it.
    fn scope(self) -> u32 {
        let is_of_link = matches!(self.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if is_of_link { self.interface } else { 0 }
    }

    fn with_port(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, port),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, self.scope()).into(),
        }
    }
}

/// Sends a datagram from the address that another came to; from any where that is not known.
pub(crate) fn answer(
    socket: &UdpSocket,
    bytes: &[u8],
    from: Option<Destination>,
    to: SocketAddr,
) -> std::io::Result<()> {
    let (parts, address) = ([IoSlice::new(bytes)], SockaddrStorage::from(to));
    let send = |control: &[ControlMessage<'_>]| {
        sendmsg(socket.as_raw_fd(), &parts, control, MsgFlags::MSG_DONTWAIT, Some(&address))
    };
    let sent = match from.map(|from| (from.ip, from.scope())) {
        None => send(&[]),
        Some((IpAddr::V4(ip), _)) => {
            let ipi_spec_dst = libc::in_addr { s_addr: ip.to_bits().to_be() };
            let ipi_addr = libc::in_addr { s_addr: 0 };
            send(&[ControlMessage::Ipv4PacketInfo(&libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst,
                ipi_addr,
            })])
        }
        Some((IpAddr::V6(ip), ipi6_ifindex)) => {
            let ipi6_addr = libc::in6_addr { s6_addr: ip.octets() };
            send(&[ControlMessage::Ipv6PacketInfo(&libc::in6_pktinfo { ipi6_addr, ipi6_ifindex })])
        }
    };
    sent.map(drop).map_err(Into::into)
}

/// A socket beside `wide` that has its port at this address alone: what it sends comes from there.
pub(crate) fn narrowed(wide: &UdpSocket, to: Destination, plan: &TransferPlan) -> Result<UdpSocket> {
    let address = to.with_port(local_port(wide.local_addr())?);
    let socket = new_udp_socket(&address, plan)?;
    share_port(&socket).map_err(|source| Error::io("share a data port", source))?;
    bind_udp(socket, address)
}
