//! From what a person wrote to what the relay does: defaults filled in, names looked up, contradictions found.

use super::{
    ActionSpec, ControlSpec, LegSpec, ListenSpec, MoveSpec, RelaySpec, RuleSpec, SpecError, WaySpec,
};
use crate::{
    plan::{
        Accept, Acknowledge, ConnectionPlan, ControlPlan, InterceptPlan, LegPlan, LimitsPlan, ListenerPlan,
        LogPlan, MatchPlan, MovePlan, Network, Ports, RelayPlan, RulePlan,
    },
    spec::QueueSpec,
};
use longfat_host::{interface, socket::CC_NAME_MAX};
use longfat_kernel::watch::Conditions;
use longfat_schema::{
    decode::{Problem, unknown},
    units::{Nanos, Size},
};
use std::{
    collections::BTreeSet,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

/// Least and most that SO_MAX_PACING_RATE is useful for: 8 kbit/s is one small packet a second.
const PACING_MIN_BPS: u64 = 8_000;
/// RFC 9293 section 3.7.1: nobody needs to take less; 65495 is an IPv4 packet's most.
const MSS_RANGE_BYTES: std::ops::RangeInclusive<u16> = 536..=65_495;
/// Every relaying rule has a listener per worker and IP family.
const RULES_MAX: usize = 64;

/// What is wrong so far.
/// In a shorter pause an end may be waiting for an acknowledgement that is on its way.
const LEAST_RELEASE_AFTER: Nanos = Nanos(100_000_000);

type Problems = Vec<Problem>;

impl RelaySpec {
    /// The plan, or everything that is wrong. Names of servers are looked up here.
    pub fn resolve(&self) -> Result<RelayPlan, SpecError> {
        let mut problems = Problems::new();
        let plan = self.plan(&mut problems);
        // A listener whose server was not found is a problem already.
        let is_whole = plan.listeners.len() == self.listen.len();
        if let Err(error) = if is_whole { plan.check() } else { Ok(()) } {
            problems.push(Problem::new("the relay", error.to_string()));
        }
        if problems.is_empty() { Ok(plan) } else { Err(SpecError::Problems(problems)) }
    }

    fn plan(&self, problems: &mut Problems) -> RelayPlan {
        let name = self.name.clone().unwrap_or_else(|| "relay".into());
        let mut plan = RelayPlan::new(&name);
        plan.defaults = Arc::new(way(&self.defaults, &ConnectionPlan::default(), "defaults", problems));
        plan.intercept = self.intercept(problems);
        plan.listeners =
            self.listen.iter().enumerate().filter_map(|(index, at)| listener(index, at, problems)).collect();
        plan.rules = rules(&self.rule, &plan, &[], problems);
        plan.fail = self.fail;
        plan.limits = self.limits(problems);
        plan.workers = self.workers.unwrap_or(plan.workers);
        plan.keep = self.keep;
        plan.moves = self.moves.as_ref().map(|moves| moves.plan(problems));
        plan.drain = self.drain.map_or(plan.drain, Duration::from);
        plan.reset_wait = self.reset_wait.map_or(plan.reset_wait, Duration::from);
        if let Some(coalesce) = self.coalesce {
            match RelayPlan::checked_coalesce(coalesce.into()) {
                Ok(coalesce) => plan.coalesce = coalesce,
                Err(wrong) => problems.push(Problem::new("coalesce", wrong)),
            }
        }
        plan.control = Some(control(&self.control, &name));
        plan.metrics = self.metrics;
        if let Some(address) = self.metrics.filter(|address| !address.ip().is_loopback()) {
            problems.push(Problem::new(
                "metrics",
                format!(
                    "{address} can be reached from elsewhere; choose a loopback address like 127.0.0.1:9469"
                ),
            ));
        }
        plan.log = LogPlan { format: self.log.format, level: self.log.level };
        plan
    }

    fn intercept(&self, problems: &mut Problems) -> Option<InterceptPlan> {
        let spec = self.intercept.as_ref()?;
        for name in &spec.interfaces.0 {
            problems.extend(interface_name("intercept.interfaces", name));
        }
        for (key, number) in [("mark", spec.mark), ("table", spec.table)] {
            if number == Some(0) {
                problems.push(Problem::new(format!("intercept.{key}"), "give a number above zero"));
            }
        }
        Some(InterceptPlan {
            interfaces: spec.interfaces.0.clone(),
            mark: spec.mark,
            table: spec.table,
            set_forwarding: spec.forwarding,
        })
    }

    fn limits(&self, problems: &mut Problems) -> LimitsPlan {
        let spec = &self.limits;
        let counts = [("connections", spec.connections), ("client", spec.client), ("network", spec.network)];
        for (key, _) in counts.iter().filter(|(_, count)| *count == Some(0)) {
            problems.push(Problem::new(format!("limits.{key}"), "give at least 1"));
        }
        let sizes = [
            ("memory", spec.memory),
            ("client_memory", spec.client_memory),
            ("network_memory", spec.network_memory),
        ];
        for (key, size) in sizes.iter().filter_map(|(key, size)| Some((key, (*size)?))) {
            if size.0 < 1 << 20 {
                problems.push(Problem::new(
                    format!("limits.{key}"),
                    format!("{size} is too little; give at least 1MiB"),
                ));
            } else if spec.memory.is_some_and(|all| size.0 > all.0) {
                let message =
                    format!("{size} is more than limits.memory allows all together; give at most that");
                problems.push(Problem::new(format!("limits.{key}"), message));
            }
        }
        if spec.descriptors.is_some_and(|descriptors| descriptors < 64) {
            problems.push(Problem::new("limits.descriptors", "give at least 64"));
        }
        LimitsPlan {
            connections: spec.connections,
            client: spec.client,
            network: spec.network,
            memory_bytes: spec.memory.map(|memory| memory.0),
            client_memory_bytes: spec.client_memory.map(|memory| memory.0),
            network_memory_bytes: spec.network_memory.map(|memory| memory.0),
            descriptors: spec.descriptors,
        }
    }
}

impl MoveSpec {
    fn plan(&self, problems: &mut Problems) -> MovePlan {
        let hold = self.hold.map(Duration::from);
        if let Some(wrong) = hold.filter(|hold| hold.is_zero() || *hold > MovePlan::MOST_HOLD) {
            let most = MovePlan::MOST_HOLD;
            let message = format!(
                "{wrong:?} is no time to hold packets back for: give {most:?} at most, or leave it out"
            );
            problems.push(Problem::new("move.hold", message));
        }
        MovePlan { listen: self.listen, key: self.key.clone(), hold }
    }
}

impl RelayPlan {
    /// This plan with rules before its own. A plan without rules takes everything that it intercepts: what the
    /// new rules do not speak of is carried as before.
    ///
    /// # Errors
    /// Everything that is wrong with the rules.
    pub(crate) fn with_rules(&self, added: &[RuleSpec]) -> Result<RelayPlan, SpecError> {
        let mut plan = self.clone();
        if added.is_empty() {
            return Ok(plan);
        }
        let mut problems = Problems::new();
        let mut rules = rules(added, self, &self.rules, &mut problems);
        if !problems.is_empty() {
            return Err(SpecError::Problems(problems));
        }
        rules.append(&mut plan.rules);
        if self.rules.is_empty() && self.intercept.is_some() {
            let (name, relay) = (ConnectionPlan::DEFAULT_RULE.to_owned(), Some(Arc::clone(&self.defaults)));
            rules.push(RulePlan { name, matches: MatchPlan::default(), relay });
        }
        plan.rules = rules;
        Ok(plan)
    }
}

/// Rules for a relay that has others behind them.
fn rules(
    specs: &[RuleSpec],
    plan: &RelayPlan,
    behind: &[RulePlan],
    problems: &mut Problems,
) -> Vec<RulePlan> {
    let count = specs.len() + behind.len();
    if count > RULES_MAX {
        let message = format!("{count} rules are too many; join some (at most {RULES_MAX})");
        problems.push(Problem::new("rule", message));
    }
    let interfaces = plan.intercept.iter().flat_map(|intercept| &intercept.interfaces);
    let intercepted: Vec<&str> = interfaces.map(String::as_str).collect();
    let mut names: BTreeSet<String> = behind.iter().map(|rule| rule.name.clone()).collect();
    names.insert(ConnectionPlan::DEFAULT_RULE.to_owned());
    let mut found = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let rule = rule(index, spec, &plan.defaults, &intercepted, problems);
        if !names.insert(rule.name.clone()) {
            let message = format!("the name '{}' is taken already; choose another", rule.name);
            problems.push(Problem::new(format!("rule[{index}].name"), message));
        }
        found.push(rule);
    }
    found
}

