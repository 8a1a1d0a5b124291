//! Cross traffic: datagrams at their due times, whatever the path does to them.

use crate::{
    context::Context,
    datagram::{BATCH_MAX, Datagram, HEADER_BYTES, Kind},
    ends::{SourceEnd, rate_bps},
    plan::TransferPlan,
    schedule::Departures,
    sockets::LOOK_UP,
    threads::{self, joined},
};
use longfat_host::{
    monotonic_ns,
    socket::{Buffer, buffer},
};
use std::{io, net::UdpSocket, os::fd::AsRawFd, time::Duration};

/// Gaps from this on are left to the timer: spinning would gain nothing that matters.
const SPIN_GAP_MAX_NS: u64 = 1_000_000;

/// Sends on all (connected) sockets, one per stream, from `start_ns` on.
pub(crate) fn run(sockets: &[UdpSocket], start_ns: u64, token: u64, context: &Context<'_>) -> Vec<SourceEnd> {
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0u32..)
            .zip(sockets)
            .map(|(stream, socket)| {
                let start = start_ns + u64::from(stream) * context.plan.stagger_us * 1000;
                threads::spawn(scope, move || Sender::new(socket, stream, token, context).run(start))
            })
            .collect();
        let failed = |stream, error| SourceEnd { stream, error: Some(error), ..SourceEnd::default() };
        (0u32..)
            .zip(senders)
            .map(|(stream, sender)| joined(sender).unwrap_or_else(|error| failed(stream, error)))
            .collect()
    })
}

struct Sender<'a> {
    socket: &'a UdpSocket,
    stream: u32,
    context: &'a Context<'a>,
    departures: Departures,
    batch: Batch,
    /// Number of the next datagram; those the host refused are counted and not sent again.
    sequence: u64,
    sent: u64,
    token: u64,
}

