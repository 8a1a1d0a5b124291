//! Where captures come from: files, standard input (`-`), each of them plain, gzip or zstd; tables only from files.

#[cfg(feature = "tables")]
use super::columns::{self, read::ColumnsReader};
use crate::{
    capture::{
        Damage, InterfaceStatistics,
        reader::{CaptureError, CaptureReader},
    },
    decode::Decoded,
    segment::Segment,
    segments::Segments,
};
#[cfg(feature = "tables")]
use std::os::unix::fs::FileExt as _;
use std::{
    fs::File,
    io::{Chain, Cursor, Read},
    path::Path,
};

/// Any source, decompressed.
pub type Source = Box<dyn Read + Send>;

/// An open capture of any form.
pub enum Opened {
    /// pcap or pcapng.
    Octets(Box<CaptureReader<Source>>),
    /// Parquet.
    #[cfg(feature = "tables")]
    Columns(Box<ColumnsReader>),
}

/// Opens a capture; `-` is standard input.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn open(path: &Path) -> Result<Opened, CaptureError> {
    let is_piped = path == Path::new("-");
    let name = if is_piped { "standard input".to_owned() } else { path.display().to_string() };
    let failed = |source| CaptureError::Io { file: name.clone(), source };
    if is_piped {
        let source = decompressed(Box::new(std::io::stdin())).map_err(failed)?;
        return CaptureReader::new(source, &name).map(|reader| Opened::Octets(Box::new(reader)));
    }
    let file = File::open(path).map_err(failed)?;
    #[cfg(feature = "tables")]
    {
        let mut beginning = [0; 4];
        // What is no regular file, and what is shorter, cannot be a table.
        if file.read_exact_at(&mut beginning, 0).is_ok() && columns::read::recognises(&beginning) {
            return ColumnsReader::new(file, &name).map(|reader| Opened::Columns(Box::new(reader)));
        }
    }
    let source = decompressed(Box::new(file)).map_err(failed)?;
    CaptureReader::new(source, &name).map(|reader| Opened::Octets(Box::new(reader)))
}

/// Does the same with either form.
macro_rules! either {
    ($opened:expr, $capture:ident => $do:expr) => {
        match $opened {
            Opened::Octets($capture) => $do,
            #[cfg(feature = "tables")]
            Opened::Columns($capture) => $do,
        }
    };
}

impl Segments for Opened {
    fn next_time_ns(&mut self) -> Result<Option<i64>, CaptureError> {
        either!(self, capture => capture.next_time_ns())
    }

    fn next_segment(
        &mut self,
        index: u64,
        into: &mut Segment,
    ) -> Result<Option<(i64, Decoded)>, CaptureError> {
        either!(self, capture => capture.next_segment(index, into))
    }

    #[inline(always)]
    fn next_usual(&mut self, index: u64, until_ns: i64, into: &mut Segment) -> Option<i64> {
        either!(self, capture => capture.next_usual(index, until_ns, into))
    }

    fn offset(&self) -> u64 {
        either!(self, capture => capture.offset())
    }

    fn damages(&self) -> &[Damage] {
        either!(self, capture => capture.damages())
    }

    fn damage_count(&self) -> u64 {
        either!(self, capture => capture.damage_count())
    }

    fn statistics(&self) -> Vec<InterfaceStatistics> {
        either!(self, capture => capture.statistics())
    }
}

/// Looks at the first octets, which name the compression.
pub fn decompressed(mut raw: Source) -> std::io::Result<Source> {
    let mut first = [0; 4];
    let mut have = 0;
    while have < first.len() {
        match raw.read(&mut first[have..]) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let whole: Chain<Cursor<Vec<u8>>, Source> = Cursor::new(first[..have].to_vec()).chain(raw);
    Ok(match first {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(whole)?),
        _ => Box::new(whole),
    })
}
