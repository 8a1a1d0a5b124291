//! A host's network parameters, set for a run and set back after it.
//!
//! What they were is in a file before the first is changed, so that another process can set them back when the one that
//! changed them was killed.

use longfat_host::{Result, sysctl};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Parameters that were changed, set back on drop.
#[derive(Debug)]
pub struct Settings {
    directory: PathBuf,
}

impl Settings {
    /// Sets what differs.
    ///
    /// # Errors
    /// One cannot be read or set; those before it are set back.
    pub fn set(directory: &Path, wanted: &BTreeMap<String, String>) -> Result<Settings> {
        let mut were = BTreeMap::new();
        for (key, value) in wanted {
            let now = sysctl::read(key)?;
            if !same(&now, value) {
                were.insert(key, now);
            }
        }
        let file = file(directory);
        let text = serde_json::to_string(&were).unwrap_or_default();
        fs::write(&file, text).map_err(|source| io_error(&file, source))?;
        let settings = Settings { directory: directory.to_owned() };
        were.keys().try_for_each(|key| sysctl::write(key, &wanted[*key]))?;
        Ok(settings)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if let Err(error) = restore(&self.directory) {
            eprintln!("longfat: {error}");
        }
    }
}

/// Sets back what stands in the directory's file, all of it that can be, and removes the file. Without one, nothing
/// is changed.
///
/// # Errors
/// The first that could not be set back; the file stays.
pub fn restore(directory: &Path) -> Result<()> {
    let file = file(directory);
    let Ok(text) = fs::read_to_string(&file) else { return Ok(()) };
    let were: BTreeMap<String, String> =
        serde_json::from_str(&text).map_err(|source| io_error(&file, source.into()))?;
    let mut all = Ok(());
    for (key, value) in &were {
        all = all.and(sysctl::write(key, value));
    }
    all?;
    fs::remove_file(&file).map_err(|source| io_error(&file, source))
}

fn file(directory: &Path) -> PathBuf {
    directory.join("sysctls.json")
}

/// The kernel parts numbers by tabs, people by blanks.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

fn io_error(path: &Path, source: std::io::Error) -> longfat_host::Error {
    longfat_host::Error::Io { what: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "net.ipv4.tcp_rmem";

    /// On a thread in a network namespace of its own: a thread's namespace ends with it.
    fn in_a_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
                work()
            });
            inside.join().unwrap()
        })
    }

    #[test]
    fn what_was_set_is_set_back_and_a_parameter_that_is_not_there_changes_nothing() {
        in_a_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            let before = sysctl::read(KEY).unwrap();
            let mut wanted = BTreeMap::from([(KEY.to_owned(), "4096 65536 99999".to_owned())]);
            let settings = Settings::set(directory.path(), &wanted).unwrap();
            assert!(same(&sysctl::read(KEY).unwrap(), "4096 65536 99999"));
            drop(settings);
            assert_eq!(sysctl::read(KEY).unwrap(), before);
            assert!(!file(directory.path()).exists());
            wanted.insert("net.ipv4.no_such_thing".to_owned(), "1".to_owned());
            let error = Settings::set(directory.path(), &wanted).unwrap_err().to_string();
            assert!(error.contains("no_such_thing"), "{error}");
            assert_eq!(sysctl::read(KEY).unwrap(), before);
        });
    }

    #[test]
    fn another_process_can_set_back_what_one_that_was_killed_set() {
        in_a_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            let before = sysctl::read(KEY).unwrap();
            let wanted = BTreeMap::from([(KEY.to_owned(), "4096 65536 99999".to_owned())]);
            std::mem::forget(Settings::set(directory.path(), &wanted).unwrap());
            restore(directory.path()).unwrap();
            assert_eq!(sysctl::read(KEY).unwrap(), before);
            restore(directory.path()).unwrap();
        });
    }
}
