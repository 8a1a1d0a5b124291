//! Transfers between network namespaces this test makes and removes: loss, dead peers, dead links. Needs root.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod ends;

use ends::{ServerProcess, Serving, bytes_plan, send_options, sent};
use longfat_host::{Lease, Namespace, interface, sysctl};
use longfat_schema::{lines, lines::Lines, record::Record};
use longfat_transfer::{Amount, Protocol, TransferPlan, send};
use std::time::{Duration, Instant};

/// Two hosts on one wire.
struct Wire {
    near: Namespace,
    far: Namespace,
    _lease: Lease,
}

const FAR: &str = "10.77.0.2";

impl Wire {
    fn new(name: &str) -> Wire {
        let lease = Lease::take(&format!("transfer-{name}-{}", std::process::id())).unwrap();
        let (near, far) = (lease.namespace("near").unwrap(), lease.namespace("far").unwrap());
        let end = |namespace| interface::End { namespace, name: "wire" };
        interface::veth(end(&near), end(&far), 1500).unwrap();
        for (namespace, host) in [(&near, 1), (&far, 2)] {
            namespace.ip(&["address", "add", &format!("10.77.0.{host}/24"), "dev", "wire"]).unwrap();
            let v6 = format!("fd00:77::{host}/64");
            namespace.ip(&["address", "add", &v6, "dev", "wire", "nodad"]).unwrap();
        }
        Wire { near, far, _lease: lease }
    }

    /// A server in the far namespace.
    fn serve(&self, listen: &str) -> Serving {
        self.far.run(|| Serving::on(listen)).unwrap()
    }

    fn nft(&self, namespace: &Namespace, rule: &str) {
        let mut nft = namespace.command("nft");
        nft.arg(rule);
        longfat_host::run_command(nft).unwrap();
    }
}

#[test]
fn bytes_are_exact_between_hosts_over_both_families_and_directions() {
    let wire = Wire::new("exact");
    let server = wire.serve("[::]:0");
    let port = server.address.port();
    for to in [format!("{FAR}:{port}"), format!("[fd00:77::2]:{port}")] {
        for reverse in [false, true] {
            let plan = TransferPlan {
                reverse,
                streams: 3,
                echo_every_bytes: Some(100_000),
                ..bytes_plan(9_000_000)
            };
            let outcome = wire.near.run(|| sent(&to, plan)).unwrap();
            assert!(outcome.flows.iter().all(|flow| flow.echo_count == 30), "{:?}", outcome.flows);
        }
    }
}

/// Ports of data that the firewall below opens besides.
const DATA_PORTS: std::ops::RangeInclusive<u16> = 5300..=5303;

impl Wire {
    /// Both hosts take what belongs to a connection they know. The far one takes new ones to `port`, and to those that
    /// `open` names.
    fn close_all_but(&self, port: u16, open: &str) {
        let known =
            "ct state established accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept;";
        let chain = |open: &str| {
            let hook = "type filter hook input priority 0; policy drop;";
            format!("table inet firewall {{ chain in {{ {hook} {known} {open} }}; }}")
        };
        self.nft(&self.near, &chain(""));
        self.nft(&self.far, &chain(&format!("tcp dport {port} accept; {open}")));
    }
}

/// What a transfer that cannot be made says.
fn refused(wire: &Wire, port: u16, plan: TransferPlan) -> String {
    let options = send_options(format!("{FAR}:{port}"), plan);
    wire.near.run(|| send(&options, &()).unwrap_err().to_string()).unwrap()
}

fn datagrams(reverse: bool) -> TransferPlan {
    TransferPlan {
        protocol: Protocol::Udp,
        streams: 2,
        amount: Amount::Bytes(100_000),
        rate_bps: Some(10_000_000),
        reverse,
        ..TransferPlan::default()
    }
}

#[test]
fn a_firewall_that_opens_one_port_lets_every_tcp_stream_through() {
    let wire = Wire::new("firewall");
    let server = wire.serve("[::]:0");
    let port = server.address.port();
    wire.close_all_but(port, "");
    for (to, reverse) in [(FAR, false), (FAR, true), ("[fd00:77::2]", false), ("[fd00:77::2]", true)] {
        let to = format!("{to}:{port}");
        let (rcvbuf_bytes, streams) = (Some(1 << 20), 4);
        let plan = TransferPlan { reverse, streams, rcvbuf_bytes, ..bytes_plan(4_000_000) };
        let outcome = wire.near.run(|| sent(&to, plan)).unwrap();
        assert!(outcome.flows.len() == 4 && outcome.flows.iter().all(|flow| flow.rcvbuf_bytes == 1 << 20));
    }
}

