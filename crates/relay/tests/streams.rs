//! What a stream is promised on its way through the relay: every byte, FIN as FIN, reset as reset, bounded memory.

use crate::bed::{
    ANYWHERE, Bed, Noise, Running, accept, at, carry, check_noise, ends_with_reset, exchange,
    exchange_slowly, path::eventually, reset, send_noise,
};
use longfat_host::socket::{self, Buffer};
use longfat_relay::{Ended, RelayPlan};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

fn explicit(tag: &str, change: impl FnOnce(&mut RelayPlan)) -> (Bed, TcpListener, Running) {
    let bed = Bed::new(tag);
    let listener = bed.listen(ANYWHERE);
    let mut plan = Bed::explicit(at(ANYWHERE));
    change(&mut plan);
    let relay = bed.start(plan);
    (bed, listener, relay)
}

#[test]
fn random_bytes_both_ways_at_once_arrive_unchanged() {
    let (bed, listener, relay) = explicit("big", |_| {});
    let (client, far) = bed.pair(&listener, relay.address());
    exchange(&client, &far, 128 << 20);
    assert_eq!(relay.stop().finished, 1);
}

#[test]
fn random_bytes_survive_tiny_buffers_and_tiny_slow_reads() {
    let (bed, listener, relay) = explicit("tiny", |plan| {
        plan.defaults_mut().client.buffer_bytes = 8192;
        plan.defaults_mut().server.buffer_bytes = 8192;
        plan.defaults_mut().server.notsent_lowat_bytes = 1;
        plan.defaults_mut().client.notsent_lowat_bytes = 1;
    });
    socket::set_buffer(&listener, Buffer::Receive, 4096).unwrap();
    let (client, far) = bed.pair(&listener, relay.address());
    exchange_slowly(&client, &far, 1 << 20, 1013, Duration::from_micros(50));
    assert_eq!(relay.stop().finished, 1);
}

#[test]
fn each_side_may_finish_sending_and_go_on_receiving() {
    let (bed, listener, relay) = explicit("half", |_| {});
    for client_first in [true, false] {
        let (client, far) = bed.pair(&listener, relay.address());
        let (first, second) = if client_first { (&client, &far) } else { (&far, &client) };
        carry(first, second, 100_000);
        // The other direction is used only after that, with a pause.
        std::thread::sleep(Duration::from_millis(300));
        carry(second, first, 4 << 20);
    }
    let notes = std::sync::Arc::clone(&relay.notes);
    assert_eq!(relay.stop().finished, 2);
    assert!(notes.closed.lock().unwrap().iter().all(|end| end.ended == Ended::Finished));
}

#[test]
fn a_connection_that_lasts_is_probed_at_both_ends() {
    let (bed, listener, relay) = explicit("probe", |_| {});
    let probed = || {
        let output = bed.relay.command("ss").args(["-Htno", "state", "established"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).matches("timer:(keepalive").count()
    };
    let silent = bed.pair(&listener, relay.address());
    eventually("a silent connection's legs are probed", || probed() == 2);
    drop(silent);
    assert_eq!(relay.stop().connections, 1);
}

#[test]
fn a_reset_at_the_start_is_a_reset_on_the_other_side() {
    let (bed, listener, relay) = explicit("rst0", |_| {});
    let (client, far) = bed.pair(&listener, relay.address());
    reset(client);
    assert!(ends_with_reset(&far));
    let (client, far) = bed.pair(&listener, relay.address());
    reset(far);
    assert!(ends_with_reset(&client));
    assert_eq!(relay.stop().reset, 2);
}

#[test]
fn a_reset_in_the_middle_of_a_transfer_is_a_reset_on_the_other_side() {
    let (bed, listener, relay) = explicit("rst1", |_| {});
    for client_resets in [true, false] {
        let (client, far) = bed.pair(&listener, relay.address());
        let (mut near, other) = if client_resets { (client, far) } else { (far, client) };
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| ends_with_reset(&other));
            let (mut noise, mut block) = (Noise::new(1), vec![0; 1 << 20]);
            for _ in 0..8 {
                noise.fill(&mut block);
                near.write_all(&block).unwrap();
            }
            reset(near);
            assert!(reader.join().unwrap(), "client resets: {client_resets}");
        });
    }
    assert_eq!(relay.stop().reset, 2);
}

