//! Live control blocks set from outside: windows, timers, congestion control and its private state.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use longfat_host::{
    Lease, Namespace, interface,
    socket::{cc, set_cc, tcp_info},
    sysctl,
};
use longfat_kernel::tcb::{
    Answer, Change, ControlBlock, Keep, Moment, NetNamespace, Saved, Scope, Setter, State, Step,
    missing_rto_max, plan,
};
use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
};

struct Pair {
    client: TcpStream,
    accepted: TcpStream,
}

/// Both ends under `congestion`, with some traffic behind them so that there is private state.
fn pair(congestion: &str) -> Pair {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_cc(&listener, congestion).unwrap();
    let address = listener.local_addr().unwrap();
    let client = connect(address, congestion);
    let (accepted, _) = listener.accept().unwrap();
    let mut pair = Pair { client, accepted };
    pair.exchange();
    pair
}

/// The congestion control is set before connecting, which std does not offer.
fn connect(address: std::net::SocketAddr, congestion: &str) -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket};
    use std::os::fd::AsRawFd as _;
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    set_cc(&socket, congestion).unwrap();
    let std::net::SocketAddr::V4(address) = address else { panic!("IPv4") };
    connect(socket.as_raw_fd(), &SockaddrIn::from(address)).unwrap();
    TcpStream::from(socket)
}

impl Pair {
    fn exchange(&mut self) {
        let block = [7; 30_000];
        let mut received = vec![0; block.len()];
        for _ in 0..20 {
            self.client.write_all(&block).unwrap();
            self.accepted.read_exact(&mut received).unwrap();
            assert_eq!(received, block);
        }
    }

    fn block(&self, setter: &Setter, namespace: &NetNamespace) -> ControlBlock {
        // Connections to several servers may share a client's port.
        let ends = (self.client.local_addr().unwrap(), self.client.peer_addr().unwrap());
        setter.look(namespace).unwrap().into_iter().find(|block| (block.local, block.remote) == ends).unwrap()
    }
}

fn own() -> NetNamespace {
    Scope::Own.namespaces().unwrap().remove(0)
}

fn change(words: &[&str]) -> Change {
    Change::parse(words).unwrap()
}

/// Sets one connection and answers what came of it; everything must be as asked.
fn set(setter: &mut Setter, namespace: &NetNamespace, block: &ControlBlock, change: &Change) -> Answer {
    let mut kinds = std::collections::HashMap::new();
    for name in [Some(block.cc), change.cc].into_iter().flatten() {
        kinds.insert(name.as_str().to_owned(), setter.kind(name.as_str()).unwrap());
    }
    let step = plan(block, change, |name| kinds[name]).unwrap();
    let answer = setter.apply(namespace, std::slice::from_ref(&step)).unwrap().remove(0);
    assert_eq!(answer.shortfalls(&step), Vec::<String>::new(), "{answer:?}");
    answer
}

/// Windows of a connection are set and read back at the socket, its private state is what it was, it still works, and
/// another connection has noticed nothing.
fn windows_are_set_and_state_is_kept(congestion: &str, name_after: &str) {
    let mut setter = Setter::load().unwrap();
    let (mut pair, other) = (pair(congestion), pair_untouched(congestion));
    let before = pair.block(&setter, &own());
    let other_before = other.block(&setter, &own());
    let answer = set(&mut setter, &own(), &before, &change(&["cwnd=77", "ssthresh=55"]));
    let (was, is) = answer.blocks.unwrap();
    assert_eq!(was.private, is.private, "private state is as it was");
    let info = tcp_info(&pair.client).unwrap();
    assert_eq!((info.snd_cwnd_segments, info.snd_ssthresh_segments), (77, 55));
    assert_eq!(cc(&pair.client).unwrap(), name_after);
    let again = pair.block(&setter, &own());
    set(&mut setter, &own(), &again, &change(&["cwnd=40"]));
    assert_eq!(tcp_info(&pair.client).unwrap().snd_cwnd_segments, 40, "a second time as well");
    assert_eq!(pair.block(&setter, &own()).private, was.private);
    pair.exchange();
    assert_eq!(other.block(&setter, &own()), other_before);
}

fn pair_untouched(congestion: &str) -> Pair {
    pair(congestion)
}

