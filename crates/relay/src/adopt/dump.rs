//! Where the legs of a connection stand, and all that is in their queues, for two sockets that go on elsewhere.
//!
//! Both are made deaf first, so that nothing is acknowledged that the other sockets do not know of, and their windows
//! are shut behind what was sent: if more went out, its receiver would acknowledge what the other sockets have not
//! sent, and they would believe nothing of it. Nothing is taken from them: if they are to go on here they do, as if
//! packets had been lost for a moment. They leave repair mode before anybody waits, for a socket in repair mode would
//! vanish without a word if this process were killed.

use super::{
    release::Both,
    repaired::{self, RECEIVE_QUEUE, RepairWindow, SEND_QUEUE, set},
};
use crate::{
    legs::leg::{self, REPAIR_OFF},
    logic::tcp_state::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT1, FIN_WAIT2},
    moving::message::{LegRecord, MOST_QUEUED_BYTES, Stay},
};
use longfat_host::socket::{self, OPTION_SACK, OPTION_TIMESTAMPS, TcpInfo};
use nix::errno::Errno;
use std::{io, net::TcpStream, os::fd::AsRawFd};

/// The kernel gives whole packets of what was sent, the first of which may be acknowledged in part.
const ACKNOWLEDGED_IN_PART_BYTES: usize = 256 << 10;

/// Where a leg stands.
#[derive(Debug)]
pub(crate) struct Dump {
    pub record: LegRecord,
    /// Sent, and not acknowledged.
    pub unacknowledged: Vec<u8>,
    /// Given to it, and not sent.
    pub unsent: Vec<u8>,
    /// Received, and not read.
    pub unread: Vec<u8>,
    /// Packets that it had got by then.
    pub heard: u32,
    /// The window that its peer had told.
    pub peer_window_bytes: u32,
}

/// Numbers that say whether anything has come meanwhile.
type Mark = (u32, u32, u64, u64);

impl Both<'_> {
    /// Makes both legs deaf, and reads what is in them. They stay deaf, and send nothing new, until they are told to
    /// [`Both::go_on`].
    pub fn dump(self) -> Result<[Dump; 2], Stay> {
        self.deafen().map_err(|_| Stay::Closing)?;
        let client = Dump::of(self.client).inspect_err(|_| self.hear())?;
        let server =
            Dump::of(self.server).inspect_err(|_| self.go_on([Some(client.peer_window_bytes), None]))?;
        Ok([client, server])
    }

    /// Both hear again, and may send into these windows.
    pub fn go_on(self, windows: [Option<u32>; 2]) {
        for (leg, window) in [self.client, self.server].into_iter().zip(windows) {
            // A socket that refuses has ended.
            let _ = window.map(|bytes| in_repair(leg, || open_window(leg, bytes)));
        }
        self.hear();
    }
}

impl Dump {
    fn of(leg: &TcpStream) -> Result<Dump, Stay> {
        let info = socket::tcp_info(leg).map_err(|_| Stay::Socket)?;
        if ![ESTABLISHED, CLOSE_WAIT, FIN_WAIT1, FIN_WAIT2].contains(&info.state) {
            return Err(Stay::Closing);
        }
        // A mark that is not at the beginning stops a reading.
        if leg::is_at_mark(leg) {
            return Err(Stay::Urgent);
        }
        let read = || {
            let window = shut_window(leg)?;
            Ok(Dump::read(leg, &info, &window).inspect_err(|_| drop(open_window(leg, window.snd_wnd))))
        };
        in_repair(leg, read).map_err(|_| Stay::Socket)?
    }

