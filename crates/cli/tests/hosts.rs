//! `longfat lab run --backend hosts` as a person uses it: machines reached by SSH, their own path, and nothing of ours left
//! on them.
//!
//! Needs root, Debian's openssh-server, and this kernel's namespaces; nothing here depends on how fast the machine is.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hosts_bed;

use hosts_bed::{Bed, PATIENCE, directory_of, within};
use longfat_host::{Namespace, sysctl};
use longfat_schema::{
    record::{EchoSample, FlowSummary, IntervalSample, LinkSummary, QueueSample, RelaySample, TcpSample},
    run::{RunDirectory, RunStatus, find_runs},
};
use std::{path::Path, process::Output};

const WMEM: &str = "net.ipv4.tcp_wmem";

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn sysctl_on(host: &Namespace, key: &str) -> String {
    host.run(|| sysctl::read(key).unwrap()).unwrap()
}

fn runs(result: &Path) -> Vec<RunDirectory> {
    find_runs(result).unwrap().1
}

#[test]
fn a_run_on_real_hosts_has_the_records_of_an_emulated_one_and_leaves_nothing_on_them() {
    let bed = Bed::new("whole");
    bed.write("spec.toml", &bed.experiment());
    let before = sysctl_on(&bed.sender, WMEM);
    let output = bed.lab(&["run", "spec.toml", "-o", "real", "--backend", "hosts", "--hosts", "hosts.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(sysctl_on(&bed.sender, WMEM), before);
    assert_eq!(bed.programs(), Vec::<String>::new());
    let real = runs(&bed.path("real"));
    assert_eq!(real.len(), 2);
    for run in &real {
        is_of_the_real_path(run);
        assert!(!directory_of(&run.path.join("log/receiver-receiver.log")).exists());
    }
    assert!(!real[1].read::<RelaySample>().unwrap().is_empty());
    assert_eq!(bed.lab(&["verify", "real"]).status.code(), Some(0));
    let output = bed.lab(&["run", "spec.toml", "-o", "emulated"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for (run, emulated) in real.iter().zip(runs(&bed.path("emulated"))) {
        assert_eq!(told(run), told(&emulated));
    }
    let compared = bed.lab(&["compare", "emulated", "real", "--all"]);
    assert_eq!(compared.status.code(), Some(0), "{}", stderr(&compared));
    let text = String::from_utf8_lossy(&compared.stdout);
    assert!(text.contains("goodput_bps") && text.contains("run.backend"), "{text}");
}

/// What is known of a run over the path between the machines.
fn is_of_the_real_path(run: &RunDirectory) {
    let manifest = &run.manifest;
    assert_eq!(
        (manifest.status, manifest.backend.as_str()),
        (RunStatus::Done, "hosts"),
        "{:?}",
        manifest.reasons
    );
    let goodput = manifest.metric("goodput_bps", "measured").unwrap();
    assert!(goodput > 1e5 && goodput < 20e6, "{goodput} bit/s on 20 Mbit/s");
    // What only an emulated link could tell is absent, not zero.
    assert!(!manifest.metrics.iter().any(|metric| metric.of.starts_with("path/")), "{:?}", manifest.metrics);
    assert!(run.read::<QueueSample>().unwrap().is_empty() && run.read::<LinkSummary>().unwrap().is_empty());
    assert_eq!(manifest.hosts["sender"].sysctls[WMEM], "4096\t16384\t3999999");
    for (name, host) in &manifest.hosts {
        let machine = host.machine.as_ref().unwrap();
        assert!(
            !machine.kernel.is_empty() && !host.counters.is_empty() && !host.interfaces.is_empty(),
            "{name}"
        );
        // All of them have one clock here.
        let clock = machine.clock;
        assert!(clock.offset_us.unsigned_abs() <= clock.error_us, "{name}: {clock:?}");
    }
    // Receivers' times are of the same clock as senders'.
    let ends_us = |time_us: i64| (-30_000_000..=manifest.duration_us + 30_000_000).contains(&time_us);
    assert!(run.read::<IntervalSample>().unwrap().iter().all(|row| ends_us(row.time_us)));
    let tcp = run.read::<TcpSample>().unwrap();
    assert!(tcp.iter().any(|row| row.flow == "ours" && row.role == "sender" && row.cc == "lf_reno"));
    assert!(tcp.iter().all(|row| ends_us(row.time_us)));
    assert!(!run.path.join("raw").exists());
}

/// Tables that hold anything, but for those of links; and who says so.
fn told(run: &RunDirectory) -> Vec<String> {
    let mut found: Vec<String> = run
        .read::<TcpSample>()
        .unwrap()
        .into_iter()
        .map(|row| format!("{} {}", row.flow, row.role))
        .collect();
    found.extend(run.read::<FlowSummary>().unwrap().into_iter().map(|row| format!("flow {}", row.flow)));
    found.extend(
        run.read::<IntervalSample>().unwrap().into_iter().map(|row| format!("interval {}", row.flow)),
    );
    found.extend(run.read::<EchoSample>().unwrap().into_iter().map(|row| format!("echo {}", row.flow)));
    found.extend(
        run.read::<RelaySample>()
            .unwrap()
            .into_iter()
            .map(|row| format!("relay {} {}", row.relay, row.direction)),
    );
    found.sort();
    found.dedup();
    found
}

#[test]
fn a_leader_that_is_killed_leaves_nothing_on_the_hosts() {
    let bed = Bed::new("killed");
    bed.write("spec.toml", &bed.experiment());
    let before = sysctl_on(&bed.sender, WMEM);
    for signal in ["-KILL", "-TERM"] {
        let output = format!("out{signal}");
        let arguments = ["run", "spec.toml", "-o", &output, "--backend", "hosts", "--hosts", "hosts.toml"];
        let mut lab = bed.command(&arguments);
        let mut lab = lab.args(["--case", "relayed", "--set", "duration=60s"]).spawn().unwrap();
        within(PATIENCE, || bed.program_on(&bed.sender, "send").is_some()).expect("no flow within a minute");
        let sender = bed.program_on(&bed.sender, "send").unwrap();
        let directory =
            std::fs::read_link(format!("/proc/{sender}/exe")).unwrap().parent().unwrap().to_owned();
        assert_ne!(sysctl_on(&bed.sender, WMEM), before);
        let killed =
            std::process::Command::new("kill").args([signal, &lab.id().to_string()]).status().unwrap();
        assert!(killed.success());
        lab.wait().unwrap();
        within(PATIENCE, || bed.programs().is_empty())
            .unwrap_or_else(|| panic!("{signal}: still running: {:?}", bed.programs()));
        assert_eq!(sysctl_on(&bed.sender, WMEM), before, "{signal}");
        assert!(!directory.exists(), "{signal}: {}", directory.display());
        let mut rules = bed.router.command("nft");
        rules.args(["list", "ruleset"]);
        assert_eq!(longfat_host::run_command(rules).unwrap(), "", "{signal}");
    }
}

#[test]
fn what_a_host_lacks_is_said_before_anything_is_touched() {
    let bed = Bed::new("refused");
    bed.write("spec.toml", &bed.experiment());
    let before = sysctl_on(&bed.sender, WMEM);
    let run = |table: &str, more: &[&str]| {
        let mut arguments = vec!["run", "spec.toml", "-o", "out", "--backend", "hosts", "--hosts", table];
        arguments.extend(more);
        let output = bed.lab(&arguments);
        (output.status.code(), stderr(&output))
    };
    let (code, said) = run("hosts.toml", &["--set", "flows.measured.cc=nosuchcc"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("host 'sender' (ssh sender): congestion control 'nosuchcc'"), "{said}");
    bed.write("wrong.toml", &bed.table().replace("hosts.receiver", "hosts.reciever"));
    let (code, said) = run("wrong.toml", &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("did you mean 'receiver'?"), "{said}");
    bed.write("away.toml", &bed.table().replace("ssh = \"router\"", "ssh = \"root@10.92.2.99\""));
    let (code, said) = run("away.toml", &[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("host 'router' (ssh root@10.92.2.99): a connection"), "{said}");
    let (code, said) =
        run("hosts.toml", &["--set", "links.path.schedule=[{ at = \"1s\", rate = \"1Mbit\" }]"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("links.path.schedule: a real path does not change"), "{said}");
    assert!(!bed.path("out").exists());
    let checked = bed.lab(&["check", "spec.toml", "--hosts", "away.toml"]);
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        said.contains("sender is sender") && said.contains("host 'router' (ssh root@10.92.2.99)"),
        "{said}"
    );
    assert_eq!(sysctl_on(&bed.sender, WMEM), before);
    within(PATIENCE, || bed.programs().is_empty()).expect("something runs on the hosts");
}
