//! The relations that must hold between the figures of any analysis, whatever was captured: checked by property tests
//! over made-up traffic and by the fuzz targets.

use crate::{
    analysis::Analysis,
    flow::known::LimitShares,
    report::{DirectionReport, FlowReport, Spread},
};

/// Shares are sums of fractions.
const ROUNDING: f64 = 1e-6;

/// What an analysis says that cannot be; nothing, if all is well.
pub fn contradictions(analysis: &Analysis) -> Vec<String> {
    let mut found = Found(Vec::new());
    let capture = &analysis.capture;
    found.unless(capture.duration_s >= 0.0, || format!("the capture lasts {} s", capture.duration_s));
    found.unless(capture.tcp_packets <= capture.packets, || "more TCP packets than packets".into());
    let kinds = capture.tcp_packets
        + capture.other_packets
        + capture.truncated_packets
        + capture.fragments
        + capture.malformed_packets
        + capture.unknown_link_packets;
    found
        .unless(kinds == capture.packets, || format!("{kinds} packets of {} are of a kind", capture.packets));
    analysis.flows.iter().for_each(|flow| found.flow(flow));
    found.0
}

struct Found(Vec<String>);

impl Found {
    fn unless(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(what());
        }
    }

    fn flow(&mut self, flow: &FlowReport) {
        self.unless(flow.duration_s >= 0.0, || format!("a flow lasts {} s", flow.duration_s));
        let packets: u64 = flow.directions.iter().map(|one| one.counts.packets).sum();
        self.unless(packets == flow.packets, || format!("{packets} packets of {}", flow.packets));
        let handshake = [flow.handshake.rtt_us, flow.handshake.server_side_us];
        self.unless(handshake.iter().flatten().all(|us| *us >= 0.0), || format!("handshake {handshake:?}"));
        flow.directions.iter().for_each(|one| self.direction(one));
        for finding in &flow.findings {
            let is_time = finding.cost_s >= 0.0 && finding.cost_s.is_finite() && finding.at_s.is_finite();
            self.unless(is_time, || format!("{finding:?}"));
            let is_said = !finding.what.contains("NaN") && !finding.evidence.contains("NaN");
            self.unless(is_said, || format!("{finding:?}"));
        }
    }

    fn direction(&mut self, one: &DirectionReport) {
        self.counts(one);
        self.round_trips(one);
        self.limits(one);
        for episode in &one.episodes {
            self.unless(episode.start_ns <= episode.end_ns, || format!("{episode:?} ends before it begins"));
        }
        let times = [one.active_s, one.zero_window_s, one.lag_us, one.scaling_s.unwrap_or(0.0)];
        self.unless(times.iter().all(|time| *time >= 0.0), || format!("times {times:?}"));
        self.unless(one.throughput_bps.is_none_or(|bps| bps.is_finite() && bps >= 0.0), || {
            format!("{:?} bit/s", one.throughput_bps)
        });
    }

    fn counts(&mut self, one: &DirectionReport) {
        let by_cause =
            one.fast_segments + one.timeout_segments + one.go_back_segments + one.tail_probe_segments;
        for (less, more, what) in [
            (one.counts.resent_segments, one.counts.sent_segments, "segments sent again of those sent"),
            (one.counts.data_segments, one.counts.sent_segments, "segments with payload of those sent"),
            (
                one.counts.resent_bytes + one.counts.unique_bytes,
                one.counts.payload_bytes,
                "octets sent again and once of all",
            ),
            (one.spurious_segments, one.counts.resent_segments, "needless segments of those sent again"),
            (one.spurious_by_dsack, one.spurious_segments, "needless segments by DSACK of all needless"),
            (
                one.timeouts,
                one.timeout_segments + one.counts.lost_before_segments,
                "timeouts of segments sent by them",
            ),
            (by_cause, one.counts.resent_segments, "segments sent again by cause of all"),
            (one.counts.resent_segments, by_cause, "segments sent again of those with a cause"),
            (one.counts.data_packets, one.counts.packets, "packets with payload of packets"),
            (one.counts.resent_syns, one.counts.resent_segments, "SYNs sent again of segments"),
            (
                one.counts.damaged_packets,
                one.checksums.wrong,
                "damaged packets of those with a wrong checksum",
            ),
            (one.counts.keep_alives, one.probes, "keep-alives of probes"),
            (
                one.counts.new_data_probes,
                one.counts.data_packets,
                "probes with new data of packets with payload",
            ),
            (one.least_window_bytes.unwrap_or(0), one.most_window_bytes.unwrap_or(u64::MAX), "least window"),
        ] {
            self.unless(less <= more, || format!("{}: {what}: {less} of {more}", one.from));
        }
        let share = one.retransmissions;
        self.unless((0.0..=1.0).contains(&share), || format!("{share} of what was sent was sent again"));
    }

    fn round_trips(&mut self, one: &DirectionReport) {
        let gaps = [&one.data_gaps, &one.ack_gaps].map(|gaps| gaps.as_ref().and_then(|gaps| gaps.gap));
        for spread in [one.rtt, one.rtt_by_timestamp, gaps[0], gaps[1]].into_iter().flatten() {
            let Spread { least_us, median_us, p95_us, p99_us, .. } = spread;
            let rises = [0.0, least_us, median_us, p95_us, p99_us].is_sorted();
            self.unless(rises, || format!("{}: {spread:?} does not rise", one.from));
        }
        if let (Some(least), Some(mean), Some(most), Some(rtt)) =
            (one.least_rtt_us, one.mean_rtt_us, one.most_rtt_us, one.rtt)
        {
            let rises = least <= mean + ROUNDING && mean <= most + ROUNDING && rtt.p99_us <= most;
            self.unless(rises && least <= rtt.least_us, || {
                format!("{}: {least} {mean} {most} {rtt:?}", one.from)
            });
        }
    }

    fn limits(&mut self, one: &DirectionReport) {
        let LimitShares { application, window, congestion, recovery } = one.limits;
        let shares = [application, window, congestion, recovery];
        let sum: f64 = shares.iter().sum();
        let is_whole = sum == 0.0 || (sum - 1.0).abs() < ROUNDING;
        self.unless(is_whole && shares.iter().all(|share| *share >= 0.0), || format!("limits {shares:?}"));
        let is_window_known = one.most_window_bytes.is_some() || one.counts.zero_windows > 0;
        self.unless(window == 0.0 || is_window_known, || {
            format!("{}: limited by a window that is not known", one.from)
        });
        let most = one.most_window_bytes.unwrap_or(u64::MAX);
        let room = most.saturating_add(u64::from(one.largest_payload_bytes));
        self.unless(one.most_flight_bytes <= room, || {
            format!("{}: flight {} beside a window of {most}", one.from, one.most_flight_bytes)
        });
    }
}
