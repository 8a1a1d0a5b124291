//! How a running `announce` or `follow` is asked and told: one line there, one line of JSON back.

use crate::{Error, Result};
use longfat_host::{
    control::{self, Patience},
    own::OwnDirectory,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::{
        fs::{FileTypeExt as _, OpenOptionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// Where sockets and states are kept.
pub const DIRECTORY: &str = "/run/longfat-mobility";
/// Short: connections wait while somebody takes his time to ask.
const PATIENCE: Patience = Patience { time: Duration::from_millis(100), question_bytes: 1024 };
/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The socket of a process called `name`.
pub fn socket_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.sock"))
}

pub(crate) fn open(path: &Path) -> Result<control::Control> {
    let _making = in_directory(path)
        .map(tidy)
        .transpose()
        .map_err(|source| Error::io(format!("make room for sockets in '{DIRECTORY}'"), source))?;
    control::Control::open(path).map_err(|error| match error {
        longfat_host::Error::SocketTaken(path) => Error::Running(path),
        error => error.into(),
    })
}

/// The directory of sockets, where this is one of them: elsewhere nothing is tidied up, sockets of others may be there.
fn in_directory(socket: &Path) -> Option<&Path> {
    socket.parent().filter(|parent| *parent == Path::new(DIRECTORY))
}

/// Removes the sockets that processes which were killed have left in a directory: nobody listens on them. As long as
/// what it gives is held, nobody else tidies up: a socket on which nobody listens yet looks the same.
fn tidy(directory: &Path) -> io::Result<File> {
    // What lies there is removed and believed: nobody else may have put it there.
    let own = OwnDirectory::make(directory).map_err(io::Error::other)?;
    let directory = own.path();
    // For the owner alone: who can open a file can lock it.
    let lock = directory.join("sockets.lock");
    let held = OpenOptions::new().create(true).append(true).mode(0o600).open(lock)?;
    held.lock()?;
    for entry in fs::read_dir(directory)?.flatten() {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let path = entry.path();
        let deserted = || UnixStream::connect(&path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
        if is_socket && path.extension().is_some_and(|end| end == "sock") && deserted() {
            fs::remove_file(&path)?;
        }
    }
    Ok(held)
}

/// Answers one of those who wait; the loop comes back for the others.
pub(crate) fn answer(control: &control::Control, mut answer: impl FnMut(&str) -> serde_json::Value) {
    control.answer(PATIENCE, |question| answer(question).to_string());
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
    // Who may ask may not always tidy up.
    drop(in_directory(path).map(tidy));
    let text = control::ask(path, question, ANSWER_WITHIN).map_err(failed)?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
    match value.get("error").and_then(serde_json::Value::as_str) {
        Some(error) => Err(Error::Answered(error.to_owned())),
        None => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    #[test]
    fn only_sockets_on_which_nobody_listens_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let _live = control::Control::open(&path("live.sock")).unwrap();
        let _datagrams = UnixDatagram::bind(path("datagrams.sock")).unwrap();
        fs::write(path("file.sock"), "").unwrap();
        // Dropping one leaves its file, as being killed does.
        for name in ["dead.sock", "another.sock", "dead.of-others"] {
            drop(UnixListener::bind(path(name)).unwrap());
        }
        drop(tidy(directory.path()).unwrap());
        let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        left.sort_unstable();
        assert_eq!(left, ["datagrams.sock", "dead.of-others", "file.sock", "live.sock", "sockets.lock"]);
    }

    #[test]
    fn one_tidies_up_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let held = tidy(directory.path()).unwrap();
        let path = directory.path().to_owned();
        let other = std::thread::spawn(move || tidy(&path).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        // A socket between bind() and listen(): deserted by its looks.
        drop(UnixListener::bind(directory.path().join("young.sock")).unwrap());
        assert!(!other.is_finished() && directory.path().join("young.sock").exists());
        fs::remove_file(directory.path().join("young.sock")).unwrap();
        drop(held);
        other.join().unwrap().unwrap();
    }

    #[test]
    fn nothing_is_tidied_up_where_others_have_their_sockets() {
        assert_eq!(in_directory(&socket_of("follow")), Some(Path::new(DIRECTORY)));
        assert_eq!(in_directory(Path::new("/tmp/follow.sock")), None);
    }

    #[test]
    fn an_answer_that_says_what_is_wrong_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let control = open(&path).unwrap();
        assert!(matches!(open(&path), Err(Error::Running(_))));
        let asker = {
            let path = path.clone();
            std::thread::spawn(move || (ask(&path, "good"), ask(&path, "bad")))
        };
        while !asker.is_finished() {
            answer(&control, |question| match question {
                "good" => serde_json::json!({ "said": question }),
                _ => serde_json::json!({ "error": "no such question" }),
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        let (good, bad) = asker.join().unwrap();
        assert_eq!(good.unwrap()["said"], "good");
        assert!(bad.unwrap_err().to_string().contains("no such question"));
    }
}
