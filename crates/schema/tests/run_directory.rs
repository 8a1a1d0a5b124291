//! Run directories as others left them: of an earlier longfat, damaged, or not runs at all.
#![cfg(feature = "store")]
#![allow(clippy::unwrap_used, reason = "tests")]

use longfat_schema::{SCHEMA_VERSION, record::*, run::*};
use proptest::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
};

fn first_version() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/v1")
}

#[test]
fn a_result_of_the_first_version_is_read_as_one_of_today() {
    let (result, runs) = find_runs(&first_version()).unwrap();
    let (result, run) = (result.unwrap(), &runs[0]);
    assert_eq!((result.schema_version, run.manifest.schema_version), (SCHEMA_VERSION, SCHEMA_VERSION));
    assert_eq!((run.written_as, &run.manifest.files, &result.runs[0].seal), (1, &None, &None));
    assert_eq!(run.manifest.metric("goodput_bps", "measured"), Some(9_734_826.666_666_668));
    assert_eq!(run.plan::<serde_json::Value>().unwrap()["schema_version"], SCHEMA_VERSION);
    // It was written before there were traces; all its own tables are read.
    assert_eq!(run.read::<TraceSample>().unwrap(), []);
    let (samples, problems) = run.samples();
    assert_eq!(problems, Vec::<String>::new());
    assert!(!samples.tcp.is_empty() && samples.flow.len() == 1);
}

#[test]
fn of_a_result_without_hashes_it_is_said_that_nothing_can_be_told() {
    let findings = verify(&Contents::of_directory(&first_version()).unwrap()).unwrap();
    let named: Vec<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
    assert_eq!(named, ["reno/r1/manifest.json", "result.json"]);
    assert!(findings.iter().all(|finding| finding.fault == Fault::Unsealed));
}

/// The run of the first version, written again as one of today.
fn today(directory: &Path) {
    let run_path = directory.join("reno/r1");
    let (result, mut runs) = find_runs(&first_version()).unwrap();
    let (mut result, mut run) = (result.unwrap(), runs.remove(0));
    let mut writer = RunWriter::create(&run_path).unwrap();
    run.samples().0.into_records().for_each(|record| writer.push(record).unwrap());
    writer.finish().unwrap();
    fs::copy(run.path.join("plan.json"), run_path.join("plan.json")).unwrap();
    seal_run(&run_path, &mut run.manifest).unwrap();
    result.runs[0].seal = run.manifest.seal;
    fs::copy(first_version().join("experiment.toml"), directory.join("experiment.toml")).unwrap();
    write_result(directory, &mut result, &["experiment.toml"]).unwrap();
}

#[test]
fn a_run_of_before_there_were_stalls_lacks_their_table_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    today(directory.path());
    let path = directory.path().join("reno/r1");
    fs::remove_file(path.join("stall.parquet")).unwrap();
    let written_as = |version: u32| {
        let mut manifest: serde_json::Value = read_json(&path.join("manifest.json")).unwrap();
        manifest["schema_version"] = version.into();
        write_json(&path.join("manifest.json"), &manifest).unwrap();
        RunDirectory::open(&path).unwrap().samples().1
    };
    assert_eq!((written_as(2), written_as(3)), (Vec::new(), Vec::new()));
    assert!(written_as(4)[0].contains("stall.parquet"));
    fs::remove_file(path.join("echo.parquet")).unwrap();
    assert!(written_as(3)[0].contains("echo.parquet"));
}

#[test]
fn a_table_that_is_not_finished_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(directory.path()).unwrap();
    writer.push(Record::Note(Note::default())).unwrap();
    assert!(!directory.path().join("note.parquet").exists());
    writer.finish().unwrap();
    let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| name.to_string_lossy().ends_with(".parquet")));
}

fn findings(directory: &Path) -> Vec<String> {
    let findings = verify(&Contents::of_directory(directory).unwrap()).unwrap();
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn whatever_was_changed_taken_away_or_added_is_named_and_pages_made_from_it_are_not() {
    let directory = tempfile::tempdir().unwrap();
    today(directory.path());
    fs::write(directory.path().join("report.html"), "a page").unwrap();
    assert_eq!(findings(directory.path()), Vec::<String>::new());
    assert_eq!(findings(&directory.path().join("reno/r1")), Vec::<String>::new());
    let run = directory.path().join("reno/r1");
    fs::remove_file(run.join("tcp.parquet")).unwrap();
    fs::write(run.join("more.txt"), "").unwrap();
    fs::write(directory.path().join("stray.txt"), "").unwrap();
    std::os::unix::fs::symlink("plan.json", run.join("link")).unwrap();
    fs::write(directory.path().join("experiment.toml"), "longer or shorter").unwrap();
    let expected = [
        "experiment.toml: changed, 318 bytes then, 17 now",
        "reno/r1/link: is no regular file",
        "reno/r1/more.txt: was not there when the run ended",
        "reno/r1/tcp.parquet: missing",
        "stray.txt: was not there when the run ended",
    ];
    assert_eq!(findings(directory.path()), expected);
}

#[test]
fn a_run_put_in_place_of_another_is_found_though_it_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    today(directory.path());
    let run_path = directory.path().join("reno/r1");
    let mut manifest = RunDirectory::open(&run_path).unwrap().manifest;
    manifest.metrics[0].value *= 2.0;
    seal_run(&run_path, &mut manifest).unwrap();
    assert_eq!(findings(&run_path), Vec::<String>::new());
    let expected = ["reno/r1/manifest.json: is whole, but of another run than the result was made from"];
    assert_eq!(findings(directory.path()), expected);
}

#[test]
fn every_bit_of_a_manifest_counts() {
    let directory = tempfile::tempdir().unwrap();
    today(directory.path());
    let mut contents = Contents::of_directory(directory.path()).unwrap();
    for name in ["result.json", "reno/r1/manifest.json"] {
        for at in 0..contents.manifests[name].len() {
            contents.manifests.get_mut(name).unwrap()[at] ^= 1;
            // A version from the future is an error, everything else a finding.
            let found = verify(&contents).map(|found| found.iter().any(|finding| finding.path == name));
            assert!(found.unwrap_or(true), "{name}, byte {at}");
            contents.manifests.get_mut(name).unwrap()[at] ^= 1;
        }
    }
    assert_eq!(verify(&contents).unwrap(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_changed_byte_in_any_file_is_found_and_named(file in any::<prop::sample::Index>(), byte in any::<prop::sample::Index>(), bit in 0u8..8) {
        let directory = tempfile::tempdir().unwrap();
        today(directory.path());
        let contents = Contents::of_directory(directory.path()).unwrap();
        let names: Vec<&String> = contents.files.keys().collect();
        let name = names[file.index(names.len())];
        let path = directory.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = byte.index(bytes.len());
        bytes[at] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        let found = verify(&Contents::of_directory(directory.path()).unwrap());
        prop_assert!(found.map_or(true, |found| found.iter().any(|finding| finding.path == *name)));
    }

    #[test]
    fn manifests_of_arbitrary_bytes_never_panic(result in prop::collection::vec(any::<u8>(), 0..200), run in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut contents = Contents::default();
        contents.add("result.json", &result[..]).unwrap();
        contents.add("manifest.json", &run[..]).unwrap();
        prop_assert!(!verify(&contents).unwrap().is_empty());
    }
}
