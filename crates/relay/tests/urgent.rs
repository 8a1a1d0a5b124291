//! Urgent data (MSG_OOB) through the relay: every dialogue is held over plain forwarding first, then through the relay,
//! and what the receiving program sees must be the same: bytes, marks and their places, and the end.

use crate::bed::{ANYWHERE, Bed, Noise, accept, at, path::eventually, reset};
use longfat_host::socket;
use longfat_relay::RelayPlan;
use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv, send},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// What the sending program does.
#[derive(Debug, Clone, Copy)]
enum Step {
    Send(usize),
    /// One byte, urgent.
    Mark(u8),
    /// Until the receiver has everything.
    Sync,
    Pause(Duration),
    Fin,
    Reset,
}
use Step::{Fin, Mark, Pause, Reset, Send, Sync};

/// How the receiving program takes urgent bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taking {
    Inline,
    ByThemselves,
}

/// What the receiving program saw.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    bytes: Vec<u8>,
    /// How many bytes came before each.
    marks: Vec<usize>,
    urgent: Vec<u8>,
    with_reset: bool,
}

fn ioctl(stream: &TcpStream, request: libc::Ioctl) -> i32 {
    let mut value = 0;
    // SAFETY: the request writes one int.
    assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), request, &raw mut value) }, 0);
    value
}

fn is_at_mark(stream: &TcpStream) -> bool {
    const SIOCATMARK: libc::Ioctl = 0x8905;
    ioctl(stream, SIOCATMARK) != 0
}

/// Reads to the end; `got` counts every byte, urgent ones too.
fn receive(mut stream: &TcpStream, taking: Taking, got: &AtomicUsize) -> Seen {
    let (mut seen, mut block) =
        (Seen { bytes: vec![], marks: vec![], urgent: vec![], with_reset: false }, vec![0; 1 << 16]);
    loop {
        let mut look = [PollFd::new(stream.as_fd(), PollFlags::POLLIN | PollFlags::POLLPRI)];
        assert_eq!(
            poll(&mut look, PollTimeout::from(30_000u16)),
            Ok(1),
            "nothing after {} bytes",
            seen.bytes.len()
        );
        let ready = look[0].revents().unwrap();
        let marked = is_at_mark(stream);
        if marked && ready.contains(PollFlags::POLLPRI) && seen.marks.last() != Some(&seen.bytes.len()) {
            seen.marks.push(seen.bytes.len());
        }
        if marked && ready.contains(PollFlags::POLLPRI) && taking == Taking::ByThemselves {
            let mut byte = [0];
            assert_eq!(recv(stream.as_raw_fd(), &mut byte, MsgFlags::MSG_OOB), Ok(1));
            seen.urgent.push(byte[0]);
            got.fetch_add(1, Ordering::Release);
            continue;
        }
        // Without bytes the next one might be a mark's when it is read.
        if !ready.contains(PollFlags::POLLIN) {
            continue;
        }
        let most = if marked && taking == Taking::Inline { 1 } else { block.len() };
        match stream.read(&mut block[..most]) {
            Ok(0) => return seen,
            Ok(count) => {
                seen.bytes.extend(&block[..count]);
                got.fetch_add(count, Ordering::Release);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                seen.with_reset = true;
                return seen;
            }
            Err(error) => panic!("after {} bytes: {error}", seen.bytes.len()),
        }
    }
}

fn perform(mut stream: TcpStream, steps: &[Step], got: &AtomicUsize) {
    let (mut noise, mut sent) = (Noise::new(9), 0);
    for step in steps {
        match *step {
            Send(bytes) => {
                let mut block = vec![0; bytes];
                noise.fill(&mut block);
                stream.write_all(&block).unwrap();
                sent += bytes;
            }
            Mark(byte) => {
                assert_eq!(send(stream.as_raw_fd(), &[byte], MsgFlags::MSG_OOB), Ok(1));
                sent += 1;
            }
            Sync => eventually("everything arrives", || got.load(Ordering::Acquire) == sent),
            Pause(time) => std::thread::sleep(time),
            Fin => stream.shutdown(Shutdown::Write).unwrap(),
            Reset => return reset(stream),
        }
    }
    // It stays until the other side has read all.
    let _ = stream.read(&mut [0]);
}

/// One side sends, the other sees; the receiver begins after `delay`. Nothing when segments overtook each other on
/// their way to the receiver: when a FIN comes before the urgent byte that it follows, Linux takes the last byte of the
/// FIN's header for the urgent one (`tcp_urg` looks for it at a negative place).
fn hold(near: TcpStream, other: TcpStream, steps: &[Step], taking: Taking, delay: Duration) -> Option<Seen> {
    let inline = i32::from(taking == Taking::Inline);
    socket::set_option(&other, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline).unwrap();
    let got = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| perform(near, steps, &got));
        std::thread::sleep(delay);
        let seen = receive(&other, taking, &got);
        let is_in_order = socket::tcp_info(&other).unwrap().rcv_ooopack == 0;
        drop(other);
        is_in_order.then_some(seen)
    })
}

fn thrifty() -> RelayPlan {
    let mut plan = Bed::transparent();
    plan.defaults_mut().memory_bytes = Some(256 << 10);
    plan
}

