//! `longfat relay run FILE` as a service: rules, reload, drain, status, metrics, sd_notify, privileges.

use crate::relay_bed::{self, Bed, PATIENCE, ask};
use longfat_host::run_command;
use longfat_relay::status::Status;
use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const FIRST: &str = "10.72.2.2:80";
const SECOND: &str = "10.72.2.2:81";

/// A running daemon with its file; killed on drop.
struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
}

impl Daemon {
    fn start(bed: &Bed, file: &str, environment: &[(&str, &str)]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("relay.toml");
        let socket = directory.path().join("control.sock");
        std::fs::write(&path, with_socket(file, &socket)).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut command = bed.command(&["run", path.to_str().unwrap()]);
        command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut daemon = Daemon { child: command.spawn().unwrap(), directory };
        daemon.wait_until("it answers", |daemon| daemon.ask().is_some());
        daemon
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap()
    }

    fn change(&self, file: &str) {
        std::fs::write(self.file("relay.toml"), with_socket(file, &self.file("control.sock"))).unwrap();
        self.signal(libc::SIGHUP);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn ask(&self) -> Option<Status> {
        longfat_relay::control::ask(&self.file("control.sock"), longfat_relay::control::STATUS).ok()
    }

    fn status(&self) -> Status {
        self.ask().unwrap()
    }

    fn wait_until(&mut self, what: &str, holds: impl Fn(&Daemon) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "not: {what} ({ended:?})\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file with a control socket of the test's own.
fn with_socket(file: &str, socket: &std::path::Path) -> String {
    format!("control = {{ socket = '{}' }}\n{file}", socket.display())
}

/// Echoes on both of the server's ports.
fn servers(bed: &Bed) {
    for address in [FIRST, SECOND] {
        relay_bed::echo_server(bed.server.run(|| TcpListener::bind(address).unwrap()).unwrap());
    }
}

const INTERCEPT: &str = "[intercept]\ninterfaces = 'lan'\nforwarding = true\n";

#[test]
fn rules_decide_and_a_reload_changes_them_under_living_connections() {
    let bed = Bed::new("rld");
    servers(&bed);
    let web = format!(
        "workers = 2\n{INTERCEPT}[[rule]]\nname = 'web'\nport = 80\nclient = {{ cc = 'reno' }}\n\
         server = {{ cc = 'cubic', buffer = '1MiB', pacing = '500Mbit' }}\n"
    );
    let mut daemon = Daemon::start(&bed, &web, &[]);
    let (taken, passed) = (bed.connect(FIRST), bed.connect(SECOND));
    ask(&taken, b"taken");
    ask(&passed, b"passed");
    let status = daemon.status();
    let [one] = &status.connections[..] else { panic!("{status:?}") };
    assert_eq!(
        (one.rule.as_str(), one.client_leg.cc.as_str(), one.server_leg.cc.as_str()),
        ("web", "reno", "cubic")
    );
    assert_eq!((one.server.to_string().as_str(), one.to_server.relayed_bytes), (FIRST, 5));
    assert_eq!(status.rules, ["web"]);

    daemon.change(&format!(
        "workers = 2\n{INTERCEPT}[[rule]]\nname = 'pass'\nport = 80\naction = 'pass'\n\
         [[rule]]\nname = 'other'\nsource = '10.72.1.0/24'\nserver = {{ cc = 'reno' }}\n"
    ));
    daemon.wait_until("reloaded", |daemon| daemon.status().reload.done == 1);
    ask(&taken, b"still taken, by the rule that is gone");
    let (no_more, now) = (bed.connect(FIRST), bed.connect(SECOND));
    ask(&no_more, b"passes");
    ask(&now, b"taken");
    let rules: Vec<_> = daemon.status().connections.iter().map(|one| one.rule.clone()).collect();
    assert_eq!(rules, ["web", "other"]);

    // The same rule with other settings: the next connection has them, the living one keeps its own.
    daemon.change(&format!(
        "workers = 2\n{INTERCEPT}[[rule]]\nname = 'other'\nclient = {{ cc = 'cubic' }}\nserver = {{ cc = 'bbr' }}\n"
    ));
    daemon.wait_until("reloaded again", |daemon| daemon.status().reload.done == 2);
    // Each worker changes its own listener when it is woken.
    std::thread::sleep(Duration::from_millis(200));
    let next = bed.connect(SECOND);
    ask(&next, b"next");
    let ccs = daemon.status().connections.iter().map(|one| one.server_leg.cc.clone()).collect::<Vec<_>>();
    assert_eq!(ccs, ["cubic", "reno", "bbr"]);
    assert_eq!(daemon.status().connections[2].client_leg.cc, "cubic");

    for (file, problem) in [
        (format!("{INTERCEPT}[[rule]]\nprot = 80\n"), "did you mean 'port'"),
        (format!("workers = 3\n{INTERCEPT}"), "cannot change while the relay runs: workers"),
        (format!("workers = 2\n{INTERCEPT}[[rule]]\nserver = {{ cc = 'nosuch' }}\n"), "nosuch"),
    ] {
        let before = daemon.status().reload.refused;
        daemon.change(&file);
        daemon.wait_until("refused", |daemon| daemon.status().reload.refused == before + 1);
        let said = daemon.status().reload.problem.unwrap();
        assert!(said.contains(problem), "{said}");
        assert!(daemon.log().contains(problem), "{}", daemon.log());
    }
    ask(&bed.connect(FIRST), b"the old rules stay");
    ask(&taken, b"and the first connection lives");
    assert_eq!(daemon.status().rules, ["other"]);
}

/// What 'longfat relay rule' says to this relay, and whether it did it.
fn change_rules(bed: &Bed, daemon: &Daemon, words: &[&str]) -> (bool, String) {
    let socket = daemon.file("control.sock");
    let mut command = bed.command(&[&["rule"], words, &["--socket", socket.to_str().unwrap()]].concat());
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!(output.status.code(), Some(if output.status.success() { 0 } else { 2 }));
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// What the relay says to a user whose group may ask for its status.
fn stranger(bed: &Bed, daemon: &Daemon, words: &[&str]) -> String {
    std::fs::set_permissions(daemon.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let group = Command::new("chgrp").arg("daemon").arg(daemon.file("control.sock")).status().unwrap();
    assert!(group.success());
    std::fs::set_permissions(daemon.file("control.sock"), PermissionsExt::from_mode(0o660)).unwrap();
    let mut command = bed.relay.command("setpriv");
    command.args([
        "--reuid",
        "daemon",
        "--regid",
        "daemon",
        "--clear-groups",
        env!("CARGO_BIN_EXE_longfat"),
        "relay",
    ]);
    let output = command.args(words).arg("--socket").arg(daemon.file("control.sock")).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// The rule and the server leg's congestion control of the connection that came last.
fn last(daemon: &Daemon) -> (String, String) {
    let last = daemon.status().connections.pop().unwrap();
    (last.rule, last.server_leg.cc)
}

/// Each worker changes its own listener when it is woken.
const WOKEN: Duration = Duration::from_millis(200);

#[test]
fn a_rule_is_added_and_removed_while_the_relay_runs_and_all_else_goes_on_as_before() {
    let bed = Bed::new("add");
    servers(&bed);
    // Without rules the relay takes everything.
    let all = format!("{INTERCEPT}[defaults]\nserver = {{ cc = 'reno' }}\n");
    let mut daemon = Daemon::start(&bed, &all, &[]);
    let living = bed.connect(FIRST);
    ask(&living, b"by no rule");
    assert_eq!(last(&daemon), ("default".into(), "reno".into()));

    let add = ["add", "far", "destination = '10.72.2.0/24', port = 80, server = { cc = 'bbr' }"];
    let (is_done, said) = change_rules(&bed, &daemon, &add);
    assert!(is_done && said.contains("since the relay's start: far"), "{said}");
    std::thread::sleep(WOKEN);
    ask(&living, b"goes on");
    let (meant, other) = (bed.connect(FIRST), bed.connect(SECOND));
    ask(&meant, b"by the rule");
    assert_eq!(daemon.status().connections.iter().filter(|one| one.rule == "far").count(), 1);
    ask(&other, b"as before");
    assert_eq!(last(&daemon), ("default".into(), "reno".into()));
    let status = daemon.status();
    assert_eq!(
        (status.rules, status.added_rules),
        (vec!["far".into(), "default".into()], vec!["far".into()])
    );
    let one = status.connections.iter().find(|one| one.rule == "far").unwrap();
    assert_eq!((one.server.to_string().as_str(), one.server_leg.cc.as_str()), (FIRST, "bbr"));

    // What was added outlasts a reload, and comes before the file's rules; the last one comes first.
    daemon.change(&format!("{INTERCEPT}[[rule]]\nname = 'web'\nport = 80\nserver = {{ cc = 'cubic' }}\n"));
    daemon.wait_until("reloaded", |daemon| daemon.status().reload.done == 1);
    let (is_done, said) = change_rules(&bed, &daemon, &["add", "pass", "port = 81, action = 'pass'"]);
    assert!(is_done && said.contains("pass, far"), "{said}");
    assert_eq!(daemon.status().rules, ["far", "web"]);
    std::thread::sleep(WOKEN);
    let meant = bed.connect(FIRST);
    ask(&meant, b"by the rule still");
    assert_eq!(last(&daemon), ("far".into(), "bbr".into()));

    for (words, problem) in [
        (&["add", "far", "port = 443"][..], "the name 'far' is taken already"),
        (&["add", "web", "port = 443"], "the name 'web' is taken already"),
        (&["add", "x", "prot = 443"], "did you mean 'port'"),
        (&["add", "x", "server = { cc = 'nosuch' }"], "nosuch"),
        (&["add", "x y", "port = 443"], "must be 1 to 32 letters"),
        (&["add", "x", "port = "], "no keys and values of a rule"),
        (&["remove", "web"], "no rule 'web' was added to this relay; of those that were: pass, far"),
    ] {
        let before = daemon.status();
        let (is_done, said) = change_rules(&bed, &daemon, words);
        assert!(!is_done && said.contains(problem), "{words:?}: {said}");
        assert_eq!(daemon.status().rules, before.rules, "{words:?}");
    }
    assert!(stranger(&bed, &daemon, &["status"]).contains("rules added since its start: pass, far"));
    for rule in ["far", "pass"] {
        let refused = stranger(&bed, &daemon, &["rule", "remove", rule]);
        assert!(refused.contains("may not change this relay's rules"), "{refused}");
        let (is_done, said) = change_rules(&bed, &daemon, &["remove", rule]);
        assert!(is_done, "{said}");
    }
    let added = change_rules(&bed, &daemon, &["add", "x", "port = 9", "--json"]);
    assert_eq!(added, (true, "{\"rules\":[\"x\"]}\n".to_owned()));
    let removed = change_rules(&bed, &daemon, &["remove", "x", "--json"]);
    assert_eq!(removed, (true, "{\"rules\":[]}\n".to_owned()));
    assert_eq!((daemon.status().rules, daemon.status().added_rules), (vec!["web".into()], vec![]));
    std::thread::sleep(WOKEN);
    let after = bed.connect(FIRST);
    ask(&after, b"by the file's rule");
    assert_eq!(last(&daemon), ("web".into(), "cubic".into()));
    ask(&living, b"living ones keep what they have");
}

#[test]
fn who_watches_the_status_ends_at_a_signal_and_not_at_the_next_look() {
    let bed = Bed::new("wtc");
    let daemon = Daemon::start(&bed, INTERCEPT, &[]);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command = bed.command(&["status", "--watch", "--every", "60s", "--json", "--socket"]);
        command.arg(daemon.file("control.sock")).stdout(Stdio::piped());
        let mut watch = command.spawn().unwrap();
        let mut said = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(watch.stdout.as_mut().unwrap()), &mut said)
            .unwrap();
        let since = Instant::now();
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(watch.id() as i32, signal) }, 0);
        assert_eq!(watch.wait().unwrap().code(), Some(0));
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    }
}

#[test]
fn a_drain_lets_new_connections_pass_and_living_ones_finish_and_a_second_signal_ends_it() {
    let bed = Bed::new("drn");
    bed.relay.run(|| longfat_host::sysctl::write("net.ipv4.ip_forward", "1")).unwrap().unwrap();
    let before = bed.footprint();
    servers(&bed);
    let file = format!("drain = '30s'\n{INTERCEPT}");
    let mut daemon = Daemon::start(&bed, &file, &[]);
    let living = bed.connect(FIRST);
    ask(&living, b"before");
    daemon.signal(libc::SIGTERM);
    daemon.wait_until("draining", |daemon| daemon.log().contains("draining:"));
    let unrelayed = bed.connect(FIRST);
    ask(&unrelayed, b"nobody takes it");
    ask(&living, b"it goes on");
    assert_eq!(daemon.status().live, 1);
    drop(living);
    assert_eq!(daemon.exit_code(), Some(0), "{}", daemon.log());
    ask(&unrelayed, b"and outlives the relay");
    assert_eq!(bed.footprint(), before);

    let mut daemon = Daemon::start(&bed, &file, &[]);
    let mut living = bed.connect(FIRST);
    ask(&living, b"before");
    let since = Instant::now();
    daemon.signal(libc::SIGTERM);
    daemon.wait_until("draining", |daemon| daemon.log().contains("draining:"));
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.exit_code(), Some(0), "{}", daemon.log());
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert_eq!(living.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bed.footprint(), before);
}

#[test]
fn failing_closed_drops_connections_until_somebody_cleans_up() {
    let bed = Bed::new("cls");
    let before = bed.footprint();
    servers(&bed);
    bed.relay.run(|| longfat_host::sysctl::write("net.ipv4.ip_forward", "1")).unwrap().unwrap();
    let address = FIRST.parse().unwrap();
    let attempt =
        || bed.client.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(1500))).unwrap();
    let clean = |args: &[&str]| run_command(bed.command(&[&["clean"], args].concat())).unwrap();
    let file = format!("fail = 'closed'\ndrain = '1s'\n{INTERCEPT}[[rule]]\nname = 'web'\nport = 80\n");
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let mut daemon = Daemon::start(&bed, &file, &[]);
        ask(&bed.connect(FIRST), b"taken");
        daemon.signal(signal);
        daemon.exit_code();
        assert_eq!(attempt().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        ask(&bed.connect(SECOND), b"what no rule takes passes");
        clean(&["--keep-refusals"]);
        assert_eq!(attempt().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    }
    // A relay of the same name takes over.
    let mut daemon = Daemon::start(&bed, &file, &[]);
    ask(&bed.connect(FIRST), b"taken again");
    daemon.signal(libc::SIGKILL);
    daemon.exit_code();
    assert!(clean(&[]).contains("longfat_relay"));
    ask(&attempt().unwrap(), b"passes");
    bed.relay.run(|| longfat_host::sysctl::write("net.ipv4.ip_forward", "0")).unwrap().unwrap();
    assert_eq!(bed.footprint(), before);
}

