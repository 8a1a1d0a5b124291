//! Paths between relay and server that lose, reorder and shorten, and relays that are processes of their own.

use super::{Bed, PATIENCE, set_forwarding};
use longfat_host::{Namespace, interface};
use longfat_link::{LinkPlan, LinkSpec, driver};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// What a relay process is told (see [`RelayProcess`]).
pub const PROCESS: &str = "LONGFAT_TEST_RELAY_PROCESS";

impl Bed {
    /// Like any bed, with a namespace between relay and server that has the interfaces `a` and `b`.
    pub fn with_path(tag: &str) -> (Bed, Namespace) {
        let bed = Bed::new(tag);
        let path = bed._lease.namespace("p").unwrap();
        bed.relay.ip(&["link", "del", "wan"]).unwrap();
        let end = |namespace, name| interface::End { namespace, name };
        interface::veth(end(&bed.relay, "wan"), end(&path, "a"), 1500).unwrap();
        interface::veth(end(&bed.server, "eth0"), end(&path, "b"), 1500).unwrap();
        (bed, path)
    }

    /// Addresses both ends of the path as if it were a wire.
    fn address_wire(&self) {
        for (host, device, v4, v6) in [
            (&self.relay, "wan", "10.71.2.1/24", "fd71:2::1/64"),
            (&self.server, "eth0", "10.71.2.2/24", "fd71:2::2/64"),
        ] {
            host.ip(&["addr", "add", v4, "dev", device]).unwrap();
            host.ip(&["-6", "addr", "add", v6, "dev", device, "nodad"]).unwrap();
        }
        self.server.ip(&["route", "add", "default", "via", "10.71.2.1"]).unwrap();
        self.server.ip(&["-6", "route", "add", "default", "via", "fd71:2::1"]).unwrap();
    }

    /// Runs an emulated link that loses packets between relay and server while `work` runs.
    pub fn over_link<T>(tag: &str, toml: &str, work: impl FnOnce(&Bed) -> T) -> T {
        let (value, report) = Bed::over_any_link(tag, toml, work);
        assert!(report.forward.lost_packets > 0, "nothing was lost: {report:?}");
        value
    }

    /// Runs an emulated link between relay and server while `work` runs; what the link did.
    pub fn over_any_link<T>(
        tag: &str,
        toml: &str,
        work: impl FnOnce(&Bed) -> T,
    ) -> (T, driver::DriverReport) {
        let (bed, path) = Bed::with_path(tag);
        bed.address_wire();
        driver::prepare_host_end(&bed.relay, "wan").unwrap();
        driver::prepare_host_end(&bed.server, "eth0").unwrap();
        let plan: LinkPlan = LinkSpec::from_toml(toml).unwrap().resolve("path", 3).unwrap();
        let (stop, lines) = (AtomicBool::new(false), longfat_schema::lines::Lines::default());
        let (ready, is_ready) = mpsc::channel();
        std::thread::scope(|scope| {
            let (stop, plan, lines, path) = (&stop, &plan, &lines, &path);
            let driver = scope.spawn(move || {
                let options =
                    driver::Options { plan, a: "a", b: "b", lines, stop, start: driver::Start::Now };
                path.run(|| driver::run(&options, || ready.send(()).unwrap())).unwrap()
            });
            let raised = StopOnDrop(stop);
            is_ready.recv_timeout(PATIENCE).expect("the link starts");
            let value = work(&bed);
            drop(raised);
            (value, driver.join().unwrap().unwrap())
        })
    }

    /// A router between relay and server whose second hop carries packets of at most 1280 bytes; where the server is.
    pub fn over_a_narrow_hop(tag: &str) -> (Bed, Namespace) {
        let (bed, path) = Bed::with_path(tag);
        for (host, device, v4, v6) in [
            (&bed.relay, "wan", "10.71.2.1/24", "fd71:2::1/64"),
            (&path, "a", "10.71.2.9/24", "fd71:2::9/64"),
            (&path, "b", "10.71.3.1/24", "fd71:3::1/64"),
            (&bed.server, "eth0", "10.71.3.2/24", "fd71:3::2/64"),
        ] {
            host.ip(&["addr", "add", v4, "dev", device]).unwrap();
            host.ip(&["-6", "addr", "add", v6, "dev", device, "nodad"]).unwrap();
        }
        path.ip(&["link", "set", "dev", "b", "mtu", "1280"]).unwrap();
        set_forwarding(&path, "1");
        let hops = [
            (&bed.relay, "10.71.3.0/24", "fd71:3::/64", "10.71.2.9", "fd71:2::9"),
            (&path, "10.71.1.0/24", "fd71:1::/64", "10.71.2.1", "fd71:2::1"),
            (&bed.server, "default", "default", "10.71.3.1", "fd71:3::1"),
        ];
        for (host, v4, v6, via4, via6) in hops {
            host.ip(&["route", "add", v4, "via", via4]).unwrap();
            host.ip(&["-6", "route", "add", v6, "via", via6]).unwrap();
        }
        (bed, path)
    }
}

/// Raises a flag, also when a test fails: others on the scope's threads wait for it.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A relay in a process of its own, which can be killed: this test program again, running only the test
/// `a_relay_process` of one of its files.
pub struct RelayProcess {
    pub child: Child,
    /// Address of the first listener.
    pub address: String,
}

impl RelayProcess {
    /// Starts the relay process of the file whose module is `of`.
    pub fn start(of: &str, namespace: &Namespace, how: &str, descriptors: Option<u64>) -> RelayProcess {
        let program = std::env::current_exe().unwrap();
        let mut command: Command = match descriptors {
            Some(limit) => {
                let mut command = namespace.command("prlimit");
                command.arg(format!("--nofile={limit}:{limit}")).arg(program);
                command
            }
            None => namespace.command(program),
        };
        let (_, file) = of.split_once("::").unwrap();
        let test = format!("{file}::a_relay_process");
        command.args(["--exact", &test, "--ignored", "--nocapture"]).env(PROCESS, how);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.split_once("ready: ").map(|(_, address)| address.to_owned()))
            .expect("the relay process starts");
        // Whatever it still says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        RelayProcess { child, address }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Processor time used so far.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<u64> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse().unwrap())
            .collect();
        Duration::from_millis(fields.iter().sum::<u64>() * 10)
    }

    /// Resident memory.
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something to become true.
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_or(what, is_so, String::new);
}

/// Waits for something to become true; `tell` says what may be the cause when it does not.
pub fn eventually_or(what: &str, mut is_so: impl FnMut() -> bool, tell: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?} {}", tell());
        std::thread::sleep(Duration::from_millis(10));
    }
}
