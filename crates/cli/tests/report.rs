//! `longfat report` as a person calls it.

// The synthetic result is the report crate's own.

use crate::support;
use longfat_schema::run::RunStatus;
use std::{
    path::Path,
    process::{Command, Output},
};

fn report(arguments: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.arg("report").args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_directory_that_is_no_run_is_refused_with_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let output = report(&[directory.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("neither a run (manifest.json) nor a result"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn a_result_becomes_a_page_figures_and_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let (result, figures) = (directory.path().join("result"), directory.path().join("svg"));
    support::write_result(&result);
    let output = report(&[&result, Path::new("--svg"), &figures]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("Goodput, Mbit/s") && table.contains("3/3") && table.contains("2/3"), "{table}");
    assert!(std::fs::read_to_string(result.join("report.html")).unwrap().starts_with("<!doctype html>"));
    assert!(figures.join("reno-relayed-backlog.svg").is_file());
}

#[test]
fn the_summary_as_json_is_in_base_units() {
    let directory = tempfile::tempdir().unwrap();
    support::write_run(directory.path(), &support::CASES[0], 1, RunStatus::Done);
    let output = report(&[directory.path(), Path::new("--json")]);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let median = summary[0]["cases"][0]["columns"][0]["median"].as_f64().unwrap();
    assert!((60e6..80e6).contains(&median), "{summary}");
}

#[test]
fn a_place_that_cannot_be_written_is_named_with_the_mend() {
    let directory = tempfile::tempdir().unwrap();
    support::write_run(directory.path(), &support::CASES[0], 1, RunStatus::Done);
    let output = report(&[directory.path(), Path::new("-o"), Path::new("/proc/no/such/place.html")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/proc/no/such/place.html could not be written"), "{}", stderr(&output));
}

#[test]
fn a_damaged_table_leaves_a_page_and_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    support::write_run(directory.path(), &support::CASES[0], 1, RunStatus::Done);
    std::fs::write(directory.path().join("tcp.parquet"), b"rubbish").unwrap();
    let output = report(&[directory.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("tcp.parquet"), "{}", stderr(&output));
    assert!(directory.path().join("report.html").is_file());
}

#[test]
fn a_damaged_manifest_leaves_a_page_of_the_other_runs_and_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    support::write_result(directory.path());
    std::fs::write(directory.path().join("case1/r2/manifest.json"), b"{").unwrap();
    let output = report(&[directory.path()]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("case1/r2/manifest.json") && said.contains("1 files could not be read"), "{said}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(": flow focus\n") && table.contains("2/3"), "{table}");
    assert!(directory.path().join("report.html").is_file());
}
