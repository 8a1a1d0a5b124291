//! Whole transfers over loopback, both ends in this process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod ends;

use ends::{Serving, bytes_plan, send_options, sent, serve_options};
use longfat_schema::{
    arrivals::Arrivals,
    lines::{self, Lines},
    record::Record,
};
use longfat_transfer::{
    Amount, Error, IntervalReport, Outcome, Protocol, Receive, SendObserver, ServeObserver, Server, Start,
    Step, Told, TransferPlan, send,
};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{Mutex, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

#[test]
fn every_byte_arrives_as_sent_and_every_timestamp_comes_back_once() {
    let server = Serving::on("127.0.0.1:0");
    let plan = TransferPlan { echo_every_bytes: Some(100_000), ..bytes_plan(20_000_000) };
    let outcome = sent(server.address, plan);
    let flow = &outcome.flows[0];
    assert_eq!((outcome.sources[0].sent_bytes, outcome.sinks[0].received_bytes), (20_000_000, 20_000_000));
    assert_eq!((flow.received_bytes, flow.echo_count, outcome.sources[0].echo_sent), (20_000_000, 200, 200));
    assert_eq!((flow.cc_sender.as_str(), flow.cc_receiver.as_str()), ("reno", "reno"));
    assert!(flow.goodput_bps > 0 && flow.mss_bytes > 500 && flow.min_rtt_us.is_some(), "{flow:?}");
    assert!(
        flow.echo_p50_us <= flow.echo_p99_us
            && flow.echo_p99_us <= flow.echo_max_us
            && flow.echo_p50_us.is_some()
    );
    let served = server.end();
    assert_eq!((served.transfers, served.failed), (1, 0));
}

#[test]
fn what_came_at_one_moment_has_no_goodput() {
    let server = Serving::on("127.0.0.1:0");
    let outcome = sent(server.address, bytes_plan(1000));
    assert_eq!((outcome.flows[0].received_bytes, outcome.flows[0].duration_us), (1000, 0));
    assert_eq!(outcome.goodput_bps(), None);
}

#[test]
fn a_start_that_no_clock_comes_to_is_refused_before_anybody_is_asked() {
    for (start, stagger_us) in [(u64::MAX - 1, 1000), (u64::MAX / 2, 0)] {
        let plan = TransferPlan { streams: 3, stagger_us, ..bytes_plan(3000) };
        // Nobody listens there.
        let mut options = send_options("127.0.0.1:1", plan);
        options.start = Start::At(start);
        let said = send(&options, &()).unwrap_err().to_string();
        assert!(said.contains("more than a day ahead") && said.contains(&start.to_string()), "{said}");
    }
}

#[test]
fn many_streams_over_ipv6_share_the_bytes_exactly() {
    let server = Serving::on("[::1]:0");
    let plan = TransferPlan { streams: 16, echo_every_bytes: Some(50_000), ..bytes_plan(16_000_005) };
    let outcome = sent(server.address, plan);
    assert_eq!(outcome.flows.len(), 16);
    assert_eq!(outcome.sinks.iter().map(|sink| sink.received_bytes).sum::<u64>(), 16_000_005);
    assert!(outcome.flows.iter().all(|flow| flow.echo_count == 20), "{:?}", outcome.flows);
}

#[test]
fn a_server_on_every_address_serves_both_families_at_the_same_time() {
    let server = Serving::on("[::]:0");
    let port = server.address.port();
    std::thread::scope(|scope| {
        for host in ["127.0.0.1", "[::1]", "localhost"] {
            scope.spawn(move || sent(format!("{host}:{port}"), bytes_plan(3_000_000)));
        }
    });
    assert_eq!(server.end().transfers, 3);
}

#[test]
fn in_reverse_the_server_sends_and_its_samples_reach_the_client() {
    let server = Serving::on("127.0.0.1:0");
    let file = tempfile::NamedTempFile::new().unwrap();
    let plan =
        TransferPlan { reverse: true, echo_every_bytes: Some(100_000), streams: 2, ..bytes_plan(10_000_000) };
    let mut options = send_options(server.address, plan);
    options.samples = Lines::create(file.path()).unwrap();
    let outcome = send(&options, &()).unwrap();
    assert!(outcome.is_complete(), "{:?}", outcome.errors());
    assert_eq!(outcome.flows.iter().map(|flow| flow.echo_count).sum::<u64>(), 100);
    let kinds = kinds(file.path());
    assert_eq!((kinds["echo"], kinds["flow"], kinds["note"]), (100, 2, 2), "{kinds:?}");
    assert!(kinds["tcp"] >= 2 && kinds["interval"] >= 2, "{kinds:?}");
}

/// How many records of each type a samples file holds.
fn kinds(path: &std::path::Path) -> BTreeMap<&'static str, usize> {
    let mut kinds = BTreeMap::new();
    lines::read(path, |record| {
        let kind = match record {
            Record::Tcp(_) => "tcp",
            Record::Interval(_) => "interval",
            Record::Echo(_) => "echo",
            Record::Flow(_) => "flow",
            Record::Note(_) => "note",
            _ => "other",
        };
        *kinds.entry(kind).or_insert(0) += 1;
    })
    .unwrap();
    kinds
}

