//! The run: the earliest event, again and again.

use crate::{
    packet::{Segment, flag},
    sample,
    scenario::{Scenario, ScenarioError},
    world::World,
};
use longfat_schema::record::Record;

/// Events between two questions whether to go on: about 30 ms of a core.
const EVENTS_PER_QUESTION: u64 = 1 << 16;

/// What a run came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimStats {
    /// Events of the event queue.
    pub events: u64,
    /// Packets that entered a link: a packet over three links counts three times.
    pub packets: u64,
    /// Packets that reached their destination.
    pub arrivals: u64,
    /// Virtual time reached.
    pub time_ns: u64,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes (RFC 8985, section 7) that sent a segment again, for want of a new one.
    pub repeated_probes: u64,
}

/// Runs a scenario in virtual time. Every record goes to `take`, times counted from the start of the traffic; `proceed`
/// is asked now and then with the virtual time, and ends the run by saying no.
///
/// The same scenario gives the same records, always and everywhere.
///
/// # Errors
/// When the scenario is not sound; nothing has run then.
pub fn run(
    scenario: &Scenario,
    mut take: impl FnMut(Record),
    mut proceed: impl FnMut(u64) -> bool,
) -> Result<SimStats, ScenarioError> {
    let mut world = World::new(scenario)?;
    let settle_us = (scenario.settle_ns / 1000) as i64;
    let mut sink = |mut record: Record| {
        record.rebase(settle_us);
        take(record);
    };
    let mut stats = SimStats::default();
    loop {
        let (at_ns, entity) = world.net.timers.first();
        if at_ns > scenario.end_ns() {
            world.net.now_ns = scenario.end_ns();
            break;
        }
        // Who was held up may have been due long ago.
        world.net.now_ns = at_ns.max(world.net.now_ns);
        stats.events += 1;
        if stats.events.is_multiple_of(EVENTS_PER_QUESTION) && !proceed(at_ns) {
            stats.stopped = true;
            break;
        }
        let sampler = world.first[2];
        if entity == sampler {
            sample::sample(scenario, &mut world, &mut sink);
            world.net.timers.set(entity, at_ns + scenario.sample_every_ns);
        } else if entity > sampler {
            sample::count(scenario, &mut world, &mut sink);
            world.net.timers.set(entity, at_ns + scenario.count_every_ns());
        } else {
            world.act(entity, &mut stats);
        }
    }
    sample::summarise(scenario, &mut world, &mut sink);
    stats.packets = world.net.hops;
    stats.time_ns = world.net.now_ns;
    let senders = || world.endpoints.iter().map(|endpoint| &endpoint.sender);
    stats.timeouts = senders().map(|sender| sender.timeouts).sum();
    stats.repeated_probes = senders().map(|sender| sender.repeated_probes).sum();
    Ok(stats)
}

impl World {
    /// Lets an entity do what is due.
    fn act(&mut self, entity: u32, stats: &mut SimStats) {
        if let Some(until_ns) = self.hold_ups.until_ns(entity, self.net.now_ns) {
            self.net.timers.set(entity, until_ns);
            return;
        }
        let [first_endpoint, first_udp, _] = self.first;
        if entity < first_endpoint {
            while let Some(segment) = self.net.next_arrival(entity) {
                stats.arrivals += 1;
                self.deliver(&segment);
            }
        } else if entity < first_udp {
            let index = (entity - first_endpoint) as usize;
            self.endpoints[index].on_timer(&mut self.net);
            self.turn_relay(index);
        } else {
            let source = &mut self.udp_sources[(entity - first_udp) as usize];
            source.send(&mut self.net);
            self.net.timers.set(entity, source.next_at_ns());
        }
    }

    fn deliver(&mut self, segment: &Segment) {
        let index = segment.to as usize;
        if segment.has(flag::UDP) {
            self.udp_sinks[index].take(segment, self.net.now_ns);
            return;
        }
        let Some(segment) = self.pass_queue(index, segment) else { return };
        self.endpoints[index].on_segment(&segment, &mut self.net);
        self.turn_relay(index);
    }

    /// What a relay's queue makes of a segment that arrives: it may mark it, or drop it.
    fn pass_queue(&mut self, endpoint: usize, segment: &Segment) -> Option<Segment> {
        match self.relay_of[endpoint] {
            Some(relay) => {
                let now_ns = self.net.now_ns;
                self.relays[relay as usize].on_arrival(endpoint as u32, segment, &self.endpoints, now_ns)
            }
            None => Some(*segment),
        }
    }

    fn turn_relay(&mut self, endpoint: usize) {
        if let Some(relay) = self.relay_of[endpoint] {
            self.relays[relay as usize].turn(&mut self.endpoints, &mut self.net);
        }
    }
}
