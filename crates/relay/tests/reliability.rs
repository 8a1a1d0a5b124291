//! Reliability, by trying and counting. The quick form of each trial is an ordinary test; the long one is ignored and
//! runs with `make soak-relay`.

use crate::bed::{
    self, ANYWHERE, Bed, Noise, accept, at, carry, check_noise, check_noise_slowly, exchange, flood, nft,
    packet::Peer,
    path::{PROCESS, RelayProcess, StopOnDrop, eventually},
    receive_noise, reset, send_noise, try_send_noise,
};
use longfat_host::{
    socket::{self, Buffer},
    sysctl,
};
use longfat_relay::{Fail, Observer, Ready, RelayPlan};
use nix::sys::resource::{Resource, getrlimit};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

const ROUGH: &str = "rate = '200Mbit'\ndelay = '2ms'\njitter = '1ms'\nreorder = true\nloss = 0.003\n\
                     queue = { discipline = 'droptail', limit = '200KB' }";
/// For the long trial: what Reno gets falls with the root of the loss and with the round trip (Mathis 1997).
const SHORT_AND_ROUGH: &str = "rate = '300Mbit'\ndelay = '1ms'\njitter = '500us'\nreorder = true\nloss = 0.0005\n\
                               queue = { discipline = 'droptail', limit = '300KB' }";

/// Over a path that loses and reorders, with the peers' windows as large as `window_bytes`.
fn streams_over(path: &str, tag: &str, total: usize, window_bytes: Option<u64>) {
    Bed::over_link(tag, path, |bed| {
        let relay = bed.start(Bed::transparent());
        for address in ["10.71.2.2:9000", "[fd71:2::2]:9000"] {
            let listener = bed.listen(address);
            if let Some(bytes) = window_bytes {
                socket::set_buffer(&listener, Buffer::Receive, bytes).unwrap();
            }
            let (client, far) = bed.pair(&listener, at(address));
            let begun = Instant::now();
            exchange(&client, &far, total);
            println!(
                "{tag}: {total} bytes each way with {address} in {:.1} s",
                begun.elapsed().as_secs_f64()
            );
        }
        assert_eq!(relay.stop().finished, 2);
    });
}

#[test]
fn streams_survive_loss_and_reordering() {
    streams_over(ROUGH, "loss", 4 << 20, None);
}

#[test]
fn streams_survive_loss_reordering_and_tiny_windows() {
    streams_over(ROUGH, "lossw", 128 << 10, Some(4096));
}

#[test]
#[ignore = "minutes: 1 GiB each way, IPv4 and IPv6; make soak-relay-streams"]
fn a_gibibyte_each_way_survives_loss_and_reordering() {
    let mebibytes = std::env::var("SOAK_MIB").map_or(1024, |text| text.parse().unwrap());
    streams_over(SHORT_AND_ROUGH, "gib", mebibytes << 20, None);
}

#[test]
#[ignore = "a minute; make soak-relay-streams"]
fn long_streams_survive_loss_reordering_and_tiny_windows() {
    streams_over(SHORT_AND_ROUGH, "gibw", 16 << 20, Some(4096));
}

/// How the one who sends ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Fin,
    Rst,
}

