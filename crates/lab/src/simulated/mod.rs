//! A plan carried out by the simulator (`longfat-sim`): the same paths, the same congestion controls, TCP as Linux does
//! it, in virtual time. No privileges, nothing outside this process; the same plan gives the same records.

mod host;
mod scenario;

pub use scenario::{Translation, translate};

use crate::{
    backend::{Observed, Tick},
    judge::HeldUp,
    metrics::{metrics, record_free},
    plan::{Plan, seed_of},
    samples::Samples,
};
use longfat_cc::{Algorithm, UnknownAlgorithm};
use longfat_link::model::random::Random;
use longfat_schema::{
    own_time::Dilation,
    record::{Note, Record},
    run::{Metric, Twin},
};
use longfat_sim::{BUNDLE_MOST_BYTES, HoldUp, Scenario, ScenarioError, Transport};
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
        /// Key of the sysctl.
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
        /// Names of the relays.
        relays: Vec<String>,
    },
    /// There are no control blocks to set.
    #[error(
        "follows.{0}: the simulator has no hosts that follow a link; use --backend emulated, or enabled = false"
    )]
    Follows(String),
    /// The simulator does not fragment.
    #[error(
        "flow '{flow}': datagrams of {datagram_bytes} bytes do not fit the path's MTU of {mtu_bytes}; the simulator does not fragment, give at most {most_bytes}"
    )]
    Datagram {
        /// Which flow.
        flow: String,
        /// Payload per datagram, in bytes.
        datagram_bytes: u32,
        /// Least MTU on its path.
        mtu_bytes: u32,
        /// Payload that fits.
        most_bytes: u32,
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
    run_held_up(plan, None, &[], tick, stop)
}

/// Runs a plan with hosts that are held up, and, where it is the twin of an emulated run, with what the kernel did in
/// a run of that dilation.
fn run_held_up(
    plan: &Plan,
    emulated: Option<Dilation>,
    hold_ups: &[HeldUp],
    tick: &mut dyn FnMut(Tick),
    stop: &AtomicBool,
) -> Result<Observed, SimulationError> {
    let Translation { mut scenario, unmodelled } = translate(plan)?;
    if let Some(dilation) = emulated {
        do_as_the_kernel(&mut scenario, dilation);
    }
    for node in &mut scenario.nodes {
        let mine = hold_ups.iter().filter(|held| held.host == node.name);
        let span = |held: &HeldUp| {
            let [from_us, to_us] = [held.from_us, held.to_us].map(|us| u64::try_from(us).unwrap_or(0));
            HoldUp { from_ns: from_us * 1000, to_ns: to_us * 1000 }
        };
        // What was before the flows began is over.
        node.hold_ups = mine.map(span).filter(|held| held.from_ns < held.to_ns).collect();
    }
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

/// What does not slow down with a run is shorter in the experiment's time: an acknowledgement is delayed by 40 ms of
/// the kernel's, a bundle is what leaves in a millisecond of it. And the kernel's senders wait with small bundles.
/// Those that let less than a bundle wait unsent do not here: where their windows stop is chance
/// (docs/design/simulator.md).
fn do_as_the_kernel(scenario: &mut Scenario, dilation: Dilation) {
    let of_flows = scenario.flows.iter_mut().filter_map(|flow| match &mut flow.transport {
        Transport::Tcp(tcp) => Some([&mut tcp.sender, &mut tcp.receiver]),
        Transport::Udp(_) => None,
    });
    let of_relays = scenario.relays.iter_mut().map(|relay| [&mut relay.client_side, &mut relay.server_side]);
    for end in of_flows.chain(of_relays).flatten() {
        end.ack_delay_ns /= u64::from(dilation.times());
        end.times_slower = dilation.times();
        let has_much = end.unsent_limit_bytes.is_none_or(|bytes| bytes >= BUNDLE_MOST_BYTES);
        end.tso_win_divisor = end.tso_win_divisor.or(has_much.then_some(TSO_WIN_DIVISOR));
    }
}

/// The kernel's `net.ipv4.tcp_tso_win_divisor` where nobody sets it.
const TSO_WIN_DIVISOR: u8 = 3;

/// What the simulator makes of a plan that was carried out elsewhere; `None` when a person stopped it.
pub fn twin(plan: &Plan, stop: &AtomicBool) -> Option<Twin> {
    twin_held_up(plan, &[], stop)
}

fn twin_held_up(plan: &Plan, hold_ups: &[HeldUp], stop: &AtomicBool) -> Option<Twin> {
    match run_held_up(plan, Some(plan.dilation), hold_ups, &mut |_| {}, stop) {
        Ok(mut observed) => {
            record_free(plan, &mut observed.samples);
            let warnings = observed.samples.note.iter().filter(|note| note.level == "warning");
            let left_out = warnings.map(|note| note.message.clone()).collect();
            Some(Twin { metrics: metrics(plan, &observed.samples, None), left_out, ..Twin::default() })
        }
        Err(SimulationError::Interrupted) => None,
        Err(error) => Some(Twin { left_out: vec![error.to_string()], ..Twin::default() }),
    }
}

/// What the simulator makes of the same plan under other seeds, with packets about as late as a run's own `figures` say
/// of its links, made as they are asked for. On a path where nothing is drawn a few microseconds may decide whether a
/// flow loses two segments or three, and how long it repairs them.
pub fn twins_by_chance<'a>(
    plan: &Plan,
    figures: &[Metric],
    stop: &'a AtomicBool,
) -> impl Iterator<Item = Twin> + use<'a> {
    let plan = as_late(plan, figures);
    (1..SEEDS).map_while(move |number| {
        let seed = seed_of(plan.seed, &["twin", &number.to_string()]);
        twin(&with_seed(&plan, seed), stop)
    })
}

