//! Two captures of one flow at two places, made from one list of packets with a path between them.

use crate::support::{self, MS, Tcp, Trace, US};
use longfat_analyze::{
    capture::reader::CaptureReader,
    matching::{Matching, matching},
    segment::flag,
};
use proptest::prelude::*;

/// What the path does to a packet: delay, or loss.
type Path<'a> = &'a dyn Fn(usize, &Tcp) -> Option<i64>;

/// 200 data packets a millisecond apart, and their ACKs 20 ms later, as the client's side sees them; and the same
/// behind the path, by a clock that is ahead.
fn two_places(clock_ns: i64, path: Path<'_>) -> [Trace; 2] {
    let mut near = Vec::new();
    for number in 0..200u32 {
        let data = Tcp::client(flag::ACK, 1 + number * 1000, 1).payload(1000).ip_id(number as u16 + 1);
        near.push((10 * MS + i64::from(number) * MS, data));
        let ack = Tcp::server(flag::ACK, 1, 1001 + number * 1000).ip_id(number as u16 + 1);
        near.push((30 * MS + i64::from(number) * MS, ack));
    }
    let mut far = Vec::new();
    let mut seen = Vec::new();
    for (number, (time_ns, tcp)) in near.into_iter().enumerate() {
        let delay = path(number, &tcp);
        // What comes towards the client passed the far place before; what was lost on its way never came near.
        match (tcp.from_client, delay) {
            (true, Some(delay)) => far.push((time_ns + delay + clock_ns, tcp.clone())),
            (false, Some(delay)) => far.push((time_ns - delay + clock_ns, tcp.clone())),
            (false, None) => far.push((time_ns - 5 * MS + clock_ns, tcp.clone())),
            (true, None) => {}
        }
        if tcp.from_client || delay.is_some() {
            seen.push((time_ns, tcp));
        }
    }
    [seen, far].map(|mut packets| {
        packets.sort_by_key(|(time_ns, _)| *time_ns);
        let mut trace = Trace::default();
        packets.into_iter().for_each(|(time_ns, tcp)| trace.push(time_ns, tcp));
        trace
    })
}

fn matched(traces: &[Trace; 2]) -> Matching {
    let files = traces.each_ref().map(Trace::pcap);
    let mut readers = [0, 1].map(|at: usize| CaptureReader::new(&files[at][..], "test").unwrap());
    matching(&mut readers).unwrap()
}

#[test]
fn a_path_without_loss_shows_its_round_trip_whatever_the_clocks_show() {
    for clock_ns in [0, 3_600_000 * MS, -70 * MS] {
        let clock_ns = clock_ns + 100_000 * MS;
        let traces = two_places(clock_ns, &|_, tcp| Some(if tcp.from_client { 8 * MS } else { 4 * MS }));
        let found = matched(&traces);
        assert_eq!((found.packets, found.matched_packets, found.flows.len()), ([400, 400], 400, 1));
        let flow = &found.flows[0];
        assert_eq!(flow.least_round_trip_us, Some(12_000.0));
        assert_eq!(flow.clock_difference_us, Some((clock_ns + 2 * MS) as f64 / 1e3));
        assert!(!flow.repacked && flow.directions[0].from.ends_with(":40000"));
        assert!(flow.directions.iter().all(|one| one.lost_packets == 0 && one.unseen_before_packets == 0));
        assert_eq!(flow.directions[0].delay_above_least_us, [0.0; 4]);
        assert_eq!(
            flow.directions[0].gap_us.map(|gap| gap.is_some_and(|us| (us - 1000.0).abs() < 40.0)),
            [true; 2]
        );
    }
}

