//! Which connections are carried, and how.

use super::{LegPlan, Network, Ports};
use longfat_cc::queue::QueuePlan;
use longfat_kernel::watch::Conditions;
use serde::{Deserialize, Serialize, ser::SerializeMap};
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// Bytes that a buffer between two sockets takes in one filling at most.
pub const BUFFER_BYTES: usize = 256 * 1024;
/// Size of a page of the pipe between two sockets.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages of that pipe: twice what a filling has, because each piece of a packet takes one.
pub(crate) const PIPE_PAGES: usize = 2 * BUFFER_BYTES / PAGE_BYTES;

/// Bytes that one filling takes at most where segments of so many bytes come one by one, each in pages of its own.
pub const fn filling_bytes(segment_bytes: usize) -> usize {
    match PIPE_PAGES.checked_div(segment_bytes.div_ceil(PAGE_BYTES)) {
        Some(segments @ 1..) if segments * segment_bytes < BUFFER_BYTES => segments * segment_bytes,
        _ => BUFFER_BYTES,
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RulePlan {
    /// Name of the rule in status, metrics and log.
    pub name: String,
    /// Which connections it is about.
    #[serde(rename = "match")]
    pub matches: MatchPlan,
    /// How they are carried; they pass unrelayed when absent.
    #[serde(serialize_with = "shared_if_any")]
    pub relay: Option<Arc<ConnectionPlan>>,
}

pub(super) fn shared<S: serde::Serializer>(
    plan: &Arc<ConnectionPlan>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    plan.as_ref().serialize(serializer)
}

fn shared_if_any<S: serde::Serializer>(
    plan: &Option<Arc<ConnectionPlan>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    plan.as_deref().serialize(serializer)
}

/// Which connections a rule is about: what is empty matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MatchPlan {
    /// Interfaces on which the client's packets arrive; no client of a listener does, for such a rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Where the client is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Network>,
    /// Where the server is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<Network>,
    /// The server's ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Ports>,
}

impl MatchPlan {
    /// Whether the rule is about a client that connected to a listener of the relay.
    pub fn takes_listeners_client(&self, client: SocketAddr, server: SocketAddr) -> bool {
        self.interfaces.is_empty() && self.takes_addresses(client, server)
    }

    /// Whether the rule is about a client whose packets arrive at that interface.
    pub fn takes(&self, interface: &str, client: SocketAddr, server: SocketAddr) -> bool {
        (self.interfaces.is_empty() || self.interfaces.iter().any(|name| name == interface))
            && self.takes_addresses(client, server)
    }

    fn takes_addresses(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let among = |networks: &[Network], address: SocketAddr| {
            networks.is_empty() || networks.iter().any(|network| network.contains(address.ip()))
        };
        among(&self.sources, client)
            && among(&self.destinations, server)
            && (self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(server.port())))
    }
}

/// How one connection is carried. Every connection holds the one it was accepted with; a reload does not change it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectionPlan {
    /// The name of the rule it comes from; `default` for what no rule speaks of.
    pub rule: String,
    /// When the client's SYN is answered.
    pub accept: Accept,
    /// When the relay steps into a connection that it accepts end to end: right after the handshake without any.
    #[serde(flatten, serialize_with = "as_keys")]
    pub adopt: Conditions,
    /// Silence after which the relay leaves a connection that it adopted in mid-stream; never when absent.
    #[serde(
        rename = "release_after_us",
        skip_serializing_if = "Option::is_none",
        serialize_with = "super::as_us_if_any"
    )]
    pub release_after: Option<Duration>,
    /// By whom an end is told that what it sent has arrived.
    #[serde(skip_serializing_if = "Acknowledge::is_early")]
    pub acknowledge: Acknowledge,
    /// What becomes of intercepted clients that would use several ways at once.
    pub mptcp: Mptcp,
    /// The leg towards the client.
    pub client: LegPlan,
    /// The leg towards the server.
    pub server: LegPlan,
    /// A connection that moves nothing for so long is ended; never when absent.
    #[serde(rename = "idle_us", serialize_with = "super::as_us_if_any")]
    pub idle: Option<Duration>,
    /// Memory of one connection: both sockets' buffers and the relay's own; what the buffers allow when absent.
    pub memory_bytes: Option<u64>,
    /// How its queues are kept short; they are left alone when absent.
    pub queue: Option<QueuePlan>,
}

impl Default for ConnectionPlan {
    fn default() -> ConnectionPlan {
        ConnectionPlan {
            rule: ConnectionPlan::DEFAULT_RULE.into(),
            accept: Accept::Early,
            adopt: Conditions::default(),
            release_after: None,
            acknowledge: Acknowledge::Early,
            mptcp: Mptcp::Relay,
            client: LegPlan::client(),
            server: LegPlan::server(),
            idle: Some(ConnectionPlan::DEFAULT_IDLE),
            memory_bytes: None,
            queue: Some(QueuePlan::default()),
        }
    }
}