#[test]
fn metrics_and_status_count_what_happened_and_nobody_blocks_them() {
    let bed = Bed::new("met");
    servers(&bed);
    let file = format!(
        "metrics = '127.0.0.1:9469'\n{INTERCEPT}[[rule]]\nname = 'web'\nport = 80\n\
         queue = {{ target = '30ms' }}\n[[rule]]\nname = 'held'\nport = 90\naccept = 'after-server'\n\
         queue = {{ target = 'off' }}\n\
         [[rule]]\nname = 'not-these'\nport = 81\naction = 'pass'\n{}",
        listen(7300, SECOND)
    );
    let daemon = Daemon::start(&bed, &file, &[]);
    let client = bed.connect(FIRST);
    ask(&client, &[7; 5000]);
    // Somebody connects and says nothing, to both.
    let _silent = bed.relay.run(|| TcpStream::connect("127.0.0.1:9469").unwrap()).unwrap();
    let _mute = std::os::unix::net::UnixStream::connect(daemon.file("control.sock")).unwrap();
    let open = bed.ask_metrics("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n");
    assert!(open.starts_with("HTTP/1.1 200 OK\r\n") && open.ends_with("# EOF\n"), "{open}");
    for line in [
        "longfat_relay_accepted_connections_total 1",
        "longfat_relay_live_connections 1",
        "longfat_relay_connections{rule=\"web\"} 1",
        "longfat_relay_relayed_bytes_total{rule=\"web\",direction=\"client_to_server\"} 5000",
        "longfat_relay_relayed_bytes_total{rule=\"web\",direction=\"server_to_client\"} 5000",
        "longfat_relay_queue_target_seconds{rule=\"web\",direction=\"client_to_server\"} 0.03",
        "longfat_relay_queue_target_seconds{rule=\"held\",direction=\"client_to_server\"} 0",
        "longfat_relay_marked_packets_total{rule=\"web\",direction=\"client_to_server\"} 0",
    ] {
        assert!(open.lines().any(|found| found == line), "{line}\n{open}");
    }
    assert!(bed.ask_metrics("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(bed.ask_metrics(&"x".repeat(9000)).starts_with("HTTP/1.1 431"));
    let table =
        run_command(bed.command(&["status", "--socket", daemon.file("control.sock").to_str().unwrap()]))
            .unwrap();
    assert!(table.contains("1 connections now") && table.contains("web") && table.contains(FIRST), "{table}");
    assert!(table.contains("of 30 ms"), "{table}");
    let to_server = |daemon: &Daemon| daemon.status().connections[0].to_server.clone();
    let (first, queue) = (to_server(&daemon).outbound_idle_us, to_server(&daemon).queue.unwrap());
    assert_eq!((queue.target_us, queue.marked_packets), (30_000, 0));
    std::thread::sleep(Duration::from_millis(300));
    assert!(to_server(&daemon).outbound_idle_us >= first + 250_000, "nothing was sent meanwhile");
    // Totals and living together never shrink.
    drop(client);
    let deadline = Instant::now() + PATIENCE;
    let ended = "longfat_relay_ended_connections_total{rule=\"web\",outcome=\"finished\"} 1";
    loop {
        let text = bed.ask_metrics("GET /metrics HTTP/1.1\r\n\r\n");
        assert!(text.contains("direction=\"client_to_server\"} 5000"), "{text}");
        if text.contains(ended) {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
    }
    // Clients that never became connections are counted for the rule that spoke of them.
    let refused = bed.client.run(|| TcpStream::connect("10.72.2.2:90")).unwrap().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(bed.connect("10.72.1.1:7300").read(&mut [0]).is_err());
    let counted = [("held", "unreachable"), ("not-these", "refused")].map(|(rule, outcome)| {
        format!("longfat_relay_ended_connections_total{{rule=\"{rule}\",outcome=\"{outcome}\"}} 1")
    });
    let mut text = String::new();
    while !counted.iter().all(|line| text.contains(line)) {
        assert!(Instant::now() < deadline, "{text}");
        text = bed.ask_metrics("GET /metrics HTTP/1.1\r\n\r\n");
    }
}

/// A client in another network, by the address of the server that it asks.
const OTHER_CLIENT: &str = "10.73.0.2";
const OTHER_SERVER: &str = "10.72.2.3:80";

fn add_other_client(bed: &Bed) {
    bed.client.ip(&["addr", "add", "10.73.0.2/32", "dev", "lo"]).unwrap();
    bed.client.ip(&["route", "add", "10.72.2.3/32", "via", "10.72.1.1", "src", OTHER_CLIENT]).unwrap();
    bed.relay.ip(&["route", "add", "10.73.0.2/32", "via", "10.72.1.2"]).unwrap();
    bed.server.ip(&["addr", "add", "10.72.2.3/24", "dev", "eth0"]).unwrap();
}

/// A connection of another host of the first client's network.
fn connect_from(bed: &Bed, host: usize, server: &str) -> TcpStream {
    let address = format!("10.72.1.{host}");
    bed.client.ip(&["addr", "replace", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    bed.client.ip(&["route", "replace", "default", "via", "10.72.1.1", "src", &address]).unwrap();
    bed.connect(server)
}

/// The servers' ends of all clients' connections, in the clients' order: they may come in another one.
fn accepted(listener: &TcpListener, clients: &[TcpStream]) -> Vec<TcpStream> {
    let mut far: Vec<_> = clients.iter().map(|_| listener.accept().unwrap().0).collect();
    far.sort_by_key(|far| {
        clients.iter().position(|client| client.local_addr().unwrap() == far.peer_addr().unwrap()).unwrap()
    });
    far
}

/// Offers more and more to receivers that do not read, until the relay has long taken no more; how much each took.
fn offer(clients: &[TcpStream]) -> Vec<u64> {
    let (block, mut taken) = (vec![7; 16 << 10], vec![0; clients.len()]);
    clients.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    for _ in 0..200 {
        for (mut client, taken) in clients.iter().zip(&mut taken) {
            *taken += client.write(&block).unwrap_or(0) as u64;
        }
        std::thread::sleep(Duration::from_millis(15));
    }
    taken
}

/// Every byte that was taken, of each connection, and nothing else.
fn nothing_is_lost(far: Vec<TcpStream>, taken: Vec<u64>) {
    for (mut far, taken) in far.into_iter().zip(taken) {
        let (mut total, mut block) = (0, vec![0; 1 << 16]);
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        while let bytes @ 1.. = far.read(&mut block).unwrap() {
            assert!(block[..bytes].iter().all(|byte| *byte == 7));
            total += bytes as u64;
        }
        assert_eq!(total, taken);
    }
}

/// Memory and receive buffers of the relay's sockets whose address begins with `prefix`.
fn socket_memory(bed: &Bed, prefix: &str) -> (u64, Vec<u64>) {
    let mut command = bed.relay.command("ss");
    command.arg("-tmnOH");
    let listing = run_command(command).unwrap();
    let (mut held_bytes, mut buffers) = (0, Vec::new());
    for line in listing.lines().filter(|line| line.split_whitespace().any(|word| word.starts_with(prefix))) {
        let memory = line.split_once("skmem:(").unwrap().1;
        let value = |name: &str| -> u64 {
            let found = memory.split([',', ')']).find_map(|word| word.strip_prefix(name)?.parse().ok());
            found.unwrap_or_else(|| panic!("no {name} in {line}"))
        };
        held_bytes += value("r") + value("w");
        buffers.push(value("rb"));
    }
    (held_bytes, buffers)
}

#[test]
fn connections_of_one_network_hold_its_share_lose_nothing_and_another_networks_go_on_as_planned() {
    const GREEDY: usize = 48;
    const HOSTS: usize = 4;
    const SHARE_BYTES: u64 = 16_000_000;
    const BUFFER_BYTES: u64 = 2 << 20;
    let bed = Bed::new("membound");
    add_other_client(&bed);
    let deaf = bed.server.run(|| TcpListener::bind(FIRST).unwrap()).unwrap();
    relay_bed::echo_server(bed.server.run(|| TcpListener::bind(OTHER_SERVER).unwrap()).unwrap());
    let limits = "memory = '200MB'\nnetwork_memory = '16MB'\nclient_memory = '100MB'\n";
    let plan = "queue = { target = 'off' }\nserver = { buffer = '2MiB' }\n";
    let file = format!("{INTERCEPT}[limits]\n{limits}[defaults]\n{plan}");
    let mut daemon = Daemon::start(&bed, &file, &[]);
    let other = bed.connect(OTHER_SERVER);
    ask(&other, b"there");
    assert!(!daemon.log().contains("warning"), "what begins small is none: {}", daemon.log());
    // All are there before the first of them holds anything, and then fill what they can at once.
    let mut greedy: Vec<_> =
        (0..GREEDY).map(|number| connect_from(&bed, 2 + number % HOSTS, FIRST)).collect();
    let mut far = accepted(&deaf, &greedy);
    let (block, mut taken) = (vec![7; 1 << 20], vec![0; GREEDY]);
    greedy.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    for _ in 0..100 {
        for (mut client, taken) in greedy.iter().zip(&mut taken) {
            *taken += client.write(&block).unwrap_or(0) as u64;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let (held_bytes, buffers) = socket_memory(&bed, "10.72.1.");
    assert_eq!(buffers.len(), 2 * GREEDY);
    assert!(held_bytes <= SHARE_BYTES, "{held_bytes} bytes in sockets: {buffers:?}");
    // The other network's connection moves what it likes, with the buffers of its plan.
    let numbers: Vec<u8> = (0..8 << 20).map(|number: u32| (number % 251) as u8).collect();
    std::thread::scope(|scope| {
        let other = &other;
        scope.spawn(move || { other }.write_all(&numbers).unwrap());
        let mut answer = vec![0; 8 << 20];
        { other }.read_exact(&mut answer).unwrap();
        assert!(answer.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    });
    assert_eq!(socket_memory(&bed, OTHER_CLIENT).1, [BUFFER_BYTES; 2]);
    // What was made small grows again as others leave.
    let least = *buffers.iter().min().unwrap();
    let last = greedy.pop().unwrap();
    drop(greedy);
    let (last_far, last_taken) = (far.pop().unwrap(), taken.pop().unwrap());
    nothing_is_lost(far, taken);
    daemon.wait_until("its buffers have grown", |_| {
        let (_, buffers) = socket_memory(&bed, "10.72.1.");
        buffers.len() == 2 && *buffers.iter().min().unwrap() >= 4 * least
    });
    drop(last);
    nothing_is_lost(vec![last_far], vec![last_taken]);
    ask(&other, b"still there");
}

#[test]
fn one_network_whose_data_nobody_reads_has_its_share_of_memory_and_others_are_relayed() {
    const STALLED: usize = 160;
    const MEMORY_BYTES: u64 = 4_000_000;
    let bed = Bed::new("mem");
    add_other_client(&bed);
    let deaf = bed.server.run(|| TcpListener::bind(FIRST).unwrap()).unwrap();
    for address in [SECOND, OTHER_SERVER] {
        relay_bed::echo_server(bed.server.run(|| TcpListener::bind(address).unwrap()).unwrap());
    }
    let file = format!("{INTERCEPT}[limits]\nmemory = '4MB'\n[defaults]\nqueue = {{ target = 'off' }}\n");
    let mut daemon = Daemon::start(&bed, &file, &[]);
    // All are there before the first of them holds anything.
    let greedy: Vec<_> = (0..STALLED).map(|_| bed.connect(FIRST)).collect();
    let far = accepted(&deaf, &greedy);
    let taken = offer(&greedy);
    let memory = daemon.status().memory.unwrap();
    assert_eq!(memory.limit_bytes, Some(MEMORY_BYTES));
    assert_eq!(memory.networks[0].network.to_string(), "10.72.1.0");
    // Of so many even the least that each may hold is more than the share; and each holds what it was promised first.
    let most_bytes = STALLED as u64 * (128 + 32) * 1024;
    assert!((MEMORY_BYTES * 3 / 4..most_bytes).contains(&memory.networks[0].held_bytes), "{memory:?}");
    let table =
        run_command(bed.command(&["status", "--socket", daemon.file("control.sock").to_str().unwrap()]))
            .unwrap();
    assert!(table.contains("of 4MB held") && table.contains("by 10.72.1.0"), "{table}");
    // Who comes from elsewhere is relayed.
    let other = bed.connect(OTHER_SERVER);
    let numbers: Vec<u8> = (0..1 << 20).map(|number: u32| (number % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| (&other).write_all(&numbers).unwrap());
        let mut answer = vec![0; numbers.len()];
        (&other).read_exact(&mut answer).unwrap();
        assert!(answer == numbers);
    });
    let of = |daemon: &Daemon, server: &str| {
        let found = daemon.status().connections.into_iter();
        found.filter(|one| one.server.to_string() == server).collect::<Vec<_>>()
    };
    let relayed = of(&daemon, OTHER_SERVER);
    assert_eq!(relayed.len(), 1, "it is relayed");
    assert_eq!(relayed[0].client.ip().to_string(), OTHER_CLIENT);
    assert_eq!(relayed[0].to_client.relayed_bytes, 1 << 20);
    // What the network opens beyond its share passes.
    daemon.wait_until("it passes", |daemon| {
        let Ok(mut more) = bed.client.run(|| TcpStream::connect(SECOND)).unwrap() else { return false };
        more.set_read_timeout(Some(PATIENCE)).unwrap();
        let is_answered = more.write_all(b"x").is_ok() && more.read_exact(&mut [0]).is_ok();
        is_answered && of(daemon, SECOND).is_empty()
    });
    // Nothing of what was taken is lost, and what is free again is shared again.
    drop(greedy);
    nothing_is_lost(far, taken);
    daemon.wait_until("it is given back", |daemon| {
        daemon.status().memory.unwrap().networks.iter().all(|one| one.held_bytes < MEMORY_BYTES / 8)
    });
    daemon.wait_until("its clients are relayed again", |daemon| {
        let client = bed.connect(SECOND);
        ask(&client, b"again");
        !of(daemon, SECOND).is_empty()
    });
}

#[test]
fn the_service_manager_hears_of_it_and_no_capability_is_kept_that_is_not_needed() {
    let bed = Bed::new("sdn");
    servers(&bed);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut text = [0; 256];
        let bytes = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    };
    let until = |wanted: &str| {
        let mut heard = hear();
        while !heard.starts_with(wanted) {
            assert_eq!(heard, "WATCHDOG=1", "while waiting for {wanted}");
            heard = hear();
        }
    };
    let environment = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let file = format!("[log]\nformat = 'json'\n{INTERCEPT}");
    let mut daemon = Daemon::start(&bed, &file, &environment);
    until("READY=1");
    until("WATCHDOG=1");
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(field(set), "0000000000001400", "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    ask(&bed.connect(FIRST), b"and yet it relays");
    daemon.change(&file);
    until("RELOADING=1\nMONOTONIC_USEC=");
    until("READY=1");
    daemon.signal(libc::SIGTERM);
    until("STOPPING=1");
    assert_eq!(daemon.exit_code(), Some(0), "{}", daemon.log());
    let events: Vec<String> = daemon
        .log()
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(events, ["ready", "reloaded", "draining", "ended"]);
}

#[test]
fn an_explicit_listener_keeps_its_socket_over_a_reload_and_rules_match_its_clients() {
    let bed = Bed::new("exp");
    servers(&bed);
    let listen = |to: &str| format!("[[listen]]\naddress = '10.72.1.1:7300'\nto = '{to}'\n");
    let rules = "[[rule]]\nname = 'local'\nsource = '10.72.1.0/24'\nserver = { cc = 'cubic' }\n\
                 [[rule]]\nname = 'far'\nport = 80\nserver = { cc = 'bbr' }\n";
    let mut daemon = Daemon::start(&bed, &format!("{}{rules}", listen(FIRST)), &[]);
    let first = bed.connect("10.72.1.1:7300");
    ask(&first, b"first");
    let status = daemon.status();
    assert_eq!(
        (status.connections[0].rule.as_str(), status.connections[0].server_leg.cc.as_str()),
        ("local", "cubic")
    );
    daemon.change(&format!("{}[[rule]]\nsource = '10.72.1.0/24'\naction = 'pass'\n", listen(SECOND)));
    daemon.wait_until("reloaded", |daemon| daemon.status().reload.done == 1);
    // What may not be relayed and cannot pass is reset.
    daemon.wait_until("a new client is refused", |_| !is_answered(&bed, "10.72.1.1:7300"));
    daemon.wait_until("it is counted", |daemon| daemon.status().totals.refused == 1);
    daemon.change(&listen(SECOND));
    daemon.wait_until("reloaded", |daemon| daemon.status().reload.done == 2);
    daemon.wait_until("a new client is relayed", |_| is_answered(&bed, "10.72.1.1:7300"));
    ask(&first, b"first still");
    let servers: Vec<_> = daemon.status().connections.iter().map(|one| one.server.to_string()).collect();
    assert!(servers.contains(&FIRST.to_owned()), "{servers:?}");
}

#[test]
fn check_explains_a_file_and_names_every_problem() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("relay.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_longfat"))
            .args(["relay", "check", path.to_str().unwrap()])
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.code(), said.concat())
    };
    let (code, said) = check(&format!(
        "{INTERCEPT}[[rule]]\nname = 'web'\nport = [80, 443]\nserver = {{ rate = '1Gbit', rtt = '28.4ms' }}\n"
    ));
    assert_eq!(code, Some(0), "{said}");
    for part in ["web", "80, 443", "14.2MB", "tproxy ip to", "ip -6 rule add", "(what none matches)"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, said) = check("[[rule]]\nprot = 1\nidel = '1h'\n");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("'port'") && said.contains("'idle'"), "{said}");
    let (code, said) = check(&format!("{INTERCEPT}[defaults]\nclient = {{ cc = 'lf_highsped' }}\n"));
    assert!(code == Some(2) && said.contains("highspeed"), "{said}");
    let (code, said) = check("[[listen]]\naddress = '127.0.0.1:80'\nto = 'here'\n");
    assert!(code == Some(2) && said.contains("1 problem\n"), "{said}");
    let held = format!("workers = 2\nfail = 'closed'\n{INTERCEPT}[defaults]\naccept = 'after-server'\n");
    let (code, said) = check(&held);
    assert!(code == Some(0) && said.contains("ip tuntap add dev lfh6c66-1 mode tun"), "{said}");
}

fn listen(port: u16, to: &str) -> String {
    format!("[[listen]]\naddress = '10.72.1.1:{port}'\nto = '{to}'\n")
}

/// Whether a new client is relayed to one of the servers; else it is reset.
fn is_answered(bed: &Bed, address: &str) -> bool {
    let asked = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"?")?;
        stream.read(&mut [0])
    };
    match bed.client.run(asked).unwrap() {
        Ok(count) => count == 1,
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("{address} says nothing"),
        Err(_) => false,
    }
}

