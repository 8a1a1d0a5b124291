//! What a person writes: an experiment file. Reading it names every problem by its key, at once.
//!
//! - [`mod@include`]: files that a file builds on.
//! - [`longfat_schema::decode`]: TOML into the types below, unknown keys with suggestions.
//! - [`overlay`]: cases, axes and `--set`, dotted keys laid over the file.
//! - [`sweep`]: axes, and the cells they make.
//! - [`topology`]: who reaches whom by which links.
//! - [`expect`]: what is expected, and of which cells; `scope`: what figures can be of.
//! - [`schema`]: all of it as JSON Schema, for editors.
//! - `check`: what types cannot say: names that exist, hosts that can be reached, figures that make sense.

pub(crate) mod check;
mod dilate;
pub mod expect;
mod follow;
pub mod include;
pub mod overlay;
mod read;
mod sample;
pub mod schema;
mod scope;
mod shorten;
pub mod sweep;
pub mod topology;

pub use dilate::DilateSpec;
pub use follow::FollowSpec;
use longfat_link::LinkSpec;
use longfat_relay::spec::{LegSpec, WaySpec};
pub use longfat_schema::decode::{self, Problem};
use longfat_schema::{
    arrivals::Arrivals,
    decode::list,
    run::AxisPoint,
    units::{Nanos, Rate, Size},
};
pub use sample::{sample, seed_of};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use sweep::Filter;

impl CableSpec {
    /// Whether its ends are two hosts that there are.
    fn joins_two(&self, setting: &Setting) -> bool {
        let [a, b] = self.between.as_slice() else { return false };
        a != b && [a, b].into_iter().all(|host| setting.hosts.contains_key(host))
    }

    /// Whether packets pass a driver; where the values cannot be, they would.
    pub fn is_emulated(&self) -> bool {
        self.line.resolve("", 0).map_or(true, |plan| !plan.is_cable())
    }
}

/// Why an experiment file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Text that is no TOML.
    #[error("not valid TOML: {0}")]
    Syntax(#[from] Box<toml::de::Error>),
    /// Values that cannot be.
    #[error("{}", list(.0))]
    Problems(Vec<Problem>),
    /// A link's values cannot be.
    #[error(transparent)]
    Link(#[from] longfat_link::SpecError),
}

/// An experiment: several cases of one setting, and what is expected of them.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// What belongs to the whole.
    pub head: Head,
    /// Every case with its own setting, in the order of the file; at least one.
    pub cases: Vec<Case>,
    /// What must hold of cases and cells, and between them.
    pub expect: Vec<expect::Expected>,
}

/// The keys at the top of the file.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct Head {
    /// Short name: letters, digits, `-`.
    pub name: String,
    /// One line.
    #[serde(default)]
    pub title: String,
    /// Description of the experiment, in paragraphs.
    #[serde(default)]
    pub description: String,
    /// Runs of each case.
    #[serde(default = "one")]
    pub repeats: u32,
    /// How often an invalid run is tried again.
    #[serde(default = "two")]
    pub retries: u32,
    /// Seed of every random choice.
    #[serde(default = "one_u64")]
    pub seed: u64,
    /// The flow the experiment is about.
    pub focus: Option<String>,
    /// Flows run this long before anything is counted.
    pub warmup: Nanos,
    /// Metrics are counted over this span, after the warm-up.
    pub duration: Nanos,
    /// Distance of samples of control blocks, queues and relays; at most a third of `duration`.
    #[serde(default = "ten_ms")]
    pub sample_every: Nanos,
    /// How much later than planned a TCP flow may begin; later, and the run is invalid.
    #[serde(default = "hundred_ms")]
    pub start_within: Nanos,
    /// Share of busy CPU above which a run is invalid; without it a busy CPU is only noted.
    pub cpu_limit: Option<f64>,
    /// Share of dropped packets that hold-ups of the machine may have caused; more, and a run is invalid. 0.25 when
    /// absent.
    pub hold_up_limit: Option<f64>,
    /// Share by which a TCP flow's goodput or completion time may differ from its twin's; more, and an emulated run is
    /// unexplained, or invalid where the machine's hold-ups explain it. When absent, 0.2 of a flow that is alone;
    /// several are not judged so.
    pub twin_limit: Option<f64>,
    /// Emulated runs are carried out so many times slower, `"auto"`: as the path needs; figures are in the experiment's
    /// time.
    #[serde(default)]
    pub dilate: DilateSpec,
    /// Sysctls of every host; a host's own come on top.
    #[serde(default)]
    #[schemars(schema_with = "schema::sysctls")]
    pub sysctls: BTreeMap<String, String>,
    /// Internet protocol version of flows that do not say: 4 or 6.
    #[serde(default = "four")]
    pub family: u8,
}

