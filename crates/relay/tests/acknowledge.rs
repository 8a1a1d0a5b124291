//! `acknowledge = "end-to-end"`: an end is told that what it sent has arrived when the other end has said so.

use crate::bed::{
    Bed, Running, asked, at, carry, check_noise, exchange, nft,
    path::{PROCESS, RelayProcess, eventually},
    receive_noise,
    routers::Routers,
    send_noise, servers, set_ipv4, start, talk, told, try_send_some_noise,
};
use longfat_host::{interface, run_command, socket};
use longfat_kernel::watch::Conditions;
use longfat_relay::{Acknowledge, Observer, QueueSpec, Ready, RelayPlan};
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::AtomicBool,
    time::Duration,
};

/// 40 ms there and back.
const LINK: &str = "rate = '50Mbit'\ndelay = '20ms'\nqueue = { discipline = 'droptail', limit = '500KB' }";
const LOSSY: &str =
    "rate = '50Mbit'\ndelay = '10ms'\nloss = 0.002\nqueue = { discipline = 'droptail', limit = '500KB' }";
const BULK: usize = 12 << 20;

/// Right after the handshake.
fn at_once() -> RelayPlan {
    let mut plan = Bed::end_to_end();
    plan.defaults_mut().acknowledge = Acknowledge::EndToEnd;
    plan
}

/// In mid-stream, and left in pauses.
fn later() -> RelayPlan {
    let mut plan = at_once();
    let way = plan.defaults_mut();
    way.adopt = Conditions { bytes: Some(100_000), ..Conditions::default() };
    way.release_after = Some(Duration::from_millis(200));
    plan.drain = Duration::from_secs(20);
    plan
}

type Servers = [(TcpListener, SocketAddr); 2];
type Pair = (TcpStream, TcpStream);

fn listening(bed: &Bed) -> Servers {
    servers().map(|address| (bed.listen(&address.to_string()), address))
}

/// A connection of each IP family, with timestamps and without.
fn pairs(bed: &Bed, servers: &Servers) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for timestamps in ["1", "0"] {
        set_ipv4(&bed.client, "tcp_timestamps", timestamps);
        pairs.extend(servers.iter().map(|(listener, address)| bed.pair(listener, *address)));
    }
    set_ipv4(&bed.client, "tcp_timestamps", "1");
    pairs
}

fn held_back_bytes(tag: &str) -> u64 {
    let connections = asked(tag).connections;
    let held = connections.iter().flat_map(|one| [&one.to_server, &one.to_client]);
    held.filter_map(|direction| direction.held_back_bytes).sum()
}

/// What the other end is known to have, of what this one sent. The SYN is counted, too.
fn acknowledged_bytes(stream: &TcpStream) -> u64 {
    socket::tcp_info(stream).unwrap().acked_bytes.saturating_sub(1)
}

fn assert_orderly(relay: Running) {
    let stats = relay.stop();
    assert_eq!((stats.reset, stats.stopped), (0, 0), "{stats:?}");
}

#[test]
fn streams_arrive_and_what_the_other_end_lacks_is_held_back() {
    for (tag, plan) in [("aonce", at_once()), ("alater", later())] {
        Bed::over_any_link(tag, LINK, |bed| {
            let relay = start(tag, bed, plan);
            let pairs = pairs(bed, &listening(bed));
            std::thread::scope(|scope| {
                for (client, far) in &pairs {
                    scope.spawn(move || exchange(client, far, BULK));
                }
                eventually("something is held back", || held_back_bytes(tag) > 100_000);
            });
            let status = told(tag);
            assert_eq!((status.inserted, status.passed.len()), (4, 0), "{status:?}");
            assert_orderly(relay);
        });
    }
}

#[test]
fn a_sender_is_told_of_no_byte_that_the_other_end_has_not_acknowledged() {
    Bed::over_any_link("atruth", LINK, |bed| {
        let relay = start("atruth", bed, at_once());
        let servers = listening(bed);
        for (client, far) in &pairs(bed, &servers) {
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| send_noise(client, 1, BULK));
                let reader = scope.spawn(|| check_noise(far, 1));
                let mut seen = 0;
                while !sender.is_finished() {
                    // First what was told, then what there is: it only grows.
                    let told = acknowledged_bytes(client);
                    let received = socket::tcp_info(far).unwrap().received_bytes;
                    assert!(told <= received, "{told} bytes acknowledged, and {received} arrived");
                    seen += u64::from(told > 0);
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(seen > 10);
                assert_eq!(reader.join().unwrap(), BULK);
            });
        }
        assert_orderly(relay);
    });
}

#[test]
fn losses_on_the_long_path_make_no_difference() {
    Bed::over_link("alossy", LOSSY, |bed| {
        let relay = start("alossy", bed, later());
        let pairs = pairs(bed, &listening(bed));
        std::thread::scope(|scope| {
            for (client, far) in &pairs {
                scope.spawn(move || exchange(client, far, 4 << 20));
            }
        });
        assert_orderly(relay);
    });
}

