//! Servers whose answers reach their clients by another way than through the relay's host.

use crate::bed::{
    self, Bed, CLIENT_V4, PATIENCE, SERVER_V4, SERVER_V6, accept, at, carry, mute, nft,
    packet::{Segment, Sender},
    path::eventually,
    servers,
};
use longfat_host::{interface, sysctl};
use longfat_relay::{Fail, RelayPlan};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

/// The client's packets go through the relay, the server's directly to the client.
fn triangle(tag: &str) -> Bed {
    const HARDWARE: &str = "02:00:00:00:00:01";
    let bed = Bed::new(tag);
    let end = |namespace| interface::End { namespace, name: "direct" };
    interface::veth(end(&bed.client), end(&bed.server), 1500).unwrap();
    let filter = || {
        sysctl::write("net.ipv4.conf.all.rp_filter", "0")
            .and(sysctl::write("net.ipv4.conf.direct.rp_filter", "0"))
    };
    bed.client.run(filter).unwrap().unwrap();
    bed.client.ip(&["link", "set", "direct", "address", HARDWARE]).unwrap();
    for (family, client, server) in [("-4", "10.71.1.2", SERVER_V4), ("-6", "fd71:1::2", SERVER_V6)] {
        bed.server.ip(&[family, "neigh", "add", client, "lladdr", HARDWARE, "dev", "direct"]).unwrap();
        bed.server.ip(&[family, "route", "add", client, "dev", "direct", "src", server]).unwrap();
    }
    bed
}

/// A server that gives back what it gets.
fn echo(listener: TcpListener) {
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let (mut from, mut to) = (&stream, &stream);
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
}

fn connect(bed: &Bed, server: SocketAddr) -> TcpStream {
    let stream = bed.client.run(|| TcpStream::connect_timeout(&server, PATIENCE)).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(b"hello")?;
    stream.read_exact(&mut [0; 5])
}

#[test]
fn with_plain_forwarding_and_after_server_the_first_connection_stands() {
    for (way, plan) in [("plain", None), ("after", Some(Bed::after_server()))] {
        let bed = triangle(&format!("ow{way}"));
        let relay = plan.map(|plan| bed.start(plan));
        for server in servers() {
            echo(bed.listen(&server.to_string()));
            for _ in 0..2 {
                ask(&connect(&bed, server)).unwrap_or_else(|error| panic!("{way}, {server}: {error}"));
            }
        }
        let Some(relay) = relay else { continue };
        let warnings = relay.notes.warnings.lock().unwrap().clone();
        assert!(warnings.len() == 1 && warnings[0].contains("asymmetric routing"), "{warnings:?}");
        assert_eq!(relay.stop().connections, 0);
    }
}

