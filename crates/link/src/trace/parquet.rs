//! A trace as a Parquet table of numbers.

use super::{
    Row, TraceError,
    table::{Columns, ROWS_MAX, Rows},
};
use longfat_schema::run::{NumbersError, read_numbers};

pub(super) fn read(bytes: Vec<u8>) -> Result<Vec<Row>, TraceError> {
    let numbers = read_numbers(bytes, ROWS_MAX).map_err(|error| match error {
        NumbersError::TooMany(_) => TraceError::TooMuch { what: "rows", most: ROWS_MAX as u64 },
        other => TraceError::Whole(other.to_string()),
    })?;
    let names: Vec<&str> = numbers.names.iter().map(String::as_str).collect();
    let mut rows = Rows::new(Columns::named(&names)?);
    for (line, values) in (1..).zip(&numbers.rows) {
        let shown: Vec<String> =
            values.iter().map(|value| value.map_or_else(String::new, |v| v.to_string())).collect();
        rows.push(line, values.iter().copied().zip(shown.iter().map(String::as_str)))?;
    }
    rows.whole()
}
