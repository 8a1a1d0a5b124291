//! Datagrams of `longfat transfer`, in any order and number: read or passed over, and counted as a set would count
//! them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_transfer::datagram::{Datagram, HEADER_BYTES, SequenceCount};

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
    }
    assert!(count.reordered <= count.distinct);
});
