//! Links that follow a trace: delivery opportunities as mahimahi publishes them, and rows of a table.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use longfat_link::{
    LinkSpec,
    model::{Direction, Ecn, Packet, Verdict},
    plan::{DirectionPlan, LinkPlan},
    spec::Traces,
};
use proptest::prelude::*;
use std::{collections::VecDeque, fs};

const MS: u64 = 1_000_000;

/// A link whose files are there: names and texts.
fn resolved(toml: &str, files: &[(&str, &str)]) -> Result<LinkPlan, String> {
    let directory = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(directory.path().join(name), text).unwrap());
    let mut spec = LinkSpec::from_toml(toml).map_err(|error| error.to_string())?;
    spec.load_traces("path", directory.path(), &mut Traces::default()).map_err(|error| error.to_string())?;
    spec.resolve("path", 1).map_err(|error| error.to_string())
}

fn following(trace: &str, more: &str) -> DirectionPlan {
    resolved(&format!("trace = 'lte.up'\n{more}"), &[("lte.up", trace)]).unwrap().forward
}

/// When packets of these sizes, which arrive at these times, are delivered.
fn delivered(plan: &DirectionPlan, start_ns: u64, arrivals: &[(u64, u32)]) -> Vec<(usize, u64)> {
    let mut path: Direction<usize> = Direction::new(plan, 1500, 1, 0);
    path.start_schedule(start_ns);
    for (number, (at_ns, length_bytes)) in arrivals.iter().enumerate() {
        let packet = Packet { length_bytes: *length_bytes, ecn: Ecn::NotEct, payload: number };
        assert_eq!(path.enqueue(*at_ns, packet), Verdict::Queued);
    }
    let mut found = Vec::new();
    while let Some(at_ns) = path.next_event().filter(|at_ns| *at_ns < u64::MAX) {
        found.extend(
            std::iter::from_fn(|| path.dequeue(at_ns)).map(|gone| (gone.packet.payload, gone.due_ns)),
        );
    }
    found
}

/// As mahimahi's link does it (Netravali et al. 2015, section 4): at each opportunity, 1504 bytes of what waits are
/// sent, in order; packets have 4 bytes more there; what nobody uses is lost; after the last line the file begins
/// again.
fn as_mahimahi(trace_ms: &[u64], arrivals: &[(u64, u32)]) -> Vec<(usize, u64)> {
    let (mut waiting, mut in_transit, mut found) = (VecDeque::new(), None::<(usize, u32)>, Vec::new());
    let mut coming: VecDeque<_> = arrivals.iter().enumerate().collect();
    let last_ms = *trace_ms.last().unwrap();
    let repeated = (0..).flat_map(|turn| trace_ms.iter().map(move |ms| (turn * last_ms + ms) * MS));
    for opportunity_ns in repeated {
        while let Some((number, (_, bytes))) = coming.pop_front_if(|(_, (at_ns, _))| *at_ns < opportunity_ns)
        {
            waiting.push_back((number, bytes + 4));
        }
        let mut left = 1504;
        while left > 0 {
            let Some((number, missing)) = in_transit.take().or_else(|| waiting.pop_front()) else { break };
            let sent = left.min(missing);
            left -= sent;
            if missing > sent {
                in_transit = Some((number, missing - sent));
            } else {
                found.push((number, opportunity_ns));
            }
        }
        if found.len() == arrivals.len() {
            break;
        }
    }
    found
}

fn text_of(trace_ms: &[u64]) -> String {
    trace_ms.iter().map(|ms| format!("{ms}\n")).collect()
}

#[test]
fn an_opportunity_carries_a_packet_of_1500_bytes_or_several_small_ones_and_is_lost_when_nobody_waits() {
    let plan = following("2\n4\n6\n8\n", "");
    // At 3.5 ms the opportunity at 2 ms is gone.
    assert_eq!(delivered(&plan, 0, &[(3_500_000, 1500)]), [(0, 4 * MS)]);
    let small: Vec<_> = (0..5).map(|_| (MS, 300)).collect();
    let at: Vec<_> = delivered(&plan, 0, &small).iter().map(|(_, at_ns)| at_ns / MS).collect();
    assert_eq!(at, [2, 2, 2, 2, 4], "4 packets of 304 bytes fit into 1504, the fifth is cut in two");
}

