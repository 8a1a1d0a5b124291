//! A unix socket by which a running process is asked: one line there, one line back.

use crate::{Error, Result};
use std::{
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// A listening socket; its file is removed on drop.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

/// How much a question may ask of the process that answers it.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Who takes longer to ask, or to take the answer, gets none.
    pub time: Duration,
    /// What is longer is cut.
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
        let control = Control { listener, path: path.to_owned() };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        control.listener.set_nonblocking(true).map_err(failed)?;
        Ok(control)
    }

    /// Answers everybody who waits; never waits itself for anybody to come.
    pub fn answer(&self, patience: Patience, mut answer: impl FnMut(&str) -> String) {
        while let Ok((asker, _)) = self.listener.accept() {
            // Who asks and goes away loses nothing but the answer.
            let _ = answer_one(asker, patience, &mut answer);
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
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

fn answer_one(
    mut asker: UnixStream,
    patience: Patience,
    answer: &mut impl FnMut(&str) -> String,
) -> io::Result<()> {
    asker.set_nonblocking(false)?;
    asker.set_read_timeout(Some(patience.time))?;
    asker.set_write_timeout(Some(patience.time))?;
    let (mut text, mut byte) = (Vec::new(), [0]);
    while text.len() < patience.question_bytes && asker.read(&mut byte)? == 1 && byte[0] != b'\n' {
        text.push(byte[0]);
    }
    let mut reply = answer(String::from_utf8_lossy(&text).trim());
    reply.push('\n');
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
    fn what_is_no_socket_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        fs::write(&path, "mine").unwrap();
        assert!(Control::open(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