#[test]
fn a_queue_between_shows_as_delay_above_the_least_of_that_direction_only() {
    let queue = |number: usize, tcp: &Tcp| {
        Some(if tcp.from_client { 5 * MS + (number as i64 / 2) * 100 * US } else { 5 * MS })
    };
    let flow = &matched(&two_places(0, &queue)).flows[0];
    let [half, _, _, all] = flow.directions[0].delay_above_least_us;
    assert!((half - 9_950.0).abs() <= 100.0 && all == 19_900.0, "{half} {all}");
    assert_eq!(flow.directions[1].delay_above_least_us, [0.0; 4]);
}

#[test]
fn losses_are_counted_in_the_direction_and_between_the_places_they_happened() {
    let lossy = |number: usize, tcp: &Tcp| {
        let is_lost = if tcp.from_client { number % 20 == 10 } else { number == 101 };
        (!is_lost).then_some(5 * MS)
    };
    let flow = &matched(&two_places(7 * MS, &lossy)).flows[0];
    let [forth, back] = [&flow.directions[0], &flow.directions[1]];
    assert_eq!((forth.lost_packets, forth.lost_bytes, forth.unseen_before_packets), (20, 20_000, 0));
    assert_eq!((back.lost_packets, back.lost_bytes, back.unseen_before_packets), (1, 0, 0));
    assert!(!flow.repacked);
}

/// Both captures begin and end at the same time, in mid-stream: on a long path much is between them then.
#[test]
fn what_is_on_its_way_when_captures_begin_or_end_is_not_lost() {
    let path = |number: usize, tcp: &Tcp| {
        let is_lost = number == 150 || number == 201;
        (!is_lost).then_some(if tcp.from_client { 18 * MS } else { 4 * MS })
    };
    let traces = two_places(0, &path).map(|trace| {
        let packets = trace.packets.into_iter().filter(|(time_ns, _)| (60 * MS..160 * MS).contains(time_ns));
        Trace { packets: packets.collect() }
    });
    let flow = &matched(&traces).flows[0];
    let told = [0, 1].map(|at: usize| {
        let one = &flow.directions[at];
        (one.lost_packets, one.unseen_before_packets)
    });
    assert_eq!((told, flow.repacked), ([(1, 0), (1, 0)], false));
}

#[test]
fn data_that_was_pushed_together_is_told() {
    // Every tenth waits for the one behind it.
    let pushes = |number: usize, tcp: &Tcp| {
        Some(if tcp.from_client && number.is_multiple_of(20) { 5 * MS + 950 * US } else { 5 * MS })
    };
    let found = matched(&two_places(0, &pushes));
    let share = found.flows[0].directions[0].compressed_share.unwrap();
    assert!((share - 20.0 / 199.0).abs() < 0.02, "{share}");
}

#[test]
fn acknowledgements_that_the_path_merged_are_told_apart_from_data_that_it_left_alone() {
    let (mut near, mut far) = (Trace::default(), Trace::default());
    let (mut nears, mut fars) = (Vec::new(), Vec::new());
    for number in 0..200u32 {
        let at = 50 * MS + i64::from(number) * MS;
        let data = Tcp::client(flag::ACK, 1 + number * 1000, 1).payload(1000).ip_id(number as u16 + 1);
        let ack = Tcp::server(flag::ACK, 1, 1001 + number * 1000).ip_id(number as u16 + 1);
        nears.push((at, data.clone()));
        fars.push((at + 5 * MS, data));
        fars.push((at + 6 * MS, ack.clone()));
        // Frames carry four.
        nears.push((at + 15 * MS + i64::from(3 - number % 4) * MS + i64::from(number % 4) * 10 * US, ack));
    }
    for (packets, trace) in [(nears, &mut near), (fars, &mut far)] {
        let mut packets = packets;
        packets.sort_by_key(|(time_ns, _)| *time_ns);
        packets.into_iter().for_each(|(time_ns, tcp)| trace.push(time_ns, tcp));
    }
    let flow = &matched(&[near, far]).flows[0];
    let [data, acks] = [&flow.directions[0], &flow.directions[1]];
    assert_eq!((data.compressed_share, data.compressed_ack_share), (Some(0.0), None));
    assert_eq!(acks.compressed_share, None);
    let share = acks.compressed_ack_share.unwrap();
    assert!((share - 150.0 / 199.0).abs() < 0.01, "{share}");
    let [before, behind] = acks.ack_gap_us.map(Option::unwrap);
    assert!((before - 1000.0).abs() < 40.0 && (behind - 10.0).abs() < 1.0, "{before} {behind}");
}

