//! New connections: accepting, and the leg to the server.
//!
//! Each listener keeps a prepared socket for the server's side, so that accepting a client never leaves one for whom
//! there is no descriptor. When there are no descriptors or no places, the listener is not watched until some
//! connection ends: clients wait in the kernel's queue.

use super::{LISTENERS, Token, Worker, loop_check::LoopCheck, relayed::Relayed};
use crate::{
    Ended, Error, LegPlan, Result,
    hold::{Held, Hold, Taken},
    legs::{
        Legs,
        leg::{self, Dialled},
        queue::{begin_clients_small, has_window},
    },
    listeners::{Clients, ListenerId, ListenerOrder, WorkerListener},
    logic::{
        Pair,
        accept_batch::{AcceptBatch, BATCH},
        connection::{Event, Side},
        dial_order::DialOrder,
    },
    observe::journal::Once,
    plan::{ConnectionPlan, destination},
    shared::Shared,
};
use longfat_host::socket;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Address of a client that does not say where it wants to go.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Events of one round that make a worker busy. A client that opens one connection after another brings two.
const BUSY_EVENTS: usize = 4;

/// After running out of something, when to look again although no connection has ended.
const RETRY: Duration = Duration::from_millis(100);

/// What moves a line of dials on.
type Happened =
    fn(&mut DialOrder<(IpAddr, SocketAddr), Token>, (IpAddr, SocketAddr), Token, Instant) -> Vec<Token>;

/// A listener and the socket prepared for its next connection's server.
pub(super) struct Listener {
    id: ListenerId,
    clients: Clients,
    socket: Arc<TcpListener>,
    /// Where it listens.
    address: io::Result<SocketAddr>,
    prepared: Option<TcpStream>,
    batch: AcceptBatch,
    /// Whether servers of its clients have IPv6 addresses.
    ipv6: bool,
    loop_check: LoopCheck,
}

impl Listener {
    pub fn new(plan: WorkerListener) -> Listener {
        let WorkerListener { id, listener: socket, clients } = plan;
        let address = socket.local_addr();
        let (batch, loop_check) = Default::default();
        let mut listener =
            Listener { id, socket, address, clients, prepared: None, batch, ipv6: false, loop_check };
        listener.ipv6 = listener.leads_to_ipv6();
        listener
    }

    fn is_ipv6(&self) -> bool {
        self.address.as_ref().is_ok_and(SocketAddr::is_ipv6)
    }

    fn leads_to_ipv6(&self) -> bool {
        let target = self.clients.targets().and_then(|targets| targets.first());
        target.map_or_else(|| self.is_ipv6(), SocketAddr::is_ipv6)
    }

    fn token(&self) -> u64 {
        LISTENERS + u64::from(self.id)
    }

    /// Whether its clients would be carried to itself. One that comes from this host may be what has gone round.
    fn leads_back(&mut self, client: &TcpStream, from: SocketAddr) -> bool {
        if !self.clients.are_suspect() {
            return false;
        }
        if client.local_addr().is_ok_and(|own| own.ip() == from.ip()) {
            self.loop_check.doubt();
        }
        self.loop_check.is_there(Instant::now(), || self.clients.lead_back())
    }
}

/// A client just accepted, and a socket for its server.
struct Accepted {
    /// Where the relay's own clients come in.
    listener: Option<SocketAddr>,
    client: TcpStream,
    address: SocketAddr,
    /// Where it wants to go.
    target: io::Result<SocketAddr>,
    server: TcpStream,
    held: Option<WasHeld>,
    clients: Clients,
    /// The server's address has come to be the listener's own.
    leads_back: bool,
}

/// A client's SYN was held: the server's leg stands, or is dialled.
struct WasHeld {
    /// By the worker of that index.
    holder: usize,
    /// The server has reset the leg, and no event will say so.
    was_reset: bool,
}

/// Whether the listeners are watched.
#[derive(Default)]
pub(super) struct Accepting {
    paused: Option<Pause>,
}

struct Pause {
    /// Connections that had ended when it began.
    ended: u64,
    since: Instant,
}

