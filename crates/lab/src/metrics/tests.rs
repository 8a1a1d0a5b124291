use super::*;
use crate::plan::tests_support::plan;
use longfat_schema::{metric::NAMES, record::*};
use proptest::prelude::*;

const SECOND: i64 = 1_000_000;

/// A window from 1 s to 3 s over a flow of two streams and an emulated link of 100 Mbit/s.
fn figures(samples: &Samples) -> Vec<Metric> {
    metrics(&plan(), samples, None)
}

fn figure(found: &[Metric], metric: &str, of: &str, stream: Option<u32>) -> Option<f64> {
    found.iter().find(|m| m.metric == metric && m.of == of && m.stream == stream).map(|m| m.value)
}

fn interval(end_s: f64, stream: u32, bytes: u64) -> IntervalSample {
    IntervalSample {
        time_us: (end_s * 1e6) as i64,
        duration_us: 1_000_000,
        flow: "measured".into(),
        stream,
        bytes,
    }
}

#[test]
fn goodput_counts_the_bytes_of_the_window_and_shares_of_what_crosses_its_edges() {
    // Stream 0: one interval before the window, one across its start (half counts), one inside, one across its end.
    let interval = vec![
        interval(0.9, 0, 1_000_000),
        interval(1.5, 0, 1_000_000),
        interval(2.5, 0, 1_000_000),
        interval(3.5, 0, 1_000_000),
        interval(2.0, 1, 500_000),
    ];
    let found = figures(&Samples { interval, ..Samples::default() });
    assert_eq!(figure(&found, "goodput_bps", "measured", Some(0)), Some(8e6));
    assert_eq!(figure(&found, "goodput_bps", "measured", Some(1)), Some(2e6));
    assert_eq!(figure(&found, "goodput_bps", "measured", None), Some(10e6));
    let jain = figure(&found, "fairness_jain", "", None).unwrap();
    assert!((jain - 100.0 / (2.0 * 68.0)).abs() < 1e-9, "{jain}");
}

#[test]
fn an_idle_flow_has_no_goodput_and_fairness_says_nothing() {
    let found = figures(&Samples::default());
    assert_eq!(figure(&found, "goodput_bps", "measured", None), Some(0.0));
    assert_eq!(figure(&found, "fairness_jain", "", None), None);
    assert_eq!(figure(&found, "echo_p50_us", "measured", None), None);
    assert!(found.iter().all(|metric| metric.value.is_finite()));
}

#[test]
fn echoes_sent_in_the_window_count() {
    let echo = |time_s: f64, latency_us| EchoSample {
        time_us: (time_s * 1e6) as i64,
        flow: "measured".into(),
        latency_us,
        ..EchoSample::default()
    };
    let mut list: Vec<_> = (1..=100).map(|n| echo(2.0, n * 10)).collect();
    list.extend([echo(0.5, 99_999), echo(3.0, 99_999)]);
    let found = figures(&Samples { echo: list, ..Samples::default() });
    assert_eq!(figure(&found, "echo_p50_us", "measured", None), Some(500.0));
    assert_eq!(figure(&found, "echo_p99_us", "measured", None), Some(990.0));
    assert_eq!(figure(&found, "echo_max_us", "measured", None), Some(1000.0));
}

fn tcp(time_s: f64, role: &str, flow: &str, cwnd: u32, retransmitted: u64) -> TcpSample {
    TcpSample {
        time_us: (time_s * 1e6) as i64,
        flow: flow.into(),
        role: role.into(),
        cwnd_segments: cwnd,
        srtt_us: 1000,
        min_rtt_us: Some(900),
        retransmitted_segments: retransmitted,
        ..TcpSample::default()
    }
}

#[test]
fn retransmissions_grow_over_the_window_and_each_leg_of_a_relay_has_its_own() {
    let tcp = vec![
        tcp(0.5, "sender", "measured", 10, 4),
        tcp(1.5, "sender", "measured", 20, 8),
        tcp(2.5, "sender", "measured", 40, 10),
        tcp(3.5, "sender", "measured", 80, 20),
        tcp(2.0, "receiver", "measured", 1000, 1000),
        tcp(2.0, "relay_out", "pep", 7, 0),
    ];
    let found = figures(&Samples { tcp, ..Samples::default() });
    // 6 at 1 s (between 4 and 8), 15 at 3 s (between 10 and 20).
    assert_eq!(figure(&found, "retransmitted_segments", "measured", None), Some(9.0));
    assert_eq!(figure(&found, "cwnd_mean_segments", "measured", None), Some(30.0));
    assert_eq!(figure(&found, "srtt_mean_us", "measured", None), Some(1000.0));
    assert_eq!(figure(&found, "min_rtt_us", "measured", None), Some(900.0));
    assert_eq!(figure(&found, "cwnd_mean_segments", "pep/relay_out", None), Some(7.0));
}

fn queue(time_s: f64, depth: u64, delivered: u64, dropped: u64) -> QueueSample {
    QueueSample {
        time_us: (time_s * 1e6) as i64,
        link: "path".into(),
        direction: "forward".into(),
        queue_bytes: depth,
        delivered_bytes: delivered,
        dropped_packets: dropped,
        ..QueueSample::default()
    }
}

