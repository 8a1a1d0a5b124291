//! What a person writes: an experiment file. Reading it names every problem by its key, at once.
//!
//! - [`longfat_schema::decode`]: TOML into the types below, unknown keys with suggestions.
//! - [`overlay`]: cases and `--set`, dotted keys laid over the file.
//! - `check`: what types cannot say: names that exist, hosts that can be reached, figures that make sense.

mod check;
pub mod overlay;
mod queue;

pub use queue::QueueSpec;

use longfat_link::LinkSpec;
pub use longfat_schema::decode::{self, Problem};
use longfat_schema::{
    decode::list,
    units::{Nanos, Rate, Size},
};
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Table, Value};

impl CableSpec {
    /// Whether packets pass a driver; where the values cannot be, they would.
    pub fn is_emulated(&self) -> bool {
        self.line.resolve("", 0).map_or(true, |plan| !plan.is_cable())
    }
}

/// Why an experiment file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// It is no TOML.
    #[error("not valid TOML: {0}")]
    Syntax(#[from] Box<toml::de::Error>),
    /// It says things that cannot be.
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
    /// What must hold between cases.
    pub expect: Vec<ExpectSpec>,
}

/// The keys at the top of the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Head {
    /// Short name: letters, digits, `-`.
    pub name: String,
    /// One line.
    #[serde(default)]
    pub title: String,
    /// Paragraphs.
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
    /// Distance of samples of control blocks, queues and relays.
    #[serde(default = "ten_ms")]
    pub sample_every: Nanos,
    /// How much later than planned a TCP flow may begin; later, and the run is invalid.
    #[serde(default = "hundred_ms")]
    pub start_within: Nanos,
    /// Share of busy CPU above which a run is invalid; without it a busy CPU is only noted.
    pub cpu_limit: Option<f64>,
    /// Sysctls of every host; a host's own come on top.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
}

/// One case: the file with its overlay.
#[derive(Debug, Clone)]
pub struct Case {
    /// Short name, also its directory.
    pub name: String,
    /// What a reader sees.
    pub title: String,
    /// The same figures as published elsewhere.
    pub published: Vec<PublishedSpec>,
    /// Everything, with the overlay applied.
    pub setting: Setting,
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
    /// Tunables of our congestion controls that are not left at their defaults, by the kernel's name.
    pub tunables: BTreeMap<String, BTreeMap<String, u32>>,
}

/// A host: a network namespace when emulated.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct HostSpec {
    /// Routers and relays forward packets between their links.
    #[serde(default)]
    pub forward: bool,
    /// Its own sysctls.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
}

/// What joins two hosts: a plain cable, or an emulated path.
#[derive(Debug, Clone)]
pub struct CableSpec {
    /// Its two ends; `forward` is from the first to the second.
    pub between: Vec<String>,
    /// MTU, rate, delay, loss and queue; a plain cable when it does nothing to packets.
    pub line: LinkSpec,
}

/// `tcp` or `udp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// One or more TCP connections.
    #[default]
    Tcp,
    /// Datagrams at a rate.
    Udp,
}

/// Memory-to-memory traffic from one host to another.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
    /// Bytes per write.
    pub block: Option<Size>,
    /// Limit of the application's rate; UDP needs one.
    pub rate: Option<Rate>,
    /// UDP datagrams come as a Poisson process instead of evenly.
    #[serde(default)]
    pub poisson: bool,
    /// A timestamp is echoed for every so many bytes.
    pub echo_every: Option<Size>,
    /// When it starts, after the start of the run.
    #[serde(default)]
    pub start: Nanos,
    /// Stream i starts i times this late.
    #[serde(default)]
    pub stagger: Nanos,
    /// UDP payload size.
    pub datagram: Option<Size>,
    /// `false` leaves it out; cases turn it on.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// A split-TCP relay on a forwarding host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
    /// Keeps its queues short.
    pub queue: Option<QueueSpec>,
}

