//! Captures of every kind, whole and damaged.

use crate::support::{
    self, Tcp, Trace, analyze_bytes,
    traffic::{Transfer, made},
};
use longfat_analyze::{
    Settings,
    analysis::analyze,
    capture::{
        Direction, LinkType, Packet,
        reader::{CaptureError, CaptureReader},
        write::{PcapWriter, PcapngWriter, Totals},
    },
    contradictions::contradictions,
    decode::{Decoded, Protocol, Unfollowed, decode},
    expect::Expect,
    files::source,
    segment::{Checksum, FlowKey, Segment, flag},
};
use proptest::prelude::*;
use std::io::Write as _;

const TIME: i64 = 1_700_000_000_123_456_789;

type Read = (i64, u32, Vec<u8>, Option<Direction>);

fn read_all(bytes: &[u8]) -> (Vec<Read>, u64) {
    let mut reader = CaptureReader::new(bytes, "memory").unwrap();
    let mut packets = Vec::new();
    while let Some(p) = reader.next_packet().unwrap() {
        packets.push((p.time_ns, p.original_bytes, p.data.to_vec(), p.direction));
    }
    (packets, reader.damage_count())
}

fn pcap(packets: usize) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), LinkType(1), 96).unwrap();
    for n in 0..packets {
        let (frame, length) = Tcp::client(flag::ACK, n as u32 * 100, 0).payload(100).frame();
        writer.packet(TIME + n as i64 * 1000, length as u32, &frame).unwrap();
    }
    writer.into_inner()
}

/// A file header and one record, in either byte order and resolution.
fn by_hand(big: bool, magic: u32, fraction: u32) -> Vec<u8> {
    let word = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let mut bytes = word(magic).to_vec();
    bytes.extend(if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] });
    for field in [0, 0, 96, 1, 1_700_000_000, fraction, 14, 60] {
        bytes.extend(word(field));
    }
    bytes.extend([0; 14]);
    bytes
}

fn totals(received: u64, dropped: u64) -> Totals {
    Totals { end_ns: TIME, received, dropped, ..Totals::default() }
}

#[test]
fn all_four_kinds_of_pcap_give_the_same_time() {
    for (big, magic, fraction) in [
        (false, 0xa1b2_c3d4, 123_456),
        (true, 0xa1b2_c3d4, 123_456),
        (false, 0xa1b2_3c4d, 123_456_000),
        (true, 0xa1b2_3c4d, 123_456_000),
    ] {
        let (packets, damages) = read_all(&by_hand(big, magic, fraction));
        assert_eq!(packets, [(1_700_000_000_123_456_000, 60, vec![0; 14], None)]);
        assert_eq!(damages, 0);
    }
}

#[test]
fn pcapng_tells_directions_and_what_the_capture_lost() {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = writer.interface("eth7", LinkType(1), 96).unwrap();
    let (frame, length) = Tcp::client(flag::ACK, 1, 1).payload(77).frame();
    for direction in [Some(Direction::Inbound), Some(Direction::Outbound), None] {
        writer.packet(interface, TIME, length as u32, &frame, direction).unwrap();
    }
    writer.statistics(interface, &totals(100, 40)).unwrap();
    writer.statistics(interface, &totals(1000, 42)).unwrap();
    let bytes = writer.into_inner();
    let (packets, damages) = read_all(&bytes);
    assert_eq!(damages, 0);
    assert!(packets.iter().all(|p| p.0 == TIME && p.1 as usize == length && p.2 == frame));
    let directions: Vec<_> = packets.iter().map(|p| p.3).collect();
    assert_eq!(directions, [Some(Direction::Inbound), Some(Direction::Outbound), None]);
    let interfaces = analyze_bytes(&bytes, Settings::default()).capture.interfaces;
    assert_eq!(interfaces.len(), 1);
    assert_eq!((interfaces[0].interface.as_str(), interfaces[0].dropped), ("eth7", Some(42)));
}

#[test]
fn compressed_files_and_several_files_read_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let plain = pcap(10);
    let path = |name: &str| directory.path().join(name);
    let mut gzip = flate2::write::GzEncoder::new(
        std::fs::File::create(path("b.gz")).unwrap(),
        flate2::Compression::fast(),
    );
    gzip.write_all(&plain).unwrap();
    gzip.finish().unwrap();
    std::fs::write(path("c.zst"), zstd::encode_all(plain.as_slice(), 1).unwrap()).unwrap();
    std::fs::write(path("a.pcap"), &plain).unwrap();
    let captures = ["c.zst", "b.gz", "a.pcap"].map(|name| source::open(&path(name)).unwrap());
    let analysis = analyze(captures.into(), Settings::default(), |_| {}).unwrap();
    assert_eq!((analysis.capture.packets, analysis.capture.damage_count), (30, 0));
}