/// One side sends `bytes` and ends; the other one receives, and sends too when `busy`.
fn end_after(client: TcpStream, far: TcpStream, client_ends: bool, bytes: usize, end: End, busy: bool) {
    let case = format!("client ends: {client_ends}, after {bytes} bytes, {end:?}, both ways: {busy}");
    let (near, other) = if client_ends { (client, far) } else { (far, client) };
    let stop = AtomicBool::new(false);
    // The kernel tells of a reset once: to the one who reads or to the one who writes.
    let writer_saw_reset = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (other, stop, writer_saw_reset) = (&other, &stop, &writer_saw_reset);
        let writer = busy.then(|| {
            scope.spawn(move || {
                let (mut other, block) = (other, [0; 1 << 14]);
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = other.write_all(&block) {
                        writer_saw_reset.store(error.kind() == ErrorKind::ConnectionReset, Ordering::Relaxed);
                        return;
                    }
                }
            })
        });
        let drain = near.try_clone().unwrap();
        scope.spawn(move || {
            let mut drain = drain;
            while drain.read(&mut [0; 1 << 16]).is_ok_and(|bytes| bytes > 0) {}
        });
        scope.spawn(move || {
            let (mut noise, mut block) = (Noise::new(7), vec![0; bytes]);
            noise.fill(&mut block);
            (&near).write_all(&block).unwrap();
            match end {
                End::Fin => near.shutdown(Shutdown::Write).unwrap(),
                End::Rst => {
                    let _ = near.shutdown(Shutdown::Read);
                    nix::sys::socket::setsockopt(
                        &near,
                        nix::sys::socket::sockopt::Linger,
                        &nix::libc::linger { l_onoff: 1, l_linger: 0 },
                    )
                    .unwrap();
                }
            }
            if end == End::Fin {
                // The socket lives until the other side has seen everything.
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let (received, mut with_reset) = receive_noise(other, 7, 1 << 16, Duration::ZERO);
        stop.store(true, Ordering::Relaxed);
        if let Some(writer) = writer {
            let _ = other.shutdown(Shutdown::Write);
            writer.join().unwrap();
            with_reset |= writer_saw_reset.load(Ordering::Relaxed);
        }
        assert!(received <= bytes, "{case}: {received} bytes");
        assert_eq!(with_reset, end == End::Rst, "{case}: {received} bytes received");
        if end == End::Fin {
            assert_eq!(received, bytes, "{case}");
        }
        let _ = other.shutdown(Shutdown::Both);
    });
}

#[test]
fn a_fin_and_a_reset_at_every_point_of_a_transfer_are_what_they_are() {
    let bed = Bed::new("ends");
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(Bed::explicit(at(ANYWHERE)));
    let mut trials = 0;
    for bytes in [0, 1, 1447, 4096, 65_535, 65_536, 262_143, 262_144, 262_145, 1 << 20, 3_000_001] {
        for end in [End::Fin, End::Rst] {
            for (client_ends, busy) in [(true, false), (false, false), (true, true), (false, true)] {
                let (client, far) = bed.pair(&listener, relay.address());
                end_after(client, far, client_ends, bytes, end, busy);
                trials += 1;
            }
        }
    }
    let notes = std::sync::Arc::clone(&relay.notes);
    eventually("every connection ends", || notes.closed.lock().unwrap().len() == trials);
    relay.stop();
}

#[test]
fn dead_and_slow_readers_do_not_hold_up_others() {
    let bed = Bed::new("slow");
    let listener = bed.listen(ANYWHERE);
    let mut plan = Bed::explicit(at(ANYWHERE));
    plan.workers = 1;
    let relay = bed.start(plan);
    let dead: Vec<_> = (0..24).map(|_| bed.pair(&listener, relay.address())).collect();
    for (client, _) in &dead {
        client.set_nonblocking(true).unwrap();
        let (mut client, block) = (client, vec![3; 1 << 18]);
        while client.write(&block).is_ok() {}
    }
    let (slow, slow_far) = bed.pair(&listener, relay.address());
    let (client, far) = bed.pair(&listener, relay.address());
    std::thread::scope(|scope| {
        scope.spawn(|| send_noise(&slow, 5, 300_000));
        let reader = scope.spawn(|| check_noise_slowly(&slow_far, 5, 1500, Duration::from_millis(1)));
        exchange(&client, &far, 32 << 20);
        assert_eq!(reader.join().unwrap(), 300_000);
    });
    drop(dead);
    relay.stop();
}

/// Sends SYNs from `count` made-up addresses and ports of the client's network.
fn flood(bed: &Bed, server: [u8; 4], count: u32) {
    let send = || {
        let socket = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Raw,
            nix::sys::socket::SockFlag::SOCK_CLOEXEC,
            nix::sys::socket::SockProtocol::Raw,
        )
        .unwrap();
        let to = nix::sys::socket::SockaddrIn::new(server[0], server[1], server[2], server[3], 0);
        for number in 0..count {
            let source = [10, 71, 1, 3 + (number % 200) as u8];
            let packet = syn(source, 1024 + (number / 200) as u16, server, 9000);
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&socket);
            let flags = nix::sys::socket::MsgFlags::empty();
            // A full queue of the interface loses one of many.
            let _ = nix::sys::socket::sendto(descriptor, &packet, &to, flags);
        }
    };
    bed.client.run(send).unwrap();
}

