//! Which TCP sockets use which congestion control, by sock_diag(7) over every network namespace of this host.

use crate::{Error, Result};
use nix::sys::socket;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::{fd::AsRawFd, unix::fs::MetadataExt},
};

/// One socket's congestion control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Name in the kernel.
    pub cc: String,
    /// Inode of the socket; 0 when no process has it open any more.
    pub inode: u32,
}

/// Every TCP socket of every namespace this process can enter, listeners included.
pub fn all() -> Result<Vec<Use>> {
    let mut uses = Vec::new();
    for namespace in namespaces() {
        // A namespace of its own thread: setns would move the caller.
        let inside = std::thread::scope(|scope| scope.spawn(|| enter_and_dump(&namespace)).join());
        uses.extend(inside.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
    }
    Ok(uses)
}

/// One open file per distinct network namespace: our own, those with a process, those with a name.
fn namespaces() -> Vec<File> {
    let mut paths = vec!["/proc/self/ns/net".into()];
    let entries = |path| fs::read_dir(path).into_iter().flatten().flatten();
    paths.extend(entries("/proc").map(|entry| entry.path().join("ns/net")));
    paths.extend(entries("/run/netns").map(|entry| entry.path()));
    let mut seen = BTreeSet::new();
    let files = paths.into_iter().filter_map(|path| File::open(path).ok());
    files.filter(|file| file.metadata().is_ok_and(|metadata| seen.insert(metadata.ino()))).collect()
}

fn enter_and_dump(namespace: &File) -> Result<Vec<Use>> {
    // An unprivileged process may not enter even its own; it is there already.
    let entered = nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET);
    let own = File::open("/proc/self/ns/net").and_then(|file| file.metadata()).map(|metadata| metadata.ino());
    if entered.is_err() && own.ok() != namespace.metadata().map(|metadata| metadata.ino()).ok() {
        return Ok(Vec::new());
    }
    let mut uses = dump(libc::AF_INET as u8)?;
    uses.extend(dump(libc::AF_INET6 as u8)?);
    Ok(uses)
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_CONG: u16 = 4;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const MESSAGE_BYTES: usize = 72;
const INODE_OFFSET: usize = 68;

/// `nlmsghdr` and `inet_diag_req_v2`: all states, with the congestion control's name.
fn request(family: u8) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    bytes[16] = family;
    bytes[17] = libc::IPPROTO_TCP as u8;
    bytes[18] = 1 << (INET_DIAG_CONG - 1);
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes
}

fn dump(family: u8) -> Result<Vec<Use>> {
    let failed = |errno: nix::Error| Error::io("list TCP sockets (sock_diag)", errno);
    let netlink = socket::socket(
        socket::AddressFamily::Netlink,
        socket::SockType::Raw,
        socket::SockFlag::SOCK_CLOEXEC,
        socket::SockProtocol::NetlinkSockDiag,
    )
    .map_err(failed)?;
    socket::send(netlink.as_raw_fd(), &request(family), socket::MsgFlags::empty()).map_err(failed)?;
    let (mut uses, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let length =
            socket::recv(netlink.as_raw_fd(), &mut buffer, socket::MsgFlags::empty()).map_err(failed)?;
        if !read_messages(&buffer[..length], &mut uses) {
            return Ok(uses);
        }
    }
}

/// Reads one datagram of messages; whether more follow.
fn read_messages(mut bytes: &[u8], uses: &mut Vec<Use>) -> bool {
    while let Some(length) = u32_at(bytes, 0).map(|length| length as usize) {
        if length < HEADER_BYTES || length > bytes.len() {
            return false;
        }
        if u16_at(bytes, 4) != Some(SOCK_DIAG_BY_FAMILY) {
            // NLMSG_DONE or NLMSG_ERROR.
            return false;
        }
        uses.extend(read_socket(&bytes[HEADER_BYTES..length]));
        bytes = bytes.get(align4(length)..).unwrap_or_default();
    }
    true
}

/// `inet_diag_msg` and its attributes. A socket in TIME_WAIT has no congestion control.
fn read_socket(message: &[u8]) -> Option<Use> {
    let inode = u32_at(message, INODE_OFFSET)?;
    let mut attributes = message.get(MESSAGE_BYTES..)?;
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length)?;
        if u16_at(attributes, 2)? == INET_DIAG_CONG {
            let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(Use { cc: String::from_utf8_lossy(name).into_owned(), inode });
        }
        attributes = attributes.get(align4(length)..)?;
    }
}

fn align4(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// Which processes have these sockets open: pid and name by inode. Walks /proc, so ask once.
pub fn owners(inodes: &BTreeSet<u32>) -> BTreeMap<u32, (i32, String)> {
    let mut owners = BTreeMap::new();
    if inodes.is_empty() {
        return owners;
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let name = || fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
        for inode in open_sockets(&entry.path().join("fd")).filter(|inode| inodes.contains(inode)) {
            owners.entry(inode).or_insert_with(|| (pid, name()));
        }
    }
    owners
}

fn open_sockets(descriptors: &std::path::Path) -> impl Iterator<Item = u32> + use<> {
    let links = fs::read_dir(descriptors).into_iter().flatten().flatten();
    links.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
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

    proptest! {
        #[test]
        fn any_datagram_is_read_or_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            read_messages(&bytes, &mut Vec::new());
        }

        #[test]
        fn a_cut_or_disturbed_message_is_read_or_refused_without_panic(
            at in 0usize..120, value in any::<u8>(), length in 0usize..120,
        ) {
            let mut bytes = vec![0u8; 120];
            bytes[0..4].copy_from_slice(&120u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            bytes[88..92].copy_from_slice(&[10, 0, 4, 0]);
            bytes[92..98].copy_from_slice(b"cubic\0");
            let mut uses = Vec::new();
            read_messages(&bytes, &mut uses);
            prop_assert_eq!(uses, [Use { cc: "cubic".into(), inode: 0 }]);
            bytes[at] = value;
            read_messages(&bytes[..length], &mut Vec::new());
        }
    }
}
