//! SYN hold: a client's SYN is answered only when the server's leg stands (`accept = "after-server"`).
//!
//! The interception routes clients' SYNs to TUN interfaces, all of a client's for a server to the same one. Its worker
//! reads them, dials each one's server from the client's own address, and then
//!
//! - gives the SYN back to the kernel, which hands it to that worker's own listener; whoever accepts the client finds
//!   the server's leg in [`Held`]. (Mostly that worker. Of a handshake by SYN cookies the kernel keeps nothing, and
//!   chooses a listener anew for the ACK, by its addresses alone: another worker may come to have the leg.)
//! - or refuses the client as the server or the path did: a reset, an ICMP error, or silence;
//! - or gives the SYN to the listener at once, when many are held for clients who have not come (a flood, perhaps, of
//!   spoofed ones): the server is dialled for whoever comes, as with early acceptance;
//! - or, beyond the limits, lets the SYN pass unrelayed, or waits for the next one when the relay fails closed.
//!
//! Rules that accept end to end hold the last packet of a handshake by such interfaces, and nothing before it: see
//! [`crate::adopt`].

mod gates;
mod holder;
mod table;
mod window;

pub(crate) use holder::{Hold, Round, TOKENS};

use crate::{
    Accept, Result,
    adopt::{Adopting, Meant},
    intercept::Interception,
    logic::{Pair, plain},
    plan::{ConnectionPlan, RelayPlan},
};
use gates::{Gate, Gates};
use longfat_kernel::alike::Alike;
use std::{
    collections::{BTreeMap, HashMap},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};
use window::Window;

/// What the workers share.
#[derive(Debug)]
pub(crate) struct Held {
    legs: Mutex<Legs>,
    window: Arc<Mutex<Window>>,
    /// Handshakes held by all workers.
    count: AtomicUsize,
    pub gates: Gates,
    /// Adoption for rules that accept end to end.
    pub adopting: Adopting,
}

/// Servers' legs that are dialled, or stand and wait for their clients.
#[derive(Debug, Default)]
struct Legs {
    waiting: HashMap<Pair, Waiting>,
    /// By the worker that held them, with the numbers of their dials.
    taken: HashMap<usize, Vec<(Pair, u64)>>,
}

#[derive(Debug)]
struct Waiting {
    socket: TcpStream,
    /// Names the dial at its holder's.
    number: u64,
    /// Whether it stands. A client may come before: one that has come and proven itself, by another SYN.
    answered: bool,
    /// Whether the server has reset the leg since then: the error that says so has been taken from the socket.
    was_reset: bool,
    /// The index of the rule whose gate the SYN came in by.
    rule: usize,
    /// The worker that held it.
    holder: usize,
    /// When its server was dialled.
    begun: Instant,
}

/// A leg whose client has come.
#[derive(Debug)]
pub(crate) struct Taken {
    pub socket: TcpStream,
    /// The worker whose epoll knows the socket.
    pub holder: usize,
    /// The server has reset it, which its socket does not say any more.
    pub was_reset: bool,
}

/// What a plan needs, and nobody looks at yet: nothing comes in by it before rules of nftables send it there.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Prepared {
    /// By the rule's index.
    gates: BTreeMap<usize, Gate>,
    /// Rules whose interfaces are new.
    made: Vec<usize>,
    /// Rules that accept end to end.
    end_to_end: BTreeMap<usize, Arc<ConnectionPlan>>,
    /// Watching for rules that adopt in mid-stream.
    watched: Option<Meant>,
}

impl Prepared {
    /// Takes back what was made.
    pub fn discard(self, interception: &Interception) {
        self.take_back(interception);
    }

    fn take_back(&self, interception: &Interception) {
        for rule in &self.made {
            let holders = self.gates.get(rule).map_or(0, |gate| gate.tuns.len());
            interception.unhold(*rule, holders);
        }
    }
}

impl Held {
    /// Held handshakes of a relay, at most so many.
    pub fn new(most: usize) -> Held {
        let (legs, count, gates, adopting) = Default::default();
        Held { legs, window: Arc::new(Mutex::new(Window::new(most))), count, gates, adopting }
    }

    /// The server's leg of a client that has been accepted.
    pub fn take(&self, client: SocketAddr, server: SocketAddr) -> Option<Taken> {
        let pair = (plain(client), plain(server));
        let mut legs = self.lock();
        let Waiting { socket, number, holder, was_reset, .. } = legs.waiting.remove(&pair)?;
        legs.taken.entry(holder).or_default().push((pair, number));
        Some(Taken { socket, holder, was_reset })
    }

    /// Handshakes held now.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Gates for those of these rules that hold: the interfaces that are there, or new ones. With an error nothing new
    /// is left.
    pub fn prepare(
        &self,
        plan: &Arc<RelayPlan>,
        interception: &Interception,
        alike: Option<&Alike>,
    ) -> Result<Prepared> {
        interception.follow(plan)?;
        let (mut prepared, holders) = (Prepared::default(), plan.holders());
        // What is held of the first rule that accepts end to end is held of all of them.
        for (rule, way) in plan.intercepted_ways() {
            let is_first = prepared.end_to_end.is_empty();
            match way.accept {
                Accept::Early => continue,
                Accept::AfterServer => {}
                Accept::EndToEnd => {
                    prepared.end_to_end.insert(rule, Arc::clone(way));
                    if !is_first {
                        continue;
                    }
                    let group = self
                        .adopting
                        .prepare(plan, alike)
                        .inspect_err(|_| prepared.take_back(interception))?;
                    interception.log_to(group);
                }
            }
            let there = self.gates.of(rule);
            let is_new = there.is_none();
            let tuns = match there.map_or_else(|| interception.hold(rule, holders).map(Arc::new), Ok) {
                Ok(tuns) => tuns,
                Err(error) => {
                    prepared.discard(interception);
                    return Err(error);
                }
            };
            if !is_new {
                interception.find_held(rule, holders);
            }
            prepared.made.extend(is_new.then_some(rule));
            prepared.gates.insert(rule, Gate { tuns, way: Arc::clone(way), is_open: true });
            if way.accept == Accept::EndToEnd {
                interception.widen(rule, holders).inspect_err(|_| prepared.take_back(interception))?;
                prepared.watched = Some(Meant {
                    plan: Arc::clone(plan),
                    interfaces: interception.hold_indexes(rule, holders),
                    pass_mark: interception.pass_mark(),
                    is_routed: interception.is_routed() || interception.pass_mark().is_none(),
                });
            }
        }
        Ok(prepared)
    }

    /// Holds SYNs by these gates, and no others, from now on, as soon as the workers have woken.
    pub fn open(&self, prepared: Prepared) {
        self.adopting.open(prepared.end_to_end);
        self.adopting.watcher.open(prepared.watched);
        self.gates.open(prepared.gates);
    }

    /// Descriptors kept open for gates and for what is watched.
    pub fn descriptors(&self) -> usize {
        self.gates.descriptors() + self.adopting.watcher.descriptors()
    }

    fn lock(&self) -> MutexGuard<'_, Legs> {
        self.legs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
