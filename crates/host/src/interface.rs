//! Interfaces: veth pairs between namespaces, offloads.

use crate::{Error, Namespace, Result};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket},
};
use std::os::fd::AsRawFd;

/// Longest name of an interface (IFNAMSIZ less its terminator).
pub const NAME_MAX: usize = 15;

/// One end of a veth pair to be made.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// Where it shall be.
    pub namespace: &'a Namespace,
    /// Name of the interface, at most [`NAME_MAX`] bytes.
    pub name: &'a str,
}

/// Makes a veth pair with both ends up at the given MTU. Addresses are left to the caller.
pub fn veth(a: End<'_>, b: End<'_>, mtu_bytes: u32) -> Result<()> {
    let mtu = mtu_bytes.to_string();
    a.namespace.ip(&[
        "link",
        "add",
        "name",
        a.name,
        "mtu",
        &mtu,
        "type",
        "veth",
        "peer",
        "name",
        b.name,
        "mtu",
        &mtu,
        "netns",
        b.namespace.name(),
    ])?;
    for end in [a, b] {
        end.namespace.ip(&["link", "set", "dev", end.name, "up"])?;
    }
    Ok(())
}

/// Has the kernel take packets that come in on an interface of the calling thread's namespace although others lead to
/// their IPv4 sources (RFC 3704 section 2.4; `rp_filter` 2), whatever `all` and `default` say. By netlink: a service's
/// sandbox may leave sysctls readable only.
pub fn validate_sources_loosely(interface: &str) -> Result<()> {
    let set = || -> nix::Result<()> {
        let index = nix::net::if_::if_nametoindex(interface)?;
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        send(socket.as_raw_fd(), &loose_validation(index), MsgFlags::empty())?;
        let mut answer = [0; 256];
        let bytes = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        // A header of 16 bytes, then the error (NLMSG_ERROR, which is also the acknowledgement).
        match answer[..bytes].get(16..20).and_then(|error| error.try_into().ok()).map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(error) => Err(Errno::from_raw(-error)),
            None => Err(Errno::EBADMSG),
        }
    };
    set().map_err(|errno| Error::io(format!("validate sources loosely on '{interface}'"), errno))
}

/// RTM_SETLINK of an interface, with rp_filter in IFLA_AF_SPEC (rtnetlink(7), `linux/if_link.h`, `linux/ip.h`).
fn loose_validation(index: u32) -> Vec<u8> {
    const IFLA_INET_CONF: u16 = 1;
    const IPV4_DEVCONF_RP_FILTER: u16 = 8;
    const LOOSE: u32 = 2;
    let attribute = |kind: u16, value: Vec<u8>| {
        [&(4 + value.len() as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), &value].concat()
    };
    let filter = attribute(IPV4_DEVCONF_RP_FILTER, LOOSE.to_ne_bytes().into());
    let family = attribute(libc::AF_INET as u16, attribute(IFLA_INET_CONF, filter));
    // An ifinfomsg of 16 bytes: nothing but the index in its second word counts.
    let link = [[0; 4], index.to_ne_bytes(), [0; 4], [0; 4]].concat();
    let body = [link, attribute(libc::IFLA_AF_SPEC, family)].concat();
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let length = 16 + body.len() as u32;
    let header = [&length.to_ne_bytes()[..], &libc::RTM_SETLINK.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
    [header.concat(), body].concat()
}

/// An offload that can be turned on and off (values of `linux/ethtool.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// TCP segmentation offload.
    Tso = 0x1f,
    /// Generic segmentation offload.
    Gso = 0x24,
    /// Generic receive offload.
    Gro = 0x2c,
    /// Transmit checksumming; off makes every packet carry a valid checksum.
    TxChecksum = 0x17,
}

/// Turns an offload of an interface of the calling thread's namespace on or off.
pub fn set_offload(interface: &str, offload: Offload, on: bool) -> Result<()> {
    let mut value = EthtoolValue { command: offload as u32, data: u32::from(on) };
    ethtool(interface, &mut value).map_err(|source| {
        Error::io(format!("turn {offload:?} {} on '{interface}'", if on { "on" } else { "off" }), source)
    })
}

/// What an interface of the calling thread's namespace is: `ARPHRD_…` of linux/if_arp.h.
pub fn hardware_type(interface: &str) -> Result<u16> {
    // SAFETY: an all-zero ifreq is valid, and its address part is plain integers.
    let asked = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        control(interface, &mut request, libc::SIOCGIFHWADDR as _)
            .map(|()| request.ifr_ifru.ifru_hwaddr.sa_family)
    };
    asked.map_err(|source| Error::io(format!("find interface '{interface}'"), source))
}

/// Largest IP packet of an interface of the calling thread's namespace, in bytes.
pub fn mtu_bytes(interface: &str) -> Result<u32> {
    // SAFETY: as above.
    let asked = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        control(interface, &mut request, libc::SIOCGIFMTU as _).map(|()| request.ifr_ifru.ifru_mtu as u32)
    };
    asked.map_err(|source| Error::io(format!("interface '{interface}'"), source))
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn ethtool(interface: &str, value: &mut EthtoolValue) -> std::io::Result<()> {
    // SAFETY: an all-zero ifreq is valid; the ioctl reads and writes through `ifru_data`, which points to `value` for
    // the length of the call.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_ifru.ifru_data = (&raw mut *value).cast();
        control(interface, &mut request, libc::SIOCETHTOOL as _)
    }
}

/// Asks the kernel about an interface.
///
/// # Safety
/// What `request` points to, if anything, is what the kernel expects there.
unsafe fn control(interface: &str, request: &mut libc::ifreq, what: libc::c_ulong) -> std::io::Result<()> {
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(std::io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the caller answers for the request; the socket is closed on every way out.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let result = libc::ioctl(socket, what as _, &raw mut *request);
        let error = std::io::Error::last_os_error();
        libc::close(socket);
        if result < 0 { Err(error) } else { Ok(()) }
    }
}
