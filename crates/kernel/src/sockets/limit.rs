//! What keeps a connection from sending more right now.
//!
//! From one look: what is in flight against the windows. From two: how long the kernel says each limit held between
//! them (its "chronographs": tcpi_busy_time, tcpi_rwnd_limited, tcpi_sndbuf_limited), which is the better answer.

use super::connection::{Connection, SocketMemory};
use longfat_host::socket::TcpInfo;

/// What limits a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The sender has nothing outstanding, and nothing waits.
    Idle,
    /// The program gives it nothing more to send.
    Application,
    /// The congestion window is full.
    Cwnd,
    /// The receiver's window is full.
    ReceiveWindow,
    /// The program wants to send more than the send buffer takes.
    SendBuffer,
    /// Bytes wait although both windows have room: pacing, or the queues below TCP.
    Pacing,
}

impl Limit {
    /// Every limit and its name.
    pub const NAMES: [(Limit, &'static str); 6] = [
        (Limit::Idle, "idle"),
        (Limit::Application, "app"),
        (Limit::Cwnd, "cwnd"),
        (Limit::ReceiveWindow, "rwnd"),
        (Limit::SendBuffer, "sndbuf"),
        (Limit::Pacing, "pacing"),
    ];

    /// As in tables and filters.
    pub fn name(self) -> &'static str {
        Limit::NAMES.iter().find(|(limit, _)| *limit == self).map_or("", |(_, name)| name)
    }
}

/// The limit as one look shows it.
pub fn at_once(info: &TcpInfo, memory: Option<&SocketMemory>) -> Limit {
    if info.notsent_bytes == 0 {
        return without_unsent(info, memory);
    }
    let outstanding = u64::from(info.unacked_segments) * u64::from(info.snd_mss_bytes);
    if info.flight_segments() >= info.snd_cwnd_segments {
        Limit::Cwnd
    } else if outstanding + u64::from(info.snd_mss_bytes) > u64::from(info.snd_wnd_bytes) {
        Limit::ReceiveWindow
    } else {
        Limit::Pacing
    }
}

fn without_unsent(info: &TcpInfo, memory: Option<&SocketMemory>) -> Limit {
    if info.unacked_segments == 0 {
        return Limit::Idle;
    }
    // The kernel takes bytes from the program while what is queued is less than the buffer.
    let full = memory.is_some_and(|memory| memory.send_queued_bytes >= memory.sndbuf_bytes);
    if full { Limit::SendBuffer } else { Limit::Application }
}

/// The limit that held for most of the time between two looks `elapsed_us` apart.
pub fn between(before: &TcpInfo, after: &TcpInfo, memory: Option<&SocketMemory>, elapsed_us: u64) -> Limit {
    let busy = after.busy_us.saturating_sub(before.busy_us);
    let rwnd = after.rwnd_limited_us.saturating_sub(before.rwnd_limited_us);
    let sndbuf = after.sndbuf_limited_us.saturating_sub(before.sndbuf_limited_us);
    if busy == 0 {
        return at_once(after, memory);
    }
    if rwnd * 2 >= busy {
        Limit::ReceiveWindow
    } else if sndbuf * 2 >= busy {
        Limit::SendBuffer
    } else if busy * 2 < elapsed_us {
        Limit::Application
    } else {
        at_once(after, memory)
    }
}

/// Limit of a connection, from one look.
pub fn of(connection: &Connection) -> Option<Limit> {
    let can_send = matches!(connection.state.0, 1 | 4 | 8 | 9 | 11);
    let info = connection.info.as_ref().filter(|_| can_send)?;
    Some(at_once(info, connection.memory.as_ref()))
}

/// Fills [`Connection::limit`] of those present in both looks.
pub fn compare(before: &[Connection], after: &mut [Connection], elapsed_us: u64) {
    let earlier: std::collections::HashMap<u64, &TcpInfo> =
        before.iter().filter_map(|one| Some((one.cookie, one.info.as_ref()?))).collect();
    for connection in after {
        let one_look = of(connection);
        let two_looks = connection.info.as_ref().and_then(|info| {
            let before = earlier.get(&connection.cookie)?;
            Some(between(before, info, connection.memory.as_ref(), elapsed_us))
        });
        connection.limit = one_look.and(two_looks).or(one_look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(flight: u32, cwnd: u32, unsent: u32, window: u32) -> TcpInfo {
        TcpInfo {
            unacked_segments: flight,
            snd_cwnd_segments: cwnd,
            notsent_bytes: unsent,
            snd_wnd_bytes: window,
            snd_mss_bytes: 1000,
            ..TcpInfo::default()
        }
    }

    #[test]
    fn one_look_tells_the_windows_apart() {
        assert_eq!(at_once(&info(0, 10, 0, 60_000), None), Limit::Idle);
        assert_eq!(at_once(&info(5, 10, 0, 60_000), None), Limit::Application);
        assert_eq!(at_once(&info(10, 10, 5000, 60_000), None), Limit::Cwnd);
        assert_eq!(at_once(&info(9, 10, 5000, 9500), None), Limit::ReceiveWindow);
        assert_eq!(at_once(&info(5, 10, 5000, 60_000), None), Limit::Pacing);
    }

    #[test]
    fn a_full_send_buffer_with_nothing_unsent_is_the_limit() {
        let memory =
            SocketMemory { sndbuf_bytes: 16_384, send_queued_bytes: 16_500, ..SocketMemory::default() };
        assert_eq!(at_once(&info(5, 10, 0, 60_000), Some(&memory)), Limit::SendBuffer);
        let roomy = SocketMemory { send_queued_bytes: 100, ..memory };
        assert_eq!(at_once(&info(5, 10, 0, 60_000), Some(&roomy)), Limit::Application);
    }

    #[test]
    fn two_looks_go_by_what_held_longest() {
        let before = TcpInfo::default();
        let after = |busy_us, rwnd_limited_us, sndbuf_limited_us| TcpInfo {
            busy_us,
            rwnd_limited_us,
            sndbuf_limited_us,
            ..info(10, 10, 5000, 60_000)
        };
        let limit = |after: TcpInfo| between(&before, &after, None, 100_000);
        assert_eq!(limit(after(100_000, 60_000, 0)), Limit::ReceiveWindow);
        assert_eq!(limit(after(100_000, 0, 60_000)), Limit::SendBuffer);
        assert_eq!(limit(after(20_000, 0, 0)), Limit::Application);
        assert_eq!(limit(after(100_000, 10_000, 10_000)), Limit::Cwnd);
    }
}