fn answers(bed: &Bed, port: u16) -> bool {
    bed.client.run(|| TcpStream::connect(("10.72.1.1", port))).unwrap().is_ok()
}

#[test]
fn a_listener_wanted_again_while_it_lingers_is_kept() {
    let bed = Bed::new("aba");
    servers(&bed);
    let (first, second) = (listen(7301, FIRST), listen(7302, SECOND));
    let mut daemon = Daemon::start(&bed, &first, &[]);
    let living = bed.connect("10.72.1.1:7301");
    ask(&living, b"before");
    daemon.change(&second);
    daemon.wait_until("reloaded", |daemon| daemon.status().reload.done == 1);
    daemon.change(&first);
    daemon.wait_until("reloaded back", |daemon| daemon.status().reload.done == 2);
    let wanted_again = Instant::now();
    ask(&bed.connect("10.72.1.1:7301"), b"at once");
    // Longer than listeners linger: the one that was wanted again stays, the other goes.
    daemon.wait_until("the other is closed", |_| !answers(&bed, 7302));
    std::thread::sleep(Duration::from_millis(3500).saturating_sub(wanted_again.elapsed()));
    ask(&bed.connect("10.72.1.1:7301"), b"and later");
    ask(&living, b"and all the time");
    assert_eq!(daemon.status().reload.refused, 0);
}

