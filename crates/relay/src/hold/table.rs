//! Handshakes held back until the server's leg stands. Pure: time is passed in, nothing is sent here.
//!
//! A client's SYN begins a dial; its retransmissions do not begin another. When the server has answered, the SYN is
//! given to the relay's listener, again for each retransmission (under SYN cookies the kernel keeps nothing). What does
//! not fit into the table, or into the [`Window`], is given to the listener at once: its client has to come before
//! anybody is dialled. When the relay has no place, SYNs pass by unrelayed, and so do their retransmissions: a second
//! SYN of another sequence number for the same addresses would confuse the server. A relay that fails closed lets
//! nothing by: there a retransmission may find room.

use super::window::Window;
use crate::{
    Fail,
    logic::{Pair, places::Room},
};
use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How far a held handshake is. Each stage has one duration; a client that comes later than the last is served by a new
/// dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The server is dialled.
    Dialing,
    /// The server has not answered: mostly there is none, and so no connection of nobody's. The client's SYN after this
    /// begins another dial.
    Silent,
    /// The server has answered; the client may come.
    Answered,
    /// The client has not come: perhaps he never will.
    Missing,
    /// The client is late, and may still come.
    Late,
}

impl Stage {
    const ALL: [Stage; 5] = [Stage::Dialing, Stage::Silent, Stage::Answered, Stage::Missing, Stage::Late];

    fn lasts(self) -> Duration {
        match self {
            // Longer than a round trip, and a SYN or SYN-ACK that is lost.
            Stage::Dialing => Duration::from_secs(3),
            Stage::Answered => Duration::from_secs(2),
            Stage::Missing => Duration::from_secs(1),
            Stage::Silent => Duration::from_secs(17),
            // The SYN-ACK is sent again after 1, 3 and 7 s.
            Stage::Late => Duration::from_secs(7),
        }
    }

    fn next(self) -> Option<Stage> {
        match self {
            Stage::Dialing => Some(Stage::Silent),
            Stage::Answered => Some(Stage::Missing),
            Stage::Missing => Some(Stage::Late),
            Stage::Silent | Stage::Late => None,
        }
    }

    fn is_answered(self) -> bool {
        matches!(self, Stage::Answered | Stage::Missing | Stage::Late)
    }
}

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
    /// The dial has come to nothing, and the client asks again: the SYN shall go to its server itself.
    Silent(u64),
    /// Give it to the listener: the server's leg stands.
    Answer,
    /// Give it to the listener: whoever comes is dialled for then.
    Prove,
    /// There is no room: forward it, or not, as the relay fails.
    Pass,
}

#[derive(Debug)]
struct Held {
    number: u64,
    stage: Stage,
    syn: Box<[u8]>,
}

/// The held handshakes.
#[derive(Debug)]
pub(crate) struct Table {
    held: HashMap<Pair, Held>,
    /// All but the silent ones; shared with the other workers' tables.
    window: Arc<Mutex<Window>>,
    /// Deadlines in order of time, per stage; stale ones are skipped.
    deadlines: [VecDeque<(Instant, Pair, u64)>; Stage::ALL.len()],
    /// Empty until something passes.
    passed: Vec<Option<(u64, Instant)>>,
    /// Keyed at random, so that nobody can choose addresses that overwrite each other.
    hashing: RandomState,
    limit: usize,
    fail: Fail,
    next_number: u64,
    /// Handshakes whose clients have gone missing and nobody has asked for yet.
    missing: Vec<(Pair, u64)>,
}

impl Table {
    /// Holds at most `limit` handshakes.
    pub fn new(limit: usize, fail: Fail, window: Arc<Mutex<Window>>) -> Table {
        let (held, deadlines, passed, hashing, missing) = Default::default();
        Table { held, window, deadlines, passed, hashing, limit, fail, next_number: 0, missing }
    }

