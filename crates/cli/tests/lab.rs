//! `longfat lab` as a person uses it: whole runs in network namespaces, bad input, and ways to end early.
//!
//! Needs root and this kernel's namespaces; nothing here depends on how fast the machine is.

use crate::programs;
use longfat_schema::{
    record::{EchoSample, FlowSummary, QueueSample, RelaySample, TcpSample},
    run::{ResultManifest, ResultStatus, RunStatus, find_runs, read_json},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Two cases over an emulated path, with a relay in one of them. The name tells tests apart.
fn spec(name: &str) -> String {
    format!(
        r#"
name = "{name}"
title = "Two short runs"
warmup = "300ms"
duration = "700ms"
retries = 0
start_within = "100s"
hold_up_limit = 1.0
focus = "measured"
[hosts.sender]
[hosts.relay]
forward = true
[hosts.receiver]
[links.lan]
between = ["sender", "relay"]
[links.path]
between = ["relay", "receiver"]
rate = "20Mbit"
delay = "2ms"
queue = {{ limit = "50KB" }}
late_limit_p99 = "100s"
pause_limit = 1.0
[flows.measured]
from = "sender"
to = "receiver"
cc = "cubic"
streams = 2
echo_every = "20KB"
[relays.pep]
host = "relay"
intercept = ["lan"]
cc_client = "reno"
cc_server = "lf_highspeed"
enabled = false
[[cases]]
name = "plain"
[[cases]]
name = "relayed"
set = {{ "relays.pep.enabled" = true }}
[[expect]]
text = "bytes arrive"
left = {{ case = "plain", metric = "goodput_bps", of = "measured" }}
right = 1.0
at_least = 1.0
"#
    )
}

/// A directory of a test's own, with an experiment in it.
struct Bench {
    directory: tempfile::TempDir,
    name: String,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let name = format!("t{}-{name}", std::process::id());
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("spec.toml"), spec(&name)).unwrap();
        Bench { directory, name }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longfat"));
        command.current_dir(self.directory.path()).arg("lab").args(arguments);
        command
    }

    fn lab(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Namespaces, leases and programs of this test's experiment that exist.
    fn left_behind(&self) -> Vec<String> {
        let names = |directory: &str| {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let mut found: Vec<String> = names("/run/netns")
            .into_iter()
            .chain(names("/run/longfat"))
            .filter(|n| n.contains(&self.name))
            .collect();
        let here = self.directory.path().to_string_lossy().into_owned();
        found.extend(names("/proc").into_iter().filter(|pid| {
            let directory = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            pid.parse::<u32>().is_ok() && directory.starts_with(&here)
        }));
        found
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until the flows of the first run have begun: their samples exist.
fn wait_for_flows(bench: &Bench, lab: &mut Child) {
    let samples = bench.path("out/plain/r1/raw/sender-measured.jsonl");
    let patience = Instant::now() + Duration::from_secs(60);
    while !samples.exists() {
        assert!(lab.try_wait().unwrap().is_none(), "the lab ended before its flows began");
        assert!(Instant::now() < patience, "no flow within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a run long enough to be interrupted.
fn start_long_run(bench: &Bench) -> Child {
    let mut lab = bench
        .command(&["run", "spec.toml", "-o", "out", "--set", "duration=60s"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_flows(bench, &mut lab);
    lab
}

fn signal(process: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn an_experiment_becomes_a_result_with_every_record_and_leaves_nothing_else() {
    let bench = Bench::new("whole");
    let output = bench.lab(&["run", "spec.toml", "-o", "out"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(bench.left_behind(), Vec::<String>::new());
    let (result, runs) = find_runs(&bench.path("out")).unwrap();
    let result = result.unwrap();
    assert_eq!(result.status, ResultStatus::Complete);
    assert_eq!(result.expectations[0].met, Some(true));
    assert_eq!(runs.len(), 2);
    for run in &runs {
        let manifest = &run.manifest;
        assert_eq!(manifest.status, RunStatus::Done, "{:?}", manifest.reasons);
        assert!(manifest.metric("goodput_bps", "measured").unwrap() > 1e5);
        assert!(manifest.metric("queue_max_bytes", "path/forward").is_some());
        assert_eq!(run.read::<FlowSummary>().unwrap().len(), 2);
        assert!(!run.read::<EchoSample>().unwrap().is_empty());
        assert!(!run.read::<QueueSample>().unwrap().is_empty());
        assert!(run.read::<TcpSample>().unwrap().iter().any(|row| row.role == "sender" && row.cc == "cubic"));
        assert_eq!(manifest.hosts.len(), 3);
        assert!(manifest.hosts["relay"].sysctls.len() > 100);
        assert_eq!(manifest.hosts["relay"].interfaces["path"]["tx-tcp-segmentation"], "off");
        assert!(!manifest.hosts["receiver"].counters.is_empty());
        assert!(
            run.plan::<serde_json::Value>().unwrap()["links"][1]["path"]["forward"]["line"]["rate_bps"]
                == 20_000_000
        );
        assert!(!run.path.join("raw").exists());
    }
    assert!(
        runs.iter()
            .all(|run| run.manifest.twin.as_ref().unwrap().metric("goodput_bps", "measured").unwrap() > 1e5)
    );
    let cases: Vec<&str> = result.twins.iter().map(|beside| beside.case.as_str()).collect();
    assert!(cases.contains(&"plain") && cases.contains(&"relayed"), "{cases:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Beside the simulator: "));
    let relayed = &runs[1];
    assert!(!relayed.read::<RelaySample>().unwrap().is_empty());
    assert_eq!(bench.lab(&["verify", "out"]).status.code(), Some(0));
    let long_leg =
        relayed.read::<TcpSample>().unwrap().into_iter().find(|row| row.role == "relay_out").unwrap();
    assert_eq!(long_leg.cc, "lf_highspeed");
}

/// Runs the lab as a user without any privilege, in a directory that user may write to.
fn unprivileged(bench: &Bench, arguments: &[&str]) -> Output {
    fs::set_permissions(bench.directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // The build directory may be closed to others.
    let program = bench.path("longfat");
    programs::copy(env!("CARGO_BIN_EXE_longfat"), &program);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
    let mut command = Command::new("setpriv");
    command.current_dir(bench.directory.path()).args(nobody).arg(program).arg("lab").args(arguments);
    command.output().unwrap()
}

fn copy_experiment(bench: &Bench, name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments").join(name);
    fs::copy(from, bench.path(name)).unwrap();
}

#[test]
fn the_smoke_experiment_is_simulated_without_privileges_and_comes_out_the_same_again() {
    let bench = Bench::new("sim");
    copy_experiment(&bench, "smoke.toml");
    for out in ["first", "second"] {
        let output = unprivileged(&bench, &["run", "smoke.toml", "--backend", "sim", "-o", out]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let (result, runs) = find_runs(&bench.path("first")).unwrap();
    let cases: Vec<_> = runs.iter().map(|run| run.manifest.case.as_str()).collect();
    assert_eq!(
        (result.unwrap().status, cases),
        (ResultStatus::Complete, vec!["plain", "relayed", "relayed-queue-off"])
    );
    for run in &runs {
        let manifest = &run.manifest;
        assert_eq!(
            (manifest.status, manifest.backend.as_str()),
            (RunStatus::Done, "sim"),
            "{:?}",
            manifest.reasons
        );
        assert!(manifest.hosts.is_empty());
        assert!(!run.read::<EchoSample>().unwrap().is_empty());
        let again = bench.path("second").join(format!("{}/r1", manifest.case));
        for entry in fs::read_dir(&run.path).unwrap() {
            let name = entry.unwrap().file_name();
            if name.to_string_lossy().ends_with(".parquet") {
                let same = fs::read(run.path.join(&name)).unwrap() == fs::read(again.join(&name)).unwrap();
                assert!(same, "{name:?} of {} differs", manifest.case);
            }
        }
    }
    assert!(
        runs[1]
            .read::<TcpSample>()
            .unwrap()
            .iter()
            .any(|row| row.role == "relay_out" && row.cc == "lf_highspeed")
    );
}

#[test]
fn two_results_are_compared_and_a_difference_beyond_the_limit_is_exit_code_one() {
    let bench = Bench::new("compare");
    copy_experiment(&bench, "smoke.toml");
    let simulate = |out: &str, set: &str| {
        let output =
            bench.lab(&["run", "smoke.toml", "--backend", "sim", "-o", out, "--case", "plain", "--set", set]);
        assert!(output.status.code().is_some_and(|code| code < 3), "{}", stderr(&output));
    };
    simulate("a", "seed=1");
    simulate("b", "links.path.rate=25Mbit");
    let output = bench.lab(&["compare", "a", "a", "--within", "0%"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("No parameter differs."));
    let output = bench.lab(&["compare", "a", "b", "--within", "10%", "--metric", "goodput_bps"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("goodput_bps of measured in plain"), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("plan.links.path.path.forward.line.rate_bps"), "{text}");
    let output = bench.lab(&["compare", "a", "b/plain/r1", "--json"]);
    let comparison: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ratio = comparison["cases"][0]["figures"][0]["ratio"].as_f64().unwrap();
    assert!((0.4..0.6).contains(&ratio), "{ratio}");
    let output = bench.lab(&["compare", "a", "nothing"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_missed_expectation_is_exit_code_one() {
    let bench = Bench::new("missed");
    let impossible = bench.path("spec.toml");
    let text = fs::read_to_string(&impossible).unwrap().replace("right = 1.0", "right = 1e12");
    fs::write(&impossible, text).unwrap();
    let output = bench.lab(&["run", "spec.toml", "-o", "out", "--case", "plain"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("expectation missed: bytes arrive"), "{}", stderr(&output));
}

#[test]
fn an_interrupted_session_keeps_its_result_and_leaves_nothing_behind() {
    let bench = Bench::new("interrupted");
    let lab = start_long_run(&bench);
    signal(&lab, "-INT");
    let output = lab.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(bench.left_behind(), Vec::<String>::new());
    let result: ResultManifest = read_json(&bench.path("out/result.json")).unwrap();
    assert_eq!((result.status, result.runs.len()), (ResultStatus::Interrupted, 0));
}

#[test]
fn what_a_killed_session_left_is_removed_by_lab_clean() {
    let bench = Bench::new("killed");
    let mut lab = start_long_run(&bench);
    signal(&lab, "-KILL");
    lab.wait().unwrap();
    assert!(!bench.left_behind().is_empty(), "a killed session cannot clean up");
    let output = bench.lab(&["clean"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(bench.left_behind(), Vec::<String>::new());
}

#[test]
fn flows_over_a_satellite_begin_on_time_though_agreeing_takes_many_round_trips() {
    let bench = Bench::new("far");
    // Ten round trips and more until the ends agree: all of them are before the start.
    let sets = ["links.path.delay=300ms", "start_within=2s", "duration=3s", "flows.measured.streams=12"];
    // Three seconds are five round trips of slow start, in which the simulator need not be near.
    let mut arguments = vec!["run", "spec.toml", "-o", "out", "--no-twin"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let output = bench.lab(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (_, runs) = find_runs(&bench.path("out")).unwrap();
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!(run.manifest.status, RunStatus::Done, "{:?}", run.manifest.reasons);
        let flows = run.read::<FlowSummary>().unwrap();
        assert_eq!(flows.len(), 12);
        assert!(flows.iter().all(|flow| flow.start_us >= 0), "before the start: {flows:?}");
        let log = fs::read_to_string(run.path.join("log/sender-measured.log")).unwrap();
        for step in ["making the control connection", "agreeing on the plan", "comparing clocks"] {
            assert!(log.contains(&format!("{step} took ")), "{step}: {log}");
        }
        // What told the sender stays with the run.
        let told = fs::read_to_string(run.path.join("log/sender-measured.json")).unwrap();
        assert_eq!(longfat_transfer::TransferPlan::parse(&told).unwrap().streams, 12);
    }
}

/// Runs without the relayed case, which says nothing of what is tried.
fn leave_out_relay(bench: &Bench) {
    let relayed = "[[cases]]\nname = \"relayed\"\nset = { \"relays.pep.enabled\" = true }\n";
    let text = spec(&bench.name);
    assert!(text.contains(relayed));
    fs::write(bench.path("spec.toml"), text.replace(relayed, "")).unwrap();
}

#[test]
fn a_run_that_is_carried_out_slower_reports_everything_in_its_own_time() {
    let bench = Bench::new("slow");
    // Nobody beside it has these in the kernel, with a clock of their own.
    let ccs = ["flows.measured.cc=lf_cubic", "relays.pep.cc_server=lf_scalable"];
    let sets = ["dilate=4", ccs[0], ccs[1], "links.path.delay=10ms"];
    let mut arguments = vec!["run", "spec.toml", "-o", "out"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let output = bench.lab(&arguments);
    let (_, runs) = find_runs(&bench.path("out")).unwrap();
    let came_to: Vec<_> = runs.iter().map(|run| (run.manifest.status, &run.manifest.reasons)).collect();
    assert_eq!(output.status.code(), Some(0), "{} {came_to:?}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 of 1, 4× slower"));
    let (run, manifest) = (&runs[0], &runs[0].manifest);
    assert_eq!((manifest.dilation.times(), manifest.window_end_us), (4, 1_000_000));
    let remarked = |reason: &String| reason.contains("delayed by at most 10 ms");
    assert!(manifest.reasons.iter().any(remarked), "{:?}", manifest.reasons);
    assert_eq!(run.plan::<serde_json::Value>().unwrap()["dilation"], 4);
    assert_eq!(manifest.hosts["sender"].sysctls["net.ipv4.tcp_rto_min_us"], "800000");
    // The path carries 5 Mbit/s as the machine sees it, and 20 in the experiment's time.
    let goodput_bps = manifest.metric("goodput_bps", "measured").unwrap();
    assert!((5e6..20e6).contains(&goodput_bps), "{goodput_bps}");
    let tcp = run.read::<TcpSample>().unwrap();
    let senders = || tcp.iter().filter(|row| row.role == "sender" && row.srtt_us > 0);
    assert!(senders().count() > 10 && senders().all(|row| row.cc == "lf_cubic"));
    assert!(senders().all(|row| row.rto_us >= 200_000), "the least timeout slowed down with the run");
    assert!(senders().all(|row| row.srtt_us >= 20_000), "a round trip is two times 10 ms");
    assert!(tcp.iter().all(|row| row.time_us <= 1_000_000 + 5_000_000), "and ends a second after the start");
    let drained: u64 = run.read::<FlowSummary>().unwrap().iter().map(|flow| flow.received_bytes).sum();
    let last =
        run.read::<QueueSample>().unwrap().into_iter().rfind(|row| row.direction == "forward").unwrap();
    assert!(last.delivered_bytes >= drained, "bytes are what they were");

    let (run, manifest) = (&runs[1], &runs[1].manifest);
    assert_eq!(
        (manifest.case.as_str(), manifest.status),
        ("relayed", RunStatus::Done),
        "{:?}",
        manifest.reasons
    );
    let relayed = run.read::<RelaySample>().unwrap();
    let filled = relayed.iter().filter(|row| row.direction == "client_to_server" && row.relayed_bytes > 0);
    let filled: Vec<_> = filled.collect();
    assert!(filled.len() > 10 && filled.iter().all(|row| row.target_us == Some(20_000)), "{filled:?}");
    let drained = filled.iter().filter_map(|row| row.drain_bps).max();
    assert!(drained.is_some_and(|bps| (2_000_000..40_000_000).contains(&bps)), "{drained:?}");
    let told = fs::read_to_string(run.path.join("log/relay-pep.toml")).unwrap();
    assert!(told.contains("dilate = 4") && told.contains("coalesce = \"8000000ns\""), "{told}");
}

#[test]
fn connections_of_a_slowed_run_wait_for_its_round_trips_not_for_the_kernels_second() {
    let bench = Bench::new("slow-far");
    // 3.2 s as the machine sees them: after 3 s it takes a neighbour for gone, and has sent three SYNs.
    let sets = ["dilate=10", "flows.measured.cc=lf_reno", "links.path.delay=160ms", "duration=500ms"];
    leave_out_relay(&bench);
    let mut arguments = vec!["run", "spec.toml", "-o", "out", "--no-twin"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let output = bench.lab(&arguments);
    let (_, runs) = find_runs(&bench.path("out")).unwrap();
    let manifest = &runs[0].manifest;
    assert_ne!(manifest.status, RunStatus::Failed, "{}", stderr(&output));
    for host in ["sender", "receiver"] {
        let again = manifest.hosts[host].counters.get("TcpExtTCPSynRetrans").copied().unwrap_or(0);
        assert_eq!(again, 0, "{host}");
    }
}

#[test]
fn what_cannot_be_slowed_is_refused_before_anything_is_made() {
    let bench = Bench::new("refused");
    let output = bench.lab(&["run", "spec.toml", "-o", "out", "--case", "plain", "--set", "dilate=4"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("plain: flows.measured.cc") && said.contains("lf_cubic"), "{said}");
    assert!(!bench.path("out").exists());
}

#[test]
fn ipv4_passes_links_that_are_too_small_for_ipv6_through_a_relay_too() {
    let bench = Bench::new("small");
    let mtus = ["--set", "links.lan.mtu=1000", "--set", "links.path.mtu=576"];
    let output = bench.lab(&[&["run", "spec.toml", "-o", "out"][..], &mtus].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (_, runs) = find_runs(&bench.path("out")).unwrap();
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!(run.manifest.status, RunStatus::Done, "{:?}", run.manifest.reasons);
    }
    let simulated = bench.lab(&[&["run", "spec.toml", "-o", "sim", "--backend", "sim"][..], &mtus].concat());
    assert_eq!(simulated.status.code(), Some(0), "{}", stderr(&simulated));
    let refused = bench.lab(&[&["check", "spec.toml", "--set", "family=6"][..], &mtus].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("flow 'measured' uses IPv6 there"), "{}", stderr(&refused));
    assert_eq!(bench.left_behind(), Vec::<String>::new());
}

#[test]
fn a_program_that_fails_fails_the_run_and_is_quoted() {
    let bench = Bench::new("failing");
    // One port, which the control connection has.
    let ports = "hosts.sender.sysctls={\"net.ipv4.ip_local_port_range\"=\"40000 40000\"}";
    let output = bench.lab(&["run", "spec.toml", "-o", "out", "--case", "plain", "--set", ports]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("sender of flow 'measured' ended early"), "{}", stderr(&output));
    let own_words = ":5201 for data: Cannot assign requested address (os error 99); each port";
    assert!(stderr(&output).contains(own_words), "{}", stderr(&output));
    assert_eq!(bench.left_behind(), Vec::<String>::new());
    let (_, runs) = find_runs(&bench.path("out")).unwrap();
    assert_eq!(runs[0].manifest.status, RunStatus::Failed);
}

#[test]
fn bad_input_is_refused_before_anything_is_touched() {
    let bench = Bench::new("bad");
    let refused: &[(&[&str], &str)] = &[
        (&["run", "absent.toml"], "'absent.toml': No such file"),
        (&["run", "spec.toml", "--set", "links.path.rate=20"], "links.path.rate: rate '20' has no unit"),
        (&["run", "spec.toml", "--set", "flows.measurd.cc=reno"], "did you mean 'measured'?"),
        (&["run", "spec.toml", "--set", "nonsense"], "is no KEY=VALUE"),
        (&["run", "spec.toml", "--case", "relay"], "unknown case 'relay'; did you mean 'relayed'?"),
        (&["run", "spec.toml", "-o", "/dev/null/out"], "/dev/null/out"),
        (
            &["run", "spec.toml", "--backend", "sim", "--set", "flows.measured.cc=nosuchcc"],
            "congestion control 'nosuchcc' has no code here to simulate",
        ),
        (&["compare", "spec.toml", "spec.toml"], "neither a run"),
        (&["compare", "a", "b", "--within", "ten"], "is no percentage"),
        (&["compare", "a", "b", "--metric", "godput_bps"], "did you mean 'goodput_bps'?"),
        (&["check", "spec.toml", "--set", "focus=x"], "focus: unknown flow 'x'"),
    ];
    for (arguments, wanted) in refused {
        let output = bench.lab(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(wanted), "{arguments:?}: {}", stderr(&output));
    }
    let lacking = bench.lab(&["run", "spec.toml", "--set", "flows.measured.cc=nosuchcc"]);
    assert_eq!(lacking.status.code(), Some(3), "{}", stderr(&lacking));
    assert!(
        stderr(&lacking).contains("congestion control 'nosuchcc': the kernel has none"),
        "{}",
        stderr(&lacking)
    );
    assert!(!bench.path("runs").exists());
    assert_eq!(bench.left_behind(), Vec::<String>::new());
}

#[test]
fn a_result_is_never_written_over_another() {
    let bench = Bench::new("twice");
    fs::create_dir(bench.path("out")).unwrap();
    fs::write(bench.path("out/result.json"), "{}").unwrap();
    let output = bench.lab(&["run", "spec.toml", "-o", "out"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("written by another program"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(bench.path("out/result.json")).unwrap(), "{}");
}

/// Whole sessions keep everybody away, single runs whole sessions only: a cluster's jobs share a directory.
#[test]
fn nobody_makes_runs_where_somebody_else_makes_them() {
    let bench = Bench::new("busy");
    copy_experiment(&bench, "smoke.toml");
    fs::create_dir(bench.path("out")).unwrap();
    let held = fs::File::open(bench.path("out")).unwrap();
    let run =
        |only: &[&str]| bench.lab(&[&["run", "smoke.toml", "--backend", "sim", "-o", "out"], only].concat());
    held.lock().unwrap();
    for only in [&[][..], &["--only", "1"]] {
        let output = run(only);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("another program is making runs in 'out'"), "{}", stderr(&output));
    }
    assert_eq!(fs::read_dir(bench.path("out")).unwrap().count(), 0, "nothing was written");
    held.unlock().unwrap();
    held.lock_shared().unwrap();
    assert_eq!(run(&["--only", "1"]).status.code(), Some(0));
    assert_eq!(run(&[]).status.code(), Some(2));
    held.unlock().unwrap();
    assert_eq!(run(&[]).status.code(), Some(0));
}

/// A file system of 48 KiB, unmounted on drop.
struct Full<'a>(&'a Path);

impl Drop for Full<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_ends_the_session_with_its_name_and_nothing_left_behind() {
    let bench = Bench::new("full");
    let mount = bench.path("small");
    fs::create_dir(&mount).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=48k", "none"]).arg(&mount).status().unwrap();
    assert!(mounted.success(), "this test mounts a small file system, which needs root");
    let full = Full(&mount);
    let output = bench.lab(&["run", "spec.toml", "-o", "small/out"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("No space left on device"), "{}", stderr(&output));
    drop(full);
    assert_eq!(bench.left_behind(), Vec::<String>::new());
}

#[test]
fn check_names_what_no_kernel_has_and_refuses_more_repeats_than_memory_holds() {
    let bench = Bench::new("lacks");
    let output = bench.lab(&["check", "spec.toml", "--set", "flows.measured.cc=nosuch"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("this host cannot run it") && said.contains("'nosuch'"), "{said}");
    assert_eq!(output.status.code(), Some(3), "neither emulated nor simulated: {said}");
    let output = bench.lab(&["check", "spec.toml", "--repeats", "99999999"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("99999999 are too many"), "{said}");
}

#[test]
fn check_explains_the_plan_and_touches_nothing() {
    let bench = Bench::new("check");
    let output = bench.lab(&["check", "spec.toml", "--repeats", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("6 runs; ") && text.contains("pep on relay: reno | lf_highspeed"), "{text}");
    let output = bench.lab(&["check", "spec.toml", "--json"]);
    let plans: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plans[1]["relays"][0]["cc_server"], "lf_highspeed");
    for said in
        ["Emulated: about", "punctual: a sleep of 1 ms ended", "processors: it is", "packets/s both ways"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!(bench.left_behind(), Vec::<String>::new());
}

#[test]
fn an_emulated_run_is_made_again_and_what_differs_is_shown() {
    let bench = Bench::new("again");
    let output = bench.lab(&["run", "spec.toml", "-o", "out", "--case", "plain", "--no-twin"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("Beside the simulator"));
    let (_, runs) = find_runs(&bench.path("out")).unwrap();
    assert!(runs[0].manifest.twin.is_none());
    let run = runs[0].path.to_string_lossy().into_owned();
    let output = bench.lab(&["rerun", &run, "-o", "again"]);
    let text = String::from_utf8_lossy(&output.stdout);
    // A machine that is too busy makes the new run invalid, and says so.
    if output.status.code() != Some(0) {
        assert!(stderr(&output).contains("is invalid now"), "{}", stderr(&output));
    }
    assert!(text.contains("goodput_bps") && text.contains("No parameter differs"), "{text}");
    assert_eq!(
        find_runs(&bench.path("again").join(runs[0].path.strip_prefix(bench.path("out")).unwrap()))
            .unwrap()
            .1
            .len(),
        1
    );
    assert_eq!(bench.left_behind(), Vec::<String>::new());
}

#[test]
fn what_check_says_a_simulated_run_takes_on_disk_is_about_right() {
    let bench = Bench::new("disk");
    copy_experiment(&bench, "smoke.toml");
    let output = bench.lab(&["run", "smoke.toml", "--backend", "sim", "-o", "out"]);
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", stderr(&output));
    let (_, runs) = find_runs(&bench.path("out")).unwrap();
    for run in runs {
        let plan: longfat_lab::plan::Plan = run.plan().unwrap();
        let files = run.manifest.files.unwrap();
        let taken: u64 = files.values().map(|file| file.bytes).sum();
        let ratio = plan.disk_bytes(longfat_lab::backend::BackendKind::Simulated) / taken as f64;
        assert!((0.5..2.0).contains(&ratio), "{}: {ratio}", run.path.display());
    }
}

/// Least retransmission timeout of the flow's sender over the whole run, and what its host's follower said.
fn followed_from(bench: &Bench, start: &str) -> (u32, String) {
    let follow = format!(
        "[follows.bus]\nrouter = \"relay\"\nlink = \"path\"\nnodes = [\"sender\"]\nstart = \"{start}\"\n[[cases]]"
    );
    let text = spec(&bench.name).replacen("[[cases]]", &follow, 1);
    fs::write(bench.path("followed.toml"), text).unwrap();
    let output = bench.lab(&["run", "followed.toml", "-o", start, "--case", "plain", "--set", "duration=3s"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let run = &find_runs(&bench.path(start)).unwrap().1[0];
    let rows = run.read::<TcpSample>().unwrap();
    let sender = rows.iter().filter(|row| row.role == "sender" && row.rto_us > 0);
    let said = fs::read_to_string(run.path.join("log/follow-bus-sender.log")).unwrap();
    (sender.map(|row| row.rto_us).min().unwrap(), said)
}

#[test]
fn connections_begin_under_a_host_that_follows_or_before_it_does() {
    let bench = Bench::new("followed");
    let (rto_us, said) = followed_from(&bench, "0s");
    assert!(rto_us >= 2_000_000 && said.contains("router 'bus' uses"), "{rto_us}: {said}");
    // Its host began while it was under way.
    let (rto_us, said) = followed_from(&bench, "500ms");
    assert!(rto_us < 2_000_000 && said.contains("ready"), "{rto_us}: {said}");
}
