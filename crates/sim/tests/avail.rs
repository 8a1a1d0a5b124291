//! Available bandwidth as ImTCP measures it in the simulator, against cross traffic whose rate is known.

use crate::support::*;
use longfat_schema::{
    arrivals::Arrivals,
    record::{AvailSample, Record},
};
use longfat_sim::{EndpointPlan, Family, FlowPlan, Scenario, TcpPlan, Transport, UdpPlan};

const MBIT: u64 = 1_000_000;
/// With headers: 1250 bytes.
const DATAGRAM_BYTES: u32 = 1222;

/// UDP from one time to another, at a rate with headers.
fn cross(mbps: u64, from_s: u64, to_s: u64, arrivals: Arrivals, seed: u64) -> FlowPlan {
    FlowPlan {
        start_ns: from_s * SECOND,
        send_for_ns: Some((to_s - from_s) * SECOND),
        rate_bps: Some(mbps * MBIT * u64::from(DATAGRAM_BYTES) / 1250),
        transport: Transport::Udp(UdpPlan {
            datagram_bytes: DATAGRAM_BYTES,
            family: Family::Ipv4,
            arrivals,
            seed,
        }),
        ..flow(&format!("cross{from_s}"), 0, 1, tcp("reno"))
    }
}

fn imtcp(settings: &[&str]) -> FlowPlan {
    let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
    let sender = EndpointPlan { cc: "imtcp".to_owned(), settings, ..EndpointPlan::default() };
    flow("measured", 0, 1, TcpPlan { sender, ..TcpPlan::default() })
}

/// The published experiment: 100 Mbit/s, RTT 30 ms, of which 70, 30 and 40 Mbit/s are free for 20 s each.
fn published(settings: &[&str], law: Arrivals) -> Scenario {
    let flows =
        vec![imtcp(settings), cross(30, 0, 20, law, 1), cross(70, 20, 40, law, 2), cross(60, 40, 60, law, 3)];
    path(direction(Some(100 * MBIT), 15 * MS, 375_000), flows, 60 * SECOND)
}

fn avail(outcome: &Outcome) -> Vec<&AvailSample> {
    let rows = outcome.records.iter().filter_map(|record| match record {
        Record::Avail(row) => Some(row),
        _ => None,
    });
    rows.collect()
}

/// Mean absolute error in Mbit/s from a time to another, weighted by how long a result held.
fn error_mbps(rows: &[&AvailSample], from_s: i64, to_s: i64, truth_mbps: f64) -> f64 {
    let (from_us, to_us) = (from_s * 1_000_000, to_s * 1_000_000);
    let ends = rows.iter().skip(1).map(|row| row.time_us).chain([to_us]);
    let held = rows.iter().zip(ends).map(|(row, end_us)| {
        let length_us = (end_us.min(to_us) - row.time_us.max(from_us)).max(0);
        (length_us as f64, (row.avail_bps as f64 / 1e6 - truth_mbps).abs())
    });
    let (sum, length) =
        held.fold((0.0, 0.0), |(sum, all), (length, error)| (sum + error * length, all + length));
    sum / length
}

/// Errors from two seconds after each change on, and how many results there were.
fn phases(outcome: &Outcome) -> ([f64; 3], usize) {
    let rows = avail(outcome);
    let error = |(from_s, to_s, truth_mbps)| error_mbps(&rows, from_s, to_s, truth_mbps);
    ([(2, 20, 70.0), (22, 40, 30.0), (42, 60, 40.0)].map(error), rows.len())
}

#[test]
fn the_published_phases_are_measured_to_five_hundredths_over_every_growth() {
    for growth in ["growth=0", "growth=1", "growth=2"] {
        for law in [Arrivals::Constant, Arrivals::Poisson] {
            let outcome = outcome(&published(&[growth], law));
            let (errors, results) = phases(&outcome);
            let most = if law.is_random() { 5.0 } else { 1.0 };
            assert!(errors.iter().all(|error| *error < most), "{growth} {law:?}: {errors:?}");
            assert!(results > 500, "{growth} {law:?}: {results} results in a minute");
        }
    }
}

#[test]
fn the_published_search_works_on_even_cross_traffic() {
    let (errors, _) = phases(&outcome(&published(&["estimator=1"], Arrivals::Constant)));
    assert!(errors.iter().all(|error| *error < 6.0), "{errors:?}");
}

#[test]
fn a_measuring_transfer_is_as_fast_as_a_plain_one() {
    let mut scenario = published(&[], Arrivals::Poisson);
    let measuring = outcome(&scenario).mbps_between("measured", 0, 60 * SECOND);
    scenario.flows[0] = flow("measured", 0, 1, tcp("reno"));
    let plain = outcome(&scenario).mbps_between("measured", 0, 60 * SECOND);
    assert!(measuring > 0.98 * plain, "{measuring} Mbit/s measuring, {plain} plain");
}

