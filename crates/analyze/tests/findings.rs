//! Every finding with a trace that has it and one that nearly has it.
#![allow(clippy::needless_pass_by_value)]

use crate::support::{
    Bulk, MS, Tcp, Trace, US, bulk,
    traffic::{Transfer, made},
};
use longfat_analyze::{
    expect::Expect,
    findings::{Finding, Kind},
};

fn find(trace: &Trace, kind: Kind) -> Option<Finding> {
    trace.flow().findings.into_iter().find(|finding| finding.kind == kind)
}

fn on(options: Bulk) -> Trace {
    let mut trace = Trace::default();
    bulk(&mut trace, &options);
    trace
}

#[test]
fn a_full_window_is_a_limit_and_a_half_full_one_is_not() {
    let limited = on(Bulk { segments: 4000, window_segments: 20, advertised: 20 * 1448, ..Bulk::default() });
    let finding = find(&limited, Kind::WindowLimited).unwrap();
    assert!(finding.what.contains("28.9 kB at an RTT of 20") && finding.what.contains("2.5"), "{finding:?}");
    assert!(finding.cost_s > 0.5 * limited.flow().duration_s, "{finding:?}");
    let roomy = on(Bulk { segments: 4000, window_segments: 20, advertised: 40 * 1448, ..Bulk::default() });
    assert_eq!(find(&roomy, Kind::WindowLimited), None);
}

#[test]
fn without_window_scaling_the_finding_says_so() {
    let limited = on(Bulk {
        segments: 4000,
        window_segments: 40,
        advertised: 40 * 1448,
        scale: None,
        ..Bulk::default()
    });
    assert!(find(&limited, Kind::WindowLimited).unwrap().what.contains("scaling was not agreed"));
    assert_eq!(find(&limited, Kind::SillyWindow), None, "1448 of 1460 octets are full packets");
}

#[test]
fn a_sender_that_pauses_is_idle_and_one_that_pauses_rarely_is_not() {
    let pausing = on(Bulk { segments: 4000, pause_every: 200, pause_ns: 120 * MS, ..Bulk::default() });
    let finding = find(&pausing, Kind::SenderIdle).unwrap();
    assert!(finding.cost_s > 1.0, "{finding:?}");
    let busy = on(Bulk { segments: 4000, pause_every: 2000, pause_ns: 120 * MS, ..Bulk::default() });
    assert_eq!(find(&busy, Kind::SenderIdle), None);
}

/// A burst is lost at the end of a window, then silence and go-back, or a repair by SACK.
fn burst_loss(options: &Bulk, silence_ns: i64, lost: u32, go_back: bool) -> Trace {
    let mut trace = Trace::default();
    let end = bulk(&mut trace, options);
    // A window of which the last `lost` segments are dropped.
    let (window, rtt) = (options.window_segments as u32, options.rtt_ns + 100 * MS);
    let sent_ns = end.time_ns + 10 * US;
    let seq = |n: u32| end.next + n * 1448;
    for n in 0..window {
        trace.push(sent_ns + i64::from(n) * 100 * US, options.data(seq(n)));
    }
    let reached = window - lost;
    for n in 0..reached {
        trace.push(sent_ns + rtt + i64::from(n) * 100 * US, options.ack(seq(n + 1)));
    }
    let mut now = sent_ns + rtt + i64::from(reached) * 100 * US + if go_back { silence_ns } else { 200 * US };
    for n in reached..window {
        if !go_back {
            trace.push(now - 150 * US, options.ack(seq(reached)).sack(&[(seq(window), seq(window + 1))]));
        }
        trace.push(now, options.data(seq(n)));
        now += if go_back && n == reached { options.rtt_ns } else { 100 * US };
        if go_back && n == reached {
            trace.push(now - 50 * US, options.ack(seq(n + 1)));
        }
    }
    now += options.rtt_ns;
    trace.push(now, options.ack(seq(window)));
    let again = Bulk { start_ns: now + MS, first: seq(window), handshake: false, ..options.clone() };
    bulk(&mut trace, &again);
    trace
}

#[test]
fn the_lfp_syndrome_is_burst_loss_silence_and_go_back_and_not_a_burst_repaired_at_once() {
    let options = Bulk { segments: 2000, window_segments: 300, advertised: 600 * 1448, ..Bulk::default() };
    let finding = find(&burst_loss(&options, 1300 * MS, 120, true), Kind::LfpSyndrome).unwrap();
    assert!(
        finding.evidence.contains("120 segments again") && finding.evidence.contains("silence of 1.41"),
        "{finding:?}"
    );
    assert!((1.0..2.5).contains(&finding.cost_s), "{finding:?}");
    assert_eq!(find(&burst_loss(&options, 0, 120, false), Kind::LfpSyndrome), None);
    // A timeout for a lost tail is no syndrome.
    assert_eq!(find(&burst_loss(&options, 1300 * MS, 3, true), Kind::LfpSyndrome), None);
}

