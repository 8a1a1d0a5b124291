//! Datagrams to everybody on a link: sent by a router, received by its nodes. IPv4 and IPv6, by interface.

use crate::{
    Error, Result,
    announcement::{DATAGRAM_MAX_BYTES, DATAGRAM_MIN_BYTES, MAGIC},
};
use nix::{
    cmsg_space,
    ifaddrs::getifaddrs,
    net::if_::InterfaceFlags,
    sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt},
};
use std::{
    collections::BTreeMap,
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// Where routers speak unless told otherwise.
pub const PORT: u16 = 47_474;
/// IPv4 group, administratively scoped to the link (RFC 2365).
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 66);
/// IPv6 group of link scope, not assigned by anybody (RFC 4291, section 2.7).
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x4c46, 0x4d42);
/// IPv6 group of site scope: where routers inside the site carry announcements on.
pub const GROUP_V6_SITE: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x4c46, 0x4d42);

/// An interface that can multicast.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// What the kernel knows it by.
    pub index: u32,
    /// Addresses of the interface.
    pub addresses: Vec<IpAddr>,
}

/// Interfaces that are up and can multicast, loopback aside, by name; of these only `wanted`, unless that is empty.
pub fn interfaces(wanted: &[String]) -> Result<BTreeMap<String, Interface>> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    let entries = getifaddrs().map_err(|errno| Error::io("list the interfaces", errno))?;
    for entry in entries {
        let name = entry.interface_name;
        let able = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_MULTICAST;
        let fits = entry.flags.contains(able) && !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        if !fits || !(wanted.is_empty() || wanted.contains(&name)) {
            continue;
        }
        let Ok(index) = nix::net::if_::if_nametoindex(name.as_str()) else { continue };
        let interface = found.entry(name).or_insert(Interface { index, addresses: Vec::new() });
        let address = entry.address.as_ref().and_then(ip_of);
        interface.addresses.extend(address);
    }
    Ok(found)
}

/// Whether there is an interface of that index.
pub(crate) fn is_there(index: u32) -> bool {
    nix::net::if_::if_indextoname(index).is_ok()
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is readable for its size as long as the call lasts; the option decides what is read of it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn membership_v4(group: Ipv4Addr, interface: u32) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from(group).to_be() },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: interface as i32,
    }
}

/// A UDP socket of one family that shares its port with others of this host.
fn udp(address: SocketAddr) -> Result<UdpSocket> {
    let failed = |source| Error::io(format!("open a UDP socket on {address}"), source);
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: just opened, and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(|errno| failed(errno.into()))?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true).map_err(|errno| failed(errno.into()))?;
    }
    let storage = SockaddrStorage::from(address);
    nix::sys::socket::bind(socket.as_raw_fd(), &storage).map_err(|errno| failed(errno.into()))?;
    Ok(UdpSocket::from(socket))
}

