//! Networks as people name them.

use serde::{Serialize, Serializer};
use std::{fmt, net::IpAddr, str::FromStr};

/// An address and how many of its leading bits count: `192.0.2.0/24`; without a length, all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

/// A text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no network; write it like '192.0.2.0/24', '2001:db8::/32' or an address")]
pub struct NetworkError(String);

impl Network {
    /// `None` when the address has fewer bits.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Option<Network> {
        (u32::from(prefix_bits) <= bits(address).1).then_some(Network { address, prefix_bits })
    }

    /// Network whose share an address counts against: an IPv4 address alone, an IPv6 address with all of its /64, which
    /// one host has to itself.
    pub fn of_peer(address: IpAddr) -> Network {
        Network::around(address, 32)
    }

    /// Network of a site, which has more of a share than one of its hosts: a /24, or an IPv6 /64.
    pub fn of_site(address: IpAddr) -> Network {
        Network::around(address, 24)
    }

    fn around(address: IpAddr, ipv4_bits: u8) -> Network {
        const IPV6_BITS: u8 = 64;
        let address = address.to_canonical();
        let prefix_bits = if address.is_ipv4() { ipv4_bits } else { IPV6_BITS };
        Network { address, prefix_bits }.masked()
    }

    /// As it was given: bits beyond the prefix may be set.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many of its leading bits count.
    pub fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// Whether it is of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether `address` is in it. An IPv4 address that an IPv6 socket shows as mapped counts as what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other) = (bits(self.address), bits(address.to_canonical()));
        own.1 == other.1
            && (own.0 ^ other.0).checked_shr(own.1 - u32::from(self.prefix_bits)).unwrap_or(0) == 0
    }

    /// Whether every address of another is in it.
    pub fn holds(&self, other: &Network) -> bool {
        self.prefix_bits <= other.prefix_bits && self.contains(other.address)
    }

    /// The fewest networks that hold the same addresses, without bits beyond their prefixes.
    pub fn merge(networks: Vec<Network>) -> Vec<Network> {
        let mut networks: Vec<Network> = networks.into_iter().map(Network::masked).collect();
        networks.sort_unstable_by_key(|network| network.prefix_bits);
        let mut merged: Vec<Network> = Vec::new();
        for network in networks {
            if !merged.iter().any(|wider| wider.holds(&network)) {
                merged.push(network);
            }
        }
        merged.sort_unstable();
        merged
    }

    fn masked(self) -> Network {
        let (value, length) = bits(self.address);
        let host_bits = length - u32::from(self.prefix_bits);
        let value = value.checked_shr(host_bits).and_then(|kept| kept.checked_shl(host_bits)).unwrap_or(0);
        let address = match self.address {
            IpAddr::V4(_) => IpAddr::V4((value as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(value.into()),
        };
        Network { address, ..self }
    }
}

/// An address as a number, and its length in bits.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError(text.escape_debug().to_string());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(longest), str::parse).map_err(|_| wrong())?;
        Network::new(address, prefix_bits).ok_or_else(wrong)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn covers(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_peer_is_an_address_or_a_64_and_a_site_is_a_24_or_a_64() {
        let both = |text: &str| {
            let address = text.parse().unwrap();
            [Network::of_peer(address), Network::of_site(address)].map(|network| network.to_string())
        };
        assert_eq!(both("192.0.2.77"), ["192.0.2.77/32", "192.0.2.0/24"]);
        assert_eq!(both("::ffff:192.0.2.77"), ["192.0.2.77/32", "192.0.2.0/24"]);
        assert_eq!(both("2001:db8::1:2:3:4"), ["2001:db8::/64", "2001:db8::/64"]);
    }

    #[test]
    fn a_network_holds_the_addresses_that_share_its_leading_bits() {
        assert!(covers("10.0.0.0/8", "10.255.3.4") && !covers("10.0.0.0/8", "11.0.0.0"));
        assert!(covers("0.0.0.0/0", "203.0.113.9") && !covers("0.0.0.0/0", "2001:db8::1"));
        assert!(covers("2001:db8::/33", "2001:db8:7fff::1") && !covers("2001:db8::/33", "2001:db8:8000::1"));
        assert!(covers("::/0", "fe80::1") && covers("10.1.2.3", "::ffff:10.1.2.3"));
        assert!(!covers("10.1.2.3", "10.1.2.2"));
    }

    #[test]
    fn a_network_holds_those_within_it() {
        let holds = |one: &str, other: &str| {
            one.parse::<Network>().unwrap().holds(&other.parse::<Network>().unwrap())
        };
        assert!(holds("10.7.0.0/16", "10.7.3.0/24") && holds("10.7.0.0/16", "10.7.0.0/16"));
        assert!(!holds("10.7.0.0/16", "10.0.0.0/8") && !holds("10.7.0.0/16", "0.0.0.0/0"));
        assert!(!holds("10.7.0.0/16", "10.8.0.0/24") && !holds("0.0.0.0/0", "2001:db8::/32"));
    }

    #[test]
    fn networks_read_as_people_write_them() {
        assert_eq!("192.0.2.0/24".parse::<Network>().unwrap().to_string(), "192.0.2.0/24");
        assert_eq!("2001:db8::1".parse::<Network>().unwrap().to_string(), "2001:db8::1/128");
        for wrong in ["", "10.0.0/8", "192.0.2.0/33", "10.0.0.0/", "example.org", "2001:db8::/129", "::/"] {
            let said = wrong.parse::<Network>().unwrap_err().to_string();
            assert!(said.contains("2001:db8::/32"), "{said}");
        }
    }

    #[test]
    fn networks_within_others_are_left_out() {
        let networks = |text: &[&str]| text.iter().map(|net| net.parse().unwrap()).collect::<Vec<Network>>();
        let merged = Network::merge(networks(&["10.1.2.3/16", "10.1.9.0/24", "2001:db8::1/32", "::/0"]));
        assert_eq!(merged, networks(&["10.1.0.0/16", "::/0"]));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,30}") {
            let _ = text.parse::<Network>();
        }

        #[test]
        fn merging_changes_no_answer(
            v4 in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..6), address in any::<u32>(),
        ) {
            let networks: Vec<Network> = v4.into_iter()
                .map(|(address, prefix_bits)| Network { address: IpAddr::V4(address.into()), prefix_bits })
                .collect();
            let address = IpAddr::V4(address.into());
            let within = |list: &[Network]| list.iter().any(|network| network.contains(address));
            prop_assert_eq!(within(&Network::merge(networks.clone())), within(&networks));
        }
    }
}
