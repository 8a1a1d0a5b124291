//! One path, some flows of one congestion control: the figures to hold beside an emulated or a real run.
//!
//! `cargo run -p longfat-sim --example path -- CC STREAMS MBIT DELAY_MS QUEUE_BYTES FROM_S TO_S`

use longfat_link::plan::{DirectionPlan, LinkPlan};
use longfat_schema::record::Record;
use longfat_sim::{
    EndpointPlan, FlowPlan, LinkBetween, NodePlan, ReceiveBuffer, Scenario, SendBuffer, TcpPlan, Transport,
    run,
};

const SECOND_NS: u64 = 1_000_000_000;

fn scenario(
    cc: &str,
    streams: u32,
    rate_bps: u64,
    delay_ns: u64,
    queue_bytes: u64,
    seconds: u64,
) -> Scenario {
    let forward = DirectionPlan::plain(Some(rate_bps), delay_ns, queue_bytes);
    let plan = LinkPlan {
        name: "path".to_owned(),
        mtu_bytes: 1500,
        seed: 1,
        late_limit_ns: 0,
        pause_limit: 0.0,
        sample_interval_ns: SECOND_NS,
        coalesce_ns: 0,
        backward: forward.clone(),
        forward,
    };
    let sender = EndpointPlan {
        cc: cc.to_owned(),
        send_buffer: SendBuffer::Auto(16 << 20),
        ..EndpointPlan::default()
    };
    let receiver = EndpointPlan { receive_buffer: ReceiveBuffer::Fixed(16 << 20), ..EndpointPlan::default() };
    let tcp = TcpPlan { sender, receiver, echo_every_bytes: Some(1_000_000), ..TcpPlan::default() };
    let flow = FlowPlan {
        name: "f".to_owned(),
        from: 0,
        to: 1,
        streams,
        start_ns: 0,
        stagger_ns: 100_000_000,
        send_for_ns: None,
        bytes: None,
        rate_bps: None,
        transport: Transport::Tcp(Box::new(tcp)),
    };
    Scenario {
        nodes: vec![NodePlan::router("a"), NodePlan::router("b")],
        links: vec![LinkBetween { ends: [0, 1], plan }],
        flows: vec![flow],
        relays: Vec::new(),
        settle_ns: 0,
        start_within_ns: 0,
        duration_ns: seconds * SECOND_NS,
        sample_every_ns: 10_000_000,
        seed: 1,
    }
}

/// Sums and counts within the window of time that is asked for.
#[derive(Default)]
struct Totals {
    bytes: u64,
    queue: (u64, u64),
    dropped: (Option<u64>, u64),
    windows: Vec<u32>,
    reductions: u32,
    echoes_us: Vec<u64>,
}

impl Totals {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Interval(interval) => self.bytes += interval.bytes,
            Record::Queue(queue) if queue.direction == "forward" => {
                self.queue = (self.queue.0 + queue.queue_bytes, self.queue.1 + 1);
                self.dropped.0.get_or_insert(queue.dropped_packets);
                self.dropped.1 = queue.dropped_packets;
            }
            Record::Tcp(tcp) if tcp.stream == 0 => {
                let last = self.windows.last().copied().unwrap_or(0);
                self.reductions += u32::from(u64::from(tcp.cwnd_segments) * 10 < u64::from(last) * 9);
                self.windows.push(tcp.cwnd_segments);
            }
            Record::Echo(echo) => self.echoes_us.push(echo.latency_us),
            _ => {}
        }
    }
}

fn time_us(record: &Record) -> i64 {
    match record {
        Record::Interval(x) => x.time_us,
        Record::Queue(x) => x.time_us,
        Record::Tcp(x) => x.time_us,
        Record::Echo(x) => x.time_us,
        _ => -1,
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (Some(cc), &[streams, mbit, delay_ms, queue_bytes, from_s, to_s]) = (words.first(), &numbers[..])
    else {
        eprintln!("usage: path CC STREAMS MBIT DELAY_MS QUEUE_BYTES FROM_S TO_S");
        std::process::exit(2);
    };
    let scenario = scenario(cc, streams as u32, mbit * 1_000_000, delay_ms * 1_000_000, queue_bytes, to_s);
    let mut totals = Totals::default();
    let window = (from_s * 1_000_000) as i64 + 1..=(to_s * 1_000_000) as i64;
    let result = run(
        &scenario,
        |record| {
            if window.contains(&time_us(&record)) {
                totals.take(&record);
            }
        },
        |_| true,
    );
    if let Err(error) = result {
        eprintln!("path: {error}");
        std::process::exit(2);
    }
    totals.echoes_us.sort_unstable();
    let seconds = (to_s - from_s) as f64;
    let mean =
        |values: &[u32]| values.iter().map(|x| f64::from(*x)).sum::<f64>() / values.len().max(1) as f64;
    println!("goodput {:.2} Mbit/s", totals.bytes as f64 * 8e-6 / seconds);
    println!("dropped {}", totals.dropped.1 - totals.dropped.0.unwrap_or(0));
    println!("mean queue {:.0} B", totals.queue.0 as f64 / totals.queue.1.max(1) as f64);
    println!(
        "cwnd of stream 0: mean {:.1}, least {}, most {}, falls by a tenth or more {}",
        mean(&totals.windows),
        totals.windows.iter().min().copied().unwrap_or(0),
        totals.windows.iter().max().copied().unwrap_or(0),
        totals.reductions
    );
    println!("echo p50 {} us", totals.echoes_us.get(totals.echoes_us.len() / 2).copied().unwrap_or(0));
}