/// Reloads to what fails late; everything is as before.
fn is_refused_whole(bed: &Bed, daemon: &mut Daemon, file: &str, problem: &str) {
    let (before, refused) = (bed.footprint(), daemon.status().reload.refused);
    daemon.change(file);
    daemon.wait_until("refused", |daemon| daemon.status().reload.refused == refused + 1);
    let said = daemon.status().reload.problem.unwrap();
    assert!(said.contains(problem), "{said}");
    // Pairs of recent SYNs are remembered for some seconds.
    let rules = |text: String| text.lines().filter(|line| !line.contains("expires")).collect::<String>();
    assert_eq!(rules(bed.footprint()), rules(before));
}

#[test]
fn a_reload_that_fails_half_way_changes_nothing_and_works_when_its_cause_is_gone() {
    let bed = Bed::new("half");
    servers(&bed);
    let rule = |cc: &str, accept: &str| {
        format!("[[rule]]\nname = 'all'\naccept = '{accept}'\nserver = {{ cc = '{cc}' }}\n")
    };
    let file = |listeners: &str, rules: &str| format!("workers = 1\n{INTERCEPT}{listeners}{rules}");
    let mut daemon = Daemon::start(&bed, &file(&listen(7301, FIRST), &rule("reno", "early")), &[]);
    let cc_of_the_next = |daemon: &Daemon, address: &str| {
        let next = bed.connect(address);
        ask(&next, b"next");
        daemon.status().connections.last().unwrap().server_leg.cc.clone()
    };
    assert_eq!(cc_of_the_next(&daemon, FIRST), "reno");

    // A new listener's address is in use, after another new one's was had.
    let blocker = bed.relay.run(|| TcpListener::bind("10.72.1.1:7303")).unwrap().unwrap();
    let more = [listen(7301, SECOND), listen(7302, FIRST), listen(7303, FIRST)].concat();
    let wanted = file(&more, &rule("cubic", "early"));
    is_refused_whole(&bed, &mut daemon, &wanted, "10.72.1.1:7303");
    assert!(!answers(&bed, 7302), "nobody would serve its clients");
    assert_eq!(cc_of_the_next(&daemon, FIRST), "reno");
    assert_eq!(cc_of_the_next(&daemon, "10.72.1.1:7301"), "reno");
    let servers: Vec<_> = daemon.status().connections.iter().map(|one| one.server.to_string()).collect();
    assert!(!servers.contains(&SECOND.to_owned()), "{servers:?}");
    drop(blocker);

    // The interface that would hold handshakes cannot be made: its name is taken.
    let mark = u32::from_str_radix(bed.footprint().split("fwmark 0x").nth(1).unwrap().get(..4).unwrap(), 16);
    let name = format!("lfh{:x}-0", mark.unwrap());
    bed.relay.ip(&["link", "add", &name, "type", "veth", "peer", "name", "lfh-peer"]).unwrap();
    let wanted = file(&more, &rule("cubic", "after-server"));
    is_refused_whole(&bed, &mut daemon, &wanted, &name);
    assert!(!answers(&bed, 7303), "nobody would serve its clients");
    assert_eq!(cc_of_the_next(&daemon, FIRST), "reno");
    bed.relay.ip(&["link", "del", &name]).unwrap();

    daemon.change(&wanted);
    daemon.wait_until("reloaded", |daemon| daemon.status().reload.done == 1);
    daemon.wait_until("new rules decide", |daemon| cc_of_the_next(daemon, FIRST) == "cubic");
    assert!(answers(&bed, 7302) && answers(&bed, 7303));
}

