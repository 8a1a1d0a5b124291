//! From a plan to the simulator's scenario. Pure.

use super::{
    SimulationError, algorithm,
    host::{Arrivals, HostParameters},
};
use crate::{
    backend::DRAIN_MS,
    plan::{
        CablePlan, FlowPlan, HostPlan, Plan, RelayPlan,
        need::way,
        network::{self, Hop, Topology},
    },
    spec::Protocol,
};
use longfat_cc::Tunables;
use longfat_link::plan::{DirectionPlan, LinkPlan};
use longfat_relay::{BUFFER_BYTES, LegPlan};
use longfat_sim as sim;
use longfat_transfer::plan::receive_buffer_of_window;
use std::collections::BTreeSet;

/// As in an emulated run, connections stand before the flows begin.
const SETTLE_NS: u64 = 1_000_000_000;

/// How punctually hosts begin that agreed on a time; a plan's `start_within` may ask for more.
const START_NS: u64 = 1_000_000;

/// A plain cable: faster than anything studied over it, so that it never limits, yet not infinitely fast.
const CABLE_RATE_BPS: u64 = 100_000_000_000;
const CABLE_DELAY_NS: u64 = 10_000;
/// What a host's own scheduling does to packets. Without it flows keep their phase, and who loses at a full queue is
/// decided by it (Floyd and Jacobson 1992); repeats would be copies of each other.
const CABLE_JITTER_NS: u64 = 20_000;
const CABLE_QUEUE_BYTES: u64 = 1 << 32;

/// A plan in the simulator's terms.
#[derive(Debug, Clone, PartialEq)]
pub struct Translation {
    /// What is simulated.
    pub scenario: sim::Scenario,
    /// What the plan sets and the simulator does not know.
    pub unmodelled: BTreeSet<String>,
}

/// Translates a plan.
///
/// # Errors
/// What of it cannot be simulated.
pub fn translate(plan: &Plan) -> Result<Translation, SimulationError> {
    if let Some(follow) = plan.follows.first() {
        return Err(SimulationError::Follows(follow.name.clone()));
    }
    let translator = Translator { plan, topology: Topology::of_plan(plan) };
    let flows: Vec<_> = plan.flows.iter().map(|flow| translator.flow(flow)).collect::<Result<_, _>>()?;
    let scenario = sim::Scenario {
        nodes: plan.hosts.iter().map(node).collect(),
        links: plan.links.iter().map(|cable| translator.link(cable)).collect(),
        flows,
        relays: plan.relays.iter().map(|relay| translator.relay(relay)).collect::<Result<_, _>>()?,
        settle_ns: translator.settle_ns(),
        start_within_ns: START_NS.min(plan.start_within_us * 1000),
        duration_ns: plan.end_us() * 1000 + u64::from(DRAIN_MS) * 1_000_000,
        sample_every_ns: plan.sample_every_us * 1000,
        seed: plan.seed,
    };
    let hosts = plan.hosts.iter().flat_map(|host| HostParameters(host).unmodelled());
    let limits = plan.relays.iter().filter(|relay| relay.pacing_server_bps.is_some());
    let limits =
        limits.map(|relay| format!("the limit in relays.{}.pacing_server (pacing itself is)", relay.name));
    let unmodelled = hosts.chain(limits).collect();
    Ok(Translation { scenario, unmodelled })
}

fn node(host: &HostPlan) -> sim::NodePlan {
    sim::NodePlan { name: host.name.clone(), forwards: host.forward, hold_ups: Vec::new() }
}

/// A plain cable as a link.
fn cable(name: &str, mtu_bytes: u32, seed: u64) -> LinkPlan {
    let mut direction = DirectionPlan::plain(Some(CABLE_RATE_BPS), CABLE_DELAY_NS, CABLE_QUEUE_BYTES);
    direction.line.jitter_ns = CABLE_JITTER_NS;
    LinkPlan {
        name: name.to_owned(),
        mtu_bytes,
        seed,
        late_limit_ns: 0,
        pause_limit: 0.0,
        sample_interval_ns: 0,
        coalesce_ns: 0,
        backward: direction.clone(),
        forward: direction,
    }
}

struct Translator<'a> {
    plan: &'a Plan,
    topology: Topology<'a>,
}

