//! The sockets of the two legs.
//!
//! Everything a leg is told is set on the listener, whose sockets inherit it, or before connect: a socket that
//! started under BBR keeps pacing after a change of congestion control, and window scaling is settled by the
//! receive buffer at the handshake. What changes nothing before a second has passed or bulk data come is set then.

use crate::{
    Error, LegPlan, Result,
    legs::{diag, queue},
    logic::{Pair, tcp_state::SYN_SENT},
};
use longfat_host::{
    socket::{self, Buffer},
    sysctl,
};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrLike, SockaddrStorage, bind,
        connect, listen,
    },
};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

const BACKLOG: i32 = 4096;
/// Unanswered keepalive probes, and seconds between them, until a silent peer counts as gone.
const KEEPALIVE_PROBES: i32 = 6;
const KEEPALIVE_INTERVAL_S: i32 = 10;
/// TCP_REPAIR_OFF_NO_WP of `linux/tcp.h`: ends repair without probing the peer's window.
pub(crate) const REPAIR_OFF: i32 = -1;

/// How the sockets of one leg are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leg<'a> {
    pub plan: &'a LegPlan,
    /// The mark of the relay's own packets, in a transparent relay: addresses of others may then be used.
    pub transparent: Option<u32>,
}

/// Whether a listener is the first on its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// Nobody else may listen there.
    Found,
    /// Another listener of this relay does.
    Join,
}

impl Leg<'_> {
    /// A listening socket. The first one takes the address for itself; later ones of this relay share it. (Were all
    /// to bind with SO_REUSEPORT, a second relay of the same user would get half of the first one's clients.)
    pub fn listen(&self, address: SocketAddr, share: Share) -> Result<TcpListener> {
        let refused = |source: io::Error| Error::Listen { address, source };
        let socket = stream_socket(address).map_err(refused)?;
        self.prepare(&socket, address.is_ipv6())?;
        self.plan.equip(&socket).map_err(refused)?;
        let flag = |name| socket::set_option(&socket, libc::SOL_SOCKET, name, 1).map_err(refused);
        flag(libc::SO_REUSEADDR)?;
        if share == Share::Join {
            flag(libc::SO_REUSEPORT)?;
        }
        if address.is_ipv6() {
            let only = i32::from(self.transparent.is_some());
            socket::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only).map_err(refused)?;
        }
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).map_err(|errno| refused(errno.into()))?;
        flag(libc::SO_REUSEPORT)?;
        let backlog = Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN);
        listen(&socket, backlog).map_err(|errno| refused(errno.into()))?;
        Ok(TcpListener::from(socket))
    }

    /// A socket to connect with. What only a connection needs that lasts is left for then ([`LegPlan::equip`]).
    pub fn outgoing(&self, ipv6: bool) -> io::Result<TcpStream> {
        let any: SocketAddr = if ipv6 { ([0u16; 8], 0).into() } else { ([0u8; 4], 0).into() };
        let socket = stream_socket(any)?;
        self.prepare(&socket, ipv6).map_err(io::Error::other)?;
        Ok(TcpStream::from(socket))
    }

    /// Sets the options of a socket that began with another leg's; what this leg does not say goes back to the
    /// system's.
    pub fn adopt(&self, socket: &impl AsFd, ipv6: bool) -> Result<()> {
        if self.plan.cc.is_none() {
            socket::set_cc(socket, &sysctl::read("net.ipv4.tcp_congestion_control")?)?;
        }
        socket::set_pacing_rate(socket, None)?;
        let reset = socket::set_option(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 0);
        reset.map_err(|source| Error::io("reset the segment size of a relay socket", source))?;
        let failed = |source| Error::io("set the options of a relay socket", source);
        self.plan.equip(socket).map_err(failed)?;
        self.prepare(socket, ipv6)
    }

    fn prepare(&self, socket: &impl AsFd, ipv6: bool) -> Result<()> {
        if let Some(name) = &self.plan.cc {
            socket::set_cc(socket, name)?;
        }
        // The window's scale is told by the SYN.
        if !(self.plan.begins_small && queue::begin_small(socket, self.plan.buffer_bytes)) {
            socket::set_buffer(socket, Buffer::Receive, self.plan.buffer_bytes)?;
        }
        if let Some(rate_bps) = self.plan.pacing_bps {
            socket::set_pacing_rate(socket, Some(rate_bps))?;
        }
        self.options(socket, ipv6).map_err(|source| Error::io("set the options of a relay socket", source))
    }

    fn options(&self, socket: &impl AsFd, ipv6: bool) -> io::Result<()> {
        let set = |level, name, value| socket::set_option(socket, level, name, value);
        // Urgent bytes stay at their place in the stream, where the relay finds their mark.
        set(libc::SOL_SOCKET, libc::SO_OOBINLINE, 1)?;
        // The relay writes whatever it has: what Nagle would hold back, nobody will complete.
        set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        if let Some(mss_bytes) = self.plan.mss_bytes {
            set(libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss_bytes.into())?;
        }
        close_with_reset(socket);
        let Some(mark) = self.transparent else { return Ok(()) };
        set(libc::SOL_SOCKET, libc::SO_MARK, mark as i32)?;
        // Many connections of one client's address and port may be there, to different servers.
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        match ipv6 {
            true => set(libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
            false => set(libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        }
    }
}

impl LegPlan {
    /// Sets what only a connection that lasts, or moves bulk data, needs: a short one goes without these calls.
    pub(crate) fn equip(&self, socket: &impl AsFd) -> io::Result<()> {
        let set = |level, name, value| socket::set_option(socket, level, name, value);
        socket::set_buffer(socket, Buffer::Send, self.buffer_bytes).map_err(io::Error::other)?;
        set(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, self.notsent_lowat_bytes as i32)?;
        if let Some(idle) = self.keepalive_idle {
            set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle.as_secs().clamp(1, 32767) as i32)?;
            set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)?;
            set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES)?;
        }
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, i32::from(self.keepalive_idle.is_some()))
    }
}

