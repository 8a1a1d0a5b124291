//! The relay's file: what a person writes, as TOML. [`RelaySpec::parse`] finds every problem at once;
//! [`RelaySpec::resolve`] makes the plan.

mod after;
mod list;
mod queue;
mod resolve;

pub use after::AfterSpec;
pub use list::List;
pub use queue::{QueueSpec, TargetSpec};
pub use resolve::server;

use crate::plan::{Accept, Acknowledge, Fail, LogFormat, LogLevel, Mptcp, Network, Ports};
use longfat_schema::{
    decode::{Problem, decode, list},
    units::{Nanos, Rate, Size},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{net::SocketAddr, path::PathBuf};
use toml::Value;

/// Why a relay's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Text that is no TOML.
    #[error("not valid TOML: {0}")]
    Syntax(#[from] Box<toml::de::Error>),
    /// Values that cannot be.
    #[error("{}", list(.0))]
    Problems(Vec<Problem>),
}

/// A relay's file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct RelaySpec {
    /// Name of the relay, in the nft table `longfat_NAME`, records and the socket's path; `relay` when absent.
    pub name: Option<String>,
    /// Which of the traffic that passes this host is taken over.
    pub intercept: Option<InterceptSpec>,
    /// Addresses to which clients connect, each with its server; any number.
    #[serde(default)]
    pub listen: Vec<ListenSpec>,
    /// Which connections are carried how: the first rule that matches counts. With rules, what none matches passes.
    #[serde(default)]
    pub rule: Vec<RuleSpec>,
    /// Settings of connections that no rule matches, and of whatever a rule leaves out.
    #[serde(default)]
    pub defaults: WaySpec,
    /// What becomes of intercepted traffic while the relay is not there: it passes unrelayed, or is dropped.
    #[serde(default)]
    pub fail: Fail,
    /// Connections, memory and descriptors that the relay may use; beyond them clients wait or pass unrelayed, as they
    /// are accepted, and no byte is dropped.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// How long living connections may go on after SIGTERM; 5 s when absent.
    pub drain: Option<Nanos>,
    /// How long a reset waits until the bytes before it are delivered; 2 s when absent.
    pub reset_wait: Option<Nanos>,
    /// How long bulk data may gather in the receiving socket; 2 ms when absent, 100 ms at most, 0 for not at all.
    pub coalesce: Option<Nanos>,
    /// Worker threads; one per core when absent.
    pub workers: Option<usize>,
    /// Whether a keeper holds duplicates of sockets and pipes, so that connections survive a relay that is killed.
    #[serde(default)]
    pub keep: bool,
    /// Where connections come in that the relay of another router moves here (`longfat relay move`); nowhere when
    /// absent.
    #[serde(rename = "move")]
    pub moves: Option<MoveSpec>,
    /// Unix socket on which `longfat relay status` is answered.
    #[serde(default)]
    pub control: ControlSpec,
    /// Loopback address on which Prometheus is answered, like `127.0.0.1:9469`; none when absent.
    pub metrics: Option<SocketAddr>,
    /// Form and level of the log on standard error.
    #[serde(default)]
    pub log: LogSpec,
}

/// Traffic that a transparent relay takes over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct InterceptSpec {
    /// Interfaces at which clients' packets arrive.
    #[serde(default)]
    pub interfaces: List<String>,
    /// First of the packet marks; 482 numbers from it on must be free. A free one is chosen when absent.
    pub mark: Option<u32>,
    /// First of the routing tables, 256 or above; 481 numbers from it on must be free. A free one is chosen when
    /// absent.
    pub table: Option<u32>,
    /// Turn IP forwarding on while the relay runs, rather than refuse to start when it is off.
    #[serde(default)]
    pub forwarding: bool,
}

/// One address on which clients connect to the relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct ListenSpec {
    /// Address and port to listen on.
    pub address: SocketAddr,
    /// Server as `HOST:PORT`: looked up when the file is read, its addresses tried in order.
    pub to: String,
}

/// `relay` or `pass`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ActionSpec {
    /// Carry it.
    #[default]
    Relay,
    /// Leave it alone.
    Pass,
}

