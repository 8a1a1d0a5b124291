//! `longfat relay move`: connections go from one router's relay to another's while bytes flow.

use crate::bed::{
    Bed, Noise, Running, accept, asked, check_noise, ends_with_reset,
    path::{PROCESS, RelayProcess, StopOnDrop, eventually},
    receive_noise,
    routers::Routers,
    send_noise, servers, set_ipv4, talk,
    tap::{Fate, Tap, Way},
    try_send_noise,
};
use longfat_host::key::Key;
use longfat_kernel::watch::Conditions;
use longfat_relay::{Accept, ControlPlan, LimitsPlan, MovePlan, MoveStatus, Observer, Ready, RelayPlan};
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const WITHIN: Duration = Duration::from_secs(20);
const AFTER_BYTES: u64 = 100_000;
const AT_ONCE: (usize, Duration) = (1 << 16, Duration::ZERO);
/// 40 ms there and back.
const LINK: &str = "rate = '200Mbit'\ndelay = '20ms'\nqueue = { discipline = 'droptail', limit = '1MB' }";

fn plan() -> RelayPlan {
    Bed::end_to_end()
}

type Pair = (TcpStream, TcpStream);
type Servers = [(TcpListener, SocketAddr); 2];

fn listening(bed: &Bed) -> Servers {
    servers().map(|address| (bed.listen(&address.to_string()), address))
}

/// A connection of each IP family.
fn pairs(bed: &Bed, servers: &Servers) -> Vec<Pair> {
    servers.iter().map(|(listener, address)| bed.pair(listener, *address)).collect()
}

/// Every one moved, and nothing else came of it.
fn assert_moved(status: &MoveStatus, count: u64) {
    let all = (status.connections, status.moved, status.reset, status.ended);
    assert_eq!((all, &status.stayed.len(), &status.error), ((count, count, 0, 0), &0, &None), "{status:?}");
}

fn assert_orderly(relays: [Running; 2]) {
    let stats = relays.map(Running::stop);
    assert_eq!(stats.map(|stats| (stats.reset, stats.stopped)), [(0, 0); 2], "{stats:?}");
}

#[test]
fn streams_go_on_by_the_other_router() {
    const BYTES: usize = 64 << 20;
    let routers = Routers::new("mvbulk");
    let [first, second] = routers.start(&plan());
    let pairs = pairs(&routers.bed, &listening(&routers.bed));
    assert_eq!(routers.bed.leg_count(), 4);
    std::thread::scope(|scope| {
        for (client, far) in &pairs {
            scope.spawn(move || send_noise(client, 1, BYTES));
            scope.spawn(move || send_noise(far, 2, BYTES));
            scope.spawn(move || assert_eq!(check_noise(far, 1), BYTES));
            scope.spawn(move || assert_eq!(check_noise(client, 2), BYTES));
        }
        std::thread::sleep(Duration::from_millis(20));
        let status = routers.move_from(0, WITHIN);
        assert_moved(&status, 2);
        routers.lead(1);
        assert!(status.moved_bytes > 0, "in full flow: {status:?}");
    });
    let [out, back] = [0, 1].map(|router| asked(&routers.tag(router)).end_to_end);
    assert_eq!((out.moved_out, out.moved_in, back.moved_in), (2, 0, 2));
    let stats = [first.stop(), second.stop()];
    assert_eq!(stats.map(|stats| (stats.reset, stats.stopped)), [(0, 0); 2], "{stats:?}");
    assert_eq!((stats[0].moved, stats[1].finished), (2, 2), "{stats:?}");
}

/// Sends noise with pauses until somebody says that it is enough; how much it was.
fn send_until(mut stream: &TcpStream, seed: u64, enough: &AtomicBool) -> usize {
    let (mut noise, mut block, mut total) = (Noise::new(seed), vec![0; 1 << 16], 0);
    for turn in 0.. {
        if enough.load(Ordering::Acquire) {
            break;
        }
        noise.fill(&mut block);
        stream.write_all(&block).unwrap();
        total += block.len();
        std::thread::sleep(Duration::from_millis(if turn % 40 == 39 { 60 } else { 1 }));
    }
    stream.shutdown(Shutdown::Write).unwrap();
    total
}

