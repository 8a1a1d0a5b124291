//! Sweeps as a person uses them, in the simulator: interrupted, resumed, spread over many programs, kept. What needs
//! Python's packages (queries, clusters) is tried in python/tests.

use longfat_schema::run::{
    Metric, ResultManifest, ResultStatus, RunDirectory, RunStatus, Twin, read_json, reseal_run,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SPEC: &str = r#"
name = "sweep"
warmup = "500ms"
duration = "1s"
repeats = 2
focus = "measured"
expect = ["goodput > 1Mbit", "fairness <= 1.01"]
[hosts.a]
[hosts.b]
[links.path]
between = ["a", "b"]
rate = "20Mbit"
delay = "5ms"
queue = { limit = "50KB" }
[flows.measured]
from = "a"
to = "b"
cc = "reno"
streams = 2
[sweep]
links.path.rate = ["10Mbit", "20Mbit"]
"#;

struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("spec.toml"), SPEC).unwrap();
        Bench { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lab(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
        command.current_dir(self.directory.path()).arg("lab").args(arguments).output().unwrap()
    }

    /// Runs the lab, which must end with this code.
    fn ends(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.lab(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        format!("{}{said}", String::from_utf8_lossy(&output.stdout))
    }
}

const RUN: [&str; 6] = ["run", "spec.toml", "--backend", "sim", "-o", "out"];

fn result(path: &Path) -> ResultManifest {
    read_json(&path.join("result.json")).unwrap()
}

#[test]
fn a_sweep_that_was_interrupted_goes_on_and_repeats_no_finished_run() {
    let bench = Bench::new();
    bench.ends(0, &[&RUN[..], &["-j", "2"]].concat());
    let first = result(&bench.path("out"));
    assert_eq!(first.runs.len(), 4);
    assert!(first.expectations.iter().all(|expectation| expectation.cells.len() == 2));
    let table = |run: &str| fs::read(bench.path("out").join(run).join("tcp.parquet")).unwrap();
    let (kept, lost, whole) = ("rate=10Mbit/repeat=1", "rate=20Mbit/repeat=1", "rate=20Mbit/repeat=2");
    let before = (table(lost), table(whole));
    let age = fs::metadata(bench.path("out").join(kept).join("manifest.json")).unwrap().modified().unwrap();
    fs::remove_dir_all(bench.path("out").join(lost)).unwrap();
    fs::remove_file(bench.path("out").join(whole).join("manifest.json")).unwrap();
    fs::remove_file(bench.path("out/result.json")).unwrap();
    let said = bench.ends(0, &RUN);
    assert!(said.contains("2 of 4 runs are there already"), "{said}");
    let second = result(&bench.path("out"));
    assert_eq!(second.status, ResultStatus::Complete);
    // A run made again has another seal: its manifest says when it was made.
    let places = |result: &ResultManifest| -> Vec<(String, RunStatus)> {
        result.runs.iter().map(|run| (run.path.clone(), run.status)).collect()
    };
    assert_eq!((places(&second), second.expectations), (places(&first), first.expectations));
    assert!((table(lost), table(whole)) == before, "the same plan makes the same tables");
    let manifest = fs::metadata(bench.path("out").join(kept).join("manifest.json")).unwrap();
    assert_eq!(manifest.modified().unwrap(), age);
}

#[test]
fn a_sweep_grows_by_a_value_and_refuses_runs_of_another_plan() {
    let bench = Bench::new();
    bench.ends(0, &RUN);
    let said = bench.ends(2, &[&RUN[..], &["--set", "flows.measured.streams=3"]].concat());
    assert!(said.contains("was made from another plan (flows.measured.streams: 2 then, 3 now)"), "{said}");
    let grown = SPEC.replace("[\"10Mbit\", \"20Mbit\"]", "[\"5Mbit\", \"10Mbit\", \"20Mbit\"]");
    fs::write(bench.path("spec.toml"), &grown).unwrap();
    let said = bench.ends(0, &RUN);
    assert!(said.contains("4 of 6 runs are there already"), "{said}");
    let cases: Vec<String> = result(&bench.path("out")).cases.into_iter().map(|case| case.name).collect();
    assert_eq!(cases, ["rate=5Mbit", "rate=10Mbit", "rate=20Mbit"]);
    fs::write(bench.path("spec.toml"), SPEC).unwrap();
    let said = bench.ends(2, &RUN);
    assert!(said.contains("holds 'rate=5Mbit/repeat=1', which this experiment does not have"), "{said}");
}

#[test]
fn runs_made_one_by_one_by_number_are_gathered_into_one_result() {
    let bench = Bench::new();
    assert_eq!(bench.ends(0, &["list", "spec.toml", "--count"]), "4\n");
    assert!(bench.ends(0, &["list", "spec.toml"]).contains("rate=20Mbit/repeat=2"));
    for number in ["1", "2", "3", "4", "4"] {
        bench.ends(0, &[&RUN[..], &["--only", number]].concat());
    }
    assert!(!bench.path("out/result.json").exists());
    assert!(bench.ends(2, &[&RUN[..], &["--only", "5"]].concat()).contains("there are runs 1 to 4"));
    let said = bench.ends(0, &RUN);
    assert!(said.contains("4 of 4 runs are there already"), "{said}");
    assert_eq!(result(&bench.path("out")).runs.len(), 4);
}

#[test]
fn a_part_of_a_sweep_is_run_by_its_labels_and_an_expectation_missed_in_a_cell_is_exit_code_one() {
    let bench = Bench::new();
    let said = bench.ends(2, &[&RUN[..], &["--cell", "rate=11Mbit"]].concat());
    assert!(said.contains("unknown label '11Mbit'"), "{said}");
    bench.ends(0, &[&RUN[..], &["--cell", "rate=10Mbit"]].concat());
    assert_eq!(result(&bench.path("out")).cases.len(), 1);
    fs::write(bench.path("spec.toml"), SPEC.replace("goodput > 1Mbit", "goodput > 12Mbit")).unwrap();
    let said = bench.ends(1, &RUN);
    assert!(said.contains("met in 1 of 2 cells; missed in rate=10Mbit: median"), "{said}");
}

#[test]
fn a_session_that_goes_on_and_dies_leaves_no_table_of_the_runs_before_it() {
    let bench = Bench::new();
    bench.ends(0, &[&RUN[..], &["--cell", "rate=10Mbit"]].concat());
    let dataset = bench.path("out/results.parquet");
    assert!(dataset.is_file());
    // Where the next runs should go there is a file: the session ends in the middle.
    fs::write(bench.path("out/rate=20Mbit"), "").unwrap();
    bench.ends(2, &RUN);
    assert_eq!(result(&bench.path("out")).status, ResultStatus::Running);
    assert!(!dataset.exists());
}

#[test]
fn a_sweep_is_verified_packed_sent_and_unpacked_and_every_byte_that_changed_is_named() {
    let bench = Bench::new();
    bench.ends(0, &RUN);
    assert!(bench.ends(0, &["verify", "out"]).contains("files, each as it was recorded"));
    assert!(bench.ends(0, &["verify", "out/rate=10Mbit/repeat=1"]).contains("each as it was recorded"));
    fs::write(bench.path("out/report.html"), "made from it").unwrap();
    bench.ends(0, &["pack", "out"]);
    assert!(bench.ends(0, &["verify", "out.tar.zst"]).contains("each as it was recorded"));
    bench.ends(0, &["unpack", "out.tar.zst", "-o", "elsewhere"]);
    bench.ends(0, &["verify", "elsewhere/out"]);
    assert!(!bench.path("elsewhere/out/report.html").exists());
    let table = bench.path("out/rate=10Mbit/repeat=1/tcp.parquet");
    let mut bytes = fs::read(&table).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&table, bytes).unwrap();
    fs::write(bench.path("out/note.txt"), "").unwrap();
    let said = bench.ends(1, &["verify", "out"]);
    assert!(said.contains("note.txt: was not there when the run ended"), "{said}");
    assert!(said.contains("rate=10Mbit/repeat=1/tcp.parquet: changed, still"), "{said}");
    assert!(bench.ends(2, &["pack", "out", "-o", "b.tar.zst"]).contains("tcp.parquet: changed"));
    assert!(bench.ends(2, &["verify", "spec.toml"]).contains("no whole pack"));
}

