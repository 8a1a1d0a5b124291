//! What a relay says when it is asked: everything is gathered at that moment, by the thread that answers. The workers
//! pay only the sockets' locks.

pub use crate::{legs::queue::QueueStatus, logic::adopted::AdoptedStatus};

use super::{observer::RelayStats, reading::Reading};
use crate::{
    Acknowledge, LimitsPlan,
    legs::{
        Legs,
        leg::{unacked_bytes, unread_bytes},
    },
    logic::{connection::Direction, memory::Memory, plain},
};
use longfat_schema::record::TcpSample;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
};

/// Version of [`Status`]; raised when a field changes its meaning or goes.
pub const STATUS_VERSION: u32 = 1;

/// A relay at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The relay's name.
    pub name: String,
    /// Version of the program.
    pub program_version: String,
    /// Process number of the relay.
    pub pid: u32,
    /// CLOCK_MONOTONIC of this answer.
    pub time_us: i64,
    /// Since the relay was ready.
    pub uptime_us: u64,
    /// Whether it is ending: new connections pass.
    pub draining: bool,
    /// Addresses of its explicit listeners.
    pub listening: Vec<SocketAddr>,
    /// Interfaces it takes packets from.
    pub interfaces: Vec<String>,
    /// Rules of the relay, in order.
    pub rules: Vec<String>,
    /// Rules among these that were added while it runs (`longfat relay rule add`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added_rules: Vec<String>,
    /// Connections alive, also those whose server has not answered yet.
    pub live: usize,
    /// Connections that it went on with where another relay had been: an older one, or one that was killed.
    #[serde(default)]
    pub taken_over: u64,
    /// Connections accepted end to end: into how many it stepped, and how many stayed as they were, by the reason.
    #[serde(default)]
    pub end_to_end: EndToEndStatus,
    /// What clients hold of the memory that `[limits]` bounds; absent where it bounds none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// What it did since its start; of living connections nothing but their number.
    pub totals: RelayStats,
    /// Reloads of its file.
    pub reload: ReloadStatus,
    /// Connections whose legs stand; empty when only a summary was asked for.
    pub connections: Vec<ConnectionStatus>,
}

/// Connections that the relay did not answer itself (`accept = "end-to-end"`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndToEndStatus {
    /// Connections between whose ends it put sockets.
    pub inserted: u64,
    /// Connections whose handshakes went by and that were watched since (`adopt_…`).
    #[serde(default)]
    pub watched: u64,
    /// Connections that have come so far that they were worth it.
    #[serde(default)]
    pub reached: u64,
    /// Connections in which the relay put sockets in mid-stream, part of those above.
    #[serde(default)]
    pub adopted: u64,
    /// How often the relay has left a connection to its ends, by the reason: `pause` (`release_after`; it is
    /// watched on), `stop`. Reasons that there were none of are absent.
    #[serde(default)]
    pub released: BTreeMap<String, u64>,
    /// Connections that came from the relay of another router (`longfat relay move`).
    #[serde(default)]
    pub moved_in: u64,
    /// Connections that went there.
    #[serde(default)]
    pub moved_out: u64,
    /// Connections that stayed end to end, by the reason; reasons that there were none of are absent.
    pub passed: BTreeMap<String, u64>,
}

/// Memory of connections, as of the last look, which is at most 100 ms old.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// What all connections hold.
    pub held_bytes: u64,
    /// What all may hold (`limits.memory`); absent where only clients and networks are bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// What one network of clients may hold now.
    pub network_limit_bytes: u64,
    /// The networks that hold most, at most eight, from the greatest on.
    pub networks: Vec<NetworkStatus>,
}

/// A network of clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// First address of the network, a /24 or /64.
    pub network: IpAddr,
    /// What its connections hold.
    pub held_bytes: u64,
}

impl MemoryStatus {
    pub(crate) fn of(memory: &Memory, limits: &LimitsPlan) -> MemoryStatus {
        const SHOWN: usize = 8;
        let network = |(network, held_bytes)| NetworkStatus { network, held_bytes };
        MemoryStatus {
            held_bytes: memory.held_bytes().0,
            limit_bytes: limits.memory_bytes,
            network_limit_bytes: memory.share_bytes(limits),
            networks: memory.greatest(SHOWN).into_iter().map(network).collect(),
        }
    }
}

/// What became of requests to read the file again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// Reloads that worked.
    pub done: u64,
    /// Reloads that were refused: the relay went on as before.
    pub refused: u64,
    /// Why the last one was refused; absent when it worked.
    pub problem: Option<String>,
}

