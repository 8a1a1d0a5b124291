//! What measuring programs say while they run.
//!
//! `longfat transfer`, `relay` and `link` write one [`Record`] per line of JSON to the file given by `--samples`.
//! The lab gathers those files of one run into the Parquet tables of the run directory: one table per variant,
//! one column per field, units in the names.
//!
//! `time_us` is CLOCK_MONOTONIC of the host in microseconds in the line files, and microseconds since the start
//! of the run in the tables. Counters are cumulative since the connection, link or flow began.

use serde::{Deserialize, Serialize};

/// Every kind of record, once: whatever has one thing per kind is made from this list. To add a kind, write its struct
/// below and its line here; it then has a variant of [`Record`], a place in `Samples` and a table in the run directory.
///
/// `Variant field: Struct, time FIELD?, by KEY…`: `time` is what [`Record::rebase`] shifts, `by` orders the table.
macro_rules! every_record {
    ($make:ident) => {
        $make! {
            /// The state of one TCP connection's control block.
            Tcp tcp: TcpSample, time time_us, by time_us;
            /// Bytes that arrived at a receiver in one interval.
            Interval interval: IntervalSample, time time_us, by time_us;
            /// One echoed timestamp.
            Echo echo: EchoSample, time time_us, by time_us;
            /// The bottleneck queue of one direction of a link.
            Queue queue: QueueSample, time time_us, by time_us;
            /// Bytes a relay holds for one connection.
            Relay relay: RelaySample, time time_us, by time_us;
            /// Available bandwidth, as a connection measured it.
            Avail avail: AvailSample, time time_us, by time_us;
            /// What one stream came to.
            Flow flow: FlowSummary, time start_us, by flow stream;
            /// What one direction of a link came to, and how punctual its driver was.
            Link link: LinkSummary, by link direction;
            /// A time at which something that should have run did not.
            Stall stall: StallSample, time time_us, by time_us;
            /// One event of one traced connection.
            Trace trace: TraceSample, time time_us, by time_us connection;
            /// What a person should know about the run: warnings, phases.
            Note note: Note, time time_us, by time_us;
        }
    };
}
pub(crate) use every_record;

