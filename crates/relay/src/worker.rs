//! A worker: one thread, one epoll instance, its share of the connections.
//!
//! Events only set flags and put the connection into a queue; then every queued connection gets one turn of bounded
//! length, round robin. So a connection with much to move cannot keep the others waiting, and a socket is never
//! closed while events fetched for it are still being looked at.

mod accept;
mod arrival;
mod arrive;
mod awake;
mod balance;
mod gathering;
mod insert;
mod limits;
mod loop_check;
mod move_in;
mod move_out;
mod one_way;
mod pause;
mod relayed;
mod release;
mod slots;
mod standstill;
mod workers;

use crate::{
    Error, Result,
    hold::{self, Hold},
    legs::{buffer::Pool, leg},
    listeners::{ListenerId, WorkerListener},
    logic::{
        Pair,
        busy_pairs::BusyPairs,
        connection::{Direction, Ending, Event, Side},
        dial_order::DialOrder,
        plain,
    },
    observe::{
        observer::{ConnectionSummary, Ended},
        sampling,
    },
    shared::Shared,
};
use accept::Listener;
use longfat_host::socket;
pub(crate) use move_in::Landing;
pub(crate) use move_out::{Departing, Given, Wanted};
use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};
use relayed::Relayed;
use slots::{Slots, Token};
pub(crate) use standstill::Phase;
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Instant,
};
pub(crate) use workers::Workers;

/// Longest wait: how late a worker may notice that it shall stop.
const IDLE_WAIT_MS: u16 = 50;
/// How often a reset that waits for acknowledgements looks for them.
const SETTLE_WAIT_MS: u16 = 1;
const EVENTS: usize = 256;
/// What is reported of a connection's sockets.
const WATCHED: EpollFlags = EpollFlags::EPOLLIN
    .union(EpollFlags::EPOLLRDHUP)
    .union(EpollFlags::EPOLLPRI)
    .union(EpollFlags::EPOLLOUT)
    .union(EpollFlags::EPOLLET);
const WAKE: u64 = u64::MAX;
/// Tokens of listeners: this and above, below [`WAKE`].
const LISTENERS: u64 = u64::MAX - (1 << 32);

pub(crate) struct Worker<'a> {
    index: usize,
    workers: &'a Workers<'a>,
    shared: &'a Shared<'a>,
    epoll: Epoll,
    listeners: Vec<Listener>,
    accepting: accept::Accepting,
    /// SYNs that are held, when the relay may intercept.
    hold: Option<Hold<'a>>,
    slots: Slots,
    /// Order of dials, by the client's address and its server.
    order: DialOrder<(IpAddr, SocketAddr), Token>,
    /// Dials that wait for the end of their clients' last connections.
    busy: BusyPairs<Token>,
    /// Intercepted clients' dials, and when to look whether their servers have answered.
    unanswered: VecDeque<(Instant, Token)>,
    ready: VecDeque<Token>,
    settling: Vec<Token>,
    /// Clients that were reset before their server's leg stood, in the order of their deadlines.
    parting: VecDeque<Token>,
    pool: Pool<'a>,
    balanced: Instant,
    limits: limits::Look,
    leaving: release::Leaving,
    pausing: pause::Pausing,
    /// Connections that have come from another router.
    unheard: Vec<move_in::Unheard>,
    /// Whether it waits awake for a moment before it sleeps.
    awake: awake::Awake,
    /// Connections whose bulk data gather.
    gathering: Vec<Token>,
    /// Rounds of its loop.
    round: u64,
    /// Events that this round began with.
    events: usize,
    /// When this round began: what is measured in milliseconds or more asks no clock again.
    now: Instant,
}

