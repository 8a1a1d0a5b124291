//! A shorter experiment, to see that it works.

use super::{Experiment, FlowSpec, Setting, check::LEAST_SAMPLES};
use longfat_schema::units::Nanos;

impl Experiment {
    /// Has every case run once, with at most so long a warm-up and window. Times within the run are shortened with the
    /// part they lie in, so that what begins, changes and ends does so in the same order.
    pub fn shorten(&mut self, warmup: Nanos, duration: Nanos) {
        let heads = self.cases.iter_mut().map(|case| {
            shorten(&mut case.setting, warmup, duration);
            &mut case.setting.head
        });
        for head in heads.chain([&mut self.head]) {
            (head.warmup, head.duration) = (head.warmup.min(warmup), head.duration.min(duration));
            head.sample_every = head.sample_every.min(Nanos(head.duration.0 / LEAST_SAMPLES));
            head.repeats = 1;
        }
    }
}

/// Shortens what lies in a run; its head is left as it was.
fn shorten(setting: &mut Setting, warmup: Nanos, duration: Nanos) {
    let run = [setting.head.warmup.0, setting.head.duration.0];
    let shorter = Shorter { run, most: [warmup.0, duration.0] };
    let head = &setting.head;
    setting.flows.values_mut().for_each(|flow| shorter.flow(flow, Nanos(flow.end_ns(head))));
    setting.follows.values_mut().for_each(|follow| follow.start = shorter.at(follow.start));
    let schedules = setting.links.values_mut().filter_map(|cable| cable.line.schedule.as_mut());
    schedules.flatten().for_each(|change| change.at = shorter.at(change.at));
}

/// Lengths of warm-up and window, in nanoseconds, as they are and as they may be.
struct Shorter {
    run: [u64; 2],
    most: [u64; 2],
}

impl Shorter {
    /// A time's place in the shorter run. What comes after the end comes as long after it.
    fn at(&self, time: Nanos) -> Nanos {
        let (mut left_ns, mut at_ns) = (time.0, 0);
        for (part_ns, most_ns) in self.run.into_iter().zip(self.most) {
            let within_ns = left_ns.min(part_ns);
            at_ns += share(within_ns, part_ns.min(most_ns), part_ns);
            left_ns -= within_ns;
        }
        Nanos(at_ns.saturating_add(left_ns))
    }

    /// A flow that ends then.
    fn flow(&self, flow: &mut FlowSpec, end: Nanos) {
        let (start, short_end) = (self.at(flow.start), self.at(end));
        let short_ns = short_end.0.saturating_sub(start.0);
        flow.stagger.0 = share(flow.stagger.0, short_ns, end.0.saturating_sub(flow.start.0));
        flow.start = start;
        flow.stop = flow.stop.map(|_| short_end);
        flow.duration = flow.duration.map(|_| Nanos(short_ns));
    }
}

/// A part of a whole, as large as `part` is of `of`; the whole, where that is nothing.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let of = u128::from(of);
    let exact = (u128::from(whole) * u128::from(part)).checked_div(of).unwrap_or(whole.into());
    u64::try_from(exact).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(text: &str) -> Nanos {
        text.parse().unwrap()
    }

    #[test]
    fn times_keep_their_place_in_warm_up_and_window() {
        let seconds = |s: u64| s * 1_000_000_000;
        let shorter = Shorter { run: [seconds(20), seconds(30)], most: [seconds(2), seconds(3)] };
        for (long, short) in
            [("0s", "0s"), ("10s", "1s"), ("20s", "2s"), ("35s", "3500ms"), ("50s", "5s"), ("52s", "7s")]
        {
            assert_eq!(shorter.at(nanos(long)), nanos(short), "{long}");
        }
        let as_is = Shorter { run: [seconds(1), seconds(2)], ..shorter };
        assert_eq!(as_is.at(nanos("1500ms")), nanos("1500ms"));
        let no_warmup = Shorter { run: [0, seconds(30)], ..as_is };
        assert_eq!(no_warmup.at(nanos("10s")), nanos("1s"));
    }
}
