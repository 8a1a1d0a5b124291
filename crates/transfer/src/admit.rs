//! The server's wait for the data connections of one transfer.
//!
//! A connection is known by the token it shows, never by its address: a relay may stand in between. Datagrams are sent
//! only to who has answered a challenge.

use crate::{
    channel::Channel,
    datagram::{BATCH_MAX, Datagram, HEADER_BYTES, Kind},
    destination::{self, Taken},
    error::{End, Error, HINT_ONE_PORT, HINT_OWN_PORT, Result},
    gathering::{Gathering, Streams},
    halt::Halt,
    lobby::{PAUSE, is_broken, is_exhausted},
    plan::TransferPlan,
    preamble::{Opening, PREAMBLE_BYTES},
    proof::{is_same, random_bytes},
    sockets::{LOOK_UP, set_nonblocking},
};
use longfat_host::Key;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv},
};
use std::{
    io::{ErrorKind, Read},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Strangers that may wait beside the expected connections.
pub(crate) const STRANGERS_MAX: usize = 8;
/// Most that are accepted before the preambles of those who are there are read.
const ACCEPT_BATCH: usize = 64;

/// Waits for the connections of a transfer that come to the server's one port.
pub(crate) fn gathered(
    gathering: Gathering<'_>,
    streams: usize,
    at: &str,
    channel: &mut Channel,
    halt: &Halt,
    timeout: Duration,
) -> Result<Vec<TcpStream>> {
    let deadline = Instant::now() + timeout;
    while gathering.missing() > 0 {
        wait_any([gathering.as_fd(), channel.socket().as_fd()].into_iter());
        attend(channel, halt)?;
        if gathering.is_in_vain() {
            return Err(Error::Stopped);
        }
        let missing = gathering.missing();
        if missing > 0 && Instant::now() > deadline {
            return Err(Error::Absent {
                peer: channel.peer().to_owned(),
                missing,
                streams,
                what: CONNECTIONS,
                at: at.to_owned(),
                seconds: timeout.as_secs_f64(),
                hint: HINT_ONE_PORT,
            });
        }
    }
    Ok(gathering.finish())
}

const CONNECTIONS: &str = "data connections";

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

/// Waits until one of them has something to read, [`LOOK_UP`] at most.
pub(crate) fn wait_any<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) {
    let mut fds: Vec<_> = sockets.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // An error leaves nothing ready; the loop looks at everything anyway.
    let _ = poll(&mut fds, PollTimeout::try_from(LOOK_UP).unwrap_or(PollTimeout::MAX));
}

/// The listener of one transfer, and who has come to it.
pub(crate) struct Gate {
    transfer: u64,
    streams: Streams,
    waiting: Vec<Arrival>,
}

struct Arrival {
    socket: TcpStream,
    bytes: [u8; PREAMBLE_BYTES],
    filled: usize,
}

impl Gate {
    pub(crate) fn new(transfer: u64, token: u128, streams: u32) -> Gate {
        Gate { transfer, streams: Streams::new(token, streams), waiting: Vec::new() }
    }

    /// Accepts the connection of every stream.
    pub(crate) fn gather(
        mut self,
        listener: &TcpListener,
        port: u16,
        channel: &mut Channel,
        halt: &Halt,
        timeout: Duration,
    ) -> Result<Vec<TcpStream>> {
        let deadline = Instant::now() + timeout;
        while self.streams.missing() > 0 {
            let sockets = self.waiting.iter().map(|arrival| arrival.socket.as_fd());
            wait_any(sockets.chain([listener.as_fd(), channel.socket().as_fd()]));
            attend(channel, halt)?;
            self.accept(listener)?;
            self.read_preambles();
            let missing = self.streams.missing();
            if missing > 0 && Instant::now() > deadline {
                return Err(Error::Absent {
                    peer: channel.peer().to_owned(),
                    missing,
                    streams: self.streams.count(),
                    what: CONNECTIONS,
                    at: format!("TCP port {port}"),
                    seconds: timeout.as_secs_f64(),
                    hint: HINT_OWN_PORT,
                });
            }
        }
        Ok(self.streams.into_connections())
    }

    fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        for _ in 0..ACCEPT_BATCH {
            match listener.accept() {
                Ok((socket, _)) => {
                    set_nonblocking(&socket, true)?;
                    // Who shows its token at once makes nobody else go.
                    self.see_to(Arrival { socket, bytes: [0; PREAMBLE_BYTES], filled: 0 });
                    if self.waiting.len() > self.streams.missing() + STRANGERS_MAX {
                        self.waiting.remove(0);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_broken(&error) => return Err(Error::io("accept a data connection", error)),
                Err(error) if is_exhausted(&error) => {
                    // The oldest makes room. If there is none, others must: the deadline bounds how long.
                    self.waiting.drain(..self.waiting.len().min(1));
                    std::thread::sleep(PAUSE);
                    return Ok(());
                }
                // Of that connection alone.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn read_preambles(&mut self) {
        std::mem::take(&mut self.waiting).into_iter().for_each(|arrival| self.see_to(arrival));
    }

    fn see_to(&mut self, mut arrival: Arrival) {
        match arrival.read() {
            Some(true) => self.admit(arrival),
            Some(false) => self.waiting.push(arrival),
            None => {}
        }
    }

    /// Takes a connection of this transfer; drops any other.
    fn admit(&mut self, arrival: Arrival) {
        if let Ok(Opening::Data(preamble)) = Opening::of(&arrival.bytes)
            && preamble.transfer == self.transfer
        {
            self.streams.admit(&preamble, arrival.socket);
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

/// Waits until each socket has had a hello with `token`, and connects it to where that came from. A socket that is to
/// send does so only where its challenge was answered: a source address is easily forged. One that is bound to every
/// address is replaced by one of the address that the hello came to.
pub(crate) fn udp(
    sockets: &mut [UdpSocket],
    ports: &[u16],
    token: u64,
    plan: &TransferPlan,
    channel: &mut Channel,
    halt: &Halt,
) -> Result<()> {
    let timeout = Duration::from_micros(plan.timeout_us);
    let deadline = Instant::now() + timeout;
    let mut greeter = Greeter::new(token, plan, channel)?;
    let mut missing: Vec<&mut UdpSocket> = sockets.iter_mut().collect();
    while !missing.is_empty() {
        wait_any(missing.iter().map(|socket| socket.as_fd()).chain([channel.socket().as_fd()]));
        attend(channel, halt)?;
        missing.retain_mut(|socket| !greeter.greets(socket));
        if !missing.is_empty() && Instant::now() > deadline {
            return Err(Error::Absent {
                peer: channel.peer().to_owned(),
                missing: missing.len(),
                streams: sockets.len(),
                what: "UDP streams",
                at: in_words(ports),
                seconds: timeout.as_secs_f64(),
                hint: HINT_OWN_PORT,
            });
        }
    }
    Ok(())
}

/// UDP ports for a person: the one, or the lowest and the highest.
fn in_words(ports: &[u16]) -> String {
    match (ports.iter().min(), ports.iter().max()) {
        (Some(first), Some(last)) if first < last => format!("UDP ports {first} to {last}"),
        (first, _) => format!("UDP port {}", first.copied().unwrap_or(0)),
    }
}

/// Challenges for each stream that may go to other addresses than the client's own; none is longer than the hello it
/// answers.
const CHALLENGES_ELSEWHERE_MAX: usize = 16;

struct Greeter<'a> {
    token: u64,
    plan: &'a TransferPlan,
    /// The control connection's address: that the client is there, TCP has shown.
    client: IpAddr,
    /// Makes the secrets: one of each address, none of which has to be kept.
    key: Key,
    challenges_elsewhere: usize,
}

impl Greeter<'_> {
    fn new<'a>(token: u64, plan: &'a TransferPlan, channel: &Channel) -> Result<Greeter<'a>> {
        let failed = |source| Error::io("ask where the client is", source);
        let client = channel.socket().peer_addr().map_err(failed)?.ip().to_canonical();
        let key =
            Key::new(&random_bytes::<32>()?).map_err(|source| Error::Host { end: End::Sending, source })?;
        let challenges_elsewhere = CHALLENGES_ELSEWHERE_MAX * plan.streams as usize;
        Ok(Greeter { token, plan, client, key, challenges_elsewhere })
    }

    /// Whether the other end of a socket is known now; the socket is connected to it then.
    fn greets(&mut self, socket: &mut UdpSocket) -> bool {
        let (sends, mut bytes) = (self.plan.reverse, [0; HEADER_BYTES]);
        // As many as there may be streams: whoever floods one socket keeps the others waiting no longer than that.
        for _ in 0..BATCH_MAX {
            let Some(taken) = destination::take(socket, &mut bytes) else { return false };
            let head = Datagram::decode(&bytes[..taken.bytes])
                .filter(|head| is_same(self.token.into(), head.token.into()));
            match head.map(|head| (head.kind, head.sequence)) {
                Some((Kind::Hello, _)) if sends => self.challenge(socket, &taken),
                Some((Kind::Hello, _)) => return self.meet(socket, &taken),
                Some((Kind::Answer, secret))
                    if sends && is_same(self.secret(taken.from).into(), secret.into()) =>
                {
                    return self.meet(socket, &taken);
                }
                _ => {}
            }
        }
        false
    }

    /// Connects a socket to where a datagram came from, at the address that it came to.
    fn meet(&self, socket: &mut UdpSocket, taken: &Taken) -> bool {
        if let Some(Ok(own)) = taken.to.map(|to| destination::narrowed(socket, to, self.plan)) {
            *socket = own;
        }
        socket.connect(taken.from).is_ok()
    }

    fn challenge(&mut self, socket: &UdpSocket, hello: &Taken) {
        if hello.from.ip().to_canonical() != self.client {
            let Some(left) = self.challenges_elsewhere.checked_sub(1) else { return };
            self.challenges_elsewhere = left;
        }
        let sequence = self.secret(hello.from);
        let challenge = Datagram { kind: Kind::Challenge, token: self.token, sequence, time_ns: 0 };
        // One that is lost is followed by another: clients say hello until they are heard.
        let _ = destination::answer(socket, &challenge.encode(), hello.to, hello.from);
    }

    fn secret(&self, from: SocketAddr) -> u64 {
        let tag = self.key.tag(format!("longfat transfer: who is at {from}").as_bytes());
        tag.iter().take(8).fold(0, |secret, byte| secret << 8 | u64::from(*byte))
    }
}

/// The client's side: sends back the secrets of all challenges that have come.
pub(crate) fn answer(sockets: &[UdpSocket], token: u64) {
    for socket in sockets {
        let mut bytes = [0; HEADER_BYTES];
        for _ in 0..BATCH_MAX {
            let Ok(count) = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) else { break };
            let head = Datagram::decode(&bytes[..count]);
            if let Some(head) = head.filter(|head| head.kind == Kind::Challenge && head.token == token) {
                // One that is lost is asked for again.
                let _ = socket.send(&Datagram { kind: Kind::Answer, ..head }.encode());
            }
        }
    }
}
