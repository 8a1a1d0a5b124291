//! What strangers may try, and what they get.

use crate::bed::{
    self, ANYWHERE, Bed, CLIENT_V4, CLIENT_V6, Running, accept, at, carry, ends_with_reset, flood,
    packet::{Segment, Sender},
    path::eventually,
};
use longfat_relay::{Ended, Fail, RelayPlan, spec::RelaySpec};
use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

/// Listens on the relay's host.
fn listen_beside_the_relay(bed: &Bed, address: &str) -> TcpListener {
    let listener = bed.relay.run(|| TcpListener::bind(address)).unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

#[test]
fn what_the_relays_kernel_reads_as_its_own_or_as_many_hosts_is_not_taken() {
    let bed = Bed::new("own");
    let plan = RelayPlan { workers: 1, ..Bed::after_server() };
    let relay = bed.start(plan);
    let own =
        ["[::1]:9000", "127.0.0.1:9000", "[::]:9001"].map(|address| listen_beside_the_relay(&bed, address));
    let sender = Sender::new(&bed);
    let destinations = [
        "[::]:9000",
        "[::]:9001",
        "[::1]:9000",
        "[::ffff:127.0.0.1]:9000",
        "[::ffff:10.71.1.1]:9001",
        "[::127.0.0.1]:9000",
        "[ff02::1]:9000",
        "[ff0e::1]:9001",
        "[fe80::1234]:9000",
        "[fd71:1::]:9001",
        "[fd71:2::]:9001",
        "0.0.0.0:9000",
        "127.0.0.1:9000",
        "169.254.7.7:9000",
        "224.0.0.1:9001",
        "255.255.255.255:9001",
        "10.71.1.255:9001",
        "10.71.2.255:9001",
    ];
    for (port, to) in (2000..).zip(destinations) {
        let to = at(to);
        let from = SocketAddr::new(if to.is_ipv4() { CLIENT_V4 } else { CLIENT_V6 }.parse().unwrap(), port);
        sender.send(&Segment::syn(from, to));
    }
    // By then the one worker has seen those before it.
    let listener = bed.listen(ANYWHERE);
    let (client, far) = bed.pair(&listener, at(ANYWHERE));
    carry(&client, &far, 1000);
    drop((client, far));
    let reached: Vec<_> = own.iter().filter_map(|own| own.accept().ok()).collect();
    assert!(reached.is_empty(), "{reached:?}");
    assert!(own.iter().all(|own| own.accept().unwrap_err().kind() == ErrorKind::WouldBlock));
    let closed = relay.notes.closed.lock().unwrap().clone();
    assert!(closed.iter().all(|end| end.server == at(ANYWHERE)), "{closed:?}");
    assert_eq!(relay.stop().connections, 1, "nothing else is dialled");
}

#[test]
fn a_listener_that_leads_back_to_itself_is_refused_by_its_file() {
    for listeners in [
        "[[listen]]\naddress = '0.0.0.0:7100'\nto = 'localhost:7100'\n",
        "[[listen]]\naddress = '[::]:7100'\nto = '127.0.0.7:7100'\n",
        "[[listen]]\naddress = '0.0.0.0:7100'\nto = '127.0.0.1:7101'\n\
         [[listen]]\naddress = '127.0.0.1:7101'\nto = '127.0.0.1:7100'\n",
    ] {
        let problem = RelaySpec::parse(listeners).unwrap().resolve().unwrap_err().to_string();
        assert!(problem.contains("would connect to itself"), "{listeners}: {problem}");
    }
}

#[test]
fn a_listener_that_comes_to_lead_back_to_itself_resets_its_clients() {
    let bed = Bed::new("circle");
    let (listen, to) = (at("0.0.0.0:7100"), at("10.71.9.9:7100"));
    let mut plan = RelayPlan::explicit("test", listen, vec![to]);
    plan.limits.connections = Some(50);
    let relay = bed.start(plan);
    bed.relay.ip(&["addr", "add", "10.71.9.9/32", "dev", "lo"]).unwrap();
    let client = bed.try_connect(at("10.71.1.1:7100"));
    assert!(client.map_or(true, |client| ends_with_reset(&client)));
    let closed = || relay.notes.closed.lock().unwrap().clone();
    eventually("the client is told of", || !closed().is_empty());
    assert_eq!(closed().iter().map(|end| end.ended).collect::<Vec<_>>(), [Ended::Refused]);
    assert_eq!(relay.stop().connections, 1, "nobody but the client has come");
}

/// Ten thousand SYNs in a second or two.
fn flooded(tag: &str, fail: Fail, plan: RelayPlan) {
    flood::harms_nobody(tag, RelayPlan { fail, ..plan }, 10_000, Duration::from_millis(10));
}

#[test]
fn a_flood_of_spoofed_syns_keeps_no_client_from_an_early_relay() {
    flooded("flde", Fail::Open, Bed::transparent());
    flooded("fldec", Fail::Closed, Bed::transparent());
}

#[test]
fn a_flood_of_spoofed_syns_keeps_no_client_from_a_relay_that_answers_after_the_server_and_does_not_reach_it()
{
    flooded("flda", Fail::Open, Bed::after_server());
}

#[test]
fn nor_where_nothing_passes() {
    flooded("fldac", Fail::Closed, Bed::after_server());
}

/// A client of another network than the bed's, on the same host.
const OTHER_CLIENT: &str = "10.73.0.2";
const PLACES: usize = 48;
/// What a client may have that is alone.
const ALONE: usize = PLACES * 3 / 4;
/// More than there are places.
const GREEDY: usize = 60;

fn bed_with_two_clients(tag: &str) -> Bed {
    let bed = Bed::new(tag);
    bed.client.ip(&["addr", "add", &format!("{OTHER_CLIENT}/32"), "dev", "lo"]).unwrap();
    bed.relay.ip(&["route", "add", OTHER_CLIENT, "via", CLIENT_V4]).unwrap();
    bed
}

fn limited(plan: RelayPlan) -> RelayPlan {
    let mut plan = plan;
    plan.limits.connections = Some(PLACES);
    plan
}

fn connect_as_the_other(bed: &Bed, to: SocketAddr) -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let dial = || {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(fd.as_raw_fd(), &SockaddrStorage::from(at(&format!("{OTHER_CLIENT}:0")))).unwrap();
        connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
        TcpStream::from(fd)
    };
    bed.client.run(dial).unwrap()
}

