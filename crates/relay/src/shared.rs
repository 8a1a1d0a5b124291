//! What the workers of one relay share.

use crate::{
    Error, Fail, LegPlan, RelayPlan, RelayStats, Result,
    daemon::leave::Standstill,
    handover::estate::{Arrival, Handshake},
    hold::{Held, Room, Taken},
    keeping::Keeping,
    legs::{
        buffer::Budget,
        descriptors::Limits,
        leg::{self, Leg},
        tun::Raw,
    },
    listeners::{Clients, DoorOrder},
    logic::{
        Pair,
        one_way::{ONE_WAY_SECONDS, OneWay},
        packet,
        places::{Bytes, Places},
    },
    observe::{
        observer::{ConnectionSummary, Ended, Observer},
        registry::Registry,
        status::Standing,
    },
    plan::marks::passing_mark,
    queue::Queues,
    worker::relayed::Relayed,
};
use longfat_host::monotonic_us;
use longfat_kernel::{
    alike::{self, Alike},
    mark,
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Mutex, MutexGuard, PoisonError,
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
    /// Of whoever goes on when this process is killed.
    pub keeping: Keeping,
    /// Where the workers stop when a successor takes over.
    pub standstill: Standstill,
    /// Connections taken over from another relay, and those of which nobody knew how far they were.
    pub taken_over: AtomicU64,
    pub unclear: AtomicU64,
    /// What the thread that runs the relay says of itself.
    pub standing: Mutex<Standing>,
    /// CLOCK_MONOTONIC of its start.
    pub started_us: i64,
    pub seats: Vec<Seat>,
    /// Servers' legs whose clients have not been accepted yet.
    pub held: Held,
    /// Where it intercepts.
    pub raw: Option<Raw>,
    /// Of packets that were held and go on to their servers.
    pub passing: Option<Raw>,
    /// By client.
    places: Mutex<Places>,
    /// Makes the packets of intercepted connections look forwarded, where the kernel lets it.
    alike: Option<Alike>,
    /// What shall pass for a while.
    one_way: Mutex<Vec<OneWay>>,
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
    /// What another relay handed over.
    arrivals: Mutex<(Vec<Arrival>, Vec<Handshake>)>,
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
    PairBusy,
    OneWay,
    NotPassed,
    Full,
    Passed,
    Memory,
    NotMarked,
    NoSocket,
    NotFitted,
    Lost,
    Circle,
    Sated,
    NotExcluded,
    Unclear,
    NotInserted,
}

