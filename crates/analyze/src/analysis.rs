//! All of it: captures in, flows out.
//!
//! Packets are numbered in the order of arrival and then put into the order of their times, within a window of
//! [`SORTED`] packets and [`LATE_NS`]: captures that several cores feed are out of order by microseconds, but what is
//! further back is not undone. Behind a clock that was set, times go on as if it had not been: [`crate::clock`].

use crate::{
    Settings,
    capture::{Damage, InterfaceStatistics, reader::CaptureError},
    clock::{Clock, ClockStep, Leap, STEP_NS},
    decode::{Decoded, Unfollowed},
    merge::{Merge, Turn},
    report::FlowReport,
    segment::Segment,
    segments::Segments,
    table::{FlowTable, Retired},
};
use serde::Serialize;

/// A packet is sorted among this many before it.
pub const SORTED: usize = 128;
/// A packet whose time is further back than this stays where it is.
pub const LATE_NS: i64 = 10_000_000;
/// Segments read before some are handed on: few enough to be in the nearest cache then.
const PENDING: usize = 2 * SORTED;
/// Packets between words of the progress.
const TOLD_PACKETS: u64 = 1 << 16;
/// Segments between looks for flows that are over, and the time of the capture that must have passed too.
const SWEEP_SEGMENTS: u64 = 65_536;
const SWEEP_NS: i64 = 10_000_000_000;

/// What the capture was like.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CaptureReport {
    /// Packets read.
    pub packets: u64,
    /// Octets read, after decompression.
    pub bytes: u64,
    /// Time of the first packet, nanoseconds since 1970.
    pub start_ns: i64,
    /// Between the least and the greatest time, without the steps of the clock.
    pub duration_s: f64,
    /// TCP segments.
    pub tcp_packets: u64,
    /// Not TCP.
    pub other_packets: u64,
    /// What those, and packets of links that are not read, were; the most first.
    pub not_looked_into: Vec<NotLookedInto>,
    /// Too little was kept to follow TCP.
    pub truncated_packets: u64,
    /// IP fragments: TCP is not followed through them.
    pub fragments: u64,
    /// Headers that contradict themselves.
    pub malformed_packets: u64,
    /// Packets of link types that are not known here.
    pub unknown_link_packets: u64,
    /// Packets whose time is before that of the packet before.
    pub backwards_packets: u64,
    /// By how much at most.
    pub most_backwards_us: f64,
    /// TCP segments that came too late among those of later times to be put before them.
    pub unsorted_packets: u64,
    /// Times the clock was set, back or forward.
    pub clock_steps: u64,
    /// The first 64 of them. Times behind one go on as if it had not been.
    pub clock_step_list: Vec<ClockStep>,
    /// Times that an earlier clock was gone back to: the records are of several.
    pub clock_returns: u64,
    /// Places of damage.
    pub damage_count: u64,
    /// The first hundred of each file.
    pub damages: Vec<Damage>,
    /// What the files say of losses while capturing.
    pub interfaces: Vec<InterfaceStatistics>,
}

/// Packets of one kind that was not looked into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotLookedInto {
    /// Name of the protocol.
    pub what: String,
    /// Number of packets.
    pub packets: u64,
}

/// Kinds that are told apart: more are a capture made to exhaust memory.
const MOST_KINDS: usize = 1 << 10;

impl CaptureReport {
    #[cold]
    fn on_backwards(&mut self, by_ns: i64) {
        self.backwards_packets += 1;
        self.most_backwards_us = self.most_backwards_us.max(by_ns as f64 / 1e3);
    }
}

