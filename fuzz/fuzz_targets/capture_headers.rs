//! Any octets as a packet, of any link type, cut anywhere: decoded without panic, and no payload longer than the
//! packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_analyze::{
    capture::{LinkType, Packet},
    decode::{Decoded, decode},
    segment::Segment,
};

const LINKS: [u32; 25] = [
    1, 113, 276, 12, 101, 228, 229, 0, 108, 147, 6, 8, 9, 10, 51, 104, 105, 107, 117, 119, 123, 127, 192,
    239, 258,
];

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (link, more, data) = input;
    let link = LinkType(LINKS[usize::from(link) % LINKS.len()]);
    let original_bytes = data.len() as u32 + u32::from(more);
    let packet = Packet { time_ns: 0, original_bytes, data, link, direction: None };
    let mut segment = Segment::default();
    if decode(&packet, 0, &mut segment) == Decoded::Tcp {
        // What the IP header says, or where it says nothing (offloads), the length on the wire.
        assert!(segment.payload_bytes <= original_bytes.max(65_535), "{segment:?}");
    }
});
