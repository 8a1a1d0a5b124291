//! A run carried out N times slower than it is meant: rates divided, times multiplied, bytes as they are. So the path's
//! dynamics are those of the fast path, and every hold-up of the machine counts N times less.
//!
//! Two places know of it. [`slowed()`] makes the plan that is carried out of the experiment's own; what comes back is
//! brought to the experiment's time by [`longfat_schema::own_time::OwnTime`]. Everything else, figures and judge
//! included, sees the experiment's plan and the experiment's time.
//!
//! TCP's own clocks slow down with it. Our congestion controls are given the time ([`longfat_kernel::cc::hold_with`]);
//! what the kernel takes from parameters of the host is multiplied there ([`slowed()`]), what it takes from those of an
//! interface once that is there ([`neighbour_wait`]), and the first timeout of a connection by a program
//! ([`first_timeout`]). [`refusals`] names what has a clock that nobody can slow.

mod slowed;

pub use crate::{
    plan::{
        need::{Need, least, round_trip_ns},
        refusals::refusals,
    },
    spec::DilateSpec,
};
pub use slowed::slowed;

use crate::{
    plan::{CablePlan, Plan},
    spec::Protocol,
};
use longfat_schema::own_time::Dilation;
use std::time::Duration;

/// Slower than this, a second takes an hour.
pub const MOST: u32 = DilateSpec::MOST;

/// First retransmission timeout of a connection at its own speed (RFC 6298, section 2.1).
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a neighbour's answer is waited for (RFC 4861, section 10, `RETRANS_TIMER`; the kernel does alike for ARP).
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(1);

/// After how long the connections of a slowed run take their first packet for lost; `None` where the kernel's own
/// second is right.
pub fn first_timeout(plan: &Plan) -> Option<Duration> {
    let has_tcp = plan.flows.iter().any(|flow| flow.protocol == Protocol::Tcp);
    (has_tcp && !plan.dilation.is_none()).then(|| FIRST_TIMEOUT * plan.dilation.times())
}

/// How long the hosts of a slowed run wait for a neighbour's answer, of which they miss three before it counts as gone;
/// `None` where the kernel's own second is right.
pub fn neighbour_wait(plan: &Plan) -> Option<Duration> {
    (!plan.dilation.is_none()).then(|| NEIGHBOUR_WAIT * plan.dilation.times())
}

/// What slows down less than the rest, in words for who reads a run's figures.
pub fn remarks(plan: &Plan, dilation: Dilation) -> Vec<String> {
    let has_tcp = plan.flows.iter().any(|flow| flow.protocol == Protocol::Tcp);
    if dilation.is_none() || !has_tcp {
        return Vec::new();
    }
    let delayed = format!(
        "dilation {dilation}: an acknowledgement is delayed by at most {} ms (40 ms of the kernel's time)",
        f64::from(40_000 / dilation.times()) / 1000.0
    );
    let spaced = plan.links.iter().filter_map(|cable| wide(cable, dilation));
    std::iter::once(delayed).chain(spaced).collect()
}

/// Least time for which a receiver holds an acknowledgement back (`TCP_DELACK_MIN`).
const DELACK_NS: u64 = 40_000_000;

/// Packets further apart than an acknowledgement is delayed are acknowledged one by one.
fn wide(cable: &CablePlan, dilation: Dilation) -> Option<String> {
    let path = cable.path.as_ref()?;
    let rates = [&path.forward, &path.backward].into_iter().filter_map(|direction| direction.line.rate_bps);
    let spacing_ns = 8_000_000_000 * u64::from(cable.mtu_bytes) / rates.filter(|bps| *bps > 0).min()?;
    let is_wide = spacing_ns < DELACK_NS && spacing_ns * u64::from(dilation.times()) >= DELACK_NS;
    is_wide.then(|| {
        format!(
            "warning: dilation {dilation}: packets of link '{}' come further apart than acknowledgements are delayed, so \
             each is acknowledged, where at its own speed every second one is",
            cable.name
        )
    })
}

#[cfg(test)]
mod tests;