#[test]
fn a_broken_compressed_file_gives_what_can_be_read_and_says_so() {
    let whole = zstd::encode_all(pcap(50_000).as_slice(), 1).unwrap();
    let cut = whole[..whole.len() / 2].to_vec();
    let source = source::decompressed(Box::new(std::io::Cursor::new(cut))).unwrap();
    let analysis =
        analyze(vec![CaptureReader::new(source, "cut").unwrap()], Settings::default(), |_| {}).unwrap();
    assert!(analysis.capture.packets > 1000, "{}", analysis.capture.packets);
    assert!(analysis.capture.damage_count >= 1);
}

#[test]
fn what_is_no_capture_is_refused_by_name() {
    let refused = |bytes: &'static [u8]| CaptureReader::new(bytes, "x.txt").err().unwrap();
    assert!(matches!(refused(b"hello, this is a text file"), CaptureError::Unknown(name) if name == "x.txt"));
    assert!(matches!(refused(b""), CaptureError::Empty(_)));
}

#[test]
fn damage_in_the_middle_is_reported_with_its_offset_and_the_rest_is_read() {
    let whole = pcap(100);
    let record = (whole.len() - 24) / 100;
    let mut damaged = whole.clone();
    let at = 24 + 40 * record;
    damaged[at + 8..at + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    let (packets, damages) = read_all(&damaged);
    assert_eq!((packets.len(), damages), (99, 1));
    let capture = analyze_bytes(&damaged, Settings::default()).capture;
    assert_eq!((capture.damages[0].offset, capture.damages[0].skipped_bytes), (at as u64, record as u64));
    let mut garbage = whole[..at].to_vec();
    garbage.extend((0..777u32).map(|n| ((n * 7919) >> 3) as u8));
    garbage.extend(&whole[at..]);
    assert_eq!(read_all(&garbage), (read_all(&whole).0, 1));
}

#[test]
fn zeros_that_were_never_written_are_damage_and_no_packets() {
    let whole = pcap(100);
    let at = 24 + 40 * ((whole.len() - 24) / 100);
    for (from, zeros) in [(whole.len(), 100_000), (at, 4096)] {
        let mut damaged = whole.clone();
        damaged.resize(whole.len().max(from + zeros), 0);
        damaged[from..from + zeros].fill(0);
        let capture = analyze_bytes(&damaged, Settings::default()).capture;
        assert_eq!((capture.damage_count, capture.damages[0].offset), (1, from as u64));
        assert!(capture.damages[0].what.contains("never written"), "{}", capture.damages[0].what);
        assert!(capture.packets <= 100 && capture.truncated_packets == 0, "{}", capture.packets);
    }
}

#[test]
fn damage_in_pcapng_is_passed_over_too() {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = writer.interface("eth0", LinkType(1), 96).unwrap();
    let (frame, length) = Tcp::client(flag::ACK, 1, 1).frame();
    (0..20).for_each(|n| writer.packet(interface, TIME + n, length as u32, &frame, None).unwrap());
    let bytes = writer.into_inner();
    let block = 32 + frame.len().next_multiple_of(4);
    let at = bytes.len() - 10 * block;
    let mut damaged = bytes.clone();
    damaged[at + 4] ^= 0x55;
    assert_eq!((read_all(&damaged).0.len(), read_all(&damaged).1), (19, 1));
}

/// A block of pcapng.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (12 + body.len().next_multiple_of(4)) as u32;
    let mut block = [&kind.to_le_bytes()[..], &length.to_le_bytes(), body].concat();
    block.resize(length as usize - 4, 0);
    [&block[..], &length.to_le_bytes()].concat()
}

/// A packet of an interface, `epb_dropcount` with it.
fn packet_block(interface: u32, time: u64, dropped_before: Option<u64>) -> Vec<u8> {
    let (frame, length) = Tcp::client(flag::ACK, 1, 1).payload(40).frame();
    let time = [(time >> 32) as u32, time as u32];
    let fields = [interface, time[0], time[1], frame.len() as u32, length as u32];
    let mut body: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    body.extend(&frame);
    body.resize(body.len().next_multiple_of(4), 0);
    if let Some(dropped) = dropped_before {
        body.extend([4, 0, 8, 0]);
        body.extend(dropped.to_le_bytes());
    }
    block(6, &body)
}

/// A section with interfaces of Ethernet, and what follows.
fn section(interfaces: usize, blocks: &[Vec<u8>]) -> Vec<u8> {
    let head = block(0x0a0d_0d0a, &[&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    let interfaces = vec![block(1, &[1, 0, 0, 0, 0, 0, 0, 0]); interfaces];
    [head, interfaces.concat(), blocks.concat()].concat()
}

/// Gives octets, and counts how often it is asked.
struct Asked<'a>(&'a [u8], &'a std::cell::Cell<u64>);

impl std::io::Read for Asked<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.1.set(self.1.get() + 1);
        self.0.read(into)
    }
}

