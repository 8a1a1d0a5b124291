use super::world::{Peer, Step, World};
use super::*;
use Direction::{ClientToServer, ServerToClient};
use proptest::prelude::*;

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
fn an_urgent_byte_goes_by_itself_and_is_written_as_one() {
    let mut connection = open();
    connection.on(Event::Readable(Side::Client));
    connection.on(Event::ReadMark(ClientToServer));
    assert_eq!(
        (connection.next(ClientToServer), connection.held_bytes(ClientToServer)),
        (Action::WriteMark, 1)
    );
    connection.on(Event::WriteBlocked(ClientToServer));
    assert_eq!(connection.next(ClientToServer), Action::Wait);
    connection.on(Event::Writable(Side::Server));
    assert_eq!(connection.next(ClientToServer), Action::WriteMark);
    connection.on(Event::Written(ClientToServer, 1));
    assert_eq!(connection.next(ClientToServer), Action::Read);
    connection.on(Event::Read(ClientToServer, 1));
    assert_eq!(connection.next(ClientToServer), Action::Write, "the next byte is like any other");
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
fn a_reset_that_is_told_twice_leaves_what_came_before_it_to_be_read() {
    let mut connection = open();
    connection.on(Event::Read(ServerToClient, 5));
    for _ in ["by a writing", "by an event"] {
        connection.on(Event::Failed(Side::Client));
    }
    assert_eq!((connection.next(ClientToServer), connection.ending()), (Action::Read, None));
    connection.on(Event::Read(ClientToServer, 7));
    assert_eq!(connection.next(ClientToServer), Action::Write);
    connection.on(Event::Written(ClientToServer, 7));
    connection.on(Event::ReadFailed(ClientToServer));
    assert_eq!(connection.ending(), Some(Ending::Settle(Side::Server)));
}

#[test]
fn no_fin_follows_a_reading_that_failed() {
    let mut connection = open();
    connection.on(Event::FinishedBefore(Side::Client));
    connection.on(Event::Failed(Side::Client));
    connection.on(Event::ReadFailed(ClientToServer));
    assert_eq!(connection.next(ClientToServer), Action::Wait);
    assert_eq!(connection.ending(), Some(Ending::Settle(Side::Server)));
}

#[test]
fn a_fin_goes_before_the_reset_that_came_after_it() {
    let mut connection = open();
    connection.on(Event::Read(ClientToServer, 5));
    connection.on(Event::FinishedBefore(Side::Client));
    connection.on(Event::Failed(Side::Client));
    connection.on(Event::Written(ClientToServer, 5));
    assert_eq!((connection.next(ClientToServer), connection.ending()), (Action::Read, None));
    connection.on(Event::ReadEnded(ClientToServer));
    assert_eq!((connection.next(ClientToServer), connection.ending()), (Action::Finish, None));
    connection.on(Event::Finished(ClientToServer));
    assert_eq!(connection.ending(), Some(Ending::Settle(Side::Server)));
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

#[test]
fn what_a_client_sent_is_delivered_although_it_was_reset_before_the_server_leg_stood() {
    let mut connection = Connection::new();
    connection.on(Event::Readable(Side::Client));
    connection.on(Event::Failed(Side::Client));
    assert!(connection.is_client_gone() && connection.is_connecting());
    assert_eq!((connection.next(ClientToServer), connection.ending()), (Action::Wait, None));
    connection.on(Event::Connected);
    assert_eq!((connection.next(ClientToServer), connection.resetting()), (Action::Read, Some(Side::Client)));
    connection.on(Event::Read(ClientToServer, 5));
    connection.on(Event::Written(ClientToServer, 5));
    connection.on(Event::ReadEnded(ClientToServer));
    assert_eq!(connection.ending(), Some(Ending::Settle(Side::Server)));
}

#[test]
fn a_server_that_refuses_or_takes_too_long_ends_what_a_client_left_behind() {
    for end in [Event::Failed(Side::Server), Event::Expired] {
        let mut connection = Connection::new();
        connection.on(Event::Failed(Side::Client));
        connection.on(end);
        assert_eq!((connection.ending(), connection.is_client_gone()), (Some(Ending::Reset), false));
    }
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Server)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (side(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(s, b)| Step::Arrive(s, b)),
        2 => (side(), any::<u8>()).prop_map(|(s, b)| Step::Urge(s, b)),
        6 => (side(), 1usize..60).prop_map(|(s, n)| Step::Room(s, n)),
        1 => side().prop_map(Step::Fin),
        1 => side().prop_map(Step::Reset),
        1 => side().prop_map(Step::ResetUntold),
        2 => side().prop_map(Step::Spurious),
        8 => Just(Step::Turn),
    ]
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
        let is_reset = |step: &Step| matches!(step, Step::Reset(_) | Step::ResetUntold(_));
        for step in steps.into_iter().filter(|step| !is_reset(step)) {
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
        let calm = |step: &Step| match step {
            Step::Reset(_) => false,
            Step::Fin(side) | Step::ResetUntold(side) => *side == who,
            _ => true,
        };
        for step in steps.into_iter().filter(calm) {
            world.apply(step);
        }
        world.apply(Step::Reset(who));
        world.apply(Step::Room(who.other(), 1 << 20));
        world.turn();
        world.check_prefix();
        prop_assert_eq!(world.logic.ending(), Some(Ending::Settle(who.other())));
        prop_assert_eq!(world.peers[who.other() as usize].got.len(), world.sent[who as usize].len());
        let Peer { sent_fin, told_by_writing, .. } = world.peers[who as usize];
        prop_assert!(world.peers[who.other() as usize].got_fin == sent_fin || told_by_writing);
        world.logic.on(Event::Settled);
        prop_assert_eq!(world.logic.ending(), Some(Ending::Reset));
    }

    #[test]
    fn whatever_a_client_does_before_the_server_leg_stands_its_bytes_arrive(
        steps in prop::collection::vec(step(), 1..60),
        read_limit in 1usize..50,
        is_reset in any::<bool>(),
    ) {
        let mut world = World::connecting(read_limit);
        let refuses = |step: &Step| matches!(step, Step::Reset(Side::Server) | Step::ResetUntold(Side::Server));
        for step in steps.into_iter().filter(|step| !refuses(step)) {
            world.apply(step);
        }
        prop_assert!(world.logic.ending().is_none() && world.peers[1].got.is_empty());
        world.apply(if is_reset { Step::Reset(Side::Client) } else { Step::Fin(Side::Client) });
        world.apply(Step::Connect);
        world.apply(Step::Room(Side::Server, 1 << 20));
        world.turn();
        world.check_prefix();
        prop_assert_eq!(world.peers[1].got.len(), world.sent[0].len());
        let is_settling = world.logic.ending() == Some(Ending::Settle(Side::Server));
        prop_assert_eq!(is_settling, world.peers[0].failed, "a reset, after all else");
        prop_assert_eq!(world.peers[1].got_fin, world.peers[0].sent_fin);
    }

    #[test]
    fn a_server_that_refuses_ends_the_connection_whatever_the_client_did(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::connecting(10);
        for step in steps {
            world.apply(step);
        }
        world.apply(Step::Reset(Side::Server));
        prop_assert_eq!(world.logic.ending(), Some(Ending::Reset));
    }
}
