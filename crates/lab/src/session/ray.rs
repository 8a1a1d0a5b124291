//! Runs on the hosts of a Ray cluster: a plan goes out, a packed run comes back.
//!
//! ```text
//! session ──lines of JSON──▶ ray.py ──Ray──▶ carry_out ──▶ longfat lab worker
//!         ◀──────────────── (driver)  ◀──── (any host)  ◀── packed run
//! ```
//!
//! The driver is the only thing here that knows Ray. Its standard input stays open for as long as the session needs it:
//! when that ends, however it comes, the driver cancels what is under way and goes. The same holds between a worker of
//! Ray and the program it starts, so that nothing outlives who asked for it.

use super::{
    Backend, Event, Finished, Session, SessionError, carry::clear, io_error, make_directory,
    resume::differences,
};
use crate::{archive, backend::BackendKind, plan::Plan, simulated};
use longfat_host::support::Missing;
use longfat_schema::{
    run::{PLAN_FILE, Provenance, RunDirectory, RunManifest},
    text::shortened,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

const DRIVER: &str = include_str!("ray.py");
/// Where packed runs arrive, within a result; removed when the session ends.
const PACKS: &str = ".packs";
/// Longest text of a worker that a person is shown.
const SHOWN_BYTES_MAX: usize = 1000;
/// How soon a person who ends it is heard.
const LOOK: Duration = Duration::from_millis(100);
/// How long the driver may take to cancel what is under way: emulated runs remove what they made.
const GOES_WITHIN: Duration = Duration::from_secs(60);

/// One run, as a worker gets it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    /// What is to be run.
    pub plan: Plan,
    /// Name of the [`BackendKind`].
    pub backend: String,
    /// How often an invalid run is tried again.
    pub retries: u32,
    /// Whether an emulated run gets its twin.
    pub twins: bool,
    /// Provenance of the asking session.
    pub provenance: Provenance,
}

/// Why runs could not be carried out elsewhere.
#[derive(Debug, thiserror::Error)]
pub enum RayError {
    /// Python, Ray, or something that runs need of the cluster is not there.
    #[error("missing: {0}")]
    Missing(Missing),
    /// A run could not be made.
    #[error("{run}: {said}")]
    Run {
        /// The run.
        run: String,
        /// Exit code of the program there.
        code: u8,
        /// Where, and what was said.
        said: String,
    },
    /// A worker sent another run than it was asked for.
    #[error(
        "{run}: what came back is another run ({difference}); a host of the cluster does not do what it is asked"
    )]
    Other {
        /// The run that was asked for.
        run: String,
        /// The first thing in which the one that came differs.
        difference: String,
    },
    /// The driver came to an end of its own.
    #[error("Ray: {0}")]
    Driver(String),
    /// A person stopped it before there was anything.
    #[error("interrupted")]
    Interrupted,
}

/// What the driver says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Missing(Missing),
    Ready { version: String, hosts: usize, at_once: usize },
    Made { index: usize },
    Failed { index: usize, code: u8, said: String },
    Broken { why: String },
}

/// First line to the driver.
#[derive(Serialize)]
struct Setup<'a> {
    address: Option<&'a str>,
    at_once: Option<usize>,
    emulated: bool,
    program: &'a Path,
}

/// Every other line to the driver.
#[derive(Serialize)]
struct Task<'a> {
    index: usize,
    /// Where the packed run is to be put.
    pack: PathBuf,
    /// A [`Job`] as JSON.
    job: &'a str,
}

/// A Ray cluster that is ready.
#[derive(Debug)]
pub struct Ray {
    driver: Child,
    /// Open as long as it is to live.
    to: Option<ChildStdin>,
    from: Receiver<Said>,
    /// Version of Ray.
    pub version: String,
    /// Hosts that are up.
    pub hosts: usize,
    /// Runs that find a place at once.
    pub at_once: usize,
}

impl Ray {
    /// Joins the cluster at `address`, as `ray.init` takes it. Without one: at `RAY_ADDRESS`, or else one of its own on
    /// this host. At most `at_once` runs will be under way. `program` is tried on workers before the one installed
    /// there.
    ///
    /// # Errors
    /// See [`RayError`].
    pub fn join(
        python: &Path,
        address: Option<&str>,
        at_once: Option<usize>,
        backend: BackendKind,
        program: &Path,
        stop: &AtomicBool,
    ) -> Result<Ray, RayError> {
        let mut command = Command::new(python);
        // Ctrl-C is for the session alone: it ends the driver by its input.
        command.args(["-c", DRIVER]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut driver = command.spawn().map_err(|source| {
            let why = format!("{}: {source}", python.display());
            let mend = "install python3, and Ray with it: python3 -m pip install ray";
            RayError::Missing(Missing::new("Python", why, mend))
        })?;
        let (to, from) = (driver.stdin.take(), listen(&mut driver));
        let mut ray = Ray { driver, to, from, version: String::new(), hosts: 0, at_once: 0 };
        let emulated = backend == BackendKind::Emulated;
        ray.tell(&Setup { address, at_once, emulated, program })?;
        match ray.hear(stop)? {
            None => Err(RayError::Interrupted),
            Some(Said::Ready { version, hosts, at_once }) => {
                (ray.version, ray.hosts, ray.at_once) = (version, hosts, at_once);
                Ok(ray)
            }
            Some(other) => Err(RayError::Driver(format!("it began with {other:?}"))),
        }
    }

    fn tell(&mut self, line: &impl Serialize) -> Result<(), RayError> {
        let mut text = serde_json::to_vec(line).map_err(|error| RayError::Driver(error.to_string()))?;
        text.push(b'\n');
        let written = self.to.as_mut().map_or(Ok(()), |to| to.write_all(&text));
        // A driver that has gone has said why.
        written
            .or_else(|error| self.hear(&AtomicBool::new(false)).and(Err(RayError::Driver(error.to_string()))))
    }

    /// What the driver says next; `None` when a person has stopped it.
    fn hear(&self, stop: &AtomicBool) -> Result<Option<Said>, RayError> {
        while !stop.load(Ordering::Relaxed) {
            match self.from.recv_timeout(LOOK) {
                Ok(Said::Missing(missing)) => return Err(RayError::Missing(missing)),
                Ok(Said::Broken { why }) => return Err(RayError::Driver(why)),
                Ok(said) => return Ok(Some(said)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RayError::Driver(
                        "its driver has ended; start again to make the runs that are missing".to_owned(),
                    ));
                }
            }
        }
        Ok(None)
    }
}

