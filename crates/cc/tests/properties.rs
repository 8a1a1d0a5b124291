//! What holds for every algorithm and any input, and limited slow start.

use longfat_cc::{
    Ack, Algorithm, Conn, Controller, Observation, STATE_BYTES, State, Tunable, Tunables, WINDOW_MAX,
};
use proptest::prelude::*;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::all().collect::<Vec<_>>())
}

/// Any bytes.
fn state() -> impl Strategy<Value = State> {
    prop::collection::vec(any::<u64>(), STATE_BYTES / 8).prop_map(|words| State(words.try_into().unwrap()))
}

/// A window of any size: as many tiny ones as huge ones.
fn window() -> impl Strategy<Value = u32> {
    (0u32..31, any::<u32>()).prop_map(|(bits, value)| (value % (1 << bits) + (1 << bits)).min(WINDOW_MAX))
}

prop_compose! {
    fn conn()(
        cwnd_segments in window(), cwnd_credit_segments in any::<u32>(), ssthresh_segments in window(),
        cwnd_clamp_segments in prop_oneof![Just(u32::MAX), window()], prior_cwnd_segments in window(),
        max_flight_segments in any::<u32>(), is_cwnd_limited in 0u32..2,
    ) -> Conn {
        Conn { cwnd_segments, cwnd_credit_segments, ssthresh_segments, cwnd_clamp_segments,
            prior_cwnd_segments, max_flight_segments, is_cwnd_limited, ..Conn::default() }
    }
}

