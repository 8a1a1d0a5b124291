//! What a transfer came to.

use crate::{
    channel::ClockOffset,
    ends::{SinkEnd, SourceEnd, goodput_bps, rate_bps, summarise},
    plan::TransferPlan,
    session::Finished,
};
use longfat_schema::record::FlowSummary;
use serde::{Serialize, Serializer};

/// Everything both ends know at the end. Written, what nobody knows is null: a rate over no time, and figures of an end
/// that went away.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What was agreed.
    pub plan: TransferPlan,
    /// One summary per stream.
    pub flows: Vec<FlowSummary>,
    /// The sending end's figures.
    pub sources: Vec<SourceEnd>,
    /// The receiving end's figures.
    pub sinks: Vec<SinkEnd>,
    /// The other end's CLOCK_MONOTONIC minus this end's.
    pub clock_offset_us: i64,
    /// How far off that estimate may be.
    pub clock_error_us: i64,
    /// Why the other end's figures are missing, when it went away.
    pub lost: Option<String>,
    /// Why the samples could not all be kept.
    pub unkept: Option<String>,
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            plan: &'a TransferPlan,
            flows: Vec<serde_json::Value>,
            sources: &'a [SourceEnd],
            sinks: &'a [SinkEnd],
            clock_offset_us: i64,
            clock_error_us: i64,
            lost: &'a Option<String>,
            unkept: &'a Option<String>,
        }
        let flows: Result<_, serde_json::Error> = self.flows.iter().map(|flow| self.written(flow)).collect();
        let Outcome { plan, sources, sinks, clock_offset_us, clock_error_us, lost, unkept, .. } = self;
        let (clock_offset_us, clock_error_us) = (*clock_offset_us, *clock_error_us);
        let flows = flows.map_err(serde::ser::Error::custom)?;
        Written { plan, flows, sources, sinks, clock_offset_us, clock_error_us, lost, unkept }.serialize(to)
    }
}

impl Outcome {
    pub(crate) fn new(plan: &TransferPlan, finished: Finished, clock: ClockOffset) -> Outcome {
        let (mut sources, mut sinks) = (finished.own.sources, finished.own.sinks);
        sources.extend(finished.peer.sources);
        sinks.extend(finished.peer.sinks);
        Outcome {
            flows: summarise(plan, &sources, &sinks, finished.lost.as_deref()),
            plan: plan.clone(),
            sources,
            sinks,
            clock_offset_us: clock.offset_us,
            clock_error_us: clock.error_us,
            lost: finished.lost,
            unkept: None,
        }
    }

    /// The sending end's figures of a stream, if they are known.
    pub fn source(&self, stream: u32) -> Option<&SourceEnd> {
        self.sources.iter().find(|end| end.stream == stream)
    }

    /// The receiving end's figures of a stream, if they are known.
    pub fn sink(&self, stream: u32) -> Option<&SinkEnd> {
        self.sinks.iter().find(|end| end.stream == stream)
    }

    fn written(&self, flow: &FlowSummary) -> Result<serde_json::Value, serde_json::Error> {
        let mut shown = serde_json::to_value(flow)?;
        let (source, sink) = (self.source(flow.stream), self.sink(flow.stream));
        shown["goodput_bps"] = goodput_bps(flow).into();
        let of_source =
            ["retransmitted_segments", "retransmitted_bytes", "echo_count", "mss_bytes", "sndbuf_bytes"];
        let of_sink = ["received_bytes", "duration_us", "rcvbuf_bytes"];
        let unknown = [
            (source.is_none(), &of_source[..]),
            (sink.is_none(), &of_sink),
            (source.is_none() || sink.is_none(), &["lost_datagrams"]),
        ];
        for name in unknown.into_iter().filter(|(is_unknown, _)| *is_unknown).flat_map(|(_, names)| names) {
            shown[*name] = serde_json::Value::Null;
        }
        Ok(shown)
    }

    /// Whether every stream ended as planned.
    pub fn is_complete(&self) -> bool {
        self.lost.is_none() && self.unkept.is_none() && self.flows.iter().all(|flow| flow.error.is_none())
    }

    /// Goodput of all streams together: what all received, over the time from the first stream's first byte to the end
    /// of the last one's window; absent where no stream has any figure.
    pub fn goodput_bps(&self) -> Option<u64> {
        let windows = self.flows.iter().filter(|flow| goodput_bps(flow).is_some()).filter_map(|flow| {
            let first_us = self.sink(flow.stream)?.first_us;
            Some((first_us, first_us.saturating_add_unsigned(flow.duration_us), flow.received_bytes))
        });
        let all = windows
            .reduce(|one, other| (one.0.min(other.0), one.1.max(other.1), one.2.saturating_add(other.2)));
        all.map(|(first_us, last_us, bytes)| rate_bps(bytes, last_us.abs_diff(first_us)))
    }

