//! `longfat background` and `longfat avail` as a person meets them: unmodified programs in network namespaces.

use crate::left_behind::{cgroups, is_running, within_20_s};
use longfat_host::{Lease, Namespace, interface, run_command, sysctl};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

const SERVER: &str = "10.73.2.2";
const NAME: &str = "lf_imtcp_bg";

/// Lets one test run at a time: whether nothing is left is a question about the whole machine.
static ALONE: Mutex<()> = Mutex::new(());

/// sender - router - receiver; 20 Mbit/s from the router to the receiver, where servers of iperf3 wait.
struct Bed {
    sender: Namespace,
    receiver: Namespace,
    servers: Vec<Child>,
    _lease: Lease,
    _alone: MutexGuard<'static, ()>,
}

impl Bed {
    fn new(tag: &str, servers: u16) -> Bed {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = Lease::take(&format!("bg{}-{tag}", std::process::id())).unwrap();
        let [sender, router, receiver] = ["s", "m", "r"].map(|name| lease.namespace(name).unwrap());
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&sender, "eth0"), end(&router, "in"), 1500).unwrap();
        interface::veth(end(&receiver, "eth0"), end(&router, "out"), 1500).unwrap();
        sender.ip(&["addr", "add", "10.73.1.2/24", "dev", "eth0"]).unwrap();
        router.ip(&["addr", "add", "10.73.1.1/24", "dev", "in"]).unwrap();
        router.ip(&["addr", "add", "10.73.2.1/24", "dev", "out"]).unwrap();
        receiver.ip(&["addr", "add", "10.73.2.2/24", "dev", "eth0"]).unwrap();
        sender.ip(&["route", "add", "default", "via", "10.73.1.1"]).unwrap();
        receiver.ip(&["route", "add", "default", "via", "10.73.2.1"]).unwrap();
        router.run(|| sysctl::write("net.ipv4.ip_forward", "1")).unwrap().unwrap();
        for (host, device, address) in [
            (&sender, "eth0", "fd73:1::2"),
            (&router, "in", "fd73:1::1"),
            (&router, "out", "fd73:2::1"),
            (&receiver, "eth0", "fd73:2::2"),
        ] {
            host.ip(&["addr", "add", &format!("{address}/64"), "dev", device, "nodad"]).unwrap();
        }
        sender.ip(&["-6", "route", "add", "default", "via", "fd73:1::1"]).unwrap();
        receiver.ip(&["-6", "route", "add", "default", "via", "fd73:2::1"]).unwrap();
        router.run(|| sysctl::write("net.ipv6.conf.all.forwarding", "1")).unwrap().unwrap();
        let mut tc = router.command("tc");
        // It holds no stream: 16 segments are 10 ms of queue, for there is no other delay.
        tc.args("qdisc add dev out root tbf rate 20mbit burst 4kb limit 100kb".split(' '));
        run_command(tc).unwrap();
        for namespace in [&sender, &receiver] {
            let reno = || sysctl::write("net.ipv4.tcp_congestion_control", "reno");
            namespace.run(reno).unwrap().unwrap();
        }
        let servers = (0..servers).map(|number| serve(&receiver, number)).collect();
        Bed { sender, receiver, servers, _lease: lease, _alone: alone }
    }

    fn longfat(&self, args: &[&str]) -> Command {
        let mut command = self.sender.command(env!("CARGO_BIN_EXE_longfat"));
        command.args(args);
        command
    }

    /// `script` under `longfat background`, started.
    fn start(&self, script: &str) -> Child {
        let mut command = self.longfat(&["background", "--", "sh", "-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn avail(&self, args: &[&str]) -> Vec<Value> {
        let output = self.longfat(&[&["avail", "--json"], args].concat()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until a connection of `pid` has measured something.
    fn measured(&self, pid: u32) -> Value {
        let rows = || self.avail(&["--pid", &pid.to_string()]);
        let has_some = || rows().iter().any(|row| row["avail_bps"].is_u64());
        assert!(within_20_s(has_some), "{:?}", rows());
        rows().into_iter().find(|row| row["avail_bps"].is_u64()).unwrap()
    }

    /// Congestion controls of the sender's connections to the server.
    fn used(&self) -> Vec<String> {
        let mut ss = self.sender.command("ss");
        ss.args(["-tinH", "state", "established", "dst", SERVER]);
        let text = run_command(ss).unwrap();
        let details = text.lines().filter(|line| line.starts_with([' ', '\t']));
        details.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A server of iperf3 that says when it listens.
fn serve(receiver: &Namespace, number: u16) -> Child {
    serve_at(receiver, 5201 + number)
}

fn serve_at(host: &Namespace, port: u16) -> Child {
    let mut command = host.command("iperf3");
    command.args(["-s", "--forceflush", "-p", &port.to_string()]);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("listening")));
    std::thread::spawn(move || lines.for_each(drop));
    server
}

/// `iperf3` to server `number`, which asks for cubic itself.
fn iperf3(number: u16, seconds: u32) -> String {
    format!("iperf3 -J -c {SERVER} -C cubic -t {seconds} -p {}", 5201 + number)
}

fn is_registered() -> bool {
    let output = Command::new(env!("CARGO_BIN_EXE_longfat")).args(["cc", "list", "--json"]).output().unwrap();
    let entries: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    entries.iter().find(|entry| entry["name"] == NAME).unwrap()["presence"] != "absent"
}

fn nothing_is_left(pid: u32) {
    assert!(within_20_s(|| cgroups(pid).is_empty()), "{:?}", cgroups(pid));
    assert!(within_20_s(|| !is_registered()), "{NAME} is still in the kernel");
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn signal(child: &Child, which: i32) {
    // SAFETY: a pid of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, which) }, 0);
}

/// Lines that a child prints, one by one.
fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok)
}

#[test]
fn an_unmodified_client_sends_in_the_background_whatever_it_asks_for_and_others_do_not() {
    let bed = Bed::new("client", 2);
    let child = bed.start(&iperf3(0, 3));
    let mut other = bed.sender.command("iperf3");
    other.args(["-J", "-c", SERVER, "-t", "2", "-p", "5202"]);
    let other: Value = serde_json::from_slice(&other.output().unwrap().stdout).unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["end"]["sender_tcp_congestion"], NAME);
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 0);
    assert_eq!(other["end"]["sender_tcp_congestion"], "reno", "it was not started by us");
    nothing_is_left(pid);
}

