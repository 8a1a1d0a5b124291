//! Silence: SYNs without an answer, timeouts, full packets that do not pass.

use super::{Watch, Why, inferred, kernel};
use crate::{
    cause::Cause,
    divide::{self, Hold},
    words::duration,
};

/// Acknowledged segments of this part of a full one on average are small ones; what is out is of full ones from such a
/// part on.
const SMALL: f64 = 0.5;
const FULL: f64 = 0.9;
/// Timeouts in a row by which losses and short outages are ruled out: the last wait is eight times the first.
const IN_A_ROW: u8 = 4;

impl Watch<'_> {
    pub(super) fn of_handshake(&self) -> Why {
        let connecting = self.looks.iter().filter(|look| divide::at(look, self.talk) == Hold::Syn);
        match connecting.map(|look| look.info.total_retrans_segments).max() {
            Some(again) if again > 0 => kernel(Cause::LostSyns, format!("{again} SYNs sent again")),
            _ => kernel(Cause::SlowStart, "the handshake takes a round trip".into()),
        }
    }

    pub(super) fn of_timeouts(&self) -> Why {
        let info = &self.last().info;
        if self.passes_no_full_segment() {
            let evidence = format!(
                "segments of {} bytes are sent again and again, the path MTU is taken to be {}",
                info.snd_mss_bytes, info.pmtu_bytes
            );
            return inferred(Cause::PacketSize, evidence);
        }
        if let Some(silent_us) = self.no_answer_us() {
            if let Some(small) = self.of_small_ones_alone() {
                return small;
            }
            let evidence = format!(
                "{} timeouts in a row, nothing received for {}, the next try after {}",
                info.backoff,
                duration(silent_us),
                duration(info.rto_us)
            );
            return kernel(Cause::NoAnswer, evidence);
        }
        let waits = format!("retransmission timeout {}", duration(info.rto_us));
        match self.figures.timeouts {
            Some(0) => inferred(Cause::Timeouts, format!("data is out and nothing is heard, {waits}")),
            Some(count) => kernel(Cause::Timeouts, format!("{count} timeouts, {waits}")),
            None => kernel(Cause::Timeouts, waits),
        }
    }

    /// How long nothing has come at the end of the watch, where that is most of what was waited for the timer.
    fn no_answer_us(&self) -> Option<u64> {
        let last = self.last();
        let is_tried_in_vain = last.info.backoff >= IN_A_ROW && last.info.unacked_segments > 0;
        let first_silent = self.looks.iter().find(|look| look.info.segs_in == last.info.segs_in)?;
        // Figures of a file may go backwards.
        let silent_us = last.time_us.saturating_sub(first_silent.time_us);
        (is_tried_in_vain && 2 * silent_us > self.spent[Hold::Timeout as usize]).then_some(silent_us)
    }

    /// Full segments are out, and nothing but far smaller ones was ever acknowledged.
    fn of_small_ones_alone(&self) -> Option<Why> {
        let info = &self.last().info;
        let mss_bytes = f64::from(info.snd_mss_bytes);
        let out_bytes = info.sent_bytes.saturating_sub(info.retrans_bytes).saturating_sub(info.acked_bytes);
        // The SYN counts among the segments and the bytes.
        let acked_segments = f64::from(info.delivered_segments.max(1));
        let mean_bytes = info.acked_bytes as f64 / acked_segments;
        let is_full = out_bytes as f64 >= FULL * mss_bytes * f64::from(info.unacked_segments.max(1));
        let evidence = || {
            format!(
                "segments of {} bytes are sent again and again, those ever acknowledged had {mean_bytes:.0} on average",
                info.snd_mss_bytes
            )
        };
        (is_full && mean_bytes <= SMALL * mss_bytes).then(|| inferred(Cause::PacketSize, evidence()))
    }

    /// Nothing is acknowledged any more though the peer is there.
    pub(super) fn passes_no_full_segment(&self) -> bool {
        let (first, last) = (&self.looks[0].info, &self.last().info);
        let stuck = last.acked_bytes == first.acked_bytes && last.unacked_segments > 0 && last.backoff >= 1;
        stuck && last.segs_in > first.segs_in
    }
}
