//! What is said of a flow: plain values, ready for tables, JSON and figures.

use crate::{
    clock::seconds,
    findings::{self, Finding},
    flow::{
        checksums::ChecksumReport,
        connection::{Connection, Vantage, is_window_known},
        counts::{Counts, Offer},
        half::Half,
        histogram::Histogram,
        known::{LimitShares, Missing, missing, round_trip_ns, shares},
        observers::Detail,
        recovery::{Cause, Episode},
        series::{Bin, Limit, Series},
        spacing::Gaps,
    },
};
use serde::Serialize;

/// Bins of the series that a report carries.
const SERIES_BINS: usize = 256;

/// A distribution's landmarks, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Least value, in microseconds.
    pub least_us: f64,
    /// Median, in microseconds.
    pub median_us: f64,
    /// 95 % do not exceed it.
    pub p95_us: f64,
    /// 99 % do not exceed it.
    pub p99_us: f64,
}

impl Spread {
    fn of(histogram: &Histogram) -> Option<Spread> {
        Spread::within(histogram, 0, u64::MAX)
    }

    /// Spread of values whose least and greatest are known: buckets only tell of places between.
    fn within(histogram: &Histogram, least_ns: u64, most_ns: u64) -> Option<Spread> {
        let at = |q| histogram.quantile(q).map(|ns| ns.clamp(least_ns, most_ns) as f64 / 1e3);
        Some(Spread {
            count: histogram.count(),
            least_us: if least_ns > 0 { least_ns as f64 / 1e3 } else { at(0.0)? },
            median_us: at(0.5)?,
            p95_us: at(0.95)?,
            p99_us: at(0.99)?,
        })
    }
}

/// What the SYNs agreed on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HandshakeReport {
    /// Whether both SYNs were seen.
    pub complete: bool,
    /// From the SYN to the client's acknowledgement.
    pub rtt_us: Option<f64>,
    /// The server's share of it: from here to the server and back.
    pub server_side_us: Option<f64>,
    /// SACK usable.
    pub sack: Option<bool>,
    /// Timestamps usable.
    pub timestamps: Option<bool>,
    /// Window scaling usable.
    pub window_scaling: Option<bool>,
    /// `off`, `ecn`, `accecn`, or unknown.
    pub ecn: Option<&'static str>,
    /// TCP Fast Open: `cookie` asked for or given, `data` in the SYN, `data_refused` where the server did not take it.
    pub fast_open: Option<&'static str>,
    /// Both ends opened at once.
    pub simultaneous_open: bool,
    /// SYNs sent again.
    pub repeated_syns: u64,
    /// From the first SYN to the last, when it was sent again.
    pub syn_wait_s: Option<f64>,
}

/// Why a connection did not come to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unopened {
    /// The SYN was answered by a reset.
    Refused,
    /// Nothing came back.
    Unanswered,
    /// The client never acknowledged the answer to its SYN.
    NotCompleted,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Both ends finished.
    Closed,
    /// The client reset it.
    ResetByClient,
    /// The server reset it.
    ResetByServer,
    /// Not before the capture ended, or it became idle.
    Open,
}

/// Ticks, in a report.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TickReport {
    /// Period of the ticks, in microseconds.
    pub period_us: f64,
    /// 0 to 1.
    pub strength: f64,
    /// Packets in a cluster.
    pub packets_per_cluster: f64,
}

/// Spacing, in a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GapReport {
    /// Time between packets.
    pub gap: Option<Spread>,
    /// Packets in a burst, on average.
    pub mean_burst_packets: Option<f64>,
    /// Packets in the longest burst.
    pub longest_burst_packets: u32,
    /// Clusters at a period.
    pub ticks: Option<TickReport>,
    /// Packets whose time is before that of the packet they follow.
    pub backwards: u64,
}

