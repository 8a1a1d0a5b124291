//! The serving end: one listener and one thread for all who come, and a thread for each who may transfer.

use crate::{
    channel::Channel,
    context::Context,
    control::Message,
    error::{Error, Result},
    gathering::Gatherings,
    halt::Halt,
    limits::{Need, Share, Shares},
    lobby::{Bounds, Lobby, Request, Visitor},
    outcome::Outcome,
    plan::TransferPlan,
    prepare::{Preparation, new_token},
    serve_options::ServeOptions,
    session::{self, Deadline, Duties, Outbox, Work},
    sockets::{Settings, listen_on},
    threads,
};
use longfat_host::monotonic_ns;
use longfat_schema::record::Record;
use nix::sys::resource::{Resource, getrlimit};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::Scope,
    time::Duration,
};

/// Visitors that may wait to be heard, where there are descriptors for so many.
const VISITORS_MAX: u64 = 1024;
/// Most visitors of one peer.
const VISITORS_OF_PEER_MAX: u64 = 128;
/// Descriptors that are neither a visitor's nor a transfer's: files, the listener, what libraries open.
const DESCRIPTORS_OF_OTHERS: u64 = 32;
/// Connections that the kernel holds until they are accepted: the streams of some transfers at once.
const BACKLOG: i32 = 4096;

/// Told what the server does.
pub trait ServeObserver: Sync {
    /// A transfer was agreed upon and its data connections are there.
    fn began(&self, _peer: SocketAddr, _plan: &TransferPlan) {}
    /// A transfer ended, well or with errors in its streams.
    fn ended(&self, _peer: SocketAddr, _outcome: &Outcome) {}
    /// A client went away or was refused before a transfer began.
    fn failed(&self, _peer: SocketAddr, _error: &Error) {}
    /// Counts connections that went away, or had to, without having said what they wanted.
    fn silent(&self, _count: u64) {}
}

/// An observer that looks away.
impl ServeObserver for () {}

/// An observer whose failures end nothing.
struct Guarded<'a>(&'a dyn ServeObserver);

/// A panic is said on standard error where it happens.
fn guarded(tell: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(tell));
}

impl ServeObserver for Guarded<'_> {
    fn began(&self, peer: SocketAddr, plan: &TransferPlan) {
        guarded(|| self.0.began(peer, plan));
    }

    fn ended(&self, peer: SocketAddr, outcome: &Outcome) {
        guarded(|| self.0.ended(peer, outcome));
    }

    fn failed(&self, peer: SocketAddr, error: &Error) {
        guarded(|| self.0.failed(peer, error));
    }

    fn silent(&self, count: u64) {
        guarded(|| self.0.silent(count));
    }
}

/// How many transfers were served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Transfers that began.
    pub transfers: u64,
    /// Transfers with an error in a stream.
    pub failed: u64,
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: ServeOptions,
    descriptors: Descriptors,
}

/// Listens and serves until stopped: [`Server::bind`] and [`Server::run`].
pub fn serve(options: ServeOptions, observer: &dyn ServeObserver) -> Result<Served> {
    Server::bind(options)?.run(observer)
}

impl Server {
    /// Listens; nothing is accepted yet.
    pub fn bind(options: ServeOptions) -> Result<Server> {
        let listener = listener(&options)?;
        let address =
            listener.local_addr().map_err(|source| Error::Listen { address: options.listen, source })?;
        Ok(Server { listener, address, options, descriptors: Descriptors::of_process()? })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the stop flag is raised or, with `once`, one transfer has ended.
    ///
    /// # Errors
    /// When the listener is broken or the samples file cannot be written. What peers do, and what the host has too
    /// little of, ends nothing but their own transfers.
    pub fn run(&self, observer: &dyn ServeObserver) -> Result<Served> {
        let observer: &dyn ServeObserver = &Guarded(observer);
        let shares = Shares::new(&self.options.limits, self.descriptors.transfers);
        let (gatherings, tally) = Default::default();
        let house = House { server: self, observer, shares: &shares, gatherings, tally };
        std::thread::scope(|scope| {
            let ended = house.keep(scope);
            house.gatherings.close();
            ended
        })?;
        self.options.samples.flush().map_err(|source| Error::io("write the samples file", source))?;
        Ok(Served { transfers: house.tally.begun.load(Relaxed), failed: house.tally.failed.load(Relaxed) })
    }
}

/// Listens where it was told to. `[::]` is every address of this host: of IPv4 alone where it has no IPv6.
fn listener(options: &ServeOptions) -> Result<TcpListener> {
    let listen = |address| listen_on(address, &Settings::control(options.timeout), BACKLOG);
    let told = options.listen;
    match listen(told) {
        Err(error) if told.is_ipv6() && told.ip().is_unspecified() && error.lacks_family() => {
            listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), told.port()))
        }
        listener => listener,
    }
}

