//! A table in, segments out: row group by row group, so that one that is damaged does not take the others with it.

use super::{ABOUT, About, row::Columns};
use crate::{
    capture::{Damage, InterfaceStatistics, reader::CaptureError},
    decode::Decoded,
    segment::Segment,
    segments::Segments,
};
use arrow_array::RecordBatch;
use longfat_schema::run::{Bounded, Kind, caught, parse_versioned};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use std::{fs::File, io};

/// Rows that are in memory at once.
const BATCH_ROWS: usize = 1 << 13;
/// Places of damage that are told of one by one; more are only counted.
const MAX_DAMAGES: usize = 100;

/// Whether a file begins as this form does.
pub fn recognises(beginning: &[u8]) -> bool {
    beginning.starts_with(b"PAR1")
}

/// The next rows.
fn decoded(batches: &mut ParquetRecordBatchReader) -> Result<Option<RecordBatch>, String> {
    caught(|| batches.next())?.transpose().map_err(|error| error.to_string())
}

/// Reads a capture in columns.
pub struct ColumnsReader {
    file: File,
    name: String,
    metadata: ArrowReaderMetadata,
    about: About,
    /// The row group to be read next.
    group: usize,
    batches: Option<ParquetRecordBatchReader>,
    columns: Option<Columns>,
    /// The row to be read next.
    at: usize,
    damages: Vec<Damage>,
    damage_count: u64,
}

impl ColumnsReader {
    /// Reads what stands at the end; `name` is the name used in messages.
    ///
    /// # Errors
    /// When the file is no such table, or its end is missing.
    pub fn new(file: File, name: &str) -> Result<ColumnsReader, CaptureError> {
        let refused = |what: String| CaptureError::Columns { file: name.to_owned(), what };
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::default()).map_err(|error| {
            refused(format!("{error}; a capture that was not ended in order has no index"))
        })?;
        let values = metadata.metadata().file_metadata().key_value_metadata();
        let about =
            values.into_iter().flatten().find(|pair| pair.key == ABOUT).and_then(|pair| pair.value.clone());
        let about = about.ok_or_else(|| refused("this table is not a capture".to_owned()))?;
        let (about, _): (About, _) = parse_versioned(about.as_bytes(), ABOUT, Kind::Capture)
            .map_err(|error| refused(error.to_string()))?;
        Ok(ColumnsReader {
            file,
            name: name.to_owned(),
            metadata,
            about,
            group: 0,
            batches: None,
            columns: None,
            at: 0,
            damages: Vec::new(),
            damage_count: 0,
        })
    }

    /// Makes sure that there is a row to be read, unless there is none.
    fn find_row(&mut self) -> Result<bool, CaptureError> {
        while self.columns.as_ref().is_none_or(|columns| self.at >= columns.rows) {
            (self.columns, self.at) = (None, 0);
            let Some(batches) = &mut self.batches else {
                if self.group == self.metadata.metadata().num_row_groups() {
                    return Ok(false);
                }
                self.begin_group()?;
                continue;
            };
            let batch = decoded(batches)
                .and_then(|batch| batch.map(|batch| Columns::of(&batch, self.about.origin.link)).transpose());
            match batch {
                Ok(None) => self.batches = None,
                Ok(columns) => self.columns = columns,
                Err(what) => self.pass_over(what),
            }
        }
        Ok(true)
    }

    fn begin_group(&mut self) -> Result<(), CaptureError> {
        let failed = |source: io::Error| CaptureError::Io { file: self.name.clone(), source };
        let file = self.file.try_clone().map_err(failed)?;
        let builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(Bounded(file), self.metadata.clone());
        let begun = builder.with_row_groups(vec![self.group]).with_batch_size(BATCH_ROWS).build();
        self.group += 1;
        match begun {
            Ok(batches) => self.batches = Some(batches),
            Err(error) => self.pass_over(error.to_string()),
        }
        Ok(())
    }

    /// What is left of the row group that was begun cannot be read.
    fn pass_over(&mut self, what: String) {
        self.batches = None;
        self.damage_count += 1;
        if self.damages.len() < MAX_DAMAGES {
            let (offset, skipped_bytes) = self.extent(self.group - 1);
            self.damages.push(Damage { file: self.name.clone(), offset, what, skipped_bytes });
        }
    }

    /// Where a row group begins, and how long it is.
    fn extent(&self, group: usize) -> (u64, u64) {
        let group = self.metadata.metadata().row_group(group);
        let first = group.columns().first().map_or(0, |column| column.data_page_offset());
        (first.max(0) as u64, group.compressed_size().max(0) as u64)
    }
}

impl Segments for ColumnsReader {
    fn next_time_ns(&mut self) -> Result<Option<i64>, CaptureError> {
        self.find_row()?;
        Ok(self.columns.as_ref().map(|columns| columns.time_ns(self.at)))
    }

    fn next_segment(
        &mut self,
        index: u64,
        into: &mut Segment,
    ) -> Result<Option<(i64, Decoded)>, CaptureError> {
        self.find_row()?;
        let Some(columns) = &self.columns else { return Ok(None) };
        let found = (columns.time_ns(self.at), columns.decoded(self.at, index, into));
        self.at += 1;
        Ok(Some(found))
    }

    fn offset(&self) -> u64 {
        (0..self.group).map(|group| self.extent(group).1).sum()
    }

    fn damages(&self) -> &[Damage] {
        &self.damages
    }

    fn damage_count(&self) -> u64 {
        self.damage_count
    }

    fn statistics(&self) -> Vec<InterfaceStatistics> {
        let (origin, totals) = (&self.about.origin, &self.about.totals);
        vec![InterfaceStatistics {
            interface: origin.interface.clone(),
            received: Some(totals.received),
            dropped: Some(totals.dropped),
        }]
    }
}
