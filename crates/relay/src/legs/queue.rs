//! What is known of a connection's queues, and how a connection begins with little room.

mod look;

use super::Legs;
use crate::{logic::connection::Direction, plan::ConnectionPlan};
use longfat_cc::queue::QueuePlan;
use longfat_host::{
    socket::{self, Buffer},
    sysctl,
};
use longfat_kernel::mark::Marking;
use look::{Looks, Set};
use serde::{Deserialize, Serialize};
use std::{
    net::TcpListener,
    os::fd::AsFd,
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// What a connection has moved before it is worth a look: less than the first window that a sender is given.
const WORTH_BYTES: u64 = 32 * 1024;
/// Bytes after which a connection whose sockets are set is looked at again: by now they may be set too low.
const WORTH_AGAIN_BYTES: u64 = 4 * 1024;
/// The receive buffer that a connection begins with, as the kernel has it by default: about twice the window of a
/// handshake, which cannot be scaled (RFC 7323, section 2.2).
pub(crate) const FIRST_BUFFER_BYTES: u64 = 128 * 1024;
/// The one of SO_BUF_LOCK's two locks for the send buffer, which is then not the kernel's to size (`linux/socket.h`).
const SOCK_SNDBUF_LOCK: libc::c_int = 1;

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

/// What is known of one direction's queue, for whoever samples it, and what its worker reads at a time.
#[derive(Debug)]
pub(crate) struct QueueState {
    filling_bytes: AtomicUsize,
    delay_us: AtomicU32,
    drain_bps: AtomicU64,
    window_bytes: AtomicU32,
    buffer_bytes: AtomicU64,
    marks: AtomicU64,
}

impl Default for QueueState {
    fn default() -> QueueState {
        QueueState {
            filling_bytes: AtomicUsize::new(usize::MAX),
            delay_us: AtomicU32::new(0),
            drain_bps: AtomicU64::new(0),
            window_bytes: AtomicU32::new(0),
            buffer_bytes: AtomicU64::new(0),
            marks: AtomicU64::new(0),
        }
    }
}

impl QueueState {
    /// Bytes a filling takes at most, and beyond which nothing more is written; the greatest number: without limit.
    pub fn filling_bytes(&self) -> usize {
        self.filling_bytes.load(Ordering::Relaxed)
    }

    /// Whether its sockets are set to less than its plan says.
    pub fn is_held(&self) -> bool {
        self.filling_bytes() < usize::MAX
    }

    pub fn show(&self, set: Option<&Set>) {
        let filling_bytes = set.map_or(usize::MAX, |set| (set.ahead_bytes as usize / 2).max(1));
        self.filling_bytes.store(filling_bytes, Ordering::Relaxed);
        self.window_bytes.store(set.map_or(0, |set| set.window_bytes), Ordering::Relaxed);
        self.buffer_bytes.store(set.map_or(0, |set| set.buffer_bytes), Ordering::Relaxed);
    }

    /// Shows figures of a plan's time in this host's.
    pub fn show_rate(&self, delay_us: u32, drain_bps: u64, dilate: u32) {
        self.delay_us.store(delay_us.saturating_mul(dilate), Ordering::Relaxed);
        self.drain_bps.store(drain_bps / u64::from(dilate.max(1)), Ordering::Relaxed);
    }

    /// Status of the queue now.
    pub fn status(&self, plan: &QueuePlan) -> QueueStatus {
        let is_held = self.is_held();
        QueueStatus {
            target_us: plan.target_us.saturating_mul(plan.dilate),
            delay_us: self.delay_us.load(Ordering::Relaxed),
            drain_bps: self.drain_bps.load(Ordering::Relaxed),
            window_bytes: is_held.then(|| self.window_bytes.load(Ordering::Relaxed)),
            buffer_bytes: is_held.then(|| self.buffer_bytes.load(Ordering::Relaxed)),
            unsent_bytes: is_held.then(|| self.filling_bytes() as u64),
            marked_packets: self.marks.load(Ordering::Relaxed),
        }
    }
}

/// The queues of one connection.
#[derive(Debug, Default)]
pub(crate) struct QueueStates {
    shown: [QueueState; 2],
    /// Whether the thread looks at them.
    is_watched: AtomicBool,
    /// Whether they were looked at, or never will be.
    is_known: AtomicBool,
    /// What the connection may come to hold; zero: as much as its plan says.
    memory_bytes: AtomicU64,
    /// Absent until there was something to see.
    looks: Mutex<Option<Box<Looks>>>,
}

impl QueueStates {
    /// Notes that the queues were looked at, or never will be.
    pub fn set_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Somebody looks at them from now on, or no longer.
    pub fn set_watched(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Whether somebody looks at them.
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// What the connection may come to hold, as the kernel counts it; absent where that is what its plan says.
    pub fn memory_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Sets it; whether it has changed enough to be worth a look.
    pub fn set_memory(&self, bytes: Option<u64>) -> bool {
        let (before, bytes) = (self.memory_bytes(), bytes.map(|bytes| bytes.max(1)));
        let is_worth = match (before, bytes) {
            (Some(before), Some(bytes)) => before.abs_diff(bytes) > before / 8,
            _ => before != bytes,
        };
        if is_worth {
            self.memory_bytes.store(bytes.unwrap_or(0), Ordering::Relaxed);
        }
        is_worth
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Bytes a filling takes at most. Before the first look these are few: of a buffer that is its own to size, the
    /// kernel makes the more the more is read of it at a time.
    pub fn filling_bytes(&self, direction: Direction) -> usize {
        if self.is_known() { self.of(direction).filling_bytes() } else { WORTH_BYTES as usize }
    }

    /// Whether a turn that has read so many bytes is to end: the first look comes after it.
    pub fn are_to_be_seen(&self, read_bytes: u64) -> bool {
        read_bytes >= WORTH_BYTES && !self.is_known()
    }

    /// What is known of one of them.
    pub fn of(&self, direction: Direction) -> &QueueState {
        &self.shown[direction.index()]
    }

    /// Whether a connection that has moved so many bytes, per direction, since it was looked at is worth a look.
    pub fn are_worth_a_look(&self, bytes: [u64; 2]) -> bool {
        let is_worth = |direction: Direction| {
            let least = if self.of(direction).is_held() { WORTH_AGAIN_BYTES } else { WORTH_BYTES };
            bytes[direction.index()] >= least
        };
        !self.is_watched() && Direction::BOTH.into_iter().any(is_worth)
    }

    /// When the next look is due; never when nothing moves any more.
    pub fn look(&self, legs: &Legs, marking: Option<&Marking>, now: Instant) -> Option<Instant> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.get_or_insert_with(|| Box::new(Looks::new(legs, now))).look(legs, marking, now)
    }
}

/// Reads what the kernel has counted. A connection's last look may come before one that began earlier.
pub(crate) fn show_marks(marking: &Marking, legs: &Legs, direction: Direction) {
    let Some(marked) = marking.read(legs.leg(direction.from())) else { return };
    let shown = legs.queues.of(direction);
    shown.marks.fetch_max(marked.state.marks, Ordering::Relaxed);
    let dilate = legs.plan.queue.as_ref().map_or(1, |plan| plan.dilate);
    shown.show_rate(marked.state.delay_us, marked.state.drain_bps(), dilate);
}

/// A listener's clients begin with little room, if their plan says so: their first acknowledgement would promise all
/// that the listener's buffer holds, before anybody has accepted them.
pub(crate) fn begin_clients_small(listener: &TcpListener, plan: &ConnectionPlan) {
    if has_window(plan) {
        begin_small(listener, plan.client.buffer_bytes);
    }
}

/// A receive buffer that is to have so many bytes later is left to the kernel's own sizing (SO_BUF_LOCK) until the
/// first look: it makes room for what it has promised, and chooses a scale for windows by what it could make of the
/// buffer. Whether it is so; without SO_BUF_LOCK, or where that scale is too small, it begins as its plan says.
pub(crate) fn begin_small(socket: &impl AsFd, buffer_bytes: u64) -> bool {
    let unlock = || socket::set_option(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, SOCK_SNDBUF_LOCK).is_ok();
    let is_small = buffer_bytes > FIRST_BUFFER_BYTES && buffer_bytes / 2 <= scalable_window_bytes();
    is_small
        && unlock()
        && socket::set_buffer(socket, Buffer::Receive, FIRST_BUFFER_BYTES).is_ok()
        && unlock()
}

/// Whether the window keeps queues short.
pub(crate) fn has_window(plan: &ConnectionPlan) -> bool {
    plan.queue.as_ref().is_some_and(|queue| queue.window)
}

/// The greatest window at the scale that the kernel chooses of a buffer that is its own to size.
fn scalable_window_bytes() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let last = |name| sysctl::read(name).ok()?.split_whitespace().last()?.parse::<u64>().ok();
        let bytes = ["net.ipv4.tcp_rmem", "net.core.rmem_max"].into_iter().filter_map(last).max();
        (64 << 10) << bytes.unwrap_or(0).max(1).ilog2().saturating_sub(15)
    });
    *BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_connection_is_never_looked_at_and_one_that_is_held_at_once() {
        let kept = QueueStates::default();
        assert!(!kept.are_worth_a_look([WORTH_BYTES - 1; 2]));
        assert!(kept.are_worth_a_look([0, WORTH_BYTES]));
        kept.shown[1].show(Some(&Set { window_bytes: 20_000, ahead_bytes: 10_000, buffer_bytes: 40_000 }));
        assert!(!kept.are_worth_a_look([WORTH_BYTES - 1, WORTH_AGAIN_BYTES - 1]));
        assert!(kept.are_worth_a_look([0, WORTH_AGAIN_BYTES]));
        kept.set_watched(true);
        assert!(!kept.are_worth_a_look([u64::MAX; 2]), "it is looked at already");
    }

    #[test]
    fn memory_is_worth_a_look_when_it_begins_ends_or_changes_by_more_than_an_eighth() {
        let states = QueueStates::default();
        assert!(!states.set_memory(None) && states.set_memory(Some(800)) && !states.set_memory(Some(890)));
        assert_eq!(states.memory_bytes(), Some(800));
        assert!(states.set_memory(Some(0)) && states.memory_bytes() == Some(1), "nothing is little");
        assert!(states.set_memory(None) && states.memory_bytes().is_none());
    }

    #[test]
    fn what_is_set_is_told_and_what_is_released_no_longer() {
        let (shown, plan) = (QueueState::default(), QueuePlan::default());
        shown.show_rate(12_000, 50_000_000, 1);
        shown.show(Some(&Set { window_bytes: 20_000, ahead_bytes: 10_000, buffer_bytes: 40_000 }));
        let told = shown.status(&plan);
        assert_eq!((told.target_us, told.delay_us, told.drain_bps), (20_000, 12_000, 50_000_000));
        assert_eq!(
            (told.window_bytes, told.buffer_bytes, told.unsent_bytes),
            (Some(20_000), Some(40_000), Some(5000))
        );
        assert!(shown.is_held());
        shown.show(None);
        let told = shown.status(&plan);
        assert_eq!((told.window_bytes, told.buffer_bytes, told.unsent_bytes), (None, None, None));
        assert!(!shown.is_held());
    }
}
