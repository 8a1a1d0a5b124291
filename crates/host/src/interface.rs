//! Interfaces: veth pairs between namespaces, offloads.

use crate::{
    Error, Namespace, Result,
    netlink::{self, Netlink, attributes, push_attribute},
};
use std::ffi::CStr;

/// Longest name of an interface (IFNAMSIZ less its terminator).
pub const NAME_MAX: usize = 15;
/// Least MTU of an interface that has IPv6 (RFC 8200, section 5): Linux gives none to others.
pub const IPV6_MTU_MIN_BYTES: u32 = 1280;

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

/// RTM_GETLINK and RTM_SETLINK of linux/rtnetlink.h.
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
/// Size of `struct ifinfomsg`.
const LINK_BYTES: usize = 16;

/// Has the kernel take packets that come in on an interface of the calling thread's namespace although others lead to
/// their IPv4 sources (RFC 3704 section 2.4; `rp_filter` 2), whatever `all` and `default` say. By netlink: a service's
/// sandbox may leave sysctls readable only.
pub fn validate_sources_loosely(interface: &str) -> Result<()> {
    let failed = |source| Error::io(format!("validate sources loosely on '{interface}'"), source);
    let index = nix::net::if_::if_nametoindex(interface).map_err(|errno| failed(errno.into()))?;
    let asked = Netlink::open()?.ask(SET_LINK, netlink::ACK, &loose_validation(index));
    asked.map(drop).map_err(failed)
}

/// Sets the longest packet, and the most that wait, of an interface of the calling thread's namespace.
pub fn set_capacity(interface: &str, mtu_bytes: u32, queue_packets: u32) -> Result<()> {
    let failed = |source| Error::io(format!("set MTU and queue of '{interface}'"), source);
    let index = nix::net::if_::if_nametoindex(interface).map_err(|errno| failed(errno.into()))?;
    let mut body = link_message(index);
    push_attribute(&mut body, libc::IFLA_MTU, &mtu_bytes.to_ne_bytes());
    push_attribute(&mut body, libc::IFLA_TXQLEN, &queue_packets.to_ne_bytes());
    Netlink::open()?.ask(SET_LINK, netlink::ACK, &body).map(drop).map_err(failed)
}

/// A `struct ifinfomsg`, of which nothing but the index counts.
fn link_message(index: u32) -> Vec<u8> {
    [[0; 4], index.to_ne_bytes(), [0; 4], [0; 4]].concat()
}

/// What sets rp_filter of an interface, in IFLA_AF_SPEC (rtnetlink(7), `linux/if_link.h`, `linux/ip.h`).
fn loose_validation(index: u32) -> Vec<u8> {
    const IFLA_INET_CONF: u16 = 1;
    const IPV4_DEVCONF_RP_FILTER: u16 = 8;
    const LOOSE: u32 = 2;
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, kind, value);
        bytes
    };
    let filter = attribute(IPV4_DEVCONF_RP_FILTER, &LOOSE.to_ne_bytes());
    let family = attribute(libc::AF_INET as u16, &attribute(IFLA_INET_CONF, &filter));
    let mut body = link_message(index);
    push_attribute(&mut body, libc::IFLA_AF_SPEC, &family);
    body
}

/// Interfaces of the calling thread's namespace at which each of its packets passes once: a bridge or bond, and not the
/// interfaces in it.
///
/// # Errors
/// When the kernel does not list them.
pub fn passed_once() -> Result<Vec<String>> {
    let listed = Netlink::open()?.ask(GET_LINK, netlink::DUMP, &[0; LINK_BYTES]);
    let listed = listed.map_err(|source| Error::io("list the interfaces of this host", source))?;
    Ok(listed.iter().filter_map(|link| name_if_outermost(link)).collect())
}

/// Whether an interface of the calling thread's namespace is a bridge.
///
/// # Errors
/// There is no such interface.
pub fn is_bridge(interface: &str) -> Result<bool> {
    let failed = |source| Error::io(format!("ask what interface '{interface}' is"), source);
    let index = nix::net::if_::if_nametoindex(interface).map_err(|errno| failed(errno.into()))?;
    let answers = Netlink::open()?.ask(GET_LINK, 0, &link_message(index)).map_err(failed)?;
    Ok(answers.iter().any(|link| kind_of(link, INFO_KIND) == Some(b"bridge\0")))
}

/// The text that somebody has given an interface of the calling thread's namespace (`ip link set … alias`); it goes
/// with the interface. Empty where there is none.
///
/// # Errors
/// There is no such interface.
pub fn alias(interface: &str) -> Result<String> {
    let failed = |source| Error::io(format!("ask for the alias of interface '{interface}'"), source);
    let index = nix::net::if_::if_nametoindex(interface).map_err(|errno| failed(errno.into()))?;
    let answers = Netlink::open()?.ask(GET_LINK, 0, &link_message(index)).map_err(failed)?;
    Ok(answers.iter().find_map(|link| alias_of(link)).unwrap_or_default())
}

