//! What holds a direction's bytes between its two sockets: a pipe (the bytes never enter user space, splice(2)), or
//! plain memory when no pipe is to be had.
//!
//! Buffers are pooled and attached only while a direction holds bytes, so an idle connection costs its two sockets
//! and nothing more. SPLICE_F_MORE is never set: it holds the last part of a message back for up to 200 ms.

use crate::{
    keeping::{Keeping, record::Holding},
    legs::leg,
    logic::connection::Direction,
    plan::{BUFFER_BYTES, PAGE_BYTES, PIPE_PAGES},
};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    sys::socket::{MsgFlags, recv, send},
    unistd::pipe2,
};
use std::{
    io::{self, ErrorKind},
    net::TcpStream,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::atomic::{AtomicIsize, Ordering},
};

/// A pipe's size.
const PIPE_BYTES: usize = PIPE_PAGES * PAGE_BYTES;
/// A pipe that could not be made this large (a user's share of pipe memory is used up) is worse than memory.
const SMALLEST_PIPE_BYTES: i32 = 64 * 1024;
/// What a direction is given when the large buffers are used up, or its connection may not have one: with at most two
/// of these per connection, memory stays bounded and every connection goes on moving.
pub(crate) const SMALL_BYTES: usize = 4 * 1024;
/// Empty buffers a worker keeps for the next direction.
const POOLED: usize = 64;

/// What one call made of a read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// At least one byte.
    Bytes(usize),
    /// Not now.
    Blocked,
    /// Zero bytes. Of splice(2) that need not be the end ([`crate::legs::inbound`]).
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
    /// Fills the empty buffer from a socket, with so many bytes at most. A copy leaves them in the socket, too; a pipe
    /// never does.
    pub fn fill(&mut self, from: &TcpStream, most_bytes: usize, is_copy: bool) -> Moved {
        let most_bytes = most_bytes.clamp(1, BUFFER_BYTES);
        loop {
            let result = match self {
                Buffer::Pipe { write, .. } => spliced(splice(from, None, &*write, None, most_bytes, FLAGS)),
                Buffer::Memory { bytes, start, end } => {
                    *start = 0;
                    *end = 0;
                    let most_bytes = most_bytes.min(bytes.len());
                    let flags = if is_copy { MsgFlags::MSG_PEEK } else { MsgFlags::empty() };
                    let received = recv(from.as_raw_fd(), &mut bytes[..most_bytes], flags);
                    received.map_err(io::Error::from).inspect(|count| *end = *count)
                }
            };
            if !interrupted(&result) {
                return result.into();
            }
        }
    }

    /// Whether a filling of so many bytes, of at most so many, took all that the socket had (epoll(7) counts on the
    /// same). A pipe may be full with less than was asked for: each piece of a packet takes a page of it.
    pub fn took_all(&self, bytes: usize, most_bytes: usize) -> bool {
        let most_bytes = most_bytes.clamp(1, BUFFER_BYTES);
        matches!(self, Buffer::Memory { bytes: room, .. } if bytes < most_bytes.min(room.len()))
    }

    /// Whether a filling that begins at an urgent mark takes its byte like any other (recv(2)); splice(2) stops before
    /// it.
    pub fn passes_marks(&self) -> bool {
        matches!(self, Buffer::Memory { .. })
    }

    /// Gives held bytes to a socket. The last ones, behind which it is shut down at once, leave with its FIN in one
    /// segment; those of a pipe do not.
    pub fn drain(&mut self, to: &TcpStream, are_last: bool) -> Moved {
        let more = if are_last { libc::MSG_MORE } else { 0 };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::from_bits_retain(more);
        loop {
            let result = match self {
                Buffer::Pipe { read, .. } => spliced(splice(&*read, None, to, None, BUFFER_BYTES, FLAGS)),
                Buffer::Memory { bytes, start, end } => {
                    let sent = send(to.as_raw_fd(), &bytes[*start..*end], flags);
                    sent.map_err(io::Error::from).inspect(|count| *start += *count)
                }
            };
            if !interrupted(&result) {
                return result.into();
            }
        }
    }

    /// Whether bytes never enter user space.
    pub fn is_pipe(&self) -> bool {
        matches!(self, Buffer::Pipe { .. })
    }

    /// Takes so many bytes out of a pipe, which has them.
    pub fn take_all(&self, count: usize) -> io::Result<Vec<u8>> {
        let Buffer::Pipe { read, .. } = self else { return Err(ErrorKind::InvalidInput.into()) };
        if leg::unread_bytes(read) < count as u64 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; count];
        let mut taken = 0;
        while taken < count {
            taken += nix::unistd::read(read, &mut bytes[taken..])?;
        }
        Ok(bytes)
    }

    fn pipe() -> Option<Buffer> {
        let (read, write) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).ok()?;
        // Refused beyond a user's share (fs.pipe-user-pages-soft); the pipe then keeps its default size.
        let size = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES as i32))
            .or_else(|_| fcntl(&write, FcntlArg::F_SETPIPE_SZ(BUFFER_BYTES as i32)))
            .or_else(|_| fcntl(&write, FcntlArg::F_GETPIPE_SZ))
            .ok()?;
        (size >= SMALLEST_PIPE_BYTES).then_some(Buffer::Pipe { read, write })
    }

    fn memory(bytes: usize) -> Buffer {
        Buffer::Memory { bytes: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    /// A buffer in memory with these bytes, to be drained.
    pub fn holding(mut bytes: Vec<u8>) -> Buffer {
        let end = bytes.len();
        bytes.resize(if end <= SMALL_BYTES { SMALL_BYTES } else { BUFFER_BYTES.max(end) }, 0);
        Buffer::Memory { bytes: bytes.into_boxed_slice(), start: 0, end }
    }

    fn is_small(&self) -> bool {
        matches!(self, Buffer::Memory { bytes, .. } if bytes.len() == SMALL_BYTES)
    }
}

const FLAGS: SpliceFFlags = SpliceFFlags::SPLICE_F_NONBLOCK.union(SpliceFFlags::SPLICE_F_MOVE);

fn spliced(result: nix::Result<usize>) -> io::Result<usize> {
    result.map_err(|errno: Errno| io::Error::from(errno))
}

fn interrupted(result: &io::Result<usize>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::Interrupted)
}

