//! The sending end of TCP streams: one thread per stream writes, one reads all echoes, one samples all sockets.

use crate::{
    block::BlockWriter,
    context::Context,
    echo::EchoLayout,
    ends::{BROKE, SourceEnd, rate_bps},
    pattern::Pattern,
    returns::{Latency, Returns},
    room::Room,
    schedule::RateLimit,
    sockets::{bound_waits, reset_on_close},
    threads::{self, joined},
};
use longfat_host::{
    monotonic_ns,
    socket::{Buffer, buffer, cc, tcp_info, tcp_sample},
};
use longfat_schema::record::{AvailSample, Record, TcpSample};
use std::{
    io,
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// One stream's socket, number and what its writer came to.
#[derive(Debug)]
struct Written {
    start_ns: u64,
    end_ns: u64,
    position: u64,
    error: Option<String>,
}

/// Sends on all sockets (one per stream, in order) from `start_ns` on; returns when every stream has ended and
/// its echoes are in, or the drain limit has passed.
pub(crate) fn run(sockets: &[TcpStream], start_ns: u64, context: &Context<'_>) -> Vec<SourceEnd> {
    let plan = context.plan;
    let pattern = Pattern::new(plan.block_bytes as usize);
    let returns = Returns::new(context);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = threads::spawn(scope, || returns.read_all(sockets));
        let sampler = threads::spawn(scope, || sample_all(sockets, &over, context));
        let writers: Vec<_> = (0u32..)
            .zip(sockets)
            .map(|(stream, socket)| {
                let (pattern, returns) = (&pattern, &returns);
                let start = start_ns + u64::from(stream) * plan.stagger_us * 1000;
                threads::spawn(scope, move || {
                    let written = write_stream(socket, stream, start, pattern, context);
                    returns.writer_ended();
                    written
                })
            })
            .collect();
        let written: Vec<_> = writers
            .into_iter()
            .zip(sockets)
            .map(|(writer, socket)| {
                joined(writer).unwrap_or_else(|error| {
                    // Nobody else ends the stream of a writer that is not there.
                    reset_on_close(socket);
                    returns.writer_ended();
                    Written { start_ns: 0, end_ns: 0, position: 0, error: Some(error) }
                })
            })
            .collect();
        let latencies = joined(reader).unwrap_or_else(|error| vec![Latency::failed(&error); sockets.len()]);
        over.store(true, Relaxed);
        let last = joined(sampler).unwrap_or_default();
        assemble(sockets, written, latencies, last, context)
    })
}

fn write_stream(
    socket: &TcpStream,
    stream: u32,
    start_ns: u64,
    pattern: &Pattern,
    context: &Context<'_>,
) -> Written {
    let on_time = context.sleep_until(start_ns);
    let started = monotonic_ns();
    let mut position = 0;
    let error = if on_time {
        bound_waits(socket)
            .map_err(|error| error.to_string())
            .and_then(|()| write_all(socket, stream, started, pattern, context, &mut position))
            .err()
    } else {
        context.halt.reason()
    };
    // The receiver sees the end of the stream; a socket that is gone already needs no telling.
    let _ = socket.shutdown(Shutdown::Write);
    Written { start_ns: started, end_ns: monotonic_ns(), position, error }
}

fn write_all(
    socket: &TcpStream,
    stream: u32,
    start_ns: u64,
    pattern: &Pattern,
    context: &Context<'_>,
    position: &mut u64,
) -> Result<(), String> {
    let plan = context.plan;
    let total = plan.stream_bytes(stream).unwrap_or(u64::MAX);
    let span_ns = plan.duration_us().map_or(u64::MAX, |span| span * 1000);
    let limit = RateLimit::new(plan.stream_rate_bps(stream));
    let mut writer =
        BlockWriter::new(socket, pattern, plan).map_err(|error| format!("zero-copy: {error}"))?;
    let mut room = Room::of(socket, plan).map_err(|error| error.to_string())?;
    let mut took_ns = start_ns;
    while *position < total {
        let now = monotonic_ns();
        if now - start_ns >= span_ns {
            break;
        }
        if context.halt.is_raised() {
            return Err(context.halt.reason().unwrap_or_default());
        }
        context.refuse_beyond(*position)?;
        let wait = limit.wait_ns(*position, now - start_ns);
        if wait > 0 {
            let left = span_ns - (now - start_ns);
            std::thread::sleep(Duration::from_nanos(wait.min(left)).min(crate::sockets::LOOK_UP));
            continue;
        }
        let length = (total - *position).min(room.most_bytes);
        match room.offer(now, length, |now_ns| writer.write(*position, length, now_ns)) {
            Ok(0) => return Err("the connection took no more bytes".to_owned()),
            Ok(count) => {
                *position += count;
                took_ns = now;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                refuse_silence(socket, now - took_ns, plan.timeout_us)?;
            }
            Err(error) => return Err(format!("{} after {position} bytes: {error}", what_failed(&error))),
        }
    }
    Ok(())
}

fn what_failed(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => BROKE,
        _ => "sending failed",
    }
}

