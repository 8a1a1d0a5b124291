//! SYN hold: a client's SYN is answered only when the server's leg stands (`accept = "after-server"`).
//!
//! The interception routes clients' SYNs to a TUN interface. One thread reads them, dials each one's server from the
//! client's own address, and then
//!
//! - gives the SYN back to the kernel, which hands it to the relay's listener; the worker that accepts the client
//!   finds the server's leg in [`Held`];
//! - or refuses the client as the server or the path did: a reset, an ICMP error, or silence;
//! - or, beyond the limits, lets the SYN pass unrelayed.

mod segment;
mod table;
mod tun;

use crate::{
    Accept, Error, Result,
    intercept::Interception,
    leg,
    plan::ConnectionPlan,
    shared::{Once, Shared},
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use segment::{Syn, Unreachable};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
pub(crate) use table::Pair;
use table::{Table, Verdict};
pub(crate) use tun::{Tun, is_available};

/// Longest wait: how late the thread may notice that it shall stop, or that a dial's time is up.
const WAIT_MS: u16 = 50;
const EVENTS: usize = 256;
/// SYNs taken per round, so that a storm of them does not keep answered dials waiting.
const BATCH: usize = 64;
/// Tokens of gates: this and above.
const GATES: u64 = u64::MAX - MOST_GATES as u64;
/// Rules that may hold SYNs, by their index.
pub(crate) const MOST_GATES: usize = 60;
const WATCH: &str = "watch held handshakes";

/// What the holding thread and the others share.
#[derive(Debug, Default)]
pub(crate) struct Held {
    legs: Mutex<Legs>,
    /// Of rules that hold, or held before a reload.
    gates: Mutex<Gates>,
    gates_changed: AtomicBool,
}

/// Servers' legs that stand and wait for their clients.
#[derive(Debug, Default)]
struct Legs {
    standing: HashMap<Pair, Waiting>,
    taken: Vec<Pair>,
}

#[derive(Debug)]
struct Waiting {
    socket: TcpStream,
    /// The index of the rule whose gate the SYN came in by.
    rule: usize,
}

/// Where the SYNs of one rule come from, by the rule's index.
pub(crate) type Gates = BTreeMap<usize, Gate>;

/// A TUN interface of its own for each rule that holds, so that the way back leads to the rule's own listener.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    tun: Arc<Tun>,
    way: Arc<ConnectionPlan>,
}

/// What a plan needs, and nobody looks at yet: nothing comes in by it before rules of nftables send it there.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Prepared {
    gates: Gates,
    /// Those whose interfaces are new.
    made: Vec<usize>,
}

impl Prepared {
    /// Takes back what was made.
    pub fn discard(self, interception: &Interception) {
        self.made.iter().for_each(|rule| interception.unhold(*rule));
    }
}

impl Held {
    /// The server's leg of a client that has been accepted.
    pub fn take(&self, client: SocketAddr, server: SocketAddr) -> Option<TcpStream> {
        let pair = (bare(client), bare(server));
        let mut legs = self.lock();
        let Waiting { socket, .. } = legs.standing.remove(&pair)?;
        legs.taken.push(pair);
        Some(socket)
    }

    /// Gates for those of these rules that hold: the interface that is there, or a new one. With an error nothing new is
    /// left.
    pub fn prepare<'p>(
        &self,
        rules: impl Iterator<Item = (usize, &'p Arc<ConnectionPlan>)>,
        interception: &Interception,
    ) -> Result<Prepared> {
        let mut prepared = Prepared::default();
        for (rule, way) in rules.filter(|(_, way)| way.accept == Accept::AfterServer) {
            let there = self.lock_gates().get(&rule).map(|gate| Arc::clone(&gate.tun));
            let is_new = there.is_none();
            let tun = match there.map_or_else(|| interception.hold(rule).map(Arc::new), Ok) {
                Ok(tun) => tun,
                Err(error) => {
                    prepared.discard(interception);
                    return Err(error);
                }
            };
            prepared.made.extend(is_new.then_some(rule));
            prepared.gates.insert(rule, Gate { tun, way: Arc::clone(way) });
        }
        Ok(prepared)
    }

    /// Holds SYNs by these gates from now on.
    pub fn open(&self, prepared: Prepared) {
        self.lock_gates().extend(prepared.gates);
        self.gates_changed.store(true, Ordering::Release);
    }

    /// Descriptors kept open for gates: each one's interface, and a socket prepared for its next dial.
    pub fn descriptors(&self) -> usize {
        2 * self.lock_gates().len()
    }

