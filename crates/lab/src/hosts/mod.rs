//! A plan carried out on machines that SSH reaches, over whatever path is between them.
//!
//! ```text
//! leader                       each machine
//!   look (ssh, a shell)   ──▶  kind, rights, room: nothing is changed
//!   enter (the program)   ──▶  a private directory; `longfat lab agent` answers until its input ends
//!   check, prepare        ──▶  congestion controls, sysctls, relays, receivers
//!   send, status, recent   ──▶  senders; what was recorded since, for who looks on
//!   finish                ──▶  records
//!   end                   ──▶  everything set back
//! ```
//!
//! The links of the plan are not made: they are what the experiment expects of the path. The programs are those of
//! [`crate::emulated`], and so are the records.

pub mod agent;
mod claim;
mod clock;
mod machine;
mod onlook;
mod recent;
mod settings;
mod ssh;
mod table;
mod talk;
#[cfg(test)]
mod tests_support;

pub use claim::{ClaimError, clean, restore};
pub use machine::MachineError;
pub use table::{Table, TableError};

use crate::{
    backend::{BackendKind, Observed, Tick},
    conductor::{self, Ending, Parts, Status},
    part::PartError,
    plan::Plan,
    process::{self, Role},
    samples::Samples,
};
use clock::{Exchange, estimate};
use longfat_host::{facts, monotonic_us, mortal_command, support, support::Missing};
use longfat_mobility::Key;
use longfat_schema::{
    lines,
    record::Record,
    run::{ClockEstimate, FileRecord, HostState},
};
use machine::Machine;
use onlook::Onlook;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, atomic::AtomicBool},
};
use talk::{Answer, Ask, Heard};

/// From "all have agreed" to the first byte, beside the round trip in which they are told.
const LEAD_US: i64 = 500_000;
/// How long before the start of the flows and after their end records may have been made.
const AROUND_US: i64 = 3_600_000_000;
/// Records before they are tables, beside what they take there.
const RAW_FACTOR: f64 = 12.0;

/// Why a run on real hosts did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// A machine failed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// What is done here failed, or was ended.
    #[error(transparent)]
    Here(PartError),
}

impl<E> From<E> for HostsError
where
    PartError: From<E>,
{
    fn from(error: E) -> HostsError {
        HostsError::Here(error.into())
    }
}

impl HostsError {
    /// Whether a person ended it.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(
            self,
            HostsError::Machine(MachineError::Interrupted)
                | HostsError::Here(PartError::Ended(Ending::Interrupted))
        )
    }
}

/// The machines of a session. On drop everything is set back on them.
#[derive(Debug)]
pub struct Hosts {
    /// Which is which.
    pub table: Table,
    machines: Mutex<Vec<Machine>>,
    // Last: sockets and logs of the connections.
    directory: tempfile::TempDir,
}

/// Whether they can do it.
#[derive(Debug)]
pub enum Entered {
    /// The machines wait.
    Ready(Hosts),
    /// Machines lack something; nothing of theirs was changed.
    Lacking(Vec<Missing>),
}

impl Hosts {
    /// What these machines lack for these plans, as far as looking at them tells; nothing is changed there.
    ///
    /// # Errors
    /// A person stopped it, or `ssh` cannot be run.
    pub fn look(
        table: &Table,
        plans: &[Plan],
        program: &Path,
        stop: &AtomicBool,
    ) -> Result<Vec<Missing>, HostsError> {
        Ok(Hosts::reach(table.clone(), plans, program, stop)?.1)
    }

    /// Looks at every machine first, and enters them when none lacks anything.
    ///
    /// # Errors
    /// As [`Hosts::look`]; and a machine that could not be entered.
    pub fn enter(
        table: Table,
        plans: &[Plan],
        program: &Path,
        stop: &AtomicBool,
    ) -> Result<Entered, HostsError> {
        let (mut hosts, mut missing) = Hosts::reach(table, plans, program, stop)?;
        if missing.is_empty() {
            let plans = kinds(plans, &hosts.table);
            let machines = hosts.machines.get_mut().unwrap_or_else(PoisonError::into_inner);
            machines.iter_mut().try_for_each(|machine| machine.make_room(stop))?;
            copy_to_all(machines, program, hosts.directory.path(), stop)?;
            machines.iter_mut().try_for_each(|machine| machine.enter(stop))?;
            for machine in machines {
                missing.extend(machine.lacks(&plans, stop)?);
            }
        }
        Ok(if missing.is_empty() { Entered::Ready(hosts) } else { Entered::Lacking(missing) })
    }