#[test]
fn with_early_acceptance_the_first_connection_is_reset_with_the_cause_and_later_ones_stand() {
    let bed = triangle("owearly");
    let relay = bed.start(Bed::transparent());
    for server in servers() {
        echo(bed.listen(&server.to_string()));
        let error = ask(&connect(&bed, server)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{server}: {error}");
        eventually("later ones pass", || {
            let stream = connect(&bed, server);
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            ask(&stream).is_ok()
        });
    }
    let warnings = relay.notes.warnings.lock().unwrap().clone();
    assert!(warnings.len() == 1 && warnings[0].contains("asymmetric routing"), "{warnings:?}");
}

/// The client's first packet of a connection goes through the relay, all others directly to the server.
fn hidden_client(tag: &str) -> Bed {
    const HARDWARE: &str = "02:00:00:00:00:02";
    let bed = triangle(tag);
    bed.server.ip(&["link", "set", "direct", "address", HARDWARE]).unwrap();
    let filter = || sysctl::write("net.ipv4.conf.all.rp_filter", "0");
    bed.server.run(filter).unwrap().unwrap();
    nft(
        &bed.client,
        "table inet ways { chain out { type route hook output priority mangle; tcp flags & (syn | ack) != syn mark set 1; }; }",
    );
    for (family, server) in [("-4", SERVER_V4), ("-6", SERVER_V6)] {
        bed.client.ip(&[family, "neigh", "add", server, "lladdr", HARDWARE, "dev", "direct"]).unwrap();
        bed.client.ip(&[family, "rule", "add", "fwmark", "1", "lookup", "100"]).unwrap();
        bed.client.ip(&[family, "route", "add", server, "dev", "direct", "table", "100"]).unwrap();
    }
    // The server's answers come by the relay, as its own do.
    for (family, client) in [("-4", CLIENT_V4), ("-6", "fd71:1::2")] {
        bed.server.ip(&[family, "route", "del", client, "dev", "direct"]).unwrap();
    }
    bed
}

/// Whether a connection is of any use.
fn works(bed: &Bed, server: SocketAddr) -> bool {
    const SOON: Duration = Duration::from_secs(1);
    let connected = bed.client.run(|| TcpStream::connect_timeout(&server, SOON)).unwrap();
    connected.is_ok_and(|stream| {
        stream.set_read_timeout(Some(SOON)).unwrap();
        ask(&stream).is_ok()
    })
}

#[test]
fn plain_forwarding_carries_a_client_whose_packets_take_another_way() {
    let bed = hidden_client("ohplain");
    for server in servers() {
        echo(bed.listen(&server.to_string()));
        assert!(works(&bed, server), "{server}");
    }
}

fn is_noticed_and_passes(tag: &str, plan: RelayPlan) {
    let bed = hidden_client(tag);
    let relay = bed.start(plan);
    std::thread::scope(|scope| {
        for server in servers() {
            let bed = &bed;
            scope.spawn(move || {
                echo(bed.listen(&server.to_string()));
                assert!(!works(bed, server), "{server}: the first connection");
                eventually(&format!("{server}: later ones pass"), || works(bed, server));
            });
        }
    });
    let warnings = relay.notes.warnings.lock().unwrap().clone();
    let causes: Vec<_> = warnings.iter().filter(|said| said.contains("asymmetric routing")).collect();
    assert!(causes.len() == 1 && causes[0].starts_with("nothing of "), "{warnings:?}");
    assert_eq!(relay.stop().finished, 0);
}

#[test]
fn with_early_acceptance_a_client_whose_packets_take_another_way_is_noticed_and_its_later_connections_pass() {
    is_noticed_and_passes("ohearly", Bed::transparent());
}

#[test]
fn after_server_a_client_whose_packets_take_another_way_is_noticed_and_its_later_connections_pass() {
    is_noticed_and_passes("ohafter", Bed::after_server());
}

/// The client's firewall drops what it did not ask for: it does not say that the SYN was not its own.
#[test]
fn while_a_client_has_a_connection_a_strangers_syn_in_its_name_lets_nothing_of_it_pass() {
    let bed = Bed::new("ohname");
    mute(&bed.client, "mute", "input", "tcp dport 2000");
    let relay = bed.start(Bed::transparent());
    let listener = bed.listen(bed::ANYWHERE);
    let own = bed.pair(&listener, at(bed::ANYWHERE));
    Sender::new(&bed).send(&Segment::syn(at(&format!("{CLIENT_V4}:2000")), at(bed::ANYWHERE)));
    let passes = || nft(&bed.relay, "list set inet longfat_test silent_ip").contains("expires");
    // Its answer has been sent again three times, and somebody has looked.
    std::thread::sleep(Duration::from_secs(12));
    assert!(!passes());
    drop(own);
    eventually("nothing is heard of it any more", passes);
    relay.stop();
}

#[test]
fn a_server_that_is_merely_silent_is_waited_for() {
    for (way, plan) in
        [("early", Bed::transparent()), ("closed", RelayPlan { fail: Fail::Closed, ..Bed::after_server() })]
    {
        let bed = Bed::new(&format!("os{way}"));
        let server = servers()[0];
        mute(&bed.server, "mute", "input", "tcp dport 9000");
        let relay = bed.start(plan);
        echo(bed.listen(&server.to_string()));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&connect(&bed, server)));
            std::thread::sleep(Duration::from_secs(5));
            nft(&bed.server, "delete table inet mute");
            asked.join().unwrap().unwrap_or_else(|error| panic!("{way}: {error}"));
        });
        let warnings = relay.notes.warnings.lock().unwrap().clone();
        assert!(!warnings.iter().any(|said| said.contains("asymmetric")), "{way}: {warnings:?}");
        assert_eq!(relay.stop().connections, 1, "{way}");
    }
}

