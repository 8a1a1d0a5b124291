//! Two sets of hosts with the same path: one forwards, in the other the relay takes every connection.

use super::{
    program::{SILENCE, Seen, perform},
    script::{Dialogue, Family, SLOT, Script, Talk, Way},
};
use crate::bed::{self, Bed, Running};
use longfat_host::{
    socket::{Buffer, set_buffer},
    sysctl,
};
use longfat_relay::{Accept, ConnectionPlan, MatchPlan, QueueSpec, RelayPlan, RulePlan};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt,
        socket, sockopt,
    },
    sys::time::TimeVal,
};
use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// A round trip of 20 ms on the server's side.
const PATH: &str = "rate = '1Gbit'\ndelay = '10ms'\ncoalesce = '100us'";
/// Server's ports of one way.
const PORTS: u16 = 12_000;
const FIRST_PORT: u16 = 10_000;
const FIRST_OWN_PORT: u16 = 1024;
/// A server whose clients are gone waits so long for a connection that is still on its way: a lost SYN costs a second.
const STRAGGLING: Duration = Duration::from_millis(1600);
const SILENCE_TIME: TimeVal = TimeVal::new(SILENCE.as_secs() as i64, 0);

/// What both programs saw of one connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Met {
    /// What connect() said.
    pub connected: Result<(), Errno>,
    pub client: Option<Seen>,
    /// None when no connection came to the server.
    pub server: Option<Seen>,
    /// Whether the server saw the client's own address and port.
    pub is_from_client: bool,
    /// The longest that a thread of the relay's was ready to run meanwhile and had no processor.
    pub relay_waited: Duration,
}

/// What both programs saw, connection by connection.
pub type Outcome = Vec<Met>;

/// Both sets of hosts.
pub struct Stage<'a> {
    pub plain: &'a Bed,
    pub relayed: &'a Bed,
    numbers: AtomicU32,
    relay: Threads,
}

/// Threads of this process, by their numbers.
#[derive(Debug, Default)]
struct Threads(Vec<u32>);

impl Threads {
    fn all() -> Vec<u32> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// How long each has been ready to run and had no processor (proc(5), schedstat).
    fn waited(&self) -> Vec<Duration> {
        let waited = |thread: &u32| {
            let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
            Some(Duration::from_nanos(text.split_whitespace().nth(1)?.parse().ok()?))
        };
        self.0.iter().map(|thread| waited(thread).unwrap_or_default()).collect()
    }

    fn longest_since(&self, before: &[Duration]) -> Duration {
        let each = self.waited().into_iter().zip(before).map(|(now, before)| now.saturating_sub(*before));
        each.max().unwrap_or_default()
    }
}

