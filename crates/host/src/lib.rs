//! What longfat asks of a Linux host without BPF.
//!
//! - [`confine`]: user, capabilities, files and system calls of a process that strangers speak to.
//! - [`control`]: the unix socket by which a running process is asked.
//! - [`key`]: a key shared by hosts, in a file.
//! - [`lease`]: everything a run makes outside its own process, removed when it ends or, after a crash, by the next.
//! - [`monitor`]: a small process that stays root beside one that does not.
//! - [`namespace`]: network namespaces, entered by threads and child processes.
//! - [`facts`]: what must be recorded about a machine with every run.
//! - [`interface`]: veth pairs, addresses, routes, offloads.
//! - [`netlink`]: routes, links and addresses, as rtnetlink(7) tells and changes them.
//! - [`sysctl`]: network parameters of the calling thread's namespace.
//! - [`own`]: directories that are this user's alone to write.
//! - [`support`]: what this host lacks, as values.
//! - [`network`]: ranges of addresses as people name them.
//! - [`socket`]: congestion control, buffers and TCP_INFO of a socket.
//!
//! Creating things is left to iproute2; what it cannot do (entering, offloads, sockets) is here.

pub mod capability;
pub mod confine;
pub mod control;
pub mod facts;
pub mod interface;
pub mod key;
pub mod lease;
pub mod monitor;
pub mod namespace;
pub mod netlink;
pub mod network;
pub mod own;
pub mod socket;
pub mod support;
pub mod sysctl;

pub use key::Key;
pub use lease::Lease;
pub use namespace::Namespace;
pub use network::Network;

use std::{ffi::OsStr, os::unix::process::CommandExt, process::Command};

/// Why the host would not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A congestion control that the kernel has, and gives to others only.
    #[error("congestion control '{name}' {}; {mend}", socket::CC_RESTRICTED)]
    CcRestricted {
        /// Name of the congestion control.
        name: String,
        /// What to do about it.
        mend: String,
    },
    /// A key that cannot be used.
    #[error("the key {0}")]
    Key(String),
    /// A sysctl that is not of a network namespace.
    #[error(
        "sysctl '{0}' is the whole machine's; only net.* belong to a network namespace and can be set here"
    )]
    SysctlOfMachine(String),
    /// A program of the host failed or is missing.
    #[error("'{command}' failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// What it said.
        stderr: String,
    },
    /// The name is taken.
    #[error(
        "network namespace '{0}' exists already; remove it with 'ip netns del {0}' or choose another name"
    )]
    NamespaceExists(String),
    /// Another process answers on a control socket.
    #[error("somebody answers on '{0}' already; end that process, or choose another socket")]
    SocketTaken(String),
    /// A lease of that name is held by a living process.
    #[error("'{id}' is in use by process {pid}; wait for it or end it, then try again")]
    LeaseHeld {
        /// The lease's name.
        id: String,
        /// Process that holds the lease.
        pid: i32,
    },
}

/// Result of asking the host.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the kernel refused for want of rights.
    pub fn is_not_permitted(&self) -> bool {
        match self {
            Error::Io { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            Error::CcRestricted { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Error {
        Error::Io { what: what.into(), source: source.into() }
    }
}

/// CLOCK_MONOTONIC in nanoseconds: the time of every record.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to; CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What CLOCK_MONOTONIC nanoseconds lack to nanoseconds since 1970, now. Later it differs when the clock is set.
pub fn realtime_offset_ns() -> i64 {
    let wall = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let once = || {
        let before_ns = monotonic_ns() as i64;
        let wall_ns = wall().map_or(0, |since| since.as_nanos() as i64);
        let after_ns = monotonic_ns() as i64;
        (after_ns - before_ns, wall_ns - (before_ns + (after_ns - before_ns) / 2))
    };
    // The closest of several: any of them may have been interrupted.
    (0..16).map(|_| once()).min().map_or(0, |(_, offset_ns)| offset_ns)
}

/// CLOCK_MONOTONIC in microseconds.
pub fn monotonic_us() -> i64 {
    (monotonic_ns() / 1000) as i64
}

/// A command that is killed when the thread that starts it dies.
pub fn mortal_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    die_with_parent(&mut command);
    command
}

/// Has the program killed when the thread that starts it dies.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl and getppid are called, both async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            if libc::getppid() as u32 != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Below that of a link's driver, above that of whatever is no part of a run.
const PRECEDENCE: i32 = 10;

/// Gives a command's program, and every thread of it, the processor before programs without real-time priority, where
/// the host allows that.
pub fn go_first(command: &mut Command) {
    let parameter = libc::sched_param { sched_priority: PRECEDENCE };
    // SAFETY: between fork and exec only sched_setscheduler is called, a plain system call with a valid parameter.
    unsafe {
        command.pre_exec(move || {
            libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameter);
            Ok(())
        });
    }
}

/// Runs a program of the host; its standard output on success, its standard error in the error.
pub fn run_command(mut command: Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.stdin(std::process::Stdio::null()).output().map_err(|source| Error::Command {
        command: shown.clone(),
        stderr: format!("cannot be started: {source}"),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Command { command: shown, stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scheduling policy of a program, by proc_pid_stat(5), and whether this process may set one.
    fn policy(goes_first: bool) -> String {
        let mut command = mortal_command("cat");
        command.arg("/proc/self/stat");
        if goes_first {
            go_first(&mut command);
        }
        let stat = run_command(command).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(38).unwrap().to_owned()
    }

    #[test]
    fn a_command_that_goes_first_is_scheduled_round_robin_where_the_host_allows_it() {
        let parameter = libc::sched_param { sched_priority: PRECEDENCE };
        let is_allowed = std::thread::spawn(move || {
            // SAFETY: a plain system call on this thread alone.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameter) == 0 }
        });
        let round_robin = if is_allowed.join().unwrap() { libc::SCHED_RR } else { libc::SCHED_OTHER };
        assert_eq!(policy(true), round_robin.to_string());
        assert_eq!(policy(false), libc::SCHED_OTHER.to_string());
    }
}
