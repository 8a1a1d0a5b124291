//! Results that theory or arithmetic gives, reproduced.

use crate::support::*;
use longfat_link::plan::{ChangePlan, LossPlan};
use longfat_sim::{EndpointPlan, NodePlan, ReceiveBuffer, SendBuffer, TcpPlan};

/// Mean congestion window of one flow on a path that loses packets at random and has room for all.
fn mean_window(cc: &str, probability: f64, seed: u64) -> f64 {
    let mut forward = direction(Some(10_000_000_000), 25 * MS, 1 << 30);
    forward.line.loss = LossPlan::Bernoulli { probability };
    let mut scenario = path(forward, vec![flow("f", 0, 1, tcp(cc))], 250 * SECOND);
    scenario.seed = seed;
    let outcome = outcome(&scenario);
    let from = 40 * SECOND;
    let bytes = outcome.bytes_between("f", from, 250 * SECOND) as f64;
    // Segments per round trip, from what arrived.
    bytes / 1448.0 * 0.050 / 210.0
}

fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    let error = found / expected - 1.0;
    println!("{what}: found {found:.3}, expected {expected:.3} ({:+.1} %)", error * 100.0);
    assert!(
        error.abs() <= tolerance,
        "{what}: found {found:.3}, expected {expected:.3} ({:+.1} %)",
        error * 100.0
    );
}

#[test]
fn reno_follows_the_square_root_law() {
    // 1.31: Ott, Kemperman and Mathis, "The stationary behavior of ideal TCP congestion avoidance" (1996), for
    // independent losses; periodic ones give 1.22.
    for probability in [1e-3, 3e-4] {
        let window = mean_window("reno", probability, 3);
        assert_near(&format!("reno at {probability}"), window, 1.31 / probability.sqrt(), 0.12);
    }
}

#[test]
fn highspeed_follows_its_response_function() {
    for probability in [1e-4, 1e-5] {
        let window = mean_window("highspeed", probability, 3);
        assert_near(&format!("highspeed at {probability}"), window, 0.12 / probability.powf(0.835), 0.2);
    }
}

#[test]
fn one_flow_fills_a_path_with_a_queue_of_its_bandwidth_delay_product() {
    let rate = 50_000_000;
    let bdp = rate / 8 / 20;
    for cc in ["reno", "highspeed"] {
        let forward = direction(Some(rate), 25 * MS, bdp);
        let outcome = outcome(&path(forward, vec![flow("f", 0, 1, tcp(cc))], 40 * SECOND));
        let share = outcome.mbps_between("f", 10 * SECOND, 40 * SECOND) / (50.0 * 1448.0 / 1500.0);
        assert!(share >= 0.98, "{cc} reached {share:.3} of the path");
        assert_eq!(outcome.stats.timeouts, 0, "{cc}");
    }
}

#[test]
fn what_is_retransmitted_is_what_was_lost() {
    let forward = direction(Some(50_000_000), 25 * MS, 312_500);
    let outcome = outcome(&path(forward, vec![flow("f", 0, 1, tcp("reno"))], 60 * SECOND));
    let (lost, again) = (outcome.forward().dropped_packets, outcome.flow("f").retransmitted_segments);
    assert!(
        lost > 100 && again >= lost - 20 && again <= lost + lost / 50 + 2,
        "{lost} lost, {again} sent again"
    );
}

#[test]
fn a_window_limits_throughput_to_window_over_round_trip_time() {
    let fixed = ReceiveBuffer::Fixed;
    let buffer = |window| (window, EndpointPlan { receive_buffer: fixed(window), ..EndpointPlan::default() });
    let clamp = |window| (window, EndpointPlan { window_bytes: Some(window), ..EndpointPlan::default() });
    for (window, receiver) in [buffer(65_536), clamp(65_536), buffer(1_000_000), clamp(1_000_000)] {
        let plan = TcpPlan { receiver, ..tcp("reno") };
        let forward = direction(Some(1_000_000_000), 50 * MS, 1 << 30);
        let outcome = outcome(&path(forward, vec![flow("f", 0, 1, plan)], 20 * SECOND));
        let expected = (window / 1448 * 1448) as f64 * 8.0 / 0.1 / 1e6;
        assert_near("receive window", outcome.mbps_between("f", 5 * SECOND, 20 * SECOND), expected, 0.02);
        let last = outcome.tcp().last().unwrap();
        assert!(last.rwnd_limited_us > 15_000_000, "{last:?}");
    }
}

