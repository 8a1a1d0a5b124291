//! Three machines with an sshd each, in network namespaces; an emulated link stands in for the real path between them.

pub mod session;

use crate::programs;
use longfat_host::{Lease, Namespace, interface, run_command, sysctl};
use longfat_link::driver::prepare_interface;
use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

pub const PATIENCE: Duration = Duration::from_secs(60);
/// Hosts of the experiments, and the last number of their addresses where the leader reaches them.
const HOSTS: [&str; 3] = ["sender", "router", "receiver"];
const SENDER: &str = "10.91.2.1";
const RECEIVER: &str = "10.91.1.2";
const RECEIVER6: &str = "fd91:1::2";
const PATH: &str = "rate = \"20Mbit\"\ndelay = \"2ms\"\nqueue = { limit = \"50KB\" }\nlate_limit_p99 = \"100s\"\n\
                    pause_limit = 1.0\n";

/// How the machines are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kind {
    /// The leader comes in as a user who may sudo, not as root.
    pub sudo: bool,
    /// How far each machine's clocks are ahead of the leader's.
    pub ahead_s: [u32; 3],
    /// The login shell says something before what it is asked to do, and does not end its line.
    pub greets: bool,
    /// No program in /tmp can be run.
    pub noexec: bool,
}

/// Has an sshd do what it is asked to after a greeting.
const GREETS: &str = "ForceCommand echo Welcome; printf 'to '; eval \"$SSH_ORIGINAL_COMMAND\"\n";

