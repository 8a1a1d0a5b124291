//! A range of addresses.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{fmt, net::IpAddr, str::FromStr};

/// An address and how many of its leading bits count: `10.0.0.0/8`; without a length, all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// A text that is no prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no prefix; write 10.0.0.0/8 or 2001:db8::/32")]
pub struct PrefixError(String);

impl Prefix {
    /// Whether it covers an address. IPv4 as IPv6 writes it is IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let shift = |width: u8| u32::from(width - self.length);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u32::from(own) ^ u32::from(other)).checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (u128::from(own) ^ u128::from(other)).checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let wrong = || PrefixError(text.escape_debug().to_string());
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(width), |length| length.parse::<u8>().map_err(|_| wrong()))?;
        if length > width { Err(wrong()) } else { Ok(Prefix { address, length }) }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prefix, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(prefix: &str, address: &str) -> bool {
        prefix.parse::<Prefix>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_prefix_covers_the_addresses_that_share_its_leading_bits() {
        assert!(covers("10.0.0.0/8", "10.255.3.4") && !covers("10.0.0.0/8", "11.0.0.0"));
        assert!(covers("0.0.0.0/0", "203.0.113.9") && !covers("0.0.0.0/0", "2001:db8::1"));
        assert!(covers("2001:db8::/33", "2001:db8:7fff::1") && !covers("2001:db8::/33", "2001:db8:8000::1"));
        assert!(covers("::/0", "fe80::1") && covers("10.1.2.3", "::ffff:10.1.2.3"));
        assert!(!covers("10.1.2.3", "10.1.2.2"));
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for text in ["", "10.0.0/8", "10.0.0.0/33", "::/129", "10.0.0.0/", "host"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }
}
