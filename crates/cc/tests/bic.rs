//! BIC-TCP: the search between two windows, and the response where S_max rules.

use crate::sawtooth::{Flow, mean_window};
use longfat_cc::{
    Algorithm, Controller, Tunables,
    response::{Bounds, Law},
};
use proptest::prelude::*;

fn bic<const N: usize>(settings: [&str; N]) -> Tunables {
    Tunables::from_settings(Algorithm::find("bic").unwrap(), settings).unwrap()
}

/// In congestion avoidance after a loss at `w_max`, now at `window`.
fn searching(tunables: Tunables, w_max: u32, window: u32) -> Controller {
    let mut controller = Controller::new(tunables);
    controller.set_window(w_max, 2);
    controller.on_loss();
    controller.on_recovered();
    controller.set_window(window, 2);
    controller
}

fn round_trip(controller: &mut Controller) -> u32 {
    let window = controller.cwnd_segments();
    (0..window).for_each(|_| controller.on_ack(1));
    controller.cwnd_segments() - window
}

/// Growth over whole windows of acknowledgements, per round trip.
fn growth(controller: &Controller, round_trips: u32) -> f64 {
    let (mut controller, window) = (controller.clone(), controller.cwnd_segments());
    controller.on_ack(window * round_trips);
    f64::from(controller.cwnd_segments() - window) / f64::from(round_trips)
}

#[test]
fn a_loss_keeps_beta_of_the_window_and_half_up_to_the_low_window() {
    for (window, kept) in [(1000, 799), (100, 79), (15, 11), (14, 7), (3, 2), (2, 2)] {
        let mut controller = Controller::new(bic([]));
        controller.set_window(window, 2);
        controller.on_loss();
        assert_eq!(controller.cwnd_segments(), kept, "from {window}");
    }
}

#[test]
fn far_from_the_last_loss_it_grows_by_s_max_near_it_by_a_quarter_of_the_distance_and_next_to_it_slowly() {
    for (distance, expected) in
        [(5_000, 16.0), (65, 16.0), (60, 15.0), (40, 10.0), (8, 2.0), (7, 0.2), (1, 0.2)]
    {
        let growth = growth(&searching(bic([]), 10_000, 10_000 - distance), 100);
        assert!((growth - expected).abs() < 0.02, "{distance} below: {growth}");
    }
}

#[test]
fn beyond_the_last_loss_it_probes_slowly_at_first_and_then_the_reverse_way() {
    for (distance, expected) in [(0, 0.2), (3, 0.2), (4, 1.333), (30, 10.0), (48, 16.0), (5_000, 16.0)] {
        let growth = growth(&searching(bic([]), 10_000, 10_000 + distance), 100);
        assert!((growth - expected).abs() < 0.02, "{distance} above: {growth}");
    }
}

#[test]
fn the_search_comes_back_to_the_window_of_the_loss_lingers_there_and_goes_on() {
    let mut controller = searching(bic([]), 1000, 799);
    let mut near = 0;
    let mut round_trips = 0;
    while controller.cwnd_segments() < 1100 {
        round_trip(&mut controller);
        round_trips += 1;
        near += u32::from((992..1004).contains(&controller.cwnd_segments()));
    }
    // 8 segments below and 4 above at 0.2 per round trip are 60 of them.
    assert!((50..=62).contains(&near), "{near} of {round_trips} round trips near the last loss");
    assert!((75..=100).contains(&round_trips), "{round_trips}");
}

#[test]
fn a_flow_that_lost_before_it_got_back_gives_way_unless_told_not_to() {
    for (fast_convergence, w_max) in [(1, 809), (0, 900)] {
        let tunables = bic([format!("fast_convergence={fast_convergence}").as_str()]);
        let mut controller = searching(tunables, 1000, 900);
        controller.on_loss();
        controller.on_recovered();
        controller.set_window(w_max, 2);
        assert!(growth(&controller, 100) < 0.3, "w_max is {w_max}");
        controller.set_window(w_max - 40, 2);
        assert!((growth(&controller, 100) - 10.0).abs() < 0.1, "w_max is {w_max}");
    }
}

#[test]
fn a_timeout_makes_the_last_loss_meaningless() {
    let mut controller = searching(bic([]), 1000, 998);
    controller.on_rto();
    controller.on_ack(1);
    controller.on_recovered();
    controller.set_window(998, 2);
    assert!(
        (growth(&controller, 100) - 998.0 / 20.0).abs() < 1.5,
        "a twentieth: {}",
        growth(&controller, 100)
    );
}

/// Window at the loss and mean window of a steady sawtooth of 1/p segments.
fn model(p: f64) -> (f64, f64) {
    let bounds = Bounds { p, rtt_s: 0.1, pipe_segments: f64::INFINITY, room_segments: f64::INFINITY };
    let cycle = Law::of(&bic([])).unwrap().cycle(&bounds);
    (cycle.w_max, cycle.mean_window)
}

#[test]
fn one_loss_in_every_1_over_p_segments_gives_the_mean_window_of_the_model() {
    for (p, cycles) in [(1e-4, 20), (1e-5, 20), (1e-6, 10), (1e-7, 4)] {
        let (w_max, expected) = model(p);
        let mut flow = Flow::new(bic(["fast_convergence=0"]), 100_000, w_max as u32);
        flow.lose();
        let got = mean_window(flow, p, cycles);
        let error = got / expected - 1.0;
        println!("p {p:e}: mean window {got:.0}, model {expected:.0}, error {:+.1} %", 100.0 * error);
        assert!(error.abs() < 0.05, "p {p:e}: {got} against {expected}");
    }
}

#[test]
fn where_s_max_rules_the_model_approaches_aimd() {
    let beta: f64 = 819.0 / 1024.0;
    for (p, within) in [(1e-7, 0.1), (1e-9, 0.02), (1e-11, 0.01)] {
        let aimd = (16.0 * (1.0 + beta) / (2.0 * (1.0 - beta)) / p).sqrt();
        let mean = model(p).1;
        assert!((mean / aimd - 1.0).abs() < within, "p {p:e}: {mean} against {aimd}");
    }
}

proptest! {
    #[test]
    fn growth_never_exceeds_s_max_once_a_loss_is_known_and_never_stops(
        w_max in 15u32..1 << 24, window in 15u32..1 << 24, s_max in 1u32..1000,
    ) {
        let setting = format!("max_increment_segments={s_max}");
        let mut controller = searching(bic([setting.as_str()]), w_max, window);
        controller.on_ack(window);
        prop_assert!(controller.cwnd_segments() - window <= s_max);
        controller.set_window(window, 2);
        controller.on_ack(window.saturating_mul(6));
        prop_assert!(controller.cwnd_segments() > window);
    }

    #[test]
    fn the_nearer_to_the_last_loss_the_slower_is_the_search(w_max in 1_000u32..1 << 24, a in 8u32..500, b in 8u32..500) {
        let at = |distance: u32| growth(&searching(bic([]), w_max, w_max - distance), 50);
        prop_assert!(at(a.min(b)) <= at(a.max(b)));
    }
}