/// Streams both ways in all of them until `work` is done; the longest time in which a reader got nothing.
fn stream_while(pairs: &[Pair], work: impl FnOnce()) -> Duration {
    let enough = AtomicBool::new(false);
    let read = |stream: &TcpStream, seed| {
        let (mut noise, mut expected, mut got) = (Noise::new(seed), vec![0; 1 << 16], vec![0; 1 << 16]);
        let (mut total, mut longest, mut last, mut filled) = (0, Duration::ZERO, Instant::now(), 0);
        loop {
            match (&*stream).read(&mut got[filled..]).unwrap() {
                0 => break,
                bytes => filled += bytes,
            }
            longest = longest.max(last.elapsed());
            last = Instant::now();
            if filled == got.len() {
                noise.fill(&mut expected);
                assert!(got == expected, "within 64 KiB behind byte {total}");
                (total, filled) = (total + filled, 0);
            }
        }
        assert_eq!(filled, 0, "an end in the middle, behind byte {total}");
        (total, longest)
    };
    std::thread::scope(|scope| {
        let (enough, read) = (&enough, &read);
        let mut ends = Vec::new();
        for (client, far) in pairs {
            for (from, to, seed) in [(client, far, 5), (far, client, 6)] {
                let sender = scope.spawn(move || send_until(from, seed, enough));
                ends.push((sender, scope.spawn(move || read(to, seed))));
            }
        }
        let stop = StopOnDrop(enough);
        work();
        drop(stop);
        ends.into_iter()
            .map(|(sender, reader)| {
                let (total, longest) = reader.join().unwrap();
                assert_eq!(sender.join().unwrap(), total);
                longest
            })
            .max()
            .unwrap()
    })
}

fn to_and_fro(tag: &str, timestamps: &str) {
    Routers::over_link(tag, LINK, |routers| {
        let relays = routers.start(&plan());
        for end in [&routers.bed.client, &routers.bed.server] {
            set_ipv4(end, "tcp_timestamps", timestamps);
        }
        let pairs = pairs(&routers.bed, &listening(&routers.bed));
        stream_while(&pairs, || {
            for turn in 0..10 {
                std::thread::sleep(Duration::from_millis(100 + 37 * turn as u64));
                let (from, to) = (turn % 2, 1 - turn % 2);
                let status = routers.move_from(from, WITHIN);
                assert_moved(&status, 2);
                if turn % 3 == 0 {
                    std::thread::sleep(Duration::from_millis(150));
                }
                routers.lead(to);
            }
        });
        assert_orderly(relays);
    });
}

#[test]
fn ten_times_to_and_fro_over_a_long_path_with_timestamps() {
    to_and_fro("mvten", "1");
}

#[test]
fn ten_times_to_and_fro_over_a_long_path_without_timestamps() {
    to_and_fro("mvplain", "0");
}

#[test]
fn routes_may_come_first_where_strangers_are_held_back() {
    Routers::over_link("mvfirst", LINK, |routers| {
        let hold = Some(Duration::from_secs(5));
        let moves = MovePlan { listen: routers.address(0), key: "key".into(), hold };
        // Leaving takes a few round trips, on a busy machine more than a second.
        let drain = Duration::from_secs(20);
        let relays = routers.start(&RelayPlan { moves: Some(moves), drain, ..plan() });
        let servers = listening(&routers.bed);
        for turn in 0..4 {
            let pairs = pairs(&routers.bed, &servers);
            let (from, to) = (turn % 2, 1 - turn % 2);
            stream_while(&pairs, || {
                std::thread::sleep(Duration::from_millis(300));
                routers.lead(to);
                std::thread::sleep(Duration::from_millis(40 * turn as u64));
                assert_moved(&routers.move_from(from, WITHIN), 2);
                std::thread::sleep(Duration::from_millis(300));
            });
            drop(pairs);
            eventually("they have ended", || live(routers) == 0);
        }
        // Whom nobody moves waits for a while, and passes.
        let strangers = pairs(&routers.bed, &servers);
        assert_orderly_but_released(relays, 2);
        let _second = Running::start(
            routers.router(1),
            routers.plan(
                1,
                &RelayPlan {
                    moves: Some(MovePlan {
                        listen: routers.address(1),
                        key: "key".into(),
                        hold: Some(Duration::from_secs(1)),
                    }),
                    ..plan()
                },
            ),
        );
        routers.lead(1);
        for (client, far) in &strangers {
            talk(client, far, 1 << 18, AT_ONCE);
        }
    });
}

