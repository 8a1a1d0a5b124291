//! What carries a plan out, and what every such world shows of a run.

pub use crate::plan::BackendKind;

use crate::{plan::Plan, samples::Samples};
use longfat_host::{Namespace, facts, sysctl};
use longfat_kernel::cc::{self, Registration};
use longfat_schema::{own_time::Dilation, run::HostState};
use std::collections::BTreeMap;

/// How long a flow may take to empty its buffers after the window: nothing counts then, and somebody waits.
pub const DRAIN_MS: u32 = 1000;

/// What was seen of a run.
#[derive(Debug, Default)]
pub struct Observed {
    /// Every record, time zero at the start of the flows.
    pub samples: Samples,
    /// Every host's parameters before the flows began, and its counters' growth over the run; none when simulated.
    pub hosts: BTreeMap<String, HostState>,
    /// Share of busy CPU over the window; none when simulated.
    pub cpu_busy: Option<f64>,
    /// From the start of the flows to the end of the last.
    pub duration_us: i64,
}

/// How far a run has come, for a person who waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Since the start of the flows, by who waits; negative before it.
    pub elapsed_us: i64,
    /// Arriving at the focus flow's receiver: headers included where an interface counts it, payload where the flow
    /// does.
    pub arriving_bps: Option<f64>,
}

impl Tick {
    /// Progress of a run that is carried out slower than meant: the rate is the experiment's, the time that of who
    /// waits.
    pub(crate) fn at_own_rate(self, dilation: Dilation) -> Tick {
        Tick { arriving_bps: self.arriving_bps.map(|bps| bps * f64::from(dilation.times())), ..self }
    }
}

/// A host's parameters, and its counters as they are.
pub(crate) fn state(namespace: &Namespace) -> longfat_host::Result<HostState> {
    Ok(HostState {
        sysctls: namespace.run(sysctl::dump_net)?,
        interfaces: facts::interfaces(namespace)?,
        qdiscs: facts::qdiscs(namespace),
        routes: facts::routes(namespace)?,
        counters: namespace.run(facts::counters)?,
        machine: None,
    })
}

/// Every congestion control of a run, ours set as it says and as slow as the run, for as long as the value lives.
pub(crate) fn ccs_of(plan: &Plan, dilation: Dilation) -> longfat_kernel::Result<Vec<Registration>> {
    let names = plan.ccs();
    let set: Vec<_> = names.iter().filter_map(|name| plan.tunables_of(name)).collect();
    let hold = |tunables| cc::hold_with(tunables, dilation.times());
    let mut held = set.iter().map(hold).collect::<longfat_kernel::Result<Vec<_>>>()?;
    let others = names.iter().filter(|name| plan.tunables_of(name).is_none());
    let names: Vec<&str> = others.map(String::as_str).collect();
    held.extend(cc::ensure(&names)?);
    Ok(held)
}
