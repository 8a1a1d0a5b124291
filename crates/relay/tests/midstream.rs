//! `adopt_after`: connections pass from end to end until they are worth it; then the relay steps in, in mid-stream.

use crate::bed::{
    self, Bed, Running, SERVER_V4, accept, asked, check_noise, check_noise_slowly, check_some_noise,
    control_of, ends_with_reset, exchange, nft,
    packet::{RST, Segment, Sender},
    path::eventually,
    reset, send_noise, servers, set_ipv4, start, talk, told, try_send_noise_slowly, try_send_some_noise,
};
use longfat_host::{Namespace, socket};
use longfat_kernel::watch::Conditions;
use longfat_relay::{
    RelayPlan,
    status::{AdoptedStatus, EndToEndStatus},
};
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

const AFTER_BYTES: usize = 200_000;
const AT_ONCE: (usize, Duration) = (1 << 16, Duration::ZERO);
/// A pace so slow that a stream outlives the moment.
const SLOWLY: (usize, Duration) = (1 << 14, Duration::from_millis(1));

fn after(conditions: Conditions) -> RelayPlan {
    let mut plan = Bed::end_to_end();
    plan.defaults_mut().adopt = conditions;
    plan.drain = Duration::from_secs(20);
    plan
}

fn plan() -> RelayPlan {
    after(after_bytes())
}

fn after_bytes() -> Conditions {
    Conditions { bytes: Some(AFTER_BYTES as u64), ..Conditions::default() }
}

/// Why living connections were stepped into, the younger the later.
fn adopted(tag: &str) -> Vec<AdoptedStatus> {
    let mut found = asked(tag).connections;
    found.sort_by_key(|one| one.connection);
    found.into_iter().filter_map(|one| one.adopted).collect()
}

/// Talks until the relay has stepped in, and on.
fn adopt(bed: &Bed, client: &TcpStream, far: &TcpStream) {
    let before = bed.leg_count();
    talk(client, far, 2 << 20, SLOWLY);
    eventually("the relay steps in", || {
        talk(client, far, 1 << 10, AT_ONCE);
        bed.leg_count() == before + 2
    });
}

#[test]
fn a_stream_is_stepped_into_and_no_byte_is_wrong() {
    let bed = Bed::new("mstream");
    let relay = start("mstream", &bed, plan());
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        assert_eq!(bed.leg_count(), 0, "its handshake is the ends' own");
        adopt(&bed, &client, &far);
        exchange(&client, &far, 8 << 20);
    }
    let status = told("mstream");
    assert_eq!((status.watched, status.reached, status.adopted), (2, 2, 2), "{status:?}");
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished), (2, 2), "{stats:?}");
}

/// Packets that were led to the relay's own interfaces.
fn led_packets(host: &Namespace) -> u64 {
    let listed = host.ip(&["-json", "-stats", "link", "show"]).unwrap();
    let links: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    let own = links.iter().filter(|link| link["ifname"].as_str().unwrap().starts_with("lfh"));
    own.map(|link| link["stats64"]["tx"]["packets"].as_u64().unwrap()).sum()
}

/// Flows that fill the relay's interface faster than it reads would keep each other there.
#[test]
fn packets_of_fast_flows_go_straight_to_the_sockets_soon_after_the_relay_has_stepped_in() {
    let bed = Bed::new("mfast");
    let relay = start("mfast", &bed, plan());
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let pairs: Vec<_> = (0..8).map(|_| bed.pair(&listener, address)).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (client, far) in &pairs {
            scope.spawn(|| {
                let mut is_open = true;
                while is_open && !is_over.load(Relaxed) {
                    is_open = try_send_some_noise(client, 1, 1 << 20).is_ok();
                }
            });
            scope.spawn(|| while let Ok(1..) = (&*far).read(&mut [0; 1 << 16]) {});
        }
        let over = Over(&is_over, &pairs);
        eventually("the relay has stepped into all", || told("mfast").adopted == 8);
        eventually("nothing is led by the relay's interface any more", || {
            let before = led_packets(&bed.relay);
            std::thread::sleep(Duration::from_millis(100));
            led_packets(&bed.relay) == before
        });
        drop(over);
    });
    drop(pairs);
    assert_eq!(relay.stop().finished, 8);
}

/// Ends streams when a test has ended, however it has.
struct Over<'a>(&'a AtomicBool, &'a [(TcpStream, TcpStream)]);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        self.1.iter().for_each(|(client, _)| drop(client.shutdown(Shutdown::Write)));
    }
}

