//! Available bandwidth from synthetic spacing: streams of `imtcp` through a first-come-first-served bottleneck with
//! cross traffic whose rate is known, acknowledged as receivers do: every so many segments, and in batches.

use longfat_cc::{Ack, Algorithm, Avail, Conn, Sending, State, Tunables};
use proptest::prelude::*;

const MSS_BYTES: u32 = 1448;
const PACKET_BITS: f64 = 12_000.0;
const CROSS_BITS: f64 = 10_000.0;

/// A bottleneck and what surrounds it.
#[derive(Debug, Clone, Copy)]
struct Path {
    capacity_mbps: f64,
    cross_mbps: f64,
    poisson: bool,
    rtt_us: u64,
    /// Segments per acknowledgement.
    ack_every: u32,
    /// Acknowledgements come only at multiples of this.
    batch_us: u64,
}

const PUBLISHED: Path = Path {
    capacity_mbps: 100.0,
    cross_mbps: 30.0,
    poisson: false,
    rtt_us: 30_000,
    ack_every: 2,
    batch_us: 1,
};

/// The bottleneck: when it is free again, and when the next packet of cross traffic comes.
struct Queue {
    path: Path,
    free_us: f64,
    cross_us: f64,
    random: u64,
}

impl Queue {
    fn new(path: Path) -> Queue {
        Queue { path, free_us: 0.0, cross_us: 0.0, random: 88_172_645_463_325_252 }
    }

    /// Uniform in (0, 1]: xorshift.
    fn uniform(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    fn cross_until(&mut self, now_us: f64) {
        while self.path.cross_mbps > 0.0 && self.cross_us <= now_us {
            self.free_us = self.free_us.max(self.cross_us) + CROSS_BITS / self.path.capacity_mbps;
            let mean_us = CROSS_BITS / self.path.cross_mbps;
            self.cross_us += if self.path.poisson { -self.uniform().ln() * mean_us } else { mean_us };
        }
    }

    /// When a packet that comes now has left.
    fn pass(&mut self, now_us: f64) -> f64 {
        self.cross_until(now_us);
        self.free_us = self.free_us.max(now_us) + PACKET_BITS / self.path.capacity_mbps;
        self.free_us
    }
}

/// An acknowledgement on its way.
struct Coming {
    at_us: u64,
    /// Up to where it acknowledges.
    una_seq: u32,
    /// When what it acknowledges last left.
    sent_us: u64,
}

/// Which of an acknowledgement's callbacks comes first: Linux 6.18 has the sample first, the simulator the
/// acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    SampleFirst,
    SeenFirst,
}

/// A sender that only ever sends streams, or fills a window, and its receiver.
struct Bench {
    queue: Queue,
    tunables: Tunables,
    conn: Conn,
    state: State,
    next_seq: u32,
    una_seq: u32,
    acks: std::collections::VecDeque<Coming>,
    segments: u32,
    now_us: u64,
    /// Pacing lets the next burst leave.
    paced_us: u64,
}

impl Bench {
    fn new(path: Path, settings: &[&str]) -> Bench {
        Bench::of("imtcp", path, settings)
    }

    fn of(algorithm: &str, path: Path, settings: &[&str]) -> Bench {
        let tunables = Tunables::from_settings(Algorithm::find(algorithm).unwrap(), settings).unwrap();
        let mut bench = Bench {
            queue: Queue::new(path),
            tunables,
            conn: Conn {
                cwnd_segments: 400,
                srtt_us: path.rtt_us as u32,
                mss_bytes: MSS_BYTES,
                ..Conn::default()
            },
            state: State::default(),
            // A sequence number wraps early on.
            next_seq: u32::MAX - 200_000,
            una_seq: u32::MAX - 200_000,
            acks: std::collections::VecDeque::new(),
            segments: 0,
            now_us: 1_000_000,
            paced_us: 0,
        };
        bench.tunables.algorithm().init(&mut bench.conn, &mut bench.state, &bench.tunables);
        bench
    }

    fn sending(&self) -> Sending {
        Sending {
            pacing_bytes_per_s: 10_000_000,
            next_seq: self.next_seq,
            una_seq: self.una_seq,
            unsent_bytes: 10_000_000,
            packet_bytes: 1500,
            burst_segments: 8,
            repair_segments: 0,
        }
    }

