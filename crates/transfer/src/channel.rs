//! The control connection: messages in, messages out, and the certainty that a dead peer is noticed.

use crate::{
    control::{FRAME_MAX_BYTES, FrameError, FrameReader, Message, PROTOCOL_VERSION, Ping, Pong, encode},
    error::{Error, Result},
    sockets::{set_nonblocking, wait_for},
};
use longfat_host::monotonic_us;
use longfat_schema::text::one_line;
use nix::poll::PollFlags;
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

/// How often each end gives a sign of life.
const PING_EVERY: Duration = Duration::from_millis(500);
/// How long an end that is done waits for the other to be done too.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
/// Most that waits until the other end takes it: the longest message, and what is small besides.
const UNSENT_MAX_BYTES: usize = FRAME_MAX_BYTES + (64 << 10);
/// What is kept of that room while nothing waits.
const UNSENT_KEPT_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Channel {
    socket: TcpStream,
    peer: String,
    frames: FrameReader,
    /// What was said and the connection has not taken yet: an end that reads nothing keeps nobody waiting.
    unsent: VecDeque<u8>,
    /// When the connection took something last, or there was nothing to take.
    taken: Instant,
    heard: Instant,
    pinged: Option<Instant>,
    timeout: Duration,
    clock: ClockOffset,
}

impl Channel {
    /// With a server that has just been connected to.
    pub(crate) fn new(socket: TcpStream, peer: String, timeout: Duration) -> Result<Channel> {
        Channel::resume(socket, peer, FrameReader::of_server(), timeout)
    }

    /// Goes on where `frames` has read up to.
    pub(crate) fn resume(
        socket: TcpStream,
        peer: String,
        frames: FrameReader,
        timeout: Duration,
    ) -> Result<Channel> {
        set_nonblocking(&socket, true)?;
        Ok(Channel {
            socket,
            peer,
            frames,
            unsent: VecDeque::new(),
            taken: Instant::now(),
            heard: Instant::now(),
            pinged: None,
            timeout,
            clock: ClockOffset::default(),
        })
    }

    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn clock(&self) -> ClockOffset {
        self.clock
    }

    /// Says something, without waiting until it has gone out: what the connection does not take now follows as it does.
    pub(crate) fn send(&mut self, message: &Message) -> Result<()> {
        let frame =
            encode(message).map_err(|error| Error::io("write a control message", io::Error::other(error)))?;
        if self.unsent.len() + frame.len() > UNSENT_MAX_BYTES {
            return Err(self.deaf());
        }
        if self.unsent.is_empty() {
            self.taken = Instant::now();
        }
        self.unsent.extend(frame);
        self.flush()
    }

    /// Whether all that was said has gone out.
    pub(crate) fn is_clear(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Writes what waits as far as the connection takes it.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(self.unsent.as_slices().0) {
                Ok(0) => return Err(self.gone(&io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.unsent.drain(..count);
                    self.taken = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(self.gone(&error)),
                Err(_) if self.taken.elapsed() > self.timeout => return Err(self.deaf()),
                Err(_) => return Ok(()),
            }
        }
        self.unsent.shrink_to(UNSENT_KEPT_BYTES);
        Ok(())
    }

    fn deaf(&self) -> Error {
        Error::Closed { peer: self.peer.clone(), why: "it does not read what it is told".to_owned() }
    }

    /// What to wait for: words of the other end, and room for those that wait for it.
    fn interest(&self) -> PollFlags {
        if self.is_clear() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT }
    }

