//! Takes in connections that another router's relay moves here.
//!
//! Who speaks must have the key. What he names is dropped at tc from then on, until its sockets are there: were they to
//! answer, or were packets to pass, before it is certain whose the connection is, its ends would have two answers. What
//! he has not handed over when the channel closes was never here.

use super::answers::Relay;
use crate::{
    Error, MovePlan, RelayPlan, Result,
    legs::leg::{self, Share},
    logic::Pair,
    moving::{
        channel::{Channel, KEY_BYTES, PURPOSE},
        decisions::Decisions,
        message::{Hello, MOST_NAMED, MOST_QUEUED_BYTES, Message, Refused, Stay, VERSION},
        watched::WatchedRecord,
    },
    plan::LegPlan,
    worker::Landing,
};
use longfat_host::{key::Key, monotonic_us};
use std::{
    collections::{BTreeMap, HashSet},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How often somebody is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// Sessions at a time, strangers' among them, who have so long to show that they know the key.
const MOST_SESSIONS: usize = 4;
const GREETING: Duration = Duration::from_secs(2);
/// A sender that says nothing for so long has gone.
const SILENCE: Duration = Duration::from_secs(10);
/// How long ways to sockets may take.
const ROUTING: Duration = Duration::from_secs(2);
/// Connections that stand and are not handed over, and what they hold.
const MOST_STANDING_BYTES: usize = 2 * MOST_QUEUED_BYTES;

/// Where they come in, and who may speak.
#[derive(Debug)]
pub(crate) struct Place {
    listen: SocketAddr,
    listener: TcpListener,
    key_file: PathBuf,
    key: [u8; KEY_BYTES],
}

/// What a reload makes of it.
#[derive(Debug)]
pub(crate) enum Change {
    Nothing,
    Key(PathBuf, [u8; KEY_BYTES]),
    Place(Option<Place>),
}

/// Connections come in here from other routers, if the plan says so.
pub(crate) struct Receiver {
    place: Mutex<Option<Place>>,
    /// Connections may come in, or the relay ends.
    opened: Condvar,
    decisions: Mutex<Decisions>,
    sessions: AtomicUsize,
}

impl Receiver {
    /// Where the plan says; nowhere if it says nothing. The key is read now, as the one who starts the relay.
    pub fn open(plan: &RelayPlan) -> Result<Receiver> {
        let (opened, decisions, sessions) = Default::default();
        Ok(Receiver { place: Mutex::new(place(plan)?), opened, decisions, sessions })
    }

    /// All that can fail of going on by another plan.
    pub fn prepare(&self, plan: &RelayPlan) -> Result<Change> {
        let there = self.place();
        match (there.as_ref(), &plan.moves) {
            // Its socket stays: nobody who connects in this moment is refused.
            (Some(there), Some(moves)) if there.listen == moves.listen => match key_of(moves) {
                Ok(key) => Ok(Change::Key(moves.key.clone(), key)),
                // It was read by who started the relay, whose rights may be given up.
                Err(_) if there.key_file == moves.key => Ok(Change::Nothing),
                Err(error) => Err(error),
            },
            _ => place(plan).map(Change::Place),
        }
    }

    /// Changes the receiver; sessions under way go on.
    pub fn change(&self, change: Change) {
        let mut place = self.place();
        match change {
            Change::Nothing => {}
            Change::Key(key_file, key) => {
                if let Some(place) = &mut *place {
                    (place.key_file, place.key) = (key_file, key);
                }
            }
            Change::Place(other) => *place = other,
        }
        self.opened.notify_all();
    }

    /// Has it look whether the relay ends.
    pub fn wake(&self) {
        // Who holds this has not looked yet, or waits.
        let _place = self.place();
        self.opened.notify_all();
    }

    /// Waits until connections may come in; whether the relay goes on.
    fn is_open(&self, done: &AtomicBool) -> bool {
        let is_closed = |place: &mut Option<Place>| place.is_none() && !done.load(Ordering::Acquire);
        drop(self.opened.wait_while(self.place(), is_closed));
        !done.load(Ordering::Acquire)
    }

    /// Takes a session if somebody has come, with the key that he must have.
    fn accept(&self) -> Option<(TcpStream, [u8; KEY_BYTES])> {
        let place = self.place();
        let place = place.as_ref()?;
        place.listener.accept().ok().map(|(stream, _)| (stream, place.key))
    }

    fn place(&self) -> MutexGuard<'_, Option<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody moves connections here now.
    pub fn is_busy(&self) -> bool {
        self.sessions.load(Ordering::Acquire) > 0
    }

    /// Serves who has the key, until the relay ends.
    pub fn serve(&self, relay: &Relay, done: &AtomicBool) {
        let strangers = AtomicUsize::new(0);
        thread::scope(|scope| {
            while self.is_open(done) {
                let Some((stream, key)) = self.accept() else {
                    thread::sleep(LOOK);
                    continue;
                };
                if strangers.load(Ordering::Acquire) >= MOST_SESSIONS
                    || stream.set_nonblocking(false).is_err()
                {
                    continue;
                }
                strangers.fetch_add(1, Ordering::AcqRel);
                let strangers = &strangers;
                scope.spawn(move || {
                    self.serve_one((stream, &key), relay, done);
                    strangers.fetch_sub(1, Ordering::AcqRel);
                });
            }
        });
    }

    fn serve_one(&self, (stream, key): (TcpStream, &[u8; KEY_BYTES]), relay: &Relay, done: &AtomicBool) {
        let Ok(mut channel) = Channel::answer(stream, key, GREETING) else { return };
        let Ok(Message::Hello(hello)) = channel.receive(GREETING) else { return };
        if let Some(why) = objection(&hello, relay) {
            let _ = channel.send(&Message::Sorry(why), GREETING);
            return;
        }
        self.sessions.fetch_add(1, Ordering::AcqRel);
        let (expected, standing, refused, standing_bytes) = Default::default();
        let id = hello.session;
        let mut session =
            Session { relay, receiver: self, channel, id, expected, standing, refused, standing_bytes };
        let outcome = session.run(done);
        drop(session);
        self.sessions.fetch_sub(1, Ordering::AcqRel);
        if let Err(error) = outcome {
            let journal = relay.workers.shared.journal;
            journal.warn(&format!(
                "the relay '{}' that moves connections here is not heard any more: {error}",
                hello.name
            ));
        }
    }

    fn decisions(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(plan: &RelayPlan) -> Result<Option<Place>> {
    let Some(moves) = &plan.moves else { return Ok(None) };
    let (listen, key, leg) = (moves.listen, key_of(moves)?, LegPlan::server());
    // A successor listens before its predecessor has ended.
    let listener = leg::Leg { plan: &leg, transparent: None }.listen(listen, Share::Join)?;
    listener.set_nonblocking(true).map_err(|error| Error::io("listen for moves", error))?;
    Ok(Some(Place { listen, listener, key_file: moves.key.clone(), key }))
}

fn key_of(moves: &MovePlan) -> Result<[u8; KEY_BYTES]> {
    Ok(Key::read(&moves.key)?.tag(PURPOSE))
}

/// Why a sender is not served.
fn objection(hello: &Hello, relay: &Relay) -> Option<String> {
    if hello.version != VERSION {
        return Some(format!(
            "it takes moves in version {VERSION} of the format, not in version {}",
            hello.version
        ));
    }
    let watcher = &relay.workers.held.adopting.watcher;
    let deadline = Instant::now() + ROUTING;
    while !watcher.has_routes() {
        if Instant::now() >= deadline {
            return Some("packets find no way to sockets of it; its log says why".into());
        }
        thread::sleep(LOOK / 10);
    }
    None
}

/// What one sender has said.
struct Session<'a> {
    relay: &'a Relay<'a>,
    receiver: &'a Receiver,
    channel: Channel,
    id: u64,
    /// Connections whose packets are dropped until they come.
    expected: HashSet<Pair>,
    standing: BTreeMap<u32, Landing>,
    standing_bytes: usize,
    refused: Vec<Refused>,
}

impl Session<'_> {
    fn run(&mut self, done: &AtomicBool) -> io::Result<()> {
        let name = self.relay.workers.shared.plan.name.clone();
        self.say(&Message::Hello(Hello { version: VERSION, name, session: self.id }))?;
        while !done.load(Ordering::Acquire) {
            match self.channel.receive(SILENCE)? {
                Message::Expect(pairs) => {
                    for pair in pairs {
                        // It is refused when it comes.
                        let _ = self.expect(pair);
                    }
                    self.say(&Message::Expected)?;
                }
                Message::Put(record, queues) => {
                    let (number, bytes) = (record.number, queues.bytes());
                    let is_full = self.standing.len() >= MOST_NAMED
                        || self.standing_bytes + bytes > MOST_STANDING_BYTES
                        || self.refused.len() >= MOST_NAMED;
                    let landing = match is_full {
                        true => Err(Stay::Full),
                        false => self
                            .expect((record.client, record.server))
                            .and_then(|()| Landing::prepare(self.relay.workers, &record, queues)),
                    };
                    match landing {
                        Ok(landing) => {
                            self.standing_bytes += bytes;
                            self.standing
                                .insert(number, landing)
                                .into_iter()
                                .for_each(|old| self.let_go(old));
                        }
                        Err(stay) => self.refused.push((number, stay)),
                    }
                }
                Message::Ready => {
                    let standing = self.standing.keys().copied().collect();
                    let refused = std::mem::take(&mut self.refused);
                    self.say(&Message::Standing(standing, refused))?;
                }
                Message::Go(numbers) => {
                    let taken = numbers.into_iter().filter(|number| self.take(*number)).collect();
                    // What stands besides stays where it was.
                    std::mem::take(&mut self.standing).into_values().for_each(|landing| self.let_go(landing));
                    self.standing_bytes = 0;
                    self.say(&Message::Taken(taken))?;
                }
                Message::Ask(session, mut numbers) => {
                    let now = Instant::now();
                    numbers.retain(|number| self.receiver.decisions().ask((session, *number), now));
                    self.say(&Message::Taken(numbers))?;
                }
                Message::Watched(watched) => self.learn(watched),
                Message::End => return self.say(&Message::End),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    fn say(&mut self, message: &Message) -> io::Result<()> {
        self.channel.send(message, SILENCE)
    }

    /// Connections that may come to pass here.
    fn learn(&self, watched: Vec<WatchedRecord>) {
        let (watcher, now_us) = (&self.relay.workers.held.adopting.watcher, monotonic_us() as u64);
        watched.into_iter().for_each(|one| watcher.learn(&one.watched(now_us, false)));
    }

    /// Nothing that comes of a connection passes, or meets a socket, from now on.
    fn expect(&mut self, pair: Pair) -> std::result::Result<(), Stay> {
        if !self.expected.contains(&pair) {
            self.relay.workers.held.adopting.watcher.drop_packets(pair)?;
            self.expected.insert(pair);
        }
        Ok(())
    }

    /// A connection is this relay's if nobody has been told otherwise.
    fn take(&mut self, number: u32) -> bool {
        let Some(landing) = self.standing.remove(&number) else { return false };
        if !self.receiver.decisions().take((self.id, number), Instant::now()) {
            self.let_go(landing);
            return false;
        }
        let pair = landing.pair();
        landing.begin(self.relay.workers);
        self.expected.remove(&pair);
        self.relay.workers.held.adopting.watcher.drop_no_more(pair);
        true
    }

    fn let_go(&self, landing: Landing) {
        landing.abandon(self.relay.workers);
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        std::mem::take(&mut self.standing).into_values().for_each(|landing| self.let_go(landing));
        let watcher = &self.relay.workers.held.adopting.watcher;
        self.expected.drain().for_each(|pair| watcher.drop_no_more(pair));
    }
}
