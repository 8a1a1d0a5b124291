//! A program that is captured: it begins once the capture has, and the capture ends soon after it.

use anyhow::Context as _;
use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

/// How long what it left on its way may take: the ends of its connections.
const SETTLE: Duration = Duration::from_millis(200);

/// A program that was started.
pub struct Program {
    name: String,
    child: Child,
    /// How it ended, and when that was seen.
    ended: Option<(ExitStatus, Instant)>,
}

impl Program {
    /// Starts it in the calling thread's network namespace; nothing where there is none.
    pub fn start(words: &[OsString]) -> anyhow::Result<Option<Program>> {
        let Some((name, words)) = words.split_first() else { return Ok(None) };
        let shown = name.to_string_lossy().into_owned();
        let started = Command::new(name).args(words).spawn();
        let child = started.with_context(|| format!("start '{shown}'; is it on PATH, and a program?"))?;
        Ok(Some(Program { name: shown, child, ended: None }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has ended, and what it left on its way has had its time.
    pub fn is_over(&mut self) -> bool {
        if self.ended.is_none() {
            // A child that cannot be waited for is not there any more.
            let status = self.child.try_wait().unwrap_or_else(|_| Some(ExitStatus::default()));
            self.ended = status.map(|status| (status, Instant::now()));
        }
        self.ended.is_some_and(|(_, since)| since.elapsed() >= SETTLE)
    }

    /// Exit code of the program, or 128 and the signal that ended it, as shells say it; nothing while it goes on.
    pub fn exit_code(&self) -> Option<i32> {
        let (status, _) = self.ended?;
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }

    /// What became of it, in a line.
    pub fn said(&self) -> String {
        match self.exit_code() {
            Some(code) => format!("'{}' ended with exit code {code}", self.name),
            None => format!("'{}' goes on", self.name),
        }
    }
}
