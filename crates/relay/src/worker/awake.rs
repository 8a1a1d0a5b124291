//! Some microseconds awake for whoever comes next.
//!
//! A client that opens one connection after the other connects again within microseconds of its last one's end. A
//! worker that sleeps by then has to be woken, which on an idle machine costs such a client some microseconds of its
//! connect(2). So a worker waits awake for a moment when a connection has ended, as long as that pays: where nobody
//! came in time, it passes over ever more ends.

use super::Worker;
use crate::Result;
use nix::sys::epoll::EpollEvent;
use std::time::{Duration, Instant};

/// A moment: what an interpreted client takes from close(2) to connect(2), and a worker for the end itself, overlap.
const MOMENT: Duration = Duration::from_micros(12);
/// Ends at most that are passed over in a row.
const MOST_PASSED: u32 = 1024;

/// Whether to wait awake when a connection has ended.
#[derive(Debug, Default)]
pub(super) struct Awake {
    has_ended: bool,
    /// Ends that are passed over when the next moment was in vain.
    next: u32,
    /// Ends that are still passed over.
    left: u32,
}

impl Awake {
    /// A connection has ended.
    pub fn on_end(&mut self) {
        self.has_ended = true;
    }

    /// Whether to wait awake now; to be asked before each sleep.
    fn is_worth_it(&mut self) -> bool {
        if !std::mem::take(&mut self.has_ended) {
            return false;
        }
        let is_worth_it = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_worth_it
    }

    /// A moment is over, and somebody came or did not.
    fn on_outcome(&mut self, came: bool) {
        self.left = if came { 0 } else { self.next.max(1) };
        self.next = (2 * self.left).min(MOST_PASSED);
    }
}

impl Worker<'_> {
    /// Waits awake for a moment, if that is worth it; how many events came.
    pub(super) fn wait_awake(&mut self, events: &mut [EpollEvent]) -> Result<usize> {
        if !self.awake.is_worth_it() {
            return Ok(0);
        }
        let began = Instant::now();
        let mut count = self.poll(events, 0)?;
        while count == 0 && began.elapsed() < MOMENT {
            std::hint::spin_loop();
            count = self.poll(events, 0)?;
        }
        self.awake.on_outcome(count > 0);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it waits awake at so many ends, one before each sleep, of which somebody comes after some.
    fn moments(awake: &mut Awake, ends: u32, came: bool) -> u32 {
        let mut moments = 0;
        for _ in 0..ends {
            awake.on_end();
            if awake.is_worth_it() {
                moments += 1;
                awake.on_outcome(came);
            }
        }
        moments
    }

    #[test]
    fn a_moment_follows_an_end_and_nothing_else() {
        let mut awake = Awake::default();
        assert!(!awake.is_worth_it());
        awake.on_end();
        assert!(awake.is_worth_it() && !awake.is_worth_it());
    }

    #[test]
    fn where_somebody_comes_each_end_has_its_moment_and_elsewhere_one_in_a_thousand() {
        let mut awake = Awake::default();
        assert_eq!(moments(&mut awake, 1000, true), 1000);
        assert_eq!(
            moments(&mut awake, 1 + 1 + 1 + 2 + 1 + 4 + 1, false),
            4,
            "ever more ends lie between two"
        );
        assert!((90..110).contains(&moments(&mut awake, 100_000, false)));
        assert!((0..=MOST_PASSED).any(|_| moments(&mut awake, 1, true) == 1), "it tries again");
        assert_eq!(moments(&mut awake, 1000, true), 1000);
    }
}
