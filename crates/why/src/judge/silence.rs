//! Silence: SYNs without an answer, timeouts, full packets that do not pass.

use super::{Watch, Why, inferred, kernel};
use crate::{
    cause::Cause,
    divide::{self, Hold},
    words::duration,
};

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
            let evidence = format!(
                "{} timeouts in a row, nothing received for {}, the next try after {}",
                info.backoff,
                duration(silent_us),
                duration(info.rto_us)
            );
            return kernel(Cause::NoAnswer, evidence);
        }
        let count = self.figures.timeouts.map_or(String::new(), |count| format!("{count} timeouts, "));
        kernel(Cause::Timeouts, format!("{count}retransmission timeout {}", duration(info.rto_us)))
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

    /// Nothing is acknowledged any more though the peer is there.
    pub(super) fn passes_no_full_segment(&self) -> bool {
        let (first, last) = (&self.looks[0].info, &self.last().info);
        let stuck = last.acked_bytes == first.acked_bytes && last.unacked_segments > 0 && last.backoff >= 1;
        stuck && last.segs_in > first.segs_in
    }
}
