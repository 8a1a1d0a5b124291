//! What the kernel says of a connection that somebody else has carried.

use super::derive::{Fault, LegFacts};
use crate::{Error, Result, connection::Side, leg};
use longfat_host::socket::{TcpInfo, tcp_info};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
};

const SYN_SENT: u8 = 2;
const SYN_RECEIVED: u8 = 3;
const CLOSED: u8 = 7;
/// Bytes may arrive between two readings of one socket.
const TRIES: usize = 100;

/// Looks at one leg. An error that waits in one that stood is taken.
pub(crate) fn of_leg(socket: &TcpStream, side: Side) -> Result<LegFacts> {
    let (info, unread_bytes, unacked_bytes) = settled(socket)?;
    // The kernel counts the SYN of the side that connected as an acknowledged byte: the relay's towards the server.
    let syn = u64::from(side == Side::Server);
    let is_waiting = [SYN_SENT, SYN_RECEIVED].contains(&info.state);
    let has_stood = !is_waiting && (side == Side::Client || info.acked_bytes >= syn);
    let is_closed = info.state == CLOSED;
    let sent_bytes = if has_stood { info.acked_bytes - syn + unacked_bytes } else { 0 };
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

/// That of a dial stays where it is: an event will tell of it.
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

/// Bytes in a pipe.
pub(crate) fn of_pipe(read: &OwnedFd) -> u64 {
    leg::unread_bytes(read)
}
