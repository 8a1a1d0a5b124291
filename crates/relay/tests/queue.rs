//! A relay from a fast leg to a slow one: its queue stays short, and the slow leg busy.

use crate::bed::{Bed, Running};
use longfat_host::{
    interface::{Offload, set_offload},
    socket::{TcpInfo, tcp_info},
};
use longfat_relay::{QueuePlan, QueueSpec, RelayPlan};
use longfat_schema::record::RelaySample;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    sync::Arc,
    time::{Duration, Instant},
};

const SLOW_MBIT: u64 = 40;
/// How long a client sends.
const LENGTH: Duration = Duration::from_millis(2500);

/// A relay that keeps every connection's queue like this, and tells of it.
fn plan(queue: Option<QueuePlan>) -> RelayPlan {
    let mut plan = Bed::transparent();
    plan.defaults_mut().queue = queue;
    plan.sample_every = Some(Duration::from_millis(10));
    plan
}

/// What it told to its end about the direction to the server.
fn samples(relay: Running) -> Vec<RelaySample> {
    let notes = Arc::clone(&relay.notes);
    relay.stop();
    notes.to_server()
}

struct Outcome {
    /// Mean backlog of a connection in the middle half.
    backlog_bytes: u64,
    received_bytes: u64,
    last: RelaySample,
}

/// Lets so many clients send as fast as they can for a while, through a relay, towards a leg of 40 Mbit/s.
fn carry(tag: &str, clients: usize, plan: RelayPlan, ipv6: bool) -> Outcome {
    let bed = slow(tag);
    let server = bed.listen(if ipv6 { "[fd71:2::2]:80" } else { "10.71.2.2:80" });
    let relay = bed.start(plan);
    let received_bytes = std::thread::scope(|scope| {
        let sinks: Vec<_> = (0..clients).map(|_| scope.spawn(|| sink(&server))).collect();
        for _ in 0..clients {
            scope.spawn(|| source(bed.connect(server.local_addr().unwrap())));
        }
        sinks.into_iter().map(|sink| sink.join().unwrap()).sum()
    });
    let samples = samples(relay);
    let half = &samples[samples.len() / 4..samples.len() * 3 / 4];
    Outcome {
        backlog_bytes: half.iter().map(|sample| sample.backlog_bytes).sum::<u64>() / half.len() as u64,
        received_bytes,
        last: samples.last().unwrap().clone(),
    }
}

/// A bed whose leg to the server is slow; clients ask for ECN.
fn slow(tag: &str) -> Bed {
    let bed = Bed::new(tag);
    let ecn = || longfat_host::sysctl::write("net.ipv4.tcp_ecn", "1");
    bed.client.run(ecn).unwrap().unwrap();
    slow_down(&bed, SLOW_MBIT, "16k");
    bed
}

fn slow_down(bed: &Bed, mbit: u64, burst: &str) {
    let rate = format!("{mbit}mbit");
    let slow = ["qdisc", "add", "dev", "wan", "root", "tbf", "rate", &rate, "burst", burst, "limit", "100k"];
    assert!(bed.relay.command("tc").args(slow).status().unwrap().success());
}

/// Sends numbered words, then ends; what its socket says then.
fn source(mut stream: std::net::TcpStream) -> TcpInfo {
    let (started, mut word, mut block) = (Instant::now(), 0u64, Vec::new());
    while started.elapsed() < LENGTH {
        block.clear();
        for _ in 0..2048 {
            block.extend(word.to_le_bytes());
            word += 1;
        }
        stream.write_all(&block).unwrap();
    }
    tcp_info(&stream).unwrap()
}

/// Bytes of intact numbered words received within the time of sending.
fn sink(server: &std::net::TcpListener) -> u64 {
    let (mut stream, _) = server.accept().unwrap();
    let (started, mut all, mut within) = (Instant::now(), Vec::new(), 0);
    let mut buffer = [0; 65536];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        all.extend_from_slice(&buffer[..count]);
        if started.elapsed() < LENGTH {
            within = all.len() as u64;
        }
    }
    let words = all.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    assert!(words.eq(0..all.len() as u64 / 8));
    within
}

