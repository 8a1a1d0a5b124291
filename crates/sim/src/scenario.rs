//! What is simulated, as plain data: nodes, links, flows, relays. Nothing in it is random; the seed is.

use crate::packet::Family;
use longfat_cc::{Algorithm, SettingError, Tunables, UnknownAlgorithm, queue::QueuePlan};
use longfat_link::LinkPlan;
use longfat_schema::{arrivals::Arrivals, send_buffer::reserved_bytes};

/// The longest that what arrives is not counted.
const COUNT_EVERY_NS: u64 = 100_000_000;
/// Initial window, in segments (RFC 6928).
pub(crate) const INITIAL_WINDOW: u32 = 10;

/// A whole simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Hosts and routers.
    pub nodes: Vec<NodePlan>,
    /// What joins them.
    pub links: Vec<LinkBetween>,
    /// Traffic.
    pub flows: Vec<FlowPlan>,
    /// Relays that flows may pass through.
    pub relays: Vec<RelayPlan>,
    /// Connections are opened this long before their traffic begins, as programs do that agree on a time to start;
    /// links' schedules begin with the traffic, and records count time from there.
    pub settle_ns: u64,
    /// Each stream begins up to this much later than planned, how much is drawn from the seed: no two hosts begin at
    /// the same nanosecond, and flows that do stay in step for ever.
    pub start_within_ns: u64,
    /// When the simulation ends, counted from the traffic's beginning.
    pub duration_ns: u64,
    /// Time between two samples.
    pub sample_every_ns: u64,
    /// Seed of everything random, mixed with the seeds of links. Datagrams leave as their flow's own seed draws.
    pub seed: u64,
}

/// A host or a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlan {
    /// Name of the node in messages.
    pub name: String,
    /// Whether the node passes packets on.
    pub forwards: bool,
    /// When the node is held up; never, unless somebody says so. Those that overlap are one.
    pub hold_ups: Vec<HoldUp>,
}

/// A time for which a node does nothing, as one whose processor is away. What comes to it, its timers and its programs
/// wait; all of it is done when the time is over. Counted from the traffic's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldUp {
    /// Since when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
}

impl NodePlan {
    /// A node that passes packets on; it may be an end of connections all the same.
    pub fn router(name: impl Into<String>) -> NodePlan {
        NodePlan { name: name.into(), forwards: true, hold_ups: Vec::new() }
    }
}

/// A link and its ends, as indices of nodes: `forward` is from the first to the second.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkBetween {
    /// First and second end.
    pub ends: [usize; 2],
    /// Rate, delay, loss, queue of both directions.
    pub plan: LinkPlan,
}

/// Traffic from one node to another.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowPlan {
    /// Name of the link in records.
    pub name: String,
    /// Sending node.
    pub from: usize,
    /// Receiving node.
    pub to: usize,
    /// Connections or datagram streams side by side.
    pub streams: u32,
    /// When the first stream starts.
    pub start_ns: u64,
    /// Stream i starts i times this later.
    pub stagger_ns: u64,
    /// How long each stream sends; absent: until the end, or until its bytes are sent.
    pub send_for_ns: Option<u64>,
    /// Payload of each stream; absent: as much as it can.
    pub bytes: Option<u64>,
    /// Payload rate of each stream that the application does not exceed; UDP needs one.
    pub rate_bps: Option<u64>,
    /// TCP or UDP.
    pub transport: Transport,
}

/// How a flow is carried.
#[derive(Debug, Clone, PartialEq)]
pub enum Transport {
    /// A byte stream.
    Tcp(Box<TcpPlan>),
    /// Datagrams at the flow's rate, whatever the path does.
    Udp(UdpPlan),
}

/// Parameters of TCP flows.
#[derive(Debug, Clone, PartialEq)]
pub struct TcpPlan {
    /// Largest IP packet; 52 bytes of it are headers, with IPv6 72.
    pub mtu_bytes: u32,
    /// Version of IP.
    pub family: Family,
    /// Bytes the application writes at once.
    pub block_bytes: u64,
    /// A timestamp is echoed for every so many bytes.
    pub echo_every_bytes: Option<u64>,
    /// The sending host's end.
    pub sender: EndpointPlan,
    /// The receiving host's end.
    pub receiver: EndpointPlan,
    /// The relay it passes through, as an index of relays.
    pub relay: Option<usize>,
}

