//! A download held back by its receiver's window: what it is told to do, and that it holds on a modelled path.

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

/// Jain's index: 1 when all have the same, one over their number when one has all.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn several_share_the_path_evenly_though_they_began_one_after_the_other() {
    // On the wide one a window is a thousand segments: growth in proportion to it would keep what differs.
    let wide = Path { rate_bps: 200_000_000, rtt_us: 60_000, queue_us: 60_000 };
    for (path, starts_s) in [(PATH, &[0, 7][..]), (PATH, &[0, 3, 6, 9]), (wide, &[0, 3, 6, 9])] {
        let flows: Vec<Flow> = starts_s.iter().map(|at_s| Flow::background(*at_s)).collect();
        let shares = shares(path, &flows, 120, 60);
        assert!(jain(&shares) >= 0.93 && shares.iter().sum::<f64>() > 0.9, "{path:?}: {shares:?}");
    }
}

#[test]
fn four_cost_a_sender_that_fills_the_queue_little_more_than_their_least_windows() {
    let with_four = |other: fn(u64) -> Flow| {
        let flows = [&[Flow::foreground(5)][..], &[0; 4].map(other)].concat();
        shares(PATH, &flows, 60, 40)[0]
    };
    let alone = shares(PATH, &[Flow::foreground(5)], 60, 40)[0];
    let (beside, plain) = (with_four(Flow::background), with_four(Flow::foreground));
    assert!(beside >= 0.9 * alone && beside > 3.0 * plain, "{beside} of {alone}; beside plain ones {plain}");
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
    arrival_after(0, 1_000, number, rtt_us)
}

