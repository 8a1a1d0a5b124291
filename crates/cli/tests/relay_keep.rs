//! Relays that are killed again and again, and upgraded as services: their connections go on.

use crate::{
    noise,
    patience::eventually,
    relay_bed::{self, Bed, PATIENCE},
    relay_service::{Service, keeper_of, spawn},
};
use longfat_host::lease;
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

/// Sends until it is told to stop, in pieces of all sizes with pauses, then a FIN; how many bytes.
fn send(mut stream: &TcpStream, seed: u64, stop: &AtomicBool) -> u64 {
    let mut place = 0;
    while !stop.load(Ordering::Acquire) {
        let chance = noise::bytes(!seed, place, 2);
        let size = [1, 100, 4096, 5000, 1 << 18][usize::from(chance[0] % 5)];
        stream.write_all(&noise::bytes(seed, place, size)).unwrap();
        place += size as u64;
        std::thread::sleep(Duration::from_millis(u64::from(chance[1] % 4)));
    }
    stream.shutdown(Shutdown::Write).unwrap();
    place
}

/// Reads to the FIN and checks every byte; how many.
fn check(mut stream: &TcpStream, seed: u64) -> u64 {
    let (mut place, mut block) = (0, vec![0; 1 << 16]);
    loop {
        let got = stream.read(&mut block).unwrap();
        if got == 0 {
            return place;
        }
        noise::check(seed, place, &block[..got]);
        place += got as u64;
    }
}

/// Stops the senders when it goes, also by a panic: a scope waits for all of its threads.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Both ways at once over several connections, while something is done to the relay that often.
fn through(
    bed: &Bed,
    address: SocketAddr,
    listener: &TcpListener,
    times: usize,
    mut disturb: impl FnMut(usize),
) {
    const CONNECTIONS: u64 = 4;
    let pairs: Vec<_> = (0..CONNECTIONS).map(|_| pair(bed, address, listener)).collect();
    // Each of these has ended one way, and talks the other.
    let half = pair(bed, address, listener);
    half.0.shutdown(Shutdown::Write).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let mut results = Vec::new();
        for ((client, far), number) in pairs.iter().zip(0..) {
            let stop = &stop;
            results.push((
                scope.spawn(move || send(client, number, stop)),
                scope.spawn(move || check(far, number)),
            ));
            let other = number + 100;
            results.push((
                scope.spawn(move || send(far, other, stop)),
                scope.spawn(move || check(client, other)),
            ));
        }
        results.push((scope.spawn(|| send(&half.1, 7, &stop)), scope.spawn(|| check(&half.0, 7))));
        for round in 0..times {
            std::thread::sleep(Duration::from_millis(150));
            disturb(round);
        }
        drop(stopping);
        for (sent, received) in results {
            assert_eq!(sent.join().unwrap(), received.join().unwrap());
        }
    });
    assert_eq!((&half.1).read(&mut [0]).unwrap(), 0, "the end came through");
}

fn pair(bed: &Bed, address: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = bed.connect(&address.to_string());
    let far = listener.accept().unwrap().0;
    for stream in [&client, &far] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, far)
}

const EXPLICIT: &str = "[[listen]]\naddress = '10.72.1.1:7000'\nto = '10.72.2.2:80'\n";
const INTERCEPT: &str = "[intercept]\ninterfaces = 'lan'\nforwarding = true\n";

/// As the others, of IPv6: addresses and routes beside those of the bed, and a server there.
fn with_ipv6(bed: &Bed) -> TcpListener {
    let ends = [
        (&bed.client, "eth0", "fd72:1::2/64"),
        (&bed.relay, "lan", "fd72:1::1/64"),
        (&bed.relay, "wan", "fd72:2::1/64"),
        (&bed.server, "eth0", "fd72:2::2/64"),
    ];
    for (host, interface, address) in ends {
        host.ip(&["-6", "addr", "add", address, "dev", interface, "nodad"]).unwrap();
    }
    bed.client.ip(&["-6", "route", "add", "default", "via", "fd72:1::1"]).unwrap();
    bed.server.ip(&["-6", "route", "add", "default", "via", "fd72:2::1"]).unwrap();
    bed.server.run(|| TcpListener::bind("[fd72:2::2]:80").unwrap()).unwrap()
}