/// ACK compression, in a report.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CompressionReport {
    /// Pairs of ACKs whose data was spread.
    pub compared_pairs: u64,
    /// Share of pairs that are compressed.
    pub share: f64,
    /// Spacing of their data.
    pub data_gap_us: f64,
    /// Spacing of the ACKs.
    pub ack_gap_us: f64,
    /// Most compressed pairs in a row.
    pub longest_run: u32,
    /// First seen, seconds since the capture's start.
    pub first_s: f64,
}

/// Values over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeriesReport {
    /// Width of a bin.
    pub bin_s: f64,
    /// When the first begins, since the capture's start.
    pub start_s: f64,
    /// New payload, bits per second.
    pub rate_bps: Vec<f64>,
    /// Acknowledged, bits per second.
    pub delivered_bps: Vec<f64>,
    /// Sent again, bits per second.
    pub resent_bps: Vec<f64>,
    /// Most outstanding.
    pub flight_bytes: Vec<u64>,
    /// Least window, where it is known.
    pub window_bytes: Vec<Option<u64>>,
    /// Least RTT.
    pub rtt_least_ms: Vec<Option<f64>>,
    /// Greatest RTT.
    pub rtt_most_ms: Vec<Option<f64>>,
    /// The limit that took most of the time.
    pub limit: Vec<Option<Limit>>,
}

/// What one end sent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DirectionReport {
    /// `address:port` of the sender.
    pub from: String,
    /// Address and port of the receiver.
    pub to: String,
    /// What of it is not in the capture.
    pub missing: Option<Missing>,
    /// MSS it offered.
    pub mss_bytes: Option<u16>,
    /// Window scale it offered.
    pub window_scale: Option<u8>,
    /// Whether it offered SACK.
    pub offers_sack: Option<bool>,
    /// Plain counters, fields of this object in JSON.
    #[serde(flatten)]
    pub counts: Counts,
    /// From the first to the last packet with payload.
    pub active_s: f64,
    /// Unique payload over that time.
    pub throughput_bps: Option<f64>,
    /// Share of segments sent again.
    pub retransmissions: f64,
    /// Segments sent again by fast retransmission.
    pub fast_segments: u64,
    /// By the retransmission timer.
    pub timeout_segments: u64,
    /// Times the timer went off.
    pub timeouts: u64,
    /// Sent again after a timeout.
    pub go_back_segments: u64,
    /// Tail loss probes.
    pub tail_probe_segments: u64,
    /// Segments sent again that were not needed.
    pub spurious_segments: u64,
    /// Needless segments that a DSACK told of.
    pub spurious_by_dsack: u64,
    /// Segments per such ACK.
    pub segments_per_ack: Option<f64>,
    /// Time for which it was zero.
    pub zero_window_s: f64,
    /// Keep-alives and window probes.
    pub probes: u64,
    /// From here to the receiver and back, by sequence numbers.
    pub rtt: Option<Spread>,
    /// Round-trip times by timestamps.
    pub rtt_by_timestamp: Option<Spread>,
    /// Least of the former, exact.
    pub least_rtt_us: Option<f64>,
    /// Mean of the same.
    pub mean_rtt_us: Option<f64>,
    /// Greatest of the same, exact.
    pub most_rtt_us: Option<f64>,
    /// From here to the sender and back.
    pub lag_us: f64,
    /// Samples Karn's rule refused.
    pub karn_refused: u64,
    /// Most outstanding.
    pub most_flight_bytes: u64,
    /// Outstanding when data was sent, on average.
    pub mean_flight_bytes: f64,
    /// Least window it was offered.
    pub least_window_bytes: Option<u64>,
    /// Greatest window it was offered.
    pub most_window_bytes: Option<u64>,
    /// Largest payload of a packet.
    pub largest_payload_bytes: u32,
    /// What it was limited by.
    pub limits: LimitShares,
    /// Until nine tenths of its lasting flight were reached.
    pub scaling_s: Option<f64>,
    /// Sends evenly rather than in bursts.
    pub paced: Option<bool>,
    /// Spacing of its data.
    pub data_gaps: Option<GapReport>,
    /// Spacing of its pure ACKs.
    pub ack_gaps: Option<GapReport>,
    /// Compression of the ACKs that this direction's data got.
    pub ack_compression: Option<CompressionReport>,
    /// Times to live: first, last.
    pub ttl: Option<(u8, u8)>,
    /// How often that changed.
    pub ttl_changes: u32,
    /// Checksums of its packets that were kept whole.
    pub checksums: ChecksumReport,
    /// Least MTU a router named.
    pub path_mtu_bytes: Option<u32>,
    /// Losses repaired.
    pub episodes: Vec<Episode>,
    /// How many there were.
    pub episode_count: u64,
    /// Over time.
    pub series: Option<SeriesReport>,
    /// For figures.
    #[serde(skip)]
    pub detail: Option<Box<Detail>>,
    /// For figures; empty unless points for them are kept.
    #[serde(skip)]
    pub gap_histograms: [Histogram; 2],
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowReport {
    /// Number of its first packet in the capture, from 0.
    pub first_packet: u64,
    /// Since the capture's start.
    pub start_s: f64,
    /// From its first to its last packet.
    pub duration_s: f64,
    /// Packets of both ends.
    pub packets: u64,
    /// Where the capture was made.
    pub vantage: Vantage,
    /// Handshake of the connection.
    pub handshake: HandshakeReport,
    /// How the connection ended.
    pub ending: Ending,
    /// One end had finished and the other went on sending.
    pub half_closed: bool,
    /// Whether these ends had a connection before.
    pub reused_port: bool,
    /// What client and server sent.
    pub directions: [DirectionReport; 2],
    /// What it means, the costliest first.
    pub findings: Vec<Finding>,
}

