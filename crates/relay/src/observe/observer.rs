//! What a relay tells whoever runs it.

use crate::{RelayPlan, logic::connection::Side};
use longfat_schema::record::Record;
use serde::{Deserialize, Serialize};
use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Receives what a relay has to say. Every method has a default that ignores it; they are called from worker threads
/// and must not wait.
pub trait Observer: Sync {
    /// The relay listens and, when transparent, takes packets.
    fn ready(&self, _ready: &Ready) {}
    /// A record of a connection ([`crate::RelayPlan::sample_every`]).
    fn record(&self, _record: Record) {}
    /// A connection has ended.
    fn closed(&self, _summary: &ConnectionSummary) {}
    /// Everything stands that needs privileges at the start, and no other thread runs yet. Called by the thread that
    /// runs the relay.
    ///
    /// # Errors
    /// The relay ends before it has begun, with this.
    fn prepared(&self) -> crate::Result<()> {
        Ok(())
    }
    /// Every worker went round its loop since this was called last.
    fn alive(&self) {}
    /// The plan was asked to change, and did, or why not.
    fn reloaded(&self, _outcome: Result<&RelayPlan, &str>) {}
    /// New connections pass; so many still live, for so long.
    fn draining(&self, _live: usize, _drain: Duration) {}
    /// Everything is a successor's now, which goes on: nothing of it is to be removed.
    fn left(&self) {}
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
    /// The socket of `longfat relay status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<PathBuf>,
    /// Where its metrics are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Both sides finished.
    Finished,
    /// The server could not be reached: refused, unreachable or silent, or the sockets could not be what the rule says.
    Unreachable,
    /// The client, or its path, ended it with a reset.
    ResetByClient,
    /// The server, or its path, ended it with a reset.
    ResetByServer,
    /// The relay was stopped and its drain time was over.
    Stopped,
    /// The connection moved nothing for longer than its rule allows.
    Idle,
    /// The relay left it when it was stopped, or in a pause: it goes on from end to end.
    Released,
    /// The relay of another router goes on with it (`longfat relay move`).
    Moved,
    /// A rule says that the relay does not carry it: it had connected to the relay itself and could not pass.
    Refused,
}

impl Ended {
    /// All of them.
    pub const ALL: [Ended; 9] = [
        Ended::Finished,
        Ended::Unreachable,
        Ended::ResetByClient,
        Ended::ResetByServer,
        Ended::Stopped,
        Ended::Refused,
        Ended::Idle,
        Ended::Released,
        Ended::Moved,
    ];

    /// Name of the end in records, log and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Ended::Finished => "finished",
            Ended::Unreachable => "unreachable",
            Ended::ResetByClient => "reset_by_client",
            Ended::ResetByServer => "reset_by_server",
            Ended::Stopped => "stopped",
            Ended::Refused => "refused",
            Ended::Idle => "idle",
            Ended::Released => "released",
            Ended::Moved => "moved",
        }
    }

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
    /// Number of the connection, from 0, as in its records.
    pub connection: u32,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The rule that carried it.
    pub rule: String,
    /// How it ended.
    pub ended: Ended,
    /// From accept, or from the dial of a server that was not reached, to end.
    pub duration_us: u64,
    /// Bytes given to the server's socket.
    pub client_to_server_bytes: u64,
    /// Bytes given to the client's socket.
    pub server_to_client_bytes: u64,
    /// Congestion control towards the client, read back; empty for a client for which there was no leg to the server.
    pub cc_client: String,
    /// Congestion control towards the server, read back; empty likewise.
    pub cc_server: String,
    /// Segments retransmitted towards the client.
    pub retransmitted_segments_client: u64,
    /// Segments retransmitted towards the server.
    pub retransmitted_segments_server: u64,
}

impl ConnectionSummary {
    /// Summary of a client for which there was no leg to the server.
    pub(crate) fn without_legs(
        connection: u32,
        (client, server): (SocketAddr, SocketAddr),
        rule: &str,
        ended: Ended,
        begun: Instant,
    ) -> ConnectionSummary {
        let (cc_client, cc_server) = Default::default();
        ConnectionSummary {
            connection,
            client,
            server,
            rule: rule.to_owned(),
            ended,
            duration_us: begun.elapsed().as_micros() as u64,
            client_to_server_bytes: 0,
            server_to_client_bytes: 0,
            cc_client,
            cc_server,
            retransmitted_segments_client: 0,
            retransmitted_segments_server: 0,
        }
    }
}

/// What a relay did in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayStats {
    /// Connections accepted.
    pub connections: u64,
    /// Connections that both sides finished.
    pub finished: u64,
    /// Connections whose server could not be reached.
    pub unreachable: u64,
    /// Connections that either side reset.
    pub reset: u64,
    /// Connections reset because the drain time was over or they had been idle for too long.
    pub stopped: u64,
    /// Connections left when the relay was stopped, or in a pause of theirs, and going on from end to end.
    #[serde(default)]
    pub released: u64,
    /// Released connections that were left in a pause: they may have ended since, or have been stepped into again.
    #[serde(default)]
    pub paused: u64,
    /// Connections moved to the relay of another router, which goes on with them.
    #[serde(default)]
    pub moved: u64,
    /// Connections that no rule relays.
    pub refused: u64,
    /// Bytes given to servers' sockets.
    pub client_to_server_bytes: u64,
    /// Bytes given to clients' sockets.
    pub server_to_client_bytes: u64,
}
