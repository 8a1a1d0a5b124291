//! Unmodified programs, and their children, run under a congestion control that they did not choose.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use longfat_kernel::cc::{Exec, Inbound, Treatment, exec};
use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Connects to itself, asks for cubic as some programs do, and prints what both ends and the listener have.
const PROGRAM: &str = r"
import socket as s
cc = lambda sock: sock.getsockopt(s.IPPROTO_TCP, s.TCP_CONGESTION, 16).split(b'\0')[0].decode()
listener = s.create_server(('127.0.0.1', 0))
client = s.socket()
client.setsockopt(s.IPPROTO_TCP, s.TCP_CONGESTION, b'cubic')
client.connect(listener.getsockname())
client.setsockopt(s.IPPROTO_TCP, s.TCP_CONGESTION, b'cubic')
accepted, _ = listener.accept()
client.sendall(b'x'); accepted.recv(1)
print(cc(client), cc(listener), cc(accepted))
";

/// Runs a shell script under `name`; how it ended and what it printed.
fn run(test: &str, name: &str, script: &str) -> (Exec, String) {
    run_as(test, Treatment::sending(name), script)
}

fn run_as(test: &str, treatment: Treatment<'_>, script: &str) -> (Exec, String) {
    let output = std::env::temp_dir().join(format!("longfat-exec-{}-{test}", std::process::id()));
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", PROGRAM]).stdout(File::create(&output).unwrap());
    let ended = exec(treatment, command, &NEVER, |_| {}).unwrap();
    let printed = fs::read_to_string(&output).unwrap();
    fs::remove_file(&output).unwrap();
    (ended, printed)
}

fn cgroups() -> Vec<PathBuf> {
    let own = format!("longfat-exec-{}-", std::process::id());
    let entries = fs::read_dir(cgroup_root()).unwrap().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(&own)).collect()
}

fn cgroup_root() -> PathBuf {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(" cgroup2 ")).expect("cgroup2 is mounted");
    line.split(' ').nth(1).unwrap().into()
}

fn living(pid: i32) -> bool {
    longfat_host::lease::start_time(pid).is_some()
}

#[test]
fn a_program_and_its_children_get_ours_whatever_they_ask_for() {
    let script = r#"python3 -c "$1"; (python3 -c "$1" &) ; sleep 0"#;
    let (ended, printed) = run("ours", "highspeed", script);
    assert_eq!(ended, Exec { exit_code: 0, refused_sockets: 0, inbound: Inbound::default() });
    let line = "lf_highspeed lf_highspeed lf_highspeed\n";
    assert_eq!(printed, line.repeat(2), "the second is of a child left in the background");
}

