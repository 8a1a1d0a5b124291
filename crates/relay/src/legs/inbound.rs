//! Reading a leg: bytes, urgent marks, and an end that is believed only when the kernel says so.
//!
//! The kernel keeps one urgent mark per socket, the newest, and with SO_OOBINLINE its byte stays in the stream. A
//! reading stops before the mark. One that begins there differs: recv(2) takes the urgent byte like any other, and the
//! mark is lost; splice(2) takes nothing, and says "not now", or 0 once a FIN has come, whatever is queued behind. So
//! nothing of splice's that brings no bytes is believed: recv(2) is asked, which gives 0 only when a FIN has come and
//! nothing is queued. Nor is a 0 of recv's believed where the socket is closed before the relay has finished sending on
//! it: splice(2) that writes a pipe to a socket which is reset in the middle takes the error with it, and tells of the
//! bytes written before. A reset that nobody has told would be taken for a FIN. No such question is asked where an
//! event has told of a FIN and of no error, and no pipe was written to the socket since: what recv(2) then finds is all
//! there is.
//!
//! Events (EPOLLPRI) say that a mark has come. A connection that never has one pays for none of this but at its end.

use crate::{
    legs::{
        buffer::{Buffer, Moved},
        leg,
    },
    logic::tcp_state::CLOSED,
};
use longfat_host::socket::tcp_info;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, send},
};
use std::{io, net::TcpStream, os::fd::AsRawFd};

/// A leg to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub leg: &'a TcpStream,
    /// Whether it may be closed and nothing has gone wrong that is not known: the relay has finished sending on it, or
    /// has been told of its reset.
    pub may_be_closed: bool,
    /// An event has told that its FIN has come, and of no error; since then nothing can have taken one.
    pub has_fin: bool,
}

/// What is known of the next byte of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ahead {
    /// The next byte is not urgent: an event told of bytes and of no mark, and nothing was read since.
    Plain,
    /// A mark may have come since the last event; the next one will tell.
    #[default]
    Unknown,
    /// A mark has come.
    Mark,
}

/// What a reading came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Got {
    /// At least one byte, in the buffer.
    Bytes(usize),
    /// At least one byte, in the buffer, and behind it the peer has finished sending.
    LastBytes(usize),
    /// An urgent byte, and nothing else.
    Mark(u8),
    /// Nothing is queued.
    Nothing,
    /// The peer has finished sending, and nothing is queued.
    End,
    /// The socket was reset or timed out.
    Failed,
    /// The socket was reset when the peer had finished sending; nothing is queued.
    FailedAfterFin,
    /// Bytes are queued that splice(2) does not give: the buffer must be memory.
    Unspliced,
}

/// Fills the empty buffer with so many bytes at most, or takes the urgent byte that is next. A copy of either is left
/// in the socket, until it is to be [`consume`]d; bytes in a pipe have no copy.
pub(crate) fn read(
    from: Source<'_>,
    buffer: &mut Buffer,
    most_bytes: usize,
    ahead: &mut Ahead,
    is_copy: bool,
) -> Got {
    if buffer.passes_marks() && *ahead != Ahead::Plain {
        match next(from) {
            Next::Byte => {}
            other => return without_bytes(from, other, ahead, is_copy),
        }
    }
    match buffer.fill(from.leg, most_bytes, is_copy) {
        Moved::Bytes(bytes) => {
            let is_plain = *ahead == Ahead::Plain;
            if is_plain {
                *ahead = Ahead::Unknown;
            }
            // No mark has come, and none can behind a FIN: only the end stops such a reading.
            let is_last = from.has_fin && is_plain && !is_copy && buffer.took_all(bytes, most_bytes);
            if is_last { Got::LastBytes(bytes) } else { Got::Bytes(bytes) }
        }
        Moved::Failed => Got::Failed,
        Moved::Blocked if *ahead == Ahead::Unknown => Got::Nothing,
        Moved::Ended if buffer.passes_marks() => without_bytes(from, end(from), ahead, is_copy),
        Moved::Blocked | Moved::Ended => without_bytes(from, next(from), ahead, is_copy),
    }
}

/// Gives the urgent byte to a socket, which marks it for its peer.
pub(crate) fn write_mark(to: &TcpStream, byte: u8) -> Moved {
    retried(|| {
        send(to.as_raw_fd(), &[byte], MsgFlags::MSG_OOB | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)
    })
}

/// What a socket says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A byte that is not urgent.
    Byte,
    /// The urgent one.
    Mark,
    Nothing,
    End,
    Failed,
    FailedAfterFin,
}

