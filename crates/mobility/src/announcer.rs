//! When a router speaks: at once after a change, again for datagrams that got lost, and now and then for nodes that
//! came later. Pure: time is passed in.

use crate::{
    announcement::{Announcement, Character},
    name::Name,
};
use std::net::IpAddr;

/// Gaps after a change: five repeats within half a second, each fourfold, so that one burst of loss does not take all.
const GAPS_US: [u64; 5] = [2_000, 8_000, 32_000, 128_000, 512_000];
/// Which of these six go to hosts far away as well: what tells of a narrow link must not fill it.
const FAR: [bool; 6] = [true, false, false, true, false, true];
/// Later, datagrams to hosts far away take at most this share of the link together: one part in so many.
const FAR_SHARE: u64 = 200;

/// A wall clock that moves by more than this against CLOCK_MONOTONIC between two looks was set.
const CLOCK_SET_US: u64 = 1_000_000;
/// An epoch further ahead than this is of a clock that was wrong: nodes, which believe what is said within 30 s of
/// their own time, have not heard it.
const EPOCH_AHEAD_MAX_US: u64 = 60_000_000;

/// What the clocks say, at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// CLOCK_MONOTONIC.
    pub now_us: u64,
    /// The wall clock, since 1970.
    pub unix_us: u64,
}

impl Clocks {
    /// By how much the wall clock is ahead of CLOCK_MONOTONIC.
    fn ahead_us(self) -> i64 {
        self.unix_us.cast_signed().wrapping_sub(self.now_us.cast_signed())
    }
}

/// The state of a router that announces.
#[derive(Debug, Clone)]
pub struct Announcer {
    router: Name,
    addresses: Vec<IpAddr>,
    epoch_us: u64,
    /// By how much the wall clock was ahead of CLOCK_MONOTONIC when they were last looked at.
    ahead_us: i64,
    every_us: u64,
    far_hosts: u64,
    sequence: u64,
    now: Option<Spoken>,
}

#[derive(Debug, Clone)]
struct Spoken {
    link: Name,
    character: Character,
    changed_unix_us: u64,
    said: usize,
    due_us: u64,
    far_due_us: u64,
}

/// What is to be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// To the nodes on the interfaces.
    pub announcement: Announcement,
    /// To hosts far away, over the link itself, as well.
    pub is_for_far: bool,
}

impl Announcer {
    /// A router that has nothing to say yet. `clocks` are those at its start, `every_us` is the time between two
    /// repeats long after a change.
    pub fn new(router: Name, clocks: Clocks, every_us: u64, far_hosts: usize) -> Announcer {
        let far_hosts = far_hosts as u64;
        Announcer {
            router,
            addresses: Vec::new(),
            epoch_us: clocks.unix_us,
            ahead_us: clocks.ahead_us(),
            every_us: every_us.max(1000),
            far_hosts,
            sequence: 0,
            now: None,
        }
    }

