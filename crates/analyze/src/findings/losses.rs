//! What losses mean.

use super::{Finding, Kind, basis::Basis};
use crate::{
    clock::seconds,
    flow::recovery::Episode,
    words::{bytes, counted, duration, rate},
};

/// Least silence of the LFP syndrome, seconds, and in round trips.
const SILENCE_S: f64 = 0.2;
const SILENCE_ROUND_TRIPS: f64 = 3.0;
/// Least segments it sends again, and share of what was outstanding.
const GO_BACK_SEGMENTS: u64 = 8;
const GO_BACK_SHARE: f64 = 0.25;
/// The flight exceeds the BDP, and the RTT its least, by this factor: the queue was full.
const OVERFULL: f64 = 1.2;
const INFLATED: f64 = 1.5;

/// Amagai 1995: window > BDP + queue, a burst is lost, silence until the timeout, everything after the loss is sent
/// again.
pub fn lfp_syndrome(basis: &Basis) -> Option<Finding> {
    let bdp = basis.bdp_bytes(basis.good_bps);
    // Part of the window was still acknowledged after the loss: what was outstanding when it happened is of the RTT
    // before.
    let flight = |episode: &Episode| {
        let rtt_ns = (basis.rtt_before_us(episode) * 1e3) as i64;
        basis.flight_bytes(episode.silence_from_ns.saturating_sub(2 * rtt_ns), episode.silence_from_ns)
    };
    let is_one = |episode: &&Episode| {
        let silence = seconds(episode.silence_ns);
        let silent = silence >= SILENCE_S.max(SILENCE_ROUND_TRIPS * basis.least_rtt_s);
        let back = episode.resent_segments >= GO_BACK_SEGMENTS
            && episode.resent_bytes as f64 >= GO_BACK_SHARE * episode.flight_bytes as f64;
        let full = flight(episode) as f64 > OVERFULL * bdp
            && basis.rtt_before_us(episode) / 1e6 > INFLATED * basis.least_rtt_s;
        episode.timeouts > 0 && silent && back && full
    };
    let found: Vec<&Episode> = basis.half.recovery.episodes.iter().filter(is_one).collect();
    let worst = found.iter().max_by_key(|episode| episode.silence_ns)?;
    let cost: f64 = found.iter().map(|e| basis.lost_s(e.silence_from_ns, e.end_ns)).sum();
    let resent: u64 = found.iter().map(|episode| episode.resent_bytes).sum();
    let what = format!(
        "LFP syndrome, {} times: the window exceeds path and queue, a burst is lost, the sender falls silent until its timeout and sends {} again",
        found.len(),
        bytes(resent as f64),
    );
    let evidence = format!(
        "at {}: {} outstanding, {} would fill the path at {}; RTT had grown from {} to {}; silence of {}, then {} segments again until {}",
        duration(basis.at_s(worst.silence_from_ns)),
        bytes(flight(worst) as f64),
        bytes(bdp),
        rate(basis.good_bps),
        duration(basis.least_rtt_s),
        duration(basis.rtt_before_us(worst) / 1e6),
        duration(seconds(worst.silence_ns)),
        worst.resent_segments,
        duration(basis.at_s(worst.end_ns)),
    );
    Some(basis.finding(Kind::LfpSyndrome, basis.at_s(found[0].silence_from_ns), cost, what, evidence))
}

/// A policer lets through what it has tokens for, so that at each of its losses nearly the same share of the time's
/// tokens had gone: losses lie on one line of octets over time. How far they are off it (standard deviation, of what
/// was delivered between the first and the last), times the root of their number, is at most this. Random losses under
/// Reno and CUBIC make 0.1 to 0.6.
const POLICED_SCATTER: f64 = 0.07;
/// At half of the losses the sender was faster than what is held, by this factor.
const POLICED_EXCESS: f64 = 1.1;
/// There is no queue: the RTT at half of the losses is at most this above the least, and what it is at other times,
/// too.
const POLICED_RTT: f64 = 1.3;
const POLICED_RTT_SLACK_S: f64 = 0.005;
const POLICED_RISE: f64 = 1.02;
const POLICED_RISE_SLACK_S: f64 = 0.0005;
const POLICED_EPISODES: usize = 8;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// How far losses are from one line of octets over time, between the first and the last.
fn scatter(basis: &Basis, episodes: &[Episode], all: f64, (first, last): (i64, i64)) -> f64 {
    let time_s = seconds(last - first);
    let (mut off, mut since, mut delivered) = (Vec::with_capacity(episodes.len()), first, 0.0);
    for episode in episodes {
        delivered += basis.delivered_bytes(since, episode.start_ns);
        since = episode.start_ns;
        off.push(seconds(since - first) / time_s - delivered / all);
    }
    let mean = off.iter().sum::<f64>() / off.len() as f64;
    // The standard deviation times the root of the number.
    off.iter().map(|one| (one - mean).powi(2)).sum::<f64>().sqrt()
}

