//! Which TCP sockets use which congestion control, by sock_diag(7) over every network namespace of this host.

use crate::{
    Result,
    tcb::{
        Scope,
        diag::{ALL_STATES, Request, dump},
    },
};
use std::{
    collections::{BTreeSet, HashMap},
    fs,
    os::fd::AsRawFd as _,
    sync::Arc,
};

/// One socket's congestion control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Name in the kernel.
    pub cc: String,
    /// Inode of the socket; 0 when no process has it open any more.
    pub inode: u32,
}

/// Every TCP socket of every namespace this process can enter, listeners included. A socket in TIME_WAIT has no
/// congestion control.
pub fn all() -> Result<Vec<Use>> {
    let wanted = Request { states: ALL_STATES, details: false };
    let mut uses = Vec::new();
    for place in Scope::All.places()? {
        let Some(dump) = place.run(|| dump(wanted)) else { continue };
        dump?.each(&place.label, |one| {
            uses.extend(one.cc.map(|cc| Use { cc: cc.as_str().to_owned(), inode: one.inode }));
        })?;
    }
    Ok(uses)
}

/// Pid and name of a process by the inode of a socket it has open.
pub type Owners = HashMap<u32, (i32, Arc<str>)>;

/// Which processes have these sockets open. Walks /proc, so ask once.
pub fn owners(inodes: &BTreeSet<u32>) -> Owners {
    if inodes.is_empty() { Owners::new() } else { find_owners(|inode| inodes.contains(&inode)) }
}

/// Which processes have any socket open.
pub fn all_owners() -> Owners {
    find_owners(|_| true)
}

fn find_owners(wanted: impl Fn(u32) -> bool) -> Owners {
    let mut owners = Owners::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let mut name: Option<Arc<str>> = None;
        let read_name = || fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().into();
        for inode in open_sockets(pid).into_iter().filter(|inode| wanted(*inode)) {
            let command = name.get_or_insert_with(read_name);
            owners.entry(inode).or_insert_with(|| (pid, Arc::clone(command)));
        }
    }
    owners
}

/// Inodes of the sockets a process has open. Relative to the open directory: a whole path per descriptor would be
/// walked anew each time.
fn open_sockets(pid: i32) -> Vec<u32> {
    use nix::{dir::Dir, fcntl::OFlag, sys::stat::Mode};
    let path = format!("/proc/{pid}/fd");
    let Ok(mut directory) = Dir::open(path.as_str(), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())
    else {
        return Vec::new();
    };
    let names: Vec<_> = directory.iter().flatten().map(|entry| entry.file_name().to_owned()).collect();
    names.iter().filter_map(|name| socket_inode(&directory, name)).collect()
}

fn socket_inode(directory: &impl std::os::fd::AsFd, name: &std::ffi::CStr) -> Option<u32> {
    let mut target = [0u8; 32];
    // SAFETY: an open directory, a terminated name, and a buffer of the length given.
    let length = unsafe {
        libc::readlinkat(
            directory.as_fd().as_raw_fd(),
            name.as_ptr(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    let text = std::str::from_utf8(target.get(..usize::try_from(length).ok()?)?).ok()?;
    text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_socket_of_this_process_is_found_with_its_congestion_control_and_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        longfat_host::socket::set_cc(&listener, "cubic").unwrap();
        let inode = nix::sys::stat::fstat(&listener).unwrap().st_ino as u32;
        assert!(all().unwrap().contains(&Use { cc: "cubic".into(), inode }));
        let owner = &owners(&BTreeSet::from([inode]))[&inode];
        assert_eq!(owner.0, std::process::id() as i32);
    }
}
