//! From the machine's time to the experiment's own: a run that is carried out N times slower than it is meant (dilation
//! N) reports times N times too long and rates N times too low. Here, and nowhere else, they are brought back.
//!
//! Every record is taken apart field by field: a new one does not compile until somebody has said what time it has.

use crate::record::*;
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32};

/// How many times slower than meant a run is carried out; 1 when nobody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dilation(NonZeroU32);

impl Dilation {
    /// At its own speed.
    pub const NONE: Dilation = Dilation(NonZeroU32::MIN);

    /// A dilation by so many times; `None` for 0.
    pub fn new(times: u32) -> Option<Dilation> {
        NonZeroU32::new(times).map(Dilation)
    }

    /// How many times.
    pub fn times(self) -> u32 {
        self.0.get()
    }

    /// Whether the run has its own speed; such runs do not write it.
    pub fn is_none(&self) -> bool {
        *self == Dilation::NONE
    }
}

impl Default for Dilation {
    fn default() -> Dilation {
        Dilation::NONE
    }
}

impl fmt::Display for Dilation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How the times of samples files become times of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnTime {
    /// When the flows began, by the machine's clock.
    pub start_us: i64,
    /// How many times slower than meant the run is carried out.
    pub dilation: Dilation,
}

impl OwnTime {
    /// Brings a record of a samples file to the time since the flows began, and everything in it to the experiment's
    /// own.
    pub fn bring(self, record: &mut Record) {
        record.rebase(self.start_us);
        if !self.dilation.is_none() {
            self.undilate(record);
        }
    }

    fn undilate(self, record: &mut Record) {
        match record {
            Record::Tcp(row) => self.tcp(row),
            Record::Interval(row) => self.interval(row),
            Record::Echo(row) => self.echo(row),
            Record::Queue(row) => self.queue(row),
            Record::Relay(row) => self.relay(row),
            Record::Avail(row) => self.avail(row),
            Record::Flow(row) => self.flow(row),
            Record::Link(row) => self.link(row),
            Record::Stall(row) => self.stall(row),
            Record::Trace(row) => self.trace(row),
            Record::Note(row) => self.note(row),
        }
    }

    fn point(self, time_us: &mut i64) {
        *time_us = time_us.div_euclid(i64::from(self.dilation.times()));
    }

    fn span(self, us: &mut u64) {
        *us /= u64::from(self.dilation.times());
    }

    fn span32(self, us: &mut u32) {
        *us /= self.dilation.times();
    }

    fn rate(self, bps: &mut u64) {
        *bps = bps.saturating_mul(u64::from(self.dilation.times()));
    }

    fn tcp(self, row: &mut TcpSample) {
        let TcpSample {
            time_us,
            flow: _,
            stream: _,
            role: _,
            cc: _,
            ca_state: _,
            cwnd_segments: _,
            ssthresh_segments: _,
            srtt_us,
            rttvar_us,
            min_rtt_us,
            rto_us,
            mss_bytes: _,
            flight_segments: _,
            lost_segments: _,
            retransmitted_segments: _,
            sent_bytes: _,
            retransmitted_bytes: _,
            acked_bytes: _,
            received_bytes: _,
            unsent_bytes: _,
            delivery_rate_bps,
            pacing_rate_bps,
            rwnd_limited_us,
            sndbuf_limited_us,
            delivered_ce_segments: _,
            timeouts: _,
            duplicate_segments: _,
        } = row;
        self.point(time_us);
        [srtt_us, rttvar_us, rto_us].into_iter().chain(min_rtt_us).for_each(|us| self.span32(us));
        std::iter::once(delivery_rate_bps).chain(pacing_rate_bps).for_each(|bps| self.rate(bps));
        [rwnd_limited_us, sndbuf_limited_us].into_iter().for_each(|us| self.span(us));
    }

