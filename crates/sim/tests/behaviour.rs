//! What a simulation always keeps: determinism, exact accounting, records, relays, errors.

use crate::support::*;
use longfat_schema::{
    arrivals::Arrivals,
    record::{Record, RelaySample},
};
use longfat_sim::{
    EndpointPlan, Family, FlowPlan, HoldUp, NodePlan, ReceiveBuffer, RelayPlan, Scenario, ScenarioError,
    SendBuffer, Transport, UdpPlan, run,
};
use std::hash::{DefaultHasher, Hash, Hasher};

fn hash(records: &[Record]) -> u64 {
    let mut hasher = DefaultHasher::new();
    records.iter().for_each(|record| serde_json::to_string(record).unwrap().hash(&mut hasher));
    hasher.finish()
}

fn lossy() -> Scenario {
    let mut forward = direction(Some(20_000_000), 15 * MS, 60_000);
    forward.line.loss = longfat_link::plan::LossPlan::Bernoulli { probability: 1e-3 };
    forward.line.jitter_ns = 50_000;
    path(forward, vec![flow("a", 0, 1, tcp("reno")), flow("b", 0, 1, tcp("highspeed"))], 10 * SECOND)
}

#[test]
fn the_same_seed_gives_the_same_records_and_another_seed_others() {
    let mut scenario = lossy();
    let first = hash(&outcome(&scenario).records);
    assert_eq!(first, hash(&outcome(&scenario).records));
    scenario.seed += 1;
    assert_ne!(first, hash(&outcome(&scenario).records));
}

#[test]
fn every_byte_of_a_transfer_arrives_once() {
    let mut scenario = lossy();
    scenario.flows.iter_mut().for_each(|flow| flow.bytes = Some(5_000_001));
    let outcome = outcome(&scenario);
    for name in ["a", "b"] {
        assert_eq!(outcome.flow(name).received_bytes, 5_000_001);
        assert_eq!(outcome.bytes_between(name, 0, 10 * SECOND), 5_000_001);
        let last = outcome.tcp().filter(|tcp| tcp.flow == name).last().unwrap();
        assert_eq!(last.acked_bytes, 5_000_001);
        assert_eq!(last.sent_bytes - last.retransmitted_bytes, 5_000_001);
        assert_eq!(last.flight_segments, 0);
    }
}

#[test]
fn a_rate_limited_application_sends_at_its_rate() {
    let mut one = flow("f", 0, 1, tcp("reno"));
    one.rate_bps = Some(5_000_000);
    one.start_ns = SECOND;
    one.send_for_ns = Some(8 * SECOND);
    let outcome = outcome(&path(direction(Some(50_000_000), 10 * MS, 1 << 20), vec![one], 12 * SECOND));
    let rate = outcome.mbps_between("f", SECOND, 9 * SECOND);
    assert!((rate - 5.0).abs() < 0.2, "{rate}");
    assert_eq!(outcome.bytes_between("f", 0, SECOND), 0);
    assert_eq!(outcome.bytes_between("f", 9_500 * MS, 12 * SECOND), 0);
    // A window that is not used does not grow (RFC 7661).
    assert!(outcome.tcp().all(|tcp| tcp.cwnd_segments < 400));
}

#[test]
fn echo_latency_is_queueing_plus_round_trip() {
    let mut plan = tcp("reno");
    plan.echo_every_bytes = Some(100_000);
    plan.receiver.receive_buffer = ReceiveBuffer::Fixed(100 * 1448);
    plan.sender.send_buffer = SendBuffer::Fixed(200 * 1448);
    // 100 segments in flight at 10 Mbit/s: 120 ms in the queue and on the wire, 200 in the buffer.
    let forward = direction(Some(10_000_000), 10 * MS, 1 << 20);
    let outcome = outcome(&path(forward, vec![flow("f", 0, 1, plan)], 20 * SECOND));
    let summary = outcome.flow("f");
    assert!(summary.echo_count > 200, "{summary:?}");
    let p50_ms = summary.echo_p50_us.unwrap() as f64 / 1000.0;
    assert!((120.0..300.0).contains(&p50_ms), "{p50_ms}");
    let echoes = outcome.records.iter().filter(|record| matches!(record, Record::Echo(_))).count();
    assert_eq!(echoes as u64, summary.echo_count);
}

