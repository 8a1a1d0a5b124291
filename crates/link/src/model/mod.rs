//! One direction of a path, pure: no clock, no I/O, seeded randomness.
//!
//! ```text
//! enqueue ─▶ queue (limit, discipline) ─▶ transmitter (rate) ─▶ loss ─▶ line (delay, jitter) ─▶ dequeue
//! ```
//!
//! Time is `u64` nanoseconds from any origin and is passed in; it may not go backwards (an earlier time counts as
//! the latest one seen). Between calls the model catches up event by event at each event's own time, so what it does
//! depends on the times given to `enqueue` alone, never on how often or how late `dequeue` is called.
//!
//! Units: bytes are bytes of the IP packet; the rate counts them plus `overhead_bytes` per packet.
//! Per packet the cost is O(1) (O(log n) when jitter may reorder), without allocation once the stores have grown.

pub mod codel;
pub mod fifo;
pub mod flight;
pub mod loss;
mod opportunities;
mod packet;
pub mod queue;
pub mod random;
pub mod red;
mod schedule;
pub mod transmitter;

pub use packet::{Departure, Ecn, Fate, Packet, Verdict};

use crate::plan::{ChangePlan, DirectionPlan};
use flight::Flight;
use longfat_schema::record::QueueSample;
use loss::Loss;
use queue::Queue;
use random::Random;
use schedule::Schedule;
use std::collections::VecDeque;
use transmitter::Transmitter;

/// What has happened in a direction since it was made.
///
/// At any time `offered = delivered + dropped + lost + inside` holds, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets given to `enqueue`.
    pub offered_packets: u64,
    /// Packets handed out as delivered.
    pub delivered_packets: u64,
    /// Bytes of the delivered packets.
    pub delivered_bytes: u64,
    /// Packets dropped by the queue.
    pub dropped_packets: u64,
    /// Packets taken by the loss model.
    pub lost_packets: u64,
    /// Packets changed to CE.
    pub marked_packets: u64,
    /// Packets queued, in transmission or on the line.
    pub inside_packets: u64,
    /// Bytes waiting for transmission (the packet being sent is not waiting).
    pub queue_bytes: u64,
    /// Packets waiting for transmission.
    pub queue_packets: u64,
    /// Most bytes that ever waited.
    pub queue_max_bytes: u64,
    /// Bytes waiting, averaged over the time since the first packet.
    pub queue_mean_bytes: u64,
}

impl Counters {
    /// A record of these counters.
    pub fn sample(&self, time_ns: u64, link: &str, direction: &str) -> QueueSample {
        QueueSample {
            time_us: (time_ns / 1000) as i64,
            link: link.to_owned(),
            direction: direction.to_owned(),
            queue_bytes: self.queue_bytes,
            queue_packets: self.queue_packets,
            delivered_bytes: self.delivered_bytes,
            delivered_packets: self.delivered_packets,
            dropped_packets: self.dropped_packets,
            lost_packets: self.lost_packets,
            marked_packets: self.marked_packets,
        }
    }
}

/// One direction of a path carrying packets with a payload handle `P`.
#[derive(Debug)]
pub struct Direction<P> {
    now_ns: u64,
    mtu_bytes: u32,
    overhead_bytes: u32,
    delay_ns: u64,
    jitter_ns: u64,
    queue: Queue<P>,
    transmitter: Transmitter<P>,
    loss: Loss,
    flight: Flight<P>,
    schedule: Schedule,
    /// Dropped and lost packets, to be handed back by `dequeue`.
    gone: VecDeque<Departure<P>>,
    random: Random,
    counters: Counters,
    /// Integral of the queue over time, byte·ns, and since when.
    queue_area: u128,
    first_ns: Option<u64>,
}

impl<P> Direction<P> {
    /// An empty path. Directions of one link take the same `seed` and different `stream` numbers.
    pub fn new(plan: &DirectionPlan, mtu_bytes: u32, seed: u64, stream: u64) -> Direction<P> {
        Direction {
            now_ns: 0,
            mtu_bytes,
            overhead_bytes: plan.overhead_bytes,
            delay_ns: plan.line.delay_ns,
            jitter_ns: plan.line.jitter_ns,
            queue: Queue::new(&plan.queue, mtu_bytes),
            transmitter: Transmitter::new(plan.line.rate_bps, plan.opportunities.as_ref()),
            loss: Loss::new(plan.line.loss.clone()),
            flight: Flight::new(plan.reorder),
            schedule: Schedule::new(plan.schedule.clone(), plan.repeats_ns),
            gone: VecDeque::new(),
            random: Random::new(seed, stream),
            counters: Counters::default(),
            queue_area: 0,
            first_ns: None,
        }
    }

    /// Begins the schedule of changes: its time zero is `at_ns`. Until then no change happens.
    pub fn start_schedule(&mut self, at_ns: u64) {
        self.schedule.start(at_ns);
        self.transmitter.follow_from(at_ns);
    }

