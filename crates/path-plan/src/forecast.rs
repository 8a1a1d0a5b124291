//! What each congestion control gets on the path, by the saw-tooth of its reference.

use crate::{PathSpec, window};
use longfat_cc::{
    Tunables,
    response::{self, Bounds, Cycle, Law},
};
use longfat_schema::units::{Nanos, Rate};
use serde::Serialize;

/// Segments of the first window (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Segments that stand in the queue where Vegas looks at it in slow start, because they leave a sender's fast link in
/// bursts: those of the eight samples that end a round (`cc/algorithms/vegas.h`), two a sample.
const VEGAS_BURST: f64 = 16.0;
/// Below this window, Vegas has not left slow start on any path that was simulated.
const VEGAS_LEAST: f64 = 64.0;
/// A path is called full from here on.
const FULL: f64 = 0.98;

/// What keeps a flow from more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The path is full, and nothing else limits.
    Path,
    /// The queue is too small for the fall at a loss.
    Queue,
    /// Losses that the queue has no part in.
    Loss,
}

/// One congestion control on the path, shared by flows of its own kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Name of the congestion control; `lf_` before it in the kernel.
    pub cc: &'static str,
    /// Where its response is derived.
    pub reference: &'static str,
    /// Payload per second of all flows together.
    pub goodput: Rate,
    /// Part of what the path can carry.
    pub share: f64,
    /// What keeps it from more.
    pub limit: Limit,
    /// A run's goodput is expected within this factor: the saw-tooth is of evenly spaced losses, a run's are scattered.
    pub within_factor: f64,
    /// Mean window of a flow.
    pub window_segments: f64,
    /// Loss rate under which a flow's mean window is just its share of the path.
    pub loss_to_fill: f64,
    /// Time between two such losses.
    pub loss_spacing: Nanos,
    /// Queue that keeps the path busy through a loss of every flow at once.
    pub queue_bytes: u64,
    /// Time from the first packet until the window fills the path, where nothing is lost.
    pub slow_start: Nanos,
    /// Time to grow back to a full window after one loss, without a queue.
    pub recovery: Nanos,
    /// Time from one loss to the next; absent where none is to be expected.
    pub period: Option<Nanos>,
}

pub(crate) fn all(path: &PathSpec, queue_bytes: u64) -> Vec<Forecast> {
    window::laws().map(|(tunables, law)| forecast(path, queue_bytes, &tunables, law)).collect()
}

fn forecast(path: &PathSpec, queue_bytes: u64, tunables: &Tunables, law: Law) -> Forecast {
    let cc = tunables.algorithm().name();
    let (flows, rtt_s) = (f64::from(path.flows), path.rtt_s());
    let pipe_segments = path.pipe_segments() / flows;
    let queue_segments = queue_bytes as f64 / f64::from(path.mtu_bytes) / flows;
    let bounds = Bounds { p: path.loss, rtt_s, pipe_segments, room_segments: pipe_segments + queue_segments };
    let cycle = law.cycle(&bounds);
    let share = (cycle.rate() * rtt_s / pipe_segments).min(1.0);
    // The law is known, so is its response.
    let loss_to_fill = response::loss_rate(tunables, pipe_segments, rtt_s).unwrap_or(0.0);
    let limit = limit(share, &cycle);
    Forecast {
        cc,
        reference: reference(law),
        goodput: Rate((path.rate.0 as f64 * path.payload_share() * share * (1.0 - path.loss)) as u64),
        share,
        limit,
        within_factor: within_factor(limit, law, queue_segments < 3.0 * cycle.steepest),
        window_segments: cycle.mean_window,
        loss_to_fill,
        loss_spacing: nanos(rtt_s / (loss_to_fill * pipe_segments)),
        queue_bytes: window::queue_bytes(path, &law),
        slow_start: nanos(rtt_s * round_trips_to_fill(law, pipe_segments)),
        recovery: nanos(law.recovery_s(pipe_segments, rtt_s)),
        period: (!cycle.settles).then(|| nanos(cycle.period_s)),
    }
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

fn limit(share: f64, cycle: &Cycle) -> Limit {
    match share {
        full if full >= FULL => Limit::Path,
        _ if cycle.by_overflow => Limit::Queue,
        _ => Limit::Loss,
    }
}

/// How far a run may be from the saw-tooth. Scattered losses: BIC lingers at the window of the last loss where losses
/// are even, and searches at full speed where each comes at another window. A queue that a few round trips' growth
/// overruns: several packets are lost before the first loss is noticed.
fn within_factor(limit: Limit, law: Law, is_overrun: bool) -> f64 {
    match (limit, law) {
        (Limit::Loss, Law::Bic { .. }) => 2.0,
        (Limit::Loss, _) => 1.5,
        (Limit::Path | Limit::Queue, _) if is_overrun => 1.5,
        (Limit::Path | Limit::Queue, _) => 1.25,
    }
}

/// Round trips until the window fills the path. It doubles in each (RFC 5681, section 3.1). Vegas's doubles in every
/// other, until `w * VEGAS_BURST / pipe` segments of it seem queued, more than its gamma of 1; from there on it grows
/// by one segment.
fn round_trips_to_fill(law: Law, pipe_segments: f64) -> f64 {
    let doublings = |window: f64| (window / INITIAL_WINDOW).log2().max(0.0);
    if !matches!(law, Law::Vegas { .. }) {
        return doublings(pipe_segments);
    }
    let left_at = (pipe_segments / VEGAS_BURST).max(VEGAS_LEAST).min(pipe_segments);
    2.0 * doublings(left_at) + (pipe_segments - left_at)
}

fn reference(law: Law) -> &'static str {
    match law {
        Law::Reno => "RFC 5681; Mathis 1997",
        Law::HighSpeed => "RFC 3649",
        Law::Scalable { .. } => "Kelly 2003",
        Law::Bic { .. } => "Xu 2004",
        Law::Cubic { .. } => "RFC 9438",
        Law::Vegas { .. } => "Brakmo 1994",
    }
}
