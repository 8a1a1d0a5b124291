//! What the types of an experiment cannot say.

use super::topology::{Topology, inside_of};
use super::{CableSpec, Case, Experiment, FlowSpec, Protocol, RelaySpec, Setting};
use longfat_cc::{Algorithm, Tunables};
use longfat_host::{
    interface::{self, IPV6_MTU_MIN_BYTES},
    socket::CC_NAME_MAX,
    sysctl::is_net,
};
use longfat_schema::decode::{Problem, unknown};
use longfat_schema::units::Nanos;
use longfat_transfer::plan::{WINDOW_MAX_BYTES, WINDOW_MIN_BYTES};
use std::collections::{BTreeMap, BTreeSet};

/// Longest name of anything else: they become directories and parts of namespace names.
const NAME_MAX: usize = 48;
/// Most connections of one flow.
pub(crate) const STREAMS_MAX: u32 = 1000;
/// Most hosts, links, relays, flows or followers.
pub(crate) const PARTS_MAX: usize = 1000;
/// Longest run, and longest time in one.
pub(crate) const SPAN_MAX_NS: u64 = longfat_link::plan::SPAN_MAX_NS;
/// Names that a link cannot have, because its interfaces bear it, and what has them on every host.
const TAKEN: [(&str, &str); 3] =
    [("lo", "the loopback"), ("all", "all interfaces' settings"), ("default", "new interfaces' settings")];
/// Samples within a duration: with fewer, what is counted between them is that of another span.
pub(super) const LEAST_SAMPLES: u64 = 3;
/// Most repeats of one case: every run is a plan in memory and a directory.
const REPEATS_MAX: u32 = 10_000;

/// Appends everything that is wrong.
pub fn experiment(experiment: &Experiment, problems: &mut Vec<Problem>) {
    let mut found = Found { problems };
    found.name("name", &experiment.head.name, NAME_MAX);
    if experiment.head.repeats == 0 {
        found.say("repeats", "must be at least 1");
    }
    let mut seen = BTreeSet::new();
    for case in &experiment.cases {
        found.name("cases.name", &case.base, NAME_MAX);
        if !seen.insert(&case.name) {
            found.say("cases", format!("two cases are named '{}'; give each its own name", case.name));
        }
    }
    check_cases(&experiment.cases, &mut found);
}

/// A fault of the file shows in every case: it is said once. One that some cases have names the first of them.
fn check_cases(cases: &[Case], found: &mut Found<'_>) {
    let faults_of = |case: &Case| {
        let mut problems = Vec::new();
        check_setting(&case.setting, &mut Found { problems: &mut problems });
        problems
    };
    let faults: Vec<Vec<Problem>> = cases.iter().map(faults_of).collect();
    let mut said = Vec::new();
    for (case, own) in cases.iter().zip(&faults) {
        for problem in own.iter().filter(|problem| !said.contains(*problem)).cloned().collect::<Vec<_>>() {
            let shared = faults.iter().all(|other| other.contains(&problem));
            let path =
                if shared { problem.path.clone() } else { format!("{}: {}", place(case), problem.path) };
            found.say(path, problem.message.clone());
            said.push(problem);
        }
    }
}

fn place(case: &Case) -> String {
    if case.axes.is_empty() { format!("cases.{}", case.name) } else { format!("at {}", case.name) }
}

/// Collects problems, each once.
pub(super) struct Found<'a> {
    problems: &'a mut Vec<Problem>,
}

impl Found<'_> {
    pub(super) fn say(&mut self, path: impl Into<String>, message: impl Into<String>) {
        let problem = Problem::new(path, message);
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn name(&mut self, path: &str, name: &str, max: usize) {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if name.is_empty() || !plain {
            self.say(path, format!("'{name}' is no name; use letters, digits, '-' and '_'"));
        } else if name.len() > max {
            let message = format!("'{name}' has {} characters; at most {max} fit", name.len());
            self.say(path, message);
        }
    }

    fn cc(&mut self, path: &str, name: &str) {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if name.is_empty() || !plain || name.len() > CC_NAME_MAX {
            let message = format!(
                "'{name}' cannot be a congestion control's name (1 to {CC_NAME_MAX} letters, digits, '_'); \
                 'longfat cc list' shows what there is"
            );
            self.say(path, message);
        }
    }
}

