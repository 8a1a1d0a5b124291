//! An interface that a driver has taken: it has it alone, and the interface does not speak on its own meanwhile (IPv6
//! would announce itself). What it was like stands in a file of /run, so that after a kill the next driver still gives
//! IPv6 back. Where no such file can be made, it is taken all the same.

use super::{DriverError, ipv6_switch};
use longfat_host::own::OwnDirectory;
use std::{
    ffi::CString,
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Records of taken interfaces; a restart of the machine empties /run.
const DIRECTORY: &str = "/run/longfat-link";
/// A record longer than this is none.
const RECORD_MOST_BYTES: u64 = 64;

/// A taken interface; dropped, it has IPv6 again where it had.
#[derive(Debug)]
pub(super) struct Taken {
    interface: String,
    had_ipv6: bool,
    record: Option<Record>,
}

/// The file of a taken interface, locked: who drives it, and whether it had IPv6.
#[derive(Debug)]
struct Record {
    path: PathBuf,
    file: File,
}

impl Taken {
    /// Takes an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// Another driver has it.
    pub fn take(interface: &str) -> Result<Taken, DriverError> {
        let mut record = match Record::open(interface) {
            Ok(record) => Some(record),
            Err(Refusal::Busy(pid)) => {
                return Err(DriverError::Busy { interface: interface.to_owned(), pid });
            }
            Err(Refusal::NoRecord) => None,
        };
        let owes_ipv6 = record.as_mut().is_some_and(Record::says_ipv6);
        let had_ipv6 = owes_ipv6 || super::has_ipv6(interface);
        if let Some(record) = &mut record {
            record.say(had_ipv6);
        }
        if had_ipv6 {
            // The interface may have gone, which is told where it is opened.
            let _ = fs::write(ipv6_switch(interface), "1");
        }
        Ok(Taken { interface: interface.to_owned(), had_ipv6, record })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.had_ipv6 {
            let _ = fs::write(ipv6_switch(&self.interface), "0");
        }
        if let Some(record) = &self.record {
            let _ = fs::remove_file(&record.path);
            // Others may have records in it.
            let _ = fs::remove_dir(DIRECTORY);
        }
    }
}

/// Why there is no record.
enum Refusal {
    /// This process has it.
    Busy(u32),
    /// None can be made.
    NoRecord,
}

impl Record {
    fn open(interface: &str) -> Result<Record, Refusal> {
        let name = name(interface).ok_or(Refusal::NoRecord)?;
        let directory = OwnDirectory::make(Path::new(DIRECTORY)).map_err(|_| Refusal::NoRecord)?;
        loop {
            let path = directory.path().join(&name);
            let mut file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(&path)
                .map_err(|_| Refusal::NoRecord)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let pid = read(&mut file).split(' ').next().and_then(|pid| pid.parse().ok());
                    return Err(Refusal::Busy(pid.unwrap_or(0)));
                }
                Err(TryLockError::Error(_)) => return Err(Refusal::NoRecord),
            }
            // One that was removed between opening and locking is nobody's record.
            let stands = |here: &fs::Metadata| file.metadata().is_ok_and(|mine| mine.ino() == here.ino());
            if fs::metadata(&path).as_ref().is_ok_and(stands) {
                return Ok(Record { path: Path::new(DIRECTORY).join(&name), file });
            }
        }
    }

    /// Whether a driver that was killed has left the interface without the IPv6 that it had.
    fn says_ipv6(&mut self) -> bool {
        read(&mut self.file).ends_with("ipv6")
    }

    fn say(&mut self, had_ipv6: bool) {
        let text = format!("{} {}", std::process::id(), if had_ipv6 { "ipv6" } else { "plain" });
        let written = self.file.set_len(0).and_then(|()| self.file.rewind());
        // Without it a kill leaves the interface as it is: no more than without any record.
        let _ = written.and_then(|()| self.file.write_all(text.as_bytes()));
    }
}

fn read(file: &mut File) -> String {
    let mut text = String::new();
    let read: io::Result<usize> = file.take(RECORD_MOST_BYTES).read_to_string(&mut text);
    if read.is_ok() { text } else { String::new() }
}

/// What tells the interface from every other of the machine; `None` where there is none of that name.
fn name(interface: &str) -> Option<String> {
    let namespace = fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    let text = CString::new(interface).ok()?;
    // SAFETY: a string that ends in NUL.
    let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
    (index != 0).then(|| format!("{namespace}-{index}"))
}
