//! Users that programs become which root has started, what they keep, that they work as before, and what is left when
//! they end.

use crate::patience::{PATIENCE, eventually};
use longfat_host::{Lease, Namespace};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// A host with an interface that can multicast, and a directory that is root's alone.
struct Bed {
    host: Namespace,
    directory: tempfile::TempDir,
    _lease: Lease,
}

impl Bed {
    fn new(tag: &str) -> Bed {
        let lease = Lease::take(&format!("us{}-{tag}", std::process::id())).unwrap();
        let host = lease.namespace("h").unwrap();
        host.ip(&["link", "set", "lo", "up"]).unwrap();
        host.ip(&["link", "add", "lan", "type", "veth", "peer", "name", "other"]).unwrap();
        host.ip(&["addr", "add", "10.79.0.1/24", "dev", "lan"]).unwrap();
        ["lan", "other"].iter().for_each(|name| drop(host.ip(&["link", "set", name, "up"]).unwrap()));
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Bed { host, directory, _lease: lease }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A file that root alone may read.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Files of the capture's ring.
    fn ring(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path()).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("ring.")).collect()
    }

    /// Starts one, and waits until it says that it works. A capture takes the place of no earlier one.
    fn start(&self, program: &Program, user: &[&str]) -> Running {
        self.ring().iter().for_each(|path| fs::remove_file(path).unwrap());
        let log = self.path("log");
        let to = fs::File::create(&log).unwrap();
        let mut command = self.host.command(env!("CARGO_BIN_EXE_longfat"));
        command.args(&program.arguments).args(user).stdin(Stdio::null());
        let child = command.stdout(to.try_clone().unwrap()).stderr(to).spawn().unwrap();
        let mut running = Running { child, log };
        running.wait_until_it_says(program.ready);
        running
    }
}

struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_until_it_says(&mut self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.said().contains(what) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "not '{what}' ({ended:?}): {}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until_it_ends(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it goes on: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn status(&self, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Processes that it started and that live.
    fn children(&self) -> Vec<i32> {
        let is_its = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after =
                stat.rsplit_once(')').map(|(_, after)| after.split_whitespace().nth(1).map(str::parse));
            after.flatten() == Some(Ok(self.child.id()))
        };
        let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.to_str()?.parse().ok()).filter(is_its).collect()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn end(&mut self, signal: i32) -> Option<i32> {
        self.signal(signal);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Program {
    arguments: Vec<String>,
    /// What it says when it works.
    ready: &'static str,
    /// Effective, permitted, ambient and bounding capabilities.
    keeps: &'static str,
    /// Files of root's that go with it.
    goes: Vec<PathBuf>,
    /// Whether a process stays root beside it.
    has_monitor: bool,
    works: fn(&Bed, &mut Running),
}

const CAP_NONE: &str = "0000000000000000";

fn program(bed: &Bed, name: &str) -> Program {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (key, socket) = (bed.text("key"), bed.text("control.sock"));
    match name {
        "relay" => Program {
            arguments: words(&format!("relay run {}", bed.text("relay.toml"))),
            ready: "info ready",
            keeps: "0000000000001400",
            goes: vec![bed.path("control.sock")],
            has_monitor: true,
            works: relays_and_reads_its_file_again,
        },
        "follow" => Program {
            arguments: words(&format!(
                "mobility follow --key {key} --socket {socket} --state {}",
                bed.text("state.json")
            )),
            ready: "ready\n",
            keeps: "0000008000001000",
            goes: vec![bed.path("control.sock")],
            has_monitor: true,
            works: |bed, _| answers_on_its_socket(bed),
        },
        "announce" => Program {
            arguments: words(&format!("mobility announce --key {key} --interface lan --socket {socket}")),
            ready: "ready\n",
            keeps: CAP_NONE,
            goes: vec![bed.path("control.sock")],
            has_monitor: true,
            works: |bed, _| answers_on_its_socket(bed),
        },
        "avail" => Program {
            arguments: words("avail --metrics 127.0.0.1:9470"),
            ready: "metrics at",
            keeps: "000000c000281004",
            goes: Vec::new(),
            has_monitor: false,
            works: |bed, _| {
                let answer = get(bed, 9470, "/metrics");
                assert!(answer.contains("longfat_avail_up 1"), "{answer}");
            },
        },
        "capture" => Program {
            arguments: words(&format!("capture -i lan --file-size 4KB --files 2 -o {}", bed.text("ring"))),
            ready: "capturing on",
            keeps: "000000c000001000",
            goes: Vec::new(),
            has_monitor: true,
            works: captures_into_a_ring,
        },
        "lab serve" => Program {
            arguments: words(&format!("lab serve {} --listen 127.0.0.1:9471", bed.text("results"))),
            ready: "http://",
            keeps: "0000000000000004",
            goes: Vec::new(),
            has_monitor: false,
            works: |bed, _| assert!(get(bed, 9471, "/").starts_with("HTTP/1.1 200")),
        },
        "transfer serve" => Program {
            arguments: words("transfer serve --listen 127.0.0.1:9472"),
            ready: "ready",
            keeps: CAP_NONE,
            goes: Vec::new(),
            has_monitor: false,
            works: |bed, _| {
                let mut send = bed.host.command(env!("CARGO_BIN_EXE_longfat"));
                let output = send.args(["transfer", "send", "127.0.0.1:9472", "--bytes", "100KB"]).output();
                assert!(output.as_ref().unwrap().status.success(), "{output:?}");
            },
        },
        other => panic!("'{other}'"),
    }
}

fn prepare(bed: &Bed) {
    longfat_host::Key::create(&bed.path("key")).unwrap();
    fs::create_dir(bed.path("results")).unwrap();
    bed.write("relay.toml", &relay_file(bed, "first"));
}

fn relay_file(bed: &Bed, rule: &str) -> String {
    let socket = bed.path("control.sock");
    let socket = socket.display();
    format!(
        "control = {{ socket = '{socket}' }}\n[[listen]]\naddress = '127.0.0.1:7001'\nto = '127.0.0.1:7002'\n\
         [[rule]]\nname = '{rule}'\naction = 'relay'\n"
    )
}

fn relays_and_reads_its_file_again(bed: &Bed, relay: &mut Running) {
    let listener = bed.host.run(|| TcpListener::bind("127.0.0.1:7002").unwrap()).unwrap();
    let mut client = bed.host.run(|| TcpStream::connect("127.0.0.1:7001").unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"ping").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut got = [0; 4];
    server.read_exact(&mut got).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"pong");
    // Renamed into its place, as editors do: another file, which root alone may read.
    bed.write("new.toml", &relay_file(bed, "second"));
    fs::rename(bed.path("new.toml"), bed.path("relay.toml")).unwrap();
    relay.signal(libc::SIGHUP);
    relay.wait_until_it_says("info reloaded");
    let status =
        longfat_relay::control::ask(&bed.path("control.sock"), longfat_relay::control::STATUS).unwrap();
    assert!(status.rules.iter().any(|rule| rule == "second"), "{:?}", status.rules);
    bed.write("relay.toml", "[[listen]]\n");
    relay.signal(libc::SIGHUP);
    relay.wait_until_it_says("reload_refused");
    bed.write("relay.toml", &relay_file(bed, "first"));
}

fn answers_on_its_socket(bed: &Bed) {
    let status = longfat_mobility::control::ask(&bed.path("control.sock"), "status").unwrap();
    assert!(status["role"].is_string(), "{status}");
}

fn captures_into_a_ring(bed: &Bed, _: &mut Running) {
    let socket = bed.host.run(|| std::net::UdpSocket::bind("10.79.0.1:0").unwrap()).unwrap();
    socket.set_broadcast(true).unwrap();
    let is_round = || {
        (0..20).for_each(|_| assert_eq!(socket.send_to(&[0; 100], "10.79.0.255:9").unwrap(), 100));
        !bed.ring().is_empty() && !bed.ring().contains(&bed.path("ring.00001"))
    };
    eventually("the ring has gone round", is_round);
    for file in bed.ring() {
        use std::os::unix::fs::MetadataExt as _;
        assert!(fs::metadata(&file).map_or(true, |found| found.uid() == 0), "{} is root's", file.display());
    }
}

