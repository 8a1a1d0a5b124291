//! Results and runs below a directory: found anew for every question, no link followed, in bounded work. What a browser
//! names is looked up among what was found, never joined to a path.

use crate::{ReportError, load::Experiment};
use longfat_schema::run::{
    Kind, PLAN_FILE, RESULT_FILE, RUN_FILE, ResultManifest, ResultStatus, RunStatus, read_versioned,
};
use serde::Deserialize;
use std::{
    cmp::Reverse,
    fs,
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

/// How deep results are looked for.
const DEPTH_MAX: usize = 6;
/// How deep a result holds its runs: one level per axis.
const RUN_DEPTH_MAX: usize = 16;
/// Directories looked into for one question.
const DIRECTORIES_MAX: usize = 20_000;
/// Results and runs read, and listed: those written last.
const FOUND_MAX: usize = 2000;

/// What lies below a directory.
#[derive(Debug)]
pub struct RunIndex {
    root: PathBuf,
    /// Results, and runs that are of none, the newest first.
    pub found: Vec<Found>,
    /// There was more than is looked through.
    pub is_cut: bool,
}

/// One result, or one run by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Directory of the result below the one looked through, parts apart by `/`; `.` is that one itself.
    pub id: String,
    /// Name of the experiment.
    pub name: String,
    /// One line.
    pub title: String,
    /// Wall-clock start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// As manifests name it; empty as long as there is no run.
    pub backend: String,
    /// How far it has come.
    pub state: State,
    /// Valid, unexplained, invalid, failed runs.
    pub runs: [usize; 4],
    /// Expectations met, missed, not judged.
    pub expectations: [usize; 3],
    /// Why it cannot be read.
    pub trouble: Option<String>,
}

/// How far a result has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Every run was made.
    Complete,
    /// Runs are to come, or its program died.
    Running,
    /// A person stopped it.
    Interrupted,
    /// A run of no result.
    Single,
    /// The manifest cannot be read.
    Damaged,
}

impl State {
    /// Every one, in the order a reader is offered them.
    pub const ALL: [State; 5] =
        [State::Complete, State::Running, State::Interrupted, State::Single, State::Damaged];

    /// In a word, also in addresses.
    pub fn name(self) -> &'static str {
        match self {
            State::Complete => "complete",
            State::Running => "running",
            State::Interrupted => "interrupted",
            State::Single => "single",
            State::Damaged => "damaged",
        }
    }
}

/// What is read of a run's manifest: it may hold thousands of sysctls.
#[derive(Deserialize)]
struct RunHead {
    experiment: String,
    case: String,
    backend: String,
    status: RunStatus,
    started_unix_ms: u64,
}

/// A directory with a manifest that is still to be read.
struct ManifestFile {
    written: SystemTime,
    id: String,
    directory: PathBuf,
    kind: Kind,
}

/// Looks through directories, in bounded work.
struct Search {
    manifests: Vec<ManifestFile>,
    left: usize,
    is_cut: bool,
}

impl Search {
    fn at(&mut self, directory: &Path, id: &str, depth: usize) {
        if self.left == 0 {
            self.is_cut = true;
            return;
        }
        self.left -= 1;
        let own = if id.is_empty() { "." } else { id };
        if let Some(manifest) = ManifestFile::at(directory, own) {
            self.manifests.push(manifest);
            return;
        }
        if depth == 0 {
            self.is_cut |= !directories_in(directory).is_empty();
            return;
        }
        for (name, path) in directories_in(directory) {
            let id = if id.is_empty() { name } else { format!("{id}/{name}") };
            self.at(&path, &id, depth - 1);
        }
    }
}

impl RunIndex {
    /// Looks through a directory.
    pub fn of(root: &Path) -> RunIndex {
        let mut search = Search { manifests: Vec::new(), left: DIRECTORIES_MAX, is_cut: false };
        search.at(root, "", DEPTH_MAX);
        let Search { mut manifests, is_cut, .. } = search;
        manifests.sort_by_key(|manifest| Reverse(manifest.written));
        let is_cut = is_cut || manifests.len() > FOUND_MAX;
        let mut found: Vec<Found> = manifests.iter().take(FOUND_MAX).map(ManifestFile::read).collect();
        found.sort_by(|a, b| b.started_unix_ms.cmp(&a.started_unix_ms).then(a.id.cmp(&b.id)));
        RunIndex { root: root.to_owned(), found, is_cut }
    }

