//! A client, a relay's host and a server in network namespaces, and `longfat relay` as a process.

use longfat_host::{Lease, Namespace, interface, run_command, sysctl};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const SERVER: &str = "10.72.2.2:80";

/// client - lan, relay, wan - server.
pub struct Bed {
    pub client: Namespace,
    pub relay: Namespace,
    pub server: Namespace,
    _lease: Lease,
}

impl Bed {
    pub fn new(tag: &str) -> Bed {
        let lease = Lease::take(&format!("cr{}-{tag}", std::process::id())).unwrap();
        let [client, relay, server] = ["c", "r", "s"].map(|name| lease.namespace(name).unwrap());
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&client, "eth0"), end(&relay, "lan"), 1500).unwrap();
        interface::veth(end(&server, "eth0"), end(&relay, "wan"), 1500).unwrap();
        client.ip(&["addr", "add", "10.72.1.2/24", "dev", "eth0"]).unwrap();
        relay.ip(&["addr", "add", "10.72.1.1/24", "dev", "lan"]).unwrap();
        relay.ip(&["addr", "add", "10.72.2.1/24", "dev", "wan"]).unwrap();
        server.ip(&["addr", "add", "10.72.2.2/24", "dev", "eth0"]).unwrap();
        client.ip(&["route", "add", "default", "via", "10.72.1.1"]).unwrap();
        server.ip(&["route", "add", "default", "via", "10.72.2.1"]).unwrap();
        for namespace in [&client, &relay, &server] {
            let reno = || sysctl::write("net.ipv4.tcp_congestion_control", "reno");
            namespace.run(reno).unwrap().unwrap();
        }
        Bed { client, relay, server, _lease: lease }
    }

    /// nft tables, routing rules and the forwarding switch of the relay's namespace.
    pub fn footprint(&self) -> String {
        let mut nft = self.relay.command("nft");
        nft.args(["list", "ruleset"]);
        let rules = ["-4", "-6"].map(|family| self.relay.ip(&[family, "rule", "show"]).unwrap()).concat();
        let forwarding = self.relay.run(|| sysctl::read("net.ipv4.ip_forward").unwrap()).unwrap();
        format!("{}{rules}{forwarding}", run_command(nft).unwrap())
    }

    pub fn start(&self, command: Command) -> Relay {
        Relay::start(command)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.relay.command(env!("CARGO_BIN_EXE_longfat"));
        command.arg("relay").args(args);
        command
    }

    pub fn listen(&self) -> TcpListener {
        self.server.run(|| TcpListener::bind(SERVER).unwrap()).unwrap()
    }

    /// Sends a request to a relay whose `metrics` are at 127.0.0.1:9469; the whole answer.
    pub fn ask_metrics(&self, request: &str) -> String {
        let mut stream = self.relay.run(|| TcpStream::connect("127.0.0.1:9469").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn connect(&self, address: &str) -> TcpStream {
        let stream = self.client.run(|| TcpStream::connect(address)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// A running `longfat relay`; killed on drop.
pub struct Relay {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Relay {
    pub fn start(mut command: Command) -> Relay {
        Relay::start_with(command.stderr(Stdio::piped()))
    }

    /// Starts the relay with a standard error of the test's own.
    pub fn start_with(command: &mut Command) -> Relay {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if !line.starts_with("ready") && !line.starts_with("{\"ready\"") {
            let mut said = String::new();
            child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said).unwrap());
            panic!("not ready: {line}{said}");
        }
        Relay { child, stdout }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// To its process group, which is its own, as a terminal does.
    pub fn signal_group(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid, and the group's, is its own.
        assert_eq!(unsafe { libc::kill(-(self.child.id() as i32), signal) }, 0);
    }

    /// Waits for the end: exit code and what it printed after "ready".
    pub fn wait(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Echoes on every connection until its client finishes, each on a thread.
pub fn echo_server(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut (&stream), &mut (&stream));
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
}

pub fn ask(mut stream: &TcpStream, text: &[u8]) {
    stream.write_all(text).unwrap();
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, text);
}
