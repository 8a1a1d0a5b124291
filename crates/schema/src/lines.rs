//! Samples files: one [`Record`] per line of JSON, written by many threads of one program, read by the lab.

use crate::{record::Record, regular};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long a record waits at most for more to be written with it: somebody may be looking on.
const WRITE_WITHIN: Duration = Duration::from_secs(1);

/// Where a program writes its records. Clones share the file; without a file, records are thrown away.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    file: Option<Arc<Mutex<Buffered>>>,
}

#[derive(Debug)]
struct Buffered {
    file: BufWriter<File>,
    written: Instant,
}

impl Lines {
    /// Creates (or truncates) the file.
    pub fn create(path: &Path) -> io::Result<Lines> {
        let file = BufWriter::with_capacity(1 << 16, File::create(path)?);
        let buffered = Buffered { file, written: Instant::now() };
        Ok(Lines { file: Some(Arc::new(Mutex::new(buffered))) })
    }

    /// Whether anything is kept: callers may skip gathering what nobody reads.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Appends one record. An error (a full disk) is the caller's to report.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let mut buffered = file.lock().unwrap_or_else(PoisonError::into_inner);
        buffered.file.write_all(&line)?;
        if buffered.written.elapsed() < WRITE_WITHIN {
            return Ok(());
        }
        buffered.written = Instant::now();
        buffered.file.flush()
    }

    /// Hands what is buffered to the kernel. Call it before the program ends: a drop cannot report an error.
    pub fn flush(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.lock().unwrap_or_else(PoisonError::into_inner).file.flush()
    }
}

/// Why a samples file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    /// The file could not be read.
    #[error("samples file '{path}': {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A line is no record.
    #[error("samples file '{path}', line {line}: {source}")]
    Record {
        /// Which file.
        path: String,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Calls `each` for every record of a samples file, in order. A last line cut off in the middle (its writer was
/// killed) is passed over; any other damage is an error.
pub fn read(path: &Path, each: impl FnMut(Record)) -> Result<(), LinesError> {
    read_last(path, u64::MAX, each)
}

/// Reads the records of the whole lines among the last `bytes` of a file.
pub fn read_last(path: &Path, bytes: u64, mut each: impl FnMut(Record)) -> Result<(), LinesError> {
    let name = || path.display().to_string();
    let mut reader = open_last(path, bytes).map_err(|source| LinesError::Io { path: name(), source })?;
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let length =
            reader.read_until(b'\n', &mut text).map_err(|source| LinesError::Io { path: name(), source })?;
        if length == 0 {
            break;
        }
        match serde_json::from_slice(&text) {
            Ok(record) => each(record),
            Err(_) if !text.ends_with(b"\n") => break,
            Err(source) => return Err(LinesError::Record { path: name(), line, source }),
        }
    }
    Ok(())
}

/// A file from the first line that begins within its last `bytes`.
fn open_last(path: &Path, bytes: u64) -> io::Result<BufReader<File>> {
    let mut file = regular::open(path)?;
    let skipped = file.metadata()?.len().saturating_sub(bytes);
    // From the byte before: a line may begin exactly there.
    file.seek(SeekFrom::Start(skipped.saturating_sub(1)))?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    if skipped > 0 {
        reader.skip_until(b'\n')?;
    }
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Note;

    fn note(message: &str) -> Record {
        Record::Note(Note { message: message.into(), ..Note::default() })
    }

    #[test]
    fn records_written_are_read_back_in_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = Lines::create(file.path()).unwrap();
        lines.write(&note("a")).unwrap();
        lines.clone().write(&note("b")).unwrap();
        lines.flush().unwrap();
        let mut found = Vec::new();
        read(file.path(), |record| found.push(record)).unwrap();
        assert_eq!(found, [note("a"), note("b")]);
    }

    #[test]
    fn a_cut_last_line_is_passed_over_but_damage_inside_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let whole = serde_json::to_string(&note("a")).unwrap();
        std::fs::write(file.path(), format!("{whole}\n{{\"type\":\"no")).unwrap();
        let mut count = 0;
        read(file.path(), |_| count += 1).unwrap();
        assert_eq!(count, 1);
        std::fs::write(file.path(), format!("{whole}\nrubbish\n{whole}\n")).unwrap();
        let message = read(file.path(), |_| {}).unwrap_err().to_string();
        assert!(message.contains("line 2"), "{message}");
    }

    #[test]
    fn nobody_waits_at_a_pipe_in_the_place_of_samples() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("sender.jsonl");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let message = read(&pipe, |_| {}).unwrap_err().to_string();
        assert!(message.contains("sender.jsonl': is no regular file"), "{message}");
    }

    #[test]
    fn of_the_last_bytes_only_whole_lines_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |message: &str| format!("{}\n", serde_json::to_string(&note(message)).unwrap());
        std::fs::write(file.path(), line("a") + &line("b") + &line("c")).unwrap();
        let last = |bytes: usize| {
            let mut found = Vec::new();
            read_last(file.path(), bytes as u64, |record| found.push(record)).unwrap();
            found.len()
        };
        let one = line("a").len();
        let counts = [last(0), last(one - 1), last(one), last(one + 1), last(2 * one), last(9 * one)];
        assert_eq!(counts, [0, 0, 1, 1, 2, 3]);
    }
}