/// Any algorithm, set in any way it can be: each tunable at its default as often as anywhere in its range.
fn tunables() -> impl Strategy<Value = Tunables> {
    algorithm().prop_flat_map(|algorithm| {
        let value = |tunable: Tunable| prop_oneof![Just(tunable.default_value()), tunable.range()];
        algorithm
            .tunables()
            .map(value)
            .collect::<Vec<_>>()
            .prop_map(move |values| Tunables::from_values(algorithm, values))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn an_ack_keeps_the_window_between_one_and_its_bounds_whatever_it_acknowledges(
        tunables in tunables(), before in conn(), acked_segments in any::<u32>(), state in state(),
    ) {
        let (mut conn, mut state) = (before, state);
        tunables.algorithm().on_ack(&mut conn, &mut state, &tunables, &Ack { acked_segments });
        let most = before.cwnd_clamp_segments.min(WINDOW_MAX);
        prop_assert!(conn.cwnd_segments >= 1);
        prop_assert!(conn.cwnd_segments <= most.max(before.cwnd_segments));
        // Those that listen to delay may give way, and then are in congestion avoidance.
        if !["vegas", "ledbat", "tcp_lp", "imtcp_bg"].contains(&tunables.algorithm().name()) {
            prop_assert!(conn.cwnd_segments >= before.cwnd_segments.min(most), "an ack shrank the window");
            prop_assert_eq!(conn.ssthresh_segments, before.ssthresh_segments);
        }
        prop_assert!(conn.ssthresh_segments <= before.ssthresh_segments);
    }

    #[test]
    fn an_unused_window_does_not_grow(tunables in tunables(), before in conn(), acked_segments in any::<u32>()) {
        let mut conn = Conn { is_cwnd_limited: 0, max_flight_segments: before.cwnd_segments / 2, ..before };
        let (unused, mut state) = (conn, State::default());
        tunables.algorithm().on_ack(&mut conn, &mut state, &tunables, &Ack { acked_segments });
        prop_assert_eq!(conn, unused);
    }

    #[test]
    fn a_threshold_after_loss_is_at_least_two_and_below_the_window(
        tunables in tunables(), conn in conn(), state in state(),
    ) {
        let mut state = state;
        let ssthresh = tunables.algorithm().ssthresh(&mut { conn }, &mut state, &tunables);
        prop_assert!(ssthresh >= 2);
        prop_assert!(ssthresh < conn.cwnd_segments || conn.cwnd_segments <= 2);
    }

    #[test]
    fn loss_and_timeout_never_widen_the_window_and_undo_gives_it_back(
        tunables in tunables(), cwnd in window(), timeouts in 0u32..4,
    ) {
        let mut controller = Controller::new(tunables);
        controller.set_window(cwnd, cwnd);
        if timeouts == 0 { controller.on_loss() }
        (0..timeouts).for_each(|_| controller.on_rto());
        prop_assert!(controller.cwnd_segments() <= cwnd);
        prop_assert!(controller.ssthresh_segments() <= cwnd.max(2));
        controller.undo();
        prop_assert_eq!((controller.cwnd_segments(), controller.ssthresh_segments()), (cwnd, cwnd.max(controller.ssthresh_segments())));
    }

    #[test]
    fn any_sequence_of_events_leaves_a_window_that_can_be_sent(
        tunables in tunables(), events in prop::collection::vec((0u8..5, any::<u32>()), 0..200),
    ) {
        let mut controller = Controller::new(tunables);
        for (event, value) in events {
            match event {
                0 => controller.on_loss(),
                1 => controller.on_rto(),
                2 => controller.undo(),
                3 => controller.on_recovered(),
                _ => controller.on_ack(value),
            }
            prop_assert!((1..=WINDOW_MAX).contains(&controller.cwnd_segments()));
        }
    }

    #[test]
    fn a_larger_window_grows_no_less_and_loses_no_larger_part(w in 2u32..1 << 24, wider in 1u32..1 << 20) {
        let tunables = Tunables::defaults(Algorithm::find("highspeed").unwrap());
        let at = |w: u32| {
            let mut grown = Controller::new(tunables.clone());
            grown.set_window(w, w);
            grown.on_ack(w);
            let mut cut = Controller::new(tunables.clone());
            cut.set_window(w, w);
            cut.on_loss();
            (grown.cwnd_segments() - w, 1.0 - f64::from(cut.cwnd_segments()) / f64::from(w))
        };
        let ((a, b), (a_wider, b_wider)) = (at(w), at(w + wider));
        prop_assert!(a <= a_wider && a >= 1 && a_wider <= 73);
        // A window is whole segments.
        prop_assert!(b_wider <= b + 2.0 / f64::from(w) && b_wider > 0.09 - 2.0 / f64::from(w));
    }

    #[test]
    fn one_stretch_ack_within_a_window_is_worth_as_many_single_ones_to_a_segment(
        w in 2u32..100_000, acked in 1u32..64,
    ) {
        let reno = Tunables::defaults(Algorithm::find("reno").unwrap());
        let mut stretch = Controller::new(reno.clone());
        let mut single = Controller::new(reno);
        stretch.set_window(w, w);
        single.set_window(w, w);
        stretch.on_ack(acked);
        (0..acked).for_each(|_| single.on_ack(1));
        prop_assert!(stretch.cwnd_segments() - single.cwnd_segments() <= acked / w);
    }
}

fn limited(name: &str, max_ssthresh: u32) -> Controller {
    let algorithm = Algorithm::find(name).unwrap();
    let setting = format!("max_ssthresh_segments={max_ssthresh}");
    Controller::new(Tunables::from_settings(algorithm, [setting]).unwrap())
}

#[test]
fn slow_start_doubles_each_round_trip() {
    for algorithm in Algorithm::all() {
        let mut controller = Controller::new(Tunables::defaults(algorithm));
        for round in 0..20 {
            let window = controller.cwnd_segments();
            assert_eq!(window, 10 << round);
            (0..window).for_each(|_| controller.on_ack(1));
        }
    }
}

#[test]
fn limited_slow_start_grows_as_usual_up_to_the_limit_and_by_half_of_it_beyond() {
    for algorithm in Algorithm::all() {
        let mut controller = limited(algorithm.name(), 100);
        while controller.cwnd_segments() < 80 {
            let window = controller.cwnd_segments();
            (0..window).for_each(|_| controller.on_ack(1));
            assert_eq!(controller.cwnd_segments(), 2 * window);
        }
        while controller.cwnd_segments() < 5_000 {
            let window = controller.cwnd_segments();
            (0..window).for_each(|_| controller.on_ack(1));
            let growth = controller.cwnd_segments() - window;
            // RFC 3742: at most max_ssthresh / 2 per round trip above it; K is an integer, so a little more
            // than a third at least.
            let most = if window <= 100 { 100 } else { 51 + 100 * 50 / window };
            assert!((34..=most).contains(&growth), "{window}: {growth}");
        }
    }
}

#[test]
fn slow_start_stops_at_the_threshold_and_the_rest_counts_for_avoidance() {
    let mut controller = limited("reno", 0);
    controller.set_window(10, 15);
    controller.on_ack(20);
    assert_eq!((controller.cwnd_segments(), controller.conn().cwnd_credit_segments), (16, 0));
}

#[test]
fn an_observation_is_what_the_algorithm_sees() {
    let mut controller = limited("highspeed", 0);
    let seen = Observation {
        now_us: 5,
        flight_segments: 6,
        max_flight_segments: 7,
        is_cwnd_limited: false,
        srtt_us: 8,
        min_rtt_us: 9,
    };
    controller.observe(&seen);
    let conn = controller.conn();
    assert_eq!((conn.now_us, conn.flight_segments, conn.max_flight_segments), (5, 6, 7));
    assert_eq!((conn.is_cwnd_limited, conn.srtt_us, conn.min_rtt_us), (0, 8, 9));
    controller.on_ack(3);
    assert_eq!(controller.cwnd_segments(), 13, "more than half of a slow-start window in flight is in use");
}

#[test]
fn a_window_of_two_to_the_thirty_one_neither_wraps_nor_vanishes() {
    for algorithm in Algorithm::all() {
        let mut controller = Controller::new(Tunables::defaults(algorithm));
        controller.set_window(WINDOW_MAX - 1, 2);
        for _ in 0..100 {
            controller.on_ack(u32::MAX);
        }
        assert_eq!(controller.cwnd_segments(), WINDOW_MAX);
        controller.on_loss();
        assert!(controller.cwnd_segments() > WINDOW_MAX / 3);
    }
}
