//! Samples files: one [`Record`] per line of JSON, written by many threads of one program, read by the lab.

use crate::record::Record;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Where a program writes its records. Clones share the file; without a file, records are thrown away.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    file: Option<Arc<Mutex<BufWriter<File>>>>,
}

impl Lines {
    /// Creates (or truncates) the file.
    pub fn create(path: &Path) -> io::Result<Lines> {
        let file = BufWriter::with_capacity(1 << 16, File::create(path)?);
        Ok(Lines { file: Some(Arc::new(Mutex::new(file))) })
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
        file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }

    /// Hands what is buffered to the kernel. Call it before the program ends: a drop cannot report an error.
    pub fn flush(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.lock().unwrap_or_else(PoisonError::into_inner).flush()
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
pub fn read(path: &Path, mut each: impl FnMut(Record)) -> Result<(), LinesError> {
    let name = || path.display().to_string();
    let file = File::open(path).map_err(|source| LinesError::Io { path: name(), source })?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
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
}
