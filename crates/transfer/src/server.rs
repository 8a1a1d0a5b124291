//! The serving end: one listener, a thread per transfer.

use crate::{
    admit,
    channel::Channel,
    context::Context,
    control::{Message, PROTOCOL_VERSION},
    error::{End, Error, Result},
    halt::Halt,
    outcome::Outcome,
    plan::{Protocol, TransferPlan},
    session::{self, Duties, Outbox, Work},
    sockets::{LOOK_UP, Settings, listen_on, udp_socket, wait_for},
};
use longfat_host::monotonic_ns;
use longfat_schema::{lines::Lines, record::Record};
use nix::poll::PollFlags;
use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Transfers served at the same time; more are refused.
const TRANSFERS_MAX: usize = 256;

/// What `longfat transfer serve` is told.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// End after the first transfer.
    pub once: bool,
    /// How long a client may be silent before its plan says otherwise.
    pub timeout: Duration,
    /// Where this end's own records go. The client gets them in any case.
    pub samples: Lines,
    /// Ends everything when raised.
    pub stop: Arc<AtomicBool>,
}

/// Told what the server does.
pub trait ServeObserver: Sync {
    /// A transfer was agreed upon and its data connections are there.
    fn began(&self, _peer: SocketAddr, _plan: &TransferPlan) {}
    /// A transfer ended, well or with errors in its streams.
    fn ended(&self, _peer: SocketAddr, _outcome: &Outcome) {}
    /// A client went away or was refused before a transfer began.
    fn failed(&self, _peer: SocketAddr, _error: &Error) {}
}

/// An observer that looks away.
impl ServeObserver for () {}

/// How many transfers were served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Transfers that began.
    pub transfers: u64,
    /// Those of them with an error in a stream.
    pub failed: u64,
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: ServeOptions,
}

/// Listens and serves until stopped: [`Server::bind`] and [`Server::run`].
pub fn serve(options: ServeOptions, observer: &dyn ServeObserver) -> Result<Served> {
    Server::bind(options)?.run(observer)
}

impl Server {
    /// Listens; nothing is accepted yet.
    pub fn bind(options: ServeOptions) -> Result<Server> {
        let listener = listen_on(options.listen, &Settings::control(options.timeout), 128)?;
        let address =
            listener.local_addr().map_err(|source| Error::Listen { address: options.listen, source })?;
        Ok(Server { listener, address, options })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the stop flag is raised or, with `once`, one transfer has ended.
    pub fn run(&self, observer: &dyn ServeObserver) -> Result<Served> {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            while !self.options.stop.load(Relaxed) && !tally.is_enough(self.options.once) {
                if !wait_for(&self.listener, PollFlags::POLLIN, LOOK_UP)? {
                    continue;
                }
                let (socket, peer) = match self.listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if is_passing(error.kind()) => continue,
                    Err(error) => return Err(Error::io("accept a control connection", error)),
                };
                tally.open.fetch_add(1, Relaxed);
                let tally = &tally;
                scope.spawn(move || {
                    self.serve_one(socket, peer, observer, tally);
                    tally.open.fetch_sub(1, Relaxed);
                });
            }
            Ok(())
        })?;
        self.options.samples.flush().map_err(|source| Error::io("write the samples file", source))?;
        Ok(Served { transfers: tally.begun.load(Relaxed), failed: tally.failed.load(Relaxed) })
    }

    fn serve_one(&self, socket: TcpStream, peer: SocketAddr, observer: &dyn ServeObserver, tally: &Tally) {
        match self.transfer(socket, peer, observer, tally) {
            Ok(outcome) => observer.ended(peer, &outcome),
            Err(error) => observer.failed(peer, &error),
        }
    }

    fn transfer(
        &self,
        socket: TcpStream,
        peer: SocketAddr,
        observer: &dyn ServeObserver,
        tally: &Tally,
    ) -> Result<Outcome> {
        let halt = Halt::new(Arc::clone(&self.options.stop));
        let mut channel = Channel::new(socket, peer.to_string(), self.options.timeout)?;
        let prepared = self.prepare(&mut channel, &halt, tally);
        let (plan, work) = prepared.inspect_err(|error| refuse(&mut channel, error))?;
        observer.began(peer, &plan);
        tally.begun.fetch_add(1, Relaxed);
        let carried = self.carry_out(&plan, work, &mut channel, &halt);
        if !carried.as_ref().is_ok_and(Outcome::is_complete) {
            tally.failed.fetch_add(1, Relaxed);
        }
        carried
    }

    /// Agrees on the plan and gathers the data connections.
    fn prepare(&self, channel: &mut Channel, halt: &Halt, tally: &Tally) -> Result<(TransferPlan, Work)> {
        let plan = agree(channel, halt)?;
        if tally.open.load(Relaxed) > TRANSFERS_MAX {
            let why = format!("{TRANSFERS_MAX} transfers are being served already");
            return Err(Error::Protocol { peer: channel.peer().to_owned(), why });
        }
        let timeout = Duration::from_micros(plan.timeout_us);
        channel.set_timeout(timeout);
        let token = random_token()?;
        let work = match plan.protocol {
            Protocol::Tcp => self.gather_tcp(&plan, token, channel, halt, timeout)?,
            Protocol::Udp => self.gather_udp(&plan, token, channel, halt, timeout)?,
        };
        channel.send(&Message::Ready)?;
        if plan.reverse {
            wait_for_start(channel, halt)?;
        }
        Ok((plan, work))
    }

    fn gather_tcp(
        &self,
        plan: &TransferPlan,
        token: u128,
        channel: &mut Channel,
        halt: &Halt,
        timeout: Duration,
    ) -> Result<Work> {
        let end = serving_end(plan);
        let address = SocketAddr::new(self.address.ip(), 0);
        let listener = listen_on(address, &Settings::data(plan, end), plan.streams as i32 + 16)?;
        let port = local_port(listener.local_addr())?;
        welcome(channel, token, vec![port])?;
        let sockets = admit::tcp(&listener, token, plan.streams, channel, halt, timeout)?;
        Ok(if plan.reverse { Work::TcpSource(sockets) } else { Work::TcpSink(sockets) })
    }

    fn gather_udp(
        &self,
        plan: &TransferPlan,
        token: u128,
        channel: &mut Channel,
        halt: &Halt,
        timeout: Duration,
    ) -> Result<Work> {
        let address = SocketAddr::new(self.address.ip(), 0);
        let sockets =
            (0..plan.streams).map(|_| udp_socket(address, plan)).collect::<Result<Vec<UdpSocket>>>()?;
        let ports = sockets.iter().map(|socket| local_port(socket.local_addr())).collect::<Result<_>>()?;
        welcome(channel, token, ports)?;
        let token = token as u64;
        admit::udp(&sockets, token, channel, halt, timeout)?;
        Ok(if plan.reverse { Work::UdpSource(sockets, token) } else { Work::UdpSink(sockets, token) })
    }

    fn carry_out(
        &self,
        plan: &TransferPlan,
        work: Work,
        channel: &mut Channel,
        halt: &Halt,
    ) -> Result<Outcome> {
        let outbox = Outbox::default();
        let unwritten = std::sync::OnceLock::new();
        let keep = |record: &Record| {
            if let Err(error) = self.options.samples.write(record) {
                let _ = unwritten.set(error);
            }
        };
        let emit = |record: Record| {
            keep(&record);
            outbox.put(record);
        };
        let context = Context { plan, halt, emit: &emit, avail: &|_| None };
        let duties = Duties { outbox: Some(&outbox), on_records: &|_| {}, on_turn: &|| {} };
        let finished = session::run(work, monotonic_ns(), channel, &context, &duties);
        let outcome = Outcome::new(plan, finished, channel.clock());
        outcome.flows.iter().for_each(|flow| keep(&Record::Flow(flow.clone())));
        let flushed = self.options.samples.flush();
        match unwritten.into_inner().or(flushed.err()) {
            Some(source) => Err(Error::io("write the samples file", source)),
            None => Ok(outcome),
        }
    }
}