/// Runs `work` with both sets of hosts and a relay.
pub fn with_stage<T>(tag: &str, work: impl FnOnce(&Stage<'_>) -> T) -> T {
    // Four paths at once would be late on two processors.
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let on_both = |plain: &Bed| {
        let on_relayed = |relayed: &Bed| {
            [plain, relayed].into_iter().for_each(add_lanes);
            let before = Threads::all();
            let running = Running::start(&relayed.relay, plan());
            let is_new = |thread: &u32| !before.contains(thread);
            let relay = Threads(Threads::all().into_iter().filter(is_new).collect());
            let value = work(&Stage { plain, relayed, numbers: AtomicU32::new(0), relay });
            let warnings = running.notes.warnings.lock().unwrap().clone();
            if !warnings.is_empty() {
                println!("the relay warned: {warnings:#?}");
            }
            running.stop();
            value
        };
        Bed::over_any_link(&format!("{tag}r"), PATH, on_relayed).0
    };
    Bed::over_any_link(&format!("{tag}p"), PATH, on_both).0
}

/// An address of the client per lane: connections of one client are dialled one after the other.
fn add_lanes(bed: &Bed) {
    for (host, route) in [
        (&bed.client, "-4 route add local 10.71.9.0/24 dev lo"),
        (&bed.client, "-6 route add local fd71:9::/64 dev lo"),
        (&bed.relay, "-4 route add 10.71.9.0/24 via 10.71.1.2"),
        (&bed.relay, "-6 route add fd71:9::/64 via fd71:1::2"),
    ] {
        host.ip(&route.split(' ').collect::<Vec<_>>()).unwrap();
    }
    // A local route is enough for IPv4 alone.
    bed.client.run(|| sysctl::write("net.ipv6.ip_nonlocal_bind", "1")).unwrap().unwrap();
}

fn own_address(family: Family, lane: u8) -> IpAddr {
    let network = if family == Family::V4 { "10.71.9." } else { "fd71:9::" };
    format!("{network}{}", u16::from(lane) + 1).parse().unwrap()
}

fn plan() -> RelayPlan {
    let rule = |(index, way): (usize, &Way)| {
        let first = FIRST_PORT + index as u16 * PORTS;
        let mut plan = ConnectionPlan { rule: format!("{way:?}"), ..ConnectionPlan::default() };
        if !way.is_early() {
            plan.accept = Accept::AfterServer;
        }
        if matches!(way, Way::EarlyQueue | Way::AfterServerQueue) {
            plan.queue = QueueSpec::from_words("target = \"20ms\"").unwrap().plan();
        }
        let ports = vec![format!("{first}-{}", first + PORTS - 1).parse().unwrap()];
        RulePlan {
            name: format!("{way:?}"),
            matches: MatchPlan { ports, ..MatchPlan::default() },
            relay: Some(Arc::new(plan)),
        }
    };
    RelayPlan { rules: Way::ALL.iter().enumerate().map(rule).collect(), ..Bed::transparent() }
}

/// Addresses of one run of a dialogue.
#[derive(Debug, Clone, Copy)]
struct Place {
    client: SocketAddr,
    server: SocketAddr,
}

impl Stage<'_> {
    /// Carries a dialogue out in both sets of hosts at once: without and with the relay.
    pub fn both(&self, dialogue: &Dialogue, lane: u8) -> (Outcome, Outcome) {
        std::thread::scope(|scope| {
            let plain = scope.spawn(|| self.plain(dialogue, lane));
            let relayed = self.carry_out((self.relayed, &self.relay), dialogue, lane);
            (plain.join().unwrap(), relayed)
        })
    }

    pub fn plain(&self, dialogue: &Dialogue, lane: u8) -> Outcome {
        self.carry_out((self.plain, &Threads::default()), dialogue, lane)
    }

    fn place(&self, dialogue: &Dialogue, lane: u8) -> Place {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let way = Way::ALL.iter().position(|way| *way == dialogue.way).unwrap() as u16;
        let port = FIRST_PORT + way * PORTS + (number % u32::from(PORTS)) as u16;
        let own_port = FIRST_OWN_PORT + (number % 60_000) as u16;
        let server = match dialogue.family {
            Family::V4 => bed::SERVER_V4,
            Family::V6 => bed::SERVER_V6,
        };
        Place {
            client: SocketAddr::new(own_address(dialogue.family, lane), own_port),
            server: SocketAddr::new(server.parse().unwrap(), port),
        }
    }

    fn carry_out(&self, (bed, relay): (&Bed, &Threads), dialogue: &Dialogue, lane: u8) -> Outcome {
        let place = self.place(dialogue, lane);
        let connected = Mutex::new(Vec::new());
        let is_over = AtomicBool::new(false);
        let (listening, is_listening) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (connected, is_over) = (&connected, &is_over);
            let server = scope.spawn(move || {
                bed.server.enter().unwrap();
                let listener = dialogue.listens.then(|| listening_at(place.server, dialogue));
                listening.send(()).unwrap();
                listener.map_or(Vec::new(), |listener| serve(&listener, dialogue, connected, is_over))
            });
            let client = scope.spawn(move || {
                bed.client.enter().unwrap();
                let _ = is_listening.recv();
                let over = bed::path::StopOnDrop(is_over);
                let seen = (0..dialogue.talks.len())
                    .map(|number| (relay.waited(), talk(place, dialogue, number, connected)))
                    .collect::<Vec<_>>();
                drop(over);
                seen
            });
            let seen = client.join().unwrap();
            let mut served = server.join().unwrap().into_iter();
            seen.into_iter()
                .map(|(waited, (connect, client))| {
                    let served = connect.is_ok().then(|| served.next()).flatten();
                    let is_from_client = served.as_ref().is_none_or(|(peer, _)| *peer == place.client);
                    let server = served.map(|(_, seen)| seen);
                    let relay_waited = relay.longest_since(&waited);
                    Met { connected: connect, client, server, is_from_client, relay_waited }
                })
                .collect()
        })
    }
}

