//! A result directory as what a report shows: cases in order, their runs, and the repeat that stands for each.

use crate::{
    ReportError,
    summary::{self, Summary},
};
use longfat_schema::run::{
    CaseInfo, DamagedRun, Expectation, Found, Provenance, ResultManifest, RunDirectory, RunEntry,
    RunManifest, RunStatus, find_readable_runs,
};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// One result, or one run by itself.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Where it was read from.
    pub path: PathBuf,
    /// Name of the experiment.
    pub name: String,
    /// One line.
    pub title: String,
    /// Manifest of the result; absent for a single run.
    pub result: Option<ResultManifest>,
    /// Medians and spread.
    pub summary: Summary,
    /// In the order of the experiment, as in `summary`.
    pub cases: Vec<Case>,
    /// Manifests that could not be read, and why.
    pub damaged: Vec<String>,
}

/// One case with its runs.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name, title, published figures.
    pub info: CaseInfo,
    /// Runs of the case that left a manifest, by repeat.
    pub runs: Vec<RunDirectory>,
    /// Runs the result lists that left none, or a damaged one.
    pub lost: Vec<LostRun>,
    /// Index in `runs` of the one drawn first: the valid one whose focus goodput is nearest the median.
    pub representative: Option<usize>,
}

/// A run of which nothing is known but that it was to be.
#[derive(Debug, Clone)]
pub struct LostRun {
    /// Which repeat of its case.
    pub repeat: u32,
    /// What is wrong with its manifest; absent where there is none.
    pub damage: Option<String>,
}

impl Experiment {
    /// Reads the manifests of a result directory or of a single run.
    pub fn open(path: &Path) -> Result<Experiment, ReportError> {
        let Found { result, runs, damaged } = find_readable_runs(path)?;
        let no_runs = result.as_ref().is_none_or(|r| r.runs.is_empty()) && runs.is_empty();
        if no_runs {
            return Err(ReportError::NoRuns(path.display().to_string()));
        }
        let manifests: Vec<&RunManifest> = runs.iter().map(|run| &run.manifest).collect();
        let named = if result.is_none() { runs.first().and_then(planned_focus) } else { None };
        let summary = summary::summarise(result.as_ref(), named, &manifests);
        let infos = summary::case_infos(result.as_ref(), &manifests);
        let name =
            result.as_ref().map_or_else(|| runs[0].manifest.experiment.clone(), |r| r.experiment.clone());
        let lost = |info: &CaseInfo, own: &[RunDirectory]| lost(path, info, result.as_ref(), own, &damaged);
        let cases = infos.into_iter().map(|info| case(info, &runs, lost, &summary)).collect();
        Ok(Experiment {
            path: path.to_owned(),
            damaged: damaged.iter().map(|run| run.error.to_string()).collect(),
            title: title(result.as_ref(), &runs),
            name,
            result,
            summary,
            cases,
        })
    }

    /// The flow the experiment is about.
    pub fn focus(&self) -> Option<&str> {
        self.summary.focus.as_deref()
    }

    /// What it shows, in paragraphs.
    pub fn description(&self) -> &str {
        self.result.as_ref().map_or("", |r| &r.description)
    }

    /// What it expected, judged.
    pub fn expectations(&self) -> &[Expectation] {
        self.result.as_ref().map_or(&[], |r| &r.expectations)
    }

    /// Every run that left a manifest.
    pub fn runs(&self) -> impl Iterator<Item = &RunDirectory> {
        self.cases.iter().flat_map(|case| &case.runs)
    }

    /// Where and by whom it was made.
    pub fn provenance(&self) -> Option<&Provenance> {
        let of_run = || self.runs().next().map(|run| &run.manifest.provenance);
        self.result.as_ref().map(|r| &r.provenance).or_else(of_run)
    }

    /// Wall-clock start, milliseconds since 1970.
    pub fn started_unix_ms(&self) -> Option<u64> {
        let of_run = || self.runs().map(|run| run.manifest.started_unix_ms).min();
        self.result.as_ref().map(|r| r.started_unix_ms).or_else(of_run)
    }
}

/// The flow that the experiment of a run by itself is about, as its plan names it.
fn planned_focus(run: &RunDirectory) -> Option<String> {
    #[derive(Deserialize)]
    struct Plan {
        focus: Option<String>,
    }
    // A run may have no plan: it is shown without.
    run.plan::<Plan>().ok()?.focus
}

fn title(result: Option<&ResultManifest>, runs: &[RunDirectory]) -> String {
    match result {
        Some(result) if result.title.is_empty() => result.experiment.clone(),
        Some(result) => result.title.clone(),
        None => runs.first().map_or_else(String::new, |run| of_one(&run.manifest)),
    }
}

/// A trace of connections is no case of an experiment.
fn of_one(run: &RunManifest) -> String {
    if run.case == run.experiment {
        return run.experiment.clone();
    }
    format!("{}: {}, repeat {}", run.experiment, run.case, run.repeat)
}

fn case(
    info: CaseInfo,
    runs: &[RunDirectory],
    lost: impl Fn(&CaseInfo, &[RunDirectory]) -> Vec<LostRun>,
    summary: &Summary,
) -> Case {
    let mut own: Vec<RunDirectory> = runs.iter().filter(|r| r.manifest.case == info.name).cloned().collect();
    own.sort_by_key(|run| run.manifest.repeat);
    let (lost, representative) = (lost(&info, &own), representative(&own, summary));
    Case { info, runs: own, lost, representative }
}

/// Runs of a case that are not among its own.
fn lost(
    path: &Path,
    case: &CaseInfo,
    result: Option<&ResultManifest>,
    own: &[RunDirectory],
    damaged: &[DamagedRun],
) -> Vec<LostRun> {
    let damage = |entry: &RunEntry| {
        let found = damaged.iter().find(|run| run.path == path.join(&entry.path));
        found.map(|run| run.error.to_string())
    };
    let entries = result.iter().flat_map(|r| &r.runs).filter(|entry| entry.case == case.name);
    entries
        .filter(|entry| own.iter().all(|run| run.manifest.repeat != entry.repeat))
        .map(|entry| LostRun { repeat: entry.repeat, damage: damage(entry) })
        .collect()
}

/// The valid repeat nearest the median; with an even count the lower of the middle two. Without a valid one, the
/// first that is at least not failed, else the first.
fn representative(runs: &[RunDirectory], summary: &Summary) -> Option<usize> {
    let focus = summary.focus.as_deref();
    let goodput = |index: &usize| summary::focus_goodput(&runs[*index].manifest, focus).unwrap_or(0.0);
    let with = |status| (0..runs.len()).filter(move |i: &usize| runs[*i].manifest.status == status);
    let mut valid: Vec<usize> = with(RunStatus::Done).collect();
    valid.sort_by(|a, b| goodput(a).total_cmp(&goodput(b)));
    let middle = valid.get(valid.len().saturating_sub(1) / 2).copied();
    middle
        .or_else(|| with(RunStatus::Unexplained).chain(with(RunStatus::Invalid)).next())
        .or(if runs.is_empty() { None } else { Some(0) })
}
