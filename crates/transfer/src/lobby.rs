//! Visitors that have connected and not yet said what they want, or which stream they carry. One thread looks after all
//! of them, with a few kilobytes each: neither silence nor noise of a stranger costs a thread, and who waits longest
//! makes room for who comes next.

use crate::{
    channel::{out_of_turn, unreadable},
    control::{Challenge, FrameReader, Hello, Message, PROTOCOL_VERSION, Proof, encode},
    error::{Error, Result},
    gathering::Gatherings,
    plan::TransferPlan,
    preamble::{Opening, PREAMBLE_BYTES, Preamble},
    proof::{Transcript, nonce},
    sockets::{LOOK_UP, set_nonblocking},
};
use longfat_host::{Key, Network};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Most that are accepted before those who are there are looked at again.
const ACCEPT_BATCH: usize = 64;
/// How long a refused client may take to read why.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// How long nobody is accepted when the host has no descriptors or memory left.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// How many may wait, and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) visitors: usize,
    pub(crate) visitors_of_peer: usize,
    pub(crate) hello_within: Duration,
}

/// A client that has said what it wants.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) visitor: Visitor,
    pub(crate) plan: TransferPlan,
    /// What the client has proven by, where there is a key.
    pub(crate) transcript: Option<Transcript>,
}

/// Somebody who has connected.
#[derive(Debug)]
pub(crate) struct Visitor {
    pub(crate) socket: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) network: Network,
    pub(crate) frames: FrameReader,
    deadline: Instant,
    stage: Stage,
}

/// How far a visitor has come.
#[derive(Debug)]
enum Stage {
    /// Too little has come to tell what the connection is for.
    Opening,
    /// A control connection.
    Arrived,
    /// The visitor has said what it wants, and is to prove that it may.
    Challenged(Box<(TransferPlan, Transcript)>),
    /// The visitor was refused, and reads why.
    Leaving,
}

/// What came of looking at the lobby once.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) requests: Vec<Request>,
    /// Visitors that could not be understood.
    pub(crate) failed: Vec<(SocketAddr, Error)>,
    /// How many left, or had to, without having said anything.
    pub(crate) silent: u64,
}

#[derive(Debug)]
pub(crate) struct Lobby<'a> {
    /// The key of the server: visitors without it are not heard.
    key: Option<&'a Key>,
    /// In the order in which they came.
    visitors: Vec<Visitor>,
    bounds: Bounds,
    /// Transfers that wait for data connections.
    gatherings: &'a Gatherings,
    paused_until: Option<Instant>,
}

/// How one look at a visitor ended.
enum Step {
    Waits,
    Asks(Box<(TransferPlan, Option<Transcript>)>),
    /// A data connection.
    Carries(Preamble),
    Gone,
    Failed(Error),
}