fn with(keys: &str) -> Option<QueuePlan> {
    QueueSpec::from_words(keys).unwrap().plan()
}

#[test]
fn the_window_keeps_the_queue_short_and_the_slow_leg_busy() {
    let alone = carry("open", 1, plan(None), false);
    let held = carry("held", 1, plan(with("target = \"20ms\"")), false);
    // 20 ms of 40 Mbit/s are 100 kB, the slow queue another 100 kB; uncontrolled it is megabytes.
    assert!(alone.backlog_bytes > 1_000_000, "{}", alone.backlog_bytes);
    assert!(held.backlog_bytes < alone.backlog_bytes / 5, "{} {}", held.backlog_bytes, alone.backlog_bytes);
    assert!(
        held.received_bytes > alone.received_bytes * 85 / 100,
        "{} {}",
        held.received_bytes,
        alone.received_bytes
    );
    assert_eq!((held.last.target_us, alone.last.target_us), (Some(20_000), None));
    assert!(held.last.drain_bps.unwrap() > 1_000_000 && held.last.window_bytes.unwrap() > 0);
}

#[test]
fn ten_connections_that_share_the_slow_leg_keep_their_queues_as_short() {
    // What the kernel promises at the beginning is drained at once.
    let small = |queue| {
        let mut plan = plan(queue);
        plan.defaults_mut().client.buffer_bytes = 64 << 10;
        plan
    };
    // A machine that stands still in one of the two runs spoils a trial, not three.
    let trials = (0..3).map(|_| {
        let alone = carry("opens", 10, small(None), false);
        let held = carry("helds", 10, small(with("target = \"20ms\"")), false);
        (held.backlog_bytes, held.received_bytes * 100 / alone.received_bytes)
    });
    let mut seen = Vec::new();
    // 40 ms of a tenth of 40 Mbit/s are 20 kB, its part of the slow queue is 10 kB; a packet buffer that is filled up
    // has 65 kB.
    let holds =
        trials.inspect(|trial| seen.push(*trial)).any(|(backlog, percent)| backlog < 40_000 && percent > 85);
    assert!(holds, "backlog in bytes, per cent of the throughput left alone: {seen:?}");
}

/// Bytes per acknowledgement that a sender gets whose packets are single segments, and whose queue is kept short.
fn acknowledged_bytes() -> u64 {
    let bed = Bed::new("near");
    slow_down(&bed, 300, "128k");
    let alone = |device: &'static str| {
        move || [Offload::Tso, Offload::Gso, Offload::Gro].map(|offload| set_offload(device, offload, false))
    };
    for outcome in [bed.client.run(alone("eth0")), bed.relay.run(alone("lan"))] {
        outcome.unwrap().into_iter().for_each(Result::unwrap);
    }
    let server = bed.listen("10.71.2.2:80");
    let relay = bed.start(plan(with("target = \"40ms\"")));
    let info = std::thread::scope(|scope| {
        scope.spawn(|| sink(&server));
        source(bed.connect(server.local_addr().unwrap()))
    });
    assert!(samples(relay).last().unwrap().window_bytes.is_some(), "it is held");
    info.acked_bytes / u64::from(info.segs_in)
}

/// A window of what is left of the limit would be two segments all the time, each acknowledged.
#[test]
fn near_its_sender_a_short_queue_does_not_take_an_acknowledgement_for_every_second_segment() {
    // Where the relay gets a fraction of the rate the queue is too short for that: a trial is spoiled, not three.
    let (trials, mut seen) = ((0..3).map(|_| acknowledged_bytes()), Vec::new());
    let is_seldom = trials.inspect(|bytes| seen.push(*bytes)).any(|bytes| bytes > 20 * 1448);
    assert!(is_seldom, "bytes per acknowledgement: {seen:?}");
}

