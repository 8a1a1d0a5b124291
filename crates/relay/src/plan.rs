//! What a relay is told to do, every value resolved.

use crate::{Error, Result};
use serde::Serialize;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

/// A relay, fully described.
#[derive(Debug, Clone, Serialize)]
pub struct RelayPlan {
    /// Its name in records, in the nft table `longfat_NAME` and in messages: letters, digits, `-` and `_`.
    pub name: String,
    /// Where its connections come from and go to.
    pub mode: Mode,
    /// The leg towards the client.
    pub client: LegPlan,
    /// The leg towards the server.
    pub server: LegPlan,
    /// Worker threads.
    pub workers: usize,
    /// How long living connections may go on after the stop flag is raised.
    pub drain: Duration,
    /// How long a reset may wait until the bytes acknowledged before it are delivered.
    pub reset_wait: Duration,
    /// Rest after a batch of bulk data, so that it moves in fewer, larger pieces; zero for none.
    pub nap: Duration,
    /// Interval of records of every connection; none when absent.
    pub sample_every: Option<Duration>,
}

impl RelayPlan {
    /// Time for connections to end by themselves after a stop.
    pub const DEFAULT_DRAIN: Duration = Duration::from_secs(5);
    /// A few round trips of a geostationary satellite path.
    pub const DEFAULT_RESET_WAIT: Duration = Duration::from_secs(2);
    /// None: at 2 Gbit/s a rest of 1 ms saved a tenth of the CPU time and cost others' requests up to 2 ms.
    pub const DEFAULT_NAP: Duration = Duration::ZERO;

    /// A plan with the defaults and one worker per core.
    pub fn new(name: &str, mode: Mode) -> RelayPlan {
        RelayPlan {
            name: name.to_owned(),
            mode,
            client: LegPlan::client(),
            server: LegPlan::server(),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            drain: RelayPlan::DEFAULT_DRAIN,
            reset_wait: RelayPlan::DEFAULT_RESET_WAIT,
            nap: RelayPlan::DEFAULT_NAP,
            sample_every: None,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || self.name.len() > 32 || !self.name.chars().all(good) {
            return Err(Error::Plan(format!(
                "relay name '{}' must be 1 to 32 letters, digits, '-' or '_'",
                self.name
            )));
        }
        if self.workers == 0 {
            return Err(Error::Plan("a relay needs at least one worker".into()));
        }
        self.mode.check()
    }
}

/// Where connections come from and go to.
#[derive(Debug, Clone, Serialize)]
pub enum Mode {
    /// Connections that pass through this host are taken; each goes on to where its client wanted it to go, from the
    /// client's own address and port.
    Transparent(InterceptPlan),
    /// Clients connect to the relay.
    Explicit {
        /// Where it listens.
        listen: SocketAddr,
        /// Where it connects to: the addresses of one server, tried in order.
        to: Vec<SocketAddr>,
    },
}

impl Mode {
    fn check(&self) -> Result<()> {
        match self {
            Mode::Transparent(intercept) if intercept.interfaces.is_empty() => {
                Err(Error::Plan("a transparent relay needs at least one interface to intercept on".into()))
            }
            Mode::Explicit { to, .. } if to.is_empty() => {
                Err(Error::Plan("an explicit relay needs a server to connect to".into()))
            }
            Mode::Explicit { listen, to } if to.contains(listen) => {
                Err(Error::Plan(format!("the relay would connect to itself ({listen})")))
            }
            _ => Ok(()),
        }
    }
}

/// What is intercepted, and how the kernel is told.
#[derive(Debug, Clone, Default, Serialize)]
pub struct InterceptPlan {
    /// Interfaces on which clients' packets arrive (the LAN side).
    pub interfaces: Vec<String>,
    /// Only connections to these ports; all when empty.
    pub ports: Vec<Ports>,
    /// Only connections to these networks; all when empty.
    pub destinations: Vec<Network>,
    /// Packet mark (and, one above it, the mark of the relay's own packets); chosen when absent.
    pub mark: Option<u32>,
    /// Routing table; chosen when absent.
    pub table: Option<u32>,
    /// Turn forwarding on for the relay's lifetime, rather than refuse when it is off.
    pub set_forwarding: bool,
}

/// One leg's socket options.
#[derive(Debug, Clone, Serialize)]
pub struct LegPlan {
    /// Congestion control; the system's default when absent.
    pub cc: Option<String>,
    /// Send and receive buffer as the kernel counts them (about half of it is payload).
    pub buffer_bytes: u64,
    /// Bytes that may wait unsent in the send buffer (TCP_NOTSENT_LOWAT).
    pub notsent_lowat_bytes: u32,
    /// Idle time before the peer is probed (SO_KEEPALIVE), so that a vanished peer's connection ends.
    pub keepalive_idle: Duration,
}

impl LegPlan {
    /// 1 Gbit/s at 8 ms: a LAN and more, while a stalled server costs the relay little.
    pub const CLIENT_BUFFER_BYTES: u64 = 2 << 20;
    /// About 8 MiB of payload: 1 Gbit/s at 67 ms, or twice the bandwidth-delay product of 1 Gbit/s at 28.4 ms.
    pub const SERVER_BUFFER_BYTES: u64 = 16 << 20;
    /// Unsent bytes are queue, not flight: at 1 Gbit/s this is 2 ms, and refilled when 1 ms is left.
    pub const NOTSENT_LOWAT_BYTES: u32 = 256 << 10;

    /// Defaults towards the client.
    pub fn client() -> LegPlan {
        LegPlan {
            cc: None,
            buffer_bytes: LegPlan::CLIENT_BUFFER_BYTES,
            notsent_lowat_bytes: LegPlan::NOTSENT_LOWAT_BYTES,
            keepalive_idle: Duration::from_secs(60),
        }
    }

    /// Defaults towards the server.
    pub fn server() -> LegPlan {
        LegPlan { buffer_bytes: LegPlan::SERVER_BUFFER_BYTES, ..LegPlan::client() }
    }
}

/// A port or a range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Ports, String> {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Whether it is of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Network, String> {
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
    fn a_plan_that_cannot_work_says_what_is_wrong() {
        let here: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let message = |name: &str, mode| RelayPlan::new(name, mode).check().unwrap_err().to_string();
        let explicit = |to: &[SocketAddr]| Mode::Explicit { listen: here, to: to.to_vec() };
        assert!(message("a b", explicit(&[here])).contains("'a b'"));
        assert!(message("a", explicit(&[here])).contains("itself"));
        assert!(message("a", explicit(&[])).contains("server"));
        assert!(message("a", Mode::Transparent(InterceptPlan::default())).contains("interface"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,30}") {
            let _ = text.parse::<Ports>();
            let _ = text.parse::<Network>();
        }
    }
}