/// What became of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialled {
    UnderWay,
    /// This host has a connection of the very same addresses and ports, which lives or is ending.
    PairBusy,
}

/// Gives a socket the client's address and port. Errors have no number: they are the relay's own, not the network's.
pub(crate) fn bind_as(socket: &TcpStream, client: SocketAddr) -> io::Result<()> {
    match bind(socket.as_raw_fd(), &SockaddrStorage::from(client)) {
        Ok(()) => Ok(()),
        Err(Errno::EADDRINUSE) => bind_beside_listener(socket, client),
        Err(errno) => Err(not_bound(client, errno)),
    }
}

/// A program of this host listens on the client's port, on all addresses. That keeps others from binding to the port,
/// but not from having connections by it; under TCP_REPAIR (tcp(7)) the kernel does not ask.
fn bind_beside_listener(socket: &TcpStream, client: SocketAddr) -> io::Result<()> {
    let set = |level, name, value| socket::set_option(socket, level, name, value).map_err(io::Error::other);
    set(libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)?;
    let bound = bind(socket.as_raw_fd(), &SockaddrStorage::from(client));
    set(libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF)?;
    set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    bound.map_err(|errno| not_bound(client, errno))
}

/// Connects without waiting, with a socket that has the pair's first address and port. The same one may be tried again
/// when the pair was busy.
pub(crate) fn connect_as(socket: &TcpStream, pair: Pair) -> io::Result<Dialled> {
    match start_connect(socket, pair.1)? {
        Dialled::PairBusy if diag::end_time_wait(pair) => start_connect(socket, pair.1),
        dialled => Ok(dialled),
    }
}

/// Connects as [`connect_as`], where nobody else of the pair comes before.
pub(crate) fn connect_behind(is_behind: bool, socket: &TcpStream, pair: Pair) -> io::Result<Dialled> {
    if is_behind { Ok(Dialled::PairBusy) } else { connect_as(socket, pair) }
}

/// Connects without waiting. Only errors of the network's, and of the server's, have a number.
pub(crate) fn start_connect(socket: &TcpStream, to: SocketAddr) -> io::Result<Dialled> {
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(Dialled::UnderWay),
        Err(Errno::EADDRNOTAVAIL) => Ok(Dialled::PairBusy),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the peer has reset a connection that stood: a reset in answer to a SYN is "refused", one behind a FIN
/// "broken pipe".
pub(crate) fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Whether a peer that has reset a connection had finished sending before.
pub(crate) fn is_reset_after_fin(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// No answer of anybody's, whatever its number: that of a port which the relay may not have is also that of a
/// prohibition on the way to the server.
fn not_bound(source: SocketAddr, errno: Errno) -> io::Error {
    io::Error::other(format!("bind to {source}: {}", errno.desc()))
}

/// The sequence number behind a SYN that nobody has answered. From now on closing the socket sends nothing.
pub(crate) fn unanswered_sequence(socket: &TcpStream) -> Option<u32> {
    /// From `linux/tcp.h`.
    const SEND_QUEUE: i32 = 2;
    if socket::tcp_info(socket).ok()?.state != SYN_SENT {
        return None;
    }
    let set = |name, value| socket::set_option(socket, libc::IPPROTO_TCP, name, value).ok();
    set(libc::TCP_REPAIR, 1)?;
    set(libc::TCP_REPAIR_QUEUE, SEND_QUEUE)?;
    let sequence = socket::option(socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ).ok()?;
    Some(sequence as u32)
}

/// The next waiting client, and its address.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    // SAFETY: an all-zero sockaddr_storage is a valid one.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the descriptor is open; the kernel writes at most `length` bytes of the address.
    let descriptor = Errno::result(unsafe {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        libc::accept4(listener.as_raw_fd(), (&raw mut address).cast(), &raw mut length, flags)
    })?;
    // SAFETY: accept4 returned a new descriptor that nobody else owns.
    let client = unsafe { TcpStream::from_raw_fd(descriptor) };
    // SAFETY: the kernel wrote an address of this length.
    let address = unsafe { SockaddrStorage::from_raw((&raw const address).cast(), Some(length)) };
    let address = address.and_then(|address| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(four), _) => Some(SocketAddr::V4((*four).into())),
        (_, Some(six)) => Some(SocketAddr::V6((*six).into())),
        _ => None,
    });
    Ok((client, address.ok_or(io::ErrorKind::InvalidData)?))
}

