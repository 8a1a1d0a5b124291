//! Losses: where they lie tells a policer, chance and reordering apart.

use super::{
    Watch, Why,
    figures::{mean, scatter},
    inferred, kernel,
};
use crate::{
    cause::Cause,
    divide::{CA_LOSS, Look},
    words::rate,
};

/// What was sent again although it had arrived, from which on reordering is what it is.
const NEEDLESS: f64 = 0.25;
const NEEDLESS_SEGMENTS: u64 = 3;
const NEEDLESS_SHARE: f64 = 0.001;
/// Losses come at the same window where the path is full: standard deviation over mean.
const SAME_WINDOW: f64 = 0.15;
/// What losses have to be to be those of a policer: how many, how much of a window and how many segments each takes at
/// the least, and how far they may be off one line. Chance takes single segments, a full queue in congestion avoidance
/// a few.
struct Policed {
    episodes: usize,
    part: f64,
    segments: f64,
    off_line: f64,
}

const POLICED: [Policed; 5] = [
    Policed { episodes: 4, part: 0.1, segments: 1.0, off_line: 0.03 },
    Policed { episodes: 3, part: 0.3, segments: 1.0, off_line: 0.03 },
    Policed { episodes: 5, part: 0.1, segments: 4.0, off_line: 0.08 },
    Policed { episodes: 4, part: 0.05, segments: 6.0, off_line: 0.01 },
    Policed { episodes: 10, part: 0.1, segments: 2.0, off_line: 0.05 },
];

impl Policed {
    fn holds(&self, episodes: &[Episode], off_line: f64) -> bool {
        let of = |get: fn(&Episode) -> f64| mean(&episodes.iter().map(get).collect::<Vec<_>>());
        episodes.len() >= self.episodes
            && off_line <= self.off_line
            && of(|one| one.segments as f64 / f64::from(one.cwnd_segments.max(1))) >= self.part
            && of(|one| one.segments as f64) >= self.segments
    }
}

/// Losses that are repaired together.
pub(super) struct Episode {
    time_us: u64,
    /// Acknowledged since the watch began.
    acked_bytes: u64,
    cwnd_segments: u32,
    /// Smoothed round trip and delivery rate before it.
    pub(super) srtt_us: u32,
    pub(super) bytes_per_s: u64,
    segments: u64,
    /// The retransmission timer went off.
    has_timeout: bool,
}

pub(super) fn episodes(looks: &[Look]) -> Vec<Episode> {
    let mut found: Vec<Episode> = Vec::new();
    let mut going_on = false;
    let start = looks[0].info.acked_bytes;
    for pair in looks.windows(2) {
        let (a, b) = (&pair[0].info, &pair[1].info);
        let segments = u64::from(b.total_retrans_segments.saturating_sub(a.total_retrans_segments));
        let has_timeout = b.ca_state == CA_LOSS || b.timeouts() > a.timeouts();
        match found.last_mut() {
            _ if segments == 0 => {}
            Some(episode) if going_on => {
                episode.segments += segments;
                episode.has_timeout |= has_timeout;
            }
            _ => found.push(Episode {
                time_us: pair[0].time_us,
                acked_bytes: a.acked_bytes.saturating_sub(start),
                cwnd_segments: a.snd_cwnd_segments,
                srtt_us: a.srtt_us,
                bytes_per_s: a.delivery_rate_bytes_per_s,
                segments,
                has_timeout,
            }),
        }
        going_on = segments > 0 && b.ca_state >= 2;
    }
    found
}

