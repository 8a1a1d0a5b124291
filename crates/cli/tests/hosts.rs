//! `longfat lab run --backend hosts` as a person uses it: machines reached by SSH, their own path, and nothing of ours
//! left on them.
//!
//! Needs root, Debian's openssh-server, and this kernel's namespaces; nothing here depends on how fast the machine is.

use crate::hosts_bed::{Bed, Kind, PATIENCE, directory_of, within};
use longfat_host::{Namespace, sysctl};
use longfat_report::site::{self, RunIndex};
use longfat_schema::{
    record::{EchoSample, FlowSummary, IntervalSample, LinkSummary, QueueSample, RelaySample, TcpSample},
    run::{RunDirectory, RunStatus, START_FILE, Start, find_runs, read_json},
    samples::Samples,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
    time::SystemTime,
};

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
fn two_hosts_on_one_machine_and_a_tmp_without_programs_are_told_before_a_run() {
    let bed = Bed::new("same");
    bed.write("spec.toml", &bed.experiment());
    bed.write("same.toml", &bed.table().replace("ssh = \"receiver\"", "ssh = \"sender\""));
    let check = |table: &str| {
        let output = bed.lab(&["check", "spec.toml", "--hosts", table]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output))
    };
    let (code, said) = check("same.toml");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("hosts 'receiver' and 'sender': they are the same machine"), "{said}");
    let quiet = Bed::of("noexec", Kind { noexec: true, ..Kind::default() });
    quiet.write("spec.toml", &quiet.experiment());
    let output = quiet.lab(&["check", "spec.toml", "--hosts", "hosts.toml"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("host 'sender' (ssh sender): programs in /tmp"), "{said}");
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

/// A session that is on, with a flow on its way through the relay. Interrupted as by a person when it is dropped.
struct Session<'a> {
    bed: &'a Bed,
    lab: Child,
    /// Where the program is on each machine.
    directories: Vec<PathBuf>,
    wmem: String,
    routes: String,
}

