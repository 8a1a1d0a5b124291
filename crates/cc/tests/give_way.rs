//! A download held back by its receiver's window: what it is told to do, and that it holds on a modelled path.

#[path = "give_way/path.rs"]
mod path;

use longfat_cc::receive::{Arrival, GiveWay, LOW, START, STEADY, timestamps};
use path::{Flow, MSS_BYTES, Path};
use proptest::prelude::*;

const PATH: Path = Path { rate_bps: 50_000_000, rtt_us: 30_000, queue_us: 30_000 };

/// Bytes that arrived of each flow in the last `for_s` of `seconds`, as a share of what the path carries.
fn shares(path: Path, flows: &[Flow], seconds: u64, for_s: u64) -> Vec<f64> {
    let seen = path.run(flows, seconds * 1_000_000, (seconds - for_s) * 1_000_000);
    let whole = path.rate_bps as f64 / 8.0 * for_s as f64;
    seen.iter().map(|flow| flow.bytes as f64 / whole).collect()
}

#[test]
fn alone_it_takes_most_of_the_path_and_keeps_the_queue_short() {
    for (rate_bps, rtt_us) in
        [(5_000_000, 20_000), (50_000_000, 30_000), (50_000_000, 1_000), (200_000_000, 100_000)]
    {
        let path = Path { rate_bps, rtt_us, queue_us: 100_000 };
        let seen = path.run(&[Flow::background(0)], 30_000_000, 5_000_000).remove(0);
        let share = seen.bytes as f64 * 8.0 / 25.0 / rate_bps as f64;
        assert!(share >= 0.85, "{path:?}: {share}");
        // The target, and what a step of growth overshoots it by.
        assert!(seen.queue_us() < 6_000 + rtt_us / 10, "{path:?}: {} us", seen.queue_us());
        assert_eq!(seen.dropped, 0, "{path:?}");
    }
}

#[test]
fn a_sender_that_fills_the_queue_keeps_what_it_had_alone() {
    let alone = shares(PATH, &[Flow::foreground(0)], 60, 40)[0];
    let second = shares(PATH, &[Flow::foreground(0), Flow::foreground(0)], 60, 40)[0];
    for (foreground_s, background_s) in [(5, 0), (0, 5)] {
        let flows = [Flow::foreground(foreground_s), Flow::background(background_s)];
        let beside = shares(PATH, &flows, 60, 40);
        assert!(beside[0] >= 0.95 * alone, "{beside:?} beside, {alone} alone, {flows:?}");
        assert!(beside[0] > 1.3 * second, "{beside:?} beside, {second} beside a plain download");
    }
}

#[test]
fn it_comes_back_when_the_foreground_has_ended() {
    let flows = [Flow::background(0), Flow { until_us: 20_000_000, ..Flow::foreground(2) }];
    assert!(shares(PATH, &flows, 40, 15)[0] >= 0.8);
}

#[test]
fn two_share_the_path_evenly_though_one_began_later() {
    let shares = shares(PATH, &[Flow::background(0), Flow::background(7)], 120, 60);
    let (more, less) = (shares[0].max(shares[1]), shares[0].min(shares[1]));
    assert!(more / less < 3.0 && more + less > 0.8, "{shares:?}");
}

#[test]
fn a_queue_shorter_than_the_target_is_learned_from_its_losses() {
    let path = Path { queue_us: 6_000, ..PATH };
    let seen = path.run(&[Flow::background(0)], 30_000_000, 5_000_000).remove(0);
    let plain = path.run(&[Flow::foreground(0)], 30_000_000, 5_000_000).remove(0);
    assert!(
        seen.dropped < plain.dropped.max(1),
        "{} lost, {} by a plain download",
        seen.dropped,
        plain.dropped
    );
    assert!(seen.bytes as f64 * 8.0 / 25.0 >= 0.7 * path.rate_bps as f64);
}

/// A segment that the acknowledgement of a round trip ago let go.
fn arrival(number: u32, rtt_us: u64) -> Arrival {
    let now_us = 1_000_000 + u64::from(number) * 1_000;
    let tick = |us: u64| (us / 1_000) as u32;
    Arrival {
        now_us,
        now_ts: tick(now_us),
        tick_us: 1_000,
        ts_value: number + 7,
        ts_echo: tick(now_us - rtt_us),
        seq: number.wrapping_mul(MSS_BYTES).wrapping_sub(40_000),
        payload_bytes: MSS_BYTES,
        mss_bytes: MSS_BYTES,
        ..Arrival::default()
    }
}

/// A connection on which so many segments of one round trip have arrived, a segment per millisecond.
fn after(segments: u32, rtt_us: u64) -> GiveWay {
    let mut way = GiveWay::begin(&arrival(0, rtt_us), rtt_us as u32);
    for number in 0..segments {
        way.on_segment(&arrival(number, rtt_us));
    }
    way
}

