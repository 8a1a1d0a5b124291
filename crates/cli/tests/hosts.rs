//! `longfat lab run --backend hosts` as a person uses it: machines reached by SSH, their own path, and nothing of ours
//! left on them.
//!
//! Needs root, Debian's openssh-server, and this kernel's namespaces; nothing here depends on how fast the machine is.

use crate::hosts_bed::{
    Bed, Kind, PATIENCE, directory_of,
    session::{Session, WMEM, kill_all, routes, rules, stderr, sysctl_on},
    within,
};
use longfat_schema::{
    record::{EchoSample, FlowSummary, IntervalSample, LinkSummary, QueueSample, RelaySample, TcpSample},
    run::{RunDirectory, RunStatus, find_runs},
};
use std::{fs, path::Path};

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

#[test]
fn hosts_follow_the_link_that_their_router_announces_and_are_as_before_then() {
    let bed = Bed::new("follow");
    bed.write("spec.toml", &bed.experiment());
    let before = [&bed.sender, &bed.receiver].map(routes);
    let arguments = ["run", "spec.toml", "-o", "real", "--backend", "hosts", "--hosts", "hosts.toml"];
    let mut lab = bed.command(&arguments);
    lab.args(["--case", "plain", "--set", "follows.move.enabled=true", "--set", "duration=4s"]);
    let mut lab = lab.spawn().unwrap();
    // New connections through the router take no rise of the delay for a loss.
    within(3 * PATIENCE, || routes(&bed.sender).contains("rto_min")).expect("the sender follows");
    assert_eq!(lab.wait().unwrap().code(), Some(0));
    assert_eq!([&bed.sender, &bed.receiver].map(routes), before);
    assert_eq!(bed.programs(), Vec::<String>::new());
    let run = &runs(&bed.path("real"))[0];
    let log = |name: &str| fs::read_to_string(run.path.join("log").join(name)).unwrap();
    for host in ["sender", "receiver"] {
        // Hosts elsewhere are told by a datagram of their own.
        let said = log(&format!("follow-move-{host}.log"));
        assert!(said.contains("router 'move' uses"), "{host}: {said}");
    }
    // What the router announced is what the experiment expects of the path.
    assert!(log("announce-move.json").contains("20000000"), "{}", log("announce-move.json"));
    let names = fs::read_dir(run.path.join("log")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(
        !names.into_iter().any(|name| name.to_string_lossy().contains(".key")),
        "the key is nobody else's"
    );
}

#[test]
fn a_run_whose_router_or_relay_listens_elsewhere_is_none_without_it() {
    let bed = Bed::new("elsewhere");
    bed.write("spec.toml", &bed.experiment());
    bed.write("hosts.toml", &bed.table().replace("lan = \"lan\"", "lan = \"admin\""));
    let run = |output: &str, case: &str, set: &str| {
        let arguments = ["run", "spec.toml", "-o", output, "--backend", "hosts", "--hosts", "hosts.toml"];
        bed.lab(&[&arguments[..], &["--case", case, "--set", set]].concat());
        let manifest = runs(&bed.path(output)).remove(0).manifest;
        (manifest.status, manifest.reasons)
    };
    let (status, reasons) = run("followed", "plain", "follows.move.enabled=true");
    assert_eq!(status, RunStatus::Failed, "{reasons:?}");
    for part in ["host 'sender': follower 'move-sender' heard nothing of router 'move'", "announces on admin"]
    {
        assert!(reasons[0].contains(part), "{reasons:?}");
    }
    let (status, reasons) = run("relayed", "relayed", "retries=0");
    assert_eq!(status, RunStatus::Invalid, "{reasons:?}");
    assert!(reasons[0].starts_with("relay 'pep' took no connection on 'admin'"), "{reasons:?}");
    assert_eq!(bed.programs(), Vec::<String>::new());
}

#[test]
fn a_login_shell_that_greets_is_no_answer() {
    let bed = Bed::of("greets", Kind { greets: true, ..Kind::default() });
    bed.write("spec.toml", &bed.experiment());
    let arguments = ["run", "spec.toml", "-o", "real", "--backend", "hosts", "--hosts", "hosts.toml"];
    let output = bed.lab(&[&arguments[..], &["--case", "plain"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(bed.programs(), Vec::<String>::new());
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
fn what_was_killed_with_its_shell_is_undone_by_the_next_run() {
    let bed = Bed::new("next");
    let mut session = Session::begin(&bed, "first");
    // The shell, the program it started, and all that has the program's name.
    for host in [&bed.sender, &bed.router] {
        kill_all(&bed, host, "longfat");
    }
    assert_eq!(session.lab.wait().unwrap().code(), Some(2));
    within(PATIENCE, || bed.programs().is_empty()).expect("something runs on the hosts");
    assert_ne!(sysctl_on(&bed.sender, WMEM), session.wmem, "there is something to undo");
    assert_ne!(rules(&bed.router), "");
    assert!(session.directories[..2].iter().all(|directory| directory.exists()));
    let next =
        ["run", "spec.toml", "-o", "next", "--backend", "hosts", "--hosts", "hosts.toml", "--case", "plain"];
    let output = bed.lab(&next);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    session.leaves_nothing("after the next run");
}

#[test]
fn a_user_who_may_sudo_makes_the_runs_that_root_makes() {
    let bed = Bed::of("sudo", Kind { sudo: true, ..Kind::default() });
    bed.write("spec.toml", &bed.experiment());
    let before = sysctl_on(&bed.sender, WMEM);
    let output = bed.lab(&["run", "spec.toml", "-o", "real", "--backend", "hosts", "--hosts", "hosts.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for run in runs(&bed.path("real")) {
        is_of_the_real_path(&run);
        assert!(!directory_of(&run.path.join("log/receiver-receiver.log")).exists());
    }
    assert_eq!(sysctl_on(&bed.sender, WMEM), before);
    assert_eq!(bed.programs(), Vec::<String>::new());
}

#[test]
fn hosts_are_reached_and_measured_over_ipv6_too() {
    let bed = Bed::new("ipv6");
    bed.write("spec.toml", &bed.experiment());
    let run = |table: &str| {
        bed.lab(&[
            "run",
            "spec.toml",
            "-o",
            "real",
            "--backend",
            "hosts",
            "--hosts",
            table,
            "--set",
            "family=6",
        ])
    };
    let refused = run("hosts.toml");
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("hosts.receiver.address6: flow 'measured' goes there"),
        "{}",
        stderr(&refused)
    );
    let output = run("hosts6.toml");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let real = runs(&bed.path("real"));
    assert_eq!(real.len(), 2);
    real.iter().for_each(is_of_the_real_path);
    for run in &real {
        let log = fs::read_to_string(run.path.join("log/sender-measured.log")).unwrap();
        assert!(log.contains("[fd91:1::2]"), "{log}");
    }
    let told = fs::read_to_string(real[1].path.join("log/relay-pep.toml")).unwrap();
    assert!(
        told.contains("forwarding = true") && !real[0].path.join("log/relay-pep.toml").exists(),
        "{told}"
    );
    assert!(!real[1].read::<RelaySample>().unwrap().is_empty());
    assert_eq!(bed.programs(), Vec::<String>::new());
}