/// A byte is looked for before its mark, since a byte that has come is never marked later.
fn next(from: Source<'_>) -> Next {
    match look(from.leg) {
        Ok(0) | Err(Errno::ENOTCONN) => end(from),
        Ok(_) if leg::is_at_mark(from.leg) => Next::Mark,
        Ok(_) => Next::Byte,
        Err(Errno::EAGAIN) => Next::Nothing,
        Err(errno) => failed(&errno.into()),
    }
}

/// What recv(2) would say, without taking a byte.
fn look(socket: &TcpStream) -> nix::Result<usize> {
    loop {
        match recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// The end of a socket from which recv(2) has given nothing: a FIN has come, or the connection has ended. Nothing is
/// given, either, by a socket that was reset after its FIN.
fn end(from: Source<'_>) -> Next {
    if from.has_fin {
        return Next::End;
    }
    let is_closed = || tcp_info(from.leg).is_ok_and(|info| info.state == CLOSED);
    if !from.may_be_closed && !is_closed() {
        return Next::End;
    }
    match from.leg.take_error().ok().flatten() {
        Some(error) => failed(&error),
        None if from.may_be_closed => Next::End,
        None => Next::Failed,
    }
}

fn failed(error: &io::Error) -> Next {
    if leg::is_reset_after_fin(error) { Next::FailedAfterFin } else { Next::Failed }
}

fn without_bytes(from: Source<'_>, next: Next, ahead: &mut Ahead, is_copy: bool) -> Got {
    *ahead = Ahead::Unknown;
    match next {
        Next::Byte => Got::Unspliced,
        Next::Mark => take_mark(from.leg, is_copy),
        Next::Nothing => Got::Nothing,
        Next::End => Got::End,
        Next::Failed => Got::Failed,
        Next::FailedAfterFin => Got::FailedAfterFin,
    }
}

/// Takes bytes that are queued and throws them away.
///
/// # Errors
/// There are fewer.
pub(crate) fn consume(from: &TcpStream, bytes: u64) -> io::Result<()> {
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    while left > 0 {
        // SAFETY: with MSG_TRUNC nothing is written anywhere (tcp(7)).
        let taken = unsafe {
            libc::recv(from.as_raw_fd(), std::ptr::null_mut(), left, libc::MSG_TRUNC | libc::MSG_DONTWAIT)
        };
        match Errno::result(taken) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(taken) => left -= taken as usize,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn take_mark(from: &TcpStream, is_copy: bool) -> Got {
    let mut byte = [0];
    let copy = if is_copy { MsgFlags::MSG_PEEK } else { MsgFlags::empty() };
    match retried(|| recv(from.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT | copy)) {
        Moved::Bytes(_) => Got::Mark(byte[0]),
        Moved::Blocked | Moved::Ended | Moved::Failed => Got::Failed,
    }
}

fn retried(mut call: impl FnMut() -> nix::Result<usize>) -> Moved {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result.map_err(io::Error::from).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        keeping::Keeping,
        legs::buffer::{Budget, Pool, SMALL_BYTES},
        logic::tcp_state::{CLOSE_WAIT, CLOSING, LAST_ACK, TIME_WAIT},
        plan::BUFFER_BYTES,
    };
    use longfat_host::socket::set_option;
    use std::{
        io::Write,
        net::{Shutdown, TcpListener},
        time::{Duration, Instant},
    };

    /// States in which a FIN has been received.
    const FINISHED: [u8; 4] = [TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING];

    /// A sender, and the relay's end of its connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let leg = listener.accept().unwrap().0;
        leg.set_nonblocking(true).unwrap();
        set_option(&leg, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).unwrap();
        (near, leg)
    }

    fn eventually(mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_come(leg: &TcpStream, bytes: u64) {
        eventually(|| leg::unread_bytes(leg) >= bytes);
    }

    fn is_finished(leg: &TcpStream) -> bool {
        FINISHED.contains(&tcp_info(leg).unwrap().state)
    }

    /// A pipe, much memory and little, each with what an event would have told.
    fn with_each(test: impl Fn(&mut Buffer, Ahead)) {
        let (piped, unpiped) = (Budget::new(1, 1 << 30), Budget::new(0, 1 << 30));
        let keeping = Keeping::new(None, &[]);
        let (mut piped, mut unpiped) = (Pool::new(&piped, &keeping), Pool::new(&unpiped, &keeping));
        for ahead in [Ahead::Unknown, Ahead::Mark] {
            for mut buffer in [piped.take(), unpiped.take(), unpiped.take_small()] {
                test(&mut buffer, ahead);
                if matches!(buffer, Buffer::Pipe { .. }) {
                    piped.give(buffer);
                }
            }
        }
    }

    /// Everything that can be read now: bytes between marks, and how the reading stops. Of a leg that must not be
    /// closed.
    fn read_all(leg: &TcpStream, buffer: &mut Buffer, ahead: Ahead) -> (Vec<Got>, Got) {
        read_all_of(Source { leg, may_be_closed: false, has_fin: false }, buffer, ahead)
    }

    fn read_closed(leg: &TcpStream, buffer: &mut Buffer, ahead: Ahead) -> (Vec<Got>, Got) {
        read_all_of(Source { leg, may_be_closed: true, has_fin: false }, buffer, ahead)
    }

    fn read_all_of(from: Source<'_>, buffer: &mut Buffer, mut ahead: Ahead) -> (Vec<Got>, Got) {
        let (sink, mut all) = (pair(), Vec::new());
        loop {
            match read(from, buffer, BUFFER_BYTES, &mut ahead, false) {
                Got::Bytes(bytes) => {
                    eventually(|| buffer.drain(&sink.1, false) == Moved::Bytes(bytes));
                    all.push(Got::Bytes(bytes));
                }
                mark @ Got::Mark(_) => all.push(mark),
                end => return (all, end),
            }
        }
    }

    #[test]
    fn a_mark_is_found_behind_bytes_and_bytes_behind_the_mark() {
        with_each(|buffer, _| {
            let (mut near, leg) = pair();
            near.write_all(b"abcd").unwrap();
            assert_eq!(write_mark(&near, b'!'), Moved::Bytes(1));
            near.write_all(b"efgh").unwrap();
            has_come(&leg, 9);
            let seen = read_all(&leg, buffer, Ahead::Mark);
            assert_eq!(seen, (vec![Got::Bytes(4), Got::Mark(b'!'), Got::Bytes(4)], Got::Nothing));
        });
    }

    #[test]
    fn a_mark_with_a_fin_behind_it_is_not_the_end_and_neither_is_one_before_a_reset() {
        with_each(|buffer, ahead| {
            let (near, leg) = pair();
            assert_eq!(write_mark(&near, b'!'), Moved::Bytes(1));
            (&near).write_all(b"efgh").unwrap();
            near.shutdown(Shutdown::Write).unwrap();
            eventually(|| is_finished(&leg));
            assert_eq!(read_all(&leg, buffer, ahead), (vec![Got::Mark(b'!'), Got::Bytes(4)], Got::End));
        });
        with_each(|buffer, ahead| {
            let (mut near, leg) = pair();
            near.write_all(b"abcd").unwrap();
            assert_eq!(write_mark(&near, b'!'), Moved::Bytes(1));
            has_come(&leg, 5);
            leg::close_with_reset(&near);
            drop(near);
            eventually(|| tcp_info(&leg).unwrap().state == CLOSED);
            let (mut seen, end) = read_all(&leg, buffer, ahead);
            assert_eq!(end, Got::Failed, "the reset is told once");
            let (rest, end) = read_closed(&leg, buffer, ahead);
            seen.extend(rest);
            assert_eq!((seen, end), (vec![Got::Bytes(4), Got::Mark(b'!')], Got::End));
        });
    }

    #[test]
    fn an_end_is_one_when_a_fin_has_come_and_an_empty_queue_is_none() {
        with_each(|buffer, ahead| {
            let (near, leg) = pair();
            assert_eq!(read_all(&leg, buffer, ahead), (vec![], Got::Nothing));
            near.shutdown(Shutdown::Write).unwrap();
            eventually(|| is_finished(&leg));
            assert_eq!(read_all(&leg, buffer, ahead), (vec![], Got::End));
            leg.shutdown(Shutdown::Write).unwrap();
            drop(near);
            eventually(|| tcp_info(&leg).unwrap().state == CLOSED);
            assert_eq!(read_closed(&leg, buffer, ahead), (vec![], Got::End), "both have finished");
        });
    }

    #[test]
    fn a_reset_of_which_the_error_was_taken_is_no_end() {
        with_each(|buffer, ahead| {
            let (near, leg) = pair();
            leg::close_with_reset(&near);
            drop(near);
            eventually(|| tcp_info(&leg).unwrap().state == CLOSED);
            assert!(leg.take_error().unwrap().is_some());
            assert_eq!(read_all(&leg, buffer, ahead), (vec![], Got::Failed));
        });
    }

    /// A connection of small segments: several calls of the kernel's own write one pipe to it.
    fn pair_of_small_segments() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_option(&listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1400).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let leg = listener.accept().unwrap().0;
        leg.set_nonblocking(true).unwrap();
        (near, leg)
    }

    #[test]
    fn a_reset_in_the_middle_of_a_pipe_is_no_end() {
        let ((mut source, full), (near, leg)) = (pair(), pair_of_small_segments());
        let budget = Budget::new(1, 1 << 30);
        let keeping = Keeping::new(None, &[]);
        let mut pipe = Pool::new(&budget, &keeping).take();
        let sent = std::thread::spawn(move || source.write_all(&[7; BUFFER_BYTES]));
        has_come(&full, BUFFER_BYTES as u64 / 4);
        let Moved::Bytes(held_bytes) = pipe.fill(&full, BUFFER_BYTES, false) else {
            panic!("nothing has come")
        };
        // Its end is gone, and nobody has been told (tcp(7), TCP_REPAIR): what comes there is reset.
        set_option(&near, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1).expect("this test needs root");
        drop(near);
        let moved = pipe.drain(&leg, false);
        assert!(matches!(moved, Moved::Bytes(bytes) if bytes < held_bytes), "{moved:?} of {held_bytes}");
        eventually(|| tcp_info(&leg).unwrap().state == CLOSED);
        let mut buffer = Pool::new(&budget, &keeping).take_small();
        assert_eq!(read_all(&leg, &mut buffer, Ahead::Plain), (vec![], Got::Failed));
        drop(full);
        let _ = sent.join().unwrap();
    }

    #[test]
    fn what_an_event_told_of_is_read_at_once_and_what_came_after_it_is_looked_at() {
        let (mut near, leg) = pair();
        let budget = Budget::new(0, 0);
        let keeping = Keeping::new(None, &[]);
        let mut buffer = Pool::new(&budget, &keeping).take();
        near.write_all(&[7; SMALL_BYTES]).unwrap();
        has_come(&leg, SMALL_BYTES as u64);
        let mut ahead = Ahead::Plain;
        let leg = Source { leg: &leg, may_be_closed: false, has_fin: false };
        assert_eq!(read(leg, &mut buffer, BUFFER_BYTES, &mut ahead, false), Got::Bytes(SMALL_BYTES));
        assert_eq!(ahead, Ahead::Unknown);
        assert_eq!(write_mark(&near, b'!'), Moved::Bytes(1));
        has_come(leg.leg, 1);
        assert_eq!(
            read(leg, &mut buffer, BUFFER_BYTES, &mut ahead, false),
            Got::Mark(b'!'),
            "no event told of it"
        );
    }

    #[test]
    fn behind_a_fin_that_an_event_told_of_a_short_reading_is_the_last_one() {
        let budget = Budget::new(0, 0);
        let keeping = Keeping::new(None, &[]);
        let mut buffer = Pool::new(&budget, &keeping).take();
        let (mut near, leg) = pair();
        near.write_all(&[7; SMALL_BYTES + 1]).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        eventually(|| is_finished(&leg));
        let from = Source { leg: &leg, may_be_closed: false, has_fin: true };
        let mut read_plain = |is_copy| {
            let mut ahead = Ahead::Plain;
            read(from, &mut buffer, BUFFER_BYTES, &mut ahead, is_copy)
        };
        assert_eq!(read_plain(false), Got::Bytes(SMALL_BYTES), "it filled the buffer");
        assert_eq!(read_plain(true), Got::Bytes(1), "a copy is still to be taken");
        assert_eq!(read_plain(false), Got::LastBytes(1));
        assert_eq!(read_plain(false), Got::End);
    }

    #[test]
    fn bytes_before_a_mark_are_not_the_last_although_a_fin_has_come() {
        let budget = Budget::new(0, 0);
        let keeping = Keeping::new(None, &[]);
        let mut buffer = Pool::new(&budget, &keeping).take();
        let (mut near, leg) = pair();
        near.write_all(b"abcd").unwrap();
        assert_eq!(write_mark(&near, b'!'), Moved::Bytes(1));
        near.shutdown(Shutdown::Write).unwrap();
        eventually(|| is_finished(&leg));
        let from = Source { leg: &leg, may_be_closed: false, has_fin: true };
        let mut ahead = Ahead::Mark;
        let mut got = || read(from, &mut buffer, BUFFER_BYTES, &mut ahead, false);
        assert_eq!([got(), got(), got()], [Got::Bytes(4), Got::Mark(b'!'), Got::End]);
    }
}
