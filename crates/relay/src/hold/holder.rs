//! One worker's part in holding SYNs: it reads them, dials their servers, and answers or refuses their clients.

#[cfg(test)]
mod tests;

use super::{
    Held, Waiting,
    gates::Gate,
    table::{Table, Verdict},
};
use crate::{
    Accept, Error, Fail, Result,
    adopt::Adopter,
    handover::estate::{Handshake, refit},
    keeping::{
        Keeping,
        record::{Holding, Message, Say},
        wire::Wire,
    },
    legs::{
        diag,
        leg::{self, Dialled},
        tun::{self, Tun},
    },
    logic::{
        Pair,
        accept_batch::{AcceptBatch, BATCH},
        busy_pairs::BusyPairs,
        one_way::OneWay,
        packet::{Syn, Unreachable},
        places::Room,
    },
    observe::journal::Once,
    plan::{ConnectionPlan, destination},
    shared::Shared,
};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, TcpStream},
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

/// What epoll hands back for dials: this and above, below [`GATES`].
pub(crate) const TOKENS: u64 = 1 << 62;
/// For gates: this, and the rule's index.
const GATES: u64 = 1 << 63;
const WATCH: &str = "watch held handshakes";
/// Clients in a row that do not come when their servers have answered: so many are no accident.
const MANY_LOST: u32 = 8;

/// The SYNs that one worker holds, watched by its epoll instance.
pub(crate) struct Hold<'a> {
    shared: &'a Shared<'a>,
    /// What all workers hold.
    held: &'a Held,
    /// The worker's index.
    holder: usize,
    /// By the rule's index.
    gates: BTreeMap<usize, Gate>,
    /// The changes of the gates it has followed.
    followed: u64,
    table: Table,
    /// How many of the shared count are its own.
    counted: usize,
    /// Clients that did not come although their servers had answered, since the last one that did.
    lost: u32,
    /// Dials under way.
    dialing: HashMap<u64, Pair>,
    /// Handshakes that wait for the end of their clients' last connections.
    busy: BusyPairs<Waiting>,
    /// By the rule's index.
    visited: HashMap<usize, Visit>,
    /// Adopter for rules that accept end to end.
    pub adopter: Adopter<'a>,
}

/// What a worker gives in a round of its loop.
pub(crate) struct Round<'a> {
    pub epoll: &'a Epoll,
    pub number: u64,
    /// Whether the worker has a client of that pair who came earlier, and whose server it has still to dial.
    pub is_behind: &'a dyn Fn(&Pair) -> bool,
}

/// What a gate's SYNs were like.
#[derive(Default)]
struct Visit {
    batch: AcceptBatch,
    /// The last one's server.
    ipv6: bool,
    /// To dial for the next one with, made while no client waits for it.
    prepared: Option<TcpStream>,
}

