//! The logic of one relayed connection, without sockets and without a clock.
//!
//! The model: two TCP connections (legs) and, for each direction, a buffer between them. A direction is filled only
//! when its buffer is empty, so "nothing to read" is never mistaken for "buffer full", and what the relay holds is
//! bounded by one filling. Backpressure is TCP's own: what is not read stays in the inbound socket, whose receive
//! buffer is bounded.
//!
//! The shell asks [`Connection::next`] what to do for a direction, does it, and reports the [`Event`]; when both
//! directions wait, [`Connection::ending`] says whether and how the connection ends. Every action's event either
//! moves bytes or makes the direction wait, so the shell cannot spin.
//!
//! - An urgent mark (RFC 9293 section 3.8.5) is passed on at its place: its byte is read and written by itself.
//! - FIN is passed on as FIN after the last byte, per direction (half-close, RFC 9293 section 3.6).
//! - RST, or a leg that timed out, is passed on as RST. Bytes the relay acknowledged before it are delivered first
//!   (an end-to-end receiver would have had them too), and a FIN behind them, for a time the shell bounds: also those of a
//!   client that is reset before the leg to the server stands.

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

/// A peer of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Client,
    /// The side that the relay connects to on the client's behalf.
    Server,
}

impl Side {
    /// The peer's peer.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// A direction of data flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ClientToServer,
    /// From the server to the client.
    ServerToClient,
}

impl Direction {
    /// Both, in a fixed order.
    pub const BOTH: [Direction; 2] = [Direction::ClientToServer, Direction::ServerToClient];

    /// The direction whose bytes come from `side`.
    pub fn out_of(side: Side) -> Direction {
        match side {
            Side::Client => Direction::ClientToServer,
            Side::Server => Direction::ServerToClient,
        }
    }

    /// Where its bytes come from.
    pub fn from(self) -> Side {
        match self {
            Direction::ClientToServer => Side::Client,
            Direction::ServerToClient => Side::Server,
        }
    }

    /// Where its bytes go.
    pub fn to(self) -> Side {
        self.from().other()
    }

    /// 0 or 1, in the order of [`Direction::BOTH`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What the shell shall do next for one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing, until an event comes.
    Wait,
    /// Fill the (empty) buffer from the inbound socket.
    Read,
    /// Give held bytes to the outbound socket.
    Write,
    /// Give the held byte, which is urgent, to the outbound socket.
    WriteMark,
    /// Shut the outbound socket down for writing: everything has been written.
    Finish,
}

/// How a connection comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A reset waits until this side has acknowledged what the relay had taken for it, or the shell's time is up.
    Settle(Side),
    /// Close both sockets with a reset.
    Reset,
    /// Both directions have finished: close both sockets.
    Close,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The leg to the server stands.
    Connected,
    /// A socket may have bytes, or its end, to read.
    Readable(Side),
    /// A socket may take bytes.
    Writable(Side),
    /// A side that is about to be told as failed had finished sending before.
    FinishedBefore(Side),
    /// A socket was reset, timed out, or could not connect.
    Failed(Side),
    /// Bytes, at least one, were read into the buffer.
    Read(Direction, usize),
    /// An urgent byte was read, and nothing else.
    ReadMark(Direction),
    /// There was nothing to read.
    ReadBlocked(Direction),
    /// The inbound peer has finished sending.
    ReadEnded(Direction),
    /// Reading the inbound socket failed: it gives nothing any more.
    ReadFailed(Direction),
    /// Bytes of the buffer, at least one, were written.
    Written(Direction, usize),
    /// The outbound socket takes nothing now.
    WriteBlocked(Direction),
    /// The outbound socket was shut down for writing.
    Finished(Direction),
    /// The side being waited for has acknowledged everything.
    Settled,
    /// The time for settling, or for the whole connection, is up.
    Expired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    /// The client was reset before the server's leg stood; what it had sent is delivered when that leg does.
    ConnectingForGone,
    Open,
    /// This side was reset; what it had sent is being delivered to the other.
    Resetting(Side),
    Reset,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    readable: bool,
    writable: bool,
    held_bytes: usize,
    /// Whether the buffer holds one urgent byte.
    holds_mark: bool,
    input_ended: bool,
    /// By a FIN: a reset that comes after it is passed on after it.
    has_fin: bool,
    output_ended: bool,
}

