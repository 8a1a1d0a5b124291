//! The tables of one run, and the series a chart draws from them.

use crate::plot::decimate::Point;
use longfat_schema::{
    record::{TcpSample, TraceSample},
    run::{RunDirectory, RunManifest},
    samples::Samples,
};
use std::collections::{BTreeMap, BTreeSet};

/// Every row of one run. A table that could not be read is empty and named in `problems`.
#[derive(Debug, Clone, Default)]
pub struct RunSamples {
    /// The rows.
    pub rows: Samples,
    /// Tables that could not be read, and why.
    pub problems: Vec<String>,
}

/// What one stream got within the window.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamGoodput {
    /// Flow name.
    pub flow: String,
    /// Stream number within the flow.
    pub stream: u32,
    /// Payload at the receiver.
    pub goodput_bps: f64,
}

/// One thing over time, told from others by a key.
pub type Keyed<K> = BTreeMap<K, Vec<Point>>;

impl std::ops::Deref for RunSamples {
    type Target = Samples;

    fn deref(&self) -> &Samples {
        &self.rows
    }
}

impl RunSamples {
    /// Reads every table.
    pub fn read(run: &RunDirectory) -> RunSamples {
        let (mut rows, problems) = run.samples();
        let traced: Vec<_> = rows.trace.iter().map(as_tcp_sample).collect();
        rows.tcp.extend(traced);
        RunSamples { rows, problems }
    }

    /// Each TCP stream's goodput: the manifest's own figure; where it has none for a stream, from the intervals
    /// that end within the window; failing those, what the stream itself reported.
    pub fn stream_goodput(&self, manifest: &RunManifest) -> Vec<StreamGoodput> {
        let intervals = self.interval_goodput(manifest);
        let streams = self.streams(manifest);
        let goodput = |key: &(String, u32)| {
            let alone = streams.iter().filter(|(flow, _)| *flow == key.0).count() == 1;
            let reported = || self.flow.iter().find(|f| f.flow == key.0 && f.stream == key.1);
            stated_goodput(manifest, &key.0, key.1, alone)
                .or_else(|| intervals.get(key).copied())
                .or_else(|| reported().map(|f| f.goodput_bps as f64))
        };
        let with = |key: &(String, u32)| {
            Some(StreamGoodput { flow: key.0.clone(), stream: key.1, goodput_bps: goodput(key)? })
        };
        streams.iter().filter_map(with).filter(|s| s.goodput_bps.is_finite()).collect()
    }

    /// Every stream anything is known of, except those that are not TCP: they do not share by its rules.
    fn streams(&self, manifest: &RunManifest) -> BTreeSet<(String, u32)> {
        let metrics = manifest.metrics.iter().filter(|m| m.metric == "goodput_bps");
        let stated = metrics.filter_map(|m| Some((m.of.clone(), m.stream?)));
        let flows = self.flow.iter().map(|f| (f.flow.clone(), f.stream));
        let other = |flow: &str| self.flow.iter().any(|f| f.flow == flow && f.protocol != "tcp");
        let all = stated.chain(flows).chain(self.interval.iter().map(|i| (i.flow.clone(), i.stream)));
        all.filter(|(flow, _)| !other(flow)).collect()
    }

    fn interval_goodput(&self, manifest: &RunManifest) -> BTreeMap<(String, u32), f64> {
        let window = manifest.window_start_us..=manifest.window_end_us;
        let mut sums: BTreeMap<(String, u32), (u64, u64)> = BTreeMap::new();
        for row in self.interval.iter().filter(|row| window.contains(&row.time_us)) {
            let sum = sums.entry((row.flow.clone(), row.stream)).or_default();
            *sum = (sum.0 + row.bytes, sum.1 + row.duration_us);
        }
        let rate = |(bytes, us): (u64, u64)| bytes as f64 * 8e6 / us.max(1) as f64;
        sums.into_iter().map(|(key, sum)| (key, rate(sum))).collect()
    }

