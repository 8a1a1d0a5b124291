//! Keeps the queues of relayed connections short.
//!
//! Two things work on an inbound leg, both by the same measure: how long what waits here takes at the rate at which
//! the outbound leg sends.
//! - The **window**: a thread looks at both sockets every few milliseconds and sets what the inbound one advertises, how
//!   far ahead the relay reads, and how large the receive buffer is (`cc/queue/window.h`). It is the steady limit; the
//!   kernel's own flow control is the hard one.
//! - **Marks**: a program in the kernel marks arriving packets (`longfat_kernel::mark`); the sender slows down by itself.

mod spec;

pub use spec::QueueSpec;

use crate::{
    Result,
    connection::{Direction, Side},
    leg,
    relayed::Legs,
    shared::Shared,
    status::QueueStatus,
};
use longfat_cc::queue::{Advertised, Kind, QueuePlan, View, Window};
use longfat_host::{
    monotonic_us,
    socket::{self, Buffer, TcpInfo, tcp_info},
    support::Missing,
};
use longfat_kernel::mark::{self, Ends, Marking};
use std::{
    collections::BTreeMap,
    net::TcpStream,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How often a connection is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Looks passed over at most on a connection on which nothing moves.
const REST_LOOKS: u32 = 16;
/// The thread rests so many times as long as it worked: many connections are looked at less often.
const REST_FACTOR: u32 = 9;

/// What this host lacks for these plans; nothing is touched.
pub(crate) fn missing(plans: &[&QueuePlan]) -> Vec<Missing> {
    if !plans.iter().any(|plan| plan.controller != Kind::None) {
        return Vec::new();
    }
    let with_way_out = |missing: Missing| {
        let mend =
            format!("{}; or let the window alone keep the queue short: controller = \"none\"", missing.mend);
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
    marks: AtomicU64,
}

impl Default for Shown {
    fn default() -> Shown {
        Shown {
            filling_bytes: AtomicUsize::new(usize::MAX),
            delay_us: AtomicU32::new(0),
            drain_bps: AtomicU64::new(0),
            window_bytes: AtomicU32::new(0),
            marks: AtomicU64::new(0),
        }
    }
}

impl Shown {
    /// Bytes a filling takes at most, and beyond which nothing more is written; the greatest number: without limit.
    pub fn filling_bytes(&self) -> usize {
        self.filling_bytes.load(Ordering::Relaxed)
    }

    /// Now.
    pub fn status(&self, plan: &QueuePlan) -> QueueStatus {
        QueueStatus {
            target_us: plan.target_us,
            delay_us: self.delay_us.load(Ordering::Relaxed),
            drain_bps: self.drain_bps.load(Ordering::Relaxed),
            window_bytes: plan.window.then(|| self.window_bytes.load(Ordering::Relaxed)),
            marked_packets: self.marks.load(Ordering::Relaxed),
        }
    }
}

/// By number.
#[derive(Default)]
struct Living {
    held: BTreeMap<u32, Arc<Held>>,
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

    /// Both legs stand. A connection whose sockets cannot be paired is relayed all the same, and the reason returned.
    pub fn begin(&self, legs: &Arc<Legs>) -> Result<()> {
        let Some(plan) = &legs.plan.queue else { return Ok(()) };
        let held = Held { legs: Arc::clone(legs), looks: Mutex::new([Look::new(plan), Look::new(plan)]) };
        // The first bytes are there already, or come before the thread looks.
        held.look(None, Instant::now());
        let mut living = self.lock();
        living.held.insert(legs.number, Arc::new(held));
        living.is_more = true;
        drop(living);
        self.roused.notify_one();
        match &self.marking {
            _ if plan.controller == Kind::None => Ok(()),
            Some(marking) => {
                Direction::BOTH.iter().try_for_each(|direction| pair(marking, legs, *direction, plan))
            }
            None => Err(crate::Error::Plan("marks begin with the next start of the relay".to_owned())),
        }
    }

    /// It has ended; its sockets are still there, for the last look at what was marked.
    pub fn end(&self, legs: &Legs) {
        let Some(plan) = &legs.plan.queue else { return };
        self.lock().held.remove(&legs.number);
        if let Some(marking) = self.marking.as_ref().filter(|_| plan.controller != Kind::None) {
            Direction::BOTH.iter().for_each(|direction| show_marks(marking, legs, *direction));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Living> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at every connection again and again, until `done` (see [`Queues::wake`]).
    pub fn run(&self, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            let started = Instant::now();
            let due = self.all().into_iter().map(|held| held.look(self.marking.as_ref(), started)).min();
            std::thread::sleep(started.elapsed() * REST_FACTOR);
            self.rest_until(due, done);
        }
    }

    fn all(&self) -> Vec<Arc<Held>> {
        let mut living = self.lock();
        living.is_more = false;
        living.held.values().cloned().collect()
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
fn show_marks(marking: &Marking, legs: &Legs, direction: Direction) {
    let Some(marked) = marking.read(legs.leg(direction.from())) else { return };
    let shown = &legs.queues[direction.index()];
    shown.marks.fetch_max(marked.state.marks, Ordering::Relaxed);
    shown.delay_us.store(marked.state.delay_us, Ordering::Relaxed);
    shown.drain_bps.store(marked.state.drain_bps(), Ordering::Relaxed);
}

fn pair(marking: &Marking, legs: &Legs, direction: Direction, plan: &QueuePlan) -> Result<()> {
    let outbound = legs.leg(direction.to());
    let failed = |source| crate::Error::io("read the addresses of a relayed connection", source);
    let local = outbound.local_addr().map_err(failed)?;
    let remote = outbound.peer_addr().map_err(failed)?;
    let inbound = legs.leg(direction.from());
    Ok(marking.pair(inbound, Ends { local, remote }, &plan.settings(), plan.drop)?)
}

/// A connection, as the thread that looks at it has it.
struct Held {
    legs: Arc<Legs>,
    looks: Mutex<[Look; 2]>,
}

impl Held {
    /// When the next look is due.
    fn look(&self, marking: Option<&Marking>, now: Instant) -> Instant {
        let marks = self.legs.plan.queue.as_ref().is_some_and(|plan| plan.controller != Kind::None);
        let marking = marking.filter(|_| marks);
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        for direction in Direction::BOTH {
            looks[direction.index()].look(&self.legs, direction, marking, now);
        }
        looks[0].due.min(looks[1].due)
    }
}

/// One direction: what was set last, and when to look again.
#[derive(Debug)]
struct Look {
    window: Option<Window>,
    set: Advertised,
    /// The greatest number: not set yet.
    buffer_bytes: u64,
    received_bytes: u64,
    still: u32,
    due: Instant,
    /// What the kernel takes of the receive buffer for a byte of payload, in sixteenths.
    bookkeeping_x16: u64,
}

impl Look {
    /// Until there was enough to see.
    const BOOKKEEPING_X16: u64 = 32;
    const ENOUGH_BYTES: u64 = 16 * 1024;

    fn new(plan: &QueuePlan) -> Look {
        Look {
            window: plan.window.then(|| Window::new(plan.target_us)),
            set: Advertised::default(),
            buffer_bytes: u64::MAX,
            received_bytes: 0,
            still: 0,
            due: Instant::now(),
            bookkeeping_x16: Look::BOOKKEEPING_X16,
        }
    }

    fn look(&mut self, legs: &Legs, direction: Direction, marking: Option<&Marking>, now: Instant) {
        if now < self.due {
            return;
        }
        self.due = now + LOOK_EVERY;
        let (inbound, outbound) = (legs.leg(direction.from()), legs.leg(direction.to()));
        let (Ok(from), Ok(to)) = (tcp_info(inbound), tcp_info(outbound)) else { return };
        self.note_movement(&from, &to);
        let shown = &legs.queues[direction.index()];
        if let Some(marking) = marking {
            show_marks(marking, legs, direction);
        }
        let Some(window) = &mut self.window else { return };
        let wanted = window.update(&view(&from, &to));
        shown.delay_us.store(window.delay_us(), Ordering::Relaxed);
        shown.drain_bps.store(window.drain_bps(), Ordering::Relaxed);
        shown.window_bytes.store(wanted.window_bytes, Ordering::Relaxed);
        let most_bytes = match direction.from() {
            Side::Client => legs.plan.client.buffer_bytes,
            Side::Server => legs.plan.server.buffer_bytes,
        };
        self.apply(wanted, inbound, outbound, &from, most_bytes);
        shown.filling_bytes.store(self.set.ahead_bytes as usize / 2, Ordering::Relaxed);
    }

    /// A connection on which nothing moves is looked at less and less often.
    fn note_movement(&mut self, from: &TcpInfo, to: &TcpInfo) {
        let is_still = from.received_bytes == self.received_bytes && to.notsent_bytes == 0;
        self.received_bytes = from.received_bytes;
        self.still = if is_still { (self.still * 2).clamp(1, REST_LOOKS) } else { 0 };
        self.due += LOOK_EVERY * self.still;
    }

    /// The kernel forgets a clamp when the first data show how large segments are: it then allows what the receive buffer
    /// holds. That shows in what it promises.
    fn is_clamp_due(&self, window_bytes: u32, promised_bytes: u32) -> bool {
        differs(self.set.window_bytes, window_bytes) || promised_bytes / 2 > self.set.window_bytes
    }

    /// Sets what has changed enough to be worth a system call. A socket that refuses has ended.
    fn apply(
        &mut self,
        wanted: Advertised,
        inbound: &TcpStream,
        outbound: &TcpStream,
        from: &TcpInfo,
        most: u64,
    ) {
        let tcp = |socket: &TcpStream, name, bytes: u32| {
            let _ = socket::set_option(socket, libc::IPPROTO_TCP, name, bytes as i32);
        };
        if self.is_clamp_due(wanted.window_bytes, from.rcv_wnd_bytes) {
            self.set.window_bytes = wanted.window_bytes;
            tcp(inbound, libc::TCP_WINDOW_CLAMP, wanted.window_bytes);
        }
        if differs(self.set.ahead_bytes, wanted.ahead_bytes) {
            // The kernel says that there is room when less than half of this waits, which is just when the worker writes again.
            self.set.ahead_bytes = wanted.ahead_bytes & !1;
            tcp(outbound, libc::TCP_NOTSENT_LOWAT, self.set.ahead_bytes);
        }
        let (unread_bytes, occupied_bytes) = (leg::unread_bytes(inbound), occupied_bytes(inbound));
        if unread_bytes >= Look::ENOUGH_BYTES {
            // Bundles of segments need less bookkeeping than lone ones: what is there shows how much.
            self.bookkeeping_x16 = (16 * occupied_bytes / unread_bytes).clamp(17, 64);
        }
        let room_bytes = u64::from(wanted.buffer_bytes) * self.bookkeeping_x16 / 16;
        let is_over = unread_bytes > u64::from(wanted.buffer_bytes);
        let buffer_bytes = buffer_bytes(room_bytes, from.rcv_wnd_bytes, is_over, occupied_bytes);
        // Over-full it does not grow again: what was promised was promised within it.
        let buffer_bytes = buffer_bytes.min(if is_over { self.buffer_bytes.min(most) } else { most });
        if self.buffer_bytes.abs_diff(buffer_bytes) > self.buffer_bytes / 8 {
            self.buffer_bytes = buffer_bytes;
            let _ = socket::set_buffer(inbound, Buffer::Receive, buffer_bytes);
        }
    }
}

/// The receive buffer, as the kernel counts it, bookkeeping included: room for what may be unread. What was promised to the
/// sender always keeps its place: the kernel drops what comes into a full buffer, and the sender, which sees no more
/// than its timer, comes back after 200 ms, and after twice that when the buffer is still full. When more is unread than wanted
/// and nothing is promised, the buffer shrinks at once: the kernel then advertises nothing until enough is read. That is
/// the hard limit: on a leg with a round trip of microseconds no window is small enough.
fn buffer_bytes(room_bytes: u64, promised_bytes: u32, is_over: bool, occupied_bytes: u64) -> u64 {
    let with_promised = occupied_bytes + 2 * u64::from(promised_bytes);
    match is_over {
        true if promised_bytes == 0 => room_bytes,
        true => with_promised,
        false => room_bytes.max(with_promised),
    }
}

/// What the receive queue takes of its buffer: the first number of SO_MEMINFO.
fn occupied_bytes(socket: &TcpStream) -> u64 {
    socket::option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).map_or(0, |bytes| u64::from(bytes as u32))
}

/// By more than an eighth.
fn differs(set: u32, wanted: u32) -> bool {
    set.abs_diff(wanted) > set / 8
}

fn view(from: &TcpInfo, to: &TcpInfo) -> View {
    // Both only err upwards: the sender's own pauses lengthen the one, a full path the other.
    let rtts = [from.rcv_rtt_us, from.srtt_us];
    View {
        now_us: monotonic_us() as u64,
        received_bytes: from.received_bytes,
        sent_bytes: to.sent_bytes.saturating_sub(to.retrans_bytes),
        acked_bytes: to.acked_bytes,
        inbound_rtt_us: rtts.into_iter().filter(|rtt_us| *rtt_us > 0).min().unwrap_or(0),
        outbound_rtt_us: to.srtt_us,
        outbound_cwnd_bytes: to.snd_cwnd_segments.saturating_mul(to.snd_mss_bytes),
        mss_bytes: from.advmss_bytes,
        random: 0,
        reserved: 0,
    }
}

impl Shared<'_> {
    /// Both legs of a connection stand: its queues are kept short, if its rule says so.
    pub fn begin_queues(&self, legs: &Arc<Legs>) {
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
    fn a_clamp_that_the_kernel_forgot_is_set_again() {
        let mut look = Look::new(&QueuePlan::default());
        assert!(look.is_clamp_due(50_000, 0));
        look.set.window_bytes = 50_000;
        assert!(!look.is_clamp_due(52_000, 60_000));
        assert!(look.is_clamp_due(50_000, 130_000));
    }

    #[test]
    fn a_buffer_keeps_what_was_promised_and_shrinks_when_it_is_over_full_and_nothing_is() {
        assert_eq!(buffer_bytes(100_000, 40_000, false, 0), 100_000);
        assert_eq!(buffer_bytes(100_000, 60_000, false, 0), 120_000);
        assert_eq!(buffer_bytes(100_000, 3_000, true, 1_600_000), 1_606_000);
        assert_eq!(buffer_bytes(100_000, 0, true, 1_800_000), 100_000);
    }
}