impl<'a> Worker<'a> {
    /// One that nobody comes to yet.
    pub fn new(index: usize, workers: &'a Workers<'a>) -> Result<Worker<'a>> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|errno| Error::io("make an epoll", errno))?;
        let shared = &workers.shared;
        let worker = Worker {
            index,
            workers,
            shared,
            epoll,
            listeners: Vec::new(),
            accepting: accept::Accepting::default(),
            hold: None,
            slots: Slots::default(),
            order: DialOrder::new(),
            busy: BusyPairs::default(),
            unanswered: VecDeque::new(),
            ready: VecDeque::new(),
            settling: Vec::new(),
            parting: VecDeque::new(),
            pool: Pool::new(&workers.budget, &workers.keeping),
            balanced: Instant::now(),
            limits: limits::Look::new(shared.plan, Instant::now()),
            leaving: release::Leaving::new(Instant::now()),
            pausing: pause::Pausing::new(Instant::now()),
            unheard: Vec::new(),
            awake: awake::Awake::default(),
            gathering: Vec::new(),
            round: 0,
            events: 0,
            now: Instant::now(),
        };
        let wake = EpollEvent::new(EpollFlags::EPOLLIN, WAKE);
        let added = worker.epoll.add(&workers.handles[index].wake, wake);
        added.map_err(|errno| Error::io("watch a wake-up descriptor", errno))?;
        Ok(worker)
    }

    /// Gives it what new connections come by.
    pub fn open(&mut self, listeners: Vec<WorkerListener>, hold: Option<Hold<'a>>) -> Result<()> {
        self.listeners = listeners.into_iter().map(Listener::new).collect();
        self.hold = hold;
        self.open_listeners()?;
        self.look_after_held()
    }

    /// Carries what was brought, until it is enough: what else belongs to the relay is not there yet. `has_all` is
    /// dropped when everything was taken in.
    pub fn carry(&mut self, is_enough: &AtomicBool, has_all: Sender<()>) -> Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        self.take_arrivals_by_turns(&mut events)?;
        drop(has_all);
        while !is_enough.load(Ordering::Acquire) {
            self.go_round(&mut events)?;
        }
        Ok(())
    }

    /// Works until the relay drains and no connection is left anywhere.
    pub fn run(mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        self.take_arrivals();
        while !self.is_done() {
            if self.workers.standstill.is_wanted() && self.stand_still() {
                return Ok(());
            }
            self.go_round(&mut events)?;
        }
        self.hold.iter().for_each(Hold::abandon);
        Ok(())
    }

    fn go_round(&mut self, events: &mut [EpollEvent]) -> Result<()> {
        let count = self.wait(events)?;
        self.round += 1;
        self.events = count;
        self.now = Instant::now();
        // Of one port, a client who is there came before the next SYN.
        let listeners_first = [true, false].into_iter().flat_map(|listeners| {
            events[..count].iter().filter(move |event| (event.data() >= LISTENERS) == listeners)
        });
        for event in listeners_first {
            self.dispatch(event.data(), event.events());
        }
        self.begin_inserted();
        self.workers.handles[self.index].rounds.fetch_add(1, Ordering::Relaxed);
        self.look_after_listeners();
        if let Err(error) = self.look_after_held() {
            self.shared.journal.warn(&format!("{error}: clients of a new rule may wait in vain"));
        }
        self.dial_due();
        self.dial_freed();
        self.flush_gathered();
        self.run_ready();
        self.run_settling();
        self.run_parting();
        self.release_inserted();
        self.release_paused();
        self.ask_unheard();
        self.expire();
        self.balance();
        self.look_at_limits();
        self.look_for_answers();
        Ok(())
    }

    /// Follows new gates, and forgets handshakes that are held no more.
    fn look_after_held(&mut self) -> Result<()> {
        self.with_hold(|hold, round| {
            hold.tidy();
            hold.dial_freed(round);
            hold.follow(round.epoll)
        })
        .unwrap_or(Ok(()))
    }

    /// Works on held SYNs. For a client that is there already, connections of its pair came earlier: one whose SYN was
    /// not held left again before its server was dialled.
    fn with_hold<T>(&mut self, work: impl FnOnce(&mut Hold<'a>, &hold::Round<'_>) -> T) -> Option<T> {
        let Worker { hold, busy, order, epoll, round, .. } = self;
        let is_behind = |pair: &Pair| busy.has(pair) || order.has_waiting((pair.0.ip(), pair.1));
        let round = hold::Round { epoll, number: *round, is_behind: &is_behind };
        hold.as_mut().map(|hold| work(hold, &round))
    }

    /// A connection may still be on its way here from another worker, so all of them count; after the drain time
    /// only what is here does.
    fn is_done(&self) -> bool {
        let none_left = || self.shared.admission.live() == 0;
        let none_here = || self.shared.stage.is_expired() && self.slots.tokens().is_empty();
        self.listeners.is_empty() && self.shared.stage.is_draining() && (none_left() || none_here())
    }

    fn wait(&mut self, events: &mut [EpollEvent]) -> Result<usize> {
        let timeout = match (self.ready.is_empty(), self.settling.is_empty()) {
            (false, _) => 0,
            (true, false) => SETTLE_WAIT_MS,
            (true, true) => {
                let dials = self.order_wait_ms().min(self.busy_wait_ms());
                self.gathering_wait_ms()
                    .min(dials)
                    .min(self.leaving_wait_ms())
                    .min(self.pausing_wait_ms())
                    .min(IDLE_WAIT_MS)
            }
        };
        if timeout > 0 && self.is_unprepared() {
            match self.poll(events, 0)? {
                0 => self.prepare_listeners(),
                count => return Ok(count),
            }
        }
        let count = if timeout > 0 { self.wait_awake(events)? } else { 0 };
        if count > 0 { Ok(count) } else { self.poll(events, timeout) }
    }

    fn poll(&self, events: &mut [EpollEvent], timeout: u16) -> Result<usize> {
        match self.epoll.wait(events, EpollTimeout::from(timeout)) {
            Ok(count) => Ok(count),
            Err(Errno::EINTR) => Ok(0),
            Err(errno) => Err(Error::io("wait for events", errno)),
        }
    }

    fn dispatch(&mut self, data: u64, flags: EpollFlags) {
        match data {
            WAKE => {
                self.collect_inbox();
                self.follow_orders();
                self.give_wanted();
            }
            LISTENERS.. => self.on_listener((data - LISTENERS) as ListenerId),
            hold::TOKENS.. => {
                self.with_hold(|hold, round| hold.on_event(data, flags, round));
            }
            _ => self.dispatch_connection(Token::from(data), Token::side(data), flags),
        }
    }

    fn dispatch_connection(&mut self, token: Token, side: Side, flags: EpollFlags) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        // What hung up without an error (EPOLLHUP alone) has ended both ways.
        let error = if flags.contains(EpollFlags::EPOLLERR) {
            connection.legs.leg(side).take_error().ok().flatten()
        } else {
            None
        };
        if connection.logic.is_connecting() && side == Side::Server {
            // A reset comes after the handshake, perhaps after data.
            let stood = error.as_ref().is_none_or(leg::is_reset);
            match (stood, flags.contains(EpollFlags::EPOLLOUT)) {
                (true, true) => {
                    self.on_connected(token);
                    // Whoever takes it over is told anew of what is there, but not of an error that was taken.
                    if error.is_none() && self.share(token) {
                        return;
                    }
                }
                (true, false) => {}
                (false, _) => return self.on_unreachable(token),
            }
        }
        // The event of the handshake may bring the server's first bytes, or its reset, too: no other will.
        let Some(connection) = self.slots.get_mut(token) else { return };
        if let Some(error) = error {
            if leg::is_reset_after_fin(&error) {
                connection.on(Event::FinishedBefore(side));
            }
            connection.on(Event::Failed(side));
        }
        // A mark is there before its byte can be read, and moves what gathers before it.
        let end_or_mark = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLPRI;
        if flags.intersects(EpollFlags::EPOLLIN | end_or_mark) {
            connection.on_readable(side, flags);
        }
        if flags.intersects(EpollFlags::EPOLLOUT | EpollFlags::EPOLLHUP) {
            connection.on(Event::Writable(side));
        }
        self.enqueue(token);
    }

    fn enqueue(&mut self, token: Token) {
        if let Some(connection) = self.slots.get_mut(token)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(token);
        }
    }

    /// One turn for each connection that is in the queue now.
    fn run_ready(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(token) = self.ready.pop_front() else { break };
            let Some(connection) = self.slots.get_mut(token) else { continue };
            connection.queued = false;
            let turn = connection.turn(&mut self.pool, self.now);
            if connection.is_worth_a_look(turn.read_bytes) {
                self.workers.queues.watch(&connection.legs);
            }
            self.gather(token, &turn);
            self.watch_anew(token);
            if turn.completes_handshake {
                self.dial(token, DialOrder::on_outcome);
            }
            if turn.more {
                self.enqueue(token);
            }
            self.look_at_ending(token);
        }
    }

    /// Whatever a turn has left: sockets from which other events are wanted than before, or the same once more.
    fn watch_anew(&mut self, token: Token) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        for side in connection.take_unarmed() {
            let mut event = event_of(connection, token, side);
            // Cannot fail for a descriptor that was added.
            let _ = self.epoll.modify(connection.legs.leg(side), &mut event);
        }
    }

    /// Ends the connection, or starts the clock of a reset that is being passed on.
    fn look_at_ending(&mut self, token: Token) {
        let Some(connection) = self.slots.get_mut(token) else { return };
        match connection.logic.ending() {
            Some(Ending::Close | Ending::Reset) => self.end(token),
            Some(Ending::Settle(side)) if leg::unacked_bytes(connection.legs.leg(side)) == 0 => {
                connection.on(Event::Settled);
                self.end(token);
            }
            _ if connection.logic.is_client_gone() && connection.deadline.is_none() => {
                connection.deadline = Some(Instant::now() + self.shared.plan.reset_wait);
                self.parting.push_back(token);
            }
            _ if connection.logic.resetting().is_some() && connection.deadline.is_none() => {
                connection.deadline = Some(Instant::now() + self.shared.plan.reset_wait);
                self.settling.push(token);
            }
            _ => {}
        }
    }

    fn run_settling(&mut self) {
        let now = self.now;
        for token in std::mem::take(&mut self.settling) {
            let Some(connection) = self.slots.get_mut(token) else { continue };
            if connection.deadline.is_some_and(|deadline| now >= deadline) {
                connection.on(Event::Expired);
            }
            self.look_at_ending(token);
            if self.slots.get_mut(token).is_some() {
                self.settling.push(token);
            }
        }
    }

    /// Gives up dialling for clients that were reset, when their server takes too long.
    fn run_parting(&mut self) {
        while let Some(token) = self.parting.front().copied() {
            let gone = self.slots.get_mut(token).filter(|connection| connection.logic.is_client_gone());
            if let Some(connection) = gone {
                if connection.deadline.is_some_and(|deadline| Instant::now() < deadline) {
                    return;
                }
                connection.on(Event::Expired);
                self.end(token);
            }
            self.parting.pop_front();
        }
    }

    /// After the drain time, ends whatever lives.
    fn expire(&mut self) {
        if !self.shared.stage.is_expired() {
            return;
        }
        for token in self.slots.tokens() {
            self.release_last(token);
            if let Some(connection) = self.slots.get_mut(token) {
                connection.ended = Ended::Stopped;
                connection.on(Event::Expired);
            }
            self.end(token);
        }
    }

    fn end(&mut self, token: Token) {
        let Some(mut connection) = self.slots.remove(token) else { return };
        self.forget_gathering(token);
        self.workers.handles[self.index].carried.fetch_sub(1, Ordering::Relaxed);
        // What was marked last is counted, too, as is how long its legs were idle, where anybody may ask.
        self.workers.queues.end(&connection.legs);
        if self.shared.plan.metrics.is_some() {
            connection.legs.settle();
        }
        self.shared.journal.registry.finish(&connection.legs, connection.ended);
        if self.shared.plan.sample_every.is_some() {
            sampling::sample_last(&connection.legs, &self.shared.plan.name, self.shared.journal.observer);
        }
        if self.shared.journal.observer.wants_summaries() {
            self.shared.journal.observer.closed(&summary(&connection));
        }
        // Any other end is a reset, which is what closing a leg does by itself.
        let is_orderly = connection.logic.ending() == Some(Ending::Close);
        if is_orderly {
            leg::close_with_fin(&connection.legs.client);
            leg::close_with_fin(&connection.legs.server);
            Self::forget_inserted(&connection);
        }
        self.leave(&connection);
        if connection.legs.is_inserted {
            let pair = (connection.legs.client_address, connection.legs.server_address);
            self.workers.held.adopting.watcher.acks.end(pair);
        }
        if connection.ended != Ended::Finished && connection.targets.is_none() {
            let pair = (connection.legs.client_address, connection.legs.server_address);
            self.shared.packets.abandon(&connection.legs.server, pair);
        }
        self.keep_no_more(&connection, is_orderly);
        connection.discard_buffers(&mut self.pool);
        let bytes = Direction::BOTH.map(|direction| connection.legs.relayed(direction));
        let ended = connection.ended;
        self.shared.admission.give_place_back(connection.legs.client_address.ip());
        drop(connection);
        self.awake.on_end();
        self.workers.count_ended(ended, bytes);
    }

    /// Watches both sockets. Edge-triggered: what is there already is reported at once.
    fn watch(&self, token: Token) -> nix::Result<()> {
        self.watch_side(token, Side::Client)?;
        self.watch_side(token, Side::Server)
    }

    fn watch_side(&self, token: Token, side: Side) -> nix::Result<()> {
        let Some(connection) = self.slots.get(token) else { return Ok(()) };
        let (leg, mut event) = (connection.legs.leg(side), event_of(connection, token, side));
        match self.epoll.add(leg, event) {
            // A server's leg that this worker dialled while it held the client's SYN, and that comes back from another
            // one, which accepted the client.
            Err(Errno::EEXIST) => self.epoll.modify(leg, &mut event),
            outcome => outcome,
        }
    }

    /// As [`Worker::watch`], where the server's leg was watched for its handshake.
    fn watch_again(&self, token: Token) -> nix::Result<()> {
        self.watch_side(token, Side::Client)?;
        let Some(connection) = self.slots.get(token) else { return Ok(()) };
        let mut event = event_of(connection, token, Side::Server);
        self.epoll.modify(connection.legs.leg(Side::Server), &mut event)
    }
}

/// What is to be reported of one side.
fn event_of(connection: &Relayed, token: Token, side: Side) -> EpollEvent {
    let watched = if connection.tells_of_data(side) { WATCHED } else { WATCHED & !EpollFlags::EPOLLIN };
    EpollEvent::new(watched, token.data(side))
}

fn summary(connection: &Relayed) -> ConnectionSummary {
    let legs = &connection.legs;
    let cc = |side| socket::cc(legs.leg(side)).unwrap_or_default();
    let retransmitted = |side| {
        let info = socket::tcp_info(legs.leg(side));
        info.map_or(0, |info| u64::from(info.total_retrans_segments))
    };
    ConnectionSummary {
        connection: legs.number,
        client: plain(legs.client_address),
        server: plain(legs.server_address),
        rule: legs.plan.rule.clone(),
        ended: connection.ended,
        duration_us: connection.started.elapsed().as_micros() as u64,
        client_to_server_bytes: legs.relayed(Direction::ClientToServer),
        server_to_client_bytes: legs.relayed(Direction::ServerToClient),
        cc_client: cc(Side::Client),
        cc_server: cc(Side::Server),
        retransmitted_segments_client: retransmitted(Side::Client),
        retransmitted_segments_server: retransmitted(Side::Server),
    }
}
