//! What carries a plan out, and what every such world shows of a run.

use crate::{plan::Plan, samples::Samples};
use longfat_host::{Namespace, facts, sysctl};
use longfat_schema::{own_time::Dilation, run::HostState};
use std::{collections::BTreeMap, fmt};

/// How long a flow may take to empty its buffers after the window: nothing counts then, and somebody waits.
pub const DRAIN_MS: u32 = 1000;

/// Who carries a plan out, as manifests name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// Network namespaces with the TCP of this kernel.
    #[default]
    Emulated,
    /// The simulator, in virtual time.
    Simulated,
    /// Machines reached by SSH, and the path that is between them.
    Hosts,
}

impl BackendKind {
    /// As a manifest and the command line name it.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Emulated => "emulated",
            BackendKind::Simulated => "sim",
            BackendKind::Hosts => "hosts",
        }
    }

    /// How many times slower than meant it carries a plan out: the simulator needs not, a real path cannot.
    pub fn dilation(self, plan: &Plan) -> Dilation {
        match self {
            BackendKind::Emulated => plan.dilation,
            BackendKind::Simulated | BackendKind::Hosts => Dilation::NONE,
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

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
