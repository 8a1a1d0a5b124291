//! TCP Vegas: a few segments in the queue, seen from the round-trip time.

use longfat_cc::{Algorithm, Controller, Observation, Tunables};
use proptest::prelude::*;

/// A bottleneck shared by nobody: `rate` segments per second, `base_us` of distance; what exceeds it queues.
struct Path {
    controller: Controller,
    now_us: u64,
    base_us: u32,
    rate: u32,
}

impl Path {
    fn new(tunables: Tunables, base_us: u32, rate: u32) -> Path {
        Path { controller: Controller::new(tunables), now_us: 1, base_us, rate }
    }

    /// One window is sent and acknowledged; each segment's round-trip time is that of a full window in flight.
    fn round_trip(&mut self) -> f64 {
        let window = self.controller.cwnd_segments();
        let full_us = u64::from(window) * 1_000_000 / u64::from(self.rate);
        let rtt_us = u32::try_from(full_us.max(u64::from(self.base_us))).unwrap();
        for _ in 0..window {
            self.now_us += u64::from(rtt_us) / u64::from(window);
            self.ack(rtt_us);
        }
        f64::from(window) * f64::from(rtt_us - self.base_us) / f64::from(rtt_us)
    }

    fn ack(&mut self, rtt_us: u32) {
        let window = self.controller.cwnd_segments();
        self.controller.observe(&Observation {
            now_us: self.now_us,
            flight_segments: window,
            max_flight_segments: window,
            is_cwnd_limited: true,
            srtt_us: rtt_us,
            min_rtt_us: self.base_us,
        });
        self.controller.on_rtt_sample(rtt_us);
        self.controller.on_ack(1);
    }
}

fn vegas<const N: usize>(settings: [&str; N]) -> Tunables {
    Tunables::from_settings(Algorithm::find("vegas").unwrap(), settings).unwrap()
}

#[test]
fn it_settles_with_alpha_to_beta_segments_in_the_queue_at_any_rate_and_distance() {
    for (base_us, rate) in [(1_000, 10_000), (10_000, 8_000), (100_000, 8_000), (300_000, 80_000)] {
        let mut path = Path::new(vegas([]), base_us, rate);
        (0..400).for_each(|_| _ = path.round_trip());
        let queued: Vec<f64> = (0..50).map(|_| path.round_trip()).collect();
        assert!(
            queued.iter().all(|queued| (1.0..=5.0).contains(queued)),
            "{base_us} us x {rate}/s: {queued:?}"
        );
    }
}

#[test]
fn alpha_and_beta_say_how_many() {
    let mut path = Path::new(vegas(["alpha_segments=20", "beta_segments=22"]), 50_000, 8_000);
    (0..600).for_each(|_| _ = path.round_trip());
    let queued = path.round_trip();
    assert!((19.0..=23.0).contains(&queued), "{queued}");
}

#[test]
fn slow_start_ends_by_itself_near_the_window_that_fills_the_path() {
    // 100,000 us x 8,000 / s: 800 segments.
    let mut path = Path::new(vegas([]), 100_000, 8_000);
    let mut rounds = 0;
    while path.controller.cwnd_segments() < path.controller.ssthresh_segments() {
        path.round_trip();
        rounds += 1;
        assert!(rounds < 40);
    }
    // Doubled every other round trip from 10.
    assert!((700..=900).contains(&path.controller.cwnd_segments()), "{}", path.controller.cwnd_segments());
    assert!(rounds <= 20, "{rounds}");
}

#[test]
fn it_gives_way_when_the_path_becomes_narrower_and_takes_more_when_it_widens() {
    let mut path = Path::new(vegas([]), 20_000, 8_000);
    (0..300).for_each(|_| _ = path.round_trip());
    for (rate, fills) in [(4_000, 80), (16_000, 320)] {
        path.rate = rate;
        (0..400).for_each(|_| _ = path.round_trip());
        let window = path.controller.cwnd_segments();
        assert!((fills + 1..=fills + 6).contains(&window), "{window} at {rate}/s");
    }
}

#[test]
fn without_round_trip_samples_it_is_reno() {
    let mut vegas = Controller::new(vegas([]));
    let mut reno = Controller::new(Tunables::defaults(Algorithm::find("reno").unwrap()));
    for controller in [&mut vegas, &mut reno] {
        controller.set_window(10, 40);
        (0..500).for_each(|_| controller.on_ack(1));
        controller.on_loss();
        controller.on_recovered();
        (0..500).for_each(|_| controller.on_ack(1));
    }
    assert_eq!(vegas.cwnd_segments(), reno.cwnd_segments());
}

#[test]
fn a_restart_begins_a_new_round_and_keeps_the_base_round_trip_time() {
    let mut path = Path::new(vegas([]), 20_000, 8_000);
    (0..300).for_each(|_| _ = path.round_trip());
    path.controller.on_restart();
    let window = path.controller.cwnd_segments();
    path.now_us += 5_000_000;
    path.ack(60_000);
    assert_eq!(path.controller.cwnd_segments(), window, "one sample is no round");
    // The queue is still judged against 20 ms: three times that means two thirds of the window are queued.
    for _ in 0..4 * window {
        path.now_us += 60_000 / u64::from(window);
        path.ack(60_000);
    }
    assert!(path.controller.cwnd_segments() < window, "{}", path.controller.cwnd_segments());
}

proptest! {
    #[test]
    fn whatever_is_measured_the_window_moves_by_one_a_round_in_congestion_avoidance(
        window in 2u32..1 << 20, samples in prop::collection::vec((1u32..10_000_000, 0u64..1_000_000), 1..100),
    ) {
        let mut path = Path::new(vegas([]), 1, 1);
        path.controller.set_window(window, 2);
        for (rtt_us, later_us) in samples {
            path.now_us += later_us;
            let before = path.controller.cwnd_segments();
            path.ack(rtt_us);
            let after = path.controller.cwnd_segments();
            prop_assert!(after >= 2 && before.abs_diff(after) <= 1);
            prop_assert!(path.controller.ssthresh_segments() <= before.max(2), "it stays in congestion avoidance");
        }
    }

    #[test]
    fn in_slow_start_the_window_never_falls_below_what_fills_the_path(
        window in 3u32..1 << 20, base_us in 1u32..1_000_000, queue_us in 0u32..10_000_000,
    ) {
        let mut path = Path::new(vegas([]), base_us, 1);
        path.controller.set_window(window, u32::MAX >> 1);
        path.controller.on_rtt_sample(base_us);
        for _ in 0..6 {
            path.now_us += u64::from(base_us + queue_us);
            path.ack(base_us + queue_us);
        }
        let fills = u64::from(window) * u64::from(base_us) / u64::from(base_us + queue_us);
        prop_assert!(u64::from(path.controller.cwnd_segments()) >= fills.max(2));
    }
}
