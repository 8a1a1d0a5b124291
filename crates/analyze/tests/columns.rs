//! Captures in columns say what the same captures in octets say.
#![cfg(feature = "tables")]

use crate::support::{self, Tcp};
use longfat_analyze::{
    Settings,
    analysis::{Analysis, analyze},
    capture::{Direction, LinkType, reader::CaptureError, write::Totals},
    decode::{Decoded, Protocol, Unfollowed},
    files::{
        roll::{Form, Origin, Roll, RollSpec},
        source,
    },
    segment::{Segment, flag},
    segments::Segments as _,
};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const TIME: i64 = 1_700_000_000_123_456_789;

type Frame = (i64, u32, Vec<u8>, Direction);

fn origin() -> Origin {
    Origin {
        application: "test".into(),
        interface: "eth7".into(),
        link: LinkType(1),
        snap_bytes: 256,
        filter: "tcp".into(),
    }
}

/// Writes the packets in one form; three of them were lost.
fn written(folder: &Path, form: Form, frames: &[Frame]) -> PathBuf {
    let path = folder.join(format!("{form:?}"));
    let spec = RollSpec { path: path.clone(), most_bytes: None, most_ns: None, keep: None, form };
    let mut roll = Roll::create(spec, origin(), TIME).unwrap();
    for (time_ns, wire_bytes, data, direction) in frames {
        roll.packet(*time_ns, *wire_bytes, data, *direction).unwrap();
    }
    let accepted = frames.len() as u64 + 3;
    roll.count(Totals { end_ns: TIME, received: accepted + 7, accepted, dropped: 3, ..Totals::default() })
        .unwrap();
    assert_eq!(roll.finish().unwrap().len(), 1);
    path
}

/// All that it says but its length.
fn analysis(path: &Path) -> Analysis {
    let mut found = analyze(vec![source::open(path).unwrap()], Settings::default(), |_| {}).unwrap();
    found.capture.bytes = 0;
    found
}

fn packets(path: &Path) -> Vec<(i64, Decoded, Segment)> {
    let mut capture = source::open(path).unwrap();
    let mut found = Vec::new();
    loop {
        let (index, mut segment) = (found.len() as u64, Segment::default());
        let Some((time_ns, decoded)) = capture.next_segment(index, &mut segment).unwrap() else {
            return found;
        };
        segment.sack[segment.sack_count.into()..].fill((0, 0));
        if let Decoded::Not(_) = decoded {
            segment = Segment::default();
        }
        // A table does not keep the name of what is not looked into.
        let decoded = match decoded {
            Decoded::Not(Unfollowed::Other(_)) => Decoded::Not(Unfollowed::Other(Protocol::Untold)),
            other => other,
        };
        found.push((time_ns, decoded, segment));
    }
}