/// An error when the socket has taken nothing for the timeout, and its peer has acknowledged nothing, nor answered a
/// probe.
fn refuse_silence(socket: &TcpStream, blocked_ns: u64, timeout_us: u64) -> Result<(), String> {
    if blocked_ns < timeout_us * 1000 {
        return Ok(());
    }
    let info = tcp_info(socket).map_err(|error| error.to_string())?;
    if u64::from(info.last_ack_recv_ms) * 1000 < timeout_us {
        return Ok(());
    }
    Err(format!("nothing was acknowledged for {:.1} s", f64::from(info.last_ack_recv_ms) / 1000.0))
}

/// Samples every socket each period until `over`; the last sample of each.
fn sample_all(sockets: &[TcpStream], over: &AtomicBool, context: &Context<'_>) -> Vec<Option<TcpSample>> {
    let period_ns = context.plan.sample_every_us * 1000;
    let mut last: Vec<Option<TcpSample>> = vec![None; sockets.len()];
    let mut seen = vec![0; sockets.len()];
    let mut next = monotonic_ns();
    loop {
        let ending = over.load(Relaxed);
        for (stream, ((socket, last), seen)) in (0u32..).zip(sockets.iter().zip(&mut last).zip(&mut seen)) {
            // A socket that was reset has no more to say: the sample before stands.
            if let Ok(sample) = tcp_sample(socket).filter_live() {
                let sample = TcpSample {
                    flow: context.plan.flow.clone(),
                    stream,
                    role: "sender".to_owned(),
                    ..sample
                };
                *last = Some(sample.clone());
                (context.emit)(Record::Tcp(sample));
            }
            say_avail(socket, stream, seen, context);
        }
        if ending {
            return last;
        }
        next += period_ns;
        let now = monotonic_ns();
        if next < now {
            // Fell behind (a stalled machine): go on from now rather than hurry.
            next = now + period_ns;
        }
        sleep_in_steps(next, over);
    }
}

/// What a socket has found since `seen_us`.
fn say_avail(socket: &TcpStream, stream: u32, seen_us: &mut i64, context: &Context<'_>) {
    let Some(found) = (context.avail)(socket.as_fd()).filter(|found| found.time_us != *seen_us) else {
        return;
    };
    *seen_us = found.time_us;
    (context.emit)(Record::Avail(AvailSample { flow: context.plan.flow.clone(), stream, ..found }));
}

/// A sample of a socket that still has its figures.
trait FilterLive {
    fn filter_live(self) -> Result<TcpSample, ()>;
}

impl FilterLive for longfat_host::Result<TcpSample> {
    /// A reset socket reports a cleared control block (no segment size, no window).
    fn filter_live(self) -> Result<TcpSample, ()> {
        self.map_err(drop).and_then(|sample| if sample.cwnd_segments == 0 { Err(()) } else { Ok(sample) })
    }
}

fn sleep_in_steps(until_ns: u64, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let left = until_ns.saturating_sub(monotonic_ns());
        if left == 0 {
            return;
        }
        std::thread::sleep(Duration::from_nanos(left).min(Duration::from_millis(50)));
    }
}

