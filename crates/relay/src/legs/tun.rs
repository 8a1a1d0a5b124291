//! The host's side of held handshakes: a TUN interface that brings SYNs and takes them back, and raw sockets for what
//! is sent past it.

use crate::{Error, Result, plan::marks::is_hold_interface};
use longfat_host::{interface, socket};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, SockaddrStorage, sendto},
};
use std::{
    fs::File,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    os::unix::fs::OpenOptionsExt,
    sync::OnceLock,
};

/// The device by which a relay makes its interfaces.
pub const TUN_DEVICE: &str = "/dev/net/tun";
/// Longest packet read: the MTU of the interface.
pub(crate) const PACKET_BYTES: usize = 2048;

/// The interface; it is gone when this is dropped or the process dies, and SYNs are then forwarded again.
#[derive(Debug)]
pub(crate) struct Tun {
    file: File,
}

/// Interfaces at which each packet of this host passes once, but for relays' own: what comes by those was seen before.
pub(crate) fn seen_once() -> longfat_host::Result<Vec<String>> {
    let mut names = interface::passed_once()?;
    names.retain(|name| !is_hold_interface(name));
    Ok(names)
}

/// Opens [`TUN_DEVICE`]; which it is that makes them takes CAP_NET_ADMIN besides.
///
/// # Errors
/// The host has none, or this user may not.
pub fn open_tun() -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(TUN_DEVICE)
}

/// Opens the device in place of this process.
type Opener = Box<dyn Fn() -> io::Result<File> + Send + Sync>;
static OPENER: OnceLock<Opener> = OnceLock::new();

/// Has somebody else open the device from now on, for a process that gives up the right to: on some hosts it is root's
/// alone. The first counts.
pub fn open_tuns_by(opener: impl Fn() -> io::Result<File> + Send + Sync + 'static) {
    let _ = OPENER.set(Box::new(opener));
}

fn opened() -> io::Result<File> {
    OPENER.get().map_or_else(open_tun, |opener| opener())
}

/// Whether this host can make one.
pub(crate) fn is_available() -> io::Result<()> {
    opened().map(drop)
}

impl Tun {
    /// Makes the interface in the calling thread's network namespace.
    pub fn create(name: &str) -> Result<Tun> {
        let failed = |source| Error::io(format!("make the interface '{name}' for held handshakes"), source);
        let file = opened().map_err(failed)?;
        // SAFETY: an all-zero ifreq is a valid one.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(room)) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the descriptor is open and the request names an interface and its flags.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as libc::Ioctl, &raw mut request) };
        Errno::result(made).map_err(|errno| failed(errno.into()))?;
        // Packets written to it carry clients' addresses, to which other interfaces lead.
        interface::validate_sources_loosely(name)?;
        Ok(Tun { file })
    }

    /// An interface that another relay made.
    pub fn inherited(file: File) -> Tun {
        Tun { file }
    }

    /// The next packet, if there is one.
    pub fn read(&self, packet: &mut [u8]) -> Option<usize> {
        (&self.file).read(packet).ok()
    }

    /// Gives a packet to this host as if it had come in.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }

    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Sends whole IP packets with anybody's address, past the interception.
#[derive(Debug)]
pub(crate) struct Raw {
    ipv4: OwnedFd,
    /// Absent where the host has no IPv6.
    ipv6: Option<OwnedFd>,
    own_mark: u32,
}

impl Raw {
    pub fn new(own_mark: u32) -> Result<Raw> {
        let open = |family| raw_socket(family, own_mark);
        let ipv4 =
            open(libc::AF_INET).map_err(|source| Error::io("open a socket for whole IP packets", source))?;
        Ok(Raw { ipv4, ipv6: open(libc::AF_INET6).ok(), own_mark })
    }

    /// Sends a packet on its way to `to`. Like any packet it may be lost.
    pub fn send(&self, packet: &[u8], to: IpAddr) {
        let socket = if to.is_ipv4() { Some(&self.ipv4) } else { self.ipv6.as_ref() };
        if let Some(socket) = socket {
            let address = SockaddrStorage::from(SocketAddr::new(to, 0));
            let _ = sendto(socket.as_raw_fd(), packet, &address, MsgFlags::MSG_DONTWAIT);
        }
    }

    /// The address this host uses towards `to`.
    pub fn source_towards(&self, to: IpAddr) -> Option<IpAddr> {
        let any: SocketAddr = if to.is_ipv4() { ([0u8; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let probe = UdpSocket::bind(any).ok()?;
        socket::set_option(&probe, libc::SOL_SOCKET, libc::SO_MARK, self.own_mark as i32).ok()?;
        probe.connect((to, 9)).ok()?;
        Some(probe.local_addr().ok()?.ip())
    }
}

/// IPPROTO_RAW: sends what has its own IP header, receives nothing.
fn raw_socket(family: i32, mark: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are passed.
    let descriptor = Errno::result(unsafe { libc::socket(family, kind, libc::IPPROTO_RAW) })?;
    // SAFETY: the descriptor is new and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    socket::set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark as i32)?;
    Ok(socket)
}
