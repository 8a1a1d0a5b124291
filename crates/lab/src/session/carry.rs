//! One plan carried out into one run directory.

use super::{Event, SessionError, io_error, make_directory, unix_ms_of};
use crate::{
    backend::{self, BackendKind, Observed, Tick},
    conductor::Ending,
    dilation::remarks,
    emulated::{self, Environment},
    hosts::{self, Hosts, HostsError, MachineError},
    judge,
    metrics::{metrics, record_free},
    part::PartError,
    plan::Plan,
    samples::Samples,
    simulated::{self, SimulationError},
};
use longfat_schema::{
    SCHEMA_VERSION,
    run::{PLAN_FILE, Provenance, RunManifest, RunStatus, RunWriter, seal_run, write_json},
};
use std::{
    borrow::Cow,
    fs, io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

/// Backend that carries a plan out, and what it needs for that.
#[derive(Debug, Clone, Copy)]
pub enum Backend<'a> {
    /// Network namespaces with the TCP of this kernel.
    Emulated {
        /// The `longfat` binary, whose subcommands measure.
        program: &'a Path,
        /// Valid runs get their twins: the same plan, simulated.
        twins: bool,
    },
    /// The simulator, in virtual time.
    Simulated {
        /// Runs at once; as many as there are processors when absent.
        workers: Option<usize>,
    },
    /// Machines reached by SSH, and the path that is between them.
    Hosts(&'a Hosts),
}

impl<'a> Backend<'a> {
    /// The backend of a manifest that makes a run from its plan alone; `None` for any other name. A run on hosts also
    /// needs their table.
    pub fn of_manifest(name: &str, program: &'a Path, twins: bool) -> Option<Backend<'a>> {
        let known = [Backend::Emulated { program, twins }, Backend::Simulated { workers: None }];
        known.into_iter().find(|backend| backend.kind().name() == name)
    }

    /// Which it is.
    pub fn kind(self) -> BackendKind {
        match self {
            Backend::Emulated { .. } => BackendKind::Emulated,
            Backend::Simulated { .. } => BackendKind::Simulated,
            Backend::Hosts(_) => BackendKind::Hosts,
        }
    }
}

/// Carrier of plans: the backend, and how runs are made by it.
#[derive(Debug, Clone, Copy)]
pub struct Carrier<'a> {
    /// In which world.
    pub backend: Backend<'a>,
    /// Provenance of the runs.
    pub provenance: &'a Provenance,
}

/// What came of trying a run once.
enum Attempt {
    Observed(Box<Observed>),
    /// The run failed; the next may well succeed.
    Failed(String),
    /// A person stopped it.
    Interrupted,
}

impl Carrier<'_> {
    /// Makes one run and tries it again, up to `retries` times, when it is invalid. The last attempt is kept; what was
    /// wrong with the others is among its reasons. `index` is what it is called in what is told. `None` when a person
    /// stopped it.
    ///
    /// # Errors
    /// It could not be set up, or not be written.
    pub fn until_valid(
        &self,
        (index, plan): (usize, &Plan),
        directory: &Path,
        retries: u32,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<Option<RunManifest>, SessionError> {
        let mut earlier = Vec::new();
        for attempt in 1.. {
            tell(Event::Begins { index, plan, attempt });
            let tick = &mut |tick| tell(Event::Ticks { index, tick });
            let made = self.carry_out(plan, directory, &earlier, tick, stop)?;
            let Some(mut manifest) = made else { return Ok(None) };
            // What only its twin speaks against is not tried again: the simulator would choose the repeats.
            let again =
                !manifest.went_as_planned() && manifest.status == RunStatus::Invalid && attempt <= retries;
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

    /// Makes one run in a directory of its own, whatever was there before. `earlier` are reasons of attempts before it.
    /// `None` when a person stopped it.
    ///
    /// # Errors
    /// It could not be set up, or not be written.
    pub fn carry_out(
        &self,
        plan: &Plan,
        directory: &Path,
        earlier: &[String],
        tick: &mut dyn FnMut(Tick),
        stop: &AtomicBool,
    ) -> Result<Option<RunManifest>, SessionError> {
        clear(directory)?;
        make_directory(directory)?;
        write_json(&directory.join(PLAN_FILE), plan)?;
        let started_unix_ms = unix_ms_of(SystemTime::now());
        let attempt = match self.backend {
            Backend::Emulated { program, .. } => emulate(plan, program, directory, tick, stop)?,
            Backend::Simulated { .. } => simulate(plan, tick, stop)?,
            Backend::Hosts(hosts) => on_hosts(plan, hosts, directory, tick, stop)?,
        };
        let (observed, failure) = match attempt {
            Attempt::Observed(mut observed) => {
                record_free(&self.measured(plan), &mut observed.samples);
                (*observed, None)
            }
            Attempt::Failed(reason) => (Observed::default(), Some(reason)),
            Attempt::Interrupted => {
                clear(directory)?;
                return Ok(None);
            }
        };
        let mut manifest = self.manifest(plan, &observed, failure)?;
        manifest.started_unix_ms = started_unix_ms;
        let with_twin = matches!(self.backend, Backend::Emulated { twins: true, .. });
        if with_twin && manifest.status == RunStatus::Done {
            let is_judged = put_beside_twin(plan, &mut manifest, &observed.samples, stop);
            if !is_judged {
                clear(directory)?;
                return Ok(None);
            }
        }
        manifest.reasons.extend_from_slice(earlier);
        let mut writer = RunWriter::create(directory)?;
        observed.samples.into_records().try_for_each(|record| writer.push(record))?;
        writer.finish()?;
        // The tables hold what the raw files said; a failed run keeps them for who looks for the cause.
        if manifest.status != RunStatus::Failed {
            clear(&directory.join("raw"))?;
        }
        seal_run(directory, &mut manifest)?;
        Ok(Some(manifest))
    }

    /// The plan whose figures are counted: what it says of links says nothing of a real path.
    fn measured<'a>(&self, plan: &'a Plan) -> Cow<'a, Plan> {
        match self.backend {
            Backend::Hosts(hosts) => Cow::Owned(hosts.table.as_run(plan)),
            Backend::Emulated { .. } | Backend::Simulated { .. } => Cow::Borrowed(plan),
        }
    }

    fn manifest(
        &self,
        plan: &Plan,
        observed: &Observed,
        failure: Option<String>,
    ) -> Result<RunManifest, SessionError> {
        // Records say whose code ran; judged is whether it was the planned code.
        let kind = self.backend.kind();
        let as_run = match kind {
            BackendKind::Emulated | BackendKind::Hosts => self.measured(plan),
            BackendKind::Simulated => Cow::Owned(simulated::as_run(plan)?),
        };
        let figures = match failure {
            Some(_) => Vec::new(),
            None => metrics(&self.measured(plan), &observed.samples, observed.cpu_busy),
        };
        let (status, reasons) = match failure {
            Some(reason) => (RunStatus::Failed, vec![reason]),
            None if kind == BackendKind::Simulated => {
                judge::simulated_verdict(&as_run, &observed.samples, &figures)
            }
            None => {
                let said = judge::verdict(&as_run, &observed.samples, &figures);
                judge::with_idle_relays(said, (plan, &as_run), &observed.samples)
            }
        };
        let dilation = kind.dilation(plan);
        let reasons = reasons.into_iter().chain(remarks(plan, dilation)).collect();
        Ok(RunManifest {
            schema_version: SCHEMA_VERSION,
            experiment: plan.experiment.clone(),
            case: plan.case.clone(),
            axes: plan.axes.clone(),
            repeat: plan.repeat,
            backend: kind.name().to_owned(),
            seed: plan.seed,
            dilation,
            status,
            reasons,
            started_unix_ms: 0,
            duration_us: observed.duration_us,
            window_start_us: plan.window_start_us,
            window_end_us: plan.window_end_us,
            metrics: figures,
            twin: None,
            provenance: Provenance {
                load_average: longfat_host::facts::load_average(),
                ..self.provenance.clone()
            },
            hosts: observed.hosts.clone(),
            files: None,
            seal: None,
        })
    }
}

/// Gives a run its twin. What that speaks against is unexplained, or invalid where hold-ups of the machine explain it.
/// Returns whether all twins were made that this takes: a person may stop it.
fn put_beside_twin(plan: &Plan, manifest: &mut RunManifest, samples: &Samples, stop: &AtomicBool) -> bool {
    let Some(mut twin) = simulated::twin(plan, stop) else { return false };
    let hold_ups = judge::held_up(plan, samples);
    let by_chance = simulated::twins_by_chance(plan, &manifest.metrics, stop);
    let held_up = simulated::twins_held_up(plan, &hold_ups, stop);
    let others = (by_chance, &hold_ups[..], held_up);
    let found = judge::beside_twins(plan, &manifest.metrics, samples, &mut twin, others);
    if twin.chance.is_some() && stop.load(Ordering::Acquire) {
        return false;
    }
    if let Some((status, reason)) = found {
        manifest.status = status;
        manifest.reasons.insert(0, reason);
    }
    manifest.twin = Some(twin);
    true
}

fn emulate(
    plan: &Plan,
    program: &Path,
    directory: &Path,
    tick: &mut dyn FnMut(Tick),
    stop: &AtomicBool,
) -> Result<Attempt, SessionError> {
    let _ccs = backend::ccs_of(plan, plan.dilation)?;
    let lease = format!("{}-{}", plan.experiment, std::process::id());
    let environment = Environment { program, directory, lease: &lease };
    match emulated::run(plan, environment, tick, stop) {
        Ok(observed) => Ok(Attempt::Observed(Box::new(observed))),
        Err(PartError::Ended(Ending::Interrupted)) => Ok(Attempt::Interrupted),
        Err(
            error @ (PartError::Child(_) | PartError::Ended(Ending::Disagreed(..) | Ending::Endless(..))),
        ) => Ok(Attempt::Failed(error.to_string())),
        Err(source) => {
            let (case, repeat) = (plan.case.clone(), plan.repeat);
            Err(SessionError::Emulation { case, repeat, source: Box::new(source) })
        }
    }
}

fn on_hosts(
    plan: &Plan,
    hosts: &Hosts,
    directory: &Path,
    tick: &mut dyn FnMut(Tick),
    stop: &AtomicBool,
) -> Result<Attempt, SessionError> {
    match hosts::run(plan, hosts, directory, tick, stop) {
        Ok(observed) => Ok(Attempt::Observed(Box::new(observed))),
        Err(error) if error.is_interruption() => Ok(Attempt::Interrupted),
        Err(
            error @ (HostsError::Machine(MachineError::Run { .. })
            | HostsError::Here(PartError::Ended(Ending::Disagreed(..) | Ending::Endless(..)))),
        ) => Ok(Attempt::Failed(error.to_string())),
        Err(source) => {
            let (case, repeat) = (plan.case.clone(), plan.repeat);
            Err(SessionError::Hosts { case, repeat, source: Box::new(source) })
        }
    }
}

fn simulate(plan: &Plan, tick: &mut dyn FnMut(Tick), stop: &AtomicBool) -> Result<Attempt, SessionError> {
    match simulated::run(plan, tick, stop) {
        Ok(observed) => Ok(Attempt::Observed(Box::new(observed))),
        Err(SimulationError::Interrupted) => Ok(Attempt::Interrupted),
        Err(error) => Err(error.into()),
    }
}

/// Removes a directory, if it is there.
pub(super) fn clear(path: &Path) -> Result<(), SessionError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(path, source)),
        _ => Ok(()),
    }
}
