//! The rings as user space sees them: mapped memory, records in the order of their times, no system call per look.
//!
//! A record lies within one block. The writer's `head` is read with acquire, so that what it covers is there; our
//! `tail` is written with release, after which the writer may use the room again.

use super::Direction;
use std::sync::atomic::{AtomicU64, Ordering};

/// `LF_BLOCK_BYTES`.
pub const BLOCK_BYTES: usize = 65_536;
/// `struct lf_ring`.
pub const RING_BYTES: usize = 256;
/// Where the reader stands, in words.
pub const TAIL_WORD: usize = 16;
const RECORD_BYTES: usize = 16;
const OUTBOUND: u16 = 0x8000;
const BLOCK_ENDS: u16 = 0xffff;
/// The writer hears of room in steps of this.
const RELEASE_BYTES: usize = 16_384;

/// One packet's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// CLOCK_MONOTONIC, taken at the hook.
    pub time_ns: u64,
    /// Length on the wire; of all segments together where the host left their making to the interface.
    pub wire_bytes: u32,
    /// Packets on the wire that this is.
    pub segments: u16,
    /// Which way it went.
    pub direction: Direction,
    /// What was kept of it.
    pub data: &'a [u8],
}

/// What a block has next.
#[derive(Debug, PartialEq, Eq)]
enum Entry<'a> {
    /// A record, and its length with padding.
    Record(Captured<'a>, usize),
    /// The block holds nothing more.
    BlockEnds,
}

/// Reads the beginning of `bytes`, which go to the end of a block. Damage, which no writer of ours makes, ends the
/// block.
fn entry(bytes: &[u8]) -> Entry<'_> {
    let Some((head, rest)) = bytes.split_first_chunk::<RECORD_BYTES>() else { return Entry::BlockEnds };
    let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    let kept = half(12);
    if kept == BLOCK_ENDS {
        return Entry::BlockEnds;
    }
    let Some(data) = rest.get(..usize::from(kept & !OUTBOUND)) else { return Entry::BlockEnds };
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let time = [head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]];
    let captured = Captured {
        time_ns: u64::from_ne_bytes(time),
        wire_bytes: word(8),
        segments: half(14).max(1),
        direction: if kept & OUTBOUND == 0 { Direction::Inbound } else { Direction::Outbound },
        data,
    };
    Entry::Record(captured, (RECORD_BYTES + data.len()).next_multiple_of(8))
}

/// Hands over the records at the beginning of `bytes` up to a time, about [`RELEASE_BYTES`] at most; how many octets
/// those are, and whether to go on.
fn hand_over(bytes: &[u8], until_ns: u64, sink: &mut impl FnMut(&Captured<'_>) -> bool) -> (usize, bool) {
    let mut taken = 0;
    while taken < RELEASE_BYTES
        && let Some(rest) = bytes.get(taken..)
        && let Entry::Record(captured, length) = entry(rest)
        && captured.time_ns <= until_ns
    {
        taken += length;
        if !sink(&captured) {
            return (taken, false);
        }
    }
    (taken, true)
}

/// Shared memory of a map; unmapped on drop.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it is plain memory, and whoever has the Mapping decides what is read of it and when.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the values of an array map that was made to be mapped.
    pub fn new(map: std::os::fd::BorrowedFd<'_>, bytes: usize) -> std::io::Result<Mapping> {
        use std::os::fd::AsRawFd as _;
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; the result is checked.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, read_write, shared, map.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Mapping { start: start.cast(), bytes })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!((at + 1) * 8 <= self.bytes, "a word within the mapping");
        // SAFETY: within the mapping, which is page-aligned and lives as long as the reference.
        unsafe { &*self.start.cast::<AtomicU64>().add(at) }
    }

    /// # Safety
    /// Nobody writes to these octets while the slice is in use.
    unsafe fn slice(&self, from: usize, length: usize) -> &[u8] {
        assert!(from + length <= self.bytes, "octets within the mapping");
        // SAFETY: within the mapping; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.start.add(from), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped, and nothing borrows it any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Counts by direction, inbound first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came by.
    pub seen: [u64; 2],
    /// Packets that the filter meant.
    pub matched: [u64; 2],
    /// Packets among those that found no room.
    pub dropped: [u64; 2],
}

