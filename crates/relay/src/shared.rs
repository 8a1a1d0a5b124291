//! Handles that workers share, and are given with whatever works for them.

mod admission;
mod bypass;
mod own_packets;

pub(crate) use admission::Admission;
pub(crate) use bypass::Bypass;
pub(crate) use own_packets::OwnPackets;

use crate::{RelayPlan, observe::journal::Journal};
use std::sync::atomic::{AtomicBool, Ordering};

/// What all threads of a relay ask and tell.
pub(crate) struct Shared<'a> {
    pub plan: &'a RelayPlan,
    pub journal: &'a Journal<'a>,
    pub stage: Stage,
    pub admission: Admission<'a>,
    pub packets: OwnPackets,
    pub bypass: Bypass<'a>,
}

impl<'a> Shared<'a> {
    /// State of a relay at its start; `packets` are those of one that intercepts.
    pub fn new(plan: &'a RelayPlan, packets: OwnPackets, journal: &'a Journal<'a>) -> Shared<'a> {
        Shared {
            plan,
            journal,
            stage: Stage::default(),
            admission: Admission::new(plan, journal),
            packets,
            bypass: Bypass::new(plan.fail, journal),
        }
    }
}

/// How far the relay is on its way to its end.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    draining: AtomicBool,
    expired: AtomicBool,
}

impl Stage {
    /// No new connections; the workers end when there are none left.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The drain time is over: what still lives is reset.
    pub fn is_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub fn expire(&self) {
        self.expired.store(true, Ordering::Release);
    }
}
