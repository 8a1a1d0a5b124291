//! The end a person starts: agrees with the server, makes the data connections, keeps the book.

use crate::{
    admit,
    channel::{Channel, beginning},
    context::Context,
    control::{Hello, Message, PROTOCOL_VERSION, Proof, Refused, Welcome},
    datagram::{Datagram, Kind},
    error::{End, Error, HINT_ONE_PORT, HINT_OWN_PORT, Result},
    halt::Halt,
    ledger::{IntervalReport, Ledger},
    outcome::Outcome,
    plan::{Protocol, TransferPlan},
    preamble::Preamble,
    proof::{Transcript, nonce},
    session::{self, Deadline, Duties, Work},
    sockets::{Connecting, LOOK_UP, Settings, begin_connect, connect_to, probe, udp_socket},
    start::{self, Start, Step, Told},
};
use longfat_host::{Key, monotonic_ns, monotonic_us};
use longfat_schema::{
    lines::Lines,
    record::{AvailSample, Note, Record},
    text::one_line,
};
use std::{
    cell::{Cell, RefCell},
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, ToSocketAddrs, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// Questions that settle the clock offset before there is load.
const CLOCK_QUESTIONS: u32 = 5;
/// How often a client that is to be told when to begin looks whether it was.
const LISTEN: Duration = Duration::from_millis(10);

/// What `longfat transfer send` is told beside the plan.
#[derive(Debug, Clone)]
pub struct SendOptions {
    /// Where the server is, `HOST:PORT`.
    pub to: String,
    /// What to do.
    pub plan: TransferPlan,
    /// The server must have this key, and asks for it.
    pub key: Option<Key>,
    /// Source address of every connection.
    pub bind: Option<IpAddr>,
    /// When to begin.
    pub start: Start,
    /// Period of interval reports.
    pub interval: Duration,
    /// Where the records of both ends go.
    pub samples: Lines,
    /// Ends the transfer early when raised.
    pub stop: Arc<AtomicBool>,
}

/// Told how the transfer goes.
pub trait SendObserver: Sync {
    /// A step towards the agreement is taken.
    fn step(&self, _step: Step, _took: Duration) {}
    /// The ends agree and are connected: a start that is to be told may be told.
    fn agreed(&self) {}
    /// The time of the start is known.
    fn started(&self, _peer: SocketAddr, _plan: &TransferPlan) {}
    /// One interval is over.
    fn interval(&self, _report: &IntervalReport) {}
    /// Something a person should know.
    fn note(&self, _note: &Note) {}
    /// Asked whenever a sending socket is sampled: what it has found out about the available bandwidth of its path, if
    /// it measures. Flow and stream are filled in.
    fn avail(&self, _socket: BorrowedFd<'_>) -> Option<AvailSample> {
        None
    }
}

/// An observer that looks away.
impl SendObserver for () {}

/// Carries out one transfer. Streams that died early are in the outcome, and so are samples that could not be kept; an
/// error is one that kept the transfer from beginning.
pub fn send(options: &SendOptions, observer: &dyn SendObserver) -> Result<Outcome> {
    options.plan.check()?;
    if let Start::At(start_ns) = options.start {
        refuse_far(start_ns)?;
    }
    let halt = Halt::new(Arc::clone(&options.stop));
    if options.plan.protocol == Protocol::Tcp {
        probe(&Settings::data(&options.plan, own_end(&options.plan)))?;
    }
    let ledger = Ledger::new(options.samples.clone(), options.plan.streams);
    let outcome =
        Client { options, observer, halt: &halt, ledger: &ledger, steps: RefCell::default() }.transfer();
    let closed = ledger.close();
    let unkept = closed.err().map(|source| Error::io("write the samples file", source).to_string());
    Ok(Outcome { unkept, ..outcome? })
}

/// Gives back a start that may be meant.
fn refuse_far(start_ns: u64) -> Result<u64> {
    let now_ns = monotonic_ns();
    if start::is_far(start_ns, now_ns) { Err(Error::FarStart { start_ns, now_ns }) } else { Ok(start_ns) }
}

fn own_end(plan: &TransferPlan) -> End {
    if plan.reverse { End::Receiving } else { End::Sending }
}

struct Client<'a> {
    options: &'a SendOptions,
    observer: &'a dyn SendObserver,
    halt: &'a Halt,
    ledger: &'a Ledger,
    steps: RefCell<Vec<(Step, Duration)>>,
}

/// What the server answered.
struct Agreed {
    transfer: u64,
    token: u128,
    ports: Vec<u16>,
}