/// A figure published elsewhere.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PublishedSpec {
    /// Its name, with the unit.
    pub metric: String,
    /// The flow it is of.
    #[serde(default)]
    pub of: String,
    /// The figure.
    pub value: f64,
}

/// A median over the valid repeats of one case.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FigureSpec {
    /// Case name.
    pub case: String,
    /// Metric name.
    pub metric: String,
    /// Flow, link direction or relay it is of; empty for the whole run.
    #[serde(default)]
    pub of: String,
}

/// What a figure is compared with.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Against {
    /// A number in the figure's unit.
    Number(f64),
    /// Another figure.
    Figure(FigureSpec),
}

/// An expectation: `left` is at least (at most) so many times `right`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ExpectSpec {
    /// In a person's words.
    pub text: String,
    /// The figure judged.
    pub left: FigureSpec,
    /// What it is compared with.
    pub right: Against,
    /// Least accepted `left / right`.
    pub at_least: Option<f64>,
    /// Greatest accepted `left / right`.
    pub at_most: Option<f64>,
    /// Above 0, below 1: the repeats' own spread is taken into account, and the expectation is missed only when
    /// the bootstrap interval of this confidence lies wholly beyond its bound.
    pub confidence: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct CaseFile {
    name: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    set: BTreeMap<String, Value>,
    #[serde(default)]
    published: Vec<PublishedSpec>,
}