/// A user of the machines with `sudo`, where they have one. Nobody of this machine.
const USER: &str = "lfuser";
const USER_ID: u32 = 64_999;

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
        Bed::of(tag, Kind::default())
    }

    pub fn of(tag: &str, kind: Kind) -> Bed {
        let lease = Lease::take(&format!("rh{}-{tag}", std::process::id())).unwrap();
        let [sender, router, receiver, leader, wire] =
            ["s", "r", "d", "l", "w"].map(|name| lease.namespace(name).unwrap());
        wire.run(|| sysctl::write("net.ipv6.conf.default.disable_ipv6", "1").unwrap()).unwrap();
        lay(end(&sender, "lan"), end(&router, "lan"));
        lay(end(&router, "path"), end(&wire, "first"));
        lay(end(&wire, "second"), end(&receiver, "path"));
        address(&sender, &format!("{SENDER}/24"), "lan");
        address(&router, "10.91.2.2/24", "lan");
        address(&router, "10.91.1.1/24", "path");
        address(&receiver, &format!("{RECEIVER}/24"), "path");
        sender.ip(&["route", "add", "10.91.1.0/24", "via", "10.91.2.2"]).unwrap();
        receiver.ip(&["route", "add", "10.91.2.0/24", "via", "10.91.1.1"]).unwrap();
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.run(|| sysctl::write(key, "1").unwrap()).unwrap();
        }
        address(&sender, "fd91:2::1/64", "lan");
        address(&router, "fd91:2::2/64", "lan");
        address(&router, "fd91:1::1/64", "path");
        address(&receiver, &format!("{RECEIVER6}/64"), "path");
        sender.ip(&["-6", "route", "add", "fd91:1::/64", "via", "fd91:2::2"]).unwrap();
        receiver.ip(&["-6", "route", "add", "fd91:2::/64", "via", "fd91:1::1"]).unwrap();
        for (host, name) in [(&sender, "lan"), (&router, "path"), (&receiver, "path")] {
            host.run(|| prepare_interface(name).unwrap()).unwrap();
        }
        for (number, host) in (1..).zip([&sender, &router, &receiver]) {
            let name = format!("to{number}");
            lay(end(&leader, &name), end(host, "admin"));
            address(&leader, &format!("10.92.{number}.1/24"), &name);
            address(host, &format!("10.92.{number}.2/24"), "admin");
            address(&leader, &format!("fd92:{number}::1/64"), &name);
            address(host, &format!("fd92:{number}::2/64"), "admin");
        }
        let directory = tempfile::tempdir().unwrap();
        let mut bed = Bed { sender, router, receiver, leader, directory, servers: Vec::new(), _lease: lease };
        bed.drive(&wire);
        bed.serve_ssh(kind);
        programs::copy(programs::stripped(), &bed.path("longfat"));
        bed.write("hosts.toml", &bed.table());
        bed.write("hosts6.toml", &bed.table_of_ipv6());
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
            "ssh_config = \"ssh_config\"\n[hosts.sender]\nssh = \"sender\"\naddress = \"{SENDER}\"\n[hosts.router]\nssh = \"router\"\n\
             interfaces = {{ lan = \"lan\" }}\n[hosts.receiver]\nssh = \"receiver\"\naddress = \"{RECEIVER}\"\n"
        )
    }

    /// The hosts table over IPv6 alone: how machines are reached, and how flows go.
    fn table_of_ipv6(&self) -> String {
        let table = self
            .table()
            .replace(&format!("address = \"{RECEIVER}\""), &format!("address6 = \"{RECEIVER6}\""));
        (1..).zip(HOSTS).fold(table, |table, (number, name)| {
            table.replace(&format!("ssh = \"{name}\""), &format!("ssh = \"fd92:{number}::2\""))
        })
    }

    /// The experiment: its path is like the one between the machines.
    pub fn experiment(&self) -> String {
        format!(
            r#"
name = "rh{}-{}"
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
[follows.move]
router = "router"
link = "path"
nodes = ["sender"]
far = ["receiver"]
enabled = false
[[cases]]
name = "plain"
[[cases]]
name = "relayed"
set = {{ "relays.pep.enabled" = true }}
"#,
            std::process::id(),
            // Machines of two beds have one /run here, and programs of two runs there names of their own.
            self.directory.path().file_name().unwrap().to_string_lossy().trim_start_matches(".tmp")
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
            let line = command_line(*pid);
            line.split('\0').next().is_some_and(|program| program.ends_with("/longfat"))
                && line.split('\0').any(|part| part == argument)
        };
        host.pids().unwrap().into_iter().find(runs)
    }

    /// What runs our program on `host`, or waits for it, by the name of what was started: a shell, a sudo, or the
    /// program.
    pub fn all_on(&self, host: &Namespace, name: &str) -> Vec<i32> {
        let is_so = |pid: &i32| {
            let line = command_line(*pid);
            let program = line.split('\0').next().unwrap_or_default();
            line.contains("/longfat")
                && (program.ends_with(name) || name == "longfat")
                && !program.starts_with("sshd")
        };
        host.pids().unwrap().into_iter().filter(is_so).collect()
    }

    /// As by a cable that is pulled out: no end of the connection is told.
    pub fn cut_off_the_sender(&self) {
        self.leader.ip(&["link", "set", "to1", "down"]).unwrap();
    }

    /// The machines, as the experiment orders them.
    pub fn hosts(&self) -> [&Namespace; 3] {
        [&self.sender, &self.router, &self.receiver]
    }

    /// Programs on the machines that are not their sshd's listener.
    pub fn programs(&self) -> Vec<String> {
        let pids = self.hosts().into_iter().flat_map(|host| host.pids().unwrap());
        let is_sshd = |line: &String| line.contains("[listener]") || line.contains("/sshd\0-D");
        pids.map(command_line).filter(|line| !line.is_empty() && !is_sshd(line)).collect()
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

    fn serve_ssh(&mut self, kind: Kind) {
        // Where Debian's sshd gives up its rights; its unit would make it.
        fs::create_dir_all("/run/sshd").unwrap();
        let place = self.directory.path().display().to_string();
        let user = if kind.sudo { USER } else { "root" };
        if kind.sudo {
            self.write_users();
        }
        for name in ["host_key", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.path(name));
            run_command(keygen).unwrap();
        }
        self.write(
            "sshd_config",
            &format!(
                "HostKey {place}/host_key\nAuthorizedKeysFile {place}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n\
                 PermitRootLogin prohibit-password\nPasswordAuthentication no\n{}",
                if kind.greets { GREETS } else { "" }
            ),
        );
        let mut client = format!(
            "IdentityFile {place}/key\nIdentitiesOnly yes\nUser {user}\nStrictHostKeyChecking accept-new\n\
             UserKnownHostsFile {place}/known_hosts\nGlobalKnownHostsFile none\n"
        );
        for (number, name) in (1..).zip(HOSTS) {
            let host = self.hosts()[number - 1].clone();
            let mut sshd = host.command("unshare");
            sshd.args(own_machine(&place, kind, kind.ahead_s[number - 1]));
            sshd.args(["/usr/sbin/sshd", "-D", "-e", "-f", &format!("{place}/sshd_config")]);
            let log = fs::File::create(self.path(&format!("sshd-{name}.log"))).unwrap();
            self.servers.push(sshd.stdin(Stdio::null()).stderr(log).spawn().unwrap());
            let address = format!("10.92.{number}.2");
            let answers = || self.leader.run(|| TcpStream::connect((address.as_str(), 22)).is_ok()).unwrap();
            within(PATIENCE, answers).expect("an sshd does not answer");
            client += &format!("Host {name}\nHostName {address}\n");
        }
        self.write("ssh_config", &client);
    }

    /// Files of `/etc` that stand in for the machines' own there, where one user more may sudo.
    fn write_users(&self) {
        // An sshd reads the key as the user.
        fs::set_permissions(self.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let own = |name: &str| fs::read_to_string(format!("/etc/{name}")).unwrap();
        self.write("passwd", &format!("{}{USER}:x:{USER_ID}:{USER_ID}::/tmp:/bin/sh\n", own("passwd")));
        self.write("shadow", &format!("{}{USER}:*:19000:0:99999:7:::\n", own("shadow")));
        // As Debian has it.
        let path = "secure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"";
        self.write(
            "sudoers",
            &format!("Defaults env_reset, use_pty, {path}\n{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n"),
        );
        fs::set_permissions(self.path("sudoers"), fs::Permissions::from_mode(0o440)).unwrap();
        fs::set_permissions(self.path("shadow"), fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// Arguments of `unshare` for a machine with its own users and clocks, where it has such; what it runs follows.
fn own_machine(place: &str, kind: Kind, ahead_s: u32) -> Vec<String> {
    let files = ["passwd", "shadow", "sudoers"].iter().filter(|_| kind.sudo);
    let mut mounts: String =
        files.map(|name| format!("mount --bind {place}/{name} /etc/{name} && ")).collect();
    if kind.noexec {
        mounts += "mount --bind /tmp /tmp && mount -o remount,bind,noexec /tmp && ";
    }
    let ahead = ahead_s.to_string();
    let mut line = vec!["--mount", "--fork", "--kill-child"];
    if ahead_s > 0 {
        line.extend(["--time", "--monotonic", &ahead, "--boottime", &ahead]);
    }
    let script = format!("{mounts}exec \"$0\" \"$@\"");
    line.extend(["sh", "-c", &script]);
    line.into_iter().map(str::to_owned).collect()
}

fn command_line(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

fn end<'a>(namespace: &'a Namespace, name: &'a str) -> interface::End<'a> {
    interface::End { namespace, name }
}

fn lay(a: interface::End<'_>, b: interface::End<'_>) {
    interface::veth(a, b, 1500).unwrap();
}

fn address(host: &Namespace, address: &str, interface: &str) {
    let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
    host.ip(&[&["addr", "add", address, "dev", interface], nodad].concat()).unwrap();
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
