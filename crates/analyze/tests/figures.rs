//! Figures that were wrong about captures of others, each with a capture that showed it.

mod copies;
mod several;

use crate::support::{
    self, MS, Tcp, Trace, US,
    script::script,
    traffic::{Capturing, Dice, Transfer, captured, made},
};
use longfat_analyze::{
    contradictions::contradictions,
    findings::Kind,
    flow::known::Missing,
    report::{DirectionReport, Ending, FlowReport},
};
use proptest::prelude::*;
use std::fmt::Write as _;

const OPENING: &str = "0 > S win 65535 mss 1460 ws 0
    +20 < SA win 14480 mss 1460 ws 0
    +0.01 > A win 65535";

/// Ten full segments fill the window, which stays closed while `probe` is sent `times` times, and then opens.
fn closed(probe: &str, times: u32) -> Trace {
    let mut text = format!("{OPENING}\n");
    for n in 0..10 {
        let _ = writeln!(text, "+0.1 > A seq {} len 1448", n * 1448);
    }
    let _ = writeln!(text, "+20 < A ack 14480 win 0");
    for n in 0..times {
        let _ = writeln!(text, "+{} > A {probe}\n+20 < A ack 14480 win 0", 300 << n.min(5));
    }
    let _ = writeln!(
        text,
        "+500 < A ack 14480 win 14480\n+0.1 > A seq 14480 len 1448\n+20 < A ack 15928 win 14480"
    );
    script(&text)
}

#[test]
fn probes_of_a_closed_window_are_its_length_and_no_loss() {
    for probe in ["seq 14479", "seq 14480 len 1"] {
        let flow = closed(probe, 5).flow();
        let [client, _] = &flow.directions;
        assert_eq!((client.counts.resent_segments, client.timeouts, client.probes), (0, 0, 5), "{probe}");
        assert_eq!(
            (client.counts.zero_windows, client.counts.unique_bytes, client.counts.unseen_bytes),
            (1, 15_928, 0),
            "{probe}"
        );
        let closed_s = 0.3 * 31.0 + 5.0 * 0.02 + 0.5;
        assert!((client.zero_window_s - closed_s).abs() < 0.01, "{}", client.zero_window_s);
        assert!(client.limits.window > 0.95 && client.limits.recovery == 0.0, "{:?}", client.limits);
        let stall = flow.findings.iter().find(|f| f.kind == Kind::ReceiverStalls).unwrap();
        assert!((stall.cost_s - closed_s).abs() < 0.01, "{stall:?}");
        let kinds: Vec<Kind> = flow.findings.iter().map(|f| f.kind).collect();
        assert_eq!(kinds, [Kind::ReceiverStalls], "no larger window would help");
    }
}

/// Twelve full segments, of which ten are acknowledged; then silence, and more.
fn behind_silence(last_bytes: u32, silence_ms: u32, more: &str) -> DirectionReport {
    let mut text = format!("{}\n", OPENING.replace("mss 1460 ws 0", "mss 1460 ws 0 sackok"));
    let mut next = 0;
    for bytes in (0..11).map(|_| 1448).chain([last_bytes]) {
        let _ = writeln!(text, "+0.1 > A seq {next} len {bytes}");
        next += bytes;
    }
    let _ = writeln!(text, "+20 < A ack 14480 win 60000");
    let _ = writeln!(text, "+{silence_ms} > A {}", more.replace("NEXT", &next.to_string()));
    text += "+20 < A ack 18824 win 60000";
    script(&text).client()
}

#[test]
fn a_probe_with_new_data_is_counted_and_sends_nothing_again() {
    let client = behind_silence(1448, 50, "seq NEXT len 1448");
    assert_eq!((client.counts.new_data_probes, client.counts.resent_segments), (1, 0), "{}", client.from);
    let more = "+20 < A ack 18824 win 60000\n+0.1 > A seq 18824 len 1448\n+0.1 > A seq 20272 len 1448";
    let twice = behind_silence(1448, 50, &format!("seq NEXT len 1448\n{more}\n+50 > A seq 21720 len 1448"));
    assert_eq!(
        (twice.counts.new_data_probes, twice.counts.resent_segments),
        (2, 0),
        "the first was acknowledged"
    );
    let again = behind_silence(1448, 50, "seq 15928 len 1448");
    assert_eq!((again.counts.new_data_probes, again.tail_probe_segments), (0, 1), "the last one again");
    let small = behind_silence(700, 50, "seq NEXT len 700");
    assert_eq!(small.counts.new_data_probes, 0, "the application had nothing more");
    let early = behind_silence(1448, 20, "seq NEXT len 1448");
    assert_eq!(early.counts.new_data_probes, 0, "no timer is that short");
}

#[test]
fn a_lone_segment_is_probed_no_sooner_than_a_delayed_acknowledgement_comes() {
    let behind = |silence_ms: u32| {
        let mut text = format!("{}\n", OPENING.replace("mss 1460 ws 0", "mss 1460 ws 0 sackok"));
        text += "+0.1 > A seq 0 len 1448\n+20 < A ack 1448 win 60000\n+0.1 > A seq 1448 len 1448\n";
        text += &format!("+{silence_ms} > A seq 2896 len 1448\n+20 < A ack 4344 win 60000");
        script(&text).client().counts.new_data_probes
    };
    assert_eq!([50, 190, 230].map(behind), [0, 1, 1], "the application had more to send meanwhile");
}

