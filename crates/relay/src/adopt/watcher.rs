//! Connections that the kernel watches until they are worth stepping into, and those whose packets are led here
//! meanwhile: what the workers share.
//!
//! A program at tc counts what passes, and tells of a connection when it has come so far. From then on its packets,
//! both ends', come to one worker's interface: they go on from there, and [`super::midstream`] looks at them. When
//! sockets have been put in between, or the connection stays end to end, packets go their ways directly again. Resets
//! alone are still led here for a moment: one that overtook data in the interface would have a number that nobody
//! expects yet, and be lost.

use super::{
    acknowledging::Acks,
    handshake::{Agreement, Between, Offer, Reason},
    interfaces,
    midstream::{InPath, Pool, Verdict},
    segment::Segment,
    table::Pair,
};
use crate::{
    Error, Result,
    keeping::{Keeping, record::Holding},
    legs::diag,
    logic::adopted::AdoptedStatus,
    moving::message::Stay,
    plan::{Acknowledge, ConnectionPlan, RelayPlan},
};
use longfat_host::{monotonic_us, support::Missing};
use longfat_kernel::{
    alike::Alike,
    watch::{self, Lead, Orders, SeenOffer, Watched, Watching},
};
use nix::net::if_::if_indextoname;
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Connections whose packets are led here at a time; more wait.
const MOST_IN_PATH: usize = 64;
/// Bytes of these that are copied at a time, at most.
const MOST_COPIED_BYTES: usize = 128 << 20;
/// Connections that wait at most.
const MOST_WAITING: usize = 4096;
/// How long the interface may take to become empty, so that no packet overtakes another. What fills it faster than it
/// is read would be led here for good otherwise.
const ORDERLY: Duration = Duration::from_millis(20);
/// How long resets are led here when nothing else is.
const RESETS: Duration = Duration::from_millis(100);
/// Packets of a connection that has moved to another router are dropped for so long: by then routes have followed it.
const LEFT: Duration = Duration::from_secs(600);
/// How long a connection is remembered after that.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// What is to be done with a packet that was led here.
#[derive(Debug)]
pub(crate) enum Step {
    /// The packet goes on to its end.
    Send,
    /// The packet is for the socket that its connection has.
    Deliver,
    /// The packet is for its connection's socket, and what it says of its end's clock is wanted.
    Hear,
    /// The packet goes on, and then sockets are put in between.
    Adopt(Box<Adoption>),
    /// The packet goes on, and its connection stays end to end.
    Pass(Reason),
}

/// A connection into which sockets can be put now.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub pair: Pair,
    pub between: Between,
    pub plan: Arc<ConnectionPlan>,
    /// What made it worth it.
    pub known: AdoptedStatus,
}

/// A connection that is worth it, whose packets are led here.
#[derive(Debug)]
struct Candidate {
    path: InPath,
    plan: Arc<ConnectionPlan>,
    known: AdoptedStatus,
}

#[derive(Debug)]
enum Stage {
    InPath(Box<Candidate>),
    /// The relay is about to leave it: what is led here is for its sockets.
    Leaving,
    /// The decision is made; packets from before it may still be in the interface.
    Behind(Kind, Instant),
    /// Nothing but resets is led here.
    Resets(Kind, Instant),
    /// Nothing is. A packet that comes all the same must not take the other way.
    Gone(Kind, Instant),
}

/// What came of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Adopted,
    Passed,
    /// The relay has left it, and watches it on.
    Released,
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    interface: u32,
    holder: usize,
    /// While it has sockets here it is followed at tc, for it may be left in a pause.
    may_pause: bool,
}

/// Which connections are meant, as the plan is now.
#[derive(Debug)]
pub(crate) struct Meant {
    pub plan: Arc<RelayPlan>,
    /// Indexes of the workers' interfaces.
    pub interfaces: Vec<u32>,
    /// Mark of packets of connections that are only watched.
    pub pass_mark: Option<u32>,
    /// Whether there are ways to sockets. Until then there are none, and nothing is led here.
    pub is_routed: bool,
}