#[test]
fn the_samples_file_holds_the_series_of_both_ends() {
    let server = Serving::on("127.0.0.1:0");
    let file = tempfile::NamedTempFile::new().unwrap();
    let plan = TransferPlan {
        amount: Amount::DurationUs(600_000),
        rate_bps: Some(200_000_000),
        echo_every_bytes: Some(1_000_000),
        sample_every_us: 10_000,
        receiver_interval_us: 50_000,
        ..bytes_plan(1)
    };
    let mut options = send_options(server.address, plan);
    options.samples = Lines::create(file.path()).unwrap();
    let outcome = send(&options, &()).unwrap();
    let (mut bytes, mut roles, mut last_us) = (0, Vec::new(), 0);
    lines::read(file.path(), |record| match record {
        Record::Interval(sample) => bytes += sample.bytes,
        Record::Tcp(sample) => {
            assert!(sample.time_us > last_us, "samples of one stream are in order");
            last_us = sample.time_us;
            roles.push((sample.role, sample.cc));
        }
        _ => {}
    })
    .unwrap();
    assert_eq!(bytes, outcome.sinks[0].received_bytes, "intervals sum to what arrived");
    assert!(roles.len() >= 20, "{} samples in 600 ms", roles.len());
    assert!(roles.iter().all(|(role, cc)| role == "sender" && cc == "reno"));
}

#[test]
fn discarding_receivers_and_page_cache_senders_still_find_every_timestamp() {
    let server = Serving::on("127.0.0.1:0");
    for (receive, zero_copy) in [(Receive::Discard, false), (Receive::Discard, true), (Receive::Copy, true)] {
        let verify = receive == Receive::Copy;
        let plan = TransferPlan {
            receive,
            zero_copy,
            verify,
            echo_every_bytes: Some(65_000),
            ..bytes_plan(13_000_000)
        };
        let outcome = sent(server.address, plan);
        assert_eq!((outcome.flows[0].echo_count, outcome.sinks[0].received_bytes), (200, 13_000_000));
    }
}

#[test]
fn a_duration_ends_and_goodput_is_counted_over_exactly_that_span() {
    let server = Serving::on("127.0.0.1:0");
    let plan = TransferPlan { amount: Amount::DurationUs(400_000), verify: false, ..bytes_plan(1) };
    let begun = Instant::now();
    let outcome = sent(server.address, plan);
    assert!(begun.elapsed() >= Duration::from_millis(400));
    let flow = &outcome.flows[0];
    assert_eq!(flow.duration_us, 400_000);
    assert!(flow.received_bytes > 0 && flow.received_bytes <= outcome.sinks[0].received_bytes);
    assert_eq!(outcome.sources[0].sent_bytes, outcome.sinks[0].received_bytes);
}

