//! A relay that hands over to another one: nothing is lost, changed or reset, however often, and a successor that fails
//! changes nothing.

use crate::bed::{
    self, ANYWHERE, Bed, Running, SERVER_V4, SERVER_V6, at, carry, check_noise_slowly, exchange,
    path::eventually, send_noise,
};
use longfat_relay::{Accept, RelayPlan};
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Hands over that often.
const HANDOVERS: usize = 6;

/// Hands over again and again while something is done again and again; the last relay.
fn upgrading(bed: &Bed, first: Running, plan: &RelayPlan, work: impl Fn(usize) + Send) -> Running {
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let enough = &is_enough;
        let worker =
            scope.spawn(move || (0..).take_while(|_| !enough.load(Ordering::Acquire)).for_each(work));
        let mut relay = first;
        for _ in 0..HANDOVERS {
            std::thread::sleep(Duration::from_millis(50));
            let next = Running::upgrade(&bed.relay, plan.clone(), || {}).unwrap();
            relay.wait();
            relay = next;
        }
        is_enough.store(true, Ordering::Release);
        worker.join().unwrap();
        relay
    })
}

/// Both ways at once, in several connections one after the other, with handovers at any time.
fn goes_on(tag: &str, plan: &RelayPlan, server: &str) {
    let bed = Bed::new(tag);
    let listener = bed.listen(&format!("{server}:9000"));
    let relay = bed.start(plan.clone());
    let address = if plan.intercept.is_some() { listener.local_addr().unwrap() } else { relay.address() };
    let long = bed.pair(&listener, address);
    let relay = upgrading(&bed, relay, plan, |round| {
        let (client, far) = bed.pair(&listener, address);
        exchange(&client, &far, (8 << 20) + round);
    });
    exchange(&long.0, &long.1, 1 << 20);
    let stats = relay.stop();
    assert_eq!((stats.reset, stats.stopped), (0, 0), "{stats:?}");
}

#[test]
fn streams_of_a_listener_go_on() {
    goes_on("uex", &Bed::explicit(at(ANYWHERE)), SERVER_V4);
}

#[test]
fn streams_accepted_early_go_on() {
    goes_on("uea", &Bed::transparent(), SERVER_V4);
}

#[test]
fn streams_accepted_after_the_server_go_on() {
    goes_on("uaf", &Bed::after_server(), SERVER_V4);
}

#[test]
fn streams_of_ipv6_go_on() {
    goes_on("ue6", &Bed::transparent(), &format!("[{SERVER_V6}]"));
    goes_on("ua6", &Bed::after_server(), &format!("[{SERVER_V6}]"));
}

/// Connects all the time, after-server, while relays come and go: each handshake and each byte.
#[test]
fn connections_that_begin_during_a_handover_come_about() {
    for (tag, accept) in [("uce", Accept::Early), ("uca", Accept::AfterServer)] {
        let bed = Bed::new(tag);
        let listener = bed.listen(ANYWHERE);
        let mut plan = Bed::transparent();
        plan.defaults_mut().accept = accept;
        let relay = bed.start(plan.clone());
        let relay = upgrading(&bed, relay, &plan, |_| {
            let (client, far) = bed.pair(&listener, at(ANYWHERE));
            carry(&client, &far, 1000);
            carry(&far, &client, 1000);
        });
        assert_eq!(relay.stop().reset, 0);
    }
}

