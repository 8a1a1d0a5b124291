//! What the workers of one relay share.

use crate::{
    Error, LegPlan, RelayPlan, RelayStats, Result,
    buffer::Budget,
    doors::{Clients, DoorOrder},
    hold::{Held, Pair, Taken},
    leg::Leg,
    limits::Limits,
    observer::{ConnectionSummary, Ended, Observer},
    queue::Queues,
    registry::Registry,
    relayed::Relayed,
    status::Standing,
};
use longfat_host::monotonic_us;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Shared by all workers, the sampler and the thread that runs the relay.
pub(crate) struct Shared<'a> {
    pub plan: &'a RelayPlan,
    pub observer: &'a dyn Observer,
    /// The mark of the relay's own packets, when it intercepts.
    own_mark: Option<u32>,
    /// No new connections; the workers end when there are none left.
    pub draining: AtomicBool,
    /// The drain time is over: what still lives is reset.
    pub expired: AtomicBool,
    /// Connections alive, in workers and between them.
    pub live: AtomicUsize,
    /// Connections ended so far: whoever waits for descriptors looks at it.
    pub ended: AtomicU64,
    /// Workers that accept nothing at the moment.
    pub paused: AtomicUsize,
    /// What the buffers of all connections may take.
    pub budget: Budget,
    /// Of connections whose rules ask for it.
    pub queues: Queues,
    pub registry: Registry,
    /// What the thread that runs the relay says of itself.
    pub standing: Mutex<Standing>,
    /// CLOCK_MONOTONIC of its start.
    pub started_us: i64,
    pub seats: Vec<Seat>,
    /// Servers' legs whose clients have not been accepted yet.
    pub held: Held,
    limits: Limits,
    /// Connections at a time; more wait.
    most_connections: AtomicUsize,
    next_number: AtomicU32,
    totals: Totals,
    /// A bit for each [`Once`].
    warned: AtomicU32,
}

/// Connections on their way to another worker; boxed as they live in its slots.
type Handed = Vec<Box<Relayed>>;

/// One worker as the others see it.
pub(crate) struct Seat {
    /// Connections handed over to it.
    pub inbox: Mutex<Handed>,
    /// What it shall do with its listeners.
    orders: Mutex<Vec<DoorOrder>>,
    /// Rounds of its loop.
    pub rounds: AtomicU64,
    /// Interrupts its wait.
    pub wake: EventFd,
    /// Connections that live there, or are on their way to it.
    pub carried: AtomicUsize,
    /// Those that moved bulk data lately.
    pub busy: AtomicUsize,
    /// Bytes its connections held when it last looked.
    pub backlog_bytes: AtomicU64,
}

#[derive(Default)]
struct Totals {
    connections: AtomicU64,
    /// By [`Ended`].
    ended: [AtomicU64; Ended::ALL.len()],
    bytes: [AtomicU64; 2],
}

/// Warnings given once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Once {
    CcOverridden,
    PortChanged,
    Full,
    Passed,
    Memory,
    NotMarked,
    NoSocket,
    NotFitted,
    Lost,
}