/// Which connections, and how they are carried. A key that says which and is left out matches everything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct RuleSpec {
    /// Name of the rule, in status and metrics; `rule-N` by its place when absent.
    pub name: Option<String>,
    /// Interfaces at which the client's packets arrive.
    #[serde(default)]
    pub interface: List<String>,
    /// Networks of clients, like `10.1.0.0/16`.
    #[serde(default)]
    pub source: List<Network>,
    /// Networks of servers, also for clients of a listener.
    #[serde(default)]
    pub destination: List<Network>,
    /// Ports of servers: `443`, `"8000-8080"`.
    #[serde(default)]
    pub port: List<Ports>,
    /// Relay the connection, or let it pass untouched. A client of a listener cannot pass: it is reset.
    #[serde(default)]
    pub action: ActionSpec,
    /// What answers the client's SYN: the relay, at once (`early`, when absent) or when the server has answered
    /// (`after-server`); or the server itself, and the relay steps in afterwards (`end-to-end`).
    pub accept: Option<Accept>,
    /// Experimental: with `accept = "end-to-end"`, step in when so many bytes (`1MB`) have passed, or after such a time
    /// (`500ms`), and forward until then; with other `adopt_…` keys, when all of them hold. What it lacks:
    /// docs/design/relay-adopt.md.
    pub adopt_after: Option<AfterSpec>,
    /// With `accept = "end-to-end"`: step in when both ends together send at such a rate (`10Mbit`), or faster, for as
    /// many bytes as it gives in a second. All `adopt_…` keys must hold.
    pub adopt_rate: Option<Rate>,
    /// With `accept = "end-to-end"`: step in when the least round trip to the farther end is at least
    /// so long (`20ms`).
    pub adopt_rtt: Option<Nanos>,
    /// With `accept = "end-to-end"`: step in when such a share of the bytes (`0.01`), or more, came out of order or
    /// again; of 100 KB at least.
    pub adopt_losses: Option<f64>,
    /// With `adopt_…` keys: leave a connection that was stepped into when nothing was sent either way for so
    /// long, and all is acknowledged. It goes on from end to end, and is stepped into again when the keys hold
    /// anew. Never when absent.
    pub release_after: Option<Nanos>,
    /// With `accept = "end-to-end"`: acknowledge to an end what it sent when the relay has it (`early`, when absent), or
    /// when the other end has acknowledged it (`end-to-end`): then nothing that was acknowledged is lost with the
    /// relay's host. Ends without selective acknowledgements stay end to end.
    pub acknowledge: Option<Acknowledge>,
    /// Clients that offer Multipath TCP: carried as plain TCP (`relay`, when absent), or left alone.
    pub mptcp: Option<Mptcp>,
    /// Leg towards the client.
    #[serde(default)]
    pub client: LegSpec,
    /// Leg towards the server.
    #[serde(default)]
    pub server: LegSpec,
    /// Silence after which a connection is ended; 124 minutes when absent (RFC 5382), `0` for never.
    pub idle: Option<Nanos>,
    /// Silence after which a peer is probed; 60 s when absent, `0` for never.
    pub keepalive: Option<Nanos>,
    /// Most memory of one connection; both legs' buffers are made smaller until they fit.
    pub memory: Option<Size>,
    /// How long bytes may wait in the relay, and what keeps the wait short.
    pub queue: Option<QueueSpec>,
}

impl RuleSpec {
    fn way(&self) -> WaySpec {
        WaySpec {
            accept: self.accept,
            adopt_after: self.adopt_after,
            adopt_rate: self.adopt_rate,
            adopt_rtt: self.adopt_rtt,
            adopt_losses: self.adopt_losses,
            release_after: self.release_after,
            acknowledge: self.acknowledge,
            mptcp: self.mptcp,
            client: self.client.clone(),
            server: self.server.clone(),
            idle: self.idle,
            keepalive: self.keepalive,
            memory: self.memory,
            queue: self.queue.clone(),
        }
    }
}

/// How connections are carried: `[defaults]`, and a part of every rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct WaySpec {
    /// What answers the client's SYN: the relay, at once (`early`, when absent) or when the server has answered
    /// (`after-server`); or the server itself, and the relay steps in afterwards (`end-to-end`).
    pub accept: Option<Accept>,
    /// Experimental: with `accept = "end-to-end"`, step in when so many bytes (`1MB`) have passed, or after such a time
    /// (`500ms`), and forward until then; with other `adopt_…` keys, when all of them hold. What it lacks:
    /// docs/design/relay-adopt.md.
    pub adopt_after: Option<AfterSpec>,
    /// With `accept = "end-to-end"`: step in when both ends together send at such a rate (`10Mbit`), or faster, for as
    /// many bytes as it gives in a second. All `adopt_…` keys must hold.
    pub adopt_rate: Option<Rate>,
    /// With `accept = "end-to-end"`: step in when the least round trip to the farther end is at least
    /// so long (`20ms`).
    pub adopt_rtt: Option<Nanos>,
    /// With `accept = "end-to-end"`: step in when such a share of the bytes (`0.01`), or more, came out of order or
    /// again; of 100 KB at least.
    pub adopt_losses: Option<f64>,
    /// With `adopt_…` keys: leave a connection that was stepped into when nothing was sent either way for so
    /// long, and all is acknowledged. It goes on from end to end, and is stepped into again when the keys hold
    /// anew. Never when absent.
    pub release_after: Option<Nanos>,
    /// With `accept = "end-to-end"`: acknowledge to an end what it sent when the relay has it (`early`, when absent), or
    /// when the other end has acknowledged it (`end-to-end`): then nothing that was acknowledged is lost with the
    /// relay's host. Ends without selective acknowledgements stay end to end.
    pub acknowledge: Option<Acknowledge>,
    /// Clients that offer Multipath TCP: carried as plain TCP (`relay`, when absent), or left alone.
    pub mptcp: Option<Mptcp>,
    /// Leg towards the client.
    #[serde(default)]
    pub client: LegSpec,
    /// Leg towards the server.
    #[serde(default)]
    pub server: LegSpec,
    /// Silence after which a connection is ended; 124 minutes when absent (RFC 5382), `0` for never.
    pub idle: Option<Nanos>,
    /// Silence after which a peer is probed; 60 s when absent, `0` for never.
    pub keepalive: Option<Nanos>,
    /// Most memory of one connection; both legs' buffers are made smaller until they fit.
    pub memory: Option<Size>,
    /// How long bytes may wait in the relay, and what keeps the wait short.
    pub queue: Option<QueueSpec>,
}

