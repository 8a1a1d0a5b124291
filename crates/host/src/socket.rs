//! TCP sockets: congestion control, buffers, TCP_INFO.

use crate::{Error, Result, monotonic_us, sysctl};
use longfat_schema::record::TcpSample;
use std::{ffi::c_void, io, os::fd::AsFd, os::fd::AsRawFd};

/// Longest congestion-control name, without its terminator (TCP_CA_NAME_MAX).
pub const CC_NAME_MAX: usize = 15;

/// Sets one integer option.
pub fn set_option(socket: &impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open and `value` is a c_int of the length given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast::<c_void>(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads one integer option.
pub fn option(socket: &impl AsFd, level: i32, option: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` and `length` are valid to write, and `length` is the size of `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw mut value).cast::<c_void>(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Chooses the congestion control. Do it **before connect** and on the listener: a socket that started under
/// BBR keeps kernel pacing after a change.
pub fn set_cc(socket: &impl AsFd, name: &str) -> Result<()> {
    let mend = match name.strip_prefix("lf_") {
        Some(ours) => format!("load it with 'longfat cc load {ours}', or see 'longfat cc list'"),
        None => "see 'longfat cc list' for what this kernel has".to_owned(),
    };
    let what = || format!("congestion control '{name}' ({mend})");
    if name.is_empty() || name.len() > CC_NAME_MAX {
        return Err(Error::io(what(), io::Error::from_raw_os_error(libc::EINVAL)));
    }
    // SAFETY: the kernel copies `name.len()` bytes and needs no terminator.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast::<c_void>(),
            name.len() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        refused if refused.raw_os_error() == Some(libc::EPERM) => Err(restricted(name)),
        refused => Err(Error::io(what(), refused)),
    }
}

/// What is wrong with a congestion control that the kernel has, and gives to others only.
pub const CC_RESTRICTED: &str = "is there, but this user may not use it";

/// What the kernel gives to everybody.
const ALLOWED: &str = "net.ipv4.tcp_allowed_congestion_control";

/// A congestion control that is only for who has CAP_NET_ADMIN, and for whom root allows it.
fn restricted(name: &str) -> Error {
    let allowed =
        sysctl::read(ALLOWED).map_or_else(|_| name.to_owned(), |allowed| format!("{allowed} {name}"));
    let mend =
        format!("run it as root, or have root allow it to everybody: sysctl -w {ALLOWED}=\"{allowed}\"");
    Error::CcRestricted { name: name.to_owned(), mend }
}

/// The congestion control in use.
pub fn cc(socket: &impl AsFd) -> Result<String> {
    let mut name = [0u8; CC_NAME_MAX + 1];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: `name` has `length` bytes to write to.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast::<c_void>(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(Error::io("read a socket's congestion control", io::Error::last_os_error()));
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Sets the send (`SO_SNDBUF…`) or receive buffer beyond `net.core.?mem_max` when privileged, else up to it.
/// The kernel doubles the number for its own bookkeeping and turns autotuning off.
pub fn set_buffer(socket: &impl AsFd, direction: Buffer, bytes: u64) -> Result<()> {
    let value = i32::try_from(bytes / 2).unwrap_or(i32::MAX / 2).max(1);
    let (forced, plain) = match direction {
        Buffer::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        Buffer::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
    };
    set_option(socket, libc::SOL_SOCKET, forced, value)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, plain, value))
        .map_err(|source| Error::io(format!("set the {direction:?} buffer to {bytes} bytes"), source))
}

/// Sends at most at this rate (SO_MAX_PACING_RATE; TCP paces itself where the qdisc does not), or without a limit.
pub fn set_pacing_rate(socket: &impl AsFd, rate_bps: Option<u64>) -> Result<()> {
    let bytes_per_s: u64 = rate_bps.map_or(u64::MAX, |rate_bps| rate_bps / 8);
    // SAFETY: the descriptor is open and the value, of the length given, is a u64, which the kernel takes.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_s).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(Error::io(format!("set the pacing rate to {rate_bps:?} bit/s"), io::Error::last_os_error()))
}

/// The buffer as the kernel counts it (bookkeeping included).
pub fn buffer(socket: &impl AsFd, direction: Buffer) -> u64 {
    let name = match direction {
        Buffer::Send => libc::SO_SNDBUF,
        Buffer::Receive => libc::SO_RCVBUF,
    };
    option(socket, libc::SOL_SOCKET, name).map_or(0, |bytes| bytes as u64)
}

/// Which socket buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// SO_SNDBUF.
    Send,
    /// SO_RCVBUF.
    Receive,
}

/// TCP_INFO as this kernel gives it; what a shorter, older answer lacks is as in [`TcpInfo::unanswered`].
pub fn tcp_info(socket: &impl AsFd) -> Result<TcpInfo> {
    let mut info = TcpInfo::unanswered();
    let mut length = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: TcpInfo is plain integers of the kernel's layout; the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast::<c_void>(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(info) } else { Err(Error::io("read TCP_INFO", io::Error::last_os_error())) }
}

/// What BBR takes its path's bandwidth to be (`bbr_bw` of TCP_CC_INFO), in bytes of payload per second; `None` under
/// another congestion control, or before its first round trip.
pub fn bbr_bytes_per_s(socket: &impl AsFd) -> Option<u64> {
    /// `struct tcp_bbr_info` of `linux/inet_diag.h`.
    const BBR_INFO_BYTES: usize = 20;
    if cc(socket).ok()? != "bbr" {
        return None;
    }
    let mut info = [0u32; BBR_INFO_BYTES / 4];
    let mut length = BBR_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, all of them into `info`, of which any bytes are a value.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CC_INFO,
            (&raw mut info).cast::<c_void>(),
            &raw mut length,
        )
    };
    let bytes_per_s = u64::from(info[1]) << 32 | u64::from(info[0]);
    (result == 0 && length as usize == BBR_INFO_BYTES && bytes_per_s > 0).then_some(bytes_per_s)
}

