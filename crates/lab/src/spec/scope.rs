//! What figures can be of: whether a run of a setting has a metric of a flow, a link or a relay. Pure.

use super::{FlowSpec, Protocol, Setting, decode::unknown};
use longfat_link::plan::{DirectionPlan, LinkPlan};
use longfat_schema::metric::{Kind, Scope};

/// Ends of a link's directions, as `of` names them.
const DIRECTIONS: [&str; 2] = ["forward", "backward"];
/// What a relay's directions are called.
const RELAY_DIRECTIONS: [&str; 2] = ["client_to_server", "server_to_client"];
/// What a relay's legs are called, towards client and server.
const RELAY_LEGS: [&str; 2] = ["relay_in", "relay_out"];

/// Why no run of a setting has such a figure.
pub(super) fn why_none(kind: &Kind, of: &str, setting: &Setting) -> Option<String> {
    let known = scopes(kind.scope, setting);
    if of.is_empty() && kind.is_of_run() {
        return of_run(kind, setting);
    }
    if of.is_empty() {
        return Some(format!("'{}' is of {}; say which", kind.name, kind.scope.of()));
    }
    if kind.is_of_run() {
        return Some(format!("'{}' is of the run as a whole, not of '{of}'; leave it out", kind.name));
    }
    if !known.iter().any(|name| name == of) {
        let message = unknown(thing(kind.scope), of, known.iter().map(String::as_str));
        return Some(format!("{message} ('{}' is of {})", kind.name, kind.scope.of()));
    }
    match setting.flows.get(of).filter(|_| kind.is_of_flow()) {
        Some(flow) => of_flow(kind, of, flow, setting),
        None => of_link(kind, of, setting),
    }
}

/// What a metric of that scope is of, in words.
fn thing(scope: Scope) -> &'static str {
    match scope {
        Scope::Run => "run",
        Scope::Flow => "flow",
        Scope::FlowOrLeg => "flow or leg of a relay",
        Scope::Link => "link with a path",
        Scope::Direction => "direction of a link with a path",
        Scope::Relay => "direction of a relay",
    }
}

/// Everything that a metric of that scope can be of.
fn scopes(scope: Scope, setting: &Setting) -> Vec<String> {
    let flows = || setting.flows.iter().filter(|(_, flow)| flow.enabled).map(|(name, _)| name.clone());
    let relays = setting.relays.iter().filter(|(_, relay)| relay.enabled);
    let of_relays = |parts: [&'static str; 2]| {
        relays.flat_map(move |(name, _)| parts.map(|part| format!("{name}/{part}"))).collect::<Vec<_>>()
    };
    let links = setting.links.iter().filter(|(_, cable)| cable.is_emulated()).map(|(name, _)| name.clone());
    match scope {
        Scope::Run => Vec::new(),
        Scope::Flow => flows().collect(),
        Scope::FlowOrLeg => flows().chain(of_relays(RELAY_LEGS)).collect(),
        Scope::Link => links.collect(),
        Scope::Direction => links.flat_map(|name| DIRECTIONS.map(|way| format!("{name}/{way}"))).collect(),
        Scope::Relay => of_relays(RELAY_DIRECTIONS),
    }
}

/// Fairness is between connections.
fn of_run(kind: &Kind, setting: &Setting) -> Option<String> {
    let tcp = setting.flows.values().filter(|flow| flow.enabled && flow.protocol == Protocol::Tcp);
    let connections: u64 = tcp.map(|flow| u64::from(flow.streams)).sum();
    let lacks = kind.name == "fairness_jain" && connections < 2;
    lacks.then(|| "fairness is between TCP connections, and there are not two; leave it out".to_owned())
}

/// What a flow must have, or be, for a metric of it.
fn of_flow(kind: &Kind, name: &str, flow: &FlowSpec, setting: &Setting) -> Option<String> {
    let is_tcp = flow.protocol == Protocol::Tcp;
    let (is_there, mend) = match kind.name {
        "goodput_bps" => return None,
        "lost_datagrams" => (!is_tcp, "counts datagrams; name a flow with protocol = \"udp\""),
        _ if !is_tcp => (false, "is of TCP; name another flow"),
        "echo_p50_us" | "echo_p99_us" | "echo_max_us" => {
            (flow.echo_every.is_some(), "needs echoes; write echo_every in the flow")
        }
        "completion_us" => (flow.size.is_some(), "needs an amount; write size in the flow"),
        "rise_us" => (changes_rate(setting), "needs a link whose rate changes; write a schedule in the link"),
        metric if metric.starts_with("avail_") => {
            (flow.streams == 1, "is of a flow of one connection; write streams = 1")
        }
        _ => return None,
    };
    (!is_there).then(|| format!("'{}' of '{name}' {mend}", kind.name))
}

/// A share of a rate is of one rate.
fn of_link(kind: &Kind, of: &str, setting: &Setting) -> Option<String> {
    let (name, way) = of.split_once('/')?;
    if kind.name != "utilisation_ratio" {
        return None;
    }
    let plan = plan(setting.links.get(name)?)?;
    let direction = if way == "backward" { &plan.backward } else { &plan.forward };
    let why = || format!("'{}' of '{of}' needs a link whose rate is given and does not change", kind.name);
    direction.steady_bps().is_none().then(why)
}

/// Faults of a link's values are said elsewhere.
fn plan(cable: &super::CableSpec) -> Option<LinkPlan> {
    cable.line.resolve("", 0).ok()
}

/// Whether a link has a new rate before the end, and not again and again.
fn changes_rate(setting: &Setting) -> bool {
    let end_ns = setting.head.warmup.0.saturating_add(setting.head.duration.0);
    let is_new = |way: &DirectionPlan| way.changed_bps(end_ns).is_some();
    let mut plans = setting.links.values().filter_map(plan);
    plans.any(|plan| is_new(&plan.forward) || is_new(&plan.backward))
}
