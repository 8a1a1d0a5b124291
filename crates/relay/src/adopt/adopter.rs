//! Insertion in a worker: packets that were held come in, connections or forwarded packets come out.

use super::{
    clocks::Clocks,
    handshake::{Between, LegState, Reason},
    log::{self, Log},
    repaired::{self, Failure, Repaired},
    segment::{self, Segment},
    table::{Handshakes, Verdict},
    watcher::{Adoption, Look, Step, Watcher},
};
use crate::{
    Result,
    keeping::{Keeping, connection_id},
    legs::{Legs, queue::FIRST_BUFFER_BYTES, tun::Tun},
    logic::{Pair, adopted::AdoptedStatus, packet::is_rest},
    observe::journal::Once,
    plan::{Acknowledge, ConnectionPlan, LegPlan, RelayPlan},
    shared::Shared,
};
use longfat_host::support::Missing;
use longfat_kernel::alike::Alike;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Longest packet: with segmentation offloaded one may be as long as any, before the interface cuts it.
const PACKET_BYTES: usize = 1 << 16;
/// Largest buffer that a leg is given for what is under way when it is made.
const MOST_ROOM_BYTES: u64 = 64 << 20;
/// How often copies are read although no packet is held: in a flood of SYNs none is.
const LOOK: Duration = Duration::from_millis(20);

/// What the workers share.
#[derive(Debug, Default)]
pub(crate) struct Adopting {
    table: Mutex<Handshakes>,
    /// The ends' timestamps, while the relay drains.
    clocks: Mutex<Clocks>,
    /// Copies of handshakes; absent until the relay has a rule that accepts end to end.
    log: OnceLock<Log>,
    /// By the index of the rule.
    ways: Mutex<BTreeMap<usize, Arc<ConnectionPlan>>>,
    inserted: AtomicU64,
    /// By [`Reason`].
    passed: [AtomicU64; Reason::ALL.len()],
    /// Another relay is about to take over: its rules know nothing of handshakes under way here.
    hands_over: AtomicBool,
    /// Watcher for rules that adopt in mid-stream.
    pub watcher: Watcher,
}

impl Adopting {
    /// The group to which nftables logs copies of handshakes.
    pub fn prepare(&self, plan: &RelayPlan, alike: Option<&Alike>) -> Result<u16> {
        self.watcher.prepare(plan, alike)?;
        if self.log.get().is_none() {
            let _ = self.log.set(Log::open()?);
        }
        Ok(self.log.get().map_or(0, Log::group))
    }

    /// Makes these rules accept end to end from now on, and no others.
    pub fn open(&self, ways: BTreeMap<usize, Arc<ConnectionPlan>>) {
        *self.ways.lock().unwrap_or_else(PoisonError::into_inner) = ways;
    }

    /// Connections that sockets were put into.
    pub fn inserted(&self) -> u64 {
        self.inserted.load(Ordering::Relaxed)
    }

    /// Connections that stayed end to end, by the reason.
    pub fn passed(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.into_iter().map(|reason| (reason, self.passed[reason as usize].load(Ordering::Relaxed)))
    }

    /// This relay has taken connections over that sockets were put into. What was led to an interface before, and is
    /// still in it, must not pass them: nobody would ask its end for it again.
    pub fn taken_over(&self, pairs: impl Iterator<Item = Pair>) {
        let (mut table, now) = (self.table(), Instant::now());
        pairs.for_each(|pair| table.taken(pair, now));
    }

    /// No sockets are put behind handshakes until [`Adopting::forget_handshakes`]: another relay exchanges the rules by
    /// which all that follows is held.
    pub fn begin_handing_over(&self) {
        self.hands_over.store(true, Ordering::Release);
    }

    /// The rules were exchanged, and hold nothing of handshakes that were seen before. A killed relay's rules send
    /// copies to whoever listens after it.
    pub fn forget_handshakes(&self) {
        let mut table = self.table();
        if let Some(log) = self.log.get() {
            let mut buffer = vec![0; PACKET_BYTES];
            while log.read(&mut buffer).is_some() {}
        }
        table.forget_open();
        self.hands_over.store(false, Ordering::Release);
    }

    fn count_passed(&self, reason: Reason) {
        self.passed[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn way(&self, rule: usize) -> Option<Arc<ConnectionPlan>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner).get(&rule).cloned()
    }

    /// How the rule of that name carries a connection, if it accepts end to end.
    pub fn way_named(&self, rule: &str) -> Option<Arc<ConnectionPlan>> {
        let ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.values().find(|way| way.rule == rule).cloned()
    }

