//! What happened over time, in bounded memory: at most 512 bins, whose width doubles when the flow outlives them.

use serde::Serialize;

/// Bins of one flow.
const MOST: usize = 512;
/// Width of a bin at first.
const FIRST_WIDTH_NS: i64 = 1_000_000;
/// A flow with so many gets room for all: growing would copy them, each time to pages that were not touched before.
const LASTING: usize = 64;

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
    /// What happened in all of these; there is one at least.
    fn of(bins: &[Bin]) -> Bin {
        let mut all = bins[0];
        bins[1..].iter().for_each(|bin| all.merge(bin));
        all
    }

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
            if self.current >= LASTING && self.bins.capacity() < MOST {
                self.bins.reserve_exact(MOST - self.bins.len());
            }
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
        // In place: the flow goes on, and will need the room again.
        let (all, merged) = (self.bins.len(), self.bins.len().div_ceil(2));
        (0..merged).for_each(|at| self.bins[at] = Bin::of(&self.bins[2 * at..all.min(2 * at + 2)]));
        self.bins.truncate(merged);
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
        let mut more = 0;
        while self.bins.len().div_ceil(1 << more) > count.max(1) {
            more += 1;
        }
        let doublings = self.doublings + more;
        Series {
            width_ns: FIRST_WIDTH_NS << doublings,
            doublings,
            bins: self.bins.chunks(1 << more).map(Bin::of).collect(),
            ..Series::new(self.start_ns)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn many_bins_stay_where_they_are_while_they_widen() {
        let mut series = Series::new(0);
        series.at(LASTING as i64 * FIRST_WIDTH_NS);
        let place = series.bins().as_ptr();
        for doublings in 0..20 {
            series.at(((MOST as i64 - 1) * FIRST_WIDTH_NS) << doublings);
            assert_eq!((series.bins().len(), series.bins().as_ptr()), (MOST, place), "{doublings}");
        }
    }

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
            for count in [1, 7, 64, MOST] {
                let (coarser, mut halved) = (series.coarser(count), series.clone());
                while halved.bins().len() > count {
                    halved.halve();
                }
                prop_assert_eq!((coarser.bins(), coarser.width_ns()), (halved.bins(), halved.width_ns()));
            }
        }
    }
}