/// What clients say in `ways` before their server, which hears nothing for a while, answers: they are dialled on for.
fn clients_of_a_silent_server(tag: &str, ways: &[fn(&TcpStream)]) {
    let bed = Bed::new(tag);
    mute(&bed.server, "mute", "input", "tcp flags & (syn | ack) == syn");
    let relay = bed.start(Bed::transparent());
    let listener = bed.listen(bed::ANYWHERE);
    let clients: Vec<_> = ways
        .iter()
        .map(|say| {
            let client = connect(&bed, at(bed::ANYWHERE));
            say(&client);
            client
        })
        .collect();
    // Two looks at each of them.
    std::thread::sleep(Duration::from_millis(6500));
    let warnings = relay.notes.warnings.lock().unwrap().clone();
    assert!(!warnings.iter().any(|said| said.contains("asymmetric")), "{warnings:?}");
    nft(&bed.server, "delete table inet mute");
    clients.iter().for_each(|_| drop(accept(&listener)));
    drop(clients);
    assert_eq!(relay.stop().connections, ways.len() as u64);
}

#[test]
fn a_client_that_closes_while_its_server_is_silent_is_dialled_on_for() {
    let finish = |client: &TcpStream| client.shutdown(Shutdown::Write).unwrap();
    let ask_and_finish = |mut client: &TcpStream| {
        client.write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    };
    let ask_later_and_finish = |mut client: &TcpStream| {
        client.write_all(b"hello").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        client.write_all(b"again").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    };
    clients_of_a_silent_server("owfin", &[finish, ask_and_finish, ask_later_and_finish]);
}

/// A relay that asks again and again whether there is room.
#[test]
fn a_client_that_says_more_than_the_relay_takes_while_its_server_is_silent_is_dialled_on_for() {
    let fill = |mut client: &TcpStream| {
        client.set_nonblocking(true).unwrap();
        let block = [7; 1 << 16];
        let mut quiet = 0;
        while quiet < 20 {
            match client.write(&block) {
                Ok(1..) => quiet = 0,
                _ => {
                    quiet += 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    };
    clients_of_a_silent_server("owfull", &[fill]);
}

#[test]
fn what_a_stranger_asks_in_vain_in_a_clients_name_lets_nothing_pass_but_that_port() {
    let bed = Bed::new("owport");
    mute(&bed.server, "mute", "input", "tcp dport 9001");
    let relay = bed.start(Bed::after_server());
    let sender = Sender::new(&bed);
    let syn = Segment::syn(at(&format!("{CLIENT_V4}:2000")), at("10.71.2.2:9001"));
    sender.send(&syn);
    let table = || nft(&bed.relay, "list table inet longfat_test");
    let elements =
        || table().lines().filter(|line| line.contains("expires")).map(str::to_owned).collect::<Vec<_>>();
    // After a time in which its server might have answered it passes.
    eventually("that is noticed", || {
        std::thread::sleep(Duration::from_millis(500));
        sender.send(&syn);
        !elements().is_empty()
    });
    assert!(elements().iter().all(|line| line.contains(". 9001")), "{:?}", elements());
    let listener = bed.listen(bed::ANYWHERE);
    let (client, far) = bed.pair(&listener, at(bed::ANYWHERE));
    carry(&client, &far, 1000);
    drop((client, far));
    assert_eq!(relay.stop().finished, 1, "relayed, not forwarded");
}
