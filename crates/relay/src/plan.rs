//! What a relay is told to do, every value resolved. What a person writes becomes one in `spec`.

pub(crate) mod destination;
mod leg;
pub(crate) mod loops;
pub(crate) mod marks;
mod ports;
mod rule;

pub use leg::LegPlan;
pub use longfat_host::Network;
pub use ports::Ports;
pub use rule::{
    Accept, Acknowledge, BUFFER_BYTES, ConnectionPlan, MatchPlan, Mptcp, RulePlan, filling_bytes,
};
pub(crate) use rule::{PAGE_BYTES, PIPE_PAGES};

use crate::{Error, Result};
use longfat_cc::queue::QueuePlan;
use marks::Marks;
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

/// Routing tables below are the host's (253 to 255: default, main, local), or leave no room for a relay's below those.
const FIRST_TABLE: u32 = 256;
/// Threads of a relay.
const MOST_WORKERS: usize = 1024;

/// A relay, fully described.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelayPlan {
    /// Name of the relay in records, in the nft table `longfat_NAME` and in messages: letters, digits, `-` and `_`.
    pub name: String,
    /// What it takes of the traffic that passes through this host.
    pub intercept: Option<InterceptPlan>,
    /// Where clients connect to it.
    pub listeners: Vec<ListenerPlan>,
    /// Which connections are carried how; the first that matches counts. Without any, all of them by `defaults`; with
    /// some, a connection that none matches passes (an intercepted one) or goes by `defaults` (one to a listener).
    pub rules: Vec<RulePlan>,
    /// How connections are carried that no rule speaks of.
    #[serde(serialize_with = "rule::shared")]
    pub defaults: Arc<ConnectionPlan>,
    /// What becomes of intercepted traffic when the relay is not there.
    pub fail: Fail,
    /// What it may use up.
    pub limits: LimitsPlan,
    /// Worker threads.
    pub workers: usize,
    /// How long living connections may go on after the relay is told to stop.
    #[serde(serialize_with = "as_us")]
    pub drain: Duration,
    /// How long a reset may wait until the bytes acknowledged before it are delivered.
    #[serde(serialize_with = "as_us")]
    pub reset_wait: Duration,
    /// How long bulk data may gather in their inbound socket, to be moved in fewer, larger pieces; zero for not at all.
    #[serde(serialize_with = "as_us")]
    pub coalesce: Duration,
    /// Interval of records of every connection; none when absent.
    #[serde(skip)]
    pub sample_every: Option<Duration>,
    /// Whether a process beside it keeps duplicates of its sockets and pipes, so that the next relay goes on where it
    /// was killed.
    pub keep: bool,
    /// Where it takes in connections that another router's relay moves here.
    #[serde(rename = "move")]
    pub moves: Option<MovePlan>,
    /// Where it answers `longfat relay status`.
    pub control: Option<ControlPlan>,
    /// Where it answers Prometheus.
    pub metrics: Option<SocketAddr>,
    /// What it says of itself.
    pub log: LogPlan,
}

/// Refuses what is no name of a relay.
///
/// # Errors
/// The name, and what it may be.
pub fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 32 || !name.chars().all(good) {
        return Err(Error::Plan(format!("relay name '{name}' must be 1 to 32 letters, digits, '-' or '_'")));
    }
    Ok(())
}

impl RelayPlan {
    /// What a relay is called unless it is told otherwise.
    pub const DEFAULT_NAME: &str = "relay";
    /// Time for connections to end by themselves after a stop.
    pub const DEFAULT_DRAIN: Duration = Duration::from_secs(5);
    /// A few round trips of a geostationary satellite path.
    pub const DEFAULT_RESET_WAIT: Duration = Duration::from_secs(2);
    /// Half of the wake-ups at 2 Gbit/s, for one part in fifty at most of the time a transfer takes.
    pub const DEFAULT_COALESCE: Duration = Duration::from_millis(2);
    /// What lasts less than this does not gather at all.
    pub const COALESCE_MAX: Duration = Duration::from_millis(100);

    /// A person's [`RelayPlan::coalesce`], or why it is none.
    pub fn checked_coalesce(coalesce: Duration) -> std::result::Result<Duration, String> {
        let (most, usual) = (RelayPlan::COALESCE_MAX, RelayPlan::DEFAULT_COALESCE);
        let is_good = coalesce <= most;
        is_good.then_some(coalesce).ok_or_else(|| {
            format!("{coalesce:?} is too long for data to gather: give {most:?} at most; {usual:?} is usual, 0 is not at all")
        })
    }

