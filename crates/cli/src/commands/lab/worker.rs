//! `longfat lab worker`: one run for a session elsewhere; what a worker of `longfat lab run --on ray` starts.

use super::{missing, provenance};
use crate::{
    outcome::{Failure, Outcome, require},
    stop,
};
use anyhow::{Context, anyhow};
use longfat_host::support::Missing;
use longfat_lab::{
    archive,
    backend::BackendKind,
    rerun,
    session::{Backend, Carrier, Job},
};
use longfat_schema::run::Provenance;
use std::{
    fs::File,
    io::{self, Read},
    slice,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    thread,
};

/// Make one run for a session elsewhere: a job as a line of JSON on standard input, the packed run on standard output.
/// It is given up when standard input ends before.
#[derive(clap::Args)]
pub struct WorkerArgs {}

pub fn run() -> Outcome {
    let stop = stop::flag()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line).context("the job on standard input")?;
    let job: Job = serde_json::from_str(&line).context("the job on standard input")?;
    let program = std::env::current_exe().context("find the longfat program")?;
    let backend = Backend::of_manifest(&job.backend, &program, job.twins);
    let backend = backend.ok_or_else(|| anyhow!("no backend is called '{}'", job.backend))?;
    let own = provenance(backend.kind());
    require(other_program(&job.provenance, &own).into_iter().collect())?;
    if backend.kind() == BackendKind::Emulated {
        require(missing(slice::from_ref(&job.plan)))?;
        longfat_host::lease::sweep()?;
    }
    give_up_with_input(Arc::clone(&stop));
    make(&job, backend, own, &stop)
}

/// Runs of one sweep are made by one program.
fn other_program(asking: &Provenance, own: &Provenance) -> Option<Missing> {
    let named = |made: &Provenance| {
        let [version, revision, sources] = made.program();
        format!("longfat {version} ({revision:.12}, congestion controls {sources:.12})")
    };
    (asking.program() != own.program()).then(|| {
        Missing::new(
            named(asking),
            format!("this host has {}", named(own)),
            "install the same on every host of the cluster",
        )
    })
}

/// Stops the run when standard input ends: whoever asked for the run holds the other end.
fn give_up_with_input(stop: Arc<AtomicBool>) {
    thread::spawn(move || {
        // Nothing more is sent; an error is an end too.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
}

fn make(job: &Job, backend: Backend<'_>, own: Provenance, stop: &AtomicBool) -> Outcome {
    if let Some(name) = rerun::outside(&job.plan) {
        return Err(
            anyhow!("the job names {name:?}, which would lead outside its directory or namespace").into()
        );
    }
    if let Some(what) = rerun::beyond(&job.plan) {
        return Err(anyhow!("the job: {what}; that is no plan of an experiment").into());
    }
    let place = tempfile::tempdir().context("a place for the run")?;
    let directory = place.path().join(job.plan.directory());
    let provenance = Provenance { command_line: job.provenance.command_line.clone(), ..own };
    let carrier = Carrier { backend, provenance: &provenance };
    let made = carrier.until_valid((0, &job.plan), &directory, job.retries, &mut |_| {}, stop);
    made?.ok_or_else(|| Failure::Failed(anyhow!("interrupted")))?;
    let file = place.path().join(format!("run{}", archive::SUFFIX));
    archive::pack(&directory, &file)?;
    let mut pack = File::open(&file).context("the packed run")?;
    io::copy(&mut pack, &mut io::stdout()).context("the packed run, to standard output")?;
    Ok(())
}
