//! Datagrams of cross traffic: sequence numbers, and what the receiver makes of them.

/// Bytes at the head of every datagram.
pub const HEADER_BYTES: usize = 32;
/// Most datagrams handed over, or taken, by one call.
pub(crate) const BATCH_MAX: usize = 64;
const MAGIC: [u8; 4] = *b"LFdg";

/// What a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens the way: the receiver learns the sender's address.
    Hello,
    /// Payload.
    Data,
    /// The answer to a hello, to where that seems to come from. `sequence` is a secret.
    Challenge,
    /// The secret, back from where it was sent to: who speaks is there.
    Answer,
}

const KINDS: [Kind; 4] = [Kind::Hello, Kind::Data, Kind::Challenge, Kind::Answer];

/// Head of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// What it is for.
    pub kind: Kind,
    /// Which transfer it belongs to.
    pub token: u64,
    /// Number within its stream, from 0.
    pub sequence: u64,
    /// CLOCK_MONOTONIC of the sender.
    pub time_ns: u64,
}

impl Datagram {
    /// As it stands in the datagram.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.token.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.time_ns.to_be_bytes());
        bytes
    }

    /// Reads a datagram; `None` for anything that is not ours.
    pub fn decode(bytes: &[u8]) -> Option<Datagram> {
        let head = bytes.get(..HEADER_BYTES)?;
        let word = |from: usize| (0..8).fold(0u64, |word, i| word << 8 | u64::from(head[from + i]));
        let kind = *KINDS.get(usize::from(head[4]))?;
        let ours = head[..4] == MAGIC && head[5..8] == [0; 3];
        ours.then(|| Datagram { kind, token: word(8), sequence: word(16), time_ns: word(24) })
    }
}

/// How far back a late datagram is still told from a duplicate.
const WINDOW: u64 = 4096;

/// Counts what arrived of one stream, duplicates and late ones apart.
#[derive(Debug, Clone)]
pub struct SequenceCount {
    seen: Vec<u64>,
    next: u64,
    /// Distinct datagrams.
    pub distinct: u64,
    /// Datagrams seen before (or too late to tell).
    pub duplicates: u64,
    /// Datagrams that came after a later one.
    pub reordered: u64,
}

impl Default for SequenceCount {
    fn default() -> SequenceCount {
        let seen = vec![0; (WINDOW / 64) as usize];
        SequenceCount { seen, next: 0, distinct: 0, duplicates: 0, reordered: 0 }
    }
}

impl SequenceCount {
    /// One datagram arrived; whether it is new.
    pub fn on_datagram(&mut self, sequence: u64) -> bool {
        if sequence >= self.next {
            // Slots between are reused: they must forget what stood there a window ago.
            let from = self.next.max(sequence.saturating_sub(WINDOW - 1));
            (from..=sequence).for_each(|fresh| self.mark(fresh, false));
            self.next = sequence.saturating_add(1);
        } else if self.next - sequence > WINDOW || self.is_marked(sequence) {
            self.duplicates += 1;
            return false;
        } else {
            self.reordered += 1;
        }
        self.mark(sequence, true);
        self.distinct += 1;
        true
    }

    fn is_marked(&self, sequence: u64) -> bool {
        let slot = sequence % WINDOW;
        self.seen[(slot / 64) as usize] >> (slot % 64) & 1 == 1
    }

    fn mark(&mut self, sequence: u64, seen: bool) {
        let slot = sequence % WINDOW;
        let word = &mut self.seen[(slot / 64) as usize];
        *word = *word & !(1 << (slot % 64)) | u64::from(seen) << (slot % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_datagram_reads_back(token: u64, sequence: u64, time_ns: u64, kind in 0..KINDS.len()) {
            let kind = KINDS[kind];
            let datagram = Datagram { kind, token, sequence, time_ns };
            prop_assert_eq!(Datagram::decode(&datagram.encode()), Some(datagram));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), sequence: u64) {
            let _ = Datagram::decode(&bytes);
            let mut count = SequenceCount::default();
            count.on_datagram(sequence);
            count.on_datagram(u64::MAX);
            count.on_datagram(sequence);
        }

        #[test]
        fn distinct_datagrams_are_counted_as_a_set_would(
            sequences in prop::collection::vec(0u64..4000, 1..3000),
        ) {
            let mut count = SequenceCount::default();
            sequences.iter().for_each(|sequence| { count.on_datagram(*sequence); });
            let set: BTreeSet<_> = sequences.iter().collect();
            prop_assert_eq!(count.distinct, set.len() as u64);
            prop_assert_eq!(count.duplicates, (sequences.len() - set.len()) as u64);
        }
    }

    #[test]
    fn slots_are_forgotten_after_a_window() {
        let mut count = SequenceCount::default();
        assert!((0..3 * WINDOW).all(|sequence| count.on_datagram(sequence)));
        assert!(!count.on_datagram(3 * WINDOW - 1), "a duplicate");
        assert!(count.on_datagram(10 * WINDOW) && count.on_datagram(10 * WINDOW - 1));
        assert_eq!((count.duplicates, count.reordered), (1, 1));
    }
}
