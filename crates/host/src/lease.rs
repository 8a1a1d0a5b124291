//! A lease: everything a run makes outside its own process, and who answers for it.
//!
//! `/run/longfat/ID/owner` names the process (pid and start time); `/run/longfat/ID/namespaces/NAME` is written
//! *before* a namespace is made. Dropping the lease removes both. After a crash the owner is dead, and
//! [`sweep`] removes what is left, so that a second run starts clean.
//!
//! What a lease says is done by root: the directory is root's own, services that strangers speak to keep their sockets
//! elsewhere, no link is followed, and only namespaces of a lease's own name are deleted.

use crate::{Error, Namespace, Result, own::OwnDirectory};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, MetadataExt, OpenOptionsExt as _},
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
        let place = OwnDirectory::make(Path::new(LEASES))?;
        if let Some(lease) = place.within(id)? {
            if let Some(pid) = living_owner(&lease.path()) {
                return Err(Error::LeaseHeld { id: id.to_owned(), pid });
            }
            remove(&place, id)?;
        }
        let namespaces = directory(id).join("namespaces");
        make(&namespaces)?;
        let lease = Lease { id: id.to_owned() };
        let pid = std::process::id() as i32;
        write(&directory(id).join("owner"), &format!("{pid} {}", start_time(pid).unwrap_or(0)))?;
        Ok(lease)
    }

    /// Makes the namespace `lf-ID-NAME`.
    pub fn namespace(&self, name: &str) -> Result<Namespace> {
        let full = format!("{}{name}", prefix(&self.id));
        if Namespace::open(&full).is_ok() {
            return Err(Error::NamespaceExists(full));
        }
        write(&directory(&self.id).join("namespaces").join(&full), "")?;
        Namespace::create(&full)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Err(error) = OwnDirectory::open(Path::new(LEASES)).and_then(|place| remove(&place, &self.id)) {
            eprintln!("longfat: cleaning up '{}': {error}; 'longfat lab clean' tries again", self.id);
        }
    }
}

/// Removes everything left by owners that are dead; the ids of the leases removed.
pub fn sweep() -> Result<Vec<String>> {
    let _alone = lock()?;
    if !Path::new(LEASES).exists() {
        return Ok(Vec::new());
    }
    sweep_in(&OwnDirectory::make(Path::new(LEASES))?)
}

/// Removes what dead owners left. Files that belong to no lease are left alone, and named.
fn sweep_in(place: &OwnDirectory) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for id in place.names() {
        // Beside leases lie records of machines that were claimed, and sockets of relays of before they had a place.
        let is_directory = fs::symlink_metadata(place.path().join(&id)).is_ok_and(|found| found.is_dir());
        if !is_directory {
            continue;
        }
        match place.within(&id) {
            Ok(Some(lease)) if living_owner(&lease.path()).is_none() => {
                remove(place, &id)?;
                removed.push(id);
            }
            Ok(_) => {}
            Err(error) => eprintln!("longfat: '{id}' is no lease: {error}"),
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
fn remove(place: &OwnDirectory, id: &str) -> Result<()> {
    let Some(lease) = place.within(id)? else { return Ok(()) };
    let namespaces = lease.within("namespaces")?.map(|namespaces| namespaces.names()).unwrap_or_default();
    for name in namespaces.iter().filter(|name| name.starts_with(&prefix(id))) {
        if let Ok(namespace) = Namespace::open(name) {
            kill_all(&namespace);
        }
        Namespace::delete(name)?;
    }
    remove_dir(&place.path().join(id))
}

/// What the names of a lease's namespaces begin with.
fn prefix(id: &str) -> String {
    format!("lf-{id}-")
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

/// The process that started a living one, or that took it over: field 4 of /proc/PID/stat. 0 for the first of all.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process is on its way out: it has begun to exit, or is being killed.
pub fn is_dying(pid: i32) -> bool {
    /// The process is about to end (`include/linux/sched.h`).
    const PF_EXITING: u64 = 4;
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let (stat, status) = (read("stat"), read("status"));
    // Field 9, after the name's last ')'.
    let flags =
        stat.rsplit_once(')').and_then(|(_, after)| after.split_whitespace().nth(6)?.parse::<u64>().ok());
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
        || status.lines().filter_map(pending).any(|set| set & KILLED != 0)
}

/// Number of the PID namespace in which this process counts processes: elsewhere its pid is nobody's, or another's.
pub fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

fn directory(id: &str) -> PathBuf {
    Path::new(LEASES).join(id)
}

/// Makes a directory and those above it, which nobody else may write, whatever the umask leaves to others.
fn make(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|source| Error::io(format!("create {}", path.display()), source))
}

/// Writes a file that nobody else may write either.
fn write(path: &Path, text: &str) -> Result<()> {
    let opened = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o644).open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| Error::io(format!("write {}", path.display()), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_recognised_by_pid_and_start_time() {
        assert!(start_time(std::process::id() as i32).is_some());
        assert_eq!(start_time(i32::MAX), None);
        assert!(!is_dying(std::process::id() as i32) && !is_dying(i32::MAX));
    }

    #[test]
    fn a_lease_made_under_any_umask_is_its_owners_alone_to_write() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().to_owned();
        // A thread of its own: with its own file system attributes, its umask is nobody else's.
        let made = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
            nix::sys::stat::umask(nix::sys::stat::Mode::empty());
            make(&path.join("x/namespaces")).unwrap();
            write(&path.join("x/owner"), "1 1").unwrap();
        });
        made.join().unwrap();
        let lease = OwnDirectory::open(place.path()).unwrap().within("x").unwrap().unwrap();
        assert!(lease.within("namespaces").unwrap().is_some());
        assert_eq!(fs::metadata(lease.path().join("owner")).unwrap().mode() & 0o022, 0);
    }

    /// A namespace and a process in it, neither of which is any lease's.
    fn foreign(name: &str) -> std::process::Child {
        let namespace = Namespace::create(name).unwrap();
        let mut sleep = namespace.command("sleep");
        sleep.arg("60").spawn().unwrap()
    }

    #[test]
    fn planted_links_names_and_leases_of_others_lead_to_nobodys_namespace() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: namespaces need root");
            return;
        }
        let name = format!("foreign-{}", std::process::id());
        let mut process = foreign(&name);
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for lease in ["linked", "named", "others"] {
            fs::create_dir_all(path(lease)).unwrap();
        }
        // To every namespace of the machine.
        std::os::unix::fs::symlink("/run/netns", path("linked/namespaces")).unwrap();
        for lease in ["named", "others"] {
            fs::create_dir_all(path(lease).join("namespaces")).unwrap();
            fs::write(path(lease).join("namespaces").join(&name), "").unwrap();
        }
        std::os::unix::fs::chown(path("others"), Some(65534), None).unwrap();
        std::os::unix::fs::symlink(path("named"), path("lease-link")).unwrap();
        for lease in ["named", "others"] {
            let only = OwnDirectory::open(place.path()).unwrap();
            let _ = remove(&only, lease);
        }
        let swept = sweep_in(&OwnDirectory::open(place.path()).unwrap());
        let stands = Namespace::open(&name).is_ok();
        let lives = process.try_wait().unwrap().is_none();
        process.kill().unwrap();
        process.wait().unwrap();
        Namespace::delete(&name).unwrap();
        assert!(stands && lives, "{swept:?}");
        assert!(path("others").exists(), "what is another user's is left alone");
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