    /// Goes on by itself after acknowledgements from elsewhere ([`Acks`]): nothing is in flight.
    fn settle(&mut self) {
        self.conn.flight_segments = 0;
        self.next_seq = self.una_seq;
        self.now_us = self.conn.now_us;
    }

    fn deliver(&mut self, until_us: u64) {
        while let Some(ack) = self.acks.pop_front_if(|ack| ack.at_us <= until_us) {
            self.conn.now_us = ack.at_us;
            self.una_seq = ack.una_seq;
            let sending = self.sending();
            self.tunables.algorithm().on_ack_seen(&mut self.conn, &mut self.state, &self.tunables, &sending);
            assert_eq!(self.conn.cwnd_segments, 400, "an acknowledgement finds the real window");
        }
    }

    /// Acknowledges, at this time, data that came 40 ms ago or earlier.
    fn delayed_ack(&mut self, now_us: u64) {
        let due_us = self.queue.free_us as u64 + self.queue.path.rtt_us + 40_000;
        if self.acks.is_empty() && self.una_seq != self.next_seq && now_us > due_us {
            self.acks.push_back(Coming { at_us: now_us, una_seq: self.next_seq, sent_us: now_us });
            self.segments = 0;
        }
    }

    fn send_unit(&mut self, now_us: u64, segments: u32) {
        let Path { rtt_us, ack_every, batch_us, .. } = self.queue.path;
        for _ in 0..segments {
            let left_us = self.queue.pass(now_us as f64);
            self.next_seq = self.next_seq.wrapping_add(MSS_BYTES);
            self.segments += 1;
            if self.segments.is_multiple_of(ack_every) {
                let at_us = (left_us as u64 + rtt_us).next_multiple_of(batch_us);
                self.acks.push_back(Coming { at_us, una_seq: self.next_seq, sent_us: now_us });
            }
        }
    }

    /// Always has something to send, as much as its window and pacing let it, for so long. What is known then.
    fn fill(&mut self, for_ms: u64, order: Order) -> Avail {
        for _ in 0..for_ms * 10 {
            self.now_us += 100;
            while let Some(ack) = self.acks.pop_front_if(|ack| ack.at_us <= self.now_us) {
                self.acknowledge(&ack, order);
            }
            if self.now_us >= self.paced_us {
                self.send_paced();
            }
        }
        self.state.avail()
    }

    fn acknowledge(&mut self, ack: &Coming, order: Order) {
        let algorithm = self.tunables.algorithm();
        let rtt_us = (ack.at_us - ack.sent_us) as u32;
        self.conn.now_us = ack.at_us;
        self.conn.srtt_us = (self.conn.srtt_us * 7 + rtt_us) / 8;
        self.una_seq = ack.una_seq;
        self.conn.flight_segments = self.next_seq.wrapping_sub(self.una_seq) / MSS_BYTES;
        let sending = self.sending();
        if order == Order::SampleFirst {
            algorithm.on_rtt_sample(&mut self.conn, &mut self.state, &self.tunables, rtt_us);
        }
        algorithm.on_ack_seen(&mut self.conn, &mut self.state, &self.tunables, &sending);
        if order == Order::SeenFirst {
            algorithm.on_rtt_sample(&mut self.conn, &mut self.state, &self.tunables, rtt_us);
        }
    }

    fn send_paced(&mut self) {
        self.conn.now_us = self.now_us;
        self.conn.flight_segments = self.next_seq.wrapping_sub(self.una_seq) / MSS_BYTES;
        let window_bytes = u64::from(self.conn.cwnd_segments * MSS_BYTES);
        let own = window_bytes * 1_200_000 / u64::from(self.conn.srtt_us);
        let mut sending = Sending { pacing_bytes_per_s: own, burst_segments: 2, ..self.sending() };
        let algorithm = self.tunables.algorithm();
        let unit = algorithm.on_send(&mut self.conn, &mut self.state, &self.tunables, &mut sending);
        let unit = if sending.pacing_bytes_per_s == own { 2 } else { unit.unwrap() };
        let segments = unit.min(self.conn.cwnd_segments.saturating_sub(self.conn.flight_segments));
        self.send_unit(self.now_us, segments);
        self.paced_us =
            self.now_us + u64::from(segments * MSS_BYTES) * 1_000_000 / sending.pacing_bytes_per_s;
    }

