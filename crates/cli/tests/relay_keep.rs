//! Relays that are killed again and again, and upgraded as services: their connections go on.
#![allow(clippy::unwrap_used)]

mod relay_bed;

use longfat_host::lease;
use longfat_relay::status::Status;
use relay_bed::{Bed, PATIENCE};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Relays of one file, one after the other.
struct Service<'a> {
    bed: &'a Bed,
    directory: tempfile::TempDir,
    child: Child,
}

impl<'a> Service<'a> {
    fn start(bed: &'a Bed, file: &str) -> Service<'a> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let text = format!("control = {{ socket = '{}' }}\nworkers = 2\n{file}", socket.display());
        std::fs::write(directory.path().join("relay.toml"), text).unwrap();
        let child = spawn(bed, directory.path(), "run");
        let mut service = Service { bed, directory, child };
        service.wait_until_it_answers();
        service
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    fn ask(&self) -> Option<Status> {
        longfat_relay::control::ask(&self.socket(), longfat_relay::control::STATUS).ok()
    }

    fn wait_until_it_answers(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let pid = self.child.id();
        while self.ask().is_none_or(|status| status.pid != pid) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Killed, and started again.
    fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.bed, self.directory.path(), "run");
        self.wait_until_it_answers();
    }

    /// Another process takes over; this one ends by itself, and well.
    fn upgrade(&mut self) {
        let next = spawn(self.bed, self.directory.path(), "upgrade");
        let mut last = std::mem::replace(&mut self.child, next);
        let status = last.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.log());
        self.wait_until_it_answers();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Ends it in order.
    fn end(mut self) {
        self.signal(libc::SIGTERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.log());
        assert!(!self.socket().exists(), "its socket is gone");
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(bed: &Bed, directory: &Path, verb: &str) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
    let mut command = bed.command(&[verb, directory.join("relay.toml").to_str().unwrap()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap()
}

/// Bytes that differ by their place (splitmix64).
fn noise(seed: u64, place: u64) -> u8 {
    let mut word = (place / 8).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (word ^ (word >> 27)).to_le_bytes()[(place % 8) as usize]
}

/// Sends until it is told to stop, in pieces of all sizes with pauses, then a FIN; how many bytes.
fn send(mut stream: &TcpStream, seed: u64, stop: &AtomicBool) -> u64 {
    let mut place = 0;
    while !stop.load(Ordering::Acquire) {
        let size = [1, 100, 4096, 5000, 1 << 18][(noise(!seed, place) % 5) as usize];
        let piece: Vec<u8> = (place..place + size).map(|place| noise(seed, place)).collect();
        stream.write_all(&piece).unwrap();
        place += size;
        std::thread::sleep(Duration::from_millis(u64::from(noise(seed, place) % 4)));
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
        for byte in &block[..got] {
            assert_eq!(*byte, noise(seed, place), "byte {place} differs");
            place += 1;
        }
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
        stop.store(true, Ordering::Release);
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
    let deadline = Instant::now() + PATIENCE;
    while lease::start_time(keeper).is_some() && !lease::is_dying(keeper) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    (&client).write_all(b"y").unwrap();
    assert_eq!((&far).read(&mut [0]).unwrap(), 1, "the relay goes on by itself");
    service.child.kill().unwrap();
    service.child.wait().unwrap();
    for mut stream in [&client, &far] {
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// The process that keeps for the relay of that name.
fn keeper_of(name: &str) -> i32 {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let wanted = format!("relay\0keep\0--once\0{name}\0");
    let is_it = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).ends_with(&wanted))
    };
    pids.find(is_it).unwrap()
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
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(keeper.wait().unwrap().code(), Some(0));
}
