//! One run conducted: its parts are watched together until every sender has ended, wherever they are.

use crate::{backend::Tick, child, plan::Plan};
use longfat_host::{facts::CpuTimes, monotonic_us};
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How long after the planned end of all streams the senders may take to empty their buffers, before a run is given
/// up.
const DRAIN_US: i64 = 20_000_000;
/// How long after the bound of each sender all of them may still be said to be about to agree.
const AGREE_LATE: Duration = Duration::from_secs(30);
/// How often it is looked whether all have agreed.
const AGREED_POLL: Duration = Duration::from_millis(50);

/// How the processes of a part, or of all parts, are.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// A sender that has not agreed with its receiver yet.
    pub disagreed: Option<String>,
    /// A sender that has not ended.
    pub running: Option<String>,
    /// What the processors of each machine did since it was started.
    pub cpu: Vec<Option<CpuTimes>>,
}

impl Status {
    /// Adds what another part says.
    pub fn add(&mut self, other: Status) {
        self.disagreed = self.disagreed.take().or(other.disagreed);
        self.running = self.running.take().or(other.running);
        self.cpu.extend(other.cpu);
    }
}

/// Why a run was ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum Ending {
    /// The stop flag was raised.
    #[error("interrupted")]
    Interrupted,
    /// The senders do not come to agree with their receivers.
    #[error("{0} did not agree with its receiver within {1} s")]
    Disagreed(String, u64),
    /// The senders do not end.
    #[error("{0} did not end within {1} s after the end of its last stream")]
    Endless(String, i64),
}

/// All parts of a run, as its conductor sees them.
pub trait Parts {
    /// Why one of them could not do its part.
    type Error: From<Ending>;
    /// How often they are looked after while flows run.
    const POLL_US: i64;

    /// How they are. What is due is started meanwhile.
    fn status(&mut self, stop: &AtomicBool) -> Result<Status, Self::Error>;

    /// Bit/s that arrive at the receiver of the focus flow; `elapsed_us` since the flows began, and nothing else is to
    /// be done before `idle_us` are over.
    fn arriving_bps(&mut self, elapsed_us: i64, idle_us: i64) -> Result<Option<f64>, Self::Error>;
}

fn check(stop: &AtomicBool) -> Result<(), Ending> {
    if stop.load(Ordering::Relaxed) { Err(Ending::Interrupted) } else { Ok(()) }
}

/// How long all senders of a plan may take together: each gives up by itself before.
pub fn agree_within(plan: &Plan) -> Duration {
    child::AGREE_WITHIN * plan.dilation.times() + AGREE_LATE
}

/// Waits until every sender has agreed with its receiver, or has given up by itself; but not longer than `within`.
///
/// # Errors
/// A part failed, the senders do not come to agree, or a person stopped the run.
pub fn agree<P: Parts>(parts: &mut P, within: Duration, stop: &AtomicBool) -> Result<(), P::Error> {
    let patience = Instant::now() + within;
    while let Some(who) = parts.status(stop)?.disagreed {
        check(stop)?;
        if Instant::now() > patience {
            return Err(Ending::Disagreed(who, within.as_secs()).into());
        }
        std::thread::sleep(AGREED_POLL);
    }
    Ok(())
}

/// Looks after a run whose flows begin at `start_us` of this machine's clock until every sender has ended; the share of
/// busy processor time over the window, of the busiest machine.
///
/// # Errors
/// A part failed, the senders do not end, or a person stopped the run.
pub fn watch<P: Parts>(
    parts: &mut P,
    plan: &Plan,
    start_us: i64,
    tick: &mut dyn FnMut(Tick),
    stop: &AtomicBool,
) -> Result<Option<f64>, P::Error> {
    let window = [plan.window_start_us, plan.window_end_us];
    let drain_us = DRAIN_US * i64::from(plan.dilation.times());
    let end_us = i64::try_from(plan.end_us()).unwrap_or(i64::MAX);
    let (mut cpu_start, mut cpu_end) = (None, None);
    let mut arriving_bps = None;
    loop {
        check(stop)?;
        let Status { running, cpu, .. } = parts.status(stop)?;
        let elapsed_us = monotonic_us() - start_us;
        if elapsed_us >= window[0] {
            cpu_start.get_or_insert_with(|| cpu.clone());
        }
        if elapsed_us >= window[1] {
            cpu_end.get_or_insert_with(|| cpu.clone());
        }
        tick(Tick { elapsed_us, arriving_bps });
        let Some(running) = running else {
            let busy = cpu_start.zip(cpu_end.or(Some(cpu)));
            return Ok(busy.and_then(|(start, end)| busiest(&start, &end)));
        };
        if elapsed_us > end_us.saturating_add(drain_us) {
            return Err(Ending::Endless(running, drain_us / 1_000_000).into());
        }
        let idle_us = |elapsed_us: i64| until_edge_us(window, elapsed_us).min(P::POLL_US);
        arriving_bps = parts.arriving_bps(elapsed_us, idle_us(elapsed_us))?;
        let pause_us = idle_us(monotonic_us() - start_us);
        std::thread::sleep(Duration::from_micros(pause_us.unsigned_abs()));
    }
}

