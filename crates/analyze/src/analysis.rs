//! All of it: captures in, flows out, on one core or several.
//!
//! Packets are numbered in the order of arrival and then put into the order of their times, within a window of
//! [`SORTED`] packets and [`CLOCK_STEP_NS`]: captures that several cores feed are out of order by microseconds, but a
//! clock that was set back must not be undone. Flows are shared out by a hash of their ends; whatever concerns more than
//! one flow is decided before that, so that results do not depend on the number of threads.

use crate::{
    Settings,
    capture::{Damage, InterfaceStatistics, reader::CaptureError},
    decode::{Decoded, Unfollowed},
    flow::{
        report::FlowReport,
        table::{FlowTable, Retired},
    },
    segment::{FlowKey, Segment},
    segments::Segments,
};
use serde::Serialize;
use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

/// A packet is sorted among this many before it.
pub const SORTED: usize = 128;
/// A time further back than this is a clock that was set, not packets out of order.
pub const CLOCK_STEP_NS: i64 = 10_000_000;
/// Segments read before some are handed on: few enough to be in the nearest cache then.
const PENDING: usize = 2 * SORTED;
/// Segments given to a thread at once.
const BATCH: usize = 1024;
/// Segments between looks for flows that are over, and the time of the capture that must have passed too.
const SWEEP_SEGMENTS: u64 = 65_536;
const SWEEP_NS: i64 = 10_000_000_000;
/// Batches that may wait for a thread.
const WAITING: usize = 16;

/// What the capture was like.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CaptureReport {
    /// Packets read.
    pub packets: u64,
    /// Octets read, after decompression.
    pub bytes: u64,
    /// Time of the first packet, nanoseconds since 1970.
    pub start_ns: i64,
    /// Between the least and the greatest time.
    pub duration_s: f64,
    /// TCP segments.
    pub tcp_packets: u64,
    /// Not TCP.
    pub other_packets: u64,
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
    /// Times the clock was set back.
    pub clock_steps: u64,
    /// Places of damage.
    pub damage_count: u64,
    /// The first hundred of each file.
    pub damages: Vec<Damage>,
    /// What the files say of losses while capturing.
    pub interfaces: Vec<InterfaceStatistics>,
}

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
    /// Flows.
    pub flows: u64,
    /// Of them not reported one by one.
    pub flows_left_out: u64,
    /// Payload.
    pub payload_bytes: u64,
    /// Segments sent again.
    pub resent_segments: u64,
    /// Payload sent again.
    pub resent_bytes: u64,
    /// Timeouts.
    pub timeouts: u64,
}

/// What an analysis found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Of this output; readers refuse a newer one.
    pub schema_version: u32,
    /// The capture.
    pub capture: CaptureReport,
    /// All flows.
    pub totals: Totals,
    /// Each flow, the greatest first.
    pub flows: Vec<FlowReport>,
}

/// Reads captures as if they were one, in the order of their first packets.
pub fn analyze<C: Segments>(
    mut captures: Vec<C>,
    settings: Settings,
    progress: impl FnMut(u64),
) -> Result<Analysis, CaptureError> {
    let mut first = Vec::new();
    for (index, capture) in captures.iter_mut().enumerate() {
        first.push((capture.first_time_ns()?.unwrap_or(i64::MAX), index));
    }
    first.sort_unstable();
    let epoch_ns = first.first().map(|(time, _)| *time).filter(|time| *time != i64::MAX).unwrap_or(0);
    let order: Vec<usize> = first.into_iter().map(|(_, index)| index).collect();
    let settings = Settings { epoch_ns, ..settings };
    if settings.jobs <= 1 {
        let mut intake = Intake::new(FlowTable::new(settings), progress);
        intake.read_all(&mut captures, &order)?;
        let (report, flows) = (intake.report, intake.flows.finish());
        return Ok(conclude(report, flows, &settings));
    }
    shared_out(&mut captures, &order, settings, progress)
}

