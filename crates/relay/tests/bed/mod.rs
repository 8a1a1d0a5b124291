//! A client, a relay and a server in network namespaces of their own, and peers that check every byte.

pub mod flood;
pub mod packet;
pub mod path;
pub mod routers;
pub mod tap;

use longfat_host::{Lease, Namespace, interface, run_command, sysctl};
use longfat_relay::{
    Commands, ConnectionSummary, ControlPlan, InterceptPlan, Observer, Ready, RelayPlan, RelayStats, Stop,
    control,
    status::{EndToEndStatus, Status},
};
use longfat_schema::record::{Record, RelaySample};
use nix::sys::socket::{setsockopt, sockopt};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

pub const CLIENT_V4: &str = "10.71.1.2";
pub const CLIENT_V6: &str = "fd71:1::2";
pub const SERVER_V4: &str = "10.71.2.2";
pub const SERVER_V6: &str = "fd71:2::2";
pub const RELAY_V4: &str = "10.71.1.1";
/// Where a server listens of which nothing matters but that it does.
pub const ANYWHERE: &str = "10.71.2.2:9000";
/// No test waits longer than this for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// client (10.71.1.2) - lan, relay, wan - server (10.71.2.2), with IPv6 beside it.
pub struct Bed {
    pub client: Namespace,
    pub relay: Namespace,
    pub server: Namespace,
    _lease: Lease,
}

impl Bed {
    pub fn new(tag: &str) -> Bed {
        let lease =
            Lease::take(&format!("rl{}-{tag}", std::process::id())).expect("root and iproute2 are needed");
        let [client, relay, server] = ["c", "r", "s"].map(|name| lease.namespace(name).unwrap());
        for namespace in [&client, &relay, &server] {
            namespace.run(settings).unwrap().unwrap();
        }
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&client, "eth0"), end(&relay, "lan"), 1500).unwrap();
        interface::veth(end(&server, "eth0"), end(&relay, "wan"), 1500).unwrap();
        let addresses = [
            (&client, "eth0", "10.71.1.2/24", "fd71:1::2/64"),
            (&relay, "lan", "10.71.1.1/24", "fd71:1::1/64"),
            (&relay, "wan", "10.71.2.1/24", "fd71:2::1/64"),
            (&server, "eth0", "10.71.2.2/24", "fd71:2::2/64"),
        ];
        for (namespace, interface, v4, v6) in addresses {
            namespace.ip(&["addr", "add", v4, "dev", interface]).unwrap();
            namespace.ip(&["-6", "addr", "add", v6, "dev", interface, "nodad"]).unwrap();
        }
        for (namespace, v4, v6) in [(&client, "10.71.1.1", "fd71:1::1"), (&server, "10.71.2.1", "fd71:2::1")]
        {
            namespace.ip(&["route", "add", "default", "via", v4]).unwrap();
            namespace.ip(&["-6", "route", "add", "default", "via", v6]).unwrap();
        }
        let bed = Bed { client, relay, server, _lease: lease };
        set_forwarding(&bed.relay, "1");
        bed
    }

    pub fn listen(&self, address: &str) -> TcpListener {
        self.server.run(|| TcpListener::bind(address)).unwrap().unwrap()
    }

    /// Sockets of the relay's towards the ends of connections to port 9000.
    pub fn leg_count(&self) -> usize {
        let mut command = self.relay.command("ss");
        command.args(["-Htn", "state", "established"]);
        run_command(command).unwrap().lines().filter(|line| line.contains(":9000")).count()
    }

    pub fn connect(&self, address: SocketAddr) -> TcpStream {
        self.try_connect(address).unwrap()
    }

    pub fn try_connect(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        let stream = self.client.run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap()?;
        patient(&stream);
        Ok(stream)
    }

    /// Connects from a given port of the client's IPv4 address.
    pub fn connect_from(&self, port: u16, address: SocketAddr) -> TcpStream {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
        let dial = || {
            let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
            setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
            let own = SocketAddr::new(CLIENT_V4.parse().unwrap(), port);
            bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(own)).unwrap();
            connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(address)).unwrap();
            TcpStream::from(fd)
        };
        let stream = self.client.run(dial).unwrap();
        patient(&stream);
        stream
    }

    pub fn transparent() -> RelayPlan {
        let intercept = InterceptPlan { interfaces: vec!["lan".into()], ..InterceptPlan::default() };
        RelayPlan { drain: Duration::from_secs(1), ..RelayPlan::transparent("test", intercept) }
    }

    /// A transparent relay that answers clients when their servers have answered.
    pub fn after_server() -> RelayPlan {
        let mut plan = Bed::transparent();
        plan.defaults_mut().accept = longfat_relay::Accept::AfterServer;
        plan
    }

    /// A transparent relay that answers no client: its server does.
    pub fn end_to_end() -> RelayPlan {
        let mut plan = Bed::transparent();
        plan.defaults_mut().accept = longfat_relay::Accept::EndToEnd;
        plan
    }

    pub fn explicit(to: SocketAddr) -> RelayPlan {
        let listen = SocketAddr::new(RELAY_V4.parse().unwrap(), 7100);
        RelayPlan { drain: Duration::from_secs(1), ..RelayPlan::explicit("test", listen, vec![to]) }
    }

    pub fn start(&self, plan: RelayPlan) -> Running {
        Running::start(&self.relay, plan)
    }

    /// A client and the server's end of its connection, through the relay.
    pub fn pair(&self, listener: &TcpListener, address: SocketAddr) -> (TcpStream, TcpStream) {
        let client = self.connect(address);
        (client, accept(listener))
    }
}

