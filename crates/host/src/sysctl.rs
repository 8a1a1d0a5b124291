//! Sysctls of the calling thread's network namespace.

use crate::{Error, Result};
use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path};

fn path(key: &str) -> String {
    format!("/proc/sys/{}", key.replace('.', "/"))
}

/// Reads `net.ipv4.tcp_rmem` and the like.
pub fn read(key: &str) -> Result<String> {
    let text =
        fs::read_to_string(path(key)).map_err(|source| Error::io(format!("read sysctl '{key}'"), source))?;
    Ok(text.trim().to_owned())
}

/// Whether a key belongs to a network namespace: all others are the whole machine's.
pub fn is_net(key: &str) -> bool {
    key.starts_with("net.")
}

/// Writes one value of the calling thread's network namespace.
///
/// # Errors
/// The key is another's ([`is_net`]), or the kernel refuses.
pub fn write(key: &str, value: &str) -> Result<()> {
    if !is_net(key) {
        return Err(Error::SysctlOfMachine(key.to_owned()));
    }
    fs::write(path(key), value)
        .map_err(|source| Error::io(format!("set sysctl '{key}' to '{value}'"), source))
}

/// Whether the kernel would let a key be written: it may lie in a file system that is read-only, or be root's. Writes
/// nothing.
///
/// # Errors
/// Why not.
pub fn check_writable(key: &str) -> Result<()> {
    let opened = fs::OpenOptions::new().write(true).open(path(key));
    opened.map(drop).map_err(|source| Error::io(format!("open sysctl '{key}' to set it"), source))
}

/// Whether a key is there, and not only shown: some are shown to every network namespace, and set in the first one.
pub fn is_settable(key: &str) -> bool {
    fs::metadata(path(key)).is_ok_and(|found| may_be_set(found.permissions().mode()))
}

fn may_be_set(mode: u32) -> bool {
    mode & 0o222 != 0
}

/// Every setting under `net`, sorted by name. Names keep `/` within interface names as the kernel does. What cannot be
/// written is no setting (which congestion controls there are, how many connections are tracked), and what only root
/// may read (the key of Fast Open) is nobody else's business: both are left out.
pub fn dump_net() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    walk(Path::new("/proc/sys/net"), "net", &mut found);
    found
}

fn walk(directory: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = format!("{prefix}.{}", entry.file_name().to_string_lossy());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), &name, found),
            _ => {
                let mode = entry.metadata().map_or(0, |metadata| metadata.permissions().mode());
                // Ones refused in a namespace are left out, too.
                if may_be_set(mode)
                    && mode & 0o004 != 0
                    && let Ok(text) = fs::read_to_string(entry.path())
                {
                    found.insert(name, text.trim().to_owned());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_settings_are_refused() {
        for key in ["kernel.core_pattern", "/kernel/core_pattern", "vm.swappiness", ""] {
            assert!(matches!(write(key, "1"), Err(Error::SysctlOfMachine(_))), "{key}");
        }
    }

    #[test]
    fn a_key_that_is_shown_alone_is_told_from_one_that_can_be_set() {
        assert!(is_settable("net.ipv4.tcp_rmem"));
        assert!(
            !is_settable("net.ipv4.tcp_available_congestion_control") && !is_settable("net.ipv4.no_such")
        );
    }

    #[test]
    fn settings_are_found_and_neither_states_nor_secrets() {
        let found = dump_net();
        assert!(found.contains_key("net.ipv4.tcp_congestion_control"));
        for other in ["tcp_available_congestion_control", "tcp_fastopen_key", "route.flush"] {
            assert!(!found.contains_key(&format!("net.ipv4.{other}")), "{other}");
        }
    }
}
