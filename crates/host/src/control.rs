//! A unix socket by which a running process is asked: one line there, one line back.

use crate::{Error, Result};
use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::Uid,
};
use std::{
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A listening socket; the file that is its own is removed on drop.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    file: Option<PathBuf>,
}

/// How much a question may ask of the process that answers it.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Time for a question and its answer, all bytes of both together; whoever takes longer gets none.
    pub time: Duration,
    /// Length at which a question is cut.
    pub question_bytes: usize,
}

impl Control {
    /// Listens, for the owner alone. A socket that a dead process left is replaced; anything but a socket stays, and is
    /// in the way.
    ///
    /// # Errors
    /// When somebody answers there already, or the file cannot be made.
    pub fn open(path: &Path) -> Result<Control> {
        let failed = |source| Error::io(format!("make the control socket '{}'", path.display()), source);
        if UnixStream::connect(path).is_ok() {
            return Err(Error::SocketTaken(path.display().to_string()));
        }
        make_room(path).map_err(failed)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        let control = Control { listener, file: Some(path.to_owned()) };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        control.listener.set_nonblocking(true).map_err(failed)?;
        Ok(control)
    }

    /// One that another process listens with, whose file it still is.
    pub fn inherited(listener: UnixListener) -> Control {
        Control { listener, file: None }
    }

    /// The file at which it listens is this process's from now on.
    pub fn own(&mut self, path: &Path) {
        self.file = Some(path.to_owned());
    }

    /// Ends without removing the file: another process goes on with it.
    pub fn leave(mut self) {
        self.file = None;
    }

    /// Answers one of those who wait; never waits itself for anybody to come. Whether there was one: then there may be
    /// more, and the caller looks for them when it has looked at what else it has to do.
    pub fn answer(&self, patience: Patience, answer: impl FnOnce(&str) -> String) -> bool {
        self.answer_to(patience, |question, _| answer(question))
    }

    /// As [`Control::answer`], where the answer depends on the user who asks.
    pub fn answer_to(&self, patience: Patience, answer: impl FnOnce(&str, Uid) -> String) -> bool {
        let Ok((asker, _)) = self.listener.accept() else { return false };
        // Who asks and goes away loses nothing but the answer.
        let _ = answer_one(asker, patience, answer);
        true
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

fn make_room(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => Ok(()),
    }
}

/// Between two looks at a socket that refuses: a process that starts has made its file, and listens a moment later.
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// A file as old is of no process that starts: one look is enough.
const SETTLED: Duration = Duration::from_secs(1);

/// Removes the socket's file that a dead process left on `path`; whether it did. What is no socket stays, as does one
/// that somebody answers on, or that the caller may not ask or remove.
pub fn remove_dead(path: &Path) -> bool {
    let file = || fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket());
    let which = |found: fs::Metadata| (found.dev(), found.ino());
    let refuses =
        || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let Some(first) = file().filter(|_| refuses()) else { return false };
    let is_settled = age(&first).is_some_and(|age| age > SETTLED);
    if !is_settled {
        std::thread::sleep(SECOND_LOOK);
    }
    refuses() && file().map(which) == Some(which(first)) && fs::remove_file(path).is_ok()
}

fn age(file: &fs::Metadata) -> Option<Duration> {
    file.modified().ok()?.elapsed().ok()
}

/// Removes the sockets' files, by their name `….sock`, that dead processes left in a directory; which.
pub fn remove_dead_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let sockets = entries.filter(|path| path.extension().is_some_and(|extension| extension == "sock"));
    sockets.filter(|path| remove_dead(path)).collect()
}

/// A client of the control socket. A socket's own timeouts are of one read or write each, of which there may be many.
struct Asker {
    stream: UnixStream,
    deadline: Instant,
}

impl Asker {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl io::Read for Asker {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl io::Write for Asker {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn answer_one(
    stream: UnixStream,
    patience: Patience,
    answer: impl FnOnce(&str, Uid) -> String,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let user = Uid::from_raw(getsockopt(&stream, PeerCredentials)?.uid());
    let mut asker = Asker { stream, deadline: Instant::now() + patience.time };
    let (mut text, mut byte) = (Vec::new(), [0]);
    while text.len() < patience.question_bytes && asker.read(&mut byte)? == 1 && byte[0] != b'\n' {
        text.push(byte[0]);
    }
    let mut reply = answer(String::from_utf8_lossy(&text).trim(), user);
    reply.push('\n');
    // For how long the answer was thought about is not the asker's fault.
    asker.deadline = Instant::now() + patience.time;
    asker.write_all(reply.as_bytes())
}

/// Asks the process that answers on `path`; all it says.
///
/// # Errors
/// When nobody answers, or not within `within`.
pub fn ask(path: &Path, question: &str, within: Duration) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(within))?;
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { time: Duration::from_secs(10), question_bytes: 8 };

    #[test]
    fn a_question_is_answered_and_a_second_process_of_the_name_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below").join("x.sock");
        let control = Control::open(&path).unwrap();
        assert!(Control::open(&path).unwrap_err().to_string().contains("already"));
        let asker = {
            let path = path.clone();
            let asked = move |question: &str| ask(&path, question, Duration::from_secs(10)).unwrap();
            std::thread::spawn(move || [asked("good"), asked("")])
        };
        while !asker.is_finished() {
            control.answer(PATIENCE, |question| format!("'{question}'"));
            std::thread::sleep(Duration::from_millis(1));
        }
        // The second `Control::open` above connected and asked nothing.
        assert_eq!(asker.join().unwrap(), ["'good'\n", "''\n"]);
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn one_is_answered_at_a_time_and_who_dribbles_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let control = Control::open(&path).unwrap();
        let mut askers = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
        askers.iter_mut().for_each(|asker| asker.write_all(b"now\n").unwrap());
        let answered = [(); 3].map(|()| control.answer(PATIENCE, str::to_owned));
        assert_eq!(answered, [true, true, false]);
        let mut dribbler = UnixStream::connect(&path).unwrap();
        let dribbling = std::thread::spawn(move || {
            while dribbler.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // At the timeout of one read each these bytes would take hours.
        let patience = Patience { time: Duration::from_millis(50), question_bytes: 1 << 20 };
        assert!(control.answer(patience, |question| panic!("'{question}' came to no end")));
        dribbling.join().unwrap();
    }

    #[test]
    fn a_dead_processs_file_is_removed_and_a_living_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let [dead, living, file, other] =
            ["dead.sock", "living.sock", "file.sock", "other"].map(|name| directory.path().join(name));
        // A listener dropped by itself leaves its file, as a killed process does.
        drop(UnixListener::bind(&dead).unwrap());
        drop(UnixListener::bind(&other).unwrap());
        let _living = Control::open(&living).unwrap();
        fs::write(&file, "mine").unwrap();
        assert!(!remove_dead(&directory.path().join("none.sock")));
        assert_eq!(remove_dead_in(directory.path()), std::slice::from_ref(&dead));
        assert!(!dead.exists() && living.exists() && file.exists() && other.exists());
        assert!(remove_dead(&other) && !other.exists());
    }

    #[test]
    fn what_is_no_socket_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        fs::write(&path, "mine").unwrap();
        assert!(Control::open(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