    /// Handshakes held now.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// A SYN has come.
    pub fn on_syn(&mut self, pair: Pair, syn: &[u8], room: Room, now: Instant) -> Verdict {
        if let Some(held) = self.held.get_mut(&pair) {
            // The newest counts: a client that starts anew has another sequence number.
            held.syn = syn.into();
            if held.stage == Stage::Silent && self.fail == Fail::Open {
                return Verdict::Silent(held.number);
            }
            return if held.stage.is_answered() { Verdict::Answer } else { Verdict::Wait };
        }
        if room == Room::Nobody || self.was_passed(pair, now) {
            return self.pass(pair, now);
        }
        if room == Room::Client || self.held.len() >= self.limit || !self.window().has_room(pair.0.ip()) {
            return Verdict::Prove;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.held.insert(pair, Held { number, stage: Stage::Dialing, syn: syn.into() });
        self.window().add(pair.0.ip());
        self.wait(pair, number, Stage::Dialing, now);
        Verdict::Dial(number)
    }

    /// What is held, with the SYNs.
    pub fn syns(&self) -> impl Iterator<Item = (Pair, &[u8])> {
        self.held.iter().map(|(pair, held)| (*pair, &*held.syn))
    }

    /// Whether that dial is still wanted.
    pub fn is_dialled(&self, pair: Pair, number: u64) -> bool {
        self.held.get(&pair).is_some_and(|held| held.number == number && !held.stage.is_answered())
    }

    /// The server's leg stands: the SYN to give to the listener.
    pub fn on_connected(&mut self, pair: Pair, number: u64, now: Instant) -> Option<&[u8]> {
        self.held.get(&pair).filter(|held| held.number == number)?;
        self.enter(pair, Stage::Answered, now);
        self.held.get(&pair).map(|held| &*held.syn)
    }

    /// The dial has failed: the SYN to refuse.
    pub fn on_failed(&mut self, pair: Pair, number: u64) -> Option<Box<[u8]>> {
        self.held.get(&pair).filter(|held| held.number == number)?;
        self.remove(pair).map(|held| held.syn)
    }

    /// The client has completed its handshake.
    pub fn on_taken(&mut self, pair: Pair) {
        if self.remove(pair).is_some_and(|held| matches!(held.stage, Stage::Answered | Stage::Missing)) {
            self.window().on_client();
        }
    }

    /// Clients who have had time to come and have not, each told once: the kernel may have nothing of their handshakes
    /// any more.
    pub fn missing(&mut self) -> Vec<(Pair, u64)> {
        std::mem::take(&mut self.missing)
    }

    /// The missing client will not come; whether he was still waited for.
    pub fn on_gone(&mut self, pair: Pair, number: u64) -> bool {
        let is_waited_for = self.held.get(&pair).is_some_and(|held| held.number == number);
        if is_waited_for {
            self.remove(pair);
            self.window().on_nobody();
        }
        is_waited_for
    }

    /// Gives up a handshake's place.
    pub fn forget(&mut self, pair: Pair) {
        self.remove(pair);
    }

    /// The SYN cannot be held after all (no descriptors): it passes, and so do its retransmissions.
    pub fn give_up(&mut self, pair: Pair, now: Instant) {
        self.remove(pair);
        self.pass(pair, now);
    }

    /// Pairs whose time is up; they are forgotten.
    pub fn expire(&mut self, now: Instant) -> Vec<(Pair, u64)> {
        let mut expired = Vec::new();
        // Each stage before the one that follows it.
        for stage in Stage::ALL {
            while let Some((deadline, pair, number)) = self.deadlines[stage as usize].front().copied()
                && deadline <= now
            {
                self.deadlines[stage as usize].pop_front();
                let due = |held: &Held| held.number == number && held.stage == stage;
                if !self.held.get(&pair).is_some_and(due) {
                    continue;
                }
                match stage.next() {
                    Some(next) => self.enter(pair, next, deadline),
                    None => {
                        self.remove(pair);
                        expired.push((pair, number));
                    }
                }
            }
            // Most handshakes end long before their time: what is stale is thrown out when it prevails.
            let (queue, held) = (&mut self.deadlines[stage as usize], &self.held);
            if queue.len() > 64 + 2 * held.len() {
                queue.retain(|(_, pair, number)| held.get(pair).is_some_and(|held| held.number == *number));
            }
        }
        expired
    }

    fn enter(&mut self, pair: Pair, stage: Stage, now: Instant) {
        let Some(held) = self.held.get_mut(&pair) else { return };
        let (number, before) = (held.number, std::mem::replace(&mut held.stage, stage));
        if stage == Stage::Missing {
            self.missing.push((pair, number));
        }
        let mut window = self.window();
        match (before, stage) {
            (_, Stage::Silent) => window.remove(pair.0.ip()),
            (Stage::Silent, _) => window.add(pair.0.ip()),
            (_, Stage::Late) => window.on_nobody(),
            _ => {}
        }
        drop(window);
        self.wait(pair, number, stage, now);
    }

    fn wait(&mut self, pair: Pair, number: u64, stage: Stage, now: Instant) {
        self.deadlines[stage as usize].push_back((now + stage.lasts(), pair, number));
    }

    fn remove(&mut self, pair: Pair) -> Option<Held> {
        let held = self.held.remove(&pair)?;
        if held.stage != Stage::Silent {
            self.window().remove(pair.0.ip());
        }
        Some(held)
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
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
    use super::{super::window::LEAST, *};
    use proptest::prelude::*;
    use std::net::SocketAddr;

    const DIAL: Duration = Duration::from_secs(20);
    const ANSWERED: Duration = Duration::from_secs(10);

    fn table(limit: usize, fail: Fail) -> Table {
        Table::new(limit, fail, Arc::new(Mutex::new(Window::new(1024))))
    }

    fn pair(port: u16) -> Pair {
        (SocketAddr::from(([192, 0, 2, 1], port)), SocketAddr::from(([198, 51, 100, 1], 80)))
    }

    #[test]
    fn a_retransmitted_syn_does_not_dial_twice_and_is_answered_once_the_server_has_answered() {
        let (mut table, now) = (table(8, Fail::Open), Instant::now());
        assert_eq!(table.on_syn(pair(1), b"a", Room::Syn, now), Verdict::Dial(0));
        assert_eq!(table.on_syn(pair(1), b"b", Room::Syn, now), Verdict::Wait);
        assert_eq!(table.on_connected(pair(1), 0, now), Some(&b"b"[..]));
        assert_eq!(table.on_syn(pair(1), b"b", Room::Syn, now), Verdict::Answer);
        table.on_taken(pair(1));
        assert_eq!(table.on_syn(pair(1), b"c", Room::Syn, now), Verdict::Dial(1));
    }

    #[test]
    fn a_dial_nobody_answers_is_given_up_and_the_next_syn_dials_again() {
        let (mut table, now) = (table(8, Fail::Open), Instant::now());
        table.on_syn(pair(1), b"a", Room::Syn, now);
        assert!(table.expire(now + DIAL - Duration::from_millis(1)).is_empty());
        assert_eq!(table.expire(now + DIAL), [(pair(1), 0)]);
        assert_eq!(table.on_syn(pair(1), b"a", Room::Syn, now + DIAL), Verdict::Dial(1));
        assert_eq!(table.on_connected(pair(1), 0, now + DIAL), None, "an answer to the first dial");
    }

    #[test]
    fn a_client_who_has_not_come_is_told_once_and_given_up_or_waited_for() {
        for is_gone in [true, false] {
            let (mut table, now) = (table(8, Fail::Open), Instant::now());
            table.on_syn(pair(1), b"a", Room::Syn, now);
            table.on_connected(pair(1), 0, now);
            assert!(table.expire(now + Duration::from_secs(1)).is_empty() && table.missing().is_empty());
            assert!(table.expire(now + Duration::from_secs(2)).is_empty());
            assert_eq!((table.missing(), table.missing()), (vec![(pair(1), 0)], vec![]));
            assert_eq!(is_gone && table.on_gone(pair(1), 0), is_gone);
            assert!(!table.on_gone(pair(1), 1), "another dial");
            assert_eq!(table.expire(now + ANSWERED).len(), usize::from(!is_gone));
            assert_eq!((table.len(), table.window().taken()), (0, 0));
        }
    }

    #[test]
    fn a_client_that_asks_again_when_its_dial_has_come_to_nothing_is_let_go_unless_nothing_passes() {
        for (fail, verdict) in [(Fail::Open, Verdict::Silent(0)), (Fail::Closed, Verdict::Wait)] {
            let (mut table, now) = (table(8, fail), Instant::now());
            table.on_syn(pair(1), b"a", Room::Syn, now);
            let later = now + Stage::Dialing.lasts();
            assert_eq!(table.expire(later), []);
            assert_eq!(table.on_syn(pair(1), b"a", Room::Syn, later), verdict);
        }
    }

    #[test]
    fn beyond_the_limit_clients_come_before_their_servers_are_dialled() {
        let (mut table, now) = (table(1, Fail::Closed), Instant::now());
        table.on_syn(pair(1), b"a", Room::Syn, now);
        assert_eq!(table.on_syn(pair(2), b"a", Room::Syn, now), Verdict::Prove);
        table.on_taken(pair(1));
        assert_eq!(table.on_syn(pair(3), b"a", Room::Client, now), Verdict::Prove);
        assert_eq!(table.on_syn(pair(2), b"a", Room::Syn, now), Verdict::Dial(1));
    }

    #[test]
    fn without_a_place_syns_pass_and_so_do_their_retransmissions() {
        let (mut table, now) = (table(8, Fail::Open), Instant::now());
        assert_eq!(table.on_syn(pair(2), b"a", Room::Nobody, now), Verdict::Pass);
        assert_eq!(table.on_syn(pair(2), b"a", Room::Syn, now), Verdict::Pass);
        assert_eq!(table.on_syn(pair(3), b"a", Room::Syn, now), Verdict::Dial(0));
    }

    #[test]
    fn what_found_no_place_is_dialled_by_its_retransmission_where_nothing_passes() {
        let (mut table, now) = (table(1, Fail::Closed), Instant::now());
        assert_eq!(table.on_syn(pair(2), b"a", Room::Nobody, now), Verdict::Pass);
        assert_eq!(table.on_syn(pair(2), b"a", Room::Syn, now), Verdict::Dial(0));
    }

    /// SYNs of so many clients, each of another network; how many of them are dialled for.
    fn dialled(table: &mut Table, clients: std::ops::Range<u32>, now: Instant) -> Vec<(Pair, u64)> {
        let pair =
            |client: u32| (SocketAddr::from(((0x0a00_0001 + (client << 8)).to_be_bytes(), 1)), pair(1).1);
        let dial = |client| match table.on_syn(pair(client), b"a", Room::Syn, now) {
            Verdict::Dial(number) => Some((pair(client), number)),
            _ => None,
        };
        clients.filter_map(dial).collect()
    }

    #[test]
    fn a_flood_whose_clients_never_come_has_no_more_than_the_least_window_at_its_servers() {
        let (mut table, now) = (table(1024, Fail::Closed), Instant::now());
        let held = dialled(&mut table, 0..5000, now);
        assert_eq!(held.len(), LEAST);
        for (pair, number) in &held {
            table.on_connected(*pair, *number, now);
        }
        for seconds in 1..10 {
            table.expire(now + Duration::from_secs(seconds));
            let more = dialled(&mut table, 5000..6000, now + Duration::from_secs(seconds));
            assert_eq!(more.len(), 0, "after {seconds} s");
        }
        assert_eq!(table.expire(now + ANSWERED).len(), LEAST);
    }

    #[test]
    fn dials_that_nobody_answers_keep_none_of_the_living_from_being_held() {
        let (mut table, now) = (table(1024, Fail::Open), Instant::now());
        assert_eq!(dialled(&mut table, 0..100, now).len(), LEAST);
        table.expire(now + Duration::from_secs(3));
        assert_eq!(dialled(&mut table, 100..110, now + Duration::from_secs(3)).len(), 10);
        assert_eq!(table.len(), LEAST + 10);
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
            let (mut table, mut now, mut dials) = (table(limit, Fail::Open), Instant::now(), 0);
            for step in steps {
                match step {
                    Step::Syn(port) => {
                        let verdict = table.on_syn(pair(port), b"s", Room::Syn, now);
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
            table.expire(now + DIAL);
            prop_assert_eq!(table.len(), 0);
            prop_assert_eq!(table.window().taken(), 0);
        }
    }
}