/// One case: the file with its overlay. In a sweep, one cell of one case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Short name, also its directory; of a cell: `CASE,AXIS=LABEL,…`.
    pub name: String,
    /// Name of the case that the file gives.
    pub base: String,
    /// Where it stands in the sweep: `case` first when the file has cases. Empty without a sweep.
    pub axes: Vec<AxisPoint>,
    /// What a reader sees.
    pub title: String,
    /// This case's figures as published elsewhere.
    pub published: Vec<PublishedSpec>,
    /// Everything, with the overlay applied.
    pub setting: Setting,
}

impl Case {
    /// Whether it bears this name: its own, or that of the case it is a cell of.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.base == name
    }

    /// Label of the case on an axis.
    pub fn label(&self, axis: &str) -> Option<&str> {
        self.axes.iter().find(|at| at.axis == axis).map(|at| at.label.as_str())
    }

    /// Whether its labels are among those wanted.
    pub fn is_at(&self, filter: &Filter) -> bool {
        sweep::holds(filter, |axis| if axis == "case" { Some(self.base.as_str()) } else { self.label(axis) })
    }
}

/// What a run is made of.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The keys at the top, as this case has them.
    pub head: Head,
    /// Hosts by name.
    pub hosts: BTreeMap<String, HostSpec>,
    /// Links by name.
    pub links: BTreeMap<String, CableSpec>,
    /// Flows by name.
    pub flows: BTreeMap<String, FlowSpec>,
    /// Relays by name.
    pub relays: BTreeMap<String, RelaySpec>,
    /// Routers whose links are followed, by name.
    pub follows: BTreeMap<String, FollowSpec>,
    /// Tunables of our congestion controls that are not left at their defaults, by the kernel's name.
    pub tunables: BTreeMap<String, BTreeMap<String, u32>>,
}

/// A host: a network namespace when emulated.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct HostSpec {
    /// Routers and relays forward packets between their links.
    #[serde(default)]
    pub forward: bool,
    /// Sysctls of this host alone.
    #[serde(default)]
    #[schemars(schema_with = "schema::sysctls")]
    pub sysctls: BTreeMap<String, String>,
}

/// What joins two hosts: a plain cable, or an emulated path.
#[derive(Debug, Clone)]
pub struct CableSpec {
    /// Names of the link's two ends; `forward` is from the first to the second.
    pub between: Vec<String>,
    /// MTU, rate, delay, loss and queue; a plain cable when it does nothing to packets.
    pub line: LinkSpec,
}

/// `tcp` or `udp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// One or more TCP connections.
    #[default]
    Tcp,
    /// Datagrams at a rate.
    Udp,
}

/// Memory-to-memory traffic from one host to another.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct FlowSpec {
    /// Sending host.
    pub from: String,
    /// Receiving host.
    pub to: String,
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
    /// Congestion control of the sending sockets, as the kernel names it. TCP needs one: the system's default differs.
    pub cc: Option<String>,
    /// Congestion control of the receiving sockets; the sender's when absent.
    pub cc_receiver: Option<String>,
    /// Parallel connections.
    #[serde(default = "one")]
    pub streams: u32,
    /// Send buffer; autotuned when absent.
    pub sndbuf: Option<Size>,
    /// Receive buffer; autotuned when absent.
    pub rcvbuf: Option<Size>,
    /// Most payload of each connection in flight: it sends at most a window per round trip, emulated as simulated
    /// (TCP).
    pub window: Option<Size>,
    /// Bytes per write.
    pub block: Option<Size>,
    /// Limit of the application's rate; UDP needs one.
    pub rate: Option<Rate>,
    /// Law by which UDP datagrams leave.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Full segments per acknowledgement of its receiver; simulated runs only, as Linux always has 2 (or a bundle).
    pub ack_every: Option<u32>,
    /// A timestamp is echoed for every so many bytes.
    pub echo_every: Option<Size>,
    /// When it starts, after the start of the run.
    #[serde(default)]
    pub start: Nanos,
    /// Stream i starts i times this late, and sends as long as the others.
    #[serde(default)]
    pub stagger: Nanos,
    /// How long it sends; to the end of the run when neither this nor `stop` is given.
    pub duration: Option<Nanos>,
    /// When it stops, after the start of the run.
    pub stop: Option<Nanos>,
    /// Payload bytes after which the flow ends, all streams together (TCP).
    pub size: Option<Size>,
    /// Internet protocol version, 4 or 6; the experiment's when absent.
    pub family: Option<u8>,
    /// UDP payload of a datagram; default 1472 bytes, with IPv6 1452: what fits into 1500.
    pub datagram: Option<Size>,
    /// `false` leaves it out; cases turn it on.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// A split-TCP relay on a forwarding host.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct RelaySpec {
    /// Where it runs.
    pub host: String,
    /// `false` leaves it out; cases turn it on.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Links whose connections it takes over.
    pub intercept: Vec<String>,
    /// Congestion control towards the client.
    pub cc_client: String,
    /// Congestion control towards the server.
    pub cc_server: String,
    /// Socket buffers towards the client.
    pub buffer_client: Option<Size>,
    /// Socket buffers towards the server.
    pub buffer_server: Option<Size>,
    /// How its queues are kept short; as by the relay's own default when absent.
    pub queue: Option<longfat_relay::QueueSpec>,
    /// Most that is sent towards the server, which is then paced.
    pub pacing_server: Option<Rate>,
}

