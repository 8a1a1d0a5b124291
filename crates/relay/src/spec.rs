//! The relay's file: what a person writes, as TOML. [`RelaySpec::parse`] finds every problem at once;
//! [`RelaySpec::resolve`] makes the plan.

mod list;
mod resolve;

pub use list::List;
pub use resolve::server;

use crate::plan::{Accept, Fail, LogFormat, LogLevel, Mptcp, Network, Ports};
use crate::queue::QueueSpec;
use longfat_schema::{
    decode::{Problem, decode, list},
    units::{Nanos, Rate, Size},
};
use serde::Deserialize;
use std::{net::SocketAddr, path::PathBuf};
use toml::Value;

/// Why a relay's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// It is no TOML.
    #[error("not valid TOML: {0}")]
    Syntax(#[from] Box<toml::de::Error>),
    /// It says things that cannot be.
    #[error("{}", list(.0))]
    Problems(Vec<Problem>),
}

/// A relay's file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct RelaySpec {
    /// Its name.
    pub name: Option<String>,
    /// What it takes of the traffic that passes.
    pub intercept: Option<InterceptSpec>,
    /// Where clients connect to it.
    #[serde(default)]
    pub listen: Vec<ListenSpec>,
    /// Which connections are carried how; the first that matches counts.
    #[serde(default)]
    pub rule: Vec<RuleSpec>,
    /// What rules do not say, and connections no rule speaks of.
    #[serde(default)]
    pub defaults: WaySpec,
    /// `open` or `closed`.
    #[serde(default)]
    pub fail: Fail,
    /// What it may use up.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// How long living connections may go on after a stop.
    pub drain: Option<Nanos>,
    /// How long a reset waits until the bytes before it are delivered.
    pub reset_wait: Option<Nanos>,
    /// How long bulk data may gather.
    pub nap: Option<Nanos>,
    /// Threads.
    pub workers: Option<usize>,
    /// Whether a keeper has duplicates of its sockets and pipes.
    #[serde(default)]
    pub keep: bool,
    /// The socket `longfat relay status` asks.
    #[serde(default)]
    pub control: ControlSpec,
    /// Where Prometheus asks.
    pub metrics: Option<SocketAddr>,
    /// What it says of itself.
    #[serde(default)]
    pub log: LogSpec,
}

/// `[intercept]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct InterceptSpec {
    /// Where clients' packets arrive.
    #[serde(default)]
    pub interfaces: List<String>,
    /// Packet mark.
    pub mark: Option<u32>,
    /// Routing table.
    pub table: Option<u32>,
    /// Turn forwarding on.
    #[serde(default)]
    pub forwarding: bool,
}

/// `[[listen]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ListenSpec {
    /// Where.
    pub address: SocketAddr,
    /// The server: `HOST:PORT`, looked up when the file is read.
    pub to: String,
}

/// `relay` or `pass`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionSpec {
    /// Carry it.
    #[default]
    Relay,
    /// Leave it alone.
    Pass,
}

/// `[[rule]]`: what it is about, and the keys of [`WaySpec`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RuleSpec {
    /// Its name; `rule-N` by its place when absent.
    pub name: Option<String>,
    /// Where the client's packets arrive.
    #[serde(default)]
    pub interface: List<String>,
    /// Where the client is.
    #[serde(default)]
    pub source: List<Network>,
    /// Where the server is.
    #[serde(default)]
    pub destination: List<Network>,
    /// The server's ports.
    #[serde(default)]
    pub port: List<Ports>,
    /// What to do.
    #[serde(default)]
    pub action: ActionSpec,
    /// When the SYN is answered.
    pub accept: Option<Accept>,
    /// `relay` or `pass`.
    pub mptcp: Option<Mptcp>,
    /// The leg towards the client.
    #[serde(default)]
    pub client: LegSpec,
    /// The leg towards the server.
    #[serde(default)]
    pub server: LegSpec,
    /// Silence after which a connection is ended; `0` for never.
    pub idle: Option<Nanos>,
    /// Silence after which a peer is probed; `0` for never.
    pub keepalive: Option<Nanos>,
    /// Memory of one connection.
    pub memory: Option<Size>,
    /// Backlog control.
    pub queue: Option<QueueSpec>,
}

impl RuleSpec {
    fn way(&self) -> WaySpec {
        WaySpec {
            accept: self.accept,
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
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct WaySpec {
    /// When the SYN is answered.
    pub accept: Option<Accept>,
    /// `relay` or `pass`.
    pub mptcp: Option<Mptcp>,
    /// The leg towards the client.
    #[serde(default)]
    pub client: LegSpec,
    /// The leg towards the server.
    #[serde(default)]
    pub server: LegSpec,
    /// Silence after which a connection is ended; `0` for never.
    pub idle: Option<Nanos>,
    /// Silence after which a peer is probed; `0` for never.
    pub keepalive: Option<Nanos>,
    /// Memory of one connection.
    pub memory: Option<Size>,
    /// Backlog control.
    pub queue: Option<QueueSpec>,
}

/// `client = { … }`, `server = { … }`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct LegSpec {
    /// Congestion control, the kernel's or ours (`lf_…`).
    pub cc: Option<String>,
    /// Send and receive buffer; or from `rate` and `rtt`.
    pub buffer: Option<Size>,
    /// Rate of the path.
    pub rate: Option<Rate>,
    /// Round-trip time of the path.
    pub rtt: Option<Nanos>,
    /// Most that is sent.
    pub pacing: Option<Rate>,
    /// Most that waits unsent in the send buffer.
    pub notsent_lowat: Option<Size>,
    /// Largest segment.
    pub mss: Option<u16>,
}

/// `[limits]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct LimitsSpec {
    /// Connections at a time.
    pub connections: Option<usize>,
    /// Those of one client address.
    pub client: Option<usize>,
    /// Those of one network of clients (/24, /64).
    pub network: Option<usize>,
    /// Memory of all of them.
    pub memory: Option<Size>,
    /// File descriptors.
    pub descriptors: Option<u64>,
}

/// `[control]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ControlSpec {
    /// The socket's path; `/run/longfat-relay/NAME.sock` when absent.
    pub socket: Option<PathBuf>,
    /// A group that may ask, too.
    pub group: Option<String>,
}

/// `[log]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct LogSpec {
    /// `text` or `json`.
    #[serde(default)]
    pub format: LogFormat,
    /// `error`, `warning`, `info` or `debug`.
    #[serde(default)]
    pub level: LogLevel,
}

impl RelaySpec {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<RelaySpec, SpecError> {
        let table: toml::Table = text.parse().map_err(Box::new)?;
        let mut problems = Vec::new();
        let spec = decode(&Value::Table(table), "", &[], &mut problems);
        match spec {
            Some(spec) if problems.is_empty() => Ok(spec),
            _ => Err(SpecError::Problems(problems)),
        }
    }
}

#[cfg(test)]
mod tests;