impl ConnectionPlan {
    /// As long as routers remember a connection that is silent (RFC 5382, REQ-5).
    pub const DEFAULT_IDLE: Duration = Duration::from_secs(124 * 60);
    /// The name of what no rule speaks of.
    pub const DEFAULT_RULE: &str = "default";
    /// With less memory than this a connection has small buffers in the relay.
    const THRIFTY_BYTES: u64 = 8 * BUFFER_BYTES as u64;
    /// The relay's own buffers of a connection.
    const OWN_BYTES: u64 = 2 * BUFFER_BYTES as u64;
    /// Least buffer of a leg.
    const LEAST_BUFFER_BYTES: u64 = 4096;

    /// Whether such a connection passes until it is worth stepping into.
    pub(crate) fn is_watched(&self) -> bool {
        self.accept == Accept::EndToEnd && !self.adopt.is_none()
    }

    /// Whether somebody looks at what such a connection holds.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.queue.is_some() || self.client.begins_small
    }

    /// Whether the relay's own buffers of the connection are small.
    pub(crate) fn is_thrifty(&self) -> bool {
        self.memory_bytes.is_some_and(|bytes| bytes < ConnectionPlan::THRIFTY_BYTES)
    }

    /// Makes the buffers of both legs smaller, in proportion, until they and the relay's own fit into `memory_bytes`.
    #[must_use]
    pub fn within_memory(mut self) -> ConnectionPlan {
        let Some(memory_bytes) = self.memory_bytes else { return self };
        let [client, server] = self.buffers_within(memory_bytes);
        self.client.buffer_bytes = client.max(ConnectionPlan::LEAST_BUFFER_BYTES);
        self.server.buffer_bytes = server.max(ConnectionPlan::LEAST_BUFFER_BYTES);
        (self.client.fast_buffer_bytes, self.server.fast_buffer_bytes) = (0, 0);
        self
    }

    /// Buffers of the client's and the server's leg, made smaller in proportion until they and the relay's own fit into
    /// so much.
    pub(crate) fn buffers_within(&self, memory_bytes: u64) -> [u64; 2] {
        let is_thrifty = memory_bytes < ConnectionPlan::THRIFTY_BYTES;
        let own_bytes = if is_thrifty { 0 } else { ConnectionPlan::OWN_BYTES };
        let left_bytes = u128::from(memory_bytes.saturating_sub(own_bytes));
        let sockets_bytes = u128::from(self.sockets_bytes().max(1));
        [&self.client, &self.server].map(|leg| {
            let share = u128::from(leg.buffer_bytes) * left_bytes / sockets_bytes;
            leg.buffer_bytes.min(share as u64)
        })
    }

    /// What all buffers of the connection may come to hold.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.sockets_bytes() + ConnectionPlan::OWN_BYTES
    }

    /// Both legs have a buffer each way.
    fn sockets_bytes(&self) -> u64 {
        2 * (self.client.buffer_bytes + self.server.buffer_bytes)
    }
}

/// The keys by which conditions are given, and their values as people write them, to be read back exactly.
pub(super) fn adopt_keys(conditions: &Conditions) -> impl Iterator<Item = (&'static str, String)> {
    let Conditions { bytes, time, rate_bps, rtt, losses_ppm } = *conditions;
    let ns = |time: Duration| format!("{}ns", time.as_nanos());
    let after = bytes.map(|bytes| format!("{bytes}B")).or(time.map(ns));
    let rate = rate_bps.map(|bps| format!("{bps}bit"));
    let losses = losses_ppm.map(|ppm| (f64::from(ppm) / 1e6).to_string());
    let keys = ["adopt_after", "adopt_rate", "adopt_rtt", "adopt_losses"];
    let values = [after, rate, rtt.map(ns), losses];
    keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)))
}

fn as_keys<S: serde::Serializer>(conditions: &Conditions, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (key, value) in adopt_keys(conditions) {
        match value.parse::<f64>() {
            Ok(number) => map.serialize_entry(key, &number)?,
            Err(_) => map.serialize_entry(key, &value)?,
        }
    }
    map.end()
}

/// What becomes of a connection whose client offers Multipath TCP (RFC 8684).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mptcp {
    /// MPTCP is carried as plain TCP, as by a server without MPTCP.
    #[default]
    Relay,
    /// MPTCP passes unrelayed.
    Pass,
}

/// When the client's SYN is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Accept {
    /// At once: the client's first bytes arrive while the server is still being dialled.
    #[default]
    Early,
    /// When the server has answered: a refused or unreachable server is seen as refused or unreachable.
    AfterServer,
    /// Never by the relay: the ends shake hands with each other, and then the relay steps in between with their own
    /// sequence numbers. What it cannot step into stays end to end.
    EndToEnd,
}

/// When an end is told that what it sent has arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Acknowledge {
    /// When the relay has it: what it has not delivered is lost with its host.
    #[default]
    Early,
    /// When the other end has acknowledged it: nothing that an end was told of is lost with the relay or its host.
    EndToEnd,
}

impl Acknowledge {
    fn is_early(&self) -> bool {
        *self == Acknowledge::Early
    }
}
