//! What a relay tells whoever runs it.

use crate::connection::Side;
use longfat_schema::record::Record;
use serde::Serialize;
use std::net::SocketAddr;

/// Receives what a relay has to say. Every method has a default that ignores it; they are called from worker threads
/// and must not wait.
pub trait Observer: Sync {
    /// The relay listens and, when transparent, takes packets.
    fn ready(&self, _ready: &Ready) {}
    /// A record of a connection ([`crate::RelayPlan::sample_every`]).
    fn record(&self, _record: Record) {}
    /// A connection has ended.
    fn closed(&self, _summary: &ConnectionSummary) {}
    /// Something a person should know.
    fn warning(&self, _message: &str) {}
    /// Whether [`Observer::closed`] is wanted: gathering it costs a few system calls per connection.
    fn wants_summaries(&self) -> bool {
        false
    }
}

/// Nobody listens.
impl Observer for () {}

/// Where a relay listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// The relay's name.
    pub name: String,
    /// Addresses of its listeners; loopback addresses when transparent.
    pub listening: Vec<SocketAddr>,
    /// Interfaces it takes packets from; empty when explicit.
    pub interfaces: Vec<String>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Both sides finished.
    Finished,
    /// The server could not be reached: refused, unreachable or silent.
    Unreachable,
    /// The client, or its path, ended it with a reset.
    ResetByClient,
    /// The server, or its path, ended it with a reset.
    ResetByServer,
    /// The relay was stopped and its drain time was over.
    Stopped,
    /// It moved nothing for longer than its rule allows.
    Idle,
    /// A rule says that the relay does not carry it: it had connected to the relay itself and could not pass.
    Refused,
}

impl Ended {
    pub(crate) fn reset_by(side: Side) -> Ended {
        match side {
            Side::Client => Ended::ResetByClient,
            Side::Server => Ended::ResetByServer,
        }
    }
}

/// One connection, after its end.
#[derive(Debug, Clone, Serialize)]
pub struct ConnectionSummary {
    /// Its number, from 0, as in its records.
    pub connection: u32,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// How it ended.
    pub ended: Ended,
    /// From accept to end.
    pub duration_us: u64,
    /// Bytes given to the server's socket.
    pub client_to_server_bytes: u64,
    /// Bytes given to the client's socket.
    pub server_to_client_bytes: u64,
    /// Congestion control towards the client, read back.
    pub cc_client: String,
    /// Congestion control towards the server, read back.
    pub cc_server: String,
    /// Segments retransmitted towards the client.
    pub retransmitted_segments_client: u64,
    /// Segments retransmitted towards the server.
    pub retransmitted_segments_server: u64,
}

/// What a relay did in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RelayStats {
    /// Connections accepted.
    pub connections: u64,
    /// Of these, finished by both sides.
    pub finished: u64,
    /// Of these, whose server could not be reached.
    pub unreachable: u64,
    /// Of these, reset by either side.
    pub reset: u64,
    /// Of these, reset because the drain time was over.
    pub stopped: u64,
    /// Of these, that no rule relays.
    pub refused: u64,
    /// Bytes given to servers' sockets.
    pub client_to_server_bytes: u64,
    /// Bytes given to clients' sockets.
    pub server_to_client_bytes: u64,
}
