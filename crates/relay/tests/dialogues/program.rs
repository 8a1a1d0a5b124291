//! Carries out one program's script with a connected socket, and remembers all that it saw.

use super::script::{Hears, Leave, Marks, SLOT, Say, Script};
use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{self as sys, MsgFlags, setsockopt, sockopt},
};
use std::{
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

/// A program that has neither left nor heard an end after this takes the other for silent.
pub const SILENCE: Duration = Duration::from_secs(5);
const MOST_BYTES: usize = 1 << 16;
/// asm-generic/sockios.h
const SIOCATMARK: libc::Ioctl = 0x8905;

/// What a program saw of one connection.
#[derive(Clone, PartialEq, Default)]
pub struct Seen {
    /// Bytes that its socket took.
    pub said: usize,
    pub say_error: Option<Errno>,
    /// What it read in the stream.
    pub heard: Vec<u8>,
    pub marks: Vec<Mark>,
    /// Bytes that had come unread when it left.
    pub unread: usize,
    /// None when it left before.
    pub end: Option<End>,
    /// When that was, or when it left.
    pub after: Duration,
    /// How long it was ready to run until then and had no processor.
    pub waited: Duration,
}

/// How long this thread has been ready to run and had no processor (proc(5), schedstat).
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().nth(1).unwrap().parse().unwrap())
}

/// A mark before the byte of that place; the byte, where it was taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub at: usize,
    pub byte: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Fin,
    Error(Errno),
    Silence,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "said {}", self.said)?;
        if let Some(error) = self.say_error {
            write!(f, ", then {error:?}")?;
        }
        write!(f, "; heard {}", self.heard.len())?;
        if !self.marks.is_empty() {
            write!(f, ", marks {:?}", self.marks)?;
        }
        match self.end {
            Some(end) => write!(f, ", then {end:?}")?,
            None => write!(f, ", left with {} unread", self.unread)?,
        }
        write!(f, " after {} ms, {} without a processor", self.after.as_millis(), self.waited.as_millis())
    }
}

