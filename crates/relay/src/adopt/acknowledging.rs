//! Connections whose ends are acknowledged by each other alone (`acknowledge = "end-to-end"`): who is told to the
//! programs at tc, from before its sockets are made until after they have gone.

use super::{
    handshake::{Agreement, Between, LegState, Reason},
    interfaces,
    table::Pair,
};
use crate::{
    Error, Result,
    keeping::{Keeping, record::Holding},
    plan::RelayPlan,
};
use longfat_host::monotonic_us;
use longfat_kernel::{
    acknowledge::{self, Acked, Acknowledging, BeginLeg, LAYOUT},
    watch::Watched,
};
use std::{
    collections::{HashSet, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// The kernel may have sockets of a connection for so long after the relay has closed them: what they acknowledge is
/// held back, too.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// Connections that acknowledge end to end, of a relay that has, or had, a rule for it.
#[derive(Debug)]
pub(crate) struct Acks {
    programs: OnceLock<Acknowledging>,
    /// Another relay's programs for the connections that it left, whose map is laid out otherwise.
    others: Mutex<Vec<(u32, Vec<OwnedFd>)>>,
    next_birth: AtomicU32,
    ending: Mutex<VecDeque<(Instant, Pair, u32)>>,
    kept: OnceLock<Vec<u64>>,
}

impl Default for Acks {
    fn default() -> Acks {
        let (programs, others, ending, kept) = Default::default();
        // Others than those of a relay before it.
        let next_birth = AtomicU32::new(monotonic_us() as u32);
        Acks { programs, others, next_birth, ending, kept }
    }
}

impl Acks {
    /// Another relay's programs, for [`Acks::prepare`].
    pub fn inherit(&self, layout: u32, descriptors: Vec<OwnedFd>) -> Result<()> {
        if layout != LAYOUT || self.programs.get().is_some() {
            lock(&self.others).push((layout, descriptors));
            return Ok(());
        }
        let programs = Acknowledging::inherit(descriptors).map_err(|error| failed(&error))?;
        let _ = self.programs.set(programs);
        Ok(())
    }

    /// Attaches the programs, if a rule asks for them and none are there: that takes rights which a relay gives up when
    /// it has started.
    pub fn prepare(&self, plan: &RelayPlan) -> Result<()> {
        if self.programs.get().is_some() || !plan.acknowledges_end_to_end() {
            return Ok(());
        }
        let interfaces = interfaces().map_err(|error| failed(&error))?;
        let others = acknowledge::not_ethernet(&interfaces).map_err(|error| failed(&error))?;
        if !others.is_empty() {
            return Err(Error::Plan(format!(
                "acknowledge = 'end-to-end' needs Ethernet on all interfaces, and {} has none: set it down, or leave \
                 acknowledge out",
                others.join(", ")
            )));
        }
        let programs = Acknowledging::attach(&interfaces).map_err(|error| failed(&error))?;
        let _ = self.programs.set(programs);
        Ok(())
    }

    /// Sockets are put between these ends, whose handshake has passed here.
    pub fn begin_behind_handshake(&self, pair: Pair, between: &Between) -> std::result::Result<(), Reason> {
        match self.programs.get() {
            Some(programs) if !programs.has_heard_handshake(pair) => Err(Reason::Unheard),
            _ => self.begin(pair, between),
        }
    }

    /// Sockets are put between these ends.
    pub fn begin(&self, pair: Pair, between: &Between) -> std::result::Result<(), Reason> {
        let legs = [
            exactly(&between.to_client, &between.to_server),
            exactly(&between.to_server, &between.to_client),
        ];
        self.tell(pair, between.to_client.sack, legs)
    }

    /// Sockets may be put between these ends: what they acknowledge is heard from now on.
    pub fn begin_to_hear(&self, seen: &Watched, agreement: &Agreement) -> std::result::Result<(), Reason> {
        let [client_scale, server_scale] = agreement.scales;
        let legs = [
            BeginLeg::unheard(seen.client_next, seen.server_next, server_scale),
            BeginLeg::unheard(seen.server_next, seen.client_next, client_scale),
        ];
        self.tell((seen.client, seen.server), agreement.sack, legs)
    }

    /// A client that is told less than the sockets acknowledge gets acknowledgements that say the same again, which one
    /// without selective acknowledgements would count as losses (RFC 5681 section 3.2).
    fn tell(&self, pair: Pair, sack: bool, legs: [BeginLeg; 2]) -> std::result::Result<(), Reason> {
        let programs = self.programs.get().ok_or(Reason::Socket)?;
        if !sack {
            return Err(Reason::NoSack);
        }
        let birth = self.next_birth.fetch_add(1, Ordering::Relaxed);
        programs.begin(pair, birth, legs).map_err(|_| Reason::Full)
    }

    /// Whether it was heard of both ends what they have acknowledged so far.
    pub fn has_heard(&self, pair: Pair, between: &Between) -> bool {
        let Some(Acked { legs: [client, server], .. }) = self.look(pair) else { return false };
        let is_heard = |acked: u32, first: u32| acked.wrapping_sub(first) as i32 >= 0;
        is_heard(client.acked, between.to_server.send_next)
            && is_heard(server.acked, between.to_client.send_next)
    }

    /// How far both sockets of a connection are; none where nothing is held back.
    pub fn look(&self, pair: Pair) -> Option<Acked> {
        self.programs.get()?.look(pair)
    }

    /// Sockets are not put there.
    pub fn forget(&self, pair: Pair) {
        if let Some((programs, Acked { birth, .. })) = self.programs.get().zip(self.look(pair)) {
            programs.end(pair, birth);
        }
    }

    /// The relay has closed the sockets, or is about to.
    pub fn end(&self, pair: Pair) {
        if let Some(Acked { birth, .. }) = self.look(pair) {
            lock(&self.ending).push_back((Instant::now(), pair, birth));
        }
    }

    /// Forgets what has ended.
    pub fn sweep(&self, now: Instant) {
        let Some(programs) = self.programs.get() else { return };
        let mut ending = lock(&self.ending);
        while let Some((_, pair, birth)) =
            ending.pop_front_if(|(since, ..)| now.saturating_duration_since(*since) >= AFTERWARDS)
        {
            programs.end(pair, birth);
        }
    }

    /// This relay carries these connections on, and what another one had told of others ends.
    pub fn end_all_but(&self, carried: impl Iterator<Item = Pair>) {
        let Some(programs) = self.programs.get() else { return };
        let carried: HashSet<Pair> = carried.collect();
        let is_carried =
            |(one, other): Pair| carried.contains(&(one, other)) || carried.contains(&(other, one));
        programs.all().into_iter().filter(|pair| !is_carried(*pair)).for_each(|pair| self.end(pair));
    }

    /// What another relay needs of it.
    fn holdings(&self, others: &[(u32, Vec<OwnedFd>)], mut put: impl FnMut(Holding, &[BorrowedFd<'_>])) {
        if let Some(programs) = self.programs.get() {
            put(Holding::Acknowledging { layout: LAYOUT }, &programs.descriptors());
        }
        for (layout, descriptors) in others {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            put(Holding::Acknowledging { layout: *layout }, &descriptors);
        }
    }

    /// Puts it where it survives this process.
    pub fn keep(&self, keeping: &Keeping) {
        if !keeping.is_on() {
            return;
        }
        self.kept.get_or_init(|| {
            let mut ids = Vec::new();
            self.holdings(&lock(&self.others), |holding, descriptors| {
                let id = keeping.other_id();
                keeping.put(id, &holding, descriptors);
                ids.push(id);
            });
            ids
        });
    }

    /// Gives it to a successor, by the numbers by which a keeper has it.
    pub fn give<E>(
        &self,
        keeping: &Keeping,
        mut put: impl FnMut(u64, &Holding, &[BorrowedFd<'_>]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut ids = self.kept.get().cloned().unwrap_or_default().into_iter();
        let mut outcome = Ok(());
        self.holdings(&lock(&self.others), |holding, descriptors| {
            let id = ids.next().unwrap_or_else(|| keeping.other_id());
            if outcome.is_ok() {
                outcome = put(id, &holding, descriptors);
            }
        });
        outcome
    }

    /// Descriptors kept open.
    pub fn descriptors(&self) -> usize {
        let own = self.programs.get().map_or(0, Acknowledging::descriptor_count);
        own + lock(&self.others).iter().map(|(_, descriptors)| descriptors.len()).sum::<usize>()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(error: &longfat_kernel::Error) -> Error {
    Error::Plan(format!(
        "acknowledge: acknowledgements cannot be held back ({error}); a relay that runs cannot begin to: restart it"
    ))
}

/// How far a socket is, beside the other one.
fn exactly(leg: &LegState, other: &LegState) -> BeginLeg {
    BeginLeg {
        acked: other.send_next,
        received: leg.receive_next,
        sent: leg.send_next.wrapping_add(leg.unacknowledged.len() as u32),
        scale: leg.own_scale,
    }
}
