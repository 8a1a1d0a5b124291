//! HighSpeed TCP against RFC 3649: the table of Appendix B and the response function of section 5.

use crate::sawtooth::{Flow, mean_window};
use longfat_cc::{Algorithm, Controller, Tunables, response, table};

/// RFC 3649, Appendix B: w, a(w), b(w), to two decimals. Linux (net/ipv4/tcp_highspeed.c) holds the rows up to a = 72.
const APPENDIX_B: &str = "
       38  1 0.50     118  2 0.44     221  3 0.41     347  4 0.38     495  5 0.37     663  6 0.35
      851  7 0.34    1058  8 0.33    1284  9 0.32    1529 10 0.31    1793 11 0.30    2076 12 0.29
     2378 13 0.28    2699 14 0.28    3039 15 0.27    3399 16 0.27    3778 17 0.26    4177 18 0.26
     4596 19 0.25    5036 20 0.25    5497 21 0.24    5979 22 0.24    6483 23 0.23    7009 24 0.23
     7558 25 0.22    8130 26 0.22    8726 27 0.22    9346 28 0.21    9991 29 0.21   10661 30 0.21
    11358 31 0.20   12082 32 0.20   12834 33 0.20   13614 34 0.19   14424 35 0.19   15265 36 0.19
    16137 37 0.19   17042 38 0.18   17981 39 0.18   18955 40 0.18   19965 41 0.17   21013 42 0.17
    22101 43 0.17   23230 44 0.17   24402 45 0.16   25618 46 0.16   26881 47 0.16   28193 48 0.16
    29557 49 0.15   30975 50 0.15   32450 51 0.15   33986 52 0.15   35586 53 0.14   37253 54 0.14
    38992 55 0.14   40808 56 0.14   42707 57 0.13   44694 58 0.13   46776 59 0.13   48961 60 0.13
    51258 61 0.13   53677 62 0.12   56230 63 0.12   58932 64 0.12   61799 65 0.12   64851 66 0.11
    68113 67 0.11   71617 68 0.11   75401 69 0.10   79517 70 0.10   84035 71 0.10   89053 72 0.10
    94717 73 0.09";

fn appendix_b() -> Vec<(u32, u32, String)> {
    let fields: Vec<_> = APPENDIX_B.split_whitespace().collect();
    let row = |row: &[&str]| (row[0].parse().unwrap(), row[1].parse().unwrap(), row[2].to_owned());
    fields.chunks(3).map(row).collect()
}

/// The model does not depend on it.
const RTT_US: u32 = 100_000;

fn highspeed() -> Tunables {
    Tunables::defaults(Algorithm::find("highspeed").unwrap())
}

#[test]
fn the_generated_table_is_the_table_of_appendix_b_entry_by_entry() {
    let generated: Vec<_> =
        table::rows().into_iter().map(|row| (row.w, row.a, format!("{:.2}", row.b))).collect();
    assert_eq!(generated.len(), 73);
    assert_eq!(generated, appendix_b());
}

/// Growth over `round_trips` whole windows of acknowledgements in congestion avoidance.
fn increase(window: u32, round_trips: u32) -> u32 {
    let mut controller = Controller::new(highspeed());
    controller.set_window(window, window);
    controller.on_ack(window * round_trips);
    controller.cwnd_segments() - window
}

/// Part of the window that a loss takes.
fn decrease(window: u32) -> f64 {
    let mut controller = Controller::new(highspeed());
    controller.set_window(window, window);
    controller.on_loss();
    1.0 - f64::from(controller.cwnd_segments()) / f64::from(window)
}

#[test]
fn the_compiled_algorithm_grows_by_a_and_falls_by_b_at_every_row() {
    for (w, a, b) in appendix_b() {
        assert_eq!(increase(w, 1), a, "a({w})");
        // Printed to two decimals, and the window is whole segments.
        let error = decrease(w) - b.parse::<f64>().unwrap();
        assert!(error.abs() <= 0.005 + 1.0 / f64::from(w), "b({w}) is off by {error}");
    }
}