#[test]
fn a_reset_after_a_fin_is_a_reset_on_the_other_side() {
    let (bed, listener, relay) = explicit("rst2", |_| {});
    for client_resets in [true, false] {
        let (client, far) = bed.pair(&listener, relay.address());
        let (near, other) = if client_resets { (client, far) } else { (far, client) };
        other.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&near).read(&mut [0; 8]).unwrap(), 0);
        reset(near);
        assert!(ends_with_reset(&other), "client resets: {client_resets}");
    }
    assert_eq!(relay.stop().reset, 2);
}

#[test]
fn a_last_answer_before_a_reset_still_arrives() {
    let (bed, listener, relay) = explicit("last", |_| {});
    for _ in 0..50 {
        let (mut client, mut far) = bed.pair(&listener, relay.address());
        client.write_all(b"a request nobody reads").unwrap();
        std::thread::sleep(Duration::from_millis(1));
        far.write_all(b"413 too large").unwrap();
        // Closed with the request unread: the kernel sends a reset after the answer.
        drop(far);
        let mut answer = [0; 13];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"413 too large");
    }
    relay.stop();
}

#[test]
fn a_reset_does_not_wait_for_ever_behind_a_peer_that_does_not_read() {
    let (bed, listener, relay) = explicit("dead", |plan| plan.reset_wait = Duration::from_millis(300));
    let (client, far) = bed.pair(&listener, relay.address());
    fill(&client);
    reset(client);
    eventually("the connection ends", || !relay.notes.closed.lock().unwrap().is_empty());
    assert_eq!(relay.notes.closed.lock().unwrap()[0].ended, Ended::ResetByClient);
    assert!(ends_with_reset(&far));
}

#[test]
fn a_refused_server_is_a_reset_to_the_client() {
    // A port where nothing has ever listened: a listener just closed may live on in another test's forked child.
    let bed = Bed::new("ref");
    let relay = bed.start(Bed::explicit(at("10.71.2.2:9001")));
    // Early accept: the client may have a connection for a moment.
    let refused = match bed.try_connect(relay.address()) {
        Ok(client) => ends_with_reset(&client),
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    assert!(refused);
    let stats = relay.stop();
    assert_eq!(stats.unreachable, 1, "{stats:?}");
}

#[test]
fn the_servers_addresses_are_tried_in_order() {
    let bed = Bed::new("try");
    let listener = bed.listen("[fd71:2::2]:9000");
    let mut plan = Bed::explicit(at(ANYWHERE));
    plan.listeners[0].to.push(at("[fd71:2::2]:9000"));
    let relay = bed.start(plan);
    let (client, far) = bed.pair(&listener, relay.address());
    exchange(&client, &far, 1 << 20);
    assert_eq!(relay.stop().finished, 1);
}

#[test]
fn hundreds_of_connections_at_once_each_get_their_own_bytes() {
    const CONNECTIONS: u64 = 256;
    let (bed, listener, relay) = explicit("many", |_| {});
    let address = relay.address();
    std::thread::scope(|scope| {
        for seed in 0..CONNECTIONS {
            let client = bed.connect(address);
            let far = accept(&listener);
            let body = 40_000 + seed as usize * 100;
            scope.spawn(move || {
                send_noise(&client, seed, body);
                assert_eq!(check_noise(&client, seed + 1000), 10_000);
            });
            scope.spawn(move || {
                assert_eq!(check_noise(&far, seed), body);
                send_noise(&far, seed + 1000, 10_000);
            });
        }
    });
    assert_eq!(relay.stop().finished, CONNECTIONS);
}

/// Writes until nothing more is taken for a while.
fn fill(client: &TcpStream) {
    let mut client = client;
    client.set_nonblocking(true).unwrap();
    let (block, mut quiet_since) = (vec![7; 1 << 16], Instant::now());
    while quiet_since.elapsed() < Duration::from_millis(700) {
        match client.write(&block) {
            Ok(_) => quiet_since = Instant::now(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(error) => panic!("{error}"),
        }
    }
    client.set_nonblocking(false).unwrap();
}

#[test]
fn a_server_that_never_reads_costs_the_relay_no_more_than_its_buffers() {
    const BUFFER: u64 = 512 << 10;
    const SERVER_BUFFER: u64 = 256 << 10;
    let (bed, listener, relay) = explicit("mem", |plan| {
        plan.defaults_mut().client.buffer_bytes = BUFFER;
        plan.defaults_mut().server.buffer_bytes = BUFFER;
    });
    socket::set_buffer(&listener, Buffer::Receive, SERVER_BUFFER).unwrap();
    let (client, far) = bed.pair(&listener, relay.address());
    fill(&client);
    let taken = socket::tcp_info(&client).unwrap().acked_bytes;
    // Receive buffer of the client's leg, one pipe, send buffer of the server's leg, the server's own buffer.
    let bound = BUFFER + (256 << 10) + BUFFER + SERVER_BUFFER;
    assert!(taken > 256 << 10 && taken <= bound, "{taken} bytes taken, bound {bound}");
    drop(client);
    let rest = std::io::copy(&mut &far, &mut std::io::sink()).unwrap();
    assert!(rest >= taken - 1, "what was acknowledged is delivered: {rest} of {taken}");
}

#[test]
fn a_stop_lets_a_transfer_finish_and_resets_what_outlives_the_drain() {
    let (bed, listener, relay) = explicit("drn", |plan| plan.drain = Duration::from_secs(8));
    let (client, far) = bed.pair(&listener, relay.address());
    let (idle, idle_far) = bed.pair(&listener, relay.address());
    // Who connected before the relay had heard of its end.
    let mut early = 0;
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            assert_eq!(check_noise(&far, 1), 32 << 20);
            send_noise(&far, 2, 10);
        });
        let (mut noise, mut block) = (Noise::new(1), vec![0; 16 << 20]);
        noise.fill(&mut block);
        (&client).write_all(&block).unwrap();
        relay.ask_to_stop();
        while bed.try_connect(relay.address()).is_ok() {
            early += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        noise.fill(&mut block);
        (&client).write_all(&block).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        server.join().unwrap();
        assert_eq!(check_noise(&client, 2), 10);
    });
    assert!(ends_with_reset(&idle) && ends_with_reset(&idle_far));
    let stats = relay.stop();
    assert!(
        (1..=1 + early).contains(&stats.finished) && (1..=1 + early).contains(&stats.stopped),
        "{stats:?}"
    );
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let (bed, listener, relay) = explicit("ban", |plan| plan.workers = 1);
    let server = std::thread::spawn(move || {
        for _ in 0..400 {
            let mut far = accept(&listener);
            far.write_all(b"220 ready").unwrap();
        }
    });
    // In bursts, so that the greeting is there when the relay looks at the new connection.
    for _ in 0..10 {
        let clients: Vec<_> = (0..40).map(|_| bed.connect(relay.address())).collect();
        for mut client in clients {
            let mut greeting = String::new();
            client.read_to_string(&mut greeting).unwrap();
            assert_eq!(greeting, "220 ready");
        }
    }
    server.join().unwrap();
    relay.stop();
}

