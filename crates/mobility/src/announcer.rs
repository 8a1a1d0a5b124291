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

/// The state of a router that announces.
#[derive(Debug, Clone)]
pub struct Announcer {
    router: Name,
    addresses: Vec<IpAddr>,
    epoch_us: u64,
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
    /// A router that has nothing to say yet. `epoch_us` is the wall clock at its start, `every_us` the time between
    /// two repeats long after a change.
    pub fn new(router: Name, epoch_us: u64, every_us: u64, far_hosts: usize) -> Announcer {
        let far_hosts = far_hosts as u64;
        Announcer {
            router,
            addresses: Vec::new(),
            epoch_us,
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
    pub fn set(&mut self, link: &Name, character: Character, now_us: u64, unix_us: u64) -> bool {
        let same = self.now.as_ref().is_some_and(|now| now.link == *link && now.character == character);
        if !same {
            self.sequence += 1;
            let spoken = Spoken {
                link: link.clone(),
                character,
                changed_unix_us: unix_us,
                said: 0,
                due_us: now_us,
                far_due_us: now_us,
            };
            self.now = Some(spoken);
        }
        !same
    }

    /// When the next datagram is due.
    pub fn due_us(&self) -> Option<u64> {
        self.now.as_ref().map(|spoken| spoken.due_us)
    }

    /// Takes the announcement that is due now, if one is.
    pub fn take_due(&mut self, now_us: u64, unix_us: u64) -> Option<Due> {
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

    const WIDE: Character = Character {
        up_bps: 11_000_000,
        down_bps: 11_000_000,
        delay_us: 10_000,
        loss_ppm: 0,
        up_queue_bytes: 0,
        down_queue_bytes: 0,
    };

    fn announcer() -> Announcer {
        Announcer::new("bus".parse().unwrap(), 77, 5_000_000, 1)
    }

    #[test]
    fn a_change_is_told_at_once_five_times_within_a_second_and_then_at_the_steady_interval() {
        let mut announcer = announcer();
        assert_eq!(announcer.take_due(0, 0), None, "nothing to say yet");
        assert!(announcer.set(&"wifi".parse().unwrap(), WIDE, 1000, 5));
        let mut told = Vec::new();
        for now_us in (1000..12_000_000).step_by(1000) {
            told.extend(announcer.take_due(now_us, 9).map(|said| (now_us, said.announcement.sequence)));
        }
        let times: Vec<u64> = told.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [1000, 3000, 11_000, 43_000, 171_000, 683_000, 5_683_000, 10_683_000]);
        assert!(told.iter().all(|(_, sequence)| *sequence == 1), "a repeat is the same announcement");
    }

    #[test]
    fn hosts_far_away_are_told_over_a_narrow_link_by_few_of_the_datagrams() {
        let mut announcer = Announcer::new("bus".parse().unwrap(), 77, 200_000, 2);
        let narrow = Character { up_bps: 64_000, ..WIDE };
        announcer.set(&"phs".parse().unwrap(), narrow, 0, 0);
        let mut far_at_us = Vec::new();
        let mut near = 0;
        for now_us in (0..30_000_000).step_by(1000) {
            let Some(due) = announcer.take_due(now_us, 0) else { continue };
            near += 1;
            far_at_us.extend(due.is_for_far.then_some(now_us));
        }
        assert!(near > 140, "{near} on the interfaces");
        assert_eq!(far_at_us[..3], [0, 42_000, 682_000]);
        // 154 bytes to each of two hosts, 1/200 of 64 kbit/s: 7.7 s apart.
        assert_eq!(far_at_us.len(), 6, "{far_at_us:?}");
        assert!(far_at_us[2..].windows(2).all(|two| two[1] - two[0] >= 7_700_000), "{far_at_us:?}");
        announcer.set(&"wifi".parse().unwrap(), WIDE, 30_000_000, 0);
        assert!(announcer.take_due(30_000_000, 0).unwrap().is_for_far, "a change at once");
    }

    #[test]
    fn the_same_link_told_again_is_no_change_and_another_rate_is_one() {
        let mut announcer = announcer();
        let wifi = "wifi".parse().unwrap();
        assert!(announcer.set(&wifi, WIDE, 0, 0));
        assert!(!announcer.set(&wifi, WIDE, 10, 0));
        assert!(announcer.set(&wifi, Character { up_bps: 5_500_000, ..WIDE }, 20, 0));
        assert_eq!((announcer.sequence(), announcer.due_us()), (2, Some(20)));
        let said = announcer.take_due(20, 30).unwrap().announcement;
        assert_eq!((said.epoch_us, said.sent_us, said.character.up_bps), (77, 30, 5_500_000));
        announcer.set_addresses(vec!["10.0.0.1".parse().unwrap()], 21);
        assert_eq!((announcer.sequence(), announcer.due_us()), (3, Some(21)));
    }
}
