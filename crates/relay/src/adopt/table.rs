//! Handshakes between ends that are watched from their SYN on. Pure: packets and time are passed in.

use super::{
    handshake::{Between, Offer, Reason},
    segment::Segment,
};
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// A client and its server.
pub type Pair = (SocketAddr, SocketAddr);

/// How long a handshake is remembered: a SYN is sent again after 1, 3, 7, 15 and 31 s.
pub const LIFE: Duration = Duration::from_secs(60);
/// How long packets that were under way when their connection was taken may still come.
const STRAGGLERS: Duration = Duration::from_secs(5);
/// Handshakes at a time; the oldest is forgotten for one more.
pub const MOST: usize = 1 << 16;

/// What is to be done with a packet that was held.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Put sockets between the ends; the index of the rule that carries the connection.
    Insert(Box<Between>, usize),
    /// The connection has been taken already: give the packet to the socket.
    Taken,
    /// Let it go on, and all that follow it.
    Pass(Reason),
    /// Let it go on: its connection has been let go already.
    Passed,
}

#[derive(Debug)]
enum Stage {
    /// The client's SYN was seen.
    Opened(Offer),
    /// The server's SYN-ACK was seen, too.
    Answered(Offer, Offer),
    /// The relay has it.
    Taken,
    /// The connection stays end to end: the client's first sequence number.
    Passed(u32),
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    rule: usize,
    until: Instant,
}

/// Handshakes under way.
#[derive(Debug, Default)]
pub struct Handshakes {
    entries: HashMap<Pair, Entry>,
    /// Deadlines as they were set; what was set anew since is skipped.
    deadlines: VecDeque<(Instant, Pair)>,
}

impl Handshakes {
    /// A copy of a SYN or SYN-ACK that went by. The rule is known by the SYN alone.
    pub fn on_copy(&mut self, segment: &Segment<'_>, rule: Option<usize>, now: Instant) {
        self.expire(now);
        match rule {
            Some(rule) if segment.flags.is_syn() => self.on_syn(segment, rule, now),
            _ if segment.flags.is_syn_ack() => self.on_answer(segment),
            _ => {}
        }
    }

    /// A SYN begins anew whatever was there, unless it is the same one again.
    fn on_syn(&mut self, segment: &Segment<'_>, rule: usize, now: Instant) {
        let (pair, offer) = ((segment.from, segment.to), Offer::of(segment));
        let known = self.entries.get(&pair).and_then(|entry| match entry.stage {
            Stage::Answered(syn, _) => Some(syn.first),
            Stage::Passed(first) => Some(first),
            Stage::Opened(_) | Stage::Taken => None,
        });
        if known == Some(offer.first) {
            return;
        }
        if self.entries.len() >= MOST {
            self.forget_oldest();
        }
        self.set(pair, Entry { stage: Stage::Opened(offer), rule, until: now + LIFE });
    }

    /// An answer belongs to the SYN that it acknowledges. One that is sent again says the same.
    fn on_answer(&mut self, segment: &Segment<'_>) {
        let Some(entry) = self.entries.get_mut(&(segment.to, segment.from)) else { return };
        let (Stage::Opened(syn) | Stage::Answered(syn, _)) = &entry.stage else { return };
        if segment.acknowledged == syn.first.wrapping_add(1).wrapping_add(syn.payload_bytes as u32) {
            entry.stage = Stage::Answered(*syn, Offer::of(segment));
        }
    }

    /// A packet of a client's that was held after its server had answered.
    pub fn on_held(&mut self, segment: &Segment<'_>, now: Instant) -> Verdict {
        self.expire(now);
        let pair = (segment.from, segment.to);
        if let Some(verdict) = self.on_servers(segment, now) {
            return verdict;
        }
        let verdict = match self.entries.get(&pair).filter(|entry| entry.until > now) {
            Some(Entry { stage: Stage::Taken, .. }) => return Verdict::Taken,
            Some(Entry { stage: Stage::Passed(_), .. }) => return Verdict::Passed,
            Some(Entry { stage: Stage::Answered(syn, answer), rule, .. }) => {
                match Between::after_handshake(syn, answer, segment) {
                    Ok(between) => Verdict::Insert(Box::new(between), *rule),
                    Err(reason) => Verdict::Pass(reason),
                }
            }
            Some(Entry { stage: Stage::Opened(_), .. }) => Verdict::Pass(Reason::Unseen),
            None => {
                self.note_unseen(pair, segment.sequence.wrapping_sub(1), now);
                return Verdict::Pass(Reason::Unseen);
            }
        };
        if matches!(verdict, Verdict::Pass(_)) {
            self.passed(pair);
        }
        verdict
    }

