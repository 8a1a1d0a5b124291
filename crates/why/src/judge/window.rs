//! The receiver's window: not scaled, small, or of a program that reads slowly.

use super::{Watch, Why, inferred, kernel};
use crate::{cause::Cause, words::size};

/// A congestion window that is this many times what the receiver offers, and the first one (RFC 6928) beyond.
const WIDER: f64 = 2.2;
const FIRST_WINDOW: f64 = 10.0;

/// TCPI_OPT_WSCALE of the kernel.
pub(super) const HAS_SCALE: u8 = 4;
/// A window that does not fall below these tenths of its largest stays the same.
const STEADY_TENTHS: u64 = 7;

impl Watch<'_> {
    /// The receiver's window stays the same where its buffer is small, and comes and goes where its program is slow.
    pub(super) fn of_window(&self) -> Why {
        let info = &self.last().info;
        if info.options & HAS_SCALE == 0 {
            return kernel(
                Cause::WindowScaling,
                format!("window {}, no scale agreed on", size(self.figures.window_bytes)),
            );
        }
        let offered: Vec<u32> = self.looks.iter().map(|look| look.info.snd_wnd_bytes).collect();
        let (least, most) = (offered.iter().min().copied().unwrap_or(0), self.figures.window_bytes);
        let evidence = format!("window {} to {}", size(least), size(most));
        let is_steady =
            u64::from(least) * 10 >= u64::from(most) * STEADY_TENTHS && least > info.snd_mss_bytes;
        if is_steady && self.was_wider() {
            let held = self.last().info.snd_cwnd_segments;
            let what = format!("steady, but {held} segments were under way before: its buffer has filled");
            return inferred(Cause::SlowReader, format!("{evidence}, {what}"));
        }
        if is_steady {
            let what = "steady: its buffer is small, or its program reads slowly and evenly";
            return kernel(Cause::ReceiveWindow, format!("{evidence}, {what}"));
        }
        kernel(Cause::SlowReader, evidence)
    }

    /// A congestion window grows only while it is used, to twice what is in flight at the most (RFC 7661, 9438): one
    /// that is far larger than what the receiver's window lets pass is of a time when that was wider.
    pub(super) fn was_wider(&self) -> bool {
        let info = &self.last().info;
        let window = f64::from(self.figures.window_bytes) / f64::from(info.snd_mss_bytes.max(1));
        f64::from(info.snd_cwnd_segments) > WIDER * window + FIRST_WINDOW
    }
}
