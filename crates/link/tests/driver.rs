//! The driver between real namespaces: two hosts, and between them a namespace with the link. Nothing here asserts
//! how fast anything is; only what physics and arithmetic guarantee.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use longfat_host::{
    Lease, Namespace,
    interface::{self, End},
};
use longfat_link::{
    LinkPlan, LinkSpec,
    driver::{self, DriverError, DriverReport, Options, Start},
};
use longfat_schema::{
    lines::{self, Lines},
    record::Record,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

const LEFT: [&str; 2] = ["10.9.0.1", "fd99::1"];
const RIGHT: [&str; 2] = ["10.9.0.2", "fd99::2"];

/// Two hosts on one emulated wire.
struct Bed {
    left: Namespace,
    right: Namespace,
    link: Namespace,
    _lease: Lease,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let lease = Lease::take(&format!("linktest-{name}-{}", std::process::id())).unwrap();
        let [left, right, link] = ["left", "right", "link"].map(|role| lease.namespace(role).unwrap());
        for (host, end, addresses) in [(&left, "a", LEFT), (&right, "b", RIGHT)] {
            let (host_end, link_end) =
                (End { namespace: host, name: "eth" }, End { namespace: &link, name: end });
            interface::veth(host_end, link_end, 1500).unwrap();
            driver::prepare_host_end(host, "eth").unwrap();
            host.ip(&["address", "add", &format!("{}/24", addresses[0]), "dev", "eth"]).unwrap();
            host.ip(&["address", "add", &format!("{}/64", addresses[1]), "dev", "eth", "nodad"]).unwrap();
        }
        Bed { left, right, link, _lease: lease }
    }

    /// A bed for counting: no IPv6, whose announcements would be counted too.
    fn silent(name: &str) -> Bed {
        let bed = Bed::new(name);
        for host in [&bed.left, &bed.right] {
            let off = || longfat_host::sysctl::write("net.ipv6.conf.all.disable_ipv6", "1");
            host.run(off).unwrap().unwrap();
        }
        bed
    }

    /// Runs the driver while `work` runs.
    fn drive<T>(&self, plan: &LinkPlan, lines: &Lines, work: impl FnOnce(&Bed) -> T) -> (T, DriverReport) {
        let stop = AtomicBool::new(false);
        let (ready, is_ready) = mpsc::channel();
        thread::scope(|scope| {
            let (stop, link) = (&stop, &self.link);
            let driver = scope.spawn(move || {
                let options = Options { plan, a: "a", b: "b", lines, stop, start: Start::Now };
                link.run(|| driver::run(&options, || ready.send(()).unwrap())).unwrap()
            });
            let raised = StopOnDrop(stop);
            is_ready.recv().expect("the driver starts");
            let value = work(self);
            drop(raised);
            (value, driver.join().unwrap().unwrap())
        })
    }
}

/// A failing assertion must not leave the driver running.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn plan(toml: &str) -> LinkPlan {
    LinkSpec::from_toml(toml).unwrap().resolve("path", 3).unwrap()
}

fn udp(host: &Namespace, address: &str) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let socket = host.run(|| UdpSocket::bind(SocketAddr::new(address, 7000))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn at(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 7000)
}

/// Sends a datagram across and back; the time it took.
fn round_trip(from: &UdpSocket, to: &UdpSocket, address: &str, bytes: usize) -> Duration {
    let (start, mut buffer) = (Instant::now(), vec![0; 2000]);
    from.send_to(&vec![7; bytes], at(address)).unwrap();
    let (length, sender) = to.recv_from(&mut buffer).expect("the datagram arrives");
    to.send_to(&buffer[..length], sender).unwrap();
    assert_eq!(from.recv_from(&mut buffer).expect("its echo arrives").0, bytes);
    start.elapsed()
}

