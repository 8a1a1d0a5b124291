//! What has come from another relay, or from a keeper.

use crate::{
    Error, RelayPlan, Result,
    keeping::{
        record::{
            ConnectionRecord, Failure, Held, Hello, Holding, Message, PER_CONNECTION, Purpose, Say, VERSION,
        },
        wire::{self, Came, Wire, invalid},
    },
    legs::leg,
    logic::connection::Direction,
};
use longfat_host::socket;
use longfat_kernel::{acknowledge, watch::LAYOUT};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, ErrorKind, Read, Seek},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener},
    },
    time::Duration,
};

/// How long the other one may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Name of the socket of the relay that hands over.
pub(crate) const PREDECESSOR: &str = "upgrade";

/// A listener of every worker.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub purpose: Purpose,
    pub address: SocketAddr,
    pub listeners: BTreeMap<usize, TcpListener>,
}

/// Where a direction's bytes are.
#[derive(Debug, Default)]
pub(crate) enum Bytes {
    #[default]
    None,
    Pipe {
        read: OwnedFd,
        write: OwnedFd,
    },
    Memory(Vec<u8>),
    Mark(u8),
}

/// A connection as it has come.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub record: ConnectionRecord,
    pub client: TcpStream,
    pub server: TcpStream,
    pub held: [Bytes; 2],
}

/// A held SYN as it has come.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub rule: usize,
    pub syn: Vec<u8>,
    pub dial: Option<TcpStream>,
}

/// All that a successor takes over.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    pub listeners: Vec<Inherited>,
    /// By the rule's index, in the order of the workers.
    pub interfaces: BTreeMap<usize, BTreeMap<usize, File>>,
    pub life: Option<UnixDatagram>,
    pub control: Option<UnixListener>,
    pub metrics: Option<TcpListener>,
    pub exit: Option<OwnedFd>,
    /// What is known of watched connections.
    pub known: Option<[OwnedFd; 2]>,
    /// Links of programs by which packets look forwarded, of a relay that was killed.
    pub alike: Vec<OwnedFd>,
    /// Programs that hold acknowledgements back, by the layout of their maps.
    pub acknowledging: Vec<(u32, Vec<OwnedFd>)>,
    pub connections: BTreeMap<u64, Arrival>,
    /// By worker.
    pub handshakes: Vec<(usize, Handshake)>,
    /// The predecessor's wire to a keeper.
    pub keeper: Option<Wire>,
    /// Numbers of what is no connection.
    pub others: Vec<u64>,
    /// The relay that hands over, and waits for a word.
    predecessor: Option<Wire>,
    /// Whether there is anything to take over.
    pub is_there: bool,
}

/// Says who this is.
pub(crate) fn hello(plan: &RelayPlan) -> Message {
    let (name, pid) = (plan.name.clone(), std::process::id());
    Message::with(Say::Hello, 0, &Hello { version: VERSION, name, pid, workers: plan.workers })
}

/// Understands who the other one is, or why it is no use.
pub(crate) fn understand(message: &Message) -> std::result::Result<Hello, String> {
    // Another version's may have other fields.
    #[derive(serde::Deserialize)]
    struct Any {
        version: u32,
    }
    let Any { version } = message.read().map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!(
            "hand over in version {VERSION} of the format, and the other one speaks version {version}: restart it"
        ));
    }
    message.read().map_err(|error| error.to_string())
}

