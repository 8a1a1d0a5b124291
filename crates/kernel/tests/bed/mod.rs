//! Two hosts with a wire between them, and frames as somebody else would send them.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use longfat_host::{Lease, Namespace, interface};
use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// Both have `eth0`: 10.74.0.1 and fd74::1 are near, 10.74.0.2 and fd74::2 far.
pub struct Bed {
    pub near: Namespace,
    pub far: Namespace,
    _lease: Lease,
}

impl Bed {
    pub fn new(tag: &str) -> Bed {
        let lease =
            Lease::take(&format!("kt{}-{tag}", std::process::id())).expect("root and iproute2 are needed");
        let [near, far] = ["n", "f"].map(|name| lease.namespace(name).unwrap());
        let end = |namespace| interface::End { namespace, name: "eth0" };
        interface::veth(end(&near), end(&far), 1500).unwrap();
        for (host, last) in [(&near, 1), (&far, 2)] {
            host.ip(&["addr", "add", &format!("10.74.0.{last}/24"), "dev", "eth0"]).unwrap();
            host.ip(&["-6", "addr", "add", &format!("fd74::{last}/64"), "dev", "eth0", "nodad"]).unwrap();
        }
        Bed { near, far, _lease: lease }
    }

    pub fn without(&self, offloads: &[interface::Offload]) {
        let off = || offloads.iter().for_each(|one| interface::set_offload("eth0", *one, false).unwrap());
        for host in [&self.near, &self.far] {
            host.run(off).unwrap();
        }
    }
}

/// A raw socket of the calling thread's namespace.
pub fn raw_socket(domain: i32, protocol: i32) -> OwnedFd {
    // SAFETY: no memory is passed; the descriptor is ours, if there is one.
    unsafe {
        let fd = libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol);
        assert!(fd >= 0, "a raw socket: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Sends a packet so many times to an address of the socket's family.
pub fn send_to<A>(socket: &OwnedFd, packet: &[u8], count: usize, address: &A) {
    for _ in 0..count {
        // SAFETY: both the packet and the address live through the call and are as long as said.
        let sent = unsafe {
            let (data, to) = (packet.as_ptr().cast(), (&raw const *address).cast());
            libc::sendto(socket.as_raw_fd(), data, packet.len(), 0, to, size_of::<A>() as u32)
        };
        assert_eq!(sent, packet.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

/// Sends a frame as it is, so many times, by `eth0` of the calling thread's namespace.
pub fn send_frames(frame: &[u8], count: usize) {
    // SAFETY: an all-zero address is valid, and the name is terminated.
    let (mut to, index): (libc::sockaddr_ll, u32) =
        unsafe { (std::mem::zeroed(), libc::if_nametoindex(c"eth0".as_ptr())) };
    (to.sll_family, to.sll_halen, to.sll_ifindex) = (libc::AF_PACKET as u16, 6, index as i32);
    send_to(&raw_socket(libc::AF_PACKET, 0), frame, count, &to);
}

/// Waits for what happens a moment later; `tell` says how it stands.
pub fn until(holds: impl Fn() -> bool, tell: impl Fn() -> String) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to be: {}", tell());
        std::thread::sleep(Duration::from_millis(5));
    }
}
