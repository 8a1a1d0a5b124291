//! Whether a run or a result is what was written: every byte that changed, is missing or came in is named. Pure.

use super::{
    Contents, FileRecord, Kind, RESULT_FILE, RUN_FILE, ResultManifest, ResultStatus, RunError, RunManifest,
    parse_versioned, seal::seal_holds,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// One file that is not as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which, within the run or result.
    pub path: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What can be wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The file's bytes are others than were recorded.
    Changed {
        /// As recorded.
        then: FileRecord,
        /// As found.
        now: FileRecord,
    },
    /// The file was recorded and is not there.
    Missing,
    /// The file is there and was not recorded.
    Extra,
    /// What has the file's name is no regular file.
    NotAFile,
    /// A pack holds it more than once.
    Twice,
    /// A manifest whose own bytes changed.
    Seal,
    /// A run's manifest is whole, but is not the one the result was made from.
    NotOfResult,
    /// A manifest that cannot be read.
    Unreadable(String),
    /// A manifest without hashes.
    Unsealed,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match &self.fault {
            Fault::Changed { then, now } if then.bytes == now.bytes => {
                write!(f, "changed, still {} bytes", now.bytes)
            }
            Fault::Changed { then, now } => write!(f, "changed, {} bytes then, {} now", then.bytes, now.bytes),
            Fault::Missing => f.write_str("missing"),
            Fault::Extra => f.write_str("was not there when the run ended"),
            Fault::NotAFile => f.write_str("is no regular file"),
            Fault::Twice => f.write_str("is there twice"),
            Fault::Seal => f.write_str("changed since it was written"),
            Fault::NotOfResult => f.write_str("is whole, but of another run than the result was made from"),
            Fault::Unreadable(why) => write!(f, "cannot be read ({why})"),
            Fault::Unsealed => f.write_str(
                "holds no hashes: it was written by a longfat that recorded none, or the session has not ended",
            ),
        }
    }
}

/// Everything that is not as it was recorded, in order of paths; nothing when all is.
///
/// # Errors
/// It holds neither a run nor a result, or was written by a newer longfat.
pub fn verify(contents: &Contents) -> Result<Vec<Finding>, RunError> {
    let mut check = Check { contents, findings: contents.strange.clone() };
    if contents.manifests.contains_key(RESULT_FILE) {
        check.result()?;
    } else if contents.manifests.contains_key(RUN_FILE) {
        check.run("", None)?;
    } else {
        return Err(RunError::NotARun("what is to be verified".to_owned()));
    }
    check.findings.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(check.findings)
}

struct Check<'a> {
    contents: &'a Contents,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn find(&mut self, path: &str, fault: Fault) {
        self.findings.push(Finding { path: path.to_owned(), fault });
    }

    /// A manifest; `None` when it cannot be read, which is found then.
    fn manifest<T: serde::de::DeserializeOwned>(
        &mut self,
        path: &str,
        kind: Kind,
    ) -> Result<Option<T>, RunError> {
        let Some(bytes) = self.contents.manifests.get(path) else {
            self.find(path, Fault::Missing);
            return Ok(None);
        };
        match parse_versioned(bytes, path, kind) {
            Ok((manifest, _)) => Ok(Some(manifest)),
            Err(newer @ RunError::Newer { .. }) => Err(newer),
            Err(RunError::Json { source, .. }) => {
                self.find(path, Fault::Unreadable(source.to_string()));
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// Whether a manifest has a seal, and it holds.
    fn sealed(&mut self, path: &str, seal: Option<&str>) -> bool {
        let bytes = self.contents.manifests.get(path).map_or(&[][..], Vec::as_slice);
        match seal {
            None => self.find(path, Fault::Unsealed),
            Some(seal) if !seal_holds(bytes, seal) => self.find(path, Fault::Seal),
            Some(_) => return true,
        }
        false
    }

    fn result(&mut self) -> Result<(), RunError> {
        let Some(result) = self.manifest::<ResultManifest>(RESULT_FILE, Kind::Result)? else { return Ok(()) };
        let sealed = self.sealed(RESULT_FILE, result.seal.as_deref());
        let prefixes: BTreeSet<String> = result.runs.iter().map(|run| format!("{}/", run.path)).collect();
        for run in &result.runs {
            self.run(&format!("{}/", run.path), run.seal.as_deref())?;
        }
        match &result.files {
            Some(files) => {
                let is_own = |path: &str| !in_one_of(&prefixes, path) && path != RESULT_FILE;
                self.files("", files, is_own);
            }
            None if sealed || result.status == ResultStatus::Running => {
                self.find(RESULT_FILE, Fault::Unsealed)
            }
            None => {}
        }
        Ok(())
    }

    fn run(&mut self, prefix: &str, seal: Option<&str>) -> Result<(), RunError> {
        let path = format!("{prefix}{RUN_FILE}");
        let Some(manifest) = self.manifest::<RunManifest>(&path, Kind::Run)? else { return Ok(()) };
        let sealed = self.sealed(&path, manifest.seal.as_deref());
        if sealed && seal.is_some() && seal != manifest.seal.as_deref() {
            self.find(&path, Fault::NotOfResult);
        }
        if let Some(files) = &manifest.files {
            self.files(prefix, files, |path| path.starts_with(prefix) && path[prefix.len()..] != *RUN_FILE);
        }
        Ok(())
    }

    /// Recorded files against those found that `is_own` says belong to them.
    fn files(&mut self, prefix: &str, then: &BTreeMap<String, FileRecord>, is_own: impl Fn(&str) -> bool) {
        for (name, then) in then {
            let path = format!("{prefix}{name}");
            match self.contents.files.get(&path) {
                None => self.find(&path, Fault::Missing),
                Some(now) if now != then => {
                    let (then, now) = (then.clone(), now.clone());
                    self.find(&path, Fault::Changed { then, now });
                }
                Some(_) => {}
            }
        }
        let contents = self.contents;
        let own = contents.files.keys().filter(|path| is_own(path));
        own.filter(|path| !then.contains_key(&path[prefix.len()..]))
            .for_each(|path| self.find(path, Fault::Extra));
    }
}

/// Whether a path lies below one of these directories (which end in `/`).
fn in_one_of(directories: &BTreeSet<String>, path: &str) -> bool {
    let ends = path.match_indices('/').map(|(at, _)| &path[..=at]);
    ends.into_iter().any(|directory| directories.contains(directory))
}
