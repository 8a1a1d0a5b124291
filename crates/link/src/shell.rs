//! A command inside an emulated path, as mahimahi's users know it: a namespace for the command, one for the link, and
//! the host at the far end.
//!
//! ```text
//! lf-link-PID-inside            lf-link-PID-link            this host
//! 100.64.x.2  'path' ──────── 'a'  driver  'b' ──────── 'lflPID'  100.64.x.1
//! ```
//!
//! The host's forwarding and firewall are left alone: the command reaches what listens on the host.

use crate::{
    LinkPlan,
    driver::{self, DriverError, DriverReport, Options, Start},
    netem::{self, NetemError},
};
use longfat_host::{
    Lease, Namespace,
    interface::{self, End},
    lease, run_command,
};
use longfat_schema::lines::Lines;
use std::{
    ffi::OsString,
    process::{Child, Command, ExitStatus},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Which driver runs the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverName {
    /// Ours, with packet sockets.
    #[default]
    AfPacket,
    /// The kernel's netem.
    Netem,
}

/// Why a command could not be run inside a path.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The host refused something.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernel's emulator failed.
    #[error(transparent)]
    Netem(#[from] NetemError),
    /// The command could not be started.
    #[error("start '{command}': {source}")]
    Command {
        /// What was to be started.
        command: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A thread of this program panicked.
    #[error("the link's driver panicked")]
    Panic,
}

/// What the link came to, by either driver.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// Report of longfat's own driver.
    AfPacket(Box<DriverReport>),
    /// Report of the kernel's netem, which measures less.
    Netem(Box<[longfat_schema::record::LinkSummary; 2]>),
}

/// The namespaces and the path between them; removed on drop.
#[derive(Debug)]
pub struct Shell {
    inside: Namespace,
    link: Namespace,
    host_end: String,
    addresses: Addresses,
    has_ipv6: bool,
    _lease: Lease,
}

/// A /30 and a /64 of this process alone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Addresses {
    host: [String; 2],
    inside: [String; 2],
}

impl Addresses {
    /// From the shared address space of RFC 6598 and the unique local addresses of RFC 4193. Process ids are below
    /// 2^22, and only living ones hold addresses; 2^20 pairs are told apart by the low 20 bits.
    fn of(pid: u32) -> Addresses {
        let base = u32::from_be_bytes([100, 64, 0, 0]) + ((pid & 0xf_ffff) << 2);
        let ipv4 = |host: u32| std::net::Ipv4Addr::from(base + host).to_string();
        let ipv6 = |host: u32| format!("fd6c:66:{:x}:{:x}::{host}", pid >> 16, pid & 0xffff);
        Addresses { host: [ipv4(1), ipv6(1)], inside: [ipv4(2), ipv6(2)] }
    }
}

