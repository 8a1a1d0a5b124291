//! A scenario made ready to run: endpoints, sources, relays and streams, each with its number.

use crate::{
    hold_up::HoldUps,
    net::Net,
    queue,
    relay::RelayConnection,
    route::Routes,
    scenario::{EndpointPlan, FlowPlan, Scenario, ScenarioError, TcpPlan, Transport, UdpPlan, refuse_unless},
    tcp::{
        Attachment, Endpoint,
        app::{App, Offer, Sink, Source},
    },
    timers::NEVER,
    udp::{UdpOffer, UdpSink, UdpSource},
};
use longfat_link::model::random::Random;

/// What one stream of a flow consists of.
#[derive(Debug)]
pub struct Stream {
    /// Flow of the stream.
    pub flow: usize,
    /// Number of the stream in the flow.
    pub number: u32,
    /// How it is carried.
    pub carrier: Carrier,
    /// Bytes that had arrived when they were last counted.
    pub counted_bytes: u64,
    /// When what its sender had found by the last sample was found.
    pub sampled_avail_us: u64,
    /// Latencies of its echoes.
    pub echoes_ns: Vec<u64>,
}

/// Numbers of what carries a stream.
#[derive(Debug, Clone, Copy)]
pub enum Carrier {
    /// Endpoints at the sender and at the receiver.
    Tcp {
        /// Sending endpoint.
        source: usize,
        /// Receiving endpoint.
        sink: usize,
    },
    /// Source and sink, of one number.
    Udp(usize),
}

/// Everything that acts.
#[derive(Debug)]
pub struct World {
    /// Links, packets, time.
    pub net: Net,
    /// Ends of TCP connections.
    pub endpoints: Vec<Endpoint>,
    /// The relayed connection an endpoint belongs to.
    pub relay_of: Vec<Option<u32>>,
    /// Relayed connections.
    pub relays: Vec<RelayConnection>,
    /// UDP sources.
    pub udp_sources: Vec<UdpSource>,
    /// UDP sinks.
    pub udp_sinks: Vec<UdpSink>,
    /// Streams in order of flows.
    pub streams: Vec<Stream>,
    /// When who cannot act.
    pub hold_ups: HoldUps,
    /// First entity of endpoints, of UDP sources, and of those that observe: who samples, and who counts.
    pub first: [u32; 3],
    /// When bytes that arrived were last counted.
    pub counted_ns: u64,
}

struct Builder<'a> {
    scenario: &'a Scenario,
    routes: Routes<'a>,
    first_endpoint: u32,
    endpoints: Vec<Endpoint>,
    /// Where endpoints and UDP sources are.
    endpoint_nodes: Vec<usize>,
    source_nodes: Vec<usize>,
    relay_of: Vec<Option<u32>>,
    relays: Vec<RelayConnection>,
    udp_sources: Vec<UdpSource>,
    streams: Vec<Stream>,
    opens: Vec<(usize, u64)>,
    relay_counts: Vec<u32>,
}

impl World {
    /// Builds the world of a scenario.
    pub fn new(scenario: &Scenario) -> Result<World, ScenarioError> {
        scenario.check()?;
        let mut builder = Builder {
            scenario,
            routes: Routes::new(scenario),
            first_endpoint: scenario.links.len() as u32 * 2,
            endpoints: Vec::new(),
            endpoint_nodes: Vec::new(),
            source_nodes: Vec::new(),
            relay_of: Vec::new(),
            relays: Vec::new(),
            udp_sources: Vec::new(),
            streams: Vec::new(),
            opens: Vec::new(),
            relay_counts: vec![0; scenario.relays.len()],
        };
        scenario.flows.iter().enumerate().try_for_each(|(index, flow)| builder.flow(index, flow))?;
        Ok(builder.finish())
    }
}

