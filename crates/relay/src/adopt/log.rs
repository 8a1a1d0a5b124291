//! Copies of packets that nftables logs (`log group N`), by nfnetlink_log: messages written and read as bytes, and the
//! socket.

use crate::{Error, Result};
use longfat_host::socket as options;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
    },
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

/// `linux/netfilter/nfnetlink.h`: the subsystem, and its messages.
const SUBSYSTEM: u16 = 4 << 8;
const MSG_PACKET: u16 = SUBSYSTEM;
const MSG_CONFIG: u16 = SUBSYSTEM | 1;
/// `linux/netfilter/nfnetlink_log.h`: attributes of a packet.
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;
/// Attributes of the configuration, and its values.
const CFG_COMMAND: u16 = 1;
const CFG_MODE: u16 = 2;
const CFG_THRESHOLD: u16 = 5;
const COMMAND_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const HEADER_BYTES: usize = 16;
const GENERAL_BYTES: usize = 4;
const ATTRIBUTE_BYTES: usize = 4;
/// An attribute's kind has two bits that say how it is nested.
const KIND: u16 = 0x3fff;

/// Bytes copied of each packet: more than any IP and TCP header.
pub const COPIED_BYTES: u32 = 256;
/// Prefix of copies that are made for the timestamp of their sender.
pub const CLOCK: &str = "clock";
/// Bytes of unread copies that are kept; what comes beyond is lost, and its connection stays end to end.
const BUFFER_BYTES: u64 = 8 << 20;
/// Groups tried, from this one on.
const FIRST_GROUP: u16 = 27_750;
const GROUPS: u16 = 256;

/// A copy of a packet, and the prefix of the rule that logged it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copy<'a> {
    /// The packet from its IP header on, cut after [`COPIED_BYTES`].
    pub packet: &'a [u8],
    /// Without its terminator.
    pub prefix: &'a [u8],
}

/// The copies in what was received.
pub fn copies(bytes: &[u8]) -> impl Iterator<Item = Copy<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (kind, message, after) = message(rest)?;
        rest = after;
        Some((kind, message))
    })
    .filter(|(kind, _)| *kind == MSG_PACKET)
    .map(|(_, message)| copy(message))
}

/// The kind and body of the message at the beginning, and what follows it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER_BYTES..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn copy(message: &[u8]) -> Copy<'_> {
    let mut copy = Copy::default();
    let mut rest = message.get(GENERAL_BYTES..).unwrap_or_default();
    while let Some((kind, value, after)) = attribute(rest) {
        match kind {
            PAYLOAD => copy.packet = value,
            PREFIX => copy.prefix = value.strip_suffix(&[0]).unwrap_or(value),
            _ => {}
        }
        rest = after;
    }
    copy
}

fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & KIND;
    let value = bytes.get(ATTRIBUTE_BYTES..length)?;
    Some((kind, value, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Binds a socket to a group, which then gives whole copies at once.
fn configuration(group: u16) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(group.to_be_bytes());
    push(&mut body, CFG_COMMAND, &[COMMAND_BIND]);
    let mut mode = COPIED_BYTES.to_be_bytes().to_vec();
    mode.extend([COPY_PACKET, 0]);
    push(&mut body, CFG_MODE, &mode);
    push(&mut body, CFG_THRESHOLD, &1u32.to_be_bytes());
    let mut message = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(MSG_CONFIG.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn push(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The number of an error message; an acknowledgement is one of number 0.
fn number(answer: &[u8]) -> Option<i32> {
    let (kind, body, _) = message(answer)?;
    let number = body.get(..4)?.try_into().ok()?;
    (kind == libc::NLMSG_ERROR as u16).then_some(i32::from_ne_bytes(number))
}

/// A socket that gets the copies of one group.
#[derive(Debug)]
pub(crate) struct Log {
    netlink: OwnedFd,
    group: u16,
}

impl Log {
    /// With the first group that nobody has.
    pub fn open() -> Result<Log> {
        let failed = |source| Error::io("open a socket for copies of handshakes (nfnetlink_log)", source);
        let mut refusal = io::Error::from_raw_os_error(libc::EBUSY);
        for group in FIRST_GROUP..FIRST_GROUP + GROUPS {
            let netlink = netlink().map_err(|errno| failed(errno.into()))?;
            match bind_group(&netlink, group) {
                Ok(()) => return Ok(Log { netlink, group }),
                // The kernel says the one or the other of a group that somebody has, and the second also of rights that
                // are lacking.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EPERM)) => {
                    refusal = error
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(refusal))
    }

    /// The group that nftables is to log to.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// What came next, if anything did. What did not fit is lost without a word.
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        loop {
            match recv(self.netlink.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(bytes) => return buffer.get(..bytes),
                Err(Errno::ENOBUFS | Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
    }
}

fn netlink() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
    bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    Ok(netlink)
}

fn bind_group(netlink: &OwnedFd, group: u16) -> io::Result<()> {
    send(netlink.as_raw_fd(), &configuration(group), MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let bytes = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    match number(&answer[..bytes]) {
        Some(0) => {}
        Some(error) => return Err(io::Error::from_raw_os_error(-error)),
        None => return Err(io::ErrorKind::InvalidData.into()),
    }
    // With less of it more is lost in a flood.
    let _ = options::set_buffer(netlink, options::Buffer::Receive, BUFFER_BYTES);
    Ok(())
}

/// Whether this host can give copies.
pub(crate) fn is_available() -> Result<()> {
    Log::open().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn logged(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        attributes.iter().for_each(|(kind, value)| push(&mut body, *kind, value));
        let mut message = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.resize(HEADER_BYTES, 0);
        message.extend(body);
        message
    }

    #[test]
    fn copies_are_read_with_their_prefixes_and_other_messages_are_none() {
        let bytes = [
            logged(MSG_PACKET, &[(1, &[0; 4]), (PAYLOAD, b"abcde"), (PREFIX, b"3\0")]),
            logged(3, &[(PAYLOAD, b"none")]),
            logged(MSG_PACKET, &[(PREFIX | 0x8000, b"12"), (PAYLOAD, b"x")]),
        ]
        .concat();
        let found: Vec<_> = copies(&bytes).collect();
        let copy = |packet, prefix| Copy { packet, prefix };
        assert_eq!(found, [copy(&b"abcde"[..], &b"3"[..]), copy(b"x", b"12")]);
    }

    #[test]
    fn a_group_is_asked_for_as_the_kernel_wants_it() {
        let asked = configuration(0x1234);
        let (kind, body, rest) = message(&asked).unwrap();
        assert_eq!((kind, rest, &body[..4]), (MSG_CONFIG, &[][..], &[0, 0, 0x12, 0x34][..]));
        let (kind, value, rest) = attribute(&body[4..]).unwrap();
        assert_eq!((kind, value), (CFG_COMMAND, &[COMMAND_BIND][..]));
        assert_eq!(attribute(rest).unwrap().1, [0, 0, 1, 0, COPY_PACKET, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = copies(&bytes).count();
            let _ = number(&bytes);
        }
    }
}