    fn read(leg: &TcpStream, info: &TcpInfo, window: &RepairWindow) -> Result<Dump, Stay> {
        let failed = |_: io::Error| Stay::Socket;
        let before = mark(leg).map_err(failed)?;
        let (unread_bytes, unsent_bytes) = (leg::unread_bytes(leg), leg::unsent_bytes(leg));
        let (receive_next, written, _, unacked_bytes) = before;
        if unread_bytes.max(unacked_bytes) > MOST_QUEUED_BYTES as u64 {
            return Err(Stay::Size);
        }
        let unread = peek(leg, RECEIVE_QUEUE, unread_bytes as usize).map_err(failed)?;
        if unread.len() as u64 != unread_bytes {
            return Err(Stay::Urgent);
        }
        // A FIN counts as one, here and there.
        let has_fin_sent = [FIN_WAIT1, FIN_WAIT2].contains(&info.state);
        if has_fin_sent && unsent_bytes == 0 && unacked_bytes > 0 {
            // It will be acknowledged with the bytes before it, which the other socket would not believe.
            return Err(Stay::Busy);
        }
        let end = written.wrapping_sub(u32::from(has_fin_sent));
        let data_bytes = (unacked_bytes as u32).saturating_sub(u32::from(has_fin_sent));
        let send_next = end.wrapping_sub(data_bytes);
        let room = data_bytes as usize + ACKNOWLEDGED_IN_PART_BYTES;
        let mut sent = peek(leg, SEND_QUEUE, if data_bytes > 0 { room } else { 0 }).map_err(failed)?;
        let acknowledged = sent.len().checked_sub(data_bytes as usize).ok_or(Stay::Busy)?;
        sent.drain(..acknowledged);
        let unsent_bytes =
            (unsent_bytes as usize).saturating_sub(usize::from(has_fin_sent)).min(data_bytes as usize);
        let unsent = sent.split_off(sent.len() - unsent_bytes);
        let option = |name| socket::option(leg, libc::IPPROTO_TCP, name).map_err(failed);
        let timestamp =
            (info.options & OPTION_TIMESTAMPS != 0).then(|| option(libc::TCP_TIMESTAMP)).transpose()?;
        let has_fin = info.state == CLOSE_WAIT;
        let receive_next = receive_next.wrapping_sub(u32::from(has_fin));
        let (told_window_bytes, window_told_at) = told(window, receive_next);
        let record = LegRecord {
            send_next,
            unacknowledged_bytes: sent.len() as u32,
            receive_next,
            has_fin,
            // In repair mode it is what the peer said.
            peer_mss_bytes: u16::try_from(option(libc::TCP_MAXSEG)?).map_err(|_| Stay::Size)?,
            peer_scale: info.window_scales & 0xf,
            own_scale: info.window_scales >> 4,
            sack: info.options & OPTION_SACK != 0,
            timestamp: timestamp.map(|timestamp| timestamp as u32),
            peer_window_bytes: window.snd_wnd,
            told_window_bytes,
            window_told_at,
        };
        if mark(leg).map_err(failed)? != before {
            return Err(Stay::Busy);
        }
        Ok(Dump {
            record,
            unacknowledged: sent,
            unsent,
            unread,
            heard: info.segs_in,
            peer_window_bytes: window.snd_wnd,
        })
    }
}

fn in_repair<T>(leg: &TcpStream, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    set(leg, libc::TCP_REPAIR, 1)?;
    let done = work();
    set(leg, libc::TCP_REPAIR, REPAIR_OFF)?;
    done
}

/// Nothing is sent from now on that was not sent before; the windows as they were.
fn shut_window(leg: &TcpStream) -> io::Result<RepairWindow> {
    let window = repaired::window(leg)?;
    let sent_bytes = leg::unacked_bytes(leg).saturating_sub(leg::unsent_bytes(leg)) as u32;
    repaired::set_window(leg, RepairWindow { snd_wnd: sent_bytes.min(window.snd_wnd), ..window })?;
    Ok(window)
}

/// The peer's window is what it told again.
fn open_window(leg: &TcpStream, bytes: u32) -> io::Result<()> {
    let window = repaired::window(leg)?;
    repaired::set_window(
        leg,
        RepairWindow { snd_wnd: bytes, max_window: window.max_window.max(bytes), ..window },
    )
}

/// The window that its peer was told, and from where on: not from behind a FIN, which is received anew.
fn told(window: &RepairWindow, receive_next: u32) -> (u32, u32) {
    let beyond = (window.rcv_wup.wrapping_sub(receive_next) as i32).max(0) as u32;
    (window.rcv_wnd.wrapping_add(beyond), window.rcv_wup.wrapping_sub(beyond))
}

fn mark(leg: &TcpStream) -> io::Result<Mark> {
    let sequence = |queue| {
        set(leg, libc::TCP_REPAIR_QUEUE, queue)?;
        Ok::<u32, io::Error>(socket::option(leg, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)? as u32)
    };
    let (received, written) = (sequence(RECEIVE_QUEUE)?, sequence(SEND_QUEUE)?);
    Ok((received, written, leg::unread_bytes(leg), leg::unacked_bytes(leg)))
}

/// A copy of what a queue holds, of at most so many bytes.
fn peek(leg: &TcpStream, queue: i32, most_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most_bytes];
    if bytes.is_empty() {
        return Ok(bytes);
    }
    set(leg, libc::TCP_REPAIR_QUEUE, queue)?;
    // SAFETY: the descriptor is open, and the kernel writes at most as many bytes as there are.
    let count = unsafe {
        libc::recv(
            leg.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    bytes.truncate(Errno::result(count)? as usize);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_told_behind_a_fin_ends_where_it_did() {
        let window = RepairWindow { rcv_wnd: 500, rcv_wup: 0, ..RepairWindow::default() };
        assert_eq!(told(&window, 0), (500, 0));
        assert_eq!(told(&window, 100), (500, 0));
        assert_eq!(told(&window, u32::MAX), (501, u32::MAX), "the FIN was acknowledged");
    }
}
