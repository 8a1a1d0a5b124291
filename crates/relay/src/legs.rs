//! The two sockets of a connection, and what holds bytes between them.
//!
//! - `leg`: what a socket is told, and what it says. `inbound`: what a reading means: bytes, an urgent mark, an end
//!   that the kernel confirms.
//! - `buffer`: pipes for splice(2), and memory.
//! - `queue`: a look at both sockets, and what keeps their queues short.
//! - `tun`, `diag`, `steer`, `descriptors`: whole packets, sock_diag, the choice of a listener, file descriptors.

pub(crate) mod buffer;
pub(crate) mod descriptors;
pub(crate) mod diag;
pub(crate) mod inbound;
pub(crate) mod leg;
pub(crate) mod queue;
pub(crate) mod steer;
pub(crate) mod tun;

use crate::{
    keeping::record::{ConnectionRecord, Held},
    logic::{
        Pair,
        adopted::AdoptedStatus,
        connection::{Direction, Event, Side},
        gather::Window,
    },
    plan::ConnectionPlan,
};
use buffer::Moved;
use longfat_host::{
    monotonic_us,
    socket::{self, tcp_info},
};
use queue::QueueStatus;
use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What may gather of bulk data at most.
const GATHERED_BYTES: u64 = 1024 * 1024;

/// Time in which the outbound legs had nothing to send and nothing under way, as last said.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// CLOCK_MONOTONIC when both legs stood; before, nobody could have sent anything.
    since_us: Option<i64>,
    /// Per direction.
    us: [u64; 2],
    /// The connection has ended, and was counted: no more is added.
    is_over: bool,
}

impl Idle {
    /// Takes in for how long each leg was busy: the kernel counts that.
    fn note(&mut self, now_us: i64, busy_us: [u64; 2]) {
        let Some(since_us) = self.since_us.filter(|_| !self.is_over) else { return };
        let age_us = (now_us - since_us).max(0) as u64;
        for direction in Direction::BOTH {
            let idle_us = age_us.saturating_sub(busy_us[direction.to() as usize]);
            // It counts in ticks of its timer: what was said before is not taken back.
            let said_us = &mut self.us[direction.index()];
            *said_us = idle_us.max(*said_us);
        }
    }
}

/// The two sockets, and what a sampling thread may know of them.
#[derive(Debug)]
pub(crate) struct Legs {
    pub number: u32,
    pub client: TcpStream,
    pub server: TcpStream,
    pub client_address: SocketAddr,
    pub server_address: SocketAddr,
    /// CLOCK_MONOTONIC when its client was accepted.
    pub accepted_us: i64,
    /// How it is carried.
    pub plan: Arc<ConnectionPlan>,
    /// Whether sockets were put between the connection's ends, with their sequence numbers.
    pub is_inserted: bool,
    /// Facts of a connection that was adopted in mid-stream, by this relay or one before it.
    pub adopted: Option<AdoptedStatus>,
    /// Bytes that the ends had sent before, as the sockets of the client's and the server's leg count them.
    pub loaded_bytes: [u64; 2],
    /// Bytes that came with it from another router, as if they had been received from the client, the server.
    pub brought_bytes: [u64; 2],
    /// Bytes in the relay's buffers and bytes relayed, per direction.
    pub held_bytes: [AtomicU64; 2],
    pub relayed_bytes: [AtomicU64; 2],
    pub idle: Mutex<Idle>,
    /// Whether its last record was made; locked while one is.
    pub is_over: Mutex<bool>,
    /// What is known of its queues, where they are kept short.
    pub queues: queue::QueueStates,
}

impl Legs {
    /// Both sockets of a connection whose client was accepted now.
    pub fn new(
        number: u32,
        client: TcpStream,
        server: TcpStream,
        pair: Pair,
        plan: Arc<ConnectionPlan>,
    ) -> Legs {
        Legs {
            number,
            client,
            server,
            client_address: pair.0,
            server_address: pair.1,
            accepted_us: monotonic_us(),
            plan,
            is_inserted: false,
            adopted: None,
            loaded_bytes: [0; 2],
            brought_bytes: [0; 2],
            held_bytes: Default::default(),
            relayed_bytes: Default::default(),
            idle: Default::default(),
            is_over: Default::default(),
            queues: Default::default(),
        }
    }

