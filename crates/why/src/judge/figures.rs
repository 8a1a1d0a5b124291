//! Figures of a watch, and the statistics that the rules share.

use crate::divide::{Look, Talk};
use longfat_host::socket::TcpInfo;
use serde::Serialize;

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
    /// Of those had arrived.
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
    /// Receive buffer, the same.
    pub rcvbuf_bytes: u32,
}

pub(super) fn figures(looks: &[Look], elapsed_us: u64, talk: Talk) -> Figures {
    let (first, last) = (&looks[0].info, &looks[looks.len() - 1].info);
    let memory = &looks[looks.len() - 1].memory;
    let grown = |get: fn(&TcpInfo) -> u64| get(last).saturating_sub(get(first));
    let carried = match talk {
        Talk::Receives => grown(|info| info.received_bytes),
        _ => grown(|info| info.acked_bytes),
    };
    let resent_segments = grown(|info| info.total_retrans_segments.into());
    let least = looks.iter().filter_map(|look| look.info.least_rtt_us()).min();
    let busy = looks.iter().filter(|look| look.info.unacked_segments > 0);
    let delivered = looks.iter().filter(|look| !look.info.is_app_limited());
    Figures {
        rate_bps: carried as f64 * 8e6 / elapsed_us as f64,
        least_rtt_us: least.unwrap_or(last.srtt_us),
        rtt_us: median(busy.map(|look| look.info.srtt_us).collect()).unwrap_or(last.srtt_us),
        resent_share: resent_segments as f64 / grown(|info| info.data_segs_out.into()).max(1) as f64,
        resent_segments,
        needless_segments: grown(|info| info.dsack_dups.into()),
        timeouts: last.timeouts().zip(first.timeouts()).map(|(b, a)| b.saturating_sub(a).into()),
        window_bytes: looks.iter().map(|look| look.info.snd_wnd_bytes).max().unwrap_or(0),
        cwnd_segments: last.snd_cwnd_segments,
        mss_bytes: last.snd_mss_bytes,
        best_bps: delivered.map(|look| look.info.delivery_rate_bytes_per_s as f64 * 8.0).fold(0.0, f64::max),
        sndbuf_bytes: memory.sndbuf_bytes,
        rcvbuf_bytes: memory.rcvbuf_bytes,
    }
}

pub(super) fn median<T: Copy + Ord>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

pub(super) fn ratio<T>(of: &[T], over: &[T], get: impl Fn(&T) -> f64) -> f64 {
    let mean = |points: &[T]| mean(&points.iter().map(&get).collect::<Vec<_>>());
    mean(of) / mean(over).max(1e-9)
}

/// Standard deviation over mean.
pub(super) fn scatter(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len().max(1) as f64).sqrt() / mean.max(1e-9)
}