    /// What is known at the end of each of `count` streams.
    fn run(&mut self, count: usize) -> Vec<Avail> {
        let (mut now_us, mut found) = (self.now_us, Vec::new());
        while found.len() < count {
            assert!(now_us < 3_600_000_000, "no streams: {:?}", self.state.avail());
            self.delayed_ack(now_us);
            self.deliver(now_us);
            let before = self.state.avail();
            self.conn.now_us = now_us;
            let mut sending = self.sending();
            let own = sending.pacing_bytes_per_s;
            let unit = self.tunables.algorithm().on_send(
                &mut self.conn,
                &mut self.state,
                &self.tunables,
                &mut sending,
            );
            if sending.pacing_bytes_per_s == own {
                now_us += 1000;
            } else {
                let unit = unit.unwrap();
                assert!(unit.is_multiple_of(2) && self.conn.cwnd_segments == unit);
                let at_once = (sending.pacing_bytes_per_s >> 10).min(65_536) as u32 / MSS_BYTES;
                assert!(unit >= at_once, "TCP holds back {unit} segments where it sends {at_once} at once");
                self.send_unit(now_us, unit);
                now_us += u64::from(unit * MSS_BYTES) * 1_000_000 / sending.pacing_bytes_per_s;
            }
            let after = self.state.avail();
            assert_eq!(
                (before.results, before.rejected),
                (after.results, after.rejected),
                "a send has no result"
            );
            if found
                .last()
                .is_none_or(|last: &Avail| last.results + last.rejected < after.results + after.rejected)
            {
                found.push(after);
            }
        }
        self.now_us = now_us;
        found
    }
}

/// A background transfer that has carried more than it measured, round trip after round trip without a queue.
fn carrying() -> Bench {
    let mut bench = Bench::of("imtcp_bg", PUBLISHED, &[]);
    bench.run(20);
    let algorithm = bench.tunables.algorithm();
    for _ in 0..100 {
        bench.conn.now_us += PUBLISHED.rtt_us + 1;
        bench.conn.flight_segments = bench.conn.cwnd_segments;
        let mut sending = Sending { unsent_bytes: 0, ..bench.sending() };
        algorithm.on_send(&mut bench.conn, &mut bench.state, &bench.tunables, &mut sending);
        algorithm.on_rtt_sample(&mut bench.conn, &mut bench.state, &bench.tunables, PUBLISHED.rtt_us as u32);
        let ack = Ack { acked_segments: bench.conn.cwnd_segments };
        algorithm.on_ack(&mut bench.conn, &mut bench.state, &bench.tunables, &ack);
    }
    bench
}

/// The window of such a transfer after a pause and one more acknowledgement; a segment was sent before it into an empty
/// path, if `restarts`.
fn window_after(pause_us: u64, restarts: bool) -> u32 {
    let mut bench = carrying();
    let algorithm = bench.tunables.algorithm();
    bench.conn.now_us += pause_us;
    bench.conn.flight_segments = 0;
    if restarts {
        algorithm.on_restart(&mut bench.conn, &mut bench.state, &bench.tunables);
    }
    let ack = Ack { acked_segments: 1 };
    algorithm.on_ack(&mut bench.conn, &mut bench.state, &bench.tunables, &ack);
    bench.conn.cwnd_segments
}

#[test]
fn after_a_pause_a_background_transfer_keeps_to_what_it_measured_and_forgets_what_it_carried() {
    assert_eq!(window_after(0, true), window_after(0, false));
    let (forgets, keeps) = (window_after(HOUR_US, true), window_after(HOUR_US, false));
    assert!(forgets < keeps, "{forgets} segments after a pause, {keeps} before");
}

/// Mean error of the last half in parts of the capacity.
fn error(path: Path, settings: &[&str], streams: usize) -> f64 {
    let found = Bench::new(path, settings).run(streams);
    let truth = (path.capacity_mbps - path.cross_mbps) * 1000.0;
    let errors = found[streams / 2..].iter().map(|avail| (f64::from(avail.avail_kbps) - truth).abs());
    errors.sum::<f64>() / (streams - streams / 2) as f64 / (path.capacity_mbps * 1000.0)
}

#[test]
fn constant_cross_traffic_is_measured_to_a_sixtieth_of_the_capacity() {
    for cross_mbps in [0.0, 30.0, 60.0, 70.0, 85.0] {
        let error = error(Path { cross_mbps, ..PUBLISHED }, &[], 60);
        assert!(error < 1.0 / 60.0, "{cross_mbps}: {error}");
    }
}

