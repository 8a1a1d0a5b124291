//! A table from a stranger: no page of it may become more than a page ever does. The library decodes as much as the
//! page itself says it will be, which may be 2 GiB, and zstd makes 128 KiB of four octets.

use parquet::{
    errors::{ParquetError, Result},
    file::reader::{ChunkReader, Length},
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most octets that one page may have when it is decoded; ours have a few MiB.
const MOST_PAGE_BYTES: u64 = 64 << 20;

/// The file, of which no page is handed out that would be longer.
#[derive(Debug)]
pub struct Bounded<R>(pub R);

impl<R: Length> Length for Bounded<R> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<R: ChunkReader> ChunkReader for Bounded<R> {
    type T = R::T;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<bytes::Bytes> {
        let page = self.0.get_bytes(start, length)?;
        match decoded_bound_bytes(&page) {
            0..=MOST_PAGE_BYTES => Ok(page),
            bytes => Err(ParquetError::General(format!(
                "a page of {length} octets would take {bytes}, more than {MOST_PAGE_BYTES}"
            ))),
        }
    }
}

/// What is decoded. On pages that are damaged the library may panic; what it was decoding is not to be used again then.
///
/// # Errors
/// It panicked.
pub fn caught<T>(decode: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(decode)).map_err(|_| "a page contradicts itself".to_owned())
}

/// RFC 8878, 3.1.1.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Section 3.1.1.2.4: no block is longer.
const BLOCK_MAX_BYTES: u64 = 128 << 10;

/// At most so many octets come of all zstd frames in these, wherever they begin: levels may stand before them.
fn decoded_bound_bytes(page: &[u8]) -> u64 {
    let frames = page.windows(MAGIC.len()).enumerate().filter(|(_, octets)| *octets == MAGIC);
    frames.map(|(at, _)| frame_bound_bytes(&page[at + MAGIC.len()..])).fold(0, u64::saturating_add)
}

/// The sum of a frame's blocks, as far as there are any.
fn frame_bound_bytes(frame: &[u8]) -> u64 {
    let Some((&descriptor, _)) = frame.split_first() else { return 0 };
    let is_single_segment = descriptor & 0x20 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        flag => 1 << flag,
    };
    let mut at = 1 + usize::from(!is_single_segment) + dictionary + content;
    let mut bound_bytes = 0;
    while let Some(&[low, middle, high]) = frame.get(at..at + 3) {
        let header = u32::from_le_bytes([low, middle, high, 0]);
        let (is_last, kind, size) = (header & 1 == 1, header >> 1 & 3, header >> 3);
        let (stored, decoded_bytes) = match kind {
            0 => (size, size.into()),
            1 => (1, u64::from(size).min(BLOCK_MAX_BYTES)),
            2 => (size, BLOCK_MAX_BYTES),
            _ => break,
        };
        bound_bytes += decoded_bytes;
        at += 3 + stored as usize;
        if is_last {
            break;
        }
    }
    bound_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Octets that say nothing and everything, of which zstd makes blocks of every kind.
    fn texts() -> Vec<Vec<u8>> {
        let noise = |length: u32| (0..length).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let words = |length: usize| b"acknowledgement ".iter().copied().cycle().take(length).collect();
        vec![Vec::new(), vec![7], vec![0; 3_000_000], noise(300_000), words(1_000_000), words(70_000)]
    }

    /// An encoder may divide what would fill a block among so many.
    const BLOCKS_PER_BLOCK: u64 = 16;

    #[test]
    fn no_frame_becomes_more_than_is_said_nor_much_less() {
        for (text, level) in texts().iter().flat_map(|text| [(text, 1), (text, 19)]) {
            let frame = zstd::encode_all(&text[..], level).unwrap();
            let bound_bytes = decoded_bound_bytes(&frame);
            let length = text.len() as u64;
            assert!(bound_bytes >= length, "{bound_bytes} of {length}");
            assert!(
                bound_bytes <= BLOCKS_PER_BLOCK * (length + BLOCK_MAX_BYTES),
                "{bound_bytes} of {length}"
            );
            let two = [b"levels".to_vec(), frame.clone(), frame.clone()].concat();
            assert_eq!(decoded_bound_bytes(&two), 2 * bound_bytes);
            for cut in 0..frame.len().min(40) {
                assert!(decoded_bound_bytes(&frame[..cut]) <= bound_bytes);
            }
        }
    }
}