    /// The first fragment of what was held. The kernel has put its packet together, and cut it again on its way here:
    /// nothing can be read off it, so its connection passes, if it was not decided about.
    pub fn on_fragment(&mut self, first: &Segment<'_>, now: Instant) -> Option<Verdict> {
        let pair = (first.from, first.to);
        if let Some(verdict) = self.on_servers(first, now) {
            return Some(verdict);
        }
        match self.entries.get(&pair).filter(|entry| entry.until > now)?.stage {
            Stage::Taken => Some(Verdict::Taken),
            Stage::Passed(_) => Some(Verdict::Passed),
            Stage::Answered(..) | Stage::Opened(_) => {
                self.passed(pair);
                Some(Verdict::Pass(Reason::Unclear))
            }
        }
    }

    /// A server's packet, which is led here when its connection is decided about.
    fn on_servers(&self, segment: &Segment<'_>, now: Instant) -> Option<Verdict> {
        let entry = self.entries.get(&(segment.to, segment.from)).filter(|entry| entry.until > now)?;
        match entry.stage {
            Stage::Taken => Some(Verdict::Taken),
            Stage::Passed(_) => Some(Verdict::Passed),
            Stage::Opened(_) | Stage::Answered(..) => None,
        }
    }

    /// Notes a SYN that was not seen, so that what was held behind it is known to belong to it.
    fn note_unseen(&mut self, pair: Pair, first: u32, now: Instant) {
        if self.entries.len() >= MOST {
            self.forget_oldest();
        }
        self.set(pair, Entry { stage: Stage::Passed(first), rule: 0, until: now + STRAGGLERS });
    }

    /// The relay has it now: what still comes of it is the socket's.
    pub fn taken(&mut self, pair: Pair, now: Instant) {
        let rule = self.entries.get(&pair).map_or(0, |entry| entry.rule);
        self.set(pair, Entry { stage: Stage::Taken, rule, until: now + STRAGGLERS });
    }

    /// Leaves a connection end to end for good: nobody sees what follows.
    pub fn passed(&mut self, pair: Pair) {
        if let Some(entry) = self.entries.get_mut(&pair)
            && let Stage::Opened(syn) | Stage::Answered(syn, _) = entry.stage
        {
            entry.stage = Stage::Passed(syn.first);
        }
    }

    /// Forgets handshakes under way: rules do not hold what follows any more, so what was held before may be overtaken.
    pub fn forget_open(&mut self) {
        self.entries.retain(|_, entry| matches!(entry.stage, Stage::Taken | Stage::Passed(_)));
    }