#[test]
fn a_server_that_answers_and_resets_at_once_is_heard_and_then_seen_to_reset() {
    let (bed, listener, relay) = explicit("ans", |plan| plan.workers = 1);
    let server = std::thread::spawn(move || {
        for _ in 0..200 {
            let mut far = accept(&listener);
            far.write_all(b"421 busy").unwrap();
            reset(far);
        }
    });
    let mut heard = 0;
    for _ in 0..5 {
        // The reset may be there before the client's own connect returns, which then reports it.
        let clients: Vec<_> = (0..40).filter_map(|_| bed.try_connect(relay.address()).ok()).collect();
        for mut client in clients {
            let mut answer = [0; 8];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"421 busy");
            assert!(ends_with_reset(&client));
            heard += 1;
        }
    }
    assert!(heard > 100, "{heard} of 200");
    server.join().unwrap();
    assert_eq!(relay.stop().reset, 200);
}

fn urge(stream: &TcpStream, byte: u8) -> usize {
    use nix::sys::socket::{MsgFlags, send};
    send(std::os::fd::AsRawFd::as_raw_fd(stream), &[byte], MsgFlags::MSG_OOB).unwrap()
}

/// A reading stops before urgent data, and says nothing about what is behind.
#[test]
fn urgent_data_holds_nothing_up() {
    let (bed, listener, relay) = explicit("urgent", |_| {});
    let (mut client, mut far) = bed.pair(&listener, relay.address());
    for _ in 0..50 {
        client.write_all(b"before").unwrap();
        assert_eq!(urge(&client, b'!'), 1);
        client.write_all(b"after").unwrap();
        let mut got = [0; 11];
        far.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"beforeafter");
    }
    drop((client, far));
    assert_eq!(relay.stop().connections, 1);
}

