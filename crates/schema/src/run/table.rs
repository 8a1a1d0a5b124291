//! Parquet tables of records. Columns are derived from the record types by serde, so that a field stands once.

use crate::record;
use arrow_schema::FieldRef;
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    basic::{Compression, ZstdLevel},
    file::{metadata::KeyValue, properties::WriterProperties},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_arrow::schema::{SchemaLike, TracingOptions};
use std::{fs::File, marker::PhantomData, path::Path, sync::Arc};

/// Rows gathered before a row group is encoded.
const BATCH_ROWS: usize = 1 << 16;

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
}

/// Writes one table; rows are encoded in batches.
pub struct TableWriter<T: Table> {
    fields: Vec<FieldRef>,
    rows: Vec<T>,
    writer: ArrowWriter<File>,
    record: PhantomData<T>,
}

impl<T: Table> TableWriter<T> {
    /// Creates the file. An empty table is written too: readers need not guess.
    pub fn create(path: &Path) -> Result<TableWriter<T>, TableError> {
        let fields = Vec::<FieldRef>::from_type::<T>(TracingOptions::default())?;
        let schema = Arc::new(arrow_schema::Schema::new(fields.clone()));
        let writer = ArrowWriter::try_new(File::create(path)?, schema, Some(properties()))?;
        Ok(TableWriter { fields, rows: Vec::new(), writer, record: PhantomData })
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
        self.writer.close()?.file_metadata();
        Ok(())
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
pub fn read_rows(path: &Path) -> Result<Vec<serde_json::Value>, TableError> {
    rows(path)
}

/// Reads every row of a table.
pub fn read_table<T: Table>(path: &Path) -> Result<Vec<T>, TableError> {
    rows(path)
}

fn rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, TableError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.build()?;
    let mut rows = Vec::new();
    for batch in reader {
        rows.extend(serde_arrow::from_record_batch::<Vec<T>>(&batch?)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Note, TcpSample};

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
}