impl Client<'_> {
    fn transfer(&self) -> Result<Outcome> {
        let plan = &self.options.plan;
        let (mut channel, server) = self.step(Step::Connect, || self.connect())?;
        let agreed = self.step(Step::Agree, || self.agree(&mut channel))?;
        self.step(Step::Clock, || channel.learn_clock(CLOCK_QUESTIONS))?;
        let work = self.step(Step::Data, || match plan.protocol {
            Protocol::Tcp => self.connect_tcp(server, &agreed, &mut channel),
            Protocol::Udp => self.connect_udp(server, &agreed, &mut channel),
        })?;
        self.note_clock(&channel);
        self.note("info", start::in_words(&self.steps.borrow()));
        self.observer.agreed();
        let start_ns = self.start(&mut channel)?;
        self.observer.started(server, plan);
        let finished = self.carry_out(work, start_ns, &mut channel);
        let outcome = Outcome::new(plan, finished, channel.clock());
        outcome.flows.iter().for_each(|flow| self.ledger.put(&Record::Flow(flow.clone())));
        Ok(outcome)
    }

    fn step<T>(&self, step: Step, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let done = work();
        let took = begun.elapsed();
        self.steps.borrow_mut().push((step, took));
        self.observer.step(step, took);
        done.map_err(|error| error.during(step, took))
    }

    /// Connects to the first address of the server that answers.
    fn connect(&self) -> Result<(Channel, SocketAddr)> {
        let to = &self.options.to;
        let timeout = Duration::from_micros(self.options.plan.timeout_us);
        let mut failed =
            Error::Address { text: to.clone(), why: "it has no address of the family of --bind".into() };
        for address in resolve(to)? {
            if self.options.bind.is_some_and(|ip| ip.is_ipv4() != address.is_ipv4()) {
                continue;
            }
            match connect_to(address, self.options.bind, &Settings::control(timeout), self.halt) {
                Ok(socket) => return Ok((Channel::new(socket, address.to_string(), timeout)?, address)),
                Err(Error::Stopped) => return Err(Error::Stopped),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn agree(&self, channel: &mut Channel) -> Result<Agreed> {
        let hello = Hello { version: PROTOCOL_VERSION, nonce: nonce()?, plan: self.options.plan.clone() };
        channel.send(&Message::Hello(hello.clone()))?;
        let mut answer = self.expect(channel)?;
        let mut transcript = None;
        if let Message::Challenge(challenge) = &answer {
            let said = Transcript::new(&hello, &challenge.nonce);
            let key = self
                .options
                .key
                .as_ref()
                .ok_or_else(|| Error::KeyWanted { peer: channel.peer().to_owned() })?;
            channel.send(&Message::Proof(Proof { proof: said.of_client(key) }))?;
            transcript = Some(said);
            answer = self.expect(channel)?;
        }
        match answer {
            Message::Welcome(welcome) => {
                self.check_proof(channel, transcript.as_ref(), &welcome)?;
                let Welcome { transfer, token, ports, .. } = welcome;
                let token = u128::from_str_radix(&token, 16).map_err(|error| Error::Protocol {
                    peer: channel.peer().to_owned(),
                    why: format!("its token is no number: {error}"),
                })?;
                Ok(Agreed { transfer, token, ports })
            }
            other => Err(channel.unexpected(&other)),
        }
    }

    /// Refuses a server that has not proven that it has the key, where there is one.
    fn check_proof(
        &self,
        channel: &Channel,
        transcript: Option<&Transcript>,
        welcome: &Welcome,
    ) -> Result<()> {
        let Some(key) = &self.options.key else { return Ok(()) };
        if transcript.is_some_and(|transcript| transcript.is_of_server(key, welcome)) {
            return Ok(());
        }
        Err(Error::Unproven { peer: channel.peer().to_owned() })
    }

    /// The next message; a refusal becomes an error.
    fn expect(&self, channel: &mut Channel) -> Result<Message> {
        let message = channel.expect(|| self.halt.is_raised())?;
        refusal(message, channel.peer())
    }

    fn connect_tcp(&self, server: SocketAddr, agreed: &Agreed, channel: &mut Channel) -> Result<Work> {
        let plan = &self.options.plan;
        let (address, hint) = match agreed.ports.as_slice() {
            [] => (server, HINT_ONE_PORT),
            [port] => (with_port(server, *port), HINT_OWN_PORT),
            _ => return Err(wrong_ports(channel, agreed, 1)),
        };
        let settings = Settings::data(plan, own_end(plan));
        // All at once: a hundred streams take the round trip of one.
        let begin =
            |_| begin_connect(address, self.options.bind, &settings).map_err(|error| error.of_data(hint));
        let begun = (0..plan.streams).map(begin).collect::<Result<Vec<_>>>()?;
        let open = |(stream, begun): (u32, Connecting)| {
            let mut socket =
                begun.finish(settings.timeout, self.halt).map_err(|error| error.of_data(hint))?;
            let Agreed { transfer, token, .. } = *agreed;
            let preamble = Preamble { transfer, token, stream }.encode();
            let failed = |source| Error::DataConnect { address, source, hint };
            socket.write_all(&preamble).map_err(failed)?;
            Ok(socket)
        };
        let sockets = (0..).zip(begun).map(open).collect::<Result<Vec<TcpStream>>>()?;
        match self.expect(channel)? {
            Message::Ready => {}
            other => return Err(channel.unexpected(&other)),
        }
        Ok(if plan.reverse { Work::TcpSink(sockets, plan.window_bytes) } else { Work::TcpSource(sockets) })
    }

    fn connect_udp(&self, server: SocketAddr, agreed: &Agreed, channel: &mut Channel) -> Result<Work> {
        let plan = &self.options.plan;
        if agreed.ports.len() != plan.streams as usize {
            return Err(wrong_ports(channel, agreed, plan.streams));
        }
        let open = |port: &u16| {
            let socket = udp_socket(SocketAddr::new(self.local_ip(server), 0), plan)?;
            let address = with_port(server, *port);
            socket.connect(address).map_err(|source| Error::Connect { address, source })?;
            Ok(socket)
        };
        let sockets = agreed.ports.iter().map(open).collect::<Result<Vec<UdpSocket>>>()?;
        let token = agreed.token as u64;
        self.greet(&sockets, token, channel)?;
        Ok(if plan.reverse { Work::UdpSink(sockets, token) } else { Work::UdpSource(sockets, token) })
    }

    /// Sends hellos until the server has one of each stream; it gives up by itself.
    fn greet(&self, sockets: &[UdpSocket], token: u64, channel: &mut Channel) -> Result<()> {
        let hello = Datagram { kind: Kind::Hello, token, sequence: 0, time_ns: 0 }.encode();
        let mut said: Option<Instant> = None;
        loop {
            if said.is_none_or(|said| said.elapsed() >= LOOK_UP) {
                // A hello that is lost or refused is followed by another.
                sockets.iter().for_each(|socket| drop(socket.send(&hello)));
                said = Some(Instant::now());
            }
            admit::wait_any(sockets.iter().map(|socket| socket.as_fd()).chain([channel.socket().as_fd()]));
            admit::answer(sockets, token);
            match channel.poll(Duration::ZERO)?.map(|message| refusal(message, channel.peer())).transpose()? {
                None if self.halt.is_raised() => return Err(Error::Stopped),
                None => {}
                Some(Message::Ready) => return Ok(()),
                Some(other) => return Err(channel.unexpected(&other)),
            }
        }
    }

    fn local_ip(&self, server: SocketAddr) -> IpAddr {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.options.bind.unwrap_or(any)
    }

    /// When the first stream begins. A sending server is told at that moment, here; a receiving one while the transfer
    /// runs.
    fn start(&self, channel: &mut Channel) -> Result<u64> {
        let now_ns = monotonic_ns();
        let start_ns = match &self.options.start {
            Start::AtOnce => now_ns,
            Start::At(start_ns) => *start_ns,
            Start::WhenTold(told) => self.told(told, channel)?,
        };
        let now_ns = monotonic_ns();
        if start_ns < now_ns {
            let late_us = (now_ns - start_ns) / 1000;
            if late_us > 0 {
                self.note("warning", format!("began {late_us} us after the time it was to begin"));
            }
        }
        if !self.options.plan.reverse {
            return Ok(start_ns.max(now_ns));
        }
        while monotonic_ns() < start_ns {
            let left = Duration::from_nanos(start_ns.saturating_sub(monotonic_ns()));
            self.attend(channel, left.min(LOOK_UP))?;
        }
        channel.send(&Message::Start)?;
        Ok(start_ns)
    }

    fn told(&self, told: &Told, channel: &mut Channel) -> Result<u64> {
        loop {
            if let Some(start_ns) = told.heard() {
                return refuse_far(start_ns);
            }
            self.attend(channel, LISTEN)?;
        }
    }

    /// Keeps the control connection alive before the start; anything said there but a refusal is out of turn.
    fn attend(&self, channel: &mut Channel, wait: Duration) -> Result<()> {
        if self.halt.is_raised() {
            return Err(Error::Stopped);
        }
        match channel.poll(wait)? {
            None => Ok(()),
            Some(message) => Err(channel.unexpected(&refusal(message, channel.peer())?)),
        }
    }

    fn carry_out(&self, work: Work, start_ns: u64, channel: &mut Channel) -> session::Finished {
        let put = |record: Record| {
            if let Record::Note(note) = &record {
                self.observer.note(note);
            }
            self.ledger.put(&record);
        };
        let avail = |socket: BorrowedFd<'_>| self.observer.avail(socket);
        let context = Context {
            plan: &self.options.plan,
            halt: self.halt,
            emit: &put,
            avail: &avail,
            stream_bytes_max: u64::MAX,
        };
        let reports = Reports::new(self.options.interval, start_ns);
        let duties = Duties {
            outbox: None,
            on_records: &|records| records.into_iter().map(shown).for_each(put),
            on_turn: &|| reports.when_due(self.ledger, self.observer),
            says_start: !self.options.plan.reverse,
            deadline: Deadline::default(),
        };
        let finished = session::run(work, start_ns, channel, &context, &duties);
        reports.last(self.ledger, self.observer);
        finished
    }

    fn note_clock(&self, channel: &Channel) {
        let clock = channel.clock();
        let message = format!(
            "clock of {} minus clock of this end: {} us (error at most {} us); interval times are those of the receiving end",
            channel.peer(),
            clock.offset_us,
            clock.error_us
        );
        self.note("info", message);
    }

    fn note(&self, level: &str, message: String) {
        let note = Note {
            time_us: monotonic_us(),
            level: level.to_owned(),
            source: self.options.plan.flow.clone(),
            message,
        };
        if level != "info" {
            self.observer.note(&note);
        }
        self.ledger.put(&Record::Note(note));
    }
}

/// A record of the other end, whose words are shown.
fn shown(mut record: Record) -> Record {
    if let Record::Note(note) = &mut record {
        [&mut note.level, &mut note.source, &mut note.message]
            .into_iter()
            .for_each(|text| *text = beginning(text));
    }
    record
}

/// Interval reports as time goes by.
struct Reports {
    interval: Duration,
    start_ns: u64,
    from: Cell<Option<Instant>>,
    from_us: Cell<u64>,
}

impl Reports {
    fn new(interval: Duration, start_ns: u64) -> Reports {
        Reports { interval, start_ns, from: Cell::new(None), from_us: Cell::new(0) }
    }

    fn when_due(&self, ledger: &Ledger, observer: &dyn SendObserver) {
        let now_ns = monotonic_ns();
        if now_ns < self.start_ns {
            return;
        }
        match self.from.get() {
            None => self.from.set(Some(Instant::now())),
            Some(from) if from.elapsed() >= self.interval => {
                self.report(now_ns, ledger, observer);
                // Even intervals: the next is due one interval after this one was.
                self.from.set(Some(from + self.interval));
            }
            Some(_) => {}
        }
    }

    fn report(&self, now_ns: u64, ledger: &Ledger, observer: &dyn SendObserver) {
        let to_us = now_ns.saturating_sub(self.start_ns) / 1000;
        observer.interval(&ledger.report(self.from_us.replace(to_us), to_us));
    }

    /// The last interval, if anything arrived in it.
    fn last(&self, ledger: &Ledger, observer: &dyn SendObserver) {
        let to_us = monotonic_ns().saturating_sub(self.start_ns) / 1000;
        let report = ledger.report(self.from_us.get(), to_us);
        if report.sum.received_bytes > 0 {
            observer.interval(&report);
        }
    }
}

fn resolve(to: &str) -> Result<Vec<SocketAddr>> {
    let wrong = |why: String| Error::Address { text: to.to_owned(), why };
    if let Some((ip, zone, port)) = with_zone(to) {
        let index = nix::net::if_::if_nametoindex(zone).ok().or_else(|| zone.parse().ok());
        let index = index.ok_or_else(|| wrong(format!("this host has no interface '{zone}'")))?;
        return Ok(vec![SocketAddrV6::new(ip, port, 0, index).into()]);
    }
    let addresses: Vec<_> = to.to_socket_addrs().map_err(|error| wrong(error.to_string()))?.collect();
    if addresses.is_empty() { Err(wrong("it has no address".to_owned())) } else { Ok(addresses) }
}

/// An IPv6 address of a link with its interface, and the port: `[fe80::1%eth0]:5201` (RFC 4007, section 11).
fn with_zone(to: &str) -> Option<(Ipv6Addr, &str, u16)> {
    let (inside, port) = to.strip_prefix('[')?.split_once("]:")?;
    let (ip, zone) = inside.split_once('%')?;
    Some((ip.parse().ok()?, zone, port.parse().ok()?))
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

fn refusal(message: Message, peer: &str) -> Result<Message> {
    let peer = peer.to_owned();
    match message {
        Message::Refused(Refused { reason, .. }) => {
            Err(Error::Refused { peer, reason: one_line(&reason).into_owned() })
        }
        other => Ok(other),
    }
}

fn wrong_ports(channel: &Channel, agreed: &Agreed, expected: u32) -> Error {
    let why = format!("it announced {} data ports where {expected} are needed", agreed.ports.len());
    Error::Protocol { peer: channel.peer().to_owned(), why }
}