impl Shell {
    /// Makes everything; what a dead run left behind is removed first.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn make(plan: &LinkPlan) -> Result<Shell, ShellError> {
        lease::sweep()?;
        let pid = std::process::id();
        let lease = Lease::take(&format!("link-{pid}"))?;
        let (inside, link) = (lease.namespace("inside")?, lease.namespace("link")?);
        let ends = (End { namespace: &inside, name: "path" }, End { namespace: &link, name: "a" });
        interface::veth(ends.0, ends.1, plan.mtu_bytes)?;
        let mut shell = Shell {
            inside,
            link,
            host_end: format!("lfl{pid}"),
            addresses: Addresses::of(pid),
            has_ipv6: false,
            _lease: lease,
        };
        shell.connect_host(plan.mtu_bytes)?;
        driver::prepare_host_end(&shell.inside, "path")?;
        driver::prepare_interface(&shell.host_end)?;
        shell.has_ipv6 = plan.mtu_bytes >= interface::IPV6_MTU_MIN_BYTES && shell.may_have_ipv6();
        shell.address(&["address", "add"])?;
        Ok(shell)
    }

    /// The host's addresses as the command sees them: IPv4, and IPv6 where the path has it.
    pub fn host_addresses(&self) -> &[String] {
        &self.addresses.host[..self.families()]
    }

    /// The command's own addresses: IPv4, and IPv6 where the path has it.
    pub fn inside_addresses(&self) -> &[String] {
        &self.addresses.inside[..self.families()]
    }

    fn families(&self) -> usize {
        1 + usize::from(self.has_ipv6)
    }

    /// Whether neither end of the path was made without IPv6, which a host may want of every new interface.
    fn may_have_ipv6(&self) -> bool {
        driver::has_ipv6(&self.host_end) && self.inside.run(|| driver::has_ipv6("path")).unwrap_or(false)
    }

    /// Runs the command inside until it ends; it is asked to end (SIGTERM) when `end` is raised.
    ///
    /// # Errors
    /// When the driver or the command cannot be started, or the driver fails while the command runs.
    pub fn run(
        &self,
        plan: &LinkPlan,
        driver: DriverName,
        lines: &Lines,
        command: &[OsString],
        end: &AtomicBool,
    ) -> Result<(ExitStatus, Report), ShellError> {
        let (stop, (ready, is_ready)) = (AtomicBool::new(false), mpsc::channel());
        thread::scope(|scope| {
            let stop = &stop;
            let driving = scope.spawn(move || self.drive(plan, driver, lines, stop, &ready));
            // A closed channel: the driver failed before it was ready, and says so below.
            let started = is_ready.recv().is_ok().then(|| self.start(command)).transpose();
            let status = started.map(|child| child.map(|child| attend(child, end, || driving.is_finished())));
            stop.store(true, Ordering::Relaxed);
            let report = driving.join().map_err(|_| ShellError::Panic)??;
            let status = status?.unwrap_or_else(|| Err(std::io::Error::other("the driver was never ready")));
            let name =
                || command.first().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            Ok((status.map_err(|source| ShellError::Command { command: name(), source })?, report))
        })
    }

    fn drive(
        &self,
        plan: &LinkPlan,
        driver: DriverName,
        lines: &Lines,
        stop: &AtomicBool,
        ready: &mpsc::Sender<()>,
    ) -> Result<Report, ShellError> {
        self.link.enter()?;
        // Whoever waited may have given up; the driver runs all the same.
        let is_ready = || {
            let _ = ready.send(());
        };
        match driver {
            DriverName::AfPacket => {
                let options = Options { plan, a: "a", b: "b", lines, stop, start: Start::Now };
                Ok(Report::AfPacket(Box::new(driver::run(&options, is_ready)?)))
            }
            DriverName::Netem => {
                Ok(Report::Netem(Box::new(netem::run(plan, ["a", "b"], lines, stop, is_ready)?)))
            }
        }
    }

    fn start(&self, command: &[OsString]) -> Result<Child, ShellError> {
        let (program, arguments) = match command.split_first() {
            Some((program, arguments)) => (program.clone(), arguments),
            None => (std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()), &[][..]),
        };
        let mut inside = self.inside.command(&program);
        inside.args(arguments);
        inside.env_remove("LONGFAT_HOST6");
        inside.envs(["LONGFAT_HOST", "LONGFAT_HOST6"].into_iter().zip(self.host_addresses()));
        let command = program.to_string_lossy().into_owned();
        inside.spawn().map_err(|source| ShellError::Command { command, source })
    }

    /// The host's end is made from here, its peer inside the link's namespace: it vanishes with that namespace.
    fn connect_host(&self, mtu_bytes: u32) -> Result<(), ShellError> {
        let (mtu, end, link) = (mtu_bytes.to_string(), self.host_end.as_str(), self.link.name());
        let peer = ["type", "veth", "peer", "name", "b", "mtu", &mtu, "netns", link];
        host_ip(&[&["link", "add", "name", end, "mtu", &mtu][..], &peer[..]].concat())?;
        host_ip(&["link", "set", "dev", end, "up"])?;
        self.link.ip(&["link", "set", "dev", "b", "up"])?;
        Ok(())
    }

    fn address(&self, add: &[&str; 2]) -> Result<(), ShellError> {
        let Addresses { host, inside } = &self.addresses;
        let (host_v4, inside_v4) = (format!("{}/30", host[0]), format!("{}/30", inside[0]));
        host_ip(&[&add[..], &[&host_v4, "dev", &self.host_end]].concat())?;
        self.inside.ip(&[&add[..], &[&inside_v4, "dev", "path"]].concat())?;
        self.inside.ip(&["route", "add", "default", "via", &host[0]])?;
        if !self.has_ipv6 {
            return Ok(());
        }
        let (host_v6, inside_v6) = (format!("{}/64", host[1]), format!("{}/64", inside[1]));
        host_ip(&[&add[..], &[&host_v6, "dev", &self.host_end, "nodad"]].concat())?;
        self.inside.ip(&[&add[..], &[&inside_v6, "dev", "path", "nodad"]].concat())?;
        self.inside.ip(&["-6", "route", "add", "default", "via", &host[1]])?;
        Ok(())
    }
}

fn host_ip(arguments: &[&str]) -> Result<(), ShellError> {
    let mut command = Command::new("ip");
    command.args(arguments);
    run_command(command)?;
    Ok(())
}

/// Waits for the command; asks it to end when told to, kills it when the path under it is gone.
fn attend(
    mut child: Child,
    end: &AtomicBool,
    path_is_gone: impl Fn() -> bool,
) -> std::io::Result<ExitStatus> {
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if path_is_gone() {
            child.kill()?;
        }
        if end.load(Ordering::Relaxed) && !asked {
            asked = true;
            // SAFETY: the child has not been waited for, so the pid is still its own.
            unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        }
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_pairs_of_addresses_of_their_own() {
        let addresses = Addresses::of(0x1_2345);
        assert_eq!(addresses.host, ["100.68.141.21", "fd6c:66:1:2345::1"]);
        assert_eq!(addresses.inside, ["100.68.141.22", "fd6c:66:1:2345::2"]);
        assert_ne!(Addresses::of(7), Addresses::of(8));
    }
}
