//! What a relay leaves, wanted or not: refusals, routes, settings; how the next one finds it, and what a cleanup
//! survives.

use crate::{
    patience::{PATIENCE, eventually},
    programs,
    relay_bed::{Bed, Relay, SERVER, ask, echo_server},
};
use longfat_host::sysctl;
use std::{
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

const FORWARDING: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];

/// A relay with a file and a log; killed on drop.
struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
}

impl Daemon {
    fn run(bed: &Bed, file: &str) -> Daemon {
        Daemon::run_as(bed, file, &[])
    }

    fn run_as(bed: &Bed, file: &str, user: &[&str]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("relay.toml");
        let socket = directory.path().join("control.sock");
        std::fs::write(&path, format!("control = {{ socket = '{}' }}\n{file}", socket.display())).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut command = bed.command(&["run", path.to_str().unwrap()]);
        command.args(user);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Daemon { child, directory }
    }

    fn start(bed: &Bed, file: &str) -> Daemon {
        Daemon::run(bed, file).once_ready()
    }

    fn once_ready(self) -> Daemon {
        let mut daemon = self;
        let deadline = Instant::now() + PATIENCE;
        while !daemon.log().contains("info ready") {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}\n{}", daemon.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    /// One that does not come to relaying: why.
    fn fails(bed: &Bed, file: &str) -> String {
        let mut daemon = Daemon::run(bed, file);
        assert_eq!(daemon.child.wait().unwrap().code(), Some(2), "{}", daemon.log());
        daemon.log()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    fn end(&mut self, signal: i32) -> Option<i32> {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Exit code, and what was said.
fn outcome(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), said.concat())
}

fn set_forwarding(bed: &Bed, value: &str) {
    FORWARDING.iter().for_each(|key| bed.relay.run(|| sysctl::write(key, value)).unwrap().unwrap());
}

fn forwarding(bed: &Bed) -> [String; 2] {
    FORWARDING.map(|key| bed.relay.run(|| sysctl::read(key)).unwrap().unwrap())
}

fn attempt(bed: &Bed, patience: Duration) -> std::io::Result<TcpStream> {
    let server = SERVER.parse().unwrap();
    bed.client.run(|| TcpStream::connect_timeout(&server, patience)).unwrap()
}

fn is_refused(bed: &Bed) {
    let outcome = attempt(bed, Duration::from_millis(700));
    assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
}

/// Connects again and again while `work` runs: how often somebody answered.
fn hammer(bed: &Bed, work: impl FnOnce()) -> u64 {
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let is_answered = attempt(bed, Duration::from_millis(20)).is_ok();
                answered.fetch_add(u64::from(is_answered), Ordering::Relaxed);
            }
        });
        work();
        stop.store(true, Ordering::Relaxed);
    });
    answered.into_inner()
}

fn accepted(bed: &Bed) -> u64 {
    let text = bed.ask_metrics("GET /metrics HTTP/1.1\r\n\r\n");
    let count = text.lines().find_map(|line| line.strip_prefix("longfat_relay_accepted_connections_total "));
    count.unwrap().parse().unwrap()
}