    pub(crate) fn new(name: &str) -> RelayPlan {
        RelayPlan {
            name: name.to_owned(),
            intercept: None,
            listeners: Vec::new(),
            rules: Vec::new(),
            defaults: Arc::default(),
            fail: Fail::Open,
            limits: LimitsPlan::default(),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            drain: RelayPlan::DEFAULT_DRAIN,
            reset_wait: RelayPlan::DEFAULT_RESET_WAIT,
            coalesce: RelayPlan::DEFAULT_COALESCE,
            sample_every: None,
            keep: false,
            moves: None,
            control: None,
            metrics: None,
            log: LogPlan::default(),
        }
    }

    /// A relay that takes every connection of some interfaces, with the defaults and one worker per core.
    pub fn transparent(name: &str, intercept: InterceptPlan) -> RelayPlan {
        RelayPlan { intercept: Some(intercept), ..RelayPlan::new(name) }
    }

    /// A relay that clients connect to, for one server: its addresses are tried in order.
    pub fn explicit(name: &str, listen: SocketAddr, to: Vec<SocketAddr>) -> RelayPlan {
        RelayPlan { listeners: vec![ListenerPlan { listen, to }], ..RelayPlan::new(name) }
    }

    /// The defaults, to be changed.
    pub fn defaults_mut(&mut self) -> &mut ConnectionPlan {
        Arc::make_mut(&mut self.defaults)
    }

    /// With the buffers of every way made to fit into its memory, as they are used.
    pub(crate) fn within_memory(mut self) -> RelayPlan {
        let begins_small = self.limits.has_memory();
        let fit = |way: &mut Arc<ConnectionPlan>| {
            if way.memory_bytes.is_some() || begins_small {
                let mut fit = (**way).clone().within_memory();
                (fit.client.begins_small, fit.server.begins_small) = (begins_small, begins_small);
                *way = Arc::new(fit);
            }
        };
        self.rules.iter_mut().filter_map(|rule| rule.relay.as_mut()).for_each(fit);
        fit(&mut self.defaults);
        self
    }

    /// Every way in which this relay may carry a connection.
    pub fn ways(&self) -> impl Iterator<Item = &Arc<ConnectionPlan>> {
        let rules = self.rules.iter().filter_map(|rule| rule.relay.as_ref());
        rules.chain(self.uses_defaults().then_some(&self.defaults))
    }

    /// Workers that hold SYNs: each has an interface for it per rule.
    pub(crate) fn holders(&self) -> usize {
        self.workers.clamp(1, marks::MOST_HOLDERS)
    }

    /// How intercepted connections are carried, by the index of their rule (0 when there are no rules).
    pub(crate) fn intercepted_ways(&self) -> impl Iterator<Item = (usize, &Arc<ConnectionPlan>)> {
        let all = self.rules.is_empty().then_some((0, &self.defaults));
        let rules = self.rules.iter().enumerate();
        let rules = rules.filter_map(|(index, rule)| Some((index, rule.relay.as_ref()?)));
        rules.chain(all).filter(|_| self.intercept.is_some())
    }

    /// Rules that have interfaces to hold packets: those that accept after the server, and the first that accepts end
    /// to end, for all of these.
    pub(crate) fn holding_rules(&self) -> impl Iterator<Item = usize> {
        let mut is_first = true;
        self.intercepted_ways().filter_map(move |(rule, way)| match way.accept {
            Accept::Early => None,
            Accept::AfterServer => Some(rule),
            Accept::EndToEnd => std::mem::take(&mut is_first).then_some(rule),
        })
    }

    /// Rules whose connections are watched, and adopted in mid-stream.
    pub(crate) fn watching_ways(&self) -> impl Iterator<Item = (usize, &Arc<ConnectionPlan>)> {
        self.intercepted_ways().filter(|(_, way)| way.is_watched())
    }

    /// Whether some rule's connections are adopted right after their handshakes.
    pub(crate) fn inserts_at_once(&self) -> bool {
        self.intercepted_ways().any(|(_, way)| way.accept == Accept::EndToEnd && !way.is_watched())
    }

    /// Whether sockets are put between living ends, and may be taken out again.
    pub(crate) fn steps_in(&self) -> bool {
        self.intercepted_ways().any(|(_, way)| way.accept == Accept::EndToEnd)
    }

    /// Whether connections come to the relay in no other way than in mid-stream.
    pub(crate) fn only_watches(&self) -> bool {
        self.fail == Fail::Open
            && self.watching_ways().next().is_some()
            && self.intercepted_ways().all(|(_, way)| way.is_watched())
    }

