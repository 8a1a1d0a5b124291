//! Numbers of a stranger's Parquet table, whatever their types.

use super::bounded::{Bounded, caught};
use arrow_array::{
    Array, ArrayRef, RecordBatch,
    array::AnyDictionaryArray,
    cast::AsArray,
    downcast_integer_array, downcast_temporal_array,
    types::{ArrowPrimitiveType, Decimal128Type, Float16Type, Float32Type, Float64Type},
};
use arrow_schema::DataType;
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
        append(&batch.map_err(|error| damaged(&error))?, &mut numbers.rows);
        if numbers.rows.len() > rows_max {
            return Err(NumbersError::TooMany(rows_max));
        }
    }
    Ok(numbers)
}

fn append(batch: &RecordBatch, rows: &mut Vec<Vec<Option<f64>>>) {
    let columns: Vec<_> = batch.columns().iter().map(values).collect();
    rows.extend((0..batch.num_rows()).map(|row| columns.iter().map(|column| column[row]).collect()));
}

/// A column's values as numbers: times as their counts, text by what it says. Absent where there is none.
fn values(column: &ArrayRef) -> Vec<Option<f64>> {
    let column = column.as_ref();
    downcast_integer_array!(
        column => column.iter().map(|value| value.map(|value| value as f64)).collect(),
        DataType::Float16 => primitives::<Float16Type>(column, f64::from),
        DataType::Float32 => primitives::<Float32Type>(column, f64::from),
        DataType::Float64 => primitives::<Float64Type>(column, f64::from),
        DataType::Decimal128(_, scale) => {
            let unit = 10f64.powi(i32::from(*scale));
            primitives::<Decimal128Type>(column, |value| value as f64 / unit)
        }
        DataType::Boolean => column.as_boolean().iter().map(|value| value.map(|value| f64::from(u8::from(value)))).collect(),
        DataType::Utf8 => words(column.as_string::<i32>().iter()),
        DataType::LargeUtf8 => words(column.as_string::<i64>().iter()),
        DataType::Utf8View => words(column.as_string_view().iter()),
        DataType::Dictionary(..) => looked_up(column.as_any_dictionary()),
        _ => times(column),
    )
}

fn primitives<T: ArrowPrimitiveType>(
    column: &dyn Array,
    as_number: impl Fn(T::Native) -> f64,
) -> Vec<Option<f64>> {
    column.as_primitive::<T>().iter().map(|value| value.map(&as_number)).collect()
}

fn words<'a>(column: impl Iterator<Item = Option<&'a str>>) -> Vec<Option<f64>> {
    column.map(|word| word?.trim().parse().ok()).collect()
}

fn looked_up(column: &dyn AnyDictionaryArray) -> Vec<Option<f64>> {
    let entries = values(column.values());
    let keys = column.keys();
    let keys = downcast_integer_array!(
        keys => keys.iter().map(|key| key.and_then(|key| usize::try_from(i128::from(key)).ok())).collect::<Vec<_>>(),
        _ => vec![None; keys.len()],
    );
    keys.into_iter().map(|key| *entries.get(key?)?).collect()
}

fn times(column: &dyn Array) -> Vec<Option<f64>> {
    downcast_temporal_array!(
        column => column.iter().map(|value| value.map(|value| value as f64)).collect(),
        _ => vec![None; column.len()],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::EchoSample,
        run::{Table, TableWriter},
    };
    use arrow_array::{
        BooleanArray, Decimal128Array, DictionaryArray, ListArray, StringArray, TimestampMicrosecondArray,
        types::Int32Type,
    };
    use proptest::prelude::*;
    use std::sync::Arc;

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
    fn text_times_decimals_and_dictionaries_are_numbers_too_and_lists_are_none() {
        let times = TimestampMicrosecondArray::from(vec![Some(7), None]);
        let texts: StringArray = [Some(" 2.5"), Some("slow")].into_iter().collect();
        let looked_up: DictionaryArray<Int32Type> = [Some("40"), None].into_iter().collect();
        let decimals = Decimal128Array::from(vec![1_250, -5]).with_precision_and_scale(10, 2).unwrap();
        let flags = BooleanArray::from(vec![true, false]);
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)]), None]);
        let columns: [(&str, ArrayRef); 6] = [
            ("times", Arc::new(times)),
            ("texts", Arc::new(texts)),
            ("looked_up", Arc::new(looked_up)),
            ("decimals", Arc::new(decimals)),
            ("flags", Arc::new(flags)),
            ("lists", Arc::new(lists)),
        ];
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
                .unwrap();
        let mut rows = Vec::new();
        append(&batch, &mut rows);
        assert_eq!(rows[0], [Some(7.0), Some(2.5), Some(40.0), Some(12.5), Some(1.0), None]);
        assert_eq!(rows[1], [None, None, None, Some(-0.05), Some(0.0), None]);
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
