//! What state a connection is in, by what the kernel says of its sockets and pipes alone. Pure.
//!
//! A relay that was killed leaves no memory, and one that hands over need not write down what its sockets say. For each
//! direction, what was taken from the inbound socket is in a pipe or was given to the outbound one, and TCP counts
//! both:
//!
//! ```text
//! received - unread - held - sent = FIN received - FIN sent - sent before it was taken
//! ```
//!
//! (TCP's counts have a FIN as one byte.) Of a socket that is not closed the state tells which FINs there were, so the
//! rest is what a relay had sent and not yet taken when it died: bytes that it had peeked at, or an urgent one. Those
//! are thrown away. Of a closed socket the count tells whether a FIN had come. What cannot be told apart ends the
//! connection by a reset: nothing is guessed.

use crate::{
    keeping::record::Failure,
    logic::{
        connection::{Direction, Event, Side},
        tcp_state::{CLOSE_WAIT, CLOSED, CLOSING, FIN_WAIT1, FIN_WAIT2, LAST_ACK, TIME_WAIT},
    },
};

/// What the kernel says of one leg.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LegFacts {
    /// State of the socket, from `net/tcp_states.h`.
    pub state: u8,
    /// Sequence numbers received, a FIN included and the SYN not.
    pub received_bytes: u64,
    /// Received bytes that were not taken from the socket.
    pub unread_bytes: u64,
    /// Sequence numbers given to the socket, a FIN included and the SYN not.
    pub sent_bytes: u64,
    /// Whether a SYN was sent or answered.
    pub has_begun: bool,
    /// Whether it ever stood.
    pub has_stood: bool,
    /// The error that waited in the socket.
    pub error: Option<Fault>,
}

/// An error of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A reset, when no FIN had come.
    Reset,
    /// A reset behind a FIN.
    ResetAfterFin,
    /// The time was up, or the network refused: whether a FIN had come it does not say.
    Other,
}

impl LegFacts {
    fn is_closed(&self) -> bool {
        self.state == CLOSED
    }

    /// Whether a FIN has come; none if the state does not tell.
    fn fin_received(&self) -> Option<bool> {
        let finished = [TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING];
        (!self.is_closed()).then(|| finished.contains(&self.state))
    }

    /// Whether one was sent.
    fn fin_sent(&self) -> Option<bool> {
        let finished = [FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING];
        (!self.is_closed()).then(|| finished.contains(&self.state))
    }
}

/// What is to be done about the leg to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dial {
    /// The dial is to be made.
    Begin,
    /// An answer is awaited.
    Await,
    /// The dial has failed, which its socket does not say any more.
    Failed,
    /// The leg stands, or stood.
    Stands,
}

/// What is known of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// About the leg to the server.
    pub dial: Dial,
    /// What brings [`crate::logic::connection::Connection`] to where it was.
    pub events: Vec<Event>,
    /// Bytes to take from each inbound socket and throw away: their peer has them. Per direction.
    pub sent_before: [u64; 2],
    /// Bytes given to the receiving socket, per direction.
    pub relayed_bytes: [u64; 2],
}

/// Why a connection does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The connection is to be reset: counts contradict each other, or nobody is there to have anything.
    #[error("its sockets do not tell what its peers have had, or both are closed")]
    Unclear,
    /// Both ends have had all, and their FINs were passed on: only the relay's word that it is over is missing.
    #[error("it has ended in order")]
    Over,
}

/// One direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flow {
    fin_received: bool,
    fin_sent: bool,
    sent_before: u64,
}