#[test]
fn many_damaged_records_cost_no_more_reading_than_whole_ones() {
    let blocks = |interface: u32| (0..80_000).map(|n| packet_block(interface, n, None)).collect::<Vec<_>>();
    let asked = |file: &[u8]| {
        let times = std::cell::Cell::new(0);
        let reader = CaptureReader::new(Asked(file, &times), "memory").unwrap();
        let capture = analyze(vec![reader], Settings::default(), |_| {}).unwrap().capture;
        (times.get(), capture.packets, capture.damage_count)
    };
    let (whole, packets, damages) = asked(&section(1, &blocks(0)));
    assert_eq!((packets, damages), (80_000, 0));
    let (damaged, packets, damages) = asked(&section(1, &blocks(1)));
    assert_eq!((packets, damages), (0, 80_000));
    assert!(damaged <= 2 * whole, "{damaged} readings, {whole} of what is whole");
}

#[test]
fn what_the_capture_lost_is_told_once_or_not_at_all() {
    let statistics =
        |dropped: u64| block(5, &[&[0; 12][..], &[5, 0, 8, 0], &dropped.to_le_bytes(), &[0; 4]].concat());
    let lost = |bytes: &[u8]| {
        let analysis = analyze_bytes(bytes, Settings::default());
        let dropped = analysis.capture.interfaces.iter().map(|one| one.dropped).collect::<Vec<_>>();
        let is_met = |text: &str| text.parse::<Expect>().unwrap().judge(&analysis).met;
        (dropped, is_met("lost_by_capture == 0"), is_met("lost_by_capture == 5"))
    };
    assert_eq!(lost(&pcap(3)), (vec![], false, false), "it cannot say");
    let packets = |dropped: Option<u64>| vec![packet_block(0, 1, None), packet_block(0, 2, dropped)];
    assert_eq!(lost(&section(1, &packets(None))), (vec![], false, false));
    assert_eq!(lost(&section(1, &packets(Some(5)))), (vec![Some(5)], false, true));
    assert_eq!(lost(&section(1, &packets(Some(0)))), (vec![Some(0)], true, false));
    let both = [packets(Some(5)), vec![statistics(5)]].concat();
    assert_eq!(lost(&section(1, &both)), (vec![Some(5)], false, true));
    let elsewhere = [both, vec![packet_block(1, 3, Some(2)), packet_block(1, 4, Some(1))]].concat();
    assert_eq!(lost(&section(2, &elsewhere)), (vec![Some(5), Some(3)], false, false));
    assert_eq!(lost(&section(1, &[statistics(0)])), (vec![Some(0)], true, false));
}

#[test]
fn no_time_and_no_length_make_sums_overflow() {
    let times = [1, u64::MAX, 5, u64::MAX / 2, 0, u64::MAX / 1000, 7, u64::MAX / 1001];
    let blocks: Vec<_> = times.iter().cycle().take(300).map(|time| packet_block(0, *time, None)).collect();
    let analysis = analyze_bytes(&section(1, &blocks), Settings::default());
    assert_eq!((analysis.capture.packets, contradictions(&analysis)), (300, vec![]));
    // Without a length of its own, a packet is as long as the record says.
    let packet = ipv6(6, &Tcp::client(flag::ACK, 5, 6).timestamps(1, 2).header(), 0);
    let mut writer = PcapWriter::new(Vec::new(), LinkType(101), 96).unwrap();
    (0..9).for_each(|n| writer.packet(TIME + n * 100_000_000, u32::MAX - n as u32, &packet).unwrap());
    assert_eq!(analyze_bytes(&writer.into_inner(), Settings::default()).capture.tcp_packets, 9);
}

#[test]
fn a_number_half_the_space_away_is_of_another_connection() {
    let mut trace = Trace::default();
    trace.handshake(20 * support::MS, true, Some(7));
    trace.push(30 * support::MS, Tcp::client(flag::ACK, 0, 0).payload(10));
    trace.push(50 * support::MS, Tcp::server(flag::ACK, 0, 10));
    trace.push(400_000 * support::MS, Tcp::client(flag::ACK, 10, 1 << 31).payload(10));
    assert_eq!(trace.analyze().totals.flows, 2);
}

#[test]
fn a_file_cut_within_a_record_gives_every_whole_record() {
    let whole = pcap(100);
    let (packets, damages) = read_all(&whole[..whole.len() - 5]);
    assert_eq!((packets.len(), damages), (99, 1));
}

