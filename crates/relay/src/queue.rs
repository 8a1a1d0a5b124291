//! Keeps the queues of relayed connections short.
//!
//! Two things work on an inbound leg, both by the same measure: how long what waits here takes at the rate at which
//! the outbound leg sends.
//! - The **window**: a thread looks at both sockets every few milliseconds and sets what the inbound one advertises, how
//!   far ahead the relay reads, and how large the receive buffer is (`cc/queue/window.h`). It is the steady limit; the
//!   kernel's own flow control is the hard one.
//! - **Marks**: a program in the kernel marks arriving packets (`longfat_kernel::mark`); the sender slows down by itself.
//!
//! Only connections on which something moves are looked at, and of these none that is so fast that full buffers
//! would not wait for longer than the target. A connection begins with little room ([`begin_small`]): a sender that finds
//! megabytes of it grows its window and its own buffer to match, and its bytes wait there from then on.

use crate::{
    Result,
    legs::queue_look::{Looks, Set},
    logic::connection::Direction,
    observe::status::QueueStatus,
    plan::ConnectionPlan,
    shared::Shared,
    worker::relayed::Legs,
};
use longfat_cc::queue::{Kind, QueuePlan};
use longfat_host::{
    socket::{self, Buffer},
    support::Missing,
    sysctl,
};
use longfat_kernel::mark::{self, Ends, Marking};
use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// The thread rests so many times as long as it worked: many connections are looked at less often.
const REST_FACTOR: u32 = 9;
/// What a connection has moved before it is worth a look: less than the first window that a sender is given.
const WORTH_BYTES: u64 = 32 * 1024;
/// The same of one whose sockets are set: by what is measured now they may be set too low.
const WORTH_AGAIN_BYTES: u64 = 4 * 1024;
/// The receive buffer that a connection begins with, as the kernel has it by default: about twice the window of a handshake, which cannot
/// be scaled (RFC 7323, section 2.2).
const FIRST_BUFFER_BYTES: u64 = 128 * 1024;
/// Of the two locks of SO_BUF_LOCK: the send buffer is not the kernel's to size (`linux/socket.h`).
const SOCK_SNDBUF_LOCK: libc::c_int = 1;

/// What this host lacks for these plans; nothing is touched.
pub(crate) fn missing(plans: &[&QueuePlan]) -> Vec<Missing> {
    if !plans.iter().any(|plan| plan.controller != Kind::None) {
        return Vec::new();
    }
    let with_way_out = |missing: Missing| {
        let mend = format!(
            "{}; or let the window alone keep the queue short, as it does by default: leave 'controller' out",
            missing.mend
        );
        Missing::new(missing.what, missing.why, mend)
    };
    mark::missing().into_iter().map(with_way_out).collect()
}

/// What is known of one direction's queue, for whoever samples it, and what its worker reads at a time.
#[derive(Debug)]
pub(crate) struct Shown {
    filling_bytes: AtomicUsize,
    delay_us: AtomicU32,
    drain_bps: AtomicU64,
    window_bytes: AtomicU32,
    buffer_bytes: AtomicU64,
    marks: AtomicU64,
}

impl Default for Shown {
    fn default() -> Shown {
        Shown {
            filling_bytes: AtomicUsize::new(usize::MAX),
            delay_us: AtomicU32::new(0),
            drain_bps: AtomicU64::new(0),
            window_bytes: AtomicU32::new(0),
            buffer_bytes: AtomicU64::new(0),
            marks: AtomicU64::new(0),
        }
    }
}

impl Shown {
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

    pub fn show_rate(&self, delay_us: u32, drain_bps: u64) {
        self.delay_us.store(delay_us, Ordering::Relaxed);
        self.drain_bps.store(drain_bps, Ordering::Relaxed);
    }

