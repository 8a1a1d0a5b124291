//! The host's programs: nft and ip, in the calling thread's network namespace. Each is a process group of its own,
//! which Ctrl-C in a terminal does not reach: whoever is impatient with a cleanup would end it half-way.

use longfat_host::{Error, Result, run_command};
use std::{
    ffi::CString,
    io::Write,
    os::unix::process::CommandExt,
    process::{Command, Output, Stdio},
};

/// Applies an nft program as one transaction; what it printed.
pub(super) fn nft(program: &str) -> Result<String> {
    feed("nft", &["-f", "-"], program)
}

/// Has nft and the kernel check a program without applying it.
pub(super) fn nft_check(program: &str) -> Result<String> {
    feed("nft", &["-c", "-f", "-"], program)
}

/// Runs `ip ARGS`.
pub(super) fn ip(args: &[&str]) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(args).process_group(0);
    run_command(command)
}

/// Runs commands of `ip` for a family, one per line, up to the first that fails.
pub(super) fn ip_all(family: &str, commands: &str) -> Result<()> {
    feed("ip", &[family, "-batch", "-"], commands).map(drop)
}

/// Runs all of them, where failure of one means "there is none".
///
/// # Errors
/// Not all of them were run.
pub(super) fn ip_try(family: &str, commands: &str) -> Result<()> {
    if commands.is_empty() {
        return Ok(());
    }
    let args = [family, "-force", "-batch", "-"];
    let output = feed_any("ip", &args, commands)?;
    match output.status.code() {
        Some(_) => Ok(()),
        None => Err(failed("ip", &args, output.status.to_string())),
    }
}

/// What the commands of `ip` printed.
pub(super) fn ip_shown(family: &str, commands: &str) -> String {
    let output = feed_any("ip", &[family, "-force", "-batch", "-"], commands);
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Whether the calling thread's network namespace has an interface of that name.
pub(super) fn interface_exists(name: &str) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    // SAFETY: `name` is a terminated string.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

fn feed(program: &str, args: &[&str], input: &str) -> Result<String> {
    let output = feed_any(program, args, input)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(program, args, String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Whether it succeeded or not.
fn feed_any(program: &str, args: &[&str], input: &str) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    let mut child =
        command.spawn().map_err(|error| failed(program, args, format!("cannot be started: {error}")))?;
    std::thread::scope(|scope| {
        // Beside the reading: a pipe holds less than what many commands may answer.
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ends before it has read everything says why on its standard error.
            scope.spawn(move || drop(stdin.write_all(input.as_bytes())));
        }
        child.wait_with_output().map_err(|error| failed(program, args, error.to_string()))
    })
}

fn failed(program: &str, args: &[&str], stderr: String) -> Error {
    Error::Command { command: format!("{program} {}", args.join(" ")), stderr }
}
