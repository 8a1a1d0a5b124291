//! The transparent relay between three namespaces.

use crate::bed::{
    self, Bed, Running, SERVER_V4, SERVER_V6, accept, carry, check_noise, exchange, nft, path::eventually,
    send_noise, servers, set_forwarding, talk,
};
use longfat_host::{run_command, sysctl};
use longfat_relay::{Error, MatchPlan, RelayPlan, RulePlan};
use longfat_schema::record::Record;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::atomic::AtomicBool,
    time::Duration,
};

fn server(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// nft tables, routing rules and forwarding of the relay's namespace.
fn footprint(bed: &Bed) -> String {
    let forwarding = bed.relay.run(|| sysctl::read("net.ipv4.ip_forward").unwrap()).unwrap();
    let rules = ["-4", "-6"].map(|family| bed.relay.ip(&[family, "rule", "show"]).unwrap());
    format!("{}{}{forwarding}", nft(&bed.relay, "list ruleset"), rules.concat())
}

fn carries(tag: &str, bind: &str, address: SocketAddr) {
    let bed = Bed::new(tag);
    let before = footprint(&bed);
    let listener = bed.listen(bind);
    let relay = bed.start(Bed::transparent());
    let (client, far) = bed.pair(&listener, address);
    assert_eq!(
        far.peer_addr().unwrap(),
        client.local_addr().unwrap(),
        "the server sees the client's address and port"
    );
    assert_eq!(client.peer_addr().unwrap(), address);
    exchange(&client, &far, 8 << 20);
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished), (1, 1));
    assert_eq!((stats.client_to_server_bytes, stats.server_to_client_bytes), (8 << 20, 8 << 20));
    assert_eq!(footprint(&bed), before, "nothing is left behind");
}

#[test]
fn ipv4_connections_keep_the_clients_address_and_port() {
    carries("v4", "0.0.0.0:80", server(SERVER_V4, 80));
}

#[test]
fn ipv6_connections_keep_the_clients_address_and_port() {
    carries("v6", "[::]:80", server(SERVER_V6, 80));
}

/// Both ends have closed, and most of the stream waits in the relay's kernel for a server that does not read.
fn ended_but_not_read(bed: &Bed, drain: Duration) -> (Running, TcpStream, usize) {
    let listener = bed.listen("0.0.0.0:80");
    let mut plan = RelayPlan { drain, ..Bed::transparent() };
    // What is kept short waits in the relay instead.
    plan.defaults_mut().queue = None;
    let relay = bed.start(plan);
    let (client, far) = bed.pair(&listener, server(SERVER_V4, 80));
    far.shutdown(Shutdown::Write).unwrap();
    // More than the server's window, and less than may wait unsent.
    let sent = vec![7; 250_000];
    (&client).write_all(&sent).unwrap();
    drop(client);
    eventually("the relay is done with it", || relay.notes.closed.lock().unwrap().len() == 1);
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (relay, far, sent.len())
}

#[test]
fn a_relay_that_stops_first_delivers_streams_that_have_ended() {
    let bed = Bed::new("tail");
    let before = footprint(&bed);
    let (relay, mut far, sent_bytes) = ended_but_not_read(&bed, Duration::from_secs(20));
    let reading = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        let mut read = Vec::new();
        far.read_to_end(&mut read).map(|_| read.len())
    });
    relay.stop();
    assert_eq!(reading.join().unwrap().unwrap(), sent_bytes);
    assert_eq!(footprint(&bed), before, "nothing is left behind");
}

#[test]
fn a_stream_that_is_not_taken_in_time_is_given_up_and_that_is_said() {
    let bed = Bed::new("cut");
    let before = footprint(&bed);
    let (relay, _far, _) = ended_but_not_read(&bed, Duration::from_millis(200));
    let notes = std::sync::Arc::clone(&relay.notes);
    relay.stop();
    let warnings = notes.warnings.lock().unwrap().clone();
    assert!(
        warnings.iter().any(|said| said.starts_with("1 streams that had ended were given up")),
        "{warnings:?}"
    );
    let mut command = bed.relay.command("ss");
    command.args(["-taHO"]);
    let left = run_command(command).unwrap();
    assert!(!left.contains("LAST-ACK") && !left.contains("FIN-WAIT-1"), "{left}");
    assert_eq!(footprint(&bed), before, "nothing is left behind");
}

