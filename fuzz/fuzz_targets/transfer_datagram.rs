//! Datagrams of `longfat transfer`, in any order and number: read or passed over, and counted as a set would count them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_transfer::{
    control::{PREAMBLE_BYTES, Preamble},
    datagram::{Datagram, HEADER_BYTES, SequenceCount},
};

fuzz_target!(|bytes: &[u8]| {
    let mut count = SequenceCount::default();
    for piece in bytes.chunks(HEADER_BYTES) {
        if let Some(head) = Datagram::decode(piece) {
            assert_eq!(head.encode(), piece);
            count.on_datagram(head.sequence);
        }
        // Numbers as a fuzzer finds them hard to hide behind a magic word.
        if let Some(word) = piece.first_chunk::<8>() {
            count.on_datagram(u64::from_be_bytes(*word));
        }
        if let Some(Some(preamble)) = piece.first_chunk::<PREAMBLE_BYTES>().map(|bytes| Preamble::decode(*bytes)) {
            assert_eq!(preamble.encode(), piece[..PREAMBLE_BYTES]);
        }
    }
    assert!(count.reordered <= count.distinct);
});
