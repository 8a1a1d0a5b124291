//! A host's network parameters, set for a run and set back after it. What they were stands in the machine's [`Claim`]
//! before the first is changed.

use super::claim::{Claim, ClaimError, Record};
use longfat_host::sysctl;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Parameters that were changed, set back on drop.
#[derive(Debug)]
pub struct Settings {
    record: PathBuf,
}

impl Settings {
    /// Sets what differs.
    ///
    /// # Errors
    /// One cannot be read or set; those before it are set back.
    pub fn set(claim: &Claim, wanted: &BTreeMap<String, String>) -> Result<Settings, ClaimError> {
        Settings::noted_in(claim.record(), wanted)
    }

    fn noted_in(record: &Path, wanted: &BTreeMap<String, String>) -> Result<Settings, ClaimError> {
        let mut were = BTreeMap::new();
        for (key, value) in wanted {
            let now = sysctl::read(key)?;
            if !same(&now, value) {
                were.insert(key.clone(), now);
            }
        }
        let changed: Vec<String> = were.keys().cloned().collect();
        note(record, were)?;
        let settings = Settings { record: record.to_owned() };
        changed.iter().try_for_each(|key| sysctl::write(key, &wanted[key]))?;
        Ok(settings)
    }

    fn end(&self) -> Result<(), ClaimError> {
        let were = Record::read(&self.record)?.unwrap_or_default().sysctls;
        set_back(&were)?;
        note(&self.record, BTreeMap::new())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("longfat: {error}");
        }
    }
}

fn note(record: &Path, sysctls: BTreeMap<String, String>) -> Result<(), ClaimError> {
    let noted = Record::read(record)?.unwrap_or_default();
    Record { sysctls, ..noted }.write(record)
}

/// Sets back all that can be.
///
/// # Errors
/// The first that could not be.
pub(super) fn set_back(were: &BTreeMap<String, String>) -> longfat_host::Result<()> {
    let mut all = Ok(());
    for (key, value) in were {
        all = all.and(sysctl::write(key, value));
    }
    all
}

/// The kernel parts numbers by tabs, people by blanks.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::tests_support::{KEY, in_a_namespace};

    #[test]
    fn what_was_set_is_set_back_and_a_parameter_that_is_not_there_changes_nothing() {
        in_a_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            let before = sysctl::read(KEY).unwrap();
            let mut wanted = BTreeMap::from([(KEY.to_owned(), "4096 65536 99999".to_owned())]);
            let record = directory.path().join("record.json");
            let settings = Settings::noted_in(&record, &wanted).unwrap();
            assert!(same(&sysctl::read(KEY).unwrap(), "4096 65536 99999"));
            drop(settings);
            assert_eq!(sysctl::read(KEY).unwrap(), before);
            assert!(Record::read(&record).unwrap().unwrap().sysctls.is_empty());
            wanted.insert("net.ipv4.no_such_thing".to_owned(), "1".to_owned());
            let error = Settings::noted_in(&record, &wanted).unwrap_err().to_string();
            assert!(error.contains("no_such_thing"), "{error}");
            assert_eq!(sysctl::read(KEY).unwrap(), before);
        });
    }
}
