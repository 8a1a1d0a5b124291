//! A lease: everything a run makes outside its own process, and who answers for it.
//!
//! `/run/longfat/ID/owner` names the process (pid and start time); `/run/longfat/ID/namespaces/NAME` is written
//! *before* a namespace is made. Dropping the lease removes both. After a crash the owner is dead, and
//! [`sweep`] removes what is left, so that a second run starts clean.

use crate::{Error, Namespace, Result};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const LEASES: &str = "/run/longfat";
const LOCK: &str = "/run/longfat.lock";

/// Things made outside the process, removed on drop.
#[derive(Debug)]
pub struct Lease {
    id: String,
}

impl Lease {
    /// Takes the lease `id` (letters, digits, `-`). What a dead owner left under that name is removed first.
    pub fn take(id: &str) -> Result<Lease> {
        let _alone = lock()?;
        if let Some(pid) = living_owner(&directory(id)) {
            return Err(Error::LeaseHeld { id: id.to_owned(), pid });
        }
        remove(&directory(id))?;
        let namespaces = directory(id).join("namespaces");
        fs::create_dir_all(&namespaces)
            .map_err(|source| Error::io(format!("create {}", namespaces.display()), source))?;
        let lease = Lease { id: id.to_owned() };
        let pid = std::process::id() as i32;
        write(&directory(id).join("owner"), &format!("{pid} {}", start_time(pid).unwrap_or(0)))?;
        Ok(lease)
    }

    /// Makes the namespace `lf-ID-NAME`.
    pub fn namespace(&self, name: &str) -> Result<Namespace> {
        let full = format!("lf-{}-{name}", self.id);
        if Namespace::open(&full).is_ok() {
            return Err(Error::NamespaceExists(full));
        }
        write(&directory(&self.id).join("namespaces").join(&full), "")?;
        Namespace::create(&full)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Err(error) = remove(&directory(&self.id)) {
            eprintln!("longfat: cleaning up '{}': {error}; 'longfat lab clean' tries again", self.id);
        }
    }
}

/// Removes everything left by owners that are dead; the ids of the leases removed.
pub fn sweep() -> Result<Vec<String>> {
    let _alone = lock()?;
    let Ok(entries) = fs::read_dir(LEASES) else { return Ok(Vec::new()) };
    let mut removed = Vec::new();
    // Leases are directories; beside them relays keep their control sockets.
    let is_lease = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    for entry in entries.flatten().filter(is_lease) {
        if living_owner(&entry.path()).is_none() {
            remove(&entry.path())?;
            removed.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(removed)
}

/// Held while a lease is taken or swept: a lease without an owner yet would look like a dead one's, and two sweeps
/// would delete the same things. Released on drop.
fn lock() -> Result<fs::File> {
    let open = fs::OpenOptions::new().create(true).truncate(false).write(true).open(LOCK);
    let locked = open.and_then(|file| file.lock().map(|()| file));
    locked.map_err(|source| Error::io(format!("lock {LOCK}"), source))
}

/// Ends the processes in each namespace of the lease, deletes the namespaces, then the lease itself.
fn remove(lease: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(lease.join("namespaces")) else {
        return remove_dir(lease);
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Ok(namespace) = Namespace::open(&name) {
            kill_all(&namespace);
        }
        Namespace::delete(&name)?;
    }
    remove_dir(lease)
}

fn kill_all(namespace: &Namespace) {
    let own = std::process::id() as i32;
    for pid in namespace.pids().unwrap_or_default().into_iter().filter(|pid| *pid != own) {
        // A process that ended meanwhile is what we want.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
}

fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()), source))
        }
        _ => Ok(()),
    }
}

/// The owner's pid, when that very process (not a later one of the same pid) lives.
fn living_owner(lease: &Path) -> Option<i32> {
    let owner = fs::read_to_string(lease.join("owner")).ok()?;
    let (pid, started) = owner.split_once(' ')?;
    let pid: i32 = pid.parse().ok()?;
    (start_time(pid)? == started.parse::<u64>().ok()?).then_some(pid)
}

/// Start time of a living process in clock ticks since boot, which with its pid names it for good: field 22 of
/// /proc/PID/stat, after the name's last ')'.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, after) = stat.rsplit_once(')')?;
    let dead = name.is_empty() || matches!(after.split_whitespace().next()?, "Z" | "X");
    if dead { None } else { after.split_whitespace().nth(19)?.parse().ok() }
}

/// Number of the PID namespace in which this process counts processes: elsewhere its pid is nobody's, or another's.
pub fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

fn directory(id: &str) -> PathBuf {
    Path::new(LEASES).join(id)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|source| Error::io(format!("write {}", path.display()), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_recognised_by_pid_and_start_time() {
        assert!(start_time(std::process::id() as i32).is_some());
        assert_eq!(start_time(i32::MAX), None);
    }

    #[test]
    fn the_control_socket_of_a_daemon_is_no_lease_to_sweep() {
        fs::create_dir_all(LEASES).unwrap();
        let path = Path::new(LEASES).join(format!("lease-test-{}.sock", std::process::id()));
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let swept = sweep();
        let is_left = path.exists();
        fs::remove_file(&path).unwrap();
        swept.unwrap();
        assert!(is_left);
    }
}
