//! The driver's loop: read both rings, let the models catch up, send what is due, wait.

use super::{
    DriverError, Options, Start,
    answers::Answers,
    batch::Batch,
    clock::{Clock, silences},
    frame::{self, ETHERNET_BYTES, VNET_BYTES},
    max_frame_bytes,
    pace::Pace,
    pool::{Buffer, Pool},
    reporter::{Event, Reporter},
    socket::{PacketSocket, Received, realtime_offset_ns},
};
use crate::{
    model::{Counters, Direction, Ecn, Fate, Packet, Verdict},
    plan::{DirectionPlan, LinkPlan},
    spec::DirectionName,
};
use hdrhistogram::Histogram;
use longfat_host::monotonic_ns;
use std::sync::atomic::Ordering;

/// A hold-up that a person should know of.
pub(super) const STALL_NS: u64 = 3_000_000;
/// Frames read from one ring before the other ring and the departures are looked at again.
const READ_AT_ONCE: usize = 256;
const MAX_POOL_BYTES: u64 = 4 << 30;
const MAX_LATENESS_NS: u64 = 60_000_000_000;

/// One direction: in through one interface, out through the other.
pub struct Way {
    name: DirectionName,
    direction: Direction<Buffer>,
    batch: Batch,
    due_ns: Vec<u64>,
    /// TCP packets of those to be sent: of half of the MTU at most, of more.
    tcp_packets: [u32; 2],
    next_sample_ns: u64,
    /// Lateness of every delivered packet.
    pub lateness_ns: Histogram<u64>,
    /// Frames the driver could not model: oversize, tagged, or no memory.
    pub oversize_frames: u64,
    /// Frames for which the pool had no room.
    pub unstored_frames: u64,
    /// Frames the outgoing interface refused.
    pub refused_frames: u64,
}

/// Everything the loop holds.
pub struct Engine {
    sockets: [PacketSocket; 2],
    ways: [Way; 2],
    pool: Pool,
    pace: Pace,
    clock: Clock,
    /// What the hosts at either end owe.
    answers: [Answers; 2],
    mtu_bytes: u32,
    sample_interval_ns: u64,
    sampling: bool,
    schedule_running: bool,
    /// Hold-ups that the path feels, however few should know of them.
    least_hold_up_ns: u64,
    /// Hold-ups so far.
    pub stalls: u64,
    /// The longest of them.
    pub longest_stall_ns: u64,
}

impl Engine {
    /// Allocates everything the loop will need.
    pub fn new(plan: &LinkPlan, sockets: [PacketSocket; 2]) -> Result<Engine, DriverError> {
        let now_ns = monotonic_ns();
        let way = |name, direction, stream| Way::new(name, plan, direction, stream, now_ns);
        let least_hold_up_ns = plan.least_hold_up_ns();
        let min_delay_ns = plan.forward.min_delay_ns().min(plan.backward.min_delay_ns());
        Ok(Engine {
            sockets,
            ways: [
                way(DirectionName::Forward, &plan.forward, 0)?,
                way(DirectionName::Backward, &plan.backward, 1)?,
            ],
            pool: Pool::new(max_frame_bytes(plan.mtu_bytes), pool_slots(plan), MAX_POOL_BYTES),
            pace: Pace::new(min_delay_ns, plan.coalesce_ns),
            clock: Clock::default(),
            answers: [Answers::new(least_hold_up_ns), Answers::new(least_hold_up_ns)],
            mtu_bytes: plan.mtu_bytes,
            sample_interval_ns: plan.sample_interval_ns,
            sampling: false,
            schedule_running: false,
            least_hold_up_ns,
            stalls: 0,
            longest_stall_ns: 0,
        })
    }

    /// Runs until the stop flag is raised, at least one turn: who is told to stop at once has its first samples.
    pub fn run(&mut self, options: &Options<'_>, reporter: &mut Reporter) -> Result<(), DriverError> {
        self.sampling = reporter.is_kept();
        loop {
            let host_ns = monotonic_ns();
            self.note_stall(host_ns, reporter);
            let now_ns = self.clock.path_ns(host_ns);
            self.start_schedule(&options.start, now_ns);
            let mut read_all = true;
            for way in 0..2 {
                // The model may not run ahead of arrivals that still wait in the ring.
                let horizon_ns = self.read(way, now_ns, reporter);
                read_all &= horizon_ns == now_ns;
                self.sample_until(way, horizon_ns, reporter);
                self.release(way, horizon_ns);
            }
            if options.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if read_all {
                let next_ns = self.ways.iter().filter_map(|way| way.direction.next_event()).min();
                self.pace.wait(next_ns.map(|at_ns| self.clock.host_ns(at_ns)), &self.sockets)?;
            }
        }
    }

