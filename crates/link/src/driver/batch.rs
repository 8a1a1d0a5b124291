//! Frames leaving through one interface: gathered, joined where wanted, sent with one system call.

use super::{
    frame::{Joined, Segment, VNET_BYTES},
    pool::{Buffer, Pool},
    socket::PacketSocket,
};
use std::io;

/// Most frames gathered: bounds how old the clock reading of a batch can be.
const MAX_FRAMES: usize = 128;

/// Frames to be sent together.
pub struct Batch {
    join: bool,
    frames: Vec<Buffer>,
    parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// Number of parts of each message, which is its number of frames.
    sizes: Vec<usize>,
    open: Option<(Buffer, Joined)>,
}

impl Batch {
    /// An empty batch; `join` makes one frame of adjacent segments of one flow.
    pub fn new(join: bool) -> Batch {
        Batch {
            join,
            frames: Vec::with_capacity(MAX_FRAMES),
            parts: Vec::with_capacity(MAX_FRAMES),
            messages: Vec::with_capacity(MAX_FRAMES),
            sizes: Vec::with_capacity(MAX_FRAMES),
            open: None,
        }
    }

    /// Whether it must be sent before another frame is added.
    pub fn is_full(&self) -> bool {
        self.frames.len() == MAX_FRAMES
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame, which belongs to the batch until it has been sent.
    pub fn add(&mut self, pool: &mut Pool, buffer: Buffer) {
        self.frames.push(buffer);
        let segment = if self.join { Segment::parse(&pool.get(buffer)[VNET_BYTES..]) } else { None };
        if let (Some(segment), Some((head, joined))) = (&segment, &mut self.open) {
            let (head_frame, frame) = (&pool.get(*head)[VNET_BYTES..], &pool.get(buffer)[VNET_BYTES..]);
            if joined.accepts(head_frame, frame, segment) {
                joined.add(segment);
                self.parts.push(part(&frame[segment.payload_at..]));
                if let Some(size) = self.sizes.last_mut() {
                    *size += 1;
                }
                return;
            }
        }
        self.close(pool);
        self.open = segment.map(|segment| (buffer, Joined::new(segment)));
        self.parts.push(part(pool.get(buffer)));
        self.sizes.push(1);
    }

    /// Sends everything and gives the buffers back. How many frames the interface refused.
    pub fn send(&mut self, pool: &mut Pool, socket: &PacketSocket) -> u64 {
        self.close(pool);
        self.build_messages();
        let (mut sent, mut refused) = (0, 0);
        while sent < self.messages.len() {
            match socket.send(&mut self.messages[sent..]) {
                Ok(count) => sent += count.max(1),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    refused += self.sizes[sent] as u64;
                    sent += 1;
                }
            }
        }
        self.frames.drain(..).for_each(|buffer| pool.release(buffer));
        self.parts.clear();
        self.sizes.clear();
        refused
    }

    fn close(&mut self, pool: &mut Pool) {
        if let Some((head, joined)) = self.open.take() {
            let (vnet, frame) = pool.get_mut(head).split_at_mut(VNET_BYTES);
            joined.finish(vnet, frame);
        }
    }

    fn build_messages(&mut self) {
        self.messages.clear();
        let mut first = 0;
        for size in &self.sizes {
            // SAFETY: an all-zero mmsghdr is valid (no name, no control data).
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = &raw mut self.parts[first];
            message.msg_hdr.msg_iovlen = *size as _;
            self.messages.push(message);
            first += size;
        }
    }
}

/// A part of a message. It points into the pool, whose chunks never move, at a buffer the batch owns.
fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
