//! Two captures of the same traffic at two places, matched packet by packet: what the path between them lost, how much
//! longer than at best it took, and what it did to the spacing.
//!
//! A packet is the same when its flow, sequence and acknowledgement numbers, flags, length, timestamps and IP
//! identification are; what came twice is matched in order. The clocks may differ: with *d* the time at the second
//! place less the time at the first, one direction's *d* is the clocks' difference plus its delay, the other's is the
//! clocks' difference less its delay. So the direction with the greater *d* goes from the first place to the second,
//! and the least of the one less the greatest of the other is the least round trip between the places, whatever the
//! clocks show. Delays of one direction are told above the least.
//!
//! Memory goes with what is under way between the places and with the flows, not with the files.

use crate::{
    capture::reader::CaptureError,
    decode::Decoded,
    flow::{histogram::Histogram, thinned::Thinned},
    segment::{FlowKey, Segment},
    segments::Segments,
};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A packet that has not come to the other place this much later, by its own clock, will not.
const EXPECTED_NS: i64 = 30_000_000_000;
/// Packets that wait for the other place at most: captures of different traffic have no match at all.
const MOST_WAITING: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };
/// Matched packets that may be remembered before they are cleared away.
const SLACK: usize = 4096;
/// Delays that are kept of one direction.
const MOST_DELAYS: usize = 1 << 16;
/// Packets a quarter as far apart as they were have been pushed together.
const COMPRESSION: i64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Identity {
    key: FlowKey,
    end: u8,
    flags: u16,
    numbers: (u32, u32),
    timestamps: (u32, u32),
    payload_bytes: u32,
    ip_id: u16,
}

impl Identity {
    fn of(segment: &Segment) -> Identity {
        Identity {
            key: segment.key,
            end: segment.end,
            flags: segment.flags,
            numbers: (segment.sequence, segment.acknowledgement),
            timestamps: (segment.ts_value, segment.ts_echo),
            payload_bytes: segment.payload_bytes,
            ip_id: segment.ip_id,
        }
    }
}

/// One place.
#[derive(Default)]
struct Place {
    waiting: HashMap<Identity, VecDeque<i64>>,
    /// How many those are.
    waiting_packets: usize,
    /// Packets that wait and others that were matched meanwhile, in the order of the file.
    order: VecDeque<(i64, Identity)>,
    /// Times of the first and the last packet that was matched: only between them do both captures speak of the same.
    matched_ns: Option<(i64, i64)>,
    newest_ns: i64,
    packets: u64,
    is_over: bool,
}

impl Place {
    fn take(&mut self, identity: &Identity) -> Option<i64> {
        let times = self.waiting.get_mut(identity)?;
        let time_ns = times.pop_front();
        if times.is_empty() {
            self.waiting.remove(identity);
        }
        self.waiting_packets -= usize::from(time_ns.is_some());
        time_ns
    }

    fn wait(&mut self, identity: Identity, time_ns: i64) {
        self.waiting.entry(identity).or_default().push_back(time_ns);
        self.waiting_packets += 1;
        self.order.push_back((time_ns, identity));
        // Behind one that waits for long, thousands that were matched must not pile up.
        if self.order.len() > 2 * self.waiting_packets + SLACK {
            let waiting = &self.waiting;
            self.order.retain(|(time, one)| waiting.get(one).is_some_and(|times| times.contains(time)));
        }
    }

    fn on_match(&mut self, time_ns: i64) {
        let (first, last) = self.matched_ns.get_or_insert((time_ns, time_ns));
        (*first, *last) = ((*first).min(time_ns), (*last).max(time_ns));
    }

    /// What waited too long, or everything at the end: packets that only this place has, while both captured.
    fn give_up(&mut self, at_end: bool) -> Vec<Identity> {
        let mut alone = Vec::new();
        while let Some((time_ns, identity)) = self.order.front().copied() {
            if self.waiting.get(&identity).is_some_and(|times| times.front() == Some(&time_ns)) {
                let late = self.newest_ns - time_ns > EXPECTED_NS || self.waiting_packets > MOST_WAITING;
                if !(at_end || late) {
                    break;
                }
                self.take(&identity);
                let both = self.matched_ns.is_some_and(|(first, last)| (first..=last).contains(&time_ns));
                alone.extend(both.then_some(identity));
            }
            self.order.pop_front();
        }
        alone
    }
}

/// Differences of one direction, time at the second place less time at the first.
struct Differences {
    least_ns: i64,
    most_ns: i64,
    kept_ns: Thinned<i64, MOST_DELAYS>,
}

