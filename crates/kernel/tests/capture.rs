//! Headers of real packets between two namespaces: every one of them, the right octets of each, and nothing left
//! behind.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bed;

use bed::{Bed, raw_socket, send_frames, send_to, until};
use longfat_host::{
    Namespace,
    interface::Offload::{Gso, Tso},
};
use longfat_kernel::capture::{Capture, CaptureSpec, Direction, Filter, LinkHeader, Snap};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    time::Duration,
};

impl Bed {
    fn attach(&self, change: impl FnOnce(&mut CaptureSpec)) -> Capture {
        let mut spec = spec("");
        change(&mut spec);
        self.near.run(|| Capture::attach(&spec)).unwrap().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sends so many octets from near to far, and one back.
    fn transfer(&self, to: &str, bytes: usize) {
        let listener = self.far.run(|| TcpListener::bind(to)).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let mut near = self.near.run(|| TcpStream::connect(to)).unwrap().unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        near.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let reader = std::thread::spawn(move || {
            let (mut left, mut buffer) = (bytes, vec![0; 1 << 16]);
            while left > 0 {
                left -= far.read(&mut buffer).unwrap();
            }
            far.write_all(&[1]).unwrap();
        });
        near.write_all(&vec![7; bytes]).unwrap();
        near.read_exact(&mut [0]).unwrap();
        reader.join().unwrap();
    }
}

fn spec(filter: &str) -> CaptureSpec {
    CaptureSpec {
        interface: "eth0".to_owned(),
        filter: filter.parse::<Filter>().unwrap(),
        direction: None,
        snap: Snap::Transport,
        payload_bytes: 0,
        buffer_bytes: 8 << 20,
        measures_cost: false,
    }
}

#[derive(Debug, Clone)]
struct Seen {
    time_ns: u64,
    wire_bytes: u64,
    segments: u64,
    direction: Direction,
    data: Vec<u8>,
}

fn drained(capture: &mut Capture) -> Vec<Seen> {
    let mut found = Vec::new();
    capture.drain(u64::MAX, |one| {
        found.push(Seen {
            time_ns: one.time_ns,
            wire_bytes: one.wire_bytes.into(),
            segments: one.segments.into(),
            direction: one.direction,
            data: one.data.to_vec(),
        });
        true
    });
    found
}

/// Packets and octets that an interface itself counted: received, then sent.
fn counted(namespace: &Namespace) -> [(u64, u64); 2] {
    counted_at(namespace, "eth0")
}

fn counted_at(namespace: &Namespace, interface: &str) -> [(u64, u64); 2] {
    let text = namespace.command("cat").arg("/proc/net/dev").output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{interface}:"))).unwrap();
    let fields: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap()).collect();
    [(fields[1], fields[0]), (fields[9], fields[8])]
}

/// What a capture of `work` has of each direction, and what the interface counted meanwhile. Repeated until nothing
/// passed while the programs were attached and taken off: only then do both speak of the same time.
fn accounted(bed: &Bed, change: impl Fn(&mut CaptureSpec), work: impl Fn()) -> (Vec<Seen>, [(u64, u64); 2]) {
    for _ in 0..20 {
        let before = counted(&bed.near);
        let mut capture = bed.attach(&change);
        let attached = counted(&bed.near);
        work();
        std::thread::sleep(Duration::from_millis(20));
        let after = counted(&bed.near);
        capture.detach();
        if before == attached && after == counted(&bed.near) {
            let seen = drained(&mut capture);
            assert_eq!(capture.counts().dropped, [0, 0]);
            let grown = [0, 1].map(|way| (after[way].0 - before[way].0, after[way].1 - before[way].1));
            return (seen, grown);
        }
    }
    panic!("something passes all the time");
}

/// Records and octets of one direction.
fn sums(seen: &[Seen], direction: Direction) -> (u64, u64) {
    let of: Vec<_> = seen.iter().filter(|one| one.direction == direction).collect();
    (of.len() as u64, of.iter().map(|one| one.wire_bytes).sum())
}

fn every_packet_is_there(bed: &Bed, to: &str) -> Vec<Seen> {
    let (seen, grown) = accounted(bed, |_| {}, || bed.transfer(to, 3_000_000));
    assert_eq!([sums(&seen, Direction::Inbound), sums(&seen, Direction::Outbound)], grown);
    assert!(seen.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns), "in the order of their times");
    seen
}