#[test]
fn an_acknowledgement_behind_a_timeout_arms_the_timer_anew_and_what_follows_it_soon_is_none() {
    let behind = |soon: &str| {
        let mut text = format!("{}\n", OPENING.replace("mss 1460 ws 0", "mss 1460 ws 0 sackok"));
        for n in 0..4 {
            let _ = writeln!(
                text,
                "+0.1 > A seq {} len 1448\n+20 < A ack {} win 60000",
                n * 1448,
                (n + 1) * 1448
            );
        }
        (4..9).for_each(|n| text += &format!("+0.01 > A seq {} len 1448\n", n * 1448));
        text += "+230 > A seq 5792 len 1448\n+20 < A ack 8688 win 60000 sack 10136-13032\n";
        text += &format!("{soon} > A seq 8688 len 1448\n+20 < A ack 13032 win 60000");
        script(&text).client()
    };
    let (rack, timer) = (behind("+10"), behind("+230"));
    assert_eq!((rack.timeouts, rack.go_back_segments), (1, 1), "RACK's timer: {}", rack.from);
    assert_eq!((timer.timeouts, timer.go_back_segments), (2, 0), "{}", timer.from);
}

#[test]
fn a_sender_that_opened_at_once_with_the_other_times_its_probes_by_both_answers() {
    let probed = |after: &str| {
        let mut text =
            "0 > S win 65535 mss 1460 ws 0 sackok\n+12 < S win 60000 mss 1460 ws 0 sackok\n".to_owned();
        text += "+0.01 > SA win 65535 mss 1460 ws 0 sackok\n+10.5 < SA win 60000 mss 1460 ws 0 sackok\n";
        text += "+0.01 > A win 65535\n+11 < A win 60000\n+170 > A seq 0 len 1448\n";
        (1..10).for_each(|n| text += &format!("+0.01 > A seq {} len 1448\n", n * 1448));
        text += &format!(
            "{after} > A seq 14480 len 1448\n+1 < A ack 14480 win 60000\n+20 < A ack 15928 win 60000"
        );
        script(&text).client()
    };
    assert_eq!(probed("+28").counts.new_data_probes, 1, "two of its round trips");
    assert_eq!(probed("+12").counts.new_data_probes, 0, "one");
    let meanwhile = probed("+14 < A seq 0 len 1448\n+14");
    assert_eq!(meanwhile.counts.new_data_probes, 1, "data that acknowledges nothing new");
    assert!(probed("+28").least_rtt_us.is_some_and(|least| least > 20_000.0), "and that is not the path's");
}

#[test]
fn a_full_segment_that_probes_is_no_loss_either_and_an_octet_that_is_taken_was_seen() {
    let client = closed("seq 14480 len 1448", 3).client();
    assert_eq!((client.counts.resent_segments, client.timeouts), (0, 0), "{}", client.from);
    let mut taken = closed("seq 14480 len 1", 1);
    let last = taken.packets.len() - 4;
    taken.packets.truncate(last + 1);
    taken.script("+1 < A ack 14481 win 0\n+300 > A seq 14481 len 1\n+20 < A ack 14481 win 14480\n+1 > A seq 14481 len 1448\n+20 < A ack 15929 win 14480");
    let client = taken.client();
    assert_eq!(
        (client.counts.unseen_bytes, client.counts.resent_segments, client.counts.unique_bytes),
        (0, 0, 15_929),
        "{}",
        client.from
    );
}

/// Swaps each acknowledgement with the data before it when they are that close.
fn acks_first(trace: &Trace, late_ns: i64) -> Trace {
    let mut packets = trace.packets.clone();
    for (time_ns, tcp) in &mut packets {
        if tcp.payload > 0 {
            *time_ns += late_ns;
        }
    }
    packets.sort_by_key(|(time_ns, _)| *time_ns);
    Trace { packets }
}

#[test]
fn data_recorded_behind_its_acknowledgement_was_sent_once() {
    let transfer = Transfer { place: 100, window_segments: 4, ..Transfer::default() };
    for late_ns in [2 * US, 50 * US, 900 * US] {
        let client = acks_first(&made(&transfer).trace, late_ns).client();
        assert_eq!((client.counts.resent_segments, client.counts.unseen_bytes), (0, 0), "{late_ns}");
        assert_eq!(client.counts.unique_bytes, 400 * 1448);
    }
}

#[test]
fn copies_cut_on_the_way_in_are_no_retransmissions() {
    let whole =
        |n: u32, id: u16| Tcp::client(flag_ack(), n * 5792, 0).payload(5792).ip_id(id).timestamps(7 + n, 7);
    let part = |n: u32, k: u32, id: u16| {
        Tcp::client(flag_ack(), n * 5792 + k * 1448, 0).payload(1448).ip_id(id).timestamps(7 + n, 7)
    };
    let mut trace = Trace::default();
    trace.handshake(60 * US, true, Some(7));
    for n in 0..20u32 {
        let (id, at) = (100 + 4 * n as u16, i64::from(n) * MS + MS);
        trace.push(at, whole(n, id));
        (0..4).for_each(|k| trace.push(at + (3 + i64::from(k)) * US, part(n, k, id + k as u16)));
        let ack = Tcp::server(flag_ack(), 0, (n + 1) * 5792).ip_id(900 + n as u16).timestamps(7 + n, 7 + n);
        trace.push(at + 20 * US, ack.clone());
        trace.push(at + 23 * US, ack);
    }
    let client = trace.client();
    assert_eq!(
        (client.counts.resent_segments, client.timeouts, client.counts.unique_bytes),
        (0, 0, 20 * 5792),
        "{}",
        client.from
    );
    assert_eq!((client.counts.duplicate_packets, client.counts.duplicate_acks), (80, 0));
}

fn flag_ack() -> u16 {
    longfat_analyze::segment::flag::ACK
}

#[test]
fn a_handshake_recorded_twice_is_no_ambiguous_one() {
    let whole = made(&Transfer::default()).trace;
    let mut copied = Trace::default();
    for (time_ns, tcp) in &whole.packets {
        copied.push(*time_ns, tcp.clone());
        copied.push(time_ns + 3 * US, tcp.clone());
    }
    let (once, twice) = (whole.flow(), copied.flow());
    assert_eq!(twice.vantage, once.vantage);
    let told = |flow: &FlowReport| (flow.handshake.rtt_us, flow.handshake.repeated_syns);
    assert_eq!(told(&twice), told(&once));
}

/// How a capture comes to have each packet twice.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Twice {
    /// Right behind it.
    EachBehind,
    /// Behind those of so many microseconds, as a host takes packets in.
    InBatches(i64),
}