#[test]
fn poisson_cross_traffic_is_measured_to_three_hundredths() {
    for cross_mbps in [30.0, 60.0, 70.0] {
        let error = error(Path { cross_mbps, poisson: true, ..PUBLISHED }, &[], 400);
        assert!(error < 0.03, "{cross_mbps}: {error}");
    }
}

#[test]
fn acknowledgements_of_four_segments_or_in_batches_of_a_millisecond_do_not_mislead() {
    for (ack_every, batch_us) in [(3, 1), (4, 1), (2, 300), (2, 1000), (8, 100)] {
        let error = error(Path { ack_every, batch_us, ..PUBLISHED }, &[], 100);
        assert!(error < 0.03, "every {ack_every}, batches of {batch_us} us: {error}");
    }
}

#[test]
fn the_published_search_finds_constant_cross_traffic_to_five_hundredths() {
    for cross_mbps in [30.0, 60.0, 70.0] {
        let error = error(Path { cross_mbps, ..PUBLISHED }, &["estimator=1"], 400);
        assert!(error < 0.05, "{cross_mbps}: {error}");
    }
}

#[test]
fn a_search_that_comes_down_to_nothing_does_not_stop_the_connection() {
    for setting in ["estimator=0", "estimator=1"] {
        let tunables = Tunables::from_settings(Algorithm::find("imtcp").unwrap(), [setting]).unwrap();
        // Every word of the state is 1: a stream is leaving, at a rate of 1 kbit/s.
        let mut state = State([0x0000_0001_0000_0001; longfat_cc::STATE_BYTES / 8]);
        let mut conn = Conn {
            now_us: 0x0000_0001_0000_1000,
            cwnd_segments: 400,
            srtt_us: 30_000,
            mss_bytes: MSS_BYTES,
            ..Conn::default()
        };
        let mut sending = Sending {
            pacing_bytes_per_s: 10_000_000,
            next_seq: 2,
            una_seq: 2,
            unsent_bytes: 10_000_000,
            packet_bytes: 1500,
            burst_segments: 8,
            repair_segments: 0,
        };
        tunables.algorithm().on_send(&mut conn, &mut state, &tunables, &mut sending);
        assert_ne!(sending.pacing_bytes_per_s, 10_000_000, "the stream sets the rate");
        let gap_us = u64::from(MSS_BYTES) * 1_000_000 / sending.pacing_bytes_per_s;
        assert!(gap_us < 152_000, "nothing is sent for {gap_us} us");
    }
}

#[test]
fn a_step_is_followed_within_a_second_of_streams() {
    for (from, to) in [(30.0, 70.0), (70.0, 60.0), (10.0, 80.0), (80.0, 10.0)] {
        let mut bench = Bench::new(Path { cross_mbps: from, ..PUBLISHED }, &[]);
        bench.run(60);
        bench.queue.path.cross_mbps = to;
        // As many as round trips of 30 ms in a second.
        let before = bench.state.avail().results;
        let after = bench.run(33);
        let last = after.last().unwrap();
        assert!(last.results > before);
        let error = (f64::from(last.avail_kbps) / 1000.0 - (100.0 - to)).abs();
        assert!(error < 5.0, "{from} to {to}: {last:?}");
    }
}

#[test]
fn a_first_train_that_was_far_too_slow_is_left_behind_within_thirty_streams() {
    let mut bench = Bench::new(Path { capacity_mbps: 1000.0, cross_mbps: 500.0, ..PUBLISHED }, &[]);
    // As with a small window: a train of 19 Mbit/s on a path of 1 Gbit/s.
    bench.conn.srtt_us = 4_000_000;
    let first = bench.run(2)[1];
    assert!(first.results == 1 && first.avail_kbps < 30_000, "{first:?}");
    bench.conn.srtt_us = 30_000;
    let last = *bench.run(30).last().unwrap();
    assert!(last.avail_kbps.abs_diff(500_000) < 100_000, "{last:?}");
}

#[test]
fn streams_that_meet_bursts_longer_than_themselves_are_trusted_less() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    let calm = bench.run(60).last().unwrap().confidence_permille;
    // Cross traffic comes and goes from stream to stream, with the same mean.
    for round in 0..60 {
        bench.queue.path.cross_mbps = if round % 2 == 0 { 60.0 } else { 1.0 };
        bench.run(2);
    }
    let bursty = bench.state.avail().confidence_permille;
    assert!(bursty < 650 && bursty + 300 < calm, "{calm} and {bursty}");
}

