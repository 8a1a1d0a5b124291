//! A host's end: does its part of each run as it is asked to, and sets everything back when whoever leads is gone.
//!
//! It lives as long as its standard input is open, somebody is heard there and no signal comes: a leader that is killed
//! leaves nothing running.

use super::{
    claim::Claim,
    recent::Recent,
    settings::Settings,
    talk::{Answer, Ask, SILENCE},
};
use crate::{
    backend::{ccs_of, state},
    part::{Files, Ground, Part, PartError},
    plan::{HostPlan, Plan, sysctls_of_namespace},
    process::Role,
};
use longfat_host::{Namespace, facts, monotonic_ns, support, support::Missing, sysctl};
use longfat_kernel::{cc::Registration, support::Capability};
use longfat_schema::{
    own_time::Dilation,
    run::{ClockEstimate, HostState, Machine},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, BufRead, Write},
    net::{Ipv6Addr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

/// How often it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// What programs write for the leader, and what told them what to do, by how the names end.
const WRITTEN: [&str; 4] = [RECORDS, ".log", ".json", ".toml"];
const RECORDS: &str = ".jsonl";

/// Which host this is, and where it may write.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The host of the experiment.
    pub host: String,
    /// A directory for this alone, removed in the end.
    pub directory: PathBuf,
    /// The `longfat` binary, whose subcommands measure.
    pub program: PathBuf,
}

/// Answers until there is nobody to answer.
///
/// # Errors
/// The answers cannot be written.
pub fn serve(
    environment: Environment,
    input: impl BufRead + Send + 'static,
    output: &mut dyn Write,
    stop: &AtomicBool,
) -> io::Result<()> {
    let claim = match Claim::take(&environment.directory) {
        Ok(claim) => claim,
        Err(error) => return tell(output, &Answer::Failed(error.to_string())),
    };
    let mut host = Host { environment, act: None, claim };
    let served = host.serve(input, output, stop);
    host.end();
    if let Err(error) = host.claim.end() {
        eprintln!("longfat: {error}");
    }
    served
}

fn listen(input: impl BufRead + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        // Whoever listens no longer has ended.
        input
            .lines()
            .map_while(Result::ok)
            .take_while(|line| sender.send(line.clone()).is_ok())
            .for_each(drop);
    });
    lines
}

fn tell(output: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    serde_json::to_writer(&mut *output, answer)?;
    output.write_all(b"\n")?;
    output.flush()
}

/// Why it could not do what it was asked.
enum Trouble {
    /// The run failed.
    Run(String),
    /// Anything else.
    Other(String),
}

impl From<PartError> for Trouble {
    fn from(error: PartError) -> Trouble {
        match error {
            PartError::Child(_) => Trouble::Run(error.to_string()),
            _ => other(error),
        }
    }
}

/// An error that is no program's of the run.
#[allow(clippy::needless_pass_by_value, reason = "it is what `map_err` asks for")]
fn other(error: impl ToString) -> Trouble {
    Trouble::Other(error.to_string())
}

struct Host {
    environment: Environment,
    act: Option<Act>,
    claim: Claim,
}

