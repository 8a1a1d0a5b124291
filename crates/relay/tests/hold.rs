//! Connection truth: with `accept = "after-server"` a client sees what the server and the path say, not the relay.

use crate::bed::{
    self, Bed, CLIENT_V4, CLIENT_V6, Running, SERVER_V4, SERVER_V6, accept, at, carry, ends_with_reset,
    exchange, mute, nft, packet, path::eventually, servers, set_forwarding, something_is_counted,
};
use longfat_host::{Namespace, facts::counters, run_command, sysctl};
use longfat_relay::{Ended, RelayPlan};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

fn start(tag: &str) -> (Bed, Running) {
    let bed = Bed::new(tag);
    let relay = bed.start(Bed::after_server());
    (bed, relay)
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
fn ipv6_clients_on_a_long_path_send_their_syn_once_from_the_first_connection_on() {
    const CLIENTS: usize = 50;
    let server = servers()[1];
    Bed::over_any_link("hsix", "rate = '1Gbit'\ndelay = '20ms'\ncoalesce = '100us'", |bed| {
        for host in [&bed.client, &bed.relay, &bed.server] {
            let tentative = host.ip(&["-6", "addr", "show", "tentative"]).unwrap();
            assert!(tentative.trim().is_empty(), "{tentative}");
        }
        let relay = bed.start(Bed::after_server());
        let listener = bed.listen(&server.to_string());
        (0..CLIENTS).for_each(|_| drop(bed.pair(&listener, server)));
        let repeated = bed.client.run(counters).unwrap()["TcpExtTCPSynRetrans"];
        // A machine that stands still for a second makes a client repeat its SYN.
        assert!(repeated <= 2, "{repeated} of {CLIENTS}");
        relay.stop();
    });
}

#[test]
fn a_refused_client_is_refused() {
    let (bed, relay) = start("hrefuse");
    for address in servers() {
        assert_eq!(refused_with(&bed, address), ErrorKind::ConnectionRefused, "{address}");
    }
    let told: Vec<_> = relay.notes.closed.lock().unwrap().iter().map(|end| (end.server, end.ended)).collect();
    for address in servers() {
        assert!(told.contains(&(address, Ended::Unreachable)), "{told:?}");
    }
    let stats = relay.stop();
    assert_eq!(stats.connections, stats.unreachable);
    // A machine that stands still for a second makes clients repeat their SYN, which is dialled again.
    assert!((2..=4).contains(&stats.unreachable), "{stats:?}");
}

#[test]
fn a_client_whose_server_answers_and_resets_at_once_is_reset() {
    const TIMES: u64 = 20;
    let (bed, relay) = start("hreset");
    // The server's kernel resets the handshake's last packet, before anybody at the relay has seen the answer to the
    // first.
    nft(
        &bed.server,
        "table inet cross { chain in { type filter hook input priority 0; \
         tcp dport 9000 tcp flags & (syn | ack) == ack reject with tcp reset; }; }",
    );
    for address in servers() {
        let _listener = bed.listen(&address.to_string());
        for _ in 0..TIMES {
            match bed.try_connect(address) {
                Ok(client) => assert!(ends_with_reset(&client), "{address}: an end that is none"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{address}"),
            }
        }
    }
    let stats = relay.stop();
    assert_eq!((stats.reset, stats.finished), (2 * TIMES, 0), "{stats:?}");
}

#[test]
fn a_client_whose_reset_ends_his_handshake_before_he_is_accepted_is_reset_at_the_server() {
    let (bed, relay) = start("hgone");
    // His kernel knows nothing of the SYN and answers the SYN-ACK with a reset.
    let sender = packet::Sender::new(&bed);
    let begun = Instant::now();
    for (own, address) in [CLIENT_V4, CLIENT_V6].into_iter().zip(servers()) {
        let listener = bed.listen(&address.to_string());
        sender.send(&packet::Segment::syn(SocketAddr::new(own.parse().unwrap(), 2000), address));
        assert!(ends_with_reset(&accept(&listener)), "{address}");
    }
    // Both wait for two seconds; it was ten for each, as for a client who may still come.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(relay.stop().connections, 2);
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
    mute(&bed.server, "quiet", "input", "tcp dport 9000");
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
    mute(&bed.client, "deaf", "input", "tcp sport 9000");
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
    relay.drain();
    let (second, second_far) = bed.pair(&listener, address);
    carry(&second, &second_far, 1000);
    drop((first, first_far));
    assert_eq!(relay.stop().connections, 1);
    assert_eq!(second.local_addr().unwrap().ip().to_string(), CLIENT_V4);
}

/// What a client opens while `meanwhile` happens, and the server's end of it: relay's legs that are reset come before.
fn late_pair(
    bed: &Bed,
    listener: &TcpListener,
    address: SocketAddr,
    meanwhile: impl FnOnce(),
) -> (TcpStream, TcpStream) {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut client = bed.connect(address);
            client.write_all(b"x").unwrap();
            client
        });
        meanwhile();
        let far = loop {
            let mut far = accept(listener);
            if far.read_exact(&mut [0]).is_ok() {
                break far;
            }
        };
        (client.join().unwrap(), far)
    })
}

/// The listening TCP sockets of a host, as `ss` shows them.
fn listening(host: &Namespace) -> String {
    let mut command = host.command("ss");
    command.arg("-Hltn");
    run_command(command).unwrap()
}

