//! Handshakes held back until the server's leg stands. Pure: time is passed in, nothing is sent here.
//!
//! A client's SYN begins a dial; its retransmissions do not begin another. When the server has answered, the SYN is
//! given to the relay's listener, again for each retransmission (under SYN cookies the kernel keeps nothing). What
//! does not fit into the table passes by unrelayed, and stays so for its retransmissions: a second SYN of another
//! sequence number for the same addresses would confuse the server. A relay that fails closed lets nothing by: there a
//! retransmission may find room.

use crate::Fail;
use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// A client and the server it wants.
pub(crate) type Pair = (SocketAddr, SocketAddr);

/// A dial that nobody answers: the client's next SYN begins another.
pub(crate) const DIAL: Duration = Duration::from_secs(20);
/// How long a server's leg waits for the client to complete its handshake. A client later than that is served by a
/// new dial.
pub(crate) const ANSWERED: Duration = Duration::from_secs(30);
/// A passed SYN may be retransmitted as late as this (RFC 6298: 1, 2, 4 ... 64 s).
const PASSED: Duration = Duration::from_secs(130);
/// Passed pairs remembered, by a hash: one that is overwritten early costs its client another handshake.
const PASSED_SLOTS: usize = 1 << 14;

/// What is to be done with a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Dial its server; the number names the dial.
    Dial(u64),
    /// Nothing: the dial is under way.
    Wait,
    /// Give it to the listener: the server's leg stands.
    Answer,
    /// There is no room: forward it, or not, as the relay fails.
    Pass,
}

#[derive(Debug)]
struct Held {
    number: u64,
    answered: bool,
    syn: Box<[u8]>,
}

/// The held handshakes.
#[derive(Debug)]
pub(crate) struct Table {
    held: HashMap<Pair, Held>,
    /// Deadlines in order of time, per state (each state has one duration); stale ones are skipped.
    dialing: VecDeque<(Instant, Pair, u64)>,
    answered: VecDeque<(Instant, Pair, u64)>,
    /// Empty until something passes.
    passed: Vec<Option<(u64, Instant)>>,
    /// Keyed at random, so that nobody can choose addresses that overwrite each other.
    hashing: RandomState,
    limit: usize,
    fail: Fail,
    next_number: u64,
}

impl Table {
    /// Holds at most `limit` handshakes.
    pub fn new(limit: usize, fail: Fail) -> Table {
        let (held, dialing, answered, passed, hashing) = Default::default();
        Table { held, dialing, answered, passed, hashing, limit, fail, next_number: 0 }
    }

