//! Run directories on disk.

use super::{
    Kind, PLAN_FILE, RESULT_FILE, RUN_FILE, ResultManifest, RunError, RunManifest, Table, TableWriter,
    is_plain_path, parse_versioned, read_table, read_versioned, upgrade::may_lack,
};
use crate::{record::*, regular, samples::Samples};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

macro_rules! writer {
    ($($(#[$doc:meta])+ $variant:ident $field:ident: $row:ident, $(time $time:ident,)? by $($key:ident)+;)+) => {
        /// Writes the tables of one run, record by record.
        pub struct RunWriter {
            path: PathBuf,
            $($field: TableWriter<$row>,)+
        }

        impl RunWriter {
            /// Creates the directory and its tables.
            pub fn create(path: &Path) -> Result<RunWriter, RunError> {
                fs::create_dir_all(path).map_err(|source| RunError::io(path, source))?;
                Ok(RunWriter { path: path.to_owned(), $($field: create(path)?,)+ })
            }

            /// Appends one record to its table.
            pub fn push(&mut self, record: Record) -> Result<(), RunError> {
                let pushed = match record {
                    $(Record::$variant(row) => self.$field.push(row),)+
                };
                pushed.map_err(|source| RunError::Table { path: self.path.display().to_string(), source })
            }

            /// Completes the tables. The manifest comes last, by [`super::seal_run`]: a run with a manifest is whole.
            pub fn finish(self) -> Result<(), RunError> {
                $(finish(self.$field, &self.path)?;)+
                Ok(())
            }
        }

        impl RunDirectory {
            /// Every row of every table. A table that cannot be read is empty here, and named with the reason in the
            /// list.
            pub fn samples(&self) -> (Samples, Vec<String>) {
                let mut problems = Vec::new();
                let samples = Samples { $($field: self.rows(&mut problems),)+ };
                (samples, problems)
            }
        }
    };
}
every_record!(writer);

fn table_path<T: Table>(directory: &Path) -> PathBuf {
    directory.join(format!("{}.parquet", T::NAME))
}

fn create<T: Table>(directory: &Path) -> Result<TableWriter<T>, RunError> {
    let path = table_path::<T>(directory);
    TableWriter::create(&path).map_err(|source| RunError::Table { path: path.display().to_string(), source })
}

fn finish<T: Table>(table: TableWriter<T>, directory: &Path) -> Result<(), RunError> {
    let path = table_path::<T>(directory).display().to_string();
    table.finish().map_err(|source| RunError::Table { path, source })
}

/// One run, for reading.
#[derive(Debug, Clone)]
pub struct RunDirectory {
    /// Where it is.
    pub path: PathBuf,
    /// What is known about it.
    pub manifest: RunManifest,
    /// Schema version it was written under; the manifest has been brought up to date.
    pub written_as: u32,
}

impl RunDirectory {
    /// Opens a run; one written by a newer longfat is refused.
    pub fn open(path: &Path) -> Result<RunDirectory, RunError> {
        let file = path.join(RUN_FILE);
        let bytes = regular::read_json_bytes(&file).map_err(|source| RunError::io(&file, source))?;
        let (manifest, written_as) = parse_versioned(&bytes, &file.display().to_string(), Kind::Run)?;
        Ok(RunDirectory { path: path.to_owned(), manifest, written_as })
    }

    /// Every row of one of its tables; none of a table that did not exist when the run was made.
    pub fn read<T: Table>(&self) -> Result<Vec<T>, RunError> {
        let path = table_path::<T>(&self.path);
        if may_lack::<T>(self.written_as) && !path.exists() {
            return Ok(Vec::new());
        }
        read_table(&path).map_err(|source| RunError::Table { path: path.display().to_string(), source })
    }

    fn rows<T: Table>(&self, problems: &mut Vec<String>) -> Vec<T> {
        self.read().unwrap_or_else(|error| {
            problems.push(error.to_string());
            Vec::new()
        })
    }

    /// The plan it was made from: of the lab's type, or as plain JSON.
    pub fn plan<T: DeserializeOwned>(&self) -> Result<T, RunError> {
        read_versioned(&self.path.join(PLAN_FILE), Kind::Plan)
    }
}

/// What a directory holds, as far as it can be read.
#[derive(Debug)]
pub struct Found {
    /// Manifest of the result; absent for a run by itself.
    pub result: Option<ResultManifest>,
    /// Runs whose manifests can be read, in the result's order.
    pub runs: Vec<RunDirectory>,
    /// Runs whose manifests are there and cannot be read.
    pub damaged: Vec<DamagedRun>,
}

/// A run of a result whose manifest is there and cannot be read, or says nothing.
#[derive(Debug)]
pub struct DamagedRun {
    /// Where the run is.
    pub path: PathBuf,
    /// What is wrong with its manifest.
    pub error: RunError,
}

/// What a directory holds: a result with its runs that have a manifest, or one run by itself.
///
/// # Errors
/// It holds neither, a manifest is damaged, or one was written by a newer longfat.
pub fn find_runs(path: &Path) -> Result<(Option<ResultManifest>, Vec<RunDirectory>), RunError> {
    let found = find_readable_runs(path)?;
    match found.damaged.into_iter().next() {
        Some(damaged) => Err(damaged.error),
        None => Ok((found.result, found.runs)),
    }
}

/// As [`find_runs`], for readers to whom one manifest that cannot be read is no reason to do without all others.
///
/// # Errors
/// It holds neither, the result's manifest (or that of the one run) is damaged, or a newer longfat wrote one of them.
pub fn find_readable_runs(path: &Path) -> Result<Found, RunError> {
    let result = path.join(RESULT_FILE);
    if result.is_file() {
        let manifest: ResultManifest = read_versioned(&result, Kind::Result)?;
        if let Some(outside) = manifest.runs.iter().find(|run| !is_plain_path(&run.path)) {
            return Err(RunError::Outside { path: result.display().to_string(), name: outside.path.clone() });
        }
        let (runs, damaged) = open_all(manifest.runs.iter().map(|entry| path.join(&entry.path)))?;
        return Ok(Found { result: Some(manifest), runs, damaged });
    }
    if path.join(RUN_FILE).is_file() {
        return Ok(Found { result: None, runs: vec![RunDirectory::open(path)?], damaged: Vec::new() });
    }
    Err(RunError::NotARun(path.display().to_string()))
}

/// Runs that have a manifest, and those whose manifest is damaged or may not be read.
fn open_all(paths: impl Iterator<Item = PathBuf>) -> Result<(Vec<RunDirectory>, Vec<DamagedRun>), RunError> {
    let (mut runs, mut damaged) = (Vec::new(), Vec::new());
    for path in paths.filter(|path| path.join(RUN_FILE).is_file()) {
        match RunDirectory::open(&path) {
            Ok(run) => runs.push(run),
            Err(error @ (RunError::Json { .. } | RunError::Io { .. })) => {
                damaged.push(DamagedRun { path, error })
            }
            Err(other) => return Err(other),
        }
    }
    Ok((runs, damaged))
}

/// Writes JSON under a temporary name and renames it: the file is whole or absent.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), RunError> {
    write_whole(path, &json_bytes(path, value)?)
}

/// Writes a file under a temporary name and renames it: the file is whole or absent.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    let temporary = unfinished(path);
    create_new(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|source| RunError::io(&temporary, source))?;
    fs::rename(&temporary, path).map_err(|source| RunError::io(path, source))
}

