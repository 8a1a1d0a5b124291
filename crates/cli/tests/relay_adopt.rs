//! Living connections that are stepped into, handed over, killed under and left, again and again: nobody is reset, and
//! every byte arrives.
//!
//! `make soak-relay-adopt` has thousands of them, a hundred times. How long connections stood still is told, not
//! judged.

use crate::{noise, relay_bed::Bed, relay_service::Service};
use longfat_relay::{
    control,
    status::{EndToEndStatus, Status},
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Longest that thousands of connections may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes per step of a stream; the relay steps in after two steps.
const STEP_BYTES: u64 = 6_000;
const FILE: &str = "name = 'adoptsoak'\nkeep = true\n[limits]\nclient = 20000\nnetwork = 20000\n\
    [intercept]\ninterfaces = 'lan'\nforwarding = true\n\
    [defaults]\naccept = 'end-to-end'\nadopt_after = '20KB'\n";
/// Threads that speak for many connections.
const SPEAKERS: usize = 8;
/// Connections that never rest, by which it is taken how long all stand still.
const TALKERS: usize = 32;
const TALK_BYTES: u64 = 64;
const REST: Duration = Duration::from_millis(5);
/// How long they are looked at from an event on.
const LOOK: Duration = Duration::from_secs(1);

/// Both ends of a connection, and how far they have come.
struct Stream {
    client: TcpStream,
    far: TcpStream,
    seed: u64,
    place: u64,
}

impl Stream {
    /// Sends so many bytes there, and another number back.
    fn speak(&mut self, bytes: u64) {
        let mut got = vec![0; bytes as usize];
        for (mut from, mut to, seed) in
            [(&self.client, &self.far, self.seed), (&self.far, &self.client, !self.seed)]
        {
            from.write_all(&noise::bytes(seed, self.place, got.len())).unwrap();
            to.read_exact(&mut got).unwrap_or_else(|error| panic!("connection {}: {error}", self.seed));
            noise::check(seed, self.place, &got);
        }
        self.place += bytes;
    }
}

fn speak_all(streams: &mut [Stream], bytes: u64) {
    let each = streams.len().div_ceil(SPEAKERS).max(1);
    std::thread::scope(|scope| {
        for some in streams.chunks_mut(each) {
            scope.spawn(move || some.iter_mut().for_each(|stream| stream.speak(bytes)));
        }
    });
}

fn connect(bed: &Bed, listener: &TcpListener, seeds: std::ops::Range<usize>) -> Vec<Stream> {
    let address = listener.local_addr().unwrap();
    let pair = |seed: usize| {
        let client = TcpStream::connect(address).unwrap();
        let far = listener.accept().unwrap().0;
        for end in [&client, &far] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(PATIENCE)).unwrap();
            end.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        Stream { client, far, seed: seed as u64, place: 0 }
    };
    bed.client.run(|| seeds.map(pair).collect()).unwrap()
}

/// Talks until it shall end, and rests where it shall; the longest wait since it was last taken.
fn talk(stream: &mut Stream, longest_us: &AtomicU64, rests: &AtomicBool, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        if !rests.load(Ordering::Acquire) {
            let since = Instant::now();
            stream.speak(TALK_BYTES);
            longest_us.fetch_max(since.elapsed().as_micros() as u64, Ordering::AcqRel);
        }
        std::thread::sleep(REST);
    }
}

fn summary(service: &Service) -> Status {
    control::ask(&service.socket(), control::SUMMARY).unwrap()
}

fn wait_for(service: &Service, live: usize, what: &str, mut meanwhile: impl FnMut()) {
    let deadline = Instant::now() + PATIENCE;
    while summary(service).live != live {
        let status = summary(service);
        assert!(
            Instant::now() < deadline,
            "{what}: {} of {live}, {:?}\n{}",
            status.live,
            status.end_to_end,
            service.log()
        );
        meanwhile();
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn size(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |value| value.parse().unwrap())
}

/// Waits by kind of event, in microseconds.
#[derive(Default)]
struct Waits(Vec<(&'static str, Vec<u64>)>);

impl Waits {
    fn add(&mut self, kind: &'static str, waits: Vec<u64>) {
        match self.0.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, all)) => all.extend(waits),
            None => self.0.push((kind, waits)),
        }
    }

    fn tell(&mut self, connections: usize) {
        for (kind, waits) in &mut self.0 {
            waits.sort_unstable();
            let at = |share: usize| waits[(waits.len() * share / 100).min(waits.len() - 1)] as f64 / 1000.0;
            println!(
                "{connections} connections, {kind}: waits of {} talkers, ms: median {:.1}, p99 {:.1}, longest {:.1}",
                waits.len(),
                at(50),
                at(99),
                at(100)
            );
        }
    }
}

