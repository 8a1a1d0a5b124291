//! A small process that stays root beside one that has become another user: it does the few things that still need
//! root, and none that it is asked for in other words than numbers (Provos, Friedl and Honeyman, *Preventing Privilege
//! Escalation*, 2003, call it the monitor).
//!
//! The monitor is the child, not the parent. So the process that a service manager, a shell or a test has started is
//! the one that serves: its pid, signals, notifications, leases and exit code are what they would be without. The
//! monitor hears no signal; its lifeline is a socket, and it ends when the other has ended, however that was.
//!
//! A monitor that is killed cannot be replaced: whoever is left is no root. Then the other is told to end as by
//! SIGTERM, which undoes what it can, and says at the end why ([`lost`]). A service manager starts both again.

use crate::{
    Error, Result, capability,
    confine::{Account, Confinement},
};
use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask},
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
            sendmsg, socketpair,
        },
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, fork, setsid},
};
use std::{
    fs::{self, File},
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

/// What the monitor is asked: two numbers, whose meaning is the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// What to do.
    pub what: u8,
    /// With which of several.
    pub which: u64,
}

/// What a monitor is there for; by default for nothing.
#[derive(Default)]
pub struct Duties {
    places: Vec<PathBuf>,
    answer: Option<Box<Answer>>,
    remains: Vec<Remains>,
}

/// Does what is asked, and may open a file for who asks.
type Answer = dyn FnMut(Question) -> io::Result<Option<File>>;

impl Duties {
    /// Below these directories it may make, change and remove files. It opens any for reading.
    pub fn writing(mut self, places: impl IntoIterator<Item: Into<PathBuf>>) -> Duties {
        self.places.extend(places.into_iter().map(Into::into));
        self
    }

    /// Answers questions so. Who asks may be a stranger by then: paths are known beforehand, not asked for. Descriptors
    /// that are open now are not open there.
    pub fn answering(mut self, answer: impl FnMut(Question) -> io::Result<Option<File>> + 'static) -> Duties {
        self.answer = Some(Box::new(answer));
        self
    }

    /// Removes this file, which is there now, when the other has ended; another one that took its place meanwhile
    /// stays.
    pub fn removing(mut self, path: &Path) -> Duties {
        self.places.extend(path.parent().map(Path::to_owned));
        self.remains.extend(Remains::of(path));
        self
    }
}

/// A file as it was found.
struct Remains {
    path: PathBuf,
    /// Device, inode and when that changed last: numbers of inodes are given again.
    inode: (u64, u64, i64, i64),
}

impl Remains {
    fn of(path: &Path) -> Option<Remains> {
        let found = fs::symlink_metadata(path).ok()?;
        let inode = (found.dev(), found.ino(), found.ctime(), found.ctime_nsec());
        Some(Remains { path: path.to_owned(), inode })
    }