#[test]
fn every_packet_of_an_ipv4_transfer_is_there_as_the_interface_counts() {
    let bed = Bed::new("four");
    let seen = every_packet_is_there(&bed, "10.74.0.2:0");
    // Bundles that the interface would cut: more packets on the wire than records.
    let segments: u64 = seen.iter().map(|one| one.segments).sum();
    assert!(segments > seen.len() as u64 && segments >= 3_000_000 / 1448, "{segments} of {}", seen.len());
    assert!(seen.iter().all(|one| one.data.len() <= 14 + 20 + 60), "headers only");
}

/// What goes round in a host passes its loopback interface twice: it leaves, and arrives.
#[test]
fn every_packet_of_a_loopback_interface_is_recorded_once() {
    let bed = Bed::new("round");
    bed.near.ip(&["link", "set", "lo", "up"]).unwrap();
    let before = counted_at(&bed.near, "lo");
    let mut capture = bed.attach(|spec| spec.interface = "lo".to_owned());
    let listener = bed.near.run(|| TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
    let mut near = bed.near.run(|| TcpStream::connect(listener.local_addr().unwrap())).unwrap().unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
    near.write_all(&vec![7; 1_000_000]).unwrap();
    drop(near);
    assert_eq!(reader.join().unwrap(), 1_000_000);
    std::thread::sleep(Duration::from_millis(20));
    capture.detach();
    let [arrived, left] = counted_at(&bed.near, "lo");
    let seen = drained(&mut capture);
    let packets = arrived.0 - before[0].0;
    assert_eq!((arrived, capture.counts().dropped), (left, [0, 0]));
    assert!(packets > 10);
    // The interface counts what is behind the link header.
    assert_eq!(sums(&seen, Direction::Inbound), (packets, arrived.1 - before[0].1 + 14 * packets));
    assert_eq!(sums(&seen, Direction::Outbound), (0, 0));
}

#[test]
fn every_segment_of_an_ipv6_transfer_is_counted_though_the_kernel_cuts_bundles_behind_the_hook() {
    let bed = Bed::new("cut");
    // Segments leave one by one; what the sockets make of it is another matter.
    bed.without(&[Tso, Gso]);
    let (seen, grown) = accounted(&bed, |_| {}, || bed.transfer("[fd74::2]:0", 3_000_000));
    assert_eq!(sums(&seen, Direction::Inbound), grown[0]);
    let out = || seen.iter().filter(|one| one.direction == Direction::Outbound);
    let packets: u64 = out().map(|one| one.segments).sum();
    // Each segment but the first brings headers of its own; all of them were kept.
    let octets: u64 = out().map(|one| one.wire_bytes + (one.segments - 1) * one.data.len() as u64).sum();
    assert_eq!((packets, octets), grown[1]);
    assert!(packets > 2000 && (out().count() as u64) < packets);
}

#[test]
fn every_packet_of_an_ipv6_transfer_is_there_one_by_one_where_sockets_may_not_make_bundles() {
    let bed = Bed::new("six");
    // Segments leave one by one; what the sockets make of it is another matter.
    bed.without(&[Tso, Gso]);
    for namespace in [&bed.near, &bed.far] {
        namespace.ip(&["link", "set", "eth0", "gso_max_segs", "1"]).unwrap();
    }
    let seen = every_packet_is_there(&bed, "[fd74::2]:0");
    assert!(seen.iter().all(|one| one.wire_bytes <= 1514 && one.segments == 1));
    assert!(sums(&seen, Direction::Outbound).0 > 2000);
}

#[test]
fn one_direction_alone_is_captured_when_asked_for() {
    let bed = Bed::new("way");
    let only = |spec: &mut CaptureSpec| spec.direction = Some(Direction::Inbound);
    let (seen, grown) = accounted(&bed, only, || bed.transfer("10.74.0.2:0", 100_000));
    assert_eq!([sums(&seen, Direction::Inbound), sums(&seen, Direction::Outbound)], [grown[0], (0, 0)]);
}

/// An IPv4 packet with TCP of 20 octets and a payload of 100.
fn inner_packet() -> Vec<u8> {
    let mut packet = vec![0; 140];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, 140, 64, 6);
    packet[12..20].copy_from_slice(&[10, 75, 0, 1, 10, 75, 0, 2]);
    packet[20..24].copy_from_slice(&[0, 99, 0, 80]);
    packet[32] = 5 << 4;
    packet
}

/// Sends packets of an IP protocol to far; the kernel writes the outer IP header.
fn send_ip(bed: &Bed, protocol: u8, packet: &[u8]) {
    // SAFETY: an all-zero address is valid.
    let mut to: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    to.sin_family = libc::AF_INET as u16;
    to.sin_addr.s_addr = u32::from_ne_bytes([10, 74, 0, 2]);
    let send = || send_to(&raw_socket(libc::AF_INET, protocol.into()), packet, 50, &to);
    bed.near.run(send).unwrap();
}

