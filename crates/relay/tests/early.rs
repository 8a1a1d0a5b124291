//! A client that is reset before its server has answered, or before the relay has looked at it: what it had sent
//! arrives.

use crate::bed::{ANYWHERE, Bed, Running, accept, at, nft, path::eventually, reset};
use longfat_host::socket;
use longfat_relay::Ended;
use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

/// Bytes until the end, and whether that was a reset.
fn received(mut far: TcpStream) -> (usize, bool) {
    let (mut count, mut block) = (0, [0; 1 << 14]);
    loop {
        match far.read(&mut block) {
            Ok(0) => return (count, false),
            Ok(bytes) => count += bytes,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (count, true),
            Err(error) => panic!("after {count} bytes: {error}"),
        }
    }
}

/// The server hears no SYN.
fn deafen(bed: &Bed) {
    nft(&bed.server, "add table inet deaf");
    nft(&bed.server, "add chain inet deaf in { type filter hook input priority 0; }");
    nft(&bed.server, "add rule inet deaf in tcp flags & (syn | ack) == syn drop");
}

fn undeafen(bed: &Bed) {
    nft(&bed.server, "delete table inet deaf");
}

/// A reset takes along what has not been sent; of what the relay has acknowledged nothing may be lost.
fn send_and_reset(bed: &Bed, bytes: usize) {
    let mut client = bed.connect(at(ANYWHERE));
    client.write_all(&vec![7; bytes]).unwrap();
    eventually("it is acknowledged", || socket::tcp_info(&client).unwrap().acked_bytes >= bytes as u64);
    reset(client);
}

#[test]
fn what_a_client_sent_before_its_reset_arrives_when_the_server_answers_later() {
    let bed = Bed::new("early");
    let listener = bed.listen(ANYWHERE);
    let mut plan = Bed::transparent();
    plan.reset_wait = Duration::from_secs(15);
    let relay = bed.start(plan);
    deafen(&bed);
    send_and_reset(&bed, 20_000);
    undeafen(&bed);
    // The relay's SYN is sent again after a second.
    assert_eq!(received(accept(&listener)), (20_000, true));
    eventually("the connection ends", || !relay.notes.closed.lock().unwrap().is_empty());
    let closed = relay.notes.closed.lock().unwrap()[0].clone();
    assert_eq!((closed.ended, closed.client_to_server_bytes), (Ended::ResetByClient, 20_000));
}

#[test]
fn a_client_that_is_gone_is_dialled_for_no_longer_than_a_reset_waits() {
    let bed = Bed::new("earlyb");
    let _listener = bed.listen(ANYWHERE);
    let mut plan = Bed::transparent();
    plan.reset_wait = Duration::from_millis(300);
    let relay = bed.start(plan);
    deafen(&bed);
    send_and_reset(&bed, 20_000);
    eventually("the connection ends", || !relay.notes.closed.lock().unwrap().is_empty());
    let closed = relay.notes.closed.lock().unwrap()[0].clone();
    assert_eq!((closed.ended, closed.client_to_server_bytes), (Ended::ResetByClient, 0));
    assert!(closed.duration_us >= 300_000, "{} us", closed.duration_us);
    // A dial that nobody answers ends after 20 s.
    assert!(closed.duration_us < 10_000_000, "{} us", closed.duration_us);
}

/// What the server's program gets of each of many clients that send and reset at once.
fn resets_at_once(bed: &Bed, listener: &TcpListener) -> Vec<(usize, bool)> {
    (0..40)
        .map(|count| {
            let mut client = bed.connect(at(ANYWHERE));
            // Little enough to be sent at once.
            client.write_all(&vec![7; 7 + 200 * count]).unwrap();
            reset(client);
            received(accept(listener))
        })
        .collect()
}

#[test]
fn what_a_client_sends_and_resets_at_once_arrives_as_without_a_relay() {
    let bed = Bed::new("atonce");
    let listener = bed.listen(ANYWHERE);
    let plain = resets_at_once(&bed, &listener);
    assert!(plain.iter().all(|(bytes, with_reset)| *bytes > 0 && *with_reset), "{plain:?}");
    for plan in [Bed::transparent(), Bed::after_server()] {
        let relay: Running = bed.start(plan);
        assert_eq!(resets_at_once(&bed, &listener), plain);
        let ended = relay.stop();
        assert_eq!(ended.connections, 40, "all went through the relay");
    }
}

/// As many as make a worker busy, at once.
const CROWD: usize = 64;

/// A client sends a byte: segments that its server has had of it by then.
fn segments_until_a_byte(client: &TcpStream, far: &mut TcpStream) -> u32 {
    (&*client).write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
    socket::tcp_info(far).unwrap().segs_in
}

/// Clients of one server, all at once; each is given to `work` with its place.
fn crowd(bed: &Bed, work: impl Fn(TcpStream) + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..CROWD {
            scope.spawn(|| work(bed.connect(at(ANYWHERE))));
        }
    });
}

/// Acknowledgements that a timer has sent.
fn delayed_acknowledgements(bed: &Bed) -> u64 {
    let counted =
        bed.relay.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
    let mut lines = counted.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut named = names.split_whitespace().zip(values.split_whitespace());
    named.find(|(name, _)| *name == "DelayedACKs").unwrap().1.parse().unwrap()
}

#[test]
fn a_busy_worker_completes_handshakes_by_first_bytes_and_an_idle_one_at_once() {
    let bed = Bed::new("eack");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(Bed::transparent());
    let ended = |count: usize| eventually("they end", || relay.notes.closed.lock().unwrap().len() >= count);
    let mut lone = Vec::new();
    for count in 1..=5 {
        let (client, mut far) = bed.pair(&listener, at(ANYWHERE));
        lone.push(segments_until_a_byte(&client, &mut far));
        drop((client, far));
        ended(count);
    }
    assert!(lone.iter().all(|segments| *segments == lone[0]), "{lone:?}");
    let mut saved = 0;
    eventually("a handshake is completed by data", || {
        std::thread::scope(|scope| {
            scope.spawn(|| crowd(&bed, |mut client| client.write_all(b"x").unwrap()));
            for _ in 0..CROWD {
                let mut far = accept(&listener);
                far.read_exact(&mut [0]).unwrap();
                // The client closes meanwhile: its FIN may be a segment more.
                saved += usize::from(socket::tcp_info(&far).unwrap().segs_in < lone[0]);
            }
        });
        saved > 0
    });
    assert_eq!(relay.stop().reset, 0);
}

#[test]
fn servers_that_speak_first_do_not_wait_for_a_timer_of_a_busy_worker() {
    let bed = Bed::new("efirst");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(Bed::transparent());
    let before = delayed_acknowledgements(&bed);
    for _ in 0..5 {
        std::thread::scope(|scope| {
            scope.spawn(|| crowd(&bed, |mut client| client.read_exact(&mut [0]).unwrap()));
            for _ in 0..CROWD {
                accept(&listener).write_all(b"x").unwrap();
            }
        });
    }
    // Other data may wait for the kernel's timer now and then.
    let delayed = delayed_acknowledgements(&bed) - before;
    assert!(delayed < CROWD as u64 / 8, "{delayed} of {} handshakes", 5 * CROWD);
    assert_eq!(relay.stop().reset, 0);
}
