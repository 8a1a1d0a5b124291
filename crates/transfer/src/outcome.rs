//! What a transfer came to.

use crate::{
    channel::ClockOffset,
    ends::{SinkEnd, SourceEnd, summarise},
    plan::TransferPlan,
    session::Finished,
};
use longfat_schema::record::FlowSummary;
use serde::Serialize;

/// Everything both ends know at the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
        }
    }

    /// Whether every stream ended as planned.
    pub fn is_complete(&self) -> bool {
        self.lost.is_none() && self.flows.iter().all(|flow| flow.error.is_none())
    }

    /// Goodput of all streams together, each over its own window.
    pub fn goodput_bps(&self) -> u64 {
        self.flows.iter().fold(0, |sum, flow| sum.saturating_add(flow.goodput_bps))
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
        errors.into_iter().map(|(text, streams)| format!("{}: {text}", named(&streams))).collect()
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
    use crate::session::Ends;

    #[test]
    fn figures_that_a_peer_made_up_overflow_no_sum() {
        let plan = TransferPlan { streams: 2, ..TransferPlan::default() };
        let sink = |stream| SinkEnd { stream, window_bytes: u64::MAX, window_us: 1, ..SinkEnd::default() };
        let source = |stream| SourceEnd { stream, ..SourceEnd::default() };
        let own = Ends { sources: vec![source(0), source(1)], ..Ends::default() };
        let peer = Ends { sinks: vec![sink(0), sink(1)], ..Ends::default() };
        let outcome = Outcome::new(&plan, Finished { own, peer, lost: None }, ClockOffset::default());
        assert_eq!(outcome.goodput_bps(), u64::MAX);
    }
}