/// A relay that fails closed is killed; others of its name that cannot start leave its refusals, and one that can takes
/// over without a gap.
fn refusals_outlive_failed_starts(tag: &str, accept: &str, signal: i32) {
    let bed = Bed::new(tag);
    set_forwarding(&bed, "1");
    let before = bed.footprint();
    echo_server(bed.listen());
    let file = |more: &str| {
        format!(
            "fail = 'closed'\ndrain = '1s'\nmetrics = '127.0.0.1:9469'\n[intercept]\ninterfaces = 'lan'\n{more}\
             [[rule]]\nname = 'web'\nport = 80\naccept = '{accept}'\n"
        )
    };
    let mut first = Daemon::start(&bed, &file(""));
    ask(&bed.connect(SERVER), b"taken");
    first.end(signal);
    is_refused(&bed);
    let answered = hammer(&bed, || {
        let blocker = bed.relay.run(|| TcpListener::bind("127.0.0.1:9469")).unwrap().unwrap();
        let said = Daemon::fails(&bed, &file(""));
        assert!(said.contains("127.0.0.1:9469"), "{said}");
        drop(blocker);
        // Its numbers are somebody's.
        bed.relay.ip(&["rule", "add", "priority", "20", "fwmark", "0x100", "lookup", "5000"]).unwrap();
        let said = Daemon::fails(&bed, &file("mark = 256\n"));
        assert!(said.contains("--mark"), "{said}");
        bed.relay.ip(&["rule", "del", "priority", "20"]).unwrap();
    });
    assert_eq!(answered, 0, "the gate was open");
    is_refused(&bed);
    let mut last = None;
    let answered = hammer(&bed, || {
        last = Some(Daemon::start(&bed, &file("")));
        eventually("connections are taken again", || accepted(&bed) > 3);
    });
    // The kernel answers before the relay accepts: what waits in the backlog is counted soon, what went past the relay
    // never.
    eventually("every connection answered was relayed", || answered <= accepted(&bed));
    ask(&bed.connect(SERVER), b"taken again");
    let mut last = last.unwrap();
    last.end(libc::SIGTERM);
    assert!(!last.log().contains("somebody removed"), "what it took over was its own: {}", last.log());
    let (code, said) = outcome(bed.command(&["clean"]));
    assert!(code == Some(0) && said.contains("longfat_relay"), "{said}");
    assert_eq!(bed.footprint(), before);
}

#[test]
fn a_start_that_fails_leaves_the_refusals_of_a_killed_relay() {
    refusals_outlive_failed_starts("rfk", "early", libc::SIGKILL);
}

#[test]
fn a_start_that_fails_leaves_the_refusals_of_a_killed_relay_that_held_handshakes() {
    refusals_outlive_failed_starts("rfkh", "after-server", libc::SIGKILL);
}

#[test]
fn a_start_that_fails_leaves_the_refusals_of_a_relay_that_has_ended() {
    refusals_outlive_failed_starts("rft", "after-server", libc::SIGTERM);
}

#[test]
fn forwarding_that_somebody_turns_on_after_the_end_is_nobodys_remains() {
    let bed = Bed::new("fwd");
    let file = "fail = 'closed'\n[intercept]\ninterfaces = 'lan'\nforwarding = true\n";
    let mut daemon = Daemon::start(&bed, file);
    assert_eq!(forwarding(&bed), ["1", "1"]);
    assert_eq!(daemon.end(libc::SIGTERM), Some(0), "{}", daemon.log());
    assert_eq!(forwarding(&bed), ["0", "0"]);
    set_forwarding(&bed, "1");
    let (code, said) = outcome(bed.command(&["clean"]));
    assert!(code == Some(0) && said.contains("longfat_relay"), "{said}");
    assert_eq!(forwarding(&bed), ["1", "1"]);
}

/// `longfat relay ARGS` where sysctls are read-only, as ProtectKernelTunables= makes them.
fn read_only(bed: &Bed, args: &[&str]) -> Command {
    let protect =
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$0\" \"$@\"";
    let mut command = bed.relay.command("unshare");
    command.args(["--mount", "sh", "-c", protect, env!("CARGO_BIN_EXE_longfat"), "relay"]).args(args);
    command
}

#[test]
fn forwarding_that_cannot_be_turned_on_is_found_before_anything_is_touched() {
    let bed = Bed::new("ro");
    let before = bed.footprint();
    let (code, said) = outcome(read_only(&bed, &["--intercept", "lan", "--forwarding"]));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("net.ipv4.ip_forward") && said.contains("ProtectKernelTunables=no"), "{said}");
    assert_eq!(bed.footprint(), before);
    set_forwarding(&bed, "1");
    let relay = Relay::start(read_only(&bed, &["--intercept", "lan", "--forwarding"]));
    relay.signal(libc::SIGTERM);
    assert_eq!(relay.wait().0, Some(0), "what is on need not be turned on");
}

/// A relay that turned forwarding on is killed.
fn killed_forwarder(bed: &Bed) {
    let killed = Relay::start(bed.command(&["--intercept", "lan", "--forwarding", "--name", "killed"]));
    killed.signal(libc::SIGKILL);
    killed.wait();
    assert!(bed.footprint().contains("longfat_killed"));
}