/// How long to the beginning of the flows, or to the next edge of the window.
fn until_edge_us(window: [i64; 2], elapsed_us: i64) -> i64 {
    let edges = [0, window[0], window[1]].into_iter().map(|edge_us| edge_us - elapsed_us);
    edges.filter(|us| *us > 0).min().unwrap_or(i64::MAX)
}

/// The greatest share of busy processor time of any machine.
fn busiest(start: &[Option<CpuTimes>], end: &[Option<CpuTimes>]) -> Option<f64> {
    let shares = start.iter().zip(end).filter_map(|(start, end)| (*end)?.busy_since((*start)?));
    shares.reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests_support;

    /// Parts of which the first still agrees for so many looks, and whose sender ends after so many.
    struct Played {
        agrees: u32,
        runs: u32,
        looks: u32,
    }

    impl Parts for Played {
        type Error = Ending;
        const POLL_US: i64 = 1;

        fn status(&mut self, _: &AtomicBool) -> Result<Status, Ending> {
            self.looks += 1;
            let name = |within: u32| (self.looks <= within).then(|| "sender of flow 'measured'".to_owned());
            Ok(Status { disagreed: name(self.agrees), running: name(self.runs), cpu: vec![None] })
        }

        fn arriving_bps(&mut self, _: i64, _: i64) -> Result<Option<f64>, Ending> {
            Ok(Some(f64::from(self.looks)))
        }
    }

    #[test]
    fn a_run_ends_when_no_sender_runs_and_is_given_up_when_one_does_not_end() {
        let (plan, stop) = (tests_support::plan(), AtomicBool::new(false));
        let mut parts = Played { agrees: 2, runs: 6, looks: 0 };
        agree(&mut parts, agree_within(&plan), &stop).unwrap();
        assert_eq!(parts.looks, 3);
        let mut endless = Played { agrees: u32::MAX, runs: 0, looks: 0 };
        let disagreed = agree(&mut endless, Duration::ZERO, &stop).unwrap_err();
        assert_eq!(
            disagreed.to_string(),
            "sender of flow 'measured' did not agree with its receiver within 0 s"
        );
        let mut told = Vec::new();
        let now_us = monotonic_us();
        watch(&mut parts, &plan, now_us, &mut |tick| told.push(tick.arriving_bps), &stop).unwrap();
        assert_eq!(told, [None, Some(4.0), Some(5.0), Some(6.0)]);
        parts.runs = u32::MAX;
        let long_ago_us = now_us - plan.window_end_us - DRAIN_US - 1;
        let endless = watch(&mut parts, &plan, long_ago_us, &mut |_| {}, &stop).unwrap_err();
        assert_eq!(
            endless.to_string(),
            "sender of flow 'measured' did not end within 20 s after the end of its last stream"
        );
        // Streams that start late are waited for as long as they send.
        let mut staggered = plan.clone();
        staggered.flows[0].stagger_us = 2_000_000;
        (parts.runs, parts.looks) = (2, 0);
        watch(&mut parts, &staggered, long_ago_us, &mut |_| {}, &stop).unwrap();
        stop.store(true, Ordering::Relaxed);
        let stopped = watch(&mut parts, &plan, now_us, &mut |_| {}, &stop);
        assert!(matches!(stopped, Err(Ending::Interrupted)));
    }

    #[test]
    fn the_busiest_machine_counts() {
        let times = |busy_ticks| Some(CpuTimes { busy_ticks, total_ticks: 100 + busy_ticks });
        let end = [
            Some(CpuTimes { busy_ticks: 20, total_ticks: 200 }),
            Some(CpuTimes { busy_ticks: 80, total_ticks: 200 }),
        ];
        assert_eq!(busiest(&[times(0), times(0)], &end), Some(0.8));
        assert_eq!(busiest(&[None, times(0)], &end), Some(0.8));
        assert_eq!(busiest(&[None, None], &end), None);
    }

    #[test]
    fn no_pause_goes_over_the_beginning_or_an_edge_of_the_window() {
        let until = |elapsed_us| until_edge_us([1000, 3000], elapsed_us);
        assert_eq!([until(-5), until(0), until(999), until(1000)], [5, 1000, 1, 2000]);
        assert_eq!(until(3000), i64::MAX);
    }
}