/// A plan whose packets arrive later, each by as much as chance has it: on an average by a quarter of what 99 in 100 of
/// the run's kept to.
fn as_late(plan: &Plan, figures: &[Metric]) -> Plan {
    let mut plan = plan.clone();
    for cable in &mut plan.links {
        let Some(path) = &mut cable.path else { continue };
        for (name, direction) in [("forward", &mut path.forward), ("backward", &mut path.backward)] {
            let of = format!("{}/{name}", cable.name);
            let late_us = Metric::find(figures, "late_p99_us", &of).filter(|_| !direction.reorder);
            let Some(late_us) = late_us else { continue };
            let late_ns = (late_us / 2.0).clamp(LATE_LEAST_US, LATE_MOST_US) * 1000.0;
            let lines = direction.schedule.iter_mut().map(|change| &mut change.line);
            lines
                .chain([&mut direction.line])
                .for_each(|line| line.jitter_ns = line.jitter_ns.max(late_ns as u64));
        }
    }
    plan
}

/// No host is more exact, whatever is left of its lateness in a slowed run's time.
const LATE_LEAST_US: f64 = 1.0;
/// Lateness beyond this is a hold-up.
const LATE_MOST_US: f64 = 100.0;

/// What the simulator makes of the same plan when its hosts are held up as the run's were: first at the same times,
/// then all of them later by a time that is drawn. None where there were no hold-ups.
pub(crate) fn twins_held_up(
    plan: &Plan,
    hold_ups: &[HeldUp],
    stop: &AtomicBool,
) -> impl Iterator<Item = Twin> {
    let count = if hold_ups.is_empty() { 0 } else { TWINS_HELD_UP };
    (0..count).map_while(move |number| {
        let seed = seed_of(plan.seed, &["held up", &number.to_string()]);
        twin_held_up(&with_seed(plan, seed), &at_another_time(plan, hold_ups, number, seed), stop)
    })
}

/// How long hosts are held up, how often, and who at the same time stays as it was, as far as that is known.
fn at_another_time(plan: &Plan, hold_ups: &[HeldUp], number: u32, seed: u64) -> Vec<HeldUp> {
    let length_us = plan.window_end_us.max(1);
    let mut random = Random::new(seed, 0);
    let drawn_us = random.up_to(length_us.unsigned_abs()) as i64;
    let is_moved = number > 0;
    let mut moved = |held: &HeldUp| {
        let for_us = held.to_us - held.from_us + random.up_to(held.earlier_us) as i64;
        let to_us = if is_moved { (held.to_us + drawn_us).rem_euclid(length_us) } else { held.to_us };
        HeldUp { host: held.host.clone(), from_us: to_us - for_us, to_us, earlier_us: 0 }
    };
    // What came after the window decided nothing in it.
    let during = hold_ups.iter().filter(|held| (0..length_us).contains(&held.from_us));
    during.map(&mut moved).collect()
}

/// Twins whose hosts are held up, at most: what one hold-up of ten does is not seen in a few.
const TWINS_HELD_UP: u32 = 16;

/// Twins of a run, its own among them, before it counts as far from what chance can do.
const SEEDS: u32 = 10;

/// A plan with every random choice drawn anew.
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