/// One leg of a connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct LegSpec {
    /// Congestion control, the kernel's or one of longfat's (`lf_…`); the system's when absent.
    pub cc: Option<String>,
    /// Send and receive buffer, as the kernel counts it; without it, four times the product of `rate` and `rtt`.
    pub buffer: Option<Size>,
    /// Rate of the path, for the size of the buffer.
    pub rate: Option<Rate>,
    /// Round-trip time of the path, for the size of the buffer.
    pub rtt: Option<Nanos>,
    /// Most that is sent; the kernel then paces.
    pub pacing: Option<Rate>,
    /// Most bytes that wait unsent in the send buffer.
    pub notsent_lowat: Option<Size>,
    /// Largest segment in bytes.
    pub mss: Option<u16>,
}

/// What the relay may use up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct LimitsSpec {
    /// Connections at a time; more wait in the kernel's queue, or pass unrelayed where the server is to answer first.
    pub connections: Option<usize>,
    /// Connections of one client address; by default as many as are free, three quarters while it is alone.
    pub client: Option<usize>,
    /// Connections of one network of clients (/24, /64); by default three times as many as are free.
    pub network: Option<usize>,
    /// Memory of all connections together.
    pub memory: Option<Size>,
    /// Memory of one client address's connections; by default as much as is free, three quarters while it is alone.
    pub client_memory: Option<Size>,
    /// Memory of one network's connections (/24, /64); by default three times as much as is free.
    pub network_memory: Option<Size>,
    /// File descriptors of the process.
    pub descriptors: Option<u64>,
}

/// Socket on which the relay is asked for its status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct ControlSpec {
    /// Path of the socket; `/run/longfat-relay/NAME.sock` when absent.
    pub socket: Option<PathBuf>,
    /// Group whose members may ask, too (0660); only the owner (0600) when absent.
    pub group: Option<String>,
}

/// Relays that may move connections here, and where they ask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct MoveSpec {
    /// Address and port to listen on, like `192.0.2.2:5202`: of a network that routers have among themselves.
    pub listen: SocketAddr,
    /// File of the key that both relays have (`longfat transfer key` makes one). Who does not have it is not heard.
    pub key: PathBuf,
    /// For a router whose routes may come before the connections: packets of every TCP connection that it sees first in
    /// mid-stream are dropped for so long (`3s`, 30 s at most), so that the connection can be moved here meanwhile.
    /// They pass at once when absent.
    pub hold: Option<Nanos>,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct LogSpec {
    /// One line of text per event, or one JSON object.
    #[serde(default)]
    pub format: LogFormat,
    /// Least level that is written; `debug` tells of every connection.
    #[serde(default)]
    pub level: LogLevel,
}

impl RelaySpec {
    /// JSON Schema of the file.
    #[cfg(feature = "json-schema")]
    pub fn schema() -> serde_json::Value {
        longfat_schema::json_schema::<RelaySpec>()
    }

    /// Text of a file that says the same.
    ///
    /// # Errors
    /// A number is greater than TOML has them.
    pub fn text(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<RelaySpec, SpecError> {
        let mut table: toml::Table = text.parse().map_err(Box::new)?;
        let mut problems = Vec::new();
        if table.remove("nap").is_some() {
            problems.push(Problem::new("nap", "this key is called 'coalesce' now; rename it"));
        }
        let spec = decode(&Value::Table(table), "", &[], &mut problems);
        match spec {
            Some(spec) if problems.is_empty() => Ok(spec),
            _ => Err(SpecError::Problems(problems)),
        }
    }
}

impl RuleSpec {
    /// Reads a rule from its keys, as they stand in an inline table: `destination = "192.0.2.0/24", port = 443`.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn from_words(words: &str) -> Result<RuleSpec, String> {
        of_words("rule", words)
    }
}

/// Reads a table of this name from its keys, as they stand in an inline table.
fn of_words<T: DeserializeOwned>(name: &str, words: &str) -> Result<T, String> {
    let table = toml::from_str::<toml::Table>(&format!("{name} = {{ {words} }}"))
        .map_err(|error| format!("'{words}' are no keys and values of a {name}: {}", error.message()))?;
    let mut problems = Vec::new();
    let decoded = table.get(name).and_then(|value| decode(value, name, &[], &mut problems));
    match (decoded, problems.first()) {
        (Some(spec), None) => Ok(spec),
        (_, Some(problem)) => Err(problem.to_string()),
        (None, None) => Err(format!("'{words}' are no keys and values of a {name}")),
    }
}

#[cfg(test)]
mod tests;
