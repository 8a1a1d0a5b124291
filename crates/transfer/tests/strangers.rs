//! What a server bears of peers that mean no good: it outlives them, stays small and serves the next client.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod ends;

use ends::{ServerProcess, Serving, bytes_plan, send_options, sent, serve_options, server_program};
use longfat_host::Key;
use longfat_transfer::{
    Amount, Limits, Outcome, Protocol, ServeObserver, Server, TransferPlan, control,
    datagram::{Datagram, HEADER_BYTES, Kind},
    ends::SourceEnd,
    preamble::Preamble,
    send,
};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::Command,
    sync::Mutex,
    time::{Duration, Instant},
};

/// No figure of a test below may be larger.
const RESIDENT_MAX_KB: u64 = 64 << 10;

/// A server process with at most so much of a resource.
fn server_with(resource: Resource, limit: u64) -> ServerProcess {
    let mut command = Command::new(server_program());
    let limited = move || setrlimit(resource, limit, limit).map_err(std::io::Error::from);
    // SAFETY: between fork and exec only setrlimit is called, which is async-signal-safe.
    unsafe { command.pre_exec(limited) };
    ServerProcess::start(command, "0.0.0.0:0")
}

fn server() -> ServerProcess {
    ServerProcess::start(Command::new(server_program()), "0.0.0.0:0")
}

fn connected(server: &ServerProcess) -> TcpStream {
    TcpStream::connect(("127.0.0.1", server.port)).unwrap()
}

/// Connected from one of loopback's many addresses.
fn connected_from(server: &ServerProcess, host: u16) -> TcpStream {
    let [high, low] = host.to_be_bytes();
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let at = |ip: Ipv4Addr, port| SockaddrIn::from(std::net::SocketAddrV4::new(ip, port));
    bind(socket.as_raw_fd(), &at(Ipv4Addr::new(127, 0, high, low), 0)).unwrap();
    connect(socket.as_raw_fd(), &at(Ipv4Addr::LOCALHOST, server.port)).unwrap();
    TcpStream::from(socket)
}

fn serves_the_next_client(server: &mut ServerProcess) {
    assert!(server.is_alive());
    sent(format!("127.0.0.1:{}", server.port), bytes_plan(1_000_000));
    assert!(server.is_alive());
}

/// A hello of a sound plan.
fn hello(plan: &TransferPlan) -> Vec<u8> {
    let version = control::PROTOCOL_VERSION;
    framed(
        &serde_json::json!({ "message": "hello", "version": version, "nonce": "00", "plan": plan })
            .to_string(),
    )
}