#[test]
fn a_rate_limit_is_never_exceeded_and_is_shared_by_the_streams() {
    let server = Serving::on("127.0.0.1:0");
    let plan = TransferPlan {
        streams: 2,
        amount: Amount::DurationUs(1_000_000),
        rate_bps: Some(80_000_000),
        block_bytes: 10_000,
        ..bytes_plan(1)
    };
    let outcome = sent(server.address, plan);
    for source in &outcome.sources {
        // 40 Mbit/s for 1 s are 5 MB; one block may be on top of what is due.
        assert!(source.sent_bytes <= 5_010_000, "{source:?}");
        assert!(source.sent_bytes >= 2_500_000, "not even half of the rate: {source:?}");
    }
}

#[test]
fn buffers_asked_for_are_read_back_from_both_ends() {
    let server = Serving::on("127.0.0.1:0");
    let plan =
        TransferPlan { sndbuf_bytes: Some(1 << 20), rcvbuf_bytes: Some(2 << 20), ..bytes_plan(1_000_000) };
    let flow = sent(server.address, plan).flows.remove(0);
    assert_eq!((flow.sndbuf_bytes, flow.rcvbuf_bytes), (1 << 20, 2 << 20));
}

#[test]
fn udp_counts_what_it_sends_and_what_arrives() {
    let server = Serving::on("[::]:0");
    let to = format!("127.0.0.1:{}", server.address.port());
    for (arrivals, reverse) in [(Arrivals::Constant, false), (Arrivals::Poisson, true)] {
        let plan = TransferPlan {
            protocol: Protocol::Udp,
            streams: 2,
            amount: Amount::Bytes(2_000_000),
            rate_bps: Some(50_000_000),
            datagram_bytes: 1000,
            arrivals,
            reverse,
            ..TransferPlan::default()
        };
        let outcome = sent(&to, plan);
        for (flow, sink) in outcome.flows.iter().zip(&outcome.sinks) {
            assert_eq!(
                (flow.lost_datagrams, sink.received_datagrams, sink.received_bytes),
                (0, 1000, 1_000_000)
            );
        }
        assert!(
            outcome.sources.iter().all(|source| source.offered_bps <= 27_000_000),
            "{:?}",
            outcome.sources
        );
    }
}

/// Gathers interval reports.
#[derive(Default)]
struct Reports(Mutex<Vec<IntervalReport>>);

impl SendObserver for Reports {
    fn interval(&self, report: &IntervalReport) {
        self.0.lock().unwrap().push(report.clone());
    }
}

#[test]
fn interval_reports_are_gapless_and_add_up_to_what_arrived() {
    let server = Serving::on("127.0.0.1:0");
    let plan = TransferPlan {
        streams: 2,
        amount: Amount::DurationUs(700_000),
        rate_bps: Some(100_000_000),
        receiver_interval_us: 20_000,
        ..bytes_plan(1)
    };
    let mut options = send_options(server.address, plan);
    options.interval = Duration::from_millis(200);
    let reports = Reports::default();
    let outcome = send(&options, &reports).unwrap();
    let reports = reports.0.into_inner().unwrap();
    assert!(reports.len() >= 3, "{reports:?}");
    assert!(reports.windows(2).all(|pair| pair[0].to_us == pair[1].from_us), "{reports:?}");
    let reported: u64 = reports.iter().map(|report| report.sum.received_bytes).sum();
    assert_eq!(reported, outcome.sinks.iter().map(|sink| sink.received_bytes).sum::<u64>());
}

#[test]
fn an_unknown_congestion_control_names_the_end() {
    let server = Serving::on("127.0.0.1:0");
    let message = |plan| send(&send_options(server.address, plan), &()).unwrap_err().to_string();
    let plan = TransferPlan { cc_receiver: Some("no-such-cc".into()), ..bytes_plan(1000) };
    let text = message(plan);
    assert!(
        text.contains("refused") && text.contains("receiving end") && text.contains("'no-such-cc'"),
        "{text}"
    );
    let plan = TransferPlan { cc_sender: Some("no-such-cc".into()), ..bytes_plan(1000) };
    let text = message(plan);
    assert!(text.starts_with("sending end") && text.contains("'no-such-cc'"), "{text}");
    let plan = TransferPlan { reverse: true, cc_sender: Some("no-such-cc".into()), ..bytes_plan(1000) };
    let text = message(plan);
    assert!(text.contains("refused") && text.contains("sending end"), "{text}");
    sent(server.address, bytes_plan(1000));
}

