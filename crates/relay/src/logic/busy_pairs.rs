//! Connections of the same addresses and ports, one after the other.
//!
//! A client may use its port again while the relay still carries what its last connection sent: the kernel has that
//! pair of addresses and ports once. So the next dial waits until the last leg has gone, as its packets would have
//! reached the server behind the last one's; those of one pair are dialled in the order in which they came.

use crate::logic::Pair;
use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Longer than the kernel keeps a pair whose ends have both closed (TIME_WAIT, 60 s).
const LONGEST: Duration = Duration::from_secs(65);
/// Between looks: an eighth of the time for which one has waited, within these.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
const LOOKS_PER_WAIT: u32 = 8;

/// Dials of type `T` that wait for their pairs. Pure: time is passed in.
#[derive(Debug)]
pub(crate) struct BusyPairs<T> {
    lines: HashMap<Pair, Line<T>>,
}

#[derive(Debug)]
struct Line<T> {
    due: Instant,
    /// With the times of their coming.
    dials: VecDeque<Turn<T>>,
}

/// A dial that may try again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Turn<T> {
    pub pair: Pair,
    pub dial: T,
    since: Instant,
}

impl<T> Turn<T> {
    /// Whether the pair has been busy for longer than any connection that has ended would keep it.
    pub fn is_hopeless(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= LONGEST
    }
}

impl<T> Default for BusyPairs<T> {
    fn default() -> Self {
        BusyPairs { lines: HashMap::new() }
    }
}

impl<T> BusyPairs<T> {
    /// Whether no dial waits.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether some dial waits for that pair: later ones wait behind it.
    pub fn has(&self, pair: &Pair) -> bool {
        !self.lines.is_empty() && self.lines.contains_key(pair)
    }

    /// The pair is busy, or somebody waits for it already.
    pub fn push(&mut self, pair: Pair, dial: T, now: Instant) {
        let line = self.lines.entry(pair);
        let line = line.or_insert_with(|| Line { due: now + LOOK.0, dials: VecDeque::new() });
        line.dials.push_back(Turn { pair, dial, since: now });
    }

    /// The first of every pair that is to be looked at again. It waits no more unless it is given [`BusyPairs::back`].
    pub fn due(&mut self, now: Instant) -> Vec<Turn<T>> {
        let mut due = Vec::new();
        self.lines.retain(|_, line| {
            if line.due > now {
                return true;
            }
            line.due = now + LOOK.0;
            due.extend(line.dials.pop_front());
            // The pair of the one that goes now is busy: whoever is behind it keeps its line.
            !line.dials.is_empty()
        });
        due
    }

    /// The pair is still busy.
    pub fn back(&mut self, turn: Turn<T>, now: Instant) {
        let waited = now.saturating_duration_since(turn.since);
        let due = now + (waited / LOOKS_PER_WAIT).clamp(LOOK.0, LOOK.1);
        let line = self.lines.entry(turn.pair).or_insert_with(|| Line { due, dials: VecDeque::new() });
        line.due = due;
        line.dials.push_front(turn);
    }

    /// Milliseconds until some dial is due; the greatest number when none waits.
    pub fn wait_ms(&self, now: Instant) -> u16 {
        let due = self.lines.values().map(|line| line.due).min();
        let millis = |due: Instant| due.saturating_duration_since(now).as_micros().div_ceil(1000) as u16;
        due.map_or(u16::MAX, millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn pair(port: u16) -> Pair {
        (SocketAddr::from(([192, 0, 2, 1], port)), SocketAddr::from(([198, 51, 100, 1], 80)))
    }

    fn numbers(turns: &[Turn<u8>]) -> Vec<u8> {
        turns.iter().map(|turn| turn.dial).collect()
    }

    #[test]
    fn dials_of_one_pair_go_in_the_order_of_their_coming_and_one_at_a_time() {
        let (mut waiting, start) = (BusyPairs::default(), Instant::now());
        (1..=3).for_each(|dial| waiting.push(pair(1), dial, start));
        let mut now = start + LOOK.1;
        let mut first = waiting.due(now);
        assert_eq!(numbers(&first), [1]);
        waiting.back(first.remove(0), now);
        for dial in 1..=3 {
            now += LOOK.1;
            assert_eq!(numbers(&waiting.due(now)), [dial]);
        }
        assert!(!waiting.has(&pair(1)) && waiting.wait_ms(now) == u16::MAX);
    }

    #[test]
    fn who_waits_long_is_looked_at_less_often_and_given_up_in_the_end() {
        let (mut waiting, mut now) = (BusyPairs::default(), Instant::now());
        waiting.push(pair(1), 1u8, now);
        assert_eq!(waiting.wait_ms(now), 1);
        let mut looks = 0;
        loop {
            now += Duration::from_millis(waiting.wait_ms(now).into());
            let turn = waiting.due(now).remove(0);
            if turn.is_hopeless(now) {
                break;
            }
            looks += 1;
            waiting.back(turn, now);
        }
        assert!((600..1000).contains(&looks), "{looks}");
    }

    #[test]
    fn pairs_do_not_wait_for_each_other() {
        let (mut waiting, now) = (BusyPairs::default(), Instant::now());
        waiting.push(pair(1), 1, now);
        waiting.push(pair(2), 2, now);
        let mut found = numbers(&waiting.due(now + LOOK.1));
        found.sort_unstable();
        assert_eq!(found, [1, 2]);
    }
}
