//! The network: links (the model of `longfat-link`, both directions), routes, packets and the event queue.

use crate::{
    packet::{Carried, Pool, Segment},
    scenario::Scenario,
    timers::{NEVER, Timers},
};
use longfat_link::{
    LinkPlan,
    model::{Counters, Departure, Direction, Ecn, Fate, Packet, Verdict},
};

/// End of a route: the packet is where it was going.
pub const ARRIVED: u32 = u32::MAX;

/// Everything packets pass through. Entity n of the event queue is direction n: link n / 2, forward when even.
#[derive(Debug)]
pub struct Net {
    /// Virtual time.
    pub now_ns: u64,
    /// Queue of timers: which entity acts when.
    pub timers: Timers,
    /// Packets that entered a link.
    pub hops: u64,
    directions: Vec<Direction<Carried>>,
    /// Routes one after another: direction numbers, each closed by [`ARRIVED`].
    routes: Vec<u32>,
    pool: Pool,
}

impl Net {
    /// A network at time zero. The scenario's seed is mixed into that of every link.
    pub fn new(links: &[&LinkPlan], routes: Vec<u32>, entities: usize, scenario: &Scenario) -> Net {
        let seed = scenario.seed;
        let both = links.iter().flat_map(|link| {
            let make = |plan, stream| Direction::new(plan, link.mtu_bytes, link.seed ^ seed, stream);
            [make(&link.forward, 0), make(&link.backward, 1)]
        });
        let mut directions: Vec<_> = both.collect();
        directions.iter_mut().for_each(|direction| direction.start_schedule(scenario.settle_ns));
        let timers = Timers::new(entities);
        Net { now_ns: 0, timers, hops: 0, directions, routes, pool: Pool::default() }
    }

    /// What a direction has counted.
    pub fn counters(&mut self, direction: usize) -> Counters {
        self.directions[direction].counters(self.now_ns)
    }

    /// Sends a packet on its way, which begins at `route`.
    pub fn send(&mut self, segment: Segment, route: u32, ecn: Ecn) {
        let length_bytes = segment.packet_bytes();
        let id = self.pool.put(segment);
        self.enter(Packet { length_bytes, ecn, payload: Carried { id, route } });
    }

    /// Gives a packet to the next link of its route.
    fn enter(&mut self, mut packet: Packet<Carried>) {
        let Carried { id, route } = packet.payload;
        let number = self.routes[route as usize];
        packet.payload.route += 1;
        self.hops += 1;
        let direction = &mut self.directions[number as usize];
        if let Verdict::Dropped(_) = direction.enqueue(self.now_ns, packet) {
            self.pool.take(id);
        }
        self.reschedule(number);
    }

    /// The next packet that reached its destination over direction `number` now; what goes on is passed on.
    pub fn next_arrival(&mut self, number: u32) -> Option<Segment> {
        while let Some(departure) = self.directions[number as usize].dequeue(self.now_ns) {
            if let Some(segment) = self.leave(departure) {
                return Some(segment);
            }
        }
        self.reschedule(number);
        None
    }

    fn leave(&mut self, departure: Departure<Carried>) -> Option<Segment> {
        let Departure { fate, packet, .. } = departure;
        let Carried { id, route } = packet.payload;
        if fate != Fate::Delivered {
            self.pool.take(id);
            return None;
        }
        if self.routes[route as usize] != ARRIVED {
            self.enter(packet);
            return None;
        }
        Some(Segment { is_marked: packet.ecn == Ecn::Ce, ..self.pool.take(id) })
    }

    fn reschedule(&mut self, number: u32) {
        let at_ns = self.directions[number as usize].next_event().unwrap_or(NEVER);
        self.timers.set(number, at_ns.max(self.now_ns));
    }
}
