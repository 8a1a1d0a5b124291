use super::*;
use crate::RelayPlan;
use std::net::TcpListener;

#[test]
fn nothing_is_left_of_a_dial_whose_client_comes_before_its_server_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let plan = RelayPlan::explicit("test", "127.0.0.1:1".parse().unwrap(), vec![server]);
    let shared = Shared::new(&plan, None, &()).unwrap();
    let (mut hold, epoll) =
        (Hold::new(0, &shared), Epoll::new(nix::sys::epoll::EpollCreateFlags::EPOLL_CLOEXEC).unwrap());
    for port in 1..100 {
        let pair = (SocketAddr::from(([192, 0, 2, 1], port)), server);
        let verdict = hold.table.on_syn(pair, b"syn", Room::Syn, Instant::now());
        let Verdict::Dial(number) = verdict else { panic!("{verdict:?}") };
        let socket = TcpStream::connect(server).unwrap();
        let (answered, was_reset, rule, holder, begun) = (false, false, 0, 0, Instant::now());
        let dial = Waiting { socket, number, answered, was_reset, rule, holder, begun };
        hold.watch(pair, dial, &epoll).unwrap();
        hold.count();
        assert_eq!((hold.dialing.len(), shared.held.count()), (1, 1));
        let taken = shared.held.take(pair.0, pair.1).unwrap();
        hold.tidy();
        assert_eq!((hold.dialing.len(), shared.held.count()), (0, 0));
        hold.on_event(TOKENS | number, EpollFlags::EPOLLOUT, &epoll, 0);
        drop(taken);
    }
}