/// Relayed connections of a client that have ended.
fn ended_of(relay: &Running, client: &str, ended: Ended) -> usize {
    let closed = relay.notes.closed.lock().unwrap();
    let is_its =
        |end: &&longfat_relay::ConnectionSummary| end.client.ip().to_string() == client && end.ended == ended;
    closed.iter().filter(is_its).count()
}

/// What a client opens of a listener, one after the other, until what is beyond its share is reset.
fn opens_of_a_listener(bed: &Bed, relay: &Running, listener: &TcpListener, share: usize) {
    let greedy: Vec<_> = (0..GREEDY).filter_map(|_| bed.try_connect(relay.address()).ok()).collect();
    eventually("what is beyond its share is told of", || {
        ended_of(relay, CLIENT_V4, Ended::Refused) == GREEDY - share
    });
    let kept: Vec<_> = (0..share).map(|_| accept(listener)).collect();
    let other = connect_as_the_other(bed, relay.address());
    carry(&other, &accept(listener), 1 << 16);
    drop((greedy, kept));
}

#[test]
fn one_client_that_is_alone_at_a_listener_has_three_quarters_of_the_places_and_the_rest_is_reset() {
    let bed = bed_with_two_clients("greedy");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(limited(Bed::explicit(at(ANYWHERE))));
    opens_of_a_listener(&bed, &relay, &listener, ALONE);
}

#[test]
fn one_client_beside_another_has_half_of_a_listeners_places() {
    let bed = bed_with_two_clients("greedyh");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(limited(Bed::explicit(at(ANYWHERE))));
    let first = connect_as_the_other(&bed, relay.address());
    let far = accept(&listener);
    carry(&first, &far, 1 << 16);
    opens_of_a_listener(&bed, &relay, &listener, PLACES / 2);
}

/// What one client opens beyond its share passes unrelayed, and the next client is relayed.
fn greed_passes(tag: &str, plan: RelayPlan) {
    let bed = bed_with_two_clients(tag);
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(limited(plan));
    // Slower than the relay's rules hear of it.
    let share: Vec<_> = (0..ALONE).map(|_| bed.pair(&listener, at(ANYWHERE))).collect();
    std::thread::sleep(Duration::from_millis(600));
    let more: Vec<_> = (ALONE..GREEDY).map(|_| bed.pair(&listener, at(ANYWHERE))).collect();
    more.iter().for_each(|(client, far)| carry(client, far, 1000));
    let other = connect_as_the_other(&bed, at(ANYWHERE));
    let far = accept(&listener);
    carry(&other, &far, 1 << 16);
    drop((other, far));
    eventually("the other one is relayed", || ended_of(&relay, OTHER_CLIENT, Ended::Finished) == 1);
    drop(share);
    assert_eq!(relay.stop().connections, ALONE as u64 + 1);
}

#[test]
fn what_one_client_opens_beyond_its_share_passes_an_early_relay() {
    greed_passes("greede", Bed::transparent());
}

#[test]
fn what_one_client_opens_beyond_its_share_passes_a_relay_that_answers_after_the_server() {
    greed_passes("greeda", Bed::after_server());
}

#[test]
fn a_dial_that_nobody_answers_keeps_its_place_for_twenty_seconds_and_silence_is_not_for_ever() {
    assert_eq!(Bed::transparent().defaults.idle, Some(Duration::from_secs(7440)));
    let bed = Bed::new("unheard");
    bed::nft(
        &bed.server,
        "table inet quiet { chain in { type filter hook input priority 0; tcp dport 9000 drop; }; }",
    );
    let relay = bed.start(limited(Bed::explicit(at(ANYWHERE))));
    let client = bed.connect(relay.address());
    assert!(ends_with_reset(&client), "no later than the patience of a test");
    assert_eq!(relay.stop().unreachable, 1);
}
