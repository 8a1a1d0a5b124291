//! The unix socket by which things are handed over: datagrams that are never cut (SOCK_SEQPACKET), with descriptors.
//!
//! Its address belongs to the network namespace (unix(7), "abstract"), as a relay's name does, and no file is left
//! behind. Both ends look who the other is: root, or the same user.

use super::record::{LIVES, MOST_BYTES, MOST_DESCRIPTORS, Message, Say};
use crate::{Error, Result};
use longfat_host::{confine, socket};
use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
            UnixAddr, accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, setsockopt, sockopt,
        },
        time::{TimeVal, TimeValLike},
    },
    unistd::Uid,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// Room for what the other end has not read yet.
const BUFFER_BYTES: i32 = 8 << 20;
/// Milliseconds for which the other end may have too many descriptors to take.
const MOST_TRIES: u32 = 500;

/// One end.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: OwnedFd,
}

/// A message, and what came with it.
pub(crate) type Came = (Message, Vec<OwnedFd>);

/// Where the two that a relay of this name speaks to listen.
pub(crate) fn address(name: &str, who: &str) -> io::Result<UnixAddr> {
    // As the nft table of that name has it.
    let name = name.replace('-', "_");
    Ok(UnixAddr::new_abstract(format!("longfat relay {name} {who}").as_bytes())?)
}

/// Listens there; none if somebody does already.
pub(crate) fn listening(address: &UnixAddr) -> io::Result<Option<OwnedFd>> {
    let socket = fresh()?;
    match bind(socket.as_raw_fd(), address) {
        Err(Errno::EADDRINUSE) => return Ok(None),
        bound => bound?,
    }
    nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
    listen(&socket, Backlog::new(8)?)?;
    Ok(Some(socket))
}

fn fresh() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    Ok(nix::sys::socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?)
}

impl Wire {
    /// The other end's, and who it is was looked at: root, this user, or whom root's relays and keepers become.
    pub fn connect(address: &UnixAddr) -> io::Result<Wire> {
        let socket = fresh()?;
        connect(socket.as_raw_fd(), address)?;
        Wire::of(socket, confine::service_user().map(|account| account.uid))
    }

    /// Takes a peer, if one has come.
    pub fn accept(listener: &impl AsFd) -> io::Result<Option<Wire>> {
        match accept4(listener.as_fd().as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
            // SAFETY: accept4 returned a new descriptor that nobody else owns.
            Ok(fd) => Wire::of(unsafe { OwnedFd::from_raw_fd(fd) }, None).map(Some),
        }
    }

    /// One that was handed over.
    pub fn inherited(socket: OwnedFd) -> Wire {
        Wire { socket }
    }

    fn of(socket: OwnedFd, user: Option<Uid>) -> io::Result<Wire> {
        let peer = Uid::from_raw(getsockopt(&socket, sockopt::PeerCredentials)?.uid());
        if !peer.is_root() && peer != Uid::effective() && Some(peer) != user {
            let why = format!("user {peer} is at the other end, who is neither root nor this user");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let force = socket::set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER_BYTES);
        let _ =
            force.or_else(|_| socket::set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER_BYTES));
        Ok(Wire { socket })
    }

    /// How long one sending, and one receiving, may take; not at all limited by zero.
    pub fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        let time = TimeVal::milliseconds(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&self.socket, sockopt::SendTimeout, &time)?;
        Ok(setsockopt(&self.socket, sockopt::ReceiveTimeout, &time)?)
    }

    /// Sends a message, with duplicates of these descriptors.
    pub fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[] } else { &rights[..] };
        let bytes = message.bytes();
        let mut tries = 0;
        loop {
            let fd = self.socket.as_raw_fd();
            match sendmsg::<()>(fd, &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
                Err(Errno::EINTR) => {}
                // A user's share of descriptors under way (unix(7)): the other end is about to take some.
                Err(Errno::ETOOMANYREFS) if tries < MOST_TRIES => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent => return Ok(sent.map(drop)?),
            }
        }
    }

    /// The next message; none when the other end is closed.
    pub fn receive(&self) -> io::Result<Option<Came>> {
        let mut bytes = vec![0; MOST_BYTES + 16];
        let mut control = cmsg_space!([RawFd; MOST_DESCRIPTORS]);
        let (length, flags, descriptors) = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            let fd = self.socket.as_raw_fd();
            match recvmsg::<()>(fd, &mut into, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
                Err(Errno::EINTR) => {}
                received => {
                    let received = received?;
                    break (received.bytes, received.flags, owned(&received)?);
                }
            }
        };
        if length == 0 {
            return Ok(None);
        }
        if flags.intersects(MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC) {
            return Err(invalid("a message that is too long, or has too many descriptors"));
        }
        let message = Message::parse(&bytes[..length]).map_err(invalid)?;
        Ok(Some((message, descriptors)))
    }

    /// The next message, which must say this; what a refusal says is an error.
    pub fn expect(&self, say: Say, who: &str) -> Result<Message> {
        let failed = |source| Error::io(format!("hear from {who}"), source);
        match self.receive().map_err(failed)? {
            Some((message, _)) if message.say == say => Ok(message),
            Some((message, _)) if message.body == LIVES.as_bytes() => {
                let owner = format!("{who} serves it");
                Err(Error::NameTaken { name: who.to_owned(), owner })
            }
            Some((message, _)) if message.say == Say::Refused => {
                Err(Error::Plan(String::from_utf8_lossy(&message.body).into_owned()))
            }
            Some((message, _)) => Err(failed(invalid(format!("{:?} came instead of {say:?}", message.say)))),
            None => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(crate) fn invalid(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

fn owned(received: &nix::sys::socket::RecvMsg<'_, '_, ()>) -> io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            // SAFETY: the kernel has just made them, for this process.
            descriptors.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(descriptors)
}