/// Flach et al. 2016: a rate that is held by dropping, without a queue.
pub fn policer(basis: &Basis) -> Option<Finding> {
    let episodes = &basis.half.recovery.episodes;
    let (first, last) = (episodes.first()?.start_ns, episodes.last()?.start_ns);
    let all = basis.delivered_bytes(first, last);
    // What happened before the capture had its queue there, which no RTT behind it shows.
    let is_before = basis.half.counts.lost_before_segments > basis.half.counts.resent_segments;
    if episodes.len() < POLICED_EPISODES || all <= 0.0 || last <= first || is_before {
        return None;
    }
    let held_bps = all * 8.0 / seconds(last - first);
    let rtt_us = |episode: &Episode| basis.rtt_before_us(episode).max(1.0);
    let sent_bps = |episode: &Episode| episode.flight_bytes as f64 * 8e6 / rtt_us(episode);
    let excess = median(episodes.iter().map(sent_bps).collect()) / held_bps;
    let rtt_s = median(episodes.iter().map(rtt_us).collect()) / 1e6;
    let usual_ns = basis.half.trips.by_sequence.as_deref()?.quantile(0.5)?;
    let usual_s = seconds(usual_ns as i64 + basis.half.lag_ns);
    let is_queueless = rtt_s <= POLICED_RTT * basis.least_rtt_s + POLICED_RTT_SLACK_S
        && rtt_s <= POLICED_RISE * usual_s + POLICED_RISE_SLACK_S;
    if !is_queueless || excess < POLICED_EXCESS {
        return None;
    }
    let scatter = scatter(basis, episodes, all, (first, last));
    if scatter > POLICED_SCATTER {
        return None;
    }
    let what =
        format!("A policer holds it at {}: packets above that are dropped, not queued", rate(held_bps));
    let evidence = format!(
        "{} repairs from {} on, each when {} had been let through since the one before (scatter {:.2}); the sender was {:.1} times as fast at them; RTT at losses {}, least {}; {} segments sent again",
        basis.half.recovery.episode_count,
        duration(basis.at_s(episodes[0].start_ns)),
        rate(held_bps),
        scatter,
        excess,
        duration(rtt_s),
        duration(basis.least_rtt_s),
        basis.half.counts.resent_segments,
    );
    let cost = episodes.iter().map(|e| basis.lost_s(e.start_ns, e.end_ns)).sum();
    Some(basis.finding(Kind::Policer, basis.at_s(episodes[0].start_ns), cost, what, evidence))
}

/// A full packet that never passes is sent again at least so often.
const STUBBORN_TIMES: u32 = 3;
/// Every path passes packets with less payload (RFC 791).
const LEAST_MTU: u32 = 536;

/// Full packets vanish while smaller ones pass, or a router says they are too big.
pub fn mtu_trouble(basis: &Basis) -> Option<Finding> {
    let half = basis.half;
    let stuck = half.stubborn.filter(|stubborn| {
        let is_full =
            stubborn.bytes > LEAST_MTU && f64::from(stubborn.bytes) >= 0.9 * f64::from(half.full_bytes);
        // A bundle is as large on the path as its segments are.
        let on_path = if half.mss_bytes > 0 { stubborn.bytes.min(half.mss_bytes) } else { stubborn.bytes };
        let never_passed = !stubborn.passed && on_path > half.largest_acked_bytes;
        // Where nothing but the SYN ever passed, and nothing comes any more, the peer may as well be gone.
        let smaller_pass = half.largest_acked_bytes > 1 || half.last_heard_ns() > stubborn.since_ns;
        stubborn.times >= STUBBORN_TIMES && is_full && never_passed && smaller_pass
    });
    let told = half.too_big;
    let at_ns = stuck.map_or(half.data_ns?.0, |stubborn| stubborn.since_ns);
    let cost = stuck.map_or(0.0, |stubborn| seconds(basis.connection.last_ns - stubborn.since_ns));
    let evidence = match (stuck, told) {
        (Some(stuck), _) => format!(
            "a packet of {} octets of payload was sent again {} times and never acknowledged; the largest that ever was had {}{}",
            stuck.bytes,
            stuck.times,
            half.largest_acked_bytes,
            told.map_or("; no router said anything".to_owned(), |(mtu, n)| format!(
                "; routers said {n} times that the MTU is {mtu}"
            )),
        ),
        (None, Some((mtu, times))) => {
            format!("routers said {times} times that packets are too big, the MTU is {mtu}")
        }
        (None, None) => return None,
    };
    let what = "MTU trouble: full packets do not pass the path, smaller ones do".to_owned();
    Some(basis.finding(Kind::MtuTrouble, basis.at_s(at_ns), cost, what, evidence))
}

/// Needless retransmissions from which on they are worth a word: number and share.
const SPURIOUS_SEGMENTS: u64 = 5;
const SPURIOUS_SHARE: f64 = 0.3;