fn twice(trace: &Trace, how: Twice) -> Trace {
    let batch_ns = if let Twice::InBatches(us) = how { us * US } else { 0 };
    let (mut packets, mut rest) = (Vec::new(), &trace.packets[..]);
    while let Some((first_ns, _)) = rest.first() {
        let count = rest.partition_point(|(time_ns, _)| *time_ns < first_ns + batch_ns).max(1);
        let (batch, behind) = rest.split_at(count);
        let next_ns = behind.first().map_or(i64::MAX, |(time_ns, _)| *time_ns);
        let most_ns = if how == Twice::EachBehind { next_ns - first_ns } else { i64::MAX };
        let late_ns = (batch[count - 1].0 - first_ns + 3 * US).min(most_ns);
        packets.extend(batch.iter().cloned());
        packets.extend(batch.iter().map(|(time_ns, tcp)| (time_ns + late_ns, tcp.clone())));
        rest = behind;
    }
    packets.sort_by_key(|(time_ns, _)| *time_ns);
    Trace { packets }
}

/// NewReno repairs a hole that only late packets made, and a partial acknowledgement then asks for what has just left.
#[test]
fn what_an_acknowledgement_asks_for_is_sent_again_within_half_a_round_trip() {
    let plain = Transfer { sack: false, timestamps: false, ..Transfer::default() };
    let recorded_before_it_asks = Transfer {
        seed: 3_641_541_084_135_363_802,
        segments: 122,
        window_segments: 40,
        one_way_ns: 1243 * US,
        loss_permille: 3,
        reorder_permille: 36,
        place: 22,
        ..plain.clone()
    };
    let recorded_behind_what_asks = Transfer {
        seed: 9_827_577_757_857_684_886,
        segments: 31,
        window_segments: 10,
        one_way_ns: 2526 * US,
        reorder_permille: 27,
        scale: None,
        place: 20,
        ..plain
    };
    for transfer in [recorded_before_it_asks, recorded_behind_what_asks] {
        let made = made(&transfer);
        for no_handshake in [false, true] {
            let how = Capturing { no_handshake, ..Capturing::default() };
            let once = captured(&unnumbered(made.trace.clone()), &how);
            for trace in [once.clone(), twice(&once, Twice::EachBehind)] {
                let client = trace.client();
                assert_eq!(client.counts.resent_segments, made.resent_segments, "{transfer:?} {how:?}");
            }
        }
    }
}

fn acknowledgements_of_the_first_batch(trace: &Trace, how: Twice) -> u64 {
    let Twice::InBatches(us) = how else { return 0 };
    let first_ns = trace.packets[0].0;
    let batch = trace.packets.iter().take_while(|(time_ns, _)| *time_ns < first_ns + us * US);
    batch.filter(|(_, tcp)| tcp.payload == 0 && tcp.flags == 0x10).count() as u64
}

/// Closes what [`made`] leaves open, and resets it.
fn ended(mut trace: Trace, transfer: &Transfer) -> Trace {
    let end = transfer.first.wrapping_add(transfer.segments * transfer.mss);
    let last_ns = trace.packets.last().unwrap().0;
    let way = 2 * transfer.one_way_ns + 40 * US;
    let after = end.wrapping_add(1);
    let fins = [Tcp::client(0x11, end, 0), Tcp::server(0x11, 0, after), Tcp::client(0x10, after, 1)];
    let all = fins.into_iter().chain([Tcp::server(0x04, 1, 0)]).enumerate();
    trace.packets.extend(all.map(|(n, tcp)| (last_ns + (n as i64 + 1) * way, tcp)));
    trace
}

/// What copies must not change.
fn told(flow: &FlowReport) -> impl PartialEq + std::fmt::Debug + use<> {
    let of = |one: &DirectionReport| {
        let mut counts = one.counts;
        (counts.packets, counts.duplicate_packets) = (0, 0);
        (counts, one.timeouts, one.rtt, one.limits)
    };
    let kinds: Vec<Kind> = flow.findings.iter().map(|finding| finding.kind).collect();
    (flow.directions.each_ref().map(of), kinds, flow.handshake.clone(), flow.vantage)
}

#[test]
fn duplicate_acks_that_look_alike_are_no_copies_where_nothing_else_is_there_twice() {
    let plain = Transfer { sack: false, timestamps: false, loss_permille: 20, ..Transfer::default() };
    let numbered = made(&plain).trace;
    let without = unnumbered(numbered.clone());
    assert!(numbered.client().counts.duplicate_acks > 20);
    assert_eq!(without.client().counts, numbered.client().counts);
}

/// As of IPv6, or of a sender that leaves the identification zero.
fn unnumbered(mut trace: Trace) -> Trace {
    trace.packets.iter_mut().for_each(|(_, tcp)| tcp.ip_id = 0);
    trace
}

#[test]
fn acks_recorded_twice_without_an_identification_are_neither_duplicates_nor_ticks() {
    let transfer = Transfer { segments: 6000, window_segments: 100, ..Transfer::default() };
    let once = unnumbered(made(&transfer).trace);
    let flow = twice(&once, Twice::EachBehind).flow();
    assert_eq!(flow.directions[0].counts.duplicate_acks, 0);
    assert_eq!(flow.directions[1].counts.duplicate_packets, once.packets.len() as u64 / 2);
    assert_eq!(told(&flow), told(&once.flow()));
}

#[test]
fn a_copy_that_is_not_known_yet_changes_neither_bursts_nor_ticks() {
    let seed = 11_268_235_902_766_489;
    let path = Transfer {
        segments: 318,
        window_segments: 14,
        reorder_permille: 60,
        place: 59,
        ..Transfer::default()
    };
    for one_way_ns in [409 * US, 1409 * US] {
        let options =
            Transfer { seed, one_way_ns, sack: false, timestamps: false, scale: None, ..path.clone() };
        let whole = ended(made(&options).trace, &options);
        let once = captured(&whole, &Capturing { no_handshake: true, ..Capturing::default() });
        let (flow, doubled) = (once.flow(), twice(&once, Twice::InBatches(31)).flow());
        assert_eq!(told(&doubled), told(&flow), "{one_way_ns}");
        assert_eq!(doubled.directions[0].data_gaps, flow.directions[0].data_gaps, "{one_way_ns}");
    }
}

