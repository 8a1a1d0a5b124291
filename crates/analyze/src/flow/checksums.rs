//! Whether one end's checksums are those of the wire. Where sending is left to the interface, a capture at the sender has
//! packets whose checksum is not made yet: zero, the sum of the pseudo-header, or whatever was there. The first two are told by
//! their value; whatever was there by its share: damage is rare, and what an interface makes is missing from all of one direction.

use crate::decode::Checksum;
use serde::Serialize;

/// Checksums of one end's packets, as far as they were kept whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Checksums {
    /// Right.
    pub right: u64,
    /// Zero, or of the pseudo-header alone.
    pub unset: u64,
    /// Otherwise wrong.
    pub wrong: u64,
}

impl Checksums {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, checksum: Checksum) {
        match checksum {
            Checksum::Unchecked => {}
            Checksum::Right => self.right += 1,
            Checksum::Unset => self.unset += 1,
            Checksum::Wrong => self.wrong += 1,
        }
    }

    /// Whether a wrong one is damage: more of this end's are right.
    pub fn are_of_the_wire(&self) -> bool {
        self.right > self.wrong
    }
}
