//! The path model under passed-in time: what holds for every traffic, and what a few known cases come to.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use longfat_link::{
    LinkSpec,
    model::{Counters, Departure, Direction, Ecn, Fate, Packet, Verdict},
    plan::{DirectionPlan, LinkPlan},
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn plan(toml: &str) -> LinkPlan {
    LinkSpec::from_toml(toml).unwrap().resolve("path", 1).unwrap()
}

fn forward(toml: &str) -> Direction<u64> {
    let plan = plan(toml);
    let mut direction = Direction::new(&plan.forward, plan.mtu_bytes, plan.seed, 0);
    direction.start_schedule(0);
    direction
}

fn packet(length_bytes: u32, payload: u64) -> Packet<u64> {
    Packet { length_bytes, ecn: Ecn::NotEct, payload }
}

fn drain(direction: &mut Direction<u64>, now_ns: u64) -> Vec<Departure<u64>> {
    std::iter::from_fn(|| direction.dequeue(now_ns)).collect()
}

/// Follows `next_event` to the end, as a simulator does.
fn run_out(direction: &mut Direction<u64>) -> Vec<Departure<u64>> {
    let mut all = Vec::new();
    while let Some(at_ns) = direction.next_event().filter(|at_ns| *at_ns != u64::MAX) {
        let before = all.len();
        all.extend(drain(direction, at_ns));
        // Every event either hands something out or moves the model on.
        assert!(all.len() > before || direction.next_event() != Some(at_ns), "stuck at {at_ns}");
    }
    all
}

#[test]
fn a_packet_takes_its_transmission_time_and_the_delay() {
    let mut path = forward("rate = '1Gbit'\ndelay = '14.2ms'");
    assert_eq!(path.enqueue(1000, packet(1500, 0)), Verdict::Queued);
    assert_eq!(path.enqueue(1000, packet(1500, 1)), Verdict::Queued);
    let due: Vec<u64> = run_out(&mut path).iter().map(|departure| departure.due_ns).collect();
    assert_eq!(due, [1000 + 12_000 + 14_200_000, 1000 + 24_000 + 14_200_000]);
}

#[test]
fn the_rate_counts_ip_bytes_and_overhead_when_asked() {
    let sent = |extra: &str| {
        let mut path = forward(&format!("rate = '100Mbit'\n{extra}"));
        path.enqueue(0, packet(1500, 0));
        run_out(&mut path)[0].due_ns
    };
    assert_eq!(sent(""), 120_000);
    assert_eq!(sent("overhead = '38B'"), 123_040);
}

#[test]
fn without_rate_and_delay_packets_leave_at_once() {
    let mut path = forward("");
    path.enqueue(5, packet(1500, 7));
    let out = drain(&mut path, 5);
    assert_eq!((out.len(), out[0].due_ns, out[0].packet.payload), (1, 5, 7));
}

#[test]
fn a_time_before_the_latest_counts_as_the_latest() {
    let mut path = forward("delay = '1ms'");
    assert!(drain(&mut path, 10 * MS).is_empty());
    path.enqueue(9 * MS, packet(1500, 0));
    assert_eq!(path.counters(9 * MS).queue_bytes, 0, "an unlimited line holds nothing back");
    assert_eq!(run_out(&mut path)[0].due_ns, 11 * MS);
}

#[test]
fn drop_tail_takes_in_exactly_what_fits_beside_the_packet_being_sent() {
    let mut path = forward("rate = '1Mbit'\nqueue = { limit = '4500B' }");
    let dropped: Vec<u64> =
        (0..6).filter(|n| matches!(path.enqueue(0, packet(1500, *n)), Verdict::Dropped(_))).collect();
    assert_eq!(dropped, [4, 5]);
    assert_eq!(path.counters(0).queue_bytes, 4500);
    assert_eq!(path.counters(0).queue_max_bytes, 4500);
}

#[test]
fn a_dead_line_holds_its_packets_until_the_schedule_revives_it() {
    let mut path = forward("rate = '0bit'\nschedule = [{ at = '1s', rate = '1Mbit' }]");
    path.enqueue(0, packet(125, 0));
    assert!(drain(&mut path, 999 * MS).is_empty());
    assert_eq!(path.next_event(), Some(1000 * MS));
    let out = run_out(&mut path);
    assert_eq!(out[0].due_ns, 1001 * MS);
}

#[test]
fn a_dead_line_without_a_schedule_never_delivers_and_says_so() {
    let mut path = forward("rate = '0bit'");
    path.enqueue(0, packet(125, 0));
    assert_eq!(path.next_event(), Some(u64::MAX));
    assert!(drain(&mut path, u64::MAX - 1).is_empty());
}

