//! Connections that come from another router: sockets are made for them, which say nothing before it is certain that
//! they are this relay's.

use super::{Token, Worker, Workers, arrival, relayed::Relayed};
use crate::{
    adopt::{self, Between, LegState, Reason, Repaired, with_room_for},
    handover::estate::Bytes,
    keeping::connection_id,
    legs::{Legs, buffer::Pool, leg},
    logic::{
        Pair,
        adopted::AdoptedStatus,
        connection::{Direction, Event, Side},
    },
    moving::{
        message::{ConnectionRecord, LegRecord, Queues, Stay},
        watched::WatchedRecord,
    },
    observe::journal::Once,
    plan::{Acknowledge, ConnectionPlan},
};
use longfat_host::{monotonic_us, socket::tcp_info};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// An end that was not heard is asked that often, and for so long: routes may follow later.
const ASKED: Duration = Duration::from_millis(50);
const ASKED_FOR: Duration = Duration::from_secs(10);

/// A connection whose ends have not both been heard here.
#[derive(Debug)]
pub(super) struct Unheard {
    token: Token,
    due: Instant,
    until: Instant,
}

/// A connection that may become this relay's. It is in nobody's way, and vanishes without a word when it is dropped.
pub(crate) struct Landing {
    pair: Pair,
    age_us: u64,
    between: Between,
    has_fin: [bool; 2],
    held: [Vec<u8>; 2],
    adopted: Option<AdoptedStatus>,
    watched: Option<WatchedRecord>,
    to_client: Repaired,
    to_server: Repaired,
    plan: Arc<ConnectionPlan>,
}

impl Landing {
    /// Makes both sockets, if there is a place for the connection.
    pub fn prepare(workers: &Workers, record: &ConnectionRecord, queues: Queues) -> Result<Landing, Stay> {
        let shared = &workers.shared;
        let plan = workers.held.adopting.way_named(&record.rule).ok_or(Stay::Rule)?;
        if shared.stage.is_draining() {
            return Err(Stay::Draining);
        }
        let client = record.client.ip();
        if !shared.admission.admit_client(client) {
            return Err(Stay::Full);
        }
        Landing::with_place(workers, record, queues, plan)
            .inspect_err(|_| shared.admission.unadmit_client(client))
    }

    fn with_place(
        workers: &Workers,
        record: &ConnectionRecord,
        queues: Queues,
        plan: Arc<ConnectionPlan>,
    ) -> Result<Landing, Stay> {
        let (client, server) = (record.client, record.server);
        let [to_client, to_server] = queues.unacknowledged;
        let between = Between {
            to_client: state((server, client), &record.legs[0], to_client),
            to_server: state((client, server), &record.legs[1], to_server),
        };
        let acks = &workers.held.adopting.watcher.acks;
        if plan.acknowledge == Acknowledge::EndToEnd {
            acks.begin((client, server), &between).map_err(|_| Stay::Socket)?;
        }
        let landing = Landing::with_sockets(workers, record, queues.held, (plan, between));
        landing.inspect_err(|_| acks.forget((client, server)))
    }

    fn with_sockets(
        workers: &Workers,
        record: &ConnectionRecord,
        held: [Vec<u8>; 2],
        (plan, between): (Arc<ConnectionPlan>, Between),
    ) -> Result<Landing, Stay> {
        let (client, server) = (record.client, record.server);
        let roomy = with_room_for(&plan, &between);
        let make = |plan, state| {
            let made = Repaired::new(&workers.shared.packets.leg(plan, true), state);
            made.map_err(|failure| refusal(workers, (client, server), &failure))
        };
        Ok(Landing {
            to_client: make(&roomy.client, &between.to_client)?,
            to_server: make(&roomy.server, &between.to_server)?,
            pair: (client, server),
            age_us: record.age_us,
            has_fin: record.legs.each_ref().map(|leg| leg.has_fin),
            held,
            adopted: record.adopted.clone(),
            watched: record.watched.clone(),
            between,
            plan,
        })
    }

    /// The client and the server.
    pub fn pair(&self) -> Pair {
        self.pair
    }

    /// Abandons the connection, which stays where it was.
    pub fn abandon(self, workers: &Workers) {
        workers.held.adopting.watcher.acks.forget(self.pair);
        workers.shared.admission.unadmit_client(self.pair.0.ip());
    }

