//! From the rings to the file, until something ends it.

use super::program::Program;
use longfat_analyze::{
    capture::{self, write::Totals},
    files::roll::{Cut, Roll, RollError},
};
use longfat_kernel::capture::{Capture, Captured, Cost, Counts, Direction};
use std::{
    io::IsTerminal as _,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// When to end by itself.
pub struct Limits {
    pub duration: Option<Duration>,
    pub packets: Option<u64>,
    /// What is captured until it has ended.
    pub program: Option<Program>,
}

/// What came of it; by direction, inbound first, where there are two.
#[derive(Debug, Clone, Copy, Default)]
pub struct Collected {
    pub counts: Counts,
    pub written: [u64; 2],
    pub wire_bytes: [u64; 2],
    /// Packets on the wire, where one record is a bundle of segments; of all that was written at first.
    pub segments: [u64; 2],
    /// Packets that were given to the file, and that it had no room for.
    pub cut_packets: u64,
    pub kept_bytes: u64,
    pub duration: Duration,
    /// Processor time of this process, in microseconds.
    pub reader_cpu_us: u64,
    pub cost: Option<Cost>,
    pub is_interface_gone: bool,
    /// Whether the last file lacks what it would be read by.
    pub is_unreadable: bool,
}

/// What a processor that writes a record right now may be behind.
const BEHIND_NS: u64 = 100_000;
/// Programs that run while they are taken off the interface are done after this.
const SETTLE: Duration = Duration::from_millis(10);
const LEAST_NAP: Duration = Duration::from_millis(1);
const MOST_NAP: Duration = Duration::from_millis(16);
/// More than two million headers in a second bring, on one processor, in a millisecond.
const FASTEST_BYTES_PER_MS: usize = 256 * 1024;

/// What came of it until it ended, and whether the files took everything.
pub fn collect(
    capture: &mut Capture,
    files: &mut Roll,
    limits: &mut Limits,
    to_unix_ns: i64,
    stop: &AtomicBool,
) -> (Collected, Result<(), RollError>) {
    let mut found = Collected::default();
    let (started, cpu_before_us) = (Instant::now(), longfat_host::facts::own_cpu_us());
    let mut written = until_end(capture, files, limits, to_unix_ns, stop, &mut found);
    capture.detach();
    let counted = count(capture, files, to_unix_ns, &mut found);
    written = written.and(counted);
    found.duration = started.elapsed();
    found.reader_cpu_us = longfat_host::facts::own_cpu_us() - cpu_before_us;
    found.cost = capture.cost();
    (found, written)
}

fn until_end(
    capture: &mut Capture,
    files: &mut Roll,
    limits: &mut Limits,
    to_unix_ns: i64,
    stop: &AtomicBool,
    found: &mut Collected,
) -> Result<(), RollError> {
    let started = Instant::now();
    let (mut nap, mut looked) = (LEAST_NAP, started);
    loop {
        let ends = stop.load(Ordering::Relaxed)
            || files.is_unread()
            || limits.duration.is_some_and(|limit| started.elapsed() >= limit)
            || limits.program.as_mut().is_some_and(Program::is_over)
            || found.is_interface_gone;
        let horizon_ns = if ends { settle(capture) } else { longfat_host::monotonic_ns() - BEHIND_NS };
        // Before the look, so that a file that ends within it has counts that cover its packets.
        count(capture, files, to_unix_ns, found)?;
        let waiting_bytes = look(capture, files, limits, (horizon_ns, to_unix_ns), found)?;
        if ends || limits.packets == Some(total(found)) {
            return Ok(());
        }
        if looked.elapsed() >= Duration::from_secs(1) {
            looked = Instant::now();
            files.flush()?;
            found.is_interface_gone = !capture.is_attached();
            show(found);
        }
        nap = next_nap(nap, waiting_bytes, capture.ring_bytes());
        std::thread::sleep(nap);
    }
}

/// Takes the programs off; everything they wrote may be read then.
fn settle(capture: &mut Capture) -> u64 {
    capture.detach();
    std::thread::sleep(SETTLE);
    u64::MAX
}

/// Takes down what the programs counted until now.
fn count(
    capture: &Capture,
    files: &mut Roll,
    to_unix_ns: i64,
    found: &mut Collected,
) -> Result<(), RollError> {
    found.counts = capture.counts();
    let now_ns = longfat_host::monotonic_ns() as i64 + to_unix_ns;
    files.count(totals(found, now_ns))
}

/// Writes what is there; gives back how much was waiting.
fn look(
    capture: &mut Capture,
    files: &mut Roll,
    limits: &Limits,
    (horizon_ns, to_unix_ns): (u64, i64),
    found: &mut Collected,
) -> Result<usize, RollError> {
    let mut failed = None;
    let waiting_bytes = capture.drain(horizon_ns, |captured| {
        failed = write(files, captured, to_unix_ns).err();
        if failed.is_some() {
            return false;
        }
        found.add(captured);
        limits.packets.is_none_or(|most| total(found) < most)
    });
    failed.map_or(Ok(waiting_bytes), Err)
}

#[inline]
fn write(files: &mut Roll, captured: &Captured<'_>, to_unix_ns: i64) -> Result<(), RollError> {
    let direction = match captured.direction {
        Direction::Inbound => capture::Direction::Inbound,
        Direction::Outbound => capture::Direction::Outbound,
    };
    files.packet(captured.time_ns as i64 + to_unix_ns, captured.wire_bytes, captured.data, direction)
}

impl Collected {
    #[inline]
    fn add(&mut self, captured: &Captured<'_>) {
        let index = captured.direction as usize;
        self.written[index] += 1;
        self.wire_bytes[index] += u64::from(captured.wire_bytes);
        self.segments[index] += u64::from(captured.segments);
        self.kept_bytes += captured.data.len() as u64;
    }

    /// Takes off what the last file lacks. What matched and is in no file is lost, wherever it was on its way.
    pub fn cut(&mut self, cut: &Cut) {
        for way in 0..2 {
            self.written[way] = self.written[way].saturating_sub(cut.packets[way]);
            self.wire_bytes[way] = self.wire_bytes[way].saturating_sub(cut.wire_bytes[way]);
            self.counts.dropped[way] = self.counts.matched[way].saturating_sub(self.written[way]);
        }
        self.kept_bytes = self.kept_bytes.saturating_sub(cut.kept_bytes);
        self.cut_packets = cut.packets.iter().sum();
    }
}

pub fn total(found: &Collected) -> u64 {
    found.written.iter().sum()
}

fn totals(found: &Collected, end_ns: i64) -> Totals {
    let sum = |both: [u64; 2]| both.iter().sum();
    let counts = &found.counts;
    Totals {
        end_ns,
        received: sum(counts.seen),
        accepted: sum(counts.matched),
        dropped: sum(counts.dropped),
        ..Totals::default()
    }
}

/// The longer nobody looks, the less looking costs, as long as a burst out of nothing finds room meanwhile.
fn next_nap(last: Duration, waiting_bytes: usize, ring_bytes: usize) -> Duration {
    if waiting_bytes * 2 > ring_bytes {
        return Duration::ZERO;
    }
    let fits = Duration::from_millis((ring_bytes / 2 / FASTEST_BYTES_PER_MS) as u64);
    let most = fits.clamp(LEAST_NAP, MOST_NAP);
    let next = if waiting_bytes * 8 > ring_bytes { last / 2 } else { last * 2 };
    next.clamp(LEAST_NAP, most)
}

fn show(found: &Collected) {
    if std::io::stderr().is_terminal() {
        let dropped: u64 = found.counts.dropped.iter().sum();
        crate::output::show_progress(&format!("{} packets, {dropped} lost", total(found)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rare_while_little_happens_and_frequent_while_much_does() {
        let (ring, ms) = (32 << 20, Duration::from_millis);
        assert_eq!(next_nap(ms(1), 0, ring), ms(2));
        assert_eq!(next_nap(ms(16), 0, ring), ms(16));
        assert_eq!(next_nap(ms(16), ring / 6, ring), ms(8));
        assert_eq!(next_nap(ms(1), ring / 6, ring), ms(1));
        assert_eq!(next_nap(ms(8), ring, ring), Duration::ZERO);
        assert_eq!(next_nap(Duration::ZERO, 0, ring), ms(1));
    }

    #[test]
    fn a_small_ring_is_never_left_alone_for_long() {
        assert_eq!(next_nap(Duration::from_millis(1), 0, 65_536), Duration::from_millis(1));
    }
}