/// One record of a socket's control block, stamped now. `flow`, `stream` and `role` are left for the caller.
pub fn tcp_sample(socket: &impl AsFd) -> Result<TcpSample> {
    let info = tcp_info(socket)?;
    Ok(TcpSample { time_us: monotonic_us(), cc: cc(socket)?, ..info.sample() })
}

/// What both ends agreed on, in [`TcpInfo::options`] (TCPI_OPT_… of `linux/tcp.h`): timestamps.
pub const OPTION_TIMESTAMPS: u8 = 1;
/// Selective acknowledgements.
pub const OPTION_SACK: u8 = 2;
/// Scaled windows.
pub const OPTION_WINDOW_SCALE: u8 = 4;

/// `struct tcp_info` of `linux/tcp.h` (6.x). The two bytes of bit fields are kept raw.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct TcpInfo {
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    pub window_scales: u8,
    pub flags: u8,
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss_bytes: u32,
    pub rcv_mss_bytes: u32,
    pub unacked_segments: u32,
    pub sacked_segments: u32,
    pub lost_segments: u32,
    pub retrans_segments: u32,
    pub fackets_segments: u32,
    pub last_data_sent_ms: u32,
    pub last_ack_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    pub pmtu_bytes: u32,
    pub rcv_ssthresh_bytes: u32,
    pub srtt_us: u32,
    pub rttvar_us: u32,
    pub snd_ssthresh_segments: u32,
    pub snd_cwnd_segments: u32,
    pub advmss_bytes: u32,
    pub reordering_segments: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space_bytes: u32,
    pub total_retrans_segments: u32,
    pub pacing_rate_bytes_per_s: u64,
    pub max_pacing_rate_bytes_per_s: u64,
    pub acked_bytes: u64,
    pub received_bytes: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    pub min_rtt_us: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate_bytes_per_s: u64,
    pub busy_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub delivered_segments: u32,
    pub delivered_ce_segments: u32,
    pub sent_bytes: u64,
    pub retrans_bytes: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub snd_wnd_bytes: u32,
    pub rcv_wnd_bytes: u32,
    pub rehash: u32,
    pub total_rto: u16,
    pub total_rto_recoveries: u16,
    pub total_rto_time_ms: u32,
}