#[test]
fn octets_that_were_packed_anew_are_not_called_lost_without_a_word() {
    let [near, _] = two_places(0, &|_, _| Some(5 * MS));
    let mut cut = Trace::default();
    for (time_ns, tcp) in &near.packets {
        if tcp.payload == 1000 && tcp.seq % 4000 == 1 {
            for part in 0..2 {
                cut.push(time_ns + 5 * MS, Tcp { seq: tcp.seq + part * 500, ..tcp.clone().payload(500) });
            }
        } else {
            cut.push(time_ns + 5 * MS, tcp.clone());
        }
    }
    assert!(matched(&[near, cut]).flows[0].repacked);
}

/// Three minutes of steady traffic at two places, 5 ms apart, each captured from and to its own second; every hundredth
/// data packet is lost between. The second clock is ahead.
fn steady(clock_s: i64, captured_s: &[std::ops::Range<i64>; 2]) -> [Trace; 2] {
    let mut traces = [Trace::default(), Trace::default()];
    for number in 0..9_000u32 {
        let sent_ns = i64::from(number) * 20 * MS;
        let data = Tcp::client(flag::ACK, 1 + number * 1000, 1).payload(1000).ip_id(number as u16 + 1);
        let ack = Tcp::server(flag::ACK, 1, 1001 + number * 1000).ip_id(number as u16 + 1);
        let is_lost = number % 100 == 99;
        for (place, at_ns, tcp) in [
            (0, sent_ns, Some(&data)),
            (1, sent_ns + 5 * MS, Some(&data).filter(|_| !is_lost)),
            (1, sent_ns + 6 * MS, Some(&ack)),
            (0, sent_ns + 11 * MS, Some(&ack)),
        ] {
            let clock_ns = (10_000 + if place == 1 { clock_s } else { 0 }) * 1000 * MS;
            let tcp = tcp.filter(|_| captured_s[place].contains(&(at_ns / (1000 * MS))));
            tcp.into_iter().for_each(|tcp| traces[place].push(at_ns + clock_ns, tcp.clone()));
        }
    }
    traces
}

#[test]
fn captures_that_begin_or_end_far_apart_are_matched_where_they_overlap_whatever_their_clocks_show() {
    for (near_s, far_s, both_s) in [
        (0..180, 40..180, 140),
        (40..180, 0..180, 140),
        (0..180, 100..120, 20),
        (0..100, 60..180, 40),
        (0..180, 0..180, 180),
    ] {
        for clock_s in [0, 2, -30, 3600, -3600] {
            let found = matched(&steady(clock_s, &[near_s.clone(), far_s.clone()]));
            let forth = &found.flows[0].directions[0];
            let (matched, lost) = (forth.matched_packets, forth.lost_packets);
            let told = format!("{near_s:?} {far_s:?} {clock_s}: {matched} matched, {lost} lost");
            assert!(matched.abs_diff(both_s * 50 * 99 / 100) <= 2, "{told}");
            assert!(lost.abs_diff(both_s / 2) <= 1 && forth.unseen_before_packets <= 1, "{told}");
        }
    }
}

#[test]
fn captures_of_different_traffic_have_nothing_in_common() {
    let mut other = Trace::default();
    other.push(0, Tcp { ports: (1, 2), ..Tcp::client(flag::SYN, 0, 0) });
    let found = matched(&[two_places(0, &|_, _| Some(0))[0].clone(), other]);
    assert_eq!((found.matched_packets, found.flows.len()), (0, 0));
}

