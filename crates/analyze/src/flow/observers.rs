//! What is only looked at: values over time, spacing, points of figures, times to live. Nothing here decides anything.

use super::{
    series::Series,
    spacing::{Spacing, WORTH_PACKETS},
    thinned::Points,
};
use crate::segment::Segment;

/// Points for figures, when asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail {
    /// End of new data, relative octets.
    pub sent: Points,
    /// Start of what was sent again.
    pub resent: Points,
    /// Start of what came out of order.
    pub disordered: Points,
    /// Acknowledged octets.
    pub acked: Points,
    /// Right edge of the window.
    pub edge: Points,
    /// Milliseconds.
    pub rtt: Points,
    /// Octets.
    pub flight: Points,
    /// Microseconds between data packets.
    pub data_gap: Points,
    /// Microseconds between this end's pure ACKs.
    pub ack_gap: Points,
}

/// Times to live of one end's packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimesToLive {
    /// Time to live of the first packet.
    pub first: u8,
    /// Time to live of the last packet.
    pub last: u8,
    /// How often it changed.
    pub changes: u32,
    /// When it did last.
    pub changed_ns: i64,
    /// This end's packets before that.
    pub packets_before: u64,
}

/// Observers of one direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observers {
    /// Over time.
    pub series: Option<Box<Series>>,
    /// Between packets.
    pub spacing: Option<Box<Spacing>>,
    /// Times to live.
    pub ttl: Option<TimesToLive>,
    /// Points for figures.
    pub detail: Option<Box<Detail>>,
}

impl Detail {
    /// Acknowledged up to `acked`, with the window's edge at `edge`, both relative, and a round trip if it tells one.
    #[cold]
    pub fn on_ack(&mut self, now: i64, acked: f64, edge: f64, rtt_ns: Option<i64>) {
        self.acked.push(now, acked);
        self.edge.push(now, edge);
        if let Some(rtt_ns) = rtt_ns {
            self.rtt.push(now, rtt_ns as f64 / 1e6);
        }
    }
}

impl Observers {
    /// The time to live of the `number`th packet.
    #[inline(always)]
    pub fn on_ttl(&mut self, segment: &Segment, number: u64) {
        if self.ttl.is_none_or(|ttl| ttl.last != segment.ttl) {
            self.on_other_ttl(segment, number);
        }
    }

    #[cold]
    fn on_other_ttl(&mut self, segment: &Segment, number: u64) {
        let (last, changed_ns) = (segment.ttl, segment.time_ns);
        self.ttl = Some(match self.ttl {
            Some(ttl) => {
                TimesToLive { last, changes: ttl.changes + 1, changed_ns, packets_before: number - 1, ..ttl }
            }
            None => TimesToLive { first: last, last, changes: 0, changed_ns, packets_before: 0 },
        });
    }

    /// An acknowledgement this end sent without payload, behind `number` packets that are surely no copies.
    #[inline]
    pub fn on_pure_ack(&mut self, time_ns: i64, number: u64) {
        if number >= WORTH_PACKETS {
            let gap = self.spacing.get_or_insert_default().acks.on_packet(time_ns);
            if let (Some(detail), Some(gap)) = (&mut self.detail, gap) {
                detail.ack_gap.push(time_ns, gap as f64 / 1e3);
            }
        }
    }

    /// New payload up to `end`, relative, the `number`th of its packets that are surely no copies, with so much
    /// outstanding.
    #[inline]
    pub fn on_new(&mut self, now: i64, end: f64, payload: u32, flight: u64, number: u64) {
        let bin = self.series.get_or_insert_with(|| Box::new(Series::new(now))).at(now);
        bin.new_bytes += u64::from(payload);
        bin.flight_bytes = bin.flight_bytes.max(flight);
        let gap = (number >= WORTH_PACKETS)
            .then(|| self.spacing.get_or_insert_default().data.on_packet(now))
            .flatten();
        if let Some(detail) = &mut self.detail {
            detail.sent.push(now, end);
            detail.flight.push(now, flight as f64);
            if let Some(gap) = gap {
                detail.data_gap.push(now, gap as f64 / 1e3);
            }
        }
    }

    /// Payload that was sent again, and payload that came late for the first time.
    pub fn on_old(&mut self, now: i64, resent_bytes: u64, new_bytes: u64) {
        if let Some(series) = &mut self.series {
            let bin = series.at(now);
            bin.resent_bytes += resent_bytes;
            bin.new_bytes += new_bytes;
        }
    }

    /// Notes acknowledged bytes, what was left of the window, and a round trip if the packet tells one.
    #[inline]
    pub fn on_ack(&mut self, now: i64, bytes: u64, window_bytes: u64, rtt_ns: Option<i64>) {
        let Some(series) = &mut self.series else { return };
        let bin = series.at(now);
        bin.acked_bytes += bytes;
        bin.window_bytes = bin.window_bytes.min(window_bytes);
        if let Some(rtt_ns) = rtt_ns {
            let us = u32::try_from(rtt_ns / 1000).unwrap_or(u32::MAX - 1);
            bin.rtt_least_us = bin.rtt_least_us.min(us);
            bin.rtt_most_us = bin.rtt_most_us.max(us);
        }
    }

    /// Sent again from here on, relative.
    pub fn on_resent(&mut self, now: i64, start: f64) {
        if let Some(detail) = &mut self.detail {
            detail.resent.push(now, start);
        }
    }

    /// Came out of order, relative.
    pub fn on_disordered(&mut self, now: i64, start: f64) {
        if let Some(detail) = &mut self.detail {
            detail.disordered.push(now, start);
        }
    }
}
