//! Findings about what others' captures had, each with a trace that has it and one that nearly has it; and words that
//! were wrong.

use crate::support::{
    Bulk, MS, Tcp, Trace, US, analyze_bytes, bulk,
    script::script,
    traffic::{Transfer, made},
};
use longfat_analyze::{
    Settings,
    capture::{LinkType, write::PcapWriter},
    expect::Expect,
    findings::{Finding, Kind},
    flow::connection::Vantage,
    report::{DirectionReport, FlowReport},
    segment::flag,
    summary,
};
use std::fmt::Write as _;

const OPENING: &str = "0 > S win 65535 mss 1460 ws 7 sackok
    +20 < SA win 65535 mss 1460 ws 7 sackok
    +0.01 > A win 500\n";

fn find(trace: &Trace, kind: Kind) -> Option<Finding> {
    trace.flow().findings.into_iter().find(|finding| finding.kind == kind)
}

fn find_in(flow: &FlowReport, kind: Kind) -> Option<Finding> {
    flow.findings.iter().find(|finding| finding.kind == kind).cloned()
}

fn opened(rest: &str) -> Trace {
    script(&format!("{OPENING}{rest}"))
}

/// A request that is sent again `times` times without an answer, then a reset.
fn dead(times: u32, payload: usize) -> Trace {
    let mut text = format!("+1 > A len {payload}\n+20 < A ack {payload} win 500\n");
    let again = format!("> A seq {payload} len {payload}");
    let _ = writeln!(text, "+5 {again}");
    for n in 0..times {
        let _ = writeln!(text, "+{} {again}", (200u32 << n).min(12_000));
    }
    text += "+12000 > R seq 0";
    opened(&text)
}

#[test]
fn a_peer_that_says_nothing_any_more_is_a_connection_that_died_and_no_mtu_trouble() {
    for payload in [2, 112, 1448] {
        let trace = dead(10, payload);
        let finding = find(&trace, Kind::ConnectionDied).unwrap();
        assert!(finding.evidence.contains("10 times") && finding.cost_s > 50.0, "{finding:?}");
        assert_eq!(find(&trace, Kind::MtuTrouble), None, "{payload}");
    }
    // Nothing of it but the SYN ever passed: that is no word of sizes.
    let mut first = "+1 < A seq 0 len 1448".to_owned();
    (0..9).for_each(|n| first += &format!("\n+{} < A seq 0 len 1448", 200 << n));
    assert!(find(&opened(&first), Kind::ConnectionDied).is_some());
    assert_eq!(find(&opened(&first), Kind::MtuTrouble), None);
    assert_eq!(find(&dead(2, 112), Kind::ConnectionDied), None);
    let mut alive = dead(10, 112);
    alive.script("+1 < A ack 224 win 500");
    assert_eq!(find(&alive, Kind::ConnectionDied), None);
}

#[test]
fn syns_sent_again_are_told_with_the_time_they_took() {
    let lost = script(
        "0 > S win 65535 mss 1460\n1000 > S win 65535 mss 1460\n3000 > S win 65535 mss 1460\n+70 < SA win 65535 mss 1460\n+0.1 > A\n+1 > A len 100\n+70 < A ack 100",
    );
    let finding = find(&lost, Kind::LostSyns).unwrap();
    assert!((finding.cost_s - 3.0).abs() < 0.01 && finding.evidence.contains("2 sent again"), "{finding:?}");
    let text = summary::text(&lost.analyze());
    assert!(text.contains("2 SYNs sent again over 3 s"), "{text}");
    // Three SYNs, their answer and a segment.
    let totals = lost.analyze().totals;
    assert_eq!(
        (totals.sent_segments, totals.resent_segments, totals.resent_syns, totals.resent_bytes),
        (5, 2, 2, 0)
    );
    assert!(text.contains("2 of 5 segments (0 B) sent again, 2 SYNs among them, 2 timeouts"), "{text}");
    let is_met = |text: &str| text.parse::<Expect>().unwrap().judge(&lost.analyze()).met;
    assert!(is_met("retransmissions <= 40%") && !is_met("retransmissions < 40%"));
    assert_eq!(find(&made(&Transfer::default()).trace, Kind::LostSyns), None);
    assert!(text.contains("handshake RTT ambiguous"), "{text}");
    let unanswered = script("0 > S mss 1460\n1000 > S mss 1460");
    let text = summary::text(&unanswered.analyze());
    assert!(text.contains("SYN not answered, 1 SYNs sent again over 1 s"), "{text}");
}

#[test]
fn an_opening_of_which_one_side_was_seen_is_not_called_unseen() {
    let told = |text: &str| summary::text(&script(text).analyze());
    for (text, words) in [
        ("0 > S mss 1460\n+1 < RA ack 0 win 0", "SYN refused"),
        ("0 > S mss 1460", "SYN not answered"),
        ("0 > S mss 1460\n+20 > A\n+1 > A len 100", "SYN-ACK not in the capture"),
        ("0 < SA mss 1460\n+20 > A\n+1 > A len 100", "SYN not in the capture"),
        ("0 > A len 100\n+20 < A ack 100", "handshake not seen"),
    ] {
        assert!(told(text).contains(words), "{words}: {}", told(text));
    }
}

/// A transfer, and `count` SYNs, a millisecond apart, each made by a function of its number, with what follows it.
fn beside_a_transfer(count: u16, packets: impl Fn(u16) -> Vec<Tcp>) -> String {
    let mut trace = made(&Transfer::default()).trace;
    for number in 0..count {
        let at_ns = i64::from(number) * MS;
        trace.packets.extend(packets(number).into_iter().zip(0..).map(|(tcp, n)| (at_ns + n * 20 * US, tcp)));
    }
    trace.packets.sort_by_key(|(time_ns, _)| *time_ns);
    summary::text(&trace.analyze())
}

