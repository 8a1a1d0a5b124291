//! The TCP sockets of this host, as the kernel tells of them: connections by sock_diag(7) in every network namespace,
//! the iterators that visit them, which congestion control each uses, and which process has it open.

pub mod connection;
pub mod diag;
pub mod limit;
pub mod namespace;
pub mod visit;

use crate::Result;
use diag::{ALL_STATES, Request, dump};
use namespace::Scope;
use std::{
    collections::{BTreeSet, HashMap},
    ffi::CString,
    fs,
    ops::Range,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// One socket's congestion control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Name in the kernel.
    pub cc: String,
    /// Inode of the socket; 0 when no process has it open any more.
    pub inode: u32,
}

/// Every TCP socket of every namespace this process can enter, listeners included. A socket in TIME_WAIT has no
/// congestion control.
pub fn all() -> Result<Vec<Use>> {
    let wanted = Request { states: ALL_STATES, details: false };
    let mut uses = Vec::new();
    for namespace in Scope::All.namespaces()? {
        let Some(dump) = namespace.run(|| dump(wanted)) else { continue };
        dump?.each(&namespace.label, |one| {
            uses.extend(one.cc.map(|cc| Use { cc: cc.as_str().to_owned(), inode: one.inode }));
        })?;
    }
    Ok(uses)
}

/// Pid and name of a process by the inode of a socket it has open.
pub type Owners = HashMap<u32, (i32, Arc<str>)>;

/// Which processes have these sockets open. Walks /proc, so ask once.
pub fn owners(inodes: &BTreeSet<u32>) -> Owners {
    if inodes.is_empty() { Owners::new() } else { find_owners(|inode| inodes.contains(&inode)) }
}

/// Which processes have any socket open.
pub fn all_owners() -> Owners {
    find_owners(|_| true)
}