#[test]
fn a_port_in_use_and_a_port_without_server_are_clear_errors() {
    let server = Serving::on("127.0.0.1:0");
    let error = Server::bind(serve_options(&server.address.to_string())).unwrap_err().to_string();
    assert!(error.contains(&server.address.to_string()) && error.contains("in use"), "{error}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = send(&send_options(free, bytes_plan(1)), &()).unwrap_err().to_string();
    assert!(error.contains("refused") && error.contains("longfat transfer serve"), "{error}");
    let error = send(&send_options("no-port-here", bytes_plan(1)), &()).unwrap_err().to_string();
    assert!(error.contains("'no-port-here'") && error.contains("host:5201"), "{error}");
}

/// A peer that sends `frames`, each after having received something, and then only listens.
fn scripted_peer(frames: Vec<String>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut bytes = [0; 4096];
        for frame in frames {
            let _ = socket.read(&mut bytes);
            let mut message = (frame.len() as u32).to_be_bytes().to_vec();
            message.extend_from_slice(frame.as_bytes());
            let _ = socket.write_all(&message);
        }
        while socket.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    address
}

#[test]
fn another_version_is_named_at_both_ends() {
    let refusal = r#"{"message":"refused","version":99,"reason":"too old"}"#;
    let error = send(&send_options(scripted_peer(vec![refusal.into()]), bytes_plan(1)), &()).unwrap_err();
    assert!(matches!(error, Error::Version { theirs: 99, .. }), "{error}");
    let server = Serving::on("127.0.0.1:0");
    let hello = r#"{"message":"hello","version":99,"plan":{"shape":"of things to come"}}"#;
    let mut socket = std::net::TcpStream::connect(server.address).unwrap();
    socket.write_all(&(hello.len() as u32).to_be_bytes()).unwrap();
    socket.write_all(hello.as_bytes()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("refused") && answer.contains("version 99"), "{answer}");
}

#[test]
fn rubbish_from_a_peer_is_an_error_and_leaves_the_server_serving() {
    let server = Serving::on("127.0.0.1:0");
    for rubbish in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0\0\0\x02{}", b"\xff\xff\xff\xff", b""] {
        let mut socket = std::net::TcpStream::connect(server.address).unwrap();
        socket.write_all(rubbish).unwrap();
    }
    sent(server.address, bytes_plan(1_000_000));
    let out_of_turn = r#"{"message":"ready"}"#;
    let error = send(&send_options(scripted_peer(vec![out_of_turn.into()]), bytes_plan(1)), &()).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[test]
fn a_peer_that_falls_silent_is_an_error_within_the_timeout() {
    let plan = TransferPlan { timeout_us: 700_000, ..bytes_plan(1000) };
    let begun = Instant::now();
    let error = send(&send_options(scripted_peer(vec![]), plan), &()).unwrap_err();
    let Error::During { step: Step::Agree, source, .. } = error else { panic!("{error}") };
    assert!(matches!(*source, Error::Silent { .. }), "{source}");
    assert!(begun.elapsed() < Duration::from_secs(20), "took {:?}", begun.elapsed());
}

#[test]
fn stopping_the_client_keeps_what_was_measured_and_says_so() {
    let server = Serving::on("127.0.0.1:0");
    let plan =
        TransferPlan { amount: Amount::DurationUs(60_000_000), rate_bps: Some(80_000_000), ..bytes_plan(1) };
    let options = send_options(server.address, plan);
    let stop = options.stop.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Relaxed);
    });
    let begun = Instant::now();
    let outcome = send(&options, &()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    let flow = &outcome.flows[0];
    assert!(flow.error.as_ref().unwrap().contains("signal"), "{flow:?}");
    assert!(flow.received_bytes > 0 && flow.duration_us < 60_000_000, "{flow:?}");
    assert_eq!(server.end().failed, 1);
}