macro_rules! record {
    ($($(#[$doc:meta])+ $variant:ident $field:ident: $row:ident, $(time $time:ident,)? by $($key:ident)+;)+) => {
        /// One line of a samples file.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        pub enum Record {
            $($(#[$doc])+ $variant($row),)+
        }

        impl Record {
            /// When it was made, in microseconds of whatever clock; none for what is of a whole run.
            pub fn time_us(&self) -> Option<i64> {
                let mut time_us = None;
                match self {
                    $(Record::$variant(_row) => { $(time_us = Some(_row.$time);)? })+
                }
                time_us
            }

            /// Shifts every point in time so that `start_us` becomes zero.
            pub fn rebase(&mut self, start_us: i64) {
                match self {
                    $(Record::$variant(_row) => { $(_row.$time = _row.$time.saturating_sub(start_us);)? })+
                }
            }
        }
    };
}
every_record!(record);

#[cfg(feature = "json-schema")]
macro_rules! tables {
    ($($(#[doc = $doc:literal])+ $variant:ident $field:ident: $row:ident, $(time $time:ident,)? by $($key:ident)+;)+) => {
        /// Every table of a run: its name, what one row is, and the JSON Schema of a row.
        pub fn tables() -> Vec<(&'static str, String, serde_json::Value)> {
            vec![$((stringify!($field), [$($doc),+].concat().trim().to_owned(), crate::json_schema::<$row>())),+]
        }
    };
}
#[cfg(feature = "json-schema")]
every_record!(tables);

/// TCP_INFO of one connection at one time (names as in RFC 9293, 5681, 6298).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct TcpSample {
    /// When, in microseconds.
    pub time_us: i64,
    /// Flow name in the experiment, or the relay's name.
    pub flow: String,
    /// Stream number within the flow, from 0; connection number in a relay.
    pub stream: u32,
    /// `sender`, `receiver`, `relay_in` (towards the client) or `relay_out` (towards the server).
    pub role: String,
    /// Congestion control, read back from the socket.
    pub cc: String,
    /// Recovery state: `open`, `disorder`, `cwr`, `recovery` or `loss`.
    pub ca_state: String,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Slow-start threshold; absent while it is unlimited.
    pub ssthresh_segments: Option<u32>,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Round-trip time variation.
    pub rttvar_us: u32,
    /// Least round-trip time seen; absent before the first sample.
    pub min_rtt_us: Option<u32>,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// Sending maximum segment size.
    pub mss_bytes: u32,
    /// Segments sent and not yet known to have left the network (RFC 6675 pipe).
    pub flight_segments: u32,
    /// Segments marked lost and not yet repaired.
    pub lost_segments: u32,
    /// Segments retransmitted since the connection began.
    pub retransmitted_segments: u64,
    /// Payload bytes sent, retransmissions included.
    pub sent_bytes: u64,
    /// Payload bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Payload bytes acknowledged by the peer.
    pub acked_bytes: u64,
    /// Payload bytes received in order.
    pub received_bytes: u64,
    /// Bytes in the send buffer that were never sent.
    pub unsent_bytes: u64,
    /// Most recent delivery rate.
    pub delivery_rate_bps: u64,
    /// Pacing rate; absent when not paced.
    pub pacing_rate_bps: Option<u64>,
    /// Time spent limited by the peer's window.
    pub rwnd_limited_us: u64,
    /// Time spent limited by the send buffer.
    pub sndbuf_limited_us: u64,
    /// Segments delivered with a CE mark (RFC 3168).
    pub delivered_ce_segments: u64,
    /// Retransmission timeouts (RFC 6298); absent where the kernel does not count them (before Linux 6.7).
    #[serde(default)]
    pub timeouts: Option<u64>,
    /// Segments that the peer reported to have come twice (DSACK, RFC 2883); absent in runs of before it was recorded.
    #[serde(default)]
    pub duplicate_segments: Option<u64>,
}

/// One event in the life of a traced connection, with its control block at that time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct TraceSample {
    /// Time of the sample.
    pub time_us: i64,
    /// The connection's addresses: `10.0.0.1:5000 > 10.0.0.2:80`.
    pub flow: String,
    /// Number of the connection within the trace, from 0.
    pub connection: u32,
    /// `begin`, `ack` (an ACK arrived; the values are those before it was processed), `retransmit`, `rto` (the
    /// retransmission timer ran out), `ca_state`, `cc` (another congestion control) or `state`.
    pub event: String,
    /// Congestion control.
    pub cc: String,
    /// State of RFC 9293.
    pub state: String,
    /// Recovery state: `open`, `disorder`, `cwr`, `recovery` or `loss`.
    pub ca_state: String,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Slow-start threshold; absent while it is unlimited.
    pub ssthresh_segments: Option<u32>,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Round-trip time variation.
    pub rttvar_us: u32,
    /// Segments sent and not yet known to have left the network (RFC 6675 pipe).
    pub flight_segments: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Segments thought lost and not yet repaired.
    pub lost_segments: u32,
    /// Segments retransmitted since the connection began.
    pub retransmitted_segments: u64,
    /// Window the other end offers.
    pub peer_window_bytes: u32,
    /// Sending maximum segment size.
    pub mss_bytes: u32,
    /// Sequence space acknowledged since the trace began.
    pub acked_bytes: u64,
    /// Sequence space first sent since the trace began, or outstanding then.
    pub sent_bytes: u64,
}

/// Goodput of one stream over one interval, counted at the receiver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct IntervalSample {
    /// End of the interval.
    pub time_us: i64,
    /// Length of the interval.
    pub duration_us: u64,
    /// Flow name.
    pub flow: String,
    /// Stream number within the flow.
    pub stream: u32,
    /// Payload bytes that arrived in it.
    pub bytes: u64,
}

/// One timestamp carried in the stream and echoed by the receiving program (PAPERS: latency by echo).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct EchoSample {
    /// When the timestamp was handed to the sending socket.
    pub time_us: i64,
    /// Flow name.
    pub flow: String,
    /// Stream number within the flow.
    pub stream: u32,
    /// Stream position of the timestamp.
    pub position_bytes: u64,
    /// From handing over the timestamp to reading its echo.
    pub latency_us: u64,
}

/// State of one direction of an emulated or simulated link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct QueueSample {
    /// Time of the sample.
    pub time_us: i64,
    /// Link name.
    pub link: String,
    /// `forward` (first end to second) or `backward`.
    pub direction: String,
    /// Bytes waiting for transmission.
    pub queue_bytes: u64,
    /// Packets waiting for transmission.
    pub queue_packets: u64,
    /// Bytes delivered, headers included.
    pub delivered_bytes: u64,
    /// Packets delivered.
    pub delivered_packets: u64,
    /// Packets dropped by the queue.
    pub dropped_packets: u64,
    /// Packets lost by the link's loss model.
    pub lost_packets: u64,
    /// Packets marked CE.
    pub marked_packets: u64,
}