/// An acknowledgement that comes late by a pause, with a clock of such ticks.
fn arrival_after(pause_us: u64, tick_us: u32, number: u32, rtt_us: u64) -> Arrival {
    let now_us = 1_000_000 + pause_us + u64::from(number) * 1_000;
    let tick = |us: u64| (us / u64::from(tick_us)) as u32;
    let seq = number.wrapping_mul(MSS_BYTES).wrapping_sub(40_000);
    Arrival {
        now_us,
        now_ts: tick(now_us),
        tick_us,
        ts_value: number + 7,
        ts_echo: tick(now_us - rtt_us),
        seq,
        payload_bytes: MSS_BYTES,
        mss_bytes: MSS_BYTES,
        edge_seq: seq.wrapping_add(1 << 30),
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
fn a_retransmission_halves_once_before_that_shows_and_reordering_does_not() {
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
    // Half of the 20 segments that are under way in a round, within two rounds; a second halving would leave a quarter.
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

const HOUR_US: u64 = 3_600_000_000;

#[test]
fn an_hour_without_data_does_not_put_off_the_learning_of_the_least_delay() {
    let mut way = after(5, 20_000);
    let is_low = |number: u32| {
        let delay_us = if number < 100 { 20_000 } else { 23_000 };
        way.on_segment(&arrival_after(HOUR_US, 1_000, number, delay_us));
        way.phase() == LOW
    };
    assert!((5..120_000).any(is_low), "no LOW in two minutes");
}

#[test]
fn what_comes_after_a_pause_is_timed_however_far_the_clock_has_turned() {
    let turn_us = 1 << 32;
    for pause_us in [HOUR_US / 2, HOUR_US * 2 / 3, HOUR_US * 10 / 9, turn_us, turn_us + HOUR_US * 2 / 3] {
        let mut way = GiveWay::begin(&arrival_after(0, 1, 0, 20_000), 20_000);
        for number in 0..5 {
            way.on_segment(&arrival_after(0, 1, number, 20_000));
        }
        for keep_alive_us in (0..pause_us).step_by(45_000_000) {
            let next = arrival_after(keep_alive_us, 1, 5, 20_000);
            way.on_segment(&Arrival { seq: next.seq.wrapping_sub(1), payload_bytes: 1, ..next });
        }
        for number in 5..200 {
            way.on_segment(&arrival_after(pause_us, 1, number, 20_000));
        }
        assert!(way.phase() == START && way.window_bytes() >= 40 * MSS_BYTES, "{pause_us}: {way:?}");
    }
}

#[test]
fn what_echoes_an_acknowledgement_of_before_a_pause_is_no_sample_and_no_round() {
    let old = arrival_after(0, 1, 4, 20_000).now_ts;
    // The peer has something to say by itself: nothing that we sent since let it go. Its echo looks 1 ms old, or is yet
    // to come.
    for pause_us in [1 << 32, HOUR_US * 2 / 3] {
        let mut way = GiveWay::begin(&arrival_after(0, 1, 0, 20_000), 20_000);
        for number in 0..200 {
            let pause_us = if number < 5 { 0 } else { pause_us };
            let fresh = arrival_after(pause_us, 1, number, 20_000);
            let ts_echo = if (5..15).contains(&number) { old } else { fresh.ts_echo };
            way.on_segment(&Arrival { ts_echo, ..fresh });
            assert!(number >= 15 || way.window_bytes() == 10 * MSS_BYTES, "{number}: {way:?}");
        }
        assert!(way.phase() == START && way.window_bytes() >= 40 * MSS_BYTES, "{pause_us}: {way:?}");
    }
}

/// The window when `odd` came in the middle of a download, whatever that is, and when it did not.
fn with_and_without(odd: &[Arrival]) -> (u32, u32) {
    let run = |odd: &[Arrival]| {
        let mut way = after(200, 20_000);
        for arrival in odd {
            way.on_segment(arrival);
        }
        (200..260).map(|number| way.on_segment(&arrival(number, 20_000))).last().unwrap()
    };
    (run(odd), run(&[]))
}

#[test]
fn neither_a_keep_alive_nor_a_probe_of_a_full_window_is_a_loss() {
    let next = arrival(200, 20_000);
    let byte = |seq: u32, ts_value: u32| Arrival { seq, ts_value, payload_bytes: 1, ..next };
    let (window, without) =
        with_and_without(&[byte(next.seq.wrapping_sub(1), 300), byte(next.seq.wrapping_sub(1), 301)]);
    assert_eq!(window, without, "kept alive");
    let probe = |ts_value: u32| Arrival { edge_seq: next.seq, ..byte(next.seq, ts_value) };
    let (window, without) = with_and_without(&[probe(300), probe(301)]);
    assert_eq!(window, without, "probed");
    let (window, without) = with_and_without(&[Arrival { ts_value: 300, ..arrival(198, 20_000) }]);
    assert!(window < without, "this is a loss: {window} of {without}");
}

#[test]
fn the_overflow_that_ends_the_start_teaches_the_target() {
    // A queue of 6 ms, with a loss as soon as the start has ended.
    let target_us = |losses: std::ops::Range<u32>| {
        let mut way = after(100, 20_000);
        assert_eq!(way.phase(), START);
        let mut ended = None;
        for number in 100..200 {
            way.on_segment(&arrival(number, 26_000));
            ended = ended.or((way.phase() == STEADY).then_some(number));
            if ended.is_some_and(|ended| losses.contains(&(number - ended))) {
                way.on_segment(&Arrival { ts_value: number + 8, ..arrival(number - 3, 26_000) });
            }
        }
        assert!(ended.is_some());
        way.target_us()
    };
    assert_eq!((target_us(2..3), target_us(0..0)), (3_000, 5_000));
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
        segments in prop::collection::vec((any::<u64>(), any::<[u32; 8]>()), 1..200),
        rtt_us in any::<u32>(),
    ) {
        let mut way = GiveWay::begin(&arrival(0, 20_000), rtt_us);
        for (now_us, [now_ts, ts_value, ts_echo, seq, payload_bytes, mss_bytes, edge_seq, tick]) in segments {
            let tick_us = if tick & 1 == 0 { 1 } else { 1000 };
            let window = way.on_segment(&Arrival { now_us, now_ts, tick_us, ts_value, ts_echo, seq, payload_bytes, mss_bytes, edge_seq });
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