/// A connection at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Number of the connection, from 0, as in records and log.
    pub connection: u32,
    /// The rule that carries it.
    pub rule: String,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// Since it was accepted.
    pub age_us: u64,
    /// Why the relay has stepped into it in mid-stream (`adopt_…`); absent of connections that it carried from their
    /// beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<AdoptedStatus>,
    /// When an end is told that what it sent has arrived (`acknowledge`); absent where it is when the relay has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledge: Option<Acknowledge>,
    /// The leg towards the client.
    pub client_leg: LegStatus,
    /// The leg towards the server.
    pub server_leg: LegStatus,
    /// From the client to the server.
    pub to_server: DirectionStatus,
    /// From the server to the client.
    pub to_client: DirectionStatus,
}

/// One leg's TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LegStatus {
    /// Congestion control, read back.
    pub cc: String,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Least round-trip time.
    pub min_rtt_us: Option<u32>,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Rate at which data was delivered lately, as the kernel measures it.
    pub delivery_rate_bps: u64,
    /// Segments retransmitted.
    pub retransmitted_segments: u64,
}

/// One direction's bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionStatus {
    /// Given to the receiving socket since the beginning.
    pub relayed_bytes: u64,
    /// Received from one side and not yet acknowledged by the other.
    pub backlog_bytes: u64,
    /// Bytes not read from the inbound socket.
    pub unread_bytes: u64,
    /// Bytes in the relay's own buffer.
    pub held_bytes: u64,
    /// Bytes in the outbound socket.
    pub unacked_bytes: u64,
    /// Received, and not acknowledged to the sender before the receiver has acknowledged it (`acknowledge =
    /// "end-to-end"`); absent where that is not so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_bytes: Option<u64>,
    /// Time in which the outbound leg had nothing to send and nothing under way, since both legs stood.
    #[serde(default)]
    pub outbound_idle_us: u64,
    /// How short the queue is kept; absent where it is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
}

/// Bytes of a connection whose acknowledgements are held back: of what the client, the server sent.
type HeldBack<'a> = &'a dyn Fn((SocketAddr, SocketAddr)) -> Option<[u64; 2]>;

/// Connections that live, as they are at that moment.
pub(crate) fn connections(
    living: &[Arc<Legs>],
    now_us: i64,
    held_back: HeldBack<'_>,
) -> Vec<ConnectionStatus> {
    living.iter().filter_map(|legs| connection(legs, now_us, held_back)).collect()
}

fn connection(legs: &Legs, now_us: i64, held_back: HeldBack<'_>) -> Option<ConnectionStatus> {
    let reading = Reading::take(legs)?;
    let held_back = held_back((legs.client_address, legs.server_address)).filter(|_| legs.is_inserted);
    let direction = |way: Direction| DirectionStatus {
        held_back_bytes: held_back.map(|bytes| bytes[way.index()]),
        ..direction(legs, &reading, way)
    };
    Some(ConnectionStatus {
        connection: legs.number,
        rule: legs.plan.rule.clone(),
        client: plain(legs.client_address),
        server: plain(legs.server_address),
        age_us: (now_us - legs.accepted_us).max(0) as u64,
        adopted: legs.adopted.clone(),
        acknowledge: held_back.map(|_| Acknowledge::EndToEnd),
        to_server: direction(Direction::ClientToServer),
        to_client: direction(Direction::ServerToClient),
        client_leg: leg(reading.client),
        server_leg: leg(reading.server),
    })
}

fn leg(sample: TcpSample) -> LegStatus {
    LegStatus {
        cc: sample.cc,
        srtt_us: sample.srtt_us,
        min_rtt_us: sample.min_rtt_us,
        cwnd_segments: sample.cwnd_segments,
        delivery_rate_bps: sample.delivery_rate_bps,
        retransmitted_segments: sample.retransmitted_segments,
    }
}

fn direction(legs: &Legs, reading: &Reading, direction: Direction) -> DirectionStatus {
    DirectionStatus {
        relayed_bytes: legs.relayed(direction),
        backlog_bytes: reading.backlog_bytes(direction),
        unread_bytes: unread_bytes(legs.leg(direction.from())),
        held_bytes: legs.held_bytes[direction.index()].load(Ordering::Relaxed),
        unacked_bytes: unacked_bytes(legs.leg(direction.to())),
        held_back_bytes: None,
        outbound_idle_us: legs.outbound_idle_us(direction),
        queue: legs.queue(direction),
    }
}