impl Meant {
    fn orders(&self) -> Orders {
        let way = self.plan.watching_ways().next().map(|(_, way)| way);
        Orders {
            after: way.map(|way| way.adopt).unwrap_or_default(),
            leads_any: self.plan.inserts_at_once(),
            pass_mark: self.pass_mark,
            has_sockets: self.is_routed,
            drops: false,
            hold: self.plan.moves.as_ref().and_then(|moves| moves.hold),
            epoch: 0,
        }
    }
}

#[derive(Debug)]
struct State {
    meant: Option<Meant>,
    /// Whether the plan has any of these.
    watches: bool,
    /// Nothing is watched before this relay has what another one leaves to it, nor after it has left.
    is_on: bool,
    epoch: u32,
    copied: Arc<Pool>,
    /// By the client and the server.
    entries: HashMap<Pair, Entry>,
    /// Connections decided about while packets from before may be in the interface, by the worker.
    behind: HashMap<usize, Vec<Pair>>,
    waiting: VecDeque<(SocketAddr, SocketAddr)>,
    turn: usize,
    /// Connections into which sockets are put right after their handshakes, by the worker.
    led: HashMap<usize, Led>,
    /// Packets of some connections are dropped, as another router has them: of those that have left since then.
    drops: bool,
    left: VecDeque<(Instant, Pair)>,
}

/// Connections whose packets are led here by the tc program, also when a socket is there.
#[derive(Debug, Default)]
struct Led {
    /// All of them, as long as some may still be in the interface, and not for long.
    all: Vec<(Instant, Pair)>,
    /// Resets alone.
    resets: VecDeque<(Instant, Pair)>,
}

impl Default for State {
    fn default() -> State {
        let (meant, entries, behind, waiting, turn, led) = Default::default();
        let (drops, left, copied) = (false, VecDeque::new(), Arc::new(Pool::new(MOST_COPIED_BYTES)));
        // Another than that of any relay before it, whose maps it may have.
        let (watches, is_on, epoch) = (false, false, monotonic_us() as u32);
        State { meant, watches, is_on, epoch, copied, entries, behind, waiting, turn, led, drops, left }
    }
}

/// Watcher of a relay that has, or had, a rule that adopts in mid-stream.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    watching: OnceLock<Watching>,
    /// What another relay knew.
    known: Mutex<Option<[OwnedFd; 2]>>,
    kept: OnceLock<u64>,
    state: Mutex<State>,
    /// Entries there are: without any, packets are not looked up.
    count: AtomicUsize,
    /// Whether there are some in [`Led::all`].
    leads_all: AtomicBool,
    /// Whether there are some in [`State::behind`].
    has_behind: AtomicBool,
    /// Nothing is held for rules that step in right after handshakes.
    only_watches: AtomicBool,
    wants_routes: AtomicBool,
    /// Connections that may be left in a pause have come about, or have come.
    may_leave: AtomicBool,
    adopted: AtomicU64,
    released: AtomicU64,
    /// Connections of rules that acknowledge end to end.
    pub acks: Acks,
}

/// What this host lacks for a relay that begins with such rules.
pub(crate) fn missing(plan: &RelayPlan) -> Vec<Missing> {
    let acknowledges = plan.acknowledges_end_to_end();
    if plan.watching_ways().next().is_none() && plan.moves.is_none() && !acknowledges {
        return Vec::new();
    }
    let way_out = match plan.moves.is_some() {
        true => "leave '[move]' out",
        false if acknowledges => "leave 'acknowledge' out",
        false => "leave 'adopt_after' and its like out",
    };
    let with_way_out = |missing: Missing| {
        let mend = format!("{}; or {way_out}", missing.mend);
        Missing::new(missing.what, missing.why, mend)
    };
    watch::missing().into_iter().map(with_way_out).collect()
}

/// A look of a worker's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub holder: usize,
    pub now: Instant,
    /// Nothing was left in its interface when it read from it last.
    pub is_empty: bool,
    pub is_draining: bool,
}