impl Flow {
    fn next(&self) -> Action {
        match self {
            Flow { output_ended: true, .. } => Action::Wait,
            Flow { holds_mark: true, writable, .. } => Action::or_wait(*writable, Action::WriteMark),
            Flow { held_bytes: 1.., writable, .. } => Action::or_wait(*writable, Action::Write),
            Flow { input_ended: true, .. } => Action::Finish,
            Flow { readable, .. } => Action::or_wait(*readable, Action::Read),
        }
    }

    fn is_delivered(&self) -> bool {
        self.output_ended || (self.input_ended && !self.has_fin && self.held_bytes == 0)
    }
}

impl Action {
    fn or_wait(ready: bool, action: Action) -> Action {
        if ready { action } else { Action::Wait }
    }
}

/// One relayed connection.
#[derive(Debug, Clone)]
pub struct Connection {
    phase: Phase,
    flows: [Flow; 2],
}

impl Default for Connection {
    fn default() -> Self {
        Connection::new()
    }
}

impl Connection {
    /// The client is there; the leg to the server is being made.
    pub fn new() -> Connection {
        Connection { phase: Phase::Connecting, flows: [Flow::default(); 2] }
    }

    /// What to do for a direction.
    pub fn next(&self, direction: Direction) -> Action {
        match self.phase {
            Phase::Connecting | Phase::ConnectingForGone | Phase::Reset => Action::Wait,
            Phase::Open => self.flow(direction).next(),
            // A reset goes where a FIN would have gone, unless there was one.
            Phase::Resetting(side) if direction.from() == side => match self.flow(direction).next() {
                Action::Finish if !self.flow(direction).has_fin => Action::Wait,
                action => action,
            },
            Phase::Resetting(_) => Action::Wait,
        }
    }

    /// Whether and how the connection ends now.
    pub fn ending(&self) -> Option<Ending> {
        match self.phase {
            Phase::Connecting | Phase::ConnectingForGone => None,
            Phase::Open => self.flows.iter().all(|flow| flow.output_ended).then_some(Ending::Close),
            Phase::Resetting(side) => {
                self.flow(Direction::out_of(side)).is_delivered().then_some(Ending::Settle(side.other()))
            }
            Phase::Reset => Some(Ending::Reset),
        }
    }

    /// The side whose reset is being passed on, while what it had sent is still being delivered.
    pub fn resetting(&self) -> Option<Side> {
        match self.phase {
            Phase::Resetting(side) => Some(side),
            _ => None,
        }
    }

    /// The side that was found reset or timed out, and whether it had finished sending before.
    pub fn failure(&self) -> Option<(Side, bool)> {
        let side = match self.phase {
            Phase::Resetting(side) => side,
            Phase::ConnectingForGone => Side::Client,
            Phase::Connecting | Phase::Open | Phase::Reset => return None,
        };
        Some((side, self.flow(Direction::out_of(side)).has_fin))
    }

    /// Whether a side's socket may be closed without anything that is not known: the relay has finished sending to it,
    /// or somebody was found reset.
    pub fn may_be_closed(&self, side: Side) -> bool {
        self.phase != Phase::Open || self.has_finished_to(side)
    }

    /// Whether nobody was found reset, and the relay has finished sending to a side.
    pub fn has_finished_to(&self, side: Side) -> bool {
        self.phase == Phase::Open && self.flow(Direction::out_of(side.other())).output_ended
    }

    /// Whether what is held is the last of a direction: once it is written the outbound socket is shut down.
    pub fn finishes_after(&self, direction: Direction) -> bool {
        self.phase == Phase::Open && self.flow(direction).input_ended
    }

    /// Whether what is held is one urgent byte.
    pub fn holds_mark(&self, direction: Direction) -> bool {
        self.flow(direction).holds_mark
    }

