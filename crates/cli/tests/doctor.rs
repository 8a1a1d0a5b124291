//! `longfat doctor` as a person and a script meet it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::Value;
use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Output},
};

fn doctor(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.arg("doctor").args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn features(output: &Output) -> Vec<Value> {
    let object: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    object["features"].as_array().expect("a list").clone()
}

#[test]
fn what_needs_nothing_works_and_the_exit_code_says_so() {
    let output = doctor(&["simulate", "transfer"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = text(&output.stdout);
    assert!(lines.contains("works  transfer") && lines.contains("works  simulate"), "{lines}");
    assert!(!lines.contains("capture"), "only those that were asked for: {lines}");
}

#[test]
fn every_line_fits_a_terminal_and_json_says_the_same() {
    let shown = doctor(&[]).output().unwrap();
    let lines = text(&shown.stdout);
    let of_features =
        || lines.lines().filter(|line| line.starts_with("works  ") || line.starts_with("no     "));
    assert!(of_features().all(|line| line.chars().count() <= 80), "{lines}");
    let told = doctor(&["--json"]).output().unwrap();
    assert_eq!(shown.status.code(), told.status.code());
    let features = features(&told);
    assert_eq!(of_features().count(), features.len());
    let all_work = features.iter().all(|feature| feature["works"] == true);
    assert_eq!(told.status.code(), Some(if all_work { 0 } else { 3 }));
    for feature in features {
        let missing = feature["missing"].as_array().unwrap();
        assert_eq!(feature["works"] == true, missing.is_empty(), "{feature}");
        assert!(missing.iter().all(|thing| !thing["mend"].as_str().unwrap().is_empty()), "{feature}");
    }
}

#[test]
fn without_programs_their_features_do_not_work_and_others_do() {
    let output = doctor(&["--json"]).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let works = |name: &str| {
        let features = features(&output);
        features.iter().find(|feature| feature["name"] == name).unwrap()["works"] == true
    };
    assert!(!works("emulate") && !works("relay-intercept") && !works("query") && !works("hosts"));
    assert!(works("simulate") && works("connections"));
}

#[test]
fn without_rights_they_are_what_is_missing() {
    let nobody = 65534;
    let mut command = doctor(&["cc-load", "capture"]);
    // Removed from root's directories, where nobody may not look.
    let own = tempfile::tempdir().unwrap();
    let program = own.path().join("longfat");
    std::fs::copy(env!("CARGO_BIN_EXE_longfat"), &program).unwrap();
    std::fs::set_permissions(own.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = Command::new(&program);
    let output = command.args(args).uid(nobody).output().unwrap();
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{lines}");
    assert!(lines.contains("Missing: the right to load BPF programs"), "{lines}");
    assert!(lines.contains("for:   cc-load, capture"), "said once, for both: {lines}");
}

#[test]
fn an_unknown_feature_is_refused_with_those_there_are() {
    let output = doctor(&["teleport"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("'teleport' is no feature") && said.contains("cc-load"), "{said}");
}
