//! Applications: what writes into a connection and reads from it. They read at once what has arrived.

use super::{send_buffer::Push, sender::Sender};
use crate::timers::NEVER;
use std::collections::VecDeque;

/// Length of a timestamp in the stream, as the transfer program writes it.
pub const STAMP_BYTES: u64 = 16;

/// What a write came to so far.
#[derive(Debug, Clone, Copy)]
pub struct Filled {
    /// What is to be sent now.
    pub push: Push,
    /// Nothing more is written after that, unless what is sent makes room.
    pub ends: bool,
}

impl Filled {
    const NOTHING: Filled = Filled { push: Push::Whole, ends: true };
}

/// One end's application.
#[derive(Debug)]
pub enum App {
    /// Writes the flow and reads its echoes.
    Source(Box<Source>),
    /// Reads the flow and echoes its timestamps.
    Sink(Sink),
    /// A relay's socket: the engine moves its bytes.
    Relay,
}

/// What a source offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Payload; absent: without end.
    pub bytes: Option<u64>,
    /// When it begins, if its connection stands.
    pub start_ns: u64,
    /// From when on it begins no more blocks.
    pub stop_ns: u64,
    /// Payload rate it does not exceed.
    pub rate_bps: Option<u64>,
    /// Bytes it writes at once.
    pub block_bytes: u64,
    /// Distance of its timestamps.
    pub echo_every_bytes: Option<u64>,
    /// Blocks are written only when the socket has room for them, so that no timestamp waits for room.
    pub asks_for_room: bool,
}

/// A timestamp that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// When the block that held it was handed to the socket.
    pub time_ns: u64,
    /// Where in the stream it stood.
    pub position_bytes: u64,
    /// How long it was under way.
    pub latency_ns: u64,
}

/// Writes block after block, as a blocking program does.
#[derive(Debug)]
pub struct Source {
    offer: Offer,
    start_ns: u64,
    block_end_bytes: u64,
    is_blocked: bool,
    stamps: VecDeque<(u64, u64)>,
    next_stamp_bytes: u64,
    returned_bytes: u64,
    /// Timestamps that came back and were not yet recorded.
    pub echoes: Vec<Echo>,
    /// When the next block is due.
    pub next_at_ns: u64,
}

/// Reads everything at once.
#[derive(Debug)]
pub struct Sink {
    echo_every_bytes: Option<u64>,
    next_stamp_bytes: u64,
}

impl Source {
    /// A source; it waits until its connection stands.
    pub fn new(offer: Offer) -> Source {
        Source {
            offer,
            start_ns: 0,
            block_end_bytes: 0,
            is_blocked: false,
            stamps: VecDeque::new(),
            next_stamp_bytes: 0,
            returned_bytes: 0,
            echoes: Vec::new(),
            next_at_ns: NEVER,
        }
    }

    /// The connection stands.
    pub fn start(&mut self, now_ns: u64) {
        self.start_ns = now_ns.max(self.offer.start_ns);
    }

    /// Writes what there is room for, until something of it is to be sent.
    pub fn fill(&mut self, sender: &mut Sender, now_ns: u64) -> Filled {
        if self.is_blocked && !sender.wakes_writer() {
            return Filled::NOTHING;
        }
        self.is_blocked = false;
        self.next_at_ns = NEVER;
        if sender.written_bytes == self.block_end_bytes {
            if self.offer.asks_for_room && !sender.wakes_writer() {
                self.is_blocked = true;
                return Filled::NOTHING;
            }
            if !self.begin_block(now_ns) {
                let ends_now = self.next_at_ns == NEVER && sender.finish();
                return if ends_now { Filled { push: Push::All, ends: true } } else { Filled::NOTHING };
            }
        }
        loop {
            if sender.append(self.block_end_bytes - sender.written_bytes) == 0 {
                self.is_blocked = true;
                return Filled { push: Push::All, ends: true };
            }
            if sender.written_bytes == self.block_end_bytes {
                return Filled { push: sender.push_after_write(), ends: false };
            }
            if let Some(push) = sender.push_within_write() {
                return Filled { push, ends: false };
            }
        }
    }

