//! One leg's socket options.

use longfat_schema::units::{Nanos, Rate};
use serde::Serialize;
use std::time::Duration;

/// What the socket of one leg is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LegPlan {
    /// Congestion control; the system's default when absent.
    pub cc: Option<String>,
    /// Send and receive buffer as the kernel counts them (about half of it is payload).
    pub buffer_bytes: u64,
    /// Most that is sent (SO_MAX_PACING_RATE); no limit but the congestion control's when absent.
    pub pacing_bps: Option<u64>,
    /// What the receive buffer may grow to while so much waits there for less than the queue's target; no more than
    /// `buffer_bytes` where somebody has said how large that is.
    #[serde(skip)]
    pub fast_buffer_bytes: u64,
    /// Bytes that may wait unsent in the send buffer (TCP_NOTSENT_LOWAT).
    pub notsent_lowat_bytes: u32,
    /// Largest segment sent and asked for (TCP_MAXSEG); the path's when absent.
    pub mss_bytes: Option<u16>,
    /// Idle time before the peer is probed (SO_KEEPALIVE), so that a vanished peer's connection ends; never when
    /// absent.
    #[serde(rename = "keepalive_us", serialize_with = "super::as_us_if_any")]
    pub keepalive_idle: Option<Duration>,
    /// Memory is limited: the receive buffer begins small and grows when the connection is looked at, for a handshake
    /// promises all of it.
    #[serde(skip)]
    pub begins_small: bool,
}

impl LegPlan {
    /// 1 Gbit/s at 8 ms: a LAN and more, while a stalled server costs the relay little.
    pub const CLIENT_BUFFER_BYTES: u64 = 2 << 20;
    /// About 4 MiB of payload: 4 Gbit/s at 8 ms, where a thread that carries it may not run for some of that time.
    pub const FAST_BUFFER_BYTES: u64 = 8 << 20;
    /// About 8 MiB of payload: 1 Gbit/s at 67 ms, or twice the bandwidth-delay product of 1 Gbit/s at 28.4 ms.
    pub const SERVER_BUFFER_BYTES: u64 = 16 << 20;
    /// Unsent bytes are queue, not flight: at 1 Gbit/s this is 2 ms, and refilled when 1 ms is left.
    pub const NOTSENT_LOWAT_BYTES: u32 = 256 << 10;
    /// Silence before a peer is probed.
    pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
    /// What a buffer may be.
    pub const BUFFER_RANGE_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

    /// Defaults towards the client.
    pub fn client() -> LegPlan {
        LegPlan {
            cc: None,
            buffer_bytes: LegPlan::CLIENT_BUFFER_BYTES,
            fast_buffer_bytes: LegPlan::FAST_BUFFER_BYTES,
            pacing_bps: None,
            notsent_lowat_bytes: LegPlan::NOTSENT_LOWAT_BYTES,
            mss_bytes: None,
            keepalive_idle: Some(LegPlan::KEEPALIVE_IDLE),
            begins_small: false,
        }
    }

    /// Defaults towards the server.
    pub fn server() -> LegPlan {
        LegPlan { buffer_bytes: LegPlan::SERVER_BUFFER_BYTES, ..LegPlan::client() }
    }

    /// The buffer of a leg whose path has that rate and round-trip time: twice the bandwidth-delay product of payload
    /// (a loss is repaired while as much again is under way), which is half of what the kernel counts.
    pub fn buffer_for(rate: Rate, rtt: Nanos) -> u64 {
        let path_bytes = u128::from(rate.0) * u128::from(rtt.0) / 8 / 1_000_000_000;
        let bytes = u64::try_from(4 * path_bytes).unwrap_or(u64::MAX);
        bytes.clamp(*LegPlan::BUFFER_RANGE_BYTES.start(), *LegPlan::BUFFER_RANGE_BYTES.end())
    }
}
