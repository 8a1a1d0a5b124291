//! The host's programs: nft and ip, in the calling thread's network namespace.

use longfat_host::{Error, Result, run_command};
use std::{
    ffi::CString,
    io::Write,
    process::{Command, Stdio},
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
    command.args(args);
    run_command(command)
}

/// Runs commands of `ip` for a family, one per line, up to the first that fails.
pub(super) fn ip_all(family: &str, commands: &str) -> Result<()> {
    feed("ip", &[family, "-batch", "-"], commands).map(drop)
}

/// Runs `ip ARGS` where failure means "there is none": what it printed.
pub(super) fn ip_quiet(args: &[&str]) -> String {
    ip(args).unwrap_or_default()
}

/// Whether the calling thread's network namespace has an interface of that name.
pub(super) fn interface_exists(name: &str) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    // SAFETY: `name` is a terminated string.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

fn feed(program: &str, args: &[&str], input: &str) -> Result<String> {
    let failed = |stderr: String| Error::Command { command: format!("{program} {}", args.join(" ")), stderr };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("cannot be started: {error}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it has read everything says why on its standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
