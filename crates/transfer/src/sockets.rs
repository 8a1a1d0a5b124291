//! Sockets made as the plan asks: congestion control and buffers are set **before** connect and listen, because a
//! socket that began under another congestion control keeps its pacing, and because the window scale is fixed by
//! the handshake. What can be set after it at a server all the same, `handshake` says.

use crate::{
    error::{End, Error, Result},
    halt::Halt,
    plan::TransferPlan,
};
use longfat_host::socket::{Buffer, option, set_buffer, set_cc, set_option};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, socket,
    },
};
use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::RangeInclusive,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// How often a blocked thread looks up to see whether it should stop.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(100);
/// Receive buffer of UDP sinks when none is asked for: bursts must not be lost in the receiving host.
pub(crate) const UDP_RCVBUF_BYTES: u64 = 4 << 20;
/// Congestion control of control connections: in every kernel, and never the one under test by accident.
pub(crate) const CONTROL_CC: &str = "reno";

/// What a TCP socket is given before its handshake.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) end: Option<End>,
    pub(crate) cc: Option<String>,
    pub(crate) sndbuf_bytes: Option<u64>,
    pub(crate) rcvbuf_bytes: Option<u64>,
    pub(crate) window_bytes: Option<u64>,
    pub(crate) no_delay: bool,
    pub(crate) timeout: Duration,
}

impl Settings {
    pub(crate) fn control(timeout: Duration) -> Settings {
        Settings { cc: Some(CONTROL_CC.to_owned()), no_delay: true, timeout, ..Settings::default() }
    }

    /// Settings of a data socket at this end.
    pub(crate) fn data(plan: &TransferPlan, end: End) -> Settings {
        let sending = end == End::Sending;
        Settings {
            end: Some(end),
            cc: if sending { plan.cc_sender.clone() } else { plan.cc_receiver.clone() },
            sndbuf_bytes: plan.sndbuf_bytes.filter(|_| sending),
            rcvbuf_bytes: plan.receive_buffer_bytes().filter(|_| !sending),
            window_bytes: plan.window_bytes.filter(|_| !sending),
            // Echoes are small and must not wait for each other; nor may the tail of a rate-limited block.
            no_delay: !sending || plan.rate_bps.is_some(),
            timeout: Duration::from_micros(plan.timeout_us),
        }
    }

    /// The end whose host takes them or does not.
    pub(crate) fn end(&self) -> End {
        self.end.unwrap_or(End::Sending)
    }

    pub(crate) fn apply(&self, socket: &impl AsFd) -> Result<()> {
        let end = self.end();
        let host = |source| Error::Host { end, source };
        if let Some(cc) = &self.cc {
            set_cc(socket, cc).map_err(host)?;
        }
        for (direction, bytes) in [(Buffer::Send, self.sndbuf_bytes), (Buffer::Receive, self.rcvbuf_bytes)] {
            bytes.map_or(Ok(()), |bytes| set_buffer(socket, direction, bytes)).map_err(host)?;
        }
        if let Some(bytes) = self.window_bytes {
            clamp_window(socket, bytes).map_err(|source| Error::io("bound the window", source))?;
        }
        self.apply_liveness(socket).map_err(|source| Error::io("set a TCP option", source))
    }

    /// Ends the connection when keepalives are not answered. TCP_USER_TIMEOUT is not set: Linux (6.18) remembers
    /// when it first probed a closed window, forgets that it was opened since, and ends a connection that moves all the
    /// time at the next probe after the timeout.
    fn apply_liveness(&self, socket: &impl AsFd) -> io::Result<()> {
        let tcp = |option, value| set_option(socket, libc::IPPROTO_TCP, option, value);
        let timeout_ms = i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX);
        tcp(libc::TCP_KEEPIDLE, (timeout_ms / 4000).max(1))?;
        tcp(libc::TCP_KEEPINTVL, (timeout_ms / 4000).max(1))?;
        tcp(libc::TCP_NODELAY, i32::from(self.no_delay))?;
        set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
    }
}