fn head(text: &str) -> String {
    text.lines().take(6).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_scan_of_ports_is_summed_up_in_the_first_lines() {
    let scan = |number: u16| {
        let ports = (50_000, 1 + number);
        let syn = Tcp { ports, ..Tcp::client(flag::SYN, 7, 0) };
        let reset = Tcp { ports, ..Tcp::server(flag::RST | flag::ACK, 0, 8) };
        if number.is_multiple_of(3) { vec![syn] } else { vec![syn, reset] }
    };
    let text = beside_a_transfer(3000, scan);
    assert!(
        head(&text).contains("3000 of them came to nothing: 2000 SYNs refused, 1000 SYNs not answered"),
        "{text}"
    );
    assert!(head(&text).contains("from 10.0.0.1 to 10.0.0.2, 3000 ports: 2000 SYNs refused, 1000"), "{text}");
    assert!(text.contains("handshake RTT 20 ms") && text.lines().count() < 14, "the transfer alone: {text}");
    assert!(!text.contains("smaller flows"), "{text}");
}

#[test]
fn a_flood_of_syns_is_summed_up_by_whom_it_hits_and_what_a_few_met_is_shown_as_ever() {
    let flood = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let of = |tcp: Tcp| Tcp { client: [192, 0, high, low], ports: (1000 + number, 80), ..tcp };
        let answer = of(Tcp::server(flag::SYN | flag::ACK, 9, 8));
        vec![of(Tcp::client(flag::SYN, 7, 0)), answer]
    };
    let text = beside_a_transfer(3000, flood);
    assert!(head(&text).contains("3000 of them came to nothing: 3000 handshakes not completed"), "{text}");
    assert!(head(&text).contains("from 3000 addresses to 10.0.0.2, port 80: 3000"), "{text}");
    let text = beside_a_transfer(2, flood);
    assert!(head(&text).contains("2 of them came to nothing"), "{text}");
    assert_eq!(text.matches("handshake not completed").count(), 2, "{text}");
    assert!(!beside_a_transfer(0, flood).contains("came to nothing"));
}

#[test]
fn an_answer_to_a_syn_that_is_never_acknowledged_completes_no_handshake() {
    let opening = "0 > S win 65535 mss 1460\n+20 < SA win 65535 mss 1460\n+1000 < SA win 65535 mss 1460
        +2000 < SA win 65535 mss 1460\n";
    let told = |rest: &str| summary::text(&script(&format!("{opening}{rest}")).analyze());
    let text = told("");
    assert!(text.contains("handshake not completed, 2 SYNs sent again over 3 s"), "{text}");
    assert!(text.contains("the answer was never acknowledged") && !text.contains("ambiguous"), "{text}");
    let text = told("+0.1 > A\n+1 > A len 100\n+20 < A ack 100");
    assert!(text.contains("handshake RTT ambiguous") && !text.contains("not completed"), "{text}");
    assert!(text.contains("opening had to be tried again"), "{text}");
}

#[test]
fn the_wait_for_a_syn_is_priced_once_and_a_timeout_of_data_beside_it_is_still_told() {
    let opening = "0 > S mss 1460\n1000 > S mss 1460\n+20 < SA mss 1460\n+0.1 > A\n+1 > A len 100\n";
    let with = |rest: &str| script(&format!("{opening}{rest}"));
    let quick = with("+20 < A ack 100");
    assert!(find(&quick, Kind::LostSyns).is_some());
    assert_eq!(find(&quick, Kind::Timeouts), None);
    let slow = find(&with("+400 > A len 100\n+20 < A ack 100"), Kind::Timeouts).unwrap();
    assert!(slow.what.contains("1 times") && slow.cost_s < 0.5, "{slow:?}");
    let answers =
        "0 > S mss 1460\n+0.1 < SA mss 1460\n+1000 < SA mss 1460\n+20 > A\n+1 < A len 100\n+20 > A ack 100";
    assert_eq!(find(&script(answers), Kind::Timeouts), None);
}

#[test]
fn an_answer_to_a_syn_that_was_lost_costs_the_time_until_it_is_sent_again() {
    let lost = script(
        "0 > S win 65535 mss 1460\n+0.1 < SA win 65535 mss 1460\n+1000 < SA win 65535 mss 1460\n+70 > A\n+1 > A len 100\n+0.1 < A ack 100",
    );
    let finding = find(&lost, Kind::LostSyns).unwrap();
    assert!((finding.cost_s - 1.0).abs() < 0.01, "{finding:?}");
}

#[test]
fn ordinary_losses_and_timeouts_are_findings() {
    let lossy = made(&Transfer { segments: 3000, loss_permille: 10, ..Transfer::default() }).trace;
    assert!(find(&lossy, Kind::Losses).is_some());
    let quiet = made(&Transfer { segments: 3000, ..Transfer::default() }).trace;
    assert_eq!((find(&quiet, Kind::Losses), find(&quiet, Kind::Timeouts)), (None, None));
    let stopped = made(&Transfer {
        segments: 3000,
        window_segments: 2,
        loss_permille: 10,
        sack: false,
        ..Transfer::default()
    })
    .trace;
    assert!(find(&stopped, Kind::Timeouts).unwrap().cost_s > 0.5);
}

