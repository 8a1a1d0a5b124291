//! TCP sockets by sock_diag(7): what `ss` reads too. Needs no privilege, and no BPF.

use super::connection::{CcName, Connection, SocketMemory, State, ip};
use crate::{Error, Result};
use longfat_host::socket::TcpInfo;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket,
};
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread,
    time::Duration,
};

/// Every connection state of the kernel, as a mask.
pub const ALL_STATES: u32 = 0xfff << 1;
/// Connections that stand or are being made or ended: not LISTEN, SYN_RECV, TIME_WAIT, CLOSE (as `ss` does).
pub const CONNECTED: u32 = ALL_STATES & !(1 << 10 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 12);

/// The older question, of `struct inet_diag_req`: unlike SOCK_DIAG_BY_FAMILY it asks of both families at once, and the
/// kernel walks its table of connections (a quarter of a million places) once and not twice.
const TCPDIAG_GETSOCK: u16 = 18;
/// What the kernel tells of by itself is named as the answer to the newer question.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Groups of `enum sknetlink_groups`, as bits: TCP sockets that are destroyed, in both families.
const TCP_DESTROYED: u32 = 1 << 0 | 1 << 2;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 60;
const MESSAGE_BYTES: usize = 72;
/// The kernel says at most this much per read.
const DATAGRAM_BYTES: usize = 1 << 16;
/// Handed over at once: to wake up who looks at it costs more than to look at one datagram.
const BATCH_BYTES: usize = 1 << 18;
/// Batches that may wait to be looked at.
const WAITING: usize = 16;

/// What to ask of every socket.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Mask of states.
    pub states: u32,
    /// Whether TCP_INFO and memory are wanted, not only the congestion control.
    pub details: bool,
}

/// `nlmsghdr` and `inet_diag_req`.
fn request(wanted: Request) -> [u8; REQUEST_BYTES] {
    let bit = |extension: u16| 1u8 << (extension - 1);
    let details = if wanted.details { bit(INET_DIAG_INFO) | bit(INET_DIAG_SKMEMINFO) } else { 0 };
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&TCPDIAG_GETSOCK.to_ne_bytes());
    bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    bytes[19] = bit(INET_DIAG_CONG) | details;
    bytes[68..72].copy_from_slice(&wanted.states.to_ne_bytes());
    bytes
}

/// Asks for sockets one by one: what a look at a few costs does not go with the kernel's table.
#[derive(Debug)]
pub struct Finder {
    netlink: OwnedFd,
}

impl Finder {
    /// Opens sock_diag in the calling thread's namespace; it stays there, whichever thread asks later.
    ///
    /// # Errors
    /// When the kernel gives no such socket.
    pub fn open() -> Result<Finder> {
        Ok(Finder { netlink: open()? })
    }

    /// The connection as it is now; `None` when it has gone.
    ///
    /// # Errors
    /// When the kernel refuses, or what it says cannot be read.
    pub fn find(&self, wanted: &Connection) -> Result<Option<Connection>> {
        socket::send(self.netlink.as_raw_fd(), &exact(wanted), socket::MsgFlags::empty()).map_err(failed)?;
        let mut datagram = Vec::new();
        receive(&self.netlink, &mut datagram)?;
        match messages(&datagram).next() {
            Some(Message::Socket(message)) => Ok(read_socket(message, &wanted.netns)),
            Some(Message::Refused(libc::ENOENT | libc::ESTALE)) => Ok(None),
            Some(Message::Refused(errno)) => Err(failed(nix::Error::from_raw(errno))),
            Some(Message::Done) | None => Err(failed(nix::Error::EBADMSG)),
        }
    }
}

/// Connections as they end, told by the kernel: those too short to be seen alive are among them.
#[derive(Debug)]
pub struct Endings {
    netlink: OwnedFd,
    netns: Arc<str>,
}

/// Room for endings that nobody has read yet.
const ENDINGS_BYTES: u64 = 4 << 20;

