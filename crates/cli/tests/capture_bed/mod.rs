//! Two hosts and a cable between them, or an emulated link, and `longfat` at one of them.

use longfat_host::{
    Lease, Namespace,
    interface::{
        self,
        Offload::{Gro, Gso, Tso},
    },
};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _, sink},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

pub struct Bed {
    pub near: Namespace,
    pub far: Namespace,
    pub folder: tempfile::TempDir,
    link: Option<Child>,
    // Last: the namespaces go with it.
    _lease: Lease,
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut link) = self.link.take() {
            link.kill().unwrap();
            link.wait().unwrap();
        }
    }
}

impl Bed {
    pub fn new(tag: &str) -> Bed {
        let (lease, [near, far]) = hosts(tag);
        interface::veth(end(&near, "eth0"), end(&far, "eth0"), 1500).unwrap();
        let bed = Bed { near, far, folder: tempfile::tempdir().unwrap(), link: None, _lease: lease };
        bed.address();
        bed
    }

    /// With an emulated link between the two: packets are segments of MTU size.
    pub fn over_link(tag: &str, plan: &str) -> Bed {
        let (lease, [near, far]) = hosts(tag);
        let middle = lease.namespace("m").unwrap();
        for (host, name) in [(&near, "a"), (&far, "b")] {
            interface::veth(end(host, "eth0"), end(&middle, name), 1500).unwrap();
            let off = || [Tso, Gso, Gro].map(|one| interface::set_offload("eth0", one, false).unwrap());
            host.run(off).unwrap();
            host.ip(&["link", "set", "eth0", "gso_max_segs", "1"]).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link.toml");
        std::fs::write(&path, plan).unwrap();
        let mut link = middle.command(env!("CARGO_BIN_EXE_longfat"));
        link.args(["link", "drive", "--schedule-on-usr1", "--a", "a", "--b", "b", "--plan"]).arg(path);
        let mut link = link.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(link.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        let bed = Bed { near, far, folder, link: Some(link), _lease: lease };
        bed.address();
        bed
    }

    /// Nobody need ask who has an address: a SYN that waits for an answer that a path loses times out, is counted by
    /// the kernel, and nothing is sent.
    fn address(&self) {
        let mac = |number: u8| format!("02:00:00:00:77:0{number}");
        for (host, own, other) in [(&self.near, 1, 2), (&self.far, 2, 1)] {
            host.ip(&["link", "set", "eth0", "address", &mac(own)]).unwrap();
            host.ip(&["addr", "add", &format!("10.77.0.{own}/24"), "dev", "eth0"]).unwrap();
            let to = format!("10.77.0.{other}");
            let neighbour = ["neigh", "add", &to, "lladdr", &mac(other), "dev", "eth0", "nud", "permanent"];
            host.ip(&neighbour).unwrap();
        }
    }

    /// Lets the link's schedule begin.
    pub fn start_schedule(&self) {
        signal(self.link.as_ref().unwrap(), libc::SIGUSR1);
    }

    /// Sends so many octets from near to somebody at far who reads them until the connection ends.
    pub fn send(&self, bytes: usize) -> TcpStream {
        let listener = self.far.run(|| TcpListener::bind("10.77.0.2:0")).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let reader =
            std::thread::spawn(move || std::io::copy(&mut listener.accept().unwrap().0, &mut sink()));
        let mut near = self.near.run(|| TcpStream::connect(to)).unwrap().unwrap();
        near.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        near.write_all(&vec![7; bytes]).unwrap();
        drop(reader);
        near
    }

    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A capture that has begun.
    pub fn capture(&self, args: &[&str]) -> Child {
        self.capture_in(&self.near, args)
    }

    pub fn capture_in(&self, namespace: &Namespace, args: &[&str]) -> Child {
        self.capture_on("eth0", namespace, args)
    }

    pub fn capture_on(&self, interface: &str, namespace: &Namespace, args: &[&str]) -> Child {
        let mut child = longfat(&[&["capture", "-i", interface, "--netns", namespace.name()], args].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        err.read_line(&mut said).unwrap();
        assert!(said.starts_with("capturing on"), "{said}");
        std::thread::spawn(move || std::io::copy(&mut err, &mut std::io::stderr()));
        child
    }

    /// Sends so many octets from near to far, and one back.
    pub fn transfer(&self, bytes: usize) {
        self.transfer_between(&self.near, &self.far, "10.77.0.2:0", bytes);
    }

    pub fn transfer_between(&self, from: &Namespace, to: &Namespace, address: &str, bytes: usize) {
        let listener = to.run(|| TcpListener::bind(address)).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let mut near = from.run(|| TcpStream::connect(to)).unwrap().unwrap();
        let (mut far, _) = listener.accept().unwrap();
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        let reader = std::thread::spawn(move || {
            let (mut left, mut buffer) = (bytes, vec![0; 1 << 16]);
            while left > 0 {
                left -= far.read(&mut buffer).unwrap();
            }
            far.write_all(&[1]).unwrap();
        });
        near.write_all(&vec![7; bytes]).unwrap();
        near.read_exact(&mut [0]).unwrap();
        reader.join().unwrap();
    }
}

fn hosts(tag: &str) -> (Lease, [Namespace; 2]) {
    let id = format!("cc{}-{tag}", std::process::id());
    let lease = Lease::take(&id).expect("root and iproute2 are needed");
    let namespaces = ["n", "f"].map(|name| lease.namespace(name).unwrap());
    (lease, namespaces)
}

fn end<'a>(namespace: &'a Namespace, name: &'a str) -> interface::End<'a> {
    interface::End { namespace, name }
}

pub fn longfat(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.args(args);
    command
}

pub fn signal(child: &Child, name: i32) {
    // SAFETY: no memory is passed; the child is ours and was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, name) }, 0);
}

/// Waits a bounded time for the end.
pub fn ended(mut child: Child) -> Output {
    let deadline = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the capture did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

pub fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(bytes)))
}

pub fn analyzed(files: &[&str]) -> Value {
    let output = longfat(&[&["analyze", "--json"], files].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    json(&output.stdout)
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}
