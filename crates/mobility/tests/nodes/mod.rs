//! A router and nodes on one LAN of network namespaces, each node a follower's ears, key and memory of what it heard.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use longfat_host::{
    Lease, Namespace,
    interface::{End, veth},
    monotonic_ns, sysctl,
};
use longfat_mobility::{
    Key,
    announcement::{Announcement, Character},
    freshness::{Freshness, Verdict},
    lan::{Ears, Mouth, PORT, interfaces},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What came of one announcement.
pub struct Told {
    /// Datagrams that left the router.
    pub datagrams: u64,
    /// From its sending until each node knew it to be news, microseconds; nodes that did not hear it are missing.
    pub known_after_us: Vec<u64>,
    /// Datagrams that were anything but news.
    pub other: usize,
}

/// One announcement to `hosts` x `nodes_each` nodes: those of one host share its interface and have sockets of their
/// own.
pub fn tell(tag: &str, hosts: usize, nodes_each: usize, patience: Duration) -> Told {
    let lease = Lease::take(&format!("{tag}{}", std::process::id())).unwrap();
    let (router, switch) = (lease.namespace("r").unwrap(), lease.namespace("sw").unwrap());
    let named: Vec<Namespace> =
        (0..hosts).map(|host| lease.namespace(&format!("n{host}")).unwrap()).collect();
    connect(&router, &switch, &named);
    let key = Arc::new(Key::new(&[7; 32]).unwrap());
    let ready = Arc::new(Barrier::new(hosts + 1));
    let listening: Vec<_> = named
        .into_iter()
        .map(|host| {
            let (key, ready) = (Arc::clone(&key), Arc::clone(&ready));
            thread::spawn(move || host.run(|| listen(nodes_each, &key, &ready, patience)).unwrap())
        })
        .collect();
    let (sent_ns, datagrams) = router.run(|| say(&key, &ready)).unwrap();
    let heard: Vec<Heard> = listening.into_iter().map(|thread| thread.join().unwrap()).collect();
    let known_after_us =
        heard.iter().flat_map(|host| &host.news_ns).map(|at_ns| at_ns.saturating_sub(sent_ns) / 1000);
    Told {
        datagrams,
        known_after_us: known_after_us.collect(),
        other: heard.iter().map(|host| host.other).sum(),
    }
}

/// A switch between the router and all hosts.
fn connect(router: &Namespace, switch: &Namespace, hosts: &[Namespace]) {
    switch.ip(&["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"]).unwrap();
    switch.ip(&["link", "set", "br0", "up"]).unwrap();
    for (index, host) in std::iter::once(router).chain(hosts).enumerate() {
        let port = format!("p{index}");
        veth(End { namespace: host, name: "lan0" }, End { namespace: switch, name: &port }, 1500).unwrap();
        switch.ip(&["link", "set", &port, "master", "br0"]).unwrap();
        let address = format!("10.75.{}.{}/16", index / 200, index % 200 + 1);
        host.ip(&["addr", "add", &address, "dev", "lan0"]).unwrap();
    }
    // One family: one datagram for everybody.
    router.run(|| sysctl::write("net.ipv6.conf.lan0.disable_ipv6", "1")).unwrap().unwrap();
}

fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn udp_sent() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let values = text.lines().filter(|line| line.starts_with("Udp: ")).nth(1).unwrap();
    values.split_whitespace().nth(4).unwrap().parse().unwrap()
}

/// When it left, and in how many datagrams.
fn say(key: &Key, ready: &Barrier) -> (u64, u64) {
    let mouth = Mouth::open(PORT, false).unwrap();
    let lan = interfaces(&["lan0".to_owned()]).unwrap()["lan0"].clone();
    ready.wait();
    let now_us = unix_us();
    let announcement = Announcement {
        router: "bus-7".parse().unwrap(),
        addresses: lan.addresses.clone(),
        epoch_us: 1,
        sequence: 1,
        sent_us: now_us,
        changed_us: now_us,
        link: "satellite".parse().unwrap(),
        character: Character {
            up_bps: 20_000_000,
            down_bps: 20_000_000,
            delay_us: 300_000,
            loss_ppm: 0,
            up_queue_bytes: 0,
            down_queue_bytes: 0,
        },
    };
    let before = udp_sent();
    let sent_ns = monotonic_ns();
    assert_eq!(mouth.say(&lan, &announcement.seal(key).unwrap()), 1);
    (sent_ns, udp_sent() - before)
}

struct Heard {
    news_ns: Vec<u64>,
    other: usize,
}

struct Node {
    ears: Ears,
    freshness: Freshness,
}

/// The nodes of one host, until each has heard news or patience ends.
fn listen(nodes: usize, key: &Key, ready: &Barrier, patience: Duration) -> Heard {
    let mut nodes: Vec<Node> = (0..nodes)
        .map(|_| Node {
            ears: Ears::open(vec!["lan0".to_owned()], PORT).unwrap(),
            freshness: Freshness::new(30_000_000),
        })
        .collect();
    ready.wait();
    let give_up_ns = monotonic_ns() + patience.as_nanos() as u64;
    let mut heard = Heard { news_ns: Vec::new(), other: 0 };
    while heard.news_ns.len() < nodes.len() && monotonic_ns() < give_up_ns {
        {
            let sockets = nodes.iter().flat_map(|node| node.ears.sockets());
            let mut fds: Vec<PollFd<'_>> =
                sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN)).collect();
            poll(&mut fds, PollTimeout::from(100u8)).unwrap();
        }
        for node in &mut nodes {
            while let Some((datagram, _)) = node.ears.take() {
                let announcement = Announcement::open(&datagram, std::slice::from_ref(key)).unwrap();
                match node.freshness.judge(&announcement, unix_us()) {
                    Verdict::News => heard.news_ns.push(monotonic_ns()),
                    _ => heard.other += 1,
                }
            }
        }
    }
    heard
}

/// Every node has two sockets.
pub fn allow_many_sockets() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(65_536), hard).unwrap();
}