fn rule(
    index: usize,
    spec: &RuleSpec,
    defaults: &ConnectionPlan,
    intercepted: &[&str],
    problems: &mut Problems,
) -> RulePlan {
    let path = format!("rule[{index}]");
    let name = spec.name.clone().unwrap_or_else(|| format!("rule-{}", index + 1));
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 32 || !name.chars().all(good) {
        let message = format!("'{name}' must be 1 to 32 letters, digits, '-', '_' or '.'");
        problems.push(Problem::new(format!("{path}.name"), message));
    }
    for interface in spec.interface.0.iter().filter(|name| !intercepted.contains(&name.as_str())) {
        let message = unknown("interface", interface, intercepted.iter().copied());
        problems.push(Problem::new(
            format!("{path}.interface"),
            format!("{message}; name it in intercept.interfaces, too"),
        ));
    }
    let matches = MatchPlan {
        interfaces: spec.interface.0.clone(),
        sources: Network::merge(spec.source.0.clone()),
        destinations: Network::merge(spec.destination.0.clone()),
        ports: Ports::merge(spec.port.0.clone()),
    };
    problems.extend(no_common_family(&path, &matches));
    let relay = match spec.action {
        ActionSpec::Relay => Some(way(&spec.way(), defaults, &path, problems)),
        ActionSpec::Pass => {
            if spec.way() != WaySpec::default() {
                let message = "a rule with action = \"pass\" leaves connections alone: remove what says how to carry them";
                problems.push(Problem::new(path, message));
            }
            None
        }
    };
    let relay = relay.map(|plan| Arc::new(ConnectionPlan { rule: name.clone(), ..plan }));
    RulePlan { name, matches, relay }
}