fn check_sysctls(path: &str, sysctls: &BTreeMap<String, String>, found: &mut Found<'_>) {
    for key in sysctls.keys().filter(|key| !is_net(key)) {
        found.say(
            format!("{path}.\"{key}\""),
            "is the whole machine's; only net.* belong to a host of an experiment",
        );
    }
}

fn check_setting(setting: &Setting, found: &mut Found<'_>) {
    let head = &setting.head;
    if head.repeats > REPEATS_MAX {
        found.say("repeats", format!("{} are too many; at most {REPEATS_MAX}", head.repeats));
    }
    if head.duration.0 == 0 {
        found.say("duration", "must be longer than 0s: metrics are counted over it");
    }
    let spans = [
        ("warmup", head.warmup.0),
        ("duration", head.warmup.0.saturating_add(head.duration.0)),
        ("sample_every", head.sample_every.0),
        ("start_within", head.start_within.0),
    ];
    for (key, ns) in spans.into_iter().filter(|(_, ns)| *ns > SPAN_MAX_NS) {
        found.say(key, format!("{} are too long; a run takes {} at most", Nanos(ns), Nanos(SPAN_MAX_NS)));
    }
    if head.sample_every.0 < 1_000_000 {
        found.say(
            "sample_every",
            format!("{} is too often; sample every 1ms or less often", head.sample_every),
        );
    }
    if head.sample_every.0 > head.duration.0 / LEAST_SAMPLES && head.duration.0 > 0 {
        let why = format!("{} is too seldom for a duration of {}", head.sample_every, head.duration);
        let mend = format!("take {LEAST_SAMPLES} samples or more in it");
        found.say("sample_every", format!("{why}: {mend}"));
    }
    if !matches!(head.family, 4 | 6) {
        found.say("family", "is neither 4 nor 6");
    }
    if head.cpu_limit.is_some_and(|limit| !(0.0..=1.0).contains(&limit)) {
        found.say("cpu_limit", "is a share of all processors, between 0 and 1");
    }
    if head.hold_up_limit.is_some_and(|limit| !(0.0..=1.0).contains(&limit)) {
        found.say("hold_up_limit", "is a share of all packets dropped, between 0 and 1");
    }
    if head.twin_limit.is_some_and(|limit| !(0.0..=1000.0).contains(&limit)) {
        found.say("twin_limit", "is a share of the twin's figure, 0 to 1000; write it like 0.2");
    }
    let (hosts, links, flows) = (setting.hosts.len(), setting.links.len(), setting.flows.len());
    let parts = [("hosts", hosts), ("links", links), ("flows", flows)];
    let more = [("relays", setting.relays.len()), ("follows", setting.follows.len())];
    for (section, count) in parts.into_iter().chain(more).filter(|(_, count)| *count > PARTS_MAX) {
        found.say(section, format!("{count} are too many; at most {PARTS_MAX}"));
    }
    if let Some(focus) = &head.focus
        && !setting.flows.contains_key(focus)
    {
        found.say("focus", unknown("flow", focus, names(&setting.flows)));
    }
    check_sysctls("sysctls", &head.sysctls, found);
    for (name, host) in &setting.hosts {
        found.name(&format!("hosts.{name}"), name, NAME_MAX);
        check_sysctls(&format!("hosts.{name}.sysctls"), &host.sysctls, found);
    }
    for (name, cable) in &setting.links {
        check_cable(name, cable, setting, found);
    }
    for (name, values) in &setting.tunables {
        check_tunables(name, values, found);
    }
    for (name, relay) in &setting.relays {
        check_relay(name, relay, setting, found);
    }
    for (name, follow) in &setting.follows {
        super::follow::check(name, follow, setting, found);
    }
    for (name, flow) in &setting.flows {
        check_flow(name, flow, setting, found);
    }
    if !setting.flows.values().any(|flow| flow.enabled) {
        found.say("flows", "there is none that is enabled; write [flows.NAME] with from, to and cc");
    }
}

