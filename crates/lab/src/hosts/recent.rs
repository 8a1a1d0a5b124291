//! What the programs of a host have recorded since it was asked last, for a person who looks on. Thinned: it goes over
//! the path that SSH takes, which may be the one that is measured.

use longfat_schema::record::Record;
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Distance of the records of one series.
const EVERY_US: i64 = 250_000;
/// Series that are told at that distance; of more, each is told as much more seldom.
const SERIES: usize = 64;
/// Bytes that are looked through of what a program has written since.
const TAIL_BYTES: u64 = 512 << 10;

/// How far each file has been told.
#[derive(Debug, Default)]
pub struct Recent {
    told: BTreeMap<PathBuf, u64>,
}

impl Recent {
    /// What has come to these files, thinned.
    pub fn take(&mut self, files: &[PathBuf]) -> Vec<Record> {
        let since = files.iter().flat_map(|file| {
            let told = self.told.entry(file.clone()).or_default();
            // The leader reads, and judges, everything in the end.
            whole_lines(file, told).unwrap_or_default()
        });
        thin(since.collect())
    }
}

/// Records of the whole lines behind `told`, which goes on to the end of the last.
fn whole_lines(path: &Path, told: &mut u64) -> io::Result<Vec<Record>> {
    let mut file = File::open(path)?;
    let skipped = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    let is_cut = skipped > *told;
    let from = skipped.max(*told);
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    *told = from + whole as u64;
    let lines = text[..whole].split(|byte| *byte == b'\n').skip(usize::from(is_cut));
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// One drawn line: kind, name, number, part. A record that is not drawn has none.
type Series = (&'static str, String, u32, String);

fn series(record: &Record) -> Option<Series> {
    let (kind, name, number, part) = match record {
        Record::Tcp(row) => ("tcp", &row.flow, row.stream, row.role.as_str()),
        Record::Interval(row) => ("interval", &row.flow, row.stream, ""),
        Record::Echo(row) => ("echo", &row.flow, row.stream, ""),
        Record::Relay(row) => ("relay", &row.relay, row.connection, row.direction.as_str()),
        Record::Avail(row) => ("avail", &row.flow, row.stream, ""),
        _ => return None,
    };
    Some((kind, name.clone(), number, part.to_owned()))
}

fn time_us(record: &Record) -> i64 {
    match record {
        Record::Tcp(row) => row.time_us,
        Record::Interval(row) => row.time_us,
        Record::Echo(row) => row.time_us,
        Record::Relay(row) => row.time_us,
        Record::Avail(row) => row.time_us,
        _ => 0,
    }
}

/// Last record of each span of time, of each series; intervals of one span are added up.
fn thin(records: Vec<Record>) -> Vec<Record> {
    let named: Vec<(Series, Record)> =
        records.into_iter().filter_map(|record| Some((series(&record)?, record))).collect();
    let count = named.iter().map(|(series, _)| series).collect::<BTreeSet<_>>().len();
    let every_us = EVERY_US * count.div_ceil(SERIES).max(1) as i64;
    let mut kept: BTreeMap<(Series, i64), Record> = BTreeMap::new();
    for (series, record) in named {
        match kept.entry((series, time_us(&record).div_euclid(every_us))) {
            Entry::Vacant(place) => drop(place.insert(record)),
            Entry::Occupied(mut place) => follow(place.get_mut(), record),
        }
    }
    kept.into_values().collect()
}

fn follow(earlier: &mut Record, mut record: Record) {
    if let (Record::Interval(sum), Record::Interval(row)) = (&*earlier, &mut record) {
        row.bytes += sum.bytes;
        row.duration_us += sum.duration_us;
    }
    *earlier = record;
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_schema::record::{IntervalSample, Note, TcpSample};
    use std::{fs::OpenOptions, io::Write};

    fn tcp(time_us: i64, stream: u32) -> Record {
        Record::Tcp(TcpSample { time_us, stream, flow: "f".into(), ..TcpSample::default() })
    }

    fn interval(time_us: i64, bytes: u64) -> Record {
        let flow = "f".to_owned();
        Record::Interval(IntervalSample { time_us, bytes, duration_us: 10_000, flow, ..Default::default() })
    }

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn line(record: &Record) -> String {
        serde_json::to_string(record).unwrap() + "\n"
    }

    #[test]
    fn everything_is_told_once_and_a_line_that_is_still_written_when_it_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.jsonl");
        let files = [file.clone(), place.path().join("none.jsonl")];
        let mut recent = Recent::default();
        assert_eq!(recent.take(&files), []);
        let (first, second) = (line(&tcp(0, 0)), line(&tcp(EVERY_US, 0)));
        let (begun, rest) = second.split_at(20);
        append(&file, &(first + begun));
        assert_eq!(recent.take(&files), [tcp(0, 0)]);
        assert_eq!(recent.take(&files), []);
        append(&file, rest);
        assert_eq!(recent.take(&files), [tcp(EVERY_US, 0)]);
    }

    #[test]
    fn of_more_than_is_looked_through_the_last_whole_lines_are_told() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.jsonl");
        let note = line(&Record::Note(Note { message: "x".repeat(1000), ..Note::default() }));
        append(
            &file,
            &(line(&tcp(0, 0)) + &note.repeat(TAIL_BYTES as usize / note.len() + 1) + &line(&tcp(1, 0))),
        );
        let mut recent = Recent::default();
        assert_eq!(recent.take(std::slice::from_ref(&file)), [tcp(1, 0)]);
        assert_eq!(recent.take(&[file]), []);
    }

    #[test]
    fn states_are_thinned_to_the_last_and_intervals_keep_every_byte_and_microsecond() {
        let states = (0..EVERY_US * 2).step_by(10_000).map(|time_us| tcp(time_us, 0));
        assert_eq!(thin(states.collect()), [tcp(EVERY_US - 10_000, 0), tcp(EVERY_US * 2 - 10_000, 0)]);
        let rows = thin((0..20).map(|number| interval(number * 10_000, 7)).collect());
        let [Record::Interval(row)] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((row.bytes, row.duration_us, row.time_us), (140, 200_000, 190_000));
        assert_eq!(thin(vec![Record::Note(Note::default())]), []);
    }

    #[test]
    fn twice_as_many_series_are_told_half_as_often() {
        let count = |streams: u32| {
            let rows = (0..40).flat_map(|number| (0..streams).map(move |s| tcp(number * 25_000, s)));
            thin(rows.collect()).len()
        };
        assert_eq!((count(64), count(128)), (64 * 4, 128 * 2));
    }
}
