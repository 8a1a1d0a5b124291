//! Three machines with an sshd each, in network namespaces; an emulated link stands in for the real path between them.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use longfat_host::{Lease, Namespace, interface, run_command, sysctl};
use longfat_link::driver::prepare_interface;
use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

pub const PATIENCE: Duration = Duration::from_secs(60);
/// Hosts of the experiments, and the last number of their addresses where the leader reaches them.
const HOSTS: [&str; 3] = ["sender", "router", "receiver"];
const RECEIVER: &str = "10.91.1.2";
const PATH: &str = "rate = \"20Mbit\"\ndelay = \"2ms\"\nqueue = { limit = \"50KB\" }\nlate_limit_p99 = \"100s\"\n\
                    pause_limit = 1.0\n";

/// leader - each of: sender - lan, router, path - receiver.
pub struct Bed {
    pub sender: Namespace,
    pub router: Namespace,
    pub receiver: Namespace,
    leader: Namespace,
    pub directory: tempfile::TempDir,
    servers: Vec<Child>,
    // Last: namespaces are deleted when it drops.
    _lease: Lease,
}

impl Bed {
    pub fn new(tag: &str) -> Bed {
        let lease = Lease::take(&format!("rh{}-{tag}", std::process::id())).unwrap();
        let [sender, router, receiver, leader, wire] =
            ["s", "r", "d", "l", "w"].map(|name| lease.namespace(name).unwrap());
        wire.run(|| sysctl::write("net.ipv6.conf.default.disable_ipv6", "1").unwrap()).unwrap();
        lay(end(&sender, "lan"), end(&router, "lan"));
        lay(end(&router, "path"), end(&wire, "first"));
        lay(end(&wire, "second"), end(&receiver, "path"));
        address(&sender, "10.91.2.1/24", "lan");
        address(&router, "10.91.2.2/24", "lan");
        address(&router, "10.91.1.1/24", "path");
        address(&receiver, &format!("{RECEIVER}/24"), "path");
        sender.ip(&["route", "add", "10.91.1.0/24", "via", "10.91.2.2"]).unwrap();
        receiver.ip(&["route", "add", "10.91.2.0/24", "via", "10.91.1.1"]).unwrap();
        router.run(|| sysctl::write("net.ipv4.ip_forward", "1").unwrap()).unwrap();
        for (host, name) in [(&sender, "lan"), (&router, "path"), (&receiver, "path")] {
            host.run(|| prepare_interface(name).unwrap()).unwrap();
        }
        for (number, host) in (1..).zip([&sender, &router, &receiver]) {
            let name = format!("to{number}");
            lay(end(&leader, &name), end(host, "admin"));
            address(&leader, &format!("10.92.{number}.1/24"), &name);
            address(host, &format!("10.92.{number}.2/24"), "admin");
        }
        let directory = tempfile::tempdir().unwrap();
        let mut bed = Bed { sender, router, receiver, leader, directory, servers: Vec::new(), _lease: lease };
        bed.drive(&wire);
        bed.serve_ssh();
        bed.strip_program();
        bed.write("hosts.toml", &bed.table());
        bed
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Which machine is which.
    pub fn table(&self) -> String {
        format!(
            "ssh_config = \"ssh_config\"\n[hosts.sender]\nssh = \"sender\"\n[hosts.router]\nssh = \"router\"\n\
             interfaces = {{ lan = \"lan\" }}\n[hosts.receiver]\nssh = \"receiver\"\naddress = \"{RECEIVER}\"\n"
        )
    }

    /// The experiment: its path is like the one between the machines.
    pub fn experiment(&self) -> String {
        format!(
            r#"
name = "rh{}"
warmup = "300ms"
duration = "1500ms"
retries = 0
start_within = "100s"
focus = "measured"
[hosts.sender]
sysctls = {{ "net.ipv4.tcp_wmem" = "4096 16384 3999999" }}
[hosts.router]
forward = true
[hosts.receiver]
[links.lan]
between = ["sender", "router"]
[links.path]
between = ["router", "receiver"]
{PATH}[flows.measured]
from = "sender"
to = "receiver"
cc = "cubic"
echo_every = "20KB"
[flows.ours]
from = "sender"
to = "receiver"
cc = "lf_reno"
[flows.cross]
from = "router"
to = "receiver"
protocol = "udp"
rate = "1Mbit"
arrivals = "poisson"
[relays.pep]
host = "router"
intercept = ["lan"]
cc_client = "reno"
cc_server = "cubic"
enabled = false
[[cases]]
name = "plain"
[[cases]]
name = "relayed"
set = {{ "relays.pep.enabled" = true }}
"#,
            std::process::id()
        )
    }

    /// `longfat lab`, where the leader is.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.leader.command(self.path("longfat"));
        command.current_dir(self.directory.path()).arg("lab").args(arguments);
        command
    }

