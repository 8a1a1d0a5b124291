//! The payload: bytes that tell their position.
//!
//! The pattern repeats every [`PERIOD_BYTES`], a prime below 64 KiB: bytes lost, doubled or moved by any multiple
//! of a segment, page or buffer size do not match. It is computed once; sending it is reading from a small table.

/// Length after which the pattern repeats.
pub const PERIOD_BYTES: usize = 65_521;

/// The pattern, long enough to give any slice of up to `longest` bytes in one piece.
#[derive(Debug)]
pub struct Pattern {
    bytes: Vec<u8>,
}

impl Pattern {
    /// A pattern whose slices may be `longest` bytes long.
    pub fn new(longest: usize) -> Pattern {
        let mut state = 0x6c66_7472_616e_7366;
        let mut bytes: Vec<u8> = (0..PERIOD_BYTES).map(|_| next_byte(&mut state)).collect();
        while bytes.len() < PERIOD_BYTES + longest {
            bytes.push(bytes[bytes.len() - PERIOD_BYTES]);
        }
        Pattern { bytes }
    }

    /// Payload of `length` bytes from stream position `position`; at most as long as was asked of [`Pattern::new`].
    pub fn slice(&self, position: u64, length: usize) -> &[u8] {
        let start = offset(position);
        &self.bytes[start..start + length]
    }

    /// All bytes; position p is found at [`offset`]`(p)`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Stream position of the first byte of `received` (which begins at `position`) that is not as sent.
    pub fn mismatch(&self, position: u64, received: &[u8]) -> Option<u64> {
        let mut at = position;
        for chunk in received.chunks(self.bytes.len() - PERIOD_BYTES) {
            let expected = self.slice(at, chunk.len());
            if expected != chunk {
                let same = expected.iter().zip(chunk).take_while(|(a, b)| a == b).count();
                return Some(at + same as u64);
            }
            at += chunk.len() as u64;
        }
        None
    }
}

/// Where in the pattern a stream position is.
pub fn offset(position: u64) -> usize {
    (position % PERIOD_BYTES as u64) as usize
}

/// One byte of a fixed pseudo-random sequence (a 64-bit LCG with Knuth's constants; the top byte is the good one).
fn next_byte(state: &mut u64) -> u8 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_changed_byte_is_found_at_its_position() {
        let pattern = Pattern::new(1000);
        let mut received: Vec<u8> = (0..3000).map(|i| pattern.slice(500 + i, 1)[0]).collect();
        assert_eq!(pattern.mismatch(500, &received), None);
        received[2345] ^= 1;
        assert_eq!(pattern.mismatch(500, &received), Some(2845));
    }

    proptest! {
        #[test]
        fn slices_agree_wherever_they_are_cut(position in 0u64..1 << 45, cut in 0usize..4096) {
            let pattern = Pattern::new(4096);
            let (head, tail) = pattern.slice(position, 4096).split_at(cut);
            prop_assert_eq!(pattern.slice(position, cut), head);
            prop_assert_eq!(pattern.slice(position + cut as u64, 4096 - cut), tail);
        }

        #[test]
        fn bytes_moved_by_a_segment_page_or_buffer_do_not_match(
            position in 0u64..1 << 40,
            step in prop::sample::select(vec![1u64, 512, 1448, 1460, 4096, 8948, 65_536, 131_072, 262_144, 1 << 20]),
            times in 1u64..60,
        ) {
            let pattern = Pattern::new(64);
            let moved = pattern.slice(position + step * times, 64).to_vec();
            prop_assert!(pattern.mismatch(position, &moved).is_some());
        }
    }
}
