//! Each span between two looks, divided among what held the connection: every microsecond once.
//!
//! The kernel's chronographs come first: `tcpi_busy_time` (something is outstanding or waits), and of it
//! `tcpi_rwnd_limited` and `tcpi_sndbuf_limited`. Time that is not busy is the program's. What is left of the busy
//! time goes to what the two looks at its ends show: who spoke last, what waits, which window is full.

use longfat_host::socket::TcpInfo;

/// Socket memory, the kernel's bookkeeping included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Receive buffer.
    pub rcvbuf_bytes: u32,
    /// Send buffer.
    pub sndbuf_bytes: u32,
    /// Held by what waits to be sent or acknowledged.
    pub send_queued_bytes: u32,
    /// Handed to this host's queueing discipline or driver, and not on the wire yet.
    pub below_tcp_bytes: u32,
}

impl Memory {
    /// The kernel wakes a writer when a third is free again (sk_stream_is_writeable).
    fn is_send_buffer_full(&self) -> bool {
        self.sndbuf_bytes > 0 && u64::from(self.send_queued_bytes) * 3 >= u64::from(self.sndbuf_bytes) * 2
    }
}

/// One look at a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// Any clock that only grows.
    pub time_us: u64,
    /// TCP_INFO.
    pub info: TcpInfo,
    /// Socket memory.
    pub memory: Memory,
    /// Received, not read.
    pub receive_queue_bytes: u32,
    /// Whether its congestion control sends by a rate that it finds, not by its window (BBR).
    pub paces: bool,
    /// Most the congestion window may be, where that could be asked (BPF).
    pub clamp_segments: Option<u32>,
}

/// What holds a connection, as far as a span of time shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// The program gives nothing.
    Program,
    /// The other side owes an answer.
    Answer,
    /// The other side sends, this one has nothing to.
    Receiving,
    /// Less than a segment waits for an acknowledgement.
    Nagle,
    /// The receiver's window.
    Window,
    /// The send buffer.
    Buffer,
    /// The congestion window, below ssthresh.
    SlowStart,
    /// The congestion window.
    Cwnd,
    /// The congestion window while a loss is repaired.
    Repair,
    /// The retransmission timer.
    Timeout,
    /// A pacing rate that was set.
    Pacing,
    /// What is below TCP on this host.
    Host,
    /// SYNs without an answer.
    Syn,
    /// None of these.
    Unknown,
}

/// How many there are.
pub const HOLDS: usize = Hold::Unknown as usize + 1;

/// Time under each [`Hold`], microseconds.
pub type Spent = [u64; HOLDS];

/// TCP_SYN_SENT of the kernel.
const SYN_SENT: u8 = 2;
/// TCP_FIN_WAIT1, TCP_LAST_ACK and TCP_CLOSING of the kernel.
const FIN_SENT: [u8; 3] = [4, 9, 11];
/// TCP_CA_CWR, TCP_CA_Recovery and TCP_CA_Loss of the kernel.
const CA_CWR: u8 = 2;
const CA_RECOVERY: u8 = 3;
pub(crate) const CA_LOSS: u8 = 4;

/// Ends that send, over a whole watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Talk {
    /// This end alone sends.
    Sends,
    /// The other end alone sends.
    Receives,
    /// Both do.
    Both,
}

/// A stream that goes one way has less than this part coming back.
const MOSTLY: u64 = 100;

impl Talk {
    /// Talk between the first and last look.
    pub fn of(first: &TcpInfo, last: &TcpInfo) -> Talk {
        let sent = last.sent_bytes.saturating_sub(first.sent_bytes);
        let received = last.received_bytes.saturating_sub(first.received_bytes);
        match (sent, received) {
            (sent, received) if sent > received.saturating_mul(MOSTLY) || received == 0 => Talk::Sends,
            (sent, received) if received > sent.saturating_mul(MOSTLY) => Talk::Receives,
            _ => Talk::Both,
        }
    }
}

/// What one look shows to hold the connection at that moment.
pub fn at(look: &Look, talk: Talk) -> Hold {
    at_while_out(look, talk, u64::MAX)
}