impl Translator<'_> {
    /// Plans name hosts that exist: the experiment was checked.
    fn host(&self, name: &str) -> usize {
        self.plan.hosts.iter().position(|host| host.name == name).unwrap_or(usize::MAX)
    }

    fn parameters(&self, name: &str) -> HostParameters<'_> {
        HostParameters(&self.plan.hosts[self.host(name)])
    }

    fn link(&self, plan: &CablePlan) -> sim::LinkBetween {
        let seed = crate::plan::seed_of(self.plan.seed, &["cable", &plan.name]);
        let path = plan.path.clone().unwrap_or_else(|| cable(&plan.name, plan.mtu_bytes, seed));
        let [a, b] = &plan.ends;
        sim::LinkBetween { ends: [self.host(&a.host), self.host(&b.host)], plan: path }
    }

    /// How long before its traffic a connection is opened: [`SETTLE_NS`], or two round trips of the longest path if
    /// that is more, in whole seconds, so that clocks tick in step with the flows' start on every path.
    fn settle_ns(&self) -> u64 {
        let longest_ns =
            self.plan.flows.iter().map(|flow| self.longest_round_trip_ns(flow)).max().unwrap_or(0);
        longest_ns.saturating_mul(2).max(SETTLE_NS).div_ceil(SETTLE_NS).saturating_mul(SETTLE_NS)
    }

    /// Longest round trip of a flow's way without a queue, at the beginning.
    fn longest_round_trip_ns(&self, flow: &FlowPlan) -> u64 {
        let of_cable = |cable: &CablePlan| {
            let Some(path) = &cable.path else { return 2 * CABLE_DELAY_NS };
            let lines = [&path.forward.line, &path.backward.line].into_iter();
            lines.flat_map(|line| [line.delay_ns, line.jitter_ns]).fold(0, u64::saturating_add)
        };
        way(self.plan, &self.topology, flow).into_iter().map(of_cable).fold(0, u64::saturating_add)
    }

    fn flow(&self, flow: &FlowPlan) -> Result<sim::FlowPlan, SimulationError> {
        let path = self.topology.path(&flow.from, &flow.to).unwrap_or_default();
        let transport = match flow.protocol {
            Protocol::Tcp => sim::Transport::Tcp(Box::new(self.tcp(flow, &path)?)),
            Protocol::Udp => sim::Transport::Udp(self.udp(flow, &path)?),
        };
        Ok(sim::FlowPlan {
            name: flow.name.clone(),
            from: self.host(&flow.from),
            to: self.host(&flow.to),
            streams: flow.streams,
            start_ns: flow.start_us * 1000,
            stagger_ns: flow.stagger_us * 1000,
            send_for_ns: Some(flow.duration_us * 1000),
            // A plan's size and rate are the whole flow's. Rounded up, so that all of it is sent.
            bytes: flow.size_bytes.map(|size| size.div_ceil(u64::from(flow.streams.max(1)))),
            rate_bps: flow.rate_bps.map(|rate_bps| rate_bps / u64::from(flow.streams.max(1))),
            transport,
        })
    }

    fn mtu_bytes(&self, path: &[Hop<'_>]) -> u32 {
        let on_path = |cable: &&CablePlan| path.iter().any(|hop| hop.link == cable.name);
        self.plan.links.iter().filter(on_path).map(|cable| cable.mtu_bytes).min().unwrap_or(1500)
    }

    fn packets(&self) -> Arrivals {
        let mtu_bytes = self.plan.links.iter().map(|cable| cable.mtu_bytes).min().unwrap_or(1500);
        Arrivals::Packets { mtu_bytes }
    }

    /// How segments arrive that came by these links.
    fn arrivals<'b>(&self, mut links: impl Iterator<Item = &'b str>) -> Arrivals {
        let is_plain =
            |name: &str| self.plan.links.iter().any(|cable| cable.name == name && cable.path.is_none());
        if links.all(is_plain) { Arrivals::Bundles } else { self.packets() }
    }

    fn tcp(&self, flow: &FlowPlan, path: &[Hop<'_>]) -> Result<sim::TcpPlan, SimulationError> {
        let cc = |cc: &Option<String>| cc.clone().unwrap_or_default();
        let (from, to) = (self.parameters(&flow.from), self.parameters(&flow.to));
        Ok(sim::TcpPlan {
            mtu_bytes: self.mtu_bytes(path),
            family: flow.family(),
            block_bytes: flow.offered_bytes(),
            echo_every_bytes: flow.echo_every_bytes,
            sender: sim::EndpointPlan {
                send_buffer: from.send_buffer(flow.sndbuf_bytes)?,
                unsent_limit_bytes: from.unsent_limit_bytes()?,
                no_delay: flow.rate_bps.is_some(),
                ..self.endpoint(from, &cc(&flow.cc), true)?
            },
            receiver: sim::EndpointPlan {
                receive_buffer: to.receive_buffer(
                    flow.rcvbuf_bytes.or_else(|| flow.window_bytes.map(receive_buffer_of_window)),
                    self.arrivals(path.iter().map(|hop| hop.link)),
                )?,
                window_bytes: flow.window_bytes,
                ack_every: flow.ack_every.unwrap_or(sim::EndpointPlan::default().ack_every),
                ..self.endpoint(to, &cc(&flow.cc_receiver), false)?
            },
            relay: self.relay_on(flow, path)?,
        })
    }

    fn udp(&self, flow: &FlowPlan, path: &[Hop<'_>]) -> Result<sim::UdpPlan, SimulationError> {
        let datagram_bytes = u32::try_from(flow.payload_bytes()).unwrap_or(u32::MAX);
        let mtu_bytes = self.mtu_bytes(path);
        let most_bytes = mtu_bytes.saturating_sub(flow.family().udp_header_bytes());
        if datagram_bytes > most_bytes {
            let flow = flow.name.clone();
            return Err(SimulationError::Datagram { flow, datagram_bytes, mtu_bytes, most_bytes });
        }
        let seed = flow.arrivals_seed.unwrap_or_default();
        Ok(sim::UdpPlan { datagram_bytes, family: flow.family(), arrivals: flow.arrivals, seed })
    }

    /// The relay that takes a flow's connections over.
    fn relay_on(&self, flow: &FlowPlan, path: &[Hop<'_>]) -> Result<Option<usize>, SimulationError> {
        let takes = |relay: &RelayPlan| network::takes(relay, flow, path);
        let taking: Vec<usize> =
            self.plan.relays.iter().enumerate().filter(|(_, relay)| takes(relay)).map(|(i, _)| i).collect();
        match taking.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            many => {
                let relays = many.iter().map(|index| self.plan.relays[*index].name.clone()).collect();
                Err(SimulationError::Relays { flow: flow.name.clone(), relays })
            }
        }
    }

    fn relay(&self, relay: &RelayPlan) -> Result<sim::RelayPlan, SimulationError> {
        let host = self.parameters(&relay.host);
        let from_client = self.arrivals(relay.intercept.iter().map(String::as_str));
        let leg = |cc: &str, buffer_bytes: Option<u64>, defaults: &LegPlan, opens: bool| {
            let buffer_bytes = buffer_bytes.unwrap_or(defaults.buffer_bytes);
            let arrivals = if opens { self.packets() } else { from_client };
            Ok::<_, SimulationError>(sim::EndpointPlan {
                send_buffer: sim::SendBuffer::Fixed(buffer_bytes),
                unsent_limit_bytes: Some(defaults.notsent_lowat_bytes.into()),
                receive_buffer: host.receive_buffer(Some(buffer_bytes), arrivals)?,
                ..self.endpoint(host, cc, opens)?
            })
        };
        Ok(sim::RelayPlan {
            name: relay.name.clone(),
            node: self.host(&relay.host),
            buffer_bytes: BUFFER_BYTES as u64,
            filling_bytes: from_client.filling_bytes(),
            queue: relay.queue.clone(),
            client_side: leg(&relay.cc_client, relay.buffer_client_bytes, &LegPlan::client(), false)?,
            server_side: sim::EndpointPlan {
                pacing: relay.pacing_server_bps.is_some(),
                ..leg(&relay.cc_server, relay.buffer_server_bytes, &LegPlan::server(), true)?
            },
        })
    }

    /// An end with its host's parameters; `opens` the connection, or answers.
    fn endpoint(
        &self,
        host: HostParameters<'_>,
        cc: &str,
        opens: bool,
    ) -> Result<sim::EndpointPlan, SimulationError> {
        let set = self.plan.tunables_of(cc);
        let settings = set.iter().flat_map(Tunables::iter).map(|(name, value)| format!("{name}={value}"));
        Ok(sim::EndpointPlan {
            cc: algorithm(cc)?.name().to_owned(),
            settings: settings.collect(),
            send_buffer: host.send_buffer(None)?,
            unsent_limit_bytes: host.unsent_limit_bytes()?,
            receive_buffer: host.receive_buffer(None, self.packets())?,
            sack: host.sack()?,
            ecn: host.ecn(opens)?,
            pacing: false,
            tso_win_divisor: host.tso_win_divisor()?,
            window_bytes: None,
            ..sim::EndpointPlan::default()
        })
    }
}