fn syn(source: [u8; 4], port: u16, server: [u8; 4], server_port: u16) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[0..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&server_port.to_be_bytes());
    tcp[12..16].copy_from_slice(&[5 << 4, 2, 0xff, 0xff]);
    let mut pseudo = [source, server].concat();
    pseudo.extend([0, 6, 0, 20]);
    pseudo.extend(&tcp);
    let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    tcp[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    packet.extend(source);
    packet.extend(server);
    packet.extend(tcp);
    packet
}

/// A live transfer beside a flood of SYNs that nobody ever completes; afterwards new clients are served.
fn flooded(tag: &str, plan: RelayPlan, count: u32) {
    let bed = Bed::new(tag);
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(plan);
    let (client, far) = bed.pair(&listener, at(ANYWHERE));
    // A server that accepts whoever comes.
    let (sender, accepted) = std::sync::mpsc::channel();
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        while let Ok((far, _)) = listener.accept() {
            if sender.send(far).is_err() {
                return;
            }
        }
    });
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&bed, [10, 71, 2, 2], count));
        exchange(&client, &far, 24 << 20);
        flood.join().unwrap();
    });
    let later = bed.connect(at(ANYWHERE));
    let own = later.local_addr().unwrap();
    let far = std::iter::repeat_with(|| accepted.recv_timeout(bed::PATIENCE).unwrap())
        .find(|far| far.peer_addr().is_ok_and(|peer| peer == own))
        .unwrap();
    exchange(&later, &far, 1 << 16);
    drop(accepted);
    relay.stop();
}

#[test]
fn a_syn_flood_beside_a_transfer_harms_neither_it_nor_those_who_come_later() {
    flooded("flood", Bed::transparent(), 10_000);
}

#[test]
fn a_syn_flood_against_held_handshakes_harms_neither_a_transfer_nor_those_who_come_later() {
    flooded("floodh", Bed::after_server(), 10_000);
}

#[test]
#[ignore = "a minute: 100,000 SYNs; make soak-relay"]
fn a_flood_of_100_000_syns_harms_nobody() {
    flooded("flood5", Bed::transparent(), 100_000);
    flooded("flood5h", Bed::after_server(), 100_000);
}

#[test]
#[ignore = "100,000 SYNs as fast as they leave; make soak-relay"]
fn beside_100_000_spoofed_syns_living_clients_connect_within_three_seconds_and_servers_see_64_of_nobody() {
    for fail in [Fail::Open, Fail::Closed] {
        for (tag, plan) in [("flde", Bed::transparent()), ("flda", Bed::after_server())] {
            let slowest = flood::harms_nobody(tag, RelayPlan { fail, ..plan }, 100_000, Duration::ZERO);
            assert!(slowest < Duration::from_secs(3), "{tag}, {fail:?}: {slowest:?}");
        }
    }
}

#[test]
fn path_mtu_discovery_works_for_a_relayed_connection() {
    narrow("pmtu", false);
}

#[test]
fn an_mtu_black_hole_is_survived_where_the_kernel_probes() {
    narrow("hole", true);
}

/// The path's second hop takes small packets only; it says so, or not.
fn narrow(tag: &str, silent: bool) {
    let (bed, path) = Bed::over_a_narrow_hop(tag);
    if silent {
        let no_errors = "table inet mute { chain out { type filter hook output priority 0; \
                         icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }";
        nft(&path, no_errors);
        bed.relay.run(|| sysctl::write("net.ipv4.tcp_mtu_probing", "1")).unwrap().unwrap();
    }
    let relay = bed.start(Bed::transparent());
    for address in ["10.71.3.2:9000", "[fd71:3::2]:9000"] {
        let listener = bed.listen(address);
        let (client, far) = bed.pair(&listener, at(address));
        carry(&client, &far, 300_000);
    }
    assert_eq!(relay.stop().connections, 2);
}