fn both_say_the_same(frames: &[Frame]) -> (Analysis, [u64; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let paths = [Form::Pcapng, Form::Columns].map(|form| written(folder.path(), form, frames));
    assert_eq!(packets(&paths[0]), packets(&paths[1]));
    let [octets, columns] = [&paths[0], &paths[1]].map(|path| {
        let mut analysis = analysis(path);
        analysis.capture.not_looked_into.clear();
        analysis
    });
    assert_eq!(octets, columns);
    (columns, [0, 1].map(|at: usize| std::fs::metadata(&paths[at]).unwrap().len()))
}

/// A transfer with a loss that SACK repairs, and everything else that a capture may have.
fn traffic(segments: u32) -> Vec<Frame> {
    let (mut frames, mut time_ns) = (Vec::new(), TIME);
    let mut add = |tcp: Tcp| {
        time_ns += 13_000 + i64::from(tcp.seq % 1000);
        let (frame, wire_bytes) = tcp.frame();
        let direction = if tcp.from_client { Direction::Outbound } else { Direction::Inbound };
        frames.push((time_ns, wire_bytes as u32, frame, direction));
    };
    add(Tcp::client(flag::SYN, 0, 0).syn_options(true, Some(7)).timestamps(1, 0));
    add(Tcp::server(flag::SYN | flag::ACK, 0, 1).syn_options(true, Some(9)).timestamps(2, 1));
    let data =
        |number: u32| Tcp::client(flag::ACK, 1 + number * 1448, 1).payload(1448).ip_id(number as u16 + 1);
    for number in 0..segments {
        add(data(number).timestamps(3 + number, 2));
        let ack = Tcp::server(flag::ACK, 1, 1 + number * 1448).ttl(60).ip_id(7);
        match number % 50 {
            48 => add(ack.sack(&[(1 + number * 1448, 1449 + number * 1448)])),
            49 => add(data(number - 1).timestamps(3 + number, 2).ip_id(60_000)),
            _ => add(ack.timestamps(4 + number, 3 + number).window(number as u16)),
        }
    }
    add(Tcp::client(flag::FIN | flag::ACK, 1 + segments * 1448, 1));
    add(Tcp::server(flag::RST, 1, 0));
    frames
}

#[test]
fn a_transfer_in_columns_is_the_transfer_in_octets_and_shorter() {
    let (found, [octets, columns]) = both_say_the_same(&traffic(5_000));
    assert_eq!((found.totals.flows, found.capture.tcp_packets), (1, 10_004));
    assert!(found.totals.resent_segments > 50 && found.flows[0].directions[0].rtt.is_some());
    let losses = &found.capture.interfaces;
    assert_eq!(
        (losses[0].interface.as_str(), losses[0].received, losses[0].dropped),
        ("eth7", Some(10_014), Some(3))
    );
    assert!(columns * 3 < octets, "{columns} of {octets} octets");
}

#[test]
fn what_is_not_tcp_is_in_columns_what_it_is_in_octets() {
    let (quoted, _) = Tcp::client(flag::ACK, 5, 6).payload(1400).ipv4();
    let ip = |protocol: u8, fragment: u8, payload: &[u8]| {
        let head =
            [&[0; 12], [8, 0, 0x45, 0].as_slice(), &(20 + payload.len() as u16).to_be_bytes()].concat();
        [&head, [0, 1, fragment, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2].as_slice(), payload]
            .concat()
    };
    let ipv6 = [
        &[0; 12],
        [0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64].as_slice(),
        &[0x20; 32],
        &Tcp::client(flag::ACK, 9, 9).header(),
    ];
    let frames = [
        ip(17, 0, &[0; 20]),
        ip(6, 0x01, &[0; 20]),
        ip(6, 0, &[0; 8]),
        ip(6, 0, &[0; 20]),
        ip(1, 0, &[&[3, 4, 0, 0, 0, 0, 0x05, 0x14], &quoted[..28]].concat()),
        ipv6.concat(),
        vec![0; 5],
        vec![],
    ];
    let mut all = traffic(3);
    all.extend(frames.into_iter().map(|data| (TIME, data.len() as u32, data, Direction::Inbound)));
    let folder = tempfile::tempdir().unwrap();
    let named = analysis(&written(folder.path(), Form::Columns, &all)).capture.not_looked_into;
    assert_eq!(
        named.iter().map(|kind| (kind.what.as_str(), kind.packets)).collect::<Vec<_>>(),
        [("not TCP (the table does not say which)", 1)]
    );
    let (found, _) = both_say_the_same(&all);
    let capture = found.capture;
    assert_eq!((capture.other_packets, capture.fragments, capture.malformed_packets), (2, 1, 1));
    assert!(
        capture.truncated_packets >= 2
            && found.flows.iter().any(|flow| flow.directions[0].from.contains("2020:"))
    );
}

#[test]
fn a_capture_of_nothing_is_one() {
    let (found, _) = both_say_the_same(&[]);
    assert_eq!((found.capture.packets, found.capture.interfaces[0].dropped), (0, Some(3)));
}

#[test]
fn more_rows_than_are_encoded_at_once_are_all_there() {
    let one = traffic(10);
    let many: Vec<Frame> = one.iter().cycle().take(150_000).cloned().collect();
    let (found, _) = both_say_the_same(&many);
    assert_eq!(found.capture.packets, 150_000);
}

fn refused(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refused");
    std::fs::write(&path, bytes).unwrap();
    match source::open(&path) {
        Err(error @ CaptureError::Columns { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("read"),
    }
}

#[test]
fn a_table_that_is_cut_off_or_is_no_capture_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(written(folder.path(), Form::Columns, &traffic(100))).unwrap();
    assert!(refused(&whole[..whole.len() - 9]).contains("not ended in order"));
    assert!(refused(b"PAR1").contains("not ended in order"));
    longfat_analyze::tables::write(
        &analysis(&written(folder.path(), Form::Pcapng, &traffic(1))),
        folder.path(),
    )
    .unwrap();
    let other = std::fs::read(folder.path().join("flows.parquet")).unwrap();
    assert!(refused(&other).contains("not a capture"));
}

/// The library that decodes pages subtracts what a damaged one claims (found by the fuzz target `capture_columns`).
#[test]
fn whatever_an_octet_of_the_pages_is_changed_to_the_table_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path(), Form::Columns, &traffic(3));
    let whole = std::fs::read(&path).unwrap();
    let most = packets(&path).len();
    for at in 4..whole.len().min(1200) {
        for value in [0, 2, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            std::fs::write(&path, bytes).unwrap();
            assert!(source::open(&path).is_err() || packets(&path).len() <= most, "octet {at} is {value}");
        }
    }
}