#[test]
fn data_that_need_a_port_of_their_own_name_it_and_come_through_those_that_are_given() {
    let wire = Wire::new("ports");
    let closed = wire.serve("0.0.0.0:0");
    let mut options = ends::serve_options("0.0.0.0:0");
    options.data_ports = Some(DATA_PORTS);
    let open = wire.far.run(|| Serving::with(options)).unwrap();
    let (first, last) = (DATA_PORTS.start(), DATA_PORTS.end());
    let rule = format!(
        "tcp dport {} accept; udp dport {first}-{last} accept; tcp dport {first}-{last} accept;",
        open.address.port()
    );
    wire.close_all_but(closed.address.port(), &rule);
    let narrow = |reverse| TransferPlan {
        window_bytes: Some(20_000),
        streams: 2,
        reverse,
        timeout_us: 1_000_000,
        ..bytes_plan(100_000)
    };
    for plan in [datagrams(false), datagrams(true), narrow(false), narrow(true)] {
        let to = format!("{FAR}:{}", open.address.port());
        wire.near.run(|| sent(&to, plan)).unwrap();
    }
    // At the client a bounded window needs no more than elsewhere.
    wire.near.run(|| sent(format!("{FAR}:{}", closed.address.port()), narrow(true))).unwrap();
    for plan in [TransferPlan { timeout_us: 1_000_000, ..datagrams(false) }, narrow(false)] {
        let said = refused(&wire, closed.address.port(), plan);
        assert!(said.contains("firewall") && said.contains("--data-ports FIRST-LAST"), "{said}");
        assert!(said.contains("UDP ports ") || said.contains(&format!("{FAR}:")), "no port: {said}");
    }
    let many = TransferPlan { streams: 5, ..datagrams(false) };
    let said = refused(&wire, open.address.port(), many);
    assert!(said.contains("all data ports from 5300 to 5303"), "{said}");
}

/// A second address of the far host, of each family; packets leave from the first where nobody says otherwise.
fn second_addresses(wire: &Wire) {
    for address in ["10.77.0.3/24", "fd00:77::3/64", "fe80::77:3/64"] {
        let duplicates: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        wire.far.ip(&[&["address", "add", address, "dev", "wire"], duplicates].concat()).unwrap();
    }
}

#[test]
fn datagrams_come_and_go_at_whatever_address_of_the_server_a_client_names() {
    let wire = Wire::new("homes");
    second_addresses(&wire);
    let (v4, v6) = (wire.serve("0.0.0.0:0"), wire.serve("[::]:0"));
    let interface = wire.near.run(|| nix::net::if_::if_nametoindex("wire").unwrap()).unwrap();
    let v6_port = v6.address.port();
    let addresses = [
        format!("10.77.0.3:{}", v4.address.port()),
        format!("10.77.0.3:{v6_port}"),
        format!("[fd00:77::3]:{v6_port}"),
        format!("[fe80::77:3%{interface}]:{v6_port}"),
    ];
    for to in addresses {
        for reverse in [false, true] {
            let outcome = wire.near.run(|| sent(&to, datagrams(reverse))).unwrap();
            assert!(outcome.flows.iter().all(|flow| flow.lost_datagrams == 0), "{to}: {:?}", outcome.flows);
        }
    }
    let rule = format!(
        "table inet nat {{ chain in {{ type nat hook prerouting priority -100; \
         ip daddr {FAR} tcp dport 9000 dnat ip to 10.77.0.3:{v6_port}; }}; }}"
    );
    wire.nft(&wire.far, &rule);
    for reverse in [false, true] {
        // Where the control connection comes out is not where datagrams go.
        wire.near.run(|| sent(format!("{FAR}:9000"), datagrams(reverse))).unwrap();
    }
}

