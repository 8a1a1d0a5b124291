//! A socket that goes on where an end of a connection is (TCP_REPAIR, tcp(7)).
//!
//! The order is the kernel's: whose address may be used, mark and buffers first, sequence numbers before connect, what
//! was agreed on and the windows after it.

use super::handshake::{LegState, Reason};
use crate::{
    legs::{
        diag,
        leg::{self, Leg, REPAIR_OFF},
    },
    logic::{Pair, tcp_state::CLOSED},
};
use longfat_host::socket::{self, Buffer};
use nix::{
    errno::Errno,
    sys::socket::{SockaddrStorage, bind, connect},
};
use std::{
    io::{self, Write},
    net::TcpStream,
    os::fd::AsRawFd,
};

/// From `linux/tcp.h`.
pub(super) const RECEIVE_QUEUE: i32 = 1;
pub(super) const SEND_QUEUE: i32 = 2;
const NO_QUEUE: i32 = 0;
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW: u32 = 3;
const OPTION_SACK: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;

/// `struct tcp_repair_opt`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// `struct tcp_repair_window`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RepairWindow {
    pub snd_wl1: u32,
    pub snd_wnd: u32,
    pub max_window: u32,
    pub rcv_wnd: u32,
    pub rcv_wup: u32,
}

/// Why a leg could not be made.
#[derive(Debug)]
pub(crate) struct Failure {
    pub reason: Reason,
    pub source: io::Error,
}

impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Failure {
        let reason = match source.raw_os_error() {
            Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => Reason::PairBusy,
            _ => Reason::Socket,
        };
        Failure { reason, source }
    }
}

/// A leg in repair mode: it sends nothing before [`wake`], and vanishes without a word when it is dropped before.
#[derive(Debug)]
pub(crate) struct Repaired(TcpStream);

impl Repaired {
    /// Speaks as one end of a connection to the other.
    pub fn new(leg: &Leg<'_>, state: &LegState) -> Result<Repaired, Failure> {
        let pair = (state.own, state.peer);
        match Repaired::try_new(leg, state) {
            Err(Failure { reason: Reason::PairBusy, .. }) if diag::end_time_wait(pair) => {
                Repaired::try_new(leg, state)
            }
            outcome => outcome,
        }
    }

    fn try_new(leg: &Leg<'_>, state: &LegState) -> Result<Repaired, Failure> {
        let socket = leg.outgoing(state.own.is_ipv6())?;
        leg.plan.equip(&socket)?;
        if u64::from(state.told_window_bytes) > socket::buffer(&socket, Buffer::Receive) / 2 {
            let source = io::Error::other("the window that its peer was told is larger than its buffer");
            return Err(Failure { reason: Reason::Size, source });
        }
        // From here on closing says nothing.
        set(&socket, libc::TCP_REPAIR, 1)?;
        let socket = Repaired(socket);
        socket.connect(leg, state)?;
        socket.agree(state)?;
        socket.load(&state.unacknowledged)?;
        Ok(socket)
    }

