//! A world for the connection logic: the shell in miniature over two model peers, stepped by hand, that checks every
//! promise as it goes. Property tests and the fuzz target drive it (so it uses the public API only).

use super::{Action, Connection, Direction, Event, Side};
use std::collections::VecDeque;

/// One peer as the kernel shows it: bytes that have arrived, then perhaps the end or a reset; room to send.
#[derive(Default)]
pub struct Peer {
    to_read: VecDeque<u8>,
    sent_fin: bool,
    failed: bool,
    room_bytes: usize,
    pub got: Vec<u8>,
    pub got_fin: bool,
}

/// What the world does between the relay's turns.
#[derive(Debug, Clone)]
pub enum Step {
    Arrive(Side, Vec<u8>),
    Room(Side, usize),
    Fin(Side),
    Reset(Side),
    Spurious(Side),
    Turn,
}

/// The shell in miniature, over two model peers.
pub struct World {
    pub logic: Connection,
    pub peers: [Peer; 2],
    held: [VecDeque<u8>; 2],
    pub sent: [Vec<u8>; 2],
    read_limit: usize,
    actions: usize,
}

impl World {
    pub fn new(read_limit: usize) -> World {
        let (peers, held, sent) = Default::default();
        let mut logic = Connection::new();
        logic.on(Event::Connected);
        logic.on(Event::Writable(Side::Client));
        World { logic, peers, held, sent, read_limit, actions: 0 }
    }

    fn peer(&mut self, side: Side) -> &mut Peer {
        &mut self.peers[side as usize]
    }

    pub fn apply(&mut self, step: Step) {
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

    pub fn turn(&mut self) {
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

    pub fn check_prefix(&mut self) {
        for direction in Direction::BOTH {
            let sent = self.sent[direction.from() as usize].clone();
            let got = &self.peer(direction.to()).got;
            assert_eq!(got, &sent[..got.len()], "bytes in are bytes out, in order");
        }
    }
}