#[test]
fn a_delay_above_the_target_cuts_and_never_below_two_segments() {
    let mut way = after(200, 20_000);
    let before = way.window_bytes();
    let mut last = before;
    for number in 200..1_000 {
        let now = way.on_segment(&arrival(number, 60_000));
        assert!(now <= last, "it grew at 40 ms of queue");
        last = now;
    }
    assert_eq!((last, before > last), (2 * MSS_BYTES, true));
}

#[test]
fn a_retransmission_halves_once_per_round_and_reordering_does_not() {
    let late = |number: u32, ts_value: u32| Arrival { ts_value, ..arrival(number, 20_000) };
    let run = |ts_value: u32| {
        let mut way = after(400, 20_000);
        let before = way.window_bytes();
        let mut least = before;
        for number in 400..440 {
            way.on_segment(&arrival(number, 20_000));
            // Two segments of before, with a TSval of its own.
            for behind in [3, 4] {
                way.on_segment(&late(number - behind, ts_value + number));
            }
            least = least.min(way.window_bytes());
        }
        (before, least)
    };
    let (before, least) = run(8);
    // Half of the 20 segments that are under way in a round; a second halving would leave a quarter.
    assert!((10 * MSS_BYTES..=15 * MSS_BYTES).contains(&least) && before > 2 * least, "{least} of {before}");
    let (before, least) = run(0);
    assert!(least > before / 2, "{least} of {before}");
}

#[test]
fn only_the_first_segment_of_a_tsval_counts_so_that_a_burst_is_no_queue() {
    let mut way = after(100, 20_000);
    let before = way;
    let burst =
        (100..140).map(|number| Arrival { ts_echo: arrival(99, 20_000).ts_echo, ..arrival(number, 20_000) });
    for arrival in burst {
        way.on_segment(&arrival);
    }
    assert_eq!(way.window_bytes(), before.window_bytes());
}

#[test]
fn pauses_of_the_sender_do_not_hold_a_download_down() {
    // Every eighth segment comes 100 ms late: the application had nothing to send.
    let mut way = GiveWay::begin(&arrival(0, 20_000), 20_000);
    for number in 0..4_000 {
        way.on_segment(&arrival(number, if number % 8 == 0 { 100_000 } else { 20_000 }));
    }
    assert!(way.window_bytes() >= 20 * MSS_BYTES, "{}", way.window_bytes());
}

#[test]
fn the_least_delay_is_learned_anew_from_time_to_time() {
    let mut way = GiveWay::begin(&arrival(0, 20_000), 20_000);
    let phases: Vec<u32> = (0..20_000)
        .map(|number| {
            let delay_us = if number < 100 { 20_000 } else { 23_000 };
            way.on_segment(&arrival(number, delay_us));
            way.phase()
        })
        .collect();
    let lows = phases.windows(2).filter(|pair| pair[0] != LOW && pair[1] == LOW).count();
    assert!(phases[0] == START && phases.contains(&STEADY) && lows >= 3, "{lows}");
}

#[test]
fn timestamps_are_found_wherever_they_are_among_the_options() {
    let stamps = [8, 10, 0, 0, 1, 2, 0x80, 0, 0, 3];
    let with = |before: &[u8], after: &[u8]| [before, &stamps, after].concat();
    for options in [
        with(&[1, 1], &[]),
        with(&[], &[]),
        with(&[2, 4, 5, 180, 4, 2], &[1]),
        with(&[1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0], &[0]),
    ] {
        assert_eq!(timestamps(&options), Some((258, 0x8000_0003)), "{options:?}");
    }
    for options in [
        &[][..],
        &[1, 1, 4, 2],
        &stamps[..9],
        &[0, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0],
        &[5, 0, 8, 10],
        &[8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert_eq!(timestamps(options), None, "{options:?}");
    }
}

proptest! {
    #[test]
    fn no_segment_leads_to_a_window_out_of_bounds(
        segments in prop::collection::vec((any::<u64>(), any::<[u32; 7]>()), 1..200),
        rtt_us in any::<u32>(),
    ) {
        let mut way = GiveWay::begin(&arrival(0, 20_000), rtt_us);
        for (now_us, [now_ts, ts_value, ts_echo, seq, payload_bytes, mss_bytes, tick]) in segments {
            let tick_us = if tick & 1 == 0 { 1 } else { 1000 };
            let window = way.on_segment(&Arrival { now_us, now_ts, tick_us, ts_value, ts_echo, seq, payload_bytes, mss_bytes, reserved: 0 });
            prop_assert!((2400..=0x3fff_ffff).contains(&window));
        }
    }

    #[test]
    fn no_options_are_read_beyond_their_end(options in prop::collection::vec(any::<u8>(), 0..=40)) {
        if let Some((value, echo)) = timestamps(&options) {
            let bytes = [value.to_be_bytes(), echo.to_be_bytes()].concat();
            prop_assert!(options.windows(8).any(|window| window == bytes));
        }
    }
}
