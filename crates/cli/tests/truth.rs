//! Is what is called valid true? A part of experiments/truth-grid.toml, emulated and held against its twins; the whole
//! takes days, by hand.

#![cfg(target_os = "linux")]

use longfat_schema::run::{Ranges, RunManifest, RunStatus, find_runs};
use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

const GRID: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/truth-grid.toml");
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/truth-sample.toml");
const SHORT_QUEUES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/dummynet-grid.toml");

/// One emulates at a time: runs of different speed load congestion controls with different clocks.
fn machine() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    let _machine = machine();
    let directory = tempfile::tempdir().unwrap();
    // Shorter than by hand.
    let grid = fs::read_to_string(GRID).unwrap();
    let short =
        grid.replacen("\nwarmup = \"5s\"\nduration = \"15s\"\n", "\nwarmup = \"1s\"\nduration = \"4s\"\n", 1);
    assert_ne!(short, grid);
    let (file, out) = (directory.path().join("grid.toml"), directory.path().join("out"));
    fs::write(&file, short).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    // A run that the machine held up tells nothing, and is tried again; one that is valid is judged.
    command.args(["lab", "run"]).arg(file).args(["--set", "retries=1", "-o"]).arg(&out);
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

/// Whether a run's goodput is among what these twins came to, or within a share of it.
fn is_among(run: &RunManifest, twins: &Option<Ranges>, share: f64) -> bool {
    let goodput = run.metric("goodput_bps", "measured").unwrap();
    let range = twins.as_ref().and_then(|twins| twins.range("goodput_bps", "measured"));
    range.is_some_and(|[least, most]| (least * (1.0 - share)..=most * (1.0 + share)).contains(&goodput))
}

/// A queue that drains in 2.6 ms, and losses that are repaired one by one: at its own speed this path has hold-ups of a
/// machine of two cores decide what a flow gets, and no seed does.
#[test]
fn a_run_far_from_its_twin_is_held_against_twins_that_are_held_up_as_it_was() {
    let _machine = machine();
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
    command.args(["lab", "run", SHORT_QUEUES, "--repeats", "3", "-o"]).arg(&out);
    command.args(["--cell", "cc=reno", "--cell", "rate=200Mbit", "--cell", "delay=20ms"]);
    for set in ["retries=0", "warmup=2s", "duration=6s"] {
        command.args(["--set", set]);
    }
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let runs = runs(&out, &said);
    assert_eq!(runs.len(), 3, "{said}");
    for run in &runs {
        println!("r{}: {} {:?}", run.repeat, run.status.name(), run.reasons);
        // What it measures itself speaks against some.
        let Some(twin) = &run.twin else {
            assert_eq!(run.status, RunStatus::Invalid, "{said}");
            continue;
        };
        // A window's edges hold a little, so what lies at a limit may be on either side.
        if !(0.8..=1.25).contains(&ratio(run)) {
            assert!(twin.chance.is_some(), "more twins are made of what is far: {said}");
        }
        if (0.95..=1.05).contains(&ratio(run)) {
            assert!(twin.chance.is_none(), "none are made of what is near: {said}");
        }
        match run.status {
            RunStatus::Done => {}
            RunStatus::Invalid => assert!(is_among(run, &twin.held_up, 0.15), "{said}"),
            _ => assert!(!is_among(run, &twin.held_up, 0.05), "{said}"),
        }
        if let Some(held_up) = &twin.held_up {
            assert!(held_up.twins > 0 && held_up.hold_ups > 0 && held_up.longest_us > 0, "{held_up:?}");
            let is_told = run.reasons.first().is_some_and(|first| first.contains("the machine's"));
            assert!(run.status == RunStatus::Done || is_told, "{:?}", run.reasons);
        }
    }
    let held = runs.iter().filter_map(|run| run.twin.as_ref()).filter(|twin| twin.chance.is_some());
    println!("{} of 3 were far from their twins", held.count());
}

#[test]
fn a_sample_of_the_grid_holds_every_value_and_is_the_same_for_the_same_seed() {
    let sample = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
        let output = command.args(["lab", "list", SAMPLE, "--json"]).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let cells = serde_json::from_slice::<Vec<serde_json::Value>>(&output.stdout).unwrap_or_default();
        let names: Vec<String> = cells.iter().map(|cell| cell["case"].as_str().unwrap().to_owned()).collect();
        (names, said)
    };
    let (first, _) = sample(&["--sample", "24"]);
    assert_eq!(first.len(), 24);
    for label in ["rate=7Mbit", "rate=10Gbit", "rtt=1ms", "rtt=600ms", "queue=0.1", "cc=reno", "cc=vegas"] {
        let count = first.iter().filter(|name| name.split(',').any(|part| part == label)).count();
        assert!(count >= 2, "{label}: {count}");
    }
    assert_eq!(first, sample(&["--sample", "24"]).0);
    assert_ne!(first, sample(&["--sample", "24", "--sample-seed", "2"]).0);
    let within = sample(&["--sample", "2", "--cell", "rate=7Mbit"]).0;
    assert!(within.len() == 2 && within.iter().all(|name| name.starts_with("rate=7Mbit,")), "{within:?}");
    let (none, said) = sample(&["--sample", "900"]);
    assert!(none.is_empty() && said.contains("--sample 900: there are 210 cells"), "{said}");
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
