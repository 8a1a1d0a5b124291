//! Whether a run's numbers may be trusted, and whether an experiment's expectations were met. Pure.

mod beside;
mod expect;
mod hold_ups;
mod idle_relays;

pub(crate) use beside::beside_twins;
pub use expect::{expectation, figures, within};
pub(crate) use hold_ups::{HeldUp, consequences, held_up};

use crate::{
    plan::{FlowPlan, Plan},
    samples::Samples,
    spec::Protocol,
};
use longfat_schema::{
    record::FlowSummary,
    run::{Metric, RunStatus},
};
use std::collections::{BTreeMap, BTreeSet};

/// Busy CPU from which a reader is warned though no limit was given: what waits for a processor is late.
const CPU_WARNING: f64 = 0.97;

/// Warnings of programs that a manifest quotes; all of them are in the table of notes.
const WARNINGS_SHOWN: usize = 3;

/// Why a flow on a machine began late.
const BUSY: &str = "the machine was too busy";

/// Why a simulated flow began late: there is no machine that could be.
const UNANSWERED: &str = "its handshake took longer, by packets that were lost or waited in a queue";

/// How a run ended and why, from what its programs said.
pub fn verdict(plan: &Plan, samples: &Samples, metrics: &[Metric]) -> (RunStatus, Vec<String>) {
    judged(plan, samples, metrics, BUSY)
}

/// A verdict with what is to be said of relays that took nothing: `as_run` is the plan as it happened, which on real
/// hosts has their interfaces where `plan` has its links.
pub fn with_idle_relays(
    (status, mut reasons): (RunStatus, Vec<String>),
    (plan, as_run): (&Plan, &Plan),
    samples: &Samples,
) -> (RunStatus, Vec<String>) {
    let idle = idle_relays::faults(plan, as_run, samples);
    if status == RunStatus::Failed || idle.is_empty() {
        return (status, reasons);
    }
    // What is only remarked of a run is not why it is invalid.
    reasons.retain(|_| status == RunStatus::Invalid);
    reasons.extend(idle);
    (RunStatus::Invalid, reasons)
}

/// [`verdict`] of a simulated run.
pub fn simulated_verdict(plan: &Plan, samples: &Samples, metrics: &[Metric]) -> (RunStatus, Vec<String>) {
    judged(plan, samples, metrics, UNANSWERED)
}

fn judged(plan: &Plan, samples: &Samples, metrics: &[Metric], late: &str) -> (RunStatus, Vec<String>) {
    let failed = flow_errors(plan, samples);
    if !failed.is_empty() {
        return (RunStatus::Failed, failed);
    }
    let mut reasons = link_faults(samples);
    reasons.extend(cc_faults(plan, samples));
    reasons.extend(start_faults(plan, samples, late));
    reasons.extend(hold_ups::faults(plan, samples));
    let cpu = Metric::find(metrics, "cpu_busy_ratio", "");
    reasons.extend(cpu_fault(plan, cpu));
    if !reasons.is_empty() {
        return (RunStatus::Invalid, reasons);
    }
    (RunStatus::Done, warnings(plan, samples, cpu))
}

fn flow_errors(plan: &Plan, samples: &Samples) -> Vec<String> {
    let mut found = Vec::new();
    for flow in &plan.flows {
        let mine = || samples.flow.iter().filter(|summary| summary.flow == flow.name);
        let errors = mine().filter_map(|summary| {
            summary
                .error
                .as_ref()
                .map(|error| format!("flow '{}' stream {}: {error}", flow.name, summary.stream))
        });
        found.extend(errors);
        let streams: BTreeSet<u32> = mine().map(|summary| summary.stream).collect();
        if streams.len() < flow.streams as usize {
            let message = format!(
                "flow '{}': {} of {} streams reported what they came to",
                flow.name,
                streams.len(),
                flow.streams
            );
            found.push(message);
        }
        found.extend(unfinished(flow, mine()));
    }
    found
}

/// A flow of a given size that the end of the run cut off.
fn unfinished<'a>(flow: &FlowPlan, streams: impl Iterator<Item = &'a FlowSummary>) -> Option<String> {
    let size = flow.size_bytes?;
    let received: u64 = streams.map(|summary| summary.received_bytes).sum();
    let message = || {
        format!(
            "flow '{}': {received} of {size} bytes had arrived when the run ended; give it a longer run",
            flow.name
        )
    };
    (received < size).then(message)
}

