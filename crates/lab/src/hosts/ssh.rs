//! One SSH connection to a machine, by the host's own `ssh`: it knows the user's configuration, keys and jump hosts.

use longfat_host::mortal_command;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long it may take to connect, through jump hosts, too.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// How long the last words of one who has ended may still be on their way.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Longest that a short answer of a machine is: facts about it, a sum.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// Nothing of what a user's configuration adds to a session at a terminal.
const PLAIN: [&str; 9] =
    ["-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no"];
/// Notices a dead line within a quarter of a minute, and makes a big program small on its way.
const OPTIONS: [&str; 5] = [
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "Compression=yes",
];

/// Why a machine cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// `ssh` cannot be run.
    #[error("ssh cannot be run: {0}")]
    Start(#[from] io::Error),
    /// The machine does not connect.
    #[error("{0}")]
    Refused(String),
    /// The machine takes too long.
    #[error("no connection within {} s", CONNECT_WITHIN.as_secs())]
    TooLate,
    /// A command failed there.
    #[error("'{command}' failed: {said}")]
    Command {
        /// What was run.
        command: String,
        /// What it said.
        said: String,
    },
    /// A person stopped it.
    #[error("interrupted")]
    Interrupted,
}

/// The connection that all commands share. It ends on drop, and with the thread that opened it.
#[derive(Debug)]
pub struct Connection {
    destination: String,
    config: Option<PathBuf>,
    socket: PathBuf,
    log: PathBuf,
    master: Child,
}

impl Connection {
    /// Begins to connect; its socket and log lie in `directory` under `name`.
    pub fn begin(
        destination: &str,
        config: Option<&Path>,
        directory: &Path,
        name: &str,
    ) -> Result<Connection, SshError> {
        let socket = directory.join(name);
        let log = directory.join(format!("{name}.log"));
        let mut command = mortal_command("ssh");
        begin_line(&mut command, config);
        command.args(OPTIONS.iter().flat_map(|option| ["-o", option]));
        command.args(["-o", "ControlPersist=no", "-M", "-N", "-S"]).arg(&socket);
        command.args(["--", destination]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let master = command.spawn()?;
        let (destination, config) = (destination.to_owned(), config.map(Path::to_owned));
        Ok(Connection { destination, config, socket, log, master })
    }

    /// Waits until it stands.
    pub fn wait(&mut self, stop: &AtomicBool) -> Result<(), SshError> {
        let patience = Instant::now() + CONNECT_WITHIN;
        while !self.socket.exists() {
            if stop.load(Ordering::Relaxed) {
                return Err(SshError::Interrupted);
            }
            if let Some(status) = self.master.try_wait()? {
                let said = self.said();
                return Err(SshError::Refused(if said.is_empty() { status.to_string() } else { said }));
            }
            if Instant::now() > patience {
                return Err(SshError::TooLate);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// What `ssh` said last, but for what it only remarks.
    pub fn said(&self) -> String {
        let mut said = Vec::new();
        // A log that is not there says nothing.
        let _ = File::open(&self.log).and_then(|log| log.take(SAID_BYTES_MAX).read_to_end(&mut said));
        let said = String::from_utf8_lossy(&said);
        let is_remark = |line: &str| line.trim().is_empty() || line.starts_with("Warning: Permanently added");
        said.lines().rfind(|line| !is_remark(line)).unwrap_or_default().trim().to_owned()
    }

    /// A command that runs `script` in a plain shell there, whatever the user's own is. The script holds no single
    /// quote. It ends with the thread that starts it.
    pub fn command(&self, script: &str) -> Command {
        let mut command = mortal_command("ssh");
        begin_line(&mut command, self.config.as_deref());
        command.args(["-o", "ControlMaster=no", "-S"]).arg(&self.socket);
        command.args(["--", &self.destination, &format!("exec sh -c '{script}'")]);
        command
    }

    /// Runs `script` with this as its standard input; what it says, which is short.
    pub fn run(
        &self,
        script: &str,
        input: Stdio,
        within: Duration,
        stop: &AtomicBool,
    ) -> Result<String, SshError> {
        let mut command = self.command(script);
        let mut process = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (said, remarks) = (hear(process.stdout.take()), hear(process.stderr.take()));
        let ended = wait(&mut process, within, stop);
        // One that has ended is not there to be killed.
        let _ = process.kill();
        let status = process.wait()?;
        let heard = |from: JoinHandle<Vec<u8>>| from.join().unwrap_or_default();
        let (said, remarks) = (heard(said), heard(remarks));
        ended?;
        if [&said, &remarks].iter().any(|text| text.len() as u64 > SAID_BYTES_MAX) {
            return Err(SshError::Refused(format!("it said more than {SAID_BYTES_MAX} bytes")));
        }
        if status.success() {
            return Ok(String::from_utf8_lossy(&said).into_owned());
        }
        let said = String::from_utf8_lossy(&remarks).trim().to_owned();
        let said = if said.is_empty() { status.to_string() } else { said };
        Err(SshError::Command { command: script.to_owned(), said })
    }
}

/// All of what is said, or the beginning of what is too long. Whoever says more then has nobody to say it to.
fn hear(from: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut said = Vec::new();
        // What was heard before an error is what it said.
        let _ = from.map(|from| from.take(SAID_BYTES_MAX + 1).read_to_end(&mut said));
        said
    })
}

fn wait(process: &mut Child, within: Duration, stop: &AtomicBool) -> Result<(), SshError> {
    let patience = Instant::now() + within;
    while process.try_wait()?.is_none() {
        if stop.load(Ordering::Relaxed) {
            return Err(SshError::Interrupted);
        }
        if Instant::now() > patience {
            return Err(SshError::Refused(format!("it has not ended within {} s", within.as_secs())));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The end of what something says that may say anything: the last lines of a program there.
#[derive(Debug)]
pub struct LastWords {
    said: Arc<Mutex<Vec<u8>>>,
    listener: JoinHandle<()>,
}

impl LastWords {
    /// Listens as long as anything is said.
    pub fn of(mut from: impl Read + Send + 'static) -> LastWords {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let listener = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut chunk) {
                let mut said = heard.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend_from_slice(&chunk[..length]);
                let surplus = said.len().saturating_sub(chunk.len());
                said.drain(..surplus);
            }
        });
        LastWords { said, listener }
    }

    /// The last line: of one who has ended, what it said last; of another, what it has said so far.
    pub fn line(&self) -> String {
        let patience = Instant::now() + ENDS_WITHIN;
        while !self.listener.is_finished() && Instant::now() < patience {
            std::thread::sleep(LOOK);
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).trim().lines().last().unwrap_or_default().to_owned()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if matches!(self.master.try_wait(), Ok(None)) {
            // It is ours and not reaped yet, so the pid is no other's.
            let _ = kill(Pid::from_raw(self.master.id() as i32), Signal::SIGTERM);
            let _ = self.master.wait();
        }
    }
}

fn begin_line(command: &mut Command, config: Option<&Path>) {
    if let Some(config) = config {
        command.arg("-F").arg(config);
    }
    // A group of its own: Ctrl-C reaches us first, and we end it.
    command.args(PLAIN).process_group(0);
}