type Case = (&'static str, Vec<Step>, Duration);

/// All dialogues, both ways, with and without SO_OOBINLINE at the receiver, and how many connections they took.
fn all(bed: &Bed, cases: &[Case]) -> (Vec<Seen>, u64) {
    const TRIALS: usize = 20;
    let listener = bed.listen(ANYWHERE);
    let (mut seen, mut connections) = (Vec::new(), 0);
    for (name, steps, delay) in cases {
        for client_sends in [true, false] {
            for taking in [Taking::Inline, Taking::ByThemselves] {
                let in_order = (0..TRIALS).find_map(|_| {
                    let client = bed.connect(at(ANYWHERE));
                    let far = accept(&listener);
                    let (near, other) = if client_sends { (client, far) } else { (far, client) };
                    connections += 1;
                    hold(near, other, steps, taking, *delay)
                });
                seen.push(in_order.unwrap_or_else(|| panic!("{name}: {TRIALS} times out of order")));
            }
        }
    }
    (seen, connections)
}

fn compare(tag: &str, cases: &[Case]) {
    let bed = Bed::new(tag);
    let (plain, _) = all(&bed, cases);
    for (mode, plan) in
        [("early", Bed::transparent()), ("after-server", Bed::after_server()), ("thrifty", thrifty())]
    {
        let relay = bed.start(plan);
        let (relayed, connections) = all(&bed, cases);
        assert_eq!(relay.stop().connections, connections, "{mode}: all went through the relay");
        for (index, (plain, relayed)) in plain.iter().zip(&relayed).enumerate() {
            let (name, ..) = &cases[index / 4];
            let case = format!("{name}, client sends: {}, inline: {}, {mode}", index % 4 < 2, index % 2 == 0);
            assert_eq!(relayed.bytes.len(), plain.bytes.len(), "{case}: bytes");
            assert!(
                relayed == plain,
                "{case}: {:?} {:?}, plain {:?} {:?}",
                relayed.marks,
                relayed.urgent,
                plain.marks,
                plain.urgent
            );
        }
    }
}

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_millis(200);

#[test]
fn a_mark_in_the_middle_of_a_stream_is_where_it_was_and_nothing_is_lost() {
    compare(
        "urgm",
        &[
            ("3 MB on each side", vec![Send(3_000_000), Mark(b'!'), Pause(SOON), Send(3_000_000), Fin], NOW),
            ("small messages", vec![Send(4), Sync, Mark(b'!'), Sync, Send(4), Sync, Fin], NOW),
            ("full pipes", vec![Send(2_000_000), Mark(b'!'), Send(1_000_000), Fin], SOON),
        ],
    );
}

#[test]
fn a_mark_comes_first_or_last_or_with_the_end() {
    compare(
        "urge",
        &[
            ("the very first byte", vec![Mark(b'!'), Send(10), Fin], SOON),
            ("first, alone", vec![Mark(b'!'), Sync, Send(10), Fin], NOW),
            ("with the FIN", vec![Send(100), Mark(b'!'), Fin], SOON),
            ("with the FIN, after much", vec![Send(1_000_000), Mark(b'!'), Fin], NOW),
            ("alone, then the FIN", vec![Mark(b'!'), Sync, Fin], NOW),
            ("before a reset", vec![Send(1000), Mark(b'!'), Send(10), Sync, Reset], NOW),
        ],
    );
}

#[test]
fn several_marks_are_told_apart() {
    let turns = (0..12).flat_map(|turn| [Send(turn * 997), Mark(b'a' + turn as u8), Sync]);
    compare("urgs", &[("twelve", turns.chain([Send(5), Fin]).collect(), NOW)]);
}

/// Sends so many bytes, every second one urgent, without a pause.
fn urge_often(mut stream: &TcpStream, count: usize) {
    for index in 0..count {
        let byte = [(index % 251) as u8];
        if index % 2 == 0 {
            stream.write_all(&byte).unwrap();
        } else {
            assert_eq!(send(stream.as_raw_fd(), &byte, MsgFlags::MSG_OOB), Ok(1));
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn of_ten_thousand_marks_in_a_row_no_byte_is_lost_or_changes_places() {
    const BYTES: usize = 20_000;
    let bed = Bed::new("urgx");
    let listener = bed.listen(ANYWHERE);
    for plan in [Bed::transparent(), thrifty()] {
        let relay = bed.start(plan);
        for client_sends in [true, false] {
            let (client, far) = bed.pair(&listener, at(ANYWHERE));
            let (near, other) = if client_sends { (client, far) } else { (far, client) };
            socket::set_option(&other, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).unwrap();
            let seen = std::thread::scope(|scope| {
                scope.spawn(|| urge_often(&near, BYTES));
                receive(&other, Taking::Inline, &AtomicUsize::new(0))
            });
            assert_eq!(seen.bytes.len(), BYTES, "client sends: {client_sends}");
            let is_right = |(index, byte): (usize, &u8)| usize::from(*byte) == index % 251;
            assert!(seen.bytes.iter().enumerate().all(is_right) && !seen.marks.is_empty());
        }
        assert_eq!(relay.stop().connections, 2);
    }
}

#[test]
fn ftplibs_abort_is_answered() {
    let bed = Bed::new("abor");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(Bed::transparent());
    let server = std::thread::spawn(move || {
        let mut far = accept(&listener);
        socket::set_option(&far, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).unwrap();
        far.write_all(b"220 ready\r\n").unwrap();
        let mut command = [0; 6];
        far.read_exact(&mut command).unwrap();
        far.write_all(b"226 aborted\r\n").unwrap();
        command
    });
    let mut command = bed.client.command("python3");
    let script = "import ftplib; f = ftplib.FTP(timeout=20); f.connect('10.71.2.2', 9000); print(f.abort())";
    let output = command.args(["-c", script]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "226 aborted\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(&server.join().unwrap(), b"ABOR\r\n");
    assert_eq!(relay.stop().connections, 1);
}