#[test]
fn streams_of_one_direction_are_stepped_into() {
    let bed = Bed::new("mone");
    let relay = start("mone", &bed, plan());
    let (total, piece, pause) = (24 << 20, SLOWLY.0, Duration::from_micros(300));
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        for is_upload in [true, false] {
            let (client, far) = bed.pair(&listener, address);
            let (from, to) = if is_upload { (&client, &far) } else { (&far, &client) };
            std::thread::scope(|scope| {
                scope.spawn(|| send_noise(from, 7, total));
                assert_eq!(check_noise_slowly(to, 7, piece, pause), total);
            });
            to.shutdown(Shutdown::Write).unwrap();
            assert_eq!((&*from).read(&mut [0]).unwrap(), 0);
        }
    }
    let status = told("mone");
    assert_eq!(status.adopted, 4, "{status:?}");
    assert_eq!(relay.stop().finished, 4);
}

#[test]
fn short_connections_are_left_alone() {
    let bed = Bed::new("mshort");
    let relay = start("mshort", &bed, plan());
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        for _ in 0..20 {
            let (client, far) = bed.pair(&listener, address);
            exchange(&client, &far, AFTER_BYTES / 4);
        }
    }
    let status = told("mshort");
    assert_eq!((status.watched, status.reached, status.inserted), (40, 0, 0), "{status:?}");
    assert_eq!(relay.stop().connections, 0);
}

/// Packets and routing rules of a relay whose number is the first that is free.
const OWN_MARK: u32 = 0x6c67;
const PASS_MARK: u32 = OWN_MARK ^ (1 << 31);

/// Counts packets to or from the servers' port: those that come marked as only watched, those that have any mark
/// where nftables has looked at them, and those that have none there.
fn count_marks(host: &Namespace) {
    let of_port = |rest: &str| ["sport", "dport"].map(|port| format!("tcp {port} 9000 {rest}\n")).concat();
    let chain = |name, priority, rest: &str| {
        let rules = of_port(rest);
        format!("chain {name} {{ type filter hook prerouting priority {priority};\n{rules}}}\n")
    };
    nft(
        host,
        &format!(
            "table inet counts {{\ncounter passing {{ }}\ncounter marked {{ }}\ncounter bare {{ }}\n\
             chain look {{\nmeta mark 0 counter name bare return\ncounter name marked\n}}\n{}{}}}\n",
            chain("before", -350, &format!("meta mark {PASS_MARK:#x} counter name passing")),
            chain("after", -250, "jump look"),
        ),
    );
}

/// Packets counted by [`count_marks`], in its order.
fn marks_counted(host: &Namespace) -> [u64; 3] {
    ["passing", "marked", "bare"].map(|name| {
        let mut command = host.command("nft");
        command.args(["list", "counter", "inet", "counts", name]);
        let listed = longfat_host::run_command(command).unwrap();
        let (_, rest) = listed.split_once("packets ").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    })
}

fn own_rules(bed: &Bed) -> usize {
    let rules = ["-4", "-6"].map(|family| {
        let mut command = bed.relay.command("ip");
        command.args([family, "rule", "show"]);
        longfat_host::run_command(command).unwrap()
    });
    rules.concat().lines().filter(|line| line.contains("fwmark")).count()
}

/// Number of chains of the relay's table.
fn chains(bed: &Bed) -> usize {
    let mut command = bed.relay.command("nft");
    command.args(["list", "chains"]);
    let listed = longfat_host::run_command(command).unwrap();
    let of_relay = listed.split("table ").filter(|table| table.starts_with("inet longfat"));
    of_relay.map(|table| table.matches("hook prerouting").count()).sum()
}

#[test]
fn packets_that_are_only_watched_pass_without_a_look_and_ways_come_with_the_first_that_needs_them() {
    let bed = Bed::new("mpass");
    count_marks(&bed.relay);
    let relay = start("mpass", &bed, plan());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    let short = || {
        for (listener, address) in &listeners {
            for _ in 0..5 {
                let (client, far) = bed.pair(listener, *address);
                exchange(&client, &far, AFTER_BYTES / 4);
            }
        }
    };
    short();
    let [passing, marked, bare] = marks_counted(&bed.relay);
    assert_eq!((passing, marked), (0, 0), "nothing is done to them");
    assert!(bare > 100, "{bare}");
    assert_eq!((chains(&bed), own_rules(&bed)), (0, 0), "nothing needs a way");

    for (listener, address) in &listeners {
        let (client, far) = bed.pair(listener, *address);
        adopt(&bed, &client, &far);
        assert!(chains(&bed) > 0 && own_rules(&bed) > 0);
        let [passing, marked, _] = marks_counted(&bed.relay);
        exchange(&client, &far, 1 << 20);
        let [later, taken, _] = marks_counted(&bed.relay);
        assert_eq!(later, passing, "what has a socket is looked at");
        assert!(taken > marked + 20, "{marked} {taken}");
    }
    let [passing, marked, bare] = marks_counted(&bed.relay);
    short();
    let [later, still_marked, later_bare] = marks_counted(&bed.relay);
    assert_eq!(still_marked, marked, "others pass, and no mark is left behind");
    assert_eq!(later_bare - bare, later - passing, "without a look");
    assert!(later > passing + 100);
    assert_eq!(told("mpass").adopted, 2);
    relay.stop();
    assert_eq!(own_rules(&bed), 0, "nothing is left");
}

