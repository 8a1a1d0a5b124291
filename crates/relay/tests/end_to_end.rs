//! `accept = "end-to-end"`: the ends shake hands with each other, and the relay steps in between with their own
//! numbers.

use crate::bed::{
    self, Bed, Running, accept, at, check_noise, check_noise_slowly, ends_with_reset, exchange,
    exchange_slowly, nft,
    packet::{Peer, halves},
    path::eventually,
    reset, send_noise, servers, talk,
};
use longfat_host::sysctl;
use longfat_relay::{Ended, RelayPlan};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    time::Duration,
};

fn plan() -> RelayPlan {
    Bed::end_to_end()
}

fn start(tag: &str) -> (Bed, Running) {
    let bed = Bed::new(tag);
    let relay = bed.start(plan());
    (bed, relay)
}

/// A client and its server; the relay has stepped in between when this returns.
fn pair(bed: &Bed, listener: &TcpListener, address: SocketAddr) -> (TcpStream, TcpStream) {
    let before = bed.leg_count();
    let pair = bed.pair(listener, address);
    eventually("the relay steps in", || bed.leg_count() == before + 2);
    pair
}

/// Sockets are found by whole packets alone, so the kernel puts fragments together before the relay's rules.
#[test]
fn packets_that_come_in_fragments_reach_the_relays_socket() {
    let (bed, relay) = start("efrag");
    let server = servers()[0];
    let listener = bed.listen(&server.to_string());
    let mut peer = Peer::connect(&bed, at(&format!("{}:50007", bed::CLIENT_V4)), server, &[]);
    let mut far = accept(&listener);
    eventually("the relay steps in", || bed.leg_count() == 2);
    for letter in b'a'..b'f' {
        peer.segment.payload = vec![letter; 1000];
        peer.send_packets(&halves(&peer.segment.packet()));
        let mut got = [0; 1000];
        far.read_exact(&mut got).unwrap();
        assert_eq!(got, [letter; 1000]);
        peer.segment.sequence += 1000;
    }
    drop(relay);
}

/// Whatever the relay's host still knows of the server's port.
fn left_over(bed: &Bed) -> String {
    let mut command = bed.relay.command("ss");
    command.args(["-Htna"]);
    let all = longfat_host::run_command(command).unwrap();
    all.lines().filter(|line| line.contains(":9000")).collect()
}

#[test]
fn streams_both_ways_are_exact_and_the_handshake_is_the_ends_own() {
    let (bed, relay) = start("eserve");
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = pair(&bed, &listener, address);
        assert_eq!(far.peer_addr().unwrap(), client.local_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), address);
        exchange(&client, &far, 16 << 20);
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished), (2, 2), "{stats:?}");
    assert_eq!(stats.client_to_server_bytes, 32 << 20);
}

#[test]
fn whatever_the_ends_agree_on_holds_for_both_legs() {
    let (bed, relay) = start("eoptions");
    let mut count = 0;
    for (key, of_client, of_server) in [
        ("tcp_timestamps", "0", "1"),
        ("tcp_timestamps", "1", "0"),
        ("tcp_sack", "0", "1"),
        ("tcp_window_scaling", "0", "1"),
        ("tcp_window_scaling", "1", "0"),
    ] {
        let set = |host: &longfat_host::Namespace, value| {
            host.run(|| sysctl::write(&format!("net.ipv4.{key}"), value)).unwrap().unwrap();
        };
        set(&bed.client, of_client);
        set(&bed.server, of_server);
        for address in servers() {
            let listener = bed.listen(&address.to_string());
            let (client, far) = pair(&bed, &listener, address);
            exchange(&client, &far, 2 << 20);
            count += 1;
        }
        set(&bed.client, "1");
        set(&bed.server, "1");
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished), (count, count), "{stats:?}");
}

#[test]
fn a_server_may_speak_first_and_a_client_with_its_acknowledgement() {
    let (bed, relay) = start("efirst");
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        (&far).write_all(b"220 ready").unwrap();
        let mut said = [0; 9];
        (&client).read_exact(&mut said).unwrap();
        assert_eq!(&said, b"220 ready");
        drop((client, far));

        let client = speak_at_once(&bed, address, b"GET /");
        let far = accept(&listener);
        let mut said = [0; 5];
        (&far).read_exact(&mut said).unwrap();
        assert_eq!(&said, b"GET /");
        exchange(&client, &far, 1 << 20);
    }
    assert_eq!(relay.stop().connections, 4);
}

