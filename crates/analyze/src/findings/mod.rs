//! What a flow's figures mean, in words, each with its evidence.
//!
//! - `basis`: the few figures that all findings judge by.
//! - `limits`: window, sender, SACK.
//! - `losses`: the LFP syndrome, policers, MTU trouble, needless retransmissions.
//! - `path`: lost SYNs, resets of others, damage, ECN.
//! - `delays`: queues, paths that change, ACK compression, ticks.
//!
//! The thresholds stand beside each finding; `docs/reference/analyze.md` lists them. Every finding has a test with a
//! trace that has it and one that nearly has it.

mod basis;
mod delays;
mod limits;
mod losses;
mod path;

use crate::flow::{connection::Connection, known::missing};
use basis::Basis;
use serde::Serialize;

/// Something worth knowing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Kind, for programs.
    pub kind: Kind,
    /// `address:port` of the sender it is about.
    pub from: String,
    /// One sentence.
    pub what: String,
    /// Figures, times, packets.
    pub evidence: String,
    /// When, since the capture's start.
    pub at_s: f64,
    /// Time lost to it, as far as that can be said; findings are ranked by it.
    pub cost_s: f64,
}

/// Kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Below BDP: the receiver's window bounds it.
    WindowLimited,
    /// Burst loss after window > BDP + queue, silence, go-back (Amagai 1995).
    LfpSyndrome,
    /// A standing queue that the flow fills itself.
    Bufferbloat,
    /// ACKs arrive closer together than the data they acknowledge was sent.
    AckCompression,
    /// The receiver's ACKs keep to a timer.
    ReceiverTicks,
    /// The sender's data keeps to a timer.
    SenderTicks,
    /// Losses at a fixed rate without a queue.
    Policer,
    /// Full packets do not pass.
    MtuTrouble,
    /// The sender had nothing to send.
    SenderIdle,
    /// The RTT, or the number of hops, changed while the flight did not.
    PathChange,
    /// Losses are repaired without SACK.
    SackMissing,
    /// Much of what was sent again was not needed.
    SpuriousRetransmissions,
    /// The receiver's window fell to zero.
    ReceiverStalls,
    /// Acknowledged octets that the capture does not have.
    CaptureIncomplete,
    /// Packets above the MSS: spacing is not that of the wire.
    Offloads,
    /// Ordinary losses.
    Losses,
    /// Time the retransmission timer took.
    Timeouts,
    /// The peer fell silent for good.
    ConnectionDied,
    /// SYNs or their answers were sent again.
    LostSyns,
    /// A reset of a third party.
    InjectedReset,
    /// The path damages packets.
    WrongChecksums,
    /// Small packets wait for delayed acknowledgements.
    DelayedAckNagle,
    /// Windows smaller than a segment, filled.
    SillyWindow,
    /// Packets marked instead of dropped.
    EcnMarks,
    /// ECN agreed, and not on the packets.
    EcnStripped,
}

/// Findings about what one end sends.
pub fn of_direction(connection: &Connection, end: usize, epoch_ns: i64) -> Vec<Finding> {
    let Some(basis) = Basis::of(connection, end, epoch_ns) else { return Vec::new() };
    if missing(connection, end).is_some() {
        return losses::capture_incomplete(&basis).into_iter().collect();
    }
    let all = [
        limits::window_limited,
        limits::sender_idle,
        limits::sack_missing,
        limits::receiver_stalls,
        limits::nagle,
        limits::silly_window,
        losses::lfp_syndrome,
        losses::policer,
        losses::mtu_trouble,
        losses::spurious,
        losses::losses,
        losses::timeouts,
        losses::connection_died,
        path::ecn_marks,
        path::ecn_stripped,
        losses::capture_incomplete,
        delays::bufferbloat,
        delays::path_change,
        delays::ack_compression,
        delays::receiver_ticks,
        delays::sender_ticks,
        delays::offloads,
    ];
    let mut found: Vec<Finding> = all.iter().filter_map(|find| find(&basis)).collect();
    let has = |kind| found.iter().any(|finding: &Finding| finding.kind == kind);
    // The better word goes for what it explains.
    let explained = [
        (Kind::LfpSyndrome, &[Kind::Timeouts, Kind::Losses][..]),
        (Kind::Policer, &[Kind::Losses]),
        (Kind::MtuTrouble, &[Kind::ConnectionDied, Kind::Timeouts, Kind::Losses]),
        (Kind::ConnectionDied, &[Kind::Timeouts, Kind::Losses]),
        (Kind::DelayedAckNagle, &[Kind::SenderIdle]),
        (Kind::SillyWindow, &[Kind::WindowLimited]),
    ];
    let drop: Vec<Kind> =
        explained.iter().filter(|(by, _)| has(*by)).flat_map(|(_, what)| what.iter().copied()).collect();
    found.retain(|finding| !drop.contains(&finding.kind));
    found
}

/// Findings about a connection as a whole.
pub fn of_connection(connection: &Connection, epoch_ns: i64) -> Vec<Finding> {
    [path::lost_syns, path::injected_reset, path::wrong_checksums]
        .iter()
        .filter_map(|find| find(connection, epoch_ns))
        .collect()
}