#[test]
fn a_port_may_be_used_again_whether_the_connection_before_was_stepped_into_or_not() {
    let bed = Bed::new("mwait");
    let relay = start("mwait", &bed, plan());
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    for turn in 0..6 {
        let client = bed.connect_from(40_000, address);
        let far = accept(&listener);
        if turn % 2 == 0 {
            adopt(&bed, &client, &far);
        }
        exchange(&client, &far, 1 << 16);
        drop(far);
        assert_eq!((&client).read(&mut [0]).unwrap(), 0);
        drop(client);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(told("mwait").adopted, 3);
    drop(relay);
}

#[test]
fn whatever_the_ends_agree_on_holds_in_mid_stream_too() {
    let bed = Bed::new("moptions");
    let relay = start("moptions", &bed, plan());
    let mut count = 0;
    for key in ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"] {
        for end in [&bed.client, &bed.server] {
            set_ipv4(end, key, "0");
            for address in servers() {
                let listener = bed.listen(&address.to_string());
                let (client, far) = bed.pair(&listener, address);
                adopt(&bed, &client, &far);
                exchange(&client, &far, 1 << 20);
                count += 1;
            }
            set_ipv4(end, key, "1");
        }
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished), (count, count), "{stats:?}");
}

#[test]
fn a_lossy_path_does_not_keep_it_out() {
    let link =
        "rate = '300Mbit'\ndelay = '5ms'\nloss = 0.002\nqueue = { discipline = 'droptail', limit = '300KB' }";
    Bed::over_link("mloss", link, |bed| {
        let relay = start("mloss", bed, plan());
        for address in servers() {
            let listener = bed.listen(&address.to_string());
            let (client, far) = bed.pair(&listener, address);
            exchange(&client, &far, 24 << 20);
        }
        let status = told("mloss");
        assert_eq!(status.adopted, 2, "{status:?}");
        assert_eq!(relay.stop().finished, 2);
    });
}

/// What an end does to its own packets, both ways: one of so many is lost, one of so many comes twice. What is lost on
/// its way out is lost first: its sender counts it as not sent, and must not hear of a copy.
fn disturb(host: &Namespace, gateway: [&str; 2], (lost, doubled): (u32, u32)) {
    let [v4, v6] = gateway;
    let lose = format!("tcp flags & syn == 0 numgen random mod {lost} 0 drop");
    let double = |family, gateway| {
        format!(
            "table {family} doubled {{ chain out {{ type filter hook output priority 0; \
             tcp dport != 0 numgen random mod {doubled} 0 dup to {gateway} device \"eth0\"; }}; }}\n"
        )
    };
    nft(
        host,
        &format!(
            "table inet lossy {{ chain in {{ type filter hook prerouting priority 0; {lose}; }}; \
             chain out {{ type filter hook output priority -10; {lose}; }}; }}\n{}{}",
            double("ip", v4),
            double("ip6", v6)
        ),
    );
}

#[test]
fn whatever_the_ends_agree_on_and_both_paths_do_to_packets_streams_are_exact() {
    /// A setting of both ends, and what else is off.
    const ROWS: [&[&str]; 5] = [
        &[],
        &["tcp_timestamps"],
        &["tcp_sack"],
        &["tcp_window_scaling"],
        &["tcp_timestamps", "tcp_sack", "tcp_window_scaling"],
    ];
    let link = "rate = '300Mbit'\ndelay = '3ms'\njitter = '1ms'\nreorder = true\nloss = 0.002\n\
                queue = { discipline = 'droptail', limit = '500KB' }";
    Bed::over_link("mrows", link, |bed| {
        let relay = start("mrows", bed, plan());
        disturb(&bed.client, ["10.71.1.1", "fd71:1::1"], (400, 50));
        disturb(&bed.server, ["10.71.2.1", "fd71:2::1"], (1_000_000, 50));
        for off in ROWS {
            let all = |value| {
                for (key, host) in off.iter().flat_map(|key| [(key, &bed.client), (key, &bed.server)]) {
                    set_ipv4(host, key, value);
                }
            };
            all("0");
            for address in servers() {
                let listener = bed.listen(&address.to_string());
                let (client, far) = bed.pair(&listener, address);
                exchange(&client, &far, 4 << 20);
            }
            all("1");
        }
        let status = told("mrows");
        let stayed: u64 = status.passed.values().sum();
        assert_eq!((status.reached, status.adopted + stayed), (10, 10), "{status:?}");
        assert!(status.adopted >= 5, "{status:?}");
        // No moment without a hole came in time, or before the end.
        let is_late = |reason: &String| reason == "restless" || reason == "closing";
        assert!(status.passed.keys().all(is_late), "{status:?}");
        drop(relay);
    });
}