/// Slow start overflows a short queue, and 80 losses are repaired one per round trip, since nothing is acknowledged
/// selectively.
fn long_repair(receive_buffer: ReceiveBuffer) -> Outcome {
    let mut plan = tcp("reno");
    plan.sender.sack = false;
    plan.sender.send_buffer = SendBuffer::Fixed(1 << 30);
    plan.receiver.receive_buffer = receive_buffer;
    outcome(&path(direction(Some(200_000_000), 20 * MS, 64_000), vec![flow("f", 0, 1, plan)], 2 * SECOND))
}

#[test]
fn a_buffer_that_grows_with_what_is_read_holds_a_sender_back_while_nothing_can_be_read() {
    let waited_us = |outcome: &Outcome| outcome.tcp().map(|tcp| tcp.rwnd_limited_us).max().unwrap();
    let sent_bytes = |outcome: &Outcome| outcome.tcp().map(|tcp| tcp.sent_bytes).max().unwrap();
    let growing = long_repair(ReceiveBuffer::Auto { first_bytes: 65_536, most_bytes: 16 << 20 });
    let ample = long_repair(ReceiveBuffer::Fixed(16 << 20));
    assert_eq!(waited_us(&ample), 0);
    assert!(waited_us(&growing) > 1_000_000, "{}", waited_us(&growing));
    assert!(3 * sent_bytes(&growing) < 2 * sent_bytes(&ample), "{}", sent_bytes(&growing));
    // Six times what was read in a round trip of slow start, and no more until the hole is closed.
    let buffer_bytes = growing.flow("f").rcvbuf_bytes;
    assert!((300_000..1_000_000).contains(&buffer_bytes), "{buffer_bytes}");
}

#[test]
fn a_buffer_that_grows_does_not_slow_a_flow_that_loses_nothing() {
    let rate = |receive_buffer| {
        let mut plan = tcp("reno");
        plan.receiver.receive_buffer = receive_buffer;
        let forward = direction(Some(200_000_000), 20 * MS, 4 << 20);
        outcome(&path(forward, vec![flow("f", 0, 1, plan)], 3 * SECOND)).goodput_mbps("f")
    };
    let growing = rate(ReceiveBuffer::Auto { first_bytes: 65_536, most_bytes: 16 << 20 });
    let ample = rate(ReceiveBuffer::Fixed(16 << 20));
    assert!(growing > 0.99 * ample, "{growing} {ample}");
    let short = rate(ReceiveBuffer::Auto { first_bytes: 65_536, most_bytes: 250_000 });
    assert!(short < 52.0, "a quarter of the pipe: {short}");
}

fn udp(arrivals: Arrivals) -> FlowPlan {
    let mut one = flow("udp", 0, 1, tcp("reno"));
    one.rate_bps = Some(8_000_000);
    one.transport = Transport::Udp(UdpPlan { datagram_bytes: 1000, family: Family::Ipv4, arrivals, seed: 5 });
    one
}

#[test]
fn bytes_that_wait_unsent_are_bounded_and_an_echo_waits_no_longer() {
    let p50_ms = |unsent_limit_bytes| {
        let mut plan = tcp("reno");
        plan.echo_every_bytes = Some(100_000);
        plan.sender.send_buffer = SendBuffer::Fixed(4 << 20);
        plan.sender.unsent_limit_bytes = unsent_limit_bytes;
        // At most 40 + 50 ms in the queue and on the wire.
        let forward = direction(Some(20_000_000), 20 * MS, 125_000);
        let outcome = outcome(&path(forward, vec![flow("f", 0, 1, plan)], 20 * SECOND));
        let most = outcome.tcp().map(|tcp| tcp.unsent_bytes).max().unwrap();
        assert!(most <= unsent_limit_bytes.unwrap_or(4 << 20), "{most}");
        assert!(outcome.goodput_mbps("f") > 18.0, "{}", outcome.goodput_mbps("f"));
        outcome.flow("f").echo_p50_us.unwrap() as f64 / 1000.0
    };
    // 100 KB at 20 Mbit/s are 40 ms; the whole buffer is more than a second.
    let (bounded, whole) = (p50_ms(Some(100_000)), p50_ms(None));
    assert!(bounded < 150.0 && whole > 1000.0, "{bounded} and {whole} ms");
}

