//! Connections that are open: how many there may be, whose turn it is to have an answer made, and how much of what was
//! made may wait for readers.
//!
//! Where something is short, the client (by its address, of IPv6 by its /64) with the most connections comes last: who
//! opens many shuts out itself.

use longfat_host::Network;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::{IpAddr, Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Connections at once; browsers open some that they may never use.
pub const CONNECTIONS_MAX: usize = 64;
/// Bytes of answers that wait for their readers, all together. A larger answer waits alone.
const ANSWERS_BYTES_MAX: usize = 64 << 20;
/// How long a connection lasts at least, however many come after it.
const LIFE_MIN: Duration = Duration::from_millis(200);

/// Every open connection, by number: the smallest is the oldest.
#[derive(Default)]
pub struct Open {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    connections: BTreeMap<u64, Entry>,
    next: u64,
    is_making: bool,
}

struct Entry {
    stream: Arc<TcpStream>,
    client: Network,
    since: Instant,
    stage: Stage,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The request is not whole.
    Asking,
    /// The answer is not begun.
    Waiting,
    /// The answer is being made, or was made and has so many bytes.
    Answered { bytes: usize },
}

/// A connection that is counted for as long as this lives.
pub struct Connection {
    open: Arc<Open>,
    number: u64,
    pub stream: Arc<TcpStream>,
}

/// The right to make an answer, which one connection has at a time.
pub struct Turn<'a>(&'a Open);

/// Why a connection has no turn.
#[derive(Debug, PartialEq, Eq)]
pub enum NoTurn {
    /// The connection was closed to make room.
    Closed,
    /// Other connections took all the time.
    Late,
}

impl Open {
    /// Counts a connection. When there are too many, another is closed: of the client that has the most, the oldest
    /// without a request, or else the oldest.
    pub fn add(self: &Arc<Open>, client: IpAddr, stream: TcpStream) -> Connection {
        let mut state = self.state();
        while state.connections.len() >= CONNECTIONS_MAX {
            let (number, since) = state.in_the_way();
            let left = LIFE_MIN.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.close(&mut state, number);
            } else {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let (number, stream) = (state.next, Arc::new(stream));
        let entry = Entry {
            stream: Arc::clone(&stream),
            client: Network::of_peer(client),
            since: Instant::now(),
            stage: Stage::Asking,
        };
        state.connections.insert(number, entry);
        state.next += 1;
        Connection { open: Arc::clone(self), number, stream }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a connection, whose thread sees the end.
    fn close(&self, state: &mut State, number: u64) {
        if let Some(entry) = state.connections.remove(&number) {
            let _ = entry.stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }
}

impl State {
    fn count(&self, client: Network) -> usize {
        self.connections.values().filter(|entry| entry.client == client).count()
    }

    /// The connection that makes room for another, and since when it has been open.
    fn in_the_way(&self) -> (u64, Instant) {
        let key = |(number, entry): &(&u64, &Entry)| {
            (Reverse(self.count(entry.client)), entry.stage != Stage::Asking, **number)
        };
        let found = self.connections.iter().min_by_key(key);
        found.map_or((0, Instant::now()), |(number, entry)| (*number, entry.since))
    }

    /// The waiting connection whose answer is made next.
    fn first_in_line(&self) -> Option<u64> {
        let waiting = self.connections.iter().filter(|(_, entry)| entry.stage == Stage::Waiting);
        waiting.min_by_key(|(number, entry)| (self.count(entry.client), **number)).map(|(number, _)| *number)
    }

    /// The oldest connection with an answer in memory but for this one, when all answers are too long together.
    fn in_the_way_of_an_answer(&self, own: u64) -> Option<u64> {
        let bytes = |entry: &Entry| match entry.stage {
            Stage::Answered { bytes } => bytes,
            Stage::Asking | Stage::Waiting => 0,
        };
        let total: usize = self.connections.values().map(bytes).sum();
        let others = self.connections.iter().filter(|(number, entry)| **number != own && bytes(entry) > 0);
        let client = |(number, entry): &(&u64, &Entry)| (Reverse(self.count(entry.client)), **number);
        let oldest = others.min_by_key(client).map(|(number, _)| *number);
        oldest.filter(|_| total > ANSWERS_BYTES_MAX)
    }
}

impl Connection {
    /// Waits for its turn, for as long as that. First comes the client with the fewest connections, then the oldest.
    pub fn turn(&self, patience: Duration) -> Result<Turn<'_>, NoTurn> {
        let until = Instant::now() + patience;
        let mut state = self.open.state();
        state.connections.get_mut(&self.number).ok_or(NoTurn::Closed)?.stage = Stage::Waiting;
        while state.is_making || state.first_in_line() != Some(self.number) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.is_answered(&mut state, 0);
                return Err(NoTurn::Late);
            }
            state = self.open.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            if !state.connections.contains_key(&self.number) {
                return Err(NoTurn::Closed);
            }
        }
        state.is_making = true;
        self.is_answered(&mut state, 0);
        Ok(Turn(&self.open))
    }

