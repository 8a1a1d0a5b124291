use super::*;
use crate::{RelayPlan, keeping::Keeping, observe::journal::Journal, shared::OwnPackets};
use std::net::{SocketAddr, TcpListener};

#[test]
fn nothing_is_left_of_a_dial_whose_client_comes_before_its_server_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let plan = RelayPlan::explicit("test", "127.0.0.1:1".parse().unwrap(), vec![server]);
    let journal = Journal::new(&());
    let (shared, held) = (Shared::new(&plan, OwnPackets::default(), &journal), Held::new(64));
    let keeping = Keeping::new(None, &[]);
    let mut hold = Hold::new(0, &shared, &held, &keeping);
    let epoll = Epoll::new(nix::sys::epoll::EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    for port in 1..100 {
        let pair = (SocketAddr::from(([192, 0, 2, 1], port)), server);
        let verdict = hold.table.on_syn(pair, b"syn", Room::Syn, Instant::now());
        let Verdict::Dial(number) = verdict else { panic!("{verdict:?}") };
        let socket = TcpStream::connect(server).unwrap();
        let (answered, was_reset, rule, holder, begun) = (false, false, 0, 0, Instant::now());
        let dial = Waiting { socket, number, answered, was_reset, rule, holder, begun };
        hold.watch(pair, dial, &epoll).unwrap();
        hold.count();
        assert_eq!((hold.dialing.len(), held.count()), (1, 1));
        let taken = held.take(pair.0, pair.1).unwrap();
        hold.tidy();
        assert_eq!((hold.dialing.len(), held.count()), (0, 0));
        let round = Round { epoll: &epoll, number: 0, is_behind: &|_| false };
        hold.on_event(TOKENS | number, EpollFlags::EPOLLOUT, &round);
        drop(taken);
    }
}

#[test]
fn a_dial_waits_behind_that_of_a_client_of_the_same_port_who_came_before() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = listener.local_addr().unwrap();
    let plan = RelayPlan::explicit("test", "127.0.0.1:1".parse().unwrap(), vec![server]);
    let journal = Journal::new(&());
    let (shared, held) = (Shared::new(&plan, OwnPackets::default(), &journal), Held::new(64));
    let keeping = Keeping::new(None, &[]);
    let mut hold = Hold::new(0, &shared, &held, &keeping);
    let epoll = Epoll::new(nix::sys::epoll::EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let pair = (free_port(), server);
    let is_there = std::cell::Cell::new(true);
    let round = Round { epoll: &epoll, number: 0, is_behind: &|asked| *asked == pair && is_there.get() };
    let Verdict::Dial(number) = hold.table.on_syn(pair, b"syn", Room::Syn, Instant::now()) else { panic!() };
    hold.dial(number, pair, (0, &ConnectionPlan::default()), &round).unwrap();
    for _ in 0..10 {
        std::thread::sleep(std::time::Duration::from_millis(hold.wait_ms(Instant::now()).into()));
        hold.dial_freed(&round);
        assert!(hold.dialing.is_empty() && listener.accept().is_err());
    }
    is_there.set(false);
    while hold.dialing.is_empty() {
        hold.dial_freed(&round);
    }
    listener.set_nonblocking(false).unwrap();
    assert_eq!(listener.accept().unwrap().1, pair.0);
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