/// Gives an interface of the calling thread's namespace such a text; an empty one takes it away.
///
/// # Errors
/// There is no such interface, or it may not be changed.
pub fn set_alias(interface: &str, text: &str) -> Result<()> {
    let failed = |source| Error::io(format!("set the alias of interface '{interface}'"), source);
    let index = nix::net::if_::if_nametoindex(interface).map_err(|errno| failed(errno.into()))?;
    let mut body = link_message(index);
    push_attribute(&mut body, libc::IFLA_IFALIAS, text.as_bytes());
    Netlink::open()?.ask(SET_LINK, netlink::ACK, &body).map(drop).map_err(failed)
}

/// Alias of an interface, by an answer to RTM_GETLINK.
fn alias_of(link: &[u8]) -> Option<String> {
    let text = CStr::from_bytes_until_nul(find(link.get(LINK_BYTES..)?, libc::IFLA_IFALIAS)?).ok()?;
    Some(text.to_string_lossy().into_owned())
}

/// What an interface is, in IFLA_LINKINFO of linux/if_link.h.
const INFO_KIND: u16 = 1;
/// What it is within.
const INFO_SLAVE_KIND: u16 = 4;

/// What an interface is or is within, by an answer to RTM_GETLINK.
fn kind_of(link: &[u8], which: u16) -> Option<&[u8]> {
    find(find(link.get(LINK_BYTES..)?, libc::IFLA_LINKINFO)?, which)
}

fn find(within: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(within).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Name of an interface, by an answer to RTM_GETLINK, unless it is in a bridge or bond.
fn name_if_outermost(link: &[u8]) -> Option<String> {
    let within = kind_of(link, INFO_SLAVE_KIND);
    let is_within = within.is_some_and(|kind| [&b"bridge\0"[..], b"bond\0", b"team\0"].contains(&kind));
    let name = CStr::from_bytes_with_nul(find(link.get(LINK_BYTES..)?, libc::IFLA_IFNAME)?).ok()?;
    (!is_within).then(|| name.to_string_lossy().into_owned())
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

/// Whether an interface of the calling thread's namespace is up.
///
/// # Errors
/// There is no such interface.
pub fn is_up(interface: &str) -> Result<bool> {
    // SAFETY: as above.
    let asked = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        control(interface, &mut request, libc::SIOCGIFFLAGS as _).map(|()| request.ifr_ifru.ifru_flags)
    };
    let flags = asked.map_err(|source| Error::io(format!("interface '{interface}'"), source))?;
    Ok(i32::from(flags) & libc::IFF_UP != 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer about an interface, within another one of that kind if any.
    fn answer(name: &[u8], within: Option<&[u8]>) -> Vec<u8> {
        let (mut link, mut info) = (vec![0; LINK_BYTES], Vec::new());
        push_attribute(&mut link, libc::IFLA_IFNAME, name);
        push_attribute(&mut info, INFO_KIND, b"veth\0");
        within.into_iter().for_each(|kind| push_attribute(&mut info, INFO_SLAVE_KIND, kind));
        push_attribute(&mut link, libc::IFLA_LINKINFO, &info);
        link
    }

    #[test]
    fn packets_pass_a_bridge_or_bond_and_not_once_more_what_is_in_it() {
        let name = |within| name_if_outermost(&answer(b"lan\0", within));
        for kind in [&b"bridge\0"[..], b"bond\0", b"team\0"] {
            assert_eq!(name(Some(kind)), None);
        }
        assert_eq!((name(None), name(Some(b"vrf\0"))), (Some("lan".into()), Some("lan".into())));
        let whole = answer(b"lan\0", None);
        for bytes in 0..whole.len() {
            let _ = name_if_outermost(&whole[..bytes]);
        }
        assert_eq!(name_if_outermost(&answer(b"lan", None)), None, "a name that does not end");
        assert!(passed_once().unwrap().contains(&"lo".to_owned()));
    }

    #[test]
    fn an_alias_is_read_off_an_answer_however_it_is_cut() {
        let mut link = answer(b"lan\0", None);
        assert_eq!(alias_of(&link), None);
        push_attribute(&mut link, libc::IFLA_IFALIAS, b"to the barn\0");
        assert_eq!(alias_of(&link).as_deref(), Some("to the barn"));
        for bytes in 0..link.len() {
            assert_eq!(alias_of(&link[..bytes]).filter(|text| text != "to the barn"), None);
        }
    }

    #[test]
    fn an_interface_is_a_bridge_by_what_it_is_and_not_by_what_it_is_within() {
        let within = answer(b"lan\0", Some(b"bridge\0"));
        assert_eq!(kind_of(&within, INFO_KIND), Some(&b"veth\0"[..]));
        assert_eq!(kind_of(&within, INFO_SLAVE_KIND), Some(&b"bridge\0"[..]));
        assert!(!is_bridge("lo").unwrap());
        assert!(is_bridge("lf-nowhere").unwrap_err().to_string().contains("lf-nowhere"));
    }
}