impl<'a> Session<'a> {
    fn begin(bed: &'a Bed, output: &str) -> Session<'a> {
        bed.write("spec.toml", &bed.experiment());
        let (wmem, before) = (sysctl_on(&bed.sender, WMEM), routes(&bed.sender));
        let arguments = ["run", "spec.toml", "-o", output, "--backend", "hosts", "--hosts", "hosts.toml"];
        let mut lab = bed.command(&arguments);
        let sets = ["--set", "duration=60s", "--set", "follows.move.enabled=true"];
        let lab = lab.args(["--case", "relayed"]).args(sets).spawn().unwrap();
        let mut session = Session { bed, lab, directories: Vec::new(), wmem, routes: before };
        // The program is large, and copied to three machines.
        within(3 * PATIENCE, || bed.program_on(&bed.sender, "send").is_some())
            .expect("no flow within three minutes");
        let of = |host: &Namespace| {
            let agent = bed.program_on(host, "agent").unwrap();
            fs::read_link(format!("/proc/{agent}/exe")).unwrap().parent().unwrap().to_owned()
        };
        session.directories = bed.hosts().map(of).to_vec();
        assert_ne!(sysctl_on(&bed.sender, WMEM), session.wmem);
        assert_ne!(rules(&bed.router), "");
        within(PATIENCE, || routes(&bed.sender).contains("rto_min")).expect("the sender follows");
        session
    }

    /// Everything on the machines is as before.
    fn leaves_nothing(&self, why: &str) {
        let bed = self.bed;
        within(PATIENCE, || bed.programs().is_empty())
            .unwrap_or_else(|| panic!("{why}: still running: {:?}", bed.programs()));
        assert_eq!(sysctl_on(&bed.sender, WMEM), self.wmem, "{why}");
        assert_eq!(rules(&bed.router), "", "{why}");
        assert_eq!(routes(&bed.sender), self.routes, "{why}");
        let left: Vec<&PathBuf> = self.directories.iter().filter(|directory| directory.exists()).collect();
        assert!(left.is_empty(), "{why}: {left:?}");
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if matches!(self.lab.try_wait(), Ok(None)) {
            kill("-INT", self.lab.id() as i32);
            let _ = self.lab.wait();
        }
    }
}

fn kill(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn routes(host: &Namespace) -> String {
    host.ip(&["route", "show"]).unwrap()
}

fn rules(host: &Namespace) -> String {
    let mut rules = host.command("nft");
    rules.args(["list", "ruleset"]);
    longfat_host::run_command(rules).unwrap()
}

#[test]
fn a_leader_that_is_killed_leaves_nothing_on_the_hosts() {
    for (tag, sudo) in [("killed", false), ("killed-sudo", true)] {
        let bed = Bed::of(tag, Kind { sudo, ..Kind::default() });
        let signals: &[&str] = if sudo { &["-KILL"] } else { &["-KILL", "-TERM"] };
        for signal in signals {
            let mut session = Session::begin(&bed, &format!("out{signal}"));
            kill(signal, session.lab.id() as i32);
            session.lab.wait().unwrap();
            session.leaves_nothing(&format!("{tag}, {signal}"));
        }
    }
}

#[test]
fn an_agent_that_is_killed_ends_the_session_and_leaves_nothing_on_any_host() {
    for (tag, sudo) in [("agent", false), ("agent-sudo", true)] {
        let bed = Bed::of(tag, Kind { sudo, ..Kind::default() });
        let hosts = bed.hosts().into_iter().zip(["sender", "router", "receiver"]);
        for (host, name) in hosts.filter(|(_, name)| !sudo || *name == "router") {
            let mut session = Session::begin(&bed, name);
            kill("-KILL", bed.program_on(host, "agent").unwrap());
            assert_eq!(session.lab.wait().unwrap().code(), Some(2), "{tag}, {name}");
            session.leaves_nothing(&format!("{tag}, {name}"));
        }
    }
}

#[test]
fn a_host_that_its_leader_can_no_longer_reach_sets_everything_back() {
    let bed = Bed::new("cut");
    let mut session = Session::begin(&bed, "out");
    bed.cut_off_the_sender();
    assert_eq!(session.lab.wait().unwrap().code(), Some(2));
    // Nobody tells it: it hears nothing for a minute.
    within(3 * PATIENCE, || bed.program_on(&bed.sender, "agent").is_none()).expect("it waits for ever");
    assert_eq!(sysctl_on(&bed.sender, WMEM), session.wmem);
    assert_eq!(bed.program_on(&bed.sender, "send"), None);
    within(PATIENCE, || !session.directories[0].exists()).expect("its directory stays");
}

/// Every process of ours on a machine with this among its arguments, at once.
fn kill_all(bed: &Bed, host: &Namespace, argument: &str) {
    let found = bed.all_on(host, argument);
    assert!(!found.is_empty(), "no '{argument}' there");
    let pids = found.iter().map(ToString::to_string);
    assert!(Command::new("kill").arg("-KILL").args(pids).status().unwrap().success());
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
fn a_shell_that_is_killed_by_itself_ends_the_session_and_leaves_nothing() {
    let bed = Bed::of("shell", Kind { sudo: true, ..Kind::default() });
    let mut session = Session::begin(&bed, "out");
    kill_all(&bed, &bed.sender, "sh");
    assert_eq!(session.lab.wait().unwrap().code(), Some(2));
    session.leaves_nothing("the shell");
}

#[test]
fn a_sudo_that_is_killed_by_itself_does_not_have_anything_set_back_while_the_run_goes_on() {
    let bed = Bed::of("lone", Kind { sudo: true, ..Kind::default() });
    let mut session = Session::begin(&bed, "out");
    let agent = bed.program_on(&bed.sender, "agent").unwrap();
    kill_all(&bed, &bed.sender, "sudo");
    within(PATIENCE, || bed.program_on(&bed.sender, "--restore").is_some())
        .expect("the shell does not go on");
    assert!(bed.all_on(&bed.sender, "longfat").contains(&agent));
    assert_ne!(sysctl_on(&bed.sender, WMEM), session.wmem);
    assert!(session.directories[0].exists());
    kill("-INT", session.lab.id() as i32);
    session.lab.wait().unwrap();
    session.leaves_nothing("the sudo");
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

#[test]
fn a_run_is_drawn_while_it_goes_on_by_the_leaders_clock_whatever_the_hosts_are() {
    // Two machines with clocks of their own.
    let bed = Bed::of("live", Kind { ahead_s: [0, 5000, 90_000], ..Kind::default() });
    let session = Session::begin(&bed, "now");
    let place = bed.directory.path();
    let live = || {
        let index = RunIndex::of(place);
        site::live(&index, index.get("now").unwrap(), SystemTime::now()).unwrap()
    };
    // What has nothing to draw yet is named, too, but not as a chart's title.
    let is_drawn = |shown: &str, chart: &str| {
        let headings = shown.split("class=\"heading\"").skip(1);
        headings.map(|rest| &rest[..rest.find('<').unwrap_or(0)]).any(|heading| heading.contains(chart))
    };
    let charts = ["Goodput", "Congestion window", "Smoothed round-trip time", "Echo latency", "backlog"];
    within(PATIENCE, || charts.iter().all(|chart| is_drawn(&live(), chart)))
        .unwrap_or_else(|| panic!("not drawn within a minute: {}", live()));
    let shown = live();
    assert!(shown.contains("0 of 1 runs made") && shown.contains("relayed, repeat 1"), "{shown}");
    // Of a program's records none is from before the session, nor from 5000 or 90,000 s later.
    let raw = place.join("now/relayed/r1/raw");
    let start: Start = read_json(&raw.join(START_FILE)).unwrap();
    let mut samples = Samples::default();
    samples.gather(&raw.join("so-far.jsonl"), start.own_time()).unwrap();
    let times = samples.tcp.iter().map(|row| (row.role.as_str(), row.time_us));
    let times: Vec<_> = times.chain(samples.interval.iter().map(|row| ("interval", row.time_us))).collect();
    for role in ["sender", "relay_out", "interval"] {
        assert!(times.iter().any(|(known, _)| *known == role), "{role}");
    }
    assert!(times.iter().all(|(_, time_us)| (-30_000_000..600_000_000).contains(time_us)), "{times:?}");
    drop(session);
    assert!(!raw.exists());
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
    assert_eq!(checked.status.code(), Some(3), "{}", stderr(&checked));
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        said.contains("sender is sender") && said.contains("host 'router' (ssh root@10.92.2.99)"),
        "{said}"
    );
    assert_eq!(sysctl_on(&bed.sender, WMEM), before);
    within(PATIENCE, || bed.programs().is_empty()).expect("something runs on the hosts");
}
