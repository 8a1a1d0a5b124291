//! What the machine that leads a run and a host of it say to each other: a line of JSON there, a line back.

use crate::plan::Plan;
use longfat_host::{facts::CpuTimes, support::Missing};
use longfat_schema::run::HostState;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// How often the leading machine gives a sign of life, an empty line, when it has nothing to ask.
pub const SIGN_EVERY: Duration = Duration::from_secs(5);
/// A host that hears nothing for so long ends everything and sets back what it set: its leader is gone.
pub const SILENCE: Duration = Duration::from_secs(60);

/// What a host is asked. `plan` is the plan as it happens on these machines.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", content = "with", rename_all = "snake_case")]
pub enum Ask {
    /// What time it is.
    Clock,
    /// What it lacks for its part in these plans.
    Check(Vec<Plan>),
    /// To get ready: congestion controls, network parameters, relays and receivers.
    Prepare(Box<Plan>),
    /// To start its senders.
    Send {
        /// When the flows begin, by its own clock.
        start_ns: u64,
    },
    /// How it goes.
    Status,
    /// For what its programs recorded since it was asked last, thinned: a file of lines.
    Recent,
    /// To end what serves.
    Finish,
    /// For one of the files that its programs wrote.
    File(String),
    /// To set everything back.
    End,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", content = "with", rename_all = "snake_case")]
pub enum Answer {
    /// Its monotonic clock.
    Clock {
        /// Nanoseconds.
        monotonic_ns: u64,
    },
    /// What it lacks.
    Lacks(Vec<Missing>),
    /// It is ready; this is what it is like, its counters as they stand.
    Prepared(Box<HostState>),
    /// Done as asked.
    Done,
    /// How it goes.
    Status {
        /// A sender that has not ended.
        running: Option<String>,
        /// What its processors did since it was started.
        cpu: Option<CpuTimes>,
    },
    /// Everything has ended.
    Finished {
        /// Its counters.
        counters: BTreeMap<String, i64>,
        /// The files that its programs wrote.
        files: Vec<String>,
    },
    /// One of them follows, compressed (zstd).
    File {
        /// That is so long.
        bytes: u64,
    },
    /// A program of the run failed; the next run may well succeed.
    RunFailed(String),
    /// It could not be done.
    Failed(String),
}
