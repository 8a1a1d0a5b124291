//! Time between packets of one end: distributions of data and ACKs apart, bursts, clusters at a period (ticks of a
//! timer), and ACK compression.
//!
//! A gap is short or long against the running mean of the gaps before it (1/64 weight, gaps above 64 times the mean
//! counted as 64 times, so that an idle time does not spoil it; the first 64 weigh alike, so that it does not hang on
//! the first).
//!
//! **ACK compression** (Zhang, Shenker and Clark 1991; Mogul 1992; seen by Tamatsukuri on a real path): two
//! acknowledgements that follow each other more closely than the data they acknowledge was sent. A pair is compared
//! when its data was spread by at least half of what the flow's rate gives for it; it is compressed when the ACKs came
//! within a quarter of both the data's spacing and that time.

use super::histogram::Histogram;

/// Gaps between clusters that are kept for finding a period.
const CLUSTER_GAPS: usize = 4096;
/// Least packets that follow closely, on average, where packets come in clusters.
const CLUSTERED: f64 = 1.5;
/// Packets of one end before spacing is worth its memory.
pub const WORTH_PACKETS: u64 = 16;

/// Values behind the first one that weigh as much as it.
const LIKE_WEIGHED: u8 = 63;

/// Mean of recent gaps.
#[derive(Debug, Clone, Default, PartialEq)]
struct Mean {
    value: f64,
    seen: u8,
}

impl Mean {
    #[inline]
    fn update(&mut self, value: f64) -> f64 {
        let before = self.value;
        if before == 0.0 {
            self.value = value;
            return before;
        }
        let most = 64.0 * before + 1.0;
        let weight = if self.seen < LIKE_WEIGHED { self.first_weight() } else { 1.0 / 64.0 };
        self.value += (if value < most { value } else { most } - before) * weight;
        before
    }

    #[cold]
    fn first_weight(&mut self) -> f64 {
        self.seen += 1;
        1.0 / f64::from(self.seen + 1)
    }
}

/// Spacing of one kind of packet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gaps {
    /// Nanoseconds between one and the next.
    pub histogram: Histogram,
    /// Gaps between the first packets of clusters, nanoseconds.
    pub cluster_gaps: Vec<u32>,
    /// Bursts: packets that follow closely.
    pub bursts: u64,
    /// Packets in the longest.
    pub longest_burst: u32,
    /// Gaps below zero: order of arrival that times contradict.
    pub backwards: u64,
    /// All gaps together.
    all_ns: u64,
    mean: Mean,
    last_ns: Option<i64>,
    /// When the last cluster began; 0 before any did.
    cluster_ns: i64,
    burst: u32,
}

impl Gaps {
    /// A packet; gives back the gap before it.
    #[inline(always)]
    pub fn on_packet(&mut self, time_ns: i64) -> Option<i64> {
        let last = self.last_ns.replace(time_ns)?;
        let gap = time_ns - last;
        if gap < 0 {
            self.backwards += 1;
            return Some(gap);
        }
        self.histogram.record(gap as u64);
        self.all_ns = self.all_ns.saturating_add(gap as u64);
        let mean = self.mean.update(gap as f64);
        if gap as f64 > 1.5 * mean {
            self.cluster(time_ns);
        }
        let is_close = (gap as f64) < mean / 4.0;
        if is_close {
            self.burst += 1;
            self.longest_burst = self.longest_burst.max(self.burst + 1);
        } else {
            self.bursts += 1;
            self.burst = 0;
        }
        Some(gap)
    }

    fn cluster(&mut self, time_ns: i64) {
        let before = std::mem::replace(&mut self.cluster_ns, time_ns);
        if before != 0 && self.cluster_gaps.len() < CLUSTER_GAPS {
            self.cluster_gaps.push(u32::try_from(time_ns - before).unwrap_or(u32::MAX));
        }
    }

    /// Packets per burst, on average.
    pub fn mean_burst(&self) -> Option<f64> {
        let packets = self.histogram.count();
        (self.bursts > 0).then(|| packets as f64 / self.bursts as f64)
    }