#[test]
fn at_an_unknown_place_a_copy_behind_the_acknowledgement_is_none_sent_again() {
    let lone = Transfer { segments: 1, window_segments: 1, one_way_ns: MS, place: 99, ..Transfer::default() };
    let lone = Transfer { sack: false, timestamps: false, scale: None, ..lone };
    let whole = unnumbered(ended(made(&lone).trace, &lone));
    let once = captured(&whole, &Capturing { no_handshake: true, ..Capturing::default() });
    assert_eq!(told(&twice(&once, Twice::InBatches(31)).flow()), told(&once.flow()));
}

#[test]
fn duplicate_acks_behind_each_acknowledgement_are_no_copies_while_their_number_is_odd() {
    let lossy = Transfer { segments: 88, window_segments: 40, loss_permille: 27, ..Transfer::default() };
    let seed = 7_589_704_347_120_506_610;
    let path = Transfer { seed, one_way_ns: 1289 * US, sack: false, timestamps: false, ..lossy };
    let whole = unnumbered(ended(made(&path).trace, &path));
    let once = captured(&whole, &Capturing { no_handshake: true, ..Capturing::default() });
    let doubled = twice(&once, Twice::EachBehind);
    assert_eq!(told(&doubled.flow()), told(&once.flow()));
}

#[test]
fn duplicate_acks_of_one_moment_are_each_followed_by_their_copy() {
    let lossy = Transfer { segments: 94, window_segments: 17, loss_permille: 21, ..Transfer::default() };
    let seed = 410_317_989_654_375_984;
    let path =
        Transfer { seed, one_way_ns: MS, reorder_permille: 36, sack: false, timestamps: false, ..lossy };
    let path = Transfer { scale: None, ..path };
    let once = unnumbered(ended(made(&path).trace, &path));
    assert_eq!(told(&twice(&once, Twice::EachBehind).flow()), told(&once.flow()));
}

#[test]
fn acks_recorded_twice_are_no_duplicates_where_the_data_is_recorded_once() {
    let plain =
        Transfer { sack: false, timestamps: false, loss_permille: 10, segments: 3000, ..Transfer::default() };
    let once = unnumbered(made(&plain).trace);
    let mut copied = Trace::default();
    for (time_ns, tcp) in &once.packets {
        copied.push(*time_ns, tcp.clone());
        if !tcp.from_client {
            copied.push(time_ns + 3 * US, tcp.clone());
        }
    }
    let (flow, doubled) = (once.flow(), copied.flow());
    let duplicates = |flow: &FlowReport| flow.directions[0].counts.duplicate_acks;
    // Of the first acknowledgements it is not known yet that all come twice.
    let (real, counted) = (duplicates(&flow), duplicates(&doubled));
    assert!(real > 500 && (real..real + 8).contains(&counted), "{counted} of {real}");
    let kinds = |flow: &FlowReport| flow.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>();
    assert_eq!((kinds(&doubled), doubled.directions[0].limits), (kinds(&flow), flow.directions[0].limits));
}

#[test]
fn a_copy_that_the_path_held_back_is_none_either() {
    let mut trace =
        made(&Transfer { window_segments: 200, segments: 2000, place: 100, ..Transfer::default() }).trace;
    let late: Vec<_> = trace.packets.iter().filter(|(_, tcp)| tcp.payload > 0).step_by(50).cloned().collect();
    let times = late.len() as u64;
    trace.packets.extend(late.into_iter().map(|(time_ns, tcp)| (time_ns + 3 * MS, tcp)));
    trace.packets.sort_by_key(|(time_ns, _)| *time_ns);
    let client = trace.client();
    assert_eq!((client.counts.resent_segments, client.counts.duplicate_packets), (0, times));
}

#[test]
fn the_answer_to_a_syn_that_crossed_ones_own_sends_nothing_again() {
    let opening = |again: &str| {
        let text = format!(
            "0 > S win 65535 mss 1460 ws 7\n+10 < S win 65535 mss 1460 ws 7\n{again}+0.01 > SA win 65535 mss 1460 ws 7
            +10 < SA win 65535 mss 1460 ws 7\n+0.01 > A\n+5 > A len 1000\n+20 < A ack 1000 win 500"
        );
        script(&text).flow()
    };
    let flow = opening("");
    assert!(flow.handshake.simultaneous_open);
    let again = |flow: &longfat_analyze::report::FlowReport| {
        flow.directions.each_ref().map(|one| (one.counts.resent_segments, one.timeouts))
    };
    assert_eq!((again(&flow), flow.handshake.repeated_syns), ([(0, 0); 2], 0));
    assert_eq!(again(&opening("+1000 > S win 65535 mss 1460 ws 7\n")), [(1, 1), (0, 0)]);
}

#[test]
fn a_segment_sent_again_at_once_is_no_copy() {
    let mut trace = Trace::default();
    trace.handshake(20 * MS, true, Some(7));
    let data = Tcp::client(flag_ack(), 0, 0).payload(1448);
    trace.push(30 * MS, data.clone().ip_id(7).timestamps(7, 7));
    trace.push(31 * MS, data.ip_id(8).timestamps(8, 7));
    assert_eq!(trace.client().counts.resent_segments, 1);
}

#[test]
fn where_all_packets_have_one_identification_it_tells_no_copies() {
    let mut trace = made(&Transfer { loss_permille: 20, timestamps: false, ..Transfer::default() }).trace;
    let counted = trace.client().counts.resent_segments;
    trace.packets.iter_mut().for_each(|(_, tcp)| tcp.ip_id = 7);
    let counts = trace.client().counts;
    assert_eq!((counts.resent_segments, counts.duplicate_packets), (counted, 0));
    assert!(counted > 3);
}

