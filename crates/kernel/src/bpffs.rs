//! The BPF file system, where a loaded congestion control outlives its loader.

use crate::{Error, Result};
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

/// Mounts it unless it is, and makes the directory of pins.
pub fn prepare() -> Result<()> {
    if !mounted() {
        mount::mount(Some("bpf"), MOUNT_POINT, Some("bpf"), mount::MsFlags::empty(), None::<&str>)
            .map_err(|errno| Error::io(format!("mount the BPF file system at {MOUNT_POINT}"), errno))?;
    }
    let pins = Path::new(MOUNT_POINT).join("longfat/cc");
    fs::create_dir_all(&pins).map_err(|source| Error::io(format!("create {}", pins.display()), source))
}

fn mounted() -> bool {
    statfs::statfs(MOUNT_POINT).is_ok_and(|found| found.filesystem_type() == statfs::BPF_FS_MAGIC)
}
