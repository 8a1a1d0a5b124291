//! From an experiment to its plans.

use super::{
    CablePlan, EndPlan, FlowPlan, HostPlan, Plan, RelayPlan, RoutePlan,
    network::{IPV4_PREFIX, IPV6_PREFIX, Topology, addresses},
};
use super::{need::least, refusals::refusals};
use crate::spec::{
    CableSpec, Case, DilateSpec, Experiment, FlowSpec, FollowSpec, HostSpec, Protocol, RelaySpec, Setting,
    SpecError, seed_of,
};
use longfat_cc::Tunables;
use longfat_schema::{SCHEMA_VERSION, decode::Problem, own_time::Dilation, units::Size};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Port on which a host's receiver listens.
const PORT: u16 = 5201;

/// Every run of the experiment, repeat by repeat, so that a disturbance of the machine meets all cases alike.
///
/// # Errors
/// What of a case cannot be carried out, all of it.
pub fn plans(experiment: &Experiment) -> Result<Vec<Plan>, SpecError> {
    let mut plans = Vec::new();
    let repeats = |case: &Case| case.setting.head.repeats;
    for repeat in 1..=experiment.cases.iter().map(repeats).max().unwrap_or(0) {
        for case in experiment.cases.iter().filter(|case| repeat <= repeats(case)) {
            plans.push(plan(experiment, case, repeat)?);
        }
    }
    let refused = refused_flows(experiment, &plans);
    if refused.is_empty() { Ok(plans) } else { Err(SpecError::Problems(refused)) }
}

/// What the transfer program would refuse of a flow, said of the first case that has it.
fn refused_flows(experiment: &Experiment, plans: &[Plan]) -> Vec<Problem> {
    let mut found: Vec<(Problem, &str)> = Vec::new();
    for plan in plans.iter().filter(|plan| plan.repeat == 1) {
        for flow in &plan.flows {
            let Err(error) = flow.transfer().check() else { continue };
            let problem = Problem::new(format!("flows.{}", flow.name), error.to_string());
            if found.iter().all(|(said, _)| *said != problem) {
                found.push((problem, &plan.case));
            }
        }
    }
    found.into_iter().flat_map(|(problem, case)| at_case(experiment, case, vec![problem])).collect()
}

fn plan(experiment: &Experiment, case: &Case, repeat: u32) -> Result<Plan, SpecError> {
    let setting = &case.setting;
    let head = &setting.head;
    let seed = seed_of(head.seed, &[&case.name, &repeat.to_string()]);
    let topology = Topology::of(setting);
    let links = links(setting, seed)?;
    let unsegmented = topology.towards_emulated();
    let window_start_us = head.warmup.as_us() as i64;
    let mut plan = Plan {
        schema_version: SCHEMA_VERSION,
        experiment: experiment.head.name.clone(),
        case: case.name.clone(),
        case_title: case.title.clone(),
        axes: case.axes.clone(),
        repeat,
        seed,
        dilation: Dilation::NONE,
        focus: head.focus.clone(),
        window_start_us,
        window_end_us: window_start_us + head.duration.as_us() as i64,
        sample_every_us: head.sample_every.as_us(),
        start_within_us: head.start_within.as_us(),
        cpu_limit: head.cpu_limit,
        hold_up_limit: head.hold_up_limit,
        twin_limit: head.twin_limit,
        hosts: setting
            .hosts
            .iter()
            .map(|(name, host)| host_plan(name, host, setting, &topology, &links, &unsegmented))
            .collect(),
        relays: enabled_relays(setting).map(|(name, relay)| relay_plan(name, relay)).collect(),
        follows: enabled_follows(setting)
            .map(|(name, follow)| super::follow::plan(name, follow, setting, &topology, &links))
            .collect(),
        flows: enabled_flows(setting)
            .map(|(name, flow)| flow_plan(name, flow, setting, &topology, &links, seed))
            .collect(),
        links,
        tunables: setting.tunables.clone(),
    };
    plan.tunables = every_tunable(&plan);
    let refuse = |refused| SpecError::Problems(at_case(experiment, &plan.case, refused));
    plan.dilation = dilation_of(&plan, head.dilate).map_err(refuse)?;
    Ok(plan)
}

