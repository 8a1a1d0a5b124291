//! Where octets come from: files, standard input (`-`), each of them plain, gzip or zstd.

use super::reader::{CaptureError, CaptureReader};
use std::{
    fs::File,
    io::{Chain, Cursor, Read},
    path::Path,
};

/// Any source, decompressed.
pub type Source = Box<dyn Read + Send>;

/// Opens a capture; `-` is standard input.
pub fn open(path: &Path) -> Result<CaptureReader<Source>, CaptureError> {
    let file = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    let failed = |source| CaptureError::Io { file: file.clone(), source };
    let raw: Source = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    CaptureReader::new(decompressed(raw).map_err(failed)?, &file)
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
