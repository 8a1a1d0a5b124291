//! Announcements of a link's changes, resolved: senders and receivers.

use super::{CablePlan, network::Topology, resolve::end_of};
use crate::spec::{FollowSpec, Setting};
use longfat_link::LinkPlan;
use longfat_mobility::policy::Policy;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

/// A router that announces, and the hosts that follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FollowPlan {
    /// Name of the follow; the router's in announcements.
    pub name: String,
    /// Host that announces.
    pub router: String,
    /// Link whose model it announces.
    pub link: String,
    /// The nodes are at the link's second end.
    pub backward: bool,
    /// The router's interfaces towards the nodes.
    pub interfaces: Vec<String>,
    /// Hosts behind the router.
    pub nodes: Vec<String>,
    /// Hosts elsewhere, and where each is told.
    pub far: Vec<FarPlan>,
    /// Addresses of the nodes: what hosts elsewhere follow for.
    pub peers: Vec<IpAddr>,
    /// Where windows come from.
    pub policy: Policy,
    /// No window is set above this.
    pub ceiling_bytes: Option<u64>,
    /// Percent of a greater window sent as one burst.
    pub burst_percent: Option<u32>,
    /// Least retransmission timeout on routes through the router.
    pub rto_min_us: Option<u64>,
    /// When its hosts begin to follow, after the start of the run; before the flows begin when 0.
    #[serde(default)]
    pub start_us: u64,
    /// What real hosts are told besides: they have no emulated link beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real: Option<RealFollow>,
}

/// What hosts need to follow a link that is not emulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RealFollow {
    /// What the router announces: what the experiment expects of the link.
    pub model: LinkPlan,
    /// Text of the key that its hosts share; on other hosts there is none.
    pub key: Option<String>,
}

impl FollowPlan {
    /// Hosts on which its programs run.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        let far = self.far.iter().map(|far| far.host.as_str());
        std::iter::once(self.router.as_str()).chain(self.nodes.iter().map(String::as_str)).chain(far)
    }
}

/// A host elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FarPlan {
    /// Name of the host.
    pub host: String,
    /// Address of the host.
    pub ipv4: Ipv4Addr,
}

pub(super) fn plan(
    name: &str,
    follow: &FollowSpec,
    setting: &Setting,
    topology: &Topology<'_>,
    links: &[CablePlan],
) -> FollowPlan {
    let mut interfaces: Vec<String> = Vec::new();
    let mut peers = Vec::new();
    for node in &follow.nodes {
        let Some(link) = setting.link_between(&follow.router, node) else { continue };
        interfaces.push(link.to_owned());
        let ends = links.iter().filter(|cable| cable.name == link).flat_map(|cable| &cable.ends);
        let own = ends.filter(|end| end.host == *node);
        peers.extend(own.flat_map(|end| [IpAddr::from(end.ipv4), IpAddr::from(end.ipv6)]));
    }
    interfaces.dedup();
    let far = follow.far.iter().filter_map(|host| far_plan(host, &follow.router, topology, links));
    let first_end = links.iter().find(|cable| cable.name == follow.link).map(|cable| &cable.ends[0].host);
    FollowPlan {
        name: name.to_owned(),
        router: follow.router.clone(),
        link: follow.link.clone(),
        backward: first_end != Some(&follow.router),
        interfaces,
        nodes: follow.nodes.clone(),
        far: far.collect(),
        peers,
        policy: follow.policy,
        ceiling_bytes: follow.ceiling.map(|size| size.0),
        burst_percent: follow.burst,
        rto_min_us: follow.rto_min.map(|span| span.as_us()),
        start_us: follow.start.as_us(),
        real: None,
    }
}

/// A host elsewhere is told at its address on the link by which the announcement arrives, as a flow is.
fn far_plan(host: &str, router: &str, topology: &Topology<'_>, links: &[CablePlan]) -> Option<FarPlan> {
    let path = topology.path(router, host)?;
    let arrives = path.last()?;
    Some(FarPlan { host: host.to_owned(), ipv4: end_of(links, arrives.link, arrives.to)?.ipv4 })
}
