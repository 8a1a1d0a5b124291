//! Figures of a watch, and the statistics that the rules share.

use crate::{
    divide::{Look, Talk},
    verdict::Figures,
};
use longfat_host::socket::TcpInfo;

pub(super) fn figures(looks: &[Look], elapsed_us: u64, talk: Talk, losses: usize) -> Figures {
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
        losses: losses as u64,
        resent_share: resent_segments as f64 / grown(|info| info.data_segs_out.into()).max(1) as f64,
        resent_segments,
        needless_segments: grown(|info| info.dsack_dups.into()),
        timeouts: last.timeouts().zip(first.timeouts()).map(|(b, a)| b.saturating_sub(a).into()),
        window_bytes: looks.iter().map(|look| look.info.snd_wnd_bytes).max().unwrap_or(0),
        cwnd_segments: last.snd_cwnd_segments,
        mss_bytes: last.snd_mss_bytes,
        best_bps: delivered.map(|look| look.info.delivery_rate_bytes_per_s as f64 * 8.0).fold(0.0, f64::max),
        sndbuf_bytes: memory.sndbuf_bytes,
        sndbuf_payload_share: payload_share(looks),
        rcvbuf_bytes: memory.rcvbuf_bytes,
        is_receiver: talk == Talk::Receives,
    }
}

/// Payload over all that is held to be sent or acknowledged, over the whole watch.
fn payload_share(looks: &[Look]) -> f64 {
    let payload = |look: &Look| {
        let unacked = u64::from(look.info.unacked_segments) * u64::from(look.info.snd_mss_bytes);
        (unacked + u64::from(look.info.notsent_bytes)) as f64
    };
    let held: f64 = looks.iter().map(|look| f64::from(look.memory.send_queued_bytes)).sum();
    let carried: f64 = looks.iter().filter(|look| look.memory.send_queued_bytes > 0).map(payload).sum();
    if held > 0.0 { (carried / held).min(1.0) } else { 0.0 }
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