#[test]
fn identifications_drawn_by_lot_tell_no_order() {
    let lossy =
        Transfer { loss_permille: 30, timestamps: false, place: 90, segments: 2000, ..Transfer::default() };
    let reordering =
        Transfer { loss_permille: 0, reorder_permille: 30, place: 100, one_way_ns: 6 * MS, ..lossy.clone() };
    for transfer in [lossy, reordering] {
        let mut trace = made(&transfer).trace;
        let counts = |trace: &Trace| {
            let counts = trace.client().counts;
            (counts.lost_before_segments, counts.reordered_segments)
        };
        let numbered = counts(&trace);
        let mut dice = Dice(7);
        trace.packets.iter_mut().for_each(|(_, tcp)| tcp.ip_id = dice.next() as u16 | 1);
        assert_eq!(counts(&trace), numbered);
        assert!(numbered.0 + numbered.1 > 30, "{numbered:?}");
    }
}

#[test]
fn numbers_from_another_world_move_nothing() {
    let clean = made(&Transfer::default()).trace;
    let reference = clean.client();
    for (seq, ack) in [(3_000_000_000, 531_000_000), (2_000_000_000, 5), (900_000_000, 900_000_000)] {
        let mut trace = clean.clone();
        let middle = trace.packets.len() / 2;
        for (n, from_client) in [true, false, true, false].into_iter().enumerate() {
            let (time_ns, _) = trace.packets[middle + 40 * n];
            let foreign = if from_client {
                Tcp::client(flag_ack(), seq, ack)
            } else {
                Tcp::server(flag_ack(), seq, ack)
            };
            trace.packets.insert(middle + 40 * n, (time_ns, foreign.payload(100 * n)));
        }
        let flow = trace.flow();
        let client = &flow.directions[0];
        assert_eq!(client.counts.unseen_bytes, 0, "{seq} {ack}");
        assert_eq!(
            (client.counts.unique_bytes, client.counts.acked_bytes),
            (reference.counts.unique_bytes, reference.counts.acked_bytes)
        );
        assert_eq!(client.counts.resent_segments, 0, "{seq} {ack}");
        assert!(
            flow.directions.iter().map(|one| one.counts.foreign_packets).sum::<u64>() >= 2,
            "{seq} {ack}"
        );
    }
}

#[test]
fn a_second_answer_to_the_syn_with_another_number_moves_nothing() {
    let mut trace = made(&Transfer::default()).trace;
    let other = Tcp::server(0x12, 77_777_777, 0).syn_options(false, None);
    trace.packets.insert(2, (trace.packets[1].0 + US, other));
    let flow = trace.flow();
    assert_eq!(flow.handshake.sack, Some(true));
    assert_eq!((flow.directions[0].counts.unseen_bytes, flow.directions[1].counts.foreign_packets), (0, 1));
    assert!((flow.directions[0].segments_per_ack.unwrap() - 1.0).abs() < 0.1);
}

/// Fifty packets and their acknowledgements, a reset of the server, twelve seconds of silence, and what comes then.
fn behind_a_reset(reset: &str, then: &str) -> Vec<FlowReport> {
    let mut text = format!("{OPENING}\n");
    for n in 0..50u32 {
        let _ = writeln!(text, "+1 > A seq {} len 1000\n+20 < A ack {} win 14480", n * 1000, (n + 1) * 1000);
    }
    let _ = writeln!(text, "+1 < R {reset} ttl 33\n{then}");
    for n in 50..60u32 {
        let wait = if n == 50 { 12_000 } else { 1 };
        let _ =
            writeln!(text, "+{wait} > A seq {} len 1000\n+20 < A ack {} win 14480", n * 1000, (n + 1) * 1000);
    }
    script(&text).analyze().flows
}

#[test]
fn a_reset_outside_any_window_ends_nothing() {
    let flows = behind_a_reset("seq 90000000", "");
    assert_eq!((flows.len(), flows[0].ending), (1, Ending::Open));
    let [client, server] = &flows[0].directions;
    assert_eq!((client.counts.unique_bytes, server.counts.foreign_packets), (60_000, 1));
    assert!(flows[0].findings.iter().any(|finding| finding.kind == Kind::InjectedReset), "which is told");
    let flows = behind_a_reset("seq 0", "");
    assert_eq!((flows.len(), flows[0].ending), (2, Ending::ResetByServer), "within the window");
}

#[test]
fn an_end_that_goes_on_behind_its_reset_did_not_send_it() {
    let flows = behind_a_reset("seq 0", "+30 < A ack 50000 win 14480");
    assert_eq!((flows.len(), flows[0].ending), (1, Ending::Open));
    let late = behind_a_reset("seq 0", "+0.01 < A ack 50000 win 14480");
    assert_eq!((late.len(), late[0].ending), (2, Ending::ResetByServer), "recorded behind it");
    let answered = behind_a_reset("seq 0", "+30 < A ack 50000 win 14480\n+0.1 > R seq 50000");
    assert_eq!((answered.len(), answered[0].ending), (2, Ending::ResetByClient), "which took it");
}

/// What a server sends over connections with the same ports: answers, each with its number; data, and an end or none.
fn answers(numbers: &[u32], data: u32, finished: bool, wait_ms: u32) -> Vec<FlowReport> {
    let mut trace = Trace::default();
    for (n, number) in numbers.iter().enumerate() {
        let wait_ms = if n == 0 { 0 } else { wait_ms };
        let mut text = format!("+{wait_ms} < SA win 65535 mss 1460 ws 7\n");
        (0..data).for_each(|n| text += &format!("+1 < A seq {} ack 100 len 1000 win 500\n", n * 1000));
        if finished {
            let _ = writeln!(text, "+1 < FA seq {} ack 100 win 500", data * 1000);
        }
        let before = trace.packets.len();
        trace.script(&text);
        trace.packets[before..].iter_mut().for_each(|(_, tcp)| tcp.seq = tcp.seq.wrapping_add(*number));
    }
    trace.analyze().flows
}