#[test]
fn confidence_comes_with_results_and_goes_with_losses() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    let found = bench.run(40);
    assert_eq!(found[0].confidence_permille, 0);
    assert!(found[39].confidence_permille > 700, "{:?}", found[39]);
    let before = bench.state.avail();
    for _ in 0..30 {
        bench.deliver(u64::MAX);
        bench.conn.now_us += 100_000;
        let mut lossy = Sending { repair_segments: 0, ..bench.sending() };
        let algorithm = bench.tunables.algorithm();
        algorithm.on_send(&mut bench.conn, &mut bench.state, &bench.tunables, &mut lossy);
        let seen = Sending { repair_segments: 1, ..bench.sending() };
        algorithm.on_ack_seen(&mut bench.conn, &mut bench.state, &bench.tunables, &seen);
    }
    let after = bench.state.avail();
    assert_eq!(after.rejected, before.rejected + 30);
    assert_eq!((after.results, after.avail_kbps), (before.results, before.avail_kbps));
    assert!(after.confidence_permille < 250, "{after:?}");
}

/// Acknowledgements of two segments.
#[derive(Clone, Copy)]
struct Acks {
    count: u32,
    every_us: u64,
    rtt_us: u32,
    flight_segments: u32,
    repair_segments: u32,
    /// Pause before the second half, in microseconds.
    pause_us: u64,
}

impl Acks {
    /// A connection that uses its window up and sees a queue of 20 ms, or none: 23.2 Mbit/s, 24 with headers.
    const FULL: Acks = Acks {
        count: 1_000,
        every_us: 1_000,
        rtt_us: 50_000,
        flight_segments: 400,
        repair_segments: 0,
        pause_us: 0,
    };
    const CALM: Acks = Acks { count: 1, rtt_us: 30_000, ..Acks::FULL };

    fn run(self, bench: &mut Bench) {
        let algorithm = bench.tunables.algorithm();
        bench.conn.srtt_us = self.rtt_us;
        bench.conn.flight_segments = self.flight_segments;
        for ack in 0..self.count {
            bench.conn.now_us += self.every_us + if ack == self.count / 2 { self.pause_us } else { 0 };
            bench.una_seq = bench.una_seq.wrapping_add(2 * MSS_BYTES);
            let mut sending =
                Sending { repair_segments: self.repair_segments, unsent_bytes: 0, ..bench.sending() };
            algorithm.on_ack_seen(&mut bench.conn, &mut bench.state, &bench.tunables, &sending);
            algorithm.on_rtt_sample(&mut bench.conn, &mut bench.state, &bench.tunables, self.rtt_us);
            algorithm.on_send(&mut bench.conn, &mut bench.state, &bench.tunables, &mut sending);
        }
    }

    /// What is known after them, of a path of 30 ms.
    fn known(self) -> Avail {
        let mut bench = Bench::new(PUBLISHED, &[]);
        bench.run(60);
        Acks::CALM.run(&mut bench);
        self.run(&mut bench);
        bench.state.avail()
    }
}

#[test]
fn what_a_full_path_lets_through_is_what_is_free() {
    let measured = f64::from(Acks::CALM.known().avail_kbps);
    assert!((measured - 70_000.0).abs() < 5_000.0, "{measured}");
    let full = f64::from(Acks::FULL.known().avail_kbps);
    assert!((full - 24_000.0).abs() < 500.0, "{full}");
    for (acks, why) in [
        (Acks { rtt_us: 31_000, ..Acks::FULL }, "a path without a queue is not full"),
        (Acks { count: 200, ..Acks::FULL }, "a burst does not fill it"),
        (Acks { flight_segments: 100, ..Acks::FULL }, "a trickle does not, whose answers come late"),
        (Acks { repair_segments: 1, ..Acks::FULL }, "where segments get lost nobody knows"),
        (Acks { count: 400, pause_us: 10_000_000, ..Acks::FULL }, "nor after a pause"),
    ] {
        assert_eq!(f64::from(acks.known().avail_kbps), measured, "{why}");
    }
}

