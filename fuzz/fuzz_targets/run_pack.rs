//! Any bytes as a packed run: read to the end or refused, within its bounds; what is taken has plain names alone. The
//! first byte says whether the rest is compressed already, so that the fuzzer gets at tar behind zstd.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_lab::archive::{Limits, contents};
use longfat_schema::run::{is_plain_path, verify};
use std::io::Write as _;

const MOST_BYTES: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let rest = if kind % 2 == 0 { rest.to_vec() } else { zstd::encode_all(rest, 1).expect("from memory") };
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&rest).expect("room for it");
    let Ok(found) = contents(file.path(), Some(Limits::of_bytes(MOST_BYTES))) else { return };
    assert!(found.files.values().map(|file| file.bytes).sum::<u64>() <= MOST_BYTES);
    assert!(found.files.keys().all(|name| is_plain_path(name)), "{:?}", found.files.keys());
    let _ = verify(&found);
});