impl Estate {
    /// Begins to take over from the relay of that name which runs: all but its connections, which it goes on carrying.
    ///
    /// # Errors
    /// There is none, or it is not to be taken over from. Nothing has changed.
    pub fn from_predecessor(plan: &RelayPlan) -> Result<Estate> {
        let who = format!("the relay '{}'", plan.name);
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::ConnectionRefused => Error::Plan(format!(
                "no relay named '{}' runs in this network namespace that could be taken over from; start one with 'run'",
                plan.name
            )),
            _ => Error::io(format!("speak to {who}"), source),
        };
        let address = wire::address(&plan.name, PREDECESSOR).map_err(failed)?;
        let wire = Wire::connect(&address).map_err(failed)?;
        wire.wait_at_most(PATIENCE).map_err(failed)?;
        wire.send(&hello(plan), &[]).map_err(failed)?;
        let other = understand(&wire.expect(Say::Hello, &who)?).map_err(Error::Plan)?;
        check_workers(plan, &other, &format!("{who}, process {},", other.pid))?;
        let mut estate = Estate { is_there: true, ..Estate::default() };
        estate.receive(&wire, &who)?;
        // That relay needs its programs, for it may go on.
        estate.alike.clear();
        estate.predecessor = Some(wire);
        Ok(estate)
    }

    /// What a keeper holds, all of it at once.
    ///
    /// # Errors
    /// It speaks otherwise, or serves somebody else.
    pub fn from_keeper(plan: &RelayPlan, wire: &Wire) -> Result<Estate> {
        let who = format!("the keeper of '{}'", plan.name);
        let failed = |source| Error::io(format!("speak to {who}"), source);
        wire.wait_at_most(PATIENCE).map_err(failed)?;
        wire.send(&hello(plan), &[]).map_err(failed)?;
        let other = understand(&wire.expect(Say::Hello, &who)?).map_err(Error::Plan)?;
        let mut estate = Estate::default();
        estate.receive(wire, &who)?;
        estate.is_there = !estate.listeners.is_empty();
        if estate.is_there {
            check_workers(plan, &other, &who)?;
        }
        Ok(estate)
    }

    /// The mark of the sockets of connections that nobody carries, by which a relay of that plan can carry them before
    /// it has looked at anything else: those of a relay that was killed. Without interception they need none.
    ///
    /// None if nobody waits, or the mark is not known.
    pub fn waiting_mark(&self, plan: &RelayPlan) -> Option<Option<u32>> {
        if self.predecessor.is_some() || !self.is_there || self.connections.is_empty() {
            return None;
        }
        if plan.intercept.is_none() {
            return Some(None);
        }
        let intercepted = self.connections.values().filter(|arrival| arrival.record.listener.is_none());
        let mark = |arrival: &Arrival| {
            socket::option(&arrival.server, libc::SOL_SOCKET, libc::SO_MARK).map_or(0, |mark| mark as u32)
        };
        let mut marks = intercepted.map(mark);
        let first = marks.next().filter(|mark| *mark != 0)?;
        marks.all(|mark| mark == first).then_some(Some(first))
    }

    /// Has a predecessor stop, and takes its connections. It goes on if this process ends before it has said
    /// [`Estate::hold`].
    pub fn take_connections(&mut self) -> Result<()> {
        let Some(wire) = self.predecessor.take() else { return Ok(()) };
        let failed = |source| Error::io("ask for the connections", source);
        wire.send(&Message::bare(Say::Give, 0), &[]).map_err(failed)?;
        self.receive(&wire, "the relay that hands over")?;
        self.predecessor = Some(wire);
        Ok(())
    }

    /// Everything is here and can be worked with: the predecessor lets go of it.
    ///
    /// # Errors
    /// It has decided otherwise, and goes on.
    pub fn hold(&mut self) -> Result<()> {
        let Some(wire) = self.predecessor.take() else { return Ok(()) };
        let failed = |source| Error::io("say that everything is here", source);
        wire.send(&Message::bare(Say::Held, 0), &[]).map_err(failed)?;
        wire.expect(Say::Go, "the relay that hands over").map(drop)
    }

    fn receive(&mut self, wire: &Wire, who: &str) -> Result<()> {
        let failed = |source| Error::io(format!("take over from {who}"), source);
        loop {
            match wire.receive().map_err(failed)? {
                Some((Message { say: Say::End, .. }, _)) => return Ok(()),
                Some((message, _)) if message.say == Say::Refused => {
                    return Err(Error::Plan(String::from_utf8_lossy(&message.body).into_owned()));
                }
                Some(came) => self.take(came).map_err(failed)?,
                None => return Err(failed(ErrorKind::UnexpectedEof.into())),
            }
        }
    }

    fn take(&mut self, (message, descriptors): Came) -> io::Result<()> {
        if message.say != Say::Put {
            return Err(invalid(format!("{:?} came among what is handed over", message.say)));
        }
        let holding = message.holding(descriptors.len()).map_err(invalid)?;
        let id = message.id;
        let mut descriptors = descriptors.into_iter();
        // As many as belong to it have come.
        let mut next = || descriptors.next().ok_or_else(|| invalid("a descriptor is missing"));
        match holding {
            Holding::Connection(record) => {
                let (client, server) = (next()?.into(), next()?.into());
                let mut bytes = |held| bytes(held, &mut next);
                let held = [bytes(record.held[0])?, bytes(record.held[1])?];
                self.connections.insert(id, Arrival { record: *record, client, server, held });
                return Ok(());
            }
            Holding::Pipe { direction } => {
                let (read, write) = (next()?, next()?);
                let held = |arrival: &mut Arrival| {
                    let direction: Direction = direction.into();
                    arrival.held[direction.index()] = Bytes::Pipe { read, write };
                };
                self.connections.get_mut(&connection_of(id)).map(held);
                return Ok(());
            }
            Holding::Failed(failure) => {
                self.fail(id, failure);
                return Ok(());
            }
            Holding::Listener { purpose, address, worker } => {
                self.add_listener(purpose, address, worker, next()?.into());
            }
            Holding::Interface { rule, holder } => {
                self.interfaces.entry(rule).or_default().insert(holder, next()?.into());
            }
            Holding::Life {} => self.life = Some(next()?.into()),
            Holding::Control {} => self.control = Some(next()?.into()),
            Holding::Exit {} => self.exit = Some(next()?),
            Holding::Watched { layout } => {
                let known = [next()?, next()?];
                self.known = (layout == LAYOUT).then_some(known);
            }
            Holding::Alike {} => self.alike.push(next()?),
            Holding::Acknowledging { layout } => {
                let count = acknowledge::descriptor_count(layout);
                self.acknowledging.push((layout, (0..count).map(|_| next()).collect::<io::Result<_>>()?));
            }
            Holding::Metrics {} => self.metrics = Some(next()?.into()),
            Holding::Keeper {} => self.keeper = Some(Wire::inherited(next()?)),
            Holding::Handshake { rule, holder, syn, is_dialled } => {
                let dial = if is_dialled { Some(next()?.into()) } else { None };
                self.handshakes.push((holder, Handshake { rule, syn, dial }));
            }
        }
        self.others.push(id);
        Ok(())
    }

    fn fail(&mut self, id: u64, failure: Failure) {
        if let Some(arrival) = self.connections.get_mut(&connection_of(id)) {
            arrival.record.failure = Some(failure);
        }
    }

    fn add_listener(&mut self, purpose: Purpose, address: SocketAddr, worker: usize, listener: TcpListener) {
        let found = self.listeners.iter_mut().find(|other| other.purpose == purpose);
        match found {
            Some(other) => drop(other.listeners.insert(worker, listener)),
            None => {
                let listeners = BTreeMap::from([(worker, listener)]);
                self.listeners.push(Inherited { purpose, address, listeners });
            }
        }
    }
}