/// One end of a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointPlan {
    /// Congestion control: `reno`, `highspeed` …, or its name in the kernel.
    pub cc: String,
    /// Settings of the congestion control, like `max_ssthresh_segments=100`.
    pub settings: Vec<String>,
    /// Payload the send buffer holds, unacknowledged included.
    pub send_buffer: SendBuffer,
    /// Bytes that may wait unsent in the send buffer (TCP_NOTSENT_LOWAT); absent: as many as it holds.
    pub unsent_limit_bytes: Option<u64>,
    /// Payload the receive buffer holds: the largest window advertised.
    pub receive_buffer: ReceiveBuffer,
    /// Most that is advertised of it (TCP_WINDOW_CLAMP); absent: all.
    pub window_bytes: Option<u64>,
    /// Selective acknowledgements (both ends must have it).
    pub sack: bool,
    /// Explicit congestion notification (both ends must have it).
    pub ecn: bool,
    /// Segments that are not full leave at once (TCP_NODELAY); otherwise one waits for the acknowledgement of another.
    pub no_delay: bool,
    /// Segments leave at a rate derived from the window instead of in bursts.
    pub pacing: bool,
    /// Share of the window, as its divisor, that is worth a bundle of segments: smaller ones wait for more
    /// (`net.ipv4.tcp_tso_win_divisor`; Linux has 3). Absent: none waits.
    pub tso_win_divisor: Option<u8>,
    /// How many times slower than its kernel's clock a run is: a bundle holds what leaves in a millisecond of the
    /// kernel's, which is so many times less of a slower run. At least 1.
    pub times_slower: u32,
    /// Full segments per acknowledgement it sends; Linux has 2.
    pub ack_every: u32,
    /// How long it delays an acknowledgement; Linux has 40 ms (TCP_DELACK_MIN).
    pub ack_delay_ns: u64,
}

/// Delay of an acknowledgement (TCP_DELACK_MIN).
const ACK_DELAY_NS: u64 = 40_000_000;

/// A send buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendBuffer {
    /// Always this size, of payload.
    Fixed(u64),
    /// Always this size, as Linux counts it: with the bookkeeping of its own buffers, and room is asked for only where
    /// one of these begins.
    Counted(u64),
    /// As Linux autotunes it, up to this size: room for two windows of segments with all the bookkeeping a lone
    /// segment would have, which written in large blocks is six windows of payload at an MTU of 1500. What was sent
    /// takes more: each bundle has its bookkeeping.
    Auto(u64),
}

/// A receive buffer, in bytes of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveBuffer {
    /// Always this size, all of it advertised from the start.
    Fixed(u64),
    /// As Linux autotunes it: it grows with what the application reads in a round trip.
    Auto {
        /// Size of the buffer at the start.
        first_bytes: u64,
        /// Size of the buffer at most.
        most_bytes: u64,
    },
}

impl ReceiveBuffer {
    /// Size of the buffer at most.
    pub fn most_bytes(&self) -> u64 {
        let (ReceiveBuffer::Fixed(most_bytes) | ReceiveBuffer::Auto { most_bytes, .. }) = *self;
        most_bytes
    }

    /// Size of the buffer at the start.
    pub fn first_bytes(&self) -> u64 {
        match *self {
            ReceiveBuffer::Fixed(bytes) => bytes,
            ReceiveBuffer::Auto { first_bytes, most_bytes } => first_bytes.min(most_bytes),
        }
    }
}

/// Datagrams.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpPlan {
    /// Payload of a datagram; 28 bytes of headers come on top, with IPv6 48.
    pub datagram_bytes: u32,
    /// Version of IP.
    pub family: Family,
    /// Law by which datagrams leave.
    pub arrivals: Arrivals,
    /// Seed of the source.
    pub seed: u64,
}

/// A split-TCP relay: it accepts connections early and carries their bytes on by connections of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayPlan {
    /// Name of the relay in records.
    pub name: String,
    /// Where it is.
    pub node: usize,
    /// What it holds per direction of a connection between the two sockets (a pipe).
    pub buffer_bytes: u64,
    /// What one filling of it takes at most: less, where each piece of a packet takes a page of the pipe.
    pub filling_bytes: u64,
    /// How its queue is kept short; absent: it is not.
    pub queue: Option<QueuePlan>,
    /// End of the relay towards the client.
    pub client_side: EndpointPlan,
    /// End of the relay towards the server.
    pub server_side: EndpointPlan,
}

impl Default for EndpointPlan {
    fn default() -> EndpointPlan {
        EndpointPlan {
            cc: "reno".to_owned(),
            settings: Vec::new(),
            send_buffer: SendBuffer::Auto(1 << 30),
            unsent_limit_bytes: None,
            receive_buffer: ReceiveBuffer::Fixed(1 << 30),
            window_bytes: None,
            sack: true,
            ecn: false,
            no_delay: true,
            pacing: false,
            tso_win_divisor: None,
            times_slower: 1,
            ack_every: 2,
            ack_delay_ns: ACK_DELAY_NS,
        }
    }
}