fn assemble(
    sockets: &[TcpStream],
    written: Vec<Written>,
    latencies: Vec<Latency>,
    samples: Vec<Option<TcpSample>>,
    context: &Context<'_>,
) -> Vec<SourceEnd> {
    let layout = EchoLayout::new(context.plan.echo_every_bytes);
    let mut latencies = latencies.into_iter();
    let mut samples = samples.into_iter();
    (0u32..)
        .zip(sockets.iter().zip(written))
        .map(|(stream, (socket, written))| {
            let latency = latencies.next().unwrap_or_default();
            let sample = samples.next().flatten().unwrap_or_default();
            let span_us = (written.end_ns - written.start_ns) / 1000;
            SourceEnd {
                stream,
                start_us: (written.start_ns / 1000) as i64,
                end_us: (written.end_ns / 1000) as i64,
                sent_bytes: written.position,
                offered_bps: rate_bps(written.position, span_us),
                cc: cc(socket).unwrap_or(sample.cc),
                retransmitted_segments: sample.retransmitted_segments,
                retransmitted_bytes: sample.retransmitted_bytes,
                min_rtt_us: sample.min_rtt_us,
                mss_bytes: sample.mss_bytes,
                sndbuf_bytes: buffer(socket, Buffer::Send),
                echo_sent: layout.count(written.position),
                cut: latency.cut,
                error: written.error.or(latency.error.clone()),
                ..latency.into_end()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        echo::Header,
        error::End,
        halt::Halt,
        plan::{Amount, TransferPlan},
        sockets::{Settings, connect_to},
    };
    use longfat_host::socket::{set_buffer, set_option};
    use std::{io::Read, net::TcpListener, os::fd::AsRawFd, sync::atomic::AtomicU64, time::Instant};

    /// Reads a little at a time, and nothing for 300 ms every now and then.
    fn read_haltingly(mut socket: TcpStream) {
        let (mut piece, mut rested) = ([0; 3000], Instant::now());
        while let Ok(1..) = socket.read(&mut piece) {
            std::thread::sleep(Duration::from_millis(2));
            if rested.elapsed() > Duration::from_millis(200) {
                std::thread::sleep(Duration::from_millis(300));
                rested = Instant::now();
            }
        }
    }

    const UNSENT_BYTES: i32 = 16_384;
    const RECEIVE_BYTES: u64 = 32 << 10;

    /// A connection as of Ethernet, whose sender may have 16 KiB unsent and whose receiver holds little.
    fn narrow(plan: &TransferPlan) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_buffer(&listener, Buffer::Receive, RECEIVE_BYTES).unwrap();
        set_option(&listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1448).unwrap();
        let settings = Settings::data(plan, End::Sending);
        let socket = connect_to(listener.local_addr().unwrap(), None, &settings, &Halt::default()).unwrap();
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES).unwrap();
        (socket, listener.accept().unwrap().0)
    }

    /// Bytes that wait unsent.
    fn unsent(socket: &TcpStream) -> u64 {
        let mut bytes = 0i32;
        // SAFETY: the socket is open, and SIOCOUTQNSD writes an int.
        unsafe { libc::ioctl(socket.as_raw_fd(), 0x894b, &raw mut bytes) };
        bytes as u64
    }

    /// Stream positions, each with a time.
    type Times = Vec<(u64, u64)>;

    /// Reads slowly to the end: when each position was reached, and the time that stands in the stream at every 4096
    /// bytes.
    fn read_slowly(mut socket: TcpStream) -> (Times, Times) {
        let (mut reached, mut stamps) = (vec![], vec![]);
        let mut stream = Vec::new();
        let mut piece = [0; 2048];
        while let Ok(count @ 1..) = socket.read(&mut piece) {
            stream.extend_from_slice(&piece[..count]);
            reached.push((stream.len() as u64, monotonic_ns()));
            std::thread::sleep(Duration::from_micros(300));
        }
        for at in (0..stream.len().saturating_sub(16)).step_by(4096) {
            let header = Header::decode(stream[at..at + 16].try_into().unwrap(), at as u64).unwrap();
            stamps.push((header.position_bytes, header.time_ns));
        }
        (reached, stamps)
    }

    #[test]
    fn a_timestamp_is_taken_when_there_is_room_for_it_and_little_waits_unsent() {
        let plan = TransferPlan {
            amount: Amount::Bytes(2_000_000),
            echo_every_bytes: Some(4096),
            ..TransferPlan::default()
        };
        let (socket, receiver) = narrow(&plan);
        let reader = std::thread::spawn(move || read_slowly(receiver));
        let halt = Halt::default();
        let context =
            Context { plan: &plan, halt: &halt, emit: &|_| (), avail: &|_| None, stream_bytes_max: u64::MAX };
        let pattern = Pattern::new(plan.block_bytes as usize);
        let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
        let written = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    most.fetch_max(unsent(&socket), Relaxed);
                }
            });
            let written = write_stream(&socket, 0, monotonic_ns(), &pattern, &context);
            over.store(true, Relaxed);
            written
        });
        drop(socket);
        assert_eq!((written.error, written.position), (None, 2_000_000));
        let most = most.into_inner();
        assert!(most > 0 && most <= UNSENT_BYTES as u64, "{most} bytes waited unsent");
        let (reached, stamps) = reader.join().unwrap();
        assert_eq!(stamps.len(), 2_000_000 / 4096 + 1);
        // All that lies between a timestamp's place and what has been read is unsent or in the receiver.
        let between = UNSENT_BYTES as u64 + RECEIVE_BYTES;
        for (position, time_ns) in stamps.iter().filter(|(position, _)| *position > between) {
            let (_, read_ns) = reached.iter().find(|(at, _)| at + between >= *position).unwrap();
            assert!(read_ns <= time_ns, "the timestamp at {position} is older than room for it");
        }
    }

    #[test]
    fn a_receiver_that_closes_its_window_now_and_then_is_not_taken_for_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_buffer(&listener, Buffer::Receive, 6000).unwrap();
        // As of Ethernet: a window of less than a segment is one that must be probed.
        set_option(&listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1448).unwrap();
        let plan = TransferPlan {
            amount: Amount::DurationUs(5_000_000),
            timeout_us: 1_000_000,
            ..TransferPlan::default()
        };
        let halt = Halt::default();
        let settings = Settings::data(&plan, End::Sending);
        let socket = connect_to(listener.local_addr().unwrap(), None, &settings, &halt).unwrap();
        let reader = std::thread::spawn(move || read_haltingly(listener.accept().unwrap().0));
        let context =
            Context { plan: &plan, halt: &halt, emit: &|_| (), avail: &|_| None, stream_bytes_max: u64::MAX };
        let pattern = Pattern::new(plan.block_bytes as usize);
        let written = write_stream(&socket, 0, monotonic_ns(), &pattern, &context);
        drop(socket);
        assert_eq!(written.error, None, "after {} bytes", written.position);
        reader.join().unwrap();
    }
}
