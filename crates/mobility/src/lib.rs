//! Changes of a mobile router's link: announced to the nodes behind it, and followed by their TCP connections.
//!
//! Pure, with the time passed in:
//! - [`announcement`]: the datagram, its tag, its parser. [`freshness`]: what of it is news. [`announcer`]: when it is
//!   sent.
//! - [`policy`]: which window fits a link. [`follower`]: which connections are set, when, to what.
//!
//! docs/mobility.md says what a person needs to know.

pub mod announcement;
pub mod announcer;
pub mod follower;
pub mod freshness;
pub mod key;
pub mod name;
pub mod policy;
pub mod prefix;

pub use key::Key;
pub use name::Name;
pub use prefix::Prefix;

/// Why announcing or following fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key that cannot be used.
    #[error("the key {0}")]
    Key(String),
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
