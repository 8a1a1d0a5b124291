//! What a person sees while experiments run: a bar on a terminal, plain lines elsewhere.

use super::{OVERHEAD, expected_time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use longfat_lab::{plan::Plan, session::Event, show};
use longfat_schema::run::{RunManifest, RunStatus};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    count: usize,
    /// Time before each run, were all of them valid at once.
    before: Vec<Duration>,
    total: Duration,
    began: Instant,
    current: usize,
    title: String,
}

impl Progress {
    pub fn new(plans: &[Plan]) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let total = expected_time(plans);
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total.as_millis() as u64), target);
        let style = ProgressStyle::with_template("{bar:24} {prefix} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        let before = (0..plans.len()).map(|index| expected_time(&plans[..index])).collect();
        if !terminal {
            eprintln!("{} runs, about {}", plans.len(), show::span(total));
        }
        Progress {
            bar,
            terminal,
            count: plans.len(),
            before,
            total,
            began: Instant::now(),
            current: 0,
            title: String::new(),
        }
    }

    pub fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Begins { index, plan, attempt } => self.begins(*index, plan, *attempt),
            Event::Ticks(tick) => {
                let elapsed =
                    Duration::from_micros(u64::try_from(tick.elapsed_us).unwrap_or(0)) + OVERHEAD / 2;
                let phase = tick
                    .arriving_bps
                    .map_or(String::new(), |bps| format!("arriving {}", show::value("goodput_bps", bps)));
                self.show(elapsed, &phase);
            }
            Event::Ends { manifest, again } => self.ends(manifest, *again),
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn begins(&mut self, index: usize, plan: &Plan, attempt: u32) {
        self.current = index;
        let again = if attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        self.title = format!("{}/{} {} r{}{again}", index + 1, self.count, plan.case, plan.repeat);
        self.show(Duration::ZERO, "setting up");
    }

    fn show(&self, elapsed: Duration, phase: &str) {
        let done = self.before.get(self.current).copied().unwrap_or(self.total) + elapsed;
        let left = show::span(self.total.saturating_sub(done));
        self.bar.set_position(done.as_millis() as u64);
        self.bar.set_prefix(format!("{left} left"));
        self.bar.set_message(format!("{}: {phase}", self.title));
    }

    fn ends(&self, manifest: &RunManifest, again: bool) {
        let line =
            format!("[{:>4} s] {}: {}", self.began.elapsed().as_secs(), self.title, outcome(manifest, again));
        if self.terminal {
            self.bar.println(line);
        } else {
            eprintln!("{line}");
        }
    }
}

/// The first reason, and how many more stand in the run's manifest.
fn in_short(reasons: &[String]) -> String {
    match reasons {
        [] => String::new(),
        [only] => only.clone(),
        [first, more @ ..] => format!("{first}; {} more in its manifest", more.len()),
    }
}

fn outcome(manifest: &RunManifest, again: bool) -> String {
    let reasons = in_short(&manifest.reasons);
    let goodput = manifest.metrics.iter().filter(|m| m.metric == "goodput_bps" && m.stream.is_none());
    let goodput: Vec<_> =
        goodput.map(|m| format!("{} {}", m.of, show::value("goodput_bps", m.value))).collect();
    let goodput = goodput.join(", ");
    match (manifest.status, again) {
        (RunStatus::Done, _) if reasons.is_empty() => goodput,
        (RunStatus::Done, _) => format!("{goodput} ({reasons})"),
        (RunStatus::Invalid, true) => format!("invalid, tried again: {reasons}"),
        (RunStatus::Invalid, false) => format!("INVALID: {reasons}"),
        (RunStatus::Failed, _) => format!("FAILED: {reasons}"),
    }
}
