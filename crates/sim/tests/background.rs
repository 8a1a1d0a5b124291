//! ImTCP-bg in the simulator: what several background transfers leave to others, and to each other.

use crate::support::*;
use longfat_schema::record::Record;
use longfat_sim::{EndpointPlan, FlowPlan, Scenario, TcpPlan};

const BACKGROUND: u32 = 4;
const END: u64 = 45 * SECOND;
/// When all have found their shares.
const SETTLED: u64 = 15 * SECOND;

/// Ten connections that windows of 17 segments bound to about two thirds of 100 Mbit/s x 30 ms.
fn foreground() -> FlowPlan {
    let receiver = EndpointPlan { window_bytes: Some(17 * 1448), ..EndpointPlan::default() };
    let flow = flow("foreground", 0, 1, TcpPlan { receiver, ..TcpPlan::default() });
    FlowPlan { streams: 10, ..flow }
}

fn background(streams: u32) -> FlowPlan {
    FlowPlan { streams, stagger_ns: SECOND, ..flow("background", 0, 1, tcp("imtcp_bg")) }
}

fn run(flows: Vec<FlowPlan>, seed: u64) -> Outcome {
    let scenario = path(direction(Some(100_000_000), 15 * MS, 375_000), flows, END);
    outcome(&Scenario { start_within_ns: 100 * MS, seed, ..scenario })
}

/// Bytes of each background transfer once settled.
fn shares(outcome: &Outcome) -> Vec<f64> {
    let of = |number: u32| {
        let bytes = outcome.records.iter().filter_map(|record| match record {
            Record::Interval(row)
                if row.flow == "background"
                    && row.stream == number
                    && row.time_us > (SETTLED / 1000) as i64 =>
            {
                Some(row.bytes)
            }
            _ => None,
        });
        bytes.sum::<u64>() as f64
    };
    (0..BACKGROUND).map(of).collect()
}

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}

#[test]
fn background_transfers_take_what_is_free_and_leave_the_foreground_what_it_had() {
    for (streams, seed) in [(1, 1), (1, 2), (1, 3), (BACKGROUND, 1), (BACKGROUND, 2)] {
        let alone = run(vec![foreground()], seed).mbps_between("foreground", SETTLED, END);
        let together = run(vec![foreground(), background(streams)], seed);
        let beside = together.mbps_between("foreground", SETTLED, END);
        assert!(beside > 0.98 * alone, "{beside} Mbit/s beside {streams}, {alone} alone (seed {seed})");
        let (taken, free) = (together.mbps_between("background", SETTLED, END), 96.5 - alone);
        // One fills the path even where it finds too little: what it carries without a queue, it may have.
        let least = if streams == 1 { 0.95 } else { 0.85 };
        assert!(taken > least * free, "{streams} take {taken} of {free} Mbit/s (seed {seed})");
    }
}

#[test]
fn background_transfers_alone_fill_the_path_and_share_it_equally() {
    let outcome = run(vec![background(BACKGROUND)], 1);
    let (taken, shares) = (outcome.mbps_between("background", SETTLED, END), shares(&outcome));
    assert!(taken > 0.8 * 96.5, "{taken} Mbit/s");
    assert!(jain(&shares) > 0.9, "Jain's index {} of {shares:?}", jain(&shares));
}

/// On slow links a segment takes longer than a queue may, and a receiver delays the acknowledgement of a lone one:
/// neither is others' traffic.
#[test]
fn on_a_slow_link_two_segments_in_a_row_and_delayed_acknowledgements_are_no_queue() {
    for (rate_bps, delay_ns, from_s) in [
        (1_000_000, 15 * MS, 15),
        (5_000_000, 15 * MS, 15),
        (5_000_000, 30 * MS, 15),
        (1_000_000, 100 * MS, 150),
    ] {
        let alone = flow("background", 0, 1, tcp("imtcp_bg"));
        let end_ns = 2 * from_s * SECOND;
        let outcome = outcome(&path(direction(Some(rate_bps), delay_ns, 100_000), vec![alone], end_ns));
        let used = outcome.mbps_between("background", from_s * SECOND, end_ns) * 1e6 / rate_bps as f64;
        assert!(used > 0.8, "{rate_bps} bit/s, {delay_ns} ns: {used} of the rate");
    }
}

#[test]
fn tcp_lp_finds_the_path_again_when_another_flow_has_gone() {
    for delay_ns in [30 * MS, 80 * MS] {
        let other = FlowPlan {
            start_ns: 20 * SECOND,
            send_for_ns: Some(20 * SECOND),
            ..flow("other", 0, 1, tcp("cubic"))
        };
        let flows = vec![flow("background", 0, 1, tcp("tcp_lp")), other];
        let outcome = outcome(&path(direction(Some(5_000_000), delay_ns, 100_000), flows, 80 * SECOND));
        let after = outcome.mbps_between("background", 60 * SECOND, 80 * SECOND);
        assert!(after > 2.0, "{delay_ns} ns: {after} Mbit/s of 5");
    }
}