/// Sums over all flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Number of flows.
    pub flows: u64,
    /// Flows that are not reported one by one.
    pub flows_left_out: u64,
    /// Payload of all flows, in octets.
    pub payload_bytes: u64,
    /// Segments sent: those with payload, a SYN or a FIN.
    pub sent_segments: u64,
    /// Segments that were sent again.
    pub resent_segments: u64,
    /// SYNs among the segments sent again, which carry no payload.
    pub resent_syns: u64,
    /// Payload sent again.
    pub resent_bytes: u64,
    /// Timeouts, those of SYNs among them.
    pub timeouts: u64,
    /// Packets that the path damaged: their checksum is wrong.
    pub damaged_packets: u64,
    /// Flows whose SYN was refused.
    pub flows_refused: u64,
    /// Flows whose SYN was not answered.
    pub flows_unanswered: u64,
    /// Flows whose client never acknowledged the answer to its SYN.
    pub flows_not_completed: u64,
    /// Flows taken for over while they may have gone on, since more were live at once than memory is for.
    pub flows_cut: u64,
}

/// What an analysis found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Schema version of this output; readers refuse a newer one.
    pub schema_version: u32,
    /// The capture.
    pub capture: CaptureReport,
    /// All flows.
    pub totals: Totals,
    /// Each flow, the greatest first.
    pub flows: Vec<FlowReport>,
}

/// Reads captures as if they were one, in the order of their packets' times.
pub fn analyze<C: Segments>(
    mut captures: Vec<C>,
    settings: Settings,
    progress: impl FnMut(u64),
) -> Result<Analysis, CaptureError> {
    let firsts_ns: Vec<_> = captures.iter_mut().map(Segments::next_time_ns).collect::<Result<_, _>>()?;
    let epoch_ns = firsts_ns.iter().flatten().min().copied().unwrap_or(0);
    let settings = Settings { epoch_ns, ..settings };
    let mut intake = Intake::new(FlowTable::new(settings), progress);
    intake.read_all(&mut captures, &firsts_ns)?;
    let (report, flows) = (intake.report, intake.flows.finish());
    Ok(conclude(report, flows, &settings))
}

fn conclude(mut capture: CaptureReport, mut retired: Retired, settings: &Settings) -> Analysis {
    retired.prune(settings.most_flows);
    let [flows_refused, flows_unanswered, flows_not_completed] = retired.unopened;
    let totals = Totals {
        flows: retired.flows,
        flows_left_out: retired.flows - retired.reports.len() as u64,
        payload_bytes: retired.payload_bytes,
        sent_segments: retired.sent_segments,
        resent_segments: retired.resent_segments,
        resent_syns: retired.resent_syns,
        damaged_packets: retired.damaged_packets,
        resent_bytes: retired.resent_bytes,
        timeouts: retired.timeouts,
        flows_refused,
        flows_unanswered,
        flows_not_completed,
        flows_cut: retired.cut_flows,
    };
    capture.start_ns = settings.epoch_ns;
    Analysis { schema_version: longfat_schema::SCHEMA_VERSION, capture, totals, flows: retired.reports }
}

/// Whether the next packet of a capture is later than this, or there is none.
#[inline]
fn is_over(capture: &mut impl Segments, until_ns: i64) -> Result<bool, CaptureError> {
    // Without others nothing is; and the next packet need not be looked for.
    Ok(until_ns < i64::MAX && capture.next_time_ns()?.is_none_or(|next_ns| next_ns > until_ns))
}

/// Where the `number`th segment from `first` on stands in the ring.
#[inline]
fn place(first: usize, number: usize) -> usize {
    (first + number) % PENDING
}

/// From packets to sorted segments.
struct Intake<P> {
    flows: FlowTable,
    progress: P,
    report: CaptureReport,
    /// A ring: `filled` segments from `first` on are not handed on yet, and there is room for one more.
    pending: Box<[Segment; PENDING]>,
    first: usize,
    filled: usize,
    unsorted: bool,
    newest_ns: i64,
    /// Time of the packet before.
    last_ns: i64,
    clock: Clock,
    /// By how much the clock turned out to have been set forward in this turn.
    earlier_ns: i64,
    /// A time later than the one before by this, or earlier, is looked at.
    patience_ns: u64,
    /// Least, and greatest before the time went back.
    span_ns: (i64, i64),
    handed_on: u64,
    swept: (u64, i64),
    others: Vec<(Unfollowed, u64)>,
}

