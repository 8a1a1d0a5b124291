//! Files below a directory that others may have made: regular ones alone, opened without waiting, and as much of them
//! as is bounded.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Opens a file for reading. What is no regular file is refused: an open of a FIFO waits for a writer, and a read of a
/// device may have no end.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // The library adds O_CLOEXEC.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is no regular file; remove it")),
    }
}

/// Longest manifest or plan that is taken into memory.
#[cfg(feature = "store")]
pub(crate) const JSON_BYTES_MAX: u64 = 1 << 26;

/// Reads a whole file of JSON, of [`JSON_BYTES_MAX`] at most.
///
/// # Errors
/// It cannot be read, is no regular file, or is longer.
#[cfg(feature = "store")]
pub(crate) fn read_json_bytes(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    open(path)?.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > JSON_BYTES_MAX {
        let mib = JSON_BYTES_MAX >> 20;
        return Err(io::Error::other(format!(
            "has more than {mib} MiB, as no manifest or plan has; it was not written by longfat"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_nobody_writes_into_or_has_no_end_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [&pipe, &link, directory.path()] {
            let said = open(path).unwrap_err().to_string();
            assert!(said.contains("no regular file"), "{}: {said}", path.display());
        }
    }

    #[cfg(feature = "store")]
    #[test]
    fn json_longer_than_any_manifest_is_refused_and_the_longest_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(JSON_BYTES_MAX).unwrap();
        assert_eq!(read_json_bytes(file.path()).unwrap().len() as u64, JSON_BYTES_MAX);
        file.as_file().set_len(JSON_BYTES_MAX + 1).unwrap();
        let said = read_json_bytes(file.path()).unwrap_err().to_string();
        assert!(said.contains("64 MiB") && said.contains("not written by longfat"), "{said}");
    }
}
