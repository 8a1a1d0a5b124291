use super::*;
use Direction::{ClientToServer, ServerToClient};
use proptest::prelude::*;
use std::collections::VecDeque;

fn open() -> Connection {
    let mut connection = Connection::new();
    connection.on(Event::Connected);
    connection.on(Event::Writable(Side::Client));
    connection
}

#[test]
fn nothing_is_read_before_the_server_leg_stands() {
    let mut connection = Connection::new();
    connection.on(Event::Readable(Side::Client));
    assert_eq!(connection.next(ClientToServer), Action::Wait);
    connection.on(Event::Connected);
    assert_eq!(connection.next(ClientToServer), Action::Read);
}

#[test]
fn a_refused_server_resets_the_client() {
    let mut connection = Connection::new();
    connection.on(Event::Failed(Side::Server));
    assert_eq!(connection.ending(), Some(Ending::Reset));
}

#[test]
fn a_fin_follows_the_last_byte_and_the_other_direction_goes_on() {
    let mut connection = open();
    connection.on(Event::Readable(Side::Client));
    connection.on(Event::Read(ClientToServer, 10));
    connection.on(Event::Written(ClientToServer, 4));
    connection.on(Event::WriteBlocked(ClientToServer));
    assert_eq!(connection.next(ClientToServer), Action::Wait);
    connection.on(Event::Writable(Side::Server));
    assert_eq!(connection.next(ClientToServer), Action::Write);
    connection.on(Event::Written(ClientToServer, 6));
    connection.on(Event::ReadEnded(ClientToServer));
    assert_eq!(connection.next(ClientToServer), Action::Finish);
    connection.on(Event::Finished(ClientToServer));
    assert_eq!((connection.next(ClientToServer), connection.ending()), (Action::Wait, None));
    connection.on(Event::Readable(Side::Server));
    assert_eq!(connection.next(ServerToClient), Action::Read);
    connection.on(Event::ReadEnded(ServerToClient));
    connection.on(Event::Finished(ServerToClient));
    assert_eq!(connection.ending(), Some(Ending::Close));
}

#[test]
fn a_reset_is_passed_on_after_what_was_acknowledged_before_it() {
    let mut connection = open();
    connection.on(Event::Read(ServerToClient, 5));
    connection.on(Event::Failed(Side::Server));
    assert_eq!((connection.next(ServerToClient), connection.ending()), (Action::Write, None));
    connection.on(Event::Written(ServerToClient, 5));
    assert_eq!(connection.next(ServerToClient), Action::Read);
    connection.on(Event::ReadEnded(ServerToClient));
    assert_eq!(connection.next(ServerToClient), Action::Wait, "a reset, not a FIN");
    assert_eq!(connection.ending(), Some(Ending::Settle(Side::Client)));
    connection.on(Event::Settled);
    assert_eq!(connection.ending(), Some(Ending::Reset));
}

#[test]
fn a_peer_that_does_not_read_cannot_hold_a_reset_for_ever() {
    let mut connection = open();
    connection.on(Event::Read(ClientToServer, 5));
    connection.on(Event::WriteBlocked(ClientToServer));
    connection.on(Event::Failed(Side::Client));
    assert_eq!((connection.next(ClientToServer), connection.ending()), (Action::Wait, None));
    connection.on(Event::Expired);
    assert_eq!(connection.ending(), Some(Ending::Reset));
}

/// One peer as the kernel shows it: bytes that have arrived, then perhaps the end or a reset; room to send.
#[derive(Default)]
struct Peer {
    to_read: VecDeque<u8>,
    sent_fin: bool,
    failed: bool,
    room_bytes: usize,
    got: Vec<u8>,
    got_fin: bool,
}

/// What the world does between the relay's turns.
#[derive(Debug, Clone)]
enum Step {
    Arrive(Side, Vec<u8>),
    Room(Side, usize),
    Fin(Side),
    Reset(Side),
    Spurious(Side),
    Turn,
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Server)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (side(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(s, b)| Step::Arrive(s, b)),
        6 => (side(), 1usize..60).prop_map(|(s, n)| Step::Room(s, n)),
        1 => side().prop_map(Step::Fin),
        1 => side().prop_map(Step::Reset),
        2 => side().prop_map(Step::Spurious),
        8 => Just(Step::Turn),
    ]
}

/// The shell in miniature, over two model peers.
struct World {
    logic: Connection,
    peers: [Peer; 2],
    held: [VecDeque<u8>; 2],
    sent: [Vec<u8>; 2],
    read_limit: usize,
    actions: usize,
}

impl World {
    fn new(read_limit: usize) -> World {
        let (peers, held, sent) = Default::default();
        World { logic: open(), peers, held, sent, read_limit, actions: 0 }
    }