    /// Begins to carry the connection: it is this relay's from now on, and one of its workers'.
    pub fn begin(self, workers: &Workers) {
        let (shared, now) = (&workers.shared, Instant::now());
        let number = shared.journal.number();
        let brought_bytes = self.held.each_ref().map(|held| held.len() as u64);
        let now_us = monotonic_us();
        let legs = Legs {
            is_inserted: true,
            adopted: self.adopted,
            accepted_us: now_us.saturating_sub_unsigned(self.age_us),
            loaded_bytes: self.between.loaded_bytes(),
            brought_bytes,
            ..Legs::new(number, self.to_client.asleep(), self.to_server.asleep(), self.pair, self.plan)
        };
        let mut connection = Box::new(Relayed::new(legs, None, None, now));
        connection.on(Event::Connected);
        for (direction, held) in
            Direction::BOTH.into_iter().zip(self.held).filter(|(_, held)| !held.is_empty())
        {
            let bytes = held.len();
            connection.take_in(direction, Bytes::Memory(held));
            connection.on(Event::Read(direction, bytes));
        }
        let worker = workers.emptiest_of(workers.handles.len());
        arrival::keep(&workers.keeping, &connection, worker);
        let legs = &connection.legs;
        if adopt::wake(&legs.client).and_then(|()| adopt::wake(&legs.server)).is_err() {
            // A socket that does not leave repair mode is none; the other one resets its end.
            workers.keeping.gone(connection_id(number));
            return shared.admission.unadmit_client(self.pair.0.ip());
        }
        for (leg, _) in [&self.between.to_client, &self.between.to_server]
            .iter()
            .zip(self.has_fin)
            .filter(|(_, fin)| *fin)
        {
            hear(workers, &leg.peers_fin());
        }
        if let Some(watched) = self.watched {
            // Its packets are dropped still, so it is known when they are not.
            workers.held.adopting.watcher.learn(&watched.watched(now_us as u64, true));
        }
        connection.count_buffers(&Pool::new(&workers.budget, &workers.keeping));
        connection.unheard = Some(self.has_fin.map(u32::from));
        shared.journal.moved_in.fetch_add(1, Ordering::Relaxed);
        workers.stand(&connection.legs);
        workers.handles[worker].carried.fetch_add(1, Ordering::Relaxed);
        workers.handles[worker].hand_over(connection);
    }
}

/// A packet as if it had just come.
fn hear(workers: &Workers, packet: &[u8]) {
    let interfaces = workers.held.gates.interfaces();
    let tun = interfaces.iter().find_map(|(_, tuns)| tuns.first());
    // Its sender repeats it.
    tun.into_iter().for_each(|tun| drop(tun.write(packet)));
}

fn refusal(workers: &Workers, (client, server): Pair, failure: &adopt::Failure) -> Stay {
    match failure.reason {
        Reason::PairBusy => Stay::PairBusy,
        Reason::Size => Stay::Size,
        _ => {
            workers.shared.journal.warn_once(Once::NotInserted, || {
                format!(
                    "the connection of {client} to {server} is not moved here, as no socket can be made: {}",
                    failure.source
                )
            });
            Stay::Socket
        }
    }
}

fn state((own, peer): Pair, record: &LegRecord, unacknowledged: Vec<u8>) -> LegState {
    LegState {
        own,
        peer,
        send_next: record.send_next,
        unacknowledged,
        receive_next: record.receive_next,
        peer_mss_bytes: record.peer_mss_bytes,
        peer_scale: record.peer_scale,
        own_scale: record.own_scale,
        sack: record.sack,
        timestamp: record.timestamp,
        peer_window_bytes: record.peer_window_bytes,
        told_window_bytes: record.told_window_bytes,
        window_told_at: record.window_told_at,
    }
}

impl Worker<'_> {
    /// A connection has come, perhaps from another router.
    pub(super) fn note_unheard(&mut self, token: Token) {
        if self.slots.get(token).is_some_and(|connection| connection.unheard.is_some()) {
            self.unheard.push(Unheard { token, due: self.now, until: self.now + ASKED_FOR });
        }
    }

    /// Asks ends that have not been heard where they are: their answers acknowledge what they have, before any timer
    /// would have it sent again.
    pub(super) fn ask_unheard(&mut self) {
        for mut unheard in std::mem::take(&mut self.unheard) {
            let Some(connection) = self.slots.get_mut(unheard.token) else { continue };
            if self.now < unheard.due {
                self.unheard.push(unheard);
                continue;
            }
            let Some(made) = connection.unheard else { continue };
            let is_silent = |side: &Side| {
                let info = tcp_info(connection.legs.leg(*side));
                info.is_ok_and(|info| info.segs_in <= made[*side as usize])
            };
            let silent: Vec<_> = [Side::Client, Side::Server].into_iter().filter(is_silent).collect();
            if silent.is_empty() || self.now >= unheard.until {
                connection.unheard = None;
                continue;
            }
            silent.into_iter().for_each(|side| leg::probe(connection.legs.leg(side)));
            unheard.due = self.now + ASKED;
            self.unheard.push(unheard);
        }
    }
}