#[derive(Debug, Deserialize)]
struct CableFile {
    between: Vec<String>,
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
fn yes() -> bool {
    true
}
fn hundred_ms() -> Nanos {
    Nanos(100_000_000)
}
fn ten_ms() -> Nanos {
    Nanos(10_000_000)
}

/// Sections that are read apart from the head.
const SECTIONS: [&str; 7] = ["hosts", "links", "flows", "relays", "cc", "cases", "expect"];

impl Experiment {
    /// Reads an experiment file with overrides of the command line (`KEY`, value) on top of every case.
    pub fn read(text: &str, overrides: &[(String, Value)]) -> Result<Experiment, SpecError> {
        let table: Table = text.parse().map_err(|error| SpecError::Syntax(Box::new(error)))?;
        let mut problems = Vec::new();
        let experiment = read_all(&table, overrides, &mut problems);
        if let Some(experiment) = &experiment {
            check::experiment(experiment, &mut problems);
        }
        let mut unique = Vec::new();
        problems.into_iter().for_each(|p| {
            if !unique.contains(&p) {
                unique.push(p)
            }
        });
        match experiment {
            Some(experiment) if unique.is_empty() => Ok(experiment),
            _ => Err(SpecError::Problems(unique)),
        }
    }
}

fn read_all(table: &Table, overrides: &[(String, Value)], problems: &mut Vec<Problem>) -> Option<Experiment> {
    let mut base = table.clone();
    lay_overrides(&mut base, overrides, problems);
    let setting = read_setting(&base, problems);
    let files: Vec<CaseFile> = read_list(&base, "cases", problems);
    let expect = read_list(&base, "expect", problems);
    let setting = setting?;
    let before = problems.clone();
    let cases = read_cases(&base, &setting, files, overrides, problems);
    // What is wrong with the file itself is said once, not once per case.
    if !before.is_empty() {
        *problems = before;
    }
    Some(Experiment { head: setting.head.clone(), cases, expect })
}

fn lay_overrides(table: &mut Table, overrides: &[(String, Value)], problems: &mut Vec<Problem>) {
    for (key, value) in overrides {
        let laid = overlay::set(table, key, value.clone());
        problems.extend(laid.err().map(|p| Problem::new(format!("--set {}", p.path), p.message)));
    }
}

fn read_cases(
    base: &Table,
    setting: &Setting,
    files: Vec<CaseFile>,
    overrides: &[(String, Value)],
    problems: &mut Vec<Problem>,
) -> Vec<Case> {
    if files.is_empty() {
        let title = setting.head.title.clone();
        return vec![Case { name: "default".into(), title, published: vec![], setting: setting.clone() }];
    }
    files.into_iter().filter_map(|file| read_case(base, file, overrides, problems)).collect()
}

fn read_case(
    base: &Table,
    file: CaseFile,
    overrides: &[(String, Value)],
    problems: &mut Vec<Problem>,
) -> Option<Case> {
    let mut table = base.clone();
    let mut own = Vec::new();
    for (key, value) in &file.set {
        own.extend(overlay::set_in_case(&mut table, key, value.clone()).err());
    }
    // The command line has the last word, also over the case.
    lay_overrides(&mut table, overrides, &mut Vec::new());
    let setting = read_setting(&table, &mut own);
    let within = |p: Problem| Problem::new(format!("cases.{}.set: {}", file.name, p.path), p.message);
    problems.extend(own.into_iter().map(within));
    Some(Case { name: file.name, title: file.title, published: file.published, setting: setting? })
}

fn read_setting(table: &Table, problems: &mut Vec<Problem>) -> Option<Setting> {
    let mut top = table.clone();
    SECTIONS.iter().for_each(|section| drop(top.remove(*section)));
    let head = decode::decode(&Value::Table(top), "", &SECTIONS, problems);
    let hosts = read_table(table, "hosts", problems);
    let links = read_named(table, "links", problems, read_cable);
    let flows = read_table(table, "flows", problems);
    let relays = read_table(table, "relays", problems);
    let tunables = read_table(table, "cc", problems);
    Some(Setting { head: head?, hosts, links, flows, relays, tunables })
}

fn read_table<T: serde::de::DeserializeOwned>(
    table: &Table,
    section: &str,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, T> {
    read_named(table, section, problems, |value, path, problems| decode::decode(value, path, &[], problems))
}

fn read_named<T>(
    table: &Table,
    section: &str,
    problems: &mut Vec<Problem>,
    read: impl Fn(&Value, &str, &mut Vec<Problem>) -> Option<T>,
) -> BTreeMap<String, T> {
    let empty = Table::new();
    let entries = match table.get(section) {
        None => &empty,
        Some(Value::Table(entries)) => entries,
        Some(_) => {
            let message = format!("is a table of named entries; write [{section}.NAME]");
            problems.push(Problem::new(section, message));
            &empty
        }
    };
    let mut found = BTreeMap::new();
    for (name, value) in entries {
        let decoded = read(value, &decode::join(section, name), problems);
        found.extend(decoded.map(|thing| (name.clone(), thing)));
    }
    found
}

fn read_list<T: serde::de::DeserializeOwned>(
    table: &Table,
    section: &str,
    problems: &mut Vec<Problem>,
) -> Vec<T> {
    match table.get(section) {
        None => Vec::new(),
        Some(Value::Array(items)) => {
            let mut found = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str).map(str::to_owned);
                let path = format!("{section}.{}", name.unwrap_or_else(|| (index + 1).to_string()));
                found.extend(decode::decode(item, &path, &[], problems));
            }
            found
        }
        Some(_) => {
            problems.push(Problem::new(section, format!("is a list of tables; write [[{section}]]")));
            Vec::new()
        }
    }
}

/// A link's table holds its two ends and the keys of [`LinkSpec`].
fn read_cable(value: &Value, path: &str, problems: &mut Vec<Problem>) -> Option<CableSpec> {
    const OWN: [&str; 1] = ["between"];
    let Value::Table(table) = value else {
        problems.push(Problem::new(path, "is a table; write it like { between = [\"a\", \"b\"] }"));
        return None;
    };
    let (own, rest): (Table, Table) =
        table.clone().into_iter().partition(|(key, _)| OWN.contains(&key.as_str()));
    let file: Option<CableFile> = decode::decode(&Value::Table(own), path, &[], problems);
    let line: Option<LinkSpec> = decode::decode(&Value::Table(rest), path, &OWN, problems);
    Some(CableSpec { between: file?.between, line: line? })
}

#[cfg(test)]
mod tests;
