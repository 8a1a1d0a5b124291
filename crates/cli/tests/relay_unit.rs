//! The systemd unit of the relay: what it allows is enough, and is as little as it says. There need not be a systemd
//! that runs: its own tool reads the unit, and the daemon is run with the user, the capabilities, the file systems and
//! the system calls that the unit gives it. A call that is not allowed ends here whoever makes it, so that none goes
//! unnoticed.

use crate::relay_bed::{Bed, PATIENCE, SERVER, ask, echo_server};
use longfat_relay::status::Status;
use serde_json::json;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{
        fs::chown,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/systemd");
const PROGRAM: &str = env!("CARGO_BIN_EXE_longfat");
/// User that systemd-sysusers would give the name to; an unprivileged user all the same.
const USER: u32 = 65534;

/// Lines of the unit, and after them those of its drop-in for marks.
fn unit(with_marks: bool) -> Vec<(String, String)> {
    let mut files = vec!["longfat-relay.service"];
    files.extend(with_marks.then_some("longfat-relay-marks.conf"));
    let text: String =
        files.into_iter().map(|name| std::fs::read_to_string(Path::new(UNITS).join(name)).unwrap()).collect();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect()
}

/// The words of every line of a key: systemd adds up what a list is given more than once.
fn words(unit: &[(String, String)], key: &str) -> Vec<String> {
    let values = unit.iter().filter(|(found, _)| found == key);
    values.flat_map(|(_, value)| value.split_whitespace().map(str::to_owned)).collect()
}

/// As setpriv names them.
fn capabilities(unit: &[(String, String)], key: &str) -> String {
    let names = words(unit, key).into_iter();
    names.map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase())).collect()
}

/// The daemon as the unit would run it; killed on drop.
struct Service {
    child: Child,
    directory: tempfile::TempDir,
}

/// What ProtectSystem=strict and ProtectKernelTunables= leave writable: the runtime directory, /dev and /proc.
/// /dev/net/tun is for everybody, as udev makes it (a host without udev keeps it for root).
const SANDBOX: &str = "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && \
                       mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro / && \
                       mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$@\"";

