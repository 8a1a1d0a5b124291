//! The receiving end of TCP streams: one thread per stream reads, one counts for all.

use crate::{
    context::Context,
    counter::{self, Counters},
    echo::{EchoLayout, EchoTracker, Piece},
    ends::{SinkEnd, Window},
    pattern::Pattern,
    plan::Receive,
    sockets::{LOOK_UP, bound_waits, clamp_window, reset_on_close, wait_for},
    threads::{self, joined},
};
use longfat_host::{
    monotonic_ns,
    socket::{Buffer, buffer, cc},
};
use nix::{
    errno::Errno,
    poll::PollFlags,
    sys::socket::{MsgFlags, send},
};
use std::{
    collections::VecDeque,
    io,
    net::{Shutdown, TcpStream},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// Most read at once.
pub(crate) const READ_BYTES: usize = 256 << 10;
/// Most taken at once where nothing is copied.
const DISCARD_BYTES: u64 = 4 << 20;
/// Echoes that may wait for room in the socket before the peer counts as not reading them.
pub(crate) const ECHOES_HELD_MAX_BYTES: usize = 4 << 20;

/// Receives on all sockets until each has ended, and advertises `window_bytes` at most.
pub(crate) fn run(sockets: Vec<TcpStream>, window_bytes: Option<u64>, context: &Context<'_>) -> Vec<SinkEnd> {
    let counters = Counters::new(sockets.len());
    let pattern = Pattern::new(READ_BYTES);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counting = threads::spawn(scope, || counter::report(&counters, &over, context));
        let readers: Vec<_> = (0u32..)
            .zip(sockets)
            .map(|(stream, socket)| {
                let (counters, pattern) = (&counters, &pattern);
                let reader = Reader::new(socket, stream, counters, pattern, context);
                threads::spawn(scope, move || Reader { window_bytes, ..reader }.run())
            })
            .collect();
        let ends = sink_ends(readers.into_iter().map(joined));
        over.store(true, Relaxed);
        let _ = joined(counting);
        ends
    })
}

/// The figures of all streams, in order; those of a stream without a thread hold why.
pub(crate) fn sink_ends(joined: impl Iterator<Item = Result<SinkEnd, String>>) -> Vec<SinkEnd> {
    let failed = |stream, error| SinkEnd { stream, error: Some(error), ..SinkEnd::default() };
    (0u32..).zip(joined).map(|(stream, end)| end.unwrap_or_else(|error| failed(stream, error))).collect()
}

/// What the receiving end does with a stream.
struct Reader<'a> {
    socket: TcpStream,
    stream: u32,
    /// Most that is advertised.
    window_bytes: Option<u64>,
    counters: &'a Counters,
    pattern: &'a Pattern,
    context: &'a Context<'a>,
    tracker: EchoTracker,
    window: Window,
    echoes: VecDeque<u8>,
}

/// How one look at the socket ended.
enum Step {
    Took(u64),
    Nothing,
    End,
}

