//! Who reaches whom by which links: shortest paths, addresses, routes. Pure and deterministic.

use super::{CablePlan, Plan};
use crate::spec::Setting;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};

/// One step from a host over a link to a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop<'a> {
    /// Leaving this host…
    pub from: &'a str,
    /// …over this link…
    pub link: &'a str,
    /// …to this host.
    pub to: &'a str,
}

/// The hosts and what joins them.
#[derive(Debug)]
pub struct Topology<'a> {
    forwards: BTreeMap<&'a str, bool>,
    links: Vec<Link<'a>>,
}

#[derive(Debug)]
struct Link<'a> {
    name: &'a str,
    ends: [&'a str; 2],
    emulated: bool,
}

impl<'a> Topology<'a> {
    /// Topology of a setting; links that do not join two hosts are left out.
    pub fn of(setting: &'a Setting) -> Topology<'a> {
        let forwards = setting.hosts.iter().map(|(name, host)| (name.as_str(), host.forward)).collect();
        let link = |(name, cable): (&'a String, &'a crate::spec::CableSpec)| match cable.between.as_slice() {
            [a, b] => Some(Link { name, ends: [a, b], emulated: cable.is_emulated() }),
            _ => None,
        };
        Topology { forwards, links: setting.links.iter().filter_map(link).collect() }
    }

    /// Topology of a plan.
    pub fn of_plan(plan: &'a Plan) -> Topology<'a> {
        let forwards = plan.hosts.iter().map(|host| (host.name.as_str(), host.forward)).collect();
        let link = |cable: &'a CablePlan| {
            let [a, b] = &cable.ends;
            Link { name: &cable.name, ends: [&a.host, &b.host], emulated: cable.path.is_some() }
        };
        Topology { forwards, links: plan.links.iter().map(link).collect() }
    }

    /// Every host's name.
    pub fn hosts(&self) -> impl Iterator<Item = &'a str> {
        self.forwards.keys().copied()
    }

    /// The path with the fewest links; among equals, the first by link name. Only hosts that forward are passed.
    pub fn path(&self, from: &str, to: &str) -> Option<Vec<Hop<'a>>> {
        let mut reached: BTreeMap<&str, Hop<'a>> = BTreeMap::new();
        let mut waiting = VecDeque::from([from]);
        while let Some(host) = waiting.pop_front() {
            if host == to {
                return Some(trace(&reached, from, to));
            }
            if host != from && !self.forwards.get(host).copied().unwrap_or(false) {
                continue;
            }
            for hop in self.hops_from(host) {
                if hop.to != from && !reached.contains_key(hop.to) {
                    reached.insert(hop.to, hop);
                    waiting.push_back(hop.to);
                }
            }
        }
        None
    }

    /// The next hop from `host` towards the subnet of `link`, unless the host is on it or cannot reach it.
    pub fn next_hop(&self, host: &str, link: &str) -> Option<Hop<'a>> {
        let link = self.links.iter().find(|candidate| candidate.name == link)?;
        if link.ends.contains(&host) {
            return None;
        }
        let paths = link.ends.iter().filter_map(|end| self.path(host, end));
        paths.min_by_key(Vec::len)?.first().copied()
    }

    /// Interfaces (host, link) through which packets leave towards an emulated link, at that hop or a later one.
    /// They must send packets of MTU size: what a path with a rate receives are packets, not bundles of them.
    pub fn towards_emulated(&self) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        let hosts: Vec<_> = self.hosts().collect();
        for from in &hosts {
            for to in hosts.iter().filter(|to| *to != from) {
                let path = self.path(from, to).unwrap_or_default();
                let last = path.iter().rposition(|hop| self.is_emulated(hop.link));
                let until = last.map_or(0, |index| index + 1);
                found.extend(path[..until].iter().map(|hop| (hop.from.to_owned(), hop.link.to_owned())));
            }
        }
        found
    }

    fn is_emulated(&self, link: &str) -> bool {
        self.links.iter().any(|candidate| candidate.name == link && candidate.emulated)
    }

    fn hops_from(&self, host: &str) -> impl Iterator<Item = Hop<'a>> {
        self.links.iter().filter_map(move |link| match link.ends {
            [a, b] if a == host => Some(Hop { from: a, link: link.name, to: b }),
            [a, b] if b == host => Some(Hop { from: b, link: link.name, to: a }),
            _ => None,
        })
    }
}

fn trace<'a>(reached: &BTreeMap<&str, Hop<'a>>, from: &str, to: &str) -> Vec<Hop<'a>> {
    let mut path = Vec::new();
    let mut host = to;
    while host != from
        && let Some(hop) = reached.get(host)
    {
        path.push(*hop);
        host = hop.from;
    }
    path.reverse();
    path
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
