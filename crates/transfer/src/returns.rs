//! Reads what comes back on the sending end's connections: echoes, and the end of each stream.

use crate::{
    context::Context,
    echo::{EchoLayout, EchoReturns, Header},
    ends::{BROKE, SourceEnd},
    sockets::{LOOK_UP, reset_on_close},
};
use hdrhistogram::Histogram;
use longfat_host::monotonic_ns;
use longfat_schema::record::{EchoSample, Record};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv},
};
use std::{
    net::TcpStream,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// Echo latency of one stream, and how its reverse direction ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latency {
    histogram: Option<Histogram<u64>>,
    /// The drain limit came before the end of the stream.
    pub(crate) cut: bool,
    pub(crate) error: Option<String>,
}

impl Latency {
    /// Latency of a stream whose echoes nobody could read.
    pub(crate) fn failed(error: &str) -> Latency {
        Latency { error: Some(format!("echoes: {error}")), ..Latency::default() }
    }

    fn record(&mut self, latency_us: u64) {
        if self.histogram.is_none() {
            // Three digits up to an hour: the bounds are constants, so this cannot fail.
            self.histogram = Histogram::new_with_max(3_600_000_000, 3).ok();
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(latency_us);
        }
    }

    /// The figures, in an otherwise empty end.
    pub(crate) fn into_end(self) -> SourceEnd {
        let Some(histogram) = self.histogram else { return SourceEnd::default() };
        SourceEnd {
            echo_count: histogram.len(),
            echo_p50_us: Some(histogram.value_at_quantile(0.5)),
            echo_p99_us: Some(histogram.value_at_quantile(0.99)),
            echo_max_us: Some(histogram.max()),
            ..SourceEnd::default()
        }
    }
}

/// Shared by the writers (which say when they end) and the thread that reads.
pub(crate) struct Returns<'a> {
    context: &'a Context<'a>,
    writers_ended: AtomicUsize,
    last_ended_ns: AtomicU64,
}

struct Open {
    index: usize,
    echoes: EchoReturns,
}

impl<'a> Returns<'a> {
    pub(crate) fn new(context: &'a Context<'a>) -> Returns<'a> {
        Returns { context, writers_ended: AtomicUsize::new(0), last_ended_ns: AtomicU64::new(0) }
    }

    /// One stream has written all it will.
    pub(crate) fn writer_ended(&self) {
        self.last_ended_ns.store(monotonic_ns(), Relaxed);
        self.writers_ended.fetch_add(1, Relaxed);
    }

    /// Reads until every stream's other direction has ended, or the drain limit is over.
    pub(crate) fn read_all(&self, sockets: &[TcpStream]) -> Vec<Latency> {
        let layout = EchoLayout::new(self.context.plan.echo_every_bytes);
        let mut latencies: Vec<_> = sockets.iter().map(|_| Latency::default()).collect();
        let mut open: Vec<_> =
            (0..sockets.len()).map(|index| Open { index, echoes: EchoReturns::new(layout) }).collect();
        while !open.is_empty() {
            if self.limit_is_over(sockets.len()) {
                open.iter().for_each(|stream| cut(&sockets[stream.index], &mut latencies[stream.index]));
                break;
            }
            let ready = readable(&open, sockets);
            let mut at = 0;
            open.retain_mut(|stream| {
                at += 1;
                !ready[at - 1] || self.read_one(sockets, stream, &mut latencies)
            });
        }
        latencies
    }

    fn limit_is_over(&self, streams: usize) -> bool {
        if self.writers_ended.load(Relaxed) < streams {
            return false;
        }
        let since_ns = monotonic_ns().saturating_sub(self.last_ended_ns.load(Relaxed));
        let halt = self.context.halt;
        // A person who stops a transfer does not wait for a long queue; a dead peer sends nothing more.
        let limit_us = if halt.aborted().is_some() {
            0
        } else if halt.is_raised() {
            self.context.plan.drain_us.min(1_000_000)
        } else {
            self.context.plan.drain_us
        };
        since_ns > limit_us * 1000
    }

    /// Takes what one socket has; whether more may come.
    fn read_one(&self, sockets: &[TcpStream], stream: &mut Open, latencies: &mut [Latency]) -> bool {
        let mut bytes = [0; 4096];
        let now_ns = monotonic_ns();
        let latency = &mut latencies[stream.index];
        match recv(sockets[stream.index].as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => false,
            Ok(count) => {
                let taken = stream.echoes.take(&bytes[..count], |header| {
                    let sample = self.sample(stream.index as u32, header, now_ns);
                    latency.record(sample.latency_us);
                    (self.context.emit)(Record::Echo(sample));
                });
                taken.map_err(|error| latency.error = Some(format!("echoes: {error}"))).is_ok()
            }
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            Err(errno) => {
                latency.error = Some(format!("{BROKE}: {}", errno.desc()));
                false
            }
        }
    }

    fn sample(&self, stream: u32, header: Header, now_ns: u64) -> EchoSample {
        EchoSample {
            time_us: (header.time_ns / 1000) as i64,
            flow: self.context.plan.flow.clone(),
            stream,
            position_bytes: header.position_bytes,
            latency_us: now_ns.saturating_sub(header.time_ns) / 1000,
        }
    }
}

/// Which of the open streams have something to read.
fn readable(open: &[Open], sockets: &[TcpStream]) -> Vec<bool> {
    let mut fds: Vec<_> =
        open.iter().map(|stream| PollFd::new(sockets[stream.index].as_fd(), PollFlags::POLLIN)).collect();
    let timeout = PollTimeout::try_from(LOOK_UP).unwrap_or(PollTimeout::MAX);
    // An interrupted poll leaves no events; the loop comes back.
    let _ = poll(&mut fds, timeout);
    fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()
}

/// Throws away what the socket still holds and resets the connection when it is closed.
fn cut(socket: &TcpStream, latency: &mut Latency) {
    latency.cut = true;
    reset_on_close(socket);
}
