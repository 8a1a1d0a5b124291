//! A world for the connection logic: the shell in miniature over two model peers, stepped by hand, that checks every
//! promise as it goes. Property tests and the fuzz target drive it (so it uses the public API only).

use super::{Action, Connection, Direction, Event, Side};
use std::collections::VecDeque;

/// A byte of a stream, urgent or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Byte {
    value: u8,
    is_urgent: bool,
}

/// One peer as the kernel shows it: bytes that have arrived, then perhaps the end or a reset; room to send.
#[derive(Default)]
pub struct Peer {
    to_read: VecDeque<Byte>,
    pub sent_fin: bool,
    pub failed: bool,
    /// The relay has been told that it has.
    told: bool,
    /// By a writing, which does not say that a FIN had come.
    pub told_by_writing: bool,
    room_bytes: usize,
    pub got: Vec<Byte>,
    pub got_fin: bool,
}

/// What the world does between the relay's turns.
#[derive(Debug, Clone)]
pub enum Step {
    Arrive(Side, Vec<u8>),
    /// One urgent byte arrives.
    Urge(Side, u8),
    Room(Side, usize),
    Fin(Side),
    Reset(Side),
    /// A side is reset, of which no event tells yet: whoever writes finds out.
    ResetUntold(Side),
    /// The server answers.
    Connect,
    Spurious(Side),
    Turn,
}

/// The shell in miniature, over two model peers.
pub struct World {
    pub logic: Connection,
    pub peers: [Peer; 2],
    held: [VecDeque<Byte>; 2],
    pub sent: [Vec<Byte>; 2],
    read_limit: usize,
    /// Whether the server has answered.
    connected: bool,
    actions: usize,
}

impl World {
    pub fn new(read_limit: usize) -> World {
        let mut world = World::connecting(read_limit);
        world.apply(Step::Connect);
        world.logic.on(Event::Writable(Side::Client));
        world
    }

    /// A world whose server has not answered yet: it sends nothing until then, and its reset is a refusal.
    pub fn connecting(read_limit: usize) -> World {
        let (peers, held, sent) = Default::default();
        World { logic: Connection::new(), peers, held, sent, read_limit, connected: false, actions: 0 }
    }

    fn peer(&mut self, side: Side) -> &mut Peer {
        &mut self.peers[side as usize]
    }

    pub fn apply(&mut self, step: Step) {
        match step {
            Step::Arrive(Side::Server, _) | Step::Urge(Side::Server, _) | Step::Fin(Side::Server)
                if !self.connected => {}
            Step::Arrive(side, bytes) => {
                self.arrive(side, bytes.into_iter().map(|value| Byte { value, is_urgent: false }));
            }
            Step::Urge(side, value) => self.arrive(side, std::iter::once(Byte { value, is_urgent: true })),
            Step::Room(side, bytes) => {
                self.peer(side).room_bytes += bytes;
                self.logic.on(Event::Writable(side));
            }
            Step::Fin(side) if !self.peer(side).failed => {
                self.peer(side).sent_fin = true;
                self.logic.on(Event::Readable(side));
            }
            Step::ResetUntold(side) => self.peer(side).failed |= self.connected,
            Step::Reset(side) if !self.peer(side).told => {
                (self.peer(side).failed, self.peer(side).told) = (true, true);
                if self.peer(side).sent_fin {
                    self.logic.on(Event::FinishedBefore(side));
                }
                self.logic.on(Event::Failed(side));
            }
            Step::Spurious(side) => {
                self.logic.on(Event::Readable(side));
                self.logic.on(Event::Writable(side));
            }
            Step::Connect if !self.connected && !self.peer(Side::Server).failed => {
                self.connected = true;
                self.logic.on(Event::Connected);
            }
            Step::Turn => self.turn(),
            _ => {}
        }
    }

    fn arrive(&mut self, side: Side, bytes: impl Iterator<Item = Byte> + Clone) {
        if !self.peer(side).sent_fin && !self.peer(side).failed {
            self.sent[side as usize].extend(bytes.clone());
            self.peer(side).to_read.extend(bytes);
            self.logic.on(Event::Readable(side));
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
            Action::Write => self.write(direction, false),
            Action::WriteMark => self.write(direction, true),
            Action::Finish => self.finish(direction),
        };
        self.logic.on(event);
        true
    }

    fn read(&mut self, direction: Direction) -> Event {
        assert!(self.held[direction.index()].is_empty(), "a buffer is filled only when empty");
        let limit = self.read_limit;
        let peer = self.peer(direction.from());
        let is_at_mark = peer.to_read.front().is_some_and(|byte| byte.is_urgent);
        let before_mark = peer.to_read.iter().take_while(|byte| !byte.is_urgent).count();
        let bytes = if is_at_mark { 1 } else { limit.min(before_mark) };
        let taken: Vec<Byte> = peer.to_read.drain(..bytes).collect();
        let tells = bytes == 0 && peer.failed && !peer.told;
        peer.told |= tells;
        let (sent_fin, failed) = (peer.sent_fin, peer.failed);
        let event = match bytes {
            0 if tells && sent_fin => {
                self.logic.on(Event::FinishedBefore(direction.from()));
                Event::Failed(direction.from())
            }
            0 if tells => Event::ReadFailed(direction),
            0 if sent_fin || failed => Event::ReadEnded(direction),
            0 => Event::ReadBlocked(direction),
            _ if is_at_mark => Event::ReadMark(direction),
            _ => Event::Read(direction, bytes),
        };
        self.held[direction.index()].extend(taken);
        event
    }

    fn write(&mut self, direction: Direction, as_mark: bool) -> Event {
        let held = self.held[direction.index()].len();
        let are_marked = self.held[direction.index()].iter().all(|byte| byte.is_urgent == as_mark);
        assert!(are_marked && (held == 1 || !as_mark), "a mark where none was, or none where one was");
        let to = direction.to();
        if self.peer(to).failed {
            let peer = self.peer(to);
            peer.told_by_writing |= !std::mem::replace(&mut peer.told, true);
            return Event::Failed(to);
        }
        let bytes = held.min(self.peer(to).room_bytes);
        if bytes == 0 {
            return Event::WriteBlocked(direction);
        }
        let moved: Vec<Byte> = self.held[direction.index()].drain(..bytes).collect();
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
