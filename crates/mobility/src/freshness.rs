//! Which announcements are news: nothing is believed twice, and nothing old.
//!
//! An announcement tells a state, not a step, so that only the newest of a router counts: one that was overtaken is
//! of no use. The window against replay is therefore one number per router, with a bound on the age of what is heard
//! first. Repeats of the newest are expected: they make up for lost datagrams.

use crate::{announcement::Announcement, name::Name};
use std::collections::BTreeMap;

/// What an announcement is to somebody who has heard others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// News: to be acted on.
    News,
    /// The newest, once more.
    Repeat,
    /// Overtaken or replayed.
    Old,
    /// Sent too long ago, or in the future: replayed, or one of the clocks is wrong.
    OffTime,
}

/// The newest of each router.
#[derive(Debug, Clone)]
pub struct Freshness {
    tolerance_us: u64,
    newest: BTreeMap<Name, (u64, u64)>,
}

impl Freshness {
    /// Sender's and own clock may differ by this much, the way included.
    pub fn new(tolerance_us: u64) -> Freshness {
        Freshness { tolerance_us, newest: BTreeMap::new() }
    }

    /// What has been heard of a router before a restart: epoch and sequence.
    pub fn remember(&mut self, router: Name, newest: (u64, u64)) {
        let known = self.newest.entry(router).or_insert(newest);
        *known = newest.max(*known);
    }

    /// Judges an announcement whose tag is right, and takes note of it. `now_us` is the wall clock.
    pub fn judge(&mut self, announcement: &Announcement, now_us: u64) -> Verdict {
        if announcement.sent_us.abs_diff(now_us) > self.tolerance_us {
            return Verdict::OffTime;
        }
        let position = (announcement.epoch_us, announcement.sequence);
        match self.newest.get(&announcement.router) {
            Some(newest) if position < *newest => return Verdict::Old,
            Some(newest) if position == *newest => return Verdict::Repeat,
            _ => {}
        }
        self.newest.insert(announcement.router.clone(), position);
        Verdict::News
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announcement::tests::announcement;
    use proptest::prelude::*;

    const NOW_US: u64 = 1_700_000_000_500_000;

    #[test]
    fn repeats_overtaken_ones_and_those_of_another_time_are_no_news() {
        let mut freshness = Freshness::new(1_000_000);
        let first = announcement();
        assert_eq!(freshness.judge(&first, NOW_US), Verdict::News);
        assert_eq!(freshness.judge(&first, NOW_US + 1000), Verdict::Repeat);
        let next = Announcement { sequence: 4, ..first.clone() };
        assert_eq!(freshness.judge(&next, NOW_US), Verdict::News);
        assert_eq!(freshness.judge(&first, NOW_US), Verdict::Old);
        let later = Announcement { sequence: 9, ..first.clone() };
        assert_eq!(freshness.judge(&later, NOW_US + 2_000_000), Verdict::OffTime);
        let restarted = Announcement { epoch_us: first.epoch_us + 1, sequence: 0, ..first };
        assert_eq!(freshness.judge(&restarted, NOW_US), Verdict::News);
    }

    #[test]
    fn what_was_heard_before_a_restart_is_not_news_after_it() {
        let mut freshness = Freshness::new(1_000_000);
        let first = announcement();
        freshness.remember(first.router.clone(), (first.epoch_us, first.sequence));
        assert_eq!(freshness.judge(&first, NOW_US), Verdict::Repeat);
    }

    proptest! {
        #[test]
        fn nothing_is_news_twice(positions in prop::collection::vec((0u64..4, 0u64..8), 1..60)) {
            let mut freshness = Freshness::new(1_000_000);
            let mut newest = None;
            for (epoch_us, sequence) in positions {
                let heard = Announcement { epoch_us, sequence, ..announcement() };
                let news = freshness.judge(&heard, NOW_US) == Verdict::News;
                prop_assert_eq!(news, newest.is_none_or(|newest| (epoch_us, sequence) > newest));
                newest = newest.max(Some((epoch_us, sequence)));
            }
        }
    }
}