/// Both end, and the first one leaves so many connections to their ends.
fn assert_orderly_but_released(relays: [Running; 2], released: u64) {
    let stats = relays.map(Running::stop);
    assert_eq!(stats.map(|stats| (stats.reset, stats.stopped)), [(0, 0); 2], "{stats:?}");
    assert_eq!(stats[0].released, released, "{stats:?}");
}

/// How long readers wait when their connections move: told, not judged. Senders pause for 60 ms by themselves.
#[test]
#[ignore = "a measurement"]
fn stalls() {
    let measure = |name: &str, routers: &Routers| {
        let relays = routers.start(&plan());
        let servers = listening(&routers.bed);
        let (mut moving, mut held_us) = (Vec::new(), Vec::new());
        for turn in 0..20 {
            let (from, to) = (turn % 2, 1 - turn % 2);
            let pairs = pairs(&routers.bed, &servers);
            let waited = stream_while(&pairs, || {
                std::thread::sleep(Duration::from_millis(300));
                let status = routers.move_from(from, WITHIN);
                routers.lead(to);
                assert_moved(&status, 2);
                held_us.push(status.longest_held_us);
                std::thread::sleep(Duration::from_millis(1500));
            });
            moving.push(waited.as_millis());
            drop(pairs);
            eventually("they have ended", || live(routers) == 0);
        }
        moving.sort_unstable();
        held_us.sort_unstable();
        println!("{name}: longest wait of a reader, ms {moving:?}; held back, us {held_us:?}");
        drop(relays);
    };
    measure("no delay", &Routers::new("mvstall"));
    Routers::over_link("mvstall4", LINK, |routers| measure("40 ms", routers));
}

/// Steps in after some bytes, and leaves in pauses.
fn stepping_in() -> RelayPlan {
    let mut plan = plan();
    let way = plan.defaults_mut();
    way.adopt = Conditions { bytes: Some(AFTER_BYTES), ..Conditions::default() };
    way.release_after = Some(Duration::from_secs(1));
    plan
}

/// Talks until a router's relay is between the ends of all of them.
fn talk_until_adopted(routers: &Routers, router: usize, pairs: &[Pair]) {
    eventually("the relay steps in", || {
        std::thread::scope(|scope| {
            for (client, far) in pairs {
                scope.spawn(|| talk(client, far, 60_000, (1 << 14, Duration::from_micros(500))));
            }
        });
        let living = asked(&routers.tag(router)).connections;
        living.iter().filter(|one| one.adopted.is_some()).count() == pairs.len()
    });
}

#[test]
fn what_was_stepped_into_in_mid_stream_is_left_in_pauses_by_the_other_router_and_stepped_into_again() {
    let routers = Routers::new("mvpause");
    let relays = routers.start(&stepping_in());
    let pairs = pairs(&routers.bed, &listening(&routers.bed));
    let mut all_moved = 0;
    for turn in 0..6 {
        let (from, to) = (turn % 2, 1 - turn % 2);
        talk_until_adopted(&routers, from, &pairs);
        let left = |router: usize| {
            let released = asked(&routers.tag(router)).end_to_end.released;
            released.get("pause").copied().unwrap_or(0)
        };
        let before = left(to);
        // One may be left by the first router before.
        let moved = routers.move_from(from, WITHIN).moved;
        routers.lead(to);
        eventually("the other relay leaves them", || left(to) == before + moved);
        eventually("so does the first what stayed there", || live(&routers) == 0);
        all_moved += moved;
        for (client, far) in &pairs {
            talk(client, far, 1 << 12, AT_ONCE);
        }
    }
    assert!(all_moved >= 6, "half of them before they were left: {all_moved}");
    assert_orderly(relays);
}

#[test]
fn what_is_only_watched_is_stepped_into_by_the_other_router() {
    let routers = Routers::new("mvwatch");
    let relays = routers.start(&stepping_in());
    let servers = listening(&routers.bed);
    let quiet = pairs(&routers.bed, &servers);
    for (client, far) in &quiet {
        talk(client, far, 1000, AT_ONCE);
    }
    // There and back.
    for (from, to) in [(0, 1), (1, 0)] {
        let status = routers.move_from(from, WITHIN);
        assert_moved(&status, 0);
        assert!(status.watched >= 2, "{status:?}");
        routers.lead(to);
        talk_until_adopted(&routers, to, &quiet);
        eventually("they are left", || live(&routers) == 0);
    }
    let told = [0, 1].map(|router| asked(&routers.tag(router)).end_to_end);
    assert!(told.iter().all(|told| told.adopted >= 2 && told.passed.is_empty()), "{told:?}");
    assert_orderly(relays);
}