#[test]
fn forwarding_that_cannot_be_turned_off_keeps_no_next_relay_from_starting() {
    let bed = Bed::new("rox");
    killed_forwarder(&bed);
    let mut command = read_only(&bed, &["--intercept", "lan", "--name", "next"]);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let relay = Relay::start_with(command.stderr(std::fs::File::create(&log).unwrap()));
    let said = || std::fs::read_to_string(&log).unwrap();
    assert!(said().contains("longfat_killed") && said().contains("Read-only file system"), "{}", said());
    assert!(!bed.footprint().contains("longfat_killed"));
    assert_eq!(forwarding(&bed), ["1", "1"]);
    relay.signal(libc::SIGTERM);
    assert_eq!(relay.wait().0, Some(0), "{}", said());

    set_forwarding(&bed, "0");
    let before = bed.footprint();
    killed_forwarder(&bed);
    let (code, said) = outcome(read_only(&bed, &["clean"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("removed: longfat_killed") && said.contains("net.ipv4.ip_forward"), "{said}");
    let (code, said) = outcome(read_only(&bed, &["clean"]));
    assert!(code == Some(0) && said.contains("nothing"), "{said}");
    set_forwarding(&bed, "0");
    assert_eq!(bed.footprint(), before);
}

#[test]
fn a_relay_that_counts_on_forwarding_does_not_start_on_what_a_dead_one_left() {
    let bed = Bed::new("fwl");
    let before = bed.footprint();
    killed_forwarder(&bed);
    let (code, said) = outcome(bed.command(&["--intercept", "lan"]));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("net.ipv4.ip_forward is 0"), "{said}");
    assert_eq!(bed.footprint(), before);
}

/// A directory with an `ip` that first does what `file` in it says.
fn with_an_ip_that(does: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("ip");
    let real = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|place| place.join("ip"))
        .find(|path| path.is_file())
        .unwrap();
    let text = format!(
        "#!/bin/sh\ncase \"$1\" in -N) [ ! -e '{directory}/now' ] || {{ {does}; }} ;; esac\nexec '{real}' \"$@\"\n",
        directory = directory.path().display(),
        real = real.display()
    );
    programs::script(&program, &text);
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    (directory, path)
}

/// Whether a process runs this script.
fn is_running(script: &Path) -> bool {
    let name = script.as_os_str().as_encoded_bytes();
    let runs = |process: &std::fs::DirEntry| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == name)
    };
    std::fs::read_dir("/proc").unwrap().flatten().any(|process| runs(&process))
}

/// A relay in a process group of its own, as a shell starts it.
fn in_the_foreground(bed: &Bed, path: &str) -> Relay {
    let mut command = bed.command(&["--intercept", "lan", "--forwarding"]);
    command.env("PATH", path).process_group(0);
    Relay::start(command)
}

#[test]
fn a_second_ctrl_c_does_not_end_the_cleanup_half_way() {
    let bed = Bed::new("ctrlc");
    let before = bed.footprint();
    let (directory, path) = with_an_ip_that("sleep 1");
    let file = |name: &str| -> PathBuf { directory.path().join(name) };
    let relay = in_the_foreground(&bed, &path);
    std::fs::write(file("now"), "").unwrap();
    relay.signal_group(libc::SIGINT);
    // What the relay starts is confined as it is, so it leaves no word of itself but its being there.
    eventually("it looks for its routing rules", || is_running(&file("ip")));
    relay.signal_group(libc::SIGINT);
    let (code, said) = relay.wait();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(bed.footprint(), before);
}

#[test]
fn routing_rules_that_cannot_be_looked_for_keep_the_record_of_them() {
    let bed = Bed::new("norules");
    let before = bed.footprint();
    let (directory, path) = with_an_ip_that("exit 1");
    let relay = in_the_foreground(&bed, &path);
    std::fs::write(directory.path().join("now"), "").unwrap();
    relay.signal(libc::SIGTERM);
    assert_eq!(relay.wait().0, Some(2));
    let left = bed.footprint();
    assert!(left.contains("longfat_relay") && !left.contains("tproxy"), "{left}");
    let (code, said) = outcome(bed.command(&["clean"]));
    assert!(code == Some(0) && said.contains("longfat_relay"), "{said}");
    assert_eq!(bed.footprint(), before);
}

