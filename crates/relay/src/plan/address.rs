//! Ports and networks as rules name them.

use serde::Serialize;
use std::{fmt, net::IpAddr, str::FromStr};

/// A port or a range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Whether `port` is one of them.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// The fewest ranges that hold the same ports: nftables refuses sets whose ranges overlap.
    pub fn merge(mut ranges: Vec<Ports>) -> Vec<Ports> {
        ranges.sort_unstable();
        let mut merged: Vec<Ports> = Vec::new();
        for next in ranges {
            match merged.last_mut() {
                Some(last) if u32::from(next.first) <= u32::from(last.last) + 1 => {
                    last.last = last.last.max(next.last);
                }
                _ => merged.push(next),
            }
        }
        merged
    }
}

impl Serialize for Ports {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first > 0 && first <= last => Ok(Ports { first, last }),
            _ => {
                Err(format!("'{text}' is no port and no range of ports; write it like '443' or '8000-8080'"))
            }
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// An address with a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
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

    /// The fewest networks that hold the same addresses, without bits beyond their prefixes.
    pub fn merge(networks: Vec<Network>) -> Vec<Network> {
        let mut networks: Vec<Network> = networks.into_iter().map(Network::masked).collect();
        networks.sort_unstable_by_key(|network| network.prefix_bits);
        let mut merged: Vec<Network> = Vec::new();
        for network in networks {
            if !merged.iter().any(|wider| wider.contains(network.address)) {
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
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong =
            || format!("'{text}' is no network; write it like '192.0.2.0/24', '2001:db8::/32' or an address");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(longest), str::parse).map_err(|_| wrong())?;
        if prefix_bits > longest { Err(wrong()) } else { Ok(Network { address, prefix_bits }) }
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

    #[test]
    fn ports_and_networks_read_as_people_write_them() {
        assert_eq!("443".parse::<Ports>().unwrap().to_string(), "443");
        assert_eq!("8000-8080".parse::<Ports>().unwrap().to_string(), "8000-8080");
        assert_eq!("192.0.2.0/24".parse::<Network>().unwrap().to_string(), "192.0.2.0/24");
        assert_eq!("2001:db8::1".parse::<Network>().unwrap().to_string(), "2001:db8::1/128");
        for wrong in ["0", "9-3", "70000", "http", ""] {
            assert!(wrong.parse::<Ports>().unwrap_err().contains("8000-8080"), "{wrong}");
        }
        for wrong in ["192.0.2.0/33", "example.org", "2001:db8::/129", "::/"] {
            assert!(wrong.parse::<Network>().unwrap_err().contains("2001:db8::/32"), "{wrong}");
        }
    }

    #[test]
    fn ranges_that_touch_are_one_and_networks_within_others_are_left_out() {
        let ports = |text: &[&str]| text.iter().map(|port| port.parse().unwrap()).collect::<Vec<Ports>>();
        assert_eq!(Ports::merge(ports(&["443", "80-90", "85-100", "101"])), ports(&["80-101", "443"]));
        let networks = |text: &[&str]| text.iter().map(|net| net.parse().unwrap()).collect::<Vec<Network>>();
        let merged = Network::merge(networks(&["10.1.2.3/16", "10.1.9.0/24", "2001:db8::1/32", "::/0"]));
        assert_eq!(merged, networks(&["10.1.0.0/16", "::/0"]));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,30}") {
            let _ = text.parse::<Ports>();
            let _ = text.parse::<Network>();
        }

        #[test]
        fn merging_changes_no_answer(
            ranges in proptest::collection::vec((1u16.., 0u16..50), 0..8), port in 1u16..,
            v4 in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..6), address in any::<u32>(),
        ) {
            let ranges: Vec<Ports> = ranges.into_iter()
                .map(|(first, more)| Ports { first, last: first.saturating_add(more) }).collect();
            let merged = Ports::merge(ranges.clone());
            let among = |list: &[Ports]| list.iter().any(|ports| ports.contains(port));
            prop_assert_eq!(among(&merged), among(&ranges));
            prop_assert!(merged.windows(2).all(|two| two[0].last < two[1].first - 1));
            let networks: Vec<Network> = v4.into_iter()
                .map(|(address, prefix_bits)| Network { address: IpAddr::V4(address.into()), prefix_bits })
                .collect();
            let address = IpAddr::V4(address.into());
            let within = |list: &[Network]| list.iter().any(|network| network.contains(address));
            prop_assert_eq!(within(&Network::merge(networks.clone())), within(&networks));
        }
    }
}
