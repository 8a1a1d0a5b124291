//! What holds a sender back that loses nothing: the receiver's window, the application, a missing SACK.

use super::{Finding, Kind, basis::Basis};
use crate::{
    clock::seconds,
    flow::{connection::is_window_known, half::Half},
    words::{bytes, counted, duration, rate},
};

/// Share of time without room in the window from which on it is what limits a flow.
const WINDOW_SHARE: f64 = 0.5;
/// Share of time without anything to send from which on that is worth a word.
const IDLE_SHARE: f64 = 0.3;
/// What the first and last round trip may add to a rate.
const BOUND_ROOM: f64 = 1.1;
/// Payload from which on a flow is a transfer, whose sender should have something to send.
const TRANSFER_BYTES: u64 = 100_000;
/// Flows that are too short to be judged: round trips.
const FEW_ROUND_TRIPS: f64 = 10.0;

/// Below BDP: the window is full for most of the time.
pub fn window_limited(basis: &Basis) -> Option<Finding> {
    let window = basis.half.most_window_bytes.filter(|most| is_window_known(*most) && *most > 0)?;
    // A closed window is the receiver's program, not the window's size.
    let closed_s = seconds(basis.half.closed_ns).min(basis.active_s);
    let open_s = basis.active_s - closed_s;
    let full_s = (basis.active_s * basis.limits.window - closed_s).max(0.0);
    let long = open_s > FEW_ROUND_TRIPS * basis.least_rtt_s && basis.least_rtt_s > 0.0;
    if full_s < WINDOW_SHARE * open_s || !long {
        return None;
    }
    let bound_bps = window as f64 * 8.0 / basis.least_rtt_s;
    // More than that was delivered: round trips were shorter than any that could be measured.
    if basis.mean_bps() > BOUND_ROOM * bound_bps {
        return None;
    }
    let path_bps = bottleneck_bps(basis).filter(|path| *path > 1.2 * bound_bps);
    let needed = path_bps.map_or(String::from("the path's rate cannot be told from this capture"), |path| {
        format!(
            "its ACKs are spaced as by a path of {}, which needs {}",
            rate(path),
            bytes(basis.bdp_bytes(path))
        )
    });
    let scaling =
        [basis.half.offer, basis.peer.offer].iter().flatten().any(|offer| offer.window_scale.is_none());
    let why = if scaling { "; it cannot be larger, because window scaling was not agreed" } else { "" };
    let cost = path_bps.map_or(0.0, |path| full_s * (1.0 - bound_bps / path).max(0.0));
    let what = format!(
        "Window-limited: {} at an RTT of {} allow at most {}; to send at 1 Gbit/s the window must be {}{why}",
        bytes(window as f64),
        duration(basis.least_rtt_s),
        rate(bound_bps),
        bytes(basis.bdp_bytes(1e9)),
    );
    let evidence = format!(
        "less than a packet of room for {:.0} % of {}; {}; {needed}",
        full_s / open_s * 100.0,
        duration(open_s),
        rate(basis.mean_bps()),
    );
    Some(basis.finding(Kind::WindowLimited, basis.start_s(), cost, what, evidence))
}

/// The rate at which the path hands packets on, as the closer half of its ACKs are spaced.
fn bottleneck_bps(basis: &Basis) -> Option<f64> {
    let gaps = &basis.peer.observed.spacing.as_deref()?.acks.histogram;
    let counts = &basis.half.counts;
    let gap_ns = gaps.quantile(0.25).filter(|gap| gaps.count() >= 50 && *gap > 0)?;
    Some(counts.acked_bytes as f64 / counts.acks.max(1) as f64 * 8e9 / gap_ns as f64)
}

/// The sender had nothing to send.
pub fn sender_idle(basis: &Basis) -> Option<Finding> {
    let idle_s = basis.active_s * basis.limits.application;
    if basis.limits.application < IDLE_SHARE
        || basis.active_s < 20.0 * basis.least_rtt_s
        || basis.half.counts.data_packets < 20
        || basis.half.counts.unique_bytes < TRANSFER_BYTES
    {
        return None;
    }
    let what = format!(
        "The sender had nothing to send for {:.0} % of the time; its program, or what feeds it, is the limit",
        basis.limits.application * 100.0
    );
    let evidence = format!(
        "{} of {} with nothing outstanding, or after a packet that was not full; {} on average, {} in better stretches",
        duration(idle_s),
        duration(basis.active_s),
        rate(basis.mean_bps()),
        rate(basis.good_bps),
    );
    Some(basis.finding(Kind::SenderIdle, basis.start_s(), idle_s, what, evidence))
}