#[test]
fn a_round_trip_takes_at_least_both_delays_for_ipv4_and_ipv6_at_any_size() {
    let bed = Bed::new("rtt");
    let plan = plan("rate = '100Mbit'\ndelay = '15ms'\nbackward = { delay = '25ms' }");
    bed.drive(&plan, &Lines::default(), |bed| {
        for (left, right, header) in [(LEFT[0], RIGHT[0], 28), (LEFT[1], RIGHT[1], 48)] {
            let (a, b) = (udp(&bed.left, left), udp(&bed.right, right));
            // The first one includes ARP or neighbour discovery, which crosses the link as well.
            assert!(round_trip(&a, &b, right, 1) >= Duration::from_millis(80));
            for bytes in [1, 100, 1500 - header] {
                assert!(round_trip(&a, &b, right, bytes) >= Duration::from_millis(40));
            }
        }
    });
}

#[test]
fn a_link_without_delay_passes_packets_too() {
    let bed = Bed::new("nodelay");
    let (_, report) = bed.drive(&plan("rate = '1Gbit'"), &Lines::default(), |bed| {
        let (a, b) = (udp(&bed.left, LEFT[0]), udp(&bed.right, RIGHT[0]));
        for _ in 0..50 {
            round_trip(&a, &b, RIGHT[0], 500);
        }
    });
    assert!(report.forward.delivered_packets >= 50 && report.backward.delivered_packets >= 50, "{report:?}");
}