    fn lock_gates(&self) -> MutexGuard<'_, Gates> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Legs> {
        self.legs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Address and port only: sockets add an IPv6 scope that packets do not have.
fn bare(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The thread that holds SYNs.
pub(crate) struct Hold<'a> {
    shared: &'a Shared<'a>,
    gates: Gates,
    raw: tun::Raw,
    epoll: Epoll,
    table: Table,
    dialing: HashMap<u64, Dial>,
    /// By the rule's index: a socket for the next dial, made while no client waits for it.
    prepared: HashMap<usize, Outgoing>,
    /// Rounds of its loop, and the last one in which each gate brought a SYN.
    round: u64,
    visited: HashMap<usize, u64>,
}

/// A socket to dial with.
struct Outgoing {
    socket: TcpStream,
    ipv6: bool,
}

/// A dial under way.
struct Dial {
    pair: Pair,
    socket: TcpStream,
    /// The rule whose gate the SYN came in by.
    rule: usize,
}

impl<'a> Hold<'a> {
    pub fn new(shared: &'a Shared<'a>, own_mark: u32) -> Result<Hold<'a>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|errno| Error::io(WATCH, errno))?;
        let (raw, table) = (tun::Raw::new(own_mark)?, Table::new(shared.held_limit()));
        let (gates, dialing, prepared, visited) = Default::default();
        Ok(Hold { shared, gates, raw, epoll, table, dialing, prepared, round: 0, visited })
    }

