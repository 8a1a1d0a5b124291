//! TCP: a connection is two [`Endpoint`]s, each with a sending and a receiving half.
//!
//! Sequence numbers count segments in stream order; each has its bytes, and a retransmission repeats both. So bytes
//! are exact and a scoreboard is an array. Not modelled: FIN (a connection ends with its last byte), segments cut
//! anew, urgent data, windows unscaled in SYN.

pub mod app;
mod autotune;
mod bundle;
mod control;
mod output;
mod pacing;
mod receiver;
mod recovery;
pub mod rtt;
mod scoreboard;
mod send_buffer;
pub mod sender;
mod timer;
mod window;

pub use bundle::BUNDLE_MOST_BYTES;

use crate::{
    net::Net,
    packet::{Family, Segment, flag},
    scenario::EndpointPlan,
    timers::NEVER,
};
use app::App;
use longfat_cc::Tunables;
use longfat_link::model::Ecn;
use output::Outlet;
use receiver::Receiver;
use rtt::RTO_INIT_US;
use send_buffer::Push;
use sender::Sender;

/// How far the handshake is (RFC 9293, section 3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The connection has not begun.
    Closed,
    /// A SYN was sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Data may flow.
    Established,
}

/// Where an endpoint is and whom it speaks to.
#[derive(Debug, Clone, Copy)]
pub struct Attachment {
    /// Number of the entity in the event queue.
    pub entity: u32,
    /// Start of its route to the peer.
    pub route: u32,
    /// The peer's number among endpoints.
    pub peer: u32,
    /// Version of IP between them.
    pub family: Family,
}