#[test]
fn what_the_filter_does_not_match_flows_unrelayed() {
    let bed = Bed::new("flt");
    let (taken, passed) = (bed.listen("0.0.0.0:80"), bed.listen("0.0.0.0:81"));
    let mut plan = Bed::transparent();
    plan.rules = vec![RulePlan {
        name: "web".into(),
        matches: MatchPlan {
            ports: vec!["80".parse().unwrap()],
            destinations: vec!["10.71.2.0/24".parse().unwrap()],
            ..MatchPlan::default()
        },
        relay: Some(std::sync::Arc::default()),
    }];
    let relay = bed.start(plan);
    for (listener, port) in [(&taken, 80), (&passed, 81)] {
        let (client, far) = bed.pair(listener, server(SERVER_V4, port));
        carry(&client, &far, 1000);
    }
    let other = bed.listen("[fd71:2::2]:80");
    let (client, far) = bed.pair(&other, server(SERVER_V6, 80));
    drop((client, far));
    assert_eq!(relay.stop().connections, 1);
}

#[test]
fn each_leg_has_the_congestion_control_it_was_given() {
    let bed = Bed::new("cc");
    let listener = bed.listen("0.0.0.0:80");
    let mut plan = Bed::transparent();
    plan.defaults_mut().client.cc = Some("cubic".into());
    plan.defaults_mut().server.cc = Some("bbr".into());
    plan.sample_every = Some(Duration::from_millis(5));
    let relay = bed.start(plan);
    let (client, far) = bed.pair(&listener, server(SERVER_V4, 80));
    let mut command = bed.relay.command("ss");
    command.args(["-tinHO", "state", "established"]);
    let shown = run_command(command).unwrap();
    let line = |local: String| shown.lines().find(|line| line.contains(&local)).unwrap_or(&shown).to_owned();
    let near = line(format!("{SERVER_V4}:80 "));
    let long = shown.lines().find(|line| line.contains(" bbr ")).map(str::to_owned);
    assert!(near.contains(SERVER_V4) && shown.contains(" cubic "), "{shown}");
    assert!(long.is_some(), "{shown}");
    carry(&client, &far, 1 << 20);
    carry(&far, &client, 10);
    let notes = std::sync::Arc::clone(&relay.notes);
    relay.stop();
    let closed = notes.closed.lock().unwrap();
    assert_eq!((closed[0].cc_client.as_str(), closed[0].cc_server.as_str()), ("cubic", "bbr"));
    let records = notes.records.lock().unwrap();
    let tcp = |wanted: &str| {
        let role = |record: &&Record| matches!(record, Record::Tcp(x) if x.role == wanted);
        records.iter().rev().find(role).and_then(|record| match record {
            Record::Tcp(sample) => Some(sample.clone()),
            _ => None,
        })
    };
    assert_eq!(tcp("relay_in").unwrap().cc, "cubic");
    assert_eq!(tcp("relay_out").unwrap().cc, "bbr");
    drop(records);
    assert_eq!(notes.to_server().last().unwrap().relayed_bytes, 1 << 20);
}

#[test]
fn the_backlog_is_what_was_received_and_not_yet_acknowledged() {
    let bed = Bed::new("bkl");
    let listener = bed.listen("0.0.0.0:80");
    let mut plan = Bed::transparent();
    plan.sample_every = Some(Duration::from_millis(5));
    // A queue that is kept short holds what its leg's rate says, which is little where the machine is busy.
    plan.defaults_mut().queue = None;
    let relay = bed.start(plan);
    let (client, far) = bed.pair(&listener, server(SERVER_V4, 80));
    let settled = |wanted: &dyn Fn(&longfat_schema::record::RelaySample) -> bool| {
        eventually("the backlog settles", || relay.notes.to_server().last().is_some_and(wanted));
    };
    settled(&|sample| sample.backlog_bytes == 0);
    std::thread::scope(|scope| {
        scope.spawn(|| send_noise(&client, 3, 64 << 20));
        // The server does not read: everything the relay took stays in its sockets and its pipe.
        settled(&|sample| {
            let parts = sample.unread_bytes + sample.held_bytes + sample.unacked_bytes;
            sample.backlog_bytes > 256 << 10
                && sample.backlog_bytes.abs_diff(parts) <= sample.backlog_bytes / 10
        });
        assert_eq!(check_noise(&far, 3), 64 << 20);
    });
    // A FIN counts as one byte on its way.
    settled(&|sample| sample.backlog_bytes <= 1 && sample.relayed_bytes == 64 << 20);
}