/// What is being served.
#[derive(Debug, Default)]
struct Tally {
    open: AtomicUsize,
    begun: AtomicU64,
    failed: AtomicU64,
}

impl Tally {
    fn is_enough(&self, once: bool) -> bool {
        once && self.begun.load(Relaxed) > 0
    }
}

/// An error of accept(2) that says nothing about the listener.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

fn serving_end(plan: &TransferPlan) -> End {
    if plan.reverse { End::Sending } else { End::Receiving }
}

/// The client's plan, when the versions fit and it is sound.
fn agree(channel: &mut Channel, halt: &Halt) -> Result<TransferPlan> {
    let (version, plan) = match channel.expect(|| halt.is_raised())? {
        Message::Hello { version, plan } => (version, plan),
        other => return Err(channel.unexpected(&other)),
    };
    let peer = channel.peer().to_owned();
    if version != PROTOCOL_VERSION {
        return Err(Error::Version { peer, theirs: version, ours: PROTOCOL_VERSION });
    }
    let plan: TransferPlan = serde_json::from_value(plan)
        .map_err(|error| Error::Protocol { peer, why: format!("its plan cannot be read: {error}") })?;
    plan.check()?;
    Ok(plan)
}

/// Tells the client why not. It may be gone: then there is nobody to tell.
fn refuse(channel: &mut Channel, error: &Error) {
    let reason = error.to_string();
    if channel.send(&Message::Refused { version: PROTOCOL_VERSION, reason }).is_ok() {
        channel.finish();
    }
}

fn welcome(channel: &mut Channel, token: u128, ports: Vec<u16>) -> Result<()> {
    channel.send(&Message::Welcome { version: PROTOCOL_VERSION, token: format!("{token:032x}"), ports })
}

fn wait_for_start(channel: &mut Channel, halt: &Halt) -> Result<()> {
    loop {
        if halt.is_raised() {
            return Err(Error::Stopped);
        }
        match channel.poll(LOOK_UP)? {
            None => {}
            Some(Message::Start) => return Ok(()),
            Some(other) => return Err(channel.unexpected(&other)),
        }
    }
}

fn local_port(address: std::io::Result<SocketAddr>) -> Result<u16> {
    address.map(|address| address.port()).map_err(|source| Error::io("read a data socket's port", source))
}

fn random_token() -> Result<u128> {
    let mut bytes = [0u8; 16];
    // SAFETY: `bytes` is valid for its length; requests of up to 256 bytes are never cut short.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if count != bytes.len() as isize {
        return Err(Error::io("make a random token", std::io::Error::last_os_error()));
    }
    Ok(u128::from_ne_bytes(bytes))
}
