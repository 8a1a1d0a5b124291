//! What holds a direction's bytes between its two sockets: a pipe (the bytes never enter user space, splice(2)), or
//! plain memory when no pipe is to be had.
//!
//! Buffers are pooled and attached only while a direction holds bytes, so an idle connection costs its two sockets
//! and nothing more. SPLICE_F_MORE is never set: it holds the last part of a message back for up to 200 ms.

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    unistd::pipe2,
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    sync::atomic::{AtomicIsize, Ordering},
};

/// Bytes one filling takes at most.
pub const BUFFER_BYTES: usize = 256 * 1024;
/// A pipe that could not be made this large (a user's share of pipe memory is used up) is worse than memory.
const SMALLEST_PIPE_BYTES: i32 = 64 * 1024;
/// Empty buffers a worker keeps for the next direction.
const POOLED: usize = 64;

/// What became of one read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// At least one byte.
    Bytes(usize),
    /// Not now.
    Blocked,
    /// The peer has finished sending.
    Ended,
    /// The socket was reset or timed out.
    Failed,
}

impl From<io::Result<usize>> for Moved {
    fn from(result: io::Result<usize>) -> Moved {
        match result {
            Ok(0) => Moved::Ended,
            Ok(bytes) => Moved::Bytes(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Moved::Blocked,
            Err(_) => Moved::Failed,
        }
    }
}

/// Holds bytes on their way.
#[derive(Debug)]
pub(crate) enum Buffer {
    Pipe { read: OwnedFd, write: OwnedFd },
    Memory { bytes: Box<[u8]>, start: usize, end: usize },
}

impl Buffer {
    /// Fills the empty buffer from a socket.
    pub fn fill(&mut self, mut from: &TcpStream) -> Moved {
        loop {
            let result = match self {
                Buffer::Pipe { write, .. } => spliced(splice(from, None, &*write, None, BUFFER_BYTES, FLAGS)),
                Buffer::Memory { bytes, start, end } => {
                    *start = 0;
                    *end = 0;
                    from.read(bytes).inspect(|count| *end = *count)
                }
            };
            if !interrupted(&result) {
                return result.into();
            }
        }
    }

    /// Gives held bytes to a socket.
    pub fn drain(&mut self, mut to: &TcpStream) -> Moved {
        loop {
            let result = match self {
                Buffer::Pipe { read, .. } => spliced(splice(&*read, None, to, None, BUFFER_BYTES, FLAGS)),
                Buffer::Memory { bytes, start, end } => {
                    to.write(&bytes[*start..*end]).inspect(|count| *start += *count)
                }
            };
            if !interrupted(&result) {
                return result.into();
            }
        }
    }

    fn pipe() -> Option<Buffer> {
        let (read, write) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).ok()?;
        // Refused beyond a user's share (fs.pipe-user-pages-soft); the pipe then keeps its default size.
        let size = fcntl(&write, FcntlArg::F_SETPIPE_SZ(BUFFER_BYTES as i32))
            .or_else(|_| fcntl(&write, FcntlArg::F_GETPIPE_SZ))
            .ok()?;
        (size >= SMALLEST_PIPE_BYTES).then_some(Buffer::Pipe { read, write })
    }

    fn memory() -> Buffer {
        Buffer::Memory { bytes: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }
}

const FLAGS: SpliceFFlags = SpliceFFlags::SPLICE_F_NONBLOCK.union(SpliceFFlags::SPLICE_F_MOVE);

fn spliced(result: nix::Result<usize>) -> io::Result<usize> {
    result.map_err(|errno: Errno| io::Error::from(errno))
}

fn interrupted(result: &io::Result<usize>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::Interrupted)
}

/// A worker's empty buffers. The number of pipes of all workers together is bounded by `pipes_left`.
#[derive(Debug)]
pub(crate) struct Pool<'a> {
    pipes: Vec<Buffer>,
    memory: Vec<Buffer>,
    pipes_left: &'a AtomicIsize,
}

impl<'a> Pool<'a> {
    pub fn new(pipes_left: &'a AtomicIsize) -> Pool<'a> {
        Pool { pipes: Vec::new(), memory: Vec::new(), pipes_left }
    }

    /// An empty buffer: a pipe when there is one to be had, else memory.
    pub fn take(&mut self) -> Buffer {
        self.pipes
            .pop()
            .or_else(|| self.new_pipe())
            .or_else(|| self.memory.pop())
            .unwrap_or_else(Buffer::memory)
    }

    /// Takes back an empty buffer.
    pub fn give(&mut self, buffer: Buffer) {
        let room = match buffer {
            Buffer::Pipe { .. } => &mut self.pipes,
            Buffer::Memory { .. } => &mut self.memory,
        };
        if room.len() < POOLED { room.push(buffer) } else { self.discard(buffer) }
    }

    /// Throws away a buffer with whatever it holds.
    pub fn discard(&mut self, buffer: Buffer) {
        let was_pipe = matches!(buffer, Buffer::Pipe { .. });
        drop(buffer);
        if was_pipe {
            self.pipes_left.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn new_pipe(&mut self) -> Option<Buffer> {
        if self.pipes_left.fetch_sub(1, Ordering::Relaxed) > 0
            && let Some(pipe) = Buffer::pipe()
        {
            return Some(pipe);
        }
        self.pipes_left.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        for socket in [&near, &far] {
            socket.set_nonblocking(true).unwrap();
        }
        (near, far)
    }

    fn carry(mut buffer: Buffer) {
        let ((mut near, far_in), (near_out, mut far)) = (pair(), pair());
        assert_eq!(buffer.fill(&far_in), Moved::Blocked);
        near.write_all(b"long fat").unwrap();
        assert_eq!(buffer.fill(&far_in), Moved::Bytes(8));
        assert_eq!(buffer.drain(&near_out), Moved::Bytes(8));
        let mut got = [0; 8];
        far.set_nonblocking(false).unwrap();
        far.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"long fat");
        drop(near);
        far_in.set_nonblocking(false).unwrap();
        let _ = far_in.peek(&mut got).unwrap();
        far_in.set_nonblocking(true).unwrap();
        assert_eq!(buffer.fill(&far_in), Moved::Ended);
    }

    #[test]
    fn a_pipe_and_plain_memory_carry_the_same_bytes() {
        carry(Buffer::pipe().unwrap());
        carry(Buffer::memory());
    }

    #[test]
    fn without_pipes_the_pool_gives_memory_and_reuses_what_it_is_given_back() {
        let left = AtomicIsize::new(1);
        let mut pool = Pool::new(&left);
        let first = pool.take();
        assert!(matches!(first, Buffer::Pipe { .. }));
        let second = pool.take();
        assert!(matches!(second, Buffer::Memory { .. }));
        pool.give(first);
        assert!(matches!(pool.take(), Buffer::Pipe { .. }));
        pool.discard(Buffer::pipe().unwrap());
        assert_eq!(left.load(Ordering::Relaxed), 1);
    }
}