#[test]
fn a_reset_that_does_not_fit_its_end_is_made_up_and_one_that_does_is_not() {
    let data = |n: u32| {
        format!(
            "+1 < A seq {} len 1448 ack 0 ttl 57 win 500\n+0.1 > A ack {} win 500\n",
            n * 1448,
            (n + 1) * 1448
        )
    };
    let with = |reset: &str| opened(&format!("{}{}{reset}{}", data(0), data(1), data(2)));
    assert!(
        find(&with("+1 < R seq 1 ttl 200 win 77\n"), Kind::InjectedReset)
            .unwrap()
            .evidence
            .contains("TTL is 200")
    );
    assert!(find(&with("+1 < R seq 2896 ttl 120\n"), Kind::InjectedReset).is_some(), "its end goes on");
    // Of an end that sends no payload, its acknowledgements go on.
    let silent = "+1 > A seq 0 len 1448 win 500\n+20 < A ack 1448 ttl 57 win 500\n+1 > A seq 1448 len 1448 win 500\n+15 < R seq 0 ttl 97\n";
    assert!(find(&opened(&format!("{silent}+5 < A ack 2896 ttl 57 win 500")), Kind::InjectedReset).is_some());
    assert_eq!(find(&opened(silent), Kind::InjectedReset), None);
    let real = opened(&format!("{}{}+1 < R seq 2896 ttl 57 win 0\n", data(0), data(1)));
    assert_eq!(find(&real, Kind::InjectedReset), None);
    let real = opened(&format!("{}{}+1 < R seq 2896 ttl 64 win 0\n", data(0), data(1)));
    assert_eq!(find(&real, Kind::InjectedReset), None, "some systems send resets with another TTL");
}

/// Requests written in two halves, of which the second waits until the first is acknowledged.
fn halves(delay_ms: u32) -> Trace {
    let mut text = String::new();
    for n in 0..10u32 {
        let (request, answer) = (n * 200, n * 300);
        let _ = writeln!(text, "+5 > A seq {request} ack {answer} len 100 win 500");
        let _ = writeln!(text, "+{} < A seq {answer} ack {} win 500", 20 + delay_ms, request + 100);
        let _ = writeln!(text, "+0.05 > A seq {} ack {answer} len 100 win 500", request + 100);
        let _ = writeln!(text, "+20 < A seq {answer} ack {} len 300 win 500", request + 200);
    }
    opened(&text)
}

#[test]
fn small_writes_that_wait_for_delayed_acks_are_told_and_a_long_path_is_not() {
    let finding = find(&halves(40), Kind::DelayedAckNagle).unwrap();
    assert!((finding.cost_s - 0.4).abs() < 0.05, "{finding:?}");
    assert_eq!(find(&halves(0), Kind::DelayedAckNagle), None);
}

/// The receiver opens its window by so much each time, and the sender fills it.
fn dribble(octets: u32) -> Trace {
    let mut text = "0 > S win 65535 mss 1460 ws 0\n+20 < SA win 1000 mss 1460 ws 0\n+0.1 > A\n".to_owned();
    let mut sent = 0;
    for _ in 0..40 {
        let _ = writeln!(text, "+1 > A seq {sent} len {octets}");
        sent += octets;
        let _ = writeln!(text, "+20 < A ack {sent} win {octets}");
    }
    script(&text)
}

#[test]
fn windows_smaller_than_a_segment_are_silly_and_full_ones_are_not() {
    assert!(find(&dribble(100), Kind::SillyWindow).unwrap().evidence.contains("MSS of 1460"));
    assert_eq!(find(&dribble(1460), Kind::SillyWindow), None);
    assert_eq!(find(&dribble(100), Kind::WindowLimited), None, "a larger window is not what it lacks");
}

fn with_ecn(agreed: bool, ecn: u8) -> Trace {
    let (asks, answers) = if agreed { ("SEW", "SAE") } else { ("S", "SA") };
    let mut text =
        format!("0 > {asks} win 65535 mss 1460 ws 7\n+20 < {answers} win 65535 mss 1460 ws 7\n+0.01 > A\n");
    for n in 0..30 {
        let mark = if ecn == 2 && n == 7 { 3 } else { ecn };
        let _ = writeln!(
            text,
            "+1 > A seq {} len 1448 ecn {mark}\n+20 < A ack {} win 500",
            n * 1448,
            (n + 1) * 1448
        );
    }
    script(&text)
}

/// Thirty packets and their acknowledgements with the count of AccECN, which rises behind the packets that are marked.
fn with_accurate_ecn(marked: &[u32], has_handshake: bool) -> Trace {
    let mut trace = Trace::default();
    if has_handshake {
        trace.push(0, Tcp::client(0x1c2, u32::MAX, 0).syn_options(true, Some(7)));
        trace.push(20 * MS, Tcp::server(0x92, u32::MAX, 0).syn_options(true, Some(7)));
        trace.push(20 * MS + US, Tcp::client(0x90, 0, 0));
    }
    let mut count = 5;
    for n in 0..30 {
        let (at, is_marked) = ((21 + 25 * i64::from(n)) * MS, marked.contains(&n));
        let data = Tcp::client(0x150, n * 1448, 0).payload(1448).ip_id(n as u16 + 1);
        trace.push(at, Tcp { ecn: if is_marked { 3 } else { 2 }, ..data });
        count = (count + u16::from(is_marked)) % 8;
        let ack = Tcp::server(0x10 | count << 6, 0, (n + 1) * 1448).ip_id(n as u16 + 1);
        trace.push(at + 20 * MS, ack);
    }
    trace
}

#[test]
fn the_count_of_accurate_ecn_is_no_echo() {
    for has_handshake in [true, false] {
        let told = |marked: &[u32]| {
            let flow = with_accurate_ecn(marked, has_handshake).flow();
            flow.directions.each_ref().map(|one| one.counts.ece_packets)
        };
        assert_eq!(told(&[]), [0, 0]);
        assert_eq!(told(&[7, 9, 21]), [0, 3]);
        // The count goes round: with 0 it looks like no flag at all.
        assert_eq!(told(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), [0, 9]);
    }
    assert_eq!(find(&with_accurate_ecn(&[], true), Kind::EcnMarks), None);
    assert!(
        find(&with_accurate_ecn(&[7], true), Kind::EcnMarks)
            .unwrap()
            .evidence
            .contains("1 of the receiver's")
    );
}

