//! What is sent again, and what only looks so.

use super::*;
use crate::support::Bulk;
use longfat_analyze::report::Unopened;

/// SYNs of a client that gives all its packets the same identification, or none.
fn syns(id: u16) -> FlowReport {
    let text: String =
        [0, 1000, 3000, 7000].map(|at| format!("{at} > S win 65535 mss 1460 id {id}\n")).concat();
    script(&text).flow()
}

#[test]
fn syns_that_all_have_one_identification_are_sent_again() {
    for id in [0, 1] {
        let flow = syns(id);
        let client = &flow.directions[0];
        assert_eq!((client.counts.resent_syns, client.counts.duplicate_packets), (3, 0), "{id}");
        assert_eq!(flow.unopened(), Some(Unopened::Unanswered));
        assert!(flow.findings.iter().any(|finding| finding.kind == Kind::LostSyns), "{id}");
    }
}

/// A loss that duplicate ACKs tell of, without SACK; all packets of an end have the same identification, or each its
/// own.
fn told_by_duplicates(id: &dyn Fn(usize) -> usize) -> [u64; 3] {
    let mut text = format!("{OPENING}\n");
    let mut line = |rest: &str| {
        let number = text.lines().count();
        let _ = writeln!(text, "{rest} id {}", id(number));
    };
    (0..8).for_each(|n| line(&format!("+0.1 > A seq {} len 1448", n * 1448)));
    line("+19 < A ack 1448 win 14480");
    (0..4).for_each(|_| line("+0.1 < A ack 1448 win 14480"));
    line("+0.01 > A seq 1448 len 1448");
    line("+20 < A ack 11584 win 14480");
    let [client, server] = script(&text).flow().directions;
    [client.counts.duplicate_acks, client.counts.resent_segments, server.counts.duplicate_packets]
}

#[test]
fn duplicate_acks_that_all_have_one_identification_are_no_copies() {
    assert_eq!(told_by_duplicates(&|number| number), [4, 1, 0]);
    assert_eq!(told_by_duplicates(&|_| 1), [4, 1, 0]);
    assert_eq!(told_by_duplicates(&|_| 0), [4, 1, 0]);
}

#[test]
fn what_is_sent_again_under_its_old_identification_is_no_copy() {
    let again = |after: &[u32]| {
        let mut text = format!("{OPENING}\n+0.1 > A len 1448 id 7\n+20 < A ack 1448 win 14480 id 9\n");
        text += "+5 > A seq 1448 len 1448 id 8\n";
        after.iter().for_each(|after| text += &format!("+{after} > A seq 1448 len 1448 id 8\n"));
        text += "+20 < A ack 2896 win 14480 id 10";
        let client = script(&text).client();
        (client.counts.resent_segments, client.counts.duplicate_packets, client.rtt.unwrap().count)
    };
    assert_eq!(again(&[21]), (1, 0, 2), "a round trip later");
    assert_eq!(again(&[400, 800]), (2, 0, 2), "two timeouts");
    assert_eq!(again(&[10]), (0, 1, 3), "before anything can have asked for it");
    assert_eq!(again(&[]), (0, 0, 3));
}

#[test]
fn before_any_round_trip_is_known_a_timeout_is_told_from_a_copy_too() {
    let text = format!("{OPENING}\n+0.1 > A len 1448 id 7\n");
    let again = |after: u32| {
        let text = format!("{text}+{after} > A len 1448 id 7\n+20 < A ack 1448 win 14480");
        script(&text).client().counts.resent_segments
    };
    // The SYN had another identification.
    let numbered = |after: u32| {
        let mut trace = script(&format!("{text}+{after} > A len 1448 id 7\n+20 < A ack 1448 win 14480"));
        trace.packets[0].1.ip_id = 6;
        trace.client().counts.resent_segments
    };
    assert_eq!([again(3), again(400)], [1, 1], "this end may have but one");
    assert_eq!([numbered(3), numbered(400)], [0, 1]);
}

#[test]
fn keep_alives_of_an_octet_are_no_parts_of_what_they_repeat() {
    let mut text =
        format!("{OPENING}\n+1 > A len 100 id 5\n+20 < A seq 0 ack 100 len 200 win 14480 id 100\n");
    text += "+1 > A seq 100 ack 200 id 6\n";
    for n in 0..5 {
        let _ = writeln!(text, "+45000 < A seq 199 ack 100 len 1 win 14480 id {}", 101 + n);
        let _ = writeln!(text, "+1 > A seq 100 ack 200 id {}", 7 + n);
    }
    let [_, server] = script(&text).flow().directions;
    assert_eq!((server.counts.keep_alives, server.counts.duplicate_packets), (5, 0));
    assert_eq!((server.counts.resent_segments, server.counts.unique_bytes), (0, 200));
}