impl<'a> Shared<'a> {
    pub fn new(plan: &'a RelayPlan, own_mark: Option<u32>, observer: &'a dyn Observer) -> Result<Shared<'a>> {
        let limits = Limits::raise(plan.workers, &plan.limits);
        let most_connections = AtomicUsize::new(limits.connections(0, 0));
        let seats: Result<Vec<Seat>> = (0..plan.workers).map(|_| Seat::new()).collect();
        Ok(Shared {
            plan,
            observer,
            own_mark,
            draining: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            live: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            paused: AtomicUsize::new(0),
            budget: Budget::new(limits.pipes, plan.limits.memory_bytes.map_or(u64::MAX, |bytes| bytes / 2)),
            queues: Queues::new(&plan.queues())?,
            registry: Registry::default(),
            standing: Mutex::default(),
            started_us: monotonic_us(),
            seats: seats?,
            held: Held::default(),
            limits,
            most_connections,
            next_number: AtomicU32::new(0),
            totals: Totals::default(),
            warned: Default::default(),
        })
    }

    /// A leg of an intercepted connection, or of one of the relay's own clients.
    pub fn leg<'p>(&self, plan: &'p LegPlan, intercepted: bool) -> Leg<'p> {
        Leg { plan, transparent: self.own_mark.filter(|_| intercepted) }
    }

    /// Whether the connections hold as much as all of them may.
    fn is_memory_full(&self) -> bool {
        let Some(limit) = self.plan.limits.memory_bytes else { return false };
        let held: u64 = self.seats.iter().map(|seat| seat.backlog_bytes.load(Ordering::Relaxed)).sum();
        if held >= limit {
            self.warn_once(Once::Memory, || {
                format!("connections hold {held} of {limit} bytes: new ones wait or pass until there is less")
            });
        }
        held >= limit
    }

    /// Takes a place for one more connection, if there is one.
    pub fn admit(&self) -> bool {
        if self.is_memory_full() {
            return false;
        }
        let limit = self.connection_limit();
        if self.live.fetch_add(1, Ordering::AcqRel) < limit {
            return true;
        }
        self.live.fetch_sub(1, Ordering::AcqRel);
        self.warn_once(Once::Full, || {
            format!(
                "{limit} connections, all that the descriptor limit allows or [limits] connections: more wait \
                 until some end (raise them with 'ulimit -n' or LimitNOFILE=, and in the relay's file)"
            )
        });
        false
    }

    /// Whether one more handshake may be held.
    pub fn has_room(&self) -> bool {
        let held = self.held.count();
        let has_place = self.live.load(Ordering::Acquire) + held < self.connection_limit();
        held < self.held_limit() && has_place && !self.is_memory_full()
    }

    /// Handshakes that all workers may hold at once.
    pub fn held_limit(&self) -> usize {
        self.limits.held
    }

    /// The leg that stands for a client whose SYN was held (perhaps by a rule that accepts early since a reload).
    pub fn held_leg(&self, client: SocketAddr, server: SocketAddr, clients: &Clients) -> Option<Taken> {
        let may_be_held = clients.is_intercepted() && self.held.count() > 0;
        if may_be_held { self.held.take(client, server) } else { None }
    }

    /// Counts a client whose SYN was held and whose server could not be reached.
    pub fn count_unserved(&self, pair: Pair, rule: &str, begun: Instant) {
        let ended = Ended::Unreachable;
        self.totals.ended[ended as usize].fetch_add(1, Ordering::Relaxed);
        self.tell_unserved(self.number(), pair, (rule, ended), begun);
    }

    /// Tells of a client for which there was no leg to the server, and counts it for its rule.
    pub fn tell_unserved(&self, number: u32, pair: Pair, (rule, ended): (&str, Ended), begun: Instant) {
        self.registry.count(rule, ended);
        if self.observer.wants_summaries() {
            self.observer.closed(&ConnectionSummary::without_legs(number, pair, rule, ended, begun));
        }
    }

    /// Says once that a server sees another port than its client's.
    pub fn warn_port_changed(&self, client: SocketAddr, server: SocketAddr) {
        self.warn_once(Once::PortChanged, || {
            format!(
                "{client} reused its port towards {server} while the last connection of that name, which had no TCP \
                 timestamps, is in TIME_WAIT here: the server sees another port"
            )
        });
    }

    /// Connections at a time.
    pub fn connection_limit(&self) -> usize {
        self.most_connections.load(Ordering::Relaxed)
    }

    /// Every worker has so many listeners: what descriptors they, the gates of held handshakes and the programs that mark
    /// leave is for connections.
    pub fn count_descriptors(&self, doors: usize) {
        let others = self.held.descriptors() + self.queues.descriptors();
        self.most_connections.store(self.limits.connections(doors, others), Ordering::Relaxed);
    }

    /// Gives back a place nobody came to take.
    pub fn unadmit(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn number(&self) -> u32 {
        self.totals.connections.fetch_add(1, Ordering::Relaxed);
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts an ended connection and wakes whoever waits for its descriptors.
    pub fn count_ended(&self, ended: Ended, bytes: [u64; 2]) {
        self.totals.ended[ended as usize].fetch_add(1, Ordering::Relaxed);
        for (total, bytes) in self.totals.bytes.iter().zip(bytes) {
            total.fetch_add(bytes, Ordering::Relaxed);
        }
        self.live.fetch_sub(1, Ordering::AcqRel);
        self.ended.fetch_add(1, Ordering::AcqRel);
        if self.paused.load(Ordering::Acquire) > 0 {
            self.wake_all();
        }
    }

    pub fn wake_all(&self) {
        self.seats.iter().for_each(Seat::wake);
    }

    pub fn warn_once(&self, which: Once, message: impl FnOnce() -> String) {
        let bit = 1 << which as u32;
        if self.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.observer.warning(&message());
        }
    }

    pub fn stats(&self) -> RelayStats {
        let Totals { connections, ended, bytes } = &self.totals;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |ending: Ended| get(&ended[ending as usize]);
        RelayStats {
            connections: get(connections),
            finished: of(Ended::Finished),
            unreachable: of(Ended::Unreachable),
            reset: of(Ended::ResetByClient) + of(Ended::ResetByServer),
            stopped: of(Ended::Stopped) + of(Ended::Idle),
            refused: of(Ended::Refused),
            client_to_server_bytes: get(&bytes[0]),
            server_to_client_bytes: get(&bytes[1]),
        }
    }
}

impl Seat {
    fn new() -> Result<Seat> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| Error::io("make a wake-up descriptor", errno))?;
        Ok(Seat {
            inbox: Mutex::default(),
            orders: Mutex::default(),
            rounds: AtomicU64::new(0),
            wake,
            carried: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            backlog_bytes: AtomicU64::new(0),
        })
    }

    pub fn wake(&self) {
        // Full means that a wake-up is pending already.
        let _ = self.wake.write(1);
    }

    pub fn order(&self, orders: impl IntoIterator<Item = DoorOrder>) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).extend(orders);
        self.wake();
    }

    pub fn take_orders(&self) -> Vec<DoorOrder> {
        std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner))
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
