//! Order of dials: connections of one client reach a server in the order of their coming.
//!
//! Pure: time is passed in. SYNs that leave one after another may be taken the other way round by a host whose network
//! card, or kernel, deals them out to several processors. So a dial waits until the one before it stands or has failed,
//! but not long: the handshake of a long path is not waited for, only the time by which hosts are uneven. A server that
//! is known to be near is waited for longer: what is late there is a processor that has other work. Nobody waits longer
//! than a time, however many there are: what this adds is bounded, and no rate is.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, Hash},
    time::{Duration, Instant},
};

/// How long a dial waits for the one before it.
const WAIT: Duration = Duration::from_millis(2);
/// How long a dial waits where the last one of its pair stood within [`WAIT`].
const NEAR_WAIT: Duration = Duration::from_millis(10);
/// How many pairs are remembered as near; others that fall on their place are taken for them.
const PLACES: usize = 256;
/// How long a connection waits for all of those before it.
const LONGEST: Duration = Duration::from_millis(30);

/// The dial begun last of those for one pair, and who comes after it.
#[derive(Debug)]
struct Line<T> {
    last: T,
    begun: Instant,
    until: Instant,
    /// With the times of their coming.
    waiting: VecDeque<(T, Instant)>,
}

/// The dials of a worker, by client and server.
#[derive(Debug)]
pub(crate) struct DialOrder<P, T> {
    lines: HashMap<P, Line<T>>,
    /// Each dial's time, in order, of far pairs and of near ones; of those that no longer stand in their line, too.
    deadlines: [VecDeque<(Instant, P, T)>; 2],
    waiting: usize,
    near: Box<[bool; PLACES]>,
}

impl<P: Copy + Eq + Hash, T: Copy + Eq> DialOrder<P, T> {
    pub fn new() -> DialOrder<P, T> {
        let deadlines = [VecDeque::new(), VecDeque::new()];
        DialOrder { lines: HashMap::new(), deadlines, waiting: 0, near: Box::new([false; PLACES]) }
    }

    /// A connection has come: those to dial now.
    pub fn on_arrival(&mut self, pair: P, token: T, now: Instant) -> Vec<T> {
        if let Some(line) = self.lines.get_mut(&pair)
            && (now < line.until || !line.waiting.is_empty())
        {
            line.waiting.push_back((token, now));
            self.waiting += 1;
            return Vec::new();
        }
        self.begin(pair, token, VecDeque::new(), now);
        vec![token]
    }

    /// A dial has ended, one way or the other: those who waited for it.
    pub fn on_outcome(&mut self, pair: P, token: T, now: Instant) -> Vec<T> {
        let Some(line) = self.lines.get(&pair).filter(|line| line.last == token) else { return Vec::new() };
        if now.duration_since(line.begun) <= WAIT {
            *self.near(pair) = true;
        }
        self.advance(pair, now)
    }

    /// Dials that have waited long enough.
    pub fn due(&mut self, now: Instant) -> Vec<T> {
        let mut due = Vec::new();
        for distance in 0..self.deadlines.len() {
            while let Some((_, pair, token)) =
                self.deadlines[distance].pop_front_if(|(until, ..)| *until <= now)
            {
                let is_last = |line: &Line<T>| line.last == token && line.until <= now;
                if self.lines.get(&pair).is_some_and(is_last) {
                    *self.near(pair) = false;
                    due.extend(self.advance(pair, now));
                }
            }
        }
        due
    }

    /// Whether somebody's dial waits for another of that pair.
    pub fn has_waiting(&self, pair: P) -> bool {
        self.waiting > 0 && self.lines.get(&pair).is_some_and(|line| !line.waiting.is_empty())
    }

    /// Whether no dial's time is running: the clock need not be read.
    pub fn is_still(&self) -> bool {
        self.deadlines.iter().all(VecDeque::is_empty)
    }

    /// How long nothing is due; none when nobody waits.
    pub fn idle(&self, now: Instant) -> Option<Duration> {
        let fronts = self.deadlines.iter().filter_map(VecDeque::front).filter(|_| self.waiting > 0);
        fronts.map(|(until, ..)| until.saturating_duration_since(now)).min()
    }

    /// The next of a line, and who after it has waited too long; the line is forgotten when there is none.
    fn advance(&mut self, pair: P, now: Instant) -> Vec<T> {
        let Some(mut line) = self.lines.remove(&pair) else { return Vec::new() };
        let mut next = Vec::new();
        while let Some((token, since)) = line.waiting.front().copied()
            && (next.is_empty() || since + LONGEST <= now)
        {
            line.waiting.pop_front();
            next.push(token);
        }
        self.waiting -= next.len();
        if let Some(last) = next.last() {
            self.begin(pair, *last, line.waiting, now);
        }
        next
    }

    fn begin(&mut self, pair: P, last: T, waiting: VecDeque<(T, Instant)>, now: Instant) {
        let is_near = *self.near(pair);
        let until = now + if is_near { NEAR_WAIT } else { WAIT };
        self.lines.insert(pair, Line { last, begun: now, until, waiting });
        self.deadlines[usize::from(is_near)].push_back((until, pair, last));
    }