    fn connect(&self, leg: &Leg<'_>, state: &LegState) -> io::Result<()> {
        for (queue, sequence) in [(SEND_QUEUE, state.send_next), (RECEIVE_QUEUE, state.receive_next)] {
            set(&self.0, libc::TCP_REPAIR_QUEUE, queue)?;
            set(&self.0, libc::TCP_QUEUE_SEQ, sequence as i32)?;
        }
        set(&self.0, libc::TCP_REPAIR_QUEUE, NO_QUEUE)?;
        // Before connect, which sizes segments by it; the option told below does not.
        let most = leg.plan.mss_bytes.map_or(state.peer_mss_bytes, |mss| mss.min(state.peer_mss_bytes));
        set(&self.0, libc::TCP_MAXSEG, most.min(i16::MAX as u16).into())?;
        bind(self.0.as_raw_fd(), &SockaddrStorage::from(state.own))?;
        match connect(self.0.as_raw_fd(), &SockaddrStorage::from(state.peer)) {
            Ok(()) | Err(Errno::EINPROGRESS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn agree(&self, state: &LegState) -> io::Result<()> {
        let option = |code, value| RepairOption { code, value };
        let scales = u32::from(state.peer_scale) | u32::from(state.own_scale) << 16;
        // Scales always: without them the socket keeps its own.
        let mut options =
            vec![option(OPTION_MSS, state.peer_mss_bytes.into()), option(OPTION_WINDOW, scales)];
        options.extend(state.sack.then(|| option(OPTION_SACK, 0)));
        options.extend(state.timestamp.map(|_| option(OPTION_TIMESTAMP, 0)));
        set_array(&self.0, libc::TCP_REPAIR_OPTIONS, &options)?;
        if let Some(timestamp) = state.timestamp {
            // An odd one would mean a clock of microseconds.
            set(&self.0, libc::TCP_TIMESTAMP, (timestamp.wrapping_add(1) & !1) as i32)?;
        }
        let window = RepairWindow {
            snd_wl1: state.receive_next,
            snd_wnd: state.peer_window_bytes,
            max_window: state.peer_window_bytes.max(1),
            rcv_wnd: state.told_window_bytes,
            rcv_wup: state.window_told_at,
        };
        set_window(&self.0, window)
    }

    /// Puts bytes into the queue of what was sent and is not acknowledged: no packet leaves.
    fn load(&self, mut bytes: &[u8]) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        set(&self.0, libc::TCP_REPAIR_QUEUE, SEND_QUEUE)?;
        while !bytes.is_empty() {
            let loaded = (&self.0).write(bytes).map_err(|source| Failure { reason: Reason::Size, source })?;
            bytes = &bytes[loaded..];
        }
        set(&self.0, libc::TCP_REPAIR_QUEUE, NO_QUEUE)?;
        Ok(())
    }

    /// Socket of the leg, in repair mode still: to be kept before it can be reset, and then [woken](wake).
    pub fn asleep(self) -> TcpStream {
        self.0
    }
}

/// Ends repair mode, without a word to the peer. From now on closing the socket is a reset.
pub(crate) fn wake(socket: &TcpStream) -> io::Result<()> {
    set(socket, libc::TCP_REPAIR, REPAIR_OFF)
}

/// Ends what the kernel keeps of legs that have finished after their peers had (TIME-WAIT): the end whose name each had
/// waits itself, and is who answers from now on.
pub(crate) fn forget_both(client: &TcpStream, server: &TcpStream, pair: Pair) {
    forget_finished(server, pair);
    forget_finished(client, (pair.1, pair.0));
}

fn forget_finished(socket: &TcpStream, pair: Pair) {
    if socket::tcp_info(socket).is_ok_and(|info| info.state == CLOSED) {
        diag::end_time_wait(pair);
    }
}

/// The windows of a socket in repair mode.
pub(super) fn window(socket: &TcpStream) -> io::Result<RepairWindow> {
    let mut window = RepairWindow::default();
    let mut length = size_of_val(&window) as libc::socklen_t;
    // SAFETY: the descriptor is open and `window` is valid for the length given.
    let result = unsafe {
        let at = (&raw mut window).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, at, &raw mut length)
    };
    Errno::result(result)?;
    Ok(window)
}

/// Gives a socket in repair mode other windows.
pub(super) fn set_window(socket: &TcpStream, window: RepairWindow) -> io::Result<()> {
    set_array(socket, libc::TCP_REPAIR_WINDOW, &[window])
}

/// Whether this process may repair sockets.
pub(crate) fn is_available() -> io::Result<()> {
    let any = leg::stream_socket(([0u8; 4], 0).into())?;
    socket::set_option(&any, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)
}

/// Sets an option of TCP.
pub(super) fn set(socket: &TcpStream, name: i32, value: i32) -> io::Result<()> {
    socket::set_option(socket, libc::IPPROTO_TCP, name, value)
}

fn set_array<T>(socket: &TcpStream, name: i32, values: &[T]) -> io::Result<()> {
    // SAFETY: the descriptor is open and `values` is valid for the length given; the kernel copies plain integers.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            values.as_ptr().cast(),
            size_of_val(values) as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LegPlan;
    use longfat_host::Lease;
    use std::net::SocketAddr;

    fn state((own, peer): (SocketAddr, SocketAddr)) -> LegState {
        LegState {
            own,
            peer,
            send_next: u32::MAX,
            unacknowledged: b"under way".to_vec(),
            receive_next: 0x8000_0000,
            peer_mss_bytes: 1300,
            peer_scale: 5,
            own_scale: 9,
            sack: true,
            timestamp: Some(0xffff_fff1),
            peer_window_bytes: 70_000,
            told_window_bytes: 65_160,
            window_told_at: 0x7fff_ff00,
        }
    }

    /// Read back in repair mode.
    fn window_of(socket: &TcpStream) -> RepairWindow {
        set(socket, libc::TCP_REPAIR, 1).unwrap();
        window(socket).unwrap()
    }

    #[test]
    fn a_leg_has_the_numbers_of_the_end_it_speaks_as() {
        let lease = Lease::take(&format!("rlr{}", std::process::id())).expect("root and iproute2 are needed");
        let host = lease.namespace("h").unwrap();
        for (family, network) in [("-4", "198.51.100.0/24"), ("-6", "2001:db8::/32")] {
            host.ip(&[family, "route", "add", network, "dev", "lo"]).unwrap();
        }
        let pairs = [("198.51.100.1:4000", "198.51.100.2:80"), ("[2001:db8::1]:4000", "[2001:db8::2]:80")];
        for (own, peer) in pairs {
            let plan = LegPlan::server();
            let leg = Leg { plan: &plan, transparent: Some(77) };
            let state = state((own.parse().unwrap(), peer.parse().unwrap()));
            let socket = host.run(|| Repaired::new(&leg, &state).unwrap().asleep()).unwrap();
            wake(&socket).unwrap();
            let mss = socket::option(&socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap();
            assert_eq!(mss, 1300 - 12, "{own}: what is left beside timestamps, from the first segment on");
            let timestamp = socket::option(&socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP).unwrap() as u32;
            assert!(
                timestamp.wrapping_sub(0xffff_fff2) < 60_000,
                "{timestamp}: neither behind nor far ahead"
            );
            let window = RepairWindow {
                snd_wl1: 0x8000_0000,
                snd_wnd: 70_000,
                max_window: 70_000,
                rcv_wnd: 65_160,
                rcv_wup: 0x7fff_ff00,
            };
            assert_eq!(leg::unacked_bytes(&socket), 9, "and what was sent as that end");
            assert_eq!(window_of(&socket), window);
            let second = host.run(|| Repaired::new(&leg, &state)).unwrap().unwrap_err();
            assert_eq!(second.reason, Reason::PairBusy);
            drop(socket);
            let large = LegState { told_window_bytes: 1 << 30, ..state };
            assert_eq!(host.run(|| Repaired::new(&leg, &large)).unwrap().unwrap_err().reason, Reason::Size);
        }
    }
}
