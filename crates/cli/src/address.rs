//! Addresses of transfers as people write them: the port may be left out.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

/// The port of transfers where none is given: iperf3's, which firewalls of such paths often let through.
pub const PORT: u16 = 5201;

/// Where to listen: `5201`, `10.0.0.2`, `2001:db8::1`, `10.0.0.2:5201`, `[2001:db8::1]:5201`.
///
/// # Errors
/// What is none of these, for a person.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    let port = || Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), text.parse().ok()?));
    let ip = || Some(SocketAddr::new(unbracketed(text).parse().ok()?, PORT));
    text.parse().ok().or_else(port).or_else(ip).ok_or_else(|| {
        "give an address of this host, a port, or both, like 10.0.0.2, 5201, 10.0.0.2:5201 or [2001:db8::1]:5201"
            .to_owned()
    })
}

/// A server with its port: `host`, `host:5201`, `10.0.0.2`, `2001:db8::1`, `[2001:db8::1]:5201`, `fe80::1%eth0`.
///
/// # Errors
/// A port that is none, for a person.
pub fn server(text: &str) -> Result<String, String> {
    if let Ok(ip) = unbracketed(text).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT).to_string());
    }
    // An address of a link alone, by the interface there.
    let bare = unbracketed(text);
    if bare.split_once('%').is_some_and(|(ip, zone)| ip.parse::<Ipv6Addr>().is_ok() && !zone.contains(']')) {
        return Ok(format!("[{bare}]:{PORT}"));
    }
    match text.rsplit_once(':') {
        None if text.is_empty() => Err("give the server's name or address".to_owned()),
        None => Ok(format!("{text}:{PORT}")),
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(text.to_owned())
        }
        Some(_) => Err(format!("write it like host, host:{PORT} or [2001:db8::1]:{PORT}")),
    }
}

/// An address of this host, without a port.
///
/// # Errors
/// What is none, for a person.
pub fn own(text: &str) -> Result<IpAddr, String> {
    let refusal = || "give an IP address of this host, like 10.0.0.2 or 2001:db8::2".to_owned();
    unbracketed(text).parse().map_err(|_| refusal())
}

/// Ports of data: `5300-5399`, or one.
///
/// # Errors
/// What is no range, for a person.
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err("write a range of ports like 5300-5399, the lower one first, or one port".to_owned()),
    }
}

fn unbracketed(text: &str) -> &str {
    text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_has_the_usual_one() {
        for (written, meant) in [
            ("far", "far:5201"),
            ("far.example:7", "far.example:7"),
            ("10.0.0.2", "10.0.0.2:5201"),
            ("10.0.0.2:99", "10.0.0.2:99"),
            ("2001:db8::1", "[2001:db8::1]:5201"),
            ("[2001:db8::1]", "[2001:db8::1]:5201"),
            ("[2001:db8::1]:99", "[2001:db8::1]:99"),
            ("fe80::1%eth0", "[fe80::1%eth0]:5201"),
            ("[fe80::1%eth0]", "[fe80::1%eth0]:5201"),
            ("[fe80::1%eth0]:99", "[fe80::1%eth0]:99"),
        ] {
            assert_eq!(server(written).as_deref(), Ok(meant), "{written}");
        }
        for wrong in ["", "far:", ":5201", "far:0", "far:65536", "far:http"] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_listens_at_an_address_a_port_or_both() {
        for (written, meant) in [
            ("5202", "[::]:5202"),
            ("0", "[::]:0"),
            ("10.0.0.2", "10.0.0.2:5201"),
            ("10.0.0.2:0", "10.0.0.2:0"),
            ("::1", "[::1]:5201"),
            ("[::1]", "[::1]:5201"),
            ("[::]:5201", "[::]:5201"),
        ] {
            assert_eq!(listen(written).map(|address| address.to_string()).as_deref(), Ok(meant), "{written}");
        }
        assert!(["", "far", "10.0.0", "70000", "10.0.0.2:"].iter().all(|wrong| listen(wrong).is_err()));
    }

    #[test]
    fn ports_of_data_are_a_range_or_one() {
        assert_eq!(ports("5300-5399"), Ok(5300..=5399));
        assert_eq!(ports("5300"), Ok(5300..=5300));
        for wrong in ["", "-", "0", "0-9", "9-8", "5300-", "5300-70000", "5300:5399", "a-b"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