#[test]
fn sysctls_that_would_break_it_are_refused_and_with_leave_forwarding_is_set_and_restored() {
    let bed = Bed::new("fwd");
    set_forwarding(&bed.relay, "0");
    let refused =
        bed.relay.run(|| longfat_relay::run(&Bed::transparent(), &AtomicBool::new(true), &())).unwrap();
    let Err(Error::Unsupported(missing)) = refused else { panic!("{refused:?}") };
    assert!(missing.iter().any(|thing| thing.mend.contains("net.ipv4.ip_forward=1")), "{missing:?}");
    let before = footprint(&bed);
    let mut plan = Bed::transparent();
    plan.intercept.as_mut().unwrap().set_forwarding = true;
    let vmark = |value: &'static str| {
        let set = move || sysctl::write("net.ipv4.conf.all.src_valid_mark", value);
        bed.relay.run(set).unwrap().unwrap();
    };
    vmark("1");
    let refused =
        bed.relay.run(|| longfat_relay::run(&plan, &AtomicBool::new(true), &())).unwrap().unwrap_err();
    assert!(refused.to_string().contains("net.ipv4.conf.all.src_valid_mark=0"), "{refused}");
    vmark("0");
    let relay = bed.start(plan.clone());
    let forwarding = || bed.relay.run(|| sysctl::read("net.ipv4.ip_forward").unwrap()).unwrap();
    assert_eq!(forwarding(), "1");
    relay.stop();
    assert_eq!(footprint(&bed), before);
    // Of two relays the last one that ends sets it back, whoever turned it on.
    for first_ends_first in [true, false] {
        let first = bed.start(plan.clone());
        let second = bed.start(RelayPlan { name: "second".into(), ..plan.clone() });
        let (sooner, later) = if first_ends_first { (first, second) } else { (second, first) };
        sooner.stop();
        assert_eq!(forwarding(), "1");
        later.stop();
        assert_eq!(footprint(&bed), before);
    }
}

#[test]
fn a_name_a_mark_or_an_interface_that_cannot_be_had_is_named() {
    let bed = Bed::new("bad");
    let first = bed.start(Bed::transparent());
    let attempt = |change: &dyn Fn(&mut longfat_relay::RelayPlan)| {
        let mut plan = Bed::transparent();
        change(&mut plan);
        bed.relay
            .run(|| longfat_relay::run(&plan, &AtomicBool::new(true), &()))
            .unwrap()
            .unwrap_err()
            .to_string()
    };
    let same_name = attempt(&|_| {});
    assert!(
        same_name.contains("'test'") && same_name.contains(&std::process::id().to_string()),
        "{same_name}"
    );
    let numbers = bed.relay.ip(&["rule", "show"]).unwrap();
    assert!(numbers.contains("fwmark 0x6c66"), "{numbers}");
    let intercept = |change: fn(&mut longfat_relay::InterceptPlan)| {
        move |plan: &mut longfat_relay::RelayPlan| {
            plan.name = "other".into();
            change(plan.intercept.as_mut().unwrap());
        }
    };
    let mark = attempt(&intercept(|plan| plan.mark = Some(0x6c66)));
    assert!(mark.contains("0x6c66") && mark.contains("--mark"), "{mark}");
    let interface = attempt(&intercept(|plan| plan.interfaces = vec!["nosuch".into()]));
    assert!(interface.contains("'nosuch'"), "{interface}");
    let cc = attempt(&|plan| plan.defaults_mut().server.cc = Some("lf_nosuch".into()));
    assert!(cc.contains("'lf_nosuch'") && cc.contains("longfat cc load nosuch"), "{cc}");
    let covered = attempt(&intercept(|plan| plan.mark = Some(0x6c66 + 100)));
    assert!(covered.contains("longfat_test") && covered.contains("--mark"), "{covered}");
    // Routes of somebody else where a held handshake's may come to be; the tables of the host; too high a number.
    for family in ["-4", "-6"] {
        bed.relay.ip(&[family, "route", "add", "default", "dev", "wan", "table", "1300"]).unwrap();
        let table = attempt(&intercept(|plan| plan.table = Some(1000)));
        assert!(table.contains("table 1300") && table.contains("--table"), "{table}");
        bed.relay.ip(&[family, "route", "flush", "table", "1300"]).unwrap();
    }
    bed.relay.ip(&["rule", "add", "priority", "99", "to", "10.99.0.0/16", "lookup", "1480"]).unwrap();
    let table = attempt(&intercept(|plan| plan.table = Some(1000)));
    assert!(table.contains("10.99.0.0/16") && table.contains("--table"), "{table}");
    let host = attempt(&intercept(|plan| plan.table = Some(250)));
    assert!(host.contains("--table") && host.contains("250") && host.contains("256 to"), "{host}");
    let high = attempt(&intercept(|plan| plan.mark = Some(u32::MAX)));
    assert!(high.contains("--mark") && high.contains(&u32::MAX.to_string()), "{high}");
    // A second relay of another name chooses other numbers.
    let mut plan = Bed::transparent();
    plan.name = "other".into();
    let second = bed.start(plan);
    assert!(bed.relay.ip(&["rule", "show"]).unwrap().contains("fwmark 0x6e48"));
    second.stop();
    first.stop();
}