#[test]
fn what_is_half_closed_stays_half_closed() {
    let routers = Routers::new("mvhalf");
    let relays = routers.start(&plan());
    let servers = listening(&routers.bed);
    for (turn, client_first) in [true, false].into_iter().enumerate() {
        let pairs = pairs(&routers.bed, &servers);
        let ends = |pair: &Pair| {
            let (client, far) = (pair.0.try_clone().unwrap(), pair.1.try_clone().unwrap());
            if client_first { (client, far) } else { (far, client) }
        };
        for (one, other) in pairs.iter().map(ends) {
            one.shutdown(Shutdown::Write).unwrap();
            assert_eq!((&other).read(&mut [0]).unwrap(), 0);
        }
        let from = turn % 2;
        let status = routers.move_from(from, WITHIN);
        routers.lead(1 - from);
        assert_moved(&status, 2);
        for (one, other) in pairs.iter().map(ends) {
            std::thread::scope(|scope| {
                scope.spawn(|| send_noise(&other, 3, 3 << 20));
                assert_eq!(check_noise(&one, 3), 3 << 20);
            });
        }
        eventually("both ends have ended", || live(&routers) == 0);
    }
    assert_orderly(relays);
}

#[test]
fn a_shut_window_is_opened_by_the_other_router() {
    const BYTES: usize = 24 << 20;
    let routers = Routers::new("mvshut");
    let relays = routers.start(&plan());
    let pairs = pairs(&routers.bed, &listening(&routers.bed));
    std::thread::scope(|scope| {
        for (client, far) in &pairs {
            scope.spawn(move || send_noise(client, 7, BYTES));
            scope.spawn(move || send_noise(far, 8, BYTES));
        }
        // All buffers are full, and nobody reads.
        std::thread::sleep(Duration::from_millis(600));
        let status = routers.move_from(0, WITHIN);
        assert_moved(&status, 2);
        routers.lead(1);
        assert!(status.moved_bytes > 1 << 20, "{status:?}");
        for (client, far) in &pairs {
            scope.spawn(move || assert_eq!(check_noise(client, 8), BYTES));
            scope.spawn(move || assert_eq!(check_noise(far, 7), BYTES));
        }
    });
    assert_orderly(relays);
}

#[test]
fn urgent_data_that_are_on_their_way_keep_a_connection_until_they_have_arrived() {
    let routers = Routers::new("mvurgent");
    let relays = routers.start(&plan());
    let (listener, address) = &listening(&routers.bed)[0];
    setsockopt(listener, sockopt::RcvBuf, &4096).unwrap();
    let client = routers.bed.connect(*address);
    let far = accept(listener);
    setsockopt(&far, sockopt::OobInline, &true).unwrap();
    // More than the server takes, and the mark is behind.
    (&client).write_all(&[b'x'; 100_000]).unwrap();
    send(client.as_raw_fd(), b"!", MsgFlags::MSG_OOB).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let status = routers.move_from(0, Duration::from_secs(3));
    assert_eq!((status.moved, status.stayed.get("urgent")), (0, Some(&1)), "{status:?}");
    let mut got = vec![0; 100_001];
    (&far).read_exact(&mut got).unwrap();
    assert_eq!((got[99_999], got[100_000]), (b'x', b'!'));
    let status = routers.move_from(0, WITHIN);
    routers.lead(1);
    assert_moved(&status, 1);
    // A mark is one here, too.
    (&client).write_all(b"before").unwrap();
    send(client.as_raw_fd(), b"!", MsgFlags::MSG_OOB).unwrap();
    (&client).write_all(b"behind").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let mut block = [0; 64];
    let bytes = (&far).read(&mut block).unwrap();
    assert_eq!(&block[..bytes], b"before", "a reading stops at the mark");
    let bytes = (&far).read(&mut block).unwrap();
    assert_eq!(&block[..bytes], b"!behind");
    drop((client, far));
    drop(relays);
}