#[test]
fn marks_and_their_absence_are_told() {
    assert!(find(&with_ecn(true, 2), Kind::EcnMarks).unwrap().evidence.contains("1 of 30"));
    assert!(find(&with_ecn(true, 0), Kind::EcnStripped).is_some());
    assert_eq!(
        (find(&with_ecn(true, 1), Kind::EcnMarks), find(&with_ecn(true, 2), Kind::EcnStripped)),
        (None, None)
    );
    assert_eq!(
        (find(&with_ecn(false, 2), Kind::EcnMarks), find(&with_ecn(false, 0), Kind::EcnStripped)),
        (None, None)
    );
}

#[test]
fn keep_alives_and_the_handshake_are_in_the_text() {
    let mut trace = opened("+1 > A len 100\n+20 < A ack 100 win 500\n");
    for _ in 0..4 {
        trace.script("+10000 > A seq 99\n+20 < A ack 100 win 500");
    }
    let text = summary::text(&trace.analyze());
    assert!(text.contains("4 keep-alives") && text.contains("handshake RTT 20 ms"), "{text}");
    let mut trace = opened("+1 > A len 100\n+20 < A ack 100 win 500\n");
    for octets in [0, 1, 1] {
        trace.script(&format!("+60000 < A seq {} ack 100 len {octets}\n+0.1 > A seq 100", u32::MAX));
    }
    let text = summary::text(&trace.analyze());
    assert!(text.contains("3 keep-alives"), "those of the end that sends nothing: {text}");
}

#[test]
fn a_keep_alive_behind_hours_belongs_to_its_connection_and_other_numbers_are_another_one() {
    let talk = "+1 > A len 100\n+20 < A ack 100 len 80\n+0.1 > A seq 100 ack 80\n";
    let alive = "> A seq 99 ack 80\n+20 < A seq 80 ack 100\n";
    let rest =
        format!("+7200000 {alive}+3600000 {alive}+1 > A seq 100 ack 80 len 50\n+20 < A seq 80 ack 150");
    let ssh = opened(&format!("{talk}{rest}"));
    let analysis = ssh.analyze();
    let text = summary::text(&analysis);
    assert_eq!(analysis.totals.flows, 1, "{text}");
    assert!(text.contains("2 keep-alives") && !text.contains("not captured"), "{text}");
    // What else goes on meanwhile lets the table forget what is over.
    let mut busy = ssh.clone();
    for number in 0..150_000i64 {
        let other = Tcp { ports: (40_001, 5001), ..Tcp::client(flag::ACK, number as u32, 0) };
        busy.packets.push((number * 72 * MS, other.payload(1)));
    }
    busy.packets.sort_by_key(|(time_ns, _)| *time_ns);
    assert_eq!(busy.analyze().totals.flows, 2);
    let foreign = "+7200000 > A seq 900000000 ack 700000000 len 5\n+20 < A seq 700000000 ack 900000005";
    assert_eq!(opened(&format!("{talk}{foreign}")).analyze().totals.flows, 2);
    let silent = opened(&format!("+600000 {alive}"));
    assert_eq!(silent.analyze().totals.flows, 2, "no payload went over it");
}

#[test]
fn a_capture_that_begins_with_a_keep_alive_calls_it_one() {
    let text = summary::text(&script("0 > A seq 99 ack 80\n+20 < A seq 80 ack 100\n").analyze());
    assert!(text.contains("1 keep-alives") && !text.contains("not captured"), "{text}");
    let lacking = script("0 > A seq 99 ack 80\n+20 < A seq 80 ack 99\n+20 < A seq 80 ack 100");
    let text = summary::text(&lacking.analyze());
    assert!(text.contains("1 B acknowledged but not captured"), "{text}");
}

#[test]
fn beside_the_receiver_the_time_to_its_ack_is_no_round_trip() {
    let at = |place| {
        summary::text(&made(&Transfer { place, one_way_ns: 35 * MS, ..Transfer::default() }).trace.analyze())
    };
    assert!(at(0).contains(", RTT 70 ms least") || at(0).contains("  RTT 70 ms least"), "{}", at(0));
    assert!(at(100).contains("own ACK lag") && at(100).contains("handshake RTT 70"), "{}", at(100));
    assert!(at(50).contains("RTT from here to the receiver 35 ms least"), "{}", at(50));
}

#[test]
fn delay_without_a_queue_is_no_bufferbloat() {
    let mut text = String::new();
    for n in 0..60 {
        let wait = if n % 4 == 0 { 20 } else { 3000 };
        let _ = writeln!(text, "+1 > A seq {} len {}\n+{wait} < A ack {} win 500", n * 63, 63, (n + 1) * 63);
    }
    assert_eq!(find(&opened(&text), Kind::Bufferbloat), None);
}

#[test]
fn clusters_of_the_captures_own_clock_are_no_ticks() {
    let options = Bulk { segments: 6000, window_segments: 120, rtt_ns: 50 * MS, ..Bulk::default() };
    let mut trace = Trace::default();
    bulk(&mut trace, &options);
    trace.packets.iter_mut().for_each(|(time_ns, _)| *time_ns = *time_ns / (10 * MS) * (10 * MS));
    assert_eq!((find(&trace, Kind::ReceiverTicks), find(&trace, Kind::SenderTicks)), (None, None));
}

#[test]
fn a_short_flow_is_not_held_up_by_its_sender() {
    let mut text = String::new();
    for n in 0..40 {
        let _ = writeln!(text, "+500 > A seq {} len 100\n+20 < A ack {} win 500", n * 100, (n + 1) * 100);
    }
    assert_eq!(find(&opened(&text), Kind::SenderIdle), None);
}