impl<P: FnMut(u64)> Intake<P> {
    fn new(flows: FlowTable, progress: P) -> Intake<P> {
        Intake {
            flows,
            progress,
            report: CaptureReport::default(),
            pending: Box::new([Segment::default(); PENDING]),
            first: 0,
            filled: 0,
            unsorted: false,
            newest_ns: i64::MIN,
            last_ns: i64::MAX,
            clock: Clock::default(),
            earlier_ns: 0,
            patience_ns: STEP_NS as u64,
            span_ns: (i64::MAX, i64::MIN),
            handed_on: 0,
            swept: (0, i64::MIN),
            others: Vec::new(),
        }
    }

    fn read_all<C: Segments>(
        &mut self,
        captures: &mut [C],
        firsts_ns: &[Option<i64>],
    ) -> Result<(), CaptureError> {
        let mut merge = Merge::new(firsts_ns);
        while let Some(turn) = merge.take() {
            let capture = &mut captures[turn.capture];
            self.read_turn(capture, turn)?;
            merge.put_back(turn, capture.next_time_ns()?, self.clock.offset_ns(), self.earlier_ns);
            if self.report.packets % TOLD_PACKETS == 1 {
                (self.progress)(captures.iter().map(Segments::offset).sum());
            }
        }
        let mut order: Vec<usize> = (0..captures.len()).collect();
        order.sort_by_key(|number| firsts_ns[*number].unwrap_or(i64::MAX));
        order.into_iter().for_each(|number| self.conclude(&captures[number]));
        self.hand_on(self.filled);
        self.note_last();
        let (least, most) = self.span_ns;
        self.others.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
        let named =
            self.others.iter().map(|(why, packets)| NotLookedInto { what: why.name(), packets: *packets });
        self.report.not_looked_into = named.collect();
        self.report.duration_s = most.saturating_sub(least).max(0) as f64 / 1e9;
        self.report.clock_steps = self.clock.step_count;
        self.report.clock_returns = self.clock.returns;
        self.report.clock_step_list = std::mem::take(&mut self.clock.steps);
        Ok(())
    }

    /// What is told of a capture that was read.
    fn conclude(&mut self, capture: &impl Segments) {
        self.report.bytes += capture.offset();
        self.report.damage_count += capture.damage_count();
        self.report.damages.extend_from_slice(capture.damages());
        self.report.interfaces.extend(capture.statistics());
    }

    /// Reads on in a capture while its turn lasts.
    fn read_turn<C: Segments>(&mut self, capture: &mut C, turn: Turn) -> Result<(), CaptureError> {
        if turn.offset_ns != self.clock.offset_ns() {
            self.clock.resume(turn.offset_ns);
            self.tell_clock();
        }
        if turn.is_first {
            self.note_last();
        }
        // Above every time until there is one.
        let last_ns = if turn.is_first { i64::MAX } else { self.last_ns };
        self.earlier_ns = 0;
        self.last_ns = self.read(capture, turn, last_ns)?;
        Ok(())
    }

    /// The last packet before another capture begins, or at the end, may have the greatest time.
    fn note_last(&mut self) {
        if self.last_ns < i64::MAX {
            self.span_ns.1 = self.span_ns.1.max(self.last_ns);
        }
    }