/// Sent again though nothing was lost: reordering, or delay that jumps.
pub fn spurious(basis: &Basis) -> Option<Finding> {
    let (spurious, resent) = (basis.half.recovery.spurious_segments, basis.half.counts.repaired_segments());
    if spurious < SPURIOUS_SEGMENTS || (spurious as f64) < SPURIOUS_SHARE * resent as f64 {
        return None;
    }
    let what = format!(
        "{spurious} of {resent} segments were sent again without need: the path reorders, or its delay jumps"
    );
    let evidence = format!(
        "{} told by DSACK, the others by timestamps; {} timeouts",
        basis.half.recovery.spurious_by_dsack, basis.half.recovery.timeouts
    );
    let at = basis
        .half
        .recovery
        .episodes
        .iter()
        .find(|e| e.spurious_segments > 0)
        .map_or(0.0, |e| basis.at_s(e.start_ns));
    Some(basis.finding(Kind::SpuriousRetransmissions, at, 0.0, what, evidence))
}

/// Share sent again, or segments, from which on ordinary losses are worth a word.
const LOSS_SHARE: f64 = 0.001;
const LOSS_SEGMENTS: u64 = 3;

/// Losses that are repaired without a timeout.
pub fn losses(basis: &Basis) -> Option<Finding> {
    let (recovery, counts) = (&basis.half.recovery, &basis.half.counts);
    let needed =
        counts.resent_for_loss().saturating_sub(recovery.spurious_segments) + counts.lost_before_segments;
    let share = needed as f64 / counts.sent_segments.max(1) as f64;
    if needed == 0 || needed < LOSS_SEGMENTS && share < LOSS_SHARE {
        return None;
    }
    let repairs: Vec<&Episode> = recovery.episodes.iter().filter(|episode| episode.timeouts == 0).collect();
    let cost = repairs.iter().map(|e| basis.lost_s(e.start_ns, e.end_ns)).sum();
    let what =
        format!("Losses: {} had to be sent again ({:.2} %)", counted(needed, "segment"), share * 100.0);
    let evidence = format!(
        "{}, {} of them without a timeout; RTT {} before the first",
        counted(recovery.episode_count, "repair"),
        repairs.len(),
        recovery.episodes.first().map_or("unknown".to_owned(), |e| duration(basis.rtt_before_us(e) / 1e6)),
    );
    let at = recovery.episodes.first().map_or(basis.start_s(), |e| basis.at_s(e.start_ns));
    Some(basis.finding(Kind::Losses, at, cost, what, evidence))
}

/// Time that the retransmission timer took; SYNs have a finding of their own, which says what they took.
pub fn timeouts(basis: &Basis) -> Option<Finding> {
    let is_one = |episode: &&Episode| episode.timeouts > episode.syn_timeouts;
    let episodes = || basis.half.recovery.episodes.iter().filter(is_one);
    let longest = episodes().max_by_key(|episode| episode.silence_ns)?;
    let cost = episodes()
        .map(|e| basis.lost_s(e.silence_from_ns.min(e.start_ns).max(basis.epoch_ns), e.end_ns))
        .sum();
    let times = basis.half.recovery.timeouts - basis.half.counts.resent_syns;
    let what = format!("Timeouts: the sender fell silent until its timer went off, {times} times");
    let evidence = format!(
        "{} at the longest, at {}",
        duration(seconds(longest.silence_ns)),
        duration(basis.at_s(longest.silence_from_ns.max(basis.epoch_ns))),
    );
    Some(basis.finding(Kind::Timeouts, basis.at_s(longest.start_ns), cost, what, evidence))
}

/// Resends without any word of the peer from which on it is gone.
const DEAD_TIMES: u32 = 5;

/// The peer fell silent for good.
pub fn connection_died(basis: &Basis) -> Option<Finding> {
    let stuck = basis.half.stubborn.filter(|stubborn| !stubborn.passed && stubborn.times >= DEAD_TIMES)?;
    if basis.half.last_heard_ns() > stuck.since_ns {
        return None;
    }
    let connection = basis.connection;
    let cost = seconds((connection.last_ns - basis.half.last_heard_ns().max(connection.first_ns)).max(0));
    let how = match connection.reset {
        Some((end, _)) if usize::from(end) == basis.end => "then the sender gave up with a reset",
        Some(_) => "then a reset came",
        None => "until the capture, or the connection, ended",
    };
    let what = format!(
        "The connection died: nothing comes from {} any more, however often data is sent again",
        connection.key.end(1 - basis.end),
    );
    let evidence = format!(
        "the same {} were sent again {} times over {}, {how}",
        bytes(f64::from(stuck.bytes)),
        stuck.times,
        duration(seconds((connection.last_ns - stuck.since_ns).max(0)))
    );
    Some(basis.finding(Kind::ConnectionDied, basis.at_s(stuck.since_ns), cost, what, evidence))
}

/// The capture has holes: counts are lower bounds.
pub fn capture_incomplete(basis: &Basis) -> Option<Finding> {
    let unseen = basis.half.counts.unseen_bytes;
    (unseen > 0 && basis.half.counts.unique_bytes > 0).then(|| {
        let what = "The capture is incomplete: octets were acknowledged that it does not have".to_owned();
        let all = unseen + basis.half.counts.unique_bytes;
        let share = unseen as f64 / all as f64 * 100.0;
        let evidence =
            format!("{} ({share:.2} %); retransmissions among them are not counted", bytes(unseen as f64));
        basis.finding(Kind::CaptureIncomplete, basis.start_s(), 0.0, what, evidence)
    })
}