/// All of them open at once, each used in turn.
fn many_at_once(tag: &str, count: usize) {
    let bed = Bed::new(tag);
    let listener = bed.listen(ANYWHERE);
    let relay = bed.start(Bed::transparent());
    let pairs: Vec<_> = (0..count).map(|_| bed.pair(&listener, at(ANYWHERE))).collect();
    pairs.iter().enumerate().for_each(|(number, pair)| talk(number, pair));
    drop(pairs);
    assert_eq!(relay.stop().finished, count as u64);
}

/// A message of its own there and back.
fn talk(number: usize, (client, far): &(TcpStream, TcpStream)) {
    let (mut client, mut far, mut got) = (client, far, [0; 16]);
    let message = format!("message {number:08}");
    client.write_all(message.as_bytes()).unwrap();
    far.read_exact(&mut got).unwrap();
    assert_eq!(got, message.as_bytes());
    far.write_all(&got).unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(got, message.as_bytes());
}

#[test]
fn a_thousand_connections_at_once_are_carried() {
    many_at_once("thou", 1000);
}

/// The relay is a process of its own: each of the two has descriptors for itself (20,000 here, 29,000 there).
#[test]
#[ignore = "needs 29,000 descriptors per process (SOAK_CONNECTIONS for fewer); make soak-relay"]
fn ten_thousand_connections_at_once_are_carried() {
    let count = std::env::var("SOAK_CONNECTIONS").map_or(10_000, |text| text.parse().unwrap());
    // Two each; the relay keeps a quarter of its own for pipes, and places for held handshakes.
    let needed = 8 * count as u64 / 3 + 2334;
    let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(
        descriptors >= needed,
        "{count} connections need {needed} descriptors, this process may have {descriptors}: raise the limit \
         ('ulimit -n {needed}') or set SOAK_CONNECTIONS to fewer"
    );
    let bed = Bed::new("myriad");
    let listener = bed.listen(ANYWHERE);
    let relay = RelayProcess::start(module_path!(), &bed.relay, "transparent", None);
    let before = relay.memory_bytes();
    let begun = Instant::now();
    let pairs: Vec<_> = (0..count).map(|_| bed.pair(&listener, at(ANYWHERE))).collect();
    let open = begun.elapsed();
    for _ in 0..2 {
        pairs.iter().enumerate().for_each(|(number, pair)| talk(number, pair));
    }
    println!(
        "myriad: {count} connections open after {:.1} s, each used twice after {:.1} s, {} bytes of memory each",
        open.as_secs_f64(),
        begun.elapsed().as_secs_f64(),
        relay.memory_bytes().saturating_sub(before) / count as u64
    );
}

/// Not a test of its own: what [`RelayProcess`] runs.
#[test]
#[ignore = "the relay process of other tests"]
fn a_relay_process() {
    let Ok(how) = std::env::var(PROCESS) else { return };
    let plan = match how.as_str() {
        "transparent" => Bed::transparent(),
        "after-server" => Bed::after_server(),
        to => Bed::explicit(at(to)),
    };
    let mut plan = plan;
    // One client has all of it here.
    (plan.limits.client, plan.limits.network) = (Some(usize::MAX), Some(usize::MAX));
    struct Say;
    impl Observer for Say {
        fn ready(&self, ready: &Ready) {
            println!("\nready: {}", ready.listening[0]);
        }
    }
    longfat_relay::run(&plan, &AtomicBool::new(false), &Say).unwrap();
}

