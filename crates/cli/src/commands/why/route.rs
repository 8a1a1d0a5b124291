//! A route to one peer alone: what new connections to it can be given, and living ones cannot.

use anyhow::{Context as _, bail};
use longfat_host::run_command;
use longfat_kernel::tcb::NetNamespace;
use longfat_why::Cause;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{fmt, net::IpAddr, process::Command};

/// What a route gives the connections that use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// Segments that may be sent before the first acknowledgement, and after a pause.
    InitialWindow(u32),
    /// Congestion control.
    Cc(&'static str),
    /// Least retransmission timeout, milliseconds.
    RtoMinMs(u32),
}

const INITIAL_WINDOW: u32 = 40;
const RTO_MIN_MS: u32 = 20;

impl Metric {
    /// What would spare new connections a cause; `None` where no route can.
    pub fn against(cause: Cause) -> Option<Metric> {
        Some(match cause {
            Cause::SlowStart | Cause::RestartAfterIdle => Metric::InitialWindow(INITIAL_WINDOW),
            Cause::RandomLoss | Cause::AfterLoss => Metric::Cc("bbr"),
            Cause::Timeouts => Metric::RtoMinMs(RTO_MIN_MS),
            _ => return None,
        })
    }

    /// Name among a route's metrics, and the value.
    fn words(&self) -> [String; 2] {
        match self {
            Metric::InitialWindow(segments) => ["initcwnd".to_owned(), segments.to_string()],
            Metric::Cc(name) => ["congctl".to_owned(), (*name).to_owned()],
            Metric::RtoMinMs(ms) => ["rto_min".to_owned(), format!("{ms}ms")],
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

/// A way to a peer, as `ip route` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Way {
    /// Next hop, interface, source address, ….
    path: Vec<String>,
    /// Name and value, each.
    metrics: Vec<[String; 2]>,
}

/// The route to one peer: how it was, and what a route to it alone has to say besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRoute {
    /// The namespace.
    pub netns_inode: u64,
    /// The other end.
    pub peer: IpAddr,
    /// The route to it alone that was there already.
    before: Option<Way>,
    /// The way packets to it go.
    way: Way,
}

impl PeerRoute {
    /// How packets go to a peer.
    ///
    /// # Errors
    /// When no single route of the main table leads there, or one with words that cannot be written again: nothing is
    /// set then.
    pub fn to(peer: IpAddr, place: &NetNamespace) -> anyhow::Result<PeerRoute> {
        let peer = peer.to_canonical();
        let host = host_route(peer);
        let before = routes(place, peer, &["route", "show", "table", "main", "exact", &host])?;
        let before = before.first().map(|route| read(route, peer)).transpose()?;
        let way = match &before {
            Some(way) => way.clone(),
            None => {
                let found = routes(place, peer, &["route", "get", "fibmatch", &peer.to_string()])?;
                read(found.first().with_context(|| format!("no route to {peer}"))?, peer)?
            }
        };
        Ok(PeerRoute { netns_inode: place.inode, peer, before, way })
    }

    /// New connections to the peer have this, too.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(&self, place: &NetNamespace, metric: &Metric) -> anyhow::Result<()> {
        let new = metric.words();
        let mut way = self.way.clone();
        way.metrics.retain(|[name, _]| *name != new[0]);
        way.metrics.push(new);
        self.replace(place, &way)
    }

    /// As it was.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take_back(&self, place: &NetNamespace) -> anyhow::Result<()> {
        if let Some(way) = &self.before {
            return self.replace(place, way);
        }
        let host = host_route(self.peer);
        if routes(place, self.peer, &["route", "show", "table", "main", "exact", &host])?.is_empty() {
            return Ok(());
        }
        ip(place, self.peer, &["route", "del", &host]).map(drop)
    }

    fn replace(&self, place: &NetNamespace, way: &Way) -> anyhow::Result<()> {
        let host = host_route(self.peer);
        let mut words = vec!["route", "replace", &host];
        words.extend(way.path.iter().map(String::as_str));
        words.extend(way.metrics.iter().flatten().map(String::as_str));
        ip(place, self.peer, &words).map(drop)
    }
}

/// Interface by which packets to an address leave a namespace; `None` where no route leads there.
pub fn interface_to(address: IpAddr, place: &NetNamespace) -> Option<String> {
    let found = routes(place, address, &["route", "get", &address.to_string()]).ok()?;
    Some(found.first()?.get("dev")?.as_str()?.to_owned())
}

fn host_route(peer: IpAddr) -> String {
    format!("{peer}/{}", if peer.is_ipv4() { 32 } else { 128 })
}