#[test]
fn several_lines_of_one_time_are_several_opportunities_and_the_last_line_is_the_new_beginning() {
    let plan = following("0\n5\n5\n", "");
    let arrivals: Vec<_> = (0..5).map(|_| (1, 1500)).collect();
    let at: Vec<_> = delivered(&plan, 0, &arrivals).iter().map(|(_, at_ns)| at_ns / MS).collect();
    assert_eq!(at, [5, 5, 5, 10, 10], "0 ms of the second turn is 5 ms of the first");
    assert_eq!(delivered(&plan, 0, &[(5 * MS, 1500)]), [(0, 10 * MS)], "a packet that comes with it is late");
    assert_eq!(
        delivered(&plan, 0, &[(1_000_000 * MS, 1500)]),
        [(0, 1_000_005 * MS)],
        "after a long silence, too"
    );
}

#[test]
fn before_the_schedule_begins_the_line_has_the_mean_rate_and_afterwards_the_trace_counts_from_there() {
    let plan = following("10\n", "");
    assert_eq!(plan.line.rate_bps, Some(1_203_200));
    assert_eq!(delivered(&plan, 1000 * MS, &[(0, 1500)]), [(0, 10 * MS)], "1504 bytes at that rate");
    assert_eq!(delivered(&plan, 1003 * MS, &[(1003 * MS + 1, 1500)]), [(0, 1013 * MS)]);
    assert_eq!(
        delivered(&plan, 1003 * MS, &[(1002 * MS, 1500), (1002 * MS, 1500)]),
        [(0, 1012 * MS), (1, 1013 * MS)]
    );
}

#[test]
fn a_trace_that_is_gone_through_once_ends() {
    let files = [("lte.up", "1\n3\n")];
    let plan = resolved("trace = { file = 'lte.up', once = true }", &files).unwrap().forward;
    assert_eq!(delivered(&plan, 0, &[(0, 1500), (0, 1500), (0, 1500)]), [(0, MS), (1, 3 * MS)]);
}

#[test]
fn delay_and_overhead_are_the_links_own() {
    let plan = following("1\n2\n", "delay = '20ms'\noverhead = '0B'");
    assert_eq!((plan.line.delay_ns, plan.overhead_bytes), (20 * MS, 0));
    assert_eq!(delivered(&plan, 0, &[(0, 1500)]), [(0, 21 * MS)]);
    assert_eq!(following("1\n", "").overhead_bytes, 4, "as mahimahi counts");
}

proptest! {
    #[test]
    fn packets_leave_when_mahimahi_says(
        gaps in prop::collection::vec(0u64..4, 1..30),
        steps in prop::collection::vec((prop_oneof![Just(0u64), 0u64..9_000_000, Just(MS), Just(40 * MS)], 40u32..1501), 1..60),
    ) {
        let mut at = 0;
        let trace: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
        prop_assume!(at > 0);
        let mut now_ns = 0;
        let arrivals: Vec<_> = steps.iter().map(|(step, bytes)| { now_ns += step; (now_ns, *bytes) }).collect();
        let plan = following(&text_of(&trace), "queue = { limit = '10MB' }");
        prop_assert_eq!(delivered(&plan, 0, &arrivals), as_mahimahi(&trace, &arrivals));
    }

    #[test]
    fn slowed_by_a_factor_everything_comes_later_by_it(
        gaps in prop::collection::vec(0u64..4, 1..20), times in 2u64..9,
        steps in prop::collection::vec((0u64..9_000_000, 40u32..1501), 1..30),
    ) {
        let mut at = 0;
        let trace: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
        prop_assume!(at > 0);
        let mut plan = following(&text_of(&trace), "queue = { limit = '10MB' }");
        let mut now_ns = 0;
        let arrivals: Vec<_> = steps.iter().map(|(step, bytes)| { now_ns += step; (now_ns, *bytes) }).collect();
        let own: Vec<_> = delivered(&plan, 0, &arrivals).iter().map(|(n, at_ns)| (*n, at_ns * times)).collect();
        plan.opportunities.as_mut().unwrap().unit_ns *= times;
        let late: Vec<_> = arrivals.iter().map(|(at_ns, bytes)| (at_ns * times, *bytes)).collect();
        prop_assert_eq!(delivered(&plan, 0, &late), own);
    }
}