#[test]
fn a_send_buffer_limits_throughput_too() {
    let sender = EndpointPlan { send_buffer: SendBuffer::Fixed(144_800), ..EndpointPlan::default() };
    let plan = TcpPlan { sender, ..tcp("reno") };
    let forward = direction(Some(1_000_000_000), 50 * MS, 1 << 30);
    let outcome = outcome(&path(forward, vec![flow("f", 0, 1, plan)], 20 * SECOND));
    let found = outcome.mbps_between("f", 5 * SECOND, 20 * SECOND);
    // The writer is woken when a third is free: it reaches between two thirds of the buffer and all of it.
    let whole = 144_800.0 * 8.0 / 0.1 / 1e6;
    assert!(found <= whole * 1.01 && found >= whole * 0.6, "{found} of {whole}");
}

#[test]
fn two_reno_flows_share_a_path_fairly() {
    let forward = direction(Some(50_000_000), 20 * MS, 250_000);
    let mut second = flow("second", 0, 1, tcp("reno"));
    second.start_ns = 3 * SECOND;
    let scenario = path(forward, vec![flow("first", 0, 1, tcp("reno")), second], 300 * SECOND);
    let outcome = outcome(&scenario);
    let [a, b] = ["first", "second"].map(|name| outcome.mbps_between(name, 30 * SECOND, 300 * SECOND));
    let jain = (a + b).powi(2) / (2.0 * (a * a + b * b));
    assert!(jain > 0.95, "{a} and {b}: {jain}");
    assert!(a + b > 0.95 * 48.0, "{a} and {b}");
}

#[test]
fn the_flow_with_the_longer_round_trip_gets_less() {
    // near - router - far: both flows share the middle link.
    let middle = link("middle", [2, 3], direction(Some(50_000_000), 5 * MS, 150_000));
    let near = link("near", [0, 2], direction(Some(1_000_000_000), MS, 1 << 30));
    let far = link("far", [1, 2], direction(Some(1_000_000_000), 40 * MS, 1 << 30));
    let mut scenario = path(direction(None, 0, 1), Vec::new(), 200 * SECOND);
    scenario.nodes = ["near", "far", "router", "sink"].map(NodePlan::router).to_vec();
    scenario.links = vec![middle, near, far];
    scenario.flows = vec![flow("near", 0, 3, tcp("reno")), flow("far", 1, 3, tcp("reno"))];
    let outcome = outcome(&scenario);
    let [near, far] = ["near", "far"].map(|name| outcome.mbps_between(name, 20 * SECOND, 200 * SECOND));
    assert!(near > 2.0 * far && far > 0.5, "near {near}, far {far}");
}

#[test]
fn after_a_blackout_the_timer_brings_the_flow_back() {
    let mut forward = direction(Some(20_000_000), 10 * MS, 100_000);
    let mut dark = forward.line.clone();
    dark.loss = LossPlan::Bernoulli { probability: 1.0 };
    let change = |at_ns, line| ChangePlan { at_ns, line, queue: None };
    forward.schedule = vec![change(5 * SECOND, dark), change(8 * SECOND, forward.line.clone())];
    for sack in [true, false] {
        let mut plan = tcp("reno");
        plan.sender.sack = sack;
        let outcome = outcome(&path(forward.clone(), vec![flow("f", 0, 1, plan)], 20 * SECOND));
        assert!(outcome.stats.timeouts >= 3, "{:?}", outcome.stats);
        assert_eq!(outcome.bytes_between("f", 5_100 * MS, 8 * SECOND), 0);
        // Backed off to at most 3.2 s by then.
        let after = outcome.mbps_between("f", 14 * SECOND, 20 * SECOND);
        assert!(after > 17.0, "{after} Mbit/s after the blackout, SACK {sack}");
        let states: Vec<_> = outcome.tcp().map(|tcp| tcp.ca_state.as_str()).collect();
        assert!(states.contains(&"loss") && states.last() != Some(&"loss"));
    }
}

#[test]
fn ecn_avoids_retransmission() {
    let mut forward = direction(Some(20_000_000), 20 * MS, 1_000_000);
    forward.queue.discipline = codel_with_ecn();
    let mut plan = tcp("reno");
    (plan.sender.ecn, plan.receiver.ecn) = (true, true);
    let ecn = outcome(&path(forward.clone(), vec![flow("f", 0, 1, plan)], 60 * SECOND));
    assert_eq!(ecn.flow("f").retransmitted_segments, 0);
    assert!(ecn.forward().marked_packets > 10);
    assert!(ecn.tcp().last().unwrap().delivered_ce_segments > 10);
    let plain = outcome(&path(forward, vec![flow("f", 0, 1, tcp("reno"))], 60 * SECOND));
    assert!(plain.flow("f").retransmitted_segments > 10);
    assert_near("ECN beside drops", ecn.goodput_mbps("f"), plain.goodput_mbps("f"), 0.1);
}