#[test]
fn a_reload_that_nftables_refuses_leaves_no_interface_and_no_way_to_one() {
    let bed = Bed::new("nft");
    servers(&bed);
    let file =
        |accept: &str| format!("workers = 1\n{INTERCEPT}[[rule]]\nname = 'all'\naccept = '{accept}'\n");
    let mut daemon = Daemon::start(&bed, &file("early"), &[]);
    ask(&bed.connect(FIRST), b"taken");
    let interfaces = || bed.relay.ip(&["-brief", "link", "show"]).unwrap();
    let before = interfaces();
    // Somebody else owns the table, for as long as his process lives: nobody else may change it.
    let mut nft = bed.relay.command("nft");
    let mut owner = nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let table = "table inet longfat_relay";
    writeln!(owner.stdin.as_ref().unwrap(), "delete {table}\nadd {table} {{ flags owner; }}").unwrap();
    daemon.wait_until("the table is his", |_| bed.footprint().contains("flags owner"));
    for _ in 0..2 {
        is_refused_whole(&bed, &mut daemon, &file("after-server"), "not permitted");
        assert_eq!(interfaces(), before);
    }
    drop(owner.stdin.take());
    owner.wait().unwrap();
    daemon.change(&file("after-server"));
    daemon.wait_until("reloaded", |daemon| daemon.status().reload.done == 1);
    ask(&bed.connect(FIRST), b"held and taken");
}