    /// Offers a packet that arrives at `now_ns`.
    pub fn enqueue(&mut self, now_ns: u64, packet: Packet<P>) -> Verdict<P> {
        self.advance(now_ns);
        self.first_ns.get_or_insert(self.now_ns);
        self.counters.offered_packets += 1;
        let typical_ns = self.transmitter.time_of_ns(u64::from(self.mtu_bytes));
        if let Err(packet) = self.queue.offer(self.now_ns, packet, typical_ns, &mut self.random) {
            self.counters.dropped_packets += 1;
            return Verdict::Dropped(packet);
        }
        self.transmit_next();
        self.counters.queue_max_bytes = self.counters.queue_max_bytes.max(self.queue.bytes());
        self.advance(now_ns);
        Verdict::Queued
    }

    /// When `dequeue` next has something to do: the earliest time worth calling it. `None`: nothing is inside.
    pub fn next_event(&self) -> Option<u64> {
        if !self.gone.is_empty() {
            return Some(self.now_ns);
        }
        let arrival_ns = self.flight.next_due_ns();
        // Without reordering nothing that is yet to be transmitted can arrive before what is on the line.
        if arrival_ns.is_some() && !self.flight.reorders() {
            return arrival_ns;
        }
        let sent_ns = self
            .transmitter
            .finish_ns()
            .map(|finish_ns| finish_ns.min(self.schedule.next_ns().unwrap_or(u64::MAX)).max(self.now_ns));
        [arrival_ns, sent_ns].into_iter().flatten().min()
    }

    /// The next packet that has left by `now_ns`; call it until it gives nothing.
    pub fn dequeue(&mut self, now_ns: u64) -> Option<Departure<P>> {
        self.advance(now_ns);
        if let Some(departure) = self.gone.pop_front() {
            return Some(departure);
        }
        let (due_ns, packet) = self.flight.pop(self.now_ns)?;
        self.counters.delivered_packets += 1;
        self.counters.delivered_bytes += u64::from(packet.length_bytes);
        Some(Departure { due_ns, fate: Fate::Delivered, packet })
    }

    /// The counters as of `now_ns`.
    pub fn counters(&mut self, now_ns: u64) -> Counters {
        self.advance(now_ns);
        let elapsed_ns = self.now_ns - self.first_ns.unwrap_or(self.now_ns);
        let queued = self.queue.packets();
        Counters {
            marked_packets: self.queue.marked_packets(),
            inside_packets: queued + u64::from(self.transmitter.is_busy()) + self.flight.packets(),
            queue_bytes: self.queue.bytes(),
            queue_packets: queued,
            queue_mean_bytes: self.queue_area.checked_div(u128::from(elapsed_ns)).unwrap_or(0) as u64,
            ..self.counters
        }
    }

    /// Catches up to `now_ns`, each event at its own time.
    fn advance(&mut self, now_ns: u64) {
        let now_ns = now_ns.max(self.now_ns);
        loop {
            let sent_ns = self.transmitter.finish_ns().unwrap_or(u64::MAX);
            let change_ns = self.schedule.next_ns().unwrap_or(u64::MAX);
            let next_ns = sent_ns.min(change_ns);
            if next_ns > now_ns || next_ns == u64::MAX {
                break;
            }
            self.pass_time(next_ns);
            if sent_ns <= change_ns {
                self.finish_transmission();
            } else if let Some(change) = self.schedule.next_change() {
                self.apply(&change);
            }
        }
        self.pass_time(now_ns);
    }

    fn pass_time(&mut self, to_ns: u64) {
        let span_ns = to_ns.saturating_sub(self.now_ns);
        self.queue_area += u128::from(self.queue.bytes()) * u128::from(span_ns);
        self.now_ns += span_ns;
    }

    fn finish_transmission(&mut self) {
        let now_ns = self.now_ns;
        if let Some(packet) = self.transmitter.finish(now_ns) {
            if self.loss.strikes(&mut self.random) {
                self.counters.lost_packets += 1;
                self.gone.push_back(Departure { due_ns: now_ns, fate: Fate::Lost, packet });
            } else {
                let extra_ns = self.random.up_to(self.jitter_ns);
                self.flight.push(now_ns + self.delay_ns + extra_ns, packet);
            }
        }
        self.transmit_next();
    }

    fn transmit_next(&mut self) {
        if self.transmitter.is_busy() {
            return;
        }
        let now_ns = self.now_ns;
        let drop = note_drop(now_ns, &mut self.gone, &mut self.counters);
        match self.queue.take(now_ns, drop) {
            Some(packet) => self.transmitter.start(now_ns, packet, self.overhead_bytes),
            None => self.transmitter.rest(),
        }
    }

    /// Packets on the line keep the delay under which they were sent; the packet being sent goes on at the new rate.
    fn apply(&mut self, change: &ChangePlan) {
        let now_ns = self.now_ns;
        self.transmitter.change_rate(now_ns, change.line.rate_bps);
        self.delay_ns = change.line.delay_ns;
        self.jitter_ns = change.line.jitter_ns;
        self.loss.change(&change.line.loss);
        if let Some(plan) = &change.queue {
            let drop = note_drop(now_ns, &mut self.gone, &mut self.counters);
            self.queue.change(plan, self.mtu_bytes, drop);
        }
    }
}

fn note_drop<'a, P>(
    due_ns: u64,
    gone: &'a mut VecDeque<Departure<P>>,
    counters: &'a mut Counters,
) -> impl FnMut(Packet<P>) + use<'a, P> {
    move |packet| {
        counters.dropped_packets += 1;
        gone.push_back(Departure { due_ns, fate: Fate::Dropped, packet });
    }
}
