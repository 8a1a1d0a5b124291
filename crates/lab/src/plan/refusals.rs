//! What of a plan cannot be carried out slower than it is meant. Pure.

use super::{FlowPlan, Plan, RelayPlan, need::round_trip_ns};
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
    plan.relays.iter().for_each(|relay| of_relay(relay, &mut found));
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
        found.extend(cc.as_deref().and_then(|cc| of_cc(&format!("flows.{}.{key}", flow.name), cc)));
    }
    if flow.arrivals == Arrivals::Onoff {
        let message =
            "bursts of on-off traffic last 50 ms at any speed; choose another law, or write dilate = 1";
        found.push(Problem::new(format!("flows.{}.arrivals", flow.name), message));
    }
}

/// A relay is told how long data gather, and how much slower the time of its queues goes.
fn of_relay(relay: &RelayPlan, found: &mut Vec<Problem>) {
    for (key, cc) in [("cc_client", &relay.cc_client), ("cc_server", &relay.cc_server)] {
        found.extend(of_cc(&format!("relays.{}.{key}", relay.name), cc));
    }
}

fn of_cc(place: &str, cc: &str) -> Option<Problem> {
    if !has_own_clock(cc) {
        return None;
    }
    let ours = Algorithm::find(cc).map_or("one of ours".to_owned(), |ours| ours.kernel_name());
    let message = format!(
        "'{cc}' takes its time from the kernel, which cannot be slowed; use {ours}, whose time is given, or write \
         dilate = 1"
    );
    Some(Problem::new(place.to_owned(), message))
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
