//! Sysctls of the calling thread's network namespace.

use crate::{Error, Result};
use std::{collections::BTreeMap, fs, path::Path};

fn path(key: &str) -> String {
    format!("/proc/sys/{}", key.replace('.', "/"))
}

/// Reads `net.ipv4.tcp_rmem` and the like.
pub fn read(key: &str) -> Result<String> {
    let text =
        fs::read_to_string(path(key)).map_err(|source| Error::io(format!("read sysctl '{key}'"), source))?;
    Ok(text.trim().to_owned())
}

/// Writes one value.
pub fn write(key: &str, value: &str) -> Result<()> {
    fs::write(path(key), value)
        .map_err(|source| Error::io(format!("set sysctl '{key}' to '{value}'"), source))
}

/// Every readable sysctl under `net`, sorted by name. Names keep `/` within interface names as the kernel does.
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
                // Write-only entries (route.flush) and ones refused in a namespace are left out.
                if let Ok(text) = fs::read_to_string(entry.path()) {
                    found.insert(name, text.trim().to_owned());
                }
            }
        }
    }
}
