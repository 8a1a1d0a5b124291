//! A plan carried out by the simulator (`longfat-sim`): the same paths, the same congestion controls, TCP as Linux does
//! it, in virtual time. No privileges, nothing outside this process; the same plan gives the same records.

mod host;
mod scenario;

pub use scenario::{Translation, translate};

use crate::{
    backend::{Observed, Tick},
    metrics::{metrics, record_free},
    plan::{Plan, seed_of},
    samples::Samples,
};
use longfat_cc::{Algorithm, UnknownAlgorithm};
use longfat_schema::{
    record::{Note, Record},
    run::Twin,
};
use longfat_sim::ScenarioError;
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

/// Why a plan cannot be simulated, or was not to its end.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The stop flag was raised.
    #[error("interrupted")]
    Interrupted,
    /// A congestion control of the kernel without code of ours.
    #[error(
        "congestion control '{cc}' has no code here to simulate ({source}); choose another with --set, or run with --backend emulated"
    )]
    Cc {
        /// Name of the congestion control.
        cc: String,
        /// What there is.
        source: UnknownAlgorithm,
    },
    /// A network parameter that says nothing the simulator understands.
    #[error("host '{host}': sysctl {key} = '{value}' cannot be simulated; it must be {mend}")]
    Sysctl {
        /// Host with the sysctl.
        host: String,
        /// Which.
        key: &'static str,
        /// Value of the sysctl.
        value: String,
        /// What it may be.
        mend: &'static str,
    },
    /// More relays in a row than the simulator has.
    #[error("flow '{flow}' passes the relays {}; the simulator takes a flow through one", .relays.join(", "))]
    Relays {
        /// Which flow.
        flow: String,
        /// Its relays.
        relays: Vec<String>,
    },
    /// There are no control blocks to set.
    #[error(
        "follows.{0}: the simulator has no hosts that follow a link; use --backend emulated, or enabled = false"
    )]
    Follows(String),
    /// The simulator does not fragment.
    #[error(
        "flow '{flow}': datagrams of {datagram_bytes} bytes do not fit the path's MTU of {mtu_bytes}; the simulator does not fragment, give at most {}",
        mtu_bytes.saturating_sub(scenario::UDP_HEADER_BYTES)
    )]
    Datagram {
        /// Which flow.
        flow: String,
        /// Payload.
        datagram_bytes: u32,
        /// Least MTU on its path.
        mtu_bytes: u32,
    },
    /// The scenario is not sound.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Whether plans can be simulated; nothing is touched.
///
/// # Errors
/// The first reason why not.
pub fn check(plans: &[Plan]) -> Result<(), SimulationError> {
    let mut seen = BTreeSet::new();
    // Repeats of a case differ in their seeds only.
    let mut cases = plans.iter().filter(|plan| seen.insert(plan.case.as_str()));
    cases.try_for_each(|plan| Ok(translate(plan)?.scenario.check()?))
}

/// The plan with every congestion control called as the code that runs calls itself: `reno` is `lf_reno` here.
///
/// # Errors
/// A congestion control without code.
pub fn as_run(plan: &Plan) -> Result<Plan, SimulationError> {
    let mut plan = plan.clone();
    let of_flows = plan.flows.iter_mut().flat_map(|flow| [&mut flow.cc, &mut flow.cc_receiver]).flatten();
    let of_relays = plan.relays.iter_mut().flat_map(|relay| [&mut relay.cc_client, &mut relay.cc_server]);
    for cc in of_flows.chain(of_relays) {
        *cc = algorithm(cc)?.kernel_name();
    }
    Ok(plan)
}

fn algorithm(cc: &str) -> Result<Algorithm, SimulationError> {
    Algorithm::find(cc).map_err(|source| SimulationError::Cc { cc: cc.to_owned(), source })
}

