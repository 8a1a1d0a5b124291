//! Which machine is which host of an experiment: a file of its own, so that an experiment names no machine. Pure.

use crate::{
    plan::{CablePlan, FlowPlan, FollowPlan, Plan, RealFollow},
    programs,
};
use longfat_schema::decode::{Problem, decode, list, unknown};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};
use toml::Value;

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct Table {
    /// Configuration of the SSH client (`ssh -F`), relative to the file; the user's own when absent.
    pub ssh_config: Option<PathBuf>,
    /// Every machine, by the name of its host in the experiment.
    pub hosts: BTreeMap<String, Entry>,
}

/// One machine.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct Entry {
    /// Where `ssh` finds it: `USER@NAME`, or a `Host` of its configuration.
    pub ssh: String,
    /// Where flows to it go.
    pub address: Option<Ipv4Addr>,
    /// Where flows of IPv6 to it go.
    pub address6: Option<Ipv6Addr>,
    /// The interfaces that are the experiment's links there, for what a relay intercepts and a router announces on.
    #[serde(default)]
    pub interfaces: BTreeMap<String, String>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// Path of the table.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is no TOML.
    #[error("{path}: not valid TOML: {source}")]
    Syntax {
        /// Path of the table.
        path: String,
        /// What is wrong.
        source: Box<toml::de::Error>,
    },
    /// The file says what cannot be.
    #[error("{path}: {}", list(problems))]
    Problems {
        /// Path of the table.
        path: String,
        /// What is wrong.
        problems: Vec<Problem>,
    },
}