/// Makes the coming close a reset (SO_LINGER of zero) instead of a FIN. Every socket of a relay begins so, accepted
/// ones by inheritance from their listener: when the process is killed, the kernel closes what it held, and a FIN in
/// the middle of a stream would be taken for its end.
pub(crate) fn close_with_reset(socket: &impl AsFd) {
    set_linger(socket, 1);
}

/// Has a socket hear: it is in repair mode no more, and no filter drops what comes for it. One that is in order stays
/// as it was, and so does one that has ended.
pub(crate) fn hear(socket: &TcpStream) {
    // Whoever leaves the mode without being in it lets nobody share the port any more.
    if socket::option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR).is_ok_and(|mode| mode == 1) {
        let _ = socket::set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF);
    }
    let _ = socket::set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
}

/// Resets a connection now, whoever has descriptors of its socket besides.
pub(crate) fn reset(socket: &TcpStream) {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the descriptor is open and the address is valid for the length given. What is closed already refuses.
    unsafe {
        libc::connect(socket.as_raw_fd(), &raw const nobody, size_of::<libc::sockaddr>() as libc::socklen_t);
    }
}

/// Has the peer say something: leaving repair mode with a window probe, which every end answers.
pub(crate) fn probe(socket: &TcpStream) {
    for value in [1, 0] {
        // A socket that refuses has ended.
        let _ = socket::set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, value);
    }
}

/// Makes the coming close an orderly one.
pub(crate) fn close_with_fin(socket: &impl AsFd) {
    set_linger(socket, 0);
}

fn set_linger(socket: &impl AsFd, on: libc::c_int) {
    let linger = libc::linger { l_onoff: on, l_linger: 0 };
    // A socket that refuses is reset already.
    // SAFETY: the descriptor is open and `linger` is valid for the length given.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        );
    }
}

/// The first bytes that are written carry the handshake's last acknowledgement: a segment less, and the server is woken
/// once. Without bytes it is owed ([`acknowledge`]); the kernel sends it after 200 ms by itself.
pub(crate) fn acknowledge_with_data(socket: &impl AsFd) {
    set_quick_acknowledgements(socket, 0);
}

/// Sends the acknowledgement that is owed.
pub(crate) fn acknowledge(socket: &impl AsFd) {
    set_quick_acknowledgements(socket, 1);
}

fn set_quick_acknowledgements(socket: &impl AsFd, on: i32) {
    // A socket that refuses acknowledges as ever.
    let _ = socket::set_option(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, on);
}

/// Reports data of this socket when so much has come (SO_RCVLOWAT); its end, errors and a full window are always
/// reported.
pub(crate) fn wake_at(socket: &impl AsFd, bytes: u64) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    // A socket that refuses has ended.
    let _ = socket::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
}

/// Bytes sent or waiting to be sent and not yet acknowledged (SIOCOUTQ); a FIN counts as one.
pub(crate) fn unacked_bytes(socket: &impl AsFd) -> u64 {
    queue_bytes(socket, libc::TIOCOUTQ)
}

/// Bytes waiting to be sent for the first time (SIOCOUTQNSD).
pub(crate) fn unsent_bytes(socket: &impl AsFd) -> u64 {
    /// `linux/sockios.h`.
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    queue_bytes(socket, SIOCOUTQNSD)
}

/// Bytes received and not yet read (SIOCINQ).
pub(crate) fn unread_bytes(socket: &impl AsFd) -> u64 {
    queue_bytes(socket, libc::FIONREAD)
}

/// Memory of what a socket has received and nobody has read, also behind a gap, and of what is not acknowledged
/// (SO_MEMINFO): many small segments are more than their bytes.
pub(crate) fn memory_bytes(socket: &impl AsFd) -> u64 {
    /// `linux/sock_diag.h`: the values, and those of interest.
    const VALUES: usize = 9;
    const RECEIVED: usize = 0;
    const QUEUED_TO_SEND: usize = 5;
    let mut values = [0u32; VALUES];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, of numbers of 32 bits.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { u64::from(values[RECEIVED]) + u64::from(values[QUEUED_TO_SEND]) } else { 0 }
}

/// Whether the next byte is the one that an urgent mark stands at (SIOCATMARK).
pub(crate) fn is_at_mark(socket: &impl AsFd) -> bool {
    /// `linux/sockios.h`.
    const SIOCATMARK: libc::Ioctl = 0x8905;
    queue_bytes(socket, SIOCATMARK) != 0
}

fn queue_bytes(socket: &impl AsFd, request: libc::Ioctl) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: each of these requests writes one int.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request, &raw mut bytes) };
    if result == 0 { bytes.max(0) as u64 } else { 0 }
}

pub(crate) fn stream_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    Ok(nix::sys::socket::socket(family, SockType::Stream, flags, SockProtocol::Tcp)?)
}
