//! What the kernel has of a pair, and whose handshakes nobody completes, by sock_diag(7).
//!
//! RFC 9293 section 3.6.1 lets a SYN begin a new connection in TIME-WAIT. The kernel lets a socket connect there only
//! where the last connection had timestamps; for the others this makes room, when a client has sent that SYN.

use crate::logic::{
    Pair,
    tcp_state::{CLOSING, FIN_WAIT1, LAST_ACK, LISTEN, SYN_RECEIVED, TIME_WAIT},
};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::{
    fs::File,
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

/// `linux/sock_diag.h`, and `linux/inet_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_MARK: u16 = 15;
/// `struct nlmsghdr`, `struct inet_diag_req_v2`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Within the request: the socket's addresses, and its cookie.
const ID_AT: usize = HEADER_BYTES + 8;
const COOKIE_AT: usize = ID_AT + 40;
/// Within the answer, a `struct inet_diag_msg`: its state, and its cookie.
const MESSAGE_BYTES: usize = 72;
const STATE_AT: usize = HEADER_BYTES + 1;
const RETRANSMISSIONS_AT: usize = HEADER_BYTES + 3;
const FOUND_ID_AT: usize = HEADER_BYTES + 4;
const FOUND_COOKIE_AT: usize = HEADER_BYTES + 4 + 40;
const UNACKNOWLEDGED_AT: usize = HEADER_BYTES + 60;

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

/// Whether a socket of this host's speaks as the first of the pair to the second, whoever has it.
pub(crate) fn has_connection(pair: Pair) -> bool {
    let look = || ask(&open()?, &request(SOCK_DIAG_BY_FAMILY, pair, None));
    // A listener of any address is found where nothing else is.
    let is_one = |state: u8| state != LISTEN && state != TIME_WAIT;
    look().is_ok_and(|answer| state(&answer).is_some_and(is_one))
}

/// Clients, and the servers they want, to whom listeners of this mark have sent so many SYN-ACKs again, in vain.
pub(crate) fn unanswered(mark: u32, least_retransmissions: u8) -> nix::Result<Vec<Pair>> {
    let found =
        dump(&[SYN_RECEIVED], |message| handshake(message).filter(|handshake| handshake.mark == mark))?;
    let is_long = |handshake: &Handshake| handshake.retransmissions >= least_retransmissions;
    Ok(found.into_iter().filter(is_long).map(|handshake| handshake.pair).collect())
}

/// A socket of this mark that has been closed, and still has bytes that its end has not acknowledged.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pair: Pair,
    cookie: [u8; 8],
}

impl Unfinished {
    /// All that there are.
    pub fn all(mark: u32) -> nix::Result<Vec<Unfinished>> {
        dump(&[FIN_WAIT1, CLOSING, LAST_ACK], |message| {
            let bytes = message.get(UNACKNOWLEDGED_AT..UNACKNOWLEDGED_AT + 4)?.try_into().ok()?;
            // The end of the stream counts as one.
            let is_open = u32::from_ne_bytes(bytes) > 1 && mark_of(message)? == mark;
            let (own, peer) = (end_of(message, 0)?, end_of(message, 1)?);
            is_open.then_some(Unfinished { pair: (own, peer), cookie: cookie(message)? })
        })
    }

    /// Gives its bytes up; whether the kernel did so. It resets the stream's end only where that has not closed yet.
    pub fn abort(&self) -> nix::Result<bool> {
        destroy(&open()?, self.pair, self.cookie)
    }
}

/// What there is in these states, as far as it is wanted.
fn dump<T>(states: &[u8], wanted: impl Fn(&[u8]) -> Option<T>) -> nix::Result<Vec<T>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let netlink = open()?;
        send(netlink.as_raw_fd(), &request_all(family, states), MsgFlags::empty())?;
        let mut answer = vec![0; 1 << 16];
        loop {
            let bytes = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            let mut is_last = bytes == 0;
            for message in messages(&answer[..bytes]) {
                is_last |=
                    is_of(message, libc::NLMSG_DONE as u16) || is_of(message, libc::NLMSG_ERROR as u16);
                found.extend(wanted(message));
            }
            if is_last {
                break;
            }
        }
    }
    Ok(found)
}

/// How often SYNs, and answers to SYNs, were sent again in this network namespace. Who asks this first need not look
/// through all connections of the host for handshakes that nobody completes: that takes milliseconds, however few there
/// are.
#[derive(Debug)]
pub(crate) struct Retransmissions {
    counters: Option<File>,
    seen: Option<u64>,
}

