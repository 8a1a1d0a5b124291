//! The unix socket by which a running `announce` or `follow` is asked and told: one line there, one line of JSON back.

use crate::{Error, Result};
use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
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

/// Where sockets and states are kept.
pub const DIRECTORY: &str = "/run/longfat-mobility";
/// Who takes longer to ask gets no answer: connections wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);
const QUESTION_MAX_BYTES: usize = 1024;

/// The socket of a process called `name`.
pub fn socket_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.sock"))
}

/// A listening socket; its file is removed on drop.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens, for the owner alone. A file that a dead process left is replaced.
    ///
    /// # Errors
    /// When somebody answers there already, or the file cannot be made.
    pub fn open(path: &Path) -> Result<Control> {
        let failed = |source| Error::io(format!("make the control socket '{}'", path.display()), source);
        if UnixStream::connect(path).is_ok() {
            return Err(Error::Running(path.display().to_string()));
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Control { listener, path: path.to_owned() })
    }

    /// Answers everybody who waits.
    pub fn answer(&self, mut answer: impl FnMut(&str) -> serde_json::Value) {
        while let Ok((asker, _)) = self.listener.accept() {
            // Who asks and goes away loses nothing but the answer.
            let _ = answer_one(asker, &mut answer);
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

fn answer_one(
    mut asker: UnixStream,
    answer: &mut impl FnMut(&str) -> serde_json::Value,
) -> std::io::Result<()> {
    asker.set_nonblocking(false)?;
    asker.set_read_timeout(Some(PATIENCE))?;
    asker.set_write_timeout(Some(PATIENCE))?;
    let (mut text, mut byte) = (Vec::new(), [0]);
    while text.len() < QUESTION_MAX_BYTES && asker.read(&mut byte)? == 1 && byte[0] != b'\n' {
        text.push(byte[0]);
    }
    let mut reply = answer(String::from_utf8_lossy(&text).trim()).to_string();
    reply.push('\n');
    asker.write_all(reply.as_bytes())
}

/// Asks the process that answers on `path`.
///
/// # Errors
/// When nobody answers, or the answer says that something is wrong.
pub fn ask(path: &Path, question: &str) -> Result<serde_json::Value> {
    let failed = |source: std::io::Error| {
        let mend = match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => " (does it run? give its --name)",
            ErrorKind::PermissionDenied => " (its owner and root may ask)",
            _ => "",
        };
        Error::io(format!("ask on '{}'{mend}", path.display()), source)
    };
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
    stream.write_all(format!("{question}\n").as_bytes()).map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
    match value.get("error").and_then(serde_json::Value::as_str) {
        Some(error) => Err(Error::Answered(error.to_owned())),
        None => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_and_a_second_process_of_the_name_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let control = Control::open(&path).unwrap();
        assert!(Control::open(&path).unwrap_err().to_string().contains("already"));
        let asker = {
            let path = path.clone();
            std::thread::spawn(move || (ask(&path, "good"), ask(&path, "bad")))
        };
        while !asker.is_finished() {
            control.answer(|question| match question {
                "good" => serde_json::json!({ "said": question }),
                _ => serde_json::json!({ "error": "no such question" }),
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        // The second `Control::open` above connected and asked nothing.
        let (good, bad) = asker.join().unwrap();
        assert_eq!(good.unwrap()["said"], "good");
        assert!(bad.unwrap_err().to_string().contains("no such question"));
        drop(control);
        assert!(!path.exists());
    }
}
