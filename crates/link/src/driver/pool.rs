//! Buffers for the frames inside the model: taken and given back without allocation once the pool has grown.
//!
//! Two sizes: most packets of a TCP path are either full or bare acknowledgements, and a queue bounded in bytes may
//! hold very many of the latter.

use super::frame::VNET_BYTES;

const CHUNK_SLOTS: usize = 1024;
const SMALL_BYTES: usize = 256;

/// A frame in the pool, its vnet header in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    slot: u32,
    large: bool,
    bytes: u32,
}

/// Slots of one size, in chunks that never move.
#[derive(Debug)]
struct Slots {
    slot_bytes: usize,
    chunks: Vec<Box<[u8]>>,
    free: Vec<u32>,
}

impl Slots {
    fn new(slot_bytes: usize, count: usize) -> Slots {
        let mut slots = Slots { slot_bytes, chunks: Vec::with_capacity(1024), free: Vec::new() };
        for _ in 0..count.div_ceil(CHUNK_SLOTS) {
            slots.grow();
        }
        slots
    }

    /// Writing every byte makes the pages present now rather than under the first packets.
    fn grow(&mut self) {
        let first = (self.chunks.len() * CHUNK_SLOTS) as u32;
        self.chunks.push(vec![0xa5; self.slot_bytes * CHUNK_SLOTS].into_boxed_slice());
        self.free.reserve(self.chunks.len() * CHUNK_SLOTS - self.free.len());
        self.free.extend((first..first + CHUNK_SLOTS as u32).rev());
    }

    fn bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK_SLOTS * self.slot_bytes) as u64
    }

    fn range(&self, slot: u32, bytes: u32) -> (usize, std::ops::Range<usize>) {
        let (chunk, at) = (slot as usize / CHUNK_SLOTS, slot as usize % CHUNK_SLOTS * self.slot_bytes);
        (chunk, at..at + bytes as usize)
    }
}

/// The buffers of one driver.
#[derive(Debug)]
pub struct Pool {
    small: Slots,
    large: Slots,
    limit_bytes: u64,
}

impl Pool {
    /// Room for `large_slots` packets of MTU size and twice as many small ones, growing to `limit_bytes` at most.
    pub fn new(mtu_frame_bytes: usize, large_slots: usize, limit_bytes: u64) -> Pool {
        let slot_bytes = (VNET_BYTES + mtu_frame_bytes).next_multiple_of(64).max(SMALL_BYTES);
        Pool {
            small: Slots::new(SMALL_BYTES, large_slots * 2),
            large: Slots::new(slot_bytes, large_slots),
            limit_bytes,
        }
    }

    /// Copies in a vnet header with its frame. `None`: too long, or the pool is at its limit.
    pub fn store(&mut self, bytes: &[u8]) -> Option<Buffer> {
        let large = bytes.len() > SMALL_BYTES;
        let total_bytes = self.small.bytes() + self.large.bytes();
        let limit_bytes = self.limit_bytes;
        let slots = self.slots_mut(large);
        if bytes.len() > slots.slot_bytes {
            return None;
        }
        if slots.free.is_empty() {
            if total_bytes >= limit_bytes {
                return None;
            }
            slots.grow();
        }
        let buffer = Buffer { slot: slots.free.pop()?, large, bytes: bytes.len() as u32 };
        self.get_mut(buffer).copy_from_slice(bytes);
        Some(buffer)
    }

    /// The vnet header and the frame.
    pub fn get(&self, buffer: Buffer) -> &[u8] {
        let slots = if buffer.large { &self.large } else { &self.small };
        let (chunk, range) = slots.range(buffer.slot, buffer.bytes);
        &slots.chunks[chunk][range]
    }

    /// The bytes of a buffer, to write to.
    pub fn get_mut(&mut self, buffer: Buffer) -> &mut [u8] {
        let slots = self.slots_mut(buffer.large);
        let (chunk, range) = slots.range(buffer.slot, buffer.bytes);
        &mut slots.chunks[chunk][range]
    }

    /// Gives a buffer back. It must not be used afterwards.
    pub fn release(&mut self, buffer: Buffer) {
        self.slots_mut(buffer.large).free.push(buffer.slot);
    }

    fn slots_mut(&mut self, large: bool) -> &mut Slots {
        if large { &mut self.large } else { &mut self.small }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_what_is_read_and_slots_are_used_again() {
        let mut pool = Pool::new(1514, 1, u64::MAX);
        let (a, b) = (pool.store(&[1; 100]).unwrap(), pool.store(&[2; 1500]).unwrap());
        assert_eq!((pool.get(a), pool.get(b)), (&[1u8; 100][..], &[2u8; 1500][..]));
        pool.release(a);
        assert_eq!(pool.store(&[3; 60]).unwrap().slot, a.slot);
        assert_eq!(pool.get(b), &[2u8; 1500][..]);
    }

    #[test]
    fn the_pool_grows_to_its_limit_and_refuses_what_is_too_long() {
        let mut pool = Pool::new(1514, 1, 1);
        assert!((0..CHUNK_SLOTS).all(|_| pool.store(&[0; 1000]).is_some()));
        assert_eq!(pool.store(&[0; 1000]), None);
        let mut growing = Pool::new(1514, 1, u64::MAX);
        assert!((0..=CHUNK_SLOTS).all(|_| growing.store(&[0; 1000]).is_some()));
        assert_eq!(growing.store(&[0; 3000]), None);
    }
}