    /// Whether some rule's ends are acknowledged by each other alone.
    pub(crate) fn acknowledges_end_to_end(&self) -> bool {
        self.ways().any(|way| way.acknowledge == Acknowledge::EndToEnd)
    }

    fn check_acknowledge(&self) -> Result<()> {
        let unused = |way: &&Arc<ConnectionPlan>| {
            way.acknowledge == Acknowledge::EndToEnd && way.accept != Accept::EndToEnd
        };
        match self.ways().find(unused) {
            None => Ok(()),
            Some(way) => Err(Error::Plan(format!(
                "the rule '{}' has acknowledge = 'end-to-end' and another 'accept', by which both legs have sequence numbers \
                 of their own: give accept = 'end-to-end', too, or leave acknowledge out",
                way.rule
            ))),
        }
    }

    fn check_adopt(&self) -> Result<()> {
        let unused = |way: &&Arc<ConnectionPlan>| !way.adopt.is_none() && !way.is_watched();
        if let Some(way) = self.ways().find(unused) {
            return Err(Error::Plan(format!(
                "the rule '{}' has {} and another 'accept' than 'end-to-end', by which the relay is there from the \
                 beginning: leave one of them out",
                way.rule,
                named(way)
            )));
        }
        let unused = |way: &&Arc<ConnectionPlan>| way.release_after.is_some() && !way.is_watched();
        if let Some(way) = self.ways().find(unused) {
            return Err(Error::Plan(format!(
                "the rule '{}' has release_after and no adopt_… key with accept = 'end-to-end': what the relay left in a pause \
                 would stay without it for good; give adopt_after, say, or leave release_after out",
                way.rule
            )));
        }
        let mut watched = self.watching_ways();
        let Some((_, first)) = watched.next() else { return Ok(()) };
        match watched.find(|(_, way)| way.adopt != first.adopt) {
            None => Ok(()),
            Some((_, other)) => Err(Error::Plan(format!(
                "the rule '{}' has {} and the rule '{}' has {}: give the same for all, in [defaults]",
                first.rule,
                named(first),
                other.rule,
                named(other)
            ))),
        }
    }

    /// Whether a connection that no rule matches can come to this relay.
    fn uses_defaults(&self) -> bool {
        self.rules.is_empty() || !self.listeners.is_empty()
    }

    /// Every congestion control it names, each once.
    pub fn ccs(&self) -> Vec<&str> {
        let legs = self.ways().flat_map(|way| [&way.client, &way.server]);
        let mut names: Vec<&str> = legs.filter_map(|leg| leg.cc.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Every queue that is kept short.
    pub(crate) fn queues(&self) -> Vec<&QueuePlan> {
        self.ways().filter_map(|way| way.queue.as_ref()).collect()
    }

    /// How a client of a listener is carried; none when a rule says that it is not relayed.
    pub(crate) fn way_of(&self, client: SocketAddr, server: SocketAddr) -> Option<&Arc<ConnectionPlan>> {
        match self.rule_about(client, server) {
            Some(rule) => rule.relay.as_ref(),
            None => Some(&self.defaults),
        }
    }

    /// The name of the rule that speaks of a client of a listener.
    pub(crate) fn rule_of(&self, client: SocketAddr, server: SocketAddr) -> &str {
        self.rule_about(client, server).map_or(&self.defaults.rule, |rule| &rule.name)
    }

    fn rule_about(&self, client: SocketAddr, server: SocketAddr) -> Option<&RulePlan> {
        self.rules.iter().find(|rule| rule.matches.takes_listeners_client(client, server))
    }

    /// Refuses what contradicts itself.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        if !(1..=MOST_WORKERS).contains(&self.workers) {
            return Err(Error::Plan(format!(
                "{} workers: give 1 to {MOST_WORKERS}, as many as cores",
                self.workers
            )));
        }
        if self.intercept.is_none() && self.listeners.is_empty() {
            return Err(Error::Plan(
                "a relay needs interfaces to intercept on or an address to listen on".into(),
            ));
        }
        if self.intercept.as_ref().is_some_and(|intercept| intercept.interfaces.is_empty()) {
            return Err(Error::Plan(
                "a transparent relay needs at least one interface to intercept on".into(),
            ));
        }
        if let Some(way) = self.ways().find(|way| way.idle.is_some_and(|idle| self.coalesce >= idle)) {
            return Err(Error::Plan(format!(
                "coalesce is {:?} and idle of the rule '{}' is {:?}: connections would be ended while their data gather; give a \
                 coalesce shorter than idle",
                self.coalesce,
                way.rule,
                way.idle.unwrap_or_default()
            )));
        }
        let held = |(index, way): (usize, &Arc<ConnectionPlan>)| {
            index >= marks::MOST_HOLDING_RULES && way.accept != Accept::Early
        };
        if self.intercepted_ways().any(held) {
            return Err(Error::Plan(format!(
                "only the first {} rules may accept 'after-server' or 'end-to-end'; move those that do to the front",
                marks::MOST_HOLDING_RULES
            )));
        }
        let end_to_end = |(_, way): &(usize, &Arc<ConnectionPlan>)| way.accept == Accept::EndToEnd;
        if self.fail == Fail::Closed
            && let Some((_, way)) = self.intercepted_ways().find(end_to_end)
        {
            return Err(Error::Plan(format!(
                "fail is 'closed' and the rule '{}' accepts 'end-to-end', which lets pass what it cannot step into; give                  'open', or another 'accept'",
                way.rule
            )));
        }
        self.check_adopt()?;
        self.check_acknowledge()?;
        if let Some(moves) =
            self.moves.as_ref().filter(|_| !self.intercepted_ways().any(|way| end_to_end(&way)))
        {
            return Err(Error::Plan(format!(
                "[move] listens on {} and no rule accepts 'end-to-end', by which connections can be moved: give such a rule, \
                 or leave [move] out",
                moves.listen
            )));
        }
        self.intercept.iter().try_for_each(InterceptPlan::check)?;
        self.listeners.iter().try_for_each(|listener| self.check_listener(listener))
    }

