//! Available bandwidth, as connections under a measuring congestion control find it: read from their socket storage.
//!
//! A socket is reached by a copy of its descriptor (pidfd_getfd), which is closed at once: while one is open, the
//! owner's close would not be noticed by the peer.

use crate::{Result, object::refused, sockets};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, query::MapInfoIter};
use longfat_cc::{Algorithm, Avail, STATE_BYTES};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd},
};

/// The map of states, in every object of ours that measures (`cc/bpf/struct_ops.h`).
const STATES_MAP: &str = "lf_states";

/// The states of every measuring congestion control that was loaded when it was opened.
#[derive(Debug)]
pub struct Meters {
    maps: Vec<MapHandle>,
}

impl Meters {
    /// Finds them. None is no error: nothing measures then.
    pub fn open() -> Result<Meters> {
        let ids = MapInfoIter::default().filter(|info| {
            info.ty == MapType::SkStorage && info.value_size == STATE_BYTES as u32 && info.name == STATES_MAP
        });
        // One may go between the listing and the opening: it measures no more.
        let has_gone = |map: &libbpf_rs::Result<MapHandle>| {
            map.as_ref().is_err_and(|source| source.kind() == libbpf_rs::ErrorKind::NotFound)
        };
        let maps = ids.map(|info| MapHandle::from_map_id(info.id)).filter(|map| !has_gone(map));
        let maps: libbpf_rs::Result<Vec<_>> = maps.collect();
        Ok(Meters {
            maps: maps.map_err(|source| refused("open the states of connections that measure", source))?,
        })
    }

    /// What a socket has found; `None` when it does not measure, or has found nothing yet.
    pub fn read(&self, socket: BorrowedFd<'_>) -> Option<Avail> {
        let key = socket.as_raw_fd().to_ne_bytes();
        let states = self.maps.iter().filter_map(|map| map.lookup(&key, MapFlags::ANY).ok().flatten());
        newest(states.filter_map(|state| Avail::read(&state)))
    }

    /// What a process's socket has found.
    pub(crate) fn read_of(&self, pid: i32, inode: u32) -> Option<Avail> {
        self.read(sockets::descriptor_of(pid, inode)?.as_fd())
    }
}

/// A socket that changed from one measuring congestion control to another has storage of both.
fn newest(found: impl Iterator<Item = Avail>) -> Option<Avail> {
    found.filter(|found| found.at_us > 0).max_by_key(|found| found.at_us)
}

/// A connection that measures.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Process that has it open.
    pub pid: i32,
    /// Program that owns the connection.
    pub program: String,
    /// Congestion control.
    pub cc: String,
    /// Our end.
    pub local: SocketAddr,
    /// The other.
    pub peer: SocketAddr,
    /// What it has found; `None`: nothing yet.
    pub found: Option<Avail>,
}

/// Whether connections under a congestion control of that name measure.
pub(crate) fn measures(cc: &str) -> bool {
    Algorithm::is_our_name(cc) && Algorithm::find(cc).is_ok_and(|algorithm| algorithm.measures())
}

/// Every connection that measures, of every network namespace, or those of one process.
pub fn measured(pid: Option<i32>) -> Result<Vec<Measured>> {
    let uses = sockets::all()?.into_iter().filter(|socket| socket.inode > 0 && measures(&socket.cc));
    let ccs: BTreeMap<u32, String> = uses.map(|socket| (socket.inode, socket.cc)).collect();
    let owners = sockets::owners(&ccs.keys().copied().collect::<BTreeSet<_>>());
    let meters = Meters::open()?;
    let mut found: Vec<Measured> = owners
        .into_iter()
        .filter(|(_, (owner, _))| pid.is_none_or(|pid| pid == *owner))
        .filter_map(|(inode, (owner, program))| {
            let socket = sockets::descriptor_of(owner, inode)?;
            let (local, peer) = ends(&socket)?;
            let found = meters.read(socket.as_fd());
            Some(Measured {
                pid: owner,
                program: program.to_string(),
                cc: ccs[&inode].clone(),
                local,
                peer,
                found,
            })
        })
        .collect();
    found.sort_by_key(|measured| (measured.pid, measured.peer, measured.local));
    Ok(found)
}

/// Both addresses; `None` when it is not connected.
fn ends(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let local: SockaddrStorage = getsockname(socket.as_raw_fd()).ok()?;
    let peer: SockaddrStorage = getpeername(socket.as_raw_fd()).ok()?;
    Some((address(&local)?, address(&peer)?))
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::new(IpAddr::V4(v4.ip()), v4.port()));
    let v6 =
        || storage.as_sockaddr_in6().map(|v6| SocketAddr::new(IpAddr::V6(v6.ip()).to_canonical(), v6.port()));
    v4.or_else(v6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_congestion_controls_that_a_socket_had_the_one_that_measured_last_counts() {
        let at = |at_us, avail_kbps| Avail { at_us, avail_kbps, ..Avail::default() };
        assert_eq!(newest([at(5, 1), at(9, 2), at(7, 3)].into_iter()), Some(at(9, 2)));
        assert_eq!(newest([at(0, 1), at(3, 2)].into_iter()), Some(at(3, 2)));
        assert_eq!(newest([at(0, 1)].into_iter()), None);
    }
}