    /// Whether the leg to the server is still being made.
    pub fn is_connecting(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::ConnectingForGone)
    }

    /// Whether the client was reset while the leg to the server is still being made.
    pub fn is_client_gone(&self) -> bool {
        self.phase == Phase::ConnectingForGone
    }

    /// Whether both directions are open, and nothing is held for either.
    pub fn is_at_rest(&self) -> bool {
        let is_open = |flow: &Flow| !flow.has_fin && !flow.output_ended && flow.held_bytes == 0;
        self.phase == Phase::Open && self.flows.iter().all(is_open)
    }

    /// Bytes read and not yet written.
    pub fn held_bytes(&self, direction: Direction) -> usize {
        self.flow(direction).held_bytes
    }

    /// Takes an event into account.
    pub fn on(&mut self, event: Event) {
        match event {
            Event::Connected => self.on_connected(),
            Event::Readable(side) => self.flow_mut(Direction::out_of(side)).readable = true,
            Event::Writable(side) => self.flow_mut(Direction::out_of(side.other())).writable = true,
            Event::FinishedBefore(side) => self.flow_mut(Direction::out_of(side)).has_fin = true,
            Event::Failed(side) => self.on_failed(side),
            Event::Read(direction, bytes) => self.flow_mut(direction).held_bytes += bytes,
            Event::ReadMark(direction) => self.on_mark(direction),
            Event::ReadBlocked(direction) => self.flow_mut(direction).readable = false,
            Event::ReadEnded(direction) => self.on_read_ended(direction),
            Event::ReadFailed(direction) => self.on_read_failed(direction),
            Event::Written(direction, bytes) => self.on_written(direction, bytes),
            Event::WriteBlocked(direction) => self.flow_mut(direction).writable = false,
            Event::Finished(direction) => self.flow_mut(direction).output_ended = true,
            Event::Settled | Event::Expired => self.phase = Phase::Reset,
        }
    }

    fn on_connected(&mut self) {
        if !self.is_connecting() {
            return;
        }
        let is_client_gone = self.is_client_gone();
        self.phase = Phase::Open;
        self.flow_mut(Direction::ClientToServer).writable = true;
        if is_client_gone {
            self.on_failed(Side::Client);
        }
    }

    fn on_read_ended(&mut self, direction: Direction) {
        let is_open = self.phase == Phase::Open;
        let flow = self.flow_mut(direction);
        flow.input_ended = true;
        flow.has_fin |= is_open;
    }

    fn on_read_failed(&mut self, direction: Direction) {
        if self.phase == Phase::Resetting(direction.from()) {
            let flow = self.flow_mut(direction);
            // What came last is not known: no FIN says that it was all.
            (flow.input_ended, flow.has_fin) = (true, false);
        } else {
            self.on_failed(direction.from());
        }
    }

    fn on_mark(&mut self, direction: Direction) {
        let flow = self.flow_mut(direction);
        (flow.held_bytes, flow.holds_mark) = (1, true);
    }

    fn on_written(&mut self, direction: Direction, bytes: usize) {
        let flow = self.flow_mut(direction);
        flow.held_bytes = flow.held_bytes.saturating_sub(bytes);
        flow.holds_mark &= flow.held_bytes > 0;
    }

    fn on_failed(&mut self, side: Side) {
        match self.phase {
            Phase::Connecting | Phase::ConnectingForGone if side == Side::Client => {
                self.phase = Phase::ConnectingForGone;
            }
            Phase::Connecting | Phase::ConnectingForGone => self.phase = Phase::Reset,
            Phase::Open => {
                self.phase = Phase::Resetting(side);
                // What arrived before the reset is still in the socket's receive queue.
                self.flow_mut(Direction::out_of(side)).readable = true;
            }
            // Told again, of a writing and by an event: its receive queue is still to be read.
            Phase::Resetting(first) if first == side => {}
            Phase::Resetting(_) => self.phase = Phase::Reset,
            Phase::Reset => {}
        }
    }

    fn flow(&self, direction: Direction) -> &Flow {
        &self.flows[direction.index()]
    }

    fn flow_mut(&mut self, direction: Direction) -> &mut Flow {
        &mut self.flows[direction.index()]
    }
}
