//! What the ends' own timestamps say while the relay leaves their connections. Pure: packets and time are passed in.
//!
//! A leg that spoke as an end told the other one timestamps of its own (TSval, RFC 7323). The end goes on with its
//! clock, and the other one takes nothing that is older than what it heard last (PAWS, section 5). So a leg may leave
//! only while the end's clock is not behind what the leg said.

use super::segment::Segment;
use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// A timestamp that was seen longer ago says too little of the clock as it is.
const FRESH: Duration = Duration::from_secs(2);
/// A clock that is behind by no more has caught up before the end's next packet is there, or soon after.
const LEAST_AHEAD_MS: i32 = -10;
/// A clock so far ahead runs by other units: round trips measured across the change would be seconds too long.
const MOST_AHEAD_MS: i32 = 60_000;
/// Ends remembered, oldest out first.
const MOST: usize = 1 << 17;

/// What is known of an end's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// No packet of the end's was seen lately.
    Unseen,
    /// The clock is where the leg that speaks as the end may stop.
    Fits,
    /// The clock is behind what the leg has told, or counts otherwise.
    Differs,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    timestamp: u32,
    at: Instant,
}

/// Timestamps as last seen, by who sent them to whom.
#[derive(Debug, Default)]
pub struct Clocks {
    seen: HashMap<(SocketAddr, SocketAddr), Seen>,
}

impl Clocks {
    /// A copy of a packet that an end sent.
    pub fn on_copy(&mut self, segment: &Segment<'_>, now: Instant) {
        let Some(timestamp) = segment.options.timestamp else { return };
        if self.seen.len() >= MOST {
            self.seen.retain(|_, seen| now.saturating_duration_since(seen.at) < FRESH);
        }
        if self.seen.len() < MOST {
            self.seen.insert((segment.from, segment.to), Seen { timestamp, at: now });
        }
    }

    /// Whether an end's clock is where a leg may stop that speaks as it, and has told `told` at most.
    pub fn judge(&self, end: (SocketAddr, SocketAddr), told: u32, now: Instant) -> Clock {
        let Some(seen) = self.seen.get(&end) else { return Clock::Unseen };
        let age = now.saturating_duration_since(seen.at);
        if age >= FRESH {
            return Clock::Unseen;
        }
        let ahead_ms = seen.timestamp.wrapping_add(age.as_millis() as u32).wrapping_sub(told) as i32;
        match (LEAST_AHEAD_MS..=MOST_AHEAD_MS).contains(&ahead_ms) {
            true => Clock::Fits,
            false => Clock::Differs,
        }
    }

    /// What an end said last, to be echoed to it.
    pub fn last(&self, end: (SocketAddr, SocketAddr)) -> Option<u32> {
        self.seen.get(&end).map(|seen| seen.timestamp)
    }

    /// Nobody asks for these ends any more.
    pub fn forget(&mut self, (one, other): (SocketAddr, SocketAddr)) {
        self.seen.remove(&(one, other));
        self.seen.remove(&(other, one));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adopt::segment::tests::{ACK, pairs, segment};

    fn said(timestamp: u32) -> Vec<u8> {
        let mut options = vec![1, 1, 8, 10];
        options.extend(timestamp.to_be_bytes());
        options.extend([0; 4]);
        segment(pairs()[0], ACK, (7, 9), 100, &options, b"")
    }

    #[test]
    fn a_leg_may_stop_where_the_clock_of_its_end_is_or_before_it() {
        let (now, pair) = (Instant::now(), pairs()[0]);
        for first in [1000, u32::MAX - 20] {
            let mut clocks = Clocks::default();
            assert_eq!(clocks.judge(pair, first, now), Clock::Unseen);
            clocks.on_copy(&Segment::parse(&said(first)).unwrap(), now);
            let later = now + Duration::from_millis(500);
            let judge = |told: u32| clocks.judge(pair, first.wrapping_add(told), later);
            assert_eq!(judge(300), Clock::Fits, "a path of 200 ms behind the end");
            assert_eq!((judge(500), judge(509)), (Clock::Fits, Clock::Fits), "and hardly ahead of it");
            assert_eq!(judge(3500), Clock::Differs, "3 s ahead, all would be dropped for as long");
            assert_eq!(judge(-70_000i32 as u32), Clock::Differs, "a clock of microseconds");
            assert_eq!(clocks.judge((pair.1, pair.0), first, later), Clock::Unseen);
            assert_eq!(clocks.judge(pair, first, now + FRESH), Clock::Unseen);
        }
    }

    #[test]
    fn what_has_no_timestamp_says_nothing_and_what_is_forgotten_is_unseen() {
        let (now, pair) = (Instant::now(), pairs()[0]);
        let mut clocks = Clocks::default();
        clocks.on_copy(&Segment::parse(&segment(pair, ACK, (7, 9), 100, &[], b"")).unwrap(), now);
        assert_eq!(clocks.last(pair), None);
        clocks.on_copy(&Segment::parse(&said(5)).unwrap(), now);
        assert_eq!(clocks.last(pair), Some(5));
        clocks.forget((pair.1, pair.0));
        assert_eq!(clocks.judge(pair, 5, now), Clock::Unseen);
    }
}
