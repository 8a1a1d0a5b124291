//! Interfaces: veth pairs between namespaces, offloads.

use crate::{Error, Namespace, Result};

/// One end of a veth pair to be made.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// Where it shall be.
    pub namespace: &'a Namespace,
    /// Its interface name, at most 15 bytes.
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

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn ethtool(interface: &str, value: &mut EthtoolValue) -> std::io::Result<()> {
    // SAFETY: an all-zero ifreq is valid; the ioctl reads the name and writes through `ifru_data`, which points
    // to `value` for the length of the call; the socket is closed on every way out.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        let name = interface.as_bytes();
        if name.len() >= request.ifr_name.len() {
            return Err(std::io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut *value).cast();
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let result = libc::ioctl(socket, libc::SIOCETHTOOL as _, &raw mut request);
        let error = std::io::Error::last_os_error();
        libc::close(socket);
        if result < 0 { Err(error) } else { Ok(()) }
    }
}
