//! `release_after`: a connection that was stepped into and pauses goes on from end to end, and is stepped into again.

use crate::bed::{
    self, Bed, Running, accept, asked, check_noise, check_some_noise, ends_with_reset, exchange,
    path::{PROCESS, RelayProcess, eventually},
    receive_noise, reset, send_noise, servers, set_ipv4, start, talk, told, try_send_noise,
    try_send_noise_slowly,
};
use longfat_kernel::watch::Conditions;
use longfat_relay::{Observer, Ready, RelayPlan};
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

const AFTER_BYTES: u64 = 100_000;
const PAUSE: Duration = Duration::from_millis(200);
const AT_ONCE: (usize, Duration) = (1 << 16, Duration::ZERO);

fn plan() -> RelayPlan {
    let mut plan = Bed::end_to_end();
    let way = plan.defaults_mut();
    way.adopt = Conditions { bytes: Some(AFTER_BYTES), ..Conditions::default() };
    way.release_after = Some(PAUSE);
    plan.drain = Duration::from_secs(20);
    plan
}

fn released(tag: &str) -> u64 {
    told(tag).released.get("pause").copied().unwrap_or(0)
}

type Pair = (TcpStream, TcpStream);

/// Talks until the relay is between the ends of all of them.
fn talk_until_adopted(bed: &Bed, pairs: &[Pair]) {
    eventually("the relay steps in", || {
        std::thread::scope(|scope| {
            for (client, far) in pairs {
                scope.spawn(|| talk(client, far, 60_000, (1 << 14, Duration::from_micros(500))));
            }
        });
        bed.leg_count() == 2 * pairs.len()
    });
}

fn wait_until_left(bed: &Bed) {
    eventually("the relay leaves", || bed.leg_count() == 0);
}

#[test]
fn streams_that_pause_are_left_and_stepped_into_again_many_times() {
    const TIMES: u64 = 24;
    let bed = Bed::new("pmany");
    let relay = start("pmany", &bed, plan());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    let mut pairs = Vec::new();
    for timestamps in ["1", "0"] {
        set_ipv4(&bed.client, "tcp_timestamps", timestamps);
        pairs.extend(listeners.iter().map(|(listener, address)| bed.pair(listener, *address)));
    }
    for time in 1..=TIMES {
        talk_until_adopted(&bed, &pairs);
        let connections = asked("pmany").connections;
        assert!(connections.iter().all(|one| one.adopted.is_some()), "{connections:?}");
        wait_until_left(&bed);
        assert!(released("pmany") >= time * pairs.len() as u64);
    }
    let status = told("pmany");
    assert!(status.adopted >= TIMES * pairs.len() as u64 && status.passed.is_empty(), "{status:?}");
    for (client, far) in &pairs {
        exchange(client, far, 1 << 20);
    }
    let stats = relay.stop();
    assert_eq!((stats.reset, stats.stopped), (0, 0), "{stats:?}");
}

#[test]
fn a_stream_that_went_one_way_is_left_though_its_sender_has_the_window_it_began_with() {
    const BYTES: usize = 2 << 20;
    const PACED: (usize, Duration) = (1 << 14, Duration::from_micros(500));
    let bed = Bed::new("poneway");
    let relay = start("poneway", &bed, plan());
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        let (client, far) = bed.pair(&listener, address);
        let before = released("poneway");
        eventually("it is stepped into and left", || {
            std::thread::scope(|scope| {
                scope.spawn(|| try_send_noise_slowly(&client, 5, BYTES, PACED).unwrap());
                check_some_noise(&far, 5, BYTES, AT_ONCE);
            });
            std::thread::sleep(3 * PAUSE);
            released("poneway") > before
        });
        exchange(&client, &far, 1 << 18);
    }
    assert_eq!(relay.stop().reset, 0);
}

#[test]
fn bytes_that_come_at_any_moment_of_a_pause_arrive() {
    let bed = Bed::new("pmoment");
    let relay = start("pmoment", &bed, plan());
    let run = |address: SocketAddr, listener: &TcpListener| {
        let client = bed.connect(address);
        let far = accept(listener);
        // From before the relay looks to after it has left.
        for turn in 0..70 {
            talk(&client, &far, 150_000, (1 << 14, Duration::from_micros(500)));
            std::thread::sleep(PAUSE - Duration::from_millis(10) + Duration::from_millis(turn));
        }
        exchange(&client, &far, 1 << 18);
    };
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    std::thread::scope(|scope| {
        for (listener, address) in &listeners {
            scope.spawn(|| run(*address, listener));
        }
    });
    let status = told("pmoment");
    assert!(released("pmoment") >= 10 && status.adopted >= 20, "{status:?}");
    assert_eq!(relay.stop().reset, 0);
}

