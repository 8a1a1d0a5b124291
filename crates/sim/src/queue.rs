//! What keeps the queue of a relayed direction short: marks at each arrival, and the window. The very code that marks in
//! the kernel, and that sets sockets in the relay.

use crate::{packet::Segment, tcp::Endpoint};
use longfat_cc::queue::{Advertised, Marker, QueuePlan, View, Window};
use longfat_schema::record::RelaySample;

/// How often the relay looks at a connection: as the real one does.
const LOOK_EVERY_NS: u64 = 2_000_000;

/// One direction of a relayed connection.
#[derive(Debug)]
pub struct Queue {
    target_us: u32,
    marker: Marker,
    window: Option<Window>,
    drops: bool,
    random: u64,
    look_at_ns: u64,
    advertised: Option<Advertised>,
}

/// Both directions of a connection.
pub fn both(plan: &QueuePlan, seed: u64) -> [Queue; 2] {
    [Queue::new(plan, seed), Queue::new(plan, !seed)]
}

impl Queue {
    fn new(plan: &QueuePlan, seed: u64) -> Queue {
        Queue {
            target_us: plan.target_us,
            marker: Marker::new(plan.settings()),
            window: plan.window.then(|| Window::new(plan.target_us)),
            drops: plan.drop,
            random: seed | 1,
            look_at_ns: 0,
            advertised: None,
        }
    }

    /// A data segment arrives on the inbound leg: as it is, marked, or not at all.
    pub fn on_arrival(
        &mut self,
        segment: &Segment,
        inbound: &Endpoint,
        outbound: &Endpoint,
        now_ns: u64,
    ) -> Option<Segment> {
        let view = View { random: self.next_random(), ..view(inbound, outbound, now_ns) };
        if !self.marker.on_packet(&view) {
            return Some(*segment);
        }
        let is_capable = inbound.sender.has_ecn();
        if is_capable || self.drops {
            self.marker.marked(&view);
        }
        if is_capable || !self.drops {
            return Some(Segment { is_marked: segment.is_marked || is_capable, ..*segment });
        }
        None
    }

    /// Sets both sockets as the window asks for, when it is time.
    pub fn look(&mut self, inbound: &mut Endpoint, outbound: &mut Endpoint, now_ns: u64) {
        let Some(window) = &mut self.window else { return };
        if now_ns < self.look_at_ns {
            return;
        }
        self.look_at_ns = now_ns + LOOK_EVERY_NS;
        let wanted = window.update(&view(inbound, outbound, now_ns));
        inbound.receiver.limit(wanted.window_bytes.into(), wanted.buffer_bytes.into());
        outbound.sender.limit_unsent(u64::from(wanted.ahead_bytes / 2));
        self.advertised = Some(wanted);
    }

    /// Bytes the relay reads at most at a time.
    pub fn filling_bytes(&self) -> Option<u64> {
        self.advertised.map(|advertised| u64::from(advertised.ahead_bytes / 2))
    }

    /// Its part of a record.
    pub fn sample(&self) -> RelaySample {
        let state = self.marker.state();
        let window = self.window.as_ref();
        RelaySample {
            target_us: Some(self.target_us),
            delay_us: Some(window.map_or(state.delay_us, Window::delay_us)),
            drain_bps: Some(window.map_or(state.drain_bps(), Window::drain_bps)),
            window_bytes: self.advertised.map(|advertised| advertised.window_bytes),
            marked_packets: Some(state.marks),
            ..RelaySample::default()
        }
    }

    /// Knuth's generator (The Art of Computer Programming, 3.3.4), its upper half.
    fn next_random(&mut self) -> u32 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32) as u32
    }
}

fn view(inbound: &Endpoint, outbound: &Endpoint, now_ns: u64) -> View {
    let (receiver, sender) = (&inbound.receiver, &outbound.sender);
    let conn = &sender.control.conn;
    View {
        now_us: now_ns / 1000,
        received_bytes: receiver.bytes,
        sent_bytes: sender.next_bytes,
        acked_bytes: sender.acked_bytes,
        inbound_rtt_us: inbound.sender.rtt.srtt_us(),
        outbound_rtt_us: sender.rtt.srtt_us(),
        outbound_cwnd_bytes: conn.cwnd_segments.saturating_mul(conn.mss_bytes),
        mss_bytes: inbound.sender.control.conn.mss_bytes,
        random: 0,
        reserved: 0,
    }
}
