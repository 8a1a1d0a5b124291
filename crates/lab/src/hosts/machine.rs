//! One machine as the leader sees it: connected, looked at, given the program, and asked.

use super::{
    clock::{Exchange, quickest},
    ssh::{Connection, LastWords, SshError},
    table::Entry,
    talk::{Answer, Ask, Heard, SHOWN_BYTES_MAX, SIGN_EVERY, listen},
};
use longfat_host::{monotonic_us, support::Missing};
use longfat_schema::{run::FileRecord, text::shortened};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel, sync_channel},
    },
    time::{Duration, Instant},
};

/// How long an answer may take: to get ready means to load BPF programs and to start others.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// How long a machine may take to say what it is like, and to make a directory.
const LOOK_WITHIN: Duration = Duration::from_secs(60);
/// How long the program may take on its way: 100 MB at half a megabit per second.
const COPY_WITHIN: Duration = Duration::from_secs(1800);
/// How long everything may take to be set back there when we leave.
const END_WITHIN: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(50);
/// Most that a machine can be said to lack.
const LACKS_MAX: usize = 20;
/// No clock is there yet: 146 years after a machine has started.
const CLOCK_MAX_NS: u64 = 1 << 62;
/// Questions about the time, of which the quickest counts.
const CLOCK_QUESTIONS: u32 = 16;

/// Prints what there is, a fact a line. It changes nothing but a file that it makes and removes: whether a program that
/// lies in /tmp can be run is to be tried. A login shell may have said something before, without the end of its line.
const PROBE: &str = "echo; echo machine=$(uname -sm); echo user=$(id -u); \
    sudo -n true 2>/dev/null && echo sudo=yes; \
    for p in ip gzip sha256sum mktemp; do command -v $p >/dev/null && echo $p=yes; done; \
    d=$(mktemp -d /tmp/longfat.XXXXXXXXXX) && { \
    cp /bin/true $d/true 2>/dev/null && { $d/true 2>/dev/null || echo runs=no; }; rm -rf $d; }; \
    echo kernel=$(cat /proc/sys/kernel/random/boot_id /etc/machine-id 2>/dev/null); \
    echo network=$(readlink /proc/self/ns/net); \
    echo free=$(df -Pk /tmp | tail -n 1)";

/// What the line begins with that names the directory made there.
const DIRECTORY: &str = "longfat-dir ";

/// Why a machine did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A person stopped it.
    #[error("interrupted")]
    Interrupted,
    /// A program of the run failed there; the next run may well succeed.
    #[error("host '{host}': {what}")]
    Run {
        /// Which host.
        host: String,
        /// What was said.
        what: String,
    },
    /// The machine cannot be talked to, or could not do as asked.
    #[error("host '{host}' (ssh {ssh}): {what}")]
    Failed {
        /// Which host.
        host: String,
        /// Where it is.
        ssh: String,
        /// What was said.
        what: String,
    },
}

/// A machine of the table. On drop everything is set back there.
#[derive(Debug)]
pub struct Machine {
    /// The host of the experiment.
    pub host: String,
    ssh: String,
    /// What no other machine has: its kernel, since that started, and the network in it.
    identity: Option<[String; 2]>,
    talk: Option<Talk>,
    // Last: what is asked goes over it.
    connection: Connection,
}

/// A conversation with the program there.
#[derive(Debug)]
struct Talk {
    process: Child,
    input: Option<Arc<Mutex<ChildStdin>>>,
    answers: Receiver<Heard>,
    last_words: LastWords,
    /// Where the program lies there.
    directory: String,
}

/// The program on its way to a machine, packed.
#[derive(Debug)]
pub struct Copying<'a> {
    connection: &'a Connection,
    directory: &'a str,
    packed: &'a Path,
    record: &'a FileRecord,
}

impl Copying<'_> {
    /// Waits until it is there, whole.
    pub fn carry_out(&self, stop: &AtomicBool) -> Result<(), SshError> {
        let file = format!("{}/longfat", self.directory);
        let script = format!("umask 077; gzip -dc >{file} && chmod 700 {file} && echo && sha256sum {file}");
        let said = self.connection.run(&script, File::open(self.packed)?.into(), COPY_WITHIN, stop)?;
        // A login shell may have said something before.
        if said.lines().any(|line| line.split_whitespace().next() == Some(self.record.sha256.as_str())) {
            return Ok(());
        }
        Err(SshError::Refused(format!("the program that arrived there is not the one that was sent: {said}")))
    }
}