#[test]
fn without_descriptors_clients_wait_and_the_relay_neither_spins_nor_loses_one() {
    const CLIENTS: u64 = 200;
    let bed = Bed::new("fds");
    let listener = bed.listen(ANYWHERE);
    let relay = RelayProcess::start(module_path!(), &bed.relay, ANYWHERE, Some(90));
    let address = at(&relay.address);
    // All shake hands with the kernel; the relay has descriptors for a few.
    let clients: Vec<_> = (0..CLIENTS).map(|_| bed.connect(address)).collect();
    std::thread::sleep(Duration::from_millis(300));
    let before = relay.cpu();
    std::thread::sleep(Duration::from_secs(1));
    let spent = relay.cpu() - before;
    assert!(spent < Duration::from_millis(300), "{spent:?} of a second while full");
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let served = &served;
        scope.spawn(move || {
            for _ in 0..CLIENTS {
                let far = accept(&listener);
                scope.spawn(move || {
                    let bytes = check_noise(&far, 9);
                    send_noise(&far, 10, bytes);
                });
            }
        });
        for client in clients {
            scope.spawn(move || {
                send_noise(&client, 9, 20_000);
                assert_eq!(check_noise(&client, 10), 20_000);
                served.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(served.load(Ordering::Relaxed), CLIENTS);
}

/// Maximum segment size of one byte (RFC 9293 section 3.2), SACK permitted.
const TINY_MSS: [u8; 6] = [2, 4, 0, 1, 4, 2];
/// As much as a relay's connection may come to hold, and its sockets' overhead.
const MOST_HELD_BYTES: u64 = 64 << 20;

#[test]
fn peers_that_break_the_rules_of_tcp_cost_neither_time_nor_memory_nor_others_their_connections() {
    let bed = Bed::new("rude");
    let listener = bed.listen(ANYWHERE);
    let relay = RelayProcess::start(module_path!(), &bed.relay, ANYWHERE, None);
    let (to, before) = (at(&relay.address), relay.memory_bytes());
    let mut fars = Vec::new();
    let mut rude = |port: u16, options: &[u8]| {
        let own = at(&format!("{}:{port}", bed::CLIENT_V4));
        let peer = Peer::connect(&bed, own, to, options);
        // The server has much to say to it.
        let mut far = accept(&listener);
        far.set_nonblocking(true).unwrap();
        while far.write(&[7; 1 << 16]).is_ok() {}
        fars.push(far);
        peer
    };
    let mut closed = rude(50_001, &[]);
    closed.segment.window = 0;
    let mut tiny = rude(50_002, &TINY_MSS);
    let mut selective = rude(50_003, &TINY_MSS);
    let mut ahead = rude(50_004, &[]);
    for round in 0..5000u32 {
        closed.say();
        // A segment at a time is acknowledged, byte by byte.
        tiny.segment.acknowledged = tiny.segment.acknowledged.wrapping_add(u32::from(round < 2000));
        tiny.segment.window = 1;
        tiny.say();
        // Holes everywhere, also where nothing was sent.
        let edge = selective.segment.acknowledged.wrapping_add(1 + (round % 700) * 3);
        selective.segment.options =
            [&[1, 1, 5, 10][..], &edge.to_be_bytes(), &edge.wrapping_add(1).to_be_bytes()].concat();
        selective.say();
        ahead.segment.acknowledged = ahead.segment.acknowledged.wrapping_add(100_000);
        ahead.say();
    }
    let held = relay.memory_bytes().saturating_sub(before);
    assert!(held < MOST_HELD_BYTES, "{held} bytes");
    let spent = relay.cpu();
    std::thread::sleep(Duration::from_secs(1));
    let spent = relay.cpu() - spent;
    assert!(spent < Duration::from_millis(300), "{spent:?} of a second when they say nothing more");
    let (client, far) = bed.pair(&listener, to);
    exchange(&client, &far, 4 << 20);
}

/// What a client that asks for `total` bytes of noise sees.
fn ask(bed: &Bed, total: u64) -> Seen {
    let mut stream = match bed.try_connect(at(ANYWHERE)) {
        Ok(stream) => stream,
        Err(error) => return Seen::of(&error),
    };
    if let Err(error) = stream.write_all(&total.to_be_bytes()) {
        return Seen::of(&error);
    }
    match receive_noise(&stream, 11, 1 << 16, Duration::ZERO) {
        (bytes, false) if bytes as u64 == total => Seen::All,
        (bytes, false) => panic!("a FIN after {bytes} of {total} bytes: the client takes it for the whole"),
        (_, true) => Seen::Reset,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    All,
    Reset,
    Refused,
}

impl Seen {
    fn of(error: &std::io::Error) -> Seen {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Seen::Reset,
            ErrorKind::ConnectionRefused => Seen::Refused,
            _ => panic!("neither bytes, a reset nor a refusal: {error}"),
        }
    }
}

/// Answers [`ask`].
#[allow(clippy::needless_pass_by_value)]
fn serve(listener: TcpListener, stop: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(bed::PATIENCE)).unwrap();
            stream.set_write_timeout(Some(bed::PATIENCE)).unwrap();
            scope.spawn(move || {
                let mut total = [0; 8];
                if stream.read_exact(&mut total).is_err() {
                    return;
                }
                // A relay that is killed resets it.
                if try_send_noise(&stream, 11, u64::from_be_bytes(total) as usize).is_ok() {
                    let _ = stream.read(&mut total);
                }
            });
        }
    });
}

