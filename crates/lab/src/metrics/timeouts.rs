//! Retransmission timeouts: how many, which of them were spurious, and how soon what those cut was back.
//!
//! A spurious timeout sends again what had arrived. The receiver says so: it reports every segment that comes twice
//! (DSACK, RFC 2883 and 3708). Whether anybody undid what the timeout cut is another question, answered by the window.

use super::{Figures, Window};
use longfat_schema::record::TcpSample;
use std::collections::BTreeMap;

/// Timeouts of one connection that belong together: until everything sent before their repair was over is acknowledged.
#[derive(Debug, PartialEq)]
struct Episode {
    /// Last sample before them.
    before_us: i64,
    /// First sample after the first of them.
    time_us: i64,
    timeouts: u64,
    spurious: bool,
    /// First sample with the window and threshold of before, if there is one.
    restored_us: Option<i64>,
}

/// `timeouts`, `spurious_timeouts` and `timeout_undo_us` of what begins within the window. Nothing where the kernel
/// does not count timeouts.
pub fn timeouts(scope: &str, streams: &BTreeMap<u32, Vec<&TcpSample>>, window: Window, found: &mut Figures) {
    if streams.values().flatten().any(|sample| sample.timeouts.is_none()) {
        return;
    }
    let episodes = streams.values().flat_map(|samples| episodes(samples));
    let episodes: Vec<Episode> = episodes.filter(|episode| window.holds(episode.time_us)).collect();
    let spurious = || episodes.iter().filter(|episode| episode.spurious);
    let all: u64 = episodes.iter().map(|episode| episode.timeouts).sum();
    let unneeded: u64 = spurious().map(|episode| episode.timeouts).sum();
    found.push("timeouts", scope, all as f64);
    found.push("spurious_timeouts", scope, unneeded as f64);
    let undone_us = |episode: &Episode| episode.restored_us.unwrap_or(window.end_us) - episode.before_us;
    found.extend("timeout_undo_us", scope, spurious().map(undone_us).max().map(|us| us as f64));
}

fn episodes(samples: &[&TcpSample]) -> Vec<Episode> {
    let mut found = Vec::new();
    let mut from = 1;
    while let Some(first) = (from..samples.len()).find(|at| expired(samples, *at)) {
        let settled = settled(samples, first);
        found.push(episode(samples, first, settled));
        from = settled + 1;
    }
    found
}

/// Whether the timer ran out between the sample before this one and this one.
fn expired(samples: &[&TcpSample], at: usize) -> bool {
    samples[at].timeouts > samples[at - 1].timeouts
}

/// The first sample after a timeout by which the peer has answered whatever was sent until its repair was over. Further
/// timeouts before that belong to it.
fn settled(samples: &[&TcpSample], first: usize) -> usize {
    let last = samples.len() - 1;
    let mut again = first;
    loop {
        let over = (again..last).find(|at| samples[*at].ca_state != "loss").unwrap_or(last);
        let sent_bytes = samples[over].sent_bytes.saturating_sub(samples[over].retransmitted_bytes);
        let settled = (over..last).find(|at| samples[*at].acked_bytes >= sent_bytes).unwrap_or(last);
        match (over + 1..=settled).rfind(|at| expired(samples, *at)) {
            Some(later) => again = later,
            None => return settled,
        }
    }
}

fn episode(samples: &[&TcpSample], first: usize, settled: usize) -> Episode {
    let before = samples[first - 1];
    // A probe for lost tails may have sent something again since the last acknowledgement: that counts as well.
    let quiet = samples[..first].partition_point(|sample| sample.acked_bytes < before.acked_bytes);
    let over = (first..settled).rfind(|at| samples[*at].ca_state == "loss").map_or(first, |at| at + 1);
    let (quiet, over, settled) = (samples[quiet], samples[over], samples[settled]);
    let sent_again = over.retransmitted_segments.saturating_sub(quiet.retransmitted_segments);
    let came_twice = grown(settled.duplicate_segments, quiet.duplicate_segments);
    let restored = samples[first..].iter().find(|sample| has_window_of(sample, before));
    Episode {
        before_us: before.time_us,
        time_us: samples[first].time_us,
        timeouts: grown(settled.timeouts, before.timeouts),
        spurious: sent_again > 0 && came_twice >= sent_again,
        restored_us: restored.map(|sample| sample.time_us),
    }
}

fn grown(now: Option<u64>, then: Option<u64>) -> u64 {
    now.unwrap_or(0).saturating_sub(then.unwrap_or(0))
}

