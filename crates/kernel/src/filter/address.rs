//! Addresses and ports as people write them.

use super::{FilterError, Parser, lex::Token};
use longfat_host::network::Network;
use std::net::{IpAddr, Ipv4Addr};

type Result<T> = std::result::Result<T, FilterError>;

/// Ports from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub first: u16,
    pub last: u16,
}

impl Ports {
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Parser<'_> {
    /// `80`, `:80` or `8000-8999`.
    pub fn port_range(&self, token: Token<'_>, text: &str) -> Result<Ports> {
        let text = text.strip_prefix(':').unwrap_or(text);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |part: &str| {
            let wrong = || {
                self.error(
                    token,
                    format!("'{part}' is no port: write a number up to 65535, or a range like 8000-8999"),
                )
            };
            part.parse::<u16>().map_err(|_| wrong())
        };
        let ports = Ports { first: port(first)?, last: port(last)? };
        if ports.first > ports.last {
            return Err(self.error(token, format!("the range '{text}' ends before it begins")));
        }
        Ok(ports)
    }

    /// `10.0.0.0/8`, `10.0.0.1:80`, `[::1]:80-90`, `*:80`: the addresses and the ports.
    pub fn network_and_ports(&self, token: Token<'_>) -> Result<(Option<Network>, Option<Ports>)> {
        let (address, ports) = split_ports(token.text);
        let ports = ports.map(|text| self.port_range(token, text)).transpose()?;
        let network = match address {
            "" | "*" => None,
            text => Some(self.prefix(token, text)?),
        };
        Ok((network, ports))
    }

    fn prefix(&self, token: Token<'_>, text: &str) -> Result<Network> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let (address, given_bits) = read_address(address).ok_or_else(|| {
            let why = "is no address; names are not looked up, write 10.0.0.0/8 or 2001:db8::/32";
            self.error(token, format!("'{address}' {why}"))
        })?;
        let bits = length.map_or(Some(given_bits), |text| text.parse().ok());
        bits.and_then(|bits| Network::new(address, bits)).ok_or_else(|| {
            let (most, text) = (if address.is_ipv4() { 32 } else { 128 }, length.unwrap_or_default());
            self.error(token, format!("'/{text}' is no prefix length: a number, at most {most}"))
        })
    }
}

/// `10.0.0.1:80`, `10.0.0.0/8:80-90`, `[::1]:80`, `[::]/0:80`: the address and the ports.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    if let Some((inside, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(ports) => (inside, Some(ports)),
            // With a length, the brackets are taken off by whoever reads the address.
            None if rest.is_empty() => (inside, None),
            None => (text, None),
        };
    }
    match text.rsplit_once(':') {
        // An IPv6 address has more than one colon.
        Some((address, ports)) if !address.contains(':') => (address, Some(ports)),
        _ => (text, None),
    }
}

/// An address, and how many of its bits are given: the short form of IPv4 networks leaves some out (`10.77.2` is
/// `10.77.2.0/24`, as in ss).
fn read_address(text: &str) -> Option<(IpAddr, u8)> {
    let plain = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = plain.parse::<IpAddr>() {
        let address = address.to_canonical();
        return Some((address, if address.is_ipv4() { 32 } else { 128 }));
    }
    let mut octets = [0; 4];
    let parts: Vec<_> = plain.split('.').collect();
    if parts.len() > 4 {
        return None;
    }
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = part.parse().ok()?;
    }
    Some((IpAddr::V4(Ipv4Addr::from(octets)), 8 * parts.len() as u8))
}