#[test]
fn connections_stand_before_their_traffic_begins_and_time_counts_from_there() {
    let mut one = flow("f", 0, 1, tcp("reno"));
    one.start_ns = SECOND;
    let mut scenario = path(direction(Some(20_000_000), 100 * MS, 1 << 20), vec![one], 3 * SECOND);
    let start_us = |scenario: &Scenario| outcome(scenario).flow("f").start_us;
    assert!(start_us(&scenario) >= 1_200_000, "a round trip later: {}", start_us(&scenario));
    scenario.settle_ns = SECOND;
    assert_eq!(start_us(&scenario), 1_000_000);
    let outcome = outcome(&scenario);
    let times: Vec<i64> = outcome.tcp().map(|tcp| tcp.time_us).collect();
    assert_eq!((times.first(), times.last()), (Some(&210_000), Some(&3_000_000)));
    // The first bytes arrive one way later.
    assert_eq!(outcome.bytes_between("f", 0, 1_100 * MS), 0);
    assert!(outcome.bytes_between("f", 1_100 * MS, 1_120 * MS) > 0);
}

#[test]
fn a_host_that_does_not_forward_is_no_way_through() {
    let lan = link("lan", [0, 1], direction(Some(10_000_000), MS, 1 << 20));
    let wan = link("wan", [1, 2], direction(Some(10_000_000), MS, 1 << 20));
    let mut scenario = path(direction(None, 0, 1), vec![flow("f", 0, 2, tcp("reno"))], SECOND);
    scenario.nodes = ["a", "b", "c"].map(NodePlan::router).to_vec();
    scenario.links = vec![lan, wan];
    assert!(run(&scenario, |_| {}, |_| true).is_ok());
    scenario.nodes[1].forwards = false;
    let error = run(&scenario, |_| {}, |_| true).unwrap_err();
    assert_eq!(error, ScenarioError::NoPath { from: "a".into(), to: "c".into() });
}

#[test]
fn datagrams_leave_at_their_rate_and_the_excess_is_lost() {
    let wide = outcome(&path(
        direction(Some(50_000_000), 10 * MS, 1 << 20),
        vec![udp(Arrivals::Constant)],
        10 * SECOND,
    ));
    assert_eq!(wide.flow("udp").lost_datagrams, 0);
    assert!((wide.goodput_mbps("udp") - 8.0).abs() < 0.1, "{}", wide.goodput_mbps("udp"));
    let narrow = outcome(&path(
        direction(Some(4_112_000), 10 * MS, 20_000),
        vec![udp(Arrivals::Poisson)],
        10 * SECOND,
    ));
    let share = narrow.flow("udp").lost_datagrams as f64 / 10_000.0;
    assert!((share - 0.5).abs() < 0.05, "{share} lost");
}

fn relayed(relay_window_bytes: u64) -> Scenario {
    let lan = link("lan", [0, 1], direction(Some(1_000_000_000), MS / 2, 1 << 20));
    let mut wan = link("wan", [1, 2], direction(Some(20_000_000), 40 * MS, 200_000));
    wan.plan.forward.line.loss = longfat_link::plan::LossPlan::Bernoulli { probability: 1e-4 };
    let end = EndpointPlan {
        receive_buffer: ReceiveBuffer::Fixed(relay_window_bytes),
        send_buffer: SendBuffer::Fixed(relay_window_bytes),
        ..EndpointPlan::default()
    };
    let mut plan = tcp("reno");
    plan.relay = Some(0);
    plan.echo_every_bytes = Some(1_000_000);
    let mut one = flow("f", 0, 2, plan);
    one.bytes = Some(20_000_000);
    let server_side = EndpointPlan { cc: "highspeed".into(), ..end.clone() };
    Scenario {
        nodes: ["client", "relay", "server"].map(NodePlan::router).to_vec(),
        links: vec![lan, wan],
        flows: vec![one],
        relays: vec![RelayPlan {
            name: "pep".into(),
            node: 1,
            queue: None,
            buffer_bytes: 256 << 10,
            filling_bytes: 256 << 10,
            client_side: end,
            server_side,
        }],
        ..path(direction(None, 0, 1), Vec::new(), 60 * SECOND)
    }
}

