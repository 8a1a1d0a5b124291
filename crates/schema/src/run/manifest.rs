//! What is known about a run and about a result, besides the samples.

use super::{Beside, FileRecord, Twin};
use crate::own_time::{Dilation, OwnTime};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// File name of a [`RunManifest`].
pub const RUN_FILE: &str = "manifest.json";
/// File name of the plan a run is made from.
pub const PLAN_FILE: &str = "plan.json";
/// File name of a [`ResultManifest`].
pub const RESULT_FILE: &str = "result.json";

/// File name of a [`Start`], beside the records of a run in progress.
pub const START_FILE: &str = "start.json";

/// When the flows of a run in progress begin, by the clock its programs write down. Tables have times since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Monotonic clock.
    pub start_us: i64,
    /// How many times slower than meant the run is carried out.
    #[serde(default, skip_serializing_if = "Dilation::is_none")]
    pub dilation: Dilation,
}

impl Start {
    /// How times of its programs become times of the run.
    pub fn own_time(self) -> OwnTime {
        OwnTime { start_us: self.start_us, dilation: self.dilation }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Everything was as planned.
    Done,
    /// The run took place, but its numbers must not be trusted: the emulator was late, a flow had another cc than
    /// planned…
    Invalid,
    /// Nothing measured speaks against it, and yet its goodput or completion time is far from what the simulator makes
    /// of the same plan.
    Unexplained,
    /// The run did not come to its end, or nothing is known about it.
    #[default]
    Failed,
}

impl RunStatus {
    /// Every one, the best first.
    pub const ALL: [RunStatus; 4] =
        [RunStatus::Done, RunStatus::Unexplained, RunStatus::Invalid, RunStatus::Failed];

    /// Whether it went as planned, as far as it knows of itself. Only [`RunStatus::Done`] counts in medians.
    pub fn is_as_planned(self) -> bool {
        matches!(self, RunStatus::Done | RunStatus::Unexplained)
    }

    /// As manifests write it.
    pub fn name(self) -> &'static str {
        match self {
            RunStatus::Done => "done",
            RunStatus::Invalid => "invalid",
            RunStatus::Unexplained => "unexplained",
            RunStatus::Failed => "failed",
        }
    }
}

/// Where a run stands on one axis of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AxisPoint {
    /// The axis.
    pub axis: String,
    /// What its value is called there.
    pub label: String,
    /// The label (or else the value) as a number in `unit`, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<f64>,
    /// `bps`, `us`, `bytes`, `ratio`, or nothing for a bare number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
}

impl AxisPoint {
    /// A point without a number.
    pub fn named(axis: &str, label: &str) -> AxisPoint {
        AxisPoint { axis: axis.to_owned(), label: label.to_owned(), ..AxisPoint::default() }
    }
}

impl fmt::Display for AxisPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.axis, self.label)
    }
}

/// One run: one plan in, one directory out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunManifest {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// Case within the experiment; in a sweep, cell: `CASE,AXIS=LABEL,…`.
    pub case: String,
    /// Where it stands in the sweep (`case` first, when there are cases); empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<AxisPoint>,
    /// Repeat, from 1.
    pub repeat: u32,
    /// `emulated`, `sim` or `hosts`.
    pub backend: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// How many times slower than meant it was carried out. Everything reported is in the experiment's own time.
    #[serde(default, skip_serializing_if = "Dilation::is_none")]
    pub dilation: Dilation,
    /// How it ended.
    pub status: RunStatus,
    /// Why it is not [`RunStatus::Done`], or what a reader should know.
    pub reasons: Vec<String>,
    /// Wall-clock start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Length of the run.
    pub duration_us: i64,
    /// Metrics count what happened from here…
    pub window_start_us: i64,
    /// …to here, since the start of the run.
    pub window_end_us: i64,
    /// What it came to.
    pub metrics: Vec<Metric>,
    /// What the simulator makes of the same plan, where the run is emulated and nothing that it measures of itself
    /// speaks against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<Twin>,
    /// Where and by whom it was made.
    pub provenance: Provenance,
    /// Every host's parameters, before the flows began, and its counters' growth.
    pub hosts: BTreeMap<String, HostState>,
    /// Every other file of the run, by its path within it; absent where none were recorded (schema 1).
    pub files: Option<BTreeMap<String, FileRecord>>,
    /// SHA-256 of this file itself with the digits of the seal as zeros. Always the last field.
    pub seal: Option<String>,
}

/// One figure. The unit is in the name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// `goodput_bps`, `echo_p99_us`, `fairness_jain`…
    pub metric: String,
    /// Flow, link (`NAME/forward`) or relay it is of; empty for the whole run.
    pub of: String,
    /// Stream within the flow; absent for the flow as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// The figure.
    pub value: f64,
}

impl Metric {
    /// The figure of that name and scope, of the flow as a whole.
    pub fn find(figures: &[Metric], metric: &str, of: &str) -> Option<f64> {
        let matches = |m: &&Metric| m.metric == metric && m.of == of && m.stream.is_none();
        figures.iter().find(matches).map(|m| m.value)
    }
}