/// A rule from IPv4 to IPv6 matches nothing, which nobody means.
fn no_common_family(path: &str, matches: &MatchPlan) -> Option<Problem> {
    let has = |networks: &[Network], ipv4: bool| {
        networks.is_empty() || networks.iter().any(|network| network.is_ipv4() == ipv4)
    };
    let possible =
        [true, false].iter().any(|v4| has(&matches.sources, *v4) && has(&matches.destinations, *v4));
    (!possible)
        .then(|| Problem::new(path, "source and destination are of different IP families: it never matches"))
}

fn interface_name(path: &str, name: &str) -> Option<Problem> {
    let good = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '"' | '\\' | '*');
    let fine = !name.is_empty() && name.len() <= interface::NAME_MAX && name.chars().all(good);
    (!fine).then(|| Problem::new(path, format!("'{name}' is no name of an interface; see 'ip link'")))
}

fn way(spec: &WaySpec, defaults: &ConnectionPlan, path: &str, problems: &mut Problems) -> ConnectionPlan {
    let keepalive = |leg: &LegPlan| spec.keepalive.map_or(leg.keepalive_idle, unless_zero);
    let client = leg(&spec.client, &defaults.client, &format!("{path}.client"), problems);
    let server = leg(&spec.server, &defaults.server, &format!("{path}.server"), problems);
    if spec
        .keepalive
        .is_some_and(|time| time.0 != 0 && !(1_000_000_000..=32_767_000_000_000).contains(&time.0))
    {
        problems.push(Problem::new(format!("{path}.keepalive"), "give 1s to 32767s, or 0 for never"));
    }
    if spec.idle.is_some_and(|time| time.0 != 0 && time.0 < 1_000_000_000) {
        problems.push(Problem::new(format!("{path}.idle"), "give 1s or more, or 0 for never"));
    }
    if spec.memory.is_some_and(|memory| memory.0 < 16 << 10) {
        problems.push(Problem::new(format!("{path}.memory"), "give at least 16KiB"));
    }
    let queue = match spec.queue.as_ref().map(QueueSpec::checked) {
        None => defaults.queue.clone(),
        Some(Ok(queue)) => queue,
        Some(Err(wrong)) => {
            problems.push(Problem::new(format!("{path}.queue"), wrong));
            None
        }
    };
    let accept = spec.accept.unwrap_or(defaults.accept);
    // A rule of another kind does not inherit what it could not use.
    let inherited = if accept == Accept::EndToEnd { defaults.adopt } else { Conditions::default() };
    let adopt = spec.conditions(inherited, path, problems);
    let inherited = defaults.release_after.filter(|_| accept == Accept::EndToEnd);
    let release_after = spec.release_after.map_or(inherited, |time| Some(time.into()));
    if let Some(time) = spec.release_after.filter(|time| *time < LEAST_RELEASE_AFTER) {
        let message = format!("it is {time}; give {LEAST_RELEASE_AFTER} or more, or leave it out for never");
        problems.push(Problem::new(format!("{path}.release_after"), message));
    }
    let inherited = if accept == Accept::EndToEnd { defaults.acknowledge } else { Acknowledge::Early };
    ConnectionPlan {
        rule: defaults.rule.clone(),
        accept,
        adopt,
        release_after,
        acknowledge: spec.acknowledge.unwrap_or(inherited),
        mptcp: spec.mptcp.unwrap_or(defaults.mptcp),
        client: LegPlan { keepalive_idle: keepalive(&defaults.client), ..client },
        server: LegPlan { keepalive_idle: keepalive(&defaults.server), ..server },
        idle: spec.idle.map_or(defaults.idle, unless_zero),
        memory_bytes: spec.memory.map(|memory| memory.0).or(defaults.memory_bytes),
        queue,
    }
}

