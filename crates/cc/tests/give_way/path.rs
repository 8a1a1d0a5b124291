//! One bottleneck with a drop-tail queue, under virtual time. Senders are Reno; receivers acknowledge every segment.

use longfat_cc::receive::{Arrival, GiveWay};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

pub const MSS_BYTES: u32 = 1448;
const PACKET_BITS: u64 = 8 * 1500;

#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub rate_bps: u64,
    pub rtt_us: u64,
    /// How long its queue is.
    pub queue_us: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct Flow {
    pub from_us: u64,
    pub until_us: u64,
    pub is_background: bool,
}

impl Flow {
    pub fn foreground(from_s: u64) -> Flow {
        Flow { from_us: from_s * 1_000_000, until_us: u64::MAX, is_background: false }
    }

    pub fn background(from_s: u64) -> Flow {
        Flow { is_background: true, ..Flow::foreground(from_s) }
    }
}

/// What came of a flow since the time asked for.
#[derive(Debug, Default)]
pub struct Seen {
    pub bytes: u64,
    pub dropped: u64,
    queued_us: u64,
    arrived: u64,
}

impl Seen {
    /// Mean time that its segments waited in the queue.
    pub fn queue_us(&self) -> u64 {
        self.queued_us / self.arrived.max(1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start,
    Arrives { number: u64, sent_us: u64, echo_us: u64, queued_us: u64 },
    Acked { edge: u64, sent_us: u64 },
    Lost { number: u64 },
}

struct End {
    flow: Flow,
    way: Option<GiveWay>,
    next: u64,
    flight: u64,
    cwnd: f64,
    ssthresh: f64,
    reduced_us: u64,
    echo_us: u64,
    edge: u64,
    promised: u64,
    arrived: BTreeSet<u64>,
    highest: u64,
    seen: Seen,
}

struct Run {
    path: Path,
    free_us: u64,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    since_us: u64,
}

impl Path {
    pub fn run(self, flows: &[Flow], until_us: u64, since_us: u64) -> Vec<Seen> {
        let mut run = Run { path: self, free_us: 0, events: BinaryHeap::new(), since_us };
        let mut ends: Vec<End> = flows.iter().map(|flow| End::new(*flow)).collect();
        for (index, flow) in flows.iter().enumerate() {
            run.events.push(Reverse((flow.from_us + self.rtt_us, index, Event::Start)));
        }
        while let Some(Reverse((now_us, index, event))) = run.events.pop() {
            if now_us > until_us {
                break;
            }
            run.handle(&mut ends[index], index, now_us, event);
        }
        ends.into_iter().map(|end| end.seen).collect()
    }
}

impl End {
    fn new(flow: Flow) -> End {
        End {
            flow,
            way: None,
            next: 0,
            flight: 0,
            cwnd: 10.0,
            ssthresh: f64::MAX,
            reduced_us: 0,
            echo_us: 0,
            edge: 10,
            promised: 10,
            arrived: BTreeSet::new(),
            highest: 0,
            seen: Seen::default(),
        }
    }

    fn may_send(&self, now_us: u64) -> bool {
        now_us < self.flow.until_us && self.flight < self.cwnd as u64 && self.next < self.edge
    }
}

impl Run {
    fn handle(&mut self, end: &mut End, index: usize, now_us: u64, event: Event) {
        match event {
            Event::Start => {
                // The receiver's half of the handshake was sent half a round trip ago.
                let now_us = now_us - self.path.rtt_us / 2;
                end.echo_us = now_us;
                let first = Arrival {
                    now_us,
                    now_ts: (now_us / 1000) as u32,
                    mss_bytes: MSS_BYTES,
                    ..Arrival::default()
                };
                end.way = end.flow.is_background.then(|| GiveWay::begin(&first, self.path.rtt_us as u32));
            }
            Event::Arrives { number, sent_us, echo_us, queued_us } => {
                self.arrives(end, index, now_us, (number, sent_us, echo_us, queued_us));
                return;
            }
            Event::Acked { edge, sent_us } => {
                end.flight -= 1;
                end.edge = end.edge.max(edge);
                end.echo_us = end.echo_us.max(sent_us);
                end.cwnd += if end.cwnd < end.ssthresh { 1.0 } else { 1.0 / end.cwnd };
            }
            Event::Lost { number } => {
                end.flight -= 1;
                if now_us > end.reduced_us {
                    end.cwnd = (end.cwnd / 2.0).max(2.0);
                    end.ssthresh = end.cwnd;
                    end.reduced_us = now_us + self.path.rtt_us + self.path.queue_us;
                }
                self.send(end, index, now_us, number);
            }
        }
        while end.may_send(now_us) {
            end.next += 1;
            self.send(end, index, now_us, end.next - 1);
        }
    }

    fn send(&mut self, end: &mut End, index: usize, now_us: u64, number: u64) {
        end.flight += 1;
        let one_us = PACKET_BITS * 1_000_000 / self.path.rate_bps;
        let queued_us = self.free_us.saturating_sub(now_us);
        if queued_us > self.path.queue_us {
            if now_us >= self.since_us {
                end.seen.dropped += 1;
            }
            let known_us = now_us + queued_us + self.path.rtt_us + 2 * one_us;
            self.events.push(Reverse((known_us, index, Event::Lost { number })));
            return;
        }
        self.free_us = now_us + queued_us + one_us;
        let event = Event::Arrives { number, sent_us: now_us, echo_us: end.echo_us, queued_us };
        self.events.push(Reverse((self.free_us + self.path.rtt_us / 2, index, event)));
    }

    fn arrives(&mut self, end: &mut End, index: usize, now_us: u64, segment: (u64, u64, u64, u64)) {
        let (number, sent_us, echo_us, queued_us) = segment;
        if now_us >= self.since_us && end.arrived.insert(number) {
            end.seen.bytes += PACKET_BITS / 8;
            end.seen.queued_us += queued_us;
            end.seen.arrived += 1;
        }
        end.highest = end.highest.max(number + 1);
        let window = end.way.as_mut().map(|way| {
            way.on_segment(&Arrival {
                now_us,
                now_ts: (now_us / 1000) as u32,
                tick_us: 1000,
                ts_value: (sent_us / 1000) as u32,
                ts_echo: (echo_us / 1000) as u32,
                seq: (number as u32).wrapping_mul(MSS_BYTES),
                payload_bytes: MSS_BYTES,
                mss_bytes: MSS_BYTES,
                edge_seq: (end.promised as u32).wrapping_mul(MSS_BYTES),
            })
        });
        let window = window.map_or(u64::MAX / 2, |bytes| u64::from(bytes / MSS_BYTES));
        end.promised = end.promised.max(end.highest + window);
        let acked = Event::Acked { edge: end.promised, sent_us: now_us };
        self.events.push(Reverse((now_us + self.path.rtt_us / 2, index, acked)));
    }
}
