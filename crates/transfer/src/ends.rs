//! What a stream came to at each end, and both put together.

use crate::plan::{Protocol, TransferPlan};
use longfat_schema::record::FlowSummary;
use serde::{Deserialize, Serialize};

/// Figures of the sending end of one stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceEnd {
    /// Stream number.
    pub stream: u32,
    /// First payload byte handed over, CLOCK_MONOTONIC of this end.
    pub start_us: i64,
    /// Last payload byte handed over.
    pub end_us: i64,
    /// Payload bytes handed to the socket.
    pub sent_bytes: u64,
    /// UDP datagrams handed to the socket.
    pub sent_datagrams: u64,
    /// UDP datagrams the host itself would not take (its queue was full).
    pub unsent_datagrams: u64,
    /// Payload rate offered: `sent_bytes` over the time from the first to the end of the last.
    pub offered_bps: u64,
    /// Congestion control read back.
    pub cc: String,
    /// Segments retransmitted.
    pub retransmitted_segments: u64,
    /// Payload bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Least round-trip time.
    pub min_rtt_us: Option<u32>,
    /// Maximum segment size.
    pub mss_bytes: u32,
    /// Send buffer.
    pub sndbuf_bytes: u64,
    /// Timestamps written whole.
    pub echo_sent: u64,
    /// Echoes read.
    pub echo_count: u64,
    /// Median latency.
    pub echo_p50_us: Option<u64>,
    /// 99th percentile.
    pub echo_p99_us: Option<u64>,
    /// Greatest round trip of an echo, in microseconds.
    pub echo_max_us: Option<u64>,
    /// Cut at the drain limit with bytes still on their way.
    pub cut: bool,
    /// Why it ended early.
    pub error: Option<String>,
}

/// Figures of the receiving end of one stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SinkEnd {
    /// Stream number.
    pub stream: u32,
    /// All payload bytes that arrived.
    pub received_bytes: u64,
    /// First arrival, CLOCK_MONOTONIC of this end.
    pub first_us: i64,
    /// Bytes that arrived in the window in which goodput is counted.
    pub window_bytes: u64,
    /// Length of that window: the planned duration, else the time of all arrivals.
    pub window_us: u64,
    /// From the first arrival to the last; 0 where all came at one moment.
    pub seen_us: u64,
    /// Congestion control read back.
    pub cc: String,
    /// Receive buffer.
    pub rcvbuf_bytes: u64,
    /// Distinct UDP datagrams.
    pub received_datagrams: u64,
    /// UDP datagrams that came twice.
    pub duplicate_datagrams: u64,
    /// UDP datagrams overtaken by later ones.
    pub reordered_datagrams: u64,
    /// Why it ended early.
    pub error: Option<String>,
}

/// Counts arrivals of one stream and the window in which goodput is counted: from the first arrival, for the
/// planned duration; without one, to the last arrival.
#[derive(Debug, Clone, Default)]
pub struct Window {
    planned_us: Option<u64>,
    first_us: Option<i64>,
    last_us: i64,
    window_bytes: u64,
}

impl Window {
    /// A window of the planned duration, or open-ended.
    pub fn new(planned_us: Option<u64>) -> Window {
        Window { planned_us, ..Window::default() }
    }

    /// Bytes arrived.
    pub fn on_arrival(&mut self, time_us: i64, bytes: u64) {
        let first_us = *self.first_us.get_or_insert(time_us);
        self.last_us = time_us;
        if self.planned_us.is_none_or(|planned| time_us - first_us <= planned as i64) {
            self.window_bytes += bytes;
        }
    }

    /// Writes the figures of a stream that ended.
    pub fn close(&self, end: &mut SinkEnd) {
        let seen_us = self.last_us - self.first_us.unwrap_or(self.last_us);
        end.first_us = self.first_us.unwrap_or(0);
        end.window_bytes = self.window_bytes;
        end.seen_us = seen_us.max(0) as u64;
        end.window_us = self.planned_us.unwrap_or(end.seen_us);
    }
}

/// What an end says first of a connection that its peer, or somebody between them, reset.
pub(crate) const BROKE: &str = "the connection broke";

/// One summary per stream from what both ends say. `lost` is why an end's figures are missing.
pub fn summarise(
    plan: &TransferPlan,
    sources: &[SourceEnd],
    sinks: &[SinkEnd],
    lost: Option<&str>,
) -> Vec<FlowSummary> {
    (0..plan.streams)
        .map(|stream| {
            let source = sources.iter().find(|end| end.stream == stream);
            let sink = sinks.iter().find(|end| end.stream == stream);
            let is_missing = source.is_none() || sink.is_none();
            let missing = is_missing.then(|| lost.unwrap_or("the other end sent no figures of it"));
            let flow =
                join(plan, source.cloned().unwrap_or_default(), sink.cloned().unwrap_or_default(), missing);
            FlowSummary { stream, ..flow }
        })
        .collect()
}

