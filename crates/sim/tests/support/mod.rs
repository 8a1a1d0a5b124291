//! Small scenarios for tests: one path between two hosts, and what a run of it came to.

use longfat_link::plan::{CodelPlan, DirectionPlan, DisciplinePlan, LinkPlan};
use longfat_schema::record::{FlowSummary, LinkSummary, Record, TcpSample};
use longfat_sim::{
    EndpointPlan, FlowPlan, LinkBetween, NodePlan, Scenario, SimStats, TcpPlan, Transport, run,
};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

pub fn direction(rate_bps: Option<u64>, delay_ns: u64, limit_bytes: u64) -> DirectionPlan {
    DirectionPlan::plain(rate_bps, delay_ns, limit_bytes)
}

pub fn link(name: &str, ends: [usize; 2], forward: DirectionPlan) -> LinkBetween {
    let backward = direction(forward.line.rate_bps, forward.line.delay_ns, 1 << 30);
    let plan = LinkPlan {
        name: name.to_owned(),
        mtu_bytes: 1500,
        seed: 42,
        late_limit_ns: 0,
        pause_limit: 0.0,
        sample_interval_ns: SECOND,
        coalesce_ns: 0,
        forward,
        backward,
    };
    LinkBetween { ends, plan }
}

pub fn codel_with_ecn() -> DisciplinePlan {
    DisciplinePlan::Codel(CodelPlan { target_ns: 5 * MS, interval_ns: 100 * MS, ecn: true })
}

pub fn tcp(cc: &str) -> TcpPlan {
    TcpPlan { sender: EndpointPlan { cc: cc.to_owned(), ..EndpointPlan::default() }, ..TcpPlan::default() }
}

pub fn flow(name: &str, from: usize, to: usize, tcp: TcpPlan) -> FlowPlan {
    FlowPlan {
        name: name.to_owned(),
        from,
        to,
        streams: 1,
        start_ns: 0,
        stagger_ns: 0,
        send_for_ns: None,
        bytes: None,
        rate_bps: None,
        transport: Transport::Tcp(Box::new(tcp)),
    }
}

/// Two hosts and one link; the flows go from the first to the second.
pub fn path(forward: DirectionPlan, flows: Vec<FlowPlan>, duration_ns: u64) -> Scenario {
    Scenario {
        nodes: vec![NodePlan::router("a"), NodePlan::router("b")],
        links: vec![link("path", [0, 1], forward)],
        flows,
        relays: Vec::new(),
        settle_ns: 0,
        start_within_ns: 0,
        duration_ns,
        sample_every_ns: 10 * MS,
        seed: 1,
    }
}

pub struct Outcome {
    pub stats: SimStats,
    pub records: Vec<Record>,
}

pub fn outcome(scenario: &Scenario) -> Outcome {
    let mut records = Vec::new();
    let stats = run(scenario, |record| records.push(record), |_| true).unwrap();
    Outcome { stats, records }
}

impl Outcome {
    pub fn flow(&self, name: &str) -> &FlowSummary {
        let found = self.records.iter().find_map(|record| match record {
            Record::Flow(flow) if flow.flow == name => Some(flow),
            _ => None,
        });
        found.unwrap()
    }

    pub fn goodput_mbps(&self, name: &str) -> f64 {
        self.flow(name).goodput_bps as f64 / 1e6
    }

    pub fn forward(&self) -> &LinkSummary {
        let found = self.records.iter().find_map(|record| match record {
            Record::Link(link) if link.direction == "forward" => Some(link),
            _ => None,
        });
        found.unwrap()
    }

    pub fn tcp(&self) -> impl Iterator<Item = &TcpSample> {
        self.records.iter().filter_map(|record| match record {
            Record::Tcp(tcp) => Some(tcp),
            _ => None,
        })
    }

    /// Payload that arrived from one time to another, by a flow's interval records.
    pub fn bytes_between(&self, name: &str, from_ns: u64, to_ns: u64) -> u64 {
        let within = (from_ns / 1000) as i64 + 1..=(to_ns / 1000) as i64;
        let bytes = self.records.iter().filter_map(|record| match record {
            Record::Interval(i) if i.flow == name && within.contains(&i.time_us) => Some(i.bytes),
            _ => None,
        });
        bytes.sum()
    }

    pub fn mbps_between(&self, name: &str, from_ns: u64, to_ns: u64) -> f64 {
        self.bytes_between(name, from_ns, to_ns) as f64 * 8e3 / (to_ns - from_ns) as f64
    }
}