    /// Counts the bytes that wait for its reader. When there are too many in all, others are closed.
    pub fn holds(&self, bytes: usize) {
        let mut state = self.open.state();
        self.is_answered(&mut state, bytes);
        while let Some(number) = state.in_the_way_of_an_answer(self.number) {
            self.open.close(&mut state, number);
        }
    }

    fn is_answered(&self, state: &mut State, bytes: usize) {
        if let Some(entry) = state.connections.get_mut(&self.number) {
            entry.stage = Stage::Answered { bytes };
        }
        self.open.changed.notify_all();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.state().connections.remove(&self.number);
        self.open.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().is_making = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    const NO_TIME: Duration = Duration::ZERO;

    struct Bed {
        listener: TcpListener,
        open: Arc<Open>,
        ends: Vec<TcpStream>,
    }

    impl Bed {
        fn new() -> Bed {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Bed { listener, open: Arc::default(), ends: Vec::new() }
        }

        /// A connection that counts as one of that client.
        fn add(&mut self, client: u8) -> Connection {
            self.add_from(Ipv4Addr::new(192, 0, 2, client).into())
        }

        fn add_from(&mut self, client: IpAddr) -> Connection {
            self.ends.push(TcpStream::connect(self.listener.local_addr().unwrap()).unwrap());
            let stream = self.listener.accept().unwrap().0;
            self.open.add(client, stream)
        }
    }

    fn is_closed(connection: &Connection) -> bool {
        connection.turn(NO_TIME).is_err_and(|why| why == NoTurn::Closed)
    }

    #[test]
    fn who_has_opened_most_makes_room_and_first_by_those_without_a_request() {
        let mut bed = Bed::new();
        let own = bed.add(1);
        let others: Vec<Connection> = (1..CONNECTIONS_MAX).map(|_| bed.add(2)).collect();
        drop(others[0].turn(NO_TIME).unwrap());
        let last = bed.add(2);
        assert!(is_closed(&others[1]), "the oldest without a request");
        assert!([&own, &others[0], &others[2], &last].iter().all(|connection| !is_closed(connection)));
    }

    #[test]
    fn the_addresses_of_an_ipv6_network_are_one_client() {
        let mut bed = Bed::new();
        let own = [bed.add(1), bed.add(1)];
        let address = |host: usize| format!("2001:db8::{host:x}").parse().unwrap();
        let others: Vec<Connection> = (2..CONNECTIONS_MAX).map(|host| bed.add_from(address(host))).collect();
        let last = bed.add(1);
        assert!(is_closed(&others[0]), "of the network that has the most");
        assert!(own.iter().chain([&last]).all(|connection| !is_closed(connection)));
    }

    #[test]
    fn one_answer_is_made_at_a_time_and_first_those_of_who_has_opened_least() {
        let mut bed = Bed::new();
        let [first, second, third] = [2, 2, 1].map(|client| bed.add(client));
        let turn = first.turn(NO_TIME).unwrap();
        let order = Mutex::new(Vec::new());
        let waits = |connection: &Connection, name: &'static str| {
            let turn = connection.turn(Duration::from_secs(60)).map_err(drop).unwrap();
            order.lock().unwrap().push(name);
            drop(turn);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| waits(&second, "of two"));
            scope.spawn(|| waits(&third, "of one"));
            while bed.open.state().connections.values().filter(|entry| entry.stage == Stage::Waiting).count()
                < 2
            {
                std::thread::yield_now();
            }
            drop(turn);
        });
        assert_eq!(*order.lock().unwrap(), ["of one", "of two"]);
    }

    #[test]
    fn who_waits_too_long_for_its_turn_is_told_and_does_not_keep_others_from_theirs() {
        let mut bed = Bed::new();
        let [first, second, third] = [1; 3].map(|client| bed.add(client));
        let turn = first.turn(NO_TIME).unwrap();
        assert_eq!(second.turn(Duration::from_millis(1)).err(), Some(NoTurn::Late));
        drop(turn);
        assert!(third.turn(NO_TIME).is_ok());
    }

    #[test]
    fn answers_that_nobody_reads_are_given_up_for_newer_ones_but_a_long_one_waits_alone() {
        let mut bed = Bed::new();
        let [first, second, third] = [1; 3].map(|client| bed.add(client));
        first.holds(ANSWERS_BYTES_MAX / 2);
        second.holds(ANSWERS_BYTES_MAX / 2);
        assert!(!is_closed(&first) && !is_closed(&second));
        first.holds(ANSWERS_BYTES_MAX / 2);
        second.holds(ANSWERS_BYTES_MAX / 2);
        third.holds(1);
        assert!(is_closed(&first) && !is_closed(&second));
        third.holds(2 * ANSWERS_BYTES_MAX);
        assert!(is_closed(&second) || bed.open.state().connections.len() == 2);
        assert!(!is_closed(&third));
    }
}