#[test]
fn an_end_that_takes_nothing_for_seconds_is_stepped_in_beside_when_it_does() {
    let bed = Bed::new("mzero");
    let relay = start("mzero", &bed, plan());
    for (turn, address) in servers().into_iter().enumerate() {
        let listener = bed.listen(&address.to_string());
        setsockopt(&listener, sockopt::RcvBuf, &(AFTER_BYTES / 2)).unwrap();
        let (client, far) = bed.pair(&listener, address);
        let total = 6 << 20;
        std::thread::scope(|scope| {
            scope.spawn(|| bed::try_send_some_noise(&client, 5, total).unwrap());
            // It comes so far, shuts its window, and opens it seconds later.
            check_part(&far, AFTER_BYTES - AFTER_BYTES / 4, total, Duration::from_secs(3));
        });
        eventually("the relay steps in", || {
            talk(&client, &far, 1 << 10, AT_ONCE);
            bed.leg_count() == 2
        });
        let status = told("mzero");
        assert_eq!(
            status.reached,
            turn as u64 + 1,
            "its window was shut when it had come so far: {status:?}"
        );
        exchange(&client, &far, 1 << 16);
    }
    let status = told("mzero");
    assert_eq!((status.adopted, status.passed.len()), (2, 0), "{status:?}");
    drop(relay);
}

/// Reads and checks a part, and the rest after a pause.
fn check_part(mut stream: &TcpStream, part: usize, total: usize, pause: Duration) {
    let (mut noise, mut expected, mut got) = (bed::Noise::new(5), vec![0; total], vec![0; total]);
    expected.chunks_mut(1 << 16).for_each(|block| noise.fill(block));
    stream.read_exact(&mut got[..part]).unwrap();
    std::thread::sleep(pause);
    for piece in got[part..].chunks_mut(1 << 14) {
        stream.read_exact(piece).unwrap();
        std::thread::sleep(Duration::from_micros(500));
    }
    assert!(got == expected, "a byte differs");
}

#[test]
fn packets_that_overtake_each_other_do_not_matter() {
    let link = "rate = '300Mbit'\ndelay = '4ms'\njitter = '1ms'\nreorder = true\nqueue = { discipline = 'droptail', limit = '1MB' }";
    let _ = Bed::over_any_link("mreorder", link, |bed| {
        let relay = start("mreorder", bed, plan());
        let address = servers()[0];
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        // For longer than the relay waits for a moment without a hole.
        exchange(&client, &far, 96 << 20);
        let status = told("mreorder");
        assert_eq!(status.adopted, 1, "{status:?}");
        assert_eq!(relay.stop().finished, 1);
    });
}

#[test]
fn an_idle_connection_is_stepped_into_when_it_speaks_again() {
    let bed = Bed::new("midle");
    let after_time = Conditions { time: Some(Duration::from_millis(300)), ..Conditions::default() };
    let relay = start("midle", &bed, after(after_time));
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (client, far) = bed.pair(&listener, address);
    let dialogue = || {
        (&client).write_all(b"question").unwrap();
        check(&far, b"question");
        (&far).write_all(b"answer").unwrap();
        check(&client, b"answer");
    };
    dialogue();
    assert_eq!(told("midle").reached, 0);
    std::thread::sleep(Duration::from_millis(400));
    // The first packet tells; nothing more comes for longer than packets are led through the relay.
    (&client).write_all(b"x").unwrap();
    check(&far, b"x");
    eventually("it is told of", || told("midle").reached == 1);
    std::thread::sleep(Duration::from_secs(6));
    eventually("the relay steps in", || {
        dialogue();
        bed.leg_count() == 2
    });
    let status = told("midle");
    assert_eq!((status.adopted, status.passed.len()), (1, 0), "{status:?}");
    exchange(&client, &far, 1 << 20);
    assert_eq!(relay.stop().finished, 1);
}

#[test]
fn probes_of_an_idle_connection_let_the_relay_in_and_are_answered_by_it() {
    let bed = Bed::new("mkeep");
    let after_time = Conditions { time: Some(Duration::from_millis(300)), ..Conditions::default() };
    let relay = start("mkeep", &bed, after(after_time));
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        talk(&client, &far, 10_000, AT_ONCE);
        for end in [&client, &far] {
            setsockopt(end, sockopt::KeepAlive, &true).unwrap();
            setsockopt(end, sockopt::TcpKeepIdle, &1).unwrap();
            setsockopt(end, sockopt::TcpKeepInterval, &1).unwrap();
            setsockopt(end, sockopt::TcpKeepCount, &2).unwrap();
        }
        // Nothing else is sent.
        eventually("the relay steps in", || bed.leg_count() == 2);
        std::thread::sleep(Duration::from_secs(4));
        exchange(&client, &far, 1 << 20);
    }
    let stats = relay.stop();
    assert_eq!((stats.finished, stats.reset), (2, 0), "{stats:?}");
}

fn check(mut stream: &TcpStream, expected: &[u8]) {
    let mut said = vec![0; expected.len()];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(said, expected);
}

