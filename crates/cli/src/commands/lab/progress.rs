//! What a person sees while experiments run: a bar on a terminal, plain lines elsewhere.

use super::{OVERHEAD, expected_time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use longfat_lab::{
    backend::{BackendKind, Tick},
    plan::Plan,
    session::Event,
    show,
};
use longfat_schema::quantity;
use longfat_schema::{
    run::{RunManifest, RunStatus},
    text::one_line,
};
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
    /// Time of each run.
    lengths: Vec<Duration>,
    total: Duration,
    began: Instant,
    backend: BackendKind,
    /// Runs go one after the other, so that each one's time says when the last will end.
    is_serial: bool,
    titles: Vec<String>,
    ended: usize,
    /// Time of those that have ended.
    done: Duration,
    /// Runs among the ended ones that were there already.
    kept: usize,
}

impl Progress {
    pub fn new(plans: &[Plan], backend: BackendKind, is_serial: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let total = expected_time(plans, backend);
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total.as_millis() as u64), target);
        let style = ProgressStyle::with_template("{bar:24} {prefix} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        let lengths: Vec<Duration> =
            plans.iter().map(|plan| expected_time(std::slice::from_ref(plan), backend)).collect();
        let sum = |sum: &mut Duration, own: &Duration| Some(std::mem::replace(sum, *sum + *own));
        let before = lengths.iter().scan(Duration::ZERO, sum).collect();
        if !terminal {
            let about =
                if is_serial { format!("about {}", show::span(total)) } else { "side by side".to_owned() };
            eprintln!("{}, {about}", runs(plans.len()));
        }
        Progress {
            bar,
            terminal,
            count: plans.len(),
            before,
            lengths,
            total,
            began: Instant::now(),
            backend,
            is_serial,
            titles: (0..).zip(plans).map(|(index, plan)| title(index, plans.len(), plan)).collect(),
            ended: 0,
            done: Duration::ZERO,
            kept: 0,
        }
    }

    pub fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Kept { indices } => self.kept(indices),
            Event::Begins { index, plan, attempt } => self.begins(*index, plan, *attempt),
            Event::Ticks { index, tick } => self.ticks(*index, tick),
            Event::Ends { index, manifest, again, .. } => self.ends(*index, manifest, *again),
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// What is there already takes no time.
    fn kept(&mut self, indices: &[usize]) {
        self.ended += indices.len();
        self.kept += indices.len();
        let line = format!("{} of {} runs are there already", indices.len(), self.count);
        if self.terminal {
            self.bar.println(line)
        } else {
            eprintln!("{line}")
        }
        let mut before = Duration::ZERO;
        for (index, own) in self.lengths.iter_mut().enumerate() {
            if indices.contains(&index) {
                *own = Duration::ZERO;
            }
            self.before[index] = before;
            before += *own;
        }
        self.total = before;
        self.bar.set_length(before.as_millis() as u64);
    }

    fn begins(&mut self, index: usize, plan: &Plan, attempt: u32) {
        let again = if attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        self.titles[index] = title(index, self.count, plan) + &again;
        self.show(index, Duration::ZERO, "setting up");
    }

    fn ticks(&self, index: usize, tick: &Tick) {
        let elapsed = Duration::from_micros(u64::try_from(tick.elapsed_us).unwrap_or(0)) + OVERHEAD / 2;
        let arriving = |bps| format!("arriving {}", quantity::of_metric("goodput_bps", bps));
        let phase = match self.backend {
            BackendKind::Emulated | BackendKind::Hosts => tick.arriving_bps.map_or(String::new(), arriving),
            BackendKind::Simulated => {
                format!("simulated {}", show::span(elapsed.saturating_sub(OVERHEAD / 2)))
            }
        };
        self.show(index, elapsed, &phase);
    }

    fn show(&self, index: usize, elapsed: Duration, phase: &str) {
        let so_far = self.before.get(index).copied().unwrap_or(self.total) + elapsed;
        let (done, left) = if self.is_serial {
            (so_far, show::span(self.total.saturating_sub(so_far)))
        } else {
            (self.done, self.left_side_by_side())
        };
        self.bar.set_position(done.as_millis() as u64);
        self.bar.set_prefix(format!("{left} left"));
        self.bar.set_message(one_line(&format!("{}: {phase}", self.titles[index])).into_owned());
    }

    /// As long again for each run to come as for those made so far.
    fn left_side_by_side(&self) -> String {
        let left = self.count - self.ended;
        let made = self.ended.saturating_sub(self.kept);
        let each = (made > 0).then(|| self.began.elapsed().mul_f64(left as f64 / made as f64));
        let time = each.map_or(String::new(), |time| format!(", {}", show::span(time)));
        format!("{}{time}", runs(left))
    }

    fn ends(&mut self, index: usize, manifest: &RunManifest, again: bool) {
        let outcome = outcome(manifest, again);
        if !again {
            self.ended += 1;
            self.done += self.lengths[index];
            self.show(index, self.lengths[index], &outcome);
        }
        let line = format!("[{:>4} s] {}: {outcome}", self.began.elapsed().as_secs(), self.titles[index]);
        if self.terminal {
            self.bar.println(one_line(&line));
        } else {
            eprintln!("{line}");
        }
    }
}

fn title(index: usize, count: usize, plan: &Plan) -> String {
    format!("{}/{count} {} r{}", index + 1, plan.case, plan.repeat)
}

fn runs(count: usize) -> String {
    if count == 1 { "1 run".to_owned() } else { format!("{count} runs") }
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
        goodput.map(|m| format!("{} {}", m.of, quantity::of_metric("goodput_bps", m.value))).collect();
    let goodput = goodput.join(", ");
    match (manifest.status, again) {
        (RunStatus::Done, _) if reasons.is_empty() => goodput,
        (RunStatus::Done, _) => format!("{goodput} ({reasons})"),
        (RunStatus::Unexplained, _) => format!("UNEXPLAINED: {goodput}: {reasons}"),
        (RunStatus::Invalid, true) => format!("invalid, tried again: {reasons}"),
        (RunStatus::Invalid, false) => format!("INVALID: {reasons}"),
        (RunStatus::Failed, _) => format!("FAILED: {reasons}"),
    }
}