#[test]
fn connections_of_which_the_servers_direction_alone_was_captured_are_told_apart_by_its_answers() {
    let told = |flows: Vec<FlowReport>| {
        let bytes = flows.iter().map(|flow| flow.directions[1].counts.unique_bytes).collect::<Vec<_>>();
        let lost: u64 = flows.iter().map(|flow| flow.directions[1].counts.unseen_bytes).sum();
        (bytes, lost)
    };
    let numbers = [5_000, 900_000_000, 3_000_000_000];
    for finished in [true, false] {
        assert_eq!(told(answers(&numbers, 20, finished, 3000)), (vec![20_000; 3], 0), "{finished}");
    }
    assert_eq!(told(answers(&numbers, 20, true, 1)), (vec![20_000; 3], 0), "soon behind the end");
    assert_eq!(answers(&numbers, 0, false, 3000).len(), 3, "nothing came of them");
    let flows = answers(&numbers, 0, false, 1);
    assert_eq!((flows.len(), flows[0].directions[1].counts.foreign_packets), (1, 2), "sent at once");
    assert_eq!(answers(&[5_000; 3], 0, false, 1000).len(), 1, "sent again");
}

#[test]
fn an_answer_whose_syn_the_capture_lacks_opens_a_connection_where_the_one_before_is_over() {
    let again = |end: &str| {
        let mut trace = script(&format!("{OPENING}\n+1 > A len 1000\n+20 < A ack 1000 win 14480\n{end}"));
        let before = trace.packets.len();
        trace.script("+3000 < SA win 14480 mss 1460 ws 0\n+0.01 > A win 65535\n+1 > A len 500");
        for (_, tcp) in &mut trace.packets[before..] {
            let by = if tcp.from_client { &mut tcp.ack } else { &mut tcp.seq };
            *by = by.wrapping_add(800_000_000);
        }
        trace.analyze().flows.len()
    };
    assert_eq!(again("+1 > FA seq 1000\n+20 < FA ack 1001 win 14480\n+0.01 > A seq 1001 ack 1\n"), 2);
    assert_eq!(again("+1 < R seq 0\n"), 2);
    assert_eq!(again(""), 1, "a stranger's");
}

#[test]
fn an_end_without_payload_probes_with_none() {
    let flow = script("0 > S win 65535 mss 1460\n+2000 > FA seq 0\n+2000 > FA seq 1").flow();
    assert_eq!(flow.directions[0].counts.new_data_probes, 0);
    assert_eq!(contradictions(&script("0 > S win 65535\n+2000 > FA seq 0").analyze()), Vec::<String>::new());
}

#[test]
fn a_capture_that_lacks_a_stretch_goes_on_behind_it() {
    let mut trace = made(&Transfer { segments: 4000, ..Transfer::default() }).trace;
    let count = trace.packets.len();
    trace.packets.drain(count / 2..count / 2 + 3000);
    let client = trace.client();
    let all = client.counts.unique_bytes + client.counts.unseen_bytes;
    assert!(all.abs_diff(4000 * 1448) <= 2 * 1448, "{}", client.from);
    assert_eq!(client.counts.resent_segments, 0, "{}", client.from);
}

#[test]
fn what_one_direction_alone_cannot_tell_is_not_told() {
    let whole = made(&Transfer { segments: 3000, loss_permille: 5, ..Transfer::default() }).trace;
    for only_client in [true, false] {
        let how = Capturing { only_client: Some(only_client), no_handshake: true, ..Capturing::default() };
        let trace = captured(&whole, &how);
        let flow = trace.flow();
        let main = flow.directions.iter().find(|one| one.from.ends_with(":40000")).unwrap();
        let missing = if only_client { Missing::Acknowledgements } else { Missing::Direction };
        assert_eq!(main.missing, Some(missing));
        assert_eq!((main.rtt, main.segments_per_ack), (None, None));
        assert_eq!(main.limits, Default::default());
        let text = longfat_analyze::summary::text(&trace.analyze());
        assert!(text.contains("one direction is missing"), "{text}");
    }
}

#[test]
fn a_filtered_capture_says_so_and_tells_no_rates() {
    let whole = made(&Transfer { segments: 3000, ..Transfer::default() }).trace;
    let mut kept = whole.clone();
    let mut number = 0;
    kept.packets.retain(|(_, tcp)| {
        number += 1;
        tcp.flags & 0x02 != 0 || number % 50 == 0
    });
    let analysis = kept.analyze();
    let client = &analysis.flows[0].directions[0];
    assert!(
        client.missing.is_some() && client.throughput_bps.is_none() && client.rtt.is_none(),
        "{}",
        client.from
    );
    assert!(longfat_analyze::summary::text(&analysis).contains("filtered or incomplete"));
}

#[test]
fn a_clock_that_is_set_back_makes_no_time_negative() {
    let how = Capturing { set_back_ns: 1_381_533_735_000 * MS, ..Capturing::default() };
    let trace = captured(&made(&Transfer::default()).trace, &how);
    assert_eq!(contradictions(&trace.analyze()), Vec::<String>::new());
}

#[test]
fn without_a_known_window_nothing_is_limited_by_it() {
    let how = Capturing { only_client: Some(true), ..Capturing::default() };
    let trace = captured(&made(&Transfer { segments: 15, ..Transfer::default() }).trace, &how);
    let client: DirectionReport = trace.client();
    assert_eq!((client.most_window_bytes, client.limits.window), (None, 0.0), "{}", client.from);
}

