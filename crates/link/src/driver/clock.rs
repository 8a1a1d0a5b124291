//! The path's clock: the host's, without the times at which the whole machine stood still.
//!
//! A virtual machine may be stopped by its host for a tenth of a second. Its flows stop with it; a path that went on
//! would hand over everything it holds at once when the machine goes on, and the burst that answers would be the
//! emulator's doing: it overflows queues that the flow itself would not have filled. So the path stands still, too.
//! Flows see one longer round trip.

/// Times of the host (CLOCK_MONOTONIC) to times of the path and back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    /// All pauses before the recent ones.
    earlier_ns: u64,
    /// The pauses of the last hold-up, from when to when by the host's clock, in order: frames that arrived between
    /// them may still wait to be read.
    recent: Vec<(u64, u64)>,
}

impl Clock {
    /// All pauses together.
    pub fn paused_ns(&self) -> u64 {
        self.earlier_ns + length_ns(&self.recent)
    }

    /// The path's time; within a pause its beginning.
    pub fn path_ns(&self, host_ns: u64) -> u64 {
        let paused = self.recent.iter().map(|(from_ns, to_ns)| host_ns.clamp(*from_ns, *to_ns) - from_ns);
        // A time of before the first pause may be anything: the wall clock, which arrivals bear, can be set.
        host_ns.saturating_sub(self.earlier_ns + paused.sum::<u64>())
    }

    /// The host's time, where the beginning of a pause is its beginning. What never comes stays at the end of time.
    pub fn host_ns(&self, path_ns: u64) -> u64 {
        self.recent.iter().fold(path_ns.saturating_add(self.earlier_ns), |host_ns, (from_ns, to_ns)| {
            if host_ns > *from_ns { host_ns.saturating_add(to_ns - from_ns) } else { host_ns }
        })
    }

    /// The path stood still in these spans of the host's clock, which are in order and later than all before; how long
    /// they are together.
    pub fn pause(&mut self, spans: Vec<(u64, u64)>) -> u64 {
        self.earlier_ns = self.paused_ns();
        self.recent = spans;
        length_ns(&self.recent)
    }
}

fn length_ns(spans: &[(u64, u64)]) -> u64 {
    spans.iter().map(|(from_ns, to_ns)| to_ns - from_ns).sum()
}

/// The times within `from_ns` to `to_ns` in which nothing arrived for at least `least_ns`. While the driver alone was
/// held up, the hosts went on sending; those arrivals have their times, and only the silence between them is no time of
/// theirs.
pub fn silences(from_ns: u64, to_ns: u64, mut arrivals_ns: Vec<u64>, least_ns: u64) -> Vec<(u64, u64)> {
    arrivals_ns.retain(|at_ns| (from_ns..to_ns).contains(at_ns));
    arrivals_ns.sort_unstable();
    let begins = std::iter::once(from_ns).chain(arrivals_ns.iter().copied());
    let ends = arrivals_ns.iter().copied().chain(std::iter::once(to_ns));
    begins.zip(ends).filter(|(begin, end)| end - begin >= least_ns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_that_never_paused_has_the_hosts_time() {
        let clock = Clock::default();
        assert_eq!((clock.path_ns(5), clock.host_ns(5), clock.paused_ns()), (5, 5, 0));
    }

    #[test]
    fn what_arrived_before_a_pause_keeps_its_time_and_what_comes_after_is_moved() {
        let mut clock = Clock::default();
        clock.pause(vec![(100, 130)]);
        clock.pause(vec![(200, 220), (230, 260)]);
        assert_eq!(
            [190, 200, 210, 225, 230, 260, 270].map(|at| clock.path_ns(at)),
            [160, 170, 170, 175, 180, 180, 190]
        );
        assert_eq!(
            [160, 170, 171, 180, 181, 190].map(|at| clock.host_ns(at)),
            [190, 200, 221, 230, 261, 270]
        );
        assert_eq!(clock.paused_ns(), 80);
    }

    #[test]
    fn what_never_comes_comes_no_sooner_after_a_pause() {
        let mut clock = Clock::default();
        clock.pause(vec![(100, 130)]);
        assert_eq!(clock.host_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_time_of_long_before_is_the_beginning_of_the_path() {
        let mut clock = Clock::default();
        clock.pause(vec![(100, 130)]);
        clock.pause(vec![(200, 220)]);
        assert_eq!(clock.path_ns(5), 0);
    }

    #[test]
    fn silences_are_what_lies_between_arrivals() {
        let found = |arrivals: &[u64]| silences(100, 200, arrivals.to_vec(), 10);
        assert_eq!(found(&[]), [(100, 200)]);
        assert_eq!(found(&[50, 101, 103, 150, 195, 300]), [(103, 150), (150, 195)]);
        assert_eq!(found(&(100..200).collect::<Vec<_>>()), []);
    }

    proptest! {
        #[test]
        fn the_paths_time_never_goes_back(
            steps in prop::collection::vec((0u64..1_000_000, 0u64..1_000_000, 1u64..1000, 0u64..1_000_000), 0..20),
            probes in prop::collection::vec(0u64..50_000_000, 2),
        ) {
            let (mut clock, mut now_ns) = (Clock::default(), 1_000_000);
            for (awake_ns, first_ns, between_ns, second_ns) in steps {
                let from_ns = now_ns + awake_ns;
                let before_ns = clock.path_ns(from_ns);
                let second = from_ns + first_ns + between_ns;
                now_ns = second + second_ns;
                clock.pause(vec![(from_ns, from_ns + first_ns), (second, now_ns)]);
                prop_assert_eq!(clock.path_ns(now_ns), before_ns + between_ns);
            }
            let (a, b) = (probes[0].min(probes[1]), probes[0].max(probes[1]));
            prop_assert!(clock.path_ns(now_ns + a) <= clock.path_ns(now_ns + b));
            prop_assert!(clock.path_ns(now_ns - a % 1_000_000) <= clock.path_ns(now_ns));
            prop_assert_eq!(clock.host_ns(clock.path_ns(now_ns + b + 1)), now_ns + b + 1);
        }
    }
}