#[test]
fn living_connections_are_adopted_upgraded_killed_under_and_released_again_and_again() {
    let (connections, times) = (size("SOAK_CONNECTIONS", 200), size("SOAK_TIMES", 4));
    let bed = Bed::new("adopt");
    let listener = bed.listen();
    // Long enough that all are adopted still at the next event.
    let pause_s = 4 + connections / 1000 * 2;
    let mut service = Service::start(&bed, &format!("{FILE}release_after = '{pause_s}s'\n"));
    let mut streams = connect(&bed, &listener, 0..connections);
    let mut talkers = connect(&bed, &listener, connections..connections + TALKERS.min(connections));
    let all = streams.len() + talkers.len();
    let (rests, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let longest: Vec<AtomicU64> = talkers.iter().map(|_| AtomicU64::new(0)).collect();
    let mut waits = Waits::default();
    let (mut adopted, mut passed) = (0, 0);
    let mut count = |status: Status| {
        let EndToEndStatus { adopted: stepped_in, passed: stayed, .. } = status.end_to_end;
        adopted += stepped_in;
        passed += stayed.values().sum::<u64>();
    };
    std::thread::scope(|scope| {
        let (rests, is_over, longest) = (&rests, &is_over, &longest);
        for (talker, longest_us) in talkers.iter_mut().zip(longest) {
            scope.spawn(move || talk(talker, longest_us, rests, is_over));
        }
        let stop = StopOnDrop(is_over);
        let take = || longest.iter().map(|wait| wait.swap(0, Ordering::AcqRel)).collect::<Vec<_>>();
        for turn in 0..times {
            let began = Instant::now();
            rests.store(false, Ordering::Release);
            wait_for(&service, all, "adopted", || speak_all(&mut streams, STEP_BYTES));
            let stepped_in = began.elapsed();
            for event in ["nothing", "upgrade", "kill -9 and start"] {
                // Every other time all the others speak meanwhile.
                let is_loaded = turn % 2 == 1;
                take();
                std::thread::scope(|scope| {
                    let until = Instant::now() + LOOK;
                    let streams = &mut streams;
                    let load = scope.spawn(move || {
                        while is_loaded && Instant::now() < until {
                            speak_all(streams, STEP_BYTES);
                        }
                    });
                    // What the last relay did is told before it goes.
                    match event {
                        "upgrade" => {
                            count(summary(&service));
                            service.upgrade();
                        }
                        "kill -9 and start" => {
                            count(summary(&service));
                            service.kill_and_start();
                        }
                        _ => {}
                    }
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                    load.join().unwrap();
                });
                if !is_loaded {
                    waits.add(event, take());
                }
                wait_for(&service, all, "carried still", || {});
                speak_all(&mut streams, 1_000);
            }
            let events = began.elapsed();
            rests.store(true, Ordering::Release);
            wait_for(&service, 0, "released", || {});
            println!(
                "{turn}: {all} adopted within {:.1} s, released within {:.1} s",
                stepped_in.as_secs_f64(),
                (began.elapsed() - events).as_secs_f64()
            );
            // From end to end.
            speak_all(&mut streams, 1_000);
        }
        drop(stop);
    });
    count(summary(&service));
    waits.tell(all);
    println!("{all} connections: adopted {adopted} times and left, {passed} stayed end to end, none reset");
    assert_eq!(passed, 0, "known by their handshakes");
    assert_eq!(adopted, (all * times) as u64);
    assert_eq!(summary(&service).totals.reset, 0);
    drop((streams, talkers));
    service.end();
}

/// Raises a flag, also when the test fails: others on the scope's threads wait for it.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