#[test]
fn what_sockets_cannot_be_told_stays_end_to_end_and_is_counted() {
    let bed = Bed::new("mecn");
    let relay = start("mecn", &bed, plan());
    for host in [&bed.client, &bed.server] {
        set_ipv4(host, "tcp_ecn", "1");
    }
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (client, far) = bed.pair(&listener, address);
    exchange(&client, &far, 4 << 20);
    eventually("it is counted", || told("mecn").passed.get("ecn") == Some(&1));
    assert_eq!(relay.stop().connections, 0);
}

#[test]
fn only_what_a_rule_means_is_watched() {
    let text = "workers = 2\n[intercept]\ninterfaces = 'lan'\n[[rule]]\nport = 9001\naction = 'pass'\n\
                [[rule]]\nport = 9000\naccept = 'end-to-end'\nadopt_after = '200KB'\n";
    let bed = Bed::new("mrule");
    let relay = start("mrule", &bed, longfat_relay::spec::RelaySpec::parse(text).unwrap().resolve().unwrap());
    for (port, is_meant) in [(9001, false), (9002, false), (9000, true)] {
        let address = SocketAddr::new(SERVER_V4.parse().unwrap(), port);
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        if is_meant {
            adopt(&bed, &client, &far);
        }
        exchange(&client, &far, 1 << 20);
        assert_eq!(told("mrule").adopted, u64::from(is_meant), "{port}");
    }
    let status = told("mrule");
    assert!(status.passed.is_empty(), "{status:?}");
    drop(relay);
}

/// With a bound of memory buffers begin small, but for what the ends were promised already.
#[test]
fn a_bound_of_memory_keeps_the_relay_out_of_nothing() {
    let text = "workers = 2\n[limits]\nmemory = '512MiB'\n[intercept]\ninterfaces = 'lan'\n[defaults]\n\
                accept = 'end-to-end'\nadopt_after = '200KB'\n";
    let bed = Bed::new("mmem");
    let relay = start("mmem", &bed, longfat_relay::spec::RelaySpec::parse(text).unwrap().resolve().unwrap());
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        adopt(&bed, &client, &far);
        exchange(&client, &far, 1 << 20);
    }
    let status = told("mmem");
    assert!(status.adopted == 2 && status.passed.is_empty(), "{status:?}");
    drop(relay);
}

#[test]
fn a_reset_that_neither_end_believes_ends_no_watching() {
    let bed = Bed::new("mstray");
    let relay = start("mstray", &bed, plan());
    let sender = Sender::new(&bed);
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        talk(&client, &far, 10_000, AT_ONCE);
        let syn = Segment::syn(client.local_addr().unwrap(), address);
        sender.send(&Segment { flags: RST, sequence: 7, ..syn });
        adopt(&bed, &client, &far);
        exchange(&client, &far, 1 << 20);
    }
    let status = told("mstray");
    assert!(status.adopted == 2 && status.passed.is_empty(), "{status:?}");
    drop(relay);
}

#[test]
fn a_stream_back_to_an_end_that_has_finished_is_counted_once_it_would_be_worth_it() {
    let bed = Bed::new("mhalf");
    let relay = start("mhalf", &bed, plan());
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut [0]).unwrap(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| send_noise(&far, 5, 10 * AFTER_BYTES));
            assert_eq!(check_noise(&client, 5), 10 * AFTER_BYTES);
        });
    }
    eventually("both are counted", || told("mhalf").passed.get("closing") == Some(&2));
    assert_eq!(told("mhalf").adopted, 0);
    drop(relay);
}

/// Led past those sockets, the ends would wait for each other.
#[test]
fn a_connection_that_another_relay_of_the_host_carries_is_left_to_it() {
    let bed = Bed::new("mother");
    let other = bed.start(RelayPlan { name: "other".into(), ..Bed::end_to_end() });
    let relay = start("mother", &bed, plan());
    let busy = || told("mother").passed.get("pair_busy").copied().unwrap_or(0);
    for (address, before) in servers().into_iter().zip(0..) {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        eventually("the connection is left alone", || {
            talk(&client, &far, 1 << 18, SLOWLY);
            busy() > before
        });
        exchange(&client, &far, 1 << 20);
    }
    let status = told("mother");
    assert_eq!((status.adopted, status.passed.len()), (0, 1), "{status:?}");
    drop(relay);
    assert_eq!(other.stop().finished, 2);
}

/// Sends a little more than what is asked for, and ends: before packets are led through the relay, while they are, or
/// after it has stepped in. `end` says how.
fn around_the_moment(tag: &str, times: usize, end: impl Fn(TcpStream, &TcpStream)) -> EndToEndStatus {
    let bed = Bed::new(tag);
    let relay = start(tag, &bed, plan());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    for turn in 0..times {
        let (listener, address) = &listeners[turn % 2];
        let (client, far) = bed.pair(listener, *address);
        let total = AFTER_BYTES + 20_000 * (turn % 40 + 1);
        std::thread::scope(|scope| {
            scope.spawn(|| send_paced(&client, 9, total));
            check_some_noise(&far, 9, total, AT_ONCE);
        });
        end(client, &far);
    }
    let status = told(tag);
    drop(relay);
    status
}

