//! Records of living connections, taken by a thread of their own: the data path pays nothing but the sockets' locks.

use crate::{
    connection::{Direction, Side},
    leg::{unacked_bytes, unread_bytes},
    observer::Observer,
    relayed::Legs,
};
use longfat_host::{monotonic_us, socket::tcp_sample};
use longfat_schema::record::{Record, RelaySample, TcpSample};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The connections to sample, by number.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    living: Mutex<BTreeMap<u32, Arc<Legs>>>,
}

impl Registry {
    pub fn insert(&self, legs: &Arc<Legs>) {
        self.lock().insert(legs.number, Arc::clone(legs));
    }

    pub fn remove(&self, number: u32) {
        self.lock().remove(&number);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Arc<Legs>>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Samples every living connection at each interval until `done`.
pub(crate) fn run(
    registry: &Registry,
    relay: &str,
    every: Duration,
    done: &AtomicBool,
    observer: &dyn Observer,
) {
    let mut next = Instant::now();
    while !done.load(Ordering::Acquire) {
        let living: Vec<Arc<Legs>> = registry.lock().values().cloned().collect();
        living.iter().for_each(|legs| sample(legs, relay, observer));
        drop(living);
        next = (next + every).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Records both legs and both directions of one connection.
pub(crate) fn sample(legs: &Legs, relay: &str, observer: &dyn Observer) {
    let (Some(client), Some(server)) =
        (leg_sample(legs, Side::Client, relay), leg_sample(legs, Side::Server, relay))
    else {
        return;
    };
    for direction in Direction::BOTH {
        let (inbound, outbound) = match direction {
            Direction::ClientToServer => (&client, &server),
            Direction::ServerToClient => (&server, &client),
        };
        observer.record(Record::Relay(relay_sample(legs, direction, relay, inbound, outbound)));
    }
    observer.record(Record::Tcp(client));
    observer.record(Record::Tcp(server));
}

fn leg_sample(legs: &Legs, side: Side, relay: &str) -> Option<TcpSample> {
    let sample = tcp_sample(legs.leg(side)).ok()?;
    let role = match side {
        Side::Client => "relay_in",
        Side::Server => "relay_out",
    };
    Some(TcpSample { flow: relay.to_owned(), stream: legs.number, role: role.to_owned(), ..sample })
}

fn relay_sample(
    legs: &Legs,
    direction: Direction,
    relay: &str,
    inbound: &TcpSample,
    outbound: &TcpSample,
) -> RelaySample {
    // The kernel counts the SYN of the side that connected as an acknowledged byte: the relay's towards the server.
    let syn = u64::from(direction == Direction::ClientToServer);
    let acked_bytes = outbound.acked_bytes.saturating_sub(syn);
    RelaySample {
        time_us: monotonic_us(),
        relay: relay.to_owned(),
        connection: legs.number,
        direction: match direction {
            Direction::ClientToServer => "client_to_server".to_owned(),
            Direction::ServerToClient => "server_to_client".to_owned(),
        },
        backlog_bytes: inbound.received_bytes.saturating_sub(acked_bytes),
        unread_bytes: unread_bytes(legs.leg(direction.from())),
        held_bytes: legs.held_bytes[direction.index()].load(Ordering::Relaxed),
        unacked_bytes: unacked_bytes(legs.leg(direction.to())),
        relayed_bytes: legs.relayed(direction),
        ..RelaySample::default()
    }
}
