//! Recorded events as rows of the table `trace`.

use longfat_kernel::tcb::{
    State,
    trace::{Event, EventKind, Identity},
};
use longfat_schema::record::TraceSample;
use std::collections::HashMap;

/// Events as rows: numbers the connections, and counts what each came to.
pub struct Rows {
    start_us: i64,
    /// By cookie.
    pub connections: HashMap<u64, Traced>,
    /// Rows made.
    pub records: u64,
}

/// One connection, and what it came to.
pub struct Traced {
    /// In the order of their beginnings.
    pub number: u32,
    /// Both its ends.
    pub flow: String,
    /// Bytes acknowledged.
    pub acked_bytes: u64,
    /// ACKs recorded.
    pub acks: u64,
    /// Segments sent again.
    pub retransmitted_segments: u32,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    cc: String,
    snd_una: u32,
    snd_nxt: u32,
    sent_bytes: u64,
    /// As the kernel counted when the trace began: one event can repeat several segments.
    retransmitted_before_segments: u32,
}

const CA_LOSS: u8 = 4;
const UNLIMITED: u32 = longfat_kernel::tcb::UNLIMITED_SSTHRESH;

impl Rows {
    /// None yet; times are told from `start_us` on.
    pub fn new(start_us: i64) -> Rows {
        Rows { start_us, connections: HashMap::new(), records: 0 }
    }

    /// `None` for a connection whose beginning was lost: nobody knows who it is.
    pub fn row(&mut self, event: &Event, identity: Option<Identity>) -> Option<TraceSample> {
        let kind = event.kind()?;
        if let Some(identity) = identity {
            self.identify(event, &identity);
        }
        let traced = self.connections.get_mut(&event.cookie)?;
        self.records += 1;
        traced.advance(event, kind);
        Some(TraceSample {
            time_us: (event.time_ns / 1000) as i64 - self.start_us,
            flow: traced.flow.clone(),
            connection: traced.number,
            event: name(kind, event).to_owned(),
            cc: traced.cc.clone(),
            state: State(event.tcp_state).name().to_owned(),
            ca_state: longfat_host::socket::ca_state_name(event.ca_state).to_owned(),
            cwnd_segments: event.cwnd_segments,
            ssthresh_segments: Some(event.ssthresh_segments).filter(|ssthresh| *ssthresh < UNLIMITED),
            srtt_us: event.srtt_us,
            rttvar_us: event.rttvar_us,
            flight_segments: event.flight_segments,
            unacked_segments: event.unacked_segments,
            lost_segments: event.lost_segments,
            retransmitted_segments: event.total_retrans_segments.into(),
            peer_window_bytes: event.snd_wnd_bytes,
            mss_bytes: event.mss_bytes,
            acked_bytes: traced.acked_bytes,
            sent_bytes: traced.sent_bytes,
        })
    }

    fn identify(&mut self, event: &Event, identity: &Identity) {
        let number = self.connections.len() as u32;
        let traced = self.connections.entry(event.cookie).or_insert_with(|| Traced {
            number,
            flow: format!("{} > {}", identity.local, identity.remote),
            cc: String::new(),
            snd_una: event.snd_una,
            snd_nxt: event.snd_una,
            acked_bytes: 0,
            sent_bytes: 0,
            acks: 0,
            retransmitted_before_segments: event.total_retrans_segments,
            retransmitted_segments: 0,
            timeouts: 0,
        });
        traced.cc = identity.cc.as_str().to_owned();
    }
}

impl Traced {
    fn advance(&mut self, event: &Event, kind: EventKind) {
        // Sequence numbers wrap; a step back (an older record of another processor) is no progress.
        let progress = |from: u32, to: u32| u64::try_from(to.wrapping_sub(from) as i32).unwrap_or(0);
        let (acked, sent) = (progress(self.snd_una, event.snd_una), progress(self.snd_nxt, event.snd_nxt));
        self.acked_bytes += acked;
        self.sent_bytes += sent;
        self.snd_una = self.snd_una.wrapping_add(acked as u32);
        self.snd_nxt = self.snd_nxt.wrapping_add(sent as u32);
        self.acks += u64::from(kind == EventKind::Ack);
        let retransmitted = event.total_retrans_segments.wrapping_sub(self.retransmitted_before_segments);
        self.retransmitted_segments = retransmitted.max(self.retransmitted_segments);
        self.timeouts += u64::from(kind == EventKind::CaState && event.ca_state == CA_LOSS);
    }
}

fn name(kind: EventKind, event: &Event) -> &'static str {
    match kind {
        EventKind::Begin => "begin",
        EventKind::Ack => "ack",
        EventKind::Retransmit => "retransmit",
        EventKind::CaState if event.ca_state == CA_LOSS => "rto",
        EventKind::CaState => "ca_state",
        EventKind::Cc => "cc",
        EventKind::State => "state",
    }
}