fn send_paced(mut stream: &TcpStream, seed: u64, total: usize) {
    let (mut noise, mut left, mut block) = (bed::Noise::new(seed), total, vec![0; 1 << 16]);
    while left > 0 {
        let bytes = left.min(block.len());
        noise.fill(&mut block[..bytes]);
        for piece in block[..bytes].chunks(1 << 14) {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_micros(400));
        }
        left -= bytes;
    }
}

#[test]
fn a_reset_in_the_moment_of_stepping_in_reaches_the_other_end() {
    let status = around_the_moment("mreset", 120, |client, far| {
        reset(client);
        assert!(ends_with_reset(far), "the server hears of the client's reset");
    });
    assert!(status.reached == 120 && status.adopted > 10, "{status:?}");
}

#[test]
fn a_finish_in_the_moment_of_stepping_in_is_one() {
    let status = around_the_moment("mfinish", 80, |client, far| {
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&*far).read(&mut [0]).unwrap(), 0);
        send_noise(far, 5, 1 << 16);
        assert_eq!(check_noise(&client, 5), 1 << 16);
    });
    assert!(status.reached == 80 && status.adopted > 10, "{status:?}");
}

#[test]
fn both_ends_may_finish_at_the_same_moment() {
    let status = around_the_moment("mboth", 120, |client, far| {
        std::thread::scope(|scope| {
            scope.spawn(|| client.shutdown(Shutdown::Write).unwrap());
            far.shutdown(Shutdown::Write).unwrap();
        });
        for mut end in [&client, far] {
            assert_eq!(end.read(&mut [0]).unwrap(), 0);
        }
    });
    assert!(status.reached == 120 && status.adopted > 10, "{status:?}");
}

#[test]
fn urgent_bytes_around_the_moment_stay_in_their_places() {
    let bed = Bed::new("murgent");
    let relay = start("murgent", &bed, plan());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    for turn in 0..60 {
        let (listener, address) = &listeners[turn % 2];
        let (client, far) = bed.pair(listener, *address);
        setsockopt(&far, sockopt::OobInline, &true).unwrap();
        let before = AFTER_BYTES + 5_000 * turn;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_paced(&client, 9, before);
                assert_eq!(send(client.as_raw_fd(), b"!", MsgFlags::MSG_OOB), Ok(1));
                send_paced(&client, 8, 1 << 18);
            });
            check_some_noise(&far, 9, before, AT_ONCE);
            let mut mark = [0];
            (&far).read_exact(&mut mark).unwrap();
            assert_eq!(&mark, b"!", "turn {turn}");
            check_some_noise(&far, 8, 1 << 18, AT_ONCE);
        });
        exchange(&client, &far, 1 << 16);
    }
    let status = told("murgent");
    assert!(status.reached == 60 && status.adopted > 10, "{status:?}");
    drop(relay);
}

#[test]
fn rules_that_are_reloaded_away_leave_adopted_streams_alone() {
    let bed = Bed::new("mreload");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    for next in [Bed::end_to_end(), Bed::transparent()] {
        let relay = start("mreload", &bed, plan());
        let (client, far) = bed.pair(&listener, address);
        adopt(&bed, &client, &far);
        let (under_way, far_under_way) = bed.pair(&listener, address);
        std::thread::scope(|scope| {
            scope.spawn(|| talk(&client, &far, 4 << 20, SLOWLY));
            // Packets of some may be led through the relay at that moment.
            scope.spawn(|| talk(&under_way, &far_under_way, 4 << 20, SLOWLY));
            std::thread::sleep(Duration::from_millis(40));
            let mut next = next.clone();
            next.control = Some(control_of("mreload"));
            relay.reload(next);
        });
        exchange(&client, &far, 1 << 20);
        exchange(&under_way, &far_under_way, 1 << 20);
        let before = told("mreload").reached;
        let (client, far) = bed.pair(&listener, address);
        exchange(&client, &far, 1 << 20);
        assert_eq!(told("mreload").reached, before, "nothing is watched any more");
        drop(relay);
    }
}

#[test]
fn many_at_a_time_are_stepped_into() {
    const COUNT: usize = 60;
    let bed = Bed::new("mmany");
    let relay = start("mmany", &bed, plan());
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    // The rules come with the first one.
    let (client, far) = bed.pair(&listener, address);
    adopt(&bed, &client, &far);
    let pairs: Vec<_> = (0..COUNT).map(|_| pair_in_order(&bed, &listener, address)).collect();
    std::thread::scope(|scope| {
        for (client, far) in &pairs {
            scope.spawn(move || talk(client, far, 1 << 20, (1 << 13, Duration::from_millis(2))));
        }
    });
    let status = told("mmany");
    assert_eq!(status.reached, COUNT as u64 + 1, "{status:?}");
    assert!(status.adopted > COUNT as u64 * 9 / 10, "{status:?}");
    drop(pairs);
    drop(relay);
}

