//! Connections that pass for a while, as their servers' answers seem to take another way.

use super::Pair;
use std::net::IpAddr;

/// How long connections pass whose answers do not come back by this host.
pub(crate) const ONE_WAY_SECONDS: u32 = 300;

/// A pair of hosts, or a port of one, whose connections pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OneWay {
    client: IpAddr,
    server: IpAddr,
    /// Port of the server; absent for all of them.
    port: Option<u16>,
}

impl OneWay {
    /// All between two hosts: only what they really send says so.
    pub fn of_hosts((client, server): Pair) -> OneWay {
        OneWay { client: client.ip().to_canonical(), server: server.ip().to_canonical(), port: None }
    }

    /// Connections to one port of the server: it is silent, which anybody can find out in another's name.
    pub fn of_port(pair: Pair) -> OneWay {
        OneWay { port: Some(pair.1.port()), ..OneWay::of_hosts(pair) }
    }

    /// For a person who knows which hosts they are.
    pub fn describe(&self) -> String {
        let between = "connections between these two";
        self.port.map_or_else(|| between.to_owned(), |port| format!("{between} to port {port}"))
    }

    /// The name of the set of nftables that they belong to.
    pub fn set(&self) -> &'static str {
        match (self.client.is_ipv4(), self.port) {
            (true, None) => "one_way_ip",
            (false, None) => "one_way_ip6",
            (true, Some(_)) => "silent_ip",
            (false, Some(_)) => "silent_ip6",
        }
    }

    /// As it stands there.
    pub fn element(&self) -> String {
        let port = self.port.map(|port| format!(" . {port}")).unwrap_or_default();
        format!("{} . {}{port}", self.client, self.server)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn pair(client: &str, port: u16) -> Pair {
        let server = if client.contains(':') { "2001:db8::1" } else { "198.51.100.1" };
        ((client.parse::<IpAddr>().unwrap(), 4000).into(), (server.parse::<IpAddr>().unwrap(), port).into())
    }

    #[test]
    fn every_kind_has_a_set_of_its_own_and_an_element_that_fits() {
        let found = [
            OneWay::of_hosts(pair("192.0.2.1", 80)),
            OneWay::of_port(pair("192.0.2.1", 80)),
            OneWay::of_hosts(pair("2001:db8::2", 80)),
            OneWay::of_port(pair("2001:db8::2", 80)),
        ]
        .map(|one| (one.set(), one.element()));
        let expected = [
            ("one_way_ip", "192.0.2.1 . 198.51.100.1"),
            ("silent_ip", "192.0.2.1 . 198.51.100.1 . 80"),
            ("one_way_ip6", "2001:db8::2 . 2001:db8::1"),
            ("silent_ip6", "2001:db8::2 . 2001:db8::1 . 80"),
        ];
        assert_eq!(found, expected.map(|(set, element)| (set, element.to_owned())));
    }
}