impl Builder<'_> {
    /// Start of stream `number`, and when it stops, in virtual time.
    fn span(&self, flow: &FlowPlan, number: u32) -> (u64, u64) {
        let drawn_ns =
            Random::new(self.scenario.seed, self.streams.len() as u64).up_to(self.scenario.start_within_ns);
        let late_ns = u64::from(number).saturating_mul(flow.stagger_ns).saturating_add(drawn_ns);
        let start_ns = self.scenario.settle_ns.saturating_add(flow.start_ns).saturating_add(late_ns);
        (start_ns, flow.send_for_ns.map_or(NEVER, |send_for_ns| start_ns.saturating_add(send_for_ns)))
    }

    fn flow(&mut self, index: usize, flow: &FlowPlan) -> Result<(), ScenarioError> {
        for number in 0..flow.streams {
            let carrier = match &flow.transport {
                Transport::Tcp(tcp) => self.tcp(flow, tcp, number)?,
                Transport::Udp(udp) => self.udp(flow, udp, number)?,
            };
            let stream = Stream {
                flow: index,
                number,
                carrier,
                counted_bytes: 0,
                sampled_avail_us: 0,
                echoes_ns: Vec::new(),
            };
            self.streams.push(stream);
        }
        Ok(())
    }

    fn tcp(&mut self, flow: &FlowPlan, tcp: &TcpPlan, number: u32) -> Result<Carrier, ScenarioError> {
        let (start_ns, stop_ns) = self.span(flow, number);
        let open_ns = start_ns - self.scenario.settle_ns;
        // As the transfer program does: a socket that tells of room has less than half of what may wait.
        let bound_bytes = tcp.sender.unsent_limit_bytes.filter(|_| tcp.echo_every_bytes.is_some());
        let most_bytes = bound_bytes.map_or(u64::MAX, |bytes| (bytes / 2).max(u64::from(tcp.mss_bytes())));
        let offer = Offer {
            bytes: flow.bytes,
            start_ns,
            stop_ns,
            rate_bps: flow.rate_bps,
            block_bytes: tcp.block_bytes.min(most_bytes),
            echo_every_bytes: tcp.echo_every_bytes,
            asks_for_room: bound_bytes.is_some(),
        };
        let whose = format!("flow '{}'", flow.name);
        let source_app = App::Source(Box::new(Source::new(offer)));
        let sink_app = App::Sink(Sink::new(tcp.echo_every_bytes));
        let source = self.endpoints.len();
        let Some(relay) = tcp.relay else {
            let ends = [(flow.from, &tcp.sender, source_app), (flow.to, &tcp.receiver, sink_app)];
            let [source, sink] = self.connection(&whose, tcp, ends)?;
            self.opens.push((source, open_ns));
            return Ok(Carrier::Tcp { source, sink });
        };
        let plan = &self.scenario.relays[relay];
        let [client_side, server_side] =
            [&plan.client_side, &plan.server_side].map(|end| queue::at_first(plan, end));
        let inbound = [(flow.from, &tcp.sender, source_app), (plan.node, &client_side, App::Relay)];
        let [_, client] = self.connection(&whose, tcp, inbound)?;
        let outbound = [(plan.node, &server_side, App::Relay), (flow.to, &tcp.receiver, sink_app)];
        let [server, sink] = self.connection(&whose, tcp, outbound)?;
        self.relay(relay, [client, server]);
        self.opens.push((source, open_ns));
        Ok(Carrier::Tcp { source, sink })
    }

    fn relay(&mut self, relay: usize, ends: [usize; 2]) {
        let index = self.relays.len() as u32;
        for end in ends {
            self.relay_of[end] = Some(index);
        }
        let filling_bytes = self.scenario.relays[relay].filling_bytes;
        let number = self.relay_counts[relay];
        self.relay_counts[relay] += 1;
        let ends = ends.map(|end| end as u32);
        let mut connection = RelayConnection::new(relay, number, ends, filling_bytes);
        connection.queues = queue::both(&self.scenario.relays[relay], self.scenario.seed ^ u64::from(index));
        self.relays.push(connection);
    }

    /// The two endpoints of a connection, the one that opens it first.
    fn connection(
        &mut self,
        whose: &str,
        tcp: &TcpPlan,
        ends: [(usize, &EndpointPlan, App); 2],
    ) -> Result<[usize; 2], ScenarioError> {
        let [(from, from_plan, from_app), (to, to_plan, to_app)] = ends;
        if from == to {
            let node = self.scenario.nodes[from].name.clone();
            return Err(ScenarioError::SameNode { whose: whose.to_owned(), node });
        }
        let first = self.endpoints.len();
        let there = self.routes.add(from, to)?;
        let back = self.routes.add(to, from)?;
        self.check_mtu(whose, there, tcp)?;
        let from_agreed = from_plan.agreed_with(to_plan);
        let to_agreed = to_plan.agreed_with(from_plan);
        self.endpoint(whose, &from_agreed, there, first + 1, tcp, from_app)?;
        self.endpoint(whose, &to_agreed, back, first, tcp, to_app)?;
        self.endpoint_nodes.extend([from, to]);
        Ok([first, first + 1])
    }

    fn check_mtu(&self, whose: &str, route: u32, tcp: &TcpPlan) -> Result<(), ScenarioError> {
        let Some(link) = self.routes.narrowest(route) else { return Ok(()) };
        let plan = &self.scenario.links[link].plan;
        refuse_unless(
            plan.mtu_bytes >= tcp.mtu_bytes,
            &format!("link '{}' under {whose}", plan.name),
            "the MTU in bytes",
            u64::from(plan.mtu_bytes),
            "it must carry the flow's packets",
        )
    }

    fn endpoint(
        &mut self,
        whose: &str,
        plan: &EndpointPlan,
        route: u32,
        peer: usize,
        tcp: &TcpPlan,
        app: App,
    ) -> Result<(), ScenarioError> {
        let entity = self.first_endpoint + self.endpoints.len() as u32;
        let attachment = Attachment { entity, route, peer: peer as u32, family: tcp.family };
        self.endpoints.push(Endpoint::new(attachment, plan, plan.tunables(whose)?, tcp.mss_bytes(), app));
        self.relay_of.push(None);
        Ok(())
    }

    fn udp(&mut self, flow: &FlowPlan, udp: &UdpPlan, number: u32) -> Result<Carrier, ScenarioError> {
        if flow.from == flow.to {
            let node = self.scenario.nodes[flow.from].name.clone();
            return Err(ScenarioError::SameNode { whose: format!("flow '{}'", flow.name), node });
        }
        let (start_ns, stop_ns) = self.span(flow, number);
        let offer = UdpOffer {
            start_ns,
            stop_ns,
            bytes: flow.bytes,
            datagram_bytes: udp.datagram_bytes,
            rate_bps: flow.rate_bps.unwrap_or(0),
            arrivals: udp.arrivals,
            seed: udp.seed,
            stream: number,
            family: udp.family,
        };
        let index = self.udp_sources.len();
        let route = self.routes.add(flow.from, flow.to)?;
        self.udp_sources.push(UdpSource::new(&offer, route, index as u32));
        self.source_nodes.push(flow.from);
        Ok(Carrier::Udp(index))
    }

    fn finish(self) -> World {
        let first_udp = self.first_endpoint + self.endpoints.len() as u32;
        let sampler = first_udp + self.udp_sources.len() as u32;
        let links: Vec<_> = self.scenario.links.iter().map(|link| &link.plan).collect();
        let mut net = Net::new(&links, self.routes.finish(), sampler as usize + 2, self.scenario);
        let mut endpoints = self.endpoints;
        for (endpoint, at_ns) in self.opens {
            endpoints[endpoint].open_at(at_ns, &mut net);
        }
        for (entity, source) in (first_udp..).zip(&self.udp_sources) {
            net.timers.set(entity, source.next_at_ns());
        }
        let hold_ups = HoldUps::new(self.scenario, self.endpoint_nodes.into_iter().chain(self.source_nodes));
        let settle_ns = self.scenario.settle_ns;
        net.timers.set(sampler, settle_ns + self.scenario.sample_every_ns);
        // Each sample counts, too.
        if self.scenario.count_every_ns() < self.scenario.sample_every_ns {
            net.timers.set(sampler + 1, settle_ns + self.scenario.count_every_ns());
        }
        World {
            net,
            endpoints,
            relay_of: self.relay_of,
            relays: self.relays,
            udp_sinks: self.udp_sources.iter().map(|_| UdpSink::default()).collect(),
            udp_sources: self.udp_sources,
            streams: self.streams,
            hold_ups,
            first: [self.first_endpoint, first_udp, sampler],
            counted_ns: settle_ns,
        }
    }
}
