//! A packet socket on one interface: every incoming frame in a memory-mapped ring (TPACKET_V2: one status word per
//! frame, so a frame is seen when it arrives, where the blocks of V3 wait for a timer), frames out by sendmmsg(2).

use super::{DriverError, frame::VNET_BYTES};
use longfat_host::monotonic_ns;
use std::{
    ffi::{CString, c_int, c_void},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering, fence},
};

const RING_BYTES: usize = 32 << 20;
const MAX_RING_FRAMES: usize = 8192;
const SEND_BUFFER_BYTES: c_int = 64 << 20;

/// An interface opened for taking and sending whole frames.
#[derive(Debug)]
pub struct PacketSocket {
    interface: String,
    fd: OwnedFd,
    ring: Ring,
    tx_dropped_before: u64,
}

/// The receive ring, mapped for the life of the socket.
#[derive(Debug)]
struct Ring {
    memory: *mut u8,
    bytes: usize,
    frame_bytes: usize,
    frames: usize,
    next: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing refers to the thread that made it.
unsafe impl Send for Ring {}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `memory` and `bytes` are the mapping made in `Ring::map`, unmapped once.
        unsafe { libc::munmap(self.memory.cast(), self.bytes) };
    }
}

/// A frame in the ring.
#[derive(Debug)]
pub struct Received<'a> {
    /// vnet header and frame, as far as captured.
    pub bytes: &'a [u8],
    /// Length of the frame on the interface.
    pub frame_bytes: usize,
    /// Kernel's arrival time, CLOCK_REALTIME.
    pub realtime_ns: u64,
    /// Whether the kernel took a VLAN tag out of it.
    pub tagged: bool,
}

impl PacketSocket {
    /// Opens an interface of the calling thread's namespace, promiscuous, for frames up to `mtu_bytes`.
    pub fn open(interface: &str, mtu_bytes: u32) -> Result<PacketSocket, DriverError> {
        let fail = |what: &str| {
            let what = format!("{what} on interface '{interface}'");
            move |source| DriverError::Io { what, source }
        };
        let index = interface_index(interface).map_err(fail("find an index"))?;
        // SAFETY: plain socket(2); the descriptor is owned at once.
        let fd = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let fd = libc::socket(libc::AF_PACKET, kind, 0);
            if fd < 0 {
                return Err(fail("open a packet socket")(io::Error::last_os_error()));
            }
            OwnedFd::from_raw_fd(fd)
        };
        configure(&fd, index).map_err(fail("configure the packet socket"))?;
        let ring = Ring::map(&fd, mtu_bytes).map_err(fail("map the receive ring"))?;
        bind(&fd, index).map_err(fail("bind the packet socket"))?;
        let tx_dropped_before = tx_dropped(interface).map_err(fail("read statistics"))?;
        Ok(PacketSocket { interface: interface.to_owned(), fd, ring, tx_dropped_before })
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The next frame, if one has arrived; `take` must copy what it wants.
    pub fn receive<T>(&mut self, take: impl FnOnce(Received<'_>) -> T) -> Option<T> {
        self.ring.receive(take)
    }

    /// Arrival times (CLOCK_REALTIME) of the frames that wait.
    pub fn waiting_since_ns(&self) -> impl Iterator<Item = u64> {
        self.ring.waiting_since_ns()
    }

    /// Sends messages of `[vnet header, frame parts…]`; how many were taken, or why the first was not.
    pub fn send(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        // SAFETY: the caller's messages point to iovecs and buffers that live across the call.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as u32,
                libc::MSG_DONTWAIT as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Frames the full ring refused since the last call.
    pub fn ring_dropped(&self) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: `stats` is `length` bytes of plain integers to write to.
        let result = unsafe {
            let (to, length) = ((&raw mut stats).cast::<c_void>(), &raw mut length);
            libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, to, length)
        };
        if result == 0 { u64::from(stats.tp_drops) } else { 0 }
    }

    /// Frames the interface dropped on sending since it was opened (a full backlog of the peer).
    pub fn tx_dropped(&self) -> u64 {
        tx_dropped(&self.interface).map_or(0, |now| now.saturating_sub(self.tx_dropped_before))
    }

    /// What ppoll(2) is to watch.
    pub fn poll_fd(&self) -> libc::pollfd {
        libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
    }

