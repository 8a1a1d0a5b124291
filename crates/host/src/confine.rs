//! What a process that began as root keeps for itself when strangers may speak to it: a user without rights, the
//! capabilities it names, the files it names (Landlock) and the system calls of its kind (seccomp).
//!
//! A program first does what needs root (ports, BPF, devices, keys, control sockets), then, **before it starts a
//! thread**:
//!
//! ```no_run
//! # use longfat_host::{confine::{Account, Confinement}, capability};
//! # fn main() -> longfat_host::Result<()> {
//! // '--user' as given, or else `longfat`, or else `nobody`; nothing for whoever is not root.
//! let account = Account::choose(None)?;
//! let confined = Confinement::of(account)
//!     .keeping(&[capability::NET_ADMIN])
//!     .writing(["/var/log/longfat"])
//!     .enter()?;
//! eprintln!("{confined}");
//! # Ok(())
//! # }
//! ```
//!
//! What is not said is refused: other capabilities, other files to write (with [`Confinement::reading`] to read, too),
//! programs to execute, BPF, new namespaces. Refused system calls are answered ENOSYS, as if this kernel had none of
//! them: libraries have ways around that. Children inherit all of it.

use crate::{Error, Result, capability};
use landlock::{
    ABI, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus,
};
use nix::unistd::{Gid, Uid, User};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

/// Users that a service becomes when none is named, the first that there is.
const SERVICE_USERS: [&str; 2] = ["longfat", "nobody"];

/// A user to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// As the machine's user database has it.
    pub name: String,
    /// User id.
    pub uid: Uid,
    /// Group id; no other group is kept.
    pub gid: Gid,
    /// Nobody asked for it by name.
    is_default: bool,
}

impl Account {
    /// The user of that name; without one `longfat`, or else `nobody`. `None` for `root`, who stays what he is, and for
    /// whoever is not root and asks for nobody.
    ///
    /// # Errors
    /// There is no such user, or who asks for another is not root.
    pub fn choose(asked: Option<&str>) -> Result<Option<Account>> {
        let is_root = Uid::effective().is_root();
        let refused = |why: &str| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
            Error::io(format!("change to user '{}'", asked.unwrap_or("nobody")), source)
        };
        match asked {
            None if !is_root => Ok(None),
            None => match service_user() {
                Some(account) => Ok(Some(account)),
                None => Err(refused("this machine has neither 'longfat' nor 'nobody'; name one by --user")),
            },
            Some("root") if is_root => Ok(None),
            Some(name) => match Account::find(name, false) {
                Some(account) if account.uid == Uid::effective() => Ok(None),
                Some(_) if !is_root => {
                    Err(refused("only root can; start it as that user, or leave --user out"))
                }
                Some(account) => Ok(Some(account)),
                None => Err(refused("this machine has no such user")),
            },
        }
    }

    fn find(name: &str, is_default: bool) -> Option<Account> {
        let user = User::from_name(name).ok()??;
        Some(Account { name: user.name, uid: user.uid, gid: user.gid, is_default })
    }
}

/// The user whom programs become that root has started and that were told none.
pub fn service_user() -> Option<Account> {
    SERVICE_USERS.iter().find_map(|name| Account::find(name, true))
}

/// What a process keeps. Made by [`Confinement::of`], taken by [`Confinement::enter`].
#[derive(Debug, Clone)]
#[must_use = "nothing is given up before 'enter'"]
pub struct Confinement {
    account: Option<Account>,
    capabilities: Vec<u32>,
    writing: Vec<PathBuf>,
    reading: Option<Vec<PathBuf>>,
    starts_programs: bool,
    uses_bpf: bool,
    looks_into_processes: bool,
    makes_few_calls: bool,
    more_calls: &'static [i64],
}

/// What came of it, in words by `Display`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confined {
    /// The user it runs as now, where that changed.
    pub user: Option<String>,
    /// Whether the kernel holds it to the files it named.
    pub has_landlock: bool,
}

impl fmt::Display for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "confined: runs as '{user}'")?,
            None => write!(f, "confined: runs as the user who started it")?,
        }
        f.write_str(", with the system calls of a service")?;
        f.write_str(if self.has_landlock {
            " and its own files"
        } else {
            "; Landlock does not hold it to files"
        })
    }
}

