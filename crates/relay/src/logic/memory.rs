//! What clients, and their networks, hold of the relay's memory, and who shall have no more of it for now. Pure.
//!
//! Shared as places are ([`super::shares`]): an address may hold as much as is free, a network three times that. Above
//! it they open no more connections, and those that they have grow no more. What a network holds beyond, as it was
//! promised before, counts against it and nobody else.

use crate::{
    LimitsPlan,
    logic::shares::{NETWORK_FACTOR, network},
};
use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
};

/// By client address, or by network.
pub(crate) type Bytes = HashMap<IpAddr, u64>;

#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// What each client's connections hold, by worker, when it looked last.
    workers: Vec<Bytes>,
    /// The sums of these: by client, by network, and of all.
    addresses: Bytes,
    networks: Bytes,
    all_bytes: u64,
    /// The sum of what networks hold, each up to its most.
    charged_bytes: u64,
}

impl Memory {
    /// What the clients' connections at a worker hold, by canonical addresses.
    pub fn note(&mut self, worker: usize, bytes: &Bytes, limits: &LimitsPlan) {
        self.workers.resize_with(self.workers.len().max(worker + 1), Bytes::new);
        let before = std::mem::replace(&mut self.workers[worker], bytes.clone());
        bytes.iter().for_each(|(client, bytes)| self.change(*client, *bytes as i64, limits));
        before.into_iter().for_each(|(client, bytes)| self.change(client, -(bytes as i64), limits));
    }

    fn change(&mut self, client: IpAddr, bytes: i64, limits: &LimitsPlan) {
        let most_bytes = most_bytes(limits);
        self.all_bytes = self.all_bytes.saturating_add_signed(bytes);
        change(&mut self.addresses, client, bytes);
        let (before, after) = change(&mut self.networks, network(client), bytes);
        self.charged_bytes += after.min(most_bytes);
        self.charged_bytes -= before.min(most_bytes);
    }

    /// Whether a client may have one more connection.
    pub fn has_room(&self, client: IpAddr, limits: &LimitsPlan) -> bool {
        let client = client.to_canonical();
        let (own_bytes, of_network_bytes) =
            (of(&self.addresses, client), of(&self.networks, network(client)));
        // A network could take its share by other addresses, so one address alone may, too.
        let is_alone = own_bytes == self.all_bytes;
        let free_bytes = if is_alone { u64::MAX } else { self.free_bytes(limits) };
        own_bytes <= limits.client_memory_bytes.unwrap_or(free_bytes)
            && of_network_bytes <= self.share_bytes(limits)
    }

    /// How much a network may hold now.
    pub fn share_bytes(&self, limits: &LimitsPlan) -> u64 {
        let of_free = || self.free_bytes(limits).saturating_mul(NETWORK_FACTOR as u64);
        limits.network_memory_bytes.unwrap_or_else(of_free)
    }

    fn free_bytes(&self, limits: &LimitsPlan) -> u64 {
        limits.memory_bytes.map_or(u64::MAX, |all| all.saturating_sub(self.charged_bytes))
    }

    /// How much more a client's connections, and those of its network, may come to hold. A share that is a part of what
    /// is free becomes smaller as more is taken of it.
    pub fn growth_bytes(&self, client: IpAddr, limits: &LimitsPlan) -> (u64, u64) {
        let client = client.to_canonical();
        let (own_bytes, of_network_bytes) =
            (of(&self.addresses, client), of(&self.networks, network(client)));
        let free_bytes = self.free_bytes(limits);
        let of_free =
            |factor: u64, held: u64| free_bytes.saturating_mul(factor).saturating_sub(held) / (factor + 1);
        let of_client = match limits.client_memory_bytes {
            Some(most_bytes) => most_bytes.saturating_sub(own_bytes),
            None if own_bytes == self.all_bytes => u64::MAX,
            None => of_free(1, own_bytes),
        };
        let of_network = match limits.network_memory_bytes {
            Some(most_bytes) => most_bytes.saturating_sub(of_network_bytes),
            None => of_free(NETWORK_FACTOR as u64, of_network_bytes),
        };
        (of_client, of_network)
    }

    /// What all hold, and what of it counts against the limit of all.
    pub fn held_bytes(&self) -> (u64, u64) {
        (self.all_bytes, self.charged_bytes)
    }