#[test]
fn a_reload_keeps_marking_although_the_right_to_load_programs_was_given_up() {
    let bed = Bed::new("mrk");
    servers(&bed);
    let file = |target: &str| {
        format!(
            "workers = 1\n{INTERCEPT}[[rule]]\nname = 'all'\nqueue = {{ target = '{target}', controller = 'pi' }}\n"
        )
    };
    let mut daemon = Daemon::start(&bed, &file("20ms"), &[]);
    let before = bed.connect(FIRST);
    ask(&before, b"before");
    daemon.change(&file("30ms"));
    daemon.wait_until("it was read again", |daemon| {
        let reload = daemon.status().reload;
        reload.done + reload.refused == 1
    });
    assert_eq!(daemon.status().reload.problem, None);
    // Of the first connection, which lives, and of the last.
    let targets = |daemon: &Daemon| {
        let status = daemon.status();
        let ends = [status.connections.first(), status.connections.last()];
        ends.map(|one| one.unwrap().to_server.queue.unwrap().target_us)
    };
    daemon.wait_until("new connections have the new target", |daemon| {
        let after = bed.connect(FIRST);
        ask(&after, b"after");
        targets(daemon) == [20_000, 30_000]
    });
    assert!(!daemon.log().contains("not marked"), "{}", daemon.log());
}