    fn peer(&mut self, side: Side) -> &mut Peer {
        &mut self.peers[side as usize]
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Arrive(side, bytes) if !self.peer(side).sent_fin && !self.peer(side).failed => {
                self.sent[side as usize].extend(&bytes);
                self.peer(side).to_read.extend(bytes);
                self.logic.on(Event::Readable(side));
            }
            Step::Room(side, bytes) => {
                self.peer(side).room_bytes += bytes;
                self.logic.on(Event::Writable(side));
            }
            Step::Fin(side) if !self.peer(side).failed => {
                self.peer(side).sent_fin = true;
                self.logic.on(Event::Readable(side));
            }
            Step::Reset(side) if !self.peer(side).failed => {
                self.peer(side).failed = true;
                self.logic.on(Event::Failed(side));
            }
            Step::Spurious(side) => {
                self.logic.on(Event::Readable(side));
                self.logic.on(Event::Writable(side));
            }
            Step::Turn => self.turn(),
            _ => {}
        }
    }

    fn turn(&mut self) {
        for direction in Direction::BOTH {
            // Each action moves a byte at least, ends something, or makes the direction wait.
            let limit = self.peers.iter().map(|peer| peer.to_read.len()).sum::<usize>() * 2
                + self.held.iter().map(VecDeque::len).sum::<usize>()
                + 8;
            let before = self.actions;
            while self.act(direction) {
                assert!(self.actions - before <= limit, "the relay spins: {:?}", self.logic);
            }
        }
    }

    fn act(&mut self, direction: Direction) -> bool {
        let action = self.logic.next(direction);
        self.actions += 1;
        let event = match action {
            Action::Wait => return false,
            Action::Read => self.read(direction),
            Action::Write => self.write(direction),
            Action::Finish => self.finish(direction),
        };
        self.logic.on(event);
        true
    }

    fn read(&mut self, direction: Direction) -> Event {
        assert!(self.held[direction.index()].is_empty(), "a buffer is filled only when empty");
        let limit = self.read_limit;
        let peer = self.peer(direction.from());
        let bytes = limit.min(peer.to_read.len());
        match (bytes, peer.sent_fin || peer.failed) {
            (0, true) => Event::ReadEnded(direction),
            (0, false) => Event::ReadBlocked(direction),
            _ => {
                let taken: Vec<u8> = peer.to_read.drain(..bytes).collect();
                self.held[direction.index()].extend(taken);
                Event::Read(direction, bytes)
            }
        }
    }

    fn write(&mut self, direction: Direction) -> Event {
        let held = self.held[direction.index()].len();
        let to = direction.to();
        if self.peer(to).failed {
            return Event::Failed(to);
        }
        let bytes = held.min(self.peer(to).room_bytes);
        if bytes == 0 {
            return Event::WriteBlocked(direction);
        }
        let moved: Vec<u8> = self.held[direction.index()].drain(..bytes).collect();
        let peer = self.peer(to);
        assert!(!peer.got_fin, "bytes after the FIN");
        peer.room_bytes -= bytes;
        peer.got.extend(moved);
        Event::Written(direction, bytes)
    }

    fn finish(&mut self, direction: Direction) -> Event {
        assert!(self.peer(direction.from()).sent_fin, "a FIN nobody sent");
        assert!(self.held[direction.index()].is_empty(), "a FIN before the last byte");
        let all = self.sent[direction.from() as usize].len();
        let peer = self.peer(direction.to());
        assert_eq!(peer.got.len(), all, "a FIN before the last byte");
        peer.got_fin = true;
        Event::Finished(direction)
    }

    fn check_prefix(&mut self) {
        for direction in Direction::BOTH {
            let sent = self.sent[direction.from() as usize].clone();
            let got = &self.peer(direction.to()).got;
            assert_eq!(got, &sent[..got.len()], "bytes in are bytes out, in order");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn bytes_come_out_in_order_fin_last_and_the_relay_never_spins(
        steps in prop::collection::vec(step(), 1..120),
        read_limit in 1usize..50,
    ) {
        let mut world = World::new(read_limit);
        for step in steps {
            world.apply(step);
            world.check_prefix();
        }
    }

    #[test]
    fn when_both_peers_finish_and_read_every_byte_arrives_and_the_connection_closes(
        steps in prop::collection::vec(step(), 1..120),
        read_limit in 1usize..50,
    ) {
        let mut world = World::new(read_limit);
        for step in steps.into_iter().filter(|step| !matches!(step, Step::Reset(_))) {
            world.apply(step);
        }
        for side in [Side::Client, Side::Server] {
            world.apply(Step::Fin(side));
            world.apply(Step::Room(side, 1 << 20));
        }
        world.turn();
        world.check_prefix();
        prop_assert_eq!(world.logic.ending(), Some(Ending::Close));
        for side in [Side::Client, Side::Server] {
            prop_assert_eq!(world.peers[side.other() as usize].got.len(), world.sent[side as usize].len());
        }
    }

    #[test]
    fn a_reset_reaches_the_other_side_after_everything_that_was_sent_before_it(
        steps in prop::collection::vec(step(), 1..120),
        read_limit in 1usize..50,
        who in side(),
    ) {
        let mut world = World::new(read_limit);
        let calm = |step: &Step| !matches!(step, Step::Reset(_)) && !matches!(step, Step::Fin(s) if *s == who.other());
        for step in steps.into_iter().filter(calm) {
            world.apply(step);
        }
        world.apply(Step::Reset(who));
        world.apply(Step::Room(who.other(), 1 << 20));
        world.turn();
        world.check_prefix();
        prop_assert_eq!(world.logic.ending(), Some(Ending::Settle(who.other())));
        prop_assert_eq!(world.peers[who.other() as usize].got.len(), world.sent[who as usize].len());
        world.logic.on(Event::Settled);
        prop_assert_eq!(world.logic.ending(), Some(Ending::Reset));
    }
}
