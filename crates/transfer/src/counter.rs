//! Counts what arrives: one number per stream, read at even intervals by one thread.

use crate::context::Context;
use longfat_host::monotonic_us;
use longfat_schema::record::{IntervalSample, Record};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Bytes arrived per stream.
#[derive(Debug)]
pub(crate) struct Counters {
    streams: Vec<Counter>,
}

/// On a cache line of its own: streams count on different cores.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

impl Counters {
    pub(crate) fn new(streams: usize) -> Counters {
        Counters { streams: (0..streams).map(|_| Counter::default()).collect() }
    }

    /// The stream has received so many bytes in all. Each stream has one thread that says so.
    pub(crate) fn set(&self, stream: u32, bytes: u64) {
        if let Some(counter) = self.streams.get(stream as usize) {
            counter.0.store(bytes, Relaxed);
        }
    }
}

/// Turns cumulative counts, read at any times, into intervals.
#[derive(Debug)]
struct Intervals {
    flow: String,
    last_us: i64,
    counted: Vec<u64>,
}

impl Intervals {
    fn is_idle(&self) -> bool {
        self.counted.iter().all(|counted| *counted == 0)
    }

    /// One sample per stream for the time since the last call.
    fn close(&mut self, now_us: i64, counts: impl Iterator<Item = u64>) -> Vec<IntervalSample> {
        let duration_us = now_us.saturating_sub(self.last_us).max(0) as u64;
        self.last_us = now_us;
        let samples = (0u32..).zip(counts.zip(&mut self.counted)).map(|(stream, (count, counted))| {
            let bytes = count - std::mem::replace(counted, count);
            IntervalSample { time_us: now_us, duration_us, flow: self.flow.clone(), stream, bytes }
        });
        samples.collect()
    }
}

/// Emits one interval per stream each period until `over`, and a last one.
pub(crate) fn report(counters: &Counters, over: &AtomicBool, context: &Context<'_>) {
    let period_us = context.plan.receiver_interval_us as i64;
    let mut next_us = monotonic_us() + period_us;
    let counted = vec![0; counters.streams.len()];
    let mut intervals = Intervals { flow: context.plan.flow.clone(), last_us: monotonic_us(), counted };
    loop {
        let ending = over.load(Relaxed);
        let now_us = monotonic_us();
        if intervals.is_idle() && counters.streams.iter().all(|counter| counter.0.load(Relaxed) == 0) {
            // Intervals begin with the first arrival, however long the start was put off.
            intervals.last_us = now_us;
            next_us = now_us + period_us;
        } else if ending || now_us >= next_us {
            let counts = counters.streams.iter().map(|counter| counter.0.load(Relaxed));
            let samples = intervals.close(now_us, counts);
            samples.into_iter().for_each(|sample| (context.emit)(Record::Interval(sample)));
            // Even intervals, unless the machine stalled for longer than one.
            next_us = (next_us + period_us).max(now_us + period_us / 2);
        }
        if ending {
            return;
        }
        let left = Duration::from_micros((next_us - monotonic_us()).max(0) as u64);
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_what_arrived_since_the_one_before() {
        let mut intervals = Intervals { flow: "f".into(), last_us: 1000, counted: vec![0, 0] };
        let bytes = |samples: Vec<IntervalSample>| {
            samples.iter().map(|s| (s.duration_us, s.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(bytes(intervals.close(1500, [10, 0].into_iter())), [(500, 10), (500, 0)]);
        assert_eq!(bytes(intervals.close(1600, [15, 7].into_iter())), [(100, 5), (100, 7)]);
    }
}