/// What one look shows, where something has been out for so long at the most.
fn at_while_out(look: &Look, talk: Talk, out_us: u64) -> Hold {
    let info = &look.info;
    if info.state == SYN_SENT {
        return Hold::Syn;
    }
    let waits_for_timer = info.ca_state == CA_LOSS || (info.retransmits > 0 && info.unacked_segments > 0);
    if waits_for_timer || is_silent(info, out_us) {
        return Hold::Timeout;
    }
    if info.notsent_bytes == 0 { without_unsent(look, talk) } else { with_unsent(look, talk) }
}

/// A receiver may delay an acknowledgement by so much (Linux: TCP_DELACK_MIN, one that is not in a hurry).
const DELAYED_ACK_US: u64 = 40_000;

/// Segments that may leave at once behind a pause (RFC 6928): more of them are a stream.
const FIRST_WINDOW_SEGMENTS: u32 = 10;

/// Something is out, and nothing has been heard for longer than an acknowledgement takes (RFC 6298 without the least
/// timeout; one answer that took a timeout makes the variance many round trips large): the timer is all that is left to
/// wait for, though it has not gone off yet.
fn is_silent(info: &TcpInfo, out_us: u64) -> bool {
    let srtt_us = u64::from(info.srtt_us);
    let expected_us = srtt_us + (4 * u64::from(info.rttvar_us)).min(srtt_us) + DELAYED_ACK_US;
    let is_long = |ms: u32| u64::from(ms) * 1000 > expected_us;
    // What was sent a moment ago behind a pause can have no answer yet, and when an end was sent is not told.
    let is_old = is_long(info.last_data_sent_ms) && !is_end_alone(info);
    let is_stream = info.unacked_segments > FIRST_WINDOW_SEGMENTS && !is_behind_a_pause(info);
    let is_out = is_old || (is_stream && out_us > expected_us);
    srtt_us > 0 && info.unacked_segments > 0 && is_out && is_long(info.last_ack_recv_ms)
}

/// A stream whose acknowledgements cease sends a loss probe two round trips behind its last (RFC 8985, section 7.2),
/// which follows the last acknowledgement within one.
const PROBED_ROUND_TRIPS: u64 = 3;

/// What was sent last is further behind the last acknowledgement than a stream's probe.
fn is_behind_a_pause(info: &TcpInfo) -> bool {
    let behind_ms = info.last_ack_recv_ms.saturating_sub(info.last_data_sent_ms);
    u64::from(behind_ms) * 1000 > PROBED_ROUND_TRIPS * u64::from(info.srtt_us) + DELAYED_ACK_US
}

/// All that is out is the connection's end (FIN).
fn is_end_alone(info: &TcpInfo) -> bool {
    FIN_SENT.contains(&info.state) && info.unacked_segments == 1
}

fn without_unsent(look: &Look, talk: Talk) -> Hold {
    if look.info.unacked_segments > 0 && look.memory.is_send_buffer_full() {
        return Hold::Buffer;
    }
    if has_ended_in_slow_start(look) {
        return Hold::SlowStart;
    }
    without_bytes(look, talk)
}

/// All is sent, its end (FIN) too, and slow start was never left: the last round trips are part of its turns, unless
/// the end came by itself, behind a pause.
fn has_ended_in_slow_start(look: &Look) -> bool {
    let info = &look.info;
    if is_end_alone(info) && u64::from(info.last_data_sent_ms) * 1000 > 2 * u64::from(info.srtt_us) {
        return false;
    }
    let never_left = info.ssthresh_segments().is_none() && info.total_retrans_segments == 0 && !look.paces;
    never_left && info.unacked_segments > 0 && FIN_SENT.contains(&info.state)
}

/// The program has nothing to send: whose turn it is.
fn without_bytes(look: &Look, talk: Talk) -> Hold {
    match talk {
        Talk::Sends => Hold::Program,
        Talk::Receives => Hold::Receiving,
        Talk::Both if look.info.last_data_recv_ms < look.info.last_data_sent_ms => Hold::Program,
        Talk::Both => Hold::Answer,
    }
}

