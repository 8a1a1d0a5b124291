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
    clock::{Clock, ClockStep, Leap, Passed, STEP_NS},
    decode::Decoded,
    flow::{histogram::Histogram, thinned::Thinned},
    segment::{FlowKey, Segment, option},
    segments::Segments,
};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A packet that has not come to the other place this much later, by its own clock, will not.
const EXPECTED_NS: i64 = 30_000_000_000;
/// Packets that wait for the other place at most: captures of different traffic have no match at all.
const MOST_WAITING: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };
/// Packets by which one capture may begin before the other, while nothing was matched yet.
const MOST_UNMATCHED: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };
/// Matched packets that may be remembered before they are cleared away.
const SLACK: usize = 4096;
/// Delays that are kept of one direction.
const MOST_DELAYS: usize = 1 << 16;
/// Packets a quarter as far apart as they were have been pushed together.
const COMPRESSION: i64 = 4;
/// Packets read while a silence of one place may be a step of its clock, and how far beyond it that place is read.
const MOST_DOUBTED: u64 = 1 << 16;
const LOOK_AHEAD_NS: i64 = 10_000_000_000;
/// Steps of a clock that the text shows.
const SHOWN_STEPS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Identity {
    key: FlowKey,
    end: u8,
    flags: u16,
    numbers: (u32, u32),
    timestamps: (u32, u32),
    payload_bytes: u32,
    /// Number of the SACK blocks, where they were kept: duplicate ACKs differ by nothing else.
    sacks: u32,
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
            sacks: if segment.carries(option::CUT) { 0 } else { segment.sacks_as_one() },
            ip_id: segment.ip_id,
        }
    }
}

/// When a packet passed a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    /// Without the steps of the clock.
    time_ns: i64,
    /// What that adds to the time in the file; tells what was before a step from what was behind it.
    offset_ns: i64,
}

/// Times from here on are of a clock that turned out to have been set forward by so much.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moved {
    from_ns: i64,
    by_ns: i64,
}

impl Moved {
    fn apply(&self, stamp: &mut Stamp) {
        if stamp.time_ns >= self.from_ns {
            stamp.time_ns = stamp.time_ns.saturating_sub(self.by_ns);
            stamp.offset_ns = stamp.offset_ns.saturating_sub(self.by_ns);
        }
    }
}

/// One place.
#[derive(Default)]
struct Place {
    clock: Clock,
    /// Time of the packet before.
    last_ns: Option<i64>,
    /// Packets of any kind.
    records: u64,
    waiting: HashMap<Identity, VecDeque<Stamp>>,
    /// How many those are.
    waiting_packets: usize,
    /// Packets that wait and others that were matched meanwhile, in the order of the file.
    order: VecDeque<(Stamp, Identity)>,
    /// Times of the first and the last packet that was matched: only between them do both captures speak of the same.
    matched_ns: Option<(i64, i64)>,
    /// Time of the first TCP packet.
    oldest_ns: Option<i64>,
    newest_ns: i64,
    packets: u64,
    is_over: bool,
}

impl Place {
    /// The time of the next record; and what that shows of those before, if they were of a clock set forward.
    fn time(&mut self, file_ns: i64) -> (i64, Option<Moved>) {
        let number = self.records;
        self.records += 1;
        let moved = self.last_ns.and_then(|last_ns| {
            let from_ns = self.clock.in_doubt_from_ns();
            let leap = self.clock.on_leap(number, file_ns, last_ns);
            self.follow(leap, from_ns)
        });
        let time_ns = self.clock.time(file_ns);
        self.last_ns = Some(time_ns);
        (time_ns, moved)
    }

    /// What a packet that both places have shows of a silence here.
    fn witness(&mut self, passed: Option<Passed>, time_ns: i64) -> Option<Moved> {
        let from_ns = self.clock.in_doubt_from_ns();
        let leap = self.clock.on_witness(passed, time_ns);
        self.follow(leap, from_ns)
    }

    fn follow(&mut self, leap: Leap, from_ns: Option<i64>) -> Option<Moved> {
        let (Leap::Earlier(by_ns), Some(from_ns)) = (leap, from_ns) else { return None };
        let moved = Moved { from_ns, by_ns };
        self.waiting.values_mut().flatten().for_each(|stamp| moved.apply(stamp));
        self.order.iter_mut().for_each(|(stamp, _)| moved.apply(stamp));
        let times = [Some(&mut self.newest_ns), self.last_ns.as_mut(), self.oldest_ns.as_mut()];
        for time_ns in times.into_iter().flatten() {
            *time_ns = time_ns.saturating_sub(if *time_ns >= from_ns { by_ns } else { 0 });
        }
        Some(moved)
    }

