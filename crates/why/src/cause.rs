//! The catalogue of causes: one place for their names, their meaning and how they are told apart.

use serde::Serialize;

/// Why a connection does not send faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The program at this end gives nothing to send.
    ProgramIdle,
    /// The program waits for the other side's answer.
    AnswerAwaited,
    /// A small write waits for an acknowledgement (RFC 896), which may be delayed (RFC 1122, 4.2.3.2).
    Nagle,
    /// The receiving program does not read.
    SlowReader,
    /// The receiver's buffer is small.
    ReceiveWindow,
    /// The connection has no window scaling (RFC 7323).
    WindowScaling,
    /// The send buffer is small.
    SendBuffer,
    /// Slow start is still under way.
    SlowStart,
    /// Slow start ended without a loss, below the pipe.
    SlowStartLeftEarly,
    /// The congestion window may not grow further.
    CwndClamp,
    /// The congestion window grows back after a loss.
    AfterLoss,
    /// The congestion window was given up while nothing was sent.
    RestartAfterIdle,
    /// The program, or whoever set it, has a rate held.
    Pacing,
    /// The path carries no more.
    PathFull,
    /// The path carries no more, and a queue stands before it.
    StandingQueue,
    /// Something drops above a rate and does not queue.
    Policer,
    /// Losses that no queue has a part in.
    RandomLoss,
    /// Packets that overtake each other are taken for lost.
    Reordering,
    /// Silence until the retransmission timer.
    Timeouts,
    /// Nothing comes back any more.
    NoAnswer,
    /// SYNs are lost or not answered.
    LostSyns,
    /// Acknowledgements are lost, thinned or compressed.
    Acknowledgements,
    /// Packets are small, or full ones do not pass.
    PacketSize,
    /// The path is another than before.
    PathChanged,
    /// This host's interface or queueing discipline takes no more.
    Host,
    /// The other end sends; what holds it is not seen from here.
    OtherEndSends,
    /// The facts do not decide.
    Unknown,
}

/// Where what is said comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The kernel says so.
    Kernel,
    /// Inference from what the kernel says.
    Inference,
    /// Inference from packets.
    Capture,
}

/// One cause, explained.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Cause that the entry explains.
    pub cause: Cause,
    /// In tables and JSON.
    pub name: &'static str,
    /// Whether the connection could be faster on the same path: what is no fault asks for no remedy.
    pub is_fault: bool,
    /// Goes on from "for 91 % of the time ".
    pub words: &'static str,
    /// How it is told from others.
    pub told_by: &'static str,
}

macro_rules! catalogue {
    ($($cause:ident $name:literal $fault:literal $words:literal $told:literal;)*) => {
        /// Every cause.
        pub const CATALOGUE: &[Entry] = &[$(Entry {
            cause: Cause::$cause, name: $name, is_fault: $fault, words: $words, told_by: $told,
        }),*];
    };
}

