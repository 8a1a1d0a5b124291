//! Which charts a result deserves: those over an axis of its sweep, up to six over all cases, those that few cases can
//! share over time, and six or seven over time for each run.

pub(crate) mod curves;
pub(crate) mod overview;
mod panels;
mod samples;
mod sweep;
mod together;
mod trust;

pub use curves::{Curves, Measure, axes_of_numbers};
pub use samples::RunSamples;
pub use trust::{Class as TrustClass, Trust};

use crate::{
    load::{Case, Experiment},
    plot::Figure,
};
use longfat_schema::run::{RunManifest, RunStatus};

/// Every figure of one experiment.
#[derive(Debug, Clone)]
pub struct ExperimentFigures {
    /// Metrics over an axis of the sweep, where it has one of numbers.
    pub curves: Option<Curves>,
    /// Focus goodput of each case, repeat by repeat.
    pub goodput: Figure,
    /// Goodput of each stream within each case.
    pub shares: Option<Figure>,
    /// Goodput of each flow of each case, where several have some.
    pub flows: Option<Figure>,
    /// 99th percentile of the latency in each case, where cases have one.
    pub echo: Option<Figure>,
    /// Error of the available bandwidth of each case, where connections measured it.
    pub avail_error: Option<Figure>,
    /// Error of the available bandwidth against the confidence in it, where there are cases enough.
    pub trust: Option<Trust>,
    /// Several cases in one chart over time: its name and itself.
    pub together: Vec<(&'static str, Figure)>,
    /// One entry per case, as in the experiment.
    pub cases: Vec<CaseFigures>,
    /// Tables of valid or invalid runs that could not be read.
    pub warnings: Vec<String>,
}

/// The runs of one case over time.
#[derive(Debug, Clone)]
pub struct CaseFigures {
    /// Case name.
    pub case: String,
    /// One entry per run, as in the case.
    pub runs: Vec<RunFigures>,
    /// As in the case.
    pub representative: Option<usize>,
}

/// One run over time.
#[derive(Debug, Clone)]
pub struct RunFigures {
    /// The panels.
    pub panels: Vec<Panel>,
    /// Per link direction: name, driver and lateness.
    pub links: Vec<longfat_schema::record::LinkSummary>,
    /// Tables that could not be read.
    pub problems: Vec<String>,
    /// What programs said during the run: time, level, source, message.
    pub notes: Vec<longfat_schema::record::Note>,
    /// Streams that ended early: name and reason.
    pub errors: Vec<(String, String)>,
}

/// One small figure of a run, or why there is none.
#[derive(Debug, Clone)]
pub enum Panel {
    /// A figure; `name` tells it from the run's others.
    Drawn {
        /// `goodput`, `cwnd`…
        name: &'static str,
        /// The figure.
        figure: Box<Figure>,
    },
    /// The figure has nothing to draw.
    Absent {
        /// What it would have shown.
        title: &'static str,
        /// Why it does not.
        why: String,
    },
}

impl ExperimentFigures {
    /// Every figure that becomes a file: the overviews and the representative run of each case.
    pub fn named(&self) -> impl Iterator<Item = (String, &Figure)> {
        let curves = self.curves.iter().flat_map(Curves::named);
        let overview = [("goodput".to_owned(), &self.goodput)];
        let shares = self.shares.iter().map(|figure| ("shares".to_owned(), figure));
        let flows = self.flows.iter().map(|figure| ("flows".to_owned(), figure));
        let echo = self.echo.iter().map(|figure| ("echo".to_owned(), figure));
        let error = self.avail_error.iter().map(|figure| ("avail-error".to_owned(), figure));
        let trust = self.trust.iter().map(|trust| ("avail-trust".to_owned(), &trust.figure));
        let together = self.together.iter().map(|(name, figure)| ((*name).to_owned(), figure));
        curves
            .chain(overview)
            .chain(shares)
            .chain(flows)
            .chain(echo)
            .chain(error)
            .chain(trust)
            .chain(together)
            .chain(self.cases.iter().flat_map(CaseFigures::named))
    }
}

impl CaseFigures {
    fn named(&self) -> impl Iterator<Item = (String, &Figure)> {
        let run = self.representative.and_then(|index| self.runs.get(index));
        run.into_iter().flat_map(|run| &run.panels).filter_map(|panel| match panel {
            Panel::Drawn { name, figure } => Some((format!("{}-{name}", self.case), &**figure)),
            Panel::Absent { .. } => None,
        })
    }
}

/// Which runs of a case are drawn over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Repeats {
    /// Every one.
    #[default]
    All,
    /// The one that stands for the case.
    Representative,
}

/// What of an experiment is to be drawn, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Runs drawn over time.
    pub repeats: Repeats,
    /// Axis of the sweep that metrics are drawn over; without one, the one with the most numbers.
    pub over: Option<String>,
}

