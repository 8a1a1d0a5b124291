//! One shell for one page, in a network namespace and a directory of its own.

use super::{
    page::{Annotations, Block, Command, Content},
    shape,
};
use crate::programs;
use longfat_host::{Lease, Namespace};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

/// No command of the guide takes so long, also on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(240);
const EXPERIMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments");

pub struct Session {
    shell: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    directory: tempfile::TempDir,
    _namespace: Namespace,
    _lease: Lease,
}

impl Session {
    pub fn begin(page: &str) -> Session {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(EXPERIMENTS, directory.path().join("experiments")).unwrap();
        let lease = Lease::take(&format!("guide{}-{page}", std::process::id())).unwrap();
        let namespace = lease.namespace("g").unwrap();
        let mut command = namespace.command("bash");
        let binary = Path::new(env!("CARGO_BIN_EXE_longfat")).parent().unwrap();
        let own = directory.path().join("bin");
        sudo(&own);
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{path}", own.display(), binary.display());
        command.current_dir(directory.path()).env("PATH", path).process_group(0);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(shell.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut input = shell.stdin.take().unwrap();
        writeln!(input, "exec 2>&1").unwrap();
        Session { shell, input, lines, directory, _namespace: namespace, _lease: lease }
    }

    pub fn carry_out(&mut self, block: &Block) -> Result<(), String> {
        match &block.content {
            Content::File { name, text } => {
                fs::write(self.directory.path().join(name), text).map_err(|error| format!("{name}: {error}"))
            }
            Content::Commands(commands) => self.run_all(commands, &block.annotations),
        }
    }

    fn run_all(&mut self, commands: &[Command], annotations: &Annotations) -> Result<(), String> {
        if let Some(setup) = &annotations.setup {
            let (code, output) = self.run(setup)?;
            (code == 0).then_some(()).ok_or_else(|| format!("{setup}\n{}", output.join("\n")))?;
        }
        for (index, command) in commands.iter().enumerate() {
            let is_last = index + 1 == commands.len();
            if annotations.elsewhere {
                self.check_flags(command)?;
                continue;
            }
            let (append, exit) =
                if is_last { (annotations.append.as_str(), annotations.exit) } else { ("", 0) };
            let (code, output) = self.run(&format!("{}{append}", command.text))?;
            let failed =
                |what: String| format!("$ {}\n{what}\nprinted:\n{}", command.text, output.join("\n"));
            if code != exit {
                return Err(failed(format!("exit code {code}, not {exit}")));
            }
            shape::compare(&command.output, &output).map_err(failed)?;
        }
        annotations.until.as_ref().map_or(Ok(()), |(file, text)| self.wait_until(file, text))
    }

    /// Parses a command that cannot run here, up to its help.
    fn check_flags(&mut self, command: &Command) -> Result<(), String> {
        let text = command.text.trim_start_matches("sudo ");
        if !text.starts_with("longfat ") {
            return Ok(());
        }
        // What follows is another program's.
        let own = text.split(" -- ").next().unwrap_or(text);
        let (code, output) = self.run(&format!("{own} --help > help.log"))?;
        if code == 0 { Ok(()) } else { Err(format!("$ {text}\n{}", output.join("\n"))) }
    }

    /// Exit code and output of one command.
    fn run(&mut self, text: &str) -> Result<(i32, Vec<String>), String> {
        const END: &str = "<end of command>";
        writeln!(self.input, "{text}\necho \"{END} $?\"").map_err(|error| error.to_string())?;
        let (begun, mut output) = (Instant::now(), Vec::new());
        loop {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(left);
            let line = line.map_err(|_| format!("$ {text}\ndid not end; printed:\n{}", output.join("\n")))?;
            // What ends without a newline stands before the mark.
            if let Some((rest, code)) = line.split_once(END) {
                output.extend(Some(rest.to_owned()).filter(|rest| !rest.is_empty()));
                return Ok((code.trim().parse().unwrap_or(-1), output));
            }
            output.push(line);
        }
    }

    fn wait_until(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.directory.path().join(file);
        let begun = Instant::now();
        while !fs::read_to_string(&path).is_ok_and(|found| found.contains(text)) {
            if begun.elapsed() > PATIENCE / 8 {
                return Err(format!("'{text}' did not come in {file}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Root runs the tests; pages show who needs it.
fn sudo(directory: &Path) {
    fs::create_dir(directory).unwrap();
    programs::script(&directory.join("sudo"), "#!/bin/sh\nexec \"$@\"\n");
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the shell leads a process group of its own and has not been waited for.
        unsafe { libc::kill(-(self.shell.id() as i32), libc::SIGTERM) };
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