/// Where, when and with what something was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of longfat.
    pub longfat_version: String,
    /// Git revision it was built from; `+dirty` with changes; `unknown` outside a checkout.
    pub git_revision: String,
    /// The command line.
    pub command_line: Vec<String>,
    /// Kernel release and version.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Processors online.
    pub cpu_count: u32,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// Load average over one minute at the start.
    pub load_average: f64,
    /// Anything else worth keeping: tool versions, clock source, kernel configuration.
    pub facts: BTreeMap<String, String>,
}

impl Provenance {
    /// What tells one program from another: its version, its revision, and the sources of its congestion controls.
    pub fn program(&self) -> [&str; 3] {
        let sources = self.facts.get("cc_sources").map_or("", String::as_str);
        [&self.longfat_version, &self.git_revision, sources]
    }
}

/// One host's network parameters and counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostState {
    /// Every readable `net.*` sysctl.
    pub sysctls: BTreeMap<String, String>,
    /// Offloads and MTU of each interface.
    pub interfaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Queueing disciplines, as `tc -j qdisc` gives them.
    pub qdiscs: Vec<String>,
    /// Routes, as `ip route` gives them.
    pub routes: Vec<String>,
    /// Growth of the kernel's network counters over the run (those that grew).
    pub counters: BTreeMap<String, i64>,
    /// The machine, where it is not the one that made the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// A machine that had a part in a run on real hosts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release and version.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Processors online.
    pub cpu_count: u32,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// Load average over one minute before the run.
    pub load_average: f64,
    /// Clock source of its kernel.
    pub clock_source: String,
    /// Clock of the machine, as the machine that led the run saw it.
    pub clock: ClockEstimate,
}

/// How far the monotonic clock of another machine is ahead of one's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockEstimate {
    /// By so much; every time of the run's tables was brought to one clock by it.
    pub offset_us: i64,
    /// Greatest error of the offset, where the two directions of the way there are alike or not.
    pub error_us: u64,
    /// How much further ahead it was after the run than before.
    pub drift_us: i64,
}

impl RunManifest {
    /// Whether it went as planned, as far as it measures itself: if anything speaks against it, then its twin.
    pub fn went_as_planned(&self) -> bool {
        self.status.is_as_planned() || (self.status == RunStatus::Invalid && self.twin.is_some())
    }

    /// The figure of that name and scope, of the flow as a whole.
    pub fn metric(&self, metric: &str, of: &str) -> Option<f64> {
        Metric::find(&self.metrics, metric, of)
    }
}

/// How far a result has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultStatus {
    /// Runs are still to come, or the program died.
    Running,
    /// Every run was made.
    Complete,
    /// A person stopped it.
    Interrupted,
}

/// Every run of one experiment file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultManifest {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// One line.
    pub title: String,
    /// What it shows, in paragraphs.
    pub description: String,
    /// Wall-clock start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// How far it has come.
    pub status: ResultStatus,
    /// The flow the experiment is about.
    pub focus: Option<String>,
    /// Cases in the order of the file.
    pub cases: Vec<CaseInfo>,
    /// Runs made so far, in order.
    pub runs: Vec<RunEntry>,
    /// How many there will be when the session has come to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<u32>,
    /// What the experiment expects, judged.
    pub expectations: Vec<Expectation>,
    /// Emulated runs beside what the simulator makes of the same plans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub twins: Vec<Beside>,
    /// Where and by whom it was made.
    pub provenance: Provenance,
    /// Every file of the result that is of no run, when the session has ended.
    pub files: Option<BTreeMap<String, FileRecord>>,
    /// SHA-256 of this file itself with the digits of the seal as zeros. Always the last field.
    pub seal: Option<String>,
}

/// One case of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CaseInfo {
    /// Name, also its directory.
    pub name: String,
    /// What a reader sees.
    pub title: String,
    /// Where it stands in the sweep; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<AxisPoint>,
    /// Figures as published elsewhere, to stand beside ours.
    pub published: Vec<Metric>,
}

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// Case name.
    pub case: String,
    /// Repeat, from 1.
    pub repeat: u32,
    /// Directory, relative to the result.
    pub path: String,
    /// How it ended.
    pub status: RunStatus,
    /// Seal of its manifest; absent where it has none.
    pub seal: Option<String>,
}

/// One expectation of an experiment, and whether it was met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// In the experiment's words.
    pub text: String,
    /// Absent when there was no valid run to judge by.
    pub met: Option<bool>,
    /// The figures: `median 93.0 Mbit/s against 83.8 Mbit/s: ratio 1.11, wanted at least 1.00`. Of several cells: how
    /// many met it, and the first that missed.
    pub detail: String,
    /// Where it is of several cells: each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<CellVerdict>,
}

/// An expectation in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellVerdict {
    /// Name of the cell.
    pub case: String,
    /// Absent when there was no valid run to judge by.
    pub met: Option<bool>,
    /// The figures.
    pub detail: String,
}