    /// The networks that hold most, and how much, from the greatest on.
    pub fn greatest(&self, count: usize) -> Vec<(IpAddr, u64)> {
        let mut networks: Vec<_> = self.networks.iter().map(|(network, bytes)| (*network, *bytes)).collect();
        networks.sort_unstable_by_key(|(network, bytes)| (std::cmp::Reverse(*bytes), *network));
        networks.truncate(count);
        networks
    }
}

/// Most that counts of one network: all that it may hold when nobody else does.
fn most_bytes(limits: &LimitsPlan) -> u64 {
    let factor = NETWORK_FACTOR as u64;
    let of_all = |all| (u128::from(all) * u128::from(factor) / u128::from(factor + 1)) as u64;
    limits.network_memory_bytes.unwrap_or_else(|| limits.memory_bytes.map_or(u64::MAX, of_all))
}

fn of(bytes: &Bytes, key: IpAddr) -> u64 {
    bytes.get(&key).copied().unwrap_or(0)
}

/// Adds to a count, which goes when it comes to nothing; before and after.
fn change(all: &mut Bytes, key: IpAddr, bytes: i64) -> (u64, u64) {
    match all.entry(key) {
        Entry::Occupied(mut own) => {
            let before = *own.get();
            let after = before.saturating_add_signed(bytes);
            if after == 0 {
                own.remove();
            } else {
                own.insert(after);
            }
            (before, after)
        }
        Entry::Vacant(own) => {
            let after = 0u64.saturating_add_signed(bytes);
            if after > 0 {
                own.insert(after);
            }
            (0, after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn of_all(memory_bytes: u64) -> LimitsPlan {
        LimitsPlan { memory_bytes: Some(memory_bytes), ..LimitsPlan::default() }
    }

    fn holding(held: &[(&str, u64)], limits: &LimitsPlan) -> Memory {
        let mut memory = Memory::default();
        memory.note(0, &held.iter().map(|(client, bytes)| (address(client), *bytes)).collect(), limits);
        memory
    }

    #[test]
    fn one_address_that_is_alone_may_hold_three_quarters_and_beside_others_what_is_free() {
        let limits = of_all(1000);
        let may = |own, other| {
            let held = [("192.0.2.1", own), ("198.51.100.1", other)];
            holding(&held, &limits).has_room(address("192.0.2.1"), &limits)
        };
        assert!(may(750, 0) && !may(760, 0));
        assert!(may(490, 1) && !may(600, 1), "no longer alone");
    }

    #[test]
    fn a_network_holds_three_times_what_is_free_however_many_addresses_it_has() {
        let limits = of_all(1000);
        let four: Vec<_> = (1..=8).map(|host| format!("192.0.2.{host}")).collect();
        let six: Vec<_> = (1..=8).map(|host| format!("2001:db8::{host}:1")).collect();
        for hosts in [four, six] {
            let with = |each| {
                let held: Vec<_> = hosts.iter().map(|host| (host.as_str(), each)).collect();
                holding(&held, &limits)
            };
            let (within, beyond) = (with(93), with(95));
            assert!(hosts.iter().all(|host| within.has_room(address(host), &limits)));
            assert!(hosts.iter().all(|host| !beyond.has_room(address(host), &limits)));
            assert!(beyond.has_room(address("198.51.100.1"), &limits));
        }
        let neighbour = holding(&[("192.0.2.1", 500), ("192.0.2.2", 300)], &limits);
        assert!(!neighbour.has_room(address("192.0.2.3"), &limits), "a new address of that network");
    }

    #[test]
    fn what_one_network_holds_beyond_its_share_takes_nothing_from_others() {
        let limits = of_all(1000);
        let memory = holding(&[("192.0.2.1", 5000), ("198.51.100.1", 100)], &limits);
        assert_eq!(memory.held_bytes(), (5100, 850));
        assert!(!memory.has_room(address("192.0.2.1"), &limits));
        assert!(memory.has_room(address("198.51.100.1"), &limits));
        assert_eq!(memory.share_bytes(&limits), 450);
    }

    #[test]
    fn a_file_may_say_how_much_a_client_and_a_network_hold() {
        let limits =
            LimitsPlan { client_memory_bytes: Some(600), network_memory_bytes: Some(900), ..of_all(1000) };
        let may = |held: &[(&str, u64)], client| holding(held, &limits).has_room(address(client), &limits);
        assert!(may(&[("192.0.2.1", 600)], "192.0.2.1") && !may(&[("192.0.2.1", 601)], "192.0.2.1"));
        let both = [("192.0.2.1", 450), ("192.0.2.2", 451)];
        assert!(!may(&both, "192.0.2.1") && !may(&both, "192.0.2.3") && may(&both, "198.51.100.1"));
        let unlimited = LimitsPlan { memory_bytes: None, ..limits.clone() };
        let memory = holding(&both, &unlimited);
        assert!(!memory.has_room(address("192.0.2.1"), &unlimited), "also where nothing is said of all");
    }

    #[test]
    fn clients_and_networks_may_grow_until_they_hold_their_shares_and_no_further() {
        let limits = of_all(1000);
        let growth = |held: &[(&str, u64)], client, limits: &LimitsPlan| {
            holding(held, limits).growth_bytes(address(client), limits)
        };
        assert_eq!(growth(&[], "192.0.2.1", &limits), (u64::MAX, 750), "alone it comes to three quarters");
        assert_eq!(growth(&[("192.0.2.1", 710)], "192.0.2.1", &limits), (u64::MAX, 40));
        let beside = [("192.0.2.1", 300), ("198.51.100.1", 200)];
        assert_eq!(growth(&beside, "192.0.2.1", &limits), (100, 300), "400 of 800 and 600 of 800");
        assert_eq!(growth(&[("192.0.2.1", 900)], "192.0.2.1", &limits).1, 0);
        let told = LimitsPlan { client_memory_bytes: Some(310), network_memory_bytes: Some(500), ..limits };
        assert_eq!(growth(&beside, "192.0.2.1", &told), (10, 200));
    }

    #[test]
    fn the_greatest_come_first() {
        let held = [("192.0.2.1", 10), ("192.0.2.2", 10), ("198.51.100.1", 15), ("203.0.113.1", 1)];
        let greatest = holding(&held, &of_all(1000)).greatest(2);
        assert_eq!(greatest, [(address("192.0.2.0"), 20), (address("198.51.100.0"), 15)]);
    }

    /// Clients are so many that to look at all of them for each one would take too long.
    #[test]
    fn what_is_known_of_many_clients_is_what_a_sum_over_all_workers_says() {
        const CLIENTS: u32 = 20_000;
        let limits = of_all(3_000_000_000);
        let client = |number: u32| IpAddr::from((0x0a00_0000 + number % CLIENTS).to_be_bytes());
        let held = |round: u32, worker: u32| -> Bytes {
            let some = (0..CLIENTS).filter(|number| !(number + round + worker).is_multiple_of(3));
            some.map(|number| (client(number), u64::from((number * 7919 + round * 31 + worker) % 100_000)))
                .collect()
        };
        let mut memory = Memory::default();
        for round in 0..5 {
            (0..4).for_each(|worker| memory.note(worker as usize, &held(round, worker), &limits));
            let (mut naive, mut networks, mut all_bytes) = (Bytes::new(), Bytes::new(), 0);
            for (client, bytes) in memory.workers.iter().flatten() {
                *naive.entry(*client).or_default() += bytes;
                *networks.entry(network(*client)).or_default() += bytes;
                all_bytes += bytes;
            }
            assert_eq!(memory.held_bytes(), (all_bytes, all_bytes));
            let free_bytes = 3_000_000_000u64.saturating_sub(all_bytes);
            for client in (0..CLIENTS).map(client) {
                let (own_bytes, network_bytes) = (of(&naive, client), of(&networks, network(client)));
                assert_eq!(of(&memory.addresses, client), own_bytes);
                let may = own_bytes <= free_bytes && network_bytes <= 3 * free_bytes;
                assert_eq!(memory.has_room(client, &limits), may);
            }
        }
        (0..4).for_each(|worker| memory.note(worker, &Bytes::new(), &limits));
        assert!(memory.addresses.is_empty() && memory.networks.is_empty());
        assert_eq!(memory.held_bytes(), (0, 0));
    }

    proptest! {
        #[test]
        fn who_stops_above_his_share_leaves_room_for_a_network_that_comes_later(
            steps in prop::collection::vec((0u8..12, 1u64..400), 0..300),
        ) {
            let limits = of_all(10_000);
            let (mut held, mut memory) = (Bytes::new(), Memory::default());
            for (client, bytes) in steps {
                let client = IpAddr::from([10, 0, client / 4, client]);
                if memory.has_room(client, &limits) {
                    *held.entry(client).or_default() += bytes;
                    memory.note(0, &held, &limits);
                }
            }
            let late = IpAddr::from([192, 0, 2, 1]);
            prop_assert!(memory.has_room(late, &limits));
            prop_assert!(memory.held_bytes().1 < 10_000);
        }
    }
}