    /// The error a poll has announced, such as a vanished interface.
    pub fn pending_error(&self) -> io::Error {
        let code = longfat_host::socket::option(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
        io::Error::from_raw_os_error(if code == 0 { libc::ENETDOWN } else { code })
    }
}

impl Ring {
    fn map(fd: &OwnedFd, mtu_bytes: u32) -> io::Result<Ring> {
        // Status, addresses, alignment and the vnet header come before the frame.
        let needed = libc::TPACKET2_HDRLEN + 32 + VNET_BYTES + super::max_frame_bytes(mtu_bytes);
        let frame_bytes = needed.next_power_of_two().max(2048);
        let frames = (RING_BYTES / frame_bytes).min(MAX_RING_FRAMES);
        // Blocks of one frame or one page, whichever is larger: frames never straddle a block.
        let block_bytes = frame_bytes.max(4096);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as u32,
            tp_block_nr: (frames * frame_bytes / block_bytes) as u32,
            tp_frame_size: frame_bytes as u32,
            tp_frame_nr: frames as u32,
        };
        set_struct(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let bytes = frames * frame_bytes;
        // SAFETY: a fresh shared mapping of the ring just made; checked for failure.
        let memory = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring { memory: memory.cast(), bytes, frame_bytes, frames, next: 0 })
    }

    /// A frame and its status word.
    fn frame(&self, index: usize) -> (*mut u8, &AtomicU32) {
        debug_assert!(index < self.frames);
        // SAFETY: `index` < `frames`, so the frame lies inside the mapping; the kernel aligns frames to 16 bytes; the
        // status word is shared with the kernel and therefore atomic.
        unsafe {
            let start = self.memory.add(index * self.frame_bytes);
            (start, AtomicU32::from_ptr(start.cast::<u32>()))
        }
    }

    fn waiting_since_ns(&self) -> impl Iterator<Item = u64> {
        let frames = (0..self.frames).map(|ahead| self.frame((self.next + ahead) % self.frames));
        let waiting =
            frames.take_while(|(_, status)| status.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0);
        waiting.map(|(start, _)| {
            // SAFETY: the status says the frame is ours; the kernel wrote a header at its start.
            let header = unsafe { &*start.cast::<libc::tpacket2_hdr>() };
            realtime_ns(header)
        })
    }

    fn receive<T>(&mut self, take: impl FnOnce(Received<'_>) -> T) -> Option<T> {
        let (start, status) = self.frame(self.next);
        let flags = status.load(Ordering::Acquire);
        if flags & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the status says the frame is ours; the kernel wrote a header and `tp_snaplen` bytes at `tp_mac`,
        // the vnet header in front of them, all inside the frame (checked below against a broken length).
        let taken = unsafe {
            let header = &*start.cast::<libc::tpacket2_hdr>();
            let mac = usize::from(header.tp_mac);
            let end = (mac + header.tp_snaplen as usize).min(self.frame_bytes);
            let from = mac.saturating_sub(VNET_BYTES).min(end);
            take(Received {
                bytes: std::slice::from_raw_parts(start.add(from), end - from),
                frame_bytes: header.tp_len as usize,
                realtime_ns: realtime_ns(header),
                tagged: flags & libc::TP_STATUS_VLAN_VALID != 0,
            })
        };
        fence(Ordering::Release);
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.frames;
        Some(taken)
    }
}

fn realtime_ns(header: &libc::tpacket2_hdr) -> u64 {
    u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec)
}

fn configure(fd: &OwnedFd, index: c_int) -> io::Result<()> {
    use longfat_host::socket::set_option;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES))?;
    let membership = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_struct(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

fn bind(fd: &OwnedFd, index: c_int) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_ll is valid; the kernel reads as many bytes as it is told.
    let result = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_struct<T>(fd: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is a plain kernel structure of the length given.
    let result = unsafe {
        let (from, length) = ((&raw const *value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
        libc::setsockopt(fd.as_raw_fd(), level, option, from, length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn interface_index(interface: &str) -> io::Result<c_int> {
    let name = CString::new(interface)?;
    // SAFETY: `name` is a terminated string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 { Err(io::Error::last_os_error()) } else { Ok(index as c_int) }
}

/// Frames dropped on sending by an interface of the calling thread's namespace. (/sys shows the namespace it was
/// mounted in; /proc/thread-self shows the caller's.)
pub fn tx_dropped(interface: &str) -> io::Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    // Eight receive columns; then bytes, packets, errors, drops of sending.
    let dropped = line.and_then(|line| line.split_whitespace().nth(11)?.parse().ok());
    dropped.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// What to subtract from CLOCK_REALTIME to get CLOCK_MONOTONIC, now.
pub fn realtime_offset_ns() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to; CLOCK_REALTIME exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    (now.tv_sec * 1_000_000_000 + now.tv_nsec) - monotonic_ns() as i64
}