/// A download by `streams` connections from a server of the sender's.
struct Download {
    address: &'static str,
    /// Which server.
    number: u16,
    streams: u32,
    seconds: u32,
}

const PLAIN: Download = Download { address: "10.73.1.2", number: 0, streams: 1, seconds: 4 };

impl Download {
    /// Started with `before` in front of it.
    fn start(&self, bed: &Bed, before: &[&str]) -> Child {
        let numbers = [u32::from(5301 + self.number), self.streams, self.seconds];
        let [port, streams, seconds] = numbers.map(|number| number.to_string());
        let mut words = before.to_vec();
        words.extend(["iperf3", "-J", "-R", "-c", self.address, "-C", "cubic"]);
        words.extend(["-P", &streams, "-t", &seconds, "-p", &port]);
        let mut command = bed.receiver.command(words[0]);
        command.args(&words[1..]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Mbit/s of each of its connections.
fn rates_mbps(download: Child) -> Vec<f64> {
    let output = download.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let streams = report["end"]["streams"].as_array().unwrap();
    streams.iter().map(|stream| stream["receiver"]["bits_per_second"].as_f64().unwrap() / 1e6).collect()
}

fn rate_mbps(download: Child) -> f64 {
    rates_mbps(download).iter().sum()
}

const RECEIVING: [&str; 5] = [env!("CARGO_BIN_EXE_longfat"), "background", "--direction", "receive", "--"];

/// What an ordinary download gets in Mbit/s beside `other`, which was there before it, and what that got.
fn beside(bed: &Bed, other: &Download, before: &[&str]) -> (f64, f64) {
    let other = other.start(bed, before);
    let first = rate_mbps(Download { seconds: 5, ..PLAIN }.start(bed, &[]));
    (first, rate_mbps(other))
}

#[test]
fn a_download_gives_way_to_an_ordinary_one_and_alone_takes_the_path_over_either_protocol() {
    let mut bed = Bed::new("down", 0);
    for number in 0..2 {
        bed.servers.push(serve_at(&bed.sender, 5301 + number));
    }
    let alone = rate_mbps(PLAIN.start(&bed, &[]));
    for address in [PLAIN.address, "fd73:1::2"] {
        let second = Download { address, number: 1, seconds: 7, ..PLAIN };
        let background_alone = rate_mbps(Download { seconds: 4, ..second }.start(&bed, &RECEIVING));
        assert!(background_alone >= 0.8 * alone, "{address}: {background_alone} of {alone} Mbit/s");
        let (plain, background) = (beside(&bed, &second, &[]), beside(&bed, &second, &RECEIVING));
        assert!(
            background.0 > 1.3 * plain.0,
            "{address}: {background:?}, with a plain second {plain:?}, alone {alone}"
        );
    }
    nothing_is_left(0);
}

#[test]
fn several_downloads_share_what_is_free_and_give_way_together() {
    let mut bed = Bed::new("share", 0);
    for number in 0..2 {
        bed.servers.push(serve_at(&bed.sender, 5301 + number));
    }
    let alone = rate_mbps(PLAIN.start(&bed, &[]));
    let four = Download { number: 1, streams: 4, seconds: 8, ..PLAIN };
    let shares = rates_mbps(four.start(&bed, &RECEIVING));
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    assert!(sum >= 0.8 * alone, "{shares:?} of {alone} Mbit/s");
    // Jain's index: a quarter when one has all.
    assert!(sum * sum / (4.0 * squares) >= 0.85, "{shares:?}");
    let (plain, background) = (beside(&bed, &four, &[]), beside(&bed, &four, &RECEIVING));
    assert!(background.0 > 2.0 * plain.0, "{background:?}, beside four plain ones {plain:?}, alone {alone}");
    nothing_is_left(0);
}

#[test]
fn a_download_without_timestamps_is_not_steered_and_that_is_said() {
    let mut bed = Bed::new("plain", 0);
    bed.receiver.run(|| sysctl::write("net.ipv4.tcp_timestamps", "0")).unwrap().unwrap();
    bed.servers.push(serve_at(&bed.sender, 5301));
    let output = Download { seconds: 1, ..PLAIN }.start(&bed, &RECEIVING).wait_with_output().unwrap();
    let (code, error) = said(&output);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("2 of 2 connections") && error.contains("no TCP timestamps"), "{error}");
}

#[test]
fn children_send_in_the_background_too_and_avail_shows_what_they_measure() {
    let bed = Bed::new("children", 1);
    let mut child = bed.start(&format!("sh -c '{} >/dev/null & echo $!; wait'", iperf3(0, 30)));
    let pid: u32 = lines(&mut child).next().unwrap().parse().unwrap();
    let row = bed.measured(pid);
    assert_eq!((row["program"].as_str(), row["cc"].as_str()), (Some("iperf3"), Some(NAME)));
    assert_eq!(row["peer"], format!("{SERVER}:5201"));
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert!(number("results") >= 1.0 && (0.0..=1.0).contains(&number("confidence_ratio")), "{row}");
    assert!(number("avail_bps") > 0.0 && number("age_us") >= 0.0, "{row}");
    let used = bed.used();
    assert!(!used.is_empty() && used.iter().all(|cc| cc == NAME), "{used:?}");
    avail_selects_and_prints(&bed, pid);
    listed_with_what_it_measures(&bed);
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert!(within_20_s(|| !is_running(pid as i32)), "the child of a child was left running");
    nothing_is_left(child.id());
}

/// The filters, the table, the live view.
fn avail_selects_and_prints(bed: &Bed, pid: u32) {
    assert!(!bed.avail(&[SERVER]).is_empty() && !bed.avail(&[&format!("{SERVER}:5201")]).is_empty());
    for args in [["10.73.9.9", "--json"], ["--pid", "1"]] {
        let (code, error) = said(&bed.longfat(&[&["avail"], &args[..]].concat()).output().unwrap());
        assert_eq!(code, Some(2));
        assert!(error.contains("no such connection measures") && error.contains("cc exec imtcp"), "{error}");
    }
    let output = bed.longfat(&["avail", "--pid", &pid.to_string()]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(&format!("iperf3[{pid}]")) && table.contains("Mbit/s"), "{table}");
    let mut watch = bed.longfat(&["avail", SERVER, "--json", "--watch", "--every", "20ms"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let seen: Vec<Value> =
        lines(&mut watch).take(3).map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert!(seen.len() == 3 && seen.iter().all(|row| row["cc"] == NAME), "{seen:?}");
    assert_eq!(watch.wait().unwrap().code(), Some(0), "whoever read it has seen enough");
}

/// `longfat tcb list` has it as fields of the connection.
fn listed_with_what_it_measures(bed: &Bed) {
    let output = bed.longfat(&["tcb", "list", "--json", "dport 5201 and avail > 0"]).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!rows.is_empty(), "{}", said(&output).1);
    for row in rows {
        assert_eq!(row["cc"], NAME);
        assert!(row["avail_bps"].as_u64().unwrap() > 0 && row["avail_age_us"].is_u64(), "{row}");
        assert!(row["avail_confidence_permille"].as_u64().unwrap() <= 1000, "{row}");
    }
}

#[test]
fn curl_uploads_in_the_background_and_its_exit_code_is_ours() {
    let bed = Bed::new("curl", 0);
    let accepting = bed.sender.run(|| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    bed.sender.ip(&["link", "set", "lo", "up"]).unwrap();
    let url = format!("http://{}/", accepting.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = accepting.accept().unwrap();
        let mut upload = Vec::new();
        while !upload.ends_with(b"0\r\n\r\n") {
            let mut buffer = [0; 65536];
            let count = std::io::Read::read(&mut stream, &mut buffer).unwrap();
            assert!(count > 0, "the upload was cut off");
            upload.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        upload.len()
    });
    let upload = format!("head -c 3000000 /dev/zero | curl -sfS -H Expect: -T - {url}");
    let output = bed.longfat(&["background", "--", "sh", "-c", &upload]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(server.join().unwrap() >= 3_000_000);
    let output = bed.longfat(&["background", "--", "curl", "-sf", &url]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "curl's code of a connection that was refused: {output:?}");
    nothing_is_left(0);
}

#[test]
fn what_a_killed_background_leaves_is_removed_by_the_next() {
    let bed = Bed::new("killed", 1);
    // A daemon that outlives both its parent and us.
    let script = format!("setsid sh -c '{} >/dev/null & echo $!; wait' & wait", iperf3(0, 60));
    let mut child = bed.start(&script);
    let pid: u32 = lines(&mut child).next().unwrap().parse().unwrap();
    bed.measured(pid);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_running(pid as i32), "a killed program cannot end what runs in sessions of their own");
    assert_eq!(cgroups(child.id()).len(), 1);
    assert!(bed.longfat(&["background", "--", "true"]).output().unwrap().status.success());
    assert!(within_20_s(|| !is_running(pid as i32)));
    nothing_is_left(child.id());
}

#[test]
fn bad_input_is_exit_code_2_with_the_mend() {
    for (args, mend) in [
        (&["background"][..], "<COMMAND>"),
        (&["background", "--cc", "cubic", "--", "true"], "[possible values: imtcp-bg"),
        (&["background", "--direction", "up", "--", "true"], "[possible values: both, send, receive]"),
        (&["background", "--", "/no/such/program"], "start '/no/such/program'"),
        (&["avail", "host.example"], "give ADDRESS or ADDRESS:PORT"),
        (&["avail", "--every", "1s"], "--watch"),
        (&["avail", "--watch", "--every", "5"], "'5'"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_longfat")).args(args).output().unwrap();
        let (code, error) = said(&output);
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(error.contains(mend), "{args:?}: {error}");
    }
}

#[test]
fn without_the_rights_it_is_exit_code_3_and_says_which() {
    for args in [&["avail"][..], &["background", "--", "true"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
        // SAFETY: only prctl(2) is called between fork and exec. Root gets no capability that is not in the
        // bounding set; dropping one that the kernel does not know fails, which is no matter.
        unsafe {
            command.args(args).pre_exec(|| {
                (0..64).for_each(|capability| {
                    libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
                });
                Ok(())
            });
        }
        let (code, error) = said(&command.output().unwrap());
        assert_eq!(code, Some(3), "{args:?}: {error}");
        assert!(error.contains("CAP_BPF") && error.contains("nothing was touched"), "{error}");
    }
}
