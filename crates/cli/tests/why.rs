//! `longfat why` against connections whose cause this test makes, over an emulated path.

use crate::patience::eventually;
use longfat_host::{Lease, Namespace, interface, socket, sysctl};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const LONGFAT: &str = env!("CARGO_BIN_EXE_longfat");

/// sender - path - receiver, 20 Mbit/s and 20 ms of round trip.
struct Bed {
    sender: Namespace,
    receiver: Namespace,
    path: Child,
    over: Arc<AtomicBool>,
    /// A /run/longfat of the bed's own: runs of other tests take back what they find of a run that was killed.
    notes: tempfile::TempDir,
    _plan: tempfile::NamedTempFile,
    _lease: Lease,
}

const PATH: &str = "rate = \"20Mbit\"\ndelay = \"10ms\"\nqueue = { limit = \"100KB\" }\n";

impl Bed {
    fn new(tag: &str) -> Bed {
        Bed::on(tag, PATH)
    }

    fn on(tag: &str, path_toml: &str) -> Bed {
        let lease =
            Lease::take(&format!("wy{}-{tag}", std::process::id())).expect("root and iproute2 are needed");
        let [sender, path, receiver] = ["s", "p", "r"].map(|name| lease.namespace(name).unwrap());
        let end = |namespace, name| interface::End { namespace, name };
        for (host, device, address) in
            [(&sender, "left", "10.78.0.1/24"), (&receiver, "right", "10.78.0.2/24")]
        {
            interface::veth(end(host, "eth0"), end(&path, device), 1500).unwrap();
            host.ip(&["addr", "add", address, "dev", "eth0"]).unwrap();
            longfat_link::driver::prepare_host_end(host, "eth0").unwrap();
            for (key, value) in [("tcp_no_metrics_save", "1"), ("tcp_congestion_control", "reno")] {
                host.run(|| sysctl::write(&format!("net.ipv4.{key}"), value)).unwrap().unwrap();
            }
        }
        let mut plan = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        plan.write_all(path_toml.as_bytes()).unwrap();
        let mut drive = path.command(LONGFAT);
        drive.args(["link", "drive", "--a", "left", "--b", "right", "--plan", plan.path().to_str().unwrap()]);
        let mut child = drive.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{line}");
        let over = Arc::new(AtomicBool::new(false));
        let notes = tempfile::tempdir().unwrap();
        Bed { sender, receiver, path: child, over, notes, _plan: plan, _lease: lease }
    }

    /// A connection whose listener and client are prepared before they speak.
    fn connect(
        &self,
        server: impl Fn(&TcpListener) + Send,
        client: impl Fn(&TcpStream) + Send,
    ) -> (TcpStream, TcpStream) {
        let listener = self.receiver.run(|| TcpListener::bind("10.78.0.2:0")).unwrap().unwrap();
        server(&listener);
        let to: SocketAddr = listener.local_addr().unwrap();
        let near = self.sender.run(|| TcpStream::connect(to)).unwrap().unwrap();
        client(&near);
        (near, listener.accept().unwrap().0)
    }

    /// Does it again and again until the test is over, or the other end has gone.
    fn again(&self, mut step: impl FnMut() -> std::io::Result<()> + Send + 'static) {
        let over = Arc::clone(&self.over);
        thread::spawn(move || while !over.load(Ordering::Relaxed) && step().is_ok() {});
    }