    /// Whether a pair's last dial stood soon.
    fn near(&mut self, pair: P) -> &mut bool {
        let place = self.lines.hasher().hash_one(pair) as usize % PLACES;
        &mut self.near[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAIR: u8 = 1;
    const NOBODY: [u32; 0] = [];

    #[test]
    fn a_dial_waits_for_the_one_before_it_and_no_other_pairs_do() {
        let (mut order, now) = (DialOrder::new(), Instant::now());
        assert_eq!(order.on_arrival(PAIR, 0, now), [0]);
        assert_eq!(order.on_arrival(PAIR, 1, now), NOBODY);
        assert_eq!(order.on_arrival(2, 2, now), [2]);
        assert!(order.has_waiting(PAIR) && !order.has_waiting(2));
        assert_eq!(order.on_outcome(2, 2, now), NOBODY);
        assert_eq!(order.on_outcome(PAIR, 0, now), [1]);
        assert!(!order.has_waiting(PAIR));
        assert_eq!(order.on_outcome(PAIR, 1, now), NOBODY);
        assert_eq!(order.on_arrival(PAIR, 3, now), [3], "nobody is before it");
        assert_eq!(order.idle(now), None);
    }

    #[test]
    fn nobody_waits_for_the_handshake_of_a_long_path() {
        let (mut order, now) = (DialOrder::new(), Instant::now());
        order.on_arrival(PAIR, 0, now);
        order.on_arrival(PAIR, 1, now);
        order.on_arrival(PAIR, 2, now);
        assert_eq!((order.due(now), order.idle(now)), (vec![], Some(WAIT)));
        assert_eq!(order.due(now + WAIT), [1]);
        assert_eq!(order.on_outcome(PAIR, 0, now + WAIT), NOBODY, "the first one's outcome is nobody's now");
        assert_eq!(order.due(now + 2 * WAIT), [2]);
        assert_eq!(order.on_arrival(PAIR, 3, now + 4 * WAIT), [3]);
    }

    #[test]
    fn a_server_that_is_near_is_waited_for_longer_until_that_was_in_vain() {
        let (mut order, now) = (DialOrder::new(), Instant::now());
        order.on_arrival(PAIR, 0, now);
        order.on_outcome(PAIR, 0, now + WAIT);
        let now = now + 2 * WAIT;
        assert_eq!(order.on_arrival(PAIR, 1, now), [1]);
        for token in 2..5 {
            assert_eq!(order.on_arrival(PAIR, token, now), NOBODY);
        }
        assert_eq!((order.due(now + NEAR_WAIT - WAIT), order.idle(now)), (vec![], Some(NEAR_WAIT)));
        let late = now + NEAR_WAIT;
        assert_eq!(order.due(late), [2], "what took so long is not near");
        assert_eq!(order.due(late + WAIT), [3]);
        assert_eq!(order.on_outcome(PAIR, 3, late + 2 * WAIT), [4], "it stood soon");
        assert_eq!(order.idle(late), None);
        assert_eq!(order.on_arrival(PAIR, 5, late + 2 * WAIT), NOBODY);
        assert_eq!(order.due(late + 4 * WAIT), NOBODY);
        assert_eq!(order.due(late + 2 * WAIT + NEAR_WAIT), [5]);
    }

    #[test]
    fn of_a_thousand_at_once_none_waits_longer_than_the_longest_time() {
        let (mut order, now) = (DialOrder::new(), Instant::now());
        let mut dialled: Vec<u32> = (0..1000).flat_map(|token| order.on_arrival(PAIR, token, now)).collect();
        assert_eq!(dialled, [0]);
        let mut late = now;
        while late < now + LONGEST {
            late += WAIT;
            dialled.extend(order.due(late));
        }
        assert_eq!(dialled, (0..1000).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn all_are_dialled_in_the_order_of_their_coming_and_soon(
            steps in prop::collection::vec((0u8..3, any::<bool>(), 0u64..1500), 1..300)
        ) {
            let (mut order, mut now) = (DialOrder::new(), Instant::now());
            let (mut came, mut dialled): ([Vec<u32>; 3], [Vec<u32>; 3]) = Default::default();
            let mut arrivals = HashMap::new();
            let mut latest = Duration::ZERO;
            for (number, (pair, comes, pause_us)) in (0u32..).zip(steps) {
                let mut begun = Vec::new();
                if comes {
                    came[pair as usize].push(number);
                    arrivals.insert(number, now);
                    begun.extend(order.on_arrival(pair, number, now));
                } else if let Some(last) = dialled[pair as usize].last() {
                    begun.extend(order.on_outcome(pair, *last, now));
                }
                // A worker looks at the clock when the time it waits for has come, if nothing wakes it earlier.
                let end = now + Duration::from_micros(pause_us);
                loop {
                    for token in begun.drain(..) {
                        let pair = came.iter().position(|all| all.contains(&token)).unwrap();
                        dialled[pair].push(token);
                        latest = latest.max(now - arrivals[&token]);
                    }
                    begun.extend(order.due(now));
                    if begun.is_empty() {
                        match order.idle(now) {
                            Some(idle) if now + idle <= end => now += idle,
                            _ => break,
                        }
                    }
                }
                now = end;
            }
            for (came, dialled) in came.iter().zip(&dialled) {
                prop_assert!(came.starts_with(dialled), "{:?} {:?}", came, dialled);
            }
            prop_assert!(latest <= LONGEST + NEAR_WAIT, "{:?}", latest);
        }
    }
}
