//! A high least retransmission timeout on the routes of a managed link.
//!
//! Raising the timeout of a live connection has no effect: the kernel takes a least timeout into the variance with the
//! first round-trip time it measures, and only lets it shrink later. So connections must begin with it, and a route
//! gives it to them (`rto_min`, ip-route(8)). What a route was before is kept as the kernel told it, to be put back.

use crate::{Error, Result};
use longfat_host::{
    Network,
    netlink::{
        ACK, DUMP, GET_ROUTE, NEW_ROUTE, Netlink, REPLACE, ROUTE_BYTES, RTA_DST, RTA_GATEWAY, RTA_OIF,
        address, attributes, number, push_attribute,
    },
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_CACHEINFO: u16 = 12;
const RTA_TABLE: u16 = 15;
const RTA_NH_ID: u16 = 30;
/// `struct rtnexthop`: length, flags, hops, interface; attributes follow.
const NEXT_HOP_BYTES: usize = 8;
/// Attributes of RTA_METRICS: which are locked, and the one in question, in milliseconds.
const RTAX_LOCK: u16 = 1;
const RTAX_RTO_MIN: u16 = 13;
const UNICAST: u8 = 1;
/// Routes that the kernel makes of others for single destinations.
const CLONED: u32 = 0x200;
/// Routes learnt from router advertisements: the kernel renews and expires them by marks that a route put back from
/// outside does not bear, so that there would be two.
const FROM_ADVERTISEMENT: u8 = 9;

/// A route as the kernel tells it: `struct rtmsg` and its attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route(Vec<u8>);

/// A route with our timeout, and what it was before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    before: Route,
    rto_min_ms: u32,
}

impl Route {
    fn find(&self, kind: u16) -> Option<&[u8]> {
        attributes(self.0.get(ROUTE_BYTES..)?).find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    fn gateway(&self) -> Option<IpAddr> {
        self.find(RTA_GATEWAY).and_then(address)
    }

    fn interface(&self) -> Option<u32> {
        self.find(RTA_OIF).and_then(number)
    }

    /// What it leads to; `None` for a default route.
    fn destination(&self) -> Option<Network> {
        Network::new(self.find(RTA_DST).and_then(address)?, *self.0.get(1)?)
    }

    /// Whether connections over it go over this router's link.
    fn is_meant(&self, via: &Via<'_>) -> bool {
        self.leads_through(via) || self.leads_to_peers(via)
    }

    /// Whether it leads to addresses behind this router and to no others, from elsewhere.
    fn leads_to_peers(&self, via: &Via<'_>) -> bool {
        let within = |destination: Network| via.peers.iter().any(|peers| peers.holds(&destination));
        self.interface() == Some(via.interface)
            && self.gateway().is_some()
            && self.destination().is_some_and(within)
    }

    /// Whether it, or one of its several ways, leads through this router.
    fn leads_through(&self, via: &Via<'_>) -> bool {
        let is_it = |interface: Option<u32>, gateway: Option<IpAddr>| {
            interface == Some(via.interface)
                && gateway.is_some_and(|gateway| via.addresses.contains(&gateway))
        };
        let several = self.find(RTA_MULTIPATH).unwrap_or_default();
        is_it(self.interface(), self.gateway()) || next_hops(several).any(|(on, to)| is_it(Some(on), to))
    }

    fn rto_min_ms(&self) -> Option<u32> {
        let metrics = self.find(RTA_METRICS)?;
        attributes(metrics).find(|(kind, _)| *kind == RTAX_RTO_MIN).and_then(|(_, value)| number(value))
    }

    /// Whether a person or a daemon made it, and it can be replaced as a whole: what several ways and a next hop of its
    /// own object mean is not in the route alone.
    fn is_ours_to_change(&self) -> bool {
        let Some(head) = self.0.get(..ROUTE_BYTES) else { return false };
        let flags = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
        let advertised = i32::from(head[0]) == libc::AF_INET6 && head[5] == FROM_ADVERTISEMENT;
        let whole = self.find(RTA_MULTIPATH).is_none() && self.find(RTA_NH_ID).is_none();
        head[7] == UNICAST && flags & CLONED == 0 && !advertised && whole
    }

    /// What tells two routes apart: family, prefix, table, priority, and where they lead.
    fn same_as(&self, other: &Route) -> bool {
        let head = |route: &Route| route.0.first_chunk::<5>().copied();
        let kinds = [RTA_DST, RTA_PRIORITY, RTA_TABLE, RTA_GATEWAY, RTA_OIF];
        head(self) == head(other) && kinds.iter().all(|kind| self.find(*kind) == other.find(*kind))
    }

    /// The route with another least timeout, all else as it is.
    fn with_rto_min(&self, ms: u32) -> Route {
        let mut metrics = Vec::new();
        let old = self.find(RTA_METRICS).unwrap_or_default();
        let lock = attributes(old).find(|(kind, _)| *kind == RTAX_LOCK).and_then(|(_, value)| number(value));
        // The kernel minds this metric only where it is locked.
        let lock = lock.unwrap_or(0) | 1 << RTAX_RTO_MIN;
        push_attribute(&mut metrics, RTAX_LOCK, &lock.to_ne_bytes());
        for (kind, value) in attributes(old).filter(|(kind, _)| !matches!(*kind, RTAX_LOCK | RTAX_RTO_MIN)) {
            push_attribute(&mut metrics, kind, value);
        }
        push_attribute(&mut metrics, RTAX_RTO_MIN, &ms.to_ne_bytes());
        let mut bytes = self.0[..ROUTE_BYTES].to_vec();
        for (kind, value) in attributes(&self.0[ROUTE_BYTES..]) {
            // What the kernel tells of its cache is not for it to be told.
            if !matches!(kind, RTA_METRICS | RTA_CACHEINFO) {
                push_attribute(&mut bytes, kind, value);
            }
        }
        push_attribute(&mut bytes, RTA_METRICS, &metrics);
        Route(bytes)
    }

    /// What may be sent back to the kernel.
    fn plain(&self) -> Route {
        let mut bytes = self.0[..ROUTE_BYTES].to_vec();
        for (kind, value) in attributes(&self.0[ROUTE_BYTES..]).filter(|(kind, _)| *kind != RTA_CACHEINFO) {
            push_attribute(&mut bytes, kind, value);
        }
        Route(bytes)
    }
}

/// A router as routes name it.
#[derive(Debug, Clone, Copy)]
pub struct Via<'a> {
    /// Any of these.
    pub addresses: &'a [IpAddr],
    /// On this interface.
    pub interface: u32,
    /// Networks behind it, for a host elsewhere.
    pub peers: &'a [Network],
}

