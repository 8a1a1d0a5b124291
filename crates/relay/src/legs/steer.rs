//! Which of several listeners on one address takes a client: always the same one for the same two addresses.
//!
//! By itself the kernel chooses by a hash of addresses and ports. Then two connections of a client come to different
//! workers, the second one's may be the first to look, and its dial reaches the server before the first one's: a
//! program that tells its connections apart by their order takes one for the other. One worker accepts, and dials, in
//! the order in which the client connected. The choice is a classic BPF program of the listeners' group
//! (SO_ATTACH_REUSEPORT_CBPF), which needs no privilege. nftables may have chosen already, by a mark: a client whose
//! SYN one worker holds is accepted by that worker.

use nix::sys::socket::{setsockopt, sockopt};
use std::{io, net::TcpListener};

/// The golden ratio of 32 bits (Knuth, vol. 3, section 6.4): neighbouring addresses fall far apart.
const FACTOR: u32 = 0x9e37_79b1;
/// Where a word of the IP header is, however far the kernel has read.
const IP_HEADER: u32 = libc::SKF_NET_OFF as u32;
const MARK: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_MARK) as u32;
/// "lfw" in ASCII: a mark of these high bits has the listener's place in the low ones, while the listener is chosen.
const CHOSEN: u32 = 0x6c66_7700;
const CHOSEN_BITS: u32 = 0xffff_ff00;
const IPV4_ADDRESSES: [u32; 2] = [12, 16];
const IPV6_ADDRESSES: [u32; 8] = [8, 12, 16, 20, 24, 28, 32, 36];

/// Has a group of so many listeners choose by client and server; any of them stands for all.
pub(crate) fn by_addresses(listener: &TcpListener, count: usize) -> io::Result<()> {
    let mut program = program(count.max(1) as u32);
    let filter = libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    Ok(setsockopt(listener, sockopt::AttachReusePortCbpf, &filter)?)
}

/// The mark by which a packet goes to the listener of that place.
pub(crate) fn mark(place: usize) -> u32 {
    CHOSEN | (place as u32 & !CHOSEN_BITS)
}

/// Returns the place of a packet's listener in the order in which they were bound.
fn program(count: u32) -> Vec<libc::sock_filter> {
    let (four, six) = (mixed(&IPV4_ADDRESSES), mixed(&IPV6_ADDRESSES));
    let mut program = vec![
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, MARK),
        statement(libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K, CHOSEN),
        // Any other mark is more than this, or as little as a place nobody has.
        jump(libc::BPF_JGE, count.min(!CHOSEN_BITS + 1), 1, 0),
        statement(libc::BPF_RET | libc::BPF_A, 0),
        statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, IP_HEADER),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xf0),
        // A listener of both families gets packets of both.
        jump(libc::BPF_JEQ, 0x60, four.len() as u8 + 1, 0),
    ];
    program.extend(four);
    program.push(statement(libc::BPF_JMP | libc::BPF_JA, six.len() as u32));
    program.extend(six);
    program.extend([
        statement(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 16),
        statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, count),
        statement(libc::BPF_RET | libc::BPF_A, 0),
    ]);
    program
}

/// A hash of these words of the IP header, in A.
fn mixed(offsets: &[u32]) -> Vec<libc::sock_filter> {
    let mix = |offset: &u32| {
        [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, IP_HEADER + offset),
            statement(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0),
            statement(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, FACTOR),
            statement(libc::BPF_MISC | libc::BPF_TAX, 0),
        ]
    };
    offsets.iter().flat_map(mix).collect()
}

fn jump(condition: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { jt, jf, ..statement(libc::BPF_JMP | condition | libc::BPF_K, k) }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LegPlan,
        legs::leg::{Leg, Share},
    };
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect};
    use std::{
        net::{SocketAddr, TcpStream},
        os::fd::AsRawFd,
    };

    const LISTENERS: usize = 4;

    fn group(address: &str) -> Vec<TcpListener> {
        let plan = LegPlan::client();
        let leg = Leg { plan: &plan, transparent: None };
        let first = leg.listen(address.parse().unwrap(), Share::Found).unwrap();
        let own = first.local_addr().unwrap();
        let mut group = vec![first];
        group.extend((1..LISTENERS).map(|_| leg.listen(own, Share::Join).unwrap()));
        by_addresses(&group[0], LISTENERS).unwrap();
        group.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        group
    }

    /// The listener that got the connection.
    fn chosen(group: &[TcpListener], from: &str, to: SocketAddr) -> usize {
        chosen_by(group, from, to, None)
    }

    fn chosen_by(group: &[TcpListener], from: &str, to: SocketAddr, mark: Option<u32>) -> usize {
        let family = if to.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let fd = nix::sys::socket::socket(family, SockType::Stream, SockFlag::empty(), None).unwrap();
        if let Some(mark) = mark {
            setsockopt(&fd, sockopt::Mark, &mark).expect("marks need CAP_NET_ADMIN");
        }
        bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from.parse().unwrap(), 0))).unwrap();
        connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
        let _client = TcpStream::from(fd);
        group.iter().position(|listener| listener.accept().is_ok()).unwrap()
    }

    #[test]
    fn one_listener_gets_all_of_a_client_whatever_its_ports_and_clients_are_spread() {
        let group = group("127.0.0.1:0");
        let to = group[0].local_addr().unwrap();
        let mut clients = [0; LISTENERS];
        for host in 1..=64 {
            let from = format!("127.0.0.{host}");
            let first = chosen(&group, &from, to);
            assert!((0..4).all(|_| chosen(&group, &from, to) == first), "{from}");
            clients[first] += 1;
        }
        assert!(clients.iter().all(|count| (4..=32).contains(count)), "{clients:?}");
    }

    #[test]
    fn so_it_is_over_ipv6_and_where_a_listener_has_both_families() {
        let group = group("[::]:0");
        let port = group[0].local_addr().unwrap().port();
        for host in ["::1", "127.0.0.1"] {
            let to = SocketAddr::new(host.parse().unwrap(), port);
            let first = chosen(&group, host, to);
            assert!((0..16).all(|_| chosen(&group, host, to) == first), "{host}");
        }
    }
    #[test]
    fn a_mark_chooses_before_the_addresses_do_and_any_other_mark_does_not() {
        let group = group("127.0.0.1:0");
        let to = group[0].local_addr().unwrap();
        let by_addresses = chosen(&group, "127.0.0.1", to);
        for place in 0..LISTENERS {
            assert_eq!(chosen_by(&group, "127.0.0.1", to, Some(mark(place))), place);
        }
        for other in [1, CHOSEN - 1, mark(LISTENERS), CHOSEN + 0x100, u32::MAX] {
            assert_eq!(chosen_by(&group, "127.0.0.1", to, Some(other)), by_addresses, "{other:#x}");
        }
    }
}