#[test]
fn a_relay_passes_every_byte_on_and_holds_no_more_than_its_buffers() {
    let window = 400_000;
    let outcome = outcome(&relayed(window));
    assert_eq!(outcome.flow("f").received_bytes, 20_000_000);
    assert_eq!(outcome.flow("f").echo_count, 20);
    assert_eq!(outcome.flow("f").cc_sender, "lf_reno");
    let relay: Vec<&RelaySample> = outcome
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Relay(relay) if relay.direction == "client_to_server" => Some(relay),
            _ => None,
        })
        .collect();
    let most = relay.iter().map(|relay| relay.backlog_bytes).max().unwrap();
    assert!(most <= 2 * window + (256 << 10) && most > window, "{most}");
    assert!(relay.iter().all(|r| r.backlog_bytes == r.unread_bytes + r.held_bytes + r.unacked_bytes));
    assert_eq!(relay.last().unwrap().relayed_bytes, 20_000_000);
    let roles: Vec<_> = outcome.tcp().map(|tcp| (tcp.role.as_str(), tcp.cc.as_str())).collect();
    assert!(roles.contains(&("relay_out", "lf_highspeed")) && roles.contains(&("relay_in", "lf_reno")));
}

#[test]
fn a_relay_fills_its_buffer_when_it_is_empty_so_both_sockets_hold_more_than_it_does() {
    let mut scenario = relayed(64_000);
    scenario.links[1].plan.forward = direction(Some(20_000_000), 40 * MS, 1 << 20);
    let mean_bytes = |scenario: &Scenario| {
        let outcome = outcome(scenario);
        let held = outcome.records.iter().filter_map(|record| match record {
            Record::Relay(relay) if relay.direction == "client_to_server" => Some(relay.backlog_bytes),
            _ => None,
        });
        let held: Vec<u64> = held.filter(|bytes| *bytes > 0).collect();
        held.iter().sum::<u64>() / held.len() as u64
    };
    // What is read when the buffer is empty is at most what the client's window let wait then.
    let own = mean_bytes(&scenario);
    assert!((64_000..192_000).contains(&own), "{own}");
    scenario.relays[0].filling_bytes = 10_000;
    let less = mean_bytes(&scenario);
    assert!((64_000..=138_000).contains(&less) && less < own, "{less} and {own}");
    scenario.relays[0].filling_bytes = 0;
    assert!(run(&scenario, |_| {}, |_| true).is_err());
}

/// Nothing else happens before the first acknowledgement: what the window lets leave leaves at once.
#[test]
fn a_program_that_lets_little_wait_writes_on_as_long_as_its_bytes_leave() {
    for echo_every_bytes in [None, Some(128_000)] {
        let mut plan = tcp("reno");
        plan.echo_every_bytes = echo_every_bytes;
        plan.sender.unsent_limit_bytes = Some(8_192);
        let outcome = outcome(&path(direction(None, 100 * MS, 1 << 20), vec![flow("f", 0, 1, plan)], SECOND));
        let first = outcome.tcp().filter(|tcp| tcp.time_us < 390_000);
        assert_eq!(first.map(|tcp| tcp.flight_segments).max(), Some(10), "{echo_every_bytes:?}");
    }
}

/// What a sender has in flight at most, whose application lets little wait unsent, and how much of it was lost.
fn with_little_waiting(tso_win_divisor: Option<u8>) -> (u32, u64, f64) {
    let mut plan = tcp("reno");
    plan.echo_every_bytes = Some(128_000);
    plan.sender.unsent_limit_bytes = Some(16_384);
    plan.sender.tso_win_divisor = tso_win_divisor;
    let forward = direction(Some(100_000_000), MS / 10, 64_000);
    let outcome = outcome(&path(forward, vec![flow("f", 0, 1, plan)], 10 * SECOND));
    let settled = outcome.tcp().filter(|tcp| tcp.time_us > 3_000_000);
    let most = settled.map(|tcp| tcp.flight_segments).max().unwrap();
    (most, outcome.forward().dropped_packets, outcome.goodput_mbps("f"))
}

/// Linux 6.18, emulated: 5 packets dropped in 10 s where the kernel waits with small bundles, 213 where it does not.
#[test]
fn who_waits_with_small_bundles_and_has_little_to_send_does_not_fill_its_window() {
    let (most, dropped, mbps) = with_little_waiting(None);
    assert!(most >= 40 && dropped > 50 && mbps > 95.0, "{most}, {dropped}, {mbps}");
    let (most, dropped, mbps) = with_little_waiting(Some(3));
    assert!(most < 40 && dropped < 50 && mbps > 95.0, "{most}, {dropped}, {mbps}");
    // A share of the window that is less than a segment is worth sending at once.
    let (most, dropped, _) = with_little_waiting(Some(255));
    assert!(most >= 40 && dropped > 50, "{most}, {dropped}");
}

