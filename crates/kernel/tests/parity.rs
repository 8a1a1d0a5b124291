//! The kernel and the native build of an algorithm give the same answers, bit for bit: real flows over a lossy
//! bottleneck are recorded in the kernel, every callback is replayed natively.
//!
//! `LONGFAT_WRITE_VECTORS=1 cargo test -p longfat-kernel --test parity` writes a part of each recording to
//! cc/vectors/, which crates/cc replays without a kernel.

#![allow(clippy::unwrap_used)]

use longfat_cc::{
    Algorithm, LOSS, Tunables,
    record::{Call, Op, Recording},
};
use longfat_host::{
    Lease, Namespace,
    interface::{End, Offload, set_offload, veth},
    monotonic_us, run_command,
    socket::set_cc,
    sysctl,
};
use longfat_kernel::{
    avail::Meters,
    cc::{Recorder, record},
};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    ops::Range,
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// A sender and a receiver, and between them a bottleneck of 100 Mbit/s with 200 ms of queue.
struct Path {
    sender: Namespace,
    receiver: Namespace,
    _lease: Lease,
}

const BOTTLENECK: [&str; 6] = ["rate", "100mbit", "burst", "16kb", "limit", "2500000"];

/// The way of the acknowledgements: free; with a queue that stays, because the sender's own host lets no more than a
/// millisecond's worth wait in its queue; or one in half a second, so that the timer expires though nothing is lost.
const FREE: [&str; 6] = ["rate", "1gbit", "burst", "100kb", "limit", "1mb"];
const NARROW: [&str; 6] = ["rate", "1mbit", "burst", "2kb", "limit", "100kb"];
const STALLED: [&str; 6] = ["rate", "1kbit", "burst", "200", "limit", "1mb"];

/// What no packet matches.
const NOTHING: &str = "meta mark 0xdead";

impl Path {
    fn new(test: &str) -> Path {
        let lease = Lease::take(&format!("parity{}{test}", std::process::id())).unwrap();
        let (sender, receiver) = (lease.namespace("s").unwrap(), lease.namespace("r").unwrap());
        veth(End { namespace: &sender, name: "va" }, End { namespace: &receiver, name: "vb" }, 1500).unwrap();
        for (namespace, name, address) in [(&sender, "va", "10.77.0.1/24"), (&receiver, "vb", "10.77.0.2/24")]
        {
            namespace.ip(&["addr", "add", address, "dev", name]).unwrap();
            let segments_of_mtu_size = || {
                [Offload::Tso, Offload::Gso, Offload::Gro]
                    .iter()
                    .try_for_each(|o| set_offload(name, *o, false))
            };
            namespace.run(segments_of_mtu_size).unwrap().unwrap();
            namespace.run(|| sysctl::write("net.ipv4.tcp_ecn", "1")).unwrap().unwrap();
        }
        let path = Path { sender, receiver, _lease: lease };
        path.shape(&path.sender, "add", "va", &BOTTLENECK);
        path.shape(&path.receiver, "add", "vb", &FREE);
        path.drop_packets("numgen random mod 2000 == 0");
        path
    }

    fn shape(&self, end: &Namespace, verb: &str, interface: &str, parameters: &[&str]) {
        let mut tc = end.command("tc");
        tc.args(["qdisc", verb, "dev", interface, "root", "tbf"]).args(parameters);
        run_command(tc).unwrap();
    }

    /// Drops what matches on its way to the receiver, instead of what did before.
    fn drop_packets(&self, matching: &str) {
        self.treat_packets(&format!("{matching} drop"));
    }

    fn treat_packets(&self, rule: &str) {
        let rules = format!(
            "table inet loss {{}}\ndelete table inet loss\ntable inet loss {{ chain in {{ \
             type filter hook prerouting priority -300; iifname \"vb\" {rule}\n}}\n}}\n"
        );
        let mut nft = self.receiver.command("sh");
        nft.args(["-c", &format!("printf '%s' '{rules}' | nft -f -")]);
        run_command(nft).unwrap();
    }