    /// The next message within `wait`; pings and pongs are answered and counted here, though not for longer than that:
    /// a peer that sends nothing else must not keep its caller.
    pub(crate) fn poll(&mut self, wait: Duration) -> Result<Option<Message>> {
        let until = Instant::now() + wait;
        let mut has_read = false;
        loop {
            while let Some(message) = self.next_message()? {
                if let Some(message) = self.attend(message)? {
                    return Ok(Some(message));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && has_read {
                return Ok(None);
            }
            if !wait_for(&self.socket, PollFlags::POLLIN, Duration::ZERO)? {
                // What the other end said last counts more than a failure to reach it.
                self.flush()?;
                self.ping_when_due()?;
            }
            if wait_for(&self.socket, self.interest(), left.min(PING_EVERY))? {
                self.read()?;
                has_read = true;
            } else if self.heard.elapsed() > self.timeout {
                return Err(Error::Silent {
                    peer: self.peer.clone(),
                    seconds: self.heard.elapsed().as_secs_f64(),
                });
            } else if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// The next message, however long it takes within the timeout; `halted` is asked in between.
    pub(crate) fn expect(&mut self, halted: impl Fn() -> bool) -> Result<Message> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(message) = self.poll(crate::sockets::LOOK_UP)? {
                return Ok(message);
            }
            if halted() {
                return Err(Error::Stopped);
            }
            if Instant::now() > deadline {
                let seconds = self.timeout.as_secs_f64();
                return Err(Error::Silent { peer: self.peer.clone(), seconds });
            }
        }
    }

    /// Ends the conversation so that what was said last arrives: closing with unread bytes would reset the connection
    /// and might take the last message with it.
    pub(crate) fn finish(&mut self) {
        let deadline = Instant::now() + FINISH_LIMIT;
        let (mut open, mut has_said_all) = (true, false);
        while open && Instant::now() < deadline {
            open = self.flush().is_ok();
            if open && self.is_clear() && !has_said_all {
                has_said_all = true;
                open = self.socket.shutdown(Shutdown::Write).is_ok();
            }
            let ready = wait_for(&self.socket, self.interest(), crate::sockets::LOOK_UP);
            open &= ready.is_ok_and(|ready| !ready || self.read().is_ok());
            self.frames.clear();
        }
    }

    /// Exchanges `count` pings to learn the other clock before there is any load.
    pub(crate) fn learn_clock(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            let asked = self.clock.answers;
            self.ping()?;
            let deadline = Instant::now() + self.timeout.min(Duration::from_secs(3));
            while self.clock.answers == asked && Instant::now() < deadline {
                if wait_for(&self.socket, PollFlags::POLLIN, crate::sockets::LOOK_UP)? {
                    self.read()?;
                }
                self.flush()?;
                if let Some(message) = self.next_message()?
                    && let Some(message) = self.attend(message)?
                {
                    return Err(self.unexpected(&message));
                }
            }
        }
        Ok(())
    }

    /// The client may send what a transfer of so many streams makes it say.
    pub(crate) fn agree_on(&mut self, streams: u32) {
        self.frames.agree_on(streams);
    }

    pub(crate) fn unexpected(&self, message: &Message) -> Error {
        out_of_turn(&self.peer, message)
    }

    fn next_message(&mut self) -> Result<Option<Message>> {
        self.frames.next_message().map_err(|error| unreadable(&self.peer, &error))
    }

    fn read(&mut self) -> Result<()> {
        let mut bytes = [0; 16 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => Err(Error::Closed { peer: self.peer.clone(), why: "it ended or was killed".into() }),
            Ok(count) => {
                self.heard = Instant::now();
                self.frames.push(&bytes[..count]);
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(())
            }
            Err(error) => Err(self.gone(&error)),
        }
    }

    fn gone(&self, error: &io::Error) -> Error {
        Error::Closed { peer: self.peer.clone(), why: error.to_string() }
    }

    /// Answers pings, takes pongs; other messages are the caller's.
    fn attend(&mut self, message: Message) -> Result<Option<Message>> {
        match message {
            Message::Ping(Ping { time_us }) => {
                self.send(&Message::Pong(Pong { ping_us: time_us, time_us: monotonic_us() }))?;
                Ok(None)
            }
            Message::Pong(Pong { ping_us, time_us }) => {
                self.clock.on_pong(ping_us, time_us, monotonic_us());
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }

    fn ping_when_due(&mut self) -> Result<()> {
        if self.pinged.is_some_and(|pinged| pinged.elapsed() < PING_EVERY) { Ok(()) } else { self.ping() }
    }

    fn ping(&mut self) -> Result<()> {
        self.pinged = Some(Instant::now());
        self.send(&Message::Ping(Ping { time_us: monotonic_us() }))
    }
}

/// The error of a message that nobody waits for.
pub(crate) fn out_of_turn(peer: &str, message: &Message) -> Error {
    let text = serde_json::to_string(message).unwrap_or_default();
    Error::Protocol { peer: peer.to_owned(), why: format!("it sent out of turn: {}", beginning(&text)) }
}

/// The error of what cannot be read.
pub(crate) fn unreadable(peer: &str, error: &FrameError) -> Error {
    let peer = peer.to_owned();
    match error {
        FrameError::Version(theirs) => Error::Version { peer, theirs: *theirs, ours: PROTOCOL_VERSION },
        error => Error::Protocol { peer, why: format!("it sent {}", beginning(&error.to_string())) },
    }
}

/// As much of what a peer wrote as is shown, as part of a line.
pub(crate) fn beginning(text: &str) -> String {
    let beginning: String = text.chars().take(160).collect();
    one_line(&beginning).into_owned()
}

/// How the other end's CLOCK_MONOTONIC differs from ours, from the fastest question and answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    /// Theirs minus ours.
    pub(crate) offset_us: i64,
    /// Half the round trip of the best answer: the estimate cannot be further off.
    pub(crate) error_us: i64,
    /// Answers so far.
    pub(crate) answers: u64,
}

impl ClockOffset {
    fn on_pong(&mut self, asked_us: i64, theirs_us: i64, now_us: i64) {
        let error_us = now_us.saturating_sub(asked_us) / 2;
        if error_us >= 0 && (self.answers == 0 || error_us < self.error_us) {
            self.offset_us = theirs_us.saturating_sub(asked_us.saturating_add(error_us));
            self.error_us = error_us;
        }
        self.answers += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_does_nothing_but_ask_keeps_nobody_from_his_other_duties() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let frames = FrameReader::of_stranger();
        let mut channel = Channel::resume(socket, "peer".into(), frames, Duration::from_secs(5)).unwrap();
        let pings = encode(&Message::Ping(Ping { time_us: 1 })).unwrap().repeat(3000);
        peer.write_all(&pings).unwrap();
        assert!(channel.poll(Duration::ZERO).unwrap().is_none());
        let more = wait_for(channel.socket(), PollFlags::POLLIN, Duration::ZERO);
        assert!(more.unwrap(), "it has read all that there was to read");
    }

    /// A channel, and the end of the connection that nobody reads.
    fn unread(timeout: Duration) -> (Channel, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let channel = Channel::resume(socket, "peer".into(), FrameReader::of_stranger(), timeout);
        (channel.unwrap(), peer)
    }

    fn long_message() -> Message {
        Message::refusal("x".repeat(FRAME_MAX_BYTES / 2))
    }

    #[test]
    fn a_peer_that_reads_nothing_keeps_nobody_waiting_and_gets_no_more_than_there_is_room_for() {
        let (mut channel, _peer) = unread(Duration::from_secs(3600));
        let begun = Instant::now();
        let said = (0..100).find_map(|_| channel.send(&long_message()).err()).unwrap().to_string();
        assert!(said.contains("does not read"), "{said}");
        assert!(channel.unsent.len() <= UNSENT_MAX_BYTES);
        channel.poll(Duration::from_millis(20)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_peer_that_takes_nothing_for_the_timeout_is_given_up() {
        let (mut channel, mut peer) = unread(Duration::from_millis(400));
        let alive = encode(&Message::Pong(Pong { ping_us: 1, time_us: 1 })).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let said = loop {
            peer.write_all(&alive).unwrap();
            // Buffers grow: what they take for a while is not yet all that they do.
            let said = if channel.is_clear() { channel.send(&long_message()) } else { Ok(()) };
            if let Err(error) = said.and_then(|()| channel.poll(Duration::from_millis(20))) {
                break error.to_string();
            }
            assert!(Instant::now() < deadline);
        };
        assert!(said.contains("does not read"), "{said}");
    }

    #[test]
    fn what_waits_goes_out_as_the_peer_reads() {
        let (mut channel, mut peer) = unread(Duration::from_secs(20));
        let mut frames = 0;
        while channel.is_clear() {
            channel.send(&long_message()).unwrap();
            frames += 1;
        }
        let expected = frames * encode(&long_message()).unwrap().len() as u64;
        let reading =
            std::thread::spawn(move || std::io::copy(&mut (&mut peer).take(expected), &mut io::sink()));
        channel.finish();
        assert!(channel.is_clear());
        assert_eq!(reading.join().unwrap().unwrap(), expected);
    }

    #[test]
    fn the_fastest_answer_decides_the_clock_offset() {
        let mut clock = ClockOffset::default();
        clock.on_pong(1000, 51_500, 2000);
        assert_eq!((clock.offset_us, clock.error_us), (50_000, 500));
        clock.on_pong(3000, 53_010, 3020);
        clock.on_pong(9000, 70_000, 11_000);
        assert_eq!((clock.offset_us, clock.error_us, clock.answers), (50_000, 10, 3));
    }
}