/// The ways of a route of several: interface and router of each; ends at the first that is cut.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Option<IpAddr>)> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let hop = bytes.get(..length).filter(|hop| hop.len() >= NEXT_HOP_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let gateway = attributes(&hop[NEXT_HOP_BYTES..]).find(|(kind, _)| *kind == RTA_GATEWAY);
        Some((number(&hop[4..8])?, gateway.and_then(|(_, value)| address(value))))
    })
}

/// Every route of the network namespace.
///
/// # Errors
/// When the kernel does not tell.
pub fn all(netlink: &mut Netlink) -> Result<Vec<Route>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = vec![0; ROUTE_BYTES];
        body[0] = family as u8;
        match netlink.ask(GET_ROUTE, DUMP, &body) {
            Ok(bodies) => found.extend(bodies.into_iter().map(Route)),
            // A kernel without IPv6.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(error) => return Err(Error::io("list the routes", error)),
        }
    }
    Ok(found)
}

fn replace(netlink: &mut Netlink, route: &Route, what: &str) -> Result<()> {
    netlink.ask(NEW_ROUTE, REPLACE | ACK, &route.0).map(drop).map_err(|error| Error::io(what, error))
}

/// Routes that this process has raised.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    raised: Vec<Raised>,
    /// Routes that cannot be raised: learnt from router advertisements, or of several ways.
    #[serde(default)]
    pub left_alone: usize,
}

/// What came of routes that were to be changed.
#[derive(Debug, Default)]
pub struct Changed {
    /// How many are as asked.
    pub routes: usize,
    /// What the kernel said of the others.
    pub refused: Vec<Error>,
}

impl Routes {
    /// How many are raised.
    pub fn len(&self) -> usize {
        self.raised.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.raised.is_empty()
    }

