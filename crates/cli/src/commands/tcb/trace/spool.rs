//! What a trace writes while it runs: records as the kernel wrote them (turning them into rows would take the processor
//! from the flows), and notes of what they do not say. Both are enough to make the tables of a trace that was killed.

use anyhow::{Context as _, bail};
use longfat_kernel::tcb::trace::{Event, Identity, RECORD_MAX_BYTES, decode, record_length};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs::{self, File, TryLockError},
    io::{self, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

const RECORDS: &str = "trace.spool";
const NOTES: &str = "trace.notes.jsonl";
/// Read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// One line of the notes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    Began { started_unix_ms: u64, start_us: i64 },
    Meant(Vec<u64>),
    Lost { at_us: i64, records: u64 },
    Ended { at_us: i64 },
}

/// What the notes of a trace say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Story {
    /// The wall clock at its beginning.
    pub started_unix_ms: u64,
    /// CLOCK_MONOTONIC then.
    pub start_us: i64,
    /// CLOCK_MONOTONIC at its end, or at the last note.
    pub end_us: i64,
    /// Records that found no room.
    pub lost: u64,
    /// Whether the recording came to its end: all of it is there.
    pub is_whole: bool,
    meant: HashSet<u64>,
}

/// Whether a directory holds what a trace left that was killed, or is being written.
pub fn is_in(directory: &Path) -> bool {
    directory.join(RECORDS).exists()
}

/// Being written. Locked, so that nobody takes it for one that was left.
pub struct Spool {
    records: BufWriter<File>,
    notes: File,
    directory: PathBuf,
}

impl Spool {
    /// Begins one.
    pub fn create(directory: &Path, started_unix_ms: u64, start_us: i64) -> anyhow::Result<Spool> {
        let make = |name: &str| {
            let path = directory.join(name);
            File::create(&path).with_context(|| format!("create {}", path.display()))
        };
        let records = make(RECORDS)?;
        records.lock().with_context(|| format!("lock {}", directory.join(RECORDS).display()))?;
        let records = BufWriter::with_capacity(CHUNK_BYTES, records);
        let mut spool = Spool { records, notes: make(NOTES)?, directory: directory.to_owned() };
        spool.note(&Note::Began { started_unix_ms, start_us })?;
        Ok(spool)
    }

    fn note(&mut self, note: &Note) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(note)?;
        line.push(b'\n');
        self.notes.write_all(&line).with_context(|| format!("write {}", self.directory.join(NOTES).display()))
    }

    /// Appends a record.
    pub fn push(&mut self, record: &[u8]) -> io::Result<()> {
        self.records.write_all(record)
    }

    /// Hands what was pushed to the kernel: what a killed process has written stays.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.records.flush().with_context(|| format!("write {}", self.directory.join(RECORDS).display()))
    }

    /// Notes connections whose records are wanted.
    pub fn note_meant(&mut self, cookies: Vec<u64>) -> anyhow::Result<()> {
        if cookies.is_empty() { Ok(()) } else { self.note(&Note::Meant(cookies)) }
    }

    /// Notes how many records were lost until now.
    pub fn note_lost(&mut self, at_us: i64, records: u64) -> anyhow::Result<()> {
        self.note(&Note::Lost { at_us, records })
    }

    /// Notes the end.
    pub fn end(&mut self, at_us: i64) -> anyhow::Result<()> {
        self.note(&Note::Ended { at_us })
    }
}

/// One that was written, by this process or by one that was killed.
pub struct Written {
    directory: PathBuf,
    /// What its notes say.
    pub story: Story,
    _locked: Option<File>,
}

impl Written {
    /// What a trace wrote which has just ended, and still holds its spool.
    pub fn of(spool: &Spool) -> anyhow::Result<Written> {
        Written::read(&spool.directory, None)
    }

    /// What a trace has left that was killed.
    pub fn left_in(directory: &Path) -> anyhow::Result<Written> {
        let path = directory.join(RECORDS);
        let file = File::open(&path).with_context(|| {
            format!(
                "{}: there are no records of a trace that was killed; give its -o directory",
                path.display()
            )
        })?;
        match file.try_lock() {
            Ok(()) => Written::read(directory, Some(file)),
            Err(TryLockError::WouldBlock) => {
                bail!("the trace that writes {} still runs; end it, and it makes its tables", path.display())
            }
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
        }
    }