/// How long bytes are on their way to the server, from being written: the median over the second half of a transfer.
/// Without a plan nothing but routing is between.
fn age_us(tag: &str, plan: Option<RelayPlan>) -> u64 {
    const BLOCK_BYTES: usize = 4096;
    let bed = slow(tag);
    let server = bed.listen("10.71.2.2:80");
    let relay = plan.map(|plan| bed.start(plan));
    let (begun, mut ages_us) = (Instant::now(), Vec::new());
    let now_us = || begun.elapsed().as_micros() as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = bed.connect(server.local_addr().unwrap());
            while begun.elapsed() < LENGTH {
                let mut block = [0; BLOCK_BYTES];
                block[..8].copy_from_slice(&now_us().to_le_bytes());
                client.write_all(&block).unwrap();
            }
        });
        let (mut stream, _) = server.accept().unwrap();
        let mut block = [0; BLOCK_BYTES];
        while stream.read_exact(&mut block).is_ok() {
            let written_us = u64::from_le_bytes(block[..8].try_into().unwrap());
            ages_us.push(now_us() - written_us);
        }
    });
    relay.map(Running::stop);
    let half = ages_us.len() / 2;
    *ages_us[half..].select_nth_unstable(half / 2).1
}

/// The sender's own buffer is in it: it grows with the window that the sender is given.
#[test]
fn by_default_bytes_wait_hardly_longer_than_without_a_relay() {
    // A machine that stands still in one of the three runs spoils a trial, not three.
    let trials = (0..3).map(|_| {
        let direct_us = age_us("direct", None);
        let default_us = age_us("usual", Some(Bed::transparent()));
        let alone_us = age_us("alone", Some(plan(None)));
        (direct_us, default_us, alone_us)
    });
    let mut seen = Vec::new();
    let holds = trials
        .inspect(|trial| seen.push(*trial))
        .any(|(direct_us, default_us, alone_us)| default_us < 2 * direct_us && default_us < alone_us / 2);
    assert!(holds, "microseconds direct, through the relay, through it with the queue left alone: {seen:?}");
}

#[test]
fn nothing_is_set_where_full_buffers_would_not_wait_for_the_target() {
    let held = carry("fast", 1, plan(with("target = \"10s\"")), false);
    assert!(held.last.drain_bps.unwrap() > 1_000_000, "{:?}", held.last);
    assert_eq!((held.last.target_us, held.last.window_bytes), (Some(10_000_000), None));
}

#[test]
fn marks_alone_reach_the_sender_over_ipv6() {
    let queue = with("controller = \"fixed\", allowed = \"200KB\", window = false, hold_off = 0");
    let held = carry("six", 1, plan(queue), true);
    assert!(held.last.marked_packets.unwrap() > 0, "{:?}", held.last);
    assert_eq!(held.last.window_bytes, None);
}

/// The kernel's count is read every few milliseconds, and once more at the end.
#[test]
fn the_marks_of_short_connections_are_counted() {
    const CONNECTIONS: usize = 20;
    let bed = Bed::new("brief");
    let ecn = || longfat_host::sysctl::write("net.ipv4.tcp_ecn", "1");
    bed.client.run(ecn).unwrap().unwrap();
    let server = bed.listen("10.71.2.2:80");
    let relay = bed.start(plan(with("controller = \"every\", allowed = \"1B\", window = false")));
    for _ in 0..CONNECTIONS {
        let (mut client, mut far) = bed.pair(&server, server.local_addr().unwrap());
        let mut byte = [7];
        // Its answer says that the relay has both legs, and marks.
        client.write_all(&byte).unwrap();
        far.read_exact(&mut byte).unwrap();
        far.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        client.write_all(&byte).unwrap();
        drop(client);
        assert_eq!(far.read_to_end(&mut Vec::new()).unwrap(), 1);
    }
    // The most, not the last: a reading made before the final one may be told after it.
    let mut most: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for sample in samples(relay) {
        let marks = most.entry(sample.connection).or_default();
        *marks = sample.marked_packets.max(*marks);
    }
    assert_eq!(most.into_values().collect::<Vec<_>>(), [Some(1); CONNECTIONS]);
}
