//! What delays and spacing mean.

use super::{Finding, Kind, basis::Basis};
use crate::{
    clock::seconds,
    flow::{
        observers::TimesToLive,
        series::Bin,
        spacing::{Gaps, Period},
    },
    words::{bytes, duration, rate},
};

/// Queueing from which on a queue is bloated: median RTT over the least, and the difference.
const BLOAT_RATIO: f64 = 2.0;
const BLOAT_S: f64 = 0.02;
/// Packets that such a queue holds at least: fewer are no queue, and the delay is the receiver's.
const BLOAT_PACKETS: f64 = 8.0;

/// A standing queue that the flow fills itself.
pub fn bufferbloat(basis: &Basis) -> Option<Finding> {
    let rtt = basis.half.trips.by_sequence.as_deref()?;
    let lag_s = seconds(basis.half.lag_ns);
    let at = |quantile| rtt.quantile(quantile).map(|ns| seconds(ns as i64) + lag_s);
    let (median, p95, least) = (at(0.5)?, at(0.95)?, basis.least_rtt_s);
    let bloated = median >= BLOAT_RATIO * least && median - least >= BLOAT_S && least > 0.0;
    if !bloated || rtt.count() < 20 || find_change(basis).is_some() || !grows_with_flight(basis) {
        return None;
    }
    let queue_bytes = (median - least) * basis.good_bps / 8.0;
    if queue_bytes < BLOAT_PACKETS * f64::from(basis.half.full_bytes) {
        return None;
    }
    let what = format!(
        "Bufferbloat: half of all packets wait {} or longer in a queue of about {} that this flow keeps full",
        duration(median - least),
        bytes(queue_bytes),
    );
    let evidence = format!(
        "RTT {} least, {} median, {} p95; at {} a flight of {} would do, up to {} were outstanding",
        duration(least),
        duration(median),
        duration(p95),
        rate(basis.good_bps),
        bytes(basis.bdp_bytes(basis.good_bps)),
        bytes(basis.half.most_flight_bytes as f64),
    );
    let first = basis
        .series
        .bins()
        .iter()
        .position(|bin| has_rtt(bin) && f64::from(bin.rtt_least_us) / 1e6 + lag_s >= BLOAT_RATIO * least);
    Some(basis.finding(Kind::Bufferbloat, first.map_or(0.0, |n| basis.stretch_s(n)), 0.0, what, evidence))
}

fn has_rtt(bin: &Bin) -> bool {
    bin.rtt_least_us != u32::MAX
}

/// Stretches with a long RTT have more outstanding than those with a short one.
fn grows_with_flight(basis: &Basis) -> bool {
    let mut stretches: Vec<(u32, u64)> = basis
        .series
        .bins()
        .iter()
        .filter(|b| has_rtt(b) && b.flight_bytes > 0)
        .map(|b| (b.rtt_least_us, b.flight_bytes))
        .collect();
    stretches.sort_unstable();
    let quarter = stretches.len() / 4;
    let mean = |part: &[(u32, u64)]| {
        part.iter().map(|(_, flight)| *flight as f64).sum::<f64>() / part.len().max(1) as f64
    };
    quarter > 0 && mean(&stretches[stretches.len() - quarter..]) > 1.2 * mean(&stretches[..quarter])
}

/// Stretches on each side of a change.
const SIDE: usize = 4;
/// By which factor the least RTT changes, and by how much at least, microseconds.
const CHANGE: (f64, f64) = (1.3, 2000.0);
/// [`CHANGE`] where the time to live changes with the RTT.
const CHANGE_OF_HOPS: (f64, f64) = (1.1, 500.0);
/// By how much the flight may change meanwhile.
const SAME_FLIGHT: f64 = 1.15;

/// Number of the stretch, RTT before and after in microseconds.
type Change = (usize, f64, f64);

/// A step of the least RTT that the flight does not explain.
fn find_change(basis: &Basis) -> Option<Change> {
    (0..basis.series.bins().len()).find_map(|at| change_at(basis, at, CHANGE))
}

/// Whether the least RTT steps so far at this stretch.
fn change_at(basis: &Basis, at: usize, (factor, at_least_us): (f64, f64)) -> Option<Change> {
    let bins = basis.series.bins();
    let (before, after) = (bins.get(at.checked_sub(SIDE)?..at)?, bins.get(at..at + SIDE)?);
    if !before.iter().chain(after).all(has_rtt) {
        return None;
    }
    let least = |part: &[Bin]| part.iter().map(|b| f64::from(b.rtt_least_us)).fold(f64::INFINITY, f64::min);
    let most = |part: &[Bin]| part.iter().map(|b| f64::from(b.rtt_least_us)).fold(0.0, f64::max);
    let flights = |part: &[Bin]| {
        let flights = part.iter().map(|b| b.flight_bytes as f64);
        (flights.clone().fold(f64::INFINITY, f64::min), flights.fold(0.0, f64::max))
    };
    // An RTT is told of what was sent a round trip before, and what was outstanding then made its queue.
    let width_us = basis.series.width_ns() as f64 / 1e3;
    let earlier = (most(before).max(most(after)) / width_us).ceil() as usize;
    let around =
        |from: usize| (flights(&bins[from.saturating_sub(SIDE)..from]), flights(&bins[from..from + SIDE]));
    let both = [around(at), around(at.saturating_sub(earlier))];
    let grew = both.iter().any(|((least, _), (_, most))| *most >= SAME_FLIGHT * least);
    let shrank = both.iter().any(|((_, most), (least, _))| *most >= SAME_FLIGHT * least);
    // The two sides must not overlap: a ramp is a queue.
    let up = least(after) > factor * most(before) + at_least_us && !grew;
    let down = least(before) > factor * most(after) + at_least_us && !shrank;
    (up || down).then(|| (at, least(before), least(after)))
}