impl Watcher {
    /// Begins to watch, if a rule asks for it and nothing watches yet: that takes rights which a relay gives up when it
    /// has started. Rules that step in right after handshakes do without where the kernel has no such programs.
    ///
    /// It knows what a relay before it knew of connections, if that left it something.
    pub fn prepare(&self, plan: &RelayPlan, alike: Option<&Alike>) -> Result<()> {
        self.acks.prepare(plan)?;
        if self.watching.get().is_some() {
            return Ok(());
        }
        let must_watch = plan.watching_ways().next().is_some() || plan.moves.is_some();
        let may_watch = plan.inserts_at_once() && watch::missing().is_empty();
        if !must_watch && !may_watch {
            return Ok(());
        }
        let failed = |error: longfat_kernel::Error| {
            Error::Plan(format!(
                "adopt_after: connections cannot be watched ({error}); a relay that runs cannot begin to: restart it"
            ))
        };
        let interfaces = interfaces().map_err(failed)?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).take();
        match Watching::attach(&interfaces, alike, known.as_ref()) {
            Ok(watching) => drop(self.watching.set(watching)),
            Err(error) if must_watch => return Err(failed(error)),
            Err(_) => {}
        }
        Ok(())
    }

    /// Makes these rules count from now on; packets are led to the interface of one worker. Without any nothing more is
    /// watched.
    pub fn open(&self, meant: Option<Meant>) {
        let Some(watching) = self.watching.get() else { return };
        let mut state = self.lock();
        state.watches = meant.is_some();
        if let Some(meant) = meant {
            self.only_watches.store(!meant.plan.inserts_at_once(), Ordering::Release);
            state.meant = Some(meant);
        }
        state.tell(watching);
    }

    /// What another relay knew of connections, for [`Watcher::prepare`].
    pub fn inherit(&self, known: [OwnedFd; 2]) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// What is known of connections, for whoever comes after this relay.
    pub fn known(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.watching.get().map(Watching::known)
    }

    /// The number of that at whoever keeps it.
    pub fn kept_id(&self) -> Option<u64> {
        self.kept.get().copied()
    }

    /// Puts it where it survives this process.
    pub fn keep(&self, keeping: &Keeping) {
        let Some(known) = self.known().filter(|_| keeping.is_on()) else { return };
        self.kept.get_or_init(|| {
            let id = keeping.other_id();
            keeping.put(id, &Holding::Watched { layout: watch::LAYOUT }, &known);
            id
        });
    }

    /// Watches from now on. These are connections that another relay had stepped into, and this one carries.
    pub fn begin(&self, adopted: &[Pair]) {
        let Some(watching) = self.watching.get() else { return };
        let mut state = self.lock();
        for pair in adopted {
            // One that is not known is not left in a pause.
            let _ = watching.claim(*pair, state.epoch);
            self.may_leave.store(true, Ordering::Relaxed);
        }
        state.is_on = true;
        state.tell(watching);
    }

    /// What is known of connections that nobody has stepped into.
    pub fn untold(&self) -> Vec<Watched> {
        let mut living = self.watching.get().map(Watching::living).unwrap_or_default();
        let state = self.lock();
        // One that was left a moment ago is watched anew in a moment.
        let is_left =
            |pair: &Pair| state.entries.get(pair).is_some_and(|entry| entry.kind() == Some(Kind::Released));
        living.retain(|one| !one.is_told || is_left(&(one.client, one.server)));
        living
    }

    /// What is known of a connection that was stepped into.
    pub fn known_of(&self, pair: Pair) -> Option<Watched> {
        self.watching.get()?.look(pair)
    }

    /// Another router knew that of a connection. Here, too, it may have been known before it went there.
    pub fn learn(&self, watched: &Watched) {
        let Some(watching) = self.watching.get() else { return };
        let epoch = self.lock().epoch;
        // Without room it is not known here, and stays as it is.
        let _ = watching.learn(watched, epoch);
        self.may_leave.fetch_or(watched.is_told, Ordering::Relaxed);
    }

    /// Whether connections wait for ways to sockets.
    pub fn wants_routes(&self) -> bool {
        self.wants_routes.load(Ordering::Acquire)
    }

    /// The ways are there.
    pub fn routed(&self) {
        self.wants_routes.store(false, Ordering::Release);
        let mut state = self.lock();
        state.meant.iter_mut().for_each(|meant| meant.is_routed = true);
        if let Some(watching) = self.watching.get() {
            state.tell(watching);
        }
    }

    /// Whether there are ways to sockets; if not, they are made in a moment.
    pub fn has_routes(&self) -> bool {
        let is_routed = self.lock().meant.as_ref().is_none_or(|meant| meant.is_routed);
        if !is_routed {
            self.wants_routes.store(true, Ordering::Release);
        }
        is_routed
    }

    /// Drops what comes of a connection from now on, be it for a socket or to pass: another router has it, or will in a
    /// moment. Not one that is being stepped into or left.
    pub fn drop_packets(&self, pair: Pair) -> std::result::Result<(), Stay> {
        let watching = self.watching.get().ok_or(Stay::Unwatched)?;
        let mut state = self.lock();
        if state.has(pair) || state.led.values().any(|led| led.has(pair)) {
            return Err(Stay::Busy);
        }
        if !state.drops {
            state.drops = true;
            state.tell(watching);
        }
        state.entries.remove(&pair);
        self.count.store(state.entries.len(), Ordering::Release);
        // It is read in its order, and looked at before its time is over.
        state.left.retain(|(_, left)| *left != pair);
        watching.lead(pair, Lead::Drop, 0).map_err(|_| Stay::Unwatched)
    }

    /// What comes of it is for its sockets, or passes, again.
    pub fn drop_no_more(&self, pair: Pair) {
        self.watching.get().into_iter().for_each(|watching| watching.let_go(pair));
    }

    /// Notes that a connection has left this router for good: its packets are dropped for [`LEFT`].
    pub fn has_moved(&self, pair: Pair) {
        self.lock().left.push_back((Instant::now(), pair));
    }

    /// Descriptors kept open.
    pub fn descriptors(&self) -> usize {
        self.watching.get().map_or(0, Watching::descriptors) + self.acks.descriptors()
    }

    /// Handshakes seen, connections that came far enough, and those that were adopted in mid-stream.
    pub fn counts(&self) -> [u64; 3] {
        let counts = self.watching.get().map(Watching::counts).unwrap_or_default();
        [counts.opened, counts.reached, self.adopted.load(Ordering::Relaxed)]
    }

    /// Looks for connections that have come far enough, and for those of a worker whose time is over. Gives the reason
    /// of each that stays end to end.
    pub fn look(&self, look: Look, passed: &mut dyn FnMut(Reason)) {
        let Some(watching) = self.watching.get() else { return };
        let mut state = self.lock();
        while let Some((_, pair)) = state.left.pop_front_if(|(since, _)| since.elapsed() >= LEFT) {
            watching.forget(pair);
        }
        state.expire(watching, look, passed, &self.acks);
        self.acks.sweep(look.now);
        let Look { now, is_draining, .. } = look;
        while state.waiting.len() < MOST_WAITING
            && let Some(ends) = watching.next()
        {
            state.waiting.push_back(ends);
        }
        let is_routed = state.meant.as_ref().is_none_or(|meant| meant.is_routed);
        if !is_routed && !state.waiting.is_empty() {
            self.wants_routes.store(true, Ordering::Release);
        }
        let mut in_path = if state.waiting.is_empty() { 0 } else { state.in_path() };
        while is_routed
            && in_path < MOST_IN_PATH
            && let Some(ends) = state.waiting.pop_front()
        {
            if state.has(ends) {
                continue;
            }
            // Its packets may come to another worker from here on, which must wait for the entry.
            self.count.store(state.entries.len() + 1, Ordering::Release);
            match state.begin((watching, &self.acks), ends, now, is_draining) {
                Ok(()) => in_path += 1,
                Err(reason) => {
                    self.acks.forget(ends);
                    watching.forget(ends);
                    reason.into_iter().for_each(&mut *passed);
                }
            }
        }
        self.count.store(state.entries.len(), Ordering::Release);
    }

    /// Decides about a packet; none when its connection is not led here. One that has lain in the interface
    /// for longer than its connection is remembered must not pass a socket that is there: whoever has it, the kernel
    /// knows.
    pub fn on_packet(&self, segment: &Segment<'_>, now: Instant) -> Option<Step> {
        let straggles = || self.only_watches.load(Ordering::Acquire).then_some(Step::Deliver);
        if self.count.load(Ordering::Acquire) == 0 {
            return straggles();
        }
        let (there, back) = ((segment.from, segment.to), (segment.to, segment.from));
        let mut state = self.lock();
        let pair = if state.entries.contains_key(&there) { there } else { back };
        let Some(entry) = state.entries.get_mut(&pair) else { return straggles() };
        let candidate = match &mut entry.stage {
            Stage::InPath(candidate) => candidate,
            Stage::Leaving => return Some(Step::Hear),
            Stage::Behind(kind, _) | Stage::Resets(kind, _) | Stage::Gone(kind, _) => {
                return Some(if *kind == Kind::Adopted { Step::Deliver } else { Step::Send });
            }
        };
        match candidate.path.on_packet(segment) {
            Verdict::Wait => Some(Step::Send),
            Verdict::Adopt(between) if !self.has_heard(candidate, pair, &between) => {
                self.decide(&mut state, pair, Kind::Passed, now);
                Some(Step::Pass(Reason::Unheard))
            }
            Verdict::Adopt(between) if self.watching.get()?.leads_all(pair) => {
                let (plan, known) = (Arc::clone(&candidate.plan), candidate.known.clone());
                Some(Step::Adopt(Box::new(Adoption { pair, between: *between, plan, known })))
            }
            // Some packets may have gone by.
            Verdict::Adopt(_) => {
                self.decide(&mut state, pair, Kind::Passed, now);
                Some(Step::Pass(Reason::Unclear))
            }
            Verdict::Pass(reason) => {
                self.decide(&mut state, pair, Kind::Passed, now);
                Some(Step::Pass(reason))
            }
        }
    }

    /// Whether it is known what the ends have acknowledged, where that matters.
    fn has_heard(&self, candidate: &Candidate, pair: Pair, between: &Between) -> bool {
        candidate.plan.acknowledge != Acknowledge::EndToEnd || self.acks.has_heard(pair, between)
    }

    /// Packets from before may still be in the interface.
    fn decide(&self, state: &mut State, pair: Pair, kind: Kind, now: Instant) {
        if let Some(entry) = state.entries.get_mut(&pair) {
            if kind == Kind::Passed {
                self.acks.forget(pair);
            }
            entry.stage = Stage::Behind(kind, now);
            state.behind.entry(entry.holder).or_default().push(pair);
            self.has_behind.store(true, Ordering::Release);
        }
    }

    /// Sockets are between the ends now, or could not be put there.
    pub fn decided(&self, pair: Pair, is_adopted: bool) {
        let kind = if is_adopted { Kind::Adopted } else { Kind::Passed };
        self.adopted.fetch_add(u64::from(is_adopted), Ordering::Relaxed);
        self.may_leave.fetch_or(is_adopted, Ordering::Relaxed);
        self.decide(&mut self.lock(), pair, kind, Instant::now());
    }

    /// Whether there were connections that may be left in a pause.
    pub fn may_leave(&self) -> bool {
        self.may_leave.load(Ordering::Relaxed)
    }

    /// Connections that were left in a pause.
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// A connection that has paused is to be left: its packets are led to the worker that has it. Not one whose
    /// handshake went by another relay, or that was stepped into just now.
    pub fn begin_leaving(&self, pair: Pair, holder: usize) -> bool {
        let Some(watching) = self.watching.get() else { return false };
        let mut state = self.lock();
        let Some(interface) = state.interface_of(holder).filter(|_| !state.has(pair)) else { return false };
        if watching.lead(pair, Lead::All, interface).is_err() {
            return false;
        }
        if !watching.leads_all(pair) {
            watching.let_go(pair);
            return false;
        }
        state.entries.insert(pair, Entry { stage: Stage::Leaving, interface, holder, may_pause: true });
        self.count.store(state.entries.len(), Ordering::Release);
        true
    }

    /// Notes that a connection is not left: it speaks, or something else keeps it.
    pub fn stays(&self, pair: Pair) {
        self.decide_leaving(pair, Kind::Adopted);
    }

    /// Both sockets have vanished. What is still in the interface goes on to its end.
    pub fn left(&self, pair: Pair) {
        self.released.fetch_add(1, Ordering::Relaxed);
        self.decide_leaving(pair, Kind::Released);
    }

    fn decide_leaving(&self, pair: Pair, kind: Kind) {
        let mut state = self.lock();
        if state.entries.get(&pair).is_some_and(|entry| matches!(entry.stage, Stage::Leaving)) {
            self.decide(&mut state, pair, kind, Instant::now());
        }
    }

    /// Sockets are put into a connection whose handshake has just ended. From now on its packets come to the worker's
    /// interface by the tc program: the rules of nftables would route them there, and the kernel drops what it has to
    /// route and has a socket for. Whether they do.
    pub fn hold(&self, pair: Pair, holder: usize) -> bool {
        let Some(watching) = self.watching.get() else { return false };
        let mut state = self.lock();
        let interface = state.interface_of(holder);
        let is_led = interface.is_some_and(|interface| watching.lead(pair, Lead::All, interface).is_ok());
        if is_led {
            state.led.entry(holder).or_default().all.push((Instant::now(), pair));
            self.leads_all.store(true, Ordering::Release);
        }
        is_led
    }

    /// Nothing is left in the interface of a worker: from now on only resets of what was decided about come there.
    pub fn emptied(&self, holder: usize) {
        let Some(watching) = self.watching.get() else { return };
        if self.leads_all.load(Ordering::Acquire) {
            let mut state = self.lock();
            state.lead_resets(watching, holder, Duration::ZERO);
            let leads_all = state.led.values().any(|led| !led.all.is_empty());
            self.leads_all.store(leads_all, Ordering::Release);
        }
        if !self.has_behind.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.lock();
        for pair in state.behind.remove(&holder).unwrap_or_default() {
            let Some(entry) = state.entries.get_mut(&pair).filter(|entry| entry.holder == holder) else {
                continue;
            };
            if let Stage::Behind(kind, _) = entry.stage {
                entry.lead_resets(watching, pair, kind);
            }
        }
        self.has_behind.store(!state.behind.is_empty(), Ordering::Release);
    }

    /// Nothing is watched or led here any more: another relay reads the interfaces, and knows what is known.
    pub fn leave(&self) {
        let Some(watching) = self.watching.get() else { return };
        let mut state = self.lock();
        state.is_on = false;
        state.tell(watching);
        for (pair, entry) in std::mem::take(&mut state.entries) {
            match entry.kind() {
                Some(Kind::Passed) => watching.forget(pair),
                Some(Kind::Adopted) if !entry.may_pause => watching.forget(pair),
                _ => watching.let_go(pair),
            }
        }
        let led = std::mem::take(&mut state.led).into_values();
        led.flat_map(Led::into_pairs).for_each(|pair| watching.forget(pair));
        state.behind.clear();
        state.waiting.clear();
    }

    /// No other relay came about.
    pub fn go_on(&self) {
        let Some(watching) = self.watching.get() else { return };
        let mut state = self.lock();
        state.is_on = true;
        state.tell(watching);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// What has come of it.
    fn kind(&self) -> Option<Kind> {
        match self.stage {
            Stage::InPath(_) | Stage::Leaving => None,
            Stage::Behind(kind, _) | Stage::Resets(kind, _) | Stage::Gone(kind, _) => Some(kind),
        }
    }

    fn lead_resets(&mut self, watching: &Watching, pair: Pair, kind: Kind) {
        // It changes an order that is there.
        let _ = watching.lead(pair, Lead::Resets, self.interface);
        self.stage = Stage::Resets(kind, Instant::now());
    }

    /// Nothing is led here any more.
    fn end_leading(&mut self, watching: &Watching, pair: Pair, (kind, now): (Kind, Instant)) {
        match kind {
            // It changes an order that is there.
            Kind::Released => drop(watching.lead(pair, Lead::NothingAnew, self.interface)),
            Kind::Adopted if self.may_pause => watching.let_go(pair),
            Kind::Adopted | Kind::Passed => watching.forget(pair),
        }
        self.stage = Stage::Gone(kind, now);
    }
}

