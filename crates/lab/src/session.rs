//! Every run of an experiment into one result directory: emulated, one after the other; simulated, as many side by side
//! as there are processors.

mod parallel;
mod resume;

use crate::{
    backend::{Backend, Observed, Tick},
    emulated::{self, EmulationError, Place},
    judge,
    metrics::metrics,
    plan::Plan,
    simulated::{self, SimulationError},
    spec::{Case, Experiment, SpecError},
};
use longfat_kernel::cc::Registration;
use longfat_schema::{
    SCHEMA_VERSION,
    run::{
        CaseInfo, DATASET_FILE, Metric, Provenance, RESULT_FILE, ResultManifest, ResultStatus, RunEntry,
        RunError, RunManifest, RunStatus, RunWriter, write_dataset, write_json,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// What a session needs besides the experiment.
#[derive(Debug)]
pub struct Session<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Its file as it was read.
    pub text: &'a str,
    /// Who carries the runs out.
    pub backend: Backend,
    /// Runs to make, in order.
    pub plans: &'a [Plan],
    /// Where the result goes. What it holds of the same plans already is not made again.
    pub directory: &'a Path,
    /// Simulated runs at once; as many as there are processors when absent.
    pub workers: Option<usize>,
    /// The `longfat` binary, whose subcommands measure where runs are emulated.
    pub program: &'a Path,
    /// Who makes it.
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
    /// It goes on.
    Ticks {
        /// Which, from 0.
        index: usize,
        /// How far it is.
        tick: Tick,
    },
    /// It has ended.
    Ends {
        /// Which, from 0.
        index: usize,
        /// From 1.
        attempt: u32,
        /// What it came to.
        manifest: &'a RunManifest,
        /// It will be tried again.
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
        /// Its directory.
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
    /// The experiment's plans could not be made.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A directory or file could not be made.
    #[error("{path}: {source}")]
    Io {
        /// Which.
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
        /// Case.
        case: String,
        /// Repeat.
        repeat: u32,
        /// Why.
        source: Box<EmulationError>,
    },
    /// It cannot be simulated.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// A congestion control could not be had.
    #[error(transparent)]
    Cc(#[from] longfat_kernel::Error),
}

/// A session's runs and result, as they are on disk.
#[derive(Debug)]
pub struct Finished {
    /// The result.
    pub result: ResultManifest,
    /// Its runs.
    pub runs: Vec<RunManifest>,
    /// Places of all runs in the order of the experiment, by directory.
    order: BTreeMap<String, usize>,
    /// Those of `runs`.
    places: Vec<usize>,
    /// When the result was written last.
    written: Option<Instant>,
}

/// Least distance of two writings of a result while runs come in.
const WRITE_EVERY: Duration = Duration::from_millis(500);

/// What came of trying a run once.
enum Attempt {
    Observed(Box<Observed>),
    /// It failed; the next may well succeed.
    Failed(String),
    /// A person stopped it.
    Interrupted,
}

impl Finished {
    fn insert(&mut self, place: usize, plan: &Plan, manifest: RunManifest) {
        let entry = RunEntry {
            case: plan.case.clone(),
            repeat: plan.repeat,
            path: plan.directory(),
            status: manifest.status,
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
        match self.backend {
            Backend::Emulated => self.try_ccs()?,
            Backend::Simulated => simulated::check(self.plans)?,
        };
        let (mut finished, pending) = self.resume(tell)?;
        let whole = match self.backend {
            Backend::Emulated => self.one_by_one(&pending, &mut finished, tell, stop)?,
            Backend::Simulated => self.side_by_side(&pending, &mut finished, tell, stop)?,
        };
        finished.result.status = if whole { ResultStatus::Complete } else { ResultStatus::Interrupted };
        self.write_result(&mut finished)?;
        let paths = finished.result.runs.iter().map(|run| run.path.as_str());
        let rows: Vec<_> = paths.zip(&finished.runs).collect();
        write_dataset(&self.directory.join(DATASET_FILE), &rows)?;
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
        if !kept.is_empty() {
            tell(Event::Kept { indices: &kept });
        }
        self.write_result(&mut finished)?;
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
        match self.backend {
            Backend::Emulated => ccs_of(plan).map(drop)?,
            Backend::Simulated => simulated::check(std::slice::from_ref(plan))?,
        };
        make_directory(self.directory)?;
        self.run_until_valid(index, plan, tell, stop)
    }

    /// Loads every congestion control once in every way it will be set, and lets it go.
    fn try_ccs(&self) -> Result<(), SessionError> {
        let ways: BTreeMap<_, _> =
            self.plans.iter().map(|plan| ((plan.ccs(), &plan.tunables), plan)).collect();
        ways.into_values().try_for_each(|plan| ccs_of(plan).map(drop))
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
        if due { self.write_result(finished) } else { Ok(()) }
    }

    fn prepare_directory(&self) -> Result<(), SessionError> {
        make_directory(self.directory)?;
        let path = self.directory.join("experiment.toml");
        fs::write(&path, self.text).map_err(|source| io_error(&path, source))
    }

    fn first_result(&self, cases: &BTreeSet<&str>) -> ResultManifest {
        let head = &self.experiment.head;
        let planned = |case: &&Case| cases.contains(case.name.as_str());
        ResultManifest {
            schema_version: SCHEMA_VERSION,
            experiment: head.name.clone(),
            title: head.title.clone(),
            description: head.description.trim().to_owned(),
            started_unix_ms: unix_ms(),
            status: ResultStatus::Running,
            focus: head.focus.clone(),
            cases: self.experiment.cases.iter().filter(planned).map(case_info).collect(),
            runs: Vec::new(),
            expectations: Vec::new(),
            provenance: self.provenance.clone(),
        }
    }

    fn write_result(&self, finished: &mut Finished) -> Result<(), SessionError> {
        let planned: Vec<&str> = finished.result.cases.iter().map(|case| case.name.as_str()).collect();
        let asked = self.experiment.expect.iter().filter_map(|expect| judge::within(expect, &planned));
        finished.result.expectations =
            asked.map(|expect| judge::expectation(&expect, &finished.runs)).collect();
        write_json(&self.directory.join(RESULT_FILE), &finished.result)?;
        finished.written = Some(Instant::now());
        Ok(())
    }

    /// Tries an invalid run again. The last attempt is kept; what was wrong with the others is among its reasons.
    /// `None` when a person stopped it.
    fn run_until_valid(
        &self,
        index: usize,
        plan: &Plan,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<Option<RunManifest>, SessionError> {
        let mut earlier = Vec::new();
        for attempt in 1.. {
            tell(Event::Begins { index, plan, attempt });
            let Some(mut manifest) = self.run_once(index, plan, &earlier, tell, stop)? else {
                return Ok(None);
            };
            let again = manifest.status == RunStatus::Invalid && attempt <= self.retries();
            tell(Event::Ends { index, attempt, manifest: &manifest, again });
            if !again {
                return Ok(Some(manifest));
            }
            let own = manifest.reasons.len() - earlier.len();
            let own = manifest.reasons.drain(..own);
            earlier.extend(own.map(|reason| format!("attempt {attempt} was invalid: {reason}")));
        }
        Ok(None)
    }

    /// A simulated run would come out the same again.
    fn retries(&self) -> u32 {
        match self.backend {
            Backend::Emulated => self.experiment.head.retries,
            Backend::Simulated => 0,
        }
    }

    fn run_once(
        &self,
        index: usize,
        plan: &Plan,
        earlier: &[String],
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<Option<RunManifest>, SessionError> {
        let directory = self.directory.join(plan.directory());
        clear(&directory)?;
        make_directory(&directory)?;
        write_json(&directory.join("plan.json"), plan)?;
        let started_unix_ms = unix_ms();
        let tick = &mut |tick| tell(Event::Ticks { index, tick });
        let attempt = match self.backend {
            Backend::Emulated => self.emulate(plan, &directory, tick, stop)?,
            Backend::Simulated => self.simulate(plan, tick, stop)?,
        };
        let (observed, failure) = match attempt {
            Attempt::Observed(observed) => (*observed, None),
            Attempt::Failed(reason) => (Observed::default(), Some(reason)),
            Attempt::Interrupted => {
                clear(&directory)?;
                return Ok(None);
            }
        };
        let mut manifest = self.manifest(plan, &observed, failure)?;
        manifest.started_unix_ms = started_unix_ms;
        manifest.reasons.extend_from_slice(earlier);
        let mut writer = RunWriter::create(&directory)?;
        observed.samples.into_records().try_for_each(|record| writer.push(record))?;
        writer.finish(&manifest)?;
        // The tables hold what the raw files said; a failed run keeps them for who looks for the cause.
        if manifest.status != RunStatus::Failed {
            clear(&directory.join("raw"))?;
        }
        Ok(Some(manifest))
    }

    fn emulate(
        &self,
        plan: &Plan,
        directory: &Path,
        tick: &mut dyn FnMut(Tick),
        stop: &AtomicBool,
    ) -> Result<Attempt, SessionError> {
        let _ccs = ccs_of(plan)?;
        let lease = format!("{}-{}", plan.experiment, std::process::id());
        let place = Place { program: self.program, directory, lease: &lease };
        match emulated::run(plan, place, tick, stop) {
            Ok(observed) => Ok(Attempt::Observed(Box::new(observed))),
            Err(EmulationError::Interrupted) => Ok(Attempt::Interrupted),
            Err(error @ (EmulationError::Child(_) | EmulationError::Endless(..))) => {
                Ok(Attempt::Failed(error.to_string()))
            }
            Err(source) => {
                let (case, repeat) = (plan.case.clone(), plan.repeat);
                Err(SessionError::Emulation { case, repeat, source: Box::new(source) })
            }
        }
    }

    fn simulate(
        &self,
        plan: &Plan,
        tick: &mut dyn FnMut(Tick),
        stop: &AtomicBool,
    ) -> Result<Attempt, SessionError> {
        match simulated::run(plan, tick, stop) {
            Ok(observed) => Ok(Attempt::Observed(Box::new(observed))),
            Err(SimulationError::Interrupted) => Ok(Attempt::Interrupted),
            Err(error) => Err(error.into()),
        }
    }

    fn manifest(
        &self,
        plan: &Plan,
        observed: &Observed,
        failure: Option<String>,
    ) -> Result<RunManifest, SessionError> {
        // Records say whose code ran; judged is whether it was the planned code.
        let as_run = match self.backend {
            Backend::Emulated => plan.clone(),
            Backend::Simulated => simulated::as_run(plan)?,
        };
        let figures = match failure {
            Some(_) => Vec::new(),
            None => metrics(plan, &observed.samples, observed.cpu_busy),
        };
        let (status, reasons) = match failure {
            Some(reason) => (RunStatus::Failed, vec![reason]),
            None => judge::verdict(&as_run, &observed.samples, &figures),
        };
        Ok(RunManifest {
            schema_version: SCHEMA_VERSION,
            experiment: plan.experiment.clone(),
            case: plan.case.clone(),
            axes: plan.axes.clone(),
            repeat: plan.repeat,
            backend: self.backend.name().to_owned(),
            seed: plan.seed,
            status,
            reasons,
            started_unix_ms: 0,
            duration_us: observed.duration_us,
            window_start_us: plan.window_start_us,
            window_end_us: plan.window_end_us,
            metrics: figures,
            provenance: Provenance {
                load_average: longfat_host::facts::load_average(),
                ..self.provenance.clone()
            },
            hosts: observed.hosts.clone(),
        })
    }
}

/// Every congestion control of a run, ours set as it says, for as long as the value lives.
fn ccs_of(plan: &Plan) -> Result<Vec<Registration>, SessionError> {
    let names = plan.ccs();
    let set: Vec<_> = names.iter().filter_map(|name| plan.tunables_of(name)).collect();
    let mut held = set.iter().map(longfat_kernel::cc::hold_with).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    held.extend(longfat_kernel::cc::ensure(&names)?);
    Ok(held)
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

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn io_error(path: &Path, source: io::Error) -> SessionError {
    SessionError::Io { path: path.display().to_string(), source }
}

fn make_directory(path: &Path) -> Result<(), SessionError> {
    fs::create_dir_all(path).map_err(|source| io_error(path, source))
}

fn clear(path: &Path) -> Result<(), SessionError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(path, source)),
        _ => Ok(()),
    }
}

/// Where a result goes when nobody says: `runs/NAME-20250131T120000Z`.
pub fn default_directory(experiment: &str, now: SystemTime) -> PathBuf {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Path::new("runs").join(format!("{experiment}-{}", utc(seconds)))
}

/// `20250131T120000Z`; days to a date as in the proleptic Gregorian calendar, years counted from March.
fn utc(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let era_day = days % 146_097;
    let year_of_era = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
    let year_day = era_day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * year_day + 2) / 153;
    let day = year_day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = days / 146_097 * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "19700101T000000Z");
        assert_eq!(utc(951_782_399), "20000228T235959Z");
        assert_eq!(utc(951_782_400), "20000229T000000Z");
        assert_eq!(utc(1_735_689_599), "20241231T235959Z");
        assert_eq!(utc(4_107_542_400), "21000301T000000Z");
    }
}
