//! Made-up traffic whose truth is known: a sender with a fixed window, fast retransmission and timeouts over a path
//! that loses and reorders, seen at any place of it; and what captures do to it.

use super::{MS, Tcp, Trace, US};
use longfat_analyze::segment::flag;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers that look random; the same for the same seed.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Whether a die of a thousand faces shows less than this.
    pub fn permille(&mut self, share: u64) -> bool {
        self.next() % 1000 < share
    }
}

/// A transfer.
#[derive(Debug, Clone)]
pub struct Transfer {
    pub seed: u64,
    pub segments: u32,
    pub window_segments: u32,
    pub mss: u32,
    pub one_way_ns: i64,
    pub loss_permille: u64,
    pub reorder_permille: u64,
    pub sack: bool,
    pub timestamps: bool,
    pub scale: Option<u8>,
    /// Place of the capture on the way from sender to receiver, in percent.
    pub place: i64,
    pub first: u32,
    /// The window is halved at a loss and grows by a segment in a round trip; otherwise it stays.
    pub adapts: bool,
    /// What passes a token bucket: bits per second, and octets at once.
    pub policed: Option<(u64, u64)>,
}

impl Default for Transfer {
    fn default() -> Transfer {
        Transfer {
            seed: 1,
            segments: 400,
            window_segments: 20,
            mss: 1448,
            one_way_ns: 10 * MS,
            loss_permille: 0,
            reorder_permille: 0,
            sack: true,
            timestamps: true,
            scale: Some(7),
            place: 0,
            first: 0,
            adapts: false,
            policed: None,
        }
    }
}

/// A capture, and what its sender did.
#[derive(Debug, Clone)]
pub struct Made {
    pub trace: Trace,
    pub resent_segments: u64,
}

enum Event {
    Data(u32),
    Ack(u32),
    Timer(u32),
}

struct World<'a> {
    transfer: &'a Transfer,
    dice: Dice,
    events: BTreeMap<(i64, u64), Event>,
    number: u64,
    seen: Vec<(i64, Tcp)>,
    resent_segments: u64,
    sent_to: u32,
    una: u32,
    duplicates: u32,
    repaired: Option<u32>,
    got: BTreeSet<u32>,
    expected: u32,
    ids: [u16; 2],
    timer: u32,
    window: f64,
    /// Bits of tokens, and when they were counted.
    tokens: (u64, i64),
}

impl World<'_> {
    fn at(&mut self, time_ns: i64, event: Event) {
        self.number += 1;
        self.events.insert((time_ns, self.number), event);
    }

    fn octets(&self, segment: u32) -> u32 {
        self.transfer.first.wrapping_add(segment * self.transfer.mss)
    }

    fn send(&mut self, now: i64, segment: u32) {
        let Transfer { one_way_ns, place, loss_permille, reorder_permille, mss, timestamps, .. } =
            *self.transfer;
        self.ids[0] += 1;
        let mut tcp =
            Tcp::client(flag::ACK, self.octets(segment), 0).payload(mss as usize).ip_id(self.ids[0]);
        if timestamps {
            tcp = tcp.timestamps((now / MS) as u32 + 1, ((now - 2 * one_way_ns) / MS).max(0) as u32 + 1);
        }
        let lost = self.dice.permille(loss_permille) || !self.passes(now, mss);
        // What is lost is lost before the capture, or behind it.
        let lost_before = lost && self.dice.next() % 100 < place as u64;
        let late = if self.dice.permille(reorder_permille) { one_way_ns / 3 } else { 0 };
        if !lost_before {
            self.seen.push((now + one_way_ns * place / 100 + if place > 50 { late } else { 0 }, tcp));
        }
        if !lost {
            self.at(now + one_way_ns + late, Event::Data(segment));
        }
        self.timer += 1;
        let timer = self.timer;
        self.at(now + 2 * one_way_ns + 300 * MS, Event::Timer(timer));
    }

    /// Whether a policer has tokens for it.
    fn passes(&mut self, now: i64, octets: u32) -> bool {
        let Some((rate_bps, burst_bytes)) = self.transfer.policed else { return true };
        let (tokens, since) = self.tokens;
        let fresh = rate_bps * (now - since).max(0) as u64 / 1_000_000_000;
        let (tokens, needed) = ((tokens + fresh).min(burst_bytes * 8), u64::from(octets) * 8);
        let passes = tokens >= needed;
        self.tokens = (if passes { tokens - needed } else { tokens }, now.max(since));
        passes
    }

    fn on_loss(&mut self, window: f64) {
        if self.transfer.adapts {
            self.window = window.max(2.0);
        }
    }

    fn again(&mut self, now: i64, segment: u32) {
        self.resent_segments += 1;
        self.send(now, segment);
    }

    fn fill(&mut self, now: i64) {
        let mut at = now;
        while self.sent_to < self.transfer.segments && self.sent_to < self.una + self.window as u32 {
            let segment = self.sent_to;
            self.sent_to += 1;
            self.send(at, segment);
            at += 20 * US;
        }
    }

    fn on_data(&mut self, now: i64, segment: u32) {
        let Transfer { one_way_ns, place, sack, timestamps, window_segments, mss, scale, .. } =
            *self.transfer;
        let is_new = self.got.insert(segment);
        while self.got.contains(&self.expected) {
            self.expected += 1;
        }
        // What came twice is told, too (RFC 2883), so that no two acknowledgements are alike.
        let block = (sack && (segment > self.expected || !is_new)).then_some((segment, segment + 1));
        let window = 2 * window_segments * mss;
        let mut ack = Tcp::server(flag::ACK, 0, self.octets(self.expected))
            .window((window >> scale.unwrap_or(0)) as u16);
        self.ids[1] += 1;
        ack = ack.ip_id(self.ids[1]);
        if timestamps {
            ack = ack.timestamps((now / MS) as u32 + 1, ((now - one_way_ns) / MS).max(0) as u32 + 1);
        }
        if let Some((from, to)) = block {
            ack = ack.sack(&[(self.octets(from), self.octets(to))]);
        }
        if self.dice.permille(self.transfer.loss_permille / 2) {
            return;
        }
        self.seen.push((now + one_way_ns * (100 - place) / 100, ack));
        self.at(now + one_way_ns, Event::Ack(self.expected));
    }

    fn on_ack(&mut self, now: i64, ack: u32) {
        if ack > self.una {
            if self.transfer.adapts && self.repaired.is_none() {
                let most = f64::from(self.transfer.window_segments);
                self.window = (self.window + f64::from(ack - self.una) / self.window).min(most);
            }
            (self.una, self.duplicates) = (ack, 0);
            self.timer += 1;
            let timer = self.timer;
            self.at(now + 2 * self.transfer.one_way_ns + 300 * MS, Event::Timer(timer));
            if self.repaired.is_some_and(|point| ack < point) {
                self.again(now + 5 * US, ack);
            } else {
                self.repaired = None;
            }
        } else if ack == self.una && self.una < self.sent_to {
            self.duplicates += 1;
            if self.duplicates == 3 && self.repaired.is_none() {
                self.repaired = Some(self.sent_to);
                self.on_loss(self.window / 2.0);
                self.again(now + 5 * US, ack);
            }
        }
        self.fill(now + 10 * US);
    }

    fn run(&mut self, start: i64) {
        self.fill(start);
        while let Some(((now, _), event)) = self.events.pop_first() {
            match event {
                Event::Data(segment) => self.on_data(now, segment),
                Event::Ack(ack) => self.on_ack(now, ack),
                Event::Timer(timer) if timer == self.timer && self.una < self.sent_to => {
                    let head = self.una;
                    (self.repaired, self.duplicates) = (Some(self.sent_to), 0);
                    self.on_loss(2.0);
                    self.again(now, head);
                }
                Event::Timer(_) => {}
            }
            if self.una >= self.transfer.segments || now > 600_000 * MS {
                break;
            }
        }
    }
}