/// What the experiment asks for, where nothing has a clock that cannot be slowed.
fn dilation_of(plan: &Plan, dilate: DilateSpec) -> Result<Dilation, Vec<Problem>> {
    let DilateSpec::Times(times) = dilate else { return Ok(least(plan).dilation) };
    let dilation = Dilation::new(times).unwrap_or_default();
    let refused = refusals(plan, dilation);
    if refused.is_empty() { Ok(dilation) } else { Err(refused) }
}

/// What is wrong with one of several cases says with which.
fn at_case(experiment: &Experiment, case: &str, mut problems: Vec<Problem>) -> Vec<Problem> {
    if experiment.cases.len() > 1 {
        problems.iter_mut().for_each(|problem| problem.path = format!("{case}: {}", problem.path));
    }
    problems
}

/// Also those at their defaults: the plan is the record of what ran, and a default may change with a version.
fn every_tunable(plan: &Plan) -> BTreeMap<String, BTreeMap<String, u32>> {
    let used = plan.ccs().into_iter().filter_map(|cc| plan.tunables_of(&cc).map(|tunables| (cc, tunables)));
    let named = |tunables: &Tunables| tunables.iter().map(|(name, value)| (name.to_owned(), value)).collect();
    used.map(|(cc, tunables)| (cc, named(&tunables))).collect()
}

fn enabled_relays(setting: &Setting) -> impl Iterator<Item = (&String, &RelaySpec)> {
    setting.relays.iter().filter(|(_, relay)| relay.enabled)
}

fn enabled_follows(setting: &Setting) -> impl Iterator<Item = (&String, &FollowSpec)> {
    setting.follows.iter().filter(|(_, follow)| follow.enabled)
}

fn enabled_flows(setting: &Setting) -> impl Iterator<Item = (&String, &FlowSpec)> {
    setting.flows.iter().filter(|(_, flow)| flow.enabled)
}

fn links(setting: &Setting, seed: u64) -> Result<Vec<CablePlan>, SpecError> {
    let numbered = setting.links.iter().zip(0u16..);
    numbered.map(|((name, cable), index)| cable_plan(name, cable, index, setting, seed)).collect()
}

fn cable_plan(
    name: &str,
    cable: &CableSpec,
    index: u16,
    setting: &Setting,
    seed: u64,
) -> Result<CablePlan, SpecError> {
    let end = |end: u8| {
        let (ipv4, ipv6) = addresses(index, end);
        let host = cable.between.get(usize::from(end)).cloned().unwrap_or_default();
        EndPlan { host, ipv4, ipv6 }
    };
    let mut line = cable.line.clone();
    line.sample_interval.get_or_insert(setting.head.sample_every);
    let path = line.resolve(name, seed_of(seed, &["link", name]))?;
    Ok(CablePlan {
        name: name.to_owned(),
        mtu_bytes: path.mtu_bytes,
        ends: [end(0), end(1)],
        path: (!path.is_cable()).then_some(path),
    })
}

fn host_plan(
    name: &str,
    host: &HostSpec,
    setting: &Setting,
    topology: &Topology<'_>,
    links: &[CablePlan],
    unsegmented: &BTreeSet<(String, String)>,
) -> HostPlan {
    let mut sysctls = standing_sysctls(host.forward);
    sysctls.extend(setting.head.sysctls.clone());
    sysctls.extend(host.sysctls.clone());
    HostPlan {
        name: name.to_owned(),
        forward: host.forward,
        sysctls,
        routes: links.iter().filter_map(|link| route(name, link, topology, links)).collect(),
        unsegmented: unsegmented
            .iter()
            .filter(|(host, _)| host == name)
            .map(|(_, link)| link.clone())
            .collect(),
    }
}

/// What every host needs so that runs do not depend on one another or on the machine's own settings.
fn standing_sysctls(forward: bool) -> BTreeMap<String, String> {
    let mut found = sysctls_of_namespace(forward);
    // No run learns ssthresh or RTT from the one before.
    found.insert("net.ipv4.tcp_no_metrics_save".to_owned(), "1".to_owned());
    found
}

