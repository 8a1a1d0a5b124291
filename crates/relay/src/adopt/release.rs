//! Leaving a connection that the relay stepped into: both sockets vanish without a word, and the ends go on with each
//! other.
//!
//! It takes that neither leg holds anything: all that was received is read, written, sent and acknowledged. Then each
//! leg knows what the end knows that it speaks as. What comes while that is looked at is dropped, and sent again by its
//! end; nothing is acknowledged in those microseconds.

use super::{
    clocks::{Clock, Clocks},
    repaired::{self, RECEIVE_QUEUE, RepairWindow, SEND_QUEUE, set},
    segment,
};
use crate::{
    legs::leg,
    logic::{Pair, connection::Side, tcp_state::ESTABLISHED},
};
use longfat_host::socket::{self, OPTION_TIMESTAMPS, TcpInfo};
use nix::errno::Errno;
use std::{
    io,
    net::{IpAddr, TcpStream},
    os::fd::AsRawFd,
    time::Instant,
};

/// The two sockets of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Both<'a> {
    pub client: &'a TcpStream,
    pub server: &'a TcpStream,
    pub pair: Pair,
}

/// What keeps a connection here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Bytes are under way, in a queue, or not acknowledged.
    Busy,
    /// An end was not heard lately: [`Both::probe`] has both say something.
    Unheard,
    /// An end's timestamps are not where its leg's are.
    Clock,
    /// A leg told a larger window than the end behind the other has: what is sent into it would be lost.
    Window,
}

/// Where a leg stands, read in repair mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    send_next: u32,
    receive_next: u32,
    /// What its peer may still send, by what it was told.
    told_bytes: u32,
    /// What the leg may send to its peer.
    peer_window_bytes: u32,
}

/// What the ends are told when both legs have gone: where everything stands, and the true window, which may be larger
/// than what they knew.
#[derive(Debug)]
pub(crate) struct Released {
    updates: [(Vec<u8>, IpAddr); 2],
}

impl Both<'_> {
    /// Makes both legs deaf and dumb if nothing keeps the connection here. An end's window of `enough_bytes` may be
    /// less than the other end believes: what is sent into a window that is not there is lost once, and sent again.
    pub fn release(self, clocks: &Clocks, enough_bytes: u32) -> Result<Released, Kept> {
        let infos = self.look()?;
        self.check_clocks(clocks, &infos)?;
        let standing = self.stop(enough_bytes).inspect_err(|_| self.hear())?;
        Ok(Released { updates: self.updates(clocks, &infos, standing) })
    }

    /// Both vanish: in repair mode a reset goes nowhere. From now on packets pass from end to end.
    pub fn vanish(self) {
        self.legs().into_iter().for_each(leg::reset);
    }

    /// Tells each leg's peer as little window as the kernel can, from what it was told on: a stream comes to rest when
    /// the rest of that is used.
    pub fn clamp(self) {
        // A socket that refuses has ended.
        for leg in self.legs() {
            let _ = set(leg, libc::TCP_WINDOW_CLAMP, 1);
        }
    }

    /// Has both ends say something: leaving repair mode with a window probe, which every end answers.
    pub fn probe(self) {
        self.legs().into_iter().for_each(leg::probe);
    }

    /// Neither leg gets anything from now on; what was received is acknowledged now, not by a timer.
    pub fn deafen(self) -> io::Result<()> {
        self.legs().iter().try_for_each(|leg| set(leg, libc::TCP_QUICKACK, 1))?;
        self.legs().iter().try_for_each(|leg| deafen(leg))
    }

    /// Both go on as before they were made deaf, or went into repair mode.
    pub fn hear(self) {
        self.legs().into_iter().for_each(leg::hear);
    }

    /// Both vanish without a word if this process is killed, until they are to hear again.
    pub fn die_silently(self) {
        for leg in self.legs() {
            // A socket that refuses has ended.
            let _ = set(leg, libc::TCP_REPAIR, 1);
        }
    }

    /// Both vanish, deaf or not: nothing is said.
    pub fn vanish_quietly(self) {
        for leg in self.legs() {
            // A socket that refuses has ended.
            let _ = set(leg, libc::TCP_REPAIR, 1);
            leg::reset(leg);
        }
    }

    fn legs(&self) -> [&TcpStream; 2] {
        [self.client, self.server]
    }

    /// Whether nothing is in any queue. Cheap, and changes nothing.
    fn look(&self) -> Result<[TcpInfo; 2], Kept> {
        let info = |leg: &TcpStream| {
            let is_empty = leg::unread_bytes(leg) == 0 && leg::unacked_bytes(leg) == 0;
            let info = socket::tcp_info(leg).ok().filter(|info| is_empty && info.state == ESTABLISHED);
            // Segments that wait for an earlier one are acknowledged selectively, and are here.
            info.filter(|_| received_bytes(leg) == Some(0)).ok_or(Kept::Busy)
        };
        Ok([info(self.client)?, info(self.server)?])
    }

    fn check_clocks(&self, clocks: &Clocks, [of_client, of_server]: &[TcpInfo; 2]) -> Result<(), Kept> {
        let (client, server) = self.pair;
        let now = Instant::now();
        // Each leg speaks as the end behind the other.
        for (leg, info, end) in
            [(self.client, of_client, (server, client)), (self.server, of_server, (client, server))]
        {
            if !has_timestamps(info) {
                continue;
            }
            let told = timestamp(leg).map_err(|_| Kept::Busy)?;
            match clocks.judge(end, told, now) {
                Clock::Fits => {}
                Clock::Differs => return Err(Kept::Clock),
                Clock::Unseen => return Err(Kept::Unheard),
            }
        }
        Ok(())
    }

    fn stop(&self, enough_bytes: u32) -> Result<[Standing; 2], Kept> {
        self.deafen().map_err(|_| Kept::Busy)?;
        self.look()?;
        self.legs().iter().try_for_each(|leg| set(leg, libc::TCP_REPAIR, 1)).map_err(|_| Kept::Busy)?;
        let standing = |leg| standing(leg).map_err(|_| Kept::Busy);
        let (client, server) = (standing(self.client)?, standing(self.server)?);
        client.fits(&server)?;
        client.has_room_in(&server, enough_bytes)?;
        server.has_room_in(&client, enough_bytes)?;
        Ok([client, server])
    }

    fn updates(
        &self,
        clocks: &Clocks,
        [of_client, of_server]: &[TcpInfo; 2],
        [client, server]: [Standing; 2],
    ) -> [(Vec<u8>, IpAddr); 2] {
        let update = |side: Side| {
            let (leg, info, own, other, (from, to)) = match side {
                Side::Client => (self.client, of_client, client, server, (self.pair.1, self.pair.0)),
                Side::Server => (self.server, of_server, server, client, self.pair),
            };
            let scale = info.window_scales >> 4;
            let window = (other.peer_window_bytes >> scale).min(u16::MAX.into()) as u16;
            let told = has_timestamps(info).then(|| timestamp(leg).ok()).flatten();
            let timestamps = told.map(|told| (told, clocks.last((to, from)).unwrap_or(0)));
            (segment::ack((from, to), own.send_next, own.receive_next, window, timestamps), to.ip())
        };
        [update(Side::Client), update(Side::Server)]
    }
}

