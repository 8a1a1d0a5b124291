//! Changes of a mobile router's link: announced to the nodes behind it, and followed by their TCP connections.
//!
//! Pure, with the time passed in:
//! - [`announcement`]: the datagram, its tag, its parser. [`freshness`]: what of it is news. [`doubts`]: what is said
//!   of what is not believed. [`announcer`]: when it is sent. [`links`]: which link is in use.
//! - [`policy`]: which window fits a link. [`follower`]: which connections are set, when, to what.
//!
//! Around it: [`lan`] (multicast), [`routes`], [`control`] (status), [`state`] (what outlives the
//! process), [`put_back`] (all as it was before), and the two loops, [`announce`] and [`follow`].
//!
//! docs/design/mobility.md says what a person needs to know.

pub mod announce;
pub mod announcement;
pub mod announcer;
pub mod control;
pub mod doubts;
pub mod event;
pub mod follow;
pub mod follower;
pub mod freshness;
pub mod lan;
pub mod links;
pub mod name;
pub mod policy;
pub mod put_back;
pub mod routes;
mod sockets;
pub mod state;
mod wait;

pub use longfat_host::Key;
pub use name::Name;

/// Version of what [`control`] answers to `status`.
pub const STATUS_VERSION: u32 = 1;

/// Why announcing or following fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A link that cannot be.
    #[error("{0}")]
    Links(String),
    /// The name is taken.
    #[error("somebody answers on '{0}' already; end that process, or give another --name")]
    Running(String),
    /// State to be put back that is not of this network namespace.
    #[error(
        "the state '{0}' is of another network namespace, where its routes and connections are: to follow in both, give \
         another --name; to take over what is left there, run this there ('ip netns exec'); if that namespace is gone, so are \
         they: remove the file"
    )]
    Elsewhere(String),
    /// A running process said no.
    #[error("{0}")]
    Answered(String),
    /// The kernel would not do it.
    #[error(transparent)]
    Kernel(#[from] longfat_kernel::Error),
    /// The host would not do it.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Result of announcing or following.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Error {
        Error::Io { what: what.into(), source: source.into() }
    }
}
