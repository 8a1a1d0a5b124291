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

impl Figures {
    /// Octets of IP packets for each octet of payload.
    pub(crate) fn packet_over_payload(&self) -> f64 {
        f64::from(self.mss_bytes + HEADER_BYTES) / f64::from(self.mss_bytes.max(1))
    }
}