    /// The period at which clusters begin, if they do. `round_trip_ns` is what must not be mistaken for a timer: a
    /// window sent at once comes back once in each.
    pub fn period(&self, round_trip_ns: Option<i64>) -> Option<Period> {
        // Where only the first clusters were kept, as many packets came in each of the others.
        let clusters_ns = self.cluster_gaps.iter().map(|gap| f64::from(*gap)).sum::<f64>();
        let cluster_ns = clusters_ns / self.cluster_gaps.len().max(1) as f64;
        let packets_per_cluster = self.histogram.count() as f64 * cluster_ns / self.all_ns.max(1) as f64;
        let below = round_trip_ns.map_or(u32::MAX, |rtt| u32::try_from(rtt / 10 * 7).unwrap_or(u32::MAX));
        let mut gaps: Vec<u32> = self.cluster_gaps.iter().copied().filter(|gap| *gap < below).collect();
        let are_close = self.mean_burst().is_some_and(|packets| packets >= CLUSTERED);
        let are_few = gaps.len() < 50 || gaps.len() * 2 < self.cluster_gaps.len();
        if are_few || packets_per_cluster < 2.0 || !are_close {
            return None;
        }
        gaps.sort_unstable();
        let median = f64::from(gaps[gaps.len() / 2]);
        let candidates = TIMERS_NS.iter().copied().chain([median]);
        let fitting = candidates.filter(|period| *period <= median * 1.2 && *period * 8.0 >= median);
        let strong = fitting.map(|period_ns| Period {
            period_ns,
            strength: strength(&gaps, period_ns),
            packets_per_cluster,
        });
        strong.filter(|period| period.strength >= 0.8).max_by(|a, b| a.period_ns.total_cmp(&b.period_ns))
    }
}

/// Periods of timers in use: 0.1 ms (Tamatsukuri's senders), HZ of 1000, 300, 250 and 100, 64 per second, 20 ms.
const TIMERS_NS: [f64; 10] = [0.1e6, 0.125e6, 0.25e6, 0.5e6, 1e6, 10e6 / 3.0, 4e6, 10e6, 15.625e6, 20e6];

/// A period that clusters of packets keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Period {
    /// Nanoseconds.
    pub period_ns: f64,
    /// How near gaps are to multiples of the period: the mean cosine of their phases, 1 all there, 0 anywhere.
    pub strength: f64,
    /// Packets in a cluster, on average.
    pub packets_per_cluster: f64,
}

/// How well gaps keep to multiples of a period. Gaps that are alike and no multiples are of another one.
fn strength(gaps: &[u32], period_ns: f64) -> f64 {
    let phase = |gap: &u32| (f64::from(*gap) / period_ns * std::f64::consts::TAU).cos();
    gaps.iter().map(phase).sum::<f64>() / gaps.len().max(1) as f64
}

/// ACKs against the data they acknowledge.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compression {
    /// Pairs that could be compared.
    pub compared: u64,
    /// Pairs that were compressed.
    pub compressed: u64,
    /// Spacing of the data in compressed pairs, nanoseconds.
    pub data_ns: u64,
    /// Spacing of their ACKs.
    pub ack_ns: u64,
    /// When it was seen first.
    pub first_ns: Option<i64>,
    /// Longest run of compressed pairs.
    pub longest_run: u32,
    run: u32,
    mean_ack: Mean,
    mean_bytes: Mean,
}

impl Compression {
    /// Two acknowledgements in a row.
    #[inline]
    pub fn on_pair(&mut self, now_ns: i64, ack_gap_ns: i64, data_gap_ns: i64, bytes: u64) {
        let per_byte =
            self.mean_ack.update(ack_gap_ns as f64) / self.mean_bytes.update(bytes as f64).max(1.0);
        let expected = per_byte * bytes as f64;
        let (ack, data) = (ack_gap_ns as f64, data_gap_ns as f64);
        if expected <= 0.0 || ack < 0.0 || data < expected / 2.0 {
            return;
        }
        self.compared += 1;
        if ack < expected / 4.0 && ack < data / 4.0 {
            self.compressed += 1;
            self.data_ns += data_gap_ns as u64;
            self.ack_ns += ack_gap_ns as u64;
            self.first_ns.get_or_insert(now_ns);
            self.run += 1;
            self.longest_run = self.longest_run.max(self.run);
        } else {
            self.run = 0;
        }
    }
}