impl Confinement {
    /// Becomes that user, and keeps no capability, writes no file, starts no program and loads no BPF.
    pub fn of(account: Option<Account>) -> Confinement {
        Confinement {
            account,
            capabilities: Vec::new(),
            writing: Vec::new(),
            reading: None,
            starts_programs: false,
            uses_bpf: false,
            looks_into_processes: false,
            makes_few_calls: false,
            more_calls: &[],
        }
    }

    /// Keeps these capabilities, also through the change of user and in the programs it starts.
    pub fn keeping(mut self, capabilities: &[u32]) -> Confinement {
        self.capabilities.extend_from_slice(capabilities);
        self
    }

    /// May make, change and remove files below these directories, or change these files. What is not there is left out.
    pub fn writing(mut self, paths: impl IntoIterator<Item: Into<PathBuf>>) -> Confinement {
        self.writing.extend(paths.into_iter().map(Into::into));
        self
    }

    /// May read below these alone; without a call everything that its user may. An empty list: nothing.
    pub fn reading(mut self, paths: impl IntoIterator<Item: Into<PathBuf>>) -> Confinement {
        self.reading.get_or_insert_default().extend(paths.into_iter().map(Into::into));
        self
    }

    /// May execute programs, which are confined as it is.
    pub fn starting_programs(mut self) -> Confinement {
        self.starts_programs = true;
        self
    }

    /// May call bpf(2), as far as its capabilities reach.
    pub fn using_bpf(mut self) -> Confinement {
        self.uses_bpf = true;
        self
    }

    /// May enter others' namespaces and copy their descriptors, as far as its capabilities reach. Landlock would forbid
    /// it and is left out.
    pub fn looking_into_processes(mut self) -> Confinement {
        self.looks_into_processes = true;
        self
    }

    /// Makes no calls but those of a program that opens files for another one, and these.
    pub fn calling_little_but(mut self, calls: &'static [i64]) -> Confinement {
        self.more_calls = calls;
        self.with_few_calls()
    }

    /// Opens, makes and removes files, and speaks on sockets that are open: no new sockets, threads, children or
    /// signals.
    pub(crate) fn with_few_calls(mut self) -> Confinement {
        self.makes_few_calls = true;
        self
    }

    /// Gives up everything else, for good. To be called before other threads start: capabilities and Landlock are each
    /// thread's own.
    ///
    /// # Errors
    /// Something could not be given up; the process should end then.
    pub fn enter(self) -> Result<Confined> {
        capability::bound(&self.capabilities);
        let user = self.change_user()?;
        capability::keep_only(&self.capabilities)?;
        if user.is_some() {
            // Programs of another user than root have capabilities by inheritance alone.
            capability::raise_ambient(&self.capabilities)?;
        }
        let has_landlock = !self.looks_into_processes && self.restrict_files()?;
        self.restrict_calls()?;
        Ok(Confined { user, has_landlock })
    }

    fn change_user(&self) -> Result<Option<String>> {
        let Some(account) = &self.account else { return Ok(None) };
        let failed = |errno: nix::errno::Errno| Error::io(format!("become user '{}'", account.name), errno);
        let death = nix::sys::prctl::get_pdeathsig().map_err(failed)?;
        let parent = nix::unistd::getppid();
        nix::sys::prctl::set_keepcaps(true).map_err(failed)?;
        match nix::unistd::setresgid(account.gid, account.gid, account.gid) {
            // A user namespace that has root alone: nobody to become.
            Err(nix::errno::Errno::EINVAL) if account.is_default => return Ok(None),
            changed => changed.map_err(failed)?,
        }
        nix::unistd::setgroups(&[]).map_err(failed)?;
        nix::unistd::setresuid(account.uid, account.uid, account.uid).map_err(failed)?;
        // The kernel forgets it with the user. A parent that has died meanwhile sends no signal any more.
        nix::sys::prctl::set_pdeathsig(death).map_err(failed)?;
        if death.is_some() && nix::unistd::getppid() != parent {
            return Err(failed(nix::errno::Errno::ESRCH));
        }
        Ok(Some(account.name.clone()))
    }