    fn check_listener(&self, ListenerPlan { listen, to }: &ListenerPlan) -> Result<()> {
        if to.is_empty() {
            return Err(Error::Plan(format!("the listener {listen} needs a server to connect to")));
        }
        if loops::leads_back(&self.listeners, *listen, &|address| destination::is_own(address) == Some(true))
        {
            return Err(Error::Plan(format!(
                "the listener {listen} would connect to itself ({}): give a server that is not this relay",
                to.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            )));
        }
        Ok(())
    }
}

/// When a rule's connections are worth stepping into, as its keys say.
fn named(way: &ConnectionPlan) -> String {
    let keys = rule::adopt_keys(&way.adopt).map(|(key, value)| format!("{key} = {value}"));
    keys.collect::<Vec<_>>().join(", ")
}

/// Times in records and plans are whole microseconds.
fn as_us<S: serde::Serializer>(time: &Duration, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_micros() as u64)
}

/// Serializes a time in microseconds, where there is one.
fn as_us_if_any<S: serde::Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    time.map(|time| time.as_micros() as u64).serialize(serializer)
}

/// Where clients connect to the relay, and where it connects to for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListenerPlan {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where it connects to: the addresses of one server, tried in order.
    pub to: Vec<SocketAddr>,
}

/// Where packets are intercepted, and how the kernel is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InterceptPlan {
    /// Interfaces on which clients' packets arrive (the LAN side).
    pub interfaces: Vec<String>,
    /// Packet mark (above it are the mark of the relay's own packets, and those of held handshakes); chosen when
    /// absent.
    pub mark: Option<u32>,
    /// Routing table (above it are those of held handshakes); chosen when absent.
    pub table: Option<u32>,
    /// Turn forwarding on for the relay's lifetime, rather than refuse when it is off.
    pub set_forwarding: bool,
}

impl InterceptPlan {
    /// Marks and tables stand for all those above them that a reload may bring into use.
    fn check(&self) -> Result<()> {
        let numbers = [
            ("intercept.mark (--mark)", self.mark, 1..=Marks::LAST_MARK, Marks::MARKS, ""),
            (
                "intercept.table (--table)",
                self.table,
                FIRST_TABLE..=u32::MAX,
                Marks::TABLES,
                ", above the tables 253 to 255 (default, main, local), which are the host's",
            ),
        ];
        for (key, number, range, count, why) in numbers {
            let (least, most) = (range.start(), &(range.end() - count + 1));
            if let Some(number) = number.filter(|number| !(least..=most).contains(&number)) {
                return Err(Error::Plan(format!(
                    "{key} is {number}, and a relay has that number and the {} after it: give one of {least} to {most}{why}",
                    count - 1
                )));
            }
        }
        Ok(())
    }
}

/// What becomes of the traffic that the relay would take when it is not there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fail {
    /// Traffic flows on unrelayed.
    #[default]
    Open,
    /// New connections are dropped, until a relay of that name runs again or `longfat relay clean` is run.
    Closed,
}