/// Everything of one end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spacing {
    /// Packets that carry payload for the first time.
    pub data: Gaps,
    /// Packets that carry none.
    pub acks: Gaps,
    /// The ACKs this end's data got.
    pub compression: Compression,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clusters of `size` packets 12 µs apart, every `period_ns`, each `jitter(n)` late.
    fn clusters(size: i64, period_ns: i64, jitter: impl Fn(i64) -> i64) -> Gaps {
        let mut gaps = Gaps::default();
        for cluster in 0..400 {
            for packet in 0..size {
                gaps.on_packet(cluster * period_ns + jitter(cluster) + packet * 12_000);
            }
        }
        gaps
    }

    #[test]
    fn clusters_at_a_timer_tick_are_found_and_random_ones_are_not() {
        let ticking = clusters(5, 4_000_000, |n| n * 7919 % 200_000).period(None).unwrap();
        assert!((ticking.period_ns - 4e6).abs() < 1e5 && ticking.packets_per_cluster > 4.0, "{ticking:?}");
        assert_eq!(clusters(5, 4_000_000, |n| n * n * 7_919_317 % 3_900_000).period(None), None);
    }

    /// Packets one by one, with now and then a longer gap: those that begin behind one keep to no timer.
    #[test]
    fn gaps_that_are_alike_and_no_multiples_are_no_ticks() {
        let mut gaps = Gaps::default();
        let mut time_ns = 0;
        for round in 0..400 {
            let packets = if round % 3 == 0 { 10 } else { 5 };
            for packet in 0..packets {
                time_ns += if packet == 0 { 4_000_000 } else { 2_400_000 };
                gaps.on_packet(time_ns);
            }
        }
        assert_eq!(gaps.period(None), None);
        // Close enough together, and 1.6 or 2.8 times 10 ms from each other.
        let mut gaps = Gaps::default();
        let mut time_ns = 0;
        for round in 0..400 {
            for packet in 0..5 {
                gaps.on_packet(time_ns + packet * 12_000);
            }
            time_ns += if round % 3 == 0 { 28_000_000 } else { 16_000_000 };
        }
        let found = gaps.period(None);
        assert!(found.is_none_or(|period| (period.period_ns - 10e6).abs() > 1e5), "{found:?}");
    }

    #[test]
    fn packets_are_counted_by_all_of_their_clusters_however_many_are_kept() {
        let mut gaps = Gaps::default();
        for cluster in 0..20_000 {
            for packet in 0..4 {
                gaps.on_packet(cluster * 4_000_000 + packet * 12_000);
            }
        }
        let packets = gaps.period(None).unwrap().packets_per_cluster;
        assert!((packets - 4.0).abs() < 0.1, "{packets}");
    }

    #[test]
    fn evenly_spaced_packets_are_no_ticks() {
        assert_eq!(clusters(1, 1_000_000, |n| n * 7919 % 9000).period(None), None);
    }

    #[test]
    fn a_window_sent_once_in_each_round_trip_is_no_tick() {
        let gaps = clusters(10, 20_000_000, |n| n * 7919 % 30_000);
        assert_eq!(gaps.period(Some(20_000_000)), None);
        assert!(gaps.period(Some(400_000_000)).is_some());
    }

    #[test]
    fn acks_merged_on_the_way_back_are_compression_and_a_burst_answered_by_a_burst_is_not() {
        let (mut merged, mut burst) = (Compression::default(), Compression::default());
        for n in 0..1000 {
            let ack_gap = if n % 4 == 0 { 400_000 } else { 2_000 };
            merged.on_pair(n * 100_000, ack_gap, 100_000, 2896);
            burst.on_pair(n * 100_000, ack_gap, if n % 4 == 0 { 390_000 } else { 3_000 }, 2896);
        }
        assert!(merged.compressed > 650 && merged.longest_run == 3, "{merged:?}");
        assert_eq!(burst.compressed, 0);
    }
}