impl Default for Differences {
    fn default() -> Differences {
        Differences { least_ns: i64::MAX, most_ns: i64::MIN, kept_ns: Thinned::default() }
    }
}

impl Differences {
    fn push(&mut self, difference_ns: i64) {
        self.least_ns = self.least_ns.min(difference_ns);
        self.most_ns = self.most_ns.max(difference_ns);
        self.kept_ns.add(difference_ns);
    }

    fn count(&self) -> u64 {
        self.kept_ns.seen()
    }

    fn median_ns(&self) -> Option<i64> {
        let mut sorted: Vec<i64> = self.kept_ns.kept().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

/// One direction of a flow.
#[derive(Default)]
struct Half {
    differences: Differences,
    /// Packets that only the first or only the second place has.
    alone: [u64; 2],
    /// Octets of the same.
    alone_bytes: [u64; 2],
    data: Pairs,
    /// Pure ACKs.
    acks: Pairs,
}

impl Half {
    fn on_match(&mut self, times_ns: [i64; 2], payload_bytes: u32) {
        self.differences.push(times_ns[1].saturating_sub(times_ns[0]));
        if payload_bytes > 0 { self.data.add(times_ns) } else { self.acks.add(times_ns) }
    }
}

/// Packets of one kind and the ones before them.
#[derive(Default)]
struct Pairs {
    /// Times of the last one at both places.
    last_ns: Option<[i64; 2]>,
    /// Nanoseconds between the two.
    gaps: [Histogram; 2],
    /// Pairs that were closer at the first place, at the second.
    compressed: [u64; 2],
}

impl Pairs {
    fn add(&mut self, [first_ns, second_ns]: [i64; 2]) {
        if let Some(last) = self.last_ns.replace([first_ns, second_ns]) {
            let gaps = [first_ns.saturating_sub(last[0]), second_ns.saturating_sub(last[1])];
            for place in 0..2 {
                self.gaps[place].record(gaps[place].max(0) as u64);
                let pushed = gaps[place].saturating_mul(COMPRESSION) < gaps[1 - place];
                self.compressed[place] += u64::from(pushed);
            }
        }
    }

    /// Median time between two at the earlier and the later place, and the share that came together.
    fn conclude(&self, earlier: usize, later: usize) -> ([Option<f64>; 2], Option<f64>) {
        let median_us = |place: usize| self.gaps[place].quantile(0.5).map(|ns| ns as f64 / 1e3);
        let pairs = self.gaps[later].count();
        let share = (pairs > 0).then(|| self.compressed[later] as f64 / pairs as f64);
        ([median_us(earlier), median_us(later)], share)
    }
}

/// What two captures say together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Matching {
    /// Schema version of this output; readers refuse a newer one.
    pub schema_version: u32,
    /// TCP packets of the first and the second capture.
    pub packets: [u64; 2],
    /// Packets that both have.
    pub matched_packets: u64,
    /// Flows of which both have something, the greatest first.
    pub flows: Vec<FlowMatch>,
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowMatch {
    /// Least time from one place to the other and back; none when one direction alone was matched.
    pub least_round_trip_us: Option<f64>,
    /// Clock of the second place less that of the first, if the least delays of both directions are equal.
    pub clock_difference_us: Option<f64>,
    /// Octets were packed anew between the places (offloads at one of them): packets alone here and there are no
    /// losses.
    pub repacked: bool,
    /// Both directions; the first one's packets pass the first place first, where that is known.
    pub directions: Vec<DirectionMatch>,
}

/// One direction of a flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DirectionMatch {
    /// Who sends.
    pub from: String,
    /// To whom.
    pub to: String,
    /// Whether it passes the first place first; unknown when one direction alone was matched and assumed then.
    pub first_to_second: bool,
    /// Packets that both places have.
    pub matched_packets: u64,
    /// Packets that were lost between the places.
    pub lost_packets: u64,
    /// Payload of the packets that were lost.
    pub lost_bytes: u64,
    /// Packets that only the later place has: the earlier capture lost them, or another path brought them.
    pub unseen_before_packets: u64,
    /// Delay above the least: half of the packets, 95 %, 99 %, all of them had at most this.
    pub delay_above_least_us: [f64; 4],
    /// Median time between data packets at the earlier and the later place.
    pub gap_us: [Option<f64>; 2],
    /// Share of pairs of data packets that came four times as close together as they went.
    pub compressed_share: Option<f64>,
    /// Median gaps of this direction's pure ACKs, before and behind: a path that merges them (framing, offloads) shows
    /// here.
    pub ack_gap_us: [Option<f64>; 2],
    /// Share of pairs.
    pub compressed_ack_share: Option<f64>,
}

/// Matches two captures.
///
/// # Errors
/// When one cannot be read.
pub fn matching<C: Segments>(captures: &mut [C; 2]) -> Result<Matching, CaptureError> {
    let mut places = [Place::default(), Place::default()];
    let mut flows: BTreeMap<FlowKey, [Half; 2]> = BTreeMap::new();
    let mut offset_ns = None;
    while let Some(at) = next_place(&places, offset_ns) {
        let Some(segment) = next_segment(&mut captures[at])? else {
            places[at].is_over = true;
            continue;
        };
        let identity = Identity::of(&segment);
        let place = &mut places[at];
        (place.newest_ns, place.packets) = (place.newest_ns.max(segment.time_ns), place.packets + 1);
        match places[1 - at].take(&identity) {
            None => places[at].wait(identity, segment.time_ns),
            Some(other_ns) => {
                let times = if at == 0 { [segment.time_ns, other_ns] } else { [other_ns, segment.time_ns] };
                (0..2).for_each(|place| places[place].on_match(times[place]));
                offset_ns.get_or_insert(times[1].saturating_sub(times[0]));
                let halves = flows.entry(segment.key).or_default();
                halves[usize::from(segment.end)].on_match(times, segment.payload_bytes);
            }
        }
        give_up(&mut places[at], at, false, &mut flows);
    }
    (0..2).for_each(|at| give_up(&mut places[at], at, true, &mut flows));
    Ok(conclude(&places, &flows))
}

/// The place to read next: the one that is behind by its clock, once the difference of the clocks is roughly known.
fn next_place(places: &[Place; 2], offset_ns: Option<i64>) -> Option<usize> {
    match [places[0].is_over, places[1].is_over] {
        [true, true] => None,
        [true, false] => Some(1),
        [false, true] => Some(0),
        [false, false] => Some(usize::from(match offset_ns {
            Some(offset_ns) => places[1].newest_ns.saturating_sub(offset_ns) < places[0].newest_ns,
            None => places[1].packets < places[0].packets,
        })),
    }
}

fn next_segment(capture: &mut impl Segments) -> Result<Option<Segment>, CaptureError> {
    let mut segment = Segment::default();
    while let Some((_, decoded)) = capture.next_segment(0, &mut segment)? {
        if decoded == Decoded::Tcp {
            return Ok(Some(segment));
        }
    }
    Ok(None)
}

fn give_up(place: &mut Place, at: usize, at_end: bool, flows: &mut BTreeMap<FlowKey, [Half; 2]>) {
    for identity in place.give_up(at_end) {
        // A flow of which nothing was matched is none that both places have.
        if let Some(halves) = flows.get_mut(&identity.key) {
            let half = &mut halves[usize::from(identity.end)];
            half.alone[at] += 1;
            half.alone_bytes[at] += u64::from(identity.payload_bytes);
        }
    }
}

fn conclude(places: &[Place; 2], flows: &BTreeMap<FlowKey, [Half; 2]>) -> Matching {
    let matched = |halves: &[Half; 2]| halves.iter().map(|half| half.differences.count()).sum::<u64>();
    let mut ranked: Vec<_> = flows.iter().collect();
    ranked.sort_by_key(|(key, halves)| (std::cmp::Reverse(matched(halves)), **key));
    Matching {
        schema_version: longfat_schema::SCHEMA_VERSION,
        packets: [places[0].packets, places[1].packets],
        matched_packets: flows.values().map(matched).sum(),
        flows: ranked.into_iter().map(|(key, halves)| flow(key, halves)).collect(),
    }
}

fn flow(key: &FlowKey, halves: &[Half; 2]) -> FlowMatch {
    let medians = [0, 1].map(|end: usize| halves[end].differences.median_ns());
    // The end whose packets show the greater difference is on the side of the first place.
    let (near, is_known) = match medians {
        [Some(low), Some(high)] => (usize::from(high > low), true),
        [None, Some(_)] => (1, false),
        _ => (0, false),
    };
    let (out, back) = (&halves[near].differences, &halves[1 - near].differences);
    let us = |ns: i64| ns as f64 / 1e3;
    let directions = [(near, true), (1 - near, false)];
    FlowMatch {
        least_round_trip_us: is_known.then(|| us(out.least_ns.saturating_sub(back.most_ns))),
        clock_difference_us: is_known.then(|| (us(out.least_ns) + us(back.most_ns)) / 2.0),
        repacked: halves.iter().any(|half| half.alone_bytes.iter().all(|bytes| *bytes > 0)),
        directions: directions.map(|(end, forth)| direction(key, end, forth, &halves[end])).to_vec(),
    }
}

fn direction(key: &FlowKey, end: usize, first_to_second: bool, half: &Half) -> DirectionMatch {
    let (earlier, later) = if first_to_second { (0, 1) } else { (1, 0) };
    let (gap_us, compressed_share) = half.data.conclude(earlier, later);
    let (ack_gap_us, compressed_ack_share) = half.acks.conclude(earlier, later);
    DirectionMatch {
        from: key.end(end),
        to: key.end(1 - end),
        first_to_second,
        matched_packets: half.differences.count(),
        lost_packets: half.alone[earlier],
        lost_bytes: half.alone_bytes[earlier],
        unseen_before_packets: half.alone[later],
        delay_above_least_us: above_least_us(&half.differences, first_to_second),
        gap_us,
        compressed_share,
        ack_gap_us,
        compressed_ack_share,
    }
}

/// Quantiles 0.5, 0.95, 0.99 of what is kept, and the greatest of all.
fn above_least_us(differences: &Differences, first_to_second: bool) -> [f64; 4] {
    let Differences { least_ns, most_ns, .. } = *differences;
    let above = |ns: i64| if first_to_second { ns - least_ns } else { most_ns - ns };
    let mut delays: Vec<i64> = differences.kept_ns.kept().map(above).collect();
    if delays.is_empty() {
        return [0.0; 4];
    }
    delays.sort_unstable();
    let at = |quantile: f64| delays[((delays.len() - 1) as f64 * quantile) as usize] as f64 / 1e3;
    [at(0.5), at(0.95), at(0.99), (most_ns - least_ns) as f64 / 1e3]
}

/// For people.
pub fn text(matching: &Matching) -> String {
    use std::fmt::Write as _;
    let [first, second] = matching.packets;
    let mut out = format!(
        "{first} and {second} TCP packets, {} of them in both, {} flows\n",
        matching.matched_packets,
        matching.flows.len()
    );
    for flow in matching.flows.iter().take(20) {
        let round_trip = flow.least_round_trip_us.map_or("?".to_owned(), |us| format!("{:.3} ms", us / 1e3));
        let clocks = flow.clock_difference_us.map_or("?".to_owned(), |us| format!("{:.3} ms", us / 1e3));
        let _ = writeln!(
            out,
            "\nat least {round_trip} there and back; the second clock is ahead by {clocks} if both ways are alike"
        );
        if flow.repacked {
            let _ = writeln!(
                out,
                "  octets were packed anew between the places (offloads): what is called lost may not be"
            );
        }
        for one in &flow.directions {
            write_direction(&mut out, one);
        }
    }
    out
}

fn write_direction(out: &mut String, one: &DirectionMatch) {
    use std::fmt::Write as _;
    let [half, most, nearly_all, all] = one.delay_above_least_us.map(|us| us / 1e3);
    let _ = writeln!(
        out,
        "  {} > {}: {} matched, {} lost between ({} B), {} seen only behind\n    \
         delay above the least, ms: median {half:.3}, 95 % {most:.3}, 99 % {nearly_all:.3}, most {all:.3}",
        one.from, one.to, one.matched_packets, one.lost_packets, one.lost_bytes, one.unseen_before_packets
    );
    for (what, gap_us, share) in [
        ("data packets", one.gap_us, one.compressed_share),
        ("pure ACKs", one.ack_gap_us, one.compressed_ack_share),
    ] {
        if let ([Some(before), Some(behind)], Some(share)) = (gap_us, share) {
            let _ = writeln!(
                out,
                "    between {what}, median: {before:.1} us before, {behind:.1} us behind; {:.1} % of pairs pushed together",
                share * 100.0
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_waits_however_many_others_are_matched_meanwhile_and_those_take_no_room() {
        let identity = |number: u32| {
            Identity::of(&Segment { sequence: number, acknowledgement: 7, ..Segment::default() })
        };
        let mut place = Place::default();
        place.wait(identity(0), 0);
        for number in 1..=(MOST_WAITING as u32 + 10) {
            place.newest_ns = i64::from(number);
            place.wait(identity(number), place.newest_ns);
            assert_eq!(place.take(&identity(number)), Some(place.newest_ns));
            assert_eq!(place.give_up(false), []);
        }
        assert!(place.order.len() <= SLACK + 2, "{}", place.order.len());
        assert_eq!(place.take(&identity(0)), Some(0));
        assert_eq!(place.waiting_packets, 0);
    }
}
