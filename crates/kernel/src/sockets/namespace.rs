//! Which network namespaces to look into, and looking from inside them.

use crate::{Error, Result};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// The network namespaces a command is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Scope {
    /// The network namespace of this process.
    #[default]
    Own,
    /// The network namespace of a name under /run/netns.
    Named(String),
    /// The network namespace of a process.
    Pid(i32),
    /// Every one that has a name or a process and that this process may enter.
    All,
}

impl FromStr for Scope {
    type Err = std::convert::Infallible;

    /// `all`, a pid, or a name.
    fn from_str(text: &str) -> std::result::Result<Scope, Self::Err> {
        Ok(match (text, text.parse::<i32>()) {
            ("all", _) => Scope::All,
            (_, Ok(pid)) => Scope::Pid(pid),
            _ => Scope::Named(text.to_owned()),
        })
    }
}

/// One open network namespace.
#[derive(Debug)]
pub struct NetNamespace {
    /// Name of the namespace; `pid N` where it has none; empty for that of this process.
    pub label: Arc<str>,
    /// What the kernel knows it by.
    pub inode: u64,
    file: File,
}

impl Scope {
    /// Opens the namespaces, each once.
    pub fn namespaces(&self) -> Result<Vec<NetNamespace>> {
        match self {
            Scope::Own => open("", Path::new("/proc/self/ns/net")).map(|namespace| vec![namespace]),
            Scope::Named(name) => {
                open(name, &Path::new("/run/netns").join(name)).map(|namespace| vec![namespace])
            }
            Scope::Pid(pid) => open(&format!("pid {pid}"), Path::new(&format!("/proc/{pid}/ns/net")))
                .map(|namespace| vec![namespace]),
            Scope::All => Ok(every()),
        }
    }
}

fn open(label: &str, path: &Path) -> Result<NetNamespace> {
    let failed = |source| {
        let named = if label.is_empty() { "of this process" } else { label };
        Error::io(
            format!(
                "network namespace '{named}' ({}); give a name of 'ip netns list', a pid or 'all'",
                path.display()
            ),
            source,
        )
    };
    let file = File::open(path).map_err(failed)?;
    let inode = file.metadata().map_err(failed)?.ino();
    Ok(NetNamespace { label: label.into(), inode, file })
}

/// Our own first, then those with a name, then those that only processes have.
fn every() -> Vec<NetNamespace> {
    let mut paths = vec![(String::new(), PathBuf::from("/proc/self/ns/net"))];
    let entries = |path| fs::read_dir(path).into_iter().flatten().flatten();
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    paths.extend(entries("/run/netns").map(|entry| (name(&entry), entry.path())));
    let pids = entries("/proc").filter(|entry| name(entry).bytes().all(|byte| byte.is_ascii_digit()));
    paths.extend(pids.map(|entry| (format!("pid {}", name(&entry)), entry.path().join("ns/net"))));
    let mut seen = BTreeSet::new();
    let namespaces = paths.into_iter().filter_map(|(label, path)| open(&label, &path).ok());
    namespaces.filter(|namespace| seen.insert(namespace.inode)).collect()
}

impl NetNamespace {
    /// Runs `work` inside, on a thread of its own: setns would move the caller. `None` when it may not be entered.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Option<T> {
        if self.is_own() {
            return Some(work());
        }
        let inside = || {
            let entered = nix::sched::setns(&self.file, nix::sched::CloneFlags::CLONE_NEWNET).is_ok();
            entered.then(work)
        };
        std::thread::scope(|scope| {
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether the calling thread is inside already; an unprivileged one may not even enter its own.
    fn is_own(&self) -> bool {
        fs::metadata("/proc/thread-self/ns/net").is_ok_and(|metadata| metadata.ino() == self.inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_all_a_pid_or_a_name() {
        assert_eq!("all".parse(), Ok(Scope::All));
        assert_eq!("123".parse(), Ok(Scope::Pid(123)));
        assert_eq!("blue".parse(), Ok(Scope::Named("blue".into())));
    }

    #[test]
    fn a_namespace_that_is_not_there_is_named_with_the_mend() {
        let message = Scope::Named("no-such".into()).namespaces().unwrap_err().to_string();
        assert!(message.contains("'no-such'") && message.contains("ip netns list"), "{message}");
    }

    #[test]
    fn all_namespaces_begin_with_our_own_and_hold_each_once() {
        let namespaces = Scope::All.namespaces().unwrap();
        let inodes: BTreeSet<_> = namespaces.iter().map(|namespace| namespace.inode).collect();
        assert_eq!(inodes.len(), namespaces.len());
        assert_eq!(namespaces[0].run(std::process::id), Some(std::process::id()));
    }
}