/// A relay that drains for longer than anybody waits, for one connection that goes on; what becomes of a client's
/// handshake of which a host drops every packet from port 9000 at `hook` until the relay's listeners are closed.
fn a_handshake_outlives_the_listeners(tag: &str, host: fn(&Bed) -> &Namespace, hook: &str) {
    let bed = Bed::new(tag);
    let relay = bed.start(RelayPlan { drain: 2 * bed::PATIENCE, ..Bed::after_server() });
    let (address, other) = (servers()[0], at("10.71.2.2:9001"));
    let (listener, others) = (bed.listen(&address.to_string()), bed.listen(&other.to_string()));
    let first = bed.pair(&others, other);
    mute(host(&bed), "silence", hook, "tcp sport 9000");
    let (second, second_far) = late_pair(&bed, &listener, address, || {
        something_is_counted(host(&bed), "silence");
        relay.ask_to_stop();
        eventually("the listeners are closed", || listening(&bed.relay).is_empty());
        nft(host(&bed), "delete table inet silence");
    });
    carry(&second_far, &second, 1000);
    assert_eq!(second_far.peer_addr().unwrap(), second.local_addr().unwrap());
    drop(first);
    assert_eq!(relay.stop().connections, 1, "the second one passes");
}

#[test]
fn a_server_that_answers_when_nobody_accepts_any_more_gets_the_clients_own_handshake() {
    a_handshake_outlives_the_listeners("hslow", |bed| &bed.server, "output");
}

#[test]
fn a_client_that_has_not_come_when_nobody_accepts_any_more_gets_a_handshake_of_its_own() {
    a_handshake_outlives_the_listeners("hdeaf", |bed| &bed.client, "input");
}

#[test]
fn a_refused_client_takes_no_place_any_more() {
    let bed = Bed::new("hplace");
    let mut plan = RelayPlan { workers: 1, ..Bed::after_server() };
    plan.limits.connections = Some(1);
    let relay = bed.start(plan);
    let address = servers()[0];
    assert_eq!(refused_with(&bed, address), ErrorKind::ConnectionRefused);
    let listener = bed.listen(&address.to_string());
    let (client, far) = bed.pair(&listener, address);
    carry(&client, &far, 1000);
    drop((client, far));
    let stats = relay.stop();
    assert_eq!((stats.unreachable, stats.connections), (1, 2), "the second client is relayed, too");
}

#[test]
fn handshakes_by_cookies_may_be_accepted_by_a_worker_that_has_not_held_them() {
    let bed = Bed::new("hcook");
    let always = || sysctl::write("net.ipv4.tcp_syncookies", "2");
    bed.relay.run(always).unwrap().unwrap();
    let relay = bed.start(RelayPlan { workers: 2, ..Bed::after_server() });
    let listener = bed.listen("0.0.0.0:9000");
    // Every address has its worker that holds and, chosen otherwise, its worker that accepts.
    let addresses: Vec<_> = (10..20).map(|host| format!("10.71.2.{host}")).collect();
    for address in &addresses {
        bed.server.ip(&["addr", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
        // More than one worker may have more of than another.
        let server = SocketAddr::new(address.parse().unwrap(), 9000);
        let pairs: Vec<_> = (0..12).map(|_| bed.pair(&listener, server)).collect();
        for (client, far) in &pairs {
            exchange(client, far, 1000);
        }
    }
    let stats = relay.stop();
    let count = 12 * addresses.len() as u64;
    assert_eq!((stats.connections, stats.finished), (count, count));
}

fn delete_interface(bed: &Bed) {
    let links = bed.relay.ip(&["-o", "link", "show"]).unwrap();
    let name = links.split([' ', ':', '@']).find(|word| word.starts_with("lfh")).unwrap();
    bed.relay.ip(&["link", "del", name]).unwrap();
}

/// What becomes of a client's handshake while the way back for its SYN is taken from the relay, whose server answers
/// after that.
fn a_handshake_loses_its_way_back(tag: &str, take: impl FnOnce(&Bed, &Running)) {
    let bed = Bed::new(tag);
    let relay = bed.start(RelayPlan { workers: 1, ..Bed::after_server() });
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    mute(&bed.server, "silence", "output", "tcp sport 9000");
    // A second SYN, after a second as the relay's own, might be taken anew before the relay's leg is gone.
    mute(&bed.client, "once", "output", "tcp flags == syn limit rate over 1/day burst 1 packets");
    let (client, far) = late_pair(&bed, &listener, address, || {
        something_is_counted(&bed.server, "silence");
        take(&bed, &relay);
        nft(&bed.server, "delete table inet silence");
    });
    carry(&far, &client, 1000);
    assert_eq!(far.peer_addr().unwrap(), client.local_addr().unwrap());
}

#[test]
fn a_server_that_answers_when_the_interface_is_gone_gets_the_clients_own_handshake() {
    a_handshake_loses_its_way_back("hlost", |bed, _| delete_interface(bed));
}

#[test]
fn a_server_that_answers_when_its_rule_holds_no_more_gets_the_clients_own_handshake() {
    a_handshake_loses_its_way_back("hearly", |_, relay| {
        relay.reload(RelayPlan { workers: 1, ..Bed::transparent() })
    });
}

#[test]
fn when_an_interface_for_held_handshakes_is_deleted_it_is_said_once_and_clients_pass() {
    let bed = Bed::new("hdeleted");
    let relay = bed.start(RelayPlan { workers: 1, ..Bed::after_server() });
    delete_interface(&bed);
    let warnings = || relay.notes.warnings.lock().unwrap().clone();
    eventually("the relay sees it", || !warnings().is_empty());
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (client, far) = bed.pair(&listener, address);
    carry(&client, &far, 1000);
    assert!(warnings().len() == 1 && warnings()[0].contains("is gone"), "{:?}", warnings());
    drop((client, far));
    assert_eq!(relay.stop().connections, 0);
}
