//! What a program that ran under a congestion control may have left on this host.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// Cgroups made by the process `pid`.
pub fn cgroups(pid: u32) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(" cgroup2 ")).expect("cgroup2 is mounted");
    let entries = std::fs::read_dir(line.split(' ').nth(1).unwrap()).unwrap().flatten();
    let ours = format!("longfat-exec-{pid}-");
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(&ours)).collect()
}

/// Whether a process exists and is more than an entry that waits to be collected.
pub fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

pub fn within_20_s(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