/// Asserts that both ends record the same headers of every packet that `send` sends: 50 of them.
fn is_seen_through_at_both_ends(bed: &Bed, filter: &str, headers: usize, send: impl Fn()) {
    let mean = |text: String| move |spec: &mut CaptureSpec| spec.filter = text.parse().unwrap();
    let mut captures = [&bed.near, &bed.far].map(|namespace| {
        let spec = spec(filter);
        namespace.run(|| Capture::attach(&spec)).unwrap().unwrap()
    });
    send();
    std::thread::sleep(Duration::from_millis(20));
    let [near, far] = &mut captures;
    near.detach();
    far.detach();
    let (sent, arrived) = (drained(near), drained(far));
    assert_eq!((sent.len(), arrived.len()), (50, 50));
    for (sent, arrived) in sent.iter().zip(&arrived) {
        assert_eq!((sent.direction, arrived.direction), (Direction::Outbound, Direction::Inbound));
        assert_eq!((&sent.data, sent.wire_bytes), (&arrived.data, arrived.wire_bytes));
        assert_eq!(sent.data.len(), headers);
    }
    let (others, _) = accounted(bed, mean(format!("not ({filter}) and not arp and ipv4")), send);
    assert_eq!(others.iter().filter(|one| one.direction == Direction::Outbound).count(), 0);
}

#[test]
fn a_vlan_tag_is_where_it_is_on_the_wire_also_where_the_kernel_keeps_it_beside_the_packet() {
    let bed = Bed::new("vlan");
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x81, 0, 0, 42, 8, 0], &inner_packet()].concat();
    let send = || send_frames(&frame, 50);
    let filter = "vlan 42 and tcp and host 10.75.0.2 and port 80";
    is_seen_through_at_both_ends(&bed, filter, 14 + 4 + 20 + 20, || bed.near.run(send).unwrap());
}

#[test]
fn gre_is_seen_through() {
    let bed = Bed::new("gre");
    let packet = [&[0x20, 0, 8, 0, 0, 0, 0, 7][..], &inner_packet()].concat();
    let filter = "gre and tcp and host 10.75.0.1 and host 10.74.0.1";
    is_seen_through_at_both_ends(&bed, filter, 14 + 20 + 8 + 20 + 20, || send_ip(&bed, 47, &packet));
}

#[test]
fn ip_in_ip_is_seen_through() {
    let bed = Bed::new("ipip");
    let filter = "ipip and tcp and src 10.75.0.0/24";
    is_seen_through_at_both_ends(&bed, filter, 14 + 20 + 20 + 20, || send_ip(&bed, 4, &inner_packet()));
}

#[test]
fn an_interface_without_link_headers_is_captured_as_bare_ip() {
    let bed = Bed::new("tun");
    bed.near.ip(&["tuntap", "add", "dev", "over", "mode", "tun"]).unwrap();
    bed.near.ip(&["addr", "add", "10.76.0.1/24", "dev", "over"]).unwrap();
    bed.near.ip(&["link", "set", "over", "up"]).unwrap();
    let mut capture = bed.attach(|spec| {
        spec.interface = "over".into();
        spec.filter = "udp and dst 10.76.0.2:9".parse().unwrap();
    });
    assert_eq!(capture.link_header(), LinkHeader::RawIp);
    let socket = bed.near.run(|| UdpSocket::bind("10.76.0.1:0")).unwrap().unwrap();
    // Nobody is at the other end of the interface: it may refuse, behind the hook.
    let _ = socket.send_to(&[7; 100], "10.76.0.2:9");
    capture.detach();
    let seen = drained(&mut capture);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].data.len(), seen[0].data[0], seen[0].wire_bytes), (28, 0x45, 128));
}

#[test]
fn with_a_tiny_ring_and_no_reader_every_packet_is_there_or_counted_as_lost() {
    let bed = Bed::new("tiny");
    let mut capture = bed.attach(|spec| {
        spec.buffer_bytes = 65_536;
        spec.filter = "udp and dst port 9".parse().unwrap();
    });
    let socket = bed.near.run(|| UdpSocket::bind("10.74.0.1:0")).unwrap().unwrap();
    const SENT: u64 = 4000;
    for _ in 0..SENT {
        socket.send_to(&[0; 10], "10.74.0.2:9").unwrap();
    }
    capture.detach();
    std::thread::sleep(Duration::from_millis(10));
    let seen = drained(&mut capture).len() as u64;
    let counts = capture.counts();
    assert_eq!((counts.matched, counts.dropped[0]), ([0, SENT], 0));
    assert!(counts.dropped[1] > 0 && seen > 0, "{counts:?}");
    assert_eq!(seen + counts.dropped[1], SENT);
}