    /// Whether it was read far beyond a silence that may be a step.
    fn is_far_ahead(&self) -> bool {
        let from_ns = self.clock.in_doubt_from_ns();
        from_ns.is_some_and(|from_ns| self.newest_ns.saturating_sub(from_ns) > LOOK_AHEAD_NS)
    }

    fn take(&mut self, identity: &Identity) -> Option<Stamp> {
        let stamps = self.waiting.get_mut(identity)?;
        let stamp = stamps.pop_front();
        if stamps.is_empty() {
            self.waiting.remove(identity);
        }
        self.waiting_packets -= usize::from(stamp.is_some());
        stamp
    }

    fn wait(&mut self, identity: Identity, stamp: Stamp) {
        self.waiting.entry(identity).or_default().push_back(stamp);
        self.waiting_packets += 1;
        self.order.push_back((stamp, identity));
        // Behind one that waits for long, thousands that were matched must not pile up.
        if self.order.len() > 2 * self.waiting_packets + SLACK {
            let waiting = &self.waiting;
            self.order.retain(|(stamp, one)| waiting.get(one).is_some_and(|stamps| stamps.contains(stamp)));
        }
    }

    fn on_match(&mut self, time_ns: i64) {
        let (first, last) = self.matched_ns.get_or_insert((time_ns, time_ns));
        (*first, *last) = ((*first).min(time_ns), (*last).max(time_ns));
    }