#[test]
fn a_long_and_lossy_path_makes_no_difference() {
    let link = "rate = '100Mbit'\ndelay = '20ms'\nloss = 0.003\nqueue = { discipline = 'droptail', limit = '500KB' }";
    Bed::over_link("plossy", link, |bed| {
        let relay = start("plossy", bed, plan());
        let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
        let pairs: Vec<_> =
            listeners.iter().map(|(listener, address)| bed.pair(listener, *address)).collect();
        for _ in 0..6 {
            talk_until_adopted(bed, &pairs);
            std::thread::scope(|scope| {
                for (client, far) in &pairs {
                    scope.spawn(|| talk(client, far, 1 << 20, AT_ONCE));
                }
            });
            wait_until_left(bed);
        }
        for (client, far) in &pairs {
            exchange(client, far, 1 << 20);
        }
        assert_eq!(relay.stop().reset, 0);
    });
}

#[test]
fn a_successor_leaves_what_was_stepped_into_and_steps_into_what_was_watched() {
    let bed = Bed::new("psucc");
    let how = || RelayPlan { control: Some(bed::control_of("psucc")), ..plan() };
    let mut relay = start("psucc", &bed, plan());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    let pairs =
        || listeners.iter().map(|(listener, address)| bed.pair(listener, *address)).collect::<Vec<_>>();
    let (adopted, watched) = (pairs(), pairs());
    for _ in 0..6 {
        talk_until_adopted(&bed, &adopted);
        let is_over = AtomicBool::new(false);
        // They speak until there is a successor: the predecessor must not leave them.
        relay = std::thread::scope(|scope| {
            let is_over = &is_over;
            for (client, far) in &adopted {
                scope.spawn(move || {
                    while !is_over.load(Ordering::Acquire) {
                        talk(client, far, 20_000, AT_ONCE);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                });
            }
            let _stop = bed::path::StopOnDrop(is_over);
            let next = Running::upgrade(&bed.relay, how(), || {}).unwrap();
            relay.wait();
            let known = asked("psucc").connections.iter().filter(|one| one.adopted.is_some()).count();
            assert_eq!(known, adopted.len());
            next
        });
        wait_until_left(&bed);
        assert_eq!(released("psucc"), adopted.len() as u64);
    }
    // Their handshakes went by four relays ago.
    talk_until_adopted(&bed, &watched);
    wait_until_left(&bed);
    for (client, far) in adopted.iter().chain(&watched) {
        exchange(client, far, 1 << 20);
    }
    let stats = relay.stop();
    assert_eq!((stats.reset, stats.stopped), (0, 0), "{stats:?}");
}

#[test]
fn bytes_that_come_at_any_moment_of_an_upgrade_arrive() {
    let bed = Bed::new("pupbusy");
    let how = || RelayPlan { control: Some(bed::control_of("pupbusy")), ..plan() };
    let first = start("pupbusy", &bed, plan());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    let enough = AtomicBool::new(false);
    let run = |address: SocketAddr, listener: &TcpListener| {
        let (client, far) = bed.pair(listener, address);
        for turn in (0..).take_while(|_| !enough.load(Ordering::Acquire)) {
            talk(&client, &far, 150_000, (1 << 14, Duration::from_micros(500)));
            std::thread::sleep(Duration::from_millis(turn * 37 % 260));
        }
        exchange(&client, &far, 1 << 18);
    };
    let last = std::thread::scope(|scope| {
        let run = &run;
        let talkers =
            listeners.iter().map(|(listener, address)| scope.spawn(move || run(*address, listener)));
        let talkers: Vec<_> = talkers.collect();
        let stop = bed::path::StopOnDrop(&enough);
        let (mut relay, mut left) = (first, 0);
        for turn in 0..16 {
            std::thread::sleep(Duration::from_millis(200 + 31 * turn));
            left += released("pupbusy");
            let next = Running::upgrade(&bed.relay, how(), || {}).unwrap();
            relay.wait();
            relay = next;
        }
        drop(stop);
        talkers.into_iter().for_each(|talker| talker.join().unwrap());
        assert!(left > 0, "some were left in between");
        relay
    });
    assert_eq!(last.stop().reset, 0);
}

/// A connection that has been stepped into pauses; what happens at some moment around that at which it is left.
fn around_the_moment(tag: &str, times: u64, work: impl Fn(u64, TcpStream, TcpStream)) {
    let bed = Bed::new(tag);
    let relay = start(tag, &bed, plan());
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    for turn in 0..times {
        let (listener, address) = &listeners[turn as usize % 2];
        let pairs = [bed.pair(listener, *address)];
        talk_until_adopted(&bed, &pairs);
        let [(client, far)] = pairs;
        std::thread::sleep(PAUSE - Duration::from_millis(20) + Duration::from_millis(6 * (turn / 2)));
        work(turn, client, far);
    }
    let status = told(tag);
    assert!((1..times).contains(&released(tag)), "before and after: {status:?}");
    drop(relay);
}

#[test]
fn a_reset_while_it_is_left_reaches_the_other_end() {
    around_the_moment("preset", 50, |turn, client, far| {
        let (by, to) = if turn / 2 % 2 == 0 { (client, far) } else { (far, client) };
        reset(by);
        assert!(ends_with_reset(&to), "turn {turn}: it hears of the reset");
    });
}

#[test]
fn a_finish_while_it_is_left_is_one() {
    around_the_moment("pfinish", 50, |_, client, far| {
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut [0]).unwrap(), 0);
        send_noise(&far, 5, 1 << 16);
        assert_eq!(check_noise(&client, 5), 1 << 16, "it is half closed only");
    });
}