/// Connects; the last packet of the handshake carries these bytes.
fn speak_at_once(bed: &Bed, address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let dial = || {
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        longfat_host::socket::set_option(&socket, nix::libc::IPPROTO_TCP, nix::libc::TCP_QUICKACK, 0)
            .unwrap();
        setsockopt(&socket, sockopt::TcpNoDelay, &true).unwrap();
        connect(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
        TcpStream::from(socket)
    };
    let stream = bed.client.run(dial).unwrap();
    stream.set_read_timeout(Some(bed::PATIENCE)).unwrap();
    (&stream).write_all(bytes).unwrap();
    stream
}

#[test]
fn a_refused_client_is_refused_by_its_server_and_the_relay_has_no_part_in_it() {
    let (bed, relay) = start("erefuse");
    for address in servers() {
        let error = bed.try_connect(address).expect_err("nothing listens there");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.unreachable), (0, 0));
}

#[test]
fn resets_and_half_closed_streams_go_through() {
    let (bed, relay) = start("eends");
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = pair(&bed, &listener, address);
        reset(client);
        assert!(ends_with_reset(&far), "the server hears of the client's reset");
        let (client, far) = pair(&bed, &listener, address);
        reset(far);
        assert!(ends_with_reset(&client), "and the client of the server's");
        let (client, far) = pair(&bed, &listener, address);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut [0; 1]).unwrap(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| send_noise(&far, 5, 1 << 20));
            assert_eq!(check_noise(&client, 5), 1 << 20, "it is half closed only");
        });
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished, stats.reset), (6, 2, 4), "{stats:?}");
}

/// Packets that come while sockets are put in between are neither dropped nor forwarded past them.
#[test]
fn resets_in_the_moment_of_stepping_in_reach_the_server() {
    resets_reach_the_server("emoment", plan());
}

#[test]
fn resets_in_the_moment_of_stepping_in_reach_the_server_beside_a_rule_that_watches() {
    let text = "[intercept]\ninterfaces = 'lan'\n[defaults]\naccept = 'end-to-end'\n\
                [[rule]]\nport = 9001\nadopt_after = '1GB'\n[[rule]]\n";
    let plan = longfat_relay::spec::RelaySpec::parse(text).unwrap().resolve().unwrap();
    resets_reach_the_server("emixed", RelayPlan { control: None, ..plan });
}

fn resets_reach_the_server(tag: &str, plan: RelayPlan) {
    /// At once, so that a worker has many to step into while packets come.
    const COUNT: usize = 64;
    let bed = Bed::new(tag);
    let relay = bed.start(plan);
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    for turn in 0..16 {
        let (listener, address) = &listeners[turn % 2];
        let dial_and_reset = || {
            let mut open = VecDeque::new();
            for _ in 0..COUNT {
                open.push_back(begin(*address));
                if open.len() > 2 * turn {
                    open.pop_front().into_iter().for_each(reset);
                }
            }
            open.into_iter().for_each(reset);
        };
        bed.client.run(dial_and_reset).unwrap();
        for _ in 0..COUNT {
            assert!(ends_with_reset(&accept(listener)), "turn {turn}: the server hears of every reset");
        }
    }
    drop(relay);
}

/// Connects without waiting.
fn begin(address: SocketAddr) -> TcpStream {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    let _ = connect(socket.as_raw_fd(), &SockaddrStorage::from(address));
    TcpStream::from(socket)
}

#[test]
fn short_connections_follow_each_other_by_the_same_port_whoever_closes_first() {
    let (bed, relay) = start("eshort");
    let (address, times) = (servers()[0], 30);
    let listener = bed.listen(&address.to_string());
    for turn in 0..times {
        let client = bed.connect_from(40_000, address);
        let far = accept(&listener);
        (&client).write_all(&[turn]).unwrap();
        let mut said = [0; 1];
        (&far).read_exact(&mut said).unwrap();
        assert_eq!(said, [turn]);
        // The server has what is left of the connection, and takes a SYN with a later timestamp for the next.
        drop(far);
        assert_eq!((&client).read(&mut said).unwrap(), 0);
        drop(client);
        eventually("nothing is left of it here", || left_over(&bed).is_empty());
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished), (u64::from(times), u64::from(times)), "{stats:?}");
}

#[test]
fn many_at_a_time_are_carried() {
    const COUNT: usize = 200;
    let (bed, relay) = start("emany");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    std::thread::scope(|scope| {
        let serve = scope.spawn(|| {
            let streams: Vec<_> = (0..COUNT).map(|_| accept(&listener)).collect();
            for stream in &streams {
                let mut said = [0; 64];
                (&*stream).read_exact(&mut said).unwrap();
                (&*stream).write_all(&said).unwrap();
            }
            streams
        });
        let clients: Vec<_> = (0..COUNT).map(|_| bed.connect(address)).collect();
        for (index, client) in clients.iter().enumerate() {
            (&*client).write_all(&[index as u8; 64]).unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            let mut said = [0; 64];
            (&*client).read_exact(&mut said).unwrap();
            assert_eq!(said, [index as u8; 64]);
        }
        drop(clients);
        drop(serve.join().unwrap());
    });
    assert_eq!(relay.stop().connections, COUNT as u64);
}

