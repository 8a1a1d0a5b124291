//! What the kernel says of a connection that somebody else has carried.

use super::derive::{Fault, LegFacts};
use crate::{
    Error, Result,
    legs::leg,
    logic::{
        connection::Side,
        tcp_state::{CLOSED, SYN_RECEIVED, SYN_SENT},
    },
};
use longfat_host::socket::{TcpInfo, tcp_info};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
};

/// Bytes may arrive between two readings of one socket.
const TRIES: usize = 100;

/// Looks at one leg. An error that waits in one that stood is taken.
pub(crate) fn of_leg(socket: &TcpStream, side: Side) -> Result<LegFacts> {
    // The kernel counts the SYN of the side that connected as an acknowledged byte: the relay's towards the server.
    facts_of(socket, side, u64::from(side == Side::Server), 0)
}

/// Looks at a leg that was put in between: it has sent no SYN, and so many bytes had been sent before. What another
/// router had received of its peer counts like what it received itself.
pub(crate) fn of_inserted_leg(
    socket: &TcpStream,
    side: Side,
    (loaded_bytes, brought_bytes): (u64, u64),
) -> Result<LegFacts> {
    let facts = facts_of(socket, side, 0, loaded_bytes)?;
    Ok(LegFacts { received_bytes: facts.received_bytes + brought_bytes, ..facts })
}

fn facts_of(socket: &TcpStream, side: Side, syn: u64, loaded_bytes: u64) -> Result<LegFacts> {
    let (info, unread_bytes, unacked_bytes) = settled(socket)?;
    let is_waiting = [SYN_SENT, SYN_RECEIVED].contains(&info.state);
    let has_stood = !is_waiting && (side == Side::Client || info.acked_bytes >= syn);
    let is_closed = info.state == CLOSED;
    let sent_bytes = if has_stood { info.acked_bytes - syn + unacked_bytes } else { 0 };
    let sent_bytes = sent_bytes.saturating_sub(loaded_bytes);
    let error = if is_closed && has_error(socket) { Some(waiting_fault(socket, has_stood)) } else { None };
    Ok(LegFacts {
        state: info.state,
        received_bytes: info.received_bytes,
        unread_bytes,
        sent_bytes,
        has_begun: side == Side::Client || !is_closed || info.segs_out > 0,
        has_stood,
        error,
    })
}

/// What belongs together: of one moment.
fn settled(socket: &TcpStream) -> Result<(TcpInfo, u64, u64)> {
    let mut before = tcp_info(socket)?;
    for _ in 0..TRIES {
        let (unread_bytes, unacked_bytes) = (leg::unread_bytes(socket), leg::unacked_bytes(socket));
        let after = tcp_info(socket)?;
        let counts = |info: &TcpInfo| (info.state, info.received_bytes, info.acked_bytes);
        if counts(&before) == counts(&after) {
            return Ok((after, unread_bytes, unacked_bytes));
        }
        before = after;
    }
    Err(Error::io("look at a socket that never rests", std::io::ErrorKind::WouldBlock))
}

fn has_error(socket: &TcpStream) -> bool {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    let found = poll(&mut polled, PollTimeout::ZERO).is_ok();
    found && polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR))
}

/// Takes the error that waits in a socket. A dial's error stays where it is: an event will tell of it.
fn waiting_fault(socket: &TcpStream, has_stood: bool) -> Fault {
    let error = if has_stood { socket.take_error().ok().flatten() } else { None };
    error.as_ref().map_or(Fault::Other, fault)
}

fn fault(error: &std::io::Error) -> Fault {
    match error {
        error if leg::is_reset_after_fin(error) => Fault::ResetAfterFin,
        error if leg::is_reset(error) => Fault::Reset,
        _ => Fault::Other,
    }
}

