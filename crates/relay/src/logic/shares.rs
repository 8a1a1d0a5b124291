//! What each client has of something scarce, so that no client, and no network of clients, takes all of it.
//!
//! Pure. The more is taken, the less anybody may have: an address has one more only while it has fewer than are free, a
//! network while it has fewer than three times those. So one address comes to half of all, one network to three
//! quarters, and whoever comes later finds something, however many have taken their part. An address that is alone
//! there may be given what its network might.

use longfat_host::Network;
use std::{collections::HashMap, net::IpAddr};

/// A network may have so many times what is free.
pub(crate) const NETWORK_FACTOR: usize = 3;

/// Numbers of places, by the client.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    taken: usize,
    addresses: HashMap<IpAddr, usize>,
    networks: HashMap<IpAddr, usize>,
}

impl Shares {
    /// Whether a client may have one more, of so many in all.
    pub fn has_room(&self, client: IpAddr, all: usize) -> bool {
        let (address, _) = self.of(client);
        address < all.saturating_sub(self.taken) && self.has_room_within(client, all, (None, None))
    }

    /// [`Shares::has_room`] where somebody has said how many an address, or a network, may have, and where nobody else
    /// has any. A network could take three quarters by other addresses, so one address may, too, and nobody who comes
    /// later finds less.
    pub fn has_room_within(
        &self,
        client: IpAddr,
        all: usize,
        (of_address, of_network): (Option<usize>, Option<usize>),
    ) -> bool {
        let free = all.saturating_sub(self.taken);
        let (address, network) = self.of(client);
        let is_alone = address == self.taken;
        let of_address = of_address.unwrap_or(if is_alone { usize::MAX } else { free });
        address < of_address.min(all)
            && network < of_network.unwrap_or(free.saturating_mul(NETWORK_FACTOR))
            && free > 0
    }

    /// How many a client has, and its network.
    pub fn of(&self, client: IpAddr) -> (usize, usize) {
        let count = |counts: &HashMap<IpAddr, usize>, key| counts.get(&key).copied().unwrap_or(0);
        let client = client.to_canonical();
        (count(&self.addresses, client), count(&self.networks, network(client)))
    }

    /// How many all have.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// A client has one more.
    pub fn add(&mut self, client: IpAddr) {
        let client = client.to_canonical();
        self.taken += 1;
        *self.addresses.entry(client).or_default() += 1;
        *self.networks.entry(network(client)).or_default() += 1;
    }

    /// A client has one less.
    pub fn remove(&mut self, client: IpAddr) {
        let client = client.to_canonical();
        self.taken = self.taken.saturating_sub(1);
        subtract(&mut self.addresses, client);
        subtract(&mut self.networks, network(client));
    }
}

fn subtract(counts: &mut HashMap<IpAddr, usize>, key: IpAddr) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// First address of a client's network.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    Network::of_site(address).address()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take_all_one_may(shares: &mut Shares, client: &str, all: usize) -> usize {
        let client = client.parse().unwrap();
        let mut got = 0;
        while shares.has_room(client, all) {
            shares.add(client);
            got += 1;
        }
        got
    }

    #[test]
    fn one_address_comes_to_half_and_one_network_to_three_quarters() {
        let mut shares = Shares::default();
        assert_eq!(take_all_one_may(&mut shares, "192.0.2.1", 1000), 500);
        let neighbours: usize =
            (2..60).map(|host| take_all_one_may(&mut shares, &format!("192.0.2.{host}"), 1000)).sum();
        assert_eq!(neighbours, 250);
        assert_eq!(take_all_one_may(&mut shares, "198.51.100.1", 1000), 125, "half of what is left");
        let mut six = Shares::default();
        let host = |host| format!("2001:db8:0:1:{host:x}::1");
        let of_one_host: usize = (0..500).map(|n| take_all_one_may(&mut six, &host(n), 1000)).sum();
        assert_eq!(of_one_host, 750, "however many addresses it has");
    }

    #[test]
    fn who_is_alone_takes_what_its_network_might_and_no_more_once_another_is_there() {
        let (one, other) = ("192.0.2.1".parse().unwrap(), "198.51.100.1".parse().unwrap());
        let take = |shares: &mut Shares, client, all| {
            let may = shares.has_room_within(client, all, (None, None));
            may.then(|| shares.add(client)).is_some()
        };
        let mut shares = Shares::default();
        assert_eq!((0..1000).filter(|_| take(&mut shares, one, 1000)).count(), 750);
        assert!(take(&mut shares, other, 1000));
        (0..200).for_each(|_| shares.remove(one));
        // 551 are taken, 550 of them its own: more than the 449 that are free.
        assert!(!take(&mut shares, one, 1000) && take(&mut shares, other, 1000));
        assert_eq!((0..1000).filter(|_| take(&mut shares, other, 1000)).count(), 223, "half of what is left");
        // Whoever has said how many, has.
        assert!(!Shares::default().has_room_within(one, 1000, (Some(0), None)));
    }

    #[test]
    fn a_single_place_is_for_anybody() {
        let mut shares = Shares::default();
        assert_eq!(take_all_one_may(&mut shares, "192.0.2.1", 1), 1);
        assert_eq!(take_all_one_may(&mut shares, "192.0.2.1", 0), 0);
    }

    proptest! {
        #[test]
        fn nobody_has_more_than_half_nor_a_network_than_three_quarters_and_nothing_stays_behind(
            steps in prop::collection::vec((0u8..20, any::<bool>()), 0..400), all in 16usize..200,
        ) {
            let (mut shares, mut has) = (Shares::default(), vec![0usize; 20]);
            let address = |client: u8| IpAddr::from([10, client / 4, 0, client]);
            for (client, adds) in steps {
                if adds && shares.has_room(address(client), all) {
                    shares.add(address(client));
                    has[client as usize] += 1;
                } else if !adds && has[client as usize] > 0 {
                    shares.remove(address(client));
                    has[client as usize] -= 1;
                }
                prop_assert_eq!(shares.taken(), has.iter().sum::<usize>());
                prop_assert!(shares.taken() <= all);
                for client in 0..20 {
                    let (own, networks) = shares.of(address(client));
                    prop_assert!(own <= all.div_ceil(2) && networks <= (3 * all).div_ceil(4));
                }
            }
            for (client, count) in (0u8..).zip(has) {
                (0..count).for_each(|_| shares.remove(address(client)));
            }
            prop_assert!(shares.addresses.is_empty() && shares.networks.is_empty() && shares.taken() == 0);
        }
    }
}