#[test]
fn who_waits_with_small_bundles_and_has_much_to_send_fills_the_path() {
    let rate = |tso_win_divisor| {
        let mut plan = tcp("reno");
        plan.sender.tso_win_divisor = tso_win_divisor;
        let forward = direction(Some(100_000_000), 10 * MS, 125_000);
        outcome(&path(forward, vec![flow("f", 0, 1, plan)], 20 * SECOND)).goodput_mbps("f")
    };
    let (at_once, waits, none) = (rate(None), rate(Some(3)), rate(Some(0)));
    assert!(
        (waits / at_once - 1.0).abs() < 0.05 && (none / at_once - 1.0).abs() < 0.05,
        "{at_once} {waits} {none}"
    );
}

#[test]
fn a_relay_acknowledges_early_so_the_lan_side_sees_a_short_round_trip() {
    let outcome = outcome(&relayed(4_000_000));
    let min_us = outcome.flow("f").min_rtt_us.unwrap();
    assert!(min_us < 2_000, "{min_us}");
    assert!(outcome.goodput_mbps("f") > 10.0, "{}", outcome.goodput_mbps("f"));
}

#[test]
fn a_relays_closed_window_opens_again() {
    // The buffers are far smaller than what one window of the fast leg brings: its window closes all the time.
    let outcome = outcome(&relayed(20_000));
    let received = outcome.flow("f").received_bytes;
    // 20 KB per 80 ms round trip of the long leg, at least: 2 Mbit/s.
    assert!(received > 8_000_000, "{received}");
}

/// As Linux does: probes of a closed window wait twice as long each time, the retransmission timer does not; and the
/// window of congestion is halved for each timeout of idleness, whatever probes there were.
#[test]
fn whom_a_closed_window_stopped_for_long_begins_anew_with_its_first_window() {
    const DARK_US: std::ops::Range<i64> = 3_000_000..12_000_000;
    let mut scenario = relayed(400_000);
    scenario.links[0].plan.forward.line.delay_ns = 20 * MS;
    scenario.flows[0].bytes = None;
    let line = scenario.links[1].plan.forward.line.clone();
    let dark = longfat_link::plan::LossPlan::Bernoulli { probability: 1.0 };
    scenario.links[1].plan.forward.schedule = [(DARK_US.start, Some(dark)), (DARK_US.end, None)]
        .map(|(at_us, loss)| {
            let loss = loss.unwrap_or(line.loss.clone());
            let line = longfat_link::plan::LinePlan { loss, ..line.clone() };
            longfat_link::plan::ChangePlan { at_ns: at_us as u64 * 1000, line, queue: None }
        })
        .to_vec();
    let outcome = outcome(&Scenario { duration_ns: 30 * SECOND, ..scenario });
    let client = |range: std::ops::Range<i64>| {
        let samples = outcome.tcp().filter(|tcp| tcp.role == "sender");
        samples.filter(move |tcp| range.contains(&tcp.time_us)).cloned().collect::<Vec<_>>()
    };
    let idle = client(6_000_000..DARK_US.end);
    assert!(idle.iter().all(|tcp| tcp.flight_segments == 0 && tcp.rto_us < 400_000), "{:?}", idle.last());
    let stopped_with = idle.last().unwrap().cwnd_segments;
    assert!(stopped_with > 40, "{stopped_with}");
    // Once the relay's buffer has moved on.
    let after = client(DARK_US.end..30_000_000);
    let again = after.iter().find(|tcp| tcp.flight_segments > 0).unwrap();
    assert!(again.cwnd_segments < stopped_with / 2, "{again:?}");
}

#[test]
fn paced_segments_leave_one_by_one() {
    let mut plan = tcp("reno");
    plan.sender.pacing = true;
    // The queue holds two packets: a burst of ten would lose eight.
    let forward = direction(Some(100_000_000), 50 * MS, 4_000);
    let mut one = flow("f", 0, 1, plan);
    one.bytes = Some(29 * 1448);
    let outcome = outcome(&path(forward, vec![one], 5 * SECOND));
    assert_eq!(outcome.flow("f").received_bytes, 29 * 1448);
    assert_eq!(outcome.flow("f").retransmitted_segments, 0);
    assert!(outcome.tcp().any(|tcp| tcp.pacing_rate_bps.is_some()));
}

