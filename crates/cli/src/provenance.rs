//! Where, when and with what a result was made.

use longfat_host::facts;
use longfat_schema::run::Provenance;
use std::collections::BTreeMap;

/// Provenance of what this process makes now; `known` is what else is worth keeping.
pub fn of(known: BTreeMap<String, String>) -> Provenance {
    Provenance {
        longfat_version: env!("CARGO_PKG_VERSION").to_owned(),
        git_revision: env!("LONGFAT_GIT_REVISION").to_owned(),
        command_line: std::env::args().collect(),
        kernel: facts::kernel(),
        cpu: facts::cpu_model(),
        cpu_count: facts::cpu_count(),
        memory_bytes: facts::memory_bytes(),
        load_average: facts::load_average(),
        facts: known,
    }
}