    /// Handshakes held now.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// A SYN has come. `may_hold`: the relay takes new connections.
    pub fn on_syn(&mut self, pair: Pair, syn: &[u8], may_hold: bool, now: Instant) -> Verdict {
        if let Some(held) = self.held.get_mut(&pair) {
            // The newest counts: a client that starts anew has another sequence number.
            held.syn = syn.into();
            return if held.answered { Verdict::Answer } else { Verdict::Wait };
        }
        if !may_hold || self.held.len() >= self.limit || self.was_passed(pair, now) {
            return self.pass(pair, now);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.held.insert(pair, Held { number, answered: false, syn: syn.into() });
        self.dialing.push_back((now + DIAL, pair, number));
        Verdict::Dial(number)
    }

    /// The server's leg stands: the SYN to give to the listener.
    pub fn on_connected(&mut self, pair: Pair, number: u64, now: Instant) -> Option<&[u8]> {
        let held = self.held.get_mut(&pair).filter(|held| held.number == number)?;
        held.answered = true;
        self.answered.push_back((now + ANSWERED, pair, number));
        Some(&held.syn)
    }

    /// The dial has failed: the SYN to refuse.
    pub fn on_failed(&mut self, pair: Pair, number: u64) -> Option<Box<[u8]>> {
        self.held.get(&pair).filter(|held| held.number == number)?;
        self.held.remove(&pair).map(|held| held.syn)
    }

    /// The client has completed its handshake, or its place is given up.
    pub fn on_taken(&mut self, pair: Pair) {
        self.held.remove(&pair);
    }

    /// The SYN cannot be held after all (no descriptors): it passes, and so do its retransmissions.
    pub fn give_up(&mut self, pair: Pair, now: Instant) {
        self.held.remove(&pair);
        self.pass(pair, now);
    }

    /// Pairs whose time is up; they are forgotten.
    pub fn expire(&mut self, now: Instant) -> Vec<(Pair, u64)> {
        let mut expired = Vec::new();
        for (is_answered, queue) in [(false, &mut self.dialing), (true, &mut self.answered)] {
            while let Some((deadline, pair, number)) = queue.front().copied()
                && deadline <= now
            {
                queue.pop_front();
                let due = |held: &Held| held.number == number && held.answered == is_answered;
                if self.held.get(&pair).is_some_and(due) {
                    self.held.remove(&pair);
                    expired.push((pair, number));
                }
            }
            // Most handshakes end long before their time: what is stale is thrown out when it prevails.
            if queue.len() > 64 + 2 * self.held.len() {
                queue.retain(|(_, pair, number)| {
                    self.held.get(pair).is_some_and(|held| held.number == *number)
                });
            }
        }
        expired
    }

    fn pass(&mut self, pair: Pair, now: Instant) -> Verdict {
        if self.fail == Fail::Closed {
            return Verdict::Pass;
        }
        let hash = self.hashing.hash_one(pair);
        self.passed.resize(PASSED_SLOTS, None);
        self.passed[hash as usize % PASSED_SLOTS] = Some((hash, now));
        Verdict::Pass
    }

    fn was_passed(&self, pair: Pair, now: Instant) -> bool {
        let hash = self.hashing.hash_one(pair);
        let slot = self.passed.get(hash as usize % PASSED_SLOTS).copied().flatten();
        slot.is_some_and(|(found, since)| found == hash && now.saturating_duration_since(since) < PASSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(port: u16) -> Pair {
        (SocketAddr::from(([192, 0, 2, 1], port)), SocketAddr::from(([198, 51, 100, 1], 80)))
    }

    #[test]
    fn a_retransmitted_syn_does_not_dial_twice_and_is_answered_once_the_server_has_answered() {
        let (mut table, now) = (Table::new(8, Fail::Open), Instant::now());
        assert_eq!(table.on_syn(pair(1), b"a", true, now), Verdict::Dial(0));
        assert_eq!(table.on_syn(pair(1), b"b", true, now), Verdict::Wait);
        assert_eq!(table.on_connected(pair(1), 0, now), Some(&b"b"[..]));
        assert_eq!(table.on_syn(pair(1), b"b", true, now), Verdict::Answer);
        table.on_taken(pair(1));
        assert_eq!(table.on_syn(pair(1), b"c", true, now), Verdict::Dial(1));
    }

    #[test]
    fn a_dial_nobody_answers_is_given_up_and_the_next_syn_dials_again() {
        let (mut table, now) = (Table::new(8, Fail::Open), Instant::now());
        table.on_syn(pair(1), b"a", true, now);
        assert!(table.expire(now + DIAL - Duration::from_millis(1)).is_empty());
        assert_eq!(table.expire(now + DIAL), [(pair(1), 0)]);
        assert_eq!(table.on_syn(pair(1), b"a", true, now + DIAL), Verdict::Dial(1));
        assert_eq!(table.on_connected(pair(1), 0, now + DIAL), None, "an answer to the first dial");
    }

    #[test]
    fn beyond_the_limit_syns_pass_and_so_do_their_retransmissions() {
        let (mut table, now) = (Table::new(1, Fail::Open), Instant::now());
        table.on_syn(pair(1), b"a", true, now);
        assert_eq!(table.on_syn(pair(2), b"a", true, now), Verdict::Pass);
        table.on_taken(pair(1));
        assert_eq!(table.on_syn(pair(2), b"a", true, now), Verdict::Pass);
        assert_eq!(table.on_syn(pair(3), b"a", true, now), Verdict::Dial(1));
        assert_eq!(table.on_syn(pair(4), b"a", false, now), Verdict::Pass);
    }

    #[test]
    fn what_did_not_fit_is_dialled_by_its_retransmission_where_nothing_passes() {
        let (mut table, now) = (Table::new(1, Fail::Closed), Instant::now());
        table.on_syn(pair(1), b"a", true, now);
        assert_eq!(table.on_syn(pair(2), b"a", true, now), Verdict::Pass);
        table.on_taken(pair(1));
        assert_eq!(table.on_syn(pair(2), b"a", true, now), Verdict::Dial(1));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Syn(u16),
        Connected(u16, u64),
        Failed(u16, u64),
        Taken(u16),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u16..6).prop_map(Step::Syn),
            2 => (0u16..6, 0u64..12).prop_map(|(p, n)| Step::Connected(p, n)),
            1 => (0u16..6, 0u64..12).prop_map(|(p, n)| Step::Failed(p, n)),
            1 => (0u16..6).prop_map(Step::Taken),
            1 => (0u64..40).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn the_table_stays_within_its_limit_and_forgets_everything_in_time(
            steps in prop::collection::vec(step(), 0..200), limit in 1usize..5,
        ) {
            let (mut table, mut now, mut dials) = (Table::new(limit, Fail::Open), Instant::now(), 0);
            for step in steps {
                match step {
                    Step::Syn(port) => {
                        let verdict = table.on_syn(pair(port), b"s", true, now);
                        if let Verdict::Dial(number) = verdict {
                            prop_assert_eq!(number, dials);
                            dials += 1;
                        }
                    }
                    Step::Connected(port, number) => drop(table.on_connected(pair(port), number, now)),
                    Step::Failed(port, number) => drop(table.on_failed(pair(port), number)),
                    Step::Taken(port) => table.on_taken(pair(port)),
                    Step::Wait(seconds) => {
                        now += Duration::from_secs(seconds);
                        table.expire(now);
                    }
                }
                prop_assert!(table.len() <= limit);
            }
            table.expire(now + ANSWERED);
            prop_assert_eq!(table.len(), 0);
        }
    }
}