#[test]
fn a_schedule_waits_for_its_start() {
    let plan = plan("rate = '8Mbit'\nschedule = [{ at = '0s', rate = '16Mbit' }]");
    let mut path: Direction<u64> = Direction::new(&plan.forward, 1500, 1, 0);
    path.enqueue(0, packet(1000, 0));
    assert_eq!(run_out(&mut path)[0].due_ns, MS);
    path.start_schedule(5 * MS);
    path.enqueue(6 * MS, packet(1000, 0));
    assert_eq!(run_out(&mut path)[0].due_ns, 6 * MS + MS / 2);
}

#[test]
fn a_shorter_delay_never_lets_a_packet_overtake() {
    let mut path = forward("delay = '50ms'\nschedule = [{ at = '10ms', delay = '1ms' }]");
    path.enqueue(9 * MS, packet(100, 0));
    path.enqueue(11 * MS, packet(100, 1));
    path.enqueue(90 * MS, packet(100, 2));
    let due: Vec<(u64, u64)> = run_out(&mut path).iter().map(|d| (d.packet.payload, d.due_ns)).collect();
    assert_eq!(due, [(0, 59 * MS), (1, 59 * MS), (2, 91 * MS)]);
}

#[test]
fn a_lowered_limit_drops_the_youngest() {
    let toml = "rate = '1Mbit'\nqueue = { limit = '6000B' }\nschedule = [{ at = '1ms', queue = { limit = '3000B' } }]";
    let mut path = forward(toml);
    (0..5).for_each(|n| assert_eq!(Verdict::Queued, path.enqueue(0, packet(1500, n))));
    let gone: Vec<(u64, Fate)> = drain(&mut path, MS).iter().map(|d| (d.packet.payload, d.fate)).collect();
    assert_eq!(gone, [(4, Fate::Dropped), (3, Fate::Dropped)]);
    assert_eq!(path.counters(MS).queue_bytes, 3000);
}

#[test]
fn a_step_threshold_marks_capable_packets_and_spares_the_others() {
    let mut path = forward("rate = '1Mbit'\nqueue = { limit = '15KB', mark_threshold = '3000B' }");
    for n in 0..8 {
        let ecn = if n % 2 == 0 { Ecn::Ect0 } else { Ecn::NotEct };
        assert_eq!(path.enqueue(0, Packet { length_bytes: 1500, ecn, payload: n }), Verdict::Queued);
    }
    let marked: Vec<u64> = run_out(&mut path)
        .iter()
        .filter(|departure| departure.packet.ecn == Ecn::Ce)
        .map(|departure| departure.packet.payload)
        .collect();
    // Packet 0 is being sent, 1 and 2 wait (3000 bytes), so packet 4 is the first capable one to find more.
    assert_eq!(marked, [4, 6]);
    assert_eq!(path.counters(0).marked_packets, 2);
}

/// Offers packets of 1500 bytes at `offered_mbit` for `seconds`, draining as it goes.
fn load(path: &mut Direction<u64>, offered_mbit: u64, seconds: u64, ecn: Ecn) -> Counters {
    let gap_ns = 12_000_000 / offered_mbit;
    for n in 0..seconds * 1_000_000_000 / gap_ns {
        path.enqueue(n * gap_ns, Packet { length_bytes: 1500, ecn, payload: n });
        while path.dequeue(n * gap_ns).is_some() {}
    }
    path.counters(seconds * 1_000_000_000)
}

#[test]
fn codel_holds_the_queue_of_an_unresponsive_sender_far_below_drop_tail() {
    // Against a sender that does not slow down CoDel's drop rate rises until arrivals match the rate (RFC 8289
    // section 5): a slightly overloaded line ends with a short queue, where drop-tail ends with a full one.
    let queue = |discipline: &str| {
        let toml = format!("rate = '10Mbit'\nqueue = {{ limit = '1MB', discipline = '{discipline}' }}");
        load(&mut forward(&toml), 11, 60, Ecn::NotEct)
    };
    let (codel, tail) = (queue("codel"), queue("droptail"));
    assert!(tail.queue_bytes > 990_000, "{tail:?}");
    assert!(codel.queue_bytes < 100_000 && codel.dropped_packets > 1000, "{codel:?}");
}

#[test]
fn codel_marks_capable_packets_and_drops_none_below_the_limit() {
    let toml = "rate = '10Mbit'\nqueue = { limit = '100MB', discipline = 'codel', ecn = true }";
    let counters = load(&mut forward(toml), 11, 5, Ecn::Ect0);
    assert_eq!(counters.dropped_packets, 0);
    assert!(counters.marked_packets > 20, "{counters:?}");
}