/// How the descriptors that this process may have are shared out.
#[derive(Debug)]
struct Descriptors {
    visitors: u64,
    transfers: u64,
}

impl Descriptors {
    fn of_process() -> Result<Descriptors> {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)
            .map_err(|errno| Error::io("ask how many descriptors there are", errno))?;
        let visitors = (limit / 4).clamp(1, VISITORS_MAX);
        Ok(Descriptors { visitors, transfers: limit.saturating_sub(visitors + DESCRIPTORS_OF_OTHERS) })
    }

    fn bounds(&self, hello_within: Duration) -> Bounds {
        let of_peer = VISITORS_OF_PEER_MAX.min(self.visitors.div_ceil(2));
        Bounds { visitors: self.visitors as usize, visitors_of_peer: of_peer as usize, hello_within }
    }
}

/// What the transfers of one server have in common.
struct House<'a> {
    server: &'a Server,
    observer: &'a dyn ServeObserver,
    shares: &'a Shares,
    gatherings: Gatherings,
    tally: Tally,
}

/// A transfer that is allowed, on its way to its thread.
struct Admitted<'a> {
    request: Request,
    share: Share<'a>,
}

impl House<'_> {
    /// Sees to those who come, until the server is to end.
    fn keep<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Result<()> {
        let Server { listener, options, descriptors, .. } = self.server;
        let bounds = descriptors.bounds(options.timeout);
        let mut lobby = Lobby::new(bounds, options.key.as_ref(), &self.gatherings);
        while !options.stop.load(Relaxed) && !self.tally.is_enough(options.once) {
            let turn = lobby.turn(listener)?;
            turn.failed.iter().for_each(|(peer, error)| self.observer.failed(*peer, error));
            if turn.silent > 0 {
                self.observer.silent(turn.silent);
            }
            for request in turn.requests {
                if let Some((visitor, error)) = self.receive(request, scope) {
                    self.observer.failed(visitor.peer, &error);
                    lobby.refuse(visitor, &error);
                }
            }
        }
        Ok(())
    }

    /// Gives a client that asks for something sound, of which there is enough, a thread. Else who is turned away, and
    /// why.
    fn receive<'scope>(
        &'scope self,
        mut request: Request,
        scope: &'scope Scope<'scope, '_>,
    ) -> Option<(Visitor, Error)> {
        self.server.options.limits.moderate(&mut request.plan);
        let admitted = match self.admit(&request) {
            Ok(share) => Admitted { request, share },
            Err(error) => return Some((request.visitor, error)),
        };
        let (admitted, error) =
            threads::spawn_with(scope, admitted, |admitted| self.serve(admitted)).err()?;
        Some((admitted.request.visitor, Error::io("start a thread for the transfer", error)))
    }

    fn admit(&self, request: &Request) -> Result<Share<'_>> {
        request.plan.check()?;
        self.server.options.limits.check(&request.plan)?;
        self.shares
            .take(request.visitor.network, Need::of(&request.plan))
            .map_err(|reason| Error::NotAllowed { peer: request.visitor.peer.to_string(), reason })
    }

    /// One transfer, on its own thread. What fails, fails for its client alone.
    fn serve(&self, admitted: Admitted<'_>) {
        let peer = admitted.request.visitor.peer;
        let served = catch_unwind(AssertUnwindSafe(|| self.server.transfer(admitted, self)));
        match served {
            Ok(Ok(outcome)) => self.observer.ended(peer, &outcome),
            Ok(Err(error)) => self.observer.failed(peer, &error),
            Err(_) => {
                let why = "its transfer made this program fail; please report that".to_owned();
                self.observer.failed(peer, &Error::Protocol { peer: peer.to_string(), why });
            }
        }
    }
}

