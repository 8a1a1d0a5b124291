//! An analysis as Parquet tables, for notebooks and SQL: `flows`, `series`, `episodes` and `findings`. Rows belong
//! together by `flow`, the number of the flow's first packet in the capture, and `from`.

use crate::{
    analysis::Analysis,
    report::{DirectionReport, FlowReport},
};
use longfat_schema::run::{Table, TableError, TableWriter};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::Path;

/// Why the tables could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {source}; name a directory that can be written")]
pub struct TablesError {
    file: String,
    source: TableError,
}

/// Declares a row: its fields, and its table's name.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident, $table:literal { $($field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "columns are called like the fields of the JSON they come from")]
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub struct $name { $(pub $field: $kind,)* }

        impl Table for $name {
            const NAME: &'static str = $table;
        }
    };
}

row! {
    /// What one end of a flow sent.
    FlowRow, "flows" {
        flow: u64, from: String, to: String, is_client: bool, start_s: f64, duration_s: f64, vantage: String, ending: String,
        packets: u64, data_segments: u64, payload_bytes: u64, unique_bytes: u64, acked_bytes: u64, active_s: f64,
        throughput_bps: Option<f64>, resent_segments: u64, resent_bytes: u64, retransmissions: f64, fast_segments: u64,
        timeout_segments: u64, timeouts: u64, go_back_segments: u64, tail_probe_segments: u64, spurious_segments: u64,
        lost_before_segments: u64, reordered_segments: u64, unseen_bytes: u64, duplicate_acks: u64, dsacks: u64,
        segments_per_ack: Option<f64>, zero_windows: u64, ce_packets: u64, rtt_count: u64, rtt_least_us: Option<f64>,
        rtt_median_us: Option<f64>, rtt_p95_us: Option<f64>, rtt_p99_us: Option<f64>, lag_us: f64, most_flight_bytes: u64,
        mean_flight_bytes: f64, least_window_bytes: Option<u64>, most_window_bytes: Option<u64>, application_share: f64,
        window_share: f64, congestion_share: f64, recovery_share: f64, scaling_s: Option<f64>, episode_count: u64,
    }
}

row! {
    /// A stretch of time of what one end sent.
    SeriesRow, "series" {
        flow: u64, from: String, time_s: f64, width_s: f64, rate_bps: f64, delivered_bps: f64, resent_bps: f64,
        flight_bytes: u64, window_bytes: Option<u64>, rtt_least_ms: Option<f64>, rtt_most_ms: Option<f64>,
        limit: Option<String>,
    }
}

row! {
    /// A repair of losses; times are nanoseconds since 1970.
    EpisodeRow, "episodes" {
        flow: u64, from: String, start_ns: i64, end_ns: i64, from_byte: u64, flight_bytes: u64, window_bytes: u64, rtt_us: u64,
        resent_bytes: u64, resent_segments: u64, spurious_segments: u64, timeouts: u32, silence_ns: i64,
    }
}

row! {
    /// Something worth knowing.
    FindingRow, "findings" {
        flow: u64, kind: String, from: String, what: String, evidence: String, at_s: f64, cost_s: f64,
    }
}

/// Writes all four into a directory, which is made if it is not there.
///
/// # Errors
/// When one cannot be written.
pub fn write(analysis: &Analysis, directory: &Path) -> Result<(), TablesError> {
    std::fs::create_dir_all(directory)
        .map_err(|source| TablesError { file: directory.display().to_string(), source: source.into() })?;
    let each = || {
        analysis.flows.iter().flat_map(|flow| flow.directions.iter().map(move |direction| (flow, direction)))
    };
    table(directory, each().map(|(flow, direction)| flow_row(flow, direction)))?;
    table(directory, each().flat_map(|(flow, direction)| series_rows(flow, direction)))?;
    table(directory, each().flat_map(|(flow, direction)| episode_rows(flow, direction)))?;
    table(directory, analysis.flows.iter().flat_map(finding_rows))
}

fn table<T: Table + DeserializeOwned>(
    directory: &Path,
    mut rows: impl Iterator<Item = T>,
) -> Result<(), TablesError> {
    let path = directory.join(format!("{}.parquet", T::NAME));
    let mut write = || {
        let mut writer = TableWriter::create(&path)?;
        rows.try_for_each(|row| writer.push(row))?;
        writer.finish()
    };
    write().map_err(|source| TablesError { file: path.display().to_string(), source })
}

