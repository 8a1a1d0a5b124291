//! One connection: its sockets, its logic, and a turn of work on it.

use crate::{
    adopt::Released,
    handover::estate::Bytes,
    keeping::{
        connection_id,
        record::{Failure, Holding},
    },
    legs::{
        Legs,
        buffer::{Buffer, Moved, Pool, SMALL_BYTES},
        inbound::{self, Ahead, Got, Source},
        leg,
    },
    logic::{
        connection::{Action, Connection, Direction, Event, Side},
        gather::{Change, Gather, How},
    },
    observe::observer::Ended,
    plan::BUFFER_BYTES,
};
use nix::sys::epoll::EpollFlags;
use std::{
    net::{Shutdown, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Bytes one direction may move before it is another connection's turn: with this, flows share a worker evenly.
const TURN_BYTES: usize = BUFFER_BYTES;

/// A connection in the hands of a worker.
#[derive(Debug)]
pub(crate) struct Relayed {
    pub logic: Connection,
    pub legs: Arc<Legs>,
    buffers: [Option<Buffer>; 2],
    /// Per direction: its last turn read much.
    is_bulk: [bool; 2],
    /// The last turn ended before there was nothing more to do.
    was_cut: bool,
    /// Per side: a FIN or urgent data were announced, behind which a reading that was not full may have stopped.
    is_doubtful: [bool; 2],
    /// Per side: an event has told that its FIN has come, and of no error, and no pipe was written to it since: that
    /// may take an error with it ([`inbound`]).
    has_fin: [bool; 2],
    /// Per side: whether its next byte may be urgent.
    ahead: [Ahead; 2],
    /// Per direction: the urgent byte that is held instead of a buffer, while one is.
    marks: [u8; 2],
    /// Per direction: what is held, or was last, is in its socket, too.
    are_copies: [bool; 2],
    /// Whether a side that was found reset has been told to whoever keeps what the relay has.
    is_failure_told: bool,
    /// The listener that its client connected to; none for one that is intercepted.
    pub listener: Option<SocketAddr>,
    /// Per side: to be watched anew: not written to although it would have taken more, so that no event says when it
    /// should have, or told of otherwise than before.
    unarmed: [bool; 2],
    /// Per side: its data gather in silence, and no event tells of them.
    is_silent: [bool; 2],
    /// Whether the server's leg has what a connection needs that lasts.
    is_equipped: bool,
    /// The server's leg acknowledges the handshake with the client's first bytes, if they are there.
    pub owes_acknowledgement: bool,
    /// Whether bulk data wait in their socket for more.
    pub gather: Gather,
    /// Whether it stands in the worker's queue of connections with work to do.
    pub queued: bool,
    pub started: Instant,
    /// When a reset being passed on waits no longer.
    pub deadline: Option<Instant>,
    /// Bytes read, per direction, since its queues were last worth a look.
    unseen_bytes: [u64; 2],
    /// Bytes moved since the workers' loads were last compared.
    pub recent_bytes: u64,
    /// When a byte last moved.
    pub moved: Instant,
    /// The server's addresses; none when the client named the server, and is intercepted.
    pub targets: Option<Arc<[SocketAddr]>>,
    /// How many of them are not yet tried.
    pub untried: usize,
    pub ended: Ended,
    /// When its ends were last asked to say something, while the relay leaves.
    pub probed: Option<Instant>,
    /// In a pause it could not be left, and is not tried again before.
    pub kept_until: Option<Instant>,
    /// Per direction: an urgent byte was sent, which the receiving socket may not have sent, or may have to send again.
    has_marked: [bool; 2],
    /// Packets that the relay made itself, per side, for a connection from another router until both ends are heard.
    pub unheard: Option<[u32; 2]>,
    /// The relay has left it, and its sockets are deaf: they have to vanish.
    pub released: Option<Released>,
}

/// What a turn came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// There is more to do, but it is another connection's turn.
    pub more: bool,
    pub moved_bytes: u64,
    /// Per direction.
    pub read_bytes: [u64; 2],
    /// The acknowledgement that was owed to the server has left.
    pub completes_handshake: bool,
}

impl Relayed {
    pub fn new(
        legs: Legs,
        targets: Option<Arc<[SocketAddr]>>,
        listener: Option<SocketAddr>,
        now: Instant,
    ) -> Relayed {
        if !legs.plan.is_looked_at() {
            legs.queues.set_known();
        }
        let untried = targets.as_ref().map_or(0, |targets| targets.len().saturating_sub(1));
        Relayed {
            targets,
            logic: Connection::new(),
            legs: Arc::new(legs),
            buffers: [None, None],
            is_bulk: [false; 2],
            was_cut: false,
            is_doubtful: [false; 2],
            has_fin: [false; 2],
            ahead: [Ahead::Unknown; 2],
            marks: [0; 2],
            are_copies: [false; 2],
            is_failure_told: false,
            listener,
            unarmed: [false; 2],
            is_silent: [false; 2],
            is_equipped: false,
            owes_acknowledgement: false,
            gather: Gather::new(now),
            queued: false,
            started: now,
            deadline: None,
            unseen_bytes: [0; 2],
            recent_bytes: 0,
            moved: now,
            untried,
            ended: Ended::Finished,
            probed: None,
            kept_until: None,
            has_marked: [false; 2],
            unheard: None,
            released: None,
        }
    }

    /// Works on both directions, each up to its share.
    pub fn turn(&mut self, pool: &mut Pool, now: Instant) -> Turn {
        let mut turn = Turn::default();
        for direction in Direction::BOTH {
            let mut left = TURN_BYTES;
            turn.more |= loop {
                self.tell_failure(pool);
                let action = self.logic.next(direction);
                match action {
                    Action::Wait => break false,
                    Action::Read if left == 0 => break true,
                    _ => {}
                }
                let moved = self.act(action, direction, pool);
                if action == Action::Read {
                    turn.read_bytes[direction.index()] += moved as u64;
                    let is_seen_next = self.legs.queues.are_to_be_seen(turn.read_bytes[direction.index()]);
                    left = if is_seen_next { 0 } else { left.saturating_sub(moved) };
                } else {
                    turn.moved_bytes += moved as u64;
                }
            };
            self.settle_buffer(direction, pool);
            // The rest of what was cut says nothing of what comes next.
            if turn.read_bytes[direction.index()] > 0 && !self.was_cut {
                self.is_bulk[direction.index()] = turn.read_bytes[direction.index()] >= SMALL_BYTES as u64;
            }
        }
        turn.completes_handshake = self.pay_acknowledgement();
        self.was_cut = turn.more;
        self.recent_bytes += turn.moved_bytes;
        let plan = &self.legs.plan;
        if turn.moved_bytes > 0 && (plan.idle.is_some() || plan.release_after.is_some()) {
            self.moved = now;
        }
        turn
    }

    /// Completes the handshake where no first bytes of the client's did; whether it was not complete before.
    pub fn pay_acknowledgement(&mut self) -> bool {
        if !self.owes_acknowledgement || self.logic.is_connecting() {
            return false;
        }
        self.owes_acknowledgement = false;
        if self.legs.relayed(Direction::ClientToServer) == 0 {
            leg::acknowledge(&self.legs.server);
        }
        true
    }

    /// Does one action and reports it to the logic; bytes moved.
    fn act(&mut self, action: Action, direction: Direction, pool: &mut Pool) -> usize {
        if action == Action::Write && self.legs.is_ahead(direction) {
            self.unarmed[direction.to() as usize] = true;
            self.on(Event::WriteBlocked(direction));
            return 0;
        }
        let legs = &self.legs;
        let buffer = &mut self.buffers[direction.index()];
        if action == Action::Write && matches!(buffer, Some(Buffer::Pipe { .. })) {
            self.has_fin[direction.to() as usize] = false;
        }
        let (event, bytes) = match action {
            Action::Wait => return 0,
            Action::Read => return self.read(direction, pool),
            Action::Finish => match legs.leg(direction.to()).shutdown(Shutdown::Write) {
                Ok(()) => (Event::Finished(direction), 0),
                Err(_) => (Event::Failed(direction.to()), 0),
            },
            Action::Write => {
                let (to, is_last) = (legs.leg(direction.to()), self.logic.finishes_after(direction));
                let moved = buffer.as_mut().map_or(Moved::Failed, |buffer| buffer.drain(to, is_last));
                legs.wrote(direction, self.without_copy(direction, moved))
            }
            Action::WriteMark => {
                let byte = self.marks[direction.index()];
                let moved = inbound::write_mark(legs.leg(direction.to()), byte);
                self.has_marked[direction.index()] = true;
                legs.wrote(direction, self.without_copy(direction, moved))
            }
        };
        self.on(event);
        bytes
    }

    /// What was written is taken from its socket, where it was a copy. Between the two it has left the relay once and
    /// is here still, which the counts of both sockets tell whoever goes on.
    fn without_copy(&self, direction: Direction, moved: Moved) -> Moved {
        match moved {
            Moved::Bytes(bytes) if self.are_copies[direction.index()] => {
                let from = self.legs.leg(direction.from());
                inbound::consume(from, bytes as u64).map_or(Moved::Failed, |()| moved)
            }
            moved => moved,
        }
    }

    /// Tells whoever keeps what the relay has, before anything more is read, that a side was found reset: its socket
    /// does not say so again.
    fn tell_failure(&mut self, pool: &Pool) {
        if self.is_failure_told || !pool.keeping.is_on() {
            return;
        }
        let Some((side, after_fin)) = self.logic.failure() else { return };
        let failure = Failure { is_client: side == Side::Client, after_fin };
        pool.keeping.put(connection_id(self.legs.number) + 3, &Holding::Failed(failure), &[]);
        self.is_failure_told = true;
    }

    /// An urgent byte that is nowhere but here.
    pub fn mark(&self, direction: Direction) -> Option<u8> {
        let is_here = self.logic.holds_mark(direction) && !self.are_copies[direction.index()];
        is_here.then(|| self.marks[direction.index()])
    }

    /// Whether an urgent byte was ever sent in a direction.
    pub fn has_marked(&self, direction: Direction) -> bool {
        self.has_marked[direction.index()]
    }

    /// Has memory hold what pipes hold; whether it does.
    pub fn hold_in_memory(&mut self, pool: &mut Pool) -> bool {
        Direction::BOTH.into_iter().all(|direction| {
            let held_bytes = self.logic.held_bytes(direction);
            let place = &mut self.buffers[direction.index()];
            let Some(pipe) = place.take_if(|buffer| held_bytes > 0 && buffer.is_pipe()) else { return true };
            let Ok(bytes) = pipe.take_all(held_bytes) else {
                *place = Some(pipe);
                return false;
            };
            pool.discard(pipe);
            pool.count(place.insert(Buffer::holding(bytes)));
            true
        })
    }

    /// The pipe of a direction, empty or not.
    pub fn pipe(&self, direction: Direction) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        match &self.buffers[direction.index()] {
            Some(Buffer::Pipe { read, write }) => Some((read.as_fd(), write.as_fd())),
            _ => None,
        }
    }

    /// Bytes that are nowhere but in the relay's memory.
    pub fn memory(&self, direction: Direction) -> Option<&[u8]> {
        match &self.buffers[direction.index()] {
            Some(Buffer::Memory { bytes, start, end })
                if !self.are_copies[direction.index()] && start < end =>
            {
                Some(&bytes[*start..*end])
            }
            _ => None,
        }
    }

    /// Takes in what another relay held.
    pub fn take_in(&mut self, direction: Direction, bytes: Bytes) {
        if let Bytes::Mark(byte) = bytes {
            self.marks[direction.index()] = byte;
        }
        self.buffers[direction.index()] = bytes.buffer();
    }

    /// Buffers that came from elsewhere count like those of the pool.
    pub fn count_buffers(&self, pool: &Pool) {
        self.buffers.iter().flatten().for_each(|buffer| pool.count(buffer));
    }

    /// Fills the direction's empty buffer. Little is read into little memory: that costs one call less than a pipe (a
    /// reading of less than was asked for took all there was), and pipes are for bulk.
    fn read(&mut self, direction: Direction, pool: &mut Pool) -> usize {
        let (legs, index) = (&self.legs, direction.index());
        let is_small = !self.is_bulk[index] || legs.plan.is_thrifty();
        let (is_kept, id) = (pool.keeping.is_on(), connection_id(legs.number));
        let buffer = match is_kept {
            true => pool.kept(&mut self.buffers[index], is_small, (id, direction)),
            false => pool.fitting(&mut self.buffers[index], is_small),
        };
        let most_bytes = legs.queues.filling_bytes(direction);
        let may_be_closed = self.logic.may_be_closed(direction.from());
        let has_fin = self.has_fin[direction.from() as usize];
        let from = Source { leg: legs.leg(direction.from()), may_be_closed, has_fin };
        let ahead = &mut self.ahead[direction.from() as usize];
        let mut got = inbound::read(from, buffer, most_bytes, ahead, is_kept);
        if got == Got::Unspliced {
            let memory = pool.take_small();
            let piped = std::mem::replace(buffer, memory);
            if is_kept {
                pool.discard(piped)
            } else {
                pool.give(piped)
            }
            got = inbound::read(from, buffer, most_bytes, ahead, is_kept);
        }
        let is_piped = matches!(got, Got::Bytes(_)) && matches!(buffer, Buffer::Pipe { .. });
        self.are_copies[index] = is_kept && !is_piped;
        let took_all = matches!(got, Got::Bytes(bytes) if buffer.took_all(bytes, most_bytes));
        let (event, bytes) = match got {
            Got::Bytes(bytes) | Got::LastBytes(bytes) => (Event::Read(direction, bytes), bytes),
            Got::Mark(byte) => {
                self.marks[index] = byte;
                (Event::ReadMark(direction), 1)
            }
            Got::Nothing => (Event::ReadBlocked(direction), 0),
            Got::End => (Event::ReadEnded(direction), 0),
            Got::FailedAfterFin => {
                self.on(Event::FinishedBefore(direction.from()));
                (Event::Failed(direction.from()), 0)
            }
            Got::Failed | Got::Unspliced => (Event::ReadFailed(direction), 0),
        };
        self.on(event);
        if matches!(got, Got::LastBytes(_)) {
            self.on(Event::ReadEnded(direction));
        }
        self.is_bulk[index] |= bytes >= SMALL_BYTES;
        if self.is_bulk[index] {
            self.equip();
        }
        if took_all && !self.is_doubtful[direction.from() as usize] {
            self.on(Event::ReadBlocked(direction));
        }
        bytes
    }

    /// Equips a connection that lasts, or moves bulk data: its server's leg is given what such a one needs, as its
    /// client's has from the listener.
    pub fn equip(&mut self) {
        if !self.is_equipped && !self.logic.is_connecting() {
            self.is_equipped = true;
            // A socket that refuses has ended.
            let _ = self.legs.plan.server.equip(&self.legs.server);
        }
    }

    /// An event told of bytes or an end to read: whether of a FIN, or an urgent mark, too. Behind either a short
    /// reading is not all there is. Both ends of a socket have ended when it hangs up: by FINs, if it tells of no error
    /// and the relay's had gone out.
    pub fn on_readable(&mut self, side: Side, flags: EpollFlags) {
        let (hangup, error) = (EpollFlags::EPOLLHUP, EpollFlags::EPOLLERR);
        let fin = flags.intersects(EpollFlags::EPOLLRDHUP | hangup);
        let mark = flags.contains(EpollFlags::EPOLLPRI);
        let is_closed = flags.contains(hangup) && !self.logic.has_finished_to(side);
        self.has_fin[side as usize] |=
            flags.contains(EpollFlags::EPOLLRDHUP) && !is_closed && !flags.contains(error);
        self.ahead[side as usize] = if mark { Ahead::Mark } else { Ahead::Plain };
        self.is_doubtful[side as usize] |= fin || mark;
        self.on(Event::Readable(side));
    }

    /// Reports an event to the logic and remembers who ended the connection.
    pub fn on(&mut self, event: Event) {
        let failed = match event {
            Event::Failed(side) => Some(side),
            Event::ReadFailed(direction) => Some(direction.from()),
            _ => None,
        };
        if let Some(side) = failed
            && self.ended == Ended::Finished
        {
            let unreachable = self.logic.is_connecting() && side == Side::Server;
            self.ended = if unreachable { Ended::Unreachable } else { Ended::reset_by(side) };
        }
        self.logic.on(event);
    }

    /// Gives an empty buffer back, and shows how full the other ones are.
    fn settle_buffer(&mut self, direction: Direction, pool: &mut Pool) {
        let held = self.logic.held_bytes(direction);
        self.legs.held_bytes[direction.index()].store(held as u64, Ordering::Relaxed);
        let is_own = pool.keeping.is_on() && self.pipe(direction).is_some();
        if held == 0
            && !is_own
            && let Some(buffer) = self.buffers[direction.index()].take()
        {
            pool.give(buffer);
        }
    }

    /// Whether events tell of a side's data.
    pub fn tells_of_data(&self, side: Side) -> bool {
        !self.is_silent[side as usize]
    }

    /// Sides that must be watched anew; to be asked once.
    pub fn take_unarmed(&mut self) -> impl Iterator<Item = Side> + use<> {
        let unarmed = std::mem::take(&mut self.unarmed);
        [Side::Client, Side::Server].into_iter().filter(move |side| unarmed[*side as usize])
    }

    /// A turn has read so many bytes: whether the connection's queues are to be looked at from now on.
    pub fn is_worth_a_look(&mut self, read_bytes: [u64; 2]) -> bool {
        if !self.legs.plan.is_looked_at() {
            return false;
        }
        self.unseen_bytes.iter_mut().zip(read_bytes).for_each(|(unseen, read)| *unseen += read);
        let is_worth = !self.logic.is_connecting() && self.legs.queues.are_worth_a_look(self.unseen_bytes);
        if is_worth {
            self.unseen_bytes = [0; 2];
        }
        is_worth
    }

    /// Lets bulk data gather in their socket, or no longer. What is read in small pieces, to keep a queue short, does
    /// not gather.
    pub fn gather(&mut self, read_bytes: [u64; 2], length: Duration) {
        if read_bytes == [0, 0] && self.gather.due().is_none() {
            return;
        }
        let is_held = |direction: Direction| self.legs.queues.of(direction).is_held();
        let reads = |direction: &Direction| read_bytes[direction.index()] > 0;
        let due = self.gather.due().map(|(direction, _)| direction);
        if Direction::BOTH.into_iter().filter(reads).chain(due).any(is_held) {
            let change = self.gather.stop(Instant::now());
            return self.tell_socket(change);
        }
        let window = |direction| self.legs.window(direction);
        let change = self.gather.after_turn(read_bytes, length, Instant::now(), window);
        self.tell_socket(change);
    }

    fn tell_socket(&mut self, change: Change) {
        match change {
            Change::None => {}
            Change::Begin(direction, How::InPart) => {
                let bytes = self.legs.window(direction).gathered_bytes;
                leg::wake_at(self.legs.leg(direction.from()), bytes);
            }
            Change::End(direction, How::InPart) => leg::wake_at(self.legs.leg(direction.from()), 1),
            Change::Begin(direction, How::InSilence) | Change::End(direction, How::InSilence) => {
                let side = direction.from() as usize;
                self.is_silent[side] = matches!(change, Change::Begin(..));
                self.unarmed[side] = true;
            }
        }
    }

    /// Throws the buffers away.
    pub fn discard_buffers(&mut self, pool: &mut Pool) {
        self.buffers.iter_mut().filter_map(Option::take).for_each(|buffer| pool.discard(buffer));
    }
}