/// SACK was not agreed, and losses had to be repaired without it.
pub fn sack_missing(basis: &Basis) -> Option<Finding> {
    let whole = |half: &Half| half.offer.filter(|offer| !offer.is_cut);
    let (mine, other) = (whole(basis.half)?, whole(basis.peer)?);
    let resent = basis.half.counts.resent_for_loss() + basis.half.counts.lost_before_segments;
    if (mine.sack && other.sack) || resent == 0 {
        return None;
    }
    let key = &basis.connection.key;
    let (me, peer) = (key.end(basis.end), key.end(1 - basis.end));
    let is_left_out = basis.half.first_offer.is_some_and(|first| first.sack) && !mine.sack;
    let who = match (mine.sack, other.sack) {
        _ if is_left_out => format!("{me} left it out when it sent its SYN again"),
        (false, false) => "neither end offers it".to_owned(),
        (false, true) => format!("{me} does not offer it"),
        (true, _) => format!("{peer} does not offer it, or something between removes it"),
    };
    let cost = basis.half.recovery.episodes.iter().map(|e| basis.lost_s(e.start_ns, e.end_ns)).sum();
    let what = format!("SACK is missing: {who}; every loss in a window costs a round trip, or a timeout");
    let evidence = format!(
        "{} sent again in {}, {}",
        counted(resent, "segment"),
        counted(basis.half.recovery.episode_count, "repair"),
        counted(basis.half.recovery.timeouts, "timeout"),
    );
    let at = basis.half.recovery.episodes.first().map_or(0.0, |e| basis.at_s(e.start_ns));
    Some(basis.finding(Kind::SackMissing, at, cost, what, evidence))
}

/// The receiver does not keep up.
pub fn receiver_stalls(basis: &Basis) -> Option<Finding> {
    let times = basis.half.counts.zero_windows;
    (times > 0).then(|| {
        let what =
            "The receiver closed its window: its program reads more slowly than the sender sends".to_owned();
        let cost = seconds(basis.half.closed_ns);
        let share = match basis.half.is_placed {
            true => format!("; {:.0} % of the time without room for a packet", basis.limits.window * 100.0),
            false => String::new(),
        };
        let evidence = format!(
            "{times} times zero, {} in all, probed {} times{share}",
            duration(cost),
            basis.half.counts.window_probes,
        );
        basis.finding(Kind::ReceiverStalls, basis.start_s(), cost, what, evidence)
    })
}

/// Waits from which on delayed acknowledgements are worth a word.
const NAGLE_WAITS: u32 = 3;

/// Small writes that wait for a delayed acknowledgement (RFC 896 and RFC 1122, 4.2.3.2).
pub fn nagle(basis: &Basis) -> Option<Finding> {
    let (times, waited_s) = (basis.half.counts.nagle_waits, seconds(basis.half.counts.nagle_ns));
    (times >= NAGLE_WAITS).then(|| {
        let what = "Delayed ACKs and Nagle: small packets wait until the one before is acknowledged, and the receiver delays that; the sender should write at once what belongs together, or set TCP_NODELAY".to_owned();
        let evidence = format!("{times} times, {} each on average", duration(waited_s / times as f64));
        basis.finding(Kind::DelayedAckNagle, basis.start_s(), waited_s, what, evidence)
    })
}

/// Packets that fill tiny windows from which on that is worth a word: number, and share of all.
const SILLY_PACKETS: u32 = 10;
const SILLY_SHARE: f64 = 0.1;

/// The receiver opens its window by less than a segment each time (RFC 1122, 4.2.3.3).
pub fn silly_window(basis: &Basis) -> Option<Finding> {
    let (silly, all) = (basis.half.counts.silly_packets, basis.half.counts.data_packets);
    if silly < SILLY_PACKETS || (silly as f64) < SILLY_SHARE * all as f64 {
        return None;
    }
    let what = "Silly window: the receiver opens its window by less than a segment, and the sender fills it with small packets".to_owned();
    let mean = basis.half.counts.payload_bytes as f64 / all as f64;
    let evidence = format!(
        "{silly} of {all} packets; {} each on average, with an MSS of {}",
        bytes(mean),
        basis.half.mss_bytes
    );
    Some(basis.finding(Kind::SillyWindow, basis.start_s(), 0.0, what, evidence))
}
