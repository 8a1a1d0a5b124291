//! Connection truth: with `accept = "after-server"` a client sees what the server and the path say, not the relay.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bed;

use bed::{Bed, CLIENT_V4, Running, SERVER_V4, SERVER_V6, accept, at, carry, exchange, nft, set_forwarding};
use longfat_relay::RelayPlan;
use std::{
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

fn start(tag: &str) -> (Bed, Running) {
    let bed = Bed::new(tag);
    let relay = bed.start(Bed::after_server());
    (bed, relay)
}

fn servers() -> [SocketAddr; 2] {
    [SERVER_V4, SERVER_V6].map(|address| SocketAddr::new(address.parse().unwrap(), 9000))
}

fn refused_with(bed: &Bed, address: SocketAddr) -> ErrorKind {
    bed.try_connect(address).expect_err("nothing listens there").kind()
}

#[test]
fn a_served_client_is_accepted_and_relayed_with_its_own_address() {
    let (bed, relay) = start("hserve");
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        assert_eq!(far.peer_addr().unwrap(), client.local_addr().unwrap());
        exchange(&client, &far, 4 << 20);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "the server was dialled twice"
        );
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished), (2, 2), "relayed, not forwarded");
}

#[test]
fn a_refused_client_is_refused() {
    let (bed, relay) = start("hrefuse");
    for address in servers() {
        assert_eq!(refused_with(&bed, address), ErrorKind::ConnectionRefused, "{address}");
    }
    let stats = relay.stop();
    assert_eq!(stats.connections, stats.unreachable);
    // A machine that stands still for a second makes clients repeat their SYN, which is dialled again.
    assert!((2..=4).contains(&stats.unreachable), "{stats:?}");
}

#[test]
fn a_client_whose_server_is_unreachable_is_told_so_by_icmp() {
    let (bed, _relay) = start("hicmp");
    set_forwarding(&bed.server, "1");
    for (family, network, gateway) in [("-4", "10.71.9.0/24", SERVER_V4), ("-6", "fd71:9::/64", SERVER_V6)] {
        bed.relay.ip(&[family, "route", "add", network, "via", gateway]).unwrap();
        bed.server.ip(&[family, "route", "add", "unreachable", network]).unwrap();
    }
    let begun = Instant::now();
    for address in ["10.71.9.1:80", "[fd71:9::1]:80"] {
        let kind = refused_with(&bed, at(address));
        assert!(
            matches!(kind, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable),
            "{address}: {kind}"
        );
    }
    // No route at the relay itself.
    bed.relay.ip(&["route", "add", "unreachable", "10.72.0.0/16"]).unwrap();
    assert_eq!(refused_with(&bed, at("10.72.0.1:80")), ErrorKind::HostUnreachable);
    assert!(begun.elapsed() < Duration::from_secs(15), "by word, not by time: {:?}", begun.elapsed());
}

#[test]
fn a_client_whose_server_is_silent_hears_nothing() {
    let (bed, relay) = start("hsilent");
    nft(
        &bed.server,
        "table inet quiet { chain in { type filter hook input priority 0; tcp dport 9000 drop; }; }",
    );
    for address in servers() {
        let dial = || TcpStream::connect_timeout(&address, Duration::from_millis(1500));
        assert_eq!(bed.client.run(dial).unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    }
    assert_eq!(relay.stop().finished, 0);
}

#[test]
fn a_retransmitted_syn_dials_once() {
    let (bed, relay) = start("hretx");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    // The relay's SYN-ACKs to the client are lost for a while: the client retransmits its SYN.
    nft(
        &bed.client,
        "table inet deaf { chain in { type filter hook input priority 0; tcp sport 9000 drop; }; }",
    );
    let (client, far) = std::thread::scope(|scope| {
        let client = scope.spawn(|| bed.connect(address));
        let far = accept(&listener);
        std::thread::sleep(Duration::from_millis(2200));
        nft(&bed.client, "delete table inet deaf");
        (client.join().unwrap(), far)
    });
    assert_eq!(far.peer_addr().unwrap(), client.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "dialled twice");
    drop(client);
    assert_eq!((&far).read(&mut [0; 8]).unwrap(), 0);
    drop(far);
    assert_eq!(relay.stop().connections, 1);
}

#[test]
fn while_it_drains_clients_pass_unrelayed() {
    let bed = Bed::new("hdrain");
    let relay = bed.start(RelayPlan { drain: Duration::from_secs(10), ..Bed::after_server() });
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (first, first_far) = bed.pair(&listener, address);
    relay.ask_to_stop();
    std::thread::sleep(Duration::from_millis(300));
    let (second, second_far) = bed.pair(&listener, address);
    carry(&second, &second_far, 1000);
    drop((first, first_far));
    assert_eq!(relay.stop().connections, 1);
    assert_eq!(second.local_addr().unwrap().ip().to_string(), CLIENT_V4);
}