    fn reach(
        table: Table,
        plans: &[Plan],
        program: &Path,
        stop: &AtomicBool,
    ) -> Result<(Hosts, Vec<Missing>), HostsError> {
        let mut missing: Vec<Missing> = [("ssh", "openssh-client"), ("gzip", "gzip")]
            .into_iter()
            .filter_map(|(program, package)| support::missing_program(program, package))
            .collect();
        let directory = tempfile::tempdir().map_err(|source| PartError::io(&std::env::temp_dir(), source))?;
        let begun = table.hosts.iter().filter(|_| missing.is_empty());
        let begun = begun
            .map(|(host, entry)| Machine::begin(host, entry, table.ssh_config.as_deref(), directory.path()));
        let mut machines = begun.collect::<Result<Vec<_>, _>>()?;
        let needed_bytes = needed_bytes(plans, program);
        for machine in &mut machines {
            missing.extend(machine.look(needed_bytes, stop)?);
        }
        missing.extend(machine::shared(&machines));
        let hosts = Hosts { table, machines: Mutex::new(machines), directory };
        Ok((hosts, missing))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // All are told before one is waited for.
        let machines = self.machines.get_mut().unwrap_or_else(PoisonError::into_inner);
        machines.iter_mut().for_each(Machine::dismiss);
    }
}

