//! Any octets as a capture file, pcap or pcapng: read to the end without panic, in memory bounded by the file, and
//! every place of damage within it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_analyze::capture::reader::CaptureReader;

/// The first octet says how the file begins, so that the fuzzer need not find the magic numbers.
const BEGINNINGS: [&[u8]; 5] = [
    &[],
    &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0],
    &[0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1],
    &[
        0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255,
        255, 255, 255, 28, 0, 0, 0,
    ],
    &[
        0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 255, 255, 255, 255, 255,
        255, 255, 255, 0, 0, 0, 28,
    ],
];

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let file = [BEGINNINGS[usize::from(*kind) % BEGINNINGS.len()], rest].concat();
    let Ok(mut reader) = CaptureReader::new(&file[..], "fuzz") else { return };
    let mut kept = 0;
    while let Some(packet) = reader.next_packet().expect("reading from memory does not fail") {
        kept += packet.data.len();
    }
    assert!(kept <= file.len(), "more octets than the file has");
    assert!(reader.damages().iter().all(|damage| damage.offset <= file.len() as u64));
    assert_eq!(reader.offset(), file.len() as u64, "read to the end");
});
