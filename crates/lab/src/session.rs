//! Every run of an experiment into one result directory: emulated or on real hosts, one after the other; simulated, as
//! many side by side as there are processors; or on the hosts of a Ray cluster.

mod carry;
mod parallel;
mod ray;
mod resume;

pub use carry::{Backend, Carrier};
pub use ray::{Job, Ray, RayError};

use crate::{
    archive::ArchiveError,
    backend::{BackendKind, Tick, ccs_of},
    hosts::HostsError,
    judge,
    part::PartError,
    plan::Plan,
    simulated::{self, SimulationError},
    spec::{Case, Experiment},
};
use longfat_schema::quantity;
use longfat_schema::{
    SCHEMA_VERSION,
    run::{
        CaseInfo, DATASET_FILE, Metric, Provenance, ResultManifest, ResultStatus, RunEntry, RunError,
        RunManifest, beside, write_dataset, write_result, write_whole,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The experiment's file as it was read, within a result.
const SPEC_FILE: &str = "experiment.toml";

/// What a session needs besides the experiment.
#[derive(Debug)]
pub struct Session<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Text of the experiment file as it was read.
    pub text: &'a str,
    /// Backend that carries the runs out.
    pub backend: Backend<'a>,
    /// Every run of the experiment, in order.
    pub all: &'a [Plan],
    /// Plans of the runs to make, in order.
    pub plans: &'a [Plan],
    /// Where the result goes. What it holds of the same plans already is not made again.
    pub directory: &'a Path,
    /// Provenance of the result.
    pub provenance: Provenance,
}

/// What a person who waits is told.
#[derive(Debug)]
pub enum Event<'a> {
    /// Runs that are there already and are not made again.
    Kept {
        /// Which, from 0.
        indices: &'a [usize],
    },
    /// A run begins; `attempt` counts from 1.
    Begins {
        /// Which, from 0.
        index: usize,
        /// The run.
        plan: &'a Plan,
        /// From 1.
        attempt: u32,
    },
    /// The run goes on.
    Ticks {
        /// Which, from 0.
        index: usize,
        /// How far it is.
        tick: Tick,
    },
    /// The run has ended.
    Ends {
        /// Which, from 0.
        index: usize,
        /// From 1.
        attempt: u32,
        /// What it came to.
        manifest: &'a RunManifest,
        /// Whether the run will be tried again.
        again: bool,
    },
}

