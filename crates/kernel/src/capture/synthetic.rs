//! Made-up packets through the programs, without an interface: what is kept of each, and what filters say of it.

use super::{Capture, CaptureSpec, Direction, LinkHeader, OUTBOUND, Snap};
use libbpf_rs::ProgramInput;
use longfat_analyze::{
    capture::{LinkType, Packet},
    decode::{Decoded, decode},
    segment::{Checksum, Segment},
};
use proptest::prelude::*;

const PAYLOAD: &[u8] = &[0xee; 60];

fn capture(change: impl FnOnce(&mut CaptureSpec)) -> Capture {
    let mut spec = CaptureSpec {
        interface: String::new(),
        filter: Default::default(),
        direction: None,
        snap: Snap::Transport,
        payload_bytes: 0,
        buffer_bytes: 1 << 20,
        measures_cost: false,
    };
    change(&mut spec);
    Capture::load(&spec, LinkHeader::Ethernet).unwrap_or_else(|error| panic!("{error}"))
}

fn run(capture: &Capture, packet: &[u8]) {
    let program = capture.object.progs_mut().find(|program| program.name() == OUTBOUND).unwrap();
    let input = ProgramInput { data_in: Some(packet), ..ProgramInput::default() };
    program.test_run(input).unwrap();
}

/// What is kept of a packet; nothing when the filter does not mean it.
fn kept(capture: &mut Capture, packet: &[u8]) -> Option<Vec<u8>> {
    run(capture, packet);
    let mut found = None;
    capture.drain(u64::MAX, |one| {
        assert_eq!((one.wire_bytes as usize, one.direction), (packet.len(), Direction::Outbound));
        assert!(found.replace(one.data.to_vec()).is_none(), "one packet, one record");
        true
    });
    found
}

fn ethernet(kind: u16, inner: &[u8]) -> Vec<u8> {
    [&[2; 12], &kind.to_be_bytes()[..], inner].concat()
}

fn tag(id: u16, kind: u16, inner: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], &kind.to_be_bytes(), inner].concat()
}

fn four(protocol: u8, [source, destination]: [u8; 2], options: usize, inner: &[u8]) -> Vec<u8> {
    let header = 20 + options;
    let mut ip = vec![0; header];
    ip[0] = 0x40 | (header / 4) as u8;
    ip[2..4].copy_from_slice(&((header + inner.len()) as u16).to_be_bytes());
    (ip[8], ip[9]) = (64, protocol);
    ip[12..16].copy_from_slice(&[10, 0, 0, source]);
    ip[16..20].copy_from_slice(&[10, 0, 0, destination]);
    [&ip[..], inner].concat()
}

fn six(next: u8, [source, destination]: [u8; 2], inner: &[u8]) -> Vec<u8> {
    let mut ip = [0; 40];
    (ip[0], ip[6], ip[7]) = (0x60, next, 64);
    ip[4..6].copy_from_slice(&(inner.len() as u16).to_be_bytes());
    (ip[8], ip[23]) = (0xfd, source);
    (ip[24], ip[39]) = (0xfd, destination);
    [&ip[..], inner].concat()
}

fn tcp(ports: [u16; 2], flags: u8, options: usize, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![1; 20 + options];
    header[..2].copy_from_slice(&ports[0].to_be_bytes());
    header[2..4].copy_from_slice(&ports[1].to_be_bytes());
    header[12] = (((20 + options) / 4) << 4) as u8;
    header[13] = flags;
    [&header[..], payload].concat()
}

fn gre(flags: u8, kind: u16, inner: &[u8]) -> Vec<u8> {
    let more = 4 * (flags & 0xb0).count_ones() as usize;
    [&[flags, 0], &kind.to_be_bytes()[..], &vec![0; more], inner].concat()
}

/// A packet, the length of its headers, and filters that do and do not mean it.
struct Case {
    name: &'static str,
    packet: Vec<u8>,
    headers: usize,
    meant_by: Vec<&'static str>,
    not_meant_by: Vec<&'static str>,
}

fn case(name: &'static str, packet: Vec<u8>, headers: usize, yes: &'static str, no: &'static str) -> Case {
    Case {
        name,
        packet,
        headers,
        meant_by: yes.split("; ").collect(),
        not_meant_by: no.split("; ").collect(),
    }
}

fn cases() -> Vec<Case> {
    plain_cases().into_iter().chain(tunnel_cases()).chain(other_cases()).collect()
}