    /// Handshakes remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn set(&mut self, pair: Pair, entry: Entry) {
        self.deadlines.push_back((entry.until, pair));
        self.entries.insert(pair, entry);
        self.tidy_deadlines();
    }

    /// Deadlines of what is gone already are dropped before they outnumber the rest.
    fn tidy_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.entries.len() + 1024 {
            let entries = &self.entries;
            self.deadlines
                .retain(|(until, pair)| entries.get(pair).is_some_and(|entry| entry.until == *until));
        }
    }

    /// The two kinds of deadlines are not in one order: a short one behind a long one waits for it, which costs memory
    /// and no more, as what is looked up is checked against its own.
    fn expire(&mut self, now: Instant) {
        while let Some((until, pair)) = self.deadlines.front().copied().filter(|(until, _)| *until <= now) {
            self.deadlines.pop_front();
            if self.entries.get(&pair).is_some_and(|entry| entry.until == until) {
                self.entries.remove(&pair);
            }
        }
    }

    fn forget_oldest(&mut self) {
        while let Some((until, pair)) = self.deadlines.pop_front() {
            if self.entries.get(&pair).is_some_and(|entry| entry.until == until) {
                self.entries.remove(&pair);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::tests::{ACK, SYN, pairs, segment};
    use super::*;

    struct World {
        table: Handshakes,
        pair: Pair,
        now: Instant,
    }

    impl World {
        fn new() -> World {
            World { table: Handshakes::default(), pair: pairs()[0], now: Instant::now() }
        }

        fn copy(&mut self, packet: &[u8], rule: Option<usize>) {
            self.table.on_copy(&Segment::parse(packet).unwrap(), rule, self.now);
        }

        fn syn(&mut self, first: u32) {
            self.copy(&segment(self.pair, SYN, (first, 0), 9, &[], b""), Some(3));
        }

        fn answer(&mut self, first: u32, acknowledged: u32) {
            let back = (self.pair.1, self.pair.0);
            self.copy(&segment(back, SYN | ACK, (first, acknowledged), 9, &[], b""), None);
        }

        fn held(&mut self, sequence: u32, acknowledged: u32) -> Verdict {
            let packet = segment(self.pair, ACK, (sequence, acknowledged), 9, &[], b"");
            self.table.on_held(&Segment::parse(&packet).unwrap(), self.now)
        }
    }

    #[test]
    fn a_handshake_seen_whole_is_taken_once_and_stragglers_are_the_sockets() {
        let mut world = World::new();
        world.syn(10);
        world.answer(20, 11);
        let Verdict::Insert(found, 3) = world.held(11, 21) else { panic!("it was seen whole") };
        assert_eq!((found.to_server.send_next, found.to_client.send_next), (11, 21));
        world.table.taken(world.pair, world.now);
        assert_eq!(world.held(11, 21), Verdict::Taken);
        world.now += STRAGGLERS;
        assert_eq!(world.held(11, 21), Verdict::Pass(Reason::Unseen));
        world.now += LIFE;
        world.answer(20, 11);
        assert!(world.table.is_empty());
    }

    #[test]
    fn a_connection_whose_packets_come_cut_passes_unless_it_was_taken() {
        let mut world = World::new();
        let mut packet = segment(world.pair, ACK, (11, 21), 9, &[], b"");
        packet[6] = 0x20;
        let cut = |world: &mut World| {
            let first = Segment::parse_beginning(&packet).unwrap();
            world.table.on_fragment(&first, world.now)
        };
        assert_eq!(cut(&mut world), None);
        world.syn(10);
        world.answer(20, 11);
        assert_eq!(cut(&mut world), Some(Verdict::Pass(Reason::Unclear)));
        assert_eq!(cut(&mut world), Some(Verdict::Passed));
        world.table.taken(world.pair, world.now);
        assert_eq!(cut(&mut world), Some(Verdict::Taken));
    }

    /// Rules that were exchanged hold nothing of it: what was held before may have been overtaken.
    #[test]
    fn handshakes_from_before_the_rules_are_forgotten_and_what_was_taken_is_not() {
        let mut world = World::new();
        world.syn(10);
        world.answer(20, 11);
        world.table.forget_open();
        assert_eq!(world.held(11, 21), Verdict::Pass(Reason::Unseen));
        assert_eq!(world.held(12, 21), Verdict::Passed);
        world.table.taken(world.pair, world.now);
        world.table.forget_open();
        assert_eq!(world.held(11, 21), Verdict::Taken);
    }

    #[test]
    fn packets_of_a_server_go_the_way_of_its_connection() {
        let mut world = World::new();
        let back = segment((world.pair.1, world.pair.0), ACK, (21, 11), 9, &[], b"");
        let server = |world: &mut World| world.table.on_held(&Segment::parse(&back).unwrap(), world.now);
        world.syn(10);
        world.answer(20, 11);
        assert!(matches!(world.held(11, 21), Verdict::Insert(..)));
        world.table.taken(world.pair, world.now);
        assert_eq!(server(&mut world), Verdict::Taken);
        world.syn(10);
        world.answer(20, 11);
        world.table.passed(world.pair);
        assert_eq!(server(&mut world), Verdict::Passed);
        world.now += LIFE;
        assert_eq!(server(&mut world), Verdict::Pass(Reason::Unseen));
    }

    #[test]
    fn what_was_not_seen_or_does_not_fit_passes_for_good() {
        let mut world = World::new();
        assert_eq!(world.held(1, 21), Verdict::Pass(Reason::Unseen));
        assert_eq!(world.held(2, 21), Verdict::Passed, "what is behind it is of the same connection");
        world.syn(10);
        assert_eq!(world.held(11, 21), Verdict::Pass(Reason::Unseen), "no answer was seen");
        world.syn(30);
        world.answer(20, 32);
        assert_eq!(world.held(31, 21), Verdict::Pass(Reason::Unseen), "it answers another SYN");
        world.syn(50);
        world.answer(20, 51);
        assert_eq!(world.held(52, 21), Verdict::Pass(Reason::Unclear));
        world.syn(50);
        world.answer(20, 51);
        assert_eq!(world.held(51, 21), Verdict::Passed, "what passed once passes");
    }

    #[test]
    fn a_syn_of_another_number_begins_anew_and_the_same_one_does_not() {
        let mut world = World::new();
        world.syn(10);
        world.answer(20, 11);
        world.syn(10);
        assert!(matches!(world.held(11, 21), Verdict::Insert(..)), "it was sent again");
        world.syn(50);
        assert_eq!(world.held(11, 21), Verdict::Pass(Reason::Unseen));
        world.syn(80);
        world.answer(60, 81);
        world.answer(70, 81);
        assert!(matches!(world.held(81, 71), Verdict::Insert(..)), "the server's later answer counts");
    }

    #[test]
    fn a_new_syn_of_a_pair_that_was_taken_is_a_new_connection() {
        let mut world = World::new();
        world.table.taken(world.pair, world.now);
        world.syn(10);
        world.answer(20, 11);
        assert!(matches!(world.held(11, 21), Verdict::Insert(..)));
    }

    #[test]
    fn handshakes_are_forgotten_in_time_and_never_more_than_so_many() {
        let mut world = World::new();
        world.syn(10);
        world.now += LIFE;
        world.answer(20, 11);
        assert!(world.table.is_empty());
        for port in 0..=u16::MAX {
            world.pair.0.set_port(port);
            world.syn(1);
        }
        let (client, server) = world.pair;
        world.pair = (client, SocketAddr::new(server.ip(), server.port() + 1));
        world.syn(1);
        assert_eq!(world.table.len(), MOST);
        world.pair = (SocketAddr::new(client.ip(), 0), server);
        world.answer(20, 2);
        assert_eq!(world.held(2, 21), Verdict::Pass(Reason::Unseen), "the oldest was forgotten");
    }
}
