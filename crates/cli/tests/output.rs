//! What becomes of a command whose output nobody reads.

use std::{
    ffi::CStr,
    fs::File,
    io::Write,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    process::{Command, Stdio},
};

const EXPERIMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/conversion.toml");

fn longfat(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A terminal that was closed.
fn hung_up() -> Stdio {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let master = options.open("/dev/ptmx").unwrap();
    let mut name = [0; 64];
    // SAFETY: the descriptor is open, and the name has room for what is said to fit.
    let named = unsafe {
        libc::unlockpt(master.as_raw_fd()) == 0
            && libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()) == 0
    };
    assert!(named);
    // SAFETY: the name ends with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let terminal = options.open(name.to_str().unwrap()).unwrap();
    drop(master);
    assert_eq!((&terminal).write(b"?").unwrap_err().raw_os_error(), Some(libc::EIO));
    terminal.into()
}

/// A disk without room.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn a_reader_that_has_gone_changes_no_exit_code() {
    let check = ["lab", "check", EXPERIMENT];
    let with = |args: &[&str]| longfat(args).status().unwrap().code();
    assert_eq!(longfat(&check).stdout(closed()).status().unwrap().code(), with(&check));
    assert_eq!(longfat(&check).stdout(hung_up()).status().unwrap().code(), with(&check));
    assert_eq!(with(&check), Some(0));
    let wrong = ["lab", "check", "/nonexistent"];
    assert_eq!(with(&wrong), Some(2));
    assert_eq!(longfat(&wrong).stderr(closed()).status().unwrap().code(), Some(2));
    assert_eq!(longfat(&wrong).stderr(full()).status().unwrap().code(), Some(2));
}

#[test]
fn a_disk_without_room_is_told_and_is_no_success() {
    let output =
        longfat(&["lab", "check", EXPERIMENT]).stdout(full()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("standard output"), "{said}");
}

#[test]
fn help_and_version_are_told_or_are_no_success() {
    for asked in
        [&["--help"][..], &["--version"], &["transfer", "--help"], &["help", "lab", "run"], &["relay", "-h"]]
    {
        let ended = |to: Stdio| longfat(asked).stdout(to).stderr(Stdio::piped()).output().unwrap();
        let lost = ended(full());
        let said = String::from_utf8_lossy(&lost.stderr).into_owned();
        assert_eq!(lost.status.code(), Some(2), "{asked:?}: {said}");
        assert!(said.contains("standard output") && said.contains("No space left"), "{asked:?}: {said}");
        for gone in [closed(), hung_up()] {
            let output = ended(gone);
            assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{asked:?}: {output:?}");
        }
    }
}