impl Worker<'_> {
    pub(super) fn open_listeners(&self) -> Result<()> {
        for listener in &self.listeners {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, listener.token());
            self.epoll.add(&*listener.socket, event).map_err(|errno| Error::io("watch a listener", errno))?;
        }
        Ok(())
    }

    /// Closes the listeners when the relay drains, opens them again when there may be room.
    pub(super) fn look_after_listeners(&mut self) {
        if !self.listeners.is_empty() && self.shared.stage.is_draining() {
            // Whoever has shaken hands already is served.
            let ids: Vec<_> = self.listeners.iter().map(|listener| listener.id).collect();
            ids.into_iter().for_each(|id| self.accept_some(id));
            self.listeners.clear();
            self.hold.iter_mut().for_each(Hold::close);
        }
        let ended = self.workers.ended();
        let may_resume = |pause: &Pause| pause.ended != ended || pause.since.elapsed() >= RETRY;
        if self.accepting.paused.as_ref().is_some_and(may_resume) {
            self.accepting.paused = None;
            self.workers.resume();
            self.watch_listeners(EpollFlags::EPOLLIN);
        }
    }

    /// Opens, changes and closes listeners as a reload wants it.
    pub(super) fn follow_orders(&mut self) {
        for order in self.workers.handles[self.index].take_orders() {
            match order {
                ListenerOrder::Open(plan) => {
                    self.limits.learn(&plan.clients);
                    self.open_listener(Listener::new(plan));
                }
                ListenerOrder::Change(id, clients) => {
                    self.limits.learn(&clients);
                    self.change_listener(id, clients);
                }
                ListenerOrder::Close(id) => {
                    // Whoever has shaken hands already is served.
                    self.accept_some(id);
                    self.listeners.retain(|listener| listener.id != id);
                }
            }
        }
    }

    fn open_listener(&mut self, listener: Listener) {
        let flags = if self.accepting.paused.is_some() { EpollFlags::empty() } else { EpollFlags::EPOLLIN };
        if self.epoll.add(&*listener.socket, EpollEvent::new(flags, listener.token())).is_ok() {
            self.listeners.push(listener);
        } else {
            self.shared.journal.warn("a new listener could not be watched: out of memory or watches");
        }
    }

    fn change_listener(&mut self, id: ListenerId, clients: Clients) {
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == id) else { return };
        let leg = self.shared.packets.leg(&clients.likely().client, clients.is_intercepted());
        if let Err(error) = leg.adopt(&*listener.socket, listener.is_ipv6()) {
            self.shared.journal.warn(&format!("change a listener's options: {error}"));
        }
        begin_clients_small(&listener.socket, clients.likely());
        listener.prepared = None;
        (listener.clients, listener.loop_check) = (clients, LoopCheck::default());
        listener.ipv6 = listener.leads_to_ipv6();
    }

    fn pause(&mut self) {
        if self.accepting.paused.is_none() {
            let ended = self.workers.ended();
            self.accepting.paused = Some(Pause { ended, since: Instant::now() });
            self.workers.pause();
            self.watch_listeners(EpollFlags::empty());
        }
    }

    fn watch_listeners(&self, flags: EpollFlags) {
        for listener in &self.listeners {
            // Cannot fail for a descriptor that was added.
            let _ = self.epoll.modify(&*listener.socket, &mut EpollEvent::new(flags, listener.token()));
        }
    }

    /// Somebody waits.
    pub(super) fn on_listener(&mut self, id: ListenerId) {
        let round = self.round;
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == id) else { return };
        let most = listener.batch.turn(round);
        self.accept(id, most);
    }

    /// Everybody who waits, up to a batch.
    fn accept_some(&mut self, id: ListenerId) {
        self.accept(id, BATCH);
    }

    fn accept(&mut self, id: ListenerId, most: usize) {
        for _ in 0..most {
            if !self.shared.admission.admit() {
                return self.pause();
            }
            match self.accept_one(id) {
                Ok(Some(accepted)) => self.begin(accepted),
                // Nobody is waiting, or whoever was has gone.
                Ok(None) => return self.shared.admission.unadmit(),
                Err(error) => {
                    self.shared.admission.unadmit();
                    self.shared.journal.warn_once(Once::NoSocket, || {
                        format!("clients wait, as no socket can be made for them or their servers: {error}")
                    });
                    return self.pause();
                }
            }
        }
    }

    /// A client and a socket for its server; none when no client waits. An error: out of descriptors or memory, or the
    /// socket cannot be what the plan says.
    fn accept_one(&mut self, id: ListenerId) -> io::Result<Option<Accepted>> {
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == id) else {
            return Ok(None);
        };
        let prepared = match listener.prepared.take() {
            Some(socket) => socket,
            None => prepare(self.shared, listener)?,
        };
        match leg::accept(&listener.socket) {
            Ok((client, address)) => {
                let target = target(&client, &listener.clients);
                let to = target.as_ref().ok();
                let held = to.and_then(|to| held_leg(&self.workers.held, (address, *to), &listener.clients));
                let (server, held) = match held {
                    Some(Taken { socket, holder, was_reset }) => {
                        listener.prepared = Some(prepared);
                        (socket, Some(WasHeld { holder, was_reset }))
                    }
                    None => (prepared, None),
                };
                let (clients, leads_back) = (listener.clients.clone(), listener.leads_back(&client, address));
                let is_own = !listener.clients.is_intercepted();
                let listener = listener.address.as_ref().ok().copied().filter(|_| is_own);
                Ok(Some(Accepted { client, address, target, server, held, clients, leads_back, listener }))
            }
            Err(error) => {
                listener.prepared = Some(prepared);
                match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Starts the leg to the server. A client that cannot be served is reset.
    fn begin(&mut self, accepted: Accepted) {
        let (number, begun) = (self.shared.journal.number(), self.now);
        let Accepted { client, address: client_address, target, server, held, clients, leads_back, listener } =
            accepted;
        let asked = target.as_ref().map_or(NOWHERE, |target| *target);
        let turn_away = |ended, rule: &str| {
            leg::close_with_reset(&client);
            self.shared.journal.tell_unserved(number, (client_address, asked), (rule, ended), begun);
            self.workers.count_ended(ended, [0, 0]);
        };
        let Ok(server_address) = target.and_then(|target| self.check_target(target, &clients)) else {
            return turn_away(Ended::ResetByClient, &clients.likely().rule);
        };
        let Some(plan) = clients.way_of(client_address, server_address).cloned() else {
            return turn_away(Ended::Refused, clients.rule_of(client_address, server_address));
        };
        if leads_back {
            self.shared.journal.warn_once(Once::Loop, || {
                format!("clients are reset, as {server_address} has come to be this host's, and the listener's own address")
            });
            return turn_away(Ended::Refused, &plan.rule);
        }
        if let Err(error) = self.fit(&client, &server, &clients, &plan) {
            self.shared.journal.warn_once(Once::NotFitted, || {
                format!(
                    "clients are reset, as their sockets cannot be what the rule '{}' says: {error}",
                    plan.rule
                )
            });
            return turn_away(Ended::Unreachable, &plan.rule);
        }
        if !self.shared.admission.take_place(client_address.ip()) {
            return turn_away(Ended::Refused, &plan.rule);
        }
        self.check_cc(&client, &plan.client, Side::Client);
        let legs = Legs::new(number, client, server, (client_address, server_address), plan);
        let connection = Relayed::new(legs, clients.targets().cloned(), listener, begun);
        let token = self.slots.insert(Box::new(connection));
        self.keep(token);
        self.workers.handles[self.index].carried.fetch_add(1, Ordering::Relaxed);
        match held {
            Some(held) => self.take_over(token, &held),
            None => {
                self.acknowledge_with_data(token);
                self.dial(token, DialOrder::on_arrival);
            }
        }
    }

    /// A busy worker saves a segment of the handshake. Otherwise the server shall be woken as early as can be: its
    /// program accepts while the relay reads the client's first bytes.
    fn acknowledge_with_data(&mut self, token: Token) {
        if self.events >= BUSY_EVENTS
            && let Some(connection) = self.slots.get_mut(token)
        {
            connection.owes_acknowledgement = true;
            leg::acknowledge_with_data(&connection.legs.server);
        }
    }

    /// The leg of a client whose SYN was held.
    fn take_over(&mut self, token: Token, held: &WasHeld) {
        match held.holder {
            holder if holder == self.index => self.keep_if(token, self.watch_again(token)),
            _ => self.watch_new(token),
        }
        if held.was_reset && self.slots.get(token).is_some() {
            self.on_connected(token);
            self.slots.get_mut(token).into_iter().for_each(|leg| leg.on(Event::Failed(Side::Server)));
            self.enqueue(token);
        }
    }

    /// Dials whose turn it is when this has happened to a connection.
    pub(super) fn dial(&mut self, token: Token, happened: Happened) {
        let Some(Relayed { legs, .. }) = self.slots.get(token) else { return };
        let pair = (legs.client_address.ip(), legs.server_address);
        happened(&mut self.order, pair, token, self.now).into_iter().for_each(|next| self.connect(next));
    }

    /// Dials for those who have waited long enough for others'.
    pub(super) fn dial_due(&mut self) {
        if self.order.is_still() {
            return;
        }
        self.order.due(Instant::now()).into_iter().for_each(|token| self.connect(token));
    }

    /// How long nobody has.
    pub(super) fn order_wait_ms(&self) -> u16 {
        let idle = if self.order.is_still() { None } else { self.order.idle(Instant::now()) };
        idle.map_or(u16::MAX, |idle| idle.as_micros().div_ceil(1000) as u16)
    }

    /// Whether some next client would have to wait for his server's socket.
    pub(super) fn is_unprepared(&self) -> bool {
        let lacks_dials = || self.hold.as_ref().is_some_and(Hold::is_unprepared);
        self.accepting.paused.is_none()
            && (self.listeners.iter().any(|listener| listener.prepared.is_none()) || lacks_dials())
    }

    /// Nothing else is to be done: sockets for the next clients' servers.
    pub(super) fn prepare_listeners(&mut self) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.prepared.is_none()) {
            // Without descriptors the next client waits, which his accepting finds out.
            listener.prepared = prepare(self.shared, listener).ok();
        }
        if let Some(hold) = &mut self.hold {
            hold.prepare();
        }
    }

    /// Gives both sockets the options of a way that is not the one they were prepared for.
    fn fit(
        &self,
        client: &TcpStream,
        server: &TcpStream,
        clients: &Clients,
        plan: &ConnectionPlan,
    ) -> Result<()> {
        let prepared = clients.likely();
        let leg = |plan| self.shared.packets.leg(plan, clients.is_intercepted());
        let is_ipv6 = |address: io::Result<SocketAddr>| address.is_ok_and(|address| address.is_ipv6());
        if plan.client != prepared.client || has_window(plan) != has_window(prepared) {
            leg(&plan.client).adopt(client, is_ipv6(client.local_addr()))?;
        }
        if plan.server != prepared.server {
            leg(&plan.server).adopt(server, is_ipv6(server.local_addr()))?;
        }
        Ok(())
    }

    /// Somebody may have connected to a transparent listener itself: there is no server behind it but the relay. Of the
    /// addresses that a client asks for, some would be this host to the relay's own sockets.
    fn check_target(&self, target: SocketAddr, clients: &Clients) -> io::Result<SocketAddr> {
        match clients.targets() {
            None if !destination::is_taken(target.ip()) => Err(io::ErrorKind::AddrNotAvailable.into()),
            _ => Ok(target),
        }
    }

    /// Dials, and watches both sockets; tries the server's next address when that fails at once.
    pub(super) fn connect(&mut self, token: Token) {
        let Some(connection) = self.slots.get(token) else { return };
        let (server, to) = (&connection.legs.server, connection.legs.server_address);
        let pair = (connection.legs.client_address, to);
        let is_intercepted = connection.targets.is_none();
        let started = match is_intercepted {
            true => leg::bind_as(server, pair.0)
                .and_then(|()| leg::connect_behind(self.busy.has(&pair), server, pair)),
            false => leg::start_connect(server, to),
        };
        match started {
            Ok(Dialled::UnderWay) => self.watch_new(token),
            Ok(Dialled::PairBusy) if is_intercepted => self.busy.push(pair, token, Instant::now()),
            Ok(Dialled::PairBusy) | Err(_) => self.on_unreachable(token),
        }
    }

    /// Milliseconds until a dial whose pair is busy may be tried again.
    pub(super) fn busy_wait_ms(&self) -> u16 {
        let now = self.now;
        self.busy.wait_ms(now).min(self.hold.as_ref().map_or(u16::MAX, |hold| hold.wait_ms(now)))
    }

    /// Dials for those whose clients' last connections have ended.
    pub(super) fn dial_freed(&mut self) {
        if self.busy.is_empty() {
            return;
        }
        let now = Instant::now();
        for turn in self.busy.due(now) {
            let (token, pair) = (turn.dial, turn.pair);
            let Some(connection) = self.slots.get(token) else { continue };
            match leg::connect_as(&connection.legs.server, pair) {
                Ok(Dialled::UnderWay) => {
                    // The server has its time from now on.
                    self.slots.get_mut(token).into_iter().for_each(|connection| connection.moved = now);
                    self.watch_new(token);
                }
                Ok(Dialled::PairBusy) if !turn.is_hopeless(now) => self.busy.back(turn, now),
                Ok(Dialled::PairBusy) => {
                    self.shared.journal.warn_pair_busy(pair);
                    self.on_unreachable(token);
                }
                Err(_) => self.on_unreachable(token),
            }
        }
    }

    pub(super) fn watch_new(&mut self, token: Token) {
        self.expect_answer(token);
        self.keep_if(token, self.watch(token));
    }

    pub(super) fn keep_if(&mut self, token: Token, watched: nix::Result<()>) {
        if watched.is_err() {
            self.abandon(token);
        }
    }

    /// The leg to the server stands.
    pub(super) fn on_connected(&mut self, token: Token) {
        // One that owes its acknowledgement stands at the server, and before the next, when that has left.
        if self.slots.get(token).is_some_and(|connection| !connection.owes_acknowledgement) {
            self.dial(token, DialOrder::on_outcome);
        }
        let Some(connection) = self.slots.get_mut(token) else { return };
        connection.on(Event::Connected);
        // A reset of the client's has its time for what is to be delivered now.
        connection.deadline = None;
        let legs = Arc::clone(&connection.legs);
        self.workers.stand(&legs);
        self.check_cc(&legs.server, &legs.plan.server, Side::Server);
        self.bound_new(token);
    }

    /// Tries the server's next address, or gives up.
    pub(super) fn on_unreachable(&mut self, token: Token) {
        self.dial(token, DialOrder::on_outcome);
        let Some(connection) = self.slots.get_mut(token) else { return };
        let targets = connection.targets.as_deref().unwrap_or_default();
        let next = targets.get(targets.len() - connection.untried.min(targets.len())).copied();
        if let Some(address) = next
            && let Ok(socket) =
                self.shared.packets.leg(&connection.legs.plan.server, false).outgoing(address.is_ipv6())
            && let Some(legs) = Arc::get_mut(&mut connection.legs)
        {
            connection.untried -= 1;
            connection.moved = Instant::now();
            let _ = self.epoll.delete(&legs.client);
            legs.server = socket;
            legs.server_address = address;
            self.keep(token);
            return self.connect(token);
        }
        connection.on(Event::Failed(Side::Server));
        self.end(token);
    }

    /// Reads the congestion control back: a route's `congctl` overrides what the listener says.
    pub(super) fn check_cc(&self, socket: &TcpStream, plan: &LegPlan, side: Side) {
        let Some(wanted) = &plan.cc else { return };
        let Ok(found) = socket::cc(socket) else { return };
        if found == *wanted {
            return;
        }
        let mended = socket::set_cc(socket, wanted).is_ok();
        self.shared.journal.warn_once(Once::CcOverridden, || {
            let outcome = if mended { "was changed after the handshake" } else { "could not be changed" };
            format!(
                "a connection towards the {side:?} began with congestion control '{found}' instead of '{wanted}' and \
                 {outcome}: a route's 'congctl' overrides the choice (see 'ip route')"
            )
        });
    }
}

/// The leg that stands for a client whose SYN was held (perhaps by a rule that accepts early since a reload).
fn held_leg(held: &Held, (client, server): Pair, clients: &Clients) -> Option<Taken> {
    let may_be_held = clients.is_intercepted() && held.count() > 0;
    if may_be_held { held.take(client, server) } else { None }
}

/// Where a client wants to go.
fn target(client: &TcpStream, clients: &Clients) -> io::Result<SocketAddr> {
    match clients.targets().and_then(|targets| targets.first()) {
        Some(first) => Ok(*first),
        None => client.local_addr(),
    }
}

fn prepare(shared: &Shared, listener: &Listener) -> io::Result<TcpStream> {
    let leg = &listener.clients.likely().server;
    shared.packets.leg(leg, listener.clients.is_intercepted()).outgoing(listener.ipv6)
}