const TABLE: &str = "time_s,rate_mbps,delay_ms,loss\n0,12,10,0\n1,6,20,0\n2,0,20,0\n3,12,10,0.5\n";

#[test]
fn rows_hold_until_the_next_and_begin_again() {
    let plan = resolved("trace = 'leo.csv'", &[("leo.csv", TABLE)]).unwrap().forward;
    assert_eq!(
        (plan.repeats_ns, plan.schedule.len(), plan.line.rate_bps),
        (Some(4_000_000_000), 4, Some(12_000_000))
    );
    let sent = |at_ms: u64| delivered(&plan, 0, &[(at_ms * MS, 1500)])[0].1 / MS;
    assert_eq!([0, 1500, 2500, 4000, 5500].map(sent), [11, 1522, 3011, 4011, 5522]);
    assert_eq!(plan.schedule[3].line.loss, longfat_link::plan::LossPlan::Bernoulli { probability: 0.5 });
}

#[test]
fn rows_that_are_gone_through_once_leave_the_last() {
    let once = "trace = { file = 'leo.csv', once = true }";
    let plan = resolved(once, &[("leo.csv", "time_s,rate_mbps\n0,12\n1,6\n")]).unwrap().forward;
    assert_eq!((plan.repeats_ns, plan.schedule.len()), (None, 1));
    assert_eq!(delivered(&plan, 0, &[(100_000 * MS, 1500)])[0].1, 100_002 * MS);
}

#[test]
fn a_queue_that_nobody_sized_holds_the_means_product() {
    let plan = resolved("trace = 'leo.csv'", &[("leo.csv", TABLE)]).unwrap();
    // 7.5 Mbit/s and 15 ms there and back: 28 kB; 64 packets are more.
    assert_eq!(plan.forward.queue.limit_bytes, 96_000);
    let long = "time_s,rate_mbps,delay_ms\n0,100,300\n10,200,300\n";
    let plan = resolved("trace = 'geo.csv'", &[("geo.csv", long)]).unwrap();
    assert_eq!(plan.forward.queue.limit_bytes, 11_250_000);
}

#[test]
fn each_direction_may_follow_its_own_trace_and_one_with_a_rate_follows_none() {
    let files = [("a.up", "1\n"), ("b.down", "2\n")];
    let own = resolved("trace = 'a.up'\nbackward = { trace = 'b.down' }", &files).unwrap();
    let length = |plan: &DirectionPlan| plan.opportunities.as_ref().map(|recorded| recorded.at.length());
    assert_eq!((length(&own.forward), length(&own.backward)), (Some(1), Some(2)));
    let same = resolved("trace = 'a.up'", &files).unwrap();
    assert_eq!(length(&same.backward), Some(1));
    let rated = resolved("trace = 'a.up'\nbackward = { rate = '1Mbit' }", &files).unwrap();
    assert_eq!((length(&rated.backward), rated.backward.line.rate_bps), (None, Some(1_000_000)));
}

#[test]
fn what_cannot_be_followed_is_refused_with_the_mend() {
    let files = [("a.up", "1\n"), ("leo.csv", TABLE), ("bad.csv", "time_s,rate_mbps\n0,fast\n")];
    let said = |toml: &str| resolved(toml, &files).unwrap_err();
    assert!(
        said("trace = 'a.up'\nrate = '1Mbit'")
            .contains("rate = (given) is what the trace's opportunities say")
    );
    assert!(
        said("trace = 'leo.csv'\ndelay = '1ms'").contains("delay = (given) is what the trace says over time")
    );
    assert!(said("trace = 'leo.csv'\nloss = 0.1").contains("loss = (given)"));
    let schedule = "trace = 'a.up'\nschedule = [{ at = '1s', delay = '1ms' }]";
    assert!(said(schedule).contains("schedule = (given) cannot change a link that follows a trace"));
    let missing = said("trace = 'none.csv'");
    assert!(missing.contains("trace = 'none.csv' cannot be followed: No such file"), "{missing}");
    let bad = said("trace = 'bad.csv'");
    assert!(bad.contains("line 2: 'fast' is no rate_mbps; write a number from 0 to"), "{bad}");
    assert!(said("backward = { trace = 'bad.csv' }").contains("backward.trace"));
    assert!(said("trace = '.'").contains("no regular file"));
    let unread = LinkSpec::from_toml("trace = 'a.up'").unwrap().resolve("path", 1).unwrap_err().to_string();
    assert!(unread.contains("was not read"), "{unread}");
}

