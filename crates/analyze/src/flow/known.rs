//! What can be known of a direction where the capture was made: what it lacks, its round trip, what limited it.

use super::{
    connection::Connection,
    half::Half,
    series::{LIMITS, Limit},
};
use serde::Serialize;

/// Share of what an end sent that may be missing before figures say nothing, and octets.
const LACKING_SHARE: u64 = 10;
const LACKING_BYTES: u64 = 3000;
/// Packets without any acknowledgement: more than an initial window, so there were some.
const UNANSWERED_PACKETS: u64 = 20;

/// Shares of the time something was limited by, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LimitShares {
    /// Share of the time in which the application had nothing to send.
    pub application: f64,
    /// The receiver's window.
    pub window: f64,
    /// The congestion window or the sender's buffer.
    pub congestion: f64,
    /// Repair of losses.
    pub recovery: f64,
}

/// What of a direction the capture lacks: figures that need it are not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// Every packet of this end.
    Direction,
    /// The acknowledgements of what it sent, or a good part of them.
    Acknowledgements,
    /// A good part of what it sent: the capture was filtered, or lost packets.
    Data,
    /// Which of its packets are whose: two connections have the same ends.
    Numbering,
}

/// What of a direction the capture lacks.
pub fn missing(connection: &Connection, end: usize) -> Option<Missing> {
    let (half, peer) = (&connection.halves[end], &connection.halves[1 - end]);
    let counts = &half.counts;
    let sent_once = counts.data_segments.saturating_sub(counts.resent_segments);
    let is_unanswered = counts.acks == 0 && sent_once > UNANSWERED_PACKETS;
    let is_beyond = counts.beyond_window > 1 && counts.beyond_window * LACKING_SHARE > counts.data_packets;
    let all = counts.unseen_bytes + counts.unique_bytes;
    match () {
        () if counts.packets == 0
            && peer.counts.packets > 1
            && peer.counts.data_packets + counts.acks > 0 =>
        {
            Some(Missing::Direction)
        }
        () if counts.renumbered > 0 || peer.counts.renumbered > 0 => Some(Missing::Numbering),
        () if is_unanswered || is_beyond => Some(Missing::Acknowledgements),
        () if counts.unseen_bytes > LACKING_BYTES && counts.unseen_bytes * LACKING_SHARE > all => {
            Some(Missing::Data)
        }
        () => None,
    }
}

/// The least round trip of a whole connection, seen by the data of one end (or what the handshake showed).
pub fn round_trip_ns(connection: &Connection, end: usize) -> Option<i64> {
    let half = &connection.halves[end];
    let by_data = half.trips.least_ns.map(|rtt| rtt + half.lag_ns);
    let by_answers = || connection.lags().map(|(client, server)| client + server);
    by_data.filter(|_| half.counts.acks >= 8).or_else(by_answers).or(by_data)
}

/// Shares of time under each limit of a sender; none where it is not known how far from it the capture was made, so
/// that neither is what it had heard when it sent.
pub fn shares(half: &Half) -> LimitShares {
    if !half.is_placed {
        return LimitShares::default();
    }
    let limit_ns: &[i64; LIMITS] = &half.limits.spent_ns;
    let total = limit_ns.iter().sum::<i64>().max(1) as f64;
    let share = |limit: Limit| limit_ns[limit as usize] as f64 / total;
    LimitShares {
        application: share(Limit::Application),
        window: share(Limit::Window),
        congestion: share(Limit::Congestion),
        recovery: share(Limit::Recovery),
    }
}