#[test]
fn a_queue_that_the_flow_fills_is_bloat_and_a_long_path_is_not() {
    let bloated = on(Bulk {
        segments: 6000,
        window_segments: 600,
        growing: true,
        advertised: 1 << 22,
        ..Bulk::default()
    });
    let finding = find(&bloated, Kind::Bufferbloat).unwrap();
    assert!(finding.evidence.contains("RTT 20"), "{finding:?}");
    let long = on(Bulk {
        segments: 6000,
        window_segments: 600,
        rtt_ns: 200 * MS,
        growing: true,
        advertised: 1 << 22,
        ..Bulk::default()
    });
    assert_eq!(find(&long, Kind::Bufferbloat), None);
}

#[test]
fn a_jump_of_the_delay_is_another_path_and_a_growing_queue_is_not() {
    let options = Bulk { segments: 12_000, window_segments: 60, advertised: 1 << 22, ..Bulk::default() };
    let jumps = on(Bulk { rtt_later_ns: Some((2000 * MS, 45 * MS)), ..options.clone() });
    let finding = find(&jumps, Kind::PathChange).unwrap();
    assert!((finding.at_s - 2.0).abs() < 0.3, "{finding:?}");
    assert_eq!(find(&jumps, Kind::Bufferbloat), None);
    let growing = on(Bulk { window_segments: 600, growing: true, ..options });
    assert_eq!(find(&growing, Kind::PathChange), None);
}

#[test]
fn merged_acks_are_compression_and_evenly_late_ones_are_not() {
    let options = Bulk { segments: 4000, window_segments: 220, paced: true, ..Bulk::default() };
    let merged = on(Bulk { merge_acks_ns: 2 * MS, ..options.clone() });
    let finding = find(&merged, Kind::AckCompression).unwrap();
    assert!(finding.evidence.contains("pairs"), "{finding:?}");
    assert_eq!(find(&on(options), Kind::AckCompression), None);
}

#[test]
fn acks_by_a_timer_are_ticks_and_evenly_spaced_ones_are_not() {
    let options = Bulk { segments: 6000, window_segments: 120, rtt_ns: 50 * MS, ..Bulk::default() };
    let ticking = on(Bulk { merge_acks_ns: 4 * MS, ..options.clone() });
    assert!(find(&ticking, Kind::ReceiverTicks).unwrap().what.contains("every 4 ms"));
    assert_eq!(find(&on(options), Kind::ReceiverTicks), None);
}

/// A trace that loses one of `every` segments once, from `from` on; from there each takes `slow_ns`.
fn lossy(every: usize, sack: bool, from: usize, slow_ns: i64) -> Trace {
    on(Bulk {
        segments: 6000,
        window_segments: 40,
        lose_every: every,
        sack,
        slow_after: Some((from, slow_ns)),
        ..Bulk::default()
    })
}

/// A sender that halves its window at losses, through a policer or losses by chance.
fn adapting(seed: u64, policed: Option<(u64, u64)>, loss_permille: u64, one_way_ns: i64) -> Trace {
    let transfer = Transfer {
        seed,
        segments: 8000,
        window_segments: 400,
        adapts: true,
        policed,
        loss_permille,
        one_way_ns,
        ..Transfer::default()
    };
    made(&transfer).trace
}

#[test]
fn a_policer_is_known_by_losses_on_a_line_and_random_loss_is_none() {
    for (seed, rate_bps, burst_bytes, one_way_ns) in
        [(1, 8_000_000, 60_000, 10 * MS), (2, 20_000_000, 30_000, 5 * MS), (3, 5_000_000, 200_000, 20 * MS)]
    {
        let finding = find(&adapting(seed, Some((rate_bps, burst_bytes)), 0, one_way_ns), Kind::Policer);
        assert!(finding.is_some_and(|found| found.what.contains("Mbit/s")), "{rate_bps}");
    }
    for seed in 1..40 {
        let (loss_permille, one_way_ns) = (1 + seed % 20, (5 + seed as i64 % 30) * MS);
        assert_eq!(find(&adapting(seed, None, loss_permille, one_way_ns), Kind::Policer), None, "{seed}");
    }
}

#[test]
fn losses_without_sack_are_told_and_no_losses_without_sack_are_not() {
    assert!(find(&lossy(50, false, 1000, 0), Kind::SackMissing).unwrap().what.contains("neither end"));
    assert_eq!(find(&lossy(0, false, 1000, 0), Kind::SackMissing), None);
    assert_eq!(find(&lossy(50, true, 1000, 0), Kind::SackMissing), None);
}

/// Small packets pass; a packet of `size` octets is sent four times and never acknowledged.
fn stuck(size: usize, passed_before: usize) -> Trace {
    let mut trace = Trace::default();
    trace.handshake(20 * MS, true, Some(7));
    let options = Bulk::default();
    let mut now = 30 * MS;
    let mut seq = 0;
    for size in [300, 500, passed_before] {
        trace.push(now, Tcp { payload: size, ..options.data(seq) });
        seq += size as u32;
        trace.push(now + 20 * MS, options.ack(seq));
        now += 30 * MS;
    }
    for again in 0..5 {
        trace.push(now, Tcp { payload: size, ..options.data(seq) });
        now += (250 * MS) << again;
    }
    trace
}