/// Bytes a relay holds for one direction of one connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct RelaySample {
    /// Time of the sample.
    pub time_us: i64,
    /// Relay name.
    pub relay: String,
    /// Connection number, from 0, as in the relay's `Tcp` samples.
    pub connection: u32,
    /// `client_to_server` or `server_to_client`.
    pub direction: String,
    /// Received by the inbound socket, not yet acknowledged on the outbound: the whole backlog.
    pub backlog_bytes: u64,
    /// Part of it the relay has not read.
    pub unread_bytes: u64,
    /// Part of it in the relay's own buffer (a pipe).
    pub held_bytes: u64,
    /// Part of it in the outbound socket, sent or not, unacknowledged.
    pub unacked_bytes: u64,
    /// Bytes relayed since the connection began.
    pub relayed_bytes: u64,
    /// Delay that bytes may wait in the relay; absent where queues are not kept short, as what follows.
    pub target_us: Option<u32>,
    /// How long what waits unsent takes at the rate of the outbound leg.
    pub delay_us: Option<u32>,
    /// The rate of the outbound leg, as the queue's control measures it.
    pub drain_bps: Option<u64>,
    /// Window to be advertised on the inbound leg.
    pub window_bytes: Option<u32>,
    /// Packets of the inbound leg marked (or dropped, where that was asked for) since the connection began.
    pub marked_packets: Option<u64>,
}

/// Available bandwidth of a path, as a connection under a measuring congestion control (`lf_imtcp`) found it with its
/// own segments. A row for each result seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct AvailSample {
    /// When the measurement stream that gave it was over.
    pub time_us: i64,
    /// Flow name.
    pub flow: String,
    /// Stream number within the flow.
    pub stream: u32,
    /// What the connection could have, IP headers and its own share included.
    pub avail_bps: u64,
    /// Standard deviation of that.
    pub deviation_bps: u64,
    /// Capacity of the bottleneck; absent where the estimator does not know.
    pub capacity_bps: Option<u64>,
    /// From 0 to 1: low where few measurements pass or they disagree.
    pub confidence_ratio: f64,
    /// Measurement streams that gave a result since the connection began.
    pub results: u32,
    /// Measurement streams that gave none.
    pub rejected: u32,
    /// What other flows left free in the half second around, in a run of an experiment; absent where that is not known.
    #[serde(default)]
    pub free_bps: Option<u64>,
}