impl FlowSpec {
    /// When it ends, after the start of the run: by its own word, or with the run.
    pub(crate) fn end_ns(&self, head: &Head) -> u64 {
        let of_duration = self.duration.map(|Nanos(ns)| self.start.0.saturating_add(ns));
        let run_end_ns = head.warmup.0.saturating_add(head.duration.0);
        self.stop.map(|Nanos(ns)| ns).or(of_duration).unwrap_or(run_end_ns)
    }
}

impl RelaySpec {
    /// What it says of its connections beside their congestion controls, as the relay's own file says it.
    pub(crate) fn way(&self) -> WaySpec {
        let leg = |buffer, pacing| LegSpec { buffer, pacing, ..LegSpec::default() };
        WaySpec {
            client: leg(self.buffer_client, None),
            server: leg(self.buffer_server, self.pacing_server),
            queue: self.queue.clone(),
            ..WaySpec::default()
        }
    }
}

/// A figure published elsewhere.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct PublishedSpec {
    /// The case it is of; only where it stands at the top of the file.
    pub case: Option<String>,
    /// The cells it is of, by labels.
    #[serde(default)]
    pub at: Filter,
    /// Name of the published value, with the unit.
    pub metric: String,
    /// The flow it is of.
    #[serde(default)]
    pub of: String,
    /// The figure.
    pub value: f64,
}

/// A median over the valid repeats of one case or cell.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct FigureSpec {
    /// Case name; any case when absent.
    pub case: Option<String>,
    /// Metric name.
    #[schemars(schema_with = "schema::metric")]
    pub metric: String,
    /// Flow, link direction or relay it is of; empty for the whole run.
    #[serde(default)]
    pub of: String,
    /// Labels of the cell it is of; what is not named is free on the left, and as on the left on the right.
    #[serde(default)]
    pub at: Filter,
}

/// What a figure is compared with.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Against {
    /// A number in the figure's unit.
    Number(f64),
    /// Another figure.
    Figure(FigureSpec),
}

/// Cells that an expectation is judged for.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ForEach {
    /// Every cell that the figure leaves open, or the only one.
    All(bool),
    /// Cells with these labels.
    Only(Filter),
}

/// An expectation: `that`, or `left` is at least (at most) so many times `right` (so much, without `right`).
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct ExpectSpec {
    /// In a person's words; what it says when absent.
    pub text: Option<String>,
    /// The short form: `fairness > 0.9`.
    pub that: Option<String>,
    /// The figure judged.
    pub left: Option<FigureSpec>,
    /// What it is compared with.
    pub right: Option<Against>,
    /// Least accepted `left / right`, or `left`.
    pub at_least: Option<f64>,
    /// Greatest accepted `left / right`, or `left`.
    pub at_most: Option<f64>,
    /// Above 0, below 1: the repeats' own spread is taken into account, and the expectation is missed only when
    /// the bootstrap interval of this confidence lies wholly beyond its bound.
    pub confidence: Option<f64>,
    /// Cells for each of which the expectation is judged.
    pub for_each: Option<ForEach>,
}

fn one() -> u32 {
    1
}
fn one_u64() -> u64 {
    1
}
fn two() -> u32 {
    2
}
fn four() -> u8 {
    4
}
fn yes() -> bool {
    true
}
fn hundred_ms() -> Nanos {
    Nanos(100_000_000)
}
fn ten_ms() -> Nanos {
    Nanos(10_000_000)
}

#[cfg(test)]
mod tests;