#[test]
fn connections_of_ipv6_go_on_through_kills_and_upgrades() {
    for (tag, accept, fail) in [("k6e", "early", "open"), ("k6a", "after-server", "closed")] {
        let bed = Bed::new(tag);
        let listener = with_ipv6(&bed);
        let file = format!(
            "keep = true\nfail = '{fail}'\nmetrics = '127.0.0.1:9469'\n{INTERCEPT}[defaults]\naccept = '{accept}'\n"
        );
        let mut service = Service::start(&bed, &file);
        let address = listener.local_addr().unwrap();
        through(&bed, address, &listener, 12, |round| match round % 3 {
            0 => service.upgrade(),
            _ => service.kill_and_start(),
        });
        service.upgrade();
        let metrics = bed.ask_metrics("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(metrics.contains("longfat_relay_taken_over_connections_total"), "{metrics}");
        service.end();
        let stays = bed.footprint().contains("longfat_");
        assert_eq!(stays, fail == "closed", "refusals stay, and nothing else");
    }
}

/// Connections with the ends' own sequence numbers: inserted after their handshakes, or adopted in mid-stream.
#[test]
fn connections_stepped_into_go_on_through_kills_and_upgrades() {
    for (tag, rule, is_adopted) in [("ke2e", "", false), ("kmid", "adopt_after = '200KB'\n", true)] {
        let bed = Bed::new(tag);
        let listener = with_ipv6(&bed);
        let file = format!("keep = true\n{INTERCEPT}[defaults]\naccept = 'end-to-end'\n{rule}");
        let mut service = Service::start(&bed, &file);
        let address = listener.local_addr().unwrap();
        through(&bed, address, &listener, 12, |round| {
            if round == 0 {
                eventually("the relay has stepped in", || {
                    let status = service.ask().unwrap().end_to_end;
                    if is_adopted { status.adopted >= 4 } else { status.inserted >= 5 }
                });
            }
            match round % 4 {
                3 => service.upgrade(),
                _ => service.kill_and_start(),
            }
            // A worker takes in what comes after it has begun.
            eventually("the next relay goes on with them", || service.ask().unwrap().taken_over >= 4);
        });
        service.end();
    }
}

/// Whatever a relay is at with a connection between two others when it is killed, they hear nothing of it.
#[test]
fn connections_that_are_stepped_into_while_relays_are_killed_are_not_reset() {
    let bed = Bed::new("kbe");
    relay_bed::echo_server(bed.listen());
    let file = format!("keep = true\n{INTERCEPT}[defaults]\naccept = 'end-to-end'\n");
    let mut service = Service::start(&bed, &file);
    let (stop, ended) = (AtomicBool::new(false), AtomicU64::new(0));
    let talk = || {
        while !stop.load(Ordering::Acquire) {
            let stream = TcpStream::connect(relay_bed::SERVER).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            relay_bed::ask(&stream, b"is anybody there");
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
            ended.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| bed.client.run(talk).unwrap());
        }
        for _ in 0..20 {
            let before = ended.load(Ordering::Relaxed);
            eventually("connections begin", || ended.load(Ordering::Relaxed) > before + 50);
            service.kill_and_start();
        }
        drop(stopping);
    });
    assert!(!service.log().contains("warning"), "{}", service.log());
    service.end();
}

