//! ImTCP-bg on paths that hold fewer segments than a measurement stream has: 16 of them are a queue there, from which
//! it keeps.

use crate::support::*;
use longfat_schema::{
    arrivals::Arrivals,
    record::{AvailSample, Record},
};
use longfat_sim::{Family, FlowPlan, Transport, UdpPlan};

const END: u64 = 40 * SECOND;
const SETTLED: u64 = 15 * SECOND;
/// With headers: 1250 bytes.
const DATAGRAM_BYTES: u32 = 1222;

/// A path by its rate and delay, of which so much is taken with headers.
#[derive(Debug, Clone, Copy)]
struct Short {
    mbps: u64,
    delay_us: u64,
    cross_mbps: u64,
}

const SHORT: [Short; 6] = [
    Short { mbps: 20, delay_us: 25, cross_mbps: 0 },
    Short { mbps: 20, delay_us: 25, cross_mbps: 10 },
    Short { mbps: 5, delay_us: 25, cross_mbps: 0 },
    Short { mbps: 50, delay_us: 100, cross_mbps: 25 },
    Short { mbps: 10, delay_us: 2500, cross_mbps: 0 },
    Short { mbps: 20, delay_us: 2500, cross_mbps: 10 },
];

impl Short {
    fn free_mbps(self) -> f64 {
        (self.mbps - self.cross_mbps) as f64
    }

    /// One background transfer beside Poisson cross traffic.
    fn run(self, seed: u64) -> Outcome {
        let law = Arrivals::Poisson;
        let cross = FlowPlan {
            rate_bps: Some((self.cross_mbps * 1_000_000 * u64::from(DATAGRAM_BYTES) / 1250).max(1)),
            transport: Transport::Udp(UdpPlan {
                datagram_bytes: DATAGRAM_BYTES,
                family: Family::Ipv4,
                arrivals: law,
                seed,
            }),
            ..flow("cross", 0, 1, tcp("reno"))
        };
        let flows = vec![flow("background", 0, 1, tcp("imtcp_bg")), cross];
        outcome(&path(direction(Some(self.mbps * 1_000_000), self.delay_us * 1000, 150_000), flows, END))
    }
}

/// What was found once settled.
fn found(outcome: &Outcome) -> Vec<&AvailSample> {
    let rows = outcome.records.iter().filter_map(|record| match record {
        Record::Avail(row) if row.time_us > (SETTLED / 1000) as i64 => Some(row),
        _ => None,
    });
    rows.collect()
}

#[test]
fn a_path_that_holds_no_stream_is_measured_all_the_same() {
    for short in SHORT {
        // What cross traffic leaves is another share in each draw.
        let draws = if short.cross_mbps > 0 { 1..=4 } else { 1..=1 };
        let means = draws.clone().map(|seed| {
            let outcome = short.run(seed);
            let rows = found(&outcome);
            assert!(rows.len() >= 5, "{short:?}: {} results", rows.len());
            rows.iter().map(|row| row.avail_bps as f64 / 1e6).sum::<f64>() / rows.len() as f64
        });
        let mean_mbps = means.sum::<f64>() / draws.count() as f64;
        let error = (mean_mbps - short.free_mbps()).abs() / short.mbps as f64;
        assert!(error < 0.1, "{short:?}: {mean_mbps} Mbit/s");
    }
}

#[test]
fn streams_on_top_of_the_window_are_a_small_part_of_what_is_sent_and_make_no_standing_queue() {
    for short in SHORT.into_iter().filter(|short| short.cross_mbps == 0) {
        let outcome = short.run(1);
        let late = outcome.tcp().filter(|row| row.time_us > (SETTLED / 1000) as i64 && row.role == "sender");
        let flights: Vec<u32> = late.map(|row| row.flight_segments).collect();
        let beyond = flights.iter().filter(|flight| **flight >= 16).count();
        assert!(beyond * 20 < flights.len(), "{short:?}: {beyond} of {} samples", flights.len());
        let taken = outcome.mbps_between("background", SETTLED, END) / (0.965 * short.free_mbps());
        assert!(taken > 0.8, "{short:?}: {taken} of what is free");
    }
}

#[test]
fn cross_traffic_loses_nothing_to_it() {
    for short in SHORT.into_iter().filter(|short| short.cross_mbps > 0) {
        let outcome = short.run(1);
        let sent_mbps = short.cross_mbps as f64 * f64::from(DATAGRAM_BYTES) / 1250.0;
        let arrived = outcome.mbps_between("cross", SETTLED, END) / sent_mbps;
        assert!(arrived > 0.98, "{short:?}: {arrived} of what was sent arrived");
    }
}