impl Machine {
    /// Begins to connect.
    pub fn begin(
        host: &str,
        entry: &Entry,
        config: Option<&Path>,
        directory: &Path,
    ) -> Result<Machine, MachineError> {
        let begun = Connection::begin(&entry.ssh, config, directory, host);
        let (host, ssh) = (host.to_owned(), entry.ssh.clone());
        match begun {
            Ok(connection) => Ok(Machine { host, ssh, identity: None, talk: None, connection }),
            Err(error) => Err(MachineError::Failed { host, ssh, what: error.to_string() }),
        }
    }

    /// Waits for the connection and looks at what is there: what is missing for a program of so many bytes, and as much
    /// again of records. Nothing is changed there.
    pub fn look(&mut self, needed_bytes: u64, stop: &AtomicBool) -> Result<Vec<Missing>, MachineError> {
        let reached = self
            .connection
            .wait(stop)
            .and_then(|()| self.connection.run(PROBE, Stdio::null(), LOOK_WITHIN, stop));
        let said = match reached {
            Ok(said) => said,
            Err(SshError::Interrupted) => return Err(MachineError::Interrupted),
            Err(error) => {
                let mend = format!("'ssh {}' must work without a question", self.ssh);
                return Ok(vec![Missing::new(self.name("a connection"), shown(&error.to_string()), mend)]);
            }
        };
        self.identity = identity(&said);
        Ok(missing(&said, needed_bytes, |what| self.name(what)))
    }

    /// What is of this machine, in words that may be its own.
    pub fn name(&self, what: &str) -> String {
        format!("host '{}' (ssh {}): {}", self.host, self.ssh, shown(what))
    }

    /// Makes a private directory there, where a shell waits for the program. Whatever becomes of us, the program sets
    /// back what it set and removes the directory; when it was killed, the shell that started it has that done.
    pub fn make_room(&mut self, stop: &AtomicBool) -> Result<(), MachineError> {
        self.wait_for_directory(stop).map_err(|error| self.of_ssh(error))
    }