/// Sysctls that make a network of namespaces. The network of a real host is its owner's.
pub(crate) fn sysctls_of_namespace(forward: bool) -> BTreeMap<String, String> {
    let forwarding = if forward { "1" } else { "0" };
    let pairs = [
        ("net.ipv4.ip_forward", forwarding),
        ("net.ipv6.conf.all.forwarding", forwarding),
        // A relay answers with the server's address: paths need not be symmetric.
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        // Addresses are unique by construction; waiting for the proof would delay the start.
        ("net.ipv6.conf.all.accept_dad", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn route(host: &str, link: &CablePlan, topology: &Topology<'_>, links: &[CablePlan]) -> Option<RoutePlan> {
    let hop = topology.next_hop(host, &link.name)?;
    let via = end_of(links, hop.link, hop.to)?;
    let [near, _] = &link.ends;
    let prefix4 = Ipv4Addr::from_bits(near.ipv4.to_bits() & (u32::MAX << (32 - IPV4_PREFIX)));
    let prefix6 = Ipv6Addr::from_bits(near.ipv6.to_bits() & (u128::MAX << (128 - IPV6_PREFIX)));
    Some(RoutePlan {
        ipv4: format!("{prefix4}/{IPV4_PREFIX}"),
        ipv4_via: via.ipv4,
        ipv6: format!("{prefix6}/{IPV6_PREFIX}"),
        ipv6_via: via.ipv6,
    })
}

pub(super) fn end_of<'a>(links: &'a [CablePlan], link: &str, host: &str) -> Option<&'a EndPlan> {
    let link = links.iter().find(|candidate| candidate.name == link)?;
    link.ends.iter().find(|end| end.host == host)
}

fn relay_plan(name: &str, relay: &RelaySpec) -> RelayPlan {
    RelayPlan {
        name: name.to_owned(),
        host: relay.host.clone(),
        intercept: relay.intercept.clone(),
        cc_client: relay.cc_client.clone(),
        cc_server: relay.cc_server.clone(),
        buffer_client_bytes: relay.buffer_client.map(|size| size.0),
        buffer_server_bytes: relay.buffer_server.map(|size| size.0),
        queue: relay.queue.clone().unwrap_or_default().plan(),
        pacing_server_bps: relay.pacing_server.map(|rate| rate.0),
        coalesce_us: None,
    }
}

fn flow_plan(
    name: &str,
    flow: &FlowSpec,
    setting: &Setting,
    topology: &Topology<'_>,
    links: &[CablePlan],
    seed: u64,
) -> FlowPlan {
    let tcp = flow.protocol == Protocol::Tcp;
    let cc = flow.cc.clone().filter(|_| tcp);
    let bytes = |size: Option<Size>| size.map(|size| size.0);
    let end_us = flow.end_ns(&setting.head) / 1000;
    FlowPlan {
        name: name.to_owned(),
        from: flow.from.clone(),
        to: flow.to.clone(),
        address: destination(flow, setting.head.family, topology, links),
        port: PORT,
        protocol: flow.protocol,
        cc_receiver: flow.cc_receiver.clone().or_else(|| cc.clone()).filter(|_| tcp),
        cc,
        streams: flow.streams,
        stagger_us: flow.stagger.as_us(),
        sndbuf_bytes: bytes(flow.sndbuf),
        rcvbuf_bytes: bytes(flow.rcvbuf),
        window_bytes: bytes(flow.window),
        block_bytes: bytes(flow.block),
        datagram_bytes: bytes(flow.datagram),
        rate_bps: flow.rate.map(|rate| rate.0),
        arrivals: flow.arrivals,
        arrivals_seed: flow.arrivals.is_random().then(|| seed_of(seed, &["flow", name])),
        ack_every: flow.ack_every,
        echo_every_bytes: bytes(flow.echo_every),
        start_us: flow.start.as_us(),
        duration_us: end_us.saturating_sub(flow.start.as_us()),
        size_bytes: bytes(flow.size),
    }
}

/// The receiver's address on the link by which the flow arrives: the route to it is the shortest path.
fn destination(flow: &FlowSpec, family: u8, topology: &Topology<'_>, links: &[CablePlan]) -> IpAddr {
    let path = topology.path(&flow.from, &flow.to).unwrap_or_default();
    let end = path.last().and_then(|hop| end_of(links, hop.link, hop.to));
    match flow.family.unwrap_or(family) {
        6 => end.map_or(Ipv6Addr::UNSPECIFIED, |end| end.ipv6).into(),
        _ => end.map_or(Ipv4Addr::UNSPECIFIED, |end| end.ipv4).into(),
    }
}
