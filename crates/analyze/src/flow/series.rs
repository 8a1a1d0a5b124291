//! What happened over time, in bounded memory: at most 512 bins, whose width doubles when the flow outlives them.

use serde::Serialize;

/// Bins of one flow.
const MOST: usize = 512;
/// Width of a bin at first.
const FIRST_WIDTH_NS: i64 = 1_000_000;

/// What kept the sender from sending more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The application had nothing more to send.
    Application,
    /// The receiver's window.
    Window,
    /// The congestion window (or the sender's buffer: from outside they look alike).
    Congestion,
    /// The sender was repairing a loss.
    Recovery,
}

/// Kinds of [`Limit`].
pub const LIMITS: usize = 4;

/// One stretch of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// New payload.
    pub new_bytes: u64,
    /// Payload sent again.
    pub resent_bytes: u64,
    /// Newly acknowledged.
    pub acked_bytes: u64,
    /// Most outstanding.
    pub flight_bytes: u64,
    /// Least window offered.
    pub window_bytes: u64,
    /// Least RTT; `u32::MAX` when there is none.
    pub rtt_least_us: u32,
    /// Greatest RTT.
    pub rtt_most_us: u32,
    /// Time under each [`Limit`].
    pub limit_ns: [i64; LIMITS],
}

impl Default for Bin {
    fn default() -> Bin {
        Bin {
            new_bytes: 0,
            resent_bytes: 0,
            acked_bytes: 0,
            flight_bytes: 0,
            window_bytes: u64::MAX,
            rtt_least_us: u32::MAX,
            rtt_most_us: 0,
            limit_ns: [0; LIMITS],
        }
    }
}

impl Bin {
    fn merge(&mut self, other: &Bin) {
        self.new_bytes += other.new_bytes;
        self.resent_bytes += other.resent_bytes;
        self.acked_bytes += other.acked_bytes;
        self.flight_bytes = self.flight_bytes.max(other.flight_bytes);
        self.window_bytes = self.window_bytes.min(other.window_bytes);
        self.rtt_least_us = self.rtt_least_us.min(other.rtt_least_us);
        self.rtt_most_us = self.rtt_most_us.max(other.rtt_most_us);
        self.limit_ns.iter_mut().zip(other.limit_ns).for_each(|(all, part)| *all += part);
    }
}

/// Bins since a flow's beginning.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    start_ns: i64,
    width_ns: i64,
    /// Times the width of a bin was doubled so far.
    doublings: u32,
    bins: Vec<Bin>,
    /// Bin of the time asked for last (there is one), and where it begins and ends: nearly always the next one too.
    current: usize,
    current_ns: (i64, i64),
}

impl Series {
    /// Begins at this time.
    pub fn new(start_ns: i64) -> Series {
        let current_ns = (start_ns, start_ns);
        Series { start_ns, width_ns: FIRST_WIDTH_NS, doublings: 0, bins: Vec::new(), current: 0, current_ns }
    }

    /// The bin of a time; what is earlier than the beginning is counted with it.
    #[inline]
    pub fn at(&mut self, time_ns: i64) -> &mut Bin {
        if time_ns < self.current_ns.0 || time_ns >= self.current_ns.1 {
            self.find(time_ns);
        }
        &mut self.bins[self.current]
    }

    #[cold]
    fn find(&mut self, time_ns: i64) {
        self.current = self.widen(time_ns);
        let from = self.start_ns.saturating_add(self.current as i64 * self.width_ns);
        self.current_ns = (from, from.saturating_add(self.width_ns));
        if self.current >= self.bins.len() {
            self.bins.resize(self.current + 1, Bin::default());
        }
    }

    /// Makes the bins so wide that this time has one, and says which.
    fn widen(&mut self, time_ns: i64) -> usize {
        let since = time_ns.saturating_sub(self.start_ns).max(0) as usize / FIRST_WIDTH_NS as usize;
        while since >> self.doublings >= MOST {
            self.halve();
        }
        since >> self.doublings
    }

    fn halve(&mut self) {
        self.doublings += 1;
        self.width_ns = FIRST_WIDTH_NS << self.doublings;
        self.current_ns = (self.start_ns, self.start_ns);
        let merged = self.bins.chunks(2).map(|pair| {
            let mut bin = pair[0];
            pair[1..].iter().for_each(|other| bin.merge(other));
            bin
        });
        self.bins = merged.collect();
    }

    /// Spreads a time over the bins it touches.
    #[inline]
    pub fn spend(&mut self, from_ns: i64, to_ns: i64, limit: Limit) {
        if from_ns >= self.current_ns.0 && to_ns < self.current_ns.1 {
            self.at(from_ns).limit_ns[limit as usize] += to_ns - from_ns;
            return;
        }
        self.spread(from_ns, to_ns, limit);
    }

    #[cold]
    fn spread(&mut self, from_ns: i64, to_ns: i64, limit: Limit) {
        // Widen first, so that no bin in between is made only to be merged.
        self.widen(to_ns);
        let mut at = from_ns.max(self.start_ns);
        while at < to_ns {
            self.find(at);
            let end = self.current_ns.1.min(to_ns);
            self.at(at).limit_ns[limit as usize] += end - at;
            at = end;
        }
    }

    /// Width of a bin.
    pub fn width_ns(&self) -> i64 {
        self.width_ns
    }

    /// When the first bin begins.
    pub fn start_ns(&self) -> i64 {
        self.start_ns
    }

    /// All bins in order.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// At most `count` bins: neighbours merged.
    pub fn coarser(&self, count: usize) -> Series {
        let mut series = self.clone();
        while series.bins.len() > count.max(1) {
            series.halve();
        }
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_lost_when_bins_widen(times in proptest::collection::vec(0i64..1_000_000_000_000, 1..200)) {
            let mut series = Series::new(0);
            let mut last = 0;
            let mut sorted = times;
            sorted.sort_unstable();
            for time in &sorted {
                series.at(*time).new_bytes += 7;
                series.spend(last, *time, Limit::Window);
                last = *time;
            }
            prop_assert!(series.bins().len() <= MOST);
            let (bytes, spent) = series.bins().iter().fold((0, 0), |(b, s), bin| (b + bin.new_bytes, s + bin.limit_ns[1]));
            prop_assert_eq!(bytes, 7 * sorted.len() as u64);
            prop_assert_eq!(spent, last);
        }
    }
}
