//! Topology, addresses and prefixes of a plan's network. Pure and deterministic.

use super::{CablePlan, FlowPlan, Plan, RelayPlan};
pub use crate::spec::topology::{Hop, Topology};
use std::net::{Ipv4Addr, Ipv6Addr};

impl<'a> Topology<'a> {
    /// Topology of a plan.
    pub fn of_plan(plan: &'a Plan) -> Topology<'a> {
        let hosts = plan.hosts.iter().map(|host| (host.name.as_str(), host.forward));
        let link = |cable: &'a CablePlan| {
            let ends = cable.ends.each_ref().map(|end| end.host.as_str());
            (cable.name.as_str(), ends, cable.path.is_some())
        };
        Topology::new(hosts, plan.links.iter().map(link))
    }
}

/// Whether a relay takes a flow's connections over: it intercepts the link by which they reach its host on their way to
/// another.
pub fn takes(relay: &RelayPlan, flow: &FlowPlan, path: &[Hop<'_>]) -> bool {
    let comes_in =
        |hop: &Hop<'_>| hop.to == relay.host && relay.intercept.iter().any(|link| link == hop.link);
    path.iter().any(|hop| hop.to != flow.to && comes_in(hop))
}

/// Length of a link's IPv4 prefix.
pub const IPV4_PREFIX: u8 = 24;
/// Length of a link's IPv6 prefix.
pub const IPV6_PREFIX: u8 = 64;

/// Addresses of end `end` (0 or 1) of the link number `index` in order of names: 10.200.0.0/16 upwards and a
/// unique local prefix (RFC 4193).
pub fn addresses(index: u16, end: u8) -> (Ipv4Addr, Ipv6Addr) {
    let [high, low] = index.to_be_bytes();
    let ipv4 = Ipv4Addr::new(10, 200u8.wrapping_add(high), low, end + 1);
    let ipv6 = Ipv6Addr::new(0xfd6c, 0x6f6e, 0x6766, index, 0, 0, 0, u16::from(end) + 1);
    (ipv4, ipv6)
}