/// The finding of a transfer whose RTT, of 20 ms, is another from second 2 on, and whose ACKs have another TTL then.
fn path_change(later_rtt_ns: i64, has_other_ttl: &dyn Fn(i64) -> bool) -> Option<Finding> {
    let options = Bulk { segments: 12_000, window_segments: 60, advertised: 1 << 22, ..Bulk::default() };
    let mut trace = Trace::default();
    bulk(&mut trace, &Bulk { rtt_later_ns: Some((2000 * MS, later_rtt_ns)), ..options });
    for (time_ns, tcp) in trace.packets.iter_mut().filter(|(_, tcp)| !tcp.from_client) {
        tcp.ttl = if has_other_ttl(*time_ns / MS) { 123 } else { 61 };
    }
    find(&trace, Kind::PathChange)
}

#[test]
fn another_ttl_alone_is_no_other_path_and_with_a_step_of_the_round_trip_it_is() {
    let once = |at: i64| (2010..2012).contains(&at);
    assert_eq!(path_change(20 * MS, &once), None);
    assert_eq!(path_change(20 * MS, &|at| at > 2010), None, "a lasting change");
    assert_eq!(path_change(23 * MS, &|_| false), None, "a small step alone");
    let both = path_change(23 * MS, &|at| at > 2010).unwrap();
    assert!(both.evidence.contains("20.1 ms before and 23.1 ms after"), "{both:?}");
    assert!(both.evidence.contains("123 instead of 61"), "{both:?}");
    let elsewhere = path_change(23 * MS, &|at| at > 3000);
    assert_eq!(elsewhere, None, "a step and a TTL a second apart");
}

#[test]
fn a_saturating_sender_with_offloads_and_no_handshake_is_not_idle() {
    let mut trace = Trace::default();
    let options =
        Bulk { handshake: false, payload: 14_480, segments: 2000, service_ns: 1160 * US, ..Bulk::default() };
    bulk(&mut trace, &options);
    for (number, (_, tcp)) in trace.packets.iter_mut().enumerate() {
        if tcp.payload > 0 && number % 3 == 0 {
            tcp.payload = 14_480 - 1448;
        }
    }
    assert!(trace.client().limits.application < 0.1, "{:?}", trace.client().limits);
}

/// Full windows, ten milliseconds each, of a client whose handshake took so long.
fn full_windows(client_ms: u32) -> Trace {
    let mut text =
        format!("0 > S win 65535 mss 1460 ws 0\n+5 < SA win 14480 mss 1460 ws 0\n+{client_ms} > A\n");
    for round in 0..100u32 {
        let first = round * 14_480;
        let _ = writeln!(text, "+4 > A seq {first} len 1448");
        for n in 1..10 {
            let _ = writeln!(text, "+0.1 > A seq {} len 1448", first + n * 1448);
        }
        let _ = writeln!(text, "+5 < A ack {} win 14480", first + 14_480);
    }
    script(&text)
}

#[test]
fn a_bound_is_never_below_what_was_delivered() {
    assert!(find(&full_windows(5), Kind::WindowLimited).is_some());
    assert_eq!(find(&full_windows(50), Kind::WindowLimited), None, "a handshake slower than any data");
}

#[test]
fn what_goes_in_later_fragments_is_in_the_capture() {
    let mut writer = PcapWriter::new(Vec::new(), LinkType(1), 65_535).unwrap();
    for (number, (time_ns, tcp)) in made(&Transfer::default()).trace.packets.iter().enumerate() {
        let (mut frame, length) = tcp.frame();
        let is_cut = tcp.payload > 0 && number % 5 == 0;
        if is_cut {
            // Of 800 octets, header and all; more follow.
            (frame[16], frame[17], frame[20]) = (3, 32, 0x20);
        }
        writer.packet(*time_ns, if is_cut { 814 } else { length as u32 }, &frame).unwrap();
    }
    let flow = analyze_bytes(&writer.into_inner(), Settings::default()).flows.remove(0);
    let [client, _] = &flow.directions;
    let counts = &client.counts;
    assert_eq!((counts.unseen_bytes, counts.unique_bytes, counts.payload_bytes), (0, 400 * 1448, 400 * 1448));
    assert_eq!((find_in(&flow, Kind::CaptureIncomplete), client.missing), (None, None));
}

/// A transfer whose capture's clock is set by so much, forward or back, behind half of its packets.
fn with_step(transfer: &Transfer, by_ns: i64) -> Trace {
    let mut trace = made(transfer).trace;
    let half = trace.packets.len() / 2;
    trace.packets[half..].iter_mut().for_each(|(time_ns, _)| *time_ns += by_ns);
    trace
}

#[test]
fn a_clock_that_is_set_in_the_middle_is_told_and_nothing_is_priced_by_it() {
    let transfers = [
        Transfer { segments: 2000, ..Transfer::default() },
        Transfer { segments: 2000, timestamps: false, ..Transfer::default() },
        Transfer { segments: 2000, place: 50, loss_permille: 5, ..Transfer::default() },
        Transfer { segments: 600, place: 100, one_way_ns: 100 * MS, ..Transfer::default() },
    ];
    for transfer in &transfers {
        let whole = made(transfer).trace.flow();
        for (by_s, told) in [(-3600, "back by 3600 s"), (-2, "back by 2 s"), (3600, "forward by 3600 s")] {
            let analysis = with_step(transfer, by_s * 1000 * MS).analyze();
            let (text, flow) = (summary::text(&analysis), &analysis.flows[0]);
            assert!(text.contains(&format!("the capture's clock was set {told} at packet")), "{text}");
            assert_eq!((analysis.capture.clock_steps, analysis.flows.len()), (1, 1), "{text}");
            assert!((flow.duration_s - whole.duration_s).abs() < 0.05 * whole.duration_s + 0.02, "{text}");
            assert!((analysis.capture.duration_s - flow.duration_s).abs() < 1e-6, "{text}");
            let [client, once] = [flow, &whole].map(|flow| &flow.directions[0]);
            assert_eq!(client.counts, once.counts, "{text}");
            assert_eq!(client.timeouts, once.timeouts, "{text}");
            let rtt = |one: &DirectionReport| (one.rtt.unwrap().least_us, one.rtt.unwrap().median_us);
            assert_eq!(rtt(client), rtt(once), "{text}");
            assert_eq!(find_in(flow, Kind::SenderIdle), None, "{text}");
        }
    }
}

