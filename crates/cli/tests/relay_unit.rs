//! The systemd unit of the relay: what it allows is enough, and is as little as it says. There need not be a systemd that
//! runs: its own tool reads the unit, and the daemon is run with the user, the capabilities and the file systems that
//! the unit gives it.
#![allow(clippy::unwrap_used)]

mod relay_bed;

use longfat_relay::status::Status;
use relay_bed::{Bed, PATIENCE, SERVER, ask, echo_server};
use std::{
    io::{BufRead, BufReader, Read},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/systemd");
const PROGRAM: &str = env!("CARGO_BIN_EXE_longfat");
/// Whom systemd-sysusers would give the name to; an unprivileged user all the same.
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
const SANDBOX: &str = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro / && \
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
            "workers = 1\ncontrol = {{ socket = '{}' }}\n[intercept]\ninterfaces = 'lan'\n{rules}",
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
        command.args([PROGRAM, "relay", "run"]).arg(&file);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
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

    /// Of the process: the ids and sets of capabilities.
    fn field(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
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
    let before = bed.footprint();
    echo_server(bed.listen());
    let mut service = Service::start(
        &bed,
        false,
        "[[rule]]\nname = 'all'\naccept = 'after-server'\nserver = { cc = 'cubic' }\n",
    );
    assert_eq!(service.field("Uid:").split_whitespace().next(), Some("65534"));
    for set in ["CapEff:", "CapPrm:"] {
        assert_eq!(service.field(set), "0000000000001000", "{set}");
    }
    // Who has no CAP_SETPCAP cannot shrink it; no_new_privs makes it harmless.
    assert_eq!(
        (service.field("CapBnd:").as_str(), service.field("NoNewPrivs:").as_str()),
        ("0000000000003000", "1")
    );
    ask(&bed.connect(SERVER), b"held and carried");
    service.signal(libc::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    while service.status().reload.done == 0 {
        assert!(Instant::now() < deadline, "{:?}", service.status().reload);
    }
    ask(&bed.connect(SERVER), b"and after a reload");
    service.signal(libc::SIGTERM);
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
    assert_eq!(bed.footprint(), before);
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
        assert_eq!(service.field(set), "0000000000001000", "{set}");
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
fn systemd_reads_the_unit_without_complaint_and_calls_it_protected() {
    let directory = tempfile::tempdir().unwrap();
    let unit = installed(directory.path());
    // What the unit pulls in is the host's: it is read too, but only complaints about this unit count.
    let (code, said) = systemd_analyze(&["verify", "--recursive-errors=no", unit.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("longfat-relay"), "{said}");
    // Exposure in tenths, of 100; what has no sandbox has 96.
    let (code, said) =
        systemd_analyze(&["security", "--offline=yes", "--threshold=35", unit.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_filter_of_system_calls_has_what_marking_needs_and_only_with_the_drop_in() {
    let allowed = |with_marks| -> Vec<String> {
        let unit = unit(with_marks);
        let (sets, calls): (Vec<_>, Vec<_>) =
            words(&unit, "SystemCallFilter").into_iter().partition(|word| word.starts_with('@'));
        let sets = sets.iter().flat_map(|set| members(set)).collect::<Vec<_>>();
        [calls, sets].concat()
    };
    let has = |calls: &[String], call: &str| calls.iter().any(|found| found == call);
    for call in ["capset", "prctl", "splice", "epoll_wait", "accept4", "setsockopt", "ioctl", "execve"] {
        assert!(has(&allowed(false), call), "{call}");
    }
    assert!(has(&allowed(true), "bpf") && !has(&allowed(false), "bpf"));
}

/// System calls of one of systemd's sets and of the sets in it.
fn members(set: &str) -> Vec<String> {
    let (code, listing) = systemd_analyze(&["syscall-filter", set]);
    assert_eq!(code, Some(0), "{listing}");
    let lines =
        listing.lines().map(str::trim).skip(1).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| if line.starts_with('@') { members(line) } else { vec![line.to_owned()] }).collect()
}