/// An interface asks for no IPv6 neighbour on behalf of others, whether it forwards or relays, before its own
/// link-local address is known to be unique. That takes a second or two, in which a client repeats its SYN.
fn settings() -> longfat_host::Result<()> {
    sysctl::write("net.ipv6.conf.all.accept_dad", "0")?;
    sysctl::write("net.ipv6.conf.default.accept_dad", "0")?;
    sysctl::write("net.ipv4.tcp_congestion_control", "reno")
}

pub fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// A server of each family.
pub fn servers() -> [SocketAddr; 2] {
    [SERVER_V4, SERVER_V6].map(|address| SocketAddr::new(address.parse().unwrap(), 9000))
}

/// Where a relay answers that no other test program has.
pub fn control_of(tag: &str) -> ControlPlan {
    let socket = std::env::temp_dir().join(format!("{tag}-{}.sock", std::process::id()));
    ControlPlan { socket, group: None }
}

/// A relay that can be asked.
pub fn start(tag: &str, bed: &Bed, plan: RelayPlan) -> Running {
    bed.start(RelayPlan { control: Some(control_of(tag)), ..plan })
}

/// What it says of itself and of its connections.
pub fn asked(tag: &str) -> Status {
    control::ask(&control_of(tag).socket, control::STATUS).unwrap()
}

/// What it says of connections that are accepted end to end.
pub fn told(tag: &str) -> EndToEndStatus {
    control::ask(&control_of(tag).socket, control::SUMMARY).unwrap().end_to_end
}

pub fn set_ipv4(host: &Namespace, key: &str, value: &str) {
    host.run(|| sysctl::write(&format!("net.ipv4.{key}"), value)).unwrap().unwrap();
}

pub fn set_forwarding(host: &Namespace, value: &str) {
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        host.run(|| sysctl::write(key, value)).unwrap().unwrap();
    }
}

/// Runs an nft program; what it printed.
pub fn nft(host: &Namespace, program: &str) -> String {
    let mut command = host.command("nft");
    command.arg(program);
    run_command(command).unwrap()
}