    fn interval(self, row: &mut IntervalSample) {
        let IntervalSample { time_us, duration_us, flow: _, stream: _, bytes: _ } = row;
        self.point(time_us);
        self.span(duration_us);
    }

    fn echo(self, row: &mut EchoSample) {
        let EchoSample { time_us, flow: _, stream: _, position_bytes: _, latency_us } = row;
        self.point(time_us);
        self.span(latency_us);
    }

    fn queue(self, row: &mut QueueSample) {
        let QueueSample {
            time_us,
            link: _,
            direction: _,
            queue_bytes: _,
            queue_packets: _,
            delivered_bytes: _,
            delivered_packets: _,
            dropped_packets: _,
            lost_packets: _,
            marked_packets: _,
        } = row;
        self.point(time_us);
    }

    fn relay(self, row: &mut RelaySample) {
        let RelaySample {
            time_us,
            relay: _,
            connection: _,
            direction: _,
            backlog_bytes: _,
            unread_bytes: _,
            held_bytes: _,
            unacked_bytes: _,
            relayed_bytes: _,
            target_us,
            delay_us,
            drain_bps,
            window_bytes: _,
            marked_packets: _,
        } = row;
        self.point(time_us);
        target_us.iter_mut().chain(delay_us).for_each(|us| self.span32(us));
        drain_bps.iter_mut().for_each(|bps| self.rate(bps));
    }

    /// The congestion control that measured it lives in the experiment's time already, counted from the same zero.
    fn avail(self, row: &mut AvailSample) {
        let AvailSample {
            time_us,
            flow: _,
            stream: _,
            avail_bps: _,
            deviation_bps: _,
            capacity_bps: _,
            confidence_ratio: _,
            results: _,
            rejected: _,
            free_bps: _,
        } = row;
        *time_us += self.start_us - self.start_us / i64::from(self.dilation.times());
    }

    fn flow(self, row: &mut FlowSummary) {
        let FlowSummary {
            flow: _,
            stream: _,
            protocol: _,
            cc_sender: _,
            cc_receiver: _,
            start_us,
            duration_us,
            received_bytes: _,
            goodput_bps,
            retransmitted_segments: _,
            retransmitted_bytes: _,
            lost_datagrams: _,
            min_rtt_us,
            echo_count: _,
            echo_p50_us,
            echo_p99_us,
            echo_max_us,
            mss_bytes: _,
            sndbuf_bytes: _,
            rcvbuf_bytes: _,
            error: _,
        } = row;
        self.point(start_us);
        self.rate(goodput_bps);
        min_rtt_us.iter_mut().for_each(|us| self.span32(us));
        let echoes = [echo_p50_us, echo_p99_us, echo_max_us].into_iter().flatten();
        std::iter::once(duration_us).chain(echoes).for_each(|us| self.span(us));
    }

    fn link(self, row: &mut LinkSummary) {
        let LinkSummary {
            link: _,
            direction: _,
            driver: _,
            offered_packets: _,
            delivered_packets: _,
            delivered_bytes: _,
            dropped_packets: _,
            lost_packets: _,
            marked_packets: _,
            overrun_packets: _,
            queue_max_bytes: _,
            queue_mean_bytes: _,
            late_p50_us,
            late_p99_us,
            late_p999_us,
            late_max_us,
            late_limit_us,
            paused_us,
            punctual: _,
        } = row;
        [late_p50_us, late_p99_us, late_p999_us, late_max_us, late_limit_us, paused_us]
            .into_iter()
            .for_each(|us| self.span(us));
    }

    fn stall(self, row: &mut StallSample) {
        let StallSample { time_us, of: _, duration_us, owed_packets: _ } = row;
        self.point(time_us);
        self.span(duration_us);
    }

