//! `longfat tcb mark-ce` on a living connection: the sender hears of it, or cannot, and the exit code says which.

use longfat_host::{Lease, Namespace, interface, socket, sysctl};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStderr, Stdio},
    time::Duration,
};

const BYTES: usize = 1 << 20;

/// A sender and the host that shall echo congestion.
struct Bed {
    sender: Namespace,
    host: Namespace,
    _lease: Lease,
}

impl Bed {
    fn new(tag: &str, ecn: &str) -> Bed {
        let lease = Lease::take(&format!("cg{}-{tag}", std::process::id())).unwrap();
        let [sender, host] = ["s", "h"].map(|name| lease.namespace(name).unwrap());
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&sender, "eth0"), end(&host, "eth0"), 1500).unwrap();
        for (namespace, address) in [(&sender, "10.73.0.2/24"), (&host, "10.73.0.1/24")] {
            namespace.ip(&["addr", "add", address, "dev", "eth0"]).unwrap();
            let reno = || sysctl::write("net.ipv4.tcp_congestion_control", "reno");
            namespace.run(reno).unwrap().unwrap();
        }
        sender.run(|| sysctl::write("net.ipv4.tcp_ecn", ecn)).unwrap().unwrap();
        Bed { sender, host, _lease: lease }
    }

    fn connection(&self) -> (TcpStream, TcpStream) {
        let listener = self.host.run(|| TcpListener::bind("10.73.0.1:0")).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let near = self.sender.run(|| TcpStream::connect(to)).unwrap().unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// The command, when it marks.
    fn congest(&self, far: &TcpStream, every: &str) -> (Child, BufReader<ChildStderr>) {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_longfat"));
        let port = far.local_addr().unwrap().port().to_string();
        command.args(["tcb", "mark-ce", "sport", &port, "--every", every, "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("marking"), "{line}");
        (child, stderr)
    }
}

/// Ends it as Ctrl-C does: its exit code and what it counted.
fn end(mut child: Child) -> (Option<i32>, Value) {
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code(), serde_json::from_str(&text).unwrap())
}

fn carry(near: &mut TcpStream, far: &mut TcpStream) {
    far.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (block, mut got) = (vec![7; 16 << 10], vec![0; 16 << 10]);
    for _ in 0..BYTES / block.len() {
        near.write_all(&block).unwrap();
        far.read_exact(&mut got).unwrap();
    }
}

#[test]
fn a_sender_hears_of_congestion_once_per_so_many_bytes() {
    let bed = Bed::new("ecn", "1");
    let (mut near, mut far) = bed.connection();
    let (child, _stderr) = bed.congest(&far, "64KiB");
    carry(&mut near, &mut far);
    let (code, seen) = end(child);
    assert_eq!((code, &seen["received_bytes"]), (Some(0), &Value::from(BYTES)), "{seen}");
    let marks = seen["marked_packets"].as_u64().unwrap();
    assert!((8..=16).contains(&marks), "{seen}");
    assert!(socket::tcp_info(&near).unwrap().delivered_ce_segments > 0);
    // It is gone, and so are the marks.
    carry(&mut near, &mut far);
    let heard = socket::tcp_info(&near).unwrap().delivered_ce_segments;
    carry(&mut near, &mut far);
    assert_eq!(socket::tcp_info(&near).unwrap().delivered_ce_segments, heard);
}

#[test]
fn a_sender_without_ecn_cannot_hear_it_and_the_exit_code_says_so() {
    let bed = Bed::new("none", "0");
    let (mut near, mut far) = bed.connection();
    let (child, _stderr) = bed.congest(&far, "64KiB");
    carry(&mut near, &mut far);
    let (code, seen) = end(child);
    assert_eq!((code, &seen["marked_packets"]), (Some(1), &Value::from(0)), "{seen}");
    assert!(seen["incapable_packets"].as_u64().unwrap() > 0, "{seen}");
}