#[test]
fn what_cannot_be_moved_stays_and_is_named() {
    let routers = Routers::new("mvstay");
    let mut first = plan();
    first.defaults_mut().rule = "other".into();
    let relays = [
        Running::start(routers.router(0), routers.plan(0, &first)),
        Running::start(routers.router(1), routers.plan(1, &plan())),
    ];
    let servers = listening(&routers.bed);
    let (client, far) = routers.bed.pair(&servers[0].0, servers[0].1);
    let status = routers.move_from(0, WITHIN);
    assert_eq!((status.moved, status.stayed.get("rule")), (0, Some(&1)), "{status:?}");
    let staying = &status.staying[0];
    assert_eq!((staying.server, staying.client), (servers[0].1, client.local_addr().unwrap()));
    talk(&client, &far, 1 << 20, AT_ONCE);
    drop((client, far));
    assert_orderly(relays);

    let one = LimitsPlan { connections: Some(1), ..LimitsPlan::default() };
    let relays = [
        Running::start(routers.router(0), routers.plan(0, &plan())),
        Running::start(routers.router(1), routers.plan(1, &RelayPlan { limits: one, ..plan() })),
    ];
    let pairs = pairs(&routers.bed, &servers);
    let status = routers.move_from(0, WITHIN);
    assert_eq!((status.moved, status.stayed.get("full")), (1, Some(&1)), "{status:?}");
    // Which one stayed is named; its ends still use the first router.
    let stayed = status.staying[0].client;
    for (client, far) in &pairs {
        routers.lead(usize::from(client.local_addr().unwrap() != stayed));
        talk(client, far, 1 << 20, AT_ONCE);
    }
    routers.lead(0);
    drop(pairs);
    drop(relays);
}

#[test]
fn connections_with_numbers_of_their_own_stay() {
    let routers = Routers::new("mvearly");
    let mut first = plan();
    first.defaults_mut().accept = Accept::Early;
    // It moves, but takes in nothing.
    first = RelayPlan { moves: None, ..routers.plan(0, &first) };
    let first = Running::start(routers.router(0), first);
    let second = Running::start(routers.router(1), routers.plan(1, &plan()));
    let pairs = pairs(&routers.bed, &listening(&routers.bed));
    let status = routers.move_from(0, WITHIN);
    assert_eq!((status.moved, status.stayed.get("numbers")), (0, Some(&2)), "{status:?}");
    for (client, far) in &pairs {
        talk(client, far, 1 << 20, AT_ONCE);
    }
    drop(pairs);
    drop((first, second));
}

#[test]
fn without_the_key_nothing_moves_and_what_was_recorded_is_worth_nothing() {
    let routers = Routers::new("mvkey");
    let relays = routers.start(&plan());
    let pairs = pairs(&routers.bed, &listening(&routers.bed));
    let other = Key::create(&routers.keys.path().join("other")).unwrap();
    routers.begin_move(0, routers.address(1), &other, WITHIN);
    let status = routers.wait_for_move(0);
    assert_eq!(status.moved, 0);
    assert!(status.error.as_ref().unwrap().contains("the same key"), "{status:?}");
    for (client, far) in &pairs {
        talk(client, far, 1 << 18, AT_ONCE);
    }
    let tap = Tap::new(routers.router(0), routers.address(1), Fate::Nothing);
    routers.begin_move(0, tap.address, &routers.key, WITHIN);
    assert_moved(&routers.wait_for_move(0), 2);
    routers.lead(1);
    for (client, far) in &pairs {
        talk(client, far, 1 << 18, AT_ONCE);
    }
    // The whole session again, by a stranger.
    let recorded = tap.recorded();
    assert!(recorded.len() > 500);
    let mut again = routers.router(0).run(|| TcpStream::connect(routers.address(1))).unwrap().unwrap();
    again.write_all(&recorded).unwrap();
    let mut answer = Vec::new();
    // An answer to the first message, which says nothing to whoever has no key, and the end.
    let _ = again.read_to_end(&mut answer);
    assert!(answer.len() < 100, "{}", answer.len());
    assert_eq!(asked(&routers.tag(1)).end_to_end.moved_in, 2);
    for (client, far) in &pairs {
        talk(client, far, 1 << 18, AT_ONCE);
    }
    drop(pairs);
    assert_orderly(relays);
}