#[test]
fn what_the_programs_take_of_the_traffics_time_is_measured_when_asked_for() {
    let bed = Bed::new("cost");
    let mut capture = bed.attach(|spec| spec.measures_cost = true);
    bed.transfer("10.74.0.2:0", 1_000_000);
    let cost = capture.cost().unwrap();
    capture.detach();
    let seen: u64 = capture.counts().seen.iter().sum();
    assert!(cost.runs > 10 && cost.runs <= seen && cost.time_ns > 0, "{cost:?} of {seen}");
}

/// Programs at an interface's tcx hooks.
fn programs(namespace: &Namespace) -> u32 {
    let count = |hook| {
        let mut options = libbpf_sys::bpf_prog_query_opts {
            sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
            ..Default::default()
        };
        // SAFETY: the name is terminated; the options live through the call and ask for no list.
        let result = unsafe {
            let index = libc::if_nametoindex(c"eth0".as_ptr());
            libbpf_sys::bpf_prog_query_opts(index as i32, hook, &raw mut options)
        };
        assert_eq!(result, 0);
        // SAFETY: the kernel filled in the count.
        unsafe { options.__bindgen_anon_1.count }
    };
    namespace.run(|| count(libbpf_sys::BPF_TCX_INGRESS) + count(libbpf_sys::BPF_TCX_EGRESS)).unwrap()
}

/// Not a test of its own: the process that the next one kills.
#[test]
fn capture_until_killed() {
    let Ok(namespace) = std::env::var("LONGFAT_CAPTURE_IN") else { return };
    let capture = Namespace::open(&namespace).unwrap().run(|| Capture::attach(&spec(""))).unwrap().unwrap();
    assert!(capture.is_attached());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_capture_leaves_nothing_attached_and_a_removed_interface_is_noticed() {
    let bed = Bed::new("kill");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["capture_until_killed", "--exact"])
        .env("LONGFAT_CAPTURE_IN", bed.near.name())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let count = || format!("{} programs", programs(&bed.near));
    until(|| programs(&bed.near) == 2, count);
    child.kill().unwrap();
    child.wait().unwrap();
    until(|| programs(&bed.near) == 0, count);
    let capture = bed.attach(|_| {});
    assert!(capture.is_attached() && programs(&bed.near) == 2);
    bed.near.ip(&["link", "del", "eth0"]).unwrap();
    until(|| !capture.is_attached(), || "it is attached".into());
}

/// As [`send_frames`], one bundle that another machine has made: with the size of its packets, but not their number.
fn send_foreign_bundle(frame: &[u8], headers_bytes: u16, packet_bytes: u16) {
    const NEEDS_CHECKSUM: u8 = 1;
    const TCP_OVER_IPV4: u8 = 1;
    let socket = raw_socket(libc::AF_PACKET, 0);
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open and the value is valid for its length; an all-zero address is valid, and the name
    // is terminated.
    let (mut to, index): (libc::sockaddr_ll, u32) = unsafe {
        let length = size_of_val(&on) as libc::socklen_t;
        let set = libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_VNET_HDR,
            (&raw const on).cast(),
            length,
        );
        assert_eq!(set, 0);
        (std::mem::zeroed(), libc::if_nametoindex(c"eth0".as_ptr()))
    };
    (to.sll_family, to.sll_halen, to.sll_ifindex) = (libc::AF_PACKET as u16, 6, index as i32);
    to.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    let mut head = vec![NEEDS_CHECKSUM, TCP_OVER_IPV4];
    let (checksum_from, checksum_at) = (34_u16, 16_u16);
    for half in [headers_bytes, packet_bytes, checksum_from, checksum_at] {
        head.extend(half.to_ne_bytes());
    }
    send_to(&socket, &[&head[..], frame].concat(), 1, &to);
}

#[test]
fn packets_of_a_bundle_from_another_machine_are_counted_by_their_size() {
    let bed = Bed::new("virtio");
    let bundle = |payload_bytes: u16| {
        let mut packet = inner_packet();
        packet.resize(40 + usize::from(payload_bytes), 0);
        packet[2..4].copy_from_slice(&(40 + payload_bytes).to_be_bytes());
        [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[8, 0], &packet].concat()
    };
    let mut capture = bed.attach(|spec| spec.filter = "host 10.75.0.2".parse().unwrap());
    for payload_bytes in [3000, 3001, 2999] {
        bed.near.run(|| send_foreign_bundle(&bundle(payload_bytes), 54, 1000)).unwrap();
    }
    capture.detach();
    let segments: Vec<_> = drained(&mut capture).iter().map(|one| one.segments).collect();
    assert_eq!(segments, [3, 4, 3]);
}