#[test]
fn a_path_that_has_become_longer_is_full_no_more_when_its_round_trip_time_is_known() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    bench.run(60);
    Acks::CALM.run(&mut bench);
    let longer = Acks { count: 121_000, ..Acks::FULL };
    longer.run(&mut bench);
    let before = bench.state.avail();
    longer.run(&mut bench);
    assert_eq!(bench.state.avail(), before);
}

/// A connection that its window bounds to 20 Mbit/s over 60 ms, on a path that has 98 of 100 Mbit/s free.
fn bounded(rtt_us: u64) -> Bench {
    let mut bench = Bench::new(Path { cross_mbps: 2.0, rtt_us, ..PUBLISHED }, &[]);
    bench.conn.cwnd_segments = 100;
    bench
}

#[test]
fn a_path_that_has_become_longer_is_full_no_more_when_streams_pass_unstretched() {
    for order in [Order::SampleFirst, Order::SeenFirst] {
        let mut bench = bounded(30_000);
        let before = bench.fill(5_000, order);
        assert!(before.avail_kbps.abs_diff(98_000) < 5_000, "{order:?}: {before:?}");
        bench.queue.path.rtt_us = 60_000;
        for second in 1..=60 {
            let after = bench.fill(1_000, order);
            let off_kbps = after.avail_kbps.abs_diff(98_000);
            assert!(second < 5 || off_kbps < 10_000, "{order:?}, {second} s: {after:?}");
        }
    }
}

#[test]
fn a_queue_on_the_way_back_that_comes_and_goes_misleads_for_less_than_half_of_the_time() {
    let mut wrong_ms = 0;
    for half_ms in [1_100, 2_300, 4_300, 7_900] {
        let mut bench = bounded(30_000);
        bench.fill(5_000, Order::SampleFirst);
        for tick in 0..600 {
            bench.queue.path.rtt_us = if tick * 100 / half_ms % 2 == 0 { 60_000 } else { 30_000 };
            let found = bench.fill(100, Order::SampleFirst);
            wrong_ms += if found.avail_kbps.abs_diff(98_000) < 10_000 { 0 } else { 100 };
        }
    }
    assert!(wrong_ms < 120_000, "{wrong_ms} ms of four minutes");
}

const HOUR_US: u64 = 3_600_000_000;

#[test]
fn after_an_idle_hour_a_path_that_has_become_longer_is_not_full() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    bench.run(60);
    Acks::CALM.run(&mut bench);
    bench.conn.now_us += HOUR_US;
    let before = bench.state.avail();
    Acks::FULL.run(&mut bench);
    assert_eq!(bench.state.avail(), before);
}

#[test]
fn after_an_idle_hour_a_background_transfer_gives_way_to_no_path_that_has_become_longer() {
    let mut bench = carrying();
    bench.conn.now_us += HOUR_US;
    let before = bench.conn.cwnd_segments;
    let algorithm = bench.tunables.algorithm();
    bench.conn.srtt_us = 60_000;
    for _ in 0..10 {
        bench.conn.now_us += 60_001;
        algorithm.on_rtt_sample(&mut bench.conn, &mut bench.state, &bench.tunables, 60_000);
        let ack = Ack { acked_segments: 0 };
        algorithm.on_ack(&mut bench.conn, &mut bench.state, &bench.tunables, &ack);
    }
    assert_eq!(bench.conn.cwnd_segments, before);
}

#[test]
fn a_path_is_not_full_at_once_after_a_pause() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    bench.run(60);
    Acks::CALM.run(&mut bench);
    Acks { count: 1, ..Acks::FULL }.run(&mut bench);
    bench.conn.now_us += 10_000_000;
    let before = bench.state.avail();
    let algorithm = bench.tunables.algorithm();
    algorithm.on_restart(&mut bench.conn, &mut bench.state, &bench.tunables);
    let mut fills = Sending { unsent_bytes: 0, ..bench.sending() };
    algorithm.on_send(&mut bench.conn, &mut bench.state, &bench.tunables, &mut fills);
    Acks { count: 200, ..Acks::FULL }.run(&mut bench);
    assert_eq!(bench.state.avail(), before);
}

