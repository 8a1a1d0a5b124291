//! SYNs of clients that nobody is, beside living ones.

use super::{
    ANYWHERE, Bed, accept, at,
    packet::{Segment, Sender},
};
use longfat_host::socket;
use longfat_relay::RelayPlan;
use std::{
    collections::HashSet,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Where the spoofed addresses are: behind the client's host, which drops what comes for them.
const ELSEWHERE: &str = "10.80.0.0/12";
const LIVING: usize = 100;
const THREADS: usize = 10;
/// Most that a server may see of clients that nobody is.
const NOBODIES: usize = 64;

/// Answers everybody with what they say; the addresses that came.
fn echo(listener: &TcpListener, done: &AtomicBool) -> HashSet<SocketAddr> {
    listener.set_nonblocking(true).unwrap();
    let (mut peers, mut streams) = (HashSet::new(), Vec::<TcpStream>::new());
    while !done.load(Ordering::Relaxed) {
        while let Ok((stream, peer)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            peers.insert(peer);
            streams.push(stream);
        }
        streams.retain_mut(|stream| {
            let mut said = [0; 64];
            match stream.read(&mut said) {
                Ok(0) => false,
                Ok(bytes) => stream.write_all(&said[..bytes]).is_ok(),
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
        std::thread::sleep(Duration::from_micros(500));
    }
    peers
}

/// Sends SYNs, each of another address and port; a burst, and so long nothing.
fn spoof(bed: &Bed, syns: u32, pause: Duration, sent: &AtomicUsize) {
    let sender = Sender::new(bed);
    for number in 0..syns {
        let from =
            SocketAddr::from(((0x0a50_0000 + number * 7).to_be_bytes(), 1024 + (number % 60_000) as u16));
        sender.send(&Segment::syn(from, at(ANYWHERE)));
        sent.fetch_add(1, Ordering::Relaxed);
        if number % 100 == 99 && !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

/// A client that says something and hears it; its address, and how long it took to connect.
fn talk(bed: &Bed) -> (SocketAddr, Duration) {
    let begun = Instant::now();
    let mut client = bed.connect(at(ANYWHERE));
    let took = begun.elapsed();
    client.write_all(b"are you there?").unwrap();
    client.read_exact(&mut [0; 14]).unwrap();
    // The second retransmission would come after three seconds.
    let retransmitted = socket::tcp_info(&client).unwrap().total_retrans_segments;
    assert!(retransmitted <= 1, "{retransmitted} segments sent again, connected after {took:?}");
    (client.local_addr().unwrap(), took)
}

/// All living clients connect beside a flood, and their server hardly sees any of it.
pub fn harms_nobody(tag: &str, plan: RelayPlan, syns: u32, pause: Duration) -> Duration {
    let bed = Bed::new(tag);
    bed.relay.ip(&["route", "add", ELSEWHERE, "via", super::CLIENT_V4]).unwrap();
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(plan);
    drop((bed.connect(at(ANYWHERE)), accept(&listener)));
    let (sent, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (living, slowest, peers) = std::thread::scope(|scope| {
        let server = scope.spawn(|| echo(&listener, &done));
        let flood = scope.spawn(|| spoof(&bed, syns, pause, &sent));
        while sent.load(Ordering::Relaxed) < syns as usize / 4 {
            std::thread::yield_now();
        }
        let few = || (0..LIVING / THREADS).map(|_| talk(&bed)).collect::<Vec<_>>();
        let clients: Vec<_> = (0..THREADS).map(|_| scope.spawn(few)).collect();
        let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        flood.join().unwrap();
        done.store(true, Ordering::Relaxed);
        let clients: Vec<_> = clients.into_iter().flat_map(Result::unwrap).collect();
        let slowest = clients.iter().map(|(_, took)| *took).max().unwrap();
        let living: HashSet<_> = clients.into_iter().map(|(own, _)| own).collect();
        (living, slowest, server.join().unwrap())
    });
    assert_eq!(living.len(), LIVING);
    assert!(living.is_subset(&peers), "by their own addresses");
    let nobodies = peers.difference(&living).count();
    assert!(nobodies <= NOBODIES, "{nobodies} connections of nobody at the server");
    println!(
        "{tag}: {syns} SYNs, the slowest of {LIVING} clients connected after {slowest:?}, {nobodies} of nobody"
    );
    relay.stop();
    slowest
}
