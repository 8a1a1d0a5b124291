//! The client's book: every record of both ends goes through it to the samples file, and interval reports come
//! out of it.

use crate::ends::rate_bps;
use longfat_schema::{lines::Lines, record::Record};
use serde::Serialize;
use std::{
    io,
    sync::{Mutex, PoisonError},
};

/// One line of an interval report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct IntervalRow {
    /// Stream number; absent in the sum of all.
    pub stream: Option<u32>,
    /// Goodput, counted at the receiver; absent where it told nothing in the interval.
    pub goodput_bps: Option<u64>,
    /// Payload bytes that arrived.
    pub received_bytes: u64,
    /// Segments retransmitted in the interval.
    pub retransmitted_segments: u64,
    /// Congestion window at its end (the sum of all in the sum).
    pub cwnd_segments: u64,
    /// Smoothed round-trip time at its end (the greatest in the sum).
    pub srtt_us: u32,
    /// Median latency of the echoes of the interval.
    pub echo_p50_us: Option<u64>,
}

/// What happened in one interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct IntervalReport {
    /// Beginning, in microseconds since the transfer's start.
    pub from_us: u64,
    /// End of the interval, in microseconds.
    pub to_us: u64,
    /// One per stream.
    pub streams: Vec<IntervalRow>,
    /// All together.
    pub sum: IntervalRow,
}

/// What came in of one stream since the last report.
#[derive(Debug, Clone, Default)]
struct Account {
    bytes: u64,
    span_us: u64,
    retransmitted: u64,
    retransmitted_before: u64,
    cwnd_segments: u32,
    srtt_us: u32,
    echoes_us: Vec<u64>,
}

/// Shared by all threads of the client.
#[derive(Debug)]
pub(crate) struct Ledger {
    lines: Lines,
    accounts: Mutex<Vec<Account>>,
    unwritten: Mutex<Option<io::Error>>,
}

impl Ledger {
    pub(crate) fn new(lines: Lines, streams: u32) -> Ledger {
        let accounts = vec![Account::default(); streams as usize];
        Ledger { lines, accounts: Mutex::new(accounts), unwritten: Mutex::new(None) }
    }

    pub(crate) fn put(&self, record: &Record) {
        if let Err(error) = self.lines.write(record) {
            self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        enter(&mut accounts, record);
    }

    /// Writes out what is buffered; the first error of all writing, if any.
    pub(crate) fn close(&self) -> io::Result<()> {
        let flushed = self.lines.flush();
        match self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => flushed,
        }
    }

    /// The report of what came in since the last one.
    pub(crate) fn report(&self, from_us: u64, to_us: u64) -> IntervalReport {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut echoes: Vec<u64> = accounts.iter().flat_map(|account| account.echoes_us.clone()).collect();
        let streams: Vec<_> =
            (0u32..).zip(accounts.iter_mut()).map(|(stream, account)| account.close(stream)).collect();
        let sum = IntervalRow { echo_p50_us: median(&mut echoes), ..total(&streams) };
        IntervalReport { from_us, to_us, streams, sum }
    }
}

fn enter(accounts: &mut [Account], record: &Record) {
    match record {
        Record::Interval(sample) => {
            let Some(account) = accounts.get_mut(sample.stream as usize) else { return };
            account.bytes += sample.bytes;
            account.span_us += sample.duration_us;
        }
        Record::Tcp(sample) if sample.role == "sender" => {
            let Some(account) = accounts.get_mut(sample.stream as usize) else { return };
            account.retransmitted = sample.retransmitted_segments;
            (account.cwnd_segments, account.srtt_us) = (sample.cwnd_segments, sample.srtt_us);
        }
        Record::Echo(sample) => {
            let Some(account) = accounts.get_mut(sample.stream as usize) else { return };
            account.echoes_us.push(sample.latency_us);
        }
        _ => {}
    }
}

impl Account {
    fn close(&mut self, stream: u32) -> IntervalRow {
        let row = IntervalRow {
            stream: Some(stream),
            goodput_bps: (self.span_us > 0).then(|| rate_bps(self.bytes, self.span_us)),
            received_bytes: self.bytes,
            retransmitted_segments: self.retransmitted.saturating_sub(self.retransmitted_before),
            cwnd_segments: u64::from(self.cwnd_segments),
            srtt_us: self.srtt_us,
            echo_p50_us: median(&mut self.echoes_us),
        };
        self.retransmitted_before = self.retransmitted;
        self.echoes_us.clear();
        (self.bytes, self.span_us) = (0, 0);
        row
    }
}

fn total(rows: &[IntervalRow]) -> IntervalRow {
    IntervalRow {
        stream: None,
        goodput_bps: rows.iter().filter_map(|row| row.goodput_bps).reduce(u64::saturating_add),
        received_bytes: rows.iter().map(|row| row.received_bytes).sum(),
        retransmitted_segments: rows.iter().map(|row| row.retransmitted_segments).sum(),
        cwnd_segments: rows.iter().map(|row| row.cwnd_segments).sum(),
        srtt_us: rows.iter().map(|row| row.srtt_us).max().unwrap_or(0),
        echo_p50_us: None,
    }
}

fn median(values: &mut [u64]) -> Option<u64> {
    if values.is_empty() {
        return None;
    }
    let middle = values.len() / 2;
    Some(*values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_schema::record::{EchoSample, IntervalSample, TcpSample};

    fn interval(stream: u32, bytes: u64) -> Record {
        Record::Interval(IntervalSample { stream, bytes, duration_us: 500_000, ..IntervalSample::default() })
    }

    fn tcp(role: &str, retransmitted_segments: u64) -> Record {
        let role = role.to_owned();
        Record::Tcp(TcpSample {
            role,
            retransmitted_segments,
            cwnd_segments: 10,
            srtt_us: 7,
            ..TcpSample::default()
        })
    }

    #[test]
    fn a_report_holds_what_came_in_since_the_one_before() {
        let ledger = Ledger::new(Lines::default(), 2);
        [interval(0, 1000), interval(0, 1000), interval(1, 500), tcp("sender", 3), tcp("receiver", 99)]
            .iter()
            .for_each(|record| ledger.put(record));
        for latency_us in [9, 1, 5] {
            ledger.put(&Record::Echo(EchoSample { stream: 1, latency_us, ..EchoSample::default() }));
        }
        let report = ledger.report(0, 1_000_000);
        let goodputs = [0, 1].map(|stream: usize| report.streams[stream].goodput_bps);
        assert_eq!((goodputs, report.sum.goodput_bps), ([Some(16_000), Some(8_000)], Some(24_000)));
        assert_eq!((report.sum.received_bytes, report.sum.retransmitted_segments), (2500, 3));
        assert_eq!((report.streams[1].echo_p50_us, report.sum.echo_p50_us), (Some(5), Some(5)));
        ledger.put(&tcp("sender", 4));
        let report = ledger.report(1_000_000, 2_000_000);
        assert_eq!(
            (report.sum.goodput_bps, report.sum.retransmitted_segments, report.sum.echo_p50_us),
            (None, 1, None)
        );
    }

    #[test]
    fn records_of_streams_that_do_not_exist_are_passed_over() {
        let ledger = Ledger::new(Lines::default(), 1);
        ledger.put(&interval(7, 1000));
        assert_eq!(ledger.report(0, 1).sum.received_bytes, 0);
    }
}