impl<'a> Lobby<'a> {
    pub(crate) fn new(bounds: Bounds, key: Option<&'a Key>, gatherings: &'a Gatherings) -> Lobby<'a> {
        Lobby { key, visitors: Vec::new(), bounds, gatherings, paused_until: None }
    }

    /// Waits for somebody to come or to speak, [`LOOK_UP`] at most, and sees to all of them.
    ///
    /// # Errors
    /// When the listener is broken; what peers do, or a host that has run out of something, is no error.
    pub(crate) fn turn(&mut self, listener: &TcpListener) -> Result<Turn> {
        let mut turn = Turn::default();
        let open = self.paused_until.is_none_or(|until| Instant::now() >= until);
        let ready = self.wait(open.then_some(listener));
        self.see_to_visitors(&ready, &mut turn);
        if open {
            self.paused_until = None;
            self.accept(listener, &mut turn)?;
        }
        Ok(turn)
    }

    /// Tells a visitor why not, and lets it stay until it has read that.
    pub(crate) fn refuse(&mut self, mut visitor: Visitor, error: &Error) {
        let refusal = Message::refusal(error.to_string());
        let said = visitor.say(&refusal) && visitor.socket.shutdown(Shutdown::Write).is_ok();
        if said {
            visitor.frames.clear();
            visitor.stage = Stage::Leaving;
            visitor.deadline = Instant::now() + LEAVE_WITHIN;
            self.visitors.push(visitor);
            self.make_room();
        }
    }

    /// Which visitors have something to read.
    fn wait(&self, listener: Option<&TcpListener>) -> Vec<bool> {
        let visitors = self.visitors.iter().map(|visitor| visitor.socket.as_fd());
        let fds = visitors.chain(listener.map(AsFd::as_fd));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // After an error nothing counts as ready; the next turn looks again.
        let _ = poll(&mut fds, PollTimeout::try_from(LOOK_UP).unwrap_or(PollTimeout::MAX));
        fds.iter().take(self.visitors.len()).map(|fd| fd.any().unwrap_or(false)).collect()
    }

    fn see_to_visitors(&mut self, ready: &[bool], turn: &mut Turn) {
        let now = Instant::now();
        for (visitor, ready) in std::mem::take(&mut self.visitors).into_iter().zip(ready) {
            if *ready { self.see_to(visitor, turn) } else { self.keep(visitor, now, turn) }
        }
    }

    /// Lets a visitor wait on, unless it has had its time: whatever it sends meanwhile, as long as that is no hello.
    fn keep(&mut self, visitor: Visitor, now: Instant, turn: &mut Turn) {
        if now < visitor.deadline {
            self.visitors.push(visitor);
        } else {
            turn.silent += u64::from(!visitor.is_leaving());
        }
    }

    fn see_to(&mut self, mut visitor: Visitor, turn: &mut Turn) {
        match visitor.step(self.key) {
            Step::Waits => self.keep(visitor, Instant::now(), turn),
            Step::Asks(asked) => {
                let (plan, transcript) = *asked;
                turn.requests.push(Request { visitor, plan, transcript });
            }
            Step::Carries(preamble) => {
                let Visitor { socket, peer, .. } = visitor;
                if !self.gatherings.hand_over(&preamble, socket) {
                    turn.failed.push((peer, Error::NoTransfer { peer: peer.to_string() }));
                }
            }
            Step::Gone => turn.silent += u64::from(!visitor.is_leaving()),
            Step::Failed(error) => {
                turn.failed.push((visitor.peer, error));
                let (_, error) = &turn.failed[turn.failed.len() - 1];
                self.refuse(visitor, error);
            }
        }
    }

    fn accept(&mut self, listener: &TcpListener, turn: &mut Turn) -> Result<()> {
        for _ in 0..ACCEPT_BATCH {
            match listener.accept() {
                Ok((socket, peer)) => {
                    // Who has spoken already need not wait, nor make room for others.
                    if let Ok(visitor) = Visitor::new(socket, peer, self.bounds.hello_within) {
                        self.see_to(visitor, turn);
                    }
                    turn.silent += self.make_room();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_broken(&error) => {
                    return Err(Error::io("accept a connection", error));
                }
                Err(error) if is_exhausted(&error) => {
                    turn.silent += self.turn_out_oldest(|_| true);
                    self.paused_until = Some(Instant::now() + PAUSE);
                    return Ok(());
                }
                // Of that connection alone.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Turns out who has waited longest: of a peer that has too many here, then of the one that has most. How many.
    /// There is room besides for the data connections that transfers wait for, and those of its own transfers do not
    /// count as a peer's crowd.
    fn make_room(&mut self) -> u64 {
        let Some(newest) = self.visitors.last().map(|visitor| visitor.network) else { return 0 };
        let of_newest = self.visitors.iter().filter(|visitor| visitor.network == newest).count();
        let (visitors, of_peer) = (self.bounds.visitors, self.bounds.visitors_of_peer);
        if of_newest <= of_peer && self.visitors.len() <= visitors {
            return 0;
        }
        let awaited = self.gatherings.awaited();
        if of_newest > of_peer + awaited.all {
            return self.turn_out_oldest(|network| network == newest);
        }
        if self.visitors.len() <= visitors + awaited.all {
            return 0;
        }
        let mut counts: BTreeMap<Network, usize> = BTreeMap::new();
        self.visitors.iter().for_each(|visitor| *counts.entry(visitor.network).or_default() += 1);
        let crowd = |(network, count): &(Network, usize)| count.saturating_sub(awaited.of(*network));
        let fullest = counts.into_iter().max_by_key(crowd).map(|(network, _)| network);
        self.turn_out_oldest(|network| Some(network) == fullest)
    }

    fn turn_out_oldest(&mut self, of: impl Fn(Network) -> bool) -> u64 {
        let oldest = self.visitors.iter().position(|visitor| of(visitor.network));
        oldest.map_or(0, |at| u64::from(!self.visitors.remove(at).is_leaving()))
    }
}

impl Visitor {
    fn new(socket: TcpStream, peer: SocketAddr, hello_within: Duration) -> Result<Visitor> {
        set_nonblocking(&socket, true)?;
        Ok(Visitor {
            socket,
            peer,
            network: Network::of_peer(peer.ip()),
            frames: FrameReader::of_stranger(),
            deadline: Instant::now() + hello_within,
            stage: Stage::Opening,
        })
    }

    fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving)
    }

    /// Whether the whole message was taken: the buffer of a connection on which next to nothing was sent has room.
    fn say(&mut self, message: &Message) -> bool {
        let Ok(frame) = encode(message) else { return false };
        set_nonblocking(&self.socket, true).is_ok()
            && self.socket.write(&frame).is_ok_and(|count| count == frame.len())
    }

    fn step(&mut self, key: Option<&Key>) -> Step {
        if !matches!(self.stage, Stage::Opening) {
            return self.read(key);
        }
        match self.open() {
            // What came may be a whole message; what comes next may be there already.
            None => match self.listen(key) {
                Step::Waits => self.read(key),
                step => step,
            },
            Some(step) => step,
        }
    }

    /// Reads what tells what the connection is for, and no byte that belongs to a stream's payload. `None` for a
    /// control connection.
    fn open(&mut self) -> Option<Step> {
        let mut bytes = [0; PREAMBLE_BYTES];
        let room = PREAMBLE_BYTES.saturating_sub(self.frames.held().len());
        let count = match self.socket.read(&mut bytes[..room]) {
            Ok(0) => return Some(Step::Gone),
            Ok(count) => count,
            Err(error) => return Some(unread(&error)),
        };
        self.frames.push(&bytes[..count]);
        match Opening::of(self.frames.held()) {
            Ok(Opening::Undecided) => Some(Step::Waits),
            Ok(Opening::Data(preamble)) => Some(Step::Carries(preamble)),
            Ok(Opening::Control) => {
                self.stage = Stage::Arrived;
                None
            }
            Err(error) => Some(Step::Failed(unreadable(&self.peer.to_string(), &error))),
        }
    }

    fn read(&mut self, key: Option<&Key>) -> Step {
        let mut bytes = [0; 4096];
        let room = if self.is_leaving() { bytes.len() } else { self.frames.room_bytes().min(bytes.len()) };
        match self.socket.read(&mut bytes[..room]) {
            Ok(0) => Step::Gone,
            Ok(_) if self.is_leaving() => Step::Waits,
            Ok(count) => {
                self.frames.push(&bytes[..count]);
                self.listen(key)
            }
            Err(error) => unread(&error),
        }
    }

    fn listen(&mut self, key: Option<&Key>) -> Step {
        let peer = self.peer.to_string();
        loop {
            let message = match self.frames.next_message() {
                Ok(None) => return Step::Waits,
                Ok(Some(message)) => message,
                Err(error) => return Step::Failed(unreadable(&peer, &error)),
            };
            match (std::mem::replace(&mut self.stage, Stage::Arrived), message, key) {
                (Stage::Arrived, Message::Hello(hello), None) => {
                    return Step::Asks(Box::new((hello.plan, None)));
                }
                (Stage::Arrived, Message::Hello(hello), Some(_)) => match self.challenge(hello) {
                    Ok(()) => {}
                    Err(error) => return Step::Failed(error),
                },
                (Stage::Challenged(asked), Message::Proof(Proof { proof }), Some(key)) => {
                    let (plan, transcript) = *asked;
                    if transcript.is_of_client(key, &proof) {
                        return Step::Asks(Box::new((plan, Some(transcript))));
                    }
                    return Step::Failed(Error::ForeignKey { peer });
                }
                // A sign of life, which nobody needs yet.
                (stage, Message::Ping(_), _) => self.stage = stage,
                (_, other, _) => return Step::Failed(out_of_turn(&peer, &other)),
            }
        }
    }

    fn challenge(&mut self, hello: Hello) -> Result<()> {
        let nonce = nonce()?;
        let transcript = Transcript::new(&hello, &nonce);
        if !self.say(&Message::Challenge(Challenge { version: PROTOCOL_VERSION, nonce })) {
            return Err(Error::Closed {
                peer: self.peer.to_string(),
                why: "it takes no challenge".to_owned(),
            });
        }
        self.stage = Stage::Challenged(Box::new((hello.plan, transcript)));
        Ok(())
    }
}

/// What a failed read says of a visitor.
fn unread(error: &io::Error) -> Step {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Step::Waits,
        _ => Step::Gone,
    }
}