#[test]
fn an_hour_of_silence_and_packets_a_little_late_are_no_clock_that_was_set() {
    let text = |trace: &Trace| summary::text(&trace.analyze());
    // Both ends' timestamps go on; with and without data in flight.
    let mut talk = format!("{OPENING}+1 > A len 100 ts 1000/1\n+20 < A ack 100 win 500 ts 5020/1000\n");
    for n in 1..30 {
        let _ = writeln!(
            talk,
            "+100 > A seq {} len 100 ts {}/5020\n+20 < A ack {} win 500 ts {}/9",
            n * 100,
            1000 + n * 120,
            (n + 1) * 100,
            5020 + n * 120
        );
    }
    let slept =
        format!("{talk}+3600000 > A seq 3000 len 100 ts 4600/9\n+20 < A ack 3100 win 500 ts 3608500/9\n");
    assert!(!text(&script(&slept)).contains("clock"), "one end slept: {}", text(&script(&slept)));
    let idle =
        format!("{talk}+3600000 > A seq 3000 len 100 ts 3604600/9\n+20 < A ack 3100 win 500 ts 3608500/9\n");
    assert!(!text(&script(&idle)).contains("clock"), "{}", text(&script(&idle)));
    let set = format!("{talk}+3600000 > A seq 3000 len 100 ts 4600/9\n+20 < A ack 3100 win 500 ts 8620/9\n");
    assert!(text(&script(&set)).contains("set forward by 3600 s"), "{}", text(&script(&set)));
    let dead = "+1 > A len 100\n+20 < A ack 100 win 500\n+1 > A seq 100 len 100\n+20000 > A seq 100 len 100\n+20 < A ack 200 win 500";
    assert!(!text(&opened(dead)).contains("clock"));
    let late = opened("+500 > A len 100\n120 < A win 500\n+500 < A ack 100 win 500");
    assert!(!text(&late).contains("clock") && text(&late).contains("out of the order"), "{}", text(&late));
}

/// A request, its acknowledgement if the capture has it, and so many seconds later the answer.
fn long_poll(acknowledged: &str, pause_s: u32, answer: &str) -> Trace {
    let request = format!("{OPENING}+1 > A len 100\n+20 < A ack 100 len 50 win 500\n");
    let request = format!("{request}+1 > A seq 100 ack 50 len 100\n{acknowledged}");
    script(&format!("{request}+{pause_s}000 < {answer}\n+0.1 > A seq 200 ack 550\n"))
}

#[test]
fn a_pause_behind_an_acknowledgement_that_the_capture_lacks_is_none_of_the_clock() {
    let acknowledgement = "+20 < A seq 50 ack 200 win 500\n";
    for (acknowledged, answer) in [
        (acknowledgement, "A seq 50 ack 200 len 500 win 500"),
        ("", "A seq 50 ack 200 len 500 win 500"),
        ("", "FA seq 50 ack 200 win 500"),
        ("", "A seq 50 ack 200 win 500"),
        ("", "A seq 49 ack 200 win 500"),
    ] {
        let analysis = long_poll(acknowledged, 60, answer).analyze();
        assert_eq!(analysis.capture.clock_steps, 0, "{acknowledged} {answer}");
        assert!(analysis.flows[0].duration_s > 60.0, "{acknowledged} {answer}");
    }
    // A filter that keeps no pure acknowledgements.
    let mut pushes = OPENING.to_owned();
    for n in 0..8u32 {
        let wait = if n == 5 { 20_055 } else { 55 };
        let _ = writeln!(pushes, "+200 > PA seq {} ack {} len 100", n * 100, n * 300);
        let _ = writeln!(pushes, "+{wait} < PA seq {} ack {} len 300 win 500", n * 300, (n + 1) * 100);
    }
    let analysis = script(&pushes).analyze();
    assert_eq!(analysis.capture.clock_steps, 0);
    assert!(analysis.flows[0].duration_s > 20.0);
}

/// Two flows that each wait for the acknowledgement of all they sent, behind a silence.
fn two_that_wait(second: &str) -> u64 {
    let mut trace = Trace::default();
    for port in [40_000, 40_001] {
        let mut flow = opened("+1 > A len 100\n+20 < A ack 100 win 500\n+1 > A seq 100 len 100\n");
        let answer = if port == 40_000 { "A ack 200 win 500" } else { second };
        flow.script(&format!("+60020 < {answer}\n"));
        flow.packets.iter_mut().for_each(|(_, tcp)| tcp.ports.0 = port);
        trace.packets.extend(flow.packets);
    }
    trace.packets.sort_by_key(|(time_ns, _)| *time_ns);
    trace.analyze().capture.clock_steps
}

#[test]
fn acknowledgements_of_all_that_was_sent_show_a_step_in_two_flows() {
    assert_eq!(two_that_wait("A ack 200 win 500"), 1);
    assert_eq!(two_that_wait("A ack 200 len 10 win 500"), 0, "an answer may have taken so long");
    assert_eq!(two_that_wait("A ack 100 win 500"), 0);
}

#[test]
fn one_flow_shows_a_step_by_an_acknowledgement_of_a_part_unless_the_capture_lacks_packets_of_it() {
    let shown = |before: &str| {
        let mut text = format!("+1 > A len 1000\n+20 < A ack {before} win 500\n");
        (1..8).for_each(|n| text += &format!("+0.1 > A seq {} len 1000\n", n * 1000));
        (2..8).for_each(|n| {
            text += &format!("+{} < A ack {}000 win 500\n", if n == 2 { 60_000 } else { 1 }, n)
        });
        opened(&text).analyze().capture.clock_steps
    };
    assert_eq!(shown("1000"), 1);
    let mut lacking = opened("+1 > A len 1000\n+20 < A ack 2000 win 500\n");
    (2..8).for_each(|n| _ = lacking.script(&format!("+0.1 > A seq {} len 1000\n", n * 1000)));
    lacking.script("+60000 < A ack 3000 win 500\n+1 < A ack 8000 win 500");
    assert_eq!(lacking.analyze().capture.clock_steps, 0);
}