/// Sends the program to all machines at once, since their lines are most likely not one; it is made small once for all
/// of them.
fn copy_to_all(
    machines: &[Machine],
    program: &Path,
    directory: &Path,
    stop: &AtomicBool,
) -> Result<(), HostsError> {
    let failed = |source| PartError::io(program, source);
    let (record, packed) =
        (FileRecord::of_file(program).map_err(failed)?, pack(program, directory).map_err(failed)?);
    let copying =
        machines.iter().map(|machine| machine.copying(&packed, &record)).collect::<Result<Vec<_>, _>>()?;
    let copied = std::thread::scope(|scope| {
        let threads: Vec<_> =
            copying.iter().map(|copying| scope.spawn(move || copying.carry_out(stop))).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    for (machine, copied) in machines.iter().zip(copied) {
        copied
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map_err(|error| machine.of_ssh(error))?;
    }
    Ok(())
}

/// The program as gzip makes it in little time.
fn pack(program: &Path, directory: &Path) -> io::Result<PathBuf> {
    let packed = directory.join("program.gz");
    let (input, output) = (fs::File::open(program)?, fs::File::create(&packed)?);
    let status = mortal_command("gzip").args(["-1", "-c"]).stdin(input).stdout(output).status()?;
    if status.success() { Ok(packed) } else { Err(io::Error::other(format!("gzip: {status}"))) }
}

/// Room for the program and what one run's programs write.
fn needed_bytes(plans: &[Plan], program: &Path) -> u64 {
    let of_run = plans.iter().map(|plan| plan.disk_bytes(BackendKind::Hosts) * RAW_FACTOR);
    let program = fs::metadata(program).map_or(0, |metadata| metadata.len());
    program + of_run.fold(0.0, f64::max) as u64
}

/// Plans that differ in what they ask of hosts, as the machines see them: repeats of a case do not.
fn kinds(plans: &[Plan], table: &Table) -> Vec<Plan> {
    let mut seen = BTreeSet::new();
    let cases = plans.iter().filter(|plan| seen.insert(plan.case.as_str()));
    cases.map(|plan| table.as_run(plan)).collect()
}

/// Carries a plan out. `tick` is called while the flows run; `stop` ends it early. Whatever becomes of it, the machines
/// are asked to set everything back.
///
/// # Errors
/// A machine failed or is gone, a program of the run failed, or a person stopped it.
pub fn run(
    plan: &Plan,
    hosts: &Hosts,
    directory: &Path,
    tick: &mut dyn FnMut(Tick),
    stop: &AtomicBool,
) -> Result<Observed, HostsError> {
    let plan = hosts.table.as_run(plan);
    let mut machines = hosts.machines.lock().unwrap_or_else(PoisonError::into_inner);
    // Whole records lie apart from those of onlookers.
    let [logs, raw, fetched] = ["log", "raw", "raw/fetched"].map(|name| directory.join(name));
    for path in [&logs, &fetched] {
        fs::create_dir_all(path).map_err(|source| PartError::io(path, source))?;
    }
    let mut stage = Stage { plan: &plan, machines: &mut machines, logs, raw, fetched, stop };
    let observed = stage.carry_out(tick);
    if observed.as_ref().is_err_and(|error| !error.is_interruption()) {
        stage.keep_what_was_written();
    }
    let ended = stage.ask_all(|_| Ask::End);
    let observed = observed?;
    ended?;
    Ok(observed)
}

struct Stage<'a> {
    plan: &'a Plan,
    machines: &'a mut Vec<Machine>,
    logs: PathBuf,
    raw: PathBuf,
    fetched: PathBuf,
    stop: &'a AtomicBool,
}

impl Stage<'_> {
    fn carry_out(&mut self, tick: &mut dyn FnMut(Tick)) -> Result<Observed, HostsError> {
        let before = self.clocks()?;
        let mut hosts = self.prepare()?;
        self.ask_all(|_| Ask::Agree)?;
        let (stop, agree_within) = (self.stop, conductor::agree_within(self.plan));
        conductor::agree(&mut Watched { stage: self, onlook: None }, agree_within, stop)?;
        let round_trip_us = before.iter().map(Exchange::round_trip_us).max().unwrap_or(0);
        let start_us = monotonic_us() + LEAD_US + round_trip_us;
        let offsets_us: Vec<i64> = before.iter().map(Exchange::offset_us).collect();
        self.ask_all(|index| Ask::Begin { start_ns: ((start_us + offsets_us[index]) * 1000) as u64 })?;
        let starts = self.starts(start_us, offsets_us);
        let rebase = Rebase { plan: self.plan, starts: &starts };
        let onlook = Some(Onlook::begin(&self.raw, rebase, start_us)?);
        let plan = self.plan;
        let cpu_busy = conductor::watch(&mut Watched { stage: self, onlook }, plan, start_us, tick, stop)?;
        let duration_us = monotonic_us() - start_us;
        let after = self.clocks()?;
        let clocks: Vec<ClockEstimate> =
            before.into_iter().zip(after).map(|(before, after)| estimate(before, after)).collect();
        let samples = self.finish(start_us, &clocks, &mut hosts)?;
        Ok(Observed { samples, hosts, cpu_busy, duration_us })
    }

    /// Asks all, then hears all: a host that is slow or fails keeps no other from being heard.
    fn ask_all(&mut self, ask: impl Fn(usize) -> Ask) -> Result<Vec<Answer>, HostsError> {
        Ok(self.hear_all(ask)?.into_iter().map(|(answer, _)| answer).collect())
    }

    fn hear_all(&mut self, ask: impl Fn(usize) -> Ask) -> Result<Vec<Heard>, HostsError> {
        let asked: Vec<_> =
            self.machines.iter_mut().enumerate().map(|(index, machine)| machine.ask(&ask(index))).collect();
        let heard: Vec<_> = self
            .machines
            .iter_mut()
            .zip(asked)
            .map(|(machine, asked)| asked.and_then(|()| machine.hear(self.stop)))
            .collect();
        Ok(heard.into_iter().collect::<Result<_, _>>()?)
    }

    /// What time it is everywhere, one after the other: who waits for nobody answers most quickly.
    fn clocks(&mut self) -> Result<Vec<Exchange>, HostsError> {
        Ok(self.machines.iter_mut().map(|machine| machine.clock(self.stop)).collect::<Result<_, _>>()?)
    }

    fn prepare(&mut self) -> Result<BTreeMap<String, HostState>, HostsError> {
        let (plan, keys) = (self.plan, keys(self.plan)?);
        let hosts: Vec<String> = self.machines.iter().map(|machine| machine.host.clone()).collect();
        let answers = self.ask_all(|index| Ask::Prepare(Box::new(with_keys(plan, &keys, &hosts[index]))))?;
        let mut states = BTreeMap::new();
        for (machine, answer) in self.machines.iter().zip(answers) {
            match answer {
                Answer::Prepared(state) => states.insert(machine.host.clone(), *state),
                other => return Err(machine.strange(&other).into()),
            };
        }
        Ok(states)
    }

    /// When the flows begin, by the clock of each host.
    fn starts(&self, start_us: i64, offsets_us: impl IntoIterator<Item = i64>) -> BTreeMap<String, i64> {
        let hosts = self.machines.iter().map(|machine| machine.host.clone());
        hosts.zip(offsets_us).map(|(host, offset_us)| (host, start_us + offset_us)).collect()
    }

    /// What the machines' programs have recorded lately, for who looks on.
    fn recent(&mut self, onlook: &mut Onlook<'_>, elapsed_us: i64) -> Result<(), HostsError> {
        let answers = self.hear_all(|_| Ask::Recent)?;
        let told = self.machines.iter().zip(answers).map(|(machine, answer)| match answer {
            (Answer::File { .. }, Some(packed)) => Ok((machine, packed)),
            (other, _) => Err(machine.strange(&other)),
        });
        onlook.hear(elapsed_us, told.collect::<Result<_, _>>()?)
    }

    /// Ends what serves, fetches what all wrote, and brings it to one clock.
    fn finish(
        &mut self,
        start_us: i64,
        clocks: &[ClockEstimate],
        hosts: &mut BTreeMap<String, HostState>,
    ) -> Result<Samples, HostsError> {
        let answers = self.ask_all(|_| Ask::Finish)?;
        let starts = self.starts(start_us, clocks.iter().map(|clock| clock.offset_us));
        let rebase = Rebase { plan: self.plan, starts: &starts };
        let mut samples = Samples::default();
        for ((index, answer), clock) in answers.into_iter().enumerate().zip(clocks) {
            let machine = &mut self.machines[index];
            let Answer::Finished { counters, files } = answer else {
                return Err(machine.strange(&answer).into());
            };
            let state = hosts.entry(machine.host.clone()).or_default();
            state.counters = facts::growth(&state.counters, &counters);
            if let Some(known) = &mut state.machine {
                known.clock = *clock;
            }
            let asked_for = files_of(self.plan, &machine.host);
            if let Some(name) = files.iter().find(|name| !asked_for.contains(*name)) {
                let what = format!("it names a file '{name}', which no program of this run writes there");
                return Err(machine.failed(what).into());
            }
            for name in files.into_iter().collect::<BTreeSet<_>>() {
                let places = [self.logs.as_path(), self.fetched.as_path()];
                let fetched = fetch(machine, &name, file_bytes_max(self.plan), places, self.stop)?;
                if let Some(path) = fetched {
                    rebase.gather(&path, machine, &mut samples)?;
                }
            }
        }
        samples.sort();
        Ok(samples)
    }

    /// Fetches what the programs of a failed run wrote, from every machine that still answers: it tells why.
    fn keep_what_was_written(&mut self) {
        for index in 0..self.machines.len() {
            // The run's own failure is what a person is told.
            let _ = self.keep_of(index);
        }
    }

    fn keep_of(&mut self, index: usize) -> Result<(), HostsError> {
        let machine = &mut self.machines[index];
        let answer = machine.tell(&Ask::GiveUp, self.stop)?.0;
        let Answer::Finished { files, .. } = answer else { return Err(machine.strange(&answer).into()) };
        let asked_for = files_of(self.plan, &machine.host);
        let places = [self.logs.as_path(), self.fetched.as_path()];
        for name in asked_for.into_iter().filter(|name| files.contains(name)) {
            let path = place_of(&name, places);
            // What came before the failure is whole; a machine that failed may have damaged what it sends now.
            if !path.exists() {
                fetch(machine, &name, file_bytes_max(self.plan), places, self.stop)?;
            }
        }
        Ok(())
    }
}