/// Sets the clock of a capture from this packet on.
fn stepped(trace: &Trace, from: usize, by_ns: i64) -> Trace {
    let shift = |(number, (time_ns, tcp)): (usize, &(i64, Tcp))| {
        (time_ns + if number < from { 0 } else { by_ns }, tcp.clone())
    };
    Trace { packets: trace.packets.iter().enumerate().map(shift).collect() }
}

#[test]
fn a_clock_that_was_set_is_told_by_name_and_loses_nothing() {
    let path = |number: usize, tcp: &Tcp| {
        (number % 50 != 20).then_some(if tcp.from_client {
            8 * MS + (number as i64 % 40) * 50 * US
        } else {
            4 * MS
        })
    };
    let traces = two_places(100_000 * MS, &path);
    let straight = matched(&traces);
    for place in [0, 1] {
        for by_ns in [2_500 * MS, -2_500 * MS, 3_600_000 * MS, -3_600_000 * MS] {
            let mut set = traces.clone();
            set[place] = stepped(&traces[place], 150, by_ns);
            let found = matched(&set);
            let steps = &found.clock_step_list;
            assert_eq!([steps[place].len(), steps[1 - place].len()], [1, 0], "{place} {by_ns}");
            assert_eq!(steps[place][0].packet, 150);
            assert!((steps[place][0].by_s - by_ns as f64 / 1e9).abs() < 0.05, "{steps:?}");
            assert_eq!(told(&found), told(&straight), "{place} {by_ns}");
            let clock = |found: &Matching| found.flows[0].clock_difference_us.unwrap();
            assert!((clock(&found) - clock(&straight)).abs() < 2_000.0);
            let which = ["first", "second"][place];
            let way = if by_ns > 0 { "forward" } else { "back" };
            let text = longfat_analyze::matching::text(&found);
            assert!(text.contains(&format!("the clock of the {which} capture was set {way} by ")), "{text}");
        }
    }
}

/// Counts, round trip and gaps.
fn told(found: &Matching) -> impl PartialEq + std::fmt::Debug + use<> {
    let flow = &found.flows[0];
    let of = |at: usize| {
        let one = &flow.directions[at];
        (one.from.clone(), one.matched_packets, one.lost_packets, one.unseen_before_packets)
    };
    let round_trip = flow.least_round_trip_us.map(|us| (us / 100.0).round());
    (found.matched_packets, round_trip, of(0), of(1))
}

#[test]
fn what_a_queue_holds_back_in_one_direction_is_delay_and_no_step_of_a_clock() {
    // Two seconds of darkness for data: it waits, and comes at once. Acknowledgements go on.
    let mut near = Vec::new();
    let mut far = Vec::new();
    for number in 0..300u32 {
        let at = i64::from(number) * 20 * MS;
        let data = Tcp::client(flag::ACK, 1 + number * 1000, 1).payload(1000).ip_id(number as u16 + 1);
        let dark = if (2_000..4_000).contains(&(at / MS)) { 4_000 * MS - at } else { 0 };
        near.push((at, data.clone()));
        far.push((at + 5 * MS + dark + i64::from(number), data));
        let back = Tcp::server(flag::ACK, 1 + number, 1).ip_id(number as u16 + 1);
        far.push((at + 7 * MS, back.clone()));
        near.push((at + 12 * MS, back));
    }
    let sorted = |mut packets: Vec<(i64, Tcp)>| {
        packets.sort_by_key(|(time_ns, _)| *time_ns);
        Trace { packets }
    };
    let found = matched(&[sorted(near), sorted(far)]);
    assert_eq!(found.clock_step_list, [vec![], vec![]]);
    let [forth, back] = [&found.flows[0].directions[0], &found.flows[0].directions[1]];
    assert!((1_900_000.0..2_100_000.0).contains(&forth.delay_above_least_us[3]), "{forth:?}");
    assert_eq!((forth.lost_packets, back.lost_packets, back.delay_above_least_us[3]), (0, 0, 0.0));
}