fn transfers() -> impl Strategy<Value = Transfer> {
    let path = (1u32..400, 1u32..80, prop_oneof![Just(1448u32), Just(536), Just(8948)], 0i64..40_000);
    let harm = (prop_oneof![Just(0u64), 0u64..80], prop_oneof![Just(0u64), 0u64..80]);
    let options = (any::<bool>(), any::<bool>(), prop_oneof![Just(None), Just(Some(0u8)), Just(Some(7))]);
    (any::<u64>(), path, harm, options, 0i64..=100, any::<u32>()).prop_map(
        |(
            seed,
            (segments, window_segments, mss, one_way_us),
            (loss, reorder),
            (sack, timestamps, scale),
            place,
            first,
        )| {
            Transfer {
                seed,
                segments,
                window_segments,
                mss,
                one_way_ns: one_way_us * US,
                loss_permille: loss,
                reorder_permille: reorder,
                sack,
                timestamps,
                scale,
                place,
                first,
                ..Transfer::default()
            }
        },
    )
}

fn capturings() -> impl Strategy<Value = Capturing> {
    let share = || prop_oneof![3 => Just(0u64), 1 => 0u64..120];
    let set_back_ns = prop_oneof![4 => Just(0i64), 1 => 0i64..100_000 * MS];
    let only = prop_oneof![4 => Just(None), 1 => any::<bool>().prop_map(Some)];
    (
        any::<u64>(),
        share(),
        share(),
        share(),
        0i64..30 * MS,
        prop_oneof![3 => Just(0u64), 1 => 0u64..100],
        only,
        any::<bool>(),
        share(),
        set_back_ns,
    )
        .prop_map(
            |(
                seed,
                lost_permille,
                copied_permille,
                late_permille,
                late_ns,
                cut_percent,
                only_client,
                no_handshake,
                foreign_permille,
                set_back_ns,
            )| {
                Capturing {
                    seed,
                    lost_permille,
                    copied_permille,
                    late_permille,
                    late_ns,
                    cut_percent,
                    only_client,
                    no_handshake,
                    foreign_permille,
                    set_back_ns,
                }
            },
        )
}

proptest! {
    #![proptest_config(support::cases::cases(768))]

    #[test]
    fn an_analysis_contradicts_itself_nowhere(transfer in transfers(), how in capturings()) {
        let trace = captured(&made(&transfer).trace, &how);
        prop_assert_eq!(contradictions(&trace.analyze()), Vec::<String>::new());
    }

    #[test]
    fn at_the_sender_what_was_sent_again_is_what_its_sender_sent_again(transfer in transfers()) {
        let made = made(&Transfer { place: 0, mss: transfer.mss.min(1448), ..transfer });
        let [client, _] = made.trace.flow().directions;
        prop_assert_eq!(client.counts.resent_segments, made.resent_segments);
        prop_assert_eq!(client.counts.unseen_bytes, 0);
    }

    #[test]
    fn what_is_recorded_twice_is_told_as_if_it_were_recorded_once(
        transfer in transfers(),
        is_numbered in any::<bool>(),
        has_handshake in prop_oneof![3 => Just(true), 1 => Just(false)],
        how in prop_oneof![Just(Twice::EachBehind), (20i64..60).prop_map(Twice::InBatches)],
    ) {
        // No more is sent than the SYN's window allows, which has no scale.
        let window_segments = transfer.window_segments.min(40);
        let (mss, one_way_ns) = (transfer.mss.min(1448), transfer.one_way_ns + MS);
        let transfer = Transfer { mss, one_way_ns, window_segments, ..transfer };
        // Of a batch, nothing else tells which duplicate ACK is whose copy.
        let has_duplicates = transfer.loss_permille + transfer.reorder_permille > 0;
        let how = if is_numbered || !has_duplicates { how } else { Twice::EachBehind };
        let whole = ended(made(&transfer).trace, &transfer);
        let whole = if is_numbered { whole } else { unnumbered(whole) };
        let once = captured(&whole, &Capturing { no_handshake: !has_handshake, ..Capturing::default() });
        let (flow, doubled) = (once.flow(), twice(&once, how).flow());
        prop_assert_eq!(told(&doubled), told(&flow));
        let copies = |flow: &FlowReport| flow.directions.each_ref().map(|one| one.counts.duplicate_packets);
        let [most, found] = [&flow, &doubled].map(|flow| copies(flow).iter().sum::<u64>());
        let most = most + flow.packets;
        // While the first batch is read, it is not known yet that all comes twice.
        let unknown = acknowledgements_of_the_first_batch(&once, how).max(1);
        prop_assert!(found <= most && found + unknown >= most, "{found} of {most}, {unknown} unknown");
    }

    #[test]
    fn copies_and_late_records_change_no_count(transfer in transfers(), seed in any::<u64>()) {
        let made = made(&Transfer { place: 0, mss: transfer.mss.min(1448), ..transfer });
        let how = Capturing { seed, copied_permille: 200, ..Capturing::default() };
        let [client, _] = captured(&made.trace, &how).flow().directions;
        prop_assert_eq!(client.counts.resent_segments, made.resent_segments);
    }
}

#[test]
fn thirty_kinds_of_traffic_contradict_nothing() {
    let kinds = support::kinds::kinds();
    assert_eq!(kinds.len(), 30);
    for (name, trace) in kinds {
        assert_eq!(contradictions(&trace.analyze()), Vec::<String>::new(), "{name}");
    }
}

/// Made with [`Dice`], so that cases stay the same: they were set aside while thresholds were chosen.
#[test]
fn cases_set_aside_hold_as_well() {
    let mut dice = Dice(0x5eed);
    for number in 0..200 {
        let transfer = Transfer {
            seed: dice.next(),
            segments: 20 + (dice.next() % 600) as u32,
            window_segments: 2 + (dice.next() % 60) as u32,
            one_way_ns: (dice.next() % 50_000) as i64 * US,
            loss_permille: dice.next() % 60,
            place: (dice.next() % 101) as i64,
            ..Transfer::default()
        };
        let how = Capturing {
            seed: number,
            lost_permille: dice.next() % 40,
            foreign_permille: dice.next() % 20,
            ..Capturing::default()
        };
        let found = contradictions(&captured(&made(&transfer).trace, &how).analyze());
        assert_eq!(found, Vec::<String>::new(), "{transfer:?} {how:?}");
    }
}