impl Watch<'_> {
    /// Most of what was sent again had arrived, and the kernel saw packets overtake each other.
    pub(super) fn of_reordering(&self) -> Option<Why> {
        let figures = &self.figures;
        let is_needless = figures.resent_segments >= NEEDLESS_SEGMENTS
            && figures.resent_share >= NEEDLESS_SHARE
            && self.needless() >= NEEDLESS;
        let evidence = || {
            format!(
                "{} of {} segments sent again had arrived (DSACK)",
                figures.needless_segments, figures.resent_segments
            )
        };
        (is_needless && self.saw_reordering()).then(|| kernel(Cause::Reordering, evidence()))
    }

    fn needless(&self) -> f64 {
        self.figures.needless_segments as f64 / self.figures.resent_segments.max(1) as f64
    }

    fn saw_reordering(&self) -> bool {
        self.last().info.reord_seen > self.looks[0].info.reord_seen
    }

    pub(super) fn of_policer(&self, queue_us: f64) -> Option<Why> {
        let held = rate(self.figures.rate_bps);
        let evidence = || format!("{} at {held}; {}", self.losses(), self.queue());
        self.is_policed(queue_us).then(|| inferred(Cause::Policer, evidence()))
    }

    /// Losses of which no queue tells. Few say little; those at one window are of a queue that is full, and a short one
    /// leaves the path idle behind each.
    pub(super) fn of_losses(&self, queue_us: f64) -> Option<Why> {
        let (losses, is_few) = (self.losses(), self.figures.are_losses_few());
        if self.episodes.is_empty() {
            return None;
        }
        Some(if is_few && self.fills_path() == Some(true) {
            inferred(Cause::PathFull, format!("what arrives does not go with the window; {losses}"))
        } else if is_few && self.hardly_falls(queue_us) {
            inferred(Cause::PathFull, format!("losses cost it next to nothing; {losses}; {}", self.queue()))
        } else if is_few && self.falls_from_full_path() {
            inferred(
                Cause::PathFull,
                format!("each loss came when something waited; {losses}; {}", self.queue()),
            )
        } else if is_few {
            inferred(Cause::AfterLoss, format!("{losses}; {}", self.growth()))
        } else if self.are_of_timeouts() {
            inferred(Cause::AfterLoss, format!("{losses}, most after the timer went off; {}", self.growth()))
        } else if scatter(&self.cwnds_at_losses()) <= SAME_WINDOW {
            let cause = if self.is_full() { Cause::PathFull } else { Cause::AfterLoss };
            inferred(
                cause,
                format!("{losses}, always at about {:.0} segments", mean(&self.cwnds_at_losses())),
            )
        } else {
            inferred(Cause::RandomLoss, format!("{losses}; {}", self.queue()))
        })
    }

    pub(super) fn losses(&self) -> String {
        let (count, figures) = (self.episodes.len(), &self.figures);
        if count == 0 {
            return "no losses".into();
        }
        format!(
            "{count} times lost, {} segments sent again ({:.2} %)",
            figures.resent_segments,
            100.0 * figures.resent_share
        )
    }

    /// Most losses are of moments at which nothing passed: they are no chance that goes on.
    fn are_of_timeouts(&self) -> bool {
        let count = self.episodes.iter().filter(|episode| episode.has_timeout).count();
        2 * count > self.episodes.len()
    }

    fn cwnds_at_losses(&self) -> Vec<f64> {
        self.episodes.iter().map(|episode| episode.cwnd_segments.into()).collect()
    }

    /// Flach 2016: losses lie on one line of bytes over time, take many packets at once, and no queue stands.
    fn is_policed(&self, queue_us: f64) -> bool {
        let Some(off_line) = self.off_line() else { return false };
        let is_queueless = self.is_queueless(queue_us);
        is_queueless && POLICED.iter().any(|policed| policed.holds(&self.episodes, off_line))
    }

    /// How far the losses are off one line of bytes over time: root of the sum of squares, in parts of the whole.
    fn off_line(&self) -> Option<f64> {
        let (first, last) = (self.episodes.first()?, self.episodes.last()?);
        let time = last.time_us.saturating_sub(first.time_us) as f64;
        let bytes = last.acked_bytes.saturating_sub(first.acked_bytes) as f64;
        if time <= 0.0 || bytes <= 0.0 {
            return None;
        }
        // Figures of a file may go backwards.
        let off = |episode: &Episode| {
            episode.time_us.saturating_sub(first.time_us) as f64 / time
                - episode.acked_bytes.saturating_sub(first.acked_bytes) as f64 / bytes
        };
        let off: Vec<f64> = self.episodes.iter().map(off).collect();
        let center = mean(&off);
        Some(off.iter().map(|one| (one - center).powi(2)).sum::<f64>().sqrt())
    }
}