/// One direction has finished, the other one waits for a reader, an urgent byte is on its way.
#[test]
fn half_closed_connections_shut_windows_and_urgent_bytes_go_on() {
    let bed = Bed::new("uhc");
    let listener = bed.listen(ANYWHERE);
    for accept in [Accept::Early, Accept::AfterServer] {
        let mut plan = Bed::transparent();
        plan.defaults_mut().accept = accept;
        let relay = bed.start(plan.clone());
        let (half, far) = bed.pair(&listener, at(ANYWHERE));
        half.shutdown(Shutdown::Write).unwrap();
        let mut far = far;
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        let shut = bed.pair(&listener, at(ANYWHERE));
        let urgent = bed.pair(&listener, at(ANYWHERE));
        setsockopt(&urgent.1, sockopt::OobInline, &true).unwrap();
        std::thread::scope(|scope| {
            // More than all buffers on the way hold.
            let sending = shut.0.try_clone().unwrap();
            let sender = scope.spawn(move || send_noise(&sending, 5, 48 << 20));
            std::thread::sleep(Duration::from_millis(300));
            let (mut relay, mut plain) = (relay, 0u8);
            for _ in 0..10 {
                assert_eq!(send(urgent.0.as_raw_fd(), b"!", MsgFlags::MSG_OOB).unwrap(), 1);
                let next = Running::upgrade(&bed.relay, plan.clone(), || {}).unwrap();
                relay.wait();
                relay = next;
                plain += 1;
                (&urgent.0).write_all(&[plain]).unwrap();
                assert_eq!(read_urgent(&urgent.1), (vec![b'!', plain], 1), "the mark, at its place");
            }
            far.write_all(b"an answer after the end").unwrap();
            let mut got = [0; 23];
            (&half).read_exact(&mut got).unwrap();
            assert_eq!(&got, b"an answer after the end");
            drop(far);
            assert_eq!((&half).read(&mut got).unwrap(), 0);
            assert_eq!(check_noise_slowly(&shut.1, 5, 1 << 16, Duration::ZERO), 48 << 20);
            sender.join().unwrap();
            drop((shut, urgent));
            assert_eq!(relay.stop().reset, 0);
        });
    }
}

/// Two bytes, one at a time, and how many of them stood at a mark.
fn read_urgent(mut stream: &TcpStream) -> (Vec<u8>, usize) {
    let (mut bytes, mut marks) = (Vec::new(), 0);
    while bytes.len() < 2 {
        let mut byte = [0];
        // The mark comes with its byte or before it.
        stream.peek(&mut byte).unwrap();
        let mut at_mark: libc::c_int = 0;
        // SAFETY: SIOCATMARK writes one int.
        unsafe { libc::ioctl(stream.as_raw_fd(), 0x8905, &raw mut at_mark) };
        stream.read_exact(&mut byte).unwrap();
        marks += usize::from(at_mark != 0);
        bytes.push(byte[0]);
    }
    (bytes, marks)
}

#[test]
fn a_successor_that_fails_changes_nothing() {
    let bed = Bed::new("ufa");
    let listener = bed.listen(ANYWHERE);
    let plan = Bed::after_server();
    let relay = bed.start(plan.clone());
    let living = bed.pair(&listener, at(ANYWHERE));
    let mut other = plan.clone();
    other.workers += 1;
    let error = Running::upgrade(&bed.relay, other, || {}).err().unwrap();
    assert!(error.contains("workers"), "{error}");
    let dies = || panic!("a successor that fails when everything is prepared");
    assert!(Running::upgrade(&bed.relay, plan.clone(), dies).is_err());
    eventually("the relay says so", || relay.notes.warnings.lock().unwrap().len() >= 2);
    exchange(&living.0, &living.1, 1 << 20);
    let (client, far) = bed.pair(&listener, at(ANYWHERE));
    exchange(&client, &far, 1 << 20);
    // And it can be taken over from after that.
    let next = Running::upgrade(&bed.relay, plan, || {}).unwrap();
    relay.wait();
    drop((living, client, far));
    assert_eq!(next.stop().reset, 0);
    let left = bed::nft(&bed.relay, "list tables");
    assert!(!left.contains("longfat_"), "{left}");
}

#[test]
fn who_is_not_there_cannot_be_taken_over_from() {
    let bed = Bed::new("uno");
    let error = Running::upgrade(&bed.relay, Bed::transparent(), || {}).err().unwrap();
    assert!(error.contains("no relay named"), "{error}");
}