/// `snd_ssthresh` and `min_rtt` before they are known (TCP_INFINITE_SSTHRESH, ~0).
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

impl TcpInfo {
    /// Before the kernel has answered: zero, but for a count that a kernel older than Linux 6.7 does not give, and
    /// whose zero would say something.
    fn unanswered() -> TcpInfo {
        TcpInfo { total_rto: u16::MAX, ..TcpInfo::default() }
    }

    /// From the bytes of a kernel of any age: what a shorter answer lacks is as in [`TcpInfo::unanswered`], what a
    /// longer one adds is left out.
    pub fn from_bytes(bytes: &[u8]) -> TcpInfo {
        let mut info = TcpInfo::unanswered();
        let length = bytes.len().min(size_of::<TcpInfo>());
        // SAFETY: TcpInfo is plain integers, for which every byte pattern is valid; `length` fits both.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut info).cast::<u8>(), length) };
        info
    }

    /// Segments sent and not yet known to have left the network (RFC 6675 pipe).
    pub fn flight_segments(&self) -> u32 {
        self.unacked_segments
            .saturating_add(self.retrans_segments)
            .saturating_sub(self.sacked_segments.saturating_add(self.lost_segments))
    }

    /// Slow-start threshold, unless it is unlimited.
    pub fn ssthresh_segments(&self) -> Option<u32> {
        (self.snd_ssthresh_segments < INFINITE_SSTHRESH).then_some(self.snd_ssthresh_segments)
    }

    /// Least round-trip time, once one was measured.
    pub fn least_rtt_us(&self) -> Option<u32> {
        (self.min_rtt_us != 0 && self.min_rtt_us != u32::MAX).then_some(self.min_rtt_us)
    }

    /// Pacing rate, when it is limited.
    pub fn pacing_rate_bps(&self) -> Option<u64> {
        let paced = self.pacing_rate_bytes_per_s != u64::MAX && self.pacing_rate_bytes_per_s != 0;
        paced.then(|| self.pacing_rate_bytes_per_s.saturating_mul(8))
    }

    /// Retransmission timeouts so far, where the kernel counts them.
    pub fn timeouts(&self) -> Option<u16> {
        (self.total_rto != TcpInfo::unanswered().total_rto).then_some(self.total_rto)
    }

    /// Recovery state: `open`, `disorder`, `cwr`, `recovery` or `loss`.
    pub fn ca_state_name(&self) -> &'static str {
        ca_state_name(self.ca_state)
    }

    /// Whether the latest delivery rate was limited by the application.
    pub fn is_app_limited(&self) -> bool {
        self.flags & 1 == 1
    }

    /// A record of it. Time, congestion control, `flow`, `stream` and `role` are left for the caller.
    pub fn sample(&self) -> TcpSample {
        TcpSample {
            ca_state: ca_state_name(self.ca_state).to_owned(),
            cwnd_segments: self.snd_cwnd_segments,
            ssthresh_segments: self.ssthresh_segments(),
            srtt_us: self.srtt_us,
            rttvar_us: self.rttvar_us,
            min_rtt_us: self.least_rtt_us(),
            rto_us: self.rto_us,
            mss_bytes: self.snd_mss_bytes,
            flight_segments: self.flight_segments(),
            lost_segments: self.lost_segments,
            retransmitted_segments: u64::from(self.total_retrans_segments),
            sent_bytes: self.sent_bytes,
            retransmitted_bytes: self.retrans_bytes,
            acked_bytes: self.acked_bytes,
            received_bytes: self.received_bytes,
            unsent_bytes: u64::from(self.notsent_bytes),
            delivery_rate_bps: self.delivery_rate_bytes_per_s.saturating_mul(8),
            pacing_rate_bps: self.pacing_rate_bps(),
            rwnd_limited_us: self.rwnd_limited_us,
            sndbuf_limited_us: self.sndbuf_limited_us,
            delivered_ce_segments: u64::from(self.delivered_ce_segments),
            timeouts: self.timeouts().map(u64::from),
            duplicate_segments: Some(u64::from(self.dsack_dups)),
            ..TcpSample::default()
        }
    }
}