    /// The counters of both directions, now.
    pub fn counters(&mut self) -> [Counters; 2] {
        let now_ns = self.clock.path_ns(monotonic_ns());
        self.ways.each_mut().map(|way| way.direction.counters(now_ns))
    }

    /// How long the path stood still.
    pub fn paused_ns(&self) -> u64 {
        self.clock.paused_ns()
    }

    /// Both directions.
    pub fn ways(&self) -> &[Way; 2] {
        &self.ways
    }

    /// Frames lost outside the model on the way: by the incoming ring, the pool, the outgoing interface.
    pub fn overruns(&self, way: usize) -> u64 {
        let Way { oversize_frames, unstored_frames, refused_frames, .. } = self.ways[way];
        // A refused frame may also stand in the interface's own count.
        let outgoing = refused_frames.max(self.sockets[1 - way].tx_dropped());
        oversize_frames + unstored_frames + outgoing + self.sockets[way].ring_dropped()
    }

    fn start_schedule(&mut self, start: &Start, now_ns: u64) {
        if self.schedule_running {
            return;
        }
        let at_ns = match start {
            Start::Now => now_ns,
            Start::At(at_ns) => self.clock.path_ns(*at_ns),
            Start::OnFlag(flag) if flag.load(Ordering::Relaxed) => now_ns,
            Start::OnFlag(_) => return,
        };
        self.schedule_running = true;
        self.ways.iter_mut().for_each(|way| way.direction.start_schedule(at_ns));
    }

    fn note_stall(&mut self, now_ns: u64, reporter: &mut Reporter) {
        let late_ns = self.pace.begin(now_ns);
        if late_ns > STALL_NS {
            self.stalls += 1;
            self.longest_stall_ns = self.longest_stall_ns.max(late_ns);
            let paused_ns = self.stand_still(now_ns - late_ns, now_ns);
            reporter.tell(Event::Stall { now_ns, late_ns, paused_ns });
        } else if late_ns >= self.least_hold_up_ns {
            reporter.tell(Event::Stall { now_ns, late_ns, paused_ns: 0 });
        }
    }

    /// Takes the time out of the path's in which neither driver nor hosts did anything; how long that was.
    fn stand_still(&mut self, from_ns: u64, to_ns: u64) -> u64 {
        let offset_ns = realtime_offset_ns();
        let waiting = self.sockets.iter().flat_map(PacketSocket::waiting_since_ns);
        let arrivals_ns = waiting.map(|at_ns| (at_ns as i64 - offset_ns) as u64).collect();
        self.clock.pause(silences(from_ns, to_ns, arrivals_ns, STALL_NS))
    }

    /// Takes in frames that arrived by `now_ns`; up to what time all of them have been.
    fn read(&mut self, way: usize, now_ns: u64, reporter: &mut Reporter) -> u64 {
        let (mut last_ns, mut offset_ns) = (0, None);
        for _ in 0..READ_AT_ONCE {
            let (pool, counts, mtu) = (&mut self.pool, &mut self.ways[way], self.mtu_bytes);
            let clock = &self.clock;
            let taken = self.sockets[way].receive(|received| {
                let arrival_ns =
                    (received.realtime_ns as i64 - *offset_ns.get_or_insert_with(realtime_offset_ns)) as u64;
                let answer_ns =
                    received.bytes.get(VNET_BYTES..).filter(|f| frame::is_tcp(f)).map(|_| arrival_ns);
                (clock.path_ns(arrival_ns), answer_ns, counts.store(&received, pool, mtu))
            });
            let Some((arrival_ns, answer_ns, packet)) = taken else { return now_ns };
            for hold_up in answer_ns.into_iter().flat_map(|at_ns| self.answers[way].arrived(at_ns)) {
                reporter.tell(Event::HoldUp(self.ways[way].name, hold_up));
            }
            // The wall clock may be set while a frame waits: an arrival is never in the future, never out of order.
            last_ns = arrival_ns.clamp(last_ns, now_ns);
            self.sample_until(way, last_ns, reporter);
            if let Some(packet) = packet
                && let Verdict::Dropped(packet) = self.ways[way].direction.enqueue(last_ns, packet)
            {
                self.pool.release(packet.payload);
            }
        }
        last_ns
    }

