//! Listeners whose server is, perhaps by way of others, the listener itself: one client would come to fill all places.

use super::ListenerPlan;
use std::net::{IpAddr, SocketAddr};

/// Whether the clients of the listener at `listen` are carried back to it. `is_own`: whether this host has an address.
pub(crate) fn leads_back(
    listeners: &[ListenerPlan],
    listen: SocketAddr,
    is_own: &dyn Fn(IpAddr) -> bool,
) -> bool {
    let (mut seen, mut ahead) = (Vec::new(), vec![listen]);
    while let Some(at) = ahead.pop() {
        let targets = listeners.iter().filter(|listener| listener.listen == at).flat_map(|found| &found.to);
        for target in targets {
            let next = listeners.iter().map(|listener| listener.listen);
            for next in next.filter(|next| reaches(*target, *next, is_own)) {
                if next == listen {
                    return true;
                }
                if !seen.contains(&next) {
                    seen.push(next);
                    ahead.push(next);
                }
            }
        }
    }
    false
}

/// Whether who connects to `target` comes to the listener at `listen`. One on `[::]` takes IPv4 clients, too; a
/// connection to the unspecified address goes to the loopback one.
fn reaches(target: SocketAddr, listen: SocketAddr, is_own: &dyn Fn(IpAddr) -> bool) -> bool {
    let (to, at) = (target.ip().to_canonical(), listen.ip().to_canonical());
    let is_wildcard = at.is_unspecified() && (at.is_ipv6() || to.is_ipv4());
    let is_family_loopback = at.is_loopback() && at.is_ipv4() == to.is_ipv4();
    target.port() == listen.port()
        && (to == at || is_wildcard && is_own(to) || to.is_unspecified() && is_family_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the first of listeners written as `LISTEN>TARGET` leads back, on a host that has 192.0.2.1 and
    /// 2001:db8::1.
    fn is_circle(listeners: &[&str]) -> bool {
        let listener = |text: &&str| {
            let (listen, to) = text.split_once('>').unwrap();
            ListenerPlan {
                listen: listen.parse().unwrap(),
                to: to.split(',').map(|to| to.parse().unwrap()).collect(),
            }
        };
        let listeners: Vec<_> = listeners.iter().map(listener).collect();
        let own = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let is_own =
            |address: IpAddr| address.is_loopback() || address.is_unspecified() || own.contains(&address);
        leads_back(&listeners, listeners[0].listen, &is_own)
    }

    #[test]
    fn a_listener_that_leads_to_itself_is_found_whatever_its_target_is_called() {
        for circle in [
            &["192.0.2.1:80>192.0.2.1:80"][..],
            &["192.0.2.1:80>198.51.100.1:80,192.0.2.1:80"],
            &["0.0.0.0:80>192.0.2.1:80"],
            &["0.0.0.0:80>127.0.0.9:80"],
            &["0.0.0.0:80>0.0.0.0:80"],
            &["[::]:80>192.0.2.1:80"],
            &["[::]:80>[2001:db8::1]:80"],
            &["[::]:80>[::ffff:127.0.0.1]:80"],
            &["127.0.0.1:80>0.0.0.0:80"],
            &["[::1]:80>[::]:80"],
            &["[::ffff:192.0.2.1]:80>192.0.2.1:80"],
            &["0.0.0.0:80>127.0.0.1:81", "127.0.0.1:81>192.0.2.1:80"],
            &["0.0.0.0:80>127.0.0.1:81", "0.0.0.0:81>192.0.2.1:82", "[::]:82>127.0.0.1:80"],
        ] {
            assert!(is_circle(circle), "{circle:?}");
        }
    }

    #[test]
    fn a_chain_of_listeners_that_ends_elsewhere_is_none() {
        for chain in [
            &["192.0.2.1:80>192.0.2.1:81"][..],
            &["0.0.0.0:80>198.51.100.1:80"],
            &["0.0.0.0:80>[2001:db8::1]:80"],
            &["127.0.0.1:80>192.0.2.1:80"],
            &["0.0.0.0:80>127.0.0.1:81", "0.0.0.0:81>198.51.100.1:80"],
            // Whoever comes to the second one goes round: it is found there.
            &["0.0.0.0:79>127.0.0.1:80", "0.0.0.0:80>127.0.0.1:80"],
        ] {
            assert!(!is_circle(chain), "{chain:?}");
        }
    }
}