fn segment(link: u32, data: &[u8], original: usize) -> Result<Segment, Unfollowed> {
    let packet =
        Packet { time_ns: 1, original_bytes: original as u32, data, link: LinkType(link), direction: None };
    let mut segment = Segment::default();
    match decode(&packet, 0, &mut segment) {
        Decoded::Tcp => Ok(segment),
        Decoded::Not(why) => Err(why),
        other => panic!("{other:?}"),
    }
}

/// An IPv6 packet around something.
fn ipv6(next: u8, payload: &[u8], payload_length: usize) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload_length as u16).to_be_bytes());
    packet.extend([next, 64]);
    packet.extend([0x20; 16]);
    packet.extend([0x21; 16]);
    packet.extend(payload);
    packet
}

fn ipv4(protocol: u8, payload: &[u8], extra: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend(((20 + payload.len() + extra) as u16).to_be_bytes());
    packet.extend([0, 9, 0x40, 0, 64, protocol, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    packet.extend(payload);
    packet
}

#[test]
fn every_link_type_leads_to_the_same_segment() {
    let tcp = Tcp::client(flag::ACK | flag::PSH, 1000, 2000).payload(500).timestamps(7, 8);
    let (ip, total) = tcp.ipv4();
    let prefix = |bytes: &[u8]| [bytes, ip.as_slice()].concat();
    let ethernet = [&[0; 12], [0x08, 0x00].as_slice()].concat();
    let tagged = [&[0; 12], [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x08, 0x00].as_slice()].concat();
    let cooked = [&[0, 4, 0, 1, 0, 6], [0; 8].as_slice(), &[0x08, 0x00]].concat();
    let cooked2 = [[0x08, 0x00, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6].as_slice(), &[0; 8]].concat();
    for (link, head) in [
        (1, ethernet),
        (1, tagged),
        (113, cooked),
        (276, cooked2),
        (101, vec![]),
        (0, vec![2, 0, 0, 0]),
        (108, vec![0, 0, 0, 2]),
    ] {
        let found = segment(link, &prefix(&head), head.len() + total).unwrap();
        assert_eq!(
            (found.sequence, found.acknowledgement, found.payload_bytes),
            (1000, 2000, 500),
            "link {link}"
        );
        assert_eq!(
            (found.ts_value, found.ts_echo, found.key.end(usize::from(found.end))),
            (7, 8, "10.0.0.1:40000".into())
        );
    }
    assert!(matches!(segment(147, &ip, total), Err(Unfollowed::UnknownLink(_))));
}

#[test]
fn tunnels_and_extension_headers_are_seen_through() {
    let tcp = Tcp::client(flag::ACK, 5, 6).payload(900);
    let (inner, _) = tcp.ipv4();
    let header = tcp.header();
    let length = header.len() + 900;
    let gre = [&[0x20, 0, 0x08, 0, 0, 0, 0, 1], inner.as_slice()].concat();
    let vxlan_ethernet = [&[0; 12], [8, 0].as_slice(), &inner].concat();
    let vxlan = [&[0, 1, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0], vxlan_ethernet.as_slice()].concat();
    let options = [
        &[43, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 44, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0],
        header.as_slice(),
    ]
    .concat();
    let chains = [
        ipv6(6, &header, length),
        ipv6(0, &options, length + 32),
        ipv4(4, &inner, 900),
        ipv4(47, &gre, 900),
        ipv4(17, &vxlan, 900),
        ipv4(41, &ipv6(6, &header, length), 900),
        ipv6(4, &inner, inner.len() + 900),
        // A frame above 64 KiB has no length of its own.
        ipv6(6, &header, 0),
    ];
    for packet in chains {
        let found = segment(101, &packet, packet.len() + 900).unwrap();
        assert_eq!((found.sequence, found.acknowledgement, found.payload_bytes), (5, 6, 900));
    }
}

#[test]
fn too_little_is_truncated_and_later_fragments_are_not_followed() {
    let (ip, total) = Tcp::client(flag::ACK, 5, 6).payload(900).ipv4();
    for kept in 1..36 {
        assert_eq!(segment(101, &ip[..kept], total), Err(Unfollowed::Truncated), "{kept}");
    }
    // Sequence numbers, flags and window are in the first 16 octets; nothing more is needed.
    assert_eq!(segment(101, &ip[..36], total).unwrap().payload_bytes, 900);
    let mut fragment = ip.clone();
    fragment[6] = 0x20;
    assert_eq!(segment(101, &fragment, total).unwrap().sequence, 5, "the first one has TCP's header");
    fragment[7] = 1;
    assert_eq!(segment(101, &fragment, total), Err(Unfollowed::Fragment));
}

#[test]
fn a_router_that_wants_smaller_packets_names_the_flow() {
    let (quoted, _) = Tcp::client(flag::ACK, 5, 6).payload(1400).ipv4();
    let icmp = [&[3, 4, 0, 0, 0, 0, 0x05, 0x14], &quoted[..28]].concat();
    let packet = ipv4(1, &icmp, 0);
    let seen = Packet {
        time_ns: 1,
        original_bytes: packet.len() as u32,
        data: &packet,
        link: LinkType(101),
        direction: None,
    };
    let mut quoted = Segment::default();
    assert_eq!(decode(&seen, 0, &mut quoted), Decoded::TooBig { mtu_bytes: 1300 });
    let expected = FlowKey::of((0xffff_0a00_0001, 40_000), (0xffff_0a00_0002, 5001));
    assert_eq!((quoted.key, quoted.end), expected);
}

/// UDP around something, to a port.
fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    [&[0x30, 0x39], &port.to_be_bytes()[..], &[0; 4], payload].concat()
}

#[test]
fn links_that_carry_ip_in_practice_lead_to_the_segment() {
    let (ip, total) = Tcp::client(flag::ACK, 5, 6).payload(900).ipv4();
    let snap: &[u8] = &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
    let wireless = [&[0x08, 0x01][..], &[0; 22], snap].concat();
    let quality = [&[0x88, 0x01][..], &[0; 24], snap].concat();
    let radiotap = [&[0, 0, 12, 0][..], &[0; 8], &wireless].concat();
    let nflog = [&[2, 0, 0, 0][..], &[8, 0, 1, 0, 8, 0, 1, 0], &[0xa4, 3, 9, 0]].concat();
    let pktap = [&[20, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0][..], &[0; 8], &[0; 12], &[8, 0]].concat();
    let ppi = [&[0, 0, 8, 0, 105, 0, 0, 0][..], &wireless].concat();
    let infiniband = [&[0; 40][..], &[8, 0, 0, 0]].concat();
    for (link, head) in [
        (9, vec![0xff, 3, 0, 0x21]),
        (50, vec![0x21]),
        (51, vec![0x11, 0, 0, 1, 0, 99, 0, 0x21]),
        (104, vec![0x0f, 0, 8, 0]),
        (105, wireless.clone()),
        (105, quality),
        (127, radiotap),
        (192, ppi),
        (239, nflog),
        (258, pktap),
        (10, [&[0x50][..], &[0; 12], snap].concat()),
        (6, [&[0; 14][..], snap].concat()),
        (107, vec![0x18, 0x41, 3, 0xcc]),
        (8, vec![0; 16]),
        (242, infiniband),
        (100, snap.to_vec()),
        (123, [&[0; 4][..], snap].concat()),
        (109, vec![0; 12]),
        (204, vec![1, 0xff, 3, 0, 0x21]),
        (166, vec![0, 0xff, 3, 0, 0x21]),
        (205, vec![0, 0x0f, 0, 8, 0]),
        (206, vec![0, 0x18, 0x41, 3, 0xcc]),
        (163, [&[0x80, 0x21, 0x10, 1, 0, 0, 0, 64][..], &[0; 56], &wireless].concat()),
        (106, snap.to_vec()),
        (122, [&[0; 16][..], snap].concat()),
        (138, [&[0; 16][..], &[8, 0]].concat()),
        (240, [&[0; 16][..], &[8, 0]].concat()),
        (274, [&[0; 20][..], &[8, 0]].concat()),
        (1, [&[0; 12][..], &[0x03, 0x9a], snap].concat()),
    ] {
        let found = segment(link, &[head.as_slice(), &ip].concat(), head.len() + total);
        assert_eq!(found.map(|found| (found.sequence, found.payload_bytes)), Ok((5, 900)), "link {link}");
    }
}

#[test]
fn tunnels_of_providers_and_clouds_are_seen_through_at_any_depth() {
    let (ip, _) = Tcp::client(flag::ACK, 5, 6).payload(900).ipv4();
    let ethernet = [&[0; 12][..], &[8, 0], &ip].concat();
    let pppoe = [&[0; 12][..], &[0x88, 0x64, 0x11, 0, 0, 1, 0, 99, 0, 0x21], &ip].concat();
    let labels = [&[0; 12][..], &[0x88, 0x47, 0, 1, 0, 64, 0, 1, 1, 64], &ip].concat();
    let wire = [&[0; 12][..], &[0x88, 0x47, 0, 1, 1, 64, 0, 0, 0, 0], &ethernet].concat();
    for frame in [pppoe, labels, wire] {
        assert_eq!(segment(1, &frame, frame.len() + 900).map(|found| found.sequence), Ok(5));
    }
    let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &ethernet].concat();
    let geneve = [&[1, 0, 0x65, 0x58, 0, 0, 1, 0, 1, 2, 3, 4][..], &ethernet].concat();
    let geneve_ip = [&[0, 0, 8, 0, 0, 0, 1, 0][..], &ip].concat();
    let gtp = [&[0x34, 0xff, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 1, 0][..], &ip].concat();
    let gpe = [&[12, 0, 0, 1, 0, 0, 1, 0][..], &ip].concat();
    let erspan = [&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 7][..], &[0; 8], &ethernet].concat();
    let erspan_first = [&[0, 0, 0x88, 0xbe][..], &ethernet].concat();
    let erspan_third = [&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 7][..], &[0; 12], &ethernet].concat();
    let pptp =
        [&[0x30, 0x81, 0x88, 0x0b, 0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21][..], &ip].concat();
    let (mut six, plain_six) = (vec![0x60, 0, 0, 0], Tcp::client(flag::ACK, 5, 6).payload(900).header());
    six.extend((plain_six.len() as u16 + 900).to_be_bytes());
    six.extend([6, 64]);
    six.extend([[0x20; 16], [0x21; 16]].concat());
    six.extend(&plain_six);
    // RFC 4380, 5.1.1: an origin (8 octets, addresses inverted), and an authentication before it, with or without a
    // client's name.
    let origin = [0, 0, 0x12, 0x34, 1, 2, 3, 4];
    let nameless = [&[0, 1, 0, 0][..], &[7; 8], &[0]].concat();
    let named = [&[0, 1, 3, 4][..], b"abc", b"hash", &[7; 8], &[0]].concat();
    let teredo = |before: &[u8]| ipv4(17, &udp(3544, &[before, &six].concat()), 900);
    let deep = ipv4(47, &[&[0, 0, 8, 0][..], &ipv4(17, &udp(8472, &vxlan), 900)].concat(), 900);
    for packet in [
        ipv4(17, &udp(4789, &vxlan), 900),
        ipv4(17, &udp(8472, &vxlan), 900),
        ipv4(17, &udp(4790, &gpe), 900),
        ipv4(17, &udp(4341, &[&[0x80, 0, 0, 9, 0, 0, 0, 1][..], &ip].concat()), 900),
        ipv4(17, &udp(6081, &geneve), 900),
        ipv4(17, &udp(6081, &geneve_ip), 900),
        ipv4(17, &udp(2152, &gtp), 900),
        // RFC 2661, 3.1: a length, numbers and two octets of padding; and nothing of all that.
        ipv4(
            17,
            &udp(
                1701,
                &[&[0x4a, 2, 0, 9, 0, 1, 0, 1, 0, 0, 0, 0, 0, 2, 9, 9, 0xff, 3, 0, 0x21][..], &ip].concat(),
            ),
            900,
        ),
        ipv4(17, &udp(1701, &[&[0, 2, 0, 1, 0, 1, 0, 0x21][..], &ip].concat()), 900),
        ipv4(17, &udp(6635, &[&[0, 1, 1, 64][..], &ip].concat()), 900),
        ipv4(47, &erspan, 900),
        ipv4(47, &erspan_first, 900),
        ipv4(47, &erspan_third, 900),
        ipv4(47, &pptp, 900),
        teredo(&[]),
        teredo(&origin),
        teredo(&[&nameless[..], &origin].concat()),
        teredo(&named),
        ipv4(51, &[&[4, 4, 0, 0][..], &[0; 20], &ip].concat(), 900),
        deep,
    ] {
        let found = segment(101, &packet, packet.len() + 900);
        assert_eq!(found.map(|found| (found.sequence, found.payload_bytes)), Ok((5, 900)), "{packet:?}");
    }
}

