//! What keeps the queue of a relayed direction short: marks at each arrival, and the window. The very code that marks
//! in the kernel, and that sets sockets in the relay.

use crate::{
    packet::Segment,
    scenario::{EndpointPlan, RelayPlan},
    tcp::Endpoint,
};
use longfat_cc::queue::{Advertised, Marker, QueuePlan, Room, View, Window};
use longfat_schema::record::RelaySample;

/// How often the relay looks at a connection: as the real one does.
const LOOK_EVERY_NS: u64 = 2_000_000;
/// The window of a handshake cannot be scaled (RFC 7323, section 2.2). A relay that keeps its queue short does not open
/// it further before it knows more.
const FIRST_WINDOW_BYTES: u64 = 65_535;

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
    plain: Plain,
}

/// How the sockets are while nothing keeps the queue short.
#[derive(Debug)]
struct Plain {
    clamp_bytes: u64,
    capacity_bytes: u64,
    unsent_bytes: u64,
}

impl Plain {
    fn of(inbound: &EndpointPlan, outbound: &EndpointPlan) -> Plain {
        Plain {
            clamp_bytes: inbound.window_bytes.unwrap_or(u64::MAX),
            capacity_bytes: inbound.receive_buffer.most_bytes(),
            unsent_bytes: outbound.unsent_limit_bytes.unwrap_or(u64::MAX),
        }
    }
}

/// Both directions of a connection; none where queues are left alone.
pub fn both(relay: &RelayPlan, seed: u64) -> Option<[Queue; 2]> {
    let plan = relay.queue.as_ref()?;
    let queue =
        |seed, inbound, outbound| Queue::new(plan, seed, relay.buffer_bytes, Plain::of(inbound, outbound));
    let (client, server) = (&relay.client_side, &relay.server_side);
    Some([queue(seed, client, server), queue(!seed, server, client)])
}

/// An end of a relay as a connection begins with it.
pub fn at_first(relay: &RelayPlan, end: &EndpointPlan) -> EndpointPlan {
    let first_bytes = relay.queue.as_ref().filter(|queue| queue.window).map(|_| FIRST_WINDOW_BYTES);
    let window_bytes = end.window_bytes.into_iter().chain(first_bytes).min();
    EndpointPlan { window_bytes, ..end.clone() }
}

impl Queue {
    fn new(plan: &QueuePlan, seed: u64, held_bytes: u64, plain: Plain) -> Queue {
        let room = Room {
            inbound_bytes: plain.capacity_bytes.saturating_add(held_bytes),
            unsent_bytes: u32::try_from(plain.unsent_bytes).unwrap_or(u32::MAX),
        };
        Queue {
            target_us: plan.target_us,
            marker: Marker::new(plan.settings()),
            window: plan.window.then(|| Window::new(plan.target_us, room).tolerating(plan.tolerance)),
            drops: plan.drop,
            random: seed | 1,
            look_at_ns: 0,
            advertised: None,
            plain,
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
        match wanted {
            Some(wanted) => {
                inbound.receiver.limit(wanted.window_bytes.into(), wanted.buffer_bytes.into());
                outbound.sender.limit_unsent(u64::from(wanted.ahead_bytes / 2));
            }
            None => {
                inbound.receiver.limit(self.plain.clamp_bytes, self.plain.capacity_bytes);
                outbound.sender.limit_unsent(self.plain.unsent_bytes);
            }
        }
        self.advertised = wanted;
    }

    /// Bytes the relay reads at most at a time.
    pub fn filling_bytes(&self) -> Option<u64> {
        self.advertised.map(|advertised| u64::from(advertised.ahead_bytes / 2))
    }

    /// Part of a record that the queue knows.
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
