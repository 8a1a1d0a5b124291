//! A machine that takes part is claimed for one leader at a time. What is to be undone there stands in a file of
//! `/run/longfat` before it is done, so that another process can undo it when the one that claimed it was killed: the
//! shell that started it, or else the next that claims the machine.

use super::settings;
use crate::process::Role;
use longfat_host::{Error, Lease, Namespace, support};
use longfat_schema::run::{RunError, read_json, write_json};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const PLACE: &str = "/run/longfat";
/// How the names of private directories in /tmp begin: no others are removed.
const PRIVATE: &str = "longfat.";
const LOOK: Duration = Duration::from_millis(100);

/// Why a machine cannot be claimed, or not be left as it was.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The machine would not do what was asked.
    #[error(transparent)]
    Host(#[from] Error),
    /// A relay's rules cannot be removed.
    #[error(transparent)]
    Relay(#[from] longfat_relay::Error),
    /// What a follower changed cannot be put back.
    #[error(transparent)]
    Follow(#[from] longfat_mobility::Error),
    /// What is to be undone cannot be read or written.
    #[error(transparent)]
    Record(#[from] RunError),
    /// A file or directory cannot be looked for or removed.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

type Result<T> = std::result::Result<T, ClaimError>;

/// The machine, for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    record: PathBuf,
    _lease: Lease,
}

/// What is to be undone.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// The private directory.
    pub(super) directory: PathBuf,
    /// Parameters, as they were.
    pub(super) sysctls: BTreeMap<String, String>,
}

impl Claim {
    /// Claims it for whoever made `directory`. What another left that was killed is undone first.
    ///
    /// # Errors
    /// Another has it, or what was left cannot be undone.
    pub fn take(directory: &Path) -> Result<Claim> {
        let claim = Claim::alone()?;
        undo(&claim.record)?;
        Record { directory: directory.to_owned(), ..Record::default() }.write(&claim.record)?;
        Ok(claim)
    }

    /// Undoes what was done here, the private directory with it.
    ///
    /// # Errors
    /// It cannot be undone; [`restore`] and the next that claims the machine try again.
    pub fn end(self) -> Result<()> {
        undo(&self.record)
    }

    /// Where stands what is to be undone.
    pub fn record(&self) -> &Path {
        &self.record
    }

    /// Two runs at once would set each other's parameters back, and one machine be two hosts.
    fn alone() -> Result<Claim> {
        let id = format!("host-{}", Namespace::current()?.inode()?);
        let record = Path::new(PLACE).join(format!("{id}.json"));
        Ok(Claim { _lease: Lease::take(&id)?, record })
    }
}

impl Record {
    pub(super) fn read(path: &Path) -> Result<Option<Record>> {
        let is_there = path.try_exists().map_err(|source| io_error(path, source))?;
        Ok(is_there.then(|| read_json(path)).transpose()?)
    }

    /// Whoever is killed on the way leaves the old one or the new.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        Ok(write_json(path, self)?)
    }
}

/// For the shell that made `directory`, when the program that it started is gone: undoes what that had done. A program
/// that only seems gone (its sudo was killed) is waited for; where another has the machine by now, it has undone it.
///
/// # Errors
/// It cannot be undone; the next that claims the machine tries again.
pub fn restore(directory: &Path) -> Result<()> {
    loop {
        match Claim::alone() {
            Ok(claim) => return undo(&claim.record),
            Err(ClaimError::Host(Error::LeaseHeld { pid, .. })) if runs_from(pid, directory) => {
                std::thread::sleep(LOOK)
            }
            Err(ClaimError::Host(Error::LeaseHeld { .. })) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Undoes what one that was killed left on this machine, unless it has been claimed again; whether there was anything.
///
/// # Errors
/// It cannot be undone.
pub fn clean() -> Result<bool> {
    match Claim::alone() {
        Ok(claim) if claim.record.exists() => undo(&claim.record).map(|()| true),
        Ok(_) | Err(ClaimError::Host(Error::LeaseHeld { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}

fn runs_from(pid: i32, directory: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.starts_with(directory))
}

/// Everything that can be; the record stays where something cannot.
fn undo(path: &Path) -> Result<()> {
    let Some(record) = Record::read(path)? else { return Ok(()) };
    settings::set_back(&record.sysctls)?;
    // A relay that was killed with its agent left its rules.
    if support::missing_program("nft", "nftables").is_none() {
        longfat_relay::clean(false)?;
    }
    if is_private(&record.directory) {
        put_back(&record.directory)?;
        match fs::remove_dir_all(&record.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io_error(&record.directory, error));
            }
            _ => {}
        }
    }
    fs::remove_file(path).map_err(|source| io_error(path, source))
}

/// Routes and connections that a follower has changed which was killed with its agent.
fn put_back(directory: &Path) -> Result<()> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_state = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(Role::STATE));
    for state in entries.filter(is_state) {
        let (_, outcome) = longfat_mobility::put_back::clean(&state, &mut |_| {})?;
        outcome?;
    }
    Ok(())
}

/// Whether it is one of `/tmp` itself, called as ours are: no path that leads elsewhere from there.
fn is_private(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    directory.parent() == Some(Path::new("/tmp")) && name.starts_with(PRIVATE)
}

fn io_error(path: &Path, source: std::io::Error) -> ClaimError {
    ClaimError::Io { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::tests_support::{KEY, in_a_namespace};
    use longfat_host::sysctl;

    fn private() -> PathBuf {
        tempfile::Builder::new().prefix("longfat.").tempdir_in("/tmp").unwrap().keep()
    }

    /// As one that was killed leaves it.
    fn killed(directory: &Path) -> PathBuf {
        let claim = Claim::take(directory).unwrap();
        let wanted = BTreeMap::from([(KEY.to_owned(), "4096 65536 99999".to_owned())]);
        std::mem::forget(settings::Settings::set(&claim, &wanted).unwrap());
        claim.record().to_owned()
    }

    #[test]
    fn what_one_that_was_killed_left_is_undone_by_its_shell_by_a_person_or_by_the_next() {
        in_a_namespace(|| {
            let before = sysctl::read(KEY).unwrap();
            let next = private();
            let ways: [&dyn Fn(&Path); 3] =
                [&|own| restore(own).unwrap(), &|_| assert!(clean().unwrap()), &|_| {
                    drop(Claim::take(&next).unwrap())
                }];
            for undo in ways {
                let directory = private();
                let record = killed(&directory);
                assert_ne!(sysctl::read(KEY).unwrap(), before);
                undo(&directory);
                assert_eq!(sysctl::read(KEY).unwrap(), before);
                assert!(!directory.exists());
                let noted = Record::read(&record).unwrap();
                assert!(noted.is_none_or(|own| own.directory == next && own.sysctls.is_empty()));
            }
            assert!(clean().unwrap() && !clean().unwrap());
            assert!(!next.exists());
        });
    }

    #[test]
    fn what_belongs_to_one_that_lives_is_neither_undone_nor_claimed() {
        in_a_namespace(|| {
            let (first, second) = (private(), private());
            let claim = Claim::take(&first).unwrap();
            restore(&second).unwrap();
            assert!(!clean().unwrap());
            assert!(Claim::take(&second).unwrap_err().to_string().contains("in use"));
            assert!(first.exists());
            claim.end().unwrap();
            assert!(!first.exists());
            fs::remove_dir(second).unwrap();
        });
    }

    #[test]
    fn only_a_directory_of_tmp_itself_is_a_private_one() {
        assert!(is_private(Path::new("/tmp/longfat.AbC")));
        for other in ["/tmp/longfat./../../etc", "/tmp/longfat.x/y", "/tmp/other", "longfat.x", "/", ""] {
            assert!(!is_private(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn no_directory_but_a_private_one_is_removed() {
        in_a_namespace(|| {
            let other = tempfile::tempdir().unwrap();
            drop(Claim::take(other.path()).unwrap());
            restore(other.path()).unwrap();
            assert!(other.path().exists());
        });
    }
}