/// The machines while they are waited for, and who looks on once flows run.
struct Watched<'s, 'a> {
    stage: &'s mut Stage<'a>,
    onlook: Option<Onlook<'s>>,
}

impl Parts for Watched<'_, '_> {
    type Error = HostsError;
    const POLL_US: i64 = 500_000;

    fn status(&mut self, _: &AtomicBool) -> Result<Status, HostsError> {
        let answers = self.stage.ask_all(|_| Ask::Status)?;
        let mut found = Status::default();
        for (machine, answer) in self.stage.machines.iter().zip(answers) {
            match answer {
                Answer::Status(Status { disagreed, running, cpu }) => {
                    let named = |who: Option<String>| who.map(|who| machine.name(&who));
                    // A machine has one set of processors.
                    let cpu = vec![cpu.into_iter().next().flatten()];
                    found.add(Status { disagreed: named(disagreed), running: named(running), cpu });
                }
                other => return Err(machine.strange(&other).into()),
            }
        }
        Ok(found)
    }

    fn arriving_bps(&mut self, elapsed_us: i64, idle_us: i64) -> Result<Option<f64>, HostsError> {
        let Some(onlook) = &mut self.onlook else { return Ok(None) };
        if onlook.is_due(elapsed_us) && idle_us >= Self::POLL_US {
            self.stage.recent(onlook, elapsed_us)?;
        }
        Ok(onlook.arriving_bps)
    }
}

