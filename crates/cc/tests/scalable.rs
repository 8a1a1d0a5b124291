//! Scalable TCP against what Kelly 2003 promises.

use crate::sawtooth::{Flow, mean_window};
use longfat_cc::{Algorithm, Controller, Tunables, response};
use proptest::prelude::*;

/// The model does not depend on it.
const RTT_US: u32 = 100_000;

fn scalable() -> Tunables {
    Tunables::defaults(Algorithm::find("scalable").unwrap())
}

fn at(window: u32) -> Controller {
    let mut controller = Controller::new(scalable());
    controller.set_window(window, 2);
    controller
}

fn round_trip(controller: &mut Controller) {
    (0..controller.cwnd_segments()).for_each(|_| controller.on_ack(1));
}

#[test]
fn one_loss_in_every_1_over_p_segments_gives_a_window_of_a_over_b_over_p_at_the_loss() {
    for p in [1e-3f64, 1e-4, 1e-5, 1e-6] {
        // Kelly 2003: (a/b) / p for increase a per acknowledged segment and decrease b.
        let expected = 0.01 / 0.125 / p;
        let mut flow = Flow::new(scalable(), RTT_US, (expected * 0.7) as u32);
        let mut at_loss = 0;
        for _ in 0..60 {
            (0..(1.0 / p).round() as u64).for_each(|_| flow.ack());
            at_loss = flow.controller.cwnd_segments();
            flow.lose();
        }
        let error = f64::from(at_loss) / expected - 1.0;
        println!(
            "p {p:e}: window at the loss {at_loss}, (a/b)/p = {expected:.0}, error {:+.2} %",
            100.0 * error
        );
        // The window is whole segments, and a loss takes at most b of it.
        assert!(error.abs() < 0.005 + 8.0 / expected, "p {p:e}: {at_loss} against {expected}");
    }
}

#[test]
fn its_mean_window_is_a_over_p_and_the_logarithm_of_the_fall() {
    for p in [1e-3f64, 1e-4, 1e-5, 1e-6] {
        let expected = response::scalable(0.01, 0.125, p);
        let got = mean_window(Flow::new(scalable(), RTT_US, expected as u32), p, 20);
        println!("p {p:e}: mean window {got:.1}, a / (p ln(1/(1-b))) = {expected:.1}");
        assert!((got / expected - 1.0).abs() < 0.005 + 4.0 / expected, "p {p:e}: {got} against {expected}");
    }
}

#[test]
fn the_time_to_recover_from_a_loss_is_the_same_at_every_window() {
    for window in [400, 4_000, 40_000, 400_000] {
        let mut controller = at(window);
        controller.on_loss();
        controller.on_recovered();
        let mut round_trips = 0;
        while controller.cwnd_segments() < window {
            round_trip(&mut controller);
            round_trips += 1;
        }
        // ln(8/7) / ln(1.01) = 13.4
        assert_eq!(round_trips, 14, "from {window}");
    }
}

#[test]
fn up_to_the_legacy_window_it_is_reno() {
    for window in 2..=16 {
        let mut grown = at(window);
        round_trip(&mut grown);
        assert_eq!(grown.cwnd_segments(), window + 1);
        let mut cut = at(window);
        cut.on_loss();
        assert_eq!(cut.cwnd_segments(), (window / 2).max(2));
    }
    let mut beyond = at(17);
    (0..100).for_each(|_| beyond.on_ack(1));
    assert_eq!(beyond.cwnd_segments(), 18, "a hundred acknowledged segments, one more");
}

#[test]
fn increase_decrease_and_legacy_window_can_be_set() {
    let settings = ["increase_permille=20", "decrease_permille=250", "legacy_window_segments=0"];
    let tunables = Tunables::from_settings(Algorithm::find("scalable").unwrap(), settings).unwrap();
    let mut controller = Controller::new(tunables);
    controller.set_window(8, 2);
    (0..50).for_each(|_| controller.on_ack(1));
    assert_eq!(controller.cwnd_segments(), 9);
    controller.set_window(1000, 2);
    controller.on_loss();
    assert_eq!(controller.cwnd_segments(), 750);
}

proptest! {
    #[test]
    fn above_the_legacy_window_a_larger_window_grows_and_falls_by_no_less(
        w in 17u32..1 << 24, wider in 0u32..1 << 20, round_trips in 1u32..4,
    ) {
        let grown = |w: u32| { let mut c = at(w); c.on_ack(w.saturating_mul(round_trips)); c.cwnd_segments() - w };
        let fall = |w: u32| { let mut c = at(w); c.on_loss(); w - c.cwnd_segments() };
        prop_assert!(grown(w) <= grown(w + wider));
        prop_assert!(fall(w) <= fall(w + wider));
    }

    #[test]
    fn a_stretch_ack_is_worth_exactly_as_many_single_ones(w in 17u32..100_000, acked in 1u32..1000) {
        let (mut stretch, mut single) = (at(w), at(w));
        stretch.on_ack(acked);
        (0..acked).for_each(|_| single.on_ack(1));
        prop_assert_eq!(stretch.cwnd_segments(), single.cwnd_segments());
    }
}