/// Finds the state. `held_bytes` are what is in pipes, or in memory that was handed over; `failure` is a side that was
/// found reset before.
///
/// # Errors
/// Nobody can know it.
pub fn derive(legs: [&LegFacts; 2], held_bytes: [u64; 2], failure: Option<Failure>) -> Result<Found, Unfit> {
    let dial = dial(legs[Side::Server as usize]);
    if dial == Dial::Stands && legs.iter().all(|leg| leg.is_closed()) {
        return Err(if is_over(legs, held_bytes, failure) { Unfit::Over } else { Unfit::Unclear });
    }
    let of = |direction: Direction| flow(direction, legs, held_bytes[direction.index()], failure);
    let flows = [of(Direction::ClientToServer)?, of(Direction::ServerToClient)?];
    let mut events = Vec::new();
    if dial == Dial::Stands {
        events.push(Event::Connected);
    }
    for direction in Direction::BOTH {
        events.extend(events_of(direction, &flows[direction.index()], held_bytes[direction.index()]));
    }
    for side in [Side::Client, Side::Server] {
        events.extend(end_of(side, legs[side as usize], flows, dial, failure));
    }
    let sent = |direction: Direction| {
        let fin = u64::from(flows[direction.index()].fin_sent);
        legs[direction.to() as usize].sent_bytes.saturating_sub(fin)
    };
    let relayed_bytes = Direction::BOTH.map(sent);
    Ok(Found { dial, events, sent_before: flows.map(|flow| flow.sent_before), relayed_bytes })
}

/// Whether all that came to two closed sockets, ends included, has left by the other one. One that was reset told so,
/// by an error that waits or was noted.
fn is_over(legs: [&LegFacts; 2], held_bytes: [u64; 2], failure: Option<Failure>) -> bool {
    let [client, server] = legs;
    let is_passed = |from: &LegFacts, to: &LegFacts| {
        from.unread_bytes == 0 && from.received_bytes > 0 && from.received_bytes == to.sent_bytes
    };
    let is_in_order = failure.is_none() && legs.iter().all(|leg| leg.error.is_none()) && held_bytes == [0; 2];
    is_in_order && is_passed(client, server) && is_passed(server, client)
}

fn dial(server: &LegFacts) -> Dial {
    match server {
        LegFacts { has_stood: true, .. } => Dial::Stands,
        LegFacts { has_begun: false, .. } => Dial::Begin,
        LegFacts { state: CLOSED, error: None, .. } => Dial::Failed,
        _ => Dial::Await,
    }
}

fn flow(
    direction: Direction,
    legs: [&LegFacts; 2],
    held_bytes: u64,
    failure: Option<Failure>,
) -> Result<Flow, Unfit> {
    let (from, to) = (legs[direction.from() as usize], legs[direction.to() as usize]);
    let taken = i128::from(from.received_bytes) - i128::from(from.unread_bytes);
    let balance = taken - i128::from(held_bytes) - i128::from(to.sent_bytes);
    let fin_received = match (from.fin_received(), to.fin_sent()) {
        (Some(known), _) => known,
        // A FIN is sent only behind one that came.
        (None, Some(true)) => true,
        (None, _) => fin_before_the_end(direction.from(), from, balance, failure)?,
    };
    let fin_sent = to.fin_sent().unwrap_or(fin_received && balance == 0);
    let sent_before = i128::from(fin_received) - i128::from(fin_sent) - balance;
    // No more is written to who is gone.
    let sent_before = if to.is_closed() && to.has_stood { 0 } else { sent_before };
    let sent_before = u64::try_from(sent_before).map_err(|_| Unfit::Unclear)?;
    let is_possible = sent_before <= from.unread_bytes && (sent_before == 0 || held_bytes == 0);
    if is_possible && !(fin_sent && sent_before > 0) {
        Ok(Flow { fin_received, fin_sent, sent_before })
    } else {
        Err(Unfit::Unclear)
    }
}

/// Whether a FIN had come to a socket that is closed now.
fn fin_before_the_end(
    side: Side,
    leg: &LegFacts,
    balance: i128,
    failure: Option<Failure>,
) -> Result<bool, Unfit> {
    match (failure.filter(|failure| failure.side() == side), leg.error, balance) {
        (Some(failure), ..) => Ok(failure.after_fin),
        (None, Some(Fault::Reset), _) => Ok(false),
        (None, Some(Fault::ResetAfterFin), _) => Ok(true),
        // What was peeked at is taken before a failure is told, so nothing was sent before.
        (None, _, 0 | 1) => Ok(balance == 1),
        _ => Err(Unfit::Unclear),
    }
}

