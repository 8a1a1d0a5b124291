//! Causes simulated on paths drawn by their seed, and which is named: many more runs than an emulated path allows.
//!
//! The simulator's samples become looks. Its time busy is that of the samples, five to a look; the receiver's window is
//! the buffer of its plan, which its model never changes.
#![allow(clippy::unwrap_used)]

use longfat_host::socket::TcpInfo;
use longfat_link::plan::{ChangePlan, CodelPlan, DirectionPlan, DisciplinePlan, LinkPlan, LossPlan};
use longfat_schema::{
    random::SplitMix64,
    record::{Record, TcpSample},
};
use longfat_sim::{
    EndpointPlan, FlowPlan, LinkBetween, NodePlan, Scenario, SendBuffer, TcpPlan, Transport, run,
};
use longfat_why::{Assumed, Look, Memory, judge};
use std::{collections::BTreeMap, fmt::Write as _, path::Path};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Of each cause, and of each kind of healthy connections.
const SEEDS: u64 = 20;
const HEALTHY_SEEDS: u64 = 50;
/// As 'longfat why -- PROGRAM' looks: every 50 ms.
const SAMPLES_PER_LOOK: usize = 5;
/// TCP_ESTABLISHED and TCP_FIN_WAIT1 of the kernel.
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
/// Scaling agreed on (TCPI_OPT_WSCALE), SACK and timestamps.
const OPTIONS: u8 = 7;

/// A path and what is done on it.
struct Case {
    rate_bps: u64,
    rtt_ns: u64,
    pipe_bytes: u64,
    part: f64,
    forward: DirectionPlan,
    sender: EndpointPlan,
    receiver: EndpointPlan,
    bytes: Option<u64>,
    app_bps: Option<u64>,
    seed: u64,
    warm_ns: u64,
    watch_ns: u64,
}

impl Case {
    /// 5 to 80 Mbit/s, 10 to 160 ms, a queue of two pipes.
    fn drawn(seed: u64) -> Case {
        let mut random = SplitMix64::new(seed);
        let rate_bps = (5e6 * 16_f64.powf(random.unit())) as u64;
        let rtt_ns = (10e6 * 16_f64.powf(random.unit())) as u64;
        let pipe_bytes = (rate_bps / 8 * (rtt_ns / 1000) / 1_000_000).max(15_000);
        let sender = EndpointPlan { cc: "cubic".to_owned(), ..EndpointPlan::default() };
        Case {
            part: 0.15 + 0.25 * random.unit(),
            forward: DirectionPlan::plain(Some(rate_bps), rtt_ns / 2, 2 * pipe_bytes),
            sender,
            receiver: EndpointPlan::default(),
            bytes: None,
            app_bps: None,
            warm_ns: 6 * SECOND,
            watch_ns: 10 * SECOND,
            rate_bps,
            rtt_ns,
            pipe_bytes,
            seed,
        }
    }

    fn part_of_pipe(&self) -> u64 {
        ((self.pipe_bytes as f64 * self.part) as u64).max(4 * 1448)
    }

    fn scenario(&self) -> Scenario {
        let plan = LinkPlan {
            name: "path".to_owned(),
            mtu_bytes: 1500,
            seed: self.seed,
            late_limit_ns: 0,
            pause_limit: 0.0,
            sample_interval_ns: SECOND,
            coalesce_ns: 0,
            forward: self.forward.clone(),
            backward: DirectionPlan::plain(Some(self.rate_bps), self.rtt_ns / 2, 1 << 30),
        };
        let tcp = TcpPlan {
            sender: self.sender.clone(),
            receiver: self.receiver.clone(),
            block_bytes: 16 << 10,
            ..TcpPlan::default()
        };
        let flow = FlowPlan {
            name: "flow".to_owned(),
            from: 0,
            to: 1,
            streams: 1,
            start_ns: 0,
            stagger_ns: 0,
            send_for_ns: None,
            bytes: self.bytes,
            rate_bps: self.app_bps,
            transport: Transport::Tcp(Box::new(tcp)),
        };
        Scenario {
            nodes: vec![NodePlan::router("a"), NodePlan::router("b")],
            links: vec![LinkBetween { ends: [0, 1], plan }],
            flows: vec![flow],
            relays: Vec::new(),
            settle_ns: 0,
            start_within_ns: 0,
            duration_ns: self.warm_ns + self.watch_ns,
            sample_every_ns: 10 * MS,
            seed: self.seed,
        }
    }