/// Why a session ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A run is there that was made from another plan.
    #[error(
        "'{run}' was made from another plan ({differences}); choose another directory with -o, or remove that one"
    )]
    Changed {
        /// Directory of the run.
        run: String,
        /// What differs.
        differences: String,
    },
    /// A run is there that the experiment does not have.
    #[error(
        "'{directory}' holds '{run}', which this experiment does not have; choose another directory with -o, or remove it"
    )]
    Unplanned {
        /// The result.
        directory: String,
        /// The run.
        run: String,
    },
    /// Somebody else is making these runs.
    #[error(
        "another program is making runs in '{directory}'; wait until it has ended, or choose another directory with -o"
    )]
    Busy {
        /// The result.
        directory: String,
    },
    /// A directory or file could not be made.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file or directory.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The result could not be written.
    #[error(transparent)]
    Write(#[from] RunError),
    /// A run could not be set up.
    #[error("case '{case}', repeat {repeat}: {source}")]
    Emulation {
        /// Name of the case.
        case: String,
        /// Number of the repeat.
        repeat: u32,
        /// Error of the part that failed.
        source: Box<PartError>,
    },
    /// A machine failed or is gone.
    #[error("case '{case}', repeat {repeat}: {source}")]
    Hosts {
        /// Name of the case.
        case: String,
        /// Number of the repeat.
        repeat: u32,
        /// Error of the machine.
        source: Box<HostsError>,
    },
    /// The plan cannot be simulated.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// A congestion control could not be had.
    #[error(transparent)]
    Cc(#[from] longfat_kernel::Error),
    /// The runs could not be carried out elsewhere.
    #[error(transparent)]
    Ray(#[from] RayError),
    /// What came from elsewhere is no whole run.
    #[error(transparent)]
    Pack(#[from] ArchiveError),
}

/// A session's runs and result, as they are on disk.
#[derive(Debug)]
pub struct Finished {
    /// The result.
    pub result: ResultManifest,
    /// Manifests of the runs.
    pub runs: Vec<RunManifest>,
    /// Places of all runs in the order of the experiment, by directory.
    order: BTreeMap<String, usize>,
    /// Places of `runs` in that order.
    places: Vec<usize>,
    /// When the result was written last.
    written: Option<Instant>,
}

/// Least distance of two writings of a result while runs come in.
const WRITE_EVERY: Duration = Duration::from_millis(500);

impl Finished {
    fn insert(&mut self, place: usize, plan: &Plan, manifest: RunManifest) {
        let entry = RunEntry {
            case: plan.case.clone(),
            repeat: plan.repeat,
            path: plan.directory(),
            status: manifest.status,
            seal: manifest.seal.clone(),
        };
        let at = self.places.partition_point(|known| *known < place);
        self.places.insert(at, place);
        self.result.runs.insert(at, entry);
        self.runs.insert(at, manifest);
    }
}

impl Session<'_> {
    /// Makes every run. `result.json` is written after each, so that what was made is kept whatever happens.
    pub fn run(&self, tell: &mut dyn FnMut(Event<'_>), stop: &AtomicBool) -> Result<Finished, SessionError> {
        // Before anything is touched: a congestion control that is not there ends it here.
        self.check(self.plans)?;
        let _claimed = self.claim(fs::File::try_lock)?;
        let (mut finished, pending) = self.resume(tell)?;
        let whole = match self.backend {
            Backend::Simulated { workers } => {
                self.side_by_side(workers, &pending, &mut finished, tell, stop)?
            }
            Backend::Emulated { .. } | Backend::Hosts(_) => {
                self.one_by_one(&pending, &mut finished, tell, stop)?
            }
        };
        self.conclude(finished, whole)
    }

    /// Writes the result of a session that has come to its end (`whole`), or that a person stopped.
    fn conclude(&self, mut finished: Finished, whole: bool) -> Result<Finished, SessionError> {
        finished.result.status = if whole { ResultStatus::Complete } else { ResultStatus::Interrupted };
        let paths = finished.result.runs.iter().map(|run| run.path.as_str());
        let rows: Vec<_> = paths.zip(&finished.runs).collect();
        write_dataset(&self.directory.join(DATASET_FILE), &rows)?;
        self.write_result(&mut finished, &[SPEC_FILE, DATASET_FILE])?;
        Ok(finished)
    }

    /// The result as far as the directory holds it, and the plans that are still to be carried out.
    fn resume(&self, tell: &mut dyn FnMut(Event<'_>)) -> Result<(Finished, Vec<usize>), SessionError> {
        let resume::Kept { order, runs } = self.kept()?;
        self.prepare_directory()?;
        let cases: BTreeSet<&str> = self
            .plans
            .iter()
            .chain(runs.iter().map(|(_, plan, _)| plan))
            .map(|plan| plan.case.as_str())
            .collect();
        let mut finished = Finished {
            result: self.first_result(&cases),
            runs: Vec::new(),
            order,
            places: Vec::new(),
            written: None,
        };
        let kept: BTreeSet<String> = runs.iter().map(|(_, plan, _)| plan.directory()).collect();
        let is_kept = |index: &usize| kept.contains(&self.plans[*index].directory());
        let (kept, pending): (Vec<usize>, Vec<usize>) = (0..self.plans.len()).partition(is_kept);
        runs.into_iter().for_each(|(place, plan, manifest)| finished.insert(place, &plan, manifest));
        finished.result.planned = u32::try_from(finished.runs.len() + pending.len()).ok();
        if !kept.is_empty() {
            tell(Event::Kept { indices: &kept });
        }
        self.write_result(&mut finished, &[])?;
        Ok((finished, pending))
    }

    /// Makes one run by itself and touches nothing of the others, so that many programs can share the directory: `run`
    /// then finds them all made. A run that is there already is not made again. `None` when a person stopped it.
    pub fn run_alone(
        &self,
        index: usize,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<Option<RunManifest>, SessionError> {
        let plan = &self.plans[index];
        if let Some(manifest) = self.kept_run(plan)? {
            tell(Event::Kept { indices: &[index] });
            return Ok(Some(manifest));
        }
        self.check(std::slice::from_ref(plan))?;
        let _claimed = self.claim(fs::File::try_lock_shared)?;
        self.run_until_valid(index, plan, tell, stop)
    }

    /// Makes the directory and holds it, so that nobody else makes the runs that this session makes, or gathers them
    /// before they are made; where a file system has no locks, nobody is kept away.
    fn claim(
        &self,
        lock: impl FnOnce(&fs::File) -> Result<(), fs::TryLockError>,
    ) -> Result<fs::File, SessionError> {
        make_directory(self.directory)?;
        let held = fs::File::open(self.directory).map_err(|source| io_error(self.directory, source))?;
        match lock(&held) {
            Err(fs::TryLockError::WouldBlock) => {
                Err(SessionError::Busy { directory: self.directory.display().to_string() })
            }
            _ => Ok(held),
        }
    }

    /// Whether these plans can be carried out, as far as that shows before anything is made.
    fn check(&self, plans: &[Plan]) -> Result<(), SessionError> {
        match self.backend {
            Backend::Emulated { .. } => try_ccs(plans),
            Backend::Simulated { .. } => Ok(simulated::check(plans)?),
            // The machines were asked when they were entered.
            Backend::Hosts(_) => Ok(()),
        }
    }

    /// Whether it came to its end.
    fn one_by_one(
        &self,
        pending: &[usize],
        finished: &mut Finished,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<bool, SessionError> {
        for index in pending.iter().copied() {
            let plan = &self.plans[index];
            let Some(manifest) = self.run_until_valid(index, plan, tell, stop)? else { return Ok(false) };
            self.keep(index, manifest, finished)?;
        }
        Ok(true)
    }

    /// Puts a run among those made, in the order of the plans.
    fn keep(&self, index: usize, manifest: RunManifest, finished: &mut Finished) -> Result<(), SessionError> {
        let plan = &self.plans[index];
        let place = finished.order.get(&plan.directory()).copied().unwrap_or(usize::MAX);
        finished.insert(place, plan, manifest);
        let due = finished.written.is_none_or(|written| written.elapsed() >= WRITE_EVERY);
        if due { self.write_result(finished, &[]) } else { Ok(()) }
    }

    fn prepare_directory(&self) -> Result<(), SessionError> {
        make_directory(self.directory)?;
        // What an earlier session gathered lacks the runs to come; who is killed must not leave it as if it were whole.
        let dataset = self.directory.join(DATASET_FILE);
        match fs::remove_file(&dataset) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&dataset, source));
            }
            _ => {}
        }
        Ok(write_whole(&self.directory.join(SPEC_FILE), self.text.as_bytes())?)
    }

    fn first_result(&self, cases: &BTreeSet<&str>) -> ResultManifest {
        let head = &self.experiment.head;
        let planned = |case: &&Case| cases.contains(case.name.as_str());
        ResultManifest {
            schema_version: SCHEMA_VERSION,
            experiment: head.name.clone(),
            title: head.title.clone(),
            description: head.description.trim().to_owned(),
            started_unix_ms: unix_ms_of(SystemTime::now()),
            status: ResultStatus::Running,
            focus: head.focus.clone(),
            cases: self.experiment.cases.iter().filter(planned).map(case_info).collect(),
            runs: Vec::new(),
            planned: None,
            expectations: Vec::new(),
            twins: Vec::new(),
            provenance: self.provenance.clone(),
            files: None,
            seal: None,
        }
    }

    /// `own` are the files that are of no run, once the session has ended.
    fn write_result(&self, finished: &mut Finished, own: &[&str]) -> Result<(), SessionError> {
        let planned: Vec<&str> = finished.result.cases.iter().map(|case| case.name.as_str()).collect();
        let asked = self.experiment.expect.iter().filter_map(|expect| judge::within(expect, &planned));
        finished.result.expectations =
            asked.map(|expect| judge::expectation(&expect, &finished.runs)).collect();
        finished.result.twins = beside(&finished.runs);
        write_result(self.directory, &mut finished.result, own)?;
        finished.written = Some(Instant::now());
        Ok(())
    }

    fn run_until_valid(
        &self,
        index: usize,
        plan: &Plan,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<Option<RunManifest>, SessionError> {
        let directory = self.directory.join(plan.directory());
        let carrier = Carrier { backend: self.backend, provenance: &self.provenance };
        carrier.until_valid((index, plan), &directory, self.retries(), tell, stop)
    }

    /// A simulated run would come out the same again.
    fn retries(&self) -> u32 {
        match self.backend.kind() {
            BackendKind::Emulated | BackendKind::Hosts => self.experiment.head.retries,
            BackendKind::Simulated => 0,
        }
    }
}

/// Loads every congestion control once in every way it will be set, and lets it go.
fn try_ccs(plans: &[Plan]) -> Result<(), SessionError> {
    let ways: BTreeMap<_, _> =
        plans.iter().map(|plan| ((plan.ccs(), &plan.tunables, plan.dilation), plan)).collect();
    ways.into_values().try_for_each(|plan| Ok(ccs_of(plan, plan.dilation).map(drop)?))
}

fn case_info(case: &Case) -> CaseInfo {
    let published = case.published.iter().map(|figure| Metric {
        metric: figure.metric.clone(),
        of: figure.of.clone(),
        stream: None,
        value: figure.value,
    });
    CaseInfo {
        name: case.name.clone(),
        title: case.title.clone(),
        axes: case.axes.clone(),
        published: published.collect(),
    }
}

pub(crate) fn unix_ms_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn io_error(path: &Path, source: io::Error) -> SessionError {
    SessionError::Io { path: path.display().to_string(), source }
}

fn make_directory(path: &Path) -> Result<(), SessionError> {
    if path.exists() && !path.is_dir() {
        return Err(io_error(path, io::Error::other("it is a file; name another directory with -o")));
    }
    let mend = |source| io_error(path, io::Error::other(format!("{source}; name another directory with -o")));
    fs::create_dir_all(path).map_err(mend)
}

/// Where a result goes when nobody says: `runs/NAME-20250131T120000Z`.
pub fn default_directory(experiment: &str, now: SystemTime) -> PathBuf {
    Path::new("runs").join(format!("{experiment}-{}", quantity::utc_compact(unix_ms_of(now))))
}
