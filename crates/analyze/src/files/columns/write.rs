//! Packets in, a table out. Rows are gathered into row groups, each encoded at once.

use super::{
    ABOUT, About,
    row::{Row, batch},
};
use crate::{
    capture::{Direction, Packet, write::Totals},
    decode::decode,
    files::roll::Origin,
    segment::Segment,
};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, Encoding, ZstdLevel},
    file::{
        metadata::KeyValue,
        properties::{EnabledStatistics, WriterProperties},
    },
    schema::types::ColumnPath,
};
use std::io::{self, Write};

/// Rows that are encoded at once: what is lost when the program is killed, and for how long nothing else is done.
const GROUP_ROWS: usize = 1 << 16;
/// What a packet takes, about: for the length of a file whose last rows are not encoded yet.
const ABOUT_BYTES: u64 = 24;
/// Numbers that are near those before them, or near none.
const NOT_REPEATED: [&str; 6] = ["time_ns", "ip_id", "sequence", "acknowledgement", "ts_value", "ts_echo"];

/// Writes a capture as a table.
pub struct ColumnsWriter<W: Write + Send> {
    out: ArrowWriter<W>,
    origin: Origin,
    totals: Totals,
    rows: Vec<Row>,
}

impl<W: Write + Send> ColumnsWriter<W> {
    /// Begins the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(out: W, origin: Origin) -> io::Result<ColumnsWriter<W>> {
        let schema = batch(&[]).map_err(io::Error::other)?.schema();
        let out = ArrowWriter::try_new(out, schema, Some(properties()))?;
        Ok(ColumnsWriter { out, origin, totals: Totals::default(), rows: Vec::new() })
    }

    /// Appends a packet of which `data` was kept.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn packet(
        &mut self,
        time_ns: i64,
        wire_bytes: u32,
        data: &[u8],
        direction: Option<Direction>,
    ) -> io::Result<()> {
        let packet = Packet { time_ns, original_bytes: wire_bytes, data, link: self.origin.link, direction };
        let mut segment = Segment::default();
        let decoded = decode(&packet, 0, &mut segment);
        self.rows.push(Row { time_ns, direction, wire_bytes, decoded, segment });
        if self.rows.len() < GROUP_ROWS { Ok(()) } else { self.end_group() }
    }

    fn end_group(&mut self) -> io::Result<()> {
        self.out.write(&batch(&self.rows).map_err(io::Error::other)?)?;
        self.rows.clear();
        Ok(self.out.flush()?)
    }

    /// Says what was seen and lost; the last word counts, and is written at the end.
    pub fn statistics(&mut self, totals: &Totals) {
        self.totals = *totals;
    }

    /// Octets written so far, about.
    pub fn written_bytes(&self) -> u64 {
        self.out.bytes_written() as u64 + ABOUT_BYTES * self.rows.len() as u64
    }

    /// Writes what is left, what was lost, and where everything is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.rows.is_empty() {
            self.end_group()?;
        }
        let about = About {
            schema_version: longfat_schema::SCHEMA_VERSION,
            origin: self.origin.clone(),
            totals: self.totals,
        };
        self.out.append_key_value_metadata(KeyValue::new(ABOUT.to_owned(), serde_json::to_string(&about)?));
        Ok(self.out.into_inner()?)
    }
}

fn properties() -> WriterProperties {
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Chunk);
    for name in NOT_REPEATED {
        let path = ColumnPath::from(name);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    properties.build()
}