#[test]
fn a_data_port_in_use_is_nobody_elses_whatever_address_datagrams_come_to() {
    let wire = Wire::new("taken");
    second_addresses(&wire);
    let mut options = ends::serve_options("[::]:0");
    options.data_ports = Some(5300..=5300);
    let server = wire.far.run(|| Serving::with(options)).unwrap();
    let port = server.address.port();
    let long = TransferPlan { streams: 1, amount: Amount::DurationUs(2_000_000), ..datagrams(true) };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| wire.near.run(|| sent(format!("10.77.0.3:{port}"), long)).unwrap());
        std::thread::sleep(Duration::from_millis(700));
        let second = TransferPlan { streams: 1, ..datagrams(false) };
        let said = refused(&wire, port, second);
        assert!(said.contains("all data ports from 5300 to 5300"), "{said}");
        first.join().unwrap();
    });
    wire.near.run(|| sent(format!("{FAR}:{port}"), TransferPlan { streams: 1, ..datagrams(true) })).unwrap();
}

#[test]
fn every_address_means_both_families_where_the_host_keeps_them_apart() {
    let wire = Wire::new("apart");
    wire.far.run(|| sysctl::write("net.ipv6.bindv6only", "1")).unwrap().unwrap();
    let server = wire.serve("[::]:0");
    for to in [FAR, "[fd00:77::2]"] {
        let to = format!("{to}:{}", server.address.port());
        for plan in [bytes_plan(1_000_000), datagrams(false), datagrams(true)] {
            wire.near.run(|| sent(&to, plan)).unwrap();
        }
    }
}

