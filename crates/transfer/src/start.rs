//! When a transfer begins, and what was agreed before.

use crate::plan::SPAN_MAX_US;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// When the first stream begins, CLOCK_MONOTONIC of the client.
#[derive(Debug, Clone, Default)]
pub enum Start {
    /// As soon as the ends agree.
    #[default]
    AtOnce,
    /// At this time, in nanoseconds.
    At(u64),
    /// At a time that is told once the ends agree, however long that takes them.
    WhenTold(Told),
}

/// A start may be this far ahead: a day, as long as any span of a transfer. What is further ahead is no time of this
/// host's CLOCK_MONOTONIC.
const AHEAD_MAX_NS: u64 = SPAN_MAX_US * 1000;

/// Whether a start is too far ahead to be meant.
pub(crate) fn is_far(start_ns: u64, now_ns: u64) -> bool {
    start_ns.saturating_sub(now_ns) > AHEAD_MAX_NS
}

/// A start time that is told later, from another thread.
#[derive(Debug, Clone, Default)]
pub struct Told(Arc<AtomicU64>);

impl Told {
    /// Tells it: CLOCK_MONOTONIC in nanoseconds, not 0.
    pub fn tell(&self, start_ns: u64) {
        self.0.store(start_ns, Ordering::Release);
    }

    pub(crate) fn heard(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|start_ns| *start_ns > 0)
    }
}

/// What the ends do before the first byte of payload, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The control connection is made.
    Connect,
    /// The server agrees to the plan.
    Agree,
    /// The offset of the two clocks is learnt.
    Clock,
    /// The data connections are made.
    Data,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Step::Connect => "making the control connection",
            Step::Agree => "agreeing on the plan",
            Step::Clock => "comparing clocks",
            Step::Data => "making the data connections",
        })
    }
}

/// How long each step took, in words.
pub(crate) fn in_words(steps: &[(Step, Duration)]) -> String {
    let took = |(step, took): &(Step, Duration)| format!("{step} took {:.1} ms", took.as_secs_f64() * 1e3);
    steps.iter().map(took).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_more_than_a_day_ahead_is_far_and_one_that_has_passed_is_not() {
        const NOW_NS: u64 = 7_000_000_000;
        assert!([0, NOW_NS, NOW_NS + AHEAD_MAX_NS].iter().all(|start_ns| !is_far(*start_ns, NOW_NS)));
        assert!([NOW_NS + AHEAD_MAX_NS + 1, u64::MAX].iter().all(|start_ns| is_far(*start_ns, NOW_NS)));
    }
}
