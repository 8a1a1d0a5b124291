//! Who has the relay's places and its memory, and who shall have no more of them for now. Pure.

use crate::{
    LimitsPlan,
    logic::shares::{NETWORK_FACTOR, Shares},
};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    net::IpAddr,
};

/// Clients that are remembered as having their share.
const MOST_SATED: usize = 1024;

/// For whom the relay has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Nobody,
    /// For a client that is there, not for a SYN alone.
    Client,
    Syn,
}

/// By client address.
pub(crate) type Bytes = HashMap<IpAddr, u64>;

#[derive(Debug, Default)]
pub(crate) struct Places {
    shares: Shares,
    /// What each client's connections hold, by worker, when it looked last.
    bytes: Vec<Bytes>,
    /// The sums of these: by client, and of all.
    own_bytes: Bytes,
    all_bytes: u64,
    /// Clients that have their share: what else they open is not taken.
    sated: BTreeSet<IpAddr>,
}

impl Places {
    /// Whether one more connection of a client may be carried, of so many in all.
    pub fn has_room(&self, client: IpAddr, all: usize, limits: &LimitsPlan) -> bool {
        self.has_place(client, all, limits) && self.has_memory(client, limits)
    }

    fn has_place(&self, client: IpAddr, all: usize, limits: &LimitsPlan) -> bool {
        self.shares.has_room_within(client, all, (limits.client, limits.network))
    }

    /// Like places: nobody has more than is free, or than three times that who is alone.
    fn has_memory(&self, client: IpAddr, limits: &LimitsPlan) -> bool {
        let Some(most_bytes) = limits.memory_bytes else { return true };
        let own_bytes = self.own_bytes.get(&client.to_canonical()).copied().unwrap_or(0);
        let free_bytes = most_bytes.saturating_sub(self.all_bytes);
        let factor = if own_bytes == self.all_bytes { NETWORK_FACTOR as u64 } else { 1 };
        own_bytes == 0 || own_bytes <= free_bytes.saturating_mul(factor)
    }

    /// Takes a place for a client, unless it has its share.
    pub fn take(&mut self, client: IpAddr, all: usize, limits: &LimitsPlan) -> bool {
        let may = self.has_place(client, all, limits);
        if may {
            self.shares.add(client);
        }
        if !self.has_room(client, all, limits) && self.sated.len() < MOST_SATED {
            self.sated.insert(client.to_canonical());
        }
        may
    }

    /// For one whose connection stands already, whatever it has besides.
    pub fn take_anyway(&mut self, client: IpAddr) {
        self.shares.add(client);
    }

    /// Whether a client has any.
    pub fn has_any(&self, client: IpAddr) -> bool {
        self.shares.of(client).0 > 0
    }

    /// A connection of a client has ended.
    pub fn give_back(&mut self, client: IpAddr) {
        self.shares.remove(client);
    }

    /// What the clients' connections at a worker hold, by canonical addresses.
    pub fn note(&mut self, worker: usize, bytes: Bytes, all: usize, limits: &LimitsPlan) {
        self.bytes.resize_with(self.bytes.len().max(worker + 1), Bytes::new);
        bytes.iter().for_each(|(client, bytes)| self.add(*client, *bytes));
        let before = std::mem::replace(&mut self.bytes[worker], bytes);
        before.into_iter().for_each(|(client, bytes)| self.subtract(client, bytes));
        let sated = self.bytes[worker].keys().filter(|client| !self.has_room(**client, all, limits));
        let more: Vec<_> = sated.copied().take(MOST_SATED.saturating_sub(self.sated.len())).collect();
        self.sated.extend(more);
    }

    fn add(&mut self, client: IpAddr, bytes: u64) {
        *self.own_bytes.entry(client).or_default() += bytes;
        self.all_bytes += bytes;
    }