impl WaySpec {
    /// What is wrong with it, whatever the defaults, at keys that begin with `path`.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Problems::new();
        way(self, &ConnectionPlan::default(), path, &mut problems);
        problems
    }
}

fn unless_zero(time: Nanos) -> Option<Duration> {
    (time.0 != 0).then(|| time.into())
}

fn leg(spec: &LegSpec, defaults: &LegPlan, path: &str, problems: &mut Problems) -> LegPlan {
    let mut wrong =
        |key: &str, message: String| problems.push(Problem::new(format!("{path}.{key}"), message));
    let buffer_bytes = match (spec.buffer, spec.rate, spec.rtt) {
        (Some(Size(bytes)), None, None) => bytes,
        (None, Some(rate), Some(rtt)) => LegPlan::buffer_for(rate, rtt),
        (None, None, None) => defaults.buffer_bytes,
        (Some(_), _, _) => {
            wrong("buffer", "give either a buffer, or the path's rate and rtt".into());
            defaults.buffer_bytes
        }
        (None, rate, _) => {
            let (there, missing) = if rate.is_some() { ("rate", "rtt") } else { ("rtt", "rate") };
            wrong(there, format!("the buffer follows from rate and rtt: give {missing}, too"));
            defaults.buffer_bytes
        }
    };
    let is_default = (spec.buffer, spec.rate, spec.rtt) == (None, None, None);
    if !LegPlan::BUFFER_RANGE_BYTES.contains(&buffer_bytes) {
        wrong("buffer", format!("it is {}; give 4096B to 1GiB", Size(buffer_bytes)));
    }
    let lowat = spec.notsent_lowat.map_or(u64::from(defaults.notsent_lowat_bytes), |size| size.0);
    if !(1..=1 << 30).contains(&lowat) {
        wrong("notsent_lowat", format!("it is {}; give 1B to 1GiB", Size(lowat)));
    }
    if let Some(cc) = spec.cc.as_ref().filter(|cc| cc.is_empty() || cc.len() > CC_NAME_MAX) {
        wrong("cc", format!("'{cc}' is no name of a congestion control; see 'longfat cc list'"));
    }
    if spec.pacing.is_some_and(|rate| rate.0 < PACING_MIN_BPS) {
        wrong("pacing", "give 8kbit or more".into());
    }
    if spec.mss.is_some_and(|mss| !MSS_RANGE_BYTES.contains(&mss)) {
        wrong("mss", "give 536 to 65495".into());
    }
    LegPlan {
        cc: spec.cc.clone().or_else(|| defaults.cc.clone()),
        buffer_bytes,
        fast_buffer_bytes: if is_default { defaults.fast_buffer_bytes } else { 0 },
        pacing_bps: spec.pacing.map(|rate| rate.0).or(defaults.pacing_bps),
        notsent_lowat_bytes: lowat as u32,
        mss_bytes: spec.mss.or(defaults.mss_bytes),
        keepalive_idle: defaults.keepalive_idle,
        begins_small: defaults.begins_small,
    }
}

fn listener(index: usize, spec: &ListenSpec, problems: &mut Problems) -> Option<ListenerPlan> {
    match server(&spec.to) {
        Ok(to) => Some(ListenerPlan { listen: spec.address, to }),
        Err(message) => {
            problems.push(Problem::new(format!("listen[{index}].to"), message));
            None
        }
    }
}

/// The addresses of a server given as `HOST:PORT`.
pub fn server(text: &str) -> Result<Vec<SocketAddr>, String> {
    let found = text.to_socket_addrs().map(|found| found.collect::<Vec<_>>());
    found.map_err(|error| {
        format!("'{text}': {error}; give a host and a port, like 'server.example:80' or '[2001:db8::1]:80'")
    })
}

fn control(spec: &ControlSpec, name: &str) -> ControlPlan {
    let socket = spec.socket.clone().unwrap_or_else(|| ControlPlan::default_socket(name));
    ControlPlan { socket, group: spec.group.clone() }
}
