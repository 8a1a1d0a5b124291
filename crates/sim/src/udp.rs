//! UDP cross traffic: datagrams at a rate, whatever the path does.

use crate::{
    net::Net,
    packet::{Family, Segment, flag},
    timers::NEVER,
};
use longfat_link::model::Ecn;
use longfat_schema::arrivals::{Arrivals, Drawn};

/// Sends datagrams.
#[derive(Debug)]
pub struct UdpSource {
    /// Datagrams sent.
    pub sent: u64,
    /// When the first one left.
    pub start_ns: u64,
    stop_ns: u64,
    limit: u64,
    datagram_bytes: u32,
    /// Mean time between departures, in nanoseconds and 2^-16 of them.
    gap_65536ns: u64,
    /// Exact time of the next departure, in the same unit.
    next_65536ns: u128,
    /// Gaps that are drawn; absent: even ones.
    drawn: Option<Drawn>,
    route: u32,
    to: u32,
    family: Family,
}

/// What a UDP source is made of.
#[derive(Debug, Clone, Copy)]
pub struct UdpOffer {
    /// When it starts.
    pub start_ns: u64,
    /// When it stops.
    pub stop_ns: u64,
    /// Payload; absent: without end.
    pub bytes: Option<u64>,
    /// Payload of a datagram.
    pub datagram_bytes: u32,
    /// Payload rate.
    pub rate_bps: u64,
    /// Law by which datagrams leave.
    pub arrivals: Arrivals,
    /// Seed of the source.
    pub seed: u64,
    /// Which stream of that seed.
    pub stream: u32,
    /// Version of IP.
    pub family: Family,
}

/// Counts datagrams.
#[derive(Debug, Default)]
pub struct UdpSink {
    /// Datagrams that arrived.
    pub received: u64,
    /// Payload of the datagrams.
    pub bytes: u64,
    /// One past the highest number that arrived.
    pub highest: u64,
    /// When the last one arrived.
    pub last_ns: u64,
}

impl UdpSource {
    /// A source; its first datagram leaves at the start (or, where gaps are drawn, a gap later).
    pub fn new(offer: &UdpOffer, route: u32, to: u32) -> UdpSource {
        let bits = u128::from(offer.datagram_bytes) * 8_000_000_000 * 65_536;
        let gap_65536ns = u64::try_from(bits / u128::from(offer.rate_bps.max(1))).unwrap_or(NEVER).max(1);
        let drawn = || Drawn::new(offer.arrivals, gap_65536ns as f64 / 65_536.0, offer.seed, offer.stream);
        let mut source = UdpSource {
            sent: 0,
            start_ns: offer.start_ns,
            stop_ns: offer.stop_ns,
            limit: offer.bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(u64::from(offer.datagram_bytes))),
            datagram_bytes: offer.datagram_bytes,
            gap_65536ns,
            next_65536ns: u128::from(offer.start_ns) << 16,
            drawn: offer.arrivals.is_random().then(drawn),
            route,
            to,
            family: offer.family,
        };
        if source.drawn.is_some() {
            source.advance();
        }
        source
    }

    /// When the next datagram leaves.
    pub fn next_at_ns(&self) -> u64 {
        let at_ns = u64::try_from(self.next_65536ns >> 16).unwrap_or(NEVER);
        if self.sent >= self.limit || at_ns >= self.stop_ns { NEVER } else { at_ns }
    }

    fn advance(&mut self) {
        self.next_65536ns += match &mut self.drawn {
            Some(drawn) => (drawn.next_ns() * 65_536.0) as u128,
            None => u128::from(self.gap_65536ns),
        };
    }

    /// Sends the datagram that is due.
    pub fn send(&mut self, net: &mut Net) {
        let segment = Segment {
            to: self.to,
            family: self.family,
            flags: flag::UDP,
            number: self.sent,
            payload_bytes: self.datagram_bytes,
            sent_ns: net.now_ns,
            ..Segment::default()
        };
        net.send(segment, self.route, Ecn::NotEct);
        self.sent += 1;
        self.advance();
    }
}

impl UdpSink {
    /// A datagram arrived.
    pub fn take(&mut self, segment: &Segment, now_ns: u64) {
        self.received += 1;
        self.bytes += u64::from(segment.payload_bytes);
        self.highest = self.highest.max(segment.number + 1);
        self.last_ns = now_ns;
    }

    /// Datagrams missing among those up to the highest that arrived.
    pub fn lost(&self) -> u64 {
        self.highest.saturating_sub(self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the program that sends real ones has them leave.
    #[test]
    fn datagrams_leave_as_the_seed_draws_them() {
        for arrivals in [Arrivals::Poisson, Arrivals::Onoff, Arrivals::Pareto] {
            let offer = UdpOffer {
                start_ns: 1_000_000_000,
                stop_ns: NEVER,
                bytes: None,
                datagram_bytes: 1250,
                rate_bps: 10_000_000,
                arrivals,
                seed: 77,
                stream: 3,
                family: Family::Ipv4,
            };
            let mut source = UdpSource::new(&offer, 0, 0);
            let mut drawn = Drawn::new(arrivals, 1e6, 77, 3);
            let mut due_ns = 1e9;
            for _ in 0..1000 {
                due_ns += drawn.next_ns();
                assert!((source.next_at_ns() as f64 - due_ns).abs() < 2.0);
                source.advance();
            }
        }
    }
}
