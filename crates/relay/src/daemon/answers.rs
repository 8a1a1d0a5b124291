//! Answers to questions: everything is gathered at that moment, by the thread that answers.

use super::{control::Control, mover::Mover, receiver::Receiver};
use crate::{
    Error, RelayPlan, Result,
    handover::estate::Estate,
    observe::{
        metrics::{self, Format, Overview},
        status::{self, EndToEndStatus, ReloadStatus, STATUS_VERSION, Status},
    },
    spec::RuleSpec,
    worker::Workers,
};
use longfat_host::monotonic_us;
use std::{
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering, mpsc},
    time::Duration,
};

/// The thread that answers questions.
pub(crate) struct Answers {
    pub control: Option<Control>,
    pub metrics: Option<metrics::http::Server>,
}

impl Answers {
    pub fn open(plan: &RelayPlan, estate: &mut Estate) -> Result<Answers> {
        let control =
            plan.control.as_ref().map(|plan| Control::open(plan, estate.control.take())).transpose()?;
        let open_metrics = |address| metrics::http::Server::open_or(address, estate.metrics.take());
        let metrics = plan.metrics.map(open_metrics).transpose()?;
        Ok(Answers { control, metrics })
    }

    /// Leaves the control socket to another relay.
    pub fn leave(self) {
        self.control.into_iter().for_each(Control::leave);
    }
}

/// What the thread that runs the relay says of it.
#[derive(Debug, Default)]
pub(crate) struct Description {
    pub listening: Vec<SocketAddr>,
    pub interfaces: Vec<String>,
    pub rules: Vec<String>,
    pub added_rules: Vec<String>,
    pub reload: ReloadStatus,
}

/// A change of rules that somebody asks for.
#[derive(Debug)]
pub(crate) enum RuleChange {
    Add(Box<RuleSpec>),
    Remove(String),
}

/// A change that waits for the thread that runs the relay, and whom to tell what became of it.
pub(crate) struct Asked {
    pub change: RuleChange,
    answer: mpsc::Sender<Result<Vec<String>>>,
}

impl Asked {
    /// Tells who asked; nobody may be there any more.
    pub fn tell(self, outcome: Result<Vec<String>>) {
        let _ = self.answer.send(outcome);
    }
}

/// A relay that does not attend to a change for so long is ending, or being taken over.
const ATTENDED: Duration = Duration::from_secs(5);

/// A relay that runs, for whoever asks.
pub(crate) struct Relay<'a> {
    pub workers: &'a Workers<'a>,
    description: Mutex<Description>,
    asked: Mutex<Vec<Asked>>,
    /// Moves connections to another router.
    pub mover: Mover,
    /// Takes connections in from another router.
    pub receiver: Receiver,
    /// CLOCK_MONOTONIC of its start.
    started_us: i64,
}

impl<'a> Relay<'a> {
    pub fn new(
        workers: &'a Workers<'a>,
        description: Description,
        receiver: Receiver,
        started_us: i64,
    ) -> Relay<'a> {
        let (asked, mover, description) = (Mutex::default(), Mover::default(), Mutex::new(description));
        Relay { workers, description, asked, mover, receiver, started_us }
    }

    /// Whether connections come from another router, or go there.
    pub fn is_moving(&self) -> bool {
        self.mover.status().is_running || self.receiver.is_busy()
    }

    /// Has the thread that runs the relay change its rules; those that were added, when it has.
    pub fn change_rules(&self, change: RuleChange) -> Result<Vec<String>> {
        let (answer, told) = mpsc::channel();
        self.waiting().push(Asked { change, answer });
        let gone =
            || Error::Plan("the relay ends or is taken over, and changes no rules; ask the next one".into());
        told.recv_timeout(ATTENDED).unwrap_or_else(|_| {
            // What nobody has begun must not happen later; of what is being done the outcome is told.
            self.waiting().clear();
            told.recv().unwrap_or_else(|_| Err(gone()))
        })
    }

    /// Changes that were asked for since the last call.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.waiting())
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be read, or changed.
    pub fn description(&self) -> MutexGuard<'_, Description> {
        self.description.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn status(&self, with_connections: bool) -> Status {
        let (time_us, shared) = (monotonic_us(), &self.workers.shared);
        let description = self.description();
        let mut status = Status {
            version: STATUS_VERSION,
            name: shared.plan.name.clone(),
            program_version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            time_us,
            uptime_us: (time_us - self.started_us).max(0) as u64,
            draining: shared.stage.is_draining(),
            listening: description.listening.clone(),
            interfaces: description.interfaces.clone(),
            rules: description.rules.clone(),
            added_rules: description.added_rules.clone(),
            live: shared.admission.live(),
            taken_over: shared.journal.taken_over.load(Ordering::Relaxed),
            end_to_end: self.end_to_end(),
            memory: shared.admission.memory(),
            totals: shared.journal.stats(self.workers.held.adopting.watcher.released()),
            reload: description.reload.clone(),
            connections: Vec::new(),
        };
        drop(description);
        if with_connections {
            let living = shared.journal.registry.living();
            // Those that move little are looked at by nobody else.
            living.iter().for_each(|legs| self.workers.queues.count_marks(legs));
            let acks = &self.workers.held.adopting.watcher.acks;
            let held_back = |pair| Some(acks.look(pair)?.legs.map(|leg| u64::from(leg.held_back_bytes())));
            status.connections = status::connections(&living, time_us, &held_back);
        }
        status
    }

    pub fn metrics(&self, format: Format) -> String {
        let shared = &self.workers.shared;
        let passed = self.workers.held.adopting.passed();
        let overview = Overview {
            status: self.status(false),
            connection_limit: shared.admission.connection_limit(),
            passed: passed.map(|(reason, count)| (reason.name(), count)).collect(),
        };
        metrics::render(&overview, &shared.journal.registry, format)
    }

    fn end_to_end(&self) -> EndToEndStatus {
        let adopting = &self.workers.held.adopting;
        let passed = adopting.passed().filter(|(_, count)| *count > 0);
        let passed = passed.map(|(reason, count)| (reason.name().to_owned(), count)).collect();
        let [watched, reached, adopted] = adopting.watcher.counts();
        let totals = self.workers.shared.journal.stats(adopting.watcher.released());
        let at_stop = totals.released.saturating_sub(totals.paused);
        let released = [("pause", totals.paused), ("stop", at_stop)];
        let released = released.into_iter().filter(|(_, count)| *count > 0);
        let released = released.map(|(reason, count)| (reason.to_owned(), count)).collect();
        let journal = self.workers.shared.journal;
        EndToEndStatus {
            inserted: adopting.inserted(),
            watched,
            reached,
            adopted,
            released,
            moved_in: journal.moved_in.load(Ordering::Relaxed),
            moved_out: totals.moved,
            passed,
        }
    }
}