/// Name of a file until it is whole.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    path.with_added_extension("part")
}

/// A file that was not there before. An old one of that name is removed; a link that somebody planted there (in /tmp,
/// say) is removed and not followed.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(path)
}

/// The bytes [`write_json`] writes.
pub(super) fn json_bytes(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, RunError> {
    let json = |source| RunError::Json { path: path.display().to_string(), source };
    let mut text = serde_json::to_vec_pretty(value).map_err(json)?;
    text.push(b'\n');
    Ok(text)
}

/// Reads JSON; errors name the file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RunError> {
    let text = regular::read_json_bytes(path).map_err(|source| RunError::io(path, source))?;
    serde_json::from_slice(&text)
        .map_err(|source| RunError::Json { path: path.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::super::{RunEntry, RunStatus, seal_run, write_result};
    use super::*;
    use crate::SCHEMA_VERSION;

    fn manifest(schema_version: u32) -> RunManifest {
        RunManifest { schema_version, case: "c".into(), status: RunStatus::Done, ..RunManifest::default() }
    }

    fn write_run(path: &Path, records: Vec<Record>, schema_version: u32) -> RunManifest {
        let mut writer = RunWriter::create(path).unwrap();
        records.into_iter().for_each(|record| writer.push(record).unwrap());
        writer.finish().unwrap();
        let mut manifest = manifest(schema_version);
        seal_run(path, &mut manifest).unwrap();
        manifest
    }

    #[test]
    fn a_run_written_is_the_run_read() {
        let directory = tempfile::tempdir().unwrap();
        let echo = EchoSample { flow: "f".into(), latency_us: 7, ..Default::default() };
        let manifest = write_run(directory.path(), vec![Record::Echo(echo.clone())], SCHEMA_VERSION);
        let (result, runs) = find_runs(directory.path()).unwrap();
        assert!(result.is_none());
        assert_eq!(runs[0].manifest, manifest);
        assert_eq!(manifest.files.unwrap().len(), 11);
        assert_eq!(runs[0].read::<EchoSample>().unwrap(), [echo]);
        assert_eq!(runs[0].read::<TcpSample>().unwrap(), []);
    }

    #[test]
    fn a_run_of_a_newer_longfat_is_refused_with_the_mend() {
        let directory = tempfile::tempdir().unwrap();
        write_run(directory.path(), vec![], 99);
        let message = RunDirectory::open(directory.path()).unwrap_err().to_string();
        assert!(message.contains("schema version 99") && message.contains("upgrade"), "{message}");
    }

    #[test]
    fn a_link_planted_in_the_place_of_the_temporary_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "whole").unwrap();
        std::os::unix::fs::symlink(&victim, directory.path().join("x.json.part")).unwrap();
        write_json(&directory.path().join("x.json"), &[1, 2]).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "whole");
        assert_eq!(read_json::<Vec<u32>>(&directory.path().join("x.json")).unwrap(), [1, 2]);
    }

    #[test]
    fn a_result_that_names_a_run_elsewhere_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        write_run(&directory.path().join("private"), vec![], SCHEMA_VERSION);
        let result = directory.path().join("result");
        fs::create_dir(&result).unwrap();
        let absolute = directory.path().join("private").display().to_string();
        for path in ["../private", absolute.as_str()] {
            let mut manifest = ResultManifest { runs: vec![entry(1, path)], ..empty_result() };
            write_result(&result, &mut manifest, &[]).unwrap();
            assert!(matches!(find_runs(&result), Err(RunError::Outside { .. })), "{path}");
        }
    }

    #[test]
    fn a_run_whose_manifest_is_damaged_is_told_apart_and_one_of_a_newer_longfat_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let result = directory.path();
        let runs: Vec<_> = (1..=3).map(|repeat| entry(repeat, &format!("r{repeat}"))).collect();
        runs.iter().for_each(|run| drop(write_run(&result.join(&run.path), vec![], SCHEMA_VERSION)));
        write_result(result, &mut ResultManifest { runs, ..empty_result() }, &[]).unwrap();
        for damage in ["", "{", "null", "{}", "{\"schema_version\": 1, \"metrics\": 7}"] {
            fs::write(result.join("r2").join(RUN_FILE), damage).unwrap();
            let found = find_readable_runs(result).unwrap();
            let paths: Vec<_> = found.runs.iter().map(|run| run.path.clone()).collect();
            assert_eq!(paths, [result.join("r1"), result.join("r3")], "{damage}");
            assert_eq!(found.damaged[0].path, result.join("r2"));
            let message = found.damaged[0].error.to_string();
            assert!(message.contains("r2/manifest.json") && message.contains("damaged"), "{message}");
            assert!(matches!(find_runs(result), Err(RunError::Json { .. })), "{damage}");
        }
        write_run(&result.join("r2"), vec![], 99);
        assert!(matches!(find_readable_runs(result), Err(RunError::Newer { .. })));
    }

    #[test]
    fn a_run_whose_manifest_may_not_be_read_hides_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let result = directory.path();
        let runs: Vec<_> = (1..=2).map(|repeat| entry(repeat, &format!("r{repeat}"))).collect();
        runs.iter().for_each(|run| drop(write_run(&result.join(&run.path), vec![], SCHEMA_VERSION)));
        write_result(result, &mut ResultManifest { runs, ..empty_result() }, &[]).unwrap();
        // Longer than any is read, since root may read what has no rights.
        let file = File::options().write(true).open(result.join("r1").join(RUN_FILE)).unwrap();
        file.set_len(regular::JSON_BYTES_MAX + 1).unwrap();
        let found = find_readable_runs(result).unwrap();
        assert_eq!(found.runs.iter().map(|run| &run.path).collect::<Vec<_>>(), [&result.join("r2")]);
        assert!(matches!(found.damaged[..], [DamagedRun { error: RunError::Io { .. }, .. }]));
        let message = found.damaged[0].error.to_string();
        assert!(message.contains("r1/manifest.json: has more than 64 MiB"), "{message}");
        assert!(matches!(find_runs(result), Err(RunError::Io { .. })));
    }

    #[test]
    fn nobody_waits_at_a_pipe_in_the_place_of_a_file_of_a_run() {
        let directory = tempfile::tempdir().unwrap();
        write_run(directory.path(), vec![], SCHEMA_VERSION);
        for name in [PLAN_FILE, "tcp.parquet", "start.json"] {
            let path = directory.path().join(name);
            let _ = fs::remove_file(&path);
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        }
        let run = RunDirectory::open(directory.path()).unwrap();
        let start = read_json::<serde_json::Value>(&directory.path().join("start.json"));
        for error in [run.plan::<serde_json::Value>(), start].map(Result::unwrap_err) {
            let message = error.to_string();
            assert!(message.contains(".json: is no regular file"), "{message}");
        }
        let (samples, problems) = run.samples();
        assert!(samples.tcp.is_empty() && problems.len() == 1, "{problems:?}");
        assert!(problems[0].contains("tcp.parquet: is no regular file"), "{problems:?}");
        fs::remove_file(directory.path().join(RUN_FILE)).unwrap();
        fs::rename(directory.path().join("start.json"), directory.path().join(RUN_FILE)).unwrap();
        let message = RunDirectory::open(directory.path()).unwrap_err().to_string();
        assert!(message.contains("manifest.json: is no regular file"), "{message}");
    }

    fn entry(repeat: u32, path: &str) -> RunEntry {
        RunEntry { case: "c".into(), repeat, path: path.into(), status: RunStatus::Done, seal: None }
    }

    fn empty_result() -> ResultManifest {
        ResultManifest {
            schema_version: SCHEMA_VERSION,
            experiment: String::new(),
            title: String::new(),
            description: String::new(),
            started_unix_ms: 0,
            status: super::super::ResultStatus::Complete,
            focus: None,
            cases: vec![],
            runs: vec![],
            planned: None,
            expectations: vec![],
            twins: vec![],
            provenance: super::super::Provenance::default(),
            files: None,
            seal: None,
        }
    }

    #[test]
    fn an_interrupted_run_has_no_manifest_and_is_no_run() {
        let directory = tempfile::tempdir().unwrap();
        drop(RunWriter::create(directory.path()).unwrap());
        assert!(matches!(find_runs(directory.path()), Err(RunError::NotARun(_))));
    }
}