pub(super) fn names<T>(things: &std::collections::BTreeMap<String, T>) -> impl Iterator<Item = &str> {
    things.keys().map(String::as_str)
}

pub(super) fn check_host(path: &str, host: &str, setting: &Setting, found: &mut Found<'_>) {
    if !setting.hosts.contains_key(host) {
        found.say(path, unknown("host", host, names(&setting.hosts)));
    }
}

fn check_cable(name: &str, cable: &CableSpec, setting: &Setting, found: &mut Found<'_>) {
    let path = format!("links.{name}");
    // A link's interfaces bear its name.
    found.name(&path, name, interface::NAME_MAX);
    if let Some((_, what)) = TAKEN.iter().find(|(taken, _)| name == *taken) {
        found.say(&path, format!("'{name}' is the name of {what} on every host; choose another"));
    }
    let inside = inside_of(name);
    if cable.is_emulated() && setting.hosts.contains_key(&inside) {
        let message = format!("is called like the inside of the link '{name}'; choose another name");
        found.say(format!("hosts.{inside}"), message);
    }
    let between = format!("{path}.between");
    match cable.between.as_slice() {
        [a, b] if a == b => found.say(&between, format!("joins '{a}' with itself; name two hosts")),
        [a, b] => [a, b].into_iter().for_each(|host| check_host(&between, host, setting, found)),
        other => found.say(&between, format!("names {} hosts; name two", other.len())),
    }
    if cable.line.mtu.is_some_and(|mtu| mtu < IPV6_MTU_MIN_BYTES)
        && let Some(who) = who_uses_ipv6(name, setting)
    {
        let why = format!("is less than {IPV6_MTU_MIN_BYTES}, which IPv6 needs, and {who} uses IPv6 there");
        found.say(format!("{path}.mtu"), format!("{why}: raise it, or give the flow family = 4"));
    }
    if let Err(error) = cable.line.resolve(name, 0) {
        let message = format!("{} {}; {}", error.value, error.why, error.mend);
        found.say(format!("{path}.{}", error.field), message);
    }
}

/// A flow of IPv6 whose way leads over a link, there or back.
fn who_uses_ipv6(link: &str, setting: &Setting) -> Option<String> {
    let topology = Topology::of(setting);
    let passes = |from: &str, to: &str| {
        topology.path(from, to).is_some_and(|hops| hops.iter().any(|hop| hop.link == link))
    };
    let mut flows = setting.flows.iter().filter(|(_, flow)| flow.enabled);
    let uses = |flow: &FlowSpec| {
        flow.family.unwrap_or(setting.head.family) == 6
            && (passes(&flow.from, &flow.to) || passes(&flow.to, &flow.from))
    };
    flows.find(|(_, flow)| uses(flow)).map(|(name, _)| format!("flow '{name}'"))
}

fn check_relay(name: &str, relay: &RelaySpec, setting: &Setting, found: &mut Found<'_>) {
    let path = format!("relays.{name}");
    found.name(&path, name, NAME_MAX);
    found.cc(&format!("{path}.cc_client"), &relay.cc_client);
    found.cc(&format!("{path}.cc_server"), &relay.cc_server);
    check_host(&format!("{path}.host"), &relay.host, setting, found);
    if setting.hosts.get(&relay.host).is_some_and(|host| !host.forward) {
        let message = format!("'{}' does not forward; write forward = true in [hosts.{0}]", relay.host);
        found.say(format!("{path}.host"), message);
    }
    if relay.intercept.is_empty() {
        found.say(format!("{path}.intercept"), "names no link; name those whose connections it takes over");
    }
    for Problem { path: key, message } in relay.way().problems("way") {
        found.say(format!("{path}.{}", key_of_way(&key)), message);
    }
    for link in &relay.intercept {
        match setting.links.get(link) {
            None => found.say(format!("{path}.intercept"), unknown("link", link, names(&setting.links))),
            // Of these two the fault is said elsewhere.
            Some(cable) if !cable.joins_two(setting) => {}
            Some(_) if !setting.hosts.contains_key(&relay.host) => {}
            Some(cable) if !cable.between.contains(&relay.host) => {
                let message = format!("link '{link}' does not end at host '{}'", relay.host);
                found.say(format!("{path}.intercept"), message);
            }
            Some(_) => {}
        }
    }
}