impl Table {
    /// JSON Schema of the file.
    pub fn schema() -> serde_json::Value {
        longfat_schema::json_schema::<Table>()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is not there, or says what is no table of hosts.
    pub fn open(path: &Path) -> Result<Table, TableError> {
        let name = || path.display().to_string();
        let text = fs::read_to_string(path).map_err(|source| TableError::Io { path: name(), source })?;
        let mut table = Table::parse(&text).map_err(|error| match error {
            Ok(problems) => TableError::Problems { path: name(), problems },
            Err(source) => TableError::Syntax { path: name(), source },
        })?;
        let beside = |config: PathBuf| path.parent().map_or(config.clone(), |parent| parent.join(&config));
        table.ssh_config = table.ssh_config.map(beside);
        Ok(table)
    }

    fn parse(text: &str) -> Result<Table, Result<Vec<Problem>, Box<toml::de::Error>>> {
        let table: toml::Table = text.parse().map_err(|error| Err(Box::new(error)))?;
        let mut problems = Vec::new();
        let table: Option<Table> = decode(&Value::Table(table), "", &[], &mut problems);
        match table {
            Some(table) if problems.is_empty() => Ok(table),
            _ => Err(Ok(problems)),
        }
    }

    /// What keeps these plans from being carried out on these machines; nothing is touched. Empty when nothing does.
    pub fn problems(&self, plans: &[Plan]) -> Vec<Problem> {
        let mut found = Vec::new();
        let Some(first) = plans.first() else { return found };
        let known = || first.hosts.iter().map(|host| host.name.as_str());
        for name in self.hosts.keys().filter(|name| !known().any(|known| known == *name)) {
            found.push(Problem::new(
                format!("hosts.{name}"),
                unknown("host of the experiment", name, known()),
            ));
        }
        for plan in plans {
            found.extend(unsupported(plan));
            found.extend(self.unmapped(plan));
        }
        let mut seen = BTreeSet::new();
        found.retain(|problem| seen.insert(problem.to_string()));
        found
    }

    /// Hosts with a part in the plan that are no machine yet, or lack what their part needs.
    fn unmapped(&self, plan: &Plan) -> Vec<Problem> {
        let mut found = Vec::new();
        for host in actors(plan) {
            if !self.hosts.contains_key(host) {
                let why = "has a part in the experiment; say where it is: ssh = \"USER@NAME\"";
                found.push(Problem::new(format!("hosts.{host}"), why));
            }
        }
        for flow in &plan.flows {
            if let Some(entry) = self.hosts.get(&flow.to).filter(|entry| entry.address_for(flow).is_none()) {
                found.push(entry.no_address(flow));
            }
        }
        for relay in &plan.relays {
            let Some(entry) = self.hosts.get(&relay.host) else { continue };
            for link in relay.intercept.iter().filter(|link| !entry.interfaces.contains_key(*link)) {
                let why = format!(
                    "relay '{}' intercepts it; name the interface, as 'ip link' on '{}' shows it",
                    relay.name, relay.host
                );
                found.push(Problem::new(format!("hosts.{}.interfaces.{link}", relay.host), why));
            }
        }
        plan.follows.iter().for_each(|follow| self.unmapped_by(follow, &mut found));
        found
    }

    /// What keeps hosts from following a link.
    fn unmapped_by(&self, follow: &FollowPlan, found: &mut Vec<Problem>) {
        let name = &follow.name;
        if let Some(router) = self.hosts.get(&follow.router) {
            for link in follow.interfaces.iter().filter(|link| !router.interfaces.contains_key(*link)) {
                let why = format!(
                    "follow '{name}' is announced there; name the interface, as 'ip link' on '{}' shows it",
                    follow.router
                );
                found.push(Problem::new(format!("hosts.{}.interfaces.{link}", follow.router), why));
            }
        }
        let has_no_address = |host: &str| self.hosts.get(host).is_some_and(|entry| entry.address.is_none());
        for far in follow.far.iter().filter(|far| has_no_address(&far.host)) {
            let why = format!("follow '{name}' tells it; say at which address it is reached");
            found.push(Problem::new(format!("hosts.{}.address", far.host), why));
        }
        let followed = follow.nodes.iter().filter(|_| !follow.far.is_empty());
        for node in followed.filter(|node| has_no_address(node)) {
            let why = format!("hosts elsewhere follow '{name}' for it; say which address they send to");
            found.push(Problem::new(format!("hosts.{node}.address"), why));
        }
    }

    /// The plan as it happens on these machines: their addresses and interfaces, and no link of ours.
    pub fn as_run(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        let Plan { follows, links, .. } = &mut plan;
        follows.iter_mut().for_each(|follow| self.as_real(follow, links));
        links.iter_mut().for_each(|cable| cable.path = None);
        for flow in &mut plan.flows {
            let address = self.hosts.get(&flow.to).and_then(|entry| entry.address_for(flow));
            flow.address = address.unwrap_or(flow.address);
        }
        for relay in &mut plan.relays {
            let interfaces = self.hosts.get(&relay.host).map(|entry| &entry.interfaces);
            for link in &mut relay.intercept {
                let name = interfaces.and_then(|interfaces| interfaces.get(link));
                *link = name.cloned().unwrap_or_else(|| std::mem::take(link));
            }
        }
        plan
    }

    fn as_real(&self, follow: &mut FollowPlan, links: &[CablePlan]) {
        let router = self.hosts.get(&follow.router);
        for link in &mut follow.interfaces {
            let name = router.and_then(|entry| entry.interfaces.get(link));
            *link = name.cloned().unwrap_or_else(|| std::mem::take(link));
        }
        for far in &mut follow.far {
            far.ipv4 = self.hosts.get(&far.host).and_then(|entry| entry.address).unwrap_or(far.ipv4);
        }
        let nodes = follow.nodes.iter().filter_map(|node| self.hosts.get(node));
        let addresses = |entry: &Entry| [entry.address.map(IpAddr::V4), entry.address6.map(IpAddr::V6)];
        follow.peers = nodes.flat_map(addresses).flatten().collect();
        let announced = links.iter().find(|cable| cable.name == follow.link);
        let model = announced.and_then(|cable| cable.path.clone());
        follow.real = model.map(|model| RealFollow { model, key: None });
    }
}

impl Entry {
    /// Where this flow finds it.
    fn address_for(&self, flow: &FlowPlan) -> Option<IpAddr> {
        match flow.address {
            IpAddr::V4(_) => self.address.map(IpAddr::V4),
            IpAddr::V6(_) => self.address6.map(IpAddr::V6),
        }
    }