/// A new key for each follow, as the text of its file.
fn keys(plan: &Plan) -> Result<Vec<String>, HostsError> {
    plan.follows.iter().map(|_| Ok(Key::new_text()?)).collect()
}

/// The plan for a host, with the keys that it is to have.
fn with_keys(plan: &Plan, keys: &[String], host: &str) -> Plan {
    let mut plan = plan.clone();
    for (follow, key) in plan.follows.iter_mut().zip(keys) {
        let is_member = follow.hosts().any(|known| known == host);
        if let Some(real) = follow.real.as_mut().filter(|_| is_member) {
            real.key = Some(key.clone());
        }
    }
    plan
}

/// What the programs of a host write in a run, and what told them what to do.
fn files_of(plan: &Plan, host: &str) -> BTreeSet<String> {
    let late = process::late(plan).map(|(_, process)| process);
    let processes = process::serving(plan).into_iter().chain(late).chain(process::sending(plan));
    let roles = processes.filter(|process| process.host() == Some(host)).map(|process| process.role());
    let files = roles.flat_map(|role| {
        let ends: &[&str] = match role {
            Role::Relay(_) => &[".jsonl", ".log", ".toml"],
            Role::Sender(_) => &[".jsonl", ".log", ".json"],
            Role::Announcer(_) => &[".log", ".json"],
            Role::Follower(_) => &[".log", Role::AUDIT],
            _ => &[".jsonl", ".log"],
        };
        ends.iter().map(|end| format!("{}{end}", role.file())).collect::<Vec<_>>()
    });
    files.collect()
}

/// Longest file of a run: many times what it should take, in records as they are written.
fn file_bytes_max(plan: &Plan) -> u64 {
    const LEAST_BYTES: u64 = 256 << 20;
    const FACTOR: f64 = 8.0;
    let expected_bytes = (plan.disk_bytes(BackendKind::Hosts) * RAW_FACTOR * FACTOR) as u64;
    expected_bytes.clamp(LEAST_BYTES, talk::FILE_BYTES_MAX)
}

/// Fetches one file; where it is, when it holds records.
fn fetch(
    machine: &mut Machine,
    name: &str,
    most_bytes: u64,
    places: [&Path; 2],
    stop: &AtomicBool,
) -> Result<Option<PathBuf>, HostsError> {
    let packed = match machine.tell(&Ask::File(name.to_owned()), stop)? {
        (Answer::File { .. }, Some(packed)) => packed,
        (other, _) => return Err(machine.strange(&other).into()),
    };
    let path = place_of(name, places);
    let mut file = fs::File::create(&path).map_err(|source| PartError::io(&path, source))?;
    talk::unpack(packed, most_bytes, &mut file)
        .map_err(|error| machine.failed(format!("'{name}': {error}")))?;
    Ok(is_records(name).then_some(path))
}