/// Every route of every table, without what the kernel adds and ages by itself.
fn routes(bed: &Bed) -> String {
    let shown = ["-4", "-6"].map(|family| bed.relay.ip(&[family, "route", "show", "table", "all"]).unwrap());
    let lines = shown.iter().flat_map(|shown| shown.lines()).filter(|line| !line.contains("fe80"));
    lines.map(|line| format!("{}\n", line.split(" expires").next().unwrap())).collect()
}

/// The routing rules that stand before an administrator's own, by family.
fn rules_made(bed: &Bed) -> Vec<String> {
    let of = |family: &str| {
        let shown = bed.relay.ip(&[family, "rule", "show", "priority", "10"]).unwrap();
        let words = shown.lines().map(|line| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" "));
        words.map(|rule| format!("{family} {rule}")).collect::<Vec<_>>()
    };
    let mut rules = ["-4", "-6"].map(of).concat();
    rules.sort();
    rules
}

/// Rules told in a text for a person.
fn rules_told(text: &str) -> Vec<String> {
    let rules =
        text.lines().filter_map(|line| line.strip_prefix("ip ")?.split_once(" rule add priority 10 "));
    let mut rules: Vec<_> = rules.map(|(family, rule)| format!("{family} {rule}")).collect();
    rules.sort();
    rules
}

#[test]
fn a_relay_that_ends_leaves_rules_and_routes_alone_that_it_has_not_made() {
    let bed = Bed::new("alone");
    for fail in [longfat_relay::Fail::Open, longfat_relay::Fail::Closed] {
        let rules = ["-4", "-6"].map(|family| bed.relay.ip(&[family, "rule", "show"]).unwrap());
        let routed = routes(&bed);
        let mut plan = Bed::after_server();
        (plan.workers, plan.fail) = (2, fail);
        let intercept = plan.intercept.as_mut().unwrap();
        (intercept.mark, intercept.table) = (Some(0x9000), Some(5000));
        let told = longfat_relay::explain(&plan);
        let relay = bed.start(plan);
        assert_eq!(rules_told(&told), rules_made(&bed), "what 'check' tells is what is made");
        let validation: Vec<_> =
            told.lines().filter_map(|line| line.strip_prefix("sysctl -w ")?.split_once('=')).collect();
        assert_eq!(validation.len(), 2, "of each worker's interface: {told}");
        for (key, value) in validation {
            assert_eq!(bed.relay.run(|| longfat_host::sysctl::read(key)).unwrap().unwrap(), value, "{key}");
        }
        let made = routes(&bed);
        assert!(made.contains("table 5000") && made.contains("dev lfh9000-1 table 5002"), "{made}");
        assert_eq!(made.contains("blackhole"), fail == longfat_relay::Fail::Closed, "{made}");
        // Marks and tables of its range, but each as somebody else has them.
        let others = [
            ("rule", "priority 10 fwmark 0x9002 lookup main"),
            ("rule", "priority 10 fwmark 0x9005 lookup 7777"),
            ("rule", "priority 7 fwmark 0x9006 lookup 5005"),
            ("route", "default dev wan metric 9 table 5002"),
            ("route", "unreachable default metric 9 table 5000"),
        ];
        let all = |verb: &str| {
            for (family, (what, words)) in
                ["-4", "-6"].into_iter().flat_map(|family| others.map(|other| (family, other)))
            {
                let args: Vec<_> = [family, what, verb].into_iter().chain(words.split(' ')).collect();
                bed.relay.ip(&args).unwrap();
            }
        };
        all("add");
        relay.stop();
        // Each is still there to be taken away.
        all("del");
        let left = ["-4", "-6"].map(|family| bed.relay.ip(&[family, "rule", "show"]).unwrap());
        assert_eq!(left, rules);
        assert_eq!(routes(&bed), routed, "nothing of its own is left");
    }
}