#[test]
fn stopping_the_server_ends_its_transfers_with_a_reason() {
    let server = Serving::on("127.0.0.1:0");
    let plan =
        TransferPlan { amount: Amount::DurationUs(60_000_000), rate_bps: Some(80_000_000), ..bytes_plan(1) };
    let options = send_options(server.address, plan);
    let client = std::thread::spawn(move || send(&options, &()).unwrap());
    std::thread::sleep(Duration::from_millis(500));
    let served = server.end();
    let outcome = client.join().unwrap();
    let error = outcome.flows[0].error.clone().unwrap();
    assert!(error.contains("the other end stopped it"), "{error}");
    assert_eq!((served.transfers, served.failed), (1, 1));
}

#[test]
fn short_transfers_one_after_the_other_are_complete_at_both_ends() {
    let server = Serving::on("127.0.0.1:0");
    for turn in 0..30 {
        sent(server.address, TransferPlan { reverse: turn % 2 == 1, ..bytes_plan(100_000) });
    }
    let served = server.end();
    assert_eq!((served.transfers, served.failed), (30, 0));
}

#[test]
fn once_ends_the_server_after_one_transfer() {
    let mut options = serve_options("127.0.0.1:0");
    options.once = true;
    let server = Server::bind(options).unwrap();
    let address = server.address();
    let thread = std::thread::spawn(move || server.run(&()).unwrap());
    sent(address, bytes_plan(1_000_000));
    assert_eq!(thread.join().unwrap().transfers, 1);
}

#[test]
fn a_start_time_is_waited_for_and_streams_are_staggered() {
    let server = Serving::on("127.0.0.1:0");
    for reverse in [false, true] {
        let plan = TransferPlan { streams: 3, stagger_us: 100_000, reverse, ..bytes_plan(300_000) };
        let mut options = send_options(server.address, plan);
        let start_ns = longfat_host::monotonic_ns() + 500_000_000;
        options.start = Start::At(start_ns);
        let outcome = send(&options, &()).unwrap();
        assert!(outcome.is_complete(), "{:?}", outcome.errors());
        for (at, flow) in (0i64..).zip(&outcome.flows) {
            assert!(flow.start_us >= (start_ns / 1000) as i64 + at * 100_000, "reverse {reverse}: {flow:?}");
        }
    }
}

/// Tells when to begin only some time after the ends agreed, and writes down what they did before.
struct Starter {
    told: Told,
    agreed: Mutex<Option<Instant>>,
    steps: Mutex<Vec<Step>>,
}

impl SendObserver for Starter {
    fn step(&self, step: Step, _took: Duration) {
        self.steps.lock().unwrap().push(step);
    }

    fn agreed(&self) {
        *self.agreed.lock().unwrap() = Some(Instant::now());
        let told = self.told.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            told.tell(longfat_host::monotonic_ns() + 100_000_000);
        });
    }
}

#[test]
fn a_start_that_is_told_once_the_ends_agree_is_waited_for() {
    let server = Serving::on("127.0.0.1:0");
    for (protocol, reverse) in [(Protocol::Tcp, false), (Protocol::Tcp, true), (Protocol::Udp, false)] {
        let rate_bps = (protocol == Protocol::Udp).then_some(10_000_000);
        let plan = TransferPlan { protocol, reverse, rate_bps, streams: 2, ..bytes_plan(100_000) };
        let plan = TransferPlan { verify: protocol == Protocol::Tcp, ..plan };
        let told = Told::default();
        let mut options = send_options(server.address, plan);
        options.start = Start::WhenTold(told.clone());
        let observer = Starter { told, agreed: Mutex::default(), steps: Mutex::default() };
        let outcome = send(&options, &observer).unwrap();
        assert!(outcome.is_complete(), "{:?}", outcome.errors());
        let agreed = observer.agreed.lock().unwrap().unwrap();
        assert!(agreed.elapsed() >= Duration::from_millis(800), "it began before it was told");
        let steps = observer.steps.into_inner().unwrap();
        assert_eq!(steps, [Step::Connect, Step::Agree, Step::Clock, Step::Data]);
    }
}

