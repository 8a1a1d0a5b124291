//! Takes cross traffic and counts what is missing.

use crate::{
    context::Context,
    counter::{self, Counters},
    datagram::{BATCH_MAX, Datagram, HEADER_BYTES, Kind, SequenceCount},
    ends::{SinkEnd, Window},
    sink::sink_ends,
    sockets::LOOK_UP,
    threads::{self, joined},
    udp_source::message,
};
use longfat_host::{
    monotonic_ns,
    socket::{Buffer, buffer},
};
use std::{
    io,
    net::UdpSocket,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Once the sender is done, so long without a datagram means that the rest is lost.
const QUIET_NS: u64 = 500_000_000;

/// Receives on all (connected) sockets until the sender is done and the path is quiet.
pub(crate) fn run(sockets: &[UdpSocket], token: u64, context: &Context<'_>) -> Vec<SinkEnd> {
    let counters = Counters::new(sockets.len());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counting = threads::spawn(scope, || counter::report(&counters, &over, context));
        let receivers: Vec<_> = (0u32..)
            .zip(sockets)
            .map(|(stream, socket)| {
                let counters = &counters;
                threads::spawn(scope, move || Receiver::new(socket, stream, token, counters, context).run())
            })
            .collect();
        let ends = sink_ends(receivers.into_iter().map(joined));
        over.store(true, Relaxed);
        let _ = joined(counting);
        ends
    })
}

struct Receiver<'a> {
    socket: &'a UdpSocket,
    stream: u32,
    token: u64,
    counters: &'a Counters,
    context: &'a Context<'a>,
    window: Window,
    sequences: SequenceCount,
    received_bytes: u64,
    arrived_ns: u64,
}

impl<'a> Receiver<'a> {
    fn new(
        socket: &'a UdpSocket,
        stream: u32,
        token: u64,
        counters: &'a Counters,
        context: &'a Context<'a>,
    ) -> Receiver<'a> {
        let window = Window::new(context.plan.duration_us());
        let sequences = SequenceCount::default();
        let arrived_ns = monotonic_ns();
        Receiver {
            socket,
            stream,
            token,
            counters,
            context,
            window,
            sequences,
            received_bytes: 0,
            arrived_ns,
        }
    }

    fn run(mut self) -> SinkEnd {
        let error = self.receive().err();
        let mut end = SinkEnd {
            stream: self.stream,
            received_bytes: self.received_bytes,
            rcvbuf_bytes: buffer(self.socket, Buffer::Receive),
            received_datagrams: self.sequences.distinct,
            duplicate_datagrams: self.sequences.duplicates,
            reordered_datagrams: self.sequences.reordered,
            error,
            ..SinkEnd::default()
        };
        self.window.close(&mut end);
        end
    }

    fn receive(&mut self) -> Result<(), String> {
        let set = self.socket.set_read_timeout(Some(LOOK_UP));
        set.map_err(|error| format!("bound the waits of a data socket: {error}"))?;
        let mut batch = Batch::new();
        while !self.is_over()? {
            match batch.receive(self.socket) {
                Ok(count) => (0..count).for_each(|index| self.on_datagram(batch.datagram(index))),
                // Refused: the sender's socket is closed, which its Results will explain.
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(format!("receiving failed: {error}")),
            }
        }
        Ok(())
    }

    fn on_datagram(&mut self, (bytes, length): (&[u8], usize)) {
        let Some(head) = Datagram::decode(bytes) else { return };
        if head.kind != Kind::Data || head.token != self.token {
            return;
        }
        self.arrived_ns = monotonic_ns();
        if self.sequences.on_datagram(head.sequence) {
            self.received_bytes += length as u64;
            self.window.on_arrival((self.arrived_ns / 1000) as i64, length as u64);
            self.counters.set(self.stream, self.received_bytes);
        }
    }

    fn is_over(&self) -> Result<bool, String> {
        if let Some(dead) = self.context.halt.aborted() {
            return Err(dead.to_owned());
        }
        let now = monotonic_ns();
        let done_for = self.context.halt.peer_done_for_ns(now);
        Ok(done_for.is_some_and(|since| since.min(now.saturating_sub(self.arrived_ns)) > QUIET_NS))
    }
}

fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionRefused)
}

/// Room for [`BATCH_MAX`] heads: payload behind the head is not looked at, so it is not copied.
struct Batch {
    bytes: Vec<u8>,
    lengths: [usize; BATCH_MAX],
}

impl Batch {
    fn new() -> Batch {
        Batch { bytes: vec![0; HEADER_BYTES * BATCH_MAX], lengths: [0; BATCH_MAX] }
    }

    /// Waits for a datagram and takes what else is there; how many.
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        let mut parts: Vec<_> = self
            .bytes
            .chunks_mut(HEADER_BYTES)
            .map(|head| libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() })
            .collect();
        let mut messages: Vec<_> = parts.iter_mut().map(message).collect();
        // MSG_TRUNC makes the kernel report a datagram's whole length though only its head is copied.
        let flags = libc::MSG_WAITFORONE | libc::MSG_TRUNC;
        // SAFETY: each message points to one iovec of `parts`, each of which points to a head in `self.bytes`; both
        // outlive the call. A null timeout is allowed.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as libc::c_uint,
                flags,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        for (length, message) in self.lengths.iter_mut().zip(&messages).take(count as usize) {
            *length = message.msg_len as usize;
        }
        Ok(count as usize)
    }

    /// Head and whole length of a datagram taken last.
    fn datagram(&self, index: usize) -> (&[u8], usize) {
        let start = index * HEADER_BYTES;
        (&self.bytes[start..start + self.lengths[index].min(HEADER_BYTES)], self.lengths[index])
    }
}