impl Host {
    fn serve(
        &mut self,
        input: impl BufRead + Send + 'static,
        output: &mut dyn Write,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        tell(output, &Answer::Done)?;
        let asked = listen(input);
        let mut heard = Instant::now();
        while !stop.load(Ordering::Relaxed) && heard.elapsed() < SILENCE {
            let line = match asked.recv_timeout(LOOK) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            heard = Instant::now();
            if !line.is_empty() {
                self.answer(&line, output, stop)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, line: &str, output: &mut dyn Write, stop: &AtomicBool) -> io::Result<()> {
        let asked = serde_json::from_str(line).map_err(other);
        let answer = match asked.and_then(|ask| self.obey(ask, output, stop)) {
            Ok(answer) => answer,
            Err(Trouble::Run(what)) => Some(Answer::RunFailed(what)),
            Err(Trouble::Other(what)) => Some(Answer::Failed(what)),
        };
        answer.map_or(Ok(()), |answer| tell(output, &answer))
    }

    /// What to answer, unless it has been told already.
    fn obey(
        &mut self,
        ask: Ask,
        output: &mut dyn Write,
        stop: &AtomicBool,
    ) -> Result<Option<Answer>, Trouble> {
        Ok(Some(match ask {
            Ask::Clock => Answer::Clock { monotonic_ns: monotonic_ns() },
            Ask::Check(plans) => Answer::Lacks(lacks(&plans, &self.environment.host)),
            Ask::Prepare(plan) => {
                // What an earlier run left is ended before anything new is begun.
                self.end();
                let act = self.act.insert(Act::begin(*plan, self.environment.clone(), &self.claim)?);
                act.part.serve(stop)?;
                Answer::Prepared(Box::new(act.state()?))
            }
            Ask::Agree => self.act()?.part.send().map(|()| Answer::Done)?,
            Ask::Begin { start_ns } => {
                self.act()?.part.tell_start(start_ns);
                Answer::Done
            }
            Ask::Status => Answer::Status(self.act()?.part.status(stop)?),
            Ask::Finish => self.act()?.finish()?,
            Ask::GiveUp => self.act()?.give_up(),
            Ask::Recent => {
                self.act()?.recent(output)?;
                return Ok(None);
            }
            Ask::File(name) => {
                self.act()?.file(&name, output)?;
                return Ok(None);
            }
            Ask::End => {
                self.end();
                Answer::Done
            }
        }))
    }

    fn act(&mut self) -> Result<&mut Act, Trouble> {
        self.act.as_mut().ok_or_else(|| Trouble::Other("it was not told to get ready".to_owned()))
    }

    fn end(&mut self) {
        self.act = None;
        for name in written(&self.environment.directory) {
            // The directory goes in the end, with whatever is in it.
            let _ = fs::remove_file(self.environment.directory.join(name));
        }
    }
}

/// What a host does in one run. Fields drop in order, after the programs have ended.
struct Act {
    part: Part<'static>,
    environment: Environment,
    recent: Recent,
    _settings: Settings,
    _ccs: Vec<Registration>,
}

impl Drop for Act {
    fn drop(&mut self) {
        // A relay that is killed would leave its rules.
        self.part.end();
    }
}

impl Act {
    fn begin(plan: Plan, environment: Environment, claim: &Claim) -> Result<Act, Trouble> {
        let host = plan.hosts.iter().find(|host| host.name == environment.host);
        let wanted = host.map(settings_of).unwrap_or_default();
        let directory = || environment.directory.clone();
        let files = Files { raw: directory(), logs: directory(), prefix: plan.experiment.clone() };
        let namespace = Namespace::current().map_err(other)?;
        let ground = Ground::Host { name: environment.host.clone(), namespace };
        Ok(Act {
            _ccs: ccs_of(&at_host(&plan, &environment.host), Dilation::NONE).map_err(other)?,
            _settings: Settings::set(claim, &wanted).map_err(other)?,
            recent: Recent::default(),
            part: Part::new(plan, ground, &environment.program, files),
            environment,
        })
    }

    fn finish(&mut self) -> Result<Answer, Trouble> {
        let counters = facts::counters();
        self.part.finish()?;
        Ok(self.finished(counters))
    }

    /// Ends the programs however they are: what they wrote tells why the run failed.
    fn give_up(&mut self) -> Answer {
        self.part.end();
        self.finished(facts::counters())
    }

    fn finished(&self, counters: BTreeMap<String, i64>) -> Answer {
        Answer::Finished { counters, files: written(&self.environment.directory) }
    }

    fn file(&self, name: &str, output: &mut dyn Write) -> Result<(), Trouble> {
        if !written(&self.environment.directory).iter().any(|known| known == name) {
            return Err(Trouble::Other(format!("there is no file '{name}'")));
        }
        let file = fs::File::open(self.environment.directory.join(name)).map_err(other)?;
        send_packed(file, output).map_err(other)
    }

    fn recent(&mut self, output: &mut dyn Write) -> Result<(), Trouble> {
        let is_records = |name: &String| name.ends_with(RECORDS) && !name.ends_with(Role::AUDIT);
        let names = written(&self.environment.directory).into_iter().filter(is_records);
        let files: Vec<PathBuf> = names.map(|name| self.environment.directory.join(name)).collect();
        let mut lines = Vec::new();
        for record in self.recent.take(&files) {
            serde_json::to_writer(&mut lines, &record).map_err(other)?;
            lines.push(b'\n');
        }
        send_packed(lines.as_slice(), output).map_err(other)
    }

    fn state(&self) -> Result<HostState, Trouble> {
        let machine = Machine {
            kernel: facts::kernel(),
            cpu: facts::cpu_model(),
            cpu_count: facts::cpu_count(),
            memory_bytes: facts::memory_bytes(),
            load_average: facts::load_average(),
            clock_source: facts::clock_source(),
            // Only who asks can tell.
            clock: ClockEstimate::default(),
        };
        let namespace = Namespace::current().map_err(other)?;
        let state = state(&namespace).map_err(other)?;
        Ok(HostState { machine: Some(machine), ..state })
    }
}

fn send_packed(what: impl io::Read, output: &mut dyn Write) -> io::Result<()> {
    let packed = zstd::encode_all(what, 1)?;
    tell(output, &Answer::File { bytes: packed.len() as u64 })?;
    output.write_all(&packed)?;
    output.flush()
}

fn written(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // What a follower could not put back yet stays to be tried again, and is nobody's to fetch.
    let is_written =
        |name: &String| WRITTEN.iter().any(|end| name.ends_with(end)) && !name.ends_with(Role::STATE);
    names.filter(is_written).collect::<BTreeSet<_>>().into_iter().collect()
}

/// What is set on a real host: all of the plan but what only makes a network of namespaces.
fn settings_of(host: &HostPlan) -> BTreeMap<String, String> {
    let of_namespace = sysctls_of_namespace(host.forward);
    let wanted = host.sysctls.iter().filter(|(key, value)| of_namespace.get(*key) != Some(*value));
    wanted.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The plan with no congestion control but those that this host needs.
fn at_host(plan: &Plan, host: &str) -> Plan {
    let mut plan = plan.clone();
    plan.relays.retain(|relay| relay.host == host);
    plan.follows.retain(|follow| follow.hosts().any(|known| known == host));
    for flow in &mut plan.flows {
        flow.cc.take_if(|_| flow.from != host);
        flow.cc_receiver.take_if(|_| flow.to != host);
    }
    plan
}

/// What this host lacks for its part; nothing is changed.
fn lacks(plans: &[Plan], host: &str) -> Vec<Missing> {
    let parts: Vec<Plan> = plans.iter().map(|plan| at_host(plan, host)).collect();
    let mut missing: Vec<Missing> = support::missing_program("ip", "iproute2").into_iter().collect();
    let ccs: BTreeSet<String> = parts.iter().flat_map(Plan::ccs).collect();
    let (ours, kernels): (Vec<&String>, Vec<&String>) =
        ccs.iter().partition(|cc| longfat_cc::Algorithm::is_our_name(cc));
    if !ours.is_empty() {
        missing.extend(longfat_kernel::support::missing(&[Capability::CongestionControl]));
    }
    missing.extend(kernels.into_iter().filter_map(|cc| missing_cc(cc)));
    if missing.is_empty() {
        let tried = parts.iter().filter_map(|part| Some((part, ccs_of(part, Dilation::NONE).err()?)));
        missing.extend(tried.map(|(part, error)| {
            Missing::new(part.ccs().join(", "), error.to_string(), "choose another with --set")
        }));
    }
    let keys = parts.iter().flat_map(|part| &part.hosts).filter(|plan| plan.name == host);
    let keys: BTreeSet<String> = keys.flat_map(settings_of).map(|(key, _)| key).collect();
    missing.extend(keys.iter().filter_map(|key| missing_sysctl(key)));
    missing.extend(parts.iter().flat_map(|part| &part.relays).flat_map(missing_relay));
    if parts.iter().flat_map(|part| &part.follows).any(|follow| follow.router != host) {
        missing.extend(longfat_kernel::support::missing(&[Capability::ControlBlocks]));
    }
    let ports = plans.iter().flat_map(|plan| &plan.flows).filter(|flow| flow.to == host);
    missing.extend(ports.map(|flow| flow.port).collect::<BTreeSet<_>>().into_iter().filter_map(missing_port));
    let mut unique: Vec<Missing> = Vec::new();
    missing.into_iter().for_each(|thing| {
        if !unique.contains(&thing) {
            unique.push(thing);
        }
    });
    unique
}

fn missing_cc(cc: &str) -> Option<Missing> {
    let why = match longfat_kernel::cc::kernel_has(cc) {
        Ok(true) => return None,
        Ok(false) => "its kernel has none of that name".to_owned(),
        Err(error) => error.to_string(),
    };
    let mend = format!("run 'modprobe tcp_{cc}' there, or choose another with --set");
    Some(Missing::new(format!("congestion control '{cc}'"), why, mend))
}

fn missing_sysctl(key: &str) -> Option<Missing> {
    let error = sysctl::read(key).err()?;
    let mend = "leave it out of the experiment, or use another kernel";
    Some(Missing::new(format!("sysctl '{key}'"), error.to_string(), mend))
}

fn missing_relay(relay: &crate::plan::RelayPlan) -> Vec<Missing> {
    let interfaces = relay.intercept.clone();
    let intercept = longfat_relay::InterceptPlan { interfaces, set_forwarding: true, ..Default::default() };
    longfat_relay::missing(&longfat_relay::RelayPlan::transparent("probe", intercept))
}

fn missing_port(port: u16) -> Option<Missing> {
    let error = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).err()?;
    let mend = "end the program that listens there ('ss -tlnp' shows it)";
    Some(Missing::new(format!("TCP port {port}"), error.to_string(), mend))
}