    /// The program, packed by gzip, on its way into that directory. It may be carried out in any thread.
    pub fn copying<'a>(
        &'a self,
        packed: &'a Path,
        record: &'a FileRecord,
    ) -> Result<Copying<'a>, MachineError> {
        let talk = self.talk.as_ref().ok_or_else(|| self.failed("it was not entered"))?;
        Ok(Copying { connection: &self.connection, directory: &talk.directory, packed, record })
    }

    /// Starts the program that was copied.
    pub fn enter(&mut self, stop: &AtomicBool) -> Result<(), MachineError> {
        self.write(b"go\n").map_err(|()| self.failed(self.last_words()))?;
        let input = self.talk.as_ref().and_then(|talk| talk.input.as_ref());
        input.into_iter().for_each(|input| keep_alive(Arc::downgrade(input)));
        match self.hear(stop)?.0 {
            Answer::Done => Ok(()),
            other => Err(self.strange(&other)),
        }
    }

    /// Tells the program there to set everything back and to end; dropping the machine waits for that.
    pub fn dismiss(&mut self) {
        if let Some(talk) = &mut self.talk {
            talk.input = None;
        }
    }

    fn wait_for_directory(&mut self, stop: &AtomicBool) -> Result<(), SshError> {
        let script = format!(
            "umask 077; s=; [ $(id -u) = 0 ] || s=\"sudo -n\"; d=$(mktemp -d /tmp/longfat.XXXXXXXXXX) || exit 1; \
             trap \"$s rm -rf $d\" EXIT; trap \"exit 1\" HUP INT TERM; echo; echo \"{DIRECTORY}$d\"; read -r go || exit 1; \
             $s $d/longfat lab agent $d --host {0}; [ -e $d/longfat ] && $s $d/longfat lab agent $d --host {0} --restore",
            self.host
        );
        let mut command = self.connection.command(&script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(input), Some(output), Some(said)) = pipes else {
            return Err(SshError::Refused("no pipes".to_owned()));
        };
        let (line, answers) = listen_after_directory(BufReader::new(output));
        let (input, last_words) = (Some(Arc::new(Mutex::new(input))), LastWords::of(said));
        let talk = self.talk.insert(Talk { process, input, answers, last_words, directory: String::new() });
        let directory = first(&line, stop)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        if !directory.starts_with('/') || !directory.bytes().all(plain) {
            return Err(SshError::Refused(format!("no directory was made in /tmp there: {}", self.said())));
        }
        talk.directory = directory;
        Ok(())
    }

    /// What went wrong on the way to it.
    pub fn of_ssh(&self, error: SshError) -> MachineError {
        match error {
            SshError::Interrupted => MachineError::Interrupted,
            error => self.failed(error.to_string()),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<(), ()> {
        let input = self.talk.as_ref().and_then(|talk| talk.input.as_ref()).ok_or(())?;
        let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
        input.write_all(bytes).and_then(|()| input.flush()).map_err(drop)
    }

    /// Asks; the answer is heard by [`Machine::hear`].
    pub fn ask(&mut self, ask: &Ask) -> Result<(), MachineError> {
        let line = serde_json::to_string(ask).map_err(|error| self.failed(error.to_string()))?;
        self.write(format!("{line}\n").as_bytes()).map_err(|()| self.failed(self.last_words()))
    }

    /// The answer, and the file that came with it.
    pub fn hear(&mut self, stop: &AtomicBool) -> Result<Heard, MachineError> {
        let patience = Instant::now() + ANSWER_WITHIN;
        let Some(talk) = &self.talk else { return Err(self.failed("it was not entered")) };
        loop {
            match talk.answers.recv_timeout(LOOK) {
                Ok((Answer::RunFailed(what), _)) => {
                    return Err(MachineError::Run { host: self.host.clone(), what: shown(&what) });
                }
                Ok((Answer::Failed(what), _)) => return Err(self.failed(what)),
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failed(self.last_words())),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                    return Err(MachineError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > patience => {
                    return Err(self.failed(format!("no answer within {} s", ANSWER_WITHIN.as_secs())));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Asks and hears.
    pub fn tell(&mut self, ask: &Ask, stop: &AtomicBool) -> Result<Heard, MachineError> {
        self.ask(ask)?;
        self.hear(stop)
    }

    /// What time it is there.
    pub fn clock(&mut self, stop: &AtomicBool) -> Result<Exchange, MachineError> {
        let mut exchanges = Vec::new();
        for _ in 0..CLOCK_QUESTIONS {
            let asked_us = monotonic_us();
            let (answer, _) = self.tell(&Ask::Clock, stop)?;
            let heard_us = monotonic_us();
            match answer {
                Answer::Clock { monotonic_ns } if monotonic_ns <= CLOCK_MAX_NS => {
                    let answered_us = (monotonic_ns / 1000) as i64;
                    exchanges.push(Exchange { asked_us, answered_us, heard_us });
                }
                other => return Err(self.strange(&other)),
            }
        }
        quickest(exchanges).ok_or_else(|| self.failed("it does not say what time it is"))
    }

    /// What it lacks for its part.
    pub fn lacks(
        &mut self,
        plans: &[crate::plan::Plan],
        stop: &AtomicBool,
    ) -> Result<Vec<Missing>, MachineError> {
        match self.tell(&Ask::Check(plans.to_vec()), stop)?.0 {
            Answer::Lacks(missing) => Ok(missing
                .into_iter()
                .take(LACKS_MAX)
                .map(|thing| Missing::new(self.name(&thing.what), shown(&thing.why), shown(&thing.mend)))
                .collect()),
            other => Err(self.strange(&other)),
        }
    }

    /// An error of this machine, in words that may be its own.
    pub fn failed(&self, what: impl AsRef<str>) -> MachineError {
        MachineError::Failed { host: self.host.clone(), ssh: self.ssh.clone(), what: shown(what.as_ref()) }
    }

    /// An answer that is none to what was asked.
    pub fn strange(&self, answer: &Answer) -> MachineError {
        self.failed(format!("it answered {answer:?}"))
    }

    /// Why nobody answers any more: what was said there, or by ssh.
    fn last_words(&self) -> String {
        let said = self.said();
        if said.is_empty() { "it is gone".to_owned() } else { format!("it is gone: {said}") }
    }

    fn said(&self) -> String {
        let of_program = self.talk.as_ref().map(|talk| talk.last_words.line()).unwrap_or_default();
        if of_program.is_empty() { self.connection.said() } else { of_program }
    }
}

/// What a machine says may be of any length.
fn shown(said: &str) -> String {
    shortened(said, SHOWN_BYTES_MAX).into_owned()
}

impl Drop for Talk {
    fn drop(&mut self) {
        // The end of its input tells the program there to set everything back.
        self.input = None;
        let patience = Instant::now() + END_WITHIN;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > patience {
                let _ = self.process.kill();
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// One of the probe's facts.
fn fact<'a>(said: &'a str, key: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

/// Which machine the probe's facts are of; none where they do not tell.
fn identity(said: &str) -> Option<[String; 2]> {
    let known = |key| fact(said, key).filter(|fact| !fact.is_empty()).map(str::to_owned);
    Some([known("kernel")?, known("network")?])
}

/// Hosts of the table that are one machine, where each needs its own.
pub fn shared(machines: &[Machine]) -> Vec<Missing> {
    let mut first: BTreeMap<&[String; 2], &Machine> = BTreeMap::new();
    let mut found = Vec::new();
    for machine in machines {
        let Some(identity) = &machine.identity else { continue };
        let Some(other) = first.get(identity) else {
            first.insert(identity, machine);
            continue;
        };
        let what = format!("hosts '{}' and '{}'", other.host, machine.host);
        let why = format!("they are the same machine (ssh {} and {})", other.ssh, machine.ssh);
        found.push(Missing::new(what, why, "give each a machine of its own in the table"));
    }
    found
}

/// What the probe's facts say is missing.
fn missing(said: &str, needed_bytes: u64, name: impl Fn(&str) -> String) -> Vec<Missing> {
    let fact = |key: &str| fact(said, key);
    let mut found = Vec::new();
    let mut lacks = |what: &str, why: String, mend: &str| found.push(Missing::new(name(what), why, mend));
    let ours = format!("Linux {}", std::env::consts::ARCH);
    let machine = fact("machine").unwrap_or_default();
    if machine != ours {
        let mend = "longfat copies itself there, so both must be of one kind";
        lacks(&ours, format!("it is '{machine}'"), mend);
    }
    if fact("user") != Some("0") && fact("sudo").is_none() {
        let why = "network parameters need root; this user is not, and 'sudo -n true' fails".to_owned();
        lacks("rights", why, "connect as root, or allow sudo without a password");
    }
    let needed = [("ip", "iproute2"), ("gzip", "gzip"), ("sha256sum", "coreutils"), ("mktemp", "coreutils")];
    for (program, package) in needed {
        if fact(program).is_none() {
            let why = "it is not on the PATH there".to_owned();
            lacks(&format!("the program '{program}'"), why, &format!("install the package {package}"));
        }
    }
    if fact("runs") == Some("no") {
        let why = "they cannot be run there: it is mounted noexec".to_owned();
        lacks("programs in /tmp", why, "mount it exec ('mount -o remount,exec /tmp')");
    }
    let free = fact("free").and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    let free = free.unwrap_or(0).saturating_mul(1024);
    if free < needed_bytes {
        let why = format!("{} MB are free in /tmp", free / 1_000_000);
        lacks(&format!("{} MB in /tmp", needed_bytes.div_ceil(1_000_000)), why, "make room there");
    }
    found
}

/// Empty lines now and then, for as long as anybody talks.
fn keep_alive(input: Weak<Mutex<ChildStdin>>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(SIGN_EVERY);
            let Some(input) = input.upgrade() else { return };
            let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
            if writeln!(input).and_then(|()| input.flush()).is_err() {
                return;
            }
        }
    });
}

/// The directory that was made, and the answers that come after it.
fn listen_after_directory(mut output: BufReader<ChildStdout>) -> (Receiver<String>, Receiver<Heard>) {
    let ((line_to, line), (to, answers)) = (channel(), sync_channel(0));
    std::thread::spawn(move || {
        let is_wanted = line_to.send(directory_said(&mut output)).is_ok();
        if is_wanted {
            listen(output, &to);
        }
    });
    (line, answers)
}

/// The directory that is named, after whatever a login shell says; empty when none is.
fn directory_said(output: &mut impl BufRead) -> String {
    const BYTES_MAX: u64 = 64 << 10;
    let mut output = output.take(BYTES_MAX);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        // What is no text is no directory either.
        let said = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix(DIRECTORY));
        if let Some(directory) = said {
            return directory.trim().to_owned();
        }
        line.clear();
    }
    String::new()
}

fn first(line: &Receiver<String>, stop: &AtomicBool) -> Result<String, SshError> {
    let patience = Instant::now() + LOOK_WITHIN;
    loop {
        match line.recv_timeout(LOOK) {
            Ok(line) => return Ok(line),
            Err(_) if stop.load(Ordering::Relaxed) => return Err(SshError::Interrupted),
            Err(RecvTimeoutError::Disconnected) => return Ok(String::new()),
            Err(RecvTimeoutError::Timeout) if Instant::now() > patience => return Err(SshError::TooLate),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> String {
        format!(
            "machine=Linux {}\nuser=0\nip=yes\ngzip=yes\nsha256sum=yes\nmktemp=yes\nfree=/dev/vda1 100 50 2000 5% /tmp\n",
            std::env::consts::ARCH
        )
    }

    fn lacks(said: &str, needed_bytes: u64) -> Vec<String> {
        missing(said, needed_bytes, str::to_owned).into_iter().map(|thing| thing.what).collect()
    }

    #[test]
    fn a_machine_of_another_kind_without_rights_programs_or_room_is_refused() {
        assert_eq!(lacks(&facts(), 2_048_000), Vec::<String>::new());
        assert_eq!(lacks(&facts(), 2_048_001), ["3 MB in /tmp"]);
        assert_eq!(lacks(&facts().replace("Linux ", "Linux un"), 0).len(), 1);
        assert_eq!(lacks(&facts().replace("user=0", "user=7"), 0), ["rights"]);
        assert_eq!(lacks(&facts().replace("user=0", "user=7\nsudo=yes"), 0), Vec::<String>::new());
        assert_eq!(lacks(&facts().replace("\nip=yes\n", "\n"), 0), ["the program 'ip'"]);
        assert_eq!(lacks(&format!("{}runs=no\n", facts()), 0), ["programs in /tmp"]);
        assert_eq!(lacks(&format!("Welcome\n\n{}", facts()), 0), Vec::<String>::new());
        assert_eq!(lacks("", 1).len(), 7);
    }

    #[test]
    fn a_machine_is_known_by_its_kernel_and_its_network() {
        let of = |said: &str| identity(said);
        let first = of("kernel=1 2\nnetwork=net:[1]\n");
        assert!(first.is_some() && first == of("kernel=1 2\nnetwork=net:[1]\nfree=1\n"));
        assert_ne!(first, of("kernel=1 2\nnetwork=net:[2]\n"), "a container of it");
        assert_eq!([of("kernel=\nnetwork=net:[1]\n"), of("kernel=1\n")], [None, None], "not known");
    }

    #[test]
    fn whatever_a_login_shell_says_before_the_directory_is_found() {
        let of = |said: &[u8]| directory_said(&mut &said[..]);
        assert_eq!(of(b"longfat-dir /tmp/longfat.x\n{}"), "/tmp/longfat.x");
        assert_eq!(of(b"Welcome to \xff\n\nlongfat-dir /tmp/longfat.x\n"), "/tmp/longfat.x");
        assert_eq!(of(b"Welcome\n"), "");
        assert_eq!(of(&[b'x'; 1 << 20]), "", "a bound on what is read");
        let mut rest = &b"longfat-dir /tmp/x\n{\"answer\":1}\n"[..];
        directory_said(&mut rest);
        assert_eq!(rest, b"{\"answer\":1}\n", "answers follow it");
    }
}