/// A family that this host has not is no failure: the other carries the news.
fn if_family<T>(made: Result<T>) -> Result<Option<T>> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(Error::Io { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What a node hears with.
#[derive(Debug)]
pub struct Ears {
    sockets: Vec<UdpSocket>,
    wanted: Vec<String>,
    joined: BTreeMap<String, u32>,
}

impl Ears {
    /// Listens on these interfaces, on all when there are none; those that come later are joined by [`Ears::join`].
    ///
    /// # Errors
    /// When the port is not to be had.
    pub fn open(wanted: Vec<String>, port: u16) -> Result<Ears> {
        let mut sockets = Vec::new();
        for address in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            let Some(socket) = if_family(udp(SocketAddr::new(address, port)))? else { continue };
            let failed = |errno: nix::errno::Errno| Error::io("ask where datagrams come in", errno);
            if address.is_ipv4() {
                setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).map_err(failed)?;
                // Otherwise the groups that other programs of this host have joined come in here too.
                let quiet = set(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0i32);
                quiet.map_err(|source| Error::io("listen to our own group alone", source))?;
            } else {
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true).map_err(failed)?;
            }
            only_announcements(socket.as_fd())
                .map_err(|source| Error::io("have the kernel drop what is no announcement", source))?;
            sockets.push(socket);
        }
        let mut ears = Ears { sockets, wanted, joined: BTreeMap::new() };
        ears.join()?;
        Ok(ears)
    }

    /// Joins the groups on interfaces that have come since.
    ///
    /// # Errors
    /// When the interfaces cannot be listed.
    pub fn join(&mut self) -> Result<()> {
        let found = interfaces(&self.wanted)?;
        self.joined.retain(|name, index| found.get(name).is_some_and(|found| found.index == *index));
        for (name, interface) in found {
            if !self.joined.contains_key(&name) && self.join_one(interface.index) {
                self.joined.insert(name, interface.index);
            }
        }
        Ok(())
    }

    /// Whether at least one family is heard there; the other may have no address there yet. An interface that was down
    /// is a member still: the kernel says that of who joins again.
    fn join_one(&self, interface: u32) -> bool {
        let is_member = |joined: io::Result<()>| match joined {
            Ok(()) => true,
            Err(error) => error.raw_os_error() == Some(libc::EADDRINUSE),
        };
        let mut any = false;
        for socket in &self.sockets {
            let is_v4 = socket.local_addr().is_ok_and(|address| address.is_ipv4());
            if is_v4 {
                let membership = membership_v4(GROUP_V4, interface);
                let joined = set(socket.as_fd(), libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &membership);
                any |= is_member(joined);
            } else {
                let join = |group| is_member(socket.join_multicast_v6(group, interface));
                any |= join(&GROUP_V6) | join(&GROUP_V6_SITE);
            }
        }
        any
    }

    /// Datagrams that the kernel dropped: no announcements by their length or first bytes, and what found no room.
    pub fn dropped(&self) -> u64 {
        self.sockets.iter().map(|socket| u64::from(dropped(socket.as_fd()))).sum()
    }

    /// Names of the interfaces listened on.
    pub fn joined(&self) -> impl Iterator<Item = &str> {
        self.joined.keys().map(String::as_str)
    }

    /// What to wait for.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// The next datagram and the interface it came in by; none when there is none.
    pub fn take(&self) -> Option<(Vec<u8>, u32)> {
        self.sockets.iter().find_map(take)
    }
}

/// Drops in the kernel what by its length and first bytes is no announcement: whoever may send here without a key shall
/// not cost this process a wake-up each (classic BPF; a UDP socket's filter sees the UDP header, too).
fn only_announcements(socket: BorrowedFd<'_>) -> io::Result<()> {
    const UDP_HEADER_BYTES: u32 = 8;
    let (shortest, longest) = (DATAGRAM_MIN_BYTES as u32, DATAGRAM_MAX_BYTES as u32);
    let op = |code: u32, if_so: u8, if_not: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: if_so,
        jf: if_not,
        k,
    };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 4, UDP_HEADER_BYTES + shortest),
        op(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 3, 0, UDP_HEADER_BYTES + longest),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, UDP_HEADER_BYTES),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::from_be_bytes(*MAGIC)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// How many datagrams the kernel dropped at a socket; none where it does not tell (before Linux 4.12).
fn dropped(socket: BorrowedFd<'_>) -> u32 {
    /// SK_MEMINFO_DROPS of linux/sock_diag.h, the last of nine.
    const DROPS: usize = 8;
    let mut words = [0u32; DROPS + 1];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is what `words` has.
    let result = unsafe {
        let into = words.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, into, &raw mut length)
    };
    if result == 0 { words[DROPS] } else { 0 }
}

fn take(socket: &UdpSocket) -> Option<(Vec<u8>, u32)> {
    // One byte more than there may be: what is longer is seen to be.
    let mut bytes = vec![0; DATAGRAM_MAX_BYTES + 1];
    let mut control = cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    let interface = received.cmsgs().ok()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => u32::try_from(info.ipi_ifindex).ok(),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_ifindex),
        _ => None,
    });
    let length = received.bytes;
    bytes.truncate(length);
    Some((bytes, interface.unwrap_or(0)))
}

