//! For whom there is one more place: among all connections, among those of one client, and in memory.

use crate::{
    LimitsPlan, RelayPlan,
    legs::descriptors::Descriptors,
    logic::{
        memory::Bytes,
        places::{Places, Room},
    },
    observe::{
        journal::{Journal, Once},
        status::MemoryStatus,
    },
};
use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Places of a relay, and who has them.
pub(crate) struct Admission<'a> {
    limits: &'a LimitsPlan,
    journal: &'a Journal<'a>,
    descriptors: Descriptors,
    /// Connections at a time; more wait.
    most_connections: AtomicUsize,
    /// Connections alive, in workers and between them.
    live: AtomicUsize,
    /// Bytes that count against the limit of all, of what connections held when their workers last looked.
    charged_bytes: AtomicU64,
    /// By client.
    places: Mutex<Places>,
}

impl<'a> Admission<'a> {
    /// Raises the limit of descriptors.
    pub fn new(plan: &'a RelayPlan, journal: &'a Journal<'a>) -> Admission<'a> {
        let descriptors = Descriptors::raise(plan.workers, &plan.limits);
        Admission {
            limits: &plan.limits,
            journal,
            descriptors,
            most_connections: AtomicUsize::new(descriptors.connections(0, 0)),
            live: AtomicUsize::new(0),
            charged_bytes: AtomicU64::new(0),
            places: Mutex::default(),
        }
    }

    /// Connections alive.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Pipes that all connections may have.
    pub fn most_pipes(&self) -> usize {
        self.descriptors.pipes
    }

    /// Handshakes that all workers may hold at once.
    pub fn held_limit(&self) -> usize {
        self.descriptors.held
    }

    /// Connections at a time.
    pub fn connection_limit(&self) -> usize {
        self.most_connections.load(Ordering::Relaxed)
    }

    /// Every worker has so many listeners, and so many other descriptors are kept open: what they leave is for
    /// connections.
    pub fn count_descriptors(&self, listeners: usize, others: usize) {
        self.most_connections.store(self.descriptors.connections(listeners, others), Ordering::Relaxed);
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
        self.journal.warn_once(Once::Full, || {
            format!(
                "{limit} connections, all that the descriptor limit allows or [limits] connections: more wait \
                 until some end (raise them with 'ulimit -n' or LimitNOFILE=, and in the relay's file)"
            )
        });
        false
    }

    /// For a connection that another relay has carried: it has its place, however many there are.
    pub fn admit_anyway(&self, client: IpAddr) {
        self.live.fetch_add(1, Ordering::AcqRel);
        self.places().take_anyway(client);
    }

    /// Gives back a place: nobody came to take it, or its connection has ended.
    pub fn unadmit(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether the connections hold as much as all of them may.
    fn is_memory_full(&self) -> bool {
        let Some(limit) = self.limits.memory_bytes else { return false };
        let held = self.charged_bytes.load(Ordering::Relaxed);
        if held >= limit {
            self.journal.warn_once(Once::Memory, || {
                format!("connections hold {held} of {limit} bytes: new ones wait or pass until there is less")
            });
        }
        held >= limit
    }

    /// Takes a place for a client's connection that has one among all, unless the client has its share already.
    pub fn take_place(&self, client: IpAddr) -> bool {
        let (may, (of_client, of_network)) = {
            let mut places = self.places();
            (places.take(client, self.connection_limit(), self.limits), places.counts(client))
        };
        if !may {
            self.journal.warn_once(Once::Sated, || {
                format!(
                    "{client} has its share with {of_client} connections ({of_network} of its network), or with their memory: \
                     what else it opens passes or is reset \
                     (see 'client', 'network', 'client_memory' and 'network_memory' of [limits])"
                )
            });
        }
        may
    }

    pub fn give_place_back(&self, client: IpAddr) {
        self.places().give_back(client);
    }

    /// Takes a place among all and one of the client's, or none.
    pub fn admit_client(&self, client: IpAddr) -> bool {
        if !self.admit() {
            return false;
        }
        let may = self.take_place(client);
        if !may {
            self.unadmit();
        }
        may
    }

    /// Gives both back: nobody came to take them.
    pub fn unadmit_client(&self, client: IpAddr) {
        self.give_place_back(client);
        self.unadmit();
    }

    /// Whether a client has any connection.
    pub fn has_any(&self, client: IpAddr) -> bool {
        self.places().has_any(client)
    }

    /// What the connections of a worker hold, by client. Returns by how much each of a client's connections may grow.
    pub fn note_bytes(&self, worker: usize, bytes: &Bytes) -> Bytes {
        let mut places = self.places();
        places.note(worker, bytes, self.connection_limit(), self.limits);
        self.charged_bytes.store(places.memory.held_bytes().1, Ordering::Relaxed);
        bytes.keys().map(|client| (*client, places.growth_bytes(*client, self.limits))).collect()
    }

    /// By how much each of a client's connections may grow.
    pub fn growth_bytes(&self, client: IpAddr) -> u64 {
        self.places().growth_bytes(client, self.limits)
    }

    /// What clients hold of the memory that is limited.
    pub fn memory(&self) -> Option<MemoryStatus> {
        self.limits.has_memory().then(|| MemoryStatus::of(&self.places().memory, self.limits))
    }

    /// Clients that have their share.
    pub fn sated(&self) -> BTreeSet<IpAddr> {
        self.places().sated(self.connection_limit(), self.limits)
    }

    /// For whom there is one more place while so many handshakes are held. These keep theirs for clients that may not
    /// come: never from those who have.
    pub fn room(&self, client: IpAddr, held: usize) -> Room {
        let (live, limit) = (self.live(), self.connection_limit());
        match () {
            () if live >= limit || self.is_memory_full() => Room::Nobody,
            () if !self.places().has_room(client, limit, self.limits) => Room::Nobody,
            () if held >= self.held_limit() || live + held >= limit => Room::Client,
            () => Room::Syn,
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