#[test]
fn of_a_flow_recorded_by_two_clocks_no_round_trip_is_told_and_a_stray_time_withholds_none() {
    let with = |is_other: &dyn Fn(usize, &Tcp) -> bool| {
        let mut trace = made(&Transfer { segments: 2000, ..Transfer::default() }).trace;
        for (number, (time_ns, tcp)) in trace.packets.iter_mut().enumerate() {
            *time_ns += if is_other(number, tcp) { 3_600_000 * MS } else { 0 };
        }
        let analysis = trace.analyze();
        (summary::text(&analysis), analysis.flows[0].clone())
    };
    let (text, both) = with(&|_, tcp| !tcp.from_client);
    assert!(text.contains("several clocks") && text.contains("RTT unknown"), "{text}");
    assert_eq!((both.vantage, both.directions[0].least_rtt_us), (Vantage::Unknown, None), "{text}");
    assert_eq!(both.directions[0].rtt_by_timestamp, None, "{text}");
    assert_eq!(both.directions[0].counts.unique_bytes, 2000 * 1448, "{text}");
    let (_, whole) = with(&|_, _| false);
    let (text, stray) = with(&|number, _| number == 500);
    assert_eq!(stray.directions[0].least_rtt_us, whole.directions[0].least_rtt_us, "{text}");
    assert!(whole.directions[0].least_rtt_us.is_some());
}

#[test]
fn what_the_client_says_late_is_no_round_trip_where_its_first_acknowledgement_is_not_in_the_capture() {
    let place = |first: &str| {
        let opening = "0 > S win 65535 mss 1460 ws 7 sackok\n+20 < SA win 65535 mss 1460 ws 7 sackok\n";
        let flow = script(&format!("{opening}{first}+20 < A ack 200 win 500\n")).flow();
        (flow.vantage, flow.handshake.rtt_us)
    };
    assert_eq!(place("+2000 > A len 200 win 500\n"), (Vantage::Unknown, None));
    assert_eq!(place("+0.01 > A win 500\n+2000 > A len 200 win 500\n").0, Vantage::Client);
    assert_eq!(place("+1 > A len 200 win 500\n").0, Vantage::Client, "at once with what it asks");
    assert_eq!(place("+2000 > A win 500\n").0, Vantage::Server, "a path as long as that");
}

#[test]
fn fast_open_data_that_is_not_taken_is_sent_again_and_no_loss() {
    let opening =
        "0 > S win 65535 mss 1460 ws 7 len 1000\n+20 < SA win 65535 mss 1460 ws 7\n+0.1 > A win 500\n";
    let trace = script(&format!("{opening}+0.1 > A len 1000 win 500\n+20 < A ack 1000 win 500\n"));
    let (text, client) = (summary::text(&trace.analyze()), trace.client());
    assert_eq!((client.counts.resent_segments, client.counts.fast_open_segments, client.timeouts), (1, 1, 0));
    assert!(text.contains("Fast Open data not accepted") && !text.contains("  !"), "{text}");
    let taken = script(
        "0 > S win 65535 mss 1460 ws 7 len 1000\n+20 < SA ack 1000 win 65535 mss 1460 ws 7\n+0.1 > A seq 1000 win 500\n+1 > A seq 1000 len 9\n+20 < A ack 1009",
    );
    let text = summary::text(&taken.analyze());
    assert!(text.contains("0 of 2 segments") && !text.contains("not accepted"), "{text}");
    // What is lost behind that is a loss.
    let lost = script(&format!(
        "{opening}+0.1 > A len 1000 win 500\n+300 > A len 1000 win 500\n+20 < A ack 1000 win 500\n"
    ));
    assert_eq!((lost.client().counts.fast_open_segments, lost.client().timeouts), (1, 1));
    assert!(find(&lost, Kind::SackMissing).is_some());
}

#[test]
fn a_syn_that_is_sent_again_with_fewer_options_is_told_once() {
    let opened_by = |again: &str| {
        let mut text = format!(
            "0 > S win 65535 mss 1460 ws 7 sackok ts 5/0\n1000 > S win 65535 mss 1460 {again}\n+20 < SA win 65535 mss 1460\n+0.1 > A\n"
        );
        for n in 0..4 {
            let _ =
                writeln!(text, "+1 > A seq {} len 1448\n+20 < A ack {} win 500", n * 1448, (n + 1) * 1448);
        }
        script(&text)
    };
    let trace = opened_by("");
    let text = summary::text(&trace.analyze());
    assert!(text.contains("the last one without window scaling, SACK, timestamps"), "{text}");
    assert_eq!(text.matches("  !").count(), 1, "{text}");
    let same = summary::text(&opened_by("ws 7 sackok ts 1005/0").analyze());
    assert!(!same.contains("without"), "{same}");
    let mut lossy = trace;
    lossy.script("+1 > A seq 5792 len 1448\n+300 > A seq 5792 len 1448\n+20 < A ack 7240 win 500");
    assert!(find(&lossy, Kind::SackMissing).unwrap().what.contains("left it out when it sent its SYN again"));
}

#[test]
fn small_packets_that_wait_for_an_acknowledgement_are_limited_by_the_application() {
    for delay_ms in [0, 40] {
        let limits = halves(delay_ms).client().limits;
        assert!(limits.application > 0.99, "{delay_ms}: {limits:?}");
    }
    // Where the MSS is small, so are full segments.
    let small = made(&Transfer { mss: 100, segments: 2000, ..Transfer::default() }).trace;
    let mut small = small;
    small.packets.iter_mut().filter(|(_, tcp)| tcp.flags & flag::SYN != 0).for_each(|(_, tcp)| {
        tcp.options[2..4].copy_from_slice(&112u16.to_be_bytes());
    });
    assert!(small.client().limits.congestion > 0.9, "{:?}", small.client().limits);
}