/// The name of a unit variant, as JSON has it.
fn name(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn flow_row(flow: &FlowReport, d: &DirectionReport) -> FlowRow {
    FlowRow {
        flow: flow.first_packet,
        from: d.from.clone(),
        to: d.to.clone(),
        is_client: std::ptr::eq(d, &raw const flow.directions[0]),
        start_s: flow.start_s,
        duration_s: flow.duration_s,
        vantage: name(&flow.vantage),
        ending: name(&flow.ending),
        packets: d.counts.packets,
        data_segments: d.counts.data_segments,
        payload_bytes: d.counts.payload_bytes,
        unique_bytes: d.counts.unique_bytes,
        acked_bytes: d.counts.acked_bytes,
        active_s: d.active_s,
        throughput_bps: d.throughput_bps,
        resent_segments: d.counts.resent_segments,
        resent_bytes: d.counts.resent_bytes,
        retransmissions: d.retransmissions,
        fast_segments: d.fast_segments,
        timeout_segments: d.timeout_segments,
        timeouts: d.timeouts,
        go_back_segments: d.go_back_segments,
        tail_probe_segments: d.tail_probe_segments,
        spurious_segments: d.spurious_segments,
        lost_before_segments: d.counts.lost_before_segments,
        reordered_segments: d.counts.reordered_segments,
        unseen_bytes: d.counts.unseen_bytes,
        duplicate_acks: d.counts.duplicate_acks,
        dsacks: d.counts.dsacks,
        segments_per_ack: d.segments_per_ack,
        zero_windows: d.counts.zero_windows,
        ce_packets: d.counts.ce_packets,
        rtt_count: d.rtt.map_or(0, |rtt| rtt.count),
        rtt_least_us: d.least_rtt_us,
        rtt_median_us: d.rtt.map(|rtt| rtt.median_us),
        rtt_p95_us: d.rtt.map(|rtt| rtt.p95_us),
        rtt_p99_us: d.rtt.map(|rtt| rtt.p99_us),
        lag_us: d.lag_us,
        most_flight_bytes: d.most_flight_bytes,
        mean_flight_bytes: d.mean_flight_bytes,
        least_window_bytes: d.least_window_bytes,
        most_window_bytes: d.most_window_bytes,
        application_share: d.limits.application,
        window_share: d.limits.window,
        congestion_share: d.limits.congestion,
        recovery_share: d.limits.recovery,
        scaling_s: d.scaling_s,
        episode_count: d.episode_count,
    }
}

fn series_rows(flow: &FlowReport, d: &DirectionReport) -> Vec<SeriesRow> {
    let Some(series) = &d.series else { return Vec::new() };
    let row = |bin: usize| SeriesRow {
        flow: flow.first_packet,
        from: d.from.clone(),
        time_s: series.start_s + bin as f64 * series.bin_s,
        width_s: series.bin_s,
        rate_bps: series.rate_bps[bin],
        delivered_bps: series.delivered_bps[bin],
        resent_bps: series.resent_bps[bin],
        flight_bytes: series.flight_bytes[bin],
        window_bytes: series.window_bytes[bin],
        rtt_least_ms: series.rtt_least_ms[bin],
        rtt_most_ms: series.rtt_most_ms[bin],
        limit: series.limit[bin].as_ref().map(name),
    };
    (0..series.rate_bps.len()).map(row).collect()
}

fn episode_rows(flow: &FlowReport, d: &DirectionReport) -> Vec<EpisodeRow> {
    let row = |episode: &crate::flow::recovery::Episode| EpisodeRow {
        flow: flow.first_packet,
        from: d.from.clone(),
        start_ns: episode.start_ns,
        end_ns: episode.end_ns,
        from_byte: episode.from_byte,
        flight_bytes: episode.flight_bytes,
        window_bytes: episode.window_bytes,
        rtt_us: episode.rtt_us,
        resent_bytes: episode.resent_bytes,
        resent_segments: episode.resent_segments,
        spurious_segments: episode.spurious_segments,
        timeouts: episode.timeouts,
        silence_ns: episode.silence_ns,
    };
    d.episodes.iter().map(row).collect()
}

fn finding_rows(flow: &FlowReport) -> Vec<FindingRow> {
    let row = |finding: &crate::findings::Finding| FindingRow {
        flow: flow.first_packet,
        kind: name(&finding.kind),
        from: finding.from.clone(),
        what: finding.what.clone(),
        evidence: finding.evidence.clone(),
        at_s: finding.at_s,
        cost_s: finding.cost_s,
    };
    flow.findings.iter().map(row).collect()
}
