//! How a running `announce` or `follow` is asked and told: one line there, one line of JSON back.

use crate::{Error, Result};
use longfat_host::control::{self, Patience};
use std::{
    io::ErrorKind,
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
    control::Control::open(path).map_err(|error| match error {
        longfat_host::Error::SocketTaken(path) => Error::Running(path),
        error => error.into(),
    })
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