    /// A relay's connections worth drawing, and which of them is its main one: it has carried the most. Those that
    /// carried less than a twentieth of it, such as a transfer's control connection, are left out.
    pub fn relay_connections<'a>(&'a self) -> BTreeMap<(&'a str, u32), bool> {
        let mut carried: BTreeMap<(&str, u32), u64> = BTreeMap::new();
        let relayed = self.relay.iter().map(|r| ((r.relay.as_str(), r.connection), r.relayed_bytes));
        let legs = self.tcp.iter().filter(|r| r.role == "relay_out");
        let acked = legs.map(|r| ((r.flow.as_str(), r.stream), r.acked_bytes));
        for (key, bytes) in relayed.chain(acked) {
            let entry = carried.entry(key).or_default();
            *entry = bytes.max(*entry);
        }
        let mut main: BTreeMap<&str, (u64, u32)> = BTreeMap::new();
        for ((relay, connection), bytes) in &carried {
            let entry = main.entry(relay).or_insert((*bytes, *connection));
            *entry = (*entry).max((*bytes, *connection));
        }
        let judged = |(key, bytes): (&(&'a str, u32), &u64)| {
            let (most, busiest) = main.get(key.0).copied()?;
            (*bytes >= most / 20).then_some((*key, key.1 == busiest))
        };
        carried.iter().filter_map(judged).collect()
    }

    /// The link direction that was the bottleneck: most drops, then the fullest queue, then the deepest.
    pub fn bottleneck(&self) -> Option<(String, String)> {
        let mut worst: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
        for row in &self.queue {
            let entry = worst.entry((&row.link, &row.direction)).or_default();
            *entry = (entry.0.max(row.dropped_packets), entry.1 + row.queue_bytes);
        }
        let (key, _) = worst.into_iter().max_by_key(|(_, weight)| *weight)?;
        Some((key.0.to_owned(), key.1.to_owned()))
    }
}

/// A traced event as a sample of its sender: so that whatever is drawn of control blocks is drawn of a trace.
fn as_tcp_sample(row: &TraceSample) -> TcpSample {
    TcpSample {
        time_us: row.time_us,
        flow: row.flow.clone(),
        role: "sender".to_owned(),
        cc: row.cc.clone(),
        ca_state: row.ca_state.clone(),
        cwnd_segments: row.cwnd_segments,
        ssthresh_segments: row.ssthresh_segments,
        srtt_us: row.srtt_us,
        rttvar_us: row.rttvar_us,
        mss_bytes: row.mss_bytes,
        flight_segments: row.flight_segments,
        lost_segments: row.lost_segments,
        retransmitted_segments: row.retransmitted_segments,
        acked_bytes: row.acked_bytes,
        ..TcpSample::default()
    }
}

/// A manifest gives streams figures of their own only where a flow has several.
fn stated_goodput(manifest: &RunManifest, flow: &str, stream: u32, alone: bool) -> Option<f64> {
    let matching = |m: &&longfat_schema::run::Metric| {
        m.metric == "goodput_bps" && m.of == flow && m.stream == Some(stream)
    };
    let own = manifest.metrics.iter().find(matching).map(|m| m.value);
    own.or_else(|| manifest.metric("goodput_bps", flow).filter(|_| alone))
}

/// Groups rows into one series per key, in order of time. `f` gives key, time and value of a row it wants.
pub fn series<R, K: Ord>(rows: &[R], f: impl Fn(&R) -> Option<(K, i64, f64)>) -> Keyed<K> {
    let mut series: Keyed<K> = BTreeMap::new();
    for (key, time_us, value) in rows.iter().filter_map(f) {
        series.entry(key).or_default().push((time_us as f64 / 1e6, value));
    }
    series.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    series
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_schema::record::{QueueSample, RelaySample};

    #[test]
    fn the_bottleneck_is_where_packets_are_dropped() {
        let row = |link: &str, queue_bytes, dropped_packets| QueueSample {
            link: link.into(),
            direction: "forward".into(),
            queue_bytes,
            dropped_packets,
            ..Default::default()
        };
        let queue = vec![row("lan", 9000, 0), row("path", 500, 3), row("lan", 9000, 0)];
        let samples = RunSamples { rows: Samples { queue, ..Default::default() }, ..Default::default() };
        assert_eq!(samples.bottleneck(), Some(("path".into(), "forward".into())));
        assert_eq!(RunSamples::default().bottleneck(), None);
    }

    #[test]
    fn a_relays_main_connection_carried_the_most_and_control_connections_are_left_out() {
        let row = |connection, relayed_bytes| RelaySample {
            relay: "pep".into(),
            connection,
            relayed_bytes,
            ..Default::default()
        };
        let relay = vec![row(0, 900), row(1, 1_000_000), row(2, 400_000), row(0, 1000)];
        let samples = RunSamples { rows: Samples { relay, ..Default::default() }, ..Default::default() };
        let drawn: Vec<_> = samples.relay_connections().into_iter().collect();
        assert_eq!(drawn, [(("pep", 1), true), (("pep", 2), false)]);
    }

    #[test]
    fn series_are_in_order_of_time_whatever_the_order_of_rows() {
        let grouped = series(&[(3, 1.0), (1, 2.0), (2, 3.0)], |(t, v)| Some(((), *t * 1_000_000, *v)));
        assert_eq!(grouped[&()], [(1.0, 2.0), (2.0, 3.0), (3.0, 1.0)]);
    }
}