#[test]
fn a_server_that_does_not_read_is_a_closed_window_and_no_loss() {
    let bed = Bed::new("azero");
    let mut plan = at_once();
    let way = plan.defaults_mut();
    (way.client.buffer_bytes, way.server.buffer_bytes) = (128 << 10, 128 << 10);
    let relay = start("azero", &bed, plan);
    for (client, far) in &pairs(&bed, &listening(&bed)) {
        std::thread::scope(|scope| {
            scope.spawn(|| send_noise(client, 1, BULK));
            eventually("the client's window is closed", || {
                let info = socket::tcp_info(client).unwrap();
                info.snd_wnd_bytes == 0 && info.unacked_segments > 0
            });
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(check_noise(far, 1), BULK);
        });
    }
    assert_orderly(relay);
}

#[test]
fn ends_come_through_in_either_order() {
    Bed::over_any_link("aends", LINK, |bed| {
        let relay = start("aends", bed, at_once());
        for (client, far) in &pairs(bed, &listening(bed)) {
            // The server finishes first: the client's socket here is in TIME-WAIT while bytes are still on their way.
            carry(far, client, 1 << 20);
            carry(client, far, 4 << 20);
        }
        let others = servers().map(next).map(|address| (bed.listen(&address.to_string()), address));
        for (client, far) in &pairs(bed, &others) {
            carry(client, far, 4 << 20);
            carry(far, client, 1 << 20);
        }
        eventually("all have ended", || asked("aends").live == 0);
        assert_orderly(relay);
    });
}

