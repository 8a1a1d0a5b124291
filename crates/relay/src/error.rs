//! Why the relay could not do what was asked.

use longfat_host::support::Missing;
use std::{io, net::SocketAddr};

/// Why the relay could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This host lacks something; nothing was touched.
    #[error("this host lacks {}", summary(.0))]
    Unsupported(Vec<Missing>),
    /// The plan contradicts itself.
    #[error("{0}")]
    Plan(String),
    /// The listening address could not be had.
    #[error("listen on {address}: {source}; choose a free port and an address of this host")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A relay of that name runs already in this network namespace.
    #[error("a relay named '{name}' runs already ({owner}); end it or choose another --name")]
    NameTaken {
        /// The name.
        name: String,
        /// The process that has it, and where.
        owner: String,
    },
    /// A routing mark or table is in use by somebody else.
    #[error(
        "{what} {number} ({number:#x}), or one of those that go with it, is in use already ('{by}'); choose another with {option}"
    )]
    NumberTaken {
        /// `routing mark` or `routing table`.
        what: &'static str,
        /// The number.
        number: u32,
        /// The rule or route that uses it.
        by: String,
        /// The option that chooses another.
        option: &'static str,
    },
    /// Something that dead relays left could not be undone.
    #[error("{}", .problems.join("; "))]
    NotUndone {
        /// The nft tables of those of whom nothing is left, or nothing but what the problems say.
        removed: Vec<String>,
        /// What is left, of whom and why.
        problems: Vec<String>,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel would not mark packets.
    #[error(transparent)]
    Kernel(#[from] longfat_kernel::Error),
    /// The host would not do what was asked.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
}

/// Result of the relay.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io { what: what.into(), source: source.into() }
    }
}

fn summary(missing: &[Missing]) -> String {
    let texts: Vec<_> = missing.iter().map(|m| format!("{} ({}): {}", m.what, m.why, m.mend)).collect();
    texts.join("; ")
}
