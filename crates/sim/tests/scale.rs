//! Ten thousand flows on one bottleneck.

use crate::support::*;
use longfat_schema::record::Record;
use longfat_sim::{NodePlan, Scenario, run};

const FLOWS: usize = 10_000;

/// Every flow has hosts and access links of its own, and all share one link of 2 Gbit/s.
fn dumbbell() -> Scenario {
    let access = |name: String, ends| link(&name, ends, direction(Some(1_000_000_000), MS, 1 << 30));
    let sender = |index: usize| 2 + 2 * index;
    let mut links = vec![link("bottleneck", [0, 1], direction(Some(2_000_000_000), 20 * MS, 10_000_000))];
    for index in 0..FLOWS {
        links.push(access(format!("in{index}"), [sender(index), 0]));
        links.push(access(format!("out{index}"), [1, sender(index) + 1]));
    }
    let one = |index: usize| flow(&format!("f{index}"), sender(index), sender(index) + 1, tcp("cubic"));
    Scenario {
        nodes: (0..2 * FLOWS + 2).map(|index| NodePlan::router(format!("n{index}"))).collect(),
        links,
        flows: (0..FLOWS).map(one).collect(),
        sample_every_ns: SECOND,
        start_within_ns: SECOND / 2,
        ..path(direction(None, 0, 1), Vec::new(), 2 * SECOND)
    }
}

#[test]
fn ten_thousand_flows_share_one_bottleneck_and_nine_in_ten_get_something_within_two_seconds() {
    let (mut received, mut silent) = (0, 0);
    let take = |record: Record| {
        if let Record::Flow(flow) = record {
            received += flow.received_bytes;
            silent += u32::from(flow.received_bytes == 0);
        }
    };
    let stats = run(&dumbbell(), take, |_| true).unwrap();
    let goodput_mbps = received as f64 * 8e-6 / 2.0;
    println!("{stats:?}, {goodput_mbps:.0} Mbit/s, {silent} flows got nothing");
    // All begin within the first half second; payload is 1448 of 1500 bytes.
    assert!(goodput_mbps > 0.6 * 1930.0, "{goodput_mbps}");
    // Nearly four times as many packets begin as the queue holds; a lost SYN is sent again a second later.
    assert!(silent < FLOWS as u32 / 10, "{silent} flows got nothing");
    // Work is in proportion to packets: an event per packet and link, and timers.
    assert!(stats.events < 3 * stats.packets, "{stats:?}");
}