    fn read(directory: &Path, locked: Option<File>) -> anyhow::Result<Written> {
        let path = directory.join(NOTES);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut story = Story::default();
        // The last line of a process that was killed may be cut.
        for note in text.lines().map_while(|line| serde_json::from_str(line).ok()) {
            story.take(note);
        }
        if story.start_us == 0 {
            bail!("{} does not say when its trace began; nothing can be made of its records", path.display());
        }
        Ok(Written { directory: directory.to_owned(), story, _locked: locked })
    }

    /// Calls `each` for every wanted record, in the order of their writing; the rest is never in memory at once.
    pub fn each(
        &self,
        mut each: impl FnMut(Event, Option<Identity>) -> Result<(), longfat_schema::run::RunError>,
    ) -> anyhow::Result<()> {
        let path = self.directory.join(RECORDS);
        let failed = || format!("read {}", path.display());
        let mut file = File::open(&path).with_context(failed)?;
        let (mut chunk, mut filled) = (vec![0; CHUNK_BYTES], 0);
        loop {
            let count = file.read(&mut chunk[filled..]).with_context(failed)?;
            filled += count;
            let mut at = 0;
            while let Some(length) = record_length(&chunk[at..filled]) {
                let record = decode(&chunk[at..at + length]);
                if let Some((event, identity)) =
                    record.filter(|(event, _)| self.story.meant.contains(&event.cookie))
                {
                    each(event, identity)?;
                }
                at += length;
            }
            chunk.copy_within(at..filled, 0);
            filled -= at;
            // The last record of a process that was killed may be cut.
            let cut = count == 0 && filled > 0 && self.story.is_whole;
            if cut || filled >= RECORD_MAX_BYTES {
                bail!("{} is damaged", path.display());
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Removes both files: the tables are made.
    pub fn remove(self) -> anyhow::Result<()> {
        for path in [RECORDS, NOTES].map(|name| self.directory.join(name)) {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }
}

impl Story {
    fn take(&mut self, note: Note) {
        match note {
            Note::Began { started_unix_ms, start_us } => {
                (self.started_unix_ms, self.start_us, self.end_us) = (started_unix_ms, start_us, start_us);
            }
            Note::Meant(cookies) => self.meant.extend(cookies),
            Note::Lost { at_us, records } => (self.end_us, self.lost) = (at_us, records),
            Note::Ended { at_us } => (self.end_us, self.is_whole) = (at_us, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ACK of a connection, as the kernel writes it.
    fn ack(cookie: u64) -> Vec<u8> {
        let mut bytes = vec![0; 72];
        bytes[8..16].copy_from_slice(&cookie.to_ne_bytes());
        bytes[16..20].copy_from_slice(&2u32.to_ne_bytes());
        bytes
    }

    fn cookies(written: &Written) -> anyhow::Result<Vec<u64>> {
        let mut found = Vec::new();
        written.each(|event, _| {
            found.push(event.cookie);
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn what_was_written_is_read_back_chunk_by_chunk_and_only_what_was_meant() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(directory.path(), 5, 1000).unwrap();
        // More than two chunks, whose ends cut records.
        let count = 2 * CHUNK_BYTES / 72 + 100;
        for number in 0..count {
            spool.push(&ack(number as u64 % 2)).unwrap();
        }
        spool.note_meant(vec![1]).unwrap();
        spool.note_lost(2000, 3).unwrap();
        spool.flush().unwrap();
        spool.end(3000).unwrap();
        let written = Written::of(&spool).unwrap();
        assert_eq!((written.story.lost, written.story.end_us, written.story.is_whole), (3, 3000, true));
        assert_eq!(cookies(&written).unwrap(), vec![1; count / 2]);
        written.remove().unwrap();
        assert!(!is_in(directory.path()));
    }

    #[test]
    fn one_that_is_being_written_is_not_taken_and_one_that_was_left_is_up_to_its_last_whole_record() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(directory.path(), 5, 1000).unwrap();
        spool.note_meant(vec![7]).unwrap();
        spool.push(&ack(7)).unwrap();
        spool.push(&ack(7)[..50]).unwrap();
        spool.flush().unwrap();
        let refused = Written::left_in(directory.path()).err().unwrap().to_string();
        assert!(refused.contains("still runs"), "{refused}");
        drop(spool);
        let written = Written::left_in(directory.path()).unwrap();
        assert!(!written.story.is_whole);
        assert_eq!(cookies(&written).unwrap(), [7]);
    }

    #[test]
    fn bytes_that_are_no_records_are_called_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(directory.path(), 5, 1000).unwrap();
        spool.push(&[0xff; 4000]).unwrap();
        spool.flush().unwrap();
        drop(spool);
        let written = Written::left_in(directory.path()).unwrap();
        assert!(cookies(&written).unwrap_err().to_string().contains("damaged"));
    }
}
