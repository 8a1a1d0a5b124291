//! Two nodes, their router, a wire and a server in network namespaces, and `longfat mobility` as processes.

use longfat_host::{
    Lease, Namespace,
    interface::{self, Offload},
    socket::{set_cc, tcp_info},
    sysctl,
};
use longfat_mobility::lan::PORT;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const SERVER: &str = "10.73.9.2:5001";
const PATIENCE: Duration = Duration::from_secs(60);

pub fn longfat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longfat")).args(arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Looks again and again; what never comes about is a failure.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// node - lan1, lan2 - router - wan - wire - server. Fields drop in order: the lease last.
pub struct Bed {
    pub nodes: [Namespace; 2],
    pub router: Namespace,
    pub wire: Namespace,
    pub server: Namespace,
    tag: String,
    directory: tempfile::TempDir,
    _lease: Lease,
}

impl Bed {
    pub fn new(tag: &str) -> Bed {
        let tag = format!("mb{}-{tag}", std::process::id());
        let lease = Lease::take(&tag).unwrap();
        let [first, second, router, wire, server] =
            ["n1", "n2", "r", "w", "s"].map(|name| lease.namespace(name).unwrap());
        for (index, node) in [(1, &first), (2, &second)] {
            let lan = format!("lan{index}");
            interface::veth(end(node, "eth0"), end(&router, &lan), 1500).unwrap();
            router.ip(&["addr", "add", &format!("10.73.{index}.1/24"), "dev", &lan]).unwrap();
            node.ip(&["addr", "add", &format!("10.73.{index}.2/24"), "dev", "eth0"]).unwrap();
            node.ip(&["route", "add", "default", "via", &format!("10.73.{index}.1")]).unwrap();
        }
        interface::veth(end(&router, "wan"), end(&wire, "left"), 1500).unwrap();
        interface::veth(end(&server, "eth0"), end(&wire, "right"), 1500).unwrap();
        router.ip(&["addr", "add", "10.73.9.1/24", "dev", "wan"]).unwrap();
        server.ip(&["addr", "add", "10.73.9.2/24", "dev", "eth0"]).unwrap();
        server.ip(&["route", "add", "default", "via", "10.73.9.1"]).unwrap();
        router.run(|| sysctl::write("net.ipv4.ip_forward", "1")).unwrap().unwrap();
        let ends = [
            (&first, "eth0"),
            (&second, "eth0"),
            (&router, "lan1"),
            (&router, "lan2"),
            (&router, "wan"),
            (&server, "eth0"),
        ];
        for (namespace, interface) in ends {
            namespace.run(|| plain_packets(interface)).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        Bed { nodes: [first, second], router, wire, server, tag, directory, _lease: lease }
    }

    /// A second way out of the router, which leads nowhere.
    pub fn spare(&self) {
        interface::veth(end(&self.router, "spare"), end(&self.wire, "nowhere"), 1500).unwrap();
        self.router.ip(&["addr", "add", "10.74.1.1/24", "dev", "spare"]).unwrap();
    }

    /// The wire without a driver: a bridge.
    pub fn cable(&self) {
        self.wire.ip(&["link", "add", "br0", "type", "bridge"]).unwrap();
        for end in ["left", "right"] {
            self.wire.ip(&["link", "set", end, "master", "br0"]).unwrap();
        }
        self.wire.ip(&["link", "set", "br0", "up"]).unwrap();
    }

    /// Nothing gets through any more, no host notices, and something of the stream was under way. A receiver that reads
    /// slowly closes its window now and then: whoever is cut off just then sends probes, and never has a timeout.
    pub fn cut(&self, stream: &Stream) {
        wait_for("a cut with data under way", || {
            self.wire.ip(&["link", "set", "br0", "down"]).unwrap();
            // Acknowledgements that had come through are taken in by then.
            std::thread::sleep(Duration::from_millis(50));
            let is_under_way = stream.info().unacked_segments > 0;
            if !is_under_way {
                self.mend();
            }
            is_under_way
        });
    }

    pub fn mend(&self) {
        self.wire.ip(&["link", "set", "br0", "up"]).unwrap();
    }

    /// What a process of this bed is called: names are of the whole machine.
    pub fn process(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub fn key(&self, name: &str) -> String {
        let path = self.path(name);
        longfat_mobility::Key::create(&path).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn follow(&self, node: &Namespace, name: &str, key: &str, audit: &Path) -> Program {
        self.follow_with(node, name, key, audit, &[])
    }

    /// By these options besides.
    pub fn follow_with(
        &self,
        node: &Namespace,
        name: &str,
        key: &str,
        audit: &Path,
        options: &[&str],
    ) -> Program {
        let (name, audit) = (self.process(name), audit.to_str().unwrap());
        let arguments = ["mobility", "follow", "--key", key, "--name", &name, "--audit", audit];
        Program::start(node, &[&arguments, options].concat())
    }

    /// The router 'bus' announces, by these options besides.
    pub fn announce(&self, key: &str, interfaces: &[&str], options: &[&str]) -> Program {
        let name = self.process("router");
        let mut arguments = vec!["mobility", "announce", "--router", "bus", "--key", key, "--name", &name];
        interfaces.iter().for_each(|interface| arguments.extend(["-i", *interface]));
        arguments.extend(options);
        Program::start(&self.router, &arguments)
    }

    pub fn run(&self, namespace: &Namespace, arguments: &[&str]) -> Output {
        namespace.command(env!("CARGO_BIN_EXE_longfat")).args(arguments).output().unwrap()
    }

    /// From the router to its nodes.
    pub fn multicast(&self, group: IpAddr, datagram: &[u8]) {
        let send = || {
            let found = longfat_mobility::lan::interfaces(&["lan1".to_owned()]).unwrap();
            let mouth = longfat_mobility::lan::Mouth::open(PORT, false).unwrap();
            let mut interface = found["lan1"].clone();
            interface.addresses.retain(|address| address.is_ipv4() == group.is_ipv4());
            mouth.say(&interface, datagram) == 1
        };
        // An IPv6 address takes a second to become one (duplicate address detection).
        wait_for("an address to speak from", || self.router.run(send).unwrap());
    }

    /// The audit so far.
    pub fn lines(&self, audit: &Path) -> Vec<Value> {
        let text = fs::read_to_string(audit).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for entry in fs::read_dir("/run/longfat-mobility").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{}-", self.tag)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn end<'a>(namespace: &'a Namespace, name: &'a str) -> interface::End<'a> {
    interface::End { namespace, name }
}

fn plain_packets(interface: &str) {
    for offload in [Offload::Tso, Offload::Gso, Offload::Gro] {
        interface::set_offload(interface, offload, false).unwrap();
    }
}

/// A `longfat` that serves until it is dropped.
pub struct Program {
    child: Child,
}

impl Program {
    pub fn start(namespace: &Namespace, arguments: &[&str]) -> Program {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_longfat"));
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{arguments:?}");
        Program { child }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: takes numbers only; the child has not been waited for, so that the pid is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// What it may do: its effective capabilities, a bit each.
    pub fn capabilities(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let set = text.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        u64::from_str_radix(set.trim(), 16).unwrap()
    }

    /// Waits until it ends by itself; its exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        let mut code = None;
        wait_for("the end of a process", || {
            code = self.child.try_wait().unwrap().map(|status| status.code());
            code.is_some()
        });
        code.flatten()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(libc::SIGTERM);
            let status = self.child.wait().unwrap();
            assert!(std::thread::panicking() || status.success(), "{status}");
        }
    }
}

/// One end of a connection that is always busy, until it is dropped.
pub struct Stream {
    socket: Option<TcpStream>,
    stop: Arc<AtomicBool>,
}

impl Stream {
    /// Takes whatever comes, from anybody.
    pub fn sink(namespace: &Namespace) -> Stream {
        let listener = namespace.run(|| TcpListener::bind(SERVER).unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        listener.set_nonblocking(true).unwrap();
        let ended = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                if let Ok((mut socket, _)) = listener.accept() {
                    std::thread::spawn(move || {
                        socket.set_nonblocking(false).unwrap();
                        let mut buffer = vec![0; 1 << 16];
                        while socket.read(&mut buffer).is_ok_and(|length| length > 0) {}
                    });
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Stream { socket: None, stop }
    }

    /// Sends without end under this congestion control.
    pub fn source(namespace: &Namespace, cc: &str) -> Stream {
        let connect = || {
            let socket = TcpStream::connect(SERVER).unwrap();
            set_cc(&socket, cc).unwrap();
            socket
        };
        let socket = namespace.run(connect).unwrap();
        let mut writer = socket.try_clone().unwrap();
        std::thread::spawn(move || while writer.write_all(&[7; 1 << 14]).is_ok() {});
        Stream { socket: Some(socket), stop: Arc::default() }
    }

    fn info(&self) -> longfat_host::socket::TcpInfo {
        tcp_info(self.socket.as_ref().unwrap()).unwrap()
    }

    pub fn ca_state(&self) -> u8 {
        self.info().ca_state
    }

    pub fn is_established(&self) -> bool {
        self.info().state == 1
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(socket) = &self.socket {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }
}