#[test]
fn several_connections_are_set_in_one_visit_each_to_its_own() {
    let mut setter = Setter::load().unwrap();
    let pairs: Vec<Pair> = (0..5).map(|_| pair("reno")).collect();
    let kind = setter.kind("reno").unwrap();
    let step = |(pair, cwnd): (&Pair, u32)| {
        let wanted = change(&[&format!("cwnd={cwnd}")]);
        plan(&pair.block(&setter, &own()), &wanted, |_| kind).unwrap()
    };
    let steps: Vec<_> = pairs.iter().zip(50..).map(step).collect();
    let answers = setter.apply(&own(), &steps).unwrap();
    assert!(
        answers.iter().zip(&steps).all(|(answer, step)| answer.shortfalls(step).is_empty()),
        "{answers:?}"
    );
    let set = pairs.iter().map(|pair| tcp_info(&pair.client).unwrap().snd_cwnd_segments);
    assert_eq!(set.collect::<Vec<_>>(), [50, 51, 52, 53, 54]);
}

#[test]
fn more_connections_than_are_set_in_one_visit_are_set_in_several() {
    let mut setter = Setter::load().unwrap();
    let pair = pair("reno");
    let kind = setter.kind("reno").unwrap();
    let step = plan(&pair.block(&setter, &own()), &change(&["cwnd=77"]), |_| kind).unwrap();
    // Nobody has these cookies: the kernel counts them from 1.
    let gone = (0..70_000).map(|number| Step { cookie: u64::MAX - number, ..step.clone() });
    let steps: Vec<Step> = gone.chain([step.clone()]).collect();
    let answers = setter.apply(&own(), &steps).unwrap();
    assert_eq!(answers.iter().filter(|answer| answer.blocks.is_some()).count(), 1);
    assert_eq!(answers[70_000].shortfalls(&step), Vec::<String>::new());
    assert_eq!(tcp_info(&pair.client).unwrap().snd_cwnd_segments, 77);
}

#[test]
fn windows_of_reno_are_set_and_its_name_stays() {
    windows_are_set_and_state_is_kept("reno", "reno");
}

#[test]
fn windows_of_cubic_are_set_and_its_private_state_goes_on_in_the_wrapper() {
    windows_are_set_and_state_is_kept("cubic", "lfkeep_cubic");
}

#[test]
fn windows_of_bbr_are_set_and_its_model_goes_on_in_the_wrapper() {
    windows_are_set_and_state_is_kept("bbr", "lfkeep_bbr");
}

#[test]
fn windows_of_our_own_are_set_and_their_state_is_kept_under_their_own_name() {
    let name = format!("lftcb{}", std::process::id());
    let tunables = longfat_cc::Tunables::defaults(longfat_cc::Algorithm::find("cubic").unwrap());
    let registered = longfat_kernel::cc::record(&tunables, 1, &name).unwrap();
    windows_are_set_and_state_is_kept(registered.kernel_name(), &name);
}

#[test]
fn without_keeping_the_name_stays_and_the_state_begins_anew() {
    let mut setter = Setter::load().unwrap();
    let pair = pair("cubic");
    let before = pair.block(&setter, &own());
    let never = Change { keep: Keep::Never, ..change(&["cwnd=66", "ssthresh=33"]) };
    set(&mut setter, &own(), &before, &never);
    let info = tcp_info(&pair.client).unwrap();
    assert_eq!((info.snd_cwnd_segments, info.snd_ssthresh_segments), (66, 33));
    assert_eq!(cc(&pair.client).unwrap(), "cubic");
}

#[test]
fn timers_clamp_and_congestion_control_are_set() {
    let mut setter = Setter::load().unwrap();
    let mut pair = pair("reno");
    let before = pair.block(&setter, &own());
    let mut all = change(&["rto-min=40ms", "clamp=500", "cc=cubic", "cwnd=90"]);
    // Before Linux 6.15 it cannot be set, which 'missing_rto_max' says.
    all.rto_max_ms = missing_rto_max().is_none().then_some(10_000);
    let (was, is) = set(&mut setter, &own(), &before, &all).blocks.unwrap();
    assert_eq!((is.clamp_segments, is.cwnd_segments, is.cc.as_str()), (500, 90, "cubic"));
    assert_eq!(is.ssthresh_segments, was.ssthresh_segments, "the clamp does not take ssthresh along");
    assert!(is.rto_min_us.is_none_or(|rto| rto == 40_000), "{is:?}");
    // Under the kernel's least of 200 ms it never falls below that; a machine that stands still lengthens one or the
    // other.
    let fell = (0..200).any(|_| {
        pair.exchange();
        tcp_info(&pair.client).unwrap().rto_us < 200_000
    });
    assert!(fell, "{} us", tcp_info(&pair.client).unwrap().rto_us);
}

