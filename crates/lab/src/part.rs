//! The part of one machine in a run: its processes, and the files by which they are told what to do.

mod deaf;

use crate::{
    child::{self, Child, ChildError},
    conductor::{Ending, Status},
    network::Network,
    plan::{FollowPlan, Plan, need},
    process::{self, Process, Role},
    programs::{self, FollowFiles},
};
use longfat_host::{Namespace, facts::CpuTimes, go_first, monotonic_us, own};
use longfat_kernel::first_timeout::FirstTimeout;
use longfat_mobility::{Key, control};
use longfat_schema::{
    lines::LinesError,
    run::{RunError, write_json},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Why a machine could not do its part.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The run was ended before its end.
    #[error(transparent)]
    Ended(#[from] Ending),
    /// A program of the run failed; the next run may well succeed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The host would not do what was asked.
    #[error(transparent)]
    Host(#[from] longfat_host::Error),
    /// The kernel would not slow down what the run needs slower.
    #[error(transparent)]
    Kernel(#[from] longfat_kernel::Error),
    /// What follows a link could not be prepared.
    #[error(transparent)]
    Follow(#[from] longfat_mobility::Error),
    /// A samples file is damaged.
    #[error(transparent)]
    Samples(#[from] LinesError),
    /// The run directory could not be written.
    #[error(transparent)]
    Write(#[from] RunError),
    /// A file or directory could not be made.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PartError {
    pub(crate) fn io(path: &Path, source: io::Error) -> PartError {
        PartError::Io { path: path.display().to_string(), source }
    }
}

/// Where the processes of a part run.
#[derive(Debug)]
pub enum Ground<'a> {
    /// All hosts and links of a plan are namespaces of this machine.
    Network {
        /// The namespaces.
        network: &'a Network,
        /// What its connections have for a first timeout where it is not the kernel's.
        first_timeout: Option<&'a FirstTimeout>,
    },
    /// This machine is one host of the plan, in the namespace of this process.
    Host {
        /// Which host.
        name: String,
        /// Namespace of this process.
        namespace: Namespace,
    },
}

impl Ground<'_> {
    /// Namespace of a process; `None` when another machine runs it.
    fn namespace(&self, process: Process<'_>) -> longfat_host::Result<Option<&Namespace>> {
        match self {
            Ground::Network { network, .. } => network.of(process).map(Some),
            Ground::Host { name, namespace } => {
                Ok(Some(namespace).filter(|_| process.host() == Some(name.as_str())))
            }
        }
    }
}

/// Where the files of a part are, and what its processes are called.
#[derive(Debug)]
pub struct Files {
    /// Directory of records, and of what goes with them.
    pub raw: PathBuf,
    /// Directory of logs, and of the files by which senders and relays are told what to do: they stay with the run.
    pub logs: PathBuf,
    /// What names that must be unique on a machine begin with.
    pub prefix: String,
}

impl Files {
    /// What a process is called where names are of the whole machine.
    fn name(&self, role: &Role) -> String {
        format!("{}-{}", self.prefix, role.file())
    }

    fn raw(&self, role: &Role, extension: &str) -> PathBuf {
        self.raw.join(format!("{}.{extension}", role.file()))
    }

    fn log(&self, role: &Role, extension: &str) -> PathBuf {
        self.logs.join(format!("{}.{extension}", role.file()))
    }

    fn key(&self, follow: &FollowPlan) -> PathBuf {
        self.raw.join(format!("follow-{}.key", follow.name))
    }
}

/// The part of one machine in a run. Its processes end when it drops.
#[derive(Debug)]
pub struct Part<'a> {
    /// The run, as it is carried out.
    pub plan: Arc<Plan>,
    /// Where its files are.
    pub files: Files,
    ground: Ground<'a>,
    program: PathBuf,
    servers: Vec<Child>,
    senders: Vec<Child>,
    /// When the flows begin, by the clock of this machine.
    start_us: Option<i64>,
    /// What waits for the beginning of the flows has been told.
    told: bool,
}

impl<'a> Part<'a> {
    /// A part in which nothing runs yet. `program`: the `longfat` binary, whose subcommands measure.
    pub fn new(plan: Plan, ground: Ground<'a>, program: &Path, files: Files) -> Part<'a> {
        Part {
            plan: Arc::new(plan),
            files,
            ground,
            program: program.to_owned(),
            servers: Vec::new(),
            senders: Vec::new(),
            start_us: None,
            told: false,
        }
    }

    /// Starts what serves the flows, each when what it may need is ready.
    pub fn serve(&mut self, stop: &AtomicBool) -> Result<(), PartError> {
        let plan = Arc::clone(&self.plan);
        for follow in &plan.follows {
            let path = self.files.key(follow);
            match &follow.real {
                None => drop(Key::create(&path)?),
                Some(real) => {
                    let write = |key: &String| own::write_new(&path, key.as_bytes());
                    real.key.as_ref().map_or(Ok(()), write).map_err(|source| PartError::io(&path, source))?;
                }
            }
        }
        process::serving(&plan).into_iter().try_for_each(|process| self.start_server(process, stop))
    }

    fn start_server(&mut self, process: Process<'_>, stop: &AtomicBool) -> Result<(), PartError> {
        if stop.load(Ordering::Relaxed) {
            return Err(Ending::Interrupted.into());
        }
        if let Some(mut child) = self.start(process)? {
            child.wait_ready()?;
            self.servers.push(child);
        }
        Ok(())
    }

    /// Starts the senders, which agree with their receivers then.
    pub fn send(&mut self) -> Result<(), PartError> {
        let plan = Arc::clone(&self.plan);
        for process in process::sending(&plan) {
            self.senders.extend(self.start(process)?);
        }
        Ok(())
    }

    /// Starts a process; `None` when another machine runs it.
    fn start(&self, process: Process<'_>) -> Result<Option<Child>, PartError> {
        let Some(namespace) = self.ground.namespace(process)? else { return Ok(None) };
        let (role, arguments) = (process.role(), self.arguments(process)?);
        let log = self.files.log(&role, "log");
        let mut command = namespace.command(&self.program);
        if let Ground::Network { first_timeout: Some(timeout), .. } = self.ground {
            timeout.enter(&mut command)?;
        }
        command.args(arguments);
        if matches!(self.ground, Ground::Network { .. })
            && process.goes_first()
            && need::is_bounded(&self.plan)
        {
            go_first(&mut command);
        }
        Ok(Some(Child::start(command, role, &log)?))
    }

    /// Command line of a process. The file by which it is told what to do is written.
    fn arguments(&self, process: Process<'_>) -> Result<Vec<String>, PartError> {
        let (plan, role) = (&*self.plan, process.role());
        let samples = self.files.raw(&role, "jsonl");
        let name = self.files.name(&role);
        Ok(match process {
            Process::Link(cable) => {
                let told = self.files.raw(&role, "json");
                write_json(&told, &cable.path)?;
                programs::link(cable, &told, &samples)
            }
            Process::Relay(relay) => {
                let told = self.files.log(&role, "toml");
                // A real host that relays need not be a router at other times.
                let spec = programs::relay_spec(relay, matches!(self.ground, Ground::Host { .. }));
                let text = spec.text().map_err(io::Error::other);
                text.and_then(|text| fs::write(&told, text))
                    .map_err(|source| PartError::io(&told, source))?;
                programs::relay(plan, &told, &samples)
            }
            Process::Announcer(follow) => {
                let files = FollowFiles { key: &self.files.key(follow), name: &name };
                let model = match &follow.real {
                    None => self.files.raw(&Role::Link(follow.link.clone()), "json"),
                    Some(real) => {
                        let told = self.files.log(&role, "json");
                        write_json(&told, &real.model)?;
                        told
                    }
                };
                programs::announce(follow, &files, &model, process.has_schedule(plan))
            }
            Process::Follower { follow, far, .. } => {
                let files = FollowFiles { key: &self.files.key(follow), name: &name };
                let file = |ends: &str| format!("{}{ends}", role.file());
                let (state, audit) =
                    (self.files.raw.join(file(Role::STATE)), self.files.logs.join(file(Role::AUDIT)));
                programs::follow(follow, &files, &state, &audit, far)
            }
            Process::Receiver { port, .. } => programs::serve(port, plan),
            Process::Sender(flow) => {
                let told = self.files.log(&role, "json");
                write_json(&told, &programs::transfer(flow, plan))?;
                programs::send(flow, &told, &samples)
            }
        })
    }

    /// Tells the senders when their flows begin: `start_ns` is the beginning of the run, by the clock of this machine.
    pub fn tell_start(&mut self, start_ns: u64) {
        let starts = self.plan.flows.iter().map(|flow| (Role::Sender(flow.name.clone()), flow.start_us));
        for (role, start_us) in starts {
            let sender = self.senders.iter_mut().find(|sender| sender.role == role);
            sender.into_iter().for_each(|sender| sender.say(&(start_ns + start_us * 1000).to_string()));
        }
        self.start_us = Some((start_ns / 1000) as i64);
    }

    /// How its processes are. Starts what is due meanwhile. A process that has failed is an error.
    pub fn status(&mut self, stop: &AtomicBool) -> Result<Status, PartError> {
        self.servers.iter_mut().try_for_each(Child::check_alive)?;
        self.senders.iter_mut().try_for_each(Child::check)?;
        self.start_what_is_due(stop)?;
        let within = child::AGREE_WITHIN * self.plan.dilation.times();
        let disagreed = child::disagreed(&mut self.senders, within)?;
        let running = self.senders.iter().find(|sender| sender.ended.is_none());
        let running = running.map(|sender| sender.role.to_string());
        Ok(Status { disagreed, running, cpu: vec![CpuTimes::now()] })
    }

    fn start_what_is_due(&mut self, stop: &AtomicBool) -> Result<(), PartError> {
        let elapsed_us = self.start_us.map_or(-1, |start_us| monotonic_us() - start_us);
        if elapsed_us < 0 {
            return Ok(());
        }
        let plan = Arc::clone(&self.plan);
        if !std::mem::replace(&mut self.told, true) {
            let waiting = process::serving(&plan).into_iter().filter(|process| process.has_schedule(&plan));
            let roles: Vec<Role> = waiting.map(Process::role).collect();
            self.servers.iter_mut().filter(|server| roles.contains(&server.role)).for_each(Child::notify);
        }
        for (_, process) in process::late(&plan).filter(|(at_us, _)| elapsed_us >= *at_us as i64) {
            if self.server(&process.role()).is_none() {
                self.start_server(process, stop)?;
            }
        }
        Ok(())
    }

    /// The process of that role, among those that serve.
    pub fn server(&self, role: &Role) -> Option<&Child> {
        self.servers.iter().find(|server| server.role == *role)
    }

    /// Ends what serves, in the reverse order of its start. A follower that heard nothing is an error: a run in which
    /// nothing was followed is not the one that was planned.
    pub fn finish(&mut self) -> Result<(), PartError> {
        self.check_heard()?;
        while let Some(mut server) = self.servers.pop() {
            server.stop()?;
        }
        Ok(())
    }

    fn check_heard(&self) -> Result<(), ChildError> {
        let late = process::late(&self.plan).map(|(_, process)| process);
        for process in process::serving(&self.plan).into_iter().chain(late) {
            let (Process::Follower { follow, far, .. }, role) = (process, process.role()) else { continue };
            if self.server(&role).is_none() {
                continue;
            }
            let socket = control::socket_of(&self.files.name(&role));
            let why = match control::ask(&socket, "status") {
                Ok(status) => deaf::why(follow, far, &status),
                Err(error) => Some(format!("does not say what it heard: {error}")),
            };
            if let Some(why) = why {
                return Err(ChildError::Idle { name: role.to_string(), why });
            }
        }
        Ok(())
    }

    /// Asks every process to end, senders first, so that none leaves what it had set.
    pub fn end(&mut self) {
        while let Some(mut child) = self.senders.pop().or_else(|| self.servers.pop()) {
            let _ = child.stop();
        }
    }
}
