//! Addresses and ports used again at once: as with plain forwarding, and never another port.

use crate::bed::{
    self, Bed, CLIENT_V4, CLIENT_V6, SERVER_V4, SERVER_V6, accept, carry, exchange, mute, nft,
    path::eventually, reset, something_is_counted,
};
use longfat_host::run_command;
use longfat_relay::RelayPlan;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const LONG: &str = "rate = '100Mbit'\ndelay = '20ms'\nqueue = { discipline = 'droptail', limit = '1MB' }";
/// Connections of one port, one after the other.
const AGAIN: usize = 60;
const PORT: u16 = 40_000;

/// Servers, with the addresses of their client.
fn ends() -> [(SocketAddr, SocketAddr); 2] {
    [(SERVER_V4, CLIENT_V4), (SERVER_V6, CLIENT_V6)].map(|(server, client)| {
        (SocketAddr::new(server.parse().unwrap(), 9000), SocketAddr::new(client.parse().unwrap(), PORT))
    })
}

/// How a relay is told to accept, by name; none for plain forwarding.
fn ways() -> [(&'static str, Option<RelayPlan>); 3] {
    let plan = |plan| RelayPlan { drain: Duration::from_secs(5), ..plan };
    [("plain", None), ("early", Some(plan(Bed::transparent()))), ("after", Some(plan(Bed::after_server())))]
}

fn try_connect_from(bed: &Bed, own: SocketAddr, to: SocketAddr) -> nix::Result<TcpStream> {
    let dial = || {
        let family = if own.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(own))?;
        connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
        Ok(TcpStream::from(fd))
    };
    let stream = bed.client.run(dial).unwrap()?;
    stream.set_read_timeout(Some(bed::PATIENCE)).unwrap();
    Ok(stream)
}

/// The client's own kernel may have the last connection still.
fn connect_from(bed: &Bed, own: SocketAddr, to: SocketAddr) -> TcpStream {
    let deadline = Instant::now() + bed::PATIENCE;
    loop {
        match try_connect_from(bed, own, to) {
            Ok(stream) => return stream,
            Err(nix::Error::EADDRNOTAVAIL) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{own} to {to}: {error}"),
        }
    }
}

/// What a server's program saw of each connection: its client, what came, and whether the end was a reset.
type Seen = Vec<(SocketAddr, Vec<u8>, bool)>;

/// A server that reads every connection to its end.
fn serve(listener: TcpListener) -> Arc<Mutex<Seen>> {
    let seen = Arc::<Mutex<Seen>>::default();
    let to = Arc::clone(&seen);
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, client)) = listener.accept() {
            let to = Arc::clone(&to);
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let with_reset = stream.read_to_end(&mut bytes).is_err();
                to.lock().unwrap().push((client, bytes, with_reset));
            });
        }
    });
    seen
}

#[test]
fn a_port_used_again_after_a_reset_within_a_round_trip_reaches_the_server_each_time() {
    for (way, plan) in ways() {
        let (seen, warnings) = Bed::over_any_link(&format!("pr{way}"), LONG, |bed| {
            let relay = plan.clone().map(|plan| bed.start(plan));
            let seen = ends().map(|(server, client)| {
                let seen = serve(bed.listen(&server.to_string()));
                for number in 0..AGAIN {
                    let mut stream = connect_from(bed, client, server);
                    stream.write_all(format!("number {number}").as_bytes()).unwrap();
                    reset(stream);
                }
                if way == "early" {
                    // Their dials are given up.
                    let stream = connect_from(bed, client, server);
                    (&stream).write_all(b"last").unwrap();
                    drop(stream);
                    let last = |seen: &Seen| seen.iter().any(|(_, bytes, _)| bytes == b"last");
                    eventually("the last one reaches the server", || last(&seen.lock().unwrap()));
                } else {
                    let all = || seen.lock().unwrap().len() == AGAIN;
                    eventually(&format!("{way}: every connection reaches the server"), all);
                }
                seen.lock().unwrap().clone()
            });
            (seen, relay.map(|relay| relay.notes.warnings.lock().unwrap().clone()).unwrap_or_default())
        })
        .0;
        assert_eq!(warnings, [""; 0], "{way}");
        for (seen, (_, client)) in seen.iter().zip(ends()) {
            assert!(seen.iter().all(|(from, ..)| *from == client), "{way}: {seen:?}");
            if way != "plain" {
                continue;
            }
            let mut numbers: Vec<_> = seen.iter().map(|(_, bytes, _)| bytes.clone()).collect();
            numbers.sort();
            let mut sent: Vec<_> = (0..AGAIN).map(|number| format!("number {number}").into_bytes()).collect();
            sent.sort();
            assert_eq!(numbers, sent, "{way}, {client}");
            assert!(seen.iter().all(|(.., with_reset)| *with_reset), "{way}: {seen:?}");
        }
    }
}