/// What one stream came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct FlowSummary {
    /// Flow name.
    pub flow: String,
    /// Stream number within the flow.
    pub stream: u32,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Congestion control the sending socket had at the end (read back); empty for UDP.
    pub cc_sender: String,
    /// Congestion control of the receiving socket.
    pub cc_receiver: String,
    /// When the first payload byte was sent.
    pub start_us: i64,
    /// Over what time goodput is counted, at the receiver; 0 where all that counts arrived at one moment.
    pub duration_us: u64,
    /// Payload bytes received in that time.
    pub received_bytes: u64,
    /// `received_bytes` over `duration_us`; 0, and no figure, where that is 0.
    pub goodput_bps: u64,
    /// Segments retransmitted by the sending socket.
    pub retransmitted_segments: u64,
    /// Payload bytes retransmitted by the sending socket.
    pub retransmitted_bytes: u64,
    /// UDP datagrams lost.
    pub lost_datagrams: u64,
    /// Least round-trip time of the sending socket.
    pub min_rtt_us: Option<u32>,
    /// Echoes received.
    pub echo_count: u64,
    /// Median echo latency; absent without echoes, as the next two.
    pub echo_p50_us: Option<u64>,
    /// 99th percentile of echo latency.
    pub echo_p99_us: Option<u64>,
    /// Greatest echo latency.
    pub echo_max_us: Option<u64>,
    /// Maximum segment size of the sending socket.
    pub mss_bytes: u32,
    /// Send buffer of the sending socket as the kernel reports it.
    pub sndbuf_bytes: u64,
    /// Receive buffer of the receiving socket as the kernel reports it.
    pub rcvbuf_bytes: u64,
    /// Why the stream ended early; absent when it ended as planned.
    pub error: Option<String>,
}

/// What one direction of a link came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct LinkSummary {
    /// Link name.
    pub link: String,
    /// `forward` or `backward`.
    pub direction: String,
    /// `af_packet`, `netem` or `sim`.
    pub driver: String,
    /// Packets offered.
    pub offered_packets: u64,
    /// Packets delivered.
    pub delivered_packets: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Packets dropped by the queue.
    pub dropped_packets: u64,
    /// Packets lost by the loss model.
    pub lost_packets: u64,
    /// Packets marked CE.
    pub marked_packets: u64,
    /// Packets the driver itself lost (ring overrun, send failure): any makes the run invalid.
    pub overrun_packets: u64,
    /// Deepest queue.
    pub queue_max_bytes: u64,
    /// Mean queue over time.
    pub queue_mean_bytes: u64,
    /// Lateness: actual minus scheduled departure, per packet.
    pub late_p50_us: u64,
    /// 99th percentile of lateness.
    pub late_p99_us: u64,
    /// 99.9th percentile of lateness.
    pub late_p999_us: u64,
    /// Greatest lateness.
    pub late_max_us: u64,
    /// Limit of `late_p99_us` given by the experiment.
    pub late_limit_us: u64,
    /// How long the path stood still because its machine did; lateness is without it.
    #[serde(default)]
    pub paused_us: u64,
    /// Whether the driver kept its promise; `false` makes the run invalid.
    pub punctual: bool,
}

/// A hold-up of the machine: something that was due to run and did not get a processor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct StallSample {
    /// When it was over.
    pub time_us: i64,
    /// What was held up: a link's driver (`LINK`), or the hosts from which packets of one of its directions come: as
    /// receivers (`LINK/forward`), or as senders, if they had something that they might send (`LINK/forward/sender`).
    pub of: String,
    /// For how long.
    pub duration_us: u64,
    /// Packets to which those hosts owed an answer then; absent for a driver, and in runs of before it was recorded.
    #[serde(default)]
    pub owed_packets: Option<u32>,
}

/// Something a person should know about the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Note {
    /// Time of the note.
    pub time_us: i64,
    /// `info` or `warning`.
    pub level: String,
    /// Name of the host, link, flow or relay that says it.
    pub source: String,
    /// Words of the note.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_tagged_line() {
        let record =
            Record::Echo(EchoSample { time_us: 5, flow: "f".into(), latency_us: 7, ..Default::default() });
        let line = serde_json::to_string(&record).unwrap();
        assert!(line.starts_with(r#"{"type":"echo","time_us":5"#), "{line}");
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }

    #[test]
    fn rebasing_makes_the_start_of_the_run_zero() {
        let mut record = Record::Note(Note { time_us: 150, ..Default::default() });
        record.rebase(100);
        assert_eq!(record, Record::Note(Note { time_us: 50, ..Default::default() }));
    }
}