    fn stream(&self, mut near: TcpStream, mut far: TcpStream) {
        let mut got = vec![0; 65_536];
        self.again(move || near.write_all(&[7; 65_536]));
        self.again(move || match far.read(&mut got)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        });
    }

    fn why(&self, args: &[&str]) -> Command {
        let mut command = self.sender.command("unshare");
        let enter = "mkdir -p /run/longfat && mount --bind \"$0\" /run/longfat && exec \"$@\"";
        command
            .args(["--mount", "sh", "-c", enter])
            .arg(self.notes.path())
            .args([LONGFAT, "why"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// What is said of the only connection after three seconds.
    fn answer(&self, args: &[&str]) -> Value {
        let output = self.why(&[args, &["--json", "--for", "3s"]].concat()).output().unwrap();
        let found = json(&output);
        assert_eq!(found["connections"].as_array().unwrap().len(), 1, "{found}");
        found["connections"][0].clone()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.path.kill();
        let _ = self.path.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The first cause, and that all of them make up the time.
fn first(connection: &Value) -> &str {
    let causes = connection["causes"].as_array().unwrap();
    let sum: u64 = causes.iter().map(|cause| cause["time_us"].as_u64().unwrap()).sum();
    assert_eq!(sum, connection["elapsed_us"].as_u64().unwrap(), "a gap or an overlap: {connection}");
    causes[0]["cause"].as_str().unwrap()
}

fn nothing<T>(_: &T) {}

#[test]
fn a_program_that_gives_nothing_is_not_the_networks_fault() {
    let bed = Bed::new("idle");
    let (mut near, far) = bed.connect(nothing, nothing);
    bed.again(move || {
        thread::sleep(Duration::from_millis(50));
        near.write_all(&[7; 5_000])
    });
    let mut far_reads = far;
    bed.again(move || far_reads.read(&mut [0; 65_536]).map(drop));
    let found = bed.answer(&["dst 10.78.0.2"]);
    assert_eq!(first(&found), "program_idle", "{found}");
    assert_eq!(found["remedies"].as_array().unwrap().len(), 0, "{found}");
}

#[test]
fn turns_of_a_round_trip_are_told_as_such_at_either_end() {
    let bed = Bed::new("turns");
    let (mut near, mut far) = bed.connect(nothing, nothing);
    bed.again(move || {
        near.write_all(&[7; 300])?;
        near.read_exact(&mut [0; 800])
    });
    bed.again(move || {
        far.read_exact(&mut [0; 300])?;
        far.write_all(&[7; 800])
    });
    let found = bed.answer(&["dst 10.78.0.2"]);
    assert_eq!(first(&found), "answer_awaited", "{found}");
}

#[test]
fn a_small_receive_buffer_is_the_kernels_own_word_and_has_a_price() {
    let bed = Bed::new("rcvbuf");
    let small =
        |listener: &TcpListener| socket::set_option(&listener.as_fd(), 1, libc::SO_RCVBUF, 8_000).unwrap();
    let (near, far) = bed.connect(small, nothing);
    bed.stream(near, far);
    let found = bed.answer(&["dst 10.78.0.2", "--rate", "20Mbit"]);
    assert_eq!(first(&found), "receive_window", "{found}");
    let cause = &found["causes"][0];
    assert_eq!(cause["basis"], "kernel");
    let rate = found["figures"]["rate_bps"].as_f64().unwrap();
    let without = &cause["without"];
    assert!(without["least_bps"].as_f64().unwrap() > 1.5 * rate, "{found}");
    // A full path of 20 Mbit/s carries 19.3 of payload.
    assert!(without["most_bps"].as_f64().unwrap() <= 19.4e6, "{found}");
    assert!(found["remedies"][0]["command"].as_str().unwrap().contains("net.ipv4.tcp_rmem"), "{found}");
}

#[test]
fn a_program_that_does_not_read_is_seen_at_its_own_end() {
    let bed = Bed::new("reader");
    let (mut near, mut far) = bed.connect(nothing, nothing);
    bed.again(move || near.write_all(&[7; 65_536]));
    bed.again(move || {
        thread::sleep(Duration::from_millis(200));
        far.read(&mut [0; 4_096]).map(drop)
    });
    // Its buffer fills, and grows, first.
    thread::sleep(Duration::from_secs(4));
    let output = {
        let mut why = bed.receiver.command(LONGFAT);
        why.args(["why", "--json", "--for", "3s", "dst 10.78.0.1"]).output().unwrap()
    };
    let found = json(&output);
    assert_eq!(first(&found["connections"][0]), "slow_reader", "{found}");
    let at_sender = bed.answer(&["dst 10.78.0.2"]);
    assert_eq!(first(&at_sender), "slow_reader", "{at_sender}");
}

#[test]
fn a_rate_that_the_program_set_is_named() {
    let bed = Bed::new("paced");
    let (near, far) = bed.connect(nothing, |near| socket::set_pacing_rate(near, Some(4_000_000)).unwrap());
    bed.stream(near, far);
    let found = bed.answer(&["dst 10.78.0.2"]);
    assert_eq!(first(&found), "pacing", "{found}");
}

/// A stream whose congestion window may not exceed eight segments, and its sending end.
fn clamped(bed: &Bed) -> TcpStream {
    let (near, far) = bed.connect(nothing, nothing);
    let sender = near.try_clone().unwrap();
    bed.stream(near, far);
    // Its losses at the beginning are repaired then.
    thread::sleep(Duration::from_secs(2));
    let mut set = bed.sender.command(LONGFAT);
    let set = set
        .args(["tcb", "set", "dst 10.78.0.2", "clamp=8", "cwnd=8", "ssthresh=8", "--yes"])
        .output()
        .unwrap();
    assert!(set.status.success(), "{}{}", text(&set.stdout), text(&set.stderr));
    sender
}

fn cwnd(bed: &Bed) -> u64 {
    let mut list = bed.sender.command(LONGFAT);
    let found = list.args(["tcb", "list", "--json", "dst 10.78.0.2"]).output().unwrap();
    json(&found)[0]["cwnd_segments"].as_u64().unwrap()
}

#[test]
fn a_remedy_holds_until_the_end_and_is_taken_back_also_after_a_kill() {
    let bed = Bed::new("fix");
    clamped(&bed);
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut fix = bed.why(&["dst 10.78.0.2", "--for", "3s", "--fix"]).spawn().unwrap();
        eventually("the window grows beyond its bound", || cwnd(&bed) > 16);
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(fix.id() as i32, signal) }, 0);
        fix.wait().unwrap();
        if signal == libc::SIGKILL {
            assert!(cwnd(&bed) > 16, "nobody has taken it back yet");
            let next = bed.why(&["dst 10.78.0.2", "--for", "500ms"]).output().unwrap();
            assert!(text(&next.stderr).contains("of a run that was killed"), "{}", text(&next.stderr));
        }
        eventually("the bound is back", || cwnd(&bed) <= 8);
    }
}

#[test]
fn a_remedy_with_which_a_connection_is_slower_is_taken_back() {
    let bed = Bed::new("slower");
    let sender = clamped(&bed);
    let fix = bed.why(&["dst 10.78.0.2", "--for", "3s", "--fix"]).spawn().unwrap();
    eventually("the window grows beyond its bound", || cwnd(&bed) > 16);
    // What makes it slower meanwhile stands for a remedy that does.
    socket::set_pacing_rate(&sender, Some(500_000)).unwrap();
    let output = fix.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", text(&output.stderr));
    assert!(said.contains("slower with it: taken back"), "{said}{}", text(&output.stderr));
    // A bound shows where the window is full.
    socket::set_pacing_rate(&sender, None).unwrap();
    eventually("the bound is back", || cwnd(&bed) <= 8);
}

#[test]
fn a_remedy_is_proven_by_turning_it_on_and_off() {
    let bed = Bed::new("prove");
    clamped(&bed);
    let output =
        bed.why(&["dst 10.78.0.2", "--for", "2s", "--rate", "20Mbit", "--fix", "--prove"]).output().unwrap();
    let said = text(&output.stdout).replace("\n  ", " ");
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(
        said.contains("cwnd_clamp") && said.contains("6 pairs): it helps"),
        "{said}{}",
        text(&output.stderr)
    );
    eventually("the bound is back", || cwnd(&bed) <= 8);
}

#[test]
fn what_a_remedy_made_of_the_window_is_taken_back_before_it_is_compared() {
    // Reno adds ten segments a second, of some 170 that the path holds.
    let bed = Bed::on("grown", "rate = \"20Mbit\"\ndelay = \"50ms\"\nqueue = { limit = \"500KB\" }\n");
    let (near, far) = bed.connect(nothing, nothing);
    bed.stream(near, far);
    let set = ["tcb", "set", "dst 10.78.0.2", "cwnd=8", "ssthresh=8", "--yes"];
    // After six round trips slow start overruns the queue.
    thread::sleep(Duration::from_millis(250));
    assert!(bed.sender.command(LONGFAT).args(set).output().unwrap().status.success());
    // For some round trips the kernel tells rates at which the larger window was delivered.
    thread::sleep(Duration::from_millis(500));
    let args = ["dst 10.78.0.2", "--for", "2s", "--rate", "20Mbit", "--fix", "--prove", "--json"];
    let output = bed.why(&args).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let proof: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    // Slow start may have lost something before its window was set: the remedy is another congestion control then.
    let setting = proof["setting"].as_str().unwrap();
    assert!(["ssthresh=unlimited", "cc=bbr"].contains(&setting), "{said}");
    let rate = |of: &str| proof["proof"][of].as_f64().unwrap();
    assert!(rate("with_bps") > 1.5 * rate("without_bps"), "{proof}");
    assert_eq!(proof["proof"]["is_effect"], true, "{proof}");
}

/// Transfers of 200 kB, each by a connection of its own, over a path of 100 ms.
fn one_after_the_other(bed: &Bed) {
    let listener = bed.receiver.run(|| TcpListener::bind("10.78.0.2:0")).unwrap().unwrap();
    let to: SocketAddr = listener.local_addr().unwrap();
    let sender = bed.sender.clone();
    bed.again(move || {
        let mut near = sender.run(|| TcpStream::connect(to)).unwrap()?;
        near.write_all(&[7; 200_000])?;
        near.shutdown(std::net::Shutdown::Write)?;
        near.read(&mut [0]).map(drop)
    });
    bed.again(move || {
        let (mut far, _) = listener.accept()?;
        let mut got = vec![0; 65_536];
        while far.read(&mut got)? > 0 {}
        Ok(())
    });
}

const FAR: &str = "rate = \"50Mbit\"\ndelay = \"50ms\"\nqueue = { limit = \"1MB\" }\n";

fn route(bed: &Bed) -> String {
    bed.sender.ip(&["route", "show", "10.78.0.2"]).unwrap()
}

/// A run that has set a route. On a machine that stands still the connections it watches may be slow by another cause.
fn helped(bed: &Bed) -> Child {
    for _ in 0..5 {
        let mut fix = bed.why(&["dst 10.78.0.2", "--for", "4s", "--fix", "--successors"]).spawn().unwrap();
        loop {
            if route(bed).contains("initcwnd 40") {
                return fix;
            }
            if let Some(ended) = fix.try_wait().unwrap() {
                let said = std::io::read_to_string(fix.stderr.take().unwrap()).unwrap();
                assert!(
                    ended.code() == Some(1) && said.contains("no route can mend this"),
                    "{ended}: {said}"
                );
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    panic!("nothing is found to be helped");
}

#[test]
fn new_connections_are_helped_by_a_route_to_their_peer_and_it_is_proven() {
    let bed = Bed::on("after", FAR);
    one_after_the_other(&bed);
    let args = ["dst 10.78.0.2", "--for", "4s", "--fix", "--successors", "--prove", "--json"];
    let output = bed.why(&args).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let proof: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(proof["setting"], "initcwnd 40", "{said}");
    assert_eq!(proof["proof"]["is_effect"], true, "{proof}");
    assert!(proof["proof"]["gain_bps"].as_f64().unwrap() > 0.0, "{proof}");
    assert_eq!(route(&bed), "", "the route is gone");
}

#[test]
fn a_route_for_new_connections_is_taken_back_as_it_was_also_after_a_kill() {
    let bed = Bed::on("route", FAR);
    one_after_the_other(&bed);
    bed.sender.ip(&["route", "add", "10.78.0.2/32", "dev", "eth0", "advmss", "1300"]).unwrap();
    let before = route(&bed);
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut fix = helped(&bed);
        assert!(route(&bed).contains("advmss 1300"), "{}", route(&bed));
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(fix.id() as i32, signal) }, 0);
        fix.wait().unwrap();
        if signal == libc::SIGKILL {
            assert!(route(&bed).contains("initcwnd 40"), "nobody has taken it back yet");
            let next = bed.why(&["dst 10.78.0.2", "--for", "500ms"]).output().unwrap();
            assert!(text(&next.stderr).contains("of a run that was killed"), "{}", text(&next.stderr));
        }
        assert_eq!(route(&bed), before);
    }
}

#[test]
fn an_end_that_answers_no_more_is_told_from_a_packet_that_was_lost() {
    let mut bed = Bed::new("gone");
    let (near, far) = bed.connect(nothing, nothing);
    let watched = near.try_clone().unwrap();
    bed.stream(near, far);
    thread::sleep(Duration::from_millis(500));
    bed.path.kill().unwrap();
    let backoff = || socket::tcp_info(&watched).unwrap().backoff;
    eventually("three timeouts in a row", || backoff() >= 3);
    let found = bed.answer(&[]);
    assert_eq!(first(&found), "no_answer", "{found}");
    assert!(found["causes"][0]["evidence"].as_str().unwrap().contains("timeouts in a row"), "{found}");
}

#[test]
fn a_program_is_watched_with_its_children_to_its_end_and_its_exit_code_is_kept() {
    let bed = Bed::new("program");
    let listener = bed.receiver.run(|| TcpListener::bind("10.78.0.2:0")).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut far, _) = listener.accept().unwrap();
        std::io::copy(&mut far, &mut std::io::sink())
    });
    let child = format!("exec 3<>/dev/tcp/10.78.0.2/{port}; head -c 3000000 /dev/zero >&3; sleep 1");
    let script = format!("bash -c '{child}' & wait; exit 7");
    let output = bed.why(&["--json", "--", "bash", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let connections = found["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 1, "{found}");
    assert!(connections[0]["remote"].as_str().unwrap().ends_with(&port.to_string()), "{found}");
    first(&connections[0]);
}

#[test]
fn a_capture_is_answered_with_the_same_causes() {
    let bed = Bed::new("capture");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("small.pcapng");
    let mut capture = bed.sender.command(LONGFAT);
    capture.args(["capture", "-i", "eth0", "-o", file.to_str().unwrap(), "tcp"]);
    let mut capture = capture.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(capture.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.starts_with("capturing"), "{line}");
    let small =
        |listener: &TcpListener| socket::set_option(&listener.as_fd(), 1, libc::SO_RCVBUF, 8_000).unwrap();
    let (near, far) = bed.connect(small, nothing);
    bed.stream(near, far);
    thread::sleep(Duration::from_secs(3));
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(capture.id() as i32, libc::SIGINT) }, 0);
    capture.wait().unwrap();
    let output = bed.why(&["--json", file.to_str().unwrap()]).output().unwrap();
    let found = json(&output);
    assert_eq!(first(&found["connections"][0]), "receive_window", "{found}");
    assert_eq!(found["connections"][0]["causes"][0]["basis"], "capture");
}