/// A host drops such packets at a hook from now on, and counts them, in a table of this name.
pub fn mute(host: &Namespace, table: &str, hook: &str, packets: &str) {
    let chain = format!("chain {hook} {{ type filter hook {hook} priority 0; {packets} counter drop; }}");
    nft(host, &format!("table inet {table} {{ {chain}; }}"));
}

/// Waits until a rule with a counter in that table has met a packet.
pub fn something_is_counted(host: &Namespace, table: &str) {
    let list = format!("list table inet {table}");
    path::eventually("a packet is counted", || !nft(host, &list).contains("counter packets 0 "));
}

pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                patient(&stream);
                return stream;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && std::time::Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("no connection reached the server: {error}"),
        }
    }
}

fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
}

/// What a relay on a thread is told.
#[derive(Default)]
struct Orders {
    stop: AtomicBool,
    plan: Mutex<Option<RelayPlan>>,
}

impl Commands for Orders {
    fn stop(&self) -> Stop {
        self.stop.stop()
    }
    fn reload(&self) -> Option<Result<RelayPlan, String>> {
        self.plan.lock().unwrap().take().map(Ok)
    }
}

/// How a relay begins.
type Run = fn(&RelayPlan, &dyn Commands, &dyn Observer) -> longfat_relay::Result<RelayStats>;

/// A relay on a thread.
pub struct Running {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<longfat_relay::Result<RelayStats>>>,
    pub ready: Ready,
    pub notes: Arc<Notes>,
}

/// What the relay said.
#[derive(Default)]
pub struct Notes {
    pub closed: Mutex<Vec<ConnectionSummary>>,
    pub records: Mutex<Vec<Record>>,
    pub warnings: Mutex<Vec<String>>,
    pub reloads: Mutex<Vec<Result<(), String>>>,
    pub draining: AtomicBool,
}

impl Notes {
    /// Records of the direction to the server, so far.
    pub fn to_server(&self) -> Vec<RelaySample> {
        let of_it = |record: &Record| match record {
            Record::Relay(sample) if sample.direction == "client_to_server" => Some(sample.clone()),
            _ => None,
        };
        self.records.lock().unwrap().iter().filter_map(of_it).collect()
    }
}

struct Ear {
    notes: Arc<Notes>,
    ready: Mutex<mpsc::Sender<Ready>>,
    prepared: fn(),
}

impl Observer for Ear {
    fn prepared(&self) -> longfat_relay::Result<()> {
        (self.prepared)();
        Ok(())
    }
    fn ready(&self, ready: &Ready) {
        self.ready.lock().unwrap().send(ready.clone()).unwrap();
    }
    fn record(&self, record: Record) {
        self.notes.records.lock().unwrap().push(record);
    }
    fn closed(&self, summary: &ConnectionSummary) {
        self.notes.closed.lock().unwrap().push(summary.clone());
    }
    fn warning(&self, message: &str) {
        self.notes.warnings.lock().unwrap().push(message.to_owned());
    }
    fn reloaded(&self, outcome: Result<&RelayPlan, &str>) {
        self.notes.reloads.lock().unwrap().push(outcome.map(drop).map_err(str::to_owned));
    }
    fn draining(&self, _: usize, _: Duration) {
        self.notes.draining.store(true, Ordering::Release);
    }
    fn wants_summaries(&self) -> bool {
        true
    }
}

impl Running {
    pub fn start(namespace: &Namespace, plan: RelayPlan) -> Running {
        Running::start_and(namespace, plan, || {})
    }

    /// What it does on its thread when everything is prepared.
    pub fn start_and(namespace: &Namespace, plan: RelayPlan, prepared: fn()) -> Running {
        Running::begin(namespace, plan, prepared, longfat_relay::run).unwrap()
    }

    /// A successor of the relay of that name.
    pub fn upgrade(namespace: &Namespace, plan: RelayPlan, prepared: fn()) -> Result<Running, String> {
        Running::begin(namespace, plan, prepared, longfat_relay::upgrade)
    }