    /// What waited for longer than this, or is more than so many: packets that only this place has, while both
    /// captured.
    fn give_up(&mut self, most_ns: i64, most_packets: usize) -> Vec<(Stamp, Identity)> {
        let mut alone = Vec::new();
        while let Some((stamp, identity)) = self.order.front().copied() {
            if self.waiting.get(&identity).is_some_and(|stamps| stamps.front() == Some(&stamp)) {
                let late = self.newest_ns.saturating_sub(stamp.time_ns) > most_ns;
                if !late && self.waiting_packets <= most_packets {
                    break;
                }
                self.take(&identity);
                let both =
                    self.matched_ns.is_some_and(|(first, last)| (first..=last).contains(&stamp.time_ns));
                alone.extend(both.then_some((stamp, identity)));
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

/// What is added to the times of both places: packets with the same are of the same two clocks.
type Epoch = [i64; 2];

/// One direction of a flow.
#[derive(Default)]
struct Half {
    /// Differences of the times, per pair of clocks.
    differences: Vec<(Epoch, Differences)>,
    /// The last packet at both places.
    last: Option<[Stamp; 2]>,
    /// Packets that only the first or only the second place has.
    alone: [u64; 2],
    /// Octets of the same.
    alone_bytes: [u64; 2],
    data: Pairs,
    /// Pure ACKs.
    acks: Pairs,
}

impl Half {
    fn on_match(&mut self, stamps: [Stamp; 2], payload_bytes: u32) {
        self.last = Some(stamps);
        let epoch = stamps.map(|stamp| stamp.offset_ns);
        let times_ns = stamps.map(|stamp| stamp.time_ns);
        let at = self.differences.iter().rposition(|(of, _)| *of == epoch).unwrap_or_else(|| {
            self.differences.push((epoch, Differences::default()));
            self.differences.len() - 1
        });
        self.differences[at].1.push(times_ns[1].saturating_sub(times_ns[0]));
        let pairs = if payload_bytes > 0 { &mut self.data } else { &mut self.acks };
        pairs.add(epoch, times_ns);
    }

    fn matched(&self) -> u64 {
        self.differences.iter().map(|(_, differences)| differences.count()).sum()
    }

    /// Between which times a packet of one place would have passed the other, as the others did; none where none did.
    /// The earliest counts at the beginning, the latest at the end: by the clocks of then.
    fn at_other(&self, at: usize, stamp: Stamp) -> Option<(i64, i64)> {
        let ((_, first), (_, last)) = (self.differences.first()?, self.differences.last()?);
        let time_ns = stamp.time_ns;
        Some(match at {
            0 => (time_ns.saturating_add(first.least_ns), time_ns.saturating_add(last.most_ns)),
            _ => (time_ns.saturating_sub(first.most_ns), time_ns.saturating_sub(last.least_ns)),
        })
    }

    fn of(&self, epoch: Epoch) -> Option<&Differences> {
        self.differences.iter().find(|(of, _)| *of == epoch).map(|(_, differences)| differences)
    }
}

/// Packets of one kind and the ones before them.
#[derive(Default)]
struct Pairs {
    /// Times of the last one at both places, and by which clocks.
    last_ns: Option<(Epoch, [i64; 2])>,
    /// Nanoseconds between the two.
    gaps: [Histogram; 2],
    /// Pairs that were closer at the first place, at the second.
    compressed: [u64; 2],
}

impl Pairs {
    fn add(&mut self, epoch: Epoch, times_ns: [i64; 2]) {
        let last = self.last_ns.replace((epoch, times_ns));
        // The time between two clocks is not known.
        let Some((_, last_ns)) = last.filter(|(of, _)| *of == epoch) else { return };
        let gaps = [0, 1].map(|place| times_ns[place].saturating_sub(last_ns[place]));
        for place in 0..2 {
            self.gaps[place].record(gaps[place].max(0) as u64);
            let pushed = gaps[place].saturating_mul(COMPRESSION) < gaps[1 - place];
            self.compressed[place] += u64::from(pushed);
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
    /// Steps of the clock of the first and of the second capture, the first 64 of each. Times behind one go on as if it
    /// had not been.
    pub clock_step_list: [Vec<ClockStep>; 2],
    /// Flows of which both have something, the greatest first.
    pub flows: Vec<FlowMatch>,
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowMatch {
    /// Least time from one place to the other and back; none when one direction alone was matched.
    pub least_round_trip_us: Option<f64>,
    /// Clock of the second place less that of the first, if the least delays of both directions are equal; before any
    /// step of either.
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
    /// Address of the sender.
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
    let mut matcher = Matcher::default();
    while let Some(at) = matcher.next_place() {
        match next_segment(&mut captures[at], &mut matcher, at)? {
            Some(segment) => matcher.on_segment(at, &segment),
            None => matcher.places[at].is_over = true,
        }
    }
    Ok(matcher.finish())
}

/// The next TCP packet of a place, with its time by that place's clock.
fn next_segment(
    capture: &mut impl Segments,
    matcher: &mut Matcher,
    at: usize,
) -> Result<Option<Segment>, CaptureError> {
    let mut segment = Segment::default();
    while let Some((file_ns, decoded)) = capture.next_segment(0, &mut segment)? {
        let (time_ns, moved) = matcher.places[at].time(file_ns);
        matcher.move_held(at, moved);
        if decoded == Decoded::Tcp {
            return Ok(Some(Segment { time_ns, ..segment }));
        }
    }
    Ok(None)
}

/// A packet of both places, while a silence of one may be a step of its clock.
struct Held {
    key: FlowKey,
    end: u8,
    stamps: [Stamp; 2],
    payload_bytes: u32,
}

#[derive(Default)]
struct Matcher {
    places: [Place; 2],
    flows: BTreeMap<FlowKey, [Half; 2]>,
    /// Roughly, time at the second place less that at the first.
    offset_ns: Option<i64>,
    held: Vec<Held>,
    /// TCP packets of both places when a silence came that may be a step.
    doubted_since: Option<[u64; 2]>,
}

impl Matcher {
    /// The place to read next: the one that is behind by its clock, as far as the difference of the clocks is known;
    /// while a clock is in doubt, each in turn.
    fn next_place(&mut self) -> Option<usize> {
        self.end_doubts();
        let places = &self.places;
        let is_behind = match (self.doubted_since, self.offset_ns) {
            (Some(since), _) => {
                let read = [0, 1].map(|at| places[at].packets - since[at]);
                let is_far = [0, 1].map(|at| places[at].is_far_ahead());
                if is_far[0] == is_far[1] { read[1] < read[0] } else { is_far[0] }
            }
            (None, Some(offset_ns)) => places[1].newest_ns.saturating_sub(offset_ns) < places[0].newest_ns,
            (None, None) => self.is_second_sought(),
        };
        match [places[0].is_over, places[1].is_over] {
            [true, true] => None,
            [true, false] => Some(1),
            [false, true] => Some(0),
            [false, false] => Some(usize::from(is_behind)),
        }
    }

    /// Whether the second place is to be read while nothing was matched yet. The place that is behind is, as if the
    /// clocks agreed: it may have begun long before. They may not, so the beginning of the other is read, too, and
    /// waits.
    fn is_second_sought(&self) -> bool {
        let ahead = usize::from(self.places[1].newest_ns > self.places[0].newest_ns);
        let (place, behind) = (&self.places[ahead], &self.places[1 - ahead]);
        let has_more = place.packets < behind.packets && place.waiting_packets < MOST_UNMATCHED;
        (ahead == 1) == has_more
    }

    /// A silence that nothing has shown to be a step for so long is none. Before any match nothing can.
    fn end_doubts(&mut self) {
        if self.places.iter().all(|place| place.clock.in_doubt_from_ns().is_none()) {
            self.doubted_since = None;
            return self.settle();
        }
        let packets = self.places.each_ref().map(|place| place.packets);
        let since = *self.doubted_since.get_or_insert(packets);
        let doubted = packets.iter().sum::<u64>() - since.iter().sum::<u64>();
        if doubted > MOST_DOUBTED || self.offset_ns.is_none() {
            for place in &mut self.places {
                place.witness(Some(Passed::All), place.newest_ns);
            }
        }
    }

    fn move_held(&mut self, at: usize, moved: Option<Moved>) {
        if let Some(moved) = moved {
            self.held.iter_mut().for_each(|held| moved.apply(&mut held.stamps[at]));
        }
    }

    /// Both places have what was held back, by clocks that are known now.
    fn settle(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.settle_one(held);
        }
    }

    fn settle_one(&mut self, Held { key, end, stamps, payload_bytes }: Held) {
        (0..2).for_each(|place| self.places[place].on_match(stamps[place].time_ns));
        self.flows.entry(key).or_default()[usize::from(end)].on_match(stamps, payload_bytes);
    }

    fn on_segment(&mut self, at: usize, segment: &Segment) {
        let (identity, time_ns) = (Identity::of(segment), segment.time_ns);
        let place = &mut self.places[at];
        let stamp = Stamp { time_ns, offset_ns: place.clock.offset_ns() };
        (place.newest_ns, place.packets) = (place.newest_ns.max(time_ns), place.packets + 1);
        place.oldest_ns = Some(place.oldest_ns.map_or(time_ns, |oldest_ns| oldest_ns.min(time_ns)));
        match self.places[1 - at].take(&identity) {
            None => self.places[at].wait(identity, stamp),
            Some(other) => {
                let stamps = if at == 0 { [stamp, other] } else { [other, stamp] };
                self.offset_ns.get_or_insert(stamps[1].time_ns.saturating_sub(stamps[0].time_ns));
                let Segment { key, end, payload_bytes, .. } = *segment;
                let held = Held { key, end, stamps, payload_bytes };
                // What passed before a silence is what the packets behind it are compared with.
                let is_doubted = |at: usize| {
                    let from_ns = self.places[at].clock.in_doubt_from_ns();
                    from_ns.is_some_and(|from_ns| stamps[at].time_ns >= from_ns)
                };
                if is_doubted(0) || is_doubted(1) {
                    self.held.push(held);
                    self.ask(key, end, stamps);
                } else {
                    self.settle_one(held);
                }
            }
        }
        let is_in_doubt = self.places.iter().any(|place| place.clock.in_doubt_from_ns().is_some());
        if !is_in_doubt {
            self.settle();
        }
        let (most_ns, most_packets) = match self.offset_ns {
            None => (i64::MAX, MOST_UNMATCHED),
            Some(_) if is_in_doubt => (i64::MAX, MOST_WAITING),
            Some(_) => (EXPECTED_NS, MOST_WAITING),
        };
        self.give_up(at, most_ns, most_packets);
    }

    /// Whether a packet of both places shows that a silence of one was a step of its clock, or none.
    fn ask(&mut self, key: FlowKey, end: u8, stamps: [Stamp; 2]) {
        let Some(last) = self.flows.get(&key).and_then(|halves| halves[usize::from(end)].last) else {
            return;
        };
        let passed = [0, 1].map(|at: usize| stamps[at].time_ns.saturating_sub(last[at].time_ns));
        for at in 0..2 {
            let place = &mut self.places[at];
            let Some(from_ns) = place.clock.in_doubt_from_ns() else { continue };
            if stamps[at].time_ns < from_ns || last[at].time_ns >= from_ns {
                continue;
            }
            let less_ns = passed[at].saturating_sub(passed[1 - at]);
            let told = if less_ns < STEP_NS { Passed::All } else { Passed::LessForEnd(key, end, less_ns) };
            let moved = place.witness(Some(told), place.newest_ns);
            self.move_held(at, moved);
        }
    }

    /// Gives up what waited for longer than this, or is more than so many.
    fn give_up(&mut self, at: usize, most_ns: i64, most_packets: usize) {
        for (stamp, identity) in self.places[at].give_up(most_ns, most_packets) {
            let other = &self.places[1 - at];
            // A flow of which nothing was matched is none that both places have.
            if let Some(halves) = self.flows.get_mut(&identity.key) {
                let half = &mut halves[usize::from(identity.end)];
                // What was on its way when the other capture began or ended is not lost.
                let is_late = half.at_other(at, stamp).is_some_and(|(earliest_ns, latest_ns)| {
                    other.oldest_ns.is_none_or(|oldest_ns| earliest_ns < oldest_ns)
                        || latest_ns > other.newest_ns
                });
                if !is_late {
                    half.alone[at] += 1;
                    half.alone_bytes[at] += u64::from(identity.payload_bytes);
                }
            }
        }
    }

    fn finish(mut self) -> Matching {
        self.settle();
        (0..2).for_each(|at| self.give_up(at, i64::MAX, 0));
        let matched = |halves: &[Half; 2]| halves.iter().map(Half::matched).sum::<u64>();
        let mut ranked: Vec<_> = self.flows.iter().collect();
        ranked.sort_by_key(|(key, halves)| (std::cmp::Reverse(matched(halves)), **key));
        Matching {
            schema_version: longfat_schema::SCHEMA_VERSION,
            packets: self.places.each_ref().map(|place| place.packets),
            matched_packets: self.flows.values().map(matched).sum(),
            clock_step_list: self.places.each_ref().map(|place| place.clock.steps.clone()),
            flows: ranked.into_iter().map(|(key, halves)| flow(key, halves)).collect(),
        }
    }
}

fn flow(key: &FlowKey, halves: &[Half; 2]) -> FlowMatch {
    let near = near_end(halves);
    let (out, back) = (&halves[near], &halves[1 - near]);
    // The least that goes forth, and the least that comes back, by the same two clocks.
    let both = out.differences.iter().filter_map(|(epoch, out)| Some((out, back.of(*epoch)?)));
    let us = |ns: i64| ns as f64 / 1e3;
    let directions = [(near, true), (1 - near, false)];
    FlowMatch {
        clock_difference_us: both
            .clone()
            .next()
            .map(|(out, back)| (us(out.least_ns) + us(back.most_ns)) / 2.0),
        least_round_trip_us: both
            .clone()
            .map(|(out, back)| out.least_ns.saturating_sub(back.most_ns))
            .min()
            .map(us),
        repacked: halves.iter().any(|half| half.alone_bytes.iter().all(|bytes| *bytes > 0)),
        directions: directions.map(|(end, forth)| direction(key, end, forth, &halves[end])).to_vec(),
    }
}

/// The end whose packets show the greater difference is on the side of the first place. Of one direction alone that is
/// not known, and its sender is taken for it.
fn near_end(halves: &[Half; 2]) -> usize {
    let both = halves[0].differences.iter().filter_map(|(epoch, low)| Some((low, halves[1].of(*epoch)?)));
    match both.max_by_key(|(low, high)| low.count().min(high.count())) {
        Some((low, high)) => usize::from(high.median_ns() > low.median_ns()),
        None => usize::from(halves[0].differences.is_empty()),
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
        matched_packets: half.matched(),
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

/// Quantiles 0.5, 0.95, 0.99 of what is kept, and the greatest of all: above the least by the same two clocks.
fn above_least_us(all: &[(Epoch, Differences)], first_to_second: bool) -> [f64; 4] {
    let mut delays: Vec<i64> = Vec::new();
    for (_, Differences { least_ns, most_ns, kept_ns }) in all {
        let above = |ns: i64| {
            if first_to_second { ns.saturating_sub(*least_ns) } else { most_ns.saturating_sub(ns) }
        };
        delays.extend(kept_ns.kept().map(above));
    }
    if delays.is_empty() {
        return [0.0; 4];
    }
    delays.sort_unstable();
    let most_ns = all.iter().map(|(_, one)| one.most_ns.saturating_sub(one.least_ns)).max().unwrap_or(0);
    let at = |quantile: f64| delays[((delays.len() - 1) as f64 * quantile) as usize] as f64 / 1e3;
    [at(0.5), at(0.95), at(0.99), most_ns as f64 / 1e3]
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
    for (steps, which) in matching.clock_step_list.iter().zip(["first", "second"]) {
        for step in steps.iter().take(SHOWN_STEPS) {
            let _ = writeln!(out, "the clock of the {which} capture was set {step}");
        }
        let more = steps.len().saturating_sub(SHOWN_STEPS);
        if more > 0 {
            let _ = writeln!(out, "  … and {more} times more");
        }
        if !steps.is_empty() {
            let _ = writeln!(out, "  delays before and behind that are each told above their own least");
        }
    }
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
    use crate::capture::{Damage, InterfaceStatistics};
    use proptest::prelude::*;

    /// Packets by their times and numbers.
    struct Made(std::vec::IntoIter<(i64, u32)>);

    impl Segments for Made {
        fn next_time_ns(&mut self) -> Result<Option<i64>, CaptureError> {
            Ok(self.0.as_slice().first().map(|(time_ns, _)| *time_ns))
        }

        fn next_segment(
            &mut self,
            _: u64,
            into: &mut Segment,
        ) -> Result<Option<(i64, Decoded)>, CaptureError> {
            let Some((time_ns, number)) = self.0.next() else { return Ok(None) };
            *into = Segment { time_ns, sequence: number, end: (number % 2) as u8, ..Segment::default() };
            Ok(Some((time_ns, Decoded::Tcp)))
        }

        fn offset(&self) -> u64 {
            0
        }

        fn damages(&self) -> &[Damage] {
            &[]
        }

        fn damage_count(&self) -> u64 {
            0
        }

        fn statistics(&self) -> Vec<InterfaceStatistics> {
            Vec::new()
        }
    }

    proptest! {
        #![proptest_config(crate::cases::cases(512))]

        #[test]
        fn whatever_the_times_are_each_packet_is_matched_once_at_most(
            captures in prop::array::uniform2(prop::collection::vec(
                (prop_oneof![1 => any::<i64>(), 6 => 0..36_000 * STEP_NS, 6 => 0..STEP_NS], 0u32..40),
                0..120,
            )),
        ) {
            let common: usize = (0..40)
                .map(|number| {
                    let of = |packets: &Vec<(i64, u32)>| packets.iter().filter(|(_, one)| *one == number).count();
                    of(&captures[0]).min(of(&captures[1]))
                })
                .sum();
            let packets = captures.each_ref().map(|packets| packets.len() as u64);
            let found = matching(&mut captures.map(|packets| Made(packets.into_iter()))).unwrap();
            prop_assert_eq!(found.packets, packets);
            prop_assert!(found.matched_packets <= common as u64);
            for one in found.flows.iter().flat_map(|flow| &flow.directions) {
                prop_assert!(one.delay_above_least_us.is_sorted() && one.delay_above_least_us[0] >= 0.0, "{one:?}");
            }
            prop_assert!(!text(&found).is_empty());
        }
    }

    #[test]
    fn a_packet_waits_however_many_others_are_matched_meanwhile_and_those_take_no_room() {
        let identity = |number: u32| {
            Identity::of(&Segment { sequence: number, acknowledgement: 7, ..Segment::default() })
        };
        let mut place = Place::default();
        let at = |time_ns| Stamp { time_ns, offset_ns: 0 };
        place.wait(identity(0), at(0));
        for number in 1..=(MOST_WAITING as u32 + 10) {
            place.newest_ns = i64::from(number);
            let stamp = at(place.newest_ns);
            place.wait(identity(number), stamp);
            assert_eq!(place.take(&identity(number)), Some(stamp));
            assert_eq!(place.give_up(EXPECTED_NS, MOST_WAITING), []);
        }
        assert!(place.order.len() <= SLACK + 2, "{}", place.order.len());
        assert_eq!(place.take(&identity(0)), Some(at(0)));
        assert_eq!(place.waiting_packets, 0);
    }
}