/// A key of the relay's own file, as experiments have it: `way.client.buffer` is `buffer_client` there.
fn key_of_way(key: &str) -> String {
    match key.split('.').collect::<Vec<_>>()[..] {
        [_, leg, key] => format!("{key}_{leg}"),
        _ => key.trim_start_matches("way.").to_owned(),
    }
}

fn check_flow(name: &str, flow: &FlowSpec, setting: &Setting, found: &mut Found<'_>) {
    let path = format!("flows.{name}");
    found.name(&path, name, NAME_MAX);
    check_host(&format!("{path}.from"), &flow.from, setting, found);
    check_host(&format!("{path}.to"), &flow.to, setting, found);
    if flow.from == flow.to {
        found.say(&path, format!("goes from '{}' to itself; name two hosts", flow.from));
    } else if setting.hosts.contains_key(&flow.from) && setting.hosts.contains_key(&flow.to) {
        check_reachable(&path, flow, setting, found);
    }
    if !(1..=STREAMS_MAX).contains(&flow.streams) {
        found.say(format!("{path}.streams"), format!("{} is not between 1 and {STREAMS_MAX}", flow.streams));
    }
    if flow.start.0 >= setting.head.warmup.0.saturating_add(setting.head.duration.0) {
        found.say(format!("{path}.start"), format!("{} is after the end of the run", flow.start));
    }
    check_end(&path, flow, setting, found);
    check_stagger(&path, flow, setting, found);
    if !matches!(flow.family, None | Some(4 | 6)) {
        found.say(format!("{path}.family"), "is neither 4 nor 6");
    }
    match flow.protocol {
        Protocol::Tcp => check_tcp(&path, flow, found),
        Protocol::Udp => check_udp(&path, flow, found),
    }
}

/// When a flow ends: by time or by size, before the run does.
fn check_end(path: &str, flow: &FlowSpec, setting: &Setting, found: &mut Found<'_>) {
    let end_ns = setting.head.warmup.0.saturating_add(setting.head.duration.0);
    match (flow.duration, flow.stop) {
        (Some(_), Some(_)) => found.say(format!("{path}.stop"), "stands beside duration; keep one"),
        (Some(Nanos(0)), _) => found.say(format!("{path}.duration"), "must be longer than 0s"),
        (Some(duration), _) if flow.start.0.saturating_add(duration.0) > end_ns => {
            let message = format!("ends after the run does ({})", Nanos(end_ns));
            found.say(format!("{path}.duration"), message);
        }
        (_, Some(stop)) if stop.0 <= flow.start.0 => {
            found.say(format!("{path}.stop"), format!("is not after its start ({})", flow.start));
        }
        (_, Some(stop)) if stop.0 > end_ns => {
            found.say(format!("{path}.stop"), format!("is after the end of the run ({})", Nanos(end_ns)));
        }
        _ => {}
    }
    if flow.size.is_some() && (flow.duration.is_some() || flow.stop.is_some()) {
        found.say(format!("{path}.size"), "stands beside duration or stop; a flow ends by one of them");
    }
    if flow.size.is_some_and(|size| size.0 < u64::from(flow.streams)) {
        found.say(format!("{path}.size"), "is less than a byte for each stream");
    }
}

/// Each stream sends as long as the flow does, from its own start: one that would start when the flow has ended is
/// refused, so that no flow takes more than twice its time.
fn check_stagger(path: &str, flow: &FlowSpec, setting: &Setting, found: &mut Found<'_>) {
    let last_ns = flow.stagger.0.saturating_mul(u64::from(flow.streams.saturating_sub(1)));
    let length_ns = flow.end_ns(&setting.head).saturating_sub(flow.start.0);
    if last_ns > 0 && last_ns >= length_ns {
        let message = format!(
            "{} has the last of {} streams start {} after the first, when the flow has ended ({}); make it shorter",
            flow.stagger,
            flow.streams,
            Nanos(last_ns),
            Nanos(length_ns)
        );
        found.say(format!("{path}.stagger"), message);
    }
}