    /// Reads until the turn is over, which it also is when the clock was set or something is to be told; gives back the
    /// time of the last packet. `last_ns`: of the one before.
    fn read<C: Segments>(
        &mut self,
        capture: &mut C,
        turn: Turn,
        mut last_ns: i64,
    ) -> Result<i64, CaptureError> {
        let mut until_ns = turn.until_ns;
        loop {
            let index = self.report.packets;
            // There is always room: what fills it is handed on at once.
            let into = &mut self.pending[place(self.first, self.filled)];
            let (file_ns, decoded) = match capture.next_usual(index, until_ns, into) {
                Some(file_ns) => (file_ns, Decoded::Tcp),
                None if is_over(capture, until_ns)? => break,
                None => match capture.next_segment(index, into)? {
                    Some(found) => found,
                    None => break,
                },
            };
            self.report.packets += 1;
            let mut time_ns = self.clock.time(file_ns);
            // What is earlier is very much later, without a sign.
            if time_ns.wrapping_sub(last_ns) as u64 >= self.patience_ns {
                time_ns = self.on_leap(index, last_ns, file_ns, decoded);
                if self.is_set(turn) {
                    until_ns = i64::MIN;
                }
            }
            last_ns = time_ns;
            if time_ns != file_ns {
                self.pending[place(self.first, self.filled)].time_ns = time_ns;
            }
            match decoded {
                Decoded::Tcp => self.on_segment(time_ns),
                other => self.on_other_packet(other),
            }
            if index.is_multiple_of(TOLD_PACKETS) {
                break;
            }
        }
        Ok(last_ns)
    }

    /// Whether the clock was found to have been set in this turn.
    fn is_set(&self, turn: Turn) -> bool {
        self.clock.offset_ns() != turn.offset_ns || self.earlier_ns > 0
    }

    /// A packet's time is before that of the one before, or long behind it, or it is the first of its capture. Gives
    /// back the time it has.
    #[cold]
    fn on_leap(&mut self, packet: u64, last_ns: i64, file_ns: i64, decoded: Decoded) -> i64 {
        let leap = match last_ns {
            i64::MAX => self.clock.begin_file(file_ns, self.span_ns.1),
            _ => self.clock.on_leap(packet, file_ns, last_ns),
        };
        let mut last_ns = last_ns - self.follow(leap);
        let mut time_ns = self.clock.time(file_ns);
        if self.clock.in_doubt_from_ns().is_some() {
            let leap = self.ask_flows(time_ns, decoded);
            last_ns -= self.follow(leap);
            time_ns = self.clock.time(file_ns);
        }
        self.patience_ns = self.clock.patience_ns();
        self.on_earlier(last_ns, time_ns);
        time_ns
    }

    /// Whether less time has passed for a flow than the clock says, as this packet of it shows.
    fn ask_flows(&mut self, time_ns: i64, decoded: Decoded) -> Leap {
        let segment = Segment { time_ns, ..self.pending[place(self.first, self.filled)] };
        let passed = (decoded == Decoded::Tcp).then(|| self.flows.time_passed(&segment)).flatten();
        self.clock.on_witness(passed, time_ns)
    }

    /// Does what a leap asks for, and says by how much what is pending is earlier.
    fn follow(&mut self, leap: Leap) -> i64 {
        match leap {
            Leap::None => return 0,
            Leap::Behind | Leap::Stepped => {
                self.hand_on(self.filled);
                self.newest_ns = i64::MIN;
            }
            Leap::Earlier(by_ns) => {
                self.earlier_ns = self.earlier_ns.saturating_add(by_ns);
                let held = (0..self.filled).map(|number| place(self.first, number));
                held.for_each(|at| self.pending[at].time_ns -= by_ns);
                self.newest_ns = self.newest_ns.saturating_sub(by_ns);
            }
        }
        if leap != Leap::Behind {
            self.flows.forget_times();
        }
        self.tell_clock();
        if let Leap::Earlier(by_ns) = leap { by_ns } else { 0 }
    }

    /// Tells the flows whose times come now, where there are several clocks.
    fn tell_clock(&mut self) {
        if self.clock.returns > 0 {
            self.flows.set_clock(self.clock.offset_ns());
        }
    }