#[test]
fn what_sockets_cannot_be_told_stays_end_to_end_and_works() {
    let (bed, relay) = start("eecn");
    for host in [&bed.client, &bed.server] {
        host.run(|| sysctl::write("net.ipv4.tcp_ecn", "1")).unwrap().unwrap();
    }
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        exchange(&client, &far, 1 << 20);
        assert_eq!(bed.leg_count(), 0, "the ends agreed on ECN");
    }
    assert_eq!(relay.stop().connections, 0);
}

#[test]
fn a_lost_last_packet_of_the_handshake_is_made_up_for() {
    let (bed, relay) = start("elost");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    // The first packet of each connection that the server would take for its last of the handshake.
    nft(
        &bed.server,
        "table inet lose { set seen { type inet_service; flags dynamic; }; \
         chain in { type filter hook prerouting priority 0; \
         tcp dport 9000 tcp flags & (syn | ack) == ack tcp sport != @seen add @seen { tcp sport } drop; }; }",
    );
    for _ in 0..3 {
        let client = bed.connect(address);
        (&client).write_all(b"hello").unwrap();
        let far = accept(&listener);
        exchange_after_hello(&client, &far);
    }
    assert_eq!(relay.stop().finished, 3);
}

fn exchange_after_hello(client: &TcpStream, far: &TcpStream) {
    let mut said = [0; 5];
    (&*far).read_exact(&mut said).unwrap();
    assert_eq!(&said, b"hello");
    exchange(client, far, 1 << 18);
}

#[test]
fn streams_over_a_lossy_path_are_exact() {
    let link =
        "rate = '300Mbit'\ndelay = '1ms'\nloss = 0.005\nqueue = { discipline = 'droptail', limit = '300KB' }";
    Bed::over_link("eloss", link, |bed| {
        let relay = bed.start(plan());
        for address in servers() {
            let listener = bed.listen(&address.to_string());
            let (client, far) = bed.pair(&listener, address);
            exchange(&client, &far, 2 << 20);
        }
        assert_eq!(relay.stop().finished, 2);
    });
}

#[test]
fn a_reader_who_pauses_loses_nothing() {
    let (bed, relay) = start("eslow");
    let address = servers()[1];
    let listener = bed.listen(&address.to_string());
    let (client, far) = pair(&bed, &listener, address);
    exchange_slowly(&client, &far, 4 << 20, 1 << 15, Duration::from_millis(2));
    assert_eq!(relay.stop().finished, 1);
}

#[test]
fn a_reload_turns_it_on_and_off() {
    let bed = Bed::new("ereload");
    let relay = bed.start(Bed::transparent());
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let dial = |expected: usize| {
        let (client, far) = bed.pair(&listener, address);
        exchange(&client, &far, 1 << 18);
        drop((client, far));
        eventually("all are told", || relay.notes.closed.lock().unwrap().len() == expected);
    };
    dial(1);
    relay.reload(plan());
    dial(2);
    relay.reload(Bed::transparent());
    dial(3);
    let ends: Vec<_> = relay.notes.closed.lock().unwrap().iter().map(|end| end.ended).collect();
    assert_eq!(ends, [Ended::Finished; 3]);
}

#[test]
fn a_successor_goes_on_with_a_stream() {
    let (bed, relay) = start("eupgrade");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (client, far) = pair(&bed, &listener, address);
    // It lasts while the successor prepares itself.
    let (total, piece, pause) = (32 << 20, 1 << 14, Duration::from_millis(2));
    let next = std::thread::scope(|scope| {
        scope.spawn(|| send_noise(&client, 1, total));
        scope.spawn(|| send_noise(&far, 2, total));
        let up = scope.spawn(|| check_noise_slowly(&far, 1, piece, pause));
        let down = scope.spawn(|| check_noise_slowly(&client, 2, piece, pause));
        let next = Running::upgrade(&bed.relay, plan(), || {}).unwrap();
        assert_eq!((up.join().unwrap(), down.join().unwrap()), (total, total));
        next
    });
    let before = relay.wait();
    let (client, far) = pair(&bed, &listener, address);
    exchange(&client, &far, 1 << 20);
    let (client, far) = pair(&bed, &listener, address);
    let last = Running::upgrade(&bed.relay, patient(), || {}).unwrap();
    let between = next.wait();
    assert_eq!(before.finished + between.finished, 2, "{before:?} {between:?}");
    talk(&client, &far, 1 << 20, AT_ONCE);
    let after = last.stop();
    assert_eq!((after.released, after.stopped), (1, 0), "its successor leaves it as well: {after:?}");
    exchange(&client, &far, 1 << 20);
}

