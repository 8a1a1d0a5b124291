//! What a relay says when it is asked: everything is gathered at that moment, by the thread that answers. The workers
//! pay only the sockets' locks.

use crate::{
    legs::leg::{unacked_bytes, unread_bytes},
    logic::connection::{Direction, Side},
    observe::observer::RelayStats,
    shared::Shared,
    worker::relayed::Legs,
};
use longfat_host::{
    monotonic_us,
    socket::{cc, tcp_info},
};
use longfat_schema::record::TcpSample;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{PoisonError, atomic::Ordering},
};

/// Version of [`Status`]; raised when a field changes its meaning or goes.
pub const STATUS_VERSION: u32 = 1;

/// A relay at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The relay's name.
    pub name: String,
    /// Version of the program.
    pub program_version: String,
    /// Its process.
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
    /// Its rules, in order.
    pub rules: Vec<String>,
    /// Connections alive, also those whose server has not answered yet.
    pub live: usize,
    /// Connections that it went on with where another relay had been: an older one, or one that was killed.
    #[serde(default)]
    pub taken_over: u64,
    /// Connections accepted end to end: into how many it stepped, and how many stayed as they were, by the reason.
    #[serde(default)]
    pub end_to_end: EndToEndStatus,
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
    /// Connections that stayed end to end, by the reason; reasons that there were none of are absent.
    pub passed: BTreeMap<String, u64>,
}

/// What became of requests to read the file again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// Those that worked.
    pub done: u64,
    /// Those that were refused: the relay went on as before.
    pub refused: u64,
    /// Why the last one was refused; absent when it worked.
    pub problem: Option<String>,
}

/// A connection at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Its number, from 0, as in records and log.
    pub connection: u32,
    /// The rule that carries it.
    pub rule: String,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// Since it was accepted.
    pub age_us: u64,
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
    /// Of these: not read from the inbound socket.
    pub unread_bytes: u64,
    /// Of these: in the relay's own buffer.
    pub held_bytes: u64,
    /// Of these: in the outbound socket.
    pub unacked_bytes: u64,
    /// Time in which the outbound leg had nothing to send and nothing under way, since both legs stood.
    #[serde(default)]
    pub outbound_idle_us: u64,
    /// How short the queue is kept; absent where it is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
}

/// A queue that is kept short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Delay that bytes may wait in the relay.
    pub target_us: u32,
    /// How long what waits unsent takes at the rate of the outbound leg.
    pub delay_us: u32,
    /// The rate of the outbound leg, as the queue's control measures it.
    pub drain_bps: u64,
    /// Window to be advertised on the inbound leg; absent where the sockets are as the plan says: the window is not
    /// used, nothing was worth a look yet, or full buffers would not wait for longer than the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u32>,
    /// Receive buffer of the inbound leg, as the kernel counts it; absent where the window is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<u64>,
    /// Bytes that may wait unsent on the outbound leg; absent where the window is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsent_bytes: Option<u64>,
    /// Packets of the inbound leg marked (or dropped, where that was asked for) since the connection began.
    pub marked_packets: u64,
}

/// Both sockets of a connection, read at once; none when one has just been closed.
pub(crate) struct Reading {
    pub client: TcpSample,
    pub server: TcpSample,
    is_inserted: bool,
}

impl Reading {
    /// Their idle time is noted as well.
    pub fn take(legs: &Legs) -> Option<Reading> {
        let read = |side| {
            let (socket, time_us) = (legs.leg(side), monotonic_us());
            let info = tcp_info(socket).ok()?;
            Some((TcpSample { time_us, cc: cc(socket).ok()?, ..info.sample() }, info.busy_us))
        };
        let ((client, client_us), (server, server_us)) = (read(Side::Client)?, read(Side::Server)?);
        legs.note_busy([client_us, server_us]);
        Some(Reading { client, server, is_inserted: legs.is_inserted })
    }

    fn leg(&self, side: Side) -> &TcpSample {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// What the inbound socket received and the outbound peer has not acknowledged.
    pub fn backlog_bytes(&self, direction: Direction) -> u64 {
        // The kernel counts the SYN of the side that connected as an acknowledged byte: the relay's towards the server.
        let syn = u64::from(direction == Direction::ClientToServer && !self.is_inserted);
        let acked_bytes = self.leg(direction.to()).acked_bytes.saturating_sub(syn);
        self.leg(direction.from()).received_bytes.saturating_sub(acked_bytes)
    }
}

/// A relay's state that its own thread keeps and others read.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub listening: Vec<SocketAddr>,
    pub interfaces: Vec<String>,
    pub rules: Vec<String>,
    pub reload: ReloadStatus,
}

/// Answers a question.
pub(crate) fn status(shared: &Shared, with_connections: bool) -> Status {
    let time_us = monotonic_us();
    let standing = shared.standing.lock().unwrap_or_else(PoisonError::into_inner);
    let mut status = Status {
        version: STATUS_VERSION,
        name: shared.plan.name.clone(),
        program_version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        time_us,
        uptime_us: (time_us - shared.started_us).max(0) as u64,
        draining: shared.draining.load(Ordering::Acquire),
        listening: standing.listening.clone(),
        interfaces: standing.interfaces.clone(),
        rules: standing.rules.clone(),
        live: shared.live.load(Ordering::Acquire),
        taken_over: shared.taken_over.load(Ordering::Relaxed),
        end_to_end: end_to_end(shared),
        totals: shared.stats(),
        reload: standing.reload.clone(),
        connections: Vec::new(),
    };
    drop(standing);
    if with_connections {
        let living = shared.registry.living();
        // Those that move little are looked at by nobody else.
        living.iter().for_each(|legs| shared.queues.count_marks(legs));
        status.connections = living.iter().filter_map(|legs| connection(legs, time_us)).collect();
    }
    status
}

fn end_to_end(shared: &Shared) -> EndToEndStatus {
    let adopting = &shared.held.adopting;
    let passed = adopting.passed().filter(|(_, count)| *count > 0);
    let passed = passed.map(|(reason, count)| (reason.name().to_owned(), count)).collect();
    EndToEndStatus { inserted: adopting.inserted(), passed }
}

fn connection(legs: &Legs, now_us: i64) -> Option<ConnectionStatus> {
    let reading = Reading::take(legs)?;
    Some(ConnectionStatus {
        connection: legs.number,
        rule: legs.plan.rule.clone(),
        client: plain(legs.client_address),
        server: plain(legs.server_address),
        age_us: (now_us - legs.accepted_us).max(0) as u64,
        to_server: direction(legs, &reading, Direction::ClientToServer),
        to_client: direction(legs, &reading, Direction::ServerToClient),
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
        outbound_idle_us: legs.outbound_idle_us(direction),
        queue: legs.queue(direction),
    }
}

/// An IPv4 address that an IPv6 socket shows as `::ffff:a.b.c.d`, as what it is.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