    /// What a flow meets in its life: random loss and overflow, a queue that stays and loses nothing, an outage
    /// (timeouts), acknowledgements that come late (a spurious timeout, taken back), random loss again, and marks
    /// instead of loss (RFC 3168). When nothing but marks was there, in the clock of [`Conn::now_us`].
    fn weather(&self) -> Range<u64> {
        let wait = |ms| std::thread::sleep(Duration::from_millis(ms));
        wait(2500);
        self.drop_packets(NOTHING);
        self.shape(&self.receiver, "change", "vb", &NARROW);
        wait(1500);
        self.shape(&self.receiver, "change", "vb", &FREE);
        self.drop_packets("counter");
        wait(700);
        // Long enough for the backed-off timer to expire once more and all losses to be repaired.
        self.drop_packets(NOTHING);
        wait(1800);
        self.shape(&self.receiver, "change", "vb", &STALLED);
        wait(1200);
        self.shape(&self.receiver, "change", "vb", &FREE);
        wait(900);
        self.drop_packets("numgen random mod 500 == 0");
        wait(700);
        self.treat_packets("numgen inc mod 500 == 0 ip ecn set ce");
        // The losses before it are repaired first.
        wait(500);
        let since_us = monotonic_us() as u64;
        wait(1000);
        since_us..monotonic_us() as u64
    }
}

/// Sends until `stop`; both ends know their congestion control before the first packet.
fn send(path: &Path, cc: &str, measures: bool, stop: &AtomicBool) {
    let listener = path.receiver.run(|| TcpListener::bind("10.77.0.2:5001").unwrap()).unwrap();
    set_cc(&listener, "reno").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut accepted, _) = listener.accept().unwrap();
            let mut buffer = vec![0; 1 << 17];
            while accepted.read(&mut buffer).is_ok_and(|length| length > 0) {}
        });
        let socket = path.sender.run(|| nix_socket(cc)).unwrap();
        let mut stream = connect(socket);
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let block = vec![0; 1 << 16];
        while !stop.load(Ordering::Relaxed) {
            stream.write_all(&block).unwrap();
        }
        // Whoever has the socket, or a copy of it, can read what it found.
        let found = Meters::open().unwrap().read(stream.as_fd());
        assert_eq!(found.is_some_and(|found| found.results > 0), measures, "{found:?}");
    });
}

fn nix_socket(cc: &str) -> std::os::fd::OwnedFd {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    set_cc(&socket, cc).unwrap();
    socket
}

fn connect(socket: std::os::fd::OwnedFd) -> TcpStream {
    use nix::sys::socket::{SockaddrIn, connect};
    use std::os::fd::AsRawFd;
    connect(socket.as_raw_fd(), &SockaddrIn::new(10, 77, 0, 2, 5001)).unwrap();
    TcpStream::from(socket)
}

/// Every callback of one flow through all weather, and when it was only marked.
fn recorded(algorithm: Algorithm, recorder: &Recorder) -> (Vec<Call>, Range<u64>) {
    let path = Path::new(algorithm.name());
    let (stop_sending, stop_recording) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| recorder.collect(&stop_recording).unwrap());
        let sending =
            scope.spawn(|| send(&path, recorder.kernel_name(), algorithm.measures(), &stop_sending));
        let marked_us = path.weather();
        stop_sending.store(true, Ordering::Relaxed);
        sending.join().unwrap();
        stop_recording.store(true, Ordering::Release);
        (calls.join().unwrap(), marked_us)
    })
}

fn in_slow_start(call: &Call) -> bool {
    call.before.cwnd_segments < call.before.ssthresh_segments
}

/// What the recording covers, so that parity of an idle flow cannot pass for parity.
fn cases(algorithm: Algorithm, calls: &[Call], marked_us: &Range<u64>) -> BTreeMap<&'static str, usize> {
    let grew = |call: &Call| call.outcome.conn.cwnd_segments > call.before.cwnd_segments;
    let count = |case: &dyn Fn(&Call) -> bool| calls.iter().filter(|call| case(call)).count();
    let on_ack = |call: &Call| call.op == Op::OnAck;
    let mut cases = BTreeMap::from([
        ("init", count(&|call| call.op == Op::Init)),
        ("growth in slow start", count(&|call| on_ack(call) && in_slow_start(call) && grew(call))),
        ("growth in congestion avoidance", count(&|call| on_ack(call) && !in_slow_start(call) && grew(call))),
        ("more than two segments in one ack", count(&|call| on_ack(call) && call.ack.acked_segments > 2)),
        ("growth after a timeout", count(&|call| on_ack(call) && call.before.ca_state == LOSS && grew(call))),
        ("ssthresh", count(&|call| call.op == Op::Ssthresh)),
        (
            "ssthresh for a mark",
            count(&|call| call.op == Op::Ssthresh && marked_us.contains(&call.before.now_us)),
        ),
        ("undo", count(&|call| call.op == Op::UndoCwnd)),
    ]);
    cases.extend(own_cases(algorithm, calls));
    cases
}