/// Reads the tables of every run, one run at a time, and draws everything. `prefix` makes the figures' ids unique.
pub fn draw(experiment: &Experiment, prefix: &str, choice: &Choice) -> ExperimentFigures {
    let mut warnings = Vec::new();
    let mut shares = Vec::new();
    let mut shown = Vec::new();
    let mut cases = Vec::new();
    for (index, case) in experiment.cases.iter().enumerate() {
        let prefix = format!("{prefix}c{}", index + 1);
        let (figures, of_case) = draw_case(case, experiment.focus(), &prefix, choice.repeats, &mut warnings);
        cases.push(figures);
        shares.push(of_case.streams);
        shown.push(of_case.shown);
    }
    ExperimentFigures {
        curves: Curves::of(experiment, choice.over.as_deref(), prefix),
        goodput: overview::goodput(experiment, &format!("{prefix}-goodput")),
        shares: overview::shares(experiment, &shares, &format!("{prefix}-shares")),
        flows: overview::flows(experiment, &format!("{prefix}-flows")),
        echo: overview::echo(experiment, &format!("{prefix}-echo")),
        avail_error: overview::avail_error(experiment, &format!("{prefix}-avail-error")),
        trust: Trust::of([experiment], &format!("{prefix}-avail-trust")),
        together: together::draw(experiment, &shown, prefix),
        cases,
        warnings,
    }
}

/// What the run that stands for a case adds to the charts over all cases.
#[derive(Default)]
struct OfCase {
    streams: Vec<samples::StreamGoodput>,
    shown: together::Shown,
}

/// The figures of a case, and its part of the charts over all cases.
fn draw_case(
    case: &Case,
    focus: Option<&str>,
    prefix: &str,
    repeats: Repeats,
    warnings: &mut Vec<String>,
) -> (CaseFigures, OfCase) {
    let mut of_case = OfCase::default();
    let mut runs = Vec::new();
    for (index, run) in case.runs.iter().enumerate() {
        let samples = RunSamples::read(run);
        if run.manifest.status != RunStatus::Failed {
            warnings.extend(samples.problems.iter().cloned());
        }
        if Some(index) == case.representative {
            let streams = samples.stream_goodput(&run.manifest);
            of_case = OfCase { streams, shown: together::Shown::of(case, index, &samples, focus) };
        }
        let drawn = repeats == Repeats::All || Some(index) == case.representative;
        let prefix = format!("{prefix}r{}", index + 1);
        let panels = if drawn { panels::draw(&run.manifest, &samples, focus, &prefix) } else { Vec::new() };
        runs.push(RunFigures::of(panels, samples));
    }
    (CaseFigures { case: case.info.name.clone(), runs, representative: case.representative }, of_case)
}

/// A case to be drawn beside another, with the experiment's focus and what makes its figures' ids unique.
pub type Beside<'a> = (&'a Case, Option<&'a str>, String);

/// The figures of the runs that stand for two cases, with the same axes where both sides have one.
pub fn draw_beside(sides: &[Option<Beside>; 2]) -> [Option<RunFigures>; 2] {
    let runs = sides.each_ref().map(|side| {
        let (case, ..) = side.as_ref()?;
        Some(&case.runs[case.representative?])
    });
    let samples = runs.map(|run| run.map(RunSamples::read));
    let side = |number: usize| {
        let (_, focus, prefix) = sides[number].as_ref()?;
        let (manifest, samples) = (&runs[number]?.manifest, samples[number].as_ref()?);
        Some(panels::Side { manifest, samples, focus: *focus, prefix: prefix.clone() })
    };
    let panels = match [side(0), side(1)] {
        [Some(left), Some(right)] => panels::draw_beside(&[left, right]),
        alone => alone
            .map(|side| side.map_or(Vec::new(), |s| panels::draw(s.manifest, s.samples, s.focus, &s.prefix))),
    };
    let mut panels = panels.into_iter();
    samples.map(|samples| Some(RunFigures::of(panels.next()?, samples?)))
}

/// The figures of what the programs of a run have said, be it over or not.
pub fn draw_samples(
    manifest: &RunManifest,
    samples: RunSamples,
    focus: Option<&str>,
    prefix: &str,
) -> RunFigures {
    RunFigures::of(panels::draw(manifest, &samples, focus, prefix), samples)
}

impl RunFigures {
    /// Whether anything went wrong that a reader should know of.
    pub fn has_trouble(&self) -> bool {
        let warned = self.notes.iter().any(|note| note.level != "info");
        warned || !self.errors.is_empty() || !self.problems.is_empty()
    }

    fn of(panels: Vec<Panel>, samples: RunSamples) -> RunFigures {
        let ended = |flow: &longfat_schema::record::FlowSummary| {
            Some((format!("{} stream {}", flow.flow, flow.stream), flow.error.clone()?))
        };
        RunFigures {
            panels,
            errors: samples.flow.iter().filter_map(ended).collect(),
            links: samples.rows.link,
            problems: samples.problems,
            notes: samples.rows.note,
        }
    }
}
