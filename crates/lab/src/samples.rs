//! Everything that was said during one run, in memory, and how it gets there: the programs' samples files, with
//! time rebased to the start of the run.

use longfat_schema::{
    lines::{self, LinesError},
    record::*,
};
use std::path::Path;

/// The records of one run, by kind.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Samples {
    pub tcp: Vec<TcpSample>,
    pub interval: Vec<IntervalSample>,
    pub echo: Vec<EchoSample>,
    pub queue: Vec<QueueSample>,
    pub relay: Vec<RelaySample>,
    pub flow: Vec<FlowSummary>,
    pub link: Vec<LinkSummary>,
    pub note: Vec<Note>,
}

impl Samples {
    /// Appends one record.
    pub fn push(&mut self, record: Record) {
        match record {
            Record::Tcp(row) => self.tcp.push(row),
            Record::Interval(row) => self.interval.push(row),
            Record::Echo(row) => self.echo.push(row),
            Record::Queue(row) => self.queue.push(row),
            Record::Relay(row) => self.relay.push(row),
            Record::Flow(row) => self.flow.push(row),
            Record::Link(row) => self.link.push(row),
            Record::Note(row) => self.note.push(row),
        }
    }

    /// Appends a samples file. A program that wrote none had nothing to say.
    pub fn gather(&mut self, path: &Path, start_us: i64) -> Result<(), LinesError> {
        if !path.exists() {
            return Ok(());
        }
        lines::read(path, |mut record| {
            record.rebase(start_us);
            self.push(record);
        })
    }

    /// Orders every kind by time: several programs wrote at once.
    pub fn sort(&mut self) {
        self.tcp.sort_by_key(|row| row.time_us);
        self.interval.sort_by_key(|row| row.time_us);
        self.echo.sort_by_key(|row| row.time_us);
        self.queue.sort_by_key(|row| row.time_us);
        self.relay.sort_by_key(|row| row.time_us);
        self.note.sort_by_key(|row| row.time_us);
        self.flow.sort_by(|a, b| (&a.flow, a.stream).cmp(&(&b.flow, b.stream)));
    }

    /// Every record, table by table.
    pub fn into_records(self) -> impl Iterator<Item = Record> {
        let tcp = self.tcp.into_iter().map(Record::Tcp);
        let interval = self.interval.into_iter().map(Record::Interval);
        let echo = self.echo.into_iter().map(Record::Echo);
        let queue = self.queue.into_iter().map(Record::Queue);
        let relay = self.relay.into_iter().map(Record::Relay);
        let flow = self.flow.into_iter().map(Record::Flow);
        let link = self.link.into_iter().map(Record::Link);
        let note = self.note.into_iter().map(Record::Note);
        tcp.chain(interval).chain(echo).chain(queue).chain(relay).chain(flow).chain(link).chain(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_several_programs_become_one_ordered_whole_that_starts_at_zero() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, times: &[i64]| {
            let path = directory.path().join(name);
            let file = lines::Lines::create(&path).unwrap();
            for time_us in times {
                file.write(&Record::Echo(EchoSample { time_us: *time_us, ..Default::default() })).unwrap();
            }
            file.flush().unwrap();
            path
        };
        let mut samples = Samples::default();
        samples.gather(&write("a", &[110, 130]), 100).unwrap();
        samples.gather(&write("b", &[120]), 100).unwrap();
        samples.gather(&directory.path().join("never-written"), 100).unwrap();
        samples.sort();
        let times: Vec<_> = samples.echo.iter().map(|echo| echo.time_us).collect();
        assert_eq!(times, [10, 20, 30]);
        assert_eq!(samples.into_records().count(), 3);
    }
}