/// What a router speaks with.
#[derive(Debug)]
pub struct Mouth {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    port: u16,
    site: bool,
}

impl Mouth {
    /// `site`: to the IPv6 group of the site as well, not of the link alone.
    ///
    /// # Errors
    /// When no socket is to be had.
    pub fn open(port: u16, site: bool) -> Result<Mouth> {
        let any = |address: IpAddr| if_family(udp(SocketAddr::new(address, 0)));
        let mouth = Mouth {
            v4: any(Ipv4Addr::UNSPECIFIED.into())?,
            v6: any(Ipv6Addr::UNSPECIFIED.into())?,
            port,
            site,
        };
        if let Some(v6) = mouth.v6.as_ref().filter(|_| site) {
            let hops = set(v6.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, &8i32);
            hops.map_err(|source| Error::io("let multicast pass routers", source))?;
        }
        Ok(mouth)
    }

    /// Says it on an interface, by each family that has an address there; how many datagrams left.
    pub fn say(&self, interface: &Interface, datagram: &[u8]) -> usize {
        let has = |v4: bool| interface.addresses.iter().any(|address| address.is_ipv4() == v4);
        let mut sent = 0;
        if let Some(v4) = self.v4.as_ref().filter(|_| has(true)) {
            let through = membership_v4(Ipv4Addr::UNSPECIFIED, interface.index);
            let chosen = set(v4.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &through).is_ok();
            sent += usize::from(chosen && v4.send_to(datagram, (GROUP_V4, self.port)).is_ok());
        }
        if let Some(v6) = self.v6.as_ref().filter(|_| has(false)) {
            let index = interface.index as i32;
            let chosen = set(v6.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index).is_ok();
            let groups = [Some(GROUP_V6), self.site.then_some(GROUP_V6_SITE)];
            for group in groups.into_iter().flatten().filter(|_| chosen) {
                sent += usize::from(v6.send_to(datagram, (group, self.port)).is_ok());
            }
        }
        sent
    }

    /// Says it to one address; whether it left.
    pub fn say_to(&self, address: SocketAddr, datagram: &[u8]) -> bool {
        let socket = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        socket.as_ref().is_some_and(|socket| socket.send_to(datagram, address).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_whose_groups_were_joined_before_is_listened_on_still() {
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ears = Ears::open(vec!["none-of-this-name".to_owned()], port).unwrap();
        let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
        assert!(ears.join_one(loopback));
        assert!(ears.join_one(loopback), "as after its interface was down");
        assert!(!ears.join_one(u32::MAX / 2), "there is none of that index");
    }

    #[test]
    fn junk_is_dropped_in_the_kernel_and_counted_and_what_looks_like_an_announcement_is_taken() {
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ears = Ears::open(vec!["none-of-this-name".to_owned()], port).unwrap();
        let like = |length: usize| [&MAGIC[..], &vec![7; length - MAGIC.len()]].concat();
        let (short, long) = (like(DATAGRAM_MIN_BYTES), like(DATAGRAM_MAX_BYTES));
        let mut other = short.clone();
        other[3] ^= 1;
        for to in ["127.0.0.1", "::1"].map(|to| SocketAddr::new(to.parse().unwrap(), port)) {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let Ok(from) = UdpSocket::bind(any) else { continue };
            let before = ears.dropped();
            for junk in
                [&like(DATAGRAM_MIN_BYTES - 1), &like(DATAGRAM_MAX_BYTES + 1), &other, &vec![], &short]
            {
                from.send_to(junk, to).unwrap();
            }
            from.send_to(&long, to).unwrap();
            let taken: Vec<Vec<u8>> = std::iter::from_fn(|| ears.take()).map(|(bytes, _)| bytes).collect();
            assert_eq!(taken, [short.clone(), long.clone()], "{to}");
            assert_eq!(ears.dropped() - before, 4, "{to}");
        }
    }
}
