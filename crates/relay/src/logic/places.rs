//! Clients that have the relay's places and memory, and those that shall have no more of them for now. Pure.

use crate::{
    LimitsPlan,
    logic::{
        memory::{Bytes, Memory},
        shares::Shares,
    },
};
use std::{collections::BTreeSet, net::IpAddr};

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

#[derive(Debug, Default)]
pub(crate) struct Places {
    shares: Shares,
    pub memory: Memory,
    /// Clients that have their share: what else they open is not taken.
    sated: BTreeSet<IpAddr>,
}

impl Places {
    /// Whether one more connection of a client may be carried, of so many in all.
    pub fn has_room(&self, client: IpAddr, all: usize, limits: &LimitsPlan) -> bool {
        self.shares.has_room_within(client, all, (limits.client, limits.network))
            && self.memory.has_room(client, limits)
    }

    /// Takes a place for a client, unless it has its share.
    pub fn take(&mut self, client: IpAddr, all: usize, limits: &LimitsPlan) -> bool {
        let may = self.has_room(client, all, limits);
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

    /// Connections that a client has, and its network.
    pub fn counts(&self, client: IpAddr) -> (usize, usize) {
        self.shares.of(client)
    }

    /// A connection of a client has ended.
    pub fn give_back(&mut self, client: IpAddr) {
        self.shares.remove(client);
    }

    /// What the clients' connections at a worker hold, by canonical addresses.
    pub fn note(&mut self, worker: usize, bytes: &Bytes, all: usize, limits: &LimitsPlan) {
        self.memory.note(worker, bytes, limits);
        let sated = bytes.keys().filter(|client| !self.has_room(**client, all, limits));
        let more: Vec<_> = sated.copied().take(MOST_SATED.saturating_sub(self.sated.len())).collect();
        self.sated.extend(more);
    }

    /// How much more each connection of a client may come to hold, if all of them do.
    pub fn growth_bytes(&self, client: IpAddr, limits: &LimitsPlan) -> u64 {
        let ((client_bytes, network_bytes), (of_client, of_network)) =
            (self.memory.growth_bytes(client, limits), self.shares.of(client));
        (client_bytes / of_client.max(1) as u64).min(network_bytes / of_network.max(1) as u64)
    }

    /// Clients that have their share now.
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
        assert_eq!((taken, places.counts(host(1))), (25, (25, 25)));
        assert!(places.take(other, 50, &limits));
        assert_eq!(places.sated(50, &limits), BTreeSet::from([host(1)]));
        places.give_back(host(1));
        places.give_back(other);
        assert!(places.sated(50, &limits).is_empty() && places.take(host(1), 50, &limits));
    }

    #[test]
    fn who_is_alone_has_three_quarters_of_places() {
        let (mut places, limits) = (Places::default(), LimitsPlan::default());
        assert_eq!((0..60).filter(|_| places.take(host(1), 48, &limits)).count(), 36);
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
        places.note(0, &Bytes::from([(host(1), 300), (host(2), 50)]), 50, &limits);
        assert!(places.has_room(host(1), 50, &limits));
        places.note(1, &Bytes::from([(host(1), 250)]), 50, &limits);
        assert!(!places.take(host(1), 50, &limits) && places.take(host(2), 50, &limits));
        assert_eq!(places.sated(50, &limits), BTreeSet::from([host(1)]));
        places.note(1, &Bytes::new(), 50, &limits);
        assert!(places.has_room(host(1), 50, &limits) && places.sated(50, &limits).is_empty());
    }

    #[test]
    fn what_a_network_may_still_hold_is_divided_among_its_connections() {
        let limits = LimitsPlan { network_memory_bytes: Some(1000), ..LimitsPlan::default() };
        let mut places = Places::default();
        for client in [1, 1, 1, 2] {
            assert!(places.take(host(client), 50, &limits));
        }
        assert_eq!(places.growth_bytes(host(1), &limits), 250);
        places.note(0, &Bytes::from([(host(1), 300), (host(2), 300)]), 50, &limits);
        assert_eq!(places.growth_bytes(host(2), &limits), 100);
        let limits = LimitsPlan { client_memory_bytes: Some(360), ..limits };
        assert_eq!([1, 2].map(|client| places.growth_bytes(host(client), &limits)), [20, 60]);
        assert!(places.growth_bytes(host(1), &LimitsPlan::default()) > 1 << 40, "without limits");
    }
}
