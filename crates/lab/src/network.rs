//! The plan's hosts and links as namespaces and veth pairs.

use crate::{
    backend::state,
    dilation::neighbour_wait,
    plan::{
        CablePlan, HostPlan, Plan,
        network::{IPV4_PREFIX, IPV6_PREFIX},
    },
    process::Process,
    programs::{FIRST, SECOND},
    spec::topology::inside_of,
};
use longfat_host::{
    Lease, Namespace, facts,
    interface::{End, IPV6_MTU_MIN_BYTES, veth},
    sysctl,
};
use longfat_schema::run::HostState;
use std::{collections::BTreeMap, time::Duration};

/// Hosts and links that exist, in namespaces of a lease.
#[derive(Debug)]
pub struct Network {
    hosts: BTreeMap<String, Namespace>,
    links: BTreeMap<String, Namespace>,
    // Last: namespaces are deleted when it drops.
    lease: Lease,
}

impl Network {
    /// Makes everything. On an error, what was made is removed.
    pub fn build(lease: Lease, plan: &Plan) -> longfat_host::Result<Network> {
        let mut hosts = BTreeMap::new();
        for host in &plan.hosts {
            let namespace = lease.namespace(&host.name)?;
            set_sysctls(&namespace, &host.sysctls)?;
            hosts.insert(host.name.clone(), namespace);
        }
        let mut network = Network { hosts, links: BTreeMap::new(), lease };
        for cable in &plan.links {
            network.lay(cable)?;
            if let Some(wait) = neighbour_wait(plan) {
                network.await_neighbours(cable, wait)?;
            }
        }
        for host in &plan.hosts {
            network.furnish(host, plan)?;
        }
        Ok(network)
    }

    /// The namespace in which a process runs.
    pub fn of(&self, process: Process<'_>) -> longfat_host::Result<&Namespace> {
        match process {
            Process::Link(cable) => self.links.get(&cable.name).ok_or_else(|| missing(&cable.name)),
            _ => self.host(process.host().unwrap_or_default()),
        }
    }

    /// The namespace of a host.
    fn host(&self, name: &str) -> longfat_host::Result<&Namespace> {
        self.hosts.get(name).ok_or_else(|| missing(name))
    }

    /// Every host's parameters, and its counters as they are.
    pub fn states(&self) -> longfat_host::Result<BTreeMap<String, HostState>> {
        self.hosts.iter().map(|(name, namespace)| Ok((name.clone(), state(namespace)?))).collect()
    }

    /// Every host's counters.
    pub fn counters(&self) -> longfat_host::Result<BTreeMap<String, BTreeMap<String, i64>>> {
        self.hosts.iter().map(|(name, host)| Ok((name.clone(), host.run(facts::counters)?))).collect()
    }

    fn lay(&mut self, cable: &CablePlan) -> longfat_host::Result<()> {
        let [a, b] = &cable.ends;
        let name = cable.name.as_str();
        let mtu = cable.mtu_bytes;
        let (first, second) = (self.host(&a.host)?.clone(), self.host(&b.host)?.clone());
        let (a, b) = (End { namespace: &first, name }, End { namespace: &second, name });
        if cable.path.is_none() {
            veth(a, b, mtu)?;
        } else {
            let middle = self.link_namespace(name)?;
            veth(a, End { namespace: &middle, name: FIRST }, mtu)?;
            veth(End { namespace: &middle, name: SECOND }, b, mtu)?;
        }
        for end in &cable.ends {
            let host = self.host(&end.host)?;
            host.ip(&["addr", "add", &format!("{}/{IPV4_PREFIX}", end.ipv4), "dev", name])?;
            if has_ipv6(cable) {
                host.ip(&["addr", "add", &format!("{}/{IPV6_PREFIX}", end.ipv6), "dev", name, "nodad"])?;
            }
        }
        Ok(())
    }

    /// Has both ends of a link wait so long for a neighbour's answer.
    fn await_neighbours(&self, cable: &CablePlan, wait: Duration) -> longfat_host::Result<()> {
        let families = if has_ipv6(cable) { &["ipv4", "ipv6"][..] } else { &["ipv4"] };
        let keys = families.iter().map(|family| format!("net.{family}.neigh.{}.retrans_time_ms", cable.name));
        let sysctls = keys.map(|key| (key, wait.as_millis().to_string())).collect();
        cable.ends.iter().try_for_each(|end| set_sysctls(self.host(&end.host)?, &sysctls))
    }

    /// The inside of a link: it carries packets and has none of its own.
    fn link_namespace(&mut self, name: &str) -> longfat_host::Result<Namespace> {
        let silent =
            ["all", "default"].map(|scope| (format!("net.ipv6.conf.{scope}.disable_ipv6"), "1".into()));
        let namespace = self.lease.namespace(&inside_of(name))?;
        set_sysctls(&namespace, &BTreeMap::from(silent))?;
        self.links.insert(name.to_owned(), namespace.clone());
        Ok(namespace)
    }

    fn furnish(&self, plan: &HostPlan, whole: &Plan) -> longfat_host::Result<()> {
        let host = self.host(&plan.name)?;
        for route in &plan.routes {
            host.ip(&["route", "add", &route.ipv4, "via", &route.ipv4_via.to_string()])?;
            let is_its = |cable: &&CablePlan| cable.ends.iter().any(|end| end.ipv6 == route.ipv6_via);
            if whole.links.iter().find(is_its).is_some_and(has_ipv6) {
                host.ip(&["-6", "route", "add", &route.ipv6, "via", &route.ipv6_via.to_string()])?;
            }
        }
        host.run(|| {
            let prepare = |interface: &String| longfat_link::driver::prepare_interface(interface);
            plan.unsegmented.iter().try_for_each(prepare)
        })?
    }
}

/// Whether the ends of a link have IPv6: Linux gives none to interfaces of a smaller MTU.
fn has_ipv6(cable: &CablePlan) -> bool {
    cable.mtu_bytes >= IPV6_MTU_MIN_BYTES
}

fn missing(name: &str) -> longfat_host::Error {
    let source = std::io::Error::from(std::io::ErrorKind::NotFound);
    longfat_host::Error::Io { what: format!("namespace of '{name}'"), source }
}

fn set_sysctls(namespace: &Namespace, sysctls: &BTreeMap<String, String>) -> longfat_host::Result<()> {
    namespace.run(|| sysctls.iter().try_for_each(|(key, value)| sysctl::write(key, value)))?
}