#[test]
fn behind_authentication_headers_of_either_ip_stands_tcp_and_its_checksum() {
    let tcp = Tcp { sum: support::Sum::Right, ..Tcp::client(flag::ACK, 5, 6).payload(900) };
    let (plain, _) = tcp.ipv4();
    let header = |next: u8| [&[next, 4, 0, 0][..], &[0; 20]].concat();
    let around = |headers: &[u8]| {
        let mut packet = [&plain[..20], headers, &plain[20..]].concat();
        packet[2..4].copy_from_slice(&((plain.len() + headers.len()) as u16).to_be_bytes());
        packet[9] = 51;
        packet
    };
    for packet in [around(&header(6)), around(&[header(51), header(6)].concat())] {
        let found = segment(101, &packet, packet.len()).unwrap();
        assert_eq!((found.sequence, found.payload_bytes, found.checksum), (5, 900, Checksum::Right));
    }
    let ipv6 = ipv6(51, &[header(6), tcp.header()].concat(), 24 + tcp.header().len() + 900);
    assert_eq!(segment(101, &ipv6, ipv6.len() + 900).map(|found| found.payload_bytes), Ok(900));
    let cut = around(&header(6));
    assert_eq!(segment(101, &cut[..30], cut.len()), Err(Unfollowed::Truncated));
    let mut other = around(&header(50));
    assert_eq!(segment(101, &other, other.len()).unwrap_err().name(), "ESP (encrypted)");
    // Headers that stand behind IPv6 alone are none behind IPv4.
    other[9] = 60;
    assert_eq!(segment(101, &other, other.len()), Err(Unfollowed::Other(Protocol::Ip(60))));
}