/// Where a file of a machine's program is kept: beside the logs, or among the records.
fn place_of(name: &str, [logs, raw]: [&Path; 2]) -> PathBuf {
    if is_records(name) { raw } else { logs }.join(name)
}

fn is_records(name: &str) -> bool {
    name.ends_with(".jsonl") && !name.ends_with(Role::AUDIT)
}

/// Brings records to the time since the flows began.
struct Rebase<'a> {
    plan: &'a Plan,
    /// When that was, by the clock of each host.
    starts: &'a BTreeMap<String, i64>,
}

impl Rebase<'_> {
    /// Appends what a program on a machine wrote.
    fn gather(&self, path: &Path, machine: &Machine, samples: &mut Samples) -> Result<(), HostsError> {
        let end_us = i64::try_from(self.plan.end_us()).unwrap_or(i64::MAX);
        let around_us = -AROUND_US..=end_us.saturating_add(AROUND_US);
        let mut elsewhen_us = None;
        lines::read(path, |mut record| {
            // What never began has no time.
            let has_time = record.time_us() != Some(0);
            record.rebase(self.start_of(&record, &machine.host));
            let is_elsewhen = |time_us: &i64| has_time && !around_us.contains(time_us);
            elsewhen_us = elsewhen_us.or(record.time_us().filter(is_elsewhen));
            samples.push(record);
        })?;
        let Some(time_us) = elsewhen_us else { return Ok(()) };
        let name = path.file_name().unwrap_or_default().display();
        let what =
            format!("'{name}' holds a record of {time_us} us from the start, which is not of this run");
        Err(machine.failed(what).into())
    }

    /// A record made on `host`, by the clock of this machine.
    fn by_our_clock(&self, mut record: Record, host: &str, start_us: i64) -> Record {
        record.rebase(self.start_of(&record, host) - start_us);
        record
    }

    /// A sender writes down what its receiver tells it as well, with the receiver's times.
    fn start_of(&self, record: &Record, host: &str) -> i64 {
        let of = |host: &str| self.starts.get(host).copied();
        let own_us = of(host).unwrap_or_default();
        let peer_us = |flow: &str| {
            let flow = self.plan.flows.iter().find(|known| known.name == flow)?;
            of(&flow.to)
        };
        match record {
            Record::Interval(interval) => peer_us(&interval.flow).unwrap_or(own_us),
            Record::Tcp(tcp) if tcp.role == "receiver" => peer_us(&tcp.flow).unwrap_or(own_us),
            // Notes of both ends bear the flow's name: whose clock it was is whose brings it to the run.
            Record::Note(note) => {
                let peer_us = peer_us(&note.source).unwrap_or(own_us);
                let distance = |start_us: &i64| note.time_us.abs_diff(*start_us);
                [own_us, peer_us].into_iter().min_by_key(distance).unwrap_or(own_us)
            }
            _ => own_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests_support;
    use longfat_schema::record::{IntervalSample, Note, TcpSample};

    #[test]
    fn each_record_is_brought_to_the_run_by_the_clock_of_who_made_it() {
        let plan = tests_support::plan();
        let starts =
            BTreeMap::from([("a".to_owned(), 1_000), ("b".to_owned(), 9_000_000), ("r".to_owned(), 5)]);
        let rebase = Rebase { plan: &plan, starts: &starts };
        let flow = || "measured".to_owned();
        let tcp =
            |role: &str| Record::Tcp(TcpSample { flow: flow(), role: role.into(), ..TcpSample::default() });
        let note = |time_us| Record::Note(Note { time_us, source: flow(), ..Note::default() });
        assert_eq!(rebase.start_of(&tcp("sender"), "a"), 1_000);
        assert_eq!(rebase.start_of(&tcp("receiver"), "a"), 9_000_000);
        assert_eq!(rebase.start_of(&tcp("relay_in"), "r"), 5);
        let interval = Record::Interval(IntervalSample { flow: flow(), ..IntervalSample::default() });
        assert_eq!(rebase.start_of(&interval, "a"), 9_000_000);
        assert_eq!(rebase.start_of(&note(2_000), "a"), 1_000);
        assert_eq!(rebase.start_of(&note(8_999_000), "a"), 9_000_000);
    }
}