/// What only some algorithms do.
fn own_cases(algorithm: Algorithm, calls: &[Call]) -> Vec<(&'static str, usize)> {
    let count = |case: &dyn Fn(&Call) -> bool| calls.iter().filter(|call| case(call)).count();
    let on_ack = |call: &Call| call.op == Op::OnAck;
    let shrank = |call: &Call| call.outcome.conn.cwnd_segments < call.before.cwnd_segments;
    let large = |call: &Call| !in_slow_start(call) && call.before.cwnd_segments > 118;
    let unused = |call: &Call| call.before.is_cwnd_limited == 0;
    let paced = |call: &Call| call.op == Op::OnSend && call.sending != call.outcome.sending;
    let found = || calls.last().map(|call| call.outcome.state.avail()).unwrap_or_default();
    let samples = ("round-trip samples", count(&|call| call.op == Op::OnRttSample));
    let restarts = ("restarts", count(&|call| call.op == Op::OnRestart));
    let shrinking = ("an ack that shrinks the window", count(&|call| on_ack(call) && shrank(call)));
    let filling = [
        ("a window above 118 segments in avoidance", count(&|call| on_ack(call) && large(call))),
        ("no growth while not limited by cwnd", count(&|call| on_ack(call) && unused(call))),
    ];
    let measuring = [
        ("units of a stream", count(&paced)),
        ("streams with a result", found().results as usize),
        ("streams without", found().rejected as usize),
    ];
    match algorithm.name() {
        // It fills its window, which this path makes a matter of the queue alone.
        "vegas" => vec![samples, restarts, shrinking],
        "ledbat" | "tcp_lp" => vec![samples, shrinking],
        "imtcp_bg" => [samples].into_iter().chain(measuring).collect(),
        "imtcp" => {
            let full = ("round trips of a full path", count(&Call::ends_full_round));
            filling[1..].iter().copied().chain(measuring).chain([samples, full]).collect()
        }
        "cubic" => filling.into_iter().chain([restarts]).collect(),
        _ => filling.to_vec(),
    }
}

/// The defaults; for Vegas a slow start that goes on to a loss, so that there is something to shrink, and then enough
/// segments in the queue to lose some; for TCP-LP a start that does not give way at once, and ImTCP-bg gives way late,
/// so that streams leave on a path without delay. Those that measure grow by
/// the algorithms with most state.
fn tunables(algorithm: Algorithm) -> Tunables {
    let settings: &[&str] = match algorithm.name() {
        "vegas" => &["alpha_segments=20", "beta_segments=40", "gamma_segments=10000"],
        "tcp_lp" => &["delta_permille=900", "inference_round_trips=1"],
        "imtcp" => &["growth=1"],
        "imtcp_bg" => &["growth=2", "rtt_ratio_permille=300000"],
        _ => &[],
    };
    Tunables::from_settings(algorithm, settings).unwrap()
}

const RECORDINGS_MAX: usize = 8;

fn assert_parity(name: &str) {
    let algorithm = Algorithm::find(name).unwrap();
    let tunables = tunables(algorithm);
    let recorder =
        record(&tunables, 1, &format!("lfp{}{}{}", std::process::id(), &name[..1], name.len())).unwrap();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    // The weather goes by the clock: on a machine that stands still, a recording may lack a case that another has.
    for _ in 0..RECORDINGS_MAX {
        let (calls, marked_us) = recorded(algorithm, &recorder);
        assert_eq!(recorder.lost(), 0, "the ring buffer was too small");
        for (case, count) in cases(algorithm, &calls, &marked_us) {
            *seen.entry(case).or_default() += count;
        }
        println!("{name}: {} callbacks, {seen:?}", calls.len());
        for call in &calls {
            assert_eq!(call.replay(&tunables), call.outcome, "{call:?}");
        }
        if seen.values().all(|count| *count > 0) {
            return keep(tunables, &calls);
        }
    }
    panic!("{RECORDINGS_MAX} recordings lack a case: {seen:?}");
}