fn find_owners(wanted: impl Fn(u32) -> bool) -> Owners {
    let processes: Vec<(i32, u32)> = pids().map(|pid| (pid, count_of_descriptors(pid))).collect();
    let numbers = |count: u32| (0..count).step_by(AT_ONCE as usize).map(move |n| n..count.min(n + AT_ONCE));
    let parts: Vec<(usize, Range<u32>)> = processes
        .iter()
        .enumerate()
        .flat_map(|(index, (_, count))| numbers(*count).map(move |numbers| (index, numbers)))
        .collect();
    let descriptors: u64 = processes.iter().map(|(_, count)| u64::from(*count)).sum();
    let read = side_by_side(&parts, helpers(descriptors), thread::Builder::new, |(index, numbers)| {
        Descriptors::read(processes[*index].0, numbers.clone())
    });
    let mut of_each = vec![Descriptors::default(); processes.len()];
    parts.iter().zip(read).for_each(|((index, _), read)| of_each[*index].add(read));
    let mut owners = Owners::new();
    for ((pid, count), mut found) in processes.into_iter().zip(of_each) {
        // Counted again: one that was opened meanwhile may stand for one that has a greater number.
        if count == 0 || found.open < count || found.open < count_of_descriptors(pid) {
            found.add(Descriptors::beyond(pid, count));
        }
        let mut name: Option<Arc<str>> = None;
        for inode in found.sockets.into_iter().filter(|inode| wanted(*inode)) {
            let command = name.get_or_insert_with(|| command_of(pid));
            owners.entry(inode).or_insert_with(|| (pid, Arc::clone(command)));
        }
    }
    owners
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn command_of(pid: i32) -> Arc<str> {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().into()
}

/// How many descriptors a process has open; 0 where the kernel does not tell (before 6.2).
fn count_of_descriptors(pid: i32) -> u32 {
    fs::metadata(format!("/proc/{pid}/fd")).map_or(0, |directory| directory.len() as u32)
}

/// Descriptors that are read at once.
const AT_ONCE: u32 = 512;

/// What was found of the descriptors of a process.
#[derive(Debug, Clone, Default)]
struct Descriptors {
    open: u32,
    /// Inodes.
    sockets: Vec<u32>,
}

impl Descriptors {
    fn add(&mut self, more: Descriptors) {
        self.open += more.open;
        self.sockets.extend(more.sockets);
    }

    /// Reads descriptors of these numbers. Descriptors are numbered from 0 on, mostly without gaps: for the kernel, to
    /// list them costs as much as to read them.
    fn read(pid: i32, numbers: impl IntoIterator<Item = u32>) -> Descriptors {
        let mut found = Descriptors::default();
        // Relative to the open directory: a whole path per descriptor would be walked anew each time.
        let Ok(directory) = fs::File::open(format!("/proc/{pid}/fd")) else { return found };
        for target in numbers.into_iter().filter_map(|number| Target::read(&directory, number)) {
            found.open += 1;
            found.sockets.extend(target.socket_inode());
        }
        found
    }

    /// Reads descriptors of greater numbers, which are listed.
    fn beyond(pid: i32, first: u32) -> Descriptors {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let greater: Vec<u32> = numbers.filter(|number| *number >= first).collect();
        if greater.is_empty() { Descriptors::default() } else { Descriptors::read(pid, greater) }
    }
}

/// What a descriptor is open on, as far as it matters.
struct Target {
    text: [u8; 32],
    length: usize,
}

impl Target {
    /// `None` where no descriptor has the number.
    fn read(directory: &fs::File, number: u32) -> Option<Target> {
        let name = CString::new(number.to_string()).ok()?;
        let mut text = [0u8; 32];
        // SAFETY: an open directory, a terminated name, and a buffer of the length given.
        let length = unsafe {
            libc::readlinkat(directory.as_raw_fd(), name.as_ptr(), text.as_mut_ptr().cast(), text.len())
        };
        Some(Target { text, length: usize::try_from(length).ok()? })
    }

    fn socket_inode(&self) -> Option<u32> {
        let text = std::str::from_utf8(self.text.get(..self.length)?).ok()?;
        text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }
}

/// How many threads are worth their making beside the calling one: few descriptors are read before another thread has
/// begun.
fn helpers(descriptors: u64) -> usize {
    match usize::try_from(descriptors / u64::from(AT_ONCE)).unwrap_or(usize::MAX) {
        0 => 0,
        some => some.min(thread::available_parallelism().map_or(0, |count| count.get() - 1)),
    }
}

/// Does the work for every item, on the calling thread and at most so many helpers, one item each; where no thread can
/// be made, without. Results in the order of the items.
fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    helpers: usize,
    thread: impl Fn() -> thread::Builder,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let helpers = helpers.min(items.len().saturating_sub(1));
    let mut done = thread::scope(|scope| {
        let helping: Vec<_> = (0..helpers).map_while(|_| thread().spawn_scoped(scope, take).ok()).collect();
        let mut done = take();
        for thread in helping {
            done.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A copy of a process's descriptor of a socket (pidfd_getfd), to be closed soon: while it is open, the owner's own
/// close ends nothing. `None` when it has closed it meanwhile, or may not be looked into.
pub fn descriptor_of(pid: i32, inode: u32) -> Option<OwnedFd> {
    let target = format!("socket:[{inode}]");
    let is_it = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == target.as_str())
    };
    let entry = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().find(is_it)?;
    let number: i32 = entry.file_name().to_str()?.parse().ok()?;
    // SAFETY: both calls return a new descriptor that nothing else owns, or -1.
    let copy = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            return None;
        }
        let process = OwnedFd::from_raw_fd(process as i32);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0);
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy as i32))?
    };
    // The number may have been given to another file between the look and the copy.
    let same = fs::metadata(format!("/proc/self/fd/{}", copy.as_raw_fd())).ok()?.ino() == u64::from(inode);
    same.then_some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, net::TcpListener};

    #[test]
    fn a_socket_of_this_process_is_found_with_its_congestion_control_and_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        longfat_host::socket::set_cc(&listener, "cubic").unwrap();
        let inode = nix::sys::stat::fstat(&listener).unwrap().st_ino as u32;
        assert!(all().unwrap().contains(&Use { cc: "cubic".into(), inode }));
        let owner = &owners(&BTreeSet::from([inode]))[&inode];
        assert_eq!(owner.0, std::process::id() as i32);
    }

    #[test]
    fn sockets_are_found_behind_gaps_in_the_numbers_and_where_the_kernel_does_not_count_them() {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        // More than there are descriptors: nothing but a list tells of it.
        // SAFETY: both are numbers, and the one given is open.
        let far = unsafe { libc::fcntl(first.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900) };
        assert!(far >= 900, "no descriptor");
        drop(first);
        // SAFETY: just made, and nobody else's.
        let far = unsafe { OwnedFd::from_raw_fd(far) };
        let inode = nix::sys::stat::fstat(&far).unwrap().st_ino as u32;
        let pid = std::process::id() as i32;
        assert!(count_of_descriptors(pid) < 900, "the gap is none");
        assert_eq!(owners(&BTreeSet::from([inode]))[&inode].0, pid);
        assert!(Descriptors::beyond(pid, 0).sockets.contains(&inode));
        assert_eq!(Descriptors::read(pid, [far.as_raw_fd() as u32]).sockets, [inode]);
        assert_eq!(Descriptors::read(pid, [899]).open, 0);
    }

    #[test]
    fn work_done_side_by_side_comes_back_in_order_and_once_each() {
        let items: Vec<usize> = (0..5000).collect();
        let squares = side_by_side(&items, 3, thread::Builder::new, |item| {
            if item % 97 == 0 {
                thread::yield_now();
            }
            item * item
        });
        assert_eq!(squares, items.iter().map(|item| item * item).collect::<Vec<_>>());
        assert!(side_by_side(&[] as &[u8], 3, thread::Builder::new, |_| 0).is_empty());
    }

    #[test]
    fn where_no_thread_can_be_made_the_calling_one_does_the_work() {
        let none = || thread::Builder::new().stack_size(1 << 60);
        assert!(none().spawn(|| ()).is_err(), "a stack that large is none");
        let workers = side_by_side(&[0; 100], 3, none, |_| thread::current().id());
        assert_eq!(workers, [thread::current().id(); 100]);
    }

    #[test]
    fn nobody_helps_with_little_work_or_a_single_item() {
        let made = |items: &[u8], helpers| {
            let count = Cell::new(0);
            let thread = || {
                count.set(count.get() + 1);
                thread::Builder::new()
            };
            side_by_side(items, helpers, thread, |_| ());
            count.get()
        };
        assert_eq!([made(&[], 8), made(&[1], 8), made(&[1, 2, 3], 8), made(&[1, 2, 3], 1)], [0, 0, 2, 1]);
        assert_eq!(helpers(u64::from(AT_ONCE) - 1), 0);
        assert!(helpers(u64::MAX) < thread::available_parallelism().unwrap().get());
    }
}
