//! Moves this relay's connections to the relay of another router.
//!
//! A few at a time are taken from their workers, made deaf, read and sent; the other relay makes sockets that say
//! nothing; it is told that they are its own; it says that it has taken them; then the sockets here vanish. Until it
//! was told, anything that fails leaves everything as it was. When it was told and does not answer, it is asked again;
//! if it cannot be asked, the ends are told that the connection has ended. So no connection has two owners, and none is
//! short.

use super::answers::Relay;
use crate::{
    legs::Legs,
    moving::{
        PATIENCE,
        channel::{Channel, KEY_BYTES},
        message::{Hello, MOST_NAMED, MOST_WATCHED, Message, Stay, VERSION},
        watched::WatchedRecord,
    },
    worker::{Departing, Given, Wanted},
};
use longfat_host::monotonic_us;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// How often connections that could not be moved are tried again, and a relay that does not answer is asked.
const LOOK: Duration = Duration::from_millis(50);
/// Connections that are held back at a time, and when no more bytes of them are read.
const BATCH: usize = 16;
const BATCH_BYTES: usize = 4 << 20;
/// How long a worker may take to give connections away.
const GIVING: Duration = Duration::from_secs(1);
/// How long the other relay is asked again what it has taken.
const ASKING: Duration = Duration::from_secs(10);
/// Connections that stayed, as they are named one by one.
const MOST_NAMED_STAYING: usize = 100;

/// What somebody asks for.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveOrder {
    /// Where the other relay takes moves.
    pub to: SocketAddr,
    /// Made from the key that both have.
    pub key: [u8; KEY_BYTES],
    /// How long to try.
    pub within_ms: u64,
}

/// A connection that was not moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staying {
    /// Number of the connection.
    pub connection: u32,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// Reason to stay.
    pub reason: Stay,
}

/// How far a move is, or what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveStatus {
    /// Where to.
    pub to: Option<SocketAddr>,
    /// The other relay's name.
    pub name: String,
    /// Whether it goes on.
    pub is_running: bool,
    /// Connections there were.
    pub connections: u64,
    /// Connections that went to the other relay.
    pub moved: u64,
    /// Bytes that went with them.
    pub moved_bytes: u64,
    /// Connections that ended by themselves meanwhile.
    pub ended: u64,
    /// Connections that were reset, as the other relay could not be asked whether it has them.
    pub reset: u64,
    /// Connections that stayed, by the reason.
    pub stayed: BTreeMap<String, u64>,
    /// The first hundred of those.
    pub staying: Vec<Staying>,
    /// Connections besides that pass from end to end, and that the other relay was told of.
    #[serde(default)]
    pub watched: u64,
    /// The longest that one was held back.
    pub longest_held_us: u64,
    /// Time since it began, or that it took.
    pub time_us: u64,
    /// Why it ended before its time.
    pub error: Option<String>,
}

/// Mover of connections, when somebody asks for a move.
#[derive(Default)]
pub(crate) struct Mover {
    asked: Mutex<Option<MoveOrder>>,
    /// Something was asked for, or the relay ends.
    change: Condvar,
    status: Mutex<MoveStatus>,
}

impl Mover {
    /// Begins to move connections.
    pub fn begin(&self, order: MoveOrder) -> Result<(), String> {
        let mut status = self.status();
        if status.is_running {
            let to = status.to.map(|to| format!(" to {to}")).unwrap_or_default();
            return Err(format!("connections are being moved{to} already; wait until that is over"));
        }
        *status = MoveStatus { to: Some(order.to), is_running: true, ..MoveStatus::default() };
        *self.asked() = Some(order);
        self.change.notify_all();
        Ok(())
    }

    fn asked(&self) -> MutexGuard<'_, Option<MoveOrder>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it look whether the relay ends.
    pub fn wake(&self) {
        // Who holds this has not looked yet, or waits.
        let _asked = self.asked();
        self.change.notify_all();
    }

