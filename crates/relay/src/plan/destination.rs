//! Which destinations are this host, and where no intercepted connection goes: addresses that the relay's own kernel
//! would read as its own host's, or as those of many hosts.
//!
//! A stranger's packet to `::` is no packet to this host, but a `connect` to `::` reaches the services on `::1`. So
//! nftables lets such packets pass, by [`never_taken`] beside what the kernel's own routes say, and no dial goes there
//! either, by [`is_taken`].

use longfat_host::Network;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    sync::LazyLock,
};

/// This host (RFC 1122 section 3.2.1.3), link-local (RFC 3927), multicast, the limited broadcast.
const IPV4: [&str; 5] = ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32"];
/// Unspecified, loopback and IPv4-compatible (RFC 4291 section 2.5), link-local, multicast. What is
/// IPv4-mapped is in none of them, as [`Network::contains`] reads it as IPv4.
const IPV6: [&str; 3] = ["::/96", "fe80::/10", "ff00::/8"];
/// No packet has such an address (RFC 4291 section 2.5.5.2), and a socket reads it as IPv4.
const MAPPED: &str = "::ffff:0:0/96";

static NEVER: LazyLock<Vec<Network>> =
    LazyLock::new(|| IPV4.iter().chain(&IPV6).filter_map(|text| text.parse().ok()).collect());

/// The networks of one family, as nftables names them.
pub(crate) fn never_taken(family: &str) -> String {
    match family {
        "ip" => IPV4.join(", "),
        _ => format!("{}, {MAPPED}", IPV6.join(", ")),
    }
}

/// Whether a packet to, or from, this address may belong to a connection that is taken.
pub(crate) fn is_taken(address: IpAddr) -> bool {
    let is_mapped = |six: Ipv6Addr| six.to_ipv4_mapped().is_some();
    !matches!(address, IpAddr::V6(six) if is_mapped(six))
        && !NEVER.iter().any(|network| network.contains(address))
}

/// Whether this host has the address: what it sends there comes from there. Nothing is sent. None if the kernel
/// has nothing left to be asked with.
pub(crate) fn is_own(address: IpAddr) -> Option<bool> {
    if address.is_loopback() || address.is_unspecified() {
        return Some(true);
    }
    let any =
        if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let source = || {
        let probe = UdpSocket::bind((any, 0))?;
        probe.connect((address, 9))?;
        probe.local_addr()
    };
    match source() {
        Ok(source) => Some(source.ip() == address),
        Err(error) => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => None,
            _ => Some(false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_this_hosts_and_those_of_documents_are_not() {
        assert!(
            ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0"]
                .iter()
                .all(|own| is_own(own.parse().unwrap()) == Some(true))
        );
        assert!(
            ["198.51.100.1", "2001:db8::1"].iter().all(|other| is_own(other.parse().unwrap()) == Some(false))
        );
    }

    #[test]
    fn what_a_kernel_reads_as_its_own_or_as_many_hosts_is_never_taken() {
        assert_eq!(NEVER.len(), IPV4.len() + IPV6.len());
        let never = "0.0.0.0 127.0.0.1 127.255.0.9 169.254.169.254 224.0.0.1 239.1.1.1 255.255.255.255 \
                     :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.1.2.3 fe80::1 febf::1 ff02::1";
        for address in never.split_whitespace() {
            assert!(!is_taken(address.parse().unwrap()), "{address}");
        }
        for address in
            "1.1.1.1 10.0.0.1 169.253.0.1 223.255.255.255 2001:db8::1 fd00::1 64:ff9b::7f00:1".split(' ')
        {
            assert!(is_taken(address.parse().unwrap()), "{address}");
        }
    }
}