impl Default for TcpPlan {
    fn default() -> TcpPlan {
        TcpPlan {
            mtu_bytes: 1500,
            family: Family::Ipv4,
            block_bytes: 128 << 10,
            echo_every_bytes: None,
            sender: EndpointPlan::default(),
            receiver: EndpointPlan::default(),
            relay: None,
        }
    }
}

/// What is wrong with a scenario, and the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// An index points nowhere.
    #[error("{whose} names {what} {index}, but there are {count}; indices begin with 0")]
    Index {
        /// The flow, relay or other part that names it.
        whose: String,
        /// A node or a relay.
        what: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Two nodes without a path.
    #[error("no links lead from '{from}' to '{to}'; add one")]
    NoPath {
        /// Name of the first node.
        from: String,
        /// Name of the second node.
        to: String,
    },
    /// Both ends in one place.
    #[error("{whose} begins and ends at '{node}'; a connection needs a link between its ends")]
    SameNode {
        /// Name of the connection.
        whose: String,
        /// Name of the node.
        node: String,
    },
    /// A value out of its bounds.
    #[error("{whose}: {what} is {value}; {mend}")]
    Value {
        /// The part with the value.
        whose: String,
        /// Which value.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        mend: &'static str,
    },
    /// No such congestion control.
    #[error("{whose}: {source}")]
    Algorithm {
        /// The part that names it.
        whose: String,
        /// What is wrong.
        source: UnknownAlgorithm,
    },
    /// A setting that its algorithm does not take.
    #[error("{whose}: {source}")]
    Setting {
        /// The part with the setting.
        whose: String,
        /// What is wrong.
        source: SettingError,
    },
}

pub(crate) fn refuse_unless(
    good: bool,
    whose: &str,
    what: &'static str,
    value: u64,
    mend: &'static str,
) -> Result<(), ScenarioError> {
    if good { Ok(()) } else { Err(ScenarioError::Value { whose: whose.to_owned(), what, value, mend }) }
}

impl SendBuffer {
    /// Size at first and at most; it holds at least one segment.
    pub(crate) fn bounds(self, mss_bytes: u32) -> (u64, u64) {
        let initial = 2 * u64::from(INITIAL_WINDOW) * reserved_bytes(mss_bytes);
        let mss_bytes = u64::from(mss_bytes);
        match self {
            SendBuffer::Fixed(bytes) | SendBuffer::Counted(bytes) => {
                (bytes.max(mss_bytes), bytes.max(mss_bytes))
            }
            SendBuffer::Auto(most) => (initial.min(most.max(mss_bytes)), most.max(mss_bytes)),
        }
    }
}

impl EndpointPlan {
    /// The algorithm with its settings.
    pub(crate) fn tunables(&self, whose: &str) -> Result<Tunables, ScenarioError> {
        let named = |source| ScenarioError::Algorithm { whose: whose.to_owned(), source };
        let algorithm = Algorithm::find(&self.cc).map_err(named)?;
        Tunables::from_settings(algorithm, &self.settings)
            .map_err(|source| ScenarioError::Setting { whose: whose.to_owned(), source })
    }

    /// Capabilities hold only when both ends have them.
    pub(crate) fn agreed_with(&self, peer: &EndpointPlan) -> EndpointPlan {
        EndpointPlan { sack: self.sack && peer.sack, ecn: self.ecn && peer.ecn, ..self.clone() }
    }

    fn check(&self, whose: &str, mss_bytes: u32) -> Result<(), ScenarioError> {
        self.tunables(whose)?;
        let window = self.receive_buffer.first_bytes();
        let bounds = u64::from(mss_bytes)..=u64::from(u32::MAX);
        refuse_unless(
            bounds.contains(&window),
            whose,
            "the receive buffer in bytes",
            window,
            "it must hold a segment and be less than 4 GiB",
        )?;
        let most = self.receive_buffer.most_bytes();
        refuse_unless(
            most <= u64::from(u32::MAX),
            whose,
            "the greatest receive buffer in bytes",
            most,
            "it must be less than 4 GiB",
        )?;
        let clamp = self.window_bytes.unwrap_or(window);
        refuse_unless(
            clamp >= u64::from(mss_bytes),
            whose,
            "the window in bytes",
            clamp,
            "it must hold a segment",
        )?;
        let unsent = self.unsent_limit_bytes.unwrap_or(1);
        refuse_unless(unsent > 0, whose, "the limit of unsent bytes", 0, "it must let something be written")
    }
}