/// An error of accept(2) that stays: the descriptor is no listener. All others are of one connection, of the network or
/// of a host that has too little of something (accept(2), "Error handling").
pub(crate) fn is_broken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EFAULT))
}

/// Whether the host, or this process, has no more descriptors or memory to accept with.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, sync::LazyLock};

    const BOUNDS: Bounds =
        Bounds { visitors: 8, visitors_of_peer: 4, hello_within: Duration::from_millis(300) };

    fn listening() -> TcpListener {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    /// Connected to the listener by loopback's address `127.0.0.HOST`, which is also its own.
    fn connected(listener: &TcpListener, host: u8) -> TcpStream {
        let port = listener.local_addr().unwrap().port();
        let to = format!("127.0.0.{host}:{port}").parse().unwrap();
        let settings = crate::sockets::Settings::control(Duration::from_secs(5));
        crate::sockets::connect_to(
            to,
            Some([127, 0, 0, host].into()),
            &settings,
            &crate::halt::Halt::default(),
        )
        .unwrap()
    }

    /// A lobby of a server without a transfer.
    fn lobby() -> Lobby<'static> {
        static NONE: LazyLock<Gatherings> = LazyLock::new(Gatherings::default);
        Lobby::new(BOUNDS, None, &NONE)
    }

    fn hosts(lobby: &Lobby<'_>) -> Vec<u8> {
        let last = |visitor: &Visitor| match visitor.peer.ip() {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(_) => 0,
        };
        lobby.visitors.iter().map(last).collect()
    }

    #[test]
    fn the_oldest_of_the_fullest_peer_makes_room_and_no_other() {
        let (listener, mut lobby) = (listening(), lobby());
        let order = [1, 1, 2, 1, 1, 3, 4, 4, 1, 1, 5, 6];
        let _sockets: Vec<_> = order
            .into_iter()
            .map(|host| {
                let socket = connected(&listener, host);
                lobby.turn(&listener).unwrap();
                socket
            })
            .collect();
        assert_eq!(hosts(&lobby), [2, 3, 4, 4, 1, 1, 5, 6]);
    }

    #[test]
    fn who_says_nothing_leaves_after_a_while_and_who_says_hello_is_heard() {
        let (listener, mut lobby) = (listening(), lobby());
        let (_silent, mut speaks) = (connected(&listener, 1), connected(&listener, 2));
        let plan = TransferPlan::default();
        let hello = encode(&Message::Hello(Hello {
            version: PROTOCOL_VERSION,
            nonce: String::new(),
            plan: plan.clone(),
        }));
        let hello = hello.unwrap();
        speaks.write_all(&hello).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let (mut heard, mut silent) = (Vec::new(), 0);
        while silent == 0 && Instant::now() < deadline {
            let turn = lobby.turn(&listener).unwrap();
            heard.extend(turn.requests.into_iter().map(|request| request.plan));
            silent += turn.silent;
        }
        assert_eq!((heard, silent, hosts(&lobby).len()), (vec![plan], 1, 0));
    }

    #[test]
    fn who_keeps_talking_without_a_hello_leaves_as_well() {
        let (listener, mut lobby) = (listening(), lobby());
        let mut talks = connected(&listener, 1);
        let ping = encode(&Message::Ping(crate::control::Ping { time_us: 1 })).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut silent = 0;
        while silent == 0 {
            assert!(Instant::now() < deadline, "it is still there");
            // Readable at every turn.
            let _ = talks.write_all(&ping);
            silent += lobby.turn(&listener).unwrap().silent;
        }
        assert_eq!((silent, lobby.visitors.len()), (1, 0));
    }

    #[test]
    fn a_hello_too_long_is_refused_at_its_first_bytes_and_its_reason_is_read() {
        let (listener, mut lobby) = (listening(), lobby());
        let mut socket = connected(&listener, 1);
        socket.write_all(&(1u32 << 20).to_be_bytes()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut failed = Vec::new();
        while failed.is_empty() && Instant::now() < deadline {
            failed = lobby.turn(&listener).unwrap().failed;
        }
        assert!(failed[0].1.to_string().contains("1048576 bytes (the limit is 8192)"), "{failed:?}");
        let mut said = Vec::new();
        socket.read_to_end(&mut said).unwrap();
        assert!(String::from_utf8_lossy(&said).contains("refused"), "{said:?}");
        drop(socket);
        while !lobby.visitors.is_empty() && Instant::now() < deadline {
            lobby.turn(&listener).unwrap();
        }
        assert!(lobby.visitors.is_empty());
    }

    fn peer(host: u8) -> Network {
        Network::of_peer([127, 0, 0, host].into())
    }

    #[test]
    fn a_crowd_of_strangers_turns_out_no_data_connection_that_a_transfer_waits_for() {
        let gatherings = Gatherings::default();
        let gathering = gatherings.begin(5, 55, peer(1), 6).unwrap();
        let (listener, mut lobby) = (listening(), Lobby::new(BOUNDS, None, &gatherings));
        // More than one peer may have otherwise, and more than all may.
        let mut data: Vec<_> = (0..6).map(|_| connected(&listener, 1)).collect();
        let _crowd: Vec<_> = (0..20).map(|at| connected(&listener, at / 2 + 2)).collect();
        while lobby.visitors.len() < 14 {
            lobby.turn(&listener).unwrap();
        }
        for (stream, socket) in (0..).zip(&mut data) {
            socket.write_all(&Preamble { transfer: 5, token: 55, stream }.encode()).unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while gathering.missing() > 0 {
            assert!(Instant::now() < deadline, "{} were turned out", gathering.missing());
            lobby.turn(&listener).unwrap();
        }
        assert!(!hosts(&lobby).contains(&1), "who is known is no visitor any more");
    }

    #[test]
    fn payload_behind_a_preamble_is_left_to_the_stream() {
        let gatherings = Gatherings::default();
        let gathering = gatherings.begin(5, 55, peer(1), 1).unwrap();
        let (listener, mut lobby) = (listening(), Lobby::new(BOUNDS, None, &gatherings));
        let mut socket = connected(&listener, 1);
        let preamble = Preamble { transfer: 5, token: 55, stream: 0 }.encode();
        // In pieces: it may come so.
        for piece in [&preamble[..2], &preamble[2..7], &preamble[7..], b"payload"] {
            socket.write_all(piece).unwrap();
            lobby.turn(&listener).unwrap();
        }
        while gathering.missing() > 0 {
            lobby.turn(&listener).unwrap();
        }
        let mut stream = gathering.finish().remove(0);
        set_nonblocking(&stream, false).unwrap();
        let mut bytes = [0; 7];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"payload");
    }

    #[test]
    fn a_data_connection_that_nobody_waits_for_is_closed_at_once_and_named() {
        let (listener, mut lobby) = (listening(), lobby());
        let mut socket = connected(&listener, 1);
        socket.write_all(&Preamble { transfer: 5, token: 55, stream: 0 }.encode()).unwrap();
        let mut failed = Vec::new();
        while failed.is_empty() {
            failed = lobby.turn(&listener).unwrap().failed;
        }
        assert!(matches!(failed[0].1, Error::NoTransfer { .. }), "{failed:?}");
        assert!(lobby.visitors.is_empty());
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    }
}
