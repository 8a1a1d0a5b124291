//! `longfat why --fix --successors` where a relay on this host carries the connections, or could: it is given a rule.

use crate::patience::{self, eventually};
use longfat_host::{Lease, Namespace, interface, sysctl};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const LONGFAT: &str = env!("CARGO_BIN_EXE_longfat");
const SERVER: &str = "10.79.2.2:80";

/// sender - router, with a relay - lossy path - receiver.
struct Bed {
    sender: Namespace,
    router: Namespace,
    receiver: Namespace,
    path: Child,
    relay: Option<Child>,
    over: Arc<AtomicBool>,
    /// A /run/longfat and a /run/longfat-relay of the bed's own, and the relay's file.
    place: tempfile::TempDir,
    _lease: Lease,
}

/// Reno has some segments under way between two losses: a quarter of the path.
const PATH: &str = "rate = \"20Mbit\"\ndelay = \"20ms\"\nloss = 0.008\nqueue = { limit = \"200KB\" }\n";

impl Bed {
    fn new(tag: &str, relay_file: &str) -> Bed {
        let lease =
            Lease::take(&format!("wr{}-{tag}", std::process::id())).expect("root and iproute2 are needed");
        let [sender, router, path, receiver] =
            ["s", "r", "p", "d"].map(|name| lease.namespace(name).unwrap());
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&sender, "eth0"), end(&router, "lan"), 1500).unwrap();
        interface::veth(end(&router, "wan"), end(&path, "left"), 1500).unwrap();
        interface::veth(end(&receiver, "eth0"), end(&path, "right"), 1500).unwrap();
        for (host, device, address) in [
            (&sender, "eth0", "10.79.1.2/24"),
            (&router, "lan", "10.79.1.1/24"),
            (&router, "wan", "10.79.2.1/24"),
            (&receiver, "eth0", "10.79.2.2/24"),
        ] {
            host.ip(&["addr", "add", address, "dev", device]).unwrap();
            longfat_link::driver::prepare_host_end(host, device).unwrap();
        }
        sender.ip(&["route", "add", "default", "via", "10.79.1.1"]).unwrap();
        receiver.ip(&["route", "add", "default", "via", "10.79.2.1"]).unwrap();
        for host in [&sender, &router, &receiver] {
            for (key, value) in [("tcp_no_metrics_save", "1"), ("tcp_congestion_control", "reno")] {
                host.run(|| sysctl::write(&format!("net.ipv4.{key}"), value)).unwrap().unwrap();
            }
        }
        let place = tempfile::tempdir().unwrap();
        for folder in ["notes", "sockets"] {
            fs::create_dir(place.path().join(folder)).unwrap();
        }
        fs::write(place.path().join("path.toml"), PATH).unwrap();
        fs::write(place.path().join("relay.toml"), relay_file).unwrap();
        let mut drive = path.command(LONGFAT);
        drive.args(["link", "drive", "--a", "left", "--b", "right", "--plan"]);
        drive.arg(place.path().join("path.toml"));
        let mut child = drive.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{line}");
        let over = Arc::new(AtomicBool::new(false));
        let mut bed = Bed { sender, router, receiver, path: child, relay: None, over, place, _lease: lease };
        bed.relay = Some(bed.start_relay());
        bed
    }

    /// `longfat`, with places of its own below /run, so that runs of other tests are not seen.
    fn longfat(&self, host: &Namespace, args: &[&str]) -> Command {
        let mut command = self.inside(host, LONGFAT);
        command.args(args);
        command
    }

    fn inside(&self, host: &Namespace, program: &str) -> Command {
        let mut command = host.command("unshare");
        let enter = "mkdir -p /run/longfat /run/longfat-relay && mount --bind \"$0/notes\" /run/longfat && \
                     mount --bind \"$0/sockets\" /run/longfat-relay && exec \"$@\"";
        command.args(["--mount", "sh", "-c", enter]).arg(self.place.path()).arg(program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start_relay(&self) -> Child {
        let file = self.place.path().join("relay.toml");
        let mut run = self.longfat(&self.router, &["relay", "run", "--user", "root", file.to_str().unwrap()]);
        let child = run.stderr(fs::File::create(self.place.path().join("log")).unwrap()).spawn().unwrap();
        eventually("the relay answers", || {
            let log = fs::read_to_string(self.place.path().join("log")).unwrap();
            assert!(!log.contains("longfat: "), "{log}");
            self.status().is_some()
        });
        child
    }

    fn status(&self) -> Option<Value> {
        let output = self.longfat(&self.router, &["relay", "status", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Rules that the relay was given while it runs.
    fn added(&self) -> Vec<String> {
        let status = self.status().unwrap();
        let names = status["added_rules"].as_array().into_iter().flatten();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    /// Transfers of a megabyte, each by a connection of its own.
    fn one_after_the_other(&self) {
        let listener = self.receiver.run(|| TcpListener::bind(SERVER)).unwrap().unwrap();
        let (sender, over) = (self.sender.clone(), Arc::clone(&self.over));
        let transfer = move || -> std::io::Result<()> {
            let mut near = sender.run(|| TcpStream::connect(SERVER)).unwrap()?;
            near.write_all(&[7; 1_000_000])?;
            near.shutdown(std::net::Shutdown::Write)?;
            near.read(&mut [0]).map(drop)
        };
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                // A relay that was killed resets what it carried.
                let _ = transfer();
            }
        });
        thread::spawn(move || {
            let mut got = vec![0; 65_536];
            for mut far in listener.incoming().flatten() {
                while far.read(&mut got).is_ok_and(|count| count > 0) {}
            }
        });
    }

    /// A run at the router that has given the relay a rule. On a machine that stands still the connections it
    /// watches may be slow by another cause.
    fn helped(&self, args: &[&str]) -> Child {
        for _ in 0..5 {
            let mut fix = self.longfat(&self.router, args).spawn().unwrap();
            let deadline = Instant::now() + patience::PATIENCE;
            loop {
                if Instant::now() > deadline {
                    terminate(&fix);
                    fix.wait().unwrap();
                    break;
                }
                if !self.added().is_empty() {
                    return fix;
                }
                if let Some(ended) = fix.try_wait().unwrap() {
                    let said = std::io::read_to_string(fix.stderr.take().unwrap()).unwrap();
                    assert!(ended.code() == Some(1), "{ended}: {said}");
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        panic!("nothing is found to be helped");
    }

    /// The sender's namespace, as `--netns` knows it.
    fn of_sender(&self) -> String {
        self.sender.name().to_owned()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for child in [Some(&mut self.path), self.relay.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn terminate(child: &Child) {
    // SAFETY: the child has not been waited for, so its pid is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn proof(output: &Output) -> Value {
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

/// A relay that takes nothing of what the sender sends.
const TAKES_NOTHING: &str = "[intercept]\ninterfaces = 'lan'\nforwarding = true\n[[rule]]\nname = 'other'\nport = 9\n[defaults]\nserver = { cc = 'reno' }\n";
/// A relay that takes everything, with Reno towards the server whatever a route says.
const TAKES_ALL: &str =
    "[intercept]\ninterfaces = 'lan'\nforwarding = true\n[defaults]\nserver = { cc = 'reno' }\n";

#[test]
fn a_host_behind_the_relay_is_helped_by_a_rule_and_it_is_proven_where_the_path_is() {
    let bed = Bed::new("behind", TAKES_NOTHING);
    bed.one_after_the_other();
    let of_sender = bed.of_sender();
    let args = [
        "why",
        "dst 10.79.2.2",
        "--netns",
        &of_sender,
        "--for",
        "8s",
        "--fix",
        "--successors",
        "--prove",
        "--json",
    ];
    // On a machine that stands still the connections may be slow by another cause.
    let is_rule = |proof: &Value| proof["setting"].as_str().unwrap().contains("relay's rule");
    let mut proofs = (0..3).map(|_| proof(&bed.longfat(&bed.router, &args).output().unwrap()));
    let proof = proofs.find(is_rule).expect("a rule is the remedy");
    let setting = proof["setting"].as_str().unwrap();
    let keys = "source = \"10.79.1.2\", destination = \"10.79.2.2\", port = 80, server = { cc = \"bbr\" }";
    assert!(setting.contains(keys), "{proof}");
    assert_eq!(proof["proof"]["is_effect"], true, "{proof}");
    let with_bps = proof["proof"]["with_bps"].as_f64().unwrap();
    assert!(proof["proof"]["gain_bps"].as_f64().unwrap() > 0.0, "{proof}");
    // What the relay takes from the sender comes at the rate of a cable; what is told is that of the path.
    assert!(with_bps < 20e6, "{proof}");
    assert_eq!(bed.added(), [""; 0], "the rule is gone");
}

#[test]
fn a_rule_for_the_relays_own_legs_is_taken_back_at_the_end_and_after_a_kill_and_with_the_relay() {
    let mut bed = Bed::new("own", TAKES_ALL);
    bed.one_after_the_other();
    let args = ["why", "dst 10.79.2.2", "--for", "8s", "--fix", "--successors"];
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut fix = bed.helped(&args);
        let is_carried = || {
            let status = bed.status().unwrap();
            let connections = status["connections"].as_array().unwrap().clone();
            let by_it = |one: &Value| one["rule"].as_str().is_some_and(|rule| rule.starts_with("why-"));
            connections.iter().any(|one| by_it(one) && one["server_leg"]["cc"] == "bbr")
        };
        eventually("a new connection is carried by the rule", is_carried);
        // SAFETY: the child has not been waited for, so its pid is its own.
        assert_eq!(unsafe { libc::kill(fix.id() as i32, signal) }, 0);
        fix.wait().unwrap();
        if signal == libc::SIGKILL {
            assert_eq!(bed.added().len(), 1, "nobody has taken it back yet");
            let next =
                bed.longfat(&bed.router, &["why", "dst 10.79.2.2", "--for", "500ms"]).output().unwrap();
            assert!(text(&next.stderr).contains("of a run that was killed"), "{}", text(&next.stderr));
        }
        assert_eq!(bed.added(), [""; 0]);
    }
    // A relay that has ended took its rules along: there is nothing to take back.
    let mut fix = bed.helped(&args);
    let mut relay = bed.relay.take().unwrap();
    relay.kill().unwrap();
    relay.wait().unwrap();
    terminate(&fix);
    let said = std::io::read_to_string(fix.stderr.take().unwrap()).unwrap();
    fix.wait().unwrap();
    assert!(!said.contains("is still there"), "{said}");
    assert_eq!(fs::read_dir(bed.place.path().join("notes")).unwrap().count(), 0, "nothing is left to undo");
}

#[test]
fn the_remedy_that_is_told_names_the_relay_that_runs_here() {
    let bed = Bed::new("told", TAKES_NOTHING);
    bed.one_after_the_other();
    let of_sender = bed.of_sender();
    let args = ["why", "dst 10.79.2.2", "--netns", &of_sender, "--for", "8s", "--json"];
    let told = || {
        let output = bed.longfat(&bed.router, &args).output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let connections = found["connections"].as_array().cloned().unwrap_or_default();
        let remedies = connections.iter().flat_map(|one| one["remedies"].as_array().cloned().unwrap());
        let commands = remedies.filter_map(|remedy| remedy["command"].as_str().map(str::to_owned));
        commands.into_iter().find(|command| command.contains("relay rule add"))
    };
    let command = (0..8).find_map(|_| told()).expect("a lossy transfer is judged");
    // As it would be pasted.
    let program = format!("longfat() {{ {LONGFAT} \"$@\"; }}; {command}");
    let output = bed.inside(&bed.router, "bash").args(["-c", &program]).output().unwrap();
    assert!(output.status.success(), "{program}: {}", text(&output.stderr));
    assert_eq!(bed.added(), ["why"]);
}