/// Carries a plan out. `tick` is called now and then with the virtual time; `stop` ends it early.
///
/// # Errors
/// When it cannot be simulated, or was stopped.
pub fn run(plan: &Plan, tick: &mut dyn FnMut(Tick), stop: &AtomicBool) -> Result<Observed, SimulationError> {
    let Translation { scenario, unmodelled } = translate(plan)?;
    if stop.load(Ordering::Relaxed) {
        return Err(SimulationError::Interrupted);
    }
    let mut samples = Samples::default();
    notes(plan, &unmodelled).for_each(|note| samples.note.push(note));
    let cables: BTreeSet<&str> =
        plan.links.iter().filter(|cable| cable.path.is_none()).map(|cable| cable.name.as_str()).collect();
    let take = |record: Record| {
        if !is_of_cable(&record, &cables) {
            samples.push(record);
        }
    };
    let proceed = |now_ns: u64| {
        let elapsed_us = (now_ns / 1000) as i64 - (scenario.settle_ns / 1000) as i64;
        tick(Tick { elapsed_us, arriving_bps: None });
        !stop.load(Ordering::Relaxed)
    };
    let stats = longfat_sim::run(&scenario, take, proceed)?;
    if stats.stopped {
        return Err(SimulationError::Interrupted);
    }
    samples.sort();
    let duration_us = ((stats.time_ns - scenario.settle_ns) / 1000) as i64;
    Ok(Observed { samples, duration_us, ..Observed::default() })
}

/// What the simulator makes of a plan that was carried out elsewhere; `None` when a person stopped it.
pub fn twin(plan: &Plan, stop: &AtomicBool) -> Option<Twin> {
    match run(plan, &mut |_| {}, stop) {
        Ok(mut observed) => {
            record_free(plan, &mut observed.samples);
            let warnings = observed.samples.note.iter().filter(|note| note.level == "warning");
            let left_out = warnings.map(|note| note.message.clone()).collect();
            Some(Twin { metrics: metrics(plan, &observed.samples, None), left_out })
        }
        Err(SimulationError::Interrupted) => None,
        Err(error) => Some(Twin { metrics: Vec::new(), left_out: vec![error.to_string()] }),
    }
}

/// What the simulator makes of the same plan under other seeds, made as they are asked for.
pub fn twins_by_chance(plan: &Plan, stop: &AtomicBool) -> impl Iterator<Item = Twin> {
    (1..SEEDS).map_while(move |number| {
        let seed = seed_of(plan.seed, &["twin", &number.to_string()]);
        twin(&with_seed(plan, seed), stop)
    })
}

/// Twins of a run, its own among them, before it counts as far from what chance can do.
const SEEDS: u32 = 5;

/// The same plan with every random choice drawn anew.
fn with_seed(plan: &Plan, seed: u64) -> Plan {
    let mut plan = Plan { seed, ..plan.clone() };
    for cable in &mut plan.links {
        if let Some(path) = &mut cable.path {
            path.seed = seed_of(seed, &["link", &cable.name]);
        }
    }
    for flow in &mut plan.flows {
        flow.arrivals_seed = flow.arrivals_seed.map(|_| seed_of(seed, &["flow", &flow.name]));
    }
    plan
}

/// Plain cables have no driver, and so no records, where runs are emulated.
fn is_of_cable(record: &Record, cables: &BTreeSet<&str>) -> bool {
    match record {
        Record::Queue(queue) => cables.contains(queue.link.as_str()),
        Record::Link(link) => cables.contains(link.link.as_str()),
        _ => false,
    }
}

/// What a reader should know: whose code ran, and what was left out.
fn notes(plan: &Plan, unmodelled: &BTreeSet<String>) -> impl Iterator<Item = Note> {
    let renamed = plan.ccs().into_iter().filter_map(|cc| {
        let ours = Algorithm::find(&cc).ok()?.kernel_name();
        (ours != cc).then(|| ("info", format!("'{cc}' is simulated by the code of {ours}")))
    });
    let left_out = unmodelled.iter().map(|what| ("warning", format!("{what} is not simulated")));
    let said: Vec<_> = renamed.chain(left_out).collect();
    said.into_iter().map(|(level, message)| Note {
        time_us: 0,
        level: level.to_owned(),
        source: "simulator".to_owned(),
        message,
    })
}

#[cfg(test)]
mod tests;