    pub fn lab(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The first program of a run with this among its arguments on `host`.
    pub fn program_on(&self, host: &Namespace, argument: &str) -> Option<i32> {
        let runs = |pid: &i32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("/longfat\0") && line.split('\0').any(|part| part == argument)
        };
        host.pids().unwrap().into_iter().find(runs)
    }

    /// Programs on the machines that are not their sshd's listener.
    pub fn programs(&self) -> Vec<String> {
        let hosts = [&self.sender, &self.router, &self.receiver];
        let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let lines = hosts.iter().flat_map(|host| host.pids().unwrap().iter().map(line).collect::<Vec<_>>());
        lines
            .filter(|line| !line.is_empty() && !line.contains("[listener]") && !line.contains("/sshd\0-D"))
            .collect()
    }

    fn drive(&mut self, wire: &Namespace) {
        self.write("path.toml", PATH);
        let mut command = wire.command(env!("CARGO_BIN_EXE_longfat"));
        command
            .args(["link", "drive", "--a", "first", "--b", "second", "--plan"])
            .arg(self.path("path.toml"));
        let mut driver = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(driver.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        self.servers.push(driver);
    }

    fn serve_ssh(&mut self) {
        // Where Debian's sshd gives up its rights; its unit would make it.
        fs::create_dir_all("/run/sshd").unwrap();
        let place = self.directory.path().display().to_string();
        for name in ["host_key", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.path(name));
            run_command(keygen).unwrap();
        }
        self.write(
            "sshd_config",
            &format!(
                "HostKey {place}/host_key\nAuthorizedKeysFile {place}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n\
                 PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            ),
        );
        let mut client = format!(
            "IdentityFile {place}/key\nIdentitiesOnly yes\nUser root\nStrictHostKeyChecking accept-new\n\
             UserKnownHostsFile {place}/known_hosts\nGlobalKnownHostsFile none\n"
        );
        for (number, name) in (1..).zip(HOSTS) {
            let host = [&self.sender, &self.router, &self.receiver][number - 1].clone();
            let mut sshd = host.command("/usr/sbin/sshd");
            sshd.args(["-D", "-e", "-f", &format!("{place}/sshd_config")]);
            let log = fs::File::create(self.path(&format!("sshd-{name}.log"))).unwrap();
            self.servers.push(sshd.stdin(Stdio::null()).stderr(log).spawn().unwrap());
            let address = format!("10.92.{number}.2");
            let answers = || self.leader.run(|| TcpStream::connect((address.as_str(), 22)).is_ok()).unwrap();
            within(PATIENCE, answers).expect("an sshd does not answer");
            client += &format!("Host {name}\nHostName {address}\n");
        }
        self.write("ssh_config", &client);
    }

    /// What is copied to every machine is better small.
    fn strip_program(&self) {
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(self.path("longfat")).arg(env!("CARGO_BIN_EXE_longfat"));
        run_command(strip).unwrap();
    }
}

fn end<'a>(namespace: &'a Namespace, name: &'a str) -> interface::End<'a> {
    interface::End { namespace, name }
}

fn lay(a: interface::End<'_>, b: interface::End<'_>) {
    interface::veth(a, b, 1500).unwrap();
}

fn address(host: &Namespace, address: &str, interface: &str) {
    host.ip(&["addr", "add", address, "dev", interface]).unwrap();
}

impl Drop for Bed {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Waits until it is so.
pub fn within(patience: Duration, condition: impl Fn() -> bool) -> Option<()> {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(())
}

/// Directory on a machine in which a program of a run lay, by the log that came from there.
pub fn directory_of(log: &Path) -> PathBuf {
    let text = fs::read_to_string(log).unwrap();
    let program = text.strip_prefix("$ ").unwrap().split(' ').next().unwrap();
    let directory = Path::new(program).parent().unwrap();
    assert!(directory.starts_with("/tmp") && directory.to_string_lossy().contains("longfat."), "{text}");
    directory.to_owned()
}