/// `longfat relay ARGS` in a PID namespace of its own, as a container has one.
fn contained(bed: &Bed, args: &[&str]) -> Command {
    let mut command = bed.relay.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_longfat"), "relay"]);
    command.args(args);
    command
}

#[test]
fn a_living_relay_of_another_pid_namespace_is_not_taken_for_dead() {
    let bed = Bed::new("pidns");
    let before = bed.footprint();
    let start = |name: &'static str| ["--intercept", "lan", "--forwarding", "--name", name];
    let is_there = |name: &str| bed.footprint().contains(&format!("table inet longfat_{name} "));
    let pod = Relay::start(contained(&bed, &start("pod")));
    let host = Relay::start(bed.command(&start("host")));
    assert!(is_there("pod") && is_there("host"), "{}", bed.footprint());
    // Neither is remains to the other, whoever looks.
    for mut command in [bed.command(&["clean"]), contained(&bed, &["clean"])] {
        command.stdin(Stdio::null());
        let (code, said) = outcome(command);
        assert!(code == Some(0) && said.contains("nothing was left"), "{said}");
    }
    for (command, owner) in [
        (bed.command(&start("pod")), "of another PID namespace"),
        (contained(&bed, &start("host")), "of another PID namespace"),
        (bed.command(&start("host")), "(process "),
    ] {
        let (code, said) = outcome(command);
        assert!(code == Some(2) && said.contains("runs already") && said.contains(owner), "{said}");
    }
    assert!(is_there("pod") && is_there("host"), "{}", bed.footprint());
    // Once it is dead, it is, to the next one in a container of its own, too.
    pod.signal(libc::SIGKILL);
    pod.wait();
    let next = Relay::start(contained(&bed, &start("pod")));
    host.signal(libc::SIGTERM);
    assert_eq!(host.wait().0, Some(0));
    next.signal(libc::SIGKILL);
    next.wait();
    let (code, said) = outcome(bed.command(&["clean"]));
    assert!(code == Some(0) && said.contains("longfat_pod"), "{said}");
    assert_eq!(bed.footprint(), before);
}

/// A relay that is killed, and its socket's file, which it leaves: of one that stays root, with nobody beside it.
fn killed_with_socket(bed: &Bed) -> (Daemon, PathBuf) {
    let file = "[[listen]]\naddress = '127.0.0.1:0'\nto = '10.72.2.2:80'\n";
    let mut daemon = Daemon::run_as(bed, file, &["--user", "root"]).once_ready();
    let socket = daemon.directory.path().join("control.sock");
    assert_eq!(daemon.end(libc::SIGKILL), None);
    assert!(socket.exists(), "nobody removes it in a killed process's place");
    (daemon, socket)
}

#[test]
fn a_killed_relays_control_socket_is_removed_by_whoever_finds_it_dead() {
    let bed = Bed::new("sock");
    let (_daemon, socket) = killed_with_socket(&bed);
    let (code, said) = outcome(bed.command(&["status", "--socket", socket.to_str().unwrap()]));
    assert!(code == Some(2) && said.contains("was killed") && !socket.exists(), "{said}");

    let (_daemon, socket) = killed_with_socket(&bed);
    let (code, said) = outcome(bed.command(&["clean", "--socket", socket.to_str().unwrap()]));
    assert!(code == Some(0) && said.contains("control.sock") && !socket.exists(), "{said}");
}

#[test]
fn dead_sockets_at_their_default_place_are_removed_by_clean() {
    let bed = Bed::new("sockd");
    let place = longfat_relay::ControlPlan::DEFAULT_DIRECTORY;
    let dead =
        format!("import socket; s = socket.socket(socket.AF_UNIX); s.bind('{place}/old.sock'); s.listen()");
    let script = format!(
        "mount -t tmpfs none /run && mkdir {place} && python3 -c \"{dead}\" && \"$0\" relay clean && ls {place}"
    );
    let mut command = bed.relay.command("unshare");
    command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_longfat")]);
    let (code, said) = outcome(command);
    assert_eq!((code, said.trim_end()), (Some(0), format!("removed: {place}/old.sock").as_str()));
}