#[test]
fn many_connections_are_told_by_cause() {
    let lease = Lease::take(&format!("wy{}-many", std::process::id())).unwrap();
    let host = lease.namespace("h").unwrap();
    // As many wait to be accepted as a listener's queue holds.
    let open = || {
        let listeners: Vec<_> = (0..5).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let to = listeners.iter().map(|listener| listener.local_addr().unwrap());
        let clients: Vec<_> =
            to.flat_map(|to| (0..100).map(move |_| TcpStream::connect(to).unwrap())).collect();
        (listeners, clients)
    };
    let _ends = host.run(open).unwrap();
    let output = host.command(LONGFAT).args(["why", "--for", "500ms"]).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.starts_with("1000 connections\n") && said.lines().count() < 12, "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

/// Sends a little every 50 ms, until the test is over.
fn trickle(bed: &Bed) -> (TcpStream, TcpStream) {
    let (near, far) = bed.connect(nothing, nothing);
    let [mut writer, mut reader] = [&near, &far].map(|end| end.try_clone().unwrap());
    bed.again(move || {
        thread::sleep(Duration::from_millis(50));
        writer.write_all(&[7; 2_000])
    });
    bed.again(move || match reader.read(&mut [0; 65_536])? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    });
    (near, far)
}

/// Waits until a watch has asked the kernel for connections, and a little longer.
fn let_it_look(watch: &Child) {
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", watch.id())).into_iter().flatten().flatten();
    let is_socket = |path: std::path::PathBuf| path.to_string_lossy().starts_with("socket:");
    eventually("the watch asks the kernel", || {
        fds().any(|fd| std::fs::read_link(fd.path()).is_ok_and(is_socket))
    });
    thread::sleep(Duration::from_millis(1_500));
}

