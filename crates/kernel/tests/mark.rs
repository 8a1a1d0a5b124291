//! Packets that arrive are marked by a relay's backlog, and their sender slows down. Nothing is left behind.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bed;

use bed::{Bed, send_frames};
use longfat_cc::queue::{Kind, QueuePlan};
use longfat_host::{socket, sysctl};
use longfat_kernel::mark::{Congesting, Ends, Marking};
use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

/// The near end sends; packets that arrive at the far one are marked.
impl Bed {
    fn with_ecn(tag: &str, ecn: &str) -> Bed {
        let bed = Bed::new(tag);
        for host in [&bed.near, &bed.far] {
            host.run(|| sysctl::write("net.ipv4.tcp_congestion_control", "reno")).unwrap().unwrap();
        }
        bed.near.run(|| sysctl::write("net.ipv4.tcp_ecn", ecn)).unwrap().unwrap();
        bed
    }

    /// A connection to the end that marks: the sender's socket and its own.
    fn inbound(&self, address: &str) -> (TcpStream, TcpStream) {
        let listener = self.far.run(|| TcpListener::bind(address)).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let near = self.near.run(|| TcpStream::connect(to)).unwrap().unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// A connection from the end that marks, over which nothing is sent.
    fn outbound(&self, address: &str) -> (TcpStream, TcpStream) {
        let listener = self.near.run(|| TcpListener::bind(address)).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let near = self.far.run(|| TcpStream::connect(to)).unwrap().unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn attach(&self) -> Marking {
        self.far.run(|| Marking::attach(&["eth0".to_owned()])).unwrap().unwrap()
    }
}

fn ends(socket: &TcpStream) -> Ends {
    Ends { local: socket.local_addr().unwrap(), remote: socket.peer_addr().unwrap() }
}

fn all_above(allowed_bytes: u64) -> QueuePlan {
    QueuePlan {
        controller: Kind::Fixed,
        allowed_bytes,
        allowed_cwnds_x16: 0,
        hold_off_rtts: 0,
        ..QueuePlan::default()
    }
}

/// Sends so much and lets it be read.
fn carry(near: &mut TcpStream, far: &mut TcpStream, bytes: usize) {
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (block, mut got, mut buffer) = ([7; 4096], 0, [0; 65536]);
    for _ in 0..bytes / block.len() {
        near.write_all(&block).unwrap();
        got += far.read(&mut buffer).unwrap();
    }
    while got < bytes / block.len() * block.len() {
        got += far.read(&mut buffer).unwrap();
    }
}

fn marks_reach_the_sender(bed: &Bed, inbound: &str, outbound: &str) {
    let (mut near, mut far) = bed.inbound(inbound);
    let (out, _peer) = bed.outbound(outbound);
    let marking = bed.attach();
    assert_eq!(marking.read(&far), None);
    marking.pair(&far, ends(&out), &all_above(100_000)).unwrap();
    carry(&mut near, &mut far, 90_000);
    let before = marking.read(&far).unwrap();
    assert_eq!((before.state.marks, socket::tcp_info(&near).unwrap().delivered_ce_segments), (0, 0));
    assert!(before.state.packets > 0 && before.state.backlog_bytes > 60_000, "{before:?}");
    carry(&mut near, &mut far, 200_000);
    let after = marking.read(&far).unwrap();
    assert!(after.state.marks > 0 && after.incapable_packets == 0, "{after:?}");
    assert!(socket::tcp_info(&near).unwrap().delivered_ce_segments > 0);
}

#[test]
fn an_ipv4_sender_hears_of_a_backlog_above_what_is_allowed_and_not_below() {
    let bed = Bed::with_ecn("four", "1");
    marks_reach_the_sender(&bed, "10.74.0.2:0", "10.74.0.1:0");
}

#[test]
fn an_ipv6_sender_does_too() {
    let bed = Bed::with_ecn("six", "1");
    marks_reach_the_sender(&bed, "[fd74::2]:0", "[fd74::1]:0");
}

#[test]
fn an_ipv4_client_of_an_ipv6_listener_does_too() {
    let bed = Bed::with_ecn("mapped", "1");
    let listener = bed.far.run(|| TcpListener::bind("[::]:0")).unwrap().unwrap();
    let to = SocketAddr::new("10.74.0.2".parse().unwrap(), listener.local_addr().unwrap().port());
    let mut near = bed.near.run(|| TcpStream::connect(to)).unwrap().unwrap();
    let mut far = listener.accept().unwrap().0;
    let (out, _peer) = bed.outbound("10.74.0.1:0");
    let marking = bed.attach();
    marking.pair(&far, ends(&out), &all_above(1000)).unwrap();
    carry(&mut near, &mut far, 50_000);
    assert!(marking.read(&far).unwrap().state.marks > 0);
}

#[test]
fn packets_of_a_sender_without_ecn_are_counted_and_pass() {
    let bed = Bed::with_ecn("none", "0");
    let (mut near, mut far) = bed.inbound("10.74.0.2:0");
    let (out, _peer) = bed.outbound("10.74.0.1:0");
    let marking = bed.attach();
    marking.pair(&far, ends(&out), &all_above(1000)).unwrap();
    carry(&mut near, &mut far, 50_000);
    let seen = marking.read(&far).unwrap();
    assert!(seen.state.marks == 0 && seen.incapable_packets > 0, "{seen:?}");
    let [sender, receiver] = [&near, &far].map(|end| socket::tcp_info(end).unwrap());
    assert_eq!(sender.data_segs_out, receiver.data_segs_in, "none was dropped, whatever was sent twice");
}

#[test]
fn without_ecn_they_are_dropped_where_that_is_asked_for_and_sent_again() {
    let bed = Bed::with_ecn("drop", "0");
    let (mut near, mut far) = bed.inbound("10.74.0.2:0");
    let (out, _peer) = bed.outbound("10.74.0.1:0");
    let marking = bed.attach();
    let some = QueuePlan { hold_off_rtts: 1000, drop: true, ..all_above(10_000) };
    marking.pair(&far, ends(&out), &some).unwrap();
    carry(&mut near, &mut far, 100_000);
    assert!(marking.read(&far).unwrap().state.marks > 0);
    assert!(socket::tcp_info(&near).unwrap().total_retrans_segments > 0);
}

#[test]
fn two_relays_mark_side_by_side_and_what_is_let_go_leaves_nothing() {
    let bed = Bed::with_ecn("twice", "1");
    let links = || {
        let shown = bed.far.command("tc").args(["qdisc", "show", "dev", "eth0"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    let untouched = links();
    let (mut near, mut far) = bed.inbound("10.74.0.2:0");
    let (out, _peer) = bed.outbound("10.74.0.1:0");
    let (first, second) = (bed.attach(), bed.attach());
    second.pair(&far, ends(&out), &all_above(1000)).unwrap();
    carry(&mut near, &mut far, 20_000);
    assert!(second.read(&far).unwrap().state.marks > 0);
    assert_eq!(first.read(&far), None);
    drop((first, second));
    assert_eq!(links(), untouched);
    let marked = socket::tcp_info(&near).unwrap().delivered_ce_segments;
    carry(&mut near, &mut far, 20_000);
    // What was echoed still may be, until the sender's answer.
    assert!(socket::tcp_info(&near).unwrap().delivered_ce_segments <= marked + 20);
}

#[test]
fn an_interface_that_is_not_there_is_named_and_nothing_is_attached() {
    let bed = Bed::with_ecn("absent", "1");
    let names = ["eth0".to_owned(), "eth9".to_owned()];
    let error = bed.far.run(|| Marking::attach(&names).err().map(|error| error.to_string())).unwrap();
    assert!(error.unwrap().contains("eth9"));
}

#[test]
fn one_connection_is_marked_once_per_so_many_bytes_and_others_are_not() {
    let bed = Bed::with_ecn("every", "1");
    let (mut near, mut far) = bed.inbound("10.74.0.2:0");
    let (mut other_near, mut other_far) = bed.inbound("10.74.0.2:0");
    let marking =
        bed.far.run(|| Congesting::attach(&["eth0".to_owned()], ends(&far), 16_384)).unwrap().unwrap();
    carry(&mut near, &mut far, 163_840);
    carry(&mut other_near, &mut other_far, 163_840);
    let seen = marking.read();
    assert_eq!((seen.bytes, seen.incapable_packets), (163_840, 0));
    assert!((5..=10).contains(&seen.marks), "{seen:?}");
    assert!(socket::tcp_info(&near).unwrap().delivered_ce_segments > 0);
    assert_eq!(socket::tcp_info(&other_near).unwrap().delivered_ce_segments, 0);
}

/// An acknowledgement without data from the peer's end, in a frame that is filled up to `bytes`.
fn padded_ack(far: &TcpStream, bytes: usize) -> Vec<u8> {
    let Ends { local, remote } = ends(far);
    let (mut ip, ethertype) = match (remote.ip(), local.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let fixed = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
            ([&fixed[..], &from.octets(), &to.octets()].concat(), [8, 0])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let fixed = [0x60, 0, 0, 0, 0, 20, 6, 64];
            ([&fixed[..], &from.octets(), &to.octets()].concat(), [0x86, 0xdd])
        }
        _ => panic!("one family"),
    };
    ip.extend(remote.port().to_be_bytes());
    ip.extend(local.port().to_be_bytes());
    ip.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    // To everybody, so that the program sees it and TCP, which takes only what is for this host, does not.
    let mut frame = [&[0xff; 6][..], &[2; 6], &ethertype, &ip].concat();
    frame.resize(bytes, 0);
    frame
}

#[test]
fn what_a_short_frame_is_filled_up_with_is_no_payload() {
    let bed = Bed::with_ecn("pad", "1");
    for (address, bytes) in [("10.74.0.2:0", 60), ("[fd74::2]:0", 90)] {
        let (mut near, mut far) = bed.inbound(address);
        let attach = || Congesting::attach(&["eth0".to_owned()], ends(&far), 16_384);
        let marking = bed.far.run(attach).unwrap().unwrap();
        let frame = padded_ack(&far, bytes);
        bed.near.run(|| send_frames(&frame, 10)).unwrap();
        carry(&mut near, &mut far, 8192);
        assert_eq!(marking.read().bytes, 8192, "{address}");
    }
}

#[test]
fn a_frame_of_a_vlan_is_left_to_the_interface_behind_it() {
    const PAYLOAD_BYTES: u8 = 100;
    let bed = Bed::with_ecn("vlan", "1");
    let (_near, far) = bed.inbound("10.74.0.2:0");
    let attach = || Congesting::attach(&["eth0".to_owned()], ends(&far), 16_384);
    let marking = bed.far.run(attach).unwrap().unwrap();
    let mut frame = padded_ack(&far, 54 + usize::from(PAYLOAD_BYTES));
    frame[17] += PAYLOAD_BYTES;
    let tagged = |tag: [u8; 2]| [&frame[..12], &[0x81, 0], &tag, &frame[12..]].concat();
    bed.near.run(|| send_frames(&tagged([0, 5]), 10)).unwrap();
    assert_eq!(marking.read().bytes, 0);
    bed.near.run(|| send_frames(&frame, 10)).unwrap();
    assert_eq!(marking.read().bytes, 10 * u64::from(PAYLOAD_BYTES));
    // A priority, and no VLAN.
    bed.near.run(|| send_frames(&tagged([0xa0, 0]), 10)).unwrap();
    assert_eq!(marking.read().bytes, 20 * u64::from(PAYLOAD_BYTES));
}