fn plain_cases() -> Vec<Case> {
    let segment = tcp([1000, 80], 0x18, 12, PAYLOAD);
    let ip = four(6, [1, 2], 0, &segment);
    let yes = "tcp and port 80; host 10.0.0.1:1000; src 10/8; sport > 999; ipv4; out";
    let no = "udp; dst 10.0.0.1; host 10.0.0.1:80; syn; vlan; gre; ipv6; in; not tcp";
    let options = ethernet(0x800, &four(6, [1, 2], 40, &segment));
    let ip6 = six(6, [1, 2], &segment);
    let extended = [&[43, 0][..], &[0; 6], &[60, 1], &[0; 14], &[6, 0], &[0; 6], &segment].concat();
    let (yes6, no6) = ("ipv6 and tcp; dst fd00::2; host fd00::/16", "ipv4; dst fd00::1; host 10.0.0.1");
    let tagged = ethernet(0x8100, &tag(5, 0x800, &ip));
    let tagged_twice = ethernet(0x88a8, &tag(7, 0x8100, &tag(5, 0x86dd, &ip6)));
    let extensions = ethernet(0x86dd, &six(0, [1, 2], &extended));
    let syn = ethernet(0x800, &four(6, [1, 2], 0, &tcp([1, 2], 2, 40, &[])));
    vec![
        case("ipv4", ethernet(0x800, &ip), 66, yes, no),
        case("ipv4 with options", options, 106, "port 80", "port 81"),
        case("ipv6", ethernet(0x86dd, &ip6), 86, yes6, no6),
        case("ipv6 with extension headers", extensions, 118, "tcp; dport 80", "proto 0"),
        case("vlan", tagged, 70, "vlan; vlan 5; vlan 1-9 and tcp", "vlan 6; vlan != 5"),
        case("two vlans", tagged_twice, 94, "vlan 5; vlan 7", "vlan 6"),
        case("syn", syn, 94, "syn; syn or rst", "rst; fin"),
    ]
}

fn tunnel_cases() -> Vec<Case> {
    let segment = tcp([1000, 80], 0x18, 12, PAYLOAD);
    let (ip, ip6) = (four(6, [1, 2], 0, &segment), six(6, [1, 2], &segment));
    let over4 = |protocol, inner: &[u8]| ethernet(0x800, &four(protocol, [8, 9], 0, inner));
    let yes = "gre and tcp; host 10.0.0.8; host 10.0.0.1; port 80";
    let no = "ipip; proto 47; host 10.0.0.3";
    let bridged = over4(47, &gre(0, 0x6558, &ethernet(0x800, &ip)));
    let long = four(6, [1, 2], 0, &tcp([1, 2], 0x10, 40, PAYLOAD));
    let deep = ethernet(0x800, &four(4, [8, 9], 40, &four(4, [6, 7], 40, &long)));
    vec![
        case("gre", over4(47, &gre(0xb0, 0x800, &ip)), 102, yes, no),
        case("ethernet in gre", bridged, 104, "gre", "ipip"),
        case("ip in ip", over4(4, &ip), 86, "ipip and port 80; src 10.0.0.8; src 10.0.0.1", "gre"),
        case("6 in 4", over4(41, &ip6), 106, "ipip; ipv4; ipv6; dst fd00::2", "gre"),
        case("4 in 6", ethernet(0x86dd, &six(4, [8, 9], &ip)), 106, "ipip; host 10.0.0.1", "udp"),
        case("deep", deep, 214, "port 2", "host 10.0.0.6"),
    ]
}

fn other_cases() -> Vec<Case> {
    let mut fragment = four(6, [1, 2], 0, &tcp([1000, 80], 0x18, 12, PAYLOAD));
    fragment[7] = 100;
    let over4 = |protocol, inner: &[u8]| ethernet(0x800, &four(protocol, [1, 2], 0, inner));
    let quote = four(6, [2, 1], 0, &[9; 8]);
    let too_big = over4(1, &[&[3, 4][..], &[0; 6], &quote, PAYLOAD].concat());
    let udp = over4(17, &[&[0, 53, 0, 54, 0, 68, 0, 0], PAYLOAD].concat());
    let arp = ethernet(0x806, &[&[0; 28][..], &[7; 18]].concat());
    vec![
        case("a later fragment", ethernet(0x800, &fragment), 34, "tcp; host 10.0.0.1", "port 80"),
        case("udp", udp, 42, "udp and port 53", "tcp"),
        case("arp", arp, 42, "arp; not ipv4", "tcp; ipv4; host 0.0.0.0"),
        case("echo", over4(1, &[&[8; 8], PAYLOAD].concat()), 42, "icmp", "port 80"),
        case("packet too big", too_big, 70, "icmp", "tcp"),
        case("unknown", ethernet(0x88cc, PAYLOAD), 14, "not ipv4 and not ipv6", "arp"),
    ]
}

fn decoded(data: &[u8], wire_bytes: usize) -> (Decoded, Segment) {
    let packet =
        Packet { time_ns: 0, original_bytes: wire_bytes as u32, data, link: LinkType(1), direction: None };
    let mut segment = Segment::default();
    let decoded = decode(&packet, 0, &mut segment);
    // Only a whole packet shows whether its checksum is right.
    (decoded, Segment { checksum: Checksum::Unchecked, ..segment })
}

#[test]
fn of_every_packet_the_headers_are_kept_and_nothing_else() {
    let mut capture = capture(|_| {});
    for Case { name, packet, headers, .. } in cases() {
        assert_eq!(kept(&mut capture, &packet), Some(packet[..headers].to_vec()), "{name}");
    }
}

