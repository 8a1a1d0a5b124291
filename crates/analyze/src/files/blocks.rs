//! Blocks of pcapng on their way to a file. They are handed on whole, many at once; where there is no room for all of
//! them, the file is cut behind the last whole one, and what became of the others is told.

use super::roll::Target;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Room before the kernel is asked to write.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Type and length, with which every block begins.
const HEAD_BYTES: usize = 8;
/// Type of the block of a packet.
const PACKET: u32 = 6;
/// Blocks that every file begins with: the section, and its interface.
const FIRST_BLOCKS: usize = 2;

/// Packets that were to be in a file and are not, inbound first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Number of them.
    pub packets: [u64; 2],
    /// Octets that they had on the wire.
    pub wire_bytes: [u64; 2],
    /// Octets that had been kept of them.
    pub kept_bytes: u64,
}

/// A file of blocks, and those of them that it has not got yet.
pub(super) struct Blocks {
    to: Target,
    /// Octets in the file in front of `behind`.
    before_bytes: u64,
    /// The newest whole blocks in the file.
    behind: Vec<u8>,
    /// Whole blocks, and the one that is being made.
    waiting: Vec<u8>,
    /// Octets of `waiting` that the file has got.
    taken: usize,
    /// Octets that the block that is being made lacks.
    lacking: usize,
}

impl Write for Blocks {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.lacking == 0 {
            if self.waiting.len() >= BUFFER_BYTES {
                self.hand_on()?;
            }
            self.lacking = number(bytes, 4) as usize;
        }
        self.lacking = self.lacking.saturating_sub(bytes.len());
        self.waiting.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hand_on()?;
        self.to.flush()
    }
}

impl Blocks {
    pub(super) fn new(to: Target) -> Blocks {
        // A block more than is waited for.
        let room = || Vec::with_capacity(BUFFER_BYTES + (1 << 16));
        Blocks { to, before_bytes: 0, behind: room(), waiting: room(), taken: 0, lacking: 0 }
    }

    fn hand_on(&mut self) -> io::Result<()> {
        while self.taken < self.waiting.len() {
            match self.to.write(&self.waiting[self.taken..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.taken += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.behind.len() + self.waiting.len() <= BUFFER_BYTES {
            self.behind.extend_from_slice(&self.waiting);
        } else {
            self.before_bytes += self.behind.len() as u64;
            std::mem::swap(&mut self.behind, &mut self.waiting);
        }
        self.waiting.clear();
        self.taken = 0;
        Ok(())
    }

    /// Cuts the file behind a whole block, so that there is room for a last one of `last_bytes`, which is made of what
    /// was cut and put there. What cannot be cut (a pipe) is left as it is.
    pub(super) fn cut(mut self, last_bytes: usize, last: impl FnOnce(&Cut) -> Vec<u8>) -> Cut {
        let blocks = self.blocks();
        let written = self.before_bytes + (self.behind.len() + self.taken) as u64;
        let least = if self.before_bytes > 0 { 0 } else { FIRST_BLOCKS };
        let ends: Vec<u64> = blocks.iter().map(|(end, _)| *end).collect();
        let fit = |room: u64| ends.iter().take_while(|end| **end + room <= written).count();
        // Where there is no place for the last block, it may still find room behind the others.
        let kept = Some(fit(last_bytes as u64)).filter(|kept| *kept > least).unwrap_or_else(|| fit(0));
        let end = kept.checked_sub(1).map_or(self.before_bytes, |at| ends[at]);
        let mut cut = Cut::default();
        blocks[kept..].iter().for_each(|(_, block)| cut.add(block));
        // Without the blocks that it begins with a file holds nothing.
        let end = if kept < least { 0 } else { end };
        if self.to.shorten(end).is_ok() && end > 0 {
            let told = self.to.write_all(&last(&cut)).and_then(|()| self.to.flush());
            // The file is whole without it.
            let _ = told.or_else(|_| self.to.shorten(end));
        }
        cut
    }

    /// The newest whole blocks, and where in the file each ends.
    fn blocks(&self) -> Vec<(u64, &[u8])> {
        let (mut found, mut end) = (Vec::new(), self.before_bytes);
        for mut bytes in [&self.behind[..], &self.waiting] {
            while bytes.len() >= HEAD_BYTES {
                let length = number(bytes, 4) as usize;
                // The one that was being made.
                let Some((block, others)) = bytes.split_at_checked(length.max(HEAD_BYTES)) else { break };
                end += block.len() as u64;
                found.push((end, block));
                bytes = others;
            }
        }
        found
    }
}

impl Cut {
    fn add(&mut self, block: &[u8]) {
        if number(block, 0) != PACKET {
            return;
        }
        // In front of the end of the options, and the length: the flags, whose lowest bits say the direction.
        let is_inbound = number(block, block.len().saturating_sub(12)) & 3 == 1;
        let way = usize::from(!is_inbound);
        self.packets[way] += 1;
        self.wire_bytes[way] += u64::from(number(block, 24));
        self.kept_bytes += u64::from(number(block, 20));
    }
}

/// A number of a block; 0 where the block has ended.
#[inline]
fn number(block: &[u8], at: usize) -> u32 {
    block.get(at..at + 4).and_then(|octets| octets.try_into().ok()).map_or(0, u32::from_le_bytes)
}