    /// Now.
    pub fn status(&self, plan: &QueuePlan) -> QueueStatus {
        let is_held = self.is_held();
        QueueStatus {
            target_us: plan.target_us,
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
pub(crate) struct Kept {
    shown: [Shown; 2],
    /// Whether the thread looks at them.
    is_watched: AtomicBool,
    /// Whether they were looked at, or never will be.
    is_known: AtomicBool,
    /// Absent until there was something to see.
    looks: Mutex<Option<Box<Looks>>>,
}

impl Kept {
    /// They will never be looked at.
    pub fn leave_alone(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Bytes a filling takes at most. Before the first look these are few: of a buffer that is its own to size, the kernel makes the
    /// more the more is read of it at a time.
    pub fn filling_bytes(&self, direction: Direction) -> usize {
        if self.is_known() { self.of(direction).filling_bytes() } else { WORTH_BYTES as usize }
    }

    /// Whether a turn that has read so many bytes is to end: the first look comes after it.
    pub fn are_to_be_seen(&self, read_bytes: u64) -> bool {
        read_bytes >= WORTH_BYTES && !self.is_known()
    }

    /// What is known of one of them.
    pub fn of(&self, direction: Direction) -> &Shown {
        &self.shown[direction.index()]
    }

    /// Whether a connection that has moved so many bytes, per direction, since it was looked at is worth a look.
    pub fn are_worth_a_look(&self, bytes: [u64; 2]) -> bool {
        let is_worth = |direction: Direction| {
            let least = if self.of(direction).is_held() { WORTH_AGAIN_BYTES } else { WORTH_BYTES };
            bytes[direction.index()] >= least
        };
        !self.is_watched.load(Ordering::Relaxed) && Direction::BOTH.into_iter().any(is_worth)
    }

    /// When the next look is due; never when nothing moves any more.
    fn look(&self, legs: &Legs, marking: Option<&Marking>, now: Instant) -> Option<Instant> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.get_or_insert_with(|| Box::new(Looks::new(legs, now))).look(legs, marking, now)
    }
}

/// Connections that are looked at, by number.
#[derive(Default)]
struct Living {
    watched: BTreeMap<u32, Arc<Legs>>,
    /// Some have come since they were last looked at.
    is_more: bool,
}

/// The connections whose queues are kept short.
pub(crate) struct Queues {
    marking: Option<Marking>,
    living: Mutex<Living>,
    /// Whoever looks at them rests until the next look is due: there are more of them, or it shall end.
    roused: Condvar,
}

impl Queues {
    /// Attaches in the calling thread's network namespace, if one of these plans wants marks.
    pub fn new(plans: &[&QueuePlan]) -> Result<Queues> {
        let marks = plans.iter().any(|plan| plan.controller != Kind::None);
        let marking = if marks { Some(Marking::attach(&mark::interfaces()?)?) } else { None };
        Ok(Queues { marking, living: Mutex::default(), roused: Condvar::new() })
    }

    /// Descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        self.marking.as_ref().map_or(0, Marking::descriptors)
    }

    /// Both legs stand: packets are marked, where that was asked for. A connection whose sockets cannot be paired is relayed
    /// all the same, and the reason returned.
    pub fn begin(&self, legs: &Legs) -> Result<()> {
        let Some(plan) = legs.plan.queue.as_ref().filter(|plan| plan.controller != Kind::None) else {
            return Ok(());
        };
        match &self.marking {
            Some(marking) => {
                Direction::BOTH.iter().try_for_each(|direction| pair(marking, legs, *direction, plan))
            }
            None => Err(crate::Error::Plan("marks begin with the next start of the relay".to_owned())),
        }
    }

    /// Something moves. The first look is its worker's own: more would come in before the thread's.
    pub fn watch(&self, legs: &Arc<Legs>) {
        legs.queues.is_watched.store(true, Ordering::Relaxed);
        legs.queues.is_known.store(true, Ordering::Relaxed);
        legs.queues.look(legs, self.marking_of(legs), Instant::now());
        let mut living = self.lock();
        living.watched.insert(legs.number, Arc::clone(legs));
        living.is_more = true;
        drop(living);
        self.roused.notify_one();
    }

    /// Nothing moves any more.
    fn unwatch(&self, legs: &Legs) {
        self.lock().watched.remove(&legs.number);
        legs.queues.is_watched.store(false, Ordering::Relaxed);
    }

    /// It has ended; its sockets are still there, for the last look at what was marked.
    pub fn end(&self, legs: &Legs) {
        if legs.queues.is_watched.load(Ordering::Relaxed) {
            self.unwatch(legs);
        }
        self.count_marks(legs);
    }

    /// Reads what the kernel has marked of a connection, for whoever is shown it next.
    pub fn count_marks(&self, legs: &Legs) {
        if let Some(marking) = self.marking_of(legs) {
            Direction::BOTH.iter().for_each(|direction| show_marks(marking, legs, *direction));
        }
    }

    fn marking_of(&self, legs: &Legs) -> Option<&Marking> {
        let is_marked = legs.plan.queue.as_ref().is_some_and(|plan| plan.controller != Kind::None);
        self.marking.as_ref().filter(|_| is_marked)
    }

    fn lock(&self) -> MutexGuard<'_, Living> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at every connection again and again, until `done` (see [`Queues::wake`]).
    pub fn run(&self, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            let started = Instant::now();
            let due = self.all().into_iter().filter_map(|legs| self.look(&legs, started)).min();
            std::thread::sleep(started.elapsed() * REST_FACTOR);
            self.rest_until(due, done);
        }
    }

    fn all(&self) -> Vec<Arc<Legs>> {
        let mut living = self.lock();
        living.is_more = false;
        living.watched.values().cloned().collect()
    }

    fn look(&self, legs: &Legs, now: Instant) -> Option<Instant> {
        let due = legs.queues.look(legs, self.marking_of(legs), now);
        if due.is_none() {
            self.unwatch(legs);
        }
        due
    }

    /// Until then or until there is one connection more; without one, as long as it takes.
    fn rest_until(&self, due: Option<Instant>, done: &AtomicBool) {
        let living = self.lock();
        if done.load(Ordering::Acquire) || living.is_more {
            return;
        }
        match due {
            None => drop(self.roused.wait(living)),
            Some(due) => {
                let rest = due.saturating_duration_since(Instant::now());
                drop(self.roused.wait_timeout(living, rest));
            }
        }
    }

    /// Ends the rest of whoever runs.
    pub fn wake(&self) {
        let _living = self.lock();
        self.roused.notify_all();
    }
}

/// Reads what the kernel has counted. A connection's last look may come before one that began earlier.
pub(crate) fn show_marks(marking: &Marking, legs: &Legs, direction: Direction) {
    let Some(marked) = marking.read(legs.leg(direction.from())) else { return };
    let shown = legs.queues.of(direction);
    shown.marks.fetch_max(marked.state.marks, Ordering::Relaxed);
    shown.show_rate(marked.state.delay_us, marked.state.drain_bps());
}

fn pair(marking: &Marking, legs: &Legs, direction: Direction, plan: &QueuePlan) -> Result<()> {
    let outbound = legs.leg(direction.to());
    let failed = |source| crate::Error::io("read the addresses of a relayed connection", source);
    let local = outbound.local_addr().map_err(failed)?;
    let remote = outbound.peer_addr().map_err(failed)?;
    let inbound = legs.leg(direction.from());
    Ok(marking.pair(inbound, Ends { local, remote }, &plan.settings(), plan.drop)?)
}

/// A listener's clients begin with little room, if their plan says so: their first acknowledgement would promise all that the
/// listener's buffer holds, before anybody has accepted them. The buffer is left to the kernel's own sizing (SO_BUF_LOCK) until the first
/// look: it makes room for what it has promised, and chooses a scale for windows by what it could make of the buffer.
pub(crate) fn begin_small(listener: &TcpListener, plan: &ConnectionPlan) {
    if begins_small(plan) {
        // Without it they begin as their plan says.
        let unlocked = socket::set_option(listener, libc::SOL_SOCKET, libc::SO_BUF_LOCK, SOCK_SNDBUF_LOCK);
        if unlocked.is_ok() && socket::set_buffer(listener, Buffer::Receive, FIRST_BUFFER_BYTES).is_ok() {
            let _ = socket::set_option(listener, libc::SOL_SOCKET, libc::SO_BUF_LOCK, SOCK_SNDBUF_LOCK);
        }
    }
}

/// Whether the window keeps queues short.
pub(crate) fn has_window(plan: &ConnectionPlan) -> bool {
    plan.queue.as_ref().is_some_and(|queue| queue.window)
}

/// Whether clients begin with less than their plan's buffer, which a window must be able to grow to.
fn begins_small(plan: &ConnectionPlan) -> bool {
    let buffer_bytes = plan.client.buffer_bytes;
    has_window(plan) && (FIRST_BUFFER_BYTES + 1..=scalable_bytes()).contains(&buffer_bytes)
}

/// What the kernel chooses the scale of windows for, of a buffer that is its own to size.
fn scalable_bytes() -> u64 {
    let last = |name| sysctl::read(name).ok()?.split_whitespace().last()?.parse().ok();
    ["net.ipv4.tcp_rmem", "net.core.rmem_max"].into_iter().filter_map(last).max().unwrap_or(0)
}

impl Shared<'_> {
    /// Both legs of a connection stand: its packets are marked, if its rule says so.
    pub fn begin_queues(&self, legs: &Legs) {
        let Err(error) = self.queues.begin(legs) else { return };
        self.warn_once(crate::shared::Once::NotMarked, || {
            format!("packets of a connection are not marked, its window alone keeps its queue short: {error}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_connection_is_never_looked_at_and_one_that_is_held_at_once() {
        let kept = Kept::default();
        assert!(!kept.are_worth_a_look([WORTH_BYTES - 1; 2]));
        assert!(kept.are_worth_a_look([0, WORTH_BYTES]));
        kept.shown[1].show(Some(&Set { window_bytes: 20_000, ahead_bytes: 10_000, buffer_bytes: 40_000 }));
        assert!(!kept.are_worth_a_look([WORTH_BYTES - 1, WORTH_AGAIN_BYTES - 1]));
        assert!(kept.are_worth_a_look([0, WORTH_AGAIN_BYTES]));
        kept.is_watched.store(true, Ordering::Relaxed);
        assert!(!kept.are_worth_a_look([u64::MAX; 2]), "it is looked at already");
    }

    #[test]
    fn what_is_set_is_told_and_what_is_released_no_longer() {
        let (shown, plan) = (Shown::default(), QueuePlan::default());
        shown.show_rate(12_000, 50_000_000);
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