#[test]
fn answers_to_requests_that_come_behind_a_delayed_acknowledgement_did_not_wait_for_it() {
    let mut text = String::new();
    for n in 0..20u32 {
        let (request, answer) = (n * 200, n * 300);
        let _ = writeln!(text, "+5 > A seq {request} ack {answer} len 200 win 500");
        let _ = writeln!(text, "+20 < A seq {answer} ack {} len 300 win 500", request + 200);
        let _ = writeln!(text, "+45 > A seq {} ack {} win 500", request + 200, answer + 300);
    }
    assert_eq!(find(&opened(&text), Kind::DelayedAckNagle), None);
}

#[test]
fn a_capture_whose_packets_have_no_time_tells_no_round_trip() {
    let mut trace = made(&Transfer::default()).trace;
    trace.packets.iter_mut().for_each(|(time_ns, _)| *time_ns = 0);
    let text = summary::text(&trace.analyze());
    assert!(text.contains("place of capture unknown, handshake RTT unknown"), "{text}");
    assert!(text.contains("RTT unknown, flight") && text.contains("limits unknown"), "{text}");
}

#[test]
fn options_that_the_capture_cut_were_not_left_out() {
    let mut trace = made(&Transfer { segments: 2000, loss_permille: 5, ..Transfer::default() }).trace;
    let mut writer = PcapWriter::new(Vec::new(), LinkType(1), 54).unwrap();
    trace.packets.sort_by_key(|(time_ns, _)| *time_ns);
    for (time_ns, tcp) in &trace.packets {
        let (frame, length) = tcp.frame();
        writer.packet(*time_ns, length as u32, &frame[..54]).unwrap();
    }
    let analysis = analyze_bytes(&writer.into_inner(), Settings::default());
    let text = summary::text(&analysis);
    assert!(text.contains("SACK unknown") && text.contains("window unknown"), "{text}");
    assert!(!text.contains("incomplete") && !text.contains("SACK is missing"), "{text}");
}

#[test]
fn a_capture_begun_in_the_middle_accuses_no_sender() {
    for place in [0, 50, 100] {
        let transfer = Transfer { segments: 4000, timestamps: false, place, ..Transfer::default() };
        let mut trace = made(&transfer).trace;
        trace.packets.drain(..500);
        let flow = trace.flow();
        assert_eq!(find_in(&flow, Kind::SenderIdle), None, "{place}");
        assert!(summary::text(&trace.analyze()).contains("limits unknown"), "{place}");
        let mut stamped = made(&Transfer { timestamps: true, ..transfer }).trace;
        stamped.packets.drain(..500);
        assert_eq!(find(&stamped, Kind::SenderIdle), None, "{place}");
    }
}

#[test]
fn a_capture_without_a_flow_meets_no_expectation_of_flows() {
    let nothing = script("").analyze();
    for text in ["retransmissions < 1%", "spurious == 0", "timeouts == 0", "zero_windows == 0", "losses == 0"]
    {
        let judged = text.parse::<Expect>().unwrap().judge(&nothing);
        assert!(!judged.met, "{text}");
        assert!(text.parse::<Expect>().unwrap().judge(&opened("+1 > A len 9").analyze()).met, "{text}");
    }
    assert!("flows == 0".parse::<Expect>().unwrap().judge(&nothing).met);
}

#[test]
fn what_was_not_sorted_is_not_called_sorted() {
    let early = Tcp::client(flag::ACK, 1, 1).payload(100);
    let mut trace = opened("+1 > A len 100\n+1 < A ack 100");
    let last_ns = trace.packets.last().unwrap().0;
    trace.push(last_ns - 100 * MS, early);
    let analysis = trace.analyze();
    assert_eq!((analysis.capture.backwards_packets, analysis.capture.unsorted_packets), (1, 1));
    let said = summary::text(&analysis);
    assert!(said.contains("1 packet too far out of the order") && !said.contains("; sorted"), "{said}");
    trace.packets.last_mut().unwrap().0 = last_ns - 5 * MS;
    let said = summary::text(&trace.analyze());
    assert!(said.contains("1 packets out of the order of their times; sorted"), "{said}");
}

#[test]
fn flows_that_are_left_out_are_not_said_to_be_in_the_json() {
    let mut trace = Trace::default();
    for port in 0..30 {
        let start_ns = i64::from(port) * 100 * MS;
        let packet = Tcp { ports: (40_000 + port, 5001), ..Tcp::client(flag::ACK, 1, 1).payload(100) };
        trace.push(start_ns, packet);
    }
    let settings = Settings { most_flows: 15, ..Settings::default() };
    let said = summary::text(&analyze_bytes(&trace.pcap(), settings));
    assert!(said.contains("20 smaller flows are not shown; --json has 5 of them (--most-flows)"), "{said}");
    assert!(summary::text(&trace.analyze()).contains("20 smaller flows are not shown; --json has them"));
}

#[test]
fn a_bundle_that_is_sent_in_vain_is_no_packet_that_is_too_large() {
    let mut text = String::new();
    for n in 0..10 {
        text += &format!("+1 > A seq {} len 1460\n+20 < A ack {} win 500\n", n * 1460, (n + 1) * 1460);
    }
    text += "+1 > A seq 14600 len 2920\n";
    (0..7).for_each(|n| text += &format!("+{} > A seq 14600 len 2920\n", 200 << n));
    let trace = opened(&text);
    assert_eq!(find(&trace, Kind::MtuTrouble), None);
    assert!(find(&trace, Kind::ConnectionDied).is_some());
}