    /// The next order; none when the relay ends.
    fn next(&self, done: &AtomicBool) -> Option<MoveOrder> {
        let is_idle = |asked: &mut Option<MoveOrder>| asked.is_none() && !done.load(Ordering::Acquire);
        let asked = self.change.wait_while(self.asked(), is_idle);
        asked.unwrap_or_else(PoisonError::into_inner).take().filter(|_| !done.load(Ordering::Acquire))
    }

    /// How far it is.
    pub fn status(&self) -> MutexGuard<'_, MoveStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what is asked for, until the relay ends.
    pub fn run(&self, relay: &Relay, done: &AtomicBool) {
        while let Some(order) = self.next(done) {
            let begun = Instant::now();
            let deadline = begun + Duration::from_millis(order.within_ms);
            let mut work = Move::new(self, relay, &order, deadline);
            let outcome = work.run();
            let left = if outcome.is_ok() { Stay::Late } else { Stay::Unheard };
            for legs in work.look() {
                work.stayed.entry(legs.number).or_insert((legs, left));
            }
            let stayed = std::mem::take(&mut work.stayed);
            let mut status = self.status();
            for (legs, reason) in stayed.values() {
                *status.stayed.entry(reason.name().to_owned()).or_default() += 1;
                if status.staying.len() < MOST_NAMED_STAYING {
                    status.staying.push(Staying {
                        connection: legs.number,
                        client: legs.client_address,
                        server: legs.server_address,
                        reason: *reason,
                    });
                }
            }
            let came_to = status.moved + status.reset + stayed.len() as u64;
            status.ended = status.connections.saturating_sub(came_to);
            status.error = outcome.err().map(|error| told(order.to, &error));
            status.time_us = begun.elapsed().as_micros() as u64;
            status.is_running = false;
        }
    }
}

fn told(to: SocketAddr, error: &io::Error) -> String {
    let mend = match error.kind() {
        ErrorKind::ConnectionRefused => "; does its file have '[move] listen'?",
        ErrorKind::PermissionDenied | ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            "; do both have the same key, and does a relay take moves there?"
        }
        _ => "",
    };
    format!("the relay on {to}: {error}{mend}")
}

type Stayed = BTreeMap<u32, (std::sync::Arc<Legs>, Stay)>;

/// One move.
struct Move<'a> {
    mover: &'a Mover,
    relay: &'a Relay<'a>,
    to: SocketAddr,
    key: [u8; KEY_BYTES],
    deadline: Instant,
    session: u64,
    /// By their numbers.
    stayed: Stayed,
    seen: BTreeSet<u32>,
}

