//! A session on the three machines that is interrupted in some way, and what it must leave behind: nothing.

use super::{Bed, PATIENCE, within};
use longfat_host::{Namespace, sysctl};
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output},
};

pub const WMEM: &str = "net.ipv4.tcp_wmem";

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn sysctl_on(host: &Namespace, key: &str) -> String {
    host.run(|| sysctl::read(key).unwrap()).unwrap()
}

/// A session that is on, with a flow on its way through the relay. Interrupted as by a person when it is dropped.
pub struct Session<'a> {
    bed: &'a Bed,
    pub lab: Child,
    /// Where the program is on each machine.
    pub directories: Vec<PathBuf>,
    pub wmem: String,
    routes: String,
}

impl<'a> Session<'a> {
    pub fn begin(bed: &'a Bed, output: &str) -> Session<'a> {
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
    pub fn leaves_nothing(&self, why: &str) {
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

pub fn kill(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

pub fn routes(host: &Namespace) -> String {
    host.ip(&["route", "show"]).unwrap()
}

pub fn rules(host: &Namespace) -> String {
    let mut rules = host.command("nft");
    rules.args(["list", "ruleset"]);
    longfat_host::run_command(rules).unwrap()
}

/// Every process of ours on a machine with this among its arguments, at once.
pub fn kill_all(bed: &Bed, host: &Namespace, argument: &str) {
    let found = bed.all_on(host, argument);
    assert!(!found.is_empty(), "no '{argument}' there");
    let pids = found.iter().map(ToString::to_string);
    assert!(Command::new("kill").arg("-KILL").args(pids).status().unwrap().success());
}