#[test]
fn a_queue_is_averaged_over_time_not_over_samples() {
    // 1000 bytes from 1 s to 2.5 s, 3000 from 2.5 s to 3 s; the sample after the window does not count.
    let queue = vec![
        queue(0.0, 9000, 0, 0),
        queue(1.0, 1000, 1_000_000, 2),
        queue(2.5, 3000, 10_000_000, 5),
        queue(3.0, 9000, 13_500_000, 6),
    ];
    let found = figures(&Samples { queue, ..Samples::default() });
    assert_eq!(figure(&found, "queue_mean_bytes", "path/forward", None), Some(1500.0));
    assert_eq!(figure(&found, "queue_max_bytes", "path/forward", None), Some(3000.0));
    assert_eq!(figure(&found, "dropped_packets", "path/forward", None), Some(4.0));
    // 12.5 MB in 2 s over 100 Mbit/s.
    assert_eq!(figure(&found, "utilisation_ratio", "path/forward", None), Some(0.5));
}

#[test]
fn the_backlog_of_a_relay_is_that_of_all_its_connections_together() {
    let held = |time_s: f64, connection, backlog_bytes| RelaySample {
        time_us: (time_s * 1e6) as i64,
        relay: "pep".into(),
        connection,
        direction: "client_to_server".into(),
        backlog_bytes,
        ..RelaySample::default()
    };
    let relay = vec![held(1.0, 0, 100), held(2.0, 1, 200), held(2.5, 0, 0)];
    let found = figures(&Samples { relay, ..Samples::default() });
    assert_eq!(figure(&found, "backlog_mean_bytes", "pep/client_to_server", None), Some(175.0));
    assert_eq!(figure(&found, "backlog_max_bytes", "pep/client_to_server", None), Some(300.0));
}

#[test]
fn every_figure_bears_a_name_that_expectations_may_use() {
    let samples = Samples {
        tcp: vec![tcp(2.0, "sender", "measured", 1, 0)],
        queue: vec![queue(1.0, 1, 1, 1)],
        echo: vec![EchoSample { time_us: 2 * SECOND, flow: "measured".into(), ..EchoSample::default() }],
        link: vec![LinkSummary {
            link: "path".into(),
            direction: "forward".into(),
            ..LinkSummary::default()
        }],
        interval: vec![interval(2.0, 0, 1)],
        ..Samples::default()
    };
    for metric in metrics(&plan(), &samples, Some(0.5)) {
        assert!(NAMES.contains(&metric.metric.as_str()), "{}", metric.metric);
    }
}

proptest! {
    #[test]
    fn goodput_never_exceeds_what_arrived(ends in prop::collection::vec((0i64..5 * SECOND, 0u64..2_000_000, 0u64..1_000_000), 0..30)) {
        let interval: Vec<_> = ends.iter().map(|(time_us, duration_us, bytes)| IntervalSample {
            time_us: *time_us, duration_us: *duration_us, flow: "measured".into(), stream: 0, bytes: *bytes,
        }).collect();
        let all: u64 = interval.iter().map(|sample| sample.bytes).sum();
        let found = figures(&Samples { interval, ..Samples::default() });
        let goodput = figure(&found, "goodput_bps", "measured", None).unwrap();
        prop_assert!(goodput >= 0.0 && goodput <= all as f64 * 8.0 / 2.0 + 1e-6);
    }

    #[test]
    fn fairness_lies_between_one_over_n_and_one(rates in prop::collection::vec(0f64..1e9, 2..20)) {
        if let Some(index) = jain(&rates) {
            prop_assert!(index <= 1.0 + 1e-9 && index >= 1.0 / rates.len() as f64 - 1e-9);
        }
    }
}

#[test]
fn a_reduction_that_takes_several_samples_is_one() {
    let windows = [100.0, 110.0, 120.0, 100.0, 80.0, 60.0, 62.0, 70.0, 90.0, 125.0, 119.0, 111.0, 63.0, 64.0];
    let times = super::reductions(windows.iter().zip(0..).map(|(cwnd, time_us)| (time_us, *cwnd)));
    assert_eq!(times, [3, 11]);
    assert_eq!(super::reductions([(0, 10.0), (1, 9.5), (2, 10.0)].into_iter()), [] as [i64; 0]);
}

#[test]
fn the_period_is_the_median_time_between_reductions_of_one_connection() {
    let window = |time_s: f64, stream: u32, cwnd_segments: u32| TcpSample {
        time_us: (time_s * 1e6) as i64,
        flow: "measured".into(),
        role: "sender".into(),
        stream,
        cwnd_segments,
        ..TcpSample::default()
    };
    // Stream 0 falls at 1.5 and 2.0 s, and at 2.7 s; stream 1 once, which is no period.
    let tcp = vec![
        window(1.2, 0, 100),
        window(1.5, 0, 50),
        window(1.6, 1, 40),
        window(1.7, 1, 20),
        window(1.9, 0, 100),
        window(2.0, 0, 50),
        window(2.6, 0, 90),
        window(2.7, 0, 45),
    ];
    let found = figures(&Samples { tcp, ..Samples::default() });
    assert_eq!(figure(&found, "cwnd_period_us", "measured", None), Some(600_000.0));
}