impl<'a> Move<'a> {
    fn new(
        mover: &'a Mover,
        relay: &'a Relay<'a>,
        &MoveOrder { to, key, .. }: &MoveOrder,
        deadline: Instant,
    ) -> Move<'a> {
        // Two moves of one process, or of two, do not begin in the same nanosecond of the same process.
        let session = (monotonic_us() as u64) << 16 ^ u64::from(std::process::id());
        let (stayed, seen) = Default::default();
        Move { mover, relay, to, key, deadline, session, stayed, seen }
    }

    fn open(&self) -> io::Result<(Channel, String)> {
        let patience = PATIENCE.min(self.deadline.saturating_duration_since(Instant::now())).max(LOOK);
        let stream = TcpStream::connect_timeout(&self.to, patience)?;
        let mut channel = Channel::ask(stream, &self.key, patience)?;
        let name = self.relay.workers.shared.plan.name.clone();
        channel.send(&Message::Hello(Hello { version: VERSION, name, session: self.session }), PATIENCE)?;
        match channel.receive(PATIENCE)? {
            Message::Hello(hello) if hello.version == VERSION => Ok((channel, hello.name)),
            Message::Sorry(why) => Err(io::Error::other(why)),
            _ => Err(io::Error::other("it speaks another version; use the same program on both routers")),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let (mut channel, name) = self.open()?;
        self.mover.status().name = name;
        loop {
            let left = self.look();
            for chunk in left.chunks(MOST_NAMED) {
                let pairs = chunk.iter().map(|legs| (legs.client_address, legs.server_address)).collect();
                channel.send(&Message::Expect(pairs), PATIENCE)?;
                match channel.receive(PATIENCE)? {
                    Message::Expected => {}
                    _ => return Err(ErrorKind::InvalidData.into()),
                }
            }
            for chunk in left.chunks(BATCH) {
                if self.is_over() {
                    break;
                }
                self.move_some(&mut channel, chunk)?;
            }
            let is_done = !self.stayed.values().any(|(_, stay)| stay.passes()) && self.look().is_empty();
            if is_done || self.is_over() {
                break;
            }
            thread::sleep(LOOK);
        }
        self.tell_watched(&mut channel)?;
        channel.send(&Message::End, PATIENCE)?;
        channel.receive(PATIENCE).map(drop)
    }

    /// What passes here from end to end may be worth it there.
    fn tell_watched(&self, channel: &mut Channel) -> io::Result<()> {
        let (untold, now_us) = (self.relay.workers.held.adopting.watcher.untold(), monotonic_us() as u64);
        for some in untold.chunks(MOST_WATCHED) {
            let records = some.iter().map(|one| WatchedRecord::of(one, now_us)).collect();
            channel.send(&Message::Watched(records), PATIENCE)?;
        }
        self.mover.status().watched = untold.len() as u64;
        Ok(())
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline || self.relay.workers.shared.stage.is_draining()
    }

    /// Connections that are here and may be moved.
    fn look(&mut self) -> Vec<std::sync::Arc<Legs>> {
        let mut living = self.relay.workers.shared.journal.registry.living();
        self.seen.extend(living.iter().map(|legs| legs.number));
        let numbers: BTreeSet<u32> = living.iter().map(|legs| legs.number).collect();
        // What has ended has not stayed.
        self.stayed.retain(|number, _| numbers.contains(number));
        self.mover.status().connections = self.seen.len() as u64;
        living.retain(|legs| self.stayed.get(&legs.number).is_none_or(|(_, stay)| stay.passes()));
        living
    }

    /// Moves a few connections, in as many steps as their bytes take.
    fn move_some(&mut self, channel: &mut Channel, legs: &[std::sync::Arc<Legs>]) -> io::Result<()> {
        let mut waiting = self.take_out(legs);
        while !waiting.is_empty() {
            let outcome = self.move_few(channel, &mut waiting);
            if outcome.is_err() {
                waiting.into_iter().for_each(|departing| departing.go_on(self.relay.workers));
                return outcome;
            }
        }
        Ok(())
    }

    /// Takes connections from whoever works on them. What nobody has is on its way, or has ended.
    fn take_out(&mut self, legs: &[std::sync::Arc<Legs>]) -> Vec<Departing> {
        let (given, taken) = mpsc::channel();
        let numbers: Vec<u32> = legs.iter().map(|legs| legs.number).collect();
        for handle in &self.relay.workers.handles {
            handle.want(Wanted { numbers: numbers.clone(), given: given.clone() });
        }
        drop(given);
        let deadline = Instant::now() + GIVING;
        let mut departing = Vec::new();
        let next = || taken.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        for given in std::iter::from_fn(next).flatten() {
            match given {
                Given::Ok(one) => {
                    self.stayed.remove(&one.number());
                    departing.push(one);
                }
                Given::Err((number, stay)) => self.stays(legs, number, stay),
            }
        }
        departing
    }

    fn stays(&mut self, legs: &[std::sync::Arc<Legs>], number: u32, stay: Stay) {
        let found = legs.iter().find(|legs| legs.number == number);
        found
            .into_iter()
            .for_each(|legs| drop(self.stayed.insert(number, (std::sync::Arc::clone(legs), stay))));
    }

    /// Moves the first of these, as many as their bytes allow.
    fn move_few(&mut self, channel: &mut Channel, waiting: &mut Vec<Departing>) -> io::Result<()> {
        let workers = self.relay.workers;
        let since = Instant::now();
        let mut sent: Vec<(Departing, u64)> = Vec::new();
        let standing = self.send_some(channel, waiting, &mut sent).and_then(|()| {
            channel.send(&Message::Ready, PATIENCE)?;
            match channel.receive(PATIENCE)? {
                Message::Standing(standing, refused) => Ok((standing, refused)),
                _ => Err(ErrorKind::InvalidData.into()),
            }
        });
        let (standing, refused) = match standing {
            Ok(answer) => answer,
            Err(error) => {
                sent.into_iter().for_each(|(departing, _)| departing.go_on(workers));
                return Err(error);
            }
        };
        let (mut going, staying): (Vec<_>, Vec<_>) = sent
            .into_iter()
            .partition(|(departing, _)| standing.contains(&departing.number()) && departing.is_as_read());
        for (departing, _) in staying {
            let refusal = refused.iter().find(|(number, _)| *number == departing.number());
            self.go_on(departing, refusal.map_or(Stay::Busy, |(_, stay)| *stay));
        }
        let numbers: Vec<u32> = going.iter().map(|(departing, _)| departing.number()).collect();
        going.iter_mut().for_each(|(departing, _)| departing.keep_no_more(workers));
        let answer = channel.send(&Message::Go(numbers.clone()), PATIENCE).and_then(|()| {
            going.iter().for_each(|(departing, _)| departing.die_silently());
            taken(channel)
        });
        let (answer, outcome) = match answer {
            Ok(taken) => (Some(taken), Ok(())),
            Err(error) => (self.ask_again(&numbers), Err(error)),
        };
        let held_us = since.elapsed().as_micros() as u64;
        for (departing, bytes) in going {
            match &answer {
                Some(taken) if taken.contains(&departing.number()) => {
                    departing.has_moved(workers);
                    let mut status = self.mover.status();
                    status.moved += 1;
                    status.moved_bytes += bytes;
                    status.longest_held_us = status.longest_held_us.max(held_us);
                }
                Some(_) => self.go_on(departing, Stay::Busy),
                None => {
                    departing.reset(workers);
                    self.mover.status().reset += 1;
                }
            }
        }
        outcome
    }

    /// Reads and sends connections until they have enough bytes.
    fn send_some(
        &mut self,
        channel: &mut Channel,
        waiting: &mut Vec<Departing>,
        sent: &mut Vec<(Departing, u64)>,
    ) -> io::Result<()> {
        let mut batch_bytes = 0;
        while batch_bytes < BATCH_BYTES
            && let Some(mut departing) = waiting.pop()
        {
            match departing.dump(self.relay.workers) {
                Ok((record, queues)) => {
                    let bytes = queues.bytes();
                    batch_bytes += bytes;
                    sent.push((departing, bytes as u64));
                    channel.send(&Message::Put(Box::new(record), queues), PATIENCE)?;
                }
                Err(stay) => self.go_on(departing, stay),
            }
        }
        Ok(())
    }

    fn go_on(&mut self, departing: Departing, stay: Stay) {
        let legs = departing.legs();
        self.stayed.insert(legs.number, (legs, stay));
        departing.go_on(self.relay.workers);
    }

    /// What the other relay has taken of these; none when it cannot be asked. What it has not it never will.
    fn ask_again(&self, numbers: &[u32]) -> Option<Vec<u32>> {
        let deadline = Instant::now() + ASKING;
        while Instant::now() < deadline {
            let asked = self.open().and_then(|(mut channel, _)| {
                channel.send(&Message::Ask(self.session, numbers.to_vec()), PATIENCE)?;
                taken(&mut channel)
            });
            if asked.is_ok() {
                return asked.ok();
            }
            thread::sleep(LOOK);
        }
        None
    }
}

fn taken(channel: &mut Channel) -> io::Result<Vec<u32>> {
    match channel.receive(PATIENCE)? {
        Message::Taken(numbers) => Ok(numbers),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}