/// A time to live that changes more often, or for fewer packets, is that of something between the ends that answers for
/// one of them.
const MOST_TTL_CHANGES: u32 = 2;
const TTL_PACKETS: u64 = 20;

/// A change for good of the time to live with which the receiver's packets arrive.
fn change_of_hops(basis: &Basis) -> Option<TimesToLive> {
    basis.peer.observed.ttl.filter(|ttl| {
        ttl.first != ttl.last
            && ttl.changes <= MOST_TTL_CHANGES
            && ttl.packets_before >= TTL_PACKETS
            && basis.peer.counts.packets - basis.peer.counts.duplicate_packets - ttl.packets_before
                >= TTL_PACKETS
    })
}

/// The path, or what others queue on it, changed. A time to live alone says nothing: something between the ends may set
/// it. A lesser step of the RTT will do where it changes, too.
pub fn path_change(basis: &Basis) -> Option<Finding> {
    let hops = change_of_hops(basis);
    let with_hops = |ttl: TimesToLive| {
        let changed_s = basis.at_s(ttl.changed_ns);
        let at = (0..basis.series.bins().len()).find(|at| basis.stretch_s(*at) >= changed_s)?;
        (at.saturating_sub(1)..=at + 1).find_map(|at| change_at(basis, at, CHANGE_OF_HOPS))
    };
    let (at, before, after) = find_change(basis).or_else(|| with_hops(hops?))?;
    let ttl = hops.map_or(String::new(), |TimesToLive { first, last, changes, .. }| {
        format!("; the receiver's packets arrive with a TTL of {last} instead of {first} ({changes} changes)")
    });
    let at_s = basis.stretch_s(at);
    let what =
        format!("The path changed at {}: another route, or others' traffic queues on it", duration(at_s));
    let evidence = format!(
        "least RTT {} before and {} after, while the flight stayed the same{ttl}",
        duration(before / 1e6),
        duration(after / 1e6)
    );
    Some(basis.finding(Kind::PathChange, at_s, 0.0, what, evidence))
}

/// Compressed pairs from which on it is worth a word: number compared, share.
const COMPARED: u64 = 50;
const COMPRESSED_SHARE: f64 = 0.2;

/// ACKs arrive in bunches though the data was spread.
pub fn ack_compression(basis: &Basis) -> Option<Finding> {
    let found = &basis.half.observed.spacing.as_deref()?.compression;
    let share = found.compressed as f64 / found.compared.max(1) as f64;
    if found.compared < COMPARED || share < COMPRESSED_SHARE {
        return None;
    }
    let mean = |sum: u64| duration(sum as f64 / found.compressed as f64 / 1e9);
    let what = "ACK compression: ACKs arrive closer together than the data they acknowledge was sent, and make the sender send in bursts".to_owned();
    let evidence = format!(
        "{:.0} % of {} pairs: {} between ACKs for data that was {} apart; up to {} in a row",
        share * 100.0,
        found.compared,
        mean(found.ack_ns),
        mean(found.data_ns),
        found.longest_run + 1,
    );
    Some(basis.finding(
        Kind::AckCompression,
        found.first_ns.map_or(0.0, |ns| basis.at_s(ns)),
        0.0,
        what,
        evidence,
    ))
}

fn ticks(basis: &Basis, gaps: &Gaps) -> Option<Period> {
    // Where most packets come at the time of the one before, the clusters are those of the capture's clock.
    let at_once =
        gaps.histogram.buckets().next().filter(|(low, ..)| *low == 0).map_or(0, |(.., count)| count);
    if u64::from(at_once) * 2 >= gaps.histogram.count() {
        return None;
    }
    gaps.period((basis.least_rtt_s > 0.0).then_some((basis.least_rtt_s * 1e9) as i64))
}

fn of_ticks(period: &Period) -> String {
    format!(
        "{:.1} packets each time, on average; gaps between clusters keep to the period with a strength of {:.2} of 1",
        period.packets_per_cluster, period.strength
    )
}

/// The receiver answers by a timer, or its interface gathers packets.
pub fn receiver_ticks(basis: &Basis) -> Option<Finding> {
    let period = ticks(basis, &basis.peer.observed.spacing.as_deref()?.acks)?;
    let what = format!("The receiver's ACKs come in clusters every {}", duration(period.period_ns / 1e9));
    Some(basis.finding(Kind::ReceiverTicks, basis.start_s(), 0.0, what, of_ticks(&period)))
}

/// The sender sends by a timer.
pub fn sender_ticks(basis: &Basis) -> Option<Finding> {
    let period = ticks(basis, &basis.half.observed.spacing.as_deref()?.data)?;
    let what = format!("The sender's data comes in clusters every {}", duration(period.period_ns / 1e9));
    Some(basis.finding(Kind::SenderTicks, basis.start_s(), 0.0, what, of_ticks(&period)))
}

/// Spacing of packets above the MSS is not that of the wire.
pub fn offloads(basis: &Basis) -> Option<Finding> {
    let (large, all) = (basis.half.counts.oversize_packets, basis.half.counts.data_packets);
    (large * 100 > all).then(|| {
        let what = "Packets exceed the MSS: offloads cut or join them, so spacing and bursts here are not those of the wire".to_owned();
        let evidence = format!(
            "{large} of {all} packets with payload, up to {} octets with an MSS of {}; capture with segmentation and receive offloads off",
            basis.half.largest_payload, basis.half.mss_bytes
        );
        basis.finding(Kind::Offloads, basis.start_s(), 0.0, what, evidence)
    })
}