#[test]
fn between_rows_a_and_b_follow_the_formulas() {
    for pair in appendix_b().windows(2) {
        let w = u32::midpoint(pair[0].0, pair[1].0);
        let a = f64::from(increase(w, 200)) / 200.0;
        // The printed a is cut to a whole segment, the formula is not; the drift over the table is below one.
        let exact = table::increase(f64::from(w));
        assert!((a - exact).abs() < 0.03 * exact + 0.2, "a({w}): {a} against {exact}");
        let exact = table::decrease(f64::from(w));
        assert!((decrease(w) - exact).abs() < 0.01 + 1.0 / f64::from(w), "b({w}) against {exact}");
    }
}

#[test]
fn the_response_functions_are_the_tables_of_the_rfc() {
    // Loss rate; mean windows of the standard and of HighSpeed TCP, as the RFC prints them.
    let printed = [
        (1e-3, 38.0, 38.0),
        (1e-4, 120.0, 263.0),
        (1e-5, 379.0, 1_795.0),
        (1e-6, 1_200.0, 12_279.0),
        (1e-7, 3_795.0, 83_981.0),
        (1e-8, 12_000.0, 574_356.0),
        (1e-9, 37_948.0, 3_928_088.0),
        (1e-10, 120_000.0, 26_864_653.0),
    ];
    for (p, standard, highspeed) in printed {
        // The RFC's standard response is 1.2/sqrt(p), 2 % below sqrt(3/2p).
        let (reno, ours) = (response::reno(p) / standard, response::highspeed(p) / highspeed);
        assert!((1.0..1.035).contains(&reno), "p {p:e}: {reno}");
        assert!((ours - 1.0).abs() < 0.015, "p {p:e}: {ours}");
    }
}

#[test]
fn one_loss_in_every_1_over_p_segments_gives_the_mean_window_of_the_response_function() {
    // Near 38 segments the sawtooth dips into the part that is Reno, which the formula does not know.
    for (p, tolerance) in
        [(1e-3, 0.06), (5e-4, 0.03), (2e-4, 0.02), (1e-4, 0.02), (1e-5, 0.02), (1e-6, 0.02), (3e-7, 0.02)]
    {
        let expected = response::highspeed(p);
        let got = mean_window(Flow::new(highspeed(), RTT_US, expected as u32), p, 6);
        let error = got / expected - 1.0;
        println!(
            "p {p:e}: mean window {got:.1}, 0.12/p^0.835 = {expected:.1}, error {:+.1} %",
            100.0 * error
        );
        assert!(error.abs() < tolerance, "p {p:e}: {got} against {expected}");
    }
}

#[test]
fn reno_under_the_same_losses_gives_1_22_over_the_root_of_p() {
    let reno = Tunables::defaults(Algorithm::find("reno").unwrap());
    for p in [1e-3f64, 1e-4, 1e-5] {
        let expected = response::reno(p);
        let got = mean_window(Flow::new(reno.clone(), RTT_US, expected as u32), p, 6);
        assert!((got / expected - 1.0).abs() < 0.05, "p {p:e}: {got} against {expected}");
    }
}

#[test]
fn at_and_below_38_segments_highspeed_is_reno() {
    for window in 2..=38 {
        assert_eq!(increase(window, 1), 1, "{window}");
        let mut controller = Controller::new(highspeed());
        controller.set_window(window, window);
        controller.on_loss();
        assert_eq!(controller.cwnd_segments(), window.div_ceil(2).max(2), "{window}");
    }
}

#[test]
fn a_loss_at_10_gbit_per_s_and_100_ms_costs_a_tenth_and_not_a_half() {
    let mut controller = Controller::new(highspeed());
    controller.set_window(83_000, 83_000);
    controller.on_loss();
    assert!(controller.cwnd_segments().abs_diff(74_700) < 150, "{}", controller.cwnd_segments());
}