catalogue! {
    ProgramIdle "program_idle" false "its program gives it nothing to send"
        "tcpi_busy_time stands still, or less than the window is out and nothing waits";
    AnswerAwaited "answer_awaited" true "its program waits for the other side's answer before it sends on"
        "nothing waits, both ends send, and this one spoke last (last_data_sent, last_data_recv)";
    Nagle "nagle" true "a small write waits until what was sent before is acknowledged (Nagle, delayed ACKs)"
        "less than a segment waits although both windows have room";
    SlowReader "slow_reader" true "it waits for a program that reads slowly"
        "tcpi_rwnd_limited, and the window opens and closes, or moves and acknowledgements come late; at the receiver: what is not read fills its buffer, or waits there all the time";
    ReceiveWindow "receive_window" true "it waits for the receiver's window"
        "tcpi_rwnd_limited, and the window stays the same";
    WindowScaling "window_scaling" true "it waits for a window that cannot exceed 64 KiB: the SYNs agreed on no window scaling"
        "tcpi_rwnd_limited, and tcpi_options lack the scale";
    SendBuffer "send_buffer" true "its program waits for room in the send buffer"
        "tcpi_sndbuf_limited";
    SlowStart "slow_start" false "it connects, or slow start is still under way"
        "the congestion window is full and below ssthresh, or the end (FIN) is sent and ssthresh was never set";
    SlowStartLeftEarly "slow_start_left_early" true "its window grows slowly from where slow start ended without a loss"
        "the congestion window is full, ssthresh is finite, nothing was ever sent again, no queue stands";
    CwndClamp "cwnd_clamp" true "its congestion window is full and may not grow"
        "the congestion window is full, stays the same, and nothing is lost";
    AfterLoss "after_loss" true "its congestion window is below the pipe after a loss and grows back"
        "the congestion window is full, grows, no queue stands, something was lost before";
    RestartAfterIdle "restart_after_idle" true "it has to start slowly again after a pause (tcp_slow_start_after_idle)"
        "the congestion window fell without a loss while nothing was sent, and is below ssthresh";
    Pacing "pacing" true "it is held to a pacing rate"
        "bytes wait, both windows have room, and tcpi_pacing_rate is at tcpi_max_pacing_rate";
    PathFull "path_full" false "the path carries no more"
        "the congestion window is full, and either the round trip grows with it or losses come at the same window";
    StandingQueue "standing_queue" false "the path carries no more, and a queue stands before its slowest link"
        "the congestion window is full, and the round trip is well above the least";
    Policer "policer" true "something on the path drops what exceeds a rate, without a queue"
        "losses lie on a line of bytes over time, many at once, without a rise of the round trip";
    RandomLoss "random_loss" true "losses that no queue has a part in keep its congestion window small"
        "losses at windows of any size, without a rise of the round trip";
    Reordering "reordering" true "packets that overtake each other are taken for lost"
        "most of what was sent again had arrived (DSACK), and reordering was seen";
    Timeouts "timeouts" true "it is silent until its retransmission timer goes off"
        "tcpi_total_rto, ca state loss, backoff; data is out and tcpi_last_ack_recv exceeds what an acknowledgement takes";
    NoAnswer "no_answer" true "nothing comes back: the other end, or the way there or back, is gone"
        "timeouts in a row (tcpi_backoff), and no packet since for most of the time that was waited";
    LostSyns "lost_syns" true "its SYNs are not answered"
        "state SYN_SENT, and SYNs were sent again";
    Acknowledgements "acknowledgements" true "acknowledgements are lost, thinned or come in bunches"
        "captures only";
    PacketSize "packet_size" true "full packets do not pass the path, or all are small"
        "full segments are sent again and again while the peer answers, or where none but small ones was ever acknowledged";
    PathChanged "path_changed" false "the path is another than before"
        "the least round trip is another while the flight stays the same";
    Host "host" true "this host's own interface or queueing discipline takes no more"
        "most of the flight is still below TCP on this host (sk_wmem_alloc)";
    OtherEndSends "other_end_sends" false "this end only receives: what holds the other end is not seen from here"
        "bytes are received, none are sent";
    Unknown "unknown" false "the facts do not decide what holds it"
        "";
}

impl Cause {
    /// Entry of the cause in the catalogue.
    pub fn entry(self) -> &'static Entry {
        CATALOGUE.iter().find(|entry| entry.cause == self).unwrap_or(&CATALOGUE[CATALOGUE.len() - 1])
    }

    /// In tables and JSON.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Whether the connection could be faster on the same path.
    pub fn is_fault(self) -> bool {
        self.entry().is_fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_cause_stands_once_under_the_name_that_json_has() {
        let names: BTreeSet<_> = CATALOGUE.iter().map(|entry| entry.name).collect();
        let causes: BTreeSet<_> = CATALOGUE.iter().map(|entry| entry.cause).collect();
        assert_eq!((names.len(), causes.len()), (CATALOGUE.len(), CATALOGUE.len()));
        assert_eq!(causes.len(), Cause::Unknown as usize + 1);
        for entry in CATALOGUE {
            let pascal: String = entry.name.split('_').map(capitalised).collect();
            assert_eq!(pascal, format!("{:?}", entry.cause));
        }
    }

    fn capitalised(word: &str) -> String {
        word[..1].to_uppercase() + &word[1..]
    }
}