/// Makes this thread, and those that it starts, find no IPv6 in the kernel (as with `ipv6.disable=1`).
fn without_ipv6() {
    let op = |code: u32, if_so: u8, if_not: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: if_so,
        jf: if_not,
        k,
    };
    let load = |offset| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equals = |value, if_not| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, if_not, value);
    let answer = |value| op(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // The call and its first argument of struct seccomp_data.
    let (call, argument) = (load(0), load(16));
    let mut program = [
        call,
        equals(libc::SYS_socket as u32, 3),
        argument,
        equals(libc::AF_INET6 as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is read during the call alone; it holds for this thread, which is this test's.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn every_address_is_that_of_ipv4_on_a_host_that_has_no_ipv6() {
    let wire = Wire::new("old");
    let server = wire.far.run(|| {
        without_ipv6();
        Serving::on("[::]:0")
    });
    let server = server.unwrap();
    assert!(server.address.is_ipv4(), "{}", server.address);
    for plan in [bytes_plan(1_000_000), datagrams(true)] {
        wire.near.run(|| sent(format!("{FAR}:{}", server.address.port()), plan)).unwrap();
    }
    let refused = wire.far.run(|| {
        without_ipv6();
        longfat_transfer::Server::bind(ends::serve_options("[::1]:0")).unwrap_err().to_string()
    });
    assert!(refused.unwrap().contains("IPv6"));
}

#[test]
fn a_port_that_is_passed_on_to_the_server_carries_all_of_a_transfer() {
    let wire = Wire::new("redirect");
    let server = wire.serve("0.0.0.0:0");
    let port = server.address.port();
    let hook = "type nat hook prerouting priority -100;";
    let rule = format!("table inet nat {{ chain in {{ {hook} tcp dport 9000 redirect to :{port}; }}; }}");
    wire.nft(&wire.far, &rule);
    // The server's own port is closed.
    wire.close_all_but(9, "ct status dnat accept;");
    for reverse in [false, true] {
        let plan = TransferPlan { reverse, streams: 3, ..bytes_plan(3_000_000) };
        wire.near.run(|| sent(format!("{FAR}:9000"), plan)).unwrap();
    }
}

/// Payload in flight that samples of the sender show, from the second half on.
fn flights_bytes(wire: &Wire, server: &Serving, plan: TransferPlan) -> Vec<u64> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut options = send_options(format!("{FAR}:{}", server.address.port()), plan);
    options.samples = Lines::create(file.path()).unwrap();
    assert!(wire.near.run(|| send(&options, &()).unwrap()).unwrap().is_complete());
    let mut samples = Vec::new();
    lines::read(file.path(), |record| {
        if let Record::Tcp(sample) = record {
            samples.push((sample.sent_bytes - sample.retransmitted_bytes).saturating_sub(sample.acked_bytes));
        }
    })
    .unwrap();
    // Among the last ones all may have been acknowledged.
    samples[samples.len() / 2..samples.len() - 5].to_vec()
}

#[test]
fn a_window_is_what_is_in_flight_where_nothing_else_bounds_it() {
    for (window_bytes, reverse) in [(50_000, false), (50_000, true), (300_000, false)] {
        let wire = Wire::new("window");
        let (sender, receiver) = if reverse { (&wire.far, &wire.near) } else { (&wire.near, &wire.far) };
        // Acknowledgements queue on their way back: what is in flight waits for them.
        let mut tc = receiver.command("tc");
        tc.args("qdisc add dev wire root tbf rate 400kbit burst 2kb limit 1mb".split(' '));
        longfat_host::run_command(tc).unwrap();
        // With offloads a sender waits for a third of its window before it sends.
        let segment = |offload| interface::set_offload("wire", offload, false).unwrap();
        sender.run(|| [interface::Offload::Tso, interface::Offload::Gso].map(segment)).unwrap();
        let plan = TransferPlan {
            amount: Amount::DurationUs(1_500_000),
            window_bytes: Some(window_bytes),
            reverse,
            verify: false,
            ..bytes_plan(1)
        };
        let mut flights = flights_bytes(&wire, &wire.serve("0.0.0.0:0"), plan);
        flights.sort_unstable();
        let (middle, most) = (flights[flights.len() / 2], flights[flights.len() - 1]);
        assert!(most <= window_bytes, "{most} of {window_bytes} bytes");
        assert!(
            middle + 3 * 1448 > window_bytes,
            "{middle} of {window_bytes} bytes, half of the time or less"
        );
    }
}

#[test]
fn lost_datagrams_are_counted_exactly() {
    let wire = Wire::new("loss");
    let server = wire.serve("0.0.0.0:0");
    // Every tenth datagram of 1000 payload bytes (1028 with its headers) is dropped on its way in.
    let rule = "table inet loss { chain in { type filter hook input priority 0; \
                meta l4proto udp ip length 1028 numgen inc mod 10 == 3 drop; }; }";
    wire.nft(&wire.far, rule);
    let plan = TransferPlan {
        protocol: Protocol::Udp,
        amount: Amount::Bytes(2_000_000),
        rate_bps: Some(40_000_000),
        datagram_bytes: 1000,
        ..TransferPlan::default()
    };
    let to = format!("{FAR}:{}", server.address.port());
    let outcome = wire.near.run(|| sent(&to, plan)).unwrap();
    assert_eq!((outcome.flows[0].lost_datagrams, outcome.sinks[0].received_datagrams), (200, 1800));
}

#[test]
fn udp_that_is_blocked_is_named() {
    let wire = Wire::new("blocked");
    let server = wire.serve("0.0.0.0:0");
    wire.nft(
        &wire.far,
        "table inet b { chain in { type filter hook input priority 0; meta l4proto udp drop; }; }",
    );
    let plan = TransferPlan {
        protocol: Protocol::Udp,
        rate_bps: Some(1_000_000),
        timeout_us: 1_000_000,
        ..TransferPlan::default()
    };
    let options = send_options(format!("{FAR}:{}", server.address.port()), plan);
    let error = wire.near.run(|| send(&options, &()).unwrap_err().to_string()).unwrap();
    assert!(error.contains("did not arrive at UDP port ") && error.contains("firewall"), "{error}");
}

#[test]
fn data_that_nobody_acknowledges_end_a_transfer_whose_control_connection_lives() {
    let wire = Wire::new("deaf");
    let server = wire.serve("0.0.0.0:0");
    let plan = TransferPlan { timeout_us: 1_500_000, ..bytes_plan(1 << 40) };
    let outcome = std::thread::scope(|scope| {
        let options = send_options(format!("{FAR}:{}", server.address.port()), plan);
        let client = scope.spawn(|| wire.near.run(move || send(&options, &()).unwrap()).unwrap());
        std::thread::sleep(Duration::from_millis(700));
        // What the client says of itself is short.
        let rule = "table inet b { chain in { type filter hook input priority 0; \
                    meta l4proto tcp meta length > 1000 drop; }; }";
        wire.nft(&wire.far, rule);
        client.join().unwrap()
    });
    let error = outcome.flows[0].error.as_deref().unwrap_or_default();
    assert!(error.contains("nothing was acknowledged for"), "{outcome:?}");
}

#[test]
fn a_wire_that_dies_ends_both_ends_within_the_timeout() {
    let wire = Wire::new("cut");
    let server = wire.serve("0.0.0.0:0");
    let plan = TransferPlan {
        amount: Amount::DurationUs(60_000_000),
        timeout_us: 1_500_000,
        streams: 2,
        ..bytes_plan(1)
    };
    let options = send_options(format!("{FAR}:{}", server.address.port()), plan);
    let begun = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| wire.near.run(|| send(&options, &()).unwrap()).unwrap());
        std::thread::sleep(Duration::from_millis(700));
        wire.far.ip(&["link", "set", "wire", "down"]).unwrap();
        client.join().unwrap()
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "took {:?}", begun.elapsed());
    assert!(outcome.flows.iter().all(|flow| flow.error.is_some()) && outcome.lost.is_some(), "{outcome:?}");
    // The server noticed by itself: it ends its transfer although nobody asks it to stop.
    let deadline = Instant::now() + Duration::from_secs(20);
    while server_is_busy(&wire) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!server_is_busy(&wire), "the server still holds a connection");
    assert_eq!(server.end().failed, 1);
}

