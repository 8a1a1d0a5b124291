//! The workers of one relay, and what all of them use.

use super::{move_out::Wanted, relayed::Relayed, standstill::Standstill};
use crate::{
    Error, Result,
    handover::estate::{Arrival, Handshake},
    hold::Held,
    keeping::Keeping,
    legs::{Legs, buffer::Budget},
    listeners::ListenerOrder,
    observe::{journal::Once, observer::Ended},
    queue::Queues,
    shared::Shared,
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// What every worker reaches.
pub(crate) struct Workers<'a> {
    pub shared: Shared<'a>,
    pub handles: Vec<WorkerHandle>,
    /// Servers' legs whose clients have not been accepted yet.
    pub held: Held,
    /// Queues of connections whose rules ask for it.
    pub queues: Queues,
    /// The keeper, which goes on when this process is killed.
    pub keeping: Keeping,
    /// Where the workers stop when a successor takes over.
    pub standstill: Standstill,
    /// What the buffers of all connections may take.
    pub budget: Budget,
    /// Connections ended so far: whoever waits for descriptors looks at it.
    ended: AtomicU64,
    /// Workers that accept nothing at the moment.
    paused: AtomicUsize,
}

impl<'a> Workers<'a> {
    pub fn new(shared: Shared<'a>, keeping: Keeping) -> Result<Workers<'a>> {
        let (plan, admission) = (shared.plan, &shared.admission);
        let handles: Result<Vec<WorkerHandle>> = (0..plan.workers).map(|_| WorkerHandle::new()).collect();
        let most_bytes = plan.limits.memory_bytes.map_or(u64::MAX, |bytes| bytes / 2);
        Ok(Workers {
            handles: handles?,
            held: Held::new(admission.held_limit()),
            queues: Queues::new(&plan.queues())?,
            keeping,
            standstill: Standstill::default(),
            budget: Budget::new(admission.most_pipes(), most_bytes),
            ended: AtomicU64::new(0),
            paused: AtomicUsize::new(0),
            shared,
        })
    }

    /// The worker that carries the fewest connections, of the first so many.
    pub fn emptiest_of(&self, count: usize) -> usize {
        let carried = |worker: &usize| self.handles[*worker].carried.load(Ordering::Relaxed);
        (0..count).min_by_key(carried).unwrap_or(0)
    }

    /// Every worker has so many listeners: what descriptors they, the gates of held handshakes and the programs that
    /// mark leave is for connections.
    pub fn count_descriptors(&self, listeners: usize) {
        let others = self.held.descriptors() + self.queues.descriptors() + self.shared.packets.descriptors();
        self.shared.admission.count_descriptors(listeners, others);
    }

    /// Both legs of a connection stand: it is shown, and its packets are marked, if its rule says so.
    pub fn stand(&self, legs: &Arc<Legs>) {
        legs.stand();
        self.shared.journal.registry.insert(legs);
        let Err(error) = self.queues.begin(legs) else { return };
        self.shared.journal.warn_once(Once::NotMarked, || {
            format!("packets of a connection are not marked, its window alone keeps its queue short: {error}")
        });
    }

    /// Counts an ended connection and wakes whoever waits for its descriptors.
    pub fn count_ended(&self, ended: Ended, bytes: [u64; 2]) {
        self.shared.journal.count_ended(ended, bytes);
        self.shared.admission.unadmit();
        self.ended.fetch_add(1, Ordering::AcqRel);
        if self.paused.load(Ordering::Acquire) > 0 {
            self.wake_all();
        }
    }

    /// Connections ended so far.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// A worker accepts nothing from now on.
    pub fn pause(&self) {
        self.paused.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the relay accept again.
    pub fn resume(&self) {
        self.paused.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn wake_all(&self) {
        self.handles.iter().for_each(WorkerHandle::wake);
    }
}

/// Connections on their way to another worker; boxed as they live in its slots.
type Handed = Vec<Box<Relayed>>;

/// One worker as the others see it.
pub(crate) struct WorkerHandle {
    /// Connections handed over to it.
    inbox: Mutex<Handed>,
    /// What another relay handed over.
    arrivals: Mutex<(Vec<Arrival>, Vec<Handshake>)>,
    /// What it shall do with its listeners.
    orders: Mutex<Vec<ListenerOrder>>,
    /// Connections that leave it for another router.
    wanted: Mutex<Vec<Wanted>>,
    /// Rounds of its loop.
    pub rounds: AtomicU64,
    /// Interrupts its wait.
    pub wake: EventFd,
    /// Connections that live there, or are on their way to it.
    pub carried: AtomicUsize,
    /// Connections that moved bulk data lately.
    pub busy: AtomicUsize,
}

impl WorkerHandle {
    fn new() -> Result<WorkerHandle> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| Error::io("make a wake-up descriptor", errno))?;
        Ok(WorkerHandle {
            inbox: Mutex::default(),
            arrivals: Mutex::default(),
            orders: Mutex::default(),
            wanted: Mutex::default(),
            rounds: AtomicU64::new(0),
            wake,
            carried: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
        })
    }

    pub fn wake(&self) {
        // Full means that a wake-up is pending already.
        let _ = self.wake.write(1);
    }

    pub fn order(&self, orders: impl IntoIterator<Item = ListenerOrder>) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).extend(orders);
        self.wake();
    }

    pub fn take_orders(&self) -> Vec<ListenerOrder> {
        std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for connections, if they are there.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).push(wanted);
        self.wake();
    }

    pub fn take_wanted(&self) -> Vec<Wanted> {
        std::mem::take(&mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Connections and handshakes that another relay has carried: before the worker begins.
    pub fn bring(&self, connections: Vec<Arrival>, handshakes: Vec<Handshake>) {
        *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner) = (connections, handshakes);
    }

    pub fn take_arrivals(&self) -> (Vec<Arrival>, Vec<Handshake>) {
        std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn hand_over(&self, connection: Box<Relayed>) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        self.wake();
    }

    pub fn collect(&self) -> Handed {
        let _ = self.wake.read();
        std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
