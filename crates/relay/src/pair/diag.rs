//! What the kernel has of a pair, by sock_diag(7).
//!
//! RFC 9293 section 3.6.1 lets a SYN begin a new connection in TIME-WAIT. The kernel lets a socket connect there only
//! where the last connection had timestamps; for the others this makes room, when a client has sent that SYN.

use crate::hold::Pair;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
};

/// `linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// State of `net/tcp_states.h`.
const TIME_WAIT: u8 = 6;
/// `struct nlmsghdr`, `struct inet_diag_req_v2`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Within the request: the socket's addresses, and its cookie.
const ID_AT: usize = HEADER_BYTES + 8;
const COOKIE_AT: usize = ID_AT + 40;
/// Within the answer, a `struct inet_diag_msg`: its state, and its cookie.
const STATE_AT: usize = HEADER_BYTES + 1;
const FOUND_COOKIE_AT: usize = HEADER_BYTES + 4 + 40;

/// Ends the TIME_WAIT that keeps this host from dialling as the first of the pair to the second; whether there was one.
pub(crate) fn end_time_wait(pair: Pair) -> bool {
    try_end_time_wait(pair).unwrap_or(false)
}

/// Whether the kernel has nothing of a connection from the second of the pair to the first, which may be anybody's: no
/// handshake, nobody to be accepted, no connection. Where it does not say, it is not known to have nothing.
pub(crate) fn has_nothing(pair: Pair) -> bool {
    let look = || ask(&open()?, &request(SOCK_DIAG_BY_FAMILY, pair, None));
    look().is_ok_and(|answer| number(&answer) == Some(-libc::ENOENT))
}

fn open() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)
}

fn try_end_time_wait(pair: Pair) -> nix::Result<bool> {
    let netlink = open()?;
    let found = ask(&netlink, &request(SOCK_DIAG_BY_FAMILY, pair, None))?;
    let (Some(TIME_WAIT), Some(cookie)) = (state(&found), cookie(&found)) else { return Ok(false) };
    let answer = ask(&netlink, &request(SOCK_DESTROY, pair, Some(cookie)))?;
    Ok(number(&answer) == Some(0))
}

fn ask(netlink: &OwnedFd, request: &[u8]) -> nix::Result<Vec<u8>> {
    send(netlink.as_raw_fd(), request, MsgFlags::empty())?;
    let mut answer = vec![0; 4096];
    let bytes = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer.truncate(bytes);
    Ok(answer)
}

fn request(what: u16, (own, peer): Pair, cookie: Option<[u8; 8]>) -> [u8; REQUEST_BYTES] {
    let acknowledge = if cookie.is_some() { libc::NLM_F_ACK } else { 0 };
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&what.to_ne_bytes());
    bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | acknowledge) as u16).to_ne_bytes());
    let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes[HEADER_BYTES] = family as u8;
    bytes[HEADER_BYTES + 1] = libc::IPPROTO_TCP as u8;
    bytes[HEADER_BYTES + 4..ID_AT].copy_from_slice(&u32::MAX.to_ne_bytes());
    for (index, end) in [own, peer].into_iter().enumerate() {
        write_end(&mut bytes[ID_AT..COOKIE_AT], index, end);
    }
    bytes[COOKIE_AT..].copy_from_slice(&cookie.unwrap_or([u8::MAX; 8]));
    bytes
}

/// The first or second port and address of a `struct inet_diag_sockid`.
fn write_end(id: &mut [u8], index: usize, end: SocketAddr) {
    id[2 * index..2 * index + 2].copy_from_slice(&end.port().to_be_bytes());
    let at = 4 + 16 * index;
    match end.ip() {
        IpAddr::V4(four) => id[at..at + 4].copy_from_slice(&four.octets()),
        IpAddr::V6(six) => id[at..at + 16].copy_from_slice(&six.octets()),
    }
}

fn is_of(answer: &[u8], kind: u16) -> bool {
    answer.get(4..6) == Some(&kind.to_ne_bytes())
}

fn state(answer: &[u8]) -> Option<u8> {
    if is_of(answer, SOCK_DIAG_BY_FAMILY) { answer.get(STATE_AT).copied() } else { None }
}

fn cookie(answer: &[u8]) -> Option<[u8; 8]> {
    answer.get(FOUND_COOKIE_AT..FOUND_COOKIE_AT + 8)?.try_into().ok()
}

/// Of an error message; an acknowledgement is one of number 0.
fn number(answer: &[u8]) -> Option<i32> {
    let number = answer.get(HEADER_BYTES..HEADER_BYTES + 4)?.try_into().ok()?;
    is_of(answer, libc::NLMSG_ERROR as u16).then_some(i32::from_ne_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_time_wait_is_ended_and_a_living_connection_is_not() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let pair = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let (far, _) = listener.accept().unwrap();
            assert!(!end_time_wait(pair), "it lives");
            drop(client);
            drop(far);
            assert!(end_time_wait(pair), "ending one needs CAP_NET_ADMIN");
            assert!(!end_time_wait(pair), "it is gone");
        }
    }

    #[test]
    fn a_client_who_is_not_accepted_yet_is_something_and_one_who_never_came_is_not() {
        for (address, other) in [("127.0.0.1:0", "127.0.0.1:1"), ("[::1]:0", "[::1]:1")] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = client.peer_addr().unwrap();
            assert!(!has_nothing((server, client.local_addr().unwrap())));
            drop(listener);
            assert!(has_nothing((server, other.parse().unwrap())));
        }
    }
}
