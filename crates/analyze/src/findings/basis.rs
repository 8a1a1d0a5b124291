//! The few figures that all findings judge by.

use super::{Finding, Kind};
use crate::{
    clock::seconds,
    flow::{
        connection::Connection,
        half::Half,
        known::{LimitShares, round_trip_ns, shares},
        recovery::Episode,
        series::{Bin, Series},
    },
};

/// Stretches of time that findings look at.
const STRETCHES: usize = 128;

/// One direction, prepared.
pub struct Basis<'a> {
    /// The connection.
    pub connection: &'a Connection,
    /// What the sender sends.
    pub half: &'a Half,
    /// What the receiver sends.
    pub peer: &'a Half,
    /// The sender's end.
    pub end: usize,
    /// At most 128 stretches of the flow's time.
    pub series: Series,
    /// Shares of time.
    pub limits: LimitShares,
    /// From the first to the last payload.
    pub active_s: f64,
    /// Least RTT of the whole path.
    pub least_rtt_s: f64,
    /// Delivered in the better stretches (upper quartile of those with any), bits per second.
    pub good_bps: f64,
    /// Nanoseconds since 1970 that times are relative to.
    pub epoch_ns: i64,
}

impl<'a> Basis<'a> {
    /// Only a direction that carries some payload and got some ACKs is worth judging.
    pub fn of(connection: &'a Connection, end: usize, epoch_ns: i64) -> Option<Basis<'a>> {
        let (half, peer) = (&connection.halves[end], &connection.halves[1 - end]);
        let (first, last) = half.data_ns?;
        let series = half.observed.series.as_deref()?.coarser(STRETCHES);
        let width_s = seconds(series.width_ns());
        let mut rates: Vec<u64> =
            series.bins().iter().map(|bin| bin.acked_bytes).filter(|b| *b > 0).collect();
        rates.sort_unstable();
        let good = rates.get(rates.len() * 3 / 4).copied().unwrap_or(0) as f64;
        Some(Basis {
            connection,
            half,
            peer,
            end,
            limits: shares(half),
            active_s: seconds(last - first),
            least_rtt_s: round_trip_ns(connection, end).map_or(0.0, seconds),
            good_bps: good * 8.0 / width_s,
            series,
            epoch_ns,
        })
    }

    /// What it delivered over its whole time, bits per second.
    pub fn mean_bps(&self) -> f64 {
        self.half.counts.unique_bytes as f64 * 8.0 / self.active_s.max(1e-6)
    }

    /// The RTT of the whole path before a repair, microseconds.
    pub fn rtt_before_us(&self, episode: &Episode) -> f64 {
        episode.rtt_us as f64 + self.half.lag_ns as f64 / 1e3
    }

    /// Octets that fill the path at a rate.
    pub fn bdp_bytes(&self, bps: f64) -> f64 {
        bps * self.least_rtt_s / 8.0
    }

    /// Since the capture's start.
    pub fn at_s(&self, ns: i64) -> f64 {
        seconds(ns - self.epoch_ns)
    }

    /// When the stretch with this number begins.
    pub fn stretch_s(&self, index: usize) -> f64 {
        self.at_s(self.series.start_ns() + index as i64 * self.series.width_ns())
    }

    /// Acknowledged between two times, as far as stretches tell.
    pub fn delivered_bytes(&self, from_ns: i64, to_ns: i64) -> f64 {
        let width = self.series.width_ns() as f64;
        let share = |(index, bin): (usize, &Bin)| {
            let start = (self.series.start_ns() - from_ns) as f64 + index as f64 * width;
            let inside = (start + width).min((to_ns - from_ns) as f64) - start.max(0.0);
            bin.acked_bytes as f64 * (inside / width).clamp(0.0, 1.0)
        };
        let stretch = |ns: i64| ((ns - self.series.start_ns()).max(0) / self.series.width_ns()) as usize;
        let count = (stretch(to_ns) + 1).saturating_sub(stretch(from_ns));
        self.series.bins().iter().enumerate().skip(stretch(from_ns)).take(count).map(share).sum()
    }

    /// Most outstanding between two times.
    pub fn flight_bytes(&self, from_ns: i64, to_ns: i64) -> u64 {
        let index = |ns: i64| (ns - self.series.start_ns()).max(0) / self.series.width_ns();
        let bins = self.series.bins().iter().skip(index(from_ns) as usize);
        let count = index(to_ns) - index(from_ns) + 1;
        bins.take(count.max(0) as usize).map(|bin| bin.flight_bytes).max().unwrap_or(0)
    }

    /// Time that a span took beyond what its payload needs at the flow's better rate.
    pub fn lost_s(&self, from_ns: i64, to_ns: i64) -> f64 {
        let needed = self.delivered_bytes(from_ns, to_ns) * 8.0 / self.good_bps.max(1.0);
        (seconds(to_ns - from_ns) - needed).max(0.0)
    }

    /// A finding about this sender.
    pub fn finding(&self, kind: Kind, at_s: f64, cost_s: f64, what: String, evidence: String) -> Finding {
        Finding { kind, from: self.connection.key.end(self.end), what, evidence, at_s, cost_s }
    }

    /// When its payload begins.
    pub fn start_s(&self) -> f64 {
        self.half.data_ns.map_or(0.0, |(first, _)| self.at_s(first))
    }
}