fn with_unsent(look: &Look, talk: Talk) -> Hold {
    let info = &look.info;
    let (flight, cwnd) = (info.flight_segments(), info.snd_cwnd_segments);
    let outstanding = u64::from(info.unacked_segments) * u64::from(info.snd_mss_bytes);
    if matches!(info.ca_state, CA_RECOVERY | CA_CWR) {
        return Hold::Repair;
    }
    if outstanding + u64::from(info.snd_mss_bytes) > u64::from(info.snd_wnd_bytes) {
        return Hold::Window;
    }
    if is_held_to_a_rate(info) {
        return Hold::Pacing;
    }
    if look.memory.below_tcp_bytes >= 2 * info.snd_mss_bytes && flight + (cwnd / 10).max(2) < cwnd {
        return Hold::Host;
    }
    if flight + deferred(cwnd) >= cwnd {
        return if cwnd < info.snd_ssthresh_segments { Hold::SlowStart } else { Hold::Cwnd };
    }
    if info.notsent_bytes < info.snd_mss_bytes && info.unacked_segments > 0 {
        // Of a stream the rest of a write waits for the next one: its program's next write comes first.
        return if talk == Talk::Both { Hold::Nagle } else { Hold::Program };
    }
    let is_buffer_full = look.memory.is_send_buffer_full();
    if is_buffer_full && would_fit(info) {
        return Hold::Buffer;
    }
    if look.paces {
        return Hold::Cwnd;
    }
    if is_buffer_full { Hold::Buffer } else { Hold::Unknown }
}

/// All that waits could be under way, by the congestion window: more would be, if the buffer held more. A buffer that
/// the kernel sizes by the window holds more than that.
fn would_fit(info: &TcpInfo) -> bool {
    let free_segments = info.snd_cwnd_segments.saturating_sub(info.flight_segments());
    u64::from(info.notsent_bytes) <= u64::from(free_segments) * u64::from(info.snd_mss_bytes)
}

/// Segments for which a sender may wait to send more at once (TSO deferral: a third of the window by default).
fn deferred(cwnd: u32) -> u32 {
    (cwnd / 3).max(2)
}

/// Whether the pacing rate is one that was set (SO_MAX_PACING_RATE).
pub fn is_held_to_a_rate(info: &TcpInfo) -> bool {
    let most = info.max_pacing_rate_bytes_per_s;
    most != 0 && most != u64::MAX && info.pacing_rate_bytes_per_s >= most
}

fn grown(before: u64, after: u64) -> u64 {
    after.saturating_sub(before)
}

/// A program pauses that leaves its connection idle for more than this part of a span.
const PAUSING_ONE_IN: u64 = 20;

/// The kernel's clock of busy time and a look's may differ by so much.
const CLOCKS_DIFFER_US: u64 = 20_000;

/// How long something has been out at the later look at the most, where that was so long at the earlier one.
fn out_us(before: &Look, after: &Look, before_us: u64) -> u64 {
    let elapsed = grown(before.time_us, after.time_us);
    let busy = grown(before.info.busy_us, after.info.busy_us).min(elapsed);
    if elapsed - busy > CLOCKS_DIFFER_US { busy } else { before_us.saturating_add(elapsed) }
}

/// Divides each span between two looks of a watch, the oldest first.
pub fn spans(looks: &[Look], talk: Talk) -> Vec<Spent> {
    let mut before_us = u64::MAX;
    let span = |pair: &[Look]| {
        let after_us = out_us(&pair[0], &pair[1], before_us);
        let spent = divide(&pair[0], &pair[1], talk, [before_us, after_us]);
        before_us = after_us;
        spent
    };
    looks.windows(2).map(span).collect()
}

/// Divides the span between two looks, at which something has been out for so long at the most; the parts sum up to it
/// exactly.
fn divide(before: &Look, after: &Look, talk: Talk, out_us: [u64; 2]) -> Spent {
    let mut spent = [0; HOLDS];
    let elapsed = grown(before.time_us, after.time_us);
    let (a, b) = (&before.info, &after.info);
    if a.state == SYN_SENT {
        spent[Hold::Syn as usize] = elapsed;
        return spent;
    }
    let busy = grown(a.busy_us, b.busy_us).min(elapsed);
    let window = grown(a.rwnd_limited_us, b.rwnd_limited_us).min(busy);
    let ends = [at_while_out(before, talk, out_us[0]), at_while_out(after, talk, out_us[1])];
    let is_silent = timed_out(a, b) || ends == [Hold::Timeout; 2];
    // A buffer is full while nothing is acknowledged, too: it is the timer then that is waited for.
    let buffer =
        if is_silent { 0 } else { grown(a.sndbuf_limited_us, b.sndbuf_limited_us).min(busy - window) };
    spent[Hold::Window as usize] += window;
    spent[Hold::Buffer as usize] += buffer;
    share(&mut spent, elapsed - busy, ends.map(|hold| idle(hold, talk)));
    let rest = busy - window - buffer;
    if is_silent {
        spent[Hold::Timeout as usize] += rest;
    } else {
        // Who pauses is not held up by the buffer, however full it is while he sends.
        let pauses = elapsed - busy > elapsed / PAUSING_ONE_IN;
        let unless_pausing = |hold: Hold, look| match hold {
            Hold::Buffer if pauses => without_bytes(look, talk),
            hold => hold,
        };
        let tells = [before, after].map(|look| !is_idle(&look.info));
        divide_rest(
            &mut spent,
            rest,
            [unless_pausing(ends[0], before), unless_pausing(ends[1], after)],
            tells,
        );
    }
    spent
}