    fn no_address(&self, flow: &FlowPlan) -> Problem {
        let key = if flow.address.is_ipv4() { "address" } else { "address6" };
        let why = format!("flow '{}' goes there; say at which address it is reached", flow.name);
        Problem::new(format!("hosts.{}.{key}", flow.to), why)
    }
}

/// Hosts on which a program of the plan runs.
pub fn actors(plan: &Plan) -> BTreeSet<&str> {
    let of_flows = plan.flows.iter().flat_map(|flow| [flow.from.as_str(), flow.to.as_str()]);
    let of_follows = plan.follows.iter().flat_map(FollowPlan::hosts);
    of_flows.chain(plan.relays.iter().map(|relay| relay.host.as_str())).chain(of_follows).collect()
}

/// What real machines and a real path do not do.
fn unsupported(plan: &Plan) -> Vec<Problem> {
    let changes = plan.links.iter().filter(|cable| programs::changes(cable)).map(|cable: &CablePlan| {
        let why =
            "a real path does not change when it is told to; leave the schedule out, or run it emulated";
        Problem::new(format!("links.{}.schedule", cable.name), why)
    });
    let acks = plan.flows.iter().filter(|flow| flow.ack_every.is_some()).map(|flow| {
        let why = "no kernel lets a program say how many segments it acknowledges at once; run it with --backend sim";
        Problem::new(format!("flows.{}.ack_every", flow.name), why)
    });
    changes.chain(acks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::plans, spec::Experiment};

    const SPEC: &str = r#"
        name = "real"
        warmup = "100ms"
        duration = "2s"
        [hosts.sender]
        [hosts.router]
        forward = true
        [hosts.receiver]
        [links.lan]
        between = ["sender", "router"]
        [links.path]
        between = ["router", "receiver"]
        rate = "50Mbit"
        delay = "1ms"
        [flows.measured]
        from = "sender"
        to = "receiver"
        cc = "reno"
        [relays.pep]
        host = "router"
        intercept = ["lan"]
        cc_client = "reno"
        cc_server = "cubic"
        enabled = false
        [follows.move]
        router = "router"
        link = "path"
        nodes = ["sender"]
        far = ["receiver"]
        enabled = false
    "#;

    const TABLE: &str = r#"
        [hosts.sender]
        ssh = "root@a"
        [hosts.receiver]
        ssh = "b"
        address = "192.0.2.7"
    "#;

    fn plan(set: &[(&str, Value)]) -> Plan {
        let set: Vec<_> = set.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        plans(&Experiment::read(SPEC, &set).unwrap()).unwrap().remove(0)
    }

    fn said(table: &str, set: &[(&str, Value)]) -> Vec<String> {
        let plan = plan(set);
        Table::parse(table).unwrap().problems(&[plan]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn hosts_that_only_forward_need_no_machine_and_flows_go_to_the_machines_addresses() {
        assert_eq!(said(TABLE, &[]), Vec::<String>::new());
        let plan = plan(&[]);
        let seen = Table::parse(TABLE).unwrap().as_run(&plan);
        assert_eq!(seen.flows[0].address.to_string(), "192.0.2.7");
        assert!(seen.links.iter().all(|cable| cable.path.is_none()));
        assert_ne!(plan.flows[0].address, seen.flows[0].address);
    }

    #[test]
    fn a_wrong_name_and_a_missing_address_are_named_with_the_mend() {
        let wrong = TABLE.replace("hosts.receiver", "hosts.reciever");
        let said_of_it = said(&wrong, &[]).join("\n");
        assert!(said_of_it.contains("did you mean 'receiver'"), "{said_of_it}");
        assert!(said_of_it.contains("hosts.receiver: has a part"), "{said_of_it}");
        let without = TABLE.replace("address = \"192.0.2.7\"", "");
        assert!(said(&without, &[])[0].starts_with("hosts.receiver.address: flow 'measured'"));
        let of_ipv6 = said(TABLE, &[("family", 6.into())]);
        assert!(of_ipv6[0].starts_with("hosts.receiver.address6: "), "{of_ipv6:?}");
    }

    #[test]
    fn hosts_that_follow_need_machines_their_addresses_and_the_routers_interface() {
        let enabled = [("follows.move.enabled", true.into())];
        assert!(said(TABLE, &enabled)[0].starts_with("hosts.router: has a part"));
        let with_router = format!("{TABLE}\n[hosts.router]\nssh = \"r\"\n");
        let [interface, node] = &said(&with_router, &enabled)[..] else { panic!() };
        assert!(interface.starts_with("hosts.router.interfaces.lan: follow 'move'"), "{interface}");
        assert!(node.starts_with("hosts.sender.address: hosts elsewhere follow 'move'"), "{node}");
        let whole = format!("{with_router}interfaces = {{ lan = \"eth1\" }}\n").replace(
            "ssh = \"root@a\"",
            "ssh = \"root@a\"\naddress = \"198.51.100.3\"\naddress6 = \"2001:db8::3\"",
        );
        assert_eq!(said(&whole, &enabled), Vec::<String>::new());
        let plan = plan(&enabled);
        let seen = Table::parse(&whole).unwrap().as_run(&plan);
        let [follow] = &seen.follows[..] else { panic!() };
        assert_eq!(
            (&follow.interfaces[..], follow.far[0].ipv4.to_string()),
            (&["eth1".to_owned()][..], "192.0.2.7".into())
        );
        let peers: Vec<_> = follow.peers.iter().map(ToString::to_string).collect();
        assert_eq!(peers, ["198.51.100.3", "2001:db8::3"]);
        // The router announces what the experiment expects of the link, which is not made.
        let real = follow.real.as_ref().unwrap();
        assert_eq!((Some(&real.model), &real.key), (plan.links[1].path.as_ref(), &None));
        assert!(seen.links.iter().all(|cable| cable.path.is_none()));
    }

    #[test]
    fn a_relay_needs_a_machine_and_the_interface_it_intercepts() {
        let enabled = [("relays.pep.enabled", true.into())];
        assert!(said(TABLE, &enabled)[0].starts_with("hosts.router: has a part"));
        let with_router = format!("{TABLE}\n[hosts.router]\nssh = \"r\"\n");
        assert!(said(&with_router, &enabled)[0].starts_with("hosts.router.interfaces.lan: relay 'pep'"));
        let whole = format!("{with_router}interfaces = {{ lan = \"eth1\" }}\n");
        assert_eq!(said(&whole, &enabled), Vec::<String>::new());
        let seen = Table::parse(&whole).unwrap().as_run(&plan(&enabled));
        assert_eq!(seen.relays[0].intercept, ["eth1"]);
    }

    #[test]
    fn what_real_paths_and_kernels_do_not_do_is_refused() {
        let change = toml::Table::from_iter([("at".into(), "1s".into()), ("rate".into(), "1Mbit".into())]);
        let schedule = Value::Array(vec![Value::Table(change)]);
        assert!(said(TABLE, &[("links.path.schedule", schedule)])[0].starts_with("links.path.schedule: "));
        assert!(said(TABLE, &[("flows.measured.ack_every", 4.into())])[0].contains("--backend sim"));
    }

    #[test]
    fn a_key_that_is_not_known_is_named() {
        let problems = Table::parse("[hosts.a]\nssh = \"a\"\nadress = \"192.0.2.1\"").unwrap_err().unwrap();
        assert!(problems[0].to_string().contains("did you mean 'address'"), "{problems:?}");
    }
}