    fn subtract(&mut self, client: IpAddr, bytes: u64) {
        self.all_bytes -= bytes;
        if let Entry::Occupied(mut own) = self.own_bytes.entry(client) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    /// Those who have their share now.
    pub fn sated(&mut self, all: usize, limits: &LimitsPlan) -> BTreeSet<IpAddr> {
        let sated = std::mem::take(&mut self.sated);
        self.sated = sated.into_iter().filter(|client| !self.has_room(*client, all, limits)).collect();
        self.sated.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn who_has_his_share_of_places_is_known_until_he_gives_some_back() {
        let (mut places, limits) = (Places::default(), LimitsPlan::default());
        let other = IpAddr::from([198, 51, 100, 1]);
        assert!(places.take(other, 50, &limits));
        let taken = (0..60).filter(|_| places.take(host(1), 50, &limits)).count();
        assert_eq!(taken, 25);
        assert!(places.take(other, 50, &limits));
        assert_eq!(places.sated(50, &limits), BTreeSet::from([host(1)]));
        places.give_back(host(1));
        places.give_back(other);
        assert!(places.sated(50, &limits).is_empty() && places.take(host(1), 50, &limits));
    }

    #[test]
    fn who_is_alone_has_three_quarters_of_places_and_of_memory() {
        let limits = LimitsPlan { memory_bytes: Some(1000), ..LimitsPlan::default() };
        let mut places = Places::default();
        assert_eq!((0..60).filter(|_| places.take(host(1), 48, &limits)).count(), 36);
        let with = |own, other| {
            let held = [(host(1), own), (host(2), other)].into_iter().filter(|(_, bytes)| *bytes > 0);
            let mut places = Places::default();
            places.note(0, held.collect(), 48, &limits);
            places.has_room(host(1), 48, &limits)
        };
        assert!(with(750, 0) && !with(760, 0));
        assert!(with(490, 1) && !with(600, 1), "no longer alone");
    }

    #[test]
    fn a_file_may_say_how_many_a_client_and_a_network_have() {
        let limits = LimitsPlan { client: Some(40), network: Some(45), ..LimitsPlan::default() };
        let mut places = Places::default();
        let mut taken = |number| (0..60).filter(|_| places.take(host(number), 50, &limits)).count();
        assert_eq!((taken(1), taken(2), taken(3)), (40, 5, 0));
    }

    #[test]
    fn who_holds_more_memory_than_is_free_gets_no_more_connections_and_others_do() {
        let limits = LimitsPlan { memory_bytes: Some(1000), ..LimitsPlan::default() };
        let mut places = Places::default();
        places.note(0, Bytes::from([(host(1), 300), (host(2), 100)]), 50, &limits);
        places.note(1, Bytes::from([(host(1), 250)]), 50, &limits);
        assert!(!places.has_room(host(1), 50, &limits) && places.has_room(host(2), 50, &limits));
        assert_eq!(places.sated(50, &limits), BTreeSet::from([host(1)]));
        places.note(1, Bytes::new(), 50, &limits);
        assert!(places.has_room(host(1), 50, &limits) && places.sated(50, &limits).is_empty());
    }

    /// So many that to look at all of them for each one would take too long.
    #[test]
    fn what_is_known_of_many_clients_is_what_a_sum_over_all_workers_says() {
        const CLIENTS: u32 = 20_000;
        let limits = LimitsPlan { memory_bytes: Some(3_000_000_000), ..LimitsPlan::default() };
        let client = |number: u32| IpAddr::from((0x0a00_0000 + number % CLIENTS).to_be_bytes());
        let held = |round: u32, worker: u32| -> Bytes {
            let some = (0..CLIENTS).filter(|number| !(number + round + worker).is_multiple_of(3));
            some.map(|number| (client(number), u64::from((number * 7919 + round * 31 + worker) % 100_000)))
                .collect()
        };
        let mut places = Places::default();
        for round in 0..5 {
            (0..4).for_each(|worker| places.note(worker as usize, held(round, worker), 50, &limits));
            let (mut naive, mut all_bytes) = (Bytes::new(), 0);
            for (client, bytes) in places.bytes.iter().flatten() {
                *naive.entry(*client).or_default() += bytes;
                all_bytes += bytes;
            }
            assert_eq!(places.all_bytes, all_bytes);
            for client in (0..CLIENTS).map(client) {
                let own_bytes = naive.get(&client).copied().unwrap_or(0);
                assert_eq!(places.own_bytes.get(&client).copied().unwrap_or(0), own_bytes);
                let may = own_bytes == 0 || own_bytes <= 3_000_000_000u64.saturating_sub(all_bytes);
                assert_eq!(places.has_memory(client, &limits), may);
            }
        }
        (0..4).for_each(|worker| places.note(worker, Bytes::new(), 50, &limits));
        assert!(places.own_bytes.is_empty() && places.all_bytes == 0);
    }
}