#[test]
fn a_client_that_closes_and_connects_again_at_once_keeps_its_port() {
    for (way, plan) in ways() {
        let warnings = Bed::over_any_link(&format!("pc{way}"), LONG, |bed| {
            let relay = plan.clone().map(|plan| bed.start(plan));
            for (server, client) in ends() {
                let listener = bed.listen(&server.to_string());
                for _ in 0..12 {
                    let stream = connect_from(bed, client, server);
                    let far = accept(&listener);
                    assert_eq!(far.peer_addr().unwrap(), client, "{way}");
                    // The server closes first, so that the client keeps nothing of the connection.
                    carry(&far, &stream, 1000);
                    carry(&stream, &far, 1000);
                }
            }
            relay.map(|relay| relay.notes.warnings.lock().unwrap().clone()).unwrap_or_default()
        })
        .0;
        assert_eq!(warnings, [""; 0], "{way}");
    }
}

#[test]
fn a_program_of_the_relays_host_that_listens_on_a_clients_port_takes_it_from_nobody() {
    for plan in [Bed::transparent(), Bed::after_server()] {
        let bed = Bed::new("pown");
        let _listener = bed.relay.run(|| TcpListener::bind(("::", PORT))).unwrap().unwrap();
        let relay = bed.start(plan);
        for (server, client) in ends() {
            let listener = bed.listen(&server.to_string());
            let stream = connect_from(&bed, client, server);
            let far = accept(&listener);
            assert_eq!(far.peer_addr().unwrap(), client);
            exchange(&stream, &far, 100_000);
        }
        assert_eq!(*relay.notes.warnings.lock().unwrap(), [""; 0]);
        assert_eq!(relay.stop().finished, 2);
    }
}

/// Handshakes that the server keeps half-open.
fn half_open(bed: &Bed) -> usize {
    let mut command = bed.server.command("ss");
    command.args(["-tnH", "state", "syn-recv"]);
    run_command(command).unwrap().lines().count()
}

#[test]
fn a_server_forgets_a_handshake_that_the_relay_gives_up() {
    for (tag, plan) in [("early", Bed::transparent()), ("after", Bed::after_server())] {
        let bed = Bed::new(&format!("pg{tag}"));
        let relay = bed.start(RelayPlan { drain: Duration::ZERO, ..plan });
        let _listeners = ends().map(|(server, _)| bed.listen(&server.to_string()));
        mute(&bed.server, "mute", "output", "tcp sport 9000");
        for (server, _) in ends() {
            let dial = || TcpStream::connect_timeout(&server, Duration::from_millis(300));
            let _ = bed.client.run(dial).unwrap();
        }
        eventually("the relay has dialled", || half_open(&bed) == 2);
        relay.stop();
        eventually("the server knows", || half_open(&bed) == 0);
    }
}

#[test]
fn a_dial_that_waited_for_its_pair_has_all_the_time_of_any_other() {
    /// Longer than a dial is left unanswered.
    const BUSY: Duration = Duration::from_secs(21);
    let bed = Bed::new("plong");
    let relay = bed.start(RelayPlan { reset_wait: BUSY, ..Bed::transparent() });
    let (server, own) = ends()[0];
    let listener = bed.listen(&server.to_string());
    let mut first = connect_from(&bed, own, server);
    let _first_far = accept(&listener);
    nft(
        &bed.server,
        "table inet mute { chain in { type filter hook input priority 0; tcp flags & rst == rst accept; \
         tcp dport 9000 tcp flags & (syn | ack) == syn counter drop; tcp dport 9000 drop; }; }",
    );
    // The relay goes on delivering that for as long as it may.
    first.write_all(b"never heard").unwrap();
    eventually("the relay has it", || {
        longfat_host::socket::tcp_info(&first).unwrap().acked_bytes >= "never heard".len() as u64
    });
    reset(first);
    let mut second = connect_from(&bed, own, server);
    second.write_all(b"heard").unwrap();
    // The second one is dialled, and looked at once a second.
    something_is_counted(&bed.server, "mute");
    std::thread::sleep(Duration::from_millis(1500));
    nft(&bed.server, "delete table inet mute");
    let mut heard = [0; 5];
    accept(&listener).read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"heard");
    drop(second);
    relay.stop();
}
