//! The run directory: what every backend writes and every reader reads.
//!
//! ```text
//! runs/conversion-20250131T120000Z/     a result: every run of one experiment file
//!   experiment.toml                     the file as it was read
//!   result.json                         [`ResultManifest`]: cases, runs, expectations, provenance
//!   results.parquet                     every figure of every run, a column per axis and metric
//!   reno-relayed/r1/                    one run: one plan in, one directory out
//!     plan.json                         every value resolved
//!     manifest.json                     [`RunManifest`]: status, window, metrics, hosts, provenance
//!     tcp.parquet interval.parquet …    one table per record type, units in the column names
//!     log/                              what each program said
//! ```
//!
//! Files are written under a temporary name and renamed: a manifest that exists is whole. A run without a
//! manifest was interrupted.

mod bounded;
mod dataset;
mod difference;
mod directory;
mod manifest;
mod name;
mod numbers;
mod seal;
mod spread;
mod table;
mod twin;
mod upgrade;
mod verify;

pub use bounded::{Bounded, caught};
pub use dataset::{DATASET_FILE, write_dataset};
pub use difference::{Values, flatten, joined, plan_differences};
pub use directory::{
    DamagedRun, Found, RunDirectory, RunWriter, find_readable_runs, find_runs, read_json, write_json,
    write_whole,
};
pub use manifest::{
    AxisPoint, CaseInfo, CellVerdict, ClockEstimate, Expectation, HostState, Machine, Metric, PLAN_FILE,
    Provenance, RESULT_FILE, RUN_FILE, ResultManifest, ResultStatus, RunEntry, RunManifest, RunStatus,
    START_FILE, Start,
};
pub use name::{is_plain_name, is_plain_path};
pub use numbers::{Numbers, NumbersError, read_numbers};
pub use seal::{Contents, FileRecord, reseal_run, seal_run, write_result};
pub use spread::{Spread, bootstrap};
pub use table::{Table, TableError, TableWriter, read_rows, read_table};
pub use twin::{Beside, Cause, Explanation, Range, Ranges, Twin, beside, slack_of};
pub use upgrade::{Kind, parse_versioned, read_versioned};
pub use verify::{Fault, Finding, verify};

/// Why a run directory could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A JSON file does not say what it should.
    #[error("{path}: {source}; it was damaged or written by another program")]
    Json {
        /// Which file.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The directory was written by a newer longfat.
    #[error("{path} has schema version {found}; this longfat reads up to {known}; upgrade longfat")]
    Newer {
        /// Which file.
        path: String,
        /// Schema version of the file.
        found: u32,
        /// Version that this program knows.
        known: u32,
    },
    /// A table could not be read or written.
    #[error("{path}: {source}")]
    Table {
        /// Which file.
        path: String,
        /// What is wrong.
        source: TableError,
    },
    /// A result whose manifest names runs outside its directory.
    #[error("{path} names a run {name:?}, which is no path within the result; it was not written by longfat")]
    Outside {
        /// The manifest.
        path: String,
        /// What it names.
        name: String,
    },
    /// Neither a run nor a result.
    #[error(
        "'{0}' holds neither a run (manifest.json) nor a result (result.json); give a directory that 'longfat lab run' wrote"
    )]
    NotARun(String),
}

impl RunError {
    /// The error, where nothing else names the directory or pack that was looked at.
    #[must_use]
    pub fn about(self, path: &std::path::Path) -> RunError {
        match self {
            RunError::NotARun(_) => RunError::NotARun(path.display().to_string()),
            other => other,
        }
    }

    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> RunError {
        RunError::Io { path: path.display().to_string(), source }
    }
}