#[test]
fn a_simulation_that_is_told_to_stop_stops() {
    let scenario =
        path(direction(Some(1_000_000_000), MS, 1 << 20), vec![flow("f", 0, 1, tcp("reno"))], 3600 * SECOND);
    let stats = run(&scenario, |_| {}, |_| false).unwrap();
    assert!(stats.stopped && stats.time_ns < SECOND, "{stats:?}");
}

#[test]
fn a_wrong_scenario_names_the_thing_and_the_mend() {
    let message = |scenario: &Scenario| run(scenario, |_| {}, |_| true).unwrap_err().to_string();
    let mut scenario = path(direction(Some(1000), 0, 1500), vec![flow("f", 0, 1, tcp("renoo"))], SECOND);
    assert!(message(&scenario).contains("flow 'f': no algorithm is called 'renoo'; did you mean 'reno'?"));
    scenario.flows = vec![flow("f", 0, 5, tcp("reno"))];
    assert_eq!(message(&scenario), "flow 'f' names node 5, but there are 2; indices begin with 0");
    scenario.flows = vec![flow("f", 1, 1, tcp("reno"))];
    assert!(message(&scenario).contains("begins and ends at 'b'"));
    scenario.flows = vec![flow("f", 0, 1, tcp("reno"))];
    scenario.links.clear();
    let error = run(&scenario, |_| {}, |_| true).unwrap_err();
    assert_eq!(error, ScenarioError::NoPath { from: "a".into(), to: "b".into() });
}

/// A flow that fills a path of 667 segments with 660, before a queue of 64 KB that it hardly needs, since it begins
/// slowly. One of the hosts (0 sends) is held up for so long after 2 s.
fn held_up(host: usize, for_ms: u64) -> Outcome {
    let mut plan = tcp("reno");
    plan.sender.settings = vec!["max_ssthresh_segments=40".to_owned()];
    plan.receiver.receive_buffer = ReceiveBuffer::Fixed(660 * 1448);
    let mut scenario =
        path(direction(Some(200_000_000), 20 * MS, 64_000), vec![flow("f", 0, 1, plan)], 3 * SECOND);
    scenario.sample_every_ns = MS;
    scenario.nodes[host].hold_ups = (for_ms > 0)
        .then_some(HoldUp { from_ns: 2 * SECOND, to_ns: 2 * SECOND + for_ms * MS })
        .into_iter()
        .collect();
    outcome(&scenario)
}

#[test]
fn a_host_that_is_held_up_takes_nothing_and_then_all_that_came() {
    let (free, held) = (held_up(1, 0), held_up(1, 6));
    let at = |ms: u64| 2 * SECOND + ms * MS;
    assert_eq!(held.bytes_between("f", at(0), at(5)), 0);
    let caught_up = held.bytes_between("f", at(5), at(7));
    let meanwhile = free.bytes_between("f", at(0), at(7));
    assert!(
        caught_up > 100 * 1448 && caught_up.abs_diff(meanwhile) <= 3 * 1448,
        "{caught_up} of {meanwhile}"
    );
    assert_eq!(held.bytes_between("f", 0, at(0)), free.bytes_between("f", 0, at(0)), "nothing before");
}

#[test]
fn the_clump_of_a_host_that_was_held_up_overflows_a_queue_that_its_flow_would_not_have_filled() {
    let dropped = |host, for_ms| held_up(host, for_ms).forward().dropped_packets;
    // The queue drains in 2.6 ms.
    assert_eq!([dropped(0, 0), dropped(0, 1), dropped(1, 1)], [0; 3]);
    assert!(dropped(0, 8) > 50, "a sender: {}", dropped(0, 8));
    assert!(dropped(1, 8) > 50, "a receiver: {}", dropped(1, 8));
}

#[test]
fn a_sender_that_is_held_up_sends_nothing_meanwhile() {
    let sent_bytes = |outcome: &Outcome, at_ms: i64| {
        outcome.tcp().find(|tcp| tcp.time_us == at_ms * 1000).unwrap().sent_bytes
    };
    let held = held_up(0, 6);
    assert_eq!(sent_bytes(&held, 2_001), sent_bytes(&held, 2_005));
    assert!(sent_bytes(&held, 2_007) > sent_bytes(&held, 2_005) + 90 * 1448, "what 6 ms are at that rate");
}