#[test]
fn while_the_path_is_full_streams_are_few_once_they_have_told_the_capacity() {
    let leaves_after = |streams: usize| {
        let mut bench = Bench::new(PUBLISHED, &[]);
        bench.run(streams);
        Acks::CALM.run(&mut bench);
        // Long enough for a stream that was under way to be given up.
        Acks { count: 1_200, ..Acks::FULL }.run(&mut bench);
        bench.conn.flight_segments = bench.conn.cwnd_segments - 1;
        let mut sending = bench.sending();
        let own = sending.pacing_bytes_per_s;
        let algorithm = bench.tunables.algorithm();
        algorithm.on_send(&mut bench.conn, &mut bench.state, &bench.tunables, &mut sending);
        sending.pacing_bytes_per_s != own
    };
    assert!(leaves_after(2), "after the first train");
    assert!(!leaves_after(60), "after sixty streams");
}

#[test]
fn the_deviation_of_what_a_full_path_lets_through_is_that_of_its_round_trips() {
    for part in [0.04, 0.08, 0.16] {
        let mut bench = Bench::new(PUBLISHED, &[]);
        bench.run(60);
        Acks::CALM.run(&mut bench);
        let mut rounds = Vec::new();
        for _ in 0..600 {
            // Uniform, of this deviation: 24 Mbit/s on average.
            let rate = 1.0 + part * (bench.queue.uniform() - 0.5) * 12f64.sqrt();
            let every_us = (1000.0 / rate) as u64;
            Acks { count: 50_000u64.div_ceil(every_us) as u32, every_us, ..Acks::FULL }.run(&mut bench);
            rounds.push(bench.state.avail());
        }
        let count = (rounds.len() - 100) as f64;
        let mean = |of: &dyn Fn(&Avail) -> f64| rounds[100..].iter().map(of).sum::<f64>() / count;
        let mean_kbps = mean(&|found| f64::from(found.avail_kbps));
        let real = mean(&|found| (f64::from(found.avail_kbps) - mean_kbps).powi(2)).sqrt();
        let said = mean(&|found| f64::from(found.deviation_kbps));
        assert!((0.7..1.5).contains(&(said / real)), "{part}: {said} said, {real} kbit/s in truth");
    }
}

#[test]
fn round_trips_before_the_first_stream_are_no_doubt() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    Acks::CALM.run(&mut bench);
    Acks::FULL.run(&mut bench);
    bench.settle();
    let found = *bench.run(20).last().unwrap();
    assert!(found.confidence_permille > 500, "{found:?}");
    Acks::CALM.run(&mut bench);
    Acks { count: 400, ..Acks::FULL }.run(&mut bench);
    let doubtful = bench.state.avail();
    let lost = found.confidence_permille.saturating_sub(doubtful.confidence_permille);
    assert!(doubtful.at_us > found.at_us && lost < 400, "{found:?}, {doubtful:?}");
}

#[test]
fn rates_of_a_full_path_that_spread_are_trusted_less() {
    let confidence = |other_us: u64| {
        let mut bench = Bench::new(PUBLISHED, &[]);
        bench.run(60);
        Acks::CALM.run(&mut bench);
        for round in 0..80 {
            let every_us = if round % 2 == 0 { 1_000 } else { other_us };
            Acks { count: (150_000 / every_us) as u32, every_us, ..Acks::FULL }.run(&mut bench);
        }
        bench.state.avail().confidence_permille
    };
    let (even, bursty) = (confidence(1_000), confidence(250));
    assert!(even > 700 && bursty + 300 < even, "{even} and {bursty}");
}

#[test]
fn a_stream_does_not_take_back_the_doubt_of_a_full_path_and_many_do() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    bench.run(60);
    Acks::CALM.run(&mut bench);
    for round in 0..80 {
        let every_us = if round % 2 == 0 { 1_000 } else { 250 };
        Acks { count: (150_000 / every_us) as u32, every_us, ..Acks::FULL }.run(&mut bench);
    }
    let bursty = bench.state.avail();
    bench.settle();
    let streams = bench.run(120);
    let first = streams.iter().find(|found| found.results > bursty.results).unwrap();
    assert!(first.confidence_permille < bursty.confidence_permille + 150, "{bursty:?} and {first:?}");
    assert!(streams[119].confidence_permille > 700, "{:?}", streams[119]);
}

