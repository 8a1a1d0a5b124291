//! How much must be in flight and able to wait, and what the hosts must allow for it.

use crate::PathSpec;
use longfat_cc::{Algorithm, Tunables, response::Law};
use longfat_schema::{
    send_buffer::reserved_bytes,
    units::{Nanos, Rate},
};
use serde::Serialize;

/// Largest window TCP can announce: 65,535 shifted by at most 14 (RFC 7323, section 2.3).
pub const WINDOW_MAX_BYTES: u64 = 65_535 << 14;
/// A socket buffer is an int in the kernel.
const BUFFER_MAX_BYTES: u64 = (1 << 31) - 1;
/// Half of a receive buffer is window, half the kernel's bookkeeping: tcp_adv_win_scale = 1 of old, the ratio that a
/// connection starts with since Linux 6.6 (it learns the true one later).
const RECEIVE_OVERHEAD: u64 = 2;
/// While a loss is repaired, a second window arrives above the hole and waits for it (Semke, Mahdavi, Mathis 1998).
/// With less, the announced window closes, opens all at once after the repair, and the burst is lost again.
const WINDOWS_IN_REPAIR: f64 = 2.0;
/// What the kernel gives a connection to begin with: its defaults.
const RMEM_FIRST: &str = "4096 131072";
const WMEM_FIRST: &str = "4096 16384";

/// What must be in flight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowPlan {
    /// Bandwidth-delay product, headers counted: what fills the path.
    pub pipe_bytes: u64,
    /// Full packets that fill the path.
    pub pipe_segments: u64,
    /// The window that both hosts must allow: payload in flight when path and queue are full, twice.
    pub bytes: u64,
    /// Send buffer that holds the window with what the kernel keeps of each segment (tcp_sndbuf_expand).
    pub send_buffer_bytes: u64,
    /// Smallest window scale (RFC 7323) that can announce it.
    pub scale: u8,
    /// Time in which the path carries the whole sequence space of 4 GiB; timestamps tell old from new (RFC 7323).
    pub sequence_wrap: Nanos,
}

/// What should be able to wait at the bottleneck.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueuePlan {
    /// What the rest of the plan assumes: as given, or the most that any loss-based congestion control needs.
    pub bytes: u64,
    /// Whether it was given.
    pub given: bool,
    /// Delay when it is full.
    pub delay: Nanos,
    /// Queue needed if the flows' losses fall at different times: divided by the root of their number (Appenzeller
    /// 2004).
    pub desynchronised_bytes: u64,
}

/// A parameter to set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SysctlPlan {
    /// Name of the sysctl.
    pub key: &'static str,
    /// Value of the sysctl.
    pub value: String,
    /// Reason for the value.
    pub why: &'static str,
}

impl QueuePlan {
    pub(crate) fn of(path: &PathSpec) -> QueuePlan {
        let needed = laws().map(|(_, law)| queue_bytes(path, &law)).max().unwrap_or(0);
        let bytes = path.queue.map_or(needed, |queue| queue.0);
        QueuePlan {
            bytes,
            given: path.queue.is_some(),
            delay: queue_delay(bytes, path.rate),
            desynchronised_bytes: (needed as f64 / f64::from(path.flows).sqrt()) as u64,
        }
    }
}

impl WindowPlan {
    /// Window that a host must allow each connection, in bytes.
    pub fn each_bytes(&self) -> u64 {
        self.bytes.min(WINDOW_MAX_BYTES)
    }

    /// Least number of connections that fill the path with such windows.
    pub fn flows_min(&self) -> u64 {
        self.bytes.div_ceil(WINDOW_MAX_BYTES).max(1)
    }

    pub(crate) fn of(path: &PathSpec, queue_bytes: u64) -> WindowPlan {
        let in_flight = path.pipe_bytes() + queue_bytes as f64;
        let bytes = (WINDOWS_IN_REPAIR * in_flight * path.payload_share()).ceil() as u64;
        WindowPlan {
            pipe_bytes: path.pipe_bytes().ceil() as u64,
            pipe_segments: path.pipe_segments().ceil() as u64,
            bytes,
            send_buffer_bytes: bytes.div_ceil(u64::from(path.mss_bytes())) * reserved_bytes(path.mss_bytes()),
            scale: (0..14).find(|scale| 65_535 << scale >= bytes).unwrap_or(14),
            sequence_wrap: Nanos(
                ((1u64 << 32) as f64 * 8e9 / (path.rate.0 as f64 * path.payload_share())) as u64,
            ),
        }
    }
}

/// When the last of so many bytes has left.
pub(crate) fn queue_delay(bytes: u64, rate: Rate) -> Nanos {
    Nanos((bytes as f64 * 8e9 / rate.0 as f64) as u64)
}

/// Every algorithm whose window is understood, with its default tunables.
pub(crate) fn laws() -> impl Iterator<Item = (Tunables, Law)> {
    Algorithm::all().filter_map(|algorithm| {
        let tunables = Tunables::defaults(algorithm);
        let law = Law::of(&tunables)?;
        Some((tunables, law))
    })
}

/// The queue that lets the flows lose a packet each, all at the same time, without leaving the path idle.
pub(crate) fn queue_bytes(path: &PathSpec, law: &Law) -> u64 {
    let flows = f64::from(path.flows);
    let segments = flows * law.queue_segments(path.pipe_segments() / flows);
    (segments * f64::from(path.mtu_bytes)).ceil() as u64
}

pub(crate) fn sysctls(window: &WindowPlan) -> Vec<SysctlPlan> {
    let most = |wanted: u64| wanted.min(BUFFER_MAX_BYTES);
    let sysctl = |key, value, why| SysctlPlan { key, value, why };
    vec![
        sysctl(
            "net.ipv4.tcp_rmem",
            format!("{RMEM_FIRST} {}", most(RECEIVE_OVERHEAD * window.bytes).max(131_072)),
            "receiver: twice the window, since half of a buffer is bookkeeping",
        ),
        sysctl(
            "net.ipv4.tcp_wmem",
            format!("{WMEM_FIRST} {}", most(window.send_buffer_bytes).max(16_384)),
            "sender: the window, and the kernel's bookkeeping of each segment",
        ),
        sysctl("net.ipv4.tcp_window_scaling", "1".into(), "windows above 64 KiB (the default)"),
        sysctl(
            "net.ipv4.tcp_timestamps",
            "1".into(),
            "round-trip times, and old segments told from new (the default)",
        ),
        sysctl("net.ipv4.tcp_sack", "1".into(), "many losses repaired in one round trip (the default)"),
        sysctl("net.ipv4.tcp_slow_start_after_idle", "0".into(), "a pause does not cost the window"),
        sysctl("net.ipv4.tcp_no_metrics_save", "1".into(), "a bad connection does not spoil the next"),
    ]
}

pub(crate) fn notes(path: &PathSpec, window: &WindowPlan) -> Vec<String> {
    let mut notes = Vec::new();
    if window.bytes > WINDOW_MAX_BYTES {
        let flows = window.flows_min();
        notes.push(format!(
            "one connection announces at most {WINDOW_MAX_BYTES} bytes (RFC 7323): this path needs at least {flows} flows"
        ));
    }
    let buffers = RECEIVE_OVERHEAD * window.bytes + window.send_buffer_bytes;
    if buffers > BUFFER_MAX_BYTES {
        notes.push(format!("the hosts' net.ipv4.tcp_mem must allow {} MiB of buffers", buffers >> 20));
    }
    if path.loss > 0.0 {
        notes.push(
            "loss is taken as even: one packet in every 1/p; scattered losses give Reno 7 % more".into(),
        );
    }
    notes
}