#[test]
fn a_damaged_row_group_is_told_of_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let frames: Vec<Frame> = traffic(10).iter().cycle().take(200_000).cloned().collect();
    let path = written(folder.path(), Form::Columns, &frames);
    let mut bytes = std::fs::read(&path).unwrap();
    // Right behind the magic number: the first pages of the first group.
    bytes[4..400].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let found = analysis(&path);
    assert_eq!(found.capture.damage_count, 1);
    assert!((130_000..140_000).contains(&found.capture.packets), "{}", found.capture.packets);
    assert!(found.capture.damages[0].offset < 400 && found.capture.damages[0].skipped_bytes > 1000);
}

/// Nothing but blocks of 128 KiB, four octets each (RFC 8878, 3.1.1.2).
fn bomb(length: usize) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x50];
    let block = |is_last: u32| (131_072u32 << 3 | 1 << 1 | is_last).to_le_bytes()[..3].to_vec();
    let blocks = (length - frame.len()) / 4;
    (1..=blocks).for_each(|n| frame.extend([block(u32::from(n == blocks)), vec![0]].concat()));
    frame
}

#[test]
fn a_page_that_would_fill_the_memory_is_damage_that_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    // Times that do not shorten well.
    let spread = |n: i64| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    let noise = |n: i64| (spread(n).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 54) as i64;
    let noisy = |(n, frame): (i64, Frame)| (TIME + n * 1000 + noise(n), frame.1, frame.2, frame.3);
    let frames: Vec<Frame> = (0..100_000).zip(traffic(10).into_iter().cycle()).map(noisy).collect();
    let path = written(folder.path(), Form::Columns, &frames);
    let mut bytes = std::fs::read(&path).unwrap();
    let pages: Vec<usize> =
        (0..bytes.len() - 4).filter(|at| bytes[*at..at + 4] == [0x28, 0xb5, 0x2f, 0xfd]).collect();
    let longest = pages.windows(2).max_by_key(|pair| pair[1] - pair[0]).unwrap();
    let bomb = bomb((longest[1] - longest[0]) / 2);
    bytes[longest[0]..longest[0] + bomb.len()].copy_from_slice(&bomb);
    std::fs::write(&path, bytes).unwrap();
    let found = analysis(&path);
    assert_eq!(found.capture.damage_count, 1);
    assert!(found.capture.damages[0].what.contains("would take"), "{}", found.capture.damages[0].what);
    assert!(found.capture.packets < 100_000);
}

proptest! {
    #![proptest_config(support::cases::cases(48))]
    #[test]
    fn any_packets_are_in_columns_what_they_are_in_octets(
        frames in proptest::collection::vec((0i64..1 << 50, any::<u16>(), proptest::collection::vec(any::<u8>(), 0..80), any::<bool>()), 0..40),
    ) {
        let frames: Vec<Frame> = frames
            .into_iter()
            .map(|(time_ns, more, mut data, tcp)| {
                // Else hardly any would be one.
                let head = [8, 0, 0x45, 0, 0, 200, 0, 0, 0, 0, 64, 6];
                if tcp && data.len() > 60 {
                    data[12..24].copy_from_slice(&head);
                    data[46] |= 0x50;
                }
                (time_ns, data.len() as u32 + u32::from(more), data, Direction::Outbound)
            })
            .collect();
        both_say_the_same(&frames);
    }
}