#[test]
fn a_segment_that_is_cut_for_a_smaller_path_is_sent_again() {
    let mut text = format!("{OPENING}\n+0.1 > A len 1460 id 5\n+300 > A len 1460 id 6\n");
    text += "+600 > A len 536 id 7\n+20 < A ack 536 win 14480\n+0.1 > A seq 536 len 536 id 8\n";
    text += "+20 < A ack 1072 win 14480\n+0.1 > A seq 1072 len 388 id 9\n+20 < A ack 1460 win 14480";
    let counts = script(&text).client().counts;
    assert_eq!((counts.resent_segments, counts.duplicate_packets, counts.resent_bytes), (4, 0, 2 * 1460));
}

/// A bundle of ten segments, and what comes of it a millisecond later: parts of so many octets with these
/// identifications.
fn cut(part: u32, first_id: u32, ids: u32) -> [u64; 2] {
    let opening = OPENING.replace("14480", "60000");
    let mut text = format!("{opening}\n+0.1 > A len 100 id 1\n+20 < A ack 100 win 60000\n");
    text += "+0.1 > A seq 100 len 14480 id 100\n+1";
    for (number, at) in (0..14_480).step_by(part as usize).enumerate() {
        let _ = writeln!(
            text,
            " > A seq {} len {} id {}",
            100 + at,
            part.min(14_480 - at),
            first_id + number as u32 * ids
        );
        text += "+0.001";
    }
    text.truncate(text.rfind('\n').unwrap());
    let counts = script(&format!("{text}\n+20 < A ack 14580 win 60000")).client().counts;
    [counts.resent_segments, counts.duplicate_packets]
}

#[test]
fn parts_of_a_bundle_are_told_by_their_places_and_what_is_cut_anew_is_sent_again() {
    assert_eq!(cut(1448, 100, 1), [0, 10], "by the interface");
    assert_eq!(cut(2896, 100, 2), [0, 5], "and joined again, by the other one");
    // A router close by says that packets are too big.
    assert_eq!(cut(1400, 110, 1), [11, 0]);
    assert_eq!(cut(1200, 110, 1), [13, 0]);
    assert_eq!(cut(536, 110, 1), [28, 0]);
}

#[test]
fn an_old_packet_that_comes_back_is_a_copy_by_its_timestamp() {
    for numbered in [true, false] {
        let whole = made(&Transfer { segments: 100, ..Transfer::default() }).trace;
        let mut trace = if numbered { whole } else { unnumbered(whole) };
        let data: Vec<_> = trace.packets.iter().filter(|(_, tcp)| tcp.payload > 0).cloned().collect();
        let end_ns = trace.packets.last().unwrap().0;
        let (_, late) = data[data.len() - 25].clone();
        trace.push(end_ns + 2000 * MS, late);
        let counts = trace.client().counts;
        assert_eq!((counts.resent_segments, counts.duplicate_packets), (0, 1), "{numbered}");
    }
}

#[test]
fn copies_at_the_other_end_of_the_path_are_none_sent_again() {
    let transfer =
        Transfer { loss_permille: 10, timestamps: false, one_way_ns: 40 * MS, ..Transfer::default() };
    let made = made(&transfer);
    let mut merged = made.trace.clone();
    for (time_ns, tcp) in &made.trace.packets {
        let there = if tcp.from_client { 40 * MS } else { -40 * MS };
        merged.push(time_ns + there, tcp.clone());
    }
    merged.packets.sort_by_key(|(time_ns, _)| *time_ns);
    let counts = merged.client().counts;
    assert_eq!(counts.resent_segments, made.resent_segments);
}

/// Every packet is there again, so much later.
fn again_later(trace: &Trace, late_ns: i64) -> Trace {
    let later = trace.packets.iter().map(|(time_ns, tcp)| (time_ns + late_ns, tcp.clone()));
    let mut packets: Vec<_> = trace.packets.iter().cloned().chain(later).collect();
    packets.sort_by_key(|(time_ns, _)| *time_ns);
    Trace { packets }
}

#[test]
fn copies_without_identifications_may_be_as_late_as_that_of_the_syn() {
    let transfer =
        Transfer { one_way_ns: 50 * MS, timestamps: false, loss_permille: 5, ..Transfer::default() };
    let made = made(&Transfer { segments: 1000, window_segments: 12, ..transfer });
    let once = unnumbered(made.trace.clone());
    for late_ns in [400 * US, 2 * MS, 10 * MS] {
        let [client, _] = again_later(&once, late_ns).flow().directions;
        // While the first copies are still to come, it is not known that all have one.
        let most = made.resent_segments + 1;
        assert!((most - 1..=most).contains(&client.counts.resent_segments), "{late_ns}: {:?}", client.counts);
        assert_eq!(client.least_rtt_us, once.client().least_rtt_us, "{late_ns}");
    }
}

#[test]
fn copies_of_a_capture_begun_late_are_known_once_nearly_all_of_an_end_have_one() {
    let mut trace = Trace::default();
    let options = Bulk { window_segments: 20, sack: false, ..Bulk::default() };
    support::bulk(&mut trace, &options);
    trace.packets.drain(..3);
    let counts = again_later(&trace, 400 * US).client().counts;
    assert!(counts.resent_segments < 40, "{counts:?}");
    assert_eq!(counts.resent_segments + counts.duplicate_packets, 1000);
}
