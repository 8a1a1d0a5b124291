//! Stepping into a connection in mid-stream: what is known of both ends while their packets are led through the relay,
//! and when it is enough. Pure: packets and time are passed in.
//!
//! Every packet goes on to its end; what it carries is copied. What was forwarded before the first copy is under way
//! unseen, and must be acknowledged first, which takes a round trip. From then on the copies are all that is sent and
//! not acknowledged. With them two sockets can be made at the next packet that leaves no hole: one acknowledges to each
//! end what was copied, the other repeats it if it is lost.

use super::{
    handshake::{Agreement, Between, Reason, Standing},
    segment::Segment,
    table::Pair,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Longest time for which packets are led through the relay.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Copies of one connection at most.
pub const MOST_BYTES: usize = 16 << 20;
/// With fewer packets in that time a connection is quiet, rather than never at a good moment.
const FEW_PACKETS: usize = 64;
/// Pieces behind a hole at most: each takes some memory beside its bytes.
const MOST_APART: usize = 4096;

/// Bytes that copies of all connections may take.
#[derive(Debug)]
pub struct Pool {
    most: usize,
    used: AtomicUsize,
}

impl Pool {
    /// A pool of so many bytes.
    pub fn new(most: usize) -> Pool {
        Pool { most, used: AtomicUsize::new(0) }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// One connection has so many now, and had so many before; whether all have room.
    fn change(&self, before: usize, now: usize) -> bool {
        let change = now.wrapping_sub(before);
        self.used.fetch_add(change, Ordering::Relaxed).wrapping_add(change) <= self.most
    }
}

/// What a packet has come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not enough is known yet.
    Wait,
    /// Put sockets between the ends, when this packet has gone on.
    Adopt(Box<Between>),
    /// The connection stays end to end.
    Pass(Reason),
}

/// What one end has sent, as far as the other has not acknowledged it.
#[derive(Debug)]
struct Stream {
    /// The first sequence number that the other end has not acknowledged; none before it has said so.
    acknowledged: Option<u32>,
    /// The first one copied: what is before went by unseen.
    copied_from: u32,
    copies: VecDeque<u8>,
    /// Copies behind a hole, by their distance from `copied_from` when the stream began.
    apart: BTreeMap<u32, Vec<u8>>,
    /// Bytes of all of these: where they overlap, more than there are numbers.
    apart_bytes: usize,
    /// Where distances begin.
    begin: u32,
    /// Behind the last sequence number that any packet has named, also one without bytes.
    named: u32,
}

impl Stream {
    fn new(next: u32) -> Stream {
        let (copies, apart, apart_bytes) = Default::default();
        Stream { acknowledged: None, copied_from: next, copies, apart, apart_bytes, begin: next, named: next }
    }

    fn bytes(&self) -> usize {
        self.copies.len() + self.apart_bytes
    }

    fn next(&self) -> u32 {
        self.copied_from.wrapping_add(self.copies.len() as u32)
    }

    fn take(&mut self, sequence: u32, bytes: &[u8]) -> Result<(), Reason> {
        let end = sequence.wrapping_add(bytes.len() as u32);
        if end.wrapping_sub(self.named) as i32 > 0 {
            self.named = end;
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let ahead = sequence.wrapping_sub(self.next()) as i32;
        if ahead <= 0 {
            self.append(sequence, bytes);
            self.join();
        } else {
            self.put_apart(sequence.wrapping_sub(self.begin), bytes);
        }
        let is_much = ahead > MOST_BYTES as i32 || self.apart.len() > MOST_APART;
        if is_much { Err(Reason::Size) } else { Ok(()) }
    }

    /// Puts a piece aside. The longest of those that begin at one place has all that the others have.
    fn put_apart(&mut self, distance: u32, bytes: &[u8]) {
        let known = self.apart.get(&distance).map_or(0, Vec::len);
        if bytes.len() > known {
            self.apart.insert(distance, bytes.to_vec());
            self.apart_bytes += bytes.len() - known;
        }
    }

    /// What is new of bytes that begin no later than where the copies end.
    fn append(&mut self, sequence: u32, bytes: &[u8]) {
        let known = self.next().wrapping_sub(sequence) as usize;
        self.copies.extend(bytes.get(known..).unwrap_or_default());
    }

    /// Takes in what the hole kept apart, as far as it is closed.
    fn join(&mut self) {
        while let Some((distance, bytes)) = self.apart.pop_first() {
            let sequence = self.begin.wrapping_add(distance);
            if sequence.wrapping_sub(self.next()) as i32 > 0 {
                self.apart.insert(distance, bytes);
                return;
            }
            self.apart_bytes -= bytes.len();
            self.append(sequence, &bytes);
        }
    }

    /// The other end has everything before `sequence`.
    fn acknowledge(&mut self, sequence: u32) -> Result<(), Reason> {
        if sequence.wrapping_sub(self.next()) as i32 > 0 {
            // Of what has not gone by here.
            return Err(Reason::Unclear);
        }
        if self.acknowledged.is_some_and(|last| sequence.wrapping_sub(last) as i32 <= 0) {
            return Ok(());
        }
        self.acknowledged = Some(sequence);
        let known = sequence.wrapping_sub(self.copied_from) as i32;
        if known > 0 {
            self.copies.drain(..known as usize);
            self.copied_from = sequence;
        }
        Ok(())
    }

    /// Whether all that is sent and not acknowledged was copied.
    fn is_whole(&self) -> bool {
        let is_known = self.apart.is_empty() && self.named == self.next();
        is_known && self.acknowledged == Some(self.copied_from)
    }
}

/// What an end has said of itself.
#[derive(Debug, Clone, Copy)]
struct Said {
    /// Behind the last byte that it takes.
    window_end: u32,
    timestamp: Option<u32>,
}

/// A connection whose packets are led through the relay.
#[derive(Debug)]
pub struct InPath {
    pair: Pair,
    agreement: Agreement,
    /// What the client and what the server has sent.
    streams: [Stream; 2],
    said: [Option<Said>; 2],
    packets: usize,
    until: Instant,
    pool: Arc<Pool>,
    /// Bytes of the pool that it has.
    bytes: usize,
}

impl Drop for InPath {
    fn drop(&mut self) {
        self.pool.change(self.bytes, 0);
    }
}

impl InPath {
    /// A client and a server, whose bytes before these sequence numbers may have gone by unseen.
    pub fn new(pair: Pair, agreement: Agreement, next: [u32; 2], now: Instant, pool: &Arc<Pool>) -> InPath {
        let (streams, said, packets, bytes) = (next.map(Stream::new), [None; 2], 0, 0);
        let (until, pool) = (now + PATIENCE, Arc::clone(pool));
        InPath { pair, agreement, streams, said, packets, until, pool, bytes }
    }

    /// Whether it has taken too long.
    pub fn is_late(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Whether hardly any packets came: it may be another time when more do.
    pub fn is_quiet(&self) -> bool {
        self.packets < FEW_PACKETS
    }

    /// A packet of either end's, which goes on whatever comes of it.
    pub fn on_packet(&mut self, segment: &Segment<'_>) -> Verdict {
        self.packets += 1;
        // Its end drops it.
        if segment.is_intact() { self.follow(segment) } else { Verdict::Wait }
    }

    /// Takes in a packet that its end will accept.
    pub fn follow(&mut self, segment: &Segment<'_>) -> Verdict {
        match self.take(segment) {
            Ok(()) => self.between().map_or(Verdict::Wait, |between| Verdict::Adopt(Box::new(between))),
            Err(reason) => Verdict::Pass(reason),
        }
    }

    fn take(&mut self, segment: &Segment<'_>) -> Result<(), Reason> {
        let flags = segment.flags;
        let problems = [
            (flags.is_reset(), Reason::Reset),
            (flags.begins(), Reason::Unclear),
            (flags.is_finish(), Reason::Closing),
            (flags.is_urgent(), Reason::Urgent),
            (!flags.is_ack(), Reason::Unclear),
        ];
        problems.iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, reason)| Err(*reason))?;
        self.agreement.check(segment)?;
        let from = usize::from((segment.from, segment.to) != self.pair);
        self.streams[from].take(segment.sequence, segment.payload())?;
        self.streams[1 - from].acknowledge(segment.acknowledged)?;
        self.hear(from, segment);
        self.count()
    }

    /// Whether what was copied is not too much.
    fn count(&mut self) -> Result<(), Reason> {
        let before = std::mem::replace(&mut self.bytes, self.streams.iter().map(Stream::bytes).sum());
        let has_room = self.pool.change(before, self.bytes);
        match (self.bytes <= MOST_BYTES, has_room) {
            (false, _) => Err(Reason::Size),
            (true, false) => Err(Reason::Full),
            (true, true) => Ok(()),
        }
    }

    /// Both only ever grow: a packet that was overtaken says less.
    fn hear(&mut self, from: usize, segment: &Segment<'_>) {
        let window_bytes = u32::from(segment.window) << self.agreement.scales[from];
        let window_end = segment.acknowledged.wrapping_add(window_bytes);
        let later = |one: u32, other: u32| if one.wrapping_sub(other) as i32 > 0 { one } else { other };
        self.said[from] = Some(match self.said[from] {
            None => Said { window_end, timestamp: segment.options.timestamp },
            Some(last) => Said {
                window_end: later(window_end, last.window_end),
                timestamp: segment.options.timestamp.zip(last.timestamp).map(|(now, last)| later(now, last)),
            },
        });
    }

    fn between(&self) -> Option<Between> {
        if !self.streams.iter().all(Stream::is_whole) {
            return None;
        }
        let [client, server] = &self.streams;
        let windows = [(0, server), (1, client)].map(|(index, other): (usize, &Stream)| {
            let said: Said = self.said[index]?;
            let window_bytes = said.window_end.wrapping_sub(other.copied_from);
            // An end that takes nothing will say when it does.
            (window_bytes > 0).then_some((window_bytes, said.timestamp))
        });
        let standing = |stream: &Stream, (window_bytes, timestamp)| Standing {
            first_unacknowledged: stream.copied_from,
            unacknowledged: stream.copies.iter().copied().collect(),
            window_bytes,
            timestamp,
        };
        let standings = [standing(client, windows[0]?), standing(server, windows[1]?)];
        Some(self.agreement.between(self.pair, standings))
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::LegState;
    use super::super::segment::tests::{ACK, FIN, RST, SYN, URG, pairs, segment};
    use super::*;
    use proptest::prelude::*;

    const AGREED: Agreement =
        Agreement { mss_bytes: [1460; 2], scales: [7, 9], sack: true, timestamps: false };

    struct World {
        pair: Pair,
        path: InPath,
    }

    impl World {
        fn new(next: [u32; 2]) -> World {
            World::of(next, &Arc::new(Pool::new(usize::MAX)))
        }

        fn of(next: [u32; 2], pool: &Arc<Pool>) -> World {
            let pair = pairs()[0];
            World { pair, path: InPath::new(pair, AGREED, next, Instant::now(), pool) }
        }

        fn client(&mut self, numbers: (u32, u32), bytes: &[u8]) -> Verdict {
            self.packet(false, ACK, numbers, bytes)
        }

        fn server(&mut self, numbers: (u32, u32), bytes: &[u8]) -> Verdict {
            self.packet(true, ACK, numbers, bytes)
        }

        fn packet(&mut self, is_server: bool, flags: u8, numbers: (u32, u32), bytes: &[u8]) -> Verdict {
            let pair = if is_server { (self.pair.1, self.pair.0) } else { self.pair };
            self.path.on_packet(&Segment::parse(&segment(pair, flags, numbers, 100, &[], bytes)).unwrap())
        }
    }

    fn adopted(verdict: Verdict) -> Between {
        match verdict {
            Verdict::Adopt(between) => *between,
            other => panic!("not adopted: {other:?}"),
        }
    }

    #[test]
    fn an_idle_connection_is_taken_when_both_ends_were_heard() {
        let mut world = World::new([10, 20]);
        assert_eq!(world.client((10, 20), b""), Verdict::Wait);
        let found = adopted(world.server((20, 10), b""));
        assert_eq!((found.to_server.send_next, found.to_server.receive_next), (10, 20));
        assert_eq!(
            (found.to_server.peer_window_bytes, found.to_server.told_window_bytes),
            (100 << 9, 100 << 7)
        );
        assert_eq!(found.to_client.unacknowledged, b"");
    }

    #[test]
    fn what_went_by_unseen_must_be_acknowledged_and_what_was_copied_need_not() {
        let mut world = World::new([u32::MAX - 1, 20]);
        assert_eq!(world.server((20, u32::MAX - 4), b""), Verdict::Wait, "three bytes are under way");
        assert_eq!(world.client((u32::MAX - 1, 20), b"abc"), Verdict::Wait);
        assert_eq!(world.client((1, 20), b"de"), Verdict::Wait);
        let found = adopted(world.server((20, u32::MAX), b""));
        let LegState { send_next, unacknowledged, .. } = found.to_server.clone();
        assert_eq!((send_next, unacknowledged), (u32::MAX, b"bcde".to_vec()));
        assert_eq!((found.to_client.receive_next, found.to_client.window_told_at), (3, u32::MAX));
        assert_eq!(found.to_client.told_window_bytes, 100 << 9, "from what the server has acknowledged on");
    }

    #[test]
    fn a_hole_is_waited_for_and_what_was_sent_again_counts_once() {
        let mut world = World::new([10, 20]);
        assert_eq!(world.server((20, 10), b""), Verdict::Wait);
        assert_eq!(world.client((13, 20), b"def"), Verdict::Wait, "'abc' is lost");
        assert_eq!(world.client((14, 20), b"ef"), Verdict::Wait);
        let found = adopted(world.client((8, 20), b"xyabcde"));
        assert_eq!(found.to_server.unacknowledged, b"abcdef");
        let mut world = World::new([10, 20]);
        assert_eq!(world.server((20, 10), b""), Verdict::Wait);
        assert_eq!(world.client((13, 20), b""), Verdict::Wait, "three bytes went by, or will come");
        assert_eq!(adopted(world.client((10, 20), b"abc")).to_server.unacknowledged, b"abc");
    }

    #[test]
    fn an_end_that_takes_nothing_is_waited_for() {
        let mut world = World::new([10, 20]);
        assert_eq!(world.client((10, 20), b""), Verdict::Wait);
        let pair = (world.pair.1, world.pair.0);
        let closed = segment(pair, ACK, (20, 10), 0, &[], b"");
        assert_eq!(world.path.on_packet(&Segment::parse(&closed).unwrap()), Verdict::Wait);
        adopted(world.server((20, 10), b""));
    }

    #[test]
    fn what_cannot_be_followed_stays_end_to_end() {
        let told = |flags, numbers, bytes: &[u8]| World::new([10, 20]).packet(false, flags, numbers, bytes);
        assert_eq!(told(RST, (10, 0), b""), Verdict::Pass(Reason::Reset));
        assert_eq!(told(ACK | FIN, (10, 20), b""), Verdict::Pass(Reason::Closing));
        assert_eq!(told(ACK | URG, (10, 20), b"x"), Verdict::Pass(Reason::Urgent));
        assert_eq!(told(SYN, (10, 20), b""), Verdict::Pass(Reason::Unclear));
        assert_eq!(told(0, (10, 20), b"x"), Verdict::Pass(Reason::Unclear));
        assert_eq!(told(ACK, (10, 21), b""), Verdict::Pass(Reason::Unclear), "nothing was seen of that byte");
        assert_eq!(told(ACK, (10 + (1 << 30), 20), b"x"), Verdict::Pass(Reason::Size));
        let stamped = segment(pairs()[0], ACK, (10, 20), 1, &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], b"");
        let mut world = World::new([10, 20]);
        let verdict = world.path.on_packet(&Segment::parse(&stamped).unwrap());
        assert_eq!(verdict, Verdict::Pass(Reason::Unclear), "no timestamps were agreed on");
    }

    #[test]
    fn overlapping_pieces_behind_a_hole_are_bounded_by_their_bytes() {
        let (pool, piece) = (Arc::new(Pool::new(usize::MAX)), vec![7; 50_000]);
        let mut world = World::of([10, 20], &pool);
        let mut count = 0;
        let reason = loop {
            // Each begins one byte further: all of them have the same bytes but for one.
            match world.client((12 + count, 20), &piece) {
                Verdict::Wait => count += 1,
                Verdict::Pass(reason) => break reason,
                Verdict::Adopt(_) => panic!("there is a hole"),
            }
        };
        assert_eq!((reason, count as usize), (Reason::Size, MOST_BYTES / piece.len()));
        assert_eq!(world.client((12, 20), &piece), Verdict::Pass(Reason::Size), "known bytes count once");
        drop(world);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn copies_of_both_directions_and_of_all_connections_are_bounded() {
        let (pool, piece) = (Arc::new(Pool::new(150_000)), vec![7; 50_000]);
        let [mut one, mut other] = [0; 2].map(|_| World::of([10, 20], &pool));
        assert_eq!(one.client((10, 20), &piece), Verdict::Wait);
        assert_eq!(one.server((20, 0), &piece), Verdict::Wait);
        assert_eq!(other.client((10, 20), &piece), Verdict::Wait);
        assert_eq!(pool.used(), 150_000);
        assert_eq!(other.server((25, 0), b"x"), Verdict::Pass(Reason::Full));
        drop(other);
        // What is acknowledged makes room.
        adopted(one.server((50_020, 50_010), b""));
        assert_eq!(pool.used(), 50_000);
    }

    #[test]
    fn a_packet_with_a_wrong_byte_is_not_copied() {
        let mut world = World::new([10, 20]);
        assert_eq!(world.server((20, 10), b""), Verdict::Wait);
        let mut packet = segment(world.pair, ACK, (10, 20), 100, &[], b"abc");
        *packet.last_mut().unwrap() ^= 1;
        assert_eq!(world.path.on_packet(&Segment::parse(&packet).unwrap()), Verdict::Wait);
        assert_eq!(adopted(world.client((10, 20), b"abc")).to_server.unacknowledged, b"abc");
    }

    #[test]
    fn it_does_not_take_for_ever() {
        let (now, mut world) = (Instant::now(), World::new([10, 20]));
        world.path.until = now + PATIENCE;
        assert!(!world.path.is_late(now) && world.path.is_late(now + PATIENCE));
        (1..FEW_PACKETS).for_each(|_| assert_eq!(world.client((9, 20), b""), Verdict::Wait));
        assert!(world.path.is_quiet());
        assert_eq!(world.client((9, 20), b""), Verdict::Wait);
        assert!(!world.path.is_quiet());
    }

    /// Bytes of a stream by their place.
    fn byte(sequence: u32) -> u8 {
        (sequence.wrapping_mul(31) >> 3) as u8
    }

    fn stream(from: u32, bytes: u32) -> Vec<u8> {
        (0..bytes).map(|at| byte(from.wrapping_add(at))).collect()
    }

    #[derive(Debug, Clone)]
    struct Sent {
        is_server: bool,
        /// Where it begins, from what its end had sent before.
        back: u32,
        bytes: u32,
        /// How much of what the other has sent it does not acknowledge.
        lag: u32,
        is_lost: bool,
    }

    fn sent() -> impl Strategy<Value = Sent> {
        (any::<bool>(), 0u32..40, 0u32..60, 0u32..80, prop::bool::weighted(0.1))
            .prop_map(|(is_server, back, bytes, lag, is_lost)| Sent { is_server, back, bytes, lag, is_lost })
    }

    proptest! {
        /// Ends that repeat, lose and lag: whenever sockets are made, they have exactly what is not acknowledged.
        #[test]
        fn whatever_goes_by_the_sockets_hold_what_is_not_acknowledged(
            first in any::<[u32; 2]>(), under_way in prop::array::uniform2(0u32..50),
            packets in prop::collection::vec(sent(), 1..60),
        ) {
            let mut next = [0, 1].map(|index: usize| first[index].wrapping_add(under_way[index]));
            let mut acknowledged = first;
            let mut world = World::new(next);
            for Sent { is_server, back, bytes, lag, is_lost } in packets {
                let (own, other) = (usize::from(is_server), usize::from(!is_server));
                let begin = next[own].wrapping_sub(back.min(next[own].wrapping_sub(first[own])));
                let end = begin.wrapping_add(bytes);
                if end.wrapping_sub(next[own]) as i32 > 0 {
                    next[own] = end;
                }
                let reach = next[other].wrapping_sub(acknowledged[other]);
                if is_lost {
                    continue;
                }
                // An end acknowledges what went by here without a hole, for it came this way.
                let known = world.path.streams[other].next().wrapping_sub(acknowledged[other]).min(reach);
                acknowledged[other] = acknowledged[other].wrapping_add(known.saturating_sub(lag));
                let numbers = (begin, acknowledged[other]);
                match world.packet(is_server, ACK, numbers, &stream(begin, bytes)) {
                    Verdict::Wait => {}
                    Verdict::Pass(reason) => prop_assert!(false, "{reason:?}"),
                    Verdict::Adopt(between) => {
                        for (leg, own) in [(&between.to_server, 0), (&between.to_client, 1)] {
                            prop_assert_eq!(leg.send_next, acknowledged[own]);
                            let bytes = leg.unacknowledged.len() as u32;
                            prop_assert_eq!(&leg.unacknowledged, &stream(leg.send_next, bytes));
                        }
                        prop_assert_eq!(between.to_client.receive_next,
                            between.to_server.send_next.wrapping_add(between.to_server.unacknowledged.len() as u32));
                    }
                }
            }
        }
    }
}