fn events_of(direction: Direction, flow: &Flow, held_bytes: u64) -> Vec<Event> {
    let held = usize::try_from(held_bytes).unwrap_or(usize::MAX);
    let read = (held > 0).then_some(Event::Read(direction, held));
    let finished = flow.fin_sent.then_some([Event::ReadEnded(direction), Event::Finished(direction)]);
    read.into_iter().chain(finished.into_iter().flatten()).collect()
}

/// What a closed socket means, that no event will tell.
fn end_of(side: Side, leg: &LegFacts, flows: [Flow; 2], dial: Dial, failure: Option<Failure>) -> Vec<Event> {
    let (own, other) = (Direction::out_of(side), Direction::out_of(side.other()));
    let after_fin = flows[own.index()].fin_received;
    let is_told = failure.is_some_and(|failure| failure.side() == side);
    let is_orderly = after_fin && flows[other.index()].fin_sent && leg.error.is_none() && !is_told;
    let is_dial = side == Side::Server && dial != Dial::Stands;
    if !leg.is_closed() || is_orderly || is_dial {
        return Vec::new();
    }
    let finished = after_fin.then_some(Event::FinishedBefore(side));
    finished.into_iter().chain([Event::Failed(side)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::connection::{Action, Connection};
    use proptest::prelude::*;

    /// One leg as its kernel has it.
    #[derive(Debug, Clone, Copy, Default)]
    struct Peer {
        arrived: u64,
        fin_arrived: bool,
        taken: u64,
        given: u64,
        fin_given: bool,
        /// Both FINs are through, or it was reset.
        is_closed: bool,
        error: Option<Fault>,
    }

    impl Peer {
        fn facts(&self) -> LegFacts {
            let state = match (self.is_closed, self.fin_arrived, self.fin_given) {
                (true, ..) => CLOSED,
                (_, true, true) => LAST_ACK,
                (_, true, false) => CLOSE_WAIT,
                (_, false, true) => FIN_WAIT1,
                (_, false, false) => 1,
            };
            LegFacts {
                state,
                received_bytes: self.arrived + u64::from(self.fin_arrived),
                unread_bytes: self.arrived - self.taken,
                sent_bytes: self.given + u64::from(self.fin_given),
                has_begun: true,
                has_stood: true,
                error: self.error,
            }
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Arrive(Side, u64),
        Fin(Side),
        Reset(Side),
        /// Through a pipe.
        Splice(Direction, u64),
        Unpipe(Direction, u64),
        /// Peeked at and sent, and then taken, unless it was killed between.
        Copy(Direction, u64, bool),
        /// The end is passed on.
        Finish(Direction),
        /// The end of a side is acknowledged.
        Close(Side),
        /// The relay takes the error, having told the keeper.
        Notice(Side),
    }

    fn side() -> impl Strategy<Value = Side> {
        prop_oneof![Just(Side::Client), Just(Side::Server)]
    }

    fn direction() -> impl Strategy<Value = Direction> {
        side().prop_map(Direction::out_of)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (side(), 1u64..40).prop_map(|(side, bytes)| Step::Arrive(side, bytes)),
            side().prop_map(Step::Fin),
            side().prop_map(Step::Reset),
            (direction(), 1u64..40).prop_map(|(direction, bytes)| Step::Splice(direction, bytes)),
            (direction(), 1u64..40).prop_map(|(direction, bytes)| Step::Unpipe(direction, bytes)),
            (direction(), 1u64..40, prop::bool::weighted(0.1))
                .prop_map(|(direction, bytes, dies)| Step::Copy(direction, bytes, dies)),
            direction().prop_map(Step::Finish),
            side().prop_map(Step::Close),
            side().prop_map(Step::Notice),
        ]
    }

    #[derive(Debug, Default)]
    struct Relay {
        peers: [Peer; 2],
        held: [u64; 2],
        sent_before: [u64; 2],
        failure: Option<Failure>,
        is_dead: bool,
    }

    impl Relay {
        fn step(&mut self, step: Step) {
            let Relay { peers, held, sent_before, failure, is_dead } = self;
            let index = |direction: Direction| {
                (direction.from() as usize, direction.to() as usize, direction.index())
            };
            match step {
                Step::Arrive(side, bytes) => {
                    let peer = &mut peers[side as usize];
                    peer.arrived += if peer.fin_arrived || peer.is_closed { 0 } else { bytes };
                }
                Step::Fin(side) => {
                    let peer = &mut peers[side as usize];
                    peer.fin_arrived |= !peer.is_closed;
                }
                Step::Reset(side) => {
                    let peer = &mut peers[side as usize];
                    if !peer.is_closed {
                        peer.is_closed = true;
                        peer.error = Some(if peer.fin_arrived { Fault::ResetAfterFin } else { Fault::Reset });
                    }
                }
                Step::Close(side) => {
                    let peer = &mut peers[side as usize];
                    peer.is_closed |= peer.fin_arrived && peer.fin_given;
                }
                // From here on it is the relay that does something.
                _ if *is_dead => {}
                Step::Splice(direction, bytes) => {
                    let (from, _, direction) = index(direction);
                    if held[direction] == 0 {
                        let bytes = bytes.min(peers[from].arrived - peers[from].taken);
                        peers[from].taken += bytes;
                        held[direction] += bytes;
                    }
                }
                Step::Unpipe(direction, bytes) => {
                    let (_, to, direction) = index(direction);
                    if !peers[to].is_closed {
                        let bytes = bytes.min(held[direction]);
                        held[direction] -= bytes;
                        peers[to].given += bytes;
                    }
                }
                Step::Copy(direction, bytes, dies) => {
                    let (from, to, direction) = index(direction);
                    let bytes = bytes.min(peers[from].arrived - peers[from].taken);
                    if held[direction] == 0 && !peers[to].is_closed && !peers[to].fin_given {
                        peers[to].given += bytes;
                        *is_dead = dies;
                        match dies {
                            true => sent_before[direction] = bytes,
                            false => peers[from].taken += bytes,
                        }
                    }
                }
                Step::Finish(direction) => {
                    let (from, to, direction) = index(direction);
                    let is_all = peers[from].fin_arrived && peers[from].taken == peers[from].arrived;
                    peers[to].fin_given |= is_all && held[direction] == 0 && !peers[to].is_closed;
                }
                Step::Notice(side) => {
                    if let Some(error) = peers[side as usize].error.take() {
                        let after_fin = error == Fault::ResetAfterFin;
                        let told = Failure { is_client: side == Side::Client, after_fin };
                        failure.get_or_insert(told);
                    }
                }
            }
        }
    }

    fn derived(relay: &Relay) -> Result<Found, Unfit> {
        let facts = relay.peers.map(|peer| peer.facts());
        derive([&facts[0], &facts[1]], relay.held, relay.failure)
    }

    proptest! {
        /// Whatever happened, and wherever the relay died: what is found is what was, or nothing.
        #[test]
        fn what_is_found_is_what_was(steps in prop::collection::vec(step(), 0..60)) {
            let mut relay = Relay::default();
            steps.into_iter().for_each(|step| relay.step(step));
            let is_passed = |from: Peer, to: Peer| {
                from.fin_arrived && to.fin_given && from.taken == from.arrived && to.given == from.arrived
            };
            let [client, server] = relay.peers;
            let was_reset = relay.failure.is_some() || client.error.is_some() || server.error.is_some();
            let is_over = client.is_closed
                && server.is_closed
                && !was_reset
                && is_passed(client, server)
                && is_passed(server, client);
            let found = match derived(&relay) {
                Ok(found) => found,
                Err(why) => {
                    let closed = relay.peers.iter().filter(|peer| peer.is_closed).count();
                    prop_assert!(closed == 2 || relay.is_dead, "{relay:?}");
                    prop_assert_eq!(why == Unfit::Over, is_over, "{:?}", relay);
                    return Ok(());
                }
            };
            prop_assert!(!is_over, "{relay:?}");
            let mut logic = Connection::new();
            found.events.iter().for_each(|event| logic.on(*event));
            for direction in Direction::BOTH {
                let (from, to) = (relay.peers[direction.from() as usize], relay.peers[direction.to() as usize]);
                let index = direction.index();
                prop_assert_eq!(logic.held_bytes(direction), relay.held[index] as usize);
                prop_assert_eq!(found.relayed_bytes[index], to.given);
                if !to.is_closed {
                    prop_assert_eq!(found.sent_before[index], relay.sent_before[index], "{:?}", relay);
                    // Its end has been passed on, or it still is to be.
                    logic.on(Event::Writable(direction.to()));
                    logic.on(Event::Readable(direction.from()));
                    let waits = logic.next(direction) == Action::Wait;
                    prop_assert!(waits || !to.fin_given, "{relay:?} {logic:?}");
                    prop_assert!(!waits || to.fin_given || logic.resetting().is_some(), "{relay:?} {logic:?}");
                }
                if from.is_closed && !to.is_closed && !(from.fin_arrived && from.fin_given) {
                    prop_assert_eq!(logic.resetting(), Some(direction.from()), "{:?}", relay);
                }
            }
        }

        #[test]
        fn no_counts_are_too_odd(
            states in prop::array::uniform2(1u8..12), counts in prop::array::uniform8(any::<u64>()),
            flags in any::<(bool, bool)>()
        ) {
            let leg = |which: usize, begun, stood| LegFacts {
                state: states[which],
                received_bytes: counts[3 * which],
                unread_bytes: counts[3 * which + 1],
                sent_bytes: counts[3 * which + 2],
                has_begun: begun,
                has_stood: stood,
                error: None,
            };
            let legs = [leg(0, true, true), leg(1, flags.0, flags.1)];
            let _ = derive([&legs[0], &legs[1]], [counts[6], counts[7]], None);
        }
    }

    #[test]
    fn of_two_closed_legs_those_that_ended_in_order_are_told_from_others() {
        let leg = |received_bytes, sent_bytes| LegFacts {
            state: CLOSED,
            received_bytes,
            sent_bytes,
            has_begun: true,
            has_stood: true,
            ..LegFacts::default()
        };
        let found = |client, server, held| derive([&client, &server], held, None).unwrap_err();
        assert_eq!(found(leg(17, 9), leg(9, 17), [0; 2]), Unfit::Over);
        let reset = LegFacts { error: Some(Fault::Reset), ..leg(9, 17) };
        assert_eq!(found(leg(17, 9), reset, [0; 2]), Unfit::Unclear);
        assert_eq!(found(leg(17, 9), leg(9, 16), [0; 2]), Unfit::Unclear, "a byte is missing");
        assert_eq!(found(leg(17, 9), leg(9, 17), [0, 1]), Unfit::Unclear, "it is held");
        assert_eq!(found(leg(0, 0), leg(0, 0), [0; 2]), Unfit::Unclear, "no end has come");
    }

    #[test]
    fn a_dial_is_begun_awaited_or_known_to_have_failed() {
        let client = LegFacts { state: 1, has_begun: true, has_stood: true, ..LegFacts::default() };
        let found = |server: LegFacts| derive([&client, &server], [0, 0], None).unwrap();
        let server = LegFacts { state: CLOSED, ..LegFacts::default() };
        assert_eq!(found(server).dial, Dial::Begin);
        assert_eq!(found(LegFacts { state: 2, has_begun: true, ..server }).dial, Dial::Await);
        let refused = LegFacts { has_begun: true, ..server };
        assert_eq!(found(refused).dial, Dial::Failed);
        assert_eq!(
            found(LegFacts { error: Some(Fault::Other), ..refused }).dial,
            Dial::Await,
            "it will tell"
        );
        let stands = found(LegFacts { state: 1, has_begun: true, has_stood: true, ..server });
        assert_eq!((stands.dial, stands.events), (Dial::Stands, vec![Event::Connected]));
    }
}