    fn table(&self) -> MutexGuard<'_, Handshakes> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what has gone by. nftables logs a packet before it forwards it, so that the copies of a handshake are
    /// there before the packet that ends it.
    fn read_copies(&self, buffer: &mut [u8], now: Instant) {
        let Some(log) = self.log.get() else { return };
        let mut table = self.table();
        while let Some(bytes) = log.read(buffer) {
            for copy in log::copies(bytes) {
                let Some(segment) = Segment::parse(copy.packet) else { continue };
                if copy.prefix == log::CLOCK.as_bytes() {
                    self.clocks().on_copy(&segment, now);
                    continue;
                }
                let rule = std::str::from_utf8(copy.prefix).ok().and_then(|prefix| prefix.parse().ok());
                table.on_copy(&segment, rule, now);
            }
        }
    }
}

/// One worker's.
pub(crate) struct Adopter<'a> {
    shared: &'a Shared<'a>,
    adopting: &'a Adopting,
    keeping: &'a Keeping,
    /// The worker's index.
    holder: usize,
    /// Whether nothing was left in its interface at the last reading.
    is_empty: bool,
    buffer: Box<[u8]>,
    copies: Box<[u8]>,
    inserted: Vec<Legs>,
    /// Last packets of handshakes, for their servers: of connections whose packets only nftables holds.
    going: Vec<(Vec<u8>, IpAddr)>,
    looked: Instant,
}

