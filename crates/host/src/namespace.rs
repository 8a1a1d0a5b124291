//! Network namespaces by name, as `ip netns` keeps them.
//!
//! A thread or child process enters with setns(2) on the network namespace alone: `ip netns exec` would also
//! remount /sys and hide the cgroup2 hierarchy, which BPF needs.

use crate::{Error, Result, run_command};
use std::{
    ffi::OsStr,
    fs::File,
    os::{
        fd::AsRawFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

const NETNS_DIR: &str = "/run/netns";

/// An existing network namespace. Cloning shares it; dropping does not delete it (a [`crate::Lease`] does).
#[derive(Debug, Clone)]
pub struct Namespace {
    name: String,
    file: Arc<File>,
}

impl Namespace {
    /// Creates the namespace with its loopback up; an existing one of that name is an error.
    pub fn create(name: &str) -> Result<Namespace> {
        if path(name).exists() {
            return Err(Error::NamespaceExists(name.to_owned()));
        }
        let mut add = Command::new("ip");
        add.args(["netns", "add", name]);
        run_command(add)?;
        let namespace = Namespace::open(name)?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Opens an existing namespace by name.
    pub fn open(name: &str) -> Result<Namespace> {
        let path = path(name);
        let file = File::open(&path).map_err(|source| {
            Error::io(format!("network namespace '{name}' ({})", path.display()), source)
        })?;
        Ok(Namespace { name: name.to_owned(), file: Arc::new(file) })
    }

    /// The one that the calling thread is in.
    pub fn current() -> Result<Namespace> {
        let path = Path::new("/proc/thread-self/ns/net");
        let file = File::open(path).map_err(|source| Error::io(path.display().to_string(), source))?;
        Ok(Namespace { name: "of this thread".to_owned(), file: Arc::new(file) })
    }

    /// Number by which the kernel knows it, for as long as it exists.
    pub fn inode(&self) -> Result<u64> {
        let known = self.file.metadata().map(|metadata| metadata.ino());
        known.map_err(|source| Error::io(format!("network namespace '{}'", self.name), source))
    }

    /// Name of the namespace under /run/netns.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Deletes it by name; one that is gone is no error.
    pub fn delete(name: &str) -> Result<()> {
        if !path(name).exists() {
            return Ok(());
        }
        let mut delete = Command::new("ip");
        delete.args(["netns", "del", name]);
        run_command(delete).map(drop)
    }

    /// Moves the calling thread into it, for good.
    pub fn enter(&self) -> Result<()> {
        nix::sched::setns(&*self.file, nix::sched::CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::io(format!("enter network namespace '{}'", self.name), errno))
    }

    /// Runs `work` inside it, on a thread of its own, and waits. Sockets made there stay there.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let inside = || self.enter().map(|()| work());
        std::thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// A command that will start inside it and be killed when the thread that starts it dies.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = crate::mortal_command(program);
        let file = Arc::clone(&self.file);
        // SAFETY: between fork and exec only setns is called, which is async-signal-safe; the descriptor stays open
        // because the closure owns it.
        unsafe {
            command.pre_exec(move || match libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        command
    }

    /// Runs `ip ARGS` inside it.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        let mut command = self.command("ip");
        command.args(args);
        run_command(command)
    }

    /// Processes that are inside it.
    pub fn pids(&self) -> Result<Vec<i32>> {
        let mut command = Command::new("ip");
        command.args(["netns", "pids", &self.name]);
        Ok(run_command(command)?.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}
