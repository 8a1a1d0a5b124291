//! Routes between hosts: shortest paths over links. Pure and deterministic.

use super::{CableSpec, Setting};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Name of the namespace inside an emulated link.
pub(crate) fn inside_of(link: &str) -> String {
    format!("link-{link}")
}

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
        let hosts = setting.hosts.iter().map(|(name, host)| (name.as_str(), host.forward));
        let link = |(name, cable): (&'a String, &'a CableSpec)| match cable.between.as_slice() {
            [a, b] => Some((name.as_str(), [a.as_str(), b.as_str()], cable.is_emulated())),
            _ => None,
        };
        Topology::new(hosts, setting.links.iter().filter_map(link))
    }

    /// Topology of hosts, each of which forwards or not, and of links between two hosts, each with a path or not.
    pub(crate) fn new(
        hosts: impl Iterator<Item = (&'a str, bool)>,
        links: impl Iterator<Item = (&'a str, [&'a str; 2], bool)>,
    ) -> Topology<'a> {
        let links = links.map(|(name, ends, emulated)| Link { name, ends, emulated });
        Topology { forwards: hosts.collect(), links: links.collect() }
    }

    /// Whether every link of a setting joins two of its hosts; where one does not, ways that lack are its fault.
    pub fn is_whole(setting: &Setting) -> bool {
        setting.links.values().all(|cable| cable.joins_two(setting))
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