impl<'a> Adopter<'a> {
    pub fn new(
        shared: &'a Shared<'a>,
        adopting: &'a Adopting,
        keeping: &'a Keeping,
        holder: usize,
    ) -> Adopter<'a> {
        let buffer = || vec![0; PACKET_BYTES].into_boxed_slice();
        let (inserted, going) = Default::default();
        Adopter {
            shared,
            adopting,
            keeping,
            holder,
            is_empty: true,
            buffer: buffer(),
            copies: buffer(),
            inserted,
            going,
            looked: Instant::now(),
        }
    }

    /// Whether nothing was left in its interface at the last reading.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Connections with a socket towards each end, made since this was last asked.
    pub fn take_inserted(&mut self) -> Vec<Legs> {
        std::mem::take(&mut self.inserted)
    }

    /// Up to twice so many packets that are held. What a client sends keeps its order: its packets are held until the
    /// last one of its handshake goes on, which it does when nothing is left behind it; what comes meanwhile is read at
    /// once.
    pub fn read_some(&mut self, tun: &Tun, most: usize) {
        self.read(tun, most);
        if self.going.is_empty() {
            return;
        }
        for (packet, server) in std::mem::take(&mut self.going) {
            self.send(&packet, server);
        }
        self.read(tun, most);
        // Those of the second reading: what is behind them is read in the next round.
        for (packet, server) in std::mem::take(&mut self.going) {
            self.send(&packet, server);
        }
    }

    fn read(&mut self, tun: &Tun, most: usize) {
        let mut packet = std::mem::take(&mut self.buffer);
        for _ in 0..most {
            let Some(bytes) = tun.read(&mut packet) else {
                self.adopting.watcher.emptied(self.holder);
                self.is_empty = true;
                break;
            };
            self.is_empty = false;
            self.on_packet(&mut packet[..bytes], tun);
        }
        self.buffer = packet;
    }

    /// Reads copies, and what the kernel says of watched connections, from time to time.
    pub fn look(&mut self) {
        let adopting = self.adopting;
        if adopting.log.get().is_some() && self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            adopting.read_copies(&mut self.copies, self.looked);
            let is_draining = self.shared.stage.is_draining();
            let (holder, now, is_empty) = (self.holder, self.looked, self.is_empty);
            let look = Look { holder, now, is_empty, is_draining };
            adopting.watcher.look(look, &mut |reason| adopting.count_passed(reason));
        }
    }

    /// While the relay drains: what the ends' clocks say is worth as much as it is young.
    pub fn look_at_clocks(&mut self) {
        self.adopting.read_copies(&mut self.copies, Instant::now());
    }

    /// What cannot be read is a fragment, or the kernel's own multicast and whatever else is routed here by hand.
    fn on_fragment(&mut self, packet: &mut [u8], tun: &Tun) {
        let Some(first) = Segment::parse_beginning(packet) else {
            // The rest of a packet is of use to a socket alone, whose stack puts it together.
            if is_rest(packet) {
                drop(tun.write(packet));
            }
            return;
        };
        match self.adopting.table().on_fragment(&first, Instant::now()) {
            Some(Verdict::Taken) => drop(tun.write(packet)),
            Some(Verdict::Passed) => self.send(first.packet(), first.to.ip()),
            Some(Verdict::Pass(reason)) => self.pass(&first, reason),
            _ => {}
        }
    }

    fn on_packet(&mut self, packet: &mut [u8], tun: &Tun) {
        let Some(segment) = Segment::parse(packet) else { return self.on_fragment(packet, tun) };
        let (adopting, now) = (self.adopting, Instant::now());
        if let Some(step) = adopting.watcher.on_packet(&segment, now) {
            if let Step::Hear = step {
                adopting.clocks().on_copy(&segment, now);
            }
            let (bytes, to) = (segment.packet().len(), segment.to.ip());
            return self.take_step(step, &mut packet[..bytes], to, tun);
        }
        adopting.read_copies(&mut self.copies, now);
        let verdict = adopting.table().on_held(&segment, now);
        match verdict {
            Verdict::Taken => drop(tun.write(packet)),
            Verdict::Passed => self.send(packet, segment.to.ip()),
            Verdict::Pass(reason) => self.pass(&segment, reason),
            Verdict::Insert(..) if adopting.hands_over.load(Ordering::Acquire) => {
                self.pass(&segment, Reason::Draining);
            }
            // Its end sends it again; numbers are taken from what arrived whole.
            Verdict::Insert(..) if !segment.is_intact() => self.send(packet, segment.to.ip()),
            Verdict::Insert(between, rule) => match self.insert(&segment, &between, rule, tun) {
                Ok(inserted) => self.inserted.push(inserted),
                Err(reason) => self.pass(&segment, reason),
            },
        }
    }

    /// What comes of a packet in mid-stream.
    fn take_step(&mut self, step: Step, packet: &mut [u8], to: IpAddr, tun: &Tun) {
        let adopting = self.adopting;
        if let Step::Deliver | Step::Hear = step {
            return drop(tun.write(packet));
        }
        segment::count_hop(packet);
        self.send(packet, to);
        match step {
            Step::Send | Step::Deliver | Step::Hear => {}
            Step::Pass(reason) => adopting.count_passed(reason),
            Step::Adopt(adoption) => {
                let pair = adoption.pair;
                let outcome = self.adopt(*adoption, tun);
                adopting.watcher.decided(pair, outcome.is_ok());
                match outcome {
                    Ok(inserted) => self.inserted.push(inserted),
                    Err(reason) => adopting.count_passed(reason),
                }
            }
        }
    }

    /// Puts sockets into a connection that goes on. What was forwarded is acknowledged by them from now on.
    fn adopt(&self, adoption: Adoption, tun: &Tun) -> std::result::Result<Legs, Reason> {
        let Adoption { pair, between, plan, known } = adoption;
        let roomy = with_room_for(&plan, &between);
        let legs = self.stand_between(pair, &between, &roomy, (plan, Some(known)))?;
        let said = [between.server_ack(), between.client_ack()];
        for packet in said.iter().chain(&between.repetitions()) {
            let _ = tun.write(packet);
        }
        Ok(legs)
    }

    /// Lets a packet go on to the server, and all that follow it.
    fn pass(&self, segment: &Segment<'_>, reason: Reason) {
        let adopting = self.adopting;
        adopting.table().passed((segment.from, segment.to));
        adopting.count_passed(reason);
        self.send(segment.packet(), segment.to.ip());
    }

    /// Sends a packet as one end to the other. On its way out nftables forgets that its connection is held.
    fn send(&self, packet: &[u8], to: IpAddr) {
        self.shared.packets.pass_on(packet, to);
    }

    fn insert(
        &mut self,
        segment: &Segment<'_>,
        between: &Between,
        rule: usize,
        tun: &Tun,
    ) -> std::result::Result<Legs, Reason> {
        let pair = (segment.from, segment.to);
        let plan = self.adopting.way(rule).ok_or(Reason::Unseen)?;
        let acks = &self.adopting.watcher.acks;
        if plan.acknowledge == Acknowledge::EndToEnd {
            acks.begin_behind_handshake(pair, between)?;
        }
        let is_led = self.adopting.watcher.hold(pair, self.holder);
        let stood = self.stand_between(pair, between, &plan, (Arc::clone(&plan), None));
        let legs = stood.inspect_err(|_| acks.forget(pair))?;
        self.adopting.table().taken(pair, Instant::now());
        // The server's socket learns its timestamp, the client's gets what the client sent, and the server will be told
        // that the client has its answer, before any of its bytes.
        let _ = tun.write(&between.server_ack());
        let _ = tun.write(segment.packet());
        let (ack, server) = (segment.bare_ack(), segment.to.ip());
        if is_led {
            // What comes behind it comes here all the same, in order.
            self.send(&ack, server);
        } else {
            self.going.push((ack, server));
        }
        Ok(legs)
    }

    /// Makes both sockets by a plan that has room for what is there, if there is a place for the connection.
    fn stand_between(
        &self,
        pair: Pair,
        between: &Between,
        roomy: &ConnectionPlan,
        carried: (Arc<ConnectionPlan>, Option<AdoptedStatus>),
    ) -> std::result::Result<Legs, Reason> {
        let shared = self.shared;
        if shared.stage.is_draining() {
            return Err(Reason::Draining);
        }
        if !shared.admission.admit_client(pair.0.ip()) {
            return Err(Reason::Full);
        }
        let legs = self.legs(pair, between, roomy, carried).map_err(|failure| {
            shared.admission.unadmit_client(pair.0.ip());
            self.warn(pair, failure)
        })?;
        self.adopting.inserted.fetch_add(1, Ordering::Relaxed);
        Ok(legs)
    }

    /// Both, before either says a word, and kept before closing them is a reset: however this process ends, the ends
    /// go on.
    fn legs(
        &self,
        pair: Pair,
        between: &Between,
        roomy: &ConnectionPlan,
        (plan, adopted): (Arc<ConnectionPlan>, Option<AdoptedStatus>),
    ) -> std::result::Result<Legs, Failure> {
        let leg = |plan| self.shared.packets.leg(plan, true);
        let to_client = Repaired::new(&leg(&roomy.client), &between.to_client)?;
        let to_server = Repaired::new(&leg(&roomy.server), &between.to_server)?;
        let number = self.shared.journal.number();
        let legs = Legs::new(number, to_client.asleep(), to_server.asleep(), pair, plan);
        let legs = Legs { is_inserted: true, loaded_bytes: between.loaded_bytes(), adopted, ..legs };
        if self.keeping.is_on() {
            let sockets = [legs.client.as_fd(), legs.server.as_fd()];
            self.keeping.put_connection(legs.record(self.holder), &sockets);
        }
        let woken = repaired::wake(&legs.client).and_then(|()| repaired::wake(&legs.server));
        woken.inspect_err(|_| self.keeping.gone(connection_id(number)))?;
        Ok(legs)
    }

    fn warn(&self, (client, server): Pair, failure: Failure) -> Reason {
        let Failure { reason, source } = failure;
        self.shared.journal.warn_once(Once::NotInserted, || {
            format!("the connection of {client} to {server} stays end to end, as no socket can be put in between: {source}")
        });
        reason
    }
}