impl Endings {
    /// Listens in the calling thread's namespace, of that label; it stays there, whichever thread reads later.
    ///
    /// # Errors
    /// When the kernel gives no such socket.
    pub fn open(netns: &Arc<str>) -> Result<Endings> {
        let netlink = open()?;
        let _ =
            longfat_host::socket::set_buffer(&netlink, longfat_host::socket::Buffer::Receive, ENDINGS_BYTES);
        socket::bind(netlink.as_raw_fd(), &socket::NetlinkAddr::new(0, TCP_DESTROYED)).map_err(failed)?;
        Ok(Endings { netlink, netns: Arc::clone(netns) })
    }

    /// Connections that have ended since the last call, as they were at their end; waits so long for the first. The
    /// state of a socket that is gone means nothing.
    ///
    /// # Errors
    /// When what the kernel says cannot be read. It is no error that more have ended than there is room for: the rest is
    /// lost.
    pub fn next(&self, within: Duration) -> Result<Vec<Connection>> {
        let mut found = Vec::new();
        let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        let mut waits = [PollFd::new(self.netlink.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waits, timeout) {
            Ok(0) | Err(nix::Error::EINTR) => return Ok(found),
            Ok(_) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let mut datagram = Vec::new();
        match receive(&self.netlink, &mut datagram) {
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::ENOBUFS) => {
                return Ok(found);
            }
            read => read?,
        }
        read_messages(&datagram, &self.netns, &mut |connection| found.push(connection))?;
        Ok(found)
    }
}

/// A request for one socket, by its ends and its cookie.
fn exact(wanted: &Connection) -> [u8; REQUEST_BYTES] {
    let mut bytes = request(Request { states: ALL_STATES, details: true });
    bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes[16] = if wanted.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    for (address, ip_at, port_at) in [(wanted.local, 24, 20), (wanted.remote, 40, 22)] {
        bytes[port_at..port_at + 2].copy_from_slice(&address.port().to_be_bytes());
        match address.ip() {
            IpAddr::V4(ip) => bytes[ip_at..ip_at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[ip_at..ip_at + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes[56..60].copy_from_slice(&wanted.bound_interface.to_ne_bytes());
    bytes[60..68].copy_from_slice(&wanted.cookie.to_le_bytes());
    bytes
}

/// Every TCP socket of a namespace, being told by the kernel.
pub struct Dump {
    first: Vec<u8>,
    /// Batches.
    rest: Option<Receiver<Result<Vec<u8>>>>,
}

fn open() -> Result<OwnedFd> {
    let (family, raw) = (socket::AddressFamily::Netlink, socket::SockType::Raw);
    let flags = socket::SockFlag::SOCK_CLOEXEC;
    socket::socket(family, raw, flags, socket::SockProtocol::NetlinkSockDiag).map_err(failed)
}

/// Asks for every TCP socket of the calling thread's namespace. A long answer is read by a thread of its own: the
/// kernel works while the caller looks at what it has said.
pub fn dump(wanted: Request) -> Result<Dump> {
    let netlink = open()?;
    socket::send(netlink.as_raw_fd(), &request(wanted), socket::MsgFlags::empty()).map_err(failed)?;
    let mut first = Vec::new();
    receive(&netlink, &mut first)?;
    if is_last(&first) {
        return Ok(Dump { first, rest: None });
    }
    let (to, rest) = sync_channel(WAITING);
    let read_rest = move || {
        loop {
            let mut batch = Vec::with_capacity(BATCH_BYTES);
            let is_last = fill(&netlink, &mut batch);
            let goes_on = matches!(is_last, Ok(false));
            if to.send(is_last.map(|_| batch)).is_err() || !goes_on {
                return;
            }
        }
    };
    let thread = thread::Builder::new().spawn(read_rest);
    thread.map_err(|source| Error::io("start a thread that reads the list of TCP sockets", source))?;
    Ok(Dump { first, rest: Some(rest) })
}

/// Appends datagrams while there is room for another; whether the last was among them.
fn fill(netlink: &impl AsRawFd, batch: &mut Vec<u8>) -> Result<bool> {
    while batch.capacity() - batch.len() >= DATAGRAM_BYTES {
        let start = batch.len();
        receive(netlink, batch)?;
        if is_last(&batch[start..]) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Appends a datagram.
fn receive(netlink: &impl AsRawFd, to: &mut Vec<u8>) -> Result<()> {
    to.reserve(DATAGRAM_BYTES);
    let room = to.spare_capacity_mut();
    // SAFETY: the kernel writes into the room and not beyond its length.
    let length = unsafe { libc::recv(netlink.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
    let length = usize::try_from(length).map_err(|_| failed(nix::Error::last()))?;
    // SAFETY: so many bytes behind those that were there have just been written.
    unsafe { to.set_len(to.len() + length) };
    Ok(())
}

fn failed(errno: nix::Error) -> Error {
    Error::io("list TCP sockets (sock_diag)", errno)
}

impl Dump {
    /// Hands over every connection, in the kernel's order.
    ///
    /// # Errors
    /// When the kernel refuses, or what it says cannot be read.
    pub fn each(self, netns: &Arc<str>, mut sink: impl FnMut(Connection)) -> Result<()> {
        read_messages(&self.first, netns, &mut sink)?;
        self.rest.into_iter().flatten().try_for_each(|batch| read_messages(&batch?, netns, &mut sink))
    }

    /// All of them.
    ///
    /// # Errors
    /// As [`Dump::each`].
    pub fn all(self, netns: &Arc<str>) -> Result<Vec<Connection>> {
        let mut found = Vec::new();
        self.each(netns, |connection| found.push(connection))?;
        Ok(found)
    }
}

/// One message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message<'a> {
    /// `inet_diag_msg` and its attributes.
    Socket(&'a [u8]),
    Refused(i32),
    Done,
}

/// The messages of one or several datagrams. What cannot be read is the last.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let Some(message) = bytes.get(HEADER_BYTES..length) else {
            bytes = &[];
            return Some(Message::Refused(libc::EBADMSG));
        };
        let found = match u16_at(bytes, 4)? {
            TCPDIAG_GETSOCK | SOCK_DIAG_BY_FAMILY => Message::Socket(message),
            kind if i32::from(kind) == libc::NLMSG_ERROR => {
                let errno = u32_at(message, 0).map_or(libc::EBADMSG, |code| (code as i32).wrapping_neg());
                Message::Refused(errno)
            }
            _ => Message::Done,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(found)
    })
}

/// Whether the kernel has nothing more to say after this datagram.
fn is_last(datagram: &[u8]) -> bool {
    messages(datagram).any(|message| !matches!(message, Message::Socket(_)))
}

fn read_messages(datagrams: &[u8], netns: &Arc<str>, sink: &mut impl FnMut(Connection)) -> Result<()> {
    for message in messages(datagrams) {
        match message {
            Message::Socket(message) => {
                if let Some(connection) = read_socket(message, netns) {
                    sink(connection);
                }
            }
            Message::Refused(errno) => return Err(failed(nix::Error::from_raw(errno))),
            Message::Done => return Ok(()),
        }
    }
    Ok(())
}

/// `inet_diag_msg` and its attributes.
fn read_socket(message: &[u8], netns: &Arc<str>) -> Option<Connection> {
    let head = message.get(..MESSAGE_BYTES)?;
    let address = |at: usize, port: usize| -> Option<SocketAddr> {
        let bytes: &[u8; 16] = head.get(at..at + 16)?.try_into().ok()?;
        Some(SocketAddr::new(ip(head[0], bytes), u16::from_be_bytes([head[port], head[port + 1]])))
    };
    let cookie = u64::from(u32_at(head, 44)?) | u64::from(u32_at(head, 48)?) << 32;
    let mut connection = Connection {
        cookie,
        bound_interface: u32_at(head, 40)?,
        receive_queue_bytes: u32_at(head, 56)?,
        send_queue_bytes: u32_at(head, 60)?,
        uid: u32_at(head, 64)?,
        inode: u32_at(head, 68)?,
        ..Connection::bare(Arc::clone(netns), address(8, 4)?, address(24, 6)?, State(head[1]))
    };
    read_attributes(message.get(MESSAGE_BYTES..)?, &mut connection);
    Some(connection)
}

fn read_attributes(mut attributes: &[u8], connection: &mut Connection) -> Option<()> {
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length)?;
        match u16_at(attributes, 2)? {
            INET_DIAG_CONG => connection.cc = Some(CcName::from_bytes(value)),
            INET_DIAG_INFO => connection.info = Some(TcpInfo::from_bytes(value)),
            INET_DIAG_SKMEMINFO => connection.memory = read_memory(value),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// SK_MEMINFO_*: an array of u32.
fn read_memory(value: &[u8]) -> Option<SocketMemory> {
    Some(SocketMemory {
        rcvbuf_bytes: u32_at(value, 4)?,
        sndbuf_bytes: u32_at(value, 12)?,
        send_queued_bytes: u32_at(value, 20)?,
        below_tcp_bytes: u32_at(value, 8)?,
    })
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};

    fn own(states: u32) -> Vec<Connection> {
        dump(Request { states, details: true }).unwrap().all(&"".into()).unwrap()
    }

    /// Connections to several servers may share a client's port.
    fn is_of(one: &Connection, client: &TcpStream) -> bool {
        (one.local, one.remote) == (client.local_addr().unwrap(), client.peer_addr().unwrap())
    }

    #[test]
    fn both_ends_of_a_connection_are_found_with_what_the_socket_itself_says() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_server, _) = listener.accept().unwrap();
        longfat_host::socket::set_cc(&client, "reno").unwrap();
        let found = own(CONNECTED);
        let local = client.local_addr().unwrap();
        let mine = found.iter().find(|one| is_of(one, &client)).unwrap();
        assert_eq!((mine.state, mine.cc), (State::ESTABLISHED, Some("reno".into())));
        let said = longfat_host::socket::tcp_info(&client).unwrap();
        let info = mine.info.unwrap();
        assert_eq!((info.snd_cwnd_segments, info.srtt_us), (said.snd_cwnd_segments, said.srtt_us));
        assert!(found.iter().any(|one| one.remote == local), "the accepted end is a connection of its own");
    }

    #[test]
    fn one_connection_is_found_by_its_ends_in_both_families_until_it_has_gone() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let local = client.local_addr().unwrap();
            let listed = own(CONNECTED).into_iter().find(|one| is_of(one, &client)).unwrap();
            let finder = Finder::open().unwrap();
            let found = finder.find(&listed).unwrap().unwrap();
            assert_eq!((found.cookie, found.inode, found.local), (listed.cookie, listed.inode, local));
            assert_eq!(found.info.unwrap().snd_mss_bytes, listed.info.unwrap().snd_mss_bytes);
            let other = Connection { cookie: listed.cookie + 1, ..listed.clone() };
            assert!(finder.find(&other).unwrap().is_none(), "another socket has these ends");
            let (server, _) = listener.accept().unwrap();
            drop(server);
            drop(client);
            assert!(finder.find(&listed).unwrap().is_none());
        }
    }

    #[test]
    fn a_connection_that_ends_is_told_of_with_what_it_carried_in_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let endings = Endings::open(&"".into()).unwrap();
            let listener = TcpListener::bind(address).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let (local, remote) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            std::io::Write::write_all(&mut client, &[7; 5000]).unwrap();
            std::io::Read::read_exact(&mut server, &mut [0; 5000]).unwrap();
            drop(server);
            drop(client);
            let deadline = std::time::Instant::now() + Duration::from_secs(30);
            let ended = loop {
                assert!(std::time::Instant::now() < deadline, "nothing is told of it");
                let found = endings.next(Duration::from_millis(100)).unwrap();
                if let Some(it) = found.into_iter().find(|one| (one.local, one.remote) == (local, remote)) {
                    break it;
                }
            };
            let info = ended.info.unwrap();
            assert_eq!(info.acked_bytes, 5000 + 2, "its SYN and its FIN are counted");
            assert_ne!(ended.cookie, 0);
        }
    }

