//! Records of living connections, taken by a thread of their own: the data path pays nothing but the sockets' locks.

use super::{observer::Observer, reading::Reading, registry::Registry};
use crate::{
    legs::{
        Legs,
        leg::{unacked_bytes, unread_bytes},
    },
    logic::connection::Direction,
};
use longfat_host::monotonic_us;
use longfat_schema::record::{Record, RelaySample, TcpSample};
use std::{
    sync::{
        PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

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
        let living = registry.living();
        living.iter().for_each(|legs| sample(legs, relay, observer));
        drop(living);
        next = (next + every).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Records one connection, unless its end was recorded.
fn sample(legs: &Legs, relay: &str, observer: &dyn Observer) {
    let is_over = legs.is_over.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_over {
        record(legs, relay, observer);
    }
}

/// Records one connection at its end: what the thread read before is told before, and nothing after.
pub(crate) fn sample_last(legs: &Legs, relay: &str, observer: &dyn Observer) {
    let mut is_over = legs.is_over.lock().unwrap_or_else(PoisonError::into_inner);
    *is_over = true;
    record(legs, relay, observer);
}

/// Records both legs and both directions of one connection.
fn record(legs: &Legs, relay: &str, observer: &dyn Observer) {
    let Some(reading) = Reading::take(legs) else { return };
    for direction in Direction::BOTH {
        observer.record(Record::Relay(relay_sample(legs, direction, relay, &reading)));
    }
    for (sample, role) in [(reading.client, "relay_in"), (reading.server, "relay_out")] {
        let named =
            TcpSample { flow: relay.to_owned(), stream: legs.number, role: role.to_owned(), ..sample };
        observer.record(Record::Tcp(named));
    }
}

fn relay_sample(legs: &Legs, direction: Direction, relay: &str, reading: &Reading) -> RelaySample {
    let queue = legs.queue(direction);
    RelaySample {
        time_us: monotonic_us(),
        relay: relay.to_owned(),
        connection: legs.number,
        direction: match direction {
            Direction::ClientToServer => "client_to_server".to_owned(),
            Direction::ServerToClient => "server_to_client".to_owned(),
        },
        backlog_bytes: reading.backlog_bytes(direction),
        unread_bytes: unread_bytes(legs.leg(direction.from())),
        held_bytes: legs.held_bytes[direction.index()].load(Ordering::Relaxed),
        unacked_bytes: unacked_bytes(legs.leg(direction.to())),
        relayed_bytes: legs.relayed(direction),
        target_us: queue.map(|queue| queue.target_us),
        delay_us: queue.map(|queue| queue.delay_us),
        drain_bps: queue.map(|queue| queue.drain_bps),
        window_bytes: queue.and_then(|queue| queue.window_bytes),
        marked_packets: queue.map(|queue| queue.marked_packets),
    }
}