/// Sends `count` datagrams as fast as they go; how many arrived. They all have left or are dropped when it returns.
fn flood(bed: &Bed, count: u64, bytes: usize) -> u64 {
    let (sender, receiver) = (udp(&bed.left, LEFT[0]), udp(&bed.right, RIGHT[0]));
    longfat_host::socket::set_buffer(&receiver, longfat_host::socket::Buffer::Receive, 64 << 20).unwrap();
    round_trip(&sender, &receiver, RIGHT[0], 1);
    receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    thread::scope(|scope| {
        let counted = scope.spawn(|| {
            let mut buffer = [0; 2000];
            std::iter::from_fn(|| receiver.recv(&mut buffer).ok()).filter(|length| *length == bytes).count()
        });
        for number in 0..count {
            sender.send_to(&vec![0; bytes], at(RIGHT[0])).unwrap();
            // Twice 100 Mbit/s with 1000 bytes each; late wake-ups only make it bursty.
            if number % 25 == 24 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        counted.join().unwrap() as u64
    })
}

#[test]
fn at_twice_the_rate_every_datagram_is_delivered_or_counted_as_dropped() {
    let bed = Bed::silent("flood");
    let plan = plan("rate = '50Mbit'\ndelay = '5ms'\nqueue = { limit = '50KB' }");
    let sent = 8000;
    let (received, report) = bed.drive(&plan, &Lines::default(), |bed| flood(bed, sent, 1000));
    let forward = &report.forward;
    assert_eq!(forward.overrun_packets, 0, "{report:?}");
    assert_eq!(forward.offered_packets, forward.delivered_packets + forward.dropped_packets, "{report:?}");
    // Beside the flood: ARP and the datagrams of the round trip, none of which met a full queue.
    assert_eq!(sent - received, forward.dropped_packets, "{report:?}");
    assert!(forward.dropped_packets > 100, "the queue must have overflowed: {report:?}");
    assert!(forward.queue_max_bytes <= 50_000 && forward.queue_max_bytes > 45_000, "{report:?}");
    assert_eq!(report.backward.dropped_packets, 0);
}

#[test]
fn the_loss_model_accounts_for_every_missing_datagram() {
    let bed = Bed::silent("loss");
    let plan = plan("delay = '2ms'\nschedule = [{ at = '300ms', loss = 0.2, direction = 'forward' }]");
    let sent = 3000;
    let (received, report) = bed.drive(&plan, &Lines::default(), |bed| {
        let (sender, receiver) = (udp(&bed.left, LEFT[0]), udp(&bed.right, RIGHT[0]));
        round_trip(&sender, &receiver, RIGHT[0], 1);
        drop((sender, receiver));
        thread::sleep(Duration::from_millis(300));
        // Loss may now take the round trip inside flood(): count by hand.
        let (sender, receiver) = (udp(&bed.left, LEFT[0]), udp(&bed.right, RIGHT[0]));
        receiver.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        longfat_host::socket::set_buffer(&receiver, longfat_host::socket::Buffer::Receive, 64 << 20).unwrap();
        for _ in 0..sent {
            sender.send_to(&[0; 200], at(RIGHT[0])).unwrap();
        }
        let mut buffer = [0; 300];
        std::iter::from_fn(|| receiver.recv(&mut buffer).ok()).count() as u64
    });
    assert_eq!(report.forward.overrun_packets, 0);
    assert_eq!(sent - received, report.forward.lost_packets, "{report:?}");
    assert!((450..750).contains(&report.forward.lost_packets), "{report:?}");
}

#[test]
fn a_tcp_stream_arrives_byte_for_byte_over_ipv4_and_ipv6_joined_or_not() {
    for coalesce in ["0s", "100us"] {
        let bed = Bed::new(&format!("tcp-{coalesce}"));
        let toml = format!(
            "rate = '200Mbit'\ndelay = '2ms'\nloss = 0.005\ncoalesce = '{coalesce}'\n\
             queue = {{ discipline = 'red', limit = '100KB', ecn = true }}"
        );
        let (_, report) = bed.drive(&plan(&toml), &Lines::default(), |bed| {
            for address in RIGHT {
                let sent: Vec<u8> =
                    (0..4_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
                assert!(transfer(bed, address, &sent) == sent, "the stream was changed on the way");
            }
        });
        assert_eq!((report.forward.overrun_packets, report.oversize_frames), (0, 0), "{report:?}");
        assert!(report.forward.lost_packets > 0, "{report:?}");
    }
}

fn transfer(bed: &Bed, address: &str, bytes: &[u8]) -> Vec<u8> {
    let listener = bed.right.run(|| TcpListener::bind(at(address))).unwrap().unwrap();
    thread::scope(|scope| {
        let received = scope.spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        let mut stream = bed.left.run(|| TcpStream::connect(at(address))).unwrap().unwrap();
        stream.write_all(bytes).unwrap();
        drop(stream);
        received.join().unwrap()
    })
}

#[test]
fn segments_larger_than_the_mtu_are_refused_and_the_run_is_invalid() {
    let bed = Bed::new("gso");
    bed.left
        .run(|| {
            interface::set_offload("eth", interface::Offload::Gso, true).unwrap();
            interface::set_offload("eth", interface::Offload::Tso, true).unwrap();
        })
        .unwrap();
    let (_, report) = bed.drive(&plan("delay = '1ms'"), &Lines::default(), |bed| {
        let listener = bed.right.run(|| TcpListener::bind(at(RIGHT[0]))).unwrap().unwrap();
        let mut stream = bed.left.run(|| TcpStream::connect(at(RIGHT[0]))).unwrap().unwrap();
        let _peer = listener.accept().unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let _ = stream.write_all(&[0; 100_000]);
        thread::sleep(Duration::from_millis(100));
    });
    assert!(report.oversize_frames > 0 && !report.forward.punctual, "{report:?}");
    assert!(report.warnings().iter().any(|text| text.contains("turn TSO and GSO off")), "{report:?}");
}

#[test]
fn samples_and_summaries_stand_in_the_file_in_order_and_agree_with_the_report() {
    let bed = Bed::silent("samples");
    let file = tempfile::NamedTempFile::new().unwrap();
    let kept = Lines::create(file.path()).unwrap();
    let plan = plan("rate = '50Mbit'\ndelay = '5ms'\nqueue = { limit = '50KB' }");
    let (_, report) = bed.drive(&plan, &kept, |bed| flood(bed, 3000, 1000));
    let (mut queues, mut links) = (Vec::new(), Vec::new());
    lines::read(file.path(), |record| match record {
        Record::Queue(sample) if sample.direction == "forward" => queues.push(sample),
        Record::Link(summary) => links.push(summary),
        _ => {}
    })
    .unwrap();
    assert_eq!(links, [report.forward.clone(), report.backward.clone()]);
    assert!(
        queues.windows(2).all(|pair| pair[1].time_us - pair[0].time_us == 1000),
        "one sample a millisecond"
    );
    assert!(queues.is_sorted_by_key(|sample| (sample.delivered_packets, sample.dropped_packets)));
    let deepest = queues.iter().map(|sample| sample.queue_bytes).max().unwrap();
    assert!(deepest > 0 && deepest <= report.forward.queue_max_bytes);
    assert_eq!(queues.last().unwrap().dropped_packets, report.forward.dropped_packets);
}

#[test]
fn a_driver_that_is_told_to_stop_when_it_is_ready_has_samples_of_both_directions() {
    let bed = Bed::new("short");
    let file = tempfile::NamedTempFile::new().unwrap();
    let kept = Lines::create(file.path()).unwrap();
    let (stop, plan) = (AtomicBool::new(false), plan("delay = '1ms'"));
    let options = Options { plan: &plan, a: "a", b: "b", lines: &kept, stop: &stop, start: Start::Now };
    let is_silent = || std::fs::read_to_string("/proc/sys/net/ipv6/conf/a/disable_ipv6").unwrap() == "1\n";
    let ready = || {
        assert!(is_silent());
        stop.store(true, Ordering::Relaxed);
    };
    bed.link.run(|| std::fs::write("/proc/sys/net/ipv6/conf/a/disable_ipv6", "0").unwrap()).unwrap();
    bed.link.run(|| driver::run(&options, ready)).unwrap().unwrap();
    assert!(!bed.link.run(is_silent).unwrap(), "what it turned off is on again");
    let mut sampled = Vec::new();
    lines::read(file.path(), |record| {
        if let Record::Queue(sample) = record {
            sampled.push(sample.direction);
        }
    })
    .unwrap();
    for direction in ["forward", "backward"] {
        assert!(sampled.iter().any(|name| name == direction), "{direction}: {sampled:?}");
    }
}

#[test]
fn a_missing_interface_and_a_small_one_are_named_before_anything_runs() {
    let bed = Bed::new("refuse");
    let run = |plan: &LinkPlan, a: &'static str| {
        let (stop, lines) = (AtomicBool::new(true), Lines::default());
        let options = Options { plan, a, b: "b", lines: &lines, stop: &stop, start: Start::Now };
        bed.link.run(|| driver::run(&options, || panic!("must not start"))).unwrap().unwrap_err()
    };
    let missing = run(&plan(""), "nosuch");
    assert!(missing.to_string().starts_with("interface 'nosuch': "), "{missing}");
    let small = run(&plan("mtu = 9000"), "a");
    assert!(matches!(small, DriverError::Mtu { has: 1500, wants: 9000, .. }), "{small}");
}

#[test]
fn a_vanished_interface_ends_the_driver_with_its_name() {
    let bed = Bed::new("vanish");
    let (stop, lines) = (AtomicBool::new(false), Lines::default());
    let plan = plan("delay = '1ms'");
    let options = Options { plan: &plan, a: "a", b: "b", lines: &lines, stop: &stop, start: Start::Now };
    let vanish = || drop(bed.right.ip(&["link", "delete", "eth"]).unwrap());
    let error = bed.link.run(|| driver::run(&options, vanish)).unwrap().unwrap_err();
    assert!(error.to_string().starts_with("interface 'b' is down or gone"), "{error}");
}

#[test]
fn a_timeout_is_not_mistaken_for_an_arrival() {
    // The harness itself: a receiver without a sender must time out, or the counting tests above prove nothing.
    let bed = Bed::new("harness");
    let receiver = udp(&bed.right, RIGHT[0]);
    receiver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let error = receiver.recv(&mut [0; 10]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
}