fn new_socket(address: SocketAddr, room: Option<u32>, is_inline: bool) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
    // Later would be too late for marks that come before accept().
    setsockopt(&fd, sockopt::OobInline, &is_inline).unwrap();
    if let Some(bytes) = room {
        set_buffer(&fd, Buffer::Receive, bytes.into()).unwrap();
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    fd
}

fn listening_at(address: SocketAddr, dialogue: &Dialogue) -> TcpListener {
    let fd = new_socket(address, dialogue.server_room, dialogue.talks[0].server.is_inline());
    listen(&fd, Backlog::new(16).unwrap()).unwrap();
    let listener = TcpListener::from(fd);
    listener.set_nonblocking(true).unwrap();
    listener
}

/// The client's part of one connection: what connect() said, and what it saw then.
fn talk(
    place: Place,
    dialogue: &Dialogue,
    number: usize,
    connected: &Mutex<Vec<usize>>,
) -> (Result<(), Errno>, Option<Seen>) {
    let talk = &dialogue.talks[number];
    std::thread::sleep(SLOT * talk.after.into());
    let fd = new_socket(place.client, dialogue.client_room, talk.client.is_inline());
    // A connection that nobody answers fails by EINPROGRESS after this.
    setsockopt(&fd, sockopt::SendTimeout, &SILENCE_TIME).unwrap();
    if let Err(errno) = connect(fd.as_raw_fd(), &SockaddrStorage::from(place.server)) {
        return (Err(errno), None);
    }
    connected.lock().unwrap().push(number);
    (Ok(()), Some(perform(TcpStream::from(fd), &talk.client, stream(number, 0))))
}

/// Numbers the streams of a dialogue: connections, and their two directions.
pub fn stream(talk: usize, direction: u32) -> u32 {
    2 * talk as u32 + direction
}

/// The server's part: each connection on a thread of its own, in the order of their coming.
fn serve(
    listener: &TcpListener,
    dialogue: &Dialogue,
    connected: &Mutex<Vec<usize>>,
    is_over: &AtomicBool,
) -> Vec<(SocketAddr, Seen)> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        while let Some((socket, peer)) = accept(listener, threads.len(), connected, is_over) {
            let Some((number, script)) = script_of(threads.len(), dialogue, connected, is_over) else {
                break;
            };
            threads.push(scope.spawn(move || (peer, perform(socket, script, stream(number, 1)))));
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The next connection; none when all that the clients had made have come, or nothing comes any more.
fn accept(
    listener: &TcpListener,
    come: usize,
    connected: &Mutex<Vec<usize>>,
    is_over: &AtomicBool,
) -> Option<(TcpStream, SocketAddr)> {
    let mut since_over = None;
    loop {
        if let Ok(accepted) = listener.accept() {
            return Some(accepted);
        }
        if is_over.load(Ordering::Relaxed) {
            let since = *since_over.get_or_insert_with(Instant::now);
            if come >= connected.lock().unwrap().len() || since.elapsed() > STRAGGLING {
                return None;
            }
        }
        let mut wanted =
            [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(listener), nix::poll::PollFlags::POLLIN)];
        let _ = nix::poll::poll(&mut wanted, 20u8);
    }
}

/// The script of the so-manieth connection: that of the so-manieth that the client has made.
fn script_of<'a>(
    come: usize,
    dialogue: &'a Dialogue,
    connected: &Mutex<Vec<usize>>,
    is_over: &AtomicBool,
) -> Option<(usize, &'a Script)> {
    loop {
        let number = connected.lock().unwrap().get(come).copied();
        if let Some(number) = number {
            let Talk { server, .. } = &dialogue.talks[number];
            return Some((number, server));
        }
        if is_over.load(Ordering::Relaxed) && connected.lock().unwrap().len() <= come {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