#[test]
fn a_file_that_says_that_frames_end_with_a_check_sequence_is_read() {
    let mut file = made(&Transfer::default()).trace.pcap();
    // Its length in 16-bit words, and that it is there.
    file[23] = 2 << 4 | 1 << 2;
    let analysis = analyze_bytes(&file, Settings::default());
    assert_eq!((analysis.capture.unknown_link_packets, analysis.totals.flows), (0, 1));
}

#[test]
fn what_is_not_looked_into_is_named() {
    let named = |link, data: &[u8]| segment(link, data, data.len()).unwrap_err().name();
    let ether = |kind: [u8; 2]| [&[0; 12][..], &kind, &[0; 40]].concat();
    assert_eq!(named(1, &ether([8, 6])), "ARP");
    assert_eq!(named(1, &ether([0x99, 0x99])), "Ethernet type 0x9999");
    assert_eq!(named(101, &ipv4(50, &[0; 40], 0)), "ESP (encrypted)");
    assert_eq!(named(101, &ipv4(17, &udp(53, &[0; 20]), 0)), "DNS");
    assert_eq!(named(105, &[&[0x08, 0x41][..], &[0; 40]].concat()), "802.11 data (encrypted)");
    assert_eq!(
        named(101, &ipv4(17, &udp(1701, &[0xc8, 2, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0]), 0)),
        "L2TP control"
    );
    assert_eq!(named(1, &ether([0x89, 0x4f])), "NSH");
    assert_eq!(named(220, &[0; 64]), "USB (a link that is not read)");
    assert_eq!(named(197, &[0; 64]), "ERF (a link that is not read)");
    assert_eq!(named(9999, &[0; 64]), "link type 9999 (a link that is not read)");
    assert_eq!(segment(101, &ipv4(17, &udp(9, &[]), 0), 40), Err(Unfollowed::Other(Protocol::Udp(9))));
    let mut writer = PcapWriter::new(Vec::new(), LinkType(1), 96).unwrap();
    for kind in [[8, 6], [0x88, 0xcc], [8, 6]] {
        writer.packet(TIME, 54, &ether(kind)).unwrap();
    }
    let analysis = analyze_bytes(&writer.into_inner(), Settings::default());
    let text = longfat_analyze::summary::text(&analysis);
    assert!(text.contains("not looked into: 2 ARP, 1 LLDP"), "{text}");
}