#[test]
fn no_stream_leaves_in_recovery_or_without_enough_to_send_or_from_a_small_window() {
    let leaves = |change: &dyn Fn(&mut Conn, &mut Sending)| {
        let mut bench = Bench::new(PUBLISHED, &[]);
        let mut sending = bench.sending();
        bench.conn.now_us = 1;
        change(&mut bench.conn, &mut sending);
        let own = sending.pacing_bytes_per_s;
        let algorithm = bench.tunables.algorithm();
        algorithm.on_send(&mut bench.conn, &mut bench.state, &bench.tunables, &mut sending);
        sending.pacing_bytes_per_s != own
    };
    assert!(leaves(&|_, _| {}));
    assert!(!leaves(&|conn, _| conn.ca_state = longfat_cc::RECOVERY));
    assert!(!leaves(&|conn, _| conn.cwnd_segments = 15));
    assert!(!leaves(&|conn, _| conn.srtt_us = 0));
    assert!(!leaves(&|conn, _| conn.flight_segments = 400));
    assert!(!leaves(&|_, sending| sending.repair_segments = 1));
    assert!(!leaves(&|_, sending| sending.unsent_bytes = 8 * 8 * MSS_BYTES - 1));
}

#[test]
fn a_timeout_within_a_stream_counts_the_real_window() {
    let mut bench = Bench::new(PUBLISHED, &[]);
    let mut sending = bench.sending();
    let algorithm = bench.tunables.algorithm();
    bench.conn.now_us = 1;
    algorithm.on_send(&mut bench.conn, &mut bench.state, &bench.tunables, &mut sending);
    assert!(bench.conn.cwnd_segments < 400);
    assert_eq!(algorithm.ssthresh(&mut bench.conn, &mut bench.state, &bench.tunables), 200);
    bench.conn.cwnd_segments = 1;
    algorithm.on_ack_seen(&mut bench.conn, &mut bench.state, &bench.tunables, &sending);
    assert_eq!(bench.conn.cwnd_segments, 1, "what the timeout set stays");
    assert_eq!(algorithm.undo_cwnd(&mut bench.conn, &mut bench.state, &bench.tunables), 400);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_path_of_even_cross_traffic_is_measured_to_a_twentieth(
        capacity_mbps in 10.0f64..1000.0, busy in 0.0f64..0.9, rtt_us in 5_000u64..200_000,
    ) {
        // Streams of this window, eight segments at once, take a second where there is less.
        prop_assume!(capacity_mbps * (1.0 - busy) > 1.5);
        let path = Path { capacity_mbps, cross_mbps: capacity_mbps * busy, rtt_us, ..PUBLISHED };
        let error = error(path, &[], 120);
        prop_assert!(error < 0.05, "{}", error);
    }

    #[test]
    fn whatever_the_callbacks_say_the_window_stays_sound_and_the_answer_a_number(
        calls in prop::collection::vec((0u8..6, any::<u32>(), any::<u32>(), any::<u32>()), 1..300),
        words in prop::collection::vec(any::<u64>(), longfat_cc::STATE_BYTES / 8), estimator in 0u32..2,
    ) {
        let setting = format!("estimator={estimator}");
        let tunables = Tunables::from_settings(Algorithm::find("imtcp").unwrap(), [setting]).unwrap();
        let mut conn = Conn { srtt_us: 30_000, ..Conn::default() };
        let mut state = State(words.try_into().unwrap());
        // Until it is first told.
        let garbled = state.avail().confidence_permille;
        for (call, a, b, c) in calls {
            conn.now_us = conn.now_us.wrapping_add(u64::from(a % 100_000));
            conn.flight_segments = b % 1000;
            let mut sending = Sending {
                pacing_bytes_per_s: u64::from(c), next_seq: b, una_seq: a, unsent_bytes: c,
                packet_bytes: a % 2000, burst_segments: b, repair_segments: u32::from(c % 7 == 0),
            };
            match call {
                0 => { tunables.algorithm().on_send(&mut conn, &mut state, &tunables, &mut sending); }
                1 => tunables.algorithm().on_ack_seen(&mut conn, &mut state, &tunables, &sending),
                2 => { tunables.algorithm().ssthresh(&mut conn, &mut state, &tunables); }
                3 => tunables.algorithm().on_rtt_sample(&mut conn, &mut state, &tunables, c.max(1)),
                4 => tunables.algorithm().on_restart(&mut conn, &mut state, &tunables),
                _ => conn.cwnd_segments = b % 5000 + 1,
            }
            prop_assert!(conn.cwnd_segments >= 1 && conn.cwnd_segments <= longfat_cc::WINDOW_MAX);
            let confidence = state.avail().confidence_permille;
            prop_assert!(confidence <= 1000 || confidence == garbled, "{}", confidence);
        }
    }
}
