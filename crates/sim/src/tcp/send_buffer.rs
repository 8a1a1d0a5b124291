//! The send buffer. What a program writes goes into buffers of the kernel's that hold a bundle each at most
//! (tcp_sendmsg), and room is asked for only where a new one begins. A bundle that leaves is cut off the first of
//! them, and what is left takes more: a program whose segments leave in small bundles writes as far as the windows
//! allow, beyond the size of its buffer, for as long as a crumb of the last write waits (Nagle's algorithm).

use super::{bundle::BUNDLE_MOST_BYTES, sender::Sender};

/// What a write asks to be sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// What the windows allow; a crumb may wait (tcp_push_pending_frames).
    Whole,
    /// What the windows allow, a crumb too (TCP_NAGLE_PUSH).
    All,
    /// One bundle (tcp_push_one).
    Bundle,
}

impl Sender {
    /// Room for bytes in the send buffer, of which so many may wait unsent.
    pub fn room_bytes(&self) -> u64 {
        self.free_bytes().min(self.unsent_limit_bytes.saturating_sub(self.unsent_bytes()))
    }

    /// Whether one of the kernel's buffers may begin (sk_stream_memory_free).
    pub fn has_room(&self) -> bool {
        self.room_bytes() > 0
    }

    /// Bytes of the send buffer that hold nothing.
    pub(super) fn free_bytes(&self) -> u64 {
        let payload_bytes = self.written_bytes - self.acked_bytes;
        let skbs = self.board.skbs + self.unsent_bytes().div_ceil(self.skb_most_bytes());
        self.buffer.0.saturating_sub(payload_bytes + skbs * self.skb_bytes)
    }

    /// Whether a writer that found no room is woken: a third of the buffer is free (sk_stream_is_writeable), and
    /// less than half of what may wait unsent does (tcp_stream_memory_free).
    pub fn wakes_writer(&self) -> bool {
        self.free_bytes() * 3 >= self.buffer.0
            && self.unsent_bytes().saturating_mul(2) < self.unsent_limit_bytes
    }

    /// The application writes.
    pub fn write(&mut self, bytes: u64) {
        if self.tail_bytes() == 0 {
            self.tail_begin_bytes = self.written_bytes;
        }
        self.written_bytes += bytes;
    }

    /// The application writes into the newest of the kernel's buffers, or a new one if there is room: how many of its
    /// bytes were taken.
    pub fn append(&mut self, bytes: u64) -> u64 {
        let tail_bytes = self.tail_bytes();
        let most_bytes = if !self.is_counted() {
            self.room_bytes()
        } else if (1..self.skb_most_bytes()).contains(&tail_bytes) {
            self.skb_most_bytes() - tail_bytes
        } else if self.has_room() {
            self.tail_begin_bytes = self.written_bytes;
            self.skb_most_bytes()
        } else {
            0
        };
        self.written_bytes += bytes.min(most_bytes);
        bytes.min(most_bytes)
    }

    /// What is sent within a write, once it has filled one of the kernel's buffers.
    pub fn push_within_write(&mut self) -> Option<Push> {
        if !self.is_counted() || self.tail_bytes() < self.skb_most_bytes() {
            return None;
        }
        if self.written_bytes > self.pushed_bytes + self.widest_window_bytes / 2 {
            self.pushed_bytes = self.written_bytes;
            return Some(Push::All);
        }
        (self.tail_bytes() == self.unsent_bytes()).then_some(Push::Bundle)
    }

    /// What is sent as a write ends.
    pub fn push_after_write(&mut self) -> Push {
        self.pushed_bytes = self.written_bytes;
        Push::Whole
    }

    /// The application writes no more: no crumb waits. Whether one may have.
    pub fn finish(&mut self) -> bool {
        std::mem::take(&mut self.holds_small)
    }

    /// Whether the buffer is counted as the kernel does.
    fn is_counted(&self) -> bool {
        self.skb_bytes > 0
    }

    /// Payload that one of the kernel's buffers takes at most.
    fn skb_most_bytes(&self) -> u64 {
        let mss_bytes = u64::from(self.mss_bytes);
        (BUNDLE_MOST_BYTES / mss_bytes * mss_bytes).max(mss_bytes)
    }

    /// Payload unsent in the newest of the kernel's buffers.
    fn tail_bytes(&self) -> u64 {
        self.written_bytes - self.next_bytes.max(self.tail_begin_bytes)
    }

    /// Whether the next segment is a crumb that waits for the acknowledgement of an earlier one (Nagle's algorithm, as
    /// Minshall's).
    pub(super) fn holds_next(&self, push: Push, length_bytes: u64) -> bool {
        self.holds_small
            && push != Push::All
            && length_bytes < u64::from(self.mss_bytes)
            && self.board.packets_out() > 0
            && self.small_end_bytes > self.acked_bytes
    }
}