/// The byte at a place of a stream.
pub fn byte_at(stream: u32, at: usize) -> u8 {
    ((at as u64).wrapping_add(u64::from(stream) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8
}

/// Carries out a script with a socket whose SO_OOBINLINE is as it says; `stream` tells its bytes from those of others.
pub fn perform(socket: TcpStream, script: &Script, stream: u32) -> Seen {
    socket.set_nonblocking(true).unwrap();
    let (begun, waited_before) = (Instant::now(), waited());
    let mut program = Program {
        script,
        stream,
        begun,
        next: 0,
        written: 0,
        resume: begun,
        hears_from: begun + SLOT * script.hears.from.into(),
        wants_room: false,
        finished: false,
        seen: Seen::default(),
        socket,
    };
    while !program.is_done() {
        if !program.step() {
            program.wait();
        }
    }
    Seen { waited: waited() - waited_before, ..program.leave() }
}

struct Program<'a> {
    socket: TcpStream,
    script: &'a Script,
    stream: u32,
    begun: Instant,
    /// The next thing to say, and how much of it is written.
    next: usize,
    written: usize,
    /// Nothing is said before this.
    resume: Instant,
    hears_from: Instant,
    wants_room: bool,
    finished: bool,
    seen: Seen,
}

impl Program<'_> {
    fn is_done(&mut self) -> bool {
        if self.begun.elapsed() > SILENCE {
            self.end(End::Silence);
            return true;
        }
        self.has_said()
            && match self.script.leave {
                Leave::Close | Leave::Reset => true,
                Leave::Finish => self.finished && self.seen.end.is_some(),
                Leave::Follow => self.seen.end.is_some(),
            }
    }

    /// Nothing is left to be said, or waited for.
    fn has_said(&self) -> bool {
        let has_said = self.next == self.script.says.len() && Instant::now() >= self.resume;
        has_said || self.seen.say_error.is_some()
    }

    fn end(&mut self, end: End) {
        if self.seen.end.is_none() {
            self.seen.end = Some(end);
            self.seen.after = self.begun.elapsed();
        }
    }

    fn leave(mut self) -> Seen {
        if self.seen.end.is_none() {
            self.seen.after = self.begun.elapsed();
        }
        self.seen.unread = self.asked(libc::FIONREAD);
        if self.script.leave == Leave::Reset || self.seen.end == Some(End::Silence) {
            let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&self.socket, sockopt::Linger, &at_once).unwrap();
        }
        self.seen
    }

    /// Whether anything was done.
    fn step(&mut self) -> bool {
        let heard = self.hear();
        self.say() || heard
    }

    fn wait(&self) {
        let now = Instant::now();
        let mut until = self.begun + SILENCE + Duration::from_millis(1);
        let mut flags = PollFlags::empty();
        if self.seen.end.is_none() {
            if now < self.hears_from {
                until = until.min(self.hears_from);
            } else {
                flags |= PollFlags::POLLIN;
                flags.set(PollFlags::POLLPRI, self.script.hears.marks == Marks::Apart);
            }
        }
        if self.resume > now {
            until = until.min(self.resume);
        }
        flags.set(PollFlags::POLLOUT, self.wants_room);
        let time = until.saturating_duration_since(now) + Duration::from_millis(1);
        if flags.is_empty() {
            // An error that nobody asks for would wake it at once.
            std::thread::sleep(time);
        } else {
            let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut [PollFd::new(self.socket.as_fd(), flags)], timeout);
        }
    }

    fn say(&mut self) -> bool {
        if self.seen.say_error.is_some() || Instant::now() < self.resume {
            return false;
        }
        let Some(say) = self.script.says.get(self.next) else { return self.finish() };
        match *say {
            Say::Wait(slots) => self.resume = Instant::now() + SLOT * slots.into(),
            Say::Hear(bytes) if self.seen.heard.len() < bytes as usize && self.seen.end.is_none() => {
                return false;
            }
            Say::Hear(_) => {}
            Say::Write(bytes) => return self.write(bytes as usize, MsgFlags::empty()),
            Say::Mark => return self.write(1, MsgFlags::MSG_OOB),
        }
        self.next += 1;
        true
    }

    fn finish(&mut self) -> bool {
        if self.finished || self.script.leave != Leave::Finish {
            return false;
        }
        self.finished = true;
        // Refused when the other has reset it, which is heard, too.
        let _ = self.socket.shutdown(Shutdown::Write);
        true
    }

    fn write(&mut self, bytes: usize, flags: MsgFlags) -> bool {
        let from = self.seen.said;
        let block: Vec<u8> = (from..from + (bytes - self.written).min(MOST_BYTES))
            .map(|at| byte_at(self.stream, at))
            .collect();
        match sys::send(self.socket.as_raw_fd(), &block, flags | MsgFlags::MSG_NOSIGNAL) {
            Ok(count) => {
                self.seen.said += count;
                self.written += count;
                if self.written == bytes {
                    (self.next, self.written) = (self.next + 1, 0);
                }
                self.wants_room = false;
                true
            }
            Err(Errno::EAGAIN) => {
                let was_told = std::mem::replace(&mut self.wants_room, true);
                !was_told
            }
            Err(errno) => {
                self.wants_room = false;
                self.seen.say_error = Some(errno);
                // Whoever cannot speak any more has finished.
                self.finished = true;
                true
            }
        }
    }

    fn hear(&mut self) -> bool {
        if self.seen.end.is_some() || Instant::now() < self.hears_from {
            return false;
        }
        // In this order: a mark that comes after the count is behind what was counted.
        let waiting = self.asked(libc::FIONREAD);
        let is_at_mark = self.asked(SIOCATMARK) != 0;
        if is_at_mark && !self.note_mark() {
            return false;
        }
        let Hears { piece, slowly, marks, .. } = self.script.hears;
        let is_before_hole = is_at_mark && marks != Marks::Inline;
        if waiting == 0 && !is_before_hole {
            return self.look();
        }
        let most = if is_before_hole { piece as usize } else { (piece as usize).min(waiting) };
        let mut block = vec![0; most];
        let heard = match sys::recv(self.socket.as_raw_fd(), &mut block, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return self.ended(End::Fin),
            Ok(count) => count,
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            Err(errno) => return self.ended(End::Error(errno)),
        };
        self.seen.heard.extend(&block[..heard]);
        if slowly {
            self.hears_from = Instant::now() + Duration::from_millis(1);
        }
        true
    }

    /// Whether the end has come, where nothing waits.
    fn look(&mut self) -> bool {
        match sys::recv(self.socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            // A mark that came with the end, since it was looked for.
            Ok(0) if self.script.hears.marks != Marks::Inline && self.asked(SIOCATMARK) != 0 => true,
            Ok(0) => self.ended(End::Fin),
            Ok(_) => true,
            Err(Errno::EAGAIN | Errno::EINTR) => false,
            Err(errno) => self.ended(End::Error(errno)),
        }
    }

    fn ended(&mut self, end: End) -> bool {
        self.end(end);
        true
    }

    /// Remembers the mark that was reached; false while its byte has not come.
    fn note_mark(&mut self) -> bool {
        let at = self.seen.heard.len();
        if self.seen.marks.last().is_some_and(|mark| mark.at == at) {
            return true;
        }
        let mut byte = [0];
        let byte = match self.script.hears.marks {
            Marks::Inline | Marks::Unread => None,
            Marks::Apart => match sys::recv(self.socket.as_raw_fd(), &mut byte, MsgFlags::MSG_OOB) {
                Ok(1) => Some(byte[0]),
                Err(Errno::EAGAIN | Errno::EINTR) => return false,
                _ => None,
            },
        };
        self.seen.marks.push(Mark { at, byte });
        true
    }

    fn asked(&self, request: libc::Ioctl) -> usize {
        let mut answer: libc::c_int = 0;
        // SAFETY: both requests write one int to the address given.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request, &raw mut answer) };
        if result == 0 { answer as usize } else { 0 }
    }
}