#[test]
fn what_is_kept_says_to_the_analysis_what_the_whole_packet_says() {
    let mut capture = capture(|_| {});
    for Case { name, packet, .. } in cases() {
        let headers = kept(&mut capture, &packet).unwrap();
        assert_eq!(decoded(&headers, packet.len()), decoded(&packet, packet.len()), "{name}");
    }
}

#[test]
fn filters_mean_the_packets_they_say_and_count_what_they_meant() {
    let cases = cases();
    let mut filters: Vec<&str> =
        cases.iter().flat_map(|case| case.meant_by.iter().chain(&case.not_meant_by)).copied().collect();
    filters.sort_unstable();
    filters.dedup();
    for filter in filters {
        let mut capture = capture(|spec| spec.filter = filter.parse().unwrap());
        let mut meant = 0;
        for Case { name, packet, headers, meant_by, not_meant_by } in &cases {
            let found = kept(&mut capture, packet);
            assert!(found.is_none() || !not_meant_by.contains(&filter), "'{filter}' must not mean {name}");
            assert!(found.is_some() || !meant_by.contains(&filter), "'{filter}' must mean {name}");
            meant += u64::from(found.is_some());
            assert!(found.is_none_or(|data| data == packet[..*headers]));
        }
        assert_eq!((capture.counts().seen[1], capture.counts().matched[1]), (cases.len() as u64, meant));
    }
}

#[test]
fn a_filter_as_long_as_filters_may_be_is_taken_and_understood() {
    let mut words: Vec<String> = (1..32).map(|port| format!("host 10.9.9.9:{port}")).collect();
    words.truncate(15);
    words.push("host 10.0.0.1:1000".into());
    let mut capture = capture(|spec| spec.filter = words.join(" or ").parse().unwrap());
    let cases = cases();
    assert!(kept(&mut capture, &cases[0].packet).is_some());
    assert!(kept(&mut capture, &cases[2].packet).is_none());
}

#[test]
fn the_layer_and_the_payload_asked_for_are_what_is_kept() {
    let packet = ethernet(0x8100, &tag(5, 0x800, &four(6, [1, 2], 0, &tcp([1, 2], 16, 12, &[7; 1400]))));
    let long = ethernet(0x800, &four(17, [1, 2], 0, &[3; 2400]));
    for (snap, payload_bytes, wanted) in [
        (Snap::Link, 0, 18),
        (Snap::Network, 0, 38),
        (Snap::Transport, 0, 70),
        (Snap::Transport, 100, 170),
        (Snap::Network, 10, 48),
        (Snap::Transport, 1500, packet.len()),
    ] {
        let mut capture = capture(|spec| (spec.snap, spec.payload_bytes) = (snap, payload_bytes));
        assert_eq!(kept(&mut capture, &packet), Some(packet[..wanted].to_vec()), "{snap:?} {payload_bytes}");
        if payload_bytes == 1500 {
            assert_eq!(kept(&mut capture, &long).unwrap().len(), 42 + 1500);
        }
    }
}

#[test]
fn a_ring_without_room_counts_what_it_loses_and_goes_on_when_it_was_read() {
    const PACKETS: u64 = 20_000;
    let mut capture = capture(|spec| spec.buffer_bytes = 65_536);
    let packet = &cases()[0].packet;
    // Each processor has a ring: these overfill all of them.
    for _ in 0..PACKETS {
        run(&capture, packet);
    }
    let mut read = 0;
    capture.drain(u64::MAX, |_| {
        read += 1;
        true
    });
    let counts = capture.counts();
    assert!(counts.dropped[1] > 0 && read > 500, "{counts:?}, {read} read");
    assert_eq!((counts.seen[1], counts.matched[1], counts.dropped[1] + read), (PACKETS, PACKETS, PACKETS));
    assert!(kept(&mut capture, packet).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_packet_is_kept_as_its_own_beginning(
        kind in prop::sample::select(vec![0x800u16, 0x86dd, 0x8100, 0x806, 0x1234]),
        protocol in prop::sample::select(vec![4u8, 41, 47, 6, 17, 1, 58, 0, 43, 44, 51, 60, 200]),
        // Rounds of several packets: loading the programs costs more than running them. The kernel runs none that is
        // too short for an IP header.
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 40..400), 50),
    ) {
        let mut capture = capture(|spec| spec.filter = "not host 1.2.3.4 or tcp".parse().unwrap());
        for mut inner in packets {
            inner[0] = if kind == 0x800 { 0x40 | inner[0] & 15 } else { 0x60 };
            inner[if kind == 0x800 { 9 } else { 6 }] = protocol;
            let packet = ethernet(kind, &inner);
            if let Some(data) = kept(&mut capture, &packet) {
                prop_assert!(data.len() <= 256 && data.len() >= packet.len().min(14));
                prop_assert_eq!(&data[..], &packet[..data.len()]);
            }
        }
    }
}