/// A hello whose plan is a list of so many numbers.
fn hello_of_numbers(count: usize) -> Vec<u8> {
    let (version, numbers) = (control::PROTOCOL_VERSION, "0,".repeat(count));
    framed(&format!(r#"{{"message":"hello","version":{version},"plan":[{numbers}0]}}"#))
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn more_idle_connections_than_descriptors_end_no_server_and_keep_nobody_out() {
    let mut server = server_with(Resource::RLIMIT_NOFILE, 256);
    let _idle: Vec<_> = (0..600).map(|_| connected(&server)).collect();
    serves_the_next_client(&mut server);
}

#[test]
fn a_server_that_may_open_nothing_more_for_a_while_serves_those_who_wait_afterwards() {
    let mut server = server_with(Resource::RLIMIT_NOFILE, 256);
    let limit = |descriptors: u64| {
        let limit = libc::rlimit { rlim_cur: descriptors, rlim_max: 256 };
        // SAFETY: the child is not waited for yet, so the pid is its own; the limit outlives the call.
        let set = unsafe {
            libc::prlimit(
                server.child.id() as i32,
                libc::RLIMIT_NOFILE,
                &raw const limit,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(set, 0);
    };
    limit(3);
    let idle = connected(&server);
    let waiting = std::thread::spawn({
        let to = format!("127.0.0.1:{}", server.port);
        move || sent(to, bytes_plan(1_000_000))
    });
    std::thread::sleep(Duration::from_millis(500));
    limit(256);
    waiting.join().unwrap();
    drop(idle);
    serves_the_next_client(&mut server);
}

#[test]
fn a_host_that_has_no_thread_for_a_transfer_refuses_it_and_nothing_else() {
    // Stacks of 2 MiB: some dozens fit.
    let mut server = server_with(Resource::RLIMIT_AS, 150 << 20);
    let _idle: Vec<_> = (0..300).map(|_| connected(&server)).collect();
    serves_the_next_client(&mut server);
    let plan = TransferPlan { timeout_us: 60_000_000, ..TransferPlan::default() };
    let asking: Vec<_> = (0..100)
        .map(|_| {
            let mut socket = connected(&server);
            socket.write_all(&hello(&plan)).unwrap();
            socket
        })
        .collect();
    let answers: Vec<_> = asking.iter().map(first_answer).collect();
    assert!(answers.iter().any(|answer| answer.contains("welcome")), "{answers:?}");
    assert!(answers.iter().any(|answer| answer.contains("start a thread")), "{answers:?}");
    drop(asking);
    // The threads of those who are gone end within a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    let to = format!("127.0.0.1:{}", server.port);
    while send(&send_options(&to, bytes_plan(1000)), &()).is_err() {
        assert!(Instant::now() < deadline && server.is_alive());
    }
    serves_the_next_client(&mut server);
}

/// The first message that is neither a question nor an answer about time.
fn first_answer(mut socket: &TcpStream) -> String {
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    loop {
        let mut length = [0; 4];
        socket.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        socket.read_exact(&mut body).unwrap();
        let text = String::from_utf8(body).unwrap();
        if !text.contains(r#""message":"p"#) {
            return text;
        }
    }
}

#[test]
fn ten_thousand_idle_peers_cost_little_memory_and_the_next_client_is_served() {
    let mut server = server();
    // Half of them from one address, half from a thousand.
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let peers = 10_000.min(soft.saturating_sub(200)) as usize;
    assert!(peers >= 800, "ulimit -n {soft} leaves too few peers for a trial");
    let _idle: Vec<_> =
        (0..peers)
            .map(|at| {
                if at % 2 == 0 { connected(&server) } else { connected_from(&server, (at % 2000) as u16 + 2) }
            })
            .collect();
    serves_the_next_client(&mut server);
    let resident_kb = server.status_kb("VmHWM");
    println!("{peers} idle peers: {resident_kb} kB resident at most");
    assert!(resident_kb < RESIDENT_MAX_KB, "{resident_kb} kB");
}

#[test]
fn hellos_of_a_megabyte_and_halves_of_them_are_turned_away_before_they_cost_memory() {
    let mut server = server();
    let long = hello_of_numbers(500_000);
    let mut open = Vec::new();
    for at in 0..640 {
        let mut socket = connected_from(&server, at % 50 + 2);
        // Forty whole ones, six hundred that lack their last byte. The server may hang up in the middle.
        let _ = socket.write_all(if at < 40 { &long } else { &long[..long.len() - 1] });
        open.push(socket);
    }
    serves_the_next_client(&mut server);
    let resident_kb = server.status_kb("VmHWM");
    println!("hellos of a megabyte: {resident_kb} kB resident at most");
    assert!(resident_kb < RESIDENT_MAX_KB, "{resident_kb} kB");
}

#[test]
fn partial_hellos_of_the_longest_kind_from_many_peers_fit_into_little_memory() {
    let mut server = server();
    let long = hello_of_numbers(4000);
    assert!(long.len() < control::HELLO_MAX_BYTES + 4, "{}", long.len());
    let open: Vec<_> = (0..3000u16)
        .map(|at| {
            let mut socket = connected_from(&server, at % 500 + 2);
            let _ = socket.write_all(&long[..long.len() - 1]);
            socket
        })
        .collect();
    serves_the_next_client(&mut server);
    let resident_kb = server.status_kb("VmHWM");
    println!("{} partial hellos: {resident_kb} kB resident at most", open.len());
    assert!(resident_kb < RESIDENT_MAX_KB, "{resident_kb} kB");
}

/// What a server shall send as fast as it may.
fn flood() -> TransferPlan {
    TransferPlan {
        protocol: Protocol::Udp,
        reverse: true,
        amount: Amount::DurationUs(20_000_000),
        rate_bps: Some(100_000_000),
        timeout_us: 3_600_000_000,
        ..TransferPlan::default()
    }
}

/// A client that says what it likes.
struct Scripted {
    control: TcpStream,
    server: u16,
    transfer: u64,
    token: u128,
    /// The UDP port of the first stream, if it has one of its own.
    port: u16,
}

impl Scripted {
    /// Has brought its plan and been welcomed.
    fn welcomed(server: SocketAddr, plan: &TransferPlan) -> Scripted {
        let port = server.port();
        let mut control = TcpStream::connect(("127.0.0.1", port)).unwrap();
        control.write_all(&hello(plan)).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&first_answer(&control)).unwrap();
        let token = u128::from_str_radix(answer["token"].as_str().unwrap(), 16).unwrap();
        let transfer = answer["transfer"].as_u64().unwrap();
        let data = answer["ports"][0].as_u64().unwrap_or(0) as u16;
        Scripted { control, server: port, transfer, token, port: data }
    }

    fn datagram(&self, kind: Kind, sequence: u64) -> [u8; HEADER_BYTES] {
        Datagram { kind, token: self.token as u64, sequence, time_ns: 0 }.encode()
    }

    /// Says hello from `socket` and answers the challenge.
    fn greet(&self, socket: &UdpSocket) {
        socket.connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.send(&self.datagram(Kind::Hello, 0)).unwrap();
        let mut bytes = [0; 2048];
        let count = socket.recv(&mut bytes).unwrap();
        let challenge = Datagram::decode(&bytes[..count]).unwrap();
        assert_eq!((challenge.kind, count), (Kind::Challenge, HEADER_BYTES));
        socket.send(&self.datagram(Kind::Answer, challenge.sequence)).unwrap();
    }
}

/// How many datagrams and bytes arrive until nothing has for `quiet`, or until `patience` is over.
fn arrived(socket: &UdpSocket, quiet: Duration, patience: Duration) -> (usize, usize) {
    socket.set_read_timeout(Some(quiet)).unwrap();
    let (deadline, mut bytes) = (Instant::now() + patience, [0; 2048]);
    let (mut datagrams, mut sum) = (0, 0);
    while Instant::now() < deadline
        && let Ok(count) = socket.recv(&mut bytes)
    {
        (datagrams, sum) = (datagrams + 1, sum + count);
    }
    (datagrams, sum)
}

#[test]
fn who_has_asked_for_nothing_gets_no_more_than_what_was_sent_in_his_name() {
    let server = Serving::on("0.0.0.0:0");
    let mut attacker = Scripted::welcomed(server.address, &flood());
    // The attacker forges this source address, so that it never sees what goes there.
    let victim = UdpSocket::bind("127.0.0.9:0").unwrap();
    let mut sent_bytes = 0;
    for guess in 0..100 {
        for forged in [attacker.datagram(Kind::Hello, 0), attacker.datagram(Kind::Answer, guess)] {
            sent_bytes += victim.send_to(&forged, ("127.0.0.1", attacker.port)).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    attacker.control.write_all(&framed(r#"{"message":"start"}"#)).unwrap();
    let (datagrams, bytes) = arrived(&victim, Duration::from_millis(500), Duration::from_secs(3));
    assert!(datagrams <= 16 && bytes < sent_bytes, "{datagrams} datagrams, {bytes} bytes for {sent_bytes}");
    assert!(datagrams > 0, "not even a challenge: a client behind another address could not answer");
    let to = format!("127.0.0.1:{}", attacker.server);
    sent(to, bytes_plan(1000));
}

#[test]
fn datagrams_end_with_the_control_connection_and_with_its_silence() {
    let mut options = serve_options("0.0.0.0:0");
    options.limits.udp_silence_us = 1_000_000;
    let server = Serving::with(options);
    for hangs_up in [true, false] {
        let mut client = Scripted::welcomed(server.address, &flood());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.greet(&socket);
        assert!(first_answer(&client.control).contains("ready"));
        client.control.write_all(&framed(r#"{"message":"start"}"#)).unwrap();
        let (datagrams, _) = arrived(&socket, Duration::from_secs(5), Duration::from_millis(300));
        assert!(datagrams > 0);
        let silent = if hangs_up {
            drop(client);
            None
        } else {
            Some(client)
        };
        // The plan has datagrams for twenty seconds.
        let begun = Instant::now();
        arrived(&socket, Duration::from_secs(1), Duration::from_secs(30));
        assert!(begun.elapsed() < Duration::from_secs(12), "hangs up: {hangs_up}");
        drop(silent);
    }
}

#[test]
fn only_who_has_the_key_is_served_and_only_a_server_that_has_it_is_used() {
    let key = |byte: u8| Some(Key::new(&[byte; 32]).unwrap());
    let mut options = serve_options("127.0.0.1:0");
    options.key = key(1);
    let (closed, open) = (Serving::with(options), Serving::on("127.0.0.1:0"));
    let outcome = |server: &Serving, key, reverse| {
        let mut options = send_options(server.address, TransferPlan { reverse, ..bytes_plan(100_000) });
        options.key = key;
        send(&options, &()).map(|outcome| assert!(outcome.is_complete(), "{:?}", outcome.errors()))
    };
    for reverse in [false, true] {
        outcome(&closed, key(1), reverse).unwrap();
    }
    let said = |server, key| outcome(server, key, false).unwrap_err().to_string();
    assert!(said(&closed, None).contains("--key FILE"), "{}", said(&closed, None));
    assert!(said(&closed, key(2)).contains("another key"), "{}", said(&closed, key(2)));
    assert!(said(&open, key(1)).contains("not proven"), "{}", said(&open, key(1)));
    outcome(&closed, key(1), false).unwrap();
}

#[test]
fn who_has_no_key_costs_no_thread_and_goes_after_a_while() {
    let mut options = serve_options("127.0.0.1:0");
    options.key = Some(Key::new(&[1; 32]).unwrap());
    options.timeout = Duration::from_millis(500);
    let server = Serving::with(options);
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.write_all(&hello(&TransferPlan::default())).unwrap();
    assert!(first_answer(&socket).contains("challenge"));
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
    assert_eq!(server.end().transfers, 0);
}

/// Most streams of one peer of a server with the usual limits.
const STREAMS: u32 = 512;

#[test]
fn a_crowd_of_strangers_keeps_none_of_many_data_connections_out() {
    let mut server = server();
    let address = SocketAddr::from(([127, 0, 0, 1], server.port));
    let plan = TransferPlan { streams: STREAMS, ..TransferPlan::default() };
    let client = Scripted::welcomed(address, &plan);
    let data: Vec<_> = (0..STREAMS).map(|_| connected(&server)).collect();
    let _crowd: Vec<_> = (0..3000).map(|at| connected_from(&server, at % 1500 + 2)).collect();
    for (stream, mut socket) in (0..).zip(&data) {
        let preamble = Preamble { transfer: client.transfer, token: client.token, stream };
        socket.write_all(&preamble.encode()).unwrap();
    }
    assert!(first_answer(&client.control).contains("ready"));
    assert!(server.is_alive());
    drop(client);
    // This peer has streams again when the server has seen the end of those.
    let (next, patience) = (send_options(address, bytes_plan(1)), Instant::now() + Duration::from_secs(60));
    while let Err(refused) = send(&next, &()) {
        assert!(
            refused.to_string().contains("streams at this server") && Instant::now() < patience,
            "{refused}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    serves_the_next_client(&mut server);
}

#[test]
fn data_connections_without_the_token_are_closed_at_once_and_take_no_streams_place() {
    let server = Serving::on("127.0.0.1:0");
    let plan = TransferPlan { streams: 2, ..TransferPlan::default() };
    let client = Scripted::welcomed(server.address, &plan);
    let Scripted { transfer, token, .. } = client;
    let show = |transfer, token, stream| {
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.write_all(&Preamble { transfer, token, stream }.encode()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    };
    let is_closed = |mut socket: TcpStream| socket.read(&mut [0]).is_ok_and(|count| count == 0);
    let first = show(transfer, token, 0);
    for wrong in [
        show(transfer, token ^ 1, 1),
        show(transfer + 1, token, 1),
        show(transfer, token, 2),
        show(transfer, 0, 0),
    ] {
        assert!(is_closed(wrong));
    }
    let _second = show(transfer, token, 1);
    assert!(first_answer(&client.control).contains("ready"));
    assert!(is_closed(show(transfer, token, 0)), "it waits for nothing any more");
    drop(first);
}

#[test]
fn half_a_preamble_is_waited_for_no_longer_than_for_a_hello() {
    let mut options = serve_options("127.0.0.1:0");
    options.timeout = Duration::from_millis(500);
    let server = Serving::with(options);
    for beginning in [&b"LF"[..], b"LFda", b"LFda\0\0\0\x05\0\0"] {
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.write_all(beginning).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let ended = socket.read(&mut [0]);
        let is_over =
            ended.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |n| *n == 0);
        assert!(is_over, "{ended:?}");
    }
}

/// A server that allows little.
fn strict(change: impl FnOnce(&mut Limits)) -> Serving {
    let mut options = serve_options("127.0.0.1:0");
    change(&mut options.limits);
    Serving::with(options)
}

#[test]
fn plans_beyond_what_a_server_allows_are_refused_by_the_name_of_its_option() {
    let said =
        |server: &Serving, plan| send(&send_options(server.address, plan), &()).unwrap_err().to_string();
    let slow = strict(|limits| limits.udp_rate_bps = 100_000_000);
    let text = said(&slow, flood());
    assert!(text.contains("50000000 bit/s of datagrams") && text.contains("--max-udp-rate"), "{text}");
    let short = strict(|limits| limits.duration_us = 1_000_000);
    let text = said(&short, TransferPlan { timeout_us: 500_000, drain_us: 0, ..TransferPlan::default() });
    assert!(text.contains("--max-duration"), "{text}");
    let small = strict(|limits| limits.bytes = 1_000_000);
    assert!(said(&small, bytes_plan(1_000_001)).contains("--max-bytes"));
    sent(small.address, TransferPlan { streams: 3, ..bytes_plan(1_000_000) });
}

#[test]
fn what_a_plan_does_not_say_is_held_to_the_limits_while_it_runs() {
    for reverse in [false, true] {
        let small = strict(|limits| limits.bytes = 1_000_000);
        let plan =
            TransferPlan { amount: Amount::DurationUs(20_000_000), reverse, verify: false, ..bytes_plan(1) };
        let outcome = send(&send_options(small.address, plan), &()).unwrap();
        let errors = outcome.errors().join("; ");
        assert!(!outcome.is_complete() && outcome.sinks.iter().all(|sink| sink.received_bytes < 50_000_000));
        assert!(errors.contains("allows a stream 1000000 (--max-bytes)"), "{errors}");
        let short = strict(|limits| limits.duration_us = 1_500_000);
        let plan = TransferPlan {
            rate_bps: Some(8_000_000),
            reverse,
            drain_us: 100_000,
            timeout_us: 1_200_000,
            ..bytes_plan(100_000_000)
        };
        let begun = Instant::now();
        let outcome = send(&send_options(short.address, plan), &()).unwrap();
        let errors = outcome.errors().join("; ");
        assert!(errors.contains("--max-duration"), "{errors}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

/// What a stranger shall send, without end.
fn slow_upload() -> TransferPlan {
    TransferPlan { reverse: false, timeout_us: 3_600_000_000, ..flood() }
}

/// A client of [`slow_upload`] whose data socket is known.
fn agreed(server: SocketAddr, plan: &TransferPlan) -> (Scripted, UdpSocket) {
    let client = Scripted::welcomed(server, plan);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", client.port)).unwrap();
    socket.send(&client.datagram(Kind::Hello, 0)).unwrap();
    assert!(first_answer(&client.control).contains("ready"));
    (client, socket)
}

#[test]
fn who_reads_nothing_of_what_it_is_told_keeps_no_server_from_ending() {
    let server = Serving::on("127.0.0.1:0");
    let (client, _socket) = agreed(server.address, &slow_upload());
    let mut control = client.control.try_clone().unwrap();
    control.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let pings = framed(r#"{"message":"ping","time_us":1}"#).repeat(1000);
    // Until nothing more is taken of it: the answers fill the buffers of both ends.
    while control.write_all(&pings).is_ok() {}
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(server.end()));
    let served = end.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!((served.transfers, served.failed), (1, 1));
}

#[test]
fn a_transfer_that_never_starts_ends_within_what_the_server_allows() {
    let server = strict(|limits| limits.duration_us = 1_500_000);
    let short = TransferPlan {
        amount: Amount::DurationUs(1_000_000),
        drain_us: 0,
        timeout_us: 1_400_000,
        ..slow_upload()
    };
    let (mut client, _socket) = agreed(server.address, &short);
    std::thread::sleep(Duration::from_millis(700));
    client.control.write_all(&framed(r#"{"message":"ping","time_us":1}"#)).unwrap();
    let said = first_answer(&client.control);
    assert!(said.contains("did not start") && said.contains("--max-duration"), "{said}");
}

/// Remembers what it was told at the end.
#[derive(Default)]
struct Errors(Mutex<Vec<String>>);

impl ServeObserver for Errors {
    fn ended(&self, _: SocketAddr, outcome: &Outcome) {
        let mut said = self.0.lock().unwrap();
        said.extend(outcome.errors());
        said.extend(outcome.flows.iter().map(|flow| flow.cc_sender.clone()));
    }
}

#[test]
fn what_a_client_says_of_its_streams_is_short_and_of_one_line() {
    let mut options = serve_options("127.0.0.1:0");
    options.once = true;
    let server = Server::bind(options).unwrap();
    let address = server.address();
    let errors = Errors::default();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&errors).unwrap());
        let (mut client, _socket) = agreed(address, &slow_upload());
        let forged = format!("reset\\nlongfat: all is well {}", "x".repeat(1000));
        let end = serde_json::to_string(&SourceEnd::default()).unwrap();
        let end = end.replace(r#""error":null"#, &format!(r#""error":"{forged}""#));
        let end = end.replace(r#""cc":"""#, &format!(r#""cc":"{forged}""#));
        let results = format!(r#"{{"message":"results","sources":[{end}],"sinks":[]}}"#);
        client.control.write_all(&framed(&results)).unwrap();
        serving.join().unwrap();
    });
    let said = errors.0.into_inner().unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said.iter().all(|text| text.contains("reset") && text.len() < 200 && !text.contains('\n')),
        "{said:?}"
    );
}