    /// Whether the kernel has Landlock. Of an old one's fewer rights all are taken.
    fn restrict_files(&self) -> Result<bool> {
        let failed = |source: landlock::RulesetError| Error::io("restrict files", io::Error::other(source));
        let abi = ABI::V5;
        let reads = AccessFs::ReadFile | AccessFs::ReadDir;
        let executes = AccessFs::Execute;
        let mut handled = AccessFs::from_write(abi) & !AccessFs::IoctlDev;
        if self.reading.is_some() {
            handled |= reads;
        }
        if !self.starts_programs {
            handled |= executes;
        }
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let mut created = ruleset.handle_access(handled).and_then(Ruleset::create).map_err(failed)?;
        let readable = self.reading.iter().flatten().map(|path| (path, handled & reads));
        let writable = self.writing.iter().map(|path| (path, handled & !executes));
        for (path, rights) in readable.chain(writable) {
            // The parent of a relative name.
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path.as_path() };
            let Ok(opened) = PathFd::new(path) else { continue };
            let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(abi) };
            created = created.add_rule(PathBeneath::new(opened, rights)).map_err(failed)?;
        }
        let status = created.restrict_self().map_err(failed)?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    }

    fn restrict_calls(&self) -> Result<()> {
        let failed = |source: String| Error::io("restrict system calls", io::Error::other(source));
        let program = self.filter().map_err(|error| failed(error.to_string()))?;
        seccompiler::apply_filter_all_threads(&program).map_err(|error| failed(error.to_string()))
    }

    fn filter(&self) -> std::result::Result<BpfProgram, seccompiler::BackendError> {
        let mut calls: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        let more = [
            (SERVICE, !self.makes_few_calls),
            (OLD, !self.makes_few_calls),
            (&PROGRAMS[..], self.starts_programs),
            (&[libc::SYS_bpf][..], self.uses_bpf),
            (&[libc::SYS_pidfd_getfd, libc::SYS_setns][..], self.looks_into_processes),
        ];
        let more = more.into_iter().filter(|(_, wanted)| *wanted).flat_map(|(calls, _)| calls);
        for call in FILES.iter().chain(OLD_FILES).chain(self.more_calls).chain(more) {
            calls.insert(*call, Vec::new());
        }
        if !self.makes_few_calls {
            self.with_conditions(&mut calls)?;
        }
        let absent = SeccompAction::Errno(libc::ENOSYS as u32);
        let arch = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(calls, absent, SeccompAction::Allow, arch)?.try_into()
    }

    /// Calls that may be made with some arguments alone.
    fn with_conditions(
        &self,
        calls: &mut BTreeMap<i64, Vec<SeccompRule>>,
    ) -> std::result::Result<(), seccompiler::BackendError> {
        // A thread or a child, but no namespace of its own.
        let new_namespaces = u64::from(NEW_NAMESPACES);
        let clone = SeccompCondition::new(0, Dword, SeccompCmpOp::MaskedEq(new_namespaces), 0)?;
        calls.insert(libc::SYS_clone, vec![SeccompRule::new(vec![clone])?]);
        // Not what types into the terminal of whoever started it.
        let not = |request| SeccompCondition::new(1, Dword, SeccompCmpOp::Ne, request);
        let ioctl = SeccompRule::new(vec![not(libc::TIOCSTI)?, not(TIOCLINUX)?])?;
        calls.insert(libc::SYS_ioctl, vec![ioctl]);
        Ok(())
    }
}

/// What else than files named by it a service reads: names, certificates, time zones, itself.
pub fn system_files() -> impl Iterator<Item = &'static Path> {
    ["/etc", "/usr", "/lib", "/lib64", "/proc", "/sys", "/dev/null", "/dev/urandom"]
        .into_iter()
        .map(Path::new)
}

const TIOCLINUX: u64 = 0x541C;
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWCGROUP) as u32;