/// Advertises at most so much (TCP_WINDOW_CLAMP). The kernel (6.18) takes the window for its own again when it learns
/// how much of a buffer segments fill, which is when the first full ones arrive: so this must be asked for anew.
pub(crate) fn clamp_window(socket: &impl AsFd, bytes: u64) -> io::Result<()> {
    let value = i32::try_from(bytes).unwrap_or(i32::MAX);
    if option(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP)? == value {
        return Ok(());
    }
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, value)
}

/// One for IPv6 is for IPv4 as well, whatever `net.ipv6.bindv6only` says: `[::]` is every address.
pub(crate) fn new_socket(address: &SocketAddr, kind: SockType) -> Result<OwnedFd> {
    let (family, name) =
        if address.is_ipv4() { (AddressFamily::Inet, "IPv4") } else { (AddressFamily::Inet6, "IPv6") };
    let failed = |source: io::Error| Error::io(format!("make an {name} socket"), source);
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).map_err(|errno| failed(errno.into()))?;
    if address.is_ipv6() {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0).map_err(failed)?;
    }
    Ok(socket)
}

/// A listener whose accepted sockets inherit `settings`.
pub(crate) fn listen_on(address: SocketAddr, settings: &Settings, backlog: i32) -> Result<TcpListener> {
    let refused = |source: Errno| Error::Listen { address, source: source.into() };
    let socket = new_socket(&address, SockType::Stream)?;
    settings.apply(&socket)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
        .map_err(|source| Error::Listen { address, source })?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).map_err(refused)?;
    let backlog = Backlog::new(backlog).unwrap_or(Backlog::MAXCONN);
    listen(&socket, backlog).map_err(refused)?;
    set_nonblocking(&socket, true)?;
    Ok(TcpListener::from(socket))
}

/// Ports for sockets of data: those of a range, one after the other, else any that is free.
pub(crate) fn data_ports(range: Option<&RangeInclusive<u16>>) -> Box<dyn Iterator<Item = u16>> {
    match range {
        Some(range) => Box::new(range.clone()),
        None => Box::new(std::iter::repeat(0)),
    }
}

/// What `open` makes of the next port that nobody else has; `None` when all are had.
pub(crate) fn at_free_port<T>(
    ports: &mut dyn Iterator<Item = u16>,
    open: impl Fn(u16) -> Result<T>,
) -> Option<Result<T>> {
    let is_had = |error: &Error| {
        matches!(error, Error::Listen { address, source } if address.port() != 0
            && source.kind() == io::ErrorKind::AddrInUse)
    };
    ports.map(open).find(|opened| !opened.as_ref().is_err_and(is_had))
}

/// Connects from `bind_to` (any, if none) within `settings.timeout`; gives up when `halt` is raised.
pub(crate) fn connect_to(
    address: SocketAddr,
    bind_to: Option<IpAddr>,
    settings: &Settings,
    halt: &Halt,
) -> Result<TcpStream> {
    begin_connect(address, bind_to, settings)?.finish(settings.timeout, halt)
}

/// A connection that is being made.
pub(crate) struct Connecting {
    socket: OwnedFd,
    address: SocketAddr,
}

/// Sends the first SYN, from `bind_to` (any, if none), and does not wait.
pub(crate) fn begin_connect(
    address: SocketAddr,
    bind_to: Option<IpAddr>,
    settings: &Settings,
) -> Result<Connecting> {
    let socket = new_socket(&address, SockType::Stream)?;
    settings.apply(&socket)?;
    bind_source(&socket, bind_to)?;
    set_nonblocking(&socket, true)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(Connecting { socket, address }),
        Err(errno) => Err(Error::Connect { address, source: errno.into() }),
    }
}

impl Connecting {
    /// Waits until it stands, so long at most; gives up when `halt` is raised.
    pub(crate) fn finish(self, timeout: Duration, halt: &Halt) -> Result<TcpStream> {
        let Connecting { socket, address } = self;
        wait_connected(&socket, timeout, halt, |source| Error::Connect { address, source })?;
        set_nonblocking(&socket, false)?;
        Ok(TcpStream::from(socket))
    }
}