#[test]
fn a_connection_in_another_namespace_is_set_there_and_not_seen_here() {
    let lease = Lease::take(&format!("tcbset{}", std::process::id())).unwrap();
    let namespace = lease.namespace("a").unwrap();
    let pair = namespace.run(|| pair("reno")).unwrap();
    let mut setter = Setter::load().unwrap();
    let namespace = Scope::Named(namespace.name().to_owned()).namespaces().unwrap().remove(0);
    let block = pair.block(&setter, &namespace);
    assert_eq!(u64::from(block.netns), namespace.inode);
    assert!(setter.look(&own()).unwrap().iter().all(|here| here.cookie != block.cookie));
    set(&mut setter, &namespace, &block, &change(&["cwnd=123"]));
    assert_eq!(tcp_info(&pair.client).unwrap().snd_cwnd_segments, 123);
}

/// node - router - server, with both families.
struct Routed {
    node: Namespace,
    server: Namespace,
    _router: Namespace,
    _lease: Lease,
}

impl Routed {
    fn new() -> Routed {
        let lease = Lease::take(&format!("tcbway{}", std::process::id())).unwrap();
        let [node, router, server] = ["n", "r", "s"].map(|name| lease.namespace(name).unwrap());
        for (number, host, towards) in [(1, &node, "left"), (2, &server, "right")] {
            let end = |namespace, name| interface::End { namespace, name };
            interface::veth(end(host, "eth0"), end(&router, towards), 1500).unwrap();
            let subnets = [format!("10.78.{number}"), format!("fd00:78:{number}:")];
            for (separator, subnet) in [".", ":"].into_iter().zip(subnets) {
                let address = |number: u8| format!("{subnet}{separator}{number}");
                let length = if separator == "." { 24 } else { 64 };
                let add = |namespace: &Namespace, number, interface| {
                    let address = format!("{}/{length}", address(number));
                    let nodad: &[&str] = if length == 64 { &["nodad"] } else { &[] };
                    namespace.ip(&[&["address", "add", &address, "dev", interface], nodad].concat()).unwrap();
                };
                add(&router, 1, towards);
                add(host, 2, "eth0");
                host.ip(&["route", "add", "default", "via", &address(1)]).unwrap();
            }
        }
        for forwarding in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.run(|| sysctl::write(forwarding, "1")).unwrap().unwrap();
        }
        Routed { node, server, _router: router, _lease: lease }
    }
}

/// The router that the iterator sees for a connection of a namespace.
fn gateway(setter: &Setter, namespace: &Namespace, local: SocketAddr) -> (bool, Option<IpAddr>) {
    let scope = Scope::Named(namespace.name().to_owned()).namespaces().unwrap().remove(0);
    let blocks = setter.look(&scope).unwrap();
    let of = |block: &&ControlBlock| block.local == local && block.state == State::ESTABLISHED;
    let block = blocks.iter().find(of).unwrap();
    (block.interface != 0, block.gateway)
}