    fn named(&self) -> &'static str {
        let mut samples = Vec::new();
        let keep = |record| match record {
            Record::Tcp(sample) if sample.role == "sender" => samples.push(sample),
            _ => {}
        };
        run(&self.scenario(), keep, |_| true).unwrap();
        let looks = self.looks(&samples);
        let assumed = Assumed { path_rate: None };
        let verdict = judge(&looks, &assumed);
        verdict.as_ref().and_then(|verdict| verdict.first()).map_or("nothing", |share| share.cause.name())
    }

    fn looks(&self, samples: &[TcpSample]) -> Vec<Look> {
        let (mut looks, mut busy_us, mut heard) = (Vec::new(), 0, (0, 0));
        let mut before_us = 0;
        for (number, sample) in samples.iter().enumerate() {
            let is_busy = sample.flight_segments > 0 || sample.unsent_bytes > 0;
            busy_us += if is_busy { sample.time_us - before_us } else { 0 } as u64;
            before_us = sample.time_us;
            if sample.acked_bytes > heard.0 {
                heard = (sample.acked_bytes, sample.time_us);
            }
            let is_meant = sample.time_us >= (self.warm_ns / 1000) as i64;
            let is_over = self.bytes.is_some_and(|bytes| sample.acked_bytes >= bytes);
            if is_meant && (number.is_multiple_of(SAMPLES_PER_LOOK) || is_over) {
                looks.push(self.look(sample, busy_us, sample.time_us - heard.1));
            }
            if is_over {
                break;
            }
        }
        looks
    }

    fn look(&self, sample: &TcpSample, busy_us: u64, silent_us: i64) -> Look {
        let outstanding = sample.flight_segments * sample.mss_bytes;
        let sndbuf_bytes = match self.sender.send_buffer {
            SendBuffer::Fixed(bytes) => bytes as u32,
            SendBuffer::Auto(_) => 0,
        };
        let info = TcpInfo {
            // The program ends it when it has written all; the model has no FIN.
            state: if self.bytes.is_some() && sample.unsent_bytes == 0 { FIN_WAIT_1 } else { ESTABLISHED },
            options: OPTIONS,
            ca_state: ["open", "disorder", "cwr", "recovery", "loss"]
                .iter()
                .position(|name| *name == sample.ca_state)
                .unwrap() as u8,
            snd_mss_bytes: sample.mss_bytes,
            unacked_segments: sample.flight_segments,
            rto_us: sample.rto_us,
            srtt_us: sample.srtt_us,
            rttvar_us: sample.rttvar_us,
            min_rtt_us: sample.min_rtt_us.unwrap_or(u32::MAX),
            snd_cwnd_segments: sample.cwnd_segments,
            snd_ssthresh_segments: sample.ssthresh_segments.unwrap_or(u32::MAX),
            total_retrans_segments: sample.retransmitted_segments as u32,
            total_rto: sample.timeouts.unwrap() as u16,
            dsack_dups: sample.duplicate_segments.unwrap() as u32,
            acked_bytes: sample.acked_bytes,
            sent_bytes: sample.sent_bytes,
            data_segs_out: (sample.sent_bytes / u64::from(sample.mss_bytes)) as u32,
            notsent_bytes: sample.unsent_bytes as u32,
            delivery_rate_bytes_per_s: sample.delivery_rate_bps / 8,
            last_ack_recv_ms: (silent_us / 1000) as u32,
            snd_wnd_bytes: self.receiver.receive_buffer_bytes as u32,
            pacing_rate_bytes_per_s: u64::MAX,
            max_pacing_rate_bytes_per_s: u64::MAX,
            busy_us,
            rwnd_limited_us: sample.rwnd_limited_us,
            sndbuf_limited_us: sample.sndbuf_limited_us,
            ..TcpInfo::default()
        };
        let send_queued_bytes = outstanding + sample.unsent_bytes as u32;
        let memory = Memory { sndbuf_bytes, send_queued_bytes, ..Memory::default() };
        Look { time_us: sample.time_us as u64, info, memory, ..Look::default() }
    }
}

fn receive_window(case: &mut Case) {
    case.receiver.receive_buffer_bytes = case.part_of_pipe();
}

fn send_buffer(case: &mut Case) {
    case.sender.send_buffer = SendBuffer::Fixed(case.part_of_pipe());
}

fn program_idle(case: &mut Case) {
    case.app_bps = Some((case.rate_bps as f64 * case.part) as u64);
}

/// A few windows of a third of the pipe between two losses.
fn random_loss(case: &mut Case) {
    let third = case.pipe_bytes as f64 / 1500.0 / 3.0;
    let probability = (3.0 / third.powi(2)).clamp(0.003, 0.02);
    case.forward.line.loss = LossPlan::Bernoulli { probability };
    case.watch_ns = 20 * SECOND;
}

