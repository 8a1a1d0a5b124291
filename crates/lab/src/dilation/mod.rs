//! A run carried out N times slower than it is meant: rates divided, times multiplied, bytes as they are. So the path's
//! dynamics are those of the fast path, and every hold-up of the machine counts N times less.
//!
//! Two places know of it. [`slowed()`] makes the plan that is carried out of the experiment's own; what comes back is
//! brought to the experiment's time by [`longfat_schema::own_time::OwnTime`]. Everything else, figures and judge
//! included, sees the experiment's plan and the experiment's time.
//!
//! TCP's own clocks slow down with it. Our congestion controls are given the time ([`longfat_kernel::cc::hold_with`]);
//! what the kernel takes from parameters of the host is multiplied there ([`slowed()`]). [`refusals`] names what has a
//! clock that nobody can slow.

mod need;
mod slowed;
mod spec;

pub use need::{Need, drain_ns, least, round_trip_ns};
pub use slowed::slowed;
pub use spec::DilateSpec;

use crate::{
    plan::{CablePlan, FlowPlan, Plan},
    spec::Protocol,
};
use longfat_cc::Algorithm;
use longfat_schema::{arrivals::Arrivals, decode::Problem, own_time::Dilation};

/// Slower than this, a second takes an hour.
pub const MOST: u32 = 3600;

/// Congestion controls of the kernel that count round trips and segments, and know no time.
const CLOCKLESS: [&str; 4] = ["reno", "highspeed", "scalable", "dctcp"];

/// The kernel asks for a connection once more after one second, whatever is set, and harms nobody…
const SYN_TIMEOUT_NS: u64 = 1_000_000_000;
/// …but one that was asked for a third time begins with a window of one segment (`tcp_init_transfer`).
const SYN_TIMEOUTS_NS: u64 = 3 * SYN_TIMEOUT_NS;

/// What of a plan has a clock that does not slow down with it, each with the mend.
pub fn refusals(plan: &Plan, dilation: Dilation) -> Vec<Problem> {
    if dilation.is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    plan.flows.iter().for_each(|flow| of_flow(flow, &mut found));
    for relay in &plan.relays {
        let message = "times of its own (how long data gather, how often queues are looked at) do not slow down; leave it \
                       out, or write dilate = 1";
        found.push(Problem::new(format!("relays.{}", relay.name), message));
    }
    for follow in &plan.follows {
        let message = "hosts that follow a link have times of their own, which do not slow down; leave it out, or write \
                       dilate = 1";
        found.push(Problem::new(format!("follows.{}", follow.name), message));
    }
    found.extend(plan.flows.iter().filter_map(|flow| late_connection(plan, flow, dilation)));
    found
}

fn of_flow(flow: &FlowPlan, found: &mut Vec<Problem>) {
    for (key, cc) in [("cc", &flow.cc), ("cc_receiver", &flow.cc_receiver)] {
        let Some(cc) = cc.as_deref().filter(|cc| has_own_clock(cc)) else { continue };
        let ours = Algorithm::find(cc).map_or("one of ours".to_owned(), |ours| ours.kernel_name());
        let message = format!(
            "'{cc}' takes its time from the kernel, which cannot be slowed; use {ours}, whose time is given, or write \
             dilate = 1"
        );
        found.push(Problem::new(format!("flows.{}.{key}", flow.name), message));
    }
    if flow.arrivals == Arrivals::Onoff {
        let message =
            "bursts of on-off traffic last 50 ms at any speed; choose another law, or write dilate = 1";
        found.push(Problem::new(format!("flows.{}.arrivals", flow.name), message));
    }
}

fn has_own_clock(cc: &str) -> bool {
    !Algorithm::is_our_name(cc) && !CLOCKLESS.contains(&cc)
}

/// A connection that the kernel takes for lost begins otherwise than meant.
fn late_connection(plan: &Plan, flow: &FlowPlan, dilation: Dilation) -> Option<Problem> {
    let rtt_ns = need::round_trip_ns(plan, flow);
    let slowed_ns = rtt_ns.saturating_mul(dilation.times().into());
    let most = (SYN_TIMEOUTS_NS - 1).checked_div(rtt_ns).unwrap_or(u64::MAX).max(1);
    let message = || {
        format!(
            "a round trip of '{}' takes {} ms, {} ms when {dilation} times slower, and the kernel asks a third time for a \
             connection after 3 s, which then begins otherwise; write dilate = {most} at most",
            flow.name,
            rtt_ns / 1_000_000,
            slowed_ns / 1_000_000
        )
    };
    let fits = slowed_ns < SYN_TIMEOUTS_NS;
    (flow.protocol == Protocol::Tcp && !fits).then(|| Problem::new("dilate", message()))
}

/// What slows down less than the rest, in words for who reads a run's figures.
pub fn remarks(plan: &Plan, dilation: Dilation) -> Vec<String> {
    let has_tcp = plan.flows.iter().any(|flow| flow.protocol == Protocol::Tcp);
    if dilation.is_none() || !has_tcp {
        return Vec::new();
    }
    let delayed = format!(
        "dilation {dilation}: an acknowledgement is delayed by at most {} ms (40 ms of the kernel's time)",
        40.0 / f64::from(dilation.times())
    );
    let asked = plan.flows.iter().filter_map(|flow| asked_twice(plan, flow, dilation));
    let spaced = plan.links.iter().filter_map(|cable| wide(cable, dilation));
    std::iter::once(delayed).chain(asked).chain(spaced).collect()
}

/// A retransmission that is the kernel's clock's.
fn asked_twice(plan: &Plan, flow: &FlowPlan, dilation: Dilation) -> Option<String> {
    let rtt_ns = round_trip_ns(plan, flow);
    let is_late = rtt_ns < SYN_TIMEOUT_NS && rtt_ns * u64::from(dilation.times()) >= SYN_TIMEOUT_NS;
    let message = || {
        format!(
            "dilation {dilation}: connections of '{}' are asked for twice (1 s of the kernel's time)",
            flow.name
        )
    };
    (flow.protocol == Protocol::Tcp && is_late).then(message)
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