/// One processor's ring and how far it was read.
#[derive(Debug)]
struct Cursor {
    index: usize,
    head: u64,
    tail: u64,
    /// As far as the writer knows of.
    released: u64,
    /// Time of the record at `tail`; none: nothing there that may be taken now.
    time_ns: Option<u64>,
}

/// All rings, one reader.
pub struct Rings {
    control: Mapping,
    blocks: Mapping,
    ring_blocks: usize,
    cursors: Vec<Cursor>,
}

impl Rings {
    /// Ring of so many processors, with so many blocks (a power of two) each, and a spare block behind them.
    pub fn new(control: Mapping, blocks: Mapping, processors: usize, ring_blocks: usize) -> Rings {
        assert!(ring_blocks.is_power_of_two(), "ring_blocks is a power of two");
        let cursor = |index| Cursor { index, head: 0, tail: 0, released: 0, time_ns: None };
        Rings { control, blocks, ring_blocks, cursors: (0..processors).map(cursor).collect() }
    }

    /// Octets of one ring.
    pub fn ring_bytes(&self) -> usize {
        self.ring_blocks * BLOCK_BYTES
    }

    /// Hands over every record up to `horizon_ns`, in the order of their times, until `sink` says to stop (false).
    /// Gives back how full the fullest ring was.
    pub fn drain(&mut self, horizon_ns: u64, mut sink: impl FnMut(&Captured<'_>) -> bool) -> usize {
        let mut fullest = 0;
        for at in 0..self.cursors.len() {
            self.cursors[at].head = self.word(at, 0).load(Ordering::Acquire);
            fullest = fullest.max((self.cursors[at].head - self.cursors[at].tail) as usize);
            self.find(at, horizon_ns);
        }
        while let Some((first, until_ns)) = self.first_and_until() {
            if !self.take(first, until_ns, horizon_ns, &mut sink) {
                break;
            }
        }
        for at in 0..self.cursors.len() {
            self.release(at);
        }
        fullest
    }

    /// What the programs counted so far, all processors together. A packet is counted as seen, then as matched, then as
    /// dropped; they are read the other way round, so that however long this stands still in between, none of them is
    /// less than the next.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for at in 0..self.cursors.len() {
            // Acquire: no later read overtakes this one.
            let read = |word: usize| self.word(at, word).load(Ordering::Acquire);
            for direction in 0..2 {
                sum.dropped[direction] += read(7 + direction);
                sum.matched[direction] += read(5 + direction);
                sum.seen[direction] += read(3 + direction);
            }
        }
        sum
    }

    fn word(&self, ring: usize, word: usize) -> &AtomicU64 {
        self.control.word(ring * RING_BYTES / 8 + word)
    }

    fn release(&mut self, at: usize) {
        self.cursors[at].released = self.cursors[at].tail;
        self.word(at, TAIL_WORD).store(self.cursors[at].tail, Ordering::Release);
    }

    /// The ring with the earliest record, and the time until which none of the others has one.
    fn first_and_until(&self) -> Option<(usize, u64)> {
        let (mut first, mut until_ns) = (None, u64::MAX);
        for cursor in &self.cursors {
            let Some(time_ns) = cursor.time_ns else { continue };
            match first {
                Some((_, earliest)) if time_ns >= earliest => until_ns = until_ns.min(time_ns),
                _ => {
                    until_ns = first.map_or(until_ns, |(_, earliest): (usize, u64)| until_ns.min(earliest));
                    first = Some((cursor.index, time_ns));
                }
            }
        }
        first.map(|(index, _)| (index, until_ns))
    }

    /// Hands over one ring's records up to a time; says whether to go on.
    fn take(
        &mut self,
        at: usize,
        until_ns: u64,
        horizon_ns: u64,
        sink: &mut impl FnMut(&Captured<'_>) -> bool,
    ) -> bool {
        let mut goes_on = true;
        while goes_on && self.cursors[at].time_ns.is_some_and(|time_ns| time_ns <= until_ns) {
            let taken;
            (taken, goes_on) = hand_over(self.rest(at), until_ns.min(horizon_ns), sink);
            self.cursors[at].tail += taken as u64;
            // A full ring gets room while we work.
            if self.cursors[at].tail - self.cursors[at].released >= RELEASE_BYTES as u64 {
                self.release(at);
            }
            self.find(at, horizon_ns);
        }
        goes_on
    }

    /// Looks for the next record of a ring, past the ends of blocks.
    fn find(&mut self, at: usize, horizon_ns: u64) {
        self.cursors[at].time_ns = None;
        while self.cursors[at].tail < self.cursors[at].head {
            match entry(self.rest(at)) {
                Entry::Record(captured, _) => {
                    self.cursors[at].time_ns =
                        Some(captured.time_ns).filter(|time_ns| *time_ns <= horizon_ns);
                    return;
                }
                Entry::BlockEnds => {
                    let block = BLOCK_BYTES as u64;
                    self.cursors[at].tail = (self.cursors[at].tail / block + 1) * block;
                }
            }
        }
    }

    /// What was written behind a ring's tail, at most to the end of the block.
    fn rest(&self, at: usize) -> &[u8] {
        let cursor = &self.cursors[at];
        let offset = cursor.tail as usize % BLOCK_BYTES;
        let block = (cursor.tail as usize / BLOCK_BYTES) & (self.ring_blocks - 1);
        let start = (at * (self.ring_blocks + 1) + block) * BLOCK_BYTES + offset;
        // SAFETY: only as far as the writer is done: it does not touch what lies between tail and head. Between a
        // block's last record and its end it has written, once, before it moved head to the next block.
        unsafe {
            let there = (cursor.head - cursor.tail).min((BLOCK_BYTES - offset) as u64) as usize;
            self.blocks.slice(start, there)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd as _;

    /// Rings in memory of our own, written as the kernel's side writes them.
    struct Bed {
        control: Mapping,
        blocks: Mapping,
        ring_blocks: usize,
    }

    fn memory(bytes: usize) -> (Mapping, Mapping) {
        let name = c"ring";
        // SAFETY: the name is terminated; the result is checked below, by mapping it.
        let file = unsafe {
            use std::os::fd::FromRawFd as _;
            std::fs::File::from_raw_fd(libc::memfd_create(name.as_ptr(), 0))
        };
        file.set_len(bytes as u64).unwrap();
        (Mapping::new(file.as_fd(), bytes).unwrap(), Mapping::new(file.as_fd(), bytes).unwrap())
    }

    fn bed(processors: usize, ring_blocks: usize) -> (Bed, Rings) {
        let (control, control_too) = memory(processors * RING_BYTES);
        let (blocks, blocks_too) = memory(processors * (ring_blocks + 1) * BLOCK_BYTES);
        (Bed { control, blocks, ring_blocks }, Rings::new(control_too, blocks_too, processors, ring_blocks))
    }

    impl Bed {
        /// Says whether there was room.
        fn write(&self, ring: usize, time_ns: u64, data: &[u8]) -> bool {
            let base = ring * RING_BYTES / 8;
            let mut head = self.control.word(base).load(Ordering::Relaxed);
            let before = head;
            if head as usize % BLOCK_BYTES + RECORD_BYTES + 320 > BLOCK_BYTES {
                head = head.next_multiple_of(BLOCK_BYTES as u64);
            }
            let tail = self.control.word(base + TAIL_WORD).load(Ordering::Acquire);
            if head + RECORD_BYTES as u64 + 320 - tail > (self.ring_blocks * BLOCK_BYTES) as u64 {
                return false;
            }
            if head != before && before as usize % BLOCK_BYTES <= BLOCK_BYTES - RECORD_BYTES {
                let mut ends = [0; RECORD_BYTES];
                ends[12..14].copy_from_slice(&BLOCK_ENDS.to_ne_bytes());
                self.put(ring, before, &ends);
            }
            let mut record = time_ns.to_ne_bytes().to_vec();
            record.extend(1500u32.to_ne_bytes());
            record.extend((data.len() as u16 | OUTBOUND).to_ne_bytes());
            record.extend(1u16.to_ne_bytes());
            record.extend(data);
            record.resize(record.len().next_multiple_of(8), 0);
            self.put(ring, head, &record);
            self.control.word(base).store(head + record.len() as u64, Ordering::Release);
            true
        }

        fn put(&self, ring: usize, position: u64, bytes: &[u8]) {
            let block = (position as usize / BLOCK_BYTES) & (self.ring_blocks - 1);
            let at = (ring * (self.ring_blocks + 1) + block) * BLOCK_BYTES + position as usize % BLOCK_BYTES;
            assert!(at + bytes.len() <= self.blocks.bytes);
            // SAFETY: within the mapping; the reader is not reading now.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.blocks.start.add(at), bytes.len());
            }
        }
    }

    fn drained(rings: &mut Rings, horizon_ns: u64) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        rings.drain(horizon_ns, |captured| {
            found.push((captured.time_ns, captured.data.to_vec()));
            true
        });
        found
    }

    #[test]
    fn records_of_several_processors_come_in_the_order_of_their_times() {
        let (bed, mut rings) = bed(3, 1);
        for (ring, time_ns) in [(0, 10), (0, 20), (0, 30), (1, 5), (1, 25), (2, 15), (2, 20)] {
            assert!(bed.write(ring, time_ns, &[ring as u8]));
        }
        let times: Vec<_> = drained(&mut rings, 24).iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [5, 10, 15, 20, 20]);
        let times: Vec<_> = drained(&mut rings, u64::MAX).iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [25, 30]);
        assert_eq!(drained(&mut rings, u64::MAX), []);
    }

    #[test]
    fn who_stops_early_finds_the_rest_later() {
        let (bed, mut rings) = bed(2, 1);
        for time_ns in 0..6 {
            bed.write(time_ns as usize % 2, time_ns, &[]);
        }
        let mut taken = 0;
        rings.drain(u64::MAX, |_| {
            taken += 1;
            taken < 4
        });
        assert_eq!((taken, drained(&mut rings, u64::MAX).len()), (4, 2));
    }

    #[test]
    fn a_full_ring_has_room_again_once_it_was_read() {
        let (bed, mut rings) = bed(1, 1);
        let mut written = 0;
        while bed.write(0, written, &[0; 200]) {
            written += 1;
        }
        assert!(written > 250, "{written}");
        assert_eq!(drained(&mut rings, u64::MAX).len() as u64, written);
        assert!(bed.write(0, written, &[1; 200]));
        assert_eq!(drained(&mut rings, u64::MAX), [(written, vec![1; 200])]);
    }

    #[test]
    fn whoever_counts_meanwhile_nothing_is_matched_that_was_not_seen_nor_dropped_that_was_not_matched() {
        const PACKETS: u64 = 300_000;
        let (bed, rings) = bed(1, 2);
        let words = [4, 6, 8].map(|word| bed.control.word(word));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for count in 1..=PACKETS {
                    words.iter().for_each(|word| word.store(count, Ordering::Release));
                }
            });
            let mut last = Counts::default();
            while last.dropped[1] < PACKETS {
                last = rings.counts();
                let (seen, matched, dropped) = (last.seen[1], last.matched[1], last.dropped[1]);
                assert!(seen >= matched && matched >= dropped, "{last:?}");
            }
        });
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_once_in_order_over_many_rounds(
            rounds in prop::collection::vec(prop::collection::vec((0usize..2, 0usize..256), 0..600), 1..8),
        ) {
            let (bed, mut rings) = bed(2, 2);
            let mut time_ns = 0;
            for round in rounds {
                let mut written = Vec::new();
                for (ring, length) in round {
                    time_ns += 1;
                    let data = vec![time_ns as u8; length];
                    if bed.write(ring, time_ns, &data) {
                        written.push((time_ns, data));
                    }
                }
                prop_assert_eq!(drained(&mut rings, u64::MAX), written);
            }
        }

        #[test]
        fn any_octets_are_a_record_or_the_end_of_a_block(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Entry::Record(captured, length) = entry(&bytes) {
                prop_assert!(captured.data.len() + RECORD_BYTES <= bytes.len() && length % 8 == 0);
            }
        }
    }
}