fn standing_queue(_: &mut Case) {}

fn path_full(case: &mut Case) {
    let (target_ns, interval_ns) = (case.rtt_ns / 8, case.rtt_ns + 50 * MS);
    case.forward.queue.discipline = DisciplinePlan::Codel(CodelPlan { target_ns, interval_ns, ecn: false });
}

fn slow_start(case: &mut Case) {
    case.bytes = Some(case.pipe_bytes.max(60_000) * 4 / 5);
    (case.warm_ns, case.watch_ns) = (0, case.rtt_ns * 12);
}

/// The path is dead for one and a half of every three seconds.
fn timeouts(case: &mut Case) {
    let line = |loss: f64| {
        let mut line = case.forward.line.clone();
        line.loss = LossPlan::Bernoulli { probability: loss };
        line
    };
    let change = |number: u64| {
        let loss = if number.is_multiple_of(2) { 1.0 } else { 0.0 };
        ChangePlan { at_ns: 2 * SECOND + number * 3 * SECOND / 2, line: line(loss), queue: None }
    };
    case.forward.schedule = (0..12).map(change).collect();
}

fn bulk_reno(case: &mut Case) {
    case.sender.cc = "reno".to_owned();
}

fn bulk_cubic(case: &mut Case) {
    case.forward.queue.limit_bytes = case.pipe_bytes;
}

fn short_transfer(case: &mut Case) {
    case.bytes = Some(2_000 + (case.part * 100_000.0) as u64);
    (case.warm_ns, case.watch_ns) = (0, SECOND);
}

/// Makes a drawn path one on which a cause holds.
type Prepare = fn(&mut Case);

const FAULTS: [(&str, &str, Prepare); 8] = [
    ("receive_window", "receive_window", receive_window),
    ("send_buffer", "send_buffer", send_buffer),
    ("program_idle", "program_idle", program_idle),
    ("random_loss", "random_loss", random_loss),
    ("standing_queue", "standing_queue", standing_queue),
    ("path_full", "path_full", path_full),
    ("slow_start", "slow_start", slow_start),
    ("timeouts", "timeouts", timeouts),
];
const HEALTHY: [(&str, Prepare); 4] = [
    ("healthy_reno", bulk_reno),
    ("healthy_cubic", bulk_cubic),
    ("healthy_slow", program_idle),
    ("healthy_short", short_transfer),
];

fn counts(prepare: Prepare, seeds: u64) -> BTreeMap<&'static str, u64> {
    let mut found = BTreeMap::new();
    for seed in 1..=seeds {
        let mut case = Case::drawn(seed);
        prepare(&mut case);
        *found.entry(case.named()).or_default() += 1;
    }
    found
}

fn is_faultless(name: &str) -> bool {
    longfat_why::CATALOGUE.iter().any(|entry| entry.name == name && !entry.is_fault)
}

fn line(text: &mut String, name: &str, right: u64, found: &BTreeMap<&str, u64>) {
    let named: Vec<_> = found.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let runs: u64 = found.values().sum();
    let _ = writeln!(text, "{name:<24} {runs:>4} {right:>5}  {}", named.join(", "));
}

#[test]
fn simulated_causes_are_named_as_the_table_beside_the_looks_says() {
    let mut text = format!("{:<24} {:>4} {:>5}  first cause named\n", "injected", "runs", "right");
    let (mut right_of_all, mut accused) = (0, 0);
    for (name, expected, prepare) in FAULTS {
        let found = counts(prepare, SEEDS);
        let right = found.get(expected).copied().unwrap_or(0);
        right_of_all += right;
        line(&mut text, name, right, &found);
    }
    for (name, prepare) in HEALTHY {
        let found = counts(prepare, HEALTHY_SEEDS);
        let right = found.iter().filter(|(name, _)| is_faultless(name)).map(|(_, count)| count).sum();
        accused += HEALTHY_SEEDS - right;
        line(&mut text, name, right, &found);
    }
    let (injected, healthy) = (SEEDS * FAULTS.len() as u64, HEALTHY_SEEDS * HEALTHY.len() as u64);
    let share = 100.0 * right_of_all as f64 / injected as f64;
    let _ = writeln!(text, "right cause first: {right_of_all} of {injected} ({share:.1} %)");
    let _ = writeln!(text, "healthy ones accused: {accused} of {healthy}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/looks/simulated.txt");
    if std::env::var_os("LONGFAT_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "see crates/why/tests/looks/README.md");
}
