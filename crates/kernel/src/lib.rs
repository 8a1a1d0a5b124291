//! The only crate that speaks BPF.
//!
//! - [`support`]: what this kernel lacks, as values, asked before anything is touched.
//! - [`acknowledge`]: connections of a relay whose ends are acknowledged by each other alone.
//! - [`avail`]: available bandwidth, as measuring connections find it.
//! - [`capture`]: headers of an interface's packets.
//! - [`cc`]: our congestion controls in the kernel: load, unload, list, hold for the life of a process, and run an
//!   unmodified program under one.
//! - [`cgroup`]: a cgroup per run of a program.
//! - [`first_timeout`]: the time after which connections of some processes take their first packet for lost.
//! - [`mark`]: congestion marks on arriving packets, by the backlog of a relay.
//! - [`tcb`]: live control blocks of TCP connections.
//! - [`watch`]: connections between others that pass this host.

pub mod acknowledge;
pub mod alike;
pub mod avail;
mod bpffs;
pub mod capture;
pub mod cc;
pub mod cgroup;
mod filter;
pub mod first_timeout;
#[cfg(test)]
mod layout;
pub mod mark;
mod object;
mod sockets;
mod start;
pub mod support;
pub mod tcb;
mod tcx;
pub mod watch;

use longfat_host::socket::CC_NAME_MAX;

/// Why the kernel would not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host failed.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
    /// No algorithm of ours bears the name.
    #[error(transparent)]
    UnknownAlgorithm(#[from] longfat_cc::UnknownAlgorithm),
    /// Neither the kernel nor we have a congestion control of that name.
    #[error(
        "this kernel has no congestion control '{name}', and neither does longfat ({known}); \
         'modprobe tcp_{name}' may bring it, 'longfat cc list' shows what there is"
    )]
    Unavailable {
        /// The name asked for.
        name: String,
        /// Names of ours.
        known: String,
    },
    /// No congestion control can be called so.
    #[error(
        "'{0}' is no name of a congestion control: give 1 to {CC_NAME_MAX} bytes; 'longfat cc list' shows what there is"
    )]
    NoName(String),
    /// The kernel name is registered, but not by this program.
    #[error(
        "'{0}' is registered in this kernel by another program than longfat; end that program or unregister it, \
         then try again"
    )]
    NameTaken(String),
    /// The kernel name is registered by us, but differently.
    #[error("'{name}' is in the kernel already, {how}; {mend}")]
    Registered {
        /// The kernel name.
        name: String,
        /// How it is there.
        how: std::borrow::Cow<'static, str>,
        /// What to do about it.
        mend: String,
    },
    /// A congestion control that is not loaded cannot be unloaded.
    #[error("'{name}' is not loaded; {mend}")]
    NotLoaded {
        /// The kernel name.
        name: String,
        /// What to do about it.
        mend: String,
    },
    /// What is pinned would be gone with this process.
    #[error(
        "this process has mounts of its own, and no BPF file system among them, as under 'ip netns exec' or 'unshare \
         -m': congestion controls are the whole machine's, and would be loaded for this process alone; run it outside"
    )]
    OwnMounts,
    /// A BPF operation was refused.
    #[error("{what}: {source}{log}")]
    Bpf {
        /// What was tried.
        what: String,
        /// What libbpf said.
        source: libbpf_rs::Error,
        /// The verifier's or libbpf's last words.
        log: String,
    },
    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Result of asking the kernel.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Error {
        Error::Io { what: what.into(), source: source.into() }
    }
}
