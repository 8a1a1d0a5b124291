//! The path: full, with a queue or without.

use super::{
    Watch, Why,
    figures::{median, ratio},
    inferred,
};
use crate::{
    cause::Cause,
    divide::{self, Hold, Look},
    words::{duration, rate},
};
use longfat_schema::units::Rate;

/// Queueing over the least round trip: a standing queue, and any at all.
const STANDING: f64 = 0.25;
const STANDING_US: f64 = 5_000.0;
const QUEUED: f64 = 0.04;
const QUEUED_US: f64 = 1_000.0;
const SOME_QUEUE: f64 = 0.01;
const SOME_QUEUE_US: f64 = 300.0;
/// An acknowledgement of two segments may let four go at once (RFC 5681, section 3.1), behind one that is being sent:
/// so many in a queue are no standing one.
const OWN_SEGMENTS: f64 = 5.0;
/// Mean over peak of a saw-tooth that falls to half from a full path (Reno's, without a queue): one that carries less
/// does not come from the path.
const SAW_TOOTH: f64 = 0.75;
/// Mean over upper decile of what is delivered where a loss or two leave no gap.
const HARDLY_FALLS: f64 = 0.93;
/// What a window that leaves at once may wait for itself.
const OWN_BURST: f64 = 0.15;
const OWN_BURST_US: f64 = 2_000.0;
/// A full path carries about as much all the time: mean over upper decile of what is delivered.
const STEADY_RATE: f64 = 0.85;
/// Mean over upper decile of a full path whose window falls below the pipe after each loss.
const NEARLY_STEADY_RATE: f64 = 0.9;
/// Where the path is full, what is delivered does not go with the window: its change in the window's upper third
/// against the lower, as a power of the window's. Windows that differ by less do not tell.
const FULL_POWER: f64 = 0.4;
const WINDOWS_DIFFER: f64 = 1.15;