#[test]
fn urgent_bytes_while_it_is_left_stay_in_their_places() {
    around_the_moment("purgent", 50, |turn, client, far| {
        setsockopt(&far, sockopt::OobInline, &true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&client).write_all(b"before").unwrap();
                assert_eq!(send(client.as_raw_fd(), b"!", MsgFlags::MSG_OOB), Ok(1));
                (&client).write_all(b"after").unwrap();
            });
            for part in [&b"before"[..], b"!", b"after"] {
                let mut said = vec![0; part.len()];
                (&far).read_exact(&mut said).unwrap();
                assert_eq!(said, part, "turn {turn}");
            }
        });
        exchange(&client, &far, 1 << 16);
    });
}

#[test]
fn an_end_that_takes_nothing_keeps_the_relay_until_it_does() {
    let bed = Bed::new("pzero");
    let relay = start("pzero", &bed, plan());
    for (turn, address) in servers().into_iter().enumerate() {
        let listener = bed.listen(&address.to_string());
        let pairs = [bed.pair(&listener, address)];
        talk_until_adopted(&bed, &pairs);
        let (client, far) = &pairs[0];
        let total = 24 << 20;
        std::thread::scope(|scope| {
            // More than all buffers take: its window is shut, and the relay has bytes for it.
            scope.spawn(|| bed::try_send_some_noise(client, 8, total).unwrap());
            eventually("bytes wait here", || {
                asked("pzero").connections.iter().any(|one| one.to_server.backlog_bytes > 0)
            });
            std::thread::sleep(4 * PAUSE);
            assert_eq!(bed.leg_count(), 2, "bytes wait");
            check_some_noise(far, 8, total, AT_ONCE);
        });
        wait_until_left(&bed);
        assert!(released("pzero") > turn as u64);
        exchange(client, far, 1 << 18);
    }
    drop(relay);
}

#[test]
fn an_end_with_less_room_than_a_sender_may_begin_with_keeps_the_relay() {
    let bed = Bed::new("proom");
    let relay = start("proom", &bed, plan());
    for address in servers() {
        let listener = bed.listen(&address.to_string());
        setsockopt(&listener, sockopt::RcvBuf, &(16 << 10)).unwrap();
        let pairs = [bed.pair(&listener, address)];
        talk_until_adopted(&bed, &pairs);
        std::thread::sleep(5 * PAUSE);
        assert_eq!(bed.leg_count(), 2, "its client was told of more room than it has");
        let [(client, far)] = pairs;
        exchange(&client, &far, 1 << 18);
    }
    assert_eq!((released("proom"), relay.stop().finished), (0, 2));
}

#[test]
fn probes_of_an_idle_connection_are_no_bytes_and_are_answered_before_and_after() {
    let bed = Bed::new("pkeep");
    let mut slow = plan();
    slow.defaults_mut().release_after = Some(Duration::from_millis(1500));
    let relay = start("pkeep", &bed, slow);
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    let pairs: Vec<_> = listeners.iter().map(|(listener, address)| bed.pair(listener, *address)).collect();
    for end in pairs.iter().flat_map(|(client, far)| [client, far]) {
        setsockopt(end, sockopt::KeepAlive, &true).unwrap();
        setsockopt(end, sockopt::TcpKeepIdle, &1).unwrap();
        setsockopt(end, sockopt::TcpKeepInterval, &1).unwrap();
        setsockopt(end, sockopt::TcpKeepCount, &2).unwrap();
    }
    talk_until_adopted(&bed, &pairs);
    wait_until_left(&bed);
    // Two that nobody answered would end it.
    std::thread::sleep(Duration::from_secs(4));
    for (client, far) in &pairs {
        exchange(client, far, 1 << 18);
    }
    assert_eq!(relay.stop().reset, 0);
}

