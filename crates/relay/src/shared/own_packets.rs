//! How an intercepting relay's own packets are told from those that it takes, and how it sends whole packets.

use crate::{
    LegPlan, RelayPlan, Result,
    keeping::{Keeping, record::Holding},
    legs::{
        leg::{self, Leg},
        tun::{Raw, seen_once},
    },
    logic::{Pair, packet},
    observe::journal::Journal,
    plan::marks::passing_mark,
};
use longfat_kernel::alike::{self, Alike};
use std::{
    net::{IpAddr, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Nothing of a relay that does not intercept.
#[derive(Default)]
pub(crate) struct OwnPackets {
    mark: Option<u32>,
    /// Past the interception.
    raw: Option<Raw>,
    /// Socket for packets that were held and go on to their servers.
    passing: Option<Raw>,
    /// Makes the packets of intercepted connections look forwarded, where the kernel lets it.
    alike: OnceLock<Alike>,
    /// Numbers of its links at whoever keeps them.
    kept: OnceLock<Vec<u64>>,
    /// What arrives for the relay's sockets is marked no more.
    is_unmarked: AtomicBool,
}

impl OwnPackets {
    /// Packets that look like a relay's until [`OwnPackets::resemble`] is called.
    pub fn new(mark: Option<u32>) -> Result<OwnPackets> {
        Ok(OwnPackets {
            mark,
            raw: mark.map(Raw::new).transpose()?,
            passing: mark.map(|mark| Raw::new(passing_mark(mark))).transpose()?,
            alike: OnceLock::new(),
            kept: OnceLock::new(),
            is_unmarked: AtomicBool::new(false),
        })
    }

    /// Makes them look forwarded from now on. `left` is what a relay before this one had at interfaces.
    pub fn resemble(&self, left: Vec<OwnedFd>, journal: &Journal) {
        let alike = self.mark.and_then(|mark| attach_alike(mark, left, journal));
        alike.into_iter().for_each(|alike| drop(self.alike.set(alike)));
    }

    /// Has most packets of connections that are carried marked as taken when they come in, which spares nftables a look
    /// for their sockets. Not once [`OwnPackets::leave_unmarked`] was called, as it is here where a plan asks for it.
    pub fn mark_carried(&self, plan: &RelayPlan, taken_mark: u32) {
        let may_vanish = plan.steps_in() || plan.moves.is_some();
        if may_vanish || !plan.listeners.is_empty() || self.is_unmarked.load(Ordering::Acquire) {
            return self.leave_unmarked();
        }
        self.mark_arriving(taken_mark);
    }

    /// nftables looks for every packet's socket from now on: some sockets may vanish without a word, as those between
    /// ends that go on with each other, or are found by addresses that may be translated.
    pub fn leave_unmarked(&self) {
        self.is_unmarked.store(true, Ordering::Release);
        self.mark_arriving(0);
    }

    fn mark_arriving(&self, mark: u32) {
        // Where the kernel refuses, nftables looks.
        self.alike().into_iter().for_each(|alike| drop(alike.mark_carried(mark)));
    }

    /// Mark of the relay's own packets, when it intercepts.
    pub fn mark(&self) -> Option<u32> {
        self.mark
    }

    /// What makes them look forwarded.
    pub fn alike(&self) -> Option<&Alike> {
        self.alike.get()
    }

    /// Puts what makes them look forwarded where it survives this process: packets of its sockets look so while nobody
    /// has these, and the next relay need not wait for the kernel.
    pub fn keep(&self, keeping: &Keeping) {
        let Some(alike) = self.alike().filter(|_| keeping.is_on()) else { return };
        self.kept.get_or_init(|| {
            // One that has no descriptors left makes its successor wait.
            let links = alike.links().unwrap_or_default();
            links.iter().map(|link| put_link(keeping, link)).collect()
        });
    }

    /// What of that is kept, by its numbers there.
    pub fn kept(&self) -> Vec<(u64, OwnedFd)> {
        let links = self.alike().and_then(|alike| alike.links().ok()).unwrap_or_default();
        self.kept.get().into_iter().flatten().copied().zip(links).collect()
    }

    /// Descriptors kept open.
    pub fn descriptors(&self) -> usize {
        self.alike().map_or(0, Alike::descriptors)
    }

    /// A leg of an intercepted connection, or of one of the relay's own clients.
    pub fn leg<'p>(&self, plan: &'p LegPlan, is_intercepted: bool) -> Leg<'p> {
        Leg { plan, transparent: self.mark.filter(|_| is_intercepted) }
    }

    /// Sends a whole packet past the interception.
    pub fn send(&self, packet: &[u8], to: IpAddr) {
        self.raw.iter().for_each(|raw| raw.send(packet, to));
    }

    /// Sends a packet that was held on to its receiver. On its way out nftables forgets that its connection is held.
    pub fn pass_on(&self, packet: &[u8], to: IpAddr) {
        self.passing.iter().for_each(|raw| raw.send(packet, to));
    }

    /// The address this host uses towards `to`.
    pub fn source_towards(&self, to: IpAddr) -> Option<IpAddr> {
        self.raw.as_ref().and_then(|raw| raw.source_towards(to))
    }

    /// Ends an unfinished dial for a client: its server, which may have answered in the meantime, forgets it before the
    /// client's next SYN comes.
    pub fn abandon(&self, socket: &TcpStream, pair: Pair) {
        if let Some(raw) = &self.raw
            && let Some(sequence) = leg::unanswered_sequence(socket)
        {
            raw.send(&packet::reset_behind_syn(pair, sequence), pair.1.ip());
        }
    }
}

fn put_link(keeping: &Keeping, link: &OwnedFd) -> u64 {
    let id = keeping.other_id();
    keeping.put(id, &Holding::Alike {}, &[link.as_fd()]);
    id
}

/// On all interfaces but those of relays. Without it connections are relayed all the same.
fn attach_alike(own_mark: u32, left: Vec<OwnedFd>, journal: &Journal) -> Option<Alike> {
    let attached = match alike::missing().first() {
        Some(missing) => Err(missing.to_string()),
        None => seen_once()
            .map_err(longfat_kernel::Error::from)
            .and_then(|interfaces| Alike::attach(&interfaces, own_mark, left))
            .map_err(|error| error.to_string()),
    };
    let told = attached.inspect_err(|why| {
        journal.warn(&format!(
            "traffic classes (DSCP), times to live and flow labels do not pass from leg to leg: {why} (see 'What packets \
             look like' in docs/reference/relay-guarantees.md)"
        ));
    });
    told.ok()
}