impl<'a> Shared<'a> {
    pub fn new(
        plan: &'a RelayPlan,
        own_mark: Option<u32>,
        keeping: Keeping,
        observer: &'a dyn Observer,
    ) -> Result<Shared<'a>> {
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
            keeping,
            standstill: Standstill::default(),
            taken_over: AtomicU64::new(0),
            unclear: AtomicU64::new(0),
            standing: Mutex::default(),
            started_us: monotonic_us(),
            seats: seats?,
            held: Held::new(limits.held),
            raw: own_mark.map(Raw::new).transpose()?,
            passing: own_mark.map(|mark| Raw::new(passing_mark(mark))).transpose()?,
            places: Mutex::default(),
            one_way: Mutex::default(),
            alike: own_mark.and_then(|own_mark| attach_alike(own_mark, observer)),
            limits,
            most_connections,
            next_number: AtomicU32::new(0),
            totals: Totals::default(),
            warned: Default::default(),
        })
    }

    /// The mark of the relay's own packets, when it intercepts.
    pub fn own_mark(&self) -> Option<u32> {
        self.own_mark
    }

    /// Numbers of connections that are taken over stay theirs.
    pub fn number_from(&self, next: u32) {
        self.next_number.fetch_max(next, Ordering::Relaxed);
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

    /// Takes a place for a client's connection that has one among all, unless the client has its share already.
    pub fn take_place(&self, client: IpAddr) -> bool {
        let may = self.places().take(client, self.connection_limit(), &self.plan.limits);
        if !may {
            self.warn_once(Once::Sated, || {
                format!(
                    "{client} has its share of {} connections: what else it opens passes or is reset (see 'client' and \
                     'network' of [limits])",
                    self.connection_limit()
                )
            });
        }
        may
    }

    /// For a client whose connection stands already.
    pub fn take_place_anyway(&self, client: IpAddr) {
        self.places().take_anyway(client);
    }

    pub fn give_place_back(&self, client: IpAddr) {
        self.places().give_back(client);
    }

    /// What the connections of a worker hold, by client.
    pub fn note_bytes(&self, worker: usize, bytes: Bytes) {
        self.seats[worker].backlog_bytes.store(bytes.values().sum(), Ordering::Relaxed);
        self.places().note(worker, bytes, self.connection_limit(), &self.plan.limits);
    }

    /// Clients that have their share.
    pub fn sated(&self) -> BTreeSet<IpAddr> {
        self.places().sated(self.connection_limit(), &self.plan.limits)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For whom there is one more place. Handshakes that are held keep theirs for clients that may not come: never from
    /// those who have.
    pub fn room(&self, client: IpAddr) -> Room {
        let (held, live) = (self.held.count(), self.live.load(Ordering::Acquire));
        let limit = self.connection_limit();
        match () {
            () if live >= limit || self.is_memory_full() => Room::Nobody,
            () if !self.places().has_room(client, limit, &self.plan.limits) => Room::Nobody,
            () if held >= self.held_limit() || live + held >= limit => Room::Client,
            () => Room::Syn,
        }
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

    /// Ends an unfinished dial for a client: its server, which may have answered in the meantime, forgets it before the
    /// client's next SYN comes.
    pub fn abandon(&self, socket: &TcpStream, pair: Pair) {
        if let Some(raw) = &self.raw
            && let Some(sequence) = leg::unanswered_sequence(socket)
        {
            raw.send(&packet::reset_behind_syn(pair, sequence), pair.1.ip());
        }
    }

    /// Lets connections pass unrelayed for a while, and says the cause once.
    pub fn note_one_way(&self, way: OneWay, cause: impl FnOnce() -> String) {
        /// Between two looks of the thread that tells nftables.
        const MOST: usize = 256;
        let mut one_way = self.one_way.lock().unwrap_or_else(PoisonError::into_inner);
        if one_way.len() < MOST && !one_way.contains(&way) {
            one_way.push(way);
        }
        drop(one_way);
        self.warn_once(Once::OneWay, || {
            format!("{}; {} pass unrelayed for {ONE_WAY_SECONDS} s", cause(), way.describe())
        });
    }

    /// Of a client that has been answered again and again and is not heard of: it is not there, or what it sends takes
    /// another way. Whose address a SYN bears need not be who sent it: a client whose packets do come is left alone.
    pub fn note_unheard(&self, pair: Pair) {
        if self.plan.fail == Fail::Closed || self.places().has_any(pair.0.ip()) {
            return;
        }
        self.note_one_way(OneWay::of_port(pair), || {
            let (client, server) = pair;
            format!(
                "nothing of {client} has come back to this host when its SYN for {server} was answered: it is not there, or its \
                 packets take another way (asymmetric routing), which no relay can carry"
            )
        });
    }

    /// Those noted since this was last asked.
    pub fn take_one_way(&self) -> Vec<OneWay> {
        std::mem::take(&mut *self.one_way.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says once that a client waited in vain for its own port.
    pub fn warn_pair_busy(&self, (client, server): Pair) {
        self.warn_once(Once::PairBusy, || {
            format!(
                "the connection of {client} to {server} was given up: this host has another one of these addresses and \
                 ports, which has not ended (see 'ss -tanp')"
            )
        });
    }

    /// Connections at a time.
    pub fn connection_limit(&self) -> usize {
        self.most_connections.load(Ordering::Relaxed)
    }

    /// Every worker has so many listeners: what descriptors they, the gates of held handshakes and the programs that
    /// mark leave is for connections.
    pub fn count_descriptors(&self, doors: usize) {
        let alike = self.alike.as_ref().map_or(0, Alike::descriptors);
        let others = self.held.descriptors() + self.queues.descriptors() + alike;
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
            released: of(Ended::Released),
            refused: of(Ended::Refused),
            client_to_server_bytes: get(&bytes[0]),
            server_to_client_bytes: get(&bytes[1]),
        }
    }
}

/// On all interfaces that there are. Without it connections are relayed all the same.
fn attach_alike(own_mark: u32, observer: &dyn Observer) -> Option<Alike> {
    let attached = match alike::missing().first() {
        Some(missing) => Err(missing.to_string()),
        None => mark::interfaces()
            .and_then(|interfaces| Alike::attach(&interfaces, own_mark))
            .map_err(|error| error.to_string()),
    };
    let told = attached.inspect_err(|why| {
        observer.warning(&format!(
            "traffic classes (DSCP), times to live and flow labels do not pass from leg to leg: {why} (see 'What packets \
             look like' in docs/reference/relay-guarantees.md)"
        ));
    });
    told.ok()
}

impl Seat {
    fn new() -> Result<Seat> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| Error::io("make a wake-up descriptor", errno))?;
        Ok(Seat {
            inbox: Mutex::default(),
            arrivals: Mutex::default(),
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