#[test]
fn full_packets_that_never_pass_are_mtu_trouble_and_a_path_that_died_is_not() {
    let finding = find(&stuck(1448, 600), Kind::MtuTrouble).unwrap();
    assert!(finding.evidence.contains("1448 octets of payload was sent again 4 times"), "{finding:?}");
    assert_eq!(find(&stuck(1448, 1448), Kind::MtuTrouble), None);
}

#[test]
fn a_closed_window_is_a_receiver_that_stalls_and_a_small_one_is_not() {
    let with_window = |window: u16| {
        let mut trace = on(Bulk { segments: 100, ..Bulk::default() });
        let last = trace.packets.last().unwrap().clone();
        trace.push(last.0 + MS, last.1.window(window));
        trace
    };
    assert!(find(&with_window(0), Kind::ReceiverStalls).is_some());
    assert_eq!(find(&with_window(100), Kind::ReceiverStalls), None);
}

/// Windows of 20 segments, one in each round trip of 50 ms, seen at the receiver. Of every tenth the first segment is
/// lost before and comes again, a round trip and so much more behind the window.
fn at_the_receiver(sack: bool, late_ns: i64) -> Trace {
    const RTT: i64 = 50 * MS;
    let options = Bulk { sack, ..Bulk::default() };
    let mut trace = Trace::default();
    trace.handshake(20 * US, sack, options.scale);
    trace.packets[2].0 = RTT;
    let mut now = RTT + MS;
    for window in 0..120u32 {
        let seq = |n: u32| (window * 20 + n) * 1448;
        let is_lost = window % 10 == 9;
        for n in u32::from(is_lost)..20 {
            now += 100 * US;
            trace.push(now, options.data(seq(n)));
            let told = if is_lost { options.ack(seq(0)) } else { options.ack(seq(n + 1)) };
            let block = (seq(1), seq(n + 1));
            trace.push(now + 5 * US, if is_lost && sack { told.sack(&[block]) } else { told });
        }
        if is_lost {
            now += RTT + late_ns;
            trace.push(now, options.data(seq(0)));
            trace.push(now + 5 * US, options.ack(seq(20)));
        }
        now += RTT;
    }
    trace
}

/// The first copies of what is sent again were lost before they came here, and the queue they met is nowhere to be
/// seen.
#[test]
fn at_the_receiver_losses_are_losses_and_what_happened_before_is_not_guessed() {
    let trace = at_the_receiver(false, MS);
    let client = trace.client();
    assert_eq!((client.counts.lost_before_segments, client.timeouts), (12, 0));
    assert!(find(&trace, Kind::SackMissing).unwrap().evidence.contains("12 segments"));
    let losses = find(&trace, Kind::Losses).unwrap();
    assert!(losses.evidence.contains("12 repairs, 12 of them without a timeout; RTT 50 ms"), "{losses:?}");
    assert_eq!(find(&trace, Kind::Policer), None);
    // Each repair takes a round trip, from its segment's coming to the sender's hearing of it.
    let repair = client.limits.recovery;
    assert!((0.05..0.2).contains(&repair), "{repair}");
    let is_met = |text: &str| text.parse::<Expect>().unwrap().judge(&trace.analyze()).met;
    assert!(is_met("retransmissions >= 0.4%") && !is_met("retransmissions < 0.4%"));
}

#[test]
fn at_the_receiver_a_long_silence_before_what_was_lost_is_a_timeout() {
    for sack in [false, true] {
        let client = at_the_receiver(sack, 250 * MS).client();
        assert_eq!((client.counts.lost_before_segments, client.timeouts), (12, 12));
        assert_eq!(at_the_receiver(sack, 20 * MS).client().timeouts, 0);
    }
}

#[test]
fn a_capture_with_holes_says_so() {
    let mut trace = on(Bulk { segments: 400, ..Bulk::default() });
    let whole = trace.clone();
    let mut data = 0;
    trace.packets.retain(|(_, tcp)| {
        data += usize::from(tcp.payload > 0);
        tcp.payload == 0 || !(100..110).contains(&data)
    });
    assert!(
        find(&trace, Kind::CaptureIncomplete).is_some() || trace.client().counts.lost_before_segments > 0
    );
    assert_eq!(find(&whole, Kind::CaptureIncomplete), None);
}

#[test]
fn packets_above_the_mss_are_offloads_and_full_ones_are_not() {
    assert!(find(&on(Bulk { segments: 400, payload: 2896, ..Bulk::default() }), Kind::Offloads).is_some());
    assert_eq!(find(&on(Bulk { segments: 400, ..Bulk::default() }), Kind::Offloads), None);
}