/// The listeners of a purpose, one of each of so many workers.
pub(crate) fn take_listeners(
    inherited: &mut Vec<Inherited>,
    purpose: &Purpose,
    workers: usize,
) -> Option<(SocketAddr, Vec<TcpListener>)> {
    let place = inherited.iter().position(|other| other.purpose == *purpose)?;
    let Inherited { address, listeners, .. } = inherited.swap_remove(place);
    let is_whole = listeners.keys().copied().eq(0..workers);
    is_whole.then(|| (address, listeners.into_values().collect()))
}

fn connection_of(id: u64) -> u64 {
    id - id % PER_CONNECTION
}

/// A relay of other workers cannot use these listeners and interfaces.
fn check_workers(plan: &RelayPlan, other: &Hello, who: &str) -> Result<()> {
    if other.workers == plan.workers {
        return Ok(());
    }
    Err(Error::Plan(format!(
        "{who} has {} workers and this one {}: give it as many, or restart it",
        other.workers, plan.workers
    )))
}

fn bytes(held: Held, next: &mut impl FnMut() -> io::Result<OwnedFd>) -> io::Result<Bytes> {
    Ok(match held {
        Held::Nowhere => Bytes::None,
        Held::Mark(byte) => Bytes::Mark(byte),
        Held::Pipe => Bytes::Pipe { read: next()?, write: next()? },
        Held::Memory => {
            let (mut file, mut bytes) = (File::from(next()?), Vec::new());
            file.rewind()?;
            file.take(crate::BUFFER_BYTES as u64).read_to_end(&mut bytes)?;
            Bytes::Memory(bytes)
        }
    })
}

/// Marks a leg as this relay's own, and has it hear and report every byte again: a relay that was killed while it left
/// or moved the connection has made it deaf.
pub(crate) fn refit(socket: &TcpStream, own_mark: Option<u32>) {
    leg::hear(socket);
    leg::wake_at(socket, 1);
    if let Some(mark) = own_mark {
        let _ = socket::set_option(socket, libc::SOL_SOCKET, libc::SO_MARK, mark as i32);
    }
}
