//! The measuring programs of a run: started, waited for, ended, and heard when they fail.

use crate::process::Role;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child as Process, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

/// How long a program may take until it says that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// How long senders and receivers may take to agree: some twenty round trips, and those of what is lost.
pub const AGREE_WITHIN: Duration = Duration::from_secs(90);
/// How long a look at a program that is not ready takes.
const LOOK: Duration = Duration::from_millis(50);
/// How long a program may take to end when asked to.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// How much of what a program said last is quoted when it fails.
const QUOTE_LINES: usize = 5;

/// One program. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    /// What it is there for.
    pub role: Role,
    process: Process,
    ready: Receiver<()>,
    is_ready: bool,
    started: Instant,
    input: Option<ChildStdin>,
    log: PathBuf,
    pub(crate) ended: Option<ExitStatus>,
}

/// Why a program did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The program could not be started.
    #[error("{name} cannot be started: {source}")]
    Start {
        /// Name of the program.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program ended before its time, or said that it failed.
    #[error("{name} ended early ({status}){}", quoted(said))]
    Ended {
        /// Name of the program.
        name: String,
        /// How the program ended.
        status: String,
        /// Last words of the program.
        said: String,
    },
    /// The program ran, and could not do what it was there for.
    #[error("{name} {why}")]
    Idle {
        /// Name of the program.
        name: String,
        /// What it lacked, and the mend.
        why: String,
    },
    /// The program does not become ready.
    #[error("{name} was not ready within {} s{}", within.as_secs(), quoted(said))]
    NotReady {
        /// Name of the program.
        name: String,
        /// How long it was waited for.
        within: Duration,
        /// Last words of the program.
        said: String,
    },
}

fn quoted(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

impl Child {
    /// Starts a program that dies with the calling thread; what it says goes to the file `log`.
    ///
    /// It is its own process group: Ctrl-C reaches us first, and we end it.
    pub fn start(mut command: Command, role: Role, log: &Path) -> Result<Child, ChildError> {
        let error = |source| ChildError::Start { name: role.to_string(), source };
        let mut file = File::create(log).map_err(error)?;
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        writeln!(file, "$ {}", line.join(" ")).map_err(error)?;
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(file.try_clone().map_err(error)?);
        let mut process = command.spawn().map_err(error)?;
        let ready = listen(process.stdout.take(), file);
        let input = process.stdin.take();
        Ok(Child {
            role,
            process,
            ready,
            is_ready: false,
            started: Instant::now(),
            input,
            log: log.to_owned(),
            ended: None,
        })
    }

    /// Waits for the line `ready …`.
    pub fn wait_ready(&mut self) -> Result<(), ChildError> {
        while !self.look_ready(LOOK, READY_WITHIN)? {}
        Ok(())
    }

    /// Whether it has said that line, or does before `wait` is over. An error when it has not `within` its start.
    pub fn look_ready(&mut self, wait: Duration, within: Duration) -> Result<bool, ChildError> {
        match self.ready.recv_timeout(if self.is_ready { Duration::ZERO } else { wait }) {
            Ok(()) => self.is_ready = true,
            _ if self.is_ready => {}
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended_early()),
            Err(RecvTimeoutError::Timeout) if self.started.elapsed() > within => {
                return Err(ChildError::NotReady {
                    name: self.role.to_string(),
                    within,
                    said: self.last_words(),
                });
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        Ok(self.is_ready)
    }

    fn ended_early(&mut self) -> ChildError {
        let status = self.process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        ChildError::Ended { name: self.role.to_string(), status, said: self.last_words() }
    }

    /// Writes a line to its standard input. One that has ended hears nothing: that shows elsewhere.
    pub fn say(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.process.try_wait().ok().flatten();
        }
        self.ended
    }

    /// An error when it has ended in any way but well.
    pub fn check(&mut self) -> Result<(), ChildError> {
        match self.ended() {
            Some(status) if !status.success() => Err(self.early(status)),
            _ => Ok(()),
        }
    }

    /// An error when it has ended at all: it should be serving.
    pub fn check_alive(&mut self) -> Result<(), ChildError> {
        self.ended().map_or(Ok(()), |status| Err(self.early(status)))
    }

    /// Asks it to end (SIGTERM), waits, and at last kills it.
    pub fn stop(&mut self) -> Result<(), ChildError> {
        if self.ended().is_none() {
            self.signal(Signal::SIGTERM);
        }
        let patience = Instant::now() + STOP_WITHIN;
        while self.ended().is_none() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.ended().is_none() {
            self.signal(Signal::SIGKILL);
            self.ended = self.process.wait().ok();
        }
        self.check()
    }

    /// Sends it SIGUSR1, unless it has ended.
    pub fn notify(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGUSR1);
        }
    }

    fn signal(&self, signal: Signal) {
        // A process that is gone needs no signal; it is ours and not reaped yet, so the pid is no other's.
        let _ = kill(Pid::from_raw(self.process.id() as i32), signal);
    }

    fn early(&self, status: ExitStatus) -> ChildError {
        ChildError::Ended { name: self.role.to_string(), status: status.to_string(), said: self.last_words() }
    }

    fn last_words(&self) -> String {
        last_lines(&self.log).unwrap_or_default()
    }
}