impl FlowReport {
    /// Everything that is known of a connection that is over.
    pub fn of(connection: &mut Connection, epoch_ns: i64) -> FlowReport {
        let client = usize::from(connection.client);
        let evidence = [client, 1 - client].map(|end| findings::of_direction(connection, end, epoch_ns));
        let mut found: Vec<Finding> = evidence.into_iter().flatten().collect();
        found.extend(findings::of_connection(connection, epoch_ns));
        found.sort_by(|a, b| b.cost_s.total_cmp(&a.cost_s));
        let handshake = handshake(connection);
        let ending = match (connection.closed_ns, connection.reset) {
            (Some(_), _) => Ending::Closed,
            (None, Some((end, _))) if end == connection.client => Ending::ResetByClient,
            (None, Some(_)) => Ending::ResetByServer,
            (None, None) => Ending::Open,
        };
        FlowReport {
            first_packet: connection.first_index,
            start_s: seconds(connection.first_ns - epoch_ns),
            duration_s: seconds(connection.last_ns - connection.first_ns),
            packets: connection.packets,
            vantage: connection.vantage(),
            handshake,
            ending,
            half_closed: connection.half_closed,
            reused_port: connection.reused,
            directions: [client, 1 - client].map(|end| direction(connection, end, epoch_ns)),
            findings: found,
        }
    }

    /// Payload of both ends.
    pub fn payload_bytes(&self) -> u64 {
        self.directions.iter().map(|d| d.counts.payload_bytes).sum()
    }

    /// Why it did not come to be: the client sent nothing but SYNs, and at most a reset.
    pub fn unopened(&self) -> Option<Unopened> {
        let [client, server] = self.directions.each_ref().map(|one| &one.counts);
        let syns = 1 + client.resent_syns;
        let has_syns_alone =
            client.sent_segments == syns && client.packets == syns + client.duplicate_packets + client.resets;
        let has_resets_alone =
            server.resets > 0 && server.packets == server.resets + server.duplicate_packets;
        match self.directions.each_ref().map(|one| one.offers_sack.is_some()) {
            [true, true] if has_syns_alone && server.payload_bytes == 0 => Some(Unopened::NotCompleted),
            [true, false] if has_syns_alone && has_resets_alone => Some(Unopened::Refused),
            [true, false] if has_syns_alone && server.packets == 0 => Some(Unopened::Unanswered),
            _ => None,
        }
    }

