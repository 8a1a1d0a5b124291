//! `longfat link` as its users meet it: exit codes, the path around a command, signals, what is left behind.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, UdpSocket},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

fn longfat(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.arg("link").args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = longfat(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

fn namespaces_of(pid: u32) -> usize {
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap().stdout;
    String::from_utf8(listed).unwrap().matches(&format!("lf-link-{pid}-")).count()
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: the child has not been waited for, so the pid is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Starts `link run` around a command that says `started` and then sleeps.
fn sleeping(command: &str) -> Child {
    let script = format!("{command}; echo started; exec sleep 100");
    let mut child = longfat(&["run", "--delay", "1ms", "-q", "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child
}

/// Waits for something that another process or the kernel does in its own time.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_command_reaches_this_host_through_the_delay_and_its_exit_code_is_passed_on() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut peer, address) = listener.accept().unwrap();
        // One byte each way: the handshake and this exchange cross the path three times before the client ends.
        peer.read_exact(&mut [0]).unwrap();
        peer.write_all(b"y").unwrap();
        address
    });
    let script = format!("exec 3<>/dev/tcp/$LONGFAT_HOST/{port}; echo -n x >&3; head -c1 <&3; exit 7");
    let begin = Instant::now();
    let (code, stdout, stderr) = run(&["run", "--delay", "25ms", "--", "bash", "-c", &script]);
    let elapsed = begin.elapsed();
    assert_eq!((code, stdout.as_str()), (7, "y"), "{stderr}");
    assert!(elapsed >= Duration::from_millis(100), "two round trips: {elapsed:?}");
    assert!(server.join().unwrap().ip().to_string().starts_with("100."), "{stderr}");
    assert!(stderr.contains("forward") && stderr.contains("of a processor core"), "{stderr}");
}

#[test]
fn the_summary_as_json_counts_what_passed() {
    let (code, stdout, stderr) = run(&["run", "--json", "-q", "--", "true"]);
    assert_eq!(code, 0, "{stderr}");
    let summary: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(summary["forward"]["driver"], "af_packet");
    assert_eq!(summary["backward"]["overrun_packets"], 0);
}

#[test]
fn a_path_too_narrow_for_ipv6_has_ipv4_alone() {
    for (mtu, has) in [("1279", "no"), ("1280", "yes")] {
        let script = "test -z \"$LONGFAT_HOST6\" && echo no || echo yes";
        let (code, stdout, stderr) = run(&["run", "--mtu", mtu, "--", "sh", "-c", script]);
        assert_eq!((code, stdout.trim()), (0, has), "{mtu}: {stderr}");
        assert_eq!(stderr.contains(" and fd6c:"), has == "yes", "{mtu}: {stderr}");
    }
}

#[test]
fn samples_of_an_earlier_run_are_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let samples = directory.path().join("samples.jsonl");
    std::fs::write(&samples, "earlier").unwrap();
    let (code, _, stderr) = run(&["run", "--samples", samples.to_str().unwrap(), "--", "true"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("not replaced"), "{stderr}");
    assert_eq!(std::fs::read_to_string(samples).unwrap(), "earlier");
}

#[test]
fn a_command_that_does_not_exist_and_wrong_values_fail_with_2_and_the_mend() {
    for (arguments, expected) in [
        (&["run", "--", "/no/such/program"][..], "start '/no/such/program'"),
        (
            &["run", "--loss", "2", "--", "true"],
            "share '2' is out of range; write it like '0.01' or '1%', from 0 to 1",
        ),
        (&["run", "--rate", "100", "--", "true"], "has no unit; write it like '100Mbit' or '1Gbit'"),
        (&["run", "--aqm", "fq", "--", "true"], "choose droptail, red or codel"),
        (&["run", "--plan", "/no/such/plan.json", "--", "true"], "link plan '/no/such/plan.json'"),
        (&["drive", "--plan", "Cargo.toml", "--a", "x", "--b", "y"], "unknown field"),
    ] {
        let (code, _, stderr) = run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_kernel_without_netem_is_refused_with_3_before_anything_is_touched() {
    let (code, _, stderr) = run(&["run", "--driver", "netem", "-q", "--", "true"]);
    let has_netem = Command::new("sh")
        .args(["-c", "unshare -n tc qdisc add dev lo root netem delay 1ms"])
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success();
    assert_eq!(code, if has_netem { 0 } else { 3 }, "{stderr}");
    assert_eq!(stderr.contains("the kernel's qdisc 'netem'"), !has_netem, "{stderr}");
}

#[test]
fn sigterm_ends_the_command_and_removes_every_namespace() {
    let mut child = sleeping("true");
    assert_eq!(namespaces_of(child.id()), 2);
    signal(&child, libc::SIGTERM);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + libc::SIGTERM));
    assert_eq!(namespaces_of(child.id()), 0);
}

#[test]
fn a_killed_run_leaves_nothing_that_the_next_one_does_not_remove() {
    let mut child = sleeping("true");
    let pid = child.id();
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    let (code, _, stderr) = run(&["run", "-q", "--", "true"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(namespaces_of(pid), 0);
    // The host's end goes with its peer's namespace, which the kernel takes down in its own time.
    let host_end = format!("/proc/sys/net/ipv4/conf/lfl{pid}");
    eventually("the host's end of the path is gone", || !std::path::Path::new(&host_end).exists());
}

/// A namespace of this test with a veth pair for the driver to run between, removed on drop.
struct Wire(String);

impl Wire {
    fn new(name: &str) -> Wire {
        let wire = Wire(format!("lfwire-{name}-{}", std::process::id()));
        wire.ip(&["netns", "add", &wire.0]);
        for (end, peer) in [("left", "lp"), ("right", "rp")] {
            wire.ip(&["-n", &wire.0, "link", "add", "name", end, "type", "veth", "peer", "name", peer]);
            for interface in [end, peer] {
                wire.ip(&["-n", &wire.0, "link", "set", "dev", interface, "up"]);
            }
        }
        wire
    }

    fn ip(&self, arguments: &[&str]) {
        assert!(Command::new("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
    }

    fn drive(&self, plan: &str, a: &str, more: &[&str]) -> Child {
        let binary = env!("CARGO_BIN_EXE_longfat");
        Command::new("ip")
            .args([
                "netns", "exec", &self.0, binary, "link", "drive", "--plan", plan, "--a", a, "--b", "right",
            ])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn the_driver_says_ready_and_ends_on_sigterm_with_its_summary_and_samples() {
    let wire = Wire::new("drive");
    let directory = tempfile::tempdir().unwrap();
    let (plan, samples) = (directory.path().join("backbone.toml"), directory.path().join("samples.jsonl"));
    std::fs::write(&plan, "rate = '10Mbit'\ndelay = '3ms'").unwrap();
    let mut driver =
        wire.drive(plan.to_str().unwrap(), "left", &["--json", "--samples", samples.to_str().unwrap()]);
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    signal(&driver, libc::SIGTERM);
    let summary: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(summary["forward"]["link"], "backbone");
    assert!(driver.wait().unwrap().success());
    let kept = std::fs::read_to_string(samples).unwrap();
    assert!(kept.contains(r#""type":"queue""#) && kept.contains(r#""type":"link""#), "{kept}");
}

#[test]
fn a_driver_whose_interface_goes_tells_what_it_carried_and_why_it_ended() {
    for (name, command) in
        [("down", ["set", "dev", "right", "down"]), ("gone", ["del", "dev", "right", "type"])]
    {
        let wire = Wire::new(name);
        let directory = tempfile::tempdir().unwrap();
        let (plan, samples) = (directory.path().join("path.toml"), directory.path().join("samples.jsonl"));
        std::fs::write(&plan, "rate = '10Mbit'\ndelay = '3ms'").unwrap();
        let arguments = ["--json", "--samples", samples.to_str().unwrap()];
        let mut driver = wire.drive(plan.to_str().unwrap(), "left", &arguments);
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let more: &[&str] = if name == "gone" { &["veth"] } else { &[] };
        wire.ip(&[&["-n", &wire.0, "link"][..], &command, more].concat());
        let summary: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(summary["forward"]["offered_packets"].is_u64(), "{summary}");
        let why = "interface 'right' is down or gone";
        assert!(summary["failure"].as_str().unwrap().starts_with(why), "{summary}");
        let output = driver.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(&format!("longfat: {why}")), "{said}");
        let kept = std::fs::read_to_string(samples).unwrap();
        assert!(kept.contains(r#""type":"link""#) && kept.contains(why), "{kept}");
    }
}

/// `timeout` tells a process, and then its group.
#[test]
fn two_signals_at_once_are_one_wish_to_end() {
    let wire = Wire::new("twice");
    let directory = tempfile::tempdir().unwrap();
    let plan = directory.path().join("path.toml");
    std::fs::write(&plan, "delay = '3ms'").unwrap();
    let mut driver = wire.drive(plan.to_str().unwrap(), "left", &["--json"]);
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    signal(&driver, libc::SIGTERM);
    signal(&driver, libc::SIGINT);
    assert!(lines.next().is_some_and(|line| line.unwrap().contains("forward")));
    assert!(driver.wait().unwrap().success());
}

#[test]
fn a_driven_interface_is_refused_to_others_and_has_ipv6_again_after_a_kill() {
    let wire = Wire::new("taken");
    let directory = tempfile::tempdir().unwrap();
    let plan = directory.path().join("path.toml");
    std::fs::write(&plan, "delay = '3ms'").unwrap();
    let plan = plan.to_str().unwrap();
    let ipv6_off = || {
        let arguments = ["netns", "exec", &wire.0, "cat", "/proc/sys/net/ipv6/conf/left/disable_ipv6"];
        String::from_utf8(Command::new("ip").args(arguments).output().unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    };
    let begin = || {
        let mut driver = wire.drive(plan, "left", &[]);
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        driver
    };
    assert_eq!(ipv6_off(), "0", "the test needs IPv6");
    let mut killed = begin();
    let refused = wire.drive(plan, "left", &[]).wait_with_output().unwrap();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr.contains(&format!("'left' is driven by process {}", killed.id())), "{stderr}");
    let both = wire.drive(plan, "right", &[]).wait_with_output().unwrap();
    assert!(String::from_utf8(both.stderr).unwrap().contains("both ends of the link are interface 'right'"));
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(ipv6_off(), "1");
    let mut next = begin();
    signal(&next, libc::SIGTERM);
    assert!(next.wait().unwrap().success());
    assert_eq!(ipv6_off(), "0");
}

#[test]
fn a_missing_interface_is_named_with_exit_code_2() {
    let wire = Wire::new("missing");
    let directory = tempfile::tempdir().unwrap();
    let plan = directory.path().join("path.toml");
    std::fs::write(&plan, "delay = '3ms'").unwrap();
    let output = wire.drive(plan.to_str().unwrap(), "nosuch", &[]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("interface 'nosuch'"), "{stderr}");
}

/// Stopped together with its hosts, a path that went on would let all packets go at once that were due meanwhile.
#[test]
fn a_path_whose_machine_stood_still_goes_on_where_it_was() {
    const PACKETS: usize = 60;
    let receiver = UdpSocket::bind("0.0.0.0:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let port = receiver.local_addr().unwrap().port();
    // 11 ms each at 1 Mbit/s; sent at once, so nothing arrives at the path while it is stopped.
    let script = format!(
        "exec 3<>/dev/udp/$LONGFAT_HOST/{port}; packet=$(printf '%01400d' 0); \
         for i in $(seq {PACKETS}); do printf %s $packet >&3; done; echo started; sleep 3"
    );
    let mut child =
        longfat(&["run", "--rate", "1Mbit", "--queue", "1MB", "--json", "-q", "--", "bash", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    let stopping = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        signal(&child, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(300));
        signal(&child, libc::SIGCONT);
        child
    });
    let arrivals: Vec<Instant> = (0..PACKETS)
        .map(|_| {
            receiver.recv(&mut [0; 2000]).unwrap();
            Instant::now()
        })
        .collect();
    let joined = arrivals.windows(2).filter(|pair| pair[1] - pair[0] < Duration::from_millis(3)).count();
    let mut summary = String::new();
    stdout.read_to_string(&mut summary).unwrap();
    stopping.join().unwrap().wait().unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert!(summary["forward"]["paused_us"].as_u64().unwrap() > 200_000, "{summary}");
    assert_eq!(summary["forward"]["punctual"], false, "a tenth of the time is too much: {summary}");
    assert!(joined < 13, "{joined} of 26 packets of the pause came in one burst");
}

#[test]
fn what_iperf3_and_ping_recorded_becomes_a_trace_that_a_link_follows() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let ping = "64 bytes from 192.0.2.1: icmp_seq=1 ttl=57 time=60 ms\n64 bytes from 192.0.2.1: icmp_seq=2 ttl=57 time=62 ms\n";
    std::fs::write(path("ping.txt"), ping).unwrap();
    let (code, stdout, stderr) = run(&["import", &path("ping.txt"), "-o", &path("ping.csv")]);
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("half a round trip") && stderr.contains("2 rows"), "{stderr}");
    let begin = Instant::now();
    let script = "exec 3<>/dev/tcp/$LONGFAT_HOST/1 || true";
    let trace = path("ping.csv");
    let (code, _, stderr) =
        run(&["run", "--trace", &trace, "--rate", "10Mbit", "-q", "--", "bash", "-c", script]);
    assert_eq!(code, 0, "{stderr}");
    assert!(begin.elapsed() >= Duration::from_millis(60), "a SYN and its refusal");
    let iperf3 = r#"{"intervals":[{"sum":{"start":0,"bits_per_second":1448e3}}]}"#;
    std::fs::write(path("iperf3.json"), iperf3).unwrap();
    let (code, stdout, stderr) = run(&["import", &path("iperf3.json")]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.ends_with("time_s,rate_bps\n0,1500000\n"), "{stdout}");
    assert!(stdout.contains("an achieved rate is no capacity"), "{stdout}");
}

#[test]
fn packets_wait_for_the_opportunities_that_were_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("slow.up"), "200\n").unwrap();
    let begin = Instant::now();
    let script = "exec 3<>/dev/tcp/$LONGFAT_HOST/1 || true";
    let (code, _, stderr) = run(&["run", "--trace", &path("slow.up"), "-q", "--", "bash", "-c", script]);
    assert_eq!(code, 0, "{stderr}");
    // ARP and SYN there and back: four times an opportunity, of which there is one in 200 ms.
    assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
}

#[test]
fn a_file_that_is_no_trace_is_refused_with_2_and_the_mend() {
    for (arguments, expected) in [
        (
            &["import", "Cargo.toml"][..],
            "holds no answer to a ping; is it what 'ping' or 'iperf3 --json' wrote?",
        ),
        (&["import", "/no/such/file"], "'/no/such/file'"),
        (&["run", "--trace", "Cargo.toml", "--", "true"], "line 1: '[package]' is no time in milliseconds"),
        (&["run", "--trace", "/dev/zero", "--", "true"], "is no regular file"),
    ] {
        let (code, _, stderr) = run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}