fn join(plan: &TransferPlan, source: SourceEnd, sink: SinkEnd, missing: Option<&str>) -> FlowSummary {
    let udp = plan.protocol == Protocol::Udp;
    // A stream cut at the drain limit looks broken to its receiver; the window was complete by then.
    let sink_error = if source.cut { None } else { sink.error };
    // Who breaks a connection knows why; the sending end sees only that it broke.
    let knows_why = |error: &String| sink_error.is_none() || !error.starts_with(BROKE);
    // To an end that is cut off its peer's death may look like a good end.
    let error = source.error.filter(knows_why).or(sink_error).or(missing.map(str::to_owned));
    // A stream that ended early is counted over the time it lived.
    let duration_us = if error.is_some() { sink.window_us.min(sink.seen_us) } else { sink.window_us };
    FlowSummary {
        flow: plan.flow.clone(),
        stream: source.stream,
        protocol: if udp { "udp" } else { "tcp" }.to_owned(),
        cc_sender: source.cc,
        cc_receiver: sink.cc,
        start_us: source.start_us,
        duration_us,
        received_bytes: sink.window_bytes,
        goodput_bps: rate_bps(sink.window_bytes, duration_us),
        retransmitted_segments: source.retransmitted_segments,
        retransmitted_bytes: source.retransmitted_bytes,
        lost_datagrams: if udp { source.sent_datagrams.saturating_sub(sink.received_datagrams) } else { 0 },
        min_rtt_us: source.min_rtt_us,
        echo_count: source.echo_count,
        echo_p50_us: source.echo_p50_us,
        echo_p99_us: source.echo_p99_us,
        echo_max_us: source.echo_max_us,
        mss_bytes: source.mss_bytes,
        sndbuf_bytes: source.sndbuf_bytes,
        rcvbuf_bytes: sink.rcvbuf_bytes,
        error,
    }
}

/// Goodput of a stream; absent where all that counts arrived at one moment, so that there is no time to count over.
pub fn goodput_bps(flow: &FlowSummary) -> Option<u64> {
    (flow.duration_us > 0).then_some(flow.goodput_bps)
}

/// Bits per second; 0 over no time.
pub fn rate_bps(bytes: u64, span_us: u64) -> u64 {
    if span_us == 0 {
        return 0;
    }
    u64::try_from(u128::from(bytes) * 8_000_000 / u128::from(span_us)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Amount;

    #[test]
    fn goodput_of_a_duration_counts_only_what_arrived_in_it() {
        let mut window = Window::new(Some(1_000_000));
        [5_000_000, 5_500_000, 6_000_000, 6_000_001]
            .into_iter()
            .for_each(|time| window.on_arrival(time, 100));
        let mut end = SinkEnd::default();
        window.close(&mut end);
        assert_eq!((end.first_us, end.window_bytes, end.window_us), (5_000_000, 300, 1_000_000));
    }

    #[test]
    fn a_stream_that_died_is_counted_over_the_time_it_lived() {
        let mut window = Window::new(Some(1_000_000));
        [0, 250_000].into_iter().for_each(|time| window.on_arrival(time, 100));
        let mut sink = SinkEnd::default();
        window.close(&mut sink);
        let summary = |error: Option<&str>| {
            let source = SourceEnd { error: error.map(str::to_owned), ..SourceEnd::default() };
            let flow =
                summarise(&TransferPlan::default(), &[source], std::slice::from_ref(&sink), None).remove(0);
            (flow.duration_us, flow.goodput_bps)
        };
        assert_eq!(summary(Some("reset")), (250_000, 6400));
        assert_eq!(summary(None), (1_000_000, 1600));
        let flow = summarise(&TransferPlan::default(), &[], &[sink], Some("the sender is gone")).remove(0);
        assert_eq!((flow.duration_us, flow.goodput_bps), (250_000, 6400), "killed, it ended well");
    }

    #[test]
    fn what_arrives_at_one_moment_has_no_goodput() {
        let mut window = Window::new(None);
        let summary = |window: &Window| {
            let mut sink = SinkEnd::default();
            window.close(&mut sink);
            let flow = summarise(&TransferPlan::default(), &[SourceEnd::default()], &[sink], None).remove(0);
            (flow.received_bytes, flow.duration_us, goodput_bps(&flow))
        };
        window.on_arrival(5_000_000, 1000);
        assert_eq!(summary(&window), (1000, 0, None));
        window.on_arrival(5_000_100, 1000);
        assert_eq!(summary(&window), (2000, 100, Some(160_000_000)));
    }

    #[test]
    fn a_stream_cut_at_the_drain_limit_is_no_error_but_a_reset_one_is() {
        let plan = TransferPlan { amount: Amount::DurationUs(1000), ..TransferPlan::default() };
        let sink = SinkEnd { error: Some("reset".into()), window_us: 1000, ..SinkEnd::default() };
        let error = |source: SourceEnd| {
            summarise(&plan, &[source], std::slice::from_ref(&sink), None)[0].error.clone()
        };
        assert_eq!(error(SourceEnd { cut: true, ..SourceEnd::default() }), None);
        assert_eq!(error(SourceEnd::default()), Some("reset".into()));
    }

    #[test]
    fn a_receiver_that_breaks_the_connection_says_why_and_its_sender_does_not_hide_it() {
        let plan = TransferPlan::default();
        let of = |source: &str, sink: Option<&str>| {
            let source = SourceEnd { error: Some(source.to_owned()), ..SourceEnd::default() };
            let sink = SinkEnd { error: sink.map(str::to_owned), ..SinkEnd::default() };
            summarise(&plan, &[source], &[sink], None)[0].error.clone().unwrap()
        };
        let broke = format!("{BROKE} after 9 bytes: Broken pipe (os error 32)");
        assert_eq!(of(&broke, Some("as much as is allowed")), "as much as is allowed");
        assert_eq!(of(&broke, None), broke);
        assert_eq!(of("stopped", Some("reset")), "stopped");
    }

    #[test]
    fn a_missing_end_is_an_error_with_its_reason() {
        let plan = TransferPlan { streams: 2, ..TransferPlan::default() };
        let ends = [SourceEnd { stream: 1, ..SourceEnd::default() }];
        let flows = summarise(&plan, &ends, &[], Some("the server is dead"));
        assert_eq!(flows.iter().map(|flow| flow.stream).collect::<Vec<_>>(), [0, 1]);
        assert!(flows.iter().all(|flow| flow.error.as_deref() == Some("the server is dead")));
    }
}
