//! What whoever runs a relay may ask of it.

use crate::RelayPlan;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a relay shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// The relay goes on.
    No,
    /// New connections pass; living ones have the drain time.
    Drain,
    /// Living connections are reset at once.
    Now,
}

/// Asked again and again, every few tens of milliseconds, by the thread that runs the relay. Must not wait.
pub trait Commands: Sync {
    /// Whether to end; never less than before.
    fn stop(&self) -> Stop;

    /// A new plan, or why there is none, each time one was asked for.
    fn reload(&self) -> Option<Result<RelayPlan, String>> {
        None
    }

    /// Makes what a plan names usable, its congestion controls above all, or says why it is not.
    fn equip(&self, _plan: &RelayPlan) -> Result<(), String> {
        Ok(())
    }
}

/// Raised: drain.
impl Commands for AtomicBool {
    fn stop(&self) -> Stop {
        if self.load(Ordering::Acquire) { Stop::Drain } else { Stop::No }
    }
}