/// Beside ten connections that windows of 17 segments bound, started a second apart.
fn beside_the_ten(measured: FlowPlan, seed: u64) -> Outcome {
    let receiver = EndpointPlan { window_bytes: Some(17 * 1448), ..EndpointPlan::default() };
    let ten = flow("ten", 0, 1, TcpPlan { receiver, ..TcpPlan::default() });
    let ten = FlowPlan { streams: 10, stagger_ns: SECOND, ..ten };
    let scenario = path(direction(Some(100 * MBIT), 15 * MS, 375_000), vec![measured, ten], 42 * SECOND);
    outcome(&Scenario { start_within_ns: 100 * MS, seed, ..scenario })
}

/// Mean absolute error in half seconds, of what the ten leave.
fn error_beside_the_ten(outcome: &Outcome) -> f64 {
    let rows = avail(outcome);
    let bins = 24..84;
    let error = |bin: u64| {
        let (from_ns, to_ns) = (bin * SECOND / 2, (bin + 1) * SECOND / 2);
        let free_mbps = 100.0 - outcome.mbps_between("ten", from_ns, to_ns) * 1500.0 / 1448.0;
        let within = rows.iter().filter(|row| (from_ns / 1000..to_ns / 1000).contains(&(row.time_us as u64)));
        let found: Vec<f64> = within.map(|row| row.avail_bps as f64 / 1e6).collect();
        (found.iter().sum::<f64>() / found.len() as f64 - free_mbps).abs()
    };
    bins.clone().map(error).sum::<f64>() / bins.count() as f64
}

#[test]
fn beside_connections_that_answer_it_measures_to_three_hundredths_and_is_as_fast_as_a_plain_one() {
    let (mut measuring, mut plain) = (0.0, 0.0);
    for seed in 1..=12 {
        let outcome = beside_the_ten(imtcp(&[]), seed);
        let error = error_beside_the_ten(&outcome);
        assert!(error < 3.0, "seed {seed}: {error} % of the capacity");
        measuring += outcome.mbps_between("measured", 12 * SECOND, 42 * SECOND);
        let reno = flow("measured", 0, 1, tcp("reno"));
        plain += beside_the_ten(reno, seed).mbps_between("measured", 12 * SECOND, 42 * SECOND);
    }
    assert!(measuring > 0.98 * plain, "{measuring} of {plain} Mbit/s");
}

#[test]
fn a_step_is_followed_within_a_second() {
    let outcome = outcome(&published(&[], Arrivals::Constant));
    let rows = avail(&outcome);
    for (at_s, truth_mbps) in [(20, 30.0), (40, 40.0)] {
        let error = error_mbps(&rows, at_s + 1, at_s + 3, truth_mbps);
        assert!(error < 3.0, "from {} s on: {error}", at_s + 1);
    }
}

#[test]
fn an_application_that_pauses_and_a_path_that_loses_mislead_nobody() {
    let mut scenario = published(&[], Arrivals::Constant);
    scenario.flows[0].rate_bps = Some(20 * MBIT);
    scenario.links[0].plan.forward.line.loss = longfat_link::plan::LossPlan::Bernoulli { probability: 1e-3 };
    let outcome = outcome(&scenario);
    for row in avail(&outcome) {
        assert!(row.avail_bps < 200 * MBIT && row.confidence_ratio <= 1.0, "{row:?}");
    }
}

/// What `cc` finds on an empty path by the end: results of the last sample, those rejected, and its mean in Mbit/s over
/// the second half.
fn alone(cc: &str, mtu_bytes: u32, (rate_bps, rtt_ns): (u64, u64), seconds: u64) -> (u64, u64, f64) {
    let sender = EndpointPlan { cc: cc.to_owned(), ..EndpointPlan::default() };
    let plan = TcpPlan { mtu_bytes, sender, ..TcpPlan::default() };
    let queue_bytes = rate_bps / 8 * rtt_ns / SECOND;
    let forward = direction(Some(rate_bps), rtt_ns / 2, queue_bytes);
    let mut scenario = path(forward, vec![flow("measured", 0, 1, plan)], seconds * SECOND);
    scenario.links[0].plan.mtu_bytes = mtu_bytes;
    let outcome = outcome(&scenario);
    let rows = avail(&outcome);
    let last = rows.last().map_or((0, 0), |row| (row.results, row.rejected));
    let half = seconds * SECOND / 2;
    (last.0.into(), last.1.into(), outcome.mbps_between("measured", half, seconds * SECOND))
}

#[test]
fn paths_of_more_than_a_second_are_measured_and_filled_in_the_background() {
    let long = (10 * MBIT, 1200 * MS);
    let (results, _, _) = alone("imtcp", 1500, long, 120);
    assert!(results > 20, "{results}");
    let (results, _, mbps) = alone("imtcp_bg", 1500, long, 120);
    assert!(results > 20 && mbps > 4.0, "{results} results, {mbps} Mbit/s");
}

#[test]
fn jumbo_frames_are_measured_as_others_are() {
    for mtu_bytes in [1500, 9000] {
        let (results, rejected, mbps) = alone("imtcp", mtu_bytes, (2000 * MBIT, 10 * MS), 10);
        assert!(results > 30 && rejected < results / 4, "{mtu_bytes}: {results}, {rejected} rejected");
        assert!(mbps > 1800.0, "{mtu_bytes}: {mbps}");
    }
}
