//! Recorded links: what a path could carry, or was, over time.
//!
//! - [`opportunities`]: mahimahi's packet-delivery files: when the path could have delivered a packet.
//! - [`table`]: rows of time, rate, delay and loss, as CSV or Parquet.
//! - [`import`]: rows from what iperf3 and ping print, with what these cannot know.
//!
//! Readers take bytes of strangers: sizes are bounded, and what is wrong is named with its line, its value and the
//! mend.

pub mod import;
pub mod opportunities;
#[cfg(feature = "parquet")]
mod parquet;
pub mod table;

pub use opportunities::{Moment, Opportunities};
pub use table::Row;

use longfat_schema::text::one_line;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Longest file.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// More than is taken.
    #[error("holds more than {most} {what}; cut it, or thin it out")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// How much is taken.
        most: u64,
    },
    /// A line, or a row of a table, is not what it should be.
    #[error("line {line}: '{value}' {why}; {mend}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What stands there.
        value: String,
        /// What is wrong with it.
        why: String,
        /// What to write instead.
        mend: String,
    },
    /// The whole is not what it should be.
    #[error("{0}")]
    Whole(String),
}

/// Longest piece of a stranger's file that a message repeats.
const SHOWN_CHARS: usize = 40;

impl TraceError {
    fn line(line: usize, value: &str, why: impl Into<String>, mend: impl Into<String>) -> TraceError {
        let value = one_line(&value.chars().take(SHOWN_CHARS).collect::<String>()).into_owned();
        TraceError::Line { line, value, why: why.into(), mend: mend.into() }
    }
}

/// A recorded link.
#[derive(Debug, Clone, PartialEq)]
pub enum Trace {
    /// When a packet could be delivered.
    Opportunities(Opportunities),
    /// Rate, delay and loss from each row's time to the next row's.
    Rows(Vec<Row>),
}

impl Trace {
    /// Reads a file: a table where its name ends in `.csv` or `.parquet`, else one delivery opportunity a line.
    ///
    /// # Errors
    /// It cannot be read, is too large, or is no trace.
    pub fn open(path: &Path) -> Result<Trace, TraceError> {
        let bytes = read_bounded(path)?;
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "csv" => Ok(Trace::Rows(table::read_csv(&bytes)?)),
            #[cfg(feature = "parquet")]
            "parquet" => Ok(Trace::Rows(parquet::read(bytes)?)),
            #[cfg(not(feature = "parquet"))]
            "parquet" => Err(TraceError::Whole("this build reads no Parquet; write it as CSV".to_owned())),
            _ => Ok(Trace::Opportunities(Opportunities::read(&bytes)?)),
        }
    }
}

/// A Parquet file's rows, from its bytes.
///
/// # Errors
/// It is damaged, too large, or lacks columns.
#[cfg(feature = "parquet")]
pub fn read_parquet(bytes: Vec<u8>) -> Result<Vec<Row>, TraceError> {
    parquet::read(bytes)
}

/// A file's bytes, if it is a regular one and not too long.
///
/// # Errors
/// It is neither.
pub fn read_bounded(path: &Path) -> Result<Vec<u8>, TraceError> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(TraceError::Whole("is no regular file; name one".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(TraceError::TooMuch { what: "bytes", most: FILE_BYTES_MAX });
    }
    Ok(bytes)
}

/// The trace that a link follows, as a person names it: a file, or `{ file = "…", once = true }`.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSpec {
    /// Where it is, relative to the file that names it.
    pub file: PathBuf,
    /// Gone through once, not again and again: then a table's last row holds, and opportunities are over.
    pub once: bool,
    /// What it holds, once it was read.
    pub trace: Option<Arc<Trace>>,
}

impl TraceSpec {
    /// A trace whose file is still to be read.
    pub fn of(file: impl Into<PathBuf>) -> TraceSpec {
        TraceSpec { file: file.into(), once: false, trace: None }
    }
}

#[derive(Deserialize, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "trace must be a file name, or { file = \"lte.csv\", once = true }")]
enum Written {
    File(PathBuf),
    Table(WrittenTable),
}

#[derive(Deserialize, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenTable {
    /// Where it is, relative to this file.
    file: PathBuf,
    /// Gone through once, not again and again; default no.
    #[serde(default)]
    once: bool,
}

impl<'de> Deserialize<'de> for TraceSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::File(file) => TraceSpec::of(file),
            Written::Table(WrittenTable { file, once }) => TraceSpec { file, once, trace: None },
        })
    }
}

impl Serialize for TraceSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WrittenTable { file: self.file.clone(), once: self.once }.serialize(serializer)
    }
}

#[cfg(feature = "json-schema")]
impl schemars::JsonSchema for TraceSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TraceSpec".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Written::json_schema(generator)
    }
}

#[cfg(test)]
mod tests;