#[test]
fn red_holds_the_average_between_its_thresholds() {
    let toml = "rate = '10Mbit'\nqueue = { limit = '1MB', discipline = 'red', min_threshold = '50KB', \
                max_threshold = '150KB' }";
    let counters = load(&mut forward(toml), 11, 60, Ecn::NotEct);
    assert!((40_000..160_000).contains(&counters.queue_bytes), "{counters:?}");
    assert!(counters.queue_max_bytes < 500_000, "{counters:?}");
}

#[test]
fn red_marks_capable_packets_instead_of_dropping_them() {
    let toml = "rate = '10Mbit'\nqueue = { limit = '1MB', discipline = 'red', ecn = true }";
    let counters = load(&mut forward(toml), 10, 5, Ecn::Ect1);
    assert_eq!((counters.dropped_packets, counters.marked_packets), (0, 0), "no congestion, no marks");
    let counters = load(&mut forward(toml), 11, 5, Ecn::Ect1);
    assert!(
        counters.marked_packets > 10 && counters.dropped_packets < counters.marked_packets,
        "{counters:?}"
    );
}

#[test]
fn the_mean_queue_is_weighted_by_time() {
    // 1 Mbit/s: 1500 bytes take 12 ms. Two packets wait 12 ms, one 12 more, then none for 24 ms.
    let mut path = forward("rate = '1Mbit'");
    (0..3).for_each(|n| assert_eq!(Verdict::Queued, path.enqueue(0, packet(1500, n))));
    assert_eq!(path.counters(24 * MS).queue_mean_bytes, (3000 + 1500) / 2);
    assert_eq!(path.counters(48 * MS).queue_mean_bytes, (3000 + 1500) / 4);
}

#[test]
fn reordering_jitter_reorders_and_plain_jitter_does_not() {
    let order = |extra: &str| {
        let mut path = forward(&format!("delay = '10ms'\njitter = '5ms'\n{extra}"));
        (0..200).for_each(|n| assert_eq!(Verdict::Queued, path.enqueue(n * MS / 10, packet(100, n))));
        run_out(&mut path).iter().map(|departure| departure.packet.payload).collect::<Vec<_>>()
    };
    assert!(order("").is_sorted());
    let mut shuffled = order("reorder = true");
    assert!(!shuffled.is_sorted());
    shuffled.sort_unstable();
    assert_eq!(shuffled, (0..200).collect::<Vec<_>>());
}

/// A path of any shape.
fn any_plan() -> impl Strategy<Value = LinkPlan> {
    let rate = prop_oneof![Just("unlimited".to_owned()), (1u64..2000).prop_map(|mbit| format!("{mbit}Mbit"))];
    let queue = prop_oneof![
        (2u64..200).prop_map(|kb| format!("{{ limit = '{kb}KB' }}")),
        (2u64..200).prop_map(|kb| format!("{{ limit = '{kb}KB', mark_threshold = '1500B' }}")),
        (2u64..200).prop_map(|kb| format!("{{ limit = '{kb}KB', discipline = 'red', ecn = true }}")),
        (2u64..200).prop_map(|kb| format!(
            "{{ limit = '{kb}KB', discipline = 'codel', target = '1ms', interval = '5ms' }}"
        )),
    ];
    let loss = prop_oneof![
        (0f64..0.3).prop_map(|p| format!("{p:.3}")),
        Just("{ to_bad = 0.05, to_good = 0.3 }".to_owned())
    ];
    let numbers = (0u64..30_000, 0u64..5000, any::<bool>(), 0u64..40, 0u64..1000);
    (rate, queue, loss, numbers).prop_map(|(rate, queue, loss, (delay, jitter, reorder, at, dip))| {
        plan(&format!(
            "rate = '{rate}'\ndelay = '{delay}us'\njitter = '{jitter}us'\nreorder = {reorder}\nloss = {loss}\n\
             queue = {queue}\nschedule = [{{ at = '{at}ms', rate = '{dip}kbit', queue = {{ limit = '2KB' }} }}, \
             {{ at = '60ms', rate = '50Mbit', delay = '1ms', loss = 0.0 }}]"
        ))
    })
}

/// Gaps in microseconds and lengths.
fn any_traffic() -> impl Strategy<Value = Vec<(u64, u32)>> {
    prop::collection::vec((0u64..300, 28u32..=1500), 1..400)
}

