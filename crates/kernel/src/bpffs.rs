//! The BPF file system, where a loaded congestion control outlives its loader.

use crate::{Error, Result};
use longfat_host::{lease, own::OwnDirectory};
use nix::{mount, sys::statfs};
use std::{
    fs,
    path::{Path, PathBuf},
};

const MOUNT_POINT: &str = "/sys/fs/bpf";

/// Where `kernel_name` is or would be pinned.
pub fn pin_path(kernel_name: &str) -> PathBuf {
    Path::new(MOUNT_POINT).join("longfat/cc").join(kernel_name)
}

/// Mounts it unless it is, and makes the directory of pins: root's alone to write, as everything above it. The kernel's
/// own mode lets everybody make directories, and whoever owned ours could take congestion controls away.
pub fn prepare() -> Result<()> {
    if !mounted() {
        mount::mount(Some("bpf"), MOUNT_POINT, Some("bpf"), mount::MsFlags::empty(), Some("mode=0755"))
            .map_err(|errno| Error::io(format!("mount the BPF file system at {MOUNT_POINT}"), errno))?;
    }
    for pins in ["longfat", "longfat/cc"].map(|name| Path::new(MOUNT_POINT).join(name)) {
        OwnDirectory::make(&pins)?;
    }
    Ok(())
}

/// Refuses where what is pinned would be seen by this process alone, and be gone with it: with a mount namespace that
/// is not that of those who started it, and no BPF file system in it.
pub fn refuse_own_mounts() -> Result<()> {
    if hides_pins() { Err(Error::OwnMounts) } else { Ok(()) }
}

/// Whether this process does not see what its host has pinned: see [`refuse_own_mounts`].
pub fn hides_pins() -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let own = of("thread-self");
    let ancestors = std::iter::successors(Some(std::process::id() as i32), |pid| lease::parent(*pid));
    // Those of other users, and PID 1, may not be looked at.
    let is_apart = ancestors.filter_map(|pid| of(&pid.to_string())).any(|theirs| Some(theirs) != own);
    is_apart && !mounted()
}

fn mounted() -> bool {
    statfs::statfs(MOUNT_POINT).is_ok_and(|found| found.filesystem_type() == statfs::BPF_FS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use std::os::unix::fs::{PermissionsExt as _, chown};

    /// In a mount namespace of its own, with a BPF file system that this machine's others do not see.
    fn apart(work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let inside = || {
                unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
                let private = mount::MsFlags::MS_REC | mount::MsFlags::MS_PRIVATE;
                mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
                // What is mounted there stays below, where it is not seen.
                mount::mount(Some("t"), MOUNT_POINT, Some("tmpfs"), mount::MsFlags::empty(), None::<&str>)
                    .unwrap();
                work();
            };
            scope.spawn(inside).join().unwrap();
        });
    }

    #[test]
    fn pins_lie_where_root_alone_writes() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: a BPF file system of its own needs root");
            return;
        }
        apart(|| {
            assert!(matches!(refuse_own_mounts(), Err(Error::OwnMounts)));
            prepare().unwrap();
            refuse_own_mounts().unwrap();
            let open_to_others = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o022 != 0;
            let places = ["", "longfat", "longfat/cc"].map(|name| Path::new(MOUNT_POINT).join(name));
            assert!(!places.iter().any(|path| open_to_others(path)));
            // Somebody was quicker where the file system was mounted by others.
            chown(Path::new(MOUNT_POINT).join("longfat"), Some(65534), None).unwrap();
            assert!(prepare().unwrap_err().to_string().contains("65534"));
        });
    }
}