fn shared_out<C: Segments>(
    captures: &mut [C],
    order: &[usize],
    settings: Settings,
    progress: impl FnMut(u64),
) -> Result<Analysis, CaptureError> {
    thread::scope(|scope| {
        let mut shards = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..settings.jobs {
            let (send, receive) = sync_channel(WAITING);
            let (give_back, spare) = sync_channel(WAITING);
            threads.push(scope.spawn(move || follow(&receive, &give_back, settings)));
            shards.push(Shard { send, spare, batch: Vec::with_capacity(BATCH) });
        }
        let mut intake = Intake::new(Shared { shards }, progress);
        intake.read_all(captures, order)?;
        intake.flows.flush();
        let report = intake.report;
        drop(intake.flows);
        let mut all = Retired::default();
        for thread in threads {
            match thread.join() {
                Ok(retired) => all.merge(retired),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(conclude(report, all, &settings))
    })
}

fn conclude(mut capture: CaptureReport, mut retired: Retired, settings: &Settings) -> Analysis {
    retired.prune(settings.most_flows);
    let totals = Totals {
        flows: retired.flows,
        flows_left_out: retired.flows - retired.reports.len() as u64,
        payload_bytes: retired.payload_bytes,
        resent_segments: retired.resent_segments,
        resent_bytes: retired.resent_bytes,
        timeouts: retired.timeouts,
    };
    capture.start_ns = settings.epoch_ns;
    Analysis { schema_version: longfat_schema::SCHEMA_VERSION, capture, totals, flows: retired.reports }
}

/// What follows flows.
trait Flows {
    fn on_segment(&mut self, segment: &Segment);
    fn on_too_big(&mut self, key: FlowKey, end: u8, mtu_bytes: u32);
    fn sweep(&mut self, now_ns: i64);
}

/// On the reader's own thread.
impl Flows for FlowTable {
    #[inline]
    fn on_segment(&mut self, segment: &Segment) {
        FlowTable::on_segment(self, segment);
    }

    fn on_too_big(&mut self, key: FlowKey, end: u8, mtu_bytes: u32) {
        FlowTable::on_too_big(self, key, end, mtu_bytes);
    }

    fn sweep(&mut self, now_ns: i64) {
        FlowTable::sweep(self, now_ns);
    }
}

enum Task {
    Segments(Vec<Segment>),
    TooBig(FlowKey, u8, u32),
    Sweep(i64),
}

struct Shard {
    send: SyncSender<Task>,
    spare: Receiver<Vec<Segment>>,
    batch: Vec<Segment>,
}

impl Shard {
    fn flush(&mut self) {
        if !self.batch.is_empty() {
            let fresh = self.spare.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH));
            let full = std::mem::replace(&mut self.batch, fresh);
            self.hand_on(Task::Segments(full));
        }
    }

    /// A thread that is gone has panicked, which joining it will tell.
    fn hand_on(&mut self, task: Task) {
        let _ = self.send.send(task);
    }
}

struct Shared {
    shards: Vec<Shard>,
}

impl Shared {
    fn of(&mut self, key: &FlowKey) -> &mut Shard {
        let count = self.shards.len() as u64;
        &mut self.shards[(((key.spread() >> 32) * count) >> 32) as usize]
    }

    fn flush(&mut self) {
        self.shards.iter_mut().for_each(Shard::flush);
    }
}

impl Flows for Shared {
    fn on_segment(&mut self, segment: &Segment) {
        let shard = self.of(&segment.key);
        shard.batch.push(*segment);
        if shard.batch.len() >= BATCH {
            shard.flush();
        }
    }

    fn on_too_big(&mut self, key: FlowKey, end: u8, mtu_bytes: u32) {
        let shard = self.of(&key);
        shard.flush();
        shard.hand_on(Task::TooBig(key, end, mtu_bytes));
    }

    fn sweep(&mut self, now_ns: i64) {
        self.flush();
        self.shards.iter_mut().for_each(|shard| shard.hand_on(Task::Sweep(now_ns)));
    }
}

/// One thread's work.
fn follow(tasks: &Receiver<Task>, give_back: &SyncSender<Vec<Segment>>, settings: Settings) -> Retired {
    let mut table = FlowTable::new(settings);
    for task in tasks {
        match task {
            Task::Segments(mut batch) => {
                batch.iter().for_each(|segment| table.on_segment(segment));
                batch.clear();
                let _ = give_back.try_send(batch);
            }
            Task::TooBig(key, end, mtu_bytes) => table.on_too_big(key, end, mtu_bytes),
            Task::Sweep(now_ns) => table.sweep(now_ns),
        }
    }
    table.finish()
}

/// Where the `number`th segment from `first` on stands in the ring.
#[inline]
fn place(first: usize, number: usize) -> usize {
    let at = first + number;
    if at < PENDING { at } else { at - PENDING }
}