fn check_reachable(path: &str, flow: &FlowSpec, setting: &Setting, found: &mut Found<'_>) {
    let _ = check_route(path, &flow.from, &flow.to, setting, found)
        && check_route(path, &flow.to, &flow.from, setting, found);
}

/// Whether packets get from one host to another.
pub(super) fn check_route(
    path: &str,
    from: &str,
    to: &str,
    setting: &Setting,
    found: &mut Found<'_>,
) -> bool {
    let is_there = Topology::of(setting).path(from, to).is_some();
    if !is_there && Topology::is_whole(setting) {
        let message = format!(
            "no route from '{from}' to '{to}': join them by links, and write forward = true in the hosts between"
        );
        found.say(path, message);
    }
    is_there
}

fn check_tcp(path: &str, flow: &FlowSpec, found: &mut Found<'_>) {
    match &flow.cc {
        Some(cc) => found.cc(&format!("{path}.cc"), cc),
        None => found.say(
            format!("{path}.cc"),
            "is missing: a TCP flow names its congestion control, because systems differ in their default",
        ),
    }
    if let Some(cc) = &flow.cc_receiver {
        found.cc(&format!("{path}.cc_receiver"), cc);
    }
    if flow.ack_every.is_some_and(|segments| !(1..=256).contains(&segments)) {
        found.say(format!("{path}.ack_every"), "is not between 1 and 256 segments");
    }
    if flow.arrivals.is_random() {
        found.say(format!("{path}.arrivals"), "is for protocol = \"udp\"");
    }
    check_window(path, flow, found);
}

fn check_window(path: &str, flow: &FlowSpec, found: &mut Found<'_>) {
    let Some(window) = flow.window else { return };
    if !(WINDOW_MIN_BYTES..=WINDOW_MAX_BYTES).contains(&window.0) {
        let message = format!("{window} is not between {WINDOW_MIN_BYTES} and {WINDOW_MAX_BYTES} bytes");
        found.say(format!("{path}.window"), message);
    }
    if flow.rcvbuf.is_some() {
        found.say(
            format!("{path}.window"),
            "stands beside rcvbuf; it brings a buffer that holds it: keep one",
        );
    }
}

fn check_udp(path: &str, flow: &FlowSpec, found: &mut Found<'_>) {
    if flow.rate.is_none() {
        found.say(format!("{path}.rate"), "is missing: UDP does not find its own rate");
    }
    if flow.cc.is_some() || flow.cc_receiver.is_some() {
        found.say(format!("{path}.cc"), "is for protocol = \"tcp\": UDP has no congestion control");
    }
    if flow.echo_every.is_some() {
        found.say(format!("{path}.echo_every"), "is for protocol = \"tcp\"");
    }
    if flow.ack_every.is_some() {
        found.say(format!("{path}.ack_every"), "is for protocol = \"tcp\"");
    }
    if flow.window.is_some() {
        found.say(format!("{path}.window"), "is for protocol = \"tcp\"");
    }
    if flow.size.is_some() {
        found.say(format!("{path}.size"), "is for protocol = \"tcp\"; UDP ends by duration or stop");
    }
}

fn check_tunables(name: &str, values: &BTreeMap<String, u32>, found: &mut Found<'_>) {
    let path = format!("cc.{name}");
    if !Algorithm::is_our_name(name) {
        let message = format!("only longfat's own have tunables to set; 'lf_{name}' may be meant");
        return found.say(path, message);
    }
    match Algorithm::find(name) {
        Ok(algorithm) => {
            let set = Tunables::from_settings(
                algorithm,
                values.iter().map(|(key, value)| format!("{key}={value}")),
            );
            set.err().into_iter().for_each(|error| found.say(path.clone(), error.to_string()));
        }
        Err(error) => found.say(path, error.to_string()),
    }
}
