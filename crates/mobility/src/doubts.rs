//! Why what was heard is not believed: said once, since whoever follows nothing does not know it otherwise. Pure: time
//! is passed in.
//!
//! Anybody on the link can send what is not believed. So few such reasons are kept, and those that need no key have
//! room of their own; a router that is heard is not said to be off time, since old datagrams of it can be replayed.

use crate::{announcement::Reject, name::Name};
use longfat_schema::units::Nanos;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Keys that are told of: anybody can name any.
const KEYS_MAX: usize = 4;
/// Routers that are told of, for each reason: they have a key of ours.
const ROUTERS_MAX: usize = 16;
/// How long after a router was believed what is off time counts as a replay.
const BELIEVED_FOR_US: u64 = 60_000_000;

/// Why an announcement was not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// The router's clock and ours differ by more than they may.
    OffTime {
        /// Router or key that said what is doubted.
        router: Name,
        /// By how much the announcement is ahead of our clock.
        ahead_us: i64,
        /// By how much it may be.
        tolerance_us: u64,
    },
    /// The router is none of those to be believed.
    OtherRouter(Name),
    /// Tagged with a key that we have not.
    ForeignKey(u32),
    /// The announcement names a key of ours, and is not tagged with it.
    Forged,
    /// The announcement is of another version.
    Version(u8),
}

impl Doubt {
    /// The doubt that a datagram raises which could not be opened; none where it is no announcement.
    pub fn of(reject: Reject) -> Option<Doubt> {
        match reject {
            Reject::ForeignKey(key) => Some(Doubt::ForeignKey(key)),
            Reject::Forged => Some(Doubt::Forged),
            Reject::Version(version) => Some(Doubt::Version(version)),
            Reject::NotOurs | Reject::Malformed(_) => None,
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::OffTime { router, ahead_us, tolerance_us } => {
                let side = if *ahead_us < 0 { "behind" } else { "ahead of" };
                let off = rounded(ahead_us.unsigned_abs());
                let tolerance = Nanos(tolerance_us.saturating_mul(1000));
                write!(
                    f,
                    "router '{router}' is {off} {side} this host (tolerance {tolerance}): not believed; set the clock, or \
                     --tolerance"
                )
            }
            Doubt::OtherRouter(router) => {
                write!(f, "router '{router}' has the key and is none of --router: not believed")
            }
            Doubt::ForeignKey(key) => {
                write!(f, "announcements tagged with key {key:08x}, which is none of --key: not believed")
            }
            Doubt::Forged => {
                f.write_str("announcements with a wrong tag, forged or damaged on the way: not believed")
            }
            Doubt::Version(version) => {
                write!(
                    f,
                    "announcements of version {version}: not understood; upgrade the older of the two programs"
                )
            }
        }
    }
}

/// To a second where it is several, since the time on the way is in it.
fn rounded(us: u64) -> Nanos {
    const SECOND_US: u64 = 1_000_000;
    let us = if us < 10 * SECOND_US { us } else { us.saturating_add(SECOND_US / 2) / SECOND_US * SECOND_US };
    Nanos(us.saturating_mul(1000))
}

/// Doubts that were said.
#[derive(Debug, Clone, Default)]
pub struct Doubts {
    off_time: BTreeSet<Name>,
    /// When routers were believed last.
    believed_us: BTreeMap<Name, u64>,
    others: BTreeSet<Name>,
    keys: BTreeSet<u32>,
    forged: bool,
    version: bool,
}

impl Doubts {
    /// Whether it was not said yet; it counts as said then.
    pub fn is_new(&mut self, doubt: &Doubt, now_us: u64) -> bool {
        match doubt {
            Doubt::OffTime { router, .. } => {
                let believed_us = self.believed_us.get(router);
                let is_replay = believed_us.is_some_and(|us| now_us.saturating_sub(*us) < BELIEVED_FOR_US);
                !is_replay && insert(&mut self.off_time, router.clone(), ROUTERS_MAX)
            }
            Doubt::OtherRouter(router) => insert(&mut self.others, router.clone(), ROUTERS_MAX),
            Doubt::ForeignKey(key) => insert(&mut self.keys, *key, KEYS_MAX),
            Doubt::Forged => !std::mem::replace(&mut self.forged, true),
            Doubt::Version(_) => !std::mem::replace(&mut self.version, true),
        }
    }

    /// A router is believed: its clock, if it goes wrong later, is worth another word.
    pub fn believed(&mut self, router: &Name, now_us: u64) {
        self.off_time.remove(router);
        if self.believed_us.len() < ROUTERS_MAX || self.believed_us.contains_key(router) {
            self.believed_us.insert(router.clone(), now_us);
        }
    }
}

/// Whether it came in as a new one: it was not there, and there was room.
fn insert<T: Ord>(known: &mut BTreeSet<T>, new: T, most: usize) -> bool {
    (known.len() < most || known.contains(&new)) && known.insert(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn off(router: &str, ahead_us: i64) -> Doubt {
        Doubt::OffTime { router: router.parse().unwrap(), ahead_us, tolerance_us: 30_000_000 }
    }

    #[test]
    fn a_clock_that_is_off_is_told_once_and_again_only_after_it_was_right_for_a_while_before() {
        let mut doubts = Doubts::default();
        let bus = "bus".parse().unwrap();
        let minute_us = BELIEVED_FOR_US;
        assert!(doubts.is_new(&off("bus", 120_000_000), 0));
        assert!(!doubts.is_new(&off("bus", 120_000_000), 2 * minute_us), "said");
        assert!(doubts.is_new(&off("train", 120_000_000), 0), "another router");
        doubts.believed(&bus, 3 * minute_us);
        assert!(!doubts.is_new(&off("bus", -90_000_000), 3 * minute_us + 1), "it is heard: a replay");
        assert!(doubts.is_new(&off("bus", -90_000_000), 4 * minute_us));
        assert!(!doubts.is_new(&off("bus", -90_000_000), 9 * minute_us));
    }

    #[test]
    fn whoever_has_no_key_fills_neither_the_log_nor_the_room_of_those_who_have_one() {
        let mut doubts = Doubts::default();
        let said = (0..10_000).filter(|key| doubts.is_new(&Doubt::ForeignKey(*key), 0)).count();
        assert_eq!(said, KEYS_MAX);
        let anybodys = [Doubt::Forged, Doubt::Version(3), Doubt::Version(4), Doubt::Forged];
        assert_eq!(anybodys.map(|doubt| doubts.is_new(&doubt, 0)), [true, true, false, false]);
        let names = (0..1000).map(|number| format!("r{number}"));
        let said = names.filter(|name| doubts.is_new(&off(name, 99_000_000), 0)).count();
        assert_eq!(said, ROUTERS_MAX);
        let other = Doubt::OtherRouter("tram".parse().unwrap());
        assert!(doubts.is_new(&other, 0) && !doubts.is_new(&other, 0));
    }

    #[test]
    fn a_doubt_says_what_is_wrong_and_what_mends_it() {
        assert_eq!(
            off("bus", 120_004_321).to_string(),
            "router 'bus' is 120s ahead of this host (tolerance 30s): not believed; set the clock, or --tolerance"
        );
        assert!(off("bus", -45_600_000).to_string().contains("is 46s behind this host"));
        let foreign = Doubt::of(Reject::ForeignKey(0x4f48_9065)).unwrap().to_string();
        assert_eq!(foreign, "announcements tagged with key 4f489065, which is none of --key: not believed");
        assert_eq!(Doubt::of(Reject::NotOurs), None);
    }
}