    /// The direction that carries most.
    pub fn main(&self) -> &DirectionReport {
        let [client, server] = &self.directions;
        if server.counts.payload_bytes > client.counts.payload_bytes { server } else { client }
    }
}

fn handshake(connection: &Connection) -> HandshakeReport {
    let client = usize::from(connection.client);
    let offers = [connection.halves[client].offer, connection.halves[1 - client].offer];
    let both = |has: fn(&Offer) -> bool| match offers {
        [Some(mine), Some(other)] if !mine.is_cut && !other.is_cut => Some(has(&mine) && has(&other)),
        _ => None,
    };
    let lags =
        connection.lags().filter(|_| connection.handshake.ack_ns.is_some() && !connection.handshake.repeated);
    HandshakeReport {
        complete: offers.iter().all(Option::is_some),
        rtt_us: lags.map(|(client, server)| (client + server) as f64 / 1e3),
        server_side_us: lags.map(|(_, server)| server as f64 / 1e3),
        sack: both(|offer| offer.sack),
        timestamps: both(|offer| offer.timestamps),
        window_scaling: both(|offer| offer.window_scale.is_some()),
        ecn: connection.ecn(),
        fast_open: fast_open(offers, connection.halves[client].counts.fast_open_refused_bytes > 0),
        simultaneous_open: connection.handshake.simultaneous,
        syn_wait_s: connection.syn_wait_ns().map(seconds),
        repeated_syns: connection.halves.iter().map(|half| half.counts.resent_syns).sum(),
    }
}

fn fast_open(offers: [Option<Offer>; 2], is_refused: bool) -> Option<&'static str> {
    let [Some(client), other] = offers else { return None };
    let answered = other.is_some_and(|offer| offer.fast_open);
    match (client.data_bytes > 0, client.fast_open || answered) {
        (true, _) if is_refused => Some("data_refused"),
        (true, true) => Some("data"),
        (false, true) => Some("cookie"),
        _ => None,
    }
}

