//! Which of the backends carries a plan out.

use super::Plan;
use longfat_schema::own_time::Dilation;
use std::fmt;

/// Backend that carries a plan out, as manifests name it.
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