#[test]
fn other_formats_are_refused_by_their_names() {
    for (beginning, name) in [
        (&b"\xfd7zXZ\0\0\x04"[..], "xz"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\x04\x22\x4d\x18\x64", "lz4"),
        (b"snoop\0\0\0\0\0\0\x02", "snoop"),
        (b"PK\x03\x04\x14", "zip"),
        (&[1, 2, 3, 4, 0, 0x9c, 0x2d, 0x5f, 2, 4, 0, 84, 0, 0, 0, 64, 0, 0], "ERF"),
    ] {
        let refused = CaptureReader::new(beginning, "x.cap").err().unwrap().to_string();
        assert!(refused.contains(name) && refused.contains("x.cap"), "{refused}");
    }
    let text = CaptureReader::new(&b"Frame 1: 66 bytes on wire, 66 captured"[..], "x.txt")
        .err()
        .unwrap()
        .to_string();
    assert!(!text.contains("ERF"), "{text}");
}

/// A file of the given version whose records are 14 octets of 60, with their lengths in the given order.
fn old(magic: u32, version: (u16, u16), lengths: [u32; 2], fraction: u32, more: usize) -> Vec<u8> {
    let mut bytes = magic.to_le_bytes().to_vec();
    bytes.extend(version.0.to_le_bytes());
    bytes.extend(version.1.to_le_bytes());
    [0u32, 0, 96, 1].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    for n in 0..40u32 {
        [1_700_000_000 + n, fraction, lengths[0], lengths[1]]
            .iter()
            .for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(vec![0; more + 14]);
    }
    bytes
}

#[test]
fn old_and_odd_kinds_of_pcap_are_read_whole() {
    for (magic, version, lengths, more) in [
        (0xa1b2_c3d4, (2, 2), [60, 14], 0),
        (0xa1b2_c3d4, (2, 3), [60, 14], 0),
        (0xa1b2_c3d4, (2, 3), [14, 60], 0),
        (0xa1b2_c3d4, (543, 0), [60, 14], 0),
        (0xa1b2_cd34, (2, 4), [14, 60], 8),
    ] {
        let (packets, damages) = read_all(&old(magic, version, lengths, 5, more));
        assert_eq!((packets.len(), damages), (40, 0), "{magic:#x} {version:?}");
        assert!(packets.iter().all(|(_, original, data, _)| (*original, data.len()) == (60, 14)));
    }
}

#[test]
fn a_fraction_of_more_than_a_second_adds_to_the_time() {
    let (packets, damages) = read_all(&old(0xa1b2_c3d4, (2, 4), [14, 60], 1_250_000, 0));
    assert_eq!((packets.len(), damages), (40, 0));
    assert_eq!(packets[0].0, 1_700_000_001_250_000_000);
}

fn arbitrary(head: Vec<u8>, length: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..length).prop_map(move |rest| [head.clone(), rest].concat())
}

