//! A cgroup per run of a program, removed with what is left in it.
//!
//! Its name holds the owner's pid and start time, so that a later run recognises what a killed one left.

use crate::{Error, Result, object::refused};
use libbpf_rs::{Link, ProgramMut};
use longfat_host::lease::start_time;
use nix::{sys::signal, unistd::Pid};
use std::{
    fs::{self, File},
    io::Write as _,
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const PREFIX: &str = "longfat-exec-";

/// How long processes of a removed cgroup may take to die after SIGKILL.
const DEATH_LIMIT: Duration = Duration::from_secs(5);

/// Where cgroup2 is mounted.
pub fn mount_point() -> Option<PathBuf> {
    parse_mounts(&fs::read_to_string("/proc/mounts").ok()?)
}

fn parse_mounts(mounts: &str) -> Option<PathBuf> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut found = fields.filter(|fields| fields.get(2) == Some(&"cgroup2"));
    found.find_map(|fields| fields.get(1).map(PathBuf::from))
}

/// Removes the cgroups of processes that were killed.
pub fn remove_left() {
    mount_point().iter().for_each(|root| sweep(root));
}

/// A cgroup of this process; removed on drop, with the processes in it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes it, and removes those whose owners died.
    pub fn create() -> Result<Cgroup> {
        let root = mount_point().ok_or_else(|| {
            Error::io(
                "find a cgroup2 hierarchy in /proc/mounts",
                std::io::Error::from(std::io::ErrorKind::NotFound),
            )
        })?;
        sweep(&root);
        let pid = std::process::id() as i32;
        let name = |serial: u32| format!("{PREFIX}{pid}-{}-{serial}", start_time(pid).unwrap_or(0));
        let mut serial = 0;
        loop {
            let path = root.join(name(serial));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Cgroup { path }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => serial += 1,
                Err(source) => {
                    return Err(Error::io(format!("create the cgroup {}", path.display()), source));
                }
            }
        }
    }

    /// Has a program start inside.
    ///
    /// # Errors
    /// The cgroup is gone.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        let procs = self.path.join("cgroup.procs");
        let file = File::options()
            .write(true)
            .open(&procs)
            .map_err(|source| Error::io(format!("open {}", procs.display()), source))?;
        // SAFETY: between fork and exec only write is called, which is async-signal-safe; the descriptor stays open
        // because the closure owns it.
        unsafe {
            command.pre_exec(move || (&file).write_all(b"0"));
        }
        Ok(())
    }

    /// Attaches programs to what is in it, for as long as their links live.
    pub fn attach<'a>(&self, programs: impl Iterator<Item = ProgramMut<'a>>) -> Result<Vec<Link>> {
        let directory = File::open(&self.path)
            .map_err(|source| Error::io(format!("open the cgroup {}", self.path.display()), source))?;
        let links: libbpf_rs::Result<Vec<Link>> =
            programs.map(|program| program.attach_cgroup(directory.as_raw_fd())).collect();
        links.map_err(|source| refused("attach to the program's cgroup", source))
    }

    /// Processes in it.
    pub fn pids(&self) -> Vec<i32> {
        pids(&self.path)
    }

    /// Sends a signal to every process in it.
    pub fn signal(&self, which: signal::Signal) {
        for pid in self.pids() {
            // A process that ended meanwhile is what we want.
            let _ = signal::kill(Pid::from_raw(pid), which);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("longfat: {error}; 'longfat lab clean' tries again");
        }
    }
}

fn pids(cgroup: &Path) -> Vec<i32> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Kills what is in it and removes it.
fn remove(cgroup: &Path) -> Result<()> {
    let deadline = Instant::now() + DEATH_LIMIT;
    loop {
        let left = pids(cgroup);
        if !left.is_empty() {
            // Kernels before 5.14 have no cgroup.kill.
            if fs::write(cgroup.join("cgroup.kill"), "1").is_err() {
                left.iter().for_each(|pid| {
                    let _ = signal::kill(Pid::from_raw(*pid), signal::Signal::SIGKILL);
                });
            }
        }
        match fs::remove_dir(cgroup) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // Busy: the dead are not gone yet.
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(source) => return Err(Error::io(format!("remove the cgroup {}", cgroup.display()), source)),
        }
    }
}

/// Removes the cgroups of dead owners. One that will not go is left for the next time.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_str()
            .and_then(owner)
            .is_some_and(|(pid, started)| start_time(pid) != Some(started))
        {
            let _ = remove(&entry.path());
        }
    }
}

/// Pid and start time in a cgroup's name.
fn owner(name: &str) -> Option<(i32, u64)> {
    let mut fields = name.strip_prefix(PREFIX)?.split('-');
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_wherever_it_is_mounted() {
        let hybrid =
            "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(parse_mounts(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(parse_mounts("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn an_owner_is_read_from_our_names_only() {
        assert_eq!(owner("longfat-exec-12-3456-0"), Some((12, 3456)));
        assert_eq!(owner("system.slice"), None);
        assert_eq!(owner("longfat-exec-x-1"), None);
    }
}
