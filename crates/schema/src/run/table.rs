//! Parquet tables of records. Columns are derived from the record types by serde, so that a field stands once.

use super::{
    bounded::{Bounded, caught},
    directory::{create_new, unfinished},
};
use crate::{record, regular};
use arrow_array::{RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use parquet::{
    arrow::{
        ArrowWriter,
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder},
    },
    basic::{Compression, ZstdLevel},
    file::{metadata::KeyValue, properties::WriterProperties},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_arrow::schema::{SchemaLike, TracingOptions};
use std::{
    fs::{self, File},
    marker::PhantomData,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Rows gathered before a row group is encoded.
const BATCH_ROWS: usize = 1 << 16;
/// Rows that are decoded at once.
const READ_ROWS: usize = 1 << 12;
/// A table's rows may take so many times the length of its file in memory, and [`ROWS_BYTES_MIN`] in any case: in a
/// table of a stranger, a few octets may stand for any number of rows. Tables of runs take 35 times (`tcp`) to 75 times
/// (`interval`) their files.
const ROWS_BYTES_PER_BYTE: u64 = 500;
/// Bytes of rows that every table may take in memory.
const ROWS_BYTES_MIN: u64 = 256 << 20;
/// About what a value takes in a row of JSON: its name, and itself.
const JSON_VALUE_BYTES: usize = 128;

/// A record type that has a table of its own.
pub trait Table: Serialize + DeserializeOwned {
    /// File name without `.parquet`.
    const NAME: &'static str;
}

macro_rules! tables {
    ($($(#[$doc:meta])+ $variant:ident $field:ident: $row:ident, $(time $time:ident,)? by $($key:ident)+;)+) => {
        $(impl Table for record::$row { const NAME: &'static str = stringify!($field); })+
    };
}
record::every_record!(tables);

/// Why a table could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Fault of the Parquet file.
    #[error("not a readable Parquet table: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// Fault of the Arrow batches.
    #[error("not a readable Parquet table: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// Fault of the columns.
    #[error("columns do not fit the record: {0}")]
    Columns(#[from] serde_arrow::Error),
    /// A column of lists or structures, which no record has.
    #[error("column '{0}' holds {1}; a record's columns hold numbers and text")]
    Nested(String, DataType),
    /// Pages that are no pages.
    #[error("not a readable Parquet table: {0}")]
    Damaged(String),
    /// Rows that would take all memory.
    #[error(
        "its rows take more than {most_bytes} bytes in memory, {ROWS_BYTES_PER_BYTE} times its file, and are not read"
    )]
    TooLarge {
        /// As many are taken.
        most_bytes: u64,
    },
}

/// Writes one table; rows are encoded in batches. It has another name until it is whole.
pub struct TableWriter<T: Table> {
    path: PathBuf,
    fields: Vec<FieldRef>,
    rows: Vec<T>,
    writer: ArrowWriter<File>,
    record: PhantomData<T>,
}

impl<T: Table> TableWriter<T> {
    /// Begins the table, which stands at `path` once it is finished. An empty one is written too: readers need not
    /// guess.
    pub fn create(path: &Path) -> Result<TableWriter<T>, TableError> {
        let fields = Vec::<FieldRef>::from_type::<T>(TracingOptions::default())?;
        let schema = Arc::new(Schema::new(fields.clone()));
        let writer = ArrowWriter::try_new(create_new(&unfinished(path))?, schema, Some(properties()))?;
        Ok(TableWriter { path: path.to_owned(), fields, rows: Vec::new(), writer, record: PhantomData })
    }

    /// Appends one row.
    pub fn push(&mut self, row: T) -> Result<(), TableError> {
        self.rows.push(row);
        if self.rows.len() < BATCH_ROWS { Ok(()) } else { self.write_batch() }
    }

    fn write_batch(&mut self) -> Result<(), TableError> {
        if !self.rows.is_empty() {
            self.writer.write(&serde_arrow::to_record_batch(&self.fields, &self.rows)?)?;
            self.rows.clear();
        }
        Ok(())
    }

    /// Writes what is left and the footer.
    pub fn finish(mut self) -> Result<(), TableError> {
        self.write_batch()?;
        self.writer.close()?;
        Ok(fs::rename(unfinished(&self.path), &self.path)?)
    }
}

pub(super) fn properties() -> WriterProperties {
    let version = KeyValue::new("longfat.schema_version".to_owned(), crate::SCHEMA_VERSION.to_string());
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_key_value_metadata(Some(vec![version]))
        .build()
}

/// Reads every row of any table, column by column as JSON: to name what differs between two.
///
/// # Errors
/// It is no table of numbers and text, or its rows are out of proportion to its file.
pub fn read_rows(path: &Path) -> Result<Vec<serde_json::Value>, TableError> {
    rows(path, |columns| columns * JSON_VALUE_BYTES)
}

/// Reads every row of a table.
///
/// # Errors
/// It is no such table, or its rows are out of proportion to its file.
pub fn read_table<T: Table>(path: &Path) -> Result<Vec<T>, TableError> {
    rows(path, |_| size_of::<T>())
}

fn rows<T: DeserializeOwned>(path: &Path, row_bytes: impl Fn(usize) -> usize) -> Result<Vec<T>, TableError> {
    caught(|| rows_of(regular::open(path)?, row_bytes)).unwrap_or_else(|why| Err(TableError::Damaged(why)))
}

fn rows_of<T: DeserializeOwned>(
    file: File,
    row_bytes: impl Fn(usize) -> usize,
) -> Result<Vec<T>, TableError> {
    let most_bytes = (file.metadata()?.len() * ROWS_BYTES_PER_BYTE).max(ROWS_BYTES_MIN);
    let found = ArrowReaderMetadata::load(&file, ArrowReaderOptions::default())?;
    let options = ArrowReaderOptions::default().with_schema(with_text_as_views(found.schema())?);
    let metadata = ArrowReaderMetadata::try_new(Arc::clone(found.metadata()), options)?;
    let row_bytes = row_bytes(metadata.schema().fields().len()).max(1);
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(Bounded(file), metadata);
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for batch in builder.with_batch_size(READ_ROWS).build()? {
        let batch = batch?;
        bytes += text_bytes(&batch) + (batch.num_rows() * row_bytes) as u64;
        if bytes > most_bytes {
            return Err(TableError::TooLarge { most_bytes });
        }
        rows.extend(serde_arrow::from_record_batch::<Vec<T>>(&batch)?);
    }
    Ok(rows)
}

/// The columns, but text by reference to where it was decoded: a word of megabytes that every row repeats is there once
/// until it is known how long all rows are together.
fn with_text_as_views(schema: &Schema) -> Result<SchemaRef, TableError> {
    let read_as = |field: &FieldRef| match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            Ok(Field::clone(field).with_data_type(DataType::Utf8View))
        }
        flat if flat.is_numeric() || *flat == DataType::Boolean => Ok(Field::clone(field)),
        other => Err(TableError::Nested(field.name().clone(), other.clone())),
    };
    let fields = schema.fields().iter().map(read_as).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

/// Length of all text in these rows.
fn text_bytes(batch: &RecordBatch) -> u64 {
    let text = batch.columns().iter().filter_map(|column| column.as_string_view_opt());
    text.flat_map(|column| column.lengths()).map(u64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Note, TcpSample};
    use arrow_array::{ArrayRef, ListArray, StringArray, types::Int32Type};

    fn round_trip<T: Table>(rows: Vec<T>) -> Vec<T> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TableWriter::create(file.path()).unwrap();
        rows.into_iter().for_each(|row| writer.push(row).unwrap());
        writer.finish().unwrap();
        read_table(file.path()).unwrap()
    }

    #[test]
    fn rows_written_are_rows_read_with_absent_values_kept_absent() {
        let row = |i: u32| TcpSample {
            time_us: -5 + i64::from(i),
            ssthresh_segments: i.is_multiple_of(2).then_some(i),
            pacing_rate_bps: Some(u64::MAX),
            ..TcpSample::default()
        };
        let rows: Vec<_> = (0..BATCH_ROWS as u32 + 3).map(row).collect();
        assert_eq!(round_trip(rows.clone()), rows);
    }

    #[test]
    fn an_empty_table_reads_as_empty() {
        assert_eq!(round_trip::<Note>(Vec::new()), []);
    }

    #[test]
    fn what_is_no_table_is_named_as_such() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"PAR1 rubbish").unwrap();
        assert!(read_table::<Note>(file.path()).unwrap_err().to_string().contains("Parquet"));
    }

    /// A table of rows that are all alike, as a stranger may write it: short, whatever they come to.
    fn alike<T: Table>(row: &T, count: usize) -> tempfile::NamedTempFile {
        let fields = Vec::<FieldRef>::from_type::<T>(TracingOptions::default()).unwrap();
        let rows = serde_arrow::to_record_batch(&fields, &vec![row; READ_ROWS]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer =
            ArrowWriter::try_new(file.reopen().unwrap(), rows.schema(), Some(properties())).unwrap();
        (0..count / READ_ROWS).for_each(|_| writer.write(&rows).unwrap());
        writer.close().unwrap();
        file
    }

    #[test]
    fn a_short_table_that_would_take_all_memory_is_refused_while_it_is_read() {
        let file = alike(&TcpSample { role: "sender".into(), ..TcpSample::default() }, 1 << 20);
        assert!(file.as_file().metadata().unwrap().len() < 1 << 20);
        for error in [read_table::<TcpSample>(file.path()).unwrap_err(), read_rows(file.path()).unwrap_err()]
        {
            assert!(matches!(error, TableError::TooLarge { most_bytes: ROWS_BYTES_MIN }), "{error}");
        }
    }

    #[test]
    fn long_words_that_every_row_repeats_are_counted_before_they_are_copied() {
        let message = "x".repeat(1 << 13);
        let file = alike(&Note { message, ..Note::default() }, BATCH_ROWS);
        let error = read_table::<Note>(file.path()).unwrap_err();
        assert!(matches!(error, TableError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn columns_of_lists_are_refused_by_their_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)])]));
        let word: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        let batch = RecordBatch::try_from_iter([("word", word), ("list", list)]).unwrap();
        let mut writer = ArrowWriter::try_new(file.reopen().unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        assert!(read_rows(file.path()).unwrap_err().to_string().contains("column 'list'"));
    }

    #[test]
    fn whatever_octets_are_damaged_no_table_makes_its_reader_panic() {
        let row =
            |i: u32| TcpSample { time_us: i.into(), flow: format!("flow{}", i % 7), ..TcpSample::default() };
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TableWriter::create(file.path()).unwrap();
        (0..500).for_each(|i| writer.push(row(i)).unwrap());
        writer.finish().unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        let mut faults = 0;
        for (at, mask) in (0..whole.len()).step_by(29).flat_map(|at| [(at, 0xff), (at, 1)]) {
            let mut damaged = whole.clone();
            damaged[at] ^= mask;
            std::fs::write(file.path(), damaged).unwrap();
            faults += usize::from(read_table::<TcpSample>(file.path()).is_err());
        }
        assert!(faults > whole.len() / 58, "{faults} of {}", whole.len());
    }
}