#[test]
fn silence_of_both_places_and_other_traffic_of_one_are_no_steps() {
    let traces = two_places(0, &|_, _| Some(5 * MS));
    let pause = |trace: &Trace| stepped(trace, 200, 100_000 * MS);
    let mut quiet = [pause(&traces[0]), pause(&traces[1])];
    // What the second place has alone meanwhile.
    let start = quiet[1].packets[199].0;
    let other = |n: i64| {
        let tcp = Tcp { ports: (1, 2), ..Tcp::client(flag::ACK, n as u32, 1) };
        (start + n * 10 * MS, tcp)
    };
    quiet[1].packets.splice(200..200, (1..9_900).map(other));
    let found = matched(&quiet);
    assert_eq!(found.clock_step_list, [vec![], vec![]]);
    assert_eq!(found.matched_packets, 400);
    let directions = &found.flows[0].directions;
    assert!(directions.iter().all(|one| one.lost_packets + one.unseen_before_packets == 0), "{directions:?}");
}

proptest! {
    #![proptest_config(support::cases::cases(96))]

    #[test]
    fn a_step_of_either_clock_changes_no_count(
        place in 0usize..2,
        // Both directions were seen before.
        from in 60usize..380,
        by_ms in prop_oneof![-7_200_000i64..-1_200, 1_200i64..7_200_000],
        lost in prop::collection::vec(prop::bool::weighted(0.1), 400),
        clock_ms in 0i64..1_000_000,
    ) {
        let path = |number: usize, tcp: &Tcp| {
            (!lost[number]).then_some(if tcp.from_client { 8 * MS } else { 4 * MS })
        };
        let traces = two_places((100_000 + clock_ms) * MS, &path);
        let mut set = traces.clone();
        let from = from.min(traces[place].packets.len() - 30);
        set[place] = stepped(&traces[place], from, by_ms * MS);
        let found = matched(&set);
        let steps = found.clock_step_list.each_ref().map(Vec::len);
        prop_assert_eq!((steps[place], steps[1 - place]), (1, 0), "{:?}", found.clock_step_list);
        prop_assert_eq!(told(&found), told(&matched(&traces)));
    }
}

proptest! {
    #![proptest_config(support::cases::cases(24))]
    #[test]
    fn every_packet_is_matched_lost_or_seen_at_one_place_only(lost in prop::collection::vec(any::<bool>(), 400)) {
        let path = |number: usize, _: &Tcp| (!lost[number] || !(4..=395).contains(&number)).then_some(5 * MS);
        let traces = two_places(50 * MS, &path);
        let found = matched(&traces);
        let flow = &found.flows[0];
        let gone: u64 = lost[4..396].iter().map(|lost| u64::from(*lost)).sum();
        prop_assert_eq!(flow.directions.iter().map(|one| one.lost_packets).sum::<u64>(), gone);
        prop_assert_eq!(found.matched_packets, 400 - gone);
    }
}

#[test]
fn duplicate_acks_that_differ_by_their_blocks_alone_are_not_taken_for_each_other() {
    let ack = |number: u32| Tcp::server(flag::ACK, 1, 1).sack(&[(1001, 2001 + number * 1000)]);
    let place = |first: u32| {
        let mut trace = Trace::default();
        for number in first..24 {
            trace.push(i64::from(number) * 10 * MS, ack(number));
        }
        trace
    };
    // The first is lost between; the path takes no time.
    let found = matched(&[place(0), place(1)]);
    assert_eq!(found.matched_packets, 23);
    let ways = || found.flows.iter().flat_map(|flow| &flow.directions);
    assert!(ways().all(|way| way.delay_above_least_us[3] == 0.0), "{:?}", found.flows);
}