/// As a service manager reloads: the command returns when the new relay is ready, and the connection goes on.
#[test]
fn an_upgrade_in_the_background_returns_when_it_is_done() {
    let bed = Bed::new("kbg");
    let listener = bed.listen();
    let mut service = Service::start(&bed, EXPLICIT);
    let (client, far) = pair(&bed, "10.72.1.1:7000".parse().unwrap(), &listener);
    let file = service.directory.path().join("relay.toml");
    let upgrade = |file: &Path| {
        let mut command = bed.command(&["upgrade", "--background", file.to_str().unwrap()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap()
    };
    let missing = upgrade(&service.directory.path().join("none.toml"));
    assert_eq!(missing.status.code(), Some(2));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("none.toml") && said.contains("the old one goes on"), "{said}");
    let before = service.ask().unwrap().pid;
    // What it leaves running must not hold what is read here.
    let mut command = bed.command(&["upgrade", "--background", file.to_str().unwrap()]);
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(done.code(), Some(0));
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
    let status = service.ask().unwrap();
    assert!(status.pid != before && status.taken_over == 1, "{status:?}");
    (&client).write_all(b"x").unwrap();
    assert_eq!((&far).read(&mut [0]).unwrap(), 1);
    drop((client, far));
    let pid = i32::try_from(status.pid).unwrap();
    // SAFETY: takes numbers only; the process has just answered.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    eventually("it has ended", || lease::start_time(pid).is_none() || lease::is_dying(pid));
}

/// Urgent bytes among others, a stream that fills every buffer and waits for its reader, and a reset that is still to
/// be passed on behind what came before it.
#[test]
fn urgent_bytes_shut_windows_and_resets_survive_kills() {
    let bed = Bed::new("kuz");
    let listener = bed.listen();
    let mut service = Service::start(&bed, &format!("keep = true\nreset_wait = '20s'\n{INTERCEPT}"));
    let address: SocketAddr = relay_bed::SERVER.parse().unwrap();
    let [urgent, shut, cut] = [(); 3].map(|()| pair(&bed, address, &listener));
    set_oob_inline(&urgent.1);
    let written = std::thread::scope(|scope| {
        let (up, whole) = (shut.0.try_clone().unwrap(), 40u64 << 20);
        let sender = scope.spawn(move || send_all(&up, 3, whole));
        // More than its reader's buffers take, so that the rest waits in the relay's.
        let mut written = 0;
        cut.0.set_nonblocking(true).unwrap();
        while let Ok(bytes) = (&cut.0).write(&[9; 1000]) {
            written += bytes;
        }
        std::thread::sleep(Duration::from_millis(300));
        reset(&cut.0);
        for round in 0..10u8 {
            send_urgent(&urgent.0, b'!');
            service.kill_and_start();
            (&urgent.0).write_all(&[round]).unwrap();
            assert_eq!(read_urgent(&urgent.1), ([b'!', round], [true, false]), "round {round}");
        }
        assert_eq!(check(&shut.1, 3), whole);
        sender.join().unwrap();
        written
    });
    let (mut got, mut block) = (0, vec![0; 1 << 16]);
    let end = loop {
        match (&cut.1).read(&mut block) {
            Ok(0) => break None,
            Ok(bytes) => got += bytes,
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(
        end,
        Some(std::io::ErrorKind::ConnectionReset),
        "{got} of {written} bytes, and no end but a reset"
    );
    assert!(got > 0 && got <= written);
    service.end();
}

fn send_all(mut stream: &TcpStream, seed: u64, whole: u64) {
    let mut place = 0;
    while place < whole {
        stream.write_all(&noise::bytes(seed, place, 4096)).unwrap();
        place += 4096;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

fn set_oob_inline(stream: &TcpStream) {
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the descriptor is open and the value is valid for its length.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_OOBINLINE,
            (&raw const on).cast(),
            length,
        )
    };
    assert_eq!(set, 0);
}

fn send_urgent(stream: &TcpStream, byte: u8) {
    // SAFETY: one byte is there to be read.
    let sent = unsafe { libc::send(stream.as_raw_fd(), (&raw const byte).cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
}

fn reset(stream: &TcpStream) {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the address is valid for the length given.
    let done = unsafe {
        libc::connect(stream.as_raw_fd(), &raw const nobody, size_of::<libc::sockaddr>() as libc::socklen_t)
    };
    assert_eq!(done, 0);
}

/// Two bytes, one at a time, and which of them stood at a mark.
fn read_urgent(mut stream: &TcpStream) -> ([u8; 2], [bool; 2]) {
    let (mut bytes, mut marks) = ([0; 2], [false; 2]);
    for place in 0..2 {
        // The mark comes with its byte or before it.
        stream.peek(&mut [0]).unwrap();
        let mut at_mark: libc::c_int = 0;
        // SAFETY: SIOCATMARK writes one int.
        unsafe { libc::ioctl(stream.as_raw_fd(), 0x8905, &raw mut at_mark) };
        marks[place] = at_mark != 0;
        stream.read_exact(&mut bytes[place..=place]).unwrap();
    }
    (bytes, marks)
}

/// A file, and where its clients go.
fn placements() -> [(&'static str, String, &'static str); 3] {
    [
        ("kx", EXPLICIT.to_owned(), "10.72.1.1:7000"),
        ("ke", INTERCEPT.to_owned(), relay_bed::SERVER),
        ("ka", format!("{INTERCEPT}[defaults]\naccept = 'after-server'\n"), relay_bed::SERVER),
    ]
}

#[test]
fn connections_go_on_through_repeated_kills() {
    for (tag, file, address) in placements() {
        let bed = Bed::new(tag);
        let listener = bed.listen();
        let mut service = Service::start(&bed, &format!("keep = true\n{file}"));
        through(&bed, address.parse().unwrap(), &listener, 20, |_| service.kill_and_start());
        let status = service.ask().unwrap();
        assert!(status.taken_over > 0, "{status:?}");
        let fresh = pair(&bed, address.parse().unwrap(), &listener);
        (&fresh.0).write_all(b"x").unwrap();
        assert_eq!((&fresh.1).read(&mut [0]).unwrap(), 1);
        drop(fresh);
        service.end();
    }
}

#[test]
fn connections_go_on_through_upgrades_and_kills_of_the_upgraded() {
    for (tag, file, address) in placements() {
        let bed = Bed::new(&format!("u{tag}"));
        let listener = bed.listen();
        let mut service = Service::start(&bed, &format!("keep = true\n{file}"));
        through(&bed, address.parse().unwrap(), &listener, 12, |round| match round % 3 {
            2 => service.kill_and_start(),
            _ => service.upgrade(),
        });
        service.end();
        let bed = Bed::new(&format!("n{tag}"));
        let listener = bed.listen();
        let mut service = Service::start(&bed, &file);
        through(&bed, address.parse().unwrap(), &listener, 8, |_| service.upgrade());
        service.end();
        let footprint = bed.footprint();
        assert!(!footprint.contains("longfat"), "{footprint}");
    }
}

/// The keeper dies, and then the relay: both ends hear of it.
#[test]
fn when_relay_and_keeper_are_both_killed_both_sides_are_reset() {
    let bed = Bed::new("kk");
    let listener = bed.listen();
    let mut service = Service::start(&bed, &format!("keep = true\nname = 'both'\n{EXPLICIT}"));
    let (client, far) = pair(&bed, "10.72.1.1:7000".parse().unwrap(), &listener);
    (&client).write_all(b"x").unwrap();
    assert_eq!((&far).read(&mut [0]).unwrap(), 1);
    let keeper = keeper_of("both");
    // SAFETY: takes numbers only; the process was found by what this test started it with.
    assert_eq!(unsafe { libc::kill(keeper, libc::SIGKILL) }, 0);
    eventually("it has ended", || lease::start_time(keeper).is_none() || lease::is_dying(keeper));
    (&client).write_all(b"y").unwrap();
    assert_eq!((&far).read(&mut [0]).unwrap(), 1, "the relay goes on by itself");
    service.child.kill().unwrap();
    service.child.wait().unwrap();
    for mut stream in [&client, &far] {
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// The file of a service, as it is and with a listener that nobody can open.
fn good_and_bad(service: &Service) -> (PathBuf, String, String) {
    let file = service.directory.path().join("relay.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    // No address of this host.
    let bad = format!("{good}\n[[listen]]\naddress = '192.0.2.1:7000'\nto = '192.0.2.2:80'\n");
    (file, good, bad)
}

/// A successor that got so far as to listen where the living relay is asked.
#[test]
fn a_successor_that_fails_leaves_the_living_relay_its_control_socket() {
    let bed = Bed::new("kfail");
    let service = Service::start(&bed, EXPLICIT);
    let (file, _, bad) = good_and_bad(&service);
    std::fs::write(&file, bad).unwrap();
    let mut next = spawn(&bed, service.directory.path(), "upgrade");
    assert_eq!(next.wait().unwrap().code(), Some(2), "{}", service.log());
    assert!(service.log().contains("192.0.2.1:7000"), "{}", service.log());
    assert_eq!(service.ask().map(|status| status.pid), Some(service.child.id()));
    service.end();
}

/// A start that fails has carried what a killed relay left for a moment: it ends as if it had been killed, too.
#[test]
fn what_a_start_that_fails_has_carried_waits_for_the_next() {
    let bed = Bed::new("kbad");
    let listener = bed.listen();
    let mut service = Service::start(&bed, &format!("keep = true\n{INTERCEPT}"));
    let (file, good, bad) = good_and_bad(&service);
    through(&bed, relay_bed::SERVER.parse().unwrap(), &listener, 8, |round| {
        service.child.kill().unwrap();
        service.child.wait().unwrap();
        std::fs::write(&file, &bad).unwrap();
        let mut failing = spawn(&bed, service.directory.path(), "run");
        assert_eq!(failing.wait().unwrap().code(), Some(2), "{}", service.log());
        assert_eq!(service.log().matches("192.0.2.1:7000").count(), round + 1, "{}", service.log());
        std::fs::write(&file, &good).unwrap();
        service.child = spawn(&bed, service.directory.path(), "run");
        service.wait_until_it_answers();
        assert!(service.ask().unwrap().taken_over >= 4);
    });
    service.end();
}

/// Sockets of a relay whose table has gone have a mark by which nothing is led to them any more.
#[test]
fn what_a_killed_relay_carried_goes_on_without_its_rules() {
    let bed = Bed::new("kgone");
    let listener = bed.listen();
    let mut service = Service::start(&bed, &format!("keep = true\nname = 'kgone'\n{INTERCEPT}"));
    let (client, far) = pair(&bed, relay_bed::SERVER.parse().unwrap(), &listener);
    for round in 0..4 {
        service.child.kill().unwrap();
        service.child.wait().unwrap();
        bed.relay.run(|| nft(&["delete", "table", "inet", "longfat_kgone"])).unwrap();
        service.child = spawn(&bed, service.directory.path(), "run");
        service.wait_until_it_answers();
        for (mut from, mut to) in [(&client, &far), (&far, &client)] {
            from.write_all(&[round]).unwrap();
            let mut byte = [0];
            to.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [round]);
        }
        eventually("it is this relay's", || service.ask().unwrap().taken_over == 1);
    }
    service.end();
}

fn nft(arguments: &[&str]) {
    assert!(std::process::Command::new("nft").args(arguments).status().unwrap().success());
}

/// What a successor puts there takes the place of what its predecessor had put there: nothing is there twice.
#[test]
fn a_keeper_holds_no_more_after_upgrades_and_kills_than_before() {
    for (name, file) in [("kmore", EXPLICIT), ("kmory", INTERCEPT)] {
        let bed = Bed::new(name);
        let mut service = Service::start(&bed, &format!("keep = true\nname = '{name}'\n{file}"));
        let keeper = keeper_of(name);
        let held = |pid: i32| -> Vec<String> {
            let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let named = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok());
            named.map(|name| name.to_string_lossy().into_owned()).collect()
        };
        let sockets =
            || -> Vec<_> { held(keeper).into_iter().filter(|name| name.starts_with("socket:")).collect() };
        let programs = |pid| held(pid).iter().filter(|name| name.contains("bpf_link")).count();
        let attached = programs(service.child.id() as i32);
        assert_eq!(attached > 0, file == INTERCEPT);
        // It reads later what the relay puts there before it answers.
        eventually("the keeper holds each program of the relay", || programs(keeper) == attached);
        for round in 0..4 {
            match round % 2 {
                0 => service.upgrade(),
                _ => service.kill_and_start(),
            }
            assert_eq!(programs(service.child.id() as i32), attached);
            eventually("the keeper holds each socket once", || {
                let sockets = sockets();
                sockets.iter().collect::<BTreeSet<_>>().len() == sockets.len()
            });
            eventually(&format!("the keeper holds each of {attached} programs once"), || {
                programs(keeper) == attached
            });
        }
        service.end();
    }
}

/// Nobody comes to take over: both sides are reset when the keeper's patience is over, and nobody waits for ever.
#[test]
fn what_nobody_takes_over_is_reset_and_the_keeper_ends() {
    let bed = Bed::new("kp");
    let listener = bed.listen();
    let mut keep = bed.command(&["keep", "alone", "--patience", "500ms", "--once"]);
    let mut keeper = keep.stdin(Stdio::null()).spawn().unwrap();
    // A relay that finds no keeper would start one.
    std::thread::sleep(Duration::from_millis(300));
    let mut service = Service::start(&bed, &format!("keep = true\nname = 'alone'\n{EXPLICIT}"));
    let (client, far) = pair(&bed, "10.72.1.1:7000".parse().unwrap(), &listener);
    service.child.kill().unwrap();
    service.child.wait().unwrap();
    for mut stream in [&client, &far] {
        // Unlike read, it goes on when something has stopped the process for a while.
        let error = stream.read_exact(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(keeper.wait().unwrap().code(), Some(0));
}

/// Bytes that were acknowledged to clients and are not at their servers, when the relay is killed in mid-stream and its
/// keeper a moment later.
fn missing_when_both_are_killed(tag: &str, acknowledge: &str) -> u64 {
    const SERVERS_READ_LATE: Duration = Duration::from_secs(1);
    let bed = Bed::new(tag);
    let listener = bed.listen();
    let file = format!(
        "name = '{tag}'\nkeep = true\n{INTERCEPT}[defaults]\naccept = 'end-to-end'\nacknowledge = '{acknowledge}'\n"
    );
    let mut service = Service::start(&bed, &file);
    let address = listener.local_addr().unwrap();
    let pairs: Vec<_> = (0..4).map(|_| pair(&bed, address, &listener)).collect();
    std::thread::scope(|scope| {
        for ((mut client, _), seed) in pairs.iter().map(|(client, far)| (client, far)).zip(0..) {
            scope.spawn(move || {
                let mut place = 0;
                loop {
                    // Until it is reset.
                    if client.write_all(&noise::bytes(seed, place, 5000)).is_err() {
                        return;
                    }
                    place += 5000;
                }
            });
        }
        std::thread::sleep(SERVERS_READ_LATE);
        service.child.kill().unwrap();
        service.child.wait().unwrap();
        // The kernel acknowledges what comes for sockets that the keeper has.
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: the pid is that of the keeper, which waits for another relay.
        assert_eq!(unsafe { libc::kill(keeper_of(tag), libc::SIGKILL) }, 0);
        let arrived = |(mut far, seed): (&TcpStream, u64)| {
            let (mut place, mut block) = (0, vec![0; 1 << 16]);
            while let Ok(got @ 1..) = far.read(&mut block) {
                noise::check(seed, place, &block[..got]);
                place += got as u64;
            }
            place
        };
        let missing = pairs.iter().zip(0..).map(|((client, far), seed)| {
            let arrived = arrived((far, seed));
            // The SYN is counted, too.
            let told = longfat_host::socket::tcp_info(client).unwrap().acked_bytes.saturating_sub(1);
            assert!(arrived > 10_000, "{arrived} bytes");
            told.saturating_sub(arrived)
        });
        missing.sum()
    })
}

#[test]
fn nothing_that_was_acknowledged_end_to_end_is_lost_with_the_relay_and_its_keeper() {
    assert_eq!(missing_when_both_are_killed("keepack", "end-to-end"), 0);
    let missing = missing_when_both_are_killed("keepearly", "early");
    assert!(missing > 100_000, "the test would find what is lost: {missing}");
}

#[test]
fn connections_that_acknowledge_end_to_end_go_on_through_kills_and_upgrades() {
    let bed = Bed::new("kack");
    let listener = bed.listen();
    let file = format!(
        "name = 'kack'\nkeep = true\n{INTERCEPT}[defaults]\naccept = 'end-to-end'\nacknowledge = 'end-to-end'\n"
    );
    let mut service = Service::start(&bed, &file);
    through(&bed, listener.local_addr().unwrap(), &listener, 12, |round| match round % 3 {
        0 => service.upgrade(),
        _ => service.kill_and_start(),
    });
    service.end();
}