    fn trace(self, row: &mut TraceSample) {
        let TraceSample {
            time_us,
            flow: _,
            connection: _,
            event: _,
            cc: _,
            state: _,
            ca_state: _,
            cwnd_segments: _,
            ssthresh_segments: _,
            srtt_us,
            rttvar_us,
            flight_segments: _,
            unacked_segments: _,
            lost_segments: _,
            retransmitted_segments: _,
            peer_window_bytes: _,
            mss_bytes: _,
            acked_bytes: _,
            sent_bytes: _,
        } = row;
        self.point(time_us);
        [srtt_us, rttvar_us].into_iter().for_each(|us| self.span32(us));
    }

    /// Text cannot be divided: who reads figures in it is told whose time they are.
    fn note(self, row: &mut Note) {
        let Note { time_us, level, source: _, message } = row;
        self.point(time_us);
        if level == "warning" {
            message.push_str(&format!(" (in the machine's time, {} times slower)", self.dilation));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brought(mut record: Record) -> Record {
        let dilation = Dilation::new(4).unwrap();
        OwnTime { start_us: 1_000_000, dilation }.bring(&mut record);
        record
    }

    #[test]
    fn times_are_divided_rates_multiplied_and_bytes_left() {
        let row = TcpSample {
            time_us: 1_400_000,
            cwnd_segments: 100,
            srtt_us: 80_000,
            min_rtt_us: Some(40_000),
            rto_us: 800_000,
            acked_bytes: 77,
            delivery_rate_bps: 25,
            pacing_rate_bps: None,
            rwnd_limited_us: 400,
            ..TcpSample::default()
        };
        let Record::Tcp(own) = brought(Record::Tcp(row)) else { unreachable!() };
        assert_eq!(
            (own.time_us, own.srtt_us, own.min_rtt_us, own.rto_us),
            (100_000, 20_000, Some(10_000), 200_000)
        );
        assert_eq!((own.cwnd_segments, own.acked_bytes), (100, 77));
        assert_eq!((own.delivery_rate_bps, own.pacing_rate_bps, own.rwnd_limited_us), (100, None, 100));
    }

    #[test]
    fn goodput_of_a_stream_agrees_with_its_bytes_and_its_time() {
        let row = FlowSummary {
            start_us: 1_000_400,
            duration_us: 8_000_000,
            received_bytes: 5_000_000,
            goodput_bps: 5_000_000,
            echo_p99_us: Some(40),
            ..FlowSummary::default()
        };
        let Record::Flow(own) = brought(Record::Flow(row)) else { unreachable!() };
        assert_eq!((own.start_us, own.duration_us, own.echo_p99_us), (100, 2_000_000, Some(10)));
        assert_eq!(own.goodput_bps, own.received_bytes * 8_000_000 / own.duration_us);
    }

    #[test]
    fn what_an_algorithm_measured_in_its_own_time_keeps_its_value_and_finds_its_place() {
        // It was measured half a second of its own after the start: its clock says (1,000,000 + 2,000,000) / 4.
        let row = AvailSample { time_us: 750_000, avail_bps: 9, ..AvailSample::default() };
        let Record::Avail(own) = brought(Record::Avail(row)) else { unreachable!() };
        assert_eq!((own.time_us, own.avail_bps), (500_000, 9));
    }

    #[test]
    fn a_run_at_its_own_speed_is_only_shifted() {
        let mut note = Record::Note(Note { time_us: 7, level: "warning".into(), ..Note::default() });
        OwnTime { start_us: 5, dilation: Dilation::NONE }.bring(&mut note);
        assert_eq!(note, Record::Note(Note { time_us: 2, level: "warning".into(), ..Note::default() }));
    }

    #[test]
    fn a_warning_says_whose_time_its_figures_are() {
        let note =
            Note { time_us: 1_000_008, level: "warning".into(), message: "3 ms".into(), ..Note::default() };
        let Record::Note(own) = brought(Record::Note(note)) else { unreachable!() };
        assert_eq!((own.time_us, own.message.as_str()), (2, "3 ms (in the machine's time, 4 times slower)"));
    }
}
