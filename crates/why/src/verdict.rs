//! A verdict: what was found of a connection, what it is judged by, and what is assumed beside.

use crate::cause::{Basis, Cause};
use longfat_path_plan::HEADER_BYTES;
use longfat_schema::units::Rate;
use serde::Serialize;

/// What is known beside the kernel's facts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Assumed {
    /// Rate of the path's slowest link, IP packets counted, where somebody knows it.
    pub path_rate: Option<Rate>,
}

/// A cause and its share of the time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// The cause.
    pub cause: Cause,
    /// How long.
    pub time_us: u64,
    /// Share of the whole watch, 0 to 1.
    pub share: f64,
    /// Whether the kernel says so.
    pub basis: Basis,
    /// The figures behind it.
    pub evidence: String,
    /// The rate without it; absent for what cannot be mended, or said.
    pub without: Option<Price>,
}

/// What was found of a connection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Length of the watch, in microseconds.
    pub elapsed_us: u64,
    /// The causes, the longest first; their times sum up to the watch.
    pub causes: Vec<Share>,
    /// What it is judged by.
    pub figures: Figures,
}

impl Verdict {
    /// The cause that took most of the time.
    pub fn first(&self) -> Option<&Share> {
        self.causes.first()
    }

    /// Causes of such a share of the time at the least, in the order in which they are to be mended: the longest first.
    /// Of a window that grows back after few losses, or ones before the watch, and a full send buffer, the buffer comes
    /// first: it is the kernel's word, and holds the window, too.
    pub fn to_mend(&self, least_share: f64) -> Vec<&Share> {
        let mut worth: Vec<&Share> = self.causes.iter().filter(|share| share.share >= least_share).collect();
        let at = |cause| worth.iter().position(|share| share.cause == cause);
        if self.figures.are_losses_few()
            && let (Some(after_loss), Some(buffer)) = (at(Cause::AfterLoss), at(Cause::SendBuffer))
            && after_loss < buffer
        {
            worth[after_loss..=buffer].rotate_right(1);
        }
        worth
    }
}

/// Payload per second without a cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Price {
    /// At the least.
    pub least_bps: f64,
    /// At the most; absent where the path's rate is not known.
    pub most_bps: Option<f64>,
    /// What holds it then.
    pub then: String,
}

/// Figures of a watch, all of this end.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Payload that the other end acknowledged, or sent where this end only receives, per second.
    pub rate_bps: f64,
    /// Least round trip the kernel knows of.
    pub least_rtt_us: u32,
    /// Median of the smoothed round trip while data was outstanding.
    pub rtt_us: u32,
    /// Times that something was lost; what is repaired together counts once. Captures have none.
    pub losses: u64,
    /// Segments sent again, of those sent.
    pub resent_share: f64,
    /// Segments sent again.
    pub resent_segments: u64,
    /// Segments sent again that had arrived.
    pub needless_segments: u64,
    /// Retransmission timeouts; absent where the kernel does not count them.
    pub timeouts: Option<u64>,
    /// Largest window the receiver offered.
    pub window_bytes: u32,
    /// Congestion window at the end.
    pub cwnd_segments: u32,
    /// Payload of a full segment.
    pub mss_bytes: u32,
    /// Greatest delivery rate that the program did not limit.
    pub best_bps: f64,
    /// Send buffer, the kernel's bookkeeping included.
    pub sndbuf_bytes: u32,
    /// Payload of what the send buffer holds, the rest is bookkeeping; zero where it was never seen to hold any.
    pub sndbuf_payload_share: f64,
    /// Receive buffer, the same.
    pub rcvbuf_bytes: u32,
    /// Whether this end only received.
    pub is_receiver: bool,
}

/// Losses from which on their place says something.
const FEW_LOSSES: u64 = 3;

impl Figures {
    /// Whether the losses of the watch are too few to say something.
    pub(crate) fn are_losses_few(&self) -> bool {
        self.losses < FEW_LOSSES
    }

    /// Octets of IP packets for each octet of payload.
    pub(crate) fn packet_over_payload(&self) -> f64 {
        f64::from(self.mss_bytes + HEADER_BYTES) / f64::from(self.mss_bytes.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_send_buffer_is_mended_before_a_window_that_grows_back_after_few_losses() {
        let share = |cause, share| {
            let (basis, evidence) = (Basis::Kernel, String::new());
            Share { cause, time_us: 0, share, basis, evidence, without: None }
        };
        let order = |losses| {
            let causes = vec![
                share(Cause::ProgramIdle, 0.4),
                share(Cause::AfterLoss, 0.3),
                share(Cause::Pacing, 0.2),
                share(Cause::SendBuffer, 0.15),
                share(Cause::Timeouts, 0.05),
            ];
            let verdict =
                Verdict { elapsed_us: 1, causes, figures: Figures { losses, ..Figures::default() } };
            verdict.to_mend(0.1).iter().map(|share| share.cause).collect::<Vec<_>>()
        };
        use Cause::{AfterLoss, Pacing, ProgramIdle, SendBuffer};
        assert_eq!(order(2), [ProgramIdle, SendBuffer, AfterLoss, Pacing]);
        assert_eq!(order(3), [ProgramIdle, AfterLoss, Pacing, SendBuffer]);
    }
}