    /// Takes over gates made since the last look.
    fn look_at_gates(&mut self) -> Result<()> {
        if !self.shared.held.gates_changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let gates = self.shared.held.lock_gates().clone();
        for (index, gate) in gates.iter().filter(|(index, _)| !self.gates.contains_key(index)) {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, GATES + *index as u64);
            self.epoll.add(gate.tun.file(), event).map_err(|errno| Error::io(WATCH, errno))?;
        }
        self.gates = gates;
        // The way of a rule may be another now.
        self.prepared.clear();
        Ok(())
    }

    /// Works until the relay's last connection has ended: while it drains, SYNs pass.
    pub fn run(mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        self.look_at_gates()?;
        while !self.shared.expired.load(Ordering::Acquire) {
            let count = match self.epoll.wait(&mut events, EpollTimeout::from(WAIT_MS)) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(errno) => return Err(Error::io("wait for held handshakes", errno)),
            };
            self.round += 1;
            self.look_at_gates()?;
            self.forget_taken();
            for event in &events[..count] {
                match event.data() {
                    gate @ GATES.. => self.read_some((gate - GATES) as usize),
                    number => self.on_dial(number, event.events()),
                }
            }
            self.expire();
        }
        Ok(())
    }

    /// Mostly one SYN, whom another look would only delay; more when there was one in the last round, too.
    fn read_some(&mut self, rule: usize) {
        let Some(gate) = self.gates.get(&rule).cloned() else { return };
        let is_crowded = self.visited.insert(rule, self.round).is_some_and(|last| last + 1 == self.round);
        let mut packet = [0; tun::PACKET_BYTES];
        for _ in 0..if is_crowded { BATCH } else { 1 } {
            let Some(bytes) = gate.tun.read(&mut packet) else { return };
            self.on_packet(rule, &gate, &packet[..bytes]);
        }
    }

    fn on_packet(&mut self, rule: usize, gate: &Gate, packet: &[u8]) {
        // The kernel's own multicast and whatever else is routed here by hand.
        let Some(syn) = Syn::parse(packet) else { return };
        let (pair, now) = ((syn.client, syn.server), Instant::now());
        let may_hold = !self.shared.draining.load(Ordering::Acquire) && self.shared.has_room();
        match self.table.on_syn(pair, packet, may_hold, now) {
            Verdict::Wait => {}
            Verdict::Pass => self.pass(&syn, packet),
            // A SYN the kernel does not take will come again.
            Verdict::Answer => drop(gate.tun.write(packet)),
            Verdict::Dial(number) => match self.dial(number, pair, rule, gate) {
                Ok(()) => {}
                Err(error) if is_shortage(&error) => {
                    self.table.give_up(pair, now);
                    self.pass(&syn, packet);
                }
                Err(error) => self.refuse(pair, number, rule, &error),
            },
        }
    }

    fn pass(&self, syn: &Syn, packet: &[u8]) {
        self.shared.warn_once(Once::Passed, || {
            format!("no room for the connection of {} to {}: it passes unrelayed", syn.client, syn.server)
        });
        self.raw.send(packet, syn.server.ip());
    }

    fn dial(&mut self, number: u64, pair: Pair, rule: usize, gate: &Gate) -> io::Result<()> {
        let (client, server) = pair;
        let leg = self.shared.leg(&gate.way.server, true);
        let prepared = self.prepared.remove(&rule).filter(|prepared| prepared.ipv6 == server.is_ipv6());
        let mut socket =
            prepared.map_or_else(|| leg.outgoing(server.is_ipv6()), |prepared| Ok(prepared.socket))?;
        if !leg::start_connect(&socket, Some(client), server)? {
            self.shared.warn_port_changed(client, server);
            socket = leg.outgoing(server.is_ipv6())?;
            leg::connect_from_any_port(&socket, client, server)?;
        }
        let once = EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT;
        self.epoll.add(&socket, EpollEvent::new(once, number))?;
        self.dialing.insert(number, Dial { pair, socket, rule });
        Ok(())
    }

    fn on_dial(&mut self, number: u64, flags: EpollFlags) {
        let Some(Dial { pair, socket, rule }) = self.dialing.remove(&number) else { return };
        let _ = self.epoll.delete(&socket);
        let has_failed = flags.contains(EpollFlags::EPOLLERR);
        let error = if has_failed { socket.take_error().unwrap_or_else(Some) } else { None };
        // A reset in answer to the SYN is "refused"; any other came after the handshake: the client shall see both.
        let stands = error.is_none_or(|error| {
            let after = error.kind() == io::ErrorKind::ConnectionReset;
            if !after {
                self.refuse(pair, number, rule, &error);
            }
            after
        });
        if stands && let Some(syn) = self.table.on_connected(pair, number, Instant::now()) {
            // Before the SYN goes back: the client may be accepted at once.
            self.shared.held.lock().standing.insert(pair, Waiting { socket, rule });
            if let Some(gate) = self.gates.get(&rule) {
                let _ = gate.tun.write(syn);
            }
            self.prepare(rule, pair.1.is_ipv6());
        }
    }

    /// A socket for the next dial, while the client completes its handshake.
    fn prepare(&mut self, rule: usize, ipv6: bool) {
        let (Some(gate), false) = (self.gates.get(&rule), self.prepared.contains_key(&rule)) else { return };
        // Without descriptors the next dial finds out.
        if let Ok(socket) = self.shared.leg(&gate.way.server, true).outgoing(ipv6) {
            self.prepared.insert(rule, Outgoing { socket, ipv6 });
        }
    }

    /// Refuses the client as its server or the path refused the relay.
    fn refuse(&mut self, pair: Pair, number: u64, rule: usize, error: &io::Error) {
        let Some(packet) = self.table.on_failed(pair, number) else { return };
        self.count_unserved(rule);
        let Some(syn) = Syn::parse(&packet) else { return };
        let client = syn.client.ip();
        let why = match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => return self.raw.send(&syn.reset(), client),
            Some(libc::ENETUNREACH) => Unreachable::Network,
            Some(libc::EHOSTUNREACH) => Unreachable::Host,
            Some(libc::EACCES | libc::EPERM) => Unreachable::Prohibited,
            // Nobody answered: neither does the relay.
            _ => return,
        };
        if let Some(from) = self.raw.source_towards(client) {
            self.raw.send(&syn.unreachable(why, &packet, from), client);
        }
    }

    fn count_unserved(&self, rule: usize) {
        if let Some(gate) = self.gates.get(&rule) {
            self.shared.count_unserved(&gate.way.rule);
        }
    }

    fn forget_taken(&mut self) {
        for pair in std::mem::take(&mut self.shared.held.lock().taken) {
            self.table.on_taken(pair);
        }
    }

    fn expire(&mut self) {
        for (pair, number) in self.table.expire(Instant::now()) {
            let dialing = self.dialing.remove(&number);
            let standing = self.shared.held.lock().standing.remove(&pair);
            if let Some(waiting) = &standing {
                leg::close_with_reset(&waiting.socket);
            }
            if let Some(rule) = dialing.map(|dial| dial.rule).or(standing.map(|waiting| waiting.rule)) {
                self.count_unserved(rule);
            }
        }
        self.shared.held_count.store(self.table.len(), Ordering::Release);
    }
}

/// Whether an error says nothing about the server: the relay is short of descriptors, memory or ports.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EMFILE
                | libc::ENFILE
                | libc::ENOBUFS
                | libc::ENOMEM
                | libc::EADDRNOTAVAIL
                | libc::EADDRINUSE
        )
    )
}