/// Another port of that address.
fn next(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

#[test]
fn connections_are_left_in_pauses_and_at_the_end_and_stepped_into_again() {
    const TIMES: u64 = 8;
    Bed::over_any_link("apause", LINK, |bed| {
        let relay = start("apause", bed, later());
        let pairs = pairs(bed, &listening(bed));
        for time in 1..=TIMES {
            eventually("the relay steps in", || {
                std::thread::scope(|scope| {
                    for (client, far) in &pairs {
                        scope.spawn(|| talk(client, far, 200_000, (1 << 14, Duration::from_micros(500))));
                    }
                });
                bed.leg_count() == 2 * pairs.len()
            });
            if time < TIMES {
                eventually("the relay leaves", || bed.leg_count() == 0);
            }
        }
        let stats = relay.stop();
        assert_eq!((stats.reset, stats.stopped), (0, 0), "{stats:?}");
        pairs.iter().for_each(|(client, far)| exchange(client, far, 1 << 20));
    });
}

#[test]
fn a_connection_moves_to_another_router_while_acknowledgements_are_held_back() {
    let mut plan = at_once();
    plan.defaults_mut().queue = QueueSpec::from_words("target = 'off'").unwrap().plan();
    Routers::over_link("amove", LINK, |routers| {
        let [first, second] = routers.start(&plan);
        let servers = listening(&routers.bed);
        let pairs: Vec<_> =
            servers.iter().map(|(listener, address)| routers.bed.pair(listener, *address)).collect();
        std::thread::scope(|scope| {
            for (client, far) in &pairs {
                scope.spawn(move || exchange(client, far, 2 * BULK));
            }
            std::thread::sleep(Duration::from_millis(500));
            for router in [0, 1, 0] {
                let status = routers.move_from(router, Duration::from_secs(20));
                assert_eq!((status.moved, status.reset), (2, 0), "{status:?}");
                routers.lead(1 - router);
                std::thread::sleep(Duration::from_millis(200));
                let held = asked(&routers.tag(1 - router)).connections;
                assert!(held.iter().all(|one| one.acknowledge == Some(Acknowledge::EndToEnd)), "{held:?}");
            }
        });
        for relay in [first, second] {
            assert_eq!(relay.stop().reset, 0);
        }
    });
}

#[test]
fn ends_without_selective_acknowledgements_stay_end_to_end() {
    let bed = Bed::new("anosack");
    let relay = start("anosack", &bed, at_once());
    set_ipv4(&bed.client, "tcp_sack", "0");
    let servers = listening(&bed);
    for (listener, address) in &servers {
        let (client, far) = bed.pair(listener, *address);
        exchange(&client, &far, 1 << 20);
    }
    let status = told("anosack");
    assert_eq!((status.inserted, status.passed.get("no_sack")), (0, Some(&2)), "{status:?}");
    assert_orderly(relay);
}

/// The server is heard under the router's address, so nobody would learn what it has acknowledged.
#[test]
fn connections_whose_addresses_are_translated_stay_end_to_end() {
    // In mid-stream nobody has seen both SYNs under the same addresses.
    for (tag, plan, unheard) in [("anatonce", at_once(), Some(4)), ("anatlater", later(), None)] {
        let bed = Bed::new(tag);
        let relay = start(tag, &bed, plan);
        let translate = "type nat hook postrouting priority 100; oifname wan masquerade;";
        nft(&bed.relay, &format!("table inet translated {{ chain out {{ {translate} }}; }}"));
        let servers = listening(&bed);
        for (client, far) in &pairs(&bed, &servers) {
            exchange(client, far, 4 << 20);
        }
        let status = told(tag);
        assert_eq!((status.inserted, status.passed.get("unheard")), (0, unheard.as_ref()), "{status:?}");
        assert_orderly(relay);
    }
}

/// Acknowledgements over the new interface would not be heard either.
#[test]
fn connections_over_an_interface_that_came_later_stay_end_to_end() {
    let bed = Bed::new("alink");
    let relay = start("alink", &bed, at_once());
    let end = |namespace, name| interface::End { namespace, name };
    interface::veth(end(&bed.server, "eth1"), end(&bed.relay, "wan2"), 1500).unwrap();
    bed.relay.ip(&["addr", "add", "10.71.3.1/24", "dev", "wan2"]).unwrap();
    bed.server.ip(&["addr", "add", "10.71.3.2/24", "dev", "eth1"]).unwrap();
    bed.server.ip(&["route", "replace", "default", "via", "10.71.3.1"]).unwrap();
    let listener = bed.listen("10.71.3.2:9000");
    let (client, far) = bed.pair(&listener, at("10.71.3.2:9000"));
    exchange(&client, &far, 4 << 20);
    let status = told("alink");
    assert_eq!((status.inserted, status.passed.get("unheard")), (0, Some(&1)), "{status:?}");
    assert_orderly(relay);
}

#[test]
fn what_cannot_be_held_back_is_refused_before_anything_is_touched() {
    let parsed = |keys: &str| {
        let text =
            format!("intercept = {{ interfaces = 'lan' }}\n[defaults]\nacknowledge = 'end-to-end'\n{keys}");
        longfat_relay::spec::RelaySpec::parse(&text).unwrap().resolve()
    };
    let wrong = parsed("accept = 'after-server'\n").unwrap_err().to_string();
    assert!(
        wrong.contains("'default' has acknowledge") && wrong.contains("give accept = 'end-to-end'"),
        "{wrong}"
    );
    let plan =
        parsed("accept = 'end-to-end'\n[[rule]]\nport = 1\naccept = 'early'\n[[rule]]\nport = 2\n").unwrap();
    let [early, late] = [0, 1].map(|rule: usize| plan.rules[rule].relay.as_ref().unwrap().acknowledge);
    assert_eq!((early, late), (Acknowledge::Early, Acknowledge::EndToEnd));

    let bed = Bed::new("arefuse");
    bed.relay.ip(&["tuntap", "add", "mode", "tun", "name", "tun9"]).unwrap();
    let running = bed.start(at_once());
    running.stop();
    bed.relay.ip(&["link", "set", "dev", "tun9", "up"]).unwrap();
    let never = AtomicBool::new(false);
    let failed = bed.relay.run(|| longfat_relay::run(&at_once(), &never, &Nobody)).unwrap().unwrap_err();
    assert!(failed.to_string().contains("tun9 has none"), "{failed}");
    let mut rules = bed.relay.command("nft");
    rules.args(["list", "ruleset"]);
    assert!(!run_command(rules).unwrap().contains("longfat"));
}

struct Nobody;

impl Observer for Nobody {}

/// Bytes of each direction that were acknowledged to the sender and have not arrived, when the relay is killed in
/// mid-stream.
fn missing_when_killed(tag: &str, how: &str) -> Vec<u64> {
    let (missing, _) = Bed::over_any_link(tag, LINK, |bed| {
        let mut relay = RelayProcess::start(module_path!(), &bed.relay, how, None);
        let pairs = pairs(bed, &listening(bed));
        std::thread::scope(|scope| {
            let ways = pairs.iter().flat_map(|(client, far)| [(client, far, 1), (far, client, 2)]);
            let ways: Vec<_> = ways
                .map(|(from, to, seed)| {
                    // It is told of a reset, or waits for one.
                    scope.spawn(move || drop(try_send_some_noise(from, seed, 1 << 30)));
                    (from, scope.spawn(move || receive_noise(to, seed, 1 << 16, Duration::ZERO)))
                })
                .collect();
            std::thread::sleep(Duration::from_secs(2));
            relay.kill();
            let missing = ways.into_iter().map(|(from, arrived)| {
                let (bytes, _) = arrived.join().unwrap();
                assert!(bytes > 100_000, "{bytes} bytes");
                acknowledged_bytes(from).saturating_sub(bytes as u64)
            });
            missing.collect()
        })
    });
    missing
}

#[test]
fn a_relay_that_is_killed_loses_nothing_that_it_acknowledged() {
    let missing = missing_when_killed("akill", "end-to-end");
    assert!(missing.iter().all(|bytes| *bytes == 0), "{missing:?}");
    let missing = missing_when_killed("akillearly", "early");
    assert!(missing.iter().any(|bytes| *bytes > 0), "the test would find what is lost: {missing:?}");
}

#[test]
#[ignore = "a process of another test"]
fn a_relay_process() {
    struct Say;
    impl Observer for Say {
        fn ready(&self, _: &Ready) {
            println!("ready: ");
        }
    }
    let Ok(how) = std::env::var(PROCESS) else { return };
    let mut plan = at_once();
    plan.defaults_mut().acknowledge = if how == "early" { Acknowledge::Early } else { Acknowledge::EndToEnd };
    longfat_relay::run(&plan, &AtomicBool::new(false), &Say).unwrap();
}