#[test]
fn rows_that_take_longer_than_a_month_or_hardly_any_time_are_refused_with_the_mend() {
    let rows = |count: u64, apart_ns: u64| -> String {
        let row = |row: u64| format!("{},12\n", (row * apart_ns) as f64 / 1e3);
        std::iter::once("time_us,rate_mbps\n".to_owned()).chain((0..count).map(row)).collect()
    };
    let said = |toml: &str, rows: &str| resolved(toml, &[("leo.csv", rows)]).map(drop);
    const HOUR: u64 = 3_600_000 * MS;
    let (again, once) = ("trace = 'leo.csv'", "trace = { file = 'leo.csv', once = true }");
    assert_eq!(said(again, &rows(31 * 24, HOUR)), Ok(()));
    let long = said(again, &rows(40 * 24, HOUR)).unwrap_err();
    assert!(long.contains("trace = 'leo.csv' takes 3456000s; cut it to 2678400s at most"), "{long}");
    assert!(said(once, &rows(40 * 24, HOUR)).is_err());
    let brief = said(again, &rows(2, 100_000)).unwrap_err();
    assert!(brief.contains("begins again every 200us, with 2 changes; have it take 1ms at least"), "{brief}");
    assert_eq!(said(once, &rows(2, 100_000)), Ok(()));
    assert_eq!(said(again, &rows(10, 100_000)), Ok(()));
    // A nanosecond apart, there is no end to them within a second.
    let dense = said(again, &rows(50_000, 100)).unwrap_err();
    assert!(dense.contains("every 5ms, with 50000 changes; have it take 50ms at least"), "{dense}");
    assert!(said(again, &rows(50, 1)).is_err());
    let late = said("rate = '1Mbit'\nschedule = [{ at = '960h', delay = '1ms' }]", "").unwrap_err();
    assert!(late.contains("is later than a month"), "{late}");
}

#[test]
fn a_plan_holds_all_that_its_trace_says() {
    let plan = resolved(
        "trace = 'a.up'\nbackward = { trace = 'leo.csv' }",
        &[("a.up", "1\n1\n7\n"), ("leo.csv", TABLE)],
    );
    let plan = plan.unwrap();
    let text = plan.to_json().unwrap();
    assert!(text.contains("\"at\": \"1x2 7\""), "{text}");
    assert_eq!(LinkPlan::from_json(&text).unwrap(), plan);
}

#[test]
fn the_traces_that_come_with_it_are_what_their_generator_makes_and_are_followed() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/traces");
    let made = std::process::Command::new(format!("{directory}/generate")).arg("--check").status().unwrap();
    assert!(made.success(), "experiments/traces/generate makes others");
    for name in ["leo-handover.csv", "train-lte.down", "geo-rain.csv"] {
        let text = fs::read_to_string(format!("{directory}/{name}")).unwrap();
        let plan = resolved(&format!("trace = '{name}'"), &[(name, &text)]).unwrap().forward;
        assert!(plan.repeats_ns.is_some() || plan.opportunities.is_some(), "{name}");
        assert_eq!(delivered(&plan, 0, &[(1, 1500)]).len(), 1, "{name}");
    }
}

#[test]
fn a_queue_may_be_said_as_a_share_of_the_product() {
    let limit = |toml: &str| {
        LinkSpec::from_toml(toml).unwrap().resolve("path", 1).map(|plan| plan.forward.queue.limit_bytes)
    };
    assert_eq!(limit("rate = '100Mbit'\ndelay = '20ms'\nqueue = { round_trips = 0.1 }"), Ok(50_000));
    let said = |toml: &str| limit(toml).unwrap_err().to_string();
    assert!(
        said("rate = '1Mbit'\nqueue = { round_trips = 1 }")
            .contains("is a share of rate and delay, and one is missing")
    );
    let small = said("rate = '1Mbit'\ndelay = '4ms'\nqueue = { round_trips = 0.1 }");
    assert!(small.contains("queue.round_trips") && small.contains("write 1.5 at least"), "{small}");
    let both = "rate = '1Mbit'\ndelay = '1s'\nqueue = { round_trips = 1, limit = '1MB' }";
    assert!(said(both).contains("says the same as queue.limit"));
}
