//! What two routers know of a connection that is only watched, or was when it was stepped into. Pure: time is passed
//! in.

use super::message::pair_contradiction;
use longfat_kernel::watch::{SeenOffer, Watched};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, time::Duration};

/// Bytes of a TCP header.
const HEADER_BYTES: std::ops::RangeInclusive<usize> = 20..=60;

/// A SYN, or its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferRecord {
    /// The TCP header with its options.
    pub header: Vec<u8>,
    /// Bytes that came with it.
    pub payload_bytes: u16,
}

/// A connection whose handshake was seen whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchedRecord {
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// What the client offered.
    pub syn: OfferRecord,
    /// What the server answered.
    pub answer: OfferRecord,
    /// Behind the last sequence number of the client, of the server.
    pub next: [u32; 2],
    /// Payload of both ends that passed since then, repetitions included.
    pub passed_bytes: u64,
    /// Payload out of order, or sent again; part of `passed_bytes`.
    pub repeated_bytes: u64,
    /// Since its SYN, or since it is watched anew.
    pub age_us: u64,
    /// Least round trips to the client and to the server, from the router that watched.
    pub rtts_us: [Option<u32>; 2],
}

impl WatchedRecord {
    /// For another router.
    pub fn of(watched: &Watched, now_us: u64) -> WatchedRecord {
        let offer =
            |seen: &SeenOffer| OfferRecord { header: seen.header.clone(), payload_bytes: seen.payload_bytes };
        let us = |rtt: Duration| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
        WatchedRecord {
            client: watched.client,
            server: watched.server,
            syn: offer(&watched.syn),
            answer: offer(&watched.answer),
            next: [watched.client_next, watched.server_next],
            passed_bytes: watched.bytes,
            repeated_bytes: watched.repeated_bytes,
            age_us: now_us.saturating_sub(watched.opened_ns / 1000),
            rtts_us: watched.rtts.map(|rtt| rtt.map(us)),
        }
    }

    /// As it is known here. The interface of its client's packets is that of the next one.
    pub fn watched(self, now_us: u64, is_told: bool) -> Watched {
        let offer =
            |offer: OfferRecord| SeenOffer { header: offer.header, payload_bytes: offer.payload_bytes };
        Watched {
            client: self.client,
            server: self.server,
            syn: offer(self.syn),
            answer: offer(self.answer),
            client_next: self.next[0],
            server_next: self.next[1],
            bytes: self.passed_bytes,
            repeated_bytes: self.repeated_bytes,
            opened_ns: now_us.saturating_sub(self.age_us).saturating_mul(1000),
            rtts: self.rtts_us.map(|rtt| rtt.map(|us| Duration::from_micros(us.into()))),
            interface: 0,
            is_told,
            is_ending: false,
        }
    }

    /// What about it cannot be.
    pub(super) fn contradiction(&self) -> Option<String> {
        let header =
            [&self.syn, &self.answer].into_iter().find(|offer| !HEADER_BYTES.contains(&offer.header.len()));
        pair_contradiction(self.client, self.server)
            .or_else(|| header.map(|offer| format!("a header of {} bytes", offer.header.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_router_knows_the_other_one_does_whatever_their_clocks_say() {
        let offer = |byte: u8| OfferRecord { header: vec![byte; 40], payload_bytes: 0 };
        let record = WatchedRecord {
            client: "192.0.2.1:999".parse().unwrap(),
            server: "192.0.2.2:80".parse().unwrap(),
            syn: offer(1),
            answer: offer(2),
            next: [3, u32::MAX],
            passed_bytes: 4,
            repeated_bytes: 5,
            age_us: 6_000_000,
            rtts_us: [None, Some(7)],
        };
        assert_eq!(record.contradiction(), None);
        let here = record.clone().watched(9_000_000, false);
        assert_eq!((here.opened_ns, here.is_told, here.interface), (3_000_000_000, false, 0));
        assert_eq!(WatchedRecord::of(&here, 9_000_000), record);
        // It is older than this router has run.
        assert_eq!(record.clone().watched(1, true).opened_ns, 0);
        let short = OfferRecord { header: vec![0; 19], payload_bytes: 0 };
        let wrong = WatchedRecord { answer: short, ..record }.contradiction().unwrap();
        assert!(wrong.contains("19 bytes"), "{wrong}");
    }
}
