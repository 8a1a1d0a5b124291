//! Headers of relayed packets beside those of forwarded ones: traffic class, time to live, flow label.

use crate::bed::{
    self, ANYWHERE, Bed, CLIENT_V4, PATIENCE, accept, at, control_of, exchange, mute, nft,
    packet::{ACK, Segment, Sender},
    path::{eventually, eventually_or},
    servers, talk, told,
};
use longfat_host::{Namespace, socket};
use longfat_kernel::alike::Alike;
use longfat_relay::{MatchPlan, RelayPlan, RulePlan};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv,
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// Hop limit a peer demands (RFC 5082), of `linux/in6.h`.
const IPV6_MINHOPCOUNT: i32 = 73;
const IP_MINTTL: i32 = 21;

/// What a packet has besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    dscp: u8,
    ttl: u8,
    /// Flow label of IPv6.
    label: u32,
}

impl Header {
    /// One hop later.
    fn forwarded(self) -> Header {
        Header { ttl: self.ttl - 1, ..self }
    }
}

/// Packets that pass an end's interface, either way.
struct Tap(OwnedFd);

impl Tap {
    fn new(host: &Namespace) -> Tap {
        let open = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            nix::sys::socket::socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll)
        };
        Tap(host.run(open).unwrap().unwrap())
    }

    /// The header of the segment that carries these bytes.
    fn find(&self, payload: &[u8]) -> Header {
        self.find_by(&format!("a segment with {payload:?}"), |tcp| {
            tcp.get(usize::from(tcp[12] >> 4) * 4..).is_some_and(|found| found == payload)
        })
    }

    /// The header of the next handshake segment with these flags.
    fn find_flags(&self, flags: u8) -> Header {
        self.find_by(&format!("a segment with the flags {flags:#x}"), |tcp| tcp[13] & 0x17 == flags)
    }

    /// The header of the next segment from this port.
    fn find_from(&self, port: u16) -> Header {
        self.find_by(&format!("a segment from port {port}"), |tcp| tcp[..2] == port.to_be_bytes())
    }

    /// The headers of all segments from one port to another that have come by now.
    fn all_between(&self, [from, to]: [u16; 2]) -> Vec<Header> {
        let (mut found, mut packet) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(bytes) = recv(self.0.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            let is_between = |tcp: &[u8]| tcp[..2] == from.to_be_bytes() && tcp[2..4] == to.to_be_bytes();
            let found_one = header(&packet[..bytes]).filter(|(_, tcp)| is_between(tcp));
            found.extend(found_one.map(|(header, _)| header));
        }
        found
    }

    fn find_by(&self, what: &str, fits: impl Fn(&[u8]) -> bool) -> Header {
        let (deadline, mut packet) = (Instant::now() + PATIENCE, vec![0; 1 << 16]);
        loop {
            match recv(self.0.as_raw_fd(), &mut packet, MsgFlags::empty()) {
                Ok(bytes) => match header(&packet[..bytes]) {
                    Some((header, tcp)) if fits(tcp) => return header,
                    _ => {}
                },
                Err(_) => {
                    assert!(Instant::now() < deadline, "{what} has not come");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

fn header(packet: &[u8]) -> Option<(Header, &[u8])> {
    let word = u32::from_be_bytes(packet.get(..4)?.try_into().ok()?);
    let (header, tcp) = match packet[0] >> 4 {
        4 if packet.get(9) == Some(&6) => {
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            (Header { dscp: packet[1] & 0xfc, ttl: packet[8], label: 0 }, packet.get(20..total)?)
        }
        6 if packet.get(6) == Some(&6) => {
            let (dscp, label) = ((word >> 20) as u8 & 0xfc, word & 0xf_ffff);
            (Header { dscp, ttl: packet[7], label }, packet.get(40..)?)
        }
        _ => return None,
    };
    (tcp.len() >= 20).then_some((header, tcp))
}

/// Socket options by IP family.
fn set(socket: &impl std::os::fd::AsFd, is_ipv4: bool, four: i32, six: i32, value: i32) {
    let (level, name) = if is_ipv4 { (libc::IPPROTO_IP, four) } else { (libc::IPPROTO_IPV6, six) };
    socket::set_option(socket, level, name, value).unwrap();
}

fn set_class(socket: &impl std::os::fd::AsFd, is_ipv4: bool, class: i32) {
    set(socket, is_ipv4, libc::IP_TOS, libc::IPV6_TCLASS, class);
}

fn set_ttl(socket: &impl std::os::fd::AsFd, is_ipv4: bool, ttl: i32) {
    set(socket, is_ipv4, libc::IP_TTL, libc::IPV6_UNICAST_HOPS, ttl);
}

/// None for plain forwarding.
fn ways() -> [(&'static str, Option<RelayPlan>); 3] {
    [("plain", None), ("early", Some(Bed::transparent())), ("after", Some(Bed::after_server()))]
}

/// A client's socket, told `prepare` before it connects.
fn connect_with(bed: &Bed, to: SocketAddr, prepare: impl Fn(&OwnedFd) + Sync) -> TcpStream {
    let dial = || {
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = nix::sys::socket::socket(family, SockType::Stream, flags, None).unwrap();
        prepare(&fd);
        // Linux gives up after that time; a silent peer would else be waited for for minutes.
        socket::set_option(&fd, libc::IPPROTO_TCP, libc::TCP_SYNCNT, 2).unwrap();
        connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
        TcpStream::from(fd)
    };
    let stream = bed.client.run(dial).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// One end says something; how it left there and how it arrived.
fn say(text: &str, from: (&TcpStream, &Tap), to: (&TcpStream, &Tap)) -> (Header, Header) {
    let (mut sender, mut receiver) = (from.0, to.0);
    sender.write_all(text.as_bytes()).unwrap();
    receiver.read_exact(&mut vec![0; text.len()]).unwrap();
    (from.1.find(text.as_bytes()), to.1.find(text.as_bytes()))
}

#[test]
fn traffic_classes_times_to_live_and_flow_labels_arrive_as_if_they_had_been_forwarded() {
    const SYN: u8 = 0x02;
    for (way, plan) in ways() {
        let bed = Bed::new(&format!("al{way}"));
        let relay = plan.map(|plan| bed.start(plan));
        for server in servers() {
            let is_ipv4 = server.is_ipv4();
            let listener = bed.listen(&server.to_string());
            // A SYN that is sent again has another flow label: neighbours are found by a connection before.
            drop((connect_with(&bed, server, |_| {}), accept(&listener)));
            let (near, distant) = (Tap::new(&bed.client), Tap::new(&bed.server));
            let client = connect_with(&bed, server, |fd| {
                set_class(fd, is_ipv4, 0xb8);
                set_ttl(fd, is_ipv4, 77);
            });
            let far = accept(&listener);
            let mut seen = vec![(near.find_flags(SYN), distant.find_flags(SYN))];
            seen.push(say("hello", (&client, &near), (&far, &distant)));
            assert_eq!((seen[1].1.dscp, seen[1].1.ttl), (0xb8, 76), "{way}, {server}");
            // Of a connection's times to live the highest counts.
            for (class, ttl) in [(0x28, 80), (0x00, 80), (0x48, 200)] {
                set_class(&far, is_ipv4, class);
                set_ttl(&far, is_ipv4, ttl);
                seen.push(say(&format!("answer {class}"), (&far, &distant), (&client, &near)));
                set_class(&client, is_ipv4, class ^ 0x20);
                set_ttl(&client, is_ipv4, ttl + 1);
                seen.push(say(&format!("and more {class}"), (&client, &near), (&far, &distant)));
            }
            for (left, arrived) in &seen {
                assert_eq!(*arrived, left.forwarded(), "{way}, {server}: {seen:?}");
            }
            exchange(&client, &far, 1 << 20);
        }
        if let Some(relay) = relay {
            assert_eq!(*relay.notes.warnings.lock().unwrap(), [""; 0], "{way}");
            assert_eq!(relay.stop().connections, 4, "{way}");
        }
    }
}

/// A connection that is stepped into in mid-stream, left in a pause, and stepped into again.
#[test]
fn every_packet_looks_forwarded_before_the_relay_steps_in_while_it_does_and_after_it_has_left() {
    let text = "[intercept]\ninterfaces = 'lan'\n[defaults]\naccept = 'end-to-end'\nadopt_after = '100KB'\n\
                release_after = '300ms'\n";
    let bed = Bed::new("alled");
    let plan = longfat_relay::spec::RelaySpec::parse(text).unwrap().resolve().unwrap();
    let relay = bed.start(RelayPlan { control: Some(control_of("alled")), ..plan });
    for server in servers() {
        let is_ipv4 = server.is_ipv4();
        let listener = bed.listen(&server.to_string());
        drop((connect_with(&bed, server, |_| {}), accept(&listener)));
        let client = connect_with(&bed, server, |fd| {
            set_class(fd, is_ipv4, 0xb8);
            set_ttl(fd, is_ipv4, 77);
        });
        let far = accept(&listener);
        set_class(&far, is_ipv4, 0x28);
        set_ttl(&far, is_ipv4, 80);
        let (near, distant) = (Tap::new(&bed.client), Tap::new(&bed.server));
        let ports = [client.local_addr().unwrap().port(), server.port()];
        let back = [ports[1], ports[0]];
        for _ in 0..3 {
            let mut packets = 0;
            for is_to_be_in in [true, false] {
                let what = if is_to_be_in { "the relay steps in" } else { "the relay leaves" };
                let is_so = || {
                    if is_to_be_in {
                        talk(&client, &far, 60_000, (1 << 14, Duration::from_micros(500)));
                    }
                    let seen = [(&distant, ports, 0xb8, 76), (&near, back, 0x28, 79)];
                    for (tap, ports, dscp, ttl) in seen {
                        let found = tap.all_between(ports);
                        let is_forwarded = |header: &Header| (header.dscp, header.ttl) == (dscp, ttl);
                        assert!(found.iter().all(is_forwarded), "{server}, {ports:?}: {found:?}");
                        packets += found.len();
                    }
                    bed.leg_count() == if is_to_be_in { 2 } else { 0 }
                };
                eventually_or(what, is_so, || format!("{:?}", told("alled")));
            }
            assert!(packets > 20, "{packets}");
            // The flow label, and another class, in both states.
            for class in [0x48, 0x28] {
                set_class(&far, is_ipv4, class);
                let answer = say(&format!("answer {class}"), (&far, &distant), (&client, &near));
                let question = say(&format!("question {class}"), (&client, &near), (&far, &distant));
                for (left, arrived) in [answer, question] {
                    assert_eq!(arrived, left.forwarded(), "{server}");
                }
            }
            // Those of the other class.
            near.all_between(back);
        }
        exchange(&client, &far, 1 << 20);
    }
    assert_eq!(relay.stop().reset, 0);
}

#[test]
fn peers_that_demand_a_high_time_to_live_have_their_connection() {
    for (way, plan) in ways() {
        let bed = Bed::new(&format!("gt{way}"));
        let relay = plan.map(|plan| bed.start(plan));
        for server in servers() {
            let is_ipv4 = server.is_ipv4();
            let guard = |socket: &dyn std::os::fd::AsFd| {
                let socket = &socket.as_fd();
                set_ttl(socket, is_ipv4, 255);
                set(socket, is_ipv4, IP_MINTTL, IPV6_MINHOPCOUNT, 254);
            };
            let listener = bed.listen(&server.to_string());
            guard(&listener);
            let client = connect_with(&bed, server, |fd| guard(fd));
            let far = accept(&listener);
            exchange(&client, &far, 1 << 20);
        }
        if let Some(relay) = relay {
            assert_eq!(relay.stop().finished, 2, "{way}");
        }
    }
}

/// A relay that copies headers, and a connection through it whose client has a class and a time to live of its own.
fn marked_pair(tag: &str, plan: RelayPlan) -> (Bed, bed::Running, TcpStream, TcpStream) {
    let bed = Bed::new(tag);
    let relay = bed.start(plan);
    let listener = bed.listen(ANYWHERE);
    let client = connect_with(&bed, at(ANYWHERE), |fd| {
        set_class(fd, true, 0xb8);
        set_ttl(fd, true, 77);
    });
    let far = accept(&listener);
    let (near, distant) = (Tap::new(&bed.client), Tap::new(&bed.server));
    for turn in 0..2 {
        let (_, arrived) = say(&format!("before {turn}"), (&client, &near), (&far, &distant));
        assert_eq!((arrived.dscp, arrived.ttl), (0xb8, 76));
        say(&format!("answer {turn}"), (&far, &distant), (&client, &near));
    }
    (bed, relay, client, far)
}

#[test]
fn a_strangers_packet_with_a_low_time_to_live_shortens_nobodys_way() {
    for (tag, plan) in [("ttle", Bed::transparent()), ("ttla", Bed::after_server())] {
        let (bed, relay, client, far) = marked_pair(tag, plan);
        let mut stray =
            Segment { flags: ACK, sequence: 77, ..Segment::syn(client.local_addr().unwrap(), at(ANYWHERE)) };
        stray.acknowledged = 99;
        let mut packet = stray.packet();
        // The sender's kernel makes the checksum of the IP header.
        packet[8] = 2;
        Sender::new(&bed).send_packet(&packet);
        // Nothing of the client's own comes that would say otherwise.
        mute(&bed.client, "mute", "output", "tcp dport 9000");
        let distant = Tap::new(&bed.server);
        (&far).write_all(b"a server's question").unwrap();
        let answer = distant.find_from(client.local_addr().unwrap().port());
        assert_eq!(answer.ttl, 76, "{tag}: the relay's acknowledgement");
        nft(&bed.client, "delete table inet mute");
        (&client).read_exact(&mut [0; 19]).unwrap();
        drop((client, far));
        relay.stop();
    }
}

#[test]
fn a_flood_of_syns_takes_no_living_connections_headers() {
    /// Three times as many as are remembered.
    const SYNS: u32 = 3 << 16;
    let mut plan = Bed::transparent();
    // What the flood wants passes, and nobody forwards it.
    plan.rules =
        longfat_relay::spec::RelaySpec::parse("[intercept]\ninterfaces = 'lan'\n[[rule]]\nport = 9000\n")
            .and_then(|spec| spec.resolve())
            .unwrap()
            .rules;
    let (bed, relay, client, far) = marked_pair("synf", plan);
    nft(
        &bed.relay,
        "table inet stop { chain forward { type filter hook forward priority 0; tcp dport 1 drop; }; }",
    );
    let sender = Sender::new(&bed);
    for number in 0..SYNS {
        let port = 1024 + (number % 60_000) as u16;
        let to = SocketAddr::new([10, 71, 2, (3 + number / 60_000) as u8].into(), 1);
        let syn = Segment::syn(SocketAddr::new(CLIENT_V4.parse().unwrap(), port), to);
        // What comes once goes first when the kernel makes room.
        sender.send(&syn);
        sender.send(&syn);
    }
    let (near, distant) = (Tap::new(&bed.client), Tap::new(&bed.server));
    set_class(&far, true, 0x48);
    for turn in 0..2 {
        for (from, to) in [((&client, &near), (&far, &distant)), ((&far, &distant), (&client, &near))] {
            let (left, arrived) = say(&format!("after {turn} {}", from.0.local_addr().unwrap()), from, to);
            assert_eq!(arrived, left.forwarded());
        }
    }
    drop((client, far));
    relay.stop();
}

/// Sends, or does not, three options of an IPv4 header that say nothing: such packets are left alone.
fn set_no_operations(socket: &impl AsRawFd, is_on: bool) {
    let options = [1u8, 1, 1, 0];
    let length = if is_on { options.len() } else { 0 };
    // SAFETY: the descriptor is open, and the options are longer than what is said.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_OPTIONS,
            options.as_ptr().cast(),
            length as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_direction_of_which_nothing_is_known_is_known_again_with_the_next_packet() {
    for (tag, plan) in [("newe", Bed::transparent()), ("newa", Bed::after_server())] {
        let bed = Bed::new(tag);
        let relay = bed.start(plan);
        let listener = bed.listen(ANYWHERE);
        let client = connect_with(&bed, at(ANYWHERE), |fd| {
            set_class(fd, true, 0xb8);
            set_ttl(fd, true, 77);
            set_no_operations(fd, true);
        });
        let far = accept(&listener);
        let (near, distant) = (Tap::new(&bed.client), Tap::new(&bed.server));
        (&client).write_all(b"unseen").unwrap();
        (&far).read_exact(&mut [0; 6]).unwrap();
        assert_eq!(distant.find(b"unseen").dscp, 0, "{tag}");
        set_no_operations(&client, false);
        for text in ["seen", "and worn"] {
            let (left, arrived) = say(text, (&client, &near), (&far, &distant));
            assert_eq!(arrived, left.forwarded(), "{tag}, {text}");
        }
        drop((client, far));
        relay.stop();
    }
}

#[test]
fn of_many_connections_each_keeps_its_own_headers() {
    /// Connections, so many that some of their directions, of some thousand places, are at the same one.
    const CONNECTIONS: u8 = 200;
    let bed = Bed::new("many");
    let relay = bed.start(Bed::transparent());
    let listener = bed.listen(ANYWHERE);
    let connect = |number: u8| {
        let client = connect_with(&bed, at(ANYWHERE), |fd| {
            set_class(fd, true, i32::from(number % 64) << 2);
            set_ttl(fd, true, 20 + i32::from(number));
        });
        (client, accept(&listener))
    };
    let pairs: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    let (near, distant) = (Tap::new(&bed.client), Tap::new(&bed.server));
    // The first packets tell what those that come back are like.
    for turn in 0..3 {
        for (number, (client, far)) in pairs.iter().enumerate() {
            let question = say(&format!("to {number} in {turn}"), (client, &near), (far, &distant));
            let answer = say(&format!("of {number} in {turn}"), (far, &distant), (client, &near));
            for (left, arrived) in [question, answer] {
                assert_eq!(arrived, left.forwarded(), "connection {number}, turn {turn}");
            }
        }
    }
    drop(pairs);
    relay.stop();
}

/// Packets of TCP that have come to the relay's host so far, by whether they had a mark before any rule of its own.
fn marked_and_unmarked(bed: &Bed) -> [u64; 2] {
    let list = |name| nft(&bed.relay, &format!("list counter inet look {name}"));
    ["marked", "unmarked"].map(|name| {
        let text = list(name);
        let words: Vec<_> = text.split_whitespace().collect();
        words[words.iter().position(|word| *word == "packets").unwrap() + 1].parse().unwrap()
    })
}

/// Marked and unmarked packets of an exchange with each server.
fn exchanged(bed: &Bed) -> [u64; 2] {
    let before = marked_and_unmarked(bed);
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        exchange(&client, &far, 4 << 20);
    }
    let now = marked_and_unmarked(bed);
    [now[0] - before[0], now[1] - before[1]]
}

#[test]
fn what_arrives_for_the_relays_sockets_is_marked_and_nothing_else_is() {
    let bed = Bed::new("marked");
    nft(
        &bed.relay,
        "table inet look { counter marked { }; counter unmarked { }; chain look { \
         type filter hook prerouting priority raw - 10; meta l4proto != tcp return; \
         meta mark != 0 counter name marked return; counter name unmarked; }; }",
    );
    assert_eq!(exchanged(&bed)[0], 0, "without a relay");
    for plan in [Bed::transparent(), Bed::after_server()] {
        let relay = bed.start(plan);
        let [marked, unmarked] = exchanged(&bed);
        assert!(marked > unmarked, "{marked} marked, {unmarked} not");
        relay.stop();
    }
    // Sockets between ends that may go on with each other.
    let relay = bed.start(Bed::end_to_end());
    assert_eq!(exchanged(&bed)[0], 0, "where the relay steps in");
    // They may still be there when the rules are others.
    relay.reload(Bed::transparent());
    assert_eq!(exchanged(&bed)[0], 0, "where the relay has stepped in");
    relay.stop();
    let mut explicit = Bed::transparent();
    explicit.listeners = Bed::explicit(servers()[0]).listeners;
    let relay = bed.start(explicit);
    assert_eq!(exchanged(&bed)[0], 0, "where some clients' addresses may be translated");
    relay.stop();
}

/// Both ends of a connection from this port that has carried something each way.
fn carried(bed: &Bed, port: u16, listener: &TcpListener) -> [TcpStream; 2] {
    let client = bed.connect_from(port, at(ANYWHERE));
    let far = accept(listener);
    talk(&client, &far, 50_000, (1 << 14, Duration::ZERO));
    [client, far]
}

#[test]
fn what_passes_by_an_address_and_port_that_were_carried_goes_on_to_its_end() {
    let bed = Bed::new("after");
    let relay = bed.start(Bed::transparent());
    let listener = bed.listen(ANYWHERE);
    // Reset by the client, and by the server: of one leg nothing has been sent that ends it.
    let ports = [40_000, 40_001];
    for (port, who) in ports.into_iter().zip([0, 1]) {
        let mut ends = Vec::from(carried(&bed, port, &listener));
        bed::reset(ends.remove(who));
        eventually("the relay has nothing left", || bed.leg_count() == 0);
    }
    // Nothing is taken any more: the same addresses and ports belong to the ends alone.
    let mut passing = Bed::transparent();
    passing.rules = vec![RulePlan { name: "pass".into(), matches: MatchPlan::default(), relay: None }];
    relay.reload(passing);
    for port in ports {
        let ends = carried(&bed, port, &listener);
        assert_eq!(bed.leg_count(), 0, "port {port}: it passes");
        drop(ends);
    }
    relay.stop();
}

#[test]
fn an_interface_that_has_gone_keeps_no_other_from_being_seen() {
    let bed = Bed::new("gone");
    let attach = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        bed.relay.run(|| Alike::attach(&names, 7, Vec::new())).unwrap().unwrap()
    };
    assert_eq!(
        attach(&["gone0", "lan", "wan", "gone1"]).descriptors(),
        attach(&["lan", "wan"]).descriptors()
    );
}