fn link_faults(samples: &Samples) -> Vec<String> {
    let mut found = Vec::new();
    for link in &samples.link {
        let name = format!("link '{}' {}", link.link, link.direction);
        if link.overrun_packets > 0 {
            found.push(format!("{name}: its driver lost {} packets of its own", link.overrun_packets));
        }
        if !link.punctual && link.late_p99_us > link.late_limit_us {
            let message = format!(
                "{name}: 1 % of packets left more than {} us late (limit {} us): the machine was too busy",
                link.late_p99_us, link.late_limit_us
            );
            found.push(message);
        } else if !link.punctual && link.overrun_packets == 0 {
            let paused_ms = link.paused_us / 1000;
            found.push(format!(
                "{name}: its driver did not keep the path it was to emulate; the machine stood still for {paused_ms} ms \
                 of the run"
            ));
        }
    }
    found
}

/// Flows compete from the start: one that began late met another path than was planned.
fn start_faults(plan: &Plan, samples: &Samples, why: &str) -> Vec<String> {
    let mut latest: BTreeMap<&str, i64> = BTreeMap::new();
    for summary in &samples.flow {
        let is_its = |flow: &&FlowPlan| flow.name == summary.flow && flow.protocol == Protocol::Tcp;
        let Some(flow) = plan.flows.iter().find(is_its) else { continue };
        let planned_us = flow.start_us + u64::from(summary.stream) * flow.stagger_us;
        let late_us = latest.entry(&flow.name).or_default();
        *late_us = (*late_us).max(summary.start_us - planned_us as i64);
    }
    let late = latest.into_iter().filter(|(_, late_us)| *late_us > plan.start_within_us as i64);
    late.map(|(flow, late_us)| format!("flow '{flow}' began {} ms late: {why}", late_us / 1000)).collect()
}

/// Every control block must have run under the congestion control that was planned.
fn cc_faults(plan: &Plan, samples: &Samples) -> Vec<String> {
    let mut found = BTreeSet::new();
    for sample in &samples.tcp {
        let planned = planned_cc(plan, &sample.flow, &sample.role);
        if let Some(planned) = planned.filter(|planned| *planned != sample.cc) {
            found.insert(wrong_cc(&sample.flow, &sample.role, &sample.cc, planned));
        }
    }
    for summary in &samples.flow {
        let ends = [("sender", &summary.cc_sender), ("receiver", &summary.cc_receiver)];
        for (role, cc) in ends {
            let planned = planned_cc(plan, &summary.flow, role);
            if let Some(planned) = planned.filter(|planned| planned != cc) {
                found.insert(wrong_cc(&summary.flow, role, cc, planned));
            }
        }
    }
    found.into_iter().collect()
}

fn wrong_cc(of: &str, role: &str, found: &str, planned: &str) -> String {
    format!("'{of}' {role}: ran under '{found}' instead of '{planned}'")
}

fn planned_cc<'a>(plan: &'a Plan, of: &str, role: &str) -> Option<&'a str> {
    let flow = |flow: &&FlowPlan| flow.name == of && flow.protocol == Protocol::Tcp;
    let flow = plan.flows.iter().find(flow);
    let relay = plan.relays.iter().find(|relay| relay.name == of);
    match role {
        "sender" => flow?.cc.as_deref(),
        "receiver" => flow?.cc_receiver.as_deref(),
        "relay_in" => Some(&relay?.cc_client),
        "relay_out" => Some(&relay?.cc_server),
        _ => None,
    }
}

fn cpu_fault(plan: &Plan, cpu: Option<f64>) -> Option<String> {
    let (limit, busy) = (plan.cpu_limit?, cpu?);
    let message = || format!("processors were {:.1} % busy (cpu_limit {:.1} %)", busy * 100.0, limit * 100.0);
    (busy > limit).then(message)
}

fn warnings(plan: &Plan, samples: &Samples, cpu: Option<f64>) -> Vec<String> {
    let mut found = Vec::new();
    if plan.cpu_limit.is_none() && cpu.is_some_and(|busy| busy > CPU_WARNING) {
        let busy = cpu.unwrap_or_default() * 100.0;
        found.push(format!(
            "warning: processors were {busy:.1} % busy; the figures may be this machine's limit"
        ));
    }
    let notes = samples.note.iter().filter(|note| note.level == "warning");
    let notes: BTreeSet<_> =
        notes.map(|note| format!("warning: {}: {}", note.source, note.message)).collect();
    let more = notes.len().saturating_sub(WARNINGS_SHOWN);
    found.extend(notes.into_iter().take(WARNINGS_SHOWN));
    if more > 0 {
        found.push(format!("{more} more warnings are among the run's notes"));
    }
    found
}

#[cfg(test)]
mod tests;