/// What a relay may use up. Whoever comes beyond waits in the kernel's queue; no byte is dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LimitsPlan {
    /// Connections at a time; by default what the descriptors allow.
    pub connections: Option<usize>,
    /// Connections of one client address; by default as many as are free besides, three times those when it is alone.
    pub client: Option<usize>,
    /// Connections of one network of clients (/24, /64); by default three times as many as are free besides.
    pub network: Option<usize>,
    /// Memory of all connections: buffers of both legs' sockets and the relay's own.
    pub memory_bytes: Option<u64>,
    /// Memory that connections of one client address may hold; by default as much as is free besides, three times that
    /// when it is alone.
    pub client_memory_bytes: Option<u64>,
    /// Memory that connections of one network of clients may hold; by default three times as much as is free besides.
    pub network_memory_bytes: Option<u64>,
    /// File descriptors; by default the hard limit of the process.
    pub descriptors: Option<u64>,
}

impl LimitsPlan {
    pub(crate) fn has_memory(&self) -> bool {
        [self.memory_bytes, self.client_memory_bytes, self.network_memory_bytes].iter().any(Option::is_some)
    }
}

/// The unix socket on which a relay answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControlPlan {
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Members of this group may ask, too (mode 0660); nobody but the owner otherwise (0600).
    pub group: Option<String>,
}

impl ControlPlan {
    /// Where relays answer unless they are told otherwise.
    pub const DEFAULT_DIRECTORY: &str = "/run/longfat-relay";

    /// Where a relay of that name answers unless it is told otherwise.
    pub fn default_socket(name: &str) -> PathBuf {
        PathBuf::from(ControlPlan::DEFAULT_DIRECTORY).join(format!("{name}.sock"))
    }

    /// Where a relay of that name that was told no place can answer: several of one name may begin at once, in network
    /// namespaces of their own, so its place has its pid.
    /// `None` where this user may make no socket.
    pub fn own_default(name: &str) -> Option<PathBuf> {
        let directory = ControlPlan::DEFAULT_DIRECTORY;
        std::fs::create_dir_all(directory).ok()?;
        nix::unistd::access(directory, nix::unistd::AccessFlags::W_OK).ok()?;
        Some(ControlPlan::default_socket(&format!("{name}-{}", std::process::id())))
    }

    /// Sockets at the default place, whoever's.
    pub fn default_sockets() -> Vec<PathBuf> {
        let entries = std::fs::read_dir(ControlPlan::DEFAULT_DIRECTORY).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
        found.sort();
        found
    }
}

/// Where connections come in that another router's relay moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MovePlan {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The file of the key that both relays have.
    pub key: PathBuf,
    /// For so long packets are dropped of connections that this router sees first in mid-stream.
    #[serde(serialize_with = "as_us_if_any")]
    pub hold: Option<Duration>,
}

impl MovePlan {
    /// Longer, an end may give its connection up.
    pub const MOST_HOLD: Duration = Duration::from_secs(30);
}

/// What a relay says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LogPlan {
    /// How a line looks.
    pub format: LogFormat,
    /// What is worth one.
    pub level: LogLevel,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// How much is worth a line, from least to most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// What ends the relay.
    Error,
    /// What a person should know.
    Warning,
    /// Life of the relay: start, reload, drain, end.
    #[default]
    Info,
    /// Every connection.
    Debug,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_cannot_work_says_what_is_wrong() {
        let here: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let message = |plan: RelayPlan| plan.check().unwrap_err().to_string();
        let explicit = |name: &str, to: &[SocketAddr]| RelayPlan::explicit(name, here, to.to_vec());
        assert!(message(explicit("a b", &[here])).contains("'a b'"));
        assert!(message(explicit("a", &[here])).contains("itself"));
        assert!(message(explicit("a", &[])).contains("server"));
        assert!(message(RelayPlan::transparent("a", InterceptPlan::default())).contains("interface"));
        assert!(message(RelayPlan::new("a")).contains("listen"));
        let mut lasting = RelayPlan {
            coalesce: Duration::from_secs(10),
            ..explicit("a", &["192.0.2.1:80".parse().unwrap()])
        };
        lasting.check().unwrap();
        lasting.defaults_mut().idle = Some(Duration::from_secs(10));
        let wrong = message(lasting);
        assert!(
            wrong.contains("coalesce is 10s") && wrong.contains("idle of the rule 'default' is 10s"),
            "{wrong}"
        );
        for workers in [0, MOST_WORKERS + 1] {
            let plan = RelayPlan { workers, ..explicit("a", &["192.0.2.1:80".parse().unwrap()]) };
            assert!(message(plan).contains(&format!("{workers} workers")));
        }
    }
}