#[test]
fn connections_that_end_in_the_midst_are_judged_by_what_was_seen_of_them() {
    let bed = Bed::new("midst");
    let (_whole, _other) = trickle(&bed);
    let (ends, _) = trickle(&bed);
    let port = ends.local_addr().unwrap().port();
    let watch = bed.why(&["dst 10.78.0.2", "--json", "--for", "8s"]).spawn().unwrap();
    let_it_look(&watch);
    ends.shutdown(std::net::Shutdown::Both).unwrap();
    drop(ends);
    let found = json(&watch.wait_with_output().unwrap());
    let connections = found["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 2, "{found}");
    assert!(connections.iter().all(|one| first(one) == "program_idle"), "{found}");
    let is_cut = |one: &&Value| one["local"].as_str().unwrap().ends_with(&format!(":{port}"));
    let (cut, whole): (Vec<_>, Vec<_>) = connections.iter().partition(is_cut);
    let elapsed_us = |one: &Value| one["elapsed_us"].as_f64().unwrap();
    assert!(elapsed_us(cut[0]) < 0.7 * elapsed_us(whole[0]), "{found}");
}

#[test]
fn a_namespace_that_vanishes_ends_the_watch_with_what_was_seen() {
    for (scope, is_told) in [("its name", true), ("all", false)] {
        let lease = Lease::take(&format!("wy{}-van", std::process::id())).unwrap();
        let host = lease.namespace("h").unwrap();
        let listener = host.run(|| TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let near = host.run(|| TcpStream::connect(to)).unwrap().unwrap();
        let filter = format!("dport {}", to.port());
        let mut watch = Command::new(LONGFAT);
        let scope = if is_told { host.name() } else { scope };
        watch.args(["why", &filter, "--netns", scope, "--json", "--for", "4s"]);
        let watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let_it_look(&watch);
        drop((near, listener));
        assert!(Command::new("ip").args(["netns", "del", host.name()]).status().unwrap().success());
        let output = watch.wait_with_output().unwrap();
        let found = json(&output);
        assert_eq!(first(&found["connections"][0]), "program_idle", "{scope}: {found}");
        let said = text(&output.stderr);
        assert_eq!(said.contains("the network namespace has gone"), is_told, "{scope}: {said}");
    }
}

#[test]
fn without_rights_causes_are_told_all_the_same_and_a_remedy_says_what_is_lacking() {
    let bed = Bed::new("rights");
    clamped(&bed);
    let nobody = |more: &[&str]| {
        let mut command = bed.sender.command("setpriv");
        command.args([
            "--reuid",
            "nobody",
            "--regid",
            "nogroup",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ]);
        command.args([LONGFAT, "why", "dst 10.78.0.2", "--json", "--for", "3s"]).args(more).output().unwrap()
    };
    let told = json(&nobody(&[]));
    assert_eq!(first(&told["connections"][0]), "cwnd_clamp", "{told}");
    let refused = nobody(&["--fix"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    // What was found is told first.
    let found: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(first(&found["connections"][0]), "cwnd_clamp", "{found}");
    assert!(said.contains("BPF") || said.contains("root"), "{said}");
    assert!(cwnd(&bed) <= 8, "nothing was set");
}

#[test]
fn wrong_words_are_named_with_the_mend_and_exit_code_2() {
    let said = |args: &[&str]| {
        let output = Command::new(LONGFAT).arg("why").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stdout));
        text(&output.stderr)
    };
    assert!(said(&["dst", "10.0.0.0/8", "and", "cwdn", ">", "5"]).contains("did you mean 'cwnd'?"));
    assert!(said(&["no-such.pcapng"]).contains("no-such.pcapng"));
    assert!(said(&["--for", "1ms", "ipv4"]).contains("--for 1ms is out of range: 500ms to"));
    assert!(said(&["--every", "9s", "ipv4"]).contains("half of --for"));
    assert!(said(&["--", "no-such-program"]).contains("start 'no-such-program'"));
    assert!(said(&["ipv4", "--netns", "no-such"]).contains("'no-such'"));
    let listed = Command::new(LONGFAT).args(["why", "--list"]).output().unwrap();
    assert!(text(&listed.stdout).contains("receive_window"));
}

#[test]
fn what_was_looked_at_is_kept_and_judged_again_the_same() {
    let bed = Bed::new("record");
    let (near, far) = bed.connect(nothing, |near| socket::set_pacing_rate(near, Some(4_000_000)).unwrap());
    bed.stream(near, far);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("paced.looks");
    let file = file.to_str().unwrap();
    let found = bed.answer(&["dst 10.78.0.2", "--record", file]);
    let again = json(&bed.why(&[file, "--json"]).output().unwrap());
    assert_eq!(again["connections"][0]["causes"], found["causes"], "{again}");
    assert_eq!(first(&again["connections"][0]), "pacing");
    std::fs::write(file, "{}\n").unwrap();
    let refused = bed.why(&[file]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("line 1 is no record"), "{}", text(&refused.stderr));
}

/// What Prometheus is answered at this address of the sender's.
fn scraped(bed: &Bed, address: &str) -> String {
    let asked = bed.sender.run(|| {
        let mut asker = TcpStream::connect(address)?;
        asker.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        asker.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    asked.unwrap().unwrap_or_default()
}

#[test]
fn a_watch_answers_prometheus_with_causes_by_peer_prefix_stretch_after_stretch() {
    let bed = Bed::new("metrics");
    for _ in 0..2 {
        let (near, far) =
            bed.connect(nothing, |near| socket::set_pacing_rate(near, Some(2_000_000)).unwrap());
        bed.stream(near, far);
    }
    let args = ["dst 10.78.0.2", "--watch", "--for", "1s", "--metrics", "127.0.0.1:9471"];
    let mut watch = bed.why(&args).spawn().unwrap();
    let seconds = || {
        let answer = scraped(&bed, "127.0.0.1:9471");
        let of = "longfat_why_seconds_total{cause=\"pacing\",peer=\"10.78.0.0/24\"} ";
        let line = answer.lines().find_map(|line| line.strip_prefix(of)?.parse::<f64>().ok());
        line.filter(|_| {
            answer.contains("longfat_why_connections{cause=\"pacing\",peer=\"10.78.0.0/24\"} 2\n")
        })
    };
    // Both connections are followed beyond the first stretch.
    eventually("time of both adds up", || seconds().is_some_and(|seconds| seconds > 5.0));
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(watch.id() as i32, libc::SIGTERM) }, 0);
    assert!(watch.wait().unwrap().success());
}

#[test]
fn the_table_of_connections_has_a_column_of_causes_from_one_look_and_from_two() {
    let bed = Bed::new("column");
    let (near, far) = bed.connect(nothing, |near| socket::set_pacing_rate(near, Some(2_000_000)).unwrap());
    bed.stream(near, far);
    let cause = |more: &[&str]| {
        let mut list = bed.sender.command(LONGFAT);
        let found = list.args(["tcb", "list", "--json", "dst 10.78.0.2"]).args(more).output().unwrap();
        json(&found)[0]["cause"].as_str().unwrap_or("none").to_owned()
    };
    eventually("two looks name the pacing", || cause(&["--over", "500ms"]) == "pacing");
    eventually("so does one, as a rule", || cause(&[]) == "pacing");
    let idle = Bed::new("column-idle");
    let (_near, _far) = idle.connect(nothing, nothing);
    let mut list = idle.sender.command(LONGFAT);
    let found = json(&list.args(["tcb", "list", "--json", "dst 10.78.0.2"]).output().unwrap());
    assert_eq!(found[0]["cause"], "program_idle", "{found}");
}