#[test]
fn a_flow_that_begins_late_has_all_its_time() {
    let server = Serving::on("127.0.0.1:0");
    for (protocol, reverse) in [(Protocol::Tcp, false), (Protocol::Udp, false), (Protocol::Tcp, true)] {
        let plan = TransferPlan {
            protocol,
            reverse,
            amount: Amount::DurationUs(300_000),
            rate_bps: Some(10_000_000),
            drain_us: 100_000,
            timeout_us: 1_200_000,
            ..TransferPlan::default()
        };
        let mut options = send_options(server.address, plan);
        // Later than the transfer would have to be done if it began at once.
        options.start = Start::At(longfat_host::monotonic_ns() + 3_000_000_000);
        let outcome = send(&options, &()).unwrap();
        assert!(outcome.is_complete(), "{protocol:?} {reverse}: {:?} {:?}", outcome.errors(), outcome.lost);
    }
}

/// Fails whenever it is told something.
struct Failing;

impl ServeObserver for Failing {
    fn began(&self, _: SocketAddr, _: &TransferPlan) {
        panic!("began");
    }
    fn ended(&self, _: SocketAddr, _: &Outcome) {
        panic!("ended");
    }
    fn failed(&self, _: SocketAddr, _: &Error) {
        panic!("failed");
    }
    fn silent(&self, _: u64) {
        panic!("silent");
    }
}

#[test]
fn an_observer_that_fails_ends_neither_transfer_nor_server() {
    let options = serve_options("127.0.0.1:0");
    let stop = std::sync::Arc::clone(&options.stop);
    let server = Server::bind(options).unwrap();
    let address = server.address();
    let thread = std::thread::spawn(move || server.run(&Failing).unwrap());
    for rubbish in [&b"GET / HTTP/1.1\r\n\r\n"[..], b""] {
        std::net::TcpStream::connect(address).unwrap().write_all(rubbish).unwrap();
    }
    sent(address, bytes_plan(100_000));
    sent(address, bytes_plan(100_000));
    stop.store(true, Relaxed);
    let served = thread.join().unwrap();
    assert_eq!((served.transfers, served.failed), (2, 0));
}

#[test]
fn a_client_that_waits_to_be_told_ends_when_it_is_stopped_or_its_server_is_gone() {
    let server = Serving::on("127.0.0.1:0");
    let mut options = send_options(server.address, bytes_plan(100_000));
    options.start = Start::WhenTold(Told::default());
    let stop = std::sync::Arc::clone(&options.stop);
    let sender = std::thread::spawn(move || send(&options, &()));
    std::thread::sleep(Duration::from_millis(300));
    stop.store(true, Relaxed);
    assert!(matches!(sender.join().unwrap(), Err(Error::Stopped)));
    let mut options = send_options(server.address, bytes_plan(100_000));
    options.start = Start::WhenTold(Told::default());
    let sender = std::thread::spawn(move || send(&options, &()));
    std::thread::sleep(Duration::from_millis(300));
    drop(server);
    assert!(sender.join().unwrap().is_err());
}

#[test]
fn a_server_that_falls_silent_is_told_with_what_the_ends_were_at() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = TransferPlan { timeout_us: 1_200_000, ..bytes_plan(100_000) };
    let error = send(&send_options(listener.local_addr().unwrap(), plan), &()).unwrap_err().to_string();
    assert!(error.contains("agreeing on the plan had taken 1."), "{error}");
}

#[test]
fn a_full_disk_is_told_beside_what_was_measured() {
    let server = Serving::on("127.0.0.1:0");
    let mut options = send_options(server.address, bytes_plan(1_000_000));
    options.samples = Lines::create(std::path::Path::new("/dev/full")).unwrap();
    let outcome = send(&options, &()).unwrap();
    let errors = outcome.errors().join("; ");
    assert!(
        !outcome.is_complete() && errors.contains("samples file") && errors.contains("space"),
        "{errors}"
    );
    assert_eq!(outcome.flows[0].received_bytes, 1_000_000);
}