    /// Notes a time that is before the last one, or is the first of a capture.
    fn on_earlier(&mut self, last_ns: i64, time_ns: i64) {
        let (least, most) = self.span_ns;
        if last_ns == i64::MAX {
            self.span_ns = (least.min(time_ns), most);
        } else if time_ns < last_ns {
            self.span_ns = (least.min(time_ns), most.max(last_ns));
            self.report.on_backwards(last_ns.saturating_sub(time_ns));
        }
    }

    /// Not a TCP segment.
    #[inline(never)]
    fn on_other_packet(&mut self, decoded: Decoded) {
        match decoded {
            Decoded::Tcp => {}
            Decoded::TooBig { mtu_bytes } => {
                self.report.other_packets += 1;
                let Segment { key, end, .. } = self.pending[place(self.first, self.filled)];
                self.hand_on(self.filled);
                self.flows.on_too_big(key, end, mtu_bytes);
            }
            Decoded::Not(Unfollowed::Other(protocol)) => {
                self.report.other_packets += 1;
                self.on_other(Unfollowed::Other(protocol));
            }
            Decoded::Not(Unfollowed::Truncated) => self.report.truncated_packets += 1,
            Decoded::Not(Unfollowed::Fragment) => self.report.fragments += 1,
            Decoded::Not(Unfollowed::Malformed) => self.report.malformed_packets += 1,
            Decoded::Not(why @ Unfollowed::UnknownLink(_)) => {
                self.report.unknown_link_packets += 1;
                self.on_other(why);
            }
        }
    }

    #[cold]
    fn on_other(&mut self, why: Unfollowed) {
        if let Some((_, packets)) = self.others.iter_mut().find(|(known, _)| *known == why) {
            *packets += 1;
        } else if self.others.len() < MOST_KINDS {
            self.others.push((why, 1));
        }
    }

    /// The one behind those that are pending.
    #[inline]
    fn on_segment(&mut self, time_ns: i64) {
        self.report.tcp_packets += 1;
        if time_ns < self.newest_ns {
            self.on_backwards(time_ns);
        } else {
            self.newest_ns = time_ns;
        }
        self.filled += 1;
        if self.filled == PENDING {
            self.hand_on(PENDING - SORTED);
        }
    }

    #[cold]
    fn on_backwards(&mut self, time_ns: i64) {
        if time_ns < self.newest_ns.saturating_sub(LATE_NS) {
            self.report.unsorted_packets += 1;
            self.hand_on(self.filled);
            self.newest_ns = time_ns;
        }
        self.unsorted = true;
    }

    /// Hands the first `count` on, in the order of their times.
    fn hand_on(&mut self, count: usize) {
        let Some(last) = count.checked_sub(1) else { return };
        if self.unsorted {
            self.sort();
        }
        let last_ns = self.pending[place(self.first, last)].time_ns;
        let end = (self.first + count).min(PENDING);
        for part in [self.first..end, 0..self.first + count - end] {
            self.pending[part].iter().for_each(|segment| self.flows.on_segment(segment));
        }
        self.first = place(self.first, count);
        self.filled -= count;
        self.handed_on += count as u64;
        let (at, swept_ns) = self.swept;
        if self.handed_on - at >= SWEEP_SEGMENTS && last_ns.abs_diff(swept_ns) >= SWEEP_NS as u64 {
            self.flows.sweep(last_ns);
            self.swept = (self.handed_on, last_ns);
        }
    }

    /// Sorts what is pending; of equal times, what came first. Nearly all are where they belong: only the others are
    /// moved.
    #[cold]
    fn sort(&mut self) {
        let at = |number| place(self.first, number);
        let times = (0..self.filled).map(|number| self.pending[at(number)].time_ns);
        let mut order: Vec<(i64, usize)> = times.zip(0..).collect();
        // Not the unstable one: this one finds what is in order already.
        order.sort();
        for first in 0..order.len() {
            let mut to = first;
            loop {
                let from = std::mem::replace(&mut order[to].1, to);
                if from == first {
                    break;
                }
                self.pending.swap(at(to), at(from));
                to = from;
            }
        }
        self.unsorted = false;
    }
}
