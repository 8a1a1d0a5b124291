//! The little of rtnetlink(7) that is needed: what the kernel says of routes, links and addresses, and what is changed
//! there. Messages are read by pure functions.

use crate::{Error, Result};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use std::{
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// RTM_NEWROUTE of linux/rtnetlink.h.
pub const NEW_ROUTE: u16 = 24;
/// RTM_GETROUTE.
pub const GET_ROUTE: u16 = 26;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
/// Flag of a request: an answer also where there is nothing to tell (linux/netlink.h).
pub const ACK: u16 = 4;
/// Flag of a request: what is there is replaced.
pub const REPLACE: u16 = 0x100;
/// Flag of a request: all that there are.
pub const DUMP: u16 = 0x300;
const HEADER_BYTES: usize = 16;

/// Destination of a route, an attribute.
pub const RTA_DST: u16 = 1;
/// Interface of a route, an attribute.
pub const RTA_OIF: u16 = 4;
/// Router of a route, an attribute.
pub const RTA_GATEWAY: u16 = 5;
/// Size of `struct rtmsg`.
pub const ROUTE_BYTES: usize = 12;

/// Groups of messages the kernel sends of itself: links, and addresses and routes of both families.
const LINKS_ADDRESSES_ROUTES: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// One message: its type, which request it answers, and what follows its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type of the message.
    pub kind: u16,
    /// Number of the request that it answers.
    pub sequence: u32,
    /// What follows its header.
    pub body: &'a [u8],
}

/// The messages of a datagram; ends at the first that is cut.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = bytes.get(..length).filter(|_| length >= HEADER_BYTES)?;
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        let sequence = u32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, sequence, body: &message[HEADER_BYTES..] })
    })
}

/// Attributes: type without its flag bits, and value; ends at the first that is cut.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Appends an attribute.
pub fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// An address from the bytes of an attribute.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

/// 32 bits from the bytes of an attribute.
pub fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Where packets to an address go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Interface they leave by.
    pub interface: u32,
    /// Router they go to; none when the address is on the link.
    pub gateway: Option<IpAddr>,
}

fn hop(route: &[u8]) -> Option<Hop> {
    let find = |kind| attributes(route.get(ROUTE_BYTES..)?).find(|(k, _)| *k == kind).map(|(_, value)| value);
    Some(Hop { interface: number(find(RTA_OIF)?)?, gateway: find(RTA_GATEWAY).and_then(address) })
}

/// Errnos of a question for a route that say that there is none: nothing leads there, or what does is `unreachable`,
/// `blackhole` (EINVAL), `prohibit` (EACCES) or `throw` (EAGAIN), or the kernel has nothing of the family.
const NO_ROUTE: [i32; 7] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EINVAL,
    libc::EACCES,
    libc::EAGAIN,
    libc::EOPNOTSUPP,
    libc::EAFNOSUPPORT,
];

/// Whether everything was taken that the kernel had to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Yes.
    Whole,
    /// The kernel had more to tell than the socket holds.
    Cut,
}