fn has_window_of(sample: &TcpSample, before: &TcpSample) -> bool {
    // An unlimited threshold is greater than any.
    let threshold = |sample: &TcpSample| sample.ssthresh_segments.unwrap_or(u32::MAX);
    sample.cwnd_segments >= before.cwnd_segments && threshold(sample) >= threshold(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of 100 segments of 1 byte in flight: what is sent and acknowledged, its window, and its counters.
    struct Seen {
        samples: Vec<TcpSample>,
    }

    impl Seen {
        fn new() -> Seen {
            let first = TcpSample {
                cwnd_segments: 100,
                ca_state: "open".into(),
                sent_bytes: 1100,
                acked_bytes: 1000,
                timeouts: Some(2),
                duplicate_segments: Some(7),
                retransmitted_segments: 9,
                ..TcpSample::default()
            };
            Seen { samples: vec![first] }
        }

        /// The next sample, 20 ms later, is as the last but for this.
        fn then(mut self, change: impl FnOnce(&mut TcpSample)) -> Seen {
            let mut next = self.samples.last().unwrap().clone();
            next.time_us += 20_000;
            change(&mut next);
            self.samples.push(next);
            self
        }

        fn timeout(self) -> Seen {
            self.then(|sample| {
                sample.timeouts = sample.timeouts.map(|count| count + 1);
                sample.ca_state = "loss".into();
                (sample.cwnd_segments, sample.ssthresh_segments) = (1, Some(50));
                sample.retransmitted_segments += 1;
                (sample.sent_bytes, sample.retransmitted_bytes) =
                    (sample.sent_bytes + 1, sample.retransmitted_bytes + 1);
            })
        }

        /// Everything is acknowledged, and so many segments came twice.
        fn answered(self, duplicates: u64) -> Seen {
            self.then(|sample| {
                sample.ca_state = "open".into();
                sample.acked_bytes = sample.sent_bytes - sample.retransmitted_bytes;
                sample.duplicate_segments = sample.duplicate_segments.map(|count| count + duplicates);
            })
        }

        fn undone(self) -> Seen {
            self.then(|sample| {
                sample.ca_state = "open".into();
                (sample.cwnd_segments, sample.ssthresh_segments) = (101, None);
            })
        }

        fn figures(self, end_us: i64) -> [Option<f64>; 3] {
            let streams = BTreeMap::from([(0, self.samples.iter().collect())]);
            let mut found = Figures::default();
            timeouts("flow", &streams, Window { start_us: 0, end_us }, &mut found);
            ["timeouts", "spurious_timeouts", "timeout_undo_us"].map(|name| {
                let mut named = found.metrics.iter().filter(|m| m.metric == name && m.of == "flow");
                named.next().map(|metric| metric.value)
            })
        }
    }

    #[test]
    fn a_timeout_whose_retransmissions_all_came_twice_is_spurious_and_undone_when_the_window_is_back() {
        let figures = Seen::new().then(|_| {}).timeout().undone().answered(1).figures(1_000_000);
        assert_eq!(figures, [Some(1.0), Some(1.0), Some(40_000.0)]);
    }

    #[test]
    fn a_spurious_timeout_that_nobody_undoes_counts_to_the_end_of_the_window() {
        let figures = Seen::new().timeout().answered(1).then(|_| {}).figures(1_000_000);
        assert_eq!(figures, [Some(1.0), Some(1.0), Some(1_000_000.0)]);
    }

    #[test]
    fn a_timeout_that_repaired_a_loss_is_not_spurious() {
        assert_eq!(Seen::new().timeout().answered(0).figures(1_000_000), [Some(1.0), Some(0.0), None]);
        // One of two arrived twice: the other had been lost.
        let twice = Seen::new().timeout().timeout().answered(1);
        assert_eq!(twice.figures(1_000_000), [Some(2.0), Some(0.0), None]);
    }

    #[test]
    fn timeouts_in_a_row_are_judged_together_and_later_ones_by_themselves() {
        let seen = Seen::new().timeout().timeout().answered(2).then(|sample| sample.sent_bytes += 100);
        let figures = seen.timeout().answered(0).figures(1_000_000);
        assert_eq!(figures[..2], [Some(3.0), Some(2.0)]);
    }

    #[test]
    fn a_probe_that_came_twice_does_not_make_a_timeout_spurious() {
        let probe = |sample: &mut TcpSample| sample.retransmitted_segments += 1;
        let figures = Seen::new().then(probe).timeout().answered(1).figures(1_000_000);
        assert_eq!(figures, [Some(1.0), Some(0.0), None]);
    }

    #[test]
    fn timeouts_outside_the_window_do_not_count_and_where_the_kernel_does_not_there_is_no_figure() {
        assert_eq!(Seen::new().timeout().answered(1).figures(20_000), [Some(0.0), Some(0.0), None]);
        let mut unknown = Seen::new().timeout();
        unknown.samples.iter_mut().for_each(|sample| sample.timeouts = None);
        assert_eq!(unknown.figures(1_000_000), [None; 3]);
    }

    #[test]
    fn a_run_that_ends_before_the_answer_has_no_spurious_timeout() {
        assert_eq!(Seen::new().timeout().then(|_| {}).figures(1_000_000), [Some(1.0), Some(0.0), None]);
    }
}
