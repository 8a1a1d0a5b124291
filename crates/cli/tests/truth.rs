//! Is what is called valid true? A part of experiments/truth-grid.toml, emulated and held against its twins; the whole
//! takes days, by hand.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use longfat_schema::run::{RunManifest, RunStatus, find_runs};
use std::{fs, path::Path, process::Command};

const GRID: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/truth-grid.toml");

/// Emulated goodput over that of the same plan, simulated.
fn ratio(run: &RunManifest) -> f64 {
    let twin = run.twin.as_ref().expect("every run that went as planned has its twin");
    run.metric("goodput_bps", "measured").unwrap() / twin.metric("goodput_bps", "measured").unwrap()
}

/// `said` is what made them.
fn runs(directory: &Path, said: &str) -> Vec<RunManifest> {
    find_runs(directory)
        .map_err(|error| format!("{error}; lab run said: {said}"))
        .unwrap()
        .1
        .into_iter()
        .map(|run| run.manifest)
        .collect()
}

#[test]
fn no_cell_of_the_grid_is_valid_and_off_by_more_than_a_fifth() {
    let directory = tempfile::tempdir().unwrap();
    // Shorter than by hand.
    let grid = fs::read_to_string(GRID).unwrap();
    let short =
        grid.replacen("\nwarmup = \"5s\"\nduration = \"15s\"\n", "\nwarmup = \"2s\"\nduration = \"6s\"\n", 1);
    assert_ne!(short, grid);
    let (file, out) = (directory.path().join("grid.toml"), directory.path().join("out"));
    fs::write(&file, short).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.args(["lab", "run"]).arg(file).args(["--set", "retries=0", "-o"]).arg(&out);
    command.args(["--cell", "rate=100Mbit", "--cell", "rtt=30ms", "--cell", "queue=0.5"]);
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let runs = runs(&out, &said);
    assert_eq!(runs.len(), 6, "one of each congestion control: {said}");
    for run in &runs {
        println!("{}: {} {:?}", run.case, run.status.name(), run.reasons);
        match run.status {
            RunStatus::Done => {
                assert!((0.8..=1.2).contains(&ratio(run)), "{}: {}: {said}", run.case, ratio(run))
            }
            RunStatus::Unexplained => assert!(!(0.8..=1.2).contains(&ratio(run)), "{}: {said}", run.case),
            RunStatus::Invalid => assert!(!run.reasons.is_empty(), "{}: {said}", run.case),
            RunStatus::Failed => panic!("{}: {:?}: {said}", run.case, run.reasons),
        }
    }
    assert!(runs.iter().any(|run| run.status.is_as_planned()), "nothing was compared: {said}");
}

#[test]
fn the_whole_grid_is_sound_and_says_how_long_it_takes() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_longfat")).args(["lab", "list", GRID, "--count"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let count: usize = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    assert_eq!(count % 6, 0, "six congestion controls in every cell");
    assert!(count >= 150, "{count}");
}