/// A netlink socket of the network namespace it is made in.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// One to ask with.
    pub fn open() -> Result<Netlink> {
        Netlink::made(SockProtocol::NetlinkRoute, 0, SockFlag::empty())
    }

    /// One that tells of changes of links, addresses and routes; it never blocks.
    pub fn watch() -> Result<Netlink> {
        Netlink::listen(SockProtocol::NetlinkRoute, LINKS_ADDRESSES_ROUTES)
    }

    /// One that tells what these groups of a protocol (`NETLINK_…`) are told; it never blocks.
    pub fn listen(protocol: SockProtocol, groups: u32) -> Result<Netlink> {
        Netlink::made(protocol, groups, SockFlag::SOCK_NONBLOCK)
    }

    fn made(protocol: SockProtocol, groups: u32, blocking: SockFlag) -> Result<Netlink> {
        let failed = |errno| Error::io("open a netlink socket", errno);
        let flags = SockFlag::SOCK_CLOEXEC | blocking;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol);
        let socket = socket.map_err(failed)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups)).map_err(failed)?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Takes everything that has been told; whether that was anything.
    pub fn drain(&self) -> bool {
        let mut any = false;
        // More than could be taken: something changed, and what it is will be asked.
        self.take(|_| any = true) == Told::Cut || any
    }

    /// Takes what has been told.
    pub fn take(&self, mut each: impl FnMut(Message<'_>)) -> Told {
        let mut buffer = vec![0; 1 << 16];
        let mut told = Told::Whole;
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) => return told,
                Ok(bytes) => messages(&buffer[..bytes]).for_each(&mut each),
                Err(nix::errno::Errno::ENOBUFS) => told = Told::Cut,
                Err(_) => return told,
            }
        }
    }

    /// Where packets to an address go; none when there is no route.
    pub fn hop_to(&mut self, destination: IpAddr) -> Result<Option<Hop>> {
        let (family, bytes) = match destination {
            IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
        };
        let mut body = vec![0; ROUTE_BYTES];
        body[0] = family as u8;
        body[1] = 8 * bytes.len() as u8;
        push_attribute(&mut body, RTA_DST, &bytes);
        match self.ask(GET_ROUTE, 0, &body) {
            Ok(answers) => Ok(answers.iter().find_map(|answer| hop(answer))),
            Err(error) if error.raw_os_error().is_some_and(|errno| NO_ROUTE.contains(&errno)) => Ok(None),
            Err(error) => Err(Error::io(format!("ask for the route to {destination}"), error)),
        }
    }

    /// Sends a request; the bodies of the answers.
    pub fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> std::io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let mut request = Vec::with_capacity(HEADER_BYTES + body.len());
        request.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend((flags | REQUEST).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend(0u32.to_ne_bytes());
        request.extend_from_slice(body);
        send(self.socket.as_raw_fd(), &request, MsgFlags::empty())?;
        let (mut answers, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            // An answer to a request that was given up, after an error, is none to this one.
            for message in messages(&buffer[..length]).filter(|message| message.sequence == self.sequence) {
                match message.kind {
                    DONE => return Ok(answers),
                    ERROR => return refusal(message.body).map(|()| answers),
                    _ => answers.push(message.body.to_vec()),
                }
            }
            if flags & (DUMP | ACK) == 0 && !answers.is_empty() {
                return Ok(answers);
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `struct nlmsgerr`: a negative errno, zero for an acknowledgement.
fn refusal(body: &[u8]) -> std::io::Result<()> {
    match body.first_chunk().map(|errno| i32::from_ne_bytes(*errno)) {
        Some(0) => Ok(()),
        Some(errno) => Err(std::io::Error::from_raw_os_error(errno.saturating_neg())),
        None => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_route_message_tells_its_hop() {
        let mut body = vec![0; ROUTE_BYTES];
        push_attribute(&mut body, RTA_GATEWAY, &[10, 0, 0, 1]);
        push_attribute(&mut body, RTA_OIF, &4u32.to_ne_bytes());
        let wanted = Hop { interface: 4, gateway: Some("10.0.0.1".parse().unwrap()) };
        assert_eq!(hop(&body), Some(wanted));
        assert_eq!(hop(&body[..20]), None, "cut before its interface");
    }

    #[test]
    fn the_loopback_answers_for_this_host() {
        let hop = Netlink::open().unwrap().hop_to("127.0.0.1".parse().unwrap()).unwrap().unwrap();
        assert_eq!((hop.interface, hop.gateway), (1, None));
    }

    #[test]
    fn a_route_that_leads_nowhere_is_none() {
        let lease = crate::Lease::take(&format!("nowhere{}", std::process::id())).unwrap();
        let namespace = lease.namespace("a").unwrap();
        namespace.ip(&["link", "set", "lo", "up"]).unwrap();
        let hop_to = |to: &str| {
            namespace.run(|| Netlink::open().unwrap().hop_to(to.parse().unwrap())).unwrap().unwrap()
        };
        for (network, to) in [("192.0.2.0/24", "192.0.2.1"), ("2001:db8::/32", "2001:db8::1")] {
            assert_eq!(hop_to(to), None);
            for kind in ["blackhole", "prohibit", "unreachable", "throw"] {
                namespace.ip(&["route", "replace", kind, network]).unwrap();
                assert_eq!(hop_to(to), None, "{kind} {network}");
                namespace.ip(&["route", "del", kind, network]).unwrap();
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_messages_and_attributes_that_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for message in messages(&bytes) {
                prop_assert!(attributes(message.body).count() <= 300);
                hop(message.body);
            }
            prop_assert!(attributes(&bytes).count() <= 300);
        }

        #[test]
        fn attributes_read_back(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..6)) {
            let mut bytes = Vec::new();
            values.iter().enumerate().for_each(|(kind, value)| push_attribute(&mut bytes, kind as u16, value));
            let read: Vec<_> = attributes(&bytes).map(|(_, value)| value.to_vec()).collect();
            prop_assert_eq!(read, values);
        }
    }
}