    /// The router's addresses towards the nodes.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddr>, now_us: u64) {
        if self.addresses != addresses {
            self.addresses = addresses;
            self.sequence += 1;
            if let Some(spoken) = &mut self.now {
                (spoken.said, spoken.due_us) = (0, now_us);
            }
        }
    }

    /// The link is now this one; whether that is a change.
    pub fn set(&mut self, link: &Name, character: Character, clocks: Clocks) -> bool {
        self.see(clocks);
        let same = self.now.as_ref().is_some_and(|now| now.link == *link && now.character == character);
        if !same {
            self.sequence += 1;
            let spoken = Spoken {
                link: link.clone(),
                character,
                changed_unix_us: clocks.unix_us,
                said: 0,
                due_us: clocks.now_us,
                far_due_us: clocks.now_us,
            };
            self.now = Some(spoken);
        }
        !same
    }

    /// Takes note of the clocks. Once the wall clock has been set, nodes may have heard of an epoch that the one from
    /// before cannot go beyond (a router without a battery begins in 1970): all is said again, in a new epoch.
    fn see(&mut self, clocks: Clocks) {
        let moved_us = clocks.ahead_us().wrapping_sub(self.ahead_us);
        self.ahead_us = clocks.ahead_us();
        if moved_us.unsigned_abs() <= CLOCK_SET_US {
            return;
        }
        // Set back by a little, nodes have heard the epoch from before, and none that is less counts.
        let is_heard = self.epoch_us <= clocks.unix_us.saturating_add(EPOCH_AHEAD_MAX_US);
        self.epoch_us = clocks.unix_us.max(if is_heard { self.epoch_us } else { 0 });
        if let Some(spoken) = &mut self.now {
            spoken.changed_unix_us = spoken.changed_unix_us.saturating_add_signed(moved_us);
            (spoken.said, spoken.due_us) = (0, clocks.now_us);
        }
    }

    /// When the next datagram is due.
    pub fn due_us(&self) -> Option<u64> {
        self.now.as_ref().map(|spoken| spoken.due_us)
    }

    /// Takes the announcement that is due now, if one is.
    pub fn take_due(&mut self, clocks: Clocks) -> Option<Due> {
        self.see(clocks);
        let Clocks { now_us, unix_us } = clocks;
        let spoken = self.now.as_mut().filter(|spoken| spoken.due_us <= now_us)?;
        let gap_us = GAPS_US.get(spoken.said).copied().unwrap_or(self.every_us);
        let is_for_far = FAR.get(spoken.said).copied().unwrap_or(spoken.far_due_us <= now_us);
        spoken.said += 1;
        spoken.due_us = now_us + gap_us;
        let announcement = Announcement {
            router: self.router.clone(),
            addresses: self.addresses.clone(),
            epoch_us: self.epoch_us,
            sequence: self.sequence,
            sent_us: unix_us,
            changed_us: spoken.changed_unix_us,
            link: spoken.link.clone(),
            character: spoken.character,
        };
        if is_for_far {
            let bits = u128::from(announcement.packet_bytes() * 8 * FAR_SHARE * self.far_hosts);
            let gap_us = bits * 1_000_000 / u128::from(spoken.character.up_bps.max(1));
            spoken.far_due_us = now_us.saturating_add(u64::try_from(gap_us).unwrap_or(u64::MAX));
        }
        Some(Due { announcement, is_for_far })
    }

    /// The link in use, and what it can do.
    pub fn link(&self) -> Option<(&Name, Character)> {
        self.now.as_ref().map(|spoken| (&spoken.link, spoken.character))
    }

    /// Changes so far.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::{Freshness, Verdict};
    use std::collections::BTreeSet;

    const WIDE: Character = Character {
        up_bps: 11_000_000,
        down_bps: 11_000_000,
        delay_us: 10_000,
        loss_ppm: 0,
        up_queue_bytes: 0,
        down_queue_bytes: 0,
    };

    /// A moment of a host that was started at this wall clock.
    const STARTED_US: u64 = 1_700_000_000_000_000;

    fn at(now_us: u64) -> Clocks {
        Clocks { now_us, unix_us: STARTED_US + now_us }
    }

    fn announcer() -> Announcer {
        Announcer::new("bus".parse().unwrap(), at(0), 5_000_000, 1)
    }

    #[test]
    fn a_change_is_told_at_once_five_times_within_a_second_and_then_at_the_steady_interval() {
        let mut announcer = announcer();
        assert_eq!(announcer.take_due(at(0)), None, "nothing to say yet");
        assert!(announcer.set(&"wifi".parse().unwrap(), WIDE, at(1000)));
        let mut told = Vec::new();
        for now_us in (1000..12_000_000).step_by(1000) {
            told.extend(announcer.take_due(at(now_us)).map(|said| (now_us, said.announcement.sequence)));
        }
        let times: Vec<u64> = told.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [1000, 3000, 11_000, 43_000, 171_000, 683_000, 5_683_000, 10_683_000]);
        assert!(told.iter().all(|(_, sequence)| *sequence == 1), "a repeat is the same announcement");
    }

    #[test]
    fn hosts_far_away_are_told_over_a_narrow_link_by_few_of_the_datagrams() {
        let mut announcer = Announcer::new("bus".parse().unwrap(), at(0), 200_000, 2);
        let narrow = Character { up_bps: 64_000, ..WIDE };
        announcer.set(&"phs".parse().unwrap(), narrow, at(0));
        let mut far_at_us = Vec::new();
        let mut near = 0;
        for now_us in (0..30_000_000).step_by(1000) {
            let Some(due) = announcer.take_due(at(now_us)) else { continue };
            near += 1;
            far_at_us.extend(due.is_for_far.then_some(now_us));
        }
        assert!(near > 140, "{near} on the interfaces");
        assert_eq!(far_at_us[..3], [0, 42_000, 682_000]);
        // 154 bytes to each of two hosts, 1/200 of 64 kbit/s: 7.7 s apart.
        assert_eq!(far_at_us.len(), 6, "{far_at_us:?}");
        assert!(far_at_us[2..].windows(2).all(|two| two[1] - two[0] >= 7_700_000), "{far_at_us:?}");
        announcer.set(&"wifi".parse().unwrap(), WIDE, at(30_000_000));
        assert!(announcer.take_due(at(30_000_000)).unwrap().is_for_far, "a change at once");
    }

    #[test]
    fn the_same_link_told_again_is_no_change_and_another_rate_is_one() {
        let mut announcer = announcer();
        let wifi = "wifi".parse().unwrap();
        assert!(announcer.set(&wifi, WIDE, at(0)));
        assert!(!announcer.set(&wifi, WIDE, at(10)));
        assert!(announcer.set(&wifi, Character { up_bps: 5_500_000, ..WIDE }, at(20)));
        assert_eq!((announcer.sequence(), announcer.due_us()), (2, Some(20)));
        let said = announcer.take_due(at(20)).unwrap().announcement;
        let times = (said.epoch_us, said.sent_us, said.changed_us);
        assert_eq!(times, (STARTED_US, STARTED_US + 20, STARTED_US + 20));
        assert_eq!(said.character.up_bps, 5_500_000);
        announcer.set_addresses(vec!["10.0.0.1".parse().unwrap()], 21);
        assert_eq!((announcer.sequence(), announcer.due_us()), (3, Some(21)));
    }

    /// What a node makes of what is due, whose clock is right.
    fn judged(node: &mut Freshness, announcer: &mut Announcer, clocks: Clocks) -> Verdict {
        let said = announcer.take_due(clocks).unwrap().announcement;
        node.judge(&said, STARTED_US + clocks.now_us)
    }

    #[test]
    fn a_router_whose_clock_begins_in_1970_is_believed_once_the_clock_is_set() {
        let mut node = Freshness::new(30_000_000);
        let mut earlier = announcer();
        earlier.set(&"wifi".parse().unwrap(), WIDE, at(0));
        assert_eq!(judged(&mut node, &mut earlier, at(0)), Verdict::News);
        // Started anew: the wall clock stands where the monotonic one does.
        let wrong = |now_us| Clocks { now_us, unix_us: now_us };
        let mut router = Announcer::new("bus".parse().unwrap(), wrong(40_000_000), 2_000_000, 0);
        router.set(&"wifi".parse().unwrap(), WIDE, wrong(40_000_000));
        assert_eq!(judged(&mut node, &mut router, wrong(40_000_000)), Verdict::OffTime);
        assert_eq!(judged(&mut node, &mut router, at(40_001_000)), Verdict::News, "at once");
        assert_eq!(judged(&mut node, &mut router, at(40_003_000)), Verdict::Repeat);
        let said = router.take_due(at(40_011_000)).unwrap().announcement;
        assert_eq!(said.changed_us, STARTED_US + 40_000_000, "the change has the new clock's time");
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nothing_old_that_is_news() {
        for (ahead_us, verdict) in [(2_000_000, Verdict::News), (86_400_000_000, Verdict::OffTime)] {
            let wrong = |now_us| Clocks { unix_us: at(now_us).unix_us + ahead_us, now_us };
            let mut node = Freshness::new(30_000_000);
            let mut router = Announcer::new("bus".parse().unwrap(), wrong(0), 2_000_000, 0);
            let wifi = "wifi".parse().unwrap();
            router.set(&wifi, WIDE, wrong(0));
            assert_eq!(judged(&mut node, &mut router, wrong(0)), verdict);
            router.set(&wifi, Character { up_bps: 5_500_000, ..WIDE }, at(10));
            assert_eq!(judged(&mut node, &mut router, at(10)), Verdict::News);
            let later = at(10_000_000);
            let mut restarted = Announcer::new("bus".parse().unwrap(), later, 2_000_000, 0);
            restarted.set(&wifi, WIDE, later);
            assert_eq!(judged(&mut node, &mut restarted, later), Verdict::News, "after a restart");
        }
    }

    #[test]
    fn a_clock_that_is_slewed_begins_no_epoch() {
        let mut announcer = announcer();
        announcer.set(&"wifi".parse().unwrap(), WIDE, at(0));
        let epochs: BTreeSet<u64> = (0..100u64)
            .filter_map(|step| {
                let clocks =
                    Clocks { unix_us: at(step * 100_000).unix_us + step * 50_000, now_us: step * 100_000 };
                announcer.take_due(clocks).map(|due| due.announcement.epoch_us)
            })
            .collect();
        assert_eq!(epochs, BTreeSet::from([STARTED_US]));
    }
}