/// Tells of each connection whether bytes, or an end, wait at one of its legs, or one was not dialled yet: all at once.
pub(crate) fn have_something<'s>(legs: impl Iterator<Item = [&'s TcpStream; 2]>) -> Vec<bool> {
    let mut polled: Vec<_> = legs.flatten().map(|leg| PollFd::new(leg.as_fd(), PollFlags::POLLIN)).collect();
    // Where they cannot be asked all are alike.
    let _ = poll(&mut polled, PollTimeout::ZERO);
    polled.chunks(2).map(|legs| legs.iter().any(|leg| leg.any().unwrap_or(false))).collect()
}

/// Bytes in a pipe.
pub(crate) fn of_pipe(read: &OwnedFd) -> u64 {
    leg::unread_bytes(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        handover::derive::{Found, derive},
        keeping::Keeping,
        legs::{
            buffer::{Budget, Buffer, Moved, Pool},
            inbound::{consume, write_mark},
        },
        logic::{
            connection::{Direction, Event},
            tcp_state::CLOSE_WAIT,
        },
        plan::BUFFER_BYTES,
    };
    use longfat_host::socket::set_option;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use std::{
        io::{Read, Write},
        net::{Shutdown, TcpListener},
        time::{Duration, Instant},
    };

    /// A client, the relay's two legs, and a server.
    struct World {
        client: TcpStream,
        legs: [TcpStream; 2],
        server: TcpStream,
    }

    impl World {
        fn new() -> World {
            let (clients, servers) = (listening(), listening());
            let client = TcpStream::connect(clients.local_addr().unwrap()).unwrap();
            let to_server = TcpStream::connect(servers.local_addr().unwrap()).unwrap();
            let legs = [clients.accept().unwrap().0, to_server];
            for leg in &legs {
                leg.set_nonblocking(true).unwrap();
                set_option(leg, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).unwrap();
            }
            World { client, legs, server: servers.accept().unwrap().0 }
        }

        fn client_sends(&self, text: &[u8]) {
            (&self.client).write_all(text).unwrap();
            eventually(|| leg::unread_bytes(&self.legs[0]) >= text.len() as u64);
        }

        /// What would be found if the relay died now.
        fn found(&self, held_bytes: u64) -> Found {
            let facts = [of_leg(&self.legs[0], Side::Client), of_leg(&self.legs[1], Side::Server)];
            let facts = facts.map(|facts| facts.unwrap());
            derive([&facts[0], &facts[1]], [held_bytes, 0], None).unwrap()
        }

        fn has_state(&self, side: Side, state: u8) {
            eventually(|| tcp_info(&self.legs[side as usize]).unwrap().state == state);
        }
    }

    fn listening() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    fn eventually(mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    const UP: Direction = Direction::ClientToServer;

    #[test]
    fn connections_for_which_something_has_come_are_told_from_silent_ones() {
        let worlds = [(); 5].map(|()| World::new());
        worlds[1].client_sends(b"x");
        worlds[3].server.shutdown(Shutdown::Write).unwrap();
        worlds[3].has_state(Side::Server, CLOSE_WAIT);
        let bare = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
        let undialled = [worlds[4].legs[0].try_clone().unwrap(), bare.into()];
        let legs = worlds.iter().map(|world| &world.legs).chain([&undialled]).map(|legs| legs.each_ref());
        assert_eq!(have_something(legs), [false, true, false, true, false, true]);
    }

    #[test]
    fn what_was_sent_before_it_was_taken_is_counted_whatever_came_besides() {
        for fin in [false, true] {
            let world = World::new();
            world.client_sends(b"0123456789");
            assert_eq!(world.found(0).sent_before, [0, 0]);
            (&world.legs[1]).write_all(b"012345").unwrap();
            if fin {
                world.client.shutdown(Shutdown::Write).unwrap();
                world.has_state(Side::Client, CLOSE_WAIT);
            }
            let found = world.found(0);
            assert_eq!((found.sent_before, found.relayed_bytes), ([6, 0], [6, 0]), "{fin}");
            consume(&world.legs[0], 6).unwrap();
            assert_eq!(world.found(0).sent_before, [0, 0]);
            let mut rest = [0; 8];
            assert_eq!((&world.legs[0]).read(&mut rest).unwrap(), 4);
            assert_eq!(&rest[..4], b"6789");
        }
    }

    #[test]
    fn an_urgent_byte_that_was_sent_and_not_taken_is_one_that_was_sent() {
        let world = World::new();
        world.client_sends(b"ab");
        consume(&world.legs[0], 2).unwrap();
        (&world.legs[1]).write_all(b"ab").unwrap();
        assert_eq!(write_mark(&world.client, b'!'), Moved::Bytes(1));
        eventually(|| leg::unread_bytes(&world.legs[0]) == 1 && leg::is_at_mark(&world.legs[0]));
        assert_eq!(world.found(0).sent_before, [0, 0]);
        assert_eq!(write_mark(&world.legs[1], b'!'), Moved::Bytes(1));
        assert_eq!(world.found(0).sent_before, [1, 0]);
        consume(&world.legs[0], 1).unwrap();
        assert_eq!(world.found(0).sent_before, [0, 0]);
    }

    #[test]
    fn what_is_in_a_pipe_is_held_in_whole_and_in_part() {
        let (budget, keeping) = (Budget::new(1, 1 << 30), Keeping::new(None, &[]));
        let mut pipe = Pool::new(&budget, &keeping).take();
        let world = World::new();
        world.client_sends(&[7; 1000]);
        assert_eq!(pipe.fill(&world.legs[0], BUFFER_BYTES, false), Moved::Bytes(1000));
        let Buffer::Pipe { read, .. } = &pipe else { panic!("no pipe is to be had") };
        assert_eq!(of_pipe(read), 1000);
        let found = world.found(1000);
        assert_eq!(found.events, [Event::Connected, Event::Read(UP, 1000)]);
        assert_eq!(pipe.drain(&world.legs[1], false), Moved::Bytes(1000));
        assert_eq!(
            (world.found(0).events, world.found(0).relayed_bytes),
            (vec![Event::Connected], [1000, 0])
        );
    }

    #[test]
    fn ends_are_found_as_they_were_passed_on_or_not() {
        let world = World::new();
        world.client_sends(b"last");
        world.client.shutdown(Shutdown::Write).unwrap();
        world.has_state(Side::Client, CLOSE_WAIT);
        assert_eq!(world.found(0).events, [Event::Connected], "its end is still to be read");
        consume(&world.legs[0], 4).unwrap();
        (&world.legs[1]).write_all(b"last").unwrap();
        assert_eq!(world.found(0).events, [Event::Connected]);
        world.legs[1].shutdown(Shutdown::Write).unwrap();
        let ended = [Event::Connected, Event::ReadEnded(UP), Event::Finished(UP)];
        assert_eq!(world.found(0).events, ended);
        (&world.server).write_all(b"an answer").unwrap();
        eventually(|| leg::unread_bytes(&world.legs[1]) == 9);
        let found = world.found(0);
        assert_eq!((found.events, found.relayed_bytes), (ended.to_vec(), [4, 0]));
    }

    #[test]
    fn a_reset_is_found_with_or_without_a_fin_before_it_whether_its_error_waits_or_was_taken() {
        for fin in [false, true] {
            for is_taken in [false, true] {
                let world = World::new();
                world.client_sends(b"acknowledged");
                if fin {
                    world.client.shutdown(Shutdown::Write).unwrap();
                    world.has_state(Side::Client, CLOSE_WAIT);
                }
                leg::reset(&world.client);
                world.has_state(Side::Client, CLOSED);
                if is_taken {
                    assert!(world.legs[0].take_error().unwrap().is_some());
                }
                let failed = [Event::FinishedBefore(Side::Client), Event::Failed(Side::Client)];
                let expected = if fin { &failed[..] } else { &failed[1..] };
                let found = world.found(0);
                assert_eq!(&found.events[1..], expected, "{fin} {is_taken}");
            }
        }
    }
}