/// Offers the traffic, draining after every packet; the direction, what left, what was refused.
fn play(
    plan: &LinkPlan,
    which: &DirectionPlan,
    traffic: &[(u64, u32)],
) -> (Direction<u64>, Vec<Departure<u64>>, u64) {
    let mut path = Direction::new(which, plan.mtu_bytes, plan.seed, 0);
    path.start_schedule(0);
    let (mut out, mut refused, mut now_ns) = (Vec::new(), 0, 0);
    for (number, (gap_us, length)) in traffic.iter().enumerate() {
        now_ns += gap_us * 1000;
        let packet =
            Packet { length_bytes: *length, ecn: Ecn::from_bits(number as u8), payload: number as u64 };
        refused += u64::from(matches!(path.enqueue(now_ns, packet), Verdict::Dropped(_)));
        out.extend(drain(&mut path, now_ns));
    }
    (path, out, refused)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_packet_is_accounted_for_at_every_time(plan in any_plan(), traffic in any_traffic()) {
        let (mut path, mut out, refused) = play(&plan, &plan.forward, &traffic);
        let check = |counters: Counters| {
            let gone = counters.delivered_packets + counters.dropped_packets + counters.lost_packets;
            assert_eq!(counters.offered_packets, gone + counters.inside_packets, "{counters:?}");
        };
        check(path.counters(0));
        out.extend(run_out(&mut path));
        let end = path.counters(0);
        check(end);
        prop_assert_eq!(end.inside_packets, 0);
        let of = |fate| out.iter().filter(|departure| departure.fate == fate).count() as u64;
        prop_assert_eq!(of(Fate::Delivered), end.delivered_packets);
        prop_assert_eq!(of(Fate::Lost), end.lost_packets);
        prop_assert_eq!(of(Fate::Dropped) + refused, end.dropped_packets);
        let mut seen: Vec<u64> = out.iter().map(|departure| departure.packet.payload).collect();
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len() as u64 + refused, end.offered_packets, "no packet leaves twice");
    }

    #[test]
    fn the_queue_never_exceeds_its_limit(plan in any_plan(), traffic in any_traffic()) {
        let (path, ..) = play(&plan, &plan.forward, &traffic);
        let mut path = path;
        prop_assert!(path.counters(0).queue_max_bytes <= plan.forward.queue.limit_bytes);
        let after_ns = 60 * MS;
        prop_assert!(path.counters(after_ns).queue_bytes <= 2000);
    }

    #[test]
    fn deliveries_are_in_order_never_before_the_delay_and_never_early(
        plan in any_plan(), traffic in any_traffic()
    ) {
        let (mut path, mut out, _) = play(&plan, &plan.forward, &traffic);
        out.extend(run_out(&mut path));
        let delivered: Vec<_> = out.iter().filter(|departure| departure.fate == Fate::Delivered).collect();
        prop_assert!(delivered.is_sorted_by_key(|departure| departure.due_ns));
        if !plan.forward.reorder {
            prop_assert!(delivered.is_sorted_by_key(|departure| departure.packet.payload));
        }
        let mut arrivals = traffic.iter().scan(0, |now, (gap, _)| { *now += gap * 1000; Some(*now) });
        let arrivals: Vec<u64> = arrivals.by_ref().collect();
        let least_ns = plan.forward.min_delay_ns();
        for departure in delivered {
            prop_assert!(departure.due_ns >= arrivals[departure.packet.payload as usize] + least_ns);
        }
    }

    #[test]
    fn over_any_window_no_more_than_the_rate_is_transmitted(
        mbit in 1u64..1000, traffic in any_traffic(), delay_us in 0u64..5000
    ) {
        let plan = plan(&format!("rate = '{mbit}Mbit'\ndelay = '{delay_us}us'\nqueue = {{ limit = '10KB' }}"));
        let (mut path, mut out, _) = play(&plan, &plan.forward, &traffic);
        out.extend(run_out(&mut path));
        for first in 0..out.len().min(40) {
            let mut bits = 0u128;
            for later in &out[first + 1..] {
                bits += u128::from(later.packet.length_bytes) * 8;
                let span_ns = u128::from(later.due_ns - out[first].due_ns);
                // One nanosecond of rounding at the first departure.
                prop_assert!(bits * 1000 <= u128::from(mbit) * (span_ns + 1));
            }
        }
    }

    #[test]
    fn the_outcome_depends_on_arrivals_and_seed_alone_not_on_when_it_is_drained(
        plan in any_plan(), traffic in any_traffic()
    ) {
        let (mut often, mut out, _) = play(&plan, &plan.forward, &traffic);
        out.extend(run_out(&mut often));
        let mut rarely = Direction::new(&plan.forward, plan.mtu_bytes, plan.seed, 0);
        rarely.start_schedule(0);
        let mut now_ns = 0;
        for (number, (gap_us, length_bytes)) in traffic.iter().enumerate() {
            now_ns += gap_us * 1000;
            let ecn = Ecn::from_bits(number as u8);
            rarely.enqueue(now_ns, Packet { length_bytes: *length_bytes, ecn, payload: number as u64 });
        }
        let key = |departure: &Departure<u64>| (departure.due_ns, departure.packet.payload);
        let mut late = run_out(&mut rarely);
        late.sort_unstable_by_key(key);
        out.sort_unstable_by_key(key);
        prop_assert_eq!(late, out);
    }
}