fn bind_source(socket: &OwnedFd, bind_to: Option<IpAddr>) -> Result<()> {
    let Some(ip) = bind_to else { return Ok(()) };
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(ip, 0)))
        .map_err(|errno| Error::io(format!("use the source address {ip} (--bind)"), errno))
}

fn wait_connected(
    socket: &OwnedFd,
    timeout: Duration,
    halt: &Halt,
    refused: impl Fn(io::Error) -> Error,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !wait_for(socket, PollFlags::POLLOUT, LOOK_UP)? {
        if halt.is_raised() {
            return Err(Error::Stopped);
        }
        if Instant::now() > deadline {
            return Err(refused(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
        }
    }
    match option(socket, libc::SOL_SOCKET, libc::SO_ERROR) {
        Ok(0) => Ok(()),
        Ok(errno) => Err(refused(io::Error::from_raw_os_error(errno))),
        Err(source) => Err(refused(source)),
    }
}

/// A UDP socket bound to `address`.
pub(crate) fn udp_socket(address: SocketAddr, plan: &TransferPlan) -> Result<UdpSocket> {
    bind_udp(new_udp_socket(&address, plan)?, address)
}

/// A UDP socket of the family of `address`, with the buffers of the plan.
pub(crate) fn new_udp_socket(address: &SocketAddr, plan: &TransferPlan) -> Result<OwnedFd> {
    let socket = new_socket(address, SockType::Datagram)?;
    let buffers = [
        (End::Sending, Buffer::Send, plan.sndbuf_bytes),
        (End::Receiving, Buffer::Receive, Some(plan.rcvbuf_bytes.unwrap_or(UDP_RCVBUF_BYTES))),
    ];
    for (end, direction, bytes) in buffers {
        bytes
            .map_or(Ok(()), |bytes| set_buffer(&socket, direction, bytes))
            .map_err(|source| Error::Host { end, source })?;
    }
    Ok(socket)
}

pub(crate) fn bind_udp(socket: OwnedFd, address: SocketAddr) -> Result<UdpSocket> {
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))
        .map_err(|errno| Error::Listen { address, source: errno.into() })?;
    Ok(UdpSocket::from(socket))
}

pub(crate) fn set_nonblocking(socket: &impl AsFd, on: bool) -> Result<()> {
    let flags = if on { OFlag::O_RDWR | OFlag::O_NONBLOCK } else { OFlag::O_RDWR };
    fcntl(socket, FcntlArg::F_SETFL(flags)).map(drop).map_err(|errno| Error::io("set O_NONBLOCK", errno))
}

/// Whether `what` (or an error) came about within `span`.
pub(crate) fn wait_for(socket: &impl AsFd, what: PollFlags, span: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(socket.as_fd(), what)];
    let timeout = PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(Error::io("wait for a socket", errno)),
    }
}

/// Makes reads and writes of a data socket return after [`LOOK_UP`] at the latest.
pub(crate) fn bound_waits(socket: &TcpStream) -> Result<()> {
    set_nonblocking(socket, false)?;
    let both =
        || socket.set_read_timeout(Some(LOOK_UP)).and_then(|()| socket.set_write_timeout(Some(LOOK_UP)));
    both().map_err(|source| Error::io("bound the waits of a data socket", source))
}

/// Makes closing the socket reset the connection: nothing that is still queued will be sent.
pub(crate) fn reset_on_close(socket: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: `linger` is a valid `struct linger` of the length given; the socket is open. A failure leaves an
    // ordinary close, which the peer notices later.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        );
    }
}

/// Whether this host takes `settings` at all: asked before the other end is bothered.
pub(crate) fn probe(settings: &Settings) -> Result<()> {
    let any = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    new_socket(&any, SockType::Stream).and_then(|socket| settings.apply(&socket))
}

/// The port of a data socket, of its own address as the kernel says it.
pub(crate) fn local_port(address: io::Result<SocketAddr>) -> Result<u16> {
    address.map(|address| address.port()).map_err(|source| Error::io("read a data socket's port", source))
}