/// Full packets of `size` octets, ten a round trip.
fn full(text: &mut String, rounds: u32, size: u32) {
    for round in 0..rounds {
        for n in 0..10 {
            let _ = writeln!(text, "+0.1 > A seq {} len {size}", (10 * round + n) * size);
        }
        let _ = writeln!(text, "+20 < A ack {} win 65535", 10 * (round + 1) * size);
    }
}

#[test]
fn packets_of_what_the_other_end_takes_are_one_segment_each_where_a_router_lowered_the_own_mss() {
    let of = |own: u32, peers: u32, size: u32| {
        let mut text =
            format!("0 > S win 65535 mss {own}\n+20 < SA win 65535 mss {peers}\n+0.01 > A win 65535\n");
        full(&mut text, 4, size);
        let flow = script(&text).flow();
        let offloads = flow.findings.iter().any(|finding| finding.kind == Kind::Offloads);
        (flow.directions[0].counts.data_segments, flow.directions[0].counts.oversize_packets, offloads)
    };
    assert_eq!(of(1400, 1460, 1460), (40, 0, false));
    // Nobody sends more than its own interface takes, whatever the other end would.
    assert_eq!(of(1460, 8960, 2920), (80, 40, true));
    assert_eq!(of(1460, 1400, 2800), (80, 40, true));
}

#[test]
fn a_syn_that_was_sent_again_without_options_is_not_the_one_that_an_answer_with_them_answers() {
    let mut text = "0 > S win 65535 mss 1460 ws 7 sackok
        +1000 > S win 65535 mss 1460
        +5 < SA win 65535 mss 1460 ws 7 sackok
        +0.01 > A win 500\n"
        .to_owned();
    full(&mut text, 2, 1000);
    let flow = script(&text.replace("win 65535\n", "win 600\n")).flow();
    assert_eq!((flow.handshake.window_scaling, flow.handshake.sack), (Some(true), Some(true)));
    assert_eq!(flow.directions[0].most_window_bytes, Some(600 << 7));
    assert_eq!(flow.directions[0].missing, None);
}

#[test]
fn what_comes_behind_the_end_under_other_numbers_is_another_flow() {
    let half = |base: u32| {
        let line = |n: u32| {
            let at = base.wrapping_add(n * 1000);
            format!("+50 > A seq {at} len 1000 ack 7\n+10 < A seq 7 ack {}\n", at.wrapping_add(1000))
        };
        (0..20).map(line).collect::<String>()
    };
    let (first, second) = (half(0), half(1_500_000_000));
    let analysis = script(&format!("{first}+1 > R seq 20000\n+1000 {}", &second[1 + 2..])).analyze();
    let bytes: Vec<u64> = analysis
        .flows
        .iter()
        .map(|flow| flow.directions.iter().map(|d| d.counts.unique_bytes).sum())
        .collect();
    assert_eq!((analysis.totals.flows, bytes), (2, vec![20_000, 20_000]));
    assert!(analysis.flows.iter().flat_map(|flow| &flow.directions).all(|d| d.counts.unseen_bytes == 0));
}

#[test]
fn two_connections_between_the_same_ends_are_no_gigabytes_that_are_lacking() {
    let mut text = format!("{OPENING}\n");
    for n in 0..20u32 {
        for base in [0u32, 1_900_000_000] {
            let at = base + n * 2000;
            let _ = writeln!(text, "+1 > A seq {at} len 1000\n+0.1 > A seq {} len 1000", at + 1000);
            let _ = writeln!(text, "+20 < A ack {} win 14480", at + 2000);
        }
    }
    let [client, _] = &script(&text).flow().directions;
    assert_eq!(client.missing, Some(Missing::Numbering));
    assert!(client.counts.renumbered > 10 && client.counts.unseen_bytes < 100_000, "{:?}", client.counts);
}

#[test]
fn sends_behind_the_others_payload_are_told_from_those_of_their_own_accord() {
    let counts = |asked: bool| {
        let mut text = format!("{OPENING}\n");
        for n in 0..10 {
            let ask = if asked {
                format!("+200 < A seq {} len 10 ack {}\n", n * 10, n * 1000)
            } else {
                String::new()
            };
            let _ = writeln!(
                text,
                "{ask}+200 > A seq {} len 1000\n+20 < A ack {} win 14480",
                n * 1000,
                (n + 1) * 1000
            );
        }
        let counts = script(&text).flow().directions[0].counts;
        (counts.answering_sends, counts.unasked_sends)
    };
    assert_eq!((counts(true), counts(false)), ((10, 0), (0, 10)));
}

#[test]
fn what_was_outstanding_when_the_capture_began_is_not_lacking() {
    // A repair: the first packet is sent again, new data goes on above what is outstanding.
    let mut text = "0 > A seq 0 len 1460\n".to_owned();
    for n in 0..20 {
        let _ = writeln!(text, "+0.2 < A ack 0 win 500 sack 1460-{}", 87_600 + n * 1460);
        let _ = writeln!(text, "+0.2 > A seq {} len 1460", 87_600 + n * 1460);
    }
    let _ = writeln!(text, "+20 < A ack 116800 win 500");
    for n in 0..40 {
        let _ = writeln!(
            text,
            "+1 > A seq {} len 1460\n+20 < A ack {} win 500",
            116_800 + n * 1460,
            118_260 + n * 1460
        );
    }
    let [client, _] = &script(&text).flow().directions;
    assert_eq!((client.missing, client.counts.unseen_bytes), (None, 0));
    // What is jumped over later is.
    let later = text.replace("seq 131400 len 1460", "seq 131400 len 0");
    assert_eq!(script(&later).flow().directions[0].counts.unseen_bytes, 1460);
    let seen =
        format!("{OPENING}\n+1 > A seq 0 len 1460\n+1 > A seq 7300 len 1460\n+20 < A ack 8760 win 14480");
    assert_eq!(script(&seen).flow().directions[0].counts.unseen_bytes, 5_840);
}