impl Released {
    /// Packets, each with the end that it is for.
    pub fn updates(&self) -> impl Iterator<Item = (&[u8], IpAddr)> {
        self.updates.iter().map(|(packet, to)| (packet.as_slice(), *to))
    }
}

impl Standing {
    /// Both legs' numbers are those of one stream each way.
    fn fits(&self, other: &Standing) -> Result<(), Kept> {
        let is_whole = self.send_next == other.receive_next && other.send_next == self.receive_next;
        is_whole.then_some(()).ok_or(Kept::Busy)
    }

    /// What this leg's peer may send has room at the end behind the other leg, or that has enough.
    fn has_room_in(&self, other: &Standing, enough_bytes: u32) -> Result<(), Kept> {
        let window_bytes = other.peer_window_bytes;
        (window_bytes >= self.told_bytes.min(enough_bytes)).then_some(()).ok_or(Kept::Window)
    }
}

fn standing(leg: &TcpStream) -> io::Result<Standing> {
    let sequence = |queue| {
        set(leg, libc::TCP_REPAIR_QUEUE, queue)?;
        Ok::<u32, io::Error>(socket::option(leg, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)? as u32)
    };
    let (send_next, receive_next) = (sequence(SEND_QUEUE)?, sequence(RECEIVE_QUEUE)?);
    let window = repaired::window(leg)?;
    let RepairWindow { snd_wnd, rcv_wnd, rcv_wup, .. } = window;
    let told_bytes = (rcv_wup.wrapping_add(rcv_wnd).wrapping_sub(receive_next) as i32).max(0) as u32;
    Ok(Standing { send_next, receive_next, told_bytes, peer_window_bytes: snd_wnd })
}

/// The timestamp that the leg would send now.
fn timestamp(leg: &TcpStream) -> io::Result<u32> {
    Ok(socket::option(leg, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP)? as u32)
}

fn has_timestamps(info: &TcpInfo) -> bool {
    info.options & OPTION_TIMESTAMPS != 0
}

/// Memory of what was received and is still here, in whichever queue (SO_MEMINFO).
fn received_bytes(leg: &TcpStream) -> Option<u32> {
    // SK_MEMINFO_VARS of `linux/sock_diag.h`, of which the first is what was received.
    let mut values = [0u32; 9];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the descriptor is open and `values` is valid for the length given.
    let result = unsafe {
        let at = values.as_mut_ptr().cast();
        libc::getsockopt(leg.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, at, &raw mut length)
    };
    (result == 0).then_some(values[0])
}

/// From now on the socket gets nothing.
fn deafen(leg: &TcpStream) -> io::Result<()> {
    const RETURN: u16 = 0x06;
    let mut nothing = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    // SAFETY: the descriptor is open; the kernel copies the program, which is one instruction.
    let result = unsafe {
        libc::setsockopt(
            leg.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legs_leave_only_with_one_stream_each_way_and_windows_that_are_there() {
        let client =
            Standing { send_next: 1, receive_next: u32::MAX, told_bytes: 500, peer_window_bytes: 900 };
        let server =
            Standing { send_next: u32::MAX, receive_next: 1, told_bytes: 900, peer_window_bytes: 500 };
        assert_eq!((client.fits(&server), server.fits(&client)), (Ok(()), Ok(())));
        let all = u32::MAX;
        assert_eq!((client.has_room_in(&server, all), server.has_room_in(&client, all)), (Ok(()), Ok(())));
        let sent = Standing { send_next: 2, ..client };
        assert_eq!((sent.fits(&server), server.fits(&sent)), (Err(Kept::Busy), Err(Kept::Busy)));
        let generous = Standing { told_bytes: 501, ..client };
        assert_eq!(generous.has_room_in(&server, all), Err(Kept::Window));
        assert_eq!(generous.has_room_in(&server, 501), Err(Kept::Window));
        assert_eq!(generous.has_room_in(&server, 500), Ok(()), "with enough of it");
    }
}