impl Watch<'_> {
    pub(super) fn of_standing_queue(&self, queue_us: f64) -> Option<Why> {
        (self.stands(queue_us) && self.is_full()).then(|| inferred(Cause::StandingQueue, self.queue()))
    }

    /// What waits is a queue that stands.
    pub(super) fn stands(&self, queue_us: f64) -> bool {
        let least = f64::from(self.figures.least_rtt_us);
        queue_us >= (STANDING * least).max(STANDING_US).max(self.own_segments_us())
    }

    /// Time that segments of its own take.
    fn own_segments_us(&self) -> f64 {
        let bits = OWN_SEGMENTS * f64::from(self.figures.mss_bytes) * 8.0;
        bits * 1e6 / self.figures.rate_bps.max(1.0)
    }

    /// Each loss came when something waited, and what is carried is a saw-tooth's from what was delivered then, which
    /// comes near the path's rate where that is known.
    pub(super) fn falls_from_full_path(&self) -> bool {
        let least = f64::from(self.figures.least_rtt_us);
        let waited = |us: u32| f64::from(us) - least >= (QUEUED * least).max(QUEUED_US);
        let peak = self.episodes.iter().map(|episode| episode.bytes_per_s).max().unwrap_or(0);
        let is_of_path = self.payload_bytes_per_s().is_none_or(|known| peak as f64 >= SAW_TOOTH * known);
        let each_waited = self.episodes.iter().all(|episode| waited(episode.srtt_us));
        is_of_path && each_waited && self.carries(SAW_TOOTH * peak as f64)
    }

    pub(super) fn of_short_queue(&self, queue_us: f64) -> Option<Why> {
        let least = f64::from(self.figures.least_rtt_us);
        let waits = queue_us >= (QUEUED * least).max(QUEUED_US);
        let evidence = || format!("{}; {}", self.queue(), self.losses());
        (waits && self.is_full()).then(|| inferred(Cause::PathFull, evidence()))
    }

    /// Judges whether nearly all that the path is known to carry is carried.
    pub(super) fn of_known_rate(&self) -> Option<Why> {
        let (known, nearly_all) = self.nearly_all()?;
        let evidence = || format!("it carries {} of {known}; {}", rate(self.figures.rate_bps), self.losses());
        self.carries(nearly_all).then(|| inferred(Cause::PathFull, evidence()))
    }

    /// Whether what arrives nearly fills the known rate.
    pub(super) fn of_known_rate_received(&self) -> Option<Why> {
        let (known, nearly_all) = self.nearly_all()?;
        let evidence = || format!("it carries {} of {known}", rate(self.figures.rate_bps));
        (self.figures.rate_bps / 8.0 >= nearly_all).then(|| inferred(Cause::PathFull, evidence()))
    }

    /// The rate that the path is known to have, and payload per second that nearly fills it.
    fn nearly_all(&self) -> Option<(Rate, f64)> {
        Some((self.path_rate?, HARDLY_FALLS * self.payload_bytes_per_s()?))
    }

    /// Payload per second of the rate that the path is known to have.
    fn payload_bytes_per_s(&self) -> Option<f64> {
        Some(self.path_rate?.0 as f64 / 8.0 / self.figures.packet_over_payload())
    }

    /// Round trip and its least, as evidence.
    pub(super) fn queue(&self) -> String {
        let figures = &self.figures;
        format!("round trip {}, least {}", duration(figures.rtt_us), duration(figures.least_rtt_us))
    }

    /// Something waits, and what is delivered stays near the best although the window falls: a short queue that is kept
    /// busy (CoDel).
    pub(super) fn hardly_falls(&self, queue_us: f64) -> bool {
        let least = f64::from(self.figures.least_rtt_us);
        queue_us >= (SOME_QUEUE * least).max(SOME_QUEUE_US) && self.is_rate_steady(HARDLY_FALLS)
    }

    /// Whether what is delivered while the window is full does not go with how large it is; `None` where it hardly
    /// changes.
    pub(super) fn fills_path(&self) -> Option<bool> {
        let mut points: Vec<(u32, u64)> = self
            .bound()
            .map(|look| (look.info.snd_cwnd_segments, look.info.delivery_rate_bytes_per_s))
            .filter(|(_, rate)| *rate > 0)
            .collect();
        points.sort_unstable();
        let third = points.len() / 3;
        let (low, high) = (&points[..third], &points[points.len() - third..]);
        let windows = ratio(high, low, |point| f64::from(point.0));
        if third == 0 || windows < WINDOWS_DIFFER || self.last().paces {
            return None;
        }
        Some(ratio(high, low, |point| point.1 as f64).ln() < FULL_POWER * windows.ln())
    }

    pub(super) fn is_full(&self) -> bool {
        match self.fills_path() {
            Some(fills) => fills || self.is_rate_steady(NEARLY_STEADY_RATE),
            None => self.is_rate_steady(STEADY_RATE),
        }
    }

    /// Whether about as much is delivered all the time while the window is full: such a part of the best.
    pub(super) fn is_rate_steady(&self, part: f64) -> bool {
        let mut rates: Vec<u64> = self.bound().map(|look| look.info.delivery_rate_bytes_per_s).collect();
        rates.sort_unstable();
        self.carries(part * rates.get(rates.len() * 9 / 10).copied().unwrap_or(0) as f64)
    }

    /// While the window is full, so many bytes per second are acknowledged.
    fn carries(&self, bytes_per_s: f64) -> bool {
        let is_bound =
            |look: &Look| matches!(divide::at(look, self.talk), Hold::Cwnd | Hold::SlowStart | Hold::Repair);
        let between = self.looks.windows(2).filter(|pair| is_bound(&pair[0]) && is_bound(&pair[1]));
        let grown = |pair: &[Look]| {
            let bytes = pair[1].info.acked_bytes.saturating_sub(pair[0].info.acked_bytes);
            (bytes, pair[1].time_us.saturating_sub(pair[0].time_us))
        };
        let (bytes, time_us) = between
            .map(grown)
            .fold((0_u64, 0_u64), |(b, t), (bytes, us)| (b.saturating_add(bytes), t.saturating_add(us)));
        bytes as f64 * 1e6 >= bytes_per_s * time_us as f64
    }

    /// No more waits than a window that leaves at once.
    pub(super) fn is_queueless(&self, queue_us: f64) -> bool {
        queue_us < (OWN_BURST * f64::from(self.figures.least_rtt_us)).max(OWN_BURST_US)
    }

    /// Median of what the round trip exceeds its least by while that is what holds it; slow start is judged by itself.
    pub(super) fn queue_us(&self, hold: Hold) -> f64 {
        let is_meant =
            |look: &&Look| (divide::at(look, self.talk) == Hold::SlowStart) == (hold == Hold::SlowStart);
        let over = |look: &Look| look.info.srtt_us.saturating_sub(self.figures.least_rtt_us);
        median(self.bound().filter(is_meant).map(over).collect()).map_or(0.0, f64::from)
    }
}