/// Whether the far host has an established connection.
fn server_is_busy(wire: &Wire) -> bool {
    let mut ss = wire.far.command("ss");
    ss.args(["-Htn", "state", "established"]);
    !longfat_host::run_command(ss).unwrap().trim().is_empty()
}

/// A server process in the far namespace, and where the near one finds it.
fn server_process(wire: &Wire) -> (ServerProcess, String) {
    let server = ServerProcess::start(wire.far.command(ends::server_program()), "0.0.0.0:0");
    let to = format!("{FAR}:{}", server.port);
    (server, to)
}

#[test]
fn a_killed_server_is_a_clear_error_not_a_hang() {
    let wire = Wire::new("killed");
    let (mut server, to) = server_process(&wire);
    let plan = TransferPlan { amount: Amount::DurationUs(60_000_000), ..bytes_plan(1) };
    let options = send_options(to, plan);
    let begun = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| wire.near.run(|| send(&options, &()).unwrap()).unwrap());
        std::thread::sleep(Duration::from_millis(600));
        server.child.kill().unwrap();
        client.join().unwrap()
    });
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(outcome.lost.as_ref().unwrap().contains("closed"), "{outcome:?}");
    assert!(outcome.flows[0].error.is_some());
}

#[test]
fn a_frozen_server_is_noticed_though_its_kernel_still_answers() {
    let wire = Wire::new("frozen");
    let (server, to) = server_process(&wire);
    // A rate that the kernel's buffers take for a while: only the silence of the program tells.
    let plan = TransferPlan {
        amount: Amount::DurationUs(60_000_000),
        rate_bps: Some(1_000_000),
        block_bytes: 1000,
        timeout_us: 1_500_000,
        ..bytes_plan(1)
    };
    let options = send_options(to, plan);
    let begun = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| wire.near.run(|| send(&options, &()).unwrap()).unwrap());
        std::thread::sleep(Duration::from_millis(600));
        // SAFETY: a signal to a child that is not waited for yet, so its pid is its own.
        unsafe { libc::kill(server.child.id() as i32, libc::SIGSTOP) };
        client.join().unwrap()
    });
    assert!(begun.elapsed() < Duration::from_secs(20), "took {:?}", begun.elapsed());
    assert!(outcome.lost.as_ref().unwrap().contains("not been heard of"), "{:?}", outcome.lost);
}

#[test]
fn a_long_queue_is_drained_or_cut_at_the_limit_without_error() {
    let wire = Wire::new("drain");
    let server = wire.serve("0.0.0.0:0");
    let mut tc = wire.near.command("tc");
    tc.args("qdisc add dev wire root tbf rate 4mbit burst 16kb limit 1mb".split(' '));
    longfat_host::run_command(tc).unwrap();
    let plan = TransferPlan {
        amount: Amount::DurationUs(500_000),
        drain_us: 100_000,
        sndbuf_bytes: Some(8 << 20),
        ..bytes_plan(1)
    };
    let to = format!("{FAR}:{}", server.address.port());
    let outcome = wire.near.run(|| sent(&to, plan)).unwrap();
    assert!(outcome.sources[0].cut, "{outcome:?}");
    assert!(outcome.sources[0].sent_bytes > outcome.sinks[0].received_bytes);
    assert_eq!(outcome.flows[0].duration_us, 500_000);
}