/// What `work` gives in a namespace that must be there.
pub fn inside<T: Send>(place: &NetNamespace, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    place.run(work).context("its network namespace cannot be entered")
}

fn ip(place: &NetNamespace, peer: IpAddr, words: &[&str]) -> anyhow::Result<String> {
    let run = || {
        let mut command = Command::new("ip");
        command.arg(if peer.is_ipv4() { "-4" } else { "-6" }).args(words);
        run_command(command)
    };
    Ok(inside(place, run)??)
}

fn routes(place: &NetNamespace, peer: IpAddr, words: &[&str]) -> anyhow::Result<Vec<Map<String, Value>>> {
    let text = ip(place, peer, &[&["-json", "-details"], words].concat())?;
    let text = if text.trim().is_empty() { "[]" } else { &text };
    serde_json::from_str(text).with_context(|| format!("read what 'ip {}' says", words.join(" ")))
}

/// What `ip` calls a value, and the word that sets it.
const PATH: [(&str, &str); 4] =
    [("gateway", "via"), ("dev", "dev"), ("prefsrc", "src"), ("metric", "metric")];
/// Metrics of a route that are written as they are read.
const METRICS: [&str; 8] =
    ["mtu", "advmss", "window", "initcwnd", "initrwnd", "quickack", "congctl", "hoplimit"];
/// What a route says that need not be said again, or is nothing of its own.
const UNSAID: [&str; 7] = ["dst", "type", "scope", "flags", "metrics", "pref", "expires"];

fn read(route: &Map<String, Value>, peer: IpAddr) -> anyhow::Result<Way> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(kind) = route.get("type").map(text).filter(|kind| kind != "unicast") {
        bail!(
            "the route to {peer} is of the kind '{kind}'; only one that leads to another host can be written anew"
        );
    }
    let mut way = Way { path: Vec::new(), metrics: Vec::new() };
    for (name, value) in route.iter().filter(|(name, _)| !UNSAID.contains(&name.as_str())) {
        match PATH.iter().find(|(known, _)| known == name) {
            Some((_, word)) => way.path.extend([(*word).to_owned(), text(value)]),
            // Who has made it: this one is made by hand.
            None if name == "protocol" => {}
            None if name == "table" && text(value) == "main" => {}
            None => {
                bail!("the route to {peer} says '{name} {}', which is not written anew here", text(value))
            }
        }
    }
    if route
        .get("flags")
        .and_then(Value::as_array)
        .is_some_and(|flags| flags.iter().any(|flag| flag == "onlink"))
    {
        way.path.push("onlink".to_owned());
    }
    let metrics = route.get("metrics").and_then(Value::as_array).into_iter().flatten();
    for (name, value) in metrics.filter_map(Value::as_object).flatten() {
        match name.as_str() {
            known if METRICS.contains(&known) => way.metrics.push([name.clone(), text(value)]),
            "rto_min" => way.metrics.push([name.clone(), format!("{}ms", text(value))]),
            _ => bail!("the route to {peer} has the metric '{name}', which is not written anew here"),
        }
    }
    Ok(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(json: &str) -> anyhow::Result<Way> {
        read(&serde_json::from_str(json).unwrap(), "192.0.2.7".parse().unwrap())
    }

    #[test]
    fn a_route_is_written_as_it_was_read() {
        let json = r#"{"type":"unicast","dst":"default","gateway":"10.0.0.1","dev":"eth0","protocol":"dhcp",
            "scope":"global","prefsrc":"10.0.0.9","metric":100,"flags":["onlink"],
            "metrics":[{"mtu":1400,"rto_min":30}]}"#;
        let found = way(json).unwrap();
        let path: Vec<_> = "via 10.0.0.1 dev eth0 src 10.0.0.9 metric 100 onlink".split(' ').collect();
        assert_eq!(found.path, path);
        assert_eq!(found.metrics, [["mtu", "1400"], ["rto_min", "30ms"]].map(|pair| pair.map(str::to_owned)));
    }

    #[test]
    fn what_one_host_route_cannot_say_is_refused_by_name() {
        for (json, named) in [
            (r#"{"dst":"default","nexthops":[]}"#, "nexthops"),
            (r#"{"dst":"default","dev":"eth0","table":"52"}"#, "table 52"),
            (r#"{"type":"local","dst":"192.0.2.7","dev":"lo"}"#, "local"),
            (r#"{"dst":"default","dev":"eth0","metrics":[{"features":"ecn"}]}"#, "features"),
        ] {
            let said = way(json).unwrap_err().to_string();
            assert!(said.contains(named) && said.contains("192.0.2.7"), "{said}");
        }
    }
}