    /// Whether there is room now that some of what it wrote has been sent, within the same call.
    fn finds_room(&mut self, sender: &Sender) -> bool {
        let is_between_blocks = sender.written_bytes == self.block_end_bytes;
        let has_room = match is_between_blocks && self.offer.asks_for_room {
            true => sender.wakes_writer(),
            false => sender.has_room(),
        };
        let goes_on = self.is_blocked && has_room;
        self.is_blocked &= !goes_on;
        goes_on
    }

    /// Begins the next block if there is one and it is due.
    fn begin_block(&mut self, now_ns: u64) -> bool {
        let left = self.offer.bytes.map_or(u64::MAX, |bytes| bytes - self.block_end_bytes);
        if left == 0 || now_ns >= self.offer.stop_ns {
            return false;
        }
        let due_ns = self.due_ns();
        if due_ns > now_ns {
            self.next_at_ns = due_ns;
            return false;
        }
        self.block_end_bytes += self.offer.block_bytes.min(left);
        self.stamp_block(now_ns);
        true
    }

    /// When it began to write, or will.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn due_ns(&self) -> u64 {
        let Some(rate_bps) = self.offer.rate_bps else { return self.start_ns };
        let wait = u128::from(self.block_end_bytes) * 8_000_000_000 / u128::from(rate_bps.max(1));
        self.start_ns.saturating_add(u64::try_from(wait).unwrap_or(NEVER))
    }

    /// A stamp that begins in a block is written with it.
    fn stamp_block(&mut self, now_ns: u64) {
        let Some(every) = self.offer.echo_every_bytes else { return };
        while self.next_stamp_bytes < self.block_end_bytes {
            self.stamps.push_back((self.next_stamp_bytes, now_ns));
            self.next_stamp_bytes += every;
        }
    }

    /// Bytes came back.
    fn take(&mut self, bytes: u64, now_ns: u64) {
        let before = self.returned_bytes / STAMP_BYTES;
        self.returned_bytes += bytes;
        for _ in before..self.returned_bytes / STAMP_BYTES {
            if let Some((position_bytes, time_ns)) = self.stamps.pop_front() {
                self.echoes.push(Echo { time_ns, position_bytes, latency_ns: now_ns - time_ns });
            }
        }
    }
}

impl Sink {
    /// A sink that echoes a timestamp every so many bytes.
    pub fn new(echo_every_bytes: Option<u64>) -> Sink {
        Sink { echo_every_bytes, next_stamp_bytes: 0 }
    }

    /// The stream has been read up to `position_bytes`.
    fn take(&mut self, position_bytes: u64, sender: &mut Sender) {
        let Some(every) = self.echo_every_bytes else { return };
        while self.next_stamp_bytes + STAMP_BYTES <= position_bytes {
            sender.write(STAMP_BYTES);
            self.next_stamp_bytes += every;
        }
    }
}

impl App {
    /// Takes bytes that were read; `position_bytes` is the stream position reached.
    pub fn take(&mut self, bytes: u64, position_bytes: u64, sender: &mut Sender, now_ns: u64) {
        match self {
            App::Source(source) => source.take(bytes, now_ns),
            App::Sink(sink) => sink.take(position_bytes, sender),
            App::Relay => {}
        }
    }

    /// Writes what there is to write, until something of it is to be sent.
    pub fn fill(&mut self, sender: &mut Sender, now_ns: u64) -> Filled {
        match self {
            App::Source(source) => source.fill(sender, now_ns),
            _ => Filled::NOTHING,
        }
    }

    /// Whether a program that waited for room finds some as its bytes have been sent.
    pub fn finds_room(&mut self, sender: &Sender) -> bool {
        match self {
            App::Source(source) => source.finds_room(sender),
            _ => false,
        }
    }

    /// When the application acts by itself.
    pub fn next_at_ns(&self) -> u64 {
        match self {
            App::Source(source) => source.next_at_ns,
            _ => NEVER,
        }
    }
}