impl<'a> Sender<'a> {
    fn new(socket: &'a UdpSocket, stream: u32, token: u64, context: &'a Context<'a>) -> Sender<'a> {
        let plan = context.plan;
        let rate = plan.stream_rate_bps(stream).unwrap_or(1);
        Sender {
            socket,
            stream,
            context,
            departures: Departures::new(plan, rate, stream),
            batch: Batch::new(plan.datagram_bytes as usize),
            sequence: 0,
            sent: 0,
            token,
        }
    }

    fn run(mut self, start_ns: u64) -> SourceEnd {
        precise_timer();
        let error = if self.context.sleep_until(start_ns) {
            self.send_all(start_ns).err()
        } else {
            self.context.halt.reason()
        };
        let plan = self.context.plan;
        let end_ns = monotonic_ns();
        // From the first departure to the end of the last one's turn.
        let span_ns = self.departures.next_ns().min(plan.duration_us().map_or(u64::MAX, |span| span * 1000));
        let span_us = span_ns.max(end_ns.saturating_sub(start_ns)) / 1000;
        let bytes = self.sent * u64::from(plan.datagram_bytes);
        SourceEnd {
            stream: self.stream,
            start_us: (start_ns / 1000) as i64,
            end_us: (end_ns / 1000) as i64,
            sent_bytes: bytes,
            sent_datagrams: self.sent,
            unsent_datagrams: self.sequence - self.sent,
            offered_bps: rate_bps(bytes, span_us),
            sndbuf_bytes: buffer(self.socket, Buffer::Send),
            error,
            ..SourceEnd::default()
        }
    }

    fn send_all(&mut self, start_ns: u64) -> Result<(), String> {
        let planned = datagrams_planned(self.context.plan, self.stream);
        let span_ns = self.context.plan.duration_us().map_or(u64::MAX, |span| span * 1000);
        while self.sequence < planned && self.departures.next_ns() < span_ns {
            if self.context.halt.is_raised() {
                return Err(self.context.halt.reason().unwrap_or_default());
            }
            let elapsed_ns = monotonic_ns() - start_ns;
            if elapsed_ns < self.departures.next_ns() {
                self.wait(self.departures.next_ns() - elapsed_ns);
                continue;
            }
            let left = (planned - self.sequence).min(BATCH_MAX as u64) as usize;
            let due = self.take_due(elapsed_ns, left, span_ns);
            self.send(due)?;
        }
        Ok(())
    }

    /// How many datagrams are due, at most `limit`.
    fn take_due(&mut self, elapsed_ns: u64, limit: usize, span_ns: u64) -> usize {
        let mut due = 0;
        while due < limit && self.departures.next_ns() <= elapsed_ns && self.departures.next_ns() < span_ns {
            self.departures.advance();
            due += 1;
        }
        due
    }

    fn wait(&self, left_ns: u64) {
        let spin_ns = self.context.plan.spin_us * 1000;
        let spins = spin_ns > 0 && self.departures.mean_gap_ns() < SPIN_GAP_MAX_NS;
        if spins && left_ns <= spin_ns {
            std::hint::spin_loop();
        } else {
            let sleep_ns = if spins { left_ns - spin_ns } else { left_ns };
            std::thread::sleep(Duration::from_nanos(sleep_ns).min(LOOK_UP));
        }
    }

    fn send(&mut self, count: usize) -> Result<(), String> {
        let now = monotonic_ns();
        self.batch.stamp(self.token, self.sequence, now, count);
        self.sequence += count as u64;
        let mut done = 0;
        while done < count {
            match self.batch.send(self.socket, done, count) {
                Ok(sent) => {
                    done += sent;
                    self.sent += sent as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The host's own queue is full: the datagram is not sent, as on any overloaded interface.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => done += 1,
                Err(error) => return Err(format!("sending failed after {} datagrams: {error}", self.sent)),
            }
        }
        Ok(())
    }
}

/// How many datagrams stream number `stream` sends when bytes are planned: enough to carry them.
fn datagrams_planned(plan: &TransferPlan, stream: u32) -> u64 {
    plan.stream_bytes(stream).map_or(u64::MAX, |bytes| bytes.div_ceil(plan.datagram_bytes.into()))
}

/// Lets this thread's timers fire when they are due; by default the kernel may delay them by 50 us.
fn precise_timer() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000 as libc::c_ulong) };
}

/// Room for [`BATCH_MAX`] datagrams side by side.
struct Batch {
    datagram_bytes: usize,
    bytes: Vec<u8>,
}

impl Batch {
    fn new(datagram_bytes: usize) -> Batch {
        Batch { datagram_bytes, bytes: vec![0; datagram_bytes * BATCH_MAX] }
    }

    fn stamp(&mut self, token: u64, first: u64, time_ns: u64, count: usize) {
        for (sequence, datagram) in (first..).zip(self.bytes.chunks_mut(self.datagram_bytes)).take(count) {
            let head = Datagram { kind: Kind::Data, token, sequence, time_ns };
            datagram[..HEADER_BYTES].copy_from_slice(&head.encode());
        }
    }

    /// Sends datagrams `from..to`; how many the kernel took.
    fn send(&mut self, socket: &UdpSocket, from: usize, to: usize) -> io::Result<usize> {
        if to - from == 1 {
            let start = from * self.datagram_bytes;
            return socket.send(&self.bytes[start..start + self.datagram_bytes]).map(|_| 1);
        }
        let mut parts: Vec<_> = self
            .bytes
            .chunks_mut(self.datagram_bytes)
            .skip(from)
            .take(to - from)
            .map(|datagram| libc::iovec { iov_base: datagram.as_mut_ptr().cast(), iov_len: datagram.len() })
            .collect();
        let mut messages: Vec<_> = parts.iter_mut().map(message).collect();
        // SAFETY: each message points to one iovec of `parts`, each of which points into `self.bytes`; both outlive
        // the call.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as libc::c_uint, 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// A message of one part, to or from the connected peer.
pub(crate) fn message(part: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: an all-zero mmsghdr is valid: no address, no control data.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = part;
    message.msg_hdr.msg_iovlen = 1;
    message
}