/// What all workers together may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Pipes: each takes two descriptors.
    pub pipes_left: AtomicIsize,
    /// Buffers of [`BUFFER_BYTES`], pipes or memory.
    pub buffers_left: AtomicIsize,
}

impl Budget {
    /// A budget of so many pipes, and of so many bytes of large buffers together.
    pub fn new(pipes: usize, bytes: u64) -> Budget {
        let buffers = isize::try_from(bytes / BUFFER_BYTES as u64).unwrap_or(isize::MAX / 2);
        Budget { pipes_left: AtomicIsize::new(pipes as isize), buffers_left: AtomicIsize::new(buffers) }
    }
}

fn take_one(left: &AtomicIsize) -> bool {
    let taken = left.fetch_sub(1, Ordering::Relaxed) > 0;
    if !taken {
        left.fetch_add(1, Ordering::Relaxed);
    }
    taken
}

/// A worker's empty buffers.
#[derive(Debug)]
pub(crate) struct Pool<'a> {
    pipes: Vec<Buffer>,
    memory: Vec<Buffer>,
    small: Vec<Buffer>,
    budget: &'a Budget,
    /// The keeper, which goes on when this process is killed: pipes are put there before they are used.
    pub keeping: &'a Keeping,
}

impl<'a> Pool<'a> {
    pub fn new(budget: &'a Budget, keeping: &'a Keeping) -> Pool<'a> {
        Pool { pipes: Vec::new(), memory: Vec::new(), small: Vec::new(), budget, keeping }
    }

    /// An empty buffer: a pipe when there is one to be had, else memory; little of it when the budget is used up.
    pub fn take(&mut self) -> Buffer {
        let kept = self.pipes.pop().or_else(|| self.memory.pop());
        kept.or_else(|| self.new_large()).unwrap_or_else(|| self.take_small())
    }

    /// The empty buffer that is there, unless it is smaller than is wanted; then another in its place.
    pub fn fitting<'b>(&mut self, place: &'b mut Option<Buffer>, is_small: bool) -> &'b mut Buffer {
        if let Some(wrong) = place.take_if(|buffer| buffer.is_small() && !is_small) {
            self.give(wrong);
        }
        place.get_or_insert_with(|| if is_small { self.take_small() } else { self.take() })
    }

    /// A pool where a keeper holds what the relay has: bulk data go through a pipe of the connection's own, that
    /// stays its own. Otherwise little memory does, which holds copies.
    pub fn kept<'b>(
        &mut self,
        place: &'b mut Option<Buffer>,
        is_small: bool,
        (id, direction): (u64, Direction),
    ) -> &'b mut Buffer {
        let has_pipe = matches!(place, Some(Buffer::Pipe { .. }));
        if !is_small
            && !has_pipe
            && let Some(pipe) = self.new_kept_pipe(id, direction)
            && let Some(memory) = place.replace(pipe)
        {
            self.give(memory);
        }
        place.get_or_insert_with(|| self.take_small())
    }

    fn new_kept_pipe(&mut self, id: u64, direction: Direction) -> Option<Buffer> {
        let pipe = take_one(&self.budget.buffers_left).then(|| self.new_pipe())?;
        let Some(Buffer::Pipe { read, write }) = &pipe else {
            self.budget.buffers_left.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let holding = Holding::Pipe { direction: direction.into() };
        let is_kept =
            self.keeping.put(id + 1 + direction.index() as u64, &holding, &[read.as_fd(), write.as_fd()]);
        match pipe {
            Some(pipe) if !is_kept => {
                self.discard(pipe);
                None
            }
            pipe => pipe,
        }
    }

    /// Counts a buffer that came from another relay.
    pub fn count(&self, buffer: &Buffer) {
        self.budget.buffers_left.fetch_sub(isize::from(!buffer.is_small()), Ordering::Relaxed);
        let is_pipe = matches!(buffer, Buffer::Pipe { .. });
        self.budget.pipes_left.fetch_sub(isize::from(is_pipe), Ordering::Relaxed);
    }

    /// An empty buffer of little memory.
    pub fn take_small(&mut self) -> Buffer {
        self.small.pop().unwrap_or_else(|| Buffer::memory(SMALL_BYTES))
    }

    /// Takes back an empty buffer.
    pub fn give(&mut self, buffer: Buffer) {
        let room = match buffer {
            // What came from another router may be more than anybody holds here.
            Buffer::Memory { ref bytes, .. } if bytes.len() > BUFFER_BYTES => return self.discard(buffer),
            Buffer::Pipe { .. } => &mut self.pipes,
            Buffer::Memory { .. } if buffer.is_small() => &mut self.small,
            Buffer::Memory { .. } => &mut self.memory,
        };
        if room.len() < POOLED { room.push(buffer) } else { self.discard(buffer) }
    }

    /// Throws away a buffer with whatever it holds.
    pub fn discard(&mut self, buffer: Buffer) {
        let (was_pipe, was_small) = (matches!(buffer, Buffer::Pipe { .. }), buffer.is_small());
        drop(buffer);
        if was_pipe {
            self.budget.pipes_left.fetch_add(1, Ordering::Relaxed);
        }
        if !was_small {
            self.budget.buffers_left.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn new_large(&mut self) -> Option<Buffer> {
        take_one(&self.budget.buffers_left)
            .then(|| self.new_pipe().unwrap_or_else(|| Buffer::memory(BUFFER_BYTES)))
    }

    fn new_pipe(&mut self) -> Option<Buffer> {
        if !take_one(&self.budget.pipes_left) {
            return None;
        }
        let pipe = Buffer::pipe();
        if pipe.is_none() {
            self.budget.pipes_left.fetch_add(1, Ordering::Relaxed);
        }
        pipe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_host::socket::tcp_info;
    use std::{
        io::{Read, Write},
        net::{Shutdown, TcpListener},
    };

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
        assert_eq!(buffer.fill(&far_in, BUFFER_BYTES, false), Moved::Blocked);
        near.write_all(b"long fat").unwrap();
        assert_eq!(buffer.fill(&far_in, BUFFER_BYTES, false), Moved::Bytes(8));
        assert_eq!(buffer.drain(&near_out, false), Moved::Bytes(8));
        let mut got = [0; 8];
        far.set_nonblocking(false).unwrap();
        far.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"long fat");
        drop(near);
        far_in.set_nonblocking(false).unwrap();
        let _ = far_in.peek(&mut got).unwrap();
        far_in.set_nonblocking(true).unwrap();
        assert_eq!(buffer.fill(&far_in, BUFFER_BYTES, false), Moved::Ended);
    }

    #[test]
    fn a_pipe_and_plain_memory_carry_the_same_bytes() {
        carry(Buffer::pipe().unwrap());
        carry(Buffer::memory(BUFFER_BYTES));
        carry(Buffer::memory(SMALL_BYTES));
    }

    #[test]
    fn the_last_bytes_and_the_fin_behind_them_are_one_segment_and_others_are_not() {
        for (are_last, segments) in [(true, 1), (false, 2)] {
            let (near, mut far) = pair();
            let before = tcp_info(&far).unwrap().segs_in;
            assert_eq!(Buffer::holding(b"long fat".to_vec()).drain(&near, are_last), Moved::Bytes(8));
            near.shutdown(Shutdown::Write).unwrap();
            far.set_nonblocking(false).unwrap();
            let mut got = Vec::new();
            far.read_to_end(&mut got).unwrap();
            assert_eq!((&got[..], tcp_info(&far).unwrap().segs_in - before), (&b"long fat"[..], segments));
        }
    }

    #[test]
    fn without_pipes_the_pool_gives_memory_and_reuses_what_it_is_given_back() {
        let keeping = Keeping::new(None, &[]);
        let budget = Budget::new(1, 1 << 30);
        let mut pool = Pool::new(&budget, &keeping);
        let first = pool.take();
        assert!(matches!(first, Buffer::Pipe { .. }));
        let second = pool.take();
        assert!(matches!(second, Buffer::Memory { .. }));
        pool.give(first);
        assert!(matches!(pool.take(), Buffer::Pipe { .. }));
        pool.discard(Buffer::pipe().unwrap());
        assert_eq!(budget.pipes_left.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn only_memory_that_was_not_filled_says_that_there_is_no_more() {
        let small = Buffer::memory(SMALL_BYTES);
        assert!(small.took_all(100, usize::MAX) && !small.took_all(SMALL_BYTES, usize::MAX));
        assert!(!small.took_all(100, 100), "no more was asked for");
        let large = Buffer::holding(vec![0; 3 * BUFFER_BYTES]);
        assert!(!large.took_all(BUFFER_BYTES, usize::MAX), "no more is ever asked for");
        assert!(!Buffer::pipe().unwrap().took_all(1, usize::MAX));
    }

    #[test]
    fn what_is_larger_than_anybody_needs_is_not_used_again() {
        let keeping = Keeping::new(None, &[]);
        let budget = Budget::new(0, 1 << 30);
        let mut pool = Pool::new(&budget, &keeping);
        let before = budget.buffers_left.load(Ordering::Relaxed);
        let large = Buffer::holding(vec![0; BUFFER_BYTES + 1]);
        pool.count(&large);
        pool.give(large);
        assert_eq!((pool.memory.len(), budget.buffers_left.load(Ordering::Relaxed)), (0, before));
    }

    #[test]
    fn a_small_buffer_makes_way_for_a_large_one_and_not_the_other_way_round() {
        let keeping = Keeping::new(None, &[]);
        let budget = Budget::new(1, 1 << 30);
        let mut pool = Pool::new(&budget, &keeping);
        let mut place = None;
        assert!(pool.fitting(&mut place, true).is_small());
        assert!(!pool.fitting(&mut place, false).is_small());
        assert!(!pool.fitting(&mut place, true).is_small());
        assert_eq!(pool.small.len(), 1);
    }

    #[test]
    fn beyond_the_budget_buffers_are_small_and_those_given_back_are_used_again() {
        let keeping = Keeping::new(None, &[]);
        let budget = Budget::new(8, 2 * BUFFER_BYTES as u64);
        let mut pool = Pool::new(&budget, &keeping);
        let (first, second, third) = (pool.take(), pool.take(), pool.take());
        assert!(!first.is_small() && !second.is_small() && third.is_small());
        pool.give(third);
        pool.give(first);
        assert!(!pool.take().is_small());
        pool.discard(second);
        assert_eq!(budget.buffers_left.load(Ordering::Relaxed), 1);
    }
}
