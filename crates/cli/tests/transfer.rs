//! `longfat transfer serve` as strangers meet it: what is left of root's rights, and what reaches a terminal. Needs
//! root.

use crate::programs;
use longfat_host::{Lease, Namespace};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

fn longfat(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.args(["transfer"]).args(args).stdin(Stdio::null());
    command
}

struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit_once(':').unwrap_or_else(|| panic!("it said '{line}'")).1.to_owned();
        Server { child, port }
    }

    /// A server with these options, and a host of its own that knows nobody else.
    fn alone(host: &Namespace, args: &[&str]) -> Server {
        let mut command = host.command(env!("CARGO_BIN_EXE_longfat"));
        command.args(["transfer", "serve"]).args(args).stdin(Stdio::null());
        Server::start(command)
    }

    fn with(args: &[&str]) -> Server {
        Server::start(longfat(&[&["serve", "--listen", "127.0.0.1:0"], args].concat()))
    }

    /// A field of /proc/PID/status.
    fn field(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    }

    fn send(&self, args: &[&str]) -> Output {
        let to = format!("127.0.0.1:{}", self.port);
        longfat(&[&["send", &to, "--bytes", "3MB", "--verify"], args].concat()).output().unwrap()
    }

    fn sends(&self, args: &[&str]) {
        let output = self.send(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Ends it; what it said on standard error.
    fn said(mut self) -> String {
        let _ = self.child.kill();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn user_id(name: &str) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    users
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")))
        .map(|line| line.split(':').nth(2).unwrap().into())
}

/// What a service becomes that was started by root.
fn service_user() -> String {
    user_id("longfat").or_else(|| user_id("nobody")).unwrap()
}

#[test]
fn a_server_started_by_root_keeps_no_right_and_serves_all_kinds_of_transfers() {
    let directory = tempfile::tempdir().unwrap();
    let samples = directory.path().join("samples.jsonl");
    let server = Server::with(&["--samples", samples.to_str().unwrap()]);
    assert_eq!(server.field("Uid:").split_whitespace().next(), Some(service_user().as_str()));
    assert_eq!((server.field("Seccomp:").as_str(), server.field("NoNewPrivs:").as_str()), ("2", "1"));
    for set in ["CapEff:", "CapPrm:", "CapAmb:"] {
        assert_eq!(server.field(set), "0000000000000000", "{set}");
    }
    server.sends(&["--echo-every", "100kB", "--streams", "3"]);
    server.sends(&["--reverse", "--echo-every", "100kB"]);
    server.sends(&["--reverse", "--zero-copy"]);
    for way in [&["--udp", "--rate", "100Mbit"][..], &["--udp", "--rate", "100Mbit", "--reverse"]] {
        let to = format!("127.0.0.1:{}", server.port);
        let output = longfat(&[&["send", &to, "--bytes", "1MB"], way].concat()).output().unwrap();
        assert!(output.status.success(), "{way:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(server.child.id() as i32, libc::SIGTERM) }, 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds_a_flow(&samples) {
        assert!(Instant::now() < deadline, "the samples file lacks what was measured");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn holds_a_flow(samples: &Path) -> bool {
    std::fs::read_to_string(samples).unwrap().contains(r#""type":"flow""#)
}

#[test]
fn a_trusted_server_keeps_the_one_right_that_congestion_controls_and_buffers_want() {
    let server = Server::with(&["--trusted"]);
    assert_eq!(server.field("Uid:").split_whitespace().next(), Some(service_user().as_str()));
    assert_eq!(server.field("CapEff:"), "0000000000001000", "CAP_NET_ADMIN alone");
    // Far beyond net.core.wmem_max.
    server.sends(&["--reverse", "--sndbuf", "64MiB"]);
}

#[test]
fn a_congestion_control_that_is_for_others_is_told_from_one_that_is_not_there() {
    // Ours are for those with root's rights until root allows them to all.
    let ours = longfat_kernel::cc::hold(longfat_cc::Algorithm::find("scalable").unwrap()).unwrap();
    let own = tempfile::tempdir().unwrap();
    std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = own.path().join("longfat");
    programs::copy(env!("CARGO_BIN_EXE_longfat"), &program);
    let server = Server::with(&[]);
    let to = format!("127.0.0.1:{}", server.port);
    let refused = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["transfer", "send", &to, "--bytes", "1kB"]).args(args).uid(65534).gid(65534);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        said
    };
    for end in ["--cc", "--cc-receiver"] {
        let said = refused(&[end, ours.kernel_name()]);
        assert!(said.contains("'lf_scalable' is there, but this user may not use it"), "{said}");
        let allow = "sysctl -w net.ipv4.tcp_allowed_congestion_control=\"";
        assert!(said.contains(allow) && said.contains(" lf_scalable\""), "{said}");
        let said = refused(&[end, "lf_nosuch"]);
        assert!(!said.contains("is there") && said.contains("No such file"), "{said}");
    }
}

#[test]
fn a_server_whose_parent_is_killed_ends_also_after_it_changed_its_user() {
    let mut command = longfat(&["serve", "--listen", "127.0.0.1:0"]);
    // As the lab starts its programs, by a parent that is killed.
    let script = "import ctypes, os, subprocess, sys\n\
        die = lambda: ctypes.CDLL(None).prctl(1, 9)\n\
        subprocess.Popen(sys.argv[1:], preexec_fn=die)\n\
        sys.stdin.read()";
    let program = command.get_program().to_owned();
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = Command::new("python3");
    command.args(["-c", script]).arg(program).args(args).stdin(Stdio::piped());
    let mut server = Server::start(command);
    let served = |port: &str| TcpStream::connect(format!("127.0.0.1:{port}")).is_ok();
    assert!(served(&server.port));
    server.child.kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while served(&server.port) {
        assert!(Instant::now() < deadline, "it still listens");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a terminal would obey, as it stands in JSON.
const OBEYED: &str = r"\u001b]0;owned\u0007\u001b[2J\u009b31m\r\nlongfat: all is well";

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn assert_harmless(said: &str) {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!said.contains(obeyed), "{said:?}");
    assert!(said.contains("\\u001b"), "not shown at all: {said:?}");
}

#[test]
fn nothing_that_a_stranger_says_to_a_server_reaches_its_terminal_raw() {
    let mut server = Server::with(&[]);
    for text in
        [format!(r#"{{"message":"{OBEYED}"}}"#), format!("{{\"message\":\"stop\",\"reason\":\"{OBEYED}\"}}")]
    {
        let mut socket = TcpStream::connect(format!("127.0.0.1:{}", server.port)).unwrap();
        socket.write_all(&framed(&text)).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    }
    // While it lives: it says what it refused after it has refused it.
    let said = BufReader::new(server.child.stderr.take().unwrap()).lines().take(2);
    assert_harmless(&said.map(Result::unwrap).collect::<Vec<_>>().join("\n"));
}

#[test]
fn nothing_that_a_server_says_reaches_a_clients_terminal_raw() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.read(&mut [0; 4096]);
        let version = longfat_transfer::control::PROTOCOL_VERSION;
        let refusal = format!(r#"{{"message":"refused","version":{version},"reason":"{OBEYED}"}}"#);
        let _ = socket.write_all(&framed(&refusal));
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let output = longfat(&["send", &to]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_harmless(&said);
    assert!(!said.lines().any(|line| line == "longfat: all is well"), "a line of its own: {said:?}");
}

#[test]
fn keys_in_files_and_names_of_files_reach_no_terminal_raw() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("experiment\u{1b}[2J.toml");
    std::fs::write(&path, "\"key\\u001b[2J\\u009b\" = 1\n").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_longfat")).args(["lab", "check"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_harmless(&String::from_utf8(output.stderr).unwrap());
}

#[test]
fn a_server_on_every_address_says_so_and_a_key_opens_it_to_its_holders_alone() {
    let server = Server::start(longfat(&["serve", "--listen", "[::]:0"]));
    server.sends(&[]);
    assert!(server.said().contains("every address"));
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("transfer.key");
    let key = key.to_str().unwrap();
    assert!(longfat(&["key", key]).output().unwrap().status.success());
    let server = Server::with(&["--key", key]);
    server.sends(&["--key", key]);
    let refused = server.send(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--key FILE"));
}

/// Sends within `host`.
fn sends_on(host: &Namespace, args: &[&str]) {
    let mut command = host.command(env!("CARGO_BIN_EXE_longfat"));
    let output = command.args(["transfer", "send", "--bytes", "100kB"]).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_server_is_reached_by_name_or_address_with_and_without_a_port() {
    let lease = Lease::take(&format!("transfer-port-{}", std::process::id())).unwrap();
    let host = lease.namespace("host").unwrap();
    host.ip(&["link", "set", "lo", "up"]).unwrap();
    let server = Server::alone(&host, &[]);
    assert_eq!(server.port, "5201");
    for to in ["localhost", "localhost:5201", "127.0.0.1", "::1", "[::1]", "[::1]:5201"] {
        sends_on(&host, &[to]);
        sends_on(&host, &[to, "--reverse", "--streams", "3"]);
    }
    drop(server);
    for (listen, to) in [("5202", "localhost:5202"), ("127.0.0.1", "127.0.0.1"), ("[::1]:5203", "[::1]:5203")]
    {
        let _server = Server::alone(&host, &["--listen", listen]);
        sends_on(&host, &[to]);
    }
}

#[test]
fn a_transfer_is_carried_out_as_a_plan_in_a_file_says_and_only_if_the_file_is_one() {
    let server = Server::with(&[]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plan.json");
    let to = format!("127.0.0.1:{}", server.port);
    let send = |args: &[&str]| longfat(&[&["send", &to], args].concat()).output().unwrap();
    let outcome = |args: &[&str]| -> serde_json::Value {
        let output = send(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let options =
        ["--bytes", "2MB", "--streams", "2", "--rate", "400Mbit", "--timeout", "7s", "--flow", "told"];
    let planned = outcome(&[&options[..], &["--json"]].concat())["plan"].clone();
    std::fs::write(&file, planned.to_string()).unwrap();
    let by_file = ["--plan", file.to_str().unwrap(), "--json"];
    assert_eq!(outcome(&by_file)["plan"], planned);
    let refused = |plan: &str, args: &[&str]| {
        std::fs::write(&file, plan).unwrap();
        let output = send(&[&by_file[..2], args].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(
        refused("rate = 3", &[])
            .contains("plan.json': it is no plan of a transfer: expected value at line 1")
    );
    let none = planned.to_string().replace("\"streams\":2", "\"streams\":0");
    assert!(refused(&none, &[]).contains("plan.json': the number of streams is 0: it must be 1 to 1024"));
    assert!(refused(&planned.to_string(), &["--streams", "3"]).contains("cannot be used with"));
}

#[test]
fn datagrams_come_to_the_ports_that_a_server_is_given() {
    let server = Server::with(&["--data-ports", "47310-47311"]);
    let to = format!("127.0.0.1:{}", server.port);
    let sent = |streams: &str| {
        let udp = ["--udp", "--rate", "10Mbit", "--bytes", "100kB", "--streams", streams];
        longfat(&[&["send", &to], &udp[..]].concat()).output().unwrap()
    };
    assert!(sent("2").status.success());
    let refused = sent("3");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("47310 to 47311") && said.contains("--data-ports"), "{said}");
    let wrong = longfat(&["serve", "--data-ports", "9-8"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("5300-5399"));
}

/// What a command says that is refused at once; a server that serves instead is ended.
fn refused(args: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["10", env!("CARGO_BIN_EXE_longfat"), "transfer"]).args(args).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    said
}

#[test]
fn what_was_recorded_is_not_replaced_by_another_recording() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("samples.jsonl");
    std::fs::write(&file, "an earlier recording\n").unwrap();
    let samples = file.to_str().unwrap();
    // Nobody serves there: the file would be gone, and nothing measured.
    for command in [&["send", "127.0.0.1:1"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let said = refused(&[command, &["--samples", samples]].concat());
        assert!(said.contains(&format!("--samples '{samples}'")) && said.contains("not replaced"), "{said}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "an earlier recording\n");
    }
}

#[test]
fn a_server_that_would_wait_for_nobody_does_not_begin_to_serve() {
    let said = refused(&["serve", "--listen", "127.0.0.1:0", "--timeout", "0s"]);
    assert!(said.contains("--timeout 0ns is too short; give 100ms"), "{said}");
}

#[test]
fn a_start_that_no_clock_comes_to_is_refused() {
    let start = (u64::MAX - 1).to_string();
    let said = refused(&["send", "127.0.0.1:1", "--start-at", &start, "--streams", "2", "--stagger", "1s"]);
    assert!(said.contains(&start) && said.contains("more than a day ahead"), "{said}");
}

/// Whoever reads has seen enough: the transfer was carried out all the same.
#[test]
fn a_reader_that_goes_away_changes_no_exit_code() {
    let server = Server::with(&[]);
    let to = format!("127.0.0.1:{}", server.port);
    for how in [&[][..], &["--json"], &["--json-lines"]] {
        let mut send = longfat(&[&["send", &to, "--bytes", "300KB"], how].concat());
        let mut child = send.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{how:?}: {said}");
    }
}

/// What was measured is told although its samples found no room.
#[test]
fn samples_without_room_cost_the_samples_alone() {
    let server = Server::with(&[]);
    let output = server.send(&["--samples", "/dev/full", "--json"]);
    let (told, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("write the samples file"), "{said}");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["flows"][0]["received_bytes"], 3_000_000);
    assert!(told["unkept"].as_str().is_some_and(|why| why.contains("samples")), "{told}");
}

/// The kernel ends a killed program's connections as if it had ended them.
#[test]
fn a_killed_senders_goodput_is_over_the_time_it_lived_and_what_it_knew_is_unknown() {
    let mut server = Server::with(&[]);
    let to = format!("127.0.0.1:{}", server.port);
    let mut receive = longfat(&["send", &to, "--reverse", "--duration", "30s", "--rate", "10Mbit", "--json"]);
    let child = receive.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    server.child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let flow = &told["flows"][0];
    assert_eq!(flow["duration_us"], told["sinks"][0]["seen_us"], "{flow}");
    assert!(flow["retransmitted_segments"].is_null() && flow["lost_datagrams"].is_null(), "{flow}");
}

/// RFC 4007: an address that every link may have, with the interface it is at.
#[test]
fn a_server_on_the_link_is_reached_by_its_address_there() {
    let lease = Lease::take(&format!("transfer-link-{}", std::process::id())).unwrap();
    let host = lease.namespace("host").unwrap();
    host.ip(&["link", "set", "lo", "up"]).unwrap();
    host.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]).unwrap();
    for (interface, address) in [("near", "fe80::1/64"), ("far", "fe80::2/64")] {
        host.ip(&["link", "set", interface, "up"]).unwrap();
        host.ip(&["addr", "add", address, "dev", interface, "nodad"]).unwrap();
    }
    let server = Server::alone(&host, &["--listen", "[::]:5201"]);
    for to in ["fe80::1%near", "[fe80::1%near]:5201"] {
        let mut send = host.command(env!("CARGO_BIN_EXE_longfat"));
        let output = send.args(["transfer", "send", to, "--bytes", "100KB"]).output().unwrap();
        assert!(output.status.success(), "{to}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut send = host.command(env!("CARGO_BIN_EXE_longfat"));
    let output = send.args(["transfer", "send", "fe80::1%nowhere", "--bytes", "100KB"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no interface 'nowhere'"), "{output:?}");
    drop(server);
}

#[test]
fn a_goodput_over_no_time_is_no_figure() {
    let lease = Lease::take(&format!("transfer-moment-{}", std::process::id())).unwrap();
    let host = lease.namespace("host").unwrap();
    host.ip(&["link", "set", "lo", "up"]).unwrap();
    let _server = Server::alone(&host, &[]);
    let sent = |args: &[&str]| {
        let mut command = host.command(env!("CARGO_BIN_EXE_longfat"));
        let output =
            command.args(["transfer", "send", "127.0.0.1", "--bytes", "1000B"]).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let outcome: serde_json::Value = serde_json::from_str(&sent(&["--json"])).unwrap();
    let flow = &outcome["flows"][0];
    assert_eq!((flow["received_bytes"].as_u64(), flow["duration_us"].as_u64()), (Some(1000), Some(0)));
    assert!(flow["goodput_bps"].is_null(), "{flow}");
    let table = sent(&[]);
    assert!(table.contains("received") && !table.contains("bit/s"), "{table}");
}

/// A relay on `host` before the server there.
fn relay_on(host: &Namespace) -> Child {
    let mut command = host.command(env!("CARGO_BIN_EXE_longfat"));
    command.args(["relay", "--listen", "127.0.0.1:7777", "--to", "127.0.0.1:5201"]);
    let relay = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while host.run(|| TcpStream::connect("127.0.0.1:7777")).unwrap().is_err() {
        assert!(Instant::now() < deadline, "the relay does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    relay
}

#[test]
fn every_connection_of_a_transfer_goes_through_a_relay_that_is_told_the_servers_port() {
    let lease = Lease::take(&format!("transfer-relay-{}", std::process::id())).unwrap();
    let host = lease.namespace("host").unwrap();
    host.ip(&["link", "set", "lo", "up"]).unwrap();
    let _server = Server::alone(&host, &[]);
    let mut relay = relay_on(&host);
    let mut nft = host.command("nft");
    nft.arg(
        "table inet firewall { chain in { type filter hook input priority 0; policy drop; \
         ct state established accept; tcp dport { 5201, 7777 } accept; }; }",
    );
    assert!(nft.status().unwrap().success());
    for way in [&["--streams", "4"][..], &["--streams", "4", "--reverse"]] {
        sends_on(&host, &[&["127.0.0.1:7777", "--verify", "--echo-every", "10kB"], way].concat());
    }
    relay.kill().unwrap();
    relay.wait().unwrap();
}
