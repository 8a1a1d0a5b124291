//! `longfat lab rerun`: runs made again from what their manifests say.

use super::{compare, missing, provenance};
use crate::{
    outcome::{Failure, Outcome, require},
    stop,
};
use anyhow::{Context, anyhow};
use longfat_lab::{
    backend::BackendKind,
    plan::Plan,
    rerun::{TwinAgain, differences, plan_of, renew_twin},
    session::{Backend, Carrier},
};
use longfat_report::compare::Side;
use longfat_schema::run::{Provenance, RESULT_FILE, RunDirectory, RunStatus, find_runs};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Make a run, or every run of a result, again: from 'plan.json' and 'manifest.json' alone, where it was made
/// (simulator, namespaces or hosts).
///
/// In the simulator the same plan gives the same tables, bit for bit: what comes out otherwise is named, down to the
/// row and column, and is exit code 1. The tables of the old run are not needed for that, only to say which rows
/// differ. Emulated runs never repeat exactly: which figures and parameters differ is shown, as 'longfat lab compare'
/// does.
///
/// With '--twins' no run is made again, but what the simulator makes of its plan: for results of before the simulator
/// was changed.
///
/// Exit codes: 0 made again, and the same where it is simulated; 1 something came out otherwise; 2 failed; 3 this host
/// cannot do it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat lab rerun runs/sweep/rate=25Mbit/repeat=1
  longfat lab rerun runs/sweep                       # every run of it
  longfat lab rerun runs/conversion/reno/r1 -o /tmp/again
  longfat lab rerun runs/conversion --twins          # beside today's simulator")]
pub struct RerunArgs {
    /// A run or result directory.
    #[arg(value_name = "RUN")]
    directory: PathBuf,
    /// Where the new runs go, and stay [default: nowhere].
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Simulate the twins of runs again, and put them beside their runs. A run that is too far from its new twin
    /// is named, and keeps its own if it is valid; one that only its old twin spoke against is valid if the new one
    /// is close.
    #[arg(long, conflicts_with = "output")]
    twins: bool,
    /// What differs as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// A run, what it is to be made from, and where it goes.
struct Again<'a> {
    then: RunDirectory,
    plan: Plan,
    backend: Backend<'a>,
    directory: PathBuf,
}

pub fn run(args: &RerunArgs) -> Outcome {
    if args.twins {
        return renew_twins(args);
    }
    // Held until the end: it is removed with the value.
    let scratch = tempfile::tempdir().context("a place for the new runs")?;
    let place = args.output.as_deref().unwrap_or(scratch.path());
    let (_, runs) = find_runs(&args.directory)?;
    let program = std::env::current_exe().context("find the longfat program")?;
    let runs = runs.into_iter().map(|run| again(run, place, &program)).collect::<anyhow::Result<Vec<_>>>()?;
    if runs.is_empty() {
        return Err(anyhow!("'{}' holds no run", args.directory.display()).into());
    }
    let is_emulated = |run: &&Again<'_>| run.backend.kind() == BackendKind::Emulated;
    let emulated: Vec<Plan> = runs.iter().filter(is_emulated).map(|run| run.plan.clone()).collect();
    if !emulated.is_empty() {
        require(missing(&emulated))?;
        longfat_host::lease::sweep()?;
    }
    if let Some(taken) = runs.iter().find(|run| run.directory.exists()) {
        return Err(anyhow!(
            "'{}' is there already; choose another place with -o",
            taken.directory.display()
        )
        .into());
    }
    let stop = stop::flag()?;
    // Of each world once: asking every tool for its version takes longer than many a simulated run.
    let mut world = None;
    let mut made = Vec::new();
    for (number, run) in (1..).zip(&runs) {
        eprintln!("{number}/{} {} repeat {}", runs.len(), run.plan.case, run.plan.repeat);
        let kind = run.backend.kind();
        let known = world.take().filter(|(known, _)| *known == kind);
        let (_, provenance) = world.insert(known.unwrap_or_else(|| (kind, provenance(kind))));
        made.push(make(run, provenance, &stop)?);
    }
    if emulated.is_empty() { exactly(&runs, &made, args) } else { alike(&runs, &made, args) }
}

