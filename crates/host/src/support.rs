//! What a command needs of this host, asked before anything is touched.

use serde::{Deserialize, Serialize};
use std::{fmt, path::Path};

/// One thing this host lacks: printed before anything starts, with exit code 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What is needed, in the user's words.
    pub what: String,
    /// How it was found to be absent.
    pub why: String,
    /// What to do about it.
    pub mend: String,
}

impl Missing {
    /// A missing thing, in three sentences' worth of words.
    pub fn new(what: impl Into<String>, why: impl Into<String>, mend: impl Into<String>) -> Missing {
        Missing { what: what.into(), why: why.into(), mend: mend.into() }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.mend)
    }
}

/// What is missing for making network namespaces: root and iproute2.
pub fn missing_for_namespaces() -> Vec<Missing> {
    let mut missing = Vec::new();
    missing.extend(missing_root("network namespaces and interfaces"));
    missing.extend(missing_program("ip", "iproute2"));
    missing
}

/// Root, unless the effective user is.
pub fn missing_root(needed_for: &str) -> Option<Missing> {
    let user = nix::unistd::geteuid();
    let missing =
        || Missing::new("root", format!("{needed_for} need it; this is user {user}"), "run it with sudo");
    (!user.is_root()).then(missing)
}

/// CAP_NET_ADMIN, unless the calling thread has it.
pub fn missing_network_admin(needed_for: &str) -> Option<Missing> {
    let user = nix::unistd::geteuid();
    let why = || format!("{needed_for} need it; this is user {user}");
    (!crate::capability::has(crate::capability::NET_ADMIN))
        .then(|| Missing::new("the capability CAP_NET_ADMIN", why(), "run it with sudo"))
}

/// CAP_NET_RAW, for sockets that send whole packets.
pub fn missing_network_raw(needed_for: &str) -> Option<Missing> {
    let user = nix::unistd::geteuid();
    let why = || format!("{needed_for} need it; this is user {user}");
    (!crate::capability::has(crate::capability::NET_RAW))
        .then(|| Missing::new("the capability CAP_NET_RAW", why(), "run it with sudo"))
}

/// A program of the host, looked up on PATH.
pub fn missing_program(program: &str, package: &str) -> Option<Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).any(|directory: std::path::PathBuf| executable(&directory, program));
    let missing = || {
        Missing::new(
            format!("the program '{program}'"),
            "it is not on PATH",
            format!("install the package {package}"),
        )
    };
    (!found).then(missing)
}

fn executable(directory: &Path, program: &str) -> bool {
    directory.join(program).is_file()
}