#[test]
fn a_name_of_the_kernel_means_the_kernels() {
    let (_, printed) = run("kernel", "reno", r#"python3 -c "$1""#);
    assert_eq!(printed, "reno reno reno\n");
    let (_, printed) = run("lf", "lf_reno", r#"python3 -c "$1""#);
    assert_eq!(printed, "lf_reno lf_reno lf_reno\n");
}

#[test]
fn other_socket_options_pass() {
    let script = r#"python3 -c "
import socket as s
sock = s.socket()
sock.setsockopt(s.IPPROTO_TCP, s.TCP_NODELAY, 1)
sock.setsockopt(s.SOL_SOCKET, s.SO_RCVBUF, 100000)
print(sock.getsockopt(s.IPPROTO_TCP, s.TCP_NODELAY), sock.getsockopt(s.SOL_SOCKET, s.SO_RCVBUF))""#;
    assert_eq!(run("options", "cubic", script).1, "1 200000\n");
}

const RECEIVING: Treatment<'_> = Treatment { cc: None, receives_in_background: true };

#[test]
fn what_receives_in_the_background_is_counted_and_sends_as_it_chooses() {
    let (ended, printed) = run_as("receiving", RECEIVING, r#"python3 -c "$1""#);
    assert_eq!(ended.inbound, Inbound { steered: 2, untimed: 0, refused: 0 }, "both ends are the program's");
    let ccs: Vec<&str> = printed.split_whitespace().collect();
    assert!(ccs[0] == "cubic" && ccs.iter().all(|cc| !cc.starts_with("lf_")), "{printed}");
}

/// Sends through headers that are not looked through (padding), and prints the clamp of the receiving end.
const PADDED: &str = r"
import socket as s
listener = s.create_server(('::1', 0), family=s.AF_INET6)
client = s.socket(s.AF_INET6)
client.setsockopt(s.IPPROTO_IPV6, s.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
client.connect(listener.getsockname())
accepted, _ = listener.accept()
for _ in range(50):
    client.sendall(b'x' * 100); accepted.recv(100); accepted.sendall(b'y'); client.recv(1)
print(accepted.getsockopt(s.IPPROTO_TCP, s.TCP_WINDOW_CLAMP))
";

#[test]
fn a_connection_in_which_no_timestamps_are_found_is_let_go_of_and_counted() {
    let (ended, printed) = run_as("padded", RECEIVING, &format!(r#"python3 -c "{PADDED}""#));
    assert_eq!(
        ended.inbound,
        Inbound { steered: 1, untimed: 1, refused: 0 },
        "nothing is padded on the way back"
    );
    let clamp: u32 = printed.trim().parse().unwrap_or_else(|_| panic!("{printed}"));
    assert!(clamp > 1 << 30, "{clamp}");
}

/// Prints the clamp of a socket that receives, leaves the cgroup, and prints the clamp again when it has been left
/// alone.
const LEAVER: &str = r"
import os, socket as s, sys, time
listener = s.create_server(('127.0.0.1', 0))
client = s.create_connection(listener.getsockname())
accepted, _ = listener.accept()
clamp = lambda: accepted.getsockopt(s.IPPROTO_TCP, s.TCP_WINDOW_CLAMP)
for _ in range(50):
    client.sendall(b'x' * 100); accepted.recv(100); accepted.sendall(b'y'); client.recv(1)
ours = next(l for l in open('/proc/self/cgroup') if l.startswith('0::'))[3:].strip()
print('held', clamp(), flush=True)
open(sys.argv[1] + '/cgroup.procs', 'w').write('0')
deadline = time.time() + 20
while os.path.exists(sys.argv[1] + ours) and time.time() < deadline:
    time.sleep(0.01)
print('left', clamp(), flush=True)
";

#[test]
fn a_connection_that_outlives_the_run_gets_its_window_back() {
    let output = std::env::temp_dir().join(format!("longfat-exec-{}-leaver", std::process::id()));
    let mut command = Command::new("sh");
    let script = r#"python3 -c "$1" "$2" & "#;
    command.args(["-c", script, "sh", LEAVER]).arg(cgroup_root()).stdout(File::create(&output).unwrap());
    exec(RECEIVING, command, &NEVER, |_| {}).unwrap();
    let printed = || fs::read_to_string(&output).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !printed().contains("left") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let clamp = |word: &str| -> u32 {
        let line = printed().lines().find_map(|line| line.strip_prefix(word).map(str::to_owned));
        line.unwrap_or_else(|| panic!("{}", printed())).trim().parse().unwrap()
    };
    // Ten segments of 64 KiB at most, and as yet no more was asked for.
    assert!(clamp("held") < 1 << 20 && clamp("left") > 1 << 30, "{}", printed());
    fs::remove_file(&output).unwrap();
}

#[test]
fn the_exit_code_is_the_programs() {
    assert_eq!(run("code", "reno", "exit 7").0.exit_code, 7);
    assert_eq!(run("signal", "reno", "kill -TERM $$").0.exit_code, 128 + 15);
}

#[test]
fn what_cannot_be_started_is_named() {
    let error = exec(Treatment::sending("reno"), Command::new("/no/such/program"), &NEVER, |_| {})
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("start '/no/such/program': "), "{error}");
}

#[test]
fn an_unknown_name_is_refused_before_anything_starts() {
    let error = exec(Treatment::sending("higspeed"), Command::new("false"), &NEVER, |_| unreachable!())
        .unwrap_err()
        .to_string();
    assert_eq!(error, "no algorithm is called 'higspeed'; did you mean 'highspeed'?");
}

#[test]
fn raising_the_flag_ends_the_program_and_what_it_left_running() {
    let stop = AtomicBool::new(false);
    let pids = std::env::temp_dir().join(format!("longfat-exec-{}-pids", std::process::id()));
    let mut command = Command::new("sh");
    // The second ignores SIGTERM, as a stubborn program would.
    let script = "sleep 1000 & echo $! >$1; sh -c 'trap \"\" TERM; echo $$ >>$1; while :; do sleep 0.1; done' sh $1 & wait";
    command.args(["-c", script, "sh"]).arg(&pids);
    let read = || fs::read_to_string(&pids).unwrap_or_default();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| exec(Treatment::sending("reno"), command, &stop, |_| {}).unwrap());
        let deadline = Instant::now() + Duration::from_secs(20);
        while read().lines().count() < 2 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(running.join().unwrap().exit_code, 128 + 15);
    });
    let left: Vec<i32> =
        read().lines().filter_map(|line| line.parse().ok()).filter(|pid| living(*pid)).collect();
    fs::remove_file(&pids).unwrap();
    assert_eq!(left, [] as [i32; 0]);
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    // A cgroup of an owner that is no more, with a process still in it.
    let stale = cgroup_root().join(format!("longfat-exec-{}-1-{}", i32::MAX, std::process::id()));
    fs::create_dir(&stale).unwrap();
    let procs = File::options().write(true).open(stale.join("cgroup.procs")).unwrap();
    let mut sleeper = Command::new("sleep");
    // SAFETY: only write(2) is called between fork and exec.
    unsafe { sleeper.arg("1000").pre_exec(move || std::io::Write::write_all(&mut &procs, b"0")) };
    let mut sleeper = sleeper.spawn().unwrap();
    run("stale", "reno", "true");
    assert!(!stale.exists());
    assert!(!sleeper.wait().unwrap().success(), "it was killed");
}

#[test]
fn nothing_of_ours_is_left_after_a_run() {
    // Other tests of this process run at the same time: theirs may be there, ours must go.
    let mut made = PathBuf::new();
    let observed = &mut made;
    exec(Treatment::sending("reno"), Command::new("true"), &NEVER, |_| {
        *observed = cgroups().into_iter().max().expect("a cgroup while it runs");
    })
    .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while made.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!made.exists(), "{}", made.display());
}