impl<'a> Reader<'a> {
    fn new(
        socket: TcpStream,
        stream: u32,
        counters: &'a Counters,
        pattern: &'a Pattern,
        context: &'a Context<'a>,
    ) -> Reader<'a> {
        let layout = EchoLayout::new(context.plan.echo_every_bytes);
        Reader {
            socket,
            stream,
            window_bytes: None,
            counters,
            pattern,
            context,
            tracker: EchoTracker::new(layout),
            window: Window::new(context.plan.duration_us()),
            echoes: VecDeque::new(),
        }
    }

    fn run(mut self) -> SinkEnd {
        let error = self.receive().err();
        if error.is_none() {
            self.send_last_echoes();
        }
        match error {
            // The sender learns at once that nobody reads on.
            Some(_) => reset_on_close(&self.socket),
            None => drop(self.socket.shutdown(Shutdown::Write)),
        }
        let mut end = SinkEnd {
            stream: self.stream,
            received_bytes: self.tracker.position(),
            cc: cc(&self.socket).unwrap_or_default(),
            rcvbuf_bytes: buffer(&self.socket, Buffer::Receive),
            error,
            ..SinkEnd::default()
        };
        self.window.close(&mut end);
        end
    }

    fn receive(&mut self) -> Result<(), String> {
        bound_waits(&self.socket).map_err(|error| error.to_string())?;
        let discard = self.context.plan.receive == Receive::Discard;
        let mut buffer = vec![0; READ_BYTES];
        loop {
            self.hold_window()?;
            match if discard { self.discard(&mut buffer)? } else { self.read(&mut buffer)? } {
                Step::Took(bytes) => {
                    self.count(bytes);
                    self.context.refuse_beyond(self.tracker.position())?;
                }
                Step::Nothing => self.look_up()?,
                Step::End => return self.end_of_stream(),
            }
            self.send_echoes()?;
        }
    }

    fn hold_window(&self) -> Result<(), String> {
        let held = self.window_bytes.map_or(Ok(()), |bytes| clamp_window(&self.socket, bytes));
        held.map_err(|error| format!("bound the window: {error}"))
    }

    fn count(&mut self, bytes: u64) {
        self.window.on_arrival((monotonic_ns() / 1000) as i64, bytes);
        self.counters.set(self.stream, self.tracker.position());
    }

    /// The whole stream arrived, unless its planned bytes say otherwise.
    fn end_of_stream(&self) -> Result<(), String> {
        let arrived = self.tracker.position();
        match self.context.plan.stream_bytes(self.stream) {
            Some(planned) if planned != arrived => {
                Err(format!("the stream ended after {arrived} of {planned} bytes"))
            }
            _ => Ok(()),
        }
    }

    /// Looks whether the transfer is over, when nothing came for a while.
    fn look_up(&self) -> Result<(), String> {
        let halt = self.context.halt;
        if let Some(dead) = halt.aborted() {
            return Err(dead.to_owned());
        }
        let grace_ns = self.context.plan.drain_us.min(2_000_000) * 1000;
        match halt.peer_done_for_ns(monotonic_ns()) {
            Some(since) if since > grace_ns => {
                Err("the sending end was done, but the stream did not end".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Copies what is there and looks at it as far as the plan asks.
    fn read(&mut self, buffer: &mut [u8]) -> Result<Step, String> {
        let count = match self.receive_into(buffer.as_mut_ptr(), buffer.len(), 0)? {
            Step::Took(count) => count,
            other => return Ok(other),
        };
        self.inspect(&buffer[..count as usize])?;
        Ok(Step::Took(count))
    }

    /// Lets the kernel drop payload; only timestamps are copied.
    fn discard(&mut self, buffer: &mut [u8]) -> Result<Step, String> {
        match self.tracker.next_piece(DISCARD_BYTES) {
            Piece::Header { bytes, .. } => self.read(&mut buffer[..bytes as usize]),
            Piece::Payload { bytes } => {
                let step = self.receive_into(std::ptr::null_mut(), bytes as usize, libc::MSG_TRUNC)?;
                if let Step::Took(count) = step {
                    self.tracker.skip(count);
                }
                Ok(step)
            }
        }
    }

    /// `to` must be valid for `length` bytes, or null with MSG_TRUNC.
    fn receive_into(&self, to: *mut u8, length: usize, flags: i32) -> Result<Step, String> {
        // SAFETY: callers pass a buffer of `length` bytes, or null with MSG_TRUNC, with which TCP writes nothing.
        let count = unsafe { libc::recv(self.socket.as_raw_fd(), to.cast(), length, flags) };
        match count {
            0 => Ok(Step::End),
            1.. => Ok(Step::Took(count as u64)),
            _ => {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Step::Nothing),
                    _ => Err(format!("receiving failed after {} bytes: {error}", self.tracker.position())),
                }
            }
        }
    }

    fn inspect(&mut self, bytes: &[u8]) -> Result<(), String> {
        let plan = self.context.plan;
        if plan.echo_every_bytes.is_none() && !plan.verify {
            self.tracker.skip(bytes.len() as u64);
            return Ok(());
        }
        let (echoes, pattern, mut wrong) = (&mut self.echoes, self.pattern, None);
        let taken = self.tracker.take(
            bytes,
            |header| echoes.extend(header),
            |position, run| {
                if plan.verify {
                    wrong = wrong.or_else(|| pattern.mismatch(position, run));
                }
            },
        );
        taken.map_err(|error| error.to_string())?;
        wrong.map_or(Ok(()), |at| Err(format!("byte {at} of the stream is not what was sent")))
    }

    /// Writes waiting echoes as far as there is room. While some wait, so does reading, but only for the socket:
    /// whichever of the two can go on, does.
    fn send_echoes(&mut self) -> Result<(), String> {
        while !self.echoes.is_empty() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.socket.as_raw_fd(), self.echoes.make_contiguous(), flags) {
                Ok(count) => drop(self.echoes.drain(..count)),
                Err(Errno::EAGAIN) if self.echoes.len() > ECHOES_HELD_MAX_BYTES => {
                    return Err("the sending end does not read its echoes".to_owned());
                }
                Err(Errno::EAGAIN) => {
                    return wait_for(&self.socket, PollFlags::POLLIN | PollFlags::POLLOUT, LOOK_UP)
                        .map(drop)
                        .map_err(|error| error.to_string());
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(format!("echoing failed: {}", errno.desc())),
            }
        }
        Ok(())
    }

    /// After the end of the stream there is nothing to read: wait for room until all echoes are out.
    fn send_last_echoes(&mut self) {
        let limit = monotonic_ns() + self.context.plan.drain_us * 1000;
        while !self.echoes.is_empty() && monotonic_ns() < limit && self.context.halt.aborted().is_none() {
            // POLLIN would be true for ever: the peer's end of stream is readable.
            let waited = wait_for(&self.socket, PollFlags::POLLOUT, Duration::from_millis(20));
            if waited.is_err() || self.send_echoes().is_err() {
                return;
            }
        }
    }
}