impl Retransmissions {
    /// To be made before the process gives up its view of files.
    pub fn open() -> Retransmissions {
        Retransmissions { counters: File::open("/proc/thread-self/net/netstat").ok(), seen: None }
    }

    /// Whether there were more of them since this was last asked, or nobody knows.
    pub fn are_more(&mut self) -> bool {
        let now = self.counters.as_ref().and_then(read_retransmissions);
        let before = std::mem::replace(&mut self.seen, now);
        now.is_none() || now != before
    }
}

fn read_retransmissions(counters: &File) -> Option<u64> {
    let (mut text, mut block) = (Vec::new(), [0; 4096]);
    loop {
        match counters.read_at(&mut block, text.len() as u64).ok()? {
            0 => return counter(std::str::from_utf8(&text).ok()?, "TcpExt:", "TCPSynRetrans"),
            bytes => text.extend_from_slice(&block[..bytes]),
        }
    }
}

/// A counter in lines that come in twos, one of names and one of values (`/proc/net/netstat`).
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut both = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    both.find(|(found, _)| *found == name)?.1.parse().ok()
}

/// A handshake that waits for its last packet.
#[derive(Debug)]
struct Handshake {
    pair: Pair,
    retransmissions: u8,
    mark: u32,
}

fn request_all(family: i32, states: &[u8]) -> [u8; REQUEST_BYTES] {
    let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut bytes = request(SOCK_DIAG_BY_FAMILY, (nobody, nobody), None);
    bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    bytes[HEADER_BYTES] = family as u8;
    let states = states.iter().fold(0, |all, state| all | 1u32 << state);
    bytes[HEADER_BYTES + 4..ID_AT].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// Messages of an answer (`NLMSG_NEXT`), each with its header.
fn messages(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
    split(answer, HEADER_BYTES, |head| u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize)
}

/// Attributes of a message (`RTA_NEXT`), each with its header.
fn attributes(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    let rest = message.get(HEADER_BYTES + MESSAGE_BYTES..).unwrap_or_default();
    split(rest, 4, |head| u16::from_ne_bytes([head[0], head[1]]).into())
}

/// Pieces that say how long they are, each at a multiple of four bytes.
fn split(bytes: &[u8], head_bytes: usize, length: impl Fn(&[u8]) -> usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let piece = rest.get(..length(rest.get(..head_bytes)?)).filter(|piece| piece.len() >= head_bytes)?;
        rest = rest.get(piece.len().next_multiple_of(4)..).unwrap_or_default();
        Some(piece)
    })
}

fn handshake(message: &[u8]) -> Option<Handshake> {
    if state(message)? != SYN_RECEIVED {
        return None;
    }
    Some(Handshake {
        pair: (end_of(message, 1)?, end_of(message, 0)?),
        retransmissions: *message.get(RETRANSMISSIONS_AT)?,
        mark: mark_of(message)?,
    })
}

/// The mark of a socket that was found.
fn mark_of(message: &[u8]) -> Option<u32> {
    let is_mark = |attribute: &&[u8]| attribute.get(2..4) == Some(&INET_DIAG_MARK.to_ne_bytes());
    let mark = attributes(message).find(is_mark)?.get(4..8)?;
    Some(u32::from_ne_bytes(mark.try_into().ok()?))
}

/// One end of a socket that was found: its own, or its peer's.
fn end_of(message: &[u8], index: usize) -> Option<SocketAddr> {
    let is_ipv4 = i32::from(*message.get(HEADER_BYTES)?) == libc::AF_INET;
    read_end(message.get(FOUND_ID_AT..FOUND_COOKIE_AT)?, index, is_ipv4)
}

/// As [`write_end`] has it.
fn read_end(id: &[u8], index: usize, is_ipv4: bool) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(id.get(2 * index..2 * index + 2)?.try_into().ok()?);
    let address: [u8; 16] = id.get(4 + 16 * index..20 + 16 * index)?.try_into().ok()?;
    let [a, b, c, d, ..] = address;
    let ip: IpAddr = if is_ipv4 { [a, b, c, d].into() } else { IpAddr::from(address).to_canonical() };
    Some(SocketAddr::new(ip, port))
}

fn open() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)
}

fn try_end_time_wait(pair: Pair) -> nix::Result<bool> {
    let netlink = open()?;
    let found = ask(&netlink, &request(SOCK_DIAG_BY_FAMILY, pair, None))?;
    let (Some(TIME_WAIT), Some(cookie)) = (state(&found), cookie(&found)) else { return Ok(false) };
    destroy(&netlink, pair, cookie)
}

