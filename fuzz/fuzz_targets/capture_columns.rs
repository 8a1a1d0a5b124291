//! Any packets as a table: read back as they were; with octets of the file changed, read to the end without panic, and
//! no more packets than there were.
#![no_main]
#![allow(clippy::type_complexity)]

use libfuzzer_sys::fuzz_target;
use longfat_analyze::{
    capture::{LinkType, Packet},
    decode::{Decoded, Protocol, Unfollowed, decode},
    files::{
        columns::{read::ColumnsReader, write::ColumnsWriter},
        roll::Origin,
    },
    segment::Segment,
    segments::Segments,
};
use std::io::{Seek, Write};

fn written(packets: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let text = String::new;
    let origin =
        Origin { application: text(), interface: text(), link: LinkType(101), snap_bytes: 0, filter: text() };
    let mut writer = ColumnsWriter::new(Vec::new(), origin).expect("memory takes it");
    for (time_ns, data) in packets {
        writer.packet(i64::from(*time_ns), data.len() as u32, data, None).expect("memory takes it");
    }
    writer.finish().expect("memory takes it")
}

fn read(mut reader: ColumnsReader) -> Vec<(i64, Decoded, Segment)> {
    let mut found = Vec::new();
    let mut segment = Segment::default();
    while let Some((time_ns, decoded)) = reader.next_segment(0, &mut segment).expect("the file is there") {
        found.push((time_ns, decoded, segment));
    }
    assert!(reader.damage_count() as usize >= reader.damages().len());
    found
}

fn fields(segment: &Segment) -> (u32, u32, u32, u16, u16, (u32, u32), Vec<(u32, u32)>) {
    let sack = segment.sack[..segment.sack_count.into()].to_vec();
    let Segment { sequence, acknowledgement, payload_bytes, flags, window, ts_value, ts_echo, .. } = *segment;
    (sequence, acknowledgement, payload_bytes, flags, window, (ts_value, ts_echo), sack)
}

/// What a table keeps of it: not the name of what is not looked into.
fn kept(decoded: Decoded) -> Decoded {
    match decoded {
        Decoded::Not(Unfollowed::Other(_)) => Decoded::Not(Unfollowed::Other(Protocol::Untold)),
        other => other,
    }
}

/// What the library that decodes pages panics with is caught by the reader, so only other panics end the run.
fn end_at_panics_of_ours() {
    let ended_at_all = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic
            .location()
            .is_some_and(|at| ["/parquet-", "/arrow-"].iter().any(|name| at.file().contains(name)))
        {
            ended_at_all(panic);
        }
    }));
}

fuzz_target!(init: end_at_panics_of_ours(), |input: (Vec<(u32, Vec<u8>)>, Vec<(u32, u8)>)| {
    let (packets, changes) = input;
    let mut bytes = written(&packets);
    for (at, value) in &changes {
        let at = *at as usize % bytes.len();
        bytes[at] = *value;
    }
    let mut file = tempfile::tempfile_in("/dev/shm").expect("memory takes it");
    file.write_all(&bytes).expect("memory takes it");
    file.rewind().expect("a file");
    let Ok(reader) = ColumnsReader::new(file, "fuzz") else { return assert!(!changes.is_empty()) };
    let found = read(reader);
    if changes.is_empty() {
        assert_eq!(found.len(), packets.len());
        for ((time_ns, data), (found_ns, found, segment)) in packets.iter().zip(&found) {
            let (link, time_ns) = (LinkType(101), i64::from(*time_ns));
            let packet = Packet { time_ns, original_bytes: data.len() as u32, data, link, direction: None };
            let mut expected = Segment::default();
            assert_eq!((time_ns, kept(decode(&packet, 0, &mut expected))), (*found_ns, *found));
            assert!(*found != Decoded::Tcp || fields(&expected) == fields(segment));
        }
    }
});
