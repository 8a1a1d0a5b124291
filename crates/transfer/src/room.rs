//! Room in a socket for a stream with timestamps. A timestamp says when its bytes were handed over; were they to wait
//! for room after that, the wait would count as the path's. And what waits unsent is kept within the bound the kernel
//! was given for it (TCP_NOTSENT_LOWAT): by itself it keeps to that only when it begins a packet buffer, and fills one
//! up to 64 KiB then.

use crate::{
    error::Result,
    plan::TransferPlan,
    sockets::{LOOK_UP, set_nonblocking, wait_for},
};
use longfat_host::{monotonic_ns, socket::option, sysctl};
use nix::poll::PollFlags;
use std::{io, net::TcpStream};

/// Least that is offered at once where nearly nothing may wait: a segment, not crumbs.
const LEAST_BYTES: u64 = 1448;

/// How a stream offers its bytes.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    /// Absent: there are no timestamps, or what may wait is not bounded; writes that block will do.
    socket: Option<&'a TcpStream>,
    /// Most to offer at once.
    pub(crate) most_bytes: u64,
}

impl<'a> Room<'a> {
    /// Room in a stream's socket, which no longer blocks if there are timestamps and a bound.
    pub(crate) fn of(socket: &'a TcpStream, plan: &TransferPlan) -> Result<Room<'a>> {
        let block_bytes = u64::from(plan.block_bytes);
        let Some(bound_bytes) = unsent_bound(socket).filter(|_| plan.echo_every_bytes.is_some()) else {
            return Ok(Room { socket: None, most_bytes: block_bytes });
        };
        set_nonblocking(socket, true)?;
        // A socket that has room has less than half of what may wait: as much again fits.
        let most_bytes = (bound_bytes / 2).max(LEAST_BYTES).min(block_bytes);
        Ok(Room { socket: Some(socket), most_bytes })
    }

    /// Writes what `write` has to offer at the time it is given: once there is room. An error of kind `WouldBlock`
    /// after [`LOOK_UP`].
    pub(crate) fn offer(&self, now_ns: u64, write: impl FnOnce(u64) -> io::Result<u64>) -> io::Result<u64> {
        let Some(socket) = self.socket else { return write(now_ns) };
        match wait_for(socket, PollFlags::POLLOUT, LOOK_UP) {
            Ok(true) => write(monotonic_ns()),
            Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Bytes that may wait unsent in a socket: its own bound, or that of its network namespace.
fn unsent_bound(socket: &TcpStream) -> Option<u64> {
    let own = option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).ok().filter(|bytes| *bytes != 0);
    let bytes = match own {
        // An unsigned number, as the kernel sees it.
        Some(bytes) => bytes as u32,
        None => sysctl::read("net.ipv4.tcp_notsent_lowat").ok()?.trim().parse().ok()?,
    };
    (bytes != u32::MAX).then_some(bytes.into())
}
