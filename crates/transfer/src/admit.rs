//! The server's wait for the data connections of one transfer.
//!
//! A connection is known by the token it shows, never by its address: a relay may stand in between.

use crate::{
    channel::Channel,
    control::{PREAMBLE_BYTES, Preamble},
    datagram::{Datagram, HEADER_BYTES, Kind},
    error::{Error, Result},
    halt::Halt,
    sockets::{LOOK_UP, set_nonblocking},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io::{ErrorKind, Read},
    net::{TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Strangers that may wait beside the expected connections.
const STRANGERS_MAX: usize = 64;

/// Accepts the `streams` connections that show `token`.
pub(crate) fn tcp(
    listener: &TcpListener,
    token: u128,
    streams: u32,
    channel: &mut Channel,
    halt: &Halt,
    timeout: Duration,
) -> Result<Vec<TcpStream>> {
    let mut gate = Gate { token, admitted: (0..streams).map(|_| None).collect(), waiting: Vec::new() };
    let deadline = Instant::now() + timeout;
    while gate.admitted.iter().any(Option::is_none) {
        let sockets = gate.waiting.iter().map(|arrival| arrival.socket.as_fd());
        wait_any(sockets.chain([listener.as_fd(), channel.socket().as_fd()]));
        attend(channel, halt)?;
        gate.accept(listener)?;
        gate.read_preambles();
        let missing = gate.admitted.iter().filter(|slot| slot.is_none()).count();
        if missing > 0 && Instant::now() > deadline {
            return Err(absent(channel, missing, streams, "data connections", timeout));
        }
    }
    Ok(gate.admitted.into_iter().flatten().collect())
}

fn absent(channel: &Channel, missing: usize, streams: u32, what: &str, timeout: Duration) -> Error {
    let seconds = timeout.as_secs_f64();
    let why = format!(
        "{missing} of its {streams} {what} did not arrive within {seconds:.1} s (a firewall between?)"
    );
    Error::Protocol { peer: channel.peer().to_owned(), why }
}

/// Answers pings; anything else is out of turn.
fn attend(channel: &mut Channel, halt: &Halt) -> Result<()> {
    if halt.is_raised() {
        return Err(Error::Stopped);
    }
    match channel.poll(Duration::ZERO)? {
        None => Ok(()),
        Some(message) => Err(channel.unexpected(&message)),
    }
}

fn wait_any<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) {
    let mut fds: Vec<_> = sockets.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // An error leaves nothing ready; the loop looks at everything anyway.
    let _ = poll(&mut fds, PollTimeout::try_from(LOOK_UP).unwrap_or(PollTimeout::MAX));
}

struct Gate {
    token: u128,
    admitted: Vec<Option<TcpStream>>,
    waiting: Vec<Arrival>,
}

struct Arrival {
    socket: TcpStream,
    bytes: [u8; PREAMBLE_BYTES],
    filled: usize,
}

impl Gate {
    fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    set_nonblocking(&socket, true)?;
                    if self.waiting.len() >= self.admitted.len() + STRANGERS_MAX {
                        self.waiting.remove(0);
                    }
                    self.waiting.push(Arrival { socket, bytes: [0; PREAMBLE_BYTES], filled: 0 });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Gone before it was accepted.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => return Err(Error::io("accept a data connection", error)),
            }
        }
    }

    fn read_preambles(&mut self) {
        for mut arrival in std::mem::take(&mut self.waiting) {
            match arrival.read() {
                Some(true) => self.admit(arrival),
                Some(false) => self.waiting.push(arrival),
                None => {}
            }
        }
    }

    /// Takes a connection with the right token and a free stream number; drops any other.
    fn admit(&mut self, arrival: Arrival) {
        let Some(preamble) = Preamble::decode(arrival.bytes) else { return };
        if preamble.token != self.token {
            return;
        }
        if let Some(slot @ None) = self.admitted.get_mut(preamble.stream as usize) {
            *slot = Some(arrival.socket);
        }
    }
}

impl Arrival {
    /// Whether the preamble is whole; `None` when the connection is of no use.
    fn read(&mut self) -> Option<bool> {
        match self.socket.read(&mut self.bytes[self.filled..]) {
            Ok(0) => None,
            Ok(count) => {
                self.filled += count;
                Some(self.filled == PREAMBLE_BYTES)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Some(false)
            }
            Err(_) => None,
        }
    }
}

/// Waits until each socket has had a hello with `token`, and connects it to where that came from.
pub(crate) fn udp(
    sockets: &[UdpSocket],
    token: u64,
    channel: &mut Channel,
    halt: &Halt,
    timeout: Duration,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let mut missing: Vec<&UdpSocket> = sockets.iter().collect();
    for socket in sockets {
        set_nonblocking(socket, true)?;
    }
    while !missing.is_empty() {
        wait_any(missing.iter().map(|socket| socket.as_fd()).chain([channel.socket().as_fd()]));
        attend(channel, halt)?;
        missing.retain(|socket| !greeted(socket, token));
        if !missing.is_empty() && Instant::now() > deadline {
            return Err(absent(channel, missing.len(), sockets.len() as u32, "UDP streams", timeout));
        }
    }
    sockets.iter().try_for_each(|socket| set_nonblocking(socket, false))
}

fn greeted(socket: &UdpSocket, token: u64) -> bool {
    let mut bytes = [0; HEADER_BYTES];
    while let Ok((count, from)) = socket.recv_from(&mut bytes) {
        let head = Datagram::decode(&bytes[..count]);
        if head.is_some_and(|head| head.kind == Kind::Hello && head.token == token) {
            return socket.connect(from).is_ok();
        }
    }
    false
}