/// Name of a recovery state by its number in the kernel.
pub fn ca_state_name(state: u8) -> &'static str {
    ["open", "disorder", "cwr", "recovery", "loss"].get(usize::from(state)).copied().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn congestion_control_is_set_and_read_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_cc(&socket, "reno").unwrap();
        assert_eq!(cc(&socket).unwrap(), "reno");
        let message = set_cc(&socket, "no-such-cc").unwrap_err().to_string();
        assert!(message.contains("'no-such-cc'") && message.contains("longfat cc list"), "{message}");
    }

    #[test]
    fn a_congestion_control_that_is_for_others_is_told_from_one_that_is_not_there() {
        let error = restricted("vegas");
        let allowed = sysctl::read(ALLOWED).unwrap();
        assert!(error.is_not_permitted());
        let mend = format!("sysctl -w {ALLOWED}=\"{allowed} vegas\"");
        let said = error.to_string();
        assert!(
            said.starts_with("congestion control 'vegas' is there, but") && said.ends_with(&mend),
            "{said}"
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!set_cc(&listener, "no-such-cc").unwrap_err().is_not_permitted());
    }

    #[test]
    fn a_kernel_that_does_not_count_timeouts_is_not_taken_for_one_without_any() {
        let whole = size_of::<TcpInfo>();
        let of = |length: usize| TcpInfo::from_bytes(&vec![0; length]).sample();
        assert_eq!((of(whole).timeouts, of(whole - 8).timeouts), (Some(0), None));
        assert_eq!(of(whole - 8).duplicate_segments, Some(0));
    }

    #[test]
    fn tcp_info_of_a_live_connection_has_a_window_and_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sample = tcp_sample(&socket).unwrap();
        assert!(sample.cwnd_segments > 0 && sample.srtt_us > 0 && sample.mss_bytes > 500, "{sample:?}");
        assert_eq!((sample.ssthresh_segments, sample.ca_state.as_str()), (None, "open"));
    }

    #[test]
    fn bbr_says_what_it_takes_the_bandwidth_to_be_and_reno_does_not() {
        use std::io::{Read as _, Write as _};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reno = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_cc(&reno, "reno").unwrap();
        reno.write_all(b"1").unwrap();
        assert_eq!(bbr_bytes_per_s(&reno), None);
        drop(listener.accept().unwrap());
        let mut bbr = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_cc(&bbr, "bbr").expect("this test needs root, and BBR in the kernel ('modprobe tcp_bbr')");
        let (mut peer, _) = listener.accept().unwrap();
        // Each answer is a round trip that BBR measures.
        for _ in 0..50 {
            bbr.write_all(&[7; 4096]).unwrap();
            peer.read_exact(&mut [0; 4096]).unwrap();
            peer.write_all(b"1").unwrap();
            bbr.read_exact(&mut [0]).unwrap();
        }
        assert!(bbr_bytes_per_s(&bbr).is_some_and(|rate| rate > 0));
    }

    #[test]
    fn buffers_are_what_was_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_buffer(&socket, Buffer::Send, 1 << 20).unwrap();
        assert_eq!(buffer(&socket, Buffer::Send), 1 << 20);
    }
}
