//! Why a transfer could not be made.

use crate::start::Step;
use std::{net::SocketAddr, time::Duration};

/// Which end of the data an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The end that sends the payload.
    Sending,
    /// The end that receives the payload.
    Receiving,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            End::Sending => "sending end",
            End::Receiving => "receiving end",
        })
    }
}

/// Why a transfer could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of the other end cannot be used.
    #[error("address '{text}': {why}; write it like 'host:5201' or '[2001:db8::1]:5201'")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody answered.
    #[error(
        "cannot connect to {address}: {source}; is 'longfat transfer serve' running and reachable there?"
    )]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The control connection stands, and data have no way.
    #[error("cannot connect to {address} for data: {source}; {hint}")]
    DataConnect {
        /// Where to.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
        /// What may be the cause, and the mend.
        hint: &'static str,
    },
    /// The client's data connections, or its first datagrams, did not come.
    #[error(
        "{missing} of the {streams} {what} of {peer} did not arrive at {at} within {seconds:.1} s; {hint}"
    )]
    Absent {
        /// The peer whose connections did not come.
        peer: String,
        /// How many did not come.
        missing: usize,
        /// How many should have.
        streams: usize,
        /// "data connections" or "UDP streams".
        what: &'static str,
        /// Where they were waited for.
        at: String,
        /// For how long.
        seconds: f64,
        /// What may be the cause, and the mend.
        hint: &'static str,
    },
    /// A data connection that nobody waits for.
    #[error("{peer} made a data connection for no transfer that waits for one")]
    NoTransfer {
        /// The peer that made the connection.
        peer: String,
    },
    /// No port for data is free.
    #[error("all data ports from {first} to {last} (--data-ports) are in use; give more, or try again later")]
    NoDataPort {
        /// First of the range.
        first: u16,
        /// Last of the range.
        last: u16,
    },
    /// The listening address cannot be had.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen, or end the program that has it"
    )]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A socket of one end does not take what the plan asks.
    #[error("{end}: {source}")]
    Host {
        /// Which end.
        end: End,
        /// What the host said.
        source: longfat_host::Error,
    },
    /// The serving end may not do what the plan asks.
    #[error("{end}: {source}; a server may when it is started as root with --trusted")]
    NotPermitted {
        /// Which end.
        end: End,
        /// What the host said.
        source: longfat_host::Error,
    },
    /// The other end said no.
    #[error("{peer} refused the transfer: {reason}")]
    Refused {
        /// Name of the other end.
        peer: String,
        /// Reason that the other end gave.
        reason: String,
    },
    /// A proof that does not fit.
    #[error("{peer} has another key than this server (--key), or none")]
    ForeignKey {
        /// Name of the client.
        peer: String,
    },
    /// A server that asks for a key.
    #[error("{peer} serves only who has its key: give it by --key FILE")]
    KeyWanted {
        /// Name of the server.
        peer: String,
    },
    /// A server that does not prove that it has the key.
    #[error(
        "{peer} has not proven that it has the key (--key): it has none, or another, or is not the server that was meant"
    )]
    Unproven {
        /// Name of the server.
        peer: String,
    },
    /// The client asks for more than this server gives.
    #[error("{peer} asks for more than is allowed: {reason}")]
    NotAllowed {
        /// Name of the client.
        peer: String,
        /// What there is.
        reason: String,
    },
    /// The ends are of different versions.
    #[error(
        "{peer} speaks version {theirs} of the transfer protocol, this program version {ours}; use the same longfat at both ends"
    )]
    Version {
        /// The other end.
        peer: String,
        /// Protocol version of the other end.
        theirs: u32,
        /// This program's version.
        ours: u32,
    },
    /// The other end does not speak the protocol.
    #[error("{peer} does not speak the transfer protocol: {why}")]
    Protocol {
        /// The other end.
        peer: String,
        /// What it said.
        why: String,
    },
    /// The other end is gone.
    #[error("{peer} closed the control connection: {why}")]
    Closed {
        /// The other end.
        peer: String,
        /// Reason that the connection closed.
        why: String,
    },
    /// The other end does not answer.
    #[error("{peer} has not been heard of for {seconds:.1} s: it or the path is dead (limit: --timeout)")]
    Silent {
        /// The other end.
        peer: String,
        /// For how long.
        seconds: f64,
    },
    /// The plan contradicts itself.
    #[error(transparent)]
    Plan(#[from] crate::plan::PlanError),
    /// A start that this host's clock does not come to in any time that is meant.
    #[error(
        "the start at {start_ns} ns is more than a day ahead: CLOCK_MONOTONIC of this host is at {now_ns} ns; give one of its times"
    )]
    FarStart {
        /// When it was to begin.
        start_ns: u64,
        /// What the clock says.
        now_ns: u64,
    },
    /// A signal came first.
    #[error("stopped before the transfer began")]
    Stopped,
    /// The other end was lost while the ends agreed.
    #[error("{source} ({step} had taken {seconds:.1} s)")]
    During {
        /// What they were at.
        step: Step,
        /// For how long.
        seconds: f64,
        /// What went wrong.
        source: Box<Error>,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What stops data that have a port of their own.
pub(crate) const HINT_OWN_PORT: &str = "a firewall may stop what goes there: open it, or start the server with \
                                        --data-ports FIRST-LAST and open these";
/// What stops data that go where the control connection went.
pub(crate) const HINT_ONE_PORT: &str =
    "the control connection came through, so a firewall may limit how many do";

/// What stops data where each port of this host is another connection's.
const HINT_NO_PORT: &str = "each port that this host may use is taken: allow more (sysctl \
                            net.ipv4.ip_local_port_range), or use fewer streams";

/// Result of a transfer step.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Error {
        Error::Io { what: what.into(), source: source.into() }
    }

    /// Whether this host has no sockets of the address family, as with `ipv6.disable=1`.
    pub(crate) fn lacks_family(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EAFNOSUPPORT))
    }

    /// Says that it was data that could not connect, where it was.
    pub(crate) fn of_data(self, hint: &'static str) -> Error {
        match self {
            Error::Connect { address, source } => {
                let is_full = source.raw_os_error() == Some(libc::EADDRNOTAVAIL);
                Error::DataConnect { address, source, hint: if is_full { HINT_NO_PORT } else { hint } }
            }
            other => other,
        }
    }

    /// Says what the ends were at, where that tells more than the error: nobody answered, or no longer.
    pub(crate) fn during(self, step: Step, took: Duration) -> Error {
        match self {
            Error::Closed { .. } | Error::Silent { .. } => {
                Error::During { step, seconds: took.as_secs_f64(), source: Box::new(self) }
            }
            other => other,
        }
    }
}