#[test]
fn what_passes_a_router_that_is_held_up_and_what_a_source_of_datagrams_owes_comes_when_it_goes_on() {
    let mut scenario = path(direction(None, 0, 1), vec![udp(Arrivals::Constant)], SECOND);
    scenario.nodes = ["a", "b", "c"].map(NodePlan::router).to_vec();
    let cable = |name, ends| link(name, ends, direction(Some(1_000_000_000), MS, 1 << 20));
    scenario.links = vec![cable("lan", [0, 1]), cable("wan", [1, 2])];
    scenario.flows[0].to = 2;
    for node in [0, 1] {
        let mut scenario = scenario.clone();
        scenario.nodes[node].hold_ups = vec![HoldUp { from_ns: 500 * MS, to_ns: 600 * MS }];
        let outcome = outcome(&scenario);
        assert_eq!(outcome.bytes_between("udp", 510 * MS, 600 * MS), 0, "node {node}");
        let caught_up = outcome.bytes_between("udp", 600 * MS, 620 * MS);
        // 100 datagrams of the hold-up, and those of 20 ms.
        assert!((115_000..=121_000).contains(&caught_up), "node {node}: {caught_up}");
        assert_eq!(outcome.flow("udp").lost_datagrams, 0);
    }
}

#[test]
fn a_hold_up_that_ends_before_it_begins_is_refused_with_its_node() {
    let mut scenario = path(direction(Some(1000), 0, 1500), vec![flow("f", 0, 1, tcp("reno"))], SECOND);
    scenario.nodes[1].hold_ups = vec![HoldUp { from_ns: 7, to_ns: 7 }];
    let error = run(&scenario, |_| {}, |_| true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "node 'b': the end of a hold-up in ns is 7; it must be later than its beginning"
    );
}

#[test]
fn packets_of_ipv6_have_its_header_and_carry_less() {
    let goodput = |family: Family| {
        let plan = longfat_sim::TcpPlan { family, ..tcp("reno") };
        let full =
            path(direction(Some(10_000_000), 5 * MS, 100_000), vec![flow("f", 0, 1, plan)], 20 * SECOND);
        let outcome = outcome(&full);
        (outcome.flow("f").mss_bytes, outcome.goodput_mbps("f"))
    };
    let ((four_mss, four), (six_mss, six)) = (goodput(Family::Ipv4), goodput(Family::Ipv6));
    assert_eq!((four_mss, six_mss), (1448, 1428));
    assert!((six / four - 1428.0 / 1448.0).abs() < 0.002, "{four} and {six} Mbit/s of 1500-byte packets");

    let datagrams = |family| {
        let mut one = udp(Arrivals::Constant);
        one.transport =
            Transport::Udp(UdpPlan { datagram_bytes: 1000, family, arrivals: Arrivals::Constant, seed: 5 });
        let outcome = outcome(&path(direction(Some(20_000_000), 5 * MS, 100_000), vec![one], 2 * SECOND));
        let link = outcome.forward();
        link.delivered_bytes / link.delivered_packets
    };
    assert_eq!((datagrams(Family::Ipv4), datagrams(Family::Ipv6)), (1028, 1048));
}

#[test]
fn what_arrives_is_counted_however_seldom_samples_are_taken_and_to_the_end() {
    for sample_every_ns in [10 * MS, 70 * MS, 150 * MS, 2 * SECOND, 50 * SECOND] {
        let mut scenario = path(
            direction(Some(10_000_000), 5 * MS, 100_000),
            vec![flow("f", 0, 1, tcp("reno"))],
            3 * SECOND,
        );
        scenario.sample_every_ns = sample_every_ns;
        let outcome = outcome(&scenario);
        let intervals: Vec<_> = outcome
            .records
            .iter()
            .filter_map(|record| if let Record::Interval(sample) = record { Some(sample) } else { None })
            .collect();
        let longest_us = intervals.iter().map(|sample| sample.duration_us).max().unwrap();
        assert!(longest_us <= 100_000.min(sample_every_ns / 1000), "{sample_every_ns}: {longest_us} us");
        assert_eq!(intervals.iter().map(|sample| sample.duration_us).sum::<u64>(), 3_000_000);
        let bytes: u64 = intervals.iter().map(|sample| sample.bytes).sum();
        assert_eq!(bytes, outcome.flow("f").received_bytes, "{sample_every_ns}");
        let last_us = intervals.last().unwrap().time_us;
        assert_eq!(last_us, 3_000_000);
        let samples = outcome.tcp().count() as u64;
        assert!(samples <= 3 * SECOND / sample_every_ns, "{samples}");
    }
}