    /// Notes every route through one of these routers that has a lower timeout, to be raised next; routes that came
    /// back since are among them. Noted before they are changed, so that a crash in between leaves nothing behind:
    /// [`Routes::restore`] leaves alone what was never changed.
    pub fn note(&mut self, found: Vec<Route>, vias: &[Via<'_>], rto_min_ms: u32) -> Vec<Route> {
        let through = found.into_iter().filter(|route| vias.iter().any(|via| route.is_meant(via)));
        let (able, unable): (Vec<Route>, Vec<Route>) = through.partition(Route::is_ours_to_change);
        self.left_alone = unable.len();
        let low = |route: &Route| route.rto_min_ms().is_none_or(|ms| ms < rto_min_ms);
        let due: Vec<Route> = able.into_iter().filter(low).collect();
        for route in &due {
            self.forget(route);
            self.raised.push(Raised { before: route.clone(), rto_min_ms });
        }
        due
    }

    fn forget(&mut self, route: &Route) {
        self.raised.retain(|raised| !raised.before.same_as(route));
    }

    /// Raises what was noted. A route that the kernel does not let be changed is left alone; the others are raised.
    pub fn raise(&mut self, netlink: &mut Netlink, due: &[Route], rto_min_ms: u32) -> Changed {
        let mut changed = Changed::default();
        for route in due {
            match replace(netlink, &route.with_rto_min(rto_min_ms), "set the rto_min of a route") {
                Ok(()) => changed.routes += 1,
                Err(error) => {
                    self.forget(route);
                    self.left_alone += 1;
                    changed.refused.push(error);
                }
            }
        }
        changed
    }

    /// Puts back what is still as it was left, and forgets it. A route that somebody has changed since is theirs; one
    /// that the kernel does not let be put back now is remembered.
    ///
    /// # Errors
    /// When the routes cannot be listed; all are remembered then.
    pub fn restore(&mut self, netlink: &mut Netlink) -> Result<Changed> {
        let mut changed = Changed::default();
        if self.raised.is_empty() {
            return Ok(changed);
        }
        let now = all(netlink)?;
        for raised in std::mem::take(&mut self.raised) {
            let ours = |route: &&Route| {
                route.same_as(&raised.before) && route.rto_min_ms() == Some(raised.rto_min_ms)
            };
            if now.iter().any(|route| ours(&route)) {
                match replace(netlink, &raised.before.plain(), "put a route back as it was") {
                    Ok(()) => changed.routes += 1,
                    Err(error) => {
                        changed.refused.push(error);
                        self.raised.push(raised);
                    }
                }
            }
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn route() -> Route {
        let mut bytes = vec![libc::AF_INET as u8, 0, 0, 0, 254, 3, 0, UNICAST, 0, 0, 0, 0];
        push_attribute(&mut bytes, RTA_GATEWAY, &[10, 0, 0, 1]);
        push_attribute(&mut bytes, RTA_OIF, &7u32.to_ne_bytes());
        push_attribute(&mut bytes, RTA_CACHEINFO, &[0; 32]);
        Route(bytes)
    }

    #[test]
    fn another_timeout_leaves_the_rest_of_a_route_as_it_was() {
        let mut with_mtu = route();
        let mut metrics = Vec::new();
        push_attribute(&mut metrics, RTAX_LOCK, &(1u32 << 2).to_ne_bytes());
        push_attribute(&mut metrics, 2, &1400u32.to_ne_bytes());
        push_attribute(&mut with_mtu.0, RTA_METRICS, &metrics);
        let raised = with_mtu.with_rto_min(2000);
        assert_eq!(
            (raised.rto_min_ms(), raised.gateway(), raised.interface()),
            (Some(2000), route().gateway(), Some(7))
        );
        let kept: Vec<_> =
            attributes(raised.find(RTA_METRICS).unwrap()).map(|(k, v)| (k, number(v))).collect();
        assert_eq!(kept, [(1, Some(1 << 2 | 1 << 13)), (2, Some(1400)), (13, Some(2000))]);
        assert!(raised.same_as(&with_mtu) && raised.find(RTA_CACHEINFO).is_none());
        assert_eq!(raised.with_rto_min(300).rto_min_ms(), Some(300), "there once, whatever was there before");
    }

    #[test]
    fn routes_of_router_advertisements_and_of_several_ways_are_left_alone() {
        assert!(route().is_ours_to_change());
        let mut advertised = route();
        (advertised.0[0], advertised.0[5]) = (libc::AF_INET6 as u8, FROM_ADVERTISEMENT);
        let mut several = route();
        push_attribute(&mut several.0, RTA_MULTIPATH, &[0; 8]);
        let mut local = route();
        local.0[7] = 2;
        let mut by_object = route();
        push_attribute(&mut by_object.0, RTA_NH_ID, &9u32.to_ne_bytes());
        assert!([advertised, several, local, by_object].iter().all(|route| !route.is_ours_to_change()));
    }

    #[test]
    fn from_elsewhere_only_routes_that_lead_behind_the_router_and_nowhere_else_are_meant() {
        let to = |destination: [u8; 4], bits: u8| {
            let mut to = route();
            to.0[1] = bits;
            push_attribute(&mut to.0, RTA_DST, &destination);
            to
        };
        let peers = ["10.7.0.0/16".parse().unwrap()];
        let via = Via { addresses: &[], interface: 7, peers: &peers };
        assert!(to([10, 7, 3, 0], 24).is_meant(&via) && to([10, 7, 0, 0], 16).is_meant(&via));
        assert!(
            !to([10, 0, 0, 0], 8).is_meant(&via) && !route().is_meant(&via),
            "others are reached by them too"
        );
        assert!(!to([10, 7, 3, 0], 24).is_meant(&Via { interface: 8, ..via }));
    }

    /// A route of several ways: interfaces, and routers on them.
    fn of_ways(ways: &[(u32, [u8; 4])]) -> Route {
        let mut hops = Vec::new();
        for (interface, gateway) in ways {
            hops.extend(16u16.to_ne_bytes());
            hops.extend([0, 0]);
            hops.extend(interface.to_ne_bytes());
            push_attribute(&mut hops, RTA_GATEWAY, gateway);
        }
        let mut bytes = vec![libc::AF_INET as u8, 0, 0, 0, 254, 3, 0, UNICAST, 0, 0, 0, 0];
        push_attribute(&mut bytes, RTA_MULTIPATH, &hops);
        Route(bytes)
    }

    #[test]
    fn what_is_left_alone_is_counted_over_all_routers_and_ways() {
        let (first, second) = (["10.0.0.1".parse().unwrap()], ["10.9.0.1".parse().unwrap()]);
        let vias = [(&first, 7), (&second, 8)].map(|(addresses, interface)| Via {
            addresses,
            interface,
            peers: &[],
        });
        let found = vec![
            route(),
            of_ways(&[(5, [10, 5, 0, 1]), (7, [10, 0, 0, 1])]),
            of_ways(&[(8, [10, 9, 0, 1]), (5, [10, 5, 0, 1])]),
            of_ways(&[(8, [10, 0, 0, 1]), (7, [10, 9, 0, 1])]),
        ];
        let mut routes = Routes::default();
        assert_eq!(routes.note(found.clone(), &vias, 2000), [route()]);
        assert_eq!((routes.len(), routes.left_alone), (1, 2), "the last leads through neither");
        routes.note(found, &vias[..1], 2000);
        assert_eq!((routes.len(), routes.left_alone), (1, 1), "noted once");
        let raised = vec![route().with_rto_min(2000)];
        assert!(routes.note(raised, &vias, 2000).is_empty(), "high enough");
        assert_eq!(routes.len(), 1, "still remembered");
    }

    proptest! {
        #[test]
        fn any_route_can_be_read_and_raised(body in prop::collection::vec(any::<u8>(), ROUTE_BYTES..200), ms in 1u32..60_000) {
            let route = Route(body);
            route.is_ours_to_change();
            let peers = ["::/0".parse().unwrap(), "0.0.0.0/0".parse().unwrap()];
            route.is_meant(&Via { addresses: &[], interface: 0, peers: &peers });
            prop_assert!(next_hops(&route.0).count() <= route.0.len());
            let raised = route.with_rto_min(ms);
            // Attributes after one that is cut cannot be read, and go.
            prop_assert_eq!(raised.rto_min_ms(), Some(ms));
        }
    }
}
