//! Sessions of `longfat lab run --backend hosts` that end otherwise than planned, or do not begin: whatever is killed
//! or cut off, nothing of ours is left on the machines. Nothing here judges a clock.
//!
//! Needs root, Debian's openssh-server, and this kernel's namespaces.

use crate::hosts_bed::{
    Bed, Kind, PATIENCE,
    session::{Session, WMEM, kill, kill_all, stderr, sysctl_on},
    within,
};
use longfat_report::site::{self, RunIndex};
use longfat_schema::{
    run::{START_FILE, Start, read_json},
    samples::Samples,
};
use std::time::SystemTime;

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