#[test]
fn a_client_that_connects_to_the_listener_itself_is_turned_away() {
    let bed = Bed::new("self");
    let relay = bed.start(Bed::transparent());
    let own = relay.address();
    let stream = bed.relay.run(|| std::net::TcpStream::connect(own)).unwrap().unwrap();
    stream.set_read_timeout(Some(bed::PATIENCE)).unwrap();
    assert!(bed::ends_with_reset(&stream));
    relay.stop();
}

#[test]
fn after_the_relay_new_connections_flow_unrelayed_and_one_in_drain_goes_on() {
    let bed = Bed::new("opn");
    let listener = bed.listen("0.0.0.0:80");
    let mut plan = Bed::transparent();
    plan.drain = bed::PATIENCE;
    let relay: Running = bed.start(plan);
    let (old, old_far) = bed.pair(&listener, server(SERVER_V4, 80));
    let (probe, probe_far) = bed.pair(&listener, server(SERVER_V4, 80));
    drop((probe, probe_far));
    relay.drain();
    let new = bed.connect(server(SERVER_V4, 80));
    let new_far = accept(&listener);
    assert_eq!(new_far.peer_addr().unwrap(), new.local_addr().unwrap());
    for (near, far) in [(&old, &old_far), (&new, &new_far)] {
        carry(near, far, 10_000);
        carry(far, near, 10);
    }
    let stats = relay.stop();
    assert_eq!((stats.connections, stats.finished, stats.stopped), (2, 2, 0));
}

#[test]
fn a_client_may_reuse_its_port_towards_the_same_server_at_once() {
    let bed = Bed::new("tw");
    let reuse = || sysctl::write("net.ipv4.tcp_tw_reuse", "1");
    bed.client.run(reuse).unwrap().unwrap();
    let listener = bed.listen("0.0.0.0:80");
    let relay = bed.start(Bed::transparent());
    let ask = |port: u16, server_closes_first: bool| {
        let client = bed.connect_from(port, server(SERVER_V4, 80));
        let far = accept(&listener);
        assert_eq!(far.peer_addr().unwrap(), client.local_addr().unwrap());
        let (first, second) = if server_closes_first { (&far, &client) } else { (&client, &far) };
        carry(first, second, 1000);
        carry(second, first, 1000);
        // Both ends have seen both FINs; a client in TIME_WAIT may reuse its port after a second.
        drop((client, far));
        std::thread::sleep(Duration::from_millis(if server_closes_first { 100 } else { 1300 }));
    };
    // The relay has TIME_WAIT towards the client, then towards the server.
    [true, true, false, false].into_iter().for_each(|server_closes_first| ask(40_000, server_closes_first));
    let warnings = || relay.notes.warnings.lock().unwrap().clone();
    assert_eq!(warnings(), [""; 0]);
    // Without timestamps (RFC 7323) towards the server, the kernel does not use the pair again by itself.
    let without = || sysctl::write("net.ipv4.tcp_timestamps", "0");
    bed.server.run(without).unwrap().unwrap();
    [false, false].into_iter().for_each(|server_closes_first| ask(40_001, server_closes_first));
    assert_eq!(warnings(), [""; 0]);
    assert_eq!(relay.stop().finished, 6);
}