    /// What is written of a connection beside its sockets, for whoever keeps them or takes them over: nothing has come,
    /// as at the beginning.
    pub fn record(&self, worker: usize) -> ConnectionRecord {
        ConnectionRecord {
            number: self.number,
            client: self.client_address,
            server: self.server_address,
            listener: None,
            untried: 0,
            rule: self.plan.rule.clone(),
            accepted_us: self.accepted_us,
            worker,
            held: [Held::Nowhere, Held::Nowhere],
            failure: None,
            inserted: self.is_inserted,
            loaded_bytes: self.loaded_bytes,
            brought_bytes: self.brought_bytes,
            adopted: self.adopted.clone(),
        }
    }

    pub fn leg(&self, side: Side) -> &TcpStream {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Whether so much waits unsent that no more is to be written. The kernel looks at TCP_NOTSENT_LOWAT only when it
    /// begins a packet buffer, and fills one up to 64 KiB first: 100 ms at 5 Mbit/s.
    pub fn is_ahead(&self, direction: Direction) -> bool {
        let most_bytes = self.queues.of(direction).filling_bytes();
        most_bytes < usize::MAX && leg::unsent_bytes(self.leg(direction.to())) >= most_bytes as u64
    }

    /// The window by which a direction's data come: half of the buffer that its socket has, which may be less than the
    /// plan's. Bulk data are moved at the latest when half of that waits.
    pub fn window(&self, direction: Direction) -> Window {
        let leg = self.leg(direction.from());
        let bytes = socket::buffer(leg, socket::Buffer::Receive) / 2;
        let info = tcp_info(leg).ok();
        // What was never measured is not known to be long.
        let rtt_us = info.as_ref().and_then(|info| info.least_rtt_us()).unwrap_or(0);
        Window {
            bytes,
            gathered_bytes: (bytes / 2).min(GATHERED_BYTES),
            rtt: Duration::from_micros(rtt_us.into()),
            sent_segments: info.map_or(0, |info| info.segs_out),
        }
    }

    /// What a writing came to, and how many bytes it was.
    pub fn wrote(&self, direction: Direction, moved: Moved) -> (Event, usize) {
        match moved {
            Moved::Bytes(bytes) => {
                self.relayed_bytes[direction.index()].fetch_add(bytes as u64, Ordering::Relaxed);
                (Event::Written(direction, bytes), bytes)
            }
            Moved::Blocked => (Event::WriteBlocked(direction), 0),
            Moved::Ended | Moved::Failed => (Event::Failed(direction.to()), 0),
        }
    }

    /// How short the queue of a direction is kept, if it is.
    pub fn queue(&self, direction: Direction) -> Option<QueueStatus> {
        let plan = self.plan.queue.as_ref()?;
        Some(self.queues.of(direction).status(plan))
    }

    /// Both legs stand.
    pub fn stand(&self) {
        self.lock_idle().since_us = Some(monotonic_us());
    }

    /// For how long the client's and the server's leg were busy so far.
    pub fn note_busy(&self, busy_us: [u64; 2]) {
        self.lock_idle().note(monotonic_us(), busy_us);
    }

    /// The last look: from now on nothing changes that is counted.
    pub fn settle(&self) {
        let mut idle = self.lock_idle();
        if idle.since_us.is_some()
            && let (Ok(client), Ok(server)) = (tcp_info(&self.client), tcp_info(&self.server))
        {
            idle.note(monotonic_us(), [client.busy_us, server.busy_us]);
        }
        idle.is_over = true;
    }

    /// Time in which the outbound leg had nothing to send and nothing under way, as of the last look.
    pub fn outbound_idle_us(&self, direction: Direction) -> u64 {
        self.lock_idle().us[direction.index()]
    }

    fn lock_idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn relayed(&self, direction: Direction) -> u64 {
        self.relayed_bytes[direction.index()].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_begins_when_both_legs_stand_never_shrinks_and_is_final_at_the_end() {
        let mut idle = Idle::default();
        idle.note(5_000, [0, 0]);
        assert_eq!(idle.us, [0, 0], "a leg that never stood was not idle");
        idle.since_us = Some(10_000);
        idle.note(11_000, [400, 700]);
        assert_eq!(idle.us, [300, 600], "the server's leg is the first direction's");
        idle.note(11_000, [1000, 1000]);
        assert_eq!(idle.us, [300, 600]);
        idle.is_over = true;
        idle.note(20_000, [400, 700]);
        assert_eq!(idle.us, [300, 600]);
    }
}