/// From packets to sorted segments.
struct Intake<F, P> {
    flows: F,
    progress: P,
    report: CaptureReport,
    /// A ring: `filled` segments from `first` on are not handed on yet, and there is room for one more.
    pending: Box<[Segment; PENDING]>,
    first: usize,
    filled: usize,
    unsorted: bool,
    newest_ns: i64,
    /// Least, and greatest before the time went back.
    span_ns: (i64, i64),
    handed_on: u64,
    swept: (u64, i64),
}

impl<F: Flows, P: FnMut(u64)> Intake<F, P> {
    fn new(flows: F, progress: P) -> Intake<F, P> {
        Intake {
            flows,
            progress,
            report: CaptureReport::default(),
            pending: Box::new([Segment::default(); PENDING]),
            first: 0,
            filled: 0,
            unsorted: false,
            newest_ns: i64::MIN,
            span_ns: (i64::MAX, i64::MIN),
            handed_on: 0,
            swept: (0, i64::MIN),
        }
    }

    fn read_all<C: Segments>(&mut self, captures: &mut [C], order: &[usize]) -> Result<(), CaptureError> {
        for index in order {
            let capture = &mut captures[*index];
            self.read(capture)?;
            self.report.bytes += capture.offset();
            self.report.damage_count += capture.damage_count();
            self.report.damages.extend_from_slice(capture.damages());
            self.report.interfaces.extend(capture.statistics());
        }
        self.hand_on(self.filled);
        let (least, most) = self.span_ns;
        self.report.duration_s = most.saturating_sub(least).max(0) as f64 / 1e9;
        Ok(())
    }

    fn read<C: Segments>(&mut self, capture: &mut C) -> Result<(), CaptureError> {
        let before = self.report.bytes;
        // Above every time until there is one.
        let mut last_ns = i64::MAX;
        loop {
            let index = self.report.packets;
            // There is always room: what fills it is handed on at once.
            let into = &mut self.pending[place(self.first, self.filled)];
            let Some((time_ns, decoded)) = capture.next_segment(index, into)? else { break };
            self.report.packets += 1;
            if time_ns < last_ns {
                self.on_earlier(last_ns, time_ns);
            }
            last_ns = time_ns;
            self.on_decoded(time_ns, decoded);
            if index.is_multiple_of(1 << 16) {
                (self.progress)(before + capture.offset());
            }
        }
        if last_ns < i64::MAX {
            self.span_ns.1 = self.span_ns.1.max(last_ns);
        }
        Ok(())
    }

    /// A packet's time is before that of the one before, or is the first of its capture.
    #[cold]
    fn on_earlier(&mut self, last_ns: i64, time_ns: i64) {
        let (least, most) = self.span_ns;
        if last_ns == i64::MAX {
            self.span_ns = (least.min(time_ns), most);
            return;
        }
        self.span_ns = (least.min(time_ns), most.max(last_ns));
        self.report.on_backwards(last_ns.saturating_sub(time_ns));
    }

    #[inline]
    fn on_decoded(&mut self, time_ns: i64, decoded: Decoded) {
        match decoded {
            Decoded::Tcp => {
                self.report.tcp_packets += 1;
                self.on_segment(time_ns);
            }
            Decoded::TooBig { mtu_bytes } => {
                self.report.other_packets += 1;
                let Segment { key, end, .. } = self.pending[place(self.first, self.filled)];
                self.hand_on(self.filled);
                self.flows.on_too_big(key, end, mtu_bytes);
            }
            Decoded::Not(Unfollowed::Other) => self.report.other_packets += 1,
            Decoded::Not(Unfollowed::Truncated) => self.report.truncated_packets += 1,
            Decoded::Not(Unfollowed::Fragment) => self.report.fragments += 1,
            Decoded::Not(Unfollowed::Malformed) => self.report.malformed_packets += 1,
            Decoded::Not(Unfollowed::UnknownLink(_)) => self.report.unknown_link_packets += 1,
        }
    }

    /// The one behind those that are pending.
    #[inline]
    fn on_segment(&mut self, time_ns: i64) {
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
        if time_ns < self.newest_ns.saturating_sub(CLOCK_STEP_NS) {
            self.report.clock_steps += 1;
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
        for number in 0..count {
            self.flows.on_segment(&self.pending[place(self.first, number)]);
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

    /// Sorts what is pending; of equal times, what came first. Nearly all are where they belong: only the others are moved.
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