#[test]
fn newreno_repairs_what_sack_repairs_only_slower() {
    let mut forward = direction(Some(50_000_000), 20 * MS, 250_000);
    forward.line.loss = LossPlan::Bernoulli { probability: 5e-4 };
    let [with, without] = [true, false].map(|sack| {
        let mut plan = tcp("reno");
        plan.sender.sack = sack;
        outcome(&path(forward.clone(), vec![flow("f", 0, 1, plan)], 100 * SECOND)).goodput_mbps("f")
    });
    assert!(without > 0.6 * with && without < 1.05 * with, "SACK {with}, NewReno {without}");
}

#[test]
fn slow_start_doubles_the_window_every_round_trip() {
    let forward = direction(Some(10_000_000_000), 50 * MS, 1 << 30);
    let mut plan = tcp("reno");
    // One that grows with the window is a segment short at times.
    plan.sender.send_buffer = SendBuffer::Fixed(1 << 30);
    let outcome = outcome(&path(forward, vec![flow("f", 0, 1, plan)], SECOND));
    let window_at = |time_us| outcome.tcp().find(|tcp| tcp.time_us == time_us).unwrap().cwnd_segments;
    // Established after 100 ms with 10 segments; all acknowledged one round trip later.
    assert_eq!(window_at(150_000), 10);
    for round in 1..7 {
        assert_eq!(window_at(150_000 + round * 100_000), 10 << round, "round {round}");
    }
}

#[test]
fn a_tail_loss_is_probed_not_timed_out() {
    // The last segment of a short transfer is lost: a probe two round trips later repairs it (RFC 8985). On the long
    // path the probe comes when a timeout is due, and is given the time to be answered.
    for delay_ms in [10, 300] {
        let mut forward = direction(Some(100_000_000), delay_ms * MS, 1 << 20);
        let mut dark = forward.line.clone();
        dark.loss = LossPlan::Bernoulli { probability: 1.0 };
        let change = |at_ns, line| ChangePlan { at_ns, line, queue: None };
        // Segments leave after a round trip, 120 us apart; the tail of the first window is lost.
        let sent_ns = 2 * delay_ms * MS;
        forward.schedule = vec![change(sent_ns + MS, dark), change(sent_ns + 2 * MS, forward.line.clone())];
        let mut one = flow("f", 0, 1, tcp("reno"));
        one.bytes = Some(14_480);
        let outcome = outcome(&path(forward, vec![one], 10 * SECOND));
        let summary = outcome.flow("f");
        assert_eq!(summary.received_bytes, 14_480);
        assert_eq!(outcome.stats.timeouts, 0, "{delay_ms} ms");
        let most_us = (7 * 2 * delay_ms + 10) * 1000;
        assert!(summary.retransmitted_segments >= 1 && summary.duration_us < most_us, "{summary:?}");
    }
}

/// A crumb that waits for an acknowledgement keeps one of the kernel's buffers open, and what leaves in small bundles
/// makes room in it: the next write is not held up.
#[test]
fn a_program_whose_crumbs_wait_writes_beyond_its_send_buffer() {
    let most_flight_bytes = |no_delay: bool| {
        let sender =
            EndpointPlan { send_buffer: SendBuffer::Counted(250_000), no_delay, ..EndpointPlan::default() };
        let plan = TcpPlan { sender, ..tcp("reno") };
        let forward = direction(Some(20_000_000), 100 * MS, 2_000_000);
        let outcome = outcome(&path(forward, vec![flow("f", 0, 1, plan)], 10 * SECOND));
        let most = outcome.tcp().filter(|tcp| tcp.role == "sender").map(|tcp| tcp.flight_segments).max();
        u64::from(most.unwrap()) * 1448
    };
    let (waiting, at_once) = (most_flight_bytes(false), most_flight_bytes(true));
    assert!(at_once < 250_000 + (128 << 10), "{at_once}");
    assert!(waiting > 2 * 250_000, "{waiting}");
}

#[test]
fn segments_that_are_larger_than_a_bundle_are_sent() {
    let plan = TcpPlan { mtu_bytes: 65_535, ..tcp("reno") };
    let forward = direction(Some(1_000_000_000), MS, 10_000_000);
    let mut scenario = path(forward, vec![flow("f", 0, 1, plan)], 2 * SECOND);
    scenario.links[0].plan.mtu_bytes = 65_535;
    assert!(outcome(&scenario).mbps_between("f", SECOND, 2 * SECOND) > 900.0);
}