/// A bulk transfer, piece by piece, that neither ends nor is answered; `after` each piece and its pause.
fn send_in_pieces(
    mut near: &TcpStream,
    pieces: usize,
    piece_bytes: usize,
    pause: Duration,
    mut after: impl FnMut(),
) -> Vec<u8> {
    let (mut noise, mut sent) = (Noise::new(3), vec![0; pieces * piece_bytes]);
    noise.fill(&mut sent);
    for piece in sent.chunks(piece_bytes) {
        near.write_all(piece).unwrap();
        std::thread::sleep(pause);
        after();
    }
    sent
}

/// A bulk transfer that stops short of what would wake the relay; how often a piece and more had been acknowledged by
/// it and had not arrived.
fn times_gathered(near: &TcpStream, mut other: &TcpStream) -> usize {
    const PIECE: usize = 130_003;
    let (mut got, arrived, mut times) = (vec![0; 300 * PIECE], AtomicUsize::new(0), 0);
    let mut look = || {
        let acked = socket::tcp_info(near).unwrap().acked_bytes as usize;
        times += usize::from(acked > arrived.load(Ordering::Relaxed) + PIECE);
    };
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_in_pieces(near, 300, PIECE, Duration::from_millis(1), &mut look));
        let mut count = 0;
        while count < got.len() {
            count += other.read(&mut got[count..]).unwrap();
            arrived.store(count, Ordering::Relaxed);
        }
        sender.join().unwrap()
    });
    assert!(got == sent);
    times
}

#[test]
fn bulk_data_that_stop_short_of_what_would_wake_the_relay_arrive_all_the_same() {
    let (bed, listener, relay) = explicit("gpause", |plan| gathers(plan, Duration::from_millis(20)));
    for client_sends in [true, false] {
        let (client, far) = bed.pair(&listener, relay.address());
        let (near, other) = if client_sends { (&client, &far) } else { (&far, &client) };
        let times = times_gathered(near, other);
        assert!(times > 60, "nothing gathered: {times} times of 300, client sends: {client_sends}");
    }
}

/// What makes gathered data move before their time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Prompt {
    Fin,
    Answer,
    /// An urgent byte.
    Mark,
}

/// At 320 kB/s a transfer is bulk after three seconds, and what comes then may gather for as long as this.
const GATHER: Duration = Duration::from_secs(10);

/// Reads what comes until nothing has come for a while after the sender has sent all; how much it was.
fn read_until_still(mut other: &TcpStream, got: &mut [u8], is_sent: impl Fn() -> bool) -> usize {
    let (mut count, mut still) = (0, 0);
    other.set_nonblocking(true).unwrap();
    while still < 100 {
        match other.read(&mut got[count..]) {
            Ok(0) => break,
            Ok(bytes) => (count, still) = (count + bytes, 0),
            Err(_) => {
                still += u32::from(is_sent());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    other.set_nonblocking(false).unwrap();
    count
}

/// Bulk data gather, also of a rate at which the queue would be kept short.
fn gathers(plan: &mut RelayPlan, length: Duration) {
    plan.coalesce = length;
    plan.defaults_mut().queue = None;
}

fn gather_until(prompt: Prompt, near: &TcpStream, mut other: &TcpStream) {
    const PIECES: usize = 90;
    let mut got = vec![0; PIECES * (16 << 10)];
    let (sent, early) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_in_pieces(near, PIECES, 16 << 10, Duration::from_millis(50), || {}));
        let early = read_until_still(other, &mut got, || sender.is_finished());
        (sender.join().unwrap(), early)
    });
    assert!(early < sent.len(), "nothing gathered: {prompt:?}");
    let prompted = Instant::now();
    match prompt {
        Prompt::Fin => near.shutdown(Shutdown::Write).unwrap(),
        Prompt::Answer => other.write_all(b"x").unwrap(),
        Prompt::Mark => assert_eq!(urge(near, b'!'), 1),
    }
    other.read_exact(&mut got[early..]).unwrap();
    assert!(prompted.elapsed() < GATHER / 2, "they waited for their time: {prompt:?}");
    assert!(got == sent, "{prompt:?}");
}

#[test]
fn bulk_data_gather_and_a_fin_a_mark_or_an_answer_moves_them_at_once() {
    let (bed, listener, relay) = explicit("gather", |plan| gathers(plan, GATHER));
    std::thread::scope(|scope| {
        for (client_sends, prompt) in
            [true, false].into_iter().flat_map(|c| [(c, Prompt::Fin), (c, Prompt::Answer), (c, Prompt::Mark)])
        {
            let (client, far) = bed.pair(&listener, relay.address());
            let (near, other) = if client_sends { (client, far) } else { (far, client) };
            scope.spawn(move || gather_until(prompt, &near, &other));
        }
    });
}