/// Takes away what leads marked packets to sockets.
fn remove_ways(host: &longfat_host::Namespace) {
    for family in ["-4", "-6"] {
        while host.ip(&[family, "rule", "del", "priority", "10"]).is_ok() {}
    }
}

/// Sets interfaces down and up: their routes go along, and the kernel makes none of them again.
fn bounce(host: &longfat_host::Namespace, names: &[String]) {
    for way in ["down", "up"] {
        names.iter().for_each(|name| drop(host.ip(&["link", "set", name, way]).unwrap()));
    }
}

/// Interfaces to which SYNs are held.
fn holding(host: &longfat_host::Namespace) -> Vec<String> {
    let listed = host.ip(&["-br", "link"]).unwrap();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with("lfh")).map(str::to_owned).collect()
}

#[test]
fn rules_that_somebody_removes_stand_again_and_connections_live_on() {
    let removals: [fn(&longfat_host::Namespace); 7] = [
        |host| bounce(host, &["lo".to_owned()]),
        |host| bounce(host, &holding(host)),
        |host| {
            let rules = host.ip(&["-N", "rule", "show"]).unwrap();
            let tables = rules
                .lines()
                .filter(|line| line.contains("fwmark"))
                .filter_map(|line| line.split("lookup ").nth(1));
            for family in ["-4", "-6"] {
                tables
                    .clone()
                    .for_each(|table| drop(host.ip(&[family, "route", "flush", "table", table.trim()])));
            }
        },
        |host| drop(nft(host, "flush ruleset\n")),
        |host| drop(nft(host, "flush table inet longfat_test\n")),
        remove_ways,
        |host| {
            remove_ways(host);
            nft(host, "delete table inet longfat_test\n");
        },
    ];
    for (tag, plan) in [("flush", Bed::transparent()), ("flushheld", Bed::after_server())] {
        let bed = Bed::new(tag);
        let listeners = servers().map(|address| bed.listen(&address.to_string()));
        let relay = bed.start(plan);
        let mut pairs = Vec::new();
        let open = |pairs: &mut Vec<_>| {
            for (listener, address) in listeners.iter().zip(servers()) {
                pairs.push(bed.pair(listener, address));
            }
        };
        open(&mut pairs);
        let rules = |family| bed.relay.ip(&[family, "rule", "show"]).unwrap().matches("fwmark").count();
        // Those of the tables that the rules lead to.
        let routes = |family| {
            let shown = bed.relay.ip(&[family, "route", "show", "table", "all"]).unwrap();
            let is_ours = |line: &&str| line.contains("default") && line.contains(" table 2");
            let mut routes: Vec<_> = shown.lines().filter(is_ours).map(str::to_owned).collect();
            routes.sort();
            routes
        };
        let stands = || {
            let sockets = nft(&bed.relay, "list ruleset\n").matches("socket").count();
            (sockets, rules("-4"), rules("-6"), routes("-4"), routes("-6"))
        };
        let whole = stands();
        assert!(whole.0 > 0 && whole.1 > 0 && whole.1 == whole.2, "{whole:?}");
        for remove in removals {
            std::thread::scope(|scope| {
                for (client, far) in &pairs {
                    scope.spawn(|| talk(client, far, 4 << 20, (1 << 14, Duration::from_millis(1))));
                }
                std::thread::sleep(Duration::from_millis(50));
                remove(&bed.relay);
                eventually("the rules stand again", || stands() == whole);
            });
            open(&mut pairs);
            pairs.iter().for_each(|(client, far)| talk(client, far, 10_000, (1 << 14, Duration::ZERO)));
        }
        let has_none = holding(&bed.relay).is_empty();
        assert_eq!(has_none, tag == "flush");
        let count = pairs.len() as u64;
        drop(pairs);
        eventually("all have ended", || bed.leg_count() == 0);
        let warned = relay.notes.warnings.lock().unwrap().len();
        let stats = relay.stop();
        assert_eq!((stats.connections, stats.finished), (count, count), "{tag}: {stats:?}");
        assert!(
            warned >= removals.len() - usize::from(has_none),
            "{tag}: it says so each time, also when it comes in between: {warned}"
        );
    }
}