fn pair_in_order(bed: &Bed, listener: &TcpListener, address: SocketAddr) -> (TcpStream, TcpStream) {
    let client = bed.connect(address);
    (client, accept(listener))
}

#[test]
fn streams_stepped_into_outlive_the_relay() {
    let bed = Bed::new("mdrain");
    for address in servers() {
        let relay = start("mdrain", &bed, plan());
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        adopt(&bed, &client, &far);
        let stats = std::thread::scope(|scope| {
            let stopped = scope.spawn(|| relay.stop());
            talk(&client, &far, 12 << 20, (1 << 14, Duration::from_millis(2)));
            stopped.join().unwrap()
        });
        assert_eq!((stats.released, stats.stopped, stats.reset), (1, 0, 0), "{stats:?}");
        exchange(&client, &far, 1 << 20);
    }
}

#[test]
fn a_successor_goes_on_with_a_stream_and_watches_new_ones() {
    let bed = Bed::new("mupgrade");
    let relay = start("mupgrade", &bed, plan());
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (client, far) = bed.pair(&listener, address);
    adopt(&bed, &client, &far);
    let (watched_client, watched_far) = bed.pair(&listener, address);
    let mut next_plan = plan();
    next_plan.control = Some(control_of("mupgrade"));
    let next = std::thread::scope(|scope| {
        scope.spawn(|| talk(&client, &far, 24 << 20, (1 << 14, Duration::from_millis(2))));
        Running::upgrade(&bed.relay, next_plan, || {}).unwrap()
    });
    relay.wait();
    exchange(&client, &far, 1 << 20);
    // Its handshake went by the predecessor.
    adopt(&bed, &watched_client, &watched_far);
    exchange(&watched_client, &watched_far, 1 << 20);
    let (client, far) = bed.pair(&listener, address);
    adopt(&bed, &client, &far);
    exchange(&client, &far, 1 << 20);
    assert_eq!(told("mupgrade").adopted, 2);
    next.stop();
}

#[test]
fn a_relay_that_ends_in_that_moment_leaves_connections_alone() {
    let bed = Bed::new("mend");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    for _ in 0..4 {
        let relay = start("mend", &bed, plan());
        let (client, far) = bed.pair(&listener, address);
        std::thread::scope(|scope| {
            scope.spawn(|| talk(&client, &far, 6 << 20, (1 << 14, Duration::from_micros(500))));
            eventually("it has come so far", || told("mend").reached == 1);
            relay.stop();
        });
        exchange(&client, &far, 1 << 18);
    }
}

/// Sends so many bytes, `piece` at a time with `pause` between.
fn send_slowly(client: &TcpStream, far: &TcpStream, total: usize, pace: (usize, Duration)) {
    std::thread::scope(|scope| {
        scope.spawn(|| check_some_noise(far, 6, total, AT_ONCE));
        try_send_noise_slowly(client, 6, total, pace).unwrap();
    });
}

#[test]
fn only_a_fast_connection_is_stepped_into_where_a_rate_is_asked_for() {
    let bed = Bed::new("mrate");
    let relay = start("mrate", &bed, after(Conditions { rate_bps: Some(4_000_000), ..after_bytes() }));
    for (turn, address) in servers().into_iter().enumerate() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        // At most 1.6 Mbit/s, whatever the machine does beside it; more in all than the rate gives in a second.
        send_slowly(&client, &far, 600_000, (20_000, Duration::from_millis(100)));
        assert_eq!(told("mrate").reached, turn as u64, "much has passed, slowly");
        adopt(&bed, &client, &far);
        let known = adopted("mrate").pop().unwrap();
        // Of what the rate gives in the second that counted, ten pieces may have been slow ones.
        assert!(known.passed_bytes >= 900_000 && known.age_us >= 2_900_000, "{known:?}");
        assert!(known.client_rtt_us.is_none(), "nobody asked for it: {known:?}");
    }
    drop(relay);
}