impl<'a> Hold<'a> {
    /// Nothing comes in before [`Hold::follow`].
    pub fn new(holder: usize, shared: &'a Shared<'a>, held: &'a Held, keeping: &'a Keeping) -> Hold<'a> {
        let table = Table::new(shared.admission.held_limit(), shared.plan.fail, Arc::clone(&held.window));
        let (gates, dialing, busy, visited) = Default::default();
        let adopter = Adopter::new(shared, &held.adopting, keeping, holder);
        Hold {
            shared,
            held,
            holder,
            gates,
            followed: 0,
            table,
            counted: 0,
            lost: 0,
            dialing,
            busy,
            visited,
            adopter,
        }
    }

    /// Watches gates made since the last look. An error: some of them could not be.
    pub fn follow(&mut self, epoll: &Epoll) -> Result<()> {
        let changes = self.held.gates.changes();
        if changes == self.followed {
            return Ok(());
        }
        self.followed = changes;
        let gates = self.held.gates.all();
        let mut outcome = Ok(());
        for (rule, gate) in gates.iter().filter(|(rule, _)| !self.gates.contains_key(rule)) {
            let Some(tun) = gate.tuns.get(self.holder) else { continue };
            let event = EpollEvent::new(EpollFlags::EPOLLIN, GATES | *rule as u64);
            outcome = outcome.and(epoll.add(tun.file(), event));
        }
        self.gates = gates;
        // The way of a rule may be another now.
        self.visited.clear();
        outcome.map_err(|errno| Error::io(WATCH, errno))
    }

    /// Sends what is held to another relay.
    pub fn give(&self, wire: &Wire) -> io::Result<()> {
        let legs = self.held.lock();
        for (pair, syn) in self.table.syns() {
            let own = legs.waiting.get(&pair).filter(|waiting| waiting.holder == self.holder);
            let rule = own.map(|waiting| waiting.rule).or_else(|| self.gates.keys().next().copied());
            let (holder, is_dialled) = (self.holder, own.is_some());
            let Some(rule) = rule else { continue };
            let holding = Holding::Handshake { rule, holder, syn: syn.to_vec(), is_dialled };
            let socket: Vec<_> = own.iter().map(|waiting| waiting.socket.as_fd()).collect();
            wire.send(&Message::with(Say::Put, 0, &holding), &socket)?;
        }
        Ok(())
    }

    /// Goes on with what another relay held.
    pub fn take_in(&mut self, handshake: Handshake, round: &Round<'_>) {
        let Handshake { rule, syn: packet, dial } = handshake;
        let Some(gate) = self.gates.get(&rule).cloned() else { return };
        let Some(tun) = gate.tuns.get(self.holder) else { return };
        match dial {
            None => self.on_packet((rule, &gate.way, tun), &packet, round),
            Some(socket) => self.await_dial(rule, &packet, socket, round),
        }
        self.count();
    }

    fn await_dial(&mut self, rule: usize, packet: &[u8], socket: TcpStream, round: &Round<'_>) {
        let Some(syn) = Syn::parse(packet) else { return };
        let (pair, begun) = ((syn.client, syn.server), Instant::now());
        let Verdict::Dial(number) = self.table.on_syn(pair, packet, Room::Syn, begun) else { return };
        let (holder, answered, was_reset) = (self.holder, false, false);
        refit(&socket, self.shared.packets.mark());
        let dial = Waiting { socket, number, answered, was_reset, rule, holder, begun };
        if self.watch(pair, dial, round.epoll).is_err() {
            self.table.forget(pair);
        }
    }

    /// What epoll said of a gate or a dial, in this round of the worker.
    pub fn on_event(&mut self, data: u64, flags: EpollFlags, round: &Round<'_>) {
        match data {
            GATES.. if flags.contains(EpollFlags::EPOLLERR) => {
                self.lose((data & !GATES) as usize, round.epoll)
            }
            GATES.. => self.read_some((data & !GATES) as usize, round),
            _ => self.on_dial(data & !TOKENS, flags),
        }
    }

    /// Somebody has deleted a gate's interface, and with it the way there.
    fn lose(&mut self, rule: usize, epoll: &Epoll) {
        let Some(gate) = self.gates.get(&rule) else { return };
        let Some(tun) = gate.tuns.get(self.holder) else { return };
        let _ = epoll.delete(tun.file());
        self.visited.remove(&rule);
        self.shared.journal.warn(&format!(
            "an interface for held handshakes of the rule '{}' is gone: some of its connections are not relayed until \
             the relay is started anew",
            gate.way.rule
        ));
    }

    /// Reads what ends have said whose packets are led here, as soon as it is there: timestamps are worth as much as
    /// they are young.
    pub fn hear_ends(&mut self) {
        for gate in self.gates.values().filter(|gate| gate.way.accept == Accept::EndToEnd) {
            if let Some(tun) = gate.tuns.get(self.holder) {
                self.adopter.read_some(tun, BATCH);
            }
        }
    }

    fn read_some(&mut self, rule: usize, round: &Round<'_>) {
        let Some(gate) = self.gates.get(&rule).cloned() else { return };
        let Some(tun) = gate.tuns.get(self.holder) else { return };
        if gate.way.accept == Accept::EndToEnd {
            return self.adopter.read_some(tun, BATCH);
        }
        let most = self.visited.entry(rule).or_default().batch.turn(round.number);
        let mut packet = [0; tun::PACKET_BYTES];
        for _ in 0..most {
            let Some(bytes) = tun.read(&mut packet) else { return };
            self.on_packet((rule, &gate.way, tun), &packet[..bytes], round);
            self.count();
        }
    }

    fn on_packet(&mut self, from: (usize, &ConnectionPlan, &Tun), packet: &[u8], round: &Round<'_>) {
        // The kernel's own multicast and whatever else is routed here by hand.
        let Some(syn) = Syn::parse(packet) else { return };
        if ![syn.client, syn.server].iter().all(|end| destination::is_taken(end.ip())) {
            return;
        }
        self.tidy();
        let (rule, way, tun) = from;
        let (pair, now) = ((syn.client, syn.server), Instant::now());
        let is_draining = self.shared.stage.is_draining();
        let room = if is_draining {
            Room::Nobody
        } else {
            self.shared.admission.room(syn.client.ip(), self.held.count())
        };
        match self.table.on_syn(pair, packet, room, now) {
            Verdict::Wait => {}
            Verdict::Silent(number) => self.on_silence(pair, number, packet),
            Verdict::Pass => self.pass(pair, packet, "no room"),
            // A SYN the kernel does not take will come again.
            Verdict::Answer | Verdict::Prove => drop(tun.write(packet)),
            Verdict::Dial(number) => match self.dial(number, pair, (rule, way), round) {
                Ok(()) => {}
                Err(error) if is_answer(&error) => self.refuse(pair, number, (rule, now), &error),
                Err(error) => {
                    self.table.give_up(pair, now);
                    self.pass(pair, packet, &error.to_string());
                }
            },
        }
    }

    /// The server is silent, or its answers take another way: plain forwarding has the client find out.
    fn on_silence(&mut self, pair: Pair, number: u64, packet: &[u8]) {
        // One that waits for the end of its client's last connection has not been dialled yet.
        if self.dialing.remove(&number).is_none() {
            return;
        }
        let waiting = self.held.lock().waiting.remove(&pair);
        waiting.iter().for_each(|waiting| self.shared.packets.abandon(&waiting.socket, pair));
        self.table.give_up(pair, Instant::now());
        // Whose address the SYNs bear need not be who sent them.
        self.shared.bypass.note(OneWay::of_port(pair), || {
            let (client, server) = pair;
            format!(
                "nothing of {server} has come back to this host for {client}: it is silent, or its answers take another way \
                 (asymmetric routing), which no relay can carry"
            )
        });
        self.forward(pair, packet);
    }

    fn pass(&self, pair: Pair, packet: &[u8], why: &str) {
        let (client, server) = pair;
        let outcome = match self.shared.plan.fail {
            Fail::Open => "passes unrelayed",
            Fail::Closed => "waits",
        };
        self.shared
            .journal
            .warn_once(Once::Passed, || format!("the connection of {client} to {server} {outcome}: {why}"));
        self.forward(pair, packet);
    }

    /// Lets a SYN go on to its server, if it may.
    fn forward(&self, (_, server): Pair, packet: &[u8]) {
        if self.shared.plan.fail == Fail::Open {
            self.send(packet, server.ip());
        }
    }

    /// Past the interception.
    fn send(&self, packet: &[u8], to: IpAddr) {
        self.shared.packets.send(packet, to);
    }

    fn dial(
        &mut self,
        number: u64,
        pair: Pair,
        (rule, way): (usize, &ConnectionPlan),
        round: &Round<'_>,
    ) -> io::Result<()> {
        let (client, server) = pair;
        let leg = self.shared.packets.leg(&way.server, true);
        // Whatever keeps a socket from being made, it is no answer of the server's.
        let make = || leg.outgoing(server.is_ipv6()).map_err(io::Error::other);
        let socket = self.take_prepared(rule, server.is_ipv6()).map_or_else(make, Ok)?;
        leg::bind_as(&socket, client)?;
        let (holder, begun) = (self.holder, Instant::now());
        let (answered, was_reset) = (false, false);
        let dial = Waiting { socket, number, answered, was_reset, rule, holder, begun };
        let is_behind = self.busy.has(&pair) || (round.is_behind)(&pair);
        match leg::connect_behind(is_behind, &dial.socket, pair)? {
            Dialled::UnderWay => self.watch(pair, dial, round.epoll),
            Dialled::PairBusy => {
                self.busy.push(pair, dial, Instant::now());
                Ok(())
            }
        }
    }

    fn watch(&mut self, pair: Pair, dial: Waiting, epoll: &Epoll) -> io::Result<()> {
        let once = EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT;
        if let Err(errno) = epoll.add(&dial.socket, EpollEvent::new(once, TOKENS | dial.number)) {
            // The client's own SYN meets no half-open handshake.
            self.shared.packets.abandon(&dial.socket, pair);
            return Err(errno.into());
        }
        self.dialing.insert(dial.number, pair);
        self.held.lock().waiting.insert(pair, dial);
        Ok(())
    }

    /// Milliseconds until a dial that waits may be tried again.
    pub fn wait_ms(&self, now: Instant) -> u16 {
        self.busy.wait_ms(now)
    }

    /// Tries those again whose clients' last connections may have ended.
    pub fn dial_freed(&mut self, round: &Round<'_>) {
        if self.busy.is_empty() {
            return;
        }
        let now = Instant::now();
        for turn in self.busy.due(now) {
            let (pair, number) = (turn.pair, turn.dial.number);
            if !self.table.is_dialled(pair, number) {
                self.shared.journal.warn_pair_busy(pair);
                continue;
            }
            match leg::connect_behind((round.is_behind)(&pair), &turn.dial.socket, pair) {
                Ok(Dialled::PairBusy) => self.busy.back(turn, now),
                Ok(Dialled::UnderWay) => {
                    // Out of watches: the client's next SYN finds out.
                    if self.watch(pair, turn.dial, round.epoll).is_err() {
                        self.table.forget(pair);
                    }
                }
                Err(error) => {
                    let Waiting { rule, begun, .. } = turn.dial;
                    self.refuse(pair, number, (rule, begun), &error);
                }
            }
        }
    }

    /// The socket stays in the epoll instance, which says no more of it, until its client has come.
    fn on_dial(&mut self, number: u64, flags: EpollFlags) {
        let Some(pair) = self.dialing.remove(&number) else { return };
        let Some((rule, begun, error)) = self.outcome(pair, number, flags) else { return };
        if let Some(error) = error {
            self.held.lock().waiting.remove(&pair);
            return self.refuse(pair, number, (rule, begun), &error);
        }
        if self.shared.stage.is_draining() {
            return self.let_go(pair, number);
        }
        let Some(syn) = self.table.on_connected(pair, number, Instant::now()) else { return };
        let way_back = self.gates.get(&rule).filter(|gate| gate.is_open);
        let tun = way_back.and_then(|gate| gate.tuns.get(self.holder));
        if tun.is_none_or(|tun| tun.write(syn).is_err()) {
            self.let_go(pair, number);
        }
    }

    /// The rule of a dial that has come to an end, when it began, and why it failed; none when its client has the leg
    /// already. The client may be accepted at once. A reset after the handshake is no failure: the client shall see
    /// both.
    fn outcome(
        &self,
        pair: Pair,
        number: u64,
        flags: EpollFlags,
    ) -> Option<(usize, Instant, Option<io::Error>)> {
        let mut legs = self.held.lock();
        let is_own = |waiting: &&mut Waiting| waiting.holder == self.holder && waiting.number == number;
        let waiting = legs.waiting.get_mut(&pair).filter(is_own)?;
        waiting.answered = true;
        let has_failed = flags.contains(EpollFlags::EPOLLERR);
        let error = if has_failed { waiting.socket.take_error().unwrap_or_else(Some) } else { None };
        waiting.was_reset = error.as_ref().is_some_and(leg::is_reset);
        Some((waiting.rule, waiting.begun, error.filter(|error| !leg::is_reset(error))))
    }

    /// Nobody will accept the client: it gets a connection of its own, once the server has forgotten the relay's.
    fn let_go(&mut self, pair: Pair, number: u64) {
        let waiting = self.held.lock().waiting.remove(&pair);
        // The reset goes first: closing sends none while another process is forked, which has the descriptors, too.
        waiting.iter().for_each(|waiting| leg::reset(&waiting.socket));
        if let Some(packet) = self.table.on_failed(pair, number) {
            self.forward(pair, &packet);
        }
    }

    /// The listeners are closed: legs whose clients have not come are reset, for their clients' packets go to the
    /// servers now.
    pub fn close(&mut self) {
        let Hold { held, table, holder, .. } = self;
        held.lock().waiting.retain(|pair, waiting| {
            let is_own = waiting.holder == *holder && waiting.answered;
            if is_own {
                leg::reset(&waiting.socket);
                table.forget(*pair);
            }
            !is_own
        });
    }

    /// The worker ends: servers that have not answered forget the handshakes.
    pub fn abandon(&self) {
        for (pair, waiting) in &self.held.lock().waiting {
            if waiting.holder == self.holder && !waiting.answered {
                self.shared.packets.abandon(&waiting.socket, *pair);
            }
        }
    }

    fn take_prepared(&mut self, rule: usize, ipv6: bool) -> Option<TcpStream> {
        let visit = self.visited.get_mut(&rule)?;
        let fits = std::mem::replace(&mut visit.ipv6, ipv6) == ipv6;
        visit.prepared.take().filter(|_| fits)
    }

    /// Whether some next SYN's dial would have to wait for its socket.
    pub fn is_unprepared(&self) -> bool {
        self.visited.values().any(|visit| visit.prepared.is_none())
    }

    /// Sockets for the next dials by gates in use. Without descriptors the next dial finds out.
    pub fn prepare(&mut self) {
        for (rule, visit) in self.visited.iter_mut().filter(|(_, visit)| visit.prepared.is_none()) {
            let Some(gate) = self.gates.get(rule) else { continue };
            visit.prepared = self.shared.packets.leg(&gate.way.server, true).outgoing(visit.ipv6).ok();
        }
    }

    /// Refuses the client as its server or the path refused the relay.
    fn refuse(&mut self, pair: Pair, number: u64, dial: (usize, Instant), error: &io::Error) {
        let Some(packet) = self.table.on_failed(pair, number) else { return };
        self.count_unserved(pair, dial);
        let Some(syn) = Syn::parse(&packet) else { return };
        let client = syn.client.ip();
        let why = match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => return self.send(&syn.reset(), client),
            Some(libc::ENETUNREACH) => Unreachable::Network,
            Some(libc::EHOSTUNREACH) => Unreachable::Host,
            Some(libc::EACCES | libc::EPERM) => Unreachable::Prohibited,
            // Nobody answered: neither does the relay.
            _ => return,
        };
        if let Some(from) = self.shared.packets.source_towards(client) {
            self.send(&syn.unreachable(why, &packet, from), client);
        }
    }

    /// Counts a client of a rule that was dialled for and not served.
    fn count_unserved(&self, pair: Pair, (rule, begun): (usize, Instant)) {
        if let Some(gate) = self.gates.get(&rule) {
            self.shared.journal.count_unserved(pair, &gate.way.rule, begun);
        }
    }

    /// Forgets those whose clients have come, and whose time is up.
    pub fn tidy(&mut self) {
        self.adopter.look();
        if self.table.len() == 0 && self.counted == 0 {
            return;
        }
        self.forget_taken();
        for (pair, number) in self.table.expire(Instant::now()) {
            let has_answered = self.end(pair, number);
            self.lost += u32::from(has_answered);
            if has_answered {
                let has_any = self.shared.admission.has_any(pair.0.ip());
                self.shared.bypass.note_unheard(pair, has_any);
            }
        }
        self.tidy_gone();
        if self.lost >= MANY_LOST {
            self.warn_lost();
        }
        self.count();
    }

    /// Ends legs whose clients' handshakes have ended (a reset came, perhaps before the handshake's last packet), or
    /// never began: nobody will be accepted, and their servers hear of it now.
    fn tidy_gone(&mut self) {
        for ((client, server), number) in self.table.missing() {
            if diag::has_nothing((server, client)) && self.table.on_gone((client, server), number) {
                let has_answered = self.end((client, server), number);
                self.lost += u32::from(has_answered);
            }
        }
    }

    /// Ends the leg of a dial for nobody; whether its server had answered.
    fn end(&mut self, pair: Pair, number: u64) -> bool {
        self.dialing.remove(&number);
        let Some(waiting) = self.held.lock().waiting.remove(&pair) else { return false };
        match waiting.answered {
            true => leg::reset(&waiting.socket),
            false => self.shared.packets.abandon(&waiting.socket, pair),
        }
        self.count_unserved(pair, (waiting.rule, waiting.begun));
        waiting.answered
    }

    /// Forgets handshakes whose clients have come.
    fn forget_taken(&mut self) {
        let taken = self.held.lock().taken.remove(&self.holder);
        for (pair, number) in taken.into_iter().flatten() {
            // Its server may not have answered yet.
            self.dialing.remove(&number);
            self.table.on_taken(pair);
            self.lost = 0;
        }
    }

    /// Scanners do not come either; but mostly a firewall drops handshakes on their way back.
    fn warn_lost(&self) {
        self.shared.journal.warn_once(Once::Lost, || {
            format!(
                "{MANY_LOST} clients in a row did not come when their servers had answered: perhaps a firewall drops what comes \
                 back by the interfaces lfh…, or by the relay's marks (see docs/guide/relay-beside-a-firewall.md)"
            )
        });
    }

    fn count(&mut self) {
        let before = std::mem::replace(&mut self.counted, self.table.len());
        self.held.count.fetch_add(self.counted.wrapping_sub(before), Ordering::AcqRel);
    }
}

/// Whether an error of a dial says something about the server or the path. Any other is the relay's own: it is short of
/// descriptors, memory or ports, may not have the client's port, or cannot make such a socket (its congestion control
/// has been unloaded).
fn is_answer(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNREFUSED | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EPERM)
    )
}