#[test]
fn simulated_runs_are_made_again_bit_for_bit_from_plan_and_manifest_and_what_differs_is_named() {
    let bench = Bench::new();
    bench.ends(0, &RUN);
    fs::remove_file(bench.path("spec.toml")).unwrap();
    let run = bench.path("out/rate=10Mbit/repeat=1");
    for entry in fs::read_dir(&run).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "parquet") {
            fs::remove_file(path).unwrap();
        }
    }
    let said = bench.ends(0, &["rerun", "out"]);
    assert_eq!(said.matches("the same, bit for bit").count(), 4, "{said}");
    let said = bench.ends(0, &["rerun", "out/rate=10Mbit/repeat=1", "-o", "again"]);
    assert_eq!(said.matches("the same, bit for bit").count(), 1, "{said}");
    bench.ends(2, &["rerun", "out/rate=10Mbit/repeat=1", "-o", "again"]);
    bench.ends(0, &["verify", "again/rate=10Mbit/repeat=1"]);
    // A manifest that claims what was never observed.
    let manifest = bench.path("out/rate=20Mbit/repeat=1/manifest.json");
    let text = fs::read_to_string(&manifest).unwrap().replacen("\"duration_us\": ", "\"duration_us\": 9", 1);
    fs::write(&manifest, text).unwrap();
    let said = bench.ends(1, &["rerun", "out/rate=20Mbit/repeat=1"]);
    assert!(said.contains("manifest.json: duration_us: 9"), "{said}");
    assert!(said.contains("1 of 1 runs came out otherwise; this is the same longfat"), "{said}");
    // Another plan than the run's.
    let plan = bench.path("out/rate=20Mbit/repeat=2/plan.json");
    fs::write(&plan, fs::read_to_string(&plan).unwrap().replace("\"seed\": ", "\"seed\": 1")).unwrap();
    assert!(
        bench
            .ends(2, &["rerun", "out/rate=20Mbit/repeat=2"])
            .contains("is not the plan that the run was made from")
    );
}

