//! The control connection: messages in, messages out, and the certainty that a dead peer is noticed.

use crate::{
    control::{FrameReader, Message, encode},
    error::{Error, Result},
    sockets::{set_nonblocking, wait_for},
};
use longfat_host::monotonic_us;
use nix::poll::PollFlags;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

/// How often each end gives a sign of life.
const PING_EVERY: Duration = Duration::from_millis(500);
/// How long an end that is done waits for the other to be done too.
const FINISH_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Channel {
    socket: TcpStream,
    peer: String,
    frames: FrameReader,
    heard: Instant,
    pinged: Option<Instant>,
    timeout: Duration,
    clock: ClockOffset,
}

impl Channel {
    pub(crate) fn new(socket: TcpStream, peer: String, timeout: Duration) -> Result<Channel> {
        set_nonblocking(&socket, false)?;
        socket
            .set_write_timeout(Some(timeout))
            .map_err(|source| Error::io("bound the waits of the control connection", source))?;
        Ok(Channel {
            socket,
            peer,
            frames: FrameReader::default(),
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

    /// Waits take so long at most from now on.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    pub(crate) fn clock(&self) -> ClockOffset {
        self.clock
    }

    pub(crate) fn send(&mut self, message: &Message) -> Result<()> {
        let frame =
            encode(message).map_err(|error| Error::io("write a control message", io::Error::other(error)))?;
        self.socket.write_all(&frame).map_err(|error| self.gone(&error))
    }

    /// The next message within `wait`; pings and pongs are answered and counted here.
    pub(crate) fn poll(&mut self, wait: Duration) -> Result<Option<Message>> {
        let until = Instant::now() + wait;
        loop {
            while let Some(message) = self.next_message()? {
                if let Some(message) = self.attend(message)? {
                    return Ok(Some(message));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if !wait_for(&self.socket, PollFlags::POLLIN, Duration::ZERO)? {
                // What the other end said last counts more than a failure to reach it.
                self.ping_when_due()?;
            }
            if wait_for(&self.socket, PollFlags::POLLIN, left.min(PING_EVERY))? {
                self.read()?;
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
        let mut open = self.socket.shutdown(Shutdown::Write).is_ok();
        while open && Instant::now() < deadline {
            let readable = wait_for(&self.socket, PollFlags::POLLIN, crate::sockets::LOOK_UP);
            open = readable.is_ok_and(|readable| !readable || self.read().is_ok());
            self.frames = FrameReader::default();
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
                if let Some(message) = self.next_message()?
                    && let Some(message) = self.attend(message)?
                {
                    return Err(self.unexpected(&message));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn unexpected(&self, message: &Message) -> Error {
        let text = serde_json::to_string(message).unwrap_or_default();
        let shown: String = text.chars().take(80).collect();
        Error::Protocol { peer: self.peer.clone(), why: format!("it sent out of turn: {shown}") }
    }

    fn next_message(&mut self) -> Result<Option<Message>> {
        self.frames
            .next_message()
            .map_err(|error| Error::Protocol { peer: self.peer.clone(), why: format!("it sent {error}") })
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
            Message::Ping { time_us } => {
                self.send(&Message::Pong { ping_us: time_us, time_us: monotonic_us() })?;
                Ok(None)
            }
            Message::Pong { ping_us, time_us } => {
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
        self.send(&Message::Ping { time_us: monotonic_us() })
    }
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
    fn the_fastest_answer_decides_the_clock_offset() {
        let mut clock = ClockOffset::default();
        clock.on_pong(1000, 51_500, 2000);
        assert_eq!((clock.offset_us, clock.error_us), (50_000, 500));
        clock.on_pong(3000, 53_010, 3020);
        clock.on_pong(9000, 70_000, 11_000);
        assert_eq!((clock.offset_us, clock.error_us, clock.answers), (50_000, 10, 3));
    }
}
