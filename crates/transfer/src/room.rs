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
use std::{io, net::TcpStream, time::Duration};

/// Least that is offered at once where nearly nothing may wait: a segment, not crumbs.
const LEAST_BYTES: u64 = 1448;

/// How a stream offers its bytes.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    socket: &'a TcpStream,
    /// Whether room is asked for before every write: there are timestamps, and what may wait is bounded. Otherwise
    /// writes that block will do.
    always_asks: bool,
    /// The last write found no room for [`LOOK_UP`]. The next would take the little that has become free by then, and
    /// so the stream would write where one that just blocks waits until a third of its buffer is free.
    is_full: bool,
    /// Most to offer at once.
    pub(crate) most_bytes: u64,
}

impl<'a> Room<'a> {
    /// Room in a stream's socket, which no longer blocks if there are timestamps and a bound.
    pub(crate) fn of(socket: &'a TcpStream, plan: &TransferPlan) -> Result<Room<'a>> {
        let block_bytes = u64::from(plan.block_bytes);
        let Some(bound_bytes) = unsent_bound(socket).filter(|_| plan.echo_every_bytes.is_some()) else {
            return Ok(Room { socket, always_asks: false, is_full: false, most_bytes: block_bytes });
        };
        set_nonblocking(socket, true)?;
        // A socket that has room has less than half of what may wait: as much again fits.
        let most_bytes = (bound_bytes / 2).max(LEAST_BYTES).min(block_bytes);
        Ok(Room { socket, always_asks: true, is_full: false, most_bytes })
    }

    /// Writes `length` bytes that `write` has to offer at the time it is given: once there is room. An error of kind
    /// `WouldBlock` after [`LOOK_UP`].
    pub(crate) fn offer(
        &mut self,
        now_ns: u64,
        length: u64,
        write: impl FnOnce(u64) -> io::Result<u64>,
    ) -> io::Result<u64> {
        let mut at_ns = now_ns;
        if self.always_asks || self.is_full {
            if !wait_for(self.socket, PollFlags::POLLOUT, LOOK_UP).map_err(io::Error::other)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            at_ns = monotonic_ns();
        }
        let taken = write(at_ns);
        self.is_full = match &taken {
            Ok(count) => *count < length && Duration::from_nanos(monotonic_ns() - at_ns) >= LOOK_UP,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        taken
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::bound_waits;
    use longfat_host::socket::set_option;
    use std::{
        io::{Read, Write},
        net::TcpListener,
        os::fd::AsRawFd,
    };

    /// Bytes that are not acknowledged.
    fn outstanding(socket: &TcpStream) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: SIOCOUTQ writes an int.
        assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) }, 0);
        bytes as u64
    }

    #[test]
    fn a_stream_that_found_no_room_writes_again_when_a_third_of_its_buffer_is_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        set_option(&sender, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20).unwrap();
        set_option(&receiver, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 18).unwrap();
        bound_waits(&sender).unwrap();
        let mut room = Room { socket: &sender, always_asks: false, is_full: false, most_bytes: 65_536 };
        let block = vec![7; 65_536];
        let mut taken_bytes = 0;
        let offer = |room: &mut Room<'_>| {
            room.offer(monotonic_ns(), 65_536, |_| (&sender).write(&block).map(|count| count as u64))
        };
        while let Ok(count) = offer(&mut room) {
            taken_bytes += count;
        }
        let full_bytes = outstanding(&sender);
        let mut some = vec![0; 262_144];
        receiver.read_exact(&mut some).unwrap();
        let deadline_ns = monotonic_ns() + 10_000_000_000;
        while outstanding(&sender) == full_bytes && monotonic_ns() < deadline_ns {
            std::thread::sleep(Duration::from_millis(1));
        }
        let freed_bytes = full_bytes - outstanding(&sender);
        assert!(freed_bytes > 0 && freed_bytes * 3 < full_bytes, "{freed_bytes} of {full_bytes}");
        assert!(offer(&mut room).is_err(), "{freed_bytes} of {full_bytes} bytes are free: too few");
        receiver.read_exact(&mut vec![0; taken_bytes as usize - some.len()]).unwrap();
        assert!(offer(&mut room).is_ok());
    }
}
