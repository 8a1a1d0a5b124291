//! The relay that hands over.
//!
//! Its workers stand still between two turns, and each sends what it has. Nothing is closed: both processes have the
//! sockets now, and nobody touches them. The successor says that it holds everything, is told to go on, and this relay
//! ends. If the successor fails at any point before, or takes too long, the workers go on where they stood.

use super::{answers::Answers, reload::Running};
use crate::{
    Error, Observer, RelayPlan, Result,
    handover::estate::{PREDECESSOR, hello, understand},
    keeping::{
        record::{Holding, Message, Say},
        wire::{self, Wire},
    },
    worker::{Phase, Workers},
};
use longfat_kernel::watch::LAYOUT;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

/// How long a successor may take for what it prepares while this relay works.
const PREPARING: Duration = Duration::from_secs(10);
/// How long everything may stand still.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Where a successor asks.
#[derive(Debug)]
pub(crate) struct Exit {
    listener: Option<OwnedFd>,
}

impl Exit {
    /// Listens, unless another relay of that name does, or goes on where a predecessor listened.
    pub fn open(plan: &RelayPlan, inherited: Option<OwnedFd>, observer: &dyn Observer) -> Result<Exit> {
        if inherited.is_some() {
            return Ok(Exit { listener: inherited });
        }
        let opened = wire::address(&plan.name, PREDECESSOR).and_then(|address| wire::listening(&address));
        let listener = opened.map_err(|source| Error::io("listen for a successor", source))?;
        if listener.is_none() {
            observer.warning(&format!(
                "another relay named '{}' runs in this network namespace: this one cannot be upgraded (see --name)",
                plan.name
            ));
        }
        Ok(Exit { listener })
    }

    /// Whether a successor came, and has everything now.
    pub fn look(&self, workers: &Workers, running: &mut Running, answers: &Answers) -> bool {
        let Some(listener) = &self.listener else { return false };
        let outcome = match Wire::accept(listener) {
            Ok(None) => return false,
            Ok(Some(wire)) => {
                workers.held.adopting.begin_handing_over();
                hand_over(workers, running, (answers, listener), wire)
            }
            Err(source) => Err(Error::io("listen to a successor", source)),
        };
        let Err(error) = outcome else { return true };
        workers.held.adopting.forget_handshakes();
        workers.shared.journal.warn(&format!("nothing was handed over, this relay goes on: {error}"));
        false
    }
}

fn hand_over(
    workers: &Workers,
    running: &mut Running,
    listening: (&Answers, &OwnedFd),
    wire: Wire,
) -> Result<()> {
    let failed = |source| Error::io("hand over to a successor", source);
    let who = "the successor";
    wire.wait_at_most(PREPARING).map_err(failed)?;
    let hello_of_it = wire.expect(Say::Hello, who)?;
    if let Err(why) = understand(&hello_of_it) {
        let refusal = Message { say: Say::Refused, id: 0, body: why.clone().into_bytes() };
        wire.send(&refusal, &[]).map_err(failed)?;
        return Err(Error::Plan(why));
    }
    wire.send(&hello(&running.plan), &[]).map_err(failed)?;
    give_the_rest(workers, running, listening, &wire).map_err(failed)?;
    let wire = Arc::new(wire);
    let given = wire.expect(Say::Give, who).and_then(|_| give_connections(workers, &wire));
    match given {
        Ok(()) => {
            workers.standstill.end(Phase::Left);
            running.leave();
            Ok(())
        }
        Err(error) => {
            workers.standstill.end(Phase::Going);
            // The successor may have begun to say in the rules whose they are.
            running.stay(workers);
            Err(error)
        }
    }
}

/// Listeners, interfaces and what else is not a connection: a successor prepares itself with them.
fn give_the_rest(
    workers: &Workers,
    running: &Running,
    (answers, exit): (&Answers, &OwnedFd),
    wire: &Wire,
) -> io::Result<()> {
    // What a keeper has goes by the same number, by which the successor takes it back from there.
    let put_as = |id: Option<u64>, holding: &Holding, descriptor: BorrowedFd<'_>| {
        let id = id.unwrap_or_else(|| workers.keeping.other_id());
        wire.send(&Message::with(Say::Put, id, holding), &[descriptor])
    };
    let put = |holding: &Holding, descriptor: BorrowedFd<'_>| put_as(None, holding, descriptor);
    for (id, holding, listener) in running.listeners.holdings() {
        put_as(id, &holding, listener.as_fd())?;
    }
    for (rule, gate) in workers.held.gates.interfaces() {
        for (holder, tun) in gate.iter().enumerate() {
            let id = workers.held.gates.kept_id(rule, holder);
            put_as(id, &Holding::Interface { rule, holder }, tun.file().as_fd())?;
        }
    }
    let life = running.interception.and_then(|interception| interception.life());
    life.map_or(Ok(()), |life| put(&Holding::Life {}, life.as_fd()))?;
    put(&Holding::Exit {}, exit.as_fd())?;
    let control = answers.control.as_ref();
    control.map_or(Ok(()), |control| put(&Holding::Control {}, control.as_fd()))?;
    let metrics = answers.metrics.as_ref();
    metrics.map_or(Ok(()), |metrics| put(&Holding::Metrics {}, metrics.as_fd()))?;
    for (id, link) in workers.shared.packets.kept() {
        put_as(Some(id), &Holding::Alike {}, link.as_fd())?;
    }
    let watcher = &workers.held.adopting.watcher;
    if let Some(known) = watcher.known() {
        let id = watcher.kept_id().unwrap_or_else(|| workers.keeping.other_id());
        wire.send(&Message::with(Say::Put, id, &Holding::Watched { layout: LAYOUT }), &known)?;
    }
    watcher.acks.give(&workers.keeping, |id, holding, descriptors| {
        wire.send(&Message::with(Say::Put, id, holding), descriptors)
    })?;
    let keeper = workers.keeping.with_wire(|keeper| put(&Holding::Keeper {}, keeper.as_fd()));
    keeper.unwrap_or(Ok(()))?;
    wire.send(&Message::bare(Say::End, 0), &[])
}

fn give_connections(workers: &Workers, wire: &Arc<Wire>) -> Result<()> {
    let failed = |source| Error::io("hand over connections", source);
    wire.wait_at_most(STANDSTILL).map_err(failed)?;
    workers.standstill.begin(workers, wire, STANDSTILL).map_err(failed)?;
    wire.send(&Message::bare(Say::End, 0), &[]).map_err(failed)?;
    wire.expect(Say::Held, "the successor")?;
    wire.send(&Message::bare(Say::Go, 0), &[]).map_err(failed)
}