fn keep(tunables: Tunables, calls: &[Call]) {
    if std::env::var_os("LONGFAT_WRITE_VECTORS").is_some() {
        // Measuring, there are three times as many callbacks, of a larger state.
        let rarely = if tunables.algorithm().measures() { 3 } else { 1 };
        write_vectors(&Recording { calls: excerpt(calls, rarely), tunables });
    }
}

/// What happens with every acknowledgement, or nearly.
fn often(op: Op) -> bool {
    matches!(op, Op::OnAck | Op::OnRttSample | Op::OnRestart | Op::OnSend | Op::OnAckSeen)
}

/// The beginning, everything around a loss, an undo or a round trip of a full path, and now and then an
/// acknowledgement.
fn excerpt(calls: &[Call], rarely: usize) -> Vec<Call> {
    let is_remarkable = |call: &Call| !often(call.op) || call.ends_full_round();
    let remarkable: Vec<_> = (0..calls.len()).filter(|index| is_remarkable(&calls[*index])).collect();
    let near = |index: usize| remarkable.iter().any(|at| index + 3 >= *at && index <= at + 6 / rarely);
    let after_timeout = |call: &Call| call.op == Op::OnAck && call.before.ca_state == LOSS;
    let chosen = (0..calls.len()).filter(|index| {
        *index < 30 * rarely || index % (97 * rarely) == 0 || near(*index) || after_timeout(&calls[*index])
    });
    let mut ids: BTreeMap<u64, u64> = BTreeMap::new();
    chosen
        .map(|index| {
            let next = ids.len() as u64;
            let conn_id = *ids.entry(calls[index].conn_id).or_insert(next);
            Call { conn_id, ..calls[index].clone() }
        })
        .take(800)
        .collect()
}

fn write_vectors(recording: &Recording) {
    let path = format!(
        "{}/../../cc/vectors/{}.txt",
        env!("CARGO_MANIFEST_DIR"),
        recording.tunables.algorithm().name()
    );
    std::fs::write(&path, recording.to_string()).unwrap();
    println!("wrote {} callbacks to {path}", recording.calls.len());
}

/// Vegas has no time but what it is given: this call, its round trips, and the least of them.
#[test]
fn under_dilation_an_algorithm_sees_the_clock_and_round_trips_of_a_slower_time() {
    const DILATION: u64 = 4;
    let tunables = tunables(Algorithm::find("vegas").unwrap());
    let recorder = record(&tunables, DILATION as u32, &format!("lfp{}slow", std::process::id())).unwrap();
    let path = Path::new("slow");
    path.drop_packets(NOTHING);
    let (stop_sending, stop_recording) = (AtomicBool::new(false), AtomicBool::new(false));
    let began_us = monotonic_us() as u64;
    let calls = std::thread::scope(|scope| {
        let calls = scope.spawn(|| recorder.collect(&stop_recording).unwrap());
        let sending = scope.spawn(|| send(&path, recorder.kernel_name(), false, &stop_sending));
        std::thread::sleep(Duration::from_millis(800));
        stop_sending.store(true, Ordering::Relaxed);
        sending.join().unwrap();
        stop_recording.store(true, Ordering::Release);
        calls.join().unwrap()
    });
    let ended_us = monotonic_us() as u64;
    let clock = began_us / DILATION..=ended_us / DILATION;
    assert!(calls.iter().all(|call| clock.contains(&call.before.now_us)), "the clock is divided");
    let longest_us = calls.iter().map(|call| call.rtt_us).max().unwrap();
    assert!(calls.len() > 100 && u64::from(longest_us) <= (ended_us - began_us) / DILATION, "{longest_us}");
    let srtt_us = calls.iter().map(|call| call.before.srtt_us).max().unwrap();
    assert!(srtt_us <= longest_us, "the smoothed one is of the same time: {srtt_us} of {longest_us}");
    calls.iter().for_each(|call| assert_eq!(call.replay(&tunables), call.outcome, "{call:?}"));
}

#[test]
fn reno_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("reno");
}

#[test]
fn highspeed_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("highspeed");
}

#[test]
fn scalable_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("scalable");
}

#[test]
fn bic_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("bic");
}

#[test]
fn vegas_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("vegas");
}

#[test]
fn cubic_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("cubic");
}

#[test]
fn imtcp_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("imtcp");
}

#[test]
fn imtcp_bg_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("imtcp_bg");
}

#[test]
fn ledbat_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("ledbat");
}

#[test]
fn tcp_lp_gives_the_same_answers_in_the_kernel_and_natively() {
    assert_parity("tcp_lp");
}