impl Led {
    fn has(&self, pair: Pair) -> bool {
        self.all.iter().any(|(_, other)| *other == pair)
            || self.resets.iter().any(|(_, other)| *other == pair)
    }

    fn into_pairs(self) -> impl Iterator<Item = Pair> {
        self.all.into_iter().chain(self.resets).map(|(_, pair)| pair)
    }
}

impl State {
    /// Tells the program what it does.
    fn tell(&self, watching: &Watching) {
        let meant = self.meant.as_ref().filter(|_| self.watches && self.is_on);
        let meant = meant.map(Meant::orders).unwrap_or_default();
        // The map is there, and so is its only element.
        let _ = watching.tell(Orders { drops: self.drops, epoch: self.epoch, ..meant });
    }

    fn interface_of(&self, holder: usize) -> Option<u32> {
        self.meant.as_ref()?.interfaces.get(holder).copied()
    }

    /// Leads only resets of connections here that were inserted right after their handshakes, so long ago.
    fn lead_resets(&mut self, watching: &Watching, holder: usize, ago: Duration) {
        let (interface, now) = (self.interface_of(holder), Instant::now());
        let Some((led, interface)) = self.led.get_mut(&holder).zip(interface) else { return };
        // The oldest come first.
        let count = led.all.partition_point(|(since, _)| now.saturating_duration_since(*since) >= ago);
        for (_, pair) in led.all.drain(..count) {
            // It changes an order that is there.
            let _ = watching.lead(pair, Lead::Resets, interface);
            led.resets.push_back((now, pair));
        }
    }

