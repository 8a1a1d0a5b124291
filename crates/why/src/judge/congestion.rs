//! The congestion window: in which order its rules are asked, and those of a window that nothing is lost of.

use super::{Watch, Why, inferred, kernel};
use crate::{
    cause::Cause,
    divide::{self, Hold, Look},
    words::rate,
};

/// Looks at a full window from which on it can be said to stay the same.
const FEW_WINDOWS: usize = 4;
/// What a rate carries in it is below TCP for no fault of the host's, and a part of all looks from which on it is there
/// all the time.
const MOMENT_MS: u64 = 2;
const NEARLY_ALWAYS: f64 = 0.9;
/// A window that changes by no more than this part, or a segment, stays about the same.
const STILL: f64 = 0.005;

impl Watch<'_> {
    /// The first rule that holds.
    pub(super) fn of_cwnd(&self, hold: Hold) -> Why {
        let queue_us = self.queue_us(hold);
        self.of_bound()
            .or_else(|| self.of_host())
            .or_else(|| self.of_reordering())
            .or_else(|| self.of_restart(hold))
            .or_else(|| self.of_still_window(queue_us))
            .or_else(|| self.of_growing_start(hold))
            .or_else(|| self.of_standing_queue(queue_us))
            .or_else(|| self.of_start(hold))
            .or_else(|| self.of_short_queue(queue_us))
            .or_else(|| self.of_known_rate())
            .or_else(|| self.of_policer(queue_us))
            .or_else(|| self.of_losses(queue_us))
            .unwrap_or_else(|| self.of_cwnd_without_losses())
    }

    /// The bound that BPF told.
    fn of_bound(&self) -> Option<Why> {
        let last = self.last();
        last.clamp_segments.filter(|clamp| last.info.snd_cwnd_segments >= *clamp).map(|_| self.of_clamp())
    }

    /// A window's worth that leaves at once is gone in a moment; what a discipline of this host holds back stays there.
    fn of_host(&self) -> Option<Why> {
        let stays = |look: &&Look| {
            let moment_bytes = look.info.delivery_rate_bytes_per_s / 1000 * MOMENT_MS;
            u64::from(look.memory.below_tcp_bytes) >= moment_bytes.max(2 * u64::from(look.info.snd_mss_bytes))
        };
        let (looks, held) = (self.bound().count(), self.bound().filter(stays).count());
        let is_held =
            looks >= FEW_WINDOWS && held as f64 >= NEARLY_ALWAYS * looks as f64 && !self.last().paces;
        is_held.then(|| self.of_below_tcp())
    }

    fn of_restart(&self, hold: Hold) -> Option<Why> {
        (hold == Hold::SlowStart && self.restarted()).then(|| {
            let evidence =
                format!("window of {} segments, ssthresh {}", self.figures.cwnd_segments, self.ssthresh());
            inferred(Cause::RestartAfterIdle, evidence)
        })
    }

    fn of_still_window(&self, queue_us: f64) -> Option<Why> {
        (self.is_still(queue_us) && self.episodes.is_empty()).then(|| self.of_clamp())
    }

    /// Slow start, whatever queue stands.
    fn of_growing_start(&self, hold: Hold) -> Option<Why> {
        let grows = self.doubles() || self.never_left_slow_start();
        (hold == Hold::SlowStart && self.episodes.is_empty() && grows).then(|| self.of_slow_start())
    }

    fn of_start(&self, hold: Hold) -> Option<Why> {
        (hold == Hold::SlowStart && self.episodes.is_empty()).then(|| self.of_slow_start())
    }

    /// A full window below an ssthresh that was never set doubles in each round trip (RFC 5681, section 3.1).
    fn never_left_slow_start(&self) -> bool {
        let last = self.last();
        last.info.ssthresh_segments().is_none() && last.info.total_retrans_segments == 0 && !last.paces
    }

    fn of_cwnd_without_losses(&self) -> Why {
        let last = &self.last().info;
        if self.last().paces {
            let held = rate(last.pacing_rate_bytes_per_s as f64 * 8.0);
            return inferred(
                Cause::PathFull,
                format!("its congestion control finds a rate of {held} and keeps to it"),
            );
        }
        if last.total_retrans_segments == 0 {
            return inferred(
                Cause::SlowStartLeftEarly,
                format!("ssthresh {}, nothing was ever sent again; {}", self.ssthresh(), self.growth()),
            );
        }
        inferred(
            Cause::AfterLoss,
            format!("{} segments were sent again before; {}", last.total_retrans_segments, self.growth()),
        )
    }

    fn of_slow_start(&self) -> Why {
        let evidence =
            format!("window of {} segments, ssthresh {}", self.figures.cwnd_segments, self.ssthresh());
        kernel(Cause::SlowStart, evidence)
    }

    /// The window has grown as slow start has it grow.
    fn doubles(&self) -> bool {
        let mut starting = self.bound().filter(|look| divide::at(look, self.talk) == Hold::SlowStart);
        let first = starting.next().map_or(u32::MAX, |look| look.info.snd_cwnd_segments);
        starting.last().is_some_and(|last| u64::from(last.info.snd_cwnd_segments) * 2 >= u64::from(first) * 3)
    }

    /// The window is full and stays the same; of one that a rate decides it says nothing.
    fn is_still(&self, queue_us: f64) -> bool {
        let mut windows: Vec<u32> = self.bound().map(|look| look.info.snd_cwnd_segments).collect();
        windows.sort_unstable();
        // A tenth at each end may be of a moment between.
        let tenth = windows.len() / 10;
        let (Some(least), Some(most)) = (windows.get(tenth), windows.iter().rev().nth(tenth)) else {
            return false;
        };
        let (least, most) = (f64::from(*least), f64::from(*most));
        let is_about_the_same = most - least <= (STILL * most).max(1.0) && self.is_queueless(queue_us);
        !self.last().paces && windows.len() >= FEW_WINDOWS && (most == least || is_about_the_same)
    }

    fn of_clamp(&self) -> Why {
        let (window, clamp) = (self.last().info.snd_cwnd_segments, self.last().clamp_segments);
        let evidence = format!("window of {window} segments, which does not grow");
        let is_told = clamp.is_some_and(|clamp| window >= clamp);
        if is_told { kernel(Cause::CwndClamp, evidence) } else { inferred(Cause::CwndClamp, evidence) }
    }

    fn ssthresh(&self) -> String {
        self.last().info.ssthresh_segments().map_or("unlimited".into(), |segments| segments.to_string())
    }

    pub(super) fn growth(&self) -> String {
        let windows: Vec<&Look> = self.bound().collect();
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else {
            return "window not seen full".into();
        };
        let seconds = last.time_us.saturating_sub(first.time_us) as f64 / 1e6;
        format!(
            "window {} to {} segments in {seconds:.1} s",
            first.info.snd_cwnd_segments, last.info.snd_cwnd_segments
        )
    }

    /// The window fell while nothing was sent and nothing was lost.
    fn restarted(&self) -> bool {
        self.looks.windows(2).any(|pair| {
            let (a, b) = (&pair[0].info, &pair[1].info);
            let nothing_lost =
                a.total_retrans_segments == b.total_retrans_segments && a.ca_state == 0 && b.ca_state == 0;
            let busy = b.busy_us.saturating_sub(a.busy_us);
            let was_idle = busy * 10 < (pair[1].time_us - pair[0].time_us) * 9;
            nothing_lost && was_idle && b.snd_cwnd_segments < a.snd_cwnd_segments
        })
    }
}
