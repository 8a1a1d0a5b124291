//! Numbers of a stranger's Parquet table, whatever their types.

use super::bounded::{Bounded, caught};
use arrow::{
    array::{Array, AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType, Float64Type},
};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

/// Rows of numbers; absent where the table has none, or no number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers {
    /// The columns' names, in order.
    pub names: Vec<String>,
    /// As many values in each as there are columns.
    pub rows: Vec<Vec<Option<f64>>>,
}

/// Why a table's numbers could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NumbersError {
    /// More rows than are taken.
    #[error("holds more than {0} rows")]
    TooMany(usize),
    /// More columns than numbers are in.
    #[error("holds {0} columns, more than {COLUMNS_MAX}")]
    TooWide(usize),
    /// The library cannot make sense of it.
    #[error("not a readable Parquet table: {0} (pages may be plain, or compressed by zstd)")]
    Damaged(String),
}

/// Most columns.
const COLUMNS_MAX: usize = 64;
/// Rows that are in memory in the table's own form.
const BATCH_ROWS: usize = 1 << 12;

/// Reads every column of a table, as numbers.
///
/// # Errors
/// It is damaged, or larger than that.
pub fn read_numbers(bytes: Vec<u8>, rows_max: usize) -> Result<Numbers, NumbersError> {
    caught(|| read(Bytes::from(bytes), rows_max)).unwrap_or_else(|why| Err(NumbersError::Damaged(why)))
}

fn damaged(error: &dyn std::fmt::Display) -> NumbersError {
    NumbersError::Damaged(error.to_string())
}

fn read(bytes: Bytes, rows_max: usize) -> Result<Numbers, NumbersError> {
    let builder =
        ParquetRecordBatchReaderBuilder::try_new(Bounded(bytes)).map_err(|error| damaged(&error))?;
    let names: Vec<String> = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
    if names.len() > COLUMNS_MAX {
        return Err(NumbersError::TooWide(names.len()));
    }
    if usize::try_from(builder.metadata().file_metadata().num_rows()).map_or(true, |rows| rows > rows_max) {
        return Err(NumbersError::TooMany(rows_max));
    }
    let reader: ParquetRecordBatchReader =
        builder.with_batch_size(BATCH_ROWS).build().map_err(|error| damaged(&error))?;
    let mut numbers = Numbers { names, rows: Vec::new() };
    for batch in reader {
        append(&batch.map_err(|error| damaged(&error))?, &mut numbers.rows)?;
        if numbers.rows.len() > rows_max {
            return Err(NumbersError::TooMany(rows_max));
        }
    }
    Ok(numbers)
}

fn append(batch: &RecordBatch, rows: &mut Vec<Vec<Option<f64>>>) -> Result<(), NumbersError> {
    let as_numbers = batch.columns().iter().map(|column| cast(column, &DataType::Float64));
    let columns = as_numbers.collect::<Result<Vec<_>, _>>().map_err(|error| damaged(&error))?;
    let columns: Vec<_> = columns.iter().map(|column| column.as_primitive::<Float64Type>()).collect();
    rows.extend(
        (0..batch.num_rows()).map(|row| {
            columns.iter().map(|column| column.is_valid(row).then(|| column.value(row))).collect()
        }),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::EchoSample,
        run::{Table, TableWriter},
    };
    use proptest::prelude::*;

    fn table<T: Table>(rows: Vec<T>) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TableWriter::create(file.path()).unwrap();
        rows.into_iter().for_each(|row| writer.push(row).unwrap());
        writer.finish().unwrap();
        std::fs::read(file.path()).unwrap()
    }

    fn echoes(count: usize) -> Vec<u8> {
        table((0..count).map(|n| EchoSample { time_us: n as i64, ..EchoSample::default() }).collect())
    }

    #[test]
    fn numbers_of_any_type_are_read_and_words_are_none() {
        let numbers = read_numbers(echoes(3), 3).unwrap();
        let column = |name: &str| numbers.names.iter().position(|other| other == name).unwrap();
        let times: Vec<_> = numbers.rows.iter().map(|row| row[column("time_us")]).collect();
        assert_eq!(times, [Some(0.0), Some(1.0), Some(2.0)]);
        assert_eq!(numbers.rows[0][column("flow")], None, "a word");
    }

    #[test]
    fn a_table_that_is_too_long_and_what_is_none_are_refused() {
        assert!(matches!(read_numbers(echoes(4), 3), Err(NumbersError::TooMany(3))));
        assert!(matches!(read_numbers(b"PAR1 and so on".to_vec(), 3), Err(NumbersError::Damaged(_))));
        assert!(matches!(read_numbers(Vec::new(), 3), Err(NumbersError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn a_damaged_table_is_read_or_refused(at in 0usize..1500, byte in any::<u8>(), cut in 0usize..1500) {
            let mut bytes = echoes(40);
            let (at, cut) = (at % bytes.len(), cut % bytes.len());
            bytes[at] = byte;
            let _ = read_numbers(bytes.clone(), 100);
            bytes.truncate(cut);
            let _ = read_numbers(bytes, 100);
        }
    }
}