    /// What was found under this name.
    pub fn get(&self, id: &str) -> Option<&Found> {
        self.found.iter().find(|found| found.id == id)
    }

    /// Directory of a result that was found.
    pub fn directory(&self, found: &Found) -> PathBuf {
        if found.id == "." { self.root.clone() } else { self.root.join(&found.id) }
    }

    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, or has no run yet.
    pub fn open(&self, found: &Found) -> Result<Experiment, ReportError> {
        Experiment::open(&self.directory(found))
    }

    /// The directory of a run of a result, when the result lists it and it lies within.
    pub fn run_directory(&self, found: &Found, run: &str) -> Option<PathBuf> {
        let directory = self.directory(found);
        let result: ResultManifest = read_versioned(&directory.join(RESULT_FILE), Kind::Result).ok()?;
        let listed = result.runs.iter().find(|entry| entry.path == run)?;
        inside(&directory, &listed.path)
    }
}

/// A path below a directory that leaves it neither by its parts nor by a link.
pub fn inside(directory: &Path, path: &str) -> Option<PathBuf> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let whole = directory.join(path).canonicalize().ok().filter(|_| plain && !path.is_empty())?;
    whole.starts_with(directory.canonicalize().ok()?).then_some(whole)
}

fn directories_in(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let named = own.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    let mut named: Vec<_> = named.filter(|(name, _)| !name.starts_with('.')).collect();
    named.sort();
    named
}

impl ManifestFile {
    fn at(directory: &Path, id: &str) -> Option<ManifestFile> {
        let written = |name: &str| {
            let metadata = fs::symlink_metadata(directory.join(name)).ok().filter(fs::Metadata::is_file)?;
            Some(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH))
        };
        let kinds = [(RESULT_FILE, Kind::Result), (RUN_FILE, Kind::Run)];
        let (written, kind) = kinds.into_iter().find_map(|(name, kind)| Some((written(name)?, kind)))?;
        Some(ManifestFile { written, id: id.to_owned(), directory: directory.to_owned(), kind })
    }

    fn read(&self) -> Found {
        let (directory, id) = (&self.directory, &self.id);
        let read = match self.kind {
            Kind::Result => read_versioned(&directory.join(RESULT_FILE), Kind::Result)
                .map(|result| of_result(directory, id, &result)),
            _ => read_versioned(&directory.join(RUN_FILE), Kind::Run).map(|run| of_run(id, run)),
        };
        read.unwrap_or_else(|error| damaged(id, error))
    }
}

fn of_result(directory: &Path, id: &str, result: &ResultManifest) -> Found {
    let count = |status: RunStatus| result.runs.iter().filter(|run| run.status == status).count();
    let judged = |met: Option<bool>| result.expectations.iter().filter(|e| e.met == met).count();
    let heads = result.runs.iter().filter_map(|run| inside(directory, &run.path));
    let mut heads = heads.filter_map(|run| read_versioned::<RunHead>(&run.join(RUN_FILE), Kind::Run).ok());
    Found {
        id: id.to_owned(),
        name: result.experiment.clone(),
        title: result.title.clone(),
        started_unix_ms: result.started_unix_ms,
        backend: heads.next().map_or_else(String::new, |head| head.backend),
        state: match result.status {
            ResultStatus::Complete => State::Complete,
            ResultStatus::Running => State::Running,
            ResultStatus::Interrupted => State::Interrupted,
        },
        runs: RunStatus::ALL.map(count),
        expectations: [Some(true), Some(false), None].map(judged),
        trouble: None,
    }
}

fn of_run(id: &str, run: RunHead) -> Found {
    let is = |status: RunStatus| usize::from(run.status == status);
    Found {
        id: id.to_owned(),
        runs: RunStatus::ALL.map(is),
        title: format!("{}, one run", run.case),
        name: run.experiment,
        started_unix_ms: run.started_unix_ms,
        backend: run.backend,
        state: State::Single,
        expectations: [0; 3],
        trouble: None,
    }
}

