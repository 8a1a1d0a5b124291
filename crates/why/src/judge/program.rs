//! The programs at both ends: one gives nothing, owes an answer, does not read, or only receives.

use super::{Watch, Why, figures::median, inferred, kernel};
use crate::{
    cause::Cause,
    divide::Hold,
    words::{duration, rate, size},
};

/// What waits to be read in so many of the looks, and is what comes in so many round trips, and in so long, waits for
/// the program: a buffer that the kernel lets grow may never be full.
const NEARLY_ALWAYS: f64 = 0.9;
const ROUND_TRIPS: f64 = 3.0;
const LONG_US: f64 = 50_000.0;
/// A part of the time below this needs no word.
const WORTH_A_WORD: f64 = 0.02;

impl Watch<'_> {
    pub(super) fn of_program(&self) -> String {
        let idle = (1.0 - self.busy_us() as f64 / self.elapsed_us as f64).max(0.0);
        let given = self.spent[Hold::Program as usize] as f64 / self.elapsed_us as f64 - idle;
        let outstanding = format!("nothing is outstanding for {:.0} % of the time", 100.0 * idle);
        if given < WORTH_A_WORD {
            return outstanding;
        }
        format!("{outstanding}; for {:.0} %, all that was given is on its way", 100.0 * given)
    }

    pub(super) fn busy_us(&self) -> u64 {
        let (first, last) = (&self.looks[0].info, &self.last().info);
        last.busy_us.saturating_sub(first.busy_us).min(self.elapsed_us)
    }

    pub(super) fn of_answers(&self) -> String {
        let (first, last) = (&self.looks[0].info, &self.last().info);
        let [out, back] = [
            last.data_segs_out.saturating_sub(first.data_segs_out),
            last.data_segs_in.saturating_sub(first.data_segs_in),
        ];
        let least = duration(self.figures.least_rtt_us);
        format!("{out} segments out and {back} back; each turn takes {least} at the least")
    }

    /// Something waits to be read nearly always, and more than a program leaves that reads as it comes.
    fn reads_behind(&self, unread_bytes: u32) -> bool {
        let waiting = self.looks.iter().filter(|look| look.receive_queue_bytes > 0).count();
        let wait_us = (ROUND_TRIPS * f64::from(self.figures.least_rtt_us)).max(LONG_US);
        let came_bytes = self.figures.rate_bps / 8.0 * wait_us / 1e6;
        waiting as f64 >= NEARLY_ALWAYS * self.looks.len() as f64 && f64::from(unread_bytes) > came_bytes
    }

    /// What can be said where the other end sends.
    pub(super) fn of_receiving(&self) -> Why {
        let unread = median(self.looks.iter().map(|look| look.receive_queue_bytes).collect()).unwrap_or(0);
        let last = self.last();
        // What is read at once leaves the queue empty most of the time; half of a buffer is bookkeeping.
        if unread > 0 && u64::from(unread) * 4 >= u64::from(last.memory.rcvbuf_bytes) {
            let evidence = format!(
                "{} wait to be read here, receive buffer {}",
                size(unread),
                size(last.memory.rcvbuf_bytes)
            );
            return kernel(Cause::SlowReader, evidence);
        }
        if let Some(full) = self.of_known_rate_received() {
            return full;
        }
        if self.reads_behind(unread) {
            let held = rate(self.figures.rate_bps);
            let evidence = format!("{} wait to be read here, most of the time, at {held}", size(unread));
            return inferred(Cause::SlowReader, evidence);
        }
        let arrived_late = last.info.rcv_ooopack.saturating_sub(self.looks[0].info.rcv_ooopack);
        let late = if arrived_late > 0 {
            format!("; {arrived_late} segments came out of order: losses or reordering")
        } else {
            String::new()
        };
        inferred(Cause::OtherEndSends, format!("'longfat why' at that end tells{late}"))
    }
}