fn direction(connection: &mut Connection, end: usize, epoch_ns: i64) -> DirectionReport {
    let key = connection.key;
    let round_trip = round_trip_ns(connection, end);
    let missing = missing(connection, end);
    let checksums = connection.checksums[end].report();
    let half = &mut connection.halves[end];
    let active_s = half.data_ns.map_or(0.0, |(first, last)| seconds(last - first));
    let counts = half.counts;
    let is_whole = missing.is_none();
    // Where every packet comes at one time, the capture has none.
    let has_times = connection.last_ns > connection.first_ns;
    let rtts = half.trips.by_sequence.as_deref().filter(|_| is_whole && has_times);
    let mean_rtt_ns = |rtts: &Histogram| half.trips.sum_ns as f64 / rtts.count().max(1) as f64;
    let (least_rtt_ns, most_rtt_ns) = (half.trips.least_ns.unwrap_or(0), half.trips.most_ns);
    let by = |cause: Cause| half.recovery.segments[cause as usize];
    let (least_window, most_window) = windows_seen(half);
    let spacing = half.observed.spacing.as_deref();
    let is_flight_known = is_whole && !rests_on_unseen_window(half, most_window);
    let mean_flight = half.flight_sum as f64 / counts.data_packets.max(1) as f64;
    let gap_histograms = gap_histograms(half);
    let lag = (counts.data_packets > 0).then_some(half.lag_ns);
    DirectionReport {
        from: key.end(end),
        to: key.end(1 - end),
        missing,
        mss_bytes: half.offer.and_then(|offer| offer.mss_bytes),
        window_scale: half.offer.and_then(|offer| offer.window_scale),
        offers_sack: half.offer.map(|offer| offer.sack),
        counts,
        active_s,
        throughput_bps: (active_s > 0.0 && !matches!(missing, Some(Missing::Data | Missing::Numbering)))
            .then(|| counts.unique_bytes as f64 * 8.0 / active_s),
        retransmissions: counts.resent_segments as f64 / counts.sent_segments.max(1) as f64,
        fast_segments: by(Cause::Fast),
        timeout_segments: by(Cause::Timeout),
        timeouts: half.recovery.timeouts,
        go_back_segments: by(Cause::GoBack),
        tail_probe_segments: by(Cause::TailProbe),
        spurious_segments: half.recovery.spurious_segments,
        spurious_by_dsack: half.recovery.spurious_by_dsack,
        segments_per_ack: (counts.acks > 0 && is_whole && half.mss_bytes > 0)
            .then(|| counts.acked_segments as f64 / counts.acks as f64),
        zero_window_s: seconds(half.closed_ns),
        probes: counts.keep_alives + counts.window_probes,
        rtt: rtts.and_then(|rtts| Spread::within(rtts, least_rtt_ns as u64, most_rtt_ns as u64)),
        rtt_by_timestamp: half.trips.by_timestamp.as_deref().filter(|_| is_whole).and_then(Spread::of),
        least_rtt_us: rtts.map(|_| least_rtt_ns as f64 / 1e3),
        mean_rtt_us: rtts.map(|rtts| mean_rtt_ns(rtts) / 1e3),
        most_rtt_us: rtts.map(|_| most_rtt_ns as f64 / 1e3),
        lag_us: half.lag_ns as f64 / 1e3,
        karn_refused: half.trips.karn_refused,
        most_flight_bytes: if is_flight_known { half.most_flight_bytes } else { 0 },
        mean_flight_bytes: if is_flight_known { mean_flight } else { 0.0 },
        least_window_bytes: least_window,
        most_window_bytes: most_window,
        largest_payload_bytes: half.largest_payload,
        limits: if is_whole { shares(half) } else { LimitShares::default() },
        scaling_s: half.observed.series.as_deref().filter(|_| is_whole).and_then(scaling_s),
        paced: lag.filter(|lag| *lag == 0).and_then(|_| paced(half)),
        data_gaps: spacing.map(|s| gaps(&s.data, round_trip)),
        ack_gaps: spacing.map(|s| gaps(&s.acks, round_trip)),
        ack_compression: compression(half, epoch_ns),
        ttl: half.observed.ttl.map(|ttl| (ttl.first, ttl.last)),
        ttl_changes: half.observed.ttl.map_or(0, |ttl| ttl.changes),
        checksums,
        path_mtu_bytes: half.too_big.map(|(mtu, _)| mtu),
        episodes: half.recovery.episodes.clone(),
        episode_count: half.recovery.episode_count,
        series: half.observed.series.as_deref().map(|s| series(&s.coarser(SERIES_BINS), epoch_ns)),
        detail: half.observed.detail.take(),
        gap_histograms,
    }
}

/// Least and greatest window that bounded what went this way; none where its scale is not known.
fn windows_seen(half: &Half) -> (Option<u64>, Option<u64>) {
    let known = |window: Option<u64>| window.filter(|bytes| is_window_known(*bytes));
    // What went before the first answer to data rests on the SYN's window.
    let first_flight = half.syn_window_bytes.map_or(0, |window| window.min(half.most_flight_bytes));
    let most = match half.most_window_bytes {
        None => half.syn_window_bytes,
        seen => known(seen).map(|most| most.max(first_flight)),
    };
    (known(half.least_window_bytes), most)
}

/// More was outstanding than any window allows that was seen: what allowed it was not.
fn rests_on_unseen_window(half: &Half, most_window: Option<u64>) -> bool {
    let allowed = |window: u64| window.saturating_add(u64::from(half.largest_payload));
    most_window.is_some_and(|window| half.most_flight_bytes > allowed(window))
}