/// Calls of a program that opens, makes and removes files for another one, and of every other program.
const FILES: &[i64] = &[
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

#[cfg(target_arch = "x86_64")]
const OLD_FILES: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_renameat,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_FILES: &[i64] = &[libc::SYS_renameat];

/// Starting a program; what waits for it is every service's.
const PROGRAMS: [i64; 4] = [libc::SYS_execve, libc::SYS_execveat, libc::SYS_setpgid, libc::SYS_setsid];

/// What programs that hold sockets, files, threads and timers call besides, on every architecture.
const SERVICE: &[i64] = &[
    // Files that are open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_sync_file_range,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_pipe2,
    // Files by name, as far as user and Landlock allow.
    libc::SYS_openat2,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_mkdirat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_umask,
    libc::SYS_memfd_create,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    // Sockets.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // Memory.
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_get_mempolicy,
    // Threads and children; clone has a rule of its own, clone3 cannot have one.
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    // Signals.
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_sigaltstack,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_delete,
];

/// System calls above under the names that younger architectures left out.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_time,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        net::TcpListener,
        os::unix::fs::PermissionsExt as _,
        process::{Command, Stdio},
    };

    const CONFINED: &str = "LONGFAT_TEST_CONFINED";

    /// What a confined process finds: it is another process, since nothing that is given up comes back.
    #[test]
    #[ignore = "the confined process of another test"]
    fn within() {
        let Some(directory) = std::env::var_os(CONFINED).map(PathBuf::from) else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let account = Account::choose(None).unwrap();
        let is_root = account.is_some();
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGUSR1).unwrap();
        let confinement =
            Confinement::of(account).keeping(&[capability::NET_RAW]).writing([directory.join("own")]);
        let confined = confinement.enter().unwrap();
        println!("{confined}");
        let death = nix::sys::prctl::get_pdeathsig().unwrap();
        assert_eq!(death, Some(nix::sys::signal::Signal::SIGUSR1), "it still dies with its parent");
        if is_root {
            assert!(confined.user.is_some() && !Uid::effective().is_root());
            assert!(nix::unistd::setuid(Uid::from_raw(0)).is_err(), "root again");
            assert!(fs::read("/etc/shadow").is_err(), "what is root's alone");
            assert!(capability::has(capability::NET_RAW) && !capability::has(capability::NET_ADMIN));
        }
        assert!(Command::new("/bin/true").status().is_err(), "a program");
        // SAFETY: each takes numbers or null only; a call that went through would end the test, not harm it.
        let calls = unsafe {
            [
                libc::unshare(libc::CLONE_NEWUSER),
                libc::syscall(libc::SYS_bpf, 0, 0, 0) as i32,
                libc::ptrace(libc::PTRACE_TRACEME) as i32,
                libc::mount(
                    std::ptr::null(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REMOUNT,
                    std::ptr::null(),
                ),
                libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()),
            ]
        };
        assert_eq!(calls, [-1; 5]);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS));
        if confined.has_landlock {
            assert!(fs::write(directory.join("other/file"), "x").is_err(), "a file of others");
        }
        fs::write(directory.join("own/file"), "mine").unwrap();
        fs::rename(directory.join("own/file"), directory.join("own/moved")).unwrap();
        fs::remove_file(directory.join("own/moved")).unwrap();
        // It still serves: connections, threads, time.
        let address = listener.local_addr().unwrap();
        let asker = std::thread::spawn(move || std::net::TcpStream::connect(address).map(drop));
        listener.accept().unwrap();
        asker.join().unwrap().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        println!("confined and well");
    }

    #[test]
    fn a_confined_process_serves_and_can_do_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        for name in ["own", "other"] {
            fs::create_dir(place.path().join(name)).unwrap();
            let open = fs::Permissions::from_mode(0o777);
            fs::set_permissions(place.path().join(name), open).unwrap();
        }
        let through = fs::Permissions::from_mode(0o755);
        fs::set_permissions(place.path(), through).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "confine::tests::within", "--ignored", "--nocapture"]);
        let output = child.env(CONFINED, place.path()).stdin(Stdio::null()).output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("confined and well"), "{said}");
    }

    #[test]
    fn who_is_to_be_changed_to_is_chosen_by_name_or_is_the_first_service_user() {
        let message = Account::choose(Some("no-such-user")).unwrap_err().to_string();
        assert!(message.contains("'no-such-user'"), "{message}");
        if Uid::effective().is_root() {
            let account = Account::choose(None).unwrap().unwrap();
            assert!(SERVICE_USERS.contains(&account.name.as_str()) && !account.uid.is_root());
            assert_eq!(Account::choose(Some("root")).unwrap(), None);
        } else {
            assert_eq!(Account::choose(None).unwrap(), None);
        }
    }
}
