//! One TCP connection as the kernel tells of it.

use longfat_host::socket::TcpInfo;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

/// State of a connection (RFC 9293, section 3.3.2), numbered as the kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct State(pub u8);

impl State {
    /// ESTABLISHED.
    pub const ESTABLISHED: State = State(1);
    /// LISTEN.
    pub const LISTEN: State = State(10);

    /// Every state's number and name.
    pub const NAMES: [(u8, &'static str); 12] = [
        (1, "established"),
        (2, "syn_sent"),
        (3, "syn_recv"),
        (4, "fin_wait_1"),
        (5, "fin_wait_2"),
        (6, "time_wait"),
        (7, "close"),
        (8, "close_wait"),
        (9, "last_ack"),
        (10, "listen"),
        (11, "closing"),
        (12, "new_syn_recv"),
    ];

    /// As in RFC 9293, in lower case.
    pub fn name(self) -> &'static str {
        State::NAMES.iter().find(|(number, _)| *number == self.0).map_or("unknown", |(_, name)| name)
    }

    /// Reads a name as people write it: `estab`, `TIME-WAIT`.
    pub fn parse(text: &str) -> Option<State> {
        let plain = text.to_ascii_lowercase().replace('-', "_");
        let plain = match plain.as_str() {
            "estab" => "established",
            "fin_wait1" => "fin_wait_1",
            "fin_wait2" => "fin_wait_2",
            "closed" => "close",
            other => other,
        };
        State::NAMES.iter().find(|(_, name)| *name == plain).map(|(number, _)| State(*number))
    }

    /// Whether a control block with windows and timers stands behind it.
    pub fn has_control_block(self) -> bool {
        !matches!(self.0, 3 | 6 | 7 | 12)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Name of a congestion control, without an allocation per connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CcName([u8; 16]);

impl CcName {
    /// From bytes that may end in a zero; longer than a name of the kernel can be is cut.
    pub fn from_bytes(bytes: &[u8]) -> CcName {
        let mut name = [0; 16];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()).min(15);
        name[..end].copy_from_slice(&bytes[..end]);
        CcName(name)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..end]).unwrap_or("?")
    }

    /// The name with its terminator, as the kernel wants it.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl From<&str> for CcName {
    fn from(name: &str) -> CcName {
        CcName::from_bytes(name.as_bytes())
    }
}

impl fmt::Debug for CcName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Socket memory (INET_DIAG_SKMEMINFO), the kernel's bookkeeping included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketMemory {
    /// Receive buffer.
    pub rcvbuf_bytes: u32,
    /// Send buffer.
    pub sndbuf_bytes: u32,
    /// Held by what waits to be sent or acknowledged.
    pub send_queued_bytes: u32,
    /// Unacknowledged bytes that wait in this host's queueing discipline or driver, not on the wire yet.
    pub below_tcp_bytes: u32,
}

/// A process that has the socket open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Pid of the process.
    pub pid: i32,
    /// Name of the process, at most 15 bytes.
    pub command: Arc<str>,
}

/// Available bandwidth as a connection has measured it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    /// Newest result.
    pub found: longfat_cc::Avail,
    /// How old it was when it was read.
    pub age_us: u64,
}

/// One connection. What a state has not (TIME_WAIT has no control block) is absent.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Namespace it lives in, as in [`super::namespace::NetNamespace::label`].
    pub netns: Arc<str>,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// State of the connection.
    pub state: State,
    /// What the kernel knows the socket by, never used twice between two boots.
    pub cookie: u64,
    /// Inode of the socket; 0 when no process has it open any more.
    pub inode: u32,
    /// User it belongs to.
    pub uid: u32,
    /// Interface it is bound to; 0 when none.
    pub bound_interface: u32,
    /// Received, not yet read; in LISTEN connections not yet accepted.
    pub receive_queue_bytes: u32,
    /// Written, not yet acknowledged.
    pub send_queue_bytes: u32,
    /// Congestion control.
    pub cc: Option<CcName>,
    /// TCP_INFO.
    pub info: Option<TcpInfo>,
    /// Socket memory.
    pub memory: Option<SocketMemory>,
    /// A process that has it open; filled only when asked for.
    pub process: Option<Process>,
    /// What it has measured; filled with the process, where its congestion control measures and we may ask.
    pub measurement: Option<Measurement>,
    /// What limits it, where two looks tell more than one; see [`super::limit`].
    pub limit: Option<super::limit::Limit>,
    /// Why it does not send faster, by its name in the catalogue of 'longfat why'; filled by whoever judges it.
    pub cause: Option<&'static str>,
}

impl Connection {
    /// A connection of which only the addresses and the state are known.
    pub fn bare(netns: Arc<str>, local: SocketAddr, remote: SocketAddr, state: State) -> Connection {
        Connection {
            netns,
            local: unmapped(local),
            remote: unmapped(remote),
            state,
            cookie: 0,
            inode: 0,
            uid: 0,
            bound_interface: 0,
            receive_queue_bytes: 0,
            send_queue_bytes: 0,
            cc: None,
            info: None,
            memory: None,
            process: None,
            measurement: None,
            limit: None,
            cause: None,
        }
    }
}

/// IPv4 on an IPv6 socket is IPv4 to whoever reads or filters it.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An address of `family` from network-order bytes.
pub(crate) fn ip(family: u8, bytes: &[u8; 16]) -> IpAddr {
    if i32::from(family) == libc::AF_INET {
        IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
    } else {
        IpAddr::from(*bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_people_write_them() {
        assert_eq!(State::parse("ESTAB"), Some(State::ESTABLISHED));
        assert_eq!(State::parse("time-wait").unwrap().name(), "time_wait");
        assert_eq!(State::parse("fin-wait-1"), State::parse("FIN_WAIT1"));
        assert_eq!(State::parse("asleep"), None);
    }

    #[test]
    fn names_are_cut_to_what_the_kernel_can_hold() {
        assert_eq!(CcName::from("cubic").as_str(), "cubic");
        assert_eq!(CcName::from_bytes(b"cubic\0rest").as_str(), "cubic");
        assert_eq!(CcName::from("0123456789abcdefgh").as_str(), "0123456789abcde");
    }
}