    /// Whether packets of that connection are led here.
    fn has(&self, (one, other): (SocketAddr, SocketAddr)) -> bool {
        let is_led =
            |pair| self.entries.get(&pair).is_some_and(|entry| !matches!(entry.stage, Stage::Gone(..)));
        is_led((one, other)) || is_led((other, one))
    }

    fn in_path(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry.stage, Stage::InPath(..))).count()
    }

    /// Forgets a worker's own connections. While something is in its interface no packet may pass by it: one that is
    /// read after its connection was forgotten would go on to an end that has been told of it by a socket.
    fn expire(&mut self, watching: &Watching, look: Look, passed: &mut dyn FnMut(Reason), acks: &Acks) {
        let Look { holder, now, is_empty, is_draining } = look;
        self.lead_resets(watching, holder, ORDERLY);
        if let Some(led) = self.led.get_mut(&holder).filter(|_| is_empty) {
            while let Some((_, pair)) =
                led.resets.pop_front_if(|(since, _)| now.saturating_duration_since(*since) >= RESETS)
            {
                watching.forget(pair);
            }
        }
        self.entries.retain(|pair, entry| {
            if entry.holder != holder {
                return true;
            }
            let is_past = |since: &Instant, time| now.saturating_duration_since(*since) >= time;
            match &entry.stage {
                Stage::InPath(of)
                    if is_empty && !is_draining && of.path.is_late(now) && of.path.is_quiet() =>
                {
                    acks.forget(*pair);
                    return watching.lead(*pair, Lead::Nothing, entry.interface).is_err();
                }
                Stage::InPath(of) if is_draining || of.path.is_late(now) => {
                    passed(if is_draining { Reason::Draining } else { Reason::Restless });
                    acks.forget(*pair);
                    entry.stage = Stage::Behind(Kind::Passed, now);
                }
                Stage::Behind(kind, since) if is_past(since, ORDERLY) => {
                    entry.lead_resets(watching, *pair, *kind);
                }
                Stage::Resets(kind, since) if is_empty && is_past(since, RESETS) => {
                    let kind = *kind;
                    entry.end_leading(watching, *pair, (kind, now));
                }
                Stage::Gone(_, since) => return !is_past(since, STRAGGLERS),
                _ => {}
            }
            true
        });
    }

    /// Has the packets of a connection led here. Without a reason: it is not one that is meant.
    fn begin(
        &mut self,
        (watching, acks): (&Watching, &Acks),
        ends: (SocketAddr, SocketAddr),
        now: Instant,
        is_draining: bool,
    ) -> std::result::Result<(), Option<Reason>> {
        let seen = watching.look(ends).ok_or(Some(Reason::Unseen))?;
        let pair = (seen.client, seen.server);
        let Some(Meant { plan, interfaces, .. }) = &self.meant else { return Err(None) };
        let way = way_of(plan, &seen).ok_or(None)?;
        let agreement = agreement(&seen).map_err(Some)?;
        first_obstacle(&seen, is_draining).map_or(Ok(()), |reason| Err(Some(reason)))?;
        let holder = self.turn % interfaces.len().max(1);
        let interface = *interfaces.get(holder).ok_or(None)?;
        self.turn = self.turn.wrapping_add(1);
        if way.acknowledge == Acknowledge::EndToEnd {
            // Before any packet waits in the interface, which was heard by then.
            acks.begin_to_hear(&seen, &agreement).map_err(Some)?;
        }
        watching.lead(pair, Lead::All, interface).map_err(|_| Some(Reason::Full))?;
        // What passed before it was led here is among what has passed now.
        let now_seen = watching.look(ends).filter(|now_seen| now_seen.syn == seen.syn);
        let now_seen = now_seen.ok_or(Some(Reason::Unseen))?;
        if now_seen.is_ending {
            return Err(Some(Reason::Closing));
        }
        let next = [now_seen.client_next, now_seen.server_next];
        let path = InPath::new(pair, agreement, next, now, &self.copied);
        let may_pause = way.release_after.is_some();
        let candidate = Box::new(Candidate { path, plan: way, known: known(&now_seen) });
        self.entries.insert(pair, Entry { stage: Stage::InPath(candidate), interface, holder, may_pause });
        Ok(())
    }
}

