//! Programs that open several connections tell them apart by the order in which the server sees them come.

use crate::bed::{self, ANYWHERE, Bed, accept, at};
use longfat_relay::RelayPlan;
use std::{
    fs,
    net::{SocketAddr, TcpStream},
    sync::{Mutex, PoisonError},
};

const CONNECTIONS: usize = 100;
const WORKERS: usize = 4;
/// What epoll instances watch is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Opens connections one after another; what the client says first on each, as the server sees them come.
fn order_at_the_server(bed: &Bed, plan: RelayPlan, to: SocketAddr) -> Vec<u8> {
    use std::io::{Read, Write};
    let relay = bed.start(RelayPlan { workers: WORKERS, ..plan });
    let listener = bed.listen(ANYWHERE);
    let open = |number| {
        let mut client = TcpStream::connect(to).unwrap();
        client.write_all(&[number as u8]).unwrap();
        client
    };
    let clients: Vec<TcpStream> = bed.client.run(|| (0..CONNECTIONS).map(open).collect()).unwrap();
    let read = |_| {
        let mut number = [0];
        accept(&listener).read_exact(&mut number).unwrap();
        number[0]
    };
    let order = clients.iter().map(read).collect();
    drop(clients);
    relay.stop();
    order
}

/// How many connections came before the one that was opened before them.
fn exchanged(order: &[u8]) -> usize {
    let place = |number: u8| order.iter().position(|found| *found == number).unwrap();
    (1..CONNECTIONS as u8).filter(|number| place(*number) < place(number - 1)).count()
}

#[test]
fn a_clients_connections_reach_their_server_in_the_order_in_which_it_opened_them() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("order");
    let own = at(&format!("{}:7100", bed::RELAY_V4));
    let held = order_at_the_server(&bed, Bed::after_server(), at(ANYWHERE));
    assert_eq!(exchanged(&held), 0, "after the server: {held:?}");
    // A processor of a busy machine stands still for longer than a dial waits, once in a while.
    for (plan, to) in [(Bed::transparent(), at(ANYWHERE)), (Bed::explicit(at(ANYWHERE)), own)] {
        let order = order_at_the_server(&bed, plan, to);
        assert!(exchanged(&order) <= 1, "{to}: {order:?}");
    }
}

/// The server deals out what comes in to all of its processors, by a hash of addresses and ports.
fn deal_out(bed: &Bed) {
    let processors = std::thread::available_parallelism().unwrap().get().min(32);
    let mask = (1u64 << processors) - 1;
    let set = format!("mount -t sysfs s /sys && echo {mask:x} > /sys/class/net/eth0/queues/rx-0/rps_cpus");
    let mut command = bed.server.command("unshare");
    command.args(["-m", "sh", "-c", &set]);
    longfat_host::run_command(command).unwrap();
}

#[test]
fn so_they_do_where_the_server_deals_packets_out_to_its_processors() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("deal");
    deal_out(&bed);
    let order = |_| order_at_the_server(&bed, Bed::transparent(), at(ANYWHERE));
    let mut rounds: Vec<usize> = (0..5).map(order).map(|order| exchanged(&order)).collect();
    rounds.sort_unstable();
    // Without any relay it is one in 200 to one in 1000: a processor may be late by more than a round trip. When dials
    // do not wait for each other it is one in ten. A processor that stands still spoils a round.
    assert!(rounds[2] <= CONNECTIONS / 25, "{rounds:?} of {CONNECTIONS}");
}

/// How many sockets each epoll instance of this process watches, most first.
fn watched() -> Vec<usize> {
    let of = |entry: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(entry.ok()?.path()).ok()?;
        Some(text.lines().filter(|line| line.starts_with("tfd:")).count())
    };
    let mut counts: Vec<usize> = fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(of).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    counts
}

#[test]
fn what_one_worker_takes_of_a_client_all_of_them_carry() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("share");
    for plan in [Bed::transparent(), Bed::after_server()] {
        let relay = bed.start(RelayPlan { workers: WORKERS, ..plan });
        let listener = bed.listen(ANYWHERE);
        let pairs: Vec<_> = (0..CONNECTIONS).map(|_| bed.pair(&listener, at(ANYWHERE))).collect();
        for (client, far) in &pairs {
            bed::carry(client, far, 10_000);
        }
        let watched = watched();
        let least = 2 * (CONNECTIONS / WORKERS) * 2 / 3;
        assert!(watched[..WORKERS].iter().all(|count| *count >= least), "{:?}", &watched[..WORKERS]);
        drop(pairs);
        relay.stop();
    }
}

/// Connects from an address of the client's.
fn connect_from(own: &str, to: &str) -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrStorage::from(at(&format!("{own}:0")))).unwrap();
    connect(fd.as_raw_fd(), &SockaddrStorage::from(at(to))).unwrap();
    TcpStream::from(fd)
}

#[test]
fn the_worker_that_held_a_syn_carries_its_client_and_clients_are_spread() {
    const CLIENTS: usize = 12;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("holders");
    let relay = bed.start(RelayPlan { workers: WORKERS, ..Bed::after_server() });
    let listener = bed.listen(ANYWHERE);
    let before: usize = watched().iter().sum();
    let clients: Vec<_> = (0..CLIENTS).map(|host| format!("10.71.1.{}", 10 + host)).collect();
    for own in &clients {
        bed.client.ip(&["addr", "add", &format!("{own}/24"), "dev", "eth0"]).unwrap();
    }
    let dial = |own: &String| bed.client.run(|| connect_from(own, ANYWHERE)).unwrap();
    let pairs: Vec<_> = clients.iter().map(|own| (dial(own), accept(&listener))).collect();
    for (client, far) in &pairs {
        bed::carry(client, far, 10_000);
    }
    let watched = watched();
    // Another worker would watch the server's leg, too, that the one which dialled knows already.
    assert_eq!(watched.iter().sum::<usize>() - before, 2 * CLIENTS, "{watched:?}");
    assert!(watched[0] < 2 * CLIENTS, "all of them at one worker: {watched:?}");
    drop(pairs);
    assert_eq!(relay.stop().connections, CLIENTS as u64);
}