    /// What went wrong, one line per stream; lines that say the same are joined.
    pub fn errors(&self) -> Vec<String> {
        let mut errors: Vec<(String, Vec<u32>)> = Vec::new();
        for flow in &self.flows {
            let Some(error) = &flow.error else { continue };
            match errors.iter_mut().find(|(text, _)| text == error) {
                Some((_, streams)) => streams.push(flow.stream),
                None => errors.push((error.clone(), vec![flow.stream])),
            }
        }
        let of_streams = errors.into_iter().map(|(text, streams)| format!("{}: {text}", named(&streams)));
        of_streams.chain(self.unkept.clone()).collect()
    }
}

fn named(streams: &[u32]) -> String {
    match streams {
        [one] => format!("stream {one}"),
        [first, .., last] => format!("{} streams ({first} to {last})", streams.len()),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::Amount, session::Ends};

    #[test]
    fn figures_that_a_peer_made_up_overflow_no_sum() {
        let plan = TransferPlan { streams: 2, ..TransferPlan::default() };
        let sink = |stream| SinkEnd { stream, window_bytes: u64::MAX, window_us: 1, ..SinkEnd::default() };
        let source = |stream| SourceEnd { stream, ..SourceEnd::default() };
        let own = Ends { sources: vec![source(0), source(1)], ..Ends::default() };
        let peer = Ends { sinks: vec![sink(0), sink(1)], ..Ends::default() };
        let outcome = Outcome::new(&plan, Finished { own, peer, lost: None }, ClockOffset::default());
        assert_eq!(outcome.goodput_bps(), Some(u64::MAX));
    }

    #[test]
    fn a_goodput_over_no_time_is_null_and_counts_for_nothing() {
        let plan = TransferPlan { streams: 2, amount: Amount::Bytes(2000), ..TransferPlan::default() };
        let goodputs = |spans_us: [u64; 2]| {
            let sink =
                |(stream, window_us)| SinkEnd { stream, window_bytes: 1000, window_us, ..SinkEnd::default() };
            let source = |stream| SourceEnd { stream, ..SourceEnd::default() };
            let own = Ends { sources: (0..2).map(source).collect(), ..Ends::default() };
            let peer = Ends { sinks: (0..).zip(spans_us).map(sink).collect(), ..Ends::default() };
            let outcome = Outcome::new(&plan, Finished { own, peer, lost: None }, ClockOffset::default());
            let written = serde_json::to_value(&outcome).unwrap();
            let of = |stream: usize| written["flows"][stream]["goodput_bps"].as_u64();
            ([of(0), of(1)], outcome.goodput_bps())
        };
        assert_eq!(goodputs([0, 1000]), ([None, Some(8_000_000)], Some(8_000_000)));
        assert_eq!(goodputs([0, 0]), ([None, None], None));
    }

    /// Each is counted over its own window, which begins with its first byte: together they had no more than the line.
    #[test]
    fn streams_that_begin_one_after_the_other_have_no_more_together_than_what_arrived() {
        let plan = TransferPlan { streams: 3, ..TransferPlan::default() };
        let sink = |stream: u32| SinkEnd {
            stream,
            first_us: i64::from(stream) * 1_000_000,
            window_bytes: 1_000_000,
            window_us: 1_000_000,
            ..SinkEnd::default()
        };
        let source = |stream| SourceEnd { stream, ..SourceEnd::default() };
        let own = Ends { sources: (0..3).map(source).collect(), ..Ends::default() };
        let peer = Ends { sinks: (0..3).map(sink).collect(), ..Ends::default() };
        let outcome = Outcome::new(&plan, Finished { own, peer, lost: None }, ClockOffset::default());
        assert_eq!(outcome.goodput_bps(), Some(8_000_000));
    }

    #[test]
    fn figures_of_an_end_that_went_away_are_null() {
        let plan = TransferPlan::default();
        let own = Ends {
            sources: vec![SourceEnd { sent_datagrams: 9, ..SourceEnd::default() }],
            ..Ends::default()
        };
        let lost = Some("the server is gone".to_owned());
        let finished = Finished { own, peer: Ends::default(), lost };
        let outcome = Outcome::new(&plan, finished, ClockOffset::default());
        let flow = &serde_json::to_value(&outcome).unwrap()["flows"][0];
        for unknown in ["goodput_bps", "received_bytes", "duration_us", "lost_datagrams"] {
            assert!(flow[unknown].is_null(), "{unknown}: {flow}");
        }
        assert_eq!(flow["retransmitted_segments"], 0);
        assert_eq!(flow["error"], "the server is gone");
    }
}