#[test]
fn a_relay_that_is_stopped_around_that_moment_leaves_all_the_same() {
    let bed = Bed::new("pstop");
    let listeners = servers().map(|address| (bed.listen(&address.to_string()), address));
    for turn in 0..12 {
        let relay = start("pstop", &bed, plan());
        let pairs: Vec<_> =
            listeners.iter().map(|(listener, address)| bed.pair(listener, *address)).collect();
        talk_until_adopted(&bed, &pairs);
        std::thread::sleep(PAUSE - Duration::from_millis(10) + Duration::from_millis(4 * turn));
        let stats = relay.stop();
        assert_eq!((stats.reset, stats.stopped), (0, 0), "turn {turn}: {stats:?}");
        assert_eq!(bed.leg_count(), 0);
        for (client, far) in &pairs {
            exchange(client, far, 1 << 18);
        }
    }
}

/// Not a test of its own: what [`RelayProcess`] runs.
#[test]
#[ignore = "the relay process of other tests"]
fn a_relay_process() {
    if std::env::var(PROCESS).is_err() {
        return;
    }
    struct Say;
    impl Observer for Say {
        fn ready(&self, _: &Ready) {
            println!("\nready: it is");
        }
    }
    longfat_relay::run(&plan(), &AtomicBool::new(false), &Say).unwrap();
}

#[test]
fn a_relay_that_is_killed_around_that_moment_leaves_a_whole_connection_or_resets_both_ends() {
    let bed = Bed::new("pkill");
    let address = servers()[0];
    let listener = bed.listen(&address.to_string());
    let (mut whole, mut ended) = (0, 0);
    for turn in 0..16 {
        let mut relay = RelayProcess::start(module_path!(), &bed.relay, "", None);
        let pairs = [bed.pair(&listener, address)];
        talk_until_adopted(&bed, &pairs);
        std::thread::sleep(PAUSE - Duration::from_millis(10) + Duration::from_millis(4 * turn));
        relay.kill();
        let [(client, far)] = &pairs;
        // Whatever became of it, nobody is told of an end before all has come.
        let total = 1 << 18;
        let (sent, (got, with_reset)) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| try_send_noise(client, 1, total));
            let got = receive_noise(far, 1, 1 << 16, Duration::ZERO);
            (sender.join().unwrap(), got)
        });
        match with_reset {
            false => {
                assert_eq!(got, total, "turn {turn}");
                sent.unwrap();
                whole += 1;
            }
            true => {
                assert_eq!(got, 0, "turn {turn}: its socket here was gone before");
                let refused = sent.err().or_else(|| (&*client).read(&mut [0]).err()).unwrap();
                let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(kinds.contains(&refused.kind()), "turn {turn}: {refused}");
                ended += 1;
            }
        }
    }
    assert!(whole > 0 && ended > 0, "before and after: {whole} whole, {ended} ended");
    drop(bed.start(Bed::transparent()));
}

#[test]
fn a_plan_that_cannot_be_says_why() {
    let mut never = plan();
    never.defaults_mut().adopt = Conditions::default();
    let wrong = never.check().unwrap_err().to_string();
    assert!(wrong.contains("release_after") && wrong.contains("'default'"), "{wrong}");
    let text = "[intercept]\ninterfaces = 'lan'\n[defaults]\naccept = 'end-to-end'\nadopt_after = '1MB'\n";
    let parsed =
        |more: &str| longfat_relay::spec::RelaySpec::parse(&format!("{text}{more}")).unwrap().resolve();
    let wrong = parsed("release_after = '99ms'\n").unwrap_err().to_string();
    assert!(wrong.contains("defaults.release_after: it is 99ms; give 100ms or more"), "{wrong}");
    let plan =
        parsed("release_after = '2s'\n[[rule]]\nport = 1\naccept = 'early'\n[[rule]]\nport = 2\n").unwrap();
    let [early, late] = [0, 1].map(|rule: usize| plan.rules[rule].relay.as_ref().unwrap().release_after);
    assert_eq!((early, late), (None, Some(Duration::from_secs(2))));
}
