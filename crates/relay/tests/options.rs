//! TCP options of a client's SYN that ask for more than the relay can carry.

use crate::bed::{
    Bed, CLIENT_V4, CLIENT_V6, PATIENCE, SERVER_V4, SERVER_V6, accept, at, exchange, nft,
    packet::{Segment, Sender},
    path::eventually,
};
use longfat_host::{Namespace, socket, sysctl};
use longfat_relay::{Fail, Mptcp, RelayPlan};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, listen, sendto,
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

const MPTCP: i32 = 262;

/// Servers, with their clients' addresses.
fn ends() -> [(SocketAddr, SocketAddr); 2] {
    [(SERVER_V4, CLIENT_V4), (SERVER_V6, CLIENT_V6)].map(|(server, client)| {
        (SocketAddr::new(server.parse().unwrap(), 9000), SocketAddr::new(client.parse().unwrap(), 0))
    })
}

/// None for plain forwarding.
fn ways() -> [(&'static str, Option<RelayPlan>); 3] {
    [("plain", None), ("early", Some(Bed::transparent())), ("after", Some(Bed::after_server()))]
}

fn stream_socket(address: SocketAddr, protocol: i32) -> OwnedFd {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// `struct tcp_md5sig` of `linux/tcp.h`.
#[repr(C)]
struct Md5 {
    peer: libc::sockaddr_storage,
    flags: u8,
    prefix: u8,
    key_bytes: u16,
    interface: i32,
    key: [u8; 80],
}

fn sign(socket: &OwnedFd, peer: SocketAddr) {
    // SAFETY: all zero is a valid value of it.
    let mut md5: Md5 = unsafe { std::mem::zeroed() };
    match peer {
        SocketAddr::V4(four) => {
            // SAFETY: a sockaddr_storage has room for, and the alignment of, any address.
            let to = unsafe { &mut *(&raw mut md5.peer).cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as u16;
            to.sin_addr.s_addr = u32::from_ne_bytes(four.ip().octets());
        }
        SocketAddr::V6(six) => {
            // SAFETY: as above.
            let to = unsafe { &mut *(&raw mut md5.peer).cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as u16;
            to.sin6_addr.s6_addr = six.ip().octets();
        }
    }
    md5.key_bytes = 6;
    md5.key[..6].copy_from_slice(b"secret");
    let bytes = size_of::<Md5>() as libc::socklen_t;
    let (name, value) = (libc::TCP_MD5SIG, (&raw const md5).cast());
    // SAFETY: the descriptor is open and the value has that length.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, value, bytes) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn listen_with(
    host: &Namespace,
    at: SocketAddr,
    protocol: i32,
    prepare: impl Fn(&OwnedFd) + Sync,
) -> TcpListener {
    let open = || {
        let fd = stream_socket(at, protocol);
        socket::set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        prepare(&fd);
        bind(fd.as_raw_fd(), &SockaddrStorage::from(at)).unwrap();
        listen(&fd, Backlog::new(8).unwrap()).unwrap();
        TcpListener::from(fd)
    };
    host.run(open).unwrap()
}

fn connect_with(
    host: &Namespace,
    to: SocketAddr,
    protocol: i32,
    prepare: impl Fn(&OwnedFd) + Sync,
) -> TcpStream {
    let dial = || {
        let fd = stream_socket(to, protocol);
        prepare(&fd);
        if protocol != MPTCP {
            // A silent peer would else be waited for for minutes.
            socket::set_option(&fd, libc::IPPROTO_TCP, libc::TCP_SYNCNT, 2).unwrap();
        }
        connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
        TcpStream::from(fd)
    };
    patient(host.run(dial).unwrap())
}

#[test]
fn connections_signed_by_md5_pass_unrelayed() {
    for (way, plan) in ways() {
        let bed = Bed::new(&format!("md{way}"));
        let relay = plan.map(|plan| bed.start(plan));
        for (server, client) in ends() {
            let listener = listen_with(&bed.server, server, 0, |fd| sign(fd, client));
            let near = connect_with(&bed.client, server, 0, |fd| sign(fd, server));
            let far = accept(&listener);
            exchange(&near, &far, 1 << 20);
        }
        assert_eq!(relay.map_or(0, |relay| relay.stop().connections), 0, "{way}");
    }
}

/// How often SYNs with an option came to the server.
fn count(bed: &Bed, option: &str) -> bool {
    let listed = nft(&bed.server, "list table inet count");
    let line =
        listed.lines().find(|line| line.contains(option)).unwrap_or_else(|| panic!("{option}: {listed}"));
    !line.contains("packets 0 ")
}

#[test]
fn syns_with_options_that_cannot_be_carried_come_to_the_server_with_them() {
    const OPTIONS: [(&str, &[u8]); 3] = [
        ("md5sig exists", &[19, 18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        ("29 exists", &[29, 16, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ("mptcp subtype 1", &[30, 12, 0x10, 1, 1, 2, 3, 4, 5, 6, 7, 8]),
    ];
    let lines: String =
        OPTIONS.iter().map(|(option, _)| format!("tcp option {option} tcp flags syn counter; ")).collect();
    let closed = RelayPlan { fail: Fail::Closed, ..Bed::transparent() };
    let ways = ways().into_iter().chain([("closed", Some(closed))]);
    for (way, plan) in ways {
        let bed = Bed::new(&format!("op{way}"));
        nft(
            &bed.server,
            &format!("table inet count {{ chain in {{ type filter hook input priority 0; {lines} }}; }}"),
        );
        let _listener = bed.listen("0.0.0.0:9000");
        let relay = plan.map(|plan| bed.start(plan));
        let sender = Sender::new(&bed);
        for (index, (_, option)) in OPTIONS.iter().enumerate() {
            let from = at(&format!("{CLIENT_V4}:{}", 50_000 + index));
            let syn = Segment::syn(from, at(&format!("{SERVER_V4}:9000")));
            sender.send(&Segment { options: option.to_vec(), ..syn });
        }
        if way == "closed" {
            // What passes does so before this.
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert!(OPTIONS.iter().all(|(option, _)| !count(&bed, option)), "{way}");
        } else {
            eventually(&format!("{way}: all come"), || OPTIONS.iter().all(|(option, _)| count(&bed, option)));
        }
        assert_eq!(relay.map_or(0, |relay| relay.stop().connections), 0, "{way}");
    }
}

/// Whether an MPTCP socket goes on with plain TCP (`struct mptcp_info`).
fn fell_back(stream: &TcpStream) -> bool {
    const SOL_MPTCP: i32 = 284;
    const MPTCP_INFO: i32 = 1;
    const FLAGS_AT: usize = 8;
    let (mut info, mut bytes) = ([0u8; 256], 256);
    let value = info.as_mut_ptr().cast();
    // SAFETY: the descriptor is open; the kernel writes at most so many bytes.
    let got = unsafe { libc::getsockopt(stream.as_raw_fd(), SOL_MPTCP, MPTCP_INFO, value, &raw mut bytes) };
    // A socket that fell back long ago has no such option any more.
    got != 0 || info[FLAGS_AT] & 1 == 1
}

#[test]
fn multipath_tcp_is_relayed_as_plain_tcp_or_passes_as_the_rule_says() {
    let with = |mut plan: RelayPlan, mptcp| {
        plan.defaults_mut().mptcp = mptcp;
        Some(plan)
    };
    for (way, plan, relayed) in [
        ("plain", None, false),
        ("relaye", with(Bed::transparent(), Mptcp::Relay), true),
        ("relaya", with(Bed::after_server(), Mptcp::Relay), true),
        ("passe", with(Bed::transparent(), Mptcp::Pass), false),
        ("passa", with(Bed::after_server(), Mptcp::Pass), false),
    ] {
        let bed = Bed::new(&format!("mp{way}"));
        let relay = plan.map(|plan| bed.start(plan));
        for (server, _) in ends() {
            let listener = listen_with(&bed.server, server, MPTCP, |_| {});
            let near = connect_with(&bed.client, server, MPTCP, |_| {});
            let far = accept(&listener);
            exchange(&near, &far, 1 << 20);
            let near = connect_with(&bed.client, server, MPTCP, |_| {});
            let far = accept(&listener);
            (&near).write_all(b"x").unwrap();
            (&far).read_exact(&mut [0]).unwrap();
            assert_eq!(fell_back(&near), relayed, "{way}, {server}");
        }
        let connections = relay.map_or(0, |relay| relay.stop().connections);
        assert_eq!(connections, if relayed { 4 } else { 0 }, "{way}");
    }
}

#[test]
fn data_in_a_syn_arrive_once() {
    for (way, plan) in ways() {
        let bed = Bed::new(&format!("tf{way}"));
        // A client that asks for no cookie, a server that wants none.
        for (host, value) in [(&bed.client, "5"), (&bed.server, "515")] {
            host.run(|| sysctl::write("net.ipv4.tcp_fastopen", value)).unwrap().unwrap();
        }
        let relay = plan.map(|plan| bed.start(plan));
        for (server, _) in ends() {
            let fast =
                |fd: &OwnedFd| socket::set_option(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 8).unwrap();
            let listener = listen_with(&bed.server, server, 0, fast);
            let dial = || {
                let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
                let fd =
                    nix::sys::socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
                let flags = MsgFlags::from_bits_retain(libc::MSG_FASTOPEN);
                let sent =
                    sendto(fd.as_raw_fd(), b"early bird", &SockaddrStorage::from(server), flags).unwrap();
                assert_eq!(sent, 10);
                TcpStream::from(fd)
            };
            let near = patient(bed.client.run(dial).unwrap());
            let mut far = accept(&listener);
            (&near).write_all(b" and worm").unwrap();
            near.shutdown(std::net::Shutdown::Write).unwrap();
            let mut text = String::new();
            far.read_to_string(&mut text).unwrap();
            assert_eq!(text, "early bird and worm", "{way}, {server}");
        }
        let out = bed.client.run(|| std::fs::read_to_string("/proc/net/netstat").unwrap()).unwrap();
        assert!(out.contains("TCPFastOpenActive"), "{out}");
        assert_eq!(relay.map_or(2, |relay| relay.stop().finished), 2, "{way}");
    }
}