    fn remove(&self) {
        if Remains::of(&self.path).is_some_and(|found| found.inode == self.inode) {
            // Nobody is there to be told; the next start replaces what is left.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The process that stays root, as the other knows it. When this is dropped, it does what is left to do and ends.
#[derive(Debug)]
pub struct Monitor {
    socket: Option<Mutex<OwnedFd>>,
    pid: Pid,
}

impl Monitor {
    /// Starts one where `account` is another user: who stays what he is needs none. To be called before other threads
    /// start, and before the process changes its user.
    ///
    /// # Errors
    /// There is no room for another process.
    pub fn beside(account: Option<&Account>, duties: Duties) -> Result<Option<Monitor>> {
        let Some(_) = account else { return Ok(None) };
        let failed = |errno: Errno| Error::io("start the process that stays root", errno);
        let (own, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(failed)?;
        // SAFETY: this process has one thread, as the caller promises, so the child may do whatever it could.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Child => {
                let ended = stand_by(&other, duties);
                // SAFETY: ends the process; nothing of the other's is to be undone here.
                unsafe { libc::_exit(i32::from(ended.is_err())) }
            }
            ForkResult::Parent { child } => {
                drop(other);
                let monitor = Monitor { socket: Some(Mutex::new(own)), pid: child };
                monitor.wait_until_it_stands_by()?;
                end_without(child).map_err(failed)?;
                Ok(Some(monitor))
            }
        }
    }

    fn wait_until_it_stands_by(&self) -> Result<()> {
        let failed = |source| Error::io("start the process that stays root", source);
        let mut said = [0; 512];
        let Some(socket) = &self.socket else { return Ok(()) };
        let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, _) = receive(socket.as_raw_fd(), &mut said).map_err(failed)?;
        match &said[..bytes] {
            [] => Err(failed(gone())),
            said if said == READY.as_bytes() => Ok(()),
            said => Err(failed(io::Error::other(String::from_utf8_lossy(said).into_owned()))),
        }
    }

    /// Has it do something; the file that it opened, where it opened one.
    ///
    /// # Errors
    /// It could not do it, or has gone.
    pub fn ask(&self, question: Question) -> io::Result<Option<File>> {
        let answer = self.answer(question);
        if answer.as_ref().is_err_and(|error| error.raw_os_error().is_none()) {
            self.notice_its_end();
        }
        answer
    }

    fn answer(&self, question: Question) -> io::Result<Option<File>> {
        let Some(socket) = &self.socket else { return Err(gone()) };
        let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; QUESTION_BYTES];
        bytes[0] = question.what;
        bytes[1..].copy_from_slice(&question.which.to_ne_bytes());
        send(socket.as_raw_fd(), &bytes, None).map_err(|_| gone())?;
        let mut errno = [0; 4];
        let (received, file) = receive(socket.as_raw_fd(), &mut errno).map_err(|_| gone())?;
        match i32::from_ne_bytes(errno) {
            _ if received < errno.len() => Err(gone()),
            0 => Ok(file),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Waits to be told of the monitor's end. Its socket closes a moment before: whoever meets that first must not end
    /// as if nothing had happened to it.
    fn notice_its_end(&self) {
        for _ in 0..ENDS_WITHIN_MS {
            on_child_ended();
            if lost().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Has it leave the files alone that it was to remove: another process goes on with them.
    pub fn leave_files(&self) {
        // One that has gone removed them already, and says nothing.
        let _ = self.ask(Question { what: LEAVE_FILES, which: 0 });
    }

    /// Has it open a file.
    ///
    /// # Errors
    /// See [`Monitor::ask`].
    pub fn open(&self, question: Question) -> io::Result<File> {
        self.ask(question)?.ok_or_else(|| io::Error::other("the process that stayed root opened no file"))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // From now on its end is in order. One that was killed before stays what it is.
        let _ = WATCHED.compare_exchange(self.pid.as_raw(), 0, Ordering::SeqCst, Ordering::SeqCst);
        drop(self.socket.take());
        let _ = waitpid(self.pid, None);
    }
}

/// From the closing of its socket to its end a process takes microseconds.
const ENDS_WITHIN_MS: u32 = 1000;

fn gone() -> io::Error {
    io::Error::other("the process that stayed root beside this one has gone; start the program again")
}

/// The monitor that is not to end before this process; none: 0; one that has: its pid, negative.
static WATCHED: AtomicI32 = AtomicI32::new(0);

/// Pid of the monitor of this process, where it was killed and this process was told to end.
pub fn lost() -> Option<i32> {
    Some(-WATCHED.load(Ordering::SeqCst)).filter(|pid| *pid > 0)
}

/// Has this process end when its child, the monitor, does.
fn end_without(monitor: Pid) -> std::result::Result<(), Errno> {
    WATCHED.store(monitor.as_raw(), Ordering::SeqCst);
    let on_child = SigHandler::Handler(on_child);
    let action = SigAction::new(on_child, SaFlags::SA_RESTART | SaFlags::SA_NOCLDSTOP, SigSet::empty());
    // SAFETY: the handler makes system calls and uses an atomic, and nothing else.
    unsafe { sigaction(Signal::SIGCHLD, &action) }?;
    // It may have ended before.
    on_child_ended();
    Ok(())
}

extern "C" fn on_child(_: libc::c_int) {
    let errno = Errno::last_raw();
    on_child_ended();
    Errno::set_raw(errno);
}

/// Some child has ended; if it is the monitor, this process ends as by SIGTERM.
fn on_child_ended() {
    let pid = WATCHED.load(Ordering::SeqCst);
    if pid <= 0 {
        return;
    }
    let mut found = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: waitid() writes one siginfo_t, which is valid as zeros, too: then no child has ended.
    let ended = unsafe {
        libc::waitid(libc::P_PID, pid as libc::id_t, found.as_mut_ptr(), look) == 0
            && found.assume_init().si_pid() == pid
    };
    if ended && WATCHED.compare_exchange(pid, -pid, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        // SAFETY: takes numbers only.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    }
}

const QUESTION_BYTES: usize = 9;
/// What every monitor understands by itself.
const LEAVE_FILES: u8 = u8::MAX;
/// What it says first, or else what went wrong.
const READY: &str = "ready";

/// The monitor's life.
fn stand_by(socket: &OwnedFd, mut duties: Duties) -> Result<()> {
    let failed = |what: &'static str| move |errno: Errno| Error::io(what, errno);
    let _ = nix::sys::prctl::set_name(c"longfat-monitor");
    // A terminal's Ctrl-C is the other's to answer, and so is a service manager's SIGTERM: this one has to be there
    // after it.
    setsid().map_err(failed("leave the session"))?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).map_err(failed("block signals"))?;
    let socket = leave_alone(socket.as_raw_fd()).map_err(|source| Error::io("close files", source))?;
    // Whoever's the files are, as root has it.
    let kept = [capability::DAC_OVERRIDE];
    let confined = Confinement::of(None).keeping(&kept).writing(&duties.places).with_few_calls().enter();
    let said = confined.as_ref().map_or_else(ToString::to_string, |_| READY.to_owned());
    send(socket, said.as_bytes(), None).map_err(|source| Error::io("say that it stands by", source))?;
    confined?;
    let mut question = [0; QUESTION_BYTES];
    while let Ok((QUESTION_BYTES, _)) = receive(socket, &mut question) {
        let which = u64::from_ne_bytes(question[1..].try_into().unwrap_or_default());
        let question = Question { what: question[0], which };
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        let answer = match question.what {
            LEAVE_FILES => {
                duties.remains.clear();
                Ok(None)
            }
            _ => duties.answer.as_mut().map_or_else(refused, |answer| answer(question)),
        };
        let errno = answer.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        let file = answer.ok().flatten();
        if send(socket, &errno.to_ne_bytes(), file.as_ref()).is_err() {
            break;
        }
    }
    duties.remains.iter().for_each(Remains::remove);
    Ok(())
}

/// Closes everything but the socket: ports, programs in the kernel and pipes must end with the other process.
fn leave_alone(socket: RawFd) -> io::Result<RawFd> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let checked = |result: i64| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    const KEPT: RawFd = 3;
    // SAFETY: numbers only. What else in this process owned these descriptors is never used nor dropped again.
    unsafe {
        let own = libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, 10);
        checked(own.into())?;
        for standard in 0..KEPT {
            checked(libc::dup2(nothing.as_raw_fd(), standard).into())?;
        }
        checked(libc::dup2(own, KEPT).into())?;
        std::mem::forget(nothing);
        checked(libc::syscall(libc::SYS_close_range, KEPT + 1, u32::MAX, 0))?;
    }
    Ok(KEPT)
}

fn send(socket: RawFd, bytes: &[u8], file: Option<&File>) -> io::Result<()> {
    let files: Vec<RawFd> = file.map(std::os::fd::AsRawFd::as_raw_fd).into_iter().collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[] } else { &rights[..] };
    sendmsg::<()>(socket, &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// How many bytes, and the file that came with them. None: the other end is closed.
fn receive(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<File>)> {
    let mut control = cmsg_space!(RawFd);
    let mut into = [IoSliceMut::new(bytes)];
    let received = loop {
        match recvmsg::<()>(socket, &mut into, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    let mut file = None;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(files) = message {
            // SAFETY: the kernel has just made them, for this process.
            file = files.into_iter().map(|fd| unsafe { File::from_raw_fd(fd) }).next_back().or(file);
        }
    }
    Ok((received.bytes, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::Uid;
    use std::{
        io::{BufRead as _, BufReader, Read as _, Write as _},
        os::unix::fs::PermissionsExt as _,
        process::{Child, Command, Stdio},
        sync::atomic::AtomicBool,
        time::Instant,
    };

    const PLACE: &str = "LONGFAT_TEST_MONITORED";
    const READ: u8 = 0;
    const MAKE: u8 = 1;

    /// What a process that gave root up can have done, and cannot do: it is another one, since nothing comes back.
    #[test]
    #[ignore = "the process of another test"]
    fn within() {
        let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
        let account = Account::choose(None).unwrap();
        let path = place.clone();
        let duties =
            Duties::default().writing([&place]).removing(&place.join("socket")).answering(move |question| {
                match question {
                    Question { what: READ, .. } => File::open(path.join("secret")).map(Some),
                    Question { what: MAKE, which } => File::create(path.join(format!("{which}"))).map(Some),
                    _ => fs::write("/etc/longfat-test-monitor", "x").map(|()| None),
                }
            });
        let monitor = Monitor::beside(account.as_ref(), duties).unwrap().unwrap();
        Confinement::of(account).enter().unwrap();
        assert!(!Uid::effective().is_root() && fs::read(place.join("secret")).is_err());
        let mut secret = String::new();
        monitor.open(Question { what: READ, which: 0 }).unwrap().read_to_string(&mut secret).unwrap();
        assert_eq!(secret, "root's alone");
        let mut made = monitor.open(Question { what: MAKE, which: 7 }).unwrap();
        made.write_all(b"whole").unwrap();
        let refused = monitor.ask(Question { what: 2, which: 0 }).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "beyond its places: {refused}");
        assert!(nix::sys::signal::kill(monitor.pid, None).is_err(), "it is not this user's to end");
        let on_term = SigAction::new(SigHandler::Handler(on_term), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler sets an atomic, and does nothing else.
        unsafe { sigaction(Signal::SIGTERM, &on_term) }.unwrap();
        println!("\nmonitored by {}", monitor.pid);
        // Until who started it says so, or kills it.
        io::stdin().read_line(&mut String::new()).unwrap();
        if let Some(pid) = lost() {
            eventually("it is told to end", || TOLD_TO_END.load(Ordering::SeqCst));
            println!("{pid} was lost");
        }
        let asked = monitor.open(Question { what: READ, which: 0 }).map(drop);
        println!("{}", asked.map_or_else(|error| error.to_string(), |()| "it is there".to_owned()));
    }

    static TOLD_TO_END: AtomicBool = AtomicBool::new(false);

    extern "C" fn on_term(_: libc::c_int) {
        TOLD_TO_END.store(true, Ordering::SeqCst);
    }

    /// A process that became another user, and the pid of its monitor.
    fn monitored(place: &Path) -> (Child, Pid) {
        fs::set_permissions(place, fs::Permissions::from_mode(0o700)).unwrap();
        for (name, text) in [("secret", "root's alone"), ("socket", "mine")] {
            fs::write(place.join(name), text).unwrap();
            fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "monitor::tests::within", "--ignored", "--nocapture", "--test-threads=1"]);
        let mut child =
            command.env(PLACE, place).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // A byte at a time: what it says later is its test's.
        let stdout = child.stdout.as_mut().unwrap();
        let mut said = BufReader::with_capacity(1, stdout).lines().map_while(std::result::Result::ok);
        let pid = said.find_map(|line| line.strip_prefix("monitored by ").and_then(|pid| pid.parse().ok()));
        (child, Pid::from_raw(pid.expect("it says what is wrong on standard error")))
    }

    /// Lets it end; what it says of its monitor.
    fn end(mut child: Child) -> String {
        child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    fn status(pid: Pid, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    }

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "not: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_root() -> bool {
        let is_root = Uid::effective().is_root();
        if !is_root {
            eprintln!("SKIPPED: a process that stays root needs root");
        }
        is_root
    }

    #[test]
    fn what_needs_root_is_done_by_a_process_that_can_do_little_else_and_ends_with_the_other() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let (child, pid) = monitored(place.path());
        assert_eq!(status(pid, "Uid:").split_whitespace().next(), Some("0"));
        assert_eq!(status(pid, "CapEff:"), "0000000000000002", "CAP_DAC_OVERRIDE alone");
        assert_eq!(status(pid, "Seccomp:"), "2");
        assert_eq!(status(pid, "NoNewPrivs:"), "1");
        // A service manager's, or a terminal's.
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
            // SAFETY: takes numbers only; the pid is that of a process whose parent lives.
            assert_eq!(unsafe { libc::kill(pid.as_raw(), signal) }, 0);
        }
        assert_eq!(fs::read(place.path().join("7")).unwrap(), b"whole");
        let said = end(child);
        assert!(said.contains("it is there") && !said.contains("was lost"), "it hears no signal: {said}");
        assert!(!place.path().join("socket").exists() && place.path().join("secret").exists());
    }

    #[test]
    fn what_root_made_is_removed_also_when_the_other_is_killed_unless_somebody_has_taken_its_place() {
        if !is_root() {
            return;
        }
        for is_taken in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let (mut child, pid) = monitored(place.path());
            if is_taken {
                fs::write(place.path().join("other"), "another's").unwrap();
                fs::rename(place.path().join("other"), place.path().join("socket")).unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            eventually("it ends with the other", || crate::lease::start_time(pid.as_raw()).is_none());
            assert_eq!(place.path().join("socket").exists(), is_taken);
        }
    }

    #[test]
    fn whoever_is_asked_of_one_that_was_killed_says_so() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let (child, pid) = monitored(place.path());
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(pid.as_raw(), libc::SIGKILL) }, 0);
        eventually("it is dead", || crate::lease::start_time(pid.as_raw()).is_none());
        let said = end(child);
        assert!(said.contains(&format!("{pid} was lost")), "{said}");
        assert!(said.contains("has gone; start the program again"), "{said}");
        assert!(place.path().join("socket").exists());
    }
}