    fn begin(namespace: &Namespace, plan: RelayPlan, prepared: fn(), run: Run) -> Result<Running, String> {
        let (orders, notes) = (Arc::new(Orders::default()), Arc::new(Notes::default()));
        let (sender, receiver) = mpsc::channel();
        let ear = Ear { notes: Arc::clone(&notes), ready: Mutex::new(sender), prepared };
        let (namespace, commands) = (namespace.clone(), Arc::clone(&orders));
        let thread = std::thread::spawn(move || {
            let result = namespace.run(|| run(&plan, commands.as_ref(), &ear)).unwrap();
            drop(ear);
            result
        });
        match receiver.recv_timeout(PATIENCE) {
            Ok(ready) => Ok(Running { orders, thread: Some(thread), ready, notes }),
            Err(_) => Err(format!("the relay did not start: {:?}", thread.join())),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.ready.listening[0]
    }

    pub fn ask_to_stop(&self) {
        self.orders.stop.store(true, Ordering::Release);
    }

    /// Asks it to stop; when it takes no new connections any more.
    pub fn drain(&self) {
        self.ask_to_stop();
        path::eventually("the relay drains", || self.notes.draining.load(Ordering::Acquire));
    }

    /// Gives it another plan; when it has taken it.
    pub fn reload(&self, plan: RelayPlan) {
        assert_eq!(self.try_reload(plan), Ok(()));
    }

    /// What came of it.
    pub fn try_reload(&self, plan: RelayPlan) -> Result<(), String> {
        let reloads = || self.notes.reloads.lock().unwrap().clone();
        let before = reloads().len();
        *self.orders.plan.lock().unwrap() = Some(plan);
        path::eventually("the relay reloads", || reloads().len() > before);
        reloads().last().cloned().unwrap()
    }

    /// Waits until it has ended by itself; what it did.
    pub fn wait(mut self) -> RelayStats {
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    /// Stops the relay; what it did.
    pub fn stop(mut self) -> RelayStats {
        self.ask_to_stop();
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An endless reproducible stream of bytes (xorshift64).
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Sends `total` bytes of noise, then a FIN.
pub fn send_noise(stream: &TcpStream, seed: u64, total: usize) {
    try_send_noise(stream, seed, total).unwrap();
}

/// Sends noise where the other side may end the stream.
pub fn try_send_noise(stream: &TcpStream, seed: u64, total: usize) -> std::io::Result<()> {
    try_send_some_noise(stream, seed, total)?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// Sends noise without a FIN.
pub fn try_send_some_noise(stream: &TcpStream, seed: u64, total: usize) -> std::io::Result<()> {
    try_send_noise_slowly(stream, seed, total, (1 << 16, Duration::ZERO))
}

/// Sends noise, `piece` bytes at a time with `pause` between.
pub fn try_send_noise_slowly(
    mut stream: &TcpStream,
    seed: u64,
    total: usize,
    (piece, pause): (usize, Duration),
) -> std::io::Result<()> {
    let (mut noise, mut left, mut block) = (Noise::new(seed), total, vec![0; 1 << 16]);
    while left > 0 {
        let bytes = left.min(block.len());
        noise.fill(&mut block[..bytes]);
        for piece in block[..bytes].chunks(piece) {
            stream.write_all(piece)?;
            std::thread::sleep(pause);
        }
        left -= bytes;
    }
    Ok(())
}

/// Reads so many bytes, `piece` at a time with `pause` between, and checks every one.
pub fn check_some_noise(mut stream: &TcpStream, seed: u64, total: usize, (piece, pause): (usize, Duration)) {
    let (mut noise, mut left) = (Noise::new(seed), total);
    let (mut expected, mut got) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    while left > 0 {
        let bytes = left.min(expected.len());
        noise.fill(&mut expected[..bytes]);
        for piece in got[..bytes].chunks_mut(piece) {
            stream.read_exact(piece).unwrap();
            std::thread::sleep(pause);
        }
        assert!(got[..bytes] == expected[..bytes], "within {bytes} bytes, {left} before the last one");
        left -= bytes;
    }
}

/// Streams both ways at once, checked byte by byte, without an end.
pub fn talk(client: &TcpStream, far: &TcpStream, total: usize, reading: (usize, Duration)) {
    std::thread::scope(|scope| {
        scope.spawn(|| try_send_some_noise(client, 3, total).unwrap());
        scope.spawn(|| try_send_some_noise(far, 4, total).unwrap());
        let up = scope.spawn(|| check_some_noise(far, 3, total, reading));
        check_some_noise(client, 4, total, reading);
        up.join().unwrap();
    });
}

/// Reads to the FIN and checks every byte; how many there were.
pub fn check_noise(stream: &TcpStream, seed: u64) -> usize {
    check_noise_slowly(stream, seed, 1 << 16, Duration::ZERO)
}

/// Checks noise, `piece` bytes at a time with `pause` between.
pub fn check_noise_slowly(stream: &TcpStream, seed: u64, piece: usize, pause: Duration) -> usize {
    let (total, with_reset) = receive_noise(stream, seed, piece, pause);
    assert!(!with_reset, "a reset after {total} bytes");
    total
}

/// Reads to the end and checks every byte; how many there were, and whether the end was a reset.
pub fn receive_noise(mut stream: &TcpStream, seed: u64, piece: usize, pause: Duration) -> (usize, bool) {
    let (mut noise, mut total) = (Noise::new(seed), 0);
    let (mut expected, mut ahead, mut block) = (vec![0; 1 << 16], 0, vec![0; piece]);
    loop {
        let got = match stream.read(&mut block) {
            Ok(0) => return (total, false),
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                return (total, true);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("neither bytes nor an end: {error}"),
        };
        let mut rest = &block[..got];
        while !rest.is_empty() {
            if ahead == 0 {
                noise.fill(&mut expected);
                ahead = expected.len();
            }
            let from = expected.len() - ahead;
            let (some, others) = rest.split_at(rest.len().min(ahead));
            let same = expected[from..].iter().zip(some).take_while(|(expected, got)| expected == got);
            assert!(some == &expected[from..][..some.len()], "byte {} differs", total + same.count());
            ahead -= some.len();
            total += some.len();
            rest = others;
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

/// A stream to the other end, checked byte by byte.
pub fn carry(from: &TcpStream, to: &TcpStream, total: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_noise(from, 1, total));
        assert_eq!(check_noise(to, 1), total);
    });
}

/// Streams both ways at once, checked byte by byte.
pub fn exchange(client: &TcpStream, far: &TcpStream, total: usize) {
    exchange_slowly(client, far, total, 1 << 16, Duration::ZERO);
}

/// Exchanges noise, read `piece` bytes at a time with `pause` between.
pub fn exchange_slowly(client: &TcpStream, far: &TcpStream, total: usize, piece: usize, pause: Duration) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_noise(client, 1, total));
        scope.spawn(|| send_noise(far, 2, total));
        let up = scope.spawn(|| check_noise_slowly(far, 1, piece, pause));
        assert_eq!(check_noise_slowly(client, 2, piece, pause), total);
        assert_eq!(up.join().unwrap(), total);
    });
}

/// Closes with a reset.
#[allow(clippy::needless_pass_by_value)]
pub fn reset(stream: TcpStream) {
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
}

/// Reads until the end: true for a reset, false for a FIN.
pub fn ends_with_reset(mut stream: &TcpStream) -> bool {
    let mut block = vec![0; 1 << 16];
    loop {
        match stream.read(&mut block) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
            // The process was stopped for a while.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("neither a FIN nor a reset: {error}"),
        }
    }
}