#[test]
fn a_reload_changes_where_moves_are_taken_and_by_which_key() {
    let routers = Routers::new("mvreload");
    let relays = routers.start(&plan());
    let pairs = pairs(&routers.bed, &listening(&routers.bed));
    let other = Key::create(&routers.keys.path().join("other")).unwrap();
    let mut elsewhere = routers.address(1);
    elsewhere.set_port(elsewhere.port() + 1);
    let reload = |listen, key: &str| {
        let moves = MovePlan { listen, key: routers.keys.path().join(key), hold: None };
        relays[1].try_reload(RelayPlan { moves: Some(moves), ..routers.plan(1, &plan()) })
    };
    let try_move = |to, key: &Key| {
        routers.begin_move(0, to, key, Duration::from_secs(2));
        routers.wait_for_move(0)
    };
    reload(elsewhere, "key").unwrap();
    let refused = try_move(routers.address(1), &routers.key);
    assert!(refused.moved == 0 && refused.error.as_ref().unwrap().contains("listen"), "{refused:?}");
    reload(elsewhere, "other").unwrap();
    let refused = try_move(elsewhere, &routers.key);
    assert!(refused.moved == 0 && refused.error.as_ref().unwrap().contains("same key"), "{refused:?}");
    // What cannot be is refused, and all is as it was.
    let problem = reload(elsewhere, "nosuch").unwrap_err();
    assert!(problem.contains("nosuch"), "{problem}");
    assert_moved(&try_move(elsewhere, &other), 2);
    routers.lead(1);
    for (client, far) in &pairs {
        talk(client, far, 1 << 18, AT_ONCE);
    }
    drop(pairs);
    assert_orderly(relays);
}

/// Pieces that pass there in a move of one quiet connection: a handshake, and twice one for each message.
const THERE: usize = 13;
const BACK: usize = 11;

#[test]
fn a_wire_that_is_cut_anywhere_leaves_each_connection_with_one_owner() {
    let routers = Routers::new("mvcut");
    let relays = routers.start(&plan());
    let servers = listening(&routers.bed);
    let cuts = (1..=THERE).map(|count| (Way::There, count)).chain((1..=BACK).map(|count| (Way::Back, count)));
    let mut outcomes = [0; 2];
    for (turn, (way, count)) in cuts.enumerate() {
        let (listener, address) = &servers[turn % 2];
        let (client, far) = routers.bed.pair(listener, *address);
        talk(&client, &far, 1 << 16, AT_ONCE);
        let tap = Tap::new(routers.router(0), routers.address(1), Fate::Cut(way, count));
        routers.begin_move(0, tap.address, &routers.key, WITHIN);
        let status = routers.wait_for_move(0);
        assert_eq!((status.reset, status.moved <= 1), (0, true), "{way:?} {count}: {status:?}");
        outcomes[status.moved as usize] += 1;
        routers.lead(status.moved as usize);
        talk(&client, &far, 1 << 18, AT_ONCE);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut [0]).unwrap(), 0, "{way:?} {count}");
        drop((client, far));
        eventually("it has ended", || live(&routers) == 0);
        routers.lead(0);
    }
    assert!(outcomes[0] >= 10 && outcomes[1] >= 4, "before and after: {outcomes:?}");
    assert_orderly(relays);
}

/// Connections of both relays.
fn live(routers: &Routers) -> usize {
    [0, 1].map(|router| asked(&routers.tag(router)).live).iter().sum()
}

#[test]
fn when_nobody_can_say_whose_a_connection_is_both_ends_are_reset() {
    let routers = Routers::new("mvdoubt");
    let relays = routers.start(&plan());
    let servers = listening(&routers.bed);
    // Behind the first half of the word, which says nothing, and behind all of it.
    for (turn, count) in [10, 11].into_iter().enumerate() {
        let (listener, address) = &servers[turn];
        let (client, far) = routers.bed.pair(listener, *address);
        talk(&client, &far, 1 << 16, AT_ONCE);
        let tap = Tap::new(routers.router(0), routers.address(1), Fate::CutForGood(Way::There, count));
        routers.begin_move(0, tap.address, &routers.key, WITHIN);
        let status = routers.wait_for_move(0);
        assert_eq!((status.moved, status.reset), (0, 1), "{status:?}");
        assert!(status.error.is_some());
        assert!(ends_with_reset(&client) && ends_with_reset(&far));
    }
    drop(relays);
}