/// A plan with room for what is there already, on both legs.
pub(crate) fn with_room_for(plan: &ConnectionPlan, between: &Between) -> ConnectionPlan {
    ConnectionPlan {
        client: with_room(&plan.client, &between.to_client),
        server: with_room(&plan.server, &between.to_server),
        ..plan.clone()
    }
}

/// A leg's plan with buffers for what its peer was told and what is under way to it: neither can be taken back.
fn with_room(plan: &LegPlan, state: &LegState) -> LegPlan {
    // Of what the kernel counts about half is payload.
    let needed_bytes = 2 * u64::from(state.told_window_bytes).max(state.unacknowledged.len() as u64);
    let buffer_bytes = plan.buffer_bytes.max(needed_bytes.min(MOST_ROOM_BYTES));
    // A buffer that grows later would be too small for what was promised.
    let begins_small = plan.begins_small && needed_bytes <= FIRST_BUFFER_BYTES;
    LegPlan { buffer_bytes, begins_small, ..plan.clone() }
}

/// What this host lacks for it.
pub(crate) fn missing() -> Vec<Missing> {
    let what = "connections accepted end to end";
    let repair = super::repaired::is_available().err().map(|error| {
        let why = format!("TCP_REPAIR: {error}");
        Missing::new(what, why, "run it with CAP_NET_ADMIN on a kernel with TCP_REPAIR, or accept early")
    });
    let copies = log::is_available().err().map(|error| {
        let mend = "use a kernel with CONFIG_NETFILTER_NETLINK_LOG and CONFIG_NFT_LOG, or accept early";
        Missing::new(what, error.to_string(), mend)
    });
    repair.into_iter().chain(copies).collect()
}
