//! What of a plan cannot be carried out slower than it is meant. Pure.

use super::{FlowPlan, Plan, need::round_trip_ns};
use crate::spec::Protocol;
use longfat_cc::Algorithm;
use longfat_kernel::first_timeout::LONGEST;
use longfat_schema::{arrivals::Arrivals, decode::Problem, own_time::Dilation};
use std::time::Duration;

/// Congestion controls of the kernel that count round trips and segments, and know no time.
const CLOCKLESS: [&str; 4] = ["reno", "highspeed", "scalable", "dctcp"];

/// A retransmission timeout is at first three times the round trip (RFC 6298, section 2.2), and never longer than
/// [`LONGEST`]: over a longer round trip than a third of that everything would be sent twice.
const MOST_ROUND_TRIP: Duration = Duration::from_secs(LONGEST.as_secs() / 3);

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
    found.extend(plan.flows.iter().filter_map(|flow| endless_round_trip(plan, flow, dilation)));
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

/// A round trip that outlasts the longest timeout there is.
fn endless_round_trip(plan: &Plan, flow: &FlowPlan, dilation: Dilation) -> Option<Problem> {
    let rtt = Duration::from_nanos(round_trip_ns(plan, flow));
    let slowed = rtt.saturating_mul(dilation.times());
    let message = || {
        let most = MOST_ROUND_TRIP.as_nanos().checked_div(rtt.as_nanos()).unwrap_or(1).max(1);
        format!(
            "a round trip of '{}' takes {} ms, {} ms when {dilation} times slower, and no retransmission timeout of the \
             kernel's is longer than {} s, three round trips; write dilate = {most} at most",
            flow.name,
            rtt.as_millis(),
            slowed.as_millis(),
            LONGEST.as_secs()
        )
    };
    let fits = slowed <= MOST_ROUND_TRIP;
    (flow.protocol == Protocol::Tcp && !fits).then(|| Problem::new("dilate", message()))
}