/// Makes a transfer.
pub fn made(transfer: &Transfer) -> Made {
    let most = (65_535u32 << transfer.scale.unwrap_or(0)) / 2 / transfer.mss;
    let transfer =
        &Transfer { window_segments: transfer.window_segments.min(most).max(1), ..transfer.clone() };
    let Transfer { one_way_ns, place, sack, scale, timestamps, first, .. } = *transfer;
    let stamped = |tcp: Tcp| if timestamps { tcp.timestamps(1, 0) } else { tcp };
    let near = one_way_ns * place / 100;
    let syn = Tcp::client(flag::SYN, first.wrapping_sub(1), 0).syn_options(sack, scale);
    let answer = Tcp::server(flag::SYN | flag::ACK, u32::MAX, first).syn_options(sack, scale);
    let seen = vec![
        (near, stamped(syn)),
        (2 * one_way_ns - near, stamped(answer)),
        (2 * one_way_ns + near, Tcp::client(flag::ACK, first, 0)),
    ];
    let mut world = World {
        transfer,
        dice: Dice(transfer.seed),
        events: BTreeMap::new(),
        number: 0,
        seen,
        resent_segments: 0,
        sent_to: 0,
        una: 0,
        duplicates: 0,
        repaired: None,
        got: BTreeSet::new(),
        expected: 0,
        ids: [0, 0],
        timer: 0,
        window: if transfer.adapts { 10.0 } else { transfer.window_segments.into() },
        tokens: (transfer.policed.map_or(0, |(_, burst)| burst * 8), 0),
    };
    world.run(2 * one_way_ns + 10 * US);
    world.seen.sort_by_key(|(time_ns, _)| *time_ns);
    Made { trace: Trace { packets: world.seen }, resent_segments: world.resent_segments }
}

/// What a capture does to traffic.
#[derive(Debug, Clone, Default)]
pub struct Capturing {
    pub seed: u64,
    pub lost_permille: u64,
    pub copied_permille: u64,
    pub late_permille: u64,
    pub late_ns: i64,
    /// Packets cut off at the beginning, in percent.
    pub cut_percent: u64,
    pub only_client: Option<bool>,
    pub no_handshake: bool,
    pub foreign_permille: u64,
    /// The clock is set back by this in the middle.
    pub set_back_ns: i64,
}

/// The capture that comes of it.
pub fn captured(trace: &Trace, how: &Capturing) -> Trace {
    let mut dice = Dice(how.seed ^ 0xabcd);
    let mut packets = Vec::new();
    let count = trace.packets.len();
    for (number, (time_ns, tcp)) in trace.packets.iter().enumerate() {
        let is_unwanted = how.only_client.is_some_and(|client| client != tcp.from_client)
            || how.no_handshake && tcp.flags & flag::SYN != 0
            || (number as u64) * 100 < how.cut_percent * count as u64
            || dice.permille(how.lost_permille);
        let back = if number > count / 2 { how.set_back_ns } else { 0 };
        let late = if dice.permille(how.late_permille) { how.late_ns } else { 0 };
        let at = time_ns - back + late;
        if dice.permille(how.foreign_permille) {
            let foreign = Tcp { seq: dice.next() as u32, ack: dice.next() as u32, ..tcp.clone() };
            packets.push((at, foreign));
        }
        if !is_unwanted {
            packets.push((at, tcp.clone()));
            if dice.permille(how.copied_permille) {
                packets.push((at + 2 * US, tcp.clone()));
            }
        }
    }
    Trace { packets }
}