/// Ends a socket that was found; whether the kernel did so.
fn destroy(netlink: &OwnedFd, pair: Pair, cookie: [u8; 8]) -> nix::Result<bool> {
    let answer = ask(netlink, &request(SOCK_DESTROY, pair, Some(cookie)))?;
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

/// Number of an error message; an acknowledgement has number 0.
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
            assert!(has_connection(pair) && has_connection((pair.1, pair.0)));
            drop(client);
            drop(far);
            assert!(!has_connection(pair), "it has ended");
            assert!(end_time_wait(pair), "ending one needs CAP_NET_ADMIN");
            assert!(!end_time_wait(pair), "it is gone");
        }
    }

    #[test]
    fn an_answer_is_taken_apart_whatever_it_says() {
        let mut message = vec![0; HEADER_BYTES + MESSAGE_BYTES];
        message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        message[HEADER_BYTES] = libc::AF_INET as u8;
        (message[STATE_AT], message[RETRANSMISSIONS_AT]) = (SYN_RECEIVED, 3);
        let (server, client) = ("192.0.2.1:80".parse().unwrap(), "198.51.100.7:4000".parse().unwrap());
        write_end(&mut message[FOUND_ID_AT..], 0, server);
        write_end(&mut message[FOUND_ID_AT..], 1, client);
        message.extend([[5, 0, 8, 0], [1, 0, 0, 0], [8, 0, 15, 0]].concat());
        message.extend(7u32.to_ne_bytes());
        let length = (message.len() as u32).to_ne_bytes();
        message[..4].copy_from_slice(&length);
        let whole = [&message[..], &message[..]].concat();
        let found: Vec<_> = messages(&whole).filter_map(handshake).collect();
        let is_it =
            |found: &Handshake| (found.pair, found.retransmissions, found.mark) == ((client, server), 3, 7);
        assert!(found.len() == 2 && found.iter().all(is_it), "{found:?}");
        for end in 0..whole.len() {
            messages(&whole[..end]).for_each(|message| _ = handshake(message));
            let mut lying = whole.clone();
            lying[end] = u8::MAX;
            messages(&lying).for_each(|message| _ = handshake(message));
        }
    }

    #[test]
    fn a_syn_that_is_sent_again_is_seen_once_and_what_is_answered_is_not() {
        use nix::sched::{CloneFlags, unshare};
        use std::{
            process::Command,
            time::{Duration, Instant},
        };
        let work = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
            let ip = |words: &str| {
                let done = Command::new("ip").args(words.split(' ')).status();
                assert!(done.unwrap().success(), "ip {words}");
            };
            ip("link set lo up");
            ip("link add nowhere type veth peer name end");
            ip("addr add 192.0.2.1/24 dev nowhere");
            ip("link set nowhere up");
            ip("link set end up");
            ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:01 dev nowhere");
            let mut retransmissions = Retransmissions::open();
            assert!(retransmissions.are_more(), "nobody has asked before");
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            assert!(!retransmissions.are_more());
            let (nobody, patience) = (SocketAddr::from(([192, 0, 2, 2], 9)), Duration::from_millis(1500));
            let deadline = Instant::now() + Duration::from_secs(30);
            while !retransmissions.are_more() {
                assert!(Instant::now() < deadline);
                TcpStream::connect_timeout(&nobody, patience).unwrap_err();
            }
            assert!(!retransmissions.are_more());
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn a_counter_is_found_by_its_name_and_what_is_no_counter_is_none() {
        let text = "IpExt: A B\nIpExt: 1 2\nTcpExt: Other TCPSynRetrans More\nTcpExt: 5 77 6\n";
        assert_eq!(counter(text, "TcpExt:", "TCPSynRetrans"), Some(77));
        for text in [
            "",
            "TcpExt: TCPSynRetrans",
            "TcpExt: TCPSynRetrans\nTcpExt:",
            "TcpExt: TCPSynRetrans\nTcpExt: x",
        ] {
            assert_eq!(counter(text, "TcpExt:", "TCPSynRetrans"), None, "{text}");
        }
    }

    #[test]
    fn a_client_who_is_not_accepted_yet_is_something_and_one_who_never_came_is_not() {
        for (address, other) in [("127.0.0.1:0", "127.0.0.1:1"), ("[::1]:0", "[::1]:1")] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = client.peer_addr().unwrap();
            assert!(!has_nothing((server, client.local_addr().unwrap())));
            assert!(!has_connection((server, other.parse().unwrap())), "a listener is no connection");
            drop(listener);
            assert!(has_nothing((server, other.parse().unwrap())));
        }
    }
}
