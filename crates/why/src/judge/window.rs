//! The receiver's window: not scaled, small, or of a program that reads slowly.

use super::{NEARLY_UNSCALED_BYTES, Watch, Why, inferred, kernel};
use crate::{
    cause::Cause,
    divide::Look,
    words::{duration, size},
};
use longfat_host::socket::OPTION_WINDOW_SCALE;

/// A congestion window that is this many times what the receiver offers, and the first one (RFC 6928) beyond.
const WIDER: f64 = 2.2;
const FIRST_WINDOW: f64 = 10.0;

/// A window that does not fall below these tenths of its largest stays the same.
const STEADY_TENTHS: u64 = 7;

/// A window whose tenths differ by more than this part moves.
const MOVES: f64 = 0.03;
/// An acknowledgement that takes this many times the least round trip, and so much more, is late.
const LATE: f64 = 1.15;
const LATE_US: f64 = 4_000.0;

/// Offered windows: what a tenth of the looks falls below, what a tenth exceeds, and the largest. A program that pauses
/// or is held up for a moment says nothing of the rest.
struct Offered {
    low: u32,
    high: u32,
    most: u32,
}

impl Offered {
    fn is_steady(&self, mss_bytes: u32) -> bool {
        u64::from(self.low) * 10 >= u64::from(self.most) * STEADY_TENTHS && self.low > mss_bytes
    }

    fn moves(&self) -> bool {
        f64::from(self.high - self.low) > MOVES * f64::from(self.most)
    }
}

impl Watch<'_> {
    /// The receiver's window stays the same where its buffer is small, and comes and goes where its program is slow.
    pub(super) fn of_window(&self) -> Why {
        let info = &self.last().info;
        let fills = u64::from(self.figures.window_bytes) >= NEARLY_UNSCALED_BYTES;
        if info.options & OPTION_WINDOW_SCALE == 0 && fills {
            return kernel(
                Cause::WindowScaling,
                format!("window {}, no scale agreed on", size(self.figures.window_bytes)),
            );
        }
        let offered = self.offered();
        let evidence = format!("window {} to {}", size(offered.low), size(offered.most));
        if !offered.is_steady(info.snd_mss_bytes) {
            return kernel(Cause::SlowReader, evidence);
        }
        if self.was_wider() {
            let held = info.snd_cwnd_segments;
            let what = format!("steady, but {held} segments were under way before: its buffer has filled");
            return inferred(Cause::SlowReader, format!("{evidence}, {what}"));
        }
        if offered.moves() && self.acknowledges_late() {
            let what =
                format!("and no acknowledgement takes less than {}: it waits to be read", self.soonest());
            return inferred(Cause::SlowReader, format!("{evidence}, {what}"));
        }
        let what = "steady: its buffer is small, or its program reads slowly and evenly";
        kernel(Cause::ReceiveWindow, format!("{evidence}, {what}"))
    }

    /// The windows that the receiver offered.
    fn offered(&self) -> Offered {
        let mut windows: Vec<u32> = self.looks.iter().map(|look| look.info.snd_wnd_bytes).collect();
        windows.sort_unstable();
        let at = |tenths: usize| windows.get(windows.len() * tenths / 10).copied().unwrap_or(0);
        Offered { low: at(1), high: at(9), most: self.figures.window_bytes }
    }

    /// A receiver with a small buffer acknowledges at once; one whose buffer is full, when its program reads. The
    /// path's own queue stays short behind a full window.
    fn acknowledges_late(&self) -> bool {
        let least_us = f64::from(self.figures.least_rtt_us);
        f64::from(self.soonest_us()) >= (LATE * least_us).max(least_us + LATE_US)
    }

    /// Round trip that nine tenths of the looks exceed.
    fn soonest_us(&self) -> u32 {
        let mut times: Vec<u32> = self.looks.iter().map(|look| look.info.srtt_us).collect();
        times.sort_unstable();
        times.get(times.len() / 10).copied().unwrap_or(0)
    }

    fn soonest(&self) -> String {
        format!("{} where {} would do", duration(self.soonest_us()), duration(self.figures.least_rtt_us))
    }

    /// A congestion window grows only while it is used, to twice what is in flight at the most (RFC 7661, 9438): one
    /// that is far larger than what the receiver's window lets pass is of a time when that was wider. BBR sets
    /// its window by a model of the path, whatever is in flight.
    fn was_wider(&self) -> bool {
        let Look { info, paces, .. } = self.last();
        let window = f64::from(self.figures.window_bytes) / f64::from(info.snd_mss_bytes.max(1));
        !paces && f64::from(info.snd_cwnd_segments) > WIDER * window + FIRST_WINDOW
    }
}