    #[test]
    fn listeners_are_found_only_when_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |found: Vec<Connection>| {
            found.iter().any(|one| one.local == listener.local_addr().unwrap() && one.state == State::LISTEN)
        };
        assert!(at(own(ALL_STATES)) && !at(own(CONNECTED)));
    }

    fn read(datagram: &[u8]) -> Result<Vec<Connection>> {
        Dump { first: datagram.to_vec(), rest: None }.all(&"".into())
    }

    #[test]
    fn more_connections_than_one_answer_holds_are_found_once_each_in_both_families() {
        let listeners = ["127.0.0.1:0", "[::1]:0"].map(|address| TcpListener::bind(address).unwrap());
        let open = |listener: &TcpListener| TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let clients: Vec<_> =
            (0..2 * DATAGRAM_BYTES / MESSAGE_BYTES / 8).map(|n| open(&listeners[n % 2])).collect();
        let dump = dump(Request { states: CONNECTED, details: true }).unwrap();
        assert!(dump.rest.is_some(), "one answer held them all");
        let found = dump.all(&"".into()).unwrap();
        for client in &clients {
            assert_eq!(found.iter().filter(|one| is_of(one, client)).count(), 1, "{client:?}");
        }
    }

    #[test]
    fn datagrams_come_in_batches_up_to_the_last_and_none_is_cut() {
        let (kernel, ours) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let count = 3 * BATCH_BYTES / (DATAGRAM_BYTES / 2);
        let telling = thread::spawn(move || {
            for _ in 0..count {
                kernel.send(&message().repeat(DATAGRAM_BYTES / 2 / message().len())).unwrap();
            }
            let mut done = message();
            done[4..6].copy_from_slice(&(libc::NLMSG_DONE as u16).to_ne_bytes());
            kernel.send(&done).unwrap();
        });
        let (mut batches, mut is_last) = (Vec::new(), false);
        while !is_last {
            let mut batch = Vec::with_capacity(BATCH_BYTES);
            is_last = fill(&ours, &mut batch).unwrap();
            assert!(batch.len() <= BATCH_BYTES);
            batches.push(batch);
        }
        telling.join().unwrap();
        let found: usize = batches.iter().map(|batch| read(batch).unwrap().len()).sum();
        assert_eq!(found, count * (DATAGRAM_BYTES / 2 / message().len()));
        assert!(batches.len() <= count / 4, "{} batches of {count} datagrams", batches.len());
    }

    fn message() -> Vec<u8> {
        let mut bytes = vec![0u8; 120];
        bytes[0..4].copy_from_slice(&120u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&TCPDIAG_GETSOCK.to_ne_bytes());
        bytes[16] = libc::AF_INET as u8;
        bytes[88..92].copy_from_slice(&[10, 0, 4, 0]);
        bytes[92..98].copy_from_slice(b"cubic\0");
        bytes
    }

    #[test]
    fn a_refusal_of_the_kernel_is_an_error_and_not_an_empty_list() {
        let mut bytes = vec![0u8; 20];
        bytes[0..4].copy_from_slice(&20u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        bytes[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert!(is_last(&bytes));
        let message = read(&bytes).unwrap_err().to_string();
        assert!(message.contains("Operation not permitted"), "{message}");
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_or_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_cut_or_disturbed_message_is_read_or_refused_without_panic(
            at in 0usize..120, value in any::<u8>(), length in 0usize..120,
        ) {
            let mut bytes = message();
            prop_assert_eq!(read(&bytes).unwrap()[0].cc, Some("cubic".into()));
            bytes[at] = value;
            let _ = read(&bytes[..length]);
        }
    }
}
