//! A plan: one run with every value resolved. A pure function of the experiment; what is not in it does not happen.

mod backend_kind;
mod disk;
mod follow;
pub(crate) mod need;
pub mod network;
pub(crate) mod refusals;
mod resolve;

pub use crate::spec::seed_of;
pub use backend_kind::BackendKind;
pub use follow::{FarPlan, FollowPlan, RealFollow};
pub use resolve::plans;
pub(crate) use resolve::sysctls_of_namespace;

use crate::spec::Protocol;
use longfat_cc::{Algorithm, Tunables, queue::QueuePlan};
use longfat_link::LinkPlan;
use longfat_schema::{arrivals::Arrivals, own_time::Dilation, run::AxisPoint};
use longfat_sim::Family;
use longfat_transfer::{Amount, TransferPlan};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`longfat_schema::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// Case; in a sweep, cell: `CASE,AXIS=LABEL,…`.
    pub case: String,
    /// What a reader sees of the case.
    pub case_title: String,
    /// Where it stands in the sweep (`case` first, when there are cases); empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<AxisPoint>,
    /// Repeat, from 1.
    pub repeat: u32,
    /// Seed of every random choice of this run.
    pub seed: u64,
    /// How many times slower than meant it is carried out where it is emulated. Every other value is the experiment's
    /// own.
    #[serde(default, skip_serializing_if = "Dilation::is_none")]
    pub dilation: Dilation,
    /// The flow the experiment is about.
    pub focus: Option<String>,
    /// Metrics are counted from here…
    pub window_start_us: i64,
    /// …to here; flows end here, but for streams that start later than their flow.
    pub window_end_us: i64,
    /// Distance of samples.
    pub sample_every_us: u64,
    /// How much later than planned a TCP flow may begin.
    pub start_within_us: u64,
    /// Share of busy CPU above which the run is invalid.
    pub cpu_limit: Option<f64>,
    /// Share of dropped packets that hold-ups may have caused; the judge's own limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_up_limit: Option<f64>,
    /// Share by which a TCP flow's figures may differ from its twin's; the judge's own limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin_limit: Option<f64>,
    /// Hosts in order of names.
    pub hosts: Vec<HostPlan>,
    /// Links in order of names.
    pub links: Vec<CablePlan>,
    /// Relays that are enabled.
    pub relays: Vec<RelayPlan>,
    /// Routers whose links are followed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follows: Vec<FollowPlan>,
    /// Flows that are enabled.
    pub flows: Vec<FlowPlan>,
    /// Every tunable of each of our congestion controls among [`Plan::ccs`], by the kernel's name.
    #[serde(default)]
    pub tunables: BTreeMap<String, BTreeMap<String, u32>>,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostPlan {
    /// Name of the host.
    pub name: String,
    /// Whether the host forwards packets.
    pub forward: bool,
    /// Sysctls set on it: ours, the experiment's, its own.
    pub sysctls: BTreeMap<String, String>,
    /// Routes to links it is not on.
    pub routes: Vec<RoutePlan>,
    /// Interfaces whose packets must be of MTU size (segmentation offloads off), because they lead into an
    /// emulated link.
    pub unsegmented: Vec<String>,
}

/// How a host reaches a link it is not on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutePlan {
    /// Prefix of the link that is reached.
    pub ipv4: String,
    /// The neighbour's address.
    pub ipv4_via: Ipv4Addr,
    /// Prefix of the link that is reached.
    pub ipv6: String,
    /// The neighbour's address.
    pub ipv6_via: Ipv6Addr,
}

/// One link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CablePlan {
    /// Name of the link, also of its interface on both hosts.
    pub name: String,
    /// Largest IP packet.
    pub mtu_bytes: u32,
    /// First and second end; `forward` is from the first to the second.
    pub ends: [EndPlan; 2],
    /// The emulated path; absent for a plain cable.
    pub path: Option<LinkPlan>,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndPlan {
    /// Host that has the interface.
    pub host: String,
    /// IPv4 address of the interface.
    pub ipv4: Ipv4Addr,
    /// IPv6 address of the interface.
    pub ipv6: Ipv6Addr,
}

/// One relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayPlan {
    /// Name of the relay in every record.
    pub name: String,
    /// Where it runs.
    pub host: String,
    /// Interfaces whose connections it takes over.
    pub intercept: Vec<String>,
    /// Congestion control towards the client.
    pub cc_client: String,
    /// Congestion control towards the server.
    pub cc_server: String,
    /// Socket buffers towards the client; the relay's default when absent.
    pub buffer_client_bytes: Option<u64>,
    /// Socket buffers towards the server; the relay's default when absent.
    pub buffer_server_bytes: Option<u64>,
    /// How its queues are kept short; absent: they are left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePlan>,
    /// Most that is sent towards the server, evenly spaced; neither limited nor paced when absent.
    pub pacing_server_bps: Option<u64>,
    /// How long bulk data gather; the relay's default when absent. A plan that is carried out slower says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesce_us: Option<u64>,
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowPlan {
    /// Name of the flow in every record.
    pub name: String,
    /// Sending host.
    pub from: String,
    /// Receiving host.
    pub to: String,
    /// Where the receiver listens.
    pub address: IpAddr,
    /// Port of the receiver: one for all flows to a host.
    pub port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Congestion control of the sending sockets (TCP).
    pub cc: Option<String>,
    /// Congestion control of the receiving sockets (TCP).
    pub cc_receiver: Option<String>,
    /// Number of connections.
    pub streams: u32,
    /// Stream i starts i times this late.
    pub stagger_us: u64,
    /// Send buffer; autotuned when absent.
    pub sndbuf_bytes: Option<u64>,
    /// Receive buffer; autotuned when absent.
    pub rcvbuf_bytes: Option<u64>,
    /// Most payload of a connection in flight; as its buffers allow when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u64>,
    /// Bytes per write; the program's default when absent.
    pub block_bytes: Option<u64>,
    /// UDP payload of a datagram; what a packet of Ethernet carries when absent.
    pub datagram_bytes: Option<u64>,
    /// Limit of the application's rate.
    pub rate_bps: Option<u64>,
    /// Law by which UDP datagrams leave.
    pub arrivals: Arrivals,
    /// Seed of the arrivals, where they are random.
    pub arrivals_seed: Option<u64>,
    /// Segments per acknowledgement of its receiver, simulated runs only; as the system has it when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_every: Option<u32>,
    /// A timestamp is echoed for every so many bytes.
    pub echo_every_bytes: Option<u64>,
    /// When it starts, after the start of the run.
    pub start_us: u64,
    /// How long it sends at most.
    pub duration_us: u64,
    /// Payload bytes after which the flow ends, all streams together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// Largest packet of Ethernet.
const ETHERNET_BYTES: u32 = 1500;

impl FlowPlan {
    /// When its last stream ends, after the start of the run: each sends so long from its own start.
    pub fn end_us(&self) -> u64 {
        let last_us = u64::from(self.streams.saturating_sub(1)).saturating_mul(self.stagger_us);
        self.start_us.saturating_add(last_us).saturating_add(self.duration_us)
    }

    /// What its sender offers the socket at once, in bytes: what it says, or what the transfer program would.
    pub fn offered_bytes(&self) -> u64 {
        let usual_bytes = || TransferPlan::usual_block_bytes(self.rate_bps, self.streams).into();
        self.block_bytes.unwrap_or_else(usual_bytes)
    }

    /// Payload of its datagrams, in bytes: what it says, or what a packet of Ethernet carries.
    pub fn payload_bytes(&self) -> u64 {
        self.datagram_bytes.unwrap_or_else(|| (ETHERNET_BYTES - self.family().udp_header_bytes()).into())
    }

    /// Version of IP by which it goes.
    pub fn family(&self) -> Family {
        if self.address.is_ipv6() { Family::Ipv6 } else { Family::Ipv4 }
    }

    /// What the transfer program is told of it; the rest is the run's, or as the program has it.
    pub fn transfer(&self) -> TransferPlan {
        let usual = TransferPlan::default();
        // What is too much for the type is too much for a plan.
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        TransferPlan {
            flow: self.name.clone(),
            protocol: match self.protocol {
                Protocol::Tcp => longfat_transfer::Protocol::Tcp,
                Protocol::Udp => longfat_transfer::Protocol::Udp,
            },
            streams: self.streams,
            amount: self.size_bytes.map_or(Amount::DurationUs(self.duration_us), Amount::Bytes),
            block_bytes: bytes(self.offered_bytes()),
            sndbuf_bytes: self.sndbuf_bytes,
            rcvbuf_bytes: self.rcvbuf_bytes,
            window_bytes: self.window_bytes,
            cc_sender: self.cc.clone(),
            cc_receiver: self.cc_receiver.clone(),
            rate_bps: self.rate_bps,
            echo_every_bytes: self.echo_every_bytes,
            datagram_bytes: bytes(self.payload_bytes()),
            arrivals: self.arrivals,
            arrivals_seed: self.arrivals_seed.unwrap_or(usual.arrivals_seed),
            stagger_us: self.stagger_us,
            ..usual
        }
    }
}

impl Plan {
    /// When everything ends, after the start of the run: the window, and every stream of every flow.
    pub fn end_us(&self) -> u64 {
        let flows = self.flows.iter().map(FlowPlan::end_us);
        flows.chain([self.window_end_us.unsigned_abs()]).max().unwrap_or(0)
    }

    /// How our congestion control of that name is set in this run; `None` for a name that is not ours.
    pub fn tunables_of(&self, cc: &str) -> Option<Tunables> {
        let algorithm = Algorithm::find(cc).ok().filter(|_| Algorithm::is_our_name(cc))?;
        let set = self.tunables.get(cc).into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
        // What a tunable may be was checked with the experiment.
        Tunables::from_settings(algorithm, set).ok()
    }

    /// Every congestion control the run needs.
    pub fn ccs(&self) -> Vec<String> {
        let flows = self.flows.iter().flat_map(|flow| [&flow.cc, &flow.cc_receiver]).flatten();
        let relays = self.relays.iter().flat_map(|relay| [&relay.cc_client, &relay.cc_server]);
        flows.chain(relays).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Directory of the run within its result. In a sweep one level per axis, as readers of partitioned tables know it:
    /// `case=reno/rate=25Mbit/repeat=1`.
    pub fn directory(&self) -> String {
        if self.axes.is_empty() {
            return format!("{}/r{}", self.case, self.repeat);
        }
        let axes = self.axes.iter().map(AxisPoint::to_string);
        axes.chain([format!("repeat={}", self.repeat)]).collect::<Vec<_>>().join("/")
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tests_support;