fn get(bed: &Bed, port: u16, path: &str) -> String {
    let mut stream = bed.host.run(|| TcpStream::connect(("127.0.0.1", port)).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn service_uid() -> String {
    // Of namespaces, this test needs root as it is.
    longfat_host::confine::Account::choose(None).unwrap().unwrap().uid.to_string()
}

/// Started by root without a word, it is somebody else with little, works, and nothing of root's is left of it.
fn becomes_another_user(name: &str) {
    let bed = Bed::new(&name.replace(' ', "-"));
    prepare(&bed);
    let program = program(&bed, name);
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut running = bed.start(&program, &[]);
        let uid = service_uid();
        assert_eq!(running.status("Uid:"), [uid.as_str(); 4].join(" "));
        assert!(!running.status("Gid:").split(' ').any(|gid| gid == "0"));
        assert_eq!(running.status("Groups:"), "");
        for set in ["CapEff:", "CapPrm:", "CapBnd:", "CapAmb:"] {
            assert_eq!(running.status(set), program.keeps, "{set}");
        }
        assert_eq!((running.status("Seccomp:"), running.status("NoNewPrivs:")), ("2".into(), "1".into()));
        let monitors = running.children();
        assert_eq!(monitors.len(), usize::from(program.has_monitor));
        (program.works)(&bed, &mut running);
        program.goes.iter().for_each(|path| assert!(path.exists(), "{}", path.display()));
        let code = running.end(signal);
        if signal == libc::SIGTERM {
            assert_eq!(code, Some(0), "{}", running.said());
            // At once: it is waited for.
            program.goes.iter().for_each(|path| assert!(!path.exists(), "{}", path.display()));
        }
        eventually("what root made is gone", || !program.goes.iter().any(|path| path.exists()));
        let lives = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
        eventually("nobody stays root", || !monitors.iter().any(lives));
    }
}

/// `--user root`: it stays root, confined, with nobody beside it.
fn stays_root_where_that_is_asked_for(name: &str) {
    let bed = Bed::new(&format!("r-{}", name.replace(' ', "-")));
    prepare(&bed);
    let program = program(&bed, name);
    let mut running = bed.start(&program, &["--user", "root"]);
    assert_eq!((running.status("Uid:"), running.status("Seccomp:")), ("0 0 0 0".into(), "2".into()));
    assert!(running.children().is_empty());
    (program.works)(&bed, &mut running);
    assert_eq!(running.end(libc::SIGTERM), Some(0), "{}", running.said());
    assert!(!program.goes.iter().any(|path| path.exists()));
}

/// Whoever stays root beside it is killed: it ends in order, fails, says why, and can be started again.
fn ends_when_its_monitor_is_killed(name: &str) {
    let bed = Bed::new(&format!("k-{name}"));
    prepare(&bed);
    let program = program(&bed, name);
    let mut running = bed.start(&program, &[]);
    (program.works)(&bed, &mut running);
    for monitor in running.children() {
        // SAFETY: takes numbers only; the pid is that of a child of a process that lives.
        assert_eq!(unsafe { libc::kill(monitor, libc::SIGKILL) }, 0);
    }
    let ended = running.wait_until_it_ends();
    let said = running.said();
    assert_eq!(ended.code(), Some(2), "{said}");
    assert!(said.contains("was killed, so this one has ended as by SIGTERM; start it again"), "{said}");
    let left = bed.host.command("nft").args(["list", "ruleset"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "rules");
    // What lies in a directory of root's only root can remove: the next start does.
    let mut again = bed.start(&program, &[]);
    assert_eq!(again.end(libc::SIGTERM), Some(0), "{}", again.said());
    assert!(!program.goes.iter().any(|path| path.exists()));
}

#[test]
fn a_relay_whose_monitor_is_killed_ends_in_order_and_says_why() {
    ends_when_its_monitor_is_killed("relay");
}

#[test]
fn a_follower_whose_monitor_is_killed_ends_in_order_and_says_why() {
    ends_when_its_monitor_is_killed("follow");
}

#[test]
fn an_announcer_whose_monitor_is_killed_ends_in_order_and_says_why() {
    ends_when_its_monitor_is_killed("announce");
}

#[test]
fn a_capture_whose_monitor_is_killed_ends_in_order_and_says_why() {
    ends_when_its_monitor_is_killed("capture");
}

macro_rules! programs {
    ($($name:literal: $becomes:ident, $stays:ident;)*) => {
        $(
            #[test]
            fn $becomes() {
                becomes_another_user($name);
            }

            #[test]
            fn $stays() {
                stays_root_where_that_is_asked_for($name);
            }
        )*
    };
}

programs! {
    "relay": a_relay_becomes_another_user, a_relay_stays_root_when_told;
    "follow": a_follower_becomes_another_user, a_follower_stays_root_when_told;
    "announce": an_announcer_becomes_another_user, an_announcer_stays_root_when_told;
    "avail": avail_becomes_another_user, avail_stays_root_when_told;
    "capture": a_capture_becomes_another_user, a_capture_stays_root_when_told;
    "lab serve": lab_serve_becomes_another_user, lab_serve_stays_root_when_told;
    "transfer serve": transfer_serve_becomes_another_user, transfer_serve_stays_root_when_told;
}