#[test]
fn a_stranger_in_the_middle_of_a_connection_is_left_alone() {
    let bed = Bed::new("estrange");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (client, far) = bed.pair(&listener, address);
    let relay = bed.start(plan());
    exchange(&client, &far, 1 << 20);
    assert_eq!(relay.stop().connections, 0, "it began before the relay");
}

#[test]
fn a_relay_that_shall_fail_closed_does_not_accept_end_to_end() {
    let mut plan = plan();
    plan.fail = longfat_relay::Fail::Closed;
    let error = plan.check().expect_err("what it cannot step into would pass").to_string();
    assert!(error.contains("'closed'") && error.contains("'end-to-end'"), "{error}");
}

const AT_ONCE: (usize, Duration) = (1 << 16, Duration::ZERO);

/// Stops the relay while `work` goes on, which nothing may disturb.
fn stop_under(relay: Running, work: impl FnOnce()) -> longfat_relay::RelayStats {
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| relay.stop());
        work();
        stopped.join().unwrap()
    })
}

/// Time enough for what has to come to rest first.
fn patient() -> RelayPlan {
    RelayPlan { drain: Duration::from_secs(20), ..plan() }
}

#[test]
fn idle_connections_outlive_the_relay() {
    let bed = Bed::new("eidle");
    let relay = bed.start(patient());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    let mut pairs = Vec::new();
    for (listener, address) in &listeners {
        for index in 0..20 {
            let (client, far) = pair(&bed, listener, *address);
            // Some have said nothing yet, some little, some much.
            talk(&client, &far, (index % 4) << 16, AT_ONCE);
            pairs.push((client, far));
        }
    }
    let stats = relay.stop();
    assert_eq!((stats.released, stats.stopped, stats.reset), (40, 0, 0), "{stats:?}");
    assert_eq!(left_over(&bed), "");
    for (client, far) in &pairs {
        exchange(client, far, 1 << 18);
    }
    for (client, far) in pairs {
        drop(client);
        assert_eq!((&far).read(&mut [0; 1]).unwrap(), 0, "and they end in order");
    }
}

#[test]
fn streams_outlive_the_relay_without_a_wrong_byte() {
    let bed = Bed::new("ebulk");
    for address in servers() {
        let relay = bed.start(patient());
        let listener = bed.listen(&address.to_string());
        let (client, far) = pair(&bed, &listener, address);
        let slowly = (1 << 14, Duration::from_millis(2));
        let stats = stop_under(relay, || talk(&client, &far, 24 << 20, slowly));
        assert_eq!((stats.released, stats.stopped, stats.reset), (1, 0, 0), "{stats:?}");
        exchange(&client, &far, 1 << 20);
    }
}

#[test]
fn whatever_the_ends_agreed_on_the_relay_can_leave() {
    let bed = Bed::new("eleave");
    for key in ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"] {
        let set = |value| {
            bed.client.run(|| sysctl::write(&format!("net.ipv4.{key}"), value)).unwrap().unwrap();
        };
        set("0");
        let (relay, mut living) = (bed.start(patient()), Vec::new());
        for address in servers() {
            let listener = bed.listen(&address.to_string());
            let (client, far) = pair(&bed, &listener, address);
            talk(&client, &far, 3 << 20, AT_ONCE);
            living.push((client, far));
        }
        let stats = relay.stop();
        assert_eq!((stats.released, stats.stopped), (2, 0), "{key}: {stats:?}");
        living.iter().for_each(|(client, far)| exchange(client, far, 1 << 20));
        set("1");
    }
}

#[test]
fn a_stream_over_a_lossy_path_outlives_the_relay() {
    let link =
        "rate = '300Mbit'\ndelay = '5ms'\nloss = 0.002\nqueue = { discipline = 'droptail', limit = '300KB' }";
    Bed::over_link("eleavel", link, |bed| {
        let relay = bed.start(patient());
        let address = servers()[0];
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        let stats = stop_under(relay, || talk(&client, &far, 12 << 20, AT_ONCE));
        assert_eq!((stats.released, stats.stopped), (1, 0), "{stats:?}");
        exchange(&client, &far, 1 << 20);
    });
}

#[test]
fn what_cannot_come_to_rest_is_reset_when_the_drain_time_is_over() {
    let (bed, relay) = start("estuck");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (client, far) = pair(&bed, &listener, address);
    // Nobody reads it.
    client.set_nonblocking(true).unwrap();
    while (&client).write(&[0; 1 << 16]).is_ok() {}
    let stats = relay.stop();
    assert_eq!((stats.released, stats.stopped), (0, 1), "{stats:?}");
    drop(far);
}