impl Service {
    fn start(bed: &Bed, with_marks: bool, rules: &str) -> Service {
        let unit = unit(with_marks);
        for (key, value) in
            [("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"), ("ProtectKernelTunables", "yes")]
        {
            assert_eq!(words(&unit, key), [value], "{key}: this test does the same");
        }
        let directory = tempfile::tempdir().unwrap();
        chown(directory.path(), Some(USER), Some(USER)).unwrap();
        let file = directory.path().join("relay.toml");
        let socket = directory.path().join("relay.sock");
        let text = format!(
            "workers = 1\nmetrics = '127.0.0.1:9469'\ndrain = '30s'\ncontrol = {{ socket = '{}' }}\n\
             [intercept]\ninterfaces = 'lan'\n{rules}",
            socket.display()
        );
        std::fs::write(&file, text).unwrap();
        let (ambient, bounding) =
            (capabilities(&unit, "AmbientCapabilities"), capabilities(&unit, "CapabilityBoundingSet"));
        let mut command = bed.relay.command("unshare");
        command.args(["--mount", "sh", "-c", SANDBOX]).arg(directory.path());
        command.args(["setpriv", &format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
        command.args([&format!("--inh-caps=-all{ambient}"), &format!("--ambient-caps=-all{ambient}")]);
        command.args([&format!("--bounding-set=-all{bounding}"), "--no-new-privs"]);
        command.arg(std::env::current_exe().unwrap());
        let child =
            filter_first(&mut command, &allowed(&unit), &file).stderr(Stdio::piped()).spawn().unwrap();
        let mut service = Service { child, directory };
        service.wait_until_ready();
        service
    }

    fn wait_until_ready(&mut self) {
        let mut said = String::new();
        let mut log = BufReader::new(self.child.stderr.take().unwrap());
        while !said.contains("info ready") {
            let before = said.len();
            log.read_line(&mut said).unwrap();
            assert!(said.len() > before, "it ended: {said}");
        }
        std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
    }

    fn status(&self) -> Status {
        let socket = self.directory.path().join("relay.sock");
        longfat_relay::control::ask(&socket, longfat_relay::control::STATUS).unwrap()
    }

    /// A field of the process's status: user ids or sets of capabilities.
    fn field(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

/// The file of the daemon that a process becomes which has given itself the filter of the calls in [`CALLS`].
const DAEMON: &str = "LONGFAT_TEST_DAEMON";
const CALLS: &str = "LONGFAT_TEST_CALLS";
/// Instead of those: the one that is refused.
const REFUSED: &str = "LONGFAT_TEST_REFUSED";

/// What this test program is told to give itself the filter and become the daemon.
fn filter_first<'c>(command: &'c mut Command, calls: &[String], file: &Path) -> &'c mut Command {
    command.args(["--exact", "relay_unit::under_a_filter_of_system_calls", "--ignored", "--nocapture"]);
    command.env(CALLS, calls.join(" ")).env(DAEMON, file).stdin(Stdio::null()).stdout(Stdio::null())
}

/// Not a test of its own: see [`filter_first`].
#[test]
#[ignore = "the filter of system calls of other tests"]
fn under_a_filter_of_system_calls() {
    let program = match (std::env::var(CALLS), std::env::var(REFUSED)) {
        (Ok(calls), _) => filter(&calls.split(' ').collect::<Vec<_>>()),
        (_, Ok(call)) => compile("allow", &json!({ "errno": libc::EPERM }), &[&call]).unwrap(),
        _ => return,
    };
    seccompiler::apply_filter(&program).unwrap();
    let error = Command::new(PROGRAM).args(["relay", "run"]).arg(std::env::var(DAEMON).unwrap()).exec();
    panic!("{PROGRAM}: {error}");
}

/// What becomes of these calls, and of all others.
fn compile(
    others: &str,
    these: &serde_json::Value,
    calls: &[&str],
) -> Result<seccompiler::BpfProgram, seccompiler::Error> {
    let calls: Vec<_> = calls.iter().map(|call| json!({ "syscall": call })).collect();
    let filter = json!({ "mismatch_action": others, "match_action": these, "filter": calls });
    let text = json!({ "daemon": filter }).to_string();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    Ok(seccompiler::compile_from_json(text.as_bytes(), arch)?.remove("daemon").unwrap())
}

/// systemd's sets name the calls of every architecture: those that this one does not have are left out.
fn filter(calls: &[&str]) -> seccompiler::BpfProgram {
    let allow = |calls: &[&str]| compile("kill_process", &json!("allow"), calls);
    let here: Vec<_> = calls.iter().copied().filter(|call| allow(&[call]).is_ok()).collect();
    allow(&here).unwrap()
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forwarding(bed: &Bed) {
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        bed.relay.run(|| longfat_host::sysctl::write(key, "1")).unwrap().unwrap();
    }
}

#[test]
fn the_units_rights_are_enough_to_relay_to_reload_and_to_leave_nothing_behind() {
    let bed = Bed::new("unit");
    forwarding(&bed);
    // Strict, as some distributions have it: what is held comes back by an interface that leads to no client.
    for scope in ["all", "default"] {
        let key = format!("net.ipv4.conf.{scope}.rp_filter");
        bed.relay.run(|| longfat_host::sysctl::write(&key, "1")).unwrap().unwrap();
    }
    let before = bed.footprint();
    echo_server(bed.listen());
    let rules = "[[rule]]\nname = 'all'\naccept = 'after-server'\nserver = { cc = 'cubic' }\n";
    let mut service = Service::start(&bed, false, rules);
    assert_eq!(service.field("Uid:").split_whitespace().next(), Some("65534"));
    assert_eq!(service.field("Seccomp:"), "2", "a filter");
    for set in ["CapEff:", "CapPrm:"] {
        assert_eq!(service.field(set), "0000000000001400", "{set}");
    }
    // Who has no CAP_SETPCAP cannot shrink it; no_new_privs makes it harmless.
    assert_eq!(
        (service.field("CapBnd:").as_str(), service.field("NoNewPrivs:").as_str()),
        ("0000000000003400", "1")
    );
    ask(&bed.connect(SERVER), b"held and carried");
    ask(&bed.connect(SERVER), &[7; 1 << 18]);
    assert!(
        bed.ask_metrics("GET /metrics HTTP/1.1\r\n\r\n")
            .contains("longfat_relay_accepted_connections_total 2")
    );
    let refused = bed.client.run(|| TcpStream::connect("10.72.2.2:81")).unwrap().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    service.signal(libc::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    while service.status().reload.done == 0 {
        assert!(Instant::now() < deadline, "{:?}", service.status().reload);
    }
    let last = bed.connect(SERVER);
    ask(&last, b"and after a reload");
    service.signal(libc::SIGTERM);
    while !service.status().draining {
        assert!(Instant::now() < deadline, "{:?}", service.status());
    }
    ask(&last, b"and while it drains");
    drop(last);
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
    assert_eq!(bed.footprint(), before);
}

/// Tells one client who it is, as this server sees it.
fn tell_names(listener: TcpListener) {
    std::thread::spawn(move || {
        let (mut client, from) = listener.accept().unwrap();
        write!(client, "{from}").unwrap();
    });
}

#[test]
fn a_client_keeps_its_port_below_1024_however_it_is_accepted() {
    let bed = Bed::new("unitp");
    forwarding(&bed);
    for (key, value) in
        [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ip_local_port_range", "900 999")]
    {
        bed.client.run(|| longfat_host::sysctl::write(key, value)).unwrap().unwrap();
    }
    let rules =
        "[[rule]]\nname = 'held'\nport = 80\naccept = 'after-server'\n[[rule]]\nname = 'early'\nport = 81\n";
    let service = Service::start(&bed, false, rules);
    for address in [SERVER, "10.72.2.2:81"] {
        tell_names(bed.server.run(|| TcpListener::bind(address).unwrap()).unwrap());
        let client = bed.connect(address);
        assert!(client.local_addr().unwrap().port() < 1000);
        let mut seen = String::new();
        (&client).read_to_string(&mut seen).unwrap();
        assert_eq!(seen, client.local_addr().unwrap().to_string(), "{address}");
    }
    assert_eq!(service.status().totals.connections, 2, "none passes unrelayed");
}

#[test]
fn with_the_drop_in_packets_are_marked_and_its_rights_are_given_up() {
    let bed = Bed::new("unitm");
    forwarding(&bed);
    bed.client.run(|| longfat_host::sysctl::write("net.ipv4.tcp_ecn", "1")).unwrap().unwrap();
    echo_server(bed.listen());
    let queue = "queue = { controller = 'every', allowed = '1B', window = false }";
    let service = Service::start(&bed, true, &format!("[[rule]]\nname = 'all'\n{queue}\n"));
    for set in ["CapEff:", "CapPrm:"] {
        assert_eq!(service.field(set), "0000000000001400", "{set}");
    }
    let client = bed.connect(SERVER);
    let deadline = Instant::now() + PATIENCE;
    while service
        .status()
        .connections
        .first()
        .is_none_or(|one| one.to_server.queue.unwrap().marked_packets == 0)
    {
        assert!(Instant::now() < deadline, "{:?}", service.status());
        ask(&client, b"marked");
    }
}

#[test]
fn a_relay_that_cannot_give_up_its_privileges_says_so_and_never_serves_with_them() {
    let bed = Bed::new("unitc");
    forwarding(&bed);
    let before = bed.footprint();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("relay.toml");
    let socket = directory.path().join("relay.sock");
    let text = format!("control = {{ socket = '{}' }}\n[intercept]\ninterfaces = 'lan'\n", socket.display());
    std::fs::write(&file, text).unwrap();
    // What goes on regardless is ended after a while.
    let mut command = bed.relay.command("timeout");
    command.args(["--signal=TERM", "10"]).arg(std::env::current_exe().unwrap());
    let output =
        filter_first(&mut command, &[], &file).env_remove(CALLS).env(REFUSED, "capset").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("give up capabilities") && !said.contains("ready"), "{said}");
    assert_eq!(bed.footprint(), before);
}

/// The unit, its drop-in, and the program where the unit looks for it.
fn installed(directory: &Path) -> PathBuf {
    let text = std::fs::read_to_string(Path::new(UNITS).join("longfat-relay.service")).unwrap();
    let unit = directory.join("longfat-relay.service");
    std::fs::write(&unit, text.replace("/usr/bin/longfat", PROGRAM)).unwrap();
    let drop_ins = directory.join("longfat-relay.service.d");
    std::fs::create_dir(&drop_ins).unwrap();
    std::fs::copy(Path::new(UNITS).join("longfat-relay-marks.conf"), drop_ins.join("marks.conf")).unwrap();
    unit
}

fn systemd_analyze(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("systemd-analyze").args(args).output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), said.concat())
}

#[test]
fn systemd_reads_the_unit_without_complaint_and_calls_it_and_the_keepers_protected() {
    let directory = tempfile::tempdir().unwrap();
    let unit = installed(directory.path());
    // What the unit pulls in is the host's: it is read too, but only complaints about this unit count.
    let (code, said) = systemd_analyze(&["verify", "--recursive-errors=no", unit.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("longfat-relay"), "{said}");
    // Exposure in tenths, of 100; what has no sandbox has 96.
    for unit in [unit, Path::new(UNITS).join("longfat-relay-keeper.service")] {
        let (code, said) =
            systemd_analyze(&["security", "--offline=yes", "--threshold=35", unit.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
fn whoever_calls_what_is_not_allowed_ends() {
    let unit = unit(false);
    assert!(!allowed(&unit).contains(&"bpf".to_owned()), "only the drop-in has it");
    let calls: Vec<String> = allowed(&unit).into_iter().filter(|call| call != "openat").collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let status = filter_first(&mut command, &calls, Path::new("/dev/null")).stderr(Stdio::null()).status();
    assert_eq!(status.unwrap().signal(), Some(libc::SIGSYS));
}

/// What the unit lets the daemon call.
fn allowed(unit: &[(String, String)]) -> Vec<String> {
    let words = words(unit, "SystemCallFilter").into_iter();
    words.flat_map(|word| if word.starts_with('@') { members(&word) } else { vec![word] }).collect()
}

/// System calls of one of systemd's sets and of the sets in it.
fn members(set: &str) -> Vec<String> {
    let (code, listing) = systemd_analyze(&["syscall-filter", set]);
    assert_eq!(code, Some(0), "{listing}");
    let lines =
        listing.lines().map(str::trim).skip(1).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| if line.starts_with('@') { members(line) } else { vec![line.to_owned()] }).collect()
}

/// A keeper that goes on without its relay would wait for ever for the next one, from a program that is gone.
#[test]
fn the_package_when_it_is_removed_stops_every_unit_that_it_brought_the_relay_before_its_keeper() {
    let script = std::fs::read_to_string(Path::new(UNITS).join("../debian/prerm")).unwrap();
    let named = script
        .lines()
        .find_map(|line| line.trim().strip_prefix("for unit in ")?.strip_suffix("; do"))
        .unwrap();
    let mut named: Vec<_> = named.split(' ').collect();
    assert_eq!(named, ["longfat-relay", "longfat-relay-keeper"]);
    let files =
        std::fs::read_dir(UNITS).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut units: Vec<_> =
        files.filter_map(|name| name.strip_suffix(".service").map(str::to_owned)).collect();
    units.sort();
    named.sort();
    assert_eq!(named, units);
}
