//! A run in progress: what its programs have written so far.

use crate::{
    figures::{self, RunFigures, RunSamples},
    page,
    plot::svg::escape,
    quantity::number,
    summary::of_fewest_streams,
};
use longfat_schema::{
    lines,
    run::{Kind, PLAN_FILE, RunManifest, START_FILE, Start, read_json, read_versioned},
    samples::Samples,
};
use serde::Deserialize;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Bytes of each program's latest records that are drawn: half a minute and more of a hundred connections.
const TAIL_BYTES: u64 = 4 << 20;
/// Programs of a run write ten times a second and more; silence of so many seconds, longer by the dilation, is told.
const SILENT_S: f64 = 5.0;
/// Runs under way that are shown; simulated ones go side by side.
const SHOWN: usize = 4;

/// What is needed of a plan.
#[derive(Deserialize)]
struct PlanHead {
    case: String,
    repeat: u32,
    #[serde(default)]
    focus: Option<String>,
    #[serde(default)]
    flows: Vec<FlowHead>,
    window_start_us: i64,
    window_end_us: i64,
}

/// What is needed of a plan's flow.
#[derive(Deserialize)]
struct FlowHead {
    name: String,
    streams: usize,
}

impl PlanHead {
    /// The flow that is drawn foremost: the one that the experiment is about, or else the one that the report takes.
    fn focus(&self) -> Option<String> {
        let flows = self.flows.iter().map(|flow| (flow.name.as_str(), flow.streams));
        self.focus.clone().or_else(|| of_fewest_streams(flows))
    }
}

/// One run in progress.
#[derive(Debug)]
pub struct LiveRun {
    case: String,
    repeat: u32,
    elapsed_us: i64,
    window_end_us: i64,
    /// For how long nothing was written, where a run of its dilation should have written something.
    silent_s: Option<f64>,
    figures: Option<RunFigures>,
}

/// Runs under way in a result's directory, as they are `now`.
pub fn runs(directory: &Path, now: SystemTime) -> Vec<LiveRun> {
    let under_way = super::run_index::under_way(directory).into_iter().take(SHOWN).enumerate();
    under_way.filter_map(|(index, path)| run(&path, now, &format!("live{index}")).ok()).collect()
}

fn run(path: &Path, now: SystemTime, prefix: &str) -> io::Result<LiveRun> {
    let plan: PlanHead = read_versioned(&path.join(PLAN_FILE), Kind::Plan).map_err(io::Error::other)?;
    let raw = path.join("raw");
    let start: Option<Start> = read_json(&raw.join(START_FILE)).ok();
    let files = files_in(&raw);
    let mut samples = Samples::default();
    if let Some(start) = start {
        files.iter().for_each(|file| tail(file, start, &mut samples));
        samples.sort();
    }
    let elapsed_us = last_us(&samples);
    let manifest = RunManifest {
        duration_us: elapsed_us,
        window_start_us: plan.window_start_us,
        window_end_us: plan.window_end_us.min(elapsed_us),
        ..RunManifest::default()
    };
    let focus = plan.focus();
    let slower = start.map_or(1.0, |start| f64::from(start.dilation.times()));
    let samples = RunSamples { rows: samples, problems: Vec::new() };
    let drawn = elapsed_us > 0;
    Ok(LiveRun {
        case: plan.case,
        repeat: plan.repeat,
        elapsed_us,
        window_end_us: plan.window_end_us,
        silent_s: silent_s(&files, now).filter(|seconds| *seconds >= SILENT_S * slower),
        figures: drawn.then(|| figures::draw_samples(&manifest, samples, focus.as_deref(), prefix)),
    })
}

fn files_in(raw: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(raw).into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut files: Vec<PathBuf> = own.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "jsonl"));
    files.sort();
    files
}

/// What cannot be read is not drawn: the session itself reads, and judges, everything in the end.
fn tail(file: &Path, start: Start, samples: &mut Samples) {
    let _ = lines::read_last(file, TAIL_BYTES, |mut record| {
        start.own_time().bring(&mut record);
        samples.push(record);
    });
}

fn last_us(samples: &Samples) -> i64 {
    let times = [
        samples.tcp.iter().map(|row| row.time_us).max(),
        samples.interval.iter().map(|row| row.time_us).max(),
        samples.queue.iter().map(|row| row.time_us).max(),
    ];
    times.into_iter().flatten().max().unwrap_or(0)
}

fn silent_s(files: &[PathBuf], now: SystemTime) -> Option<f64> {
    let times = files.iter().filter_map(|file| fs::metadata(file).ok()?.modified().ok());
    times.max().map(|last| now.duration_since(last).map_or(0.0, |since| since.as_secs_f64()))
}

/// As HTML.
pub fn html(run: &LiveRun) -> String {
    let title = format!("{}, repeat {}", escape(&run.case), run.repeat);
    let total_s = run.window_end_us as f64 / 1e6;
    let elapsed_s = (run.elapsed_us as f64 / 1e6).clamp(0.0, total_s);
    let silence = match run.silent_s {
        None => String::new(),
        Some(_) if run.elapsed_us >= run.window_end_us => {
            " It has ended and is judged, beside its simulated twin where it has one.".to_owned()
        }
        Some(seconds) => {
            format!(" Nothing was written for {} s; its program may have died.", number(seconds.floor()))
        }
    };
    let body = match &run.figures {
        Some(figures) => page::run(figures),
        None => "<p class=\"note\">Nothing to draw yet; simulated runs say nothing before their end.</p>"
            .to_owned(),
    };
    format!(
        "<section class=\"case\"><h3>{title}</h3><p class=\"note\"><progress max=\"{total_s}\" value=\"{elapsed_s}\" \
         aria-label=\"time of {title}\"></progress> {} of {} s.{silence}</p>{body}</section>",
        number(elapsed_s.floor()),
        number(total_s),
    )
}