fn damaged(id: &str, error: impl std::fmt::Display) -> Found {
    Found {
        id: id.to_owned(),
        name: id.to_owned(),
        title: String::new(),
        started_unix_ms: 0,
        backend: String::new(),
        state: State::Damaged,
        runs: [0; 4],
        expectations: [0; 3],
        trouble: Some(error.to_string()),
    }
}

/// Runs of a result that have begun and not ended: a plan without a manifest. The one begun last comes first.
pub fn under_way(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = DIRECTORIES_MAX;
    let mut waiting = vec![(directory.to_owned(), RUN_DEPTH_MAX)];
    while let Some((path, depth)) = waiting.pop() {
        let begun = fs::metadata(path.join(PLAN_FILE)).and_then(|metadata| metadata.modified());
        match begun {
            Ok(begun) if !path.join(RUN_FILE).exists() => found.push((begun, path)),
            Ok(_) => {}
            Err(_) if depth > 0 && left > 0 => {
                left -= 1;
                waiting.extend(directories_in(&path).into_iter().map(|(_, path)| (path, depth - 1)));
            }
            Err(_) => {}
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_a_directory() {
        let place = tempfile::tempdir().unwrap();
        let runs = place.path().join("runs");
        fs::create_dir_all(runs.join("a/r1")).unwrap();
        fs::create_dir_all(place.path().join("secret")).unwrap();
        std::os::unix::fs::symlink(place.path().join("secret"), runs.join("link")).unwrap();
        assert!(inside(&runs, "a/r1").is_some());
        let secret = place.path().join("secret");
        for path in ["../secret", "a/../../secret", "link", "", ".", "/etc", secret.to_str().unwrap(), "none"]
        {
            assert_eq!(inside(&runs, path), None, "{path}");
        }
    }

    #[test]
    fn results_and_runs_are_found_without_following_links_and_damage_is_named() {
        let place = tempfile::tempdir().unwrap();
        let v1 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema/tests/v1");
        std::os::unix::fs::symlink(&v1, place.path().join("elsewhere")).unwrap();
        fs::create_dir_all(place.path().join("deep/bad")).unwrap();
        fs::write(place.path().join("deep/bad/result.json"), "rubbish").unwrap();
        let index = RunIndex::of(place.path());
        let found: Vec<_> = index.found.iter().map(|found| (found.id.as_str(), found.state)).collect();
        assert_eq!(found, [("deep/bad", State::Damaged)]);
        let index = RunIndex::of(&v1);
        assert_eq!((index.found[0].id.as_str(), index.found[0].runs), (".", [1, 0, 0, 0]));
        assert!(index.run_directory(&index.found[0], "reno/r1").is_some());
        assert_eq!(index.run_directory(&index.found[0], "reno"), None);
    }

    fn damaged_result(directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join(RESULT_FILE), "rubbish").unwrap();
    }

    #[test]
    fn of_more_results_than_are_listed_the_oldest_are_not_read_and_that_is_said() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..FOUND_MAX {
            damaged_result(&place.path().join(format!("{number:04}")));
        }
        let index = RunIndex::of(place.path());
        assert_eq!((index.found.len(), index.is_cut), (FOUND_MAX, false));
        // The first by name.
        let old = place.path().join("0000").join(RESULT_FILE);
        fs::File::options().write(true).open(old).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        damaged_result(&place.path().join("one more"));
        let index = RunIndex::of(place.path());
        assert_eq!((index.found.len(), index.is_cut), (FOUND_MAX, true));
        assert!(index.get("0000").is_none() && index.get("one more").is_some());
    }

    #[test]
    fn the_deepest_directory_hides_something_only_when_others_are_in_it() {
        let place = tempfile::tempdir().unwrap();
        let deepest = (0..DEPTH_MAX).fold(place.path().to_owned(), |path, _| path.join("d"));
        fs::create_dir_all(&deepest).unwrap();
        assert!(!RunIndex::of(place.path()).is_cut);
        damaged_result(&deepest.join("below"));
        let index = RunIndex::of(place.path());
        assert_eq!((index.found.len(), index.is_cut), (0, true));
        damaged_result(&deepest);
        let index = RunIndex::of(place.path());
        assert_eq!((index.found.len(), index.is_cut), (1, false));
    }
}