fn killed_and_restarted(tag: &str, how: &str, kills: usize) {
    let bed = Bed::new(tag);
    let listener = bed.listen(ANYWHERE);
    let stop = AtomicBool::new(false);
    let seen = std::sync::Mutex::new(std::collections::BTreeMap::<Seen, u64>::new());
    std::thread::scope(|scope| {
        let (stop, seen, bed) = (&stop, &seen, &bed);
        scope.spawn(move || serve(listener, stop));
        for client in 0..8 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let outcome = ask(bed, 500_000 << (client % 4));
                    *seen.lock().unwrap().entry(outcome).or_default() += 1;
                }
            });
        }
        let raised = StopOnDrop(stop);
        for _ in 0..kills {
            let mut relay = RelayProcess::start(module_path!(), &bed.relay, how, None);
            std::thread::sleep(Duration::from_millis(700));
            relay.kill();
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(raised);
    });
    let seen = seen.into_inner().unwrap();
    println!("{tag}: {kills} kills: {seen:?}");
    assert!(seen.get(&Seen::All).is_some_and(|all| *all > 8), "{seen:?}");
    assert!(seen.contains_key(&Seen::Reset), "no transfer was hit: {seen:?}");
}

#[test]
fn killed_under_load_clients_see_a_reset_or_a_refusal_and_never_a_wrong_or_missing_byte() {
    killed_and_restarted("kill", "transparent", 4);
}

#[test]
fn killed_with_held_handshakes_clients_see_a_reset_or_a_refusal() {
    killed_and_restarted("killh", "after-server", 3);
}

#[test]
#[ignore = "ten minutes; make soak-relay"]
fn ten_minutes_of_load_leave_memory_flat() {
    let minutes = std::env::var("SOAK_MINUTES").map_or(10, |text| text.parse().unwrap());
    let bed = Bed::new("soak");
    let listener = bed.listen(ANYWHERE);
    let relay = RelayProcess::start(module_path!(), &bed.relay, "transparent", None);
    let stop = AtomicBool::new(false);
    let asked = AtomicU64::new(0);
    let mut memory = Vec::new();
    std::thread::scope(|scope| {
        let (stop, bed, asked) = (&stop, &bed, &asked);
        scope.spawn(move || serve(listener, stop));
        for client in 0..6u64 {
            scope.spawn(move || {
                let mut number = client;
                while !stop.load(Ordering::Relaxed) {
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let total = 1 << (number >> 60);
                    assert_eq!(ask(bed, total * 997), Seen::All);
                    asked.fetch_add(1, Ordering::Relaxed);
                    if number >> 40 & 7 == 0 {
                        reset(bed.connect(at(ANYWHERE)));
                    }
                }
            });
        }
        let raised = StopOnDrop(stop);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60 * minutes) {
            std::thread::sleep(Duration::from_secs(10));
            memory.push(relay.memory_bytes());
        }
        drop(raised);
    });
    let (early, late) = (memory[memory.len() / 3], memory[memory.len() - 1]);
    println!("soak: {} transfers, memory {memory:?}", asked.load(Ordering::Relaxed));
    assert!(late <= early + early / 4 + (1 << 20), "memory grows: {memory:?}");
}