impl Attachment {
    /// How its endpoint sends.
    fn outlet<'a>(self, net: &'a mut Net, receiver: &'a mut Receiver) -> Outlet<'a> {
        Outlet { net, receiver, route: self.route, to: self.peer, family: self.family }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Endpoint {
    /// How far the handshake is.
    pub phase: Phase,
    /// The sending half.
    pub sender: Sender,
    /// The receiving half.
    pub receiver: Receiver,
    /// Application that reads and writes.
    pub app: App,
    /// When the connection stood.
    pub established_ns: u64,
    /// When payload last arrived in order.
    pub last_arrival_ns: u64,
    attachment: Attachment,
    open_at_ns: u64,
    syn_at_ns: u64,
    syn_sent_ns: u64,
    syns: u32,
}

impl Endpoint {
    /// A closed endpoint.
    pub fn new(
        attachment: Attachment,
        plan: &EndpointPlan,
        tunables: Tunables,
        mss_bytes: u32,
        app: App,
    ) -> Endpoint {
        let mut sender = Sender::new(plan, tunables, mss_bytes);
        sender.family = attachment.family;
        Endpoint {
            phase: Phase::Closed,
            sender,
            receiver: Receiver::new(plan, mss_bytes),
            app,
            established_ns: 0,
            last_arrival_ns: 0,
            attachment,
            open_at_ns: NEVER,
            syn_at_ns: NEVER,
            syn_sent_ns: 0,
            syns: 0,
        }
    }

    /// When its source began to write; a connection that never stood: zero.
    pub fn began_ns(&self) -> u64 {
        match &self.app {
            App::Source(source) => source.start_ns(),
            _ => self.established_ns,
        }
    }

    /// Opens the connection at a time.
    pub fn open_at(&mut self, at_ns: u64, net: &mut Net) {
        self.open_at_ns = at_ns;
        net.timers.set(self.attachment.entity, at_ns);
    }

    /// A segment arrived.
    pub fn on_segment(&mut self, segment: &Segment, net: &mut Net) {
        if self.phase == Phase::Established && !segment.has(flag::SYN) {
            self.on_established(segment, net);
        } else {
            self.on_handshake(segment, net);
        }
        self.arm(net);
    }

    fn on_established(&mut self, segment: &Segment, net: &mut Net) {
        let now_ns = net.now_ns;
        self.receiver.note_time(segment);
        self.sender.on_ack(segment, now_ns);
        let Endpoint { sender, receiver, app, attachment, .. } = self;
        let mut out = attachment.outlet(net, receiver);
        sender.send_after_ack(&mut out);
        if segment.has(flag::PROBE) {
            receiver.demand_ack();
        }
        if segment.payload_bytes > 0 {
            let bytes = receiver.on_data(segment, now_ns, sender.rtt.srtt_us());
            if bytes > 0 {
                self.last_arrival_ns = now_ns;
                read(app, receiver, sender, bytes, now_ns);
            }
        }
        self.turn(net);
    }

    /// Lets the application write, sends what it wrote, acknowledges if that is due.
    fn turn(&mut self, net: &mut Net) {
        let now_ns = net.now_ns;
        let Endpoint { sender, receiver, app, attachment, .. } = self;
        sender.grow_buffer();
        let mut out = attachment.outlet(net, receiver);
        loop {
            let filled = app.fill(sender, now_ns);
            if sender.unsent_bytes() > 0 {
                sender.send_new(filled.push, &mut out);
            }
            // Sending is part of the write: a program that waited for room finds it when the call returns.
            if filled.ends && !(filled.push == Push::All && app.finds_room(sender)) {
                break;
            }
        }
        if out.receiver.wants_ack(now_ns) {
            out.acknowledge();
        }
    }

    /// Bytes were moved into or out of a relay's socket.
    pub fn on_moved(&mut self, net: &mut Net) {
        if self.phase == Phase::Established {
            self.turn(net);
            self.arm(net);
        }
    }

    fn on_handshake(&mut self, segment: &Segment, net: &mut Net) {
        let is_syn = segment.has(flag::SYN);
        match self.phase {
            Phase::Closed if is_syn => {
                self.sender.edge_bytes = u64::from(segment.window_bytes);
                self.receiver.note_time(segment);
                self.phase = Phase::SynReceived;
                self.send_syn(net);
            }
            Phase::SynSent if is_syn => {
                self.establish(segment, net);
                self.receiver.demand_ack();
                self.turn(net);
            }
            Phase::SynReceived if is_syn => self.send_syn(net),
            Phase::SynReceived => {
                self.establish(segment, net);
                self.on_established(segment, net);
            }
            // Our last acknowledgement of the handshake was lost.
            Phase::Established => {
                self.receiver.demand_ack();
                self.turn(net);
            }
            _ => {}
        }
    }

    fn establish(&mut self, segment: &Segment, net: &mut Net) {
        let now_ns = net.now_ns;
        self.phase = Phase::Established;
        self.established_ns = now_ns;
        self.syn_at_ns = NEVER;
        self.sender.edge_bytes = self.sender.edge_bytes.max(u64::from(segment.window_bytes));
        if self.syns == 1 {
            let rtt_ns = now_ns - self.syn_sent_ns;
            self.sender.rtt.sample(rtt_ns / 1000, 0, 0);
            self.sender.rtt.sample_min(rtt_ns, now_ns);
        }
        if let App::Source(source) = &mut self.app {
            source.start(now_ns);
        }
    }

    /// Sends a SYN (or its answer) and waits twice as long each time.
    fn send_syn(&mut self, net: &mut Net) {
        let wait_ns = (RTO_INIT_US * 1000) << self.syns.min(6);
        self.syns += 1;
        self.syn_sent_ns = net.now_ns;
        self.syn_at_ns = net.now_ns + wait_ns;
        let Endpoint { receiver, attachment, .. } = self;
        attachment.outlet(net, receiver).emit(flag::SYN, 0, 0, Ecn::NotEct);
    }

    /// Does what is due.
    pub fn on_timer(&mut self, net: &mut Net) {
        let now_ns = net.now_ns;
        if self.open_at_ns <= now_ns {
            self.open_at_ns = NEVER;
            self.phase = Phase::SynSent;
            self.send_syn(net);
        }
        if self.syn_at_ns <= now_ns {
            self.send_syn(net);
        }
        if self.phase == Phase::Established {
            let Endpoint { sender, receiver, attachment, .. } = self;
            let mut out = attachment.outlet(net, receiver);
            sender.on_timer(&mut out);
            self.turn(net);
        }
        net.timers.set(self.attachment.entity, self.deadline_ns());
    }

    fn deadline_ns(&self) -> u64 {
        let halves_ns = self.sender.deadline_ns().min(self.receiver.deadline_ns());
        halves_ns.min(self.app.next_at_ns()).min(self.open_at_ns).min(self.syn_at_ns)
    }

    /// A deadline that moved away is looked at again when the old one comes: most of them move on every segment.
    fn arm(&self, net: &mut Net) {
        let deadline_ns = self.deadline_ns();
        if deadline_ns < net.timers.get(self.attachment.entity) {
            net.timers.set(self.attachment.entity, deadline_ns);
        }
    }
}

/// The application takes what is in order; a relay takes it when it has room.
fn read(app: &mut App, receiver: &mut Receiver, sender: &mut Sender, bytes: u64, now_ns: u64) {
    if matches!(app, App::Relay) {
        return;
    }
    receiver.read(bytes, now_ns);
    app.take(bytes, receiver.bytes, sender, now_ns);
}
