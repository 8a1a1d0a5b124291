//! Whether one end's checksums are those of the wire. Where sending is left to the interface, a capture at the sender
//! has packets whose checksum is not made yet: zero, the sum of the pseudo-header, or whatever was there. The first two
//! are told by their value; whatever was there by its share: damage is rare, and what an interface makes is missing
//! from all of one direction.

use crate::segment::Checksum;
use serde::Serialize;

/// Checksums of one end's packets, as far as they were kept whole; by what they say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checksums([u64; 4]);

/// Checksums of one direction, as reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ChecksumReport {
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
        self.0[checksum as usize & 3] += 1;
    }

    /// How many say what.
    pub fn report(&self) -> ChecksumReport {
        let [_, right, unset, wrong] = self.0;
        ChecksumReport { right, unset, wrong }
    }

    /// Whether a wrong one is damage: more of this end's are right.
    pub fn are_of_the_wire(&self) -> bool {
        self.report().right > self.report().wrong
    }
}
