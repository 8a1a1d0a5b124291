//! Every ACK of live connections, traced from outside.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use longfat_kernel::tcb::{
    Query, Scope,
    trace::{Event, EventKind, Identity, Tracer, decode},
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

const BUFFER_BYTES: u32 = 1 << 22;

fn exchange(client: &mut TcpStream, accepted: &mut TcpStream) {
    let block = [7; 20_000];
    let mut received = vec![0; block.len()];
    for _ in 0..50 {
        client.write_all(&block).unwrap();
        accepted.read_exact(&mut received).unwrap();
    }
}

fn look(filter: &str) -> Query {
    Query { scope: Scope::Own, filter: filter.parse().unwrap(), ..Query::default() }
}

/// Everything so far; to be asked once.
fn events(tracer: &mut Tracer) -> Vec<(Event, Option<Identity>)> {
    let mut found = Vec::new();
    tracer.poll(|bytes| found.extend(decode(bytes))).unwrap();
    let meant = tracer.take_meant();
    found.retain(|(event, _)| meant.contains(&event.cookie));
    found
}

fn of(found: &[(Event, Option<Identity>)], kind: EventKind) -> Vec<Event> {
    found.iter().map(|(event, _)| *event).filter(|event| event.kind() == Some(kind)).collect()
}

#[test]
fn a_standing_connection_is_traced_at_every_ack_and_its_change_of_congestion_control_is_seen() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    longfat_host::socket::set_cc(&client, "reno").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let local = client.local_addr().unwrap();
    let mut tracer = Tracer::start(look(&format!("src {local}")), BUFFER_BYTES).unwrap();
    exchange(&mut client, &mut accepted);
    longfat_host::socket::set_cc(&client, "cubic").unwrap();
    exchange(&mut client, &mut accepted);
    let found = events(&mut tracer);
    assert_eq!(tracer.lost(), 0);
    let begin = found.iter().find(|(event, _)| event.kind() == Some(EventKind::Begin)).unwrap();
    let identity = begin.1.as_ref().unwrap();
    assert_eq!((identity.local, identity.remote), (local, client.peer_addr().unwrap()));
    assert_eq!(identity.cc.as_str(), "reno");
    let cc = found.iter().find(|(event, _)| event.kind() == Some(EventKind::Cc)).unwrap();
    assert_eq!(cc.1.as_ref().unwrap().cc.as_str(), "cubic");
    let acks = of(&found, EventKind::Ack);
    assert!(acks.len() >= 10, "{} ACKs", acks.len());
    assert!(acks.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
    assert!(acks.iter().all(|ack| ack.cwnd_segments > 0 && ack.srtt_us > 0 && ack.unacked_segments > 0));
    let sent = acks.last().unwrap().snd_nxt.wrapping_sub(acks[0].snd_una);
    assert!(sent > 1_500_000, "{sent} bytes between the first and the last");
}

#[test]
fn a_connection_that_begins_later_is_traced_from_its_beginning_to_its_end_when_the_filter_means_it() {
    let (wanted, other) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = wanted.local_addr().unwrap().port();
    let mut tracer = Tracer::start(look(&format!("dport {port}")), BUFFER_BYTES).unwrap();
    for listener in [&wanted, &other] {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        exchange(&mut client, &mut accepted);
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let found = events(&mut tracer);
    let identities: Vec<_> = found.iter().filter_map(|(_, identity)| identity.as_ref()).collect();
    assert!(
        !identities.is_empty() && identities.iter().all(|one| one.remote.port() == port),
        "{identities:?}"
    );
    let states: Vec<_> = of(&found, EventKind::State).iter().map(|event| event.tcp_state).collect();
    assert_eq!(states.last(), Some(&7), "the last is close: {states:?}");
    let cookies: std::collections::BTreeSet<_> = found.iter().map(|(event, _)| event.cookie).collect();
    assert_eq!(cookies.len(), 1, "the accepted end and the other connection are not meant");
}

#[test]
fn what_finds_no_room_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let local = client.local_addr().unwrap();
    let mut tracer = Tracer::start(look(&format!("src {local}")), 4096).unwrap();
    for _ in 0..10 {
        exchange(&mut client, &mut accepted);
    }
    assert!(tracer.lost() > 0);
    assert!(!events(&mut tracer).is_empty());
}
