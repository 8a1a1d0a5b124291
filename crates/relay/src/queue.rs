//! Keeps the queues of relayed connections short.
//!
//! Two things work on an inbound leg, both by the same measure: how long what waits here takes at the rate at which
//! the outbound leg sends.
//! - The **window**: a thread looks at both sockets every few milliseconds and sets what the inbound one advertises, how
//!   far ahead the relay reads, and how large the receive buffer is (`cc/queue/window.h`). It is the steady limit; the
//!   kernel's own flow control is the hard one.
//! - **Marks**: a program in the kernel marks arriving packets (`longfat_kernel::mark`); the sender slows down by itself.
//!
//! The same look keeps a connection within what memory allows it (`worker::limits`), so one place sets its buffers.
//!
//! Only connections on which something moves are looked at, and of these none that is so fast that full buffers would
//! not wait for longer than the target. A connection begins with little room
//! ([`crate::legs::queue::begin_clients_small`]): a sender that finds megabytes of it grows its window and its
//! own buffer to match, and its bytes wait there from then on.

use crate::{
    Error, Result,
    legs::{Legs, queue::show_marks},
    logic::connection::Direction,
};
use longfat_cc::queue::{Kind, QueuePlan};
use longfat_host::{interface, support::Missing};
use longfat_kernel::mark::{self, Ends, Marking};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// The thread rests so many times as long as it worked: many connections are looked at less often.
const REST_FACTOR: u32 = 9;

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
        let marking = if marks { Some(Marking::attach(&interface::passed_once()?)?) } else { None };
        Ok(Queues { marking, living: Mutex::default(), roused: Condvar::new() })
    }

    /// Descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        self.marking.as_ref().map_or(0, Marking::descriptors)
    }

    /// Both legs stand: packets are marked, where that was asked for. A connection whose sockets cannot be paired is
    /// relayed all the same, and the reason returned.
    pub fn begin(&self, legs: &Legs) -> Result<()> {
        let Some(plan) = legs.plan.queue.as_ref().filter(|plan| plan.controller != Kind::None) else {
            return Ok(());
        };
        match &self.marking {
            Some(marking) => {
                Direction::BOTH.iter().try_for_each(|direction| pair(marking, legs, *direction, plan))
            }
            None => Err(Error::Plan("marks begin with the next start of the relay".to_owned())),
        }
    }

    /// Something moves. The first look is its worker's own: more would come in before the thread's.
    pub fn watch(&self, legs: &Arc<Legs>) {
        legs.queues.set_watched(true);
        legs.queues.set_known();
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
        legs.queues.set_watched(false);
    }

    /// Ends a connection's queues; its sockets are still there, for the last look at what was marked.
    pub fn end(&self, legs: &Legs) {
        if legs.queues.is_watched() {
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

fn pair(marking: &Marking, legs: &Legs, direction: Direction, plan: &QueuePlan) -> Result<()> {
    let outbound = legs.leg(direction.to());
    let failed = |source| Error::io("read the addresses of a relayed connection", source);
    let local = outbound.local_addr().map_err(failed)?;
    let remote = outbound.peer_addr().map_err(failed)?;
    let inbound = legs.leg(direction.from());
    Ok(marking.pair(inbound, Ends { local, remote }, plan)?)
}