/// Whether the timer went off and nothing else brought the span on.
fn timed_out(before: &TcpInfo, after: &TcpInfo) -> bool {
    let timeouts = after.timeouts().zip(before.timeouts()).map_or(0, |(b, a)| b.saturating_sub(a));
    timeouts > 0 || (before.ca_state == CA_LOSS && after.ca_state == CA_LOSS)
}

/// What a moment says of time without anything outstanding.
fn idle(hold: Hold, talk: Talk) -> Hold {
    match (hold, talk) {
        (Hold::Program | Hold::Answer | Hold::Receiving, _) => hold,
        (_, Talk::Sends) => Hold::Program,
        (_, Talk::Receives) => Hold::Receiving,
        (_, Talk::Both) => Hold::Answer,
    }
}

fn share(spent: &mut Spent, time_us: u64, between: [Hold; 2]) {
    spent[between[0] as usize] += time_us / 2;
    spent[between[1] as usize] += time_us - time_us / 2;
}

/// Nothing is out and nothing waits.
fn is_idle(info: &TcpInfo) -> bool {
    info.unacked_segments == 0 && info.notsent_bytes == 0
}

/// Busy time that no chronograph of the kernel claims: a moment whose hold has one says less of it than another, and an
/// idle moment says nothing of it.
fn divide_rest(spent: &mut Spent, rest: u64, ends: [Hold; 2], is_busy: [bool; 2]) {
    let is_told =
        |at: usize| !matches!(ends[at], Hold::Window | Hold::Buffer) && (is_busy[at] || !is_busy[1 - at]);
    match (is_told(0), is_told(1)) {
        (true, true) => share(spent, rest, ends),
        (true, false) => share(spent, rest, [ends[0]; 2]),
        (false, true) => share(spent, rest, [ends[1]; 2]),
        // A clock claims less than what both moments show: the moments go on.
        (false, false) => share(spent, rest, ends),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn divided(before: Look, after: Look, talk: Talk) -> Spent {
        spans(&[before, after], talk)[0]
    }

    fn look(time_us: u64, busy_us: u64, rwnd_limited_us: u64, sndbuf_limited_us: u64) -> Look {
        let info = TcpInfo { state: 1, busy_us, rwnd_limited_us, sndbuf_limited_us, ..TcpInfo::default() };
        Look { time_us, info, ..Look::default() }
    }

    /// Whatever a kernel may say.
    pub(crate) fn any_look() -> impl Strategy<Value = Look> {
        let words = proptest::collection::vec(any::<u8>(), size_of::<TcpInfo>());
        (words, any::<u32>(), any::<[u32; 4]>()).prop_map(|(bytes, time_us, memory)| Look {
            time_us: time_us.into(),
            info: TcpInfo::from_bytes(&bytes),
            memory: Memory {
                sndbuf_bytes: memory[0],
                send_queued_bytes: memory[1],
                below_tcp_bytes: memory[2],
                rcvbuf_bytes: memory[3],
            },
            ..Look::default()
        })
    }

    proptest! {
        #[test]
        fn every_microsecond_has_one_cause_whatever_the_kernel_says(a in any_look(), b in any_look()) {
            for talk in [Talk::Sends, Talk::Receives, Talk::Both] {
                let spent = divided(a, b, talk);
                prop_assert_eq!(spent.iter().sum::<u64>(), b.time_us.saturating_sub(a.time_us));
            }
        }
    }

    #[test]
    fn the_kernels_clocks_come_first() {
        let spent = divided(look(0, 0, 0, 0), look(100_000, 80_000, 50_000, 20_000), Talk::Sends);
        assert_eq!(spent[Hold::Window as usize], 50_000);
        assert_eq!(spent[Hold::Buffer as usize], 20_000);
        assert_eq!(spent[Hold::Program as usize], 30_000);
    }

    #[test]
    fn an_idle_moment_says_nothing_of_busy_time() {
        let starts = |time_us, busy_us| {
            let mut look = look(time_us, busy_us, 0, 0);
            (look.info.snd_mss_bytes, look.info.unacked_segments, look.info.snd_cwnd_segments) =
                (1000, 10, 10);
            (look.info.notsent_bytes, look.info.snd_wnd_bytes) = (50_000, 1 << 20);
            look.info.snd_ssthresh_segments = u32::MAX;
            look
        };
        let spent = divided(starts(0, 0), look(40_000, 30_000, 0, 0), Talk::Sends);
        assert_eq!((spent[Hold::SlowStart as usize], spent[Hold::Program as usize]), (30_000, 10_000));
        let spent = divided(look(0, 0, 0, 0), starts(40_000, 30_000), Talk::Sends);
        assert_eq!((spent[Hold::SlowStart as usize], spent[Hold::Program as usize]), (30_000, 10_000));
    }

    #[test]
    fn a_buffer_that_is_full_in_a_silence_is_not_what_holds_it() {
        let mut after = look(100_000, 100_000, 0, 100_000);
        assert_eq!(divided(look(0, 0, 0, 0), after, Talk::Sends)[Hold::Buffer as usize], 100_000);
        after.info.total_rto = 1;
        assert_eq!(divided(look(0, 0, 0, 0), after, Talk::Sends)[Hold::Timeout as usize], 100_000);
    }

    #[test]
    fn a_burst_behind_a_pause_is_not_silent_before_its_acknowledgement_is_due() {
        let sent = |time_us, busy_us, last_data_sent_ms, last_ack_recv_ms| {
            let mut look = look(time_us, busy_us, 0, 0);
            (look.info.unacked_segments, look.info.srtt_us, look.info.rttvar_us) = (40, 200_000, 5_000);
            (look.info.last_data_sent_ms, look.info.last_ack_recv_ms) = (last_data_sent_ms, last_ack_recv_ms);
            look
        };
        let timeout_us = |looks: &[Look]| -> u64 {
            spans(looks, Talk::Sends).iter().map(|spent| spent[Hold::Timeout as usize]).sum()
        };
        let burst = [look(0, 0, 0, 0), sent(100_000, 20_000, 20, 350), sent(200_000, 120_000, 120, 450)];
        assert_eq!(timeout_us(&burst), 0);
        // A stream that was never idle, and its loss probe.
        let stream = [look(0, 0, 0, 0), sent(100_000, 100_000, 20, 350), sent(200_000, 200_000, 120, 450)];
        assert_eq!(timeout_us(&stream), 200_000);
    }

    #[test]
    fn who_spoke_last_waits_for_the_other() {
        let of = |last_data_sent_ms, last_data_recv_ms| {
            let info = TcpInfo { state: 1, last_data_sent_ms, last_data_recv_ms, ..TcpInfo::default() };
            at(&Look { info, ..Look::default() }, Talk::Both)
        };
        assert_eq!((of(5, 90), of(90, 5)), (Hold::Answer, Hold::Program));
    }

    #[test]
    fn what_waits_tells_the_windows_apart() {
        let of = |change: fn(&mut TcpInfo)| {
            let mut info = TcpInfo {
                state: 1,
                snd_mss_bytes: 1000,
                unacked_segments: 30,
                snd_cwnd_segments: 30,
                snd_ssthresh_segments: 20,
                snd_wnd_bytes: 1 << 20,
                notsent_bytes: 50_000,
                max_pacing_rate_bytes_per_s: u64::MAX,
                ..TcpInfo::default()
            };
            change(&mut info);
            at(&Look { info, ..Look::default() }, Talk::Sends)
        };
        assert_eq!(of(|_| ()), Hold::Cwnd);
        assert_eq!(of(|info| info.snd_ssthresh_segments = 31), Hold::SlowStart);
        assert_eq!(of(|info| info.snd_wnd_bytes = 30_500), Hold::Window);
        assert_eq!(of(|info| info.ca_state = 3), Hold::Repair);
        assert_eq!(of(|info| info.ca_state = 4), Hold::Timeout);
        let heard = |info: &mut TcpInfo| {
            (info.srtt_us, info.rttvar_us, info.last_ack_recv_ms) = (100_000, 10_000, 180);
        };
        let silent = |info: &mut TcpInfo| {
            (info.srtt_us, info.rttvar_us, info.last_ack_recv_ms) = (100_000, 10_000, 181);
            info.last_data_sent_ms = 81;
        };
        let after_a_pause = |info: &mut TcpInfo| {
            (info.srtt_us, info.rttvar_us, info.last_ack_recv_ms) = (100_000, 10_000, 60_000);
            (info.notsent_bytes, info.unacked_segments, info.last_data_sent_ms) = (0, 10, 20);
        };
        assert_eq!(of(after_a_pause), Hold::Program);
        let burst = |info: &mut TcpInfo| {
            (info.srtt_us, info.rttvar_us, info.last_ack_recv_ms) = (100_000, 10_000, 400);
            (info.notsent_bytes, info.last_data_sent_ms) = (0, 40);
        };
        assert_eq!(of(burst), Hold::Program, "more than a first window, sent behind a pause");
        let after_a_timeout = |info: &mut TcpInfo| {
            (info.srtt_us, info.rttvar_us, info.last_ack_recv_ms) = (500_000, 700_000, 1_041);
            info.last_data_sent_ms = 600;
        };
        assert_eq!(of(after_a_timeout), Hold::Timeout);
        let end_alone = |info: &mut TcpInfo| {
            (info.srtt_us, info.rttvar_us, info.last_ack_recv_ms) = (100_000, 10_000, 60_000);
            (info.notsent_bytes, info.unacked_segments, info.last_data_sent_ms) = (0, 1, 60_000);
            info.state = 4;
        };
        assert_eq!(of(end_alone), Hold::Program);
        assert_eq!(
            (of(heard), of(silent)),
            (Hold::Cwnd, Hold::Timeout),
            "an acknowledgement takes 180 ms at most"
        );
        assert_eq!(of(|info| (info.unacked_segments, info.notsent_bytes) = (1, 200)), Hold::Program);
        assert_eq!(of(|info| info.notsent_bytes = 0), Hold::Program);
        let paced = |info: &mut TcpInfo| {
            (info.max_pacing_rate_bytes_per_s, info.pacing_rate_bytes_per_s) = (5000, 5000);
        };
        assert_eq!(of(paced), Hold::Pacing);
        let ended = |info: &mut TcpInfo| (info.state, info.notsent_bytes) = (4, 0);
        assert_eq!(of(ended), Hold::Program, "ssthresh was set");
        let ended_at_first = |info: &mut TcpInfo| {
            (info.state, info.notsent_bytes, info.snd_ssthresh_segments) = (4, 0, u32::MAX);
        };
        assert_eq!(of(ended_at_first), Hold::SlowStart);
        let ended_after_a_pause = |info: &mut TcpInfo| {
            (info.state, info.notsent_bytes, info.snd_ssthresh_segments) = (4, 0, u32::MAX);
            (info.unacked_segments, info.srtt_us, info.last_data_sent_ms) = (1, 50_000, 101);
        };
        assert_eq!(of(ended_after_a_pause), Hold::Program);
    }

    #[test]
    fn a_full_buffer_whose_rest_would_fit_into_the_window_is_what_holds_also_a_sender_that_paces() {
        let of = |notsent_bytes, paces| {
            let info = TcpInfo {
                state: 1,
                snd_mss_bytes: 1000,
                unacked_segments: 30,
                snd_cwnd_segments: 70,
                snd_wnd_bytes: 1 << 20,
                notsent_bytes,
                max_pacing_rate_bytes_per_s: u64::MAX,
                ..TcpInfo::default()
            };
            let memory = Memory { sndbuf_bytes: 100_000, send_queued_bytes: 80_000, ..Memory::default() };
            at(&Look { info, memory, paces, ..Look::default() }, Talk::Sends)
        };
        assert_eq!((of(40_000, true), of(40_001, true)), (Hold::Buffer, Hold::Cwnd));
        assert_eq!((of(40_000, false), of(40_001, false)), (Hold::Buffer, Hold::Buffer));
    }
}