/// Plans of relays that are processes: where they answer, where they take moves, and their key.
fn how(routers: &Routers, router: usize) -> String {
    let socket = routers.socket(router);
    let key = routers.keys.path().join("key");
    format!("{}|{}|{}", socket.display(), routers.address(router), key.display())
}

#[test]
#[ignore = "the relay of other tests"]
fn a_relay_process() {
    let Ok(how) = std::env::var(PROCESS) else { return };
    let [socket, listen, key] = how.split('|').collect::<Vec<_>>().try_into().unwrap();
    struct Say;
    impl Observer for Say {
        fn ready(&self, _: &Ready) {
            println!("\nready: it is");
        }
    }
    let control = Some(ControlPlan { socket: socket.into(), group: None });
    let moves = Some(MovePlan { listen: listen.parse().unwrap(), key: key.into(), hold: None });
    longfat_relay::run(&RelayPlan { control, moves, ..plan() }, &AtomicBool::new(false), &Say).unwrap();
}

/// Nobody is told of an end before all has come; whether it all came.
fn is_whole_or_reset((client, far): &Pair) -> bool {
    let total = 1 << 18;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| try_send_noise(client, 1, total));
        let (got, with_reset) = receive_noise(far, 1, 1 << 16, Duration::ZERO);
        let sent = sender.join().unwrap();
        assert!(with_reset || (got == total && sent.is_ok()), "{got} bytes and an end");
        !with_reset
    })
}

/// A connection to a server, whose move from the first router is held where that says.
fn held_move(routers: &Routers, (listener, address): &(TcpListener, SocketAddr), fate: Fate) -> (Pair, Tap) {
    let pair = routers.bed.pair(listener, *address);
    talk(&pair.0, &pair.1, 1 << 16, AT_ONCE);
    let tap = Tap::new(routers.router(0), routers.address(1), fate);
    routers.begin_move(0, tap.address, &routers.key, WITHIN);
    tap.wait();
    (pair, tap)
}

#[test]
fn a_receiving_relay_that_is_killed_leaves_a_whole_connection_or_a_reset_one() {
    let routers = Routers::new("mvkill2");
    let first = Running::start(routers.router(0), routers.plan(0, &plan()));
    let servers = listening(&routers.bed);
    // What it has not been given goes on; what it has been given ends with it.
    for (turn, (way, count, goes_on)) in
        [(Way::There, 7, true), (Way::There, 9, true), (Way::Back, 8, false)].into_iter().enumerate()
    {
        let mut second = RelayProcess::start(module_path!(), routers.router(1), &how(&routers, 1), None);
        let (pair, tap) = held_move(&routers, &servers[turn % 2], Fate::Hold(way, count));
        second.kill();
        drop(tap);
        let status = routers.wait_for_move(0);
        assert_eq!((status.moved, status.reset), (0, u64::from(!goes_on)), "{status:?}");
        assert_eq!(is_whole_or_reset(&pair), goes_on, "{way:?} {count}");
    }
    drop(first);
}

#[test]
fn a_relay_that_is_killed_while_it_moves_leaves_a_whole_connection_or_a_reset_one() {
    let routers = Routers::new("mvkill1");
    let second = Running::start(routers.router(1), routers.plan(1, &plan()));
    let servers = listening(&routers.bed);
    let mut ended = 0;
    for (turn, (way, count)) in
        [(Way::There, 5), (Way::There, 7), (Way::Back, 7), (Way::Back, 8)].into_iter().enumerate()
    {
        let mut first = RelayProcess::start(module_path!(), routers.router(0), &how(&routers, 0), None);
        let (pair, tap) = held_move(&routers, &servers[turn % 2], Fate::Hold(way, count));
        first.kill();
        drop(tap);
        routers.lead(1);
        let is_whole = is_whole_or_reset(&pair);
        ended += usize::from(!is_whole);
        // It is the other relay's, and its ends hear nothing of the death of the first.
        assert!(is_whole || (way, count) != (Way::Back, 8), "behind the word that makes it the other one's");
        routers.lead(0);
    }
    assert_eq!(ended, 3, "before the other relay has it, it ends with its relay");
    drop(second);
}