/// A good capture with some octets changed.
fn mutated(whole: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let length = whole.len();
    proptest::collection::vec((0..length, any::<u8>()), 0..24).prop_map(move |changes| {
        let mut bytes = whole.clone();
        changes.into_iter().for_each(|(at, value)| bytes[at] = value);
        bytes
    })
}

fn pcapng(packets: usize) -> Vec<u8> {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = writer.interface("eth0", LinkType(1), 96).unwrap();
    for n in 0..packets {
        let (frame, length) = Tcp::client(flag::ACK, n as u32 * 100, 0).payload(100).sack(&[(5, 9)]).frame();
        writer.packet(interface, TIME + n as i64, length as u32, &frame, Some(Direction::Inbound)).unwrap();
    }
    writer.statistics(interface, &totals(7, 1)).unwrap();
    writer.into_inner()
}

proptest! {
    #![proptest_config(support::cases::cases(128))]

    #[test]
    fn no_octets_make_the_reader_fail(
        bytes in prop_oneof![
            arbitrary(pcap(0), 3000),
            arbitrary(pcapng(0)[..28].to_vec(), 3000),
            mutated(pcap(40)),
            mutated(pcapng(40)),
        ],
    ) {
        if let Ok(reader) = CaptureReader::new(bytes.as_slice(), "memory") {
            analyze(vec![reader], Settings::default(), |_| {}).unwrap();
        }
    }

    #[test]
    fn no_octets_make_the_decoder_fail(
        link in prop_oneof![Just(1u32), Just(113), Just(276), Just(101), Just(0), Just(228), Just(229), any::<u32>()],
        data in prop_oneof![
            arbitrary(vec![], 200),
            arbitrary(vec![0x45, 0, 0, 200, 0, 0, 0, 0, 9, 47], 200),
            arbitrary(vec![0x60, 0, 0, 0, 0, 99, 43, 1], 300),
            mutated(Tcp::client(flag::SYN, 1, 2).syn_options(true, Some(3)).timestamps(1, 2).frame().0),
        ],
        original in any::<u32>(),
    ) {
        let packet = Packet { time_ns: 0, original_bytes: original, data: &data, link: LinkType(link), direction: None };
        let _ = decode(&packet, 0, &mut Segment::default());
    }

    #[test]
    fn whatever_the_segments_say_the_analysis_ends_and_contradicts_itself_nowhere(
        packets in proptest::collection::vec(
            (any::<bool>(), any::<u16>(), 0u32..5000, 0u32..5000, any::<u16>(), 0usize..3000, -50_000i64..1_000_000, 0u16..3, any::<[u32; 4]>()),
            1..200,
        ),
        shift in any::<u32>(),
    ) {
        let mut trace = Trace::default();
        let mut now = 0i64;
        for (from_client, flags, seq, ack, window, payload, step, port, edges) in packets {
            now += step;
            let mut tcp = if from_client { Tcp::client(flags & 0x1ff, 0, 0) } else { Tcp::server(flags & 0x1ff, 0, 0) };
            (tcp.seq, tcp.ack, tcp.window) = (seq.wrapping_add(shift), ack.wrapping_add(shift), window);
            tcp.ports.0 += port;
            let (near, far) = (shift.wrapping_add(edges[0] % 6000), edges[1]);
            trace.push(now, tcp.payload(payload).timestamps(edges[2], edges[3]).sack(&[(near, near.wrapping_add(700)), (far, edges[0])]));
        }
        let bytes = trace.pcap();
        let alone = analyze_bytes(&bytes, Settings { detailed: true, ..Settings::default() });
        prop_assert_eq!(contradictions(&alone), Vec::<String>::new());
    }
}