/// Simulated runs that say of themselves that they were emulated, beside a twin of an older simulator.
#[test]
fn twins_are_simulated_again_and_what_is_too_far_from_its_new_one_keeps_its_own() {
    let bench = Bench::new();
    bench.ends(0, &[&RUN[..], &["--set", "twin_limit=0.2"]].concat());
    assert_eq!(bench.ends(0, &["rerun", "out", "--twins"]).matches("has no twin").count(), 4);
    let rewrite = |directory: &str, share_of_own: f64, status: RunStatus| {
        let mut run = RunDirectory::open(&bench.path(directory)).unwrap();
        let scaled = |metric: &Metric, share| Metric { value: metric.value * share, ..metric.clone() };
        let old = run.manifest.metrics.iter().map(|metric| scaled(metric, 2.0)).collect();
        let own = run.manifest.metrics.iter().map(|metric| scaled(metric, share_of_own)).collect();
        (run.manifest.metrics, run.manifest.backend) = (own, "emulated".into());
        run.manifest.twin = Some(Twin { metrics: old, ..Twin::default() });
        run.manifest.status = status;
        run.manifest.reasons = vec!["what the old twin says".into(), "a warning".into()];
        reseal_run(&run.path, &mut run.manifest).unwrap();
        run.manifest
    };
    let [near, far, still] =
        ["out/rate=10Mbit/repeat=1", "out/rate=20Mbit/repeat=1", "out/rate=20Mbit/repeat=2"];
    let before = rewrite(near, 1.05, RunStatus::Unexplained);
    let kept = rewrite(far, 3.0, RunStatus::Done);
    rewrite(still, 3.0, RunStatus::Unexplained);
    let said = bench.ends(1, &["rerun", "out", "--twins"]);
    assert!(
        said.contains("is too far from its new twin: goodput of") && said.contains("2 of 4 runs are too far"),
        "{said}"
    );
    let after = RunDirectory::open(&bench.path(near)).unwrap().manifest;
    let is_goodput = |metric: &&Metric| metric.metric == "goodput_bps" && metric.stream.is_none();
    let figure = after.metrics.iter().find(is_goodput).unwrap();
    let twin = after.twin.as_ref().unwrap();
    assert_eq!((&after.metrics, &after.files), (&before.metrics, &before.files));
    assert_eq!((after.status, &after.reasons[..]), (RunStatus::Done, &["a warning".to_owned()][..]));
    assert!((twin.metric(&figure.metric, &figure.of).unwrap() * 1.05 / figure.value - 1.0).abs() < 1e-9);
    assert!(twin.renewed_unix_ms.is_some());
    bench.ends(0, &["verify", near]);
    assert_eq!(RunDirectory::open(&bench.path(far)).unwrap().manifest, kept);
    let again = RunDirectory::open(&bench.path(still)).unwrap().manifest;
    assert_eq!((again.status, again.reasons.len()), (RunStatus::Unexplained, 2));
    assert!(again.reasons[0].starts_with("goodput of"), "{:?}", again.reasons);
    assert!(again.twin.unwrap().renewed_unix_ms.is_some());
    bench.ends(2, &["rerun", "out", "--twins", "-o", "again"]);
}

#[test]
fn a_result_of_an_earlier_schema_goes_on_and_one_of_a_newer_is_refused() {
    let bench = Bench::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema/tests/v1");
    for name in ["experiment.toml", "result.json"] {
        fs::create_dir_all(bench.path("out/reno/r1")).unwrap();
        fs::copy(fixture.join(name), bench.path("out").join(name)).unwrap();
    }
    for entry in fs::read_dir(fixture.join("reno/r1")).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), bench.path("out/reno/r1").join(entry.file_name())).unwrap();
    }
    assert!(bench.ends(1, &["verify", "out"]).contains("reno/r1/manifest.json: holds no hashes"));
    let said =
        bench.ends(0, &["run", "out/experiment.toml", "--backend", "sim", "-o", "out", "--repeats", "2"]);
    assert!(said.contains("1 of 2 runs are there already"), "{said}");
    assert_eq!(result(&bench.path("out")).runs.len(), 2);
    assert!(bench.ends(0, &["compare", "out", "out"]).contains("No parameter differs"));
    let file = bench.path("out/result.json");
    let newer = fs::read_to_string(&file).unwrap().replace("\"schema_version\": 4", "\"schema_version\": 5");
    fs::write(&file, newer).unwrap();
    for command in ["verify", "pack", "rerun"] {
        let said = bench.ends(2, &[command, "out"]);
        assert!(said.contains("schema version 5") && said.contains("upgrade longfat"), "{said}");
    }
}