impl Server {
    fn transfer(&self, admitted: Admitted<'_>, house: &House<'_>) -> Result<Outcome> {
        let Admitted { request: Request { visitor, plan, transcript }, share: _share } = admitted;
        let halt = Halt::new(Arc::clone(&self.options.stop));
        let timeout = Duration::from_micros(self.options.limits.silence_us(&plan));
        let peer = visitor.peer;
        let mut channel = Channel::resume(visitor.socket, peer.to_string(), visitor.frames, timeout)?;
        channel.agree_on(plan.streams);
        let preparation = Preparation {
            options: &self.options,
            listener: &self.listener,
            address: self.address,
            gatherings: &house.gatherings,
            plan: &plan,
            transcript: transcript.as_ref(),
            network: visitor.network,
            transfer: house.tally.numbers.fetch_add(1, Relaxed),
            token: new_token()?,
            halt: &halt,
        };
        let prepared = preparation.work(&mut channel);
        let work = prepared.map_err(explained).inspect_err(|error| refuse(&mut channel, error))?;
        house.observer.began(peer, &plan);
        let tally = &house.tally;
        tally.begun.fetch_add(1, Relaxed);
        let carried = self.carry_out(&plan, work, &mut channel, &halt, tally);
        if !carried.as_ref().is_ok_and(Outcome::is_complete) {
            tally.failed.fetch_add(1, Relaxed);
        }
        carried
    }

    fn carry_out(
        &self,
        plan: &TransferPlan,
        work: Work,
        channel: &mut Channel,
        halt: &Halt,
        tally: &Tally,
    ) -> Result<Outcome> {
        let outbox = Outbox::new(&tally.records_waiting);
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
        let stream_bytes_max = self.options.limits.stream_bytes(plan);
        let context = Context { plan, halt, emit: &emit, avail: &|_| None, stream_bytes_max };
        let duties = Duties {
            outbox: Some(&outbox),
            on_records: &|_| {},
            on_turn: &|| {},
            says_start: false,
            deadline: self.deadline(plan),
        };
        let finished = session::run(work, monotonic_ns(), channel, &context, &duties);
        let outcome = Outcome::new(plan, finished, channel.clock());
        outcome.flows.iter().for_each(|flow| keep(&Record::Flow(flow.clone())));
        let flushed = self.options.samples.flush();
        let unkept = unwritten.into_inner().or(flushed.err());
        let unkept = unkept.map(|source| Error::io("write the samples file", source).to_string());
        Ok(Outcome { unkept, ..outcome })
    }

    /// When a transfer has had all the time there is for it. Where this end sends, the start has come; else the client
    /// says when it does.
    fn deadline(&self, plan: &TransferPlan) -> Deadline {
        let allowed_us = self.options.limits.duration_us;
        let planned_us = plan.duration_us().map(|span| span.saturating_add(plan.last_start_us()));
        let span_us =
            planned_us.unwrap_or(allowed_us).saturating_add(plan.drain_us).saturating_add(plan.timeout_us);
        let (within, span) = (Duration::from_micros(allowed_us), Duration::from_micros(span_us));
        if plan.reverse { Deadline::of_started(span) } else { Deadline::of_waiting(within, span) }
    }
}

/// What was served, and what waits to be sent.
#[derive(Debug, Default)]
struct Tally {
    /// How many transfers have a number.
    numbers: AtomicU64,
    begun: AtomicU64,
    failed: AtomicU64,
    records_waiting: AtomicUsize,
}

impl Tally {
    fn is_enough(&self, once: bool) -> bool {
        once && self.begun.load(Relaxed) > 0
    }
}

/// The error with its mend where this end was not allowed to do what the plan asks.
fn explained(error: Error) -> Error {
    match error {
        Error::Host { end, source } if source.is_not_permitted() => Error::NotPermitted { end, source },
        error => error,
    }
}

/// Tells the client why not. It may be gone: then there is nobody to tell.
fn refuse(channel: &mut Channel, error: &Error) {
    if channel.send(&Message::refusal(error.to_string())).is_ok() {
        channel.finish();
    }
}