#[test]
fn only_a_long_path_is_stepped_into_where_a_round_trip_is_asked_for() {
    const RTT: Duration = Duration::from_millis(30);
    let conditions = Conditions { rtt: Some(RTT), ..after_bytes() };
    let bed = Bed::new("mshortrtt");
    let relay = start("mshortrtt", &bed, after(conditions));
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        // The first SYN is lost: what its repetition takes is no round trip.
        nft(
            &bed.server,
            "table inet lose { chain in { type filter hook prerouting priority 0; \
             tcp flags & syn == syn limit rate 1/minute burst 1 packets drop; }; }",
        );
        let (client, far) = bed.pair(&listener, address);
        nft(&bed.server, "delete table inet lose");
        talk(&client, &far, 4 << 20, AT_ONCE);
        assert_eq!(told("mshortrtt").reached, 0, "the path is short");
    }
    drop(relay);
    let link = "rate = '300Mbit'\ndelay = '20ms'\nqueue = { discipline = 'droptail', limit = '3MB' }";
    let _ = Bed::over_any_link("mlongrtt", link, |bed| {
        let relay = start("mlongrtt", bed, after(conditions));
        for address in servers() {
            let listener = bed.listen(&address.to_string());
            let (client, far) = bed.pair(&listener, address);
            adopt(bed, &client, &far);
            let known = adopted("mlongrtt").pop().unwrap();
            let server_rtt_us = known.server_rtt_us.unwrap();
            // The way of the server's packets is the long one, either way.
            assert!((40_000..500_000).contains(&server_rtt_us), "{known:?}");
            assert!(known.client_rtt_us.unwrap() < server_rtt_us, "{known:?}");
            exchange(&client, &far, 1 << 20);
        }
        drop(relay);
    });
}

#[test]
fn only_a_lossy_path_is_stepped_into_where_losses_are_asked_for() {
    let conditions = Conditions { losses_ppm: Some(10_000), ..after_bytes() };
    let bed = Bed::new("mclean");
    let relay = start("mclean", &bed, after(conditions));
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let mut reached_before = 0;
    // An end that the machine holds up sends again what is on its way, which is a loss to whoever watches.
    let is_clean = (0..20).any(|_| {
        let (client, far) = bed.pair(&listener, address);
        exchange(&client, &far, 4 << 20);
        let again = |end| socket::tcp_info(end).unwrap().total_retrans_segments;
        let is_clean = again(&client) + again(&far) == 0;
        let reached = told("mclean").reached;
        assert!(reached == reached_before || !is_clean, "nothing is lost");
        reached_before = reached;
        is_clean
    });
    assert!(is_clean, "some connection loses nothing");
    drop(relay);
    let link =
        "rate = '300Mbit'\ndelay = '2ms'\nloss = 0.04\nqueue = { discipline = 'droptail', limit = '1MB' }";
    Bed::over_link("mlosses", link, |bed| {
        let relay = start("mlosses", bed, after(conditions));
        for address in servers() {
            let listener = bed.listen(&address.to_string());
            let (client, far) = bed.pair(&listener, address);
            adopt(bed, &client, &far);
            let known = adopted("mlosses").pop().unwrap();
            assert!(known.repeated_bytes * 200 >= known.passed_bytes, "{known:?}");
            exchange(&client, &far, 1 << 18);
        }
        drop(relay);
    });
}

#[test]
fn a_plan_that_cannot_be_says_why() {
    let mut early = plan();
    early.defaults_mut().accept = longfat_relay::Accept::Early;
    let wrong = early.check().unwrap_err().to_string();
    assert!(wrong.contains("adopt_after") && wrong.contains("'default'"), "{wrong}");
    let text = "[intercept]\ninterfaces = 'lan'\n[defaults]\naccept = 'end-to-end'\n";
    let parsed = |rules: &str| longfat_relay::spec::RelaySpec::parse(&format!("{text}{rules}"));
    let differ = "[[rule]]\nport = 1\nadopt_after = '1MB'\n[[rule]]\nport = 2\nadopt_after = '2MB'\n";
    let wrong = parsed(differ).unwrap().resolve().unwrap_err().to_string();
    assert!(wrong.contains("'rule-1' has adopt_after = 1000000B and the rule 'rule-2' has"), "{wrong}");
    for (key, said) in [
        ("adopt_rate = '1kbit'", "it is 1kbit; give 8kbit or more"),
        ("adopt_rtt = '0ms'", "it is 0ns; give a round trip"),
        ("adopt_losses = 1.5", "it is 1.5; give a share"),
    ] {
        let wrong = parsed(key).unwrap().resolve().unwrap_err().to_string();
        let (key, _) = key.split_once(' ').unwrap();
        assert!(wrong.contains(&format!("defaults.{key}: {said}")), "{wrong}");
    }
    let inherits = "adopt_rtt = '20ms'\n[[rule]]\nport = 1\n[[rule]]\nport = 2\naccept = 'early'\n";
    let plan = parsed(inherits).unwrap().resolve().unwrap();
    let [own, other] = [0, 1].map(|rule: usize| plan.rules[rule].relay.as_ref().unwrap().adopt.rtt);
    assert_eq!((own, other), (Some(Duration::from_millis(20)), None));
    let wrong = parsed("adopt_after = '1 parsec'\n").unwrap_err().to_string();
    assert!(wrong.contains("'1 parsec'") && wrong.contains("'1MB'"), "{wrong}");
    let wrong = parsed("adopt_after = '0MB'\n").unwrap().resolve().unwrap_err().to_string();
    assert!(wrong.contains("defaults.adopt_after") && wrong.contains("leave it out"), "{wrong}");
}