impl TcpPlan {
    /// Payload of a full segment.
    pub fn mss_bytes(&self) -> u32 {
        self.mtu_bytes.saturating_sub(self.family.tcp_header_bytes())
    }
}

impl Scenario {
    /// When the simulation ends, in virtual time.
    pub(crate) fn end_ns(&self) -> u64 {
        self.settle_ns.saturating_add(self.duration_ns)
    }

    /// How often bytes that arrived are counted: as often as receivers of the transfer program count them, or with each
    /// sample if that is more often.
    pub(crate) fn count_every_ns(&self) -> u64 {
        self.sample_every_ns.min(COUNT_EVERY_NS)
    }

    /// Checks everything but paths, which [`crate::run`] looks for.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let us = 1000;
        refuse_unless(
            self.sample_every_ns >= us,
            "the scenario",
            "the sample interval in ns",
            self.sample_every_ns,
            "it must be at least 1 us",
        )?;
        refuse_unless(
            self.end_ns() < 1 << 62,
            "the scenario",
            "the duration in ns",
            self.end_ns(),
            "it must be less than a century",
        )?;
        for node in &self.nodes {
            let is_span = |held: &&HoldUp| held.from_ns < held.to_ns;
            let wrong = node.hold_ups.iter().find(|held| !is_span(held));
            refuse_unless(
                wrong.is_none(),
                &format!("node '{}'", node.name),
                "the end of a hold-up in ns",
                wrong.map_or(0, |held| held.to_ns),
                "it must be later than its beginning",
            )?;
        }
        for link in &self.links {
            let whose = format!("link '{}'", link.plan.name);
            link.ends.iter().try_for_each(|end| self.check_node(&whose, *end))?;
        }
        for relay in &self.relays {
            let whose = format!("relay '{}'", relay.name);
            self.check_node(&whose, relay.node)?;
            let sizes =
                [("the buffer in bytes", relay.buffer_bytes), ("a filling in bytes", relay.filling_bytes)];
            for (what, bytes) in sizes {
                refuse_unless(bytes > 0, &whose, what, 0, "it must hold something")?;
            }
            relay.client_side.check(&whose, 1)?;
            relay.server_side.check(&whose, 1)?;
        }
        self.flows.iter().try_for_each(|flow| self.check_flow(flow))
    }

    fn check_node(&self, whose: &str, node: usize) -> Result<(), ScenarioError> {
        check_index(whose, "node", node, self.nodes.len())
    }

    fn check_flow(&self, flow: &FlowPlan) -> Result<(), ScenarioError> {
        let whose = format!("flow '{}'", flow.name);
        self.check_node(&whose, flow.from)?;
        self.check_node(&whose, flow.to)?;
        refuse_unless(flow.streams > 0, &whose, "the number of streams", 0, "it must be at least 1")?;
        refuse_unless(flow.rate_bps != Some(0), &whose, "the rate in bit/s", 0, "leave it out for no limit")?;
        match &flow.transport {
            Transport::Tcp(tcp) => self.check_tcp(&whose, tcp),
            Transport::Udp(udp) => {
                let size = u64::from(udp.datagram_bytes);
                refuse_unless(
                    (1..=65_507).contains(&size),
                    &whose,
                    "the datagram in bytes",
                    size,
                    "it must be 1 to 65507",
                )?;
                refuse_unless(flow.rate_bps.is_some(), &whose, "the rate in bit/s", 0, "UDP needs one")
            }
        }
    }

    fn check_tcp(&self, whose: &str, tcp: &TcpPlan) -> Result<(), ScenarioError> {
        let mtu = u64::from(tcp.mtu_bytes);
        refuse_unless(
            (576..=65_535).contains(&mtu),
            whose,
            "the MTU in bytes",
            mtu,
            "it must be 576 to 65535",
        )?;
        refuse_unless(tcp.block_bytes > 0, whose, "the block in bytes", 0, "it must be at least 1")?;
        let every = tcp.echo_every_bytes.unwrap_or(1 << 20);
        refuse_unless(every > 16, whose, "the echo spacing in bytes", every, "a timestamp alone takes 16")?;
        tcp.sender.check(whose, tcp.mss_bytes())?;
        tcp.receiver.check(whose, tcp.mss_bytes())?;
        if let Some(relay) = tcp.relay {
            check_index(whose, "relay", relay, self.relays.len())?;
        }
        Ok(())
    }
}

fn check_index(whose: &str, what: &'static str, index: usize, count: usize) -> Result<(), ScenarioError> {
    if index < count {
        return Ok(());
    }
    Err(ScenarioError::Index { whose: whose.to_owned(), what, index, count })
}
