//! Causes by peer prefix, for Prometheus. Label sets are bounded: causes are a catalogue, and of prefixes only the
//! first ones have a name.

use super::{Args, watch::Watch};
use crate::{
    outcome::{Failure, Outcome},
    output,
};
use longfat_relay::metrics::{Family, Format, Kind, http::Server, text};
use longfat_why::Cause;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError, atomic::AtomicBool},
    thread,
};

/// Prefixes with a name; the rest is `other`.
const PREFIXES_MAX: usize = 64;
const OTHER: &str = "other";

/// Under one cause and prefix.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    /// Since the watch began.
    seconds: f64,
    /// Connections with this cause first in the last stretch.
    connections: u32,
    /// Rate of these connections, in bits per second.
    rate_bps: f64,
}

/// What is told.
#[derive(Debug, Default)]
struct Told {
    by: BTreeMap<(Cause, String), Sums>,
    prefixes: BTreeSet<String>,
}

impl Told {
    fn prefix(&mut self, peer: IpAddr) -> String {
        let prefix = prefix(peer);
        if self.prefixes.contains(&prefix) {
            return prefix;
        }
        if self.prefixes.len() == PREFIXES_MAX {
            return OTHER.to_owned();
        }
        self.prefixes.insert(prefix.clone());
        prefix
    }

    /// Adds a stretch.
    fn add(&mut self, watch: &Watch, args: &Args) {
        for sums in self.by.values_mut() {
            (sums.connections, sums.rate_bps) = (0, 0.0);
        }
        for (one, verdict) in watch.verdicts(args) {
            let prefix = self.prefix(one.connection.remote.ip());
            for (number, share) in verdict.causes.iter().enumerate() {
                let sums = self.by.entry((share.cause, prefix.clone())).or_default();
                sums.seconds += share.time_us as f64 / 1e6;
                if number == 0 {
                    sums.connections += 1;
                    sums.rate_bps += verdict.figures.rate_bps;
                }
            }
        }
    }

    fn text(&self, format: Format) -> String {
        let family = |kind, name, unit, help, value: &dyn Fn(&Sums) -> f64| {
            self.by.iter().fold(Family::new(kind, name, unit, help), |family, ((cause, peer), sums)| {
                family.with(&[("cause", cause.name()), ("peer", peer)], value(sums))
            })
        };
        let families = [
            family(
                Kind::Counter,
                "longfat_why_seconds",
                "seconds",
                "Time of connections under a cause; the causes of one connection sum up to its time.",
                &|sums| sums.seconds,
            ),
            family(
                Kind::Gauge,
                "longfat_why_connections",
                "",
                "Connections that had this cause for most of the last stretch.",
                &|sums| sums.connections.into(),
            ),
            family(
                Kind::Gauge,
                "longfat_why_rate_bytes_per_second",
                "bytes_per_second",
                "Payload of these connections together.",
                &|sums| sums.rate_bps / 8.0,
            ),
        ];
        text(&families, format)
    }
}

/// `192.0.2.0/24`, `2001:db8:1::/48`
fn prefix(peer: IpAddr) -> String {
    match peer {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(v6) => {
            let [a, b, c, ..] = v6.segments();
            format!("{}/48", std::net::Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0))
        }
    }
}

/// Watches on and on, and answers Prometheus, until it is stopped.
pub fn run(args: &Args, address: SocketAddr, stop: &AtomicBool) -> Outcome {
    if !address.ip().is_loopback() {
        return Err(Failure::Failed(anyhow::anyhow!(
            "--metrics {address} can be reached from elsewhere; choose a loopback address like 127.0.0.1:9471"
        )));
    }
    let server = Server::open(address).map_err(anyhow::Error::from)?;
    if let Some(address) = server.address() {
        output::write_out(&format!("metrics at http://{address}/metrics\n"))?;
    }
    let told = Mutex::new(Told::default());
    let locked = || told.lock().unwrap_or_else(PoisonError::into_inner);
    let mut watch = Watch::new(args.chosen()?, args);
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(&|format| locked().text(format), stop));
        let watched = loop {
            match watch.run(args.span.into(), stop) {
                Ok(true) => break Ok(()),
                Ok(false) => locked().add(&watch, args),
                Err(error) => break Err(error),
            }
            watch.begin_again();
        };
        stop.store(true, std::sync::atomic::Ordering::Release);
        let _ = serving.join();
        watched
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_peers_have_a_bounded_number_of_labels() {
        let mut told = Told::default();
        let peers = (0..1000_u16).map(|n| IpAddr::from([10, (n >> 8) as u8, n as u8, 7]));
        let labels: BTreeSet<String> = peers.map(|peer| told.prefix(peer)).collect();
        assert_eq!(labels.len(), PREFIXES_MAX + 1);
        assert!(labels.contains(OTHER) && labels.contains("10.0.3.0/24"));
        assert_eq!(told.prefix("10.0.3.9".parse().unwrap()), "10.0.3.0/24");
        assert_eq!(prefix("2001:db8:1:2::3".parse().unwrap()), "2001:db8:1::/48");
    }
}