/// Puts twins of today's simulator beside runs that are there.
fn renew_twins(args: &RerunArgs) -> Outcome {
    let (_, mut runs) = find_runs(&args.directory)?;
    let stop = stop::flag()?;
    let mut found = Vec::new();
    let count = runs.len();
    for (number, run) in (1..).zip(&mut runs) {
        eprintln!("{number}/{count} {} repeat {}", run.manifest.case, run.manifest.repeat);
        found.push((run.path.clone(), renew_twin(run, &stop)?));
        if stop.load(Ordering::Acquire) {
            return Err(anyhow!("interrupted").into());
        }
    }
    let is_result = args.directory.join(RESULT_FILE).is_file();
    if is_result && found.iter().any(|(_, came)| *came != TwinAgain::Left) {
        eprintln!(
            "the result itself was gathered before: the 'lab run' that made it, run again, gathers it anew"
        );
    }
    let in_words = |came: &TwinAgain| match came {
        TwinAgain::Renewed => "its twin was simulated again".to_owned(),
        TwinAgain::Far(why) => format!("is too far from its new twin: {why}"),
        TwinAgain::Left => "has no twin, or speaks against itself".to_owned(),
    };
    if args.json {
        let entry = |(run, came): &(PathBuf, TwinAgain)| serde_json::json!({ "run": run, "renewed": *came == TwinAgain::Renewed, "said": in_words(came) });
        crate::output::print_json(&found.iter().map(entry).collect::<Vec<_>>())?;
    } else {
        found.iter().for_each(|(run, came)| println!("{}: {}", run.display(), in_words(came)));
    }
    match found.iter().filter(|(_, came)| matches!(came, TwinAgain::Far(_))).count() {
        0 => Ok(()),
        far => Err(Failure::Missed(format!("{far} of {count} runs are too far from what is simulated now"))),
    }
}

fn again<'a>(then: RunDirectory, place: &Path, program: &'a Path) -> anyhow::Result<Again<'a>> {
    let twins = then.manifest.twin.is_some();
    let backend = Backend::of_manifest(&then.manifest.backend, program, twins).ok_or_else(|| {
        anyhow!(
            "{} was made by backend '{}', which makes nothing from a plan alone; run its experiment again",
            then.path.display(),
            then.manifest.backend
        )
    })?;
    let plan = plan_of(&then)?;
    Ok(Again { directory: place.join(plan.directory()), then, plan, backend })
}

fn make(run: &Again<'_>, provenance: &Provenance, stop: &AtomicBool) -> anyhow::Result<RunDirectory> {
    let carrier = Carrier { backend: run.backend, provenance };
    carrier
        .carry_out(&run.plan, &run.directory, &[], &mut |_| {}, stop)?
        .ok_or_else(|| anyhow!("interrupted"))?;
    Ok(RunDirectory::open(&run.directory)?)
}

/// Simulated runs: the same bit for bit, or each difference is named.
fn exactly(runs: &[Again<'_>], made: &[RunDirectory], args: &RerunArgs) -> Outcome {
    let mut found = Vec::new();
    for (run, now) in runs.iter().zip(made) {
        let differing = differences(&run.then, now)?;
        if !args.json {
            let how = if differing.is_empty() { "the same, bit for bit" } else { "differs" };
            println!("{}: {how}", run.then.path.display());
            differing.iter().for_each(|difference| println!("  {difference}"));
        }
        found.push((run, differing));
    }
    let differing = found.iter().filter(|(_, differences)| !differences.is_empty()).count();
    if args.json {
        let entry = |(run, differences): &(&Again<'_>, Vec<String>)| serde_json::json!({ "run": run.then.path, "same": differences.is_empty(), "differences": differences });
        let list: Vec<_> = found.iter().map(entry).collect();
        crate::output::print_json(&list)?;
    }
    if differing == 0 {
        return Ok(());
    }
    Err(Failure::Missed(format!(
        "{differing} of {} runs came out otherwise{}",
        runs.len(),
        program_changed(runs, made)
    )))
}

/// The likeliest reason.
fn program_changed(runs: &[Again<'_>], made: &[RunDirectory]) -> String {
    let built = |run: &RunDirectory| {
        let [version, revision, sources] = run.manifest.provenance.program();
        (format!("{version} ({revision:.12})"), sources.to_owned())
    };
    let mut pairs = runs.iter().zip(made).map(|(run, now)| (built(&run.then), built(now)));
    match pairs.find(|(then, now)| then != now) {
        Some((then, now)) if then.1 != now.1 => {
            format!("; the congestion controls' sources differ: longfat {} then, {} now", then.0, now.0)
        }
        Some((then, now)) => format!("; they were made by longfat {}, this is {}", then.0, now.0),
        None => "; this is the same longfat".to_owned(),
    }
}

/// Emulated runs: what differs, explained.
fn alike(runs: &[Again<'_>], made: &[RunDirectory], args: &RerunArgs) -> Outcome {
    let side = |name: &Path, runs: Vec<RunDirectory>| -> anyhow::Result<Side> { Ok(Side::of(name, runs)?) };
    let then = side(&args.directory, runs.iter().map(|run| run.then.clone()).collect())?;
    let now = side(Path::new("made again"), made.to_vec())?;
    let comparison = longfat_report::compare::compare(&then, &now);
    if args.json {
        crate::output::print_json(&comparison)?;
    } else {
        compare::print(&comparison, |figure| figure.is_foremost(), None);
    }
    let bad = made.iter().map(|run| &run.manifest).find(|run| run.status != RunStatus::Done);
    match bad {
        None => Ok(()),
        Some(run) => {
            let why = run.reasons.join("; ");
            Err(anyhow!("{} repeat {} is {} now: {why}", run.case, run.repeat, run.status.name()).into())
        }
    }
}