    /// Samples at every multiple of the interval up to `now_ns`, each as of its own time. They are the host's times: a
    /// path that stands still is sampled, too.
    fn sample_until(&mut self, way: usize, now_ns: u64, reporter: &mut Reporter) {
        let (way, clock) = (&mut self.ways[way], &self.clock);
        while self.sampling && clock.path_ns(way.next_sample_ns) <= now_ns {
            let at_ns = way.next_sample_ns;
            let counters = way.direction.counters(clock.path_ns(at_ns));
            reporter.tell(Event::Sample(way.name, at_ns, counters));
            way.next_sample_ns += self.sample_interval_ns;
        }
    }

    /// Sends everything due by `now_ns`.
    fn release(&mut self, way: usize, now_ns: u64) {
        let clock = &self.clock;
        let half_bytes = self.mtu_bytes as usize / 2;
        let (answers, socket) = (&mut self.answers[1 - way], &self.sockets[1 - way]);
        let (pool, way) = (&mut self.pool, &mut self.ways[way]);
        while let Some(departure) = way.direction.dequeue(now_ns) {
            let Packet { payload: buffer, ecn, .. } = departure.packet;
            if departure.fate != Fate::Delivered {
                pool.release(buffer);
                continue;
            }
            let bytes = &mut pool.get_mut(buffer)[VNET_BYTES..];
            if ecn == Ecn::Ce && frame::ecn(bytes) != Ecn::Ce {
                frame::mark_ce(bytes);
            }
            if frame::is_tcp(bytes) {
                way.tcp_packets[usize::from(bytes.len() > half_bytes)] += 1;
            }
            way.batch.add(pool, buffer);
            way.due_ns.push(departure.due_ns);
            if way.batch.is_full() {
                way.send(pool, socket, clock, answers);
            }
        }
        way.send(pool, socket, clock, answers);
    }
}

impl Way {
    fn new(
        name: DirectionName,
        plan: &LinkPlan,
        direction: &DirectionPlan,
        stream: u64,
        now_ns: u64,
    ) -> Result<Way, DriverError> {
        let lateness_ns = Histogram::new_with_bounds(1, MAX_LATENESS_NS, 2)
            .map_err(|error| DriverError::Internal(error.to_string()))?;
        Ok(Way {
            name,
            direction: Direction::new(direction, plan.mtu_bytes, plan.seed, stream),
            batch: Batch::new(plan.coalesce_ns > 0),
            due_ns: Vec::with_capacity(1024),
            tcp_packets: [0; 2],
            next_sample_ns: now_ns,
            lateness_ns,
            oversize_frames: 0,
            unstored_frames: 0,
            refused_frames: 0,
        })
    }

    fn store(&mut self, received: &Received<'_>, pool: &mut Pool, mtu: u32) -> Option<Packet<Buffer>> {
        let whole = received.bytes.len() == received.frame_bytes + VNET_BYTES;
        let is_gso = received.bytes.get(1).is_none_or(|gso_type| *gso_type != 0);
        let fits = (ETHERNET_BYTES..=max_frame_bytes(mtu)).contains(&received.frame_bytes);
        if !whole || is_gso || !fits || received.tagged {
            self.oversize_frames += 1;
            return None;
        }
        let Some(payload) = pool.store(received.bytes) else {
            self.unstored_frames += 1;
            return None;
        };
        let ecn = frame::ecn(&received.bytes[VNET_BYTES..]);
        Some(Packet { length_bytes: (received.frame_bytes - ETHERNET_BYTES) as u32, ecn, payload })
    }

    /// Lateness is taken when the frames are handed to the kernel.
    fn send(&mut self, pool: &mut Pool, socket: &PacketSocket, clock: &Clock, answers: &mut Answers) {
        if self.batch.is_empty() {
            return;
        }
        let host_ns = monotonic_ns();
        for (count, is_full) in std::mem::take(&mut self.tcp_packets).into_iter().zip([false, true]) {
            (0..count).for_each(|_| answers.delivered(host_ns, is_full));
        }
        let now_ns = clock.path_ns(host_ns);
        for due_ns in self.due_ns.drain(..) {
            self.lateness_ns.saturating_record(now_ns.saturating_sub(due_ns).max(1));
        }
        self.refused_frames += self.batch.send(pool, socket);
    }
}

/// Buffers for what can be inside both directions, in packets of MTU size, with some to spare.
fn pool_slots(plan: &LinkPlan) -> usize {
    let bytes = plan.forward.capacity_bytes().saturating_add(plan.backward.capacity_bytes());
    let slots = bytes / u64::from(plan.mtu_bytes) + 1024;
    usize::try_from(slots).unwrap_or(usize::MAX).min(64 << 10)
}