/// Gaps of data and of acknowledgements, where details are asked for.
fn gap_histograms(half: &Half) -> [Histogram; 2] {
    match half.observed.spacing.as_deref() {
        Some(s) if half.observed.detail.is_some() => [s.data.histogram.clone(), s.acks.histogram.clone()],
        _ => Default::default(),
    }
}

/// Packets per burst up to which a sender is said to pace.
const PACED_BURST: f64 = 2.5;

fn paced(half: &Half) -> Option<bool> {
    let data = &half.observed.spacing.as_deref()?.data;
    (data.histogram.count() >= 100 && half.counts.oversize_packets == 0)
        .then(|| data.mean_burst().is_some_and(|burst| burst <= PACED_BURST))
}

fn gaps(gaps: &Gaps, round_trip_ns: Option<i64>) -> GapReport {
    let ticks = gaps.period(round_trip_ns).map(|period| TickReport {
        period_us: period.period_ns / 1e3,
        strength: period.strength,
        packets_per_cluster: period.packets_per_cluster,
    });
    GapReport {
        gap: Spread::of(&gaps.histogram),
        mean_burst_packets: gaps.mean_burst(),
        longest_burst_packets: gaps.longest_burst,
        ticks,
        backwards: gaps.backwards,
    }
}

fn compression(half: &Half, epoch_ns: i64) -> Option<CompressionReport> {
    let found = &half.observed.spacing.as_deref()?.compression;
    let mean = |sum: u64| sum as f64 / 1e3 / found.compressed.max(1) as f64;
    (found.compared > 0).then(|| CompressionReport {
        compared_pairs: found.compared,
        share: found.compressed as f64 / found.compared as f64,
        data_gap_us: mean(found.data_ns),
        ack_gap_us: mean(found.ack_ns),
        longest_run: found.longest_run,
        first_s: found.first_ns.map_or(0.0, |ns| seconds(ns - epoch_ns)),
    })
}

/// Tamatsukuri's scaling time: until the flight has grown to its final size, here nine tenths of what the upper tenth
/// of all stretches of time reach.
fn scaling_s(series: &Series) -> Option<f64> {
    let mut flights: Vec<u64> = series.bins().iter().map(|bin| bin.flight_bytes).filter(|f| *f > 0).collect();
    if flights.len() < 8 {
        return None;
    }
    flights.sort_unstable();
    let lasting = flights[flights.len() * 9 / 10] as f64;
    let at = series.bins().iter().position(|bin| bin.flight_bytes as f64 >= 0.9 * lasting)?;
    Some(seconds(series.width_ns()) * at as f64)
}

fn series(series: &Series, epoch_ns: i64) -> SeriesReport {
    let bins = series.bins();
    let bin_s = seconds(series.width_ns());
    let rate = |of: fn(&Bin) -> u64| bins.iter().map(|b| of(b) as f64 * 8.0 / bin_s).collect();
    let rtt = |us: u32| (us != u32::MAX && us > 0).then(|| f64::from(us) / 1e3);
    let limit = |bin: &Bin| {
        let all = [Limit::Application, Limit::Window, Limit::Congestion, Limit::Recovery];
        all.into_iter()
            .max_by_key(|limit| bin.limit_ns[*limit as usize])
            .filter(|l| bin.limit_ns[*l as usize] > 0)
    };
    SeriesReport {
        bin_s,
        start_s: seconds(series.start_ns() - epoch_ns),
        rate_bps: rate(|bin| bin.new_bytes),
        delivered_bps: rate(|bin| bin.acked_bytes),
        resent_bps: rate(|bin| bin.resent_bytes),
        flight_bytes: bins.iter().map(|bin| bin.flight_bytes).collect(),
        window_bytes: bins.iter().map(|b| Some(b.window_bytes).filter(|w| is_window_known(*w))).collect(),
        rtt_least_ms: bins.iter().map(|bin| rtt(bin.rtt_least_us)).collect(),
        rtt_most_ms: bins.iter().map(|bin| rtt(bin.rtt_most_us)).collect(),
        limit: bins.iter().map(limit).collect(),
    }
}