/// First sender that has not agreed with its receiver yet. All are looked at: one that has
/// ended is an error at once, whoever else is not ready, and one that has not agreed `within` its start, too.
pub fn disagreed(senders: &mut [Child], within: Duration) -> Result<Option<String>, ChildError> {
    let mut first = None;
    for sender in senders {
        if !sender.look_ready(Duration::ZERO, within)? {
            first.get_or_insert_with(|| sender.role.to_string());
        }
    }
    Ok(first)
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGKILL);
            // Reaped here, so that its namespace has no process when it is deleted.
            let _ = self.process.wait();
        }
    }
}

/// Copies standard output to the log, and tells when a line begins with `ready`.
fn listen(output: Option<ChildStdout>, mut log: File) -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = output.map(|output| BufReader::new(output).lines());
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            // A log that cannot be written must not block the program that writes it.
            let _ = writeln!(log, "{line}");
            if line.starts_with("ready") {
                let _ = sender.send(());
            }
        }
    });
    receiver
}

/// What a program said last, on one line.
fn last_lines(log: &Path) -> io::Result<String> {
    const TAIL_BYTES: u64 = 4096;
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(last_words(&String::from_utf8_lossy(&bytes)))
}

/// The last lines of a log, without its first (the command): those that say what failed, where there are such. A
/// program that failed still shows the table of what it measured.
fn last_words(log: &str) -> String {
    let said = || log.lines().map(str::trim).filter(|line| !line.starts_with("$ ") && !line.is_empty());
    let failures: Vec<_> = said().filter(|line| line.starts_with("longfat: ")).collect();
    let quoted = if failures.is_empty() { said().collect() } else { failures };
    quoted[quoted.len().saturating_sub(QUOTE_LINES)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A program that is not ready.
    fn sender(name: &str, program: &[&str], ready: Receiver<()>) -> Child {
        Child {
            role: Role::Sender(name.to_owned()),
            process: Command::new(program[0]).args(&program[1..]).spawn().unwrap(),
            ready,
            is_ready: false,
            started: Instant::now(),
            input: None,
            log: PathBuf::from("/dev/null"),
            ended: None,
        }
    }

    #[test]
    fn a_sender_that_died_is_seen_while_one_before_it_still_agrees() {
        let (_open, waits) = channel();
        let mut senders = vec![sender("first", &["sleep", "60"], waits)];
        assert_eq!(disagreed(&mut senders, AGREE_WITHIN).unwrap().as_deref(), Some("sender of flow 'first'"));
        senders.push(sender("second", &["false"], channel().1));
        let said = disagreed(&mut senders, AGREE_WITHIN).unwrap_err().to_string();
        assert!(said.starts_with("sender of flow 'second' ended early"), "{said}");
    }

    #[test]
    fn of_a_program_that_failed_its_reason_is_quoted_not_the_table_behind_it() {
        let log = "$ longfat transfer send\nready\nlongfat: stream 0: reset\n──\n0   24 Mbit/s\n──\n";
        assert_eq!(last_words(log), "longfat: stream 0: reset");
        assert_eq!(last_words("$ longfat x\n one \n\ntwo\n"), "one | two");
    }
}