#[test]
fn the_router_of_a_connection_is_known_whichever_family_its_socket_is_of() {
    let bed = Routed::new();
    let setter = Setter::load().unwrap();
    let listener = bed.server.run(|| TcpListener::bind("[::]:5001").unwrap()).unwrap();
    for (to, node_via, server_via) in [
        ("10.78.2.2:5001", "10.78.1.1", "10.78.2.1"),
        ("[::ffff:10.78.2.2]:5001", "10.78.1.1", "10.78.2.1"),
        ("[fd00:78:2::2]:5001", "fd00:78:1::1", "fd00:78:2::1"),
    ] {
        let mut client = bed.node.run(|| TcpStream::connect(to).unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.write_all(&[7; 1000]).unwrap();
        client.read_exact(&mut [0; 1000]).unwrap();
        let local = |socket: &TcpStream| {
            let address = socket.local_addr().unwrap();
            SocketAddr::new(address.ip().to_canonical(), address.port())
        };
        let via = |via: &str| (true, Some(via.parse().unwrap()));
        assert_eq!(gateway(&setter, &bed.node, local(&client)), via(node_via), "{to}");
        assert_eq!(gateway(&setter, &bed.server, local(&accepted)), via(server_via), "the end of {to}");
    }
}

#[test]
fn what_the_iterator_reads_is_what_the_socket_says() {
    let setter = Setter::load().unwrap();
    let pair = pair("reno");
    let (block, info) = (pair.block(&setter, &own()), tcp_info(&pair.client).unwrap());
    assert_eq!(block.remote, pair.client.peer_addr().unwrap());
    assert_eq!((block.state, block.cc.as_str(), block.ca_state), (State::ESTABLISHED, "reno", 0));
    assert_eq!(
        (block.cwnd_segments, block.srtt_us, block.min_rtt_us, block.mss_bytes, block.flight_segments),
        (
            info.snd_cwnd_segments,
            info.srtt_us,
            info.least_rtt_us(),
            info.snd_mss_bytes,
            info.flight_segments()
        )
    );
    assert_eq!(block.rttvar_us, info.rttvar_us);
    assert_eq!(block.gateway, None);
    assert_ne!(block.interface, 0, "the loopback it leaves by");
    assert!(Moment::of(&block).has_passed(&block), "all of it is acknowledged");
}

#[test]
fn a_saved_block_is_restored_with_its_private_state() {
    let mut setter = Setter::load().unwrap();
    let mut pair = pair("bbr");
    let before = pair.block(&setter, &own());
    let saved = Saved::from(&before);
    set(&mut setter, &own(), &before, &change(&["cc=reno", "cwnd=10"]));
    pair.exchange();
    let now = pair.block(&setter, &own());
    let (_, is) = set(&mut setter, &own(), &now, &saved.change(&now)).blocks.unwrap();
    assert_eq!((is.cc.as_str(), is.cwnd_segments), ("lfkeep_bbr", before.cwnd_segments));
    assert_eq!(is.private, before.private, "BBR's model is back");
    pair.exchange();
}

#[test]
fn nothing_of_the_setter_is_left_and_a_connection_outlives_it() {
    let available =
        || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    let mine = format!("lfs{}_", std::process::id());
    let mut pair = pair("cubic");
    let mut setter = Setter::load().unwrap();
    let before = pair.block(&setter, &own());
    set(&mut setter, &own(), &before, &change(&["cwnd=50"]));
    assert!(available().contains(&mine), "the setter is registered as long as it lives");
    drop(setter);
    pair.exchange();
    assert_eq!(cc(&pair.client).unwrap(), "lfkeep_cubic", "the connection keeps the code it runs");
}

#[test]
fn time_for_which_a_saved_state_was_not_in_force_is_none_of_our_cubics() {
    let name = format!("lfc{}", std::process::id());
    let tunables = longfat_cc::Tunables::defaults(longfat_cc::Algorithm::find("cubic").unwrap());
    let _registered = longfat_kernel::cc::record(&tunables, 1, &name).unwrap();
    let mut setter = Setter::load().unwrap();
    let mut pair = pair(&name);
    let before = pair.block(&setter, &own());
    let saved = Saved::from(&before);
    set(&mut setter, &own(), &before, &change(&["cc=reno", "cwnd=10"]));
    std::thread::sleep(std::time::Duration::from_millis(50));
    pair.exchange();
    let now = pair.block(&setter, &own());
    let (_, is) = set(&mut setter, &own(), &now, &saved.change(&now)).blocks.unwrap();
    // `struct lf_cubic_state`: began_us of the epoch is its first word, last_us its seventh.
    let [began_us, last_us] = [0, 6].map(|word| is.private[word].wrapping_sub(saved.private[word]));
    assert!(last_us >= 50_000, "{last_us}: its last acknowledgement is of now");
    assert_eq!(began_us, last_us, "the epoch has lasted as long as it had");
    assert_eq!(
        (is.private[1], is.private[2]),
        (saved.private[1], saved.private[2]),
        "W_max, K and the rest stay"
    );
    pair.exchange();
}