#[test]
fn it_steps_into_connections_with_the_rights_that_it_keeps_and_a_kill_resets_both_ends() {
    let bed = Bed::new("re2e");
    servers(&bed);
    let early = format!("workers = 2\nmetrics = '127.0.0.1:9469'\n{INTERCEPT}");
    let mut daemon = Daemon::start(&bed, &early, &[]);
    ask(&bed.connect(FIRST), b"early");
    daemon.change(&format!("{early}[defaults]\naccept = 'end-to-end'\n"));
    daemon.wait_until("the file is read again", |daemon| daemon.status().reload.done == 1);
    let living: Vec<_> = (0..8).map(|_| bed.connect(FIRST)).collect();
    living.iter().for_each(|client| ask(client, b"end to end"));
    let status = daemon.status();
    assert_eq!(status.end_to_end.inserted, 8, "{status:?}\n{}", daemon.log());
    for host in [&bed.client, &bed.server] {
        host.run(|| longfat_host::sysctl::write("net.ipv4.tcp_ecn", "1")).unwrap().unwrap();
    }
    let marked = bed.connect(FIRST);
    ask(&marked, b"with ECN");
    let status = daemon.status();
    assert_eq!(status.end_to_end.passed.get("ecn"), Some(&1), "{status:?}");
    let metrics = bed.ask_metrics("GET /metrics HTTP/1.0\r\n\r\n");
    for line in [
        "longfat_relay_inserted_connections_total 8",
        "longfat_relay_passed_connections_total{reason=\"ecn\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    daemon.signal(libc::SIGKILL);
    daemon.exit_code();
    for mut client in &living {
        // What the kernel has closed is told at once; nobody is told that all had come.
        let error = client.read(&mut [0; 1]).expect_err("an end in order");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    ask(&marked, b"lives on");
}

#[test]
fn a_service_that_is_stopped_leaves_connections_to_their_ends() {
    let bed = Bed::new("rleave");
    bed.relay.run(|| longfat_host::sysctl::write("net.ipv4.ip_forward", "1")).unwrap().unwrap();
    servers(&bed);
    let file = format!("workers = 2\ndrain = '20s'\n{INTERCEPT}[defaults]\naccept = 'end-to-end'\n");
    let mut daemon = Daemon::start(&bed, &file, &[]);
    let living: Vec<_> = (0..8).map(|_| bed.connect(FIRST)).collect();
    living.iter().for_each(|client| ask(client, b"carried"));
    assert_eq!(daemon.status().end_to_end.inserted, 8, "{}", daemon.log());
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.exit_code(), Some(0), "{}", daemon.log());
    living.iter().for_each(|client| ask(client, &[7; 1 << 16]));
    let log = daemon.log();
    assert!(log.contains("8 connections go on without it, 0 were reset"), "{log}");
    assert!(!bed.footprint().contains("longfat"), "{}", bed.footprint());
}
