//! How fast the simulator is: a dumbbell of four Reno flows at 100 Mbit/s, and RFC 3649's path (10 Gbit/s, 100 ms)
//! with one HighSpeed and one Reno flow.
//!
//! `cargo run --release -p longfat-sim --example dumbbell [-- SECONDS_DUMBBELL SECONDS_LONG_FAT]`, or for
//! `bench/sim/compare.py`, which holds the dumbbell beside ns-3's, one line of JSON: `[-- --json SECONDS_DUMBBELL]`

use longfat_link::plan::{DirectionPlan, LinkPlan};
use longfat_schema::record::Record;
use longfat_sim::{EndpointPlan, FlowPlan, LinkBetween, NodePlan, Scenario, TcpPlan, Transport, run};
use std::time::Instant;

const SECOND_NS: u64 = 1_000_000_000;

fn link(name: &str, ends: [usize; 2], rate_bps: u64, delay_ns: u64, limit_bytes: u64) -> LinkBetween {
    let direction = DirectionPlan::plain(Some(rate_bps), delay_ns, limit_bytes);
    let plan = LinkPlan {
        name: name.to_owned(),
        mtu_bytes: 1500,
        seed: 1,
        late_limit_ns: 0,
        pause_limit: 0.0,
        sample_interval_ns: SECOND_NS,
        coalesce_ns: 0,
        forward: direction.clone(),
        backward: direction,
    };
    LinkBetween { ends, plan }
}

/// Hosts 0 .. n send to hosts n + 2 .. over routers n and n + 1.
fn dumbbell(ccs: &[&str], rate_bps: u64, delay_ns: u64, queue_bytes: u64, seconds: u64) -> Scenario {
    let count = ccs.len();
    let (left, right) = (count, count + 1);
    let mut links = vec![link("bottleneck", [left, right], rate_bps, delay_ns, queue_bytes)];
    let mut flows = Vec::new();
    for (index, cc) in ccs.iter().enumerate() {
        let access_bps = rate_bps * 10;
        links.push(link(&format!("sender{index}"), [index, left], access_bps, 1_000_000, 1 << 30));
        links.push(link(
            &format!("receiver{index}"),
            [right, right + 1 + index],
            access_bps,
            1_000_000,
            1 << 30,
        ));
        let sender = EndpointPlan { cc: (*cc).to_owned(), ..EndpointPlan::default() };
        flows.push(FlowPlan {
            name: format!("{cc}{index}"),
            from: index,
            to: right + 1 + index,
            streams: 1,
            start_ns: index as u64 * 100_000_000,
            stagger_ns: 0,
            send_for_ns: None,
            bytes: None,
            rate_bps: None,
            transport: Transport::Tcp(Box::new(TcpPlan { sender, ..TcpPlan::default() })),
        });
    }
    Scenario {
        nodes: (0..2 * count + 2).map(|node| NodePlan::router(format!("node{node}"))).collect(),
        links,
        flows,
        relays: Vec::new(),
        settle_ns: 0,
        start_within_ns: 0,
        duration_ns: seconds * SECOND_NS,
        sample_every_ns: SECOND_NS,
        seed: 7,
    }
}

fn measure(name: &str, scenario: &Scenario) {
    let mut lines = Vec::new();
    let mut data_packets = 0;
    let began = Instant::now();
    let result = run(
        scenario,
        |record| match record {
            Record::Flow(flow) => lines.push(format!(
                "    {:<12} {:>9.1} Mbit/s  retransmitted {}",
                flow.flow,
                flow.goodput_bps as f64 / 1e6,
                flow.retransmitted_segments
            )),
            Record::Link(link) if link.link == "bottleneck" && link.direction == "forward" => {
                data_packets = link.delivered_packets;
                lines.push(format!(
                    "    dropped {}  mean queue {} B",
                    link.dropped_packets, link.queue_mean_bytes
                ));
            }
            _ => {}
        },
        |_| true,
    );
    let wall_s = began.elapsed().as_secs_f64();
    match result {
        Err(error) => println!("{name}: {error}"),
        Ok(stats) => {
            println!(
                "{name}: {:.2} s for {} s simulated; packets over links {:.2} M/s; events {:.2} M/s; data packets \
                 through the bottleneck {:.3} M/s; timeouts {}",
                wall_s,
                stats.time_ns / SECOND_NS,
                stats.packets as f64 / wall_s / 1e6,
                stats.events as f64 / wall_s / 1e6,
                data_packets as f64 / wall_s / 1e6,
                stats.timeouts
            );
            lines.iter().for_each(|line| println!("{line}"));
        }
    }
}

fn print_json(scenario: &Scenario) {
    let mut goodput_bps = 0;
    let sum = |record| {
        if let Record::Flow(flow) = record {
            goodput_bps += flow.goodput_bps;
        }
    };
    match run(scenario, sum, |_| true) {
        Ok(stats) => println!(
            "{{\"simulated_s\": {}, \"packets\": {}, \"goodput_mbit_per_s\": {:.1}}}",
            stats.time_ns / SECOND_NS,
            stats.packets,
            goodput_bps as f64 / 1e6
        ),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    }
}

fn main() {
    let seconds: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let (short, long) = (seconds.first().copied().unwrap_or(100), seconds.get(1).copied().unwrap_or(60));
    let four = dumbbell(&["reno"; 4], 100_000_000, 18_000_000, 500_000, short);
    if std::env::args().any(|argument| argument == "--json") {
        return print_json(&four);
    }
    measure("4 reno, 100 Mbit/s, 40 ms", &four);
    let fat = dumbbell(&["highspeed", "reno"], 10_000_000_000, 48_000_000, 125_000_000, long);
    measure("highspeed + reno, 10 Gbit/s, 100 ms", &fat);
}