/// Lines of the driver, read by a thread of their own.
fn listen(driver: &mut Child) -> Receiver<Said> {
    let (to_us, from) = channel();
    let lines = driver.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let said = serde_json::from_str(&line).unwrap_or_else(|error| {
                let line = shortened(&line, SHOWN_BYTES_MAX);
                Said::Broken { why: format!("its driver said '{line}': {error}") }
            });
            if to_us.send(said).is_err() {
                return;
            }
        }
    });
    from
}

impl Drop for Ray {
    fn drop(&mut self) {
        self.to = None;
        let until = Instant::now() + GOES_WITHIN;
        while matches!(self.driver.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(LOOK / 10);
        }
        // It has gone already, as a rule.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Session<'_> {
    /// Makes every run as [`Session::run`] does, on the hosts of a cluster.
    ///
    /// # Errors
    /// See [`SessionError`]. Runs that were made are kept.
    pub fn run_on(
        &self,
        ray: Ray,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<Finished, SessionError> {
        if let Backend::Simulated { .. } = self.backend {
            simulated::check(self.plans)?;
        }
        let _claimed = self.claim(std::fs::File::try_lock)?;
        let (mut finished, pending) = self.resume(tell)?;
        let packs = self.directory.join(PACKS);
        clear(&packs)?;
        make_directory(&packs)?;
        let whole = self.spread(ray, &pending, &packs, &mut finished, tell, stop);
        clear(&packs)?;
        self.conclude(finished, whole?)
    }

    /// Whether every run was made. The driver has ended when this does.
    fn spread(
        &self,
        mut ray: Ray,
        pending: &[usize],
        packs: &Path,
        finished: &mut Finished,
        tell: &mut dyn FnMut(Event<'_>),
        stop: &AtomicBool,
    ) -> Result<bool, SessionError> {
        let pack_of = |index: usize| packs.join(format!("{index}{}", archive::SUFFIX));
        for index in pending.iter().copied() {
            ray.tell(&Task { index, pack: pack_of(index), job: &self.job(&self.plans[index])? })?;
        }
        let mut awaited: BTreeSet<usize> = pending.iter().copied().collect();
        while !awaited.is_empty() {
            let index = match ray.hear(stop)? {
                None => return Ok(false),
                Some(Said::Made { index }) if awaited.remove(&index) => index,
                Some(Said::Failed { index, code, said }) => {
                    let run = self.plans.get(index).map_or_else(String::new, Plan::directory);
                    let said = shortened(&said, SHOWN_BYTES_MAX).into_owned();
                    return Err(RayError::Run { run, code, said }.into());
                }
                Some(other) => return Err(RayError::Driver(format!("it said {other:?}")).into()),
            };
            let manifest = self.receive(&self.plans[index], &pack_of(index), packs)?;
            tell(Event::Ends { index, attempt: 1, manifest: &manifest, again: false });
            self.keep(index, manifest, finished)?;
        }
        Ok(true)
    }

    fn job(&self, plan: &Plan) -> Result<String, RayError> {
        let job = Job {
            plan: plan.clone(),
            backend: self.backend.kind().name().to_owned(),
            retries: self.retries(),
            twins: matches!(self.backend, Backend::Emulated { twins: true, .. }),
            provenance: self.provenance.clone(),
        };
        serde_json::to_string(&job).map_err(|error| RayError::Driver(error.to_string()))
    }

    /// Puts a packed run in its place: whole, or not at all. It is the one that was asked for.
    fn receive(&self, plan: &Plan, pack: &Path, packs: &Path) -> Result<RunManifest, SessionError> {
        // Beside other packs, of whose names one might be.
        let within = tempfile::tempdir_in(packs).map_err(|source| io_error(packs, source))?;
        let unpacked = archive::unpack(pack, within.path())?;
        fs::remove_file(pack).map_err(|source| io_error(pack, source))?;
        let manifest = RunDirectory::open(&unpacked)?.manifest;
        let mut differences = differences(&unpacked.join(PLAN_FILE), plan)?;
        let asked_for = self.backend.kind().name();
        if manifest.backend != asked_for {
            differences.push(format!("backend: {asked_for} was asked for, {} is here", manifest.backend));
        }
        if let Some(difference) = differences.first() {
            let difference = shortened(difference, SHOWN_BYTES_MAX).into_owned();
            return Err(RayError::Other { run: plan.directory(), difference }.into());
        }
        let place = self.directory.join(plan.directory());
        clear(&place)?;
        if let Some(above) = place.parent() {
            make_directory(above)?;
        }
        fs::rename(&unpacked, &place).map_err(|source| io_error(&place, source))?;
        Ok(manifest)
    }
}
