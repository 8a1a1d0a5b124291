//! What nftables was told of connections that pass for a while.

use crate::logic::one_way::{ONE_WAY_SECONDS, OneWay};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

/// As long as nftables lets them pass.
const PASSING: Duration = Duration::from_secs(ONE_WAY_SECONDS as u64);
/// A set that takes no more may after this.
const FULL: Duration = Duration::from_secs(1);

/// What nftables was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    since: HashMap<OneWay, Instant>,
    /// Sets that took no more.
    full: HashMap<&'static str, Instant>,
}

impl Told {
    /// Tells what is new, all of a set at once; one by one if that fails, as some may fit. The last error.
    pub fn tell<E>(
        &mut self,
        noted: Vec<OneWay>,
        mut add: impl FnMut(&[OneWay]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut outcome = Ok(());
        for (set, new) in self.new_ones(noted, Instant::now()) {
            if add(&new).is_ok() {
                self.note(&new);
                continue;
            }
            for one in new {
                if let Err(error) = add(&[one]) {
                    outcome = Err(error);
                    self.full.insert(set, Instant::now());
                    break;
                }
                self.note(&[one]);
            }
        }
        outcome
    }

    /// Afterwards: so nftables forgets them first, and whatever comes then is new.
    fn note(&mut self, told: &[OneWay]) {
        let now = Instant::now();
        self.since.extend(told.iter().map(|one| (*one, now)));
    }

    /// Pairs that nftables does not know yet, by set.
    fn new_ones(&mut self, noted: Vec<OneWay>, now: Instant) -> BTreeMap<&'static str, Vec<OneWay>> {
        self.since.retain(|_, since| now.saturating_duration_since(*since) < PASSING);
        self.full.retain(|_, since| now.saturating_duration_since(*since) < FULL);
        let (mut new, mut seen) = (BTreeMap::<_, Vec<_>>::new(), HashSet::new());
        for one in noted {
            let is_wanted = !self.since.contains_key(&one) && !self.full.contains_key(one.set());
            if is_wanted && seen.insert(one) {
                new.entry(one.set()).or_default().push(one);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::one_way::tests::pair;

    #[test]
    fn what_is_known_is_not_told_again_until_it_is_forgotten() {
        let (mut told, one) = (Told::default(), OneWay::of_hosts(pair("192.0.2.1", 80)));
        let tell = |told: &mut Told| {
            let mut count = 0;
            let add = |new: &[OneWay]| {
                count += new.len();
                Ok::<(), ()>(())
            };
            told.tell(vec![one, one], add).unwrap();
            count
        };
        assert_eq!((tell(&mut told), tell(&mut told)), (1, 0));
        let later = Instant::now() + PASSING;
        assert_eq!(told.new_ones(vec![one, one], later)["one_way_ip"], [one]);
    }

    /// A set that is nearly full refuses a batch as a whole.
    #[test]
    fn what_fits_is_told_and_a_full_set_keeps_no_other_from_it() {
        const ROOM: usize = 3;
        let (mut told, mut sets, mut calls) = (Told::default(), BTreeMap::<_, Vec<OneWay>>::new(), 0);
        let mut add = |new: &[OneWay]| {
            calls += 1;
            let set = sets.entry(new[0].set()).or_default();
            assert!(new.iter().all(|one| one.set() == new[0].set()), "{new:?}");
            let fits = set.len() + new.len() <= ROOM;
            set.extend(new.iter().filter(|_| fits));
            fits.then_some(()).ok_or("full")
        };
        let ports = |ports: std::ops::Range<u16>| ports.map(|port| OneWay::of_port(pair("192.0.2.1", port)));
        let others = [OneWay::of_hosts(pair("192.0.2.1", 1)), OneWay::of_port(pair("2001:db8::2", 1))];
        let noted: Vec<_> = ports(1..6).chain(others).collect();
        assert_eq!(told.tell(noted.clone(), &mut add), Err("full"));
        // It is not asked again at once.
        assert_eq!(told.tell(noted, &mut add), Ok(()));
        assert_eq!(calls, 2 + 1 + 4);
        assert_eq!(sets["silent_ip"], ports(1..4).collect::<Vec<_>>());
        assert_eq!((sets["one_way_ip"].len(), sets["silent_ip6"].len()), (1, 1));
    }
}