/// What keeps the relay out before any packet is led here. Packets of a connection that has sockets already, as another
/// relay's on this host, would be led past those.
fn first_obstacle(seen: &Watched, is_draining: bool) -> Option<Reason> {
    let pair = (seen.client, seen.server);
    let has_sockets = || diag::has_connection(pair) || diag::has_connection((pair.1, pair.0));
    match () {
        () if is_draining => Some(Reason::Draining),
        () if seen.is_ending => Some(Reason::Closing),
        () if has_sockets() => Some(Reason::PairBusy),
        () => None,
    }
}

/// How a connection is carried, if it is one to be adopted: the first rule that speaks of it says so.
fn way_of(plan: &RelayPlan, seen: &Watched) -> Option<Arc<ConnectionPlan>> {
    let name = if_indextoname(seen.interface).ok()?.into_string().ok()?;
    let intercept = plan.intercept.as_ref()?;
    if !intercept.interfaces.contains(&name) {
        return None;
    }
    let way = match plan.rules.is_empty() {
        true => &plan.defaults,
        false => {
            let takes = |rule: &&crate::RulePlan| rule.matches.takes(&name, seen.client, seen.server);
            plan.rules.iter().find(takes)?.relay.as_ref()?
        }
    };
    way.is_watched().then(|| Arc::clone(way))
}

fn known(seen: &Watched) -> AdoptedStatus {
    let now_us = monotonic_us().max(0) as u64;
    let [client_rtt_us, server_rtt_us] = seen.rtts.map(|rtt| rtt.map(|rtt| rtt.as_micros() as u64));
    AdoptedStatus {
        passed_bytes: seen.bytes,
        repeated_bytes: seen.repeated_bytes,
        age_us: now_us.saturating_sub(seen.opened_ns / 1000),
        client_rtt_us,
        server_rtt_us,
    }
}

fn agreement(seen: &Watched) -> std::result::Result<Agreement, Reason> {
    let offer = |ends, SeenOffer { header, payload_bytes }: &SeenOffer| {
        Offer::of_header(ends, header, usize::from(*payload_bytes)).ok_or(Reason::Unclear)
    };
    let syn = offer((seen.client, seen.server), &seen.syn)?;
    let answer = offer((seen.server, seen.client), &seen.answer)?;
    Agreement::new(&syn, &answer, seen.client.is_ipv6())
}
