//! A router that announces the changes of a link, and hosts that follow them.

use super::{
    Setting,
    check::{Found, check_host, check_route, names},
    topology::Topology,
};
use longfat_mobility::{Name, policy::Policy};
use longfat_schema::{
    decode::unknown,
    units::{Nanos, Size},
};
use serde::Deserialize;

/// `[follows.NAME]`: who announces what to whom.
#[derive(Debug, Clone, PartialEq, Deserialize, schemars::JsonSchema)]
pub struct FollowSpec {
    /// The router.
    pub router: String,
    /// The emulated link whose schedule it announces; it ends at the router.
    pub link: String,
    /// Hosts behind the router, each with a link to it.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Hosts elsewhere that send to the nodes, told by a datagram of their own.
    #[serde(default)]
    pub far: Vec<String>,
    /// Where windows come from.
    #[serde(default)]
    #[schemars(with = "String")]
    pub policy: Policy,
    /// No window is set above this.
    pub ceiling: Option<Size>,
    /// Percent of a greater window sent as one burst.
    pub burst: Option<u32>,
    /// Least retransmission timeout on routes through the router; 0 leaves them alone.
    pub rto_min: Option<Nanos>,
    /// When its hosts begin to follow, after the start of the run; before the flows begin when 0.
    #[serde(default)]
    pub start: Nanos,
    /// Left out of a run when false.
    #[serde(default = "super::yes")]
    pub enabled: bool,
}

impl Setting {
    /// The link between a router and a node.
    pub fn link_between(&self, router: &str, node: &str) -> Option<&str> {
        let joins =
            |ends: &[String]| ends.iter().any(|end| end == router) && ends.iter().any(|end| end == node);
        self.links.iter().find(|(_, cable)| joins(&cable.between)).map(|(name, _)| name.as_str())
    }
}

pub(super) fn check(name: &str, follow: &FollowSpec, setting: &Setting, found: &mut Found<'_>) {
    let path = format!("follows.{name}");
    if let Err(error) = name.parse::<Name>() {
        found.say(&path, error.to_string());
    }
    for host in std::iter::once(&follow.router).chain(&follow.nodes).chain(&follow.far) {
        check_host(&path, host, setting, found);
    }
    match setting.links.get(&follow.link) {
        None => found.say(format!("{path}.link"), unknown("link", &follow.link, names(&setting.links))),
        Some(cable) if !cable.joins_two(setting) || !setting.hosts.contains_key(&follow.router) => {}
        Some(cable) if !cable.between.contains(&follow.router) => {
            let message = format!("link '{}' does not end at the router '{}'", follow.link, follow.router);
            found.say(format!("{path}.link"), message);
        }
        Some(cable) if !cable.is_emulated() => {
            let message =
                format!("link '{}' has neither rate nor delay; there is nothing to announce", follow.link);
            found.say(format!("{path}.link"), message);
        }
        Some(cable) if cable.line.follows_trace() => {
            let message = "a link that follows a trace has no schedule to announce; give it a schedule, or enabled = false";
            found.say(format!("{path}.link"), message);
        }
        Some(_) => {}
    }
    if follow.nodes.is_empty() {
        found.say(format!("{path}.nodes"), "names no host; name those behind the router");
    }
    let is_known = setting.hosts.contains_key(&follow.router) && Topology::is_whole(setting);
    let apart = |node: &&String| {
        setting.hosts.contains_key(*node) && setting.link_between(&follow.router, node).is_none()
    };
    for node in follow.nodes.iter().filter(apart).filter(|_| is_known) {
        let message = format!("'{node}' has no link with the router '{}'", follow.router);
        found.say(format!("{path}.nodes"), message);
    }
    let known = |host: &&String| setting.hosts.contains_key(*host);
    if known(&&follow.router) {
        for host in follow.far.iter().filter(known) {
            check_route(&format!("{path}.far"), &follow.router, host, setting, found);
        }
    }
    if follow.start.0 >= setting.head.warmup.0.saturating_add(setting.head.duration.0) {
        found.say(format!("{path}.start"), "lies at or after the end of the run");
    }
    if follow.burst.is_some_and(|percent| percent > 100) {
        found.say(format!("{path}.burst"), "is percent of a window, from 0 to 100");
    }
}
